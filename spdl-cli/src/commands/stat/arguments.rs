//! The options of `spdl stat`.

use std::path::PathBuf;

use clap::Args;

use crate::commands::options::{count, data_help};
use crate::datasets::address::path_or_url;

/// Prints statistics of a data set: counts, sizes, resolutions, formats, classes
///
/// Reads all members, the headers of all images and audio files, and the tables of all videos.
/// Decodes only what the HTML page shows: images, frames of videos and waveforms. The names of media
/// files need the extension of a format. Without the cargo feature `ffmpeg`, the program reads videos
/// in MP4, MOV, Matroska and WebM, but neither their audio nor their frames.
#[derive(Clone, Debug, Args)]
#[command(after_help = concat!("\
Examples:
  spdl stat shards/
  spdl stat shards/ --html shards.html    with histograms and a contact sheet, in one file
  spdl stat photos/ --json
  spdl stat clip.mp4                      size, frame rate, key frames and audio of a video
  spdl stat speech/ --html speech.html    durations and waveforms

", data_help!(), "\
Keys of the JSON object:
  samples, members, bytes
                 total numbers of samples and members, and total size of the members
  fields         {FIELD: {members, bytes}}; in tar archives, FIELD is the part of the
                 name after its first dot
  formats        {FORMAT: number of images}; the format is detected from the content
  unreadable     number of members, archives and headers of media files that cannot be read
  width, height, image_bytes
                 {min, p10, p50, p90, max, mean} over all images, after EXIF orientation; null
                 without images
  audio          null without audio files; otherwise {files, seconds, without_duration, formats,
                 codecs, sample_rates, channels, duration, bytes, shortest, longest, smallest,
                 largest, listed}: `seconds` is the total of the known durations; `formats` to
                 `channels` count files by value; `duration` (in seconds) and `bytes` are {min,
                 p10, …} as above; `shortest` to `largest` are keys, by duration and bytes; `listed`
                 has {key, format, codec, seconds, sample_rate, channels, frames, bytes} for each
                 file, at most 1,000; `frames` counts samples per channel. `seconds` and `frames`
                 of a file are null if they are unknown without decoding
  video          null without videos; otherwise as `audio`, with `containers`, `codecs`, `rates`
                 (constant or variable), `audio_codecs`, and {min, p10, …} of `width`, `height`,
                 `frame_rate`, `frames`, `key_distance` (the mean of a file). `listed` has {key,
                 container, codec, width, height, rotation, color: {primaries, transfer, matrix,
                 hdr}, frame_rate, variable_rate, frames, seconds, key_distance: {min, mean, max},
                 disposable, audio: {codec, seconds, sample_rate, channels}, bytes}. Width and
                 height are after rotation; `rotation` is in degrees clockwise; `color` has the
                 numbers of ITU-T H.273 that the container names, else null; `frame_rate` is the mean; `key_distance` counts frames
                 from key frame to key frame; `disposable` is the share of frames that no other
                 frame refers to, null if unknown; `audio` is null if there is no audio stream, or
                 without the cargo feature `ffmpeg`
  unseen, archives_without_end
                 as in `spdl verify`
  classes        [{class, name, samples}], sorted by class number; the class is read from the
                 field `cls`, or is the folder of the image
  unreadable_members
                 [{shard, key, offset, kind, reason}] as in `spdl verify`; at most 1,000

Exit codes:
  0  success
  1  data cannot be read: the output covers the readable data, then lists the errors; standard
     error gives a summary in one line
  2  invalid command line"))]
pub(crate) struct StatArguments {
    /// The data set: a folder, files, or URLs
    #[arg(value_name = "DATA", required = true, value_parser = path_or_url())]
    pub(crate) paths: Vec<PathBuf>,

    /// Write an HTML page with histograms, a contact sheet, frames of videos and waveforms to this
    /// file
    #[arg(long, value_name = "FILE.html")]
    pub(crate) html: Option<PathBuf>,

    /// Number of worker threads [default: number of CPUs available to the process]
    #[arg(long, value_name = "N", value_parser = count::<u32>(1024))]
    pub(crate) threads: Option<u32>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
