//! Augmentations from descriptions, with torchvision's names, parameters and defaults.

use std::sync::Arc;

use serde_json::Value;
use spdl_core::source::Fingerprint;
use spdl_core::{Result, SampleRng};

use super::settings::{Around, Levels, Parameter, RgbLevels, Settings, folded, invalid, unknown};
use crate::augment::{
    AugMix, Augment, Augmenter, AutoAugment, ColorJitter, ErasingValue, GaussianBlur, ImageMut,
    Interpolation, RandAugment, RandomAdjustSharpness, RandomAffine, RandomApply,
    RandomAutocontrast, RandomChoice, RandomEqualize, RandomErasing, RandomGrayscale, RandomInvert,
    RandomOrder, RandomPerspective, RandomPosterize, RandomRotation, RandomSolarize, Scratch,
    TimmAugMix, TimmRandAugment, TrivialAugmentWide,
};

/// The names of the augmentations.
const NAMES: [&str; 22] = [
    "ColorJitter",
    "GaussianBlur",
    "RandomGrayscale",
    "RandomInvert",
    "RandomEqualize",
    "RandomAutocontrast",
    "RandomPosterize",
    "RandomSolarize",
    "RandomAdjustSharpness",
    "RandomRotation",
    "RandomAffine",
    "RandomPerspective",
    "RandomErasing",
    "RandAugment",
    "TimmRandAugment",
    "TrivialAugmentWide",
    "AutoAugment",
    "AugMix",
    "TimmAugMix",
    "RandomApply",
    "RandomChoice",
    "RandomOrder",
];
const INTERPOLATIONS: [(&str, Interpolation); 2] =
    [("nearest", Interpolation::Nearest), ("bilinear", Interpolation::Bilinear)];

/// One augmentation, or a list.
pub(super) fn augmenter(place: &str, value: &Value) -> Result<Augmenter> {
    let augmenter = steps(place, value)?.into_iter().fold(Augmenter::new(), Augmenter::then);
    match augmenter.validate() {
        Ok(()) => Ok(augmenter),
        Err(error) => Err(invalid(format!("{place}: {}", error.message()))),
    }
}

fn steps(place: &str, value: &Value) -> Result<Vec<AnyAugmentation>> {
    match value {
        Value::Array(steps) => steps.iter().map(|one| step(place, one)).collect(),
        one => Ok(vec![step(place, one)?]),
    }
}

/// An augmentation of any type.
#[derive(Clone, Debug)]
struct AnyAugmentation(Arc<dyn Augment>);

impl Augment for AnyAugmentation {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        self.0.apply(image, rng, scratch)
    }

    fn fingerprint(&self) -> Fingerprint {
        self.0.fingerprint()
    }

    fn validate(&self) -> Result<()> {
        self.0.validate()
    }

    fn keeps_positions(&self) -> bool {
        self.0.keeps_positions()
    }

    fn can_be_followed(&self) -> bool {
        self.0.can_be_followed()
    }
}

/// A sequence of augmentations, applied as one augmentation.
#[derive(Debug)]
struct All(Vec<AnyAugmentation>);

impl Augment for All {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        self.0.iter().try_for_each(|step| step.apply(image, rng, scratch))
    }

    fn fingerprint(&self) -> Fingerprint {
        let own = Fingerprint::default().with("", "all");
        (1..).zip(&self.0).fold(own, |own, (number, step): (usize, _)| {
            let parts = step.fingerprint().parts().clone();
            parts.into_iter().fold(own, |own, (part, value)| {
                own.with(format!("{number} {part}").trim_end(), value)
            })
        })
    }

    fn validate(&self) -> Result<()> {
        self.0.iter().try_for_each(Augment::validate)
    }

    fn keeps_positions(&self) -> bool {
        self.0.iter().all(Augment::keeps_positions)
    }

    fn can_be_followed(&self) -> bool {
        self.0.iter().all(Augment::can_be_followed)
    }
}

/// Takes the parameters in the order of Python's classes, and calls each setter whose parameter is given.
fn step(place: &str, value: &Value) -> Result<AnyAugmentation> {
    let (kind, mut settings) = Settings::of(place, value, "\"randaugment(2, 9)\"")?;
    let s = &mut settings;
    /// `made.setter(value)` for each given parameter.
    macro_rules! with {
        ($made:expr; $($found:expr => $setter:expr),* $(,)?) => {{
            let mut made = $made;
            $(if let Some(value) = $found {
                made = ($setter)(made, value);
            })*
            AnyAugmentation(Arc::new(made))
        }};
    }
    /// A type whose only parameter is its probability.
    macro_rules! chance {
        ($type:ident) => {
            with!($type::new(); s.get("p")? => $type::probability)
        };
    }
    type Range = (f64, f64);
    let augmentation = match folded(&kind).as_str() {
        "colorjitter" => with!(ColorJitter::new();
            around(s, "brightness", 1.0)? => |it: ColorJitter, (low, high): Range| it.brightness_between(low, high),
            around(s, "contrast", 1.0)? => |it: ColorJitter, (low, high): Range| it.contrast_between(low, high),
            around(s, "saturation", 1.0)? => |it: ColorJitter, (low, high): Range| it.saturation_between(low, high),
            around(s, "hue", 0.0)? => |it: ColorJitter, (low, high): Range| it.hue_between(low, high)),
        "gaussianblur" => {
            let KernelSides(across, down) = s.need("kernel_size")?;
            let sigma = s.get::<Around>("sigma")?.map(|sigma| match sigma {
                Around::Number(sigma) => (sigma, sigma),
                Around::Between(least, most) => (least, most),
            });
            with!(GaussianBlur::new(across).kernel(across, down);
                sigma => |it: GaussianBlur, (low, high): Range| it.sigma_between(low, high))
        }
        "randomgrayscale" => chance!(RandomGrayscale),
        "randominvert" => chance!(RandomInvert),
        "randomequalize" => chance!(RandomEqualize),
        "randomautocontrast" => chance!(RandomAutocontrast),
        "randomposterize" => with!(RandomPosterize::new(s.need("bits")?);
            s.get("p")? => RandomPosterize::probability),
        "randomsolarize" => with!(RandomSolarize::new(s.need("threshold")?);
            s.get("p")? => RandomSolarize::probability),
        "randomadjustsharpness" => with!(RandomAdjustSharpness::new(s.need("sharpness_factor")?);
            s.get("p")? => RandomAdjustSharpness::probability),
        "randomrotation" => {
            let (low, high) = s.need::<Around>("degrees")?.range(0.0);
            with!(RandomRotation::between(low, high);
                s.choice("interpolation", &INTERPOLATIONS)? => RandomRotation::interpolation,
                s.get("center")? => |it: RandomRotation, (x, y): Range| it.center(x, y),
                fill(s)? => RandomRotation::fill)
        }
        "randomaffine" => {
            let (low, high) = s.need::<Around>("degrees")?.range(0.0);
            with!(RandomAffine::new(0.0).degrees_between(low, high);
                s.get("translate")? => |it: RandomAffine, (across, down): Range| it.translate(across, down),
                s.get("scale")? => |it: RandomAffine, (low, high): Range| it.scale_between(low, high),
                s.get("shear")? => |it: RandomAffine, Shear(along_x, along_y)| it.shear_between(along_x, along_y),
                s.choice("interpolation", &INTERPOLATIONS)? => RandomAffine::interpolation,
                fill(s)? => RandomAffine::fill,
                s.get("center")? => |it: RandomAffine, (x, y): Range| it.center(x, y))
        }
        "randomperspective" => with!(RandomPerspective::new();
            s.get("distortion_scale")? => RandomPerspective::distortion,
            s.get("p")? => RandomPerspective::probability,
            s.choice("interpolation", &INTERPOLATIONS)? => RandomPerspective::interpolation,
            fill(s)? => RandomPerspective::fill),
        "randomerasing" => with!(RandomErasing::new();
            s.get("p")? => RandomErasing::probability,
            s.get("scale")? => |it: RandomErasing, (low, high): Range| it.area_between(low, high),
            s.get("ratio")? => |it: RandomErasing, (low, high): Range| it.aspect_between(low, high),
            s.get("value")? => |it: RandomErasing, Erased(value)| it.value(value)),
        "randaugment" => with!(RandAugment::new();
            s.get("num_ops")? => RandAugment::operations,
            s.get("magnitude")? => RandAugment::magnitude,
            s.get("num_magnitude_bins")? => RandAugment::magnitudes,
            s.choice("interpolation", &INTERPOLATIONS)? => RandAugment::interpolation,
            fill(s)? => RandAugment::fill),
        "timmrandaugment" => with!(TimmRandAugment::new();
            s.get("num_ops")? => TimmRandAugment::operations,
            s.get("magnitude")? => TimmRandAugment::magnitude,
            s.get("magnitude_std")? => |it: TimmRandAugment, deviation| match deviation {
                Deviation::Of(deviation) => it.deviation(deviation),
                Deviation::Uniform => it.uniform(),
            },
            s.get("magnitude_max")? => TimmRandAugment::maximum,
            s.get("increasing")? => TimmRandAugment::increasing,
            s.get("p")? => TimmRandAugment::probability,
            s.choice("interpolation", &INTERPOLATIONS)? => TimmRandAugment::interpolation,
            fill(s)? => TimmRandAugment::fill),
        "trivialaugmentwide" | "trivialaugment" => with!(TrivialAugmentWide::new();
            s.get("num_magnitude_bins")? => TrivialAugmentWide::magnitudes,
            s.choice("interpolation", &INTERPOLATIONS)? => TrivialAugmentWide::interpolation,
            fill(s)? => TrivialAugmentWide::fill),
        "autoaugment" => with!(AutoAugment::new();
            s.choice("interpolation", &INTERPOLATIONS)? => AutoAugment::interpolation,
            fill(s)? => AutoAugment::fill),
        "augmix" => with!(AugMix::new();
            s.get("severity")? => AugMix::severity,
            s.get("mixture_width")? => AugMix::mixture_width,
            s.get("chain_depth")? => |it: AugMix, Depth(depth)| it.chain_depth(depth),
            s.get("alpha")? => AugMix::alpha,
            s.get("all_ops")? => AugMix::all_operations,
            s.choice("interpolation", &INTERPOLATIONS)? => AugMix::interpolation,
            fill(s)? => AugMix::fill),
        "timmaugmix" => with!(TimmAugMix::new();
            s.get("magnitude")? => TimmAugMix::magnitude,
            s.get("magnitude_std")? => |it: TimmAugMix, deviation| match deviation {
                Deviation::Of(deviation) => it.deviation(deviation),
                Deviation::Uniform => it,
            },
            s.get("mixture_width")? => TimmAugMix::mixture_width,
            s.get("chain_depth")? => |it: TimmAugMix, Depth(depth)| it.chain_depth(depth),
            s.get("alpha")? => TimmAugMix::alpha,
            s.choice("interpolation", &INTERPOLATIONS)? => TimmAugMix::interpolation,
            fill(s)? => TimmAugMix::fill),
        "randomapply" => {
            with!(RandomApply::new(All(inner(s)?)); s.get("p")? => RandomApply::probability)
        }
        "randomchoice" => {
            let choices = inner(s)?;
            let weights: Vec<f64> = match s.get("p")? {
                Some(Weights(weights)) if weights.len() == choices.len() => weights,
                Some(Weights(weights)) => {
                    let message = format!(
                        "expected a weight for each of {} augmentations, found {}",
                        choices.len(),
                        weights.len()
                    );
                    return Err(s.fault("p", message));
                }
                None => vec![1.0; choices.len()],
            };
            let choices = choices.into_iter().zip(weights);
            let add = |all: RandomChoice, (step, weight)| all.or_weighted(step, weight);
            AnyAugmentation(Arc::new(choices.fold(RandomChoice::new(), add)))
        }
        "randomorder" => {
            let steps = inner(s)?.into_iter();
            AnyAugmentation(Arc::new(steps.fold(RandomOrder::new(), RandomOrder::and)))
        }
        _ => return Err(unknown(place, &kind, &NAMES)),
    };
    settings.finish()?;
    Ok(augmentation)
}

/// The augmentations that another one applies.
fn inner(settings: &mut Settings) -> Result<Vec<AnyAugmentation>> {
    let place = settings.place_of("augmentations");
    steps(&place, &settings.value("augmentations")?.unwrap_or_default())
}

/// A range around `middle`, from a number or two.
fn around(settings: &mut Settings, key: &'static str, middle: f64) -> Result<Option<(f64, f64)>> {
    match settings.get::<Around>(key)? {
        Some(Around::Number(0.0)) | None => Ok(None),
        Some(Around::Number(number)) if number < 0.0 => {
            Err(settings.fault(key, format!("expected at least 0, found {number}")))
        }
        Some(around) => Ok(Some(around.range(middle))),
    }
}

/// The colour outside the image, which may be `null`.
fn fill(settings: &mut Settings) -> Result<Option<Option<[u8; 3]>>> {
    match settings.value("fill")? {
        None => Ok(None),
        Some(Value::Null) => Ok(Some(None)),
        Some(value) => {
            match RgbLevels::of(&value) {
                Some(RgbLevels(color)) => Ok(Some(Some(color))),
                None => Err(settings
                    .fault("fill", format!("expected {}, found {value}", RgbLevels::EXPECTED))),
            }
        }
    }
}

/// A number for each of several augmentations.
struct Weights(Vec<f64>);

/// Width and height of a kernel.
struct KernelSides(usize, usize);

/// The angles along x and along y.
struct Shear((f64, f64), (f64, f64));

/// The value of erased pixels.
struct Erased(ErasingValue);

/// The number of operations of a chain; `None` if it is drawn.
struct Depth(Option<usize>);

/// How magnitudes are distributed.
enum Deviation {
    Uniform,
    Of(f64),
}

impl Parameter for Weights {
    const EXPECTED: &'static str = "a list of numbers";

    fn of(value: &Value) -> Option<Self> {
        super::settings::list(value).map(Weights)
    }
}

impl Parameter for KernelSides {
    const EXPECTED: &'static str = "an odd number of pixels, or [width, height]";

    fn of(value: &Value) -> Option<Self> {
        match usize::of(value) {
            Some(side) => Some(KernelSides(side, side)),
            None => super::settings::pair(value).map(|(across, down)| KernelSides(across, down)),
        }
    }
}

impl Parameter for Shear {
    const EXPECTED: &'static str = "an angle, or the minimum and maximum along x, and along y";

    fn of(value: &Value) -> Option<Self> {
        let angles = match value.as_f64() {
            Some(angle) => vec![-angle, angle],
            None => super::settings::list(value)?,
        };
        match angles[..] {
            [low, high] => Some(Shear((low, high), (0.0, 0.0))),
            [low, high, lowest, highest] => Some(Shear((low, high), (lowest, highest))),
            _ => None,
        }
    }
}

impl Parameter for Erased {
    const EXPECTED: &'static str = "a colour level, a whole number from 0 to 255, or three levels, or \"random\"; \
                                    (124, 116, 104) is the mean colour of ImageNet";

    fn of(value: &Value) -> Option<Self> {
        match value.as_str() {
            Some("random") => Some(Erased(ErasingValue::Random)),
            _ => {
                let Levels(levels) = Levels::of(value)?;
                let is_level = |level: &f32| (0.0..=255.0).contains(level) && level.fract() == 0.0;
                let are_levels = levels.iter().all(is_level);
                are_levels.then_some(Erased(ErasingValue::Constant(levels)))
            }
        }
    }
}

impl Parameter for Depth {
    const EXPECTED: &'static str = "a whole number, or -1 for one to three";

    fn of(value: &Value) -> Option<Self> {
        match value.as_i64() {
            Some(-1) => Some(Depth(None)),
            _ => usize::of(value).map(|depth| Depth(Some(depth))),
        }
    }
}

impl Parameter for Deviation {
    const EXPECTED: &'static str = "a number, or \"uniform\"";

    fn of(value: &Value) -> Option<Self> {
        match value.as_str() {
            Some("uniform") => Some(Deviation::Uniform),
            _ => value.as_f64().map(Deviation::Of),
        }
    }
}
