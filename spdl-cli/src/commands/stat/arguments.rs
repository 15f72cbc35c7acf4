//! The options of `spdl stat`.

use std::path::PathBuf;

use clap::Args;

use crate::commands::options::count;
use crate::datasets::address::place;

/// Tells what a data set holds: counts, sizes, resolutions, formats, classes
///
/// Reads all members and the headers of all images; pixels only of those on the contact sheet.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  spdl stat shards/
  spdl stat shards/ --html shards.html    with histograms and a contact sheet, in one file
  spdl stat photos/ --json

The data, DATA:
  tar archives, a folder with them, or what `spdl pack` has written; or any other data set that
  `spdl bench` reads: folders of images, lists of files, Parquet, TFRecord, MDS, and addresses
  (http://, https://, s3://, gs://, az://), as far as they are built in

Keys of the JSON object:
  samples, members, bytes       in all
  fields         {FIELD: {members, bytes}}; of tar archives, a name's part behind its first dot
  formats        {FORMAT: images}, by content
  unreadable     images whose header cannot be read, and members and archives that could not be
  width, height, image_bytes
                 {min, p10, p50, p90, max, mean} of images, turned upright; null without images
  unseen, archives_without_end
                 as of `spdl verify`
  classes        [{class, name, samples}], by number; from the fields `cls`, or the folder
  unreadable_members
                 [{shard, key, offset, kind, reason}] as of `spdl verify`; 1,000 at most

Exit codes:
  0  done
  1  something could not be read: what there is of the rest is told, then what and why; standard
     error says how much, in one line
  2  the command line makes no sense")]
pub(crate) struct StatArguments {
    /// A folder, files, or an address
    #[arg(value_name = "DATA", required = true, value_parser = place())]
    pub(crate) paths: Vec<PathBuf>,

    /// Write a page with histograms and thumbnails to this file: self-contained HTML
    #[arg(long, value_name = "FILE.html")]
    pub(crate) html: Option<PathBuf>,

    /// Worker threads [default: the CPUs that this process may use]
    #[arg(long, value_name = "N", value_parser = count::<u32>(1024))]
    pub(crate) threads: Option<u32>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
