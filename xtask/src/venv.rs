//! Virtual environments of Python below `target/`, and their interpreters.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::tools::{Output, Workspace, command, install_packages};

/// The oldest Python that the wheel supports.
const OLDEST_PYTHON: (u32, u32) = (3, 10);

/// A virtual environment below `target/`.
#[derive(Debug)]
pub(crate) struct Venv {
    folder: PathBuf,
}

impl Venv {
    /// Creates or reuses the environment `target/NAME`, and installs `requirements` if they differ
    /// from the requirements that were installed before.
    pub(crate) fn prepare(
        workspace: &Workspace,
        output: &mut Output,
        name: &str,
        requirements: &[&str],
    ) -> Result<Self> {
        Venv::prepare_with(workspace, output, None, name, requirements)
    }

    /// Like `prepare`, but a new environment has this interpreter, if given.
    pub(crate) fn prepare_with(
        workspace: &Workspace,
        output: &mut Output,
        interpreter: Option<&Path>,
        name: &str,
        requirements: &[&str],
    ) -> Result<Self> {
        Venv::make(workspace, output, interpreter, name, requirements, &[])
    }

    /// Creates the environment `target/NAME`, which also uses the packages installed for this
    /// interpreter.
    pub(crate) fn prepare_on_system_packages(
        workspace: &Workspace,
        output: &mut Output,
        interpreter: &Path,
        name: &str,
    ) -> Result<Self> {
        let options = ["--system-site-packages"];
        Venv::make(workspace, output, Some(interpreter), name, &[], &options)
    }

    fn make(
        workspace: &Workspace,
        output: &mut Output,
        interpreter: Option<&Path>,
        name: &str,
        requirements: &[&str],
        options: &[&str],
    ) -> Result<Self> {
        let venv = Venv { folder: workspace.target.join(name) };
        let stamp = venv.folder.join("xtask-requirements.txt");
        let wanted = requirements.join("\n");
        let works = Command::new(venv.python())
            .args(["-c", "import pip"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if works && fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(venv);
        }
        if !works {
            let python = match interpreter {
                Some(python) => python.to_owned(),
                None => find_python(output)?,
            };
            output.say(&format!(
                "creating a virtual environment in {} with {}",
                workspace.shown(&venv.folder),
                python.display()
            ));
            output.run(
                command(&python).args(["-m", "venv", "--clear"]).args(options).arg(&venv.folder),
            )?;
        }
        if !requirements.is_empty() {
            output.say(&format!(
                "installing {} into {}",
                requirements.join(", "),
                workspace.shown(&venv.folder)
            ));
            venv.install(output, requirements)?;
        }
        fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
        Ok(venv)
    }

    /// The environment's interpreter.
    pub(crate) fn python(&self) -> PathBuf {
        self.program("python")
    }

    /// The path of a program in the environment.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        let folder = if cfg!(windows) { "Scripts" } else { "bin" };
        self.folder.join(folder).join(format!("{name}{}", env::consts::EXE_SUFFIX))
    }

    /// Runs `pip install` with these arguments.
    pub(crate) fn install(
        &self,
        output: &mut Output,
        arguments: &[impl AsRef<OsStr>],
    ) -> Result<()> {
        output.run(
            command(self.python())
                // Each wheel is installed once, so a cache would only waste disk space.
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .arg("--no-cache-dir")
                .args(arguments),
        )
    }
}

/// Whether a Python interpreter can create virtual environments.
enum Interpreter {
    Absent,
    TooOld,
    WithoutVenv,
    Usable,
}

fn inspect_python(program: impl AsRef<OsStr>) -> Interpreter {
    let script = format!(
        "import sys\nif sys.version_info < {OLDEST_PYTHON:?}: sys.exit(3)\nimport venv\nfrom ensurepip import version"
    );
    let status = Command::new(program).args(["-c", &script]).stderr(Stdio::null()).status();
    match status.map(|status| status.code()) {
        Ok(Some(0)) => Interpreter::Usable,
        Ok(Some(3)) => Interpreter::TooOld,
        Ok(Some(1)) => Interpreter::WithoutVenv,
        _ => Interpreter::Absent,
    }
}

/// The first interpreter that can create virtual environments.
///
/// On Debian, `venv` is a separate package, which this function installs if the process runs as
/// root.
fn find_python(output: &mut Output) -> Result<PathBuf> {
    let candidates: Vec<String> = ["python3".to_owned()]
        .into_iter()
        .chain((10..=20).rev().map(|minor| format!("python3.{minor}")))
        .chain(["/usr/bin/python3".to_owned()])
        .collect();
    let usable =
        || candidates.iter().find(|program| matches!(inspect_python(program), Interpreter::Usable));
    if let Some(program) = usable() {
        return Ok(program.into());
    }
    let without_venv = candidates
        .iter()
        .find(|program| matches!(inspect_python(program), Interpreter::WithoutVenv));
    let Some(without_venv) = without_venv else {
        let (major, minor) = OLDEST_PYTHON;
        bail!("no Python {major}.{minor} or newer found; on Debian: apt-get install python3-venv");
    };
    let why = format!("{without_venv} cannot create virtual environments (no `ensurepip`)");
    install_packages(output, &why, &["python3-venv"])?;
    match usable() {
        Some(program) => Ok(program.into()),
        None => {
            bail!("python3-venv is installed, but no interpreter can create a virtual environment")
        }
    }
}

/// The newest interpreter, from `PATH` or from pyenv, of another version than the interpreter of
/// the environment `venv`.
pub(crate) fn other_python(venv: &Venv) -> Option<PathBuf> {
    let usual = version(&venv.python())?;
    let pyenv = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(env::home_dir()?.join(".pyenv")));
    let installed = pyenv.and_then(|root| fs::read_dir(root.join("versions")).ok());
    (10..=20)
        .map(|minor| PathBuf::from(format!("python3.{minor}")))
        .chain(installed.into_iter().flatten().flatten().map(|it| it.path().join("bin/python3")))
        .filter(|program| matches!(inspect_python(program), Interpreter::Usable))
        .filter_map(|program| Some((version(&program)?, program)))
        .filter(|(version, _)| *version != usual)
        .max()
        .map(|(_, program)| program)
}

/// Major and minor version.
fn version(python: &Path) -> Option<(u32, u32)> {
    let script = "import sys; print(*sys.version_info[:2])";
    let output = Command::new(python).args(["-c", script]).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
