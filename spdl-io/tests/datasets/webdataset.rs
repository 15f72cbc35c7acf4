//! Shards of this machine: what webdataset reads in them, and what is damaged.

// promise of this file: DATA7

use std::fs;
use std::sync::Arc;

use spdl_core::source::sampler::{Sampler, ShardWindow};
use spdl_core::{Dataset, DatasetSource, ErrorKind, OnError, PipelineBuilder};
use spdl_io::archive::TarIndex;
use spdl_io::datasets::{WebDataset, WebDatasetOptions};
use spdl_io::records::{Encoding, IMAGE_EXTENSIONS};
use spdl_io::{FetchLabeled, FetchRecord, FieldValue, LocalFetcher};

use crate::{archive, golden, golden_lines, numbered, process, read_all};

/// A value as the golden list shows it.
fn shown(value: &FieldValue) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match value {
        FieldValue::Bytes(bytes) => format!("bytes {}", hex(bytes)),
        FieldValue::Text(text) => format!("text {}", hex(text.as_bytes())),
        FieldValue::Integer(number) => format!("integer {number}"),
        FieldValue::Json(value) => format!("json {}", with_sorted_names(value)),
        FieldValue::Array(array) => format!("array {} {:?}", array.element(), array.shape()),
        other => panic!("{other:?}"),
    }
}

/// Whether the crate keeps the order of names depends on what else is built.
fn with_sorted_names(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(members) => {
            let mut names: Vec<_> = members.keys().collect();
            names.sort();
            let member =
                |name: &String| format!("{name:?}:{}", with_sorted_names(&members[name.as_str()]));
            format!("{{{}}}", names.into_iter().map(member).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

#[test]
fn samples_and_values_are_those_of_pythons_webdataset() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["shard-000000.tar", "shard-000001.tar", "shard-000002.tar"];
    for name in names {
        fs::copy(golden(name), folder.path().join(name)).unwrap();
    }
    let pattern = format!("{}/shard-{{000000..000002}}.tar", folder.path().display());
    // What is not read is compared as bytes.
    let options = WebDatasetOptions::default().encoding("pyd", Encoding::Bytes);
    let samples = WebDataset::open_with(&pattern, &options).unwrap();
    assert_eq!(samples.shards().len(), 3);
    assert_eq!(samples.len(), samples.shard_lens().iter().sum::<u64>());
    assert_eq!(samples.failures().count(), 0);
    let mut lines = Vec::new();
    for record in read_all(samples, Arc::new(LocalFetcher::new())) {
        let key = record.key.as_str().unwrap();
        let (shard, name) = key.split_once(".tar:").unwrap();
        let shard = format!("{}.tar", shard.rsplit('/').next().unwrap());
        for (field, value) in &record.fields {
            let line = [&shard, name, field, &shown(value)];
            lines.push(line.map(str::to_owned).to_vec());
        }
    }
    assert_eq!(lines, golden_lines("samples.tsv"));
}

#[test]
fn patterns_and_folders_mean_shards_in_the_order_of_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (number, name) in ["b-0.tar", "a-1.tar", "a-0.tar", ".hidden.tar"].iter().enumerate() {
        fs::write(path(name), numbered(number..number + 1)).unwrap();
    }
    fs::write(path("notes.txt"), "no shard").unwrap();
    let root = folder.path().to_str().unwrap();
    let opened = |pattern: &str| {
        let samples = WebDataset::open(&format!("{root}{pattern}"))?;
        let name = |key: &spdl_io::Key| key.as_str().unwrap()[root.len() + 1..].to_owned();
        Ok::<_, spdl_core::Error>(samples.shards().map(name).collect::<Vec<_>>())
    };
    assert_eq!(opened("").unwrap(), ["a-0.tar", "a-1.tar", "b-0.tar"]);
    // Indices now lie beside them, and are no shards.
    assert!(path("a-0.tar.idx").exists());
    assert_eq!(opened("/").unwrap(), ["a-0.tar", "a-1.tar", "b-0.tar"]);
    assert_eq!(opened("/*.tar").unwrap(), ["a-0.tar", "a-1.tar", "b-0.tar"]);
    assert_eq!(opened("/a-?.tar").unwrap(), ["a-0.tar", "a-1.tar"]);
    assert_eq!(opened("/{b,a}-*r").unwrap(), ["b-0.tar", "a-0.tar", "a-1.tar"]);
    assert_eq!(opened("/{b-0,a-1}.tar").unwrap(), ["b-0.tar", "a-1.tar"]);
    for pattern in ["/c-*.tar", "/a-{0..2}.tar"] {
        let error = opened(pattern).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.key().unwrap().contains(".tar"), "{error}");
    }
    let error = WebDataset::open_files([""; 0], &WebDatasetOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn many_shards_keep_their_order_however_many_are_opened_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..20).map(|it| folder.path().join(format!("{it}.tar"))).collect();
    for (number, path) in paths.iter().enumerate() {
        fs::write(path, numbered(3 * number..3 * number + 3)).unwrap();
    }
    for concurrency in [0, 1, 3, 64] {
        let options = WebDatasetOptions::default().concurrency(concurrency);
        let samples = WebDataset::open_files(&paths, &options).unwrap();
        assert_eq!(samples.shard_lens(), [3; 20]);
        let name = |index| samples.item(index).unwrap().key.to_string();
        for index in 0..60 {
            assert!(name(index).ends_with(&format!("{}.tar:{index:04}", index / 3)));
        }
        assert_eq!(samples.item(60).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(samples.item(u64::MAX).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let order = ShardWindow::new(samples.shard_lens(), 10, 7).unwrap();
        let order = order.epoch(60, 0).unwrap();
        let mut seen: Vec<_> = (0..60).map(|at| order.at(at)).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..60).collect::<Vec<_>>());
    }
}

#[test]
fn what_lies_before_a_damage_is_delivered_and_then_comes_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let whole = numbered(0..10);
    // A member takes two blocks: the headers of sample 6 start at block 24.
    let damaged = {
        let mut bytes = whole.clone();
        bytes[24 * 512 + 100] ^= 1;
        bytes
    };
    let cut = whole[..24 * 512 + 300].to_vec();
    let cut_in_data = whole[..21 * 512 + 3].to_vec();
    let without_end = whole[..40 * 512].to_vec();
    let cases = [
        (damaged, 5, ErrorKind::Corrupt),
        (cut, 5, ErrorKind::Truncated),
        (cut_in_data, 5, ErrorKind::Truncated),
        (without_end, 9, ErrorKind::Truncated),
        (vec![b'x'; 2000], 0, ErrorKind::Corrupt),
        (Vec::new(), 0, ErrorKind::Truncated),
    ];
    for (bytes, sound, kind) in cases {
        let path = folder.path().join("bad.tar");
        fs::write(&path, &bytes).unwrap();
        let next = folder.path().join("next.tar");
        fs::write(&next, numbered(10..12)).unwrap();
        let open = || WebDataset::open_files([&path, &next], &WebDatasetOptions::default());
        let samples = open().unwrap();
        assert_eq!(samples.shard_lens(), [sound + 1, 2]);
        let failure = samples.failures().next().unwrap().clone();
        assert_eq!(failure.kind(), kind);
        assert!(failure.offset().is_some_and(|at| at <= bytes.len() as u64), "{failure}");
        assert!(failure.key().unwrap().contains("bad.tar"), "{failure}");
        // What is wrong, and where, is told once.
        let report = failure.report();
        let offset = format!("at byte {}", failure.offset().unwrap());
        let reason = failure.message().split(": ").nth(1).unwrap().split("; ").next().unwrap();
        for part in ["bad.tar", &offset, reason] {
            assert_eq!(report.matches(part).count(), 1, "{part}: {report}");
        }
        assert!(!TarIndex::path_of(&path).exists(), "an index of a damaged shard is not kept");

        let mut records = process(samples, FetchRecord::new(Arc::new(LocalFetcher::new())));
        let error = records.pop().unwrap().unwrap_err();
        assert_eq!(error.kind(), kind);
        let names = records.into_iter().map(|record| record.unwrap().key.to_string());
        let expected: Vec<_> =
            (0..sound).map(|number| format!("{}:{number:04}", path.display())).collect();
        assert_eq!(names.collect::<Vec<_>>(), expected);

        let pipeline = PipelineBuilder::new(DatasetSource::new(open().unwrap()))
            .on_error(OnError::Skip { at_most: Some(1) })
            .async_stage("fetch", FetchRecord::new(Arc::new(LocalFetcher::new())))
            .build()
            .unwrap();
        assert_eq!(pipeline.map(Result::unwrap).count() as u64, sound + 2);
    }
}

#[test]
fn an_error_names_the_shard_the_member_and_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.tar");
    fs::write(&path, archive([("1.jpg", &b"x"[..]), ("1.cls", b"seven")])).unwrap();
    let samples = WebDataset::open(path.to_str().unwrap()).unwrap();
    let error = process(samples, FetchRecord::new(Arc::new(LocalFetcher::new()))).remove(0);
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.key(), Some(&*format!("{}:1.cls", path.display())));
    assert_eq!(error.offset(), Some(3 * 512), "{error}");
}

// promise: R20
#[test]
fn a_pickle_is_never_read_and_its_bytes_only_where_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.tar");
    let pickle = b"cos\nsystem\n(S'false'\ntR.";
    for extension in ["pyd", "pkl", "pickle", "pth", "pt", "x.PKL"] {
        let name = format!("1.{extension}");
        fs::write(&path, archive([("1.jpg", &b"x"[..]), (&name, pickle)])).unwrap();
        let fetch = FetchRecord::new(Arc::new(LocalFetcher::new()));
        let open = || WebDataset::open(path.to_str().unwrap()).unwrap();
        let error = process(open(), fetch.clone()).remove(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("pickle"), "{error}");
        assert_eq!(process(open(), fetch.clone().with_fields(["jpg"])).len(), 1);

        let extension = extension.to_lowercase();
        let options = WebDatasetOptions::default().encoding(&*extension, Encoding::Bytes);
        let as_bytes = WebDataset::open_with(path.to_str().unwrap(), &options).unwrap();
        let record = process(as_bytes, fetch).remove(0).unwrap();
        assert_eq!(record.get(&extension).unwrap().as_bytes().unwrap(), &pickle[..]);
        let _ = fs::remove_file(TarIndex::path_of(&path));
    }
}

#[test]
fn what_cannot_be_read_by_parts_and_what_is_a_command_is_unsupported() {
    // Of a command no more is shown than that it is one.
    let command = "pipe:curl -H canary a.tar";
    for name in ["a.tar.gz", "a.tgz", "a.TAR.ZST", command] {
        let error = WebDataset::open(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert_eq!(error.key(), Some(if name == command { "pipe:" } else { name }));
    }
}

#[test]
fn the_hash_tells_samples_apart_and_not_where_they_lie() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let hash = |folder: &tempfile::TempDir, bytes: &[u8]| {
        let path = folder.path().join("shard.tar");
        let _ = fs::remove_file(TarIndex::path_of(&path));
        fs::write(&path, bytes).unwrap();
        WebDataset::open(path.to_str().unwrap()).unwrap().content_hash().unwrap()
    };
    let of = |files: &[(&'static str, &'static [u8])]| archive(files.iter().copied());
    let sound = of(&[("1.jpg", b"abc"), ("2.jpg", b"d")]);
    let one = hash(&folders[0], &sound);
    assert_eq!(one, hash(&folders[1], &sound));
    // Fixed: a state that was saved by an older version must still fit.
    assert_eq!(one, 17_853_924_099_700_540_912);
    let others: [&[(&str, &[u8])]; 4] = [
        &[("1.jpg", b"abc"), ("3.jpg", b"d")],
        &[("1.jpg", b"abcd"), ("2.jpg", b"d")],
        &[("1.jpg", b"abc"), ("2.png", b"d")],
        &[("1.jpg", b"abc"), ("1.2.jpg", b"d")],
    ];
    for other in others {
        assert_ne!(one, hash(&folders[0], &of(other)), "{other:?}");
    }
}

#[test]
fn an_image_and_its_class_are_what_a_folder_of_images_would_give() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.tar");
    fs::write(&path, numbered(0..3)).unwrap();
    assert!(IMAGE_EXTENSIONS.contains(&"jpg"));
    let samples = WebDataset::open(path.to_str().unwrap()).unwrap();
    let images = process(samples, FetchLabeled::new(Arc::new(LocalFetcher::new())));
    for (number, image) in images.into_iter().enumerate() {
        let image = image.unwrap();
        assert_eq!((image.value, image.label), (format!("picture {number}").into(), number as i64));
    }
}
