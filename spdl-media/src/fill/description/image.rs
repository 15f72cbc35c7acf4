//! Images from descriptions: size, crop, flips, colours, layout and augmentations.

use serde_json::Value;
use spdl_core::Result;

use super::augmentation::augmenter;
use super::settings::{Parameter, RgbLevels, Settings, Sides, folded, list, unknown};
use crate::augment::Augmenter;
use crate::image::{OnTruncated, Size};
use crate::transform::{
    Crop, Flip, ImageTransform, Mode, RandomIouCrop, RandomZoomOut, ResizeFilter, SampleColor,
    SampleFormat, TRAIN_AREA, TRAIN_ASPECT,
};

const CROPS: [&str; 11] = [
    "ResizedCenterCrop",
    "RandomResizedCrop",
    "Stretch",
    "Letterbox",
    "CenterCrop",
    "RandomCrop",
    "Resize",
    "RandomScaledCrop",
    "AspectBuckets",
    "FiveCrop",
    "TenCrop",
];
const BLACK: RgbLevels = RgbLevels([0; 3]);

/// Takes the parameters of an image.
pub(super) fn image(settings: &mut Settings) -> Result<(ImageTransform, Augmenter)> {
    let s = settings;
    let size = s.get::<Sides>("size")?;
    let is_sized = size.is_some();
    let Sides(size) = size.unwrap_or(Sides(Size::new(224, 224)));
    let mode = if s.get("train")?.unwrap_or(false) { Mode::Train } else { Mode::Eval };
    let format = match s.get::<String>("layout")? {
        Some(name) => name.parse().map_err(|error| s.fault("layout", message(&error)))?,
        None => SampleFormat::NHWC_U8,
    };
    let mut transform = ImageTransform::with_size(size).mode(mode).format(format);
    if let Some(described) = s.value("crop")?.filter(|value| !value.is_null()) {
        let (crop, sizes) = crop(&s.place_of("crop"), &described)?;
        if is_sized && matches!(crop, Crop::Resize { .. } | Crop::Cover { .. }) {
            return Err(
                s.fault("size", "has no effect on a crop that determines the size; omit it")
            );
        }
        transform = transform.crop(crop);
        if !sizes.is_empty() {
            transform = transform.sizes(sizes);
        }
    }
    if let Some(described) = s.value("zoom_out")?.filter(|value| !value.is_null()) {
        transform = transform.zoom_out(zoom_out(&s.place_of("zoom_out"), &described)?);
    }
    if let Some(described) = s.value("iou_crop")?.filter(|value| !value.is_null()) {
        transform = transform.iou_crop(iou_crop(&s.place_of("iou_crop"), &described)?);
    }
    if let Some(probability) = s.get("horizontal_flip")? {
        transform = transform.horizontal_flip(probability);
    }
    if let Some(probability) = s.get("vertical_flip")? {
        transform = transform.vertical_flip(probability);
    }
    if let Some(name) = s.get::<String>("filter")? {
        let filter: ResizeFilter =
            name.parse().map_err(|error| s.fault("filter", message(&error)))?;
        transform = transform.filter(filter);
    }
    let colors = [
        ("rgb", SampleColor::Rgb),
        ("bgr", SampleColor::Bgr),
        ("grey", SampleColor::Grey),
        ("rgba", SampleColor::Rgba),
    ];
    if let Some(color) = s.choice("color", &colors)? {
        transform = transform.color(color);
    }
    let (mean, std) = (s.get("mean")?, s.get("std")?);
    if (mean.is_some() || std.is_some()) && !format.is_normalized() {
        return Err(s.fault("mean", "mean and std need a normalised layout, such as \"nchw-f32\""));
    }
    match (mean, std) {
        (None, None) => {}
        (Some(mean), Some(std)) => transform = transform.normalization(mean, std),
        _ => return Err(s.fault("mean", "mean and std are given together")),
    }
    if let Some(is_exact) = s.get("exact")? {
        transform = transform.exact(is_exact);
    }
    if let Some(applies) = s.get("exif_orientation")? {
        transform = transform.exif_orientation(applies);
    }
    let partial = [("error", OnTruncated::Error), ("partial", OnTruncated::Partial)];
    let on_truncated = s.choice("on_truncated", &partial)?.unwrap_or(OnTruncated::Error);
    transform = transform.on_truncated(on_truncated);
    let augmenter = match s.value("augment")? {
        None | Some(Value::Null) => Augmenter::new(),
        Some(steps) => augmenter(&s.place_of("augment"), &steps)?,
    };
    if !augmenter.is_empty() {
        let checked = transform.check_augmentable();
        checked.map_err(|error| s.fault("augment", message(&error)))?;
    }
    if let Some(share) = s.get("min_partial")? {
        if on_truncated != OnTruncated::Partial {
            return Err(s.fault("min_partial", "needs on_truncated = \"partial\""));
        }
        transform = transform.min_partial(share);
    }
    Ok((transform, augmenter))
}

/// A crop, and the sizes of aspect buckets.
fn crop(place: &str, value: &Value) -> Result<(Crop, Vec<Size>)> {
    let (kind, mut settings) = Settings::of(place, value, "\"RandomResizedCrop(scale=(0.2, 1))\"")?;
    let (s, mut sizes) = (&mut settings, Vec::new());
    let black = |found: Option<RgbLevels>| found.unwrap_or(BLACK).0;
    let crop = match folded(&kind).as_str() {
        "resizedcentercrop" => Crop::ResizedCenter { covering: s.need::<Sides>("covering")?.0 },
        "randomresizedcrop" => Crop::RandomResized {
            area: s.get("scale")?.unwrap_or(TRAIN_AREA),
            aspect: s.get("ratio")?.unwrap_or(TRAIN_ASPECT),
        },
        "stretch" => Crop::Stretch,
        "letterbox" => Crop::Letterbox { fill: black(s.get("fill")?) },
        "centercrop" => Crop::Center { fill: black(s.get("fill")?) },
        "randomcrop" => {
            Crop::Random { padding: s.get("padding")?.unwrap_or(0), fill: black(s.get("fill")?) }
        }
        "resize" => Crop::Resize {
            shorter: s.get("shorter")?,
            longest: s.get("longest")?,
            multiple_of: s.get("multiple_of")?.unwrap_or(1),
        },
        "randomscaledcrop" => {
            Crop::RandomScaled { shorter: s.need("shorter")?, fill: black(s.get("fill")?) }
        }
        "aspectbuckets" => {
            let Buckets(found) = s.need("sizes")?;
            sizes = found;
            Crop::Cover { random: s.get("random")?.unwrap_or(false) }
        }
        "fivecrop" | "tencrop" => {
            let covering = s.get::<Sides>("covering")?.map(|sides| sides.0);
            let flipped = match folded(&kind).as_str() {
                "fivecrop" => None,
                _ => match s.get("vertical_flip")? {
                    Some(true) => Some(Flip::Vertical),
                    _ => Some(Flip::Horizontal),
                },
            };
            Crop::Corners { covering, flipped }
        }
        _ => return Err(unknown(place, &kind, &CROPS)),
    };
    settings.finish()?;
    Ok((crop, sizes))
}

/// A canvas, with torchvision's parameters in their order.
fn zoom_out(place: &str, value: &Value) -> Result<RandomZoomOut> {
    let (kind, mut settings) = Settings::of(place, value, "\"RandomZoomOut(p=0.5)\"")?;
    let (s, mut made) = (&mut settings, RandomZoomOut::new());
    if folded(&kind) != "randomzoomout" {
        return Err(unknown(place, &kind, &["RandomZoomOut"]));
    }
    made = made.fill(s.get("fill")?.unwrap_or(BLACK).0);
    if let Some((low, high)) = s.get("side_range")? {
        made = made.sides_between(low, high);
    }
    if let Some(probability) = s.get("p")? {
        made = made.probability(probability);
    }
    settings.finish()?;
    Ok(made)
}

/// A crop by boxes, with torchvision's parameters in their order.
fn iou_crop(place: &str, value: &Value) -> Result<RandomIouCrop> {
    let (kind, mut settings) = Settings::of(place, value, "\"RandomIoUCrop(min_scale=0.3)\"")?;
    let s = &mut settings;
    if folded(&kind) != "randomioucrop" {
        return Err(unknown(place, &kind, &["RandomIoUCrop"]));
    }
    let number = |found: Option<f64>, default: f64| found.unwrap_or(default);
    let scale = (number(s.get("min_scale")?, 0.3), number(s.get("max_scale")?, 1.0));
    let aspect = (number(s.get("min_aspect_ratio")?, 0.5), number(s.get("max_aspect_ratio")?, 2.0));
    let mut made =
        RandomIouCrop::new().scale_between(scale.0, scale.1).aspect_between(aspect.0, aspect.1);
    if let Some(overlaps) = s.get::<Vec<f64>>("sampler_options")? {
        made = made.overlaps(overlaps);
    }
    if let Some(trials) = s.get("trials")? {
        made = made.trials(trials);
    }
    settings.finish()?;
    Ok(made)
}

/// The sizes of aspect buckets.
struct Buckets(Vec<Size>);

impl Parameter for Buckets {
    const EXPECTED: &'static str = "a list of sizes, [height, width] each";

    fn of(value: &Value) -> Option<Self> {
        let sizes = list::<Sides>(value).filter(|sizes| !sizes.is_empty())?;
        Some(Buckets(sizes.into_iter().map(|sides| sides.0).collect()))
    }
}

fn message(error: &spdl_core::Error) -> String {
    error.message().to_owned()
}
