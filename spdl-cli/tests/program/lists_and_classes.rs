//! Lists whose rows lie in several places, and labels that are the names of classes.
#![cfg(any(feature = "http", feature = "parquet"))]

use std::ffi::OsStr;
use std::fs;

use crate::common::{Folder, Run, finish, spdl};

fn run(command: &str, data: &[impl AsRef<OsStr>], arguments: &[&str]) -> Run {
    finish(spdl().arg(command).args(data).args(arguments).output().unwrap())
}

#[cfg(feature = "http")]
#[test]
fn a_list_of_addresses_is_read_and_packed_without_what_signs_them() {
    use crate::common::{damaged, png};
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
