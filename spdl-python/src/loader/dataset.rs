//! The samples of a data set, and the stage that reads them.

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
use spdl_io::datasets::{ArrowDataset, DatasetKind, OpenOptions, OpenedDataset};
use spdl_io::stores::Address;
use spdl_io::{
    Cache, Fetch, FetchLabeled, Fetcher, LocalFetcher, Record, StoreRegistry, StoredRecord,
};
use spdl_media::fill::SampleSpec;

use super::items::{self, Items};
use super::settings::{Content, Settings};
use super::tables::ArrowTable;
use crate::interop::error::{report_with_advice, to_exception, without_exception};
use crate::interop::fork::OwnerProcess;
use crate::interop::stalls::log;
use crate::interop::wait::{SHUTDOWN_TIMEOUT, drop_within, interruptible_with, without_python};

/// Shuffle window of Parquet data sets, in samples. Their row groups are read as a whole.
const WINDOW: u64 = 10_000;

/// The samples of a data set.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Samples {
    /// `None` only during drop.
    opened: Option<Arc<Opened>>,
    owner: OwnerProcess,
}

/// A data set that was opened in this process or in its parent.
pub(crate) struct Opened {
    data: OpenedDataset,
    cache: Option<Cache>,
    /// Holds the connections to the stores.
    stores: StoreRegistry,
    request: OpenRequest,
}

/// The arguments with which the data set was opened.
#[derive(Clone)]
struct OpenRequest {
    /// The samples, if a Python object holds them. Otherwise, they are at the addresses.
    held: Option<HeldSamples>,
    /// The addresses of the data set. For a list of images, only the first address.
    addresses: Vec<OsString>,
    /// Whether the addresses are a list of images.
    is_list: bool,
    /// The addresses without credentials, for messages.
    shown: String,
    image_field: Option<String>,
    label_field: Option<String>,
    /// Columns of lists that name further files.
    file_fields: Vec<String>,
    /// Columns of lists that are tried as the path column after the default ones.
    path_fields: Vec<String>,
    /// The folder of the images of COCO annotations.
    images: Option<String>,
    /// The class names that the caller passed. Allowed only if a field holds the labels.
    classes: Option<Vec<String>>,
    cache_folder: Option<(PathBuf, u64)>,
    cache_memory: u64,
    max_file_bytes: Option<u64>,
    /// Whether samples without a label are reported.
    has_labels: bool,
}

/// Samples that a Python object holds.
#[derive(Clone)]
enum HeldSamples {
    Table(Arc<ArrowDataset>),
    Items(Arc<Items>),
}

/// The source of a pipeline, and the stage that reads its samples.
pub(crate) struct FetchStage {
    source: PipelineBuilder<StoredRecord>,
    options: StageOptions,
    fetch: FetchLabeled,
    cache: Option<Cache>,
    kept: Kept,
}

/// Objects that own threads, dropped after the pipeline.
pub(crate) type Kept = (Arc<dyn Fetcher>, Arc<Opened>);
type FetchedBy<T> = (PipelineBuilder<T>, Kept);

impl FetchStage {
    /// Reads images and their labels.
    pub(crate) fn images(self) -> FetchedBy<Labeled<Bytes>> {
        let FetchStage { source, options, fetch, cache, kept } = self;
        let fetch = match cache {
            Some(cache) => fetch.with_cache(cache),
            None => fetch,
        };
        (source.async_stage(options, fetch).measured(), kept)
    }

    /// Reads the fields of `spec`.
    pub(crate) fn fields(self, spec: &SampleSpec) -> FetchedBy<Record> {
        let FetchStage { source, options, fetch, cache, kept } = self;
        let fetch = spec.fetch_like(&fetch);
        let fetch = match cache {
            Some(cache) => fetch.with_cache(cache),
            None => fetch,
        };
        (source.async_stage(options, fetch).measured(), kept)
    }
}

#[pymethods]
impl Samples {
    /// Opens a data set of any kind, a list of images, an Arrow table, or a map-style data set
    /// with this name and number of items.
    #[staticmethod]
    #[pyo3(signature = (
        addresses, *, is_list, table=None, items=None, labels=None, image_field=None, label_field=None, file_fields=None, path_fields=None,
        images=None, classes=None,
        cache=None, cache_size=0, cache_memory=0, max_file_bytes=None, has_labels=true
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn open(
        py: Python<'_>,
        addresses: Vec<OsString>,
        is_list: bool,
        table: Option<PyRef<'_, ArrowTable>>,
        items: Option<(String, u64)>,
        labels: Option<Vec<i64>>,
        image_field: Option<String>,
        label_field: Option<String>,
        file_fields: Option<Vec<String>>,
        path_fields: Option<Vec<String>>,
        images: Option<String>,
        classes: Option<Vec<String>>,
        cache: Option<PathBuf>,
        cache_size: u64,
        cache_memory: u64,
        max_file_bytes: Option<u64>,
        has_labels: bool,
    ) -> PyResult<Self> {
        let (shown, held) = match (table, items) {
            (Some(table), _) => {
                (table.name.clone(), Some(HeldSamples::Table(Arc::clone(&table.samples))))
            }
            (None, Some((name, len))) => {
                (name.clone(), Some(HeldSamples::Items(Arc::new(Items { name, len }))))
            }
            (None, None) => (display_addresses(&addresses), None),
        };
        let request = OpenRequest {
            shown,
            held,
            addresses,
            is_list,
            image_field,
            label_field,
            file_fields: file_fields.unwrap_or_default(),
            path_fields: path_fields.unwrap_or_default(),
            images,
            classes,
            cache_folder: cache.map(|folder| (folder, cache_size)),
            cache_memory,
            max_file_bytes,
            has_labels,
        };
        let (sender, receiver) = mpsc::channel();
        let stores = StoreRegistry::new().on_unreachable(move |address, error| {
            // Sending fails once the data set is open and the receiver is dropped.
            let _ = sender.send(format!("{address}: {}; retrying", error.message()));
        });
        let open = move || Opened::open(request, labels.as_deref(), stores);
        let opened = interruptible_with(py, open, |py| {
            receiver.try_iter().try_for_each(|it| log(py, "warning", it))
        })?;
        let opened = opened.map_err(|error| to_exception(py, &error))?;
        if let Some(text) = opened.inferred_classes_message() {
            log(py, "info", text)?;
        }
        Ok(Samples { opened: Some(Arc::new(opened)), owner: OwnerProcess::current() })
    }

    /// Checks that samples in memory have the fields of the settings.
    fn check(&self, py: Python<'_>, settings: &Settings) -> PyResult<()> {
        let Some(opened) = &self.opened else { return Ok(()) };
        opened.check(settings).map_err(|error| to_exception(py, &error))
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.len())?)
    }

    /// The class names.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.opened.iter().flat_map(|opened| opened.data.classes.clone()).collect()
    }

    /// Warnings about samples that were left out or have no label.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        let warnings = self.opened.iter().flat_map(|opened| &opened.data.warnings);
        warnings.map(report_with_advice).collect()
    }

    /// The storage format.
    #[getter]
    fn kind(&self) -> String {
        self.opened.as_ref().map_or_else(String::new, |opened| match opened.data.kind {
            _ if opened.request.is_list => "list of images".to_owned(),
            kind => match opened.request.held {
                Some(HeldSamples::Table(_)) => "Arrow table".to_owned(),
                Some(HeldSamples::Items(_)) => "Python data set".to_owned(),
                None => kind.to_string(),
            },
        })
    }

    /// The address of the data set, without credentials.
    #[getter]
    pub(crate) fn place(&self) -> String {
        self.opened.as_ref().map_or_else(String::new, |opened| opened.request.shown.clone())
    }
}

impl Samples {
    pub(crate) fn len(&self) -> u64 {
        self.opened.as_ref().map_or(0, |opened| opened.data.samples.len())
    }

    /// Creates the source of a pipeline over these samples, and the stage that reads them.
    pub(super) fn read(
        &self,
        settings: &Settings,
        get_item: Option<&Arc<Py<PyAny>>>,
    ) -> Result<FetchStage> {
        let Some(opened) = &self.opened else {
            return Err(Error::new(ErrorKind::Stopped, "the loader is closed"));
        };
        if self.owner.is_forked_child() && opened.has_threads() {
            return Arc::new(opened.reopen()?).read(settings, get_item);
        }
        Arc::clone(opened).read(settings, get_item)
    }
}

impl Opened {
    fn open(
        mut request: OpenRequest,
        labels: Option<&[i64]>,
        stores: StoreRegistry,
    ) -> Result<Self> {
        // A list may contain shards instead of images.
        let is_shard = |name: &OsString| DatasetKind::of_name(name).is_some();
        let is_shards = labels.is_none()
            && !request.addresses.is_empty()
            && request.addresses.iter().all(is_shard);
        request.is_list &= !is_shards;
        let data = if let Some(held) = &request.held {
            request.open_held(held, &stores).map_err(|it| it.with_key(request.shown.as_str()))?
        } else if request.is_list {
            if request.classes.is_some() {
                return Err(request.classes_error());
            }
            if request.images.is_some() {
                let message = "the folder of the images can be set only for COCO annotations, not for \
                               a list of paths";
                let error = Error::new(ErrorKind::InvalidArgument, message);
                return Err(error.with_key(request.shown.as_str()));
            }
            let data = OpenedDataset::of_images(&request.addresses, labels, &stores)?;
            let data = request.with_limit(data);
            for field in [&request.image_field, &request.label_field].into_iter().flatten() {
                data.check_field(field)?;
            }
            request.addresses.truncate(1);
            data
        } else {
            request.check_not_an_image()?;
            request.open(&stores)?
        };
        let cache = request.open_cache()?;
        Ok(Opened { data, cache, stores, request })
    }

    /// Checks that the first sample has the fields of the settings, if all samples have the same fields.
    fn check(&self, settings: &Settings) -> Result<()> {
        match (&settings.content, &self.request.held, self.data.samples.item(0)) {
            (Content::Fields(fields), Some(HeldSamples::Table(_)), Ok(first)) => {
                let fetch = fields.get().spec.fetch_like(&self.data.fetch_labeled());
                fetch.check(&first).map_err(|error| error.renamed(self.request.shown.as_str()))
            }
            _ => Ok(()),
        }
    }

    /// A log message about labels that were inferred from folder names.
    fn inferred_classes_message(&self) -> Option<String> {
        let classes =
            self.data.classes_in_folders().filter(|_| self.request.label_field.is_none())?;
        let classes =
            if classes == 1 { "1 class".to_owned() } else { format!("{classes} classes") };
        Some(format!("{}: inferred {classes} from the folders of the shards", self.request.shown))
    }

    /// Whether the data set has a cache of decoded parts, with threads.
    fn reads_parts(&self) -> bool {
        use DatasetKind::{LitData, Mds, Parquet};
        matches!(self.data.kind, LitData | Mds | Parquet)
    }

    /// Whether the data set uses threads, which a forked child does not have.
    fn has_threads(&self) -> bool {
        !self.data.is_local || self.cache.is_some() || self.reads_parts()
    }

    /// Opens the data set again in a forked child process.
    fn reopen(&self) -> Result<Self> {
        let stores = StoreRegistry::new();
        let data = match (self.data.kind, self.request.addresses.first()) {
            _ if self.reads_parts() => self.request.open(&stores)?,
            // The rows of a file list may refer to several stores.
            (DatasetKind::FileList, _) if !self.request.is_list && !self.data.is_local => {
                self.request.open(&stores)?
            }
            // The sample index holds neither threads nor connections.
            (_, Some(first)) if !self.data.is_local => {
                self.data.clone().with_fetcher(stores.open(&first.to_string_lossy())?.fetcher)
            }
            _ => self.data.clone(),
        };
        let cache = self.request.open_cache()?;
        Ok(Opened { data, cache, stores, request: self.request.clone() })
    }

    fn read(
        self: Arc<Self>,
        settings: &Settings,
        get_item: Option<&Arc<Py<PyAny>>>,
    ) -> Result<FetchStage> {
        let samples = DatasetSource::new(Arc::clone(&self.data.samples));
        let samples = match (settings.shuffle, self.data.kind) {
            (false, _) => samples,
            (true, DatasetKind::Parquet) => {
                let lens = self.data.shard_lens.clone();
                samples.sampler(ShardWindow::new(lens, WINDOW, settings.seed)?)
            }
            (true, _) => samples.shuffled(settings.seed),
        };
        let mut source = PipelineBuilder::new(samples);
        if let Some(function) = get_item {
            source = items::add(source, function);
        }
        let mut options = StageOptions::new("fetch").parameters(self.request.fields());
        let (fetch, fetcher) = if self.data.is_local {
            // Reads of uncached files block a thread each, so more concurrency does not help.
            let fetcher = LocalFetcher::new();
            options = options.concurrency(fetcher.max_threads()).queue(Fetch::READ_AHEAD);
            let data = self.data.clone().with_fetcher(Arc::new(fetcher));
            (data.fetch_labeled(), data.fetcher)
        } else {
            // For a store, the stage adjusts its in-flight window.
            source = source.runtime(self.stores.runtime()?);
            (self.data.fetch_labeled(), Arc::clone(&self.data.fetcher))
        };
        let cache = self.cache.clone();
        Ok(FetchStage { source, options, fetch, cache, kept: (fetcher, self) })
    }

    /// The address of the store without credentials; `None` for local files.
    pub(crate) fn store(&self) -> Option<Arc<str>> {
        self.data.store.clone()
    }

    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }
}

impl OpenRequest {
    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::default()
            .file_fields(self.file_fields.iter().cloned())
            .path_fields(self.path_fields.iter().cloned());
        if let Some(folder) = &self.images {
            options = options.images(folder);
        }
        if let Some(field) = &self.image_field {
            options = options.image_field(field);
        }
        if let Some(field) = &self.label_field {
            options = options.label_field(field);
        }
        if self.classes.is_some() {
            options = options.external_classes();
        }
        options
    }

    fn open_held(&self, held: &HeldSamples, stores: &StoreRegistry) -> Result<OpenedDataset> {
        if self.cache_folder.is_some() || self.cache_memory > 0 {
            let message = "tables and Python data sets are not cached; drop the arguments `cache` and \
                           `cache_memory`";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let options = self.options();
        let table = match held {
            HeldSamples::Table(table) => table,
            HeldSamples::Items(items) => {
                let data = OpenedDataset::of_samples(Arc::clone(items), stores, &options)?;
                let mut data = self.with_limit(data);
                data.classes = self.classes.clone().unwrap_or_default();
                return Ok(data);
            }
        };
        let data = OpenedDataset::of_samples(Arc::clone(table), stores, &options)?;
        let mut data = self.with_limit(data);
        for field in [&self.image_field, &self.label_field].into_iter().flatten() {
            data.check_field(field)?;
        }
        if !self.has_labels {
            return Ok(data);
        }
        match &self.label_field {
            Some(field) => block_on(data.name_classes(field))?,
            None => data = block_on(data.name_default_classes())?,
        }
        let first = data.samples.item(0).ok();
        let label = first.and_then(|first| data.fetch_labeled().fields_of(&first).1);
        let known = label.and_then(|label| table.classes(&label).map(<[String]>::to_vec));
        if let Some(classes) = self.classes.clone().or(known) {
            data.classes = classes;
        }
        data.warnings.extend(data.unlabeled());
        Ok(data)
    }

    fn open(&self, stores: &StoreRegistry) -> Result<OpenedDataset> {
        let data = block_on(OpenedDataset::open_with(&self.addresses, stores, &self.options()))?;
        let mut data = self.with_limit(data);
        if let Some(field) = &self.label_field {
            data.check_field(field)?;
        }
        match (&self.classes, &self.label_field) {
            (None, None) => {}
            (None, Some(field)) => block_on(data.name_classes(field))?,
            (Some(_), _) if data.has_own_classes() => return Err(self.classes_error()),
            (Some(classes), _) => data.classes.clone_from(classes),
        }
        if self.has_labels {
            data.warnings.extend(data.unlabeled());
        }
        Ok(data)
    }

    fn classes_error(&self) -> Error {
        let message = "classes requires labels in a field, as in tar shards: labels from folders and \
                       file lists have their own class names; drop the argument `classes`";
        Error::new(ErrorKind::InvalidArgument, message).with_key(self.shown.as_str())
    }

    /// Rejects the path of a single image file.
    fn check_not_an_image(&self) -> Result<()> {
        match &self.addresses[..] {
            [one] if DatasetKind::of_name(one).is_none() && Path::new(one).is_file() => {
                let message = "unknown data set format: the file name does not end with .tar, .parquet, \
                               .tfrecord, .tfrecords, .rec, .mdb, .lmdb, .txt, .csv, .jsonl or .json; for images, pass a folder, or a list of image files";
                Err(Error::new(ErrorKind::InvalidArgument, message).with_key(self.shown.as_str()))
            }
            _ => Ok(()),
        }
    }

    /// The settings that select image bytes and labels, for the fingerprint of a checkpoint state.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let classes = self.classes.as_ref().map(|names| format!("{names:?}"));
        let fields = [
            ("image field", &self.image_field),
            ("label field", &self.label_field),
            ("classes", &classes),
        ];
        fields.into_iter().filter_map(|(name, field)| Some((name, field.clone()?))).collect()
    }

    fn with_limit(&self, data: OpenedDataset) -> OpenedDataset {
        match self.max_file_bytes {
            Some(bytes) => data.with_max_file_bytes(bytes),
            None => data,
        }
    }

    fn open_cache(&self) -> Result<Option<Cache>> {
        if self.cache_folder.is_none() && self.cache_memory == 0 {
            return Ok(None);
        }
        // Absolute paths, so that cached entries do not depend on the working directory.
        let place = |address: &OsString| match std::fs::canonicalize(address) {
            Ok(path) => path.display().to_string(),
            Err(_) => display_addresses(std::slice::from_ref(address)),
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

/// The addresses for messages, without passwords and signatures.
fn display_addresses(addresses: &[OsString]) -> String {
    let display = |address: &OsString| match address.to_str().map(Address::parse) {
        Some(Ok(parsed)) if parsed.scheme() != "file" => parsed.to_string(),
        // The error explains why the address is invalid, without showing it.
        Some(Err(_)) => "the address".to_owned(),
        _ => Path::new(address).display().to_string(),
    };
    match addresses {
        [] => String::new(),
        [one] => display(one),
        [first, rest @ ..] => format!("{} and {} more", display(first), rest.len()),
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        let mut opened = self.opened.take();
        if self.owner.is_forked_child() {
            // A forked child has no threads to join, and locks of the parent may stay held.
            std::mem::forget(opened);
            return;
        }
        // Without threads, the data set is dropped in place.
        if opened.as_ref().is_none_or(|opened| !opened.has_threads()) {
            // An Arrow table may be released by Python code.
            without_exception(|| drop(opened));
            return;
        }
        let mut end =
            || opened.take().into_iter().for_each(|opened| drop_within(opened, SHUTDOWN_TIMEOUT));
        if Python::try_attach(|py| without_python(py, &mut end)).is_none() {
            // Python is shutting down: drop without the GIL.
            end();
        }
    }
}
