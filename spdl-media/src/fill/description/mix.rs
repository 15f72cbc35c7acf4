//! What combines the samples of each batch, from descriptions.

use serde_json::Value;
use spdl_core::stage::Collation;
use spdl_core::{Batch, DType, Result, Stage, StageContext};

use super::settings::{Settings, folded, invalid, unknown};
use super::{LIKE, SampleSpec};
use crate::augment::Mix;
use crate::fill::{CopyPaste, Mosaic};

const TYPES: [&str; 3] = ["Mix", "Mosaic", "CopyPaste"];

/// A stage of batches that combines their samples.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum BatchMix {
    /// MixUp and CutMix, with soft labels.
    Mix(Box<Mix>),
    /// Mosaics of four images, with their boxes.
    Mosaic(Mosaic),
    /// Objects of other images, with their boxes.
    CopyPaste(CopyPaste),
}

impl BatchMix {
    /// The name and all settings, for
    /// [`StageOptions::parameters`](spdl_core::StageOptions::parameters).
    pub fn parameters(&self) -> Vec<(String, String)> {
        match self {
            BatchMix::Mix(mix) => mix.parameters().collect(),
            BatchMix::Mosaic(mosaic) => mosaic.parameters().collect(),
            BatchMix::CopyPaste(paste) => paste.parameters().collect(),
        }
    }

    /// The field of labels that become the weights of classes; `None` if labels do not change.
    pub fn mixed_label(&self) -> Option<&str> {
        match self {
            BatchMix::Mix(mix) => Some(mix.label()),
            _ => None,
        }
    }
}

/// Uses the random numbers of the first sample of the batch.
impl Stage<Batch> for BatchMix {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        match self {
            BatchMix::Mix(mix) => mix.process(batch, cx),
            BatchMix::Mosaic(mosaic) => mosaic.process(batch, cx),
            BatchMix::CopyPaste(paste) => paste.process(batch, cx),
        }
    }
}

impl SampleSpec {
    /// The stage that a JSON value describes: `Mix`, `Mosaic` or `CopyPaste` of `spdl_rs.recipes` in Python.
    ///
    /// It is an object with the key `type`, the name of the class in any case, and the parameters of that class, with
    /// their defaults; or text such as `"Mosaic(p=0.5)"`.
    ///
    /// ```
    /// use serde_json::json;
    /// use spdl_media::fill::SampleSpec;
    /// let spec = SampleSpec::from_description(&json!({"image": {"type": "image", "size": 64}}))?;
    /// let mosaic = spec.mix_from_description(&json!("mosaic(0.5)"))?;
    /// assert_eq!(mosaic.parameters()[1], ("probability".to_owned(), "0.5".to_owned()));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` with the key and the accepted values, or if the image of `Mix` has not one crop of one
    /// size, or its label is not an `int64`; the errors of [`mosaic`](Self::mosaic) and
    /// [`copy_paste`](Self::copy_paste).
    pub fn mix_from_description(&self, described: &Value) -> Result<BatchMix> {
        let place = "mix";
        let (type_name, mut settings) = Settings::of(place, described, "\"Mosaic(p=0.5)\"")?;
        let s = &mut settings;
        let made = match folded(&type_name).as_str() {
            "mix" => BatchMix::Mix(Box::new(mixed(self, s)?)),
            "mosaic" => {
                let (probability, center) = (s.get("p")?, s.get("center")?);
                let mut mosaic = self.mosaic(&image(s)?)?;
                if let Some(probability) = probability {
                    mosaic = mosaic.probability(probability)?;
                }
                if let Some((least, most)) = center {
                    mosaic = mosaic.center(least, most)?;
                }
                BatchMix::Mosaic(mosaic)
            }
            "copypaste" => {
                let (probability, share) = (s.get("p")?, s.get("share")?);
                let mut paste = self.copy_paste(&image(s)?)?;
                if let Some(probability) = probability {
                    paste = paste.probability(probability)?;
                }
                if let Some(share) = share {
                    paste = paste.share(share)?;
                }
                BatchMix::CopyPaste(paste)
            }
            _ => return Err(unknown(place, &type_name, &TYPES)),
        };
        settings.finish()?;
        Ok(made)
    }
}

fn image(settings: &mut Settings) -> Result<String> {
    Ok(settings.get("image")?.unwrap_or_else(|| LIKE.to_owned()))
}

fn mixed(spec: &SampleSpec, s: &mut Settings) -> Result<Mix> {
    let mut mix = Mix::new(s.need("classes")?)?;
    type Set = fn(Mix, f64) -> Result<Mix>;
    let settings: [(_, Set); 5] = [
        ("mixup", Mix::mixup),
        ("cutmix", Mix::cutmix),
        ("probability", Mix::probability),
        ("cutmix_probability", Mix::cutmix_probability),
        ("smoothing", Mix::smoothing),
    ];
    for (name, set) in settings {
        if let Some(value) = s.get(name)? {
            mix = set(mix, value)?;
        }
    }
    let image = image(s)?;
    let label = s.get::<String>("label")?.unwrap_or_else(|| "label".to_owned());
    check_mixed(spec, &image, &label)?;
    Ok(mix.fields(&image, &label))
}

/// Checks the fields of [`Mix`].
///
/// # Errors
/// `InvalidArgument` if `image` has not one crop of one size, or `label` is not an `int64`.
fn check_mixed(spec: &SampleSpec, image: &str, label: &str) -> Result<()> {
    let transform = spec.transform_of(image).filter(|transform| transform.crops().is_none());
    let Some(transform) = transform else {
        return Err(invalid(format!("field {image:?} is not an image of one crop")));
    };
    let layout = spec.layout(1);
    let field = |name: &str| layout.fields().iter().find(|field| *field.name == *name);
    // Batches that are grouped by size are padded fields whose samples have one size.
    let is_padded = field(image).is_some_and(|field| field.collation == Collation::Padded);
    if transform.fixed_size().pixels() == 0 && !(is_padded && transform.has_sizes()) {
        let message = format!("mix needs images of one size; choose another crop for {image:?}");
        return Err(invalid(message));
    }
    match field(label) {
        Some(field) if field.dtype == DType::I64 && field.shape.is_empty() => Ok(()),
        Some(_) => {
            Err(invalid(format!("mix needs the label {label:?} to be an int64, one per sample")))
        }
        None => Err(invalid(format!("mix needs a label, but there is no field {label:?}"))),
    }
}
