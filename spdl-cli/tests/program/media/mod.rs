//! Audio and video files in all commands.
//!
//! Without the cargo feature `ffmpeg`, the program reads the tables of MP4 and Matroska files, but
//! decodes no frames.

mod bench;
mod checked;
mod inspected;
mod packed;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Folder, Run, finish, spdl};

const HAS_FFMPEG: bool = cfg!(feature = "ffmpeg");

/// Audio files that every build reads: their names, which differ without extensions, and their
/// sources.
const AUDIO: [(&str, &str); 6] = [
    ("mono-16.flac", "mono-16.flac"),
    ("stereo-24.wav", "stereo-24.wav"),
    ("mpeg.mp3", "mono.mp3"),
    ("vorbis.ogg", "stereo.ogg"),
    ("opus.opus", "mono.opus"),
    ("adts.aac", "stereo.aac"),
];
/// Videos whose tables every build reads.
const VIDEOS: [&str; 4] = ["h264.mp4", "h264.mkv", "vp9.webm", "h264_rotated_90.mp4"];

/// A test file of the crate `spdl-media`.
fn source(kind: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../spdl-media/tests").join(kind).join(name)
}

fn audio(name: &str) -> Vec<u8> {
    fs::read(source("audio", name)).unwrap()
}

fn video(name: &str) -> Vec<u8> {
    fs::read(source("video", name)).unwrap()
}

/// A folder with the files of [`AUDIO`] in `speech`, and of [`VIDEOS`] in `clips`, in two classes.
fn folder() -> Folder {
    let folder = Folder::new();
    for (number, (name, source)) in AUDIO.iter().enumerate() {
        folder.add(format!("speech/class-{}/{name}", number % 2), &audio(source));
    }
    for (number, name) in VIDEOS.iter().enumerate() {
        folder.add(format!("clips/class-{}/{name}", number % 2), &video(name));
    }
    folder
}

fn run(command: &str, data: &[PathBuf], arguments: &[&str]) -> Run {
    finish(spdl().arg(command).args(data).args(arguments).output().unwrap())
}

/// The JSON object on standard output, whatever the exit code.
fn json(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}{}", run.stdout, run.stderr))
}
