//! A data set of whichever kind lies at an address.

mod classes;
mod folder;
mod kinds;
mod labels;
mod missing;
mod options;

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use spdl_core::{Dataset, Error, ErrorKind, Result};

use self::folder::FolderRecords;
use self::kinds::Opener;
use self::labels::Unlabeled;
pub use self::options::OpenOptions;
use super::file_list::FILE_FIELD;
use crate::datasets::ImageFolder;
use crate::fetch::{Fetcher, Key};
use crate::records::{FetchLabeled, StoredRecord};
use crate::stores::{Location, StoreRegistry};

/// What a data set is stored as.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// Images, with a class for each folder.
    ImageFolder,
    /// A list of files: lines, CSV, or lines of JSON.
    FileList,
    /// Tar archives, as of the Python library `webdataset`.
    TarShards,
    /// TFRecord files of `tf.train.Example`.
    TfRecord,
    /// MDS shards of MosaicML Streaming.
    Mds,
    /// Parquet files.
    Parquet,
}

impl fmt::Display for DatasetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DatasetKind::ImageFolder => "image folder",
            DatasetKind::FileList => "list of files",
            DatasetKind::TarShards => "tar shards",
            DatasetKind::TfRecord => "TFRecord files",
            DatasetKind::Mds => "MDS shards",
            DatasetKind::Parquet => "Parquet files",
        })
    }
}

impl DatasetKind {
    /// What the name of a file, or its address, says that it holds; `None` for an image or a folder.
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

/// A data set that was found at an address, with what reads it.
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
    /// What it is stored as.
    pub kind: DatasetKind,
    /// The samples.
    pub samples: Arc<dyn Dataset<Item = StoredRecord>>,
    /// What reads their fields.
    pub fetcher: Arc<dyn Fetcher>,
    /// Whether they are all files of this machine.
    pub is_local: bool,
    /// The names of the classes, where the data set has them; a label is an index into them. Of Parquet
    /// files, the different texts of the column of labels, where it is one of texts. Of tar shards, those of
    /// a set that was packed, or the folders in them, where these seem to be
    /// [classes](super::WebDataset::classes).
    pub classes: Vec<String>,
    /// How many samples each shard has, or each row group; empty where samples lie each on its own.
    pub shard_lens: Vec<u64>,
    /// Tar archives whose headers are damaged somewhere: nobody knows how many samples lie behind that.
    pub truncated_shards: u64,
    /// Samples that the manifest of a packed set names, and that were not come upon: behind damage, or in
    /// shards that are missing.
    pub missing_samples: u64,
    /// What was left out, or is not as one might think.
    pub warnings: Vec<Error>,
    /// The address of the store, without what is secret in it; `None` for files of this machine. Of a
    /// list of files, that of the list, whose rows may lie elsewhere.
    pub store: Option<Arc<str>>,
    options: OpenOptions,
    /// The column of a list that names the files, where it was said which one does.
    path_column: Option<String>,
    /// By which of the usual names the labels of a list may be called, which are its own.
    own_labels: Vec<&'static str>,
    /// Whether it is a list whose columns have names.
    has_named_columns: bool,
    /// How many samples have no label, where that is known.
    unlabeled: Option<Unlabeled>,
}

impl OpenedDataset {
    /// Opens what lies at `addresses`: one, or several of the same kind in the same store.
    ///
    /// | address | data set |
    /// |---|---|
    /// | a name that ends in `.tar` | tar shards |
    /// | `.parquet` (feature `parquet`) | Parquet files |
    /// | `.tfrecord`, `.tfrecords` | TFRecord files |
    /// | `.txt`, `.csv`, `.jsonl` | a list of files |
    /// | a folder, or `index.json` in it | what it holds: MDS shards, a set that `spdl pack` wrote, tar, Parquet or TFRecord files, or else images |
    ///
    /// Names may have braces, as of [`expand_braces`](super::expand_braces), and, where the store lists,
    /// `*` and `?` in their last part. In a store, a folder is what is none of the others.
    ///
    /// Rows of a list of files may be addresses, of any store that `stores` opens: `https://…` with a query
    /// or without, `s3://…`, and from a list of this machine also paths and `file:///…`. Each is read in
    /// the way of its own store. A password or a signature in the list's own address goes to no other
    /// store, and rows hold no passwords.
    ///
    /// # Errors
    /// As [`StoreRegistry::open`], and those of each data set; `NotFound` where nothing is there;
    /// `InvalidArgument` for no address, for several that do not go together, and for a row of a list with a
    /// password, or of a scheme that nobody knows; `Unsupported` for a folder of a server that does not
    /// list, and for a row in a store that is not compiled in; `Corrupt` for a shard that has not the size
    /// that the manifest of its set says.
    pub async fn open(
        addresses: &[impl AsRef<OsStr>],
        stores: &StoreRegistry,
    ) -> Result<OpenedDataset> {
        OpenedDataset::open_with(addresses, stores, &OpenOptions::default()).await
    }

    /// The same with options of the caller's.
    ///
    /// # Errors
    /// As [`open`](OpenedDataset::open); `InvalidArgument` for a list without the column that was named for
    /// the image.
    pub async fn open_with(
        addresses: &[impl AsRef<OsStr>],
        stores: &StoreRegistry,
        options: &OpenOptions,
    ) -> Result<OpenedDataset> {
        let locations = locations(addresses, stores)?;
        let Some(first) = locations.first() else {
            let message = "no data set was named";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let kinds: Vec<_> = locations.iter().map(|location| kind_of_name(&location.key)).collect();
        let is_one_store =
            locations.iter().all(|location| Arc::ptr_eq(&location.fetcher, &first.fetcher));
        if kinds.iter().any(|kind| *kind != kinds[0]) || !is_one_store {
            let message = format!(
                "{} addresses were given; several must be files of one kind in one store",
                locations.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let opening = Opener {
            fetcher: &first.fetcher,
            is_local: first.is_local,
            store: first.store.as_deref(),
            stores,
            options,
        };
        let opened = opening.locations(kinds[0], &locations).await;
        let opened = opened.and_then(|opened| match opened.samples.is_empty() {
            true => Err(Error::new(ErrorKind::NotFound, "this data set holds no samples")),
            false => Ok(opened),
        });
        match opened {
            Ok(opened) => Ok(OpenedDataset { store: first.store.clone(), ..opened }),
            // Keys say nothing of the store; and what lies at the top of it has no name in it.
            Err(error) => {
                let address = match error.key() {
                    None | Some("") => first.address.to_string(),
                    Some(key) => address_in(first.store.as_deref(), key),
                };
                Err(error.renamed(address))
            }
        }
    }

    /// These images in this order, with these labels: paths, or addresses in one store. Nothing is
    /// looked at: one that is missing is noticed when it is read.
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
    /// As [`ImageFolder::from_paths`] and [`StoreRegistry::open`]; `InvalidArgument` for addresses in
    /// several stores.
    pub fn of_images(
        addresses: &[impl AsRef<OsStr>],
        labels: Option<&[i64]>,
        stores: &StoreRegistry,
    ) -> Result<OpenedDataset> {
        let is_path = |name: &OsStr| name.to_str().is_none_or(|name| !name.contains(':'));
        // A million paths need not be taken apart one by one.
        let (location, images) = if addresses.iter().all(|name| is_path(name.as_ref())) {
            let paths = addresses.iter().map(|name| Path::new(name.as_ref()));
            (locations(&["."], stores)?.pop(), ImageFolder::from_paths(paths, labels)?)
        } else {
            let mut locations = locations(addresses, stores)?;
            let first = locations.first().map(|location| Arc::clone(&location.fetcher));
            let is_elsewhere = |location: &&OpenLocation| {
                first.as_ref().is_some_and(|first| !Arc::ptr_eq(&location.fetcher, first))
            };
            if let Some(other) = locations.iter().find(is_elsewhere) {
                let message = "images of a list must lie in one store, without signatures in their \
                               addresses, and this one lies in another than the first";
                let error = Error::new(ErrorKind::InvalidArgument, message);
                return Err(error.with_key(&*other.address));
            }
            let images =
                ImageFolder::from_paths(locations.iter().map(|it| it.key.to_path()), labels)?;
            (locations.pop(), images)
        };
        let Some(OpenLocation { fetcher, is_local, store, .. }) = location else {
            return Err(Error::new(ErrorKind::InvalidArgument, "the list of images is empty"));
        };
        let opening = Opener {
            fetcher: &fetcher,
            is_local,
            store: store.as_deref(),
            stores,
            options: &OpenOptions::default(),
        };
        let kind = DatasetKind::FileList;
        let opened = opening.opened(kind, FolderRecords(images), Vec::new());
        Ok(OpenedDataset { store, ..opened })
    }

    /// The address of what an error calls `key`, as it may be shown: with the store that it lies in.
    pub fn address_of(&self, key: &str) -> String {
        address_in(self.store.as_deref(), key)
    }

    /// The stage that reads an image and its label of each sample, by the names that were
    /// [given](OpenOptions) or else those that such fields usually have, and with the classes of the data
    /// set.
    pub fn fetch_labeled(&self) -> FetchLabeled {
        self.fetch_labeled_by(Arc::clone(&self.fetcher))
    }

    /// The same by another fetcher of the same keys.
    pub fn fetch_labeled_by(&self, fetcher: Arc<dyn Fetcher>) -> FetchLabeled {
        let fetch = FetchLabeled::new(fetcher)
            .with_classes(&self.classes)
            // Empty labels are counted and reported when the data set is opened.
            .with_empty_labels(self.kind == DatasetKind::Parquet && self.unlabeled.is_some());
        let fetch = match &self.options.image_field {
            Some(name) => fetch.with_value_fields([self.image_field(name)]),
            None => fetch,
        };
        match (&self.options.label_field, self.kind) {
            (Some(name), _) => fetch.with_label_fields(self.label_field(name)),
            // Its column of labels comes before any that is called alike.
            (None, DatasetKind::FileList) => fetch.with_label_fields([""; 0]),
            (None, _) => fetch,
        }
    }

    /// What the field `name` of the image is called in samples: the column of a list that names the files is
    /// `file` there.
    pub fn image_field<'a>(&self, name: &'a str) -> &'a str {
        if self.path_column.as_deref() == Some(name) { FILE_FIELD } else { name }
    }
}

/// The address of an object in a store.
fn address_in(store: Option<&str>, key: &str) -> String {
    match store {
        Some(store) if !key.contains("://") => format!("{store}/{key}"),
        _ => key.to_owned(),
    }
}

/// Where an address leads.
struct OpenLocation {
    fetcher: Arc<dyn Fetcher>,
    key: Key,
    is_local: bool,
    /// As it may be shown.
    address: Arc<str>,
    /// That of its store; `None` for files of this machine.
    store: Option<Arc<str>>,
}

fn locations(addresses: &[impl AsRef<OsStr>], stores: &StoreRegistry) -> Result<Vec<OpenLocation>> {
    let mut locations = Vec::with_capacity(addresses.len());
    for address in addresses {
        let given = address.as_ref();
        // What is not UTF-8 is a path.
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

/// What the name of a file says; `None` for what may be a folder.
fn kind_of_name(key: &Key) -> Option<DatasetKind> {
    let name = key.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    match () {
        () if name == "index.json" => Some(DatasetKind::Mds),
        // Compressed ones are refused by a message of their own.
        () if ends(&[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2"]) => {
            Some(DatasetKind::TarShards)
        }
        () if ends(&[".parquet"]) => Some(DatasetKind::Parquet),
        () if ends(&[".tfrecord", ".tfrecords"]) => Some(DatasetKind::TfRecord),
        () if ends(&[".txt", ".csv", ".jsonl"]) => Some(DatasetKind::FileList),
        () => None,
    }
}
