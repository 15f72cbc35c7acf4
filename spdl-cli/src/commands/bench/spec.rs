//! The fields of `--spec`, or of the options that are a shorthand for it.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use serde_json::Value;
use spdl_core::{BatchLayout, Error, ErrorKind, Field};
use spdl_media::OnTruncated;
use spdl_media::fill::{BatchMix, Grouping, SampleSpec};

use super::arguments::BenchArguments;
use crate::ui::failure::Failure;

/// What error messages begin with.
const WHAT: &str = "cannot read the fields";
/// The maximum size of a file, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// The fields of a file.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) fields: SampleSpec,
    /// How samples are grouped to batches; `None` if each batch has the next samples.
    pub(crate) group: Option<Grouping>,
    /// What combines the samples of each batch.
    pub(crate) mix: Option<BatchMix>,
    /// The name of the label in the batch.
    pub(crate) label: Option<String>,
    /// The stored field that holds the label, if the file names it.
    pub(crate) label_field: Option<String>,
    /// The names of the classes, if the file has them.
    pub(crate) classes: Option<Vec<String>>,
}

impl Spec {
    /// The fields of `--spec`, or of the options for video and audio; `None` for images.
    pub(crate) fn of_arguments(arguments: &BenchArguments) -> Result<Option<Spec>, Failure> {
        if let Some(path) = &arguments.spec {
            return Spec::read(path).map(Some);
        }
        let document = arguments.media.document(arguments);
        let spec = document.map(|document| Spec::of(&document)).transpose();
        spec.map_err(|error| Failure::usage(error.reason()))
    }

    /// Reads a file: TOML, or JSON if its name ends with `.json`.
    fn read(path: &Path) -> Result<Spec, Failure> {
        let failed = |reason: String| Failure::new(WHAT, path.display(), reason);
        let size = fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
        if size > MOST_BYTES {
            return Err(failed(format!("{size} bytes exceed the maximum of {MOST_BYTES}")));
        }
        let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let is_json =
            path.extension().is_some_and(|it| it.eq_ignore_ascii_case(OsStr::new("json")));
        let document: Value = match is_json {
            true => serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?,
            false => toml::from_str(&text).map_err(|error| failed(error.to_string()))?,
        };
        if !is_json && has_null(&document) {
            return Err(failed("write nan and inf as text, such as \"nan\"".to_owned()));
        }
        Spec::of(&document).map_err(|error| Failure::of(WHAT, &error, path))
    }

    fn of(document: &Value) -> spdl_core::Result<Spec> {
        let invalid = |message| Err(Error::new(ErrorKind::InvalidArgument, message));
        let mut tables = document.as_object().into_iter().flatten();
        let example = "expected tables such as [fields.image]";
        if let Some((other, _)) =
            tables.find(|(key, _)| !["fields", "mix", "group"].contains(&key.as_str()))
        {
            return invalid(format!("unknown key {other:?}; {example}"));
        }
        let Some(fields) = document.get("fields") else {
            return invalid(format!("there are no fields; {example}"));
        };
        let spec = SampleSpec::from_description(fields)?;
        let is_label = |field: &Value| {
            field["type"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("label"))
        };
        let mut labels =
            fields.as_object().into_iter().flatten().filter(|(_, field)| is_label(field));
        let label = labels.next();
        if labels.next().is_some() {
            return invalid("there is more than one label".to_owned());
        }
        let (spec, group) = match document.get("group") {
            Some(group) => {
                let (spec, group) = spec.grouped_from_description(group)?;
                (spec, Some(group))
            }
            None => (spec, None),
        };
        let mix = document.get("mix").map(|mix| spec.mix_from_description(mix)).transpose()?;
        if mix.is_some() && group.as_ref().is_some_and(Grouping::packs) {
            return invalid("mix needs batches of samples, and group makes sequences".to_owned());
        }
        let names = |field: &Value| match &field["classes"] {
            Value::String(name) => Some(vec![name.clone()]),
            names => {
                let names = names.as_array()?.iter();
                names.map(|name| Some(name.as_str()?.to_owned())).collect()
            }
        };
        Ok(Spec {
            fields: spec,
            group,
            mix,
            classes: label.and_then(|(_, field)| names(field)),
            label: label.map(|(name, _)| name.clone()),
            label_field: label.and_then(|(_, field)| Some(field["stored_as"].as_str()?.to_owned())),
        })
    }

    /// The name of the numbers of the classes in the batch; `None` if there are none, or they become weights.
    pub(crate) fn class_numbers(&self) -> Option<&str> {
        let mixed = self.mix.as_ref().and_then(BatchMix::mixed_label);
        self.label.as_deref().filter(|label| mixed != Some(*label))
    }

    /// The layout of the batches that are decoded.
    pub(crate) fn layout(&self, samples: usize) -> BatchLayout {
        match &self.group {
            Some(group) => group.layout_of_one(),
            None => self.fields.layout(samples),
        }
    }

    /// The fields of the batches that are delivered.
    pub(crate) fn fields_of_batch(&self) -> Vec<Field> {
        match &self.group {
            Some(group) => group.fields(),
            None => self.fields.layout(1).fields().to_vec(),
        }
    }

    /// Whether truncated images or sequences may be delivered.
    pub(crate) fn allows_partial(&self) -> bool {
        let mut transforms =
            self.fields.fields().filter_map(|(name, _)| self.fields.transform_of(name));
        transforms.any(|transform| transform.truncation() == OnTruncated::Partial)
            || self.group.as_ref().is_some_and(Grouping::truncates)
    }
}

/// Whether a value or a part of it is `null`, which JSON has in place of numbers that are not finite.
fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().any(has_null),
        Value::Object(members) => members.values().any(has_null),
        _ => false,
    }
}
