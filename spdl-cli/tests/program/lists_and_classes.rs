//! Lists whose rows lie in several places, and labels that are the names of classes.
#![cfg(any(feature = "http", feature = "parquet"))]

use std::ffi::OsStr;
use std::fs;

use crate::common::{Folder, Run, finish, png, spdl};

fn run(command: &str, data: &[impl AsRef<OsStr>], arguments: &[&str]) -> Run {
    finish(spdl().arg(command).args(data).args(arguments).output().unwrap())
}

#[cfg(feature = "http")]
#[test]
fn a_list_of_addresses_is_read_and_packed_without_what_signs_them() {
    use crate::common::damaged;
    use spdl_io::testing::FaultServer;

    let folder = Folder::new();
    let [one, two] = [1, 2].map(|number| FaultServer::start([("a/1.png", png(number))]));
    let (first, second) = (one.url(), two.url());
    folder.add("images/1.png", &png(3));
    let rows = format!(
        "url,label\n{first}/a/1.png?sig=canary-row,1\n../images/1.png,0\n{second}/a/1.png,0\n"
    );
    folder.add("lists/list.csv", rows.as_bytes());
    let list = [folder.join("lists/list.csv")];
    let mut told = String::new();
    for (command, arguments) in [
        ("verify", &["--json"][..]),
        ("stat", &["--json"]),
        ("ls", &["--json"]),
        ("ls", &[]),
        ("bench", &["--json"]),
    ] {
        let one = run(command, &list, arguments);
        assert_eq!(one.code, 0, "{command}: {}", one.stderr);
        told += &(one.stdout + &one.stderr);
    }
    assert!(told.contains(&format!("{first}/a/1.png?***")), "{told}");
    assert!(one.seen().iter().all(|seen| seen.target == "/a/1.png?sig=canary-row"));
    assert!(two.seen().iter().all(|seen| seen.target == "/a/1.png"));
    let set = folder.join("packed");
    let packed = run("pack", &[&list[0], &set], &["--json"]);
    assert_eq!(packed.json()["samples"], 3);
    told += &(packed.stdout + &packed.stderr);
    for entry in fs::read_dir(&set).unwrap() {
        told += &String::from_utf8_lossy(&fs::read(entry.unwrap().path()).unwrap());
    }
    assert!(!told.contains("canary"), "{told}");
    two.insert("a/1.png", damaged(1));
    let told = run("verify", &list, &[]);
    let words = format!("({second}/a/1.png)");
    assert!(told.code == 1 && told.line().contains(&words), "{}", told.line());
}

#[cfg(feature = "parquet")]
#[test]
fn the_texts_of_a_column_are_the_classes_of_what_is_packed() {
    use std::path::Path;

    use serde_json::Value;
    use spdl_io::shards::Manifest;

    let file = "../spdl-io/tests/data/parquet/images.parquet";
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let rows: Vec<Value> =
        serde_json::from_slice(&fs::read(data.with_extension("json")).unwrap()).unwrap();
    let captions: Vec<&str> = rows.iter().map(|row| row["caption"].as_str().unwrap()).collect();
    let mut classes = captions.clone();
    classes.sort_unstable();
    classes.dedup();
    let folder = Folder::new();
    let set = folder.join("set");
    let told = run("pack", &[&data, &set], &["--label-field", "caption"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    assert_eq!(Manifest::read(&set).unwrap().classes(), classes);
    for (number, caption) in captions.iter().enumerate() {
        let label = run("cat", &[&set], &[&format!("images/{number}.cls")]).stdout;
        let expected = classes.iter().position(|class| class == caption).unwrap();
        assert_eq!(label, expected.to_string(), "{caption}");
    }
    // Of the file itself the text is still there, as it stands.
    let key = format!("{}:0", data.display());
    let text = run("cat", &[&data], &[&key, "--field", "caption"]);
    assert_eq!((text.code, &*text.stdout), (0, captions[0]), "{}", text.stderr);
    let told = run("bench", &[&data], &["--label-field", "caption"]);
    let words = format!("in {} classes", classes.len());
    // Lines are broken to fit.
    let text = told.stdout.replace('\n', " ");
    assert!(told.code == 0 && text.contains(&words), "{text} {}", told.stderr);
}

/// A list of two images whose column of labels is called `target`.
fn list_of_targets() -> (Folder, [std::path::PathBuf; 1]) {
    let folder = Folder::new();
    folder.add("1.png", &png(1));
    folder.add("2.png", &png(2));
    folder.add("list.csv", b"path,target\n1.png,dog\n2.png,cat\n");
    let list = [folder.join("list.csv")];
    (folder, list)
}

#[test]
fn where_no_sample_has_a_label_the_columns_and_the_option_are_told_once() {
    let (folder, list) = list_of_targets();
    for command in ["bench", "pack"] {
        let set = folder.join("unlabeled");
        let data: Vec<_> = list.iter().chain((command == "pack").then_some(&set)).collect();
        let told = run(command, &data, &["--json"]);
        assert_eq!(told.code, 0, "{}", told.stderr);
        let words = "spdl: warning: no sample has a label, so all labels are -1";
        assert_eq!(told.stderr.matches(words).count(), 1, "{}", told.stderr);
        assert!(told.stderr.contains("other columns are `target`; "), "{}", told.stderr);
        assert!(told.stderr.contains("add --label-field"), "{}", told.stderr);
        // Nobody here can use what it is called elsewhere.
        assert!(!told.stderr.contains("label_field"), "{}", told.stderr);
    }
}

#[test]
fn a_column_of_a_list_that_is_named_has_its_texts_for_classes() {
    let (folder, list) = list_of_targets();
    let told = run("bench", &list, &["--json", "--label-field", "target"]);
    assert!(!told.stderr.contains("label"), "{}", told.stderr);
    assert_eq!((told.code, &told.json()["labelled"]), (0, &2.into()));
    let set = folder.join("set");
    let told = run("pack", &[&list[0], &set], &["--label-field", "target"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    assert_eq!(spdl_io::shards::Manifest::read(&set).unwrap().classes(), ["cat", "dog"]);
    let label = |name: &str| run("cat", &[&set], &[name]).stdout;
    assert_eq!((&*label("1.cls"), &*label("2.cls")), ("1", "0"));
}

#[test]
fn a_lists_own_column_of_labels_may_be_named_for_packing() {
    let (folder, _) = list_of_targets();
    folder.add("own.csv", b"path,label\n1.png,dog\n2.png,cat\n");
    let set = folder.join("set");
    let told = run("pack", &[&folder.join("own.csv"), &set], &["--label-field", "label"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let label = |name: &str| run("cat", &[&set], &[name]).stdout;
    assert_eq!((&*label("1.cls"), &*label("2.cls")), ("1", "0"));
}

#[test]
fn the_column_of_a_list_that_names_the_files_may_be_named() {
    let (folder, _) = list_of_targets();
    folder.add("photos.csv", b"photo,label,path\n1.png,dog,x\n2.png,cat,y\n");
    let list = [folder.join("photos.csv")];
    let told = run("bench", &list, &["--json", "--image-field", "photo"]);
    assert_eq!((told.code, &told.json()["labelled"]), (0, &2.into()), "{}", told.stderr);
    let set = folder.join("set");
    let told = run("pack", &[&list[0], &set], &["--image-field", "photo"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    assert_eq!(run("cat", &[&set], &["1.cls"]).stdout, "1");
    folder.add("other.csv", b"photo,label\n1.png,dog\n");
    let told = run("bench", &[folder.join("other.csv")], &[]);
    assert!(told.stderr.contains("or select it with --image-field"), "{}", told.stderr);
}

#[test]
fn samples_without_a_label_beside_others_are_counted_once() {
    let (folder, _) = list_of_targets();
    folder.add("half.csv", b"path,label\n1.png,3.0\n2.png,\n");
    let told = run("bench", &[folder.join("half.csv")], &["--json"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let words = "2.png: 1 of 2 samples has no label and will get the label -1, ";
    assert_eq!(told.stderr.matches(words).count(), 1, "{}", told.stderr);
}

#[test]
fn folders_in_an_archive_are_the_classes_of_what_is_packed() {
    let (folder, _) = list_of_targets();
    folder.add("train/dog/1.png", &png(1));
    folder.add("train/cat/2.png", &png(2));
    let archive = folder.join("photos.tar");
    let mut tar = std::process::Command::new("tar");
    tar.arg("--directory").arg(folder.path()).arg("--create").arg("--file").arg(&archive);
    assert!(tar.args(["train/dog/1.png", "train/cat/2.png"]).status().unwrap().success());
    let told = run("bench", &[&archive], &["--json"]);
    assert_eq!((told.code, &told.json()["labelled"]), (0, &2.into()), "{}", told.stderr);
    assert!(!told.stderr.contains("label"), "{}", told.stderr);
    let text = run("bench", &[&archive], &[]).stdout.replace('\n', " ");
    assert!(text.contains("in 2 classes found in folders"), "{text}");
    let set = folder.join("set");
    let told = run("pack", &[&archive, &set], &[]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    assert_eq!(spdl_io::shards::Manifest::read(&set).unwrap().classes(), ["cat", "dog"]);
    let label = |name: &str| run("cat", &[&set], &[name]).stdout;
    assert_eq!((&*label("train/dog/1.cls"), &*label("train/cat/2.cls")), ("1", "0"));
}

#[test]
fn a_rank_without_an_image_is_told_with_what_to_do() {
    let (_folder, list) = list_of_targets();
    for remainder in ["drop", "uneven"] {
        let division = ["--rank", "2", "--world-size", "3", "--remainder", remainder];
        let told = run("bench", &list, &division);
        assert_ne!(told.code, 0);
        let words =
            "rank 2 of 3 takes none of 2 images, as there are fewer than ranks; --remainder pad";
        assert!(told.stderr.contains(words), "{remainder}: {}", told.stderr);
    }
}

#[cfg(feature = "http")]
#[test]
fn where_no_server_listens_it_is_told_at_once_and_given_up_soon() {
    // Nobody is given a port below 1024 who does not ask for it.
    let address = "http://127.0.0.1:1";
    let told = run("bench", &[format!("{address}/1.tar")], &[]);
    assert_ne!(told.code, 0);
    let first = told.stderr.lines().next().unwrap();
    let words = format!("spdl: warning: {address}: cannot connect to the server: ");
    assert!(first.starts_with(&words) && first.ends_with("; retrying"), "{first}");
    assert!(told.stderr.contains("nothing has answered there so far"), "{}", told.stderr);
}
