//! The child process of `cargo xtask corpus`: takes files from its standard input, gives each to
//! every decoder that claims it, and says on its standard output what came of it.
//!
//! A request is: the length of a list of decoders (4 bytes, little endian), the list (names with
//! commas between them; empty: those whose `sniff` claims the file), the length of the file
//! (8 bytes), the file. The answer is lines of words with tabs between them:
//!
//! ```text
//! begin   DECODER  REQUEST                      what is being done; a crash happened in the last
//! end     KIND     MESSAGE                      ok, an error's kind, panicked, or inconsistent
//! done
//! ```
//!
//! The one argument is the address space that the process may use, in bytes.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

use spdl_core::{Error, ErrorKind, Result};
use spdl_media::image::{
    ColorModel, DecodeRequest, ImageCodec, ImageDecoder, ImageInfo, Picture, PixelsMut, SNIFF_BYTES,
};
use spdl_media::{
    CodecRegistry, Decoder, FillImage, ImageTransform, Limits, Mode, OnTruncated, Rect, Sample,
    Size,
};

/// The side of the square that a training batch would hold.
const SIDE: u32 = 64;

/// Above this many pixels only the most important requests are made, for time.
const LARGE: u64 = 1 << 24;

/// Where the last panic happened: the decoders catch it, and its message lacks the place.
static PANIC_PLACE: Mutex<String> = Mutex::new(String::new());

fn main() -> Result<()> {
    let bytes = std::env::args().nth(1).and_then(|word| word.parse().ok()).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, "expected a number of bytes as the argument")
    })?;
    limit_memory(bytes)?;
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        *PANIC_PLACE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = place;
    }));
    let registry = registry();
    // The rest is for the program itself, and for the file.
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

        let head = &file[..file.len().min(SNIFF_BYTES)];
        for codec in registry.codecs() {
            let chosen = match names.as_str() {
                "" => codec.sniff(head),
                names => names.split(',').any(|name| name == codec.name()),
            };
            if chosen {
                Trial::new(codec, &limits, &file).run();
            }
        }
        say(&["done"]);
    }
}

/// Every codec of this build, those that others take the place of included.
fn registry() -> CodecRegistry {
    #[cfg_attr(
        not(any(feature = "turbojpeg", feature = "zune-jpeg")),
        expect(unused_mut, reason = "there is nothing to add")
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

fn say(words: &[&str]) {
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
        // Nobody listens any more.
        std::process::exit(1);
    }
}

/// A decoder and a file that it may not know to be its own.
struct Trial<'a> {
    registry: CodecRegistry,
    limits: Limits,
    decoder: Decoder,
    name: &'static str,
    file: &'a [u8],
}

/// A codec of the registry that takes any file.
#[derive(Debug)]
struct Any(Arc<dyn ImageCodec>);

impl ImageCodec for Any {
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
        registry.register(Any(codec.clone()));
        let decoder = Decoder::new(&registry, limits);
        Trial { registry, limits: limits.clone(), decoder, name: codec.name(), file }
    }

    /// Makes every request, one after another.
    fn run(&mut self) {
        let mut info = None;
        self.request("inspect", |trial| {
            info = Some(trial.decoder.inspect(trial.file)?);
            Ok(())
        });
        let Some(ImageInfo { size, .. }) = info else {
            // A decoder keeps to its limits also where nobody has asked it for the size.
            self.request("decode", |trial| {
                let mut pixel = [0; 3];
                let out = PixelsMut::new(&mut pixel, Size::new(1, 1))?;
                match trial.decoder.decode_into(trial.file, &DecodeRequest::full(), out) {
                    Ok(_) => Err(inconsistent("decodes what it cannot inspect")),
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
            let part = decodes.then(|| cut(&whole, size, region));
            self.request("region", |trial| {
                let request = DecodeRequest::full().region(region);
                let pixels = trial.pixels(&request, region.size());
                trial.judge(pixels, part.as_deref(), truncated)
            });
            self.request("planes", |trial| {
                let mut picture = Picture::new();
                let request = DecodeRequest::full().region(region);
                let decoded = trial.decoder.decode_planes(trial.file, &request, &mut picture);
                let pixels = decoded.map(|_| rgb_of(&picture, region));
                trial.judge_planes(pixels, part.as_deref(), truncated)
            });
            self.request("smaller", |trial| {
                let mut picture = Picture::new();
                let smallest = Size::new(size.width.div_ceil(4), size.height.div_ceil(4));
                let request = DecodeRequest::full().at_least(smallest);
                let decoded = trial.decoder.decode_planes(trial.file, &request, &mut picture);
                trial.judge_planes(decoded.map(|_| None), decodes.then_some(&[]), truncated)
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
                    return Err(inconsistent("a whole file differs where a part would do"));
                }
                Ok(())
            });
        }
        drop(whole);
        // Two decoders that both keep their scratch memory are more than a user has.
        self.decoder = Decoder::new(&self.registry, &self.limits);
        self.request("fill", |trial| {
            let transform = ImageTransform::new(SIDE).mode(Mode::Eval);
            let mut fill = FillImage::new(&trial.registry, &transform, &trial.limits)?;
            let mut sample = vec![0; (SIDE * SIDE * 3) as usize];
            let written = fill.write(trial.file, Sample::U8(&mut sample), || {
                unreachable!("nothing is drawn for the centre")
            });
            trial.judge_planes(written.map(|_| None), decodes.then_some(&[]), truncated)
        });
    }

    fn pixels(&mut self, request: &DecodeRequest, size: Size) -> Result<Vec<u8>> {
        let mut pixels = vec![0; size.pixels() as usize * 3];
        let out = PixelsMut::new(&mut pixels, size)?;
        self.decoder.decode_into(self.file, request, out)?;
        Ok(pixels)
    }

    /// Compares a part with the same part of the whole, where that could be decoded.
    fn judge(&self, pixels: Result<Vec<u8>>, part: Option<&[u8]>, truncated: bool) -> Result<()> {
        self.judge_planes(pixels.map(Some), part, truncated)
    }

    fn judge_planes(
        &self,
        pixels: Result<Option<Vec<u8>>>,
        part: Option<&[u8]>,
        truncated: bool,
    ) -> Result<()> {
        match (pixels, part) {
            (Ok(Some(pixels)), Some(part)) if pixels != part => {
                Err(inconsistent("a part has other pixels than the whole"))
            }
            (Ok(_), None) if truncated => {
                Err(inconsistent("whether the file is cut off depends on what is asked for"))
            }
            (Err(error), Some(_)) if error.kind() != ErrorKind::Panicked => {
                Err(inconsistent(format!("the whole can be decoded, and this not: {error}")))
            }
            (outcome, _) => outcome.map(drop),
        }
    }

    /// Makes one request, and says how it ended. `None` where it succeeded.
    fn request(
        &mut self,
        what: &str,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Option<ErrorKind> {
        say(&["begin", self.name, what]);
        // What panics outside of a decoder is not caught there.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(self)));
        let error = match outcome {
            Ok(Ok(())) => {
                say(&["end", "ok", ""]);
                return None;
            }
            Ok(Err(error)) => error,
            Err(_) => Error::new(ErrorKind::Panicked, "a panic outside of the decoder"),
        };
        let kind = error.kind();
        let mut message = error.to_string();
        let word = match kind {
            ErrorKind::User => "inconsistent",
            ErrorKind::Panicked => {
                let place = PANIC_PLACE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                message = format!("{message} (at {place})");
                "panicked"
            }
            ErrorKind::Truncated
            | ErrorKind::Corrupt
            | ErrorKind::Unsupported
            | ErrorKind::LimitExceeded => kind.as_str(),
            // Any other kind blames someone else for what the file is guilty of.
            _ => {
                message = format!("an error of the kind {kind}: {message}");
                "inconsistent"
            }
        };
        say(&["end", word, &message]);
        Some(kind)
    }
}

/// What a decoder must not answer. No decoder gives errors of this kind.
fn inconsistent(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::User, message)
}

/// A part of an image.
fn cut(pixels: &[u8], size: Size, region: Rect) -> Vec<u8> {
    let row = size.width as usize * 3;
    let columns = region.left as usize * 3..(region.left + region.width) as usize * 3;
    let rows = pixels.chunks_exact(row).skip(region.top as usize).take(region.height as usize);
    rows.flat_map(|row| &row[columns.clone()]).copied().collect()
}

/// The pixels of a region, where the picture holds them as they are.
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
