//! The bottleneck of a run, and what would help.

use spdl_core::observe::Diagnosis;

use super::outcome::Outcome;
use crate::ui::format::{count, counted};

/// The diagnosis of the pipeline; `None` if the run was already complete.
pub(crate) fn diagnosis(outcome: &Outcome) -> Option<Diagnosis> {
    (!outcome.was_complete()).then(|| outcome.statistics.diagnose())
}

/// Sentences that name the bottleneck of the run and what would help, or state that the run was
/// already complete.
pub(crate) fn verdict(outcome: &Outcome) -> String {
    if let Some(diagnosis) = diagnosis(outcome) {
        return diagnosis.to_string();
    }
    let total = outcome.delivery.total;
    format!(
        "The run was already complete: {}, {} delivered, {} dropped.",
        counted(outcome.arguments.epochs.into(), "epoch", "epochs"),
        counted(total.delivered, "image", "images"),
        count(total.dropped),
    )
}

/// The mean number of CPUs used, and the number of CPUs.
pub(crate) fn cpu_used(outcome: &Outcome) -> String {
    let seconds = outcome.delivery.took.as_secs_f64();
    let used = if seconds > 0.0 { outcome.cpu_time.as_secs_f64() / seconds } else { 0.0 };
    let cores = counted(outcome.statistics.cpus as u64, "core", "cores");
    format!("{used:.2} of {cores}")
}
