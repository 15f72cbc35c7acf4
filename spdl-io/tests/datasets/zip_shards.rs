//! Tests of zip archives as shards: samples, classes, checksums, range requests, damage.

// promise of this file: DATA7

use std::fs;
use std::io::{Cursor, Write};

use spdl_core::{Error, ErrorKind, OnError, block_on};
use spdl_io::datasets::{DatasetKind, OpenedDataset, WebDataset, WebDatasetOptions};
use spdl_io::{FetchLabeled, FieldValue, StoreRegistry};
use zip::CompressionMethod::{Deflated, Stored};
use zip::write::SimpleFileOptions;

use super::*;

const FILES: [(&str, &[u8]); 8] = [
    ("set/b.txt", b"words of b"),
    ("set/a.json", br#"{"x": [1, 2]}"#),
    ("set/a.JPG", b"picture a"),
    ("__MACOSX/set/._a.jpg", b"hidden"),
    ("set/b.jpg", b"picture b"),
    ("set/a-2.jpg", b"picture a-2"),
    ("set/a.cls", b"3"),
    ("readme", b"no extension"),
];

/// A zip archive with these files, stored and compressed in turn, and with the folder `set`.
fn zipped<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    writer.add_directory("set/", SimpleFileOptions::default()).unwrap();
    for (number, (name, data)) in files.into_iter().enumerate() {
        let method = if number % 2 == 0 { Deflated } else { Stored };
        writer.start_file(name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(data).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn fetch(fetcher: &Arc<dyn Fetcher>, key: &str) -> Result<WebDataset> {
    block_on(WebDataset::fetch_files(fetcher, [key], &WebDatasetOptions::default()))
}

fn open(path: &Path) -> Result<OpenedDataset> {
    block_on(OpenedDataset::open(&[path], &StoreRegistry::new()))
}

#[test]
fn members_are_grouped_as_in_a_sorted_tar_archive() {
    let mut sorted = FILES;
    // `a-2.jpg` is sorted before `a.jpg`, and does not separate the members of `a`.
    sorted.sort();
    let fetcher: Arc<dyn Fetcher> =
        Arc::new(MemoryFetcher::from_iter([("1.zip", zipped(FILES)), ("1.tar", archive(sorted))]));
    let of = |key: &str| {
        let read = read_all(fetch(&fetcher, key).unwrap(), Arc::clone(&fetcher));
        let name = |record: &Record| record.key.to_string().split_once(':').unwrap().1.to_owned();
        read.iter().map(|record| (name(record), record.fields.clone())).collect::<Vec<_>>()
    };
    let samples = of("1.zip");
    assert_eq!(samples, of("1.tar"));
    assert_eq!(
        samples.iter().map(|(name, _)| &**name).collect::<Vec<_>>(),
        ["set/a-2", "set/a", "set/b"]
    );
    assert_eq!(samples[1].1[1], ("cls".into(), FieldValue::Integer(3)));
}

#[test]
fn a_zip_archive_in_a_store_is_read_by_ranges() {
    let noise: Vec<u8> =
        (0..200_000_u32).map(|it| (it.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let files = [("1.jpg", &noise[..]), ("2.jpg", b"a"), ("2.cls", b"1"), ("3.jpg", &noise)];
    let store = Recording::new([("photos.zip", zipped(files))]);
    let fetcher = store.arc();
    let samples = fetch(&fetcher, "photos.zip").unwrap();
    let requests = store.requests();
    let (first, others) = requests.split_first().unwrap();
    assert_eq!((&**first, others.len()), ("stat photos.zip", 1));
    assert!(others[0].starts_with("read photos.zip Some("), "{requests:?}");
    let labeled =
        process(samples, FetchLabeled::new(Arc::clone(&fetcher)).with_label_fields(["cls"]));
    // Samples 1 and 3 have no label field.
    assert!(labeled[0].is_err());
    let only = FetchRecord::new(Arc::clone(&fetcher)).with_fields(["jpg"]);
    store.requests();
    let images = process(fetch(&fetcher, "photos.zip").unwrap(), only);
    assert_eq!(images[1].as_ref().unwrap().get("jpg").unwrap().as_bytes().unwrap(), "a");
    let requests = store.requests();
    assert_eq!(requests.len(), 2 + 3, "{requests:?}");
    assert!(requests[2..].iter().all(|it| it.starts_with("read photos.zip Some(")), "{requests:?}");
}

#[test]
fn folders_of_a_zip_archive_are_classes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("photos.zip");
    let files =
        [("photos/dog/2.jpg", &b"2"[..]), ("photos/cat/1.jpg", b"1"), ("photos/dog/1.png", b"3")];
    fs::write(&path, zipped(files)).unwrap();
    // The folder of the archive stands for it, unless it has other folders.
    for place in [&*path, folder.path()] {
        let data = open(place).unwrap();
        assert_eq!(
            (data.kind, &data.classes[..]),
            (DatasetKind::ZipShards, &["cat".into(), "dog".into()][..])
        );
        assert_eq!((data.is_local, data.classes_in_folders()), (true, Some(2)));
        let images = process(Arc::clone(&data.samples), data.fetch_labeled());
        let images: Vec<_> =
            images.into_iter().map(|it| it.map(|it| (it.label, it.value)).unwrap()).collect();
        let expected = [(0, "1".into()), (1, "3".into()), (1, "2".into())];
        assert_eq!(images, expected);
        assert!(data.unlabeled().is_none());
    }
    fs::create_dir(folder.path().join("cat")).unwrap();
    fs::write(folder.path().join("cat/1.jpg"), "a picture").unwrap();
    assert_eq!(open(folder.path()).unwrap().kind, DatasetKind::ImageFolder);
    assert_eq!(WebDataset::open(path.to_str().unwrap()).unwrap().len(), 3);
}

#[test]
fn names_in_a_zip_archive_of_an_image_folder_end_at_the_last_dot() {
    let names_of = |names: &[&'static str]| {
        let files: Vec<_> = names.iter().map(|name| (*name, name.as_bytes())).collect();
        let fetcher: Arc<dyn Fetcher> =
            Arc::new(MemoryFetcher::from_iter([("1.zip", zipped(files))]));
        let samples = read_all(fetch(&fetcher, "1.zip").unwrap(), fetcher);
        let of = |record: &Record| {
            let fields: Vec<_> = record.fields.iter().map(|(name, _)| name.to_string()).collect();
            format!("{} {}", record.key.to_string().trim_start_matches("1.zip:"), fields.join(" "))
        };
        samples.iter().map(of).collect::<Vec<_>>()
    };
    let numbered =
        ["cat.1.jpg", "cat.2.jpg", "dog.1.PNG", "cat.3.jpg", ".hidden.jpg", "__MACOSX/._x.1.jpg"];
    assert_eq!(names_of(&numbered), ["cat.1 jpg", "cat.2 jpg", "cat.3 jpg", "dog.1 png"]);
    // The texts between the dots occur once each.
    let hashed = ["a/1_jpg.rf.0af3.jpg", "b/2_jpg.rf.77c1.jpg", "b/3.jpg"];
    assert_eq!(names_of(&hashed), ["a/1_jpg.rf.0af3 jpg", "b/2_jpg.rf.77c1 jpg", "b/3 jpg"]);
    // The same fields in all samples.
    let pairs = ["1.left.jpg", "1.right.jpg", "2.left.jpg", "2.right.jpg"];
    assert_eq!(names_of(&pairs), ["1 left.jpg right.jpg", "2 left.jpg right.jpg"]);
    assert_eq!(names_of(&["1.jpg", "1.seg.png", "2.jpg"]), ["1 jpg seg.png", "2 jpg"]);
    // Not only images.
    assert_eq!(names_of(&["cat.1.jpg", "cat.2.jpg", "cat.txt"]), ["cat 1.jpg 2.jpg txt"]);
}

/// The error of reading the sample `number`, or of opening.
fn error_of(bytes: Vec<u8>, number: usize) -> Error {
    let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter([("1.zip", bytes)]));
    match fetch(&fetcher, "1.zip") {
        Ok(samples) => process(samples, FetchRecord::new(fetcher)).swap_remove(number).unwrap_err(),
        Err(error) => error,
    }
}

#[test]
fn damage_is_an_error_that_names_the_member() {
    let files =
        [("a.jpg", &b"a picture"[..]), ("b.jpg", b"another picture"), ("c.jpg", b"the last")];
    let whole = zipped(files);
    let at = |data: &[u8]| whole.windows(data.len()).position(|it| it == data).unwrap();
    let changed = |at: usize, byte: u8| {
        let mut changed = whole.clone();
        changed[at] = byte;
        changed
    };
    // `b.jpg` is stored, and `a.jpg` is compressed.
    let error = error_of(changed(at(b"another picture"), b'A'), 1);
    assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some("1.zip:b.jpg")));
    assert!(error.message().contains("CRC-32 mismatch"), "{error}");
    let error = error_of(changed(at(b"a.jpg") + 5, 0xFF), 0);
    assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some("1.zip:a.jpg")));
    // The other samples can be read.
    let damaged = changed(at(b"another picture"), b'A');
    let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter([("1.zip", damaged)]));
    let pipeline = PipelineBuilder::new(DatasetSource::new(fetch(&fetcher, "1.zip").unwrap()))
        .on_error(OnError::Skip { at_most: Some(1) })
        .async_stage("fetch", FetchRecord::new(fetcher))
        .build()
        .unwrap();
    assert_eq!(pipeline.map(Result::unwrap).count(), 2);
    // An encrypted member is a bad sample.
    let central = whole.windows(4).position(|it| it == b"PK\x01\x02").unwrap();
    let second =
        central + whole[central + 4..].windows(4).position(|it| it == b"PK\x01\x02").unwrap() + 4;
    let third =
        second + whole[second + 4..].windows(4).position(|it| it == b"PK\x01\x02").unwrap() + 4;
    let error = error_of(changed(third + 8, whole[third + 8] | 1), 1);
    assert_eq!((error.kind(), error.key()), (ErrorKind::Unsupported, Some("1.zip:b.jpg")));
    // A truncated archive has no central directory.
    for len in [whole.len() - 1, whole.len() / 2, 0] {
        let error = error_of(whole[..len].to_vec(), 0);
        assert!(matches!(error.kind(), ErrorKind::Truncated | ErrorKind::Corrupt), "{error}");
        assert_eq!(error.key(), Some("1.zip"));
    }
    // Each name must be unique.
    let twice = [("a.jpg", &b"1"[..]), ("A.jpg", b"2"), ("a.JPG", b"3")];
    let error = error_of(zipped(twice), 1);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("duplicate field \"jpg\""), "{error}");
}

#[test]
fn a_sample_above_the_limit_is_not_read() {
    let fetcher: Arc<dyn Fetcher> =
        Arc::new(MemoryFetcher::from_iter([("1.zip", zipped([("a.jpg", &[b'x'; 100][..])]))]));
    let stage = FetchRecord::new(Arc::clone(&fetcher)).with_max_bytes(99);
    let error = process(fetch(&fetcher, "1.zip").unwrap(), stage).remove(0).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::LimitExceeded, Some("1.zip:a")));
}

#[test]
fn compressed_tar_archives_have_an_error_with_advice() {
    for name in ["photos.tar.gz", "photos.tgz", "photos.tar.zst"] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name), "compressed").unwrap();
        let error = open(&folder.path().join(name)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.message().contains("sequential=True") && error.message().contains("gunzip"),
            "{error}"
        );
        assert!(error.key().unwrap().ends_with(name));
    }
}
