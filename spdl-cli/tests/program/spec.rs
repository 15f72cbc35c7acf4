//! `spdl bench --spec`: any fields of a data set.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::common::{Folder, Run, finish, image_name, png, spdl};

const SAMPLES: u32 = 12;

/// Runs `spdl bench DATA --spec FOLDER/NAME`, after writing the file.
fn bench(folder: &Folder, data: &Path, name: &str, spec: &str, arguments: &[&str]) -> Run {
    let path = folder.join(name);
    fs::write(&path, spec).unwrap();
    let mut command = spdl();
    command.arg("bench").arg(data).arg("--spec").arg(path).args(arguments);
    finish(command.output().unwrap())
}

fn checksum(json: &Map<String, Value>) -> &str {
    json["checksum"].as_str().unwrap()
}

fn grey_png(width: u32, height: u32, number: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Grayscale);
    let levels: Vec<u8> = (0..width * height).map(|at| ((at + number) % 100) as u8).collect();
    encoder.write_header().unwrap().write_image_data(&levels).unwrap();
    file
}

/// A tar shard with the fields that the example of `--help` names.
fn shard(folder: &Folder) -> std::path::PathBuf {
    let path = folder.join("train-0.tar");
    let mut archive = tar::Builder::new(fs::File::create(&path).unwrap());
    for number in 0..SAMPLES {
        let image = png(number);
        let header = png::Decoder::new(std::io::Cursor::new(&image)).read_info().unwrap();
        let (width, height) = header.info().size();
        let boxes: Vec<_> = (0..number % 3).map(|at| [at, 0, at + 2, 3]).collect();
        let classes: Vec<_> = (0..number % 3).collect();
        let document = json!({"boxes": boxes, "classes": classes});
        let members = [
            ("png", image),
            ("seg.png", grey_png(width, height, number)),
            ("json", document.to_string().into_bytes()),
            ("txt", format!("caption {number}").into_bytes()),
            ("cls", (number % 4).to_string().into_bytes()),
        ];
        for (name, bytes) in members {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, format!("{number:04}.{name}"), &bytes[..]).unwrap();
        }
    }
    archive.finish().unwrap();
    path
}

const FIELDS: &str = r#"
[fields.image]
type = "image"
size = [20, 24]
train = true
augment = ["randaugment(2, 9)"]
[fields.boxes]
type = "array"
shape = [0, 4]
stored_as = "json"
at = "boxes"
collate = "ragged"
[fields.classes]
type = "array"
shape = 0
dtype = "int64"
stored_as = "json"
at = "classes"
[fields.caption]
type = "text"
stored_as = "txt"
[fields.label]
type = "label"
stored_as = "cls"
"#;

#[test]
fn images_and_labels_of_a_spec_are_those_without_a_spec() {
    let folder = Folder::new();
    for number in 0..SAMPLES {
        folder.add(format!("photos/{}", image_name(number, 3)), &png(number));
    }
    let photos = folder.join("photos");
    for mode in ["eval", "train"] {
        let mut plain = spdl();
        plain.arg("bench").arg(&photos).args(["--size", "24", "--mode", mode, "--json"]);
        let plain = finish(plain.output().unwrap()).json();
        let train = mode == "train";
        let image = json!({"type": "image", "size": 24, "train": train});
        let as_json = json!({"fields": {"images": image, "labels": {"type": "label"}}}).to_string();
        let as_toml = format!(
            "fields.images = {{type = 'Image', size = [24, 24], train = {train}}}\nfields.labels.type = 'label'"
        );
        for (name, spec) in [("spec.json", as_json), ("spec.toml", as_toml)] {
            let run = bench(&folder, &photos, name, &spec, &["--mode", mode, "--json"]);
            assert_eq!((run.code, run.stderr.as_str()), (0, ""));
            let json = run.json();
            assert_eq!(checksum(&json), checksum(&plain), "{name}, {mode}");
            assert_eq!((&json["images"], &json["labelled"]), (&SAMPLES.into(), &SAMPLES.into()));
        }
    }
}

#[test]
fn the_checksum_of_fields_depends_on_their_values_only() {
    let folder = Folder::new();
    let shard = shard(&folder);
    let sum = |spec: &str, arguments: &[&str]| {
        let run = bench(&folder, &shard, "spec.toml", spec, &[arguments, &["--json"]].concat());
        assert_eq!(run.code, 0, "{}", run.stderr);
        let json = run.json();
        assert_eq!(json["images"], SAMPLES);
        checksum(&json).to_owned()
    };
    let first = sum(FIELDS, &[]);
    for arguments in
        [&["--threads", "1"][..], &["--batch", "5"], &["--threads", "4", "--batch", "1"]]
    {
        assert_eq!(sum(FIELDS, arguments), first, "{arguments:?}");
    }
    for (was, is) in [
        ("randaugment(2, 9)", "randaugment(2, 10)"),
        ("at = \"classes\"", "at = \"classes\"\ndtype = \"int32\""),
        ("stored_as = \"txt\"", "stored_as = \"cls\""),
    ] {
        let other = FIELDS.replacen("dtype = \"int64\"\n", "", usize::from(is.contains("int32")));
        assert_ne!(sum(&other.replace(was, is), &[]), first, "{is}");
    }
    let run =
        bench(&folder, &shard, "spec.toml", FIELDS, &["--batch", "5", "--drop-last", "--json"]);
    assert_eq!(run.json()["images"], 10);
    let run = bench(&folder, &shard, "spec.toml", FIELDS, &["--batch", "50", "--drop-last"]);
    assert!(run.line().contains("no samples were delivered"), "{}", run.stderr);
    let run = bench(&folder, &shard, "spec.toml", FIELDS, &[]);
    assert!(run.stdout.contains("spec.toml, batch 32"), "{}", run.stdout);
    let text = "[fields.caption]\ntype = 'text'\nstored_as = 'txt'";
    let json = bench(&folder, &shard, "text.toml", text, &["--json"]).json();
    assert_eq!(json["labelled"], Value::Null);
}

#[test]
fn a_mix_combines_the_samples_of_a_batch() {
    let folder = Folder::new();
    let shard = shard(&folder);
    let image = "\n[fields.image]\ntype = \"image\"\nsize = 24\ncrop = \"Letterbox\"\n";
    let fields = [
        image,
        "[fields.boxes]\ntype = \"boxes\"\nstored_as = \"json\"\nat = \"boxes\"\n",
        "[fields.kind]\ntype = \"number\"\ndtype = \"int64\"\nstored_as = \"cls\"\n",
        "[fields.label]\ntype = \"label\"\n",
    ]
    .concat();
    let run = |mix: &str, arguments: &[&str]| {
        bench(
            &folder,
            &shard,
            "spec.toml",
            &format!("{mix}{fields}"),
            &[arguments, &["--json"]].concat(),
        )
    };
    let plain = run("", &[]).json();
    assert_eq!(plain["labelled"], SAMPLES);
    let mixes = [
        ("mix = 'Mix(4, mixup=0.8, cutmix=1.0)'", Value::Null),
        ("mix = { type = 'mix', classes = 4, cutmix = 1, smoothing = 0.1 }", Value::Null),
        ("mix = 'Mix(4)'", Value::Null),
        // The label is not mixed.
        ("mix = 'Mix(4, mixup=0.5, label=\"kind\")'", SAMPLES.into()),
        ("mix = 'mosaic(0.5)'", SAMPLES.into()),
        ("mix = { type = 'copy_paste', share = 0.9 }", SAMPLES.into()),
    ];
    let mut sums = vec![checksum(&plain).to_owned()];
    for (mix, labelled) in mixes {
        let json = run(mix, &[]).json();
        assert_eq!((&json["images"], &json["labelled"]), (&SAMPLES.into(), &labelled), "{mix}");
        assert_eq!(checksum(&run(mix, &["--threads", "3"]).json()), checksum(&json), "{mix}");
        sums.push(checksum(&json).to_owned());
    }
    sums.sort();
    sums.dedup();
    assert_eq!(sums.len(), 7);
    for (mix, expected) in [
        ("mix = 'Mixup(4)'", "mix: unknown type \"Mixup\"; expected one of Mix, Mosaic, CopyPaste"),
        ("mix = 'Mix'", "mix: classes is missing; expected a whole number"),
        ("mix = 'Mix(4, image=\"boxes\")'", "field \"boxes\" is not an image of one crop"),
        ("mix = 'Mix(4, label=\"class\")'", "mix needs a label, but there is no field \"class\""),
        (
            "mix = 'Mix(4, label=\"boxes\")'",
            "mix needs the label \"boxes\" to be an int64, one per sample",
        ),
        ("mix = 'Mosaic(2)'", "invalid probability 2: expected 0 to 1"),
        ("mix = 'CopyPaste(image=\"photo\")'", "field \"photo\" is not an image of one crop"),
        ("mix = { p = 1 }", "mix: the key \"type\" is missing"),
        (
            "mix = 'Mosaic(p=0.5, size=3)'",
            "mix: unknown key \"size\"; expected one of p, center, image",
        ),
    ] {
        let run = run(mix, &[]);
        assert!(run.code == 1 && run.line().contains(expected), "{mix}: {}", run.stderr);
    }
    let resized = fields.replace("size = 24\ncrop = \"Letterbox\"", "crop = \"Resize(20)\"");
    for mix in ["Mix(4)", "Mosaic", "CopyPaste"] {
        let text = format!("mix = '{mix}'{resized}");
        let run = bench(&folder, &shard, "spec.toml", &text, &[]);
        let expected = "needs images of one size; choose another crop for \"image\"";
        assert!(run.code == 1 && run.line().contains(expected), "{mix}: {}", run.stderr);
    }
}

/// A text corpus of 40 rows with 1 to 13 tokens, and a label.
fn corpus(folder: &Folder) -> std::path::PathBuf {
    let path = folder.join("corpus.jsonl");
    let rows = (0..ROWS).map(|row| {
        let tokens: Vec<u64> = (0..row * 7 % 13 + 1).map(|at| row * 100 + at).collect();
        let label = if row % 3 == 0 { "dog" } else { "cat" };
        json!({"tokens": tokens, "targets": tokens, "label": label}).to_string() + "\n"
    });
    fs::write(&path, rows.collect::<String>()).unwrap();
    path
}

/// The number of batches of grouped samples; 0 without groups.
fn joined(json: &Map<String, Value>) -> u64 {
    let mut stages = json["stages"].as_array().unwrap().iter();
    stages.find(|stage| stage["name"] == "join").map_or(0, |join| join["items"].as_u64().unwrap())
}

const ROWS: u64 = 40;
const TOKENS: &str = "\n[fields.tokens]\ntype = 'array'\nshape = [0]\ndtype = 'int64'\ncollate = 'pad'\n\
    [fields.targets]\ntype = 'array'\nshape = [0]\ndtype = 'int64'\ncollate = 'pad'\n\
    [fields.label]\ntype = 'label'\nstored_as = 'label'\nclasses = ['cat', 'dog']\n";

#[test]
fn samples_are_grouped_by_their_tokens() {
    let folder = Folder::new();
    let (corpus, state) = (corpus(&folder), folder.join("run.state"));
    let run = |group: &str, arguments: &[&str]| {
        let spec = format!("{group}{TOKENS}");
        let all = [arguments, &["--batch", "4", "--json"]].concat();
        bench(&folder, &corpus, "spec.toml", &spec, &all)
    };
    let json = |group: &str, arguments: &[&str]| {
        let run = run(group, arguments);
        assert_eq!(run.code, 0, "{group}: {}", run.stderr);
        run.json()
    };
    let both = "tokens = ['tokens', 'targets']";
    let groups = [
        (String::new(), 0),
        ("group = \"Pack('tokens', length=32)\"".to_owned(), 3),
        (
            format!("group = {{ type = 'pack', {both}, length = 32, pad = {{ targets = -100 }} }}"),
            3,
        ),
        (format!("group = {{ type = 'pack', {both}, length = 8, long = 'split' }}"), 9),
        (format!("group = {{ type = 'ConcatAndSplit', {both}, length = 8, separator = 7 }}"), 10),
        ("group = 'Bucket(\"tokens\", max_tokens=30, boundaries=[4, 8])'".to_owned(), 16),
    ];
    let mut sums = Vec::new();
    for (group, batches) in &groups {
        // The number of threads changes no batch.
        let whole = json(group, &["--epochs", "2", "--threads", "1"]);
        let state = state.to_str().unwrap();
        let found = json(group, &["--save-state", state, "--overwrite-state"]);
        let counts = (&found["images"], &found["labelled"]);
        assert_eq!(counts, (&ROWS.into(), &ROWS.into()), "{group}");
        assert_eq!(joined(&found), *batches, "{group}");
        let resumed = json(group, &["--epochs", "2", "--resume", state]);
        assert_eq!(checksum(&resumed), checksum(&whole), "{group}");
        sums.push(checksum(&found).to_owned());
    }
    sums.sort();
    sums.dedup();
    assert_eq!(sums.len(), groups.len());
    let group = &groups[1].0;
    assert_eq!(joined(&json(group, &["--drop-last"])), 2);
    for (group, expected) in [
        (
            "group = 'Packed(\"tokens\")'",
            "group: unknown type \"Packed\"; expected one of Pack, ConcatAndSplit, Bucket, SameSize",
        ),
        ("group = 'Pack(\"tokens\")'", "group: length is missing; expected a whole number"),
        (
            "group = 'Pack(length=3)'",
            "group: tokens is missing; expected a name, or a list of names",
        ),
        ("group = 'Pack(\"tokens\", length=0)'", "group: length: expected at least 1, found 0"),
        ("group = 'Pack(\"ids\", length=3)'", "there is no field \"ids\""),
        ("group = 'Pack(\"label\", length=3)'", "field \"label\" has the shape []"),
        (
            "group = { type = 'Pack', tokens = 'tokens', length = 30, pad = { targets = 1 } }",
            "group: pad: \"targets\" is not in tokens",
        ),
        (
            "group = 'Bucket(\"tokens\", max_tokens=8, length=9)'",
            "group: length: 9 exceeds max_tokens",
        ),
        (
            "group = 'Pack(\"tokens\", length=30, bins=3)'",
            "group: unknown key \"bins\"; expected one of tokens, length, long, pad, open_sequences, max_samples",
        ),
        (
            "group = 'SameSize(\"tokens\")'",
            "\"tokens\" is not an image with the crop AspectBuckets",
        ),
        // The longest sample has 13 tokens.
        (
            "group = 'Pack(\"tokens\", length=12)'",
            "a sequence of 13 tokens exceeds the maximum of 12",
        ),
    ] {
        let run = run(group, &[]);
        assert!(run.code == 1 && run.line().contains(expected), "{group}: {}", run.stderr);
    }
    let image = "\n[fields.image]\ntype = 'image'\nsize = 24\n";
    let mixed = format!("mix = 'Mix(2)'\ngroup = 'Pack(\"tokens\", length=32)'{image}{TOKENS}");
    let run = bench(&folder, &corpus, "spec.toml", &mixed, &[]);
    assert!(run.line().contains("mix needs batches of samples"), "{}", run.stderr);
}

#[test]
fn images_are_grouped_by_their_size() {
    let folder = Folder::new();
    let shard = shard(&folder);
    let spec = "group = 'SameSize'\n[fields.image]\ntype = 'image'\n\
        crop = { type = 'AspectBuckets', sizes = [[16, 24], [20, 20], [24, 16]] }\n\
        [fields.mask]\ntype = 'mask'\nstored_as = 'seg.png'\n";
    let json = |arguments: &[&str]| {
        let all = [arguments, &["--json"]].concat();
        let run = bench(&folder, &shard, "spec.toml", spec, &all);
        assert_eq!(run.code, 0, "{}", run.stderr);
        run.json()
    };
    let found = json(&["--batch", "3"]);
    assert_eq!(found["images"], SAMPLES);
    assert_eq!(checksum(&json(&["--batch", "3", "--threads", "1"])), checksum(&found));
    assert_eq!(joined(&json(&["--batch", "1"])), u64::from(SAMPLES));
    // The last batch of each size is not full.
    let full = json(&["--batch", "3", "--drop-last"]);
    assert_eq!(full["images"], 3 * joined(&full));
}

#[test]
fn the_names_of_classes_are_those_of_a_label_without_other_classes() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let run = |classes: &str| {
        let spec = TOKENS.replace("classes = ['cat', 'dog']", classes);
        bench(&folder, &corpus, "spec.toml", &spec, &["--json"])
    };
    let found = ["classes = ['cat', 'dog']", "classes = ['dog', 'cat']"].map(|classes| {
        let json = run(classes).json();
        assert_eq!(json["labelled"], ROWS);
        checksum(&json).to_owned()
    });
    assert_ne!(found[0], found[1]);
    assert!(
        run("classes = 7").line().contains("field \"label\": classes: expected a name, or a list")
    );
    folder.add("photos/a/1.png", &png(1));
    let spec = "[fields.label]\ntype = 'label'\nclasses = ['a']";
    let run = bench(&folder, &folder.join("photos"), "spec.toml", spec, &[]);
    assert!(run.line().contains("has its own classes"), "{}", run.stderr);
}

#[test]
fn the_folder_of_images_and_the_memory_are_options() {
    let folder = Folder::new();
    folder.add("pictures/here/1.png", &png(1));
    let annotations = json!({
        "images": [{"id": 1, "file_name": "1.png", "width": 40, "height": 30}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2]}],
        "categories": [{"id": 1, "name": "cat"}],
    });
    folder.add("annotations/all.json", annotations.to_string().as_bytes());
    let data = folder.join("annotations/all.json");
    let spec = "[fields.image]\ntype = 'image'\nsize = 24";
    let run = |arguments: &[&str]| {
        bench(&folder, &data, "spec.toml", spec, &[arguments, &["--json"]].concat())
    };
    assert_eq!(run(&[]).code, 1);
    let pictures = folder.join("pictures/here");
    let pictures = ["--image-folder", pictures.to_str().unwrap()];
    let json = run(&[&pictures[..], &["--memory-budget", "50MB"]].concat()).json();
    assert_eq!((&json["images"], &json["memory"]["budget_bytes"]), (&1.into(), &50_000_000.into()));
}

#[test]
fn the_example_of_the_help_runs() {
    let folder = Folder::new();
    let shard = shard(&folder);
    let help = finish(spdl().args(["bench", "--help"]).output().unwrap()).stdout;
    let (_, example) = help.split_once("[fields.image]").unwrap();
    let (example, _) = example.split_once("  A crop or an augmentation").unwrap();
    let spec = format!("[fields.image]{example}").replace("[480, 640]", "[20, 24]");
    let run = bench(&folder, &shard, "spec.toml", &spec, &["--json"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert_eq!(run.json()["images"], SAMPLES);
}

#[test]
fn errors_name_the_file_the_field_and_the_key() {
    let folder = Folder::new();
    let shard = shard(&folder);
    let image = "[fields.image]\ntype = 'image'\n";
    let cases = [
        (
            "[fields.image]\ntype = 'imag'",
            "field \"image\": unknown type \"imag\"; expected one of Image, Audio, Mel, Mask",
        ),
        (
            &format!("{image}sise = 24"),
            "field \"image\": unknown key \"sise\"; expected one of size, train",
        ),
        (
            &format!("{image}size = 'big'"),
            "field \"image\": size: expected the side of a square, or [height, width]",
        ),
        (
            &format!("{image}augment = 'randaug(2)'"),
            "field \"image\": augment: unknown type \"randaug\"; expected",
        ),
        ("[fields.mask]\ntype = 'mask'", "field \"mask\": there is no field \"image\""),
        (
            "[field.image]\ntype = 'image'",
            "unknown key \"field\"; expected tables such as [fields.image]",
        ),
        ("", "there are no fields; expected tables such as [fields.image]"),
        ("[fields.image", "TOML parse error at line 1"),
        (&format!("{image}vertical_flip = nan"), "write nan and inf as text, such as \"nan\""),
        ("[fields.a]\ntype = 'label'\n[fields.b]\ntype = 'label'", "there is more than one label"),
    ];
    for (spec, expected) in cases {
        let run = bench(&folder, &shard, "spec.toml", spec, &[]);
        assert_eq!(run.code, 1, "{spec}");
        let line = run.line();
        let begin =
            format!("spdl: cannot read the fields: {}: ", folder.join("spec.toml").display());
        assert!(
            line.starts_with(&begin) && line.contains(expected),
            "{line}\nexpected: {expected}"
        );
    }
    let run = bench(&folder, &shard, "spec.json", "{", &[]);
    assert!(run.line().contains("spec.json: EOF while parsing"), "{}", run.stderr);
    let mut absent = spdl();
    absent.arg("bench").arg(&shard).args(["--spec", "absent.toml"]);
    let run = finish(absent.output().unwrap());
    assert!(run.line().contains("cannot read the fields: absent.toml: "), "{}", run.stderr);
    for option in [["--size", "24"], ["--layout", "nchw-f32"], ["--label-field", "cls"]] {
        let run = bench(&folder, &shard, "spec.toml", FIELDS, &option);
        assert_eq!(run.code, 2, "{option:?}");
        assert!(run.stderr.contains("cannot be used with"), "{}", run.stderr);
    }
}

#[test]
fn a_run_resumes_with_the_same_fields_only() {
    let folder = Folder::new();
    let shard = shard(&folder);
    let state = folder.join("run.state");
    let state = state.to_str().unwrap();
    let run = |spec: &str, arguments: &[&str]| {
        let all = [&["--json", "--batch", "4"], arguments].concat();
        bench(&folder, &shard, "spec.toml", spec, &all)
    };
    let whole = run(FIELDS, &["--epochs", "2"]).json();
    assert_eq!(run(FIELDS, &["--save-state", state]).code, 0);
    let other = run(&FIELDS.replace("[20, 24]", "24"), &["--epochs", "2", "--resume", state]);
    assert!(other.stderr.contains("field image"), "{}", other.stderr);
    let resumed = run(FIELDS, &["--epochs", "2", "--resume", state]);
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    assert_eq!(checksum(&resumed.json()), checksum(&whole));
}
