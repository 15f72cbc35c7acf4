//! Events in the trace event format: a JSON array with one object per line.

use std::fmt::Write;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::thread;

static START: OnceLock<Instant> = OnceLock::new();

/// The zero of all timestamps.
pub(super) fn start() -> Instant {
    *START.get_or_init(Instant::now)
}

/// Sets the zero of all timestamps to a moment before now, unless it is set.
pub(super) fn start_before(elapsed: Duration) {
    START.get_or_init(|| {
        let now = Instant::now();
        now.checked_sub(elapsed).unwrap_or(now)
    });
}

/// The timestamp of `moment`.
pub(super) fn timestamp(moment: Instant) -> Duration {
    moment.saturating_duration_since(start())
}

/// An operation with a duration.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    pub(super) name: &'a str,
    /// The category, by which a trace viewer filters.
    pub(super) kind: &'a str,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) details: &'a [(&'a str, Value<'a>)],
}

/// A value of an event's `args`.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Number(i128),
    Text(&'a str),
}

/// Encoded events of one thread. A comma precedes each event.
#[derive(Default)]
pub(super) struct EventBuffer {
    pub(super) text: String,
    process: u32,
    /// The number of the thread.
    pub(super) thread: u64,
}

impl EventBuffer {
    /// Removes all events and binds the buffer to this thread.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        let process = process::id();
        // A forked child has another thread number.
        if self.process != process {
            (self.process, self.thread) = (process, thread::id());
        }
    }

    /// Adds the name of the process: a metadata event.
    pub(super) fn name_process(&mut self, name: &str) {
        self.name("process_name", name);
    }

    /// Adds the name of the thread: a metadata event.
    pub(super) fn name_thread(&mut self, name: &str) {
        self.name("thread_name", name);
    }

    fn name(&mut self, what: &str, name: &str) {
        self.begin(what, "M", None);
        self.details(&[("name", Value::Text(name))]);
    }

    /// Adds a complete event, which nests with the other spans of the thread.
    pub(super) fn span(&mut self, span: Span<'_>) {
        self.begin(span.name, "X", Some(span.began));
        let length = nanos(span.ended).saturating_sub(nanos(span.began));
        self.text.push_str(",\"dur\":");
        self.time(length);
        self.kind(span.kind);
        self.details(span.details);
    }

    /// Adds a pair of async events: a span that overlaps other spans of the thread.
    pub(super) fn async_span(&mut self, span: Span<'_>) {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        for (phase, moment) in [("b", span.began), ("e", span.ended)] {
            self.begin(span.name, phase, Some(moment));
            self.push(format_args!(",\"id2\":{{\"local\":\"{number:#x}\"}}"));
            self.kind(span.kind);
            self.details(if phase == "b" { span.details } else { &[] });
        }
    }

    /// Adds an event without a duration, which concerns the whole process.
    pub(super) fn instant(&mut self, name: &str, kind: &str, details: &[(&str, Value<'_>)]) {
        self.begin(name, "i", Some(Instant::now()));
        self.text.push_str(",\"s\":\"p\"");
        self.kind(kind);
        self.details(details);
    }

    pub(super) fn counter(&mut self, name: &str, value: f64, moment: Instant) {
        self.begin(name, "C", Some(moment));
        self.push(format_args!(",\"args\":{{\"value\":{value}}}}}"));
    }

    fn begin(&mut self, name: &str, phase: &str, moment: Option<Instant>) {
        self.text.push_str(",\n{\"name\":");
        self.string(name);
        let EventBuffer { process, thread, .. } = *self;
        self.push(format_args!(",\"ph\":\"{phase}\",\"pid\":{process},\"tid\":{thread}"));
        if let Some(moment) = moment {
            self.text.push_str(",\"ts\":");
            self.time(nanos(moment));
        }
    }

    fn kind(&mut self, kind: &str) {
        self.text.push_str(",\"cat\":");
        self.string(kind);
    }

    /// Adds `args` and closes the event.
    fn details(&mut self, details: &[(&str, Value<'_>)]) {
        self.text.push_str(",\"args\":{");
        for (at, (name, value)) in details.iter().enumerate() {
            if at > 0 {
                self.text.push(',');
            }
            self.string(name);
            self.text.push(':');
            match *value {
                Value::Number(number) => self.push(format_args!("{number}")),
                Value::Text(text) => self.string(text),
            }
        }
        self.text.push_str("}}");
    }

    /// Adds a time in microseconds.
    fn time(&mut self, nanos: u64) {
        self.push(format_args!("{}.{:03}", nanos / 1000, nanos % 1000));
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for letter in text.chars() {
            match letter {
                '"' | '\\' => self.text.extend(['\\', letter]),
                '\0'..='\x1f' => self.push(format_args!("\\u{:04x}", u32::from(letter))),
                _ => self.text.push(letter),
            }
        }
        self.text.push('"');
    }

    fn push(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a `String` does not fail.
        let _ = self.text.write_fmt(arguments);
    }
}

/// The timestamp of `moment` in nanoseconds.
fn nanos(moment: Instant) -> u64 {
    u64::try_from(timestamp(moment).as_nanos()).unwrap_or(u64::MAX)
}
