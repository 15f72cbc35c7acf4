//! The files of saved states.

use std::path::Path;

use spdl_core::{Shard, State, StateFile};

use crate::ui::failure::Failure;
use crate::ui::format::printable;
use crate::ui::stderr;

/// The note of a state that says how many epochs the run has.
pub(super) const EPOCHS: &str = "spdl bench epochs";

/// Whether the run has ended all its epochs, where it was one of this program: others do not say how many
/// they have.
pub(crate) fn is_complete(state: &State) -> bool {
    let epochs = state.notes.get(EPOCHS).and_then(|epochs| epochs.parse::<u64>().ok());
    epochs.is_some_and(|epochs| state.epoch() >= epochs)
}

/// The option that says what becomes of the last images.
pub(crate) fn remainder_of(shard: Shard) -> String {
    let kinds = [
        (spdl_core::source::Remainder::Drop, "drop"),
        (spdl_core::source::Remainder::Pad, "pad"),
        (spdl_core::source::Remainder::Uneven, "uneven"),
    ];
    let named = kinds.into_iter().find(|(kind, _)| shard == shard.remainder(*kind));
    format!("--remainder {}", named.map_or("of another kind", |(_, name)| name))
}

/// Reads a state, and says so where it is the one before.
pub(crate) fn read(what: &str, path: &Path) -> Result<State, Failure> {
    let (state, damage) =
        StateFile::new(path).recover().map_err(|error| Failure::of(what, &error, path))?;
    if let Some(damage) = damage {
        let line = format!(
            "spdl: warning: {}: {}; the state before it, {}.previous, is used: it is of step {}",
            path.display(),
            damage.reason(),
            path.display(),
            state.steps()
        );
        stderr::note(&printable(&line));
    }
    Ok(state)
}
