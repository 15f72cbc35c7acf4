//! The options of `spdl verify`.

use std::path::PathBuf;

use clap::Args;

use crate::commands::options::count;
use crate::datasets::address::place;

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
