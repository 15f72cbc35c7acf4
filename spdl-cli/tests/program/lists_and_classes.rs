//! Lists with URLs of several stores, and labels that are class names.
#![cfg(any(feature = "http", feature = "parquet"))]

use std::ffi::OsStr;
use std::fs;

use crate::common::{Folder, Run, finish, png, spdl};

fn run(command: &str, data: &[impl AsRef<OsStr>], arguments: &[&str]) -> Run {
    finish(spdl().arg(command).args(data).args(arguments).output().unwrap())
}

#[cfg(feature = "http")]
#[test]
fn a_list_of_signed_urls_is_packed_without_signatures() {
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
    let mut result = String::new();
    for (command, arguments) in [
        ("verify", &["--json"][..]),
        ("stat", &["--json"]),
        ("ls", &["--json"]),
        ("ls", &[]),
        ("bench", &["--json"]),
    ] {
        let one = run(command, &list, arguments);
        assert_eq!(one.code, 0, "{command}: {}", one.stderr);
        result += &(one.stdout + &one.stderr);
    }
    assert!(result.contains(&format!("{first}/a/1.png?***")), "{result}");
    assert!(one.seen().iter().all(|seen| seen.target == "/a/1.png?sig=canary-row"));
    assert!(two.seen().iter().all(|seen| seen.target == "/a/1.png"));
    let set = folder.join("packed");
    let packed = run("pack", &[&list[0], &set], &["--json"]);
    assert_eq!(packed.json()["samples"], 3);
    result += &(packed.stdout + &packed.stderr);
    for entry in fs::read_dir(&set).unwrap() {
        result += &String::from_utf8_lossy(&fs::read(entry.unwrap().path()).unwrap());
    }
    assert!(!result.contains("canary"), "{result}");
    two.insert("a/1.png", damaged(1));
    let result = run("verify", &list, &[]);
    let words = format!("({second}/a/1.png)");
    assert!(result.code == 1 && result.line().contains(&words), "{}", result.line());
}

#[cfg(feature = "parquet")]
#[test]
fn the_texts_of_a_column_become_classes() {
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
    let result = run("pack", &[&data, &set], &["--label-field", "caption"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    assert_eq!(Manifest::read(&set).unwrap().classes(), classes);
    for (number, caption) in captions.iter().enumerate() {
        let label = run("cat", &[&set], &[&format!("images/{number}.cls")]).stdout;
        let expected = classes.iter().position(|class| class == caption).unwrap();
        assert_eq!(label, expected.to_string(), "{caption}");
    }
    // `cat` prints the original text.
    let key = format!("{}:0", data.display());
    let text = run("cat", &[&data], &[&key, "--field", "caption"]);
    assert_eq!((text.code, &*text.stdout), (0, captions[0]), "{}", text.stderr);
    let result = run("bench", &[&data], &["--label-field", "caption"]);
    let words = format!("in {} classes", classes.len());
    // The lines are wrapped.
    let text = result.stdout.replace('\n', " ");
    assert!(result.code == 0 && text.contains(&words), "{text} {}", result.stderr);
}

/// A list of two images with the label column `target`.
fn list_of_targets() -> (Folder, [std::path::PathBuf; 1]) {
    let folder = Folder::new();
    folder.add("1.png", &png(1));
    folder.add("2.png", &png(2));
    folder.add("list.csv", b"path,target\n1.png,dog\n2.png,cat\n");
    let list = [folder.join("list.csv")];
    (folder, list)
}

#[test]
fn missing_labels_cause_one_warning_with_the_option() {
    let (folder, list) = list_of_targets();
    for command in ["bench", "pack"] {
        let set = folder.join("unlabeled");
        let data: Vec<_> = list.iter().chain((command == "pack").then_some(&set)).collect();
        let result = run(command, &data, &["--json"]);
        assert_eq!(result.code, 0, "{}", result.stderr);
        let words = "spdl: warning: no sample has a label, so all labels are -1";
        assert_eq!(result.stderr.matches(words).count(), 1, "{}", result.stderr);
        assert!(result.stderr.contains("other columns are `target`; "), "{}", result.stderr);
        assert!(result.stderr.contains("add --label-field"), "{}", result.stderr);
        // The message must not name the option of another interface.
        assert!(!result.stderr.contains("label_field"), "{}", result.stderr);
    }
}

#[test]
fn label_field_selects_a_column_of_class_names() {
    let (folder, list) = list_of_targets();
    let result = run("bench", &list, &["--json", "--label-field", "target"]);
    assert!(!result.stderr.contains("label"), "{}", result.stderr);
    assert_eq!((result.code, &result.json()["labelled"]), (0, &2.into()));
    let set = folder.join("set");
    let result = run("pack", &[&list[0], &set], &["--label-field", "target"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    assert_eq!(spdl_io::shards::Manifest::read(&set).unwrap().classes(), ["cat", "dog"]);
    let label = |name: &str| run("cat", &[&set], &[name]).stdout;
    assert_eq!((&*label("1.cls"), &*label("2.cls")), ("1", "0"));
}

#[test]
fn label_field_may_name_the_default_label_column() {
    let (folder, _) = list_of_targets();
    folder.add("own.csv", b"path,label\n1.png,dog\n2.png,cat\n");
    let set = folder.join("set");
    let result = run("pack", &[&folder.join("own.csv"), &set], &["--label-field", "label"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    let label = |name: &str| run("cat", &[&set], &[name]).stdout;
    assert_eq!((&*label("1.cls"), &*label("2.cls")), ("1", "0"));
}

#[test]
fn image_field_selects_the_path_column_of_a_list() {
    let (folder, _) = list_of_targets();
    folder.add("photos.csv", b"photo,label,path\n1.png,dog,x\n2.png,cat,y\n");
    let list = [folder.join("photos.csv")];
    let result = run("bench", &list, &["--json", "--image-field", "photo"]);
    assert_eq!((result.code, &result.json()["labelled"]), (0, &2.into()), "{}", result.stderr);
    let set = folder.join("set");
    let result = run("pack", &[&list[0], &set], &["--image-field", "photo"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    assert_eq!(run("cat", &[&set], &["1.cls"]).stdout, "1");
    folder.add("other.csv", b"photo,label\n1.png,dog\n");
    let result = run("bench", &[folder.join("other.csv")], &[]);
    assert!(
        result.stderr.contains("to use another field or column, add --image-field"),
        "{}",
        result.stderr
    );
}

#[test]
fn partly_missing_labels_cause_one_warning() {
    let (folder, _) = list_of_targets();
    folder.add("half.csv", b"path,label\n1.png,3.0\n2.png,\n");
    let result = run("bench", &[folder.join("half.csv")], &["--json"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    let words = "2.png: 1 of 2 samples has no label and will get the label -1, ";
    assert_eq!(result.stderr.matches(words).count(), 1, "{}", result.stderr);
}

#[test]
fn folders_in_an_archive_become_classes() {
    let (folder, _) = list_of_targets();
    folder.add("train/dog/1.png", &png(1));
    folder.add("train/cat/2.png", &png(2));
    let archive = folder.join("photos.tar");
    let mut tar = std::process::Command::new("tar");
    tar.arg("--directory").arg(folder.path()).arg("--create").arg("--file").arg(&archive);
    assert!(tar.args(["train/dog/1.png", "train/cat/2.png"]).status().unwrap().success());
    let result = run("bench", &[&archive], &["--json"]);
    assert_eq!((result.code, &result.json()["labelled"]), (0, &2.into()), "{}", result.stderr);
    assert!(!result.stderr.contains("label"), "{}", result.stderr);
    let text = run("bench", &[&archive], &[]).stdout.replace('\n', " ");
    assert!(text.contains("in 2 classes found in folders"), "{text}");
    let set = folder.join("set");
    let result = run("pack", &[&archive, &set], &[]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    assert_eq!(spdl_io::shards::Manifest::read(&set).unwrap().classes(), ["cat", "dog"]);
    let label = |name: &str| run("cat", &[&set], &[name]).stdout;
    assert_eq!((&*label("train/dog/1.cls"), &*label("train/cat/2.cls")), ("1", "0"));
}

#[test]
fn a_rank_without_images_is_an_error_with_advice() {
    let (_folder, list) = list_of_targets();
    for remainder in ["drop", "uneven"] {
        let division = ["--rank", "2", "--world-size", "3", "--remainder", remainder];
        let result = run("bench", &list, &division);
        assert_ne!(result.code, 0);
        let words = "rank 2 of 3 has no images: the data set has only 2; use --remainder pad";
        assert!(result.stderr.contains(words), "{remainder}: {}", result.stderr);
    }
}

#[cfg(feature = "http")]
#[test]
fn a_refused_connection_warns_and_fails_fast() {
    // Ports below 1024 are never assigned automatically.
    let address = "http://127.0.0.1:1";
    let result = run("bench", &[format!("{address}/1.tar")], &[]);
    assert_ne!(result.code, 0);
    let first = result.stderr.lines().next().unwrap();
    let words = format!("spdl: warning: {address}: cannot connect to the server: ");
    assert!(first.starts_with(&words) && first.ends_with("; retrying"), "{first}");
    assert!(result.stderr.contains("no response from this server so far"), "{}", result.stderr);
}
