//! Samples of several fields: from stored records to batches.
#![cfg(feature = "records")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use spdl_core::observe::Counter;
use spdl_core::stage::Collation;
use spdl_core::{Batch, DType, ErrorKind, OnError, PipelineBuilder, Result, StageOptions};
use spdl_io::archive::NpyType;
use spdl_io::records::{Encoding, Extent};
use spdl_io::{FetchLabeled, FieldValue, MemoryFetcher, StoredRecord};
use spdl_media::augment::{AugMix, Augmenter, ColorJitter, RandomInvert, RandomRotation};
use spdl_media::fill::{ArrayBytes, Boxes, Mask, SampleField, SampleSpec, Sequences, Tokens};
use spdl_media::{
    CodecRegistry, Crop, FillImage, ImageTransform, Layout, Limits, Mode, Sample, SampleColor, Size,
};

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
    let described: BTreeMap<_, _> = spec.parameters().collect();
    assert!(described["field b"].contains("view 1"));
    assert!(described["field inverted: augment"].contains("RandomInvert"));
}

#[test]
fn nothing_follows_an_image_that_blends_moved_images() {
    let boxes = || SampleField::boxes(Boxes::like("image"));
    let with = |augmenter| {
        let image = SampleField::image(ImageTransform::new(12)).augment(augmenter);
        SampleSpec::new().with("image", image).with("boxes", boxes()).validate()
    };
    with(Augmenter::new().then(ColorJitter::new().hue(0.1))).unwrap();
    with(Augmenter::new().then(RandomRotation::new(10.0))).unwrap();
    let error = with(Augmenter::new().then(AugMix::new())).unwrap_err();
    assert!(error.message().contains("moves its content in a way"), "{error}");
    let error = SampleSpec::new()
        .with("text", SampleField::text().augment(Augmenter::new().then(RandomInvert::new())))
        .validate()
        .unwrap_err();
    assert!(error.message().contains("only images"), "{error}");
}

#[test]
fn objects_are_pasted_onto_other_images_of_a_batch() {
    let documents = [
        r#"{"boxes": [[0.5, 0, 1, 1]]}"#,
        r#"{"boxes": [[0, 0, 0.75, 1]]}"#,
        r#"{"boxes": [[0, 0, 1, 1]]}"#,
    ];
    let records = documents.into_iter().zip(10..).map(|(document, class)| {
        StoredRecord::new(format!("{class}"))
            .with_stored("jpg", Extent::whole("image"), Encoding::Bytes)
            .with_known("json", Encoding::Json.decode(document.into()).unwrap())
            .with_known("class", FieldValue::Integers([class].into_iter().collect()))
    });
    let boxes = Boxes::like("image").normalized(true).min_visibility(0.4);
    let boxes = SampleField::boxes(boxes).stored_as(["json"]).at("boxes");
    let classes = SampleField::numbers(DType::I64, &[0]).stored_as(["class"]).rows_of("boxes");
    let transform = ImageTransform::new(16).crop(Crop::Stretch);
    let spec = SampleSpec::new()
        .with("image", SampleField::image(transform))
        .with("boxes", boxes.collation(Collation::List))
        .with("classes", classes.collation(Collation::List));
    for batch_size in [1, 2, 3] {
        let paste = spec.copy_paste("image").unwrap().share(1.0).unwrap();
        let store = MemoryFetcher::from_iter([("image", IMAGE)]);
        let pipeline = PipelineBuilder::from_iter(records.clone())
            .async_stage("fetch", spec.fetch(Arc::new(store)))
            .fill(
                StageOptions::new("decode"),
                spec.layout(batch_size),
                spec.filler(&CodecRegistry::with_defaults(), &Limits::default()),
            )
            .stage(StageOptions::new("mix"), move || Ok(paste.clone()))
            .deterministic();
        let mut found = Vec::new();
        for batch in pipeline.build().unwrap() {
            let batch = batch.unwrap();
            let lists = batch.list("boxes").unwrap().iter().zip(batch.list("classes").unwrap());
            found.extend(lists.map(|(boxes, classes)| {
                let boxes = boxes.as_slice::<f32>().unwrap().to_vec();
                (boxes, classes.as_slice::<i64>().unwrap().to_vec())
            }));
        }
        assert_eq!(found.len(), 3);
        // A batch of one image has no other; two images have each other's object.
        let whole = (vec![0.0, 0.0, 1.0, 1.0], vec![12]);
        match batch_size {
            1 => assert_eq!(found[0], (vec![0.5, 0.0, 1.0, 1.0], vec![10])),
            2 => {
                let both = vec![0.75, 0.0, 1.0, 1.0, 0.0, 0.0, 0.75, 1.0];
                assert_eq!(found[0], (both, vec![10, 11]));
                let both = vec![0.0, 0.0, 0.5, 1.0, 0.5, 0.0, 1.0, 1.0];
                assert_eq!(found[1], (both, vec![11, 10]));
                assert_eq!(found[2], whole);
            }
            _ => assert!([vec![12, 10], vec![11]].contains(&found[2].1), "{found:?}"),
        }
    }
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
            "a sequence of 2 tokens exceeds the maximum of 1",
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

/// Descriptions: fields from JSON, as `spdl bench --spec` and Python pass them.
/// The elements of a field of `float32`, from one stored value.
fn array_of(field: SampleField, value: FieldValue) -> Result<Vec<f32>> {
    let sample = StoredRecord::new("train/7").with_known("x", value);
    let spec = SampleSpec::new().with("x", field.collation(Collation::List));
    let batch = pipeline(&spec, MemoryFetcher::new(), vec![sample]).build()?.next().unwrap()?;
    Ok(batch.list("x").unwrap()[0].as_slice()?.to_vec())
}

const MATRIX: [f32; 6] = [-0.5, -0.25, 0.0, 0.25, 0.5, 0.75];
const NPY: &[u8] = include_bytes!("data/array-matrix.npy");
const ONE: &[u8] = include_bytes!("data/array-one.npz");
const SEVERAL: &[u8] = include_bytes!("data/array-several.npz");

fn bytes(bytes: &[u8]) -> FieldValue {
    FieldValue::Bytes(bytes.to_vec().into())
}

fn matrix() -> SampleField {
    SampleField::numbers(DType::F32, &[0, 3])
}

#[test]
fn arrays_in_bytes_are_detected() {
    let big: &[u8] = include_bytes!("data/array-big-endian.npy");
    let halves: &[u8] = include_bytes!("data/array-halves.npy");
    for file in [NPY, big, halves, ONE] {
        assert_eq!(array_of(matrix(), bytes(file)).unwrap(), MATRIX);
    }
    let fixed = SampleField::numbers(DType::F32, &[2, 3]);
    assert_eq!(array_of(fixed, bytes(NPY)).unwrap(), MATRIX);
    let number = SampleField::numbers(DType::F32, &[0]);
    assert!(array_of(number, bytes(b"7")).is_err(), "one number is no list");
    // Boxes and ids of tokens are arrays too.
    let tokens = SampleField::tokens(Tokens::new(), DType::I32);
    let ids = SampleSpec::new().with("x", tokens.collation(Collation::List));
    let file = FieldValue::Bytes(include_bytes!("data/array-halves.npy").to_vec().into());
    let sample = StoredRecord::new("1").with_known("x", file);
    let outcome = pipeline(&ids, MemoryFetcher::new(), vec![sample]).build().unwrap().next();
    assert!(outcome.unwrap().unwrap_err().message().contains("found [2, 3]"));
}

#[test]
fn a_member_of_an_npz_file_is_chosen_by_name() {
    let member = |name: &str| matrix().array_bytes(ArrayBytes::Member(name.into()));
    assert_eq!(array_of(member("matrix"), bytes(SEVERAL)).unwrap(), MATRIX);
    assert_eq!(array_of(member("matrix.npy"), bytes(SEVERAL)).unwrap(), MATRIX);
    let ids = SampleField::numbers(DType::F32, &[0]);
    let ids = ids.array_bytes(ArrayBytes::Member("ids".into()));
    assert_eq!(array_of(ids, bytes(SEVERAL)).unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn raw_elements_have_the_shape_of_the_field() {
    let raw = |element: NpyType, shape: &[usize]| {
        SampleField::numbers(DType::F32, shape).array_bytes(ArrayBytes::Raw(element))
    };
    let words: Vec<u8> = (0..6_u16).flat_map(u16::to_le_bytes).collect();
    let expected = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    for shape in [&[0, 3][..], &[2, 3], &[2, 0], &[0]] {
        assert_eq!(array_of(raw(NpyType::UInt(2), shape), bytes(&words)).unwrap(), expected);
    }
    let floats: Vec<u8> = MATRIX.iter().flat_map(|it| it.to_le_bytes()).collect();
    assert_eq!(array_of(raw(NpyType::Float(4), &[0, 3]), bytes(&floats)).unwrap(), MATRIX);
    let empty = array_of(raw(NpyType::Float(4), &[0, 3]), bytes(b""));
    assert_eq!(empty.unwrap(), [0.0; 0]);
    let fault = |field: SampleField, value: &[u8]| {
        let error = array_of(field, bytes(value)).unwrap_err();
        (error.kind(), error.message().to_owned(), error.key().map(str::to_owned))
    };
    let (kind, message, key) = fault(raw(NpyType::UInt(2), &[0, 3]), &words[..10]);
    assert_eq!((kind, key.as_deref()), (ErrorKind::Truncated, Some("train/7")));
    let expected = "field \"x\": 10 bytes are not a whole number of rows of 6 bytes: uint16 [0, 3]";
    assert_eq!(message, expected);
    let (kind, message, _) = fault(raw(NpyType::UInt(2), &[2, 4]), &words);
    assert_eq!(kind, ErrorKind::Truncated);
    assert_eq!(message, "field \"x\": 12 bytes are less than the 16 bytes of uint16 [2, 4]");
    let (kind, message, _) = fault(raw(NpyType::UInt(2), &[2, 2]), &words);
    assert_eq!(kind, ErrorKind::InvalidArgument);
    assert_eq!(message, "field \"x\": 12 bytes exceed the 8 bytes of uint16 [2, 2]");
    let npy: &[u8] = include_bytes!("data/array-complex.npy");
    let (kind, message, _) = fault(raw(NpyType::UInt(2), &[0]), npy);
    assert_eq!(kind, ErrorKind::InvalidArgument);
    assert!(message.contains("the bytes are a .npy file"), "{message}");
    for (element, shape) in [(NpyType::UInt(2), &[0, 0][..]), (NpyType::Complex(8), &[0])] {
        let spec = SampleSpec::new().with("x", raw(element, shape));
        assert_eq!(spec.validate().unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let text = SampleField::text().array_bytes(ArrayBytes::Raw(NpyType::UInt(2)));
    assert!(SampleSpec::new().with("x", text).validate().is_err());
}

#[test]
fn errors_of_arrays_name_the_sample_the_field_and_the_fault() {
    let check = |field: SampleField, value: &[u8], kind: ErrorKind, words: &str| {
        let error = array_of(field, bytes(value)).unwrap_err();
        assert_eq!((error.kind(), error.key()), (kind, Some("train/7")), "{error}");
        let message = error.report();
        assert!(message.contains("field \"x\"") && message.contains(words), "{message}");
    };
    let complex: &[u8] = include_bytes!("data/array-complex.npy");
    let member = |name: &str| matrix().array_bytes(ArrayBytes::Member(name.into()));
    use ErrorKind::*;
    check(matrix(), &NPY[..NPY.len() - 1], Truncated, "the .npy file ends inside the data");
    check(matrix(), &NPY[..5], Truncated, "the .npy file ends inside the format version");
    check(matrix(), complex, InvalidArgument, "expected numbers, found an array of complex64");
    let flat = SampleField::numbers(DType::F32, &[0]);
    check(flat, NPY, InvalidArgument, "[2, 3]");
    check(SampleField::numbers(DType::F32, &[2, 4]), NPY, InvalidArgument, "[2, 3]");
    let names = "no array \"other\" in the .npz file; the arrays are matrix, ids";
    check(member("other"), SEVERAL, NotFound, names);
    check(matrix(), SEVERAL, InvalidArgument, "several arrays, matrix, ids; choose a member");
    check(member("matrix"), NPY, Truncated, "not a .npz file: ");
    check(member("matrix"), &SEVERAL[..40], Truncated, "not a .npz file: ");
    check(
        matrix(),
        b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        InvalidArgument,
        "has no arrays",
    );
    let mut damaged = SEVERAL.to_vec();
    damaged[60] ^= 0xFF;
    check(member("matrix"), &damaged, Corrupt, "array \"matrix\" of the .npz file: ");
}

#[test]
fn samples_that_lack_a_value_are_dropped_and_the_address_is_text() {
    let stored = |number: usize, caption: FieldValue| {
        StoredRecord::new(format!("a.tar:{number}"))
            .with_stored("jpg", Extent::part("a.tar", 0..IMAGE.len() as u64), Encoding::Bytes)
            .with_known("txt", caption)
    };
    let store = MemoryFetcher::from_iter([("a.tar", IMAGE)]);
    let text = |text: &str| FieldValue::Text(text.into());
    let samples = vec![
        stored(0, text("a")),
        stored(1, FieldValue::Null),
        stored(2, text("c")),
        stored(3, text("d")),
    ];
    let spec = SampleSpec::new()
        .with("image", SampleField::image(ImageTransform::new(8)))
        .with("caption", SampleField::text().stored_as(["txt"]).drop_missing())
        .with("url", SampleField::url());
    let mut pipeline = pipeline(&spec, store, samples).on_error(OnError::Raise).build().unwrap();
    let batch = pipeline.next().unwrap().unwrap();
    assert_eq!(texts(&batch, "caption"), ["a", "c", "d"]);
    assert_eq!(texts(&batch, "url"), ["a.tar"; 3]);
    assert!(pipeline.next().is_none());
    let statistics = pipeline.statistics();
    let [dropped] = &statistics.dropped[..] else { panic!("{:?}", statistics.dropped) };
    assert_eq!(dropped.kind, ErrorKind::MissingValue);
    assert_eq!(dropped.key.as_deref(), Some("a.tar:1.txt"));
    assert_eq!(dropped.reason, "the value is null or missing: field \"txt\"");
    let both = SampleField::text().optional().drop_missing();
    assert!(SampleSpec::new().with("x", both).validate().is_err());
    let key = SampleField::key().drop_missing();
    assert!(SampleSpec::new().with("x", key).validate().is_err());
}

#[test]
fn a_sample_with_alpha_or_16_bits_is_a_field_of_a_batch() {
    let file: &[u8] = include_bytes!("data/wide-rgb-alpha.png");
    let store = MemoryFetcher::from_iter([("image", file)]);
    let sample = StoredRecord::new("1").with_stored("png", Extent::whole("image"), Encoding::Bytes);
    let image = || ImageTransform::new(16).color(SampleColor::Rgba);
    let wide = image().dtype(DType::U16).layout(Layout::Nchw);
    let spec = SampleSpec::new()
        .with("image", SampleField::image(image()))
        .with("wide", SampleField::image(wide).stored_as(["png"]));
    let batch = pipeline(&spec, store, vec![sample]).build().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.array("image").unwrap().shape(), [1, 16, 16, 4]);
    let wide = batch.array("wide").unwrap();
    assert_eq!((wide.shape(), wide.dtype()), (&[1, 4, 16, 16][..], DType::U16));
    assert!(wide.as_slice::<u16>().unwrap().iter().any(|level| level % 257 != 0));
    let jitter = Augmenter::new().then(RandomInvert::new());
    let field = SampleField::image(image()).augment(jitter);
    let error = SampleSpec::new().with("image", field).validate().unwrap_err();
    assert!(error.message().starts_with("field \"image\": augmentations are supported"), "{error}");
}

#[test]
fn what_follows_a_stored_image_has_its_coordinates() {
    // 6: the stored image is the upright one, rotated counterclockwise.
    let file: &[u8] = include_bytes!("data/orientation-6.png");
    let store = || MemoryFetcher::from_iter([("image", file)]);
    let stored = spdl_media::decode_rgb(file).unwrap().size.transposed();
    let sample = |mask: Vec<u8>, size: Size| {
        let box_ = vec![0.0, 0.0, f64::from(size.width), f64::from(size.height)];
        StoredRecord::new("1")
            .with_stored("png", Extent::whole("image"), Encoding::Bytes)
            .with_known("mask", FieldValue::Bytes(mask.into()))
            .with_known("boxes", FieldValue::List(vec![FieldValue::Floats(box_)]))
    };
    let spec = |exif: bool| {
        let image = ImageTransform::new(8).crop(Crop::Stretch).exif_orientation(exif);
        SampleSpec::new()
            .with("image", SampleField::image(image).stored_as(["png"]))
            .with("mask", SampleField::mask(Mask::like("image"), DType::I64))
            .with("boxes", SampleField::boxes(Boxes::like("image")))
            .with("size", SampleField::image_size("image"))
    };
    let run = |exif: bool, mask: Vec<u8>, size: Size| {
        let samples = vec![sample(mask, size)];
        pipeline(&spec(exif), store(), samples).build().unwrap().next().unwrap()
    };
    for (exif, size) in [(false, stored), (true, stored.transposed())] {
        let batch = run(exif, mask_of(size, false), size).unwrap();
        assert_eq!(integers(&batch, "size"), [i64::from(size.height), i64::from(size.width)]);
        assert_eq!(floats(&batch, "boxes"), [0.0, 0.0, 8.0, 8.0]);
        assert_eq!(integers(&batch, "mask"), [3; 64]);
        let error = run(exif, mask_of(size.transposed(), false), size).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        // The mask has an orientation too.
        let turned = run(exif, mask_of(size, true), size);
        let kind = turned.map_err(|error| error.kind()).map(|_| ());
        assert_eq!(kind, if exif { Err(ErrorKind::Unsupported) } else { Ok(()) });
    }
}

/// A grey PNG of class 3, perhaps with an EXIF orientation.
fn mask_of(size: Size, has_orientation: bool) -> Vec<u8> {
    let pixels = vec![3; size.pixels() as usize];
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, size.width, size.height);
    encoder.set_color(png::ColorType::Grayscale);
    let mut writer = encoder.write_header().unwrap();
    if has_orientation {
        let entry = [1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0];
        let block = [&b"MM\0*\0\0\0\x08\0\x01"[..], &entry, &[0; 4]].concat();
        writer.write_chunk(png::chunk::ChunkType(*b"eXIf"), &block).unwrap();
    }
    writer.write_image_data(&pixels).unwrap();
    drop(writer);
    file
}

#[cfg(all(feature = "png", feature = "augment"))]
mod described {
    use serde_json::{Value, json};
    use spdl_media::augment::{
        AugMix, AutoAugment, ErasingValue, GaussianBlur, Interpolation, RandAugment,
        RandomAdjustSharpness, RandomAffine, RandomChoice, RandomErasing, RandomGrayscale,
        RandomOrder, RandomPerspective, RandomPosterize, RandomSolarize, TimmAugMix,
        TimmRandAugment, TrivialAugmentWide,
    };
    use spdl_media::fill::{BoxFormat, Mask, Points, Tokens};
    use spdl_media::video::{ShortVideo, VideoClip, VideoTransform};
    use spdl_media::{
        Flip, OnTruncated, RandomIouCrop, RandomZoomOut, ResizeFilter, SampleColor, SampleFormat,
    };

    use super::*;

    fn of(description: Value) -> SampleSpec {
        SampleSpec::from_description(&description).unwrap()
    }

    #[track_caller]
    fn check(description: Value, expected: SampleSpec) {
        let found = of(description);
        let parameters = |spec: &SampleSpec| spec.parameters().collect::<Vec<_>>();
        assert_eq!(parameters(&found), parameters(&expected));
        assert_eq!(found.layout(2).fields(), expected.layout(2).fields());
    }

    fn error(description: Value) -> String {
        SampleSpec::from_description(&description).unwrap_err().to_string()
    }

    #[test]
    fn missing_values_and_stored_arrays_have_the_parameters_of_python() {
        let numbers = || SampleField::numbers(DType::F32, &[0, 3]).collation(Collation::List);
        check(
            json!({
                "a": {"type": "array", "shape": [null, 3], "stored_dtype": "float16", "missing": "drop"},
                "b": {"type": "array", "shape": [null, 3], "member": "matrix", "missing": "error"},
                "url": {"type": "url"},
            }),
            SampleSpec::new()
                .with("a", numbers().array_bytes(ArrayBytes::Raw(NpyType::Float(2))).drop_missing())
                .with("b", numbers().array_bytes(ArrayBytes::Member("matrix".into())))
                .with("url", SampleField::url()),
        );
        let both =
            json!({"a": {"type": "array", "shape": [3], "member": "m", "stored_dtype": "int8"}});
        assert!(error(both).contains("member: excludes stored_dtype"));
        let drop = json!({"a": {"type": "text", "missing": "drop", "default": "x"}});
        assert!(error(drop).contains("either dropped or kept"));
        let other = json!({"a": {"type": "text", "missing": "skip"}});
        assert!(error(other).contains("missing: expected one of error, drop"));
    }

    #[test]
    fn alpha_16_bits_and_stored_orientations_have_the_parameters_of_python() {
        let wide = SampleFormat { dtype: DType::U16, ..SampleFormat::default() };
        let transform =
            ImageTransform::new(64).color(SampleColor::Rgba).format(wide).exif_orientation(false);
        check(
            json!({"image": {
                "type": "image", "size": 64, "color": "rgba", "layout": "nhwc-u16",
                "exif_orientation": false,
            }}),
            SampleSpec::new().with("image", SampleField::image(transform)),
        );
        let augmented =
            json!({"image": {"type": "image", "color": "rgba", "augment": "RandomInvert()"}});
        assert!(error(augmented).contains("augment: augmentations are supported only for RGB"));
        let normalised = json!({"image": {
            "type": "image", "layout": "nchw-u16", "mean": [0, 0, 0], "std": [1, 1, 1],
        }});
        assert!(error(normalised).contains("mean and std need a normalised layout"));
        let crops = json!({"image": {"type": "image", "color": "rgba", "crop": "FiveCrop()"}});
        assert!(error(crops).contains("several crops of an image are supported only for RGB"));
    }

    /// A grey PNG of the size of the image, with different levels.
    fn mask() -> Vec<u8> {
        let registry = CodecRegistry::with_defaults();
        let size = spdl_media::Decoder::new(&registry, &Limits::default()).inspect(IMAGE).unwrap();
        let (width, height) = (size.size.width, size.size.height);
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(png::ColorType::Grayscale);
        let levels: Vec<u8> = (0..width * height).map(|at| (at % 251) as u8).collect();
        encoder.write_header().unwrap().write_image_data(&levels).unwrap();
        file
    }

    #[test]
    fn a_described_batch_has_the_bytes_of_rust_types() {
        let batch_of = |spec: &SampleSpec| {
            let files = [("image", bytes::Bytes::from_static(IMAGE)), ("mask", mask().into())];
            let store = MemoryFetcher::from_iter(files);
            let (_, samples) = samples();
            let with_mask = |sample: StoredRecord| {
                sample.with_stored("seg.png", Extent::whole("mask"), Encoding::Bytes)
            };
            let samples = samples.into_iter().map(with_mask).collect();
            let mut batch =
                pipeline(spec, store, samples).build().unwrap().next().unwrap().unwrap();
            let lists: Vec<_> = batch.take_lists().collect();
            let bytes =
                |array: &spdl_core::Array| (array.shape().to_vec(), array.as_bytes().to_vec());
            let lists = lists.iter().flat_map(|(_, list)| list).map(bytes).collect::<Vec<_>>();
            (batch.arrays().iter().map(bytes).collect::<Vec<_>>(), lists)
        };
        let described = of(json!({
            "image": {"type": "image", "size": 16, "train": true, "augment": "randominvert(p=0.5)"},
            "mask": {"type": "mask", "stored_as": "seg.png", "outside": -100},
            "boxes": {"type": "boxes", "stored_as": "json", "at": "boxes", "min_area": 0.5},
            "label": {"type": "label"},
            "text": {"type": "text", "stored_as": ["txt", "json"], "at": "caption"},
        }));
        let transform = ImageTransform::new(16).mode(Mode::Train);
        let boxes = SampleField::boxes(Boxes::like("image").min_area(0.5)).stored_as(["json"]);
        let typed = SampleSpec::new()
            .with(
                "image",
                SampleField::image(transform).augment(Augmenter::new().then(RandomInvert::new())),
            )
            .with(
                "mask",
                SampleField::mask(Mask::like("image").outside(-100), DType::I64)
                    .stored_as(["seg.png"]),
            )
            .with("boxes", boxes.at("boxes").collation(Collation::List))
            .with("label", SampleField::label())
            .with("text", SampleField::text().stored_as(["txt", "json"]).at("caption"));
        let found = batch_of(&described);
        assert_eq!(found, batch_of(&typed));
        assert_eq!(found.1.len(), 3, "a list of the boxes of three samples");
        assert_ne!(found, batch_of(&of(json!({"image": {"type": "image", "size": 16}}))));
    }

    #[test]
    fn videos_have_the_parameters_and_defaults_of_python() {
        let video = |clip: VideoClip| {
            let transform = VideoTransform::new(clip, ImageTransform::new(64));
            SampleSpec::new().with("video", SampleField::video(transform))
        };
        let described = |settings: Value| {
            let mut field = json!({"type": "video", "size": 64});
            for (name, value) in settings.as_object().unwrap() {
                field[name] = value.clone();
            }
            json!({"video": field})
        };
        check(described(json!({})), video(VideoClip::new(16)));
        check(described(json!({"every": 3})), video(VideoClip::new(16).every_frames(3)));
        let clip = VideoClip::new(4).every_seconds(0.5).start(1.0).random(true);
        check(
            described(
                json!({"frames": 4, "every": "0.5s", "start": 1.0, "random": true, "short": "cycle"}),
            ),
            video(clip.short(ShortVideo::Cycle)),
        );
        check(
            described(json!({"fps": 4, "short": "repeat"})),
            video(VideoClip::new(16).every_seconds(0.25).short(ShortVideo::RepeatLast)),
        );
        check(described(json!({"indices": [1, 7]})), video(VideoClip::at_frames([1, 7])));
        check(
            described(json!({"times": [0.5, 1], "frames": 2})),
            video(VideoClip::at_seconds([0.5, 1.0])),
        );
        let mut with_times = described(json!({}));
        with_times["count"] = json!({"type": "video_frames"});
        with_times["times"] = json!({"type": "VideoTimes"});
        let expected = video(VideoClip::new(16))
            .with("count", SampleField::video_frames("video"))
            .with("times", SampleField::video_times("video"));
        assert_eq!(expected.layout(2).fields()[2].shape, [16]);
        check(with_times, expected);
        for (settings, words) in [
            (json!({"every": "0.5"}), "expected seconds such as \"0.5s\", found \"0.5\""),
            (json!({"every": 1.5}), "expected a whole number of frames"),
            (json!({"every": 2, "fps": 3}), "every and fps exclude each other"),
            (json!({"every": [1]}), "expected a number of frames or seconds"),
            (json!({"short": "loop"}), "short"),
            (json!({"indices": [1], "times": [1]}), "indices and times exclude each other"),
            (json!({"indices": [1], "fps": 3}), "indices: excludes every and fps"),
            (json!({"times": [1], "every": 3}), "times: excludes every and fps"),
            (json!({"times": [1], "frames": 3}), "3 frames, but times has 1"),
            (json!({"indices": [-1]}), "a list of whole numbers of at least 0"),
            (json!({"indices": [2, 1]}), "not in ascending order"),
        ] {
            let error = error(described(settings));
            assert!(error.contains(words), "{error}");
        }
        let error = error(
            json!({"image": {"type": "image"}, "n": {"type": "video_frames", "like": "image"}}),
        );
        assert!(error.contains("field \"image\" is not video"), "{error}");
    }

    #[test]
    fn each_type_has_the_parameters_and_defaults_of_python() {
        let image = |transform: ImageTransform| {
            SampleSpec::new().with("image", SampleField::image(transform))
        };
        check(json!({"image": {"type": "Image"}}), image(ImageTransform::new(224)));
        let transform = ImageTransform::with_size(Size::new(64, 32)).format(SampleFormat::NCHW_F32);
        let transform = transform.horizontal_flip(0.5).vertical_flip(0.25).exact(true);
        let transform = transform.filter(ResizeFilter::Bicubic).color(SampleColor::Bgr);
        let transform = transform.normalization([0.5; 3], [0.25; 3]);
        let transform = transform.on_truncated(OnTruncated::Partial).min_partial(0.75);
        let described = json!({
            "type": "image", "size": [32, 64], "layout": "nchw-f32", "horizontal_flip": 0.5, "vertical_flip": 0.25,
            "exact": true, "filter": "bicubic", "color": "bgr", "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25],
            "on_truncated": "partial", "min_partial": 0.75, "view": 1, "stored_as": "png", "optional": true,
        });
        let field = SampleField::image(transform).view(1).stored_as(["png"]).optional();
        check(json!({"image": described}), SampleSpec::new().with("image", field));

        let like = |name: &str, field: SampleField| image(ImageTransform::new(8)).with(name, field);
        let described =
            |name: &str, field: Value| json!({"image": {"type": "image", "size": 8}, name: field});
        let depth = Mask::like("image").scale(0.5).outside(7);
        check(
            described("depth", json!({"type": "depth", "scale": 0.5, "outside": 7})),
            like("depth", SampleField::mask(depth, DType::F32)),
        );
        let boxes =
            Boxes::like("image").format(BoxFormat::Cxcywh).normalized(true).min_visibility(0.5);
        check(
            described(
                "boxes",
                json!({"type": "Boxes", "format": "cxcywh", "normalized": true, "min_visibility": 0.5, "collate": "ragged"}),
            ),
            like("boxes", SampleField::boxes(boxes)),
        );
        let points = Points::like("image").mirrored_pairs([(0, 1)]);
        check(
            described(
                "points",
                json!({"type": "key_points", "shape": [2, 3], "mirrored_pairs": [[0, 1]]}),
            ),
            like("points", SampleField::points(points, &[2, 3])),
        );
        check(
            described("map", json!({"type": "geometry"})),
            like("map", SampleField::geometry("image")),
        );
        check(
            described("size", json!({"type": "image_size"})),
            like("size", SampleField::image_size("image")),
        );

        let numbers =
            SampleField::numbers(DType::I64, &[0, 4]).collation(Collation::Padded).padding(-100.0);
        check(
            json!({
                "a": {"type": "array", "shape": [0, 4], "dtype": "int64", "collate": "pad", "padding": -100},
                "nan": {"type": "array", "shape": 0, "collate": "pad", "padding": "nan"},
                "b": {"type": "array", "shape": 5},
                "c": {"type": "array", "shape": 0, "default": [1, 2]},
                "d": {"type": "number", "dtype": "bool", "default": 1},
                "e": {"type": "tokens", "dtype": "int32", "max_length": 8, "truncate": true, "stored_dtype": "uint16"},
                "f": {"type": "bytes", "default": "none"},
                "g": {"type": "json", "at": "a.0"},
                "h": {"type": "key"},
                "i": {"type": "index"},
            }),
            SampleSpec::new()
                .with("a", numbers)
                .with(
                    "nan",
                    SampleField::numbers(DType::F32, &[0])
                        .collation(Collation::Padded)
                        .padding(f64::NAN),
                )
                .with("b", SampleField::numbers(DType::F32, &[5]))
                .with(
                    "c",
                    SampleField::numbers(DType::F32, &[0])
                        .collation(Collation::List)
                        .or(FieldValue::Json(json!([1, 2]))),
                )
                .with("d", SampleField::flags(&[]).or(FieldValue::Json(json!(1))))
                .with(
                    "e",
                    SampleField::tokens(
                        Tokens::new().at_most(8).truncated().stored_bytes(2),
                        DType::I32,
                    )
                    .collation(Collation::List),
                )
                .with("f", SampleField::bytes().or(FieldValue::Text("none".into())))
                .with("g", SampleField::json().at("a.0"))
                .with("h", SampleField::key())
                .with("i", SampleField::index()),
        );
        let padded = json!({"image": {"type": "image", "crop": "resize(8)", "collate": "pad"}, "mask": {"type": "mask"}});
        assert!(
            of(padded).layout(1).fields().iter().all(|field| field.collation == Collation::Padded)
        );
    }

    #[test]
    fn each_crop_is_a_name_text_or_a_table() {
        let check = |crop: Value, expected: Crop| {
            let image = ImageTransform::new(224).crop(expected);
            check(
                json!({"image": {"type": "image", "crop": crop}}),
                SampleSpec::new().with("image", SampleField::image(image)),
            );
        };
        let covering = Size::new(5, 4);
        check(json!("ResizedCenterCrop([4, 5])"), Crop::ResizedCenter { covering });
        check(
            json!("random_resized_crop"),
            Crop::RandomResized { area: (0.08, 1.0), aspect: (0.75, 4.0 / 3.0) },
        );
        check(
            json!("RandomResizedCrop((0.5, 1), ratio=(1, 2))"),
            Crop::RandomResized { area: (0.5, 1.0), aspect: (1.0, 2.0) },
        );
        check(json!("stretch()"), Crop::Stretch);
        check(json!({"type": "letterbox", "fill": 114}), Crop::Letterbox { fill: [114; 3] });
        check(json!({"type": "CenterCrop", "fill": [1, 2, 3]}), Crop::Center { fill: [1, 2, 3] });
        check(json!("RandomCrop(4)"), Crop::Random { padding: 4, fill: [0; 3] });
        check(
            json!("RandomScaledCrop((8, 16), 9)"),
            Crop::RandomScaled { shorter: (8, 16), fill: [9; 3] },
        );
        check(
            json!("Resize(8, multiple_of=2)"),
            Crop::Resize { shorter: Some(8), longest: None, multiple_of: 2 },
        );
        check(json!("FiveCrop"), Crop::Corners { covering: None, flipped: None });
        let corners = Crop::Corners { covering: Some(covering), flipped: Some(Flip::Vertical) };
        check(json!({"type": "TenCrop", "covering": [4, 5], "vertical_flip": true}), corners);
        let buckets = of(
            json!({"image": {"type": "image", "crop": "AspectBuckets([(32, 64), 48], random=True)"}}),
        );
        let expected = ImageTransform::new(224).crop(Crop::Cover { random: true });
        let expected = expected.sizes([Size::new(64, 32), Size::new(48, 48)]);
        let expected = SampleSpec::new().with("image", SampleField::image(expected));
        assert!(buckets.parameters().eq(expected.parameters()));
    }

    #[test]
    fn a_zoom_out_and_an_iou_crop_are_names_text_or_tables() {
        let check = |zoom_out: Value, iou_crop: Value, expected: ImageTransform| {
            let image = json!({"type": "image", "crop": "stretch", "zoom_out": zoom_out, "iou_crop": iou_crop});
            let boxes = SampleField::boxes(Boxes::like("image")).collation(Collation::List);
            let expected = SampleSpec::new()
                .with("image", SampleField::image(expected.crop(Crop::Stretch)))
                .with("boxes", boxes);
            let found = of(json!({"image": image, "boxes": {"type": "boxes"}}));
            assert!(found.parameters().eq(expected.parameters()));
        };
        let image = || ImageTransform::new(224);
        check(
            json!("random_zoom_out"),
            json!("RandomIoUCrop()"),
            image().zoom_out(RandomZoomOut::new()).iou_crop(RandomIouCrop::new()),
        );
        let iou_crop = RandomIouCrop::new().scale_between(0.5, 0.75).aspect_between(1.0, 3.0);
        check(
            json!("RandomZoomOut(9, (2, 3), p=1)"),
            json!({"type": "RandomIoUCrop", "min_scale": 0.5, "max_scale": 0.75, "min_aspect_ratio": 1,
                "max_aspect_ratio": 3, "sampler_options": [0, 0.5], "trials": 3}),
            image()
                .zoom_out(
                    RandomZoomOut::new().fill([9; 3]).sides_between(2.0, 3.0).probability(1.0),
                )
                .iou_crop(iou_crop.overlaps([0.0, 0.5]).trials(3)),
        );
        check(json!(null), json!(null), image());
        let error = |key: &str, value: Value| {
            let image = json!({"type": "image", "crop": "stretch", key: value});
            let described = json!({"image": image, "boxes": {"type": "boxes"}});
            let spec = SampleSpec::from_description(&described);
            spec.and_then(|spec| spec.validate()).unwrap_err().to_string()
        };
        let found = error("zoom_out", json!("Stretch"));
        assert!(
            found.contains("zoom_out: unknown type \"Stretch\"; expected one of RandomZoomOut"),
            "{found}"
        );
        assert!(error("iou_crop", json!("RandomIoUCrop(0)")).contains("a range of sides above 0"));
    }

    #[test]
    fn each_augmentation_has_the_parameters_and_defaults_of_python() {
        let check = |described: &str, expected: Augmenter| {
            let found = Augmenter::from_description(&json!(described)).unwrap();
            assert!(
                found.parameters().eq(expected.parameters()),
                "{described}: {found:?}, {expected:?}"
            );
        };
        let one = Augmenter::new;
        let jitter = ColorJitter::new().brightness(0.4).contrast_between(0.5, 2.0).hue(0.1);
        check("ColorJitter(0.4, (0.5, 2), hue=0.1)", one().then(jitter));
        check(
            "GaussianBlur((9, 5), 2)",
            one().then(GaussianBlur::new(9).kernel(9, 5).sigma_between(2.0, 2.0)),
        );
        check("RandomGrayscale", one().then(RandomGrayscale::new()));
        check("RandomPosterize(3, 1)", one().then(RandomPosterize::new(3).probability(1.0)));
        check("RandomSolarize(128)", one().then(RandomSolarize::new(128.0)));
        check("RandomAdjustSharpness(2)", one().then(RandomAdjustSharpness::new(2.0)));
        let rotation = RandomRotation::new(30.0).interpolation(Interpolation::Bilinear).fill(None);
        check(
            "RandomRotation(30, 'bilinear', (1, 2), None)",
            one().then(rotation.center(1.0, 2.0)),
        );
        let affine = RandomAffine::new(0.0).degrees_between(-5.0, 10.0).translate(0.1, 0.2);
        let affine =
            affine.scale_between(0.5, 2.0).shear_between((1.0, 2.0), (3.0, 4.0)).fill(Some([7; 3]));
        check(
            "RandomAffine((-5, 10), (0.1, 0.2), (0.5, 2), (1, 2, 3, 4), fill=7)",
            one().then(affine),
        );
        check("RandomPerspective(0.25)", one().then(RandomPerspective::new().distortion(0.25)));
        check(
            "RandomErasing(value='random')",
            one().then(RandomErasing::new().value(ErasingValue::Random)),
        );
        check("randaugment(3, 5)", one().then(RandAugment::new().operations(3).magnitude(5)));
        check("trivialaugment", one().then(TrivialAugmentWide::new()));
        check("AutoAugment", one().then(AutoAugment::new()));
        check("AugMix(5, chain_depth=-1)", one().then(AugMix::new().severity(5)));
        check("rand-m9-mstd101", one().then(TimmRandAugment::new().magnitude(9.0).uniform()));
        check(
            "augmix-m5-w4-d2",
            one().then(TimmAugMix::new().magnitude(5.0).mixture_width(4).chain_depth(Some(2))),
        );
        let list = json!(["RandomApply([ColorJitter(0.4), RandomGrayscale(1)], p=0.25)", {"type": "AugMix"}]);
        let found = Augmenter::from_description(&list).unwrap();
        let parameters: Vec<_> =
            found.parameters().map(|(name, value)| format!("{name}: {value}")).collect();
        let contains = |text: &str| parameters.iter().any(|one| one.contains(text));
        assert!(
            contains("brightness: 0.6 to 1.4") && contains("probability: 0.25"),
            "{parameters:?}"
        );
        assert!(contains("augmentation 2: AugMix"), "{parameters:?}");
        check(
            "RandomChoice([RandomInvert, AugMix(5)], p=[0.5, 2])",
            one().then(
                RandomChoice::new()
                    .or_weighted(RandomInvert::new(), 0.5)
                    .or_weighted(AugMix::new().severity(5), 2.0),
            ),
        );
        check(
            "RandomChoice([AutoAugment])",
            one().then(RandomChoice::new().or(AutoAugment::new())),
        );
        check(
            "RandomOrder([RandomInvert, AutoAugment])",
            one().then(RandomOrder::new().and(RandomInvert::new()).and(AutoAugment::new())),
        );
    }

    /// The test of Python reads the same texts.
    #[test]
    fn texts_are_the_augmentations_of_python() {
        let texts: Vec<(String, Value)> =
            serde_json::from_str(include_str!("data/augmentation_texts.json")).unwrap();
        let parameters = |described: &Value| {
            Augmenter::from_description(described).unwrap().parameters().collect::<Vec<_>>()
        };
        for (text, description) in texts {
            assert_eq!(parameters(&json!(text)), parameters(&description), "{text}");
        }
    }

    #[test]
    fn errors_name_the_field_the_key_and_what_is_allowed() {
        let image = |key: &str, value: Value| {
            let mut field = json!({"type": "image"});
            field[key] = value;
            error(json!({"x": field}))
        };
        let cases = [
            (
                error(json!({"x": {"type": "imag"}})),
                "field \"x\": unknown type \"imag\"; expected one of Image, Audio, Mel, Mask",
            ),
            (error(json!({"x": {"size": 8}})), "field \"x\": the key \"type\" is missing"),
            (error(json!({"x": 3})), "field \"x\": expected a table with the key type, found 3"),
            (error(json!(3)), "expected an object with a member for each field, found 3"),
            (error(json!({})), "add at least one"),
            (
                image("sise", json!(8)),
                "field \"x\": unknown key \"sise\"; expected one of size, train, layout",
            ),
            (
                image("size", json!("big")),
                "field \"x\": size: expected the side of a square, or [height, width], found \"big\"",
            ),
            (image("size", json!(0)), "field \"x\""),
            (
                image("filter", json!("linear")),
                "field \"x\": filter: unknown resize filter \"linear\": expected",
            ),
            (image("layout", json!("nchw")), "field \"x\": layout: unknown sample format"),
            (
                image("color", json!("cmyk")),
                "field \"x\": color: expected one of rgb, bgr, grey, rgba, found \"cmyk\"",
            ),
            (image("mean", json!([0, 0, 0])), "mean and std need a normalised layout"),
            (
                image("min_partial", json!(0.5)),
                "field \"x\": min_partial: needs on_truncated = \"partial\"",
            ),
            (
                image("crop", json!("RandomCrop(4, 5, 6)")),
                "field \"x\": crop: at most 2 arguments: padding, fill",
            ),
            (
                image("crop", json!("RandomCrop(4, padding=4)")),
                "field \"x\": crop: padding is given twice",
            ),
            (
                image("crop", json!("Resize(")),
                "field \"x\": crop: expected text such as \"RandomResizedCrop(",
            ),
            (image("crop", json!(7)), "field \"x\": crop: expected a table, or text such as"),
            (
                image("crop", json!("centre")),
                "field \"x\": crop: unknown type \"centre\"; expected one of ResizedCenterCrop",
            ),
            (
                image("crop", json!("ResizedCenterCrop")),
                "field \"x\": crop: covering is missing; expected the side",
            ),
            (
                image("augment", json!(["blur"])),
                "field \"x\": augment: unknown type \"blur\"; expected one of ColorJitter",
            ),
            (
                image("augment", json!("randaugment(2.5)")),
                "augment: num_ops: expected a whole number of at least 0, found 2.5",
            ),
            (
                image("augment", json!("ColorJitter(-1)")),
                "augment: brightness: expected at least 0, found -1",
            ),
            (image("augment", json!("RandomInvert(2)")), "field \"x\": augment: "),
            (
                image("augment", json!("RandomErasing(value=0.48)")),
                "augment: value: expected a colour level, a whole number from 0 to 255",
            ),
            (
                image("augment", json!("RandomErasing(value=(0, 300, 0))")),
                "augment: value: expected a colour level, a whole number from 0 to 255",
            ),
            (
                image("augment", json!("RandomChoice([AugMix], p=[1, 2])")),
                "augment: p: expected a weight for each of 1 augmentations, found 2",
            ),
            (
                image("augment", json!("RandomChoice([])")),
                "augment: invalid choice: expected at least one augmentation",
            ),
            (
                image("augment", json!("RandomApply([blur])")),
                "augment: augmentations: unknown type \"blur\"",
            ),
            (
                error(json!({"x": {"type": "mask", "dtype": "int8"}})),
                "dtype: expected one of uint8, uint16, int32, int64, found \"int8\"",
            ),
            (error(json!({"x": {"type": "mask"}})), "field \"x\": there is no field \"image\""),
            (
                error(json!({"x": {"type": "array"}})),
                "field \"x\": shape is missing; expected a list of lengths",
            ),
            (
                error(json!({"x": {"type": "text", "collate": "pad"}})),
                "unknown key \"collate\"; expected one of stored_as, at",
            ),
            (
                error(json!({"x": {"type": "index", "optional": true}})),
                "unknown key \"optional\"; there are no parameters",
            ),
            (
                error(json!({"x": {"type": "label", "at": "a"}})),
                "unknown key \"at\"; expected one of stored_as",
            ),
            (
                error(json!({"x": {"type": "boxes", "format": "yx"}})),
                "format: expected one of xyxy, xywh, cxcywh, found \"yx\"",
            ),
        ];
        for (found, expected) in cases {
            assert!(found.contains(expected), "{found}\nexpected: {expected}");
        }
        let sized = error(json!({"x": {"type": "image", "size": 8, "crop": "Resize(8)"}}));
        assert!(
            sized.contains("field \"x\": size: has no effect on a crop that determines the size"),
            "{sized}"
        );
        let absent = error(json!({"x": {"type": "tokens", "tokenizer": "absent.json"}}));
        let expected =
            if cfg!(feature = "tokenizers") { "cannot read the tokenizer" } else { "the feature" };
        assert!(
            absent.contains("field \"x\": tokenizer: ") && absent.contains(expected),
            "{absent}"
        );
    }
}
