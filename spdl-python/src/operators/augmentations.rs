//! Augmentations from Python descriptions, with torchvision's names and parameters.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use spdl_core::source::Fingerprint;
use spdl_core::{Result, SampleRng};
use spdl_media::augment::{
    AugMix, Augment, Augmenter, AutoAugment, ColorJitter, ErasingValue, GaussianBlur, ImageMut,
    Interpolation, RandAugment, RandomAdjustSharpness, RandomAffine, RandomApply,
    RandomAutocontrast, RandomEqualize, RandomErasing, RandomGrayscale, RandomInvert,
    RandomPerspective, RandomPosterize, RandomRotation, RandomSolarize, Scratch, TimmAugMix,
    TimmRandAugment, TrivialAugmentWide,
};

use super::Described;
use crate::interop::error::to_exception;

/// The bounds of a uniform distribution.
type Range = (f64, f64);

/// A validated sequence of augmentations.
pub(super) fn augmenter(py: Python<'_>, described: Vec<Described<'_>>) -> PyResult<Augmenter> {
    let mut augmenter = Augmenter::new();
    for step in described {
        augmenter = augmenter.then(step_of(step)?);
    }
    augmenter.validate().map_err(|error| to_exception(py, &error))?;
    Ok(augmenter)
}

/// An augmentation of any type.
#[derive(Clone, Debug)]
struct Step(Arc<dyn Augment>);

impl Step {
    fn of(augment: impl Augment) -> Self {
        Step(Arc::new(augment))
    }
}

impl Augment for Step {
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
}

/// A sequence of augmentations, applied as one augmentation.
#[derive(Debug)]
struct All(Vec<Step>);

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
}

/// # Errors
/// `ValueError` for an unknown name. Python's classes have validated the parameter types.
fn step_of((kind, settings): Described<'_>) -> PyResult<Step> {
    let setting = |name: &str| settings.as_any().get_item(name);
    macro_rules! of {
        ($name:literal) => {
            setting($name)?.extract()?
        };
    }
    /// Calls each setter whose parameter is not `None`.
    macro_rules! with {
        ($made:expr; $($name:literal => $setter:expr),*) => {{
            let mut made = $made;
            $(if let Some(value) = of!($name) {
                made = ($setter)(made, value);
            })*
            Step::of(made)
        }};
    }
    let between = || -> PyResult<(Interpolation, Option<[u8; 3]>)> {
        Ok((interpolation(&setting("interpolation")?.extract::<String>()?)?, of!("fill")))
    };
    Ok(match kind.as_str() {
        "ColorJitter" => with!(ColorJitter::new();
            "brightness" => |it: ColorJitter, (low, high): Range| it.brightness_between(low, high),
            "contrast" => |it: ColorJitter, (low, high): Range| it.contrast_between(low, high),
            "saturation" => |it: ColorJitter, (low, high): Range| it.saturation_between(low, high),
            "hue" => |it: ColorJitter, (low, high): Range| it.hue_between(low, high)),
        "GaussianBlur" => {
            let ((across, down), (low, high)): ((usize, usize), Range) =
                (of!("kernel_size"), of!("sigma"));
            let blur = GaussianBlur::new(across).kernel(across, down);
            Step::of(blur.sigma_between(low, high))
        }
        "RandomGrayscale" => Step::of(RandomGrayscale::new().probability(of!("p"))),
        "RandomInvert" => Step::of(RandomInvert::new().probability(of!("p"))),
        "RandomEqualize" => Step::of(RandomEqualize::new().probability(of!("p"))),
        "RandomAutocontrast" => Step::of(RandomAutocontrast::new().probability(of!("p"))),
        "RandomPosterize" => Step::of(RandomPosterize::new(of!("bits")).probability(of!("p"))),
        "RandomSolarize" => Step::of(RandomSolarize::new(of!("threshold")).probability(of!("p"))),
        "RandomAdjustSharpness" => {
            let sharpness = RandomAdjustSharpness::new(of!("sharpness_factor"));
            Step::of(sharpness.probability(of!("p")))
        }
        "RandomRotation" => {
            let ((low, high), (interpolation, fill)): (Range, _) = (of!("degrees"), between()?);
            let rotation = RandomRotation::between(low, high);
            with!(rotation.interpolation(interpolation).fill(fill);
                "center" => |it: RandomRotation, (x, y)| it.center(x, y))
        }
        "RandomAffine" => {
            let ((low, high), (interpolation, fill)): (Range, _) = (of!("degrees"), between()?);
            let affine = RandomAffine::new(0.0).degrees_between(low, high);
            with!(affine.interpolation(interpolation).fill(fill);
                "translate" => |it: RandomAffine, (across, down)| it.translate(across, down),
                "scale" => |it: RandomAffine, (low, high)| it.scale_between(low, high),
                "shear" => |it: RandomAffine, (along_x, along_y)| it.shear_between(along_x, along_y),
                "center" => |it: RandomAffine, (x, y)| it.center(x, y))
        }
        "RandomPerspective" => {
            let (interpolation, fill) = between()?;
            let perspective = RandomPerspective::new().distortion(of!("distortion_scale"));
            let perspective = perspective.probability(of!("p"));
            Step::of(perspective.interpolation(interpolation).fill(fill))
        }
        "RandAugment" => {
            let (interpolation, fill) = between()?;
            let policy = RandAugment::new().operations(of!("num_ops")).magnitude(of!("magnitude"));
            let policy = policy.magnitudes(of!("num_magnitude_bins"));
            Step::of(policy.interpolation(interpolation).fill(fill))
        }
        "TimmRandAugment" => {
            let (interpolation, fill) = between()?;
            let policy = TimmRandAugment::new().operations(of!("num_ops"));
            let policy = policy.probability(of!("p")).magnitude(of!("magnitude"));
            let policy = policy.maximum(of!("magnitude_max")).increasing(of!("increasing"));
            let policy = match setting("magnitude_std")?.extract::<Option<f64>>()? {
                Some(deviation) => policy.deviation(deviation),
                None => policy.uniform(),
            };
            Step::of(policy.interpolation(interpolation).fill(fill))
        }
        "TrivialAugmentWide" => {
            let (interpolation, fill) = between()?;
            let policy = TrivialAugmentWide::new().magnitudes(of!("num_magnitude_bins"));
            Step::of(policy.interpolation(interpolation).fill(fill))
        }
        "AutoAugment" => {
            let (interpolation, fill) = between()?;
            Step::of(AutoAugment::new().interpolation(interpolation).fill(fill))
        }
        "AugMix" => {
            let (interpolation, fill) = between()?;
            let mix = AugMix::new().severity(of!("severity")).mixture_width(of!("mixture_width"));
            let mix = mix.chain_depth(of!("chain_depth")).alpha(of!("alpha"));
            let mix = mix.all_operations(of!("all_ops"));
            Step::of(mix.interpolation(interpolation).fill(fill))
        }
        "TimmAugMix" => {
            let (interpolation, fill) = between()?;
            let mix = TimmAugMix::new().magnitude(of!("magnitude"));
            let mix = mix.mixture_width(of!("mixture_width")).chain_depth(of!("chain_depth"));
            let mix = match setting("magnitude_std")?.extract::<Option<f64>>()? {
                Some(deviation) => mix.deviation(deviation),
                None => mix,
            };
            Step::of(mix.alpha(of!("alpha")).interpolation(interpolation).fill(fill))
        }
        "RandomErasing" => {
            let ((least, most), (low, high)): (Range, Range) = (of!("scale"), of!("ratio"));
            let value = match setting("value")?.extract::<Option<[f32; 3]>>()? {
                Some(level) => ErasingValue::Constant(level),
                None => ErasingValue::Random,
            };
            let erasing = RandomErasing::new().probability(of!("p")).area_between(least, most);
            Step::of(erasing.aspect_between(low, high).value(value))
        }
        "RandomApply" => {
            let steps: Vec<Described<'_>> = of!("augmentations");
            let steps = steps.into_iter().map(step_of).collect::<PyResult<Vec<_>>>()?;
            Step::of(RandomApply::new(All(steps)).probability(of!("p")))
        }
        other => return Err(unknown(other)),
    })
}

fn interpolation(name: &str) -> PyResult<Interpolation> {
    match name {
        "nearest" => Ok(Interpolation::Nearest),
        "bilinear" => Ok(Interpolation::Bilinear),
        other => Err(unknown(other)),
    }
}

/// The error for a name that Python defines and Rust lacks, which is a bug.
fn unknown(name: &str) -> PyErr {
    PyValueError::new_err(format!("unknown augmentation or parameter value {name:?}"))
}
