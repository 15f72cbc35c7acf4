//! [`FetchLabeled`]: the stage that reads one field and a class label of each sample.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::stage::Medium;
use spdl_core::{AsyncContext, AsyncStage, Error, ErrorKind, Labeled, Result};

use super::classes::Classes;
use super::label_rule::LabelRule;
use super::parts::Parts;
use super::read_fields::{field_key, known_bytes, read_record};
#[cfg(feature = "cache")]
use crate::fetch::ItemMemory;
#[cfg(any(feature = "cache", feature = "local"))]
use crate::fetch::Key;
use crate::fetch::{Fetch, Fetcher, medium_of};
#[cfg(feature = "local")]
use crate::files::IoThreads;
#[cfg(feature = "cache")]
use crate::layers::local_version;
#[cfg(feature = "cache")]
use crate::layers::{Cache, Pinned, PinnedVersions};
use crate::records::{
    FieldRequest, FieldValue, IMAGE_EXTENSIONS, StoredField, StoredRecord, no_such_field,
};

/// The pipeline stage that reads one field and the label of each stored sample.
///
/// The output has the same type as that of [`Fetch`], so the same decode stages can follow.
///
/// - The value is the first existing field of a list of names.
/// - The label is the first existing label field, or else the label that the data set assigned. If
///   [label fields are set](FetchLabeled::with_label_fields), each sample must have one of them.
/// - A label field holds an integer (`3.0` counts as an integer), its digits as text, or one of the [class
///   names](FetchLabeled::with_classes).
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::PipelineBuilder;
/// use spdl_io::{FetchLabeled, MemoryFetcher, StoredRecord};
/// use spdl_io::records::{Encoding, Extent};
///
/// let store = MemoryFetcher::from_iter([("1.png", "an image"), ("1.cls", "7")]);
/// let samples = vec![
///     StoredRecord::new("1")
///         .with_stored("png", Extent::whole("1.png"), Encoding::Bytes)
///         .with_stored("cls", Extent::whole("1.cls"), Encoding::Integer),
/// ];
/// let mut pipeline = PipelineBuilder::from_iter(samples)
///     .async_stage("fetch", FetchLabeled::new(Arc::new(store)))
///     .build()?;
/// let image = pipeline.next().expect("one sample")?;
/// assert_eq!((&image.value[..], image.label), (&b"an image"[..], 7));
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// - The errors of [`FetchRecord`](crate::FetchRecord).
/// - `NotFound` if a sample has no value field, or none of the label fields that were set.
/// - `InvalidArgument` if the value is not bytes, or if the label is neither an integer nor a class name.
/// - The errors of the [preparation](FetchLabeled::with_preparation).
#[derive(Clone)]
pub struct FetchLabeled {
    pub(super) fetcher: Arc<dyn Fetcher>,
    values: Vec<Arc<str>>,
    pub(super) labels: LabelRule,
    pub(super) max_bytes: u64,
    /// The address of the store; `None` for local files.
    pub(super) store: Option<Arc<str>>,
    #[cfg(feature = "local")]
    preparation: Option<Preparation>,
    #[cfg(feature = "cache")]
    pub(super) cache: Option<Cache>,
    /// The stages of several data sets.
    pub(super) parts: Parts<FetchLabeled>,
}

/// A function that is applied to each value, and its thread pool.
#[cfg(feature = "local")]
#[derive(Clone)]
struct Preparation {
    prepare: Arc<Prepare>,
    threads: Arc<IoThreads>,
}

#[cfg(feature = "local")]
type Prepare = dyn Fn(&Key, Bytes) -> Result<Bytes> + Send + Sync;

impl FetchLabeled {
    /// Reads images and labels from the default fields, with at most [`Fetch::DEFAULT_MAX_BYTES`] per sample.
    ///
    /// - Value fields: [`IMAGE_EXTENSIONS`], `image`, `img`, `file`, `image/encoded`.
    /// - Label fields: `cls`, `label`, `class`, `image/class/label`.
    pub fn new(fetcher: Arc<dyn Fetcher>) -> Self {
        let values = IMAGE_EXTENSIONS.iter().chain(&["image", "img", "file", "image/encoded"]);
        FetchLabeled {
            fetcher,
            values: values.map(|&name| name.into()).collect(),
            labels: LabelRule::default(),
            max_bytes: Fetch::DEFAULT_MAX_BYTES,
            store: None,
            #[cfg(feature = "local")]
            preparation: None,
            #[cfg(feature = "cache")]
            cache: None,
            parts: Parts::default(),
        }
    }

    /// Sets the address of the store, without credentials.
    pub(crate) fn in_store(self, store: Option<Arc<str>>) -> Self {
        FetchLabeled { store, ..self }
    }

    /// Reads the samples of several data sets, each by its own stage. The stores are those of the data sets, for
    /// messages. Settings of the new stage apply to all of them.
    pub(crate) fn of_parts(
        mut self,
        parts: impl IntoIterator<Item = (FetchLabeled, Option<Arc<str>>)>,
    ) -> Self {
        self.parts = Parts::new(parts);
        self
    }

    /// Changes a setting of this stage, and of the stages of all data sets.
    fn each(mut self, set: impl Fn(&mut FetchLabeled)) -> Self {
        self.parts = self.parts.map(|part| {
            let mut stage = part.stage.clone();
            set(&mut stage);
            stage
        });
        set(&mut self);
        self
    }

    /// Applies `prepare` to each value, for example to shrink images.
    ///
    /// A value that the [cache](FetchLabeled::with_cache) holds is not prepared again. `prepare`
    /// receives the key of the sample. It runs on a dedicated pool of up to one thread per
    /// available CPU. A panic becomes an error of kind `Panicked`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_io::{FetchLabeled, MemoryFetcher};
    /// # let store = MemoryFetcher::new();
    /// let fetch = FetchLabeled::new(Arc::new(store))
    ///     .with_preparation(|_key, file| Ok(file.to_ascii_uppercase().into()));
    /// ```
    #[cfg(feature = "local")]
    #[must_use]
    pub fn with_preparation(
        self,
        prepare: impl Fn(&Key, Bytes) -> Result<Bytes> + Send + Sync + 'static,
    ) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let linger = std::time::Duration::from_secs(10);
        let threads = Arc::new(IoThreads::new("spdl-prepare", cpus, linger));
        let preparation = Preparation { prepare: Arc::new(prepare), threads };
        self.each(|fetch| fetch.preparation = Some(preparation.clone()))
    }

    /// Caches the value and label of each sample.
    ///
    /// The cache stores prepared values. Use a separate
    /// [namespace](crate::layers::CacheBuilder::namespace) for each preparation function.
    ///
    /// A changed object is read again if its version is known:
    ///
    /// - Local files are checked on each read
    ///   ([`Capability::local_versions`](crate::Capability::local_versions)).
    /// - Images and tar shards of a store have the version that they had when the data set was opened
    ///   ([`StoredRecord::version`]). If they change later, reads fail with `Changed`.
    /// - TFRecord, MDS, LitData, RecordIO, LMDB, Parquet and JSON Lines files of a store have the version
    ///   that they had when they were opened or first read. If the version changes later, reads fail with
    ///   `Changed`.
    /// - Other objects of a store, such as those of address lists, have the size and version that they
    ///   had when they were first read. One [`stat`](Fetcher::stat) per object finds them, also for
    ///   cached samples. If they change later, reads fail with `Changed`. Memory use: the key and the
    ///   version of each object.
    /// - If a store reports no sizes, changes are not detected. Use a separate namespace for each
    ///   version of such data.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_io::{Cache, FetchLabeled, MemoryFetcher};
    /// # let store = MemoryFetcher::new();
    /// let cache = Cache::builder().memory(1 << 30).namespace("photos, version 2").open()?;
    /// let fetch = FetchLabeled::new(Arc::new(store)).with_cache(cache.clone());
    /// // After the run:
    /// println!("cache hit rate: {:.0} %", cache.statistics().hit_rate() * 100.0);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[cfg(feature = "cache")]
    #[must_use]
    pub fn with_cache(self, cache: Cache) -> Self {
        self.with_pinned_cache(cache, PinnedVersions::default())
    }

    /// [`with_cache`](Self::with_cache) with versions that other stages share.
    #[cfg(feature = "cache")]
    pub(crate) fn with_pinned_cache(mut self, cache: Cache, versions: PinnedVersions) -> Self {
        self.parts = self.parts.map(|part| {
            let cache = match &part.store {
                Some(store) => cache.within(store),
                None => cache.clone(),
            };
            part.stage.clone().with_cache(cache)
        });
        self.cache = Some(cache);
        // Cached and read parts of a shard have the same version.
        self.fetcher = Arc::new(Pinned::new(self.fetcher, versions));
        self
    }

    /// Sets the value fields. The first one that a sample has is used.
    #[must_use]
    pub fn with_value_fields<N: Into<Arc<str>>>(self, names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<Arc<str>> = names.into_iter().map(Into::into).collect();
        self.each(|fetch| fetch.values.clone_from(&names))
    }

    /// Sets the label fields. The first one that a sample has is used.
    ///
    /// A sample without any of them, or with an empty one, is an error. If `names` is empty, the label is the
    /// one that the data set assigned.
    #[must_use]
    pub fn with_label_fields<N: Into<Arc<str>>>(self, names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<Arc<str>> = names.into_iter().map(Into::into).collect();
        self.each(|fetch| {
            fetch.labels.fields.clone_from(&names);
            fetch.labels.is_required = !names.is_empty();
        })
    }

    /// Sets the class names. A label that is a name becomes its index, counted from 0.
    ///
    /// Without class names, each label must be an integer.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_io::{FetchLabeled, FieldValue, MemoryFetcher};
    /// let fetch = FetchLabeled::new(Arc::new(MemoryFetcher::new())).with_classes(["cat", "dog"]);
    /// assert_eq!(fetch.label_of(&FieldValue::Text("dog".into())), Some(1));
    /// assert_eq!(fetch.label_of(&FieldValue::Integer(7)), Some(7));
    /// assert_eq!(fetch.label_of(&FieldValue::Text("cow".into())), None);
    /// ```
    #[must_use]
    pub fn with_classes(self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let classes = Classes::new(names);
        self.each(|fetch| fetch.labels.classes = classes.clone())
    }

    /// Converts class numbers to those of another list of classes: `others` has one for each class name, or -1.
    pub(crate) fn with_renumbered_classes(mut self, others: Arc<[i64]>) -> Self {
        self.labels.classes = self.labels.classes.renumbered(others);
        self
    }

    /// Sets whether empty text means that the sample has no label. Ignored if a label is required.
    pub(crate) fn with_empty_labels(mut self, allows_empty: bool) -> Self {
        self.labels.allows_empty = allows_empty;
        self
    }

    /// The class number of a label field; `None` if it is neither an integer nor a class name.
    ///
    /// Text is looked up as a class name first, and otherwise parsed as an integer. Bytes, such as the content
    /// of a file `1.cls`, are parsed first.
    pub fn label_of(&self, value: &FieldValue) -> Option<i64> {
        self.labels.classes.number(value)
    }

    /// Sets the maximum total size of the value and label of a sample, in bytes. If the sizes are
    /// known, a larger sample fails before it is read.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: u64) -> Self {
        self.each(|fetch| fetch.max_bytes = max_bytes)
    }

    /// The names of the value field and the label field of a sample, if they exist.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_io::{FetchLabeled, FieldValue, MemoryFetcher, StoredRecord};
    /// let fetch = FetchLabeled::new(Arc::new(MemoryFetcher::new()));
    /// let sample = StoredRecord::new("1").with_known("label", FieldValue::Integer(7));
    /// assert_eq!(fetch.fields_of(&sample), (None, Some("label".into())));
    /// ```
    pub fn fields_of(&self, item: &StoredRecord) -> (Option<Arc<str>>, Option<Arc<str>>) {
        if let Ok(Some(part)) = self.parts.of(item) {
            return part.stage.fields_of(item);
        }
        let exists = |wanted: &&Arc<str>| item.names().any(|name| *name == ***wanted);
        (self.values.iter().find(exists).cloned(), self.labels.field_of(item))
    }

    /// Whether `name` is a value field.
    pub(crate) fn is_value(&self, name: &str) -> bool {
        self.values.iter().any(|value| **value == *name)
    }

    /// Whether `name` is a label field.
    pub(crate) fn is_label(&self, name: &str) -> bool {
        self.labels.fields.iter().any(|label| **label == *name)
    }

    fn request(&self, value: Arc<str>, label: Option<Arc<str>>) -> FieldRequest {
        FieldRequest::all(self.max_bytes).only([value].into_iter().chain(label))
    }
}

#[async_trait]
impl AsyncStage<StoredRecord> for FetchLabeled {
    type Out = Labeled<Bytes>;

    async fn process(&self, item: StoredRecord, cx: &AsyncContext) -> Result<Labeled<Bytes>> {
        if let Some(part) = self.parts.of(&item)? {
            return part.with_address(part.stage.process(item, cx).await);
        }
        let (value, label) = self.fields_of(&item);
        let Some(value) = value else {
            let wanted = self.values.iter().map(|name| &**name);
            return Err(no_such_field(&item.key, wanted, item.names()));
        };
        self.labels.check(&item, label.as_ref())?;
        #[cfg(feature = "cache")]
        if let Some(cache) = &self.cache {
            let mut name = cache_key(&item, &value, label.as_deref());
            if label.is_some() {
                name.extend(self.labels.classes.cache_suffix());
                // A stage that treats an empty label as an error must not use an entry that was cached with the
                // label -1.
                name.extend(self.labels.empty_is_unlabeled().then_some(0));
            }
            let names = [&*value].into_iter().chain(label.as_deref());
            let version = cache_version(&*self.fetcher, &item, names).await?;
            let memory = ItemMemory::new(cx, u64::MAX);
            let entry = cache.get_within(&name, version.as_deref(), &memory).await;
            if let Some(sample) = entry.and_then(from_cache) {
                // The data set may assign another label than in the run that filled the cache.
                let known = self.known_label(&item, label.as_deref());
                let label = known.unwrap_or(sample.label);
                return Ok(Labeled { label, ..sample });
            }
            let sample = self.read(item, value, label, cx).await?;
            // The entry is a copy.
            cx.reserve(sample.value.len().saturating_mul(2)).await;
            cache.put_version(&name, version.as_deref(), &for_cache(&sample)).await;
            return Ok(sample);
        }
        self.read(item, value, label, cx).await
    }

    fn output_bytes(&self, item: &StoredRecord) -> Option<usize> {
        if let Ok(Some(part)) = self.parts.of(item) {
            return part.stage.output_bytes(item);
        }
        #[cfg(feature = "local")]
        if self.preparation.is_some() {
            return None;
        }
        let (value, label) = self.fields_of(item);
        known_bytes(item, &self.request(value?, label))
    }

    fn medium(&self) -> Medium {
        medium_of(&*self.fetcher)
    }
}

impl FetchLabeled {
    /// Reads a sample and prepares its value.
    async fn read(
        &self,
        mut item: StoredRecord,
        value: Arc<str>,
        label: Option<Arc<str>>,
        cx: &AsyncContext,
    ) -> Result<Labeled<Bytes>> {
        let label = label.map(|name| LabelRule::prepare(&mut item, name));
        let request =
            self.request(Arc::clone(&value), label.as_ref().map(|it| Arc::clone(&it.name)));
        let mut record = read_record(&self.fetcher, item, &request, cx).await?;
        let label = match label {
            None => record.label,
            Some(field) => {
                let text = record.take(&field.name)?;
                self.labels.label(&record, &field, &text)?
            }
        };
        let bytes = match record.take(&value)? {
            FieldValue::Bytes(bytes) => bytes,
            other => {
                let message = format!("expected bytes, found {}", other.kind());
                let error = Error::new(ErrorKind::InvalidArgument, message);
                return Err(error.with_key(field_key(&record.key, &value).display_name()));
            }
        };
        #[cfg(feature = "local")]
        if let Some(Preparation { prepare, threads }) = &self.preparation {
            let (prepare, key) = (Arc::clone(prepare), record.key.clone());
            let prepared = threads.run(move || prepare(&key, bytes)).await;
            let value = prepared.map_err(|error| match error.key() {
                Some(_) => error,
                None => error.with_key(record.key.display_name()),
            })?;
            return Ok(Labeled { value, label });
        }
        Ok(Labeled { value: bytes, label })
    }

    /// The label of a sample with the label field `name`, if it is known without a read.
    pub(crate) fn known_label(&self, item: &StoredRecord, name: Option<&str>) -> Option<i64> {
        if let Ok(Some(part)) = self.parts.of(item) {
            return part.stage.known_label(item, name);
        }
        let Some(name) = name else { return Some(item.label) };
        match item.fields.iter().find(|(own, _)| **own == *name) {
            Some((_, StoredField::Known(value))) => self.labels.classes.number(value),
            _ => None,
        }
    }
}

/// The cache key of a sample: its key, the fields, and the location of the value, because keys of samples
/// are not unique.
#[cfg(feature = "cache")]
fn cache_key(item: &StoredRecord, value: &str, label: Option<&str>) -> Vec<u8> {
    let place = match item.fields.iter().find(|(name, _)| **name == *value) {
        Some((_, StoredField::At(extent, _))) => extent.to_string(),
        _ => item.row.as_ref().map_or(String::new(), |row| row.row.to_string()),
    };
    // Names contain no zero byte, so the parts cannot be confused.
    let parts = [b"sample".as_slice(), item.key.as_bytes(), value.as_bytes(), place.as_bytes()];
    [&parts.join(&0)[..], &[0], label.unwrap_or_default().as_bytes()].concat()
}

/// The current version of a sample.
///
/// If the fetcher reports versions without a network request, these are the versions of the objects that hold
/// the value and the label. Otherwise, it is the version that the data set recorded, or else the pinned sizes and
/// versions of these objects.
///
/// # Errors
/// The errors of [`Fetcher::stat`], except `Unsupported`.
#[cfg(feature = "cache")]
pub(super) async fn cache_version(
    fetcher: &dyn Fetcher,
    item: &StoredRecord,
    names: impl IntoIterator<Item = &str>,
) -> Result<Option<Vec<u8>>> {
    let is_local = fetcher.capability().local_versions;
    if let (false, Some(recorded)) = (is_local, item.version) {
        return Ok(Some(recorded.to_le_bytes().to_vec()));
    }
    let mut objects: Vec<&Key> = Vec::new();
    for name in names {
        let object = match item.fields.iter().find(|(own, _)| **own == *name) {
            Some((_, StoredField::At(extent, _))) => Some(&extent.object),
            Some((_, StoredField::Known(_))) => None,
            None => item.row.as_ref().and_then(|row| row.group.object()),
        };
        objects.extend(object.filter(|object| !objects.contains(object)));
    }
    let mut versions = Vec::new();
    for object in objects {
        if is_local {
            let version = local_version(fetcher, object).await?.unwrap_or_default();
            versions.extend_from_slice(version.as_bytes());
            versions.push(0);
            continue;
        }
        match fetcher.stat(object).await {
            Ok(meta) => versions.extend(meta.version_hash().to_le_bytes()),
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok((!versions.is_empty()).then_some(versions))
}

/// The cache entry: the label, followed by the value.
#[cfg(feature = "cache")]
fn for_cache(sample: &Labeled<Bytes>) -> Bytes {
    [&sample.label.to_le_bytes()[..], &sample.value].concat().into()
}

#[cfg(feature = "cache")]
fn from_cache(mut entry: Bytes) -> Option<Labeled<Bytes>> {
    let label = i64::from_le_bytes(*entry.first_chunk()?);
    let value = entry.split_off(size_of::<i64>());
    Some(Labeled { value, label })
}

impl fmt::Debug for FetchLabeled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchLabeled")
            .field("fetcher", &self.fetcher)
            .field("values", &self.values)
            .field("labels", &self.labels.fields)
            .finish_non_exhaustive()
    }
}
