//! Tests of the `Fetch` stage in a pipeline.
#![cfg(feature = "local")]

use std::fs;
use std::sync::Arc;

use spdl_core::{DatasetSource, ErrorKind, PipelineBuilder};
use spdl_io::{Fetch, ImageFolder, LocalFetcher};

#[test]
fn folders_become_labelled_bytes() {
    let root = tempfile::tempdir().unwrap();
    for (name, content) in [("cat/1.jpg", "one"), ("cat/2.jpg", "two"), ("dog/3.jpg", "three")] {
        fs::create_dir_all(root.path().join(name).parent().unwrap()).unwrap();
        fs::write(root.path().join(name), content).unwrap();
    }
    let pipeline =
        PipelineBuilder::new(DatasetSource::new(ImageFolder::open(root.path()).unwrap()))
            .async_stage("fetch", Fetch::new(Arc::new(LocalFetcher::new())))
            .deterministic()
            .build()
            .unwrap();
    let samples: Vec<_> = pipeline.map(|sample| sample.unwrap()).collect();
    let found: Vec<_> = samples.iter().map(|sample| (sample.label, &*sample.value)).collect();
    assert_eq!(found, [(0, &b"one"[..]), (0, b"two"), (1, b"three")]);
}

#[test]
fn errors_name_the_stage_and_the_file() {
    let images = ImageFolder::from_paths(["no/such/file.jpg"], None).unwrap();
    let mut pipeline = PipelineBuilder::new(DatasetSource::new(images))
        .async_stage("fetch", Fetch::new(Arc::new(LocalFetcher::new())))
        .build()
        .unwrap();
    let error = pipeline.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!((error.stage(), error.key()), (Some("fetch"), Some("no/such/file.jpg")));
}

#[test]
fn objects_over_the_limit_are_rejected() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("image.jpg");
    fs::write(&path, [0; 11]).unwrap();
    let first = |max_bytes| {
        let images = ImageFolder::from_paths([&path], None).unwrap();
        let fetch = Fetch::new(Arc::new(LocalFetcher::new())).with_max_bytes(max_bytes);
        let builder = PipelineBuilder::new(DatasetSource::new(images));
        builder.async_stage("fetch", fetch).build().unwrap().next().unwrap()
    };
    assert_eq!(first(11).unwrap().value.len(), 11);
    let error = first(10).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.message().contains("holds 11 bytes, but at most 10"), "{error}");
}
