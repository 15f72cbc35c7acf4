//! `spdl profile`: whether a training would wait for data, and how much a faster loader would gain.

use std::time::{Duration, Instant};

use clap::{Arg, Args};
use serde_json::{Value, json};
use spdl_core::Statistics;
use spdl_core::observe::{SlowCause, SlowItem};

use super::arguments::BenchArguments;
use super::delivery::simulate_step;
use super::images::Images;
use super::rounds::{Extent, Rounds};
use super::run;
use super::shorthand::SampleNoun;
use crate::ui::failure::Failure;
use crate::ui::format::{bytes, measured, percent, printable, time, wrap};
use crate::ui::{stderr, stdout};

/// The width of wrapped text, in characters.
const WIDTH: usize = 90;
/// Number of rounds of a measurement.
const ROUNDS: u32 = 20;
/// A training is starved if a faster loader would save at least this share of its time.
const STARVED: f64 = 0.05;
/// A stage of the CPU pool computes if it uses a CPU for at least this share of its time.
const COMPUTES: f64 = 0.5;
/// A sample is shown as slow if it takes this many times the median.
const SLOW: u32 = 2;
/// Options of `spdl bench` that a measurement of limited time does not have.
const WITHOUT: [&str; 15] = [
    "epochs",
    "freeze",
    "no_checksum",
    "save_state",
    "save_every",
    "auto_resume",
    "overwrite_state",
    "resume",
    "allow_change",
    "step_ms",
    "report",
    "baseline",
    "baseline_program",
    "rounds",
    "threshold",
];

/// Hides and refuses options of `spdl bench` that need whole epochs.
pub(super) fn without_epochs(option: Arg) -> Arg {
    match WITHOUT.contains(&option.get_id().as_str()) {
        // DATA is always given.
        true => option.hide(true).conflicts_with("data"),
        false => option,
    }
}

/// Measures whether a training would wait for data, and how much a faster loader would gain
#[derive(Clone, Debug, Args)]
#[command(
    args_override_self = true,
    mut_args = without_epochs,
    after_help = "\
Examples:
  spdl profile photos/ --mode train --batch 64 --step-time 87ms
      would a training step of 87 ms wait for data? Which stage is the reason?
  spdl profile photos/
      the shortest step that the loader keeps up with; the slowest images
  spdl profile \"s3://bucket/shard-{0000..0147}.tar\" --step-time 0.2 --max-seconds 60 --json
  spdl profile clips/ --frames 16 --every 0.5s --step-time 300ms

What is measured:
  1. The loader without a step: its batches are taken and dropped immediately.
  2. The step alone: 1 / --step-time. Measure the step of your training on one batch that stays in
     memory, and pass its time; or use spdl_rs.profile(loader, step) in Python, which does that.
  3. Both together: after each batch, the program sleeps for --step-time.
  The headspace is the share of the training time that an infinitely fast loader would save:
  1 - together / step, in batches per second. A training is starved if it is 5 % or more. A sleeping
  step uses no CPU, so competition for CPUs, which spdl_rs.profile measures, is not included.

Keys of the JSON object:
  step_s             the measured time of a step in seconds; null without --step-time, as are the
                     keys with *
  batches_per_s      {loader, step*, together*}
  samples_per_s      {loader, together*}
  spread             {loader, together*}: half of the distance between the quartiles of 20 rounds,
                     relative to the median
  samples_per_batch  the mean number of samples of a batch
  headspace *        the share of the training time that an infinitely fast loader would save, 0 to 1
  gain *             the largest gain of the rate by a faster loader: 0.5 is half as much again
  starved *          true if headspace is at least 0.05
  shortest_step_s    the loader keeps up with steps of at least this time
  stages             [{name, waits, ms_per_sample}]: `waits` is true for a stage that loads, and false
                     for a stage that computes; the time is summed over concurrent samples
  slowest            [{id, key, stage, time_s, median_s, bytes, mean_bytes, cause}]: at most ten
                     samples; cause is size, latency, cpu (other programs) or work (decoding)
  verdict, diagnosis the bottleneck of the loader without a step, as text and as data: see
                     `spdl bench --help`"
)]
pub(crate) struct ProfileArguments {
    #[command(flatten)]
    pub(crate) load: BenchArguments,

    /// The time of a training step on one batch: 87ms, or 0.087 seconds
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) step_time: Option<Duration>,

    /// The time limit of the measurement in seconds, without opening the data set
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = duration)]
    pub(crate) max_seconds: Duration,
}

/// Parses a time above 0 and up to a day: `87ms`, `0.5s`, or a number of seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    match number.trim().parse::<f64>().map(|number| number * unit) {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a time above 0, such as 87ms or 0.5s".to_owned()),
    }
}

/// Runs the measurement, and prints the result.
pub(crate) fn run(arguments: &ProfileArguments) -> Result<(), Failure> {
    let result = measure(arguments)?;
    let text = match arguments.load.json {
        true => format!("{}\n", as_json(&result)),
        false => as_text(&result, arguments.load.noun()),
    };
    stdout::print(&text)
}

/// What was measured.
struct TrainingProfile {
    loader: Rounds,
    /// The measured time of a step, and the rate of both together.
    training: Option<(Duration, Rounds)>,
}

fn measure(arguments: &ProfileArguments) -> Result<TrainingProfile, Failure> {
    let load = run::without_end(&arguments.load);
    let (images, _) = Images::open(&load)?;
    let share = if arguments.step_time.is_some() { 0.5 } else { 1.0 };
    let extent =
        Extent { time: arguments.max_seconds.mul_f64(share), batches: None, rounds: ROUNDS };
    let note = |what: &str| {
        if !load.json {
            stderr::note(&format!("spdl: {what}, {:.0} s", extent.time.as_secs_f64()));
        }
    };
    note("measures the loader without a step");
    let loader = run::take_rounds(&load, &images, extent, None)?;
    let training = match arguments.step_time {
        Some(step) => {
            let alone = step_alone(step);
            note("measures the loader with the step");
            Some((alone, run::take_rounds(&load, &images, extent, Some(step))?))
        }
        None => None,
    };
    Ok(TrainingProfile { loader, training })
}

/// The mean time of a simulated step, which is longer than requested by the time to wake up.
fn step_alone(step: Duration) -> Duration {
    let steps = (0.5 / step.as_secs_f64()).clamp(1.0, 100.0) as u32;
    let began = Instant::now();
    for _ in 0..steps {
        simulate_step(step, || false);
    }
    began.elapsed() / steps
}

impl TrainingProfile {
    /// The rate of the step alone, in batches per second.
    fn step_rate(&self) -> Option<f64> {
        Some(1.0 / self.training.as_ref()?.0.as_secs_f64())
    }

    /// The share of the training time that an infinitely fast loader would save.
    fn headspace(&self) -> Option<f64> {
        let (step, both) = self.training.as_ref()?;
        Some((1.0 - both.batches_per_s() * step.as_secs_f64()).max(0.0))
    }

    fn gain(&self) -> Option<f64> {
        let headspace = self.headspace()?;
        Some(1.0 / (1.0 - headspace).max(1e-9) - 1.0)
    }

    fn shortest_step(&self) -> f64 {
        1.0 / self.loader.batches_per_s()
    }
}

/// The work of a stage for each sample of the source.
struct StageWork<'a> {
    name: &'a str,
    waits: bool,
    time: Duration,
}

fn work(statistics: &Statistics) -> Vec<StageWork<'_>> {
    let samples = statistics.stages.first().map_or(0, |source| source.items);
    let stages = statistics.stages.iter().filter(|_| samples > 0);
    let work = stages.map(|stage| StageWork {
        name: &stage.name,
        waits: !stage.kind.uses_cpu_pool() || stage.cpu_share.is_some_and(|it| it < COMPUTES),
        time: stage.busy.div_f64(samples as f64),
    });
    work.collect()
}

fn as_json(profile: &TrainingProfile) -> Value {
    let TrainingProfile { loader, training } = profile;
    let both = training.as_ref().map(|(_, both)| both);
    let stages = work(&loader.statistics).into_iter().map(|stage| {
        json!({
            "name": stage.name,
            "waits": stage.waits,
            "ms_per_sample": stage.time.as_secs_f64() * 1e3,
        })
    });
    let diagnosis = loader.statistics.diagnose();
    json!({
        "step_s": training.as_ref().map(|(step, _)| step.as_secs_f64()),
        "batches_per_s": {
            "loader": loader.batches_per_s(),
            "step": profile.step_rate(),
            "together": both.map(Rounds::batches_per_s),
        },
        "samples_per_s": {
            "loader": loader.samples_per_s(),
            "together": both.map(Rounds::samples_per_s),
        },
        "spread": { "loader": loader.spread(), "together": both.map(Rounds::spread) },
        "samples_per_batch": loader.samples_per_batch(),
        "headspace": profile.headspace(),
        "gain": profile.gain(),
        "starved": profile.headspace().map(|headspace| headspace >= STARVED),
        "shortest_step_s": profile.shortest_step(),
        "stages": stages.collect::<Vec<_>>(),
        "slowest": loader.statistics.slowest,
        "verdict": diagnosis.to_string(),
        "diagnosis": diagnosis,
    })
}

fn as_text(profile: &TrainingProfile, noun: SampleNoun) -> String {
    let loader = &profile.loader;
    let mut parts = match &profile.training {
        Some((step, both)) => vec![rates(profile, *step, both, noun), verdict(profile)],
        None => vec![format!(
            "The loader reaches {} {}/s: {} batches/s. It keeps up with training steps of {} or more. \
             {}",
            measured(loader.samples_per_s()),
            noun.many(),
            measured(loader.batches_per_s()),
            time(Duration::from_secs_f64(profile.shortest_step())),
            loader.statistics.diagnose(),
        )],
    };
    let work = work(&loader.statistics);
    let most = work.iter().map(|stage| stage.time).max().unwrap_or_default();
    let work = work.iter().filter(|stage| stage.time > most / 100).map(|stage| {
        let verb = if stage.waits { "waits" } else { "computes" };
        format!("{} {verb} for {}", printable(stage.name), time(stage.time))
    });
    let work: Vec<String> = work.collect();
    if !work.is_empty() {
        parts.push(format!("Per {}: {}.", noun.one(), work.join(", ")));
    }
    let mut text: String = parts.iter().map(|part| format!("{}\n\n", wrap(part, WIDTH))).collect();
    let slowest = loader.statistics.slowest.iter();
    let slowest: Vec<String> = slowest
        .filter(|item| item.time >= SLOW * item.median)
        .map(|item| format!("  {}\n", slow(item)))
        .collect();
    if !slowest.is_empty() {
        let noun = noun.many();
        text += &format!("The slowest {noun} that take {SLOW} times the median, or longer:\n");
        text.extend(slowest);
    }
    text
}

fn rates(profile: &TrainingProfile, step: Duration, both: &Rounds, noun: SampleNoun) -> String {
    format!(
        "The training would run at {} batches/s ({} {}/s). The step of {} alone reaches {} batches/s, \
         the loader alone {}.",
        measured(both.batches_per_s()),
        measured(both.samples_per_s()),
        noun.many(),
        time(step),
        measured(profile.step_rate().unwrap_or(0.0)),
        measured(profile.loader.batches_per_s()),
    )
}

fn verdict(profile: &TrainingProfile) -> String {
    let (headspace, gain) = (profile.headspace().unwrap_or(0.0), profile.gain().unwrap_or(0.0));
    if headspace < STARVED {
        return format!(
            "The training is not starved: the fastest loader would gain {}, so make the step faster.",
            percent(gain)
        );
    }
    format!(
        "The training is starved: a faster loader could raise the rate by up to {} (headspace {} of \
         the time). {}",
        percent(gain),
        percent(headspace),
        profile.loader.statistics.diagnose()
    )
}

/// A slow sample in one line.
fn slow(item: &SlowItem) -> String {
    let key = item.key.as_deref().map_or_else(|| item.id.to_string(), printable);
    let size = match (item.bytes, item.mean_bytes) {
        (Some(size), Some(mean)) => format!(", {} (mean {})", bytes(size), bytes(mean)),
        _ => String::new(),
    };
    let cause = match item.cause {
        SlowCause::Size => "its size",
        SlowCause::Latency => "it waited for the store or the disk",
        SlowCause::Cpu => "other programs or threads used the CPUs",
        _ => "its content or format",
    };
    let stage = printable(&item.stage);
    format!("{key}: {} in {stage} (median {}){size}: {cause}", time(item.time), time(item.median))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_or_is_in_seconds() {
        assert_eq!(duration("87ms"), Ok(Duration::from_millis(87)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        for invalid in ["0", "-1s", "nan", "1m", "", "ms", "1e9"] {
            assert!(duration(invalid).is_err(), "{invalid}");
        }
    }

    fn rounds(batches: u64) -> Rounds {
        Rounds {
            rates: vec![1.0],
            batches,
            samples: 32 * batches,
            took: Duration::from_secs(1),
            waited: Duration::ZERO,
            cpu: Duration::ZERO,
            statistics: Statistics::default(),
        }
    }

    #[test]
    fn the_headspace_is_the_share_of_the_time_that_the_fastest_loader_saves() {
        let step = Duration::from_millis(50);
        let starved = TrainingProfile { loader: rounds(11), training: Some((step, rounds(10))) };
        assert_eq!((starved.headspace(), starved.gain()), (Some(0.5), Some(1.0)));
        let text = as_text(&starved, SampleNoun::Image).replace('\n', " ");
        assert!(text.contains("rate by up to 100 % (headspace 50 %"), "{text}");
        let fed = TrainingProfile { loader: rounds(40), training: Some((step, rounds(20))) };
        assert_eq!((fed.headspace(), fed.gain()), (Some(0.0), Some(0.0)));
        assert!(as_text(&fed, SampleNoun::Image).contains("not starved"));
    }
}
