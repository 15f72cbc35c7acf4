//! The codecs of this crate, one file (or folder) a format.

use std::sync::Arc;

use crate::ImageCodec;

#[cfg(feature = "bmp")]
mod bmp;
#[cfg(feature = "tiff")]
mod ccitt;
#[cfg_attr(
    not(all(feature = "png", feature = "bmp", feature = "tiff")),
    allow(dead_code, reason = "no format but these needs all of it")
)]
mod convert;
#[cfg_attr(
    not(all(feature = "png", feature = "bmp", feature = "tiff")),
    allow(dead_code, reason = "no format but these needs all of it")
)]
mod failure;
#[cfg_attr(
    not(all(feature = "png", feature = "webp", feature = "gif")),
    allow(dead_code, reason = "no format but these needs all of it")
)]
mod frame;
#[cfg(feature = "gif")]
mod gif;
#[cfg(any(feature = "more-formats", feature = "exr"))]
mod image_formats;
#[cfg(any(feature = "jpeg", feature = "turbojpeg", feature = "zune-jpeg"))]
mod jpeg;
#[cfg(feature = "jxl")]
mod jxl;
#[cfg(feature = "png")]
mod png;
#[cfg(feature = "tiff")]
mod tiff;
#[cfg(feature = "turbojpeg")]
mod turbojpeg;
#[cfg(feature = "webp")]
mod webp;
#[cfg(feature = "zune-jpeg")]
mod zune_jpeg;

#[cfg(feature = "turbojpeg")]
pub use turbojpeg::TurboJpegCodec;
#[cfg(feature = "zune-jpeg")]
pub use zune_jpeg::ZuneJpegCodec;

/// Every codec that this build registers by itself, the most common first, and last the one whose
/// files have no signature.
pub(crate) fn all() -> Vec<Arc<dyn ImageCodec>> {
    vec![
        #[cfg(feature = "jpeg")]
        Arc::new(jpeg::JpegCodec),
        #[cfg(feature = "png")]
        codec::<png::Png>(),
        #[cfg(feature = "webp")]
        codec::<webp::Webp>(),
        #[cfg(feature = "gif")]
        codec::<gif::Gif>(),
        #[cfg(feature = "bmp")]
        codec::<bmp::Bmp>(),
        #[cfg(feature = "tiff")]
        codec::<tiff::Tiff>(),
        #[cfg(feature = "jxl")]
        codec::<jxl::Jxl>(),
        #[cfg(feature = "exr")]
        codec::<image_formats::ThroughImage<image_formats::Exr>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Pnm>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Qoi>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Dds>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Hdr>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Ico>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Farbfeld>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Tga>>(),
    ]
}

#[cfg_attr(
    not(all(feature = "png", feature = "webp", feature = "gif")),
    allow(dead_code, reason = "no format but these needs all of it")
)]
fn codec<F: frame::Format>() -> Arc<dyn ImageCodec> {
    Arc::new(frame::FormatCodec::<F>::new())
}

/// Why files that start like this cannot be decoded, where their format is known.
pub(crate) fn why_not(head: &[u8]) -> Option<&'static str> {
    // A file of the ISO base media format starts with its kind, and with others that it may be taken
    // for: ISO/IEC 14496-12, 4.3. Of some AVIF files the first is that of HEIF, their container.
    if head.get(4..8) == Some(b"ftyp") {
        let length = head.first_chunk().map_or(0, |length| u32::from_be_bytes(*length) as usize);
        let kinds = head.get(8..length.min(head.len())).unwrap_or_default().as_chunks().0;
        let is_one_of = |names: &[&[u8; 4]]| kinds.iter().any(|kind| names.contains(&kind));
        if is_one_of(&[b"avif", b"avis"]) {
            return Some(
                "AVIF, which is not supported: decoders of AV1 are C libraries of the system, have \
                 a licence that we do not accept, or want unsafe code; convert the file to PNG, \
                 WebP or JPEG XL",
            );
        }
        let names = [b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"];
        if is_one_of(&names) {
            return Some(
                "HEIF, which is not supported: HEVC, its compression, is under patents, and its \
                 decoders are C libraries of the system; convert the file to JPEG or PNG",
            );
        }
    }
    let starts = |magic: &[u8]| head.starts_with(magic);
    if starts(b"\xFF\x0A") || starts(b"\0\0\0\x0CJXL ") {
        return Some("JPEG XL, which needs the feature `jxl` of spdl-media");
    }
    if starts(&[0x76, 0x2F, 0x31, 0x01]) {
        return Some("OpenEXR, which needs the feature `exr` of spdl-media");
    }
    if starts(b"\0\0\0\x0CjP  ") || starts(b"\xFF\x4F\xFF\x51") {
        return Some("JPEG 2000, which is not supported; convert the file to PNG or JPEG XL");
    }
    if [&b"qoif"[..], b"DDS ", b"#?RADIANCE", b"farbfeld"].into_iter().any(starts) {
        return Some("of a format that needs the feature `more-formats` of spdl-media");
    }
    None
}
