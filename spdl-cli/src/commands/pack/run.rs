//! Builds the pipeline of `spdl pack` and writes the shards.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use spdl_core::source::sampler::{Limited, Sequential, Shuffled};
use spdl_core::{
    AsyncContext, AsyncStage, Dataset, DatasetSource, Error, ErrorKind, Pipeline, PipelineBuilder,
    Result, Stage, StageContext, async_trait,
};
use spdl_io::FetchLabeled;
use spdl_io::datasets::DatasetKind;
use spdl_io::shards::{self, MANIFEST, Manifest, ShardWriter};
use spdl_media::fill::IndexVideoParts;

use super::arguments::PackArguments;
use super::checksums::ArchiveChecksums;
use super::members::Members;
use super::recode::Recoder;
use super::source::{PackItem, PackSource};
use super::{checks, left_out, mismatch};
use crate::commands::options::{OnError, worker_threads};
use crate::datasets::address::{is_signed, shown};
use crate::datasets::input::{FolderMedia, InputDataset};
use crate::datasets::sample_files::{Sample, SampleReader};
use crate::ui::failure::Failure;
use crate::ui::format::{bytes, count, counted, for_shell, printable, time, used};
use crate::ui::progress::Progress;
use crate::ui::{stderr, stdout};

/// Maximum number of skipped images in the text summary.
const SKIPPED_SHOWN: usize = 20;

/// Runs the command.
pub(crate) fn run(arguments: &PackArguments) -> std::result::Result<(), Failure> {
    checks::command_line(arguments)?;
    let mut opened = open(arguments)?;
    opened.name_classes(
        arguments.fields_of_sample.label_field.as_deref(),
        "cannot open the data set",
    )?;
    checks::nothing_is_read_from(&arguments.destination, &opened.set)?;
    checks::file_fields_apply(arguments, &opened.set)?;
    opened.check_fields(&arguments.named_fields())?;
    checks::an_image_is_known(arguments, &opened.set)?;
    opened.warn_of_no_labels();
    left_out::warn(arguments, &opened.set);
    let source = PackSource::new(opened);
    let lost = source.opened.set.missing_samples;
    let checksums = checksums(&source, arguments)?;
    let failed = |what: &str, error: &Error| {
        let failure = Failure::of(what, error, &arguments.destination);
        failure.and("run the same command again to continue after the finished shards")
    };
    let names = source.content_hash().map_or("unknown".to_owned(), |hash| format!("{hash:016x}"));
    let plan = arguments
        .plan()
        .recipe("source", source.kind())
        .recipe("source items", source.len())
        .recipe("source names", names)
        .classes(names_of_classes(arguments, &source));
    let start = Instant::now();
    let mut counts = PackCounts { lost, ..PackCounts::default() };
    let manifest = match ShardWriter::open(&arguments.destination, &plan) {
        Err(error) => return Err(refused(&error, arguments)),
        Ok(shards::Opened::Complete(manifest)) => {
            counts.resumed = manifest.samples;
            counts.complete = true;
            manifest
        }
        Ok(shards::Opened::Writing(writer)) => {
            let mut writer = writer.with_part_indexes(Arc::new(IndexVideoParts::new()));
            counts.resumed = writer.finished_samples();
            write(arguments, source, checksums, &mut writer, &mut counts)
                .map_err(|error| failed("cannot pack", &error))?
                .map_or(Ok(()), |error| {
                    let failure =
                        Failure::of("cannot pack an image", &error, &shown(&arguments.sources));
                    Err(failure.and(match is_about_a_sample(&error) {
                        true => {
                            "to continue, repair the image or add --on-error skip, and run the \
                             command again"
                        }
                        false => "run the same command again to continue after the finished shards",
                    }))
                })?;
            writer.finish(counts.items).map_err(|error| failed("cannot pack", &error))?
        }
    };
    counts.took = start.elapsed();
    print_result(arguments, &manifest, &counts)?;
    match manifest.samples {
        0 => Err(nothing_packed(arguments, &manifest)),
        _ => Ok(()),
    }
}

/// Opens the source. With `--on-error skip`, a packed set may have missing or damaged shards.
fn open(arguments: &PackArguments) -> std::result::Result<InputDataset, Failure> {
    let what = "cannot open the data set";
    let mut fields = arguments.fields_of_sample.image_and_label();
    fields.media = FolderMedia::ImagesOrTimed;
    fields.files = arguments.file_fields.as_deref().unwrap_or_default();
    if arguments.on_error == OnError::Skip {
        return InputDataset::open_damaged(&arguments.sources, fields, what);
    }
    InputDataset::open(&arguments.sources, fields, what).map_err(|failure| {
        match failure.is_about_damage() {
            true => failure.and("add --on-error skip to pack the valid samples"),
            false => failure,
        }
    })
}

fn checksums(
    source: &PackSource,
    arguments: &PackArguments,
) -> std::result::Result<ArchiveChecksums, Failure> {
    if arguments.sources.iter().any(|source| is_signed(source)) {
        return Ok(ArchiveChecksums::default());
    }
    let (checksums, unread) = ArchiveChecksums::read(source).map_err(|error| {
        Failure::of("cannot read the checksums", &error, &shown(&arguments.sources))
    })?;
    stderr::warn(&unread);
    Ok(checksums)
}

/// The names of the classes. The result is empty if `--label-field` selects a field other than the
/// default. Exceptions are Parquet and lists, whose class names are read from the selected field.
fn names_of_classes<'a>(arguments: &PackArguments, source: &'a PackSource) -> &'a [String] {
    let Some(label) = &arguments.fields_of_sample.label_field else { return source.classes() };
    let set = &source.opened.set;
    if matches!(set.kind, DatasetKind::Parquet | DatasetKind::FileList) {
        // In Parquet files and lists, the class names were read from the field of `--label-field`.
        return source.classes();
    }
    let first = (0..set.samples.len()).find_map(|number| set.samples.item(number).ok());
    let fetch = FetchLabeled::new(Arc::clone(&set.fetcher));
    let default_label = first.and_then(|record| fetch.fields_of(&record).1);
    if default_label.as_deref() == Some(label) { source.classes() } else { &[] }
}

/// Whether an error is caused by its sample, so that `--on-error skip` applies.
///
/// If other errors, such as a failed connection, skipped a sample, they would skip all following
/// samples too.
fn is_about_a_sample(error: &Error) -> bool {
    let is_about = matches!(
        error.kind(),
        ErrorKind::Corrupt
            | ErrorKind::Truncated
            | ErrorKind::Unsupported
            | ErrorKind::NotFound
            | ErrorKind::LimitExceeded
            | ErrorKind::InvalidArgument
    );
    is_about && !error.is_fatal()
}

/// Counters of a run.
#[derive(Debug, Default)]
struct PackCounts {
    /// Number of items in the source.
    items: u64,
    /// Samples written by earlier runs.
    resumed: u64,
    /// Whether the set was already complete when the run started.
    complete: bool,
    /// Samples that the manifest of a damaged source lists but that are missing.
    lost: u64,
    unchanged: u64,
    encoded: u64,
    took: Duration,
}

/// Packs the remaining samples; the inner error is the error of a sample.
fn write(
    arguments: &PackArguments,
    source: PackSource,
    checksums: ArchiveChecksums,
    writer: &mut ShardWriter,
    counts: &mut PackCounts,
) -> Result<Option<Error>> {
    counts.items = source.len();
    let start = writer.position();
    let progress = Progress::new(counts.items, !arguments.json);
    progress.at(start);
    if start >= counts.items {
        return Ok(None);
    }
    let source = Arc::new(source);
    for packed in build(arguments, &source, checksums, start)? {
        let Packed { item, position, outcome } = packed?;
        let own_key = item.record.as_ref().map_or(&item.name, |record| &record.key);
        let outcome = match outcome {
            Ok(members) => {
                let fields: Vec<_> =
                    members.files.iter().map(|(name, data)| (name.as_str(), &data[..])).collect();
                match writer.add(position, &item.key, &fields) {
                    Ok(()) => Ok(members.encoded),
                    // No shard can store this sample, so trying the next shard is useless.
                    Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                        Err(error.renamed(own_key.to_string()))
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(true) => counts.encoded += 1,
            Ok(false) => counts.unchanged += 1,
            Err(error) if arguments.on_error == OnError::Raise || !is_about_a_sample(&error) => {
                let key = error.key().map_or_else(|| own_key.to_string(), str::to_owned);
                let address = source.opened.set.address_of(&key);
                return Ok(Some(error.renamed(address)));
            }
            Err(error) => {
                let reason = format!("{}: {}", error.kind(), error.reason());
                writer.skip(position, &item.name.display_name(), &reason)?;
            }
        }
        progress.at(position + 1);
    }
    Ok(None)
}

fn build(
    arguments: &PackArguments,
    samples: &Arc<PackSource>,
    checksums: ArchiveChecksums,
    start: u64,
) -> Result<Pipeline<Packed>> {
    let opened = &samples.opened;
    let source = DatasetSource::new(Arc::clone(samples));
    let left = start..u64::MAX;
    let source = match arguments.shuffle {
        None => source.sampler(Limited::positions(Sequential, left)?),
        Some(seed) => match opened.window(seed)? {
            Some(window) => source.sampler(Limited::positions(window, left)?),
            None => source.sampler(Limited::positions(Shuffled::new(seed), left)?),
        },
    };
    let label =
        arguments.fields_of_sample.label_field.as_deref().and_then(|it| opened.set.label_field(it));
    let image =
        arguments.fields_of_sample.image_field.as_deref().map(|it| opened.set.image_field(it));
    let reader = SampleReader::new(&opened.set)
        .with_names(image, label)
        .with_others(arguments.fields.as_deref());
    let kind = opened.set.kind;
    let threads = worker_threads(arguments.threads);
    let (arguments, checksums) = (arguments.clone(), Arc::new(checksums));
    let encode = move || {
        let (recoder, checksums) = (Recoder::new(&arguments)?, Arc::clone(&checksums));
        Ok(EncodeStage { recoder, checksums, kind, start })
    };
    opened
        .with_runtime(PipelineBuilder::new(source))?
        .async_stage(opened.stage("read"), ReadFields(reader))
        .measured_by(|(_, sample)| sample.as_ref().map_or(0, Sample::bytes))
        .stage("encode", encode)
        .measured_by(|packed: &Packed| packed.outcome.as_ref().map_or(0, Members::bytes))
        .deterministic()
        .threads(threads)
        .build()
}

/// The stage that reads the fields of a sample. Errors are passed on as items, so that they are
/// handled in order.
struct ReadFields(SampleReader);

#[async_trait]
impl AsyncStage<PackItem> for ReadFields {
    type Out = (PackItem, Result<Sample>);

    async fn process(&self, item: PackItem, cx: &AsyncContext) -> Result<Self::Out> {
        let sample = match item.record.clone() {
            Ok(record) => self.0.read(record, cx).await,
            Err(error) => Err(error),
        };
        Ok((item, sample))
    }
}

/// The stage that checks and encodes a sample.
struct EncodeStage {
    recoder: Recoder,
    checksums: Arc<ArchiveChecksums>,
    kind: DatasetKind,
    /// The position in the source of the first sample that this run packs.
    start: u64,
}

struct Packed {
    item: PackItem,
    position: u64,
    outcome: Result<Members>,
}

impl Stage<(PackItem, Result<Sample>)> for EncodeStage {
    type Out = Packed;

    fn process(
        &mut self,
        (item, sample): (PackItem, Result<Sample>),
        cx: &mut StageContext<'_, Packed>,
    ) -> Result<()> {
        let compared = sample.and_then(|sample| match &item.record {
            Ok(record) => self.checksums.compare(record, &sample).map(|()| sample),
            Err(error) => Err(error.clone()),
        });
        let outcome = compared.and_then(|sample| Members::of(sample, self.kind, &mut self.recoder));
        let position = self.start + cx.id().index;
        cx.emit(Packed { item, position, outcome })
    }
}

/// The failure to open the output folder, with advice if it holds another set or other files.
fn refused(error: &Error, arguments: &PackArguments) -> Failure {
    if let Some(line) = mismatch::describe(error.changes(), arguments) {
        return Failure::sentence(line);
    }
    let what = "cannot pack into this folder";
    let failure = Failure::of(what, error, &arguments.destination);
    match error.kind() {
        // --overwrite replaces sets only, never other files.
        ErrorKind::InvalidArgument if error.changes().is_empty() => {
            failure.and("choose another folder")
        }
        ErrorKind::InvalidArgument if !arguments.overwrite => {
            failure.and("add --overwrite to replace the set")
        }
        // A damaged shard proves that the folder holds a set; a damaged manifest may be a file of
        // another program.
        ErrorKind::NotFound | ErrorKind::Corrupt
            if error.key().is_some_and(|key| key.ends_with(".tar")) =>
        {
            failure.and("add --overwrite to replace the set")
        }
        _ => failure,
    }
}

fn nothing_packed(arguments: &PackArguments, manifest: &Manifest) -> Failure {
    let what = format!("all {} images failed", count(manifest.skipped));
    match manifest.skipped_samples.first() {
        Some(first) => Failure::new(&what, &first.key, &first.reason),
        None => Failure::new(
            "nothing to pack",
            shown(&arguments.sources).display(),
            "the data set has no samples",
        ),
    }
}

fn print_result(
    arguments: &PackArguments,
    manifest: &Manifest,
    counts: &PackCounts,
) -> std::result::Result<(), Failure> {
    let path = arguments.destination.join(MANIFEST);
    if arguments.json {
        let skipped = manifest.skipped_samples.iter().map(|skipped| {
            json!({"position": skipped.position, "key": skipped.key, "reason": skipped.reason})
        });
        let object = json!({
            "samples": manifest.samples,
            "shards": manifest.shards.len(),
            "bytes": manifest.bytes,
            "skipped": manifest.skipped,
            "skipped_samples": skipped.collect::<Vec<_>>(),
            "classes": manifest.classes().len(),
            "lost": counts.lost,
            "resumed": counts.resumed,
            "unchanged": counts.unchanged,
            "encoded": counts.encoded,
            "seconds": counts.took.as_secs_f64(),
            "manifest": path.to_string_lossy(),
        });
        return stdout::print(&format!("{object}\n"));
    }
    stdout::print(&summary(arguments, manifest, counts, &path))
}

fn summary(
    arguments: &PackArguments,
    manifest: &Manifest,
    counts: &PackCounts,
    path: &Path,
) -> String {
    let mut lines = vec![format!(
        "{} in {}, {}",
        counted(manifest.samples, "sample", "samples"),
        counted(manifest.shards.len() as u64, "shard", "shards"),
        bytes(manifest.bytes)
    )];
    if counts.complete {
        lines.push("the set was already complete; nothing was written".to_owned());
    } else {
        let before = match counts.resumed {
            0 => String::new(),
            before => format!("{} from earlier runs, ", count(before)),
        };
        lines.push(format!(
            "{before}{} copied, {} encoded, in {}",
            count(counts.unchanged),
            count(counts.encoded),
            time(counts.took)
        ));
    }
    if counts.unchanged > 0 && !arguments.check {
        let folder = printable(&for_shell(&arguments.destination.display().to_string()));
        lines.push(format!(
            "only the headers of copied images were checked; `spdl verify {folder}` decodes them"
        ));
    }
    if manifest.skipped > 0 {
        lines.push(format!("{} skipped:", counted(manifest.skipped, "image", "images")));
        for skipped in manifest.skipped_samples.iter().take(SKIPPED_SHOWN) {
            lines.push(format!(
                "  {}\n      {}",
                printable(&skipped.key),
                printable(&skipped.reason)
            ));
        }
        let shown = manifest.skipped.min(SKIPPED_SHOWN as u64);
        if manifest.skipped > shown {
            lines
                .push(format!("  and {} more (see the manifest)", count(manifest.skipped - shown)));
        }
    }
    if counts.lost > 0 {
        lines.push(format!(
            "{} of the damaged source lost: after damage in a shard, or in missing shards",
            counted(counts.lost, "sample", "samples")
        ));
    }
    if manifest.skipped > 0 {
        lines.push(format!(
            "used      {}",
            used(manifest.samples, manifest.skipped, ["image", "images"])
        ));
    }
    lines.push(format!("manifest  {}\n", printable(&path.display().to_string())));
    lines.join("\n")
}
