//! Tests of TFRecord files that the Python package `tfrecord` wrote.

use std::sync::Arc;

use spdl_core::{Dataset, ErrorKind, Result, block_on};
use spdl_io::datasets::{TfRecordDataset, TfRecordOptions};
use spdl_io::records::FieldRequest;
use spdl_io::{Bytes, Fetcher, FieldValue, MemoryFetcher};

use super::{bytes, read, sample, store};

const A: &str = "tfrecord/a.tfrecord";
const B: &str = "tfrecord/b.tfrecord";
const INDEX: &str = "tfrecord/b.tfrecord.idx";

pub(crate) fn open(fetcher: &Arc<MemoryFetcher>, files: &[&str]) -> Result<TfRecordDataset> {
    open_with(fetcher, files, TfRecordOptions::default())
}

fn open_with(
    fetcher: &Arc<MemoryFetcher>,
    files: &[&str],
    options: TfRecordOptions,
) -> Result<TfRecordDataset> {
    block_on(TfRecordDataset::fetch_files(
        &(Arc::clone(fetcher) as _),
        files.iter().copied(),
        &options,
    ))
}

#[test]
fn features_have_the_written_values() {
    let fetcher = store(&[A, B, INDEX]);
    let samples = open(&fetcher, &[A, B]).unwrap();
    assert_eq!((samples.len(), samples.shard_lens()), (8, vec![5, 3]));
    let names: Vec<_> = samples.item(0).unwrap().names().map(str::to_owned).collect();
    assert_eq!(names.len(), 7);
    for i in 0..8_u8 {
        let item = samples.item(i.into()).unwrap();
        let key = if i < 5 { format!("{A}:{i}") } else { format!("{B}:{}", i - 5) };
        assert_eq!(item.key.as_str(), Some(&*key));
        let found = sample(&fetcher, &samples, i.into()).unwrap();
        let image = found["image/encoded"].as_bytes().unwrap();
        assert_eq!(image.len(), 200 + 37 * usize::from(i));
        let tokens: Vec<i64> = (0..i.into()).collect();
        let tokens = if i == 1 { FieldValue::Integer(0) } else { FieldValue::Integers(tokens) };
        assert_eq!(found["image/class/label"], FieldValue::Integer(i64::from(i) - 2));
        assert_eq!(found["image/class/text"], bytes(format!("class {i}").as_bytes()));
        assert_eq!(found["boxes"], FieldValue::Floats(vec![0.5 * f64::from(i), 0.25, -1.5]));
        assert_eq!(found["score"], FieldValue::Float(0.125 * f64::from(i)));
        assert_eq!(found["tokens"], tokens);
        assert_eq!(found["parts"], FieldValue::List(vec![bytes(b"a"), bytes(b""), bytes(&[i])]));
        assert_eq!(found.len(), names.len());
    }
    assert_eq!(samples.item(8).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn only_requested_features_are_read() {
    let fetcher = store(&[A]);
    let samples = open(&fetcher, &[A]).unwrap();
    let request = FieldRequest::all(1 << 20).only(["score", "none"]);
    let found = read(&fetcher, &samples.item(2).unwrap(), &request).unwrap();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [("score".into(), FieldValue::Float(0.25))]);
}

#[test]
fn sequence_features_are_lists() {
    let name = "tfrecord/sequence.tfrecord";
    let fetcher = store(&[name]);
    let samples = open(&fetcher, &[name]).unwrap();
    let found = sample(&fetcher, &samples, 1).unwrap();
    assert_eq!(found["length"], FieldValue::Integer(2));
    assert_eq!(found["frames"], FieldValue::List(vec![bytes(b"f0"), bytes(b"f1")]));
    let ids = vec![FieldValue::Integers(vec![1, 2]), FieldValue::Integer(3)];
    assert_eq!(found["ids"], FieldValue::List(ids));
}

#[test]
fn unusual_but_valid_messages_are_read() {
    let name = "tfrecord/unpacked.tfrecord";
    let fetcher = store(&[name]);
    let samples = open(&fetcher, &[name]).unwrap();
    let found = sample(&fetcher, &samples, 0).unwrap();
    assert_eq!(found["ints"], FieldValue::Integers(vec![5, -1]));
    assert_eq!(found["floats"], FieldValue::Floats(vec![1.5, -2.0]));
    assert_eq!(found["none"], FieldValue::Null);
    // The last of two features with the same name is used.
    assert_eq!(found["twice"], bytes(b"2"));
}

#[test]
fn an_index_gives_the_same_records() {
    let (with, without) = (store(&[B, INDEX]), store(&[B]));
    let walked = open(&without, &[B]).unwrap();
    let by_index = open(&with, &[B]).unwrap();
    assert_eq!(by_index.content_hash(), walked.content_hash());
    // The index is used: it finds the records of a file with a damaged header.
    let mut damaged = super::golden(B);
    let second = by_index_offset(1);
    damaged[second] ^= 1;
    with.insert(B, damaged.clone());
    without.insert(B, damaged);
    assert_eq!(open(&with, &[B]).unwrap().len(), 3);
    let error = open(&without, &[B]).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(second as u64)));
}

fn by_index_offset(record: usize) -> usize {
    let text = String::from_utf8(super::golden(INDEX)).unwrap();
    let line = text.lines().nth(record).unwrap();
    line.split_once(' ').unwrap().0.parse().unwrap()
}

#[test]
fn an_index_that_does_not_match_is_ignored() {
    for index in ["", "0 100\n", "5 1849\n", "0 1854 1\n", "zero 1854\n", "0 1853\n"] {
        let fetcher = store(&[B]);
        fetcher.insert(INDEX, index.to_owned());
        assert_eq!(open(&fetcher, &[B]).unwrap().len(), 3, "{index:?}");
    }
}

#[test]
fn a_checksum_mismatch_is_an_error_with_key_and_offset() {
    let fetcher = store(&[A]);
    let samples = open(&fetcher, &[A]).unwrap();
    let mut file = super::golden(A);
    let start = {
        // The second record starts after the first.
        let len = u64::from_le_bytes(*file.first_chunk().unwrap());
        len as usize + 16
    };
    file[start + 12 + 30] ^= 4;
    fetcher.insert(A, file);
    assert!(sample(&fetcher, &samples, 0).is_ok());
    let error = sample(&fetcher, &samples, 1).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(start as u64 + 12)));
    assert_eq!(error.key(), Some("tfrecord/a.tfrecord:1"));
    let lenient = open_with(&fetcher, &[A], TfRecordOptions::default().verify(false)).unwrap();
    assert!(sample(&fetcher, &lenient, 2).is_ok());
}

#[test]
fn a_truncated_file_is_an_error() {
    let file = super::golden(A);
    for cut in [1, 5, 16, file.len() / 2] {
        let fetcher = store(&[A]);
        fetcher.insert(A, file[..file.len() - cut].to_vec());
        let error = open(&fetcher, &[A]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated, "{cut}");
        assert_eq!(error.key(), Some(A));
    }
    let fetcher = store(&[A]);
    fetcher.insert(A, Bytes::new());
    assert_eq!(open(&fetcher, &[A]).unwrap().len(), 0);
}

#[test]
fn a_compressed_file_is_unsupported() {
    let fetcher = store(&[]);
    fetcher.insert("x.tfrecord.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03some compressed bytes".to_vec());
    let error = open(&fetcher, &["x.tfrecord.gz"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("gzip"), "{error}");
}

#[test]
fn a_record_above_the_limit_is_not_read() {
    let fetcher = store(&[A]);
    let samples = open(&fetcher, &[A]).unwrap();
    let item = samples.item(4).unwrap();
    let error = read(&fetcher, &item, &FieldRequest::all(100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn raw_records_are_bytes() {
    let fetcher = store(&[A]);
    let samples = open_with(&fetcher, &[A], TfRecordOptions::default().raw(true)).unwrap();
    let found = sample(&fetcher, &samples, 0).unwrap();
    let file = super::golden(A);
    let len = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    assert_eq!(found["record"], bytes(&file[12..12 + len]));
}

#[test]
fn the_content_hash_depends_on_files_not_on_folders() {
    let fetcher = store(&[A, B]);
    fetcher.insert("elsewhere/a.tfrecord", super::golden(A));
    let hash = |files: &[&str]| open(&fetcher, files).unwrap().content_hash().unwrap();
    assert_eq!(hash(&[A]), hash(&["elsewhere/a.tfrecord"]));
    assert_ne!(hash(&[A]), hash(&[B]));
    assert_ne!(hash(&[A, B]), hash(&[B, A]));
}

#[cfg(feature = "local")]
#[test]
fn patterns_do_not_match_index_files() {
    let folder = tempfile::tempdir().unwrap();
    for name in [A, B, INDEX] {
        let file = name.rsplit('/').next().unwrap();
        std::fs::write(folder.path().join(file), super::golden(name)).unwrap();
    }
    let root = folder.path().to_str().unwrap();
    for pattern in ["", "/*", "/{a,b}.tfrecord", "/?.tfrecord*"] {
        let samples = TfRecordDataset::open(&format!("{root}{pattern}")).unwrap();
        assert_eq!(samples.shard_lens(), [5, 3], "{pattern}");
    }
    let error = TfRecordDataset::open(&format!("{root}/*.nothing")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);

    let store: Arc<dyn spdl_io::Fetcher> = store(&[A, B, INDEX]);
    let options = TfRecordOptions::default();
    for pattern in ["tfrecord/", "tfrecord/*", "tfrecord/{a,b}.tfrecord"] {
        let samples = block_on(TfRecordDataset::fetch(&store, pattern, &options)).unwrap();
        assert_eq!(samples.shard_lens(), [5, 3], "{pattern}");
    }
}

// promise: R4
#[test]
fn the_memory_of_a_record_is_known_before_its_read() {
    let fetcher = store(&[A]);
    let samples = open(&fetcher, &[A]).unwrap();
    let mut all = 0;
    for number in 0..samples.len() {
        let row = samples.item(number).unwrap().row.unwrap();
        let (store, request) = (Arc::clone(&fetcher) as _, FieldRequest::all(1 << 20));
        let bytes = block_on(row.group.row_bytes(&store, row.row, &request));
        all += bytes.unwrap().unwrap();
    }
    let file = block_on(fetcher.read(&A.into(), None)).unwrap();
    assert_eq!(all, file.len() as u64);
}
