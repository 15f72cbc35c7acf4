//! The first page of a TIFF, by the strips or tiles that intersect the region.
//!
//! The crate `tiff` parses the file and decompresses most chunks. CCITT and JPEG are decoded here:
//! the crate supports only a part of CCITT; it decodes JPEG without limits and invents missing
//! data.
//!
//! | file | content |
//! |---|---|
//! | `directory` | values of the first directory, and changes that make the crate accept the file |
//! | `chunks` | position and file range of strips and tiles |
//! | `samples`, `ycbcr` | conversion of decompressed samples to RGB |
//! | `ccitt` | the CCITT fax decoder |
//! | `jpeg` | strips and tiles that are JPEG streams |
//! | `tags`, `errors` | tag numbers, and errors |

mod ccitt;
mod chunks;
mod directory;
mod errors;
#[cfg(feature = "jpeg")]
mod jpeg;
mod samples;
mod tags;
mod ycbcr;

use spdl_core::{Error, ErrorKind, Result};
use tiff::decoder::{ChunkType, Decoder, DecodingResult, Limits as TiffLimits};
use tiff::tags::Tag;

use self::ccitt::{CcittError, CcittScheme};
use self::chunks::{ChunkGrid, STRIP_TAGS, TILE_TAGS, chunks, overlap};
use self::directory::{Ccitt, Compression, Directory, Reader};
use self::errors::{NAME, RowError, classify, convert_error, unsupported};
#[cfg(feature = "jpeg")]
use self::jpeg::read_jpeg;
use self::samples::{PixelReader, Samples, write_chunk};
use self::tags::{JPEG_START, T4_OPTIONS, WHITE_IS_ZERO};
use super::adapter::{DecodeJob, FormatReader, reserve};
use super::errors as format_errors;
use crate::image::{Decoded, ImageInfo, Limits, Orientation, Rect, Size};

/// TIFF, the first page.
#[derive(Default)]
pub(super) struct Tiff {
    /// The decompressed bits of a CCITT page.
    bilevel: Vec<u8>,
}

/// A file whose first directory was parsed.
pub(super) struct TiffFile<'a> {
    decoder: Reader<'a>,
    photometric: Option<u64>,
    compression: Compression,
}

impl FormatReader for Tiff {
    const NAME: &'static str = NAME;
    type File<'a> = TiffFile<'a>;

    fn sniff(head: &[u8]) -> bool {
        // Signatures of classic TIFF and BigTIFF, in both byte orders.
        [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|magic| head.starts_with(*magic))
    }

    fn open<'a>(encoded: &'a [u8], media_limits: &Limits) -> Result<(TiffFile<'a>, ImageInfo)> {
        let directory = Directory::read(encoded).unwrap_or_default();
        let photometric = directory.photometric;
        let compression = directory.compression();
        let bytes = usize::try_from(media_limits.bytes()).unwrap_or(usize::MAX);
        let mut limits = TiffLimits::default();
        limits.decoding_buffer_size = bytes;
        limits.intermediate_buffer_size = bytes;
        let encoded = directory.readable(encoded);
        let mut decoder = Decoder::new(encoded).map_err(convert_error)?.with_limits(limits);
        let (width, height) = decoder.dimensions().map_err(convert_error)?;
        let orientation = match decoder.find_tag_unsigned::<u16>(Tag::Orientation) {
            Ok(Some(number)) => Orientation::from_exif(number).unwrap_or_default(),
            Ok(None) | Err(_) => Orientation::Upright,
        };
        let info = ImageInfo::new(Size::new(width, height), orientation);
        Ok((TiffFile { decoder, photometric, compression }, info))
    }

    fn decode(&mut self, file: TiffFile<'_>, mut job: DecodeJob<'_>) -> Result<Decoded> {
        let TiffFile { mut decoder, photometric, compression } = file;
        let outcome = match compression {
            Compression::Other => read_chunks(&mut decoder, photometric, &mut job),
            Compression::Ccitt(kind) => self.read_ccitt(&mut decoder, kind, &mut job),
            Compression::Jpeg { is_old: true }
                if decoder.find_tag(Tag::Unknown(JPEG_START)).map_err(convert_error)?.is_none() =>
            {
                return Err(unsupported(
                    "old-style JPEG compression (6) with separate tables in TIFF",
                ));
            }
            Compression::Jpeg { is_old } => read_jpeg(&mut decoder, photometric, is_old, &mut job),
        };
        match outcome {
            Ok(()) => Ok(job.done()),
            Err(RowError { rows, error }) => job.truncated_after(rows, error),
        }
    }

    fn scratch_bytes(&self) -> usize {
        self.bilevel.capacity()
    }
}

impl Tiff {
    /// Decodes CCITT strips.
    fn read_ccitt(
        &mut self,
        decoder: &mut Reader<'_>,
        kind: Ccitt,
        job: &mut DecodeJob<'_>,
    ) -> Result<(), RowError> {
        let reader = PixelReader::new(decoder, None)?;
        if (reader.bits, reader.channels) != (1, 1) || decoder.get_chunk_type() != ChunkType::Strip
        {
            return Err(
                unsupported("CCITT compression other than of strips with 1 bit per pixel").into()
            );
        }
        let number = |decoder: &mut Reader<'_>, tag, default: u32| -> Result<u32> {
            Ok(decoder.find_tag_unsigned(tag).map_err(convert_error)?.unwrap_or(default))
        };
        let scheme = match kind {
            Ccitt::ModifiedHuffman => CcittScheme::ModifiedHuffman,
            Ccitt::Group3 => CcittScheme::Group3 {
                two_dimensional: number(decoder, Tag::Unknown(T4_OPTIONS), 0)? & 1 != 0,
            },
            Ccitt::Group4 => CcittScheme::Group4,
        };
        let lsb_first = number(decoder, Tag::FillOrder, 1)? == 2;
        let white_is_zero =
            u64::from(number(decoder, Tag::PhotometricInterpretation, 0)?) == WHITE_IS_ZERO;
        let Size { width, height } = job.info.size;
        let row_bytes = (width as usize).div_ceil(8);
        let strip_rows = decoder.chunk_dimensions().1 as usize;
        let strips = chunks(decoder, (Tag::StripOffsets, Tag::StripByteCounts))?;
        let samples = &mut self.bilevel;
        samples.clear();
        let bytes = row_bytes as u64 * u64::from(height);
        reserve(samples, bytes, job.limits, job.info.size)?;
        let parts = samples.chunks_mut(row_bytes.max(1).saturating_mul(strip_rows.max(1)));
        if parts.len() > strips.len() {
            return Err(
                format_errors::corrupt(NAME, "fewer strips than the image height needs").into()
            );
        }
        let mut cut = None;
        for (index, (rows, place)) in parts.zip(strips).enumerate() {
            let data = place.data(job.encoded);
            if let Err((row, error)) = ccitt::decode(data, lsb_first, scheme, width, rows) {
                let row = index * strip_rows + row;
                let (kind, what) = match error {
                    CcittError::EndOfData => {
                        (ErrorKind::Truncated, "truncated TIFF: the CCITT data end")
                    }
                    CcittError::InvalidCode => {
                        (ErrorKind::Corrupt, "corrupt TIFF: invalid CCITT code")
                    }
                };
                let message = format!("{what} after {row} of {height} rows");
                let end = place.start.saturating_add(data.len() as u64);
                let error = Error::new(kind, message).with_offset(end);
                if !job.may_be_partial(&error) {
                    return Err(error.into());
                }
                cut = Some(RowError { rows: row as u32, error });
                break;
            }
        }
        if white_is_zero {
            samples.iter_mut().for_each(|byte| *byte = !*byte);
        }
        write_chunk(&reader, &Samples::Bytes(samples), 1, Rect::full(job.info.size), job)?;
        cut.map_or(Ok(()), Err)
    }
}

/// Decodes the strips or tiles that intersect the region and that the crate decompresses.
fn read_chunks(
    decoder: &mut Reader<'_>,
    photometric: Option<u64>,
    job: &mut DecodeJob<'_>,
) -> Result<(), RowError> {
    let reader = PixelReader::new(decoder, photometric)?;
    let layout = decoder.image_buffer_layout().map_err(convert_error)?;
    let size = job.info.size;
    if layout.planes > 1 {
        // If planes are stored separately, every row needs samples from all parts of the file.
        job.limits.check_bytes(layout.complete_len as u64, size)?;
        let mut page = DecodingResult::U8(Vec::new());
        decoder.read_image_to_buffer(&mut page).map_err(convert_error)?;
        if page.as_buffer(0).byte_len() < layout.complete_len {
            return Err(format_errors::limit_exceeded(NAME).into());
        }
        let samples = Samples::new(&page)?;
        return Ok(write_chunk(&reader, &samples, layout.planes, Rect::full(size), job)?);
    }
    let (count, tags) = match decoder.get_chunk_type() {
        ChunkType::Strip => (decoder.strip_count(), STRIP_TAGS),
        ChunkType::Tile => (decoder.tile_count(), TILE_TAGS),
    };
    let count = count.map_err(convert_error)?;
    let grid = ChunkGrid::new(size, decoder.chunk_dimensions());
    if u64::from(count) < grid.count() {
        return Err(format_errors::corrupt(
            NAME,
            "fewer strips or tiles than the image size needs",
        )
        .into());
    }
    // Chunks outside the region are not decoded, only checked for truncation.
    let places = match job.region == Rect::full(size) {
        true => Vec::new(),
        false => chunks(decoder, tags)?,
    };
    for index in 0..grid.count() as u32 {
        let part = grid.part(index);
        let is_there =
            places.get(index as usize).is_some_and(|place| !place.is_truncated(job.encoded));
        if overlap(part, job.region).is_none() && is_there && !job.exact {
            continue;
        }
        let needed = decoder.image_chunk_buffer_layout(index).map_err(convert_error)?.len;
        job.limits.check_bytes(needed as u64, size)?;
        let samples = match decoder.read_chunk(index) {
            Ok(samples) => samples,
            Err(error) => {
                // A strip whose length was reduced to the file size is truncated as well.
                let is_clipped = decoder.inner().patches[1].is_some();
                let is_there = !is_clipped
                    && chunks(decoder, tags)?
                        .get(index as usize)
                        .is_some_and(|place| !place.is_truncated(job.encoded));
                return Err(RowError {
                    rows: part.top,
                    error: classify(convert_error(error), is_there),
                });
            }
        };
        let samples = Samples::new(&samples)?;
        write_chunk(&reader, &samples, 1, part, job)?;
    }
    Ok(())
}

#[cfg(not(feature = "jpeg"))]
fn read_jpeg(
    _: &mut Reader<'_>,
    _: Option<u64>,
    _: bool,
    _: &mut DecodeJob<'_>,
) -> Result<(), RowError> {
    Err(unsupported("JPEG in TIFF, which needs the cargo feature `jpeg` of spdl-media").into())
}
