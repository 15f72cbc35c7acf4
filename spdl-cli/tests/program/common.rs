//! Folders of small images, and functions that run the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A temporary folder.
pub(crate) struct Folder(TempDir);

impl Folder {
    /// Creates an empty folder.
    pub(crate) fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    /// Creates a folder with `images` different small images in `classes` classes.
    pub(crate) fn with_images(images: u32, classes: u32) -> Self {
        let folder = Folder::new();
        for number in 0..images {
            folder.add(image_name(number, classes), &png(number));
        }
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file, and creates its parent folders.
    pub(crate) fn add(&self, name: impl AsRef<Path>, bytes: &[u8]) {
        let path = self.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// `class-1/0007.png`, in the order of the numbers within a class.
pub(crate) fn image_name(number: u32, classes: u32) -> String {
    format!("class-{}/{number:04}.png", number % classes)
}

/// A different image for each number, about 40 × 30 pixels.
pub(crate) fn png(number: u32) -> Vec<u8> {
    let (width, height) = (40 + number % 7, 30 + number % 5);
    let pixels: Vec<u8> = (0..height)
        .flat_map(|y| (0..width).map(move |x| (x, y)))
        .flat_map(|(x, y)| [x * 5 + number * 37, y * 7 + number * 11, x * y + number])
        .map(|value| (value % 256) as u8)
        .collect();
    encode(width, height, &pixels)
}

/// An image of one colour, so that all crops and flips are equal.
pub(crate) fn flat_png(number: u32) -> Vec<u8> {
    let colour = [number * 3, number * 5, number * 7].map(|value| (value % 256) as u8);
    encode(32, 32, &colour.repeat(32 * 32))
}

/// Encodes RGB pixels as PNG.
pub(crate) fn encode(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    bytes
}

/// Four kinds of invalid image files: a truncated image, random bytes,
/// an empty file, and text.
pub(crate) fn damaged(number: u32) -> Vec<u8> {
    match number % 4 {
        0 => {
            let whole = png(number);
            whole[..whole.len() * 2 / 3].to_vec()
        }
        1 => (0..1000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect(),
        2 => Vec::new(),
        _ => b"This is not an image.\n".to_vec(),
    }
}

/// The result of a run of the program.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// The one JSON object on standard output.
    pub(crate) fn json(&self) -> serde_json::Map<String, serde_json::Value> {
        assert_eq!(self.code, 0, "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// The one line on standard error.
    pub(crate) fn line(&self) -> &str {
        let mut lines = self.stderr.lines();
        let line = lines.next().unwrap_or_default();
        assert_eq!(lines.next(), None, "more than one line: {}", self.stderr);
        line
    }
}

/// The program under test.
pub(crate) fn spdl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spdl"));
    // Without these variables, the program sets them and executes itself, which links all libraries twice.
    command.envs(spdl_cli::allocator_settings());
    // The variable enables panic messages of stages.
    command.env_remove("RUST_BACKTRACE");
    command
}

/// Runs `spdl bench FOLDER` with small images, so that a test takes little time.
pub(crate) fn bench(folder: &Path, arguments: &[&str]) -> Run {
    let mut command = spdl();
    command.arg("bench").arg(folder).args(["--size", "24", "--batch", "16"]).args(arguments);
    finish(command.output().unwrap())
}

/// Runs a command line in a shell with a function `spdl`.
pub(crate) fn by_shell(line: &str, environment: &[(&str, String)]) -> Run {
    let script = format!("spdl() {{ \"$SPDL_PROGRAM\" \"$@\"; }}\n{line}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("SPDL_PROGRAM", env!("CARGO_BIN_EXE_spdl"));
    shell.env_remove("RUST_BACKTRACE").envs(spdl_cli::allocator_settings());
    shell.envs(environment.iter().cloned());
    finish(shell.output().unwrap())
}

/// The command in a message: between backticks, or on a separate indented line.
pub(crate) fn command_in(text: &str) -> String {
    let of_line = |line: &str| line.strip_prefix("    spdl ").map(|rest| format!("spdl {rest}"));
    let quoted = || {
        let (_, rest) = text.split_once("`spdl ")?;
        Some(format!("spdl {}", rest.split_once('`')?.0))
    };
    let command = text.lines().find_map(of_line).or_else(quoted);
    command.unwrap_or_else(|| panic!("no command in: {text}"))
}

/// The output as text.
pub(crate) fn finish(output: Output) -> Run {
    Run {
        code: output.status.code().expect("killed by a signal"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
