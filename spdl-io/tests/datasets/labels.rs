//! Where labels come from, and what is told where there are none.

use std::fs;

use spdl_core::{ErrorKind, block_on};
use spdl_io::StoreRegistry;
use spdl_io::datasets::OpenedDataset;

use super::*;

/// What is opened of a folder with these files, by the name of one of them.
fn open(name: &str, files: &[(&str, Vec<u8>)]) -> (tempfile::TempDir, OpenedDataset) {
    let folder = tempfile::tempdir().unwrap();
    for (name, data) in files {
        fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        fs::write(folder.path().join(name), data).unwrap();
    }
    let address = folder.path().join(name);
    let opened = block_on(OpenedDataset::open(&[address], &StoreRegistry::new())).unwrap();
    (folder, opened)
}

fn tar(names: &[&str]) -> Vec<u8> {
    archive(names.iter().map(|name| (*name, name.as_bytes())))
}

fn labels(data: &OpenedDataset) -> Vec<i64> {
    let read = process(Arc::clone(&data.samples), data.fetch_labeled());
    read.into_iter().map(|image| image.unwrap().label).collect()
}

#[test]
fn folders_in_tar_shards_are_classes_as_in_a_folder_of_images() {
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
fn a_label_in_a_field_counts_and_no_folder_does() {
    let files = [("a/1.jpg", &b"x"[..]), ("a/1.cls", b"7"), ("b/2.jpg", b"x"), ("b/2.cls", b"3")];
    let (_folder, data) = open("1.tar", &[("1.tar", archive(files))]);
    assert!(data.classes.is_empty() && !data.has_own_classes() && data.unlabeled().is_none());
    assert_eq!(labels(&data), [7, 3]);
}

#[test]
fn where_no_sample_of_a_tar_has_a_label_the_fields_and_the_option_are_told() {
    for (names, there) in [
        (&["1.jpg", "1.txt", "1.json"][..], "`json`, `txt`"),
        // A text beside an image may be its label, so that the folder need not be.
        (&["cat/1.jpg", "cat/1.txt", "dog/2.jpg", "dog/2.txt"], "`txt`"),
    ] {
        let (_folder, data) = open("1.tar", &[("1.tar", tar(names))]);
        assert!(data.classes.is_empty(), "{names:?}: {:?}", data.classes);
        let told = data.unlabeled().unwrap_or_else(|| panic!("nothing is told of {names:?}"));
        let message = told.message();
        assert!(message.starts_with("no sample has a label, so all are -1"), "{message}");
        assert!(message.contains("`cls`, `label`, `class`, `image/class/label`"), "{message}");
        assert!(message.contains(&format!("There are {there}; `label_field`")), "{message}");
        assert!(message.contains("--label-field"), "{message}");
        assert!(labels(&data).iter().all(|label| *label == -1));
    }
}

#[test]
fn where_a_tar_holds_nothing_but_images_no_field_is_named_to_be_the_label() {
    for names in [
        &["1.jpg", "2.png"][..],
        &["train/1.jpg", "val/2.jpg"],
        &["cat/1.jpg", "dog/2.jpg", "3.jpg"],
        &["00/1.jpg", "3f/2.jpg"],
    ] {
        let (_folder, data) = open("1.tar", &[("1.tar", tar(names))]);
        assert!(data.classes.is_empty(), "{names:?}: {:?}", data.classes);
        let told = data.unlabeled().unwrap_or_else(|| panic!("nothing is told of {names:?}"));
        let words = ". There is nothing but images: put them into folders of classes, or add a \
                     `.cls` beside each";
        assert!(told.message().ends_with(words), "{told}");
        assert!(!told.message().contains("label_field"), "{told}");
    }
}

#[test]
fn classes_that_were_found_in_folders_are_counted() {
    let (_folder, data) = open("1.tar", &[("1.tar", tar(&["b/1.jpg", "a/2.jpg"]))]);
    assert_eq!(data.classes_in_folders(), Some(2));
    let (_folder, data) = open("1.tar", &[("1.tar", tar(&["0a/1.jpg", "b1/2.jpg"]))]);
    assert_eq!(data.classes_in_folders(), None);
    let (_folder, data) = open("a", &[("a/b/1.jpg", vec![]), ("a/c/1.jpg", vec![])]);
    assert_eq!((data.classes.len(), data.classes_in_folders()), (2, None));
}

/// The labels of a list of JSON by the field `target`, or why there is none.
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
fn a_sample_without_the_field_that_is_named_has_no_label_from_elsewhere() {
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
        assert!(error.message().contains("there is no field \"target\", but file"), "{error}");
        assert!(error.key().unwrap().ends_with("2.jpg"), "{error}");
    }
}

#[test]
fn a_number_among_names_is_a_name() {
    let (names, labels) = targets(&[r#","target":"x""#, r#","target":3"#, r#","target":"a""#]);
    assert_eq!(names, ["3", "a", "x"]);
    let labels: Vec<_> = labels.into_iter().map(Result::unwrap).collect();
    assert_eq!(labels, [2, 0, 1]);
    let (names, labels) = targets(&[r#","target":"7""#, r#","target":3"#]);
    assert!(names.is_empty());
    assert_eq!(labels.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [7, 3]);
}

#[test]
fn a_lists_own_column_that_is_named_is_no_field_and_labels_stay() {
    let list = b"path,label\n1.jpg,dog\n2.jpg,\n".to_vec();
    let images = ["1.jpg", "2.jpg"].map(|name| (name, name.as_bytes().to_vec()));
    let (_folder, data) = open("l.csv", &[&images[..], &[("l.csv", list)]].concat());
    let fetch = data.fetch_labeled().with_label_fields(data.label_field("label"));
    let read = process(Arc::clone(&data.samples), fetch);
    let read: Vec<_> = read.into_iter().map(|image| image.unwrap().label).collect();
    assert_eq!(read, [0, -1]);
    // Where another column holds the labels, it is a field as others are.
    let list = b"path,class,label\n1.jpg,dog,x\n".to_vec();
    let (_folder, mut data) = open("l.csv", &[&images[..1], &[("l.csv", list)]].concat());
    let own = if data.is_own_label("label") { "label" } else { "class" };
    let other = if own == "label" { "class" } else { "label" };
    assert_eq!((data.label_field(own), data.label_field(other)), (None, Some(other)));
    block_on(data.name_classes(other)).unwrap();
    let fetch = data.fetch_labeled().with_label_fields(data.label_field(other));
    assert_eq!(process(Arc::clone(&data.samples), fetch).remove(0).unwrap().label, 0);
}

#[test]
fn of_many_samples_the_first_thousand_are_looked_at_for_a_label() {
    let names: Vec<String> = (0..1001).map(|number| format!("{number:04}.jpg")).collect();
    let last = [(&names[1000][..], &b""[..]), ("1000.cls", b"1")];
    let images = names[..1000].iter().map(|name| (&name[..], &b""[..])).chain(last);
    let (_folder, data) = open("1.tar", &[("1.tar", archive(images))]);
    let told = data.unlabeled().unwrap();
    assert!(told.message().starts_with("none of the first 1000 samples has a label"), "{told}");
}

#[test]
fn a_column_of_a_list_that_is_no_usual_label_is_told_and_can_be_named() {
    for (name, list, own) in [
        ("l.csv", "path,target,n\n1.jpg,dog,4\n2.jpg,cat,5\n3.jpg,dog,4\n", "`n`, `target`"),
        (
            "l.jsonl",
            "{\"path\":\"1.jpg\",\"target\":\"dog\",\"n\":4}\n{\"path\":\"2.jpg\",\"target\":\"cat\",\"n\":5}\n\
             {\"path\":\"3.jpg\",\"target\":\"dog\",\"n\":4}\n",
            "`n`, `target`",
        ),
    ] {
        let images = ["1.jpg", "2.jpg", "3.jpg"].map(|name| (name, name.as_bytes().to_vec()));
        let files = [&images[..], &[(name, list.as_bytes().to_vec())]].concat();
        let (_folder, mut data) = open(name, &files);
        let told = data.unlabeled().unwrap();
        let message = told.message();
        assert!(message.contains("in the columns `label`, `class`, `cls`. There are"), "{message}");
        assert!(message.contains(&format!("There are {own}; ")), "{message}");
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
fn an_empty_cell_names_no_class() {
    let list = b"path,target\n1.jpg,dog\n2.jpg,\n".to_vec();
    let (_folder, mut data) = open("l.csv", &[("l.csv", list)]);
    block_on(data.name_classes("target")).unwrap();
    assert_eq!(data.classes, ["dog"]);
}

#[test]
fn the_classes_of_a_lists_own_column_stay_what_they_are() {
    let list = b"path,label\n1.jpg,dog\n2.jpg,cat\n".to_vec();
    let (_folder, mut data) = open("l.csv", &[("l.csv", list)]);
    block_on(data.name_classes("label")).unwrap();
    assert_eq!(data.classes, ["cat", "dog"]);
    assert!(data.unlabeled().is_none());
}

#[test]
fn nothing_is_told_where_nobody_can_expect_a_label() {
    let image = || ("photos/1.jpg", b"x".to_vec());
    for (name, files) in [
        ("photos", vec![image()]),
        ("l.txt", vec![("l.txt", b"1.jpg\n".to_vec())]),
        ("l.csv", vec![("l.csv", b"path\n1.jpg\n".to_vec())]),
    ] {
        let (_folder, data) = open(name, &files);
        assert!(data.unlabeled().is_none(), "{name}: {:?}", data.unlabeled());
    }
}
