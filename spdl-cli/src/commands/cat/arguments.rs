//! The options of `spdl cat`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::commands::options::{data_help, non_negative};
use crate::datasets::address::path_or_url;

/// Writes a field of a sample to standard output
///
/// With --field, KEY is the key of a sample (`cat/1`), as `spdl ls --samples` prints it. Without
/// --field, KEY is the name of a tar member or of a file (`cat/1.jpg`); in other data sets, the key
/// of a sample, a dot and a field. If several members of a local archive have the same name, the
/// last one is written, as tar does when it extracts them. Among several archives, and in other
/// data sets, the first match is used. If an index file is stored beside the archive, the command
/// reads the index and the requested member, not the headers of all members.
///
/// By default, the bytes are written unchanged. With --frame or --time, one frame of a video is
/// decoded and written as PNG (needs the cargo feature `ffmpeg`). With --start or --end, audio is
/// decoded and written as WAV with 16-bit samples; the audio of videos needs the feature as well.
#[derive(Clone, Debug, Args)]
#[command(after_help = concat!("\
Examples:
  spdl cat shards/ cat/1.jpg > 1.jpg
  spdl cat shards/ cat/1 --field cls
  spdl cat shard-000000.tar cat/1.json | jq .
  spdl cat train.parquet train.parquet:17 --field caption
  spdl cat clips/ cooking/1.mp4 --time 2.5 > frame.png
  spdl cat speech/ 1.flac --start 10 --end 20 > part.wav

", data_help!(), "\
Exit codes:
  0  success
  1  the member does not exist or cannot be read; standard error gives the reason in one line
  2  invalid command line, or the field is binary data and standard output is a terminal"))]
pub(crate) struct CatArguments {
    /// The data set: a folder, a file, or a URL
    #[arg(value_name = "DATA", value_parser = path_or_url())]
    pub(crate) path: PathBuf,

    /// Name of a member or file; if --field is given, the key of a sample
    #[arg(value_name = "KEY")]
    pub(crate) key: OsString,

    /// Field of the sample to write, such as jpg or cls
    #[arg(long, value_name = "FIELD")]
    pub(crate) field: Option<String>,

    /// Write this frame of a video as PNG: its number in order of presentation, from 0
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["time", "start", "end"])]
    pub(crate) frame: Option<usize>,

    /// Write the frame of a video that is shown at this time as PNG, in seconds from the first frame
    #[arg(long, value_name = "SECONDS", value_parser = non_negative, conflicts_with_all = ["start", "end"])]
    pub(crate) time: Option<f64>,

    /// Write audio as WAV from this time on, in seconds [default: 0, if --end is given]
    #[arg(long, value_name = "SECONDS", value_parser = non_negative)]
    pub(crate) start: Option<f64>,

    /// Write audio as WAV up to this time, in seconds [default: the end, if --start is given]
    #[arg(long, value_name = "SECONDS", value_parser = non_negative)]
    pub(crate) end: Option<f64>,
}
