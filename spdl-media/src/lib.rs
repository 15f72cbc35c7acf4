//! Images for SPDL: from the bytes of a file to a sample in a training batch.
//!
//! ```text
//! bytes ──► sniff ──► header ──► crop box ──► decode ──► resize ──► turn, mirror, lay out
//!           codec     size,      drawn or     only what  only the   into the slot
//!                     limits     computed     is needed  crop
//! ```
//!
//! * [`FillImage`] does all of it in one worker, for `PipelineBuilder::fill` of `spdl-core`.
//! * [`Decoder`] (and [`decode_rgb`], for one image) gives plain RGB pixels without a pipeline.
//! * [`CodecRegistry`] holds the codecs; [`ImageCodec`] and [`ImageDecoder`] are what a codec of
//!   your own implements. Nothing registers itself.
//!
//! # Pixels
//!
//! All results are RGB, 8 bits a channel, with the values that Pillow's `convert("RGB")` gives:
//! grey is repeated, palettes are looked up, alpha is *dropped* (not composited), colours of 16 bits
//! are reduced to their upper 8, but grey of more than 8 bits is cut off at 255 (so it does there),
//! CMYK becomes `(255 − C)·(255 − K) ÷ 255`. JPEG is equal to libjpeg-turbo's to the last bit; the
//! other formats differ by a level of 255 at most. Colour profiles are not applied. EXIF orientation
//! is, by [`FillImage`] and [`Decoder::decode_rgb`]. Of animations and multi-page files the first
//! picture is taken.
//!
//! Not supported: JPEG with arithmetic coding, 12 bits or lossless; TIFF with CCITT T.4, subsampled
//! chroma outside JPEG, or 12 bits.
//!
//! # Damage
//!
//! Damaged data are an error of a kind to match on, never grey pixels: `Truncated`, `Corrupt`,
//! `Unsupported` or `LimitExceeded` ([`Limits`] are checked before memory is allocated).
//!
//! # Features
//!
//! One per format, all on by default, all building with gcc and rustup alone: `jpeg`, `png`,
//! `webp`, `gif`, `bmp`, `tiff`. `testing` adds the contract suite for codecs of others.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod codec;
mod crop;
mod decode;
#[cfg(any(feature = "jpeg", feature = "png", feature = "webp"))]
mod exif;
mod fill;
mod formats;
mod geometry;
mod limits;
mod picture;
mod pixels;
mod registry;
mod resize;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transform;

pub use codec::{
    DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, OnTruncated, SNIFF_BYTES,
};
pub use crop::{EVAL_CROP_FRACTION, Mode, TRAIN_AREA, TRAIN_ASPECT, eval_box, train_box};
pub use decode::{Decoder, Image, decode_rgb};
pub use fill::{FillImage, Sample};
pub use geometry::{CropBox, Orientation, Rect, Size};
pub use limits::Limits;
pub use picture::{ColorModel, Picture, Plane, PlaneShape};
pub use pixels::PixelsMut;
pub use registry::CodecRegistry;
pub use transform::{IMAGENET_MEAN, IMAGENET_STD, ImageTransform, Layout, image_fields};
