//! Stubs of NVIDIA's libraries, compiled from the files in `tests/stub`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiler options of the libcuda stub with the kernels. Without contraction, they round as on a device.
pub(crate) const RUNS_KERNELS: [&str; 5] =
    ["-shared", "-std=c++17", "-O2", "-Wno-unknown-pragmas", "-ffp-contract=off"];

/// Compiles files of that folder, or others by absolute path, to `to`.
pub(crate) fn compile(
    compiler: impl AsRef<OsStr>,
    options: &[&str],
    sources: &[&Path],
    to: &Path,
) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stub");
    let output = Command::new(compiler)
        .args(["-fPIC", "-O1", "-Wall"])
        .args(options)
        .arg("-o")
        .arg(to)
        .args(sources.iter().map(|source| folder.join(source)))
        .output()
        .expect("gcc is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to.to_owned()
}

/// Compiles a stub to a shared library of this process.
pub(crate) fn library(source: &str, name: &str, options: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let to = folder.join(format!("{name}-{}.so", std::process::id()));
    compile("gcc", &[&["-shared"], options].concat(), &[Path::new(source)], &to)
}
