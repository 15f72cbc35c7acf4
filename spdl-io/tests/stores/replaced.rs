//! Objects and files that are replaced during a run: bytes of two versions are never mixed.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use spdl_core::{DatasetSource, PipelineBuilder, StageOptions, block_on};
use spdl_io::datasets::OpenedDataset;
use spdl_io::records::{FetchFields, FieldChoice, FieldValue};
use spdl_io::testing::{Fault, FaultPlan, FaultServer, SeenRequest};
use spdl_io::{
    Cache, CachedFetcher, Error, ErrorKind, FetchLabeled, Fetcher, Result, SourceOptions,
    StoreRegistry,
};

const SAMPLES: u64 = 40;

/// A tar archive whose members hold the byte `fill`, except their first byte, which is their
/// number.
fn shard(fill: u8) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for number in 0..SAMPLES {
        let mut image = vec![fill; 30_000];
        image[0] = number as u8;
        let mut header = tar::Header::new_ustar();
        header.set_size(image.len() as u64);
        archive.append_data(&mut header, format!("{number:04}.jpg"), &image[..]).unwrap();
    }
    archive.into_inner().unwrap()
}

fn open(address: &str) -> OpenedDataset {
    block_on(OpenedDataset::open(&[address], &StoreRegistry::new())).unwrap()
}

/// The last byte of the image of a sample.
fn read(data: &OpenedDataset, fetch: FetchLabeled, index: u64) -> Result<u8> {
    let sample = data.samples.item(index)?;
    let mut images = PipelineBuilder::from_iter([sample]).async_stage("fetch", fetch).build()?;
    let image = images.next().unwrap()?.value;
    assert_eq!((image.len(), u64::from(image[0])), (30_000, index));
    Ok(image[29_999])
}

fn check_changed(result: Result<u8>, name: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.report());
    assert!(error.report().contains(name), "{}", error.report());
}

// promise: R15
#[test]
fn a_shard_that_is_replaced_in_a_store_is_an_error() {
    let server = FaultServer::start([("s.tar", shard(b'a'))]);
    let address = format!("{}/s.tar", server.url());
    let data = open(&address);
    assert_eq!(read(&data, data.fetch_labeled(), 0).unwrap(), b'a');
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::builder().folder(folder.path(), 10 << 20).open().unwrap();
    let cached = |data: &OpenedDataset| data.fetch_labeled().with_cache(cache.clone());
    assert_eq!(read(&data, cached(&data), 1).unwrap(), b'a');
    server.insert("s.tar", shard(b'b'));
    for index in [0, 2, SAMPLES - 1] {
        check_changed(read(&data, data.fetch_labeled(), index), "s.tar");
        check_changed(read(&data, cached(&data), index), "s.tar");
    }
    // The cache still holds the old version, but a new run does not use it.
    assert_eq!(read(&data, cached(&data), 1).unwrap(), b'a');
    let again = open(&address);
    for index in 0..3 {
        assert_eq!(read(&again, cached(&again), index).unwrap(), b'b');
    }
}

// promise: R15
#[test]
fn a_shard_that_is_replaced_before_its_first_read_is_an_error() {
    let server = FaultServer::start([("s.tar", shard(b'a'))]);
    let data = open(&format!("{}/s.tar", server.url()));
    server.insert("s.tar", shard(b'b'));
    check_changed(read(&data, data.fetch_labeled(), 3), "s.tar");
}

// promise: R15
#[test]
fn a_replaced_object_of_another_size_is_an_error_without_another_version() {
    let longer = [shard(b'b'), vec![0; 10_240]].concat();
    for has_etag in [true, false] {
        let server = FaultServer::start([("s.tar", shard(b'a'))]);
        let no_version = (!has_etag).then_some(Fault::NoVersion);
        server.set_faults(FaultPlan::script(move |_| no_version));
        server.insert_with_etag("s.tar", shard(b'a'), "\"same\"");
        let data = open(&format!("{}/s.tar", server.url()));
        assert_eq!(read(&data, data.fetch_labeled(), 0).unwrap(), b'a');
        server.insert_with_etag("s.tar", longer.clone(), "\"same\"");
        check_changed(read(&data, data.fetch_labeled(), 2), "s.tar");
        // A few wrong responses are not a change.
        server.insert_with_etag("s.tar", shard(b'a'), "\"same\"");
        server.set_faults(FaultPlan::script(move |request| {
            if request.attempt <= 2 { Some(Fault::OtherSize) } else { no_version }
        }));
        assert_eq!(read(&data, data.fetch_labeled(), 3).unwrap(), b'a');
    }
}

/// Sets another modification time: writes within the resolution of the clock may have the same.
fn rewrite(path: &Path, bytes: &[u8]) {
    let before = fs::metadata(path).unwrap().modified().unwrap();
    fs::write(path, bytes).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(before + std::time::Duration::from_secs(1)).unwrap();
}

// promise: R15
#[test]
fn a_local_shard_that_is_rewritten_or_replaced_is_an_error() {
    for is_read_before in [false, true] {
        for by_rename in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s.tar");
            fs::write(&path, shard(b'a')).unwrap();
            let data = open(path.to_str().unwrap());
            if is_read_before {
                assert_eq!(read(&data, data.fetch_labeled(), 0).unwrap(), b'a');
            }
            if by_rename {
                let new = folder.path().join("new");
                fs::copy(&path, &new).unwrap();
                rewrite(&new, &shard(b'b'));
                fs::rename(&new, &path).unwrap();
            } else {
                rewrite(&path, &shard(b'b'));
            }
            for index in [0, 5] {
                check_changed(read(&data, data.fetch_labeled(), index), "s.tar");
            }
            let again = open(path.to_str().unwrap());
            assert_eq!(read(&again, again.fetch_labeled(), 5).unwrap(), b'b');
        }
    }
}

// promise: R15
#[test]
fn a_cache_serves_no_bytes_of_a_replaced_file_of_a_list() {
    for has_etag in [true, false] {
        let rows = "a.jpg,1\nb.jpg,2\n";
        let server = FaultServer::start([("list.csv", rows), ("a.jpg", "a"), ("b.jpg", "b")]);
        let no_version = (!has_etag).then_some(Fault::NoVersion);
        server.set_faults(FaultPlan::script(move |_| no_version));
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::builder().folder(folder.path(), 10 << 20).open().unwrap();
        let epochs = |epochs: u64| {
            let data = open(&format!("{}/list.csv", server.url()));
            let source = DatasetSource::new(Arc::clone(&data.samples));
            let fetch = data.fetch_labeled().with_cache(cache.clone());
            let images = PipelineBuilder::new(source)
                .epochs(0..epochs)
                .async_stage(StageOptions::new("fetch").concurrency(1), fetch)
                .deterministic()
                .build();
            images.unwrap().map(|image| image.unwrap().value).collect::<Vec<_>>()
        };
        let requests = |method: &str| {
            let of_image = |it: &&SeenRequest| it.method == method && it.target.ends_with(".jpg");
            server.seen().iter().filter(of_image).count()
        };
        assert_eq!(epochs(2), ["a", "b", "a", "b"]);
        assert_eq!((requests("HEAD"), requests("GET")), (2, 2), "one of each per object and run");
        assert_eq!(epochs(1), ["a", "b"]);
        assert_eq!((requests("HEAD"), requests("GET")), (4, 2), "cached");
        // Without a version, only the size differs.
        server.insert("b.jpg", if has_etag { "x" } else { "longer" });
        assert_eq!(epochs(1), ["a", if has_etag { "x" } else { "longer" }]);
        assert_eq!((requests("HEAD"), requests("GET")), (6, 3));
    }
}

// promise: R15
#[test]
fn several_epochs_of_a_data_set_with_a_cache_request_the_version_of_each_file_once() {
    let rows = "a.jpg,1\nb.jpg,2\n";
    let server = FaultServer::start([("list.csv", rows), ("a.jpg", "a"), ("b.jpg", "b")]);
    let cache = Cache::builder().memory(1 << 20).open().unwrap();
    let data = open(&format!("{}/list.csv", server.url())).with_cache(cache);
    for _ in 0..3 {
        let images = PipelineBuilder::new(DatasetSource::new(Arc::clone(&data.samples)))
            .async_stage("fetch", data.fetch_labeled())
            .deterministic();
        let images = images.build().unwrap().map(|image| image.unwrap().value);
        assert_eq!(images.collect::<Vec<_>>(), ["a", "b"]);
    }
    let requests = |method: &str| {
        let of_image = |it: &&SeenRequest| it.method == method && it.target.ends_with(".jpg");
        server.seen().iter().filter(of_image).count()
    };
    assert_eq!((requests("HEAD"), requests("GET")), (2, 2));
}

/// An MDS shard of two samples of the column `jpg`, and its index. The bytes of the samples are `fill`.
fn mds(fill: u8) -> (Vec<u8>, String) {
    let sample = [&100_u32.to_le_bytes()[..], &[fill; 100]].concat();
    let head = [2, 16, 120, 224_u32].map(u32::to_le_bytes).concat();
    let shard = [&head[..], &sample, &sample].concat();
    let index = r#"{"version": 2, "shards": [{"version": 2, "format": "mds", "samples": 2,
        "compression": null, "zip_data": null, "hashes": [], "size_limit": null,
        "raw_data": {"basename": "s.mds", "bytes": 224, "hashes": {}},
        "column_names": ["jpg"], "column_encodings": ["jpeg"], "column_sizes": [null]}]}"#;
    (shard, index.to_owned())
}

// promise: R15
#[test]
fn a_cache_serves_no_bytes_of_a_replaced_mds_shard() {
    let (shard, index) = mds(b'a');
    let server = FaultServer::start([("s.mds", shard), ("index.json", index.into())]);
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::builder().folder(folder.path(), 10 << 20).open().unwrap();
    let read = |data: &OpenedDataset, index| -> Result<u8> {
        let samples = [data.samples.item(index)?];
        let fetch = data.fetch_labeled().with_cache(cache.clone());
        let mut images = PipelineBuilder::from_iter(samples).async_stage("fetch", fetch).build()?;
        Ok(images.next().unwrap()?.value[99])
    };
    let address = format!("{}/index.json", server.url());
    let data = open(&address);
    let stats = || server.seen().iter().filter(|request| request.method == "HEAD").count();
    for _ in 0..5 {
        assert_eq!(read(&data, 0).unwrap(), b'a');
    }
    assert_eq!(stats(), 1, "one request finds the version of a shard");
    server.insert("s.mds", mds(b'b').0);
    check_changed(read(&data, 1), "s.mds");
    let again = open(&address);
    assert_eq!((read(&again, 0).unwrap(), read(&again, 1).unwrap()), (b'b', b'b'));
}

const PHOTO: &str = "bucket/photos/cat/1.jpg";

/// A bucket with two images in class folders.
fn bucket() -> FaultServer {
    let server = FaultServer::start([("bucket/photos/dog/2.jpg", "other")]);
    server.insert_with_etag(PHOTO, "old", "\"1\"");
    server
}

fn open_bucket(server: &FaultServer, is_resilient: bool) -> OpenedDataset {
    let options = SourceOptions::default().endpoint(server.url()).allow_plain_http(true);
    let options = options.anonymous(true).resilience(crate::many_retries());
    let options = if is_resilient { options } else { options.without_resilience() };
    let stores = StoreRegistry::new().with_options("s3:", options);
    block_on(OpenedDataset::open(&["s3://bucket/photos/"], &stores)).unwrap()
}

/// Reads the first image as a value with a label, or as a field of a record.
fn read_photo(data: &OpenedDataset, as_record: bool, cache: Option<&Cache>) -> Result<Vec<u8>> {
    let samples = PipelineBuilder::from_iter([data.samples.item(0)?]);
    let mut fetch = data.fetch_labeled();
    if as_record {
        let mut fetch = FetchFields::like(&fetch).with("image", FieldChoice::of(["image"]));
        if let Some(cache) = cache {
            fetch = fetch.with_cache(cache.clone());
        }
        let mut records = samples.async_stage("fetch", fetch).build()?;
        let FieldValue::Bytes(bytes) = records.next().unwrap()?.take("image")? else { panic!() };
        return Ok(bytes.to_vec());
    }
    if let Some(cache) = cache {
        fetch = fetch.with_cache(cache.clone());
    }
    let mut images = samples.async_stage("fetch", fetch).build()?;
    Ok(images.next().unwrap()?.value.to_vec())
}

fn check_photo_changed(server: &FaultServer, result: Result<Vec<u8>>, most: u64) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.report());
    assert_eq!(error.key(), Some("photos/cat/1.jpg"));
    let requests = server.served_of(PHOTO).requests;
    assert!((1..=most).contains(&requests), "{requests} requests: {}", error.report());
    error
}

// promise: R15
#[test]
fn a_cache_stores_no_replaced_image_of_a_folder_under_the_listed_version() {
    for as_record in [false, true] {
        let server = bucket();
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::builder().folder(folder.path(), 10 << 20).open().unwrap();
        let data = open_bucket(&server, true);
        server.insert_with_etag(PHOTO, "new", "\"2\"");
        check_photo_changed(&server, read_photo(&data, as_record, Some(&cache)), 1);
        let again = open_bucket(&server, true);
        assert_eq!(read_photo(&again, as_record, Some(&cache)).unwrap(), b"new");
        // The old object is restored.
        server.insert_with_etag(PHOTO, "old", "\"1\"");
        let restored = open_bucket(&server, true);
        for data in [&data, &restored, &data] {
            assert_eq!(read_photo(data, as_record, Some(&cache)).unwrap(), b"old");
        }
        let before = server.served_of(PHOTO).requests;
        assert_eq!(read_photo(&restored, as_record, Some(&cache)).unwrap(), b"old");
        assert_eq!(server.served_of(PHOTO).requests, before, "cached");
    }
}

// promise: R15
#[test]
fn an_image_of_a_folder_that_is_replaced_after_the_listing_is_an_error() {
    for (is_resilient, as_record) in [(true, false), (true, true), (false, false), (false, true)] {
        let server = bucket();
        let data = open_bucket(&server, is_resilient);
        assert_eq!(read_photo(&data, as_record, None).unwrap(), b"old");
        for (bytes, etag, sizes) in [("new", "\"2\"", None), ("longer", "\"1\"", Some((3, 6)))] {
            let server = bucket();
            let data = open_bucket(&server, is_resilient);
            server.insert_with_etag(PHOTO, bytes, etag);
            let most = if is_resilient && sizes.is_some() { 3 } else { 1 };
            let error = check_photo_changed(&server, read_photo(&data, as_record, None), most);
            if let Some((listed, found)) = sizes {
                let sizes = format!("its size was {listed} bytes and is now {found} bytes");
                assert!(error.message().contains(&sizes), "{}", error.report());
            }
        }
    }
}

// promise: R15
#[test]
fn a_body_with_another_length_than_the_listed_size_is_read_again() {
    for fault in [Fault::ShortLength, Fault::EmptyBody] {
        let server = bucket();
        server.insert_with_etag(PHOTO, "a photograph of a cat", "\"1\"");
        let data = open_bucket(&server, true);
        let faulty = |most: u32| {
            server.set_faults(FaultPlan::script(move |request| {
                (request.key == PHOTO && request.attempt <= most).then_some(fault)
            }));
        };
        faulty(2);
        assert_eq!(read_photo(&data, false, None).unwrap(), b"a photograph of a cat", "{fault:?}");
        faulty(u32::MAX);
        let error = check_photo_changed(&server, read_photo(&data, false, None), 6);
        let found = if fault == Fault::EmptyBody { 0 } else { 11 };
        let sizes = format!("its size was 21 bytes and is now {found} bytes");
        assert!(error.message().contains(&sizes), "{fault:?}: {}", error.report());
    }
}

// promise: R15
#[test]
fn a_cached_object_of_another_version_or_size_is_read_again() {
    let server = FaultServer::start(Vec::<(String, String)>::new());
    server.insert_with_etag("a", "old", "\"1\"");
    let place = StoreRegistry::new().open(&format!("{}/a", server.url())).unwrap();
    let cache = Cache::builder().memory(1 << 20).open().unwrap();
    let fetcher = CachedFetcher::new(place.fetcher, cache);
    assert_eq!(block_on(fetcher.read(&place.key, None)).unwrap(), "old");
    server.insert_with_etag("a", "longer", "\"2\"");
    let version = Some("\"2\"".into());
    let read = |version, size| fetcher.read_whole_version(&place.key, &100, version, size);
    for (version, size) in [(None, Some(6)), (version.as_ref(), None)] {
        for _ in 0..2 {
            assert_eq!(block_on(read(version, size)).unwrap(), "longer");
        }
    }
    assert_eq!(server.served_of("a").requests, 3);
}
