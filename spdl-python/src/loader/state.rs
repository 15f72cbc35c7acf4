//! Checkpoint state as JSON, and errors for states that do not match the loader.

use spdl_core::resume::Change;
use spdl_core::source::Remainder;
use spdl_core::{Error, ErrorKind, Result, Shard, State};

use super::settings::Settings;
use crate::statistics::state_to_json;

/// Parts of a state's fingerprint, and the arguments of a loader that determine them.
const ARGUMENTS: [(&str, &str); 37] = [
    ("source items", "the number of samples"),
    ("source contents", "the samples, their names or labels"),
    ("source order", "shuffle, seed or sequential_memory"),
    ("source order weights", "the weights of mix"),
    ("stage getitem", "source"),
    ("stage fetch: image field", "image_field"),
    ("stage fetch: label field", "label_field"),
    ("stage fetch: classes", "classes"),
    ("stage decode: batch size", "batch_size"),
    ("stage decode: size", "size"),
    ("stage decode: format", "layout"),
    ("stage decode: fields", "size, layout or fields"),
    ("stage decode: mean", "layout"),
    ("stage decode: std", "layout"),
    ("stage decode: crop", "train, or size"),
    ("stage decode: flips", "train"),
    ("stage decode: truncated", "on_truncated"),
    ("stage mix", "mix"),
    ("stage filter", "filter"),
    ("stage map", "map"),
    ("stage collate", "collate"),
    ("stage batch_map", "batch_map"),
    ("stage decode: drop last", "drop_last"),
    ("stage decode: decoder", "decode"),
    ("stage decode: sequences", "group"),
    ("stage join: sequences", "group"),
    ("stage pack: capacity", "length"),
    ("stage pack: open", "open_sequences"),
    ("stage pack: most items", "max_samples"),
    ("stage concatenate: capacity", "length"),
    ("stage concatenate: drop last", "drop_last"),
    ("stage batch: size", "batch_size"),
    ("stage batch: drop last", "drop_last"),
    ("stage bucket: size", "batch_size"),
    ("stage bucket: budget", "max_tokens"),
    ("stage bucket: boundaries", "boundaries"),
    ("stage bucket: drop last", "drop_last"),
];

/// The field with the names of samples, which functions need: `_functions.KEYS` of the package.
const KEYS: &str = "(keys)";
/// How the order of an iterable begins.
const OF_ITERABLE: &str = "of the iterable";

/// # Errors
/// `InvalidArgument` if the text is not a state, or if the state belongs to another rank than `shard`.
pub(crate) fn from_json(text: &str, settings: &Settings, shard: Shard) -> Result<State> {
    let state = parse(text, settings.loader())?;
    match state.shard() {
        Some(own) if own != shard => {
            let message = format!(
                "the state is of {}, but the loader is {}: resume each rank from its own state; after \
                 a change of the world size, resume all ranks from the result of \
                 `{}.combine_states`",
                rank(own),
                rank(shard),
                settings.loader()
            );
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
        _ => Ok(state),
    }
}

/// Combines the states of all ranks into one state, from which any number of ranks can resume.
///
/// # Errors
/// `InvalidArgument` if a text is not a state, or if the states belong to different runs.
pub(crate) fn combine(texts: &[String], loader: &str, repeat_parts: bool) -> Result<String> {
    let state = |text: &String| {
        let state = parse(text, loader)?;
        Ok(if repeat_parts { state.repeat_parts() } else { state })
    };
    let states = texts.iter().map(state).collect::<Result<Vec<_>>>()?;
    state_to_json(&State::combine(states)?)
}

fn parse(text: &str, loader: &str) -> Result<State> {
    serde_json::from_str(text).map_err(|error| {
        let article = if loader.starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" };
        let message = format!("not a state of {article} {loader}: {error}");
        Error::new(ErrorKind::InvalidArgument, message)
    })
}

fn rank(shard: Shard) -> String {
    format!("{shard} with remainder={:?}", remainder(shard))
}

fn remainder(shard: Shard) -> &'static str {
    let kinds = [(Remainder::Drop, "drop"), (Remainder::Pad, "pad"), (Remainder::Uneven, "uneven")];
    let named = kinds.into_iter().find(|(kind, _)| shard == shard.remainder(*kind));
    named.map_or("of another kind", |(_, name)| name)
}

/// The fingerprint of a sampler, which saved states contain, as text for users.
fn order_in_words(fingerprint: &str) -> String {
    if fingerprint.starts_with(OF_ITERABLE) {
        return fingerprint.to_owned();
    }
    fingerprint
        .replace("Sequential", "no shuffle")
        .replace("Shuffled { seed: ", "shuffle with seed ")
        .replace("ShardWindow { seed: ", "shuffle with seed ")
        .replace(" }", "")
}

/// A description with the syntax of Rust, as text for users: `ResizedCenter(covering: 256x256)`.
fn in_words(description: &str) -> String {
    let (mut words, mut rest) = (String::new(), description);
    while let Some((before, size)) = rest.split_once("Size { width: ") {
        words += before;
        let (sides, after) = size.split_once(" }").unwrap_or((size, ""));
        words += &sides.replace(", height: ", "x");
        rest = after;
    }
    (words + rest).replace(" { ", "(").replace(" }", ")")
}

/// Whether the changed seed explains the difference of two orders.
fn differ_in_seed(seeds: &Change, was: &str, is: &str) -> bool {
    let without = |order: &str, seed: &Option<String>| {
        let seed = seed.as_deref().unwrap_or_default();
        order.strip_prefix(&format!("shuffle with seed {seed}")).map(str::to_owned)
    };
    let was = without(was, &seeds.was);
    was.is_some() && was == without(is, &seeds.is)
}

/// Whether two long descriptions differ only after the part that states contain, in their hashes.
fn are_equal_as_far_as_saved(was: &str, is: &str) -> bool {
    matches!((was.split_once('…'), is.split_once('…')), (Some((was, _)), Some((is, _))) if was == is)
}

/// Two descriptions, such as those of the fields of a batch, without the parts at their start and end that both have.
fn without_equal_parts(was: &str, is: &str) -> [String; 2] {
    let (old, new): (Vec<&str>, Vec<&str>) = (was.split("; ").collect(), is.split("; ").collect());
    let first = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let last = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let last = last.min(old.len().min(new.len()) - first);
    let rest = |parts: &[&str], all: &str| match &parts[first..parts.len() - last] {
        [] => all.to_owned(),
        rest => rest.join("; "),
    };
    [rest(&old, was), rest(&new, is)]
}

/// Rewords fingerprint mismatches with the argument names of the loaders.
pub(crate) fn with_argument_names(error: Error) -> Error {
    if error.changes().is_empty() {
        return error;
    }
    let mut changes: Vec<String> = Vec::new();
    let seeds = error.changes().iter().find(|change| change.part == "seed");
    // The field with the names of samples follows from the functions, whose change is listed; the layout of a batch
    // follows from the fields.
    let is_of_field = |change: &&Change| change.part.starts_with("stage decode: field ");
    let keys = format!("stage decode: field {KEYS}");
    let has_fields = error.changes().iter().any(|change| is_of_field(&change));
    let shown = error.changes().iter().filter(|change| {
        change.part != keys && !(has_fields && change.part == "stage decode: fields")
    });
    for Change { part, was, is } in shown {
        let argument = ARGUMENTS.iter().find(|(name, _)| name == part);
        let field = part.strip_prefix("stage decode: field ").unwrap_or(part);
        let name = argument.map_or(field, |(_, argument)| argument);
        let [was, is] = [was, is].map(|value| value.as_deref().unwrap_or("absent"));
        let is_order = part.starts_with("source order");
        let [was, is] = [was, is].map(|it| if is_order { order_in_words(it) } else { it.into() });
        if is_order && seeds.is_some_and(|seeds| differ_in_seed(seeds, &was, &is)) {
            continue;
        }
        if are_equal_as_far_as_saved(&was, &is) {
            changes.push(format!("{name}: changed"));
            continue;
        }
        let [was, is] = match is_order {
            true => [was, is],
            false => without_equal_parts(&was, &is).map(|it| in_words(&it)),
        };
        changes.push(match part.as_str() {
            // The values are hashes, which mean nothing to the user.
            "source contents" => format!("{name}: changed"),
            "source order" if [&was, &is].iter().any(|it| it.starts_with(OF_ITERABLE)) => {
                format!("source or remainder: was {was}, is {is}")
            }
            _ => format!("{name}: was {was}, is {is}"),
        });
    }
    let message = format!(
        "cannot resume: the state was saved with different settings ({}); resume with the \
         original settings, or start without the state",
        changes.join("; ")
    );
    Error::new(ErrorKind::InvalidArgument, message)
}
