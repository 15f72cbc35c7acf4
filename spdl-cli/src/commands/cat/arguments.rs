//! The options of `spdl cat`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::datasets::address::place;

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
