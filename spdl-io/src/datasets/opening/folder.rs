//! Detects what a folder holds.

use std::sync::Arc;

use futures_util::StreamExt;
use spdl_core::{Dataset, Error, ErrorKind, Labeled, Result};

use super::kinds::Opener;
use super::{DatasetKind, OpenOptions, OpenedDataset, kind_of_name};
use crate::datasets::ImageFolder;
use crate::datasets::file_list::VALIDATION_IMAGE;
use crate::fetch::{Key, ObjectMeta, quoted};
use crate::records::{
    ARRAY_EXTENSIONS, AUDIO_EXTENSIONS, Encoding, Extent, StoredRecord, VIDEO_EXTENSIONS,
};
use crate::shards::{JOURNAL, MANIFEST, Manifest, ShardRecord};

/// The maximum number of objects that are listed to detect the kind of a stored folder.
const MAX_LISTED: usize = 1000;

impl Opener<'_> {
    /// Opens a folder. The file names in it determine the kind.
    pub(super) async fn open_folder(&self, folder: &Key) -> Result<OpenedDataset> {
        let names = match self.is_local {
            true => local_names(folder)?,
            false => self.stored_names(folder).await?,
        };
        let with_slash = match folder.as_bytes() {
            [] | [.., b'/'] => folder.clone(),
            bytes => Key::from_bytes(&[bytes, b"/"].concat()),
        };
        let inside =
            |name: &Key| Key::from_bytes(&[with_slash.as_bytes(), name.as_bytes()].concat());
        let holds = |wanted: &str| names.iter().any(|name| name.as_str() == Some(wanted));
        if holds(JOURNAL) {
            let message = "the packed set is incomplete; run the same `spdl pack` command again to \
                complete it";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            return Err(error.with_key(folder.display_name()));
        }
        let has_tar = names.iter().any(|name| kind_of_name(name) == Some(DatasetKind::TarShards));
        if holds(MANIFEST) && has_tar {
            return self.open_packed(&inside(&MANIFEST.into()), inside, holds).await;
        }
        if holds("index.json") {
            return self.open_index(&with_slash).await;
        }
        if holds("data.mdb") {
            return self.open_files(DatasetKind::Lmdb, vec![inside(&"data.mdb".into())]).await;
        }
        const KINDS: [DatasetKind; 5] = [
            DatasetKind::TarShards,
            DatasetKind::Parquet,
            DatasetKind::TfRecord,
            DatasetKind::RecordIo,
            DatasetKind::Lmdb,
        ];
        // Next to folders of classes, a zip archive is often the download that they were extracted from.
        let has_folders = names.iter().any(|name| name.as_bytes().ends_with(b"/"));
        for kind in KINDS.into_iter().chain((!has_folders).then_some(DatasetKind::ZipShards)) {
            let has_kind = |name: &&Key| kind_of_name(name) == Some(kind);
            let mut keys: Vec<Key> = names.iter().filter(has_kind).map(inside).collect();
            if !keys.is_empty() {
                keys.sort();
                return self.open_files(kind, keys).await;
            }
        }
        if holds("Annotations/") {
            self.check_no_image_sets(&with_slash).await?;
        }
        let extensions = self.options.image_extensions();
        let images = match self.is_local {
            true => ImageFolder::with_extensions(folder.to_path(), &extensions)?,
            false => {
                let (fetcher, root) = (self.fetcher, folder.clone());
                ImageFolder::fetch_from(self.store, fetcher, root, &extensions).await?
            }
        };
        let (classes, mut warnings) = (images.classes().to_vec(), images.warnings().to_vec());
        warnings.extend(without_imagenet_labels(&images));
        let opened = self.dataset(
            DatasetKind::ImageFolder,
            FolderRecords::new(images, self.options),
            Vec::new(),
        );
        Ok(OpenedDataset { classes, warnings, ..opened })
    }

    /// Opens a set that `spdl pack` wrote. Its manifest lists the shards and classes.
    async fn open_packed(
        &self,
        manifest: &Key,
        inside: impl Fn(&Key) -> Key,
        holds: impl Fn(&str) -> bool,
    ) -> Result<OpenedDataset> {
        let text = self.fetcher.read_whole(manifest, &Manifest::MAX_BYTES).await?;
        let manifest =
            Manifest::parse(&text).map_err(|error| error.with_key(manifest.display_name()))?;
        let key = |shard: &ShardRecord| inside(&shard.name.as_str().into());
        let is_there = |shard: &&ShardRecord| !self.options.accepts_damage || holds(&shard.name);
        let (shards, missing): (Vec<_>, Vec<_>) = manifest.shards.iter().partition(is_there);
        let mut damage: Vec<Error> = missing
            .iter()
            .map(|shard| {
                let error = Error::new(ErrorKind::NotFound, "a shard of this data set is missing");
                error.with_key(key(shard).display_name())
            })
            .collect();
        let mut missing_samples = missing.iter().map(|shard| shard.samples).sum::<u64>();
        let samples = self.open_tar(shards.iter().map(|shard| key(shard)).collect()).await?;
        for ((shard, found), len) in
            shards.iter().zip(samples.shard_bytes()).zip(samples.shard_lens())
        {
            missing_samples += shard.samples.saturating_sub(len);
            if found != shard.bytes {
                let folder = inside(&"".into()).to_string();
                let folder = quoted(&super::address_in(self.store, &folder));
                let message = format!(
                    "shard has {found} bytes, but should have {} (from {MANIFEST}); run \
                     `spdl verify {folder}` for details",
                    shard.bytes
                );
                let error = Error::new(ErrorKind::Corrupt, message);
                let error = error.with_key(key(shard).display_name());
                if !self.options.accepts_damage {
                    return Err(error);
                }
                damage.push(error);
            }
        }
        let mut opened = self.archive_dataset(DatasetKind::TarShards, samples)?;
        opened.warnings.append(&mut damage);
        if !manifest.classes().is_empty() {
            opened.classes = manifest.classes().to_vec();
        }
        Ok(OpenedDataset { missing_samples, ..opened })
    }

    /// # Errors
    /// `InvalidArgument` if the folder contains image sets of Pascal VOC. The message lists them.
    async fn check_no_image_sets(&self, folder: &Key) -> Result<()> {
        let sets = Key::from_bytes(&[folder.as_bytes(), b"ImageSets/"].concat());
        let Ok(listing) = self.fetcher.list(&sets).await else { return Ok(()) };
        let listed: Vec<_> = listing.take(MAX_LISTED).collect().await;
        let below = |object: ObjectMeta| {
            let name = object.key.as_str()?.strip_prefix(folder.as_str()?)?.to_owned();
            // `Main/cat_train.txt` is the set of a class.
            let is_of_class = name.rsplit('/').next()?.contains('_');
            (name.ends_with(".txt") && !is_of_class).then_some(name)
        };
        let mut found: Vec<_> = listed.into_iter().flatten().filter_map(below).collect();
        found.sort();
        let of_main = found.iter().find(|name| name.starts_with("ImageSets/Main/"));
        let Some(first) = of_main.or(found.first()) else { return Ok(()) };
        let address = |name: &str| super::address_in(self.store, &format!("{folder}{name}"));
        let message = format!(
            "the folder is a data set in the format of Pascal VOC; open one of its image sets, such as {}; found {}",
            quoted(&address(first)),
            found.join(", ")
        );
        Err(Error::new(ErrorKind::InvalidArgument, message).with_key(folder.display_name()))
    }

    /// The names directly in a stored folder, from the first objects of the listing. Names of folders end with a
    /// slash.
    async fn stored_names(&self, folder: &Key) -> Result<Vec<Key>> {
        if !self.fetcher.capability().list {
            let message = "cannot list the folder: its server does not support listing; name the \
                files (`https://host/shard-{0000..0007}.tar`), or open a file list";
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.with_key(folder.display_name()));
        }
        let mut names = Vec::new();
        let mut listing = self.fetcher.list(folder).await?;
        let mut count = 0;
        while let Some(object) = listing.next().await {
            let key = object?.key;
            let below = key.as_bytes().strip_prefix(folder.as_bytes()).unwrap_or(key.as_bytes());
            let below = below.strip_prefix(b"/").unwrap_or(below);
            let slash = below.iter().position(|&byte| byte == b'/');
            let name = Key::from_bytes(&below[..slash.map_or(below.len(), |slash| slash + 1)]);
            let is_inside = slash.is_none();
            if is_inside || names.last() != Some(&name) {
                names.push(name);
            }
            count += 1;
            // A folder that holds only files of a data set is listed completely.
            if count >= MAX_LISTED && (!is_inside || kind_of_name(&key).is_none()) {
                break;
            }
        }
        match count {
            0 => Err(Error::new(ErrorKind::NotFound, "folder is empty or does not exist")
                .with_key(folder.display_name())),
            _ => Ok(names),
        }
    }
}

/// The warning for a folder of ImageNet's validation images without classes.
fn without_imagenet_labels(images: &ImageFolder) -> Option<Error> {
    let first = images.item(0).ok()?.value;
    let name = first.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if !images.classes().is_empty() || !name.starts_with(VALIDATION_IMAGE.as_bytes()) {
        return None;
    }
    let message = "the validation images of ImageNet are without labels here, so all labels are -1: open \
                   `LOC_val_solution.csv` of Kaggle or `imagenet_2012_validation_synset_labels.txt` instead of \
                   their folder, or move each image to the folder of its class";
    Some(Error::new(ErrorKind::NotFound, message).with_key(first.display_name()))
}

/// The names of the files directly in a local folder, and of its folders, which end with a slash.
pub(super) fn local_names(folder: &Key) -> Result<Vec<Key>> {
    let failed = |error: std::io::Error| {
        let message = match error.kind() {
            std::io::ErrorKind::NotFound => "file or folder does not exist",
            std::io::ErrorKind::NotADirectory => {
                "not a folder, and the file extension is unknown; expected .tar, .zip, .parquet, \
                 .tfrecord, .rec, .mdb, .lmdb, .txt, .csv, .jsonl or .json"
            }
            _ => "cannot list the folder",
        };
        crate::files::os_error(message, folder, error)
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder.to_path()).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // A link may point to a file.
        let name = Key::from_path(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                names.push(Key::from_bytes(&[name.as_bytes(), b"/"].concat()));
            }
            Ok(_) => names.push(name),
            Err(_) => {}
        }
    }
    Ok(names)
}

/// The files of an [`ImageFolder`] as records with one field: `audio`, `video` or `array` by the extension; else `image`,
/// or `array` if the files are arrays.
#[derive(Debug)]
pub(super) struct FolderRecords {
    files: ImageFolder,
    /// Whether files with unknown extensions are arrays instead of images.
    are_arrays: bool,
}

impl FolderRecords {
    pub(super) fn new(files: ImageFolder, options: &OpenOptions) -> Self {
        FolderRecords { files, are_arrays: options.image_extensions() == ARRAY_EXTENSIONS }
    }

    fn field_of(&self, key: &Key) -> &'static str {
        let extension = key.as_bytes().rsplit(|byte| *byte == b'.').next().unwrap_or_default();
        let is_of =
            |all: &[&str]| all.iter().any(|it| extension.eq_ignore_ascii_case(it.as_bytes()));
        match () {
            () if is_of(&AUDIO_EXTENSIONS) => "audio",
            () if is_of(&VIDEO_EXTENSIONS) => "video",
            () if self.are_arrays || is_of(&ARRAY_EXTENSIONS) => "array",
            () => "image",
        }
    }
}

impl Dataset for FolderRecords {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.files.len()
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let Labeled { value: key, label } = self.files.item(index)?;
        let record = StoredRecord::new(key.clone()).with_label(label);
        let field = self.field_of(&key);
        let (version, extent) = match self.files.listed(index, &key) {
            None => (None, Extent::whole(key)),
            Some(listed) => (Some(listed.version_hash()), Extent::listed(listed)),
        };
        Ok(record.with_version(version).with_stored(field, extent, Encoding::Bytes))
    }

    fn content_hash(&self) -> Option<u64> {
        self.files.content_hash()
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        Some(item.key.display_name())
    }
}
