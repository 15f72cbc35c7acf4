//! Where labels come from, and what is told where there are none.

// promise of this file: DATA7

use std::fs;

use spdl_core::{ErrorKind, block_on};
use spdl_io::StoreRegistry;
use spdl_io::datasets::{OpenOptions, OpenedDataset};
use spdl_io::records::Remedy;

use super::*;

/// What is opened of a folder with these files, by the name of one of them.
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

/// A list of this text beside images that it may name.
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
        assert!(message.starts_with("no sample has a label, so all labels are -1"), "{message}");
        assert!(message.contains("`cls`, `label`, `class`, `image/class/label`"), "{message}");
        assert!(message.ends_with(&format!("; other fields are {there}")), "{message}");
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
fn whole_numbers_are_labels_in_whichever_way_they_are_written() {
    let (names, labels) = targets(&[r#","target":"7""#, r#","target":3"#, r#","target":10.0"#]);
    assert!(names.is_empty());
    assert_eq!(labels.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [7, 3, 10]);
}

#[test]
fn a_named_column_of_names_and_numbers_is_refused_with_row_value_and_remedy() {
    for (rows, told) in [
        ("1.jpg,3,\n2.jpg,,\n3.jpg,cat,\n", "label \"cat\" is not an integer, but \"3\" of "),
        ("1.jpg,cat,\n2.jpg,dog,\n3.jpg,2.0,\n", "label \"2.0\" is an integer, but \"cat\" of "),
        ("1.jpg,1,\n2.jpg,2,\n3.jpg,0.5,\n", "label \"0.5\" is a number but not an integer"),
    ] {
        let files = list(&format!("path,target,x\n{rows}"));
        let options = OpenOptions::default().label_field("target");
        let (_folder, data) = open_with("l.csv", &files, &options);
        let error = block_on(data.unwrap().name_classes("target")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().starts_with(told), "{error}");
        assert!(error.key().unwrap().ends_with("3.jpg"), "{error}");
        assert_eq!(Remedy::of(&error), Some(Remedy::LabelField), "{error}");
        // An empty cell of a field that is named is an error.
        assert!(!error.message().contains("empty"), "{error}");
    }
}

#[test]
fn a_lists_label_column_comes_before_its_class_column() {
    let files = list("path,class,label\n1.jpg,dog,7\n2.jpg,cat,3\n3.jpg,dog,7\n");
    let (_folder, data) = open("l.csv", &files);
    assert!(data.classes.is_empty() && data.unlabeled().is_none());
    assert_eq!(labels(&data), [7, 3, 7]);
    // The other one may be named.
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
fn a_label_column_that_a_list_has_not_is_refused() {
    let options = OpenOptions::default().label_field("label");
    let (_folder, data) = open_with("l.csv", &list("path,class\n1.jpg,dog\n"), &options);
    let error = data.unwrap().check_field("label").unwrap_err();
    assert!(
        error.message().contains("no sample has a field \"label\": the fields are class, file"),
        "{error}"
    );
}

#[test]
fn a_usual_column_that_holds_no_labels_hinders_nobody_who_names_another() {
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
fn the_column_of_the_files_can_be_named_as_the_image() {
    for (text, name, first) in [
        ("photo,label\n1.jpg,7\n", "photo", "1.jpg"),
        ("path,photo,label\n2.jpg,1.jpg,7\n", "photo", "1.jpg"),
        ("path,file,label\n2.jpg,1.jpg,7\n", "file", "1.jpg"),
        // What the field is called, whatever the column is.
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
fn samples_without_a_label_beside_others_are_counted_and_the_first_is_told() {
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
        let told = data.unlabeled().unwrap_or_else(|| panic!("nothing is told of {name}"));
        assert!(told.message().starts_with(words), "{told}");
        assert!(told.key().unwrap().ends_with(key), "{told}");
        let (_folder, data) = open_with(name, &files, &OpenOptions::default().label_field("txt"));
        assert!(data.unwrap().unlabeled().is_none(), "{name}");
    }
    // By its own name the column of a list is what it is without.
    let (_folder, data) =
        open_with("l.csv", &list(text), &OpenOptions::default().label_field("label"));
    assert!(data.unwrap().unlabeled().unwrap().message().starts_with("2 of 3 samples have"));
    // A -1 that is written is meant.
    let (_folder, data) = open("l.csv", &list("path,label\n1.jpg,7\n2.jpg,-1\n"));
    assert!(data.unlabeled().is_none());
}

#[test]
fn a_list_with_columns_but_none_of_labels_is_told() {
    let (_folder, data) = open("l.csv", &list("path\n1.jpg\n"));
    let told = data.unlabeled().unwrap();
    let words =
        "none of the columns `label`, `class`, `cls` exists; the path column is the only column";
    assert!(told.message().ends_with(words), "{told}");
    assert_eq!(Remedy::of(&told), None);
}

#[test]
fn folders_that_count_with_zeros_before_them_are_classes_in_their_order() {
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
    let other = "class";
    assert_eq!((data.label_field("label"), data.label_field(other)), (None, Some(other)));
    block_on(data.name_classes(other)).unwrap();
    let fetch = data.fetch_labeled().with_label_fields(data.label_field(other));
    assert_eq!(process(Arc::clone(&data.samples), fetch).remove(0).unwrap().label, 0);
}

#[test]
fn all_samples_of_a_tar_are_looked_at_for_a_label() {
    let names: Vec<String> = (0..1001).map(|number| format!("{number:04}.jpg")).collect();
    let last = [(&names[1000][..], &b""[..]), ("1000.cls", b"1")];
    let images = names[..1000].iter().map(|name| (&name[..], &b""[..])).chain(last);
    let (_folder, data) = open("1.tar", &[("1.tar", archive(images))]);
    let told = data.unlabeled().unwrap();
    assert!(told.message().starts_with("1000 of 1001 samples have no label"), "{told}");
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
        ("l.csv", vec![("l.csv", b"1.jpg\n2.jpg\n".to_vec())]),
    ] {
        let (_folder, data) = open(name, &files);
        assert!(data.unlabeled().is_none(), "{name}: {:?}", data.unlabeled());
    }
}
