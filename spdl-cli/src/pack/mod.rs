//! `spdl pack`: a folder of images becomes tar shards.
//!
//! ```text
//! keys ──► read (files' bytes) ──► encode (or not) ──► shards, in the order of the keys
//! ```

mod arguments;
mod checks;
mod other_set;
mod recode;
mod source;

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;
use spdl_core::sampler::{Limited, Sequential, Shuffled};
use spdl_core::{
    AsyncContext, AsyncStage, Dataset, DatasetSource, Error, Pipeline, PipelineBuilder, Result,
    Stage, StageContext, StageOptions, async_trait,
};
use spdl_io::shards::{MANIFEST, Manifest, Opened, ShardWriter};
use spdl_io::{Fetch, Fetcher, LocalFetcher};

pub(crate) use self::arguments::PackArguments;
use self::recode::{Recoded, Recoder};
use self::source::{Item, Source};
use crate::arguments::OnError;
use crate::bench;
use crate::failure::Failure;
use crate::format::{bytes, count, counted, printable, time};
use crate::output;
use crate::progress::Progress;

/// So many images that were left out are shown to people.
const SKIPPED_SHOWN: usize = 20;

/// Runs the command.
pub(crate) fn run(arguments: &PackArguments) -> std::result::Result<(), Failure> {
    checks::command_line(arguments)?;
    let (images, _) = bench::list(&arguments.source)?;
    let failed = |what: &str, error: &Error| {
        let failure = Failure::of(what, error, &arguments.destination);
        failure.and("the same command goes on behind the shards that are finished")
    };
    let source = Source::of_folder(&arguments.source, images)
        .map_err(|error| Failure::of("cannot list the images", &error, &arguments.source))?;
    let names = source.content_hash().map_or("unknown".to_owned(), |hash| format!("{hash:016x}"));
    let plan = arguments
        .plan()
        .recipe("source", source.kind())
        .recipe("source items", source.len())
        .recipe("source names", names)
        .classes(source.classes());
    let start = Instant::now();
    let mut done = Done::default();
    let manifest = match ShardWriter::open(&arguments.destination, &plan) {
        Err(error) => return Err(refused(&error, arguments)),
        Ok(Opened::Complete(manifest)) => {
            done.resumed = manifest.samples;
            done.complete = true;
            manifest
        }
        Ok(Opened::Writing(mut writer)) => {
            done.resumed = writer.finished_samples();
            write(arguments, source, &mut writer, &mut done)
                .map_err(|error| failed("cannot pack", &error))?
                .map_or(Ok(()), |error| {
                    let failure = Failure::of("cannot pack an image", &error, &arguments.source);
                    Err(failure.and(
                        "without it, or with --on-error skip, the same command goes on from here",
                    ))
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

/// What a run did.
#[derive(Debug, Default)]
struct Done {
    /// How many items the source has.
    items: u64,
    /// Samples that were there before.
    resumed: u64,
    /// Whether nothing was left to do.
    complete: bool,
    unchanged: u64,
    encoded: u64,
    took: Duration,
}

/// Packs what is left; the inner error is that of an image.
fn write(
    arguments: &PackArguments,
    source: Source,
    writer: &mut ShardWriter,
    done: &mut Done,
) -> Result<Option<Error>> {
    done.items = source.len();
    let start = writer.position();
    let progress = Progress::new(done.items, !arguments.json);
    progress.at(start);
    if start >= done.items {
        return Ok(None);
    }
    for packed in build(arguments, source, start)? {
        let Packed { item, position, outcome } = packed?;
        match outcome {
            Ok(image) => {
                let class = item.label.to_string();
                let fields = [(image.field.as_str(), &image.bytes[..]), ("cls", class.as_bytes())];
                let has_class = item.label >= 0;
                writer.add(position, &item.key, &fields[..1 + usize::from(has_class)])?;
                *if image.encoded { &mut done.encoded } else { &mut done.unchanged } += 1;
            }
            Err(error) if arguments.on_error == OnError::Raise => {
                return Ok(Some(error.with_key(item.file.display_name())));
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

fn build(arguments: &PackArguments, source: Source, start: u64) -> Result<Pipeline<Packed>> {
    let source = DatasetSource::new(source);
    let source = match arguments.shuffle {
        Some(seed) => source.sampler(Limited::positions(Shuffled::new(seed), start..u64::MAX)?),
        None => source.sampler(Limited::positions(Sequential, start..u64::MAX)?),
    };
    let available = || thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.map_or_else(available, |threads| threads as usize);
    let fetcher = LocalFetcher::new();
    let read =
        StageOptions::new("read").concurrency(fetcher.max_threads()).queue(Fetch::READ_AHEAD);
    let arguments = arguments.clone();
    PipelineBuilder::new(source)
        .async_stage(read, Read(Arc::new(fetcher)))
        .measured_by(|(_, file)| file.as_ref().map_or(0, Bytes::len))
        .stage("encode", move || Ok(Encode { recoder: Recoder::new(&arguments)?, start }))
        .measured_by(|packed: &Packed| packed.outcome.as_ref().map_or(0, |image| image.bytes.len()))
        .deterministic()
        .threads(threads)
        .build()
}

/// From an image's place to its bytes. What cannot be read goes on as such, so that it is told in its
/// turn.
#[derive(Debug)]
struct Read(Arc<LocalFetcher>);

#[async_trait]
impl AsyncStage<Item> for Read {
    type Out = (Item, Result<Bytes>);

    async fn process(&self, item: Item, _: &AsyncContext) -> Result<Self::Out> {
        let file = self.0.read_at_most(&item.file, Fetch::DEFAULT_MAX_BYTES).await;
        Ok((item, file))
    }
}

/// From an image's bytes to what is written of it.
struct Encode {
    recoder: Recoder,
    /// The position at which the source begins.
    start: u64,
}

struct Packed {
    item: Item,
    position: u64,
    outcome: Result<Recoded>,
}

impl Stage<(Item, Result<Bytes>)> for Encode {
    type Out = Packed;

    fn process(
        &mut self,
        (item, file): (Item, Result<Bytes>),
        cx: &mut StageContext<'_, Packed>,
    ) -> Result<()> {
        let outcome = file.and_then(|file| self.recoder.recode(file));
        let position = self.start + cx.id().index;
        cx.emit(Packed { item, position, outcome })
    }
}

/// Another set is there, or other files.
fn refused(error: &Error, arguments: &PackArguments) -> Failure {
    if let Some(told) = other_set::told(error.changes(), arguments) {
        return Failure::sentence(told);
    }
    let what = "cannot pack into this folder";
    let failure = Failure::of(what, error, &arguments.destination);
    match error.kind() {
        spdl_core::ErrorKind::InvalidArgument if !arguments.overwrite => {
            failure.and("--overwrite replaces a set of shards")
        }
        _ => failure,
    }
}

fn nothing_packed(arguments: &PackArguments, manifest: &Manifest) -> Failure {
    let none = format!("none of {} images could be used", count(manifest.skipped));
    match manifest.skipped_samples.first() {
        Some(first) => Failure::new(&none, &first.key, &first.reason),
        None => Failure::new(&none, arguments.source.display(), "there are none"),
    }
}

fn tell(
    arguments: &PackArguments,
    manifest: &Manifest,
    done: &Done,
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
            "resumed": done.resumed,
            "unchanged": done.unchanged,
            "encoded": done.encoded,
            "seconds": done.took.as_secs_f64(),
            "manifest": path.to_string_lossy(),
        });
        return output::print(&format!("{object}\n"));
    }
    output::print(&summary(arguments, manifest, done, &path))
}

fn summary(arguments: &PackArguments, manifest: &Manifest, done: &Done, path: &Path) -> String {
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
    if done.unchanged > 0 {
        let folder = printable(&arguments.destination.display().to_string());
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
    lines.push(format!("manifest  {}\n", printable(&path.display().to_string())));
    lines.join("\n")
}
