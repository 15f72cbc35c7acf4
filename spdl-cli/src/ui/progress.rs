//! The progress bar on a terminal.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::format::{bytes, measured};

/// A progress bar on standard error. The cursor stays visible, so that the terminal is usable after
/// Ctrl-C.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar for `images` images; hidden if `wanted` is false, standard error is not a terminal, or
    /// `TERM` is `dumb`.
    pub(crate) fn new(images: u64, wanted: bool) -> Self {
        Progress::of_samples(images, "images", wanted)
    }

    /// A bar for samples, whose name in the plural is `noun`; hidden in the same cases.
    pub(crate) fn of_samples(samples: u64, noun: &'static str, wanted: bool) -> Self {
        let template = "{wide_bar} {human_pos} / {human_len}  {rate}  {eta} left";
        let shown = move |rate: f64| format!("{} {noun}/s", measured(rate));
        Progress::drawn(samples, template, shown, wanted)
    }

    /// A bar for `all` bytes; hidden in the same cases as the bar of [`new`](Self::new).
    pub(crate) fn of_bytes(all: u64, wanted: bool) -> Self {
        let template = "{wide_bar} {decimal_bytes} / {decimal_total_bytes}  {rate}  {eta} left";
        Progress::drawn(all, template, |rate| format!("{}/s", bytes(rate as u64)), wanted)
    }

    fn drawn(
        all: u64,
        template: &str,
        shown: impl Fn(f64) -> String + Clone + Send + Sync + 'static,
        wanted: bool,
    ) -> Self {
        let can_draw = std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb");
        if !(wanted && can_draw && std::io::stderr().is_terminal()) {
            return Progress(ProgressBar::hidden());
        }
        let rate = move |state: &ProgressState, text: &mut dyn Write| {
            // If printing fails, only the display is affected.
            let _ = text.write_str(&shown(state.per_sec()));
        };
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .with_key("rate", rate)
            .progress_chars("━╸─");
        let bar = ProgressBar::new(all).with_style(style);
        // Short work also shows the bar.
        bar.tick();
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    /// Sets the position, in images or bytes.
    pub(crate) fn at(&self, done: u64) {
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    /// Clears the bar, also on an error.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
