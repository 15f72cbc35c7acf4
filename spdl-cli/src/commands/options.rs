//! Options and value parsers that several subcommands share.

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

/// A number from 1 to `most`.
pub(crate) fn count<T: TryFrom<u64> + Clone + Send + Sync>(most: u64) -> RangedU64ValueParser<T>
where
    <T as TryFrom<u64>>::Error: std::error::Error + Send + Sync + 'static,
{
    RangedU64ValueParser::new().range(1..=most)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    /// The first failure ends the run with exit code 1
    Raise,
    /// The image is left out and listed, and the next one takes its place
    Skip,
}

/// The name by which the command line knows a value.
pub(crate) fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
