//! [`VideoTransform`]: which frames of a video become a sample, and how.

use spdl_core::{DType, Error, ErrorKind, Result};

use super::clip::VideoClip;
use crate::transform::ImageTransform;

/// Which frames of a video become a sample, and how each of them is transformed.
///
/// A sample is an array `[frames, height, width, channels]`, or `[frames, channels, height, width]`
/// with [`Layout::Nchw`](crate::Layout::Nchw). All frames of a sample have the same crop, flips and
/// augmentations.
///
/// ```
/// use spdl_media::ImageTransform;
/// use spdl_media::video::{VideoClip, VideoTransform};
/// let transform = VideoTransform::new(VideoClip::new(16), ImageTransform::new(224));
/// assert_eq!(transform.shape(), [16, 224, 224, 3]);
/// ```
#[derive(Clone, Debug)]
pub struct VideoTransform {
    clip: VideoClip,
    image: ImageTransform,
}

impl VideoTransform {
    /// The frames of `clip`, each transformed by `image`. Whether damaged videos are accepted is a
    /// setting of `image`: see [`ImageTransform::on_truncated`]. The values of damaged frames are 0.
    pub fn new(clip: VideoClip, image: ImageTransform) -> Self {
        VideoTransform { clip, image }
    }

    /// Which frames become a sample.
    pub fn clip(&self) -> &VideoClip {
        &self.clip
    }

    /// How a frame is transformed.
    pub fn image(&self) -> &ImageTransform {
        &self.image
    }

    /// The data type of a sample.
    pub fn dtype(&self) -> DType {
        self.image.sample_format().dtype
    }

    /// The shape of a sample, where 0 stands for any length.
    pub fn shape(&self) -> Vec<usize> {
        let frames = [self.clip.frames()];
        frames.into_iter().chain(self.image.shape()).collect()
    }

    /// The settings as text, for the parameters of a run.
    pub fn description(&self) -> String {
        let image = self.image.parameters().map(|(name, value)| format!("{name} {value}"));
        let image = image.collect::<Vec<_>>().join(", ");
        format!("video ({}, {image})", self.clip.description())
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The errors of [`VideoClip::validate`] and [`ImageTransform::validate`]; `Unsupported` for several
    /// crops of a frame, for exact pixels, alpha, 16 bits and EXIF orientations, which frames of videos do not have, and for
    /// a zoom out or an IoU crop.
    pub fn validate(&self) -> Result<()> {
        self.clip.validate()?;
        self.image.validate()?;
        self.image.check_rgb8("frames of videos are supported")?;
        let what = if self.image.crops().is_some() {
            "several crops of a frame"
        } else if self.image.is_exact() {
            "the exact conversion of frames to RGB before they are resized"
        } else if !self.image.applies_exif_orientation() {
            "an EXIF orientation that is not applied"
        } else if self.image.has_canvas() {
            "a zoom out or an IoU crop"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unsupported, format!("{what} is not supported for video")))
    }
}
