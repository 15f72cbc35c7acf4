//! The memory layout of samples, and the fill colour around images.

use half::{bf16, f16};
use proptest::prelude::*;
use spdl_core::{DType, Result, SampleId, SampleRng};
use spdl_media::image::{
    ColorModel, DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Picture, PixelsMut,
    PlaneShape,
};
use spdl_media::{
    CodecRegistry, Crop, Decoder, FillImage, Image, ImageTransform, Layout, Limits, Orientation,
    Rect, Sample, SampleColor, Size,
};

use crate::files::data;

fn rng() -> SampleRng {
    SampleRng::new(3, SampleId::default(), "sample")
}

fn filler(transform: &ImageTransform) -> FillImage {
    FillImage::new(&CodecRegistry::with_defaults(), transform, &Limits::default()).unwrap()
}

fn bytes(transform: &ImageTransform, file: &[u8]) -> Vec<u8> {
    let size = transform.size();
    let mut bytes = vec![0; size.pixels() as usize * transform.sample_color().channels()];
    filler(transform).write(file, Sample::U8(&mut bytes), rng).unwrap();
    bytes
}

fn pixel(bytes: &[u8], width: u32, x: u32, y: u32) -> [u8; 3] {
    bytes[((y * width + x) * 3) as usize..][..3].try_into().unwrap()
}

const MEAN: [f32; 3] = [0.1, 0.5, 0.7];
const STD: [f32; 3] = [0.2, 0.3, 1.0];

/// The documented normalisation of a byte.
fn normalized(byte: u8, color: usize) -> f32 {
    let (mean, std) = (f64::from(MEAN[color]), f64::from(STD[color]));
    f32::from(byte) * (1.0 / (255.0 * std)) as f32 + (-mean / std) as f32
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // promise: IMG7
    #[test]
    fn every_layout_color_and_type_has_the_values_of_the_plain_sample(
        width in 1u32..75, height in 1u32..40, color in 0usize..3, planar: bool, letterbox: bool,
        file in 0usize..3,
    ) {
        let file = data(["rgb.png", "orientation-6.jpg", "grey.jpg"][file]);
        let (w, h) = (width as usize, height as usize);
        let color = [SampleColor::Rgb, SampleColor::Bgr, SampleColor::Grey][color];
        let layout = if planar { Layout::Nchw } else { Layout::Nhwc };
        let crop = if letterbox { Crop::Letterbox { fill: [200, 100, 9] } } else { Crop::Stretch };
        let plain = ImageTransform::with_size(Size::new(width, height))
            .crop(crop)
            .normalization(MEAN, STD);
        let source = bytes(&plain, &file);
        let transform = plain.color(color).layout(layout);
        // The index of each byte, and the channel of its normalisation.
        let mut expected = vec![(0, 0); w * h * color.channels()];
        for (at, rgb) in source.chunks(3).enumerate() {
            let values: Vec<(u8, usize)> = match color {
                SampleColor::Rgb => vec![(rgb[0], 0), (rgb[1], 1), (rgb[2], 2)],
                SampleColor::Bgr => vec![(rgb[2], 2), (rgb[1], 1), (rgb[0], 0)],
                SampleColor::Grey => {
                    let [r, g, b] = [rgb[0], rgb[1], rgb[2]].map(u32::from);
                    vec![(((19595 * r + 38470 * g + 7471 * b + 32768) >> 16) as u8, 0)]
                }
                SampleColor::Rgba => unreachable!("not in the list above"),
            };
            for (channel, value) in values.into_iter().enumerate() {
                let place = if planar { channel * w * h + at } else { at * color.channels() + channel };
                expected[place] = value;
            }
        }
        let plain: Vec<u8> = expected.iter().map(|value| value.0).collect();
        prop_assert_eq!(&bytes(&transform, &file), &plain);
        let floats: Vec<f32> =
            expected.iter().map(|&(byte, color)| normalized(byte, color)).collect();

        let mut found = vec![f32::NAN; floats.len()];
        let transform = transform.dtype(DType::F32);
        filler(&transform).write(&file, Sample::F32(&mut found), rng).unwrap();
        prop_assert_eq!(&found, &floats);
        let mut found = vec![f16::NAN; floats.len()];
        let transform = transform.dtype(DType::F16);
        filler(&transform).write(&file, Sample::F16(&mut found), rng).unwrap();
        let halves: Vec<f16> = floats.iter().map(|&float| f16::from_f32(float)).collect();
        prop_assert_eq!(&found, &halves);
        let mut found = vec![bf16::NAN; floats.len()];
        let transform = transform.dtype(DType::BF16);
        filler(&transform).write(&file, Sample::BF16(&mut found), rng).unwrap();
        let brains: Vec<bf16> = floats.iter().map(|&float| bf16::from_f32(float)).collect();
        prop_assert_eq!(&found, &brains);
    }
}

/// The image of `rgb.png`: 37 × 29 pixels.
fn image() -> Image {
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    decoder.decode_rgb(&data("rgb.png")).unwrap()
}

#[test]
fn a_centre_crop_surrounds_the_image_with_the_fill_colour() {
    let fill = [7, 8, 9];
    let image = image();
    let transform = ImageTransform::with_size(Size::new(20, 40)).crop(Crop::Center { fill });
    let found = bytes(&transform, &data("rgb.png"));
    for y in 0..40 {
        for x in 0..20 {
            // (37 - 20) / 2 = 8.5 is rounded to 8; 40 - 29 = 11 rows are missing, 5 of them above.
            let expected = match y {
                5..34 => pixel(&image.pixels, 37, x + 8, y - 5),
                _ => fill,
            };
            assert_eq!(pixel(&found, 20, x, y), expected, "({x}, {y})");
        }
    }
}

#[test]
fn a_mirrored_letterbox_mirrors_the_plain_one() {
    let file = data("rgb.png");
    let image = image();
    // 29 of 34 rows: 2 above and 3 below are filled. 37 of 42 columns: 2 left, 3 right.
    for (width, height) in [(37, 34), (42, 29)] {
        let (left, top) = ((width - 37) / 2, (height - 29) / 2);
        let plain = ImageTransform::with_size(Size::new(width, height))
            .crop(Crop::Letterbox { fill: [1, 2, 3] });
        let found = bytes(&plain, &file);
        let mirrored = bytes(&plain.clone().horizontal_flip(1.0), &file);
        let upended = bytes(&plain.clone().vertical_flip(1.0), &file);
        for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
            let inside = (left..left + 37).contains(&x) && (top..top + 29).contains(&y);
            let expected =
                if inside { pixel(&image.pixels, 37, x - left, y - top) } else { [1, 2, 3] };
            assert_eq!(pixel(&found, width, x, y), expected, "({x}, {y})");
            assert_eq!(pixel(&mirrored, width, width - 1 - x, y), expected, "({x}, {y}), mirrored");
            assert_eq!(pixel(&upended, width, x, height - 1 - y), expected, "({x}, {y}), upended");
        }
    }
}

#[test]
fn a_random_crop_is_a_part_of_the_padded_image() {
    let transform = ImageTransform::new(16).crop(Crop::Random { padding: 4, fill: [9; 3] });
    let image = image();
    let padded = |x: i64, y: i64| {
        let inside = (0..37).contains(&x) && (0..29).contains(&y);
        if inside { pixel(&image.pixels, 37, x as u32, y as u32) } else { [9; 3] }
    };
    let mut places = Vec::new();
    // One worker: cached weights of a crop must not apply to the next one.
    let mut fill = filler(&transform);
    for index in 0..40 {
        let mut found = vec![0; 16 * 16 * 3];
        let rng = || SampleRng::new(3, SampleId { epoch: 0, index }, "sample");
        fill.write(&data("rgb.png"), Sample::U8(&mut found), rng).unwrap();
        let mut candidates =
            (-4..=37 + 4 - 16).flat_map(|x| (-4..=29 + 4 - 16).map(move |y| (x, y)));
        let place = candidates.find(|&(left, top)| {
            (0..16u32).all(|y| {
                (0..16u32).all(|x| {
                    pixel(&found, 16, x, y) == padded(left + i64::from(x), top + i64::from(y))
                })
            })
        });
        places.push(place.expect("the sample is a part of the padded image"));
    }
    places.sort_unstable();
    places.dedup();
    assert!(places.len() > 30);
}

/// A codec whose planes have another colour than its RGB pixels, which shows the kind of request. Decodes
/// at half size if the request allows it.
#[derive(Debug)]
struct TwoWays;

impl ImageCodec for TwoWays {
    fn name(&self) -> &'static str {
        "two-ways"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(b"two ways")
    }

    fn decoder(&self, _: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(TwoWays))
    }
}

impl ImageDecoder for TwoWays {
    fn inspect(&mut self, _: &[u8]) -> Result<ImageInfo> {
        Ok(ImageInfo::new(Size::new(40, 40), Orientation::Upright))
    }

    fn decode_into(
        &mut self,
        _: &[u8],
        request: &DecodeRequest,
        mut out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        assert!(request.is_exact());
        (0..out.size().height).for_each(|row| out.row_mut(row).fill(10));
        Ok(Decoded::new(out.size()))
    }

    fn decode_planes(
        &mut self,
        _: &[u8],
        request: &DecodeRequest,
        picture: &mut Picture,
    ) -> Result<Decoded> {
        let size = Size::new(40, 40);
        let pixels = if request.smallest().is_some_and(|size| size.width <= 20) { 2 } else { 1 };
        let area = Rect::full(Size::new(40 / pixels, 40 / pixels));
        let stride = area.width as usize;
        let shape = PlaneShape { channels: 1, area, across: pixels, down: pixels, stride };
        picture.start(size, ColorModel::Grey, &[shape])?;
        // Pixels per sample.
        picture.planes_mut()[0].samples_mut().fill(pixels as u8);
        Ok(Decoded::new(area.size()))
    }
}

#[test]
fn planes_are_requested_unless_the_sample_is_exact() {
    let mut registry = CodecRegistry::with_defaults();
    registry.register(TwoWays);
    let value = |side: u32, exact: bool| {
        let transform = ImageTransform::new(side).crop(Crop::Stretch).exact(exact);
        let mut fill = FillImage::new(&registry, &transform, &Limits::default()).unwrap();
        let mut bytes = vec![0; (side * side * 3) as usize];
        fill.write(b"two ways", Sample::U8(&mut bytes), rng).unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    };
    // Half of the image is 1.5 times the size of the first sample, and less for the second.
    assert_eq!([value(13, false), value(14, false), value(20, true)], [2, 1, 10]);
}
