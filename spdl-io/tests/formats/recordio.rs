//! Tests of RecordIO files that MXNet wrote.

use std::sync::Arc;

use spdl_core::{Dataset, ErrorKind, Result, block_on};
use spdl_io::datasets::{RecordIoDataset, RecordIoOptions};
use spdl_io::records::FieldRequest;
use spdl_io::{FieldValue, MemoryFetcher};

use super::{Fields, bytes, golden, read, sample, store};

const A: &str = "recordio/a.rec";
const INDEX: &str = "recordio/a.idx";
const LABELS: &str = "recordio/labels.rec";

const MAGIC: [u8; 4] = [0x0A, 0x23, 0xD7, 0xCE];

pub(crate) fn open(fetcher: &Arc<MemoryFetcher>, files: &[&str]) -> Result<RecordIoDataset> {
    let options = RecordIoOptions::default();
    block_on(RecordIoDataset::fetch_files(&(Arc::clone(fetcher) as _), files.to_vec(), &options))
}

fn check_values(fetcher: &Arc<MemoryFetcher>, samples: &RecordIoDataset) {
    let labels = [
        FieldValue::Integer(0),
        FieldValue::Integer(1),
        FieldValue::Float(2.5),
        FieldValue::Integer(-3),
        FieldValue::Integer(4),
    ];
    // Records with the magic number consist of several parts.
    let image = golden(A)[32..232].to_vec();
    let images = [
        image,
        Vec::new(),
        MAGIC.to_vec(),
        [&b"abcd"[..], &MAGIC, b"ef"].concat(),
        MAGIC.repeat(2),
    ];
    assert_eq!(samples.len(), 5);
    for (i, (label, image)) in labels.into_iter().zip(images).enumerate() {
        let found = sample(fetcher, samples, i as u64).unwrap();
        let expected =
            [("image", bytes(&image)), ("label", label), ("id", FieldValue::Integer(7 + i as i64))];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(found, Fields::from(expected), "record {i}");
    }
}

#[test]
fn records_have_the_written_values_with_and_without_an_index() {
    for names in [&[A][..], &[A, INDEX]] {
        let fetcher = store(names);
        check_values(&fetcher, &open(&fetcher, &[A]).unwrap());
    }
}

#[test]
fn an_index_may_be_unsorted_and_incomplete_and_is_ignored_if_it_does_not_fit() {
    let fetcher = store(&[A]);
    let text = String::from_utf8(golden(INDEX)).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.reverse();
    fetcher.insert(INDEX, lines.join("\n"));
    check_values(&fetcher, &open(&fetcher, &[A]).unwrap());
    for other in ["0\t0\n1\t400", "0\t2", "what", ""] {
        fetcher.insert(INDEX, other);
        check_values(&fetcher, &open(&fetcher, &[A]).unwrap());
    }
    // Only the listed records are samples.
    fetcher.insert(INDEX, "3\t304\n1\t232\n");
    let samples = open(&fetcher, &[A]).unwrap();
    let labels = [0, 1].map(|at| sample(&fetcher, &samples, at).unwrap().remove("label").unwrap());
    assert_eq!(labels, [FieldValue::Integer(1), FieldValue::Integer(-3)]);
    assert_eq!(samples.len(), 2);
    fetcher.insert(INDEX, "0\t4\n");
    let error = open(&fetcher, &[A]).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(4)));
    assert!(error.message().contains(".idx"), "{error}");
}

#[test]
fn several_labels_are_a_list() {
    let fetcher = store(&[LABELS]);
    let samples = open(&fetcher, &[LABELS]).unwrap();
    let names: Vec<_> = samples.item(2).unwrap().names().map(str::to_owned).collect();
    assert_eq!(names, ["image", "label", "labels", "id"]);
    let found = sample(&fetcher, &samples, 0).unwrap();
    assert_eq!(found["label"], FieldValue::Float(0.5));
    let found = sample(&fetcher, &samples, 2).unwrap();
    assert_eq!(found["labels"], FieldValue::Floats(vec![0.5, 1.5, 2.5]));
    assert_eq!((&found["id"], &found["id2"]), (&FieldValue::Integer(2), &FieldValue::Integer(4)));
    assert!(!found.contains_key("label"));
}

#[test]
fn only_requested_fields_are_read_and_large_records_are_refused() {
    let fetcher = store(&[A]);
    let item = open(&fetcher, &[A]).unwrap().item(0).unwrap();
    let found = read(&fetcher, &item, &FieldRequest::all(200).only(["label"])).unwrap();
    assert_eq!(found.len(), 1);
    let error = read(&fetcher, &item, &FieldRequest::all(160)).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::LimitExceeded, Some("recordio/a.rec:0")));
}

#[test]
fn a_truncated_file_and_parts_in_the_wrong_order_are_errors() {
    let file = golden(A);
    for len in [1, 7, 200, 231, 396, 399] {
        let fetcher = Arc::new(MemoryFetcher::from_iter([(A, file[..len].to_vec())]));
        let error = open(&fetcher, &[A]).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Truncated, Some(A)), "{len}");
    }
    // The file ends between the parts of a record.
    let fetcher = Arc::new(MemoryFetcher::from_iter([(A, file[..384].to_vec())]));
    assert_eq!(open(&fetcher, &[A]).unwrap_err().kind(), ErrorKind::Truncated);
    // The kind of the part is in the highest three bits.
    for (at, kind) in [(7, 2), (7, 3), (7, 5), (303, 1), (271, 0)] {
        let mut file = file.clone();
        file[at] = kind << 5;
        let fetcher = Arc::new(MemoryFetcher::from_iter([(A, file)]));
        let error = open(&fetcher, &[A]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {}", error.report());
    }
}
