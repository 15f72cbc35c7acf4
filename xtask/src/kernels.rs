//! `cargo xtask kernels`: compiles the image kernels of `spdl-cuda` for CUDA devices.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::tools::{Output, Workspace, command};
use crate::venv::Venv;

/// Compile the CUDA kernels of spdl-cuda; report the registers and register spills of each.
///
/// The compiler, NVRTC, is a Python wheel of 90 MB that is installed into target/venv-kernels.
/// NVRTC needs neither a device nor a CUDA toolkit. The compiled kernels are committed in
/// spdl-cuda/kernels/built, so that builds do not need NVRTC. The command fails if a kernel spills
/// registers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask kernels              after a change of spdl-cuda/kernels
  cargo xtask kernels --check      fails if the compiled kernels of the repository are out of date")]
pub(crate) struct KernelsArguments {
    /// Compare the compiled kernels with the committed kernels, and replace none
    #[arg(long)]
    check: bool,
}

/// The oldest version of NVRTC that supports all architectures. Drivers of version 525 or newer run
/// the machine code of any CUDA 12, and compile PTX of their CUDA version and of older versions.
const NVRTC: &str = "nvidia-cuda-nvrtc-cu12==12.8.93";
/// Architectures to compile machine code for (`sm_`), and one to compile PTX for (`compute_`),
/// which newer devices need.
const ARCHITECTURES: [&str; 5] = ["sm_75", "sm_80", "sm_90", "sm_100", "compute_75"];
const SOURCES: &str = "spdl-cuda/kernels";
const BUILT: &str = "spdl-cuda/kernels/built";
const REPORT: &str = "report.tsv";

/// Resource use of a kernel, as reported by the compiler.
#[derive(Debug, PartialEq)]
struct Kernel {
    name: String,
    registers: u32,
    shared_bytes: u32,
    spilled_bytes: u32,
}

pub(crate) fn run(workspace: &Workspace, arguments: &KernelsArguments) -> Result<()> {
    let output = &mut Output::Terminal;
    let venv = Venv::prepare(workspace, output, "venv-kernels", &[NVRTC])?;
    let folder = workspace.target.join("kernels");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", shown(&folder)))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", shown(&folder)))?;
    let sources = workspace.root.join(SOURCES);
    let script = sources.join("compile.py");
    // This option prevents Python from writing a `__pycache__` folder next to the script.
    let compiled = command(venv.python())
        .arg("-B")
        .args([&script, &folder])
        .args(ARCHITECTURES)
        .output()
        .context("cannot run Python")?;
    let words = String::from_utf8_lossy(&compiled.stderr);
    ensure!(compiled.status.success(), "the kernels do not compile:\n{}", words.trim());
    let nvrtc: Value = serde_json::from_slice(&compiled.stdout)?;
    let report = report(&nvrtc, &hash_of_sources(&sources)?)?;
    print!("{report}");
    fs::write(folder.join(REPORT), &report)?;
    let built = workspace.root.join(BUILT);
    if arguments.check {
        return compare(&folder, &built);
    }
    fs::create_dir_all(&built).with_context(|| format!("cannot create {}", shown(&built)))?;
    for file in files(&folder)? {
        fs::copy(folder.join(&file), built.join(&file))
            .with_context(|| format!("cannot write {file} to {}", shown(&built)))?;
    }
    println!("written to {BUILT}");
    Ok(())
}

/// The report, as tab-separated values.
///
/// The first line contains a hash of the sources, the second line the version of the compiler, and
/// the third line the names of the columns. Each further line describes one kernel for one
/// architecture.
///
/// # Errors
/// If a kernel spills registers, or if the compiler log of a machine-code architecture lists no
/// kernels.
fn report(nvrtc: &Value, hash: &str) -> Result<String> {
    let mut report = format!("source\t{hash}\nnvrtc\t{}\n", nvrtc["nvrtc"].as_str().unwrap_or("?"));
    report.push_str("architecture\tkernel\tregisters\tshared bytes\tspilled bytes\n");
    for architecture in ARCHITECTURES {
        let log = nvrtc["logs"][architecture].as_str().unwrap_or_default();
        let kernels = kernels(log)?;
        if architecture.starts_with("sm_") && kernels.is_empty() {
            bail!("the compiler log for {architecture} lists no kernels:\n{log}");
        }
        for Kernel { name, registers, shared_bytes, spilled_bytes } in kernels {
            ensure!(
                spilled_bytes == 0,
                "{name} for {architecture} spills {spilled_bytes} bytes of registers into memory"
            );
            writeln!(
                report,
                "{architecture}\t{name}\t{registers}\t{shared_bytes}\t{spilled_bytes}"
            )?;
        }
    }
    Ok(report)
}

/// The kernels in the log of the assembler (`ptxas`), sorted by name.
fn kernels(log: &str) -> Result<Vec<Kernel>> {
    let mut kernels = Vec::<Kernel>::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            kernels.push(Kernel { name, registers: 0, shared_bytes: 0, spilled_bytes: 0 });
        } else if let Some(kernel) = kernels.last_mut() {
            // "…, 0 bytes spill stores, 0 bytes spill loads", "Used 64 registers, …, 128 bytes smem".
            for part in line.split([',', ':', '.']) {
                let words: Vec<&str> = part.split_whitespace().collect();
                match words[..] {
                    [count, "bytes", "spill", _] => kernel.spilled_bytes += count.parse::<u32>()?,
                    ["Used", count, "registers"] => kernel.registers = count.parse()?,
                    [count, "bytes", "smem"] => kernel.shared_bytes = count.parse()?,
                    _ => {}
                }
            }
        }
    }
    if let Some(kernel) = kernels.iter().find(|kernel| kernel.registers == 0) {
        bail!("the compiler log lacks the register count of {}:\n{log}", kernel.name);
    }
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(kernels)
}

/// Fails if the two folders contain different files.
fn compare(made: &Path, built: &Path) -> Result<()> {
    let (expected, found) = (files(made)?, files(built)?);
    ensure!(expected == found, "expected the files {expected:?} in {BUILT}, found {found:?}");
    for file in &expected {
        ensure!(
            fs::read(made.join(file))? == fs::read(built.join(file))?,
            "{BUILT}/{file} differs from the output of NVRTC; run: cargo xtask kernels"
        );
    }
    println!("{BUILT} is up to date");
    Ok(())
}

/// The names of the files in a folder, sorted.
fn files(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", shown(folder)))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

/// An error message if the sources have changed since the kernels were compiled.
pub(crate) fn stale(root: &Path) -> Result<Option<String>> {
    let hash = hash_of_sources(&root.join(SOURCES))?;
    let report = fs::read_to_string(root.join(BUILT).join(REPORT)).unwrap_or_default();
    let is_fresh = report.lines().next() == Some(&format!("source\t{hash}"));
    let sentence = || format!("{BUILT} is out of date with {SOURCES}; run: cargo xtask kernels");
    Ok((!is_fresh).then(sentence))
}

/// A hash (FNV-1a) of the compiler's package version, the architectures and the source files.
fn hash_of_sources(folder: &Path) -> Result<String> {
    let is_compiled = |name: &str| {
        let path = PathBuf::from(name);
        let ending = path.extension().is_some_and(|e| ["cu", "h", "py"].iter().any(|of| e == *of));
        // The CPU tests include this header to compile the kernels for the host.
        ending && name != "host_shim.h"
    };
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut take = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    take(NVRTC.as_bytes());
    ARCHITECTURES.iter().for_each(|architecture| take(architecture.as_bytes()));
    for name in files(folder)?.iter().filter(|name| is_compiled(name)) {
        take(name.as_bytes());
        take(&fs::read(folder.join(name))?);
    }
    Ok(format!("{hash:016x}"))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LOG: &str = "\
ptxas info    : Compiling entry function 'b' for 'sm_90'
ptxas info    : Function properties for b
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 13248 bytes smem, 360 bytes cmem[0]
ptxas info    : Compiling entry function 'a' for 'sm_90'
ptxas info    : Function properties for a
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
";

    #[test]
    fn registers_and_spills_are_read_from_the_assembler_output() {
        let kernel = |name: &str, registers, shared_bytes, spilled_bytes| Kernel {
            name: name.to_owned(),
            registers,
            shared_bytes,
            spilled_bytes,
        };
        assert_eq!(kernels(LOG).unwrap(), [kernel("a", 255, 0, 20), kernel("b", 64, 13248, 0)]);
        assert!(kernels("ptxas info : Compiling entry function 'a' for 'sm_90'").is_err());
    }

    #[test]
    fn a_kernel_that_spills_and_missing_output_are_errors() {
        let nvrtc = |log: &str| {
            let logs: serde_json::Map<String, Value> =
                ARCHITECTURES.iter().map(|of| ((*of).to_owned(), json!(log))).collect();
            json!({"nvrtc": "12.8", "logs": logs})
        };
        let (sound, _) = LOG.split_once("ptxas info    : Compiling entry function 'a'").unwrap();
        let text = report(&nvrtc(sound), "00ff").unwrap();
        assert!(text.starts_with("source\t00ff\nnvrtc\t12.8\n"), "{text}");
        assert!(text.contains("\nsm_90\tb\t64\t13248\t0\n"), "{text}");
        let error = report(&nvrtc(LOG), "").unwrap_err().to_string();
        assert!(error.contains("a for sm_75 spills 20 bytes"), "{error}");
        assert!(report(&nvrtc(""), "").is_err());
    }

    #[test]
    fn compiled_kernels_are_stale_after_a_source_change() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("spdl-cuda/kernels/image.cu", "one");
        write("spdl-cuda/kernels/host_shim.h", "one");
        assert!(stale(folder.path()).unwrap().is_some(), "nothing is compiled");
        let hash = hash_of_sources(&folder.path().join(SOURCES)).unwrap();
        write("spdl-cuda/kernels/built/report.tsv", &format!("source\t{hash}\nnvrtc\t12.8\n"));
        assert_eq!(stale(folder.path()).unwrap(), None);
        write("spdl-cuda/kernels/host_shim.h", "two");
        assert_eq!(stale(folder.path()).unwrap(), None);
        write("spdl-cuda/kernels/image.cu", "two");
        assert!(stale(folder.path()).unwrap().is_some());
    }
}
