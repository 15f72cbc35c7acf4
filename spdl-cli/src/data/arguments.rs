//! The command lines of `spdl ls`, `cat`, `verify` and `stat`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::arguments::count;
use crate::opened::place;

/// Lists shards, or the samples in them
///
/// Of a folder that was packed, of tar archives, and of other files that hold many samples: the files,
/// with their samples and bytes. Of one archive of this machine, of folders of images, of lists, and
/// with --samples: the samples. In tar archives, members that follow each other and share a key (their
/// name up to the first dot of its last part) are one sample. No sample is read, and nothing is written.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  spdl ls shards/                          the shards
  spdl ls shards/ --samples | wc -l        how many samples are there?
  spdl ls shards/shard-000000.tar --long   the samples of one, with their members
  spdl ls s3://bucket/train/               the shards in a store

The data, DATA:
  tar archives, a folder with them, or what `spdl pack` has written; or any other data set that
  `spdl bench` reads: folders of images, lists of files, Parquet, TFRecord, MDS, and addresses
  (http://, https://, s3://, gs://, az://), as far as they are built in

Keys of the JSON objects, one a line:
  for shards   name, samples, members, bytes (of the file; of files in stores and others than tar those
               of all fields, null where only reading would tell), xxh3_128 (null where no manifest
               tells it, and in stores)
  for samples  key, shard (null where each sample is a file), fields: {FIELD: {offset, bytes}}; the
               offset is that of the data in the shard; both are null where only reading would tell.
               Bytes of names that are not UTF-8 are replaced

Exit codes:
  0  done
  1  something could not be read; standard error says why, in one line
  2  the command line makes no sense")]
pub(crate) struct LsArguments {
    /// A folder, files, or an address
    #[arg(value_name = "DATA", required = true, value_parser = place())]
    pub(crate) paths: Vec<PathBuf>,

    /// List the samples, also of several shards
    #[arg(long)]
    pub(crate) samples: bool,

    /// Tell more: of shards their checksums, of samples their members
    #[arg(long, short)]
    pub(crate) long: bool,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Writes a field of a sample to standard output
///
/// KEY is the whole name of a member (`cat/1.jpg`), or, with --field, the key of a sample (`cat/1`), as
/// `spdl ls --samples` tells it. Of several members with one name it is the last, as it is when an
/// archive is unpacked; of other data sets, the first sample with the key. Only the member is read,
/// where there is an index beside the archive.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  spdl cat shards/ cat/1.jpg > 1.jpg
  spdl cat shards/ cat/1 --field cls
  spdl cat shard-000000.tar cat/1.json | jq .
  spdl cat train.parquet train.parquet:17 --field caption

The data, DATA:
  tar archives, a folder with them, or what `spdl pack` has written; or any other data set that
  `spdl bench` reads: folders of images, lists of files, Parquet, TFRecord, MDS, and addresses
  (http://, https://, s3://, gs://, az://), as far as they are built in

Exit codes:
  0  done
  1  there is no such member, or it could not be read; standard error says why, in one line
  2  the command line makes no sense, or a terminal would get what is no text")]
pub(crate) struct CatArguments {
    /// A folder, files, or an address
    #[arg(value_name = "DATA", value_parser = place())]
    pub(crate) path: PathBuf,

    /// The name of a member, or with --field the key of a sample
    #[arg(value_name = "KEY")]
    pub(crate) key: OsString,

    /// Which field of the sample
    #[arg(long, value_name = "FIELD")]
    pub(crate) field: Option<String>,
}

/// Checks every checksum and decodes every image
///
/// Of a folder that was packed, here or in a store: the sizes and checksums of the shards, and of each
/// member, by which is told what is bad; nothing may be missing, and no other archive be there. Of tar
/// archives that are named: the same by the manifest.json and the checksums (ARCHIVE.tar.sums) that lie
/// beside them, but for archives that were not named. What was compared is told, and what was not:
/// without checksums only damage to images and headers can be seen. Beside an address with a signature
/// nothing is looked for. Of all, also folders of images: each image is decoded whole. Behind a damaged
/// header the rest of an archive cannot be found; how many members that are is told, and the command
/// that packs what is whole.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  spdl verify shards/
  spdl verify *.tar --json | jq -r '.bad[].key'
  spdl verify photos/              a folder of images
  spdl verify s3://bucket/set/     in a store, as `spdl pack` has written it
  spdl verify 's3://bucket/*.tar'  archives in a store

The data, DATA:
  tar archives, a folder with them, or what `spdl pack` has written; or any other data set that
  `spdl bench` reads: folders of images, lists of files, Parquet, TFRecord, MDS, and addresses
  (http://, https://, s3://, gs://, az://), as far as they are built in

Keys of the JSON object:
  sound          whether nothing is bad
  archives       that were read
  members        files in them; of other data sets, fields of samples
  images         members that were decoded
  checksums      members that have a checksum, and were compared with it
  by_manifest    archives whose size and checksum a manifest tells, and that were compared with it
  without_checksums
                 archives whose members have none, and no manifest that asks for them
  bytes          of all members
  unseen         members that a manifest or checksums name and that were not come upon: behind damage,
                 or in an archive that is missing
  archives_without_end
                 that are damaged or cut where nobody tells how many members they had
  bad            [{shard, key, offset, kind, reason}]; `shard` is the archive, null in other data
                 sets; `key` is the name of the member, null where it is not about one; `offset`, in
                 bytes, is that in the shard where its structure is damaged, else that of the member's
                 data; 100,000 at most
  bad_total      how many there are

Exit codes:
  0  nothing is bad
  1  something is bad, or could not be read; standard error says how much, in one line
  2  the command line makes no sense")]
pub(crate) struct VerifyArguments {
    /// A folder, files, or an address
    #[arg(value_name = "DATA", required = true, value_parser = place())]
    pub(crate) paths: Vec<PathBuf>,

    /// Worker threads that decode [default: the CPUs that this process may use]
    #[arg(long, value_name = "N", value_parser = count::<u32>(1024))]
    pub(crate) threads: Option<u32>,

    /// Print one JSON object, and no progress
    #[arg(long)]
    pub(crate) json: bool,
}

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
