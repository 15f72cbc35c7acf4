//! `FillImage`: layouts, flips, orientation, randomness, and pipelines.

use bytes::Bytes;
use spdl_core::observe::Counter;
use spdl_core::source::Fingerprint;
use spdl_core::{
    BatchLayout, DType, DatasetSource, ErrorKind, Field, Fill, FillContext, Labeled,
    PipelineBuilder, Result, SampleId, SampleRng, SlotMut,
};
use spdl_media::augment::{Augment, Augmenter, ImageMut, Scratch};
use spdl_media::transform::{IMAGENET_MEAN, IMAGENET_STD};
use spdl_media::{
    CodecRegistry, Crop, FillImage, Flip, ImageTransform, Layout, Limits, Mode, OnTruncated, Rect,
    ResizeFilter, Sample, SampleColor, SampleFormat, image_fields,
};

use crate::files::data;

const SIDE: u32 = 24;

fn filler(transform: &ImageTransform) -> FillImage {
    FillImage::new(&CodecRegistry::with_defaults(), transform, &Limits::default()).unwrap()
}

fn rng(index: u64) -> SampleRng {
    SampleRng::new(7, SampleId { epoch: 0, index }, "fill")
}

fn bytes_of(transform: &ImageTransform, encoded: &[u8], index: u64) -> Vec<u8> {
    let mut sample = vec![0; (SIDE * SIDE * 3) as usize];
    filler(transform).write(encoded, Sample::U8(&mut sample), || rng(index)).unwrap();
    sample
}

fn cropped(encoded: &[u8], crop: Rect, mirrored: bool) -> Vec<u8> {
    let mut sample = vec![0; (SIDE * SIDE * 3) as usize];
    let mut fill = filler(&ImageTransform::new(SIDE));
    fill.write_crop(encoded, Sample::U8(&mut sample), crop, mirrored).unwrap();
    sample
}

/// The pixel of a sample.
fn at(sample: &[u8], x: u32, y: u32) -> &[u8] {
    &sample[((y * SIDE + x) * 3) as usize..][..3]
}

// promise: IMG7
#[test]
fn floats_are_normalised_bytes() {
    for (mode, index) in [(Mode::Eval, 0), (Mode::Train, 0), (Mode::Train, 1), (Mode::Train, 2)] {
        for name in ["rgb.png", "orientation-6.jpg", "orientation-7.jpg"] {
            let file = data(name);
            let transform = ImageTransform::new(SIDE).mode(mode);
            let bytes = bytes_of(&transform, &file, index);
            let mut floats = vec![f32::NAN; bytes.len()];
            filler(&transform.format(SampleFormat::NCHW_F32))
                .write(&file, Sample::F32(&mut floats), || rng(index))
                .unwrap();
            for (at, pixel) in bytes.chunks(3).enumerate() {
                for channel in 0..3 {
                    let mean = f64::from(IMAGENET_MEAN[channel]);
                    let std = f64::from(IMAGENET_STD[channel]);
                    let found = floats[channel * (SIDE * SIDE) as usize + at];
                    let value = (f64::from(pixel[channel]) / 255.0 - mean) / std;
                    assert!((f64::from(found) - value).abs() < 1e-6, "{name}: {found} {value}");
                    // Bit-identical to the documented formula.
                    let scale = (1.0 / (255.0 * std)) as f32;
                    let expected = f32::from(pixel[channel]) * scale + (-mean / std) as f32;
                    assert_eq!(found.to_bits(), expected.to_bits(), "{name}");
                }
            }
        }
    }
}

#[test]
fn several_crops_are_parts_of_one_resized_image() {
    let covering = Some(spdl_media::Size::new(31, 29));
    for name in ["rgb.png", "420.jpg", "orientation-6.jpg"] {
        let file = data(name);
        let image = spdl_media::Decoder::new(&CodecRegistry::with_defaults(), &Limits::default())
            .inspect(&file)
            .unwrap()
            .upright_size();
        for format in [SampleFormat::NHWC_U8, SampleFormat::NCHW_F32] {
            let crop = Crop::Corners { covering, flipped: Some(Flip::Horizontal) };
            let transform = ImageTransform::new(SIDE).crop(crop).format(format);
            let values = (SIDE * SIDE * 3) as usize;
            let mut found = vec![0.0_f32; 10 * values];
            let mut bytes = vec![0_u8; 10 * values];
            let is_float = format == SampleFormat::NCHW_F32;
            let sample = if is_float { Sample::F32(&mut found) } else { Sample::U8(&mut bytes) };
            filler(&transform).write(&file, sample, || rng(0)).unwrap();
            // The resized image, from which torchvision takes the crops.
            let scale = (31.0 / f64::from(image.width)).max(29.0 / f64::from(image.height));
            let is_wide = 29.0 / f64::from(image.height) == scale;
            let (width, height) = match is_wide {
                true => ((f64::from(image.width) * scale) as u32, 29),
                false => (31, (f64::from(image.height) * scale) as u32),
            };
            let whole = ImageTransform::with_size(spdl_media::Size::new(width, height));
            let mut pixels = vec![0; (width * height * 3) as usize];
            let whole = whole.crop(Crop::Stretch);
            filler(&whole).write(&file, Sample::U8(&mut pixels), || rng(0)).unwrap();
            let (right, bottom) = (width - SIDE, height - SIDE);
            let places = [(0, 0), (right, 0), (0, bottom), (right, bottom)];
            for at in (0..4).chain(5..9) {
                let (left, top) = places[at % 5];
                for (x, y) in [(0, 0), (SIDE - 1, 0), (3, SIDE - 2), (11, 12)] {
                    // Crops of the flipped image.
                    let column = if at < 5 { left + x } else { width - 1 - left - x };
                    let pixel = &pixels[((top + y) * width + column) as usize * 3..][..3];
                    if !is_float {
                        assert_eq!(self::at(&bytes[at * values..], x, y), pixel, "{name} {at}");
                        continue;
                    }
                    for channel in 0..3 {
                        let plane = at * values + channel * (SIDE * SIDE) as usize;
                        let found = found[plane + (y * SIDE + x) as usize];
                        let level = f32::from(pixel[channel]) / 255.0;
                        let expected = (level - IMAGENET_MEAN[channel]) / IMAGENET_STD[channel];
                        assert!((found - expected).abs() < 1e-4, "{name} {at}: {found} {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn several_crops_are_neither_flipped_nor_augmented_nor_written_otherwise() {
    let crop = Crop::Corners { covering: None, flipped: None };
    let transform = ImageTransform::new(SIDE).crop(crop);
    assert!(transform.clone().horizontal_flip(0.5).validate().is_err());
    let augmented = filler(&transform).augment(Augmenter::new().then(Paint));
    assert_eq!(augmented.unwrap_err().kind(), ErrorKind::Unsupported);
    let mut sample = vec![0; (5 * SIDE * SIDE * 3) as usize];
    let part = Rect { left: 0, top: 0, width: 4, height: 4 };
    let mut fill = filler(&transform);
    let written = fill.write_crop(&data("rgb.png"), Sample::U8(&mut sample), part, false);
    assert_eq!(written.unwrap_err().kind(), ErrorKind::Unsupported);
    // One crop is too small a sample, and a larger crop than the image an error.
    let one = (SIDE * SIDE * 3) as usize;
    let file = data("rgb.png");
    let short = fill.write(&file, Sample::U8(&mut sample[..one]), || rng(0));
    assert_eq!(short.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let large = ImageTransform::new(400).crop(crop);
    let mut sample = vec![0; 5 * 400 * 400 * 3];
    let error = filler(&large).write(&file, Sample::U8(&mut sample), || rng(0)).unwrap_err();
    assert!(error.to_string().contains("do not fit"), "{error}");
}

/// Records the image, and fills it with a random level.
#[derive(Debug)]
struct Paint;

impl Augment for Paint {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        _: &mut Scratch,
    ) -> spdl_core::Result<()> {
        let level = rng.below(256) as u8;
        for value in image.pixels_mut() {
            *value = value.wrapping_add(level);
        }
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::default().with("", "Paint")
    }
}

fn painted(transform: &ImageTransform, encoded: &[u8], index: u64) -> Vec<u8> {
    let mut sample = vec![0; (SIDE * SIDE * 3) as usize];
    let augmenter = Augmenter::new().then(Paint);
    let mut fill = filler(transform).augment(augmenter).unwrap();
    fill.write(encoded, Sample::U8(&mut sample), || rng(index)).unwrap();
    sample
}

// promise: IMG8
#[test]
fn augmentations_apply_to_the_unaugmented_sample() {
    for name in ["rgb.png", "orientation-6.jpg", "420.jpg"] {
        let file = data(name);
        for mode in [Mode::Eval, Mode::Train] {
            let transform = ImageTransform::new(SIDE).mode(mode);
            let mut levels = Vec::new();
            for index in 0..8 {
                // The crop is drawn first and does not change.
                let (plain, painted) =
                    (bytes_of(&transform, &file, index), painted(&transform, &file, index));
                let level = painted[0].wrapping_sub(plain[0]);
                let added = plain.iter().map(|value| value.wrapping_add(level));
                assert!(added.eq(painted.iter().copied()), "{name}, {mode}, {index}");
                assert_eq!(painted, self::painted(&transform, &file, index), "{name}");
                levels.push(level);
            }
            levels.dedup();
            assert!(levels.len() > 4, "{name}, {mode}: {levels:?}");
        }
    }
}

// promise: IMG7
#[test]
fn augmented_samples_have_the_same_layout() {
    let file = data("rgb.png");
    let transform = ImageTransform::new(SIDE).crop(Crop::Letterbox { fill: [9, 99, 199] });
    let bytes = painted(&transform, &file, 3);
    let mut bgr = vec![0; bytes.len()];
    let augmenter = || Augmenter::new().then(Paint);
    filler(&transform.clone().layout(Layout::Nchw).color(SampleColor::Bgr))
        .augment(augmenter())
        .unwrap()
        .write(&file, Sample::U8(&mut bgr), || rng(3))
        .unwrap();
    let plane = bytes.len() / 3;
    for (at, pixel) in bytes.chunks(3).enumerate() {
        for channel in 0..3 {
            assert_eq!(bgr[(2 - channel) * plane + at], pixel[channel]);
        }
    }
    let mut floats = vec![f32::NAN; bytes.len()];
    filler(&transform.clone().format(SampleFormat::NCHW_F32))
        .augment(augmenter())
        .unwrap()
        .write(&file, Sample::F32(&mut floats), || rng(3))
        .unwrap();
    let value = |level: u8| {
        (f64::from(level) / 255.0 - f64::from(IMAGENET_MEAN[0])) / f64::from(IMAGENET_STD[0])
    };
    for (at, pixel) in bytes.chunks(3).enumerate() {
        assert!((f64::from(floats[at]) - value(pixel[0])).abs() < 1e-6);
    }
}

// promise: IMG7
#[test]
fn a_mirrored_sample_mirrors_the_plain_one() {
    let crop = Rect { left: 3, top: 2, width: 20, height: 17 };
    for name in ["rgb.png", "orientation-3.jpg", "orientation-6.jpg", "orientation-5.jpg"] {
        let file = data(name);
        let (plain, mirrored) = (cropped(&file, crop, false), cropped(&file, crop, true));
        assert_ne!(plain, mirrored);
        for y in 0..SIDE {
            for x in 0..SIDE {
                assert_eq!(at(&plain, x, y), at(&mirrored, SIDE - 1 - x, y), "{name} ({x}, {y})");
            }
        }
    }
}

#[test]
fn a_crop_of_the_sample_size_equals_the_image() {
    let image = spdl_media::decode_rgb(&data("rgb.png")).unwrap();
    let crop = Rect { left: 9, top: 4, width: SIDE, height: SIDE };
    let sample = cropped(&data("rgb.png"), crop, false);
    for y in 0..SIDE {
        for x in 0..SIDE {
            let start = (((y + 4) * image.size.width + x + 9) * 3) as usize;
            assert_eq!(at(&sample, x, y), &image.pixels[start..][..3]);
        }
    }
}

#[test]
fn a_crop_outside_the_image_is_an_error() {
    // The upright image has 29 × 37 pixels.
    let file = data("orientation-6.jpg");
    let mut sample = vec![0; (SIDE * SIDE * 3) as usize];
    let mut fill = filler(&ImageTransform::new(SIDE));
    let mut kind = |crop| {
        let outcome = fill.write_crop(&file, Sample::U8(&mut sample), crop, false);
        outcome.err().map(|error| error.kind())
    };
    assert_eq!(kind(Rect { left: 0, top: 0, width: 29, height: 37 }), None);
    let outside = Rect { left: 0, top: 0, width: 30, height: 37 };
    assert_eq!(kind(outside), Some(ErrorKind::InvalidArgument));
}

// promise: R14
#[test]
fn training_samples_depend_only_on_the_sample_id() {
    let transform = ImageTransform::new(SIDE).mode(Mode::Train);
    let file = data("420.jpg");
    let first = bytes_of(&transform, &file, 0);
    assert_eq!(first, bytes_of(&transform, &file, 0));
    assert_ne!(first, bytes_of(&transform, &file, 1));
    // Images that the worker decoded before have no influence.
    let mut fill = filler(&transform);
    let mut sample = vec![0; first.len()];
    fill.write(&data("orientation-8.webp"), Sample::U8(&mut sample), || rng(5)).unwrap();
    fill.write(&data("444-progressive.jpg"), Sample::U8(&mut sample), || rng(6)).unwrap();
    assert!(fill.write(b"\xFF\xD8\xFF", Sample::U8(&mut sample), || rng(7)).is_err());
    fill.write(&file, Sample::U8(&mut sample), || rng(0)).unwrap();
    assert_eq!(first, sample);
}

#[test]
fn a_sample_buffer_of_another_size_or_type_is_an_error() {
    let file = data("rgb.png");
    let mut fill = filler(&ImageTransform::new(SIDE));
    let mut short = vec![0; 5];
    let error = fill.write(&file, Sample::U8(&mut short), || rng(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let mut floats = vec![0.0; (SIDE * SIDE * 3) as usize];
    let error = fill.write(&file, Sample::F32(&mut floats), || rng(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn build_fails_if_the_layout_does_not_match_the_transform() {
    let error = |fields: Vec<Field>| {
        let transform = ImageTransform::new(SIDE).layout(Layout::Nchw);
        let item = Labeled { value: Bytes::from(data("rgb.png")), label: 3 };
        let pipeline = PipelineBuilder::new(DatasetSource::new(vec![item]))
            .fill("image", BatchLayout::new(1, fields), move || Ok(filler(&transform)))
            .build();
        pipeline.err().map(|error| {
            assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("image")));
            error.to_string()
        })
    };
    let transform = ImageTransform::new(SIDE).layout(Layout::Nchw);
    let given = "produces uint8 [3, 24, 24] (nchw-u8, 24x24 pixels)";
    for (other, found) in [
        // The same number of bytes in another layout.
        (transform.clone().layout(Layout::Nhwc), "uint8 [24, 24, 3]"),
        (transform.clone().dtype(DType::F32), "float32 [3, 24, 24]"),
        (transform.clone().color(SampleColor::Grey), "uint8 [1, 24, 24]"),
        (ImageTransform::new(32).layout(Layout::Nchw), "uint8 [3, 32, 32]"),
    ] {
        let message = error(image_fields(&other)).unwrap();
        for part in [given, "\"images\"", found, "image_fields"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
    let labels = |dtype, shape: &[usize]| {
        vec![image_fields(&transform)[0].clone(), Field::new("ages", dtype, shape)]
    };
    let message = error(labels(DType::F32, &[])).unwrap();
    assert!(message.contains("\"ages\" of the batch is float32 []"), "{message}");
    // A label field must be a scalar.
    let message = error(labels(DType::I64, &[10])).unwrap();
    assert!(message.contains("\"ages\" of the batch is int64 [10]"), "{message}");
    let more = [&image_fields(&transform)[..], &labels(DType::I64, &[])[1..]].concat();
    let message = error(more).unwrap();
    assert!(message.contains("has 3: images, labels, ages"), "{message}");
    assert!(message.contains("write_field"), "{message}");
    assert_eq!(error(labels(DType::I64, &[])), None);
    let message = error(image_fields(&transform)[..1].to_vec()).unwrap();
    assert!(message.contains("has 1: images"), "{message}");
}

/// Forwards `fill`, but not `check_fields`.
struct Wrapped(FillImage);

impl Fill<Labeled<Bytes>> for Wrapped {
    fn fill(
        &mut self,
        item: Labeled<Bytes>,
        slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        self.0.fill(item, slot, cx)
    }
}

#[test]
fn an_unchecked_layout_fails_at_the_first_image() {
    let transform = ImageTransform::new(SIDE);
    let fields = image_fields(&transform);
    let more = vec![fields[0].clone(), fields[1].clone(), Field::new("ages", DType::I64, &[])];
    for (fields, words) in [
        (more, "has 3: images, labels, ages"),
        (fields[..1].to_vec(), "has 1: images"),
        (image_fields(&transform.clone().layout(Layout::Nchw)), "produces uint8 [24, 24, 3]"),
    ] {
        let item = Labeled { value: Bytes::from(data("rgb.png")), label: 3 };
        let transform = transform.clone();
        let mut pipeline = PipelineBuilder::new(DatasetSource::new(vec![item]))
            .fill("image", BatchLayout::new(1, fields), move || Ok(Wrapped(filler(&transform))))
            .build()
            .unwrap();
        let error = pipeline.next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// Writes an image and its mask from two files.
struct WithMask {
    images: FillImage,
    masks: FillImage,
}

impl Fill<(Bytes, Bytes)> for WithMask {
    fn fill(
        &mut self,
        (image, mask): (Bytes, Bytes),
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        self.images.write_field(&image, &mut slot, 0, cx)?;
        self.masks.write_field(&mask, &mut slot, 1, cx).map(drop)
    }
}

#[test]
fn fields_of_one_slot_have_the_same_crop_and_flip() {
    let transform = ImageTransform::new(SIDE).mode(Mode::Train).filter(ResizeFilter::Nearest);
    let grey = transform.clone().color(SampleColor::Grey);
    let fields = [("images", &transform), ("masks", &grey)]
        .map(|(name, of)| Field { name: name.into(), ..image_fields(of)[0].clone() });
    let file = Bytes::from(data("grey.png"));
    let pipeline = PipelineBuilder::new(DatasetSource::new(vec![(file.clone(), file); 20]))
        .fill("write", BatchLayout::new(20, fields), move || {
            Ok(WithMask { images: filler(&transform), masks: filler(&grey) })
        })
        .seed(7)
        .build()
        .unwrap();
    let batch = pipeline.map(Result::unwrap).next().unwrap();
    let [images, masks] = ["images", "masks"].map(|name| batch.array(name).unwrap().as_bytes());
    assert_eq!((images.len(), masks.len()), (20 * 24 * 24 * 3, 20 * 24 * 24));
    assert!(images.chunks(3).zip(masks).all(|(pixel, &level)| pixel == [level; 3]));
    let samples: Vec<&[u8]> = masks.chunks(24 * 24).collect();
    assert!(samples.iter().skip(1).all(|sample| *sample != samples[0]));
}

#[test]
fn write_field_fails_if_the_field_does_not_match() {
    let transform = ImageTransform::new(SIDE);
    let other = transform.clone().layout(Layout::Nchw);
    let fields = image_fields(&other);
    assert!(filler(&other).check_field(&fields[0]).is_ok());
    let error = filler(&transform).check_field(&fields[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // Without an earlier `check_field`.
    let file = Bytes::from(data("grey.png"));
    let masks = Field { name: "masks".into(), ..fields[0].clone() };
    let pipeline = PipelineBuilder::new(DatasetSource::new(vec![(file.clone(), file); 2]))
        .fill("write", BatchLayout::new(2, [fields[0].clone(), masks]), move || {
            Ok(WithMask { images: filler(&transform), masks: filler(&transform) })
        })
        .build()
        .unwrap();
    let errors: Vec<_> = pipeline.filter_map(Result::err).collect();
    assert!(errors[0].to_string().contains("produces uint8 [24, 24, 3]"), "{}", errors[0]);
}

/// Checks the sample of a truncated file: the valid part equals the whole file's, and pixels far from
/// it are black. Returns whether the sample is partial.
fn check_partial(transform: &ImageTransform, file: &[u8], share: f64, name: &str) -> bool {
    let counter = Counter::default();
    let transform = transform.clone().min_partial(0.0);
    let mut fill = filler(&transform.clone().on_truncated(OnTruncated::Partial))
        .count_partial(counter.clone());
    let mut whole = vec![0; (SIDE * SIDE * 3) as usize];
    let whole_is_small = name != "astronaut.jpg";
    let full = Rect::full(transform.size());
    let written = fill.write(file, Sample::U8(&mut whole), || rng(0)).unwrap();
    assert_eq!((written.valid, written.is_partial(), counter.get()), (full, false, 0), "{name}");
    let mut cut = whole.clone();
    let file = &file[..(file.len() as f64 * share) as usize];
    let Ok(written) = fill.write(file, Sample::U8(&mut cut), || rng(0)) else { return false };
    assert_eq!(counter.get(), u64::from(written.is_partial()), "{name}");
    let Rect { left, top, width, height } = written.valid;
    assert!(left + width <= SIDE && top + height <= SIDE, "{name}: {written:?}");
    for y in top..top + height {
        for x in left..left + width {
            assert_eq!(at(&cut, x, y), at(&whole, x, y), "{name} ({x}, {y}): {written:?}");
        }
    }
    // A filter reaches four pixels or more to each side.
    let near = if whole_is_small { 8 } else { 3 };
    let others = |along: u32, start: u32, extent: u32| {
        along + near < start || along >= start + extent + near
    };
    let black = |x: u32, y: u32| at(&cut, x, y).iter().all(|&level| level == 0);
    for (x, y) in (0..SIDE).flat_map(|y| (0..SIDE).map(move |x| (x, y))) {
        let outside = others(x, left, width) || others(y, top, height);
        assert!(!outside || black(x, y), "{name} ({x}, {y}): {written:?}");
    }
    written.is_partial() && width > 0 && height > 0
}

// promise: R2
#[test]
fn written_reports_the_valid_part_of_a_sample() {
    let photo = std::fs::read(crate::files::photos().join("astronaut.jpg")).unwrap();
    let mut partial = 0;
    for exact in [false, true] {
        for transform in [
            ImageTransform::new(SIDE),
            ImageTransform::new(SIDE).crop(Crop::Stretch).filter(ResizeFilter::Nearest),
            ImageTransform::new(SIDE).crop(Crop::Stretch).horizontal_flip(1.0).vertical_flip(1.0),
        ] {
            let transform = transform.exact(exact);
            for share in [0.3, 0.6, 0.9] {
                partial += u32::from(check_partial(&transform, &photo, share, "astronaut.jpg"));
            }
            for number in 1..=8 {
                let name = format!("orientation-{number}.jpg");
                let any = [0.6, 0.7, 0.8, 0.9, 0.95]
                    .map(|share| check_partial(&transform, &data(&name), share, &name));
                partial += u32::from(any.contains(&true));
            }
        }
    }
    println!("{partial} partial samples");
    assert!(partial > 40, "{partial}");
}

// promise: R2
#[test]
fn a_partial_sample_has_at_least_the_minimum_share_of_rows() {
    let photo = std::fs::read(crate::files::photos().join("astronaut.jpg")).unwrap();
    let mut found = [0; 3];
    for (count, least) in found.iter_mut().zip([0.0, 0.5, 0.9]) {
        let transform = ImageTransform::new(SIDE).crop(Crop::Stretch).min_partial(least);
        let mut fill = filler(&transform.on_truncated(OnTruncated::Partial));
        let mut sample = vec![0; (SIDE * SIDE * 3) as usize];
        for percent in 1..100 {
            let cut = &photo[..photo.len() * percent / 100];
            match fill.write(cut, Sample::U8(&mut sample), || rng(0)) {
                Ok(written) => {
                    *count += 1;
                    // Two rows less, because of the filter.
                    let rows = f64::from(written.valid.height) + 2.0;
                    assert!(rows >= least * f64::from(SIDE), "{percent} %, {least}: {written:?}");
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Truncated, "{error}"),
            }
        }
    }
    let [any, half, most] = found;
    assert!(any > 90 && (30..70).contains(&half) && (1..20).contains(&most), "{found:?}");
    // The default is half of the rows of the crop, not of the image.
    assert_eq!(ImageTransform::new(SIDE).min_partial_share(), 0.5);
    let mut fill = filler(&ImageTransform::new(SIDE).on_truncated(OnTruncated::Partial));
    let mut sample = vec![0; (SIDE * SIDE * 3) as usize];
    let cut = &photo[..photo.len() / 10];
    let error = fill.write(cut, Sample::U8(&mut sample), || rng(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
    assert!(error.message().contains("expected at least 50 %"), "{error}");
    assert_eq!(error.offset(), Some(cut.len() as u64));
}

#[test]
fn a_pipeline_counts_partial_samples() {
    let file = std::fs::read(crate::files::photos().join("astronaut.jpg")).unwrap();
    let cut = file[..file.len() / 2].to_vec();
    let items: Vec<Labeled<Bytes>> = (0..12)
        .map(|label| Labeled {
            value: if label % 3 == 0 { &cut } else { &file }.clone().into(),
            label,
        })
        .collect();
    let transform = ImageTransform::new(SIDE).on_truncated(OnTruncated::Partial);
    let (registry, partial) = (CodecRegistry::with_defaults(), Counter::default());
    let counter = partial.clone();
    let fields = BatchLayout::new(4, image_fields(&transform));
    let pipeline = PipelineBuilder::new(DatasetSource::new(items))
        .fill("image", fields, move || {
            Ok(FillImage::new(&registry, &transform, &Limits::default())?
                .count_partial(counter.clone()))
        })
        .threads(2)
        .build()
        .unwrap();
    assert_eq!(pipeline.map(|batch| batch.unwrap().len()).sum::<usize>(), 12);
    assert_eq!(partial.get(), 4);
}

/// The PSNR of default samples against [`ImageTransform::exact`], in dB.
#[cfg(feature = "encode")]
// promise: IMG5
#[test]
fn default_samples_are_close_to_exact_samples() {
    use spdl_media::encode::{ImageEncoder, JpegEncoder, Subsampling};
    let mut worst = [f64::INFINITY; 5];
    for name in ["astronaut.jpg", "life.jpg", "rocket.jpg", "coffee.jpg"] {
        let photo = std::fs::read(crate::files::photos().join(name)).unwrap();
        let image = spdl_media::decode_rgb(&photo).unwrap();
        for subsampling in [Subsampling::S444, Subsampling::S422, Subsampling::S420] {
            let encoder = JpegEncoder::new().quality(90).subsampling(subsampling);
            let encoded = encoder.encode(&image.pixels, image.size).unwrap();
            for side in [224, 128, 96, 64] {
                for (at, filter) in ResizeFilter::ALL.into_iter().enumerate() {
                    let [direct, exact] = [false, true].map(|exact| {
                        let transform = ImageTransform::new(side).filter(filter).exact(exact);
                        let mut sample = vec![0; (side * side * 3) as usize];
                        filler(&transform)
                            .write(&encoded, Sample::U8(&mut sample), || rng(0))
                            .unwrap();
                        sample
                    });
                    let squares = direct.iter().zip(&exact);
                    let sum: f64 = squares.map(|(&a, &b)| f64::from(a.abs_diff(b)).powi(2)).sum();
                    let psnr = 10.0 * (255.0f64.powi(2) * exact.len() as f64 / sum).log10();
                    worst[at] = worst[at].min(psnr);
                    // The documented bounds.
                    let bound = if filter == ResizeFilter::Area { 38.0 } else { 40.0 };
                    assert!(
                        psnr >= bound,
                        "{name}, {subsampling:?}, {side}, {filter}: {psnr:.1} dB"
                    );
                }
            }
        }
    }
    println!("minimum PSNR: {worst:.1?} dB for {:?}", ResizeFilter::ALL);
}

// promise: R13
#[test]
fn batches_are_the_same_for_any_number_of_threads() {
    let files = ["rgb.png", "420.jpg", "orientation-6.jpg", "grey16.png", "cmyk.jpg"];
    let files: Vec<Labeled<Bytes>> = (0..)
        .zip(files.iter().cycle().take(23))
        .map(|(label, name)| Labeled { value: data(name).into(), label })
        .collect();
    let run = |threads: usize, format: SampleFormat| {
        let transform = ImageTransform::new(SIDE).mode(Mode::Train).format(format);
        let registry = CodecRegistry::with_defaults();
        let fields = BatchLayout::new(8, image_fields(&transform));
        let pipeline = PipelineBuilder::new(DatasetSource::new(files.clone()).shuffled(3))
            .fill("image", fields, move || {
                FillImage::new(&registry, &transform, &Limits::default())
            })
            .seed(3)
            .threads(threads)
            .deterministic()
            .build()
            .unwrap();
        let mut delivered = Vec::new();
        for batch in pipeline {
            let batch = batch.unwrap();
            let labels = batch.array("labels").unwrap().as_slice::<i64>().unwrap().to_vec();
            delivered.push((batch.array("images").unwrap().as_bytes().to_vec(), labels));
        }
        delivered
    };
    for format in [SampleFormat::NHWC_U8, SampleFormat::NCHW_F32] {
        let one = run(1, format);
        assert_eq!(one.iter().map(|(_, labels)| labels.len()).collect::<Vec<_>>(), [8, 8, 7]);
        let mut labels: Vec<i64> = one.iter().flat_map(|(_, labels)| labels.clone()).collect();
        labels.sort_unstable();
        assert!(labels.into_iter().eq(0..23), "{format}");
        assert!(one == run(3, format), "{format}");
    }
}
