//! From the bytes of an image's file to those of its sample: the same, or encoded anew.

use bytes::Bytes;
use spdl_core::Result;
use spdl_media::encode::{ImageEncoder, JpegEncoder, PngEncoder, WebpEncoder};
use spdl_media::{CodecRegistry, Decoder, Limits, Shrink};

use super::arguments::{OutputFormat, PackArguments};
use crate::datasets::sample_files::extension;

/// What images become; one per worker, as it keeps decoders.
pub(crate) struct Recoder {
    registry: CodecRegistry,
    decoder: Decoder,
    shrink: Option<Shrink>,
    format: Option<OutputFormat>,
    quality: u8,
    /// Whether images that go over as they are are decoded, too.
    checks: bool,
}

/// An image as it is written.
#[derive(Debug)]
pub(crate) struct Recoded {
    /// The usual ending of files of its format.
    pub(crate) ending: String,
    pub(crate) bytes: Bytes,
    /// Whether they are other bytes than those of the file.
    pub(crate) encoded: bool,
}

impl Recoder {
    /// # Errors
    /// As [`Shrink::to_longer_side`].
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
        })
    }

    /// Only the header is read of what goes over as it is, unless it is to be checked.
    ///
    /// # Errors
    /// Those of decoding and encoding; `Unsupported` for what is no image.
    pub(crate) fn recode(&mut self, file: Bytes) -> Result<Recoded> {
        let own = self.registry.find(&file)?.name();
        let (is_to_shrink, max) = match &mut self.shrink {
            Some(shrink) => {
                let (from, to) = shrink.sizes(&file)?;
                (from != to, Some(shrink))
            }
            None => {
                self.decoder.inspect(&file)?;
                (false, None)
            }
        };
        let smaller = max.filter(|_| is_to_shrink);
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
            return Ok(Recoded { ending: extension(own).to_owned(), bytes: file, encoded: false });
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
        Ok(Recoded { ending: extension(wanted).to_owned(), bytes: bytes.into(), encoded: true })
    }
}
