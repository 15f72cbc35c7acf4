//! Copies or encodes the image of a sample, and checks its audio and video.

use bytes::Bytes;
use spdl_core::{ErrorKind, Result};
use spdl_media::encode::{ImageEncoder, JpegEncoder, PngEncoder, WebpEncoder};
use spdl_media::{CodecRegistry, Decoder, Limits, Shrink};

use super::arguments::{OutputFormat, PackArguments};
use crate::datasets::extensions::MediaType;
use crate::datasets::sample_files::extension;
use crate::inspection::media::{CheckDepth, MediaChecker};

/// Copies, reduces and encodes images. Each worker has a separate `Recoder`, because it owns
/// decoder buffers.
pub(crate) struct Recoder {
    registry: CodecRegistry,
    decoder: Decoder,
    shrink: Option<Shrink>,
    format: Option<OutputFormat>,
    quality: u8,
    /// Whether files that are copied are also decoded, to find corrupt ones (`--check`).
    checks: bool,
    checker: MediaChecker,
}

/// The image of an output sample.
#[derive(Debug)]
pub(crate) struct Recoded {
    /// The usual file name extension of the image format.
    pub(crate) extension: String,
    pub(crate) bytes: Bytes,
    /// Whether the image was encoded, not copied.
    pub(crate) encoded: bool,
}

impl Recoder {
    /// Creates a `Recoder` for the given options.
    ///
    /// # Errors
    /// Errors of [`Shrink::to_longer_side`].
    pub(crate) fn new(arguments: &PackArguments) -> Result<Self> {
        let (registry, limits) = (CodecRegistry::with_defaults(), Limits::default());
        let shrink =
            arguments.max_side.map(|side| Shrink::to_longer_side(side, &registry, &limits));
        Ok(Recoder {
            decoder: Decoder::new(&registry, &limits),
            shrink: shrink.transpose()?,
            registry,
            format: arguments.format,
            quality: arguments.quality(),
            checks: arguments.check,
            checker: MediaChecker::new(),
        })
    }

    /// Checks an audio or video file that is copied: decodes it with `--check`, otherwise parses its
    /// header. Without `--check`, formats that this build cannot read are accepted.
    ///
    /// # Errors
    /// Errors of [`MediaChecker::check`].
    pub(crate) fn check_timed(&mut self, media: MediaType, file: &Bytes) -> Result<()> {
        let depth = if self.checks { CheckDepth::Decoded } else { CheckDepth::Headers };
        match self.checker.check(media, file, depth) {
            Err(error) if error.kind() == ErrorKind::Unsupported && !self.checks => Ok(()),
            checked => checked,
        }
    }

    /// Copies or encodes an image file. A copied image is decoded with `--check`; without it, only
    /// its header is parsed.
    ///
    /// # Errors
    /// Errors of decoding and encoding; `Unsupported` if the format is unknown.
    pub(crate) fn recode(&mut self, file: Bytes) -> Result<Recoded> {
        let own = self.registry.find(&file)?.name();
        let (is_too_large, shrink) = match &mut self.shrink {
            Some(shrink) => {
                let (from, to) = shrink.sizes(&file)?;
                (from != to, Some(shrink))
            }
            None => {
                self.decoder.inspect(&file)?;
                (false, None)
            }
        };
        let smaller = shrink.filter(|_| is_too_large);
        let wanted = match (self.format, &smaller) {
            (None, Some(_)) => "jpeg",
            (None | Some(OutputFormat::Keep), None) => own,
            (Some(OutputFormat::Keep), Some(_)) if ["jpeg", "webp"].contains(&own) => own,
            (Some(OutputFormat::Keep), Some(_)) => "png",
            (Some(OutputFormat::Jpeg), _) => "jpeg",
            (Some(OutputFormat::Png), _) => "png",
            (Some(OutputFormat::Webp), _) => "webp",
        };
        if wanted == own && smaller.is_none() {
            if self.checks {
                self.decoder.decode_rgb(&file)?;
            }
            let extension = extension(own).to_owned();
            return Ok(Recoded { extension, bytes: file, encoded: false });
        }
        let image = match smaller {
            Some(shrink) => shrink.image(&file)?,
            None => self.decoder.decode_rgb(&file)?,
        };
        let bytes = match wanted {
            "png" => PngEncoder::new().encode_image(&image)?,
            "webp" => WebpEncoder::new().encode_image(&image)?,
            _ => JpegEncoder::new().quality(self.quality).encode_image(&image)?,
        };
        Ok(Recoded { extension: extension(wanted).to_owned(), bytes: bytes.into(), encoded: true })
    }
}
