//! `spdl tune`: measures settings of the pipeline for a program that searches for the best ones.

use std::io::{self, BufRead, Read};
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};

use super::arguments::BenchArguments;
use super::images::Images;
use super::profile::{duration, without_epochs};
use super::protocol::{self, Refusal, Request, Setting};
use super::rounds::{Extent, Rounds};
use super::run;
use crate::commands::options::worker_threads;
use crate::ui::failure::Failure;
use crate::ui::stdout;

/// The longest line of a request, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// The names of the settings.
pub(super) const NAMES: [&str; 4] = ["threads", "decode_concurrency", "in_flight", "prefetch"];

/// Measures settings for a program that searches for the best ones, by a line protocol
///
/// Reads one JSON object per line from standard input, and writes one per line to standard output.
#[derive(Clone, Debug, Args)]
#[command(
    args_override_self = true,
    mut_args = |option| match option.get_id().as_str() {
        // DATA is always given.
        "tune" => option.hide(true).conflicts_with("data"),
        _ => without_epochs(option),
    },
    after_help = "\
Example:
  spdl tune photos/ --mode train --batch 64 --json <<'END'
  {\"command\": \"describe\"}
  {\"command\": \"set\", \"settings\": {\"threads\": 4, \"in_flight\": 32}}
  {\"command\": \"measure\", \"seconds\": 2, \"rounds\": 5}
  END
  examples/python/tune_settings.py searches along one setting after the other.

Requests:
  describe  the settings, with ranges, defaults and present values
  set       changes settings: `settings` is an object of names and numbers; null is the default
  measure   loads batches with the present settings: for `seconds` [default: 2], or for `batches`, in
            `rounds` [default: 5]; `step_s` simulates a training step of so many seconds
  quit      ends the program, as the end of standard input does
  `id`, any value, is repeated in the response.

Responses:
  {\"id\", \"ok\": true, \"command\", ...}, or {\"id\", \"ok\": false, \"error\": {\"kind\", \"message\"}}.
  A request that fails changes nothing, and the program continues.
  measure returns samples_per_s: {median, q1, q3, rounds}: the noise is in the quartiles; and
  batches, samples, seconds, waited_s, cpu_s, verdict, diagnosis, settings

The order and the content of the batches do not depend on the settings. docs/tune-protocol.md
documents all keys."
)]
pub(crate) struct TuneArguments {
    #[command(flatten)]
    pub(crate) load: BenchArguments,
}

/// Answers requests until the end of standard input.
pub(crate) fn run(arguments: &TuneArguments) -> Result<(), Failure> {
    if !arguments.load.json {
        return Err(Failure::usage(
            "spdl tune has a protocol of JSON lines only: add --json; `spdl tune --help` explains it",
        ));
    }
    let mut load = run::without_end(&arguments.load);
    load.settings.by_protocol = true;
    let (images, _) = Images::open(&load)?;
    let mut session = Session { settings: settings(&load, &images), load, images };
    let mut input = io::stdin().lock();
    while let Some(line) = read_line(&mut input) {
        let (response, ends) = match line {
            Ok(line) if line.trim().is_empty() => continue,
            Ok(line) => session.answer(&line),
            Err(refusal) => (refusal.response(&Value::Null), false),
        };
        stdout::print(&format!("{response}\n"))?;
        if ends {
            break;
        }
    }
    Ok(())
}

/// The next line; `None` at the end of the input.
fn read_line(input: &mut impl BufRead) -> Option<Result<String, Refusal>> {
    let mut line = Vec::new();
    let read = input.by_ref().take(MOST_BYTES).read_until(b'\n', &mut line);
    match read {
        Ok(0) => return None,
        Ok(_) => {}
        Err(error) => {
            // Reading again would fail in the same way.
            return (error.kind() == io::ErrorKind::Interrupted)
                .then(|| Err(Refusal::new("invalid-json", error.to_string())));
        }
    }
    if line.len() as u64 == MOST_BYTES && !line.ends_with(b"\n") {
        skip_line(input);
        let message = format!("the line is longer than {MOST_BYTES} bytes");
        return Some(Err(Refusal::new("invalid-json", message)));
    }
    let text = String::from_utf8(line);
    Some(text.map_err(|error| Refusal::new("invalid-json", error.to_string())))
}

fn skip_line(input: &mut impl BufRead) {
    while let Ok(buffer) = input.fill_buf()
        && !buffer.is_empty()
    {
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let used = end.map_or(buffer.len(), |at| at + 1);
        input.consume(used);
        if end.is_some() {
            return;
        }
    }
}

/// The settings that can be changed.
fn settings(load: &BenchArguments, images: &Images) -> Vec<Setting> {
    let cpus = worker_threads(None) as u64;
    let threads = worker_threads(load.threads) as u64;
    let most = (4 * cpus).max(8).max(threads);
    let [threads_name, decoding, in_flight, prefetch] = NAMES;
    vec![
        Setting {
            name: threads_name,
            about: "worker threads, which decode",
            min: 1,
            max: most,
            default: Some(threads),
            value: None,
        },
        Setting {
            name: decoding,
            about: "samples that are decoded at the same time; at most `threads` of them make progress",
            min: 1,
            max: most,
            default: None,
            value: None,
        },
        Setting {
            name: in_flight,
            about: "samples that are read from the disk or store at the same time; the default of a store \
                    adapts to the measured rate",
            min: 1,
            max: 512,
            default: images.reads_in_flight().map(|reads| reads as u64),
            value: None,
        },
        Setting {
            name: prefetch,
            about: "finished batches that wait for the consumer",
            min: 1,
            max: 64,
            default: None,
            value: None,
        },
    ]
}

/// The state of the program between requests.
struct Session {
    load: BenchArguments,
    images: Images,
    settings: Vec<Setting>,
}

impl Session {
    /// The response to a line, and whether the program ends.
    fn answer(&mut self, line: &str) -> (Value, bool) {
        let (id, request) = protocol::parse(line, &self.settings);
        let ends = matches!(request, Ok(Request::Quit));
        let response = match request.and_then(|request| self.perform(request)) {
            Ok(mut response) => {
                response.insert("ok".into(), true.into());
                if !id.is_null() {
                    response.insert("id".into(), id);
                }
                Value::Object(response)
            }
            Err(refusal) => refusal.response(&id),
        };
        (response, ends)
    }

    fn perform(&mut self, request: Request) -> Result<Map<String, Value>, Refusal> {
        let mut response = Map::new();
        let mut add = |key: &str, value: Value| drop(response.insert(key.into(), value));
        match request {
            Request::Describe => {
                add("command", "describe".into());
                add("protocol", protocol::VERSION.into());
                add("data", self.load.shown().display().to_string().into());
                add("samples", self.images.len().into());
                add("batch", self.load.batch.into());
                add("cpus", worker_threads(None).into());
                add("settings", self.settings.iter().map(Setting::as_json).collect());
            }
            Request::Set(values) => {
                for (at, value) in values {
                    if let Some(setting) = self.settings.get_mut(at) {
                        setting.value = value;
                    }
                }
                add("command", "set".into());
                add("settings", self.values());
            }
            Request::Measure { extent, step } => {
                let rounds = self.measure(extent, step)?;
                add("command", "measure".into());
                for (key, value) in figures(&rounds) {
                    add(key, value);
                }
                add("settings", self.values());
            }
            Request::Quit => add("command", "quit".into()),
        }
        Ok(response)
    }

    /// The present values; null for a default that the pipeline chooses.
    fn values(&self) -> Value {
        let values =
            self.settings.iter().map(|it| (it.name.to_owned(), it.value.or(it.default).into()));
        Value::Object(values.collect())
    }

    fn measure(&self, extent: Extent, step: Option<Duration>) -> Result<Rounds, Refusal> {
        let mut load = self.load.clone();
        for setting in &self.settings {
            let Some(value) = setting.value else { continue };
            match setting.name {
                "threads" => load.threads = u32::try_from(value).ok(),
                "decode_concurrency" => load.settings.decoding = usize::try_from(value).ok(),
                "in_flight" => load.settings.in_flight = usize::try_from(value).ok(),
                _ => load.settings.prefetch = usize::try_from(value).ok(),
            }
        }
        run::take_rounds(&load, &self.images, extent, step)
            .map_err(|failure| Refusal::new("failed", failure.to_string()))
    }
}

fn figures(rounds: &Rounds) -> [(&'static str, Value); 8] {
    let [q1, median, q3] = rounds.quartiles();
    let diagnosis = rounds.statistics.diagnose();
    [
        ("samples_per_s", json!({ "median": median, "q1": q1, "q3": q3, "rounds": rounds.rates })),
        ("batches", rounds.batches.into()),
        ("samples", rounds.samples.into()),
        ("seconds", rounds.took.as_secs_f64().into()),
        ("waited_s", rounds.waited.as_secs_f64().into()),
        ("cpu_s", rounds.cpu.as_secs_f64().into()),
        ("verdict", diagnosis.to_string().into()),
        ("diagnosis", json!(diagnosis)),
    ]
}

/// Parses a time of a request, as of the command line.
pub(super) fn time_of(seconds: f64) -> Option<Duration> {
    duration(&seconds.to_string()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_skipped() {
        let long = "x".repeat(3 * MOST_BYTES as usize);
        let text = format!("{{}}\n{long}\nlast");
        let mut input = io::Cursor::new(text.into_bytes());
        assert_eq!(read_line(&mut input).unwrap().unwrap(), "{}\n");
        let refusal = read_line(&mut input).unwrap().unwrap_err();
        assert!(refusal.response(&Value::Null).to_string().contains("longer than 1048576"));
        assert_eq!(read_line(&mut input).unwrap().unwrap(), "last");
        assert!(read_line(&mut input).is_none());
        let mut invalid = io::Cursor::new(vec![b'"', 0xff, b'\n', b'1']);
        assert!(read_line(&mut invalid).unwrap().is_err());
        assert_eq!(read_line(&mut invalid).unwrap().unwrap(), "1");
    }
}
