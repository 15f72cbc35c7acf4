//! The result of a run as text tables, or as one JSON object.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use spdl_core::Statistics;
use spdl_core::observe::{Dropped, StageStatistics};
use spdl_io::datasets::DatasetKind;

use super::arguments::Remainder;
use super::baseline::repeatable;
use super::delivery::{Delivery, TrainingSteps};
use super::outcome::Outcome;
use super::shorthand::SampleNoun;
use super::verdict::{cpu_used, diagnosis, verdict};
use crate::commands::options::name_of;
use crate::ui::failure::Failure;
use crate::ui::format::{
    bytes, count, counted, measured, percent, printable, share, time, used, wrap,
};
use crate::ui::table::Table;
use crate::ui::{stderr, stdout};

/// The width of wrapped text, in characters.
const WIDTH: usize = 90;
/// Maximum number of dropped files in the text output; the JSON output has up to 100,000.
const FILES_SHOWN: usize = 50;

/// Prints the result on standard output, as text or JSON.
pub(crate) fn print(outcome: &Outcome) -> Result<(), Failure> {
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

/// The JSON object that `spdl bench --help` documents.
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
        "frames_per_s": outcome.frames_per_second(),
        "audio_s_per_s": outcome.audio_seconds_per_second(),
        "cpu_s_per_1000": outcome.cpu_seconds_per_1000(),
        "peak_rss_bytes": outcome.peak_rss,
        "memory": {
            "budget_bytes": outcome.statistics.memory.limit_bytes,
            "peak_bytes": outcome.statistics.memory.peak_bytes,
        },
        "first_batch_ms": outcome.delivery.first.map(milliseconds),
        "epoch_starts_s": outcome.delivery.epochs.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
        "epoch_images_per_s": outcome.delivery.epoch_rates(),
        "verdict": verdict(outcome),
        "diagnosis": diagnosis(outcome),
        "decisions": outcome.statistics.decisions,
        "data_readiness": outcome.statistics.data_readiness(),
        "dropped": dropped,
        "resumed": outcome.resume_point.map(|resumed| json!({
            "epoch": resumed.epoch,
            "step": resumed.step,
            "steps": resumed.steps,
            "images": resumed.samples.delivered,
            "dropped": resumed.samples.dropped,
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
        "arguments": repeatable(&outcome.arguments)
            .map(|words| words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>()),
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
    parts.extend(uneven_division(outcome).map(|text| wrap(&text, WIDTH)));
    if outcome.was_complete() {
        parts.push(wrap(&verdict(outcome), WIDTH));
    } else {
        parts.extend([headline(outcome), stage_table(statistics), queue_table(statistics)]);
        if statistics.dropped_total > 0 {
            parts.push(dropped_images(outcome));
        }
        parts.push(wrap(&verdict(outcome), WIDTH));
        let decisions: Vec<String> = statistics.decisions.iter().map(|it| it.to_string()).collect();
        if !decisions.is_empty() {
            parts.push(decisions.join("\n"));
        }
    }
    let mut text = parts.join("\n\n");
    text.push_str("\n\n");
    if statistics.dropped_total > 0 {
        let noun = outcome.arguments.noun();
        let noun = [noun.one(), noun.many()];
        let used = used(delivery.images, statistics.dropped_total, noun);
        let _ = writeln!(text, "used      {used}");
    }
    if let Some(checksum) = delivery.checksum {
        let _ = writeln!(text, "checksum  {checksum:032x}");
    }
    if let Some(report) = &outcome.arguments.report {
        let _ = writeln!(text, "report    {}", printable(&report.display().to_string()));
    }
    text
}

/// The data set and the options of the run, in one line.
pub(crate) fn describe(outcome: &Outcome) -> String {
    let arguments = &outcome.arguments;
    let path = printable(&arguments.shown().display().to_string());
    let images = match arguments.noun() {
        // A clip is a part of a video.
        SampleNoun::Clip => counted(outcome.images_found, "video", "videos"),
        noun => noun.counted(outcome.images_found),
    };
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
    let content = match (&arguments.spec, arguments.media.describe(arguments)) {
        (Some(spec), _) => format!("spec {}", printable(&spec.display().to_string())),
        (None, Some(fields)) => fields,
        (None, None) => format!("size {}, {}", arguments.size, arguments.layout),
    };
    format!(
        "{path}: {images} {classes}, {rank}{}, mode {}, {content}, batch {}, seed {}, {}",
        counted(arguments.epochs.into(), "epoch", "epochs"),
        name_of(arguments.mode),
        count(arguments.batch.into()),
        arguments.seed,
        counted(outcome.statistics.threads as u64, "thread", "threads"),
    )
}

/// Describes images of an epoch that are left out or repeated; `None` if exactly one rank delivers
/// each image.
fn uneven_division(outcome: &Outcome) -> Option<String> {
    let (images, ranks) = (outcome.images_found, outcome.arguments.world());
    let rest = images % ranks;
    if rest == 0 {
        return None;
    }
    let are = |number| if number == 1 { "is" } else { "are" };
    let noun = outcome.arguments.noun();
    match outcome.arguments.remainder {
        Remainder::Drop => Some(format!(
            "{} of each epoch {} left out, so that all {} ranks have the same number; to deliver \
             all {}, use --remainder pad or uneven",
            noun.counted(rest),
            are(rest),
            count(ranks),
            noun.many()
        )),
        Remainder::Pad => Some(format!(
            "{} of each epoch {} repeated, so that all {} ranks have the same number",
            noun.counted(ranks - rest),
            are(ranks - rest),
            count(ranks)
        )),
        Remainder::Uneven => None,
    }
}

/// The names and values of the key figures.
pub(crate) fn figures(outcome: &Outcome) -> Vec<(&'static str, String)> {
    let unknown = || "unknown".to_owned();
    let [samples, total, rate] = match outcome.arguments.noun() {
        SampleNoun::Image => ["images", "images, total", "images/s"],
        SampleNoun::Clip => ["clips", "clips, total", "clips/s"],
        SampleNoun::Sample => ["samples", "samples, total", "samples/s"],
    };
    let mut figures = vec![
        (samples, count(outcome.delivery.images)),
        ("dropped", count(outcome.statistics.dropped_total)),
    ];
    if outcome.resume_point.is_some() {
        figures.push((total, count(outcome.delivery.total.delivered)));
        figures.push(("dropped, total", count(outcome.delivery.total.dropped)));
    }
    figures.extend(outcome.partial.map(|partial| ("partial", count(partial))));
    let noun = outcome.arguments.noun();
    figures.extend(labels(&outcome.delivery, noun).map(|labels| ("labels", labels)));
    figures.push((rate, measured(outcome.images_per_second())));
    figures.extend(outcome.frames_per_second().map(|rate| ("frames/s", measured(rate))));
    let audio = outcome.audio_seconds_per_second();
    figures.extend(audio.map(|rate| ("s of audio/s", measured(rate))));
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

/// How many images have a class; `None` if all images have a class, or there are no images or no labels.
fn labels(delivery: &Delivery, noun: SampleNoun) -> Option<String> {
    match (delivery.images, delivery.labelled?) {
        (0, _) => None,
        (_, 0) => Some(format!("none: no {} has a class", noun.one())),
        (all, some) if some < all => Some(format!("{} of {}", count(some), count(all))),
        _ => None,
    }
}

/// How many simulated training steps waited for data, and how long they waited in total.
fn waited(steps: &TrainingSteps) -> String {
    let share = steps.waited as f64 / steps.steps.max(1) as f64;
    format!(
        "{} of {} ({}), {} in total",
        count(steps.waited),
        count(steps.steps),
        percent(share),
        time(steps.waiting)
    )
}

/// Images per second of the first and last epochs; `None` for a single epoch.
fn each_epoch(rates: &[f64]) -> Option<String> {
    const SHOWN: usize = 4;
    let shown = |rates: &[f64]| rates.iter().map(|rate| measured(*rate)).collect::<Vec<_>>();
    match rates.len() {
        0 | 1 => None,
        all if all <= 2 * SHOWN => Some(shown(rates).join("  ")),
        all => {
            let [first, last] = [shown(&rates[..SHOWN]), shown(&rates[all - SHOWN..])];
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
    let has_fill_rate = has_fill_rate(statistics);
    if has_fill_rate {
        header.push(FILL_RATE);
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
        if has_fill_rate {
            row.push(fill_rate(stage));
        }
        table.add(row);
    }
    table.draw()
}

/// The column title of [`fill_rate`].
pub(crate) const FILL_RATE: &str = "fill rate";

/// Whether any stage groups items and so has a fill rate.
pub(crate) fn has_fill_rate(statistics: &Statistics) -> bool {
    statistics.stages.iter().any(|stage| stage.fill_rate.is_some())
}

/// The share of a stage's output that is not padding; empty for stages that do not group items.
pub(crate) fn fill_rate(stage: &StageStatistics) -> String {
    stage.fill_rate.map(percent).unwrap_or_default()
}

fn queue_table(statistics: &Statistics) -> String {
    let mut table = Table::new(&["queue after", "capacity", "mean", "full", "empty"], 1);
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

fn dropped_images(outcome: &Outcome) -> String {
    let all = DroppedImages::of(&outcome.statistics);
    let mut text = format!("{}:", all.title(outcome.arguments.noun()));
    for (dropped, times) in all.files.iter().take(FILES_SHOWN) {
        let times = if *times > 1 { format!(" ({times} times)") } else { String::new() };
        let reason = wrap(&reason_of(dropped), WIDTH - 6).replace('\n', "\n      ");
        let _ = write!(text, "\n  {}{times}\n      {reason}", key_of(dropped));
    }
    if let Some(more) = all.files.len().checked_sub(FILES_SHOWN).filter(|&more| more > 0) {
        let _ = write!(text, "\n  and {} more (--json lists up to 100,000)", count(more as u64));
    }
    text
}

/// The dropped images, grouped by file and reason.
pub(crate) struct DroppedImages<'a> {
    /// Number of dropped images over all epochs.
    total: u64,
    /// The dropped files in the statistics, which list at most 100,000 drops. Sorted by name, each
    /// with a reason and the number of times it was dropped for this reason.
    pub(crate) files: Vec<(&'a Dropped, u64)>,
}

impl<'a> DroppedImages<'a> {
    pub(crate) fn of(statistics: &'a Statistics) -> Self {
        let mut files: Vec<(&Dropped, u64)> = Vec::new();
        let mut indices: HashMap<(Option<&str>, &str), usize> = HashMap::new();
        for dropped in &statistics.dropped {
            let group = (dropped.key.as_deref(), dropped.reason.as_str());
            let index = *indices.entry(group).or_insert(files.len());
            match files.get_mut(index) {
                Some((_, times)) => *times += 1,
                None => files.push((dropped, 1)),
            }
        }
        files.sort_by_key(|(dropped, _)| dropped.key.clone());
        DroppedImages { total: statistics.dropped_total, files }
    }

    /// The title of the list of dropped images, such as `60 images dropped, from 20 files`.
    pub(crate) fn title(&self, noun: SampleNoun) -> String {
        let names: HashSet<_> = self.files.iter().map(|(dropped, _)| &dropped.key).collect();
        let files = names.len() as u64;
        let samples = format!("{} dropped", noun.counted(self.total));
        if self.total == files {
            samples
        } else {
            format!("{samples}, from {}", counted(files, "file", "files"))
        }
    }
}

/// The name of a dropped image, or its position if it has none.
pub(crate) fn key_of(dropped: &Dropped) -> String {
    dropped.key.as_deref().map_or_else(|| dropped.id.to_string(), printable)
}

/// The error kind and the message.
pub(crate) fn reason_of(dropped: &Dropped) -> String {
    format!("{}: {}", dropped.kind, printable(&dropped.reason))
}

#[cfg(test)]
mod tests {
    use spdl_core::PipelineBuilder;
    use spdl_core::stage::Packing;

    use super::*;

    #[test]
    fn each_epoch_shows_the_first_and_last_rates() {
        assert_eq!(each_epoch(&[5.0]), None);
        assert_eq!(each_epoch(&[900.0, 1200.0]).unwrap(), "900.0  1,200");
        let many: Vec<f64> = (0..9).map(|epoch| f64::from(1000 + epoch)).collect();
        let expected = "1,000  1,001  1,002  1,003  …  1,005  1,006  1,007  1,008";
        assert_eq!(each_epoch(&many).unwrap(), expected);
    }

    #[test]
    fn labels_are_shown_if_some_images_have_none() {
        let shown = |images, labelled| {
            labels(&Delivery { images, labelled, ..Delivery::default() }, SampleNoun::Image)
        };
        assert_eq!((shown(0, Some(0)), shown(5, Some(5)), shown(5, None)), (None, None, None));
        assert_eq!(shown(5, Some(0)).unwrap(), "none: no image has a class");
        assert_eq!(shown(5, Some(2)).unwrap(), "2 of 5");
    }

    #[test]
    fn waited_shows_count_share_and_time() {
        let steps = TrainingSteps { steps: 40, waited: 10, waiting: Duration::from_millis(120) };
        assert_eq!(waited(&steps), "10 of 40 (25 %), 120 ms in total");
        assert_eq!(waited(&TrainingSteps::default()), "0 of 0 (0 %), 0 ns in total");
    }

    #[test]
    fn the_fill_rate_is_shown_for_packing_stages() {
        let pipeline = PipelineBuilder::from_iter([7, 5, 3, 2])
            .pack("pack", Packing::new(10), |&tokens| tokens)
            .build()
            .unwrap();
        let monitor = pipeline.monitor();
        assert_eq!(pipeline.count(), 2);
        let statistics = monitor.statistics();
        let table = stage_table(&statistics);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].ends_with("p99  fill rate"), "{table}");
        assert!(lines[2].starts_with("pack ") && lines[2].ends_with("  85 %"), "{table}");
        let json = stages_as_json(&statistics);
        assert_eq!((&json[0]["fill_rate"], &json[1]["fill_rate"]), (&Value::Null, &0.85.into()));

        let pipeline = PipelineBuilder::from_iter([7]).build().unwrap();
        let monitor = pipeline.monitor();
        assert_eq!(pipeline.count(), 1);
        assert!(!stage_table(&monitor.statistics()).contains(FILL_RATE));
    }
}
