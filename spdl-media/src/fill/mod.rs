//! From the bytes of a file to a sample in a batch: decode, transform and augment in one worker.
//!
//! | file | content |
//! |---|---|
//! | `image` | [`FillImage`]: writes one image into its batch slot |
//! | `audio` | [`FillAudio`]: writes one audio file into its batch slot |
//! | `video` | [`FillVideo`]: writes the frames of one clip into their batch slot |
//! | `spec` | `SampleSpec`: the fields of a batch (feature `records`) |
//! | `description` | fields from JSON or TOML (features `records`, `png`, `augment`) |
//! | `geometry` | boxes and key points that follow an image (feature `records`) |
//! | `mask` | segmentation masks that follow an image (features `records`, `png`) |
//! | `combine` | `Mosaic`, `CopyPaste`: parts of several images of a batch, with their boxes (feature `records`) |
//! | `parts` | which parts of video and audio files samples need (feature `records`) |
//! | `record`, `numbers` | `FillRecord`: writes the fields of a sample (feature `records`) |
//! | `stored_array` | `ArrayBytes`: arrays in stored bytes (feature `records`) |
//! | `tokens` | `Tokens`: ids of tokens, stored or made from text (feature `records`) |
//! | `shrink` | [`Shrink`]: makes smaller copies of large images |
//!
//! Imports: [`image`](crate::image), [`audio`](crate::audio), [`video`](crate::video),
//! [`transform`](crate::transform), [`augment`](crate::augment).

mod audio;
#[cfg(feature = "records")]
mod combine;
#[cfg(all(feature = "records", feature = "png", feature = "augment"))]
mod description;
#[cfg(feature = "records")]
mod geometry;
mod image;
#[cfg(all(feature = "records", feature = "png"))]
mod mask;
#[cfg(feature = "records")]
mod numbers;
#[cfg(feature = "records")]
mod parts;
#[cfg(feature = "records")]
mod record;
mod shrink;
#[cfg(feature = "records")]
mod spec;
#[cfg(feature = "records")]
mod stored_array;
#[cfg(feature = "records")]
mod tokens;
mod video;

use spdl_core::{DType, Error, ErrorKind, Field, Result};

pub use audio::FillAudio;
#[cfg(feature = "records")]
pub use combine::{CopyPaste, Mosaic};
#[cfg(all(feature = "records", feature = "png", feature = "augment"))]
pub use description::{BatchMix, Grouping, described_image};
#[cfg(feature = "records")]
pub use geometry::{BoxFormat, Boxes, Points};
pub use image::{FillImage, Written};
#[cfg(all(feature = "records", feature = "png"))]
pub use mask::Mask;
#[cfg(feature = "records")]
pub use parts::IndexVideoParts;
#[cfg(feature = "records")]
pub use record::{FillRecord, FillStored};
pub use shrink::Shrink;
#[cfg(feature = "records")]
pub use spec::{SampleField, SampleSpec, Sequences};
#[cfg(feature = "records")]
pub use stored_array::ArrayBytes;
#[cfg(feature = "records")]
pub use tokens::Tokens;
pub use video::{FillVideo, WrittenClip};

/// Checks that a field has the data type and shape of samples of audio or video.
fn check_field(field: &Field, dtype: DType, shape: &[usize]) -> Result<()> {
    if field.dtype == dtype && field.shape == shape {
        return Ok(());
    }
    let message = format!(
        "field {:?} is {} {:?}, but the samples are {} {shape:?}",
        field.name,
        field.dtype.name(),
        field.shape,
        dtype.name()
    );
    Err(Error::new(ErrorKind::InvalidArgument, message))
}
