//! The bottleneck of a run in one sentence: the verdict of the pipeline, refined by the CPU time of
//! the process.

use std::time::Duration;

use spdl_core::Statistics;
use spdl_core::observe::Limit;

use super::outcome::Outcome;
use crate::ui::format::{count, counted, percent};

/// If CPU time / busy time is below this limit, other processes used the CPUs.
const MIN_CPU_SHARE: f64 = 0.75;

/// A sentence that names the bottleneck of the run, or states that the run was already complete.
pub(crate) fn verdict(outcome: &Outcome) -> String {
    if !outcome.was_complete() {
        let Statistics { elapsed, .. } = outcome.statistics;
        return of_run(&outcome.statistics.limit(), elapsed, outcome.cpu_time);
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

/// Refines the verdict "limited by the CPU": the pipeline counts a thread that waits for a CPU as
/// busy.
///
/// The CPU time of the process shows whether its own work or other programs used the CPUs.
fn of_run(limit: &Limit, elapsed: Duration, cpu_time: Duration) -> String {
    let Limit::Cpu { busy, threads, cpus, stage, part } = limit else { return limit.to_string() };
    let concurrency = (*threads).min(*cpus).max(1);
    let busy_time = busy * concurrency as f64 * elapsed.as_secs_f64();
    let share = if busy_time > 0.0 { cpu_time.as_secs_f64() / busy_time } else { 1.0 };
    if share >= MIN_CPU_SHARE {
        return limit.to_string();
    }
    let workers = match threads {
        1 => "the worker thread was".to_owned(),
        threads => format!("the {} worker threads were", count(*threads as u64)),
    };
    format!(
        "Bottleneck: CPUs shared with other programs: {workers} busy or waiting for a CPU {} of the \
         time, {} of it in stage {stage:?}, but the process got only {} of that as CPU time; stop \
         other programs, or raise the CPU quota.",
        percent(*busy),
        percent(*part),
        percent(share),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_other_programs_is_reported() {
        let limit =
            Limit::Cpu { busy: 0.95, threads: 2, cpus: 2, stage: "decode".into(), part: 0.99 };
        // Two CPUs for ten seconds; the threads were busy for 19 seconds.
        let verdict =
            |cpu_time| of_run(&limit, Duration::from_secs(10), Duration::from_secs_f64(cpu_time));
        for own in [21.0, 19.0, 14.5] {
            assert_eq!(verdict(own), limit.to_string());
        }
        for (cpu_time, share) in [(14.0, "74 %"), (1.4, "7 %")] {
            let text = verdict(cpu_time);
            assert!(text.contains(share) && text.contains("other programs"), "{text}");
            assert_ne!(text, limit.to_string());
        }
        // Other bottlenecks are reported unchanged.
        let idle = Limit::Balance { stage: "decode".into(), busy: 0.3 };
        let text = of_run(&idle, Duration::from_secs(10), Duration::ZERO);
        assert_eq!(text, idle.to_string());
    }

    #[test]
    fn threads_that_share_a_cpu_do_not_count_as_other_programs() {
        // Four threads on one CPU are busy or wait for each other.
        let limit =
            Limit::Cpu { busy: 1.0, threads: 4, cpus: 1, stage: "decode".into(), part: 1.0 };
        let ten = Duration::from_secs(10);
        assert_eq!(of_run(&limit, ten, ten), limit.to_string());
        assert_ne!(of_run(&limit, ten, ten / 2), limit.to_string());
    }
}
