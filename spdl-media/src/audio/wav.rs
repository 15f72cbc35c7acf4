//! WAV files: RIFF, and RF64, BW64 or Sony Wave64 for more than 4 GiB.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::transform::frame_at;
use crate::image::OnTruncated;

/// The RIFF header: `RIFF`, size, `WAVE`.
const START: u64 = 12;
/// A chunk header: identifier and size.
const CHUNK: u64 = 8;
/// The start of a Wave64 file: the GUID `riff`, the size, the GUID `wave`.
const WAVE64_START: u64 = 40;
/// A chunk header of Wave64: GUID and size, which includes the header.
const WAVE64_CHUNK: u64 = 24;
/// The GUID of a Wave64 file.
const WAVE64_RIFF: [u8; 16] = *b"riff\x2E\x91\xCF\x11\xA5\xD6\x28\xDB\x04\xC1\x00\x00";
/// The last 12 bytes of the GUIDs of chunks in Wave64, which follow the identifiers of RIFF.
const WAVE64_GUID_TAIL: [u8; 12] = *b"\xF3\xAC\xD3\x11\x8C\xD1\x00\xC0\x4F\x8E\xDB\x8A";
/// The bytes of the chunk `fmt ` to read: up to the length of `WAVE_FORMAT_EXTENSIBLE`.
const FORMAT: u64 = 40;
/// The sizes in the chunk `ds64`.
const LONG_SIZES: u64 = 24;
/// The maximum number of chunks up to and including the data chunk.
const MAX_CHUNKS: usize = 10_000;
/// The 32-bit size of a chunk that is too long, or whose size was unknown when it was written.
const UNKNOWN: u64 = 0xFFFF_FFFF;
/// The sizes in Wave64, from this one on, that were unknown when they were written.
const WAVE64_UNKNOWN: u64 = i64::MAX.cast_unsigned();

const PCM: u16 = 1;
const FLOAT: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const EXTENSIBLE: u16 = 0xFFFE;
/// The last 14 bytes of a `WAVE_FORMAT_EXTENSIBLE` GUID, which follow the 16-bit format.
const GUID_TAIL: [u8; 14] = *b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xAA\x00\x38\x9B\x71";

/// The sample type of a WAV file, little-endian.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WavSample {
    /// Unsigned 8 bits; silence is 128.
    U8,
    /// Signed 16 bits.
    I16,
    /// Signed 24 bits in three bytes; [`widen`](WavSample::widen) converts to 32 bits.
    I24,
    /// Signed 32 bits.
    I32,
    /// IEEE 754 binary32, usually −1 to 1.
    F32,
    /// IEEE 754 binary64, usually −1 to 1.
    F64,
    /// A-law of ITU-T G.711, 8 bits.
    ALaw,
    /// µ-law of ITU-T G.711, 8 bits.
    MuLaw,
}

impl WavSample {
    /// The size of one sample in bytes.
    pub fn size(self) -> usize {
        match self {
            WavSample::U8 | WavSample::ALaw | WavSample::MuLaw => 1,
            WavSample::I16 => 2,
            WavSample::I24 => 3,
            WavSample::I32 | WavSample::F32 => 4,
            WavSample::F64 => 8,
        }
    }

    /// Converts 24-bit samples to 32-bit samples, both little-endian. The value goes into the upper
    /// three bytes, so that full scale remains full scale.
    ///
    /// # Errors
    /// `InvalidArgument` if `wide` does not have 4 bytes per sample, or `packed` ends inside a
    /// sample.
    ///
    /// ```
    /// let mut wide = [0; 4];
    /// spdl_media::audio::WavSample::widen(&[0x56, 0x34, 0x12], &mut wide)?;
    /// assert_eq!(i32::from_le_bytes(wide), 0x12_3456 << 8);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn widen(packed: &[u8], wide: &mut [u8]) -> Result<()> {
        let (from, rest) = packed.as_chunks::<3>();
        let (to, left_over) = wide.as_chunks_mut::<4>();
        if from.len() != to.len() || !rest.is_empty() || !left_over.is_empty() {
            let message = format!(
                "cannot widen {} bytes of 24-bit samples to {} bytes: expected 4 output bytes \
             per 3 input bytes",
                packed.len(),
                wide.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        for (&[low, middle, high], to) in from.iter().zip(to) {
            *to = [0, low, middle, high];
        }
        Ok(())
    }
}

impl fmt::Display for WavSample {
    /// The NumPy name: `int16`; `alaw` and `mulaw`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WavSample::U8 => "uint8",
            WavSample::I16 => "int16",
            WavSample::I24 => "int24",
            WavSample::I32 => "int32",
            WavSample::F32 => "float32",
            WavSample::F64 => "float64",
            WavSample::ALaw => "alaw",
            WavSample::MuLaw => "mulaw",
        })
    }
}

/// The header of a WAV file: sample format, and position of the sample data.
///
/// A frame is one sample of each channel; its samples are adjacent.
///
/// ```
/// # let mut file = b"RIFF\x2C\0\0\0WAVEfmt \x10\0\0\0\x01\0\x02\0\x40\x1F\0\0\0\x7D\0\0\x04\0\x10\0".to_vec();
/// # file.extend_from_slice(b"data\x08\0\0\0\0\0\0\0\0\0\0\0");
/// use spdl_media::audio::{WavHeader, WavSample};
/// let header = WavHeader::from_bytes(&file.into())?;
/// assert_eq!((header.sample_rate(), header.channels(), header.frames()), (8000, 2, 2));
/// assert_eq!(header.sample()?, WavSample::I16);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WavHeader {
    format: FormatChunk,
    data: Range<u64>,
    /// The bytes of sample data that a truncated file lacks.
    missing: u64,
}

/// The chunk `fmt `.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FormatChunk {
    /// The offset in the file.
    offset: u64,
    tag: u16,
    /// The format that `WAVE_FORMAT_EXTENSIBLE` denotes, otherwise the same as `tag`. `None` if the
    /// GUID does not denote a 16-bit format.
    subformat: Option<u16>,
    channels: u16,
    sample_rate: u32,
    byte_rate: u32,
    block_align: u16,
    bits_per_sample: u16,
}

impl WavHeader {
    /// Parses the header of a file in memory.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn from_bytes(file: &Bytes) -> Result<Self> {
        WavHeader::read(file.len() as u64, |range| {
            Ok(file.slice(range.start as usize..range.end as usize))
        })
    }

    /// Parses the header of a file of `len` bytes. `read` returns ranges of the file: a few bytes
    /// of each chunk up to the sample data.
    ///
    /// If the size of the sample data is unknown, as in files written to a pipe, the data extend to
    /// the end of the last complete frame in the file.
    ///
    /// # Errors
    /// `Truncated` if the file is truncated, even inside sample data of known size; `Corrupt` if
    /// the file is not a WAV file, or is inconsistent; `Unsupported` for big-endian files (RIFX);
    /// `LimitExceeded` for 10,000 or more chunks before the sample data; the errors of `read`.
    pub fn read(len: u64, read: impl FnMut(Range<u64>) -> Result<Bytes>) -> Result<Self> {
        WavHeader::read_with(len, OnTruncated::Error, read)
    }

    /// [`read`](Self::read), where a file that is truncated inside its sample data may be accepted:
    /// the data then extend to its last complete frame.
    pub(super) fn read_with(
        len: u64,
        on_truncated: OnTruncated,
        mut read: impl FnMut(Range<u64>) -> Result<Bytes>,
    ) -> Result<Self> {
        let start = read(0..len.min(START))?;
        let is_wave64 = start.starts_with(b"riff");
        let (is_long, mut offset, header_bytes, alignment) = match is_wave64 {
            true => {
                check_wave64_start(&read(0..len.min(WAVE64_START))?, len)?;
                (false, WAVE64_START, WAVE64_CHUNK, 8)
            }
            false => (check_start(&start, len)?, START, CHUNK, 2),
        };
        let (mut format, mut long_data_size) = (None, None);
        for _ in 0..MAX_CHUNKS {
            let content = offset.saturating_add(header_bytes);
            if content > len {
                let what = if format.is_none() { "fmt" } else { "data" };
                return Err(truncated(
                    &format!("truncated WAV: the file ends before the {what} chunk"),
                    len,
                ));
            }
            let chunk = read(offset..content)?;
            let (name, size, unknown) = match is_wave64 {
                true => wave64_chunk(&chunk, offset)?,
                false => {
                    (chunk.get(..4).unwrap_or_default(), u64::from(u32_at(&chunk, 4)), UNKNOWN)
                }
            };
            let mut part = |most: u64| match content.checked_add(size.min(most)) {
                Some(end) if end <= len => read(content..end),
                _ => Err(truncated("truncated WAV: the file ends inside a chunk", len)),
            };
            match name {
                b"fmt " if format.is_some() => {
                    return Err(corrupt("corrupt WAV: second fmt chunk", offset));
                }
                b"fmt " => format = Some(FormatChunk::parse(&part(FORMAT)?, content)?),
                b"ds64" if is_long && long_data_size.is_none() => {
                    let sizes = part(LONG_SIZES)?;
                    let size = sizes
                        .get(8..16)
                        .ok_or_else(|| corrupt("corrupt WAV: ds64 chunk too short", offset))?;
                    long_data_size = Some(number(size));
                }
                b"data" => {
                    let format = format.ok_or_else(|| {
                        corrupt("corrupt WAV: data chunk before the fmt chunk", offset)
                    })?;
                    let size = match long_data_size {
                        _ if size < unknown => Some(size),
                        None if is_long => {
                            return Err(corrupt("corrupt WAV: missing ds64 chunk", offset));
                        }
                        long => long,
                    };
                    return WavHeader::new(format, content, size, len, on_truncated);
                }
                _ => {}
            }
            // Chunks are padded: to even sizes, in Wave64 to multiples of 8 bytes.
            let padded = size.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
            offset = content.saturating_add(padded);
        }
        let message = format!("WAV file with more than {MAX_CHUNKS} chunks before the data chunk");
        Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(offset))
    }

    /// The header for `size` bytes of sample data, or for all remaining bytes.
    fn new(
        format: FormatChunk,
        start: u64,
        size: Option<u64>,
        len: u64,
        on_truncated: OnTruncated,
    ) -> Result<Self> {
        let available = len - start;
        let is_truncated = size.is_some_and(|size| size > available);
        let end = match size {
            Some(size) if !is_truncated => start + size,
            Some(size) if on_truncated == OnTruncated::Error => {
                let message =
                    format!("truncated WAV: the file has {available} of {size} data bytes");
                return Err(truncated(&message, len));
            }
            // An incomplete last frame is dropped.
            _ => len - available.checked_rem(u64::from(format.block_align)).unwrap_or(0),
        };
        let missing = size.map_or(0, |size| size.saturating_sub(end - start));
        Ok(WavHeader { format, data: start..end, missing })
    }

    /// Whether the file ends inside its sample data.
    pub(super) fn is_truncated(&self) -> bool {
        self.missing > 0
    }

    /// The number of frames that the file would have if it were not truncated.
    pub(super) fn declared_frames(&self) -> u64 {
        let bytes = self.data.end - self.data.start + self.missing;
        bytes.checked_div(u64::from(self.format.block_align)).unwrap_or(0)
    }

    /// The format tag as stored: 1 is PCM, 3 floating point, 0xFFFE `WAVE_FORMAT_EXTENSIBLE`.
    pub fn format(&self) -> u16 {
        self.format.tag
    }

    /// The number of channels.
    pub fn channels(&self) -> u16 {
        self.format.channels
    }

    /// Frames per second.
    pub fn sample_rate(&self) -> u32 {
        self.format.sample_rate
    }

    /// Bytes per second, as stored; informative only.
    pub fn byte_rate(&self) -> u32 {
        self.format.byte_rate
    }

    /// The size of a frame in bytes.
    pub fn block_align(&self) -> u16 {
        self.format.block_align
    }

    /// Bits per sample. If fewer bits are valid, the valid bits are the most significant bits.
    pub fn bits_per_sample(&self) -> u16 {
        self.format.bits_per_sample
    }

    /// The byte range of the sample data in the file.
    pub fn data_range(&self) -> Range<u64> {
        self.data.clone()
    }

    /// The number of complete frames.
    pub fn frames(&self) -> u64 {
        let bytes = self.data.end - self.data.start;
        bytes.checked_div(u64::from(self.format.block_align)).unwrap_or(0)
    }

    /// The sample type.
    ///
    /// # Errors
    /// `Unsupported` for formats other than PCM of 8, 16, 24 or 32 bits, floating point of 32 or 64
    /// bits, A-law and µ-law, such as ADPCM; `Corrupt` if the sizes are inconsistent.
    pub fn sample(&self) -> Result<WavSample> {
        let FormatChunk { offset, subformat, channels, block_align, bits_per_sample, .. } =
            self.format;
        let sample = match (subformat, bits_per_sample) {
            (Some(PCM), 8) => WavSample::U8,
            (Some(PCM), 16) => WavSample::I16,
            (Some(PCM), 24) => WavSample::I24,
            (Some(PCM), 32) => WavSample::I32,
            (Some(FLOAT), 32) => WavSample::F32,
            (Some(FLOAT), 64) => WavSample::F64,
            (Some(A_LAW), 8) => WavSample::ALaw,
            (Some(MU_LAW), 8) => WavSample::MuLaw,
            (format, bits) => {
                let message = format!("unsupported WAV format: {bits}-bit {}", format_name(format));
                return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
            }
        };
        if channels == 0 {
            return Err(corrupt("corrupt WAV: 0 channels", offset));
        }
        if usize::from(block_align) != usize::from(channels) * sample.size() {
            let message = format!(
                "corrupt WAV: block align {block_align} does not match {channels} channels of \
                 {sample}"
            );
            return Err(corrupt(&message, offset));
        }
        let bytes = self.data.end - self.data.start;
        if !bytes.is_multiple_of(u64::from(block_align)) {
            let message =
                format!("corrupt WAV: {bytes} bytes of samples are not a whole number of frames");
            return Err(corrupt(&message, self.data.start));
        }
        Ok(sample)
    }

    /// The frames of a time interval, in seconds: from `offset` (default: the start) for `duration`
    /// (default: to the end). `offset` and `duration` are each rounded down to whole frames. The
    /// interval is clipped to the end of the file.
    ///
    /// # Errors
    /// `InvalidArgument` if a value is negative or not finite, or if the interval starts at or
    /// after the end of the file. A start at frame 0 is valid even if the file has no frames.
    pub fn frames_between(&self, offset: Option<f64>, duration: Option<f64>) -> Result<Range<u64>> {
        let frames = self.frames();
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        for (name, seconds) in [("offset", offset), ("duration", duration)] {
            if let Some(seconds) = seconds.filter(|value| !value.is_finite() || *value < 0.0) {
                return invalid(format!(
                    "invalid {name} {seconds} s: expected a finite time of at least 0"
                ));
            }
        }
        let start = frame_at(offset.unwrap_or(0.0), self.sample_rate());
        if start > 0 && start >= frames {
            let seconds = offset.unwrap_or(0.0);
            return invalid(format!(
                "invalid offset {seconds} s: expected a time before the end of the file, which has \
                 {frames} frames at {} frames per second",
                self.sample_rate()
            ));
        }
        let count = duration.map_or(u64::MAX, |duration| frame_at(duration, self.sample_rate()));
        Ok(start..start.saturating_add(count).min(frames))
    }
}

impl FormatChunk {
    fn parse(chunk: &[u8], offset: u64) -> Result<Self> {
        if chunk.len() < 16 {
            let message =
                format!("corrupt WAV: fmt chunk of {} bytes: expected at least 16", chunk.len());
            return Err(corrupt(&message, offset));
        }
        let tag = u16_at(chunk, 0);
        let subformat = match chunk.get(24..40) {
            _ if tag != EXTENSIBLE => Some(tag),
            Some(guid) => (guid[2..] == GUID_TAIL).then(|| u16_at(guid, 0)),
            None => {
                return Err(corrupt("corrupt WAV: fmt chunk too short for its format tag", offset));
            }
        };
        Ok(FormatChunk {
            offset,
            tag,
            subformat,
            channels: u16_at(chunk, 2),
            sample_rate: u32_at(chunk, 4),
            byte_rate: u32_at(chunk, 8),
            block_align: u16_at(chunk, 12),
            bits_per_sample: u16_at(chunk, 14),
        })
    }
}

/// Checks the RIFF header. Returns whether sizes have 64 bits.
fn check_start(start: &[u8], len: u64) -> Result<bool> {
    let wave = start.get(8..).unwrap_or_default();
    let may_be = |name: &[u8; 4]| {
        name.starts_with(&start[..start.len().min(4)]) && b"WAVE".starts_with(wave)
    };
    let is_long = may_be(b"RF64") || may_be(b"BW64");
    if may_be(b"RIFX") && start.len() as u64 == START {
        let message = "unsupported WAV: big-endian (RIFX)";
        return Err(Error::new(ErrorKind::Unsupported, message).with_offset(0));
    }
    if !is_long && !may_be(b"RIFF") {
        return Err(corrupt("RIFF header not found: not a WAV file", 0));
    }
    if (start.len() as u64) < START {
        return Err(truncated("truncated WAV: the file ends inside the RIFF header", len));
    }
    Ok(is_long)
}

/// Whether a file starts with the GUIDs of Wave64.
pub(super) fn is_wave64(head: &[u8]) -> bool {
    let wave = head.get(24..).and_then(|wave| wave.strip_prefix(b"wave"));
    head.starts_with(&WAVE64_RIFF) && wave.is_some_and(|tail| tail.starts_with(&WAVE64_GUID_TAIL))
}

/// Checks the start of a Wave64 file.
fn check_wave64_start(start: &[u8], len: u64) -> Result<()> {
    match is_wave64(start) {
        true => Ok(()),
        false if len < WAVE64_START => {
            Err(truncated("truncated WAV: the file ends inside the Wave64 header", len))
        }
        false => Err(corrupt("Wave64 header not found: not a WAV file", 0)),
    }
}

/// The identifier and the size of the content of a chunk of Wave64, and the least unknown size. Chunks with other GUIDs
/// have an empty identifier.
fn wave64_chunk(header: &[u8], offset: u64) -> Result<(&[u8], u64, u64)> {
    let (guid, size) = header.split_at_checked(16).unwrap_or_default();
    let name = guid.strip_suffix(&WAVE64_GUID_TAIL).unwrap_or_default();
    match number(size).checked_sub(WAVE64_CHUNK) {
        Some(size) => Ok((name, size, WAVE64_UNKNOWN - WAVE64_CHUNK)),
        None => {
            let message = format!(
                "corrupt WAV: Wave64 chunk of {} bytes: expected at least 24",
                number(size)
            );
            Err(corrupt(&message, offset))
        }
    }
}

fn format_name(format: Option<u16>) -> String {
    let name = match format {
        Some(PCM) => "PCM",
        Some(FLOAT) => "floating point",
        Some(2 | 0x11) => "ADPCM",
        Some(A_LAW) => "A-law",
        Some(MU_LAW) => "µ-law",
        Some(0x50 | 0x55) => "MPEG",
        Some(other) => return format!("format {other:#06x}"),
        None => "vendor-specific format",
    };
    name.to_owned()
}

fn corrupt(message: &str, offset: u64) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset)
}

fn truncated(message: &str, len: u64) -> Error {
    Error::new(ErrorKind::Truncated, message).with_offset(len)
}

/// A little-endian number. Missing bytes count as 0; the callers check lengths.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    number(bytes.get(at..at + 2).unwrap_or_default()) as u16
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    number(bytes.get(at..at + 4).unwrap_or_default()) as u32
}
