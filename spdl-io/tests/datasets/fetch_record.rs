//! Tests of `FetchRecord` and `FetchLabeled`: few requests, limits, requested fields only.

// promise of this file: DATA7

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use spdl_core::{AsyncStage, ErrorKind, Footprint, PipelineBuilder, Result, StageOptions};
use spdl_io::records::{Encoding, Extent, FieldRequest, PackedRows};
use spdl_io::{
    Bytes, Capability, FetchLabeled, FetchRecord, Fetcher, FieldValue, Key, ReadMemory, Record,
    StoredRecord,
};

use crate::{Recording, process};

/// A sample with four ranges of one object, one whole object, and a known value.
fn sample() -> (Recording, StoredRecord) {
    let store = Recording::new([("shard", "0123456789"), ("alone", "whole")]);
    let sample = StoredRecord::new("shard:1")
        .with_label(3)
        .with_stored("txt", Extent::part("shard", 6..8), Encoding::Text)
        .with_stored("jpg", Extent::part("shard", 1..4), Encoding::Bytes)
        .with_known("source", FieldValue::Text("web".into()))
        .with_stored("png", Extent::whole("alone"), Encoding::Bytes)
        .with_stored("cls", Extent::part("shard", 4..5), Encoding::Integer)
        .with_stored("none", Extent::part("shard", 9..9), Encoding::Text);
    (store, sample)
}

fn fetch(stage: FetchRecord, sample: StoredRecord) -> Result<Record> {
    process(OneSample(sample), stage).remove(0)
}

/// A data set of one sample.
#[derive(Debug)]
struct OneSample(StoredRecord);

impl spdl_core::Dataset for OneSample {
    type Item = StoredRecord;
    fn len(&self) -> u64 {
        1
    }
    fn item(&self, _: u64) -> Result<StoredRecord> {
        Ok(self.0.clone())
    }
}

#[test]
fn ranges_of_one_object_are_read_by_one_call() {
    let (store, sample) = sample();
    let record = fetch(FetchRecord::new(store.arc()), sample).unwrap();
    let mut requests = store.requests();
    requests.sort();
    assert_eq!(requests, ["ranges shard [1..4, 4..5, 6..8]", "read alone"]);
    let names: Vec<_> = record.names().collect();
    assert_eq!(names, ["txt", "jpg", "source", "png", "cls", "none"]);
    assert_eq!((record.key.as_str(), record.label), (Some("shard:1"), 3));
    assert_eq!(record.get("txt").unwrap().as_str(), Some("67"));
    assert_eq!(record.get("jpg").unwrap().as_bytes().unwrap(), "123");
    assert_eq!(record.get("source").unwrap().as_str(), Some("web"));
    assert_eq!(record.get("png").unwrap().as_bytes().unwrap(), "whole");
    assert_eq!(record.get("cls").unwrap().as_i64(), Some(4));
    assert_eq!(record.get("none").unwrap().as_str(), Some(""));
}

#[test]
fn requested_fields_are_read_in_the_requested_order() {
    let (store, sample) = sample();
    let stage = FetchRecord::new(store.arc()).with_fields(["cls", "source", "cls"]);
    let record = fetch(stage, sample.clone()).unwrap();
    assert_eq!(store.requests(), ["read shard Some(4..5)"]);
    assert_eq!(record.names().collect::<Vec<_>>(), ["cls", "source"]);

    let stage = FetchRecord::new(store.arc()).with_fields(["cls", "depth"]);
    let error = fetch(stage, sample).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some("shard:1")));
    assert!(error.message().contains("depth") && error.message().contains("jpg"), "{error}");
    assert!(store.requests().is_empty(), "no requests for a sample that fails anyway");
}

#[test]
fn a_too_large_sample_is_refused_before_reading() {
    let (store, sample) = sample();
    let stage = |most| FetchRecord::new(store.arc()).with_max_bytes(most);
    let refused = |most, fields: &[&str]| {
        let stage = match fields {
            [] => stage(most),
            fields => stage(most).with_fields(fields.iter().copied()),
        };
        let error = fetch(stage, sample.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        store.requests()
    };
    assert!(refused(5, &[]).is_empty());
    // The other field is an object of unknown size.
    refused(10, &[]);
    assert!(refused(3, &["jpg", "cls"]).is_empty());
    // 11 bytes are read, and 3 bytes of text are known.
    assert!(fetch(stage(14), sample.clone()).is_ok());
    assert!(fetch(stage(4).with_fields(["jpg", "cls"]), sample.clone()).is_ok());
    let in_other_order = FetchRecord::new(store.arc()).with_fields(["jpg"]).with_max_bytes(3);
    assert_eq!(fetch(in_other_order, sample.clone()).unwrap().fields.len(), 1);
}

#[test]
fn objects_of_unknown_size_share_the_limit() {
    let store = Recording::new([("a", "123"), ("b", "456")]);
    let sample = StoredRecord::new("1")
        .with_stored("a", Extent::whole("a"), Encoding::Bytes)
        .with_stored("b", Extent::whole("b"), Encoding::Bytes);
    let stage = |most| FetchRecord::new(store.arc()).with_max_bytes(most);
    let error = fetch(stage(5), sample.clone()).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::LimitExceeded, Some("1")));
    assert!(fetch(stage(6), sample).is_ok());
}

#[test]
fn errors_have_the_key_of_the_field_and_the_offset_in_the_object() {
    let store = Recording::new([("shard", "0123ab\u{e4}{\"a\": }")]);
    let failed = |encoding, range, fields: usize| {
        let mut sample =
            StoredRecord::new("shard:1").with_stored("x", Extent::part("shard", range), encoding);
        for number in 1..fields {
            let extent = Extent::part("shard", 0..2);
            sample = sample.with_stored(format!("y{number}"), extent, Encoding::Bytes);
        }
        let error = fetch(FetchRecord::new(store.arc()), sample).unwrap_err();
        (error.kind(), error.key().unwrap().to_owned(), error.offset())
    };
    let of_x = |kind, at| (kind, "shard:1.x".to_owned(), Some(at));
    assert_eq!(failed(Encoding::Integer, 4..6, 1), of_x(ErrorKind::Corrupt, 4));
    assert_eq!(failed(Encoding::Text, 5..7, 3), of_x(ErrorKind::Corrupt, 6));
    assert_eq!(failed(Encoding::Json, 8..15, 1), of_x(ErrorKind::Corrupt, 14));
    assert_eq!(failed(Encoding::Npy, 0..4, 1), of_x(ErrorKind::Corrupt, 0));
    assert_eq!(failed(Encoding::Pickle, 0..4, 1), of_x(ErrorKind::Unsupported, 0));
    assert_eq!(failed(Encoding::Bytes, 4..99, 1), of_x(ErrorKind::Truncated, 15));
    let several = (ErrorKind::Truncated, "shard:1".to_owned(), Some(15));
    assert_eq!(failed(Encoding::Bytes, 4..99, 3), several);

    let missing = StoredRecord::new("1").with_stored("x", Extent::whole("no"), Encoding::Bytes);
    let error = fetch(FetchRecord::new(store.arc()), missing).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some("no")));
}

#[test]
fn json_errors_have_an_offset_on_later_lines() {
    let error = Encoding::Json.decode("{\n \"a\": 1,\n  oops}".into()).unwrap_err();
    assert_eq!(error.offset(), Some(13), "{}", error.report());
    let deep = "[".repeat(1000);
    assert_eq!(Encoding::Json.decode(deep.into()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn the_estimated_size_of_a_sample_is_an_upper_bound() {
    let (store, sample) = sample();
    let all = FetchRecord::new(store.arc());
    assert_eq!(all.output_bytes(&sample), None, "the size of a whole object is unknown");
    for fields in [&["jpg"][..], &["txt", "cls", "source"], &["none"]] {
        let stage = all.clone().with_fields(fields.iter().copied());
        let estimate = stage.output_bytes(&sample).unwrap();
        let actual = fetch(stage, sample.clone()).unwrap().footprint();
        assert!(actual <= estimate && estimate < actual + 200, "{fields:?}: {estimate}, {actual}");
    }
}

#[test]
fn value_and_label_fields_are_selected_in_order() {
    let (store, sample) = sample();
    let one = |stage: FetchLabeled| process(OneSample(sample.clone()), stage).remove(0);
    let image = one(FetchLabeled::new(store.arc())).unwrap();
    assert_eq!((&image.value[..], image.label), (&b"123"[..], 4));
    assert_eq!(store.requests(), ["ranges shard [1..4, 4..5]"]);
    let own_label = FetchLabeled::new(store.arc()).with_label_fields([""; 0]);
    assert_eq!(one(own_label).unwrap().label, 3);
    let other = FetchLabeled::new(store.arc()).with_value_fields(["gif", "png", "jpg"]);
    assert_eq!(&one(other).unwrap().value[..], b"whole");
    let absent = FetchLabeled::new(store.arc()).with_label_fields(["class"]);
    let error = one(absent).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some("shard:1")));

    let error = one(FetchLabeled::new(store.arc()).with_value_fields(["gif"])).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some("shard:1")));
    let error = one(FetchLabeled::new(store.arc()).with_value_fields(["txt"])).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidArgument, Some("shard:1.txt")));
    let error = one(FetchLabeled::new(store.arc()).with_label_fields(["source"])).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidArgument, Some("shard:1.source")));
    let small = FetchLabeled::new(store.arc()).with_max_bytes(3);
    assert_eq!(one(small).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

/// Rows whose fields are one byte of an object.
#[derive(Debug)]
struct Rows(Vec<Arc<str>>);

#[spdl_core::async_trait]
impl PackedRows for Rows {
    fn names(&self) -> &[Arc<str>] {
        &self.0
    }

    async fn read(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        let bytes = fetcher.read(&"shard".into(), Some(row..row + 1)).await?;
        let wanted = self.0.iter().filter(|name| request.wants(name));
        Ok(wanted.map(|name| (Arc::clone(name), FieldValue::Bytes(bytes.clone()))).collect())
    }
}

#[test]
fn fields_of_a_row_follow_other_fields() {
    let (store, sample) = sample();
    let rows: Arc<dyn PackedRows> = Arc::new(Rows(vec!["a".into(), "b".into()]));
    let sample = sample.with_row(Arc::clone(&rows), 5);
    let record = fetch(FetchRecord::new(store.arc()), sample.clone()).unwrap();
    let names: Vec<_> = record.names().collect();
    assert_eq!(names, ["txt", "jpg", "source", "png", "cls", "none", "a", "b"]);
    let stage = FetchRecord::new(store.arc()).with_fields(["b", "cls"]);
    let record = fetch(stage, sample.clone()).unwrap();
    assert_eq!(record.names().collect::<Vec<_>>(), ["b", "cls"]);
    assert_eq!(record.get("b").unwrap().as_bytes().unwrap(), "5");
    let far = sample.with_row(rows, 50);
    let error = fetch(FetchRecord::new(store.arc()).with_fields(["a"]), far).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
}

/// The size of each row of [`LargeRows`], in bytes.
const ROW: usize = 1_000_000;

/// Counts the bytes of its rows that are in memory, and their maximum.
#[derive(Debug, Default)]
struct LargeRows {
    names: Vec<Arc<str>>,
    live: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
}

/// Bytes of a row in memory.
struct CountedRow(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for CountedRow {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for CountedRow {
    fn drop(&mut self) {
        self.1.fetch_sub(ROW, SeqCst);
    }
}

#[spdl_core::async_trait]
impl PackedRows for LargeRows {
    fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    async fn row_bytes(
        &self,
        _: &Arc<dyn Fetcher>,
        _: u64,
        _: &FieldRequest,
    ) -> Result<Option<u64>> {
        Ok(Some(ROW as u64))
    }

    async fn read(
        &self,
        _: &Arc<dyn Fetcher>,
        _: u64,
        _: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        self.peak.fetch_max(self.live.fetch_add(ROW, SeqCst) + ROW, SeqCst);
        let row = CountedRow(vec![7; ROW], Arc::clone(&self.live));
        Ok(vec![(Arc::clone(&self.names[0]), FieldValue::Bytes(Bytes::from_owner(row)))])
    }
}

// promise: R4
#[test]
fn memory_for_rows_is_reserved_before_they_are_read() {
    let (store, _) = sample();
    let rows = Arc::new(LargeRows { names: vec!["image".into()], ..LargeRows::default() });
    let item = |row| StoredRecord::new("shard").with_row(Arc::clone(&rows) as _, row);
    let pipeline = PipelineBuilder::from_iter((0..40).map(item).collect::<Vec<_>>())
        .async_stage(StageOptions::new("fetch").concurrency(16), FetchRecord::new(store.arc()))
        .measured()
        .map("slow", |record: Record| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(record.get("image")?.as_bytes().map_or(0, Bytes::len))
        })
        .memory(4 * ROW)
        .largest_item(2 * ROW)
        .deterministic()
        .build()
        .unwrap();
    let lens: Vec<usize> = pipeline.collect::<Result<_>>().unwrap();
    assert_eq!(lens, [ROW; 40]);
    let peak = rows.peak.load(SeqCst);
    assert!((2 * ROW..=5 * ROW).contains(&peak), "{peak}");
}

/// Objects of [`ROW`] bytes. Counts the bytes in memory, and their maximum.
#[derive(Debug, Default)]
struct LargeObjects {
    live: Arc<AtomicUsize>,
    peak: AtomicUsize,
}

#[spdl_core::async_trait]
impl Fetcher for LargeObjects {
    fn capability(&self) -> Capability {
        Capability::default()
    }

    async fn read(&self, _: &Key, _: Option<Range<u64>>) -> Result<Bytes> {
        self.peak.fetch_max(self.live.fetch_add(ROW, SeqCst) + ROW, SeqCst);
        Ok(Bytes::from_owner(CountedRow(vec![7; ROW], Arc::clone(&self.live))))
    }

    async fn read_whole(&self, key: &Key, memory: &dyn ReadMemory) -> Result<Bytes> {
        memory.reserve(ROW as u64).await;
        self.read(key, None).await
    }
}

// promise: R4
#[test]
fn memory_for_all_objects_of_a_sample_is_reserved_before_they_are_read() {
    let objects = Arc::new(LargeObjects::default());
    let item = |number: usize| {
        ["a", "b", "c"].into_iter().fold(StoredRecord::new(number.to_string()), |item, name| {
            item.with_stored(name, Extent::whole(format!("{number}/{name}")), Encoding::Bytes)
        })
    };
    let fetch = FetchRecord::new(Arc::clone(&objects) as _);
    let pipeline = PipelineBuilder::from_iter((0..40).map(item).collect::<Vec<_>>())
        .async_stage(StageOptions::new("fetch").concurrency(16), fetch)
        .measured()
        .map("slow", |record: Record| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(record.names().count())
        })
        .memory(8 * ROW)
        .largest_item(ROW)
        .deterministic()
        .build()
        .unwrap();
    assert_eq!(pipeline.collect::<Result<Vec<_>>>().unwrap(), [3; 40]);
    let peak = objects.peak.load(SeqCst);
    assert!((4 * ROW..=11 * ROW).contains(&peak), "{peak}");
}
