//! What is told: tables for people, one JSON object for programs.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use spdl_core::Statistics;
use spdl_core::observe::{Dropped, StageStatistics};
use spdl_io::datasets::DatasetKind;

use super::arguments::Remainder;
use super::delivery::{Delivery, TrainingSteps};
use super::outcome::Outcome;
use super::verdict::{cpu_used, verdict};
use crate::commands::options::name_of;
use crate::ui::failure::Failure;
use crate::ui::format::{
    bytes, count, counted, measured, percent, printable, share, time, used, wrap,
};
use crate::ui::table::Table;
use crate::ui::{stderr, stdout};

/// No line of prose is longer.
const WIDTH: usize = 90;
/// So many failures are listed for people; programs get up to 100,000.
const FAILURES_SHOWN: usize = 50;

/// Tells the outcome on standard output, in the way that was asked for.
pub(crate) fn tell(outcome: &Outcome) -> Result<(), Failure> {
    let text = if outcome.arguments.json {
        let dropped = &outcome.statistics;
        if dropped.dropped.len() as u64 != dropped.dropped_total {
            let listed = count(dropped.dropped.len() as u64);
            let total = count(dropped.dropped_total);
            stderr::note(&format!(
                "spdl: warning: only {listed} of {total} dropped images are listed"
            ));
        }
        format!("{}\n", as_json(outcome))
    } else {
        as_text(outcome)
    };
    stdout::print(&text)
}

/// The object that `spdl bench --help` describes, in one line.
fn as_json(outcome: &Outcome) -> Value {
    let Statistics { dropped, .. } = &outcome.statistics;
    let milliseconds = |time: Duration| time.as_nanos() as f64 / 1e6;
    let dropped: Vec<Value> = dropped
        .iter()
        .map(|dropped| json!({ "key": key_of(dropped), "reason": reason_of(dropped) }))
        .collect();
    json!({
        "images": outcome.delivery.images,
        "seconds": outcome.delivery.took.as_secs_f64(),
        "images_per_s": outcome.images_per_second(),
        "cpu_s_per_1000": outcome.cpu_seconds_per_1000(),
        "peak_rss_bytes": outcome.peak_rss,
        "first_batch_ms": outcome.delivery.first.map(milliseconds),
        "epoch_starts_s": outcome.delivery.epochs.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
        "verdict": verdict(outcome),
        "data_readiness": outcome.statistics.data_readiness(),
        "dropped": dropped,
        "resumed": outcome.begun.map(|begun| json!({
            "epoch": begun.epoch,
            "step": begun.step,
            "steps": begun.steps,
            "images": begun.samples.delivered,
            "dropped": begun.samples.dropped,
        })),
        "total": {
            "images": outcome.delivery.total.delivered,
            "dropped": outcome.delivery.total.dropped,
        },
        "complete": outcome.was_complete(),
        "left_out": outcome.arguments.left_to_no_rank(outcome.images_found),
        "partial": outcome.partial,
        "stages": stages_as_json(&outcome.statistics),
        "labelled": outcome.delivery.labelled,
        "step_ms": outcome.arguments.step_ms,
        "steps": outcome.delivery.steps.map(|steps| json!({
            "steps": steps.steps,
            "waited": steps.waited,
            "waited_s": steps.waiting.as_secs_f64(),
        })),
        "kind": outcome.kind.to_string(),
        "cache": outcome.cache.map(|cache| json!({
            "hits": cache.memory_hits + cache.disk_hits,
            "misses": cache.misses,
            "hit_rate": cache.hit_rate(),
            "memory_bytes": cache.memory_bytes,
            "disk_bytes": cache.disk_bytes,
        })),
        "checksum": outcome.delivery.checksum.map(|checksum| format!("{checksum:032x}")),
    })
}

fn stages_as_json(statistics: &Statistics) -> Vec<Value> {
    let elapsed = statistics.elapsed;
    let milliseconds = |time: Duration| time.as_nanos() as f64 / 1e6;
    let stages = statistics.stages.iter().zip(&statistics.queues);
    stages
        .map(|(stage, queue)| {
            json!({
                "name": &*stage.name,
                "kind": stage.kind.as_str(),
                "concurrency": stage.concurrency,
                "items": stage.items,
                "failures": stage.failures,
                "busy_s": stage.busy.as_secs_f64(),
                "busy_share": stage.busy_share(elapsed),
                "fill_rate": stage.fill_rate,
                "service_ms": {
                    "p50": milliseconds(stage.service.p50),
                    "p90": milliseconds(stage.service.p90),
                    "p99": milliseconds(stage.service.p99),
                    "max": milliseconds(stage.service.max),
                },
                "queue": {
                    "capacity": queue.capacity,
                    "items": queue.items,
                    "mean": queue.mean_len,
                    "full_share": share(queue.put_wait, elapsed),
                    "empty_share": share(queue.get_wait, elapsed),
                },
            })
        })
        .collect()
}

fn as_text(outcome: &Outcome) -> String {
    let Outcome { statistics, delivery, .. } = outcome;
    let mut parts = vec![wrap(&describe(outcome), WIDTH)];
    parts.extend(left_out(outcome).map(|told| wrap(&told, WIDTH)));
    if outcome.was_complete() {
        parts.push(wrap(&verdict(outcome), WIDTH));
    } else {
        parts.extend([headline(outcome), stage_table(statistics), queue_table(statistics)]);
        if statistics.dropped_total > 0 {
            parts.push(failures(statistics));
        }
        parts.push(wrap(&verdict(outcome), WIDTH));
    }
    let mut text = parts.join("\n\n");
    text.push_str("\n\n");
    if statistics.dropped_total > 0 {
        let _ = writeln!(text, "used      {}", used(delivery.images, statistics.dropped_total));
    }
    if let Some(checksum) = delivery.checksum {
        let _ = writeln!(text, "checksum  {checksum:032x}");
    }
    if let Some(report) = &outcome.arguments.report {
        let _ = writeln!(text, "report    {}", printable(&report.display().to_string()));
    }
    text
}

/// What was run, in a sentence's worth of settings.
pub(crate) fn describe(outcome: &Outcome) -> String {
    let arguments = &outcome.arguments;
    let path = printable(&arguments.shown().display().to_string());
    let images = counted(outcome.images_found, "image", "images");
    let classes = match (outcome.classes, outcome.kind) {
        (0, DatasetKind::ImageFolder) => "without classes".into(),
        (0, kind) => format!("in {kind}"),
        (classes, _) => {
            let place = if outcome.classes_are_folders { " found in folders" } else { "" };
            format!("in {}{place}", counted(classes as u64, "class", "classes"))
        }
    };
    let rank = match arguments.world() {
        1 => String::new(),
        ranks => format!("rank {} of {ranks}, ", arguments.rank()),
    };
    format!(
        "{path}: {images} {classes}, {rank}{}, mode {}, size {}, batch {}, {}, seed {}, {}",
        counted(arguments.epochs.into(), "epoch", "epochs"),
        name_of(arguments.mode),
        arguments.size,
        count(arguments.batch.into()),
        arguments.layout,
        arguments.seed,
        counted(outcome.statistics.threads as u64, "thread", "threads"),
    )
}

/// What no rank takes of each epoch, or several do; `None` where every image is one rank's.
fn left_out(outcome: &Outcome) -> Option<String> {
    let (images, ranks) = (outcome.images_found, outcome.arguments.world());
    let rest = images % ranks;
    if rest == 0 {
        return None;
    }
    let are = |number| if number == 1 { "is" } else { "are" };
    match outcome.arguments.remainder {
        Remainder::Drop => Some(format!(
            "{} of each epoch {} left out so that all {} ranks have as many; --remainder pad or \
             uneven takes all",
            counted(rest, "image", "images"),
            are(rest),
            count(ranks)
        )),
        Remainder::Pad => Some(format!(
            "{} of each epoch {} repeated so that all {} ranks have as many",
            counted(ranks - rest, "image", "images"),
            are(ranks - rest),
            count(ranks)
        )),
        Remainder::Uneven => None,
    }
}

/// The figures that matter first, each with its name.
pub(crate) fn figures(outcome: &Outcome) -> Vec<(&'static str, String)> {
    let unknown = || "unknown".to_owned();
    let mut figures = vec![
        ("images", count(outcome.delivery.images)),
        ("dropped", count(outcome.statistics.dropped_total)),
    ];
    if outcome.begun.is_some() {
        let total = outcome.delivery.total;
        figures.push(("images in all", count(total.delivered)));
        figures.push(("dropped in all", count(total.dropped)));
    }
    figures.extend(outcome.partial.map(|partial| ("partial", count(partial))));
    figures.extend(labels(&outcome.delivery).map(|told| ("labels", told)));
    figures.extend([("images/s", measured(outcome.images_per_second()))]);
    figures.extend(each_epoch(&outcome.delivery.epoch_rates()).map(|rates| ("each epoch", rates)));
    figures.extend([
        ("seconds", measured(outcome.delivery.took.as_secs_f64())),
        ("CPU s / 1,000", outcome.cpu_seconds_per_1000().map_or_else(unknown, measured)),
        ("CPU used", cpu_used(outcome)),
        ("peak RSS", outcome.peak_rss.map_or_else(unknown, bytes)),
        ("first batch", outcome.delivery.first.map_or_else(unknown, time)),
        ("data readiness", percent(outcome.statistics.data_readiness())),
    ]);
    figures.extend(outcome.delivery.steps.map(|steps| ("steps waited", waited(&steps))));
    figures.extend(outcome.cache.map(|cache| ("cache hits", percent(cache.hit_rate()))));
    figures
}

/// How many images have a class, where not all have one.
fn labels(delivery: &Delivery) -> Option<String> {
    match (delivery.images, delivery.labelled) {
        (0, _) => None,
        (_, 0) => Some("none: no image has a class".to_owned()),
        (all, some) if some < all => Some(format!("{} of {}", count(some), count(all))),
        _ => None,
    }
}

/// How many steps of the pretended training had to wait for data, and how long.
fn waited(steps: &TrainingSteps) -> String {
    let share = steps.waited as f64 / steps.steps.max(1) as f64;
    format!(
        "{} of {} ({}), {} in all",
        count(steps.waited),
        count(steps.steps),
        percent(share),
        time(steps.waiting)
    )
}

/// The images per second of the first and the last epochs; `None` where there was one.
fn each_epoch(rates: &[f64]) -> Option<String> {
    const SHOWN: usize = 4;
    let told = |rates: &[f64]| rates.iter().map(|rate| measured(*rate)).collect::<Vec<_>>();
    match rates.len() {
        0 | 1 => None,
        all if all <= 2 * SHOWN => Some(told(rates).join("  ")),
        all => {
            let [first, last] = [told(&rates[..SHOWN]), told(&rates[all - SHOWN..])];
            Some(format!("{}  …  {}", first.join("  "), last.join("  ")))
        }
    }
}

fn headline(outcome: &Outcome) -> String {
    let figures = figures(outcome);
    let lines = figures.iter().map(|(name, value)| format!("{name:<16}{value}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn stage_table(statistics: &Statistics) -> String {
    let mut header =
        vec!["stage", "kind", "concurrency", "items", "failures", "busy", "p50", "p90", "p99"];
    let grouped = groups(statistics);
    if grouped {
        header.push(FILLED);
    }
    let mut table = Table::new(&header, 2);
    for stage in &statistics.stages {
        let mut row = vec![
            printable(&stage.name),
            stage.kind.as_str().into(),
            count(stage.concurrency as u64),
            count(stage.items),
            count(stage.failures),
            percent(stage.busy_share(statistics.elapsed)),
            time(stage.service.p50),
            time(stage.service.p90),
            time(stage.service.p99),
        ];
        if grouped {
            row.push(fill_rate(stage));
        }
        table.add(row);
    }
    table.draw()
}

/// The name of [`fill_rate`].
pub(crate) const FILLED: &str = "filled";

/// Whether there is a stage of which something is filled: one that groups items by their length.
pub(crate) fn groups(statistics: &Statistics) -> bool {
    statistics.stages.iter().any(|stage| stage.fill_rate.is_some())
}

/// The share that is not padding of what a stage groups; nothing where it groups nothing.
pub(crate) fn fill_rate(stage: &StageStatistics) -> String {
    stage.fill_rate.map(percent).unwrap_or_default()
}

fn queue_table(statistics: &Statistics) -> String {
    let mut table = Table::new(&["queue behind", "capacity", "mean", "full", "empty"], 1);
    for (stage, queue) in statistics.stages.iter().zip(&statistics.queues) {
        table.add([
            printable(&stage.name),
            count(queue.capacity as u64),
            format!("{:.1}", queue.mean_len),
            percent(share(queue.put_wait, statistics.elapsed)),
            percent(share(queue.get_wait, statistics.elapsed)),
        ]);
    }
    table.draw()
}

fn failures(statistics: &Statistics) -> String {
    let failures = DroppedImages::of(statistics);
    let mut text = format!("{}:", failures.title());
    for (dropped, times) in failures.files.iter().take(FAILURES_SHOWN) {
        let times = if *times > 1 { format!(" ({times} times)") } else { String::new() };
        let reason = wrap(&reason_of(dropped), WIDTH - 6).replace('\n', "\n      ");
        let _ = write!(text, "\n  {}{times}\n      {reason}", key_of(dropped));
    }
    if let Some(more) = failures.files.len().checked_sub(FAILURES_SHOWN).filter(|&more| more > 0) {
        let _ = write!(text, "\n  and {} more (--json lists up to 100,000)", count(more as u64));
    }
    text
}

/// What was dropped, each file and reason once.
pub(crate) struct DroppedImages<'a> {
    /// DroppedImages in all epochs.
    total: u64,
    /// By name; and how many times each failed so.
    pub(crate) files: Vec<(&'a Dropped, u64)>,
}

impl<'a> DroppedImages<'a> {
    pub(crate) fn of(statistics: &'a Statistics) -> Self {
        let mut files: Vec<(&Dropped, u64)> = Vec::new();
        let mut places: HashMap<(Option<&str>, &str), usize> = HashMap::new();
        for dropped in &statistics.dropped {
            let who = (dropped.key.as_deref(), dropped.reason.as_str());
            let place = *places.entry(who).or_insert(files.len());
            match files.get_mut(place) {
                Some((_, times)) => *times += 1,
                None => files.push((dropped, 1)),
            }
        }
        // In a shuffled order, nobody would find anything.
        files.sort_by_key(|(dropped, _)| dropped.key.clone());
        DroppedImages { total: statistics.dropped_total, files }
    }

    /// How much was dropped, in words.
    pub(crate) fn title(&self) -> String {
        let names: HashSet<_> = self.files.iter().map(|(dropped, _)| &dropped.key).collect();
        let files = names.len() as u64;
        let samples = format!("{} dropped", counted(self.total, "image", "images"));
        if self.total == files {
            samples
        } else {
            format!("{samples}, from {}", counted(files, "file", "files"))
        }
    }
}

/// The name of a dropped image.
pub(crate) fn key_of(dropped: &Dropped) -> String {
    dropped.key.as_deref().map_or_else(|| dropped.id.to_string(), printable)
}

/// Why it was dropped: the kind of failure and what happened.
pub(crate) fn reason_of(dropped: &Dropped) -> String {
    format!("{}: {}", dropped.kind, printable(&dropped.reason))
}

#[cfg(test)]
mod tests {
    use spdl_core::PipelineBuilder;
    use spdl_core::stage::Packing;

    use super::*;

    #[test]
    fn the_rates_of_the_first_and_the_last_epochs_are_told() {
        assert_eq!(each_epoch(&[5.0]), None);
        assert_eq!(each_epoch(&[900.0, 1200.0]).unwrap(), "900.0  1,200");
        let many: Vec<f64> = (0..9).map(|epoch| f64::from(1000 + epoch)).collect();
        let told = "1,000  1,001  1,002  1,003  …  1,005  1,006  1,007  1,008";
        assert_eq!(each_epoch(&many).unwrap(), told);
    }

    #[test]
    fn it_is_told_where_images_have_no_label() {
        let told = |images, labelled| labels(&Delivery { images, labelled, ..Delivery::default() });
        assert_eq!((told(0, 0), told(5, 5)), (None, None));
        assert_eq!(told(5, 0).unwrap(), "none: no image has a class");
        assert_eq!(told(5, 2).unwrap(), "2 of 5");
    }

    #[test]
    fn the_share_of_steps_that_waited_is_told() {
        let steps = TrainingSteps { steps: 40, waited: 10, waiting: Duration::from_millis(120) };
        assert_eq!(waited(&steps), "10 of 40 (25 %), 120 ms in all");
        assert_eq!(waited(&TrainingSteps::default()), "0 of 0 (0 %), 0 ns in all");
    }

    #[test]
    fn how_full_a_stage_packs_is_told_where_one_packs() {
        let pipeline = PipelineBuilder::from_iter([7, 5, 3, 2])
            .pack("pack", Packing::new(10), |&tokens| tokens)
            .build()
            .unwrap();
        let monitor = pipeline.monitor();
        assert_eq!(pipeline.count(), 2);
        let statistics = monitor.statistics();
        let table = stage_table(&statistics);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].ends_with("p99  filled"), "{table}");
        assert!(lines[2].starts_with("pack ") && lines[2].ends_with("  85 %"), "{table}");
        let json = stages_as_json(&statistics);
        assert_eq!((&json[0]["fill_rate"], &json[1]["fill_rate"]), (&Value::Null, &0.85.into()));

        let pipeline = PipelineBuilder::from_iter([7]).build().unwrap();
        let monitor = pipeline.monitor();
        assert_eq!(pipeline.count(), 1);
        assert!(!stage_table(&monitor.statistics()).contains(FILLED));
    }
}
