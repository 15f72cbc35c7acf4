//! [`FetchFields`]: the stage that reads chosen fields of each sample, each under its own name.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use futures_util::future::{try_join, try_join_all};
use spdl_core::source::StageRng;
use spdl_core::stage::Medium;
use spdl_core::{AsyncContext, AsyncStage, Error, ErrorKind, Result};

#[cfg(feature = "cache")]
use super::fetch_labeled::cache_version;
use super::label_rule::{LabelField, LabelRule};
use super::parts::Parts;
use super::read_fields::{field_key, known_bytes, of_field, read_part_of_record, read_record};
use super::read_parts::{FileRead, FileRequest, PartReader};
use crate::fetch::{Fetch, Fetcher, ItemMemory, Key, address_in, medium_of};
#[cfg(feature = "cache")]
use crate::layers::{Cache, CachedFetcher, Pinned, PinnedVersions};
use crate::records::field_sizes::{FieldSizes, size_of_field};
use crate::records::{
    Encoding, Extent, FetchLabeled, FieldRequest, FieldValue, IndexCache, Record, Remedy,
    SelectParts, StoredField, StoredRecord, no_such_field,
};

/// Which stored field supplies a value.
///
/// ```
/// use spdl_io::records::FieldChoice;
/// // The first of these fields that a sample has.
/// let image = FieldChoice::of(["jpg", "png", "webp"]);
/// // A value inside a JSON document; `None` if the sample has no such value.
/// let width = FieldChoice::of(["json"]).at("size.0").optional();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChoice {
    names: Vec<Arc<str>>,
    /// Names of members and indices of elements, outermost first.
    path: Vec<Arc<str>>,
    missing: Missing,
    keeps_null: bool,
    /// The extensions that the first name may have.
    extensions: Vec<&'static str>,
}

/// What to do with a sample that lacks a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Fail,
    Null,
    Drop,
}

impl FieldChoice {
    /// The first of these fields that a sample has. A field that is known to be null, such as an empty cell of a
    /// list, is chosen last.
    pub fn of<N: Into<Arc<str>>>(names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        FieldChoice {
            names,
            path: Vec::new(),
            missing: Missing::Fail,
            keeps_null: false,
            extensions: Vec::new(),
        }
    }

    /// Sets that the first field that a sample has is chosen even if it is known to be null.
    #[must_use]
    pub fn keep_null(mut self) -> Self {
        self.keeps_null = true;
        self
    }

    /// Sets that a sample without the first field may have it as `NAME.EXTENSION`, as `spdl pack` names fields:
    /// `caption.txt`. Such a field is chosen if the sample has exactly one, with one of these extensions. Letter case
    /// is ignored.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_io::{FieldValue, MemoryFetcher, StoredRecord};
    /// use spdl_io::records::{FetchFields, FieldChoice};
    /// let packed = StoredRecord::new("1").with_known("caption.txt", FieldValue::Text("a dog".into()));
    /// let fetch = FetchFields::new(Arc::new(MemoryFetcher::new()));
    /// let caption = FieldChoice::of(["caption"]);
    /// assert!(fetch.clone().with("caption", caption.clone()).check(&packed).is_err());
    /// fetch.with("caption", caption.with_extensions(["txt", "json"])).check(&packed)?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_extensions(mut self, extensions: impl IntoIterator<Item = &'static str>) -> Self {
        self.extensions = extensions.into_iter().collect();
        self
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// A value inside the field, which holds JSON: names of members and indices of elements,
    /// separated by dots, such as `"captions.0.text"`; a member whose name has a dot cannot be
    /// selected. Numbers, strings and lists of numbers become
    /// the [`FieldValue`] of that type; other values stay JSON.
    #[must_use]
    pub fn at(mut self, path: &str) -> Self {
        self.path = path.split('.').filter(|step| !step.is_empty()).map(Into::into).collect();
        self
    }

    /// Sets that a sample may lack the value, which is then [`FieldValue::Null`]. By default, a
    /// missing value and a JSON `null` are errors.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.missing = Missing::Null;
        self
    }

    /// Sets that a sample that lacks the value, or whose value is null, is dropped, counted and listed,
    /// whatever the failure policy is. The kind of the error is
    /// [`MissingValue`](ErrorKind::MissingValue).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_core::{ErrorKind, PipelineBuilder};
    /// use spdl_io::{FieldValue, MemoryFetcher, StoredRecord};
    /// use spdl_io::records::{FetchFields, FieldChoice};
    /// let captions = [FieldValue::Text("a dog".into()), FieldValue::Null];
    /// let samples = captions.map(|caption| StoredRecord::new("1").with_known("txt", caption));
    /// let fetch = FetchFields::new(Arc::new(MemoryFetcher::new()))
    ///     .with("caption", FieldChoice::of(["txt"]).drop_missing());
    /// let mut pipeline =
    ///     PipelineBuilder::from_iter(samples).async_stage("fetch", fetch).build()?;
    /// assert_eq!(pipeline.by_ref().filter(|record| record.is_ok()).count(), 1);
    /// assert_eq!(pipeline.statistics().dropped[0].kind, ErrorKind::MissingValue);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn drop_missing(mut self) -> Self {
        self.missing = Missing::Drop;
        self
    }

    /// The error for a sample that lacks the value.
    fn is_missing(&self, error: Error) -> Error {
        match self.missing {
            Missing::Drop => {
                let missing = Error::new(ErrorKind::MissingValue, error.message());
                match error.key() {
                    Some(key) => missing.with_key(key),
                    None => missing,
                }
            }
            _ => error,
        }
    }

    /// The stored field of a sample that supplies the value.
    fn find<'i>(&'i self, item: &'i StoredRecord) -> Result<Option<&'i str>> {
        if let Some(field) = self.find_with_extension(item) {
            return Ok(Some(field));
        }
        let exists = |wanted: &&Arc<str>| item.names().any(|name| *name == ***wanted);
        let is_null = |wanted: &Arc<str>| {
            let field = item.fields.iter().find(|(name, _)| name == wanted);
            matches!(field, Some((_, StoredField::Known(FieldValue::Null))))
        };
        let mut found = self.names.iter().filter(exists);
        let first = found.clone().next();
        let chosen = match self.keeps_null {
            true => first,
            false => found.find(|wanted| !is_null(wanted)).or(first),
        };
        match chosen {
            None => match self.unsupported(item) {
                Some(error) => Err(error),
                None if self.missing == Missing::Null => Ok(None),
                None => {
                    let error = no_such_field(&item.key, self.names(), item.names());
                    Err(self.is_missing(error.with_source(Remedy::StoredField)))
                }
            },
            found => Ok(found.map(|name| &**name)),
        }
    }

    /// The field of a sample with the first name and one of the extensions, if the sample lacks the name itself.
    fn find_with_extension<'i>(&self, item: &'i StoredRecord) -> Option<&'i str> {
        let first = self.names.first().filter(|_| !self.extensions.is_empty())?;
        if item.names().any(|name| *name == **first) {
            return None;
        }
        let is_same = |name: &&str| {
            name.rsplit_once('.').is_some_and(|(stem, extension)| {
                stem.eq_ignore_ascii_case(first)
                    && self.extensions.iter().any(|known| known.eq_ignore_ascii_case(extension))
            })
        };
        let mut found = item.names().filter(is_same);
        let only = found.next()?;
        found.next().is_none().then_some(only)
    }

    /// The error of a field whose type is not supported.
    fn unsupported(&self, item: &StoredRecord) -> Option<Error> {
        let row = item.row.as_ref()?;
        self.names.iter().find_map(|name| row.group.unsupported(name))
    }

    /// The value at the path.
    fn select(&self, sample: &Key, field: &str, value: FieldValue) -> Result<FieldValue> {
        let fault = |error: Error| error.with_key(field_key(sample, field).display_name());
        let value = match self.path.is_empty() {
            true => value,
            false => value_at(value, &self.path).map_err(fault)?,
        };
        match value {
            FieldValue::Null if self.missing != Missing::Null => {
                let message = match self.path.is_empty() {
                    true => format!("the value is null or missing: field {field:?}"),
                    false => format!("no value at {:?} of field {field:?}", self.path.join(".")),
                };
                Err(self.is_missing(fault(Error::new(ErrorKind::NotFound, message))))
            }
            value => Ok(value),
        }
    }
}

/// The names of the fields, and the path.
impl fmt::Display for FieldChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(" or "))?;
        if !self.path.is_empty() {
            write!(f, " at {:?}", self.path.join("."))?;
        }
        Ok(())
    }
}

/// The value at `path` of a JSON document; `Null` if there is none.
fn value_at(value: FieldValue, path: &[Arc<str>]) -> Result<FieldValue> {
    let value = match value {
        FieldValue::Text(text) => Encoding::Json.decode(text.as_bytes().to_vec().into())?,
        FieldValue::Bytes(bytes) => Encoding::Json.decode(bytes)?,
        value => value,
    };
    let mut found = match value {
        FieldValue::Json(document) => document,
        FieldValue::Null => return Ok(FieldValue::Null),
        other => {
            let message = format!(
                "expected JSON, because the value at {:?} was requested; found {}",
                path.join("."),
                other.kind()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
    };
    for step in path {
        found = match found {
            serde_json::Value::Object(mut members) => members.remove(&**step).unwrap_or_default(),
            serde_json::Value::Array(mut elements) => match step.parse::<usize>() {
                Ok(at) if at < elements.len() => elements.swap_remove(at),
                _ => serde_json::Value::Null,
            },
            _ => serde_json::Value::Null,
        };
    }
    Ok(plain(found))
}

/// A JSON value as the field value of the same type.
fn plain(value: serde_json::Value) -> FieldValue {
    use serde_json::Value;
    let integers = |elements: &[Value]| elements.iter().map(Value::as_i64).collect();
    let floats = |elements: &[Value]| elements.iter().map(Value::as_f64).collect();
    match value {
        Value::Null => FieldValue::Null,
        Value::Bool(value) => FieldValue::Bool(value),
        Value::String(text) => FieldValue::Text(text.into()),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => FieldValue::Integer(integer),
            (None, Some(float)) => FieldValue::Float(float),
            (None, None) => FieldValue::Json(Value::Number(number)),
        },
        Value::Array(elements) => match (integers(&elements), floats(&elements)) {
            (Some(integers), _) => FieldValue::Integers(integers),
            (None, Some(floats)) => FieldValue::Floats(floats),
            (None, None) => FieldValue::Json(Value::Array(elements)),
        },
        value => FieldValue::Json(value),
    }
}

/// The pipeline stage that reads chosen fields of stored samples.
///
/// Each record holds the chosen fields in the order of [`with`](FetchFields::with), under the names
/// that were given there. The fields of a sample are read together, as by
/// [`FetchRecord`](crate::FetchRecord).
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::PipelineBuilder;
/// use spdl_io::{MemoryFetcher, StoredRecord};
/// use spdl_io::records::{Encoding, Extent, FetchFields, FieldChoice, FieldValue};
///
/// let store = MemoryFetcher::from_iter([("1.png", "pixels"), ("1.json", r#"{"text": "a dog"}"#)]);
/// let samples = vec![
///     StoredRecord::new("1")
///         .with_stored("png", Extent::whole("1.png"), Encoding::Bytes)
///         .with_stored("json", Extent::whole("1.json"), Encoding::Json),
/// ];
/// let fetch = FetchFields::new(Arc::new(store))
///     .with("image", FieldChoice::of(["jpg", "png"]))
///     .with("caption", FieldChoice::of(["json"]).at("text"));
/// let mut pipeline = PipelineBuilder::from_iter(samples).async_stage("fetch", fetch).build()?;
/// let record = pipeline.next().expect("one sample")?;
/// assert_eq!(record.get("image")?.as_bytes().map(|it| &it[..]), Some(&b"pixels"[..]));
/// assert_eq!(record.get("caption")?, &FieldValue::Text("a dog".into()));
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// - The errors of [`FetchRecord`](crate::FetchRecord).
/// - `NotFound` if a sample lacks a field, or the value at a path; `Corrupt` if the field with a path
///   is not valid JSON; `InvalidArgument` if its type cannot hold JSON. The key is `SAMPLE.FIELD`.
/// - `MissingValue` instead of `NotFound` with [`FieldChoice::drop_missing`].
#[derive(Clone, Debug)]
pub struct FetchFields {
    fetcher: Arc<dyn Fetcher>,
    choices: Vec<(Arc<str>, FieldChoice)>,
    /// The fields that hold addresses.
    addresses: Vec<Arc<str>>,
    /// The address of the store; `None` for local files.
    store: Option<Arc<str>>,
    /// Present if the label of each sample is read.
    labels: Option<LabelRule>,
    max_bytes: u64,
    #[cfg(feature = "cache")]
    cache: Option<Cache>,
    /// Which parts of files are read.
    selectors: Vec<FieldSelector>,
    files: PartReader,
    /// The stages of several data sets.
    parts: Parts<FetchFields>,
}

impl FetchFields {
    /// Reads no fields yet, and at most [`Fetch::DEFAULT_MAX_BYTES`] per sample.
    pub fn new(fetcher: Arc<dyn Fetcher>) -> Self {
        FetchFields {
            fetcher,
            choices: Vec::new(),
            addresses: Vec::new(),
            store: None,
            labels: None,
            max_bytes: Fetch::DEFAULT_MAX_BYTES,
            #[cfg(feature = "cache")]
            cache: None,
            selectors: Vec::new(),
            files: PartReader::new(),
            parts: Parts::default(),
        }
    }

    /// Changes a setting of this stage, and of the stages of all data sets.
    fn each(mut self, set: impl Fn(&mut FetchFields)) -> Self {
        self.parts = self.parts.map(|part| {
            let mut stage = part.stage.clone();
            set(&mut stage);
            stage
        });
        set(&mut self);
        self
    }

    /// Caches the stored bytes of each field, with the versions of
    /// [`FetchLabeled::with_cache`]. Entries are separate from those of [`FetchLabeled`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_io::{Cache, MemoryFetcher};
    /// use spdl_io::records::FetchFields;
    /// # let store = MemoryFetcher::new();
    /// let cache = Cache::builder().memory(1 << 30).open()?;
    /// let fetch = FetchFields::new(Arc::new(store)).with_cache(cache);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[cfg(feature = "cache")]
    #[must_use]
    pub fn with_cache(mut self, cache: Cache) -> Self {
        self.parts = self.parts.map(|part| {
            let cache = match &part.store {
                Some(store) => cache.within(store),
                None => cache.clone(),
            };
            part.stage.clone().with_cache(cache)
        });
        self.cache = Some(cache);
        // Cached and read parts of a shard have the same version.
        self.fetcher = Arc::new(Pinned::new(self.fetcher, PinnedVersions::default()));
        self
    }

    /// The fetcher for a sample, with its cache.
    #[cfg(feature = "cache")]
    async fn fetcher_of(
        &self,
        item: &StoredRecord,
        request: &FieldRequest,
    ) -> Result<Arc<dyn Fetcher>> {
        let Some(cache) = &self.cache else { return Ok(Arc::clone(&self.fetcher)) };
        let names = request.names().unwrap_or_default().iter().map(|name| &**name);
        let version = cache_version(&*self.fetcher, item, names).await?;
        let cached = CachedFetcher::new(Arc::clone(&self.fetcher), cache.clone());
        Ok(Arc::new(cached.of_version(version)))
    }

    /// Reads no fields yet, with the fetcher, the cache and the maximum size of `labeled`, which for example
    /// [`OpenedDataset::fetch_labeled`](crate::datasets::OpenedDataset::fetch_labeled) returns.
    pub fn like(labeled: &FetchLabeled) -> Self {
        FetchFields {
            max_bytes: labeled.max_bytes,
            #[cfg(feature = "cache")]
            cache: labeled.cache.clone(),
            store: labeled.store.clone(),
            parts: labeled.parts.map(|part| FetchFields::like(&part.stage)),
            ..FetchFields::new(Arc::clone(&labeled.fetcher))
        }
    }

    /// Reads [`Record::label`] from the field from which `labeled` reads it, with the same class
    /// names. Without this call, the label is the one that the data set assigned.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_core::PipelineBuilder;
    /// use spdl_io::{FetchLabeled, FieldValue, MemoryFetcher, StoredRecord};
    /// use spdl_io::records::FetchFields;
    /// let labeled = FetchLabeled::new(Arc::new(MemoryFetcher::new())).with_classes(["cat", "dog"]);
    /// let sample = StoredRecord::new("1").with_known("cls", FieldValue::Text("dog".into()));
    /// let mut pipeline = PipelineBuilder::from_iter([sample])
    ///     .async_stage("fetch", FetchFields::like(&labeled).with_labels_of(&labeled))
    ///     .build()?;
    /// assert_eq!(pipeline.next().expect("one sample")?.label, 1);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_labels_of(mut self, labeled: &FetchLabeled) -> Self {
        self.parts = self.parts.zip(&labeled.parts, FetchFields::with_labels_of);
        self.labels = Some(labeled.labels.clone());
        self
    }

    /// Sets that a sample without a label is dropped, counted and listed, as by [`FieldChoice::drop_missing`]. Samples
    /// whose label is a negative number, null or empty text have none. Call
    /// [`with_labels_of`](Self::with_labels_of) first if fields hold the labels.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_core::PipelineBuilder;
    /// use spdl_io::{MemoryFetcher, StoredRecord};
    /// use spdl_io::records::FetchFields;
    /// let samples = [StoredRecord::new("1").with_label(3), StoredRecord::new("2")];
    /// let fetch = FetchFields::new(Arc::new(MemoryFetcher::new())).drop_unlabeled();
    /// let pipeline = PipelineBuilder::from_iter(samples).async_stage("fetch", fetch).build()?;
    /// assert_eq!(pipeline.filter_map(Result::ok).map(|record| record.label).collect::<Vec<_>>(), [3]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn drop_unlabeled(self) -> Self {
        self.each(|fetch| {
            fetch.labels.get_or_insert_with(LabelRule::of_assigned).drops_unlabeled = true;
        })
    }

    /// Adds a field of the records. A field of the same name is replaced.
    #[must_use]
    pub fn with(self, name: impl Into<Arc<str>>, choice: FieldChoice) -> Self {
        let name = name.into();
        self.each(|fetch| {
            fetch.choices.retain(|(other, _)| *other != name);
            fetch.choices.push((Arc::clone(&name), choice.clone()));
        })
    }

    /// Adds a field with the address of the object that holds the sample, without user name, password and
    /// query: a path for local files; empty if the sample has no object, such as a value in memory.
    ///
    /// The object is that of the first chosen field that is read from the store, or else that of any other
    /// field of the sample. The value is text, or bytes if the address is not UTF-8.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_core::PipelineBuilder;
    /// use spdl_io::{MemoryFetcher, StoredRecord};
    /// use spdl_io::records::{Encoding, Extent, FetchFields};
    /// let sample = StoredRecord::new("a.tar:1")
    ///     .with_stored("jpg", Extent::part("a.tar", 512..600), Encoding::Bytes);
    /// let fetch = FetchFields::new(Arc::new(MemoryFetcher::new())).with_address("url");
    /// let mut pipeline = PipelineBuilder::from_iter([sample]).async_stage("fetch", fetch).build()?;
    /// let record = pipeline.next().expect("one sample")?;
    /// assert_eq!(record.get("url")?.as_str(), Some("a.tar"));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_address(self, name: impl Into<Arc<str>>) -> Self {
        let name = name.into();
        self.each(|fetch| {
            fetch.addresses.retain(|other| *other != name);
            fetch.addresses.push(Arc::clone(&name));
        })
    }

    /// Sets the maximum total size of the fields of a sample, in bytes. If the sizes are known, a
    /// larger sample fails before it is read.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: u64) -> Self {
        self.each(|fetch| fetch.max_bytes = max_bytes)
    }

    /// Sets that of the files of a field, only the parts are read that `selector` selects. The value is then
    /// [`FieldValue::Parts`], or [`FieldValue::Bytes`] if the file was read whole. `stage` is the name of the stage
    /// that decodes the sample: the selector draws its random numbers.
    ///
    /// Ranges are read together if the gap between them has at most 256 KiB. A file is read whole, by one
    /// request,
    ///
    /// - if it has at most 1 MiB;
    /// - if the selector returns [`PartSelection::Whole`](super::PartSelection::Whole), or needs more than 8
    ///   requests for tables;
    /// - if the store does not support ranges, or another choice or the label reads the same field;
    /// - if there is a cache ([`with_cache`](Self::with_cache)), or a [checksum](Extent::xxh3) and no
    ///   [part index](crate::shards::IndexParts), which has checksums of parts.
    ///
    /// All parts are of one version of the object, if the store reports versions; otherwise only the size is
    /// compared. The [maximum size](Self::with_max_bytes) and the memory budget count the bytes that are read, not
    /// the size of the file.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_core::{PipelineBuilder, Result};
    /// use spdl_core::source::StageRng;
    /// use spdl_io::{MemoryFetcher, StoredRecord};
    /// use spdl_io::records::{
    ///     Encoding, Extent, FetchFields, FieldChoice, FieldValue, PartSelection, PartialFile, SelectParts,
    /// };
    ///
    /// /// A random block of 4 KiB.
    /// #[derive(Debug)]
    /// struct OneBlock;
    ///
    /// impl SelectParts for OneBlock {
    ///     fn select(&self, file: &PartialFile, rng: &StageRng) -> Result<PartSelection> {
    ///         let start = rng.rng().below(file.size() / 4096) * 4096;
    ///         Ok(PartSelection::Sample(vec![start..start + 4096]))
    ///     }
    /// }
    ///
    /// let store = MemoryFetcher::from_iter([("a.bin", vec![0; 16 << 20])]);
    /// let sample = StoredRecord::new("a").with_stored("bin", Extent::whole("a.bin"), Encoding::Bytes);
    /// let fetch = FetchFields::new(Arc::new(store))
    ///     .with("block", FieldChoice::of(["bin"]))
    ///     .select_parts("block", "decode", Arc::new(OneBlock));
    /// let mut pipeline = PipelineBuilder::from_iter([sample]).async_stage("fetch", fetch).build()?;
    /// let record = pipeline.next().expect("one sample")?;
    /// let FieldValue::Parts(file) = record.get("block")? else { panic!() };
    /// assert!(file.bytes_in_memory() < 100_000);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn select_parts(
        self,
        name: impl Into<Arc<str>>,
        stage: impl Into<Arc<str>>,
        selector: Arc<dyn SelectParts>,
    ) -> Self {
        let added = FieldSelector { name: name.into(), stage: stage.into(), selector };
        self.each(|fetch| {
            fetch.selectors.retain(|other| other.name != added.name);
            fetch.selectors.push(added.clone());
        })
    }

    /// Sets the cache of the headers and tables of files that are [read in parts](Self::select_parts). By
    /// default, each stage has one of [`IndexCache::DEFAULT_BYTES`]; with this method, stages of later epochs
    /// use the same.
    #[must_use]
    pub fn with_index_cache(mut self, cache: &IndexCache) -> Self {
        let number = Cell::new(0);
        self.parts = self.parts.map(|part| {
            let mut stage = part.stage.clone();
            number.set(number.get() + 1);
            stage.files.indices = cache.of_part(number.get());
            stage
        });
        self.files.indices = cache.of_part(0);
        self
    }

    /// Reads a sample that is in memory, without waiting: the chosen fields are known, or
    /// [values](crate::records::PackedRows::value) of a row in memory. The cache is not used.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_io::{FieldValue, MemoryFetcher, StoredRecord};
    /// use spdl_io::records::{FetchFields, FieldChoice};
    /// let fetch = FetchFields::new(Arc::new(MemoryFetcher::new())).with("caption", FieldChoice::of(["txt"]));
    /// let sample = StoredRecord::new("1").with_known("txt", FieldValue::Text("a dog".into()));
    /// assert_eq!(fetch.read_in_memory(&sample)?.get("caption")?.as_str(), Some("a dog"));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the stage; `Unsupported` if a chosen field must be read.
    pub fn read_in_memory(&self, item: &StoredRecord) -> Result<Record> {
        if let Some(part) = self.parts.of(item)? {
            return part.with_address(part.stage.read_in_memory(item));
        }
        let label = self.labels.as_ref().and_then(|labels| labels.field_of(item));
        let mut sizes = FieldSizes::new(self.max_bytes);
        let mut counted: Vec<&str> = Vec::with_capacity(self.choices.len() + 1);
        let mut read = |name| -> Result<FieldValue> {
            let value = value_in_memory(item, name)?;
            if !counted.contains(&name) {
                counted.push(name);
                sizes.add(name, size_of_field(&value));
                sizes.check().map_err(|error| error.with_key(item.key.display_name()))?;
            }
            Ok(value)
        };
        let mut record = Record::new(item.key.clone()).with_label(item.label);
        if let Some(labels) = &self.labels {
            labels.check(item, label.as_ref())?;
            if let Some(name) = &label {
                let value = read(name)?;
                record.label = labels.label(&record, &LabelField::new(Arc::clone(name)), &value)?;
            }
        }
        record.fields.reserve_exact(self.choices.len() + self.addresses.len());
        for (name, choice) in &self.choices {
            let value = match choice.find(item)? {
                None => FieldValue::Null,
                Some(stored) => {
                    let value = read(stored)?;
                    choice.select(&item.key, stored, value)?
                }
            };
            record.fields.push((Arc::clone(name), value));
        }
        if !self.addresses.is_empty() {
            let address = address_of(item, &self.found(item)?, self.store.as_deref());
            let named = self.addresses.iter().map(|name| (Arc::clone(name), address.clone()));
            record.fields.extend(named);
        }
        Ok(record)
    }

    /// Checks that a sample has the chosen fields, and that their types are supported. Values are not read.
    ///
    /// # Errors
    /// `NotFound` if the sample lacks a field; `Unsupported` if the type of a field is not supported.
    pub fn check(&self, item: &StoredRecord) -> Result<()> {
        if let Some(part) = self.parts.of(item)? {
            return part.with_address(part.stage.check(item));
        }
        match self.request(item) {
            // Other samples may have the value.
            Err(error) if error.kind() == ErrorKind::MissingValue => Ok(()),
            requested => requested.map(drop),
        }
    }

    /// The stored field of each choice.
    fn found(&self, item: &StoredRecord) -> Result<Vec<Option<Arc<str>>>> {
        self.choices.iter().map(|(_, choice)| Ok(choice.find(item)?.map(Arc::from))).collect()
    }

    /// The stored fields of a sample that are read.
    fn request(&self, item: &StoredRecord) -> Result<ChosenFields> {
        let found = self.found(item)?;
        let label = self.labels.as_ref().and_then(|labels| labels.field_of(item));
        if let Some(labels) = &self.labels {
            labels.check(item, label.as_ref())?;
        }
        let names = found.iter().chain([&label]).flatten().cloned();
        let request = FieldRequest::all(self.max_bytes).only(names);
        Ok(ChosenFields { fields: found, label, request })
    }
}

/// Which parts of the files of a field are read.
#[derive(Clone, Debug)]
struct FieldSelector {
    /// The name of the choice.
    name: Arc<str>,
    /// The stage whose random numbers are drawn.
    stage: Arc<str>,
    selector: Arc<dyn SelectParts>,
}

/// A stored field of a sample that is read in parts.
struct PartialField<'a> {
    stored: Arc<str>,
    extent: Extent,
    selectors: Vec<&'a FieldSelector>,
}

impl FetchFields {
    /// The stored fields of a sample that may be read in parts.
    fn partial_fields(&self, item: &StoredRecord, chosen: &ChosenFields) -> Vec<PartialField<'_>> {
        #[cfg(feature = "cache")]
        let is_cached = self.cache.is_some();
        #[cfg(not(feature = "cache"))]
        let is_cached = false;
        if is_cached || self.selectors.is_empty() {
            return Vec::new();
        }
        let fields = item.fields.iter().filter_map(|(stored, field)| match field {
            StoredField::At(extent, Encoding::Bytes) if chosen.label.as_ref() != Some(stored) => {
                let selectors = self.selectors_of(stored, chosen)?;
                let mut extent = extent.clone();
                let extension = extension(stored, &extent);
                let selects = || selectors.iter().map(|it| &it.selector);
                if !selects().all(|selector| selector.uses_part_index()) {
                    extent.part_index = None;
                }
                let is_partial = self.files.may_read(&*self.fetcher, &extent)
                    && (extent.part_index.is_some()
                        || selects().all(|selector| selector.may_select(&extension)));
                let stored = Arc::clone(stored);
                is_partial.then_some(PartialField { stored, extent, selectors })
            }
            _ => None,
        });
        fields.collect()
    }

    /// The selectors of all choices of a stored field; `None` if a choice has none.
    fn selectors_of(&self, stored: &str, chosen: &ChosenFields) -> Option<Vec<&FieldSelector>> {
        let choices = self.choices.iter().zip(&chosen.fields);
        let of_field = choices.filter(|(_, found)| found.as_deref() == Some(stored));
        let selectors = of_field.map(|((name, choice), _)| {
            let found = self.selectors.iter().find(|selector| selector.name == *name);
            found.filter(|_| choice.path.is_empty())
        });
        let selectors: Vec<_> = selectors.collect::<Option<_>>()?;
        (!selectors.is_empty()).then_some(selectors)
    }

    /// Reads a sample, with parts of the fields `partial`.
    async fn read_with_parts(
        &self,
        item: StoredRecord,
        partial: Vec<PartialField<'_>>,
        request: &FieldRequest,
        cx: &AsyncContext,
    ) -> Result<Record> {
        let fetcher = &self.fetcher;
        let is_other = |name: &str| !partial.iter().any(|field| *field.stored == *name);
        let names = request.names().unwrap_or_default().iter().filter(|name| is_other(name));
        let others = FieldRequest::all(request.max_bytes()).only(names.cloned());
        let known = item.fields.iter().map(|(name, field)| match field {
            StoredField::At(extent, _) if others.wants(name) => extent.size().unwrap_or(0),
            _ => 0,
        });
        let max_bytes = request.max_bytes().saturating_sub(known.fold(0, u64::saturating_add));
        let all = &AtomicU64::new(0);
        let sample = &item.key.clone();
        let files = partial.iter().map(|field| async move {
            let selectors = field.selectors.iter();
            let selectors: Vec<(_, StageRng)> =
                selectors.map(|it| (Arc::clone(&it.selector), cx.rng_in(&it.stage))).collect();
            let (extent, selectors) = (&field.extent, &selectors[..]);
            let memory = &ItemMemory::part(cx, max_bytes, all);
            let read = self.files.read(&FileRequest { fetcher, extent, selectors, memory }).await;
            let extents = [(Arc::clone(&field.stored), field.extent.clone())];
            read.map_err(|error| of_field(error, sample, &extents, &[0]))
        });
        let files = try_join_all(files.collect::<Vec<_>>());
        let others = read_part_of_record(fetcher, item, &others, cx, all);
        let (mut record, files) = try_join(others, files).await?;
        let (mut whole, mut left) = (StoredRecord::new(sample.clone()), request.max_bytes());
        for (field, file) in partial.into_iter().zip(files) {
            let value = match file {
                FileRead::Parts(file) => {
                    left = left.saturating_sub(file.bytes_in_memory());
                    FieldValue::Parts(Arc::new(file))
                }
                FileRead::Whole(bytes) => {
                    left = left.saturating_sub(bytes.len() as u64);
                    FieldValue::Bytes(bytes)
                }
                FileRead::Nothing => {
                    whole = whole.with_stored(field.stored, field.extent, Encoding::Bytes);
                    continue;
                }
            };
            record.fields.push((field.stored, value));
        }
        if !whole.fields.is_empty() {
            let request = FieldRequest::all(left);
            let read = read_part_of_record(fetcher, whole, &request, cx, all).await?;
            record.fields.extend(read.fields);
        }
        Ok(record)
    }
}

/// The extension of a file: that of the object, or the last part of the name of a member.
fn extension(stored: &str, extent: &Extent) -> String {
    let object = extent.object.display_name();
    let name = if extent.range.is_some() { stored } else { &object };
    // Without the query of a URL.
    let name = name.split('?').next().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
    let extension = match name.rsplit_once('.') {
        Some((_, extension)) => extension,
        None if extent.range.is_some() => name,
        None => "",
    };
    extension.to_ascii_lowercase()
}

/// The value of a stored field that need not be read.
fn value_in_memory(item: &StoredRecord, name: &str) -> Result<FieldValue> {
    match (item.fields.iter().find(|(own, _)| **own == *name), &item.row) {
        (Some((_, StoredField::Known(value))), _) => return Ok(value.clone()),
        (None, Some(row)) => {
            let value = row.group.value(row.row, name);
            if let Some(value) = value.map_err(|error| error.with_key(item.key.display_name()))? {
                return Ok(value);
            }
        }
        _ => {}
    }
    let error = Error::new(ErrorKind::Unsupported, "the value is not in memory");
    Err(error.with_key(field_key(&item.key, name).display_name()))
}

/// The address of the object of a sample whose chosen fields are `found`.
fn address_of(item: &StoredRecord, found: &[Option<Arc<str>>], store: Option<&str>) -> FieldValue {
    let object = |field: &StoredField| match field {
        StoredField::At(extent, _) => Some(extent.object.clone()),
        StoredField::Known(_) => None,
    };
    let chosen = found.iter().flatten().find_map(|name| {
        let (_, field) = item.fields.iter().find(|(other, _)| other == name)?;
        object(field)
    });
    let of_row = || item.row.as_ref().and_then(|row| row.group.object().cloned());
    let other = || item.fields.iter().find_map(|(_, field)| object(field));
    let Some(key) = chosen.or_else(of_row).or_else(other) else {
        return FieldValue::Text("".into());
    };
    let text = match key.as_str() {
        Some(text) if text.contains("://") => {
            let shown = key.display_name();
            // The query may be a signature.
            return FieldValue::Text(shown.strip_suffix("?***").unwrap_or(&shown).into());
        }
        text => text,
    };
    match (text, store) {
        (Some(text), store) => FieldValue::Text(address_in(store, text).into()),
        (None, None) => FieldValue::Bytes(key.as_bytes().to_vec().into()),
        (None, Some(store)) => {
            FieldValue::Bytes([store.as_bytes(), b"/", key.as_bytes()].concat().into())
        }
    }
}

/// The stored fields of a sample that are read.
struct ChosenFields {
    /// The field of each choice.
    fields: Vec<Option<Arc<str>>>,
    label: Option<Arc<str>>,
    request: FieldRequest,
}

#[async_trait]
impl AsyncStage<StoredRecord> for FetchFields {
    type Out = Record;

    async fn process(&self, mut item: StoredRecord, cx: &AsyncContext) -> Result<Record> {
        if let Some(part) = self.parts.of(&item)? {
            return part.with_address(part.stage.process(item, cx).await);
        }
        let chosen = self.request(&item)?;
        let partial = self.partial_fields(&item, &chosen);
        let ChosenFields { fields: found, label, request } = chosen;
        let address =
            (!self.addresses.is_empty()).then(|| address_of(&item, &found, self.store.as_deref()));
        // A choice may select the label field as well, whose value then stays text.
        let label = label.map(|name| LabelRule::prepare(&mut item, name));
        #[cfg(feature = "cache")]
        let fetcher = &self.fetcher_of(&item, &request).await?;
        #[cfg(not(feature = "cache"))]
        let fetcher = &self.fetcher;
        let mut read = match partial.is_empty() {
            true => read_record(fetcher, item, &request, cx).await?,
            false => self.read_with_parts(item, partial, &request, cx).await?,
        };
        if let (Some(labels), Some(field)) = (&self.labels, label) {
            read.label = labels.label(&read, &field, read.get(&field.name)?)?;
        }
        let mut fields = Vec::with_capacity(found.len());
        for (at, ((name, choice), stored)) in self.choices.iter().zip(&found).enumerate() {
            let value = match stored {
                None => FieldValue::Null,
                // Other choices may select other parts of the field.
                Some(stored) if found[at + 1..].contains(&Some(Arc::clone(stored))) => {
                    let value = read.get(stored)?.clone();
                    choice.select(&read.key, stored, value)?
                }
                Some(stored) => {
                    let value = read.take(stored)?;
                    choice.select(&read.key, stored, value)?
                }
            };
            fields.push((Arc::clone(name), value));
        }
        if let Some(address) = address {
            let named = self.addresses.iter().map(|name| (Arc::clone(name), address.clone()));
            fields.extend(named);
        }
        read.fields = fields;
        Ok(read)
    }

    fn output_bytes(&self, item: &StoredRecord) -> Option<usize> {
        if let Ok(Some(part)) = self.parts.of(item) {
            return part.stage.output_bytes(item);
        }
        // The size of a value inside JSON is unknown before the read.
        if self.choices.iter().any(|(_, choice)| !choice.path.is_empty()) {
            return None;
        }
        let chosen = self.request(item).ok()?;
        // Parts have fewer bytes than their file.
        match self.partial_fields(item, &chosen).is_empty() {
            true => known_bytes(item, &chosen.request),
            false => None,
        }
    }

    fn medium(&self) -> Medium {
        medium_of(&*self.fetcher)
    }
}

#[cfg(test)]
mod tests {
    use spdl_core::{OnError, PipelineBuilder};

    use super::*;
    use crate::MemoryFetcher;
    use crate::records::{Encoding, Extent};

    fn sample(key: &str, json: &str) -> StoredRecord {
        StoredRecord::new(key)
            .with_label(7)
            .with_known("json", Encoding::Text.decode(json.as_bytes().to_vec().into()).unwrap())
            .with_known("jpg", FieldValue::Bytes("pixels".into()))
            .with_stored("png", Extent::whole("1.png"), Encoding::Bytes)
    }

    fn fetch() -> FetchFields {
        FetchFields::new(Arc::new(MemoryFetcher::from_iter([("1.png", "png")])))
    }

    /// The only record, or the error of the only sample.
    fn run(item: StoredRecord, fetch: FetchFields) -> Result<Record> {
        let mut pipeline =
            PipelineBuilder::from_iter([item]).async_stage("fetch", fetch).build().unwrap();
        pipeline.next().expect("one sample")
    }

    /// The value at a path of a document.
    fn at(json: &str, path: &str) -> Result<FieldValue> {
        let fetch = fetch().with("value", FieldChoice::of(["json"]).at(path));
        run(sample("a", json), fetch).map(|mut record| record.fields.remove(0).1)
    }

    #[test]
    fn fields_have_the_requested_names_and_order() {
        let fetch = fetch()
            .with("image", FieldChoice::of(["webp", "png", "jpg"]))
            .with("size", FieldChoice::of(["json"]).at("size"))
            .with("absent", FieldChoice::of(["txt"]).optional())
            .with("text", FieldChoice::of(["json"]).at("text"))
            .with("whole", FieldChoice::of(["json"]));
        let document = r#"{"size": [3, 4], "text": "a dog"}"#;
        let record = run(sample("a", document), fetch).unwrap();
        let expected = [
            ("image", FieldValue::Bytes("png".into())),
            ("size", FieldValue::Integers(vec![3, 4])),
            ("absent", FieldValue::Null),
            ("text", FieldValue::Text("a dog".into())),
            ("whole", FieldValue::Text(document.into())),
        ];
        assert_eq!(record.label, 7);
        assert_eq!(record.fields, expected.map(|(name, value)| (name.into(), value)));
    }

    #[test]
    fn values_inside_json_have_their_type() {
        let json =
            r#"{"a": [{"b": 1.5}, true, "x", [1, 2.5], [1, "x"], {"c": 3}, 18446744073709551615]}"#;
        assert_eq!(at(json, "a.0.b").unwrap(), FieldValue::Float(1.5));
        assert_eq!(at(json, "a.1").unwrap(), FieldValue::Bool(true));
        assert_eq!(at(json, "a.2").unwrap(), FieldValue::Text("x".into()));
        assert_eq!(at(json, "a.3").unwrap(), FieldValue::Floats(vec![1.0, 2.5]));
        assert_eq!(at(json, "a.4").unwrap().kind(), "JSON");
        assert_eq!(at(json, "a.5.c").unwrap(), FieldValue::Integer(3));
        assert_eq!(at(json, "a.6").unwrap(), FieldValue::Float(18_446_744_073_709_551_615.0));
    }

    #[test]
    fn a_missing_value_is_an_error_unless_it_is_optional() {
        for path in ["b", "a.2", "a.x", "a.0.b", "n"] {
            let json = r#"{"a": [1, 2], "n": null}"#;
            let error = at(json, path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{path}");
            assert_eq!(error.key(), Some("a.json"));
            assert_eq!(error.message(), format!("no value at {path:?} of field \"json\""));
            let choice = FieldChoice::of(["json"]).at(path).optional();
            let record = run(sample("a", json), fetch().with("value", choice)).unwrap();
            assert_eq!(record.fields[0].1, FieldValue::Null);
        }
        let absent = fetch().with("text", FieldChoice::of(["txt", "text"]));
        let error = run(sample("a", "{}"), absent).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().starts_with("no field \"txt\" or \"text\""), "{error}");
        assert_eq!(at("{", "a").unwrap_err().kind(), ErrorKind::Corrupt);
        let number = StoredRecord::new("a").with_known("json", FieldValue::Integer(3));
        let fetch = fetch().with("value", FieldChoice::of(["json"]).at("a"));
        assert_eq!(run(number, fetch).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_field_with_an_extension_stands_for_the_name() {
        let choice = || FieldChoice::of(["caption", "text"]).with_extensions(["txt", "json"]);
        let found = |names: &[&str]| {
            let value = || FieldValue::Text("a".into());
            let sample = names
                .iter()
                .fold(StoredRecord::new("a"), |sample, name| sample.with_known(*name, value()));
            choice().find(&sample).map(|found| found.unwrap().to_string())
        };
        assert_eq!(found(&["caption.txt", "caption"]).unwrap(), "caption");
        assert_eq!(found(&["text", "Caption.TXT"]).unwrap(), "Caption.TXT");
        // Another extension, and several fields.
        assert_eq!(found(&["caption.png", "text"]).unwrap(), "text");
        assert_eq!(found(&["caption.txt", "caption.json", "text"]).unwrap(), "text");
        let error = found(&["caption.txt", "caption.json"]).unwrap_err();
        assert_eq!(Remedy::of(&error), Some(Remedy::StoredField));
        let words =
            "no field \"caption\" or \"text\": the sample has the fields caption.txt, caption.json";
        assert_eq!(error.message(), words);
    }

    #[test]
    fn a_field_that_drops_samples_without_its_value_does_so_under_every_policy() {
        let items = [r#"{"t": "a"}"#, r#"{"t": null}"#, "{}", r#"{"t": "c"}"#];
        let items = ["1", "2", "3", "4"].into_iter().zip(items);
        let mut items: Vec<_> = items.map(|(key, json)| sample(key, json)).collect();
        items.push(StoredRecord::new("5"));
        let fetch = fetch().with("text", FieldChoice::of(["json"]).at("t").drop_missing());
        assert!(fetch.check(&items[4]).is_ok());
        let mut pipeline = PipelineBuilder::from_iter(items)
            .async_stage("fetch", fetch)
            .on_error(OnError::Raise)
            .build()
            .unwrap();
        let texts: Vec<_> =
            pipeline.by_ref().map(|record| record.unwrap().fields.remove(0).1).collect();
        assert_eq!(texts, ["a", "c"].map(|text| FieldValue::Text(text.into())));
        let statistics = pipeline.statistics();
        let dropped = &statistics.dropped;
        let found: Vec<_> = dropped.iter().map(|it| (it.key.as_deref(), it.kind)).collect();
        let expected = ["2.json", "3.json", "5"];
        assert_eq!(found, expected.map(|key| (Some(key), ErrorKind::MissingValue)));
        assert_eq!(dropped[0].reason, "no value at \"t\" of field \"json\"");
        assert!(dropped[2].reason.starts_with("no field \"json\""), "{}", dropped[2].reason);
    }

    #[test]
    fn samples_without_a_label_are_dropped() {
        let of = |key: &str| StoredRecord::new(key);
        let items = || {
            vec![
                of("assigned").with_label(7),
                of("none"),
                of("number").with_known("cls", FieldValue::Integer(2)),
                of("negative").with_known("cls", FieldValue::Integer(-1)),
                of("null").with_known("cls", FieldValue::Null),
                of("empty").with_known("cls", FieldValue::Text(" ".into())),
                of("bytes").with_known("cls", FieldValue::Bytes("\n".into())),
            ]
        };
        let kept = |labeled: FetchLabeled| {
            let fetch = FetchFields::like(&labeled).with_labels_of(&labeled).drop_unlabeled();
            assert!(items().iter().all(|item| fetch.check(item).is_ok()));
            let in_memory =
                items().iter().filter_map(|item| fetch.read_in_memory(item).ok()).count();
            let mut pipeline = PipelineBuilder::from_iter(items())
                .async_stage("fetch", fetch)
                .on_error(OnError::Raise)
                .build()
                .unwrap();
            let kept: Vec<_> = pipeline.by_ref().map(|record| record.unwrap().label).collect();
            assert_eq!(kept.len(), in_memory);
            let dropped = pipeline.statistics().dropped;
            assert!(dropped.iter().all(|it| it.kind == ErrorKind::MissingValue), "{dropped:?}");
            assert_eq!(kept.len() + dropped.len(), items().len());
            kept
        };
        let labeled = || FetchLabeled::new(Arc::new(MemoryFetcher::new()));
        assert_eq!(kept(labeled()), [7, 2]);
        assert_eq!(kept(labeled().with_label_fields(["cls"])), [2]);
        // Text that is no class is still an error.
        let labeled = labeled().with_classes(["cat"]);
        let fetch = FetchFields::like(&labeled).with_labels_of(&labeled).drop_unlabeled();
        let dog = of("dog").with_known("cls", FieldValue::Text("dog".into()));
        assert_eq!(run(dog, fetch).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn missing_values_do_not_count_in_the_limits_of_a_policy() {
        let items: Vec<_> = ["{}", "{}", r#"{"t": 1}"#].map(|json| sample("a", json)).into();
        let fetch = fetch().with("text", FieldChoice::of(["json"]).at("t").drop_missing());
        let mut pipeline = PipelineBuilder::from_iter(items)
            .async_stage("fetch", fetch)
            .on_error(OnError::Skip { at_most: Some(0) })
            .build()
            .unwrap();
        assert_eq!(pipeline.by_ref().filter(|record| record.is_ok()).count(), 1);
        assert_eq!(pipeline.statistics().dropped.len(), 2);
    }

    #[test]
    fn the_address_is_that_of_the_object_without_secrets() {
        let address = |item: StoredRecord, choice: FieldChoice, store: Option<&str>| {
            let mut fetch = fetch().with("value", choice).with_address("url");
            fetch.store = store.map(Into::into);
            run(item, fetch).map(|mut record| record.fields.pop().unwrap().1).unwrap()
        };
        let text = |text: &str| FieldValue::Text(text.into());
        let stored =
            |key: &str| sample("a", "{}").with_stored("txt", Extent::whole(key), Encoding::Text);
        let known = || FieldChoice::of(["json"]);
        assert_eq!(address(sample("a", "{}"), known(), None), text("1.png"));
        let store = Some("s3://bucket");
        let png = || FieldChoice::of(["png"]);
        assert_eq!(address(stored("b/c.txt"), png(), store), text("s3://bucket/1.png"));
        let memory = StoredRecord::new("a").with_known("json", text("{}"));
        assert_eq!(address(memory, known(), store), text(""));
        let of = |object: &[u8]| {
            let item = StoredRecord::new("a").with_known("json", text("{}"));
            let extent = Extent::whole(Key::from_bytes(object));
            address(item.with_stored("x", extent, Encoding::Bytes), known(), store)
        };
        assert_eq!(of(b"b/c.txt"), text("s3://bucket/b/c.txt"));
        assert_eq!(of(b"https://me:canary@host/a?sig=canary"), text("https://host/a"));
        assert_eq!(of(b"a\xff"), FieldValue::Bytes(b"s3://bucket/a\xff"[..].into()));
    }

    #[test]
    fn a_sample_without_the_value_is_dropped_and_listed() {
        let items = [r#"{"t": "a"}"#, r#"{"u": "b"}"#, r#"{"t": "c"}"#];
        let items = ["1", "2", "3"].into_iter().zip(items).map(|(key, json)| sample(key, json));
        let fetch = fetch().with("text", FieldChoice::of(["json"]).at("t"));
        let mut pipeline = PipelineBuilder::from_iter(items.collect::<Vec<_>>())
            .async_stage("fetch", fetch)
            .on_error(OnError::SKIP)
            .build()
            .unwrap();
        assert_eq!(pipeline.by_ref().filter_map(Result::ok).count(), 2);
        let dropped = pipeline.statistics().dropped;
        assert_eq!(dropped.len(), 1);
        assert_eq!(dropped[0].key.as_deref(), Some("2.json"));
    }
}
