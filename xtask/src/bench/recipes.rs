//! `cargo xtask bench recipes`: compares whole training recipes of `spdl_rs.Loader` with other loaders.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Result, ensure};
use clap::Args;

use super::contest::{self, Contestant};
use super::peers::{self, Peer};
use super::{plot, table};
use crate::dataset::{self, Settings, Shape};
use crate::tools::{Output, Workspace, command};
use crate::venv::Venv;
use crate::wheel;

/// Compare training recipes of `spdl_rs.Loader` with torchvision, WebDataset, DALI, Albumentations, libsndfile, FFmpeg
/// and packers.
///
/// The tasks are classification (DeiT), contrastive learning (SimCLR), self-distillation (DINO), detection,
/// segmentation, pairs of images and captions (CLIP), audio (WAV, FLAC, MP3), log-mel spectrograms (Whisper), clips of videos, and
/// packing of token sequences. Each program runs once
/// to warm up; then the runs are interleaved (A B C A B C).
///
/// The command writes tables and a plot to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench recipes
  cargo xtask bench recipes --only deit --repeats 1 --print-only")]
pub(crate) struct Recipes {
    /// Number of measured runs of each program
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Measure only these tasks
    #[arg(long, num_args = 1.., value_name = "RECIPE", value_parser = RECIPES.map(|task| task.name))]
    only: Vec<String>,
    /// Python interpreter with torch, torchvision, webdataset, numpy and Pillow; if given, they are not
    /// installed
    #[arg(long, value_name = "PROGRAM")]
    torch_python: Option<PathBuf>,
    /// Fail if a ratio misses its promised value or was not measured
    #[arg(long)]
    check: bool,
    /// Print the results, but do not update docs/benchmarks
    #[arg(long)]
    print_only: bool,
}

/// A recipe, and the programs that run it.
struct TrainingRecipe {
    name: &'static str,
    title: &'static str,
    note: &'static str,
    peers: &'static [Program],
}

/// A program of `xtask/recipes`, and the promised minimum of the ratio of our rate to its rate.
#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    script: &'static str,
    environment: (&'static str, &'static [&'static str]),
    /// The promised ratio of rates; 0 without a promise.
    promised: f64,
}

impl Program {
    const TORCHVISION: Program = Program {
        name: "torch DataLoader: torchvision",
        script: "torchvision_workers.py",
        environment: peers::TORCH,
        promised: 3.0,
    };
    const WEBDATASET: Program = Program {
        name: "torch DataLoader: webdataset",
        script: "webdataset_workers.py",
        ..Program::TORCHVISION
    };
    const DALI: Program = Program {
        name: "DALI, CPU",
        script: "dali_cpu.py",
        environment: ("venv-bench-dali", &["numpy", "nvidia-dali-cuda130"]),
        promised: 1.5,
    };
    const ALBUMENTATIONS: Program = Program {
        name: "thread pool: Albumentations",
        script: "albumentations_pool.py",
        environment: (
            "venv-bench-albumentations",
            &["numpy", "albumentations==2.0.8", "simplejpeg"],
        ),
        promised: 1.5,
    };

    /// A packer in Python and NumPy, with best-fit decreasing.
    const NUMPY: Program = Program {
        name: "NumPy: best-fit decreasing",
        script: "numpy_packer.py",
        environment: (
            "venv-bench-packing",
            &["numpy", "pyarrow", "binpacking==2.0.1", "grain==0.2.18"],
        ),
        promised: 0.0,
    };
    const BINPACKING: Program =
        Program { name: "binpacking", script: "binpacking_packer.py", ..Program::NUMPY };
    const GRAIN: Program = Program {
        name: "Grain: FirstFitPack",
        script: "grain_packer.py",
        promised: 5.0,
        ..Program::NUMPY
    };

    const SOUNDFILE: Program = Program {
        name: "thread pool: soundfile",
        script: "soundfile_audio.py",
        environment: ("venv-bench-audio", &["numpy", "soundfile", "av"]),
        promised: 1.5,
    };
    const PYAV: Program =
        Program { name: "thread pool: PyAV", script: "pyav_audio.py", ..Program::SOUNDFILE };
    /// The original SPDL.
    const SPDL: Program = Program {
        name: "thread pool: spdl (Python, C++)",
        script: "spdl_audio.py",
        environment: ("venv-bench-spdl", &["numpy", "spdl", "spdl-core", "spdl-io"]),
        promised: 1.5,
    };
    const TORCH_MEL: Program =
        Program { name: "thread pool: PyTorch", script: "torch_audio.py", ..Program::TORCHVISION };

    const VIDEO_PYAV: Program = Program {
        name: "thread pool: PyAV",
        script: "pyav_video.py",
        environment: ("venv-bench-video", &["numpy", "pillow", "av", "decord2"]),
        promised: 1.5,
    };
    const DECORD: Program =
        Program { name: "thread pool: decord2", script: "decord_video.py", ..Program::VIDEO_PYAV };
    const TORCHCODEC: Program = Program {
        name: "thread pool: TorchCodec",
        script: "torchcodec_video.py",
        environment: ("venv-bench-torchcodec", &["numpy", "torch", "torchcodec"]),
        ..Program::VIDEO_PYAV
    };
    const SPDL_VIDEO: Program = Program { script: "spdl_video.py", ..Program::SPDL };
    const fn promised(self, promised: f64) -> Self {
        Program { promised, ..self }
    }
}

const OURS: &str = "spdl_rs.Loader";
/// Worker processes or threads of every loader.
const WORKERS: usize = 2;

/// The task without images.
const PACKING: &str = "packing";
/// The promised minimum of the share of tokens in packed sequences, in percent.
const LEAST_FILL: f64 = 97.0;

/// The tasks with audio.
const AUDIO: [&str; 4] = ["wav", "flac", "mp3", "whisper"];

/// The tasks with video.
const VIDEO: [&str; 3] = ["video360", "video1080", "windows"];

const RECIPES: [TrainingRecipe; 14] = [
    TrainingRecipe {
        name: "deit",
        title: "Classification with strong augmentation (DeiT)",
        note: "224 x 224: random resized crop (bicubic), flip, RandAugment, normalisation, random erasing, MixUp or \
               CutMix with label smoothing. DALI and Albumentations apply MixUp to all batches. Albumentations has no \
               RandAugment: two of its operations are chosen for each image.",
        peers: &[Program::TORCHVISION, Program::DALI, Program::ALBUMENTATIONS],
    },
    TrainingRecipe {
        name: "simclr",
        title: "Two views for contrastive learning (SimCLR)",
        note: "Two times 224 x 224: random resized crop, flip, colour jitter, greyscale, blur, normalisation. \
               Rates count stored images.",
        peers: &[Program::TORCHVISION],
    },
    TrainingRecipe {
        name: "dino",
        title: "Two large and eight small crops (DINO)",
        note: "Two times 224 x 224 and eight times 96 x 96: random resized crop (bicubic), flip, colour jitter, \
               greyscale, blur, solarisation, normalisation. Rates count stored images.",
        peers: &[Program::TORCHVISION],
    },
    TrainingRecipe {
        name: "detection",
        title: "Images and boxes (detection)",
        note: "Flip, resize to fit into 640 x 640, padding, normalisation; boxes follow the image.",
        peers: &[Program::TORCHVISION.promised(2.5)],
    },
    TrainingRecipe {
        name: "segmentation",
        title: "Images and masks (segmentation)",
        note: "512 x 512: random resized crop of 25 to 100 % of the area, flip, normalisation; masks follow the image.",
        peers: &[Program::TORCHVISION.promised(2.5)],
    },
    TrainingRecipe {
        name: "clip",
        title: "Images and captions from tar shards (CLIP)",
        note: "224 x 224: random resized crop of 90 to 100 % of the area (bicubic), normalisation. A tokenizer in \
               Python, the same for both loaders.",
        peers: &[Program::WEBDATASET],
    },
    TrainingRecipe {
        name: AUDIO[0],
        title: "WAV files",
        note: "400 files of 10 seconds, 44.1 kHz, mono, 16 bits, to float32.",
        peers: &[
            Program::SOUNDFILE.promised(1.0),
            Program::PYAV.promised(3.0),
            Program::SPDL.promised(3.0),
        ],
    },
    TrainingRecipe {
        name: AUDIO[1],
        title: "FLAC files",
        note: "The same audio as FLAC.",
        peers: &[Program::SOUNDFILE, Program::PYAV, Program::SPDL],
    },
    TrainingRecipe {
        name: AUDIO[2],
        title: "MP3 files",
        note: "The same audio as MP3.",
        peers: &[Program::SOUNDFILE, Program::PYAV, Program::SPDL],
    },
    TrainingRecipe {
        name: AUDIO[3],
        title: "Log-mel spectrograms (Whisper)",
        note: "400 WAV files of 10 seconds, 16 kHz, mono; 80 mel bands. PyTorch computes on two threads of Python.",
        peers: &[Program::TORCH_MEL],
    },
    TrainingRecipe {
        name: VIDEO[0],
        title: "16 frames of videos of 640 x 360",
        note: "24 videos: H.264, 300 frames, a key frame every 60 frames. 16 frames spread evenly, as 224 x 224 RGB. \
               Each loader decodes two videos at a time.",
        peers: &[Program::VIDEO_PYAV, Program::TORCHCODEC, Program::DECORD, Program::SPDL_VIDEO],
    },
    TrainingRecipe {
        name: VIDEO[1],
        title: "16 frames of videos of 1920 x 1080",
        note: "6 videos, otherwise as above.",
        peers: &[
            Program::VIDEO_PYAV.promised(2.0),
            Program::TORCHCODEC.promised(2.0),
            Program::DECORD.promised(2.0),
            Program::SPDL_VIDEO.promised(2.0),
        ],
    },
    TrainingRecipe {
        name: VIDEO[2],
        title: "Random windows of videos of 640 x 360",
        note: "16 frames, every fourth one from a random position on, otherwise as above.",
        peers: &[Program::VIDEO_PYAV, Program::TORCHCODEC, Program::DECORD, Program::SPDL_VIDEO],
    },
    TrainingRecipe {
        name: PACKING,
        title: "Packed sequences of tokens",
        note: "50,000 lists of tokens of log-normal lengths (median 192, sigma 1, at most 2,048) in a memory-mapped \
               Arrow table. Each batch has 8 sequences of 2,048 tokens, with position ids and cu_seqlens. `spdl_rs.Loader` and Grain shuffle samples, and pack them with 64 open \
               sequences while they deliver batches. The programs with NumPy and binpacking are short scripts for \
               this task in one thread: they read all lengths and pack the whole epoch before the first batch, and \
               cannot resume. binpacking packs windows of 1,000 samples.",
        peers: &[Program::NUMPY, Program::BINPACKING, Program::GRAIN],
    },
];

pub(super) fn run(workspace: &Workspace, arguments: &Recipes) -> Result<()> {
    let is_chosen = |task: &&TrainingRecipe| {
        arguments.only.is_empty() || arguments.only.iter().any(|it| it == task.name)
    };
    let tasks: Vec<_> = RECIPES.iter().filter(is_chosen).collect();
    let ours = wheel::install(workspace, &mut Output::Terminal, "venv-bench-python", false)?;
    let scripts = workspace.root.join("xtask/recipes");
    let data = workspace.target.join("demo/recipes");
    let has_audio = |task: &&TrainingRecipe| AUDIO.contains(&task.name);
    let has_video = |task: &&TrainingRecipe| VIDEO.contains(&task.name);
    if tasks.iter().any(|task| task.name != PACKING && !has_audio(task)) {
        write_images(workspace, &scripts, &data)?;
    }
    let prepare = |peer: &Program, script: &str| {
        let mut program = command(interpreter(workspace, peer, None)?);
        program.arg(scripts.join(script)).arg(&data);
        Output::Terminal.run(&mut program)
    };
    if tasks.iter().any(has_video) {
        prepare(&Program::VIDEO_PYAV, "video_data.py")?;
    }
    if tasks.iter().any(has_audio) {
        prepare(&Program::SOUNDFILE, "audio_data.py")?;
    }
    if tasks.iter().any(|task| task.name == PACKING) {
        ours.install(&mut Output::Terminal, &["pyarrow"])?;
        prepare(&Program::NUMPY, "token_data.py")?;
    }

    let mut parts = Vec::new();
    for task in tasks {
        let program = |name, python: &Path, script: &str| {
            let words = [&scripts.join(script).display().to_string(), task.name];
            let words = words.into_iter().map(str::to_owned);
            let rest = [data.display().to_string(), "--workers".to_owned(), WORKERS.to_string()];
            Contestant::new(name, python.to_owned(), words.chain(rest).collect())
        };
        let mut contestants = vec![program(OURS, &ours.python(), "ours.py")];
        for peer in task.peers {
            match interpreter(workspace, peer, arguments.torch_python.as_deref()) {
                Ok(python) => {
                    let mut contestant = program(peer.name, &python, peer.script);
                    contestant.versions = peers::versions(&python, peer.environment.1);
                    contestants.push(contestant);
                }
                Err(error) => println!("SKIPPED: {}: {error:#}", peer.name),
            }
        }
        contest::measure_all(&mut contestants, arguments.repeats)?;
        println!("\n{}\n\n{}", task.title, table::of_medians(&contestants, "samples/s"));
        println!("{}", fills(&contestants));
        parts.push((task, contestants));
    }
    let verdicts: Vec<_> = parts.iter().flat_map(|(task, found)| verdicts(task, found)).collect();
    verdicts.iter().for_each(|(_, line)| println!("{line}"));
    if !arguments.print_only {
        write(workspace, arguments, &parts, &verdicts)?;
    }
    let missed = verdicts.iter().filter(|(kept, _)| !kept).count();
    ensure!(
        !arguments.check || missed == 0,
        "{missed} of the promises were missed or not measured"
    );
    Ok(())
}

/// Writes the samples with images.
fn write_images(workspace: &Workspace, scripts: &Path, data: &Path) -> Result<()> {
    let settings = Settings { shape: Shape::Imagenet, images: 2000, classes: 50, seed: 0 };
    let photos = workspace.root.join("assets/photos");
    let images = dataset::prepare(&photos, &workspace.target.join("demo"), settings)?;
    // The samples are written with Pillow.
    let (name, packages) = Peer::Pillow.environment();
    let pillow = Venv::prepare(workspace, &mut Output::Terminal, name, packages)?.python();
    let mut prepare = command(pillow);
    prepare.arg(scripts.join("data.py")).arg(images).arg(data);
    Output::Terminal.run(&mut prepare)
}

fn interpreter(workspace: &Workspace, peer: &Program, torch: Option<&Path>) -> Result<PathBuf> {
    let (name, packages) = peer.environment;
    match torch {
        Some(python) if peer.environment == peers::TORCH => Ok(python.to_owned()),
        _ => Ok(Venv::prepare(workspace, &mut Output::Terminal, name, packages)?.python()),
    }
}

/// The share of tokens in packed sequences, in percent; `None` for programs that pack nothing.
fn fill(contestant: &Contestant) -> Option<f64> {
    let shares: Option<Vec<f64>> =
        contestant.reports.iter().map(|report| report["fill"].as_f64()).collect();
    shares.filter(|shares| !shares.is_empty()).map(|shares| 100.0 * contest::median(shares))
}

/// The shares of tokens of all programs that pack, as one sentence, or nothing.
fn fills(contestants: &[Contestant]) -> String {
    let share = |it: &Contestant| Some(format!("{} {:.1} %", it.name, fill(it)?));
    let shares: Vec<_> = contestants.iter().filter_map(share).collect();
    match shares.is_empty() {
        true => String::new(),
        false => {
            format!("\nTokens, as a share of all places in the batches: {}.\n", shares.join(", "))
        }
    }
}

/// Promised and measured ratios and fill, and whether each promise is kept. A peer that was not measured
/// counts as missed.
fn verdicts(task: &TrainingRecipe, found: &[Contestant]) -> Vec<(bool, String)> {
    let verdict = |peer: &Program| {
        let Program { name, promised, .. } = peer;
        let ratio = found.iter().find(|it| it.name == *name).map(|it| found[0].ratio_to(it));
        let kept = ratio.is_some_and(|ratio| ratio >= *promised);
        let measured = ratio.map_or("not measured:".to_owned(), |ratio| format!("{ratio:.2} x"));
        if *promised == 0.0 {
            return (true, format!("no promise: {}: {measured} {name}", task.name));
        }
        let line = format!("{}: {measured} {name}; promised: at least {promised} x", task.name);
        table::verdict(kept, &line)
    };
    let filled = fill(&found[0]).map(|fill| {
        let line = format!("{}: {fill:.1} % tokens; promised: at least {LEAST_FILL} %", task.name);
        table::verdict(fill >= LEAST_FILL, &line)
    });
    task.peers.iter().map(verdict).chain(filled).collect()
}

fn write(
    workspace: &Workspace,
    arguments: &Recipes,
    parts: &[(&TrainingRecipe, Vec<Contestant>)],
    verdicts: &[(bool, String)],
) -> Result<()> {
    let folder = workspace.root.join("docs/benchmarks");
    let count = thread::available_parallelism().map_or(1, usize::from);
    let repeats = arguments.repeats;
    let mut text = format!(
        "# Recipes\n\n\
         The machine has {count} CPUs ({cpu}). Every loader has {WORKERS} threads or worker processes, and delivers \
         2,000 samples with images in batches of 32, float32 in NCHW. Images have the sizes of ImageNet. \
         `spdl_rs.Loader` and WebDataset read tar shards; the other loaders read loose files of the same samples. \
         The samples of the last task are lists of tokens; those of the tasks before it are 400 audio files or clips of videos. Random numbers differ. \
         Runs are interleaved: one warm-up and {repeats} measured runs each. Figures are medians; \"spread\" is \
         (largest - smallest) / median. Time is measured from the construction of the loader to the last batch, \
         without imports. Memory is the peak of the sum over all processes (PSS). The last column is the rate of \
         `spdl_rs.Loader` divided by the rate of this row: the median over pairs of consecutive runs.\n\n\
         Command: `cargo xtask bench recipes --repeats {repeats}`.\n\n\
         ![Bar chart of the ratios](recipes.svg)\n",
        cpu = table::cpu_model(),
    );
    let bar = |task: &TrainingRecipe, ours: &Contestant, peer: &Contestant| {
        let value = ours.ratio_to(peer);
        let label = format!("{}: {}", task.name, peer.name);
        plot::Bar { label, value, range: (value, value), ours: false }
    };
    let bars: Vec<_> = parts
        .iter()
        .flat_map(|(task, found)| found[1..].iter().map(|peer| bar(task, &found[0], peer)))
        .collect();
    let unit = "rate of spdl_rs.Loader / rate of the other loader, on 2 CPUs; 1 is equal speed";
    let svg = plot::bars_in_order("How many times as fast: recipes", unit, &bars, 1);
    table::write(&folder.join("recipes.svg"), &svg)?;
    for (task, contestants) in parts {
        text += &table::section(task.title, task.note, "samples/s", contestants);
        text += &fills(contestants);
    }
    text += &table::promises(verdicts);
    table::write(&folder.join("recipes.md"), &text)
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::contestant;
    use super::*;

    #[test]
    fn a_ratio_below_its_promise_or_not_measured_is_missed() {
        let task = &RECIPES[0];
        let found = [
            contestant(OURS, &[1.0]),
            contestant(Program::TORCHVISION.name, &[3.1]),
            contestant(Program::DALI.name, &[1.4]),
        ];
        let kept: Vec<_> = verdicts(task, &found).into_iter().map(|(kept, _)| kept).collect();
        assert_eq!(kept, [true, false, false]);
    }

    #[test]
    fn the_fill_of_packed_sequences_is_a_promise() {
        let packing = RECIPES.iter().find(|task| task.name == PACKING).unwrap();
        let filled = |shares: &[f64]| {
            let mut ours = contestant(OURS, &[1.0]);
            ours.reports = shares.iter().map(|fill| serde_json::json!({ "fill": fill })).collect();
            ours
        };
        let verdict_of = |shares| verdicts(packing, &[filled(shares)]).pop().unwrap();
        assert!(verdict_of(&[0.96, 0.98, 0.98]).0);
        let (kept, line) = verdict_of(&[0.96]);
        assert!(!kept && line.contains("96.0 % tokens"), "{line}");
        let found = [filled(&[0.98]), contestant("other", &[1.0])];
        let text = "\nTokens, as a share of all places in the batches: spdl_rs.Loader 98.0 %.\n";
        assert_eq!(fills(&found), text);
    }
}
