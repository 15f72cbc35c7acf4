//! Samples of several fields: from stored records to batches.
#![cfg(feature = "records")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use spdl_core::observe::Counter;
use spdl_core::stage::Collation;
use spdl_core::{Batch, DType, ErrorKind, OnError, PipelineBuilder, Result, StageOptions};
use spdl_io::records::{Encoding, Extent};
use spdl_io::{FetchLabeled, FieldValue, MemoryFetcher, StoredRecord};
use spdl_media::augment::{Augmenter, ColorJitter, RandomInvert, RandomRotation};
use spdl_media::fill::{Boxes, SampleField, SampleSpec, Sequences};
use spdl_media::{CodecRegistry, Crop, FillImage, ImageTransform, Limits, Mode, Sample, Size};

const IMAGE: &[u8] = include_bytes!("data/444.jpg");

/// Three samples in the layout of WebDataset, with captions of different lengths.
fn samples() -> (MemoryFetcher, Vec<StoredRecord>) {
    let store = MemoryFetcher::from_iter([("image", IMAGE)]);
    let documents = [
        r#"{"caption": "a dog", "boxes": [[1, 2, 3, 4]], "score": 0.5}"#,
        r#"{"caption": "", "boxes": [], "score": 2}"#,
        r#"{"caption": "zwei Hünde", "boxes": [[1, 2, 3, 4], [5, 6, 7, 8.5]], "score": -1}"#,
    ];
    let records = documents.iter().enumerate().map(|(number, document)| {
        StoredRecord::new(format!("train/{number}"))
            .with_label(number as i64 + 10)
            .with_stored("jpg", Extent::whole("image"), Encoding::Bytes)
            .with_known("json", Encoding::Json.decode((*document).into()).unwrap())
            .with_known("nothing", FieldValue::Json("[]".parse().unwrap()))
            .with_known("hollow", FieldValue::Json("[[], []]".parse().unwrap()))
            .with_known("tokens", FieldValue::Integers((0..number as i64).collect()))
    });
    (store, records.collect())
}

fn spec() -> SampleSpec {
    let json = |field: SampleField, path: &str| field.stored_as(["json"]).at(path);
    SampleSpec::new()
        .with("image", SampleField::image(ImageTransform::new(16)))
        .with("caption", json(SampleField::text(), "caption"))
        .with("boxes", json(SampleField::numbers(DType::F32, &[0, 4]), "boxes"))
        .with("score", json(SampleField::numbers(DType::F32, &[]), "score"))
        .with("tokens", SampleField::numbers(DType::I64, &[0]).collation(Collation::Padded))
        .with("label", SampleField::label())
        .with("key", SampleField::key())
        .with("index", SampleField::index())
        .with("meta", SampleField::json().stored_as(["json"]))
}

fn pipeline(
    spec: &SampleSpec,
    store: MemoryFetcher,
    samples: Vec<StoredRecord>,
) -> PipelineBuilder<Batch> {
    PipelineBuilder::from_iter(samples)
        .async_stage("fetch", spec.fetch(Arc::new(store)))
        .fill(
            StageOptions::new("decode").parameters(spec.parameters()),
            spec.layout(3),
            spec.filler(&CodecRegistry::with_defaults(), &Limits::default()),
        )
        .deterministic()
}

fn run(spec: &SampleSpec) -> Result<Batch> {
    let (store, samples) = samples();
    pipeline(spec, store, samples).build()?.next().unwrap()
}

fn integers<'a>(batch: &'a Batch, name: &str) -> &'a [i64] {
    batch.array(name).unwrap().as_slice().unwrap()
}

fn floats<'a>(batch: &'a Batch, name: &str) -> &'a [f32] {
    batch.array(name).unwrap().as_slice().unwrap()
}

/// The samples of a ragged field of bytes.
fn texts(batch: &Batch, name: &str) -> Vec<String> {
    let bytes = batch.array(name).unwrap().as_bytes();
    let offsets = integers(batch, &format!("{name}.offsets"));
    let range = |pair: &[i64]| pair[0] as usize..pair[1] as usize;
    offsets.windows(2).map(|it| String::from_utf8(bytes[range(it)].to_vec()).unwrap()).collect()
}

#[test]
fn each_field_has_the_values_of_its_samples() {
    let batch = run(&spec()).unwrap();
    assert_eq!(texts(&batch, "caption"), ["a dog", "", "zwei Hünde"]);
    assert_eq!(batch.array("boxes").unwrap().shape(), [3, 4]);
    let boxes = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.5];
    assert_eq!(floats(&batch, "boxes"), boxes);
    assert_eq!(integers(&batch, "boxes.offsets"), [0, 1, 1, 3]);
    assert_eq!(floats(&batch, "score"), [0.5, 2.0, -1.0]);
    assert_eq!(batch.array("tokens").unwrap().shape(), [3, 2]);
    assert_eq!(integers(&batch, "tokens"), [0, 0, 0, 0, 0, 1]);
    assert_eq!(integers(&batch, "tokens.sizes"), [0, 1, 2]);
    assert_eq!(integers(&batch, "label"), [10, 11, 12]);
    assert_eq!(integers(&batch, "index"), [0, 1, 2]);
    assert_eq!(texts(&batch, "key"), ["train/0", "train/1", "train/2"]);
    assert!(texts(&batch, "meta")[2].contains("zwei Hünde"));
    // The image has the pixels of `FillImage`.
    let transform = ImageTransform::new(16);
    let mut fill =
        FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default()).unwrap();
    let mut expected = vec![0; 16 * 16 * 3];
    fill.write(IMAGE, Sample::U8(&mut expected), || unreachable!()).unwrap();
    assert_eq!(batch.array("image").unwrap().as_bytes(), expected.repeat(3));
}

#[test]
fn images_of_one_sample_draw_the_same_crop() {
    let train = || ImageTransform::with_size(Size::new(12, 8)).mode(Mode::Train);
    let spec = SampleSpec::new()
        .with("image", SampleField::image(train()))
        .with("other", SampleField::image(train()).stored_as(["webp", "jpg"]))
        .with("whole", SampleField::image(train().crop(Crop::Stretch).horizontal_flip(0.0)));
    let batch = run(&spec).unwrap();
    let bytes = |name: &str| batch.array(name).unwrap().as_bytes();
    assert_eq!(bytes("image"), bytes("other"));
    assert_ne!(bytes("image"), bytes("whole"));
}

#[test]
fn views_and_augmentations_are_independent_and_reproducible() {
    let train = || SampleField::image(ImageTransform::new(12).mode(Mode::Train)).stored_as(["jpg"]);
    let inverted = || Augmenter::new().then(RandomInvert::new().probability(1.0));
    let spec = SampleSpec::new()
        .with("a", train())
        .with("b", train().view(1))
        .with("again", train().view(1))
        .with("inverted", train().augment(inverted()));
    let batch = run(&spec).unwrap();
    let bytes = |name: &str| batch.array(name).unwrap().as_bytes();
    assert_ne!(bytes("a"), bytes("b"));
    assert_eq!(bytes("b"), bytes("again"));
    let expected: Vec<u8> = bytes("a").iter().map(|level| 255 - level).collect();
    assert_eq!(bytes("inverted"), expected);
    // The parameters of a run include both.
    let described: Vec<_> = spec.parameters().map(|(_, text)| text).collect();
    assert!(described[1].contains("view 1") && described[3].contains("RandomInvert"));
}

#[test]
fn nothing_follows_an_image_whose_content_moves() {
    let boxes = || SampleField::boxes(Boxes::like("image"));
    let with = |augmenter| {
        let image = SampleField::image(ImageTransform::new(12)).augment(augmenter);
        SampleSpec::new().with("image", image).with("boxes", boxes()).validate()
    };
    with(Augmenter::new().then(ColorJitter::new().hue(0.1))).unwrap();
    let error = with(Augmenter::new().then(RandomRotation::new(10.0))).unwrap_err();
    assert!(error.message().contains("move its content"), "{error}");
    let error = SampleSpec::new()
        .with("text", SampleField::text().augment(Augmenter::new().then(RandomInvert::new())))
        .validate()
        .unwrap_err();
    assert!(error.message().contains("only images"), "{error}");
}

#[test]
fn labels_are_read_by_the_rules_of_the_data_set() {
    let sample = |key: &str, class: &str| {
        StoredRecord::new(key)
            .with_label(7)
            .with_stored("cls", Extent::whole(class), Encoding::Integer)
            .with_known("score", FieldValue::Float(0.5))
    };
    let run = |spec: SampleSpec, class: &str| {
        let store = MemoryFetcher::from_iter([("dog", "dog"), ("1", "1"), ("cow", "cow")]);
        let labeled = FetchLabeled::new(Arc::new(store)).with_classes(["cat", "bird", "dog"]);
        PipelineBuilder::from_iter([sample("a", class)])
            .async_stage("fetch", spec.fetch_like(&labeled))
            .fill(
                "decode",
                spec.layout(1),
                spec.filler(&CodecRegistry::with_defaults(), &Limits::default()),
            )
            .build()?
            .next()
            .unwrap()
    };
    let label = || SampleSpec::new().with("y", SampleField::label());
    assert_eq!(integers(&run(label(), "dog").unwrap(), "y"), [2]);
    assert_eq!(integers(&run(label(), "1").unwrap(), "y"), [1]);
    // The same field as text.
    let both = label().with("class", SampleField::text().stored_as(["cls"]));
    assert_eq!(texts(&run(both, "dog").unwrap(), "class"), ["dog"]);
    let error = run(label(), "cow").unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidArgument, Some("a.cls")));
    // Without a label field, the label is not read.
    let score = SampleSpec::new().with("score", SampleField::numbers(DType::F32, &[]));
    assert_eq!(floats(&run(score, "cow").unwrap(), "score"), [0.5]);
}

#[test]
fn stored_bytes_are_json() {
    let sample = StoredRecord::new("a").with_stored("cls", Extent::whole("a"), Encoding::Bytes);
    let spec = SampleSpec::new().with("meta", SampleField::json().stored_as(["cls"]));
    let store = MemoryFetcher::from_iter([("a", "{ \"id\": 7 }")]);
    let batch = pipeline(&spec, store, vec![sample]).build().unwrap().next().unwrap().unwrap();
    assert_eq!(texts(&batch, "meta"), [r#"{"id":7}"#]);
}

#[test]
fn samples_of_a_list_leave_the_batch() {
    let tokens = SampleField::numbers(DType::I64, &[0]).collation(Collation::List);
    let mut batch = run(&SampleSpec::new().with("tokens", tokens)).unwrap();
    assert_eq!(batch.list("tokens").unwrap()[2].as_slice::<i64>().unwrap(), [0, 1]);
    let lists: Vec<_> = batch.take_lists().collect();
    assert_eq!(lists.len(), 1);
    assert_eq!((&*lists[0].0, lists[0].1[1].shape()), ("tokens", &[1][..]));
    assert!(batch.list("tokens").is_none());
}

#[test]
fn a_missing_value_is_an_error_or_the_default() {
    let absent = |field: SampleField| SampleSpec::new().with("absent", field);
    let error = run(&absent(SampleField::text())).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some("train/0")));
    let batch = run(&absent(SampleField::text().optional())).unwrap();
    assert_eq!(texts(&batch, "absent"), ["", "", ""]);
    let batch = run(&absent(SampleField::numbers(DType::I64, &[2]).optional())).unwrap();
    assert_eq!(integers(&batch, "absent"), [0; 6]);
    let default = SampleField::numbers(DType::I64, &[]).or(FieldValue::Integer(-100));
    assert_eq!(integers(&run(&absent(default)).unwrap(), "absent"), [-100; 3]);
}

#[test]
fn values_of_another_type_or_shape_are_errors_that_name_the_field() {
    let json = |field: SampleField, path: &str| {
        SampleSpec::new().with("x", field.stored_as(["json"]).at(path))
    };
    let numbers = SampleField::numbers;
    let numbers_of = |name: &str, shape: &[usize]| {
        SampleSpec::new().with("x", numbers(DType::F32, shape).stored_as([name]))
    };
    let cases = [
        (json(numbers(DType::F32, &[0, 5]), "boxes"), "expects the shape [*, 5], found [1, 4]"),
        (json(numbers(DType::I64, &[]), "score"), "cannot store 0.5 as int64"),
        (json(numbers(DType::F32, &[]), "caption"), "expected numbers, found text"),
        (json(numbers(DType::F32, &[]), "boxes"), "expects the shape [], found [1, 4]"),
        (json(SampleField::text(), "score"), "expected text, found a float"),
        (numbers_of("nothing", &[4]), "expects the shape [4], found [0]"),
        (numbers_of("hollow", &[0, 4]), "expects the shape [*, 4], found [2, 0]"),
        (
            SampleSpec::new().with("x", SampleField::numbers(DType::U8, &[0]).stored_as(["jpg"])),
            "expected numbers, found bytes",
        ),
        (SampleSpec::new().with("x", SampleField::text().stored_as(["jpg"])), "invalid UTF-8"),
        (SampleSpec::new().with("x", SampleField::json().stored_as(["jpg"])), "invalid JSON"),
        (
            SampleSpec::new()
                .with("x", SampleField::image(ImageTransform::new(8)).stored_as(["tokens"])),
            "expected an encoded image, found a list of integers",
        ),
    ];
    for (spec, expected) in cases {
        let error = run(&spec).unwrap_err();
        assert!(error.message().contains(expected), "{expected}: {error}");
        assert_eq!(error.key(), Some("train/0"), "{expected}");
        assert_eq!(error.message().matches("field \"x\"").count(), 1, "{error}");
        // Under the policy `skip`, each such sample is listed.
        let (store, samples) = samples();
        let mut run = pipeline(&spec, store, samples).on_error(OnError::SKIP).build().unwrap();
        run.by_ref().for_each(drop);
        let dropped = run.statistics().dropped;
        assert!(!dropped.is_empty() && dropped[0].reason.contains(expected), "{dropped:?}");
    }
}

#[test]
fn a_run_with_other_fields_does_not_resume() {
    let state = {
        let (store, samples) = samples();
        let mut run = pipeline(&spec(), store, samples).build().unwrap();
        run.next().unwrap().unwrap();
        run.state().unwrap()
    };
    let other =
        spec().with("score", SampleField::numbers(DType::F32, &[]).stored_as(["json"]).at("other"));
    let (store, samples) = samples();
    let error = pipeline(&other, store, samples).resume(state).build().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("score") && text.contains("other"), "{text}");
}

#[test]
fn invalid_specifications_are_refused() {
    let build = |spec: &SampleSpec| {
        let (store, samples) = samples();
        pipeline(spec, store, samples).build().map(drop).unwrap_err()
    };
    let error = build(&SampleSpec::new());
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let error =
        build(&SampleSpec::new().with("picture", SampleField::image(ImageTransform::new(0))));
    assert!(error.to_string().contains("picture"), "{error}");
}

#[test]
fn sequences_of_a_sample_have_one_length_within_limits() {
    let spec = |sequences| {
        SampleSpec::new()
            .with("tokens", SampleField::numbers(DType::I32, &[0]))
            .with("others", SampleField::numbers(DType::I64, &[0]).stored_as(["tokens"]))
            .with(
                "score",
                SampleField::numbers(DType::F32, &[0, 4]).stored_as(["json"]).at("boxes"),
            )
            .sequences(sequences)
    };
    let both = || Sequences::of(["tokens", "others"]);
    let truncated = spec(both().at_most(1).truncated());
    let (store, samples) = samples();
    let counter = Counter::default();
    let counted = counter.clone();
    let filler = truncated.filler(&CodecRegistry::with_defaults(), &Limits::default());
    let mut batches = PipelineBuilder::from_iter(samples)
        .async_stage("fetch", truncated.fetch(Arc::new(store)))
        .fill("decode", truncated.layout(3), move || Ok(filler()?.count_partial(&counted)))
        .build()
        .unwrap();
    let batch = batches.next().unwrap().unwrap();
    assert_eq!(batch.array("tokens").unwrap().as_slice::<i32>().unwrap(), [0, 0]);
    assert_eq!(integers(&batch, "tokens.offsets"), [0, 0, 1, 2]);
    assert_eq!((integers(&batch, "others"), counter.get()), (&[0, 0][..], 1));
    for (sequences, kind, words) in [
        (both().at_least(1), ErrorKind::InvalidArgument, "field \"tokens\": the sequence is empty"),
        (
            both().at_most(1),
            ErrorKind::LimitExceeded,
            "a sequence of 2 rows exceeds the maximum of 1",
        ),
        (Sequences::of(["tokens", "score"]), ErrorKind::InvalidArgument, "found 1"),
    ] {
        let (store, samples) = crate::samples();
        let mut run = pipeline(&spec(sequences), store, samples).build().unwrap();
        let error = run.find_map(Result::err).unwrap();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!((error.kind(), error.key().is_some()), (kind, true));
    }
    for (name, words) in [("absent", "no field \"absent\""), ("label", "shape []")] {
        let spec = spec(Sequences::of([name])).with("label", SampleField::label());
        let error = spec.validate().unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
