//! From decoded planes to the values of a sample: crop, resize, normalise, arrange in memory.
//!
//! | file | content |
//! |---|---|
//! | `crop` | which part of an image is used, and its place in the sample |
//! | `canvas` | a random canvas around an image, and a random part of it that shows boxes |
//! | `resize` | the resize filters and kernels |
//! | `format` | the tensor of a sample: size, layout, data type, channels, normalisation |
//! | `image_transform` | all settings of the transform of one image |
//! | `rgba` | resizes pixels with alpha or 16 bits, and writes their values |
//! | `sample` | colour order, normalisation, data type and layout of the values |
//!
//! Imports: [`image`](crate::image).

mod canvas;
mod crop;
mod format;
mod image_transform;
mod resize;
mod rgba;
mod sample;

pub use canvas::{RandomIouCrop, RandomZoomOut};
pub use crop::{Crop, EVAL_CROP_FRACTION, Flip, Mode, Placement, TRAIN_AREA, TRAIN_ASPECT};
pub use format::{
    IMAGENET_MEAN, IMAGENET_STD, Layout, Normalization, SampleColor, SampleFormat, TensorSpec,
};
pub use image_transform::{ImageTransform, image_fields};
pub use resize::ResizeFilter;
pub use sample::Sample;

#[cfg(feature = "records")]
pub(crate) use canvas::CanvasAxis;
#[cfg(all(test, feature = "records"))]
pub(crate) use canvas::tests as canvas_tests;
pub(crate) use canvas::{CanvasPart, PlacedPart};
pub(crate) use resize::{ResizeRequest, ResizedPlanes, Resizer, filter_reach, needed_region};
pub(crate) use rgba::{RgbaRequest, RgbaResizer};
pub(crate) use sample::SampleWriter;
