//! Decodes the images of a folder again and again, and tells the time each takes on one core.
//!
//! ```text
//! cargo run --release -p spdl-media --example decode_speed -- assets/photos
//! ```
//!
//! The fastest of several passes counts. "fill" is the whole way into a batch: decode, crop, resize
//! to 224 × 224, lay out.
#![expect(clippy::print_stdout, reason = "the result is for the terminal")]

use std::time::{Duration, Instant};

use spdl_core::{Error, ErrorKind, Result, SampleId, SampleRng};
use spdl_media::{
    CodecRegistry, DecodeRequest, Decoder, FillImage, ImageTransform, Limits, Mode, PixelsMut,
    Sample, SampleFormat,
};

const SIDE: u32 = 224;
const TIME: Duration = Duration::from_secs(3);

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, "expected a folder of images as the argument")
    })?;
    let registry = CodecRegistry::with_defaults();
    let limits = Limits::default();
    let mut decoder = Decoder::new(&registry, &limits);
    let mut files = Vec::new();
    let mut pixels = 0;
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        let Ok(encoded) = std::fs::read(&path) else { continue };
        match decoder.decode_stored(&encoded) {
            Ok(image) => {
                pixels = pixels.max(image.pixels.len());
                files.push(encoded);
            }
            Err(error) => println!("left out: {}: {error}", path.display()),
        }
    }
    if files.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, format!("no images in {folder}")));
    }
    println!("{} images of {folder}, µs per image:", files.len());

    let mut memory = vec![0; pixels];
    report("decode", &files, |_, encoded| {
        let size = decoder.inspect(encoded)?.size;
        let out = PixelsMut::new(&mut memory, size)?;
        decoder.decode_into(encoded, &DecodeRequest::full(), out).map(drop)
    })?;
    let mut bytes = vec![0; (SIDE * SIDE * 3) as usize];
    let mut floats = vec![0.0; bytes.len()];
    for mode in [Mode::Eval, Mode::Train] {
        for format in [SampleFormat::NHWC_U8, SampleFormat::NCHW_F32] {
            let transform = ImageTransform::new(SIDE).mode(mode).format(format);
            let mut fill = FillImage::new(&registry, &transform, &limits)?;
            report(&format!("fill {mode} {format}"), &files, |index, encoded| {
                let sample = match format {
                    SampleFormat::NCHW_F32 => Sample::F32(&mut floats),
                    _ => Sample::U8(&mut bytes),
                };
                let id = SampleId { epoch: 0, index };
                fill.write(encoded, sample, || SampleRng::new(0, id, "fill"))
            })?;
        }
    }
    Ok(())
}

/// Runs passes over all files for a while, and prints the fastest.
fn report(
    what: &str,
    files: &[Vec<u8>],
    mut work: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let started = Instant::now();
    let mut best = Duration::MAX;
    while started.elapsed() < TIME {
        let pass = Instant::now();
        for (index, encoded) in (0..).zip(files) {
            work(index, encoded)?;
        }
        best = best.min(pass.elapsed());
    }
    println!("{what:20} {:8.0}", best.as_secs_f64() * 1e6 / files.len() as f64);
    Ok(())
}
