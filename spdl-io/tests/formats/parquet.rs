//! Compares Parquet files of pyarrow and Hugging Face's `datasets` with the values that pyarrow reads.

use std::sync::Arc;

use serde_json::Value;
use spdl_core::{Dataset, ErrorKind, PipelineBuilder, Result, block_on};
use spdl_io::datasets::{ParquetDataset, ParquetOptions};
use spdl_io::records::{FetchFields, FieldChoice, FieldRequest};
use spdl_io::{FieldValue, MemoryFetcher};

use super::{folder, golden, read, sample};

pub(crate) fn open(fetcher: &Arc<MemoryFetcher>, files: &[&str]) -> Result<ParquetDataset> {
    open_with(fetcher, files, ParquetOptions::default())
}

fn open_with(
    fetcher: &Arc<MemoryFetcher>,
    files: &[&str],
    options: ParquetOptions,
) -> Result<ParquetDataset> {
    block_on(ParquetDataset::fetch_files(
        &(Arc::clone(fetcher) as _),
        files.iter().copied(),
        &options,
    ))
}

fn expected(name: &str) -> Vec<Value> {
    serde_json::from_slice(&golden(&format!("parquet/{name}.json"))).unwrap()
}

/// A field in the format of `make_formats.py`.
fn shown(field: &FieldValue) -> Value {
    match field {
        FieldValue::Null => Value::Null,
        FieldValue::Bool(value) => (*value).into(),
        FieldValue::Integer(value) => (*value).into(),
        FieldValue::Float(value) => (*value).into(),
        FieldValue::Text(value) => (**value).into(),
        FieldValue::Bytes(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            serde_json::json!({ "hex": hex })
        }
        FieldValue::Integers(list) => list.clone().into(),
        FieldValue::Floats(list) => list.clone().into(),
        FieldValue::List(list) => list.iter().map(shown).collect::<Vec<_>>().into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hugging_face_images_are_bytes_and_a_path() {
    let name = "parquet/images.parquet";
    let fetcher = folder("parquet");
    let samples = open(&fetcher, &[name]).unwrap();
    let rows = expected("images");
    assert_eq!((samples.len(), samples.shard_lens()), (10, vec![4, 4, 2]));
    for (i, row) in rows.iter().enumerate() {
        let found = sample(&fetcher, &samples, i as u64).unwrap();
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["boxes", "caption", "image", "image.path", "label"]);
        assert_eq!(shown(&found["image"]), row["image"]["bytes"]);
        assert_eq!(shown(&found["image.path"]), row["image"]["path"]);
        for name in ["label", "caption", "boxes"] {
            assert_eq!(shown(&found[name]), row[name], "{name} of {i}");
        }
    }
    assert_eq!(samples.item(9).unwrap().key.as_str(), Some("parquet/images.parquet:9"));
}

#[test]
fn images_without_bytes_are_the_files_that_their_paths_name() {
    let fetcher = folder("parquet");
    // Paths are relative to the folder of the Parquet file.
    let files =
        [("parquet/images/0.png", "first"), ("parquet/../1.png", "second"), ("/2.png", "x")];
    files.iter().for_each(|(key, content)| fetcher.insert(*key, *content));
    let samples = open(&fetcher, &["parquet/paths.parquet"]).unwrap();
    let image = |index: u64, limit: u64| {
        let fetch = FetchFields::new(Arc::clone(&fetcher) as _)
            .with("image", FieldChoice::of(["image"]))
            .with_max_bytes(limit);
        let rows = PipelineBuilder::from_iter([samples.item(index).unwrap()]);
        rows.async_stage("fetch", fetch).build()?.next().unwrap()?.take("image")
    };
    for (index, (_, content)) in (0..).zip(files) {
        assert_eq!(image(index, 100).unwrap(), FieldValue::Bytes(content.into()));
    }
    let error = image(3, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.message(), "the value is null or missing: field \"image\"");
    let error = image(4, 100).unwrap_err();
    assert_eq!(
        (error.kind(), error.key()),
        (ErrorKind::Unsupported, Some("parquet/paths.parquet:4"))
    );
    assert!(error.message().contains("column image: the bytes are null"), "{error}");
    let error = image(5, 100).unwrap_err();
    assert_eq!(
        (error.kind(), error.key()),
        (ErrorKind::NotFound, Some("parquet/images/absent.png"))
    );
    // The limit of a sample includes the file.
    assert_eq!(image(0, 4).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

/// Compares all fields with the values that pyarrow reads.
fn check_kinds(fetcher: &Arc<MemoryFetcher>, samples: &ParquetDataset, rows: &[Value]) {
    assert_eq!(samples.len(), rows.len() as u64);
    for (i, row) in rows.iter().enumerate() {
        let i = i as u64;
        let names: Vec<String> = samples.item(i).unwrap().names().map(str::to_owned).collect();
        for name in names {
            let request = FieldRequest::all(1 << 20).only([name.as_str()]);
            let found = read(fetcher, &samples.item(i).unwrap(), &request);
            if name == "u64" && i == 8 {
                // 2⁶³ exceeds the range of a field.
                assert_eq!(found.unwrap_err().kind(), ErrorKind::Unsupported);
                continue;
            }
            let found = found.unwrap_or_else(|error| panic!("{name} of {i}: {}", error.report()));
            let wanted = match name.split_once('.') {
                Some((group, member)) => &row[group][member],
                None => &row[&name],
            };
            match name.as_str() {
                // pyarrow converts it to a time.
                "when" => assert_eq!(found["when"], FieldValue::Integer(i as i64 * 1000)),
                _ => assert_eq!(shown(&found[&name]), *wanted, "{name} of {i}"),
            }
        }
    }
}

#[test]
fn columns_of_all_compressions_equal_those_of_pyarrow() {
    let fetcher = folder("parquet");
    let rows = expected("none");
    for name in ["none", "snappy", "zstd", "gzip", "lz4", "brotli", "v2"] {
        let samples = open(&fetcher, &[&*format!("parquet/{name}.parquet")]).unwrap();
        assert_eq!(samples.shard_lens(), [4, 4, 1], "{name}");
        let names = samples.item(0).unwrap();
        assert_eq!(names.names().count(), if name == "v2" { 16 } else { 18 }, "{name}");
        check_kinds(&fetcher, &samples, &rows);
    }
}

#[test]
fn delta_encoded_values_are_read_except_byte_arrays() {
    let fetcher = folder("parquet");
    let samples = open(&fetcher, &["parquet/delta.parquet"]).unwrap();
    for (i, row) in expected("delta").iter().enumerate() {
        let item = samples.item(i as u64).unwrap();
        for name in ["i32", "i64", "blob", "f32", "f64"] {
            let request = FieldRequest::all(1 << 20).only([name]);
            assert_eq!(shown(&read(&fetcher, &item, &request).unwrap()[name]), row[name]);
        }
        let error = read(&fetcher, &item, &FieldRequest::all(1 << 20).only(["text"])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
    }
}

#[test]
fn unsupported_columns_are_errors_if_requested() {
    let fetcher = folder("parquet");
    let samples = open(&fetcher, &["parquet/none.parquet"]).unwrap();
    let item = samples.item(0).unwrap();
    assert!(item.names().all(|name| name != "matrix" && name != "price"));
    for name in ["matrix", "price"] {
        let request = FieldRequest::all(1 << 20).only([name]);
        let error = read(&fetcher, &item, &request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains(name), "{error}");
    }
    let all = read(&fetcher, &item, &FieldRequest::all(1 << 20)).unwrap();
    assert_eq!(all.len(), 18);
}

#[test]
fn row_groups_are_cached_within_the_limit() {
    let fetcher = folder("parquet");
    let file = "parquet/images.parquet";
    for (options, is_kept) in
        [(ParquetOptions::default(), true), (ParquetOptions::default().cache_bytes(1), false)]
    {
        fetcher.insert(file, golden(file));
        let samples = open_with(&fetcher, &[file], options).unwrap();
        let request = FieldRequest::all(1 << 20).only(["label"]);
        let label = |index| read(&fetcher, &samples.item(index).unwrap(), &request);
        assert_eq!(label(0).unwrap()["label"], FieldValue::Integer(0));
        assert_eq!(label(4).unwrap()["label"], FieldValue::Integer(1));
        fetcher.remove(&file.into());
        assert_eq!(label(1).is_ok(), is_kept);
        // The last used part is always cached.
        assert_eq!(label(5).unwrap()["label"], FieldValue::Integer(2));
    }
}

// promise: R4
#[test]
fn the_memory_of_the_requested_fields_is_known_before_they_are_copied() {
    let fetcher = folder("parquet");
    let samples = open(&fetcher, &["parquet/images.parquet"]).unwrap();
    for (number, expected) in expected("images").iter().enumerate() {
        let row = samples.item(number as u64).unwrap().row.unwrap();
        let bytes = |request: FieldRequest| {
            let store = Arc::clone(&fetcher) as _;
            block_on(row.group.row_bytes(&store, row.row, &request)).unwrap().unwrap()
        };
        let len = |value: &Value| value.as_str().unwrap_or_default().len() as u64;
        let image = len(&expected["image"]["bytes"]["hex"]) / 2;
        let texts = len(&expected["caption"]) + len(&expected["image"]["path"]);
        assert_eq!(bytes(FieldRequest::all(1 << 20).only(["image", "label"])), image);
        assert_eq!(bytes(FieldRequest::all(1 << 20)), image + texts);
    }
}

#[test]
fn several_files_are_one_data_set() {
    let fetcher = folder("parquet");
    let files = ["parquet/images.parquet", "parquet/none.parquet"];
    let samples = open(&fetcher, &files).unwrap();
    assert_eq!((samples.len(), samples.shard_lens()), (19, vec![4, 4, 2, 4, 4, 1]));
    let last = sample(&fetcher, &samples, 17).unwrap();
    assert_eq!(last["u8"], FieldValue::Integer(252));
    let turned = open(&fetcher, &[files[1], files[0]]).unwrap();
    assert_ne!(samples.content_hash(), turned.content_hash());
}

#[test]
fn invalid_parquet_files_are_corrupt() {
    let file = golden("parquet/images.parquet");
    let cases =
        [vec![], b"PAR1".to_vec(), b"PAR1\0\0\0\0PAR1".to_vec(), file[..file.len() - 1].to_vec()];
    for case in cases {
        let fetcher = Arc::new([("x.parquet", case)].into_iter().collect());
        let error = open(&fetcher, &["x.parquet"]).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some("x.parquet")));
    }
    let mut encrypted = file;
    encrypted.splice(encrypted.len() - 1.., *b"E");
    let fetcher = Arc::new([("x.parquet", encrypted)].into_iter().collect());
    assert_eq!(open(&fetcher, &["x.parquet"]).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_column_above_the_limit_is_not_read() {
    let fetcher = folder("parquet");
    let options = ParquetOptions::default().max_column_bytes(200);
    let samples = open_with(&fetcher, &["parquet/images.parquet"], options).unwrap();
    let item = samples.item(0).unwrap();
    let label = FieldRequest::all(1 << 20).only(["label"]);
    assert!(read(&fetcher, &item, &label).is_ok());
    let image = FieldRequest::all(1 << 20).only(["image"]);
    let error = read(&fetcher, &item, &image).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.message().contains("row group 0, column image"), "{error}");
}

#[test]
fn other_columns_of_a_damaged_file_are_read() {
    // Pages of this file have checksums.
    let name = "parquet/v2.parquet";
    let fetcher = folder("parquet");
    let mut file = golden(name);
    // A byte of the first column chunks.
    file[60] ^= 0x55;
    fetcher.insert(name, file);
    let samples = open(&fetcher, &[name]).unwrap();
    let (mut good, mut bad) = (0, 0);
    let names: Vec<String> = samples.item(0).unwrap().names().map(str::to_owned).collect();
    for column in names {
        let request = FieldRequest::all(1 << 20).only([column.as_str()]);
        match read(&fetcher, &samples.item(0).unwrap(), &request) {
            Ok(_) => good += 1,
            Err(error) => {
                assert!(error.message().contains("row group 0"), "{error}");
                assert_eq!(error.key(), Some(name));
                bad += 1;
            }
        }
    }
    assert_eq!((good, bad), (15, 1));
}
