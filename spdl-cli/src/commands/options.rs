//! Options, value parsers and help texts that several subcommands share.

use std::thread;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use crate::datasets::input::Fields;
use crate::ui::format::byte_size;

/// The section of `--help` about DATA, for the subcommands that read any data set.
macro_rules! data_help {
    () => {
        "\
Data sets, DATA:
  Tar archives, a folder with tar archives, or the output of `spdl pack`; or any other data set that
  `spdl bench` reads: folders of images, audio and video, such files, zip archives, lists of files, Parquet, TFRecord, MDS,
  LitData, RecordIO, LMDB, and URLs (http://, https://, s3://, gs://, az://, hf://).
  `spdl bench --help` lists the cargo features that some formats and URLs need

"
    };
}
pub(super) use data_help;

/// The options `--image-field`, `--label-field` and `--max-file-size`.
#[derive(Clone, Debug, Args)]
pub(crate) struct FieldOptions {
    /// Field of a sample, or column of a list, that holds the image or its file name
    ///
    /// By default, the program looks for common names, such as jpg, png and image, or, in a
    /// list, path.
    #[arg(long, value_name = "NAME")]
    pub(crate) image_field: Option<String>,

    /// Field of a sample, or column of a list, that holds the class
    ///
    /// By default, the program looks for common names, such as cls, label and class.
    #[arg(long, value_name = "NAME")]
    pub(crate) label_field: Option<String>,

    /// Largest file in bytes; larger ones fail before they are read
    ///
    /// In memory, one file may exceed the memory budget. [default: 64MiB; 4GiB for audio and video]
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) max_file_size: Option<u64>,
}

impl FieldOptions {
    /// The values of both options.
    pub(crate) fn image_and_label(&self) -> Fields<'_> {
        Fields {
            image: self.image_field.as_deref(),
            label: self.label_field.as_deref(),
            max_file_bytes: self.max_file_size,
            ..Fields::default()
        }
    }

    /// The given field names, each with its option.
    pub(crate) fn named(&self) -> Vec<(&'static str, &str)> {
        let given = [("--image-field", &self.image_field), ("--label-field", &self.label_field)];
        given.into_iter().filter_map(|(option, name)| Some((option, name.as_deref()?))).collect()
    }
}

/// The number of worker threads: the value of `--threads`, or the number of CPUs available to the
/// process.
pub(crate) fn worker_threads(threads: Option<u32>) -> usize {
    let available = || thread::available_parallelism().map_or(1, usize::from);
    threads.map_or_else(available, |threads| threads as usize)
}

/// Parses a number from 1 to `most`.
pub(crate) fn count<T: TryFrom<u64> + Clone + Send + Sync>(most: u64) -> RangedU64ValueParser<T>
where
    <T as TryFrom<u64>>::Error: std::error::Error + Send + Sync + 'static,
{
    RangedU64ValueParser::new().range(1..=most)
}

/// Parses a number of seconds, 0 or more.
pub(crate) fn non_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a number of seconds, 0 or more".to_owned()),
    }
}

/// Parses a number above 0.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("expected a number above 0".to_owned()),
    }
}

/// Parses a share from 0 to 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    /// End the run at the first failure, with exit code 1
    Raise,
    /// Skip and list the image, and continue with the next image
    Skip,
}

/// The name of a value on the command line.
pub(crate) fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
