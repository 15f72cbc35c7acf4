//! Tests of local tar shards: samples equal `webdataset`, patterns, damage, content hashes.

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

/// A value in the format of the golden file.
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

/// Sorts the names of members, because their order depends on the features of `serde_json`.
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
fn samples_equal_those_of_webdataset() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["shard-000000.tar", "shard-000001.tar", "shard-000002.tar"];
    for name in names {
        fs::copy(golden(name), folder.path().join(name)).unwrap();
    }
    let pattern = format!("{}/shard-{{000000..000002}}.tar", folder.path().display());
    // Pickles are compared as bytes.
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
fn patterns_and_folders_match_sorted_shards() {
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
    // The index files next to the shards are not shards.
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
fn shards_keep_their_order_for_any_concurrency() {
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
fn samples_before_the_damage_are_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let whole = numbered(0..10);
    // A member takes two blocks: the headers of sample 6 start at block 24.
    let damaged = {
        let mut bytes = whole.clone();
        bytes[24 * 512 + 100] ^= 1;
        bytes
    };
    let truncated = whole[..24 * 512 + 300].to_vec();
    let truncated_in_data = whole[..21 * 512 + 3].to_vec();
    let without_end = whole[..40 * 512].to_vec();
    let cases = [
        (damaged, 5, ErrorKind::Corrupt),
        (truncated, 5, ErrorKind::Truncated),
        (truncated_in_data, 5, ErrorKind::Truncated),
        (without_end, 9, ErrorKind::Truncated),
        (vec![b'x'; 2000], 0, ErrorKind::Corrupt),
        (Vec::new(), 0, ErrorKind::Truncated),
    ];
    for (bytes, valid, kind) in cases {
        let path = folder.path().join("bad.tar");
        fs::write(&path, &bytes).unwrap();
        let next = folder.path().join("next.tar");
        fs::write(&next, numbered(10..12)).unwrap();
        let open = || WebDataset::open_files([&path, &next], &WebDatasetOptions::default());
        let samples = open().unwrap();
        assert_eq!(samples.shard_lens(), [valid + 1, 2]);
        let failure = samples.failures().next().unwrap().clone();
        assert_eq!(failure.kind(), kind);
        assert!(failure.offset().is_some_and(|at| at <= bytes.len() as u64), "{failure}");
        assert!(failure.key().unwrap().contains("bad.tar"), "{failure}");
        // The report has file, offset and reason once.
        let report = failure.report();
        let offset = format!("at byte {}", failure.offset().unwrap());
        let reason = failure.message().split(": ").nth(1).unwrap().split("; ").next().unwrap();
        for part in ["bad.tar", &offset, reason] {
            assert_eq!(report.matches(part).count(), 1, "{part}: {report}");
        }
        assert!(!TarIndex::path_of(&path).exists(), "the index of a damaged shard is not saved");

        let mut records = process(samples, FetchRecord::new(Arc::new(LocalFetcher::new())));
        let error = records.pop().unwrap().unwrap_err();
        assert_eq!(error.kind(), kind);
        let names = records.into_iter().map(|record| record.unwrap().key.to_string());
        let expected: Vec<_> =
            (0..valid).map(|number| format!("{}:{number:04}", path.display())).collect();
        assert_eq!(names.collect::<Vec<_>>(), expected);

        let pipeline = PipelineBuilder::new(DatasetSource::new(open().unwrap()))
            .on_error(OnError::Skip { at_most: Some(1) })
            .async_stage("fetch", FetchRecord::new(Arc::new(LocalFetcher::new())))
            .build()
            .unwrap();
        assert_eq!(pipeline.map(Result::unwrap).count() as u64, valid + 2);
    }
}

#[test]
fn errors_name_shard_member_and_offset() {
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
fn pickles_are_unsupported_unless_read_as_bytes() {
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
fn compressed_shards_and_commands_are_unsupported() {
    // The command itself is not shown.
    let command = "pipe:curl -H canary a.tar";
    for name in ["a.tar.gz", "a.tgz", "a.TAR.ZST", command] {
        let error = WebDataset::open(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert_eq!(error.key(), Some(if name == command { "pipe:" } else { name }));
    }
}

#[test]
fn the_content_hash_depends_on_samples_not_on_paths() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let hash = |folder: &tempfile::TempDir, bytes: &[u8]| {
        let path = folder.path().join("shard.tar");
        let _ = fs::remove_file(TarIndex::path_of(&path));
        fs::write(&path, bytes).unwrap();
        WebDataset::open(path.to_str().unwrap()).unwrap().content_hash().unwrap()
    };
    let of = |files: &[(&'static str, &'static [u8])]| archive(files.iter().copied());
    let shard = of(&[("1.jpg", b"abc"), ("2.jpg", b"d")]);
    let one = hash(&folders[0], &shard);
    assert_eq!(one, hash(&folders[1], &shard));
    // The hash must not change between versions, so that saved states remain valid.
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
fn images_and_classes_equal_those_of_an_image_folder() {
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
