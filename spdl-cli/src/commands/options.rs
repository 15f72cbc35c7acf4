//! Options, value parsers and help texts that several subcommands share.

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

/// The section of `--help` about DATA, for the subcommands that read any data set.
macro_rules! data_help {
    () => {
        "\
Data sets, DATA:
  Tar archives, a folder with tar archives, or the output of `spdl pack`; or any other data set that
  `spdl bench` reads: folders of images, lists of files, Parquet, TFRecord, MDS, and URLs
  (http://, https://, s3://, gs://, az://), if the program was built with the feature

"
    };
}
pub(super) use data_help;

/// Parses a number from 1 to `most`.
pub(crate) fn count<T: TryFrom<u64> + Clone + Send + Sync>(most: u64) -> RangedU64ValueParser<T>
where
    <T as TryFrom<u64>>::Error: std::error::Error + Send + Sync + 'static,
{
    RangedU64ValueParser::new().range(1..=most)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    /// End the run at the first failure, with exit code 1
    Raise,
    /// Skip the image, list it, and continue with the next one
    Skip,
}

/// The name of a value on the command line.
pub(crate) fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
