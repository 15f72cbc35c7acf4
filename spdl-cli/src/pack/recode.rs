//! From the bytes of an image's file to those of its sample: the same, or encoded anew.

use bytes::Bytes;
use spdl_core::{Result, SampleRng};
use spdl_media::encode::{ImageEncoder, JpegEncoder, PngEncoder, WebpEncoder};
use spdl_media::{
    CodecRegistry, Crop, Decoder, FillImage, Image, ImageTransform, Limits, ResizeFilter, Sample,
    Size,
};

use super::arguments::{Format, PackArguments};

/// What images become; one per worker, as it keeps decoders.
pub(crate) struct Recoder {
    registry: CodecRegistry,
    limits: Limits,
    decoder: Decoder,
    max_side: Option<u32>,
    format: Option<Format>,
    quality: u8,
}

/// An image as it is written.
#[derive(Debug)]
pub(crate) struct Recoded {
    /// The name of its field.
    pub(crate) field: String,
    pub(crate) bytes: Bytes,
    /// Whether they are other bytes than those of the file.
    pub(crate) encoded: bool,
}

impl Recoder {
    pub(crate) fn new(arguments: &PackArguments) -> Self {
        let (registry, limits) = (CodecRegistry::with_defaults(), Limits::default());
        Recoder {
            decoder: Decoder::new(&registry, &limits),
            registry,
            limits,
            max_side: arguments.max_side,
            format: arguments.format,
            quality: arguments.quality(),
        }
    }

    /// Only the header is read of what goes over as it is. `rng` is there for what never draws.
    ///
    /// # Errors
    /// Those of decoding and encoding; `Unsupported` for what is no image.
    pub(crate) fn recode(
        &mut self,
        file: Bytes,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<Recoded> {
        let own = self.registry.find(&file)?.name();
        let size = self.decoder.inspect(&file)?.upright_size();
        let smaller = self.max_side.and_then(|most| fitted(size, most));
        let wanted = match (self.format, smaller) {
            (None, Some(_)) => "jpeg",
            (None | Some(Format::Keep), None) => own,
            (Some(Format::Keep), Some(_)) if ["jpeg", "webp"].contains(&own) => own,
            (Some(Format::Keep), Some(_)) => "png",
            (Some(Format::Jpeg), _) => "jpeg",
            (Some(Format::Png), _) => "png",
            (Some(Format::Webp), _) => "webp",
        };
        if wanted == own && smaller.is_none() {
            return Ok(Recoded { field: extension(own).to_owned(), bytes: file, encoded: false });
        }
        let image = match smaller {
            Some(size) => self.resized(&file, size, rng)?,
            None => self.decoder.decode_rgb(&file)?,
        };
        let bytes = match wanted {
            "png" => PngEncoder::new().encode_image(&image)?,
            "webp" => WebpEncoder::new().encode_image(&image)?,
            _ => JpegEncoder::new().quality(self.quality).encode_image(&image)?,
        };
        Ok(Recoded { field: extension(wanted).to_owned(), bytes: bytes.into(), encoded: true })
    }

    fn resized(&self, file: &[u8], size: Size, rng: impl FnOnce() -> SampleRng) -> Result<Image> {
        let transform = ImageTransform::with_size(size)
            .crop(Crop::Stretch)
            .filter(ResizeFilter::Bicubic)
            .exact(true);
        let mut fill = FillImage::new(&self.registry, &transform, &self.limits)?;
        let mut pixels = vec![0; size.pixels() as usize * 3];
        fill.write(file, Sample::U8(&mut pixels), rng)?;
        Ok(Image { size, pixels })
    }
}

/// The size in proportion whose longer side is `most`; `None` where the image is no larger.
fn fitted(size: Size, most: u32) -> Option<Size> {
    let longer = size.width.max(size.height);
    let scaled = |side: u32| {
        let (side, longer) = (u64::from(side), u64::from(longer));
        // Rounded; no larger than `most`, as `side` is no larger than `longer`.
        (((side * u64::from(most) * 2 + longer) / (longer * 2)) as u32).max(1)
    };
    (longer > most).then(|| Size::new(scaled(size.width), scaled(size.height)))
}

/// The usual ending of files of a format.
pub(crate) fn extension(format: &str) -> &str {
    match format {
        "jpeg" => "jpg",
        "tiff" => "tif",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_shrink_in_proportion_and_never_grow() {
        for ((width, height), most, expected) in [
            ((1000, 500), 512, Some((512, 256))),
            ((333, 1000), 500, Some((167, 500))),
            ((512, 512), 512, None),
            ((10, 20), 512, None),
            ((100_000, 1), 512, Some((512, 1))),
        ] {
            let expected = expected.map(|(width, height)| Size::new(width, height));
            assert_eq!(fitted(Size::new(width, height), most), expected);
        }
    }
}
