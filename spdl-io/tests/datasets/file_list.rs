//! Tests of `FileList`: formats, headers, labels, errors with line and column.

// promise of this file: DATA7

use std::fs;
use std::sync::Arc;

use proptest::prelude::*;
use spdl_core::{Dataset, Error, ErrorKind, block_on};
use spdl_io::datasets::{FileList, FileListOptions, ListFormat};
use spdl_io::records::{Remedy, StoredField};
use spdl_io::{FetchLabeled, FetchRecord, FieldValue, Key, LocalFetcher, StoredRecord};

use crate::{Recording, golden, golden_lines, process, read_all};

fn parse(text: &str, format: ListFormat) -> Result<FileList, Error> {
    FileList::parse(text.to_owned(), format, "data/", &FileListOptions::default())
}

fn items(list: &FileList) -> Vec<StoredRecord> {
    (0..list.len()).map(|index| list.item(index).unwrap()).collect()
}

fn files_and_labels(list: &FileList) -> Vec<(String, i64)> {
    items(list).into_iter().map(|it| (it.key.as_str().unwrap().to_owned(), it.label)).collect()
}

fn known<'a>(record: &'a StoredRecord, name: &str) -> &'a FieldValue {
    match record.fields.iter().find(|(found, _)| **found == *name) {
        Some((_, StoredField::Known(value))) => value,
        other => panic!("{name}: {other:?}"),
    }
}

/// The value of a CSV cell: empty cells are null.
fn cell(text: &str) -> FieldValue {
    if text.is_empty() { FieldValue::Null } else { FieldValue::Text(text.into()) }
}

#[test]
fn csv_without_a_path_column_has_rows_of_values() {
    let options = FileListOptions::default().value_columns(["text", "url"]);
    let of = |text: &'static str| FileList::parse(text, ListFormat::Csv, "data/", &options);
    let list = of("text,label\n\"two\nlines\",b\n,a\n").unwrap();
    assert_eq!(files_and_labels(&list), [("list:0".to_owned(), 1), ("list:1".to_owned(), 0)]);
    let first = list.item(0).unwrap();
    assert_eq!(first.names().collect::<Vec<_>>(), ["text"]);
    assert_eq!(known(&first, "text"), &cell("two\nlines"));
    assert_eq!(known(&list.item(1).unwrap(), "text"), &FieldValue::Null);
    // A column that is read as a value names no files.
    assert_eq!(
        known(&of("url\nhttps://a/b\n").unwrap().item(0).unwrap(), "url"),
        &cell("https://a/b")
    );
    let with_path = of("path,text\na.txt,b\n").unwrap();
    assert_eq!(with_path.item(0).unwrap().key, Key::from("data/a.txt"));
    let error = of("words,score\na,1\n").unwrap_err();
    assert!(
        error.message().contains("no column \"text\": the columns are words, score"),
        "{error}"
    );
}

#[test]
fn csv_cells_equal_those_of_python() {
    let rows: Vec<Vec<String>> = golden_lines("list.tsv")
        .into_iter()
        .map(|line| {
            let bytes = |hex: String| {
                let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
                (0..hex.len()).step_by(2).map(digits).collect::<Vec<_>>()
            };
            line.into_iter().map(|cell| String::from_utf8(bytes(cell)).unwrap()).collect()
        })
        .collect();
    let list = FileList::open(golden("list.csv")).unwrap();
    assert_eq!(list.classes(), ["cat", "dog"]);
    assert_eq!(list.len() as usize, rows.len() - 1);
    for (item, row) in items(&list).iter().zip(&rows[1..]) {
        assert!(item.key.as_str().unwrap().ends_with(&row[0]), "{}", item.key);
        assert_eq!(
            item.label,
            ["cat", "dog"].iter().position(|it| *it == row[1]).map_or(-1, |it| it as i64)
        );
        assert_eq!(known(item, "caption"), &cell(&row[2]));
        assert_eq!(known(item, "width"), &cell(&row[3]));
    }
}

#[test]
fn lines_are_literal_paths() {
    let list =
        parse("\u{feff}a.jpg\r\n\n  \nb c.jpg\n#d.jpg\r\n\"e\".jpg", ListFormat::Lines).unwrap();
    let names: Vec<_> = files_and_labels(&list).into_iter().map(|it| it.0).collect();
    assert_eq!(names, ["data/a.jpg", "data/b c.jpg", "data/#d.jpg", "data/\"e\".jpg"]);
    assert!(items(&list).iter().all(|item| item.label == -1));
    assert!(list.classes().is_empty());
    let bytes = &b"caf\xe9.jpg\n"[..];
    let list = FileList::parse(bytes, ListFormat::Lines, "", &FileListOptions::default()).unwrap();
    assert_eq!(list.item(0).unwrap().key, Key::from_bytes(b"caf\xe9.jpg"));
}

#[test]
fn a_first_row_with_a_path_column_is_a_header() {
    let labels = |text: &str| files_and_labels(&parse(text, ListFormat::Csv).unwrap());
    let expected = [("data/a".to_owned(), 1), ("data/b".to_owned(), 0)];
    assert_eq!(labels("a,1\nb,0\n"), expected);
    assert_eq!(labels("path,label\na,1\nb,0"), expected);
    assert_eq!(labels("Label, File_Name \r\n1,a\r\n0,b\r\n"), expected);
    assert_eq!(labels("a\nb\n"), [("data/a".to_owned(), -1), ("data/b".to_owned(), -1)]);
    let options = FileListOptions::default().path_column("uri").label_column("y");
    let list = FileList::parse("y,uri,path\n1,a,x\n0,b,z\n", ListFormat::Csv, "data", &options);
    let list = list.unwrap();
    assert_eq!(files_and_labels(&list), expected);
    assert_eq!(known(&list.item(1).unwrap(), "path"), &FieldValue::Text("z".into()));
}

#[test]
fn labels_are_numbers_or_sorted_class_names() {
    let labels = |text: &str| {
        let list = parse(text, ListFormat::Csv).unwrap();
        let labels = files_and_labels(&list).into_iter().map(|it| it.1).collect::<Vec<_>>();
        (labels, list.classes().to_vec())
    };
    assert_eq!(labels("a,7\nb, -3 \nc,7\nd,\n"), (vec![7, -3, 7, -1], vec![]));
    assert_eq!(labels("a,10.0\nb,2.0\nc,-1\nd,1.0e+01\n"), (vec![10, 2, -1, 10], vec![]));
    assert_eq!(labels("a,a1\nb,7e10\nc,0e1\n").0, [2, 1, 0]);
    let (numbers, classes) = labels("a,dog\nb, cat\nc,cat \nd,\" cat\"\n");
    assert_eq!((numbers, classes.join("|")), (vec![1, 0, 0, 0], "cat|dog".into()));
    let (numbers, classes) = labels("a,dog\nb,7a\nc,Cat\nd,dog\ne,\n");
    assert_eq!((numbers, classes.join(" ")), (vec![2, 0, 1, 2, -1], "7a Cat dog".into()));
}

#[test]
fn a_label_column_of_numbers_and_names_is_refused() {
    for (format, text, message) in [
        (
            ListFormat::Csv,
            "path,label\na,1\nb,2.0\nc,n/a\nd,dog\n",
            "line 4: label \"n/a\" is not an integer, but \"1\" in line 2 is: labels",
        ),
        (
            ListFormat::Csv,
            "a,cat\n\nb,\nc, 3\n",
            "line 4: label \"3\" is an integer, but \"cat\" in line 1 is not: labels",
        ),
        (ListFormat::Csv, "a,1\nb,2.5\n", "line 2: label \"2.5\" is a number but not an integer"),
        (
            ListFormat::JsonLines,
            "{\"path\": \"a\", \"label\": 3}\n{\"path\": \"b\", \"label\": \"cat\"}\n",
            "line 2: label \"cat\" is not an integer, but \"3\" in line 1 is: labels",
        ),
    ] {
        let error = parse(text, format).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().starts_with(message), "{error}");
        assert_eq!(Remedy::of(&error), Some(Remedy::LabelField), "{error}");
    }
}

#[test]
fn json_lines_keep_their_types() {
    let text = concat!(
        r#"{"path": "a.jpg", "label": 2, "caption": "a cat", "score": 0.5, "n": 3, "ok": true, "no": null, "box": [1, 2]}"#,
        "\r\n\n",
        r#"{"label": 5.0, "file_name": "b.jpg"}"#,
        "\n",
        r#"{"path": "/c.jpg", "label": null}"#
    );
    let list = parse(text, ListFormat::JsonLines).unwrap();
    let expected = [("data/a.jpg", 2), ("data/b.jpg", 5), ("/c.jpg", -1)];
    assert_eq!(files_and_labels(&list), expected.map(|(key, label)| (key.to_owned(), label)));
    let item = list.item(0).unwrap();
    assert_eq!(
        item.names().collect::<Vec<_>>(),
        ["file", "box", "caption", "n", "no", "ok", "score"]
    );
    assert_eq!(known(&item, "caption"), &FieldValue::Text("a cat".into()));
    assert_eq!(known(&item, "score"), &FieldValue::Float(0.5));
    assert_eq!(known(&item, "n"), &FieldValue::Integer(3));
    assert_eq!(known(&item, "ok"), &FieldValue::Bool(true));
    assert_eq!(known(&item, "no"), &FieldValue::Null);
    assert!(matches!(known(&item, "box"), FieldValue::Json(_)));
}

#[test]
fn relative_paths_start_at_the_folder_of_the_list() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("images")).unwrap();
    fs::write(folder.path().join("images/1.jpg"), "a picture").unwrap();
    let path = folder.path().join("list.csv");
    fs::write(&path, "images/1.jpg,4\n").unwrap();
    let list = FileList::open(&path).unwrap();
    let images = process(list, FetchLabeled::new(Arc::new(LocalFetcher::new())));
    let image = images.into_iter().next().unwrap().unwrap();
    assert_eq!((&image.value[..], image.label), (&b"a picture"[..], 4));

    let store = Recording::new([("lists/a.txt", "1.jpg\n"), ("lists/1.jpg", "another")]);
    let options = FileListOptions::default();
    let fetched = block_on(FileList::fetch(&store.arc(), "lists/a.txt", &options)).unwrap();
    let records = read_all(fetched, store.arc());
    assert_eq!(records[0].get("file").unwrap().as_bytes().unwrap(), "another");

    let list = parse("https://host/1.jpg\n/a.jpg\n../b.jpg\n", ListFormat::Lines).unwrap();
    let names: Vec<_> = files_and_labels(&list).into_iter().map(|it| it.0).collect();
    assert_eq!(names, ["https://host/1.jpg", "/a.jpg", "data/../b.jpg"]);
}

#[test]
fn file_columns_hold_the_bytes_of_further_files() {
    let options = FileListOptions::default()
        .file_columns(["mask", "image", "left"])
        .other_path_columns(["left"]);
    let store = [("data/1.jpg", "photo"), ("data/m/1.png", "numbers"), ("data/l.jpg", "left")];
    let read = |text: &str, format| {
        let list = FileList::parse(text.to_owned(), format, "data", &options).unwrap();
        let first = read_all(list, Recording::new(store).arc()).remove(0);
        let value = |name: &str| match first.get(name) {
            Ok(value) => value
                .as_bytes()
                .map_or("null".into(), |it| String::from_utf8_lossy(it).into_owned()),
            Err(_) => "absent".into(),
        };
        ["file", "mask", "image", "left"].map(value).join(" ")
    };
    let json = |text: &str| read(text, ListFormat::JsonLines);
    assert_eq!(read("path,mask\n1.jpg,m/1.png\n", ListFormat::Csv), "photo numbers absent absent");
    assert_eq!(read("path,mask\n1.jpg,\n", ListFormat::Csv), "photo null absent absent");
    assert_eq!(json(r#"{"path": "1.jpg", "mask": "m/1.png"}"#), "photo numbers absent absent");
    assert_eq!(json(r#"{"path": "1.jpg", "mask": null}"#), "photo null absent absent");
    // The path column keeps its name as well.
    assert_eq!(read("image,mask\n1.jpg,m/1.png\n", ListFormat::Csv), "photo numbers photo absent");
    assert_eq!(json(r#"{"image": "1.jpg", "mask": "m/1.png"}"#), "photo numbers photo absent");
    // Without a default path column, another path column is used, but no other file column.
    assert_eq!(read("mask,left\nm/1.png,l.jpg\n", ListFormat::Csv), "left numbers absent left");
    let text = "picture,mask\n1.jpg,m/1.png\n".to_owned();
    let error = FileList::parse(text, ListFormat::Csv, "data", &options).unwrap_err();
    assert!(error.message().contains("no path column: the columns are picture, mask"), "{error}");
    let invalid = FileList::parse(
        r#"{"path": "1.jpg", "mask": [1]}"#,
        ListFormat::JsonLines,
        "data",
        &options,
    );
    let error = invalid.unwrap_err();
    assert!(error.message().contains("must be the path of a file, found \"[1]\""), "{error}");
}

#[test]
fn a_missing_file_is_null_and_never_another_file_of_the_row() {
    let options = FileListOptions::default()
        .file_columns(["left", "right", "right", "image", "img", "view0"])
        .other_path_columns(["left", "right"]);
    let names = |text: &str, format| {
        let list = FileList::parse(text.to_owned(), format, "", &options).unwrap();
        let shown = |(name, field): &(_, StoredField)| match field {
            StoredField::Known(value) => format!("{name}: {}", value.kind()),
            StoredField::At(extent, _) => format!("{name}: {extent}"),
            _ => unreachable!(),
        };
        let row =
            |at| list.item(at).unwrap().fields.iter().map(shown).collect::<Vec<_>>().join(", ");
        (0..list.len()).map(row).collect::<Vec<_>>()
    };
    let json = |text: &str| names(text, ListFormat::JsonLines);
    // No row has `view0`, so all views are the file of the path.
    assert_eq!(
        json("{\"left\": \"l0\", \"right\": \"r0\"}\n{\"left\": \"l1\"}\n{\"right\": \"r2\"}\n"),
        [
            "file: l0, left: l0, right: r0",
            "file: l1, left: l1, right: null",
            "file: r2, left: null, right: r2",
        ],
    );
    assert_eq!(
        json("{\"path\": \"a\"}\n{\"path\": \"b\", \"image\": \"c\"}\n"),
        ["file: a, image: null", "file: b, image: c"],
    );
    // Two names of the path.
    assert_eq!(json("{\"path\": \"a\"}\n{\"image\": \"b\"}\n"), ["file: a", "file: b, image: b"],);
    assert_eq!(
        json("{\"image\": \"a\"}\n{\"img\": \"b\"}\n"),
        ["file: a, image: a, img: null", "file: b, image: null, img: b"],
    );
    // Letter case is ignored, as for the path column, but an exact match takes precedence.
    let csv = |text: &str| names(text, ListFormat::Csv);
    assert_eq!(csv("Left,RIGHT\nl,r\n"), ["file: l, left: l, right: r"]);
    assert_eq!(csv("left,right,Right\nl,r,x\n"), ["file: l, left: l, right: r, Right: text"]);
}

#[test]
fn the_name_determines_the_format() {
    for (name, format) in [
        ("a.CSV", ListFormat::Csv),
        ("a.jsonl", ListFormat::JsonLines),
        ("a.ndjson", ListFormat::JsonLines),
        ("a.txt", ListFormat::Lines),
        ("csv", ListFormat::Lines),
    ] {
        assert_eq!(ListFormat::of_name(&name.into()), format);
    }
}

#[test]
fn damage_is_an_error_with_an_offset() {
    use ErrorKind::{Corrupt, InvalidArgument, LimitExceeded, NotFound, Truncated};
    use ListFormat::{Csv, JsonLines, Lines};
    let failed = |format, text: &str| {
        let error = parse(text, format).unwrap_err();
        (error.kind(), error.offset())
    };
    assert_eq!(failed(Lines, " \n\n"), (NotFound, None));
    assert_eq!(failed(Csv, ""), (NotFound, None));
    assert_eq!(failed(Csv, "path,label\n"), (NotFound, None));
    assert_eq!(failed(Csv, "a,1\nb,2,3\n"), (Corrupt, Some(4)));
    assert_eq!(failed(Csv, "a,1\nb\n"), (Corrupt, Some(4)));
    assert_eq!(failed(Csv, "a,1\n,2\n"), (Corrupt, Some(4)));
    assert_eq!(failed(Csv, "a,1\nb,\"2\n"), (Truncated, Some(6)));
    assert_eq!(failed(Csv, "a,1\n\"b\"x,2\n"), (Corrupt, Some(7)));
    assert_eq!(failed(Csv, "a,1\nb\"x,2\n"), (Corrupt, Some(5)));
    assert_eq!(failed(Csv, "a,b,c\n"), (InvalidArgument, Some(0)));
    assert_eq!(failed(Csv, "path,x,x\na,b,c\n"), (InvalidArgument, Some(0)));
    assert_eq!(failed(Csv, "path,file\na,b\n"), (InvalidArgument, Some(0)));
    assert_eq!(failed(Csv, &",".repeat(20_000)), (LimitExceeded, Some(0)));
    assert_eq!(failed(JsonLines, "{\"path\": \"a\"}\n{\"path\": }\n"), (Corrupt, Some(23)));
    assert_eq!(failed(JsonLines, "{\"path\": \"a\"}\n[1]\n").0, Corrupt);
    assert_eq!(failed(JsonLines, "{\"name\": \"a\"}\n"), (Corrupt, Some(0)));
    assert_eq!(failed(JsonLines, "{\"path\": 1}\n"), (Corrupt, Some(0)));
    assert_eq!(failed(JsonLines, "{\"path\": \"\"}\n"), (Corrupt, Some(0)));
    assert_eq!(failed(JsonLines, "{\"path\": \"a\", \"label\": 0.5}\n"), (Corrupt, Some(0)));
    assert_eq!(failed(JsonLines, "{\"path\": \"a\", \"file\": \"b\"}\n"), (Corrupt, Some(0)));

    let options = FileListOptions::default().max_bytes(3);
    let error = FileList::parse("a\nb\n", Lines, "", &options).unwrap_err();
    assert_eq!(error.kind(), LimitExceeded);
    let options = FileListOptions::default().label_column("y");
    let error = FileList::parse("path,x\na,b\n", Csv, "", &options).unwrap_err();
    assert_eq!(error.kind(), InvalidArgument);
    assert!(error.message().contains("\"y\""), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.csv");
    fs::write(&path, "a,1\nb\n").unwrap();
    let error = FileList::open(&path).unwrap_err();
    assert_eq!((error.key(), error.offset()), (path.to_str(), Some(4)));
    let options = FileListOptions::default().max_bytes(3);
    assert_eq!(FileList::open_with(&path, &options).unwrap_err().kind(), LimitExceeded);
    let error = FileList::open(folder.path().join("no.txt")).unwrap_err();
    assert_eq!(error.kind(), NotFound);
}

#[test]
fn a_header_without_a_path_column_is_refused() {
    for (text, columns) in [
        ("photo,label\na.jpg,1\n", "photo, label"),
        ("photo,category\nb/a.jpg,cat\n", "photo, category"),
        ("photo\na.jpg\nb.jpg\n", "photo"),
        ("photo,class,caption\na.jpg,1,x\n", "photo, class, caption"),
        ("\u{feff}Photo,Label\r\nwithout-extension,1\r\n", "Photo, Label"),
    ] {
        let error = parse(text, ListFormat::Csv).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let message = error.message();
        let start =
            format!("line 1: no path column: the columns are {columns}; expected one of path,");
        assert!(message.starts_with(&start), "{message}");
        assert!(
            message.contains("path, file, file_name,") && message.contains("rename the column")
        );
        let is_header = columns.contains("caption");
        assert_eq!(message.contains(" before it"), !is_header, "{message}");
        assert_eq!(Remedy::of(&error), Some(Remedy::ImageField), "{error}");
    }
    let signed = "https://h/a.jpg?sig=canary,a cat,7\n";
    let error = parse(signed, ListFormat::Csv).unwrap_err();
    assert!(error.message().contains("https://h/a.jpg?***, a cat, 7"), "{error}");
    let options = FileListOptions::default().path_column("uri");
    let error = FileList::parse(signed, ListFormat::Csv, "", &options).unwrap_err();
    assert!(!error.report().contains("canary"), "{error}");
    // The suggested columns work.
    for text in ["path,label\nphoto,0\na.jpg,1\n", "image,label\nphoto,0\na.jpg,1\n"] {
        let list = parse(text, ListFormat::Csv).unwrap();
        assert_eq!(files_and_labels(&list)[0], ("data/photo".into(), 0));
    }
    // Files without a header, some without extensions.
    for text in ["a.jpg,1\nb,2\n", "a,1\nb,2\n", "c/a,1\nb.jpg,2\n", "a\n", "x:y\na.jpg\n"] {
        assert!(parse(text, ListFormat::Csv).is_ok(), "{text}");
    }
    let error = parse("{\"photo\": \"a\", \"y\": 1}\n", ListFormat::JsonLines).unwrap_err();
    let words = "no path in this row: expected one of the members path, file, ";
    assert!(error.message().contains(words), "{error}");
    assert!(error.message().contains("; found photo, y"), "{error}");
}

#[test]
fn errors_name_file_line_and_column() {
    use ListFormat::{Csv, JsonLines};
    for (format, text, message) in [
        (Csv, "a,1\nb,2,3\n", "line 2: expected 2 cells in this row, found 3"),
        (Csv, "\u{feff}größe\"x,1\n", "line 1, column 6: quotation mark in an unquoted cell"),
        (Csv, "a,\"1\n\"\nb,\"2\n", "line 3, column 3: closing quotation mark not found"),
        (
            JsonLines,
            "{\"path\": \"a\"}\n{\"path\": }\n",
            "line 2, column 10: the line is not a JSON",
        ),
        (
            JsonLines,
            "{\"path\": \"a\", \"label\": true}\n",
            "line 1: the label must be an integer or a string, found \"true\"",
        ),
    ] {
        let error = parse(text, format).unwrap_err();
        assert!(error.message().starts_with(message), "{}", error.report());
        assert!(!error.report().contains("at line 1"), "{}", error.report());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.csv");
    fs::write(&path, "a,1\nb\n").unwrap();
    let report = FileList::open(&path).unwrap_err().report();
    assert!(report.contains(path.to_str().unwrap()) && report.contains("line 2: "), "{report}");
}

#[test]
fn the_content_hash_does_not_depend_on_the_folder() {
    let hash = |text: &str, folder: &str| {
        let options = FileListOptions::default();
        let list = FileList::parse(text.to_owned(), ListFormat::Lines, folder, &options).unwrap();
        list.content_hash().unwrap()
    };
    assert_eq!(hash("a\nb\n", "x"), hash("a\nb\n", "y"));
    assert_ne!(hash("a\nb\n", "x"), hash("b\na\n", "x"));
}

#[test]
fn a_missing_file_fails_when_it_is_read() {
    let list = parse("a.jpg\n", ListFormat::Lines).unwrap();
    let store = Recording::new([("other", "")]);
    let error = process(list, FetchRecord::new(store.arc())).remove(0).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some("data/a.jpg")));
}

proptest! {
    #[test]
    fn quoted_cells_are_read_back(
        rows in proptest::collection::vec(proptest::collection::vec("[a\",\n\r ä]{0,4}", 2), 1..6)
    ) {
        let quoted = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
        let mut text = "path,b,c\n".to_owned();
        for row in &rows {
            text += &format!("x,{},{}\r\n", quoted(&row[0]), quoted(&row[1]));
        }
        let list = parse(&text, ListFormat::Csv).unwrap();
        prop_assert_eq!(list.len() as usize, rows.len());
        for (item, row) in items(&list).iter().zip(&rows) {
            prop_assert_eq!(known(item, "b"), &cell(&row[0]));
            prop_assert_eq!(known(item, "c"), &cell(&row[1]));
        }
    }

    #[test]
    fn any_text_is_a_list_or_an_error(text in "[a\",\n\r {}:1]{0,60}") {
        for format in [ListFormat::Lines, ListFormat::Csv, ListFormat::JsonLines] {
            if let Ok(list) = parse(&text, format) {
                for index in 0..list.len() {
                    prop_assert!(list.item(index).is_ok());
                }
            }
        }
    }
}
