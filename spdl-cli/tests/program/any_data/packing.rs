//! `spdl pack` on local data sets of all kinds.

// promise of this file: CLI1

use super::*;

#[test]
fn repacking_gives_the_same_bytes_for_every_form_of_address() {
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
    // The class names are in the manifest.
    let manifest: Value =
        serde_json::from_slice(&fs::read(folder.join("again-0/manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["plan"]["classes"], json!(["class-0", "class-1", "class-2"]));
    assert_eq!(manifest["plan"]["recipe"]["source"], "tar shards");
}

#[test]
fn repacking_copies_all_fields_unchanged() {
    let folder = Folder::new();
    several_fields(&folder.join("train"));
    let data = [folder.join("train")];
    assert_eq!(pack(&data, &folder.join("same"), &["--name", "train"]).code, 0);
    let (before, after) = (contents(&data[0]), contents(&folder.join("same")));
    assert_eq!(before, after);
    assert_eq!(before["x/0003"].len(), 6);
    // Only the image is encoded, and its extension changes.
    assert_eq!(pack(&data, &folder.join("small"), &["--max-side", "16"]).code, 0);
    for (key, mut fields) in contents(&folder.join("small")) {
        let image = fields.remove("jpg").expect("an image of 16 pixels");
        assert!(image.starts_with(b"\xff\xd8"));
        let mut expected = before[&key].clone();
        expected.remove("jpeg");
        assert_eq!(fields, expected, "{key}");
    }
    // Fields are selected by name.
    let select = ["--fields", "txt, json", "--image-field", "seg.png"];
    assert_eq!(pack(&data, &folder.join("some"), &select).code, 0);
    for (key, fields) in contents(&folder.join("some")) {
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["cls", "json", "seg.png", "txt"], "{key}");
    }
    assert_eq!(pack(&data, &folder.join("none"), &["--fields", ""]).code, 0);
    assert_eq!(contents(&folder.join("none"))["x/0000"].len(), 2);
    // Another selection gives another set.
    let result = pack(&data, &folder.join("some"), &["--image-field", "seg.png"]);
    let words = "with --fields json,txt, now without it";
    assert!(result.code == 1 && result.line().contains(words), "{}", result.line());
}

#[test]
fn list_columns_become_fields() {
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

/// A record of a TFRecord file: a `tf.train.Example` with these features.
pub(crate) fn tfrecord(features: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let checksum =
        |data: &[u8]| crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let entry = |(name, feature): &(&str, Vec<u8>)| {
        part(1, &[part(1, name.as_bytes()), part(2, feature)].concat())
    };
    let record = part(1, &features.iter().map(entry).collect::<Vec<_>>().concat());
    let length = (record.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length), &record, &checksum(&record)].concat()
}

/// A field of a protocol buffer that has a length.
fn part(number: u8, value: &[u8]) -> Vec<u8> {
    let mut length = Vec::new();
    let mut rest = value.len();
    while rest > 127 {
        length.push(rest as u8 | 128);
        rest >>= 7;
    }
    length.push(rest as u8);
    [&[number << 3 | 2], &length[..], value].concat()
}

/// The value of a feature of bytes.
pub(crate) fn bytes_feature(value: &[u8]) -> Vec<u8> {
    part(1, &part(1, value))
}

#[test]
fn tfrecord_features_become_fields() {
    let folder = Folder::new();
    let record = |number: u32| {
        tfrecord(&[
            ("image/encoded", bytes_feature(&png(number))),
            ("image/class/label", vec![26, 2, 8, number as u8]),
            ("image/class/text", bytes_feature(&[b'x'; 130])),
            ("ids", vec![26, 4, 8, 5, 8, 6]),
        ])
    };
    folder.add("train-0.tfrecord", &[0, 1, 2].map(record).concat());
    let data = [folder.join("train-0.tfrecord")];
    let result = pack(&data, &folder.join("set"), &[]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    let found = contents(&folder.join("set"));
    for number in 0..3_u32 {
        let fields = &found[&format!("train-0/{number}")];
        let names: Vec<_> = fields.keys().map(String::as_str).collect();
        assert_eq!(names, ["cls", "ids.npy", "image_class_text", "png"]);
        assert_eq!((&fields["png"], &fields["cls"]), (&png(number), &number.to_string().into()));
    }
    let read = run("cat", &data, &["train-0/1.png"]);
    assert_eq!(read.code, 1, "the key of a packed sample");
    let name = format!("{}:1", data[0].display());
    let image = spdl().arg("cat").arg(&data[0]).args([&name, "--field", "image/encoded"]).output();
    assert_eq!(image.unwrap().stdout, png(1));
    let result = run("verify", &data, &["--json"]).json();
    assert_eq!((&result["members"], &result["images"]), (&12.into(), &3.into()));
    assert_eq!(run("stat", &data, &["--json"]).json()["classes"].as_array().unwrap().len(), 3);
}

#[test]
fn mds_columns_become_fields() {
    let data = [Path::new(env!("CARGO_MANIFEST_DIR")).join("../spdl-io/tests/data/mds/plain")];
    let folder = Folder::new();
    let result = pack(&data, &folder.join("set"), &["--shuffle", "1"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    let found = contents(&folder.join("set"));
    assert_eq!(found.len(), 5);
    let fields = &found["shard_00001/1"];
    for name in ["png", "cls", "text.txt", "info.json", "array.npy", "blob", "f32.json"] {
        assert!(fields.contains_key(name), "{name}: {:?}", fields.keys());
    }
    assert_eq!(fields["cls"], b"3", "the label is the sample number minus 1");
    assert_eq!(run("verify", &[folder.join("set")], &[]).code, 0);
    let result = run("verify", &data, &["--json"]).json();
    assert_eq!((&result["sound"], &result["images"]), (&true.into(), &5.into()));
    // The size of columns is unknown without reading.
    let listed = run("ls", &data, &[]).stdout;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.contains("shard.00000.mds  3 samples\n"), "{listed}");
    assert!(listed.ends_with("2 files, 5 samples\n"), "{listed}");
}

#[test]
fn litdata_leaves_become_fields_and_other_records_are_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spdl-io/tests/data");
    let data = [root.join("litdata/plain")];
    let folder = Folder::new();
    let result = pack(&data, &folder.join("set"), &[]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    let found = contents(&folder.join("set"));
    assert_eq!(found.len(), 5);
    let fields = &found["chunk-0-1/1"];
    for name in ["png", "cls", "text.txt", "tags.npy", "boxes.npy", "blob", "flag.json"] {
        assert!(fields.contains_key(name), "{name}: {:?}", fields.keys());
    }
    assert_eq!(fields["cls"], b"3", "the label is the sample number minus 1");
    for (name, files, samples) in [
        ("litdata/plain", 2, 5),
        ("recordio", 2, 8),
        ("recordio/a.rec", 1, 5),
        ("lmdb/pairs", 1, 7),
        ("lmdb/plain.lmdb", 1, 5),
    ] {
        let listed = run("ls", &[root.join(name)], &[]).stdout;
        let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
        assert!(listed.ends_with(&format!("{files}, {samples} samples\n")), "{name}: {listed}");
    }
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_columns_become_fields() {
    let file = "../spdl-io/tests/data/parquet/images.parquet";
    let data = [Path::new(env!("CARGO_MANIFEST_DIR")).join(file)];
    let rows: Vec<Value> =
        serde_json::from_slice(&fs::read(data[0].with_extension("json")).unwrap()).unwrap();
    let folder = Folder::new();
    let result = pack(&data, &folder.join("set"), &[]);
    assert_eq!(result.code, 0, "{}", result.stderr);
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
    // Shuffled in windows: the same samples, reproducibly.
    let shuffled = ["--shuffle", "3", "--shard-samples", "4"];
    for set in ["one", "two"] {
        assert_eq!(pack(&data, &folder.join(set), &shuffled).code, 0);
        assert_eq!(contents(&folder.join(set)), found);
    }
    assert_eq!(shards(&folder.join("one")), shards(&folder.join("two")));
    let result = run("stat", &data, &["--json"]).json();
    assert_eq!((&result["samples"], &result["formats"]), (&10.into(), &json!({"png": 10})));
    assert_eq!(result["fields"]["caption"]["members"], 10);
}

#[cfg(unix)]
#[test]
fn a_killed_repack_resumes_to_the_same_bytes() {
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
    let kills = std::env::var("SPDL_RESUME_KILLS").map_or(2, |kills| kills.parse().unwrap());
    let (kills, mut killed, mut resumed) = (u32::min(kills, 100), 0, 0);
    for attempt in 0..8 * kills + 24 {
        if killed >= kills && resumed > 0 {
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
    assert!(killed >= kills && resumed > 0, "{killed} killed, {resumed} resumed");
}

#[test]
fn samples_without_valid_image_are_skipped_or_end_the_run() {
    let folder = place();
    let shard = folder.join("set/shard-000001.tar");
    let whole = fs::read(&shard).unwrap();
    fs::write(&shard, &whole[..whole.len() / 2]).unwrap();
    let result = pack(&[&shard], &folder.join("cut"), &[]);
    assert_eq!(result.code, 1);
    let line = result.stderr.lines().last().unwrap();
    assert!(line.contains("cannot pack an image") && line.contains("shard-000001.tar:"), "{line}");
    let json = pack(&[&shard], &folder.join("cut"), &["--on-error", "skip", "--json"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["skipped"], 1, "{json}");
    let reason = json["skipped_samples"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("the shard is damaged from here"), "{reason}");
    let list = fs::read_to_string(folder.join("list.csv")).unwrap();
    folder.add("gap.csv", list.replace(",number 0\n", ",\n").as_bytes());
    for (number, (data, arguments, words)) in [
        // For a list, the column of paths.
        ("list.csv", ["--image-field", "caption"], "number 0: cannot open file"),
        // Class names are no error.
        ("gap.csv", ["--label-field", "caption"], "expected an integer label, found"),
    ]
    .into_iter()
    .enumerate()
    {
        let result = pack(&[folder.join(data)], &folder.join(format!("no-{number}")), &arguments);
        // A warning about the column of paths may come first.
        let line = result.stderr.lines().last().unwrap();
        assert!(result.code == 1 && line.contains(words), "{}", result.stderr);
    }
}

#[test]
fn an_unknown_field_fails_before_anything_is_written() {
    let folder = place();
    for (data, option, name, there) in [
        ("set/*0.tar", "--image-field", "gif", "cls, png"),
        ("set", "--label-field", "klass", "cls, png"),
        // If another column is named, the default one is a field.
        ("list.csv", "--label-field", "gif", "caption, file, label"),
        ("list.csv", "--fields", "caption,captoin", "caption, file"),
        ("images", "--fields", "exif", "image"),
    ] {
        let set = folder.join("no");
        let result = pack(&[folder.join(data)], &set, &[option, name]);
        let missing = name.rsplit(',').next().unwrap();
        let expected = format!(
            "spdl: {option} \"{missing}\": no sample has this field; the fields are {there}"
        );
        assert_eq!((result.code, result.line()), (2, &*expected));
        assert!(!set.exists(), "{data}: nothing is begun");
    }
    // A field that only some samples have is accepted.
    folder.add("mixed.jsonl", b"{\"path\": \"images/class-0/0000.png\"}\n{\"path\": \"images/class-1/0001.png\", \"caption\": \"x\"}\n");
    let result =
        pack(&[folder.join("mixed.jsonl")], &folder.join("mixed"), &["--fields", "caption"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    assert_eq!(contents(&folder.join("mixed"))["images/class-1/0001"].len(), 2);
}

#[test]
fn the_output_folder_must_not_contain_the_source() {
    let folder = place();
    let before = shards(&folder.join("set"));
    for data in ["set", "set/shard-000000.tar", "set/*.tar"] {
        let result = pack(&[folder.join(data)], &folder.join("set"), &["--overwrite"]);
        assert!(
            result.code == 2 && result.line().contains(" is inside "),
            "{data}: {}",
            result.line()
        );
    }
    let address = format!("file://{}", folder.join("set").display());
    let result = pack(&[&address], &folder.join("set"), &["--overwrite"]);
    assert!(result.code == 2 && result.line().contains(" is inside "), "{}", result.line());
    assert_eq!(shards(&folder.join("set")), before);
    let result = pack(&[folder.join("images"), folder.join("set")], &folder.join("no"), &[]);
    assert!(result.code == 1 && result.line().contains("several folders"), "{}", result.line());
    let result = finish(spdl().args(["pack", "alone"]).output().unwrap());
    assert_eq!(result.code, 2, "{}", result.stderr);
}

#[cfg(unix)]
#[test]
fn links_and_braces_cannot_hide_the_source_folder() {
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
        let result = pack(&[folder.join(data)], &folder.join("set"), &["--overwrite"]);
        assert!(
            result.code == 2 && result.line().contains(" is inside "),
            "{data}: {}",
            result.line()
        );
        assert_eq!(shards(&folder.join("set")), before, "{data}");
    }
    // A source elsewhere may replace the set.
    let result = pack(&[folder.join("other")], &folder.join("set"), &["--overwrite"]);
    assert_eq!(result.code, 0, "{}", result.stderr);
}

#[test]
fn a_selected_field_gets_the_default_name() {
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
        let result = pack(&data, &folder.join(set), options);
        assert_eq!(result.code, 0, "{}", result.stderr);
        let manifest = fs::read(folder.join(set).join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        (contents(&folder.join(set)).remove("x").unwrap(), manifest["plan"]["classes"].clone())
    };
    let (fields, classes) = of("fine", &["--label-field", "fine"]);
    assert_eq!((&fields["cls"][..], &fields["2.cls"][..]), (&b"7"[..], &b"1"[..]));
    // The class names belong to other labels.
    assert_eq!(classes.as_array().map_or(0, Vec::len), 0, "{classes}");
    let (fields, classes) = of("same", &["--label-field", "cls"]);
    assert_eq!((&fields["cls"][..], classes), (&b"1"[..], json!(["a", "b"])));
}

#[test]
fn an_invalid_sample_is_skipped_or_ends_the_run() {
    let folder = Folder::new();
    folder.add("in/a.png", &png(1));
    // A field with an empty name.
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
        println!("SKIPPED: tar is not installed");
        return;
    }
    let result = pack(&[&archive], &folder.join("set"), &[]);
    let line = result.stderr.lines().last().unwrap();
    assert!(result.code == 1 && line.contains("a.tar:a: invalid field name"), "{line}");
    assert!(
        line.ends_with("repair the image or add --on-error skip, and run the command again"),
        "{line}"
    );
    let json = pack(&[&archive], &folder.join("set"), &["--on-error", "skip", "--json"]).json();
    assert_eq!((&json["skipped"], &json["samples"]), (&1.into(), &1.into()));
    assert_eq!(run("verify", &[folder.join("set")], &[]).code, 0);
}
