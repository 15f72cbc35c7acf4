//! `AcmePack` fulfils the contract of `Fetcher`, and works in a pipeline.

use std::sync::Arc;

use acme_fetcher::AcmePack;
use spdl_core::{DatasetSource, Labeled, PipelineBuilder};
use spdl_io::testing::{contract_objects, fetcher_contract};
use spdl_io::{
    ErrorKind, Fetch, Key, MemoryFetcher, Resilient, ResilientOptions, Result, block_on,
};

fn storage() -> Arc<MemoryFetcher> {
    let (mut pack, mut index) = (Vec::new(), String::new());
    for (name, bytes) in contract_objects() {
        index.push_str(&format!("{} {} photos/{name}\n", pack.len(), bytes.len()));
        pack.extend_from_slice(&bytes);
    }
    let storage = MemoryFetcher::new();
    storage.insert("pack", pack);
    storage.insert("index", index);
    Arc::new(storage)
}

fn open() -> Result<AcmePack> {
    block_on(AcmePack::open(storage(), "pack".into(), &"index".into()))
}

#[test]
fn the_pack_fulfils_the_contract() {
    fetcher_contract(&open().unwrap(), &"photos".into());
}

#[test]
fn the_pack_with_retries_fulfils_the_contract() {
    let options = ResilientOptions::default();
    let fetcher = Resilient::new(Arc::new(open().unwrap()), options).unwrap();
    fetcher_contract(&fetcher, &"photos".into());
}

#[test]
fn the_pack_feeds_a_pipeline() {
    let objects = contract_objects();
    let keys: Vec<_> = objects
        .iter()
        .map(|(name, _)| Labeled { value: Key::from(format!("photos/{name}")), label: 0 })
        .collect();
    let pipeline = PipelineBuilder::new(DatasetSource::new(keys))
        .async_stage("fetch", Fetch::new(Arc::new(open().unwrap())))
        .deterministic()
        .build()
        .unwrap();
    let read: Vec<_> = pipeline.map(|sample| sample.unwrap().value).collect();
    let bytes: Vec<_> = objects.into_iter().map(|(_, bytes)| bytes).collect();
    assert!(read == bytes);
}

#[test]
fn an_invalid_index_is_an_error() {
    let storage = storage();
    storage.insert("index", "0 1 a\nnonsense\n");
    let opened = block_on(AcmePack::open(storage, "pack".into(), &"index".into()));
    let error = opened.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("line 2"), "{error}");
}
