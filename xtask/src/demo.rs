//! `cargo xtask demo`: creates a data set from photographs and loads it as training batches.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::dataset::{self, Settings, Shape};
use crate::tools::{Output, Workspace, cargo, command};

/// Create a data set of JPEGs, load it as training batches, and report the speed.
///
/// The data set consists of random crops of the photographs in assets/photos; image and file sizes
/// are similar to those of ImageNet. The data set is kept in target/demo and reused for the same
/// settings. Then the command builds `spdl` with the profile `demo-build`, which compiles faster than
/// `release`, and runs `spdl bench`; the report is target/demo/report.html.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask demo
  cargo xtask demo --images 200 --classes 10      fewer images, to be faster
  cargo xtask demo --mode eval --epochs 1         resize and centre crop, as for validation")]
pub(crate) struct DemoArguments {
    /// Number of images in the data set
    #[arg(long, default_value_t = 2000)]
    images: u32,
    /// Number of classes; each class is a folder
    #[arg(long, default_value_t = 50)]
    classes: u32,
    /// Number of epochs
    #[arg(long, default_value_t = 3)]
    epochs: u32,
    /// Seed of the data set, and of the order, crops and flips of the images
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// train: random resized crop and horizontal flip; eval: resize and centre crop
    #[arg(long, value_enum, default_value_t = Mode::Train)]
    mode: Mode,
}

/// How images are cropped to one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Train,
    Eval,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Train => "train",
            Mode::Eval => "eval",
        }
    }
}

pub(crate) fn run(workspace: &Workspace, arguments: &DemoArguments) -> Result<()> {
    let folder = workspace.target.join("demo");
    let DemoArguments { images, classes, seed, epochs, mode } = *arguments;
    let settings = Settings { shape: Shape::Imagenet, images, classes, seed };
    let data = dataset::prepare(&workspace.root.join("assets/photos"), &folder, settings)?;

    build(workspace, PROFILE)?;

    let report = folder.join("report.html");
    if report.exists() {
        std::fs::remove_file(&report)?;
    }
    let mut bench = command(workspace.program(PROFILE, "spdl"));
    bench
        .arg("bench")
        .arg(workspace.shown(&data))
        .args(["--mode", mode.name(), "--epochs", &epochs.to_string(), "--seed", &seed.to_string()])
        .arg("--report")
        .arg(workspace.shown(&report))
        .current_dir(&workspace.root);
    Output::Terminal.run(&mut bench)?;
    ensure!(report.is_file(), "`spdl bench` succeeded but wrote no {}", report.display());
    Ok(())
}

/// The build profile of the demo.
const PROFILE: &str = "demo-build";

/// Builds the `spdl` program in release mode.
pub(crate) fn build_spdl(workspace: &Workspace) -> Result<()> {
    build(workspace, "release")
}

fn build(workspace: &Workspace, profile: &str) -> Result<()> {
    let mut cargo = cargo();
    cargo.args(["build", "--profile", profile, "-p", "spdl-cli"]);
    Output::Terminal.run(cargo.current_dir(&workspace.root))
}
