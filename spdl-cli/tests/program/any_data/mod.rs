//! `spdl pack`, `ls`, `cat`, `verify` and `stat` on data sets of all kinds, local and remote.

mod looking;
pub(crate) mod packing;
#[cfg(feature = "s3")]
mod stores;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use spdl_io::shards::{Opened, ShardPlan, ShardWriter};

use crate::common::{Folder, Run, damaged, finish, image_name, png, spdl};

const IMAGES: u32 = 20;
const CLASSES: u32 = 3;

fn run<A: AsRef<OsStr>>(command: &str, data: &[A], arguments: &[&str]) -> Run {
    finish(spdl().arg(command).args(data).args(arguments).output().unwrap())
}

/// Packs into a new folder.
fn pack(data: &[impl AsRef<OsStr>], set: &Path, arguments: &[&str]) -> Run {
    let mut command = spdl();
    finish(command.arg("pack").args(data).arg(set).args(arguments).output().unwrap())
}

/// The bytes of the shards of a folder.
fn shards(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let tars = entries.filter(|path| path.extension().is_some_and(|ending| ending == "tar"));
    tars.map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap())).collect()
}

/// The fields of each sample of a folder with shards, by their keys.
fn contents(folder: &Path) -> BTreeMap<String, BTreeMap<String, Vec<u8>>> {
    let listed = run("ls", &[folder], &["--samples", "--json"]);
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    let mut found = BTreeMap::new();
    for line in listed.stdout.lines() {
        let sample: Value = serde_json::from_str(line).unwrap();
        let shard = fs::read(folder.join(sample["shard"].as_str().unwrap())).unwrap();
        let fields = sample["fields"].as_object().unwrap().iter().map(|(name, place)| {
            let at = |name: &str| place[name].as_u64().unwrap() as usize;
            (name.clone(), shard[at("offset")..][..at("bytes")].to_vec())
        });
        found.insert(sample["key"].as_str().unwrap().to_owned(), fields.collect());
    }
    found
}

/// A folder with images in `images`, a list of them, and shards of them in `set`.
fn place() -> Folder {
    let folder = Folder::new();
    let mut rows = "path,label,caption\n".to_owned();
    for class in 0..CLASSES {
        for number in (class..IMAGES).step_by(CLASSES as usize) {
            let name = image_name(number, CLASSES);
            folder.add(format!("images/{name}"), &png(number));
            rows += &format!("images/{name},{class},number {number}\n");
        }
    }
    folder.add("list.csv", rows.as_bytes());
    let packed = pack(&[folder.join("images")], &folder.join("set"), &["--shard-samples", "6"]);
    assert_eq!(packed.code, 0, "{}", packed.stderr);
    folder
}

/// Shards of samples with several fields each.
fn several_fields(folder: &Path) {
    let plan = ShardPlan::new("train").shard_samples(3).classes(["a", "b"]);
    let Opened::Writing(mut writer) = ShardWriter::open(folder, &plan).unwrap() else {
        panic!("a new folder")
    };
    for number in 0..7 {
        let (image, class) = (png(number as u32), (number % 2).to_string());
        let fields: [(&str, &[u8]); 6] = [
            ("txt", "größe".as_bytes()),
            ("jpeg", &image),
            ("seg.png", &png(90)),
            ("cls", class.as_bytes()),
            ("json", b"{\"a\": [1,  2]}"),
            ("pkl", b"I7\n."),
        ];
        writer.add(number, format!("x/{number:04}").as_bytes(), &fields).unwrap();
    }
    writer.finish(7).unwrap();
}
