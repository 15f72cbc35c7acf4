//! `cargo xtask bench video`: compares clips of videos by `spdl_rs.Loader` with other decoders.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use super::suite::{Extra, Program, PromiseVerdict, Stage, Suite, SuiteArguments, SuiteTask};
use super::table;
use crate::tools::Workspace;

/// Compare clips of videos by `spdl_rs.Loader` with PyAV, TorchCodec, decord2 and upstream SPDL, and check memory.
///
/// The tasks are frames spread evenly over videos of 640 x 360 and 1920 x 1080, random windows of both, and all frames
/// of a video. Each program runs once to warm up; then the runs are interleaved (A B C A B C). Then the memory of 64
/// clips at a time, and of 10,000 clips, is measured once.
///
/// The command writes tables and a plot to docs/benchmarks. TorchCodec downloads gigabytes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench video
  cargo xtask bench video --only video360 --repeats 1 --print-only")]
pub(crate) struct Video {
    #[command(flatten)]
    options: SuiteArguments,
    /// Measure only these tasks, without memory
    #[arg(long, num_args = 1.., value_name = "TASK", value_parser = SUITE.names(), conflicts_with = "memory")]
    only: Vec<String>,
    /// Measure only memory
    #[arg(long)]
    memory: bool,
}

const PYAV: Program = Program {
    name: "thread pool: PyAV",
    script: "pyav_video.py",
    environment: ("venv-bench-video", &["numpy", "pillow", "av", "decord2"]),
    needs_ffmpeg: "",
    promised: 1.5,
};
const DECORD: Program = Program { name: "thread pool: decord2", script: "decord_video.py", ..PYAV };
const TORCHCODEC: Program = Program { script: "torchcodec_video.py", ..Program::TORCHCODEC };
const SPDL: Program = Program { script: "spdl_video.py", ..Program::SPDL };
const DECODERS: &[Program] = &[PYAV, TORCHCODEC, DECORD, SPDL];
const DECODERS_OF_1080P: &[Program] =
    &[PYAV.promised(2.0), TORCHCODEC.promised(2.0), DECORD.promised(2.0), SPDL.promised(2.0)];

static SUITE: Suite = Suite {
    name: "video",
    title: "Video",
    about: "Each loader decodes two videos at a time, with one decoding thread for each, and delivers frames of \
            224 x 224 RGB, shuffled, in batches of 6 clips. The videos are H.264 in MP4, 300 frames, with a key frame \
            every 60 frames: photographs that move. Files are in the page cache.",
    tasks: &[
        SuiteTask {
            name: "video360",
            title: "16 frames of videos of 640 x 360",
            note: "24 videos. The frames are spread evenly.",
            peers: DECODERS,
            figure: None,
        },
        SuiteTask {
            name: "video1080",
            title: "16 frames of videos of 1920 x 1080",
            note: "6 videos, otherwise as above.",
            peers: DECODERS_OF_1080P,
            figure: None,
        },
        SuiteTask {
            name: "windows",
            title: "Random windows of videos of 640 x 360",
            note: "24 videos. 16 frames, every fourth one from a random position on.",
            peers: DECODERS,
            figure: None,
        },
        SuiteTask {
            name: "windows1080",
            title: "Random windows of videos of 1920 x 1080",
            note: "6 videos, otherwise as above.",
            peers: DECODERS_OF_1080P,
            figure: None,
        },
        SuiteTask {
            name: "sequential",
            title: "All frames of videos of 640 x 360",
            note: "24 videos. All 300 frames of each, in batches of one video.",
            peers: &[
                PYAV.promised(1.0),
                TORCHCODEC.promised(0.0),
                DECORD.promised(0.0),
                SPDL.promised(0.0),
            ],
            figure: None,
        },
    ],
};

/// The promised maximum of the resident memory while 64 clips of 1920 x 1080 are decoded, in bytes.
const MOST_MEMORY: f64 = 1.5 * (1 << 30) as f64;
/// The promised maximum growth of the resident memory in the last third of 10,000 clips, in bytes per clip. A packet
/// that is not released takes more, and the memory of an allocator varies by less.
const MOST_GROWTH: f64 = 100.0;

pub(super) fn run(workspace: &Workspace, arguments: &Video) -> Result<()> {
    let stage = Stage::new(workspace)?;
    // The videos are made of photographs.
    stage.write_images()?;
    stage.prepare(&PYAV, "video_data.py")?;
    let tasks = if arguments.memory { Vec::new() } else { SUITE.chosen(&arguments.only) };
    let measured = stage.measure(&tasks, &arguments.options)?;
    let extra = if arguments.only.is_empty() { memory(&stage)? } else { Extra::default() };
    SUITE.conclude(workspace, &arguments.options, &measured, &extra)
}

/// Measures memory: the section of the page, and the promises.
fn memory(stage: &Stage<'_>) -> Result<Extra> {
    let report = |task: &str| stage.report("video_memory.py", task);
    let extra = memory_section(&report("concurrent")?, &report("growth")?)?;
    println!("{}", extra.text);
    Ok(extra)
}

fn memory_section(concurrent: &Value, growth: &Value) -> Result<Extra> {
    const MIB: f64 = (1 << 20) as f64;
    let number = |report: &Value, key: &str| {
        report[key].as_f64().with_context(|| format!("the report of memory has no {key}"))
    };
    let peak = number(concurrent, "peak_bytes")?;
    let slope = number(growth, "bytes_per_clip")?;
    let text = format!(
        "\n## Memory\n\n\
         `{}` with 64 threads decodes {} clips of 16 frames of videos of 1920 x 1080. The peak of the resident memory \
         (RSS) is {:.0} MiB, with the interpreter and the batches. With two threads, after {} clips of small videos of \
         several sizes, the memory is {:.0} MiB. The slope of a line through its last third is {slope:.1} bytes per \
         clip.\n",
        super::suite::OURS,
        number(concurrent, "samples")?,
        peak / MIB,
        number(growth, "samples")?,
        number(growth, "bytes")? / MIB,
    );
    let verdicts: [PromiseVerdict; 2] = [
        table::verdict(
            peak <= MOST_MEMORY,
            &format!(
                "memory: {:.0} MiB while 64 clips are decoded; promised: at most {:.0} MiB",
                peak / MIB,
                MOST_MEMORY / MIB
            ),
        ),
        table::verdict(
            slope <= MOST_GROWTH,
            &format!("memory: grows by {slope:.1} bytes per clip; promised: at most {MOST_GROWTH}"),
        ),
    ];
    Ok(Extra { text, verdicts: verdicts.into() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn memory_is_checked_against_its_promises() {
        let growth =
            |slope: f64| json!({ "samples": 10_000, "bytes": 1 << 27, "bytes_per_clip": slope });
        let peak = |mib: u64| json!({ "samples": 132, "peak_bytes": mib << 20 });
        let kept = |peak: &Value, growth: &Value| {
            let extra = memory_section(peak, growth).unwrap();
            extra.verdicts.iter().map(|(kept, _)| *kept).collect::<Vec<_>>()
        };
        assert_eq!(kept(&peak(1536), &growth(-3.0)), [true, true]);
        assert_eq!(kept(&peak(1537), &growth(101.0)), [false, false]);
        let text = memory_section(&peak(1000), &growth(2.0)).unwrap().text;
        assert!(text.contains("is 1000 MiB") && text.contains("is 2.0 bytes per clip"), "{text}");
        assert!(memory_section(&json!({}), &growth(0.0)).is_err());
    }
}
