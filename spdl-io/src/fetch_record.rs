//! The stages from stored samples to their values.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join_all;
use spdl_core::{AsyncContext, AsyncStage, Error, ErrorKind, Footprint, Labeled, Result};

#[cfg(feature = "cache")]
use crate::Cache;
#[cfg(feature = "cache")]
use crate::cache::local_version;
#[cfg(feature = "local")]
use crate::io_threads::IoThreads;
use crate::record::no_such_field;
use crate::{
    Encoding, Extent, Fetch, Fetcher, FieldRequest, FieldValue, IMAGE_EXTENSIONS, Key, Record,
    StoredField, StoredRecord,
};

/// The pipeline stage that reads the fields of stored samples by a [`Fetcher`], and decodes those
/// whose encoding is known.
///
/// The parts that lie in one object are read by one call of
/// [`read_ranges`](Fetcher::read_ranges); [`Resilient`](crate::Resilient) joins those that lie near
/// each other, as the members of a tar archive do. Objects are read at the same time.
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::PipelineBuilder;
/// use spdl_io::{Encoding, Extent, FetchRecord, MemoryFetcher, StoredRecord};
///
/// let store = MemoryFetcher::from_iter([("shard", "...a picture...7")]);
/// let samples = vec![
///     StoredRecord::new("shard:1")
///         .with_stored("jpg", Extent::part("shard", 3..12), Encoding::Bytes)
///         .with_stored("cls", Extent::part("shard", 15..16), Encoding::Integer),
/// ];
/// let mut pipeline = PipelineBuilder::from_iter(samples)
///     .async_stage("fetch", FetchRecord::new(Arc::new(store)))
///     .build()?;
/// let record = pipeline.next().expect("there is one")?;
/// assert_eq!(record.get("jpg")?.as_bytes().map(|it| &it[..]), Some(&b"a picture"[..]));
/// assert_eq!(record.get("cls")?.as_i64(), Some(7));
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// Of a sample, with the key `SAMPLE.FIELD` where it is one field's, and the byte in the object:
/// `NotFound` where it lacks a field that was asked for; `LimitExceeded` where it is larger than
/// allowed; what the fetcher answers; as [`Encoding::decode`].
#[derive(Clone, Debug)]
pub struct FetchRecord {
    fetcher: Arc<dyn Fetcher>,
    request: FieldRequest,
}

impl FetchRecord {
    /// Reads all fields, of up to [`Fetch::DEFAULT_MAX_BYTES`] together.
    pub fn new(fetcher: Arc<dyn Fetcher>) -> Self {
        FetchRecord { fetcher, request: FieldRequest::all(Fetch::DEFAULT_MAX_BYTES) }
    }

    /// Reads these fields only, and delivers them in this order. A sample that lacks one fails.
    #[must_use]
    pub fn with_fields<N: Into<Arc<str>>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.request = self.request.only(names);
        self
    }

    /// Refuses samples whose fields have more than `max_bytes` together, where their sizes are known,
    /// without reading them.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        let names = self.request.names().map(<[_]>::to_vec);
        self.request = FieldRequest::all(max_bytes);
        self.request = match names {
            Some(names) => self.request.only(names),
            None => self.request,
        };
        self
    }
}

#[async_trait]
impl AsyncStage<StoredRecord> for FetchRecord {
    type Out = Record;

    async fn process(&self, item: StoredRecord, _: &AsyncContext) -> Result<Record> {
        read_record(&self.fetcher, item, &self.request).await
    }

    fn output_bytes(&self, item: &StoredRecord) -> Option<usize> {
        known_bytes(item, &self.request)
    }
}

/// The pipeline stage that reads of each stored sample one field as bytes and its label: what
/// [`Fetch`] does for keys. Its output goes where that of `Fetch` goes, as to a decoder of images.
///
/// The value is the first field that the sample has of a list of names. The label is a field, where
/// the sample has it, or else what the data set says.
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::PipelineBuilder;
/// use spdl_io::{Encoding, Extent, FetchLabeled, MemoryFetcher, StoredRecord};
///
/// let store = MemoryFetcher::from_iter([("1.png", "a picture"), ("1.cls", "7")]);
/// let samples = vec![
///     StoredRecord::new("1")
///         .with_stored("png", Extent::whole("1.png"), Encoding::Bytes)
///         .with_stored("cls", Extent::whole("1.cls"), Encoding::Integer),
/// ];
/// let mut pipeline = PipelineBuilder::from_iter(samples)
///     .async_stage("fetch", FetchLabeled::new(Arc::new(store)))
///     .build()?;
/// let image = pipeline.next().expect("there is one")?;
/// assert_eq!((&image.value[..], image.label), (&b"a picture"[..], 7));
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// As [`FetchRecord`]; `NotFound` where a sample has none of the fields; `InvalidArgument` where the
/// value is not bytes, or the label no whole number; and those of the function that prepares.
#[derive(Clone)]
pub struct FetchLabeled {
    fetcher: Arc<dyn Fetcher>,
    values: Vec<Arc<str>>,
    labels: Vec<Arc<str>>,
    max_bytes: u64,
    #[cfg(feature = "local")]
    preparation: Option<Preparation>,
    #[cfg(feature = "cache")]
    cache: Option<Cache>,
}

/// What is made of each value, on threads of its own.
#[cfg(feature = "local")]
#[derive(Clone)]
struct Preparation {
    prepare: Arc<Prepare>,
    threads: Arc<IoThreads>,
}

#[cfg(feature = "local")]
type Prepare = dyn Fn(&Key, Bytes) -> Result<Bytes> + Send + Sync;

impl FetchLabeled {
    /// Reads images and their labels, of up to [`Fetch::DEFAULT_MAX_BYTES`] together, by the usual
    /// names. As value the first that is there of [`IMAGE_EXTENSIONS`], `image`, `img`, `file` and
    /// `image/encoded`; as label of `cls`, `label`, `class` and `image/class/label`.
    pub fn new(fetcher: Arc<dyn Fetcher>) -> Self {
        let values = IMAGE_EXTENSIONS.iter().chain(&["image", "img", "file", "image/encoded"]);
        let labels = ["cls", "label", "class", "image/class/label"];
        FetchLabeled {
            fetcher,
            values: values.map(|&name| name.into()).collect(),
            labels: labels.map(Into::into).into(),
            max_bytes: Fetch::DEFAULT_MAX_BYTES,
            #[cfg(feature = "local")]
            preparation: None,
            #[cfg(feature = "cache")]
            cache: None,
        }
    }

    /// Delivers what `prepare` makes of each value, such as an image that is decoded and made smaller:
    /// with a [cache](FetchLabeled::with_cache), once for all epochs. It is called with the key of the
    /// sample, on as many threads of its own as the process may use CPUs; one that panics is an error of
    /// the kind `Panicked`.
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
        mut self,
        prepare: impl Fn(&Key, Bytes) -> Result<Bytes> + Send + Sync + 'static,
    ) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let linger = std::time::Duration::from_secs(10);
        let threads = Arc::new(IoThreads::new("spdl-prepare", cpus, linger));
        self.preparation = Some(Preparation { prepare: Arc::new(prepare), threads });
        self
    }

    /// Keeps samples, value and label together, in a cache, and asks it before the store. What is kept
    /// is what is delivered, prepared where it is; so give each way to prepare a
    /// [namespace](crate::CacheBuilder::namespace).
    ///
    /// What has changed is read again where its version is known: that of files of this machine, which
    /// are looked at each time ([`Capability::local_versions`](crate::Capability::local_versions)), and
    /// of images and tar shards in a store as they were when the data set was opened
    /// ([`StoredRecord::version`]). Of all else, as of lists of addresses, an object that changes under
    /// the same key is not noticed: give each version of such data a namespace.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_io::{Cache, FetchLabeled, MemoryFetcher};
    /// # let store = MemoryFetcher::new();
    /// let cache = Cache::builder().memory(1 << 30).namespace("photos, version 2").open()?;
    /// let fetch = FetchLabeled::new(Arc::new(store)).with_cache(cache.clone());
    /// // Once the pipeline has run:
    /// println!("{:.0} % of the samples were not read again", cache.statistics().hit_rate() * 100.0);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[cfg(feature = "cache")]
    #[must_use]
    pub fn with_cache(mut self, cache: Cache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Takes as value the first of these fields that a sample has.
    #[must_use]
    pub fn with_value_fields<N: Into<Arc<str>>>(
        mut self,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        self.values = names.into_iter().map(Into::into).collect();
        self
    }

    /// Takes the label from the first of these fields that a sample has. None: it is what the data set
    /// says.
    #[must_use]
    pub fn with_label_fields<N: Into<Arc<str>>>(
        mut self,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        self.labels = names.into_iter().map(Into::into).collect();
        self
    }

    /// As [`FetchRecord::with_max_bytes`].
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The names of the fields of a sample that are its value and its label.
    fn fields_of(&self, item: &StoredRecord) -> (Option<Arc<str>>, Option<Arc<str>>) {
        let is_there = |wanted: &&Arc<str>| item.names().any(|name| *name == ***wanted);
        (self.values.iter().find(is_there).cloned(), self.labels.iter().find(is_there).cloned())
    }

    fn request(&self, value: Arc<str>, label: Option<Arc<str>>) -> FieldRequest {
        FieldRequest::all(self.max_bytes).only([value].into_iter().chain(label))
    }
}

#[async_trait]
impl AsyncStage<StoredRecord> for FetchLabeled {
    type Out = Labeled<Bytes>;

    async fn process(&self, item: StoredRecord, _: &AsyncContext) -> Result<Labeled<Bytes>> {
        let (value, label) = self.fields_of(&item);
        let Some(value) = value else {
            let wanted = self.values.join(" or ");
            return Err(no_such_field(&item.key, &wanted, item.names()));
        };
        #[cfg(feature = "cache")]
        if let Some(cache) = &self.cache {
            let name = name_in_cache(&item, &value, label.as_deref());
            let version = version_in_cache(&*self.fetcher, &item, &value, label.as_deref()).await?;
            let kept = cache.get_version(&name, version.as_deref()).await;
            if let Some(sample) = kept.and_then(from_cache) {
                // What the data set says may be another label than it was.
                let label = known_label(&item, label.as_deref()).unwrap_or(sample.label);
                return Ok(Labeled { label, ..sample });
            }
            let sample = self.read(item, value, label).await?;
            cache.put_version(&name, version.as_deref(), &for_cache(&sample)).await;
            return Ok(sample);
        }
        self.read(item, value, label).await
    }

    fn output_bytes(&self, item: &StoredRecord) -> Option<usize> {
        #[cfg(feature = "local")]
        if self.preparation.is_some() {
            return None;
        }
        let (value, label) = self.fields_of(item);
        known_bytes(item, &self.request(value?, label))
    }
}

impl FetchLabeled {
    /// Reads a sample, and prepares its value.
    async fn read(
        &self,
        item: StoredRecord,
        value: Arc<str>,
        label: Option<Arc<str>>,
    ) -> Result<Labeled<Bytes>> {
        let request = self.request(Arc::clone(&value), label.clone());
        let mut record = read_record(&self.fetcher, item, &request).await?;
        let wrong = |key: &Key, name: &str, wanted: &str, found: &FieldValue| {
            let message = format!("{wanted} was expected, but this is {}", found.kind());
            let error = Error::new(ErrorKind::InvalidArgument, message);
            error.with_key(field_key(key, name).display_name())
        };
        let label = match label {
            None => record.label,
            Some(name) => {
                let field = record.take(&name)?;
                field.as_i64().ok_or_else(|| wrong(&record.key, &name, "a whole number", &field))?
            }
        };
        let bytes = match record.take(&value)? {
            FieldValue::Bytes(bytes) => bytes,
            other => return Err(wrong(&record.key, &value, "bytes", &other)),
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
}

/// What a sample is called in a cache: its key, the fields that are read, and where the value lies, as
/// two samples may have one key.
#[cfg(feature = "cache")]
fn name_in_cache(item: &StoredRecord, value: &str, label: Option<&str>) -> Vec<u8> {
    let place = match item.fields.iter().find(|(name, _)| **name == *value) {
        Some((_, StoredField::At(extent, _))) => extent.to_string(),
        _ => item.row.as_ref().map_or(String::new(), |row| row.row.to_string()),
    };
    // Its parts cannot run into each other: no name has a zero.
    let parts = [b"sample".as_slice(), item.key.as_bytes(), value.as_bytes(), place.as_bytes()];
    [&parts.join(&0)[..], &[0], label.unwrap_or_default().as_bytes()].concat()
}

/// The label of a sample, where it need not be read.
#[cfg(feature = "cache")]
fn known_label(item: &StoredRecord, name: Option<&str>) -> Option<i64> {
    let Some(name) = name else { return Some(item.label) };
    match item.fields.iter().find(|(own, _)| **own == *name) {
        Some((_, StoredField::Known(value))) => value.as_i64(),
        _ => None,
    }
}

/// Which version of a sample is wanted: that of the objects which its value and its label lie in, where
/// the fetcher tells it without asking a server, or else what the data set was told of them.
///
/// # Errors
/// As [`Fetcher::stat`]: what cannot be looked at cannot be read either.
#[cfg(feature = "cache")]
async fn version_in_cache(
    fetcher: &dyn Fetcher,
    item: &StoredRecord,
    value: &str,
    label: Option<&str>,
) -> Result<Option<Vec<u8>>> {
    if !fetcher.capability().local_versions {
        return Ok(item.version.map(|version| version.to_le_bytes().to_vec()));
    }
    let mut objects: Vec<&Key> = Vec::new();
    for name in [Some(value), label].into_iter().flatten() {
        let object = match item.fields.iter().find(|(own, _)| **own == *name) {
            Some((_, StoredField::At(extent, _))) => Some(&extent.object),
            Some((_, StoredField::Known(_))) => None,
            None => item.row.as_ref().and_then(|row| row.group.object()),
        };
        objects.extend(object.filter(|object| !objects.contains(object)));
    }
    let mut versions = Vec::new();
    for object in objects {
        let version = local_version(fetcher, object).await?.unwrap_or_default();
        versions.extend_from_slice(version.as_bytes());
        versions.push(0);
    }
    Ok((!versions.is_empty()).then_some(versions))
}

/// The label, and the value behind it.
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
            .field("labels", &self.labels)
            .finish_non_exhaustive()
    }
}

/// What people call a field of a sample.
fn field_key(sample: &Key, field: &str) -> Key {
    Key::from_bytes(&[sample.as_bytes(), b".", field.as_bytes()].concat())
}

/// How many bytes the values of a sample will have; `None` where the store alone knows.
fn known_bytes(item: &StoredRecord, request: &FieldRequest) -> Option<usize> {
    if item.row.is_some() {
        return None;
    }
    let mut bytes = size_of::<Record>() + item.key.as_bytes().len();
    for (name, field) in item.fields.iter().filter(|(name, _)| request.wants(name)) {
        let of_field = match field {
            StoredField::Known(value) => value.footprint(),
            // A value of JSON takes more memory than its text, by no fixed factor.
            StoredField::At(_, Encoding::Json) => return None,
            StoredField::At(extent, _) => {
                size_of::<FieldValue>().checked_add(usize::try_from(extent.size()?).ok()?)?
            }
        };
        bytes = bytes.checked_add(of_field)?.checked_add(name.footprint())?;
    }
    Some(bytes)
}

/// Reads the fields of a sample that are asked for.
async fn read_record(
    fetcher: &Arc<dyn Fetcher>,
    item: StoredRecord,
    request: &FieldRequest,
) -> Result<Record> {
    if let Some(names) = request.names()
        && let Some(missing) = names.iter().find(|name| !item.names().any(|it| *it == ***name))
    {
        return Err(no_such_field(&item.key, missing, item.names()));
    }
    let mut fields = Vec::with_capacity(item.fields.len());
    let mut extents = Vec::new();
    for (name, field) in item.fields.into_iter().filter(|(name, _)| request.wants(name)) {
        match field {
            StoredField::Known(value) => fields.push((name, Slot::Value(value))),
            StoredField::At(extent, encoding) => {
                extents.push((Arc::clone(&name), extent));
                fields.push((name, Slot::Extent(extents.len() - 1, encoding)));
            }
        }
    }
    let mut parts = read_extents(fetcher, &item.key, &extents, request.max_bytes()).await?;
    let mut record = Record::new(item.key).with_label(item.label);
    for (name, slot) in fields {
        let value = match slot {
            Slot::Value(value) => value,
            Slot::Extent(number, encoding) => {
                let bytes = std::mem::take(&mut parts[number]);
                encoding.decode(bytes).map_err(|error| {
                    let extent = &extents[number].1;
                    let start = extent.range.as_ref().map_or(0, |range| range.start);
                    let offset = start.saturating_add(error.offset().unwrap_or_default());
                    error.with_offset(offset).with_key(field_key(&record.key, &name).display_name())
                })?
            }
        };
        record.fields.push((name, value));
    }
    if let Some(row) = item.row {
        let of_row = row.group.read(fetcher, row.row, request).await;
        record.fields.extend(of_row.map_err(|error| error.with_key(record.key.display_name()))?);
    }
    if let Some(names) = request.names() {
        let mut in_order = Vec::with_capacity(names.len());
        for name in names {
            in_order.push((Arc::clone(name), record.take(name)?));
        }
        record.fields = in_order;
    }
    Ok(record)
}

enum Slot {
    Value(FieldValue),
    /// The number of the extent.
    Extent(usize, Encoding),
}

/// Reads parts of objects, in the order in which they are given.
async fn read_extents(
    fetcher: &Arc<dyn Fetcher>,
    sample: &Key,
    extents: &[(Arc<str>, Extent)],
    max_bytes: u64,
) -> Result<Vec<Bytes>> {
    let sizes = extents.iter().filter_map(|(_, extent)| extent.size());
    let known = sizes.fold(0, u64::saturating_add);
    let too_large = |bytes: u64| {
        let message = format!("holds {bytes} bytes, but at most {max_bytes} are allowed");
        Error::new(ErrorKind::LimitExceeded, message).with_key(sample.display_name())
    };
    if known > max_bytes {
        return Err(too_large(known));
    }
    // The parts of each object, in the order of the object.
    let mut order: Vec<usize> = (0..extents.len()).collect();
    order.sort_by_key(|&at| {
        let extent = &extents[at].1;
        (&extent.object, extent.range.as_ref().map(|range| range.start))
    });
    let of_one_object = |a: &usize, b: &usize| {
        let (a, b) = (&extents[*a].1, &extents[*b].1);
        a.range.is_some() && b.range.is_some() && a.object == b.object
    };
    let reads = order.chunk_by(of_one_object).map(|numbers| async move {
        let parts = read_object(fetcher, extents, numbers, max_bytes - known).await;
        parts.map_err(|error| of_field(error, sample, extents, numbers))
    });
    let read = try_join_all(reads.collect::<Vec<_>>()).await?;
    let mut parts = vec![Bytes::new(); extents.len()];
    for (number, part) in read.into_iter().flatten() {
        parts[number] = part;
    }
    let bytes = parts.iter().map(|part| part.len() as u64).fold(0, u64::saturating_add);
    if bytes > max_bytes {
        return Err(too_large(bytes));
    }
    Ok(parts)
}

/// Reads one object whole, or parts of one.
async fn read_object(
    fetcher: &Arc<dyn Fetcher>,
    extents: &[(Arc<str>, Extent)],
    numbers: &[usize],
    max_bytes: u64,
) -> Result<Vec<(usize, Bytes)>> {
    let Some(object) = numbers.first().map(|&first| &extents[first].1.object) else {
        return Ok(Vec::new());
    };
    let is_read = |number: &&usize| extents[**number].1.size() != Some(0);
    let read: Vec<usize> = numbers.iter().filter(is_read).copied().collect();
    let ranges = read.iter().map(|&number| extents[number].1.range.clone());
    let parts = match ranges.collect::<Option<Vec<Range<u64>>>>() {
        None => vec![fetcher.read_at_most(object, max_bytes).await?],
        Some(ranges) => match &ranges[..] {
            [] => Vec::new(),
            [range] => vec![fetcher.read(object, Some(range.clone())).await?],
            ranges => fetcher.read_ranges(object, ranges).await?,
        },
    };
    let are_as_asked = parts.len() == read.len()
        && parts.iter().zip(&read).all(|(part, &number)| {
            extents[number].1.size().is_none_or(|size| size == part.len() as u64)
        });
    if !are_as_asked {
        let message = format!("{fetcher:?} gave other ranges than it was asked for");
        return Err(Error::new(ErrorKind::Internal, message).with_key(object.display_name()));
    }
    Ok(read.into_iter().zip(parts).collect())
}

/// The error of a read with the field that could not be read. Whole objects have a name of their own.
fn of_field(
    error: Error,
    sample: &Key,
    extents: &[(Arc<str>, Extent)],
    numbers: &[usize],
) -> Error {
    let parts: Vec<_> =
        numbers.iter().map(|&at| &extents[at]).filter(|(_, it)| it.range.is_some()).collect();
    let (key, start) = match &parts[..] {
        [] => return error,
        [(name, extent)] => (field_key(sample, name), extent.range.as_ref().map(|it| it.start)),
        [(_, first), ..] => (sample.clone(), first.range.as_ref().map(|it| it.start)),
    };
    let mut of_field = Error::new(error.kind(), error.message()).with_key(key.display_name());
    if let Some(offset) = error.offset().or(start) {
        of_field = of_field.with_offset(offset);
    }
    if let Some(delay) = error.retry_after() {
        of_field = of_field.with_retry_after(delay);
    }
    let of_field = if error.is_fatal() { of_field.fatal() } else { of_field };
    of_field.with_source(error)
}

impl Footprint for FieldValue {
    fn footprint(&self) -> usize {
        let heap = match self {
            FieldValue::Bytes(bytes) => bytes.len(),
            FieldValue::Text(text) => text.len(),
            FieldValue::Integers(numbers) => size_of_val(&numbers[..]),
            FieldValue::Floats(numbers) => size_of_val(&numbers[..]),
            FieldValue::List(fields) => fields.iter().map(Footprint::footprint).sum(),
            FieldValue::Array(array) => array.data().len() + size_of_val(array.shape()),
            FieldValue::Json(value) => json_heap(value),
            FieldValue::Bool(_)
            | FieldValue::Integer(_)
            | FieldValue::Float(_)
            | FieldValue::Null => 0,
        };
        size_of::<Self>() + heap
    }
}

impl Footprint for Record {
    fn footprint(&self) -> usize {
        let fields = self.fields.iter();
        size_of::<Self>()
            + self.key.as_bytes().len()
            + fields.map(|(name, value)| name.footprint() + value.footprint()).sum::<usize>()
    }
}

/// What a value of JSON holds beyond its own size.
fn json_heap(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => {
            values.iter().map(|value| size_of::<Value>() + json_heap(value)).sum()
        }
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| {
                size_of::<String>() + name.len() + size_of::<Value>() + json_heap(value)
            })
            .sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
