//! Tests of LMDB files that the Python package `lmdb` wrote.

use std::sync::Arc;

use spdl_core::{Dataset, ErrorKind, Result, block_on};
use spdl_io::datasets::{LmdbDataset, LmdbOptions};
use spdl_io::{FieldValue, MemoryFetcher};

use super::{golden, sample, store};

pub(crate) fn open(fetcher: &Arc<MemoryFetcher>, files: &[&str]) -> Result<LmdbDataset> {
    let options = LmdbOptions::default();
    block_on(LmdbDataset::fetch_files(&(Arc::clone(fetcher) as _), files.to_vec(), &options))
}

#[test]
fn keys_with_extensions_are_grouped() {
    let name = "lmdb/files/data.mdb";
    let fetcher = store(&[name]);
    let samples = open(&fetcher, &[name]).unwrap();
    assert_eq!((samples.len(), samples.shard_lens()), (60, vec![60]));
    for i in 0..60 {
        let record = samples.item(i).unwrap();
        assert_eq!(record.key.as_str(), Some(&*format!("{name}:{i:06}")));
        let fields = sample(&fetcher, &samples, i).unwrap();
        assert_eq!(fields.len(), 3);
        let (jpg, txt, json) = (&fields["jpg"], &fields["txt"], fields.values().nth(1).unwrap());
        // Values of 2,420 bytes are in overflow pages.
        assert_eq!(jpg.as_bytes().unwrap().len(), if i % 20 == 0 { 2420 } else { 200 });
        assert_eq!(*json, FieldValue::Json(serde_json::json!({"id": i})));
        assert_eq!(*txt, FieldValue::Text(format!("größe {i}").into()));
    }
    assert!(samples.item(60).is_err());
}

#[test]
fn keys_with_equal_numbers_are_grouped_and_the_newest_transaction_is_read() {
    let name = "lmdb/pairs/data.mdb";
    let fetcher = store(&[name]);
    let samples = open(&fetcher, &[name]).unwrap();
    assert_eq!(samples.len(), 7);
    let record = samples.item(2).unwrap();
    assert_eq!(record.key.as_str(), Some("lmdb/pairs/data.mdb:000000003"));
    let fields = sample(&fetcher, &samples, 2).unwrap();
    assert_eq!(fields["image"].as_bytes().unwrap().len(), 200 + 37 * 3);
    assert_eq!(fields["label"], FieldValue::Text("word 3".into()));
    // The last sample has no label.
    assert_eq!(samples.item(6).unwrap().names().collect::<Vec<_>>(), ["image"]);
}

#[test]
fn the_other_meta_page_replaces_a_damaged_one() {
    let name = "lmdb/files/data.mdb";
    let mut file = golden(name);
    // One transaction: page 1 is the newer one. With page 0 damaged, the page size is found there.
    file[16] ^= 1;
    let fetcher = Arc::new(MemoryFetcher::from_iter([(name, file.clone())]));
    assert_eq!(open(&fetcher, &[name]).unwrap().len(), 60);
    file[4096 + 16] ^= 1;
    fetcher.insert(name, file.clone());
    let error = open(&fetcher, &[name]).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(0)));
    file[16] ^= 1;
    file[20] = 2;
    fetcher.insert(name, file);
    assert_eq!(open(&fetcher, &[name]).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn other_keys_are_samples_of_one_field() {
    let name = "lmdb/plain.lmdb";
    let fetcher = store(&[name]);
    let samples = open(&fetcher, &[name]).unwrap();
    let record = samples.item(4).unwrap();
    assert_eq!(record.key.as_str(), Some("lmdb/plain.lmdb:0x00000004"));
    let fields = sample(&fetcher, &samples, 4).unwrap();
    assert_eq!(fields.len(), 1);
    let image = fields["image"].as_bytes().unwrap();
    assert!(image.starts_with(b"\x89PNG") && image.len() == 8 + 200 + 37 * 4);
}

#[test]
fn an_empty_database_has_no_samples() {
    let name = "lmdb/empty/data.mdb";
    assert_eq!(open(&store(&[name]), &[name]).unwrap().len(), 0);
}

#[test]
fn pickles_messages_of_caffe_and_named_databases_are_unsupported() {
    for (name, word) in [("pickle", "pickle"), ("datum", "Caffe"), ("named", "'train'")] {
        let name = format!("lmdb/{name}/data.mdb");
        let error = open(&store(&[&name]), &[&name]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert!(
            error.message().contains(word) && error.key().unwrap().starts_with(&name),
            "{error}"
        );
    }
    let name = "lmdb/files/data.mdb";
    let mut file = golden(name);
    // The flags of the main database.
    file[4096 + 92] = 4;
    let fetcher = Arc::new(MemoryFetcher::from_iter([(name, file)]));
    let error = open(&fetcher, &[name]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("dupsort"), "{error}");
}

#[test]
fn cycles_and_page_numbers_out_of_range_are_errors() {
    let name = "lmdb/files/data.mdb";
    let golden = golden(name);
    let word = |at: usize| u64::from_le_bytes(*golden[at..].first_chunk().unwrap());
    let root = word(4096 + 128) as usize * 4096;
    let node = usize::from(u16::from_le_bytes([golden[root + 16], golden[root + 17]]));
    let check = |at: usize, bytes: &[u8], kind: ErrorKind, words: &str| {
        let mut file = golden.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        let fetcher = Arc::new(MemoryFetcher::from_iter([(name, file)]));
        let error = open(&fetcher, &[name]).unwrap_err();
        assert_eq!((error.kind(), error.key()), (kind, Some(name)), "{}", error.report());
        assert!(error.message().contains(words), "{error}");
    };
    // The first child is the root itself, page 1, or a page that does not exist.
    let own = (root / 4096) as u16;
    check(root + node, &own.to_le_bytes(), ErrorKind::Corrupt, "flags");
    check(root + node, &1_u16.to_le_bytes(), ErrorKind::Corrupt, "out of range");
    check(root + node, &200_u16.to_le_bytes(), ErrorKind::Corrupt, "out of range");
    // A deeper tree would visit the root forever.
    let mut deep = golden.clone();
    deep[4096 + 94] = 32;
    let count = usize::from(u16::from_le_bytes([golden[root + 12], golden[root + 13]]) - 16) / 2;
    for at in 0..count {
        let pointer = root + 16 + 2 * at;
        let node = root + usize::from(u16::from_le_bytes([deep[pointer], deep[pointer + 1]]));
        deep[node..node + 2].copy_from_slice(&own.to_le_bytes());
    }
    let fetcher = Arc::new(MemoryFetcher::from_iter([(name, deep)]));
    let error = open(&fetcher, &[name]).unwrap_err();
    assert!(error.message().contains("several parents"), "{error}");
    // The number of entries, the depth, and a file without its last pages.
    check(4096 + 120, &[7], ErrorKind::Corrupt, "expected 7");
    check(4096 + 94, &[0], ErrorKind::Corrupt, "depth");
    let fetcher = Arc::new(MemoryFetcher::from_iter([(name, golden[..12 * 4096].to_vec())]));
    assert_eq!(open(&fetcher, &[name]).unwrap_err().kind(), ErrorKind::Truncated);
}

#[test]
fn a_folder_of_a_store_may_have_any_name() {
    let fetcher =
        MemoryFetcher::from_iter([("x/train_lmdb/data.mdb", golden("lmdb/files/data.mdb"))]);
    let fetcher = Arc::new(fetcher);
    assert_eq!(open(&fetcher, &["x/train_lmdb"]).unwrap().len(), 60);
    let error = open(&fetcher, &["x/val_lmdb"]).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some("x/val_lmdb")));
}
