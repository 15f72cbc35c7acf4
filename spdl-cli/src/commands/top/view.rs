//! Samples in a terminal.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table, Wrap};

use super::sample::{COLUMNS, TEXT_COLUMNS, TopSample};

/// Rates that are kept for the chart: a terminal has at most about this many columns.
const MAX_RATES: usize = 512;
const DIAGNOSIS_HEIGHT: u16 = 5;
const CHART_HEIGHT: u16 = 5;

/// What the terminal shows.
#[derive(Debug, Default)]
pub(crate) struct View {
    last: Option<TopSample>,
    /// The rate of each second, in items per second.
    rates: VecDeque<f64>,
    /// Whether the pipeline has ended, and the next one has not started.
    ended: bool,
}

impl View {
    /// Shows a sample.
    pub(crate) fn add(&mut self, sample: TopSample) {
        // The first sample of a pipeline covers the time since its start.
        if self
            .last
            .as_ref()
            .is_none_or(|last| last.pipeline != sample.pipeline || last.pid != sample.pid)
        {
            self.rates.clear();
        }
        self.rates.push_back(sample.items_per_s);
        if self.rates.len() > MAX_RATES {
            self.rates.pop_front();
        }
        self.ended = false;
        self.last = Some(sample);
    }

    /// Shows that the pipeline has ended.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Draws the last sample.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let Some(sample) = &self.last else {
            frame.render_widget(Paragraph::new("waiting for the first line …"), frame.area());
            return;
        };
        let facts = sample.facts();
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(DIAGNOSIS_HEIGHT),
            Constraint::Length(facts.len() as u16),
            Constraint::Length(CHART_HEIGHT),
            Constraint::Min(2),
            Constraint::Length(1),
        ]);
        let [title, diagnosis, values, chart, stages, keys] = areas.areas(frame.area());
        frame.render_widget(Line::from(sample.title()).bold(), title);
        let block = Block::bordered().title(" what limits the rate ");
        let text = Paragraph::new(sample.diagnosis()).wrap(Wrap { trim: true });
        frame.render_widget(text.block(block), diagnosis);
        let line = |(name, value): (&'static str, String)| {
            Line::from(vec![Span::from(format!("{name:<11}")).dim(), Span::from(value)])
        };
        frame.render_widget(Text::from_iter(facts.into_iter().map(line)), values);
        self.draw_chart(frame, chart);
        frame.render_widget(table(sample), stages);
        let state =
            if self.ended { "the pipeline has ended; waiting for the next one    " } else { "" };
        frame.render_widget(Line::from(format!("{state}q quits")).dim(), keys);
    }

    fn draw_chart(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::bordered().title(" items/s, one column a second ");
        let columns = usize::from(block.inner(area).width);
        let skipped = self.rates.len().saturating_sub(columns);
        let rates = self.rates.iter().skip(skipped);
        // Small rates, such as 0.5 batches/s, need more than whole numbers.
        let scaled = rates.map(|rate| (rate * 1000.0) as u64);
        frame.render_widget(Sparkline::default().data(scaled).block(block), area);
    }
}

/// The table of stages.
fn table(sample: &TopSample) -> Table<'static> {
    let rows = sample.stages();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row.get(column).map_or(0, |cell| cell.chars().count()));
        let header = COLUMNS.get(column).map_or(0, |name| name.len());
        cells.max().unwrap_or(0).max(header)
    };
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let align = |(column, cell): (usize, String)| {
        let text = Text::from(cell);
        if column < TEXT_COLUMNS { text } else { text.right_aligned() }
    };
    let header = COLUMNS.map(str::to_owned).into_iter().enumerate().map(align);
    let header = Row::new(header.collect::<Vec<_>>()).style(Style::new().bold());
    let rows = rows
        .into_iter()
        .map(|row| Row::new(row.into_iter().enumerate().map(align).collect::<Vec<_>>()));
    let constraints = widths.into_iter().map(|width| Constraint::Length(width as u16));
    Table::new(rows.collect::<Vec<_>>(), constraints).header(header).column_spacing(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::sample::tests::line;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(row).map(|row| row.trim_end().to_owned()).collect()
    }

    #[test]
    fn the_view_shows_the_diagnosis_the_facts_the_rates_and_the_stages() {
        let mut view = View::default();
        assert_eq!(drawn(&view, 40, 2), ["waiting for the first line …", ""]);
        for rate in [4.0, 8.0] {
            view.add(TopSample::parse(&line(rate)).unwrap());
        }
        let rows = drawn(&view, 80, 20);
        assert_eq!(rows[0], "process 4321, pipeline 3, running for 72.0 s");
        assert!(rows[1].starts_with("┌ what limits the rate ─"), "{}", rows[1]);
        assert!(
            rows[2].starts_with("│The CPUs limit the throughput. A second sentence."),
            "{}",
            rows[2]
        );
        assert_eq!(rows[6], "rate       8.000 items/s (512.0 samples/s)");
        assert_eq!(rows[7], "readiness  25 %; the consumer waits for 50 % of the time");
        assert_eq!(rows[8], "memory     500.0 MB of 2.0 GB");
        assert_eq!(rows[9], "CPUs       1.50 of 4");
        assert_eq!(rows[10], "dropped    7 samples");
        assert!(rows[11].starts_with("┌ items/s, one column a second ─"), "{}", rows[11]);
        // The second rate is twice the first one.
        assert_eq!([rows[12].chars().nth(1), rows[12].chars().nth(2)], [Some(' '), Some('█')]);
        assert_eq!([rows[14].chars().nth(1), rows[14].chars().nth(2)], [Some('█'), Some('█')]);
        assert_eq!(
            rows[16],
            "stage       kind  concurrency  items/s  busy      p50      p99     queue  filled"
        );
        assert_eq!(
            rows[17],
            r"decode\x1b  fill            4    500.0  75 %  2.00 ms  4.50 ms  0.2 of 2    25 %"
        );
        assert_eq!(rows[19], "q quits");
        view.end();
        assert_eq!(
            drawn(&view, 80, 20)[19],
            "the pipeline has ended; waiting for the next one    q quits"
        );
    }

    #[test]
    fn a_small_terminal_and_a_long_run_are_drawn() {
        let mut view = View::default();
        for rate in 0..2 * MAX_RATES {
            view.add(TopSample::parse(&line(rate as f64)).unwrap());
        }
        assert_eq!(view.rates.len(), MAX_RATES);
        for (width, height) in [(1, 1), (10, 5), (30, 12), (300, 60)] {
            assert_eq!(drawn(&view, width, height).len(), usize::from(height));
        }
    }
}
