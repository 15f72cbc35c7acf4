//! `spdl pack`: a data set of images becomes tar shards.
//!
//! ```text
//! samples ──► read (their fields as files) ──► encode (the image, or not) ──► shards, in their order
//! ```

use std::path::Path;
use std::sync::Arc;
use std::thread;
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

use super::arguments::PackArguments;
use super::checksums::ArchiveChecksums;
use super::members::Members;
use super::recode::Recoder;
use super::source::{PackItem, PackSource};
use super::{checks, mismatch};
use crate::commands::options::OnError;
use crate::datasets::address::{is_signed, shown};
use crate::datasets::input::InputDataset;
use crate::datasets::sample_files::{Sample, SampleReader};
use crate::ui::failure::Failure;
use crate::ui::format::{bytes, count, counted, for_shell, printable, time, used};
use crate::ui::progress::Progress;
use crate::ui::{stderr, stdout};

/// So many images that were left out are shown to people.
const SKIPPED_SHOWN: usize = 20;

/// Runs the command.
pub(crate) fn run(arguments: &PackArguments) -> std::result::Result<(), Failure> {
    checks::command_line(arguments)?;
    let mut opened = open(arguments)?;
    opened.name_classes(arguments.label_field.as_deref(), "cannot open the images")?;
    checks::nothing_is_read_from(&arguments.destination, &opened.set)?;
    opened.check_fields(&arguments.named_fields())?;
    checks::an_image_is_known(arguments, &opened.set)?;
    opened.warn_of_no_labels();
    let source = PackSource::new(opened);
    let lost = source.opened.set.missing_samples;
    let checksums = checksums(&source, arguments)?;
    let failed = |what: &str, error: &Error| {
        let failure = Failure::of(what, error, &arguments.destination);
        failure.and("the same command goes on behind the shards that are finished")
    };
    let names = source.content_hash().map_or("unknown".to_owned(), |hash| format!("{hash:016x}"));
    let plan = arguments
        .plan()
        .recipe("source", source.kind())
        .recipe("source items", source.len())
        .recipe("source names", names)
        .classes(names_of_classes(arguments, &source));
    let start = Instant::now();
    let mut done = PackCounts { lost, ..PackCounts::default() };
    let manifest = match ShardWriter::open(&arguments.destination, &plan) {
        Err(error) => return Err(refused(&error, arguments)),
        Ok(shards::Opened::Complete(manifest)) => {
            done.resumed = manifest.samples;
            done.complete = true;
            manifest
        }
        Ok(shards::Opened::Writing(mut writer)) => {
            done.resumed = writer.finished_samples();
            write(arguments, source, checksums, &mut writer, &mut done)
                .map_err(|error| failed("cannot pack", &error))?
                .map_or(Ok(()), |error| {
                    let failure =
                        Failure::of("cannot pack an image", &error, &shown(&arguments.sources));
                    Err(failure.and(match is_about_a_sample(&error) {
                        true => {
                            "mended, or with --on-error skip, the same command goes on from here"
                        }
                        false => "the same command goes on from here",
                    }))
                })?;
            writer.finish(done.items).map_err(|error| failed("cannot pack", &error))?
        }
    };
    done.took = start.elapsed();
    tell(arguments, &manifest, &done)?;
    match manifest.samples {
        0 => Err(nothing_packed(arguments, &manifest)),
        _ => Ok(()),
    }
}

/// What is to be packed; where what is damaged is left out, also of a set that lacks shards.
fn open(arguments: &PackArguments) -> std::result::Result<InputDataset, Failure> {
    let what = "cannot open the images";
    if arguments.on_error == OnError::Skip {
        return InputDataset::open_damaged(&arguments.sources, arguments.image_and_label(), what);
    }
    InputDataset::open(&arguments.sources, arguments.image_and_label(), what).map_err(|failure| {
        match failure.is_about_damage() {
            true => failure.and("--on-error skip packs what is whole"),
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

/// The names of the classes, where the labels are those that the names belong to.
fn names_of_classes<'a>(arguments: &PackArguments, source: &'a PackSource) -> &'a [String] {
    let Some(label) = &arguments.label_field else { return source.classes() };
    let set = &source.opened.set;
    if matches!(set.kind, DatasetKind::Parquet | DatasetKind::FileList) {
        // They were found in that field.
        return source.classes();
    }
    let first = (0..set.samples.len()).find_map(|number| set.samples.item(number).ok());
    let usual = FetchLabeled::new(Arc::clone(&set.fetcher));
    let usual = first.and_then(|record| usual.fields_of(&record).1);
    if usual.as_deref() == Some(label) { source.classes() } else { &[] }
}

/// Whether an error says something of the sample that it was met at. What may be gone tomorrow, such as
/// a network that is down, does not: all samples behind it would be left out, too.
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

/// What a run did.
#[derive(Debug, Default)]
struct PackCounts {
    /// How many items the source has.
    items: u64,
    /// Samples that were there before.
    resumed: u64,
    /// Whether nothing was left to do.
    complete: bool,
    /// Samples of a damaged set that cannot be found in it.
    lost: u64,
    unchanged: u64,
    encoded: u64,
    took: Duration,
}

/// Packs what is left; the inner error is that of an image.
fn write(
    arguments: &PackArguments,
    source: PackSource,
    checksums: ArchiveChecksums,
    writer: &mut ShardWriter,
    done: &mut PackCounts,
) -> Result<Option<Error>> {
    done.items = source.len();
    let start = writer.position();
    let progress = Progress::new(done.items, !arguments.json);
    progress.at(start);
    if start >= done.items {
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
                    // No shard can hold such a sample.
                    Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                        Err(error.renamed(own_key.to_string()))
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(true) => done.encoded += 1,
            Ok(false) => done.unchanged += 1,
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
    let available = || thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.map_or_else(available, |threads| threads as usize);
    let label = arguments.label_field.as_deref().and_then(|it| opened.set.label_field(it));
    let image = arguments.image_field.as_deref().map(|it| opened.set.image_field(it));
    let reader = SampleReader::new(&opened.set)
        .with_names(image, label)
        .with_others(arguments.fields.as_deref());
    let kind = opened.set.kind;
    let (arguments, checksums) = (arguments.clone(), Arc::new(checksums));
    let encode = move || {
        let (recoder, checksums) = (Recoder::new(&arguments)?, Arc::clone(&checksums));
        Ok(EncodeStage { recoder, checksums, kind, start })
    };
    opened
        .runs(PipelineBuilder::new(source))?
        .async_stage(opened.stage("read"), ReadFields(reader))
        .measured_by(|(_, sample)| sample.as_ref().map_or(0, Sample::bytes))
        .stage("encode", encode)
        .measured_by(|packed: &Packed| packed.outcome.as_ref().map_or(0, Members::bytes))
        .deterministic()
        .threads(threads)
        .build()
}

/// From a sample's place to its fields. What cannot be read goes on as such, so that it is told in its
/// turn.
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

/// From a sample's fields to what is written of it.
struct EncodeStage {
    recoder: Recoder,
    checksums: Arc<ArchiveChecksums>,
    kind: DatasetKind,
    /// The position at which the source begins.
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

/// Another set is there, or other files.
fn refused(error: &Error, arguments: &PackArguments) -> Failure {
    if let Some(told) = mismatch::told(error.changes(), arguments) {
        return Failure::sentence(told);
    }
    let what = "cannot pack into this folder";
    let failure = Failure::of(what, error, &arguments.destination);
    match error.kind() {
        // Files that are of no set are not overwritten.
        ErrorKind::InvalidArgument if error.changes().is_empty() => {
            failure.and("give another folder")
        }
        ErrorKind::InvalidArgument if !arguments.overwrite => {
            failure.and("--overwrite replaces a set of shards")
        }
        // What is no manifest is nobody's, and is not overwritten.
        ErrorKind::NotFound | ErrorKind::Corrupt
            if error.key().is_some_and(|key| key.ends_with(".tar")) =>
        {
            failure.and("--overwrite writes the set anew")
        }
        _ => failure,
    }
}

fn nothing_packed(arguments: &PackArguments, manifest: &Manifest) -> Failure {
    let none = format!("none of {} images could be used", count(manifest.skipped));
    match manifest.skipped_samples.first() {
        Some(first) => Failure::new(&none, &first.key, &first.reason),
        None => Failure::new(&none, shown(&arguments.sources).display(), "there are none"),
    }
}

fn tell(
    arguments: &PackArguments,
    manifest: &Manifest,
    done: &PackCounts,
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
            "lost": done.lost,
            "resumed": done.resumed,
            "unchanged": done.unchanged,
            "encoded": done.encoded,
            "seconds": done.took.as_secs_f64(),
            "manifest": path.to_string_lossy(),
        });
        return stdout::print(&format!("{object}\n"));
    }
    stdout::print(&summary(arguments, manifest, done, &path))
}

fn summary(
    arguments: &PackArguments,
    manifest: &Manifest,
    done: &PackCounts,
    path: &Path,
) -> String {
    let mut lines = vec![format!(
        "{} in {}, {}",
        counted(manifest.samples, "sample", "samples"),
        counted(manifest.shards.len() as u64, "shard", "shards"),
        bytes(manifest.bytes)
    )];
    if done.complete {
        lines.push("all of it was there already; nothing was left to do".to_owned());
    } else {
        let before = match done.resumed {
            0 => String::new(),
            before => format!("{} were there before, ", count(before)),
        };
        lines.push(format!(
            "{before}{} as they were, {} encoded anew, in {}",
            count(done.unchanged),
            count(done.encoded),
            time(done.took)
        ));
    }
    if done.unchanged > 0 && !arguments.check {
        let folder = printable(&for_shell(&arguments.destination.display().to_string()));
        lines.push(format!(
            "of images that are as they were only the headers were read; `spdl verify {folder}` decodes \
             them"
        ));
    }
    if manifest.skipped > 0 {
        lines.push(format!("{} left out:", counted(manifest.skipped, "image", "images")));
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
    if done.lost > 0 {
        lines.push(format!(
            "lost of the damaged set: {}, behind damage or in shards that are missing",
            counted(done.lost, "sample", "samples")
        ));
    }
    if manifest.skipped > 0 {
        lines.push(format!("used      {}", used(manifest.samples, manifest.skipped)));
    }
    lines.push(format!("manifest  {}\n", printable(&path.display().to_string())));
    lines.join("\n")
}
