//! The options of `spdl bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, Parser, ValueEnum};
use spdl_core::{Error, ErrorKind, Shard};
use spdl_media::SampleFormat;

use super::settings::StageSettings;
use super::shorthand::{MediaOptions, SampleNoun};
use crate::commands::options::{FieldOptions, OnError, count};
use crate::datasets::address::{path_or_url, shown};
use crate::ui::failure::Failure;
use crate::ui::format::byte_size;

/// Measures how fast a data set is loaded as training batches, and reports the bottleneck
///
/// Reads, decodes, crops and resizes every image into a batch, and drops the batch; with --frames,
/// clips of videos; with --mel or --seconds, audio; with --spec, any fields. Then prints the
/// throughput, CPU time, memory use, statistics of each stage, dropped images, and the bottleneck.
///
/// The order and every byte of the batches depend only on the data, the options and the seed, and
/// not on the number of threads.
#[derive(Clone, Debug, Args)]
// If an option is repeated, its last value counts, so that a script can append options.
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  spdl bench photos/
      one epoch as in validation: shorter side resized to 256 pixels, centre crop of 224

  spdl bench photos/ --mode train --epochs 3 --seed 7
      three epochs as in training: shuffled, random crops and flips

  spdl bench photos/ --layout nchw-f32 --batch 64 --threads 4
      normalised float32 batches of 64 images, on 4 worker threads

  spdl bench photos/ --on-error skip --max-skipped all --json | jq '.dropped[].key'
      list the names of all corrupt images

  spdl bench photos/ --mode train --epochs 90 --save-state run.state --auto-resume
      save checkpoints; the same command resumes after a crash, and the final checksum equals
      that of an uninterrupted run

  spdl bench photos/ --rank 0 --world-size 2 --save-state rank0.state --auto-resume
      rank 0 of 2, with a checkpoint file per rank
  spdl bench photos/ --rank 0 --world-size 3 --resume rank0.state rank1.state \\
      --save-state of3.rank0.state --auto-resume
      resume with 3 ranks instead of 2: the 3 ranks share the remaining images of the epoch

  spdl bench photos/ --mode train --epochs 2 --batch 64 --step-ms 30
      measure whether training steps of 30 ms per batch have to wait for data

  spdl bench s3://bucket/photos/ --tune --freeze settings.json
  spdl bench s3://bucket/photos/ --tune=settings.json
      find the settings that are fastest for this store, and use them

  spdl bench photos/ --epochs 10 --json > old.json
  spdl bench photos/ --epochs 10 --threads 4 --baseline old.json
      are 4 threads faster? 10 rounds of both command lines, interleaved
  spdl bench photos/ --epochs 10 --baseline old.json --baseline-program ./spdl-old
      is this version of the program slower than spdl-old? exit code 3 if so

  spdl bench photos/ --report report.html
      write an HTML report with charts over time

  spdl bench photos/ --epochs 100 --monitor /tmp/bench.sock & spdl top /tmp/bench.sock
      watch the benchmark in the terminal

  spdl bench \"s3://bucket/shard-{0000..0147}.tar\" --cache /scratch/cache --epochs 3
      shards in object storage, cached on a local disk

  spdl bench clips/ --frames 16 --every 0.5s --size 112
      clips of 16 frames, from videos

  spdl bench speech/ --mel 80
      log-mel spectrograms of 30 seconds, as Whisper takes them; --seconds 30 --rate 16000 loads
      waveforms

  spdl bench \"train-*.tar\" --spec spec.toml --mode train --batch 64
      the fields of spec.toml, in shuffled order

Fields, --spec FILE:
  A table for each field, in the order of the batch. `type` is a class of `spdl_rs.fields` in Python,
  in any case, and the other keys are its parameters:
    [fields.image]
    type = \"image\"
    size = [480, 640]                        # height and width
    crop = \"RandomResizedCrop(scale=(0.2, 1))\"
    horizontal_flip = 0.5
    layout = \"nchw-f32\"
    augment = [\"ColorJitter(0.4, hue=0.1)\", \"RandomGrayscale(0.1)\"]
    [fields.mask]
    type = \"mask\"
    stored_as = \"seg.png\"
    [fields.classes]
    type = \"array\"
    shape = [0]                              # 0: any length
    dtype = \"int64\"
    stored_as = \"json\"
    at = \"classes\"
    [fields.label]
    type = \"label\"
  A crop or an augmentation may also be a table: crop = {type = \"Letterbox\", fill = 114}.
  Audio: type = \"audio\", sample_rate = 16000, channels = \"mono\", frames = 80000; for log-mel
  spectrograms, type = \"mel\", frames = 480000. Folders then have audio files instead of images.
  Video, if built with the cargo feature ffmpeg: type = \"video\", size = 224, frames = 16,
  every = \"0.5s\", random = true. Folders then have videos.
  Before the first table, `mix` may combine the samples of each batch, as in `spdl_rs.recipes`, and
  `group` may group samples by their tokens or sizes, as in `spdl_rs.sequences`:
    mix = \"Mix(1000, mixup=0.8, cutmix=1.0)\"      # or \"Mosaic(p=0.5)\", \"CopyPaste(p=0.5)\"
    group = \"Pack('tokens', length=2048)\"        # or ConcatAndSplit, Bucket, SameSize
  Not supported: functions of `Loader`.

  The options for video and audio are a shorthand: --frames for a field of the type video, --mel for
  mel, and --seconds and --rate for audio, each with a label.

Data sets, DATA:
  FOLDER              FOLDER/CLASS/**/IMAGE, one class for each folder directly in FOLDER; or
                      images directly in FOLDER; or audio or video in the same way. File names need the extension of an image format;
                      the actual format is detected from the content. A folder with Parquet,
                      TFRecord, MDS, LitData, RecordIO or LMDB files, or tar shards (as
                      `spdl pack` writes them), is a data set of that kind
  *.zip               zip archives, with one folder for each class, or members as in tar shards
  *.tar               tar shards in the WebDataset layout: members with the same key are one sample
  *.parquet           Parquet files, as Hugging Face writes them (feature `parquet`)
  *.tfrecord          TFRecord files of tf.train.Example
  *.rec               RecordIO files of MXNet
  *.mdb *.lmdb        LMDB files with one value per file or image
  *.txt *.csv *.jsonl a list of files, with classes
  *.json              COCO annotations
  ImageSets/*/*.txt   an image set of Pascal VOC
  LOC_val_solution.csv, imagenet_2012_validation_synset_labels.txt
                      the labels of the validation images of ImageNet, in a folder next to them
  Each is a local path or a URL: `https://…` and `http://…` (feature `http`), `s3://…` (`s3`),
  `gs://…` (`gcs`), `az://…` (`azure`), `hf://datasets/USER/NAME/PATH` (`http`): a data set of
  Hugging Face. Braces expand: {0000..0147}, {train,val}. The last part of
  a name may contain the wildcards `*` and `?`, if the store can list objects.

Environment variables for stores (files such as ~/.aws are not read):
  s3  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; or the IAM role of the
      instance
      AWS_REGION          region of the bucket [default: us-east-1]
      AWS_ENDPOINT_URL    endpoint of an S3-compatible server: https://…. An http://… URL is
                          accepted for localhost, and for other hosts with AWS_ALLOW_HTTP=true
      AWS_SKIP_SIGNATURE  true: anonymous access, for public data
  gs  GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS, the path of a file; or the service
      account of the instance
      GOOGLE_SKIP_SIGNATURE  true: anonymous access
  az  AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN; or the
      managed identity of the instance
      AZURE_SKIP_SIGNATURE   true: anonymous access
  http  user name and password in the URL
  hf  HF_TOKEN            token, for private data sets
      HF_ENDPOINT         URL of a mirror [default: https://huggingface.co]
  HTTPS_PROXY and NO_PROXY apply to all stores

Checkpoint file, FILE:
  FILE is replaced atomically. The previous checkpoint is kept as FILE.previous and is used if FILE
  is corrupt or missing. During a run, FILE.lock prevents a second run from saving to FILE, and
  FILE.PID.partial holds the checkpoint being written. If a run is killed, the next run removes its
  FILE.PID.partial.
  Symbolic links are followed. A file that is not a checkpoint or not a regular file is never
  replaced.

Keys of the JSON object:
  images            number of images delivered in all epochs, or of clips of videos, audio samples
                    or samples of --spec; after a resume, in this run only
  seconds           from the start of the pipeline to the last batch, without listing the data set
  images_per_s      images / seconds
  frames_per_s      frames of clips per second, repeated ones included; null without --frames
  audio_s_per_s     seconds of audio in the samples, without padding, per second; null without
                    audio
  cpu_s_per_1000    CPU seconds of the process per 1,000 images, without listing the data set
  peak_rss_bytes    peak resident memory of the process
  memory            {budget_bytes, peak_bytes}: the memory budget of encoded images and batches,
                    and the most that was reserved; one file may exceed the budget
  first_batch_ms    from the start of the pipeline to the first batch
  epoch_starts_s    [seconds], from the start to the first batch of each of the first 64 epochs
  epoch_images_per_s
                    [images per second] of each epoch
  verdict           at most three sentences: the bottleneck, and what would help by how much
  diagnosis         the same as data: {limit: {kind, ...}, items_per_s, source_items,
                    consumer_waits, helps: [effect], does_not_help: [effect]}, where an item is a
                    batch, and an effect is {change, description, setting, items_per_s, gain,
                    consumer_wait_s, limited_by}; null if the run was already complete
  decisions         [{time_s, change, from, reason, rate_before, rate_after, kept}]: the changes
                    that --tune has tried
  data_readiness    share of the time after the first batch in which a batch was ready, 0 to 1
  dropped           [{key, reason}], one entry for each failed image of each epoch;
                    at most 100,000
  resumed           {epoch, step, steps, images, dropped}: where a resumed run started: `step`
                    counts batches of the epoch, `steps` batches of all epochs; `images` and
                    `dropped` count samples of the earlier runs; null for a new run
  total             {images, dropped} of this run and the runs that it resumes; images before the
                    last change of the world size are counted for all ranks
  complete          true if the resumed run was already complete
  left_out          number of images of each epoch that no rank delivers (--remainder drop)
  partial           number of delivered images from truncated files, whose missing part is black;
                    null without --on-truncated partial
  stages            [{name, kind, concurrency, items, failures, busy_s, busy_share, fill_rate,
                      service_ms: {p50, p90, p99, max},
                      queue: {capacity, items, mean, full_share, empty_share}}]
                    from source to consumer; `queue` is the output queue of the stage, and the
                    items in the last queue are batches; `fill_rate`, 0 to 1, is the share of a
                    grouping stage's output that is not padding, null for other stages
  labelled          number of delivered images with a class; the others have label -1; null if
                    the fields of --spec include no label, or `mix` makes it weights of classes
  step_ms           --step-ms; null without it
  steps             {steps, waited, waited_s}: number of simulated training steps after the
                    first, number of steps that waited for a batch, total wait in seconds;
                    null without --step-ms
  kind              storage format of the data set: `image folder`, `tar shards`, …
  cache             {hits, misses, hit_rate, memory_bytes, disk_bytes} of the run; null
                    without a cache
  checksum          checksum of all delivered pixels and labels in order, independent of the batch
                    size: a running XXH3-128 hash of the images, another of the labels, and
                    the hash of both; with --spec, a hash of each field, which depends on the
                    batch size for padded fields and with `mix`;
                    null with --no-checksum. After a resume it includes the earlier runs, but not
                    if the checkpoints of several ranks were combined
  arguments         the options that --baseline repeats; null with --save-state and --resume, and
                    if a URL contains a password or a signature

Comparison, --baseline FILE.json:
  The rates of two runs differ by chance. A change is real if the 95 % confidence interval of the
  ratio of the rates does not contain 0 %:
    interleaved rounds  d = ln(this run / baseline) of each round; mean(d) +- t(n - 1) s(d) / sqrt(n)
                        (Student's t interval of pairs). The order changes with each round
    rates in FILE       the difference of the means of ln(rate) of all epochs but the first,
                        +- t(v) sqrt(s1^2 / n1 + s2^2 / n2) (Welch's t interval)
  The conclusion is `no-change` if the whole interval is within --threshold; otherwise `faster` or
  `slower` if the interval does not contain 0 %; otherwise `cannot-tell`. A baseline for the second
  method needs at least 3 epochs, better 10.
  A baseline never names the program to run: only --baseline-program does.
  Keys of the JSON object: method (interleaved or stored), baseline_images_per_s and images_per_s
  (of each round), change and interval (0.05 is 5 % more images per second), confidence, threshold,
  conclusion, sentence

Exit codes:
  0  success
  1  the run failed; standard error gives the reason in one line
  2  invalid command line
  3  --baseline: slower
  4  --baseline: cannot tell
Ctrl-C terminates the program with SIGINT (exit code 130 in a shell), without results or report.
With --save-state, SIGTERM and Ctrl-C stop the run after the current batch: the program saves a
checkpoint, prints the results so far, and then terminates itself with the same signal. A second
signal terminates the program immediately."
)]
pub(crate) struct BenchArguments {
    /// A folder of images, or tar shards or other files of one kind; paths or URLs
    #[arg(value_name = "DATA", required = true, value_parser = path_or_url())]
    pub(crate) data: Vec<PathBuf>,

    /// Load the fields that this file describes, instead of images and labels: TOML, or JSON if the
    /// name ends with .json
    ///
    /// The section "Fields" below has an example. --mode then only determines the order.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["size", "layout", "on_truncated", "cache_pixels", "image_field", "label_field"])]
    pub(crate) spec: Option<PathBuf>,

    /// How images are cropped and resized, and whether they are shuffled
    #[arg(long, value_enum, default_value_t = Mode::Eval)]
    pub(crate) mode: Mode,

    /// Height and width of the images in a batch, in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 224, value_parser = count::<u32>(16_384))]
    pub(crate) size: u32,

    /// Images per batch; the last batch of an epoch may be smaller
    #[arg(long, value_name = "IMAGES", default_value_t = 32, value_parser = count::<u32>(1 << 20))]
    pub(crate) batch: u32,

    /// Leave out the last batch of an epoch if it is not full
    #[arg(long)]
    pub(crate) drop_last: bool,

    /// Memory layout and data type of a batch
    #[arg(long, default_value_t = SampleFormat::NHWC_U8, value_parser = layouts())]
    pub(crate) layout: SampleFormat,

    /// Number of epochs (passes over the data set), including those before a resume
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u32>(1_000_000))]
    pub(crate) epochs: u32,

    /// Number of worker threads [default: number of CPUs available to the process]
    #[arg(long, value_name = "N", value_parser = count::<u32>(1024))]
    pub(crate) threads: Option<u32>,

    /// Seed of all random choices: order, crops and flips (train mode)
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Rank of this process in distributed training, counted from 0; each rank delivers every
    /// WORLD-th image
    #[arg(long, value_name = "RANK")]
    pub(crate) rank: Option<u32>,

    /// World size: number of ranks in distributed training [default: 1]
    #[arg(long, value_name = "WORLD", value_parser = count::<u32>(1 << 20))]
    pub(crate) world_size: Option<u32>,

    /// What to do if the number of images is not divisible by the number of ranks
    #[arg(long, value_enum, default_value_t = Remainder::Drop)]
    pub(crate) remainder: Remainder,

    /// What to do if an image cannot be read or decoded
    #[arg(long, value_enum, default_value_t = OnError::Raise)]
    pub(crate) on_error: OnError,

    /// How many images --on-error skip may skip: a number, a percentage (checked after
    /// 1,000 images, and at the end of the run), or "all" [default: 1% of at least 1,000 images]
    ///
    /// One more failure ends the run with exit code 1.
    #[arg(long, value_name = "N|P%|all", value_parser = MaxSkipped::parse)]
    pub(crate) max_skipped: Option<MaxSkipped>,

    /// What to do if an image file is truncated
    #[arg(long, value_enum, default_value_t = OnTruncated::Error)]
    pub(crate) on_truncated: OnTruncated,

    /// Print one JSON object instead of tables, and no progress bar
    #[arg(long)]
    pub(crate) json: bool,

    /// Do not compute a checksum of the batches; this saves CPU time
    #[arg(long)]
    pub(crate) no_checksum: bool,

    /// Save checkpoints to this file during the run, and on SIGTERM or Ctrl-C
    ///
    /// The folder of FILE must exist. The previous checkpoint is kept as FILE.previous. The
    /// checkpoint of an incomplete run is replaced only if --auto-resume, --overwrite-state or
    /// --resume FILE is given.
    #[arg(long, value_name = "FILE")]
    pub(crate) save_state: Option<PathBuf>,

    /// Minimum number of batches between two checkpoints
    ///
    /// A background thread writes the checkpoints. During the run, it spends at most 5 % of its
    /// time on writing, and skips checkpoints that arrive faster. The last checkpoint is always
    /// written.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "save_state",
          value_parser = count::<u32>(u64::from(u32::MAX)))]
    pub(crate) save_every: u32,

    /// Resume from the file of --save-state if FILE or FILE.previous exists
    ///
    /// If neither exists, the run resumes from the files of --resume. Without --resume, a new run
    /// starts. The same command line can be used for the first start and for every restart.
    #[arg(long, requires = "save_state", conflicts_with = "overwrite_state")]
    pub(crate) auto_resume: bool,

    /// Let --save-state replace a checkpoint that is unreadable or belongs to an incomplete run
    #[arg(long, requires = "save_state")]
    pub(crate) overwrite_state: bool,

    /// Resume the run that saved these checkpoints
    ///
    /// Options that determine the batches must be unchanged, except --epochs, --world-size,
    /// --remainder and those of --allow-change. If --world-size or --remainder changes, give the
    /// checkpoints of all old ranks to each new rank: the new ranks share the remaining images of
    /// the epoch. If FILE is corrupt or missing, the program prints a warning and reads
    /// FILE.previous.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) resume: Vec<PathBuf>,

    /// Resume even if this option, such as `batch`, or this entry of the checkpoint's fingerprint
    /// has changed; may be repeated
    ///
    /// If changed options prevent a resume, the error message lists the names to give here.
    #[arg(long, value_name = "PART")]
    pub(crate) allow_change: Vec<String>,

    #[command(flatten)]
    pub(crate) media: MediaOptions,

    #[command(flatten)]
    pub(crate) fields_of_sample: FieldOptions,

    /// Read tar shards in parts of 8 MiB, with this much memory for parts [default: 1GiB]
    ///
    /// For shards of small images in a store, this is faster than one request per image. Also reads .tar.gz, .tgz and
    /// .tar.zst shards, and shards of servers without range requests: these are in memory as a whole. In train mode, images
    /// are shuffled within a window that the memory allows, so the order depends on BYTES. Other data sets are read
    /// as without this option.
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true,
          default_missing_value = "1GiB", value_parser = byte_size)]
    pub(crate) sequential: Option<u64>,

    /// Cache images in this folder, so that later epochs and runs do not read their source
    ///
    /// Several runs and all ranks of a host can share the folder. If the data set exceeds
    /// --cache-size, only a fixed pseudo-random subset of the images is cached. Local files that
    /// have changed are read again. Changed files in a store are read again in a new run if the store
    /// reports their sizes and versions. For a list of URLs, this takes one request per file and run.
    /// Otherwise, use a new folder after a change.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,

    /// Maximum size of the --cache folder in bytes [default: 10GB]
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) cache_size: Option<u64>,

    /// Cache images in memory, up to this total size in bytes
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) cache_memory: Option<u64>,

    /// Cache decoded images, reduced so that the shorter side has at most this length in pixels
    ///
    /// Later epochs need less CPU time, but the cache needs more space. Crops are then taken from
    /// the reduced images instead of the originals.
    #[arg(long, value_name = "PIXELS", value_parser = count::<u32>(16_384))]
    pub(crate) cache_pixels: Option<u32>,

    /// Memory for encoded samples and batches [default: depends on the batches and the machine]
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) memory_budget: Option<u64>,

    /// The folder with the images of COCO annotations, or of labels of ImageNet's validation images
    /// [default: the first folder near the annotations that contains the first image]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) image_folder: Option<String>,

    /// Simulate a training step of this many milliseconds after each batch; count the steps that
    /// wait for data
    #[arg(long, value_name = "MILLISECONDS", value_parser = count::<u32>(600_000))]
    pub(crate) step_ms: Option<u32>,

    /// Serve statistics on a Unix socket at this path, for `spdl top PATH`. Only the user who runs the
    /// benchmark may connect
    #[arg(long, value_name = "PATH")]
    pub(crate) monitor: Option<PathBuf>,

    /// Tune threads, samples in flight and queues during the run; or use the settings in FILE, which
    /// --freeze, or `freeze` of a loader in Python, has written
    ///
    /// One setting changes at a time, and only changes that raise the measured rate are kept. The output
    /// lists them. With FILE, nothing changes during the run. Order and content of the batches do not
    /// depend on the settings.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) tune: Option<Option<PathBuf>>,

    /// Write the settings at the end of the run to this file, for --tune=FILE and for the argument `tune`
    /// of loaders in Python
    #[arg(long, value_name = "FILE")]
    pub(crate) freeze: Option<PathBuf>,

    /// Write an HTML report with charts to this file
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,

    /// Compare with an earlier run, whose --json output is FILE, and report whether the rate has
    /// really changed
    ///
    /// If options differ from those of FILE, or with --baseline-program, both command lines run alternately.
    /// Otherwise, the present epochs are compared with those in FILE. The result replaces the usual output.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["report", "save_state", "resume"])]
    pub(crate) baseline: Option<PathBuf>,

    /// The program for the baseline: for example an older version of spdl [default: this program]
    #[arg(long, value_name = "PROGRAM", requires = "baseline")]
    pub(crate) baseline_program: Option<PathBuf>,

    /// Number of alternating runs of each command line with --baseline; 0 uses the rates in FILE
    /// [default: 10]
    #[arg(long, value_name = "N", requires = "baseline",
          value_parser = RangedU64ValueParser::<u32>::new().range(0..=1000))]
    pub(crate) rounds: Option<u32>,

    /// The smallest change of the rate that matters with --baseline [default: 2%]
    #[arg(long, value_name = "PERCENT", requires = "baseline", value_parser = percent)]
    pub(crate) threshold: Option<f64>,

    /// The whole command line, whose first words are the program and `bench`.
    #[arg(skip)]
    pub(crate) words: Vec<OsString>,

    /// Settings that `spdl tune` changes.
    #[arg(skip)]
    pub(crate) settings: StageSettings,
}

/// Parses a percentage above 0 and up to 100, such as `2%`, as a share.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err("expected a percentage above 0% and up to 100%".to_owned()),
    }
}

/// Parses the name of a layout.
fn layouts() -> impl TypedValueParser<Value = SampleFormat> {
    let interleaved = "[batch, height, width, RGB]";
    let planar = "[batch, RGB, height, width]";
    let normalised = "normalised by the mean and standard deviation of ImageNet";
    let values = [
        ("nhwc-u8", format!("{interleaved}, uint8, 0 to 255")),
        ("nhwc-f16", format!("{interleaved}, float16, {normalised}")),
        ("nhwc-bf16", format!("{interleaved}, bfloat16, {normalised}")),
        ("nhwc-f32", format!("{interleaved}, float32, {normalised}")),
        ("nchw-u8", format!("{planar}, uint8, 0 to 255")),
        ("nchw-f16", format!("{planar}, float16, {normalised}")),
        ("nchw-bf16", format!("{planar}, bfloat16, {normalised}")),
        ("nchw-f32", format!("{planar}, float32, {normalised}")),
    ];
    PossibleValuesParser::new(values.map(|(name, about)| PossibleValue::new(name).help(about)))
        .try_map(|name| name.parse::<SampleFormat>())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Random resized crop (8 to 100 % of the area, aspect ratio 3:4 to 4:3) and random horizontal
    /// flip, in shuffled order
    Train,
    /// Resize of the shorter side to size / 0.875, then centre crop, in the order of the data set
    Eval,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTruncated {
    /// Handle the image like a corrupt image (see --on-error)
    Error,
    /// Deliver the image with its missing rows filled with black, and count the image; if less
    /// than half of its rows can be decoded, or the format does not support this, handle it like a
    /// corrupt image
    Partial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Remainder {
    /// Drop the last images, so that all ranks deliver the same number of images
    Drop,
    /// Repeat the first images of the epoch until all ranks have the same number
    Pad,
    /// Let some ranks deliver one image more than others
    Uneven,
}

/// The command line of `spdl bench` without the name of the program.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct BenchCommandLine {
    #[command(flatten)]
    arguments: BenchArguments,
}

impl BenchArguments {
    /// Parses the words that follow `spdl bench`.
    ///
    /// # Errors
    /// A failure with exit code 2, whose line is the first line of the parser's message.
    pub(crate) fn parse(words: &[OsString]) -> Result<Self, Failure> {
        match BenchCommandLine::try_parse_from(words) {
            Ok(BenchCommandLine { arguments }) => Ok(arguments),
            Err(error) => {
                let text = error.to_string();
                let line = text.lines().next().unwrap_or_default();
                let line = line.strip_prefix("error: ").unwrap_or(line);
                Err(Failure::usage(format!("options of `spdl bench`: {line}")))
            }
        }
    }

    /// The rank of this process.
    pub(crate) fn rank(&self) -> u64 {
        self.rank.unwrap_or(0).into()
    }

    /// The world size.
    pub(crate) fn world(&self) -> u64 {
        self.world_size.unwrap_or(1).into()
    }

    /// The positions of each epoch that this rank delivers.
    ///
    /// # Errors
    /// If only one of rank and world size is given, or the rank is not below the world size.
    pub(crate) fn shard(&self) -> spdl_core::Result<Shard> {
        let missing = match (self.rank, self.world_size) {
            (Some(rank), None) => Some(format!("--rank {rank} requires --world-size")),
            // If the default rank were 0, all processes would deliver the same part.
            (None, Some(world @ 2..)) => Some(format!("--world-size {world} requires --rank")),
            _ => None,
        };
        if let Some(message) = missing {
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let remainder = match self.remainder {
            Remainder::Drop => spdl_core::source::Remainder::Drop,
            Remainder::Pad => spdl_core::source::Remainder::Pad,
            Remainder::Uneven => spdl_core::source::Remainder::Uneven,
        };
        Ok(Shard::new(self.rank(), self.world())?.remainder(remainder))
    }

    /// The noun for a sample.
    pub(crate) fn noun(&self) -> SampleNoun {
        match (&self.spec, self.media.noun()) {
            (None, None) => SampleNoun::Image,
            (_, noun) => noun.unwrap_or(SampleNoun::Sample),
        }
    }

    /// The paths and URLs of the data set, without secrets.
    pub(crate) fn shown(&self) -> PathBuf {
        shown(&self.data)
    }

    /// Number of images that this rank delivers per epoch, if the data set has `images` images.
    pub(crate) fn images_of_rank(&self, images: u64) -> u64 {
        let world = self.world();
        match self.remainder {
            Remainder::Drop => images / world,
            Remainder::Pad => images.div_ceil(world),
            Remainder::Uneven => images.saturating_sub(self.rank()).div_ceil(world),
        }
    }

    /// The error message for a rank without images.
    pub(crate) fn nothing_of_rank(&self, images: u64) -> String {
        format!(
            "rank {} of {} has no {}: the data set has only {images}; use --remainder pad, or \
             --world-size {images} or less",
            self.rank(),
            self.world(),
            self.noun().many()
        )
    }

    /// Number of images that no rank delivers per epoch, if the data set has `images` images.
    pub(crate) fn left_to_no_rank(&self, images: u64) -> u64 {
        match self.remainder {
            Remainder::Drop => images % self.world(),
            Remainder::Pad | Remainder::Uneven => 0,
        }
    }

    /// The failure policy of --on-error and --max-skipped. Without --max-skipped, a few failures in a small
    /// data set are allowed.
    pub(crate) fn failure_policy(&self) -> spdl_core::OnError {
        match (self.on_error, self.max_skipped) {
            (OnError::Raise, _) => spdl_core::OnError::Raise,
            (OnError::Skip, Some(most)) => most.policy(),
            (OnError::Skip, None) => spdl_core::OnError::SkipShare {
                at_most: 0.01,
                after: MaxSkipped::AFTER,
                at_end: false,
            },
        }
    }

    /// Bytes of one image with its label in a batch.
    ///
    /// The result is below 2^32, so that the size of all batches in memory fits 64 bits.
    pub(crate) fn row_bytes(&self) -> u64 {
        3 * u64::from(self.size).pow(2) * self.layout.dtype.size() as u64 + 8
    }
}

/// The limit of skipped images: the option `--max-skipped`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MaxSkipped {
    /// No limit.
    All,
    /// A number of images.
    Number(u64),
    /// A share of the images, in (0, 1].
    Share(f64),
}

impl MaxSkipped {
    /// A share is checked after this number of images, as in `ImageLoader`.
    const AFTER: u64 = 1_000;

    fn parse(text: &str) -> Result<MaxSkipped, String> {
        if text == "all" {
            return Ok(MaxSkipped::All);
        }
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(MaxSkipped::Number).map_err(|_| Self::expected());
        };
        match percent.trim_end().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => {
                Ok(MaxSkipped::Share(percent / 100.0))
            }
            _ => Err(Self::expected()),
        }
    }

    fn expected() -> String {
        "expected a number of images, a percentage above 0% and up to 100%, or \"all\"".to_owned()
    }

    /// The failure policy of a pipeline with `--on-error skip`.
    pub(crate) fn policy(self) -> spdl_core::OnError {
        match self {
            MaxSkipped::All => spdl_core::OnError::SKIP,
            MaxSkipped::Number(most) => spdl_core::OnError::Skip { at_most: Some(most) },
            MaxSkipped::Share(at_most) => {
                spdl_core::OnError::SkipShare { at_most, after: Self::AFTER, at_end: true }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Bench {
        #[command(flatten)]
        arguments: BenchArguments,
    }

    pub(crate) fn parse(arguments: &[&str]) -> Result<BenchArguments, clap::Error> {
        let parsed = Bench::try_parse_from([&["bench"], arguments].concat())?;
        Ok(parsed.arguments)
    }

    /// The long names of all options.
    pub(crate) fn options() -> Vec<String> {
        let command = Bench::command();
        command.get_arguments().filter_map(|it| it.get_long()).map(str::to_owned).collect()
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
    fn the_limit_of_skipped_images_is_a_number_a_percentage_or_all() {
        let limit = |text: &str| parse(&["photos", "--max-skipped", text]).ok()?.max_skipped;
        assert_eq!(parse(&["photos"]).unwrap().max_skipped, None);
        assert_eq!(limit("0"), Some(MaxSkipped::Number(0)));
        assert_eq!(limit("2.5%"), Some(MaxSkipped::Share(0.025)));
        assert_eq!(limit("100 %"), Some(MaxSkipped::Share(1.0)));
        assert_eq!(limit("all"), Some(MaxSkipped::All));
        for invalid in ["0%", "101%", "nan%", "-1", "1.5", "some", ""] {
            assert_eq!(limit(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn checkpoints_of_many_ranks_and_several_changes_may_be_given() {
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
        // After a change of the world size, a new run resumes from the files of all old ranks;
        // later restarts use this rank's file.
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
    fn a_rank_without_world_size_and_a_world_size_without_rank_are_errors() {
        let shard = |arguments: &[&str]| parse(&[&["photos"], arguments].concat()).unwrap().shard();
        for rank in ["0", "3"] {
            let error = shard(&["--rank", rank]).unwrap_err().to_string();
            assert!(error.contains("--world-size"), "{error}");
        }
        assert_eq!(shard(&[]).unwrap(), Shard::WHOLE);
        assert_eq!(shard(&["--world-size", "1"]).unwrap(), Shard::WHOLE);
        let error = shard(&["--world-size", "4"]).unwrap_err().to_string();
        assert!(error.contains("--rank"), "{error}");
        let first = shard(&["--rank", "0", "--world-size", "4"]).unwrap();
        assert_eq!(first, Shard::new(0, 4).unwrap());
        assert!(shard(&["--rank", "4", "--world-size", "4"]).is_err());
    }

    #[test]
    fn images_of_rank_follows_the_remainder() {
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
    fn every_layout_parses_from_its_displayed_name() {
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
