//! The archives of the corpora, and damaged copies of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder of the corpora, if present.
pub(crate) fn folder() -> Option<PathBuf> {
    let folder = match std::env::var_os("SPDL_CORPORA") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpora"),
    };
    if folder.join("MANIFEST.tsv").is_file() {
        return Some(folder);
    }
    println!("SKIPPED: corpora not present");
    None
}

/// The paths and contents of the files with one of these formats in the manifest.
pub(crate) fn files(folder: &Path, formats: &[&str]) -> Vec<(String, Vec<u8>)> {
    let manifest = fs::read_to_string(folder.join("MANIFEST.tsv")).unwrap();
    let mut files = Vec::new();
    for line in manifest.lines().skip(1) {
        let [corpus, format, _, _, _, path] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        if formats.contains(&format) {
            let path = format!("{corpus}/files/{path}");
            files.push((path.clone(), fs::read(folder.join(path)).unwrap()));
        }
    }
    assert!(!files.is_empty(), "the corpora hold none of {formats:?}");
    files
}

/// Runs a program with this standard input. Returns its standard output, whether it succeeded, and its
/// standard error; `None` if the program is not installed.
pub(crate) fn run(
    program: &str,
    arguments: &[&str],
    input: &[u8],
) -> Option<(Vec<u8>, bool, String)> {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").env("TZ", "UTC");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // The program may close its standard input early.
        scope.spawn(move || {
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().unwrap()
    });
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Some((output.stdout, output.status.success(), stderr))
}

/// The output of a Python script of this folder for these archives; `None` if Python is not installed.
pub(crate) fn run_python(
    script: &str,
    folder: &Path,
    archives: &[(String, Vec<u8>)],
) -> Option<String> {
    let paths: String =
        archives.iter().map(|(path, _)| format!("{}\n", folder.join(path).display())).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/archive").join(script);
    let python = std::env::var("SPDL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let Some((output, true, _)) = run(&python, &[script.to_str()?], paths.as_bytes()) else {
        println!("SKIPPED: python3 is not installed");
        return None;
    };
    Some(String::from_utf8(output).unwrap())
}

/// The files whose listing may differ from that of another program, and the class of each.
///
/// Lines are `class`, name and reason, or `file`, class name and path, separated by tabs.
pub(crate) fn exceptions(list: &'static str) -> BTreeMap<&'static str, &'static str> {
    let mut classes = Vec::new();
    let mut files = BTreeMap::new();
    for line in list.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["class", name, reason] => {
                assert!(reason.len() > 20, "class {name} needs a reason");
                classes.push(name);
            }
            ["file", name, path] => {
                assert!(classes.contains(&name), "{path} has an unknown class");
                assert!(files.insert(path, name).is_none(), "{path} is a duplicate");
            }
            _ => panic!("{line}"),
        }
    }
    files
}

/// A seeded random number generator (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// A damaged copy of a file: flipped bits, boundary values, removed, duplicated, zeroed or truncated parts.
pub(crate) fn mutant(file: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..1 + random.below(4) {
        let len = bytes.len();
        let at = random.below(len);
        let end = len.min(at + 1 + random.below(64));
        match random.below(8) {
            0 | 1 if len > 0 => bytes[at] ^= 1 << random.below(8),
            2 | 3 if len > 0 => {
                bytes[at] = [0, 1, 0x7F, 0x80, 0xFE, 0xFF, b'0', b'7'][random.below(8)]
            }
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(at..end)),
            6 => bytes[at..end].fill(0),
            7 => {
                let part = bytes[at..end].to_vec();
                let target = random.below(len);
                bytes.splice(target..target, part);
            }
            _ => bytes.push(random.below(256) as u8),
        }
    }
    bytes
}
