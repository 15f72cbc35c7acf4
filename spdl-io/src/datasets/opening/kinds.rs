//! Opens each kind of data set from the keys of its files.

use std::sync::Arc;

use spdl_core::{Dataset, Error, ErrorKind, Result};

use super::coco::has_image_folder;
use super::folder::FolderRecords;
use super::labels::Unlabeled;
use super::order::{GroupWindow, ReadOrder};
use super::{DatasetKind, OpenLocation, OpenOptions, OpenedDataset};
use crate::datasets::file_list::{
    FileLists, JsonLines, LABEL_COLUMNS, RowStores, folder_of_image_set, is_compressed,
    is_json_lines, is_validation_labels,
};
use crate::datasets::lmdb::PATTERNS as LMDB_NAMES;
use crate::datasets::mds::shard::ShardIndex;
use crate::datasets::patterns::{FilePatterns, local_keys, stored_keys};
use crate::datasets::{
    FileList, FileListOptions, ImageFolder, LitDataset, LmdbDataset, LmdbOptions, MdsDataset,
    MdsOptions, RecordIoDataset, RecordIoOptions, TfRecordDataset, TfRecordOptions, WebDataset,
    WebDatasetOptions,
};
#[cfg(feature = "parquet")]
use crate::datasets::{ParquetDataset, ParquetOptions};
use crate::fetch::{Fetch, Fetcher, Key};
use crate::layers::{PartFetcher, PinnedVersions};
use crate::records::StoredRecord;
use crate::stores::StoreRegistry;

/// Patterns for file names that the caller lists. Index files are not matched.
const NAMES: FilePatterns<'static> = FilePatterns { in_folder: "*", index_suffix: Some(".idx") };

/// The folder of a file, with a slash at the end, or empty.
pub(super) fn folder_of(file: &Key) -> Key {
    let bytes = file.as_bytes();
    let end = bytes.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    Key::from_bytes(&bytes[..end])
}

/// The part of a name after the last dot; the wildcard `*` for a name without one.
fn extension(file: &Key) -> String {
    let path = file.to_path();
    path.extension().map_or_else(|| "*".into(), |it| it.to_string_lossy().into_owned())
}

/// Opens data sets of one store.
pub(super) struct Opener<'a> {
    pub(super) fetcher: &'a Arc<dyn Fetcher>,
    /// Reads shards in parts, if the options request that.
    pub(super) parts: Option<PartFetcher>,
    pub(super) versions: PinnedVersions,
    pub(super) is_local: bool,
    /// The address of the store; `None` for local files.
    pub(super) store: Option<&'a str>,
    /// All stores, for file lists with rows in other stores.
    pub(super) stores: &'a StoreRegistry,
    pub(super) options: &'a OpenOptions,
}

impl Opener<'_> {
    pub(super) fn dataset(
        &self,
        kind: DatasetKind,
        samples: impl Dataset<Item = StoredRecord>,
        shard_lens: Vec<u64>,
    ) -> OpenedDataset {
        let order = match kind {
            DatasetKind::Parquet | DatasetKind::JsonLines if !shard_lens.is_empty() => {
                ReadOrder::of_groups(shard_lens.clone())
            }
            _ => ReadOrder::Any,
        };
        OpenedDataset {
            kind,
            samples: Arc::new(samples),
            fetcher: Arc::clone(self.fetcher),
            versions: self.versions.clone(),
            max_file_bytes: Fetch::DEFAULT_MAX_BYTES,
            is_local: self.is_local,
            classes: Vec::new(),
            shard_lens,
            truncated_shards: 0,
            missing_samples: 0,
            warnings: Vec::new(),
            store: None,
            options: self.options.clone(),
            path_column: None,
            own_labels: Vec::new(),
            has_named_columns: false,
            box_fields: &[],
            unlabeled: None,
            #[cfg(feature = "cache")]
            cache: None,
            parts: Arc::default(),
            order,
            part_bytes: None,
            renumbered: None,
        }
    }

    /// Opens locations of the same kind in the same store. `locations` is not empty.
    pub(super) async fn open_locations(
        &self,
        kind: Option<DatasetKind>,
        locations: &[OpenLocation],
    ) -> Result<OpenedDataset> {
        let has_images = |location: &OpenLocation| has_image_folder(&location.key);
        if kind != Some(DatasetKind::FileList) || !locations.iter().all(has_images) {
            self.options.check_no_images()?;
        }
        let is_values = !self.options.value_fields.is_empty()
            && locations.iter().all(|location| is_json_lines(&location.key));
        let kind = if is_values { Some(DatasetKind::JsonLines) } else { kind };
        match kind {
            Some(
                kind @ (DatasetKind::JsonLines
                | DatasetKind::TarShards
                | DatasetKind::ZipShards
                | DatasetKind::Parquet
                | DatasetKind::TfRecord
                | DatasetKind::RecordIo
                | DatasetKind::Lmdb),
            ) => {
                let keys = self.keys_of(kind, locations).await?;
                match self.open_files(kind, keys.clone()).await {
                    Err(error) => Err(self.count_missing(error, &keys).await),
                    opened => opened,
                }
            }
            Some(DatasetKind::FileList) if locations.iter().all(|it| is_text_list(&it.key)) => {
                let keys = self.keys_of(DatasetKind::FileList, locations).await?;
                self.open_file_lists(&keys).await
            }
            None if locations.iter().all(|location| self.is_pattern(&location.key)) => {
                self.open_matches(locations).await
            }
            _ if locations.len() > 1 => {
                let message =
                    "cannot open several folders or files of annotations together; specify one";
                Err(Error::new(ErrorKind::InvalidArgument, message)
                    .with_key(locations[1].key.display_name()))
            }
            Some(DatasetKind::FileList) => {
                self.open_file_lists(std::slice::from_ref(&locations[0].key)).await
            }
            Some(DatasetKind::Mds) => self.open_index(&folder_of(&locations[0].key)).await,
            _ => match self.open_folder(&locations[0].key).await {
                Err(error) => Err(self.suggest_folders(error, &locations[0].key).await),
                opened => opened,
            },
        }
    }

    /// Whether the name of a file has wildcards.
    fn is_pattern(&self, key: &Key) -> bool {
        let name = key.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        // In the address of a store, a question mark starts the query.
        let is_wildcard = |byte: &u8| *byte == b'*' || (*byte == b'?' && self.is_local);
        name.iter().any(is_wildcard) && !(self.is_local && key.to_path().exists())
    }

    /// Opens the files that patterns match, one sample each.
    async fn open_matches(&self, locations: &[OpenLocation]) -> Result<OpenedDataset> {
        let known = self.options.image_extensions();
        let mut files = Vec::new();
        for location in locations {
            let pattern = std::slice::from_ref(location);
            let mut found = self.keys_of(DatasetKind::ImageFolder, pattern).await?;
            // A pattern with an extension selects files of any type.
            if extension(&location.key).chars().any(|letter| "*?{}".contains(letter)) {
                found.retain(|key| {
                    known.iter().any(|wanted| wanted.eq_ignore_ascii_case(&extension(key)))
                });
            }
            if found.is_empty() {
                let message =
                    format!("no file that matches this pattern ends in {}", known.join(", "));
                let error = Error::new(ErrorKind::NotFound, message);
                return Err(error.with_key(location.key.display_name()));
            }
            files.extend(found);
        }
        let files = ImageFolder::from_paths(files.iter().map(Key::to_path), None)?;
        let samples = FolderRecords::new(files, self.options);
        Ok(self.dataset(DatasetKind::FileList, samples, Vec::new()))
    }

    /// The files that names and patterns match. A local list whose name exists is no pattern.
    async fn keys_of(&self, kind: DatasetKind, locations: &[OpenLocation]) -> Result<Vec<Key>> {
        let names = if kind == DatasetKind::Lmdb { &LMDB_NAMES } else { &NAMES };
        let is_list = kind == DatasetKind::FileList;
        let mut keys = Vec::new();
        for location in locations {
            let key = &location.key;
            let found = match key.as_str() {
                Some(_) if is_list && self.is_local && key.to_path().exists() => vec![key.clone()],
                Some(pattern) if self.is_local => local_keys(pattern, names)?,
                Some(pattern) => stored_keys(&**self.fetcher, pattern, names).await?,
                None => vec![key.clone()],
            };
            keys.extend(found);
        }
        // A wildcard may match the file for locks of LMDB.
        keys.retain(|key| !key.as_bytes().ends_with(b"lock.mdb"));
        Ok(keys)
    }

    pub(super) async fn open_files(
        &self,
        kind: DatasetKind,
        keys: Vec<Key>,
    ) -> Result<OpenedDataset> {
        let fetcher = self.fetcher;
        match kind {
            DatasetKind::TfRecord => {
                let options = TfRecordOptions::default();
                let samples = TfRecordDataset::fetch_files(fetcher, keys, &options).await?;
                let lens = samples.shard_lens();
                Ok(self.dataset(kind, samples, lens))
            }
            DatasetKind::RecordIo => {
                let options = RecordIoOptions::default();
                let samples = RecordIoDataset::fetch_files(fetcher, keys, &options).await?;
                let lens = samples.shard_lens();
                Ok(self.dataset(kind, samples, lens))
            }
            DatasetKind::Lmdb => {
                let options = LmdbOptions::default();
                let samples = LmdbDataset::fetch_files(fetcher, keys, &options).await?;
                let lens = samples.shard_lens();
                Ok(self.dataset(kind, samples, lens))
            }
            DatasetKind::Parquet => self.open_parquet(keys).await,
            DatasetKind::ZipShards => {
                let options = WebDatasetOptions::default();
                let samples = WebDataset::fetch_files(self.fetcher, keys, &options).await?;
                self.archive_dataset(kind, samples)
            }
            DatasetKind::JsonLines => {
                let mut fields = self.options.value_fields.clone();
                fields.extend(self.options.label_field.iter().map(|name| vec![name.clone()]));
                let samples = JsonLines::fetch(fetcher, keys, &fields).await?;
                // Rows of compressed files are read together.
                let lens = if samples.is_compressed() { samples.shard_lens() } else { Vec::new() };
                Ok(self.dataset(kind, samples, lens))
            }
            _ => self.archive_dataset(kind, self.open_tar(keys).await?),
        }
    }

    pub(super) async fn open_tar(&self, keys: Vec<Key>) -> Result<WebDataset> {
        let options = WebDatasetOptions::default();
        if self.is_local {
            // The index is read without the fetcher, so the versions are pinned before.
            for key in &keys {
                self.versions.pin(&**self.fetcher, key).await?;
            }
        }
        if let Some(parts) = self.parts_of(&keys) {
            // Otherwise, the server may send each shard in vain.
            if let Some(first) = keys.first() {
                parts.probe(first).await;
            }
            let fetcher: Arc<dyn Fetcher> = Arc::new(parts.exact());
            let options = options.accept_compressed();
            return WebDataset::fetch_files(&fetcher, keys, &options).await;
        }
        match self.is_local {
            // Saves the indexes next to local archives.
            true => WebDataset::open_files(keys.iter().map(|key| key.to_path()), &options),
            false => WebDataset::fetch_files(self.fetcher, keys, &options).await,
        }
    }

    /// The fetcher that reads these shards in parts. Uncompressed local shards are read as they are.
    fn parts_of<'k>(&self, shards: impl IntoIterator<Item = &'k Key>) -> Option<&PartFetcher> {
        let parts = self.parts.as_ref()?;
        (!self.is_local || shards.into_iter().any(|key| parts.is_packed(key))).then_some(parts)
    }

    pub(super) fn archive_dataset(
        &self,
        kind: DatasetKind,
        samples: WebDataset,
    ) -> Result<OpenedDataset> {
        let (mut order, mut part_bytes, mut fetcher) = (None, None, None);
        if let (Some(max_bytes), DatasetKind::TarShards) = (self.options.sequential, kind) {
            let (lens, window) = (samples.shard_lens(), samples.sequential_window(max_bytes)?);
            order = Some(ReadOrder::Groups {
                lens: lens.into(),
                window: GroupWindow::OfMemory(window),
            });
            if let Some(parts) = self.parts_of(samples.shards()) {
                samples.check_memory(parts, window, max_bytes)?;
                part_bytes = Some(max_bytes);
                fetcher = Some(Arc::new(parts.clone()) as Arc<dyn Fetcher>);
            }
        }
        let (lens, warnings) = (samples.shard_lens(), warnings(&samples));
        let (truncated_shards, classes) = (samples.truncated_shards(), samples.classes());
        let samples = Arc::new(samples);
        let opened = self.dataset(kind, Arc::clone(&samples), lens);
        // If folders are classes, all samples have a label.
        let count = || Unlabeled::in_archives(&samples, &opened.fetch_labeled());
        let unlabeled = if classes.is_empty() { count() } else { None };
        let order = order.unwrap_or_else(|| opened.order.clone());
        let fetcher = fetcher.unwrap_or_else(|| Arc::clone(&opened.fetcher));
        Ok(OpenedDataset {
            classes,
            warnings,
            truncated_shards,
            unlabeled,
            order,
            part_bytes,
            fetcher,
            ..opened
        })
    }

    #[cfg(feature = "parquet")]
    async fn open_parquet(&self, keys: Vec<Key>) -> Result<OpenedDataset> {
        let options = ParquetOptions::default();
        let samples = ParquetDataset::fetch_files(self.fetcher, keys, &options).await?;
        let lens = samples.shard_lens();
        self.dataset(DatasetKind::Parquet, samples, lens).name_default_classes().await
    }

    #[cfg(not(feature = "parquet"))]
    #[expect(clippy::unused_async, reason = "the same call with and without the feature")]
    async fn open_parquet(&self, keys: Vec<Key>) -> Result<OpenedDataset> {
        let message = "cannot read Parquet files: this build lacks the feature `parquet`";
        let error = Error::new(ErrorKind::Unsupported, message);
        Err(match keys.first() {
            Some(key) => error.with_key(key.display_name()),
            None => error,
        })
    }

    async fn open_list(&self, key: &Key) -> Result<FileList> {
        if is_compressed(key) {
            let message = "a list of files must not be compressed; decompress the list";
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.with_key(key.display_name()));
        }
        let mut options = FileListOptions::default()
            .file_columns(self.options.file_fields.iter().cloned())
            .other_path_columns(self.options.path_fields.iter().cloned())
            .value_columns(self.options.value_fields.iter().flatten().cloned());
        if let Some(name) = &self.options.image_field {
            options = options.image_field(name);
        }
        if let Some(name) = &self.options.label_field {
            options = options.label_field(name);
        }
        match () {
            () if is_json(key) => self.coco_list(key).await,
            () if is_validation_labels(key) => self.imagenet_list(key).await,
            () if folder_of_image_set(key).is_some() => {
                FileList::fetch_voc(self.fetcher, key.clone()).await
            }
            () => FileList::fetch(self.fetcher, key.clone(), &options).await,
        }
    }

    /// Opens lists of files, one after the other. `keys` is not empty.
    async fn open_file_lists(&self, keys: &[Key]) -> Result<OpenedDataset> {
        let (mut lists, mut has_other_stores) = (Vec::new(), false);
        for key in keys {
            // Only rows in the store of the list are read with the credentials of that store.
            let (list, is_elsewhere) =
                self.open_list(key).await?.in_stores(self.store, self.stores)?;
            lists.push(list);
            has_other_stores |= is_elsewhere;
        }
        let list = FileLists::new(lists)?;
        let warnings = list.failures().cloned().collect();
        if self.is_local
            && !has_other_stores
            && let Some(folder) = list.first_path(super::missing::is_folder)
        {
            return Err(super::missing::folder_in_list(&folder));
        }
        let classes = list.classes().to_vec();
        let (has_named_columns, unlabeled) = (list.has_named_columns(), Unlabeled::in_lists(&list));
        let mut own_labels = LABEL_COLUMNS.to_vec();
        own_labels.retain(|name| list.has_label_column(name));
        let box_fields = list.box_fields();
        let path_column = self.options.image_field.clone().filter(|_| has_named_columns);
        let opened = self.dataset(DatasetKind::FileList, list, Vec::new());
        let opened = OpenedDataset {
            classes,
            warnings,
            path_column,
            own_labels,
            has_named_columns,
            box_fields,
            unlabeled,
            ..opened
        };
        if !has_other_stores {
            return Ok(opened);
        }
        let (own, store) = (Arc::clone(self.fetcher), self.store.map(Into::into));
        let fetcher = Arc::new(RowStores::new(own, store, self.stores.clone()));
        Ok(OpenedDataset { fetcher, is_local: false, ..opened })
    }

    /// Opens a folder with `index.json`: MDS shards, or chunks of LitData.
    pub(super) async fn open_index(&self, folder: &Key) -> Result<OpenedDataset> {
        let index = ShardIndex::read(self.fetcher, folder).await?;
        let options = MdsOptions::default();
        if LitDataset::is_index(&index) {
            let samples = LitDataset::of_index(&index, &options)?;
            let lens = samples.shard_lens();
            return Ok(self.dataset(DatasetKind::LitData, samples, lens));
        }
        let samples = MdsDataset::of_index(&index, &options)?;
        let lens = samples.shard_lens();
        Ok(self.dataset(DatasetKind::Mds, samples, lens))
    }
}

/// Whether a list has rows of paths, labels and values, and may be read together with others.
fn is_text_list(key: &Key) -> bool {
    !is_json(key) && !is_validation_labels(key) && folder_of_image_set(key).is_none()
}

pub(super) fn is_json(key: &Key) -> bool {
    key.as_bytes().to_ascii_lowercase().ends_with(b".json")
}

/// The errors of bad samples, as warnings before the samples are read.
fn warnings(samples: &WebDataset) -> Vec<Error> {
    samples.failures().cloned().collect()
}
