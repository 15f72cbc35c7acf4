//! TIFF through the `tiff` crate: the first page, by the strips or tiles that hold what is wanted.
//! CCITT's codes and JPEG are decompressed here: the first that crate does not know, and the second
//! it decodes whatever its size, and makes up what is missing.

use std::io::{self, Read, Seek, SeekFrom};

use spdl_core::{Error, ErrorKind, Result};
use tiff::ColorType;
use tiff::decoder::ifd::Value;
use tiff::decoder::{ChunkType, Decoder, DecodingResult, Limits as TiffLimits};
use tiff::tags::Tag;

use super::ccitt::{self, Fault, Scheme};
use super::convert::{Pixel, cmyk_to_rgb};
use super::failure;
use super::frame::{Format, Job, reserve};
use crate::image::{CHANNELS, Decoded, ImageInfo, Limits, Orientation, Rect, Size};

/// TIFF, the first page.
#[derive(Default)]
pub(super) struct Tiff {
    /// All samples of a facsimile.
    facsimile: Vec<u8>,
}

/// A file up to its first page's pixels.
pub(super) struct Opened<'a> {
    decoder: Reader<'a>,
    photometric: Option<u64>,
    compression: Compression,
}

type Reader<'a> = Decoder<Patched<'a>>;

/// Who decompresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    /// The `tiff` crate.
    Other,
    /// CCITT's, for facsimile; the crate has a part of it.
    Ccitt(Ccitt),
    /// JPEG, which the crate decodes whatever its size and its damage.
    Jpeg { is_old: bool },
}

/// CCITT's compressions, by TIFF's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ccitt {
    Runs = 2,
    Group3 = 3,
    Group4 = 4,
}

/// Why only the rows above are written.
struct Cut {
    rows: u32,
    reason: Error,
}

impl From<Error> for Cut {
    fn from(reason: Error) -> Self {
        Cut { rows: 0, reason }
    }
}

impl Format for Tiff {
    const NAME: &'static str = "tiff";
    type File<'a> = Opened<'a>;

    fn sniff(head: &[u8]) -> bool {
        // Classic and 64-bit, in both byte orders.
        [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|magic| head.starts_with(*magic))
    }

    fn open<'a>(encoded: &'a [u8], own: &Limits) -> Result<(Opened<'a>, ImageInfo)> {
        let directory = Directory::read(encoded).unwrap_or_default();
        let photometric = directory.photometric;
        let compression = directory.compression();
        let bytes = usize::try_from(own.bytes()).unwrap_or(usize::MAX);
        let mut limits = TiffLimits::default();
        limits.decoding_buffer_size = bytes;
        limits.intermediate_buffer_size = bytes;
        let encoded = directory.readable(encoded);
        let mut decoder = Decoder::new(encoded).map_err(error)?.with_limits(limits);
        let (width, height) = decoder.dimensions().map_err(error)?;
        let orientation = match decoder.find_tag_unsigned::<u16>(Tag::Orientation) {
            Ok(Some(number)) => Orientation::from_exif(number).unwrap_or_default(),
            Ok(None) | Err(_) => Orientation::Upright,
        };
        let info = ImageInfo::new(Size::new(width, height), orientation);
        Ok((Opened { decoder, photometric, compression }, info))
    }

    fn decode(&mut self, file: Opened<'_>, mut job: Job<'_>) -> Result<Decoded> {
        let Opened { mut decoder, photometric, compression } = file;
        let outcome = match compression {
            Compression::Other => read_parts(&mut decoder, photometric, &mut job),
            Compression::Ccitt(kind) => self.read_ccitt(&mut decoder, kind, &mut job),
            Compression::Jpeg { is_old: true }
                if decoder.find_tag(Tag::Unknown(JPEG_START)).map_err(error)?.is_none() =>
            {
                return Err(unsupported(
                    "old-style JPEG in a TIFF (compression 6) whose tables are kept apart from the data",
                ));
            }
            Compression::Jpeg { is_old } => read_jpeg(&mut decoder, photometric, is_old, &mut job),
        };
        match outcome {
            Ok(()) => Ok(job.done()),
            Err(Cut { rows, reason }) => job.ended_after(rows, reason),
        }
    }

    fn scratch_bytes(&self) -> usize {
        self.facsimile.capacity()
    }
}

impl Tiff {
    /// Reads strips of a facsimile, one bit a pixel, 1 for white.
    fn read_ccitt(
        &mut self,
        decoder: &mut Reader<'_>,
        kind: Ccitt,
        job: &mut Job<'_>,
    ) -> Result<(), Cut> {
        let reader = SampleReader::new(decoder, None)?;
        if (reader.bits, reader.channels) != (1, 1) || decoder.get_chunk_type() != ChunkType::Strip
        {
            return Err(unsupported("CCITT compression but of one bit a pixel, in strips").into());
        }
        let number = |decoder: &mut Reader<'_>, tag, default: u32| -> Result<u32> {
            Ok(decoder.find_tag_unsigned(tag).map_err(error)?.unwrap_or(default))
        };
        let scheme = match kind {
            Ccitt::Runs => Scheme::Runs,
            Ccitt::Group3 => Scheme::Group3 {
                two_dimensional: number(decoder, Tag::Unknown(T4_OPTIONS), 0)? & 1 != 0,
            },
            Ccitt::Group4 => Scheme::Group4,
        };
        let lowest_bit_first = number(decoder, Tag::FillOrder, 1)? == 2;
        let white_is_zero =
            u64::from(number(decoder, Tag::PhotometricInterpretation, 0)?) == WHITE_IS_ZERO;
        let Size { width, height } = job.info.size;
        let row_bytes = (width as usize).div_ceil(8);
        let strip_rows = decoder.chunk_dimensions().1 as usize;
        let strips = chunks(decoder, (Tag::StripOffsets, Tag::StripByteCounts))?;
        let samples = &mut self.facsimile;
        samples.clear();
        let bytes = row_bytes as u64 * u64::from(height);
        reserve(samples, bytes, job.limits, job.info.size)?;
        let parts = samples.chunks_mut(row_bytes.max(1).saturating_mul(strip_rows.max(1)));
        if parts.len() > strips.len() {
            return Err(failure::corrupt(Self::NAME, "fewer strips than rows need").into());
        }
        let mut cut = None;
        for (index, (rows, place)) in parts.zip(strips).enumerate() {
            let data = place.data(job.encoded);
            if let Err((row, fault)) = ccitt::decode(data, lowest_bit_first, scheme, width, rows) {
                let row = index * strip_rows + row;
                let (kind, what) = match fault {
                    Fault::Ended => (ErrorKind::Truncated, "end"),
                    Fault::BadCode => (ErrorKind::Corrupt, "match no code"),
                };
                let message = format!("the TIFF's CCITT data {what} after {row} of {height} rows");
                let end = place.start.saturating_add(data.len() as u64);
                let reason = Error::new(kind, message).with_offset(end);
                if !job.may_be_partial(&reason) {
                    return Err(reason.into());
                }
                cut = Some(Cut { rows: row as u32, reason });
                break;
            }
        }
        if white_is_zero {
            samples.iter_mut().for_each(|byte| *byte = !*byte);
        }
        write_part(&reader, &Samples::Bytes(samples), 1, Rect::full(job.info.size), job)?;
        cut.map_or(Ok(()), Err)
    }
}

/// Reads what the crate decompresses: the strips or tiles that hold something of the region, one
/// after another.
fn read_parts(
    decoder: &mut Reader<'_>,
    photometric: Option<u64>,
    job: &mut Job<'_>,
) -> Result<(), Cut> {
    let reader = SampleReader::new(decoder, photometric)?;
    let layout = decoder.image_buffer_layout().map_err(error)?;
    let size = job.info.size;
    if layout.planes > 1 {
        // Planes lie one after another, so that the last rows need all of the file.
        job.limits.check_bytes(layout.complete_len as u64, size)?;
        let mut page = DecodingResult::U8(Vec::new());
        decoder.read_image_to_buffer(&mut page).map_err(error)?;
        if page.as_buffer(0).byte_len() < layout.complete_len {
            return Err(failure::limit_exceeded(Tiff::NAME).into());
        }
        let samples = Samples::new(&page)?;
        return Ok(write_part(&reader, &samples, layout.planes, Rect::full(size), job)?);
    }
    let (count, tags) = match decoder.get_chunk_type() {
        ChunkType::Strip => (decoder.strip_count(), STRIP_TAGS),
        ChunkType::Tile => (decoder.tile_count(), TILE_TAGS),
    };
    let count = count.map_err(error)?;
    let grid = Grid::new(size, decoder.chunk_dimensions());
    if u64::from(count) < grid.parts() {
        return Err(failure::corrupt(Tiff::NAME, "fewer parts than the page needs").into());
    }
    // What lies outside is only asked for whether it is there.
    let places = match job.region == Rect::full(size) {
        true => Vec::new(),
        false => chunks(decoder, tags)?,
    };
    for index in 0..grid.parts() as u32 {
        let part = grid.part(index);
        let is_there = places.get(index as usize).is_some_and(|place| !place.is_cut(job.encoded));
        if overlap(part, job.region).is_none() && is_there && !job.exact {
            continue;
        }
        let needed = decoder.image_chunk_buffer_layout(index).map_err(error)?.len;
        job.limits.check_bytes(needed as u64, size)?;
        let samples = match decoder.read_chunk(index) {
            Ok(samples) => samples,
            Err(reason) => {
                // A strip that was said to be no longer than the file is cut, too.
                let is_clipped = decoder.inner().patches[1].is_some();
                let is_there = !is_clipped
                    && chunks(decoder, tags)?
                        .get(index as usize)
                        .is_some_and(|place| !place.is_cut(job.encoded));
                return Err(Cut { rows: part.top, reason: judged(error(reason), is_there) });
            }
        };
        let samples = Samples::new(&samples)?;
        write_part(&reader, &samples, 1, part, job)?;
    }
    Ok(())
}

/// Data that end early in a part that is there as a whole are damaged, not cut: where the part is
/// not wanted, that goes unnoticed.
fn judged(error: Error, is_there: bool) -> Error {
    match (error.kind(), error.offset()) {
        (ErrorKind::Truncated, offset) if is_there => {
            let damaged = Error::new(ErrorKind::Corrupt, error.message().to_owned());
            offset.map_or(damaged.clone(), |offset| damaged.with_offset(offset))
        }
        _ => error,
    }
}

/// Writes what the region has of a part of a page.
fn write_part(
    reader: &SampleReader,
    samples: &Samples<'_>,
    planes: usize,
    part: Rect,
    job: &mut Job<'_>,
) -> Result<()> {
    let Some(shared) = overlap(part, job.region) else { return Ok(()) };
    let rows = Rows::new(planes, part.size(), reader, samples)?;
    let columns = (shared.left - part.left) as usize..;
    let target =
        Rect { left: shared.left - job.region.left, top: shared.top - job.region.top, ..shared };
    let mut out = job.out.part_mut(target)?;
    for row in 0..shared.height {
        let y = (shared.top - part.top + row) as usize;
        let target = out.row_mut(row);
        if let Some((pixel, source)) = rows.plain(reader, y) {
            let columns = columns.start * pixel.bytes()..;
            pixel.copy_row(&source[columns][..shared.width as usize * pixel.bytes()], target);
            continue;
        }
        let (pixels, _) = target.as_chunks_mut::<CHANNELS>();
        for (x, pixel) in columns.clone().zip(pixels) {
            *pixel = reader.rgb(|channel| rows.sample(x, y, channel));
        }
    }
    Ok(())
}

/// Reads strips or tiles that are JPEG files but for their tables. Each must be as large as its
/// part of the page, so that all of them are no more work than the page's size allows.
#[cfg(feature = "jpeg")]
fn read_jpeg(
    decoder: &mut Reader<'_>,
    photometric: Option<u64>,
    is_old: bool,
    job: &mut Job<'_>,
) -> Result<(), Cut> {
    use crate::image::{DecodeRequest, ImageDecoder as _, OnTruncated, PixelsMut};

    job.limits.check_depth(2)?;
    let size = job.info.size;
    let (components, adobe) = match photometric {
        Some(WHITE_IS_ZERO | BLACK_IS_ZERO) => (1, AS_IT_IS),
        Some(RGB) => (3, AS_IT_IS),
        Some(INKS) if reads_cmyk(decoder)? => (4, AS_IT_IS),
        Some(YCBCR) => {
            if !Luma::read(decoder)?.is_usual() {
                return Err(unsupported("a JPEG in a TIFF of unusual luma and chroma").into());
            }
            (3, LUMA_AND_CHROMA)
        }
        _ => return Err(unsupported("a JPEG in a TIFF but of grey, RGB, YCbCr or CMYK").into()),
    };
    let planes = decoder.find_tag_unsigned::<u32>(Tag::PlanarConfiguration).map_err(error)?;
    if planes == Some(2) && components > 1 {
        return Err(unsupported("JPEG planes of a TIFF").into());
    }
    let (chunk_size, tags) = match (is_old, decoder.get_chunk_type()) {
        // The whole page is one file, from its first marker on.
        (true, _) => {
            let tags = (Tag::Unknown(JPEG_START), Tag::Unknown(JPEG_LENGTH));
            ((size.width, size.height), tags)
        }
        (false, ChunkType::Strip) => (decoder.chunk_dimensions(), STRIP_TAGS),
        (false, ChunkType::Tile) => (decoder.chunk_dimensions(), TILE_TAGS),
    };
    let places = chunks(decoder, tags)?;
    let tables = match decoder.find_tag(Tag::JPEGTables).map_err(error)? {
        Some(tables) if !is_old => tables.into_u8_vec().map_err(error)?,
        _ => Vec::new(),
    };
    let grid = Grid::new(size, chunk_size);
    if (places.len() as u64) < grid.parts() {
        return Err(failure::corrupt(Tiff::NAME, "fewer parts than the page needs").into());
    }
    if tables.len() > SPARE_BYTES {
        let message = format!("{} bytes of JPEG tables; expected a few hundred", tables.len());
        return Err(failure::corrupt(Tiff::NAME, message).into());
    }
    let longest = places.iter().map(|place| place.data(job.encoded).len()).max().unwrap_or(0);
    let mut stream = Vec::new();
    let bytes = (tables.len() + longest + ADOBE.len() + 1) as u64;
    reserve(&mut stream, bytes, job.limits, size)?;
    let mut jpeg = super::jpeg::decoder_of_tiff_parts(&job.limits.after(bytes, size)?);
    // Of all parts together; what fills up the last ones counts, too.
    let mut pixels = 0;
    for index in 0..grid.parts() as u32 {
        let (part, place) = (grid.part(index), &places[index as usize]);
        let data = place.data(job.encoded);
        let shared = overlap(part, job.region);
        if shared.is_none() && !job.exact && !place.is_cut(job.encoded) && ends_with_marker(data) {
            continue;
        }
        // Its own errors tell offsets that are not those of the file.
        let cut = |rows, error: Error| {
            let message = format!("part {index} of the TIFF: {}", error.message());
            let start = if error.kind() == ErrorKind::Truncated { data.len() } else { 0 };
            let offset = place.start.saturating_add(start as u64);
            let reason = Error::new(error.kind(), message).with_offset(offset);
            let is_there = !place.is_cut(job.encoded) && ends_with_marker(data);
            Cut { rows, reason: judged(reason, is_there) }
        };
        // Parts may lie over one another, and each is read by itself.
        let most = part.size().pixels() * BYTES_PER_PIXEL + SPARE_BYTES as u64;
        if grid.parts() > 1 && data.len() as u64 > most {
            let message = format!("{} bytes of JPEG in a part of {}", data.len(), part.size());
            return Err(cut(part.top, failure::corrupt(Tiff::NAME, message)));
        }
        stream.clear();
        stream.extend(ADOBE);
        stream.push(adobe);
        append_segments(&tables, &mut stream);
        let found = append_segments(data, &mut stream);
        if found.is_some_and(|found| found != components) {
            let message = format!("a JPEG of {found:?} components where {components} belong");
            return Err(cut(part.top, failure::corrupt(Tiff::NAME, message)));
        }
        let found = jpeg.inspect(&stream).map_err(|error| cut(part.top, error))?.size;
        // The last ones may be filled up to the size of the others.
        if !(part.width..=chunk_size.0).contains(&found.width)
            || !(part.height..=chunk_size.1).contains(&found.height)
        {
            let message = format!("a JPEG of {found} pixels in a part of {}", part.size());
            return Err(cut(part.top, failure::corrupt(Tiff::NAME, message)));
        }
        pixels += found.pixels();
        job.limits.check_pixels(pixels, size)?;
        let mut nowhere = [0; CHANNELS];
        let (inner, out) = match shared {
            Some(shared) => (
                Rect { left: shared.left - part.left, top: shared.top - part.top, ..shared },
                job.out.part_mut(Rect {
                    left: shared.left - job.region.left,
                    top: shared.top - job.region.top,
                    ..shared
                })?,
            ),
            None => {
                let corner = Rect { left: 0, top: 0, width: 1, height: 1 };
                (corner, PixelsMut::new(&mut nowhere, corner.size())?)
            }
        };
        let mut out = out;
        // Only where a part is as wide as the page are its rows rows of the page.
        let on_truncated = match grid.across {
            1 => job.on_truncated,
            _ => OnTruncated::Error,
        };
        let request =
            DecodeRequest::full().region(inner).exact(job.exact).on_truncated(on_truncated);
        let decoded = jpeg.decode_into(&stream, &request, out.reborrow());
        let decoded = decoded.map_err(|error| cut(part.top, error))?;
        if photometric == Some(WHITE_IS_ZERO) {
            for row in 0..inner.height {
                out.row_mut(row).iter_mut().for_each(|value| *value = !*value);
            }
        }
        if decoded.rows_valid < inner.height {
            let rows = part.top + inner.top + decoded.rows_valid;
            let error = Error::new(ErrorKind::Truncated, "the JPEG data end early");
            return Err(cut(rows, error));
        }
    }
    Ok(())
}

#[cfg(not(feature = "jpeg"))]
fn read_jpeg(_: &mut Reader<'_>, _: Option<u64>, _: bool, _: &mut Job<'_>) -> Result<(), Cut> {
    Err(unsupported("JPEG in a TIFF, which needs the feature `jpeg` of spdl-media").into())
}

/// More than a JPEG's tables and headers take within a TIFF.
#[cfg(feature = "jpeg")]
const SPARE_BYTES: usize = 1 << 14;
/// More than a pixel takes that is compressed by JPEG.
#[cfg(feature = "jpeg")]
const BYTES_PER_PIXEL: u64 = 16;

/// The start of a JPEG, and of Adobe's marker, whose last byte tells which colours follow.
#[cfg(feature = "jpeg")]
const ADOBE: &[u8] = b"\xFF\xD8\xFF\xEE\0\x0EAdobe\0\x64\0\0\0\0";
/// The last byte of Adobe's marker.
#[cfg(feature = "jpeg")]
const AS_IT_IS: u8 = 0;
#[cfg(feature = "jpeg")]
const LUMA_AND_CHROMA: u8 = 1;

/// Appends all markers of a JPEG and what follows the first scan's, but neither its start nor what
/// applications noted in it: which colours it holds is told by the TIFF alone. Of tables that end
/// with their own marker, that is left out, too. Says how many components its frame has.
#[cfg(feature = "jpeg")]
fn append_segments(jpeg: &[u8], stream: &mut Vec<u8>) -> Option<u8> {
    let mut components = None;
    let mut at = if jpeg.starts_with(b"\xFF\xD8") { 2 } else { 0 };
    while let Some(&[0xFF, marker, high, low]) = jpeg.get(at..).and_then(|rest| rest.first_chunk())
    {
        let end = at + 2 + usize::from(u16::from_be_bytes([high, low]));
        let Some(segment) = jpeg.get(at..end) else { break };
        match marker {
            0xDA => break,
            0xE0..=0xEF | 0xFE => {}
            0xFF => {
                // Bytes that fill up.
                at += 1;
                continue;
            }
            0xC0..=0xCF if !matches!(marker, 0xC4 | 0xC8 | 0xCC) => {
                components = segment.get(9).copied();
                stream.extend_from_slice(segment);
            }
            _ => stream.extend_from_slice(segment),
        }
        at = end;
    }
    let rest = jpeg.get(at..).unwrap_or_default();
    if rest != b"\xFF\xD9" {
        stream.extend_from_slice(rest);
    }
    components
}

/// Whether a page of inks is of cyan, magenta, yellow and black.
#[cfg(feature = "jpeg")]
fn reads_cmyk(decoder: &mut Reader<'_>) -> Result<bool> {
    const CMYK: u32 = 1;
    let set = decoder.find_tag_unsigned::<u32>(Tag::Unknown(INK_SET)).map_err(error)?;
    Ok(set.is_none_or(|set| set == CMYK))
}

/// Whether nothing can be missing of a JPEG.
#[cfg(feature = "jpeg")]
fn ends_with_marker(data: &[u8]) -> bool {
    let end = data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    data[..end].ends_with(b"\xFF\xD9")
}

/// The strips or tiles of a page, in rows; the last ones may reach beyond it.
struct Grid {
    page: Size,
    part: Size,
    across: u32,
    down: u32,
}

impl Grid {
    fn new(page: Size, (width, height): (u32, u32)) -> Self {
        let part = Size::new(width.max(1), height.max(1));
        let (across, down) = (page.width.div_ceil(part.width), page.height.div_ceil(part.height));
        Grid { page, part, across, down }
    }

    fn parts(&self) -> u64 {
        u64::from(self.across) * u64::from(self.down)
    }

    /// What a part holds of the page.
    fn part(&self, index: u32) -> Rect {
        let (left, top) =
            (index % self.across * self.part.width, index / self.across * self.part.height);
        let width = self.part.width.min(self.page.width - left);
        Rect { left, top, width, height: self.part.height.min(self.page.height - top) }
    }
}

/// What two parts of an image share.
fn overlap(one: Rect, other: Rect) -> Option<Rect> {
    let (left, top) = (one.left.max(other.left), one.top.max(other.top));
    let right = (one.left + one.width).min(other.left + other.width);
    let bottom = (one.top + one.height).min(other.top + other.height);
    (left < right && top < bottom).then(|| Rect {
        left,
        top,
        width: right - left,
        height: bottom - top,
    })
}

/// The tags that tell where parts start, and how long they are.
const STRIP_TAGS: (Tag, Tag) = (Tag::StripOffsets, Tag::StripByteCounts);
const TILE_TAGS: (Tag, Tag) = (Tag::TileOffsets, Tag::TileByteCounts);

/// Where a part of a page lies in the file.
struct Place {
    start: u64,
    length: u64,
}

impl Place {
    /// What of it is there.
    fn data<'a>(&self, encoded: &'a [u8]) -> &'a [u8] {
        let start = usize::try_from(self.start).unwrap_or(usize::MAX).min(encoded.len());
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        &encoded[start..start.saturating_add(length).min(encoded.len())]
    }

    fn is_cut(&self, encoded: &[u8]) -> bool {
        self.start.saturating_add(self.length) > encoded.len() as u64
    }
}

/// Parts of a file, by the tags that tell where they start and how long they are.
fn chunks(decoder: &mut Reader<'_>, (starts, lengths): (Tag, Tag)) -> Result<Vec<Place>> {
    let mut numbers = |tag| {
        let found = decoder.find_tag_unsigned_vec::<u64>(tag).map_err(error)?;
        found.ok_or_else(|| failure::corrupt(Tiff::NAME, format!("there is no tag {tag:?}")))
    };
    let (starts, lengths) = (numbers(starts)?, numbers(lengths)?);
    Ok(starts.into_iter().zip(lengths).map(|(start, length)| Place { start, length }).collect())
}

/// A file of which some bytes are read as others, and that goes on with zeros.
struct Patched<'a> {
    file: &'a [u8],
    /// Where, what, and how many bytes of it.
    patches: [Option<(usize, [u8; 4], usize)>; 2],
    zeros: usize,
    at: u64,
}

impl Read for Patched<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let end = self.file.len() + self.zeros;
        let start = usize::try_from(self.at).unwrap_or(usize::MAX).min(end);
        let count = target.len().min(end - start);
        let stored = &self.file[start.min(self.file.len())..];
        let stored = &stored[..stored.len().min(count)];
        let (from_file, zeros) = target[..count].split_at_mut(stored.len());
        from_file.copy_from_slice(stored);
        zeros.fill(0);
        for &(place, bytes, length) in self.patches.iter().flatten() {
            for (offset, &byte) in bytes[..length].iter().enumerate() {
                let at = (place + offset).checked_sub(start);
                if let Some(target) = at.and_then(|at| from_file.get_mut(at)) {
                    *target = byte;
                }
            }
        }
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Patched<'_> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        let moved = match position {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => ((self.file.len() + self.zeros) as u64).checked_add_signed(by),
        };
        self.at = moved.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// What is read of the first page's directory before the `tiff` crate reads it, which refuses some
/// that can be read.
#[derive(Default)]
struct Directory {
    is_little: bool,
    photometric: Option<u64>,
    /// Where that is told, in two bytes.
    photometric_at: usize,
    compression: Option<u64>,
    /// Where the length of the only strip is told, in four bytes, and how long it can be.
    strip: Option<(usize, u64)>,
    /// Whether the file ends with the directory, before the address of the next one.
    is_last: bool,
}

impl Directory {
    fn read(encoded: &[u8]) -> Option<Directory> {
        let little = encoded.first() == Some(&b'I');
        let number = |at: usize, bytes: usize| {
            let field = encoded.get(at..at.checked_add(bytes)?)?;
            let shift = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
            Some(match little {
                true => field.iter().rev().fold(0, shift),
                false => field.iter().fold(0, shift),
            })
        };
        let big = number(2, 2)? == 43;
        let (directory, count_bytes, entry_bytes) =
            if big { (number(8, 8)?, 8, 20) } else { (number(4, 4)?, 2, 12) };
        let directory = usize::try_from(directory).ok()?;
        let mut found = Directory { is_little: little, ..Directory::default() };
        let (mut start, mut length) = (None, None);
        let entries = number(directory, count_bytes)?;
        // More entries than the file could hold end the walk by themselves.
        for entry in 0..entries {
            let offset = usize::try_from(entry).ok()?.checked_mul(entry_bytes)?;
            let at = directory.checked_add(count_bytes)?.checked_add(offset)?;
            let value = at.checked_add(if big { 12 } else { 8 })?;
            let Some(tag) = number(at, 2) else { return Some(found) };
            let is = |name: Tag| tag == u64::from(name.to_u16());
            let is_one = !big && number(at + 4, 4) == Some(1);
            if is(Tag::PhotometricInterpretation) {
                (found.photometric, found.photometric_at) = (number(value, 2), value);
            } else if is(Tag::Compression) {
                found.compression = number(value, 2);
            } else if is_one && is(Tag::StripOffsets) && number(at + 2, 2) == Some(LONG) {
                start = number(value, 4);
            } else if is_one && is(Tag::StripByteCounts) && number(at + 2, 2) == Some(LONG) {
                length = number(value, 4).map(|length| (value, length));
            }
        }
        if let (Some(start), Some((at, length))) = (start, length) {
            let most = (encoded.len() as u64).saturating_sub(start);
            found.strip = (length > most).then_some((at, most));
        }
        let end = (entries as usize).checked_mul(entry_bytes)?.checked_add(directory + count_bytes);
        found.is_last = end == Some(encoded.len());
        Some(found)
    }

    fn compression(&self) -> Compression {
        match (self.compression, self.photometric) {
            (Some(2), _) => Compression::Ccitt(Ccitt::Runs),
            (Some(3), _) => Compression::Ccitt(Ccitt::Group3),
            (Some(4), _) => Compression::Ccitt(Ccitt::Group4),
            (Some(6), Some(YCBCR)) => Compression::Jpeg { is_old: true },
            (Some(7), _) => Compression::Jpeg { is_old: false },
            _ => Compression::Other,
        }
    }

    /// The file in such a form that the crate reads what we leave to it: indices into a palette, of
    /// which it knows nothing, are said to be grey, and are made colours here; and a strip is not
    /// longer than the file.
    fn readable<'a>(&self, file: &'a [u8]) -> Patched<'a> {
        let patch = |at: usize, value: u64, length: usize| {
            let [a, b, c, d, ..] = value.to_le_bytes();
            let mut bytes = [a, b, c, d];
            if !self.is_little {
                bytes[..length].reverse();
            }
            Some((at, bytes, length))
        };
        let grey = match self.photometric {
            Some(PALETTE) => patch(self.photometric_at, BLACK_IS_ZERO, 2),
            _ => None,
        };
        let strip = self.strip.and_then(|(at, most)| patch(at, most, 4));
        let zeros = if self.is_last { 8 } else { 0 };
        Patched { file, patches: [grey, strip], zeros, at: 0 }
    }
}

/// The type of a tag's value: a number of 32 bits.
const LONG: u64 = 4;
/// Values of the tag `PhotometricInterpretation`.
const WHITE_IS_ZERO: u64 = 0;
const BLACK_IS_ZERO: u64 = 1;
#[cfg(feature = "jpeg")]
const RGB: u64 = 2;
const PALETTE: u64 = 3;
/// Cyan, magenta, yellow and black, unless another tag says otherwise.
#[cfg(feature = "jpeg")]
const INKS: u64 = 5;
const YCBCR: u64 = 6;
/// Tags that the crate has no name for.
const T4_OPTIONS: u16 = 292;
#[cfg(feature = "jpeg")]
const INK_SET: u16 = 332;
const JPEG_START: u16 = 513;
#[cfg(feature = "jpeg")]
const JPEG_LENGTH: u16 = 514;
const LUMA_COEFFICIENTS: u16 = 529;
const REFERENCE_BLACK_WHITE: u16 = 532;
/// The value of the tag `ExtraSamples` where colours are multiplied by alpha.
const ASSOCIATED_ALPHA: u16 = 1;

/// What luma and chroma mean.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Luma {
    /// The parts that red, green and blue have in luma.
    parts: [f32; CHANNELS],
    /// Of luma and both differences: what is stored for none, and for all (of differences: for
    /// half of it, where all is from −½ to ½).
    range: [[f32; 2]; CHANNELS],
}

impl Luma {
    /// ITU-R BT.601, full range.
    const USUAL: Luma = Luma {
        parts: [0.299, 0.587, 0.114],
        range: [[0.0, 255.0], [128.0, 255.0], [128.0, 255.0]],
    };

    fn read(decoder: &mut Reader<'_>) -> Result<Luma> {
        let mut luma = Luma::USUAL;
        if let Some(parts) = numbers(decoder, LUMA_COEFFICIENTS)? {
            luma.parts = parts;
        }
        if let Some([a, b, c, d, e, f]) = numbers(decoder, REFERENCE_BLACK_WHITE)? {
            luma.range = [[a, b], [c, d], [e, f]];
        }
        let sound = luma.parts[1] != 0.0 && luma.range.iter().all(|[none, all]| none != all);
        match sound {
            true => Ok(luma),
            false => Err(failure::corrupt(Tiff::NAME, "luma and chroma that mean nothing")),
        }
    }

    /// Whether it is that of every JPEG. Fractions are stored with few digits.
    #[cfg(feature = "jpeg")]
    fn is_usual(&self) -> bool {
        let near = |a: &f32, b: &f32, most: f32| (a - b).abs() < most;
        let Luma { parts, range } = Luma::USUAL;
        self.parts.iter().zip(&parts).all(|(a, b)| near(a, b, 1e-3))
            && self.range.iter().flatten().zip(range.iter().flatten()).all(|(a, b)| near(a, b, 0.5))
    }

    /// The formulas of TIFF 6.0, section 21; as in libtiff, what is stored is made a whole number
    /// first.
    fn rgb(&self, stored: [u8; CHANNELS]) -> [u8; CHANNELS] {
        let scales = [255.0, 127.0, 127.0];
        let [y, cb, cr] = std::array::from_fn(|at| {
            let [none, all] = self.range[at];
            ((f32::from(stored[at]) - none) * scales[at] / (all - none)).trunc()
        });
        let [red_part, green_part, blue_part] = self.parts;
        let red = y + cr * (2.0 - 2.0 * red_part);
        let blue = y + cb * (2.0 - 2.0 * blue_part);
        let green = (y - red_part * red - blue_part * blue) / green_part;
        // A cast from a float saturates.
        [red, green, blue].map(|value| (value + 0.5).floor() as u8)
    }
}

/// The fractions that a tag holds; `None` where it is not there.
fn numbers<const N: usize>(decoder: &mut Reader<'_>, tag: u16) -> Result<Option<[f32; N]>> {
    let tag = Tag::from_u16_exhaustive(tag);
    let Some(Value::List(values)) = decoder.find_tag(tag).map_err(error)? else { return Ok(None) };
    let mut numbers = [0.0; N];
    if values.len() != N {
        let message = format!("{} values of the tag {tag:?}; expected {N}", values.len());
        return Err(failure::corrupt(Tiff::NAME, message));
    }
    for (number, value) in numbers.iter_mut().zip(values) {
        *number = match value {
            Value::Rational(above, below) if below > 0 => above as f32 / below as f32,
            Value::Float(value) if value.is_finite() => value,
            Value::Short(value) => f32::from(value),
            Value::Unsigned(value) => value as f32,
            other => {
                let message = format!("{other:?} is no value of the tag {tag:?}");
                return Err(failure::corrupt(Tiff::NAME, message));
            }
        };
    }
    Ok(Some(numbers))
}

/// What the samples of a pixel mean.
struct SampleReader {
    meaning: Meaning,
    bits: u8,
    channels: usize,
    /// The colours of a palette image.
    palette: Vec<[u8; CHANNELS]>,
    luma: Luma,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Grey,
    Palette,
    Rgb,
    /// Red, green and blue were multiplied by alpha, the fourth.
    RgbTimesAlpha,
    Cmyk,
    /// Luma and two colour differences.
    YCbCr,
}

impl SampleReader {
    fn new(decoder: &mut Reader<'_>, photometric: Option<u64>) -> Result<Self> {
        let has_palette = photometric == Some(PALETTE);
        let color = decoder.colortype().map_err(error)?;
        let bits = color.bit_depth();
        let channels = usize::from(color.num_samples());
        let whole = matches!(bits, 8 | 16);
        let meaning = match color {
            ColorType::Gray(1 | 2 | 4 | 8) if has_palette => Some(Meaning::Palette),
            ColorType::Gray(1 | 2 | 4 | 8 | 16 | 32) if !has_palette => Some(Meaning::Grey),
            // Grey, and something beside it that is not called alpha.
            ColorType::GrayA(_) | ColorType::Multiband { num_samples: 2, .. } if whole => {
                Some(Meaning::Grey)
            }
            ColorType::RGB(_) if whole => Some(Meaning::Rgb),
            ColorType::RGBA(_) if whole => {
                let extra = decoder.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples);
                match extra {
                    Ok(Some(extra)) if extra.first() == Some(&ASSOCIATED_ALPHA) => {
                        Some(Meaning::RgbTimesAlpha)
                    }
                    _ => Some(Meaning::Rgb),
                }
            }
            ColorType::YCbCr(8) => Some(Meaning::YCbCr),
            ColorType::CMYK(_) if whole => Some(Meaning::Cmyk),
            _ => None,
        };
        let Some(meaning) = meaning else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("TIFF pixels of the kind {color:?} are not supported"),
            ));
        };
        let palette = match meaning {
            Meaning::Palette => read_palette(decoder, bits)?,
            _ => Vec::new(),
        };
        let luma = match meaning {
            Meaning::YCbCr => Luma::read(decoder)?,
            _ => Luma::USUAL,
        };
        Ok(SampleReader { meaning, bits, channels, palette, luma })
    }

    /// A pixel from its samples, each 0 to 255 (a palette image's: the index).
    #[inline]
    fn rgb(&self, sample: impl Fn(usize) -> u8) -> [u8; CHANNELS] {
        match self.meaning {
            Meaning::Grey => [sample(0); CHANNELS],
            Meaning::Palette => {
                self.palette.get(usize::from(sample(0))).copied().unwrap_or_default()
            }
            Meaning::Rgb => [sample(0), sample(1), sample(2)],
            Meaning::RgbTimesAlpha => match u32::from(sample(3)) {
                0 => [0; CHANNELS],
                alpha => {
                    let divided = |value: u8| (u32::from(value) * 255 / alpha).min(255) as u8;
                    [divided(sample(0)), divided(sample(1)), divided(sample(2))]
                }
            },
            Meaning::YCbCr => self.luma.rgb([sample(0), sample(1), sample(2)]),
            Meaning::Cmyk => cmyk_to_rgb([sample(0), sample(1), sample(2), sample(3)]),
        }
    }
}

fn read_palette(decoder: &mut Reader<'_>, bits: u8) -> Result<Vec<[u8; CHANNELS]>> {
    let map = decoder.get_tag_u16_vec(Tag::ColorMap).map_err(error)?;
    let colors = 1 << bits;
    if map.len() != CHANNELS * colors {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("expected {} TIFF palette values, found {}", CHANNELS * colors, map.len()),
        ));
    }
    // All reds come first, then all greens, all blues; 16 bits each.
    let upper = |at: usize| (map[at] >> 8) as u8;
    Ok((0..colors).map(|at| [upper(at), upper(colors + at), upper(2 * colors + at)]).collect())
}

/// The samples of a page, reduced to 8 bits on access.
enum Samples<'a> {
    Bytes(&'a [u8]),
    SignedBytes(&'a [i8]),
    Words(&'a [u16]),
    Signed(&'a [i16]),
    Longs(&'a [u32]),
    SignedLongs(&'a [i32]),
    Floats(&'a [f32]),
}

impl<'a> Samples<'a> {
    fn new(result: &'a DecodingResult) -> Result<Self> {
        Ok(match result {
            DecodingResult::U8(samples) => Samples::Bytes(samples),
            DecodingResult::I8(samples) => Samples::SignedBytes(samples),
            DecodingResult::U16(samples) => Samples::Words(samples),
            DecodingResult::I16(samples) => Samples::Signed(samples),
            DecodingResult::U32(samples) => Samples::Longs(samples),
            DecodingResult::I32(samples) => Samples::SignedLongs(samples),
            DecodingResult::F32(samples) => Samples::Floats(samples),
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "TIFF samples of this width are not supported",
                ));
            }
        })
    }

    fn len(&self) -> usize {
        match self {
            Samples::Bytes(samples) => samples.len(),
            Samples::SignedBytes(samples) => samples.len(),
            Samples::Words(samples) => samples.len(),
            Samples::Signed(samples) => samples.len(),
            Samples::Longs(samples) => samples.len(),
            Samples::SignedLongs(samples) => samples.len(),
            Samples::Floats(samples) => samples.len(),
        }
    }
}

/// Where each sample lies.
struct Rows<'a> {
    samples: &'a Samples<'a>,
    bits: usize,
    /// From one row to the next: bytes where samples are packed, otherwise samples.
    row_stride: usize,
    /// From one pixel to the next.
    pixel_stride: usize,
    /// From one channel to the next.
    channel_stride: usize,
    /// Wide grey is cut at 255; colours keep their upper byte.
    saturates: bool,
}

impl<'a> Rows<'a> {
    fn new(
        planes: usize,
        size: Size,
        reader: &SampleReader,
        samples: &'a Samples<'a>,
    ) -> Result<Self> {
        let bits = usize::from(reader.bits);
        let width = size.width as usize;
        let planar = planes > 1;
        let channels = if planar { 1 } else { reader.channels };
        let row_stride =
            if bits < 8 { (width * channels * bits).div_ceil(8) } else { width * channels };
        let plane = row_stride * size.height as usize;
        let (pixel_stride, channel_stride) = if planar { (1, plane) } else { (channels, 1) };
        let needed = if planar { reader.channels } else { 1 };
        if samples.len() < plane * needed || (planar && planes < needed) {
            return Err(Error::new(
                ErrorKind::Truncated,
                format!("expected {} TIFF samples, found {}", plane * needed, samples.len()),
            ));
        }
        let saturates = reader.meaning == Meaning::Grey;
        Ok(Rows { samples, bits, row_stride, pixel_stride, channel_stride, saturates })
    }

    /// A row of bytes that need no more than to be copied.
    fn plain(&self, reader: &SampleReader, y: usize) -> Option<(Pixel, &'a [u8])> {
        let pixel = match reader.meaning {
            Meaning::Grey => Pixel::Grey(self.pixel_stride),
            Meaning::Rgb => Pixel::Rgb(self.pixel_stride),
            _ => return None,
        };
        match self.samples {
            Samples::Bytes(samples) if self.bits == 8 && self.channel_stride == 1 => {
                Some((pixel, &samples[y * self.row_stride..][..self.row_stride]))
            }
            _ => None,
        }
    }

    #[inline]
    fn sample(&self, x: usize, y: usize, channel: usize) -> u8 {
        if self.bits < 8 {
            return self.packed(x, y, channel);
        }
        let at = y * self.row_stride + x * self.pixel_stride + channel * self.channel_stride;
        match self.samples {
            Samples::Bytes(samples) => samples[at],
            // As everyone reads them: the sign is not looked at.
            Samples::SignedBytes(samples) => samples[at] as u8,
            Samples::Words(samples) if self.saturates => samples[at].min(255) as u8,
            Samples::Words(samples) => (samples[at] >> 8) as u8,
            Samples::Signed(samples) => samples[at].clamp(0, 255) as u8,
            Samples::Longs(samples) => samples[at].min(255) as u8,
            Samples::SignedLongs(samples) => samples[at].clamp(0, 255) as u8,
            // A cast from a float saturates, and cuts towards 0 as Pillow does.
            Samples::Floats(samples) => samples[at] as u8,
        }
    }

    /// A sample of 1, 2 or 4 bits (rows start at a byte), stretched to 0 to 255 where it is grey.
    fn packed(&self, x: usize, y: usize, channel: usize) -> u8 {
        let Samples::Bytes(bytes) = self.samples else { return 0 };
        let bit = (x * self.pixel_stride + channel) * self.bits;
        let byte = bytes[y * self.row_stride + bit / 8];
        let largest = (1u16 << self.bits) - 1;
        let value = u16::from(byte) >> (8 - self.bits - bit % 8) & largest;
        if self.saturates { (value * 255 / largest) as u8 } else { value as u8 }
    }
}

fn error(error: tiff::TiffError) -> Error {
    use tiff::TiffError::*;
    match error {
        IoError(error) => failure::read_error(Tiff::NAME, error),
        LimitsExceeded | IntSizeError => failure::limit_exceeded(Tiff::NAME),
        error @ UnsupportedError(_) => failure::unsupported(Tiff::NAME, error),
        error => failure::corrupt(Tiff::NAME, error),
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{what} is not supported"))
}
