//! Images for SPDL: from the bytes of a file to a sample in a training batch.
//!
//! ```text
//! bytes ──► sniff ──► header ──► crop box ──► decode ──► resize ──► colour, normalise, lay out
//!           codec     size,      drawn or     only what  turned,    into the slot
//!                     limits     computed     is needed  mirrored
//! ```
//!
//! * [`FillImage`] does all of it in one worker, for `PipelineBuilder::fill` of `spdl-core`.
//! * [`Decoder`] (and [`decode_rgb`], for one image) gives plain RGB pixels without a pipeline.
//! * [`CodecRegistry`] holds the codecs; [`ImageCodec`] and [`ImageDecoder`] are what a codec of
//!   your own implements. Nothing registers itself.
//!
//! # Pixels
//!
//! Images are decoded to RGB, 8 bits a channel, with the values that Pillow's `convert("RGB")` gives:
//! grey is repeated, palettes are looked up, alpha is *dropped* (not composited), colours of 16 bits
//! are reduced to their upper 8, but grey of more than 8 bits is cut off at 255 (so it does there),
//! CMYK becomes `(255 − C)·(255 − K) ÷ 255`. JPEG is equal to libjpeg-turbo's to the last bit; the
//! other formats differ by a level of 255 at most. Colour profiles are not applied. EXIF orientation
//! is, by [`FillImage`] and [`Decoder::decode_rgb`]. Of animations and multi-page files the first
//! picture is taken.
//!
//! Formats that are not on by default have the values that their crates give: JPEG XL, OpenEXR,
//! and those of `more-formats` (whose 16 bits are scaled to 8, floats cut to 0 to 1, as the `image`
//! crate does it).
//!
//! Samples are what Pillow's `resize` makes of that, within a level of 255 for all filters, where
//! [`ImageTransform::exact`] says so, and for all formats that are decoded to RGB anyhow. Otherwise
//! luma and chroma of JPEG go to the sample's size each by itself and become RGB there, and images
//! much larger than the sample are decoded at a smaller size: on photographs, luma and chroma by
//! themselves give 40 dB (PSNR) or more against the exact sample.
//!
//! Not supported, which the error says: AVIF, HEIF and JPEG 2000; JPEG that is lossless, hierarchical,
//! or of 12 bits; TIFF of 12 bits, with chroma of lower resolution outside JPEG, with JPEG of unusual
//! luma and chroma, or with old-style JPEG (compression 6) whose tables are kept apart from the data.
//!
//! # Damage
//!
//! Damaged data are an error of a kind to match on, never grey pixels: `Truncated`, `Corrupt`,
//! `Unsupported` or `LimitExceeded` ([`Limits`] are checked before memory is allocated).
//!
//! Of a file that is cut, the rows above the cut can be had: [`OnTruncated::Partial`]. Of PNG, GIF,
//! BMP and TIFF that holds for files whose rows are stored in their order: not for interlaced ones,
//! nor for bitmaps from the bottom up (as most are), nor for components in planes of their own; and
//! of TIFF for whole strips and rows of tiles, but of facsimile and JPEG row by row. WebP, JPEG XL,
//! the formats of `more-formats` and `exr`, and JPEG by other codecs than the default one stay
//! `Truncated`.
//!
//! # Features
//!
//! One per format, on by default and building with gcc and rustup alone: `jpeg`, `png`, `webp`,
//! `gif`, `bmp`, `tiff`; and `augment` and `wav`, on by default too.
//!
//! | feature | adds |
//! |---|---|
//! | `augment` | [`augment`]: random changes of training images |
//! | `wav` | [`audio`]: the header of WAV files |
//! | `jxl` | JPEG XL |
//! | `exr` | OpenEXR |
//! | `more-formats` | PNM, QOI, TGA, DDS, Radiance HDR, icons, farbfeld |
//! | `turbojpeg` | `TurboJpegCodec`: JPEG by libjpeg-turbo; needs cmake, and nasm on x86 |
//! | `zune-jpeg` | `ZuneJpegCodec`: JPEG by the crate of that name |
//! | `encode` | `encode`: JPEG, PNG, BMP and lossless WebP from pixels |
//! | `webp-lossy` | `encode::LossyWebpEncoder`: lossy WebP by libwebp, which is built with gcc |
//! | `testing` | `testing`: the contract suite for codecs of others |
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "wav")]
pub mod audio;
#[cfg(feature = "augment")]
pub mod augment;
#[cfg(feature = "encode")]
pub mod encode;
pub mod fill;
pub mod formats;
pub mod image;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transform;

/// Encoded bytes, of the crate `bytes`: what [`FillImage`] takes.
pub use bytes::Bytes;
#[doc(inline)]
pub use fill::{FillImage, Shrink};
#[doc(inline)]
pub use formats::decode_rgb;
#[doc(inline)]
pub use image::{CodecRegistry, Decoder, Image, Limits, OnTruncated, Orientation, Rect, Size};
#[doc(inline)]
pub use transform::{
    Crop, ImageTransform, Layout, Mode, ResizeFilter, Sample, SampleColor, SampleFormat,
    image_fields,
};

/// The programs of this page are compiled and run.
#[cfg(all(doctest, feature = "jpeg"))]
#[doc = include_str!("../../docs/own-data.md")]
struct OwnData;
