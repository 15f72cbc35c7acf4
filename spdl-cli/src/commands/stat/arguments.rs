//! The options of `spdl stat`.

use std::path::PathBuf;

use clap::Args;

use crate::commands::options::{count, data_help};
use crate::datasets::address::path_or_url;

/// Prints statistics of a data set: counts, sizes, resolutions, formats, classes
///
/// Reads all members and the headers of all images. Decodes only the images of the contact sheet.
#[derive(Clone, Debug, Args)]
#[command(after_help = concat!("\
Examples:
  spdl stat shards/
  spdl stat shards/ --html shards.html    with histograms and a contact sheet, in one file
  spdl stat photos/ --json

", data_help!(), "\
Keys of the JSON object:
  samples, members, bytes
                 total numbers of samples and members, and total size of the members
  fields         {FIELD: {members, bytes}}; in tar archives, FIELD is the part of the
                 name after its first dot
  formats        {FORMAT: number of images}; the format is detected from the content
  unreadable     number of members, archives and image headers that cannot be read
  width, height, image_bytes
                 {min, p10, p50, p90, max, mean} over all images, after EXIF orientation; null
                 without images
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

    /// Write an HTML page with histograms and a contact sheet to this file
    #[arg(long, value_name = "FILE.html")]
    pub(crate) html: Option<PathBuf>,

    /// Number of worker threads [default: number of CPUs available to the process]
    #[arg(long, value_name = "N", value_parser = count::<u32>(1024))]
    pub(crate) threads: Option<u32>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
