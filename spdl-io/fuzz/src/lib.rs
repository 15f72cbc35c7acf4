//! The checks that the fuzz targets of `spdl-io` run on their inputs.
//!
//! The fuzzer reports panics, errors of a kind that is reserved for mistakes of the caller,
//! contradictory results, and runs beyond its time or memory limit.

#![forbid(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;
use spdl_core::memory::BufferPool;
use spdl_core::{Dataset, Error, ErrorKind, Result, block_on};
use spdl_io::archive::{
    AfterEnd, ArchiveStamp, NpyArray, NpzArchive, TarEntry, TarIndex, TarOptions, TarSlice,
    TarStream, ZipOptions, ZipSlice,
};
use spdl_io::datasets::{
    FileList, FileListOptions, ListFormat, LitDataset, LmdbDataset, LmdbOptions, MdsDataset,
    MdsOptions, ParquetDataset, ParquetOptions, RecordIoDataset, RecordIoOptions, TfRecordDataset,
    TfRecordOptions, WebDataset, WebDatasetOptions, expand_braces, parse_example,
};
use spdl_io::records::{Extent, FieldRequest, StoredField};
use spdl_io::{Fetcher, MemoryFetcher, StoredRecord};

/// Damage must be reported by one of four error kinds, with its position.
fn check(error: &Error) {
    let kinds = [
        ErrorKind::Corrupt,
        ErrorKind::Truncated,
        ErrorKind::Unsupported,
        ErrorKind::LimitExceeded,
    ];
    assert!(kinds.contains(&error.kind()), "{}", error.report());
}

/// Parses a tar archive in memory and as a stream. The results must be equal.
pub fn tar(file: &[u8]) {
    let archive = Bytes::copy_from_slice(file);
    for after_end in [AfterEnd::Ignore, AfterEnd::Refuse, AfterEnd::Continue] {
        let options = TarOptions::default()
            .after_end(after_end)
            .accept_missing_end(file.len().is_multiple_of(2))
            .max_extension_bytes(1 << 16);
        let by_slice: Vec<Result<TarEntry>> =
            TarSlice::with_options(archive.clone(), options).collect();
        let mut stream = TarStream::with_options(file, options);
        for entry in &by_slice {
            let streamed = stream.next_entry();
            match (entry, streamed) {
                (Ok(entry), Ok(streamed)) => {
                    assert_eq!(Some(entry), streamed.as_ref());
                    if entry.size % 2 == 0
                        && let Ok(data) = TarSlice::new(archive.clone()).data(entry)
                    {
                        assert_eq!(stream.data().expect("data"), data);
                    }
                }
                (Err(error), Err(streamed)) => {
                    check(error);
                    assert_eq!(error.kind(), streamed.kind());
                    assert_eq!(error.offset(), streamed.offset());
                }
                (entry, streamed) => panic!("{entry:?}, but {streamed:?}"),
            }
        }
        assert!(stream.next_entry().expect("the end").is_none());
        for error in
            TarSlice::with_options(archive.clone(), options).files().filter_map(Result::err)
        {
            check(&error);
        }
    }
}

/// Parses a tar index with a valid checksum, and indexes a tar archive.
pub fn tar_index(file: &[u8]) {
    let options = TarOptions::default();
    // The input contains the size and modification time of the archive, so that the fuzzer need not
    // guess them.
    let number = |at: usize| {
        let bytes = file.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    let stamp = ArchiveStamp::new(number(16));
    let mut forged = file.to_vec();
    forged.extend_from_slice(&twox_hash::XxHash3_128::oneshot(file).to_le_bytes());
    if let Ok(index) = TarIndex::from_bytes(&forged, &stamp, options) {
        check_index(&index);
        let again = TarIndex::from_bytes(&index.to_bytes(), &stamp, options).expect("its own file");
        assert!(again.iter().eq(index.iter()));
    }
    let stamp = ArchiveStamp::new(file.len() as u64);
    let entries = TarSlice::new(Bytes::copy_from_slice(file));
    if let Ok(index) = TarIndex::from_entries(entries, stamp.clone(), options) {
        check_index(&index);
        let again = TarIndex::from_bytes(&index.to_bytes(), &stamp, options).expect("its own file");
        assert!(again.iter().eq(index.iter()));
    }
}

fn check_index(index: &TarIndex) {
    for (number, entry) in index.iter().enumerate() {
        assert!(entry.data_range().end <= index.stamp().size());
        let position = index.find(entry.key.as_bytes()).expect("a member by its name");
        assert_eq!(index.name(position), Some(entry.key.as_bytes()));
        let _ = index.file(number);
    }
}

/// Reads a zip archive.
pub fn zip(file: &[u8]) {
    let options = ZipOptions::default().max_file_bytes(1 << 24);
    match ZipSlice::with_options(Bytes::copy_from_slice(file), options) {
        Err(error) => check(&error),
        Ok(archive) => {
            for entry in archive.entries() {
                assert!(archive.find(&entry.key).is_some());
                match archive.data(entry) {
                    Ok(data) => assert_eq!(data.len() as u64, entry.size),
                    Err(error) => check(&error),
                }
            }
        }
    }
}

/// Opens a zip archive as a data set, and reads its samples.
pub fn zip_shard(file: &[u8]) {
    let archive = Bytes::copy_from_slice(file);
    let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter([("a.zip", archive)]));
    let options = WebDatasetOptions::default();
    let opened = WebDataset::fetch_files(&fetcher, ["a.zip"], &options);
    let samples = match block_on(opened) {
        Ok(samples) => samples,
        Err(error) => return check_key(&error),
    };
    for index in 0..samples.len().min(8) {
        let read = samples.item(index).and_then(|record| {
            let row = record.row.expect("a row");
            let request = FieldRequest::all(1 << 20);
            block_on(row.group.read(&fetcher, row.row, &request))
        });
        if let Err(error) = read {
            check_key(&error);
        }
    }
}

/// Parses annotations of Pascal VOC, and an image set.
pub fn voc(file: &[u8]) {
    let file = Bytes::copy_from_slice(file);
    let (set, xml) = ("a/ImageSets/Main/x.txt", "a/Annotations/1.xml");
    for objects in
        [[(set, "1\n".into()), (xml, file.clone())], [(set, file.clone()), (xml, "".into())]]
    {
        let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter(objects));
        match block_on(FileList::fetch_voc(&fetcher, set)) {
            Ok(list) => {
                for index in 0..list.len() {
                    if let Err(error) = list.item(index) {
                        check_key(&error);
                    }
                }
            }
            Err(error) => {
                check_key(&error);
                assert!(error.offset().is_none_or(|at| at <= file.len() as u64));
            }
        }
    }
}

/// Reads an `npy` or `npz` file.
pub fn npy(file: &[u8]) {
    match NpyArray::from_bytes(Bytes::copy_from_slice(file)) {
        Ok(array) => {
            let elements = match array.shape().contains(&0) {
                true => 0,
                false => array.shape().iter().product::<usize>(),
            };
            assert_eq!(array.data().len(), elements * array.element().size());
            let _ = array.to_array(&BufferPool::new());
        }
        Err(error) => check(&error),
    }
    if let Ok(archive) = NpzArchive::new(Bytes::copy_from_slice(file)) {
        for name in archive.names() {
            if let Err(error) = archive.get(name) {
                check(&error);
            }
        }
    }
}

/// Expands a brace pattern, and parses labels of ImageNet and a file list in each format.
pub fn lists(file: &[u8]) {
    if let Ok(pattern) = std::str::from_utf8(file)
        && let Err(error) = expand_braces(pattern)
    {
        let kinds = [ErrorKind::InvalidArgument, ErrorKind::LimitExceeded];
        assert!(kinds.contains(&error.kind()), "{}", error.report());
        assert!(error.offset().is_none_or(|at| at <= file.len() as u64), "{}", error.report());
    }
    if let Err(error) = FileList::from_imagenet_labels(file, "val") {
        assert!(error.offset().is_none_or(|at| at <= file.len() as u64));
        if error.kind() != ErrorKind::NotFound {
            check(&error);
        }
    }
    for format in [ListFormat::Lines, ListFormat::Csv, ListFormat::JsonLines] {
        let text = Bytes::copy_from_slice(file);
        match FileList::parse(text, format, "data", &FileListOptions::default()) {
            Ok(list) => {
                for index in 0..list.len() {
                    let item = list.item(index).expect("a row that was read before");
                    let classes = list.classes().len() as i64;
                    assert!(classes == 0 || (-1..classes).contains(&item.label));
                }
            }
            Err(error) => {
                assert!(error.offset().is_none_or(|at| at <= file.len() as u64));
                // Empty lists and unknown columns are not damage.
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument) {
                    check(&error);
                }
            }
        }
    }
}
/// Reads some samples of a data set, if it can be opened.
fn samples<D: Dataset<Item = StoredRecord>>(fetcher: &Arc<dyn Fetcher>, opened: Result<D>) {
    let samples = match opened {
        Ok(samples) => samples,
        Err(error) => return check_key(&error),
    };
    for index in 0..samples.len().min(8) {
        let record = match samples.item(index) {
            Ok(record) => record,
            Err(error) => {
                check_key(&error);
                continue;
            }
        };
        for (_, field) in &record.fields {
            if let StoredField::At(Extent { object, range, .. }, encoding) = field {
                let data = block_on(fetcher.read(object, range.clone())).expect("a checked range");
                if let Err(error) = encoding.decode(data) {
                    check(&error);
                }
            }
        }
        let Some(row) = record.row else { continue };
        let request = FieldRequest::all(1 << 20);
        if let Err(error) = block_on(row.group.read(fetcher, row.row, &request)) {
            check_key(&error);
        }
    }
}

fn check_key(error: &Error) {
    // An index may name missing files.
    if error.kind() != ErrorKind::NotFound {
        check(error);
    }
    assert!(error.key().is_some(), "{}", error.report());
}

/// Reads a TFRecord file without checking checksums, and parses a record.
pub fn tfrecord(file: &[u8]) {
    let record = Bytes::copy_from_slice(file);
    if let Err(error) = parse_example(&record, &FieldRequest::all(1 << 20)) {
        check(&error);
    }
    let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter([("a", record)]));
    let options = TfRecordOptions::default();
    let opened = TfRecordDataset::fetch_files(&fetcher, ["a"], &options);
    samples(&fetcher, block_on(opened));
}

/// Parses the index of an MDS data set, and a shard with a column of each encoding.
pub fn mds(file: &[u8]) {
    let shard = Bytes::copy_from_slice(file);
    let sample_count = u32::from_le_bytes(*file.first_chunk().unwrap_or(&[0; 4]));
    let index = format!(
        r#"{{"version": 2, "shards": [{{"version": 2, "format": "mds", "compression": null,
        "column_names": ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"],
        "column_encodings": ["int", "ndarray", "ndarray:float32", "ndarray:uint8:2,2", "pil", "json",
            "str", "list[jpeg]", "jpeg_array", "float16"],
        "column_sizes": [8, null, null, 4, null, null, null, null, null, 2],
        "samples": {sample_count}, "zip_data": null,
        "raw_data": {{"basename": "shard", "bytes": {}, "hashes": {{}}}}}}]}}"#,
        file.len()
    );
    for index in [Bytes::from(index), shard.clone()] {
        let objects = [("a/index.json", index), ("a/shard", shard.clone())];
        let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter(objects));
        let options = MdsOptions::default();
        let opened = MdsDataset::fetch(&fetcher, "a", &options);
        samples(&fetcher, block_on(opened));
    }
}

/// Parses the index of a LitData data set, and a chunk with a leaf of each type.
pub fn litdata(file: &[u8]) {
    let chunk = Bytes::copy_from_slice(file);
    let start =
        |at: usize| file.get(at..at + 4).map_or([0; 4], |it| it.try_into().expect("4 bytes"));
    let index = |config: &str, count: [u8; 4]| {
        let (count, size) = (u32::from_le_bytes(count), file.len());
        let leaves = r#"["int", "numpy", "tensor", "no_header_numpy:3", "no_header_tensor:1", "pil", "json",
            "str", "jpeg_array", "bool"]"#;
        Bytes::from(format!(
            r#"{{"chunks": [{{"chunk_bytes": {size}, "chunk_size": {count}, "dim": null, "filename": "chunk"}}],
            "config": {{"data_format": {leaves}, "data_spec": null, {config}}}}}"#
        ))
    };
    for index in [
        index(r#""compression": null"#, start(0)),
        index(r#""compression": "zstd""#, start(0)),
        index(r#""compression": "zstd", "compression_level": "batch""#, start(12)),
        index(r#""compression": "zstd", "compression_level": "sample""#, start(0)),
        chunk.clone(),
    ] {
        let objects = [("a/index.json", index), ("a/chunk", chunk.clone())];
        let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter(objects));
        let options = MdsOptions::default().max_shard_bytes(1 << 24);
        samples(&fetcher, block_on(LitDataset::fetch(&fetcher, "a", &options)));
    }
}

/// Reads a RecordIO file with and without an index.
pub fn recordio(file: &[u8]) {
    let record = Bytes::copy_from_slice(file);
    for index in [None, Some(Bytes::from_static(b"0\t0\n")), Some(record.clone())] {
        let objects = [("a.rec", Some(record.clone())), ("a.idx", index)];
        let objects = objects.into_iter().filter_map(|(name, object)| Some((name, object?)));
        let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter(objects));
        let options = RecordIoOptions::default();
        let opened = RecordIoDataset::fetch_files(&fetcher, ["a.rec"], &options);
        samples(&fetcher, block_on(opened));
    }
}

/// Reads an LMDB file.
pub fn lmdb(file: &[u8]) {
    let objects = [("a.mdb", Bytes::copy_from_slice(file))];
    let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter(objects));
    let options = LmdbOptions::default();
    let opened = LmdbDataset::fetch_files(&fetcher, ["a.mdb"], &options);
    samples(&fetcher, block_on(opened));
}

/// Reads a Parquet file.
pub fn parquet(file: &[u8]) {
    // The crate `parquet` panics on some corrupt files. The library catches such panics and returns
    // errors, so they are not findings, but the panic hook of the fuzzer would abort. Panics of all other
    // crates are findings, and so are uncaught panics, by the error kind or by the fuzzer.
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let ends = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let of_parquet =
                |path: &str| path.contains("/registry/src/") && path.contains("/parquet-");
            if !panic.location().is_some_and(|location| of_parquet(location.file())) {
                ends(panic);
            }
        }));
    });
    let objects = [("a", Bytes::copy_from_slice(file))];
    let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter(objects));
    let options = ParquetOptions::default().max_column_bytes(1 << 24);
    let opened = ParquetDataset::fetch_files(&fetcher, ["a"], &options);
    samples(&fetcher, block_on(opened));
}
