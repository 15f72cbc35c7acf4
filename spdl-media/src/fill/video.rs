//! [`FillVideo`]: writes the frames of one clip into their batch slot.

use spdl_core::observe::Counter;
use spdl_core::stage::Collation;
use spdl_core::{DType, Error, ErrorKind, Field, Result, SampleRng, SlotMut};

use super::check_field;
use super::image::FillImage;
#[cfg(feature = "augment")]
use crate::augment::Augmenter;
use crate::image::{CodecRegistry, Limits, Picture};
use crate::source::MediaSource;
use crate::transform::Sample;
use crate::video::{VideoLimits, VideoReader, VideoRegistry, VideoTransform, bytes_of_decoder};

/// Decodes the frames of a clip, transforms them, and writes them into the slot of a batch.
///
/// Create one per worker: it keeps a decoder and scratch memory. Planes of frames are resized
/// before they are converted to RGB.
///
/// ```
/// # #[cfg(feature = "ffmpeg")] {
/// use spdl_core::{
///     BatchLayout, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut,
/// };
/// use spdl_media::fill::FillVideo;
/// use spdl_media::video::{VideoClip, VideoLimits, VideoRegistry, VideoTransform};
/// use spdl_media::{ImageTransform, Limits};
///
/// struct FillClip(FillVideo);
///
/// impl Fill<Vec<u8>> for FillClip {
///     fn fill(
///         &mut self,
///         file: Vec<u8>,
///         mut slot: SlotMut<'_>,
///         cx: &mut FillContext<'_>,
///     ) -> Result<()> {
///         self.0.write(&file[..], &mut slot, 0, &|part| cx.rng_of_part(part)).map(drop)
///     }
///
///     fn check_fields(&self, fields: &[Field]) -> Result<()> {
///         self.0.check_field(&fields[0])
///     }
/// }
///
/// # let video = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/video/h264.mp4")).to_vec();
/// let transform = VideoTransform::new(VideoClip::new(4), ImageTransform::new(32));
/// let layout = BatchLayout::new(2, [Field::new("clip", transform.dtype(), &transform.shape())]);
/// let mut pipeline = PipelineBuilder::from_iter([video.clone(), video])
///     .fill("decode", layout, move || {
///         let registry = VideoRegistry::with_defaults();
///         FillVideo::new(&registry, &transform, &VideoLimits::default(), &Limits::default())
///             .map(FillClip)
///     })
///     .build()?;
/// let batch = pipeline.next().expect("one batch")?;
/// assert_eq!(batch.array("clip").map(|clip| clip.shape()), Some(&[2, 4, 32, 32, 3][..]));
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct FillVideo {
    transform: VideoTransform,
    reader: VideoReader,
    frame: FillImage,
    limits: Limits,
    partial: Counter,
}

/// The frames of a written clip.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenClip {
    /// When the frames are presented, in seconds from the first frame of the video; NaN for frames that
    /// are missing because of damage.
    pub seconds: Vec<f64>,
    /// How many of the frames the video has: without repeated and missing ones.
    pub valid: usize,
}

/// Whether a clip failed because of damage.
fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated)
}

impl FillVideo {
    /// Writes clips as described by `transform`.
    ///
    /// # Errors
    /// The errors of [`VideoTransform::validate`].
    pub fn new(
        registry: &VideoRegistry,
        transform: &VideoTransform,
        limits: &VideoLimits,
        image_limits: &Limits,
    ) -> Result<Self> {
        transform.validate()?;
        let on_truncated = transform.image().truncation();
        Ok(FillVideo {
            transform: transform.clone(),
            reader: VideoReader::new(registry, limits).on_truncated(on_truncated),
            // No image is decoded: only frames are transformed.
            frame: FillImage::new(&CodecRegistry::new(), transform.image(), image_limits)?,
            limits: image_limits.clone(),
            partial: Counter::default(),
        })
    }

    /// Sets augmentations of the frames, the same for all frames of a sample: see
    /// [`FillImage::augment`].
    ///
    /// # Errors
    /// The errors of [`FillImage::augment`].
    #[cfg(feature = "augment")]
    pub fn augment(mut self, augmenter: Augmenter) -> Result<Self> {
        self.frame = self.frame.augment(augmenter)?;
        Ok(self)
    }

    /// Counts the samples with missing frames, and those of files that end early.
    #[must_use]
    pub fn count_partial(mut self, counter: Counter) -> Self {
        self.partial = counter;
        self
    }

    /// Checks that a field has the data type and shape of samples.
    ///
    /// # Errors
    /// `InvalidArgument` if it has not.
    pub fn check_field(&self, field: &Field) -> Result<()> {
        check_field(field, self.transform.dtype(), &self.transform.shape())
    }

    /// Decodes a clip of `video` into field number `field`. `rng` makes the random generator of a part
    /// of the sample: `"clip"` chooses frames, `"frame"` crops, flips and augments.
    ///
    /// # Errors
    /// The errors of [`VideoReader`], of the choice of frames, of the slot and of augmentations.
    pub fn write<S: MediaSource + ?Sized>(
        &mut self,
        video: &S,
        slot: &mut SlotMut<'_>,
        field: usize,
        rng: &dyn Fn(&str) -> SampleRng,
    ) -> Result<WrittenClip> {
        let video: &dyn MediaSource = &video;
        let mut whole = Vec::new();
        let clip_rng = || self.transform.clip().is_random().then(|| rng("clip"));
        let whole_index = |reader: &mut VideoReader, video: &dyn MediaSource| {
            let index = reader.index(video)?;
            let chosen = self.transform.clip().choose(&index, clip_rng().as_mut())?;
            Ok::<_, Error>((index, chosen))
        };
        let part = self.reader.index_of_clip(video, self.transform.clip(), &clip_rng);
        let is_part = matches!(part, Ok(Some(_)));
        let (mut index, mut chosen) = match part {
            Ok(Some(part)) => part,
            Ok(None) => whole_index(&mut self.reader, video)?,
            Err(_) => {
                // The whole index decides whether the clip is damaged.
                let bytes = video.read(0..video.size(), &mut whole)?;
                whole_index(&mut self.reader, &bytes)?
            }
        };
        let orientation = index.stream().orientation;
        let size = index.stream().size;
        let is_fixed = slot.fields()[field].collation == Collation::Stacked;
        let upright = orientation.apply(size);
        if !is_fixed && let Some(size) = self.transform.image().size_of(upright) {
            self.frame.set_size(size)?;
        }
        let tensor = *self.frame.tensor();
        let values = tensor.values() as usize;
        let frames = chosen.frames.len();
        let shape: Vec<usize> = std::iter::once(frames).chain(tensor.shape()).collect();
        macro_rules! values {
            () => {
                // A field with one shape has its memory already.
                if is_fixed { slot.typed_mut(field)? } else { slot.resize(field, &shape)? }
            };
        }
        let mut sample = match tensor.format.dtype {
            DType::U16 => Sample::U16(values!()),
            DType::F16 => Sample::F16(values!()),
            DType::BF16 => Sample::BF16(values!()),
            DType::F32 => Sample::F32(values!()),
            _ => Sample::U8(values!()),
        };
        let memory = self.limits.start_decode(bytes_of_decoder(size, 1));
        let frame = &mut self.frame;
        let mut each = |place: usize, picture: &Picture| {
            let part = sample.part(place * values..(place + 1) * values);
            frame.write_picture(picture, orientation, part, || rng("frame"))
        };
        let mut decoded = self.reader.decode(video, &index, &chosen.frames, &mut each);
        if is_part && decoded.as_ref().map_or_else(is_damage, |decoded| !decoded.missing.is_empty())
        {
            // Earlier key frames may help, which only the whole index lists.
            let bytes = video.read(0..video.size(), &mut whole)?;
            (index, chosen) = whole_index(&mut self.reader, &bytes)?;
            decoded = self.reader.decode(&bytes, &index, &chosen.frames, &mut each);
        }
        drop(memory);
        let mut decoded = decoded?;
        if index.is_truncated() {
            // Frames that the rest of the file lacks are no frames of a short video.
            decoded.missing.retain(|&place| place < chosen.valid);
            decoded.missing.extend(chosen.valid..frames);
        }
        for &place in &decoded.missing {
            sample.part(place * values..(place + 1) * values).fill_with_zeros();
        }
        let share = (frames - decoded.missing.len()) as f64 / frames as f64;
        let least = self.transform.image().min_partial_share();
        if decoded.missing.len() == frames || share < least {
            let message = format!(
                "corrupt video: {} of the {frames} frames of the clip can be decoded, a share below the \
                 minimum of {least}",
                frames - decoded.missing.len()
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        if !decoded.missing.is_empty() || index.is_truncated() {
            self.partial.add(1);
        }
        let missing = decoded.missing.iter().filter(|place| **place < chosen.valid).count();
        let start = index.start_seconds();
        let seconds = chosen.frames.iter().filter_map(|frame| index.seconds(*frame));
        let mut seconds: Vec<_> = seconds.map(|seconds| seconds - start).collect();
        decoded.missing.iter().for_each(|&place| seconds[place] = f64::NAN);
        Ok(WrittenClip { seconds, valid: chosen.valid - missing })
    }
}
