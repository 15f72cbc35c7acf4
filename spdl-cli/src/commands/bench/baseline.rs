//! Compares the present program and options with the JSON output of an earlier run.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::arguments::BenchArguments;
use super::comparison::{CONFIDENCE, Comparison, Conclusion, Rates};
use super::run::measure_whole;
use crate::datasets::address;
use crate::ui::failure::Failure;
use crate::ui::format::{for_shell, measured, wrap};
use crate::ui::table::Table;
use crate::ui::{stderr, stdout};

/// The default of `--rounds`.
const ROUNDS: u32 = 10;
/// The default of `--threshold`.
const THRESHOLD: f64 = 0.02;
/// The width of wrapped text, in characters.
const WIDTH: usize = 90;
/// Exit codes. Faster, or no change: 0.
const SLOWER: u8 = 3;
const CANNOT_TELL: u8 = 4;

/// Options that do not belong to the measured work: with a value, and without.
const NOT_REPEATED: [&str; 5] =
    ["--baseline", "--baseline-program", "--rounds", "--threshold", "--report"];
const FLAG_NOT_REPEATED: &str = "--json";

/// Compares with the baseline in `file`, and prints the result.
pub(crate) fn run(arguments: &BenchArguments, file: &Path) -> Result<(), Failure> {
    let baseline = Baseline::read(file)?;
    let own = repeatable(arguments);
    let program = arguments.baseline_program.as_deref().map(Path::as_os_str);
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let is_same = program.is_none() && baseline.words == own;
    let rates = match (&baseline.words, &own) {
        (Some(old), Some(new)) if rounds > 0 && !is_same => {
            let own_program = own_program(arguments)?;
            let old = (program.unwrap_or(&own_program), old.as_slice());
            interleaved(old, (&own_program, new), rounds, arguments.json)?
        }
        _ if program.is_some() => {
            let reason = "--baseline-program requires --rounds of at least 1, a baseline whose `arguments` are \
                          not null, and no --save-state or --resume";
            return Err(Failure::usage(reason));
        }
        _ => stored(arguments, &baseline, file)?,
    };
    let threshold = arguments.threshold.unwrap_or(THRESHOLD);
    let few = || Failure::new("cannot compare", file.display(), "a rate is 0");
    let comparison = rates.compare(threshold).ok_or_else(few)?;
    stdout::print(&match arguments.json {
        true => format!("{}\n", as_json(&rates, &comparison)),
        false => as_text(&rates, &comparison),
    })?;
    match comparison.conclusion() {
        Conclusion::Faster | Conclusion::NoChange => Ok(()),
        Conclusion::Slower => {
            Err(Failure::sentence("slower than the baseline".to_owned()).with_code(SLOWER))
        }
        Conclusion::CannotTell => {
            let line = "cannot tell whether the rate differs from the baseline".to_owned();
            Err(Failure::sentence(line).with_code(CANNOT_TELL))
        }
    }
}

/// The content of a baseline: the options of its run, and the rate of each epoch.
struct Baseline {
    /// `None` if the run cannot be repeated from its options.
    words: Option<Vec<OsString>>,
    epoch_rates: Vec<f64>,
}

impl Baseline {
    fn read(file: &Path) -> Result<Self, Failure> {
        let fail = |reason: &dyn std::fmt::Display| {
            Failure::new("cannot read the baseline", file.display(), reason)
        };
        let text = std::fs::read_to_string(file).map_err(|error| fail(&error))?;
        let object: Value = serde_json::from_str(&text).map_err(|error| fail(&error))?;
        let Some(rates) = object["epoch_images_per_s"].as_array() else {
            return Err(fail(
                &"no key `epoch_images_per_s`; write the file by `spdl bench DATA --json`",
            ));
        };
        let words = object["arguments"].as_array().map(|words| {
            words.iter().filter_map(Value::as_str).map(OsString::from).collect::<Vec<_>>()
        });
        // The file is data from elsewhere: its options may load data, but not write files.
        if let Some(words) = &words {
            let mut parsed = BenchArguments::parse(words)?;
            parsed.words =
                [OsString::new(), OsString::new()].into_iter().chain(words.clone()).collect();
            if repeatable(&parsed).as_ref() != Some(words) {
                return Err(fail(&"its arguments contain options that do not load data"));
            }
        }
        let epoch_rates = rates.iter().filter_map(Value::as_f64).collect();
        Ok(Baseline { words, epoch_rates })
    }
}

/// The options of a run that a baseline stores: without those that only concern output.
///
/// `None` if the run depends on a checkpoint, or if a URL contains a secret.
pub(crate) fn repeatable(arguments: &BenchArguments) -> Option<Vec<OsString>> {
    let has_state = arguments.save_state.is_some() || !arguments.resume.is_empty();
    let is_secret = |place: &std::path::PathBuf| {
        address::is_address(place) && address::shown(std::slice::from_ref(place)) != *place
    };
    if has_state || arguments.data.iter().any(is_secret) {
        return None;
    }
    // The first two words are the program and `bench`.
    let mut words = arguments.words.iter().skip(2);
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let text = word.to_str()?;
        let name = text.split_once('=').map_or(text, |(name, _)| name);
        if text == "--" {
            kept.push(word.clone());
            kept.extend(words.by_ref().cloned());
        } else if NOT_REPEATED.contains(&name) {
            // The value is part of this word, or the next word.
            if name == text {
                words.next();
            }
        } else if text != FLAG_NOT_REPEATED {
            kept.push(word.clone());
        }
    }
    kept.iter().all(|word| word.to_str().is_some()).then_some(kept)
}

/// The path of this program. In a Python process, the name of the program on the command line.
fn own_program(arguments: &BenchArguments) -> Result<OsString, Failure> {
    let name = arguments.words.first().cloned().unwrap_or_else(|| "spdl".into());
    let own = std::env::current_exe()
        .map_err(|error| Failure::new("cannot find", "this program", error))?;
    Ok(if own.file_name() == Path::new(&name).file_name() { own.into() } else { name })
}

/// Runs both command lines alternately, after one run each to warm up.
///
/// The order changes with each round, so that a steady drift of the machine cancels out.
fn interleaved(
    old: (&OsStr, &[OsString]),
    new: (&OsStr, &[OsString]),
    rounds: u32,
    is_quiet: bool,
) -> Result<Rates, Failure> {
    if !is_quiet {
        for (what, (program, words)) in [("baseline", old), ("this run", new)] {
            let words: Vec<String> =
                words.iter().map(|word| for_shell(&word.to_string_lossy())).collect();
            let program = for_shell(&program.to_string_lossy());
            stderr::note(&format!("spdl: {what}: {program} bench {}", words.join(" ")));
        }
    }
    rate_of(old)?;
    rate_of(new)?;
    let mut rates = Rates { baseline: Vec::new(), current: Vec::new(), are_pairs: true };
    for round in 1..=rounds {
        let (baseline, current) = if round % 2 == 1 {
            (rate_of(old)?, rate_of(new)?)
        } else {
            let current = rate_of(new)?;
            (rate_of(old)?, current)
        };
        if !is_quiet {
            let change = measured((current / baseline - 1.0) * 100.0);
            stderr::note(&format!("spdl: round {round} of {rounds}: {change} %"));
        }
        rates.baseline.push(baseline);
        rates.current.push(current);
    }
    Ok(rates)
}

/// Runs `program bench --json WORDS`; returns its samples per second.
fn rate_of((program, words): (&OsStr, &[OsString])) -> Result<f64, Failure> {
    let shown = Path::new(program).display();
    let mut command = Command::new(program);
    command.args(["bench", "--json"]).args(words).stdin(Stdio::null());
    let output = command.output().map_err(|error| Failure::new("cannot start", &shown, error))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().last().unwrap_or_default();
        return Err(Failure::new("a run failed", shown, format!("{}: {line}", output.status)));
    }
    let object: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    let rate = object.and_then(|object| object["images_per_s"].as_f64());
    rate.ok_or_else(|| Failure::new("a run failed", shown, "it printed no `images_per_s`"))
}

/// Runs the present options, and compares their epochs with those of the baseline.
///
/// The first epoch contains the start of the pipeline, and is left out.
fn stored(arguments: &BenchArguments, baseline: &Baseline, file: &Path) -> Result<Rates, Failure> {
    let later = |rates: &[f64]| rates.iter().skip(1).copied().collect::<Vec<f64>>();
    let enough =
        "at least 3 epochs are necessary, of which the first does not count; add --epochs 10";
    let rates = later(&baseline.epoch_rates);
    if rates.len() < 2 {
        return Err(Failure::new("the baseline is too short", file.display(), enough));
    }
    if arguments.epochs < 3 {
        return Err(Failure::usage(format!("--epochs {}: {enough}", arguments.epochs)));
    }
    let outcome = measure_whole(arguments)?;
    let current = later(&outcome.delivery.epoch_rates());
    Ok(Rates { baseline: rates, current, are_pairs: false })
}

fn as_json(rates: &Rates, comparison: &Comparison) -> Value {
    json!({
        "method": if rates.are_pairs { "interleaved" } else { "stored" },
        "baseline_images_per_s": rates.baseline,
        "images_per_s": rates.current,
        "change": comparison.change,
        "interval": comparison.interval,
        "confidence": CONFIDENCE,
        "threshold": comparison.threshold,
        "conclusion": comparison.conclusion().as_str(),
        "sentence": comparison.to_string(),
    })
}

fn as_text(rates: &Rates, comparison: &Comparison) -> String {
    let round = if rates.are_pairs { "round" } else { "epoch" };
    let mut table = Table::new(&[round, "baseline/s", "this run/s"], 0);
    let cell = |rates: &[f64], at: usize| rates.get(at).copied().map_or_else(String::new, measured);
    // The first epoch does not count.
    let first = if rates.are_pairs { 1 } else { 2 };
    for at in 0..rates.baseline.len().max(rates.current.len()) {
        let number = (at + first).to_string();
        table.add([number, cell(&rates.baseline, at), cell(&rates.current, at)]);
    }
    let how = match rates.are_pairs {
        true => "The rounds are interleaved, and compared in pairs.",
        false => {
            "The baseline was measured earlier, so a change of the machine counts as a change of the rate. For \
             interleaved rounds, keep the old program and add --baseline-program."
        }
    };
    format!("{}\n\n{}\n", table.draw(), wrap(&format!("{comparison} {how}"), WIDTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    /// The repeatable part of a command line.
    fn kept(text: &str) -> Option<String> {
        let mut arguments = BenchArguments::parse(&words(text)).unwrap();
        arguments.words = words(&format!("spdl bench {text}"));
        let kept = repeatable(&arguments)?;
        Some(kept.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn options_about_output_are_not_repeated() {
        let text = "photos --json --baseline old.json --threads 2 --rounds=5 --seed 1";
        assert_eq!(kept(text).unwrap(), "photos --threads 2 --seed 1");
        assert_eq!(kept("--report r.html photos").unwrap(), "photos");
        assert_eq!(kept("--threads 2 --json -- --json").unwrap(), "--threads 2 -- --json");
        assert_eq!(kept("https://example.com/a.tar").unwrap(), "https://example.com/a.tar");
    }

    #[test]
    fn runs_with_secrets_or_checkpoints_are_not_repeatable() {
        for text in [
            "https://user:password@example.com/a.tar",
            "https://example.com/a.tar?signature=x",
            "photos --save-state run.state",
            "photos --resume run.state",
        ] {
            assert_eq!(kept(text), None, "{text}");
        }
    }
}
