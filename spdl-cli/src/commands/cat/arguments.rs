//! The options of `spdl cat`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::commands::options::data_help;
use crate::datasets::address::path_or_url;

/// Writes a field of a sample to standard output
///
/// With --field, KEY is the key of a sample (`cat/1`), as `spdl ls --samples` prints it. Without
/// --field, KEY is the name of a tar member or of a file (`cat/1.jpg`); in other data sets, the key
/// of a sample, a dot and a field. If several members of a local archive have the same name, the
/// last one is written, as tar does when it extracts them. Among several archives, and in other
/// data sets, the first match is used. If an index file is stored beside the archive, the command
/// reads the index and the requested member, not the headers of all members.
#[derive(Clone, Debug, Args)]
#[command(after_help = concat!("\
Examples:
  spdl cat shards/ cat/1.jpg > 1.jpg
  spdl cat shards/ cat/1 --field cls
  spdl cat shard-000000.tar cat/1.json | jq .
  spdl cat train.parquet train.parquet:17 --field caption

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
}
