//! Runs the kernels on the host.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use spdl_core::DType;
use spdl_cuda::kernels::{BatchTable, ResizePlan};

use crate::picture::Picture;
use crate::reference::Case;
use spdl_media::transform::TensorSpec;
use spdl_media::{ImageTransform, Size};

/// The initial bytes of output buffers.
pub(crate) const UNWRITTEN: u8 = 0xA5;

/// Buffers with addresses in the format of `host_main.cpp`.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    buffers: Vec<Vec<u8>>,
}

impl Memory {
    /// Adds a buffer with these bytes, and returns its address.
    pub(crate) fn add(&mut self, bytes: Vec<u8>) -> u64 {
        self.buffers.push(bytes);
        (self.buffers.len() as u64) << 40
    }

    /// Adds an output buffer.
    pub(crate) fn add_output(&mut self, bytes: u64) -> u64 {
        self.add(vec![UNWRITTEN; bytes as usize])
    }

    /// Runs the launches of a table, and returns the last buffer. `None` without a compiler.
    pub(crate) fn run(&self, table: BatchTable) -> Option<Vec<u8>> {
        let output = self.output_of(program()?, table);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{}\n{errors}", output.status);
        Some(output.stdout)
    }

    /// Returns the report of the sanitizers for a table with invalid accesses. `None` without sanitizers.
    pub(crate) fn run_expecting_failure(&self, table: BatchTable) -> Option<String> {
        let output = self.output_of(program().filter(|program| program.is_sanitized)?, table);
        assert!(!output.status.success(), "invalid access not detected");
        Some(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn output_of(&self, program: &Program, table: BatchTable) -> Output {
        let (entries, launches) = table.finish();
        let mut input = Vec::new();
        let number = |input: &mut Vec<u8>, number: u64| input.extend(number.to_ne_bytes());
        let bytes = |input: &mut Vec<u8>, bytes: &[u8]| {
            number(input, bytes.len() as u64);
            input.extend_from_slice(bytes);
        };
        number(&mut input, self.buffers.len() as u64);
        self.buffers.iter().for_each(|buffer| bytes(&mut input, buffer));
        bytes(&mut input, &entries);
        number(&mut input, launches.len() as u64);
        for launch in &launches {
            assert_eq!(launch.block, [256, 1, 1]);
            bytes(&mut input, launch.function().as_bytes());
            number(&mut input, launch.argument(0));
            launch.grid.iter().for_each(|&blocks| number(&mut input, blocks.into()));
        }
        number(&mut input, 1);
        let mut child = Command::new(&program.path)
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env("UBSAN_OPTIONS", "print_stacktrace=1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        // The write fails if the program ends early, which its output reports.
        let _ = writer.join().unwrap();
        output
    }
}

/// The kernels as a program.
struct Program {
    path: PathBuf,
    is_sanitized: bool,
}

/// Compiler options of the sanitizers.
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Whether the compiler supports the sanitizers. If not, prints `SKIPPED`.
fn has_sanitizers(compiler: &OsStr, folder: &Path) -> bool {
    let source = folder.join(format!("sanitized.{}.cpp", std::process::id()));
    let program = source.with_extension("");
    fs::write(&source, "int main() {}").unwrap();
    let output =
        Command::new(compiler).args(SANITIZERS).arg("-o").args([&program, &source]).output();
    let output = output.unwrap();
    if !output.status.success() {
        println!("SKIPPED: no sanitizers: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

/// Compiles the kernels once. Without a C++ compiler, prints `SKIPPED` and returns `None`.
fn program() -> Option<&'static Program> {
    static PROGRAM: OnceLock<Option<Program>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let compiler = env::var_os("CXX").unwrap_or_else(|| "g++".into());
        Command::new(&compiler).arg("--version").output().ok()?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = folder.join("kernels-host");
        // Renamed after compilation, because another process may be running the old program.
        let fresh = folder.join(format!("kernels-host.{}", std::process::id()));
        let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/host_main.cpp");
        let is_sanitized = has_sanitizers(&compiler, folder);
        let sanitizers: &[&str] = if is_sanitized { &SANITIZERS } else { &[] };
        let output = Command::new(&compiler)
            .args(["-std=c++17", "-O2", "-g1", "-Wall", "-Wextra", "-Werror"])
            .args(["-Wno-unknown-pragmas", "-ffp-contract=off"])
            .args(sanitizers)
            .arg("-o")
            .args([&fresh, &main])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::rename(&fresh, &path).unwrap();
        Some(Program { path, is_sanitized })
    });
    if program.is_none() {
        println!("SKIPPED: no C++ compiler");
    }
    program.as_ref()
}

/// Makes a sample of one picture. `None` without a compiler.
pub(crate) fn run_one(picture: &Picture, case: &Case, format: &TensorSpec) -> Option<Vec<u8>> {
    run_plan(picture, case, &case.plan(), format)
}

/// As [`run_one`], with a different plan.
pub(crate) fn run_plan(
    picture: &Picture,
    case: &Case,
    plan: &ResizePlan,
    format: &TensorSpec,
) -> Option<Vec<u8>> {
    let mut memory = Memory::default();
    let image = picture.upload(&mut memory).siting(case.siting);
    let mut table = BatchTable::new(format).unwrap();
    let output = memory.add_output(format.bytes());
    table.push(&image, plan, output).unwrap();
    memory.run(table)
}

/// Samples of `f32` from 0 to 255, not normalised.
pub(crate) fn plain(width: u32, height: u32) -> TensorSpec {
    *ImageTransform::with_size(Size::new(width, height))
        .dtype(DType::F32)
        .normalization([0.0; 3], [1.0 / 255.0; 3])
        .tensor()
}

/// The `f32` values of the bytes.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    values.iter().map(|value| f32::from_ne_bytes(*value)).collect()
}
