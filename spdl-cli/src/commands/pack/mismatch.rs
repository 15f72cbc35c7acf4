//! In what a set that is there differs from the one that is asked for, in the words of the command line.

use spdl_core::resume::Change;

use super::arguments::PackArguments;
use crate::ui::format::printable;

/// An option that decides the bytes of a set, as the plan of a set holds it.
struct RecipeOption {
    name: &'static str,
    /// The part of the plan.
    part: &'static str,
    /// The value on the command line, of that of the part; `None` where that is what comes of no option.
    value: fn(&str) -> Option<&str>,
}

const OPTIONS: [RecipeOption; 10] = [
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
    RecipeOption { name: "--shard-size", part: "the bytes of a shard", value: |value| Some(value) },
    RecipeOption {
        name: "--shard-samples",
        part: "the samples of a shard",
        value: |value| Some(value),
    },
];

/// Why a set that is there does not go on: what of the command line is not as it was, each option with
/// both values. `None` where no option and no image says it.
pub(super) fn told(changes: &[Change], arguments: &PackArguments) -> Option<String> {
    let mut differ: Vec<String> =
        OPTIONS.iter().filter_map(|option| option.told(changes)).collect();
    let of = |part: &str| changes.iter().find(|change| change.part == part);
    if let Some(Change { was: Some(was), is: Some(is), .. }) = of("source items") {
        differ.push(format!("from {was} images; now there are {is}"));
    } else if of("source names").or_else(|| of("classes")).is_some() {
        differ.push("from images of other names or classes".to_owned());
    }
    if let Some(Change { was: Some(was), is: Some(is), .. }) = of("encoder") {
        differ.push(format!("by {was}; this is {is}, which may encode otherwise"));
    }
    if differ.is_empty() {
        return None;
    }
    let folder = arguments.destination.display();
    Some(printable(&format!(
        "the set in {folder} was packed {}; give another folder, or --overwrite",
        differ.join("; and ")
    )))
}

impl RecipeOption {
    /// `without --max-side; now it is 512`, if that has changed.
    fn told(&self, changes: &[Change]) -> Option<String> {
        let change = changes.iter().find(|change| change.part == self.part)?;
        let [was, is] =
            [&change.was, &change.is].map(|value| value.as_deref().and_then(self.value));
        let name = self.name;
        match (was, is) {
            (None, Some(is)) => Some(format!("without {name}; now it is {is}")),
            (Some(was), None) => Some(format!("with {name} {was}; now it is not given")),
            (Some(was), Some(is)) if was != is => {
                Some(format!("with {name} {was}; now it is {is}"))
            }
            // The values are those that come of no option.
            _ => None,
        }
    }
}
