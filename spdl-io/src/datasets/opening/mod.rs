//! [`OpenedDataset`]: opens a data set by its path or address, and detects its kind.
//!
//! | file | what it holds |
//! |---|---|
//! | `kinds` | opens each kind of data set from the keys of its files |
//! | `coco` | finds the images of COCO annotations, and of labels of ImageNet |
//! | `folder` | detects what a folder holds; packed sets with a manifest |
//! | `missing` | error messages for missing files, and for folders that hold other data sets |
//! | `classes`, `labels` | class names of a label column; warnings about samples without a label |
//! | `several` | concatenations, mixtures and chosen samples of data sets |
//! | `order` | the shuffled order that a data set can be read in fast |
//! | `options` | [`OpenOptions`] |

mod classes;
mod coco;
mod folder;
mod kinds;
mod labels;
mod missing;
mod options;
mod order;
mod several;

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use spdl_core::{Dataset, Error, ErrorKind, Result};

use self::folder::FolderRecords;
use self::kinds::Opener;
use self::labels::Unlabeled;
pub use self::options::OpenOptions;
use self::order::ReadOrder;
use self::several::Renumbered;
use super::file_list::{BoxFields, FILE_FIELD, is_json_lines};
use super::webdataset::UNPACK;
use crate::datasets::ImageFolder;
use crate::fetch::{Fetcher, Key, address_in};
#[cfg(feature = "cache")]
use crate::layers::Cache;
use crate::layers::{PartFetcher, Pinned, PinnedVersions};
use crate::records::{FetchLabeled, StoredRecord};
use crate::stores::{Location, StoreRegistry};

/// The format of a data set.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// Images, one folder per class.
    ImageFolder,
    /// A list of files: lines, CSV, JSON Lines, annotations of COCO or Pascal VOC, or labels of ImageNet.
    FileList,
    /// Tar archives in the layout of the Python library `webdataset`.
    TarShards,
    /// Zip archives, grouped into samples as tar shards.
    ZipShards,
    /// TFRecord files of `tf.train.Example`.
    TfRecord,
    /// MDS shards of MosaicML Streaming.
    Mds,
    /// Chunks of Lightning's LitData.
    LitData,
    /// RecordIO files of MXNet.
    RecordIo,
    /// LMDB files.
    Lmdb,
    /// Parquet files.
    Parquet,
    /// Files of JSON Lines whose rows name no files: see [`OpenOptions::value_fields`]. Each row is read when it is
    /// needed; the key of a sample is `FILE:ROW`, and rows count from 0. Opening reads the files once. Memory use:
    /// 8 bytes per row. Compressed files (`.gz`, `.zst`) are decompressed as a whole, up to 1 GiB each.
    JsonLines,
    /// Samples of another program: see [`OpenedDataset::of_samples`].
    Samples,
    /// Several data sets: see [`OpenedDataset::concatenated`] and [`OpenedDataset::mixed`].
    Several,
}

impl fmt::Display for DatasetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DatasetKind::ImageFolder => "image folder",
            DatasetKind::FileList => "list of files",
            DatasetKind::TarShards => "tar shards",
            DatasetKind::ZipShards => "zip archives",
            DatasetKind::TfRecord => "TFRecord files",
            DatasetKind::Mds => "MDS shards",
            DatasetKind::LitData => "LitData chunks",
            DatasetKind::RecordIo => "RecordIO files",
            DatasetKind::Lmdb => "LMDB files",
            DatasetKind::Parquet => "Parquet files",
            DatasetKind::JsonLines => "JSON Lines",
            DatasetKind::Samples => "samples",
            DatasetKind::Several => "several data sets",
        })
    }
}

impl DatasetKind {
    /// Whether labels are in a column of the same type for all samples.
    fn has_columns(self) -> bool {
        matches!(self, DatasetKind::Parquet | DatasetKind::Samples)
    }

    /// The kind by the file name or extension of a path, address or pattern; `None` for images and
    /// folders. `Mds` for any `index.json`, although the file may be the index of LitData.
    ///
    /// ```
    /// use spdl_io::datasets::DatasetKind;
    /// let kind = |name| DatasetKind::of_name(name);
    /// assert_eq!(kind("https://host/shard-{00..07}.tar?x=1"), Some(DatasetKind::TarShards));
    /// assert_eq!((kind("cat.jpg"), kind("photos")), (None, None));
    /// ```
    pub fn of_name(name: impl AsRef<OsStr>) -> Option<DatasetKind> {
        match name.as_ref().to_str() {
            Some(text) => kind_of_name(crate::stores::Address::parse(text).ok()?.key()),
            None => kind_of_name(&Key::from_path(Path::new(name.as_ref()))),
        }
    }
}

/// A data set of any kind, and the fetcher that reads it.
///
/// ```
/// use spdl_core::{Dataset, DatasetSource, PipelineBuilder};
/// use spdl_io::StoreRegistry;
/// use spdl_io::datasets::{DatasetKind, OpenedDataset};
/// # let folder = tempfile::tempdir()?;
/// # for class in ["cat", "dog"] {
/// #     std::fs::create_dir(folder.path().join(class))?;
/// #     std::fs::write(folder.path().join(class).join("1.jpg"), "not really")?;
/// # }
/// # let photos = folder.path().to_str().unwrap_or_default();
/// # #[cfg(feature = "local")] {
/// let stores = StoreRegistry::new();
/// // Or "s3://bucket/photos/", "https://host/shard-{0000..0007}.tar", "train-*.parquet", …
/// let data = spdl_core::block_on(OpenedDataset::open(&[photos], &stores))?;
/// assert_eq!((data.kind, data.classes.len()), (DatasetKind::ImageFolder, 2));
///
/// let fetch = data.fetch_labeled();
/// let images = PipelineBuilder::new(DatasetSource::new(data.samples).shuffled(7))
///     .async_stage("fetch", fetch)
///     .build()?;
/// for image in images {
///     let image = image?;
///     println!("class {}: {} bytes", image.label, image.value.len());
/// }
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct OpenedDataset {
    /// The format.
    pub kind: DatasetKind,
    /// The samples.
    pub samples: Arc<dyn Dataset<Item = StoredRecord>>,
    /// Reads the fields of samples. Files with several samples are read in one version: if a file
    /// changes after it was opened, reads fail with `Changed`. If the samples are in several stores, reads fail with
    /// `Unsupported`: see [`fetch_labeled`](OpenedDataset::fetch_labeled).
    pub fetcher: Arc<dyn Fetcher>,
    /// Whether all samples are local files.
    pub is_local: bool,
    /// The class names; a label is an index. Empty if the data set has none.
    ///
    /// - Image folders: the names of the class folders.
    /// - File lists and Parquet files: the distinct texts of the label column, unless they are all
    ///   integers.
    /// - Parquet files and Arrow tables whose labels are integers: the names of the `ClassLabel` of Hugging Face's
    ///   `datasets` in their metadata.
    /// - Tar shards: the classes of the manifest that `spdl pack` wrote, or
    ///   [class folders](super::WebDataset::classes).
    pub classes: Vec<String>,
    /// The number of samples of each shard or row group. Empty if each sample is a file, for several data sets, and for
    /// chosen samples.
    pub shard_lens: Vec<u64>,
    /// The number of damaged or truncated tar archives. The number of samples after the damage is
    /// unknown.
    pub truncated_shards: u64,
    /// The number of samples that the manifest of a set written by `spdl pack` lists, but that were not found
    /// because of damage or missing shards.
    pub missing_samples: u64,
    /// Ignored files, damage, and suspicious classes, each with its path.
    pub warnings: Vec<Error>,
    /// The address of the store without secrets; `None` for local files. For a file list, the store of the
    /// list; its rows may be in other stores.
    pub store: Option<Arc<str>>,
    versions: PinnedVersions,
    max_file_bytes: u64,
    options: OpenOptions,
    /// The path column of a file list, if [`OpenOptions::image_field`] names it.
    path_column: Option<String>,
    /// The default label columns from which this file list takes its labels.
    own_labels: Vec<&'static str>,
    /// Whether this is a file list whose columns have names.
    has_named_columns: bool,
    /// See [`box_fields`](OpenedDataset::box_fields).
    box_fields: BoxFields,
    /// The number of samples without a label, if known.
    unlabeled: Option<Unlabeled>,
    #[cfg(feature = "cache")]
    cache: Option<DatasetCache>,
    /// The data sets from which the samples are; empty for one data set.
    parts: Arc<[OpenedDataset]>,
    order: ReadOrder,
    /// The memory for parts, if `fetcher` reads shards in parts.
    part_bytes: Option<u64>,
    /// The class numbers in the data, if they differ from those in `classes`.
    renumbered: Option<Arc<Renumbered>>,
}

/// A cache, and the versions of the objects that it holds.
#[cfg(feature = "cache")]
#[derive(Clone, Debug)]
struct DatasetCache {
    cache: Cache,
    versions: PinnedVersions,
}

impl OpenedDataset {
    /// Opens the data set at `addresses`: one address, or several of the same kind in the same store.
    ///
    /// | address | data set |
    /// |---|---|
    /// | ends with `.tar`; `.tar.gz`, `.tgz`, `.tar.zst` with [`OpenOptions::sequential`] | tar shards |
    /// | ends with `.zip` (feature `zip`) | zip archives |
    /// | ends with `.parquet` (feature `parquet`) | Parquet files |
    /// | ends with `.tfrecord`, `.tfrecords` | TFRecord files |
    /// | ends with `.rec` | RecordIO files |
    /// | ends with `.mdb`, `.lmdb` (files, or folders with `data.mdb`) | LMDB files |
    /// | `…/ImageSets/…/….txt` | the images of an [image set of Pascal VOC](super::FileList::fetch_voc) |
    /// | ends with `LOC_val_solution.csv`, `validation_synset_labels.txt` | the [validation images of ImageNet](super::FileList::from_imagenet_labels) |
    /// | ends with `.txt`, `.csv`, `.jsonl` | a file list |
    /// | ends with `.json`, except `index.json` | [COCO annotations](super::FileList::from_coco) |
    /// | a pattern of other files, such as `photos/*.jpg` | the files, sorted, without labels: those with one of the [extensions](OpenOptions::extensions), or all, if the pattern has an extension |
    /// | a folder, or its `index.json` | by content: MDS shards, LitData chunks, a set that `spdl pack` wrote, `data.mdb`, tar, Parquet, TFRecord or RecordIO files, or zip archives without subfolders; otherwise images |
    ///
    /// In names of tar, zip, Parquet, TFRecord, RecordIO and LMDB files, and of lists with the ending `.txt`, `.csv`,
    /// `.jsonl` or `.ndjson`, braces are expanded by [`expand_braces`](super::expand_braces), and the last part of the
    /// path may contain `*` and `?` if the store supports listing. Several lists must have the same columns. If their
    /// class names differ, the classes are the names of all lists, sorted. In a store, any other address is a folder.
    ///
    /// Rows of a file list may be addresses of any store in `stores`: `https://…`, `s3://…`, and in a local
    /// list also paths and `file:///…`. Each row is read from the store that it names. A password or signature
    /// in the address of the list is not sent to other stores.
    ///
    /// # Errors
    /// - The errors of [`StoreRegistry::open`] and of each data set.
    /// - `NotFound` if there is no data set, or if it is empty.
    /// - `InvalidArgument` for an empty list of addresses, for addresses of different kinds or stores, and for
    ///   a list row with a password or an unknown scheme.
    /// - `Unsupported` for a Lance data set; for a folder if the server does not support listing, and for a list row in a store whose
    ///   feature is disabled.
    /// - `Corrupt` if the size of a shard differs from its manifest, unless the options [accept
    ///   damage](OpenOptions::accept_damage).
    pub async fn open(
        addresses: &[impl AsRef<OsStr>],
        stores: &StoreRegistry,
    ) -> Result<OpenedDataset> {
        OpenedDataset::open_with(addresses, stores, &OpenOptions::default()).await
    }

    /// [`open`](OpenedDataset::open) with options.
    ///
    /// # Errors
    /// The errors of [`open`](OpenedDataset::open); `InvalidArgument` for a CSV list without the
    /// image column of the options, and for a folder of images that is invalid: see [`OpenOptions::images`].
    pub async fn open_with(
        addresses: &[impl AsRef<OsStr>],
        stores: &StoreRegistry,
        options: &OpenOptions,
    ) -> Result<OpenedDataset> {
        let locations = parse_addresses(addresses, stores)?;
        let Some(first) = locations.first() else {
            let message = "the list of addresses is empty";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let kinds: Vec<_> = locations.iter().map(|location| kind_of_name(&location.key)).collect();
        let is_one_store =
            locations.iter().all(|location| Arc::ptr_eq(&location.fetcher, &first.fetcher));
        if kinds.iter().any(|kind| *kind != kinds[0]) || !is_one_store {
            let message = format!(
                "cannot open {} addresses together: they must be files of one kind in one store",
                locations.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        options.check_sequential()?;
        for location in &locations {
            check_supported(&location.key).map_err(|it| it.with_key(&*location.address))?;
        }
        let versions = PinnedVersions::default();
        let fetcher: Arc<dyn Fetcher> =
            Arc::new(Pinned::new(Arc::clone(&first.fetcher), versions.clone()));
        let parts = options
            .sequential
            .map(|max_bytes| PartFetcher::of_pinned(Arc::clone(&fetcher), max_bytes, Some(UNPACK)));
        let opener = Opener {
            fetcher: &fetcher,
            parts,
            versions,
            is_local: first.is_local,
            store: first.store.as_deref(),
            stores,
            options,
        };
        let opened = opener.open_locations(kinds[0], &locations).await;
        let opened = opened.and_then(|opened| match opened.samples.is_empty() {
            true => Err(Error::new(ErrorKind::NotFound, "the data set holds no samples")),
            false => Ok(opened),
        });
        match opened {
            Ok(opened) => Ok(OpenedDataset { store: first.store.clone(), ..opened }),
            // A key does not contain the store, and the root of a store has an empty key.
            Err(error) => {
                let address = match error.key() {
                    None | Some("") => first.address.to_string(),
                    Some(key) => address_in(first.store.as_deref(), key),
                };
                Err(error.renamed(address))
            }
        }
    }

    /// A data set of given images, in this order: paths, or addresses in one store.
    ///
    /// Without `labels`, every label is −1. The images are not accessed. Reading a missing image fails later.
    /// Local paths without the extension of an image are checked: a folder is an error.
    ///
    /// ```
    /// use spdl_core::Dataset;
    /// use spdl_io::StoreRegistry;
    /// use spdl_io::datasets::OpenedDataset;
    /// # #[cfg(feature = "local")] {
    /// let stores = StoreRegistry::new();
    /// let data = OpenedDataset::of_images(&["cat.jpg", "dog.jpg"], Some(&[0, 1]), &stores)?;
    /// assert_eq!((data.samples.len(), data.samples.item(1)?.label), (2, 1));
    /// # }
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`ImageFolder::from_paths`] and [`StoreRegistry::open`]; `InvalidArgument` for a local
    /// folder, and for addresses in several stores.
    pub fn of_images(
        addresses: &[impl AsRef<OsStr>],
        labels: Option<&[i64]>,
        stores: &StoreRegistry,
    ) -> Result<OpenedDataset> {
        let is_path = |name: &OsStr| name.to_str().is_none_or(|name| !name.contains(':'));
        // Fast path, because parsing a million addresses is slow.
        let (location, images) = if addresses.iter().all(|name| is_path(name.as_ref())) {
            let paths = addresses.iter().map(|name| Path::new(name.as_ref()));
            if let Some(folder) = paths.clone().find(|path| missing::is_folder(path)) {
                return Err(missing::folder_in_list(folder));
            }
            (parse_addresses(&["."], stores)?.pop(), ImageFolder::from_paths(paths, labels)?)
        } else {
            let mut locations = parse_addresses(addresses, stores)?;
            let first = locations.first().map(|location| Arc::clone(&location.fetcher));
            let is_elsewhere = |location: &&OpenLocation| {
                first.as_ref().is_some_and(|first| !Arc::ptr_eq(&location.fetcher, first))
            };
            if let Some(other) = locations.iter().find(is_elsewhere) {
                let message = "images of a list must be in one store, without signatures in their \
                               addresses; this one is in another store than the first";
                let error = Error::new(ErrorKind::InvalidArgument, message);
                return Err(error.with_key(&*other.address));
            }
            let paths = locations.iter().map(|it| it.key.to_path());
            let is_local = locations.first().is_some_and(|first| first.is_local);
            if let Some(folder) = paths.clone().find(|path| is_local && missing::is_folder(path)) {
                return Err(missing::folder_in_list(&folder));
            }
            let images = ImageFolder::from_paths(paths, labels)?;
            (locations.pop(), images)
        };
        let Some(OpenLocation { fetcher, is_local, store, .. }) = location else {
            return Err(Error::new(ErrorKind::InvalidArgument, "the list of images is empty"));
        };
        let opener = Opener {
            fetcher: &fetcher,
            parts: None,
            versions: PinnedVersions::default(),
            is_local,
            store: store.as_deref(),
            stores,
            options: &OpenOptions::default(),
        };
        let kind = DatasetKind::FileList;
        let opened = opener.dataset(kind, FolderRecords::new(images, opener.options), Vec::new());
        Ok(OpenedDataset { store, ..opened })
    }

    /// A data set of any samples, such as those of `ArrowDataset`. Their files are local.
    ///
    /// Class names are not read: see [`name_default_classes`](Self::name_default_classes) and
    /// [`name_classes`](Self::name_classes).
    ///
    /// ```
    /// use spdl_io::{FieldValue, StoreRegistry, StoredRecord};
    /// use spdl_io::datasets::{OpenOptions, OpenedDataset};
    /// # #[cfg(feature = "local")] {
    /// let samples = vec![StoredRecord::new("a").with_known("text", FieldValue::Text("a cat".into()))];
    /// let (stores, options) = (StoreRegistry::new(), OpenOptions::default());
    /// let data = OpenedDataset::of_samples(samples, &stores, &options)?;
    /// assert_eq!(data.kind.to_string(), "samples");
    /// # }
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` if there is no sample; `InvalidArgument` if the options set a folder of images; `Unsupported`
    /// without the feature `local`.
    pub fn of_samples(
        samples: impl Dataset<Item = StoredRecord>,
        stores: &StoreRegistry,
        options: &OpenOptions,
    ) -> Result<OpenedDataset> {
        if samples.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "the data set holds no samples"));
        }
        options.check_no_images()?;
        let lens = vec![samples.len()];
        let opener = Opener {
            fetcher: &stores.open(".")?.fetcher,
            parts: None,
            versions: PinnedVersions::default(),
            is_local: true,
            store: None,
            stores,
            options,
        };
        Ok(opener.dataset(DatasetKind::Samples, samples, lens))
    }

    /// The address of an object or sample, for messages: the store and `key`.
    pub fn address_of(&self, key: &str) -> String {
        address_in(self.store.as_deref(), key)
    }

    /// The stage that reads the image and the label of each sample.
    ///
    /// The fields are those of [`OpenOptions`], otherwise the default fields of
    /// [`FetchLabeled::new`]. If the options set no label field, the label of a file list is the
    /// label of the row. The stage uses the classes of the data set.
    pub fn fetch_labeled(&self) -> FetchLabeled {
        if self.kind == DatasetKind::Several {
            let parts = self.parts.iter().map(|part| (part.fetch_labeled(), part.store.clone()));
            let fetch = FetchLabeled::new(Arc::clone(&self.fetcher)).with_classes(&self.classes);
            return fetch.of_parts(parts);
        }
        let fetch = FetchLabeled::new(Arc::clone(&self.fetcher))
            .in_store(self.store.clone())
            .with_max_bytes(self.max_file_bytes);
        let fetch = match &self.renumbered {
            Some(renumbered) => fetch
                .with_classes(&renumbered.names)
                .with_renumbered_classes(Arc::clone(&renumbered.others)),
            None => fetch.with_classes(&self.classes),
        };
        #[cfg(feature = "cache")]
        let fetch = match &self.cache {
            Some(DatasetCache { cache, versions }) => {
                let is_local = self.fetcher.capability().local_versions;
                // Each read checks the version of a local file.
                let versions = if is_local { PinnedVersions::default() } else { versions.clone() };
                fetch.with_pinned_cache(cache.clone(), versions)
            }
            None => fetch,
        };
        let fetch = fetch
            // Empty labels are counted and reported when the data set is opened.
            .with_empty_labels(self.kind.has_columns() && self.unlabeled.is_some());
        let fetch = match &self.options.image_field {
            Some(name) => fetch.with_value_fields([self.image_field(name)]),
            None => fetch,
        };
        match (&self.options.label_field, self.kind) {
            (Some(name), _) => fetch.with_label_fields(self.label_field(name)),
            // The label column of the list takes precedence over fields with a default name.
            (None, DatasetKind::FileList) => fetch.with_label_fields([""; 0]),
            (None, _) => fetch,
        }
    }

    /// Sets the limit of the bytes that are read for a sample: its image and its label. Larger
    /// samples fail with `LimitExceeded`. Default:
    /// [`Fetch::DEFAULT_MAX_BYTES`](crate::Fetch::DEFAULT_MAX_BYTES).
    #[must_use]
    pub fn with_max_file_bytes(self, bytes: u64) -> OpenedDataset {
        let parts = self.parts.iter().map(|part| part.clone().with_max_file_bytes(bytes));
        OpenedDataset { max_file_bytes: bytes, parts: parts.collect(), ..self }
    }

    /// Caches what [`fetch_labeled`](OpenedDataset::fetch_labeled) reads: see [`FetchLabeled::with_cache`]. The version of
    /// each object of a store is found once, also if several pipelines read the data set. Data sets that are later
    /// concatenated or mixed may have different caches.
    #[cfg(feature = "cache")]
    #[must_use]
    pub fn with_cache(self, cache: Cache) -> OpenedDataset {
        let parts = self.parts.iter().map(|part| {
            let store = part.store.as_ref();
            part.clone().with_cache(store.map_or_else(|| cache.clone(), |it| cache.within(it)))
        });
        let cache =
            Some(DatasetCache { cache: cache.clone(), versions: PinnedVersions::default() });
        OpenedDataset { parts: parts.collect(), cache, ..self }
    }

    /// Whether shards are read in parts: see [`OpenOptions::sequential`].
    pub fn reads_parts(&self) -> bool {
        self.part_bytes.is_some() || self.parts.iter().any(OpenedDataset::reads_parts)
    }

    /// The limit of the bytes that are read for a sample.
    pub fn max_file_bytes(&self) -> u64 {
        self.max_file_bytes
    }

    /// The fields with one value per box that annotations of COCO or Pascal VOC define. Fields of boxes have a format:
    /// `xyxy` or `xywh`, in pixels. Empty for other data sets, and for several.
    pub fn box_fields(&self) -> &'static [(&'static str, Option<&'static str>)] {
        self.box_fields
    }

    /// The data set with another fetcher for the same keys, for example one with other options.
    ///
    /// Reads of a file still fail with `Changed` if the file has changed since it was opened. If the data set is made of
    /// several, all of them must be in the same store.
    #[must_use]
    pub fn with_fetcher(self, fetcher: Arc<dyn Fetcher>) -> OpenedDataset {
        let parts = self.parts.iter().map(|part| part.clone().with_fetcher(Arc::clone(&fetcher)));
        let parts = parts.collect();
        let mut fetcher: Arc<dyn Fetcher> = Arc::new(Pinned::new(fetcher, self.versions.clone()));
        if let Some(max_bytes) = self.part_bytes {
            fetcher = Arc::new(PartFetcher::of_pinned(fetcher, max_bytes, Some(UNPACK)));
        }
        OpenedDataset { fetcher, parts, ..self }
    }

    /// The name of the image field in samples: `file` for the path column of a file list, otherwise `name`.
    pub fn image_field<'a>(&self, name: &'a str) -> &'a str {
        if self.path_column.as_deref() == Some(name) { FILE_FIELD } else { name }
    }
}

/// A parsed address, and the fetcher of its store.
struct OpenLocation {
    fetcher: Arc<dyn Fetcher>,
    key: Key,
    is_local: bool,
    /// The address without secrets.
    address: Arc<str>,
    /// The address of the store; `None` for local files.
    store: Option<Arc<str>>,
}

/// Parses addresses, and opens their stores.
fn parse_addresses(
    addresses: &[impl AsRef<OsStr>],
    stores: &StoreRegistry,
) -> Result<Vec<OpenLocation>> {
    let mut locations = Vec::with_capacity(addresses.len());
    for address in addresses {
        let given = address.as_ref();
        // Non-UTF-8 text is a path.
        let (text, key) = match given.to_str() {
            Some(text) => (text, None),
            None => (".", Some(Key::from_path(Path::new(given)))),
        };
        let parsed = crate::stores::Address::parse(text)?;
        let is_local = parsed.scheme() == "file";
        let store = (!is_local).then(|| parsed.store().into());
        let Location { fetcher, key: named, address } = stores.open(text)?;
        locations.push(OpenLocation {
            fetcher,
            key: key.unwrap_or(named),
            is_local,
            address,
            store,
        });
    }
    Ok(locations)
}

/// # Errors
/// `Unsupported` for the formats of other programs that have a recognizable name.
fn check_supported(key: &Key) -> Result<()> {
    let name = key.as_bytes().to_ascii_lowercase();
    let name = name.strip_suffix(b"/").unwrap_or(&name);
    if !name.ends_with(b".lance") {
        return Ok(());
    }
    let message = "Lance data sets are not supported, because their reader is a large library; open the data set with \
                   its Python package `lance`, and pass the Arrow table to the loader; or write it as Parquet files";
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// The kind by file name; `None` for a possible folder.
fn kind_of_name(key: &Key) -> Option<DatasetKind> {
    let name = key.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    match () {
        () if name == "index.json" => Some(DatasetKind::Mds),
        // Compressed archives have a specific error message.
        () if ends(&[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2"]) => {
            Some(DatasetKind::TarShards)
        }
        () if ends(&[".zip"]) => Some(DatasetKind::ZipShards),
        () if ends(&[".parquet"]) => Some(DatasetKind::Parquet),
        () if ends(&[".tfrecord", ".tfrecords"]) => Some(DatasetKind::TfRecord),
        () if ends(&[".rec"]) => Some(DatasetKind::RecordIo),
        // The file for locks.
        () if name == "lock.mdb" => None,
        () if ends(&[".mdb", ".lmdb"]) => Some(DatasetKind::Lmdb),
        () if ends(&[".txt", ".csv", ".json"]) => Some(DatasetKind::FileList),
        () if is_json_lines(key) => Some(DatasetKind::FileList),
        () => None,
    }
}
