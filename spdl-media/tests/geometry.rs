//! Boxes and key points follow the crop, resize and flips of their image.
#![cfg(all(feature = "records", feature = "bmp"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use proptest::prelude::*;
use spdl_core::stage::Collation;
use spdl_core::{Batch, DType, ErrorKind, PipelineBuilder, Result};
use spdl_io::{FieldValue, MemoryFetcher, StoredRecord};
#[cfg(feature = "png")]
use spdl_media::fill::Mask;
use spdl_media::fill::{BoxFormat, Boxes, Points, SampleField, SampleSpec};
use spdl_media::{CodecRegistry, Crop, ImageTransform, Layout, Limits, Mode, ResizeFilter, Size};

/// A black image of 24 bits with a white rectangle: left, top, right, bottom.
fn bmp(width: u32, height: u32, [left, top, right, bottom]: [u32; 4]) -> Vec<u8> {
    let stride = (width * 3).div_ceil(4) * 4;
    let mut file = b"BM".to_vec();
    for value in [54 + stride * height, 0, 54, 40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0] {
        file.extend_from_slice(&value.to_le_bytes());
    }
    for y in (0..height).rev() {
        let inside = |x: u32| (left..right).contains(&x) && (top..bottom).contains(&y);
        file.extend((0..width).flat_map(|x| [if inside(x) { 255 } else { 0 }; 3]));
        file.resize(file.len() + (stride - width * 3) as usize, 0);
    }
    file
}

fn run(spec: &SampleSpec, seed: u64, fields: &[(&str, FieldValue)]) -> Result<Batch> {
    let sample = fields.iter().fold(StoredRecord::new("a"), |sample, (name, value)| {
        sample.with_known(*name, value.clone())
    });
    let (registry, limits) = (CodecRegistry::with_defaults(), Limits::default());
    PipelineBuilder::from_iter([sample])
        .async_stage("fetch", spec.fetch(Arc::new(MemoryFetcher::new())))
        .fill("decode", spec.layout(1), spec.filler(&registry, &limits))
        .seed(seed)
        .build()?
        .next()
        .unwrap()
}

fn json(text: &str) -> FieldValue {
    FieldValue::Json(text.parse().unwrap())
}

fn image(bytes: Vec<u8>) -> (&'static str, FieldValue) {
    ("image", FieldValue::Bytes(bytes.into()))
}

fn floats(batch: &Batch, name: &str) -> Vec<f32> {
    batch.array(name).unwrap().as_slice().unwrap().to_vec()
}

/// The bounding box of the white pixels of a sample of `width` pixels per row.
fn white(pixels: &[u8], width: usize) -> Option<[f32; 4]> {
    let white = pixels.chunks(3).enumerate().filter(|(_, pixel)| pixel[0] > 127);
    white.map(|(at, _)| (at % width, at / width)).fold(None, |found, (x, y)| {
        let (x, y) = (x as f32, y as f32);
        let [left, top, right, bottom] = found.unwrap_or([x, y, x, y]);
        Some([left.min(x), top.min(y), right.max(x + 1.0), bottom.max(y + 1.0)])
    })
}

fn crops() -> impl Strategy<Value = Crop> {
    prop_oneof![
        Just(Crop::Stretch),
        Just(Crop::Letterbox { fill: [0; 3] }),
        Just(Crop::Center { fill: [0; 3] }),
        Just(Crop::Random { padding: 4, fill: [0; 3] }),
        Just(Crop::RandomResized { area: (0.2, 1.0), aspect: (0.5, 2.0) }),
        (20u32..60).prop_map(|side| Crop::ResizedCenter { covering: Size::new(side, side) }),
        (10u32..60).prop_map(|side| Crop::RandomScaled { shorter: (side, 60), fill: [0; 3] }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]
    #[test]
    fn a_box_surrounds_the_same_pixels_as_before(
        size in (20u32..90, 20u32..90), sample in (24u32..70, 24u32..70), crop in crops(),
        sides in prop::array::uniform4(0.0..1.0f64), flips in (0u8..2, 0u8..2), seed: u64,
    ) {
        let span = |a: f64, b: f64, side: u32| {
            let at = |share: f64| (share * f64::from(side)) as u32;
            (at(a.min(b)), at(a.max(b)).max(at(a.min(b)) + 1))
        };
        let (left, right) = span(sides[0], sides[1], size.0);
        let (top, bottom) = span(sides[2], sides[3], size.1);
        let transform = ImageTransform::with_size(Size::new(sample.0, sample.1))
            .crop(crop)
            .exact(true)
            .filter(ResizeFilter::Nearest)
            .horizontal_flip(flips.0.into())
            .vertical_flip(flips.1.into());
        let spec = SampleSpec::new()
            .with("boxes", SampleField::boxes(Boxes::like("image")))
            .with("image", SampleField::image(transform));
        let fields = [
            image(bmp(size.0, size.1, [left, top, right, bottom])),
            ("boxes", json(&format!("[[{left}, {top}, {right}, {bottom}]]"))),
        ];
        let batch = run(&spec, seed, &fields).unwrap();
        let found = floats(&batch, "boxes");
        let expected = white(batch.array("image").unwrap().as_bytes(), sample.0 as usize);
        match (&found[..], expected) {
            ([], expected) => prop_assert!(expected.is_none(), "{expected:?}"),
            // A thin box may cover the centre of no pixel.
            (&[left, top, right, bottom], None) => {
                prop_assert!(right - left < 2.0 || bottom - top < 2.0, "{found:?}");
            }
            (found, Some(expected)) => {
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1.01;
                prop_assert!(found.iter().zip(&expected).all(near), "{found:?} {expected:?}");
            }
            _ => prop_assert!(false, "{found:?}"),
        }
    }
}

/// A sample of 40 x 20 pixels, which shows columns 20 to 60 and rows 10 to 30 of the image.
fn centre() -> ImageTransform {
    ImageTransform::with_size(Size::new(40, 20)).crop(Crop::Center { fill: [0; 3] })
}

/// The boxes of an image of 80 x 40 pixels in the sample `centre`.
fn boxes(boxes: Boxes, stored: &str) -> Result<Vec<f32>> {
    let spec = SampleSpec::new()
        .with("image", SampleField::image(centre()))
        .with("boxes", SampleField::boxes(boxes));
    let fields = [image(bmp(80, 40, [0; 4])), ("boxes", json(stored))];
    Ok(floats(&run(&spec, 0, &fields)?, "boxes"))
}

#[test]
fn boxes_keep_their_format_and_unit() {
    let like = || Boxes::like("image");
    // Clipped at the left and at the top.
    assert_eq!(boxes(like(), "[[10, 4, 30, 20]]").unwrap(), [0.0, 0.0, 10.0, 10.0]);
    let xywh = like().format(BoxFormat::Xywh);
    assert_eq!(boxes(xywh, "[[10, 4, 20, 16]]").unwrap(), [0.0, 0.0, 10.0, 10.0]);
    let centre = like().format(BoxFormat::Cxcywh);
    assert_eq!(boxes(centre.clone(), "[[20, 12, 20, 16]]").unwrap(), [5.0, 5.0, 10.0, 10.0]);
    let shares = "[[0.25, 0.3, 0.25, 0.4]]";
    assert_eq!(boxes(centre.normalized(true), shares).unwrap(), [0.125, 0.25, 0.25, 0.5]);
    assert_eq!(boxes(like(), "[]").unwrap(), [0.0; 0]);
    // A box beyond a mirrored image of 39 x 20 pixels, which columns 11 to 50 of the sample show.
    let transform = ImageTransform::with_size(Size::new(60, 20))
        .crop(Crop::Center { fill: [0; 3] })
        .horizontal_flip(1.0);
    let spec = SampleSpec::new()
        .with("image", SampleField::image(transform))
        .with("boxes", SampleField::boxes(like()));
    let fields = [image(bmp(39, 20, [0; 4])), ("boxes", json("[[-5, 0, 50, 10]]"))];
    assert_eq!(floats(&run(&spec, 0, &fields).unwrap(), "boxes"), [11.0, 0.0, 50.0, 10.0]);
}

#[test]
fn rows_of_dropped_boxes_are_dropped() {
    let kept = |limits: Boxes| {
        let spec = SampleSpec::new()
            .with("classes", SampleField::numbers(DType::I64, &[0]).rows_of("boxes"))
            .with("boxes", SampleField::boxes(limits))
            .with("image", SampleField::image(centre()));
        let fields = [
            image(bmp(80, 40, [0; 4])),
            // Inside; half visible; a tenth visible; invisible.
            ("boxes", json("[[30, 12, 40, 22], [10, 12, 30, 22], [2, 12, 22, 22], [0, 0, 9, 9]]")),
            ("classes", json("[1, 2, 3, 4]")),
        ];
        let batch = run(&spec, 0, &fields).unwrap();
        batch.array("classes").unwrap().as_slice::<i64>().unwrap().to_vec()
    };
    assert_eq!(kept(Boxes::like("image")), [1, 2, 3]);
    assert_eq!(kept(Boxes::like("image").min_visibility(0.3)), [1, 2]);
    assert_eq!(kept(Boxes::like("image").min_area(21.0)), [1, 2]);
    assert_eq!(kept(Boxes::like("image").min_visibility(0.6)), [1]);
}

#[test]
fn invalid_boxes_are_errors_that_name_them() {
    let cases = [
        ("[[1, 2, 3]]", "expected boxes of the shape [*, 4], found [1, 3]"),
        ("[[5, 0, 4, 1]]", "box 0 is not valid"),
        ("[[0, 0, 1, 1], [81, 0, 90, 1]]", "box 1 is outside the image of 80x40 pixels"),
        ("[[-9, -9, -1, -1]]", "outside the image"),
        ("[[0, 0, 1, null]]", "expected numbers, found null"),
        ("[[0, 0, 1, 1], [0, 0]]", "nested lists differ in length"),
    ];
    for (stored, expected) in cases {
        let error = boxes(Boxes::like("image"), stored).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidArgument, Some("a")));
        let message = error.message();
        assert!(message.starts_with("field \"boxes\": ") && message.contains(expected), "{error}");
    }
    let nan = FieldValue::List(vec![FieldValue::Floats(vec![0.0, 0.0, f64::NAN, 1.0])]);
    let spec = SampleSpec::new()
        .with("image", SampleField::image(centre()))
        .with("boxes", SampleField::boxes(Boxes::like("image")));
    let error = run(&spec, 0, &[image(bmp(80, 40, [0; 4])), ("boxes", nan)]).unwrap_err();
    assert!(error.message().contains("box 0 is not valid"), "{error}");
    let spec = spec.with("classes", SampleField::numbers(DType::I64, &[0]).rows_of("boxes"));
    let fields = [
        image(bmp(80, 40, [0; 4])),
        ("boxes", json("[[1, 1, 2, 2]]")),
        ("classes", json("[1, 2]")),
    ];
    let error = run(&spec, 0, &fields).unwrap_err();
    assert!(error.message().contains("each of the 1 boxes, found 2"), "{error}");
}

#[test]
fn points_follow_the_image_and_lose_their_visibility_outside() {
    let points = |transform: ImageTransform, points: Points, shape: &[usize], stored: &str| {
        let spec = SampleSpec::new()
            .with("image", SampleField::image(transform))
            .with("points", SampleField::points(points, shape));
        let fields = [image(bmp(80, 40, [0; 4])), ("points", json(stored))];
        run(&spec, 0, &fields).map(|batch| floats(&batch, "points"))
    };
    let like = || Points::like("image");
    let eyes = "[[30, 15, 2], [5, 15, 2]]";
    let found = points(centre(), like(), &[2, 3], eyes).unwrap();
    assert_eq!(found, [10.0, 5.0, 2.0, -15.0, 5.0, 0.0]);
    // Mirrored: x becomes 40 - x, and the eyes change places.
    let mirrored = || centre().horizontal_flip(1.0);
    let found = points(mirrored(), like().mirrored_pairs([(0, 1)]), &[2, 3], eyes).unwrap();
    assert_eq!(found, [55.0, 5.0, 0.0, 30.0, 5.0, 2.0]);
    // Two persons with one point each.
    let found = points(mirrored(), like(), &[0, 1, 2], "[[[30, 15]], [[40, 25]]]").unwrap();
    assert_eq!(found, [30.0, 5.0, 20.0, 15.0]);
    let error = points(mirrored(), like().mirrored_pairs([(0, 2)]), &[2, 3], eyes).unwrap_err();
    assert!(error.message().contains("there are only 2"), "{error}");
    let error = points(centre(), like(), &[0], "[1, 2, 3, 4]").unwrap_err();
    assert!(error.message().contains("expected points of the shape"), "{error}");
}

#[test]
fn references_to_other_fields_are_checked() {
    let image = || SampleField::image(ImageTransform::new(8).mode(Mode::Train));
    let boxes = |like: &str| SampleField::boxes(Boxes::like(like));
    let number = || SampleField::numbers(DType::I64, &[0]);
    let cases = [
        (SampleSpec::new().with("boxes", boxes("image")), "there is no field \"image\""),
        (
            SampleSpec::new().with("image", number()).with("boxes", boxes("image")),
            "field \"image\" is not an image",
        ),
        (
            SampleSpec::new().with("image", image()).with("x", number().rows_of("image")),
            "field \"image\" is not boxes",
        ),
        (
            SampleSpec::new()
                .with("image", image())
                .with("boxes", SampleField::boxes(Boxes::like("image").min_visibility(1.5))),
            "invalid limits of boxes",
        ),
        (
            SampleSpec::new()
                .with("image", image())
                .with("boxes", boxes("image"))
                .with("text", SampleField::text().rows_of("boxes")),
            "only numbers and points have rows",
        ),
    ];
    for (spec, expected) in cases {
        let error = spec.validate().unwrap_err();
        assert!(error.message().contains(expected), "{error}");
    }
}

/// The bytes of a test file.
fn file(name: &str) -> FieldValue {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    FieldValue::Bytes(std::fs::read(path).unwrap().into())
}

/// A mask beside its image, which is the same file, resized without interpolation.
#[cfg(feature = "png")]
fn masked(name: &str, crop: Crop, seed: u64, outside: i64) -> Result<Batch> {
    let transform = ImageTransform::with_size(Size::new(30, 26))
        .crop(crop)
        .exact(true)
        .filter(ResizeFilter::Nearest)
        .horizontal_flip(0.5)
        .vertical_flip(0.5);
    let mask = |dtype| SampleField::mask(Mask::like("image").outside(outside), dtype);
    let spec = SampleSpec::new()
        .with("mask", mask(DType::U8))
        .with("wide", mask(DType::I64).stored_as(["mask"]))
        .with("image", SampleField::image(transform).stored_as(["image"]));
    run(&spec, seed, &[("mask", file(name)), ("image", file(name))])
}

#[cfg(feature = "png")]
proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
    #[test]
    fn a_mask_has_the_numbers_of_the_pixels_of_its_image(crop in crops(), seed: u64) {
        // For each file, the grey value of a stored number; `None` for palettes.
        type Grey = Option<fn(u8) -> u8>;
        let files: [(&str, Grey); 5] = [
            ("grey.png", Some(|it| it)),
            ("grey4.png", Some(|it| it * 17)),
            ("grey2.png", Some(|it| it * 85)),
            ("bit.png", Some(|it| it * 255)),
            ("palette.png", None),
        ];
        for (name, grey) in files {
            let batch = masked(name, crop, seed, 0).unwrap();
            let mask = batch.array("mask").unwrap();
            prop_assert_eq!(mask.shape(), [1, 26, 30]);
            let wide = batch.array("wide").unwrap().as_slice::<i64>().unwrap();
            prop_assert!(wide.iter().eq(mask.as_bytes().iter().map(|&it| it as i64).collect::<Vec<_>>().iter()));
            let pixels = batch.array("image").unwrap().as_bytes().chunks(3);
            // Each number always has one colour.
            let mut colours = std::collections::BTreeMap::new();
            for (&number, pixel) in mask.as_bytes().iter().zip(pixels) {
                match grey {
                    Some(grey) => prop_assert_eq!(grey(number), pixel[0], "{}", name),
                    // Pixels outside the image are black.
                    None if pixel == [0; 3] => {}
                    None => prop_assert_eq!(*colours.entry(number).or_insert(pixel), pixel, "{}", name),
                }
            }
        }
    }
}

#[cfg(feature = "png")]
#[test]
fn pixels_outside_the_image_have_the_given_number() {
    // Files of 37 x 29 pixels in a sample of 30 x 26: rows above and below the image.
    let batch = masked("grey.png", Crop::Letterbox { fill: [0; 3] }, 0, 255).unwrap();
    let mask = batch.array("mask").unwrap().as_bytes();
    assert!(mask[..30].iter().all(|&number| number == 255));
}

#[cfg(feature = "png")]
#[test]
fn unsuitable_masks_are_errors() {
    let mask = |name: &str, image: &str| {
        let spec = SampleSpec::new()
            .with("image", SampleField::image(ImageTransform::new(8)).stored_as(["image"]))
            .with("mask", SampleField::mask(Mask::like("image"), DType::U8));
        run(&spec, 0, &[("mask", file(name)), ("image", file(image))]).unwrap_err()
    };
    let error = mask("grey.png", "420-tiny.jpg");
    assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidArgument, Some("a")));
    assert!(error.message().contains("but its image has 2x2"), "{error}");
    let error = mask("444.jpg", "444.jpg");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("found another format"), "{error}");
    assert!(mask("grey-alpha.png", "grey.png").message().contains("colours or alpha"));
    let error = mask("grey16.png", "grey.png");
    assert!(error.message().contains("exceeds the range of uint8; use int64"), "{error}");
}

#[cfg(feature = "png")]
#[test]
fn images_and_masks_of_any_size_are_lists_or_padded() {
    let resize = |multiple_of| Crop::Resize { shorter: None, longest: None, multiple_of };
    let transform = |multiple_of| {
        ImageTransform::new(224).crop(resize(multiple_of)).horizontal_flip(1.0).exact(true)
    };
    let nchw = transform(16).layout(Layout::Nchw).dtype(DType::F32);
    let stored = |field: SampleField, name: &str| field.stored_as([name]);
    let image = || stored(SampleField::image(transform(1)), "image");
    let mask = |like: &str| stored(SampleField::mask(Mask::like(like), DType::U8), "mask");
    let spec = SampleSpec::new()
        .with("image", image())
        .with("mask", mask("image"))
        .with("missing", mask("image").stored_as(["other"]).optional())
        .with("wide", stored(SampleField::image(nchw), "image").collation(Collation::Padded))
        .with("other", mask("wide"));
    let batch = run(&spec, 0, &[("mask", file("grey.png")), ("image", file("grey.png"))]).unwrap();
    // The file has 37 x 29 pixels.
    let [pixels, numbers, missing] =
        ["image", "mask", "missing"].map(|name| &batch.list(name).unwrap()[0]);
    assert_eq!((pixels.shape(), numbers.shape()), (&[29, 37, 3][..], &[29, 37][..]));
    assert!(pixels.as_bytes().chunks(3).zip(numbers.as_bytes()).all(|(pixel, &it)| pixel[0] == it));
    assert_eq!((missing.shape(), missing.as_bytes()), (&[29, 37][..], &[0; 29 * 37][..]));
    assert_eq!(batch.array("wide").unwrap().shape(), [1, 3, 32, 32]);
    assert_eq!(batch.array("wide.sizes").unwrap().as_slice::<i64>().unwrap(), [32, 32]);
    assert_eq!(batch.array("other").unwrap().shape(), [1, 32, 32]);

    // Without its image, the size of a mask is unknown.
    let spec = SampleSpec::new().with("image", image().optional()).with("mask", mask("image"));
    let batch = run(&spec, 0, &[("mask", file("grey.png"))]).unwrap();
    assert!(batch.list("mask").unwrap()[0].as_bytes().is_empty());
    assert!(batch.list("image").unwrap()[0].as_bytes().is_empty());
    // One array has one size.
    let stacked = SampleSpec::new().with("image", image().collation(Collation::Stacked));
    assert_eq!(stacked.validate().unwrap_err().kind(), ErrorKind::InvalidArgument);
    // Too large a side is an error of the sample.
    let huge = Crop::Resize { shorter: Some(20_000), longest: None, multiple_of: 1 };
    let huge = SampleField::image(ImageTransform::new(8).crop(huge)).stored_as(["image"]);
    let error = run(&SampleSpec::new().with("image", huge), 0, &[("image", file("grey.png"))]);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[cfg(feature = "png")]
#[test]
fn numbers_of_16_bits_are_kept_or_scaled() {
    let image = ImageTransform::with_size(Size::new(30, 40)).crop(Crop::Letterbox { fill: [0; 3] });
    let field = |mask: Mask, dtype| SampleField::mask(mask, dtype).stored_as(["mask"]);
    let mask = || Mask::like("image").outside(1000);
    let spec = SampleSpec::new()
        .with("image", SampleField::image(image.horizontal_flip(1.0)).stored_as(["image"]))
        .with("u16", field(mask(), DType::U16))
        .with("i32", field(mask(), DType::I32))
        .with("f32", field(mask().scale(0.125), DType::F32));
    let stored = [("mask", file("grey16.png")), ("image", file("grey.png"))];
    let batch = run(&spec, 0, &stored).unwrap();
    let numbers = batch.array("u16").unwrap().as_slice::<u16>().unwrap();
    assert!(numbers[0] == 1000 && numbers[20 * 30..][..30].iter().any(|&it| it > 255));
    let wide = batch.array("i32").unwrap().as_slice::<i32>().unwrap();
    assert!(wide.iter().eq(&numbers.iter().map(|&it| it.into()).collect::<Vec<i32>>()));
    let scaled = batch.array("f32").unwrap().as_slice::<f32>().unwrap();
    assert!(scaled.iter().zip(numbers).all(|(scaled, &it)| *scaled == f32::from(it) * 0.125));

    let invalid = |mask: Mask, dtype| {
        let image = SampleField::image(ImageTransform::new(8));
        let spec = SampleSpec::new().with("image", image).with("mask", field(mask, dtype));
        let error = spec.validate().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        error.message().to_owned()
    };
    let message = invalid(mask(), DType::U8);
    assert!(
        message.contains("outside: expected 0 to 255 for dtype uint8, found 1000"),
        "{message}"
    );
    for dtype in [DType::U8, DType::U16, DType::F32] {
        invalid(mask().outside(-1), dtype);
    }
    invalid(mask().outside(i64::MIN), DType::I32);
    invalid(mask(), DType::F64);
    invalid(mask().scale(2.0), DType::U16);
    invalid(mask().scale(f32::NAN), DType::F32);
}

#[cfg(feature = "png")]
#[test]
fn a_missing_mask_has_the_number_outside_the_image() {
    let image = || SampleField::image(ImageTransform::new(8)).stored_as(["image"]).optional();
    for (dtype, number) in [(DType::U8, 255), (DType::I64, -100), (DType::I32, -100)] {
        let mask = SampleField::mask(Mask::like("image").outside(number), dtype).optional();
        let spec = SampleSpec::new().with("image", image()).with("mask", mask);
        // Without the mask, and without its image.
        for stored in [[("image", file("444.jpg"))], [("mask", file("grey.png"))]] {
            let batch = run(&spec, 0, &stored).unwrap();
            let mask = batch.array("mask").unwrap();
            let is_outside = match dtype {
                DType::U8 => mask.as_slice::<u8>().unwrap() == [255; 64],
                DType::I32 => mask.as_slice::<i32>().unwrap() == [-100; 64],
                _ => mask.as_slice::<i64>().unwrap() == [-100; 64],
            };
            assert!(is_outside, "{dtype} {stored:?}");
        }
    }
}
