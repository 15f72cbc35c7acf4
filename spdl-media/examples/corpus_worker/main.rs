//! Child process of `cargo xtask corpus`: decodes images, audio and video from standard input, and prints the results.
//!
//! A request has four parts: the length of a list of decoders (4 bytes, little endian), the list
//! (names separated by commas), the length of the file (8 bytes, little endian), and the file. An empty
//! list selects the decoders whose `sniff` accepts the file. The response has lines of fields
//! separated by tabs:
//!
//! ```text
//! begin   DECODER  REQUEST    before each decode; after a crash, the last such line names the cause
//! end     KIND     MESSAGE    `ok`, the kind of an error, `panicked`, or `inconsistent`
//! done
//! ```
//!
//! The argument is the limit on the address space of this process, in bytes. With the second argument
//! `unlimited`, only the decoders have this limit.
//!
//! With the arguments `frames FILE`, the program prints the hash of each frame of a video instead.

#[path = "../../tests/video/hash.rs"]
mod hash;
mod media;

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

use spdl_core::{Error, ErrorKind, Result};
use spdl_media::audio::{AUDIO_SNIFF_BYTES, AudioLimits, AudioRegistry};
use spdl_media::image::{
    ColorModel, DecodeRequest, ImageCodec, ImageDecoder, ImageInfo, Picture, PixelsMut, SNIFF_BYTES,
};
use spdl_media::video::{MatroskaContainer, Mp4Container, VideoContainer, VideoLimits};
use spdl_media::{
    CodecRegistry, Decoder, FillImage, ImageTransform, Limits, Mode, OnTruncated, Rect, Sample,
    Size,
};

/// Width and height of a sample.
const SIDE: u32 = 64;

/// Larger images, in pixels, get fewer requests, to save time.
const LARGE: u64 = 1 << 24;

/// Location of the last panic. The error of a caught panic does not contain it.
static PANIC_LOCATION: Mutex<String> = Mutex::new(String::new());

fn main() -> Result<()> {
    let words: Vec<_> = std::env::args().skip(1).take(2).collect();
    if let [first, file] = &words[..]
        && first == "frames"
    {
        return media::print_frames(&std::fs::read(file)?);
    }
    let bytes = std::env::args().nth(1).and_then(|word| word.parse().ok()).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidArgument,
            "expected an argument: the limit on the address space in bytes",
        )
    })?;
    if std::env::args().len() < 3 {
        limit_memory(bytes)?;
    }
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        *PANIC_LOCATION.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = location;
    }));
    let registry = registry();
    let audio = AudioRegistry::with_defaults();
    let containers: [Arc<dyn VideoContainer>; 2] =
        [Arc::new(Mp4Container), Arc::new(MatroskaContainer)];
    // A quarter is reserved for the program and the file.
    let limits = Limits::default().max_bytes(bytes / 4 * 3);
    let mut input = io::stdin().lock();
    let mut length = [0; 4];
    loop {
        match input.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let names = read_bytes(&mut input, u64::from(u32::from_le_bytes(length)))?;
        let names = String::from_utf8_lossy(&names).into_owned();
        let mut length = [0; 8];
        input.read_exact(&mut length)?;
        let file = read_bytes(&mut input, u64::from_le_bytes(length))?;

        let is_chosen = |name: &str, recognizes: &dyn Fn() -> bool| match names.as_str() {
            "" => recognizes(),
            names => names.split(',').any(|other| other == name),
        };
        let head = &file[..file.len().min(SNIFF_BYTES)];
        for codec in registry.codecs() {
            if is_chosen(codec.name(), &|| codec.sniff(head)) {
                Trial::new(codec, &limits, &file).run();
            }
        }
        let head = &file[..file.len().min(AUDIO_SNIFF_BYTES)];
        for codec in audio.codecs() {
            if is_chosen(codec.name(), &|| codec.sniff(head)) {
                let limits = AudioLimits::default().max_bytes(bytes / 4);
                media::try_audio(&**codec, &limits, &file);
            }
        }
        for container in &containers {
            if is_chosen(container.name(), &|| container.sniff(&file)) {
                let limits = VideoLimits::default().max_pixels(LARGE / 4);
                media::try_video(container, &limits, &file);
            }
        }
        print_line(&["done"]);
    }
}

/// Every codec of this build, including alternative JPEG codecs.
fn registry() -> CodecRegistry {
    #[cfg_attr(
        not(any(feature = "turbojpeg", feature = "zune-jpeg")),
        expect(unused_mut, reason = "no other codec in this build")
    )]
    let mut registry = CodecRegistry::with_defaults();
    #[cfg(feature = "turbojpeg")]
    registry.register(spdl_media::formats::TurboJpegCodec);
    #[cfg(feature = "zune-jpeg")]
    registry.register(spdl_media::formats::ZuneJpegCodec);
    registry
}

#[cfg(unix)]
fn limit_memory(bytes: u64) -> Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::As, limit).map_err(|error| io::Error::from(error).into())
}

#[cfg(not(unix))]
fn limit_memory(_: u64) -> Result<()> {
    Ok(())
}

fn read_bytes(input: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Prints one line with a tab between words. Exits if standard output is closed.
fn print_line(words: &[&str]) {
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push('\t');
        }
        line.extend(word.chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    line.push('\n');
    let mut output = io::stdout().lock();
    if output.write_all(line.as_bytes()).and_then(|()| output.flush()).is_err() {
        std::process::exit(1);
    }
}

/// One codec and a file of any format.
struct Trial<'a> {
    registry: CodecRegistry,
    limits: Limits,
    decoder: Decoder,
    name: &'static str,
    file: &'a [u8],
}

/// A codec that accepts every file.
#[derive(Debug)]
struct AcceptsAll(Arc<dyn ImageCodec>);

impl ImageCodec for AcceptsAll {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn sniff(&self, _: &[u8]) -> bool {
        true
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        self.0.decoder(limits)
    }
}

impl<'a> Trial<'a> {
    fn new(codec: &Arc<dyn ImageCodec>, limits: &Limits, file: &'a [u8]) -> Self {
        let mut registry = CodecRegistry::new();
        registry.register(AcceptsAll(codec.clone()));
        let decoder = Decoder::new(&registry, limits);
        Trial { registry, limits: limits.clone(), decoder, name: codec.name(), file }
    }

    /// Runs all requests in sequence.
    fn run(&mut self) {
        let mut info = None;
        self.request("inspect", |trial| {
            info = Some(trial.decoder.inspect(trial.file)?);
            Ok(())
        });
        let Some(ImageInfo { size, .. }) = info else {
            // A decoder must enforce its limits without a call of `inspect`.
            self.request("decode", |trial| {
                let mut pixel = [0; 3];
                let out = PixelsMut::new(&mut pixel, Size::new(1, 1))?;
                match trial.decoder.decode_into(trial.file, &DecodeRequest::full(), out) {
                    Ok(_) => Err(inconsistent("the decoder accepts a file that it cannot inspect")),
                    Err(error) => Err(error),
                }
            });
            return;
        };

        let mut whole = Vec::new();
        let outcome = self.request("decode", |trial| {
            whole = trial.pixels(&DecodeRequest::full(), size)?;
            Ok(())
        });
        let truncated = outcome == Some(ErrorKind::Truncated);
        let decodes = outcome.is_none();
        if size.pixels() <= LARGE {
            let region = Rect {
                left: size.width / 3,
                top: size.height / 3,
                width: (size.width / 2).max(1),
                height: (size.height / 2).max(1),
            };
            let part = decodes.then(|| crop(&whole, size, region));
            self.request("region", |trial| {
                let request = DecodeRequest::full().region(region);
                let pixels = trial.pixels(&request, region.size());
                trial.compare(pixels, part.as_deref(), truncated)
            });
            self.request("planes", |trial| {
                let mut picture = Picture::new();
                let request = DecodeRequest::full().region(region);
                let decoded = trial.decoder.decode_planes(trial.file, &request, &mut picture);
                let pixels = decoded.map(|_| rgb_of(&picture, region));
                trial.compare_planes(pixels, part.as_deref(), truncated)
            });
            self.request("smaller", |trial| {
                let mut picture = Picture::new();
                let smallest = Size::new(size.width.div_ceil(4), size.height.div_ceil(4));
                let request = DecodeRequest::full().at_least(smallest);
                let decoded = trial.decoder.decode_planes(trial.file, &request, &mut picture);
                trial.compare_planes(decoded.map(|_| None), decodes.then_some(&[]), truncated)
            });
            self.request("partial", |trial| {
                let mut pixels = vec![0; size.pixels() as usize * 3];
                let out = PixelsMut::new(&mut pixels, size)?;
                let request = DecodeRequest::full().on_truncated(OnTruncated::Partial);
                let decoded = trial.decoder.decode_into(trial.file, &request, out)?;
                if decoded.rows_valid == 0 || decoded.rows_valid > size.height {
                    return Err(inconsistent(format!("{} rows are valid", decoded.rows_valid)));
                }
                if decodes && (decoded.rows_valid != size.height || pixels != whole) {
                    return Err(inconsistent(
                        "`OnTruncated::Partial` changes the pixels of a complete file",
                    ));
                }
                Ok(())
            });
        }
        drop(whole);
        // Release the scratch memory: `fill` creates another decoder.
        self.decoder = Decoder::new(&self.registry, &self.limits);
        self.request("fill", |trial| {
            let transform = ImageTransform::new(SIDE).mode(Mode::Eval);
            let mut fill = FillImage::new(&trial.registry, &transform, &trial.limits)?;
            let mut sample = vec![0; (SIDE * SIDE * 3) as usize];
            let written = fill.write(trial.file, Sample::U8(&mut sample), || {
                unreachable!("a centre crop is not random")
            });
            trial.compare_planes(written.map(|_| None), decodes.then_some(&[]), truncated)
        });
    }

    fn pixels(&mut self, request: &DecodeRequest, size: Size) -> Result<Vec<u8>> {
        let mut pixels = vec![0; size.pixels() as usize * 3];
        let out = PixelsMut::new(&mut pixels, size)?;
        self.decoder.decode_into(self.file, request, out)?;
        Ok(pixels)
    }

    /// Compares the pixels of a region with the same region of the whole image, if the whole image
    /// was decoded.
    fn compare(&self, pixels: Result<Vec<u8>>, part: Option<&[u8]>, truncated: bool) -> Result<()> {
        self.compare_planes(pixels.map(Some), part, truncated)
    }

    fn compare_planes(
        &self,
        pixels: Result<Option<Vec<u8>>>,
        part: Option<&[u8]>,
        truncated: bool,
    ) -> Result<()> {
        match (pixels, part) {
            (Ok(Some(pixels)), Some(part)) if pixels != part => {
                Err(inconsistent("the pixels of a region differ from those of the whole image"))
            }
            (Ok(_), None) if truncated => {
                Err(inconsistent("the file is truncated for one request but not for another"))
            }
            (Err(error), Some(_)) if error.kind() != ErrorKind::Panicked => Err(inconsistent(
                format!("the whole image is decoded, but not this request: {error}"),
            )),
            (outcome, _) => outcome.map(drop),
        }
    }

    /// Runs one request and prints its result. Returns `None` on success.
    fn request(
        &mut self,
        what: &str,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Option<ErrorKind> {
        request(self.name, what, || work(self))
    }
}

/// Runs one request of a decoder and prints its result. Returns `None` on success.
fn request(name: &str, what: &str, work: impl FnOnce() -> Result<()>) -> Option<ErrorKind> {
    print_line(&["begin", name, what]);
    // `Decoder` catches the panics of codecs only.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    let error = match outcome {
        Ok(Ok(())) => {
            print_line(&["end", "ok", ""]);
            return None;
        }
        Ok(Err(error)) => error,
        Err(_) => Error::new(ErrorKind::Panicked, "a panic occurred outside the decoder"),
    };
    let kind = error.kind();
    let mut message = error.to_string();
    let word = match kind {
        ErrorKind::User => "inconsistent",
        ErrorKind::Panicked => {
            let location = PANIC_LOCATION.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            message = format!("{message} (at {location})");
            "panicked"
        }
        ErrorKind::Truncated
        | ErrorKind::Corrupt
        | ErrorKind::Unsupported
        | ErrorKind::LimitExceeded => kind.as_str(),
        // A corrupt file must not be reported as another kind of failure.
        _ => {
            message = format!("unexpected error kind {kind}: {message}");
            "inconsistent"
        }
    };
    print_line(&["end", word, &message]);
    Some(kind)
}

/// The error for contradictory results. Decoders do not return this kind.
fn inconsistent(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::User, message)
}

/// The pixels of a region of an image.
fn crop(pixels: &[u8], size: Size, region: Rect) -> Vec<u8> {
    let row = size.width as usize * 3;
    let columns = region.left as usize * 3..(region.left + region.width) as usize * 3;
    let rows = pixels.chunks_exact(row).skip(region.top as usize).take(region.height as usize);
    rows.flat_map(|row| &row[columns.clone()]).copied().collect()
}

/// The RGB pixels of a region, if the picture stores RGB or grey at full resolution.
fn rgb_of(picture: &Picture, region: Rect) -> Option<Vec<u8>> {
    let plane = &picture.planes()[0];
    let shape = plane.shape();
    let whole_pixels = shape.across == 1 && shape.down == 1;
    let repeat = match picture.color() {
        ColorModel::Rgb => 1,
        ColorModel::Grey => 3,
        _ => return None,
    };
    let left = region.left.checked_sub(shape.area.left)?;
    let top = region.top.checked_sub(shape.area.top)?;
    let columns = left as usize * shape.channels..(left + region.width) as usize * shape.channels;
    whole_pixels.then(|| {
        let rows = (top..top + region.height).map(|row| &plane.row(row)[columns.clone()]);
        rows.flatten().flat_map(|&sample| std::iter::repeat_n(sample, repeat)).collect()
    })
}
