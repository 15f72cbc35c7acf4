//! Interleaved measurements of programs: rate, CPU time, memory, and CPU use by other processes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::tools::{command, describe, with_descendants};

/// One loader under test.
#[derive(Debug)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    /// The versions of the loader's packages; empty for our programs.
    pub(crate) versions: String,
    /// Whether the rate is the median of all epochs except the first one.
    warm: bool,
    pub(crate) runs: Vec<Run>,
    /// The JSON object that the program printed in each run.
    pub(crate) reports: Vec<Value>,
}

/// Measurements of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) samples: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_s_per_1000: f64,
    pub(crate) first_batch_ms: f64,
    pub(crate) peak_memory_bytes: u64,
    /// Share of all CPU time that other processes used during the run.
    pub(crate) foreign_cpu: f64,
}

impl Run {
    pub(crate) fn samples_per_s(&self) -> f64 {
        self.samples as f64 / self.seconds
    }
}

impl Contestant {
    pub(crate) fn new(name: &'static str, program: PathBuf, arguments: Vec<String>) -> Self {
        let (versions, runs, reports) = Default::default();
        Contestant { name, program, arguments, versions, warm: false, runs, reports }
    }

    /// Uses the median of all epochs except the first one. The program must print `epoch_starts_s`.
    pub(crate) fn warm(self) -> Self {
        Contestant { warm: true, ..self }
    }

    pub(crate) fn of(&self, value: fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().map(value).collect()
    }

    /// The median rate, in samples per second.
    pub(crate) fn rate(&self) -> f64 {
        median(self.of(Run::samples_per_s))
    }

    /// The median ratio of this loader's rate to the rate of another loader.
    ///
    /// Each ratio compares two runs of the same round, so that a slow period of the machine affects
    /// both.
    pub(crate) fn ratio_to(&self, other: &Contestant) -> f64 {
        let pairs = self.runs.iter().zip(&other.runs);
        median(pairs.map(|(own, other)| own.samples_per_s() / other.samples_per_s()).collect())
    }
}

/// Runs all loaders once to warm up, then `repeats` times, interleaved.
///
/// The first loader must be ours. Any other loader that fails the warm-up is removed; the reason is
/// printed, and the last line that the program printed is returned with its name.
///
/// # Errors
/// If our loader fails, if another loader fails after the warm-up, or if the loaders deliver
/// different numbers of samples.
pub(crate) fn measure_all(
    contestants: &mut Vec<Contestant>,
    repeats: u32,
) -> Result<Vec<(&'static str, String)>> {
    let mut removed = Vec::new();
    let mut at = 0;
    while at < contestants.len() {
        eprintln!("warm-up: {}", contestants[at].name);
        match contestants[at].measure() {
            Ok(_) => at += 1,
            Err(error) if at == 0 => return Err(error),
            Err(error) => {
                println!("SKIPPED: {}: {error:#}", contestants[at].name);
                removed.push((contestants.remove(at).name, error.root_cause().to_string()));
            }
        }
    }
    for repeat in 1..=repeats {
        for contestant in contestants.iter_mut() {
            let (run, report) = contestant.measure()?;
            eprintln!(
                "run {repeat} of {repeats}: {}: {:.1} samples/s (other processes used {:.0} % of \
                 the CPU time)",
                contestant.name,
                run.samples_per_s(),
                100.0 * run.foreign_cpu
            );
            contestant.runs.push(run);
            contestant.reports.push(report);
        }
    }
    let delivered = contestants[0].runs[0].samples;
    for contestant in contestants.iter() {
        if let Some(run) = contestant.runs.iter().find(|run| run.samples != delivered) {
            bail!("{} delivered {} samples, ours {delivered}", contestant.name, run.samples);
        }
    }
    Ok(removed)
}

impl Contestant {
    fn measure(&self) -> Result<(Run, Value)> {
        let mut command = command(&self.program);
        command.args(&self.arguments);
        let before = CpuTicks::now();
        let (result, peak_memory_bytes) = report(&mut command)?;
        let foreign_cpu = CpuTicks::now().foreign_since(&before);
        let number = |key: &str| {
            result[key].as_f64().with_context(|| format!("{} reports no {key}", self.name))
        };
        // Scripts that load images print `images` instead of `samples`.
        let samples = result["samples"].as_u64().or_else(|| result["images"].as_u64());
        let samples = samples.with_context(|| format!("{}: no samples", self.name))?;
        ensure!(samples > 0, "{} delivered nothing", self.name);
        let mut run = Run {
            samples,
            seconds: number("seconds")?,
            cpu_s_per_1000: number("cpu_s_per_1000")?,
            first_batch_ms: number("first_batch_ms")?,
            peak_memory_bytes,
            foreign_cpu,
        };
        if self.warm {
            let starts = result["epoch_starts_s"].as_array().map_or(&[][..], Vec::as_slice);
            let epochs = starts.len() as u64;
            let ends = starts.iter().filter_map(Value::as_f64).chain([run.seconds]);
            let ends: Vec<f64> = ends.collect();
            let lasted = ends.windows(2).skip(1).map(|pair| pair[1] - pair[0]);
            let lasted: Vec<f64> = lasted.collect();
            ensure!(!lasted.is_empty(), "{} has one epoch", self.name);
            run.samples /= epochs;
            run.seconds = median(lasted);
        }
        Ok((run, result))
    }
}

/// Runs a program; returns the JSON object that it printed, and the peak memory of its processes.
pub(crate) fn report(command: &mut Command) -> Result<(Value, u64)> {
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let (text, peak) = run_and_watch(command)?;
    let report = serde_json::from_str(text.trim())
        .with_context(|| format!("`{}` printed no JSON object: {text:?}", describe(command)))?;
    Ok((report, peak))
}

/// Runs a command; returns its output and the peak memory of its processes.
fn run_and_watch(command: &mut Command) -> Result<(String, u64)> {
    let described = describe(command);
    let mut child = command.spawn().with_context(|| format!("cannot run `{described}`"))?;
    let mut pipe =
        child.stdout.take().context("the standard output of the program is not piped")?;
    let reader = thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).map(|_| text)
    });
    let last_line = child.stderr.take().map(|pipe| thread::spawn(|| repeat_lines(pipe)));
    let mut peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        peak = peak.max(with_descendants(child.id()).into_iter().map(memory_of).sum());
        thread::sleep(Duration::from_millis(100));
    };
    if !status.success() {
        let last_line = last_line.and_then(|reader| reader.join().ok()).unwrap_or_default();
        let reason = if last_line.is_empty() { status.to_string() } else { last_line };
        return Err(anyhow!(reason).context(format!("`{described}` failed")));
    }
    let Ok(text) = reader.join() else { bail!("the thread that reads the output panicked") };
    Ok((text?, peak))
}

/// Prints the lines of a program's standard error; returns the last one that is not empty.
fn repeat_lines(pipe: impl Read) -> String {
    let mut last = String::new();
    for line in BufReader::new(pipe).lines().map_while(Result::ok) {
        eprintln!("{line}");
        if !line.trim().is_empty() {
            last = line;
        }
    }
    last
}

/// Proportional set size (PSS): a page shared by n processes adds 1/n of its size to each of them.
fn memory_of(process: u32) -> u64 {
    let sums = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let line = sums.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    1024 * kib.unwrap_or(0)
}

/// CPU times of the machine in ticks; zero without `/proc`.
#[derive(Clone, Copy, Debug, Default)]
struct CpuTicks {
    all: u64,
    idle: u64,
    our_children: u64,
}

impl CpuTicks {
    fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        CpuTicks::read(&stat, &own)
    }

    /// Parses the contents of `/proc/stat` and of `/proc/self/stat`; see proc(5).
    fn read(stat: &str, own: &str) -> Self {
        // The columns are user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
        // The last two are already included in user and nice.
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        // proc(5): field 3 follows the name in parentheses; `cutime` and `cstime` are fields 16 and
        // 17.
        let fields = own.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        CpuTicks {
            all: ticks.iter().sum(),
            idle: ticks.iter().skip(3).take(2).sum(),
            our_children: fields.skip(13).take(2).filter_map(|word| word.parse::<u64>().ok()).sum(),
        }
    }

    fn foreign_since(&self, before: &CpuTicks) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle);
        let ours = self.our_children.saturating_sub(before.our_children);
        all.saturating_sub(idle).saturating_sub(ours) as f64 / all.max(1) as f64
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_runs_is_the_mean_of_the_middle_two() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn ticks_that_are_neither_idle_nor_own_are_foreign() {
        let own = |ticks: u64| format!("7 (a name) b) S 1 7 7 0 -1 0 0 0 0 0 9 9 {ticks} 5 20 0 1");
        let before = CpuTicks::read("cpu  100 0 20 900 10 0 0 0 50 0\ncpu0 1 1", &own(40));
        let after = CpuTicks::read("cpu  160 0 30 920 10 0 0 10 99 0\ncpu0 1 1", &own(90));
        // 100 ticks in total: 20 idle, 50 ours, 30 of other processes.
        assert!((after.foreign_since(&before) - 0.3).abs() < 1e-9);
    }

    #[test]
    fn memory_and_output_of_a_command_are_measured() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.3; echo done"]).stdout(Stdio::piped());
        let (text, peak) = run_and_watch(&mut command).unwrap();
        assert_eq!(text, "done\n");
        assert!(peak > 100_000, "{peak}");
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo why >&2; echo >&2; exit 3"]);
        failing.stdout(Stdio::piped()).stderr(Stdio::piped());
        let error = run_and_watch(&mut failing).unwrap_err();
        assert_eq!(error.root_cause().to_string(), "why");
        assert!(format!("{error:#}").contains("exit 3` failed: why"), "{error:#}");
    }
}
