//! The options of `spdl bench`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use spdl_core::{Error, ErrorKind, Shard};
use spdl_media::SampleFormat;

use crate::commands::options::{OnError, count};
use crate::datasets::address::{place, shown};
use crate::datasets::opened::Fields;
use crate::ui::format::byte_size;

/// Measures how fast a folder of images, or another data set, becomes training batches
///
/// Reads every image of it, decodes, crops and resizes it into a batch, and drops the
/// batch. Then tells the rate, what it cost, what each stage did, which images failed, and what
/// limits.
///
/// The order and every byte of the batches depend on the data, the settings and the seed, never
/// on the number of threads.
#[derive(Clone, Debug, Args)]
// The last of several values holds, so that a script can add to what it was given.
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  spdl bench photos/
      one pass as for validation: shorter side to 256, centre crop of 224

  spdl bench photos/ --mode train --epochs 3 --seed 7
      three passes as for training: shuffled, random crops and flips

  spdl bench photos/ --layout nchw-f32 --batch 64 --threads 4
      normalised float32 in batches of 64, on 4 worker threads

  spdl bench photos/ --on-error skip --json | jq '.dropped[].key'
      the names of all damaged images

  spdl bench photos/ --mode train --epochs 90 --save-state run.state --auto-resume
      ended in any way and given again, it goes on; the checksum is that of a run that nothing
      disturbed

  spdl bench photos/ --rank 0 --world-size 2 --save-state rank0.state --auto-resume
      rank 0 of two, each with a file of its own
  spdl bench photos/ --rank 0 --world-size 3 --resume rank0.state rank1.state \\
      --save-state of3.rank0.state --auto-resume
      rank 0 of three takes its part of what those two have left of the epoch

  spdl bench photos/ --mode train --epochs 2 --batch 64 --step-ms 30
      would a training that takes 30 ms for each batch have to wait for its data?

  spdl bench photos/ --report report.html
      with charts over time, in one file to look at, send or print

  spdl bench \"s3://bucket/shard-{0000..0147}.tar\" --cache /scratch/cache --epochs 3
      shards of a store; what was read is kept on a disk of this machine

The data, DATA:
  FOLDER              FOLDER/CLASS/**/IMAGE, a class for each folder directly in FOLDER; or images
                      directly in FOLDER. What a file holds is seen by its content; its name only
                      has to end as that of an image. A folder with tar shards (as `spdl pack`
                      writes them), Parquet, TFRecord or MDS files is that data set
  *.tar               tar shards as of webdataset: members that share a name are a sample
  *.parquet           Parquet files, as Hugging Face writes them (feature `parquet`)
  *.tfrecord          TFRecord files of tf.train.Example
  *.txt *.csv *.jsonl a list of files, with classes
  Each may be a path of this machine, or `https://…` and `http://…` (feature `http`), `s3://…`
  (`s3`), `gs://…` (`gcs`), `az://…` (`azure`). Braces name many: {0000..0147}, {train,val}; so do `*` and `?` in the last part of
  a name, where the store lists.

Stores are reached by these variables of the environment; files such as ~/.aws are not read:
  s3  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; or the machine's role
      AWS_REGION          where the bucket is [default: us-east-1]
      AWS_ENDPOINT_URL    another server than Amazon's, https://…; http://… on this machine, and
                          elsewhere with AWS_ALLOW_HTTP=true
      AWS_SKIP_SIGNATURE  true: anonymous access, for public data
  gs  GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS, a file; or the machine's account
      GOOGLE_SKIP_SIGNATURE  true: anonymous access
  az  AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN; or the
      machine's identity
      AZURE_SKIP_SIGNATURE   true: anonymous access
  web name and password in the address; HTTPS_PROXY and NO_PROXY hold for all

The file of a state, FILE:
  It is replaced whole or not at all. The state before is kept as FILE.previous, and is used where
  FILE is damaged or missing. Beside it lie, while a run saves, FILE.lock, which keeps a second run
  away, and FILE.PID.partial; what killed runs have left of those is removed by the next one.
  Symbolic links are followed. What is no state, or no regular file, is never replaced.

Keys of the JSON object:
  images            delivered images, over all epochs; of a resumed run, in this part of it
  seconds           from the start of the pipeline to the last batch; the folder was listed
                    before, and that is not in here
  images_per_s      images / seconds
  cpu_s_per_1000    CPU seconds of the whole process per 1,000 images, also without the listing
  peak_rss_bytes    the most memory the process had at any time
  first_batch_ms    from the start to the first batch
  epoch_starts_s    [seconds], from the start to the first batch of each epoch, of the first 64
  verdict           what limits the rate, in a sentence, as the table says it
  data_readiness    the share of the time in which a batch was ready, 0 to 1
  dropped           [{key, reason}], one for each image that failed, in every epoch;
                    at most 100,000
  resumed           {epoch, step, steps, images, dropped}: where a resumed run went on (`step` is
                    that in the epoch, `steps` those of all epochs), and what was delivered and
                    dropped before; null where it began
  total             {images, dropped} of the whole run, all its parts together; of all ranks up to
                    where their number last changed
  complete          whether the resumed run was complete already
  left_out          images of each epoch that no rank takes (--remainder drop)
  partial           delivered images that are black in part, since their files end early;
                    null without --on-truncated partial
  stages            [{name, kind, concurrency, items, failures, busy_s, busy_share, fill_rate,
                      service_ms: {p50, p90, p99, max},
                      queue: {capacity, items, mean, full_share, empty_share}}]
                    from source to consumer; `queue` is the one behind the stage, and the
                    items in the last one are batches; `fill_rate`, 0 to 1, is the share that
                    is not padding of what a stage groups, null where it groups nothing
  labelled          delivered images that have a class; the others have the label -1
  step_ms           --step-ms; null without it
  steps             {steps, waited, waited_s}: steps of --step-ms behind the first, those of them whose
                    batch was not ready, and how long these waited together; null without it
  kind              what the data are stored as: `image folder`, `tar shards`, …
  cache             {hits, misses, hit_rate, memory_bytes, disk_bytes} of the whole run; null
                    without a cache
  checksum          of all delivered pixels and labels in order, whatever the batch size: a chain
                    of XXH3-128 over all images, one over all labels, and that of both;
                    null with --no-checksum. Of a resumed run it is over what was delivered
                    before, too, but not where the states of several ranks were put together

Exit codes:
  0  done
  1  the run failed; standard error says why, in one line
  2  the command line makes no sense
Ctrl-C ends the program at once, by its signal (130 in a shell): no figures, no report.
With --save-state, SIGTERM and Ctrl-C end it after the batch at hand, by that signal, with its
state saved and the figures so far; a second one ends it at once."
)]
pub(crate) struct BenchArguments {
    /// A folder of images, tar shards, or another data set, here or in a store; several files of one kind
    #[arg(value_name = "DATA", required = true, value_parser = place())]
    pub(crate) data: Vec<PathBuf>,

    /// How an image is cut to size
    #[arg(long, value_enum, default_value_t = Mode::Eval)]
    pub(crate) mode: Mode,

    /// Height and width of the images in a batch, in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 224, value_parser = count::<u32>(16_384))]
    pub(crate) size: u32,

    /// Images in a batch; the last one of an epoch may be shorter
    #[arg(long, value_name = "IMAGES", default_value_t = 32, value_parser = count::<u32>(1 << 20))]
    pub(crate) batch: u32,

    /// How the pixels of a batch lie in memory
    #[arg(long, default_value_t = SampleFormat::NHWC_U8, value_parser = layouts())]
    pub(crate) layout: SampleFormat,

    /// Passes over the folder
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u32>(1_000_000))]
    pub(crate) epochs: u32,

    /// Worker threads that decode [default: the CPUs that this process may use]
    #[arg(long, value_name = "N", value_parser = count::<u32>(1024))]
    pub(crate) threads: Option<u32>,

    /// Seed of the order and of the random crops and flips (train mode)
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Which rank of a distributed training this is, counted from 0; it takes every WORLD-th image of
    /// the order
    #[arg(long, value_name = "RANK")]
    pub(crate) rank: Option<u32>,

    /// How many ranks there are [default: 1]
    #[arg(long, value_name = "WORLD", value_parser = count::<u32>(1 << 20))]
    pub(crate) world_size: Option<u32>,

    /// What becomes of the last images of each epoch, where there are not as many as ranks
    #[arg(long, value_enum, default_value_t = Remainder::Drop)]
    pub(crate) remainder: Remainder,

    /// What happens when an image cannot be read or decoded
    #[arg(long, value_enum, default_value_t = OnError::Raise)]
    pub(crate) on_error: OnError,

    /// What happens when an image's file ends early
    #[arg(long, value_enum, default_value_t = OnTruncated::Error)]
    pub(crate) on_truncated: OnTruncated,

    /// Print one JSON object instead of tables, and no progress
    #[arg(long)]
    pub(crate) json: bool,

    /// Do not sum up what is delivered, which costs a few per cent: for measuring the loader alone
    #[arg(long)]
    pub(crate) no_checksum: bool,

    /// Save how far the run has come to this file, so that it can go on however it ends; on SIGTERM
    /// and Ctrl-C too. Its folder must be there; the state saved before is kept as FILE.previous. A
    /// file with the state of a run that is not complete is not replaced: see --resume,
    /// --auto-resume and --overwrite-state
    #[arg(long, value_name = "FILE")]
    pub(crate) save_state: Option<PathBuf>,

    /// Batches from one saving to the next, at least; the file is written beside the run, for no more
    /// than a twentieth of the time
    #[arg(long, value_name = "N", default_value_t = 1, requires = "save_state",
          value_parser = count::<u32>(u64::from(u32::MAX)))]
    pub(crate) save_every: u32,

    /// Go on from the file of --save-state where it is there, else from those of --resume, else begin:
    /// one line for the first start and for every one after it
    #[arg(long, requires = "save_state", conflicts_with = "overwrite_state")]
    pub(crate) auto_resume: bool,

    /// Begin anew, also where the file of --save-state holds the state of a run that is not
    /// complete. That is lost then
    #[arg(long, requires = "save_state")]
    pub(crate) overwrite_state: bool,

    /// Go on where the run was that saved this file; what decides the batches must be as it was.
    /// Where the number of ranks changes, the files of all ranks, the same on each new rank: the
    /// rest of the epoch is divided among the new ones. A file that is damaged or missing is
    /// replaced by its FILE.previous, and that is told
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) resume: Vec<PathBuf>,

    /// Go on although this part of what decides the batches has changed, as the refusal names it
    /// (`batch`, say); may be given several times
    #[arg(long, value_name = "PART")]
    pub(crate) allow_change: Vec<String>,

    /// The field of a sample that is its image; of a list, the column that names the file
    /// [default: by the usual names, such as jpg, png, image, path]
    #[arg(long, value_name = "NAME")]
    pub(crate) image_field: Option<String>,

    /// The field of a sample, or the column of a list, that is its class [default: by the usual names,
    /// such as cls, label]
    #[arg(long, value_name = "NAME")]
    pub(crate) label_field: Option<String>,

    /// Keep images in this folder, and read each from where it came only once. Several runs, and all ranks
    /// of a host, may share it. Where not all fit, a part that never changes is kept. A file of this
    /// machine that has changed is read again, and so are images and tar shards of a store that tells
    /// versions; of lists of addresses, and of Parquet, TFRecord and MDS files in stores, changes are not
    /// noticed: give those another folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,

    /// The most bytes of --cache [default: 10GB]
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) cache_size: Option<u64>,

    /// Keep images in memory, of so many bytes together
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) cache_memory: Option<u64>,

    /// Keep images decoded, the shorter side of large ones made so long: less work and more room in each
    /// later epoch. Samples then are cut from what is kept, and not from the files
    #[arg(long, value_name = "PIXELS", value_parser = count::<u32>(16_384))]
    pub(crate) cache_pixels: Option<u32>,

    /// Pretend to train: wait so long after each batch, and tell how many steps had to wait for data
    #[arg(long, value_name = "MILLISECONDS", value_parser = count::<u32>(600_000))]
    pub(crate) step_ms: Option<u32>,

    /// Write a report with charts to this file: self-contained HTML
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
}

/// The layouts that samples may have.
fn layouts() -> impl TypedValueParser<Value = SampleFormat> {
    let interleaved = "[batch, height, width, RGB]";
    let planes = "[batch, RGB, height, width]";
    let normalised = "normalised by ImageNet's mean and deviation";
    let told = [
        ("nhwc-u8", format!("{interleaved}, uint8, 0 to 255")),
        ("nhwc-f16", format!("{interleaved}, float16, {normalised}")),
        ("nhwc-bf16", format!("{interleaved}, bfloat16, {normalised}")),
        ("nhwc-f32", format!("{interleaved}, float32, {normalised}")),
        ("nchw-u8", format!("{planes}, uint8, 0 to 255")),
        ("nchw-f16", format!("{planes}, float16, {normalised}")),
        ("nchw-bf16", format!("{planes}, bfloat16, {normalised}")),
        ("nchw-f32", format!("{planes}, float32, {normalised}")),
    ];
    PossibleValuesParser::new(told.map(|(name, about)| PossibleValue::new(name).help(about)))
        .try_map(|name| name.parse::<SampleFormat>())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Random area of 8 to 100 % and ratio of 3:4 to 4:3, flipped half of the time; shuffled
    Train,
    /// Shorter side to size / 0.875, centre crop; in the folder's order
    Eval,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTruncated {
    /// It is damaged, as --on-error says
    Error,
    /// What there is of the image is used, the rest is black; such images are counted
    Partial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Remainder {
    /// No rank takes them: all have equally many images
    Drop,
    /// The first images of the epoch come again, until all ranks have equally many
    Pad,
    /// Some ranks have one image more than others
    Uneven,
}

impl BenchArguments {
    /// The fields that were named.
    pub(crate) fn image_and_label(&self) -> Fields<'_> {
        Fields { image: self.image_field.as_deref(), label: self.label_field.as_deref() }
    }

    /// The names of fields that were given, each with its option.
    pub(crate) fn named_fields(&self) -> Vec<(&'static str, &str)> {
        let given = [("--image-field", &self.image_field), ("--label-field", &self.label_field)];
        given.into_iter().filter_map(|(option, name)| Some((option, name.as_deref()?))).collect()
    }

    /// Which rank this is.
    pub(crate) fn rank(&self) -> u64 {
        self.rank.unwrap_or(0).into()
    }

    /// How many ranks there are.
    pub(crate) fn world(&self) -> u64 {
        self.world_size.unwrap_or(1).into()
    }

    /// Which part of each epoch is this rank's.
    ///
    /// # Errors
    /// Where there is no such rank, nobody says how many there are, or which of several this is.
    pub(crate) fn shard(&self) -> spdl_core::Result<Shard> {
        let missing = match (self.rank, self.world_size) {
            (Some(rank), None) => Some(format!("--rank {rank} of how many? --world-size says it")),
            // Ranks that all took themselves for the first one would all deliver its part.
            (None, Some(world @ 2..)) => {
                Some(format!("which rank of --world-size {world}? --rank says it"))
            }
            _ => None,
        };
        if let Some(message) = missing {
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let remainder = match self.remainder {
            Remainder::Drop => spdl_core::Remainder::Drop,
            Remainder::Pad => spdl_core::Remainder::Pad,
            Remainder::Uneven => spdl_core::Remainder::Uneven,
        };
        Ok(Shard::new(self.rank(), self.world())?.remainder(remainder))
    }

    /// The addresses as they may be shown.
    pub(crate) fn shown(&self) -> PathBuf {
        shown(&self.data)
    }

    /// How many of an epoch's images, so many, come to this rank.
    pub(crate) fn images_of_rank(&self, images: u64) -> u64 {
        let world = self.world();
        match self.remainder {
            Remainder::Drop => images / world,
            Remainder::Pad => images.div_ceil(world),
            Remainder::Uneven => images.saturating_sub(self.rank()).div_ceil(world),
        }
    }

    /// That this rank takes none of so many images.
    pub(crate) fn nothing_of_rank(&self, images: u64) -> String {
        format!(
            "rank {} of {} takes none of {images} images, as there are fewer than ranks; --remainder pad \
             gives each rank one, or --world-size {images} or less",
            self.rank(),
            self.world()
        )
    }

    /// How many of so many images no rank takes.
    pub(crate) fn left_to_no_rank(&self, images: u64) -> u64 {
        match self.remainder {
            Remainder::Drop => images % self.world(),
            Remainder::Pad | Remainder::Uneven => 0,
        }
    }

    /// The bytes of one image and its label in a batch: less than 2^32, so that those of any number
    /// of batches that `--batch` allows fit 64 bits.
    pub(crate) fn row_bytes(&self) -> u64 {
        3 * u64::from(self.size).pow(2) * self.layout.dtype.size() as u64 + 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Bench {
        #[command(flatten)]
        arguments: BenchArguments,
    }

    fn parse(arguments: &[&str]) -> Result<BenchArguments, clap::Error> {
        let parsed = Bench::try_parse_from([&["bench"], arguments].concat())?;
        Ok(parsed.arguments)
    }

    #[test]
    fn the_defaults_are_those_of_the_help() {
        let arguments = parse(&["photos"]).unwrap();
        assert_eq!((arguments.mode, arguments.layout), (Mode::Eval, SampleFormat::NHWC_U8));
        assert_eq!((arguments.size, arguments.batch, arguments.epochs), (224, 32, 1));
        assert_eq!((arguments.seed, arguments.threads), (0, None));
        assert_eq!(arguments.on_error, OnError::Raise);
        assert_eq!(arguments.on_truncated, OnTruncated::Error);
        assert!(!arguments.json && !arguments.no_checksum && arguments.report.is_none());
    }

    #[test]
    fn states_of_many_ranks_and_several_changes_may_be_given() {
        let arguments = parse(&[
            "photos",
            "--resume",
            "a",
            "b",
            "--allow-change",
            "seed",
            "--allow-change",
            "order",
        ]);
        let arguments = arguments.unwrap();
        assert_eq!(arguments.resume, ["a", "b"].map(PathBuf::from));
        assert_eq!(arguments.allow_change, ["seed", "order"]);
        // Where the number of ranks has changed: from these first, and from its own file ever after.
        let both = ["photos", "--save-state", "c", "--auto-resume", "--resume", "a", "b"];
        assert!(parse(&both).is_ok_and(|both| both.auto_resume && both.resume.len() == 2));
        for wrong in [
            &["photos", "--auto-resume"][..],
            &["photos", "--overwrite-state"],
            &["photos", "--save-state", "a", "--auto-resume", "--overwrite-state"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_rank_of_nobody_knows_how_many_or_which_of_several_is_refused() {
        let shard = |arguments: &[&str]| parse(&[&["photos"], arguments].concat()).unwrap().shard();
        for rank in ["0", "3"] {
            let told = shard(&["--rank", rank]).unwrap_err().to_string();
            assert!(told.contains("--world-size"), "{told}");
        }
        assert_eq!(shard(&[]).unwrap(), Shard::WHOLE);
        assert_eq!(shard(&["--world-size", "1"]).unwrap(), Shard::WHOLE);
        let told = shard(&["--world-size", "4"]).unwrap_err().to_string();
        assert!(told.contains("--rank"), "{told}");
        let first = shard(&["--rank", "0", "--world-size", "4"]).unwrap();
        assert_eq!(first, Shard::new(0, 4).unwrap());
        assert!(shard(&["--rank", "4", "--world-size", "4"]).is_err());
    }

    #[test]
    fn the_images_of_all_ranks_are_those_that_are_taken() {
        for (remainder, expected) in
            [("drop", [3, 3, 3]), ("pad", [4, 4, 4]), ("uneven", [4, 4, 3])]
        {
            let of_rank = |rank: &str| {
                let division = ["--rank", rank, "--world-size", "3", "--remainder", remainder];
                parse(&[&["photos"], &division[..]].concat()).unwrap().images_of_rank(11)
            };
            assert_eq!(["0", "1", "2"].map(of_rank), expected, "{remainder}");
        }
        assert_eq!(parse(&["photos"]).unwrap().images_of_rank(11), 11);
    }

    #[test]
    fn every_layout_is_known_by_the_name_it_is_shown_by() {
        let shown: Vec<_> = layouts().possible_values().unwrap().collect();
        assert_eq!(shown.len(), 8);
        for value in shown {
            let arguments = parse(&["photos", "--layout", value.get_name()]).unwrap();
            assert_eq!(arguments.layout.to_string(), value.get_name());
            let element = arguments.layout.dtype.size() as u64;
            assert_eq!(arguments.row_bytes(), 3 * 224 * 224 * element + 8);
        }
        assert!(parse(&["photos", "--layout", "nchw"]).is_err());
    }
}
