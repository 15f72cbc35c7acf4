//! Paths of the repository, external commands, and installation of tools below `target/`.

use std::collections::HashMap;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Paths and packages of the workspace.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    /// The folder with the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's target folder, as the user configured it.
    pub(crate) target: PathBuf,
    /// The workspace's members as `cargo metadata --no-deps` describes them.
    pub(crate) packages: Vec<Value>,
}

impl Workspace {
    /// Runs `cargo metadata`.
    pub(crate) fn find() -> Result<Self> {
        let manifest = manifest_folder().join("Cargo.toml");
        let output = cargo()
            .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
            .arg(&manifest)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        ensure!(output.status.success(), "cargo metadata failed");
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let path = |key: &str| -> Result<PathBuf> {
            Ok(metadata[key]
                .as_str()
                .with_context(|| format!("cargo metadata lacks {key}"))?
                .into())
        };
        let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
        Ok(Workspace { root: path("workspace_root")?, target: path("target_directory")?, packages })
    }

    /// The path of a program that cargo has built.
    pub(crate) fn program(&self, profile_folder: &str, name: &str) -> PathBuf {
        self.target.join(profile_folder).join(format!("{name}{}", env::consts::EXE_SUFFIX))
    }

    /// A path relative to the root if it is below the root.
    pub(crate) fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// Arguments of cargo commands that generate no code. Without optimisation, the compiler writes
/// less data about functions, in half the time.
pub(crate) const CHECK_SETTINGS: [&str; 4] = [
    "--config",
    "profile.dev.package.spdl-media.opt-level=0",
    "--config",
    "profile.dev.package.spdl-cuda.opt-level=0",
];

/// Examples that are run by the tests of the step `test`. The step `clippy` only compiles the other
/// examples.
pub(crate) const EXAMPLES: [&str; 3] = ["batches", "corpus_worker", "gpu"];

/// The packages and features of all tests. Another selection would compile dependencies with other features again.
pub(crate) const SELECTION: [&str; 2] = ["--workspace", "--all-features"];

/// A command that runs the same cargo as this process, without the environment variables that cargo
/// sets for this package.
pub(crate) fn cargo() -> Command {
    let mut cargo = clean(Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into())));
    cargo.env("PYO3_CONFIG_FILE", pyo3_config());
    cargo
}

/// The configuration of PyO3 for the stable ABI. If cargo and maturin used different ones, each
/// build would compile PyO3 and its dependents again.
pub(crate) fn pyo3_config() -> PathBuf {
    manifest_folder().join("../spdl-python/pyo3.config")
}

/// The folder of this package.
fn manifest_folder() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

/// A command without the environment variables that `cargo run` sets for its child.
///
/// Build scripts that read these variables would run again on the next plain `cargo build`.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    clean(Command::new(program))
}

fn clean(mut command: Command) -> Command {
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name.as_ref());
        }
    }
    // A virtual environment that the user has activated must not affect ours.
    command.env_remove("VIRTUAL_ENV").env_remove("PYTHONHOME").env_remove("PYTHONPATH");
    command
}

/// Where commands write their output: the terminal, or the log of a step.
pub(crate) enum Output {
    Terminal,
    Log(Box<StepLog>),
}

/// The log of a step, or of one of its threads.
pub(crate) struct StepLog {
    file: File,
    path: PathBuf,
    /// Commands are killed after this time.
    deadline: Instant,
    priority: Priority,
    /// User and system time of the commands so far, and of their child processes.
    cpu: Duration,
}

/// The scheduling priority of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    Usual,
    /// The commands use the CPU time that other processes leave.
    Low,
}

impl Output {
    /// A new, empty log. Commands that write to it have this priority, and are killed after `limit`.
    pub(crate) fn log(path: PathBuf, limit: Duration, priority: Priority) -> Result<Self> {
        let file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let deadline = Instant::now() + limit;
        Ok(Output::Log(Box::new(StepLog { file, path, deadline, priority, cpu: Duration::ZERO })))
    }

    /// A log for a thread of the same step; `None` for the terminal. Its name has the suffix `-NUMBER`.
    pub(crate) fn of_thread(&self, number: usize) -> Result<Option<Self>> {
        let Output::Log(log) = self else { return Ok(None) };
        let name = log.path.file_stem().unwrap_or_default().to_string_lossy();
        let path = log.path.with_file_name(format!("{name}-{number}.log"));
        let limit = log.deadline.saturating_duration_since(Instant::now());
        Output::log(path, limit, log.priority).map(Some)
    }

    /// Appends the log of a thread, and adds its CPU time.
    pub(crate) fn append(&mut self, thread: &Output) -> Result<()> {
        self.say(&thread.text()?);
        if let Output::Log(log) = self {
            log.cpu += thread.cpu_time();
        }
        Ok(())
    }

    /// User and system time of the commands so far, and of their child processes. Zero on systems without `/proc`.
    pub(crate) fn cpu_time(&self) -> Duration {
        match self {
            Output::Terminal => Duration::ZERO,
            Output::Log(log) => log.cpu,
        }
    }

    /// Prints or logs a line.
    pub(crate) fn say(&mut self, text: &str) {
        match self {
            Output::Terminal => println!("{text}"),
            Output::Log(log) => {
                // If the log cannot be written, the next command fails.
                let _ = writeln!(log.file, "{text}");
            }
        }
    }

    /// The contents of the log.
    pub(crate) fn text(&self) -> Result<String> {
        match self {
            Output::Terminal => Ok(String::new()),
            Output::Log(log) => Ok(String::from_utf8_lossy(&fs::read(&log.path)?).into_owned()),
        }
    }

    /// Runs a command; fails if the command fails.
    pub(crate) fn run(&mut self, command: &mut Command) -> Result<()> {
        let status = self.status(command)?;
        ensure!(status.success(), "`{}` failed: {status}", describe(command));
        Ok(())
    }

    /// Runs a command and returns its exit status and, for a log, its output.
    pub(crate) fn run_and_read(&mut self, command: &mut Command) -> Result<(ExitStatus, String)> {
        let start = match self {
            Output::Terminal => 0,
            Output::Log(log) => log.file.seek(SeekFrom::End(0))?,
        };
        let status = self.status(command)?;
        let text = match self {
            Output::Terminal => String::new(),
            Output::Log(log) => {
                let bytes = fs::read(&log.path)?;
                let start = usize::try_from(start)?.min(bytes.len());
                String::from_utf8_lossy(&bytes[start..]).into_owned()
            }
        };
        Ok((status, text))
    }

    fn status(&mut self, command: &mut Command) -> Result<ExitStatus> {
        let described = describe(command);
        match self {
            Output::Terminal => {
                command.status().with_context(|| format!("cannot run `{described}`"))
            }
            Output::Log(log) => {
                let StepLog { file, deadline, priority, cpu, .. } = &mut **log;
                writeln!(file, "$ {described}")?;
                let mut with_low_priority;
                let command = match priority {
                    Priority::Usual => command,
                    Priority::Low => {
                        with_low_priority = nice(command);
                        &mut with_low_priority
                    }
                };
                let mut child = command
                    .stdin(Stdio::null())
                    .stdout(file.try_clone()?)
                    .stderr(file.try_clone()?)
                    .spawn()
                    .with_context(|| format!("cannot run `{described}`"))?;
                let mut spent = Duration::ZERO;
                loop {
                    spent = spent.max(cpu_time(child.id()));
                    if let Some(status) = child.try_wait()? {
                        *cpu += spent;
                        file.seek(SeekFrom::End(0))?;
                        return Ok(status);
                    }
                    if Instant::now() >= *deadline {
                        end_with_descendants(child.id());
                        child.wait()?;
                        bail!("`{described}` exceeded its time limit and was killed");
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

/// A command that runs another one with the lowest priority.
fn nice(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice
}

/// The program name and the arguments of a command, separated by spaces.
pub(crate) fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let mut text = program.to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// The IDs of a process and its descendants, from `/proc`. On systems without `/proc`, only the ID
/// of the process.
pub(crate) fn with_descendants(process: u32) -> Vec<u32> {
    let mut children = HashMap::<u32, Vec<u32>>::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(id) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // "id (name) state parent …"; the name may contain spaces and parentheses.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        if let Some(parent) = parent.and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push(id);
        }
    }
    let mut tree = vec![process];
    let mut next = 0;
    while next < tree.len() {
        tree.extend(children.get(&tree[next]).into_iter().flatten());
        next += 1;
    }
    tree
}

/// User and system time of a process, and of its child processes that have exited. A process that has exited counts
/// until it is waited for.
///
/// Zero on systems without `/proc`.
fn cpu_time(process: u32) -> Duration {
    // Linux reports these fields in units of 1/100 s on every architecture (`USER_HZ`).
    const TICKS_PER_SECOND: u64 = 100;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // proc(5): `utime` to `cstime` are fields 14 to 17. The name in field 2 may contain spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

fn end_with_descendants(process: u32) {
    let ids = with_descendants(process).into_iter().map(|id| id.to_string());
    // `kill` reports an error for processes that have already exited.
    let _ = Command::new("kill").arg("-9").args(ids).stderr(Stdio::null()).status();
}

/// The path of an exact version of a cargo subcommand, below `target/tools` or in `PATH`.
pub(crate) fn installed_cargo_tool(
    workspace: &Workspace,
    name: &str,
    version: &str,
) -> Option<PathBuf> {
    let program = format!("{name}{}", env::consts::EXE_SUFFIX);
    let paths = [workspace.target.join("tools/bin").join(&program), program.into()];
    paths.into_iter().find(|path| {
        let found = Command::new(path).arg("--version").output();
        found.is_ok_and(|found| {
            let text = String::from_utf8_lossy(&found.stdout);
            text.split_whitespace().any(|word| word == version)
        })
    })
}

/// Installs an exact version of a cargo subcommand below `target/tools`, unless it is installed, and
/// returns its path.
///
/// The tool is built without optimisation: it runs for seconds, and an optimised build would take
/// minutes longer.
pub(crate) fn cargo_tool(
    workspace: &Workspace,
    output: &mut Output,
    name: &str,
    version: &str,
) -> Result<PathBuf> {
    if let Some(program) = installed_cargo_tool(workspace, name, version) {
        return Ok(program);
    }
    let root = workspace.target.join("tools");
    let program = root.join("bin").join(format!("{name}{}", env::consts::EXE_SUFFIX));
    output.say(&format!("installing {name} {version} into {}", workspace.shown(&root)));
    let build = root.join("build");
    output.run(
        cargo()
            .args(["install", "--locked", "--debug", "--force", "--version", version, "--root"])
            .arg(&root)
            .arg("--target-dir")
            .arg(&build)
            .arg(name)
            // Debug information of these tools is not needed.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .current_dir(&workspace.root),
    )?;
    fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))?;
    Ok(program)
}

/// Ensures that these programs exist. If they do not, installs the Debian packages of the same
/// names.
///
/// # Errors
/// If a program is missing and cannot be installed; the message contains the command to run.
pub(crate) fn require_programs(output: &mut Output, what_for: &str, names: &[&str]) -> Result<()> {
    let missing: Vec<&str> = names.iter().copied().filter(|name| !has_program(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let why = format!("{what_for} needs {}, which is not installed", missing.join(" and "));
    install_packages(output, &why, &missing)?;
    match missing.iter().find(|name| !has_program(name)) {
        Some(name) => bail!("the package {name} is installed, but there is no program {name}"),
        None => Ok(()),
    }
}

fn has_program(name: &str) -> bool {
    let mut command = Command::new(name);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Installs Debian packages; fails if this process does not run as root or `apt-get` is missing.
pub(crate) fn install_packages(output: &mut Output, why: &str, packages: &[&str]) -> Result<()> {
    let by_hand = format!("apt-get update && apt-get install -y {}", packages.join(" "));
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    if !(is_root && has_program("apt-get")) {
        bail!("{why}; run as root: {by_hand}");
    }
    output.say(&format!("{why}; running: {by_hand}"));
    output.run(command("apt-get").args(["update", "-qq"]))?;
    output.run(
        command("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

/// Copies the files of a folder that have one of these extensions, recursively.
pub(crate) fn copy_tree(from: &Path, to: &Path, endings: &[&str]) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        if path.is_dir() && name != "__pycache__" {
            copy_tree(&path, &to.join(name), endings)?;
        } else if path.extension().is_some_and(|found| endings.iter().any(|it| found == *it)) {
            fs::copy(&path, to.join(name)).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// The files of the repository of up to 1 MiB, without symbolic links, build outputs, and hidden
/// folders other than `.cargo`, `.ci` and `.github`.
pub(crate) fn text_files(root: &Path) -> Result<Vec<PathBuf>> {
    const LARGEST: u64 = 1 << 20;
    const HIDDEN_BUT_OURS: [&str; 3] = [".cargo", ".ci", ".github"];
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            let is_output = folder == root && name == "target" || name == "__pycache__";
            let is_foreign = name.starts_with('.') && !HIDDEN_BUT_OURS.contains(&name.as_str());
            if kind.is_dir() && !is_output && !is_foreign {
                folders.push(entry.path());
            } else if kind.is_file() && name != ".git" && entry.metadata()?.len() <= LARGEST {
                // In a second working tree, `.git` is a file with a path of this machine.
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_and_foreign_folders_are_not_searched() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for file in ["src/a.rs", "target/b.rs", ".git/c", "y/.git", ".ci/run", "x/target/d.rs"] {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        let found = text_files(root).unwrap();
        assert_eq!(found, [".ci/run", "src/a.rs", "x/target/d.rs"].map(|file| root.join(file)));
    }
}
