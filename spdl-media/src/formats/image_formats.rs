//! Formats that are rarely met in data sets, through the `image` crate.
//!
//! Their pixels are those of its `to_rgb8`: alpha is dropped, grey is repeated, 16 bits are scaled
//! to 8, and floats are cut to 0 to 1 before they become 0 to 255.

use std::io::Cursor;
use std::marker::PhantomData;

use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader};
use spdl_core::{Error, Result};

use super::convert::Pixel;
use super::failure;
use super::frame::{Format, Job};
use crate::image::{Decoded, ImageInfo, Limits, Orientation, Size};

/// One of the formats.
pub(super) trait Kind: Send + 'static {
    const NAME: &'static str;
    const FORMAT: ImageFormat;
    /// Whether its pictures are files of other formats.
    const NESTS: bool = false;

    fn sniff(head: &[u8]) -> bool;
}

/// A format by its [`Kind`].
pub(super) struct ThroughImage<K>(PhantomData<fn() -> K>);

impl<K> Default for ThroughImage<K> {
    fn default() -> Self {
        ThroughImage(PhantomData)
    }
}

impl<K: Kind> Format for ThroughImage<K> {
    const NAME: &'static str = K::NAME;
    type File<'a> = Box<dyn ImageDecoder + 'a>;

    fn sniff(head: &[u8]) -> bool {
        K::sniff(head)
    }

    fn open<'a>(encoded: &'a [u8], own: &Limits) -> Result<(Self::File<'a>, ImageInfo)> {
        own.check_depth(1 + u32::from(K::NESTS))?;
        let mut limits = image::Limits::no_limits();
        limits.max_alloc = Some(own.bytes());
        let mut reader = ImageReader::with_format(Cursor::new(encoded), K::FORMAT);
        reader.limits(limits);
        let decoder = reader.into_decoder().map_err(|reason| error(K::NAME, reason))?;
        let (width, height) = decoder.dimensions();
        let info = ImageInfo::new(Size::new(width, height), Orientation::Upright);
        Ok((Box::new(decoder), info))
    }

    fn decode(&mut self, decoder: Self::File<'_>, job: Job<'_>) -> Result<Decoded> {
        let size = job.info.size;
        let bytes = size.pixels() * Pixel::Rgb(3).bytes() as u64;
        job.limits.check_bytes(decoder.total_bytes().saturating_add(bytes), size)?;
        let image = DynamicImage::from_decoder(decoder).map_err(|reason| error(K::NAME, reason))?;
        let image = image.into_rgb8();
        if image.dimensions() != (size.width, size.height) {
            let found = image.dimensions();
            return Err(failure::corrupt(K::NAME, format!("a picture of {found:?} in {size}")));
        }
        let decoded = job.done();
        Pixel::Rgb(3).copy_region(image.as_raw(), size, job.region, job.out);
        Ok(decoded)
    }
}

fn error(name: &str, error: ImageError) -> Error {
    match error {
        ImageError::IoError(error) => failure::read_error(name, error),
        ImageError::Limits(_) => failure::limit_exceeded(name),
        error @ ImageError::Unsupported(_) => failure::unsupported(name, error),
        error => failure::corrupt(name, error),
    }
}

/// OpenEXR.
#[cfg(feature = "exr")]
pub(super) struct Exr;

#[cfg(feature = "exr")]
impl Kind for Exr {
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

    use super::Kind;

    /// Netpbm's bitmaps, greymaps, pixmaps and arbitrary maps.
    pub(in super::super) struct Pnm;

    impl Kind for Pnm {
        const NAME: &'static str = "pnm";
        const FORMAT: ImageFormat = ImageFormat::Pnm;

        fn sniff(head: &[u8]) -> bool {
            matches!(head, [b'P', b'1'..=b'7', separator, ..] if separator.is_ascii_whitespace())
        }
    }

    /// The Quite OK Image format.
    pub(in super::super) struct Qoi;

    impl Kind for Qoi {
        const NAME: &'static str = "qoi";
        const FORMAT: ImageFormat = ImageFormat::Qoi;

        fn sniff(head: &[u8]) -> bool {
            head.starts_with(b"qoif")
        }
    }

    /// Truevision's format. It has no signature: its header is looked at as a whole.
    pub(in super::super) struct Tga;

    impl Kind for Tga {
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

    /// DirectDraw surfaces.
    pub(in super::super) struct Dds;

    impl Kind for Dds {
        const NAME: &'static str = "dds";
        const FORMAT: ImageFormat = ImageFormat::Dds;

        fn sniff(head: &[u8]) -> bool {
            head.starts_with(b"DDS ")
        }
    }

    /// Radiance's pictures of high dynamic range.
    pub(in super::super) struct Hdr;

    impl Kind for Hdr {
        const NAME: &'static str = "hdr";
        const FORMAT: ImageFormat = ImageFormat::Hdr;

        fn sniff(head: &[u8]) -> bool {
            head.starts_with(b"#?RADIANCE") || head.starts_with(b"#?RGBE")
        }
    }

    /// Windows icons: the largest of their pictures.
    pub(in super::super) struct Ico;

    impl Kind for Ico {
        const NAME: &'static str = "ico";
        const FORMAT: ImageFormat = ImageFormat::Ico;
        const NESTS: bool = true;

        fn sniff(head: &[u8]) -> bool {
            // The reserved byte of the first entry tells it from other files that start so.
            head.starts_with(&[0, 0, 1, 0]) && head.get(4..6) != Some(&[0, 0]) && head.len() >= 22
        }
    }

    /// farbfeld.
    pub(in super::super) struct Farbfeld;

    impl Kind for Farbfeld {
        const NAME: &'static str = "farbfeld";
        const FORMAT: ImageFormat = ImageFormat::Farbfeld;

        fn sniff(head: &[u8]) -> bool {
            head.starts_with(b"farbfeld")
        }
    }
}
