//! What limits a run, in a sentence: the pipeline's own verdict, and what only the program knows.

use std::time::Duration;

use spdl_core::Statistics;
use spdl_core::observe::Limit;

use super::outcome::Outcome;
use crate::ui::format::{count, counted, percent};

/// Below this part of the CPU time for which its threads were busy, others have clearly taken some.
const CLEARLY_LESS: f64 = 0.75;

/// What limits the run, or that nothing of it was left.
pub(crate) fn verdict(outcome: &Outcome) -> String {
    if !outcome.was_complete() {
        let Statistics { elapsed, .. } = outcome.statistics;
        return of_run(&outcome.statistics.limit(), elapsed, outcome.cpu_time);
    }
    let total = outcome.delivery.total;
    format!(
        "already complete: {}, {} delivered, {} dropped; nothing was left to do",
        counted(outcome.arguments.epochs.into(), "epoch", "epochs"),
        counted(total.delivered, "image", "images"),
        count(total.dropped),
    )
}

/// How much CPU the run used, of how much there is.
pub(crate) fn cpu_used(outcome: &Outcome) -> String {
    let seconds = outcome.delivery.took.as_secs_f64();
    let used = if seconds > 0.0 { outcome.cpu_time.as_secs_f64() / seconds } else { 0.0 };
    let cores = counted(outcome.statistics.cpus as u64, "core", "cores");
    format!("{used:.2} of {cores}")
}

/// A thread that waits for a CPU in the middle of its work is busy, too. So where the CPU limits, the
/// CPU time of the process tells whether its own work took it, or other programs did.
fn of_run(limit: &Limit, elapsed: Duration, cpu_time: Duration) -> String {
    let Limit::Cpu { busy, threads, cpus, stage, part } = limit else { return limit.to_string() };
    let at_once = (*threads).min(*cpus).max(1);
    let busy_time = busy * at_once as f64 * elapsed.as_secs_f64();
    let got = if busy_time > 0.0 { cpu_time.as_secs_f64() / busy_time } else { 1.0 };
    if got >= CLEARLY_LESS {
        return limit.to_string();
    }
    let whose = match threads {
        1 => "its worker thread was".to_owned(),
        threads => format!("its {} worker threads were", count(*threads as u64)),
    };
    format!(
        "The CPU limits, and others have it: {whose} busy, or waiting for a CPU, {} of the time, {} of \
         it in stage {stage:?}, and this process got {} of that as CPU time; other programs, or a quota, \
         take the rest.",
        percent(*busy),
        percent(*part),
        percent(got),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_others_take_the_cpu_it_is_not_more_cores_alone_that_help() {
        let limit =
            Limit::Cpu { busy: 0.95, threads: 2, cpus: 2, stage: "decode".into(), part: 0.99 };
        // Two CPUs for ten seconds, 19 seconds of which the threads were busy.
        let told =
            |cpu_time| of_run(&limit, Duration::from_secs(10), Duration::from_secs_f64(cpu_time));
        for own in [21.0, 19.0, 14.5] {
            assert_eq!(told(own), limit.to_string());
        }
        for (cpu_time, share) in [(14.0, "74 %"), (1.4, "7 %")] {
            let told = told(cpu_time);
            assert!(told.contains(share) && told.contains("other programs, or a quota"), "{told}");
            assert!(!told.contains("only more cores"), "{told}");
        }
        // What does not limit by the CPU is told as it is.
        let idle = Limit::Balance { stage: "decode".into(), busy: 0.3 };
        let told = of_run(&idle, Duration::from_secs(10), Duration::ZERO);
        assert_eq!(told, idle.to_string());
    }

    #[test]
    fn threads_that_share_a_cpu_are_not_taken_for_others() {
        // Four threads on one CPU are busy, or wait for each other.
        let limit =
            Limit::Cpu { busy: 1.0, threads: 4, cpus: 1, stage: "decode".into(), part: 1.0 };
        let ten = Duration::from_secs(10);
        assert_eq!(of_run(&limit, ten, ten), limit.to_string());
        assert_ne!(of_run(&limit, ten, ten / 2), limit.to_string());
    }
}
