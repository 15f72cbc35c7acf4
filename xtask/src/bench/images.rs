//! `cargo xtask bench images`: measures how fast JPEG files are loaded as batches, by our loader
//! and by common Python loaders.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use super::contest::{self, Contestant};
use super::peers::{self, Peer, PeerTask};
use super::{plot, promises, shares, table};
use crate::dataset::{self, Settings, Shape};
use crate::demo::{Mode, build_spdl};
use crate::tools::Workspace;

/// Measure how fast our loader and common Python loaders load JPEG files as batches of 32 x 224 x
/// 224 x 3 unsigned bytes.
///
/// Each of the other loaders (peers) does the same work on the same files, with two exceptions that
/// the table marks: libjpeg-turbo only decodes (whole files in memory), and tf.data without
/// antialiasing delivers different pixels. Peers are installed into environments below target/; a
/// peer that cannot be installed or run is listed with the reason. Each loader runs once to warm
/// up; then the runs are interleaved (A B C A B C), and medians are shown. The time of a peer
/// includes the start of its workers, but no imports. The memory of a loader is the peak of the
/// proportional set size (PSS) of its processes, sampled every 100 ms.
///
/// The command writes a table, a plot and the time of each decoding step to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench images
  cargo xtask bench images --mode train --all-peers --check
  cargo xtask bench images --photos --peers libjpeg-turbo,simplejpeg-scaled --check
  cargo xtask bench images --all-peers                        downloads gigabytes: torch, TensorFlow
  cargo xtask bench images --peers libjpeg-turbo,spdl,dali
  cargo xtask bench images --data /data/imagenet/val --epochs 1 --out imagenet.md")]
pub(crate) struct Images {
    /// Number of images in the demo data set [default: 2000; with --photos: 100]
    #[arg(long, conflicts_with = "data", value_parser = clap::value_parser!(u32).range(1..))]
    images: Option<u32>,
    /// Use photographs of 2 to 12 megapixels instead of images of the sizes in ImageNet
    #[arg(long, conflicts_with = "data")]
    photos: bool,
    /// Use this folder, with one subfolder of JPEG files per class, instead of the demo data set;
    /// requires --out or --print-only
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Number of measured runs of each loader
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Number of epochs in each run
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// eval: resize and centre crop; train: random resized crop and horizontal flip
    #[arg(long, value_enum, default_value_t = Mode::Eval)]
    mode: Mode,
    /// Number of threads or processes of each peer [default: number of CPUs + 1, which was fastest
    /// in our measurements]
    #[arg(long)]
    workers: Option<usize>,
    /// Other loaders to measure [default: libjpeg-turbo,pillow,simplejpeg]
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_enum)]
    peers: Vec<Peer>,
    /// Compare with all loaders that --peers accepts
    #[arg(long, conflicts_with = "peers")]
    all_peers: bool,
    /// Python interpreter with torch, torchvision, numpy and Pillow; if given, torch and
    /// torchvision are not installed
    #[arg(long, value_name = "PROGRAM")]
    torch_python: Option<PathBuf>,
    /// Fail if a figure misses its promised value or was not measured
    #[arg(long, conflicts_with = "data")]
    check: bool,
    /// With --check, do not fail for figures that were not measured
    #[arg(long, requires = "check")]
    allow_unmeasured: bool,
    /// Markdown file to write; the plot has the same name with the extension svg [default:
    /// images-MODE.md or, with --photos, photos-MODE.md in docs/benchmarks]
    #[arg(long, value_name = "FILE", conflicts_with = "print_only")]
    out: Option<PathBuf>,
    /// Print the results, but do not update docs/benchmarks
    #[arg(long)]
    print_only: bool,
    /// Do not measure the time of each decoding step
    #[arg(long)]
    no_shares: bool,
}

const OURS: &str = "SPDL in Rust";
pub(super) const OUR_FLOATS: &str = "SPDL in Rust, normalised float32 planes";
pub(super) const OUR_EVAL: &str = "SPDL in Rust, eval crop";

pub(super) fn run(workspace: &Workspace, arguments: &Images) -> Result<()> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let workers = arguments.workers.unwrap_or(cpus + 1);
    ensure!(
        arguments.data.is_none() || arguments.out.is_some() || arguments.print_only,
        "--data needs --out FILE or --print-only"
    );
    let data = match &arguments.data {
        Some(data) => fs::canonicalize(data)
            .with_context(|| format!("cannot find the data set {}", data.display()))?,
        None => {
            let (shape, usual) = match arguments.photos {
                true => (Shape::Photographs, 100),
                false => (Shape::Imagenet, 2000),
            };
            let images = arguments.images.unwrap_or(usual);
            let settings = Settings { shape, images, classes: images.clamp(1, 50), seed: 0 };
            let photos = workspace.root.join("assets/photos");
            dataset::prepare(&photos, &workspace.target.join("demo"), settings)?
        }
    };
    build_spdl(workspace)?;

    let mut contestants = vec![ours(workspace, arguments, &data, OURS, arguments.mode, "nhwc-u8")];
    if !arguments.photos {
        contestants.push(ours(workspace, arguments, &data, OUR_FLOATS, arguments.mode, "nchw-f32"));
    }
    if arguments.mode == Mode::Train {
        contestants.push(ours(workspace, arguments, &data, OUR_EVAL, Mode::Eval, "nhwc-u8"));
    }
    let chosen = match (arguments.all_peers, &arguments.peers[..]) {
        (true, _) => Peer::value_variants(),
        (false, []) => &Peer::DEFAULT[..],
        (false, peers) => peers,
    };
    let task = PeerTask {
        data: &data,
        mode: arguments.mode.name(),
        epochs: arguments.epochs,
        workers,
        torch_python: arguments.torch_python.as_deref(),
    };
    contestants.extend(peers::prepare(workspace, chosen, &task)?);
    contest::measure_all(&mut contestants, arguments.repeats)?;

    let table = table::of_medians(&contestants, "images/s");
    println!("\n{table}");
    let figures = if arguments.no_shares { None } else { shares::measure(workspace, &data) };
    let shares = figures.as_deref().map(shares::table);
    if let Some(shares) = &shares {
        println!("{shares}");
    }
    if !arguments.print_only {
        let kind = if arguments.photos { "photos" } else { "images" };
        let name = format!("docs/benchmarks/{kind}-{}.md", arguments.mode.name());
        let page = arguments.out.clone().unwrap_or_else(|| workspace.root.join(name));
        let plot = page.with_extension("svg");
        table::write(&plot, &picture(arguments, &contestants))?;
        let plot_name = plot.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = Report { arguments, contestants: &contestants, workers, cpus, plot: &plot_name }
            .text(&table, shares.as_deref());
        table::write(&page, &text)?;
    }
    if !arguments.check {
        return Ok(());
    }
    let unmeasured =
        promises::check(arguments.photos, arguments.mode, &contestants, figures.as_deref())?;
    ensure!(
        unmeasured == 0 || arguments.allow_unmeasured,
        "{unmeasured} of the promises were not measured; --allow-unmeasured accepts that"
    );
    Ok(())
}

fn ours(
    workspace: &Workspace,
    arguments: &Images,
    data: &Path,
    name: &'static str,
    mode: Mode,
    layout: &str,
) -> Contestant {
    let data = data.display().to_string();
    let epochs = arguments.epochs.to_string();
    let words = ["bench", &data, "--mode", mode.name(), "--epochs", &epochs, "--layout", layout];
    let fixed = ["--size", "224", "--batch", "32", "--json", "--no-checksum"];
    let words = words.into_iter().chain(fixed).map(str::to_owned).collect();
    Contestant::new(name, workspace.program("release", "spdl"), words)
}

fn picture(arguments: &Images, contestants: &[Contestant]) -> String {
    let what = if arguments.photos { "Photographs" } else { "JPEG files" };
    let title = format!("{what} to batches, {} crop", arguments.mode.name());
    let unit =
        format!("images/s, median of {} runs; the line shows their range", arguments.repeats);
    plot::bars(&title, &unit, table::bars(contestants, |name| name == OURS))
}

struct Report<'a> {
    arguments: &'a Images,
    contestants: &'a [Contestant],
    workers: usize,
    cpus: usize,
    plot: &'a str,
}

impl Report<'_> {
    fn text(&self, table: &str, shares: Option<&str>) -> String {
        let Report { arguments, contestants, workers, cpus, plot } = self;
        let cpu = table::cpu_model();
        let what = match arguments.mode {
            Mode::Eval => {
                "resizes the shorter side to 256 pixels, crops the centre to 224 x 224 pixels"
            }
            Mode::Train => {
                "takes a random resized crop of 224 x 224 pixels, flips half of the images horizontally"
            }
        };
        let files = match (&arguments.data, arguments.photos) {
            (Some(_), _) => "The images are a data set chosen by the user.",
            (None, false) => {
                "The images are the demo data set: JPEGs of about 470 x 390 pixels and 100 KB \
                 (`cargo xtask demo`)."
            }
            (None, true) => {
                "The images are JPEGs of 2 to 12 megapixels, made from the demo's photographs."
            }
        };
        let versions = table::versions(contestants);
        let shares = match shares {
            Some(shares) => format!(
                "\n## Time per step\n\nThe decoder runs on one thread, with the files in memory. Times \
                 are in µs per image (`cargo run --release -p spdl-media --example decode_speed -- FOLDER`). \
                 In the names, \"fill\" means that the image is decoded, cropped, resized \
                 and written into a batch. \"whole\" means that the whole image is decoded, \
                 and \"region\" that only the part for the crop is decoded. \"planes\" are colour \
                 planes before upsampling, and \"1/2\" is the scale at which they are decoded.\n\n{shares}"
            ),
            None => String::new(),
        };
        format!(
            "# Images: JPEG files to batches\n\n\
             {files} Unless the name of a loader states otherwise, the loader {what}, and makes uint8 batches of \
             32 x 224 x 224 x 3. A run loads {images} images, from files in the page cache.\n\n\
             ![Bar chart of the rates]({plot})\n\n\
             {table}\n\
             The machine has {cpus} CPUs ({cpu}). Each loader that is not part of this project has \
             {workers} workers. Runs of the loaders are interleaved: one warm-up and {repeats} \
             measured runs each. Figures are medians; \"spread\" is (largest - smallest) / median. \
             The time of such a loader is measured from its construction to its last batch, without imports. Memory is the peak of the sum over all \
             processes of a loader, with shared pages counted once (PSS). \"others' CPU\" is the share of \
             all CPUs that other programs used. The last column is the rate of the first row divided by the \
             rate of this row: the median over pairs of consecutive runs. \
             Differences below 10 % are noise. \"first ms\" is the time to the first batch in \
             milliseconds. \"CPU s/1,000\" is the CPU time in seconds per 1,000 images.\n\n\
             \"{turbo}\" only decodes whole files from memory, with the same number of threads. Its rate is the \
             upper bound for loaders that decode whole images with libjpeg-turbo. \"{aliased}\" omits the antialiasing \
             filter: it does less work, and its images look different.\n\n\
             Versions:\n\n{versions}\n\
             Command: `cargo xtask bench images{photos} --mode {mode} --repeats {repeats} --epochs {epochs}`, \
             with `--all-peers`, or `--peers` and the names of loaders.\n\
             {shares}",
            images = contestants[0].runs[0].samples,
            turbo = Peer::LibjpegTurbo.name(),
            aliased = Peer::TensorflowAliased.name(),
            repeats = arguments.repeats,
            photos = if arguments.photos { " --photos" } else { "" },
            mode = arguments.mode.name(),
            epochs = arguments.epochs,
        )
    }
}
