//! How far an epoch has come, as JSON, and why one that is given does not fit.

use spdl_core::resume::Change;
use spdl_core::source::Remainder;
use spdl_core::{Error, ErrorKind, Result, Shard, State};

use super::settings::Settings;
use crate::statistics::state_to_json;

/// Parts of a state's fingerprint, and the argument of `ImageLoader` that decides each.
const ARGUMENTS: [(&str, &str); 17] = [
    ("source items", "the number of images"),
    ("source contents", "the images, their names or labels"),
    ("source order", "shuffle, or seed"),
    ("stage fetch: image field", "image_field"),
    ("stage fetch: label field", "label_field"),
    ("stage fetch: classes", "classes"),
    ("stage decode: batch size", "batch_size"),
    ("stage decode: size", "size"),
    ("stage decode: format", "layout"),
    ("stage decode: fields", "size, or layout"),
    ("stage decode: mean", "layout"),
    ("stage decode: std", "layout"),
    ("stage decode: crop", "train, or size"),
    ("stage decode: flips", "train"),
    ("stage decode: truncated", "on_truncated"),
    ("stage decode: drop last", "drop_last"),
    ("stage decode: decoder", "decode"),
];

/// # Errors
/// `InvalidArgument` for what is no state, and for one of another rank.
pub(crate) fn from_json(text: &str, settings: &Settings) -> Result<State> {
    let state = parse(text)?;
    match state.shard() {
        Some(own) if own != settings.shard => {
            let message = format!(
                "this is the state of {}, and the loader is {}: each rank goes on from its own \
                 state, or, where there is another number of ranks, all go on from one state that \
                 `ImageLoader.combine_states` makes of the states of all ranks",
                rank(own),
                rank(settings.shard)
            );
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
        _ => Ok(state),
    }
}

/// One state of those of all ranks, as JSON, for any number of ranks.
///
/// # Errors
/// `InvalidArgument` for what is no state, and where they do not belong together.
pub(crate) fn combine(texts: &[String]) -> Result<String> {
    let states = texts.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
    state_to_json(&State::combine(states)?)
}

fn parse(text: &str) -> Result<State> {
    serde_json::from_str(text).map_err(|error| {
        let message = format!("this is no state of an ImageLoader: {error}");
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

/// Says what has changed since a state was taken in the words of `ImageLoader`.
pub(crate) fn in_own_words(error: Error) -> Error {
    if error.changes().is_empty() {
        return error;
    }
    let mut told: Vec<String> = Vec::new();
    for Change { part, was, is } in error.changes() {
        let argument = ARGUMENTS.iter().find(|(name, _)| name == part);
        let name = argument.map_or(part.as_str(), |(_, argument)| argument);
        let [was, is] = [was, is].map(|value| value.as_deref().unwrap_or("absent"));
        told.push(match part.as_str() {
            // A hash says nothing to anybody.
            "source contents" => format!("{name}: others than before"),
            _ => format!("{name}: was {was}, is {is}"),
        });
    }
    let message = format!(
        "this is the state of another run, and what follows would not be what that would have \
         delivered ({})",
        told.join("; ")
    );
    Error::new(ErrorKind::InvalidArgument, message)
}
