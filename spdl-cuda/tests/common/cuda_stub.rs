//! A stub of libcuda that runs the kernels on the host.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::{c_int, c_long, c_uint};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::Library as Opened;

use super::stub_library::{RUNS_KERNELS, compile};

/// The stub with the kernels.
pub(crate) struct Cuda {
    pub(crate) path: PathBuf,
    opened: Opened,
}

/// Compiles the stub once. Without a C++ compiler, prints `SKIPPED` and returns `None`.
pub(crate) fn cuda() -> Option<&'static Cuda> {
    static CUDA: OnceLock<Option<Cuda>> = OnceLock::new();
    let cuda = CUDA.get_or_init(|| {
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
        Command::new(&compiler).arg("--version").output().ok()?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = folder.join(format!("libcuda-{}.so.1", std::process::id()));
        let object = compile("gcc", &["-c"], &[Path::new("cuda.c")], &path.with_extension("o"));
        compile(&compiler, &RUNS_KERNELS, &[Path::new("kernels.cpp"), &object], &path);
        // SAFETY: the stub has no initialisers.
        let opened = unsafe { Opened::new(&path) }.unwrap();
        Some(Cuda { path, opened })
    });
    if cuda.is_none() {
        println!("SKIPPED: no C++ compiler");
    }
    cuda.as_ref()
}

impl Cuda {
    fn function<F: Copy>(&self, name: &[u8]) -> F {
        // SAFETY: each caller gives the type that the C file declares.
        *unsafe { self.opened.get::<F>(name) }.unwrap()
    }

    /// Makes a call fail, counted from 0 at this point.
    pub(crate) fn fail(&self, call: c_long, code: c_uint) {
        self.function::<extern "C" fn(c_long, c_uint)>(b"stub_fail")(call, code);
    }

    pub(crate) fn calls(&self) -> c_long {
        self.function::<extern "C" fn() -> c_long>(b"stub_calls")()
    }

    /// Counts of contexts, current contexts, streams, events, device memory, pinned memory, modules.
    pub(crate) fn live_resources(&self) -> [c_long; 7] {
        let live_resources = self.function::<extern "C" fn(c_int) -> c_long>(b"stub_ledger");
        [0, 1, 2, 3, 4, 5, 6].map(|kind| live_resources(kind))
    }
}
