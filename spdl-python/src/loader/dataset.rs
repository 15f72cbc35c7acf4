//! The samples of a data set, and the stage that reads them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use pyo3::prelude::*;
use spdl_core::source::Remainder;
use spdl_core::source::sampler::Until;
use spdl_core::{
    Dataset, DatasetSource, Error, ErrorKind, Labeled, PipelineBuilder, Result, Shard,
    StageOptions, block_on,
};
use spdl_io::datasets::{ArrowDataset, DatasetKind, OpenOptions, OpenedDataset};
use spdl_io::records::{
    ARRAY_EXTENSIONS, AUDIO_EXTENSIONS, FetchFields, IndexCache, VIDEO_EXTENSIONS,
};
use spdl_io::stores::Address;
use spdl_io::{
    Cache, Fetch, FetchLabeled, Fetcher, LocalFetcher, Record, StoreRegistry, StoredRecord,
};
use spdl_media::fill::SampleSpec;

use super::functions::Functions;
use super::items::{self, Items};
use super::iterables::{FeedThread, Iterable, IterableSource};
use super::settings::Settings;
use super::tables::ArrowTable;
use crate::interop::error::{report_with_advice, to_exception, without_exception};
use crate::interop::fork::OwnerProcess;
use crate::interop::wait::{SHUTDOWN_TIMEOUT, drop_within, interruptible_with, without_python};
use crate::interop::warnings::log;

/// How many samples of a data set are examined for the fields of a loader.
const EXAMINED: u64 = 100;

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
    /// Headers and tables of files that are read in parts, for later epochs.
    indices: IndexCache,
    /// Holds the connections to the stores.
    stores: StoreRegistry,
    origin: Origin,
    /// The address, or the expression, without credentials, for messages.
    shown: String,
    /// The number of samples in an epoch; `None` if it is unknown before the end.
    epoch_len: Option<u64>,
}

/// How a data set was made, to open it again.
enum Origin {
    Opened(Box<OpenRequest>),
    Made { of: Vec<Arc<Opened>>, how: Combination, has_labels: bool },
}

/// How a data set is made of others. All but the first two have one.
#[derive(Clone)]
enum Combination {
    Concatenated,
    Mixed(Vec<f64>, Until),
    Take(u64),
    Skip(u64),
    At(Arc<[u64]>),
    Repeated(u64),
    Classes(Vec<String>, Option<u64>),
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
    /// The alternative columns of each field, if no field needs a file.
    value_fields: Vec<Vec<String>>,
    /// The folder of the images of COCO annotations.
    images: Option<String>,
    /// What the files of folders are instead of images: `audio`, `video` or `array`.
    media: Option<String>,
    /// The class names that the caller passed. Allowed only if a field holds the labels.
    classes: Option<Vec<String>>,
    cache_folder: Option<(PathBuf, u64)>,
    cache_memory: u64,
    max_file_bytes: Option<u64>,
    /// The memory for sequential reads of tar shards.
    sequential: Option<u64>,
    /// Whether labels are used.
    has_labels: bool,
    /// Whether samples without a label are dropped, and not reported when the data set is opened.
    drops_unlabeled: bool,
    /// Whether the data set is used in an expression, whose data sets share the class names that the caller passed.
    is_part: bool,
}

/// The argument from which [`Until`] is made.
#[derive(FromPyObject)]
enum UntilArgument {
    Samples(u64),
    Name(String),
}

/// Samples that a Python object holds.
#[derive(Clone)]
enum HeldSamples {
    /// The rows of a table, and a warning about it.
    Table(Arc<ArrowDataset>, Option<Error>),
    Items(Arc<Items>),
    Iterable(Arc<Iterable>),
}

/// The source of a pipeline, and the stage that reads its samples.
pub(crate) struct FetchStage {
    source: PipelineBuilder<StoredRecord>,
    options: StageOptions,
    /// The settings that determine the values.
    parameters: Parameters,
    fetch: FetchLabeled,
    /// Whether the samples are in memory.
    pub(crate) is_in_memory: bool,
    kept: Kept,
}

/// Objects that own threads, dropped after the pipeline.
pub(crate) type Kept = (Arc<dyn Fetcher>, Arc<Opened>, Option<FeedThread>);
type FetchedBy<T> = (PipelineBuilder<T>, Kept);
/// Names and values of settings, for the fingerprint of a checkpoint state.
pub(crate) type Parameters = Vec<(&'static str, String)>;

impl FetchStage {
    /// Reads images and their labels.
    pub(crate) fn images(self) -> FetchedBy<Labeled<Bytes>> {
        let FetchStage { source, options, parameters, fetch, kept, .. } = self;
        (source.async_stage(options.parameters(parameters), fetch).measured(), kept)
    }

    /// Reads the fields of `spec`. Of video and audio files, only the parts are read that `stage` decodes.
    pub(crate) fn fields(self, spec: &SampleSpec, stage: &str) -> FetchedBy<Record> {
        let FetchStage { source, options, parameters, fetch, kept, .. } = self;
        let fetch = spec.in_parts(spec.fetch_like(&fetch), stage);
        let fetch = fetch.with_index_cache(&kept.1.indices);
        (source.async_stage(options.parameters(parameters), fetch).measured(), kept)
    }

    /// The samples without a stage that reads them, the function that reads their fields, and the settings of both.
    pub(crate) fn in_memory(
        self,
        spec: &SampleSpec,
    ) -> (FetchedBy<StoredRecord>, FetchFields, Parameters) {
        let FetchStage { source, parameters, fetch, kept, .. } = self;
        ((source, kept), spec.fetch_like(&fetch), parameters)
    }
}

#[pymethods]
impl Samples {
    /// Opens a data set of any kind, a list of images, an Arrow table, a map-style data set
    /// with this name, number of items, and position of its first item, or an iterable with this name and, if known,
    /// number of items. The cache of `shares` is used if it has one.
    #[staticmethod]
    #[pyo3(signature = (
        addresses, *, is_list, table=None, items=None, iterable=None, labels=None, image_field=None, label_field=None, file_fields=None, path_fields=None, value_fields=None,
        images=None, media=None, classes=None,
        cache=None, cache_size=0, cache_memory=0, max_file_bytes=None, sequential=None, has_labels=true, drops_unlabeled=false, is_part=false, shares=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn open(
        py: Python<'_>,
        addresses: Vec<OsString>,
        is_list: bool,
        table: Option<PyRef<'_, ArrowTable>>,
        items: Option<(String, u64, u64)>,
        iterable: Option<(String, Option<u64>)>,
        labels: Option<Vec<i64>>,
        image_field: Option<String>,
        label_field: Option<String>,
        file_fields: Option<Vec<String>>,
        path_fields: Option<Vec<String>>,
        value_fields: Option<Vec<Vec<String>>>,
        images: Option<String>,
        media: Option<String>,
        classes: Option<Vec<String>>,
        cache: Option<PathBuf>,
        cache_size: u64,
        cache_memory: u64,
        max_file_bytes: Option<u64>,
        sequential: Option<u64>,
        has_labels: bool,
        drops_unlabeled: bool,
        is_part: bool,
        shares: Option<PyRef<'_, Samples>>,
    ) -> PyResult<Self> {
        let (shown, held) = match (table, items, iterable) {
            (Some(table), ..) => {
                let (rows, warning) = (Arc::clone(&table.samples), table.warning.clone());
                (table.name.clone(), Some(HeldSamples::Table(rows, warning)))
            }
            (_, Some((name, len, first)), _) => {
                (name.clone(), Some(HeldSamples::Items(Arc::new(Items { name, len, first }))))
            }
            (.., Some((name, len))) => {
                (name.clone(), Some(HeldSamples::Iterable(Arc::new(Iterable { name, len }))))
            }
            (None, None, None) => (display_addresses(&addresses), None),
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
            value_fields: value_fields.unwrap_or_default(),
            images,
            media,
            classes,
            cache_folder: cache.map(|folder| (folder, cache_size)),
            cache_memory,
            max_file_bytes,
            sequential,
            has_labels,
            drops_unlabeled,
            is_part,
        };
        let shared = shares.and_then(|other| other.opened.as_ref()?.cache.clone());
        let (sender, receiver) = mpsc::channel();
        let stores = StoreRegistry::new().on_unreachable(move |address, error| {
            // Sending fails once the data set is open and the receiver is dropped.
            let _ = sender.send(format!("{address}: {}; retrying", error.message()));
        });
        let open = move || Opened::open(request, labels.as_deref(), stores, shared.as_ref());
        let opened = interruptible_with(py, open, |py| {
            receiver.try_iter().try_for_each(|it| log(py, "warning", it))
        })?;
        let opened = opened.map_err(|error| to_exception(py, &error))?;
        if let Some(text) = opened.inferred_classes_message() {
            log(py, "info", text)?;
        }
        Ok(Samples::of(opened))
    }

    /// The samples of several data sets: concatenated, or mixed by weights. `until` is `first_exhausted`,
    /// `all_exhausted` or a number of samples.
    #[staticmethod]
    #[pyo3(signature = (parts, shown, has_labels, weights=None, until=None))]
    fn joined(
        py: Python<'_>,
        parts: Vec<PyRef<'_, Samples>>,
        shown: String,
        has_labels: bool,
        weights: Option<Vec<f64>>,
        until: Option<UntilArgument>,
    ) -> PyResult<Self> {
        let until = match until {
            Some(UntilArgument::Samples(samples)) => Until::Samples(samples),
            Some(UntilArgument::Name(name)) if name == "first_exhausted" => Until::FirstExhausted,
            _ => Until::AllExhausted,
        };
        let how = match weights {
            Some(weights) => Combination::Mixed(weights, until),
            None => Combination::Concatenated,
        };
        let of = parts.iter().map(|part| part.own()).collect::<Result<Vec<_>>>();
        let made = of.and_then(|of| Opened::made(of, how, has_labels, shown));
        Ok(Samples::of(made.map_err(|error| to_exception(py, &error))?))
    }

    /// Some of the samples: by one of the arguments, or by `classes` and `at_most`.
    #[pyo3(signature = (shown, *, take=None, skip=None, positions=None, times=None, classes=None, at_most=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn chosen(
        &self,
        py: Python<'_>,
        shown: String,
        take: Option<u64>,
        skip: Option<u64>,
        positions: Option<Vec<u64>>,
        times: Option<u64>,
        classes: Option<Vec<String>>,
        at_most: Option<u64>,
    ) -> PyResult<Self> {
        let how = match (take, skip, positions, times) {
            (Some(samples), ..) => Combination::Take(samples),
            (_, Some(samples), ..) => Combination::Skip(samples),
            (_, _, Some(positions), _) => Combination::At(positions.into()),
            (.., Some(times)) => Combination::Repeated(times),
            _ => Combination::Classes(classes.unwrap_or_default(), at_most),
        };
        let own = self.own().map_err(|error| to_exception(py, &error))?;
        // May read the labels of all samples.
        let make = move || {
            let has_labels = own.has_labels();
            Opened::made(vec![own], how, has_labels, shown)
        };
        let made = interruptible_with(py, make, |_| Ok(()))?;
        Ok(Samples::of(made.map_err(|error| to_exception(py, &error))?))
    }

    /// The names of all samples in the order of the data set.
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<OsString>> {
        let keys = py.detach(|| {
            let samples = Arc::clone(&self.own()?.data.samples);
            let key = |index| Ok(samples.item(index)?.key.to_path().into_owned().into_os_string());
            (0..samples.len()).map(key).collect::<Result<Vec<_>>>()
        });
        keys.map_err(|error| to_exception(py, &error))
    }

    /// Checks that samples in memory, and samples of each of several data sets, have the fields of the settings.
    fn check(&self, py: Python<'_>, settings: &Settings) -> PyResult<()> {
        let Some(opened) = &self.opened else { return Ok(()) };
        opened.check(settings).map_err(|error| to_exception(py, &error))
    }

    /// The number of samples in an epoch; `None` if it is unknown before the end.
    #[getter]
    fn epoch_len(&self) -> Option<u64> {
        self.len()
    }

    /// The number of samples of the windows within which they are shuffled, if they are not shuffled together.
    #[getter]
    fn shuffle_window(&self) -> Option<u64> {
        self.opened.as_ref()?.data.shuffle_window()
    }

    /// The class names.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.opened.iter().flat_map(|opened| opened.data.classes.clone()).collect()
    }

    /// The fields with one value per box that annotations define, and the format of those which are boxes.
    #[getter]
    fn box_fields(&self) -> Vec<(&'static str, Option<&'static str>)> {
        self.opened.iter().flat_map(|opened| opened.data.box_fields().iter().copied()).collect()
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
            DatasetKind::Several => DatasetKind::Several.to_string(),
            _ if opened.request().is_list => "list of images".to_owned(),
            kind => match opened.request().held {
                Some(HeldSamples::Table(..)) => "Arrow table".to_owned(),
                Some(HeldSamples::Items(_)) => "Python data set".to_owned(),
                Some(HeldSamples::Iterable(_)) => "Python iterable".to_owned(),
                None => kind.to_string(),
            },
        })
    }

    /// The address of the data set, without credentials.
    #[getter]
    pub(crate) fn place(&self) -> String {
        self.opened.as_ref().map_or_else(String::new, |opened| opened.shown.clone())
    }
}

impl Samples {
    fn of(opened: Opened) -> Self {
        Samples { opened: Some(Arc::new(opened)), owner: OwnerProcess::current() }
    }

    /// # Errors
    /// `Stopped` during drop.
    fn own(&self) -> Result<Arc<Opened>> {
        let closed = || Error::new(ErrorKind::Stopped, "the loader is closed");
        self.opened.clone().ok_or_else(closed)
    }

    /// The number of samples in an epoch; `None` if it is unknown before the end.
    pub(crate) fn len(&self) -> Option<u64> {
        self.opened.as_ref().map_or(Some(0), |opened| opened.epoch_len)
    }

    /// The shard of a pipeline. The pipeline does not know the length of an iterable, which handles the remainder.
    pub(super) fn shard(&self, settings: &Settings) -> Shard {
        match self.opened.as_ref().and_then(|opened| opened.iterable()) {
            Some(_) if settings.shard.world() > 1 => settings.shard.remainder(Remainder::Uneven),
            _ => settings.shard,
        }
    }

    /// Creates the source of a pipeline over these samples, and the stage that reads them.
    pub(super) fn read(&self, settings: &Settings, functions: &Functions) -> Result<FetchStage> {
        let opened = self.own()?;
        if self.owner.is_forked_child() && opened.has_threads() {
            return Arc::new(opened.reopen(&mut None)?).read(settings, functions);
        }
        opened.read(settings, functions)
    }
}

impl Opened {
    fn open(
        mut request: OpenRequest,
        labels: Option<&[i64]>,
        stores: StoreRegistry,
        shared: Option<&Cache>,
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
            if request.classes.is_some() && !request.is_part {
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
            match &request.classes {
                Some(classes) => request.with_key(data.with_classes(classes))?,
                None => data,
            }
        } else {
            request.check_not_an_image()?;
            request.open(&stores)?
        };
        Opened::of_request(data, stores, request, shared)
    }

    fn of_request(
        data: OpenedDataset,
        stores: StoreRegistry,
        request: OpenRequest,
        shared: Option<&Cache>,
    ) -> Result<Self> {
        let cache = request.open_cache(shared)?;
        let data = match &cache {
            Some(cache) => data.with_cache(cache.clone()),
            None => data,
        };
        let epoch_len = match &request.held {
            Some(HeldSamples::Iterable(iterable)) => iterable.len,
            _ => Some(data.samples.len()),
        };
        let shown = request.shown.clone();
        Ok(Opened {
            data,
            cache,
            indices: IndexCache::default(),
            stores,
            origin: Origin::Opened(Box::new(request)),
            shown,
            epoch_len,
        })
    }

    /// Makes a data set of others.
    fn made(
        of: Vec<Arc<Opened>>,
        how: Combination,
        has_labels: bool,
        shown: String,
    ) -> Result<Self> {
        let with_key = |error: Error| match error.key() {
            Some(_) => error,
            None => error.with_key(shown.as_str()),
        };
        let data = Opened::make(&of, &how, has_labels).and_then(|data| {
            match of.first().and_then(|part| part.request().classes.as_ref()) {
                // The list of the caller, also if only some of its classes were chosen.
                Some(classes) => data.with_classes(classes),
                None => Ok(data),
            }
        });
        let data = data.map_err(with_key)?;
        let epoch_len = Some(data.epoch_len().map_err(with_key)?);
        let remote = of.iter().find(|part| !part.data.is_local).or(of.first());
        let stores = remote.map_or_else(StoreRegistry::new, |part| part.stores.clone());
        let cache = of.iter().find_map(|part| part.cache.clone());
        let origin = Origin::Made { of, how, has_labels };
        let indices = IndexCache::default();
        Ok(Opened { data, cache, indices, stores, origin, shown, epoch_len })
    }

    fn make(of: &[Arc<Opened>], how: &Combination, has_labels: bool) -> Result<OpenedDataset> {
        let mut parts: Vec<OpenedDataset> = of.iter().map(|part| part.data.clone()).collect();
        let leaves = || of.iter().flat_map(|part| part.leaves());
        let parts = match how {
            Combination::Concatenated | Combination::Mixed(..) if !has_labels => {
                // Labels that no field uses may have different meanings.
                parts.iter_mut().for_each(|part| part.classes.clear());
                parts
            }
            Combination::Concatenated | Combination::Mixed(..) => {
                let unknown = |leaf: &&Opened| leaf.is_python() && leaf.data.classes.is_empty();
                if let (Some(leaf), true) =
                    (leaves().find(unknown), parts.iter().any(|part| !part.classes.is_empty()))
                {
                    let message = "a Python data set has class numbers, but other data sets have class names; pass \
                                   the names of the classes as `classes`";
                    let error = Error::new(ErrorKind::InvalidArgument, message);
                    return Err(error.with_key(leaf.shown.as_str()));
                }
                parts
            }
            _ => parts,
        };
        let one = || {
            let none = || Error::new(ErrorKind::Internal, "there is no data set to choose from");
            parts.first().cloned().ok_or_else(none)
        };
        match how {
            Combination::Concatenated => OpenedDataset::concatenated(parts),
            Combination::Mixed(weights, until) => {
                OpenedDataset::mixed(parts.into_iter().zip(weights.iter().copied()), *until)
            }
            Combination::Take(samples) => one()?.take(*samples),
            Combination::Skip(samples) => one()?.skip(*samples),
            Combination::At(positions) => one()?.at_positions(positions.iter().copied()),
            Combination::Repeated(times) => one()?.repeated(*times),
            Combination::Classes(names, at_most) => {
                if let Some(leaf) = leaves().find(|leaf| leaf.is_python()) {
                    let message = "the labels of a Python data set are unknown before its items are read; choose \
                                   positions with `where`";
                    let error = Error::new(ErrorKind::InvalidArgument, message);
                    return Err(error.with_key(leaf.shown.as_str()));
                }
                one()?.of_classes(names, *at_most)
            }
        }
    }

    /// The data sets that were opened, of which this one was made.
    fn leaves(&self) -> Vec<&Opened> {
        match &self.origin {
            Origin::Opened(_) => vec![self],
            Origin::Made { of, .. } => of.iter().flat_map(|part| part.leaves()).collect(),
        }
    }

    /// The arguments of the first data set. Fields and classes are the same for all.
    fn request(&self) -> &OpenRequest {
        match &self.origin {
            Origin::Opened(request) => request,
            // At least one data set, or `made` has failed.
            Origin::Made { of, .. } => of[0].request(),
        }
    }

    fn has_labels(&self) -> bool {
        self.request().has_labels
    }

    /// Whether Python code reads the samples.
    fn is_python(&self) -> bool {
        let Origin::Opened(request) = &self.origin else { return false };
        matches!(request.held, Some(HeldSamples::Items(_) | HeldSamples::Iterable(_)))
    }

    fn iterable(&self) -> Option<&Arc<Iterable>> {
        match &self.origin {
            Origin::Opened(request) => match &request.held {
                Some(HeldSamples::Iterable(iterable)) => Some(iterable),
                _ => None,
            },
            Origin::Made { .. } => None,
        }
    }

    /// Checks that the first sample of a table has the fields of the settings. For several data sets, one of
    /// the first samples of each must have the fields. An iterable must support the settings.
    fn check(&self, settings: &Settings) -> Result<()> {
        if let Some(iterable) = self.iterable() {
            iterable.check(settings.shuffle, settings.shard)?;
        }
        let is_made = matches!(self.origin, Origin::Made { .. });
        let mut checked: Vec<&Opened> = Vec::new();
        for leaf in self.leaves() {
            let is_known = checked.iter().any(|other| std::ptr::eq(*other, leaf));
            let is_table = matches!(leaf.request().held, Some(HeldSamples::Table(..)));
            if is_known || leaf.is_python() || !(is_made || is_table) {
                continue;
            }
            checked.push(leaf);
            let examined = if is_table { 1 } else { leaf.data.samples.len().min(EXAMINED) };
            let samples = (0..examined).filter_map(|index| leaf.data.samples.item(index).ok());
            let mut faults = samples.map(|sample| settings.check(&leaf.data, &sample).err());
            let first = faults.next().flatten();
            if let Some(error) = first
                && faults.all(|fault| fault.is_some())
            {
                return Err(error.renamed(leaf.shown.as_str()));
            }
        }
        Ok(())
    }

    /// A log message about labels that were inferred from folder names.
    fn inferred_classes_message(&self) -> Option<String> {
        let is_default = self.request().label_field.is_none();
        let classes = self.data.classes_in_folders().filter(|_| is_default)?;
        let classes =
            if classes == 1 { "1 class".to_owned() } else { format!("{classes} classes") };
        Some(format!("{}: inferred {classes} from the folders of the shards", self.shown))
    }

    /// Whether the data set has a cache of decoded parts, with threads.
    fn reads_parts(&self) -> bool {
        use DatasetKind::{JsonLines, LitData, Mds, Parquet, ZipShards};
        matches!(self.data.kind, JsonLines | LitData | Mds | Parquet | ZipShards)
    }

    /// Whether the data set uses threads, which a forked child does not have.
    fn has_threads(&self) -> bool {
        let mut leaves = self.leaves().into_iter();
        let has_own = !self.data.is_local || self.data.reads_parts() || self.cache.is_some();
        has_own || leaves.any(Opened::reads_parts)
    }

    /// Opens the data set again in a forked child process. Several data sets share a cache.
    fn reopen(&self, shared: &mut Option<Cache>) -> Result<Self> {
        let request = match &self.origin {
            Origin::Opened(request) => request,
            Origin::Made { of, how, has_labels } => {
                let again = of.iter().map(|part| part.reopen(shared).map(Arc::new));
                let again = again.collect::<Result<_>>()?;
                return Opened::made(again, how.clone(), *has_labels, self.shown.clone());
            }
        };
        let stores = StoreRegistry::new();
        let data = match (self.data.kind, request.addresses.first()) {
            _ if self.reads_parts() => request.open(&stores)?,
            // The rows of a file list may refer to several stores.
            (DatasetKind::FileList, _) if !request.is_list && !self.data.is_local => {
                request.open(&stores)?
            }
            // The sample index holds neither threads nor connections.
            (_, Some(first)) if !self.data.is_local || self.data.reads_parts() => {
                self.data.clone().with_fetcher(stores.open(&first.to_string_lossy())?.fetcher)
            }
            _ => self.data.clone(),
        };
        let opened = Opened::of_request(data, stores, (**request).clone(), shared.as_ref())?;
        *shared = shared.take().or_else(|| opened.cache.clone());
        Ok(opened)
    }

    fn read(self: Arc<Self>, settings: &Settings, functions: &Functions) -> Result<FetchStage> {
        let mut thread = None;
        let mut source = match (self.iterable(), &functions.iterate) {
            (Some(iterable), Some(iterate)) => {
                let (iterable, iterate) = (Arc::clone(iterable), Arc::clone(iterate));
                let samples = IterableSource::new(iterable, iterate, settings.shard);
                thread = Some(samples.thread());
                // Samples in this queue do not count in the memory budget.
                let options = StageOptions::new("source").queue(Fetch::READ_AHEAD);
                PipelineBuilder::from_source(options, samples)
            }
            _ => {
                let order = self.data.sampler(settings.shuffle, settings.seed)?;
                let samples = DatasetSource::new(Arc::clone(&self.data.samples)).sampler(order);
                PipelineBuilder::new(samples)
            }
        };
        if let Some(function) = &functions.get_item {
            source = items::add(source, function, &functions.gil);
        }
        let mut options = StageOptions::new("fetch");
        let mut data = self.data.clone();
        if data.is_local {
            // Reads of uncached files block a thread each, so more concurrency does not help.
            let fetcher = LocalFetcher::new();
            options = options.concurrency(fetcher.max_threads()).queue(Fetch::READ_AHEAD);
            // Parts stay in memory for later epochs.
            if !data.reads_parts() {
                data = data.with_fetcher(Arc::new(fetcher));
            }
        } else {
            // For a store, the stage adjusts its in-flight window.
            source = source.runtime(self.stores.runtime()?);
        }
        let (fetch, fetcher) = (data.fetch_labeled(), data.fetcher);
        let parameters = self.request().fields();
        let is_in_memory = self.leaves().iter().all(|leaf| leaf.is_in_memory());
        Ok(FetchStage {
            source,
            options,
            parameters,
            fetch,
            is_in_memory,
            kept: (fetcher, self, thread),
        })
    }

    /// Whether the samples are rows of a table without further files.
    fn is_in_memory(&self) -> bool {
        let Origin::Opened(request) = &self.origin else { return false };
        matches!(&request.held, Some(HeldSamples::Table(table, _)) if table.is_in_memory())
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
            .path_fields(self.path_fields.iter().cloned())
            .value_fields(self.value_fields.clone());
        if let Some(folder) = &self.images {
            options = options.images(folder);
        }
        match self.media.as_deref() {
            Some("audio") => options = options.extensions(&AUDIO_EXTENSIONS),
            Some("video") => options = options.extensions(&VIDEO_EXTENSIONS),
            Some("array") => options = options.extensions(&ARRAY_EXTENSIONS),
            _ => {}
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
        if let Some(bytes) = self.sequential {
            options = options.sequential(bytes);
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
        let (table, warning) = match held {
            HeldSamples::Table(table, warning) => (table, warning),
            HeldSamples::Items(items) => {
                let data = OpenedDataset::of_samples(Arc::clone(items), stores, &options)?;
                return Ok(self.of_python(data));
            }
            HeldSamples::Iterable(iterable) => {
                let data = OpenedDataset::of_samples(Arc::clone(iterable), stores, &options)?;
                return Ok(self.of_python(data));
            }
        };
        let mut data = OpenedDataset::of_samples(Arc::clone(table), stores, &options)?;
        data.shard_lens = table.shard_lens();
        data.warnings.extend(warning.clone());
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
        if let Some(classes) = &self.classes {
            data.classes.clone_from(classes);
        }
        if !self.drops_unlabeled {
            data.warnings.extend(data.unlabeled());
        }
        Ok(data)
    }

    fn of_python(&self, data: OpenedDataset) -> OpenedDataset {
        let mut data = self.with_limit(data);
        data.classes = self.classes.clone().unwrap_or_default();
        data
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
            (Some(classes), _) if data.has_own_classes() => match self.is_part {
                true => data = self.with_key(data.with_classes(classes))?,
                false => return Err(self.classes_error()),
            },
            (Some(classes), _) => data.classes.clone_from(classes),
        }
        if self.has_labels && !self.drops_unlabeled {
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
                let message = "unknown data set format: the file name does not end with .tar, .zip, .parquet, \
                               .tfrecord, .tfrecords, .rec, .mdb, .lmdb, .txt, .csv, .jsonl, .ndjson or .json; for images, audio, video or arrays, pass a folder, a pattern such as '*.jpg', or a list of files";
                Err(Error::new(ErrorKind::InvalidArgument, message).with_key(self.shown.as_str()))
            }
            _ => Ok(()),
        }
    }

    /// The settings that select image bytes and labels, for the fingerprint of a checkpoint state.
    fn fields(&self) -> Parameters {
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

    fn with_key<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.with_key(self.shown.as_str()))
    }

    /// Opens the cache, or uses a cache that is open.
    fn open_cache(&self, shared: Option<&Cache>) -> Result<Option<Cache>> {
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
        if let Some(cache) = shared {
            return Ok(Some(cache.with_namespace(namespace)));
        }
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
