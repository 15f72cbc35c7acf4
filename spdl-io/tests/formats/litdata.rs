//! Tests of data sets that LitData's `BinaryWriter` wrote.

use std::sync::Arc;

use spdl_core::{Dataset, ErrorKind, Result, block_on};
use spdl_io::archive::NpyType;
use spdl_io::datasets::{LitDataset, MdsOptions};
use spdl_io::records::FieldRequest;
use spdl_io::{FieldValue, MemoryFetcher};

use super::{bytes, folder, golden, read, sample};

pub(crate) fn open(fetcher: &Arc<MemoryFetcher>, folder: &str) -> Result<LitDataset> {
    open_with(fetcher, folder, &MdsOptions::default())
}

fn open_with(
    fetcher: &Arc<MemoryFetcher>,
    folder: &str,
    options: &MdsOptions,
) -> Result<LitDataset> {
    block_on(LitDataset::fetch(&(Arc::clone(fetcher) as _), folder, options))
}

/// The bytes of the field `blob` of sample `index` of `mds/plain`, which the same script wrote.
fn blob(index: u64) -> FieldValue {
    let fetcher = folder("mds/plain");
    let samples = super::mds::open(&fetcher, "mds/plain").unwrap();
    sample(&fetcher, &samples, index).unwrap().remove("blob").unwrap()
}

fn json(value: serde_json::Value) -> FieldValue {
    FieldValue::Json(value)
}

#[test]
fn leaves_have_the_written_values() {
    let fetcher = folder("litdata/plain");
    let samples = open(&fetcher, "litdata/plain/").unwrap();
    assert_eq!((samples.len(), samples.shard_lens()), (5, vec![3, 2]));
    for i in 0..5_u8 {
        let found = sample(&fetcher, &samples, i.into()).unwrap();
        let number = i64::from(i);
        let expected = [
            ("blob", blob(i.into())),
            ("flag", FieldValue::Bool(i % 2 == 0)),
            ("info.id", FieldValue::Integer(number)),
            ("info.score", FieldValue::Float(0.1 * f64::from(i))),
            ("label", FieldValue::Integer(number - 1)),
            ("marks", json(serde_json::json!([true, i % 2 == 0]))),
            ("mixed", json(serde_json::json!([i, ["a", null]]))),
            ("scores", FieldValue::Floats(vec![0.5, f64::INFINITY])),
            ("tags", FieldValue::Integers(vec![number, number + 1])),
            ("words", json(serde_json::json!(["a", "ß"]))),
            ("text", FieldValue::Text(format!("größe {i}").into())),
        ];
        for (name, value) in expected {
            assert_eq!(found[name], value, "{name} of {i}");
        }
        assert!(found["image"].as_bytes().unwrap().starts_with(b"\x89PNG"));
        assert!(found["photo"].as_bytes().unwrap().starts_with(b"\xFF\xD8\xFF"));
        let array = |name: &str| match &found[name] {
            FieldValue::Array(array) => {
                (array.element(), array.shape().to_vec(), array.data().to_vec())
            }
            other => panic!("{name} is {other:?}"),
        };
        let count = usize::from(i);
        let boxes = [f32::from(i), 1.0, 2.0, 3.5].map(f32::to_le_bytes).concat().repeat(count);
        assert_eq!(array("boxes"), (NpyType::Float(4), vec![count, 4], boxes));
        let ids = (0..number).flat_map(i64::to_le_bytes).collect();
        assert_eq!(array("ids"), (NpyType::Int(8), vec![count], ids));
        let pixels = (0..2 * i32::from(i)).flat_map(i32::to_le_bytes).collect();
        assert_eq!(array("pixels"), (NpyType::Int(4), vec![2, count], pixels));
        // Half precision: 0.5 i for i up to 4, and -1.
        let half = [[0, 0], [0, 0x38], [0, 0x3C], [0, 0x3E], [0, 0x40]][count];
        assert_eq!(array("weights"), (NpyType::Float(2), vec![2], [half, [0, 0xBC]].concat()));
        assert_eq!(array("pil"), (NpyType::UInt(1), vec![2, 2], vec![i; 4]));
        let row = serde_json::json!({"a": i, "b": "ß", "c": null, "d": 0.5, "e": true});
        assert_eq!(found["rows"], json(vec![row; count].into()));
        assert_eq!(found.len(), 19);
    }
    assert_eq!(samples.item(4).unwrap().key.as_str(), Some("litdata/plain/chunk-0-1.bin:1"));
}

#[test]
fn parts_of_tuples_and_dictionaries_have_paths_as_names() {
    let fetcher = folder("litdata/tuple");
    let samples = open(&fetcher, "litdata/tuple").unwrap();
    let found = sample(&fetcher, &samples, 3).unwrap();
    let expected = [
        ("0", blob(3)),
        ("1.a", FieldValue::Integer(3)),
        ("1.b.0", FieldValue::Integer(3)),
        ("1.b.1", FieldValue::Float(0.5)),
    ];
    assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value)).into());
    // A description that is not JSON, as that of early versions, is not read: leaves are numbered.
    let fetcher = changed("litdata/tuple", "\"[1, {", "\"gASV[1, {");
    let samples = open(&fetcher, "litdata/tuple").unwrap();
    let found = sample(&fetcher, &samples, 3).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
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
fn sizes_without_the_offsets_are_accepted() {
    // Early versions store the size of the samples only.
    for (name, from, to) in [
        ("litdata/plain", "3852", "3832"),
        #[cfg(feature = "zstd")]
        ("litdata/zstd", "779", "759"),
    ] {
        let fetcher = changed(name, from, to);
        let samples = open(&fetcher, name).unwrap();
        sample(&fetcher, &samples, 2).unwrap();
    }
}

#[cfg(feature = "zstd")]
#[test]
fn chunks_groups_and_samples_compressed_by_zstandard_are_read() {
    for name in ["litdata/zstd", "litdata/batch", "litdata/sample"] {
        for options in [MdsOptions::default(), MdsOptions::default().cache_bytes(0)] {
            let fetcher = folder(name);
            let samples = open_with(&fetcher, name, &options).unwrap();
            assert_eq!(samples.shard_lens(), [3, 2], "{name}");
            for i in [4, 0, 3, 1, 2] {
                let found = sample(&fetcher, &samples, i).unwrap();
                assert_eq!(found["label"], FieldValue::Integer(i as i64), "{name}");
                assert_eq!(found["blob"], blob(i), "{name}");
            }
        }
        // Of a whole chunk or group, and of a sample.
        let fetcher = folder(name);
        let samples =
            open_with(&fetcher, name, &MdsOptions::default().max_shard_bytes(100)).unwrap();
        let result = sample(&fetcher, &samples, 2);
        assert_eq!(result.is_err(), name != "litdata/sample", "{name}");
        let item = open(&fetcher, name).unwrap().item(2).unwrap();
        let error = read(&fetcher, &item, &FieldRequest::all(100)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{name}");
    }
}

#[test]
fn pickles_are_refused_and_other_leaves_are_read() {
    let fetcher = folder("litdata/pickle");
    let samples = open(&fetcher, "litdata/pickle").unwrap();
    let item = samples.item(0).unwrap();
    let label = FieldRequest::all(1 << 20).only(["label", "blob"]);
    let found = read(&fetcher, &item, &label).unwrap();
    assert_eq!((&found["label"], &found["blob"]), (&FieldValue::Integer(1), &bytes(b"x")));
    let error = read(&fetcher, &item, &FieldRequest::all(1 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("object") && error.message().contains("pickle"), "{error}");
}

#[test]
fn arrow_tables_other_loaders_and_encryption_are_unsupported() {
    let fetcher = folder("litdata/arrow");
    let samples = open(&fetcher, "litdata/arrow").unwrap();
    let error = sample(&fetcher, &samples, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("Arrow"), "{error}");
    for (from, to, word) in [
        ("\"PyTreeLoader\"", "\"TokensLoader\"", "TokensLoader"),
        ("\"dim\": null", "\"dim\": 1000", "TokensLoader"),
        ("\"PyTreeLoader\"", "\"ParquetLoader\"", "Parquet"),
        ("\"encryption\": null", "\"encryption\": {\"level\": \"sample\"}", "encrypted"),
        ("\"compression\": null", "\"compression\": \"lz4\"", "lz4"),
    ] {
        let error = open(&changed("litdata/plain", from, to), "litdata/plain").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{to}");
        assert!(error.message().contains(word), "{error}");
        assert_eq!(error.key(), Some("litdata/plain/index.json"));
    }
}

#[test]
fn an_invalid_index_and_names_outside_of_the_folder_are_corrupt() {
    for (from, to) in [
        ("chunk-0-0.bin", "../../etc/passwd"),
        ("chunk-0-0.bin", "C:x"),
        ("\"bytes\", \"numpy\"", "\"bytes\""),
        ("\"chunks\": [", "\"chunks\": 7, \"x\": ["),
    ] {
        let error = open(&changed("litdata/plain", from, to), "litdata/plain").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{to}");
    }
    let fetcher = changed("litdata/plain", "\"chunk_size\": 3", "\"chunk_size\": 4");
    let samples = open(&fetcher, "litdata/plain").unwrap();
    let error = sample(&fetcher, &samples, 0).unwrap_err();
    let place = (error.kind(), error.key(), error.offset());
    assert_eq!(place, (ErrorKind::Corrupt, Some("litdata/plain/chunk-0-0.bin"), Some(0)));
}
