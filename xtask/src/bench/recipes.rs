//! `cargo xtask bench recipes`: compares whole training recipes of `spdl_rs.Loader` with other loaders.

use anyhow::Result;
use clap::Args;

use super::contest::{self, Contestant};
use super::suite::{Extra, Figure, Program, Stage, Suite, SuiteArguments, SuiteTask};
use crate::tools::{Output, Workspace};

/// Compare training recipes of `spdl_rs.Loader` with torchvision, WebDataset, DALI, Albumentations and packers.
///
/// The tasks are classification (DeiT), contrastive learning (SimCLR), self-distillation (DINO), detection,
/// segmentation, pairs of images and captions (CLIP), and packing of token sequences. Each program runs once
/// to warm up; then the runs are interleaved (A B C A B C).
///
/// The command writes tables and a plot to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench recipes
  cargo xtask bench recipes --only deit --repeats 1 --print-only")]
pub(crate) struct Recipes {
    #[command(flatten)]
    options: SuiteArguments,
    /// Measure only these tasks
    #[arg(long, num_args = 1.., value_name = "RECIPE", value_parser = SUITE.names())]
    only: Vec<String>,
}

const WEBDATASET: Program = Program {
    name: "torch DataLoader: webdataset",
    script: "webdataset_workers.py",
    ..Program::TORCHVISION
};
const DALI: Program = Program {
    name: "DALI, CPU",
    script: "dali_cpu.py",
    environment: ("venv-bench-dali", &["numpy", "nvidia-dali-cuda130"]),
    needs_ffmpeg: "",
    promised: 1.5,
};
const ALBUMENTATIONS: Program = Program {
    name: "thread pool: Albumentations",
    script: "albumentations_pool.py",
    environment: ("venv-bench-albumentations", &["numpy", "albumentations==2.0.8", "simplejpeg"]),
    ..DALI
};

/// Does less work than the recipe: neither RandAugment nor random erasing.
const KORNIA: Program = Program {
    name: "thread pool: kornia-rs, crop and flip only",
    script: "kornia_pool.py",
    environment: ("venv-bench-kornia", &["numpy", "kornia-rs==0.2.0"]),
    ..DALI
};

/// A packer in Python and NumPy, with best-fit decreasing.
const NUMPY: Program = Program {
    name: "NumPy: best-fit decreasing",
    script: "numpy_packer.py",
    environment: (
        "venv-bench-packing",
        &["numpy", "pyarrow", "binpacking==2.0.1", "grain==0.2.18"],
    ),
    needs_ffmpeg: "",
    promised: 0.0,
};
const BINPACKING: Program = Program { name: "binpacking", script: "binpacking_packer.py", ..NUMPY };
const GRAIN: Program =
    Program { name: "Grain: FirstFitPack", script: "grain_packer.py", promised: 5.0, ..NUMPY };

/// The task without images.
const PACKING: &str = "packing";
/// The promised minimum of the share of tokens in packed sequences, in percent.
const LEAST_FILL: f64 = 97.0;

static SUITE: Suite = Suite {
    name: "recipes",
    title: "Recipes",
    about: "The loaders deliver 2,000 samples with images in batches of 32, float32 in NCHW. Images have the sizes of \
            ImageNet. `spdl_rs.Loader` and WebDataset read tar shards; the other loaders read loose files of the same \
            samples. The samples of the last task are lists of tokens.",
    tasks: &[
        SuiteTask {
            name: "deit",
            title: "Classification with strong augmentation (DeiT)",
            note: "224 x 224: random resized crop (bicubic), flip, RandAugment, normalisation, random erasing, MixUp or \
                   CutMix with label smoothing. DALI and Albumentations apply MixUp to all batches. Albumentations has no \
                   RandAugment: two of its operations are chosen for each image. kornia-rs has neither RandAugment nor \
                   random erasing, so its program does less work.",
            peers: &[Program::TORCHVISION, DALI, ALBUMENTATIONS, KORNIA],
            figure: None,
        },
        SuiteTask {
            name: "simclr",
            title: "Two views for contrastive learning (SimCLR)",
            note: "Two times 224 x 224: random resized crop, flip, colour jitter, greyscale, blur, normalisation. \
                   Rates count stored images.",
            peers: &[Program::TORCHVISION],
            figure: None,
        },
        SuiteTask {
            name: "dino",
            title: "Two large and eight small crops (DINO)",
            note: "Two times 224 x 224 and eight times 96 x 96: random resized crop (bicubic), flip, colour jitter, \
                   greyscale, blur, solarisation, normalisation. Rates count stored images.",
            peers: &[Program::TORCHVISION],
            figure: None,
        },
        SuiteTask {
            name: "detection",
            title: "Images and boxes (detection)",
            note: "Flip, resize to fit into 640 x 640, padding, normalisation; boxes follow the image.",
            peers: &[Program::TORCHVISION.promised(2.5)],
            figure: None,
        },
        SuiteTask {
            name: "segmentation",
            title: "Images and masks (segmentation)",
            note: "512 x 512: random resized crop of 25 to 100 % of the area, flip, normalisation; masks follow the image.",
            peers: &[Program::TORCHVISION.promised(2.5)],
            figure: None,
        },
        SuiteTask {
            name: "clip",
            title: "Images and captions from tar shards (CLIP)",
            note: "224 x 224: random resized crop of 90 to 100 % of the area (bicubic), normalisation. A tokenizer in \
                   Python, the same for both loaders.",
            peers: &[WEBDATASET],
            figure: None,
        },
        SuiteTask {
            name: PACKING,
            title: "Packed sequences of tokens",
            note: "50,000 lists of tokens of log-normal lengths (median 192, sigma 1, at most 2,048) in a memory-mapped \
                   Arrow table. Each batch has 8 sequences of 2,048 tokens, with position ids and cu_seqlens. `spdl_rs.Loader` and Grain shuffle samples, and pack them with 64 open \
                   sequences while they deliver batches. The programs with NumPy and binpacking are short scripts for \
                   this task in one thread: they read all lengths and pack the whole epoch before the first batch, and \
                   cannot resume. binpacking packs windows of 1,000 samples.",
            peers: &[NUMPY, BINPACKING, GRAIN],
            figure: Some(Figure { sentence: fills, verdict: fill_verdict }),
        },
    ],
};

pub(super) fn run(workspace: &Workspace, arguments: &Recipes) -> Result<()> {
    let tasks = SUITE.chosen(&arguments.only);
    let stage = Stage::new(workspace)?;
    if tasks.iter().any(|task| task.name != PACKING) {
        stage.write_images()?;
    }
    if tasks.iter().any(|task| task.name == PACKING) {
        stage.ours.install(&mut Output::Terminal, &["pyarrow"])?;
        stage.prepare(&NUMPY, "token_data.py")?;
    }
    let measured = stage.measure(&tasks, &arguments.options)?;
    SUITE.conclude(workspace, &arguments.options, &measured, &Extra::default())
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

/// The promise about our share of tokens.
fn fill_verdict(ours: &Contestant) -> Option<(bool, String)> {
    let fill = fill(ours)?;
    Some((fill >= LEAST_FILL, format!("{fill:.1} % tokens; promised: at least {LEAST_FILL} %")))
}

#[cfg(test)]
mod tests {
    use super::super::suite::OURS;
    use super::super::suite::tests::{measured, verdicts_of};
    use super::super::table::tests::contestant;
    use super::*;

    #[test]
    fn the_fill_of_packed_sequences_is_a_promise() {
        let packing = SUITE.tasks.iter().find(|task| task.name == PACKING).unwrap();
        let filled = |shares: &[f64]| {
            let mut ours = contestant(OURS, &[1.0]);
            ours.reports = shares.iter().map(|fill| serde_json::json!({ "fill": fill })).collect();
            ours
        };
        let verdict_of =
            |shares| verdicts_of(&measured(packing, vec![filled(shares)])).pop().unwrap();
        assert!(verdict_of(&[0.96, 0.98, 0.98]).0);
        let (kept, line) = verdict_of(&[0.96]);
        assert!(!kept && line.contains("packing: 96.0 % tokens"), "{line}");
        let found = [filled(&[0.98]), contestant("other", &[1.0])];
        let text = "\nTokens, as a share of all places in the batches: spdl_rs.Loader 98.0 %.\n";
        assert_eq!(fills(&found), text);
    }
}
