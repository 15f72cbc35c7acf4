//! Strips and tiles that are JPEG streams.

use spdl_core::{Error, ErrorKind, Result};

use super::super::adapter::{DecodeJob, reserve};
use super::super::{errors, jpeg};
use super::chunks::{ChunkGrid, ChunkRange, Chunks, overlap};
use super::directory::Directory;
use super::errors::{NAME, RowError, classify, unsupported};
use super::tags::{BLACK_IS_ZERO, RGB, SEPARATED, Tag, WHITE_IS_ZERO, YCBCR};
use super::ycbcr::YCbCrCoefficients;
use crate::image::{CHANNELS, DecodeRequest, ImageDecoder as _, OnTruncated, PixelsMut, Rect};

/// Decodes strips or tiles that are JPEG streams, with shared tables. Each stream must have the
/// size of its chunk, so that the page size limits the total work.
pub(super) fn read_jpeg(
    directory: &Directory<'_>,
    is_old: bool,
    job: &mut DecodeJob<'_>,
) -> Result<(), RowError> {
    job.limits.check_depth(2)?;
    let size = job.info.size;
    let photometric = directory.number(Tag::PhotometricInterpretation)?;
    let (components, adobe) = match photometric {
        Some(WHITE_IS_ZERO | BLACK_IS_ZERO) => (1, NO_TRANSFORM),
        Some(RGB) => (3, NO_TRANSFORM),
        Some(SEPARATED) if is_cmyk(directory)? => (4, NO_TRANSFORM),
        Some(YCBCR) => {
            if !YCbCrCoefficients::read(directory)?.is_jpeg() {
                return Err(unsupported("JPEG with unusual YCbCr coefficients in TIFF").into());
            }
            (3, YCBCR_TRANSFORM)
        }
        _ => return Err(unsupported("JPEG other than grey, RGB, YCbCr or CMYK in TIFF").into()),
    };
    if directory.number(Tag::SamplesPerPixel)?.is_some_and(|samples| samples > components.into()) {
        return Err(unsupported("JPEG with alpha or other extra samples in TIFF").into());
    }
    if directory.number(Tag::PlanarConfiguration)? == Some(2) && components > 1 {
        return Err(unsupported("JPEG with separate planes in TIFF").into());
    }
    let (grid, places) = if is_old {
        // The whole page is one stream, from its SOI marker.
        let start = directory.required(Tag::JpegInterchangeFormat)?;
        let length = directory.required(Tag::JpegInterchangeFormatLength)?;
        (ChunkGrid::new(size, (size.width, size.height)), vec![ChunkRange { start, length }])
    } else {
        let chunks = Chunks::read(directory, size, 1)?;
        let ranges = (0..chunks.grid.count() as usize).map(|index| chunks.range(index));
        let ranges = ranges.collect::<Result<Vec<_>>>()?;
        (chunks.grid, ranges)
    };
    let chunk_size = grid.part;
    let tables = match directory.values(Tag::JpegTables)? {
        Some(tables) if !is_old => tables.bytes,
        _ => &[],
    };
    if tables.len() > MAX_HEADER_BYTES {
        let message = format!("{} bytes of JPEG tables exceed the limit of 16 KiB", tables.len());
        return Err(errors::corrupt(NAME, message).into());
    }
    let longest = places.iter().map(|place| place.data(job.encoded).len()).max().unwrap_or(0);
    let mut stream = Vec::new();
    let bytes = (tables.len() + longest + SOI_AND_ADOBE.len() + 1) as u64;
    reserve(&mut stream, bytes, job.limits, size)?;
    let mut jpeg = jpeg::decoder_of_tiff_parts(&job.limits.after(bytes, size)?);
    // The total over all chunks, with their padding.
    let mut pixels = 0;
    for index in 0..grid.count() as u32 {
        let (part, place) = (grid.part(index), &places[index as usize]);
        let data = place.data(job.encoded);
        let shared = overlap(part, job.region);
        if shared.is_none()
            && !job.exact
            && !place.is_truncated(job.encoded)
            && ends_with_marker(data)
        {
            continue;
        }
        // The error of a stream, with an offset into the file.
        let cut = |rows, error: Error| {
            let message = format!("strip or tile {index} of the TIFF: {}", error.message());
            let start = if error.kind() == ErrorKind::Truncated { data.len() } else { 0 };
            let offset = place.start.saturating_add(start as u64);
            let error = Error::new(error.kind(), message).with_offset(offset);
            let is_there = !place.is_truncated(job.encoded) && ends_with_marker(data);
            RowError { rows, error: classify(error, is_there) }
        };
        // Chunks may overlap in the file, and each one is decoded separately.
        let most = part.size().pixels() * MAX_BYTES_PER_PIXEL + MAX_HEADER_BYTES as u64;
        if grid.count() > 1 && data.len() as u64 > most {
            let message = format!(
                "{} bytes of JPEG are too many for a strip or tile of {} pixels",
                data.len(),
                part.size()
            );
            return Err(cut(part.top, errors::corrupt(NAME, message)));
        }
        stream.clear();
        stream.extend(SOI_AND_ADOBE);
        stream.push(adobe);
        append_segments(tables, &mut stream);
        if let Some(frame) = append_segments(data, &mut stream) {
            let found = frame.count;
            if found != components {
                let message = format!("JPEG with {found} components: expected {components}");
                return Err(cut(part.top, errors::corrupt(NAME, message)));
            }
            // libtiff repeats the chroma samples of these files, instead of interpolating them.
            if is_old && frame.is_subsampled {
                let message = "old-style JPEG with subsampled chroma in TIFF";
                return Err(cut(part.top, unsupported(message)));
            }
        }
        let found = jpeg.inspect(&stream).map_err(|error| cut(part.top, error))?.size;
        // The last chunks may be padded to the size of the others.
        if !(part.width..=chunk_size.width).contains(&found.width)
            || !(part.height..=chunk_size.height).contains(&found.height)
        {
            let message = format!(
                "JPEG size {found} does not match the strip or tile of {} pixels",
                part.size()
            );
            return Err(cut(part.top, errors::corrupt(NAME, message)));
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
        // Rows of a chunk count as rows of the page only if the chunk is as wide as the page.
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
            let error = Error::new(ErrorKind::Truncated, "truncated JPEG data");
            return Err(cut(rows, error));
        }
    }
    Ok(())
}

/// An upper bound of the JPEG tables and headers in a chunk, in bytes.
pub(super) const MAX_HEADER_BYTES: usize = 1 << 14;
/// An upper bound of JPEG bytes per pixel.
pub(super) const MAX_BYTES_PER_PIXEL: u64 = 16;

/// SOI and an Adobe APP14 marker without its last byte, the colour transform.
pub(super) const SOI_AND_ADOBE: &[u8] = b"\xFF\xD8\xFF\xEE\0\x0EAdobe\0\x64\0\0\0\0";
/// Value of the colour transform in the Adobe marker: components are stored without a transform.
pub(super) const NO_TRANSFORM: u8 = 0;
pub(super) const YCBCR_TRANSFORM: u8 = 1;

/// The components in the frame header of a JPEG stream.
pub(super) struct FrameComponents {
    count: u8,
    /// Whether they have different sampling factors.
    is_subsampled: bool,
}

/// Appends the segments of a JPEG stream up to its first SOS header, and the data after it, without
/// SOI, APP and COM markers: only the TIFF tags define the colour space. The EOI marker of a stream
/// with only tables is dropped as well. Returns what the frame header contains.
pub(super) fn append_segments(jpeg: &[u8], stream: &mut Vec<u8>) -> Option<FrameComponents> {
    let mut frame = None;
    let mut at = if jpeg.starts_with(b"\xFF\xD8") { 2 } else { 0 };
    while let Some(&[0xFF, marker, high, low]) = jpeg.get(at..).and_then(|rest| rest.first_chunk())
    {
        let end = at + 2 + usize::from(u16::from_be_bytes([high, low]));
        let Some(segment) = jpeg.get(at..end) else { break };
        match marker {
            0xDA => break,
            0xE0..=0xEF | 0xFE => {}
            0xFF => {
                // Skip fill bytes.
                at += 1;
                continue;
            }
            0xC0..=0xCF if !matches!(marker, 0xC4 | 0xC8 | 0xCC) => {
                frame = segment.get(9).map(|&count| {
                    // Per component: identifier, sampling factors, quantisation table.
                    let factors = segment[10..].iter().skip(1).step_by(3);
                    let is_subsampled =
                        factors.clone().any(|&it| Some(it) != segment.get(11).copied());
                    FrameComponents { count, is_subsampled }
                });
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
    frame
}

/// Whether the inks of a page with separated inks are CMYK.
fn is_cmyk(directory: &Directory<'_>) -> Result<bool> {
    const CMYK: u64 = 1;
    Ok(directory.number(Tag::InkSet)?.is_none_or(|set| set == CMYK))
}

/// Whether a JPEG stream ends with an EOI marker, ignoring trailing zero bytes. If not, the stream
/// is truncated.
pub(super) fn ends_with_marker(data: &[u8]) -> bool {
    let end = data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    data[..end].ends_with(b"\xFF\xD9")
}
