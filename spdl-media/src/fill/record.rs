//! Writes the fields of a record into its place in a batch.

use std::sync::Arc;

use spdl_core::observe::Counter;
use spdl_core::{Error, ErrorKind, Field, Fill, FillContext, Result, SlotMut};
use spdl_io::records::{Encoding, FetchFields};
use spdl_io::{FieldValue, Record, StoredRecord};

use super::audio::FillAudio;
use super::geometry::{self, Boxes, ImageGeometry};
use super::image::FillImage;
#[cfg(feature = "png")]
use super::mask::{EncodedMask, MaskDecoder};
use super::numbers::Numbers;
use super::spec::{FieldKind, SampleField, SampleSpec, Sequences, dropped_boxes_of};
use super::video::{FillVideo, WrittenClip};
use crate::image::{CodecRegistry, Limits, Size};
#[cfg(feature = "png")]
use crate::transform::ImageTransform;

/// Decodes the fields of a record into its place in a batch. Made by
/// [`SampleSpec::filler`], which has an example.
#[derive(Debug)]
pub struct FillRecord {
    fields: Vec<FieldWriter>,
    /// Indices of `fields`: images first, then boxes, which depend on images, then the rest.
    order: Vec<usize>,
    buffers: SharedBuffers,
    sequences: Sequences,
    /// Indices of the fields of `sequences`.
    places: Vec<usize>,
    /// Counts truncated sequences.
    partial: Counter,
}

/// Memory that the fields share.
#[derive(Debug)]
struct SharedBuffers {
    numbers: Numbers,
    #[cfg(feature = "png")]
    masks: MaskDecoder,
    #[cfg(feature = "png")]
    limits: Limits,
}

#[derive(Debug)]
struct FieldWriter {
    name: Arc<str>,
    field: SampleField,
    /// Present for images.
    image: Option<FillImage>,
    /// Present for audio.
    audio: Option<FillAudio>,
    /// The number of frames of the current sample, if this is audio.
    frames: u64,
    /// Present for video.
    video: Option<FillVideo>,
    /// The frames of the current sample, if this is video.
    clip: WrittenClip,
    /// The part of the sample whose random numbers the image draws; `None` for those of the sample.
    view: Option<String>,
    /// Whether a mask has an EXIF orientation that applies.
    #[cfg(feature = "png")]
    applies_exif: bool,
    /// Indices of the fields to which this one refers.
    like: Option<usize>,
    rows_of: Option<usize>,
    /// The field of the record that marks the dropped boxes.
    dropped_boxes: Option<Arc<str>>,
    /// The boxes by which a part of the image is chosen, if there is such a choice.
    choosing: Vec<ChoosingBoxes>,
    /// How the current sample was written, if this is an image.
    geometry: Option<ImageGeometry>,
    /// The boxes of the current sample that remain, if these are boxes.
    kept: KeptBoxes,
}

/// Boxes by which a part of their image is chosen, before they are written.
#[derive(Debug)]
struct ChoosingBoxes {
    name: Arc<str>,
    boxes: Boxes,
    default: Option<FieldValue>,
    dropped: Option<Arc<str>>,
}

impl ChoosingBoxes {
    /// Left, top, right and bottom of the boxes in the image. None if they are not valid: writing them fails later.
    fn corners(&self, record: &Record, image: Size, numbers: &mut Numbers) -> Vec<[f64; 4]> {
        let dropped = self.dropped.as_ref().and_then(|name| record.get(name).ok());
        let value = match (record.get(&self.name), &self.default) {
            (Ok(FieldValue::Null), Some(default)) => default,
            (Ok(value), _) => value,
            (Err(_), _) => return Vec::new(),
        };
        if matches!(value, FieldValue::Null) || numbers.read(value).is_err() {
            return Vec::new();
        }
        let dropped = dropped.unwrap_or(&FieldValue::Null);
        if let Ok(Some(wanted)) = wanted_boxes(dropped, numbers.rows()) {
            numbers.keep_rows(&wanted);
        }
        self.boxes.all_corners(numbers, image)
    }
}

impl FillRecord {
    /// Creates the decoders of one worker.
    ///
    /// # Errors
    /// The errors of [`SampleSpec::validate`].
    pub fn new(spec: &SampleSpec, registry: &CodecRegistry, limits: &Limits) -> Result<Self> {
        spec.validate()?;
        let ((audio_codecs, audio_limits), (video_codecs, video_limits)) = spec.codecs();
        let fields = spec.fields().map(|(name, field)| {
            let image = match &field.kind {
                FieldKind::Image(transform) => {
                    let image = FillImage::new(registry, transform, limits)?;
                    #[cfg(feature = "augment")]
                    let image = image.augment(field.augmenter.clone())?;
                    Some(image)
                }
                _ => None,
            };
            let audio = match &field.kind {
                FieldKind::Audio(transform) => {
                    Some(FillAudio::new(&audio_codecs, transform, &audio_limits)?)
                }
                _ => None,
            };
            let video = match &field.kind {
                FieldKind::Video(transform) => {
                    let video = FillVideo::new(&video_codecs, transform, &video_limits, limits)?;
                    #[cfg(feature = "augment")]
                    let video = video.augment(field.augmenter.clone())?;
                    Some(video)
                }
                _ => None,
            };
            let like = match &field.kind {
                FieldKind::AudioFrames(like) => Some(like),
                FieldKind::VideoFrames(like) | FieldKind::VideoTimes(like) => Some(like),
                FieldKind::Boxes(boxes) => Some(&boxes.like),
                FieldKind::Points(points) => Some(&points.like),
                FieldKind::Geometry(like) | FieldKind::ImageSize(like) => Some(like),
                #[cfg(feature = "png")]
                FieldKind::Mask(mask) => Some(&mask.like),
                _ => None,
            };
            #[cfg(feature = "png")]
            let applies_exif = match &field.kind {
                FieldKind::Mask(mask) => spec
                    .transform_of(&mask.like)
                    .is_none_or(ImageTransform::applies_exif_orientation),
                _ => true,
            };
            let dropped_boxes = match &field.kind {
                FieldKind::Boxes(boxes) if boxes.drop_where.is_some() => {
                    Some(dropped_boxes_of(name))
                }
                _ => None,
            };
            let choosing = match &field.kind {
                FieldKind::Image(transform) if transform.needs_boxes() => {
                    let boxes = spec.boxes_of(name).map(|(name, field, boxes)| ChoosingBoxes {
                        name: name.into(),
                        boxes: boxes.clone(),
                        default: field.default.clone(),
                        dropped: boxes.drop_where.as_ref().map(|_| dropped_boxes_of(name)),
                    });
                    boxes.collect()
                }
                _ => Vec::new(),
            };
            let find = |other: &Arc<str>| spec.fields().position(|(name, _)| *name == **other);
            Ok(FieldWriter {
                name: name.into(),
                image,
                audio,
                frames: 0,
                video,
                clip: WrittenClip::default(),
                view: (field.view > 0).then(|| format!("view {}", field.view)),
                #[cfg(feature = "png")]
                applies_exif,
                like: like.and_then(find),
                rows_of: field.rows_of.as_ref().and_then(find),
                dropped_boxes,
                choosing,
                field: field.clone(),
                geometry: None,
                kept: KeptBoxes::default(),
            })
        });
        let fields = fields.collect::<Result<Vec<_>>>()?;
        let rank = |at: &usize| match fields[*at].field.kind {
            FieldKind::Image(_) | FieldKind::Audio(_) | FieldKind::Video(_) => 0,
            FieldKind::Boxes(_) => 1,
            _ => 2,
        };
        let mut order: Vec<usize> = (0..fields.len()).collect();
        order.sort_by_key(rank);
        let buffers = SharedBuffers {
            numbers: Numbers::default(),
            #[cfg(feature = "png")]
            masks: MaskDecoder::default(),
            #[cfg(feature = "png")]
            limits: limits.clone(),
        };
        let places = spec
            .sequences
            .fields
            .iter()
            .filter_map(|name| fields.iter().position(|writer| writer.name == *name));
        Ok(FillRecord {
            places: places.collect(),
            fields,
            order,
            buffers,
            sequences: spec.sequences.clone(),
            partial: Counter::default(),
        })
    }

    /// Counts partial samples of all images, and truncated sequences: see
    /// [`FillImage::count_partial`] and [`Sequences::truncated`].
    #[must_use]
    pub fn count_partial(mut self, counter: &Counter) -> Self {
        self.partial = counter.clone();
        for writer in &mut self.fields {
            let image = writer.image.take();
            writer.image = image.map(|image| image.count_partial(counter.clone()));
            let audio = writer.audio.take();
            writer.audio = audio.map(|audio| audio.count_partial(counter.clone()));
            let video = writer.video.take();
            writer.video = video.map(|video| video.count_partial(counter.clone()));
        }
        self
    }

    /// Counts the duration of the audio of all samples in microseconds, without padding: see
    /// [`FillAudio::count_microseconds`].
    #[must_use]
    pub fn count_audio(mut self, microseconds: &Counter) -> Self {
        for writer in &mut self.fields {
            let audio = writer.audio.take();
            writer.audio = audio.map(|audio| audio.count_microseconds(microseconds.clone()));
        }
        self
    }
}

impl FillRecord {
    /// Compares the lengths of the sequences, and truncates them.
    fn check_sequences(&self, slot: &mut SlotMut<'_>) -> Result<()> {
        let Some(&first) = self.places.first() else { return Ok(()) };
        let rows = |slot: &SlotMut<'_>, at: usize| slot.shape(at).first().copied().unwrap_or(0);
        let fault = |kind, at: usize, message: String| {
            Err(Error::new(kind, format!("field {:?}: {message}", self.fields[at].name)))
        };
        let found = rows(slot, first);
        for &at in &self.places {
            let other = rows(slot, at);
            if other != found {
                let name = &self.fields[first].name;
                let message = format!("expected {found} rows as in field {name:?}, found {other}");
                return fault(ErrorKind::InvalidArgument, at, message);
            }
        }
        let Sequences { least, most, truncated, .. } = self.sequences;
        if found < least {
            let message = match found {
                0 => "the sequence is empty".to_owned(),
                _ => format!("a sequence of {found} tokens is shorter than the minimum of {least}"),
            };
            return fault(ErrorKind::InvalidArgument, first, message);
        }
        match most {
            Some(most) if found > most && truncated => {
                self.places.iter().for_each(|&at| slot.truncate(at, most));
                self.partial.add(1);
                Ok(())
            }
            Some(most) if found > most => {
                let message = format!(
                    "a sequence of {found} tokens exceeds the maximum of {most}; truncate or split long \
                     sequences (`long=\"truncate\"` or `long=\"split\"`), or raise the maximum"
                );
                fault(ErrorKind::LimitExceeded, first, message)
            }
            _ => Ok(()),
        }
    }
}

impl Fill<&Record> for FillRecord {
    /// # Errors
    /// The errors of [`FillImage::write`]; `InvalidArgument` if a value has another type than its
    /// field, or numbers of another shape, or sequences of the record differ in length; `NotFound` if the
    /// record has no such field; `LimitExceeded` if a sequence is too long. The message begins with the
    /// field.
    fn fill(
        &mut self,
        record: &Record,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        for &at in &self.order {
            let (like, boxes) = (self.fields[at].like, self.fields[at].rows_of);
            let related = Related {
                frames: like.map_or(0, |like| self.fields[like].frames),
                clip: like
                    .map(|like| std::mem::take(&mut self.fields[like].clip))
                    .unwrap_or_default(),
                geometry: like.and_then(|like| self.fields[like].geometry.take()),
                kept: boxes
                    .map(|boxes| std::mem::take(&mut self.fields[boxes].kept))
                    .unwrap_or_default(),
            };
            let writer = &mut self.fields[at];
            let written = writer.write(record, &mut self.buffers, &mut slot, at, cx, &related);
            written.map_err(|error| {
                let prefix = format!("field {:?}", writer.name);
                let message = match error.message() {
                    message if message.starts_with(&prefix) => message.to_owned(),
                    message => format!("{prefix}: {message}"),
                };
                let of_field =
                    Error::new(error.kind(), message).with_key(record.key.display_name());
                match error.offset() {
                    Some(offset) => of_field.with_offset(offset).with_cause_of(error),
                    None => of_field.with_cause_of(error),
                }
            })?;
            if let Some(boxes) = boxes {
                self.fields[boxes].kept = related.kept;
            }
            if let Some(like) = like {
                self.fields[like].geometry = related.geometry;
                self.fields[like].clip = related.clip;
            }
        }
        self.check_sequences(&mut slot).map_err(|error| error.with_key(record.key.display_name()))
    }

    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        let names = self.fields.iter().map(|writer| &writer.name);
        if !fields.iter().map(|field| &field.name).eq(names) {
            let message = "the layout is of another specification; use `SampleSpec::layout`";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.fields.iter().zip(fields).try_for_each(|(writer, field)| {
            match (&writer.image, &writer.video) {
                (Some(image), _) => image.check_field(field),
                (_, Some(video)) => video.check_field(field),
                _ => Ok(()),
            }
        })
    }
}

impl Fill<Record> for FillRecord {
    /// # Errors
    /// The errors for a borrowed record.
    fn fill(&mut self, record: Record, slot: SlotMut<'_>, cx: &mut FillContext<'_>) -> Result<()> {
        Fill::<&Record>::fill(self, &record, slot, cx)
    }

    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        Fill::<&Record>::check_fields(self, fields)
    }
}

/// Reads samples that are in memory, and writes their fields as [`FillRecord`].
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::PipelineBuilder;
/// use spdl_io::{FieldValue, MemoryFetcher, StoredRecord};
/// use spdl_media::fill::{FillStored, SampleField, SampleSpec};
/// use spdl_media::{CodecRegistry, Limits};
///
/// let spec = SampleSpec::new().with("caption", SampleField::text().stored_as(["txt"]));
/// let samples = [StoredRecord::new("1").with_known("txt", FieldValue::Text("a dog".into()))];
/// let fetch = spec.fetch(Arc::new(MemoryFetcher::new()));
/// let filler = spec.filler(&CodecRegistry::with_defaults(), &Limits::default());
/// let mut pipeline = PipelineBuilder::from_iter(samples)
///     .fill("decode", spec.layout(8), move || Ok(FillStored::new(fetch.clone(), filler()?)))
///     .build()?;
/// let batch = pipeline.next().expect("one batch")?;
/// assert_eq!(batch.array("caption").map(|text| text.as_bytes()), Some(&b"a dog"[..]));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct FillStored {
    fetch: FetchFields,
    fill: FillRecord,
}

impl FillStored {
    /// Reads by [`FetchFields::read_in_memory`], and writes by `fill`.
    pub fn new(fetch: FetchFields, fill: FillRecord) -> Self {
        FillStored { fetch, fill }
    }
}

impl Fill<StoredRecord> for FillStored {
    /// # Errors
    /// The errors of [`FetchFields::read_in_memory`] and of [`FillRecord`].
    fn fill(
        &mut self,
        sample: StoredRecord,
        slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        let record = self.fetch.read_in_memory(&sample)?;
        Fill::<&Record>::fill(&mut self.fill, &record, slot, cx)
    }

    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        Fill::<&Record>::check_fields(&self.fill, fields)
    }
}

/// What a field needs from the fields to which it refers.
struct Related {
    /// The number of frames of audio.
    frames: u64,
    clip: WrittenClip,
    geometry: Option<ImageGeometry>,
    kept: KeptBoxes,
}

/// The boxes of a sample that remain.
#[derive(Debug, Default)]
struct KeptBoxes {
    /// The number of stored boxes; `None` if none were dropped for lack of a value or an image.
    stored: Option<usize>,
    /// The indices of the remaining ones. Keeps its memory.
    rows: Vec<usize>,
}

impl FieldWriter {
    fn write(
        &mut self,
        record: &Record,
        buffers: &mut SharedBuffers,
        slot: &mut SlotMut<'_>,
        at: usize,
        cx: &FillContext<'_>,
        related: &Related,
    ) -> Result<()> {
        let bytes = |slot: &mut SlotMut<'_>, bytes: &[u8]| {
            slot.resize::<u8>(at, &[bytes.len()])?.copy_from_slice(bytes);
            Ok(())
        };
        match &self.field.kind {
            FieldKind::Label => return slot.set(at, record.label),
            FieldKind::Index => return slot.set(at, cx.id().index as i64),
            FieldKind::Key => return bytes(slot, record.key.as_bytes()),
            FieldKind::Geometry(_) => {
                let matrix = related.geometry.as_ref().map(geometry::matrix).transpose()?;
                let matrix = matrix.unwrap_or_default();
                slot.typed_mut::<f32>(at)?.copy_from_slice(&matrix);
                return Ok(());
            }
            FieldKind::AudioFrames(_) => return slot.set(at, related.frames as i64),
            FieldKind::VideoFrames(_) => return slot.set(at, related.clip.valid as i64),
            FieldKind::VideoTimes(_) => {
                let times = slot.typed_mut::<f64>(at)?;
                times.fill(0.0);
                let found = times.iter_mut().zip(&related.clip.seconds);
                found.for_each(|(time, seconds)| *time = *seconds);
                return Ok(());
            }
            FieldKind::ImageSize(_) => {
                let size = related.geometry.as_ref().map(|geometry| geometry.written.image);
                let sides = size.map_or([0; 2], |size| [size.height, size.width].map(i64::from));
                slot.typed_mut::<i64>(at)?.copy_from_slice(&sides);
                return Ok(());
            }
            _ => {}
        }
        let mut warps = self.geometry.take().map(|last| last.warps).unwrap_or_default();
        self.kept.stored = None;
        self.frames = 0;
        self.clip = WrittenClip::default();
        let value = match (record.get(&self.name)?, &self.field.default) {
            (FieldValue::Null, Some(default)) => default,
            (FieldValue::Null, None) => {
                #[cfg(feature = "png")]
                if let FieldKind::Mask(mask) = &self.field.kind {
                    let size = related.geometry.as_ref().map(|it| it.written.size);
                    return mask.write_outside(slot, at, size);
                }
                if matches!(&self.field.kind, FieldKind::Boxes(boxes) if boxes.drops_empty) {
                    return Err(no_boxes());
                }
                if let FieldKind::Tokens(tokens) = &self.field.kind
                    && tokens.length().is_some()
                {
                    buffers.numbers.set_integers(std::iter::empty());
                    tokens.pad(&mut buffers.numbers, self.field.pad_value());
                    return buffers.numbers.store(slot, at);
                }
                slot.bytes_mut(at).fill(0);
                return Ok(());
            }
            (value, _) => value,
        };
        let numbers = &mut buffers.numbers;
        match (&self.field.kind, value) {
            (FieldKind::Image(_), FieldValue::Bytes(encoded)) => {
                if let Some(image) = &mut self.image {
                    let rng = || match &self.view {
                        None => cx.rng(),
                        Some(view) => cx.rng_of_part(view),
                    };
                    let boxes = |size| {
                        let all = self.choosing.iter();
                        all.flat_map(|boxes| boxes.corners(record, size, numbers)).collect()
                    };
                    let written = image.write_field_with(encoded, slot, at, boxes, rng)?;
                    warps.clear();
                    warps.extend_from_slice(image.warps());
                    self.geometry = Some(ImageGeometry { written, warps });
                }
                Ok(())
            }
            (FieldKind::Audio(_), FieldValue::Bytes(encoded)) => {
                if let Some(audio) = &mut self.audio {
                    self.frames = audio.write(encoded, slot, at, || cx.rng())?;
                }
                Ok(())
            }
            (FieldKind::Video(_), FieldValue::Bytes(encoded)) => {
                if let Some(video) = &mut self.video {
                    self.clip =
                        video.write(&encoded[..], slot, at, &|part| cx.rng_of_part(part))?;
                }
                Ok(())
            }
            (FieldKind::Audio(_), FieldValue::Parts(file)) => {
                if let Some(audio) = &mut self.audio {
                    self.frames = audio.write_source(&**file, slot, at, || cx.rng())?;
                }
                Ok(())
            }
            (FieldKind::Video(_), FieldValue::Parts(file)) => {
                if let Some(video) = &mut self.video {
                    self.clip = video.write(&**file, slot, at, &|part| cx.rng_of_part(part))?;
                }
                Ok(())
            }
            (FieldKind::Boxes(boxes), value) => {
                numbers.read(value)?;
                boxes.check_unit(numbers, &record.key);
                let stored = numbers.rows();
                let dropped = self.dropped_boxes.as_ref().and_then(|name| record.get(name).ok());
                let wanted = wanted_boxes(dropped.unwrap_or(&FieldValue::Null), stored)?;
                if let Some(wanted) = &wanted {
                    numbers.keep_rows(wanted);
                    self.kept.rows.clone_from(wanted);
                    self.kept.stored = Some(stored);
                }
                if boxes.drops_empty && numbers.rows() == 0 {
                    return Err(no_boxes());
                }
                if let Some(geometry) = &related.geometry {
                    boxes.apply(numbers, geometry, &mut self.kept.rows)?;
                    self.kept.stored = Some(stored);
                    if let Some(wanted) = wanted {
                        self.kept.rows.iter_mut().for_each(|row| *row = wanted[*row]);
                    }
                }
                numbers.store(slot, at)
            }
            (FieldKind::Points(points), value) => {
                numbers.read(value)?;
                related.keep_rows(numbers)?;
                if let Some(geometry) = &related.geometry {
                    points.apply(numbers, geometry)?;
                }
                numbers.store(slot, at)
            }
            (FieldKind::Numbers | FieldKind::Flags, value) => {
                match self.field.bytes.array(value, self.field.shape())? {
                    // No row is dropped.
                    Some(array)
                        if matches!(self.field.kind, FieldKind::Numbers)
                            && self.rows_of.is_none()
                            && Numbers::copy(&array, slot, at)? =>
                    {
                        return Ok(());
                    }
                    Some(array) => numbers.set_array(&array)?,
                    None if matches!(self.field.kind, FieldKind::Numbers)
                        && self.rows_of.is_none()
                        && Numbers::copy_integers(value, slot, at)? =>
                    {
                        return Ok(());
                    }
                    None => numbers.read(value)?,
                }
                if matches!(self.field.kind, FieldKind::Flags) {
                    numbers.check_flags()?;
                }
                related.keep_rows(numbers)?;
                numbers.store(slot, at)
            }
            (FieldKind::Tokens(tokens), value) => {
                tokens.read(value, numbers)?;
                tokens.pad(numbers, self.field.pad_value());
                numbers.store(slot, at)
            }
            #[cfg(feature = "png")]
            (FieldKind::Mask(mask), FieldValue::Bytes(encoded)) => match &related.geometry {
                Some(geometry) => {
                    let encoded = EncodedMask { bytes: encoded, applies_exif: self.applies_exif };
                    buffers.masks.write(mask, encoded, &buffers.limits, geometry, slot, at)
                }
                // Without its image, a mask has no geometry.
                None => mask.write_outside(slot, at, None),
            },
            (FieldKind::Text, FieldValue::Text(text)) => bytes(slot, text.as_bytes()),
            (FieldKind::Text, FieldValue::Bytes(text)) => match std::str::from_utf8(text) {
                Ok(text) => bytes(slot, text.as_bytes()),
                Err(error) => {
                    let error = Error::new(ErrorKind::Corrupt, "invalid UTF-8").with_source(error);
                    Err(error)
                }
            },
            (FieldKind::Bytes | FieldKind::Url, FieldValue::Bytes(value)) => bytes(slot, value),
            (FieldKind::Bytes | FieldKind::Url, FieldValue::Text(value)) => {
                bytes(slot, value.as_bytes())
            }
            (FieldKind::Json, value) => match json(value)? {
                Some(text) => bytes(slot, text.as_bytes()),
                None => Err(self.wrong_type(value)),
            },
            (_, value) => Err(self.wrong_type(value)),
        }
    }

    fn wrong_type(&self, value: &FieldValue) -> Error {
        let expected = match self.field.kind {
            FieldKind::Image(_) => "an encoded image",
            FieldKind::Audio(_) => "an encoded audio file",
            FieldKind::Video(_) => "an encoded video",
            #[cfg(feature = "png")]
            FieldKind::Mask(_) => "an encoded mask",
            FieldKind::Text => "text",
            FieldKind::Bytes => "bytes",
            _ => "a value that JSON can hold",
        };
        let is_file = matches!(
            self.field.kind,
            FieldKind::Image(_) | FieldKind::Audio(_) | FieldKind::Video(_)
        );
        #[cfg(feature = "png")]
        let is_file = is_file || matches!(self.field.kind, FieldKind::Mask(_));
        // Text is never the name of a file.
        let advice = match value {
            FieldValue::Text(text) if is_file && text.contains("://") => {
                "; to read addresses, write the column to a list (.csv or .jsonl) and open this list"
            }
            FieldValue::Array(_) if matches!(self.field.kind, FieldKind::Image(_)) => {
                "; for decoded pixels, use an array field (in Python, fields.Array), or encode the image, for example \
                 as PNG"
            }
            FieldValue::Text(_) if is_file => {
                "; to read files, pass paths in place of text (in dicts of Python, a pathlib.Path), or write \
                 the column to a list (.csv or .jsonl) and open this list"
            }
            _ => "",
        };
        let message = format!("expected {expected}, found {}{advice}", value.kind());
        Error::new(ErrorKind::InvalidArgument, message)
    }
}

fn no_boxes() -> Error {
    Error::new(ErrorKind::MissingValue, "the sample has no boxes")
}

/// The indices of the boxes for which a number is 0; `None` for all.
///
/// # Errors
/// `InvalidArgument` if there is not one number for each of the `boxes`.
fn wanted_boxes(dropped: &FieldValue, boxes: usize) -> Result<Option<Vec<usize>>> {
    if matches!(dropped, FieldValue::Null) {
        return Ok(None);
    }
    let mut flags = Numbers::default();
    flags.read(dropped)?;
    if flags.shape() != [boxes] {
        let message = format!(
            "expected one number for each of the {boxes} boxes, which is not 0 for boxes to drop; found the shape {:?}",
            flags.shape()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(Some((0..boxes).filter(|&at| flags.get(at) == 0.0).collect()))
}

impl Related {
    /// Drops the rows of dropped boxes.
    fn keep_rows(&self, numbers: &mut Numbers) -> Result<()> {
        let Some(stored) = self.kept.stored else { return Ok(()) };
        if numbers.rows() != stored {
            let found = numbers.rows();
            let message = format!("expected one row for each of the {stored} boxes, found {found}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        numbers.keep_rows(&self.kept.rows);
        Ok(())
    }
}

/// A value as JSON text; `None` if JSON cannot hold it.
///
/// # Errors
/// `Corrupt` if stored bytes are not JSON.
fn json(value: &FieldValue) -> Result<Option<String>> {
    let document = match value {
        FieldValue::Bytes(text) => Encoding::Json.decode(text.clone())?.to_json(),
        value => value.to_json(),
    };
    Ok(document.map(|document| document.to_string()))
}
