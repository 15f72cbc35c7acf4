//! The bottleneck of a run, and what would help.

use spdl_core::observe::{Diagnosis, Limit};

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
        let only_checksum =
            outcome.arguments.step_ms.is_none() && outcome.delivery.checksum.is_some();
        return in_words(&diagnosis, only_checksum);
    }
    let total = outcome.delivery.total;
    format!(
        "The run was already complete: {}, {} delivered, {} dropped.",
        counted(outcome.arguments.epochs.into(), "epoch", "epochs"),
        counted(total.delivered, "image", "images"),
        count(total.dropped),
    )
}

/// The diagnosis in sentences. `only_checksum`: the consumer computes only the checksum.
fn in_words(diagnosis: &Diagnosis, only_checksum: bool) -> String {
    match &diagnosis.limit {
        limit @ Limit::Consumer { .. } if only_checksum => format!(
            "{limit} The consumer of this run computes only the checksum; --no-checksum leaves it out."
        ),
        _ => diagnosis.to_string(),
    }
}

/// The mean number of CPUs used, and the number of CPUs.
pub(crate) fn cpu_used(outcome: &Outcome) -> String {
    let seconds = outcome.delivery.took.as_secs_f64();
    let used = if seconds > 0.0 { outcome.cpu_time.as_secs_f64() / seconds } else { 0.0 };
    let cores = counted(outcome.statistics.cpus as u64, "core", "cores");
    format!("{used:.2} of {cores}")
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use spdl_core::PipelineBuilder;

    use super::*;

    #[test]
    fn the_checksum_is_named_if_the_consumer_does_nothing_else() {
        let mut pipeline = PipelineBuilder::from_iter(0..50).map("double", Ok).build().unwrap();
        // The consumer is slow.
        pipeline.by_ref().for_each(|_| thread::sleep(Duration::from_millis(5)));
        let diagnosis = pipeline.statistics().diagnose();
        assert!(matches!(diagnosis.limit, Limit::Consumer { .. }), "{diagnosis}");
        let text = in_words(&diagnosis, true);
        assert!(text.ends_with("only the checksum; --no-checksum leaves it out."), "{text}");
        assert!(!text.contains("step"), "{text}");
        assert_eq!(in_words(&diagnosis, false), diagnosis.to_string());
    }
}
