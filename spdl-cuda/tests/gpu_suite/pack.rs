//! A pack for tests of the program, and the results of a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use super::stub_library::{RUNS_KERNELS, compile};

/// A folder with the structure of `cargo xtask gpu --pack`, for scripts of the tests.
pub(crate) struct Pack {
    folder: TempDir,
}

impl Pack {
    /// Creates a pack. `None` if cargo has not built the example.
    pub(crate) fn new() -> Option<Pack> {
        let test = std::env::current_exe().unwrap();
        let program = test.ancestors().nth(2).unwrap().join("examples/gpu");
        if !program.is_file() {
            println!("SKIPPED: the example gpu is not built");
            return None;
        }
        let pack = Pack { folder: tempfile::tempdir().unwrap() };
        fs::copy(program, pack.path("run")).unwrap();
        fs::write(pack.path("commit"), "0123456789ab\n").unwrap();
        for folder in ["tests", "python"] {
            fs::create_dir(pack.path(folder)).unwrap();
        }
        // In place of Python: runs the script, its second argument, in this shell.
        pack.executable("shell", "#!/bin/sh\n. \"$2\"\n");
        Some(pack)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn executable(&self, name: &str, text: &str) {
        // Another process writes the program: a descriptor that this process has open for writing
        // may be inherited by the children of other tests, and then the program cannot be run.
        let source = self.path("text");
        fs::write(&source, text).unwrap();
        let install =
            Command::new("install").args(["-m", "755"]).arg(source).arg(self.path(name)).status();
        assert!(install.unwrap().success());
    }

    /// Compiles the stub driver, which runs the kernels of `stub/kernels.c`, and optionally those for images.
    pub(crate) fn driver(&self, with_kernels: bool) -> PathBuf {
        let renamed = [
            "cuInit",
            "cuCtxPushCurrent_v2",
            "cuStreamSynchronize",
            "cuMemAlloc_v2",
            "cuMemFree_v2",
            "cuModuleGetFunction",
            "cuLaunchKernel",
        ];
        let renamed = renamed.map(|name| format!("-D{name}=plain_{name}"));
        let options: Vec<&str> =
            std::iter::once("-c").chain(renamed.iter().map(String::as_str)).collect();
        let plain = compile("gcc", &options, &[Path::new("cuda.c")], &self.path("cuda.o"));
        let whole = self.path(if with_kernels { "libcuda-kernels.so.1" } else { "libcuda.so.1" });
        if !with_kernels {
            return compile("gcc", &["-shared"], &[Path::new("kernels.c"), &plain], &whole);
        }
        let own = compile("gcc", &["-c"], &[Path::new("kernels.c")], &self.path("kernels.o"));
        compile("g++", &RUNS_KERNELS, &[Path::new("kernels.cpp"), &own, &plain], &whole)
    }

    /// The command of the program with the stub driver.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("run"));
        command
            .args(words)
            .env("SPDL_CUDA_DRIVER", self.driver(false))
            .env("SPDL_NVJPEG", "no-such-library.so")
            .env("SPDL_NVCUVID", "no-such-library.so")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("SPDL_REQUIRE_GPU");
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// The lines of `results.jsonl`.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("results/results.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn python(&self) -> String {
        self.path("shell").display().to_string()
    }
}

pub(crate) fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

/// Measurement, program and outcome of each part.
pub(crate) fn ends(lines: &[Value]) -> Vec<(&str, &str, &str)> {
    of_kind(lines, "end")
        .into_iter()
        .map(|line| {
            let word = |name: &str| line[name].as_str().unwrap_or("?");
            (word("measurement"), word("program"), word("outcome"))
        })
        .collect()
}
