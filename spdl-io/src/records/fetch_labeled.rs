//! The stage that reads of each sample a value and a label, prepares the value, and keeps both in a cache.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{AsyncContext, AsyncStage, Error, ErrorKind, Labeled, Result};

use super::classes::Classes;
use super::read_fields::{field_key, known_bytes, read_record};
use crate::fetch::{Fetch, Fetcher, Key};
#[cfg(feature = "local")]
use crate::files::IoThreads;
#[cfg(feature = "cache")]
use crate::layers::Cache;
#[cfg(feature = "cache")]
use crate::layers::local_version;
use crate::records::label_text::is_empty_text;
use crate::records::no_such_field;
use crate::records::{
    Encoding, FieldRequest, FieldValue, IMAGE_EXTENSIONS, OptionNames, StoredField, StoredRecord,
};

/// The fields that are the label, where nothing else is said: the first that is there.
pub(crate) const LABEL_FIELDS: [&str; 4] = ["cls", "label", "class", "image/class/label"];

/// The pipeline stage that reads of each stored sample one field as bytes and its label: what
/// [`Fetch`] does for keys. Its output goes where that of `Fetch` goes, as to a decoder of images.
///
/// The value is the first field that the sample has of a list of names. The label is a field, where
/// the sample has it, or else what the data set says; of fields that were
/// [named](FetchLabeled::with_label_fields), each sample must have one. A field says it by a whole number
/// (`3.0` is one), its digits, or the name of one of the [classes](FetchLabeled::with_classes).
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::PipelineBuilder;
/// use spdl_io::{FetchLabeled, MemoryFetcher, StoredRecord};
/// use spdl_io::records::{Encoding, Extent};
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
/// As [`FetchRecord`](crate::FetchRecord); `NotFound` where a sample has none of the fields of the value,
/// or of those that were named for the label;
/// `InvalidArgument` where the value is not bytes, or the label neither a whole number nor a known
/// class; and those of the function that prepares.
#[derive(Clone)]
pub struct FetchLabeled {
    fetcher: Arc<dyn Fetcher>,
    values: Vec<Arc<str>>,
    labels: Vec<Arc<str>>,
    /// Whether each sample must have one of them.
    needs_label: bool,
    /// Whether an empty text says nothing, where no label is needed; else it is an error.
    takes_empty: bool,
    classes: Classes,
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
        FetchLabeled {
            fetcher,
            values: values.map(|&name| name.into()).collect(),
            labels: LABEL_FIELDS.map(Into::into).into(),
            needs_label: false,
            takes_empty: false,
            classes: Classes::default(),
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
    /// [namespace](crate::layers::CacheBuilder::namespace).
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

    /// Takes the label from the first of these fields that a sample has, and from nowhere else: a sample
    /// without any of them is an error, as is one where the field is empty. No names: the label is what the
    /// data set says.
    #[must_use]
    pub fn with_label_fields<N: Into<Arc<str>>>(
        mut self,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        self.labels = names.into_iter().map(Into::into).collect();
        self.needs_label = !self.labels.is_empty();
        self
    }

    /// Takes labels that are names for the places of these names among the others, counted from 0. Without
    /// any, a label is a whole number.
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
    pub fn with_classes(mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.classes = Classes::new(names).with_option_names(self.classes.option_names());
        self
    }

    /// Calls options so in messages that advise one. Default: as in Rust.
    #[must_use]
    pub fn with_option_names(mut self, names: OptionNames) -> Self {
        self.classes = self.classes.with_option_names(names);
        self
    }

    /// Takes an empty text for no label, where none is needed.
    pub(crate) fn with_empty_labels(self, takes_empty: bool) -> Self {
        FetchLabeled { takes_empty, ..self }
    }

    /// The number of the class that the value of a field says; `None` where it says none. Of a text, a name
    /// counts before its digits; of bytes, as of a file `1.cls`, digits before a name.
    pub fn label_of(&self, value: &FieldValue) -> Option<i64> {
        self.classes.number(value)
    }

    /// As [`FetchRecord::with_max_bytes`](crate::FetchRecord::with_max_bytes).
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The names of the fields of a sample that are its value and its label, where it has them.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_io::{FetchLabeled, FieldValue, MemoryFetcher, StoredRecord};
    /// let fetch = FetchLabeled::new(Arc::new(MemoryFetcher::new()));
    /// let sample = StoredRecord::new("1").with_known("label", FieldValue::Integer(7));
    /// assert_eq!(fetch.fields_of(&sample), (None, Some("label".into())));
    /// ```
    pub fn fields_of(&self, item: &StoredRecord) -> (Option<Arc<str>>, Option<Arc<str>>) {
        let is_there = |wanted: &&Arc<str>| item.names().any(|name| *name == ***wanted);
        (self.values.iter().find(is_there).cloned(), self.labels.iter().find(is_there).cloned())
    }

    /// Whether a field of this name may be the value.
    pub(crate) fn is_value(&self, name: &str) -> bool {
        self.values.iter().any(|value| **value == *name)
    }

    /// Whether a field of this name may be the label.
    pub(crate) fn is_label(&self, name: &str) -> bool {
        self.labels.iter().any(|label| **label == *name)
    }

    fn empty_is_none(&self) -> bool {
        self.takes_empty && !self.needs_label
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
        if self.needs_label && label.is_none() {
            let wanted = self.labels.join(" or ");
            return Err(no_such_field(&item.key, &wanted, item.names()));
        }
        #[cfg(feature = "cache")]
        if let Some(cache) = &self.cache {
            let mut name = name_in_cache(&item, &value, label.as_deref());
            if label.is_some() {
                name.extend(self.classes.in_cache());
                // Else its -1 would be found by who takes it for an error.
                name.extend(self.empty_is_none().then_some(0));
            }
            let version = version_in_cache(&*self.fetcher, &item, &value, label.as_deref()).await?;
            let kept = cache.get_version(&name, version.as_deref()).await;
            if let Some(sample) = kept.and_then(from_cache) {
                // What the data set says may be another label than it was.
                let known = self.known_label(&item, label.as_deref());
                let label = known.unwrap_or(sample.label);
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
        mut item: StoredRecord,
        value: Arc<str>,
        label: Option<Arc<str>>,
    ) -> Result<Labeled<Bytes>> {
        let mut offset = None;
        for (name, field) in &mut item.fields {
            // It may be the name of a class as well.
            if let (true, StoredField::At(extent, encoding @ Encoding::Integer)) =
                (Some(&*name) == label.as_ref(), field)
            {
                *encoding = Encoding::Bytes;
                offset = extent.range.as_ref().map(|range| range.start);
            }
        }
        let request = self.request(Arc::clone(&value), label.clone());
        let mut record = read_record(&self.fetcher, item, &request).await?;
        let wrong = |key: &Key, name: &str, message: String| {
            let error = Error::new(ErrorKind::InvalidArgument, message);
            error.with_key(field_key(key, name).display_name())
        };
        let label = match label {
            None => record.label,
            Some(name) => {
                let field = record.take(&name)?;
                let empty = (self.empty_is_none() && is_empty_text(&field)).then_some(record.label);
                self.classes.number(&field).or(empty).ok_or_else(|| {
                    let error = wrong(&record.key, &name, self.classes.refusal(&field));
                    offset.map_or(error.clone(), |offset| error.with_offset(offset))
                })?
            }
        };
        let bytes = match record.take(&value)? {
            FieldValue::Bytes(bytes) => bytes,
            other => {
                let message = format!("bytes was expected, but this is {}", other.kind());
                return Err(wrong(&record.key, &value, message));
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

    /// The label of a sample, where it need not be read.
    #[cfg(feature = "cache")]
    fn known_label(&self, item: &StoredRecord, name: Option<&str>) -> Option<i64> {
        let Some(name) = name else { return Some(item.label) };
        match item.fields.iter().find(|(own, _)| **own == *name) {
            Some((_, StoredField::Known(value))) => self.classes.number(value),
            _ => None,
        }
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
