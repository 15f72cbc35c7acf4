//! Formats that are rare in data sets, by the crate `image`.
//!
//! The pixels are those of the crate's `to_rgb8`: alpha is dropped, grey is repeated in three
//! channels, 16 bits are scaled to 8, and floats are clamped to 0 to 1 and scaled to 0 to 255.

use std::io::Cursor;
use std::marker::PhantomData;

use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader};
use spdl_core::{Error, Result};

use super::adapter::{DecodeJob, FormatReader};
use super::convert::PixelLayout;
use super::errors;
use crate::image::{Decoded, ImageInfo, Limits, Orientation, Size};

/// A format of the crate `image`.
pub(super) trait ImageCrateKind: Send + 'static {
    const NAME: &'static str;
    const FORMAT: ImageFormat;
    /// Whether files of this format contain files of other formats.
    const NESTS: bool = false;

    fn sniff(head: &[u8]) -> bool;
}

/// The reader of an [`ImageCrateKind`].
pub(super) struct ImageCrateFormat<K>(PhantomData<fn() -> K>);

impl<K> Default for ImageCrateFormat<K> {
    fn default() -> Self {
        ImageCrateFormat(PhantomData)
    }
}

impl<K: ImageCrateKind> FormatReader for ImageCrateFormat<K> {
    const NAME: &'static str = K::NAME;
    type File<'a> = Box<dyn ImageDecoder + 'a>;

    fn sniff(head: &[u8]) -> bool {
        K::sniff(head)
    }

    fn open<'a>(encoded: &'a [u8], media_limits: &Limits) -> Result<(Self::File<'a>, ImageInfo)> {
        media_limits.check_depth(1 + u32::from(K::NESTS))?;
        let mut limits = image::Limits::no_limits();
        limits.max_alloc = Some(media_limits.bytes());
        let mut reader = ImageReader::with_format(Cursor::new(encoded), K::FORMAT);
        reader.limits(limits);
        let decoder = reader.into_decoder().map_err(|reason| error(K::NAME, reason))?;
        let (width, height) = decoder.dimensions();
        let info = ImageInfo::new(Size::new(width, height), Orientation::Upright);
        Ok((Box::new(decoder), info))
    }

    fn decode(&mut self, decoder: Self::File<'_>, job: DecodeJob<'_>) -> Result<Decoded> {
        let size = job.info.size;
        let bytes = size.pixels() * PixelLayout::Rgb(3).bytes() as u64;
        job.limits.check_bytes(decoder.total_bytes().saturating_add(bytes), size)?;
        let image = DynamicImage::from_decoder(decoder).map_err(|reason| error(K::NAME, reason))?;
        let image = image.into_rgb8();
        if image.dimensions() != (size.width, size.height) {
            let found = image.dimensions();
            return Err(errors::corrupt(
                K::NAME,
                format!("decoded size {found:?} differs from the header's {size}"),
            ));
        }
        let decoded = job.done();
        PixelLayout::Rgb(3).copy_region(image.as_raw(), size, job.region, job.out);
        Ok(decoded)
    }
}

fn error(name: &str, error: ImageError) -> Error {
    match error {
        ImageError::IoError(error) => errors::read_error(name, error),
        ImageError::Limits(_) => errors::limit_exceeded(name),
        error @ ImageError::Unsupported(_) => errors::unsupported(name, error),
        error => errors::corrupt(name, error),
    }
}

/// OpenEXR.
#[cfg(feature = "exr")]
pub(super) struct Exr;

#[cfg(feature = "exr")]
impl ImageCrateKind for Exr {
    const NAME: &'static str = "exr";
    const FORMAT: ImageFormat = ImageFormat::OpenExr;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(&[0x76, 0x2F, 0x31, 0x01])
    }
}

#[cfg(feature = "more-formats")]
pub(super) use more::{Dds, Farbfeld, Hdr, Ico, Pnm, Qoi, Tga};

#[cfg(feature = "more-formats")]
mod more {
    use image::ImageFormat;

    use super::ImageCrateKind;

    /// Netpbm: PBM, PGM, PPM and PAM.
    pub(in super::super) struct Pnm;

    impl ImageCrateKind for Pnm {
        const NAME: &'static str = "pnm";
        const FORMAT: ImageFormat = ImageFormat::Pnm;

        fn sniff(head: &[u8]) -> bool {
            matches!(head, [b'P', b'1'..=b'7', separator, ..] if separator.is_ascii_whitespace())
        }
    }

    /// QOI, the Quite OK Image format.
    pub(in super::super) struct Qoi;

    impl ImageCrateKind for Qoi {
        const NAME: &'static str = "qoi";
        const FORMAT: ImageFormat = ImageFormat::Qoi;

        fn sniff(head: &[u8]) -> bool {
            head.starts_with(b"qoif")
        }
    }

    /// Truevision TGA. The format has no signature, so a file is recognised if its whole header is
    /// plausible.
    pub(in super::super) struct Tga;

    impl ImageCrateKind for Tga {
        const NAME: &'static str = "tga";
        const FORMAT: ImageFormat = ImageFormat::Tga;

        fn sniff(head: &[u8]) -> bool {
            let &[_, palette, kind, .., w0, w1, h0, h1, bits, flags] =
                head.get(..18).unwrap_or(&[])
            else {
                return false;
            };
            let matching = match (kind, palette) {
                (1 | 9, 1) => bits == 8,
                (2 | 10, 0) => matches!(bits, 16 | 24 | 32),
                (3 | 11, 0) => matches!(bits, 8 | 16),
                _ => false,
            };
            matching && [w0, w1] != [0; 2] && [h0, h1] != [0; 2] && flags & 0xC0 == 0
        }
    }

    /// DirectDraw surfaces (DDS).
    pub(in super::super) struct Dds;

    impl ImageCrateKind for Dds {
        const NAME: &'static str = "dds";
        const FORMAT: ImageFormat = ImageFormat::Dds;

        fn sniff(head: &[u8]) -> bool {
            head.starts_with(b"DDS ")
        }
    }

    /// Radiance HDR.
    pub(in super::super) struct Hdr;

    impl ImageCrateKind for Hdr {
        const NAME: &'static str = "hdr";
        const FORMAT: ImageFormat = ImageFormat::Hdr;

        fn sniff(head: &[u8]) -> bool {
            head.starts_with(b"#?RADIANCE") || head.starts_with(b"#?RGBE")
        }
    }

    /// Windows icons (ICO), the largest picture.
    pub(in super::super) struct Ico;

    impl ImageCrateKind for Ico {
        const NAME: &'static str = "ico";
        const FORMAT: ImageFormat = ImageFormat::Ico;
        const NESTS: bool = true;

        fn sniff(head: &[u8]) -> bool {
            // The reserved byte of the first entry excludes other files that start with the same
            // bytes.
            head.starts_with(&[0, 0, 1, 0]) && head.get(4..6) != Some(&[0, 0]) && head.len() >= 22
        }
    }

    /// farbfeld.
    pub(in super::super) struct Farbfeld;

    impl ImageCrateKind for Farbfeld {
        const NAME: &'static str = "farbfeld";
        const FORMAT: ImageFormat = ImageFormat::Farbfeld;

        fn sniff(head: &[u8]) -> bool {
            head.starts_with(b"farbfeld")
        }
    }
}
