//! The fields of a batch, and how each is made from the fields of a sample.

use std::sync::Arc;

use spdl_core::stage::Collation;
use spdl_core::{BatchLayout, DType, Error, ErrorKind, Field, Result};
use spdl_io::datasets::OpenOptions;
use spdl_io::fetch::Fetcher;
use spdl_io::records::{
    ARRAY_EXTENSIONS, AUDIO_EXTENSIONS, FetchFields, FieldChoice, IMAGE_EXTENSIONS, SelectParts,
    VIDEO_EXTENSIONS,
};
use spdl_io::{FetchLabeled, FieldValue};

use super::geometry::{Boxes, Points};
#[cfg(feature = "png")]
use super::mask::Mask;
use super::numbers::padded;
use super::parts::{AudioParts, VideoParts};
use super::record::FillRecord;
use super::stored_array::ArrayBytes;
use super::tokens::Tokens;
use crate::audio::{AudioLimits, AudioRegistry, AudioTransform};
#[cfg(feature = "augment")]
use crate::augment::Augmenter;
use crate::image::{CodecRegistry, Limits};
use crate::transform::ImageTransform;
use crate::video::{VideoLimits, VideoRegistry, VideoTransform};

/// The fields of a batch.
///
/// The specification makes the three parts of a pipeline that must agree: the stage that reads the
/// stored fields, the layout of the batches, and the stage that decodes each field into its place
/// in a batch.
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::{DType, PipelineBuilder, StageOptions};
/// use spdl_core::stage::Collation;
/// use spdl_io::{FieldValue, MemoryFetcher, StoredRecord};
/// use spdl_media::{CodecRegistry, ImageTransform, Limits, Mode};
/// use spdl_media::fill::{SampleField, SampleSpec};
///
/// let spec = SampleSpec::new()
///     .with("caption", SampleField::text().stored_as(["txt"]))
///     .with("boxes", SampleField::numbers(DType::F32, &[0, 4]).stored_as(["boxes"]));
/// # let mut samples = Vec::new();
/// # for number in 0..2 {
/// #     samples.push(StoredRecord::new(format!("{number}"))
/// #         .with_known("txt", FieldValue::Text("a dog".into()))
/// #         .with_known("boxes", FieldValue::Json("[[0, 0, 1, 1]]".parse()?)));
/// # }
/// // `samples` are those of any data set that `spdl_io` opens.
/// let mut pipeline = PipelineBuilder::from_iter(samples)
///     .async_stage("fetch", spec.fetch(Arc::new(MemoryFetcher::new())))
///     .fill(
///         StageOptions::new("decode").parameters(spec.parameters()),
///         spec.layout(2),
///         spec.filler(&CodecRegistry::with_defaults(), &Limits::default()),
///     )
///     .build()?;
/// let batch = pipeline.next().expect("one batch")?;
/// assert_eq!(batch.array("boxes").map(|boxes| boxes.shape()), Some(&[2, 4][..]));
/// assert_eq!(batch.array("caption").map(|text| text.as_bytes()), Some(&b"a doga dog"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SampleSpec {
    fields: Vec<(Arc<str>, SampleField)>,
    pub(super) sequences: Sequences,
    /// The codecs and limits of audio; the default ones if `None`.
    audio: Option<AudioCodecs>,
    /// The containers, codecs and limits of video; the default ones if `None`.
    video: Option<VideoCodecs>,
}

type AudioCodecs = (AudioRegistry, AudioLimits);
type VideoCodecs = (VideoRegistry, VideoLimits);

/// One field of a batch: where its bytes are stored, and how they are decoded.
#[derive(Clone, Debug)]
pub struct SampleField {
    pub(super) kind: FieldKind,
    choice: Option<FieldChoice>,
    path: Option<String>,
    is_optional: bool,
    drops_missing: bool,
    pub(super) default: Option<FieldValue>,
    /// How stored bytes hold numbers.
    pub(super) bytes: ArrayBytes,
    /// The field of boxes, one of which belongs to each row.
    pub(super) rows_of: Option<Arc<str>>,
    #[cfg(feature = "augment")]
    pub(super) augmenter: Augmenter,
    /// Selects the random numbers of an image.
    pub(super) view: u32,
    dtype: DType,
    shape: Vec<usize>,
    collation: Collation,
    /// The element outside padded samples.
    padding: Option<f64>,
}

/// The field of a record that marks the dropped boxes of the field `name`.
pub(super) fn dropped_boxes_of(name: &str) -> Arc<str> {
    format!("{name} (dropped)").into()
}

/// The extensions that `spdl pack` gives to values other than images, audio and video.
const VALUE_EXTENSIONS: [&str; 4] = ["txt", "json", "npy", "npz"];

#[derive(Clone, Debug)]
pub(super) enum FieldKind {
    Image(Box<ImageTransform>),
    Audio(Box<AudioTransform>),
    /// The number of frames of the audio of another field.
    AudioFrames(Arc<str>),
    Video(Box<VideoTransform>),
    /// The number of valid frames of the video of another field.
    VideoFrames(Arc<str>),
    /// The times of the frames of the video of another field.
    VideoTimes(Arc<str>),
    Numbers,
    /// Numbers that are 0 or 1.
    Flags,
    Tokens(Tokens),
    Boxes(Boxes),
    Points(Points),
    /// The affine map of the image of another field.
    Geometry(Arc<str>),
    /// The size of the image of another field.
    ImageSize(Arc<str>),
    #[cfg(feature = "png")]
    Mask(Mask),
    Text,
    Bytes,
    Json,
    Label,
    Key,
    Url,
    Index,
}

impl SampleField {
    fn new(kind: FieldKind, dtype: DType, shape: &[usize]) -> Self {
        let collation = if shape.contains(&0) { Collation::Ragged } else { Collation::Stacked };
        SampleField {
            kind,
            choice: None,
            path: None,
            is_optional: false,
            drops_missing: false,
            default: None,
            bytes: ArrayBytes::Detected,
            rows_of: None,
            #[cfg(feature = "augment")]
            augmenter: Augmenter::new(),
            view: 0,
            dtype,
            shape: shape.to_vec(),
            collation,
            padding: None,
        }
    }

    /// An encoded image, which `transform` crops, resizes, flips and normalises.
    ///
    /// Stored fields by default: the name of the field in the batch, `jpg`, `png` and other
    /// [`IMAGE_EXTENSIONS`], `image`, `img`, `file`, `image/encoded`.
    ///
    /// With [`Crop::Resize`](crate::Crop::Resize), or a list of [sizes](ImageTransform::sizes), samples differ in
    /// size. They become a list, or are
    /// [padded](Collation::Padded); and so do masks that follow the image.
    pub fn image(transform: ImageTransform) -> Self {
        let (dtype, shape) = (transform.sample_format().dtype, transform.shape());
        let collation = if shape.contains(&0) { Collation::List } else { Collation::Stacked };
        let field = SampleField::new(FieldKind::Image(Box::new(transform)), dtype, &shape);
        field.collation(collation)
    }

    /// An encoded audio file, of which `transform` selects a part, channels and the sample rate.
    ///
    /// Stored fields by default: the name of the field in the batch, `wav`, `flac`, `mp3` and other
    /// [`AUDIO_EXTENSIONS`], `audio`, `file`; then those of videos, whose sound is decoded. Containers of videos, and other
    /// codecs than those with a feature, need the cargo feature `ffmpeg`.
    ///
    /// Samples that differ in length become a list, or are [padded](Collation::Padded).
    ///
    /// ```
    /// use spdl_media::audio::{AudioChannels, AudioTransform};
    /// use spdl_media::fill::{SampleField, SampleSpec};
    /// let five_seconds = AudioTransform::new()
    ///     .sample_rate(16_000)
    ///     .channels(AudioChannels::Mono)
    ///     .frames(80_000)
    ///     .random(true);
    /// let spec = SampleSpec::new()
    ///     .with("audio", SampleField::audio(five_seconds))
    ///     .with("frames", SampleField::audio_frames("audio"));
    /// assert_eq!(spec.layout(8).fields()[0].shape, [1, 80_000]);
    /// spec.validate()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn audio(transform: AudioTransform) -> Self {
        let (dtype, shape) = (transform.element_type(), transform.shape());
        let collation = if shape.contains(&0) { Collation::List } else { Collation::Stacked };
        let field = SampleField::new(FieldKind::Audio(Box::new(transform)), dtype, &shape);
        field.collation(collation)
    }

    /// The number of frames of the audio of the field `like` before padding, `int64`; 0 if the sample
    /// lacks the audio.
    pub fn audio_frames(like: impl Into<Arc<str>>) -> Self {
        SampleField::new(FieldKind::AudioFrames(like.into()), DType::I64, &[])
    }

    /// An encoded video, of which `transform` selects frames: `[frames, height, width, channels]`.
    ///
    /// Stored fields by default: the name of the field in the batch, `mp4`, `mkv`, `webm` and other
    /// [`VIDEO_EXTENSIONS`], `video`, `file`. To decode, the cargo feature `ffmpeg` is needed.
    ///
    /// ```
    /// use spdl_media::ImageTransform;
    /// use spdl_media::fill::{SampleField, SampleSpec};
    /// use spdl_media::video::{VideoClip, VideoTransform};
    /// let clip = VideoClip::new(16).every_seconds(0.25).random(true);
    /// let spec = SampleSpec::new()
    ///     .with("video", SampleField::video(VideoTransform::new(clip, ImageTransform::new(224))))
    ///     .with("valid", SampleField::video_frames("video"))
    ///     .with("times", SampleField::video_times("video"));
    /// assert_eq!(spec.layout(8).fields()[0].shape, [16, 224, 224, 3]);
    /// spec.validate()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn video(transform: VideoTransform) -> Self {
        let (dtype, shape) = (transform.dtype(), transform.shape());
        let collation = if shape.contains(&0) { Collation::List } else { Collation::Stacked };
        let field = SampleField::new(FieldKind::Video(Box::new(transform)), dtype, &shape);
        field.collation(collation)
    }

    /// The number of frames of the field `like` that the video has, `int64`: without repeated frames of
    /// short videos and without damaged ones; 0 if the sample lacks the video.
    pub fn video_frames(like: impl Into<Arc<str>>) -> Self {
        SampleField::new(FieldKind::VideoFrames(like.into()), DType::I64, &[])
    }

    /// When the frames of the field `like` are presented, in seconds from the first frame of the
    /// video, `float64 [frames]`; NaN for damaged frames, 0 if the sample lacks the video.
    pub fn video_times(like: impl Into<Arc<str>>) -> Self {
        // The layout replaces the shape by the number of frames.
        SampleField::new(FieldKind::VideoTimes(like.into()), DType::F64, &[1])
    }

    /// Sets augmentations of an image or of the frames of a video: see [`FillImage::augment`](crate::FillImage::augment).
    ///
    /// Boxes, points and masks follow rotations, affine and perspective transforms. If there are such
    /// fields, it must be possible to [follow](crate::augment::Augment::can_be_followed) all
    /// augmentations.
    ///
    /// ```
    /// use spdl_media::ImageTransform;
    /// use spdl_media::augment::{Augmenter, RandomRotation};
    /// use spdl_media::fill::{Boxes, SampleField, SampleSpec};
    /// let rotated = Augmenter::new().then(RandomRotation::new(10.0));
    /// let spec = SampleSpec::new()
    ///     .with("image", SampleField::image(ImageTransform::new(640)).augment(rotated))
    ///     .with("boxes", SampleField::boxes(Boxes::like("image")).stored_as(["json"]).at("boxes"));
    /// spec.validate()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[cfg(feature = "augment")]
    #[must_use]
    pub fn augment(mut self, augmenter: Augmenter) -> Self {
        self.augmenter = augmenter;
        self
    }

    /// Selects the random numbers of an image. Images with the same number draw the same crop and
    /// flips, if the arguments of these are equal; images with different numbers are independent
    /// views of one stored image. Default: 0.
    ///
    /// ```
    /// use spdl_media::{ImageTransform, Mode};
    /// use spdl_media::fill::{SampleField, SampleSpec};
    /// let image = || SampleField::image(ImageTransform::new(224).mode(Mode::Train));
    /// let spec = SampleSpec::new()
    ///     .with("first", image())
    ///     .with("second", image().view(1));
    /// spec.validate()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn view(mut self, number: u32) -> Self {
        self.view = number;
        self
    }

    /// A mask of class numbers that follows the crop, resize, flips and warps of an image, of the shape
    /// `[height, width]` of that image in the batch.
    ///
    /// The mask is a grey or palette PNG, whose grey values or palette indices are kept: no number
    /// is interpolated. `dtype` is `uint8`, `uint16`, `int32`, `int64`, or `float32`, whose numbers
    /// can have a [factor](Mask::scale), such as those of depth maps.
    ///
    /// ```
    /// use spdl_core::DType;
    /// use spdl_media::ImageTransform;
    /// use spdl_media::fill::{Mask, SampleField, SampleSpec};
    /// let mask = SampleField::mask(Mask::like("image").outside(255), DType::I64);
    /// let spec = SampleSpec::new()
    ///     .with("image", SampleField::image(ImageTransform::new(512)))
    ///     .with("mask", mask.stored_as(["seg.png"]));
    /// assert_eq!(spec.layout(8).fields()[1].shape, [512, 512]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[cfg(feature = "png")]
    pub fn mask(mask: Mask, dtype: DType) -> Self {
        // The layout replaces the shape by that of the image.
        SampleField::new(FieldKind::Mask(mask), dtype, &[1, 1])
    }

    /// Numbers: a number, text with a number, nested lists in JSON, or an array. Arrays in stored bytes are
    /// `.npy` files, or else as [`array_bytes`](Self::array_bytes) sets.
    ///
    /// `shape` is the shape of a sample, in which 0 stands for any length; the collation is then
    /// [`Ragged`](Collation::Ragged). Integer types accept whole numbers in their range only.
    pub fn numbers(dtype: DType, shape: &[usize]) -> Self {
        SampleField::new(FieldKind::Numbers, dtype, shape)
    }

    /// Truth values: numbers that are 0 or 1, `uint8`, otherwise as [`numbers`](Self::numbers).
    pub fn flags(shape: &[usize]) -> Self {
        SampleField::new(FieldKind::Flags, DType::U8, shape)
    }

    /// The ids of tokens, `int32` or `int64`: see [`Tokens`]. Stacked if all samples have
    /// [one length](Tokens::padded_to), otherwise ragged.
    pub fn tokens(tokens: Tokens, dtype: DType) -> Self {
        let length = tokens.length().unwrap_or(0);
        SampleField::new(FieldKind::Tokens(tokens), dtype, &[length])
    }

    /// Boxes that follow the crop, resize, flips and warps of an image, `float32 [boxes, 4]`, ragged.
    ///
    /// Boxes are clipped to the sample. Boxes outside it, and those below the limits, are dropped;
    /// [`rows_of`](Self::rows_of) drops the rows of other fields with them. A box outside the image
    /// is an error.
    ///
    /// ```
    /// use spdl_media::ImageTransform;
    /// use spdl_media::fill::{BoxFormat, Boxes, SampleField, SampleSpec};
    /// # use spdl_core::DType;
    /// let boxes = Boxes::like("image").format(BoxFormat::Xywh).min_visibility(0.2);
    /// let spec = SampleSpec::new()
    ///     .with("image", SampleField::image(ImageTransform::new(640)))
    ///     .with("boxes", SampleField::boxes(boxes).stored_as(["json"]).at("bbox"))
    ///     .with("classes", SampleField::numbers(DType::I64, &[0]).rows_of("boxes"));
    /// spec.validate()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn boxes(boxes: Boxes) -> Self {
        SampleField::new(FieldKind::Boxes(boxes), DType::F32, &[0, 4])
    }

    /// Key points that follow the crop, resize, flips and warps of an image, `float32`.
    ///
    /// `shape` is the shape of a sample, such as `[17, 3]`, or `[0, 17, 3]` for any number of
    /// persons.
    pub fn points(points: Points, shape: &[usize]) -> Self {
        SampleField::new(FieldKind::Points(points), DType::F32, shape)
    }

    /// The geometry that an image has drawn, `float32 [2, 3]`: the affine map from pixels of the upright
    /// image to pixels of the sample.
    ///
    /// `x' = a[0][0] * x + a[0][1] * y + a[0][2]` and `y' = a[1][0] * x + a[1][1] * y + a[1][2]`, counted from
    /// the upper left corner. `like` is the field of the image. All elements are 0 if the sample lacks the image.
    ///
    /// ```
    /// use spdl_media::ImageTransform;
    /// use spdl_media::fill::{SampleField, SampleSpec};
    /// let spec = SampleSpec::new()
    ///     .with("image", SampleField::image(ImageTransform::new(640)))
    ///     .with("geometry", SampleField::geometry("image"))
    ///     .with("size", SampleField::image_size("image"));
    /// spec.validate()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn geometry(like: impl Into<Arc<str>>) -> Self {
        SampleField::new(FieldKind::Geometry(like.into()), DType::F32, &[2, 3])
    }

    /// Height and width of the upright image of the field `like`, in pixels, `int64 [2]`; 0 if the sample lacks
    /// the image.
    pub fn image_size(like: impl Into<Arc<str>>) -> Self {
        SampleField::new(FieldKind::ImageSize(like.into()), DType::I64, &[2])
    }

    /// Text as its UTF-8 bytes, ragged.
    pub fn text() -> Self {
        SampleField::new(FieldKind::Text, DType::U8, &[0])
    }

    /// The stored bytes, ragged.
    pub fn bytes() -> Self {
        SampleField::new(FieldKind::Bytes, DType::U8, &[0])
    }

    /// Any value as JSON text, ragged. Stored bytes must be JSON; arrays are not supported.
    pub fn json() -> Self {
        SampleField::new(FieldKind::Json, DType::U8, &[0])
    }

    /// The class number that the data set assigned to the sample, `int64`; -1 if it has none.
    pub fn label() -> Self {
        SampleField::new(FieldKind::Label, DType::I64, &[])
    }

    /// The name of the sample as bytes, ragged.
    pub fn key() -> Self {
        SampleField::new(FieldKind::Key, DType::U8, &[0])
    }

    /// The address of the object that holds the sample as bytes, without user name, password and query,
    /// ragged: see [`FetchFields::with_address`].
    ///
    /// ```
    /// use spdl_media::fill::{SampleField, SampleSpec};
    /// let spec = SampleSpec::new()
    ///     .with("caption", SampleField::text().stored_as(["txt"]))
    ///     .with("url", SampleField::url());
    /// spec.validate()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn url() -> Self {
        SampleField::new(FieldKind::Url, DType::U8, &[0])
    }

    /// The position of the sample in its epoch, `int64`.
    pub fn index() -> Self {
        SampleField::new(FieldKind::Index, DType::I64, &[])
    }

    /// Sets the stored field: the first of these names that a sample has. By default, the name of
    /// the field in the batch; for images, see [`image`](Self::image). For arrays and stored tokens, then `array`, the
    /// field of files in folders.
    #[must_use]
    pub fn stored_as<N: Into<Arc<str>>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.choice = Some(FieldChoice::of(names));
        self
    }

    /// Selects a value inside the stored field, which holds JSON: see [`FieldChoice::at`].
    #[must_use]
    pub fn at(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Sets that a sample may lack the value. The field of such a sample is empty, or 0 if it is
    /// stacked; a mask has the number outside the image. By default, a missing value is an error.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Sets that samples that lack the value are dropped, counted and listed, whatever the failure policy
    /// is: see [`FieldChoice::drop_missing`], and for labels [`FetchFields::drop_unlabeled`].
    ///
    /// ```
    /// use spdl_media::fill::{SampleField, SampleSpec};
    /// let spec = SampleSpec::new().with("caption", SampleField::text().drop_missing());
    /// spec.validate()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn drop_missing(mut self) -> Self {
        self.drops_missing = true;
        self
    }

    /// Sets the value of samples that lack it.
    #[must_use]
    pub fn or(mut self, default: FieldValue) -> Self {
        self.default = Some(default);
        self.optional()
    }

    /// Sets how stored bytes hold the numbers of this field. Default: a `.npy` file, a `.npz` file with one
    /// array, or text with a number. Values that are no bytes, such as lists, are not affected.
    ///
    /// Raw elements have the shape of the field, in which one dimension may have any length. Columns of lists
    /// name the files of fields with another value than the default.
    ///
    /// ```
    /// use spdl_core::DType;
    /// use spdl_io::archive::NpyType;
    /// use spdl_media::fill::{ArrayBytes, SampleField, SampleSpec};
    /// let raw = SampleField::numbers(DType::F32, &[0, 4]).array_bytes(ArrayBytes::Raw(NpyType::Float(2)));
    /// let member = ArrayBytes::Member("embedding".into());
    /// let spec = SampleSpec::new()
    ///     .with("boxes", raw.stored_as(["bin"]))
    ///     .with("embedding", SampleField::numbers(DType::F32, &[512]).array_bytes(member).stored_as(["npz"]));
    /// spec.validate()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn array_bytes(mut self, bytes: ArrayBytes) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets that each row (of the first dimension) of numbers or points belongs to a box of the
    /// field `boxes`. The rows of dropped boxes are dropped too.
    #[must_use]
    pub fn rows_of(mut self, boxes: impl Into<Arc<str>>) -> Self {
        self.rows_of = Some(boxes.into());
        self
    }

    /// Sets the element outside the samples of numbers, tokens, boxes or points that are
    /// [padded](Collation::Padded), or of tokens that have [one length](Tokens::padded_to), of the field's type.
    /// Default: 0.
    ///
    /// ```
    /// use spdl_core::DType;
    /// use spdl_core::stage::Collation;
    /// use spdl_media::fill::{SampleField, SampleSpec};
    /// let targets = SampleField::numbers(DType::I64, &[0]).collation(Collation::Padded).padding(-100.0);
    /// let spec = SampleSpec::new().with("targets", targets);
    /// assert_eq!(spec.layout(8).fields()[0].padding, (-100_i64).to_ne_bytes());
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn padding(mut self, element: f64) -> Self {
        self.padding = Some(element);
        self
    }

    /// Sets the collation. Default: stacked if all samples have one shape, otherwise ragged.
    #[must_use]
    pub fn collation(mut self, collation: Collation) -> Self {
        self.collation = collation;
        self
    }

    #[cfg(feature = "png")]
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape of a sample, in which 0 stands for any length.
    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The element outside padded samples.
    pub(super) fn pad_value(&self) -> f64 {
        self.padding.unwrap_or(0.0)
    }

    pub(super) fn collated(&self) -> Collation {
        self.collation
    }

    /// The stored field that supplies the value; `None` if no stored field is read.
    fn choice(&self, name: &Arc<str>) -> Option<FieldChoice> {
        let choice = match (&self.choice, &self.kind) {
            (_, FieldKind::Label | FieldKind::Key | FieldKind::Url | FieldKind::Index) => {
                return None;
            }
            (_, FieldKind::Geometry(_) | FieldKind::ImageSize(_)) => return None,
            (_, FieldKind::AudioFrames(_)) => return None,
            (_, FieldKind::VideoFrames(_) | FieldKind::VideoTimes(_)) => return None,
            (Some(choice), _) => choice.clone(),
            (None, FieldKind::Image(_)) => {
                let others = ["image", "img", "file", "image/encoded"];
                let common = IMAGE_EXTENSIONS.iter().copied().chain(others);
                // A missing image of a list must not become the file of its row.
                FieldChoice::of([&**name].into_iter().chain(common)).keep_null()
            }
            (None, FieldKind::Audio(_)) => {
                let audio = AUDIO_EXTENSIONS.iter().copied().chain(["audio", "file"]);
                // The sound of a video.
                let common = audio.chain(VIDEO_EXTENSIONS.iter().copied()).chain(["video"]);
                FieldChoice::of([&**name].into_iter().chain(common)).keep_null()
            }
            (None, FieldKind::Video(_)) => {
                let common = VIDEO_EXTENSIONS.iter().copied().chain(["video", "file"]);
                FieldChoice::of([&**name].into_iter().chain(common)).keep_null()
            }
            (None, _) if self.may_be_file() => {
                // The field of files in folders.
                FieldChoice::of([&**name, "array"]).keep_null()
            }
            (None, _) => FieldChoice::of([Arc::clone(name)]),
        };
        let choice = match (&self.choice, &self.kind) {
            (Some(_), _) => choice,
            (None, FieldKind::Image(_)) => choice.with_extensions(IMAGE_EXTENSIONS),
            #[cfg(feature = "png")]
            (None, FieldKind::Mask(_)) => choice.with_extensions(IMAGE_EXTENSIONS),
            (None, FieldKind::Audio(_)) => choice.with_extensions(AUDIO_EXTENSIONS),
            (None, FieldKind::Video(_)) => choice.with_extensions(VIDEO_EXTENSIONS),
            (None, FieldKind::Bytes) => {
                let media = IMAGE_EXTENSIONS.into_iter().chain(AUDIO_EXTENSIONS);
                choice.with_extensions(media.chain(VIDEO_EXTENSIONS).chain(VALUE_EXTENSIONS))
            }
            (None, _) => choice.with_extensions(VALUE_EXTENSIONS),
        };
        let choice = match &self.path {
            Some(path) => choice.at(path),
            None => choice,
        };
        Some(match (self.drops_missing, self.is_optional) {
            (true, _) => choice.drop_missing(),
            (false, true) => choice.optional(),
            (false, false) => choice,
        })
    }

    /// Whether the value may be the array in a file of a folder.
    fn may_be_file(&self) -> bool {
        let is_array = match &self.kind {
            FieldKind::Numbers | FieldKind::Flags => true,
            FieldKind::Tokens(tokens) => !tokens.are_text(),
            _ => false,
        };
        is_array && !self.shape.is_empty()
    }

    fn check_bytes(&self) -> Result<()> {
        if self.bytes == ArrayBytes::Detected {
            return Ok(());
        }
        if !matches!(self.kind, FieldKind::Numbers | FieldKind::Flags) {
            let message = "only numbers have members of .npz files and raw elements";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.bytes.validate(&self.shape)
    }

    /// Checks that only one rule applies to missing values.
    fn check_missing(&self) -> Result<()> {
        let message = match self.drops_missing {
            false => return Ok(()),
            true if self.is_optional => "samples that lack the value are either dropped or kept",
            true if matches!(self.kind, FieldKind::Label) => return Ok(()),
            true if self.choice(&"".into()).is_none() => "no stored value can be missing",
            true => return Ok(()),
        };
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    fn check_padding(&self) -> Result<()> {
        let Some(padding) = self.padding else { return Ok(()) };
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        let is_number = matches!(
            self.kind,
            FieldKind::Numbers
                | FieldKind::Flags
                | FieldKind::Tokens(_)
                | FieldKind::Boxes(_)
                | FieldKind::Points(_)
        );
        let has_length =
            matches!(&self.kind, FieldKind::Tokens(tokens) if tokens.length().is_some());
        if !is_number || (self.collation != Collation::Padded && !has_length) {
            let message = "padding is for padded numbers, tokens, boxes and points only";
            return invalid(message.to_owned());
        }
        let is_flag = padding == 0.0 || padding == 1.0;
        if padded(Field::new("", self.dtype, &[]), padding).is_none()
            || (matches!(self.kind, FieldKind::Flags) && !is_flag)
        {
            return invalid(format!("the type of the field cannot hold the padding {padding}"));
        }
        Ok(())
    }

    /// The augmentations of an image; `None` without any.
    fn augmentations(&self) -> Option<String> {
        #[cfg(feature = "augment")]
        let all: Vec<_> =
            self.augmenter.parameters().map(|(name, value)| format!("{name} {value}")).collect();
        #[cfg(not(feature = "augment"))]
        let all: [String; 0] = [];
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// What the field contains, for [`SampleSpec::parameters`].
    fn description(&self, name: &Arc<str>) -> String {
        let choice = self.choice(name);
        let kind = match &self.kind {
            FieldKind::Image(transform) => {
                let of_image =
                    transform.parameters().map(|(name, value)| format!("{name} {value}"));
                let view = (self.view > 0).then(|| format!("view {}", self.view));
                let all: Vec<_> = of_image.chain(view).collect();
                format!("image ({})", all.join(", "))
            }
            FieldKind::Audio(transform) => transform.description(),
            FieldKind::Video(transform) => transform.description(),
            other => format!("{other:?}"),
        };
        let kind = match &self.bytes {
            ArrayBytes::Detected => kind,
            bytes => format!("{kind} ({bytes:?})"),
        };
        let kind = match &self.rows_of {
            Some(boxes) => format!("{kind} of {boxes}"),
            None => kind,
        };
        let kind = match self.padding {
            Some(padding) => format!("{kind}, padded with {padding}"),
            None => kind,
        };
        let kind = if self.drops_missing { format!("{kind}, not missing") } else { kind };
        match (choice, &self.default) {
            (None, _) => kind,
            (Some(choice), None) => format!("{kind} from {choice}"),
            (Some(choice), Some(default)) => format!("{kind} from {choice}, or {default:?}"),
        }
    }
}

/// Fields that are sequences with one row for each token, and the lengths that a sample may have.
///
/// The fields of a sample must have the same number of rows, in their first dimension.
///
/// ```
/// use spdl_core::DType;
/// use spdl_media::fill::{SampleField, SampleSpec, Sequences};
/// let tokens = || SampleField::numbers(DType::I64, &[0]);
/// let spec = SampleSpec::new()
///     .with("tokens", tokens())
///     .with("targets", tokens())
///     .sequences(Sequences::of(["tokens", "targets"]).at_least(1).at_most(2048).truncated());
/// spec.validate()?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sequences {
    pub(super) fields: Vec<Arc<str>>,
    pub(super) least: usize,
    pub(super) most: Option<usize>,
    pub(super) truncated: bool,
}

impl Sequences {
    /// The names of the fields.
    pub fn of<N: Into<Arc<str>>>(fields: impl IntoIterator<Item = N>) -> Self {
        let fields = fields.into_iter().map(Into::into).collect();
        Sequences { fields, ..Sequences::default() }
    }

    /// The minimum number of rows; samples with fewer rows are errors. Default: 0.
    #[must_use]
    pub fn at_least(self, rows: usize) -> Self {
        Sequences { least: rows, ..self }
    }

    /// The maximum number of rows; samples with more rows are errors. Default: no maximum.
    #[must_use]
    pub fn at_most(self, rows: usize) -> Self {
        Sequences { most: Some(rows), ..self }
    }

    /// Removes the rows after the maximum, instead of an error.
    /// [`FillRecord::count_partial`] counts such samples.
    #[must_use]
    pub fn truncated(self) -> Self {
        Sequences { truncated: true, ..self }
    }

    /// Whether longer samples are truncated.
    pub fn truncates(&self) -> bool {
        self.truncated
    }

    fn description(&self) -> String {
        let Sequences { fields, least, most, truncated } = self;
        let most = match (most, truncated) {
            (None, _) => String::new(),
            (Some(most), false) => format!(", at most {most} rows"),
            (Some(most), true) => format!(", truncated to {most} rows"),
        };
        format!("{}, at least {least} rows{most}", fields.join(" and "))
    }
}

impl SampleSpec {
    /// A specification without fields.
    pub fn new() -> Self {
        SampleSpec::default()
    }

    /// Adds a field. A field of the same name is replaced.
    #[must_use]
    pub fn with(mut self, name: impl Into<Arc<str>>, field: SampleField) -> Self {
        let name = name.into();
        self.fields.retain(|(other, _)| *other != name);
        self.fields.push((name, field));
        self
    }

    /// Pads an image, and the masks that follow it.
    #[cfg(all(feature = "png", feature = "augment"))]
    pub(super) fn padded_like(mut self, image: &str) -> Self {
        for (name, field) in &mut self.fields {
            let image_of_field = match &field.kind {
                FieldKind::Mask(mask) => &*mask.like,
                _ => &**name,
            };
            if image_of_field == image {
                field.collation = Collation::Padded;
            }
        }
        self
    }

    /// Sets which fields are sequences of one length. Default: none.
    #[must_use]
    pub fn sequences(self, sequences: Sequences) -> Self {
        SampleSpec { sequences, ..self }
    }

    /// Sets the codecs and limits of audio fields. Default: those of this build, with the default
    /// limits.
    #[must_use]
    pub fn audio_codecs(mut self, registry: &AudioRegistry, limits: &AudioLimits) -> Self {
        self.audio = Some((registry.clone(), limits.clone()));
        self
    }

    /// Sets the containers, codecs and limits of video fields. Default: those of this build, with the
    /// default limits.
    #[must_use]
    pub fn video_codecs(mut self, registry: &VideoRegistry, limits: &VideoLimits) -> Self {
        self.video = Some((registry.clone(), limits.clone()));
        self
    }

    /// The fields with their names, in the order of [`with`](Self::with).
    pub fn fields(&self) -> impl Iterator<Item = (&str, &SampleField)> {
        self.fields.iter().map(|(name, field)| (&**name, field))
    }

    /// The names of boxes that should be in pixels, but are probably fractions, with the key of a sample: all its boxes
    /// are within 0 to 1. The first sample with boxes decides. Each field is returned once.
    ///
    /// A program reads batches, and then logs a warning for each field: see [`Boxes::normalized`].
    pub fn take_fractional_boxes(&self) -> impl Iterator<Item = (&str, Arc<str>)> {
        self.fields().filter_map(|(name, field)| match &field.kind {
            FieldKind::Boxes(boxes) => Some((name, boxes.take_fractional()?)),
            _ => None,
        })
    }

    /// The transform of an image; `None` if the specification has no such image.
    pub fn transform_of(&self, image: &str) -> Option<&ImageTransform> {
        self.fields().find(|(name, _)| *name == image).and_then(|(_, field)| match &field.kind {
            FieldKind::Image(transform) => Some(&**transform),
            _ => None,
        })
    }

    /// The stage that reads the stored fields. Labels are those that the data set assigned, such as
    /// the number of a folder.
    pub fn fetch(&self, fetcher: Arc<dyn Fetcher>) -> FetchFields {
        self.with_labels(self.chosen(FetchFields::new(fetcher)), None)
    }

    /// Like [`fetch`](Self::fetch), with the fetcher, the limit and the rules for labels of
    /// `labeled`, which `spdl_io::datasets::OpenedDataset::fetch_labeled` makes. The rules matter if
    /// the specification has a [label](SampleField::label).
    pub fn fetch_like(&self, labeled: &FetchLabeled) -> FetchFields {
        self.with_labels(self.chosen(FetchFields::like(labeled)), Some(labeled))
    }

    /// Reads the label if the specification has one.
    fn with_labels(&self, fetch: FetchFields, labeled: Option<&FetchLabeled>) -> FetchFields {
        let is_label =
            |(_, field): &&(Arc<str>, SampleField)| matches!(field.kind, FieldKind::Label);
        let Some((_, label)) = self.fields.iter().find(is_label) else { return fetch };
        let fetch = match labeled {
            Some(labeled) => fetch.with_labels_of(labeled),
            None => fetch,
        };
        if label.drops_missing { fetch.drop_unlabeled() } else { fetch }
    }

    /// Sets the columns of lists that the fields read: those of images, masks, audio, video, raw arrays and members
    /// of `.npz` files name files, and a list without such fields needs no files. Without images, the files of folders are those with
    /// [`AUDIO_EXTENSIONS`], [`VIDEO_EXTENSIONS`] or [`ARRAY_EXTENSIONS`], if there are such fields.
    pub fn opening(&self, options: OpenOptions) -> OpenOptions {
        let (mut files, mut paths, mut values) = (Vec::new(), Vec::new(), Some(Vec::new()));
        for (name, field) in &self.fields {
            let names: Vec<String> = match &field.choice {
                Some(choice) => choice.names().map(str::to_owned).collect(),
                None => vec![name.to_string()],
            };
            let is_image = matches!(
                field.kind,
                FieldKind::Image(_) | FieldKind::Audio(_) | FieldKind::Video(_)
            );
            let is_file = is_image || field.bytes != ArrayBytes::Detected;
            #[cfg(feature = "png")]
            let needs_file = is_file || matches!(field.kind, FieldKind::Mask(_));
            #[cfg(not(feature = "png"))]
            let needs_file = is_file;
            if field.path.is_none() {
                files.extend(names.iter().filter(|_| needs_file).cloned());
                paths.extend(names.iter().filter(|_| is_file).cloned());
            }
            if needs_file || names.iter().any(|name| name == "file") {
                values = None;
            }
            if let Some(values) = values.as_mut().filter(|_| field.choice(name).is_some()) {
                values.push(names);
            }
        }
        let kinds = || self.fields.iter().map(|(_, field)| &field.kind);
        let has_images = kinds().any(|kind| matches!(kind, FieldKind::Image(_)));
        let has_audio = kinds().any(|kind| matches!(kind, FieldKind::Audio(_)));
        let has_video = kinds().any(|kind| matches!(kind, FieldKind::Video(_)));
        let has_arrays = self.fields.iter().any(|(_, field)| field.may_be_file());
        let options = match (has_images, has_video, has_audio, has_arrays) {
            (false, true, ..) => options.extensions(&VIDEO_EXTENSIONS),
            (false, false, true, _) => options.extensions(&AUDIO_EXTENSIONS),
            (false, false, false, true) => options.extensions(&ARRAY_EXTENSIONS),
            _ => options,
        };
        options.file_fields(files).path_fields(paths).value_fields(values.unwrap_or_default())
    }

    /// Sets that `fetch`, which this specification made, reads only the parts of video and audio files that samples
    /// need: of MP4 and MOV, and of members of shards with [their index](super::IndexVideoParts), the packets from the
    /// nearest key frame to the last frame of a clip; of Matroska with cues, the clusters of a clip with times; of WAV and FLAC, the
    /// window. `stage` is the name of the stage that fills batches: its random numbers choose the parts. Samples are the
    /// same with and without this call.
    ///
    /// Which files are read whole, see [`FetchFields::select_parts`]. Files in other formats are read whole, and so are MP4
    /// files of audio fields. If a damaged clip needs packets of earlier key frames, or `stage` is another name, the
    /// stage that fills batches reads the other bytes itself, and waits for them.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_core::{PipelineBuilder, StageOptions};
    /// use spdl_io::MemoryFetcher;
    /// use spdl_media::audio::AudioTransform;
    /// use spdl_media::fill::{SampleField, SampleSpec};
    /// use spdl_media::{CodecRegistry, Limits};
    /// # let samples: Vec<spdl_io::StoredRecord> = Vec::new();
    /// let window = AudioTransform::new().frames(16_000).random(true);
    /// let spec = SampleSpec::new().with("audio", SampleField::audio(window));
    /// let fetch = spec.in_parts(spec.fetch(Arc::new(MemoryFetcher::new())), "decode");
    /// let pipeline = PipelineBuilder::from_iter(samples)
    ///     .async_stage("fetch", fetch)
    ///     .fill("decode", spec.layout(8), spec.filler(&CodecRegistry::with_defaults(), &Limits::default()))
    ///     .build()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn in_parts(&self, fetch: FetchFields, stage: &str) -> FetchFields {
        let ((audio_codecs, audio_limits), (video_codecs, video_limits)) = self.codecs();
        self.fields.iter().fold(fetch, |fetch, (name, field)| {
            let selector: Arc<dyn SelectParts> = match &field.kind {
                FieldKind::Audio(transform) => {
                    Arc::new(AudioParts::new(&audio_codecs, &audio_limits, transform))
                }
                FieldKind::Video(transform) => {
                    Arc::new(VideoParts::new(&video_codecs, &video_limits, transform.clip()))
                }
                _ => return fetch,
            };
            fetch.select_parts(Arc::clone(name), stage, selector)
        })
    }

    /// The codecs and limits of audio and video fields.
    pub(super) fn codecs(&self) -> (AudioCodecs, VideoCodecs) {
        let audio = || (AudioRegistry::with_defaults(), AudioLimits::default());
        let video = || (VideoRegistry::with_defaults(), VideoLimits::default());
        (self.audio.clone().unwrap_or_else(audio), self.video.clone().unwrap_or_else(video))
    }

    fn chosen(&self, fetch: FetchFields) -> FetchFields {
        let choices = self.fields.iter().map(|(name, field)| (name, field.choice(name)));
        let fetch = choices.fold(fetch, |fetch, (name, choice)| match choice {
            Some(choice) => fetch.with(Arc::clone(name), choice),
            None => fetch,
        });
        let fetch = self.fields.iter().fold(fetch, |fetch, (name, field)| match &field.kind {
            FieldKind::Boxes(Boxes { drop_where: Some(stored), .. }) => {
                let choice =
                    FieldChoice::of([Arc::clone(stored)]).with_extensions(VALUE_EXTENSIONS);
                fetch.with(dropped_boxes_of(name), choice.optional())
            }
            _ => fetch,
        });
        let is_url = |(_, field): &&(Arc<str>, SampleField)| matches!(field.kind, FieldKind::Url);
        let urls = self.fields.iter().filter(is_url);
        urls.fold(fetch, |fetch, (name, _)| fetch.with_address(Arc::clone(name)))
    }

    /// The layout of batches of `batch_size` samples.
    pub fn layout(&self, batch_size: usize) -> BatchLayout {
        let fields = self.fields.iter().map(|(name, field)| {
            let (shape, collation) = self.shape(field);
            let in_batch = Field::new(name, field.dtype, &shape).collation(collation);
            match (&field.kind, field.padding) {
                #[cfg(feature = "png")]
                (FieldKind::Mask(mask), _) => mask.padded(in_batch),
                (_, Some(padding)) => padded(in_batch.clone(), padding).unwrap_or(in_batch),
                _ => in_batch,
            }
        });
        BatchLayout::new(batch_size, fields)
    }

    /// The shape of a sample of a field, and its collation.
    fn shape(&self, field: &SampleField) -> (Vec<usize>, Collation) {
        #[cfg(feature = "png")]
        if let FieldKind::Mask(mask) = &field.kind
            && let Some((_, image)) = self.fields.iter().find(|(name, _)| *name == mask.like)
            && let FieldKind::Image(transform) = &image.kind
        {
            let size = transform.fixed_size();
            return (vec![size.height as usize, size.width as usize], image.collation);
        }
        if let FieldKind::VideoTimes(like) = &field.kind
            && let Some((_, video)) = self.fields.iter().find(|(name, _)| name == like)
            && let FieldKind::Video(transform) = &video.kind
        {
            return (vec![transform.clip().frames()], field.collation);
        }
        (field.shape.clone(), field.collation)
    }

    /// The function that creates the stage of one worker, for
    /// [`PipelineBuilder::fill`](spdl_core::PipelineBuilder::fill).
    ///
    /// Each call fails with the errors of [`FillRecord::new`].
    pub fn filler(
        &self,
        registry: &CodecRegistry,
        limits: &Limits,
    ) -> impl Fn() -> Result<FillRecord> + Send + Sync + 'static {
        let (spec, registry, limits) = (self.with_codecs(), registry.clone(), limits.clone());
        move || FillRecord::new(&spec, &registry, &limits)
    }

    /// The same with explicit codecs, so that all workers share the decoders of one registry.
    fn with_codecs(&self) -> SampleSpec {
        let (audio, video) = self.codecs();
        SampleSpec { audio: Some(audio), video: Some(video), ..self.clone() }
    }

    /// What determines the batches, for
    /// [`StageOptions::parameters`](spdl_core::StageOptions::parameters): a run that resumes with
    /// other fields reports the difference.
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        let sequences = (!self.sequences.fields.is_empty())
            .then(|| ("sequences".to_owned(), self.sequences.description()));
        let described = |(name, field): &(Arc<str>, SampleField)| {
            let field_name = format!("field {name}");
            let augment = field.augmentations().map(|all| (format!("{field_name}: augment"), all));
            std::iter::once((field_name, field.description(name))).chain(augment)
        };
        self.fields.iter().flat_map(described).chain(sequences)
    }

    /// Checks all fields.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no field, a transform is invalid, a shape does not fit its
    /// collation, or a field refers to another field that does not exist or has another type.
    pub fn validate(&self) -> Result<()> {
        if self.fields.is_empty() {
            let message = "the sample has no fields; add at least one";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.fields.iter().try_for_each(|(name, field)| {
            let checked = match &field.kind {
                FieldKind::Image(transform) => {
                    transform.validate().and_then(|()| self.check_boxes_of(name, transform))
                }
                FieldKind::Audio(transform) => transform.validate(),
                FieldKind::AudioFrames(like) => {
                    self.refers(like, "audio", |kind| matches!(kind, FieldKind::Audio(_)))
                }
                FieldKind::Video(transform) => transform.validate(),
                FieldKind::VideoFrames(like) | FieldKind::VideoTimes(like) => {
                    self.refers(like, "video", |kind| matches!(kind, FieldKind::Video(_)))
                }
                FieldKind::Boxes(boxes) => boxes.validate().and_then(|()| self.image(&boxes.like)),
                FieldKind::Points(points) => self.image(&points.like),
                FieldKind::Geometry(like) | FieldKind::ImageSize(like) => self.image(like),
                #[cfg(feature = "png")]
                FieldKind::Mask(mask) => {
                    mask.validate(field.dtype).and_then(|()| self.image(&mask.like))
                }
                _ => Ok(()),
            };
            let checked = checked.and_then(|()| field.check_padding());
            let checked = checked.and_then(|()| field.check_missing());
            let checked = checked.and_then(|()| field.check_bytes());
            let checked = checked.and_then(|()| match (&field.rows_of, &field.kind) {
                (None, _) => Ok(()),
                (Some(boxes), FieldKind::Numbers | FieldKind::Flags | FieldKind::Points(_)) => {
                    self.refers(boxes, "boxes", |kind| matches!(kind, FieldKind::Boxes(_)))
                }
                (Some(_), _) => {
                    let message = "only numbers and points have rows that belong to boxes";
                    Err(Error::new(ErrorKind::InvalidArgument, message))
                }
            });
            #[cfg(feature = "augment")]
            let checked = checked.and_then(|()| self.check_augmenter(field));
            checked.map_err(|error| {
                Error::new(error.kind(), format!("field {name:?}: {}", error.message()))
            })
        })?;
        let layout = self.layout(1);
        layout.fields().iter().try_for_each(Field::validate)?;
        self.sequences.fields.iter().try_for_each(|name| {
            let found = layout.fields().iter().find(|field| field.name == *name);
            let message = match found {
                Some(Field { shape, .. }) if shape.first() == Some(&0) => return Ok(()),
                Some(Field { shape, .. }) => format!(
                    "field {name:?} has the shape {shape:?}; the first dimension of a sequence has any \
                     length (0)"
                ),
                None => format!("there is no field {name:?}"),
            };
            Err(Error::new(ErrorKind::InvalidArgument, message))
        })
    }

    /// Checks that an image has the boxes that its crop needs.
    fn check_boxes_of(&self, image: &str, transform: &ImageTransform) -> Result<()> {
        if !transform.needs_boxes() || self.boxes_of(image).next().is_some() {
            return Ok(());
        }
        let message = "an IoU crop needs a field of boxes that follow the image";
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// The fields of boxes that follow an image.
    pub(super) fn boxes_of(
        &self,
        image: &str,
    ) -> impl Iterator<Item = (&str, &SampleField, &Boxes)> {
        self.fields.iter().filter_map(move |(name, field)| match &field.kind {
            FieldKind::Boxes(boxes) if *boxes.like == *image => Some((&**name, field, boxes)),
            _ => None,
        })
    }

    #[cfg(feature = "augment")]
    fn check_augmenter(&self, field: &SampleField) -> Result<()> {
        let is_augmented = matches!(field.kind, FieldKind::Image(_) | FieldKind::Video(_));
        if !field.augmenter.is_empty() && !is_augmented {
            let message = "only images and videos are augmented";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if let (FieldKind::Image(transform), false) = (&field.kind, field.augmenter.is_empty()) {
            transform.check_augmentable()?;
        }
        field.augmenter.validate()
    }

    /// Checks that a field can follow the image `name`.
    fn image(&self, name: &str) -> Result<()> {
        #[cfg(feature = "augment")]
        if let Some((_, image)) = self.fields.iter().find(|(other, _)| **other == *name)
            && !image.augmenter.can_be_followed()
        {
            let message = format!(
                "an augmentation of {name:?} moves its content in a way that this field cannot follow; use \
                 others, such as rotations or changes of colours"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.refers(
            name,
            "an image of one crop",
            |kind| matches!(kind, FieldKind::Image(transform) if transform.crops().is_none()),
        )
    }

    fn refers(&self, name: &str, what: &str, is: impl Fn(&FieldKind) -> bool) -> Result<()> {
        let found = self.fields.iter().find(|(other, _)| **other == *name);
        let message = match found {
            Some((_, field)) if is(&field.kind) => return Ok(()),
            Some(_) => format!("field {name:?} is not {what}"),
            None => format!("there is no field {name:?}"),
        };
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_workers_of_a_filler_share_decoders() {
        let spec = SampleSpec::new().with_codecs();
        let registry = || spec.codecs().1.0;
        assert!(registry().shares_decoders_with(&registry()));
        let other = SampleSpec::new().with_codecs().codecs().1.0;
        assert!(!registry().shares_decoders_with(&other));
    }
}
