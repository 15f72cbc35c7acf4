//! From the bytes of a file to RGB pixels, whatever the format.

use std::panic::{AssertUnwindSafe, catch_unwind};

use spdl_core::{Error, ErrorKind, Result};

use crate::pixels::CHANNELS;
use crate::{
    CodecRegistry, DecodeRequest, Decoded, ImageDecoder, ImageInfo, Limits, Orientation, Picture,
    PixelsMut, Size,
};

/// A decoded image: RGB, 8 bits, interleaved, rows without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Width and height.
    pub size: Size,
    /// `height` × `width` × 3 bytes.
    pub pixels: Vec<u8>,
}

/// Decodes images of all formats of a registry, one after another.
///
/// One per worker: it keeps the decoder of each format it has met, with its scratch memory. A panic
/// inside a decoder becomes an error of kind `Panicked`, and that decoder is made anew.
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
    /// The decoder of each codec of the registry, once needed.
    decoders: Vec<Option<Box<dyn ImageDecoder>>>,
}

impl Decoder {
    /// A decoder for the formats of `registry`.
    pub fn new(registry: &CodecRegistry, limits: &Limits) -> Self {
        let decoders = (0..registry.len()).map(|_| None).collect();
        Decoder { registry: registry.clone(), limits: limits.clone(), decoders }
    }

    /// Reads the header alone.
    ///
    /// # Errors
    /// `Unsupported` for an unknown format, and what [`ImageDecoder::inspect`] may answer.
    pub fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        let info = self.with_decoder(encoded, |decoder| decoder.inspect(encoded))?;
        // Codecs check it too, but those of others may forget.
        self.limits.check_size(info.size)?;
        self.limits.check_ratio(encoded.len(), info.size)?;
        Ok(info)
    }

    /// Decodes into the caller's memory, as stored: the orientation is not applied.
    ///
    /// # Errors
    /// `Unsupported` for an unknown format, and what [`ImageDecoder::decode_into`] may answer.
    pub fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        // The image is not smaller than what is wanted of it.
        self.limits.check_ratio(encoded.len(), out.size())?;
        self.with_decoder(encoded, |decoder| decoder.decode_into(encoded, request, out))
    }

    /// Decodes into planes that are to be resized.
    ///
    /// # Errors
    /// As [`decode_into`](Decoder::decode_into).
    pub fn decode_planes(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        picture: &mut Picture,
    ) -> Result<Decoded> {
        self.with_decoder(encoded, |decoder| decoder.decode_planes(encoded, request, picture))
    }

    /// Decodes a whole image, upright.
    ///
    /// # Errors
    /// As [`decode_into`](Decoder::decode_into).
    pub fn decode_rgb(&mut self, encoded: &[u8]) -> Result<Image> {
        let (stored, orientation) = self.decode(encoded)?;
        Ok(turn_upright(stored, orientation))
    }

    /// Decodes a whole image as it is stored, whatever its orientation.
    ///
    /// # Errors
    /// As [`decode_into`](Decoder::decode_into).
    pub fn decode_stored(&mut self, encoded: &[u8]) -> Result<Image> {
        self.decode(encoded).map(|(stored, _)| stored)
    }

    fn decode(&mut self, encoded: &[u8]) -> Result<(Image, Orientation)> {
        let info = self.inspect(encoded)?;
        let mut pixels = zeros(info.size)?;
        let out = PixelsMut::new(&mut pixels, info.size)?;
        self.decode_into(encoded, &DecodeRequest::full(), out)?;
        Ok((Image { size: info.size, pixels }, info.orientation))
    }

    fn with_decoder<T>(
        &mut self,
        encoded: &[u8],
        call: impl FnOnce(&mut dyn ImageDecoder) -> Result<T>,
    ) -> Result<T> {
        let at = self.registry.position(encoded)?;
        let codec = self.registry.get(at);
        let slot = &mut self.decoders[at];
        // A decoder that panicked is dropped with whatever state it was in, so nothing broken is
        // seen again: that is what `AssertUnwindSafe` asserts.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if slot.is_none() {
                *slot = Some(codec.decoder(&self.limits)?);
            }
            match slot {
                Some(decoder) => call(decoder.as_mut()),
                None => unreachable!("the decoder was made above"),
            }
        }));
        outcome.unwrap_or_else(|panic| {
            *slot = None;
            let message = panic
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("(no message)");
            Err(Error::new(
                ErrorKind::Panicked,
                format!("the {} decoder panicked: {message}", codec.name()),
            ))
        })
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("registry", &self.registry)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Memory for RGB pixels.
fn zeros(size: Size) -> Result<Vec<u8>> {
    let bytes = size.pixels() as usize * CHANNELS;
    // Zeroed memory can only be asked for by a call that aborts where there is none; so ask first,
    // which touches nothing.
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| {
        let message = format!("the system has no {bytes} bytes of memory for {size} pixels");
        Error::new(ErrorKind::LimitExceeded, message)
    })?;
    Ok(vec![0; bytes])
}

/// Decodes one image, upright, with all codecs of this build and default limits.
///
/// Many images decode faster with one [`Decoder`].
///
/// # Errors
/// As [`Decoder::decode_into`].
pub fn decode_rgb(encoded: &[u8]) -> Result<Image> {
    Decoder::new(&CodecRegistry::with_defaults(), &Limits::default()).decode_rgb(encoded)
}

fn turn_upright(stored: Image, orientation: Orientation) -> Image {
    if orientation == Orientation::Upright {
        return stored;
    }
    let size = orientation.apply(stored.size);
    let mut pixels = Vec::with_capacity(stored.pixels.len());
    for y in 0..size.height {
        for x in 0..size.width {
            let (x, y) = orientation.point_to_stored(x, y, stored.size);
            let at = (y as usize * stored.size.width as usize + x as usize) * CHANNELS;
            pixels.extend_from_slice(&stored.pixels[at..at + CHANNELS]);
        }
    }
    Image { size, pixels }
}
