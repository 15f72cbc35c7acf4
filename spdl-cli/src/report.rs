//! The report: one HTML file that needs nothing beside it. It is well-formed XML, too.

mod chart;
mod data_set;
mod file;
mod series;

use std::fmt::{self, Display, Write as _};
use std::iter;
use std::time::{Duration, SystemTime};

use spdl_core::{StageStatistics, Statistics};

use crate::arguments::name_of;
use crate::bench::Outcome;
use crate::format::{bytes, count, counted, date, measured, percent, printable, time};
use crate::machine::Machine;
use crate::output::{self, Failures, describe, figures, key_of, reason_of, share};
use crate::verdict::verdict;

pub(crate) use data_set::{data_set, overview};
pub(crate) use file::ReportFile;

/// A browser still scrolls well through so many.
const FAILURES_SHOWN: usize = 2000;

/// The report as text.
pub(crate) fn page(outcome: &Outcome) -> String {
    let statistics = &outcome.statistics;
    let path = outcome.arguments.shown().display().to_string();
    let limit = verdict(outcome);
    let charts = chart::all(outcome).join("\n");
    let content = format!(
        r#"<section class="verdict" aria-label="What limits">
<p>{limit}</p>
</section>
<dl class="figures">
{figures}</dl>
<div class="charts">
{charts}
</div>
{stages}
{queues}
{dropped}
{settings}
"#,
        limit = Escaped(&limit),
        figures = figure_cards(outcome),
        stages = stage_table(statistics),
        queues = queue_table(statistics),
        dropped = dropped_table(statistics),
        settings = settings(outcome, &Machine::look()),
    );
    document("spdl bench", &path, &describe(outcome), &content)
}

/// A page of a command: what it is of, what it is about, and its content, which ends its last line.
fn document(command: &str, of: &str, about: &str, content: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8" />
<meta name="viewport" content="width=device-width, initial-scale=1" />
<meta name="color-scheme" content="light dark" />
<title>{command}: {title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{command}</h1>
<p class="about">{about}</p>
</header>
<main>
{content}</main>
<footer><p>spdl {version}, {date}</p></footer>
</body>
</html>
"#,
        title = Escaped(of),
        style = include_str!("report/style.css"),
        about = Escaped(about),
        version = env!("CARGO_PKG_VERSION"),
        date = date(now.as_secs()),
    )
}

/// Text for between tags and in quoted attributes, whatever it holds.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in printable(self.0).chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

fn figure_cards(outcome: &Outcome) -> String {
    let card = |(name, value): &(&str, String)| {
        format!("<div><dt>{}</dt><dd>{}</dd></div>\n", Escaped(name), Escaped(value))
    };
    figures(outcome).iter().map(card).collect()
}

/// A column for each stage, since there are few of them and a phone is narrow.
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
    let filled: Option<(&str, Show)> =
        output::groups(statistics).then_some((output::FILLED, |stage, _| output::fill_rate(stage)));
    let rows = LINES.iter().chain(&filled).map(|(name, show)| {
        let values = stages.iter().map(|stage| show(stage, statistics.elapsed));
        iter::once((*name).to_owned()).chain(values).collect()
    });
    table("Stages", "numbers", &header.collect::<Vec<_>>(), 1, rows)
}

fn queue_table(statistics: &Statistics) -> String {
    let header = ["queue behind", "capacity", "mean", "full", "empty"];
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

fn dropped_table(statistics: &Statistics) -> String {
    if statistics.dropped_total == 0 {
        return section("Dropped images", "<p>None.</p>");
    }
    let failures = Failures::of(statistics);
    let shown = failures.files.iter().take(FAILURES_SHOWN);
    let rows =
        shown.map(|(dropped, times)| vec![key_of(dropped), reason_of(dropped), count(*times)]);
    let mut table = table(&failures.title(), "dropped", &["file", "reason", "times"], 2, rows);
    if let Some(more) = failures.files.len().checked_sub(FAILURES_SHOWN).filter(|&more| more > 0) {
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
    let memory = machine.memory.map_or_else(|| "unknown".into(), bytes);
    let run = [
        ("data", arguments.shown().display().to_string()),
        ("stored as", outcome.kind.to_string()),
        ("images", format!("{} in {classes}", count(outcome.images_found))),
        ("listed in", time(outcome.listing)),
        ("mode", name_of(arguments.mode)),
        ("size", format!("{0} × {0} pixels", arguments.size)),
        ("batch", format!("{} images", count(arguments.batch.into()))),
        ("layout", arguments.layout.to_string()),
        ("epochs", count(arguments.epochs.into())),
        ("threads", count(outcome.statistics.threads as u64)),
        ("seed", arguments.seed.to_string()),
        ("on error", name_of(arguments.on_error)),
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
        ("load, last minute", machine.load.clone().unwrap_or_else(|| "unknown".into())),
    ];
    format!(
        "{}\n{}",
        section("Settings", &definitions(&run)),
        section("Machine", &definitions(&machine))
    )
}

fn definitions(pairs: &[(&str, String)]) -> String {
    let lines = pairs.iter().map(|(name, value)| {
        format!("<div><dt>{}</dt><dd>{}</dd></div>", Escaped(name), Escaped(value))
    });
    format!("<dl class=\"pairs\">\n{}\n</dl>", lines.collect::<Vec<_>>().join("\n"))
}

/// A table whose first `left` columns hold words, and the others numbers.
fn table(
    title: &str,
    class: &str,
    header: &[&str],
    left: usize,
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let mut html = format!("<div class=\"scroll\"><table class=\"{class}\">\n<thead><tr>");
    let kind = |column: usize| if column < left { "words" } else { "number" };
    for (column, name) in header.iter().enumerate() {
        let _ = write!(html, "<th scope=\"col\" class=\"{}\">{}</th>", kind(column), Escaped(name));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(html, "<td class=\"{}\">{}</td>", kind(column), Escaped(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table></div>");
    section(title, &html)
}

fn section(title: &str, content: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n{content}\n</section>", Escaped(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        let hostile = "<script>alert('\"&\x07')</script>";
        let escaped = Escaped(hostile).to_string();
        let page = format!("<p title=\"{escaped}\">{escaped}</p>");
        let document = roxmltree::Document::parse(&page).unwrap();
        let root = document.root_element();
        assert_eq!(root.text(), Some("<script>alert('\"&\\x07')</script>"));
        assert_eq!(root.attribute("title"), root.text());
        assert!(!root.children().any(|child| child.is_element()));
    }
}
