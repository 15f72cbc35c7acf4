//! The command line of `spdl pack`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use spdl_io::shards::ShardPlan;

use crate::commands::options::{OnError, count, name_of};
use crate::datasets::address::path_or_url;
use crate::datasets::input::Fields;
use crate::ui::format::byte_size;

/// Writes a data set of images as tar shards, in the layout of WebDataset
///
/// Each sample becomes members of an archive: its image, its class's number (`.cls`), where there are
/// classes, and its other fields. Images go over byte for byte, unless --max-side or --format asks for
/// others. The same data and options give the same bytes, on any number of threads.
///
/// Ended in any way (Ctrl-C, `kill -9`, a full disk, no power) and given again, the same command goes on
/// behind the shards that are finished, and gives what it would have given undisturbed.
#[derive(Clone, Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  spdl pack photos/ shards/
      all images as they are, in their order

  spdl pack photos/ shards/ --max-side 512 --shuffle 7
      images larger than 512 pixels become smaller ones, JPEG of quality 90; shuffled

  spdl pack photos/ shards/ --name train --shard-size 1GB --on-error skip --json
      train-000000.tar and so on, of 1 GB at most; what is no image is left out and listed

  spdl pack 's3://bucket/train-{000..147}.tar' shards/ --shuffle 7 --shard-size 1GB
      other shards of the same samples, in another order

  spdl pack 'data/train-*.parquet' shards/ --fields caption
      of a table the images, classes and captions

  spdl pack damaged/ sound/ --on-error skip --check
      what is whole of a set that `spdl verify` has found damaged: shards may be missing or cut, and
      members whose checksums are wrong are left out

  spdl verify shards/ && spdl stat shards/ --html shards.html
      is all of it sound, and what does it look like?

The data, SRC, as for `spdl bench`:
  a folder of images     SRC/CLASS/**/IMAGE, or images directly in SRC
  files of one kind      .tar; .parquet; .tfrecord; a list: .txt, .csv, .jsonl
  another folder         with such files, or with the shards of MosaicML (index.json)
  an address             http://, https://, s3://, gs:// or az:// of any of those
  Names may have braces ({000..147}), and in their last part * and ?, in quotation marks for the shell.
  What is built in, `spdl bench --help` tells

Files written, all in DST:
  NAME-000000.tar …  samples: KEY.jpg and KEY.cls, one behind the other
  *.tar.idx          where the members lie: for fast access; made anew where it is missing
  *.tar.sums         a checksum (XXH3, 128 bits) for each member, as `xxh128sum` writes them
  manifest.json      sizes, checksums, counts, fields, classes and options; written last
  manifest.journal   while the set is not complete: which shards are; and *.partial
  DST is a folder of this machine, and not in SRC. It is made where it is missing. A folder that holds
  anything else is not written to.

The key of a sample:
  of a folder or a list, the image's path without its last extension; of tar archives, the key that it
  has there; of other files, FILE/ROW. Other dots in the last part become '_', as a dot ends a key; where
  two samples would have one key, the second is KEY_2, and so on

The fields of a sample:
  of tar archives, under their names and byte for byte, whatever they are; an image that is encoded anew
  gets the ending of its format. Of other files: NAME.txt is a text, NAME.json a number, a truth value or
  JSON, NAME.npy an array or a list of numbers, and bytes are NAME, or NAME.png and so on where they are
  an image; slashes become '_', and letters small. What is empty is left out. A list of bytes becomes
  NAME.0, NAME.1 and so on

Keys of the JSON object:
  samples           in the set
  shards, bytes     tar files, and their sizes together
  skipped           images that were left out (--on-error skip)
  skipped_samples   [{position, key, reason}] of them, 100,000 at most
  lost              samples that the manifest of a damaged set names and that are not in it any more
  classes           how many there are
  resumed           samples that were there when this run began
  unchanged, encoded
                    images of this run that went over as they were, and that were encoded anew
  seconds           that this run took, without listing the folder
  manifest          the path of the manifest

Exit codes:
  0  done, or nothing was left to do
  1  the run failed; standard error says why, in one line
  2  the command line makes no sense"
)]
pub(crate) struct PackArguments {
    /// A folder of images, files of another data set, or an address of either
    #[arg(value_name = "SRC", required = true, value_parser = path_or_url())]
    pub(crate) sources: Vec<PathBuf>,

    /// The folder for the shards
    #[arg(value_name = "DST", required = true, value_parser = path_or_url())]
    pub(crate) destination: PathBuf,

    /// What the names of shards begin with
    #[arg(long, value_name = "NAME", default_value = "shard")]
    pub(crate) name: String,

    /// Make images smaller whose longer side has more pixels than this, in proportion; they are JPEG
    /// then, or what --format says [default: no image is changed]
    #[arg(long, value_name = "PIXELS", value_parser = count::<u32>(65_535))]
    pub(crate) max_side: Option<u32>,

    /// The quality of JPEG that is written, 1 to 100 [default: 90]
    #[arg(long, value_name = "QUALITY", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) quality: Option<u8>,

    /// The format of all images; those that have another one are encoded anew
    /// [default: each keeps its own, and what --max-side makes smaller becomes JPEG]
    #[arg(long, value_enum)]
    pub(crate) format: Option<OutputFormat>,

    /// The field of a sample that is its image; of a list, the column that names the file
    /// [default: by the usual names, such as jpg, png, image, path]
    #[arg(long, value_name = "NAME")]
    pub(crate) image_field: Option<String>,

    /// The field of a sample, or the column of a list, that is its class [default: by the usual names,
    /// such as cls, label]
    #[arg(long, value_name = "NAME")]
    pub(crate) label_field: Option<String>,

    /// The other fields that go over, with commas between them; `--fields ''` for none [default: all]
    #[arg(long, value_name = "NAMES", value_parser = names)]
    pub(crate) fields: Option<FieldNames>,

    /// Shuffle the samples by this seed; those of Parquet files within windows of 10,000
    #[arg(long, value_name = "SEED")]
    pub(crate) shuffle: Option<u64>,

    /// The most bytes of a shard: 500000, 256MB, 1.5GB, 64MiB
    #[arg(long, value_name = "BYTES", default_value = "256MB", value_parser = byte_size)]
    pub(crate) shard_size: u64,

    /// The most samples of a shard [default: as many as fit]
    #[arg(long, value_name = "N", value_parser = count::<u64>(u64::MAX))]
    pub(crate) shard_samples: Option<u64>,

    /// Worker threads that decode and encode [default: the CPUs that this process may use]
    #[arg(long, value_name = "N", value_parser = count::<u32>(1024))]
    pub(crate) threads: Option<u32>,

    /// What happens when an image cannot be read, or decoded where that is needed
    #[arg(long, value_enum, default_value_t = OnError::Raise)]
    pub(crate) on_error: OnError,

    /// Decode every image whole, also those that go over as they are: what is damaged is treated as
    /// --on-error says [default: only headers of those are read]
    #[arg(long)]
    pub(crate) check: bool,

    /// Write anew where DST holds a set that is complete, or of which shards were finished, with other
    /// images or options. The old one is lost then
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Print one JSON object instead of a summary, and no progress
    #[arg(long)]
    pub(crate) json: bool,
}

/// Names of fields, in their order.
pub(crate) type FieldNames = Vec<String>;

fn names(text: &str) -> Result<FieldNames, std::convert::Infallible> {
    let mut names: Vec<String> =
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// What images become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// JPEG
    Jpeg,
    /// PNG, without loss
    Png,
    /// WebP, without loss
    Webp,
    /// Its own, also where it is made smaller; what cannot be written so (GIF, BMP, TIFF) becomes PNG
    Keep,
}

impl PackArguments {
    /// The fields that were named.
    pub(crate) fn image_and_label(&self) -> Fields<'_> {
        Fields { image: self.image_field.as_deref(), label: self.label_field.as_deref() }
    }

    /// The names of fields that were given, each with its option.
    pub(crate) fn named_fields(&self) -> Vec<(&'static str, &str)> {
        let one = [("--image-field", &self.image_field), ("--label-field", &self.label_field)];
        let one = one.into_iter().filter_map(|(option, name)| Some((option, name.as_deref()?)));
        let others = self.fields.iter().flatten().map(|name| ("--fields", &**name));
        one.chain(others).collect()
    }

    /// Whether any image may be encoded anew.
    pub(crate) fn may_encode(&self) -> bool {
        self.max_side.is_some() || !matches!(self.format, None | Some(OutputFormat::Keep))
    }

    /// The shards as they are asked for; what of it comes from the source is to be added.
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
        for (part, value) in [
            ("image field", self.image_field.as_ref()),
            ("label field", self.label_field.as_ref()),
            ("fields", fields.as_ref()),
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
            // Another version may encode otherwise.
            .recipe("encoder", concat!("spdl ", env!("CARGO_PKG_VERSION")))
    }

    pub(crate) fn quality(&self) -> u8 {
        self.quality.unwrap_or(90)
    }
}
