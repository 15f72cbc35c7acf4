//! Tests of LitData, LMDB, MDS, Parquet, RecordIO and TFRecord data sets: values of the writers, and errors for damage.
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]

mod damaged;
mod litdata;
mod lmdb;
mod mds;
#[cfg(feature = "parquet")]
mod parquet;
mod recordio;
mod tfrecord;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use spdl_core::{Dataset, Result, block_on};
use spdl_io::records::{FieldRequest, StoredField};
use spdl_io::{Bytes, Fetcher, FieldValue, MemoryFetcher, StoredRecord};

/// The fields of a sample by name.
type Fields = BTreeMap<String, FieldValue>;

/// A file below `tests/data`.
fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A store with these files of `tests/data`.
fn store(names: &[&str]) -> Arc<MemoryFetcher> {
    Arc::new(names.iter().map(|name| (*name, golden(name))).collect())
}

/// A store with all files of a folder of `tests/data`.
fn folder(name: &str) -> Arc<MemoryFetcher> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let fetcher = MemoryFetcher::new();
    for entry in fs::read_dir(path).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let key = format!("{name}/{file}");
        fetcher.insert(key.as_str(), golden(&key));
    }
    Arc::new(fetcher)
}

/// Reads the fields of a sample.
fn read(
    fetcher: &Arc<MemoryFetcher>,
    record: &StoredRecord,
    request: &FieldRequest,
) -> Result<Fields> {
    let fetcher: Arc<dyn Fetcher> = fetcher.clone();
    let fields = match &record.row {
        Some(row) => block_on(row.group.read(&fetcher, row.row, request))?,
        None => {
            record.fields.iter().map(|field| read_field(&fetcher, field)).collect::<Result<_>>()?
        }
    };
    let count = fields.len();
    let fields: Fields =
        fields.into_iter().map(|(name, field)| (name.to_string(), field)).collect();
    assert_eq!(fields.len(), count, "duplicate field names");
    Ok(fields)
}

/// A field that is a range of an object.
fn read_field(
    fetcher: &Arc<dyn Fetcher>,
    (name, field): &(Arc<str>, StoredField),
) -> Result<(Arc<str>, FieldValue)> {
    let StoredField::At(extent, encoding) = field else { panic!("{field:?}") };
    let data = block_on(fetcher.read(&extent.object, extent.range.clone()))?;
    let value = encoding.decode(data).map_err(|error| error.with_key(extent.to_string()))?;
    Ok((Arc::clone(name), value))
}

/// All fields of sample `index`.
fn sample(
    fetcher: &Arc<MemoryFetcher>,
    samples: &dyn Dataset<Item = StoredRecord>,
    index: u64,
) -> Result<Fields> {
    read(fetcher, &samples.item(index)?, &FieldRequest::all(1 << 30))
}

fn bytes(data: &[u8]) -> FieldValue {
    FieldValue::Bytes(Bytes::copy_from_slice(data))
}
