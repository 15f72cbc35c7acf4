//! Runs the kernels on the host.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use spdl_core::DType;
use spdl_cuda::kernels::{BatchTable, ResizePlan, SampleFormat};

use crate::picture::Picture;
use crate::reference::Case;

/// What memory holds before it is written.
pub(crate) const UNWRITTEN: u8 = 0xA5;

/// Buffers at addresses as the host's program takes them.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    buffers: Vec<Vec<u8>>,
}

impl Memory {
    /// Puts bytes into a buffer of their own, and returns its address.
    pub(crate) fn add(&mut self, bytes: Vec<u8>) -> u64 {
        self.buffers.push(bytes);
        (self.buffers.len() as u64) << 40
    }

    /// Adds a buffer that is to be written.
    pub(crate) fn add_output(&mut self, bytes: u64) -> u64 {
        self.add(vec![UNWRITTEN; bytes as usize])
    }

    /// Runs a table's launches and returns the last buffer.
    pub(crate) fn run(&self, table: BatchTable) -> Option<Vec<u8>> {
        let program = program()?;
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
        let mut child = Command::new(program)
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
        let written = writer.join().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && words.is_empty(), "{}\n{words}", output.status);
        written.unwrap();
        Some(output.stdout)
    }
}

/// Compiles the kernels once. `None`, said, where there is no compiler.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let compiler = env::var_os("CXX").unwrap_or_else(|| "g++".into());
        Command::new(&compiler).arg("--version").output().ok()?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let program = folder.join("kernels-host");
        // Under a name of this process first: another one may be running the old program.
        let fresh = folder.join(format!("kernels-host.{}", std::process::id()));
        let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/host_main.cpp");
        let output = Command::new(&compiler)
            .args(["-std=c++17", "-O2", "-g1", "-Wall", "-Wextra", "-Werror"])
            .args(["-Wno-unknown-pragmas", "-ffp-contract=off"])
            .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o"])
            .args([&fresh, &main])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::rename(&fresh, &program).unwrap();
        Some(program)
    });
    if program.is_none() {
        println!("SKIPPED: no C++ compiler");
    }
    program.as_deref()
}

/// Makes a sample of one picture.
pub(crate) fn run_one(picture: &Picture, case: &Case, format: &SampleFormat) -> Option<Vec<u8>> {
    run_plan(picture, case, &case.plan(), format)
}

/// The same with another plan for the case.
pub(crate) fn run_plan(
    picture: &Picture,
    case: &Case,
    plan: &ResizePlan,
    format: &SampleFormat,
) -> Option<Vec<u8>> {
    let mut memory = Memory::default();
    let image = picture.upload(&mut memory).siting(case.siting);
    let mut table = BatchTable::new(format).unwrap();
    let output = memory.add_output(format.bytes());
    table.push(&image, plan, output).unwrap();
    memory.run(table)
}

/// Values from 0 to 255 of 32 bits, as they are.
pub(crate) fn plain(width: u32, height: u32) -> SampleFormat {
    SampleFormat::new(width, height).dtype(DType::F32).normalization([0.0; 3], [1.0 / 255.0; 3])
}

/// Values of 32 bits.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    values.iter().map(|value| f32::from_ne_bytes(*value)).collect()
}
