//! Which images there are, and how they are read.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use pyo3::prelude::*;
use spdl_core::source::sampler::ShardWindow;
use spdl_core::{
    Dataset, DatasetSource, Error, ErrorKind, Labeled, PipelineBuilder, Result, StageOptions,
    block_on,
};
use spdl_io::datasets::{DatasetKind, OpenOptions, OpenedDataset};

use spdl_io::stores::Address;
use spdl_io::{Cache, Fetch, Fetcher, LocalFetcher, StoreRegistry};

use super::settings::Settings;
use crate::interop::error::{report_with_advice, to_exception};
use crate::interop::fork::Home;
use crate::interop::wait::{WIND_DOWN, drop_within, interruptible_with, without_python};

/// Samples that are shuffled with each other where shards can only be read as a whole.
const WINDOW: u64 = 10_000;

/// The images of a data set, with their labels.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Images {
    /// `None` only while this is dropped.
    opened: Option<Arc<Opened>>,
    home: Home,
}

/// A data set that was opened in this process, or in the one that it is a fork of.
pub(crate) struct Opened {
    data: OpenedDataset,
    cache: Option<Cache>,
    /// What holds the connections of the stores.
    stores: StoreRegistry,
    request: Request,
}

/// What was asked for, so that it can be opened once more.
#[derive(Clone)]
struct Request {
    /// Of a list of images, the first alone.
    addresses: Vec<OsString>,
    /// Whether it is a list of images.
    is_list: bool,
    /// As it may be shown.
    shown: String,
    image_field: Option<String>,
    label_field: Option<String>,
    /// The names of the classes, where labels are names and the data set does not know all of them.
    classes: Option<Vec<String>>,
    cache_folder: Option<(PathBuf, u64)>,
    cache_memory: u64,
}

/// A pipeline that is not complete yet: keys in their order, and the bytes of their images.
pub(crate) struct Reading {
    pub(crate) pipeline: PipelineBuilder<Labeled<Bytes>>,
    /// What has threads of its own, to be kept longer than the pipeline.
    pub(crate) kept: (Arc<dyn Fetcher>, Arc<Opened>),
}

#[pymethods]
impl Images {
    /// Opens what lies at the addresses: a data set of any kind, or a list of images.
    #[staticmethod]
    #[pyo3(signature = (
        addresses, *, is_list, labels=None, image_field=None, label_field=None, classes=None,
        cache=None, cache_size=0, cache_memory=0
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn open(
        py: Python<'_>,
        addresses: Vec<OsString>,
        is_list: bool,
        labels: Option<Vec<i64>>,
        image_field: Option<String>,
        label_field: Option<String>,
        classes: Option<Vec<String>>,
        cache: Option<PathBuf>,
        cache_size: u64,
        cache_memory: u64,
    ) -> PyResult<Self> {
        let request = Request {
            shown: shown(&addresses),
            addresses,
            is_list,
            image_field,
            label_field,
            classes,
            cache_folder: cache.map(|folder| (folder, cache_size)),
            cache_memory,
        };
        let (tell, told) = mpsc::channel();
        let stores = StoreRegistry::new().when_not_reached(move |address, error| {
            // Once the data set is opened, nobody listens.
            let _ = tell.send(format!("{address}: {}; it is tried again", error.message()));
        });
        let open = move || Opened::open(request, labels.as_deref(), stores);
        let opened = interruptible_with(py, open, |py| {
            told.try_iter().try_for_each(|it| log(py, "warning", it))
        })?;
        let opened = opened.map_err(|error| to_exception(py, &error))?;
        if let Some(text) = opened.guess() {
            log(py, "info", text)?;
        }
        Ok(Images { opened: Some(Arc::new(opened)), home: Home::here() })
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.len())?)
    }

    /// The names of the classes.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.opened.iter().flat_map(|opened| opened.data.classes.clone()).collect()
    }

    /// What was left out, and why: a sentence each.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        let warnings = self.opened.iter().flat_map(|opened| &opened.data.warnings);
        warnings.map(report_with_advice).collect()
    }

    /// What it is stored as.
    #[getter]
    fn kind(&self) -> String {
        self.opened.as_ref().map_or_else(String::new, |opened| match opened.request.is_list {
            true => "list of images".to_owned(),
            false => opened.data.kind.to_string(),
        })
    }

    /// Where it lies, without what is secret.
    #[getter]
    fn place(&self) -> String {
        self.opened.as_ref().map_or_else(String::new, |opened| opened.request.shown.clone())
    }
}

impl Images {
    pub(crate) fn len(&self) -> u64 {
        self.opened.as_ref().map_or(0, |opened| opened.data.samples.len())
    }

    /// The first stages of a pipeline over these images.
    pub(crate) fn read(&self, settings: &Settings) -> Result<Reading> {
        let Some(opened) = &self.opened else {
            return Err(Error::new(ErrorKind::Stopped, "the images were let go of"));
        };
        if self.home.is_elsewhere() && opened.has_threads() {
            return Arc::new(opened.anew()?).read(settings);
        }
        Arc::clone(opened).read(settings)
    }
}

impl Opened {
    fn open(mut request: Request, labels: Option<&[i64]>, stores: StoreRegistry) -> Result<Self> {
        // Shards may be listed as well as images.
        let is_shard = |name: &OsString| DatasetKind::of_name(name).is_some();
        let is_shards = labels.is_none()
            && !request.addresses.is_empty()
            && request.addresses.iter().all(is_shard);
        request.is_list &= !is_shards;
        let data = if request.is_list {
            if request.classes.is_some() {
                return Err(request.refuse_classes());
            }
            let data = OpenedDataset::of_images(&request.addresses, labels, &stores)?;
            for field in [&request.image_field, &request.label_field].into_iter().flatten() {
                data.check_field(field)?;
            }
            request.addresses.truncate(1);
            data
        } else {
            request.refuse_an_image()?;
            request.open(&stores)?
        };
        let cache = request.open_cache()?;
        Ok(Opened { data, cache, stores, request })
    }

    /// What was guessed of the labels, so that it can be seen where it is wrong.
    fn guess(&self) -> Option<String> {
        let classes =
            self.data.classes_in_folders().filter(|_| self.request.label_field.is_none())?;
        let classes =
            if classes == 1 { "1 class".to_owned() } else { format!("{classes} classes") };
        Some(format!("{}: {classes} found in the folders of the shards", self.request.shown))
    }

    /// Whether something of it has threads, which a fork of this process has not.
    fn has_threads(&self) -> bool {
        let reads_parts = matches!(self.data.kind, DatasetKind::Parquet | DatasetKind::Mds);
        !self.data.is_local || self.cache.is_some() || reads_parts
    }

    /// The same in a fork of the process in which it was opened.
    fn anew(&self) -> Result<Self> {
        let stores = StoreRegistry::new();
        let data = match (self.data.kind, self.request.addresses.first()) {
            (DatasetKind::Parquet | DatasetKind::Mds, _) => self.request.open(&stores)?,
            // The rows of a list may lie in many stores.
            (DatasetKind::FileList, _) if !self.request.is_list && !self.data.is_local => {
                self.request.open(&stores)?
            }
            // What is known of the samples holds neither threads nor connections.
            (_, Some(first)) if !self.data.is_local => {
                let mut data = self.data.clone();
                data.fetcher = stores.open(&first.to_string_lossy())?.fetcher;
                data
            }
            _ => self.data.clone(),
        };
        let cache = self.request.open_cache()?;
        Ok(Opened { data, cache, stores, request: self.request.clone() })
    }

    fn read(self: Arc<Self>, settings: &Settings) -> Result<Reading> {
        let samples = DatasetSource::new(Arc::clone(&self.data.samples));
        let samples = match (settings.shuffle, self.data.kind) {
            (false, _) => samples,
            (true, DatasetKind::Parquet) => {
                let lens = self.data.shard_lens.clone();
                samples.sampler(ShardWindow::new(lens, WINDOW, settings.seed)?)
            }
            (true, _) => samples.shuffled(settings.seed),
        };
        let mut pipeline = PipelineBuilder::new(samples);
        let mut stage = StageOptions::new("fetch").parameters(self.request.fields());
        let fetcher: Arc<dyn Fetcher> = if self.data.is_local {
            // No more at once than there are threads to read what is not in memory.
            let fetcher = LocalFetcher::new();
            stage = stage.concurrency(fetcher.max_threads()).queue(Fetch::READ_AHEAD);
            Arc::new(fetcher)
        } else {
            // From a store, the stage finds out how many.
            pipeline = pipeline.runtime(self.stores.runtime()?);
            Arc::clone(&self.data.fetcher)
        };
        let mut fetch = self.data.fetch_labeled_by(Arc::clone(&fetcher));
        if let Some(cache) = &self.cache {
            fetch = fetch.with_cache(cache.clone());
        }
        let pipeline = pipeline.async_stage(stage, fetch).measured();
        Ok(Reading { pipeline, kept: (fetcher, self) })
    }

    /// The store of the samples, as it may be shown; `None` for files of this machine.
    pub(crate) fn store(&self) -> Option<Arc<str>> {
        self.data.store.clone()
    }

    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }
}

impl Request {
    fn open(&self, stores: &StoreRegistry) -> Result<OpenedDataset> {
        let mut options = OpenOptions::default();
        if let Some(field) = &self.image_field {
            options = options.image_field(field);
        }
        if let Some(field) = &self.label_field {
            options = options.label_field(field);
        }
        if self.classes.is_some() {
            options = options.external_classes();
        }
        let mut data = block_on(OpenedDataset::open_with(&self.addresses, stores, &options))?;
        if let Some(field) = &self.label_field {
            data.check_field(field)?;
        }
        match (&self.classes, &self.label_field) {
            (None, None) => {}
            (None, Some(field)) => block_on(data.name_classes(field))?,
            (Some(_), _) if data.has_own_classes() => return Err(self.refuse_classes()),
            (Some(classes), _) => data.classes.clone_from(classes),
        }
        data.warnings.extend(data.unlabeled());
        Ok(data)
    }

    fn refuse_classes(&self) -> Error {
        let message = "classes goes with samples whose labels are in a field, as of tar shards; those of \
                       folders, in an archive too, and of a list of files are its own";
        Error::new(ErrorKind::InvalidArgument, message).with_key(self.shown.as_str())
    }

    /// Says to whoever names a single image how that is done.
    fn refuse_an_image(&self) -> Result<()> {
        match &self.addresses[..] {
            [one] if DatasetKind::of_name(one).is_none() && Path::new(one).is_file() => {
                let message = "this is a file, and its name does not say that it is a data set \
                               (.tar, .parquet, .tfrecord, .txt, .csv, .jsonl); give a folder, or \
                               a list of images";
                Err(Error::new(ErrorKind::InvalidArgument, message).with_key(self.shown.as_str()))
            }
            _ => Ok(()),
        }
    }

    /// What decides which bytes are an image, and which number its label, where that is not usual.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let classes = self.classes.as_ref().map(|names| format!("{names:?}"));
        let fields = [
            ("image field", &self.image_field),
            ("label field", &self.label_field),
            ("classes", &classes),
        ];
        fields.into_iter().filter_map(|(name, field)| Some((name, field.clone()?))).collect()
    }

    fn open_cache(&self) -> Result<Option<Cache>> {
        if self.cache_folder.is_none() && self.cache_memory == 0 {
            return Ok(None);
        }
        // What is kept is of these addresses, wherever the program was started.
        let place = |address: &OsString| match std::fs::canonicalize(address) {
            Ok(path) => path.display().to_string(),
            Err(_) => shown(std::slice::from_ref(address)),
        };
        let places: Vec<String> = self.addresses.iter().map(place).collect();
        let namespace = format!("spdl_rs.ImageLoader\n{}", places.join("\n"));
        let mut builder = Cache::builder().memory(self.cache_memory).namespace(namespace);
        if let Some((folder, max_bytes)) = &self.cache_folder {
            builder = builder.folder(folder, *max_bytes);
        }
        builder.open().map(Some).map_err(|error| match &self.cache_folder {
            Some((folder, _)) => error.with_key(folder.display().to_string()),
            None => error,
        })
    }
}

/// Tells by Python's `logging` what people should know.
fn log(py: Python<'_>, level: &str, text: String) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("spdl_rs",))?;
    logger.call_method1(level, ("%s", text)).map(drop)
}

/// The addresses as they may be shown: without passwords and signatures.
fn shown(addresses: &[OsString]) -> String {
    let shown = |address: &OsString| match address.to_str().map(Address::parse) {
        Some(Ok(parsed)) if parsed.scheme() != "file" => parsed.to_string(),
        // The error says what is wrong, and never shows it.
        Some(Err(_)) => "the address".to_owned(),
        _ => Path::new(address).display().to_string(),
    };
    match addresses {
        [] => String::new(),
        [one] => shown(one),
        [first, rest @ ..] => format!("{} and {} more", shown(first), rest.len()),
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        let mut opened = self.opened.take();
        if self.home.is_elsewhere() {
            // There are no threads to join, and what they had locked stays locked.
            std::mem::forget(opened);
            return;
        }
        // Where nothing of it has threads, none is needed to let go of it.
        if opened.as_ref().is_none_or(|opened| !opened.has_threads()) {
            return;
        }
        let mut end =
            || opened.take().into_iter().for_each(|opened| drop_within(opened, WIND_DOWN));
        if Python::try_attach(|py| without_python(py, &mut end)).is_none() {
            // Python is shutting down: nobody is held up.
            end();
        }
    }
}
