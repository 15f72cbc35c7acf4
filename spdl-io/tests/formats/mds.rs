//! Tests of MDS shards that MosaicML's `MDSWriter` wrote.

use std::sync::Arc;

use spdl_core::{Dataset, ErrorKind, Result, block_on};
use spdl_io::archive::NpyType;
use spdl_io::datasets::{MdsDataset, MdsOptions};
use spdl_io::records::FieldRequest;
use spdl_io::{FieldValue, MemoryFetcher};

use super::{folder, golden, read, sample};

pub(crate) fn open(fetcher: &Arc<MemoryFetcher>, folder: &str) -> Result<MdsDataset> {
    open_with(fetcher, folder, MdsOptions::default())
}

fn open_with(
    fetcher: &Arc<MemoryFetcher>,
    folder: &str,
    options: MdsOptions,
) -> Result<MdsDataset> {
    block_on(MdsDataset::fetch(&(Arc::clone(fetcher) as _), folder, &options))
}

#[test]
fn columns_have_the_written_values() {
    let fetcher = folder("mds/plain");
    let samples = open(&fetcher, "mds/plain/").unwrap();
    assert_eq!((samples.len(), samples.shard_lens()), (5, vec![3, 2]));
    for i in 0..5_u8 {
        let found = sample(&fetcher, &samples, i.into()).unwrap();
        let number = i64::from(i);
        let float = f64::from(i);
        let expected = [
            ("label", FieldValue::Integer(number - 1)),
            ("i8", FieldValue::Integer(-number)),
            ("i16", FieldValue::Integer(-number * 300)),
            ("u16", FieldValue::Integer(60_000 + number)),
            ("u32", FieldValue::Integer(4_000_000_000 + number)),
            ("u64", FieldValue::Integer(number)),
            ("digits", FieldValue::Integer(123_456 + number)),
            ("f16", FieldValue::Float(0.5 * float)),
            ("f32", FieldValue::Float(0.25 * float)),
            ("f64", FieldValue::Float(0.1 * float)),
            ("decimal", FieldValue::Float(1.5 * float)),
            ("text", FieldValue::Text(format!("größe {i}").into())),
            ("info", FieldValue::Json(serde_json::json!({"id": i, "tags": ["a", null]}))),
        ];
        for (name, value) in expected {
            assert_eq!(found[name], value, "{name} of {i}");
        }
        assert_eq!(found["blob"].as_bytes().unwrap().len(), 200 + 37 * usize::from(i));
        assert!(found["image"].as_bytes().unwrap().starts_with(b"\x89PNG"));
        let array = |name: &str| match &found[name] {
            FieldValue::Array(array) => {
                (array.element(), array.shape().to_vec(), array.data().to_vec())
            }
            other => panic!("{name} is {other:?}"),
        };
        let numbers: Vec<u8> = (0..=i).collect();
        assert_eq!(array("array"), (NpyType::UInt(1), vec![1, usize::from(i) + 1], numbers));
        let floats = [f32::from(i), 0.5, -1.0, 2.0].map(f32::to_le_bytes).concat();
        assert_eq!(array("array_f32"), (NpyType::Float(4), vec![2, 2], floats));
        let shorts = [1, 2, 3, -4, -5, i16::from(i)].map(i16::to_le_bytes).concat();
        assert_eq!(array("array_2x3"), (NpyType::Int(2), vec![2, 3], shorts));
        assert_eq!(array("pil"), (NpyType::UInt(1), vec![2, 2], vec![i; 4]));
        assert_eq!(found.len(), 19);
    }
    assert_eq!(samples.item(4).unwrap().key.as_str(), Some("mds/plain/shard.00001.mds:1"));
}

#[test]
fn only_requested_columns_are_decoded() {
    let fetcher = folder("mds/pickle");
    let samples = open(&fetcher, "mds/pickle").unwrap();
    let item = samples.item(0).unwrap();
    let label = FieldRequest::all(1 << 20).only(["label"]);
    assert_eq!(read(&fetcher, &item, &label).unwrap()["label"], FieldValue::Integer(1));
    let error = read(&fetcher, &item, &FieldRequest::all(1 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("object"), "{error}");
}

fn check_small(name: &str, options: MdsOptions) {
    let fetcher = folder(name);
    let samples = open_with(&fetcher, name, options).unwrap();
    assert_eq!(samples.shard_lens(), [3, 2]);
    let plain = folder("mds/plain");
    let originals = open(&plain, "mds/plain").unwrap();
    for i in [4, 0, 3, 1, 2] {
        let found = sample(&fetcher, &samples, i).unwrap();
        assert_eq!(found["label"], FieldValue::Integer(i as i64));
        assert_eq!(found["blob"], sample(&plain, &originals, i).unwrap()["blob"]);
    }
}

#[cfg(feature = "zstd")]
#[test]
fn shards_compressed_by_zstandard_are_read() {
    check_small("mds/zstd", MdsOptions::default());
    // Without a cache.
    check_small("mds/zstd", MdsOptions::default().cache_bytes(0));
}

#[cfg(feature = "gzip")]
#[test]
fn shards_compressed_by_gzip_are_read() {
    check_small("mds/gz", MdsOptions::default());
}

#[test]
fn other_compressions_are_unsupported() {
    let error = open(&folder("mds/br"), "mds/br").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("br"), "{error}");
}

/// The data set `name`, with `from` replaced by `to` in its index.
fn changed(name: &str, from: &str, to: &str) -> Arc<MemoryFetcher> {
    let fetcher = folder(name);
    let index = format!("{name}/index.json");
    let text = String::from_utf8(golden(&index)).unwrap();
    assert!(text.contains(from), "{from}");
    fetcher.insert(index.as_str(), text.replacen(from, to, 1));
    fetcher
}

#[test]
fn names_outside_of_the_folder_are_refused() {
    for name in ["../../etc/passwd", "/etc/passwd", "a/../../b"] {
        let fetcher = changed("mds/plain", "shard.00000.mds", name);
        let error = open(&fetcher, "mds/plain").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
    }
}

#[test]
fn other_versions_and_formats_are_unsupported() {
    let cases =
        [("\"version\": 2", "\"version\": 3"), ("\"format\": \"mds\"", "\"format\": \"csv\"")];
    for (from, to) in cases {
        let error = open(&changed("mds/plain", from, to), "mds/plain").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{to}");
    }
    let fetcher = Arc::new([("x/index.json", "{\"shards\": 7}")].into_iter().collect());
    assert_eq!(open(&fetcher, "x").unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(open(&fetcher, "y").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn an_index_that_contradicts_a_shard_is_corrupt() {
    let fetcher = changed("mds/plain", "\"samples\": 3", "\"samples\": 4");
    let samples = open(&fetcher, "mds/plain").unwrap();
    let error = sample(&fetcher, &samples, 0).unwrap_err();
    assert_eq!(
        (error.kind(), error.key()),
        (ErrorKind::Corrupt, Some("mds/plain/shard.00000.mds"))
    );
    // The shard is too small for so many samples.
    let fetcher = changed("mds/plain", "\"samples\": 3", "\"samples\": 4000000000");
    let samples = open(&fetcher, "mds/plain").unwrap();
    assert_eq!(sample(&fetcher, &samples, 0).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[cfg(feature = "zstd")]
#[test]
fn hashes_of_compressed_shards_are_verified() {
    let shard = "mds/zstd/shard.00000.mds.zstd";
    for sum in ["389f3c3f98cb743f", "6558ad7eaa5c931ad36c1e917bce59e2", "af7d5190213182f4"] {
        let fetcher = changed("mds/zstd", sum, &sum.replace('3', "4").replace('5', "6"));
        let samples = open(&fetcher, "mds/zstd").unwrap();
        let error = sample(&fetcher, &samples, 0).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some(shard)), "{sum}");
        assert!(error.message().contains("mismatch of"), "{error}");
        assert!(sample(&fetcher, &samples, 3).is_ok());
    }
}

#[cfg(feature = "zstd")]
#[test]
fn a_shard_above_the_limit_is_not_read() {
    let fetcher = folder("mds/zstd");
    let options = MdsOptions::default().max_shard_bytes(950);
    let samples = open_with(&fetcher, "mds/zstd", options).unwrap();
    assert_eq!(sample(&fetcher, &samples, 0).unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert!(sample(&fetcher, &samples, 4).is_ok());
    // The decompressed shard is larger than in the index.
    let fetcher = changed("mds/zstd", "\"bytes\": 985", "\"bytes\": 100");
    let samples = open(&fetcher, "mds/zstd").unwrap();
    assert_eq!(sample(&fetcher, &samples, 0).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn a_sample_above_the_limit_is_not_read() {
    let fetcher = folder("mds/plain");
    let samples = open(&fetcher, "mds/plain").unwrap();
    let error = read(&fetcher, &samples.item(0).unwrap(), &FieldRequest::all(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn a_damaged_sample_is_an_error_with_key_and_offset() {
    let fetcher = folder("mds/plain");
    let samples = open(&fetcher, "mds/plain").unwrap();
    let key = "mds/plain/shard.00000.mds";
    let mut shard = golden(key);
    let second = u32::from_le_bytes(shard[8..12].try_into().unwrap());
    // An impossible column size.
    shard[second as usize + 3] = 0x7F;
    fetcher.insert(key, shard);
    assert!(sample(&fetcher, &samples, 0).is_ok());
    let error = sample(&fetcher, &samples, 1).unwrap_err();
    assert_eq!(
        (error.kind(), error.key()),
        (ErrorKind::Corrupt, Some("mds/plain/shard.00000.mds:1"))
    );
    assert!(error.offset().unwrap() >= u64::from(second));
}

// promise: R4
#[test]
fn the_memory_of_a_sample_is_known_before_its_read() {
    for name in [
        "mds/plain",
        #[cfg(feature = "zstd")]
        "mds/zstd",
    ] {
        let fetcher = folder(name);
        let samples = open(&fetcher, name).unwrap();
        let row = samples.item(1).unwrap().row.unwrap();
        let request = FieldRequest::all(1 << 20);
        let bytes = block_on(row.group.row_bytes(&(fetcher as _), row.row, &request));
        let bytes = bytes.unwrap().unwrap();
        assert!((10..10_000).contains(&bytes), "{name}: {bytes}");
    }
}
