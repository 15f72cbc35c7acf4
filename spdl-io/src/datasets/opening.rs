//! A data set of whichever kind lies at an address.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt;
use spdl_core::{Dataset, Error, ErrorKind, Labeled, Result};

use super::pattern::{Names, stored_keys};
use super::{
    FileList, FileListOptions, MdsDataset, MdsOptions, TfRecordDataset, TfRecordOptions,
    WebDataset, WebDatasetOptions,
};
#[cfg(feature = "parquet")]
use super::{ParquetDataset, ParquetOptions};
use crate::shards::{JOURNAL, MANIFEST, Manifest};
use crate::{
    Encoding, Extent, FetchLabeled, Fetcher, IMAGE_EXTENSIONS, ImageFolder, Key, Location,
    StoreRegistry, StoredRecord,
};

/// Where files are named, nothing is a folder; and what lies beside them is an index.
const NAMES: Names<'static> = Names { in_folder: "*", index_suffix: Some(".idx") };
/// So many objects of a folder in a store are looked at to see what it holds.
const LOOKED_AT: usize = 1000;

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
    /// Whether they are files of this machine.
    pub is_local: bool,
    /// The names of the classes, where the data set has them; a label is an index into them.
    pub classes: Vec<String>,
    /// How many samples each shard has, or each row group; empty where samples lie each on its own.
    pub shard_lens: Vec<u64>,
    /// What was left out, or is not as one might think.
    pub warnings: Vec<Error>,
    /// The address of the store, without what is secret in it; `None` for files of this machine.
    pub store: Option<Arc<str>>,
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
    /// # Errors
    /// As [`StoreRegistry::open`], and those of each data set; `NotFound` where nothing is there;
    /// `InvalidArgument` for no address, and for several that do not go together; `Unsupported` for a
    /// folder of a server that does not list; `Corrupt` for a shard that has not the size
    /// that the manifest of its set says.
    pub async fn open(
        addresses: &[impl AsRef<OsStr>],
        stores: &StoreRegistry,
    ) -> Result<OpenedDataset> {
        OpenedDataset::open_with(addresses, stores, &IMAGE_EXTENSIONS).await
    }

    /// The same, with the name extensions by which images in folders are known.
    ///
    /// # Errors
    /// As [`open`](OpenedDataset::open).
    pub async fn open_with(
        addresses: &[impl AsRef<OsStr>],
        stores: &StoreRegistry,
        extensions: &[&str],
    ) -> Result<OpenedDataset> {
        let places = places(addresses, stores)?;
        let Some(first) = places.first() else {
            let message = "no data set was named";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let kinds: Vec<_> = places.iter().map(|place| kind_of_name(&place.key)).collect();
        let is_one_store = places.iter().all(|place| Arc::ptr_eq(&place.fetcher, &first.fetcher));
        if kinds.iter().any(|kind| *kind != kinds[0]) || !is_one_store {
            let message = format!(
                "{} addresses were given; several must be files of one kind in one store",
                places.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let opening = Opening { fetcher: &first.fetcher, is_local: first.is_local, extensions };
        let opened = opening.places(kinds[0], &places).await;
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

    /// The address of what an error calls `key`, as it may be shown: with the store that it lies in.
    pub fn address_of(&self, key: &str) -> String {
        address_in(self.store.as_deref(), key)
    }

    /// The stage that reads an image and its label of each sample, by the names that such fields
    /// usually have.
    pub fn fetch_labeled(&self) -> FetchLabeled {
        FetchLabeled::new(Arc::clone(&self.fetcher))
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
struct Place {
    fetcher: Arc<dyn Fetcher>,
    key: Key,
    is_local: bool,
    /// As it may be shown.
    address: Arc<str>,
    /// That of its store; `None` for files of this machine.
    store: Option<Arc<str>>,
}

fn places(addresses: &[impl AsRef<OsStr>], stores: &StoreRegistry) -> Result<Vec<Place>> {
    let mut places = Vec::with_capacity(addresses.len());
    for address in addresses {
        let given = address.as_ref();
        // What is not UTF-8 is a path.
        let (text, key) = match given.to_str() {
            Some(text) => (text, None),
            None => (".", Some(Key::from_path(Path::new(given)))),
        };
        let parsed = crate::Address::parse(text)?;
        let is_local = parsed.scheme() == "file";
        let store = (!is_local).then(|| parsed.store().into());
        let Location { fetcher, key: named, address } = stores.open(text)?;
        places.push(Place { fetcher, key: key.unwrap_or(named), is_local, address, store });
    }
    Ok(places)
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

/// The folder that a file lies in, with a slash at its end unless it is empty.
fn folder_of(file: &Key) -> Key {
    let bytes = file.as_bytes();
    let end = bytes.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    Key::from_bytes(&bytes[..end])
}

struct Opening<'a> {
    fetcher: &'a Arc<dyn Fetcher>,
    is_local: bool,
    extensions: &'a [&'a str],
}

impl Opening<'_> {
    fn opened(
        &self,
        kind: DatasetKind,
        samples: impl Dataset<Item = StoredRecord>,
        shard_lens: Vec<u64>,
    ) -> OpenedDataset {
        OpenedDataset {
            kind,
            samples: Arc::new(samples),
            fetcher: Arc::clone(self.fetcher),
            is_local: self.is_local,
            classes: Vec::new(),
            shard_lens,
            warnings: Vec::new(),
            store: None,
        }
    }

    /// What lies at places that go together, of which there is at least one.
    async fn places(&self, kind: Option<DatasetKind>, places: &[Place]) -> Result<OpenedDataset> {
        match kind {
            Some(
                kind @ (DatasetKind::TarShards | DatasetKind::Parquet | DatasetKind::TfRecord),
            ) => {
                let mut keys = Vec::new();
                for place in places {
                    let found = match place.key.as_str() {
                        Some(pattern) => stored_keys(&**self.fetcher, pattern, &NAMES).await?,
                        None => vec![place.key.clone()],
                    };
                    keys.extend(found);
                }
                self.files(kind, keys).await
            }
            _ if places.len() > 1 => {
                let message = "only one folder, or one list of files, can be opened at a time";
                Err(Error::new(ErrorKind::InvalidArgument, message)
                    .with_key(places[1].key.display_name()))
            }
            Some(DatasetKind::FileList) => self.file_list(&places[0].key).await,
            Some(DatasetKind::Mds) => self.mds(folder_of(&places[0].key)).await,
            _ => self.folder(&places[0].key).await,
        }
    }

    async fn files(&self, kind: DatasetKind, keys: Vec<Key>) -> Result<OpenedDataset> {
        let fetcher = self.fetcher;
        match kind {
            DatasetKind::TfRecord => {
                let options = TfRecordOptions::default();
                let samples = TfRecordDataset::fetch_files(fetcher, keys, &options).await?;
                let lens = samples.shard_lens();
                Ok(self.opened(kind, samples, lens))
            }
            DatasetKind::Parquet => self.parquet(keys).await,
            _ => Ok(self.opened_tar(self.tar(keys).await?)),
        }
    }

    async fn tar(&self, keys: Vec<Key>) -> Result<WebDataset> {
        let options = WebDatasetOptions::default();
        match self.is_local {
            // Beside archives of this machine their indices are kept.
            true => WebDataset::open_files(keys.iter().map(|key| key.to_path()), &options),
            false => WebDataset::fetch_files(self.fetcher, keys, &options).await,
        }
    }

    fn opened_tar(&self, samples: WebDataset) -> OpenedDataset {
        let (lens, warnings) = (samples.shard_lens(), warnings(&samples));
        OpenedDataset { warnings, ..self.opened(DatasetKind::TarShards, samples, lens) }
    }

    #[cfg(feature = "parquet")]
    async fn parquet(&self, keys: Vec<Key>) -> Result<OpenedDataset> {
        let options = ParquetOptions::default();
        let samples = ParquetDataset::fetch_files(self.fetcher, keys, &options).await?;
        let lens = samples.shard_lens();
        Ok(self.opened(DatasetKind::Parquet, samples, lens))
    }

    #[cfg(not(feature = "parquet"))]
    #[expect(clippy::unused_async, reason = "the same call with and without the feature")]
    async fn parquet(&self, keys: Vec<Key>) -> Result<OpenedDataset> {
        let message =
            "Parquet files need the feature `parquet`, which this program was built without";
        let error = Error::new(ErrorKind::Unsupported, message);
        Err(match keys.first() {
            Some(key) => error.with_key(key.display_name()),
            None => error,
        })
    }

    async fn file_list(&self, key: &Key) -> Result<OpenedDataset> {
        let list = FileList::fetch(self.fetcher, key.clone(), &FileListOptions::default()).await?;
        let classes = list.classes().to_vec();
        Ok(OpenedDataset { classes, ..self.opened(DatasetKind::FileList, list, Vec::new()) })
    }

    async fn mds(&self, folder: Key) -> Result<OpenedDataset> {
        let samples = MdsDataset::fetch(self.fetcher, folder, &MdsOptions::default()).await?;
        let lens = samples.shard_lens();
        Ok(self.opened(DatasetKind::Mds, samples, lens))
    }

    /// What a folder holds is told by the names in it.
    async fn folder(&self, folder: &Key) -> Result<OpenedDataset> {
        let held = match self.is_local {
            true => local_names(folder)?,
            false => self.stored_names(folder).await?,
        };
        let with_slash = match folder.as_bytes() {
            [] | [.., b'/'] => folder.clone(),
            bytes => Key::from_bytes(&[bytes, b"/"].concat()),
        };
        let inside =
            |name: &Key| Key::from_bytes(&[with_slash.as_bytes(), name.as_bytes()].concat());
        let holds = |wanted: &str| held.iter().any(|name| name.as_str() == Some(wanted));
        if holds(JOURNAL) {
            let message = "this set is not complete; the same `spdl pack` again goes on with it";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            return Err(error.with_key(folder.display_name()));
        }
        let has_tar = held.iter().any(|name| kind_of_name(name) == Some(DatasetKind::TarShards));
        if holds(MANIFEST) && has_tar {
            return self.packed(&inside(&MANIFEST.into()), inside).await;
        }
        if holds("index.json") {
            return self.mds(with_slash).await;
        }
        for kind in [DatasetKind::TarShards, DatasetKind::Parquet, DatasetKind::TfRecord] {
            let is_meant = |name: &&Key| kind_of_name(name) == Some(kind);
            let mut keys: Vec<Key> = held.iter().filter(is_meant).map(inside).collect();
            if !keys.is_empty() {
                keys.sort();
                return self.files(kind, keys).await;
            }
        }
        let images = match self.is_local {
            true => ImageFolder::with_extensions(folder.to_path(), self.extensions)?,
            false => ImageFolder::fetch(self.fetcher, folder.clone(), self.extensions).await?,
        };
        let (classes, warnings) = (images.classes().to_vec(), images.warnings().to_vec());
        let opened = self.opened(DatasetKind::ImageFolder, FolderRecords(images), Vec::new());
        Ok(OpenedDataset { classes, warnings, ..opened })
    }

    /// A set that was packed, whose manifest says which shards there are, and the classes.
    async fn packed(&self, manifest: &Key, inside: impl Fn(&Key) -> Key) -> Result<OpenedDataset> {
        let text = self.fetcher.read_at_most(manifest, Manifest::MAX_BYTES).await?;
        let manifest =
            Manifest::parse(&text).map_err(|error| error.with_key(manifest.display_name()))?;
        let keys = manifest.shards.iter().map(|shard| inside(&shard.name.as_str().into()));
        let samples = self.tar(keys.collect()).await?;
        for ((shard, found), key) in
            manifest.shards.iter().zip(samples.shard_bytes()).zip(samples.shards())
        {
            if found != shard.bytes {
                let message = format!(
                    "this shard has {found} bytes, and {} by {MANIFEST}; `spdl verify DATA` tells more",
                    shard.bytes
                );
                return Err(Error::new(ErrorKind::Corrupt, message).with_key(key.display_name()));
            }
        }
        Ok(OpenedDataset { classes: manifest.classes().to_vec(), ..self.opened_tar(samples) })
    }

    /// The names directly in a folder of a store, as far as the first objects tell.
    async fn stored_names(&self, folder: &Key) -> Result<Vec<Key>> {
        if !self.fetcher.capability().list {
            let message = "what this folder holds cannot be known, as its server does not list; name \
                the files (`https://host/shard-{0000..0007}.tar`), or a list of files";
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.with_key(folder.display_name()));
        }
        let mut names = Vec::new();
        let mut listing = self.fetcher.list(folder).await?;
        let mut seen = 0;
        while let Some(object) = listing.next().await {
            let key = object?.key;
            let below = key.as_bytes().strip_prefix(folder.as_bytes()).unwrap_or(key.as_bytes());
            let below = below.strip_prefix(b"/").unwrap_or(below);
            let is_inside = !below.contains(&b'/');
            if is_inside {
                names.push(Key::from_bytes(below));
            }
            seen += 1;
            // A folder of files alone is read to its end, as all of them are meant.
            if seen >= LOOKED_AT && (!is_inside || kind_of_name(&key).is_none()) {
                break;
            }
        }
        match seen {
            0 => Err(Error::new(ErrorKind::NotFound, "there is nothing in this folder")
                .with_key(folder.display_name())),
            _ => Ok(names),
        }
    }
}

/// The names of the files directly in a folder of this machine.
fn local_names(folder: &Key) -> Result<Vec<Key>> {
    let failed = |error: std::io::Error| {
        let message = match error.kind() {
            std::io::ErrorKind::NotFound => "there is no such file or folder",
            std::io::ErrorKind::NotADirectory => {
                "this is a file, and its name does not say what it holds: .tar, .parquet, \
                 .tfrecord, .txt, .csv and .jsonl are known"
            }
            _ => "cannot list this folder",
        };
        crate::walk::os_error(message, folder, error)
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder.to_path()).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // A link may lead to a file.
        if entry.file_type().is_ok_and(|kind| !kind.is_dir()) {
            names.push(Key::from_path(entry.file_name()));
        }
    }
    Ok(names)
}

/// What a shard's damage costs, told at once and not only when it is met.
fn warnings(samples: &WebDataset) -> Vec<Error> {
    samples.failures().cloned().collect()
}

/// The images of a folder as samples of one field.
#[derive(Debug)]
struct FolderRecords(ImageFolder);

impl Dataset for FolderRecords {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let Labeled { value: key, label } = self.0.item(index)?;
        let record = StoredRecord::new(key.clone()).with_label(label);
        let record = record.with_version(self.0.version(index));
        Ok(record.with_stored("image", Extent::whole(key), Encoding::Bytes))
    }

    fn content_hash(&self) -> Option<u64> {
        self.0.content_hash()
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        Some(item.key.display_name())
    }
}
