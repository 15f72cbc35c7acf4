//! Fields from descriptions: JSON values with the names and parameters of `spdl_rs.fields` in Python.
//!
//! | file | content |
//! |---|---|
//! | `settings` | the parameters of one object: types, unknown keys, error messages |
//! | `text` | objects as text, such as `randaugment(2, 9)` |
//! | `image` | images and crops |
//! | `audio`, `video` | audio; video |
//! | `augmentation` | augmentations |
//! | `mix` | what combines the samples of each batch |
//! | `group` | how samples are grouped to batches |
//!
//! This file has the fields.

mod audio;
mod augmentation;
mod group;
mod image;
mod mix;
mod settings;
mod text;
mod video;

use std::path::Path;
#[cfg(feature = "tokenizers")]
use std::time::Duration;

use serde_json::{Map, Value};
#[cfg(feature = "tokenizers")]
use spdl_core::runtime::read_file;
use spdl_core::stage::Collation;
use spdl_core::{DType, Error, ErrorKind, Result};
use spdl_io::FieldValue;
use spdl_io::archive::NpyType;

pub use self::group::Grouping;
pub use self::mix::BatchMix;
use self::settings::{Names, Settings, Shape, folded, invalid, unknown};
use super::geometry::{BoxFormat, Boxes, Points};
use super::mask::Mask;
use super::spec::{SampleField, SampleSpec};
use super::stored_array::ArrayBytes;
use super::tokens::Tokens;
use crate::augment::Augmenter;
use crate::transform::ImageTransform;

/// The maximum size of a tokenizer, in bytes.
#[cfg(feature = "tokenizers")]
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// The longest wait for a read of a tokenizer.
#[cfg(feature = "tokenizers")]
const TOKENIZER_TIMEOUT: Duration = Duration::from_secs(60);

/// The types of fields.
const TYPES: [&str; 23] = [
    "Image",
    "Audio",
    "Mel",
    "Mask",
    "Depth",
    "Boxes",
    "KeyPoints",
    "Geometry",
    "ImageSize",
    "AudioFrames",
    "Video",
    "VideoFrames",
    "VideoTimes",
    "Number",
    "Array",
    "Tokens",
    "Text",
    "Bytes",
    "Json",
    "Label",
    "Key",
    "Url",
    "Index",
];

impl SampleSpec {
    /// The fields that a JSON object describes: a member for each field, in the order of the batch.
    ///
    /// Each member is an object with the key `type`, the name of a class of `spdl_rs.fields` in any case, and the
    /// parameters of that class, with their defaults. Crops and augmentations are such objects too, or text such as
    /// `"RandomResizedCrop(scale=(0.2, 1))"`, `"randaugment(2, 9)"` and timm's `"rand-m9-mstd0.5-inc1"`. Differences
    /// from Python: in a shape, 0 (or `null`) stands for any length, a [label](SampleField::label) has no parameters
    /// but `missing`, and `stored_as` and `classes`, which are not used, and masks are collated like their image.
    ///
    /// ```
    /// use serde_json::json;
    /// use spdl_media::fill::SampleSpec;
    /// let spec = SampleSpec::from_description(&json!({
    ///     "image": {"type": "image", "size": [480, 640], "crop": "Letterbox(fill=114)"},
    ///     "boxes": {"type": "boxes", "format": "xywh", "stored_as": "json", "at": "bbox"},
    /// }))?;
    /// assert_eq!(spec.layout(8).fields()[0].shape, [480, 640, 3]);
    /// let misspelt = SampleSpec::from_description(&json!({"key": {"type": "key", "size": 3}}));
    /// let error = misspelt.expect_err("keys have no size");
    /// assert_eq!(error.message(), "field \"key\": unknown key \"size\"; there are no parameters");
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` with the field, the key and the accepted values; the errors of
    /// [`validate`](Self::validate); `NotFound` or `Unavailable` if a tokenizer cannot be read; `Unsupported` for a
    /// tokenizer without the feature `tokenizers`.
    pub fn from_description(fields: &Value) -> Result<Self> {
        let Value::Object(fields) = fields else {
            return Err(invalid(format!(
                "expected an object with a member for each field, found {fields}"
            )));
        };
        let mut spec = SampleSpec::new();
        for (name, described) in fields {
            let mut field = SampleField::from_description(name, described)?;
            if let Some(image) = image_of_mask(described, fields) {
                field = field.collation(image.collated());
            }
            spec = spec.with(name.as_str(), field);
        }
        spec.validate()?;
        Ok(spec)
    }
}

/// The image that a mask or a depth map follows; `None` for other fields.
fn image_of_mask(described: &Value, fields: &Map<String, Value>) -> Option<SampleField> {
    let kind = folded(described.get("type")?.as_str()?);
    let like = described.get("like").and_then(Value::as_str).unwrap_or(LIKE);
    let image = fields.get(like).filter(|_| matches!(kind.as_str(), "mask" | "depth"))?;
    SampleField::from_description(like, image).ok()
}

/// The default name of an image that other fields follow.
const LIKE: &str = "image";

/// The image that a description without `type` has, and its augmentations: see
/// [`SampleSpec::from_description`]. `place` is the start of error messages.
///
/// # Errors
/// `InvalidArgument` with the key and the accepted values.
pub fn described_image(place: &str, image: &Value) -> Result<(ImageTransform, Augmenter)> {
    let mut settings = Settings::of_members(place, image)?;
    let made = image::image(&mut settings)?;
    settings.finish()?;
    Ok(made)
}

impl Augmenter {
    /// The augmentations that a JSON value describes: see
    /// [`SampleSpec::from_description`](crate::fill::SampleSpec::from_description). One, or a list.
    ///
    /// ```
    /// use serde_json::json;
    /// use spdl_media::augment::Augmenter;
    /// let blur = json!({"type": "GaussianBlur", "kernel_size": 9});
    /// let augmenter = Augmenter::from_description(&json!(["randaugment(2, 9)", blur]))?;
    /// assert_eq!(augmenter.parameters().next().map(|(_, name)| name), Some("RandAugment".to_owned()));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` with the key and the accepted values.
    pub fn from_description(augmentations: &Value) -> Result<Self> {
        augmentation::augmenter("augmentation", augmentations)
    }
}

impl SampleField {
    /// The field that a JSON object describes: see [`SampleSpec::from_description`].
    ///
    /// `name` is the field in error messages.
    ///
    /// # Errors
    /// Those of [`SampleSpec::from_description`].
    pub fn from_description(name: &str, described: &Value) -> Result<Self> {
        let place = format!("field {name:?}");
        if !described.is_object() {
            return Err(invalid(format!(
                "{place}: expected a table with the key type, found {described}"
            )));
        }
        let (type_name, mut settings) = Settings::of(&place, described, "")?;
        let (s, kind) = (&mut settings, folded(&type_name));
        let is_stored = !matches!(
            kind.as_str(),
            "geometry"
                | "imagesize"
                | "audioframes"
                | "videoframes"
                | "videotimes"
                | "key"
                | "url"
                | "index"
                | "label"
        );
        let mut field = match kind.as_str() {
            "image" => {
                let (transform, augmenter) = image::image(s)?;
                let view = s.get("view")?.unwrap_or(0);
                SampleField::image(transform).augment(augmenter).view(view)
            }
            "mask" => {
                let mask = Mask::like(like(s)?).outside(s.get("outside")?.unwrap_or(0));
                SampleField::mask(mask, dtype(s, &MASKS)?.unwrap_or(DType::I64))
            }
            "depth" => {
                let mask = Mask::like(like(s)?).scale(s.get("scale")?.unwrap_or(1.0));
                let mask = mask.outside(s.get("outside")?.unwrap_or(0));
                SampleField::mask(mask, dtype(s, &[DType::F32, DType::U16])?.unwrap_or(DType::F32))
            }
            "boxes" => {
                let mut boxes = Boxes::like(like(s)?);
                let formats = [
                    ("xyxy", BoxFormat::Xyxy),
                    ("xywh", BoxFormat::Xywh),
                    ("cxcywh", BoxFormat::Cxcywh),
                ];
                boxes = boxes.format(s.choice("format", &formats)?.unwrap_or(BoxFormat::Xyxy));
                boxes = boxes.normalized(s.get("normalized")?.unwrap_or(false));
                boxes = boxes.min_area(s.get("min_area")?.unwrap_or(0.0));
                boxes = boxes.min_visibility(s.get("min_visibility")?.unwrap_or(0.0));
                if let Some(name) = s.get::<String>("drop_where")? {
                    boxes = boxes.drop_where(name);
                }
                if s.choice("empty", &[("keep", false), ("drop", true)])?.unwrap_or(false) {
                    boxes = boxes.drop_empty();
                }
                SampleField::boxes(boxes).collation(Collation::List)
            }
            "keypoints" => {
                let Shape(shape) = s.need("shape")?;
                let pairs: Option<Vec<(usize, usize)>> = s.get("mirrored_pairs")?;
                let points = Points::like(like(s)?).mirrored_pairs(pairs.unwrap_or_default());
                listed(SampleField::points(points, &shape), &shape)
            }
            "geometry" => SampleField::geometry(like(s)?),
            "imagesize" => SampleField::image_size(like(s)?),
            "audio" => SampleField::audio(audio::audio(s)?),
            "mel" => SampleField::audio(audio::mel(s)?),
            "audioframes" => SampleField::audio_frames(like_or(s, "audio")?),
            "video" => {
                let (transform, augmenter) = video::video(s)?;
                SampleField::video(transform).augment(augmenter)
            }
            "videoframes" => SampleField::video_frames(like_or(s, "video")?),
            "videotimes" => SampleField::video_times(like_or(s, "video")?),
            "number" => numbers(s, &[])?,
            "array" => {
                let Shape(shape) = s.need("shape")?;
                listed(numbers(s, &shape)?, &shape)
            }
            "tokens" => {
                let (tokens, dtype) = tokens(s)?;
                let field = SampleField::tokens(tokens, dtype);
                let shape = field.shape().to_vec();
                listed(field, &shape)
            }
            "text" => SampleField::text(),
            "bytes" => SampleField::bytes(),
            "json" => SampleField::json(),
            "label" => {
                s.get::<Names>("stored_as")?;
                s.get::<Names>("classes")?;
                with_missing(s, SampleField::label())?
            }
            "key" => SampleField::key(),
            "url" => SampleField::url(),
            "index" => SampleField::index(),
            _ => return Err(unknown(&place, &type_name, &TYPES)),
        };
        if matches!(kind.as_str(), "array" | "keypoints")
            && let Some(boxes) = s.get::<String>("rows_of")?
        {
            field = field.rows_of(boxes);
        }
        if matches!(kind.as_str(), "array" | "tokens")
            && let Some(padding) = s.get("padding")?
        {
            field = field.padding(padding);
        }
        if kind == "array" {
            let member = s.get::<String>("member")?;
            let element = s.choice("stored_dtype", &ELEMENTS)?;
            field = match (member, element) {
                (None, None) => field,
                (Some(name), None) => field.array_bytes(ArrayBytes::Member(name.into())),
                (None, Some(element)) => field.array_bytes(ArrayBytes::Raw(element)),
                (Some(_), Some(_)) => {
                    let message = "excludes stored_dtype: the arrays of .npz files have a dtype";
                    return Err(s.fault("member", message));
                }
            };
        }
        let collations = match kind.as_str() {
            "image" | "array" | "keypoints" | "mask" | "depth" | "audio" | "mel" | "video" => {
                &COLLATIONS[..]
            }
            "tokens" if field.shape() != [0] => &COLLATIONS[..1],
            "boxes" | "tokens" => &COLLATIONS[1..],
            _ => &[],
        };
        if !collations.is_empty()
            && let Some(collation) = s.choice("collate", collations)?
        {
            field = field.collation(collation);
        }
        if is_stored {
            field = stored(s, field)?;
        }
        settings.finish()?;
        Ok(field)
    }
}

const COLLATIONS: [(&str, Collation); 4] = [
    ("stack", Collation::Stacked),
    ("list", Collation::List),
    ("ragged", Collation::Ragged),
    ("pad", Collation::Padded),
];
const MASKS: [DType; 4] = [DType::U8, DType::U16, DType::I32, DType::I64];
/// The types of raw elements.
const ELEMENTS: [(&str, NpyType); 12] = [
    ("bool", NpyType::Bool),
    ("int8", NpyType::Int(1)),
    ("uint8", NpyType::UInt(1)),
    ("int16", NpyType::Int(2)),
    ("uint16", NpyType::UInt(2)),
    ("int32", NpyType::Int(4)),
    ("uint32", NpyType::UInt(4)),
    ("int64", NpyType::Int(8)),
    ("uint64", NpyType::UInt(8)),
    ("float16", NpyType::Float(2)),
    ("float32", NpyType::Float(4)),
    ("float64", NpyType::Float(8)),
];
const NUMBERS: [DType; 8] =
    [DType::U8, DType::U16, DType::I16, DType::I32, DType::I64, DType::F16, DType::F32, DType::F64];

/// Where the value is stored, and what samples without it have.
fn stored(settings: &mut Settings, mut field: SampleField) -> Result<SampleField> {
    if let Some(Names(names)) = settings.get("stored_as")? {
        field = field.stored_as(names);
    }
    if let Some(path) = settings.get::<String>("at")? {
        field = field.at(path);
    }
    if settings.get("optional")?.unwrap_or(false) {
        field = field.optional();
    }
    let field = with_missing(settings, field)?;
    Ok(match settings.value("default")? {
        None | Some(Value::Null) => field,
        Some(Value::String(text)) => field.or(FieldValue::Text(text.into())),
        Some(value) => field.or(FieldValue::Json(value)),
    })
}

/// Whether samples that lack the value are dropped.
fn with_missing(settings: &mut Settings, field: SampleField) -> Result<SampleField> {
    let drops = settings.choice("missing", &[("error", false), ("drop", true)])?;
    Ok(if drops.unwrap_or(false) { field.drop_missing() } else { field })
}

fn like(settings: &mut Settings) -> Result<String> {
    like_or(settings, LIKE)
}

/// The field to which this one refers; `default` if it is not given.
fn like_or(settings: &mut Settings, default: &str) -> Result<String> {
    Ok(settings.get("like")?.unwrap_or_else(|| default.to_owned()))
}

/// Samples of different shapes become a list by default.
fn listed(field: SampleField, shape: &[usize]) -> SampleField {
    match shape.contains(&0) {
        true => field.collation(Collation::List),
        false => field,
    }
}

/// One of these data types.
fn dtype(settings: &mut Settings, among: &[DType]) -> Result<Option<DType>> {
    let choices: Vec<_> = among.iter().map(|dtype| (dtype.name(), *dtype)).collect();
    settings.choice("dtype", &choices)
}

/// Numbers, or truth values.
fn numbers(settings: &mut Settings, shape: &[usize]) -> Result<SampleField> {
    let flags = [("bool", None)].into_iter();
    let choices: Vec<_> =
        flags.chain(NUMBERS.iter().map(|dtype| (dtype.name(), Some(*dtype)))).collect();
    Ok(match settings.choice("dtype", &choices)?.unwrap_or(Some(DType::F32)) {
        Some(dtype) => SampleField::numbers(dtype, shape),
        None => SampleField::flags(shape),
    })
}

fn tokens(settings: &mut Settings) -> Result<(Tokens, DType)> {
    let path: Option<String> = settings.get("tokenizer")?;
    let dtype = dtype(settings, &[DType::I32, DType::I64])?.unwrap_or(DType::I64);
    let mut tokens = Tokens::new();
    if let Some(most) = settings.get("max_length")? {
        tokens = tokens.at_most(most);
    }
    if let Some(length) = settings.get("length")? {
        tokens = tokens.padded_to(length);
    }
    if settings.get("truncate")?.unwrap_or(false) {
        tokens = tokens.truncated();
    }
    let has_special_tokens = settings.get("special_tokens")?.unwrap_or(true);
    let sizes = [("uint16", 2), ("uint32", 4), ("int32", 4), ("int64", 8)];
    if let Some(size) = settings.choice("stored_dtype", &sizes)? {
        tokens = tokens.stored_bytes(size);
    }
    if let Some(path) = path {
        let loaded = with_tokenizer(tokens, Path::new(&path), has_special_tokens);
        tokens = loaded.map_err(|error| {
            let message = settings.fault("tokenizer", error.message()).message().to_owned();
            Error::new(error.kind(), message).with_key(path).with_cause_of(error)
        })?;
    }
    Ok((tokens, dtype))
}

/// Reads the tokenizer of a field.
#[cfg(feature = "tokenizers")]
fn with_tokenizer(tokens: Tokens, path: &Path, special_tokens: bool) -> Result<Tokens> {
    let json = read_file(path, MAX_TOKENIZER_BYTES + 1, TOKENIZER_TIMEOUT).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, "cannot read the tokenizer").with_source(error)
    })?;
    if json.len() as u64 > MAX_TOKENIZER_BYTES {
        let message =
            format!("the tokenizer is larger than the limit of {MAX_TOKENIZER_BYTES} bytes");
        return Err(Error::new(ErrorKind::LimitExceeded, message));
    }
    tokens.tokenizer(&json, special_tokens)
}

#[cfg(not(feature = "tokenizers"))]
fn with_tokenizer(_tokens: Tokens, _path: &Path, _special_tokens: bool) -> Result<Tokens> {
    let message = "tokenizers need the feature \"tokenizers\" of this program";
    Err(Error::new(ErrorKind::Unsupported, message))
}
