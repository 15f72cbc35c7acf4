//! Decoding with the codecs of a registry.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use spdl_core::{Error, ErrorKind, Result};

use super::codec::{DecodeRequest, Decoded, ImageDecoder, ImageInfo};
use super::geometry::{Orientation, Size};
use super::limits::{DecodeMemory, Limits};
use super::picture::Picture;
use super::pixels::{CHANNELS, PixelsMut};
use super::registry::CodecRegistry;
use super::rgba::{RgbaPicture, SampleDepth};

/// A decoded image: interleaved RGB, 8 bits per channel, no padding between rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Width and height.
    pub size: Size,
    /// `height` × `width` × 3 bytes.
    pub pixels: Vec<u8>,
}

/// Decodes images of every format of a registry.
///
/// Create one per worker: it keeps the decoder of each format, with its scratch memory. A panic
/// inside a decoder becomes an error of the kind `Panicked`; the next image uses a new decoder.
///
/// ```no_run
/// use spdl_media::{CodecRegistry, Decoder, Limits};
/// let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
/// let image = decoder.decode_rgb(&std::fs::read("photo.jpg")?)?;
/// assert_eq!(image.pixels.len() as u64, image.size.pixels() * 3);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct Decoder {
    registry: CodecRegistry,
    limits: Limits,
    /// The decoder of each codec of the registry, created on first use.
    decoders: Vec<Option<Box<dyn ImageDecoder>>>,
}

impl Decoder {
    /// A decoder for the formats of `registry`.
    pub fn new(registry: &CodecRegistry, limits: &Limits) -> Self {
        let decoders = (0..registry.len()).map(|_| None).collect();
        Decoder { registry: registry.clone(), limits: limits.clone(), decoders }
    }

    /// Parses the header only.
    ///
    /// # Errors
    /// `Unsupported` for an unknown format, and the errors of [`ImageDecoder::inspect`].
    pub fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        let info = self.with_decoder(encoded, |decoder| decoder.inspect(encoded))?;
        // Third-party codecs may forget these checks.
        self.limits.check_size(info.size)?;
        self.limits.check_ratio(encoded.len(), info.size)?;
        Ok(info)
    }

    /// Releases the scratch memory of all decoders if a decode needs too much of it to be kept.
    pub(crate) fn end_decode(&mut self, memory: DecodeMemory) {
        if memory.is_too_much_scratch(memory.bytes()) {
            self.decoders.iter_mut().for_each(|decoder| *decoder = None);
        }
    }

    /// The limits on images and memory.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Decodes into the caller's memory, without applying the orientation.
    ///
    /// # Errors
    /// `Unsupported` for an unknown format, and the errors of [`ImageDecoder::decode_into`].
    pub fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        // The image is at least as large as the requested region.
        self.limits.check_ratio(encoded.len(), out.size())?;
        self.with_decoder(encoded, |decoder| decoder.decode_into(encoded, request, out))
    }

    /// Decodes into planes, for resizing.
    ///
    /// # Errors
    /// The errors of [`decode_into`](Decoder::decode_into).
    pub fn decode_planes(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        picture: &mut Picture,
    ) -> Result<Decoded> {
        let decoded =
            self.with_decoder(encoded, |it| it.decode_planes(encoded, request, picture))?;
        // Third-party codecs may forget these checks.
        self.limits.check_size(picture.image())?;
        self.limits.check_ratio(encoded.len(), picture.image())?;
        let region = request.region_within(picture.image())?;
        if !picture.holds(region) {
            let message =
                format!("the decoder returned planes without the requested region {region:?}");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(decoded)
    }

    /// Decodes with alpha and up to 16 bits per channel, without applying the orientation.
    ///
    /// # Errors
    /// The errors of [`decode_into`](Decoder::decode_into).
    pub fn decode_rgba(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        depth: SampleDepth,
        picture: &mut RgbaPicture,
    ) -> Result<Decoded> {
        let info = self.inspect(encoded)?;
        let region = request.region_within(info.size)?;
        let bytes = region.size().pixels().saturating_mul(RgbaPicture::PIXEL_BYTES);
        self.limits.check_bytes(bytes, info.size)?;
        let decoded =
            self.with_decoder(encoded, |it| it.decode_rgba(encoded, request, depth, picture))?;
        // Third-party codecs may forget these checks.
        if picture.region() != region || decoded.size != region.size() {
            let message = format!("the decoder returned pixels of another region than {region:?}");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(decoded)
    }

    /// Decodes a whole image and applies its orientation.
    ///
    /// # Errors
    /// The errors of [`decode_into`](Decoder::decode_into).
    pub fn decode_rgb(&mut self, encoded: &[u8]) -> Result<Image> {
        let info = self.inspect(encoded)?;
        let stored = self.decode(encoded, info.size)?;
        apply_orientation(stored, info.orientation, &self.limits)
    }

    /// Decodes a whole image without applying its orientation.
    ///
    /// # Errors
    /// The errors of [`decode_into`](Decoder::decode_into).
    pub fn decode_stored(&mut self, encoded: &[u8]) -> Result<Image> {
        let size = self.inspect(encoded)?.size;
        self.decode(encoded, size)
    }

    fn decode(&mut self, encoded: &[u8], size: Size) -> Result<Image> {
        let mut pixels = allocate(size)?;
        let out = PixelsMut::new(&mut pixels, size)?;
        self.decode_into(encoded, &DecodeRequest::full(), out).map_err(contradicts_header)?;
        Ok(Image { size, pixels })
    }

    fn with_decoder<T>(
        &mut self,
        encoded: &[u8],
        call: impl FnOnce(&mut dyn ImageDecoder) -> Result<T>,
    ) -> Result<T> {
        let at = self.registry.position(encoded)?;
        let codec = self.registry.get(at);
        let slot = &mut self.decoders[at];
        // `AssertUnwindSafe` is correct, because a decoder that panicked is dropped with its state.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if slot.is_none() {
                *slot = Some(codec.decoder(&self.limits)?);
            }
            match slot {
                Some(decoder) => call(decoder.as_mut()),
                None => unreachable!("the decoder was created above"),
            }
        }));
        outcome.unwrap_or_else(|panic| {
            *slot = None;
            Err(panicked(&format!("{} decoder", codec.name()), panic.as_ref()))
        })
    }
}

/// The error for a caught panic of `what`.
pub(crate) fn panicked(what: &str, panic: &(dyn Any + Send)) -> Error {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)");
    Error::new(ErrorKind::Panicked, format!("the {what} panicked: {message}"))
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("registry", &self.registry)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Converts `InvalidArgument` errors of a request that was computed from the header of the file: then
/// the file contradicts its header.
pub(crate) fn contradicts_header(error: Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidArgument => {
            let message = format!("the image contradicts its header: {}", error.message());
            Error::new(ErrorKind::Corrupt, message)
        }
        _ => error,
    }
}

/// Zeroed memory for RGB pixels.
fn allocate(size: Size) -> Result<Vec<u8>> {
    let bytes = size.pixels() as usize * CHANNELS;
    // If an allocation of zeroed memory fails, the process aborts. This reservation reports the
    // failure instead, and touches no memory.
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| {
        let message = format!("cannot allocate {bytes} bytes for an image of {size} pixels");
        Error::new(ErrorKind::LimitExceeded, message)
    })?;
    Ok(vec![0; bytes])
}

/// Applies an orientation; in place unless rows and columns are exchanged.
fn apply_orientation(
    mut stored: Image,
    orientation: Orientation,
    limits: &Limits,
) -> Result<Image> {
    let (width, height) = (stored.size.width as usize, stored.size.height as usize);
    let row_bytes = width * CHANNELS;
    let (pixels, _) = stored.pixels.as_chunks_mut::<CHANNELS>();
    match orientation {
        Orientation::Upright => {}
        Orientation::FlippedHorizontally => pixels.chunks_exact_mut(width).for_each(<[_]>::reverse),
        Orientation::Rotated180 => pixels.reverse(),
        Orientation::FlippedVertically => {
            let (upper, lower) = stored.pixels.split_at_mut(height / 2 * row_bytes);
            let below = lower.chunks_exact_mut(row_bytes).rev();
            upper.chunks_exact_mut(row_bytes).zip(below).for_each(|(a, b)| a.swap_with_slice(b));
        }
        _ => return transpose(&stored, orientation, limits),
    }
    Ok(stored)
}

/// Applies an orientation that exchanges rows and columns, in tiles for cache locality.
fn transpose(stored: &Image, orientation: Orientation, limits: &Limits) -> Result<Image> {
    const TILE: usize = 32;
    let bytes = stored.pixels.len() as u64;
    limits.check_bytes(bytes.saturating_mul(2), stored.size)?;
    let size = orientation.apply(stored.size);
    let mut pixels = allocate(size)?;
    let (source, _) = stored.pixels.as_chunks::<CHANNELS>();
    let (target, _) = pixels.as_chunks_mut::<CHANNELS>();
    let stride = stored.size.width as usize;
    let (width, height) = (size.width as usize, size.height as usize);
    let at = |x: usize, y: usize| {
        let (x, y) = orientation.point_to_stored(x as u32, y as u32, stored.size);
        y as usize * stride + x as usize
    };
    for top in (0..height).step_by(TILE) {
        for left in (0..width).step_by(TILE) {
            let right = width.min(left + TILE);
            for y in top..height.min(top + TILE) {
                // A row of the result is a column of the stored image, read down or up.
                let (first, last) = (at(left, y), at(right - 1, y));
                let row = &mut target[y * width + left..y * width + right];
                if first <= last {
                    let column = source[first..].iter().step_by(stride);
                    row.iter_mut().zip(column).for_each(|(target, pixel)| *target = *pixel);
                } else {
                    let column = source[last..].iter().step_by(stride);
                    row.iter_mut().rev().zip(column).for_each(|(target, pixel)| *target = *pixel);
                }
            }
        }
    }
    Ok(Image { size, pixels })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_orientation_is_applied() {
        for (width, height) in [(1, 1), (1, 5), (7, 1), (37, 70), (64, 33), (6, 4)] {
            let size = Size::new(width, height);
            let pixels: Vec<u8> = (0..width * height * 3).map(|at| (at % 251) as u8).collect();
            for orientation in Orientation::ALL {
                let stored = Image { size, pixels: pixels.clone() };
                let turned = apply_orientation(stored, orientation, &Limits::default()).unwrap();
                assert_eq!(turned.size, orientation.apply(size));
                let found = turned.pixels.chunks(3);
                let places = (0..turned.size.height)
                    .flat_map(|y| (0..turned.size.width).map(move |x| (x, y)));
                for (found, (x, y)) in found.zip(places) {
                    let (column, row) = orientation.point_to_stored(x, y, size);
                    let at = ((row * width + column) * 3) as usize;
                    assert_eq!(found, &pixels[at..at + 3], "{orientation:?} {size}: {x}, {y}");
                }
            }
        }
    }

    #[test]
    fn exchanging_rows_and_columns_needs_twice_the_memory() {
        let size = Size::new(10, 20);
        let limits = Limits::default().max_bytes(10 * 20 * 3 * 2 - 1);
        let image = || Image { size, pixels: vec![0; 10 * 20 * 3] };
        for orientation in Orientation::ALL {
            let outcome = apply_orientation(image(), orientation, &limits);
            let kind = outcome.err().map(|error| error.kind());
            let expected = orientation.swaps_sides().then_some(ErrorKind::LimitExceeded);
            assert_eq!(kind, expected, "{orientation:?}");
        }
    }
}
