//! Decoding, transforms and augmentations of images, audio and video: from encoded bytes to a sample in a
//! training batch.
//!
//! ```text
//! bytes ──► header ──► crop ──────► decode ──────► resize ────► normalise ──► batch slot
//!           format,    drawn or     only the       orient,      dtype,
//!           limits     centred      needed part    flip         layout
//! ```
//!
//! - [`FillImage`] does all of these steps in one worker. Pass it to `PipelineBuilder::fill` of
//!   `spdl-core`.
//! - A [`Decoder`] decodes to RGB pixels without a pipeline; [`decode_rgb`] decodes one image.
//! - A [`CodecRegistry`] selects the codec by the content of the file. Codecs are registered explicitly.
//!
//! This crate does not read files or stores; the crate `spdl-io` reads them. Terms are defined in
//! the [glossary].
//!
//! ```
//! # #[cfg(feature = "jpeg")] {
//! use spdl_core::{BatchLayout, DatasetSource, Labeled, PipelineBuilder};
//! use spdl_media::{
//!     Bytes, CodecRegistry, FillImage, ImageTransform, Layout, Limits, Mode, image_fields,
//! };
//!
//! # let photo = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/420.jpg"));
//! // Encoded images with their classes. `spdl-io` reads them from files and stores.
//! let images = (0..6).map(|class| Labeled { value: Bytes::from_static(photo), label: class });
//! let images = DatasetSource::new(images.collect::<Vec<_>>()).shuffled(7);
//!
//! // A random crop and flip for ImageNet, as planes of bytes.
//! let transform = ImageTransform::new(64).mode(Mode::Train).layout(Layout::Nchw);
//! let layout = BatchLayout::new(4, image_fields(&transform));
//! let batches = PipelineBuilder::new(images)
//!     .fill("decode", layout, move || {
//!         FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())
//!     })
//!     .seed(7)
//!     .deterministic()
//!     .build()?;
//! let mut shapes = Vec::new();
//! for batch in batches {
//!     shapes.extend(batch?.array("images").map(|array| array.shape().to_vec()));
//! }
//! assert_eq!(shapes, [[4, 3, 64, 64], [2, 3, 64, 64]]);
//! # }
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! # Tasks
//!
//! | task | API |
//! |---|---|
//! | decode one image to RGB | [`decode_rgb`] |
//! | decode many images | [`Decoder::decode_rgb`]; into memory of the caller, [`Decoder::decode_into`]; without conversion to RGB, [`Decoder::decode_planes`] |
//! | read size and orientation only | [`Decoder::inspect`] |
//! | decode a region, or at reduced size | [`DecodeRequest`](image::DecodeRequest) |
//! | decode into a batch | [`FillImage`] with [`image_fields`] |
//! | set sample size, crop, flips and filter | [`ImageTransform`], [`Mode`], [`Crop`], [`ResizeFilter`] |
//! | set layout, data type, channels and normalisation | [`layout`](ImageTransform::layout), [`dtype`](ImageTransform::dtype), [`color`](ImageTransform::color), [`normalization`](ImageTransform::normalization) |
//! | augment samples | [`FillImage::augment`] with an [`Augmenter`](augment::Augmenter) (feature `augment`) |
//! | mix the samples of a batch | [`Mixup`](augment::Mixup), [`CutMix`](augment::CutMix) (feature `augment`) |
//! | load images with boxes, key points, numbers, text or JSON | `fill::SampleSpec` (feature `records`) |
//! | write other fields | [`FillImage::write_field`] in a custom `Fill` |
//! | accept truncated images | [`ImageTransform::on_truncated`], [`FillImage::count_partial`] |
//! | limit pixels, memory and compression ratio | [`Limits`] |
//! | reduce large images | [`Shrink`] |
//! | encode images | `encode` (feature `encode`) |
//! | decode audio | [`audio::AudioReader`] |
//! | decode audio into a batch | [`fill::FillAudio`] with an [`AudioTransform`](audio::AudioTransform) |
//! | compute log-mel spectrograms, filter banks, cepstral coefficients | [`AudioFeatures`](audio::AudioFeatures) |
//! | read the header of a WAV file | `audio::WavHeader` (feature `wav`) |
//! | decode frames of a video | [`video::VideoReader`] (decoders: feature `ffmpeg`) |
//! | demux, decode, filter, encode, mux step by step | `ffmpeg` (feature `ffmpeg`) |
//! | decode a clip into a batch | [`fill::FillVideo`] with a [`VideoTransform`](video::VideoTransform) |
//! | add an audio codec | [`AudioCodec`](audio::AudioCodec); [`AudioRegistry::register`](audio::AudioRegistry::register) |
//! | add a codec | [`ImageCodec`](image::ImageCodec), tested by `testing::codec_contract` (feature `testing`); [`CodecRegistry::register`] |
//!
//! # Pixels
//!
//! The first image of a file is decoded to RGB with 8 bits per channel. Pixels equal those of
//! Pillow's `convert("RGB")`:
//!
//! - JPEG is bit-identical to libjpeg-turbo. Other formats differ by at most one level of 255.
//! - Grey is repeated, palettes are applied, alpha is *dropped* (not composited), unless samples are
//!   [`SampleColor::Rgba`].
//! - 16-bit colours keep their upper 8 bits. Grey of more than 8 bits is clamped to 255, but 16-bit
//!   grey with an alpha channel in PNG keeps its upper 8 bits. Samples of the data type `U16` keep all 16 bits.
//! - CMYK becomes `(255 − C)·(255 − K) ÷ 255`. Colour profiles are ignored.
//! - EXIF orientation is applied by [`FillImage`] and [`Decoder::decode_rgb`];
//!   [`ImageTransform::exif_orientation`] disables it.
//!
//! For JPEG XL, OpenEXR and the formats of `more-formats`, pixels are those of the crates that
//! decode them: 16-bit values are scaled to 8 bits, and floats are clamped to 0 to 1.
//!
//! Samples differ from Pillow's `resize` of these pixels by at most one level, for all filters, if
//! [`ImageTransform::exact`] is set or the format is not JPEG. By default, luma and chroma of a
//! JPEG are resized separately. With the bilinear, bicubic and Lanczos filters, a JPEG much larger
//! than the sample is decoded at reduced size. The PSNR of such a sample against the exact one is
//! at least 40 dB on photographs, or 38 dB with the area filter.
//!
//! `Unsupported` is returned for:
//!
//! - AVIF, HEIF and JPEG 2000,
//! - lossless, hierarchical and 12-bit JPEG,
//! - TIFF with other compressions than none, CCITT, LZW, Deflate, PackBits and JPEG,
//! - TIFF with 12-bit samples, 16- or 64-bit floats, CIELAB colours, channels of different sizes, with
//!   subsampled chroma in a compression other than JPEG, with uncommon JPEG components, or with
//!   old-style JPEG (compression 6) whose tables are stored apart from the data.
//!
//! # Corrupt and truncated files
//!
//! If the needed part of an image is corrupt, decoding fails instead of returning grey pixels. The
//! kind of the error is `Truncated`, `Corrupt`, `Unsupported` or `LimitExceeded`. Corruption
//! elsewhere in the file may go unnoticed, unless [`ImageTransform::exact`] is set.
//! [`Limits::strict`] lists the corruption that can be accepted. [`Limits`] are checked before
//! memory is allocated.
//!
//! [`OnTruncated::Partial`] accepts the decoded rows of a truncated file and fills the missing rows
//! with black. [`FillImage`] requires half of the rows of a sample's crop
//! ([`ImageTransform::min_partial`]):
//!
//! - JPEG by the default codec, and CCITT fax and JPEG in TIFF: row by row,
//! - PNG, GIF and BMP: if rows are stored from top to bottom. Interlaced files are excluded, and so are
//!   bottom-up BMP files, which are the most common ones,
//! - other TIFF: row by row in strips; whole rows of tiles.
//!
//! All other formats and JPEG codecs return `Truncated`.
//!
//! # Features
//!
//! By default, one feature per format is enabled: `jpeg`, `png`, `webp`, `gif`, `bmp` and `tiff`,
//! one per format of audio: `wav`, `flac`, `mp3`, `aac`, `vorbis` and `opus`, and also `augment`. To
//! build them, only gcc and rustup are needed.
//!
//! | feature | adds |
//! |---|---|
//! | `augment` | [`augment`]: random augmentations of training images |
//! | `wav` | WAV: uncompressed audio of 8 to 64 bits, A-law, µ-law |
//! | `flac` | FLAC, by a decoder of this crate |
//! | `mp3` | MPEG audio of layers I to III, by a decoder of this crate |
//! | `aac` | AAC of low complexity, in ADTS frames |
//! | `vorbis`, `opus` | Vorbis and Opus in Ogg; with `flac`, FLAC in Ogg |
//! | `jxl` | JPEG XL |
//! | `exr` | OpenEXR |
//! | `more-formats` | PNM, QOI, TGA, DDS, Radiance HDR, ICO, farbfeld |
//! | `turbojpeg` | `TurboJpegCodec`: JPEG by libjpeg-turbo; requires cmake, and nasm on x86 |
//! | `zune-jpeg` | `ZuneJpegCodec`: JPEG by the crate `zune-jpeg` |
//! | `encode` | `encode`: JPEG, PNG, BMP and lossless WebP encoders |
//! | `webp-lossy` | `encode::LossyWebpEncoder`: lossy WebP by libwebp, which is built with gcc |
//! | `records` | `fill::SampleSpec`: samples of several fields, read by the crate `spdl-io` |
//! | `ffmpeg` | [`video`] decoding, and `ffmpeg`: demuxing, filtering, encoding; by the system's FFmpeg; requires clang and pkg-config |
//! | `testing` | `testing`: contract tests for third-party codecs |
//!
//! [glossary]: https://github.com/spdl-rs/spdl/blob/main/docs/glossary.md
#![cfg_attr(not(feature = "ffmpeg"), forbid(unsafe_code))]
#![cfg_attr(feature = "ffmpeg", deny(unsafe_code))]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod audio;
#[cfg(feature = "augment")]
pub mod augment;
#[cfg(feature = "encode")]
pub mod encode;
#[cfg(feature = "ffmpeg")]
pub mod ffmpeg;
pub mod fill;
pub mod formats;
pub mod image;
mod packets;
mod source;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transform;
pub mod video;

/// Reference-counted bytes, of the crate `bytes`: the encoded images of [`FillImage`].
pub use bytes::Bytes;
#[doc(inline)]
pub use fill::{FillImage, Shrink};
#[doc(inline)]
pub use formats::decode_rgb;
#[doc(inline)]
pub use image::{CodecRegistry, Decoder, Image, Limits, OnTruncated, Orientation, Rect, Size};
#[doc(inline)]
pub use source::MediaSource;
#[doc(inline)]
pub use transform::{
    Crop, Flip, ImageTransform, Layout, Mode, RandomIouCrop, RandomZoomOut, ResizeFilter, Sample,
    SampleColor, SampleFormat, image_fields,
};

/// Doctests of `docs/own-data.md`.
#[cfg(all(doctest, feature = "jpeg"))]
#[doc = include_str!("../../docs/own-data.md")]
struct OwnData;
