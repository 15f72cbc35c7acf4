//! The options of `spdl verify`.

use std::path::PathBuf;

use clap::Args;

use crate::commands::options::{count, data_help};
use crate::datasets::address::path_or_url;

/// Verifies all checksums and decodes all images, audio and video
///
/// For a set that `spdl pack` wrote, local or in a store, compares the size and checksum of each
/// shard and each member. A missing shard, or an archive that the manifest does not list, is an
/// error. For single tar archives, uses manifest.json and the checksum files (ARCHIVE.tar.sums) in
/// the same folder, if they exist. For an archive at a signed URL, these files are not read.
///
/// For every data set, decodes each image, audio file and video completely. Their names need the
/// extension of a format. Without the cargo feature `ffmpeg`, videos, and audio in containers such
/// as M4A, are reported as unsupported. In a tar archive without checksums, the
/// command detects only damaged media files, damaged headers and truncation. After a corrupt header, the
/// rest of an archive cannot be read: the output gives the number of members that were not read, if
/// a manifest or checksum file lists them. If a data set with media files has defects, the
/// output gives an `spdl pack` command that copies the valid samples, unless a URL contains secrets.
#[derive(Clone, Debug, Args)]
#[command(after_help = concat!("\
Examples:
  spdl verify shards/
  spdl verify *.tar --json | jq -r '.bad[].key'
  spdl verify photos/              a folder of images, audio or video
  spdl verify clips/ --quick       headers and tables only; needs no decoder of video
  spdl verify s3://bucket/set/     a packed set in a store
  spdl verify 's3://bucket/*.tar'  archives in a store

", data_help!(), "\
Keys of the JSON object:
  sound          true if no defect was found
  archives       number of archives read
  members        number of members of the archives; for other data sets, number of fields of all
                 samples
  images, audio, videos
                 number of images, audio files and videos decoded, or inspected with --quick
  checksums      number of members compared with their checksum
  by_manifest    number of archives compared with the size and checksum in a manifest
  without_checksums
                 number of archives without checksums of members, and without a manifest that
                 requires checksums
  bytes          total size of the members
  unseen         number of members that a manifest or checksum file lists but that were not
                 read, because they follow damage in their archive, or the archive is missing
  archives_without_end
                 number of damaged or truncated archives whose number of members is unknown
  bad            [{shard, key, offset, kind, reason}], one entry for each defect; `shard` is the
                 archive, null in other data sets; `key` is the name of the member, null if the
                 defect is not in a member; `offset` is the position in bytes of the damage, or
                 of the member's data, in the archive; for audio and video, `reason` gives the time
                 of the damage in seconds; at most 100,000 entries
  bad_total      number of defects

Exit codes:
  0  no defect
  1  a defect was found, or data cannot be read; standard error gives a summary in one line
  2  invalid command line"))]
pub(crate) struct VerifyArguments {
    /// The data set: a folder, files, or URLs
    #[arg(value_name = "DATA", required = true, value_parser = path_or_url())]
    pub(crate) paths: Vec<PathBuf>,

    /// Do not decode: read only the headers of images and audio and the tables of videos
    #[arg(long)]
    pub(crate) quick: bool,

    /// Number of worker threads [default: number of CPUs available to the process]
    #[arg(long, value_name = "N", value_parser = count::<u32>(1024))]
    pub(crate) threads: Option<u32>,

    /// Print one JSON object instead of text, and no progress bar
    #[arg(long)]
    pub(crate) json: bool,
}
