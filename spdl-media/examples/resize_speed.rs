//! Measures the transform of a decoded image into a batch slot, on one core.
//!
//! ```text
//! cargo run --release -p spdl-media --example resize_speed
//! ```
//!
//! The image has 356 × 356 pixels, the sample 224 × 224; the filter is bilinear. The input is
//! interleaved RGB, or the planes of a JPEG with 4:2:0 chroma. The measured work is resize, colour
//! conversion and layout. The peer `fast_image_resize` only resizes RGB pixels. All run in turns.
#![expect(clippy::print_stdout, reason = "prints a table")]

use std::time::{Duration, Instant};

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use half::{bf16, f16};
use spdl_core::{DType, Error, ErrorKind, Result};
use spdl_media::image::{ColorModel, Picture, PlaneShape};
use spdl_media::{
    CodecRegistry, Crop, FillImage, ImageTransform, Layout, Limits, Orientation, Rect, Sample,
    SampleFormat, Size,
};

const SOURCE: Size = Size::new(356, 356);
const SIDE: u32 = 224;
const VALUES: usize = (SIDE * SIDE * 3) as usize;
const TIME: Duration = Duration::from_secs(5);

/// Gradients and noise.
fn texture(at: usize) -> u8 {
    let noise = (at as u32).wrapping_mul(2_654_435_761) >> 26;
    (at / 3 % 190) as u8 + noise as u8
}

fn rgb() -> Result<Picture> {
    let mut picture = Picture::new();
    picture.start_rgb(SOURCE, Rect::full(SOURCE))?;
    let samples = picture.planes_mut()[0].samples_mut();
    samples.iter_mut().enumerate().for_each(|(at, sample)| *sample = texture(at));
    Ok(picture)
}

fn planes() -> Result<Picture> {
    let shape = |across: u32| PlaneShape {
        channels: 1,
        area: Rect::full(Size::new(SOURCE.width.div_ceil(across), SOURCE.height.div_ceil(across))),
        across,
        down: across,
        stride: SOURCE.width.div_ceil(across) as usize,
    };
    let mut picture = Picture::new();
    picture.start(SOURCE, ColorModel::YCbCr, &[shape(1), shape(2), shape(2)])?;
    for plane in picture.planes_mut() {
        let samples = plane.samples_mut();
        samples.iter_mut().enumerate().for_each(|(at, sample)| *sample = texture(at));
    }
    Ok(picture)
}

/// A function to measure, and the times of its runs.
struct Contestant<'a> {
    name: String,
    work: Box<dyn FnMut() -> Result<()> + 'a>,
    times: Vec<Duration>,
}

fn main() -> Result<()> {
    let (rgb, planes) = (rgb()?, planes()?);
    let mut contestants = vec![Contestant {
        name: "fast_image_resize, RGB".into(),
        work: fast_image_resize(rgb.planes()[0].samples()),
        times: Vec::new(),
    }];
    for (name, picture) in [("RGB", &rgb), ("planes", &planes)] {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            for dtype in [DType::U8, DType::F16, DType::BF16, DType::F32] {
                let format = SampleFormat { layout, dtype };
                contestants.push(Contestant {
                    name: format!("{name}, to {format}"),
                    work: ours(picture, format)?,
                    times: Vec::new(),
                });
            }
        }
    }
    let started = Instant::now();
    while started.elapsed() < TIME {
        for contestant in &mut contestants {
            let turn = Instant::now();
            (contestant.work)()?;
            contestant.times.push(turn.elapsed());
        }
    }
    let turns = contestants[0].times.len();
    println!("{SOURCE} to {SIDE}x{SIDE}, {turns} turns: µs, median and fastest, and as a share");
    let mut peer = None;
    for contestant in &mut contestants {
        contestant.times.sort_unstable();
        let own = [turns / 2, 0].map(|at| contestant.times[at].as_secs_f64() * 1e6);
        let peer = *peer.get_or_insert(own);
        let [median, fastest] =
            [0, 1].map(|at| format!("{:8.1} {:5.2}", own[at], own[at] / peer[at]));
        println!("{:24}{median}{fastest}", contestant.name);
    }
    Ok(())
}

fn ours<'a>(
    picture: &'a Picture,
    format: SampleFormat,
) -> Result<Box<dyn FnMut() -> Result<()> + 'a>> {
    let transform = ImageTransform::new(SIDE).crop(Crop::Stretch).format(format);
    let mut fill = FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())?;
    let mut bytes = vec![0; VALUES];
    let mut halves = vec![f16::ZERO; VALUES];
    let mut brains = vec![bf16::ZERO; VALUES];
    let mut floats = vec![0.0; VALUES];
    Ok(Box::new(move || {
        let sample = match format.dtype {
            DType::F16 => Sample::F16(&mut halves),
            DType::BF16 => Sample::BF16(&mut brains),
            DType::F32 => Sample::F32(&mut floats),
            _ => Sample::U8(&mut bytes),
        };
        let no_rng = || unreachable!("the transform is not random");
        fill.write_picture(picture, Orientation::Upright, sample, no_rng)
    }))
}

fn fast_image_resize<'a>(source: &'a [u8]) -> Box<dyn FnMut() -> Result<()> + 'a> {
    let mut resizer = Resizer::new();
    let mut target = vec![0; VALUES];
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .use_alpha(false);
    Box::new(move || {
        let fault = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::InvalidArgument, error.to_string())
        };
        let source = TypedImageRef::<U8x3>::from_buffer(SOURCE.width, SOURCE.height, source)
            .map_err(|error| fault(&error))?;
        let mut target = TypedImage::<U8x3>::from_buffer(SIDE, SIDE, &mut target)
            .map_err(|error| fault(&error))?;
        resizer.resize_typed(&source, &mut target, &options).map_err(|error| fault(&error))
    })
}
