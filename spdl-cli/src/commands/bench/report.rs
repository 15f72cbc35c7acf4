//! The HTML report of a run.

use std::fmt::Write as _;
use std::iter;
use std::time::Duration;

use spdl_core::Statistics;
use spdl_core::observe::StageStatistics;

use super::charts;
use super::machine::Machine;
use super::outcome::Outcome;
use super::shorthand::SampleNoun;
use super::summary::{self, DroppedImages, describe, figures, key_of, reason_of};
use super::verdict::{diagnosis, verdict};
use crate::commands::options::name_of;
use crate::ui::format::{bytes, count, counted, measured, percent, share, time};
use crate::ui::html::document::{Escaped, definitions, document, section, table};

/// Maximum number of rows for dropped images, so that the page stays responsive.
const FILES_SHOWN: usize = 2000;

/// The HTML page of the report.
pub(crate) fn page(outcome: &Outcome) -> String {
    let statistics = &outcome.statistics;
    let path = outcome.arguments.shown().display().to_string();
    let limit = verdict(outcome);
    let charts = charts::all(outcome).join("\n");
    let content = format!(
        r#"<section class="verdict" aria-label="Bottleneck">
<p>{limit}</p>
</section>
<dl class="figures">
{figures}</dl>
<div class="charts">
{charts}
</div>
{effects}
{stages}
{queues}
{dropped}
{settings}
"#,
        limit = Escaped(&limit),
        figures = figure_cards(outcome),
        effects = effect_table(outcome),
        stages = stage_table(statistics),
        queues = queue_table(statistics),
        dropped = dropped_table(statistics, outcome.arguments.noun()),
        settings = settings(outcome, &Machine::look()),
    );
    document("spdl bench", &path, &describe(outcome), &content)
}

fn figure_cards(outcome: &Outcome) -> String {
    let card = |(name, value): &(&str, String)| {
        format!("<div><dt>{}</dt><dd>{}</dd></div>\n", Escaped(name), Escaped(value))
    };
    figures(outcome).iter().map(card).collect()
}

/// The table of changes that would help, and of those that would not.
fn effect_table(outcome: &Outcome) -> String {
    let Some(diagnosis) = diagnosis(outcome) else { return String::new() };
    let effects = diagnosis.helps.iter().chain(&diagnosis.does_not_help);
    let rows: Vec<Vec<String>> = effects
        .map(|effect| {
            let samples = effect.prediction.throughput * diagnosis.source_items;
            let gain = format!("{:+.0} %", effect.prediction.gain * 100.0);
            vec![effect.description.clone(), measured(samples), gain]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let per_second = format!("{}/s", outcome.arguments.noun().many());
    let header = ["change", &per_second, "gain"];
    table("Predicted effects of changes", "numbers", &header, 1, rows.into_iter())
}

/// The table of stages. Stages are columns: with few stages, the table fits the screen of a phone.
fn stage_table(statistics: &Statistics) -> String {
    type Show = fn(&StageStatistics, Duration) -> String;
    const LINES: [(&str, Show); 8] = [
        ("kind", |stage, _| stage.kind.as_str().into()),
        ("concurrency", |stage, _| count(stage.concurrency as u64)),
        ("items", |stage, _| count(stage.items)),
        ("failures", |stage, _| count(stage.failures)),
        ("busy", |stage, elapsed| percent(stage.busy_share(elapsed))),
        ("p50", |stage, _| time(stage.service.p50)),
        ("p90", |stage, _| time(stage.service.p90)),
        ("p99", |stage, _| time(stage.service.p99)),
    ];
    let stages = &statistics.stages;
    let header = iter::once("stage").chain(stages.iter().map(|stage| &*stage.name));
    let filled: Option<(&str, Show)> = summary::has_fill_rate(statistics)
        .then_some((summary::FILL_RATE, |stage, _| summary::fill_rate(stage)));
    let rows = LINES.iter().chain(&filled).map(|(name, show)| {
        let values = stages.iter().map(|stage| show(stage, statistics.elapsed));
        iter::once((*name).to_owned()).chain(values).collect()
    });
    table("Stages", "numbers", &header.collect::<Vec<_>>(), 1, rows)
}

fn queue_table(statistics: &Statistics) -> String {
    let header = ["queue after", "capacity", "mean", "full", "empty"];
    let rows = statistics.stages.iter().zip(&statistics.queues).map(|(stage, queue)| {
        vec![
            stage.name.to_string(),
            count(queue.capacity as u64),
            format!("{:.1}", queue.mean_len),
            percent(share(queue.put_wait, statistics.elapsed)),
            percent(share(queue.get_wait, statistics.elapsed)),
        ]
    });
    table("Queues", "numbers", &header, 1, rows)
}

fn dropped_table(statistics: &Statistics, noun: SampleNoun) -> String {
    if statistics.dropped_total == 0 {
        return section(&format!("Dropped {}", noun.many()), "<p>None.</p>");
    }
    let images = DroppedImages::of(statistics);
    let shown = images.files.iter().take(FILES_SHOWN);
    let rows =
        shown.map(|(dropped, times)| vec![key_of(dropped), reason_of(dropped), count(*times)]);
    let mut table = table(&images.title(noun), "dropped", &["file", "reason", "times"], 2, rows);
    if let Some(more) = images.files.len().checked_sub(FILES_SHOWN).filter(|&more| more > 0) {
        let _ = write!(table, "\n<p>And {} more.</p>", count(more as u64));
    }
    table
}

fn settings(outcome: &Outcome, machine: &Machine) -> String {
    let arguments = &outcome.arguments;
    let mut classes = counted(outcome.classes as u64, "class", "classes");
    if outcome.classes_are_folders {
        classes += " found in folders";
    }
    let memory = bytes(machine.memory);
    let on_error = arguments.failure_policy().to_string();
    let content = match (&arguments.spec, arguments.media.describe(arguments)) {
        (Some(spec), _) => vec![("spec", spec.display().to_string())],
        (None, Some(fields)) => vec![("fields", fields)],
        (None, None) => vec![
            ("size", format!("{0} × {0} pixels", arguments.size)),
            ("layout", arguments.layout.to_string()),
        ],
    };
    let noun = arguments.noun();
    let run = [
        ("data", arguments.shown().display().to_string()),
        ("format", outcome.kind.to_string()),
        (noun.many(), format!("{} in {classes}", count(outcome.images_found))),
        ("listed in", time(outcome.listing)),
        ("mode", name_of(arguments.mode)),
        ("batch", format!("{} {}", count(arguments.batch.into()), noun.many())),
        ("epochs", count(arguments.epochs.into())),
        ("threads", count(outcome.statistics.threads as u64)),
        ("seed", arguments.seed.to_string()),
        ("on error", on_error),
        ("batches", count(outcome.delivery.batches)),
        ("batch memory", bytes(outcome.statistics.buffers.peak_bytes as u64)),
        ("CPU seconds", measured(outcome.cpu_time.as_secs_f64())),
        ("checksum", outcome.delivery.checksum.map_or("none".into(), |sum| format!("{sum:032x}"))),
    ];
    let machine = [
        ("processor", machine.processor.clone()),
        ("CPUs", count(machine.cpus as u64)),
        ("memory", memory),
        ("system", machine.system.clone()),
        ("load average (1 min)", machine.load.clone().unwrap_or_else(|| "unknown".into())),
    ];
    format!(
        "{}\n{}",
        section("Settings", &definitions(&[&content[..], &run].concat())),
        section("Machine", &definitions(&machine))
    )
}
