//! Measures the decoding steps of the images of a folder, on one core.
//!
//! ```text
//! cargo run --release -p spdl-media --example decode_speed -- assets/photos
//! ```
#![expect(clippy::print_stdout, reason = "prints a table")]

use std::path::Path;
use std::time::{Duration, Instant};

use spdl_core::{Error, ErrorKind, Result, SampleId, SampleRng};
use spdl_media::image::{DecodeRequest, Picture, PixelsMut};
use spdl_media::{
    CodecRegistry, Decoder, FillImage, ImageTransform, Limits, Mode, Rect, Sample, SampleFormat,
    Size,
};

const HELP: &str = "\
Decodes the images of a folder from memory on one thread, and prints microseconds per image.

usage: decode_speed FOLDER [PASSES [STEP]]

FOLDER   folder of images, read recursively
PASSES   number of passes over all images (default 7); the steps run in turns
STEP     run only steps whose name starts with this

Each row has the median and the minimum of the passes. On Linux, times are CPU times of the thread,
otherwise wall-clock times.

header            parse size and orientation, 100 times
entropy, skipped  entropy-decode the whole file for a region of one pixel
planes            entropy decoding and inverse DCT, without colour conversion
planes, region    the same for a random training crop
planes, 1/2 ...   the same at reduced size
RGB               decode, upsample and convert to RGB
RGB by ...        the same by other decoders, if built with their features
RGB, region       the same for a random training crop
fill ...          decode, crop, resize to 224 x 224, write to the batch slot
fill ..., whole   the same, but decode the whole image for any crop
";

const SIDE: u32 = 224;
const HEADERS: usize = 100;

/// The name of a measured step, and its function, which takes the index and the bytes of an image.
type Step<'a> = (String, Box<dyn FnMut(u64, &[u8]) -> Result<()> + 'a>);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, passes, chosen) = match &arguments[..] {
        [word] if word == "--help" || word == "-h" => {
            print!("{HELP}");
            return Ok(());
        }
        [folder] => (folder, "7", ""),
        [folder, passes] => (folder, passes.as_str(), ""),
        [folder, passes, step] => (folder, passes.as_str(), step.as_str()),
        _ => return Err(invalid("expected FOLDER [PASSES [STEP]]; see --help")),
    };
    let passes = passes.parse().map_err(|_| invalid("PASSES must be a number"))?;
    let registry = CodecRegistry::with_defaults();
    let limits = Limits::default();
    let mut files = Vec::new();
    let mut largest = 0;
    let mut pixels = 0;
    let mut decoder = Decoder::new(&registry, &limits);
    read_folder(folder.as_ref(), &mut |path, encoded| match decoder.decode_stored(&encoded) {
        Ok(image) => {
            largest = largest.max(image.pixels.len());
            pixels += image.size.pixels();
            files.push(encoded);
        }
        Err(error) => println!("skipped {}: {error}", path.display()),
    })?;
    if files.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, format!("no images in {folder:?}")));
    }
    let bytes: usize = files.iter().map(Vec::len).sum();
    // Benchmark pages show no paths.
    let name = Path::new(folder).file_name().map_or(folder.into(), |name| name.to_string_lossy());
    println!(
        "{} images of {name}: {} bytes and {} pixels each; µs per image, median and minimum:",
        files.len(),
        bytes / files.len(),
        pixels / files.len() as u64
    );

    let mut steps: Vec<Step<'_>> = Vec::new();
    let mut decoder = Decoder::new(&registry, &limits);
    // One header takes less than the resolution of the clock.
    let headers =
        move |_, encoded: &[u8]| (0..HEADERS).try_for_each(|_| decoder.inspect(encoded).map(drop));
    steps.push((format!("header, {HEADERS} times"), Box::new(headers)));
    steps.push(planes("entropy, skipped", &registry, |_, _| {
        DecodeRequest::full().region(Rect::full(Size::new(1, 1))).exact(true)
    }));
    steps.push(planes("planes", &registry, |_, _| DecodeRequest::full()));
    steps.push(planes("planes, region", &registry, |index, size| {
        DecodeRequest::full().region(train_crop(index, size))
    }));
    for scale in [2, 4, 8] {
        steps.push(planes(&format!("planes, 1/{scale}"), &registry, move |_, size| {
            DecodeRequest::full().at_least(Size::new(size.width / scale, size.height / scale))
        }));
    }
    for crops in [false, true] {
        let mut decoder = Decoder::new(&registry, &limits);
        let mut memory = vec![0; largest];
        let name = if crops { "RGB, region" } else { "RGB" };
        let decode = move |index, encoded: &[u8]| {
            let size = decoder.inspect(encoded)?.size;
            let region = if crops { train_crop(index, size) } else { Rect::full(size) };
            let out = PixelsMut::new(&mut memory, region.size())?;
            decoder.decode_into(encoded, &DecodeRequest::full().region(region), out).map(drop)
        };
        steps.push((name.into(), Box::new(decode)));
    }
    for (name, registry) in other_decoders() {
        let mut decoder = Decoder::new(&registry, &limits);
        let mut memory = vec![0; largest];
        let decode = move |_, encoded: &[u8]| {
            let out = PixelsMut::new(&mut memory, decoder.inspect(encoded)?.size)?;
            decoder.decode_into(encoded, &DecodeRequest::full(), out).map(drop)
        };
        steps.push((format!("RGB by {name}"), Box::new(decode)));
    }
    for mode in [Mode::Eval, Mode::Train] {
        for format in [SampleFormat::NHWC_U8, SampleFormat::NCHW_F32] {
            let transform = ImageTransform::new(SIDE).mode(mode).format(format);
            let mut fill = FillImage::new(&registry, &transform, &limits)?;
            let mut bytes = vec![0; (SIDE * SIDE * 3) as usize];
            let mut floats = vec![0.0; bytes.len()];
            let work = move |index, encoded: &[u8]| {
                let sample = match format {
                    SampleFormat::NCHW_F32 => Sample::F32(&mut floats),
                    _ => Sample::U8(&mut bytes),
                };
                fill.write(encoded, sample, || rng(index)).map(drop)
            };
            steps.push((format!("fill {mode} {format}"), Box::new(work)));
        }
        let mut fill = FillImage::new(&registry, &ImageTransform::new(SIDE).mode(mode), &limits)?;
        let mut decoder = Decoder::new(&registry, &limits);
        let (mut picture, mut bytes) = (Picture::new(), vec![0; (SIDE * SIDE * 3) as usize]);
        let work = move |index, encoded: &[u8]| {
            let orientation = decoder.inspect(encoded)?.orientation;
            decoder.decode_planes(encoded, &DecodeRequest::full(), &mut picture)?;
            fill.write_picture(&picture, orientation, Sample::U8(&mut bytes), || rng(index))
        };
        steps.push((format!("fill {mode}, whole"), Box::new(work)));
    }
    steps.retain(|(name, _)| name.starts_with(chosen));
    measure(&mut steps, &files, passes)
}

/// Registries with other JPEG decoders.
fn other_decoders() -> Vec<(&'static str, CodecRegistry)> {
    #[cfg_attr(
        not(any(feature = "turbojpeg", feature = "zune-jpeg")),
        expect(unused_mut, reason = "no other codec in this build")
    )]
    let mut others = Vec::new();
    #[cfg(feature = "turbojpeg")]
    others.extend([("libjpeg-turbo", with(spdl_media::formats::TurboJpegCodec))]);
    #[cfg(feature = "zune-jpeg")]
    others.extend([("zune-jpeg", with(spdl_media::formats::ZuneJpegCodec))]);
    others
}

#[cfg(any(feature = "turbojpeg", feature = "zune-jpeg"))]
fn with(codec: impl spdl_media::image::ImageCodec) -> CodecRegistry {
    let mut registry = CodecRegistry::with_defaults();
    registry.register(codec);
    registry
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, message.to_owned())
}

/// Passes all files below a folder to `take`, in the order of their names.
fn read_folder(
    folder: &std::path::Path,
    take: &mut impl FnMut(&std::path::Path, Vec<u8>),
) -> Result<()> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.sort();
    for path in paths {
        if path.is_dir() {
            read_folder(&path, take)?;
        } else {
            take(&path, std::fs::read(&path)?);
        }
    }
    Ok(())
}

fn rng(index: u64) -> SampleRng {
    SampleRng::new(0, SampleId { epoch: 0, index }, "fill")
}

/// The random training crop of this image.
fn train_crop(index: u64, size: Size) -> Rect {
    ImageTransform::new(SIDE).mode(Mode::Train).place(size, || rng(index)).bounds
}

/// A step that decodes the requested part of each image into planes.
fn planes<'a>(
    name: &str,
    registry: &CodecRegistry,
    request: impl Fn(u64, Size) -> DecodeRequest + 'a,
) -> Step<'a> {
    let mut decoder = Decoder::new(registry, &Limits::default());
    let mut picture = Picture::new();
    let work = move |index, encoded: &[u8]| {
        let size = decoder.inspect(encoded)?.size;
        decoder.decode_planes(encoded, &request(index, size), &mut picture).map(drop)
    };
    (name.into(), Box::new(work))
}

/// Runs all steps once per pass, and prints their times.
fn measure(steps: &mut [Step<'_>], files: &[Vec<u8>], passes: usize) -> Result<()> {
    let mut times = vec![Vec::new(); steps.len()];
    for _ in 0..passes.max(1) {
        for ((_, work), times) in steps.iter_mut().zip(&mut times) {
            let clock = Clock::start();
            for (index, encoded) in (0..).zip(files) {
                work(index, encoded)?;
            }
            times.push(clock.elapsed());
        }
    }
    for ((name, _), times) in steps.iter().zip(&mut times) {
        times.sort();
        let per_image = |time: Duration| time.as_secs_f64() * 1e6 / files.len() as f64;
        println!("{name:20} {:9.1} {:9.1}", per_image(times[times.len() / 2]), per_image(times[0]));
    }
    Ok(())
}

/// Measures the CPU time of this thread, or the wall-clock time if that is not available.
struct Clock {
    cpu_time: Option<Duration>,
    started: Instant,
}

impl Clock {
    fn start() -> Self {
        Clock { cpu_time: cpu_time(), started: Instant::now() }
    }

    fn elapsed(&self) -> Duration {
        match (self.cpu_time, cpu_time()) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => self.started.elapsed(),
        }
    }
}

/// The CPU time of this thread; `None` if the system does not report it.
fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
