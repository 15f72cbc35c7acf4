//! Tasks that our loader and other loaders run in turns, and the page with their rates: recipes, audio, video.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::Value;

use super::contest::{self, Contestant};
use super::peers::{self, Peer};
use super::{plot, table};
use crate::dataset;
use crate::tools::{Output, Workspace, command, install_packages};
use crate::venv::Venv;
use crate::wheel;

/// The options of every suite.
#[derive(Debug, Args)]
pub(super) struct SuiteArguments {
    /// Number of measured runs of each program
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) repeats: u32,
    /// Python interpreter for the programs that need torch; if given, torch, torchvision, webdataset,
    /// TorchCodec and torchaudio are not installed, and programs that need missing ones are not measured
    #[arg(long, value_name = "PROGRAM")]
    torch_python: Option<PathBuf>,
    /// Fail if a ratio misses its promised value or was not measured
    #[arg(long)]
    check: bool,
    /// Print the results, but do not update docs/benchmarks
    #[arg(long)]
    print_only: bool,
}

/// The tasks of a page of `docs/benchmarks`.
pub(super) struct Suite {
    /// The name of the command, of the page and of its chart.
    pub(super) name: &'static str,
    /// The title of the page.
    pub(super) title: &'static str,
    /// What the loaders deliver, in a sentence for the page.
    pub(super) about: &'static str,
    pub(super) tasks: &'static [SuiteTask],
}

/// A task, and the programs that run it.
pub(super) struct SuiteTask {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) note: &'static str,
    pub(super) peers: &'static [Program],
    /// A figure beside the rates.
    pub(super) figure: Option<Figure>,
}

/// A figure from the reports of the programs.
pub(super) struct Figure {
    /// The figures of all programs that report one, as a sentence, or nothing.
    pub(super) sentence: fn(&[Contestant]) -> String,
    /// The promise about our figure, without the name of the task; `None` without a figure.
    pub(super) verdict: fn(&Contestant) -> Option<(bool, String)>,
}

/// A program of `xtask/recipes`, and the promised minimum of the ratio of our rate to its rate.
#[derive(Clone, Copy)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) script: &'static str,
    /// The name of its environment below target/, and its packages.
    pub(super) environment: (&'static str, &'static [&'static str]),
    /// Python code that fails if the FFmpeg libraries of the system are missing; nothing if they are not needed.
    pub(super) needs_ffmpeg: &'static str,
    /// The promised ratio of rates; 0 without a promise.
    pub(super) promised: f64,
}

impl Program {
    pub(super) const TORCHVISION: Program = Program {
        name: "torch DataLoader: torchvision",
        script: "torchvision_workers.py",
        environment: peers::TORCH,
        needs_ffmpeg: "",
        promised: 3.0,
    };
    /// The original SPDL.
    pub(super) const SPDL: Program = Program {
        name: "thread pool: spdl (Python, C++)",
        script: "spdl_audio.py",
        environment: peers::SPDL,
        needs_ffmpeg: peers::SPDL_NEEDS_FFMPEG,
        promised: 1.5,
    };

    /// A base of programs that decode with TorchCodec or torchaudio.
    pub(super) const TORCHCODEC: Program = Program {
        name: "thread pool: TorchCodec",
        script: "torchcodec_audio.py",
        environment: peers::TORCHCODEC,
        needs_ffmpeg: peers::TORCHCODEC_NEEDS_FFMPEG,
        promised: 1.5,
    };

    pub(super) const fn promised(self, promised: f64) -> Self {
        Program { promised, ..self }
    }

    /// Installs the program, and returns its interpreter.
    fn interpreter(&self, workspace: &Workspace, torch: Option<&Path>) -> Result<PathBuf> {
        let (name, packages) = self.environment;
        let needs_torch = [peers::TORCH, peers::TORCHCODEC].contains(&self.environment);
        if let Some(python) = torch.filter(|_| needs_torch) {
            return Ok(python.to_owned());
        }
        let output = &mut Output::Terminal;
        let python = Venv::prepare(workspace, output, name, packages)?.python();
        if !self.needs_ffmpeg.is_empty() && !peers::runs(&python, self.needs_ffmpeg) {
            let why = format!("{} needs the FFmpeg libraries of the system", self.name);
            install_packages(output, &why, &["ffmpeg"])?;
        }
        Ok(python)
    }
}

/// Our loader, in the tables.
pub(super) const OURS: &str = "spdl_rs.Loader";
/// Worker processes or threads of every loader.
pub(super) const WORKERS: usize = 2;

/// The results of a task.
pub(super) struct Measured<'a> {
    task: &'a SuiteTask,
    /// Ours is the first one.
    contestants: Vec<Contestant>,
    /// The names of programs that could not be installed or do not run, and why.
    missing: Vec<(&'static str, String)>,
}

/// Whether a promise is kept, and the line that reports it.
pub(super) type PromiseVerdict = (bool, String);

/// A part of a page that is no task.
#[derive(Default)]
pub(super) struct Extra {
    /// A section, or nothing.
    pub(super) text: String,
    pub(super) verdicts: Vec<PromiseVerdict>,
}

/// The data and the programs of suites.
pub(super) struct Stage<'a> {
    workspace: &'a Workspace,
    pub(super) ours: Venv,
    scripts: PathBuf,
    data: PathBuf,
}

impl<'a> Stage<'a> {
    /// Builds and installs our wheel.
    pub(super) fn new(workspace: &'a Workspace) -> Result<Self> {
        let ours = wheel::install(workspace, &mut Output::Terminal, "venv-bench-python", false)?;
        let scripts = workspace.root.join("xtask/recipes");
        Ok(Stage { workspace, ours, scripts, data: workspace.target.join("demo/recipes") })
    }

    /// Writes data by a script that runs in the environment of a program.
    pub(super) fn prepare(&self, program: &Program, script: &str) -> Result<()> {
        let mut prepare = command(program.interpreter(self.workspace, None)?);
        prepare.arg(self.scripts.join(script)).arg(&self.data);
        Output::Terminal.run(&mut prepare)
    }

    /// Writes the samples with images.
    pub(super) fn write_images(&self) -> Result<()> {
        let images = dataset::for_benchmarks(self.workspace)?;
        // The samples are written with Pillow.
        let (name, packages) = Peer::Pillow.environment();
        let pillow = Venv::prepare(self.workspace, &mut Output::Terminal, name, packages)?.python();
        let mut prepare = command(pillow);
        prepare.arg(self.scripts.join("data.py")).arg(images).arg(&self.data);
        Output::Terminal.run(&mut prepare)
    }

    /// A script that runs with an interpreter; `words` follow its name.
    fn contestant(
        &self,
        name: &'static str,
        python: &Path,
        script: &str,
        words: &[&str],
    ) -> Contestant {
        let [script, data] = [self.scripts.join(script), self.data.clone()];
        let words = words.iter().map(|&word| word.to_owned());
        let words = [script.display().to_string()].into_iter().chain(words);
        Contestant::new(
            name,
            python.to_owned(),
            words.chain([data.display().to_string()]).collect(),
        )
    }

    /// Runs a script for a task in the environment of our loader; returns its report.
    pub(super) fn report(&self, script: &str, task: &str) -> Result<Value> {
        let mut program = command(self.ours.python());
        program.arg(self.scripts.join(script)).arg(task).arg(&self.data);
        Ok(contest::report(&mut program)?.0)
    }

    /// Runs the tasks, and prints their tables.
    pub(super) fn measure<'t>(
        &self,
        tasks: &[&'t SuiteTask],
        arguments: &SuiteArguments,
    ) -> Result<Vec<Measured<'t>>> {
        let workers = WORKERS.to_string();
        let mut all = Vec::new();
        for &task in tasks {
            let words = ["--workers", &workers, task.name];
            let ours = self.contestant(OURS, &self.ours.python(), "ours.py", &words);
            let (mut contestants, mut missing) = (vec![ours], Vec::new());
            for peer in task.peers {
                match peer.interpreter(self.workspace, arguments.torch_python.as_deref()) {
                    Ok(python) => {
                        let mut contestant =
                            self.contestant(peer.name, &python, peer.script, &words);
                        contestant.versions = peers::versions(&python, peer.environment.1);
                        contestants.push(contestant);
                    }
                    Err(error) => {
                        println!("SKIPPED: {}: {error:#}", peer.name);
                        let packages = peer.environment.1.join(", ");
                        missing.push((peer.name, format!("cannot install {packages}")));
                    }
                }
            }
            missing.extend(contest::measure_all(&mut contestants, arguments.repeats)?);
            let measured = Measured { task, contestants, missing };
            println!("\n{}\n\n{}", task.title, table::of_medians(&measured.contestants, UNIT));
            println!("{}{}", measured.sentence(), measured.missing());
            all.push(measured);
        }
        Ok(all)
    }
}

/// The unit of rates.
const UNIT: &str = "samples/s";

impl Suite {
    /// The names of the tasks, as values of an option.
    pub(super) fn names(&self) -> PossibleValuesParser {
        PossibleValuesParser::new(self.tasks.iter().map(|task| task.name))
    }

    /// The tasks with these names; all if there are none.
    pub(super) fn chosen(&self, names: &[String]) -> Vec<&'static SuiteTask> {
        let is_chosen =
            |task: &&SuiteTask| names.is_empty() || names.iter().any(|it| it == task.name);
        self.tasks.iter().filter(is_chosen).collect()
    }

    /// Prints the promises, and writes the page and its chart.
    pub(super) fn conclude(
        &self,
        workspace: &Workspace,
        arguments: &SuiteArguments,
        parts: &[Measured<'_>],
        extra: &Extra,
    ) -> Result<()> {
        let verdicts: Vec<_> = parts.iter().flat_map(Measured::verdicts).collect();
        let verdicts: Vec<_> = verdicts.into_iter().chain(extra.verdicts.clone()).collect();
        verdicts.iter().for_each(|(_, line)| println!("{line}"));
        if !arguments.print_only {
            let folder = workspace.root.join("docs/benchmarks");
            let page = |extension| folder.join(format!("{}.{extension}", self.name));
            table::write(&page("svg"), &self.chart(parts))?;
            let text = self.page(arguments.repeats, parts, &extra.text);
            table::write(&page("md"), &(text + &table::promises(&verdicts)))?;
        }
        let missed = verdicts.iter().filter(|(kept, _)| !kept).count();
        ensure!(
            !arguments.check || missed == 0,
            "{missed} of the promises were missed or not measured"
        );
        Ok(())
    }

    fn page(&self, repeats: u32, parts: &[Measured<'_>], extra: &str) -> String {
        let Suite { name, title, about, .. } = self;
        let count = thread::available_parallelism().map_or(1, usize::from);
        let mut text = format!(
            "# {title}\n\n\
             The machine has {count} CPUs ({cpu}). Every loader has {WORKERS} threads or worker processes. {about} \
             Random numbers differ. Runs are interleaved: one warm-up and {repeats} measured runs each. Figures are \
             medians; \"spread\" is (largest - smallest) / median. Time is measured from the construction of the \
             loader to the last batch, without imports. Memory is the peak of the sum over all processes (PSS). The \
             last column is the rate of `{OURS}` divided by the rate of this row: the median over pairs of \
             consecutive runs.\n\n\
             Command: `cargo xtask bench {name} --repeats {repeats}`.\n\n\
             ![Bar chart of the ratios]({name}.svg)\n",
            cpu = table::cpu_model(),
        );
        for measured in parts {
            let Measured { task, contestants, .. } = measured;
            text += &table::section(task.title, task.note, UNIT, contestants);
            text += &measured.sentence();
            text += &measured.missing();
        }
        text + extra
    }

    fn chart(&self, parts: &[Measured<'_>]) -> String {
        let bar = |task: &SuiteTask, ours: &Contestant, peer: &Contestant| {
            let value = ours.ratio_to(peer);
            let label = format!("{}: {}", task.name, peer.name);
            plot::Bar { label, value, range: (value, value), ours: false }
        };
        let bars: Vec<_> = parts
            .iter()
            .flat_map(|Measured { task, contestants, .. }| {
                contestants[1..].iter().map(|peer| bar(task, &contestants[0], peer))
            })
            .collect();
        let title = format!("How many times as fast: {}", self.title.to_lowercase());
        let unit = format!(
            "rate of {OURS} / rate of the other loader, on {WORKERS} CPUs; 1 is equal speed"
        );
        plot::bars_in_order(&title, &unit, &bars, 1)
    }
}

impl Measured<'_> {
    fn sentence(&self) -> String {
        self.task.figure.as_ref().map_or(String::new(), |it| (it.sentence)(&self.contestants))
    }

    /// The programs that were not measured, and why, as a list.
    fn missing(&self) -> String {
        if self.missing.is_empty() {
            return String::new();
        }
        let line = |(name, why): &(&str, String)| {
            let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("- {name}: {why}\n")
        };
        format!("\nNot measured:\n\n{}", self.missing.iter().map(line).collect::<String>())
    }

    /// Promised and measured ratios and figures, and whether each promise is kept. A peer that was not
    /// measured counts as missed.
    fn verdicts(&self) -> Vec<PromiseVerdict> {
        let Measured { task, contestants, .. } = self;
        let verdict = |peer: &Program| {
            let Program { name, promised, .. } = peer;
            let found = contestants.iter().find(|it| it.name == *name);
            let ratio = found.map(|it| contestants[0].ratio_to(it));
            let kept = ratio.is_some_and(|ratio| ratio >= *promised);
            let measured =
                ratio.map_or("not measured:".to_owned(), |ratio| format!("{ratio:.2} x"));
            if *promised == 0.0 {
                return (true, format!("no promise: {}: {measured} {name}", task.name));
            }
            let line = format!("{}: {measured} {name}; promised: at least {promised} x", task.name);
            table::verdict(kept, &line)
        };
        let figure = task.figure.as_ref().and_then(|it| (it.verdict)(&contestants[0]));
        let figure =
            figure.map(|(kept, line)| table::verdict(kept, &format!("{}: {line}", task.name)));
        task.peers.iter().map(verdict).chain(figure).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::table::tests::contestant;
    use super::*;

    /// The results of a task with these rates: ours, then those of other programs.
    pub(in crate::bench) fn measured<'a>(
        task: &'a SuiteTask,
        contestants: Vec<Contestant>,
    ) -> Measured<'a> {
        Measured { task, contestants, missing: Vec::new() }
    }

    pub(in crate::bench) fn verdicts_of(measured: &Measured<'_>) -> Vec<PromiseVerdict> {
        measured.verdicts()
    }

    const TASK: SuiteTask = SuiteTask {
        name: "task",
        title: "A task",
        note: "Its note.",
        peers: &[
            Program::TORCHVISION,
            Program { name: "slow", ..Program::TORCHVISION.promised(1.5) },
            Program { name: "absent", ..Program::TORCHVISION },
            Program { name: "unpromised", ..Program::TORCHVISION.promised(0.0) },
        ],
        figure: None,
    };

    fn example() -> Measured<'static> {
        let found = vec![
            contestant(OURS, &[1.0]),
            contestant(Program::TORCHVISION.name, &[3.1]),
            contestant("slow", &[1.4]),
            contestant("unpromised", &[0.5]),
        ];
        let missing = vec![("absent", "no wheel\nfor this machine".to_owned())];
        Measured { missing, ..measured(&TASK, found) }
    }

    #[test]
    fn a_ratio_below_its_promise_or_not_measured_is_missed() {
        let (kept, lines): (Vec<_>, Vec<_>) = example().verdicts().into_iter().unzip();
        assert_eq!(kept, [true, false, false, true], "{lines:?}");
        assert!(lines[2].contains("not measured: absent; promised: at least 3 x"), "{lines:?}");
        assert!(lines[3].starts_with("no promise: task: 0.50 x unpromised"), "{lines:?}");
    }

    #[test]
    fn a_page_lists_what_was_not_measured_and_why() {
        let suite = Suite { name: "page", title: "A page", about: "About.", tasks: &[TASK] };
        let parts = [example()];
        let page = suite.page(1, &parts, "\n## More\n");
        assert!(
            page.contains("\nNot measured:\n\n- absent: no wheel for this machine\n"),
            "{page}"
        );
        assert!(page.contains("`cargo xtask bench page --repeats 1`") && page.ends_with("More\n"));
        let chart = suite.chart(&parts);
        assert!(chart.contains("task: slow") && !chart.contains("absent"), "{chart}");
    }

    #[test]
    fn chosen_tasks_are_those_with_the_names() {
        let suite = Suite { name: "page", title: "A page", about: "About.", tasks: &[TASK] };
        assert_eq!(suite.chosen(&[]).len(), 1);
        assert_eq!(suite.chosen(&["task".to_owned()]).len(), 1);
        assert!(suite.chosen(&["other".to_owned()]).is_empty());
    }
}
