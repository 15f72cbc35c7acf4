//! The images of a run: the data set, its order, and a cache.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use spdl_core::{Dataset, DatasetSource, Labeled, PipelineBuilder, Result};
use spdl_io::datasets::DatasetKind;
use spdl_io::{Bytes, Cache, FetchLabeled, LocalFetcher, Record, StoredRecord};
use spdl_media::encode::{BmpEncoder, ImageEncoder};
use spdl_media::fill::SampleSpec;
use spdl_media::{CodecRegistry, Limits, Shrink};

use super::arguments::{BenchArguments, Mode};
use super::spec::Spec;
use crate::datasets::address;
use crate::datasets::extensions::MediaType;
use crate::datasets::input::{FolderMedia, InputDataset};
use crate::ui::failure::Failure;

/// The default of `--cache-size`.
const CACHE_SIZE: u64 = 10_000_000_000;

/// The images of a run.
pub(crate) struct Images {
    pub(super) opened: InputDataset,
    cache: Option<Cache>,
    /// The fields; `None` for images and labels.
    pub(super) spec: Option<Spec>,
}

impl Images {
    /// Opens the data set and the cache; also returns how long that took.
    pub(crate) fn open(
        arguments: &BenchArguments,
    ) -> std::result::Result<(Self, Duration), Failure> {
        let spec = Spec::of_arguments(arguments)?;
        let start = Instant::now();
        let mut fields = arguments.fields_of_sample.image_and_label();
        fields.sequential = arguments.sequential;
        fields.spec = spec.as_ref().map(|spec| &spec.fields);
        fields.label = fields.label.or(spec.as_ref().and_then(|spec| spec.label_field.as_deref()));
        fields.classes = spec.as_ref().and_then(|spec| spec.classes.as_deref());
        fields.image_folder = arguments.image_folder.as_deref();
        if arguments.media.noun().is_some() {
            // The fields select the files of folders; videos are larger than images.
            fields.media = FolderMedia::All;
        }
        let label = fields.label;
        let what = "cannot open the data set";
        let mut opened = match InputDataset::open(&arguments.data, fields, what) {
            Err(failure) if spec.is_none() && holds_timed_media(&arguments.data) => {
                return Err(failure
                    .and("to load videos, use --frames; to load audio, use --mel or --seconds"));
            }
            opened => opened?,
        };
        opened.check_fields(&arguments.fields_of_sample.named())?;
        if fields.classes.is_none() {
            opened.name_classes(label, "cannot open the data set")?;
        }
        if spec.as_ref().is_none_or(|spec| spec.label.is_some()) {
            opened.warn_of_no_labels();
        }
        let cache = cache(arguments, &arguments.shown())?;
        Ok((Images { opened, cache, spec }, start.elapsed()))
    }

    /// The name of the numbers of the classes in the batches; `None` if there are none.
    pub(crate) fn label(&self) -> Option<&str> {
        match &self.spec {
            None => Some("labels"),
            Some(spec) => spec.class_numbers(),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.opened.set.samples.len()
    }

    pub(crate) fn classes(&self) -> usize {
        self.opened.set.classes.len()
    }

    /// Whether the classes are derived from the folders of the images in tar shards.
    pub(crate) fn classes_are_folders(&self, arguments: &BenchArguments) -> bool {
        arguments.fields_of_sample.label_field.is_none()
            && self.opened.set.classes_in_folders().is_some()
    }

    pub(crate) fn kind(&self) -> DatasetKind {
        self.opened.set.kind
    }

    /// The path or URL of an image for error messages, without secrets.
    pub(crate) fn address_of(&self, key: &str) -> String {
        self.opened.set.address_of(key)
    }

    /// The number of samples that are read at the same time; `None` if it adapts.
    pub(crate) fn reads_in_flight(&self) -> Option<usize> {
        self.opened.set.is_local.then(|| LocalFetcher::new().max_threads())
    }

    /// The cache, for its counters.
    pub(crate) fn cache(&self) -> Option<Cache> {
        self.cache.clone()
    }

    /// The first stages of the pipeline: keys in the order of the run, then the bytes of the
    /// images.
    pub(crate) fn pipeline(
        &self,
        arguments: &BenchArguments,
    ) -> Result<PipelineBuilder<Labeled<Bytes>>> {
        let fetch = self.fetch(arguments)?;
        Ok(self.keys(arguments)?.async_stage(self.opened.stage("fetch"), fetch).measured())
    }

    /// Like [`pipeline`](Self::pipeline), with the stored fields of `spec` instead of images. Of video and
    /// audio files, only the parts are read that the stage `decode` decodes.
    pub(crate) fn pipeline_of(
        &self,
        spec: &SampleSpec,
        arguments: &BenchArguments,
        decode: &str,
    ) -> Result<PipelineBuilder<Record>> {
        let fetch = spec.in_parts(spec.fetch_like(&self.fetch(arguments)?), decode);
        Ok(self.keys(arguments)?.async_stage(self.opened.stage("fetch"), fetch).measured())
    }

    fn keys(&self, arguments: &BenchArguments) -> Result<PipelineBuilder<StoredRecord>> {
        let source = DatasetSource::new(self.opened.set.samples.clone());
        let is_shuffled = arguments.mode == Mode::Train;
        let source = source.sampler(self.opened.set.sampler(is_shuffled, arguments.seed)?);
        self.opened.with_runtime(PipelineBuilder::new(source))
    }

    fn fetch(&self, arguments: &BenchArguments) -> Result<FetchLabeled> {
        let mut fetch = self.opened.set.fetch_labeled();
        if let Some(cache) = &self.cache {
            fetch = fetch.with_cache(cache.clone());
        }
        let Some(side) = arguments.cache_pixels else { return Ok(fetch) };
        let shrink = move || {
            Shrink::to_shorter_side(side, &CodecRegistry::with_defaults(), &Limits::default())
        };
        // Each concurrent call has a decoder; decoders are reused, because they hold scratch
        // memory.
        let idle = Mutex::new(vec![shrink()?]);
        Ok(fetch.with_preparation(move |_, file| {
            let lock = || idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let taken = lock().pop();
            let mut one = match taken {
                Some(one) => one,
                None => shrink()?,
            };
            let small = one.image(&file)?;
            lock().push(one);
            Ok(BmpEncoder::new().encode_image(&small)?.into())
        }))
    }
}

/// Whether a single folder has audio or video files directly in it or in its folders.
fn holds_timed_media(places: &[PathBuf]) -> bool {
    let [folder] = places else { return false };
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_timed = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        MediaType::of_name(name.as_encoded_bytes()).is_some_and(MediaType::is_timed)
    };
    entries(folder).any(is_timed)
        || entries(folder).any(|entry| entries(&entry.path()).any(is_timed))
}

/// Opens the cache; returns `None` without `--cache` and `--cache-memory`.
fn cache(arguments: &BenchArguments, shown: &Path) -> std::result::Result<Option<Cache>, Failure> {
    let BenchArguments { cache, cache_size, cache_memory, cache_pixels, .. } = arguments;
    if cache_size.is_some() && cache.is_none() {
        let reason = "--cache-size requires --cache";
        return Err(Failure::usage(reason));
    }
    let memory = cache_memory.unwrap_or(0);
    if cache.is_none() && memory == 0 {
        return match cache_pixels {
            Some(_) => Err(Failure::usage("--cache-pixels requires --cache or --cache-memory")),
            None => Ok(None),
        };
    }
    // The namespace contains absolute paths and the preparation of images, so that different data
    // sets or preparations never share entries.
    let places = arguments.data.iter().map(|place| {
        std::fs::canonicalize(place).unwrap_or_else(|_| address::shown(std::slice::from_ref(place)))
    });
    let places: Vec<String> = places.map(|place| place.display().to_string()).collect();
    let prepared = cache_pixels.map_or("as read".to_owned(), |side| format!("{side} pixels, bmp"));
    let namespace = format!("spdl bench\n{}\n{prepared}", places.join("\n"));
    let mut builder = Cache::builder().memory(memory).namespace(namespace);
    if let Some(folder) = cache {
        builder = builder.folder(folder, cache_size.unwrap_or(CACHE_SIZE));
    }
    let otherwise = cache.as_deref().unwrap_or(shown);
    builder
        .open()
        .map(Some)
        .map_err(|error| Failure::of("cannot open the cache", &error, otherwise))
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Images").field("opened", &self.opened).finish_non_exhaustive()
    }
}
