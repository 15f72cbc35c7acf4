//! What combines the samples of each batch, from descriptions.

use serde_json::Value;
use spdl_core::{Batch, Result, Stage, StageContext};

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
    /// `InvalidArgument` with the key and the accepted values; the errors of [`mosaic`](Self::mosaic) and
    /// [`copy_paste`](Self::copy_paste).
    pub fn mix_from_description(&self, described: &Value) -> Result<BatchMix> {
        let place = "mix";
        let (type_name, mut settings) = Settings::of(place, described, "\"Mosaic(p=0.5)\"")?;
        let s = &mut settings;
        let made = match folded(&type_name).as_str() {
            "mix" => BatchMix::Mix(Box::new(mixed(s)?)),
            "mosaic" => {
                let probability = s.get("p")?.unwrap_or(1.0);
                let (least, most) = s.get("center")?.unwrap_or((0.25, 0.75));
                let mosaic = self.mosaic(&image(s)?)?.probability(probability)?;
                BatchMix::Mosaic(mosaic.center(least, most)?)
            }
            "copypaste" => {
                let probability = s.get("p")?.unwrap_or(1.0);
                let share = s.get("share")?.unwrap_or(0.5);
                let paste = self.copy_paste(&image(s)?)?.probability(probability)?;
                BatchMix::CopyPaste(paste.share(share)?)
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

fn mixed(s: &mut Settings) -> Result<Mix> {
    let mut mix = Mix::new(s.need("classes")?)?;
    let (mixup, cutmix) = (s.get("mixup")?, s.get("cutmix")?);
    if let Some(alpha) = mixup {
        mix = mix.mixup(alpha)?;
    }
    if let Some(alpha) = cutmix {
        mix = mix.cutmix(alpha)?;
    }
    mix = mix.probability(s.get("probability")?.unwrap_or(1.0))?;
    mix = mix.cutmix_probability(s.get("cutmix_probability")?.unwrap_or(0.5))?;
    let smoothing = s.get("smoothing")?.unwrap_or(0.0);
    if mixup.is_none() && cutmix.is_none() && smoothing == 0.0 {
        return Err(invalid("mix: nothing changes: set mixup, cutmix or smoothing".to_owned()));
    }
    mix = mix.smoothing(smoothing)?;
    let image = image(s)?;
    let label: Option<String> = s.get("label")?;
    Ok(mix.fields(&image, label.as_deref().unwrap_or("label")))
}
