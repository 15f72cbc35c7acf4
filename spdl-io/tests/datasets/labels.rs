//! Tests of labels: their sources, and warnings about samples without a label.

// promise of this file: DATA7

use std::fs;

use spdl_core::{ErrorKind, block_on};
use spdl_io::StoreRegistry;
use spdl_io::datasets::{OpenOptions, OpenedDataset};
use spdl_io::records::Remedy;

use super::*;

/// Opens `name` in a new folder with these files.
fn open(name: &str, files: &[(&str, Vec<u8>)]) -> (tempfile::TempDir, OpenedDataset) {
    let (folder, opened) = open_with(name, files, &OpenOptions::default());
    (folder, opened.unwrap())
}

fn open_with(
    name: &str,
    files: &[(&str, Vec<u8>)],
    options: &OpenOptions,
) -> (tempfile::TempDir, Result<OpenedDataset>) {
    let folder = tempfile::tempdir().unwrap();
    for (name, data) in files {
        fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        fs::write(folder.path().join(name), data).unwrap();
    }
    let address = folder.path().join(name);
    let opened = block_on(OpenedDataset::open_with(&[address], &StoreRegistry::new(), options));
    (folder, opened)
}

/// The list `l.csv` with this text, and three images.
fn list(text: &str) -> Vec<(&'static str, Vec<u8>)> {
    let images = ["1.jpg", "2.jpg", "3.jpg"].map(|name| (name, name.as_bytes().to_vec()));
    [&images[..], &[("l.csv", text.into())]].concat()
}

fn tar(names: &[&str]) -> Vec<u8> {
    archive(names.iter().map(|name| (*name, name.as_bytes())))
}

fn labels(data: &OpenedDataset) -> Vec<i64> {
    let read = process(Arc::clone(&data.samples), data.fetch_labeled());
    read.into_iter().map(|image| image.unwrap().label).collect()
}

#[test]
fn folders_in_tar_shards_are_classes() {
    let shards = [
        ("s/1.tar", tar(&["train/dog/1.jpg", "train/dog/notes.txt", "train/cat/1.PNG"])),
        ("s/2.tar", tar(&["train/ant/x/1.jpg", "train/dog/3.webp"])),
    ];
    let (_folder, data) = open("s/{1..2}.tar", &shards);
    assert_eq!(data.classes, ["ant", "cat", "dog"]);
    let images = [0, 2, 3, 4].map(|number| data.samples.item(number).unwrap().label);
    assert_eq!(images, [2, 1, 0, 2]);
    assert!(data.has_own_classes());
    assert!(data.unlabeled().is_none());
    let (_folder, data) = open("1.tar", &[("1.tar", tar(&["b/1.jpg", "a/2.jpg"]))]);
    assert_eq!(labels(&data), [1, 0]);
}

#[test]
fn label_fields_take_precedence_over_folders() {
    let files = [("a/1.jpg", &b"x"[..]), ("a/1.cls", b"7"), ("b/2.jpg", b"x"), ("b/2.cls", b"3")];
    let (_folder, data) = open("1.tar", &[("1.tar", archive(files))]);
    assert!(data.classes.is_empty() && !data.has_own_classes() && data.unlabeled().is_none());
    assert_eq!(labels(&data), [7, 3]);
}

#[test]
fn missing_labels_in_tar_shards_are_a_warning_with_other_fields() {
    for (names, others) in [
        (&["1.jpg", "1.txt", "1.json"][..], "`json`, `txt`"),
        // The text may be the label, so folders are not classes.
        (&["cat/1.jpg", "cat/1.txt", "dog/2.jpg", "dog/2.txt"], "`txt`"),
    ] {
        let (_folder, data) = open("1.tar", &[("1.tar", tar(names))]);
        assert!(data.classes.is_empty(), "{names:?}: {:?}", data.classes);
        let warning = data.unlabeled().unwrap_or_else(|| panic!("no warning for {names:?}"));
        let message = warning.message();
        assert!(message.starts_with("no sample has a label, so all labels are -1"), "{message}");
        assert!(message.contains("`cls`, `label`, `class`, `image/class/label`"), "{message}");
        assert!(message.ends_with(&format!("; other fields are {others}")), "{message}");
        assert!(labels(&data).iter().all(|label| *label == -1));
    }
}

#[test]
fn missing_labels_of_images_only_shards_are_a_warning() {
    for names in [
        &["1.jpg", "2.png"][..],
        &["train/1.jpg", "val/2.jpg"],
        &["cat/1.jpg", "dog/2.jpg", "3.jpg"],
        &["00/1.jpg", "3f/2.jpg"],
    ] {
        let (_folder, data) = open("1.tar", &[("1.tar", tar(names))]);
        assert!(data.classes.is_empty(), "{names:?}: {:?}", data.classes);
        let warning = data.unlabeled().unwrap_or_else(|| panic!("no warning for {names:?}"));
        let words = "; the archives contain only images; put the images into one folder per class, \
                     or add a `.cls` member for each";
        assert!(warning.message().ends_with(words), "{warning}");
        assert_eq!(Remedy::of(&warning), None);
    }
}

#[test]
fn classes_in_folders_counts_derived_classes() {
    let (_folder, data) = open("1.tar", &[("1.tar", tar(&["b/1.jpg", "a/2.jpg"]))]);
    assert_eq!(data.classes_in_folders(), Some(2));
    let (_folder, data) = open("1.tar", &[("1.tar", tar(&["0a/1.jpg", "b1/2.jpg"]))]);
    assert_eq!(data.classes_in_folders(), None);
    let (_folder, data) = open("a", &[("a/b/1.jpg", vec![]), ("a/c/1.jpg", vec![])]);
    assert_eq!((data.classes.len(), data.classes_in_folders()), (2, None));
}

/// The classes and labels of a JSON list by the field `target`.
fn targets(rows: &[&str]) -> (Vec<String>, Vec<Result<i64>>) {
    let images = ["1.jpg", "2.jpg", "3.jpg"].map(|name| (name, name.as_bytes().to_vec()));
    let row = |(number, row): (usize, &&str)| format!("{{\"path\":\"{}.jpg\"{row}}}\n", number + 1);
    let list: String = rows.iter().enumerate().map(row).collect();
    let files = [&images[..], &[("l.jsonl", list.into_bytes())]].concat();
    let (_folder, mut data) = open("l.jsonl", &files);
    block_on(data.name_classes("target")).unwrap();
    let fetch = || data.fetch_labeled().with_label_fields(data.label_field("target"));
    let label = |number| {
        let sample = vec![data.samples.item(number).unwrap()];
        process(sample, fetch()).remove(0).map(|image| image.label)
    };
    ((data.classes.clone()), (0..data.samples.len()).map(label).collect())
}

#[test]
fn an_explicit_label_field_has_no_fallback() {
    for (rows, classes, expected) in [
        (
            [
                r#","label":"dog","target":"x""#,
                r#","label":"cat""#,
                r#","label":"dog","target":"y""#,
            ],
            &["x", "y"][..],
            [0, 1],
        ),
        ([r#","target":7"#, r#","label":0"#, r#","target":9"#], &[], [7, 9]),
    ] {
        let (names, labels) = targets(&rows);
        assert_eq!(names, classes);
        let [Ok(first), Err(error), Ok(last)] = &labels[..] else { panic!("{labels:?}") };
        assert_eq!([*first, *last], expected);
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let words = "no field \"target\": the sample has the fields file";
        assert!(error.message().contains(words), "{error}");
        assert!(error.key().unwrap().ends_with("2.jpg"), "{error}");
    }
}

#[test]
fn integers_and_integral_floats_are_labels() {
    let (names, labels) = targets(&[r#","target":"7""#, r#","target":3"#, r#","target":10.0"#]);
    assert!(names.is_empty());
    assert_eq!(labels.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [7, 3, 10]);
}

#[test]
fn an_explicit_column_of_names_and_numbers_is_refused() {
    for (rows, message) in [
        ("1.jpg,3,\n2.jpg,,\n3.jpg,cat,\n", "label \"cat\" is not an integer, but \"3\" of "),
        ("1.jpg,cat,\n2.jpg,dog,\n3.jpg,2.0,\n", "label \"2.0\" is an integer, but \"cat\" of "),
        ("1.jpg,1,\n2.jpg,2,\n3.jpg,0.5,\n", "label \"0.5\" is a number but not an integer"),
    ] {
        let files = list(&format!("path,target,x\n{rows}"));
        let options = OpenOptions::default().label_field("target");
        let (_folder, data) = open_with("l.csv", &files, &options);
        let error = block_on(data.unwrap().name_classes("target")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().starts_with(message), "{error}");
        assert!(error.key().unwrap().ends_with("3.jpg"), "{error}");
        assert_eq!(Remedy::of(&error), Some(Remedy::LabelField), "{error}");
        // Empty cells of an explicit label field are errors, so the message does not suggest them.
        assert!(!error.message().contains("empty"), "{error}");
    }
}

#[test]
fn the_label_column_takes_precedence_over_the_class_column() {
    let files = list("path,class,label\n1.jpg,dog,7\n2.jpg,cat,3\n3.jpg,dog,7\n");
    let (_folder, data) = open("l.csv", &files);
    assert!(data.classes.is_empty() && data.unlabeled().is_none());
    assert_eq!(labels(&data), [7, 3, 7]);
    // The other column may be selected.
    let options = OpenOptions::default().label_field("class");
    let (_folder, data) = open_with("l.csv", &files, &options);
    let data = data.unwrap();
    assert_eq!(
        (&data.classes[..], labels(&data)),
        (&["cat".into(), "dog".into()][..], vec![1, 0, 1])
    );
    assert!(data.is_own_label("class") && !data.is_own_label("label"));
    data.check_field("class").unwrap();
}

#[test]
fn a_missing_explicit_label_column_is_refused() {
    let options = OpenOptions::default().label_field("label");
    let (_folder, data) = open_with("l.csv", &list("path,class\n1.jpg,dog\n"), &options);
    let error = data.unwrap().check_field("label").unwrap_err();
    assert!(
        error.message().contains("no sample has a field \"label\": the fields are class, file"),
        "{error}"
    );
}

#[test]
fn an_invalid_default_label_column_is_ignored_if_another_is_selected() {
    let files = list("path,label,target\n1.jpg,0.5,7\n2.jpg,n/a,3\n");
    let (_folder, data) = open_with("l.csv", &files, &OpenOptions::default());
    assert_eq!(data.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let options = OpenOptions::default().label_field("target");
    let (_folder, data) = open_with("l.csv", &files, &options);
    let mut data = data.unwrap();
    block_on(data.name_classes("target")).unwrap();
    assert_eq!(labels(&data), [7, 3]);
}

#[test]
fn image_field_selects_the_path_column() {
    for (text, name, first) in [
        ("photo,label\n1.jpg,7\n", "photo", "1.jpg"),
        ("path,photo,label\n2.jpg,1.jpg,7\n", "photo", "1.jpg"),
        ("path,file,label\n2.jpg,1.jpg,7\n", "file", "1.jpg"),
        // `file` is the name of the field for any path column.
        ("path,label\n1.jpg,7\n", "file", "1.jpg"),
        ("1.jpg,7\n", "file", "1.jpg"),
    ] {
        let options = OpenOptions::default().image_field(name);
        let (_folder, data) = open_with("l.csv", &list(text), &options);
        let data = data.unwrap_or_else(|error| panic!("{text}: {error}"));
        let image = process(Arc::clone(&data.samples), data.fetch_labeled()).remove(0).unwrap();
        assert_eq!((&image.value[..], image.label), (first.as_bytes(), 7), "{text}");
        assert_eq!(data.image_field(name), "file");
    }
    let options = OpenOptions::default();
    let (_folder, data) = open_with("l.csv", &list("photo,label\n1.jpg,7\n"), &options);
    let error = data.unwrap_err();
    assert!(error.message().contains("no path column: the columns are photo, label"), "{error}");
    assert_eq!(Remedy::of(&error), Some(Remedy::ImageField));
    let (_folder, data) =
        open_with("l.csv", &list("path,label\n1.jpg,7\n"), &options.image_field("photo"));
    let error = data.unwrap_err();
    assert!(
        error.message().contains("no column \"photo\": the columns are path, label"),
        "{error}"
    );
}

#[test]
fn unlabeled_samples_are_counted() {
    let text = "path,label\n1.jpg,7\n2.jpg,\n3.jpg,\n";
    let half = ["1.jpg", "1.cls", "2.jpg", "notes.txt", "3.jpg", "3.cls", "4.jpg", "4.cls"];
    for (name, files, words, key) in [
        (
            "l.csv",
            list(text),
            "2 of 3 samples have no label and will get the label -1, starting with this one: the label",
            "2.jpg",
        ),
        (
            "1.tar",
            vec![("1.tar", tar(&half))],
            "1 of 4 samples has no label and will get the label -1, starting with this one: none of",
            "1.tar:2",
        ),
    ] {
        let (_folder, data) = open(name, &files);
        let warning = data.unlabeled().unwrap_or_else(|| panic!("no warning for {name}"));
        assert!(warning.message().starts_with(words), "{warning}");
        assert!(warning.key().unwrap().ends_with(key), "{warning}");
        let (_folder, data) = open_with(name, &files, &OpenOptions::default().label_field("txt"));
        assert!(data.unwrap().unlabeled().is_none(), "{name}");
    }
    // The name of the label column of the list changes nothing.
    let (_folder, data) =
        open_with("l.csv", &list(text), &OpenOptions::default().label_field("label"));
    assert!(data.unwrap().unlabeled().unwrap().message().starts_with("2 of 3 samples have"));
    // A literal -1 is a label.
    let (_folder, data) = open("l.csv", &list("path,label\n1.jpg,7\n2.jpg,-1\n"));
    assert!(data.unlabeled().is_none());
}

#[test]
fn a_list_without_a_label_column_is_a_warning() {
    let (_folder, data) = open("l.csv", &list("path\n1.jpg\n"));
    let warning = data.unlabeled().unwrap();
    let words =
        "none of the columns `label`, `class`, `cls` exists; the path column is the only column";
    assert!(warning.message().ends_with(words), "{warning}");
    assert_eq!(Remedy::of(&warning), None);
}

#[test]
fn zero_padded_consecutive_folders_are_classes() {
    let names = ["train/002/1.jpg", "train/000/1.jpg", "train/001/1.jpg"];
    let (_folder, data) = open("1.tar", &[("1.tar", tar(&names))]);
    assert_eq!(data.classes, ["000", "001", "002"]);
    assert_eq!((labels(&data), data.classes_in_folders()), (vec![2, 0, 1], Some(3)));
    assert!(data.unlabeled().is_none());
}

#[test]
fn errors_carry_the_remedy_and_state_facts_only() {
    let files = [("1.jpg", &b"x"[..]), ("1.txt", b"7")];
    let (_folder, data) = open("1.tar", &[("1.tar", archive(files))]);
    let warning = data.unlabeled().unwrap();
    assert!(warning.message().ends_with("; other fields are `txt`"), "{warning}");
    assert_eq!(Remedy::of(&warning), Some(Remedy::LabelField));
    let files = [("1.jpg", &b"x"[..]), ("1.cls", b"dog")];
    let (_folder, data) = open("1.tar", &[("1.tar", archive(files))]);
    let error = process(Arc::clone(&data.samples), data.fetch_labeled()).remove(0).unwrap_err();
    assert_eq!(Remedy::of(&error), Some(Remedy::Classes), "{error}");
    let options = OpenOptions::default();
    let (_folder, data) = open_with("l.csv", &list("path,label\n1.jpg,0.5\n"), &options);
    let error = data.unwrap_err();
    assert_eq!(Remedy::of(&error), Some(Remedy::LabelField), "{error}");
    for text in [warning.report(), error.report()] {
        assert!(!text.contains("--") && !text.contains("::"), "{text}");
    }
}

#[test]
fn selecting_the_label_column_of_a_list_keeps_its_labels() {
    let list = b"path,label\n1.jpg,dog\n2.jpg,\n".to_vec();
    let images = ["1.jpg", "2.jpg"].map(|name| (name, name.as_bytes().to_vec()));
    let (_folder, data) = open("l.csv", &[&images[..], &[("l.csv", list)]].concat());
    let fetch = data.fetch_labeled().with_label_fields(data.label_field("label"));
    let read = process(Arc::clone(&data.samples), fetch);
    let read: Vec<_> = read.into_iter().map(|image| image.unwrap().label).collect();
    assert_eq!(read, [0, -1]);
    // If another column holds the labels, it is a field.
    let list = b"path,class,label\n1.jpg,dog,x\n".to_vec();
    let (_folder, mut data) = open("l.csv", &[&images[..1], &[("l.csv", list)]].concat());
    let other = "class";
    assert_eq!((data.label_field("label"), data.label_field(other)), (None, Some(other)));
    block_on(data.name_classes(other)).unwrap();
    let fetch = data.fetch_labeled().with_label_fields(data.label_field(other));
    assert_eq!(process(Arc::clone(&data.samples), fetch).remove(0).unwrap().label, 0);
}

#[test]
fn labels_of_all_samples_of_tar_shards_are_examined() {
    let names: Vec<String> = (0..1001).map(|number| format!("{number:04}.jpg")).collect();
    let last = [(&names[1000][..], &b""[..]), ("1000.cls", b"1")];
    let images = names[..1000].iter().map(|name| (&name[..], &b""[..])).chain(last);
    let (_folder, data) = open("1.tar", &[("1.tar", archive(images))]);
    let warning = data.unlabeled().unwrap();
    assert!(warning.message().starts_with("1000 of 1001 samples have no label"), "{warning}");
}

#[test]
fn another_column_of_a_list_can_be_the_label() {
    for (name, list) in [
        ("l.csv", "path,target,n\n1.jpg,dog,4\n2.jpg,cat,5\n3.jpg,dog,4\n"),
        (
            "l.jsonl",
            "{\"path\":\"1.jpg\",\"target\":\"dog\",\"n\":4}\n{\"path\":\"2.jpg\",\"target\":\"cat\",\"n\":5}\n\
             {\"path\":\"3.jpg\",\"target\":\"dog\",\"n\":4}\n",
        ),
    ] {
        let images = ["1.jpg", "2.jpg", "3.jpg"].map(|name| (name, name.as_bytes().to_vec()));
        let files = [&images[..], &[(name, list.as_bytes().to_vec())]].concat();
        let (_folder, mut data) = open(name, &files);
        let warning = data.unlabeled().unwrap();
        let words =
            "none of the columns `label`, `class`, `cls` exists; other columns are `n`, `target`";
        assert!(warning.message().ends_with(words), "{warning}");
        assert_eq!(labels(&data), [-1, -1, -1]);
        for (field, classes, expected) in
            [("target", &["cat", "dog"][..], [1, 0, 1]), ("n", &[], [4, 5, 4])]
        {
            block_on(data.name_classes(field)).unwrap();
            assert_eq!(data.classes, classes, "{name}: {field}");
            let fetch = data.fetch_labeled().with_label_fields([field]);
            let read = process(Arc::clone(&data.samples), fetch);
            let read: Vec<_> = read.into_iter().map(|image| image.unwrap().label).collect();
            assert_eq!(read, expected, "{name}: {field}");
        }
    }
}

#[test]
fn empty_cells_are_not_classes() {
    let list = b"path,target\n1.jpg,dog\n2.jpg,\n".to_vec();
    let (_folder, mut data) = open("l.csv", &[("l.csv", list)]);
    block_on(data.name_classes("target")).unwrap();
    assert_eq!(data.classes, ["dog"]);
}

#[test]
fn name_classes_keeps_the_classes_of_the_label_column() {
    let list = b"path,label\n1.jpg,dog\n2.jpg,cat\n".to_vec();
    let (_folder, mut data) = open("l.csv", &[("l.csv", list)]);
    block_on(data.name_classes("label")).unwrap();
    assert_eq!(data.classes, ["cat", "dog"]);
    assert!(data.unlabeled().is_none());
}

#[test]
fn unlabeled_data_sets_give_no_warning() {
    let image = || ("photos/1.jpg", b"x".to_vec());
    for (name, files) in [
        ("photos", vec![image()]),
        ("l.txt", vec![("l.txt", b"1.jpg\n".to_vec())]),
        ("l.csv", vec![("l.csv", b"1.jpg\n2.jpg\n".to_vec())]),
    ] {
        let (_folder, data) = open(name, &files);
        assert!(data.unlabeled().is_none(), "{name}: {:?}", data.unlabeled());
    }
}
