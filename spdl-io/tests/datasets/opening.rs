//! Tests of `OpenedDataset`: images by address, missing files, folders, detection of the kind.

// promise of this file: DATA7

use std::fs;

use spdl_core::{Error, ErrorKind, Labeled, block_on};
use spdl_io::datasets::{DatasetKind, OpenOptions, OpenedDataset};
use spdl_io::records::ARRAY_EXTENSIONS;
use spdl_io::stores::{Address, StoreFactory};
use spdl_io::{SourceOptions, StoreRegistry};

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
fn a_folder_in_a_list_of_images_is_refused_when_the_list_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir_all(folder.path().join("cats")).unwrap();
    fs::write(folder.path().join("1.jpg"), "a picture").unwrap();
    fs::write(folder.path().join("list.csv"), "path,label\n1.jpg,2\ncats,3\n").unwrap();
    fs::write(folder.path().join("list.txt"), "1.jpg\ncats/\n").unwrap();
    let open = |name| block_on(OpenedDataset::open(&[path(name)], &StoreRegistry::new()));
    let images = |names: [String; 2]| {
        OpenedDataset::of_images(&names, None, &StoreRegistry::new()).map(|_| ())
    };
    for opened in [
        images([path("1.jpg"), path("cats")]),
        images([format!("file://{}", path("1.jpg")), format!("file://{}", path("cats"))]),
        open("list.csv").map(|_| ()),
        open("list.txt").map(|_| ()),
    ] {
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.key().unwrap().trim_end_matches('/').ends_with("cats"), "{error}");
        assert!(error.message().starts_with("the list of images contains a folder"), "{error}");
    }
    // Files without an extension, and missing files, may be images.
    fs::write(folder.path().join("plain"), "a picture").unwrap();
    images([path("plain"), path("missing")]).unwrap();
}

#[test]
fn the_images_of_coco_annotations_are_found_near_them() {
    const TEXT: &str = r#"{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [],
                           "categories": [{"id": 3, "name": "car"}]}"#;
    let folder = tempfile::tempdir().unwrap();
    let annotations = folder.path().join("annotations/instances_val2017.json");
    fs::create_dir_all(annotations.parent().unwrap()).unwrap();
    fs::write(&annotations, TEXT).unwrap();
    let open = |options: &OpenOptions| {
        block_on(OpenedDataset::open_with(&[&annotations], &StoreRegistry::new(), options))
    };
    let error = open(&OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.key().unwrap().ends_with("instances_val2017.json"), "{error}");
    assert!(error.message().contains("val2017") && error.message().contains("a.jpg"), "{error}");
    for place in ["elsewhere", "images/val2017", "val2017", "annotations/images", "annotations"] {
        fs::create_dir_all(folder.path().join(place)).unwrap();
        fs::write(folder.path().join(place).join("a.jpg"), "a picture").unwrap();
        let options = match place {
            "elsewhere" => {
                OpenOptions::default().images(folder.path().join(place).to_str().unwrap())
            }
            _ => OpenOptions::default(),
        };
        let data = open(&options).unwrap();
        assert_eq!(data.box_fields()[..2], [("boxes", Some("xyxy")), ("bbox", Some("xywh"))]);
        assert_eq!(
            (data.kind, &data.classes[..]),
            (DatasetKind::FileList, &["car".to_owned()][..])
        );
        let key = data.samples.item(0).unwrap().key.to_path().into_owned();
        assert_eq!(
            fs::canonicalize(key).unwrap(),
            fs::canonicalize(folder.path()).unwrap().join(place).join("a.jpg")
        );
    }
    let other = folder.path().join("other.json");
    fs::write(&other, r#"{"shards": []}"#).unwrap();
    let error = block_on(OpenedDataset::open(&[&other], &StoreRegistry::new())).unwrap_err();
    assert!(error.message().starts_with("not annotations in the format of COCO"), "{error}");
}

#[test]
fn coco_annotations_may_have_absolute_paths_and_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let annotations = folder.path().join("instances.json");
    let open = |names: &[&str], options: &OpenOptions| {
        let image =
            |(id, name): (usize, &&str)| serde_json::json!({"id": id + 7, "file_name": name});
        let images: Vec<_> = names.iter().enumerate().map(image).collect();
        let document = serde_json::json!({"images": images, "annotations": [], "categories": []});
        fs::write(&annotations, document.to_string()).unwrap();
        let data = block_on(OpenedDataset::open_with(&[&annotations], &stores(), options))?;
        let keys = (0..data.samples.len()).map(|at| data.samples.item(at).unwrap().key.to_string());
        Ok::<_, Error>(keys.collect::<Vec<_>>())
    };
    let default = OpenOptions::default();
    let absolute = folder.path().join("a.jpg").to_str().unwrap().to_owned();
    for names in [&[&*absolute][..], &["acme://vault/1.png"]] {
        assert_eq!(open(names, &default).unwrap(), names);
    }
    // The first relative path determines the folder.
    fs::create_dir(folder.path().join("images")).unwrap();
    fs::write(folder.path().join("images/b.jpg"), "a picture").unwrap();
    let found = folder.path().join("images/b.jpg").to_str().unwrap().to_owned();
    assert_eq!(open(&[&absolute, "b.jpg"], &default).unwrap(), [absolute.clone(), found]);
    // Errors name the image, not a line of the list that is made from the annotations.
    let error =
        open(&["acme://vault/1.png", "acme://me:hunter2@vault/2.png"], &default).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::InvalidArgument, None));
    assert!(error.message().starts_with("image 8: cannot read"), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    assert!(error.key().unwrap().ends_with("instances.json"), "{error}");
    // The folder of the images may be an address in the store of the annotations.
    let address = format!("file://{}", folder.path().to_str().unwrap());
    let options = OpenOptions::default().images(address);
    assert_eq!(open(&["a.jpg"], &options).unwrap(), [absolute]);
    let options = OpenOptions::default().images("acme://vault/images?key=secret");
    let error = open(&["a.jpg"], &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("in the store of the annotations"), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[test]
fn a_folder_of_images_is_refused_without_coco_annotations() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list.csv");
    fs::write(&list, "path\na.jpg\n").unwrap();
    let options = OpenOptions::default().images("elsewhere");
    for path in [&*list, folder.path()] {
        let error = block_on(OpenedDataset::open_with(&[path], &stores(), &options)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("only for COCO annotations"), "{error}");
    }
    let samples = vec![spdl_io::StoredRecord::new("a")];
    let error = OpenedDataset::of_samples(samples, &stores(), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
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
fn images_of_a_list_must_be_in_one_store() {
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
fn local_paths_may_contain_special_characters() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a:b%20{0..1}*.png");
    std::fs::write(&path, "a picture").unwrap();
    let data = OpenedDataset::of_images(&[&path], None, &stores()).unwrap();
    let item = data.samples.item(0).unwrap();
    let image = block_on(data.fetcher.read(&item.key, None)).unwrap();
    assert_eq!((&image[..], data.is_local), (&b"a picture"[..], true));
}

/// A store of files in a folder.
#[derive(Debug)]
struct Files;

impl StoreFactory for Files {
    fn open(&self, _: &Address, _: &SourceOptions) -> Result<Arc<dyn Fetcher>> {
        let names = ["p/b.jpg", "p/a.PNG", "p/c.dat", "p/d.npy", "p/sub/e.jpg"];
        Ok(Arc::new(MemoryFetcher::from_iter(names.map(|name| (name, "")))))
    }
}

#[test]
fn a_pattern_selects_files_by_its_extension_or_by_those_of_the_options() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b.jpg", "a.PNG", "c.dat", "d.npy"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let stores = StoreRegistry::new().register("acme", Arc::new(Files));
    let open = |pattern: &str, options: &OpenOptions| {
        let local = folder.path().join(pattern);
        let all = [local.to_str().unwrap().to_owned(), format!("acme://bucket/p/{pattern}")];
        let opened = all.map(|it| block_on(OpenedDataset::open_with(&[it], &stores, options)));
        let found = opened.map(|opened| {
            let samples = opened?.samples;
            let name = |index| -> Result<String> {
                let sample = samples.item(index)?;
                let key = sample.key.to_string();
                let field = sample.names().next().unwrap().to_owned();
                Ok(format!("{} {field}", key.rsplit('/').next().unwrap()))
            };
            (0..samples.len()).map(name).collect::<Result<Vec<_>>>()
        });
        let [local, stored] = found;
        assert_eq!(local.is_ok(), stored.is_ok(), "{pattern}");
        if let (Ok(local), Ok(stored)) = (&local, &stored) {
            assert_eq!(local, stored, "{pattern}");
        }
        local
    };
    let images = OpenOptions::default();
    let arrays = OpenOptions::default().extensions(&ARRAY_EXTENSIONS);
    assert_eq!(open("*", &images).unwrap(), ["a.PNG image", "b.jpg image"]);
    assert_eq!(open("*.dat", &images).unwrap(), ["c.dat image"]);
    assert_eq!(open("*", &arrays).unwrap(), ["d.npy array"]);
    assert_eq!(open("*.dat", &arrays).unwrap(), ["c.dat array"]);
    let error = open("*.npz", &arrays).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::NotFound, "no file matches this pattern")
    );
    let error = open("*.{jpg,dat}", &arrays).unwrap_err();
    assert_eq!(error.message(), "no file that matches this pattern ends in npy, npz, bin, raw");
}

#[test]
fn missing_files_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    for number in [0, 1, 3, 4] {
        std::fs::write(folder.path().join(format!("{number:03}.tar")), numbered(0..1)).unwrap();
    }
    let open = |pattern: &str| {
        let pattern = folder.path().join(pattern);
        block_on(OpenedDataset::open(&[pattern], &StoreRegistry::new()))
    };
    for (pattern, first, message) in [
        ("{000..004}.tar", "002.tar", "1 of 5 files is missing; if"),
        ("{000..007}.tar", "002.tar", "4 of 8 files are missing; this is the first; if"),
        ("{100..107}.tar", "100.tar", "all 8 files are missing; this is the first"),
    ] {
        let error = open(pattern).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.key(), folder.path().join(first).to_str());
        assert!(error.message().starts_with(message), "{error}");
        assert_eq!(error.report().matches(first).count(), 1, "{}", error.report());
    }
    // The suggested pattern works.
    assert_eq!(open("{000,001,003}.tar").unwrap().samples.len(), 3);
    let error = open("100.tar").unwrap_err();
    assert!(!error.message().contains("files"), "{error}");
}

/// A store of tar archives in folders.
#[derive(Debug)]
struct Shards;

impl StoreFactory for Shards {
    fn open(&self, _: &Address, _: &SourceOptions) -> Result<Arc<dyn Fetcher>> {
        let names = ["set/a/1.tar", "set/b/2.tar", "set/b/c/3.tar", "set/x.bin"];
        Ok(Arc::new(MemoryFetcher::from_iter(names.map(|name| (name, numbered(0..2))))))
    }
}

#[test]
fn shards_in_subfolders_are_suggested() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b/c", "d"] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    for name in ["a/1.tar", "b/2.tar", "b/c/3.tar", "d/notes.md"] {
        std::fs::write(folder.path().join(name), numbered(0..2)).unwrap();
    }
    let stores = StoreRegistry::new().register("acme", Arc::new(Shards));
    for place in [folder.path().to_str().unwrap(), "acme://x/set/"] {
        let error = block_on(OpenedDataset::open(&[place], &stores)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let place = place.trim_end_matches('/');
        let all = format!("{place}/{{a,b}}/*.tar");
        let suggestion = format!(
            "; found tar shards in its subfolders `a`, `b`; open `{place}/a`, or all with `{all}`"
        );
        assert!(error.message().ends_with(&suggestion), "{error}");
        // The suggested paths work.
        for (place, samples) in [(format!("{place}/a"), 2), (all, 4)] {
            let data = block_on(OpenedDataset::open(&[place], &stores)).unwrap();
            assert_eq!((data.kind, data.samples.len()), (DatasetKind::TarShards, samples));
        }
    }
    // Subfolders of different kinds cannot be opened together.
    std::fs::write(folder.path().join("d/x.tfrecord"), "x").unwrap();
    let error = block_on(OpenedDataset::open(&[folder.path()], &stores)).unwrap_err();
    assert!(error.message().ends_with("/a`"), "{error}");
}

#[test]
fn keys_of_images_in_nested_folders_are_distinct() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a/1.jpg", "a/b/1.jpg", "a/b/c/1.jpg", "b/1.jpg", "b/a/1.jpg"];
    for name in names {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    let data = block_on(OpenedDataset::open(&[folder.path()], &StoreRegistry::new())).unwrap();
    let items: Vec<_> = (0..5).map(|index| data.samples.item(index).unwrap()).collect();
    for (item, name) in items.iter().zip(names) {
        assert_eq!(item.key.as_str(), folder.path().join(name).to_str());
        assert_eq!(item.label, i64::from(name.starts_with('b')));
    }
    assert_eq!(data.classes, ["a", "b"]);
}

#[test]
fn the_kind_is_detected_by_name() {
    let of = |name: &str| DatasetKind::of_name(name);
    assert_eq!(of("a/b-{0..9}.TAR"), Some(DatasetKind::TarShards));
    assert_eq!(of("a/b-{0..9}.Zip"), Some(DatasetKind::ZipShards));
    assert_eq!(of("s3://bucket/x.parquet"), Some(DatasetKind::Parquet));
    assert_eq!(of("https://host/x.tfrecord?signature=a.png"), Some(DatasetKind::TfRecord));
    assert_eq!(of("mds/index.json"), Some(DatasetKind::Mds));
    assert_eq!(of("train.rec"), Some(DatasetKind::RecordIo));
    assert_eq!((of("x/data.mdb"), of("train.lmdb/")), (Some(DatasetKind::Lmdb), None));
    assert_eq!((of("x/lock.mdb"), of("train.lmdb")), (None, Some(DatasetKind::Lmdb)));
    assert_eq!(of("list.jsonl"), Some(DatasetKind::FileList));
    for name in ["photos", "cat.jpg", "https://host/", "acme:///", "https://host/x.png?y=.tar"] {
        assert_eq!(of(name), None, "{name}");
    }
}

#[test]
fn a_lance_data_set_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.lance");
    fs::create_dir(&path).unwrap();
    let local = path.to_str().unwrap().to_owned();
    for address in [local.clone(), format!("{local}/"), "acme://vault/rows.Lance".to_owned()] {
        let error = block_on(OpenedDataset::open(&[&address], &stores())).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Unsupported, Some(&*address)));
        assert!(error.message().contains("pass the Arrow table to the loader"), "{error}");
    }
}

#[test]
fn records_of_other_programs_are_detected_by_file_or_folder() {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let folder = tempfile::tempdir().unwrap();
    for (from, to) in [
        ("lmdb/plain.lmdb", "single.lmdb"),
        ("lmdb/files/data.mdb", "folder.lmdb/data.mdb"),
        ("recordio/a.rec", "rec/a.rec"),
        ("recordio/labels.rec", "rec/b.rec"),
        ("lmdb/plain.lmdb", "folder.lmdb/lock.mdb"),
    ] {
        let to = folder.path().join(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(data.join(from), to).unwrap();
    }
    let open = |path: std::path::PathBuf| {
        let data = block_on(OpenedDataset::open(&[&path], &StoreRegistry::new()));
        let data = data.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (data.kind, data.samples.len())
    };
    for (name, expected) in [
        ("litdata/tuple", (DatasetKind::LitData, 5)),
        ("litdata/tuple/index.json", (DatasetKind::LitData, 5)),
        ("mds/plain", (DatasetKind::Mds, 5)),
        ("recordio", (DatasetKind::RecordIo, 8)),
        ("lmdb/files", (DatasetKind::Lmdb, 60)),
        ("lmdb/files/data.mdb", (DatasetKind::Lmdb, 60)),
    ] {
        assert_eq!(open(data.join(name)), expected, "{name}");
    }
    for (name, expected) in [
        ("single.lmdb", (DatasetKind::Lmdb, 5)),
        ("folder.lmdb", (DatasetKind::Lmdb, 60)),
        ("{single,folder}.lmdb", (DatasetKind::Lmdb, 65)),
        ("*.lmdb", (DatasetKind::Lmdb, 65)),
        ("folder.lmdb/*.mdb", (DatasetKind::Lmdb, 60)),
        ("rec", (DatasetKind::RecordIo, 8)),
        ("rec/?.rec", (DatasetKind::RecordIo, 8)),
    ] {
        assert_eq!(open(folder.path().join(name)), expected, "{name}");
    }
    let error = block_on(OpenedDataset::open(&[data.join("litdata")], &StoreRegistry::new()));
    let message = error.unwrap_err().message().to_owned();
    assert!(message.contains("shards with `index.json` in its subfolders"), "{message}");
}
