//! Events as lines of JSON, in the trace event format: one object each, all of them in one array.

use std::fmt::Write;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::thread;

/// The time from which all times in traces are counted.
pub(super) fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// How long ago that was then.
pub(super) fn since_start(moment: Instant) -> Duration {
    moment.saturating_duration_since(start())
}

/// Something that took a while.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    pub(super) name: &'a str,
    /// What it belongs to, for whoever wants to see some of it alone.
    pub(super) kind: &'a str,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) details: &'a [(&'a str, Value<'a>)],
}

/// A detail of an event.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Number(i128),
    Text(&'a str),
}

/// The events of one thread that are about to be recorded. Each is led by a comma.
#[derive(Default)]
pub(super) struct Line {
    pub(super) text: String,
    process: u32,
    /// The number of the thread.
    pub(super) thread: u64,
}

impl Line {
    /// Begins anew, on this thread.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        let process = process::id();
        // A thread that was forked has another number.
        if self.process != process {
            (self.process, self.thread) = (process, thread::id());
        }
    }

    /// What the process is called: the first event of all.
    pub(super) fn name_process(&mut self, name: &str) {
        self.name("process_name", name);
    }

    /// What the thread is called.
    pub(super) fn name_thread(&mut self, name: &str) {
        self.name("thread_name", name);
    }

    fn name(&mut self, what: &str, name: &str) {
        self.begin(what, "M", None);
        self.details(&[("name", Value::Text(name))]);
    }

    /// Something that the thread did, inside of what it was doing, and around what it did meanwhile.
    pub(super) fn span(&mut self, span: Span<'_>) {
        self.begin(span.name, "X", Some(span.began));
        let length = nanos(span.ended).saturating_sub(nanos(span.began));
        self.text.push_str(",\"dur\":");
        self.time(length);
        self.kind(span.kind);
        self.details(span.details);
    }

    /// Something that went on beside whatever else the thread did.
    pub(super) fn span_beside(&mut self, span: Span<'_>) {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        for (phase, moment) in [("b", span.began), ("e", span.ended)] {
            self.begin(span.name, phase, Some(moment));
            self.push(format_args!(",\"id2\":{{\"local\":\"{number:#x}\"}}"));
            self.kind(span.kind);
            self.details(if phase == "b" { span.details } else { &[] });
        }
    }

    pub(super) fn counter(&mut self, name: &str, value: f64, moment: Instant) {
        self.begin(name, "C", Some(moment));
        self.push(format_args!(",\"args\":{{\"value\":{value}}}}}"));
    }

    fn begin(&mut self, name: &str, phase: &str, moment: Option<Instant>) {
        self.text.push_str(",\n{\"name\":");
        self.string(name);
        let Line { process, thread, .. } = *self;
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

    /// The last part of an event.
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

    /// A time in microseconds, which is given in nanoseconds.
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

/// A time in nanoseconds.
fn nanos(moment: Instant) -> u64 {
    u64::try_from(since_start(moment).as_nanos()).unwrap_or(u64::MAX)
}
