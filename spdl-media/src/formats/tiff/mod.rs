//! The first page of a TIFF, by the strips or tiles that intersect the region.
//!
//! | file | content |
//! |---|---|
//! | `directory` | the fields of the first directory |
//! | `chunks` | position and file range of strips and tiles |
//! | `decompress` | PackBits, LZW, Deflate, and predictors |
//! | `samples`, `ycbcr` | conversion of decompressed samples to RGB |
//! | `ccitt` | the CCITT fax decoder |
//! | `jpeg` | strips and tiles that are JPEG streams |
//! | `tags`, `errors` | tag numbers, and errors |

mod ccitt;
mod chunks;
mod decompress;
mod directory;
mod errors;
#[cfg(feature = "jpeg")]
mod jpeg;
mod samples;
mod tags;
mod ycbcr;

use spdl_core::{Error, ErrorKind, Result};

use self::ccitt::{CcittError, CcittScheme};
use self::chunks::{ChunkRange, Chunks, overlap};
use self::decompress::{ByteCompression, Decompressor, Predictor};
use self::directory::Directory;
use self::errors::{NAME, RowError, classify, unsupported};
#[cfg(feature = "jpeg")]
use self::jpeg::read_jpeg;
use self::samples::{PixelLayoutTags, PixelReader, SampleRows};
use self::tags::{BLACK_IS_ZERO, Tag, WHITE_IS_ZERO, YCBCR};
use super::adapter::{DecodeJob, FormatReader, reserve};
use super::errors as format_errors;
use crate::image::{Decoded, ImageInfo, Limits, Orientation, Rect, Size};

/// TIFF, the first page.
#[derive(Default)]
pub(super) struct Tiff {
    /// The decompressed samples of a chunk, or the bits of a CCITT page.
    samples: Vec<u8>,
    /// The data of a chunk with reversed bits, or a row of the float predictor.
    scratch: Vec<u8>,
}

/// A file whose first directory was parsed.
pub(super) struct TiffFile<'a>(Directory<'a>);

/// The compression of the strips or tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Bytes(ByteCompression),
    Ccitt(CcittScheme),
    Jpeg { is_old: bool },
}

impl Compression {
    fn read(directory: &Directory<'_>) -> Result<Compression> {
        let number = directory.number(Tag::Compression)?.unwrap_or(1);
        Ok(match number {
            1 => Compression::Bytes(ByteCompression::None),
            2 => Compression::Ccitt(CcittScheme::ModifiedHuffman),
            3 => {
                let options = directory.number(Tag::T4Options)?.unwrap_or(0);
                Compression::Ccitt(CcittScheme::Group3 { two_dimensional: options & 1 != 0 })
            }
            4 => Compression::Ccitt(CcittScheme::Group4),
            5 => Compression::Bytes(ByteCompression::Lzw),
            6 if directory.number(Tag::PhotometricInterpretation)? == Some(YCBCR) => {
                Compression::Jpeg { is_old: true }
            }
            7 => Compression::Jpeg { is_old: false },
            8 | 32946 => Compression::Bytes(ByteCompression::Deflate),
            32773 => Compression::Bytes(ByteCompression::PackBits),
            other => return Err(unsupported(&format!("TIFF with compression {other}"))),
        })
    }
}

impl FormatReader for Tiff {
    const NAME: &'static str = NAME;
    type File<'a> = TiffFile<'a>;

    fn sniff(head: &[u8]) -> bool {
        // Signatures of classic TIFF and BigTIFF, in both byte orders.
        [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|magic| head.starts_with(*magic))
    }

    fn open<'a>(encoded: &'a [u8], _: &Limits) -> Result<(TiffFile<'a>, ImageInfo)> {
        let directory = Directory::read(encoded)?;
        let side = |tag| -> Result<u32> {
            let side = directory.required(tag)?;
            u32::try_from(side).map_err(|_| {
                format_errors::corrupt(NAME, format!("invalid value {side} of tag {tag:?}"))
            })
        };
        let size = Size::new(side(Tag::ImageWidth)?, side(Tag::ImageLength)?);
        let orientation = directory.number(Tag::Orientation)?;
        let orientation = orientation
            .and_then(|number| u16::try_from(number).ok())
            .and_then(Orientation::from_exif);
        Ok((TiffFile(directory), ImageInfo::new(size, orientation.unwrap_or_default())))
    }

    fn decode(&mut self, file: TiffFile<'_>, mut job: DecodeJob<'_>) -> Result<Decoded> {
        let TiffFile(directory) = file;
        let outcome = match Compression::read(&directory)? {
            Compression::Bytes(compression) => self.read_bytes(&directory, compression, &mut job),
            Compression::Ccitt(scheme) => self.read_ccitt(&directory, scheme, &mut job),
            Compression::Jpeg { is_old: true }
                if directory.number(Tag::JpegInterchangeFormat)?.is_none() =>
            {
                return Err(unsupported(
                    "old-style JPEG compression (6) with separate tables in TIFF",
                ));
            }
            Compression::Jpeg { is_old } => read_jpeg(&directory, is_old, &mut job),
        };
        match outcome {
            Ok(()) => Ok(job.done()),
            Err(RowError { rows, error }) => job.truncated_after(rows, error),
        }
    }

    fn scratch_bytes(&self) -> usize {
        self.samples.capacity() + self.scratch.capacity()
    }
}

/// Whether the bits of each byte are stored in reverse order.
fn has_reversed_bits(directory: &Directory<'_>) -> Result<bool> {
    Ok(directory.number(Tag::FillOrder)? == Some(2))
}

impl Tiff {
    /// Decodes CCITT strips.
    fn read_ccitt(
        &mut self,
        directory: &Directory<'_>,
        scheme: CcittScheme,
        job: &mut DecodeJob<'_>,
    ) -> Result<(), RowError> {
        let layout = PixelLayoutTags::read(directory)?;
        let chunks = Chunks::read(directory, job.info.size, layout.planes() as u64)?;
        let photometric = directory.number(Tag::PhotometricInterpretation)?;
        if !matches!(photometric, Some(WHITE_IS_ZERO | BLACK_IS_ZERO))
            || (layout.bits, layout.channels) != (1, 1)
            || chunks.is_tiled
        {
            let what = "CCITT compression other than of strips with 1 bit per pixel in TIFF";
            return Err(unsupported(what).into());
        }
        let reader = PixelReader::new(directory, layout)?.keeping_alpha(false);
        let lsb_first = has_reversed_bits(directory)?;
        let Size { width, height } = job.info.size;
        let row_bytes = layout.row_bytes(width);
        let strip_rows = chunks.grid.part.height as usize;
        let bytes = row_bytes * u64::from(height);
        self.samples.clear();
        reserve(&mut self.samples, bytes, job.limits, job.info.size)?;
        let mut cut = None;
        let parts = self.samples.chunks_mut((row_bytes as usize).saturating_mul(strip_rows).max(1));
        for (index, rows) in parts.enumerate() {
            let place = chunks.range(index)?;
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
        // The byte order has no influence on packed bits.
        SampleRows::new(&reader, &self.samples, false, row_bytes as usize, height as usize)?
            .write(&reader, Rect::full(job.info.size), job)?;
        cut.map_or(Ok(()), Err)
    }

    /// Decodes the strips or tiles that intersect the region, of the compressions that yield bytes.
    fn read_bytes(
        &mut self,
        directory: &Directory<'_>,
        compression: ByteCompression,
        job: &mut DecodeJob<'_>,
    ) -> Result<(), RowError> {
        let layout = PixelLayoutTags::read(directory)?;
        let reader = PixelReader::new(directory, layout)?.keeping_alpha(job.rgba.is_some());
        let size = job.info.size;
        let chunks = Chunks::read(directory, size, layout.planes() as u64)?;
        let needed = chunks.grid.count().saturating_mul(layout.planes() as u64);
        // Pillow reads the last chunks of uncompressed files, libtiff the first.
        if compression == ByteCompression::None && chunks.offsets() as u64 > needed {
            let message = format!(
                "{} offsets of strips or tiles: the image size needs {needed}",
                chunks.offsets()
            );
            return Err(format_errors::corrupt(NAME, message).into());
        }
        let predictor = read_predictor(directory, compression, &layout)?;
        let reverses = has_reversed_bits(directory)?;
        let is_little = directory.is_little();
        let planes = if layout.is_planar { reader.used_channels() } else { 1 };
        let row_bytes = layout.row_bytes(chunks.grid.part.width);
        let mut decompressor = Decompressor::default();
        for index in 0..chunks.grid.count() as u32 {
            let part = chunks.grid.part(index);
            let plane_bytes = row_bytes.saturating_mul(part.height.into());
            let range = |plane: usize| -> Result<ChunkRange> {
                let index = plane as u64 * chunks.grid.count() + u64::from(index);
                let range = chunks.range(index as usize)?;
                // Other decoders read uncompressed samples regardless of the stored length.
                Ok(match compression {
                    ByteCompression::None => ChunkRange { length: plane_bytes, ..range },
                    _ => range,
                })
            };
            let mut is_there = true;
            for plane in 0..planes {
                is_there &= !range(plane)?.is_truncated(job.encoded);
            }
            // Chunks outside the region are not decoded, only checked for truncation.
            if overlap(part, job.region).is_none() && is_there && !job.exact {
                continue;
            }
            let mut rows = part.height as usize;
            let samples = match range(0)?.data(job.encoded) {
                data if compression == ByteCompression::None
                    && !reverses
                    && planes == 1
                    && is_there =>
                {
                    data
                }
                _ => {
                    let bytes = plane_bytes.saturating_mul(planes as u64);
                    reserve(&mut self.samples, bytes, job.limits, size)?;
                    let limits = job.limits.after(bytes, size)?;
                    let places = self.samples.chunks_exact_mut((plane_bytes as usize).max(1));
                    for (plane, place) in places.enumerate() {
                        let mut data = range(plane)?.data(job.encoded);
                        // No valid data are longer. Chunks may overlap in the file.
                        data = &data[..data.len().min(4 * place.len() + (1 << 12))];
                        if reverses {
                            reserve(&mut self.scratch, data.len() as u64, &limits, size)?;
                            let reversed = data.iter().map(|byte| byte.reverse_bits());
                            self.scratch.iter_mut().zip(reversed).for_each(|(a, b)| *a = b);
                            data = &self.scratch;
                        }
                        let written =
                            decompressor.run(compression, data, place).map_err(|error| {
                                let offset = range(plane).map_or(0, |range| range.start);
                                RowError { rows: part.top, error: error.with_offset(offset) }
                            })?;
                        rows = rows.min(written / (row_bytes as usize).max(1));
                        for row in place.chunks_exact_mut((row_bytes as usize).max(1)).take(rows) {
                            predictor.restore(
                                row,
                                layout.bits,
                                layout.plane_channels(),
                                is_little,
                                &mut self.scratch,
                            );
                        }
                    }
                    &self.samples
                }
            };
            let complete = rows == part.height as usize;
            let across = chunks.grid.across;
            let rows_bytes = row_bytes as usize;
            SampleRows::new(&reader, samples, is_little, rows_bytes, part.height as usize)?.write(
                &reader,
                Rect { height: rows as u32, ..part },
                job,
            )?;
            if !complete {
                let message = format!(
                    "truncated TIFF: the data of strip or tile {index} end after {rows} of {} rows",
                    part.height
                );
                let error = Error::new(ErrorKind::Truncated, message);
                // Rows of a chunk count as rows of the page only if the chunk is as wide as the page.
                let rows = part.top + if across == 1 { rows as u32 } else { 0 };
                return Err(RowError { rows, error: classify(error, is_there) });
            }
        }
        Ok(())
    }
}

/// The predictor of the samples, if its combination with the samples is valid.
fn read_predictor(
    directory: &Directory<'_>,
    compression: ByteCompression,
    layout: &PixelLayoutTags,
) -> Result<Predictor> {
    if !compression.has_predictor() {
        return Ok(Predictor::None);
    }
    match (directory.number(Tag::Predictor)?.unwrap_or(1), layout.bits) {
        (1, _) => Ok(Predictor::None),
        (2, 8 | 16 | 32) => Ok(Predictor::Horizontal),
        (3, 32) if layout.is_float() => Ok(Predictor::Float),
        (number, bits) => {
            Err(unsupported(&format!("TIFF with predictor {number} and {bits} bits per sample")))
        }
    }
}

#[cfg(not(feature = "jpeg"))]
fn read_jpeg(_: &Directory<'_>, _: bool, _: &mut DecodeJob<'_>) -> Result<(), RowError> {
    Err(unsupported("JPEG in TIFF, which needs the cargo feature `jpeg` of spdl-media").into())
}
