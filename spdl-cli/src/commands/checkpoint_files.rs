//! Checkpoint files, for `spdl bench` and `spdl verify-order`.

use std::path::Path;

use spdl_core::{Shard, State, StateFile};

use crate::ui::failure::Failure;
use crate::ui::format::printable;
use crate::ui::stderr;

/// The key of the note (extra entry of a checkpoint) that holds the number of epochs of the run.
pub(super) const EPOCHS: &str = "spdl bench epochs";

/// Whether the run has completed all its epochs; false for checkpoints of other programs.
pub(crate) fn is_complete(state: &State) -> bool {
    let epochs = state.notes.get(EPOCHS).and_then(|epochs| epochs.parse::<u64>().ok());
    epochs.is_some_and(|epochs| state.epoch() >= epochs)
}

/// The `--remainder` option that a checkpoint was saved with.
pub(crate) fn remainder_of(shard: Shard) -> String {
    let kinds = [
        (spdl_core::source::Remainder::Drop, "drop"),
        (spdl_core::source::Remainder::Pad, "pad"),
        (spdl_core::source::Remainder::Uneven, "uneven"),
    ];
    let named = kinds.into_iter().find(|(kind, _)| shard == shard.remainder(*kind));
    format!("--remainder {}", named.map_or("of an unknown kind", |(_, name)| name))
}

/// Reads a checkpoint; prints a warning if the previous one is used instead.
pub(crate) fn read(what: &str, path: &Path) -> Result<State, Failure> {
    let (state, damage) =
        StateFile::new(path).recover().map_err(|error| Failure::of(what, &error, path))?;
    if let Some(damage) = damage {
        let line = format!(
            "spdl: warning: {}: {}; using the previous checkpoint \"{}.previous\" of step {}",
            path.display(),
            damage.reason(),
            path.display(),
            state.steps()
        );
        stderr::note(&printable(&line));
    }
    Ok(state)
}
