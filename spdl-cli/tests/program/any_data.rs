//! `spdl pack`, `ls`, `cat`, `verify` and `stat` on data sets of every kind, here and in stores.

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

/// Packs into a folder that is not there yet.
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

#[test]
fn shards_are_packed_anew_to_the_same_bytes_however_they_are_named() {
    let folder = place();
    let expected = shards(&folder.join("set"));
    assert_eq!(expected.len(), 4);
    let all: Vec<_> = expected.keys().map(|name| folder.join("set").join(name)).collect();
    for (number, data) in [
        vec![folder.join("set")],
        vec![folder.join("set/*.tar")],
        vec![folder.join("set/shard-00000{0..3}.tar")],
        all,
        vec![folder.join("images")],
    ]
    .into_iter()
    .enumerate()
    {
        let again = folder.join(format!("again-{number}"));
        let json = pack(&data, &again, &["--shard-samples", "6", "--json"]).json();
        assert_eq!((&json["samples"], &json["unchanged"]), (&IMAGES.into(), &IMAGES.into()));
        assert_eq!(shards(&again), expected, "{data:?}");
    }
    // The names of the classes come with the manifest.
    let manifest: Value =
        serde_json::from_slice(&fs::read(folder.join("again-0/manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["plan"]["classes"], json!(["class-0", "class-1", "class-2"]));
    assert_eq!(manifest["plan"]["recipe"]["source"], "tar shards");
}

#[test]
fn all_fields_of_samples_of_shards_go_over_byte_for_byte() {
    let folder = Folder::new();
    several_fields(&folder.join("train"));
    let data = [folder.join("train")];
    assert_eq!(pack(&data, &folder.join("same"), &["--name", "train"]).code, 0);
    let (before, after) = (contents(&data[0]), contents(&folder.join("same")));
    assert_eq!(before, after);
    assert_eq!(before["x/0003"].len(), 6);
    // The image alone becomes another one; its name says so.
    assert_eq!(pack(&data, &folder.join("small"), &["--max-side", "16"]).code, 0);
    for (key, mut fields) in contents(&folder.join("small")) {
        let image = fields.remove("jpg").expect("an image of 16 pixels");
        assert!(image.starts_with(b"\xff\xd8"));
        let mut expected = before[&key].clone();
        expected.remove("jpeg");
        assert_eq!(fields, expected, "{key}");
    }
    // Others are selected by name, as is the image.
    let select = ["--fields", "txt, json", "--image-field", "seg.png"];
    assert_eq!(pack(&data, &folder.join("some"), &select).code, 0);
    for (key, fields) in contents(&folder.join("some")) {
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["cls", "json", "seg.png", "txt"], "{key}");
    }
    assert_eq!(pack(&data, &folder.join("none"), &["--fields", ""]).code, 0);
    assert_eq!(contents(&folder.join("none"))["x/0000"].len(), 2);
    // Another selection is another set.
    let told = pack(&data, &folder.join("some"), &["--image-field", "seg.png"]);
    let words = "with --fields json,txt; now it is not given";
    assert!(told.code == 1 && told.line().contains(words), "{}", told.line());
}

#[test]
fn rows_of_a_list_become_samples_with_their_columns() {
    let folder = place();
    assert_eq!(pack(&[folder.join("list.csv")], &folder.join("of-list"), &[]).code, 0);
    let (found, expected) = (contents(&folder.join("of-list")), contents(&folder.join("set")));
    assert_eq!(found.len(), IMAGES as usize);
    for number in 0..IMAGES {
        let name = image_name(number, CLASSES);
        let key = name.trim_end_matches(".png");
        let mut fields = found[&format!("images/{key}")].clone();
        let caption = fields.remove("caption.txt").unwrap();
        assert_eq!(caption, format!("number {number}").into_bytes());
        assert_eq!(fields["cls"], (number % CLASSES).to_string().into_bytes());
        assert_eq!(fields, expected[key], "image and class");
    }
}

/// The file of TFRecord with one `tf.train.Example` for each list of features.
fn tfrecord(examples: &[Vec<(&str, Vec<u8>)>]) -> Vec<u8> {
    let checksum = |data: &[u8]| {
        let sum = !data.iter().fold(!0_u32, |sum, &byte| {
            (0..8).fold(sum ^ u32::from(byte), |sum, _| {
                (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg())
            })
        });
        sum.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let part = |number: u8, value: &[u8]| {
        let mut length = Vec::new();
        let mut rest = value.len();
        while rest > 127 {
            length.push(rest as u8 | 128);
            rest >>= 7;
        }
        length.push(rest as u8);
        [&[number << 3 | 2], &length[..], value].concat()
    };
    let mut file = Vec::new();
    for features in examples {
        let entry = |(name, feature): &(&str, Vec<u8>)| {
            part(1, &[part(1, name.as_bytes()), part(2, feature)].concat())
        };
        let record = part(1, &features.iter().map(entry).collect::<Vec<_>>().concat());
        let length = (record.len() as u64).to_le_bytes();
        file.extend([&length[..], &checksum(&length), &record, &checksum(&record)].concat());
    }
    file
}

#[test]
fn records_of_tensorflow_become_samples_with_their_features() {
    let folder = Folder::new();
    let bytes = |value: &[u8]| {
        let mut length = vec![value.len() as u8 & 127 | 128, (value.len() >> 7) as u8];
        length.extend(value);
        let list = [&[10][..], &length].concat();
        [&[10, list.len() as u8 & 127 | 128, (list.len() >> 7) as u8][..], &list].concat()
    };
    let examples: Vec<_> = (0..3)
        .map(|number| {
            let image = png(number);
            assert!((128..16_000).contains(&image.len()));
            vec![
                ("image/encoded", bytes(&image)),
                ("image/class/label", vec![26, 2, 8, number as u8]),
                ("image/class/text", bytes(&[b'x'; 130])),
                ("ids", vec![26, 4, 8, 5, 8, 6]),
            ]
        })
        .collect();
    folder.add("train-0.tfrecord", &tfrecord(&examples));
    let data = [folder.join("train-0.tfrecord")];
    let told = pack(&data, &folder.join("set"), &[]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let found = contents(&folder.join("set"));
    for number in 0..3_u32 {
        let fields = &found[&format!("train-0/{number}")];
        let names: Vec<_> = fields.keys().map(String::as_str).collect();
        assert_eq!(names, ["cls", "ids.npy", "image_class_text", "png"]);
        assert_eq!((&fields["png"], &fields["cls"]), (&png(number), &number.to_string().into()));
    }
    let read = run("cat", &data, &["train-0/1.png"]);
    assert_eq!(read.code, 1, "that is its name in the shards");
    let name = format!("{}:1", data[0].display());
    let image = spdl().arg("cat").arg(&data[0]).args([&name, "--field", "image/encoded"]).output();
    assert_eq!(image.unwrap().stdout, png(1));
    let told = run("verify", &data, &["--json"]).json();
    assert_eq!((&told["members"], &told["images"]), (&12.into(), &3.into()));
    assert_eq!(run("stat", &data, &["--json"]).json()["classes"].as_array().unwrap().len(), 3);
}

#[test]
fn shards_of_mosaicml_become_samples_with_their_columns() {
    let data = [Path::new(env!("CARGO_MANIFEST_DIR")).join("../spdl-io/tests/data/mds/plain")];
    let folder = Folder::new();
    let told = pack(&data, &folder.join("set"), &["--shuffle", "1"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let found = contents(&folder.join("set"));
    assert_eq!(found.len(), 5);
    let fields = &found["shard_00001/1"];
    for name in ["png", "cls", "text.txt", "info.json", "array.npy", "blob", "f32.json"] {
        assert!(fields.contains_key(name), "{name}: {:?}", fields.keys());
    }
    assert_eq!(fields["cls"], b"3", "the number before that of the sample");
    assert_eq!(run("verify", &[folder.join("set")], &[]).code, 0);
    let told = run("verify", &data, &["--json"]).json();
    assert_eq!((&told["sound"], &told["images"]), (&true.into(), &5.into()));
    // Of columns nobody knows the size without reading.
    let listed = run("ls", &data, &[]).stdout;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.contains("shard.00000.mds  3 samples\n"), "{listed}");
    assert!(listed.ends_with("2 files, 5 samples\n"), "{listed}");
}

#[cfg(feature = "parquet")]
#[test]
fn rows_of_parquet_become_samples_with_their_columns() {
    let file = "../spdl-io/tests/data/parquet/images.parquet";
    let data = [Path::new(env!("CARGO_MANIFEST_DIR")).join(file)];
    let rows: Vec<Value> =
        serde_json::from_slice(&fs::read(data[0].with_extension("json")).unwrap()).unwrap();
    let folder = Folder::new();
    let told = pack(&data, &folder.join("set"), &[]);
    assert_eq!(told.code, 0, "{}", told.stderr);
    let found = contents(&folder.join("set"));
    assert_eq!(found.len(), rows.len());
    for (number, row) in rows.iter().enumerate() {
        let fields = &found[&format!("images/{number}")];
        let hex: String = fields["png"].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(row["image"]["bytes"]["hex"], hex);
        assert_eq!(fields["cls"], row["label"].to_string().into_bytes());
        assert_eq!(fields["caption.txt"], row["caption"].as_str().unwrap().as_bytes());
        assert_eq!(fields["image.path.txt"], row["image"]["path"].as_str().unwrap().as_bytes());
    }
    // By parts: the same samples, and the same ones each time.
    let shuffled = ["--shuffle", "3", "--shard-samples", "4"];
    for set in ["one", "two"] {
        assert_eq!(pack(&data, &folder.join(set), &shuffled).code, 0);
        assert_eq!(contents(&folder.join(set)), found);
    }
    assert_eq!(shards(&folder.join("one")), shards(&folder.join("two")));
    let told = run("stat", &data, &["--json"]).json();
    assert_eq!((&told["samples"], &told["formats"]), (&10.into(), &json!({"png": 10})));
    assert_eq!(told["fields"]["caption"]["members"], 10);
}

#[cfg(unix)]
#[test]
fn a_killed_run_over_shards_goes_on_to_the_same_bytes() {
    let folder = Folder::new();
    for number in 0..90 {
        folder.add(format!("images/{}", image_name(number, 3)), &png(number));
    }
    assert_eq!(pack(&[folder.join("images")], &folder.join("set"), &[]).code, 0);
    let data = [folder.join("set")];
    let options = ["--shuffle", "5", "--max-side", "36", "--shard-size", "30kB"];
    let start = std::time::Instant::now();
    assert_eq!(pack(&data, &folder.join("whole"), &options).code, 0);
    let took = start.elapsed();
    let (mut killed, mut resumed) = (0, 0);
    for attempt in 0..40_u32 {
        if killed == 5 && resumed > 0 {
            break;
        }
        let set = folder.join(format!("killed-{attempt}"));
        let mut command = spdl();
        command.arg("pack").args(&data).arg(&set).args(options);
        let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(took.mul_f64(f64::from(attempt * 7 % 23 + 1) / 26.0));
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        let json = pack(&data, &set, &[&options[..], &["--json"]].concat()).json();
        resumed += u32::from(json["resumed"] != 0);
        assert_eq!(shards(&set), shards(&folder.join("whole")), "attempt {attempt}");
    }
    assert!(killed >= 5 && resumed > 0, "{killed} killed, {resumed} went on");
}

#[test]
fn samples_without_an_image_or_damaged_are_left_out_by_name_or_end_the_run() {
    let folder = place();
    let shard = folder.join("set/shard-000001.tar");
    let whole = fs::read(&shard).unwrap();
    fs::write(&shard, &whole[..whole.len() / 2]).unwrap();
    let told = pack(&[&shard], &folder.join("cut"), &[]);
    assert_eq!(told.code, 1);
    let line = told.stderr.lines().last().unwrap();
    assert!(line.contains("cannot pack an image") && line.contains("shard-000001.tar:"), "{line}");
    let json = pack(&[&shard], &folder.join("cut"), &["--on-error", "skip", "--json"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["skipped"], 1, "{json}");
    let reason = json["skipped_samples"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("the shard is damaged from here on"), "{reason}");
    for (number, (data, arguments, words)) in [
        ("list.csv", ["--image-field", "caption"], "an image was expected, but this is text"),
        ("set/*0.tar", ["--image-field", "gif"], "(png, cls); --image-field names it"),
        ("list.csv", ["--label-field", "caption"], "a whole number was expected, but"),
        ("list.csv", ["--label-field", "gif"], "no such field for the label, but file, caption"),
    ]
    .into_iter()
    .enumerate()
    {
        let told = pack(&[folder.join(data)], &folder.join(format!("no-{number}")), &arguments);
        assert!(told.code == 1 && told.line().contains(words), "{}", told.line());
    }
}

#[test]
fn shards_are_not_written_where_they_come_from() {
    let folder = place();
    let before = shards(&folder.join("set"));
    for data in ["set", "set/shard-000000.tar", "set/*.tar"] {
        let told = pack(&[folder.join(data)], &folder.join("set"), &["--overwrite"]);
        assert!(told.code == 2 && told.line().contains(" lies in "), "{data}: {}", told.line());
    }
    let address = format!("file://{}", folder.join("set").display());
    let told = pack(&[&address], &folder.join("set"), &["--overwrite"]);
    assert!(told.code == 2 && told.line().contains(" lies in "), "{}", told.line());
    assert_eq!(shards(&folder.join("set")), before);
    let told = pack(&[folder.join("images"), folder.join("set")], &folder.join("no"), &[]);
    assert!(told.code == 1 && told.line().contains("only one folder"), "{}", told.line());
    let told = finish(spdl().args(["pack", "alone"]).output().unwrap());
    assert_eq!(told.code, 2, "{}", told.stderr);
}

#[cfg(unix)]
#[test]
fn shards_are_not_written_where_links_or_braces_lead() {
    use std::os::unix::fs::symlink;
    let folder = place();
    let shard = folder.join("set/shard-000000.tar");
    let before = shards(&folder.join("set"));
    fs::create_dir(folder.join("other")).unwrap();
    fs::copy(&shard, folder.join("other/shard-000000.tar")).unwrap();
    symlink(&shard, folder.join("link.tar")).unwrap();
    fs::create_dir(folder.join("links")).unwrap();
    symlink(&shard, folder.join("links/a.tar")).unwrap();
    symlink(folder.join("set"), folder.join("way")).unwrap();
    folder.add("list.txt", b"way/shard-000000.tar\n");
    for data in [
        "link.tar",
        "links",
        "{other,set}/shard-000000.tar",
        "way/*.tar",
        "list.txt",
        "{way,other}/*.tar",
    ] {
        let told = pack(&[folder.join(data)], &folder.join("set"), &["--overwrite"]);
        assert!(told.code == 2 && told.line().contains(" lies in "), "{data}: {}", told.line());
        assert_eq!(shards(&folder.join("set")), before, "{data}");
    }
    // What lies elsewhere may replace them.
    let told = pack(&[folder.join("other")], &folder.join("set"), &["--overwrite"]);
    assert_eq!(told.code, 0, "{}", told.stderr);
}

#[test]
fn an_address_of_this_machine_is_a_path_to_every_command() {
    let folder = place();
    let address = |name: &str| format!("file://{}", folder.join(name).display());
    let files = |name: &str| fs::read_dir(folder.join(name)).unwrap().count();
    assert_eq!(pack(&[address("images")], address("zz").as_ref(), &[]).code, 0);
    assert!(folder.join("zz/manifest.json").exists());
    let told = run("verify", &[address("set")], &["--json"]).json();
    assert_eq!((&told["archives"], &told["checksums"]), (&4.into(), &40.into()));
    for name in ["a.tar", "B.TAR"] {
        let alone = format!("alone-{name}");
        folder.add(
            format!("{alone}/{name}"),
            &fs::read(folder.join("set/shard-000000.tar")).unwrap(),
        );
        for command in ["ls", "verify", "stat"] {
            assert_eq!(run(command, &[address(&alone)], &[]).code, 0);
            assert_eq!(run(command, &[address(&format!("{alone}/{name}"))], &[]).code, 0);
        }
        assert_eq!(run("cat", &[address(&alone)], &["class-0/0000.cls"]).stdout, "0");
        assert_eq!(files(&alone), 1, "{name}: nothing is written");
    }
    let one = [address("set/shard-000001.tar")];
    assert_eq!(run("ls", &one, &[]).stdout.lines().count(), 6, "the samples of one archive");
}

#[test]
fn a_field_that_is_chosen_has_its_usual_name_and_others_get_a_number() {
    let folder = place();
    let plan = ShardPlan::new("train").classes(["a", "b"]);
    let Opened::Writing(mut writer) = ShardWriter::open(folder.join("train"), &plan).unwrap()
    else {
        panic!("a new folder")
    };
    let image = png(1);
    writer.add(0, b"x", &[("cls", b"1"), ("jpg", &image), ("fine", b"7")]).unwrap();
    writer.finish(1).unwrap();
    let data = [folder.join("train")];
    let of = |set: &str, options: &[&str]| {
        let told = pack(&data, &folder.join(set), options);
        assert_eq!(told.code, 0, "{}", told.stderr);
        let manifest = fs::read(folder.join(set).join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        (contents(&folder.join(set)).remove("x").unwrap(), manifest["plan"]["classes"].clone())
    };
    let (fields, classes) = of("fine", &["--label-field", "fine"]);
    assert_eq!((&fields["cls"][..], &fields["2.cls"][..]), (&b"7"[..], &b"1"[..]));
    // The names are those of other labels.
    assert_eq!(classes.as_array().map_or(0, Vec::len), 0, "{classes}");
    let (fields, classes) = of("same", &["--label-field", "cls"]);
    assert_eq!((&fields["cls"][..], classes), (&b"1"[..], json!(["a", "b"])));
}

#[test]
fn a_sample_that_no_shard_can_hold_is_left_out_like_others() {
    let folder = Folder::new();
    folder.add("in/a.png", &png(1));
    // A field without a name.
    folder.add("in/a.", b"nothing");
    folder.add("in/b.png", &png(2));
    let (archive, names) = (folder.join("a.tar"), ["a.png", "a.", "b.png"]);
    let tar = Command::new("tar")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(folder.join("in"))
        .args(names)
        .status();
    if !tar.is_ok_and(|status| status.success()) {
        println!("SKIPPED: tar is not there");
        return;
    }
    let told = pack(&[&archive], &folder.join("set"), &[]);
    let line = told.line();
    assert!(told.code == 1 && line.contains("a.tar:a: the name of a field is not empty"), "{line}");
    assert!(
        line.ends_with("or with --on-error skip, the same command goes on from here"),
        "{line}"
    );
    let json = pack(&[&archive], &folder.join("set"), &["--on-error", "skip", "--json"]).json();
    assert_eq!((&json["skipped"], &json["samples"]), (&1.into(), &1.into()));
    assert_eq!(run("verify", &[folder.join("set")], &[]).code, 0);
}

#[test]
fn folders_and_lists_are_listed_read_verified_and_counted() {
    let folder = place();
    let (images, list) = ([folder.join("images")], [folder.join("list.csv")]);
    for data in [&images, &list] {
        let listed = run("ls", data, &[]).stdout;
        assert_eq!(listed.lines().count(), IMAGES as usize, "{listed}");
        let first = listed.lines().next().unwrap();
        assert!(first.ends_with("images/class-0/0000.png"), "{listed}");
        let image = spdl().arg("cat").args(data).arg(first).output().unwrap();
        assert_eq!(image.stdout, png(0));
        let told = run("verify", data, &["--json"]).json();
        assert_eq!((&told["images"], &told["bad_total"]), (&IMAGES.into(), &0.into()));
        let told = run("stat", data, &["--json"]).json();
        assert_eq!((&told["samples"], &told["classes"][0]["samples"]), (&IMAGES.into(), &7.into()));
        assert_eq!(told["fields"]["png"]["members"], IMAGES);
    }
    let name = format!("{}", folder.join("images/class-1/0004.png").display());
    let caption = run("cat", &list, &[&name, "--field", "caption"]);
    assert_eq!(caption.stdout, "number 4", "{}", caption.stderr);
    let told = run("cat", &list, &[&format!("{name}.nothing")]);
    assert!(
        told.code == 1 && told.line().contains("no such member in 20 samples"),
        "{}",
        told.line()
    );
    let told = run("cat", &list, &[&name, "--field", "nothing"]);
    assert!(told.line().contains("the fields file, caption"), "{}", told.line());
    let listed = run("ls", &list, &["--json"]).stdout;
    let first: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["shard"], &first["fields"]["caption"]["offset"]),
        (&Value::Null, &Value::Null)
    );
    let long = run("ls", &list, &["--long"]).stdout;
    let place = folder.path().display();
    let expected = format!("{place}/images/class-0/0000.png\n  .file\n  .caption\n");
    assert!(long.starts_with(&expected), "{long}");
    folder.add("images/class-0/0003.png", &damaged(1));
    fs::remove_file(folder.join("images/class-0/0006.png")).unwrap();
    let told = run("verify", &list, &[]);
    assert!(told.code == 1 && told.line().contains("2 of 20 samples are bad ("), "{}", told.line());
    assert!(
        told.line().contains("0003.png") && told.line().contains("0006.png"),
        "{}",
        told.line()
    );
    let told = run("stat", &list, &[]);
    assert!(told.code == 1 && told.line().contains("2 of 20 samples cannot be"), "{}", told.line());
}

#[test]
fn one_archive_that_is_damaged_hides_no_other_from_ls() {
    let folder = place();
    fs::write(folder.join("set/shard-000000.tar"), [b'x'; 2048]).unwrap();
    fs::remove_file(folder.join("set/shard-000000.tar.idx")).unwrap();
    for (options, lines) in [(&["--samples"][..], 14), (&["--samples", "--json"], 14)] {
        let told = run("ls", &[folder.join("set")], options);
        assert_eq!((told.code, told.stdout.lines().count()), (1, lines), "{}", told.stdout);
        assert!(told.line().contains("shard-000000.tar"), "{}", told.line());
    }
}

#[test]
fn samples_are_counted_where_they_are_read() {
    let folder = place();
    // A sample twice, one behind the other, and one that is not there.
    let row = "images/class-0/0000.png";
    folder.add("twice.txt", format!("{row}\n{row}\nimages/absent.png\n").as_bytes());
    let told = run("stat", &[folder.join("twice.txt")], &["--json"]);
    let json: Value = serde_json::from_str(&told.stdout).unwrap();
    let counted = ["samples", "members", "unreadable"].map(|name| json[name].clone());
    assert_eq!(counted, [3, 2, 1].map(Value::from), "{json}");
}

#[test]
fn patterns_of_archives_are_the_archives_with_their_checksums() {
    let folder = place();
    for name in ["shard-000000.tar.idx", "shard-000001.tar.idx"] {
        fs::remove_file(folder.join("set").join(name)).unwrap();
    }
    let before = fs::read_dir(folder.join("set")).unwrap().count();
    for (pattern, archives, members) in [("set/*.tar", 4, 40), ("set/shard-00000{0..1}.tar", 2, 24)]
    {
        let data = [folder.join(pattern)];
        let told = run("verify", &data, &["--json"]).json();
        let counted = ["archives", "members", "checksums"].map(|name| told[name].clone());
        assert_eq!(counted, [archives, members, members].map(Value::from), "{pattern}");
        let listed = run("ls", &data, &[]).stdout;
        assert_eq!(listed.lines().count(), archives, "{listed}");
        assert!(listed.starts_with("shard-000000.tar  6 samples  "), "{listed}");
    }
    assert_eq!(fs::read_dir(folder.join("set")).unwrap().count(), before, "nothing is written");
    let told = run("ls", &[folder.join("set/x*.tar")], &[]);
    assert!(told.code == 1 && told.line().contains("no file of such a name"), "{}", told.line());
}

#[test]
fn what_a_truncated_shard_never_showed_is_counted() {
    let folder = place();
    let shard = folder.join("set/shard-000001.tar");
    let whole = fs::read(&shard).unwrap();
    let listed = run("ls", &[&shard], &["--json"]).stdout;
    let third: Value = serde_json::from_str(listed.lines().nth(2).unwrap()).unwrap();
    let at = third["fields"]["cls"]["offset"].as_u64().unwrap() as usize;
    // Behind the class of the third of six samples: six members are left.
    fs::write(&shard, &whole[..at + 512]).unwrap();
    let lines = |run: Run| run.stdout.lines().map(str::to_owned).collect::<Vec<_>>();
    for (data, all) in [(folder.join("set"), 40), (shard.clone(), 12)] {
        for command in ["verify", "stat"] {
            let told = run(command, &[&data], &["--json"]);
            assert_eq!(told.code, 1, "{command}");
            let json: Value = serde_json::from_str(&told.stdout).unwrap();
            assert_eq!(json["unseen"], 6, "{command} {data:?}: {json}");
            assert_eq!(json["members"], all - 6, "{command}");
            assert_eq!(json["archives_without_end"], 0);
            let text = lines(run(command, &[&data], &[]));
            let words = "6 members were not seen: behind damage, or in what is missing";
            assert!(text.iter().any(|line| line == words), "{command}: {text:?}");
        }
    }
    // Without manifest and checksums nobody knows.
    let alone = folder.join("alone.tar");
    fs::write(&alone, &whole[..at + 512]).unwrap();
    for command in ["verify", "stat"] {
        let told = run(command, &[&alone], &["--json"]);
        let json: Value = serde_json::from_str(&told.stdout).unwrap();
        assert_eq!((&json["unseen"], &json["archives_without_end"]), (&0.into(), &1.into()));
        let text = lines(run(command, &[&alone], &[]));
        assert!(text.iter().any(|line| line.contains("how many members it had")), "{text:?}");
    }
    fs::write(&shard, &whole).unwrap();
    let json = run("stat", &[folder.join("set")], &["--json"]).json();
    assert_eq!((&json["unseen"], &json["archives_without_end"]), (&0.into(), &0.into()));
    // One that is not there at all is not seen at all.
    fs::remove_file(&shard).unwrap();
    let told: Value =
        serde_json::from_str(&run("verify", &[folder.join("set")], &["--json"]).stdout).unwrap();
    assert_eq!(told["unseen"], 12);
}

#[cfg(feature = "s3")]
mod stores {
    use spdl_io::testing::{Fault, FaultPlan, FaultServer};

    use super::*;

    fn serve(folder: &Folder) -> (FaultServer, Vec<(&'static str, String)>) {
        let server = FaultServer::start(Vec::<(String, Vec<u8>)>::new());
        server.insert_folder(folder.path(), "bucket/");
        let environment = vec![
            ("AWS_ENDPOINT_URL", server.url()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", "somebody".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "canary-secret-54".to_owned()),
            ("AWS_REGION", "nowhere-1".to_owned()),
        ];
        (server, environment)
    }

    #[test]
    fn what_lies_in_a_store_is_packed_to_the_same_bytes_as_files() {
        let folder = place();
        let (server, environment) = serve(&folder);
        let url = server.url();
        let expected = shards(&folder.join("set"));
        let faults = FaultPlan::random(7, 0.1, &[Fault::InternalError, Fault::ClosedInBody]);
        for (number, data) in [
            "s3://bucket/set".to_owned(),
            "s3://bucket/set/*.tar".to_owned(),
            "s3://bucket/images".to_owned(),
            "s3://bucket/images/".to_owned(),
            format!("{url}/bucket/set/shard-00000{{0..3}}.tar"),
        ]
        .into_iter()
        .enumerate()
        {
            server.set_faults(if number == 0 { faults.clone() } else { FaultPlan::none() });
            let set = folder.join(format!("of-store-{number}"));
            let mut command = spdl();
            command.arg("pack").arg(&data).arg(&set).args(["--shard-samples", "6"]);
            let told = finish(command.envs(environment.clone()).output().unwrap());
            assert_eq!(told.code, 0, "{data}: {}", told.stderr);
            assert_eq!(shards(&set), expected, "{data}");
        }
        // The list's paths are keys of its store.
        let data = [format!("{url}/bucket/list.csv")];
        assert_eq!(pack(&data, &folder.join("of-list"), &[]).code, 0);
        assert_eq!(contents(&folder.join("of-list")).len(), IMAGES as usize);
    }

    #[test]
    fn a_run_over_a_store_that_was_broken_off_goes_on_to_the_same_bytes() {
        let folder = place();
        let (server, environment) = serve(&folder);
        let set = folder.join("of-store");
        let run = || {
            let mut command = spdl();
            command.args(["pack", "s3://bucket/images"]).arg(&set);
            command.args(["--shard-samples", "6", "--json"]).envs(environment.clone());
            finish(command.output().unwrap())
        };
        let name = "bucket/images/class-1/0013.png";
        server.insert(name, damaged(1));
        let told = run();
        let words = "s3://bucket/images/class-1/0013.png";
        assert!(told.code == 1 && told.line().contains(words), "{}", told.line());
        assert!(set.join("manifest.journal").exists() && set.join("shard-000000.tar").exists());
        server.insert(name, png(13));
        let json = run().json();
        assert_eq!((&json["resumed"], &json["samples"]), (&6.into(), &IMAGES.into()));
        assert_eq!(shards(&set), shards(&folder.join("set")));
    }

    #[test]
    fn what_lies_in_a_store_is_listed_read_verified_and_counted() {
        let folder = place();
        let (server, environment) = serve(&folder);
        let run = |command: &str, data: &str, arguments: &[&str]| {
            let mut spdl = spdl();
            spdl.arg(command).arg(data).args(arguments).envs(environment.clone());
            finish(spdl.output().unwrap())
        };
        let listed = run("ls", "s3://bucket/set/", &[]).stdout;
        let lines: Vec<_> = listed.lines().collect();
        assert_eq!((lines.len(), lines[4]), (5, "4 files, 20 samples"), "{listed}");
        assert!(lines[0].starts_with("s3://bucket/set/shard-000000.tar  6 samples  "), "{listed}");
        let here = super::run("ls", &[folder.join("set")], &["--samples"]).stdout;
        assert_eq!(run("ls", "s3://bucket/set/", &["--samples"]).stdout, here);
        // Places are those of files, and nothing is read to know them.
        let [there, here] = [
            run("ls", "s3://bucket/set/shard-000001.tar", &["--samples", "--json"]).stdout,
            super::run("ls", &[folder.join("set/shard-000001.tar")], &["--json"]).stdout,
        ];
        let shard = "\"s3://bucket/set/shard-000001.tar\"";
        assert_eq!(there.replace(shard, "\"shard-000001.tar\""), here);
        let web = format!("{}/bucket/set/shard-000000.tar", server.url());
        for (data, name) in [("s3://bucket/set", "class-1/0004"), (&web, "class-0/0003")] {
            let number: u32 = name[8..].parse().unwrap();
            let mut command = spdl();
            command.args(["cat", data, name, "--field", "png"]).envs(environment.clone());
            assert_eq!(command.output().unwrap().stdout, png(number), "{data}");
            assert_eq!(run("cat", data, &[&format!("{name}.cls")]).stdout, name[6..7]);
        }
        for data in ["s3://bucket/set", "s3://bucket/images", &web] {
            let told = run("verify", data, &["--json"]).json();
            let images = if data == web { 6 } else { IMAGES };
            assert_eq!((&told["images"], &told["sound"]), (&images.into(), &true.into()));
            assert_eq!(run("stat", data, &["--json"]).json()["samples"], images);
        }
        server.insert("bucket/images/class-0/0003.png", damaged(1));
        let told = run("verify", "s3://bucket/images", &[]);
        let words = "1 of 20 images is bad (images/class-0/0003.png)";
        assert!(told.code == 1 && told.line().contains(words), "{}", told.line());
        // A shard that is cut: nobody knows how many members there were.
        let whole = fs::read(folder.join("set/shard-000002.tar")).unwrap();
        server.insert("bucket/cut/a.tar", whole[..whole.len() / 2].to_vec());
        for command in ["verify", "stat"] {
            let told = run(command, "s3://bucket/cut/a.tar", &["--json"]);
            let json: Value = serde_json::from_str(&told.stdout).unwrap();
            assert_eq!((told.code, &json["archives_without_end"]), (1, &1.into()), "{json}");
            let told = run(command, "s3://bucket/cut/a.tar", &[]).stdout;
            assert!(told.contains("1 archive has no sound end"), "{told}");
        }
        for command in ["ls", "verify", "stat"] {
            let told = run(command, "s3://bucket/absent.tar", &[]);
            assert!(told.line().contains(": s3://bucket/absent.tar"), "{}", told.line());
        }
        let told = run("cat", "s3://bucket/set", &["class-1/0004"]);
        assert!(told.line().contains("the fields png, cls"), "{}", told.line());
    }

    /// A list elsewhere never gets what its rows say of other servers.
    #[test]
    fn rows_of_a_list_that_lead_elsewhere_are_refused_without_their_secrets() {
        let folder = place();
        let (server, _) = serve(&folder);
        let url = server.url();
        let host = url.replace("http://", "");
        let own = format!("path,caption\n{url}/bucket/images/class-0/0003.png,https://x/?y\n");
        folder.add("own.csv", own.as_bytes());
        folder
            .add("lists/elsewhere.csv", b"path\n1.png\nhttps://me:canary@other/2.png?sig=canary\n");
        let signed = format!("{{\"path\": \"http:\\/\\/{host}\\/bucket\\/1.png?sig=canary\"}}\n");
        folder.add("lists/signed.jsonl", signed.as_bytes());
        folder
            .add("lists/user.txt", format!("\nhttp://me:canary@{host}/bucket/1.png\n").as_bytes());
        folder.add("lists/files.txt", b"file:///etc/hostname\n");
        server.insert_folder(folder.path(), "bucket/");
        for (list, words) in [
            ("elsewhere.csv", "line 3, column 1: the file https://other/2.png?*** of a row"),
            ("signed.jsonl", "line 1, column 1: the file http://"),
            ("user.txt", "line 2, column 1: the file http://"),
            ("files.txt", "line 1, column 1: the file /etc/hostname"),
        ] {
            for (command, arguments) in
                [("ls", &["--json"][..]), ("verify", &[]), ("stat", &[]), ("bench", &[])]
            {
                let told = run(command, &[format!("{url}/bucket/lists/{list}")], arguments);
                let line = told.line();
                assert!(told.code == 1 && line.contains(words), "{command} {list}: {line}");
                assert!(line.contains(&format!("/bucket/lists/{list}: ")), "{line}");
                assert!(!(told.stdout + &told.stderr).contains("canary"), "{list}");
            }
        }
        // One of this machine names files of this machine. Not all that looks odd is an address.
        folder.add("odd.txt", b"1a://me:canary@other/2.png?sig=canary\n");
        let told = run("ls", &[folder.join("odd.txt")], &["--json"]);
        assert!(told.code == 0 && told.stdout.contains("1a://other/2.png?***"), "{}", told.stdout);
        assert!(!told.stdout.contains("canary"), "{}", told.stdout);
        let told = run("ls", &[folder.join("lists/elsewhere.csv")], &["--json"]);
        assert!(told.code == 1 && !told.stderr.contains("canary"), "{}", told.stderr);
        let own = [format!("{url}/bucket/own.csv")];
        let told = run("verify", &own, &["--json"]).json();
        assert_eq!((&told["images"], &told["sound"]), (&1.into(), &true.into()));
        let listed = run("ls", &own, &["--json"]).stdout;
        assert!(listed.starts_with("{\"key\":\"bucket/images/class-0/0003.png\""), "{listed}");
    }

    #[test]
    fn a_store_that_fails_ends_a_run_that_leaves_out_samples() {
        let folder = place();
        let rows = fs::read_to_string(folder.join("list.csv")).unwrap();
        folder.add("list.csv", (rows + "images/absent.png,0,absent\n").as_bytes());
        let (server, environment) = serve(&folder);
        let set = folder.join("of-store");
        let run = |faults: FaultPlan| {
            server.set_faults(faults);
            let mut command = spdl();
            command.args(["pack", "s3://bucket/list.csv"]).arg(&set);
            command.args(["--shard-samples", "6", "--json", "--on-error", "skip"]);
            finish(command.envs(environment.clone()).output().unwrap())
        };
        let told = run(FaultPlan::script(|request| {
            request.key.ends_with("0016.png").then_some(Fault::InternalError)
        }));
        let line = told.line();
        assert!(told.code == 1 && line.ends_with("; the same command goes on from here"), "{line}");
        assert!(line.contains("0016.png") && set.join("manifest.journal").exists(), "{line}");
        // What is not there is left out.
        let json = run(FaultPlan::none()).json();
        assert_eq!((&json["skipped"], &json["samples"]), (&1.into(), &IMAGES.into()));
    }

    #[test]
    fn what_is_damaged_in_a_store_is_told_once_by_its_address_and_the_rest_is_listed() {
        let folder = place();
        let mut shard = fs::read(folder.join("set/shard-000001.tar")).unwrap();
        let (server, environment) = serve(&folder);
        let listed = super::run("ls", &[folder.join("set/shard-000001.tar")], &["--json"]).stdout;
        let third: Value = serde_json::from_str(listed.lines().nth(2).unwrap()).unwrap();
        let at = third["fields"]["png"]["offset"].as_u64().unwrap() as usize;
        // The header of the third sample's image.
        shard[at - 512..at - 400].fill(0xff);
        server.insert("bucket/damaged/a.tar", shard);
        server
            .insert("bucket/damaged/b.tar", fs::read(folder.join("set/shard-000002.tar")).unwrap());
        for options in [&["--samples"][..], &["--samples", "--json"], &[]] {
            let mut command = spdl();
            command.args(["ls", "s3://bucket/damaged/"]).args(options).envs(environment.clone());
            let told = finish(command.output().unwrap());
            let words = "s3://bucket/damaged/a.tar";
            assert_eq!((told.code, told.line().matches(words).count()), (1, 1), "{}", told.line());
            // Of the first one the sample before the damage may lack members, too.
            let lines = if options.is_empty() { 2 } else { 1 + 6 };
            assert_eq!(told.stdout.lines().count(), lines, "{}", told.stdout);
        }
    }

    #[test]
    fn what_is_not_compared_in_a_store_is_not_called_sound() {
        let folder = place();
        let (server, _) = serve(&folder);
        let data = [format!("{}/bucket/set/shard-00000{{0..3}}.tar", server.url())];
        let told = run("verify", &data, &["--json"]).json();
        assert_eq!((&told["without_checksums"], &told["checksums"]), (&4.into(), &0.into()));
        let told = run("verify", &data, &[]).stdout.replace('\n', " ");
        let words = "the checksums of 4 archives in a store are not compared";
        assert!(told.contains(words) && !told.contains("all sound"), "{told}");
    }

    #[test]
    fn what_is_secret_in_an_address_is_in_no_file_and_no_message() {
        let folder = place();
        let (server, _) = serve(&folder);
        let host = server.url().replace("http://", "http://me:canary-password-55@");
        let data = format!("{host}/bucket/set/shard-000000.tar?signature=canary-signature-56");
        let set = folder.join("packed");
        let mut told = String::new();
        let packed = pack(&[&data], &set, &["--json"]);
        assert_eq!(packed.code, 0, "{}", packed.stderr);
        told += &(packed.stdout + &packed.stderr);
        for entry in fs::read_dir(&set).unwrap() {
            told += &String::from_utf8_lossy(&fs::read(entry.unwrap().path()).unwrap());
        }
        for (command, arguments) in [
            ("ls", &["--samples", "--long"][..]),
            ("ls", &["--json"]),
            ("cat", &["absent"]),
            ("verify", &["--json"]),
            ("stat", &["--json"]),
        ] {
            let one = run(command, &[&data], arguments);
            told += &(one.stdout + &one.stderr);
        }
        let page = folder.join("page.html");
        let one = run("stat", &[&data], &["--html", page.to_str().unwrap()]);
        told += &(one.stdout + &one.stderr + &fs::read_to_string(&page).unwrap());
        let absent = data.replace("shard-000000", "absent");
        told += &run("ls", &[&absent], &[]).stderr;
        assert!(!told.contains("canary"), "{told}");
    }
}
