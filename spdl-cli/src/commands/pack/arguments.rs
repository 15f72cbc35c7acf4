//! The options of `spdl pack`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use spdl_io::shards::ShardPlan;

use crate::commands::options::{FieldOptions, OnError, count, name_of};
use crate::datasets::address::path_or_url;
use crate::ui::format::byte_size;

/// Writes a data set of images, audio or video as tar shards in the WebDataset layout
///
/// Each sample is written as members of a tar archive: its image, audio or video file, the number of
/// its class (`.cls`) if there are classes, and its other fields. Audio and video files are copied
/// unchanged, and so are images, unless --max-side or --format requires encoding. The same data and options produce the same shards,
/// with any number of threads; encoded images may change with the version of `spdl`.
///
/// If the command is interrupted (Ctrl-C, `kill -9`, a full disk, a power failure), run it again:
/// it continues after the finished shards, and the result is the same as without the interruption.
#[derive(Clone, Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  spdl pack photos/ shards/
      copy all images unchanged, in the order of the data set

  spdl pack photos/ shards/ --max-side 512 --shuffle 7
      shuffled; images with a side longer than 512 pixels are reduced and stored as JPEG

  spdl pack photos/ shards/ --name train --shard-size 1GB --on-error skip --json
      train-000000.tar and so on, of at most 1 GB; invalid images are skipped and listed

  spdl pack 's3://bucket/train-{000..147}.tar' shards/ --shuffle 7 --shard-size 1GB
      repack existing shards in a new order

  spdl pack 'data/train-*.parquet' shards/ --fields caption
      copy images, classes and captions of Parquet files

  spdl pack masks.csv shards/ --file-fields mask
      copy the images of a list, and the files that its column `mask` names

  spdl pack damaged/ repaired/ --on-error skip --check
      copy the valid samples of a damaged set: shards may be missing or truncated, and samples
      with wrong checksums are skipped

  spdl verify shards/ && spdl stat shards/ --html shards.html
      check the result, and write statistics with a contact sheet

Data sets, SRC, as for `spdl bench`:
  a folder of images     SRC/CLASS/**/IMAGE, or images directly in SRC
  of audio or video      in the same way, if the folder has no images
  files of one kind      .tar; .zip; .parquet; .tfrecord; .rec; .mdb, .lmdb; a list: .txt, .csv,
                         .jsonl; COCO annotations: .json; an image set of Pascal VOC: .txt
  another folder         with such files, or with MosaicML or LitData shards (index.json)
  a URL                  any of these at http://, https://, s3://, gs://, az:// or hf://
  Names may contain braces ({000..147}), and `*` and `?` in their last part; quote such names for
  the shell. `spdl bench --help` lists the cargo feature that each kind needs

Output files, all in DST:
  NAME-000000.tar …  samples, as consecutive members KEY.jpg and KEY.cls
  *.tar.idx          index of the members, for random access; rebuilt if it is missing
  *.tar.sums         checksum (XXH3, 128 bits) of each member, in the format of `xxh128sum`
  manifest.json      sizes, checksums, counts, fields, classes and options; written last
  manifest.journal   list of the finished shards of an incomplete set
  *.partial          files that are being written
  DST is a local folder outside SRC, and is created if it does not exist. If DST contains other
  files, the command fails.

Key of a sample:
  For a folder or a list, the path of the image relative to the folder (of the list), without the
  last extension; for tar archives, the original key; for other files, FILE/ROW. Further dots in
  the last part become '_', because a key ends at the first dot. If two samples have the same key,
  the second becomes KEY_2, and so on

Fields of a sample:
  All fields, or those of --fields. Members of tar archives are copied under their names; an image
  that is encoded gets the extension of its new format. From other files, a text becomes NAME.txt;
  a number, boolean or JSON value, such as a list of JSON Lines or COCO, becomes NAME.json; an array
  or list of numbers of other data sets becomes NAME.npy; bytes become NAME, or, if they are an
  image, NAME.png and so on. In names, slashes become '_', and letters become lower case. Empty
  values are omitted. A list of bytes becomes NAME.0, NAME.1 and so on.
  The loader finds a field by NAME alone, if the sample has one such member

Keys of the JSON object:
  samples           number of samples in the set
  shards, bytes     number of tar files, and their total size
  skipped           number of images skipped (--on-error skip)
  skipped_samples   [{position, key, reason}], one entry for each skipped image; at most 100,000
  lost              number of samples that the manifest of a damaged source lists but that are
                    missing
  classes           number of classes
  resumed           number of samples written by earlier runs
  unchanged, encoded
                    number of images that this run copied, and number that it encoded
  seconds           duration of this run, without listing the source
  manifest          path of the manifest

Exit codes:
  0  success, or the set was already complete
  1  the run failed; standard error gives the reason in one line
  2  invalid command line"
)]
pub(crate) struct PackArguments {
    /// The data set: a folder of images, audio or video, or other files of one kind; paths or URLs
    #[arg(value_name = "SRC", required = true, value_parser = path_or_url())]
    pub(crate) sources: Vec<PathBuf>,

    /// Output folder for the shards
    #[arg(value_name = "DST", required = true, value_parser = path_or_url())]
    pub(crate) destination: PathBuf,

    /// Prefix of the shards' file names
    #[arg(long, value_name = "NAME", default_value = "shard")]
    pub(crate) name: String,

    /// Reduce images whose longer side exceeds this length in pixels, keeping the aspect ratio
    ///
    /// Reduced images are stored as JPEG, unless --format selects another format. By default, no
    /// image is reduced.
    #[arg(long, value_name = "PIXELS", value_parser = count::<u32>(65_535))]
    pub(crate) max_side: Option<u32>,

    /// JPEG quality of encoded images, 1 to 100 [default: 90]
    #[arg(long, value_name = "QUALITY", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) quality: Option<u8>,

    /// Format of the written images; unless it is `keep`, images in other formats are converted
    ///
    /// By default, images that --max-side reduces become JPEG; other images keep their format.
    #[arg(long, value_enum)]
    pub(crate) format: Option<OutputFormat>,

    #[command(flatten)]
    pub(crate) fields_of_sample: FieldOptions,

    /// Comma-separated names of the fields to copy, in addition to image and label; '' copies no
    /// other fields [default: all fields]
    #[arg(long, value_name = "NAMES", value_parser = names)]
    pub(crate) fields: Option<FieldNames>,

    /// Comma-separated names of columns of a list that hold paths of files, such as masks; the files
    /// are packed instead of the paths
    ///
    /// Paths are relative to the folder of the list. The column of the image needs no option.
    #[arg(long, value_name = "NAMES", value_parser = names)]
    pub(crate) file_fields: Option<FieldNames>,

    /// Shuffle the samples with this seed; Parquet files are shuffled within windows of 10,000
    /// samples
    #[arg(long, value_name = "SEED")]
    pub(crate) shuffle: Option<u64>,

    /// Maximum size of a shard in bytes, for example 500000, 256MB, 1.5GB or 64MiB; a larger sample
    /// gets a separate shard
    #[arg(long, value_name = "BYTES", default_value = "256MB", value_parser = byte_size)]
    pub(crate) shard_size: u64,

    /// Maximum number of samples in a shard [default: unlimited]
    #[arg(long, value_name = "N", value_parser = count::<u64>(u64::MAX))]
    pub(crate) shard_samples: Option<u64>,

    /// Number of worker threads [default: number of CPUs available to the process]
    #[arg(long, value_name = "N", value_parser = count::<u32>(1024))]
    pub(crate) threads: Option<u32>,

    /// What to do if an image cannot be read or decoded
    ///
    /// `skip` applies to invalid samples, and to images that are corrupt, truncated, missing, too
    /// large or of an unsupported format. It also accepts a packed set with missing or truncated
    /// shards. Other errors, such as a failed connection or a full disk, end the run.
    #[arg(long, value_enum, default_value_t = OnError::Raise)]
    pub(crate) on_error: OnError,

    /// Decode every image, audio and video file completely, even if it is copied unchanged
    ///
    /// --on-error decides what happens to corrupt files. By default, only the headers of copied
    /// files are checked. To decode videos, the cargo feature `ffmpeg` is needed.
    #[arg(long)]
    pub(crate) check: bool,

    /// Replace a set in DST, even if it was packed from other images or with other options
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Print one JSON object instead of a summary, and no progress bar
    #[arg(long)]
    pub(crate) json: bool,
}

/// Names of fields, sorted and unique.
pub(crate) type FieldNames = Vec<String>;

fn names(text: &str) -> Result<FieldNames, std::convert::Infallible> {
    let mut names: Vec<String> =
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// The format of written images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// JPEG
    Jpeg,
    /// PNG, lossless
    Png,
    /// WebP, lossless
    Webp,
    /// The format of the original file; if --max-side reduces the image, JPEG and WebP (lossless)
    /// keep their format, and other formats become PNG
    Keep,
}

impl PackArguments {
    /// The given field names, each with its option.
    pub(crate) fn named_fields(&self) -> Vec<(&'static str, &str)> {
        let others = self.fields.iter().flatten().map(|name| ("--fields", &**name));
        let files = self.file_fields.iter().flatten().map(|name| ("--file-fields", &**name));
        self.fields_of_sample.named().into_iter().chain(others).chain(files).collect()
    }

    /// Whether the options require encoding of images.
    pub(crate) fn may_encode(&self) -> bool {
        self.max_side.is_some() || !matches!(self.format, None | Some(OutputFormat::Keep))
    }

    /// The plan (all settings that determine the shards); the caller adds the entries about the
    /// source.
    pub(crate) fn plan(&self) -> ShardPlan {
        let plan =
            ShardPlan::new(&self.name).shard_bytes(self.shard_size).overwrite(self.overwrite);
        let plan = match self.shard_samples {
            Some(samples) => plan.shard_samples(samples),
            None => plan,
        };
        let order =
            self.shuffle.map_or("as listed".to_owned(), |seed| format!("shuffled, seed {seed}"));
        let mut plan = plan.recipe("order", order);
        let fields = self.fields.as_ref().map(|names| names.join(","));
        let files = self.file_fields.as_ref().map(|names| names.join(","));
        for (part, value) in [
            ("image field", self.fields_of_sample.image_field.as_ref()),
            ("label field", self.fields_of_sample.label_field.as_ref()),
            ("fields", fields.as_ref()),
            ("file fields", files.as_ref()),
        ] {
            plan = match value {
                Some(value) => plan.recipe(part, value),
                None => plan,
            };
        }
        if !self.may_encode() {
            return plan;
        }
        let side = self.max_side.map_or("any".to_owned(), |side| side.to_string());
        let format = self.format.map_or("as is".to_owned(), name_of);
        plan.recipe("max side", side)
            .recipe("format", format)
            .recipe("quality", self.quality())
            // Another version of the program may produce other bytes.
            .recipe("encoder", concat!("spdl ", env!("CARGO_PKG_VERSION")))
    }

    pub(crate) fn quality(&self) -> u8 {
        self.quality.unwrap_or(90)
    }
}
