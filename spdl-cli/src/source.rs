//! Where a run's images come from: what lies at the addresses, and the cache in front of it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use spdl_core::sampler::ShardWindow;
use spdl_core::{
    Dataset, DatasetSource, Error, Labeled, PipelineBuilder, Result, StageOptions, block_on,
};
use spdl_io::datasets::{DatasetKind, OpenedDataset};
use spdl_io::{
    Address, Bytes, Cache, Fetch, FetchLabeled, IMAGE_EXTENSIONS, LocalFetcher, StoreRegistry,
};
use spdl_media::encode::{BmpEncoder, ImageEncoder};
use spdl_media::{CodecRegistry, Limits, Shrink};

use crate::arguments::{BenchArguments, Mode};
use crate::failure::Failure;
use crate::output;

/// Samples that are shuffled with each other where shards can only be read as a whole.
const WINDOW: u64 = 10_000;
/// The size of a cache's folder where none is given.
const CACHE_SIZE: u64 = 10_000_000_000;

/// The images of a run.
pub(crate) struct Source {
    opened: OpenedDataset,
    cache: Option<Cache>,
    /// What holds the connections of the stores.
    stores: StoreRegistry,
}

/// The addresses as they may be shown: without passwords and signatures.
pub(crate) fn shown(addresses: &[PathBuf]) -> PathBuf {
    let shown = |address: &PathBuf| match address.to_str().map(Address::parse) {
        Some(Ok(parsed)) if parsed.scheme() != "file" => parsed.to_string(),
        // The error says what is wrong, and never shows it.
        Some(Err(_)) => "the address".to_owned(),
        _ => address.display().to_string(),
    };
    match addresses {
        [path] if path.to_str().is_none() => path.clone(),
        [] => PathBuf::new(),
        [one] => shown(one).into(),
        [first, rest @ ..] => format!("{} and {} more", shown(first), rest.len()).into(),
    }
}

impl Source {
    /// Opens what lies at the addresses; how long that took.
    pub(crate) fn open(
        arguments: &BenchArguments,
    ) -> std::result::Result<(Self, Duration), Failure> {
        let start = Instant::now();
        let shown = arguments.shown();
        let failed = |error: Error| Failure::of("cannot open the images", &error, &shown);
        let stores = StoreRegistry::new();
        let extensions: Vec<&str> = IMAGE_EXTENSIONS.into_iter().chain(more_extensions()).collect();
        let addresses: Vec<&OsStr> = arguments.data.iter().map(|it| it.as_os_str()).collect();
        let opened = block_on(OpenedDataset::open_with(&addresses, &stores, &extensions));
        let opened = opened.map_err(failed)?;
        output::warn(&opened.warnings);
        let cache = cache(arguments, &shown)?;
        Ok((Source { opened, cache, stores }, start.elapsed()))
    }

    pub(crate) fn len(&self) -> u64 {
        self.opened.samples.len()
    }

    pub(crate) fn classes(&self) -> usize {
        self.opened.classes.len()
    }

    pub(crate) fn kind(&self) -> DatasetKind {
        self.opened.kind
    }

    /// The address of what an error calls `key`, as it may be shown.
    pub(crate) fn address_of(&self, key: &str) -> String {
        self.opened.address_of(key)
    }

    /// The cache, to be asked what it did.
    pub(crate) fn cache(&self) -> Option<Cache> {
        self.cache.clone()
    }

    /// Keys in the order of the run, and the bytes of their images.
    pub(crate) fn pipeline(
        &self,
        arguments: &BenchArguments,
    ) -> Result<PipelineBuilder<Labeled<Bytes>>> {
        let source = DatasetSource::new(self.opened.samples.clone());
        let source = match (arguments.mode, self.opened.kind) {
            (Mode::Eval, _) => source,
            (Mode::Train, DatasetKind::Parquet) => {
                let lens = self.opened.shard_lens.clone();
                source.sampler(ShardWindow::new(lens, WINDOW, arguments.seed)?)
            }
            (Mode::Train, _) => source.shuffled(arguments.seed),
        };
        let mut pipeline = PipelineBuilder::new(source);
        let mut stage = StageOptions::new("fetch");
        if !self.opened.is_local {
            pipeline = pipeline.runtime(self.stores.runtime()?);
        } else {
            // No more at once than there are threads to read what is not in memory. From a store, the stage finds out how many.
            let threads = LocalFetcher::new().max_threads();
            stage = stage.concurrency(threads).queue(Fetch::READ_AHEAD);
        }
        Ok(pipeline.async_stage(stage, self.fetch(arguments)?).measured())
    }

    fn fetch(&self, arguments: &BenchArguments) -> Result<FetchLabeled> {
        let mut fetch = self.opened.fetch_labeled();
        if let Some(field) = &arguments.image_field {
            fetch = fetch.with_value_fields([field.as_str()]);
        }
        if let Some(field) = &arguments.label_field {
            fetch = fetch.with_label_fields([field.as_str()]);
        }
        if let Some(cache) = &self.cache {
            fetch = fetch.with_cache(cache.clone());
        }
        let Some(side) = arguments.cache_pixels else { return Ok(fetch) };
        let shrink = move || {
            Shrink::to_shorter_side(side, &CodecRegistry::with_defaults(), &Limits::default())
        };
        // Decoders keep scratch memory; as many as are at work at once are kept.
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

/// The cache that the arguments ask for.
fn cache(arguments: &BenchArguments, shown: &Path) -> std::result::Result<Option<Cache>, Failure> {
    let BenchArguments { cache, cache_size, cache_memory, cache_pixels, .. } = arguments;
    if cache_size.is_some() && cache.is_none() {
        let reason = "--cache-size says how much is kept; --cache says where";
        return Err(Failure::usage(reason));
    }
    let memory = cache_memory.unwrap_or(0);
    if cache.is_none() && memory == 0 {
        return match cache_pixels {
            Some(_) => Err(Failure::usage(
                "--cache-pixels says what is kept; --cache or --cache-memory says where",
            )),
            None => Ok(None),
        };
    }
    // What is kept is of these addresses, wherever the program was started, and prepared in this way.
    let places = arguments.data.iter().map(|place| {
        std::fs::canonicalize(place).unwrap_or_else(|_| self::shown(std::slice::from_ref(place)))
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

/// The name extensions of formats that this build reads beside the usual ones.
pub(crate) fn more_extensions() -> impl Iterator<Item = &'static str> {
    let groups: [(bool, &[&str]); 3] = [
        (cfg!(feature = "jxl"), &["jxl"]),
        (cfg!(feature = "exr"), &["exr"]),
        (
            cfg!(feature = "more-formats"),
            &["pnm", "pbm", "pgm", "ppm", "pam", "qoi", "tga", "dds", "hdr", "ico", "ff"],
        ),
    ];
    groups.into_iter().filter(|(read, _)| *read).flat_map(|(_, names)| names.iter().copied())
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("opened", &self.opened).finish_non_exhaustive()
    }
}
