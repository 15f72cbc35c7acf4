use spdl_core::{ErrorKind, Labeled, block_on};
use spdl_io::datasets::{DatasetKind, OpenedDataset};
use spdl_io::{Address, SourceOptions, StoreFactory, StoreRegistry};

use super::*;

/// Stores that hold `1.png` and `2.png`.
#[derive(Debug)]
struct Acme;

impl StoreFactory for Acme {
    fn open(&self, address: &Address, _: &SourceOptions) -> Result<Arc<dyn Fetcher>> {
        let name = address.authority().to_owned();
        Ok(Arc::new(MemoryFetcher::from_iter([("1.png", name.clone()), ("2.png", name + " 2")])))
    }
}

fn stores() -> StoreRegistry {
    StoreRegistry::new().register("acme", Arc::new(Acme))
}

#[test]
fn a_list_of_images_in_a_store_keeps_its_order_and_labels() {
    let addresses = ["acme://vault/2.png", "acme://vault/1.png", "acme://vault/2.png"];
    let data = OpenedDataset::of_images(&addresses, Some(&[5, -1, 7]), &stores()).unwrap();
    assert_eq!((data.is_local, data.store.as_deref()), (false, Some("acme://vault")));
    assert_eq!(data.address_of("1.png"), "acme://vault/1.png");
    let fetch = data.fetch_labeled();
    let images = PipelineBuilder::new(DatasetSource::new(data.samples))
        .async_stage("fetch", fetch)
        .deterministic();
    let images: Vec<_> = images.build().unwrap().map(Result::unwrap).collect();
    let expected = [("vault 2", 5), ("vault", -1), ("vault 2", 7)];
    assert_eq!(images, expected.map(|(value, label)| Labeled { value: value.into(), label }));
}

#[test]
fn images_of_a_list_lie_in_one_store_and_are_not_signed_one_by_one() {
    for addresses in [
        ["acme://vault/1.png", "acme://cellar/2.png"],
        ["acme://vault/1.png", "acme://me:canary@vault/2.png?signature=canary"],
        ["1.png", "acme://vault/2.png"],
    ] {
        let error = OpenedDataset::of_images(&addresses, None, &stores()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("one store"), "{error}");
        assert!(error.key().unwrap().starts_with("acme://"), "{error}");
    }
    let signed = ["acme://vault/1.png", "acme://me:canary@vault/2.png?signature=canary"];
    let error = OpenedDataset::of_images(&signed, None, &stores()).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
    let none: [&str; 0] = [];
    let error = OpenedDataset::of_images(&none, None, &stores()).unwrap_err();
    assert!(error.message().contains("empty"), "{error}");
}

#[test]
fn paths_of_this_machine_need_not_look_like_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a:b%20{0..1}*.png");
    std::fs::write(&path, "a picture").unwrap();
    let data = OpenedDataset::of_images(&[&path], None, &stores()).unwrap();
    let item = data.samples.item(0).unwrap();
    let image = block_on(data.fetcher.read(&item.key, None)).unwrap();
    assert_eq!((&image[..], data.is_local), (&b"a picture"[..], true));
}

#[test]
fn names_tell_what_files_hold() {
    let of = |name: &str| DatasetKind::of_name(name);
    assert_eq!(of("a/b-{0..9}.TAR"), Some(DatasetKind::TarShards));
    assert_eq!(of("s3://bucket/x.parquet"), Some(DatasetKind::Parquet));
    assert_eq!(of("https://host/x.tfrecord?signature=a.png"), Some(DatasetKind::TfRecord));
    assert_eq!(of("mds/index.json"), Some(DatasetKind::Mds));
    assert_eq!(of("list.jsonl"), Some(DatasetKind::FileList));
    for name in ["photos", "cat.jpg", "https://host/", "acme:///", "https://host/x.png?y=.tar"] {
        assert_eq!(of(name), None, "{name}");
    }
}
