//! [`Decompress`]: gzip and Zstandard streams.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

/// The size of the input buffer, in bytes.
const BUFFER: usize = 64 << 10;

/// Output up to this size is exempt from the ratio limit, in bytes.
const RATIO_FREE_BYTES: u64 = 64 << 20;

/// A reader that decompresses gzip and Zstandard, and passes other data through.
///
/// Use it as the reader of a [`TarStream`](super::TarStream), for `.tar`, `.tar.gz` and `.tar.zst`
/// files. Consecutive gzip members or Zstandard frames are one stream. A truncated stream fails
/// with `Truncated`, and a damaged stream with `Corrupt`. [`Read::read`] returns an [`io::Error`]
/// that wraps this [`Error`]; `TarStream` unwraps it.
///
/// ```no_run
/// use spdl_io::archive::{Decompress, DecompressLimits, TarStream};
/// let file = std::fs::File::open("shard.tar.gz")?;
/// let archive = TarStream::new(Decompress::detect(file, DecompressLimits::default())?);
/// for file in archive.files() {
///     println!("{}", file?.entry.key);
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct Decompress<R: Read> {
    decoder: Decoder<R>,
    limits: DecompressLimits,
    output: u64,
}

enum Decoder<R: Read> {
    Plain(CountingReader<R>),
    #[cfg(feature = "gzip")]
    Gzip(Box<flate2::bufread::MultiGzDecoder<CountingReader<R>>>),
    #[cfg(feature = "zstd")]
    Zstd(zstd::stream::read::Decoder<'static, CountingReader<R>>),
}

/// Decompresses a whole stream in memory to at most `max_bytes` bytes.
///
/// # Errors
/// The errors of [`Decompress`].
pub(crate) fn decompress(compressed: &[u8], max_bytes: u64) -> Result<Bytes> {
    let limits = DecompressLimits::default().max_bytes(max_bytes);
    let mut bytes = Vec::new();
    let read = Decompress::detect(compressed, limits)?.read_to_end(&mut bytes);
    read.map_err(|error| error.downcast::<Error>().unwrap_or_else(Into::into))?;
    Ok(bytes.into())
}

/// Limits on the output of [`Decompress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecompressLimits {
    max_bytes: u64,
    max_ratio: u64,
}

impl Default for DecompressLimits {
    /// 1 TiB, and 1,000 output bytes per input byte.
    fn default() -> Self {
        DecompressLimits { max_bytes: 1 << 40, max_ratio: 1_000 }
    }
}

impl DecompressLimits {
    /// Sets the maximum output, in bytes. Default: 1 TiB. The stream is never in memory as a whole, so this
    /// limit bounds the run time, not the memory.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Sets the maximum ratio of output bytes to input bytes, over the stream so far. The first 64 MiB of
    /// output are exempt. Default: 1,000.
    #[must_use]
    pub fn max_ratio(mut self, max_ratio: u64) -> Self {
        self.max_ratio = max_ratio;
        self
    }

    fn check(&self, input: u64, output: u64) -> Result<()> {
        let by_ratio = input.saturating_mul(self.max_ratio).max(RATIO_FREE_BYTES);
        let allowed = self.max_bytes.min(by_ratio);
        if output <= allowed {
            return Ok(());
        }
        let message =
            format!("{input} compressed bytes expand to more than the limit of {allowed} bytes");
        Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(input))
    }
}

/// The magic numbers of the formats.
const GZIP: &[u8] = &[0x1F, 0x8B];
const ZSTD: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];

impl<R: Read> Decompress<R> {
    /// Detects the format by the first bytes of the stream.
    ///
    /// # Errors
    /// The errors of the reader; `Unsupported` if the stream needs the feature `gzip` or `zstd`,
    /// and this build lacks it.
    pub fn detect(reader: R, limits: DecompressLimits) -> Result<Self> {
        let mut start = [0; 4];
        let mut len = 0;
        let mut reader = reader;
        while len < start.len() {
            match reader.read(&mut start[len..]) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let start = start[..len].to_vec();
        let kind = if start.starts_with(ZSTD) {
            ZSTD
        } else if start.starts_with(GZIP) {
            GZIP
        } else {
            &[]
        };
        let reader = CountingReader {
            start: io::Cursor::new(start),
            reader: BufReader::with_capacity(BUFFER, reader),
            count: 0,
        };
        let decoder = match kind {
            #[cfg(feature = "gzip")]
            GZIP => Decoder::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(reader))),
            #[cfg(feature = "zstd")]
            ZSTD => Decoder::Zstd(zstd::stream::read::Decoder::with_buffer(reader)?),
            [] => Decoder::Plain(reader),
            _ => {
                let (name, feature) =
                    if kind == GZIP { ("gzip", "gzip") } else { ("Zstandard", "zstd") };
                let message =
                    format!("cannot decompress {name}: this build lacks the feature `{feature}`");
                return Err(Error::new(ErrorKind::Unsupported, message).with_offset(0));
            }
        };
        Ok(Decompress { decoder, limits, output: 0 })
    }

    /// The number of input bytes consumed so far.
    pub fn input_bytes(&self) -> u64 {
        match &self.decoder {
            Decoder::Plain(reader) => reader.count,
            #[cfg(feature = "gzip")]
            Decoder::Gzip(decoder) => decoder.get_ref().count,
            #[cfg(feature = "zstd")]
            Decoder::Zstd(decoder) => decoder.get_ref().count,
        }
    }
}

impl<R: Read> Read for Decompress<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self.decoder.read(buffer) {
            Err(error) if !matches!(self.decoder, Decoder::Plain(_)) => {
                return Err(typed(error, self.input_bytes()));
            }
            read => read?,
        };
        self.output += read as u64;
        let allowed = self.limits.check(self.input_bytes(), self.output);
        allowed.map_err(io::Error::other)?;
        Ok(read)
    }
}

impl<R: Read> Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Plain(reader) => reader.read(buffer),
            #[cfg(feature = "gzip")]
            Decoder::Gzip(decoder) => decoder.read(buffer),
            #[cfg(feature = "zstd")]
            Decoder::Zstd(decoder) => decoder.read(buffer),
        }
    }
}

/// Maps an error of a decompressor to a kind.
fn typed(error: io::Error, offset: u64) -> io::Error {
    let (kind, message) = match error.kind() {
        io::ErrorKind::Interrupted => return error,
        io::ErrorKind::UnexpectedEof => {
            (ErrorKind::Truncated, "the compressed stream ends early".to_owned())
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            (ErrorKind::Corrupt, format!("corrupt compressed stream: {error}"))
        }
        // The Zstandard library reports all its errors as `Other`.
        io::ErrorKind::Other if error.to_string().contains("too much memory") => {
            (ErrorKind::LimitExceeded, format!("cannot decompress the stream: {error}"))
        }
        io::ErrorKind::Other => (ErrorKind::Corrupt, format!("corrupt compressed stream: {error}")),
        _ => return error,
    };
    io::Error::other(Error::new(kind, message).with_offset(offset))
}

impl<R: Read> fmt::Debug for Decompress<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.decoder {
            Decoder::Plain(_) => "plain",
            #[cfg(feature = "gzip")]
            Decoder::Gzip(_) => "gzip",
            #[cfg(feature = "zstd")]
            Decoder::Zstd(_) => "zstd",
        };
        write!(f, "Decompress({kind}, {} bytes to {})", self.input_bytes(), self.output)
    }
}

/// A reader that starts with the bytes read for detection, and counts consumed bytes.
struct CountingReader<R> {
    start: io::Cursor<Vec<u8>>,
    reader: BufReader<R>,
    count: u64,
}

impl<R: Read> BufRead for CountingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start.position() < self.start.get_ref().len() as u64 {
            return self.start.fill_buf();
        }
        self.reader.fill_buf()
    }

    fn consume(&mut self, len: usize) {
        self.count += len as u64;
        if self.start.position() < self.start.get_ref().len() as u64 {
            self.start.consume(len);
        } else {
            self.reader.consume(len);
        }
    }
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffered = self.fill_buf()?;
        let read = buffered.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}
