//! The error message if the output folder holds a set that was packed with other options or images.

use spdl_core::resume::Change;

use super::arguments::PackArguments;
use crate::ui::format::printable;

/// An option that determines the bytes of a set, and the key of its entry in the plan.
struct RecipeOption {
    name: &'static str,
    /// The key of the entry in the plan.
    part: &'static str,
    /// Converts the entry to the value of the option; `None` for the default.
    value: fn(&str) -> Option<&str>,
}

const OPTIONS: [RecipeOption; 11] = [
    RecipeOption { name: "--name", part: "the name", value: |value| Some(value) },
    RecipeOption {
        name: "--max-side",
        part: "max side",
        value: |side| Some(side).filter(|side| *side != "any"),
    },
    RecipeOption {
        name: "--quality",
        part: "quality",
        value: |quality| Some(quality).filter(|quality| *quality != "90"),
    },
    RecipeOption {
        name: "--format",
        part: "format",
        value: |format| Some(format).filter(|format| *format != "as is"),
    },
    RecipeOption {
        name: "--shuffle",
        part: "order",
        value: |order| order.strip_prefix("shuffled, seed "),
    },
    RecipeOption { name: "--image-field", part: "image field", value: |value| Some(value) },
    RecipeOption { name: "--label-field", part: "label field", value: |value| Some(value) },
    RecipeOption { name: "--fields", part: "fields", value: |value| Some(value) },
    RecipeOption { name: "--file-fields", part: "file fields", value: |value| Some(value) },
    RecipeOption {
        name: "--shard-size",
        part: "the size limit of shards in bytes",
        value: |value| Some(value),
    },
    RecipeOption {
        name: "--shard-samples",
        part: "the sample limit of shards",
        value: |value| Some(value),
    },
];

/// Describes which options, images or encoder version differ from those of the existing set.
/// Returns `None` if none of these differ.
pub(super) fn describe(changes: &[Change], arguments: &PackArguments) -> Option<String> {
    let mut differ: Vec<String> =
        OPTIONS.iter().filter_map(|option| option.describe(changes)).collect();
    let of = |part: &str| changes.iter().find(|change| change.part == part);
    if let Some(Change { was: Some(was), is: Some(is), .. }) = of("source items") {
        differ.push(format!("from {was} images, now there are {is}"));
    } else if of("source names").or_else(|| of("classes")).is_some() {
        differ.push("from images with other names or classes".to_owned());
    }
    if let Some(Change { was: Some(was), is: Some(is), .. }) = of("encoder") {
        differ.push(format!("by {was}, but {is} may encode differently"));
    }
    if differ.is_empty() {
        return None;
    }
    let folder = arguments.destination.display();
    Some(printable(&format!(
        "the set in {folder} was packed {}; choose another folder, or add --overwrite",
        differ.join("; ")
    )))
}

impl RecipeOption {
    /// Describes one change, such as `without --max-side, now with 512`; `None` if the option is
    /// unchanged.
    fn describe(&self, changes: &[Change]) -> Option<String> {
        let change = changes.iter().find(|change| change.part == self.part)?;
        let [was, is] =
            [&change.was, &change.is].map(|value| value.as_deref().and_then(self.value));
        let name = self.name;
        match (was, is) {
            (None, Some(is)) => Some(format!("without {name}, now with {is}")),
            (Some(was), None) => Some(format!("with {name} {was}, now without it")),
            (Some(was), Some(is)) if was != is => Some(format!("with {name} {was}, now {is}")),
            _ => None,
        }
    }
}
