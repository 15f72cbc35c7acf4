//! Builds the pipeline of `spdl bench` and measures it.

use std::path::Path;
use std::time::{Duration, Instant};

use spdl_core::memory::usable_memory;
use spdl_core::observe::{CacheUse, Counter, StageKind, StageStatistics};
use spdl_core::{
    Batch, BatchLayout, Error, ErrorKind, Pipeline, SampleId, StageOptions, State, Statistics,
};
use spdl_io::Fetch;
use spdl_io::layers::CacheStatistics;
use spdl_media::{CodecRegistry, FillImage, ImageTransform, Limits, image_fields};

use super::arguments::{BenchArguments, Mode, OnTruncated};
use super::baseline;
use super::checkpoints::CheckpointSaver;
use super::checksum::Checksum;
use super::delivery;
use super::images::Images;
use super::machine;
use super::outcome::Outcome;
use super::report;
use super::resume::{self, EarlierChecksum, ResumePoint, Resumed};
use super::rounds::{self, Extent, Rounds};
use super::settings;
use super::shorthand::SampleNoun;
use super::snapshots::SnapshotThread;
use super::spec::Spec;
use super::summary;
use crate::commands::options::worker_threads;
use crate::ui::failure::Failure;
use crate::ui::html::file::ReportFile;
use crate::ui::progress::Progress;
use crate::ui::{format, stderr};

/// The stage that fills batches.
pub(super) const DECODE: &str = "decode";
/// The key of the batch size in the fingerprint of a checkpoint (the settings that determine the
/// batches).
const BATCH_SIZE: &str = "stage decode: batch size";
/// The largest number of epochs.
const MAX_EPOCHS: u32 = 1_000_000;
/// A stage that makes no progress for this time is reported.
const STALL_TIME: Duration = Duration::from_secs(60);

/// Runs the benchmark, writes the report if it is requested, and prints the result.
pub(crate) fn run(arguments: &BenchArguments) -> Result<(), Failure> {
    if let Some(baseline) = &arguments.baseline {
        return baseline::run(arguments, baseline);
    }
    // Check that the report can be written before a long run.
    let report = arguments.report.as_deref().map(ReportFile::prepare).transpose()?;
    let outcome = measure(arguments)?;
    if let Some(report) = report {
        report.write(&report::page(&outcome))?;
    }
    summary::print(&outcome)?;
    check(&outcome)
}

/// Measures a run that delivers at least one sample and is not stopped.
pub(crate) fn measure_whole(arguments: &BenchArguments) -> Result<Outcome, Failure> {
    let outcome = measure(arguments)?;
    check(&outcome)?;
    Ok(outcome)
}

/// The failure of a run that a signal stopped, or that delivered nothing.
fn check(outcome: &Outcome) -> Result<(), Failure> {
    if let Some(signal) = outcome.delivery.stopped_by {
        return Err(stopped(outcome, signal));
    }
    // A resumed run may already be complete.
    if outcome.delivery.images == 0 && outcome.resume_point.is_none() {
        return Err(nothing_delivered(outcome));
    }
    Ok(())
}

fn measure(arguments: &BenchArguments) -> Result<Outcome, Failure> {
    let shard = arguments.shard().map_err(Failure::usage)?;
    // Read the checkpoints before the data set is listed, which may take long.
    let _lock = resume::prepare(arguments)?;
    let resumed = resume::resume(arguments, shard)?;
    let checksum = checksum_before(arguments, resumed.as_ref())?;
    let (images, listing) = Images::open(arguments)?;
    let (images_found, classes) = (images.len(), images.classes());
    let (kind, cache) = (images.kind(), images.cache());
    let classes_are_folders = images.classes_are_folders(arguments);
    let shown = arguments.shown();
    let layout = layout(arguments, &images);
    check_memory(arguments, &layout)?;
    let label = images.label().map(str::to_owned);

    let what = |error: &Error| {
        let stage = error.stage().unwrap_or("pipeline");
        let error = match error.key() {
            Some(key) => error.clone().renamed(images.address_of(key)),
            None => error.clone(),
        };
        Failure::of(&format!("{stage} failed"), &error, &shown)
    };
    let (state, resumed_from) = match resumed {
        Some(Resumed { state, path, .. }) => (Some(state), Some(path)),
        None => (None, None),
    };
    let resume_point = state.as_ref().map(|state| ResumePoint::new(state, arguments, images_found));
    // From here on, SIGTERM and SIGINT stop the run after the current batch.
    let saver = match &arguments.save_state {
        Some(path) => Some(CheckpointSaver::new(path, arguments.save_every, arguments.epochs)?),
        None => None,
    };
    let counters = SampleCounters::default();
    let allows_partial = match &images.spec {
        Some(spec) => spec.allows_partial(),
        None => arguments.on_truncated == OnTruncated::Partial,
    };
    let mut pipeline = build(arguments, &images, state, &counters, STALL_TIME, stderr::note)
        .map_err(|error| match &resumed_from {
            Some(path) => Failure::of("cannot resume", &error, path),
            None => what(&error),
        })?;
    let shown_point = resume_point.filter(|point| !arguments.json && !point.is_at_end(arguments));
    if let Some(point) = shown_point {
        stderr::note(&format!("spdl: {point}"));
    }
    let (world, of_rank) = (arguments.world(), arguments.images_of_rank(images_found));
    let samples = of_rank * u64::from(arguments.epochs);
    let progress = Progress::of_samples(samples, arguments.noun().many(), !arguments.json);
    let (cpu_before, start) = (machine::cpu_time(), Instant::now());
    let (monitor, control) = (pipeline.monitor(), pipeline.control());
    let snapshot_thread = arguments
        .report
        .as_deref()
        .map(|_| SnapshotThread::start(monitor.clone()))
        .transpose()
        .map_err(|error| {
            Failure::new("cannot start the snapshot thread", shown.display(), error)
        })?;
    if let Some(path) = &arguments.monitor {
        // Without the monitor, the first batch starts the pipeline.
        pipeline.start().map_err(|error| Failure::of("bench", &error, path))?;
    }
    let step = arguments.step_ms.map(|step| Duration::from_millis(step.into()));
    let fields = match &images.spec {
        Some(spec) => spec.fields_of_batch(),
        None => layout.fields().to_vec(),
    };
    let fields = delivery::BatchFields { fields: &fields, label: label.as_deref() };
    let delivery =
        delivery::take_all(&mut pipeline, start, fields, checksum, saver, step, |last| {
            progress.at(images_done(last, world, of_rank));
        });
    let delivery = delivery.map_err(|error| what(&error));
    let settings = control.freeze();
    drop((pipeline, images, control));
    let cache = cache.map(|cache| cache.statistics());
    let cpu_time = machine::cpu_time().saturating_sub(cpu_before);
    let snapshots = snapshot_thread.map(SnapshotThread::stop).unwrap_or_default();
    drop(progress);
    let mut statistics = monitor.statistics();
    if let Some(cache) = &cache {
        add_cache(&mut statistics, cache);
    }
    if let Some(warning) = cache.as_ref().and_then(cache_warning) {
        stderr::note(&format!("spdl: warning: {warning}"));
    }
    let delivery = delivery?;
    if let Some(file) = &arguments.freeze {
        settings.save(file).map_err(|error| Failure::of("bench", &error, file))?;
    }
    Ok(Outcome {
        arguments: arguments.clone(),
        images_found,
        classes,
        classes_are_folders,
        kind,
        listing,
        cache,
        resume_point,
        delivery,
        cpu_time,
        peak_rss: machine::peak_rss(),
        row_bytes: (layout.live_bytes(1) / layout.live_batches(1) / layout.batch_size()) as u64,
        partial: allows_partial.then(|| counters.partial.get()),
        audio_seconds: counters.audio_microseconds.get() as f64 / 1e6,
        statistics,
        snapshots,
    })
}

/// The options of a run that ends by its time, not after a number of epochs.
pub(super) fn without_end(arguments: &BenchArguments) -> BenchArguments {
    BenchArguments { epochs: MAX_EPOCHS, ..arguments.clone() }
}

/// Builds a pipeline, and takes batches for a limited time. See [`rounds::take`].
///
/// # Errors
/// Errors of the pipeline. A failure if the batches need more memory than is available.
pub(super) fn take_rounds(
    arguments: &BenchArguments,
    images: &Images,
    extent: Extent,
    step: Option<Duration>,
) -> Result<Rounds, Failure> {
    check_memory(arguments, &layout(arguments, images))?;
    let counters = SampleCounters::default();
    let rounds = build(arguments, images, None, &counters, STALL_TIME, stderr::note)
        .and_then(|pipeline| arguments.settings.apply(pipeline))
        .and_then(|pipeline| rounds::take(pipeline, extent, step));
    let mut rounds = rounds.map_err(|error| {
        let stage = error.stage().unwrap_or("pipeline");
        let error = match error.key() {
            Some(key) => error.clone().renamed(images.address_of(key)),
            None => error.clone(),
        };
        Failure::of(&format!("{stage} failed"), &error, &arguments.shown())
    })?;
    if let Some(cache) = images.cache() {
        add_cache(&mut rounds.statistics, &cache.statistics());
    }
    for slow in &mut rounds.statistics.slowest {
        slow.key = slow.key.as_deref().map(|key| images.address_of(key).into());
    }
    Ok(rounds)
}

/// A warning if the cache could not write entries, for example to a full disk.
fn cache_warning(cache: &CacheStatistics) -> Option<String> {
    (cache.unwritten > 0).then(|| {
        format!(
            "the cache could not write {}, possibly because the disk is full; it holds {}, and the \
             other images are read again in each epoch",
            format::counted(cache.unwritten, "entry", "entries"),
            format::bytes(cache.disk_bytes),
        )
    })
}

/// Number of images that a rank has processed, failures included, when the sample `last` is
/// delivered.
///
/// `of_rank` is the number of images of the rank per epoch. The result ignores a change of the
/// world size within an epoch.
fn images_done(last: SampleId, world: u64, of_rank: u64) -> u64 {
    last.epoch * of_rank + (last.index / world + 1).min(of_rank)
}

/// The checksum that this run continues; `None` with `--no-checksum`.
fn checksum_before(
    arguments: &BenchArguments,
    resumed: Option<&Resumed>,
) -> Result<Option<Checksum>, Failure> {
    match (arguments.no_checksum, resumed) {
        (true, _) => Ok(None),
        (false, None) => Ok(Some(Checksum::default())),
        (false, Some(Resumed { checksum: EarlierChecksum::Known(checksum), .. })) => {
            Ok(Some(checksum.clone()))
        }
        (false, Some(Resumed { checksum: EarlierChecksum::OfRanks, .. })) => {
            Ok(Some(Checksum::default()))
        }
        (false, Some(Resumed { checksum: EarlierChecksum::Unknown, .. })) => Err(Failure::usage(
            "the earlier run had --no-checksum, so its checksum is unknown; add --no-checksum",
        )),
    }
}

/// The failure of a run that a signal stopped, after its checkpoint was saved.
fn stopped(outcome: &Outcome, signal: i32) -> Failure {
    let before = outcome.resume_point.map_or(0, |point| point.steps);
    let batches = before + outcome.delivery.batches;
    let file = outcome.arguments.save_state.as_deref().unwrap_or(Path::new(""));
    let what = format!("stopped after {}", format::counted(batches, "batch", "batches"));
    let reason =
        "the checkpoint is saved; use --resume with this file, or --auto-resume, to continue";
    Failure::new(&what, file.display(), reason).by_signal(signal)
}

/// Adds the use of the cache to the statistics of the stage that reads, for the diagnosis.
fn add_cache(statistics: &mut Statistics, cache: &CacheStatistics) {
    let reads = |stage: &&mut StageStatistics| stage.kind == StageKind::Async;
    let hits = cache.memory_hits + cache.disk_hits;
    if let Some(stage) = statistics.stages.iter_mut().find(reads).filter(|_| hits > 0) {
        // The time of a hit is not measured, and short.
        stage.cache = Some(CacheUse::new(cache.hit_rate(), Duration::ZERO));
    }
}

/// Fails if the batches need more memory than is available. Without this check, the kernel's OOM
/// killer might end the process.
fn check_memory(arguments: &BenchArguments, layout: &BatchLayout) -> Result<(), Failure> {
    let workers = worker_threads(arguments.threads);
    let images = layout.batch_size() as u64;
    match usable_memory() {
        usable
            if arguments.noun() != SampleNoun::Image
                && layout.live_bytes(workers) as u64 > usable =>
        {
            Err(Failure::usage(format!(
                "--batch {} needs too much memory for the fields of {}: {} batches are in memory at a \
                 time and take {}, and {} are available",
                arguments.batch,
                if arguments.spec.is_some() { "--spec" } else { "the samples" },
                layout.live_batches(workers),
                format::bytes(layout.live_bytes(workers) as u64),
                format::bytes(usable),
            )))
        }
        usable if layout.live_bytes(workers) as u64 > usable => Err(Failure::usage(format!(
            "--batch {} and --size {} need too much memory: a batch of {} takes {}, {} batches are in \
             memory at a time, and {} are available",
            arguments.batch,
            arguments.size,
            format::counted(images, "image", "images"),
            format::bytes(arguments.row_bytes() * images),
            layout.live_batches(workers),
            format::bytes(usable),
        ))),
        _ => Ok(()),
    }
}

/// The layout of a batch. The batch size is `--batch`, or the number of images if it is smaller. With `--drop-last`, a
/// batch of all images is incomplete, too.
fn layout(arguments: &BenchArguments, images: &Images) -> BatchLayout {
    let most = images.len().saturating_add(arguments.drop_last.into());
    let samples = most.min(u64::from(arguments.batch)) as usize;
    match &images.spec {
        Some(spec) => spec.layout(samples),
        None => BatchLayout::new(samples, image_fields(&transform(arguments))),
    }
    .drop_last(arguments.drop_last)
}

/// The transform that decodes, crops and converts each image.
fn transform(arguments: &BenchArguments) -> ImageTransform {
    ImageTransform::new(arguments.size)
        .mode(match arguments.mode {
            Mode::Train => spdl_media::Mode::Train,
            Mode::Eval => spdl_media::Mode::Eval,
        })
        .format(arguments.layout)
        .on_truncated(match arguments.on_truncated {
            OnTruncated::Error => spdl_media::OnTruncated::Error,
            OnTruncated::Partial => spdl_media::OnTruncated::Partial,
        })
}

/// Counters of the stage that decodes samples.
#[derive(Clone, Debug, Default)]
struct SampleCounters {
    /// Samples of truncated files.
    partial: Counter,
    /// The duration of the audio in the samples.
    audio_microseconds: Counter,
}

/// Builds the pipeline: keys ──► fetch (encoded images) ──► decode (pixels and labels of a batch, or other fields).
///
/// If a stage makes no progress for `stall_time`, the pipeline passes a warning to `warn`.
fn build(
    arguments: &BenchArguments,
    images: &Images,
    state: Option<State>,
    counters: &SampleCounters,
    stall_time: Duration,
    warn: impl Fn(&str) + Send + Sync + 'static,
) -> spdl_core::Result<Pipeline<Batch>> {
    let layout = layout(arguments, images);
    let budget = Fetch::stage_memory(&layout, worker_threads(arguments.threads));
    let state = state.map(|state| accept_batch_of_images(state, arguments));
    let (registry, limits) = (CodecRegistry::with_defaults(), Limits::default());
    let (decode, counters) = (StageOptions::new(DECODE), counters.clone());
    // Equal shares of the memory budget are for encoded files, for batches, and for grouped and mixed batches.
    let mut shares = 2;
    let batches = match &images.spec {
        Some(Spec { fields, group, mix, .. }) => {
            let filler = fields.filler(&registry, &limits);
            let filled = move || {
                let record = filler()?.count_partial(&counters.partial);
                Ok(record.count_audio(&counters.audio_microseconds))
            };
            let decode = decode.parameters(fields.parameters());
            let records = images.pipeline_of(fields, arguments, DECODE)?;
            let (size, drop_last) = (arguments.batch as usize, arguments.drop_last);
            let batches = match group {
                Some(group) => group.add(records, decode, filled, size, drop_last),
                None => records.fill(decode, layout, filled),
            };
            match mix.clone() {
                Some(mix) => {
                    shares += 1;
                    let options = StageOptions::new("mix").parameters(mix.parameters());
                    batches.stage(options, move || Ok(mix.clone()))
                }
                None => batches,
            }
        }
        None => {
            let transform = transform(arguments);
            let decode = decode.parameters(transform.parameters());
            let decode = match arguments.cache_pixels {
                Some(side) => {
                    decode.parameters([("kept with a shorter side of", side.to_string())])
                }
                None => decode,
            };
            let filled = move || {
                let image = FillImage::new(&registry, &transform, &limits)?;
                Ok(image.count_partial(counters.partial.clone()))
            };
            images.pipeline(arguments)?.fill(decode, layout, filled)
        }
    };
    let memory = arguments.memory_budget.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let pipeline = batches
        .largest_item(budget)
        .memory(memory.unwrap_or_else(|| budget.saturating_mul(shares)))
        .seed(arguments.seed)
        .epochs(0..u64::from(arguments.epochs))
        .on_error(arguments.failure_policy())
        .deterministic()
        .threads(worker_threads(arguments.threads))
        .shard(arguments.shard()?)
        .on_stall(stall_time, move |stall| warn(&format!("spdl: warning: {stall}")));
    let pipeline = settings::tuned(pipeline, arguments)?;
    let pipeline = match arguments.settings.prefetch {
        Some(batches) => pipeline.prefetch(batches),
        None => pipeline,
    };
    let pipeline = match &arguments.monitor {
        Some(path) => pipeline.monitor(path),
        None => pipeline,
    };
    // If all images of a run of one epoch fail, the summary lists them before the run fails.
    let pipeline = if arguments.epochs == 1 { pipeline.allow_total_loss() } else { pipeline };
    match state {
        Some(state) => pipeline.resume(state).build(),
        None => pipeline.build(),
    }
}

/// Accepts a different batch size if the number of images, which limits the batch size, has changed
/// and `--batch` has not.
fn accept_batch_of_images(state: State, arguments: &BenchArguments) -> State {
    let was = |part: &str| state.fingerprint().get(part)?.parse::<u64>().ok();
    let batch = was(BATCH_SIZE);
    let images = was("source items");
    let same = images.map(|images| images.min(u64::from(arguments.batch)));
    if batch.is_some() && batch == same { state.allow_change(BATCH_SIZE) } else { state }
}

/// The failure of a run without any delivered image.
fn nothing_delivered(outcome: &Outcome) -> Failure {
    let path = &outcome.arguments.shown();
    match outcome.statistics.dropped.first() {
        Some(first) => {
            let noun = outcome.arguments.noun().many();
            let what = format!("all {} {noun} failed", format::count(outcome.images_found));
            let unnamed = format!("unnamed {}", outcome.arguments.noun().one());
            let key = first.key.as_deref().unwrap_or(&unnamed);
            Failure::new(&what, key, &first.reason)
        }
        None if outcome.arguments.images_of_rank(outcome.images_found) == 0 => {
            Failure::usage(outcome.arguments.nothing_of_rank(outcome.images_found))
        }
        None => {
            let error = Error::new(
                ErrorKind::NotFound,
                format!("no {} were delivered", outcome.arguments.noun().many()),
            );
            Failure::of("bench", &error, path)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};
    use std::sync::{Arc, Mutex};

    use spdl_core::Dataset;
    use spdl_io::StoredRecord;

    use super::super::arguments::tests::parse;
    use super::*;

    /// A data set whose items are available only after the gate is dropped.
    #[derive(Debug)]
    struct Gated {
        samples: Arc<dyn Dataset<Item = StoredRecord>>,
        gate: Mutex<Receiver<()>>,
    }

    impl Dataset for Gated {
        type Item = StoredRecord;

        fn len(&self) -> u64 {
            self.samples.len()
        }

        fn item(&self, index: u64) -> spdl_core::Result<StoredRecord> {
            // Without a warning, the test continues after this time and fails.
            let _ = self.gate.lock().unwrap().recv_timeout(Duration::from_secs(20));
            self.samples.item(index)
        }
    }

    #[test]
    // promise: R18
    fn a_run_without_progress_prints_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.jpg"), "no image").unwrap();
        let arguments = parse(&[folder.path().to_str().unwrap()]).unwrap();
        let (mut images, _) = Images::open(&arguments).unwrap();
        let (open, gate) = mpsc::channel();
        let samples = Arc::clone(&images.opened.set.samples);
        images.opened.set.samples = Arc::new(Gated { samples, gate: Mutex::new(gate) });

        let (sender, warnings) = mpsc::channel();
        let open = Mutex::new(Some(open));
        let warn = move |warning: &str| {
            drop(open.lock().unwrap().take());
            let _ = sender.send(warning.to_owned());
        };
        let (counters, stall_time) = (SampleCounters::default(), Duration::from_millis(100));
        let mut pipeline = build(&arguments, &images, None, &counters, stall_time, warn).unwrap();
        assert!(pipeline.next().unwrap().is_err(), "the file is no image");
        drop(pipeline);
        let warning = warnings.iter().next().expect("a warning was printed");
        assert!(warning.starts_with("spdl: warning: source "), "{warning}");
        assert!(warning.contains("has yielded no item for "), "{warning}");
    }

    #[test]
    fn the_cache_warning_shows_how_much_the_cache_holds() {
        let mut cache = CacheStatistics::default();
        assert_eq!(cache_warning(&cache), None);
        (cache.unwritten, cache.disk_bytes) = (1200, 5_000_000);
        let text = cache_warning(&cache).unwrap();
        assert!(text.starts_with("the cache could not write 1,200 entries, "), "{text}");
        assert!(text.contains(&format!("it holds {}", format::bytes(5_000_000))), "{text}");
    }

    #[test]
    fn images_done_counts_the_images_of_the_rank() {
        let done =
            |epoch, index, world, of_rank| images_done(SampleId { epoch, index }, world, of_rank);
        assert_eq!((done(0, 0, 1, 10), done(0, 9, 1, 10), done(2, 3, 1, 10)), (1, 10, 24));
        // Rank 2 of 3 has the positions 2, 5 and 8 of 11 images; its fourth position repeats an
        // image.
        let uneven = [2, 5, 8].map(|index| done(0, index, 3, 3));
        assert_eq!(uneven, [1, 2, 3]);
        assert_eq!((done(0, 11, 3, 4), done(1, 2, 3, 4)), (4, 5));
        // After a change of the world size, the position may exceed the number of images of the
        // rank.
        assert_eq!(done(0, 10, 3, 3), 3);
    }
}
