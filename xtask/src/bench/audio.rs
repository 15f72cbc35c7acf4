//! `cargo xtask bench audio`: compares decoding of audio by `spdl_rs.Loader` with other decoders.

use anyhow::Result;
use clap::Args;

use super::contest::{self, Contestant};
use super::suite::{Extra, Figure, Program, Stage, Suite, SuiteArguments, SuiteTask, WORKERS};
use crate::tools::Workspace;

/// Compare decoding of audio by `spdl_rs.Loader` with soundfile, PyAV, TorchCodec, torchaudio and upstream SPDL.
///
/// The tasks are WAV, FLAC and MP3 files, log-mel spectrograms (Whisper) against PyTorch, and windows of a long
/// FLAC file. Each program runs once to warm up; then the runs are interleaved (A B C A B C).
///
/// The command writes tables and a plot to docs/benchmarks. The packages with torch download gigabytes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench audio
  cargo xtask bench audio --only flac --repeats 1 --print-only")]
pub(crate) struct Audio {
    #[command(flatten)]
    options: SuiteArguments,
    /// Measure only these tasks
    #[arg(long, num_args = 1.., value_name = "TASK", value_parser = SUITE.names())]
    only: Vec<String>,
}

const SOUNDFILE: Program = Program {
    name: "thread pool: soundfile",
    script: "soundfile_audio.py",
    environment: ("venv-bench-audio", &["numpy", "soundfile", "av"]),
    needs_ffmpeg: "",
    promised: 1.5,
};
const PYAV: Program = Program { name: "thread pool: PyAV", script: "pyav_audio.py", ..SOUNDFILE };
const TORCHCODEC: Program = Program::TORCHCODEC;
const TORCHAUDIO: Program =
    Program { name: "thread pool: torchaudio", script: "torchaudio_audio.py", ..TORCHCODEC };
const SPDL: Program = Program::SPDL;
/// The decoders of compressed files.
const DECODERS: &[Program] = &[SOUNDFILE, PYAV, TORCHCODEC, TORCHAUDIO, SPDL];
/// Upstream's reader of WAV files, without FFmpeg.
const SPDL_WAV: Program = Program {
    name: "thread pool: spdl (Python, C++), load_wav",
    script: "spdl_wav_audio.py",
    ..Program::SPDL
};
const TORCH_MEL: Program = Program {
    name: "thread pool: PyTorch",
    script: "torch_audio.py",
    needs_ffmpeg: "",
    promised: 3.0,
    ..TORCHCODEC
};

/// The task with windows of one file.
const WINDOWS: &str = "flac-windows";
/// The promised maximum of the time of a window, as a share of the time of a full decode.
const MOST_OF_FULL_DECODE: f64 = 0.05;

static SUITE: Suite = Suite {
    name: "audio",
    title: "Audio",
    about: "The loaders deliver float32 arrays in batches of 32, shuffled: 400 files of 10 seconds, mono, 16 bits: \
            harmonics like those of a voice, with noise. Files are in the page cache.",
    tasks: &[
        SuiteTask {
            name: "wav",
            title: "WAV files",
            note: "44.1 kHz.",
            peers: &[
                SOUNDFILE.promised(1.0),
                PYAV.promised(3.0),
                TORCHCODEC.promised(3.0),
                TORCHAUDIO.promised(3.0),
                SPDL.promised(3.0),
                SPDL_WAV.promised(0.0),
            ],
            figure: None,
        },
        SuiteTask {
            name: "flac",
            title: "FLAC files",
            note: "The same audio as FLAC.",
            peers: DECODERS,
            figure: None,
        },
        SuiteTask {
            name: "mp3",
            title: "MP3 files",
            note: "The same audio as MP3, 128 kbit/s.",
            peers: DECODERS,
            figure: None,
        },
        SuiteTask {
            name: "whisper",
            title: "Log-mel spectrograms (Whisper)",
            note: "WAV files of 16 kHz; 80 mel bands. PyTorch computes on two threads of Python.",
            peers: &[TORCH_MEL],
            figure: None,
        },
        SuiteTask {
            name: WINDOWS,
            title: "Random windows of a long FLAC file",
            note: "10,000 windows of 1 second of a file of 1 hour, 16 kHz.",
            peers: &[SOUNDFILE.promised(0.0), PYAV.promised(0.0), TORCHCODEC.promised(0.0)],
            figure: Some(Figure { sentence: window_sentence, verdict: window_verdict }),
        },
    ],
};

pub(super) fn run(workspace: &Workspace, arguments: &Audio) -> Result<()> {
    let stage = Stage::new(workspace)?;
    stage.prepare(&SOUNDFILE, "audio_data.py")?;
    let measured = stage.measure(&SUITE.chosen(&arguments.only), &arguments.options)?;
    SUITE.conclude(workspace, &arguments.options, &measured, &Extra::default())
}

/// The seconds of a thread for a window, and for a decode of the whole file.
fn window_and_full(ours: &Contestant) -> Option<(f64, f64)> {
    let full: Option<Vec<f64>> =
        ours.reports.iter().map(|report| report["full_decode_s"].as_f64()).collect();
    let full = full.filter(|full| !full.is_empty()).map(contest::median)?;
    Some((WORKERS as f64 / ours.rate(), full))
}

fn window_sentence(contestants: &[Contestant]) -> String {
    let Some((window, full)) = contestants.first().and_then(window_and_full) else {
        return String::new();
    };
    format!(
        "\nBy {}, a window takes {:.2} ms of a thread, and a decode of the whole file {:.0} ms.\n",
        contestants[0].name,
        1e3 * window,
        1e3 * full
    )
}

fn window_verdict(ours: &Contestant) -> Option<(bool, String)> {
    let (window, full) = window_and_full(ours)?;
    let share = window / full;
    let line = format!(
        "a window takes {share:.4} of the time of a full decode; promised: at most \
         {MOST_OF_FULL_DECODE}"
    );
    Some((share <= MOST_OF_FULL_DECODE, line))
}

#[cfg(test)]
mod tests {
    use super::super::suite::OURS;
    use super::super::table::tests::contestant;
    use super::*;

    #[test]
    fn a_window_is_compared_with_a_full_decode() {
        // 1,000 windows in 1 second on 2 threads: 2 ms each.
        let ours = |full: f64| {
            let mut ours = contestant(OURS, &[1.0]);
            ours.reports = vec![serde_json::json!({ "full_decode_s": full })];
            ours
        };
        assert!(window_verdict(&ours(0.041)).unwrap().0);
        let (kept, line) = window_verdict(&ours(0.039)).unwrap();
        assert!(!kept && line.starts_with("a window takes 0.0513 of"), "{line}");
        let text = "\nBy spdl_rs.Loader, a window takes 2.00 ms of a thread, and a decode of the whole file 41 ms.\n";
        assert_eq!(window_sentence(&[ours(0.041)]), text);
        assert_eq!(window_sentence(&[contestant(OURS, &[1.0])]), "");
    }
}
