//! The charts of the report.

use spdl_core::Statistics;
use spdl_core::observe::{StageKind, StageStatistics};

use super::counter_history::CounterHistory;
use super::outcome::Outcome;
use crate::ui::format::{counted, measured, percent, share, time};
use crate::ui::html::svg::{Area, BOTTOM, Decades, Linear, Series, Svg, figure, measured_tick};

/// Maximum number of epochs with a mark in a chart; more marks would hide the curve.
const EPOCHS_MARKED: usize = 12;

/// All charts of a report, each a `<figure>`.
pub(super) fn all(outcome: &Outcome) -> Vec<String> {
    let history = CounterHistory::new(&outcome.snapshots);
    vec![
        throughput(outcome, &history),
        busy_overall(&outcome.statistics),
        busy_over_time(&outcome.statistics, &history),
        service_times(&outcome.statistics),
        queues_over_time(&outcome.statistics, &history),
    ]
}

fn throughput(outcome: &Outcome, history: &CounterHistory<'_>) -> String {
    let series = history.throughput();
    let mean = outcome.images_per_second();
    let (lowest, highest) = range(&series);
    let area = Area { top: 14.0, height: 170.0 };
    let scale = Linear::up_to(highest.max(mean));
    let mut svg = Svg::new(area.bottom() + BOTTOM);
    for &tick in &scale.ticks {
        svg.horizontal(area.y(tick / scale.end), &measured_tick(tick));
    }
    svg.time_axis(&area, history.length);
    svg.steps(&area, &series, scale.end, 1);
    let epochs = &outcome.delivery.epochs;
    if epochs.len() <= EPOCHS_MARKED {
        let mut free = 0.0;
        for (number, start) in epochs.iter().enumerate().skip(1) {
            let x = svg.x(start.as_secs_f64() / history.length.max(f64::MIN_POSITIVE));
            svg.vertical_mark(&area, x);
            if x >= free {
                svg.text(x, area.top - 4.0, "middle", "tick", &format!("epoch {}", number + 1));
                free = x + 60.0;
            }
        }
    }
    svg.mean_line(&area, mean / scale.end);
    let samples = outcome.arguments.noun().title();
    figure(
        "throughput",
        "Throughput over time",
        &format!("{samples} per second; the dashed line is the mean, {}.", measured(mean)),
        &format!(
            "{samples} per second over {} seconds: mean {}, lowest {}, highest {}.",
            measured(history.length),
            measured(mean),
            measured(lowest),
            measured(highest)
        ),
        svg,
    )
}

fn busy_overall(statistics: &Statistics) -> String {
    const ROW: f64 = 42.0;
    let stages = &statistics.stages;
    let area = Area { top: 4.0, height: ROW * stages.len() as f64 };
    let mut svg = Svg::new(area.bottom() + BOTTOM);
    svg.left = 10.0;
    svg.percent_axis(&area);
    let mut words = Vec::new();
    for (row, stage) in stages.iter().enumerate() {
        let busy = stage.busy_share(statistics.elapsed);
        let top = area.top + ROW * row as f64;
        svg.text(svg.left, top + 14.0, "start", "name", &describe_stage(stage));
        svg.text(svg.right(), top + 14.0, "end", "value", &percent(busy));
        svg.bar(top + 20.0, 14.0, busy, row);
        words.push(format!("{} {}", stage.name, percent(busy)));
    }
    figure(
        "busy",
        "Busy share of each stage",
        "Share of the stage's concurrency in use, over the whole run.",
        &format!("Busy share by stage: {}.", words.join(", ")),
        svg,
    )
}

fn busy_over_time(statistics: &Statistics, history: &CounterHistory<'_>) -> String {
    let strips = statistics.stages.iter().enumerate().map(|(at, stage)| Strip {
        name: describe_stage(stage),
        value: format!("mean {}", percent(stage.busy_share(statistics.elapsed))),
        series: history.busy(at),
        end: 1.0,
        end_label: "100 %".into(),
    });
    let (svg, words) = draw_strips(strips.collect(), history.length);
    figure(
        "busy-time",
        "Busy share over time",
        "Share of each stage's concurrency in use.",
        &format!("Busy share over time by stage: {words}."),
        svg,
    )
}

fn queues_over_time(statistics: &Statistics, history: &CounterHistory<'_>) -> String {
    let pairs = statistics.stages.iter().zip(&statistics.queues).enumerate();
    let strips = pairs.map(|(at, (stage, queue))| Strip {
        name: format!("after {}", stage.name),
        value: format!(
            "full {}, empty {}",
            percent(share(queue.put_wait, statistics.elapsed)),
            percent(share(queue.get_wait, statistics.elapsed))
        ),
        series: history.queued(at),
        end: queue.capacity.max(1) as f64,
        end_label: queue.capacity.to_string(),
    });
    let (svg, words) = draw_strips(strips.collect(), history.length);
    figure(
        "queues",
        "Queues over time",
        "Items in the output queue of each stage, up to its capacity. A full queue blocks the stage \
         before it; an empty queue blocks the stage after it.",
        &format!("Items over time by queue: {words}."),
        svg,
    )
}

/// One of several small charts above a common time axis.
struct Strip {
    name: String,
    value: String,
    series: Series,
    /// The value at the top edge of the chart.
    end: f64,
    end_label: String,
}

/// Draws the charts one below the other; also returns their content as text for screen readers.
fn draw_strips(strips: Vec<Strip>, length: f64) -> (Svg, String) {
    const TITLE: f64 = 20.0;
    const HEIGHT: f64 = 48.0;
    const GAP: f64 = 10.0;
    let rows = strips.len() as f64;
    let mut svg = Svg::new(rows * (TITLE + HEIGHT + GAP) - GAP + BOTTOM);
    let mut words = Vec::new();
    let mut last = Area { top: 0.0, height: 0.0 };
    for (row, strip) in strips.iter().enumerate() {
        let top = row as f64 * (TITLE + HEIGHT + GAP);
        let area = Area { top: top + TITLE, height: HEIGHT };
        svg.text(svg.left, top + 14.0, "start", "name", &strip.name);
        svg.text(svg.right(), top + 14.0, "end", "value", &strip.value);
        svg.horizontal(area.y(0.0), "0");
        svg.horizontal(area.y(1.0), &strip.end_label);
        svg.steps(&area, &strip.series, strip.end, row);
        words.push(format!("{}, {}", strip.name, strip.value));
        last = area;
    }
    svg.time_axis(&last, length);
    (svg, words.join("; "))
}

fn service_times(statistics: &Statistics) -> String {
    const ROW: f64 = 46.0;
    const LEGEND: f64 = 22.0;
    let stages: Vec<&StageStatistics> =
        statistics.stages.iter().filter(|stage| stage.items > 0).collect();
    let area = Area { top: LEGEND, height: ROW * stages.len() as f64 };
    let all = stages.iter().flat_map(|stage| [stage.service.p50, stage.service.p99]);
    let scale = Decades::around(all);
    let mut svg = Svg::new(area.bottom() + BOTTOM);
    svg.left = 24.0;
    svg.legend(&[("p50", "median"), ("p90", "90th"), ("p99", "99th percentile")]);
    for (power, label) in scale.ticks() {
        let x = svg.x(scale.position(10f64.powi(power)));
        svg.vertical(&area, x);
        svg.text(x, area.bottom() + 14.0, "middle", "tick", &label);
    }
    svg.text(
        svg.middle(),
        area.bottom() + 29.0,
        "middle",
        "axis",
        "time per item, logarithmic scale",
    );
    let mut words = Vec::new();
    for (row, stage) in stages.iter().enumerate() {
        let times = [stage.service.p50, stage.service.p90, stage.service.p99];
        let y = area.top + ROW * row as f64;
        let values = times.map(time).join(" · ");
        svg.text(svg.left, y + 14.0, "start", "name", &stage.name);
        svg.text(svg.right(), y + 14.0, "end", "value", &values);
        let places = times.map(|time| svg.x(scale.position(time.as_nanos() as f64)));
        svg.quantiles(places, y + 29.0, row);
        words.push(format!("{} {values}", stage.name));
    }
    figure(
        "service",
        "Service times",
        "Processing time per item in each stage.",
        &format!("Median, 90th and 99th percentile of the time per item: {}.", words.join("; ")),
        svg,
    )
}

fn describe_stage(stage: &StageStatistics) -> String {
    let unit = match stage.kind {
        StageKind::Source => return stage.name.to_string(),
        kind if kind.uses_cpu_pool() => ["worker", "workers"],
        _ => ["slot", "slots"],
    };
    format!("{} ({})", stage.name, counted(stage.concurrency as u64, unit[0], unit[1]))
}

fn range(series: &Series) -> (f64, f64) {
    let lowest = series.values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = series.values.iter().copied().fold(0.0, f64::max);
    (lowest.min(highest), highest)
}
