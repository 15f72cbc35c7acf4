//! What a folder holds, and its images where that is what it holds.

use std::sync::Arc;

use futures_util::StreamExt;
use spdl_core::{Dataset, Error, ErrorKind, Labeled, Result};

use super::kinds::Opener;
use super::{DatasetKind, OpenedDataset, kind_of_name};
use crate::datasets::ImageFolder;
use crate::fetch::{Key, quoted};
use crate::records::{Encoding, Extent, StoredRecord};
use crate::shards::{JOURNAL, MANIFEST, Manifest, ShardRecord};

/// So many objects of a folder in a store are looked at to see what it holds.
const LOOKED_AT: usize = 1000;

impl Opener<'_> {
    /// What a folder holds is told by the names in it.
    pub(super) async fn folder(&self, folder: &Key) -> Result<OpenedDataset> {
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
            return self.packed(&inside(&MANIFEST.into()), inside, holds).await;
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
        let extensions = self.options.image_extensions();
        let images = match self.is_local {
            true => ImageFolder::with_extensions(folder.to_path(), &extensions)?,
            false => {
                let (fetcher, root) = (self.fetcher, folder.clone());
                ImageFolder::fetch_from(self.store, fetcher, root, &extensions).await?
            }
        };
        let (classes, warnings) = (images.classes().to_vec(), images.warnings().to_vec());
        let opened = self.opened(DatasetKind::ImageFolder, FolderRecords(images), Vec::new());
        Ok(OpenedDataset { classes, warnings, ..opened })
    }

    /// A set that was packed, whose manifest says which shards there are, and the classes.
    async fn packed(
        &self,
        manifest: &Key,
        inside: impl Fn(&Key) -> Key,
        holds: impl Fn(&str) -> bool,
    ) -> Result<OpenedDataset> {
        let text = self.fetcher.read_at_most(manifest, Manifest::MAX_BYTES).await?;
        let manifest =
            Manifest::parse(&text).map_err(|error| error.with_key(manifest.display_name()))?;
        let key = |shard: &ShardRecord| inside(&shard.name.as_str().into());
        let is_there = |shard: &&ShardRecord| !self.options.accepts_damage || holds(&shard.name);
        let (shards, missing): (Vec<_>, Vec<_>) = manifest.shards.iter().partition(is_there);
        let mut damage: Vec<Error> = missing
            .iter()
            .map(|shard| {
                let error = Error::new(ErrorKind::NotFound, "a shard of this set is missing");
                error.with_key(key(shard).display_name())
            })
            .collect();
        let mut missing_samples = missing.iter().map(|shard| shard.samples).sum::<u64>();
        let samples = self.tar(shards.iter().map(|shard| key(shard)).collect()).await?;
        for ((shard, found), len) in
            shards.iter().zip(samples.shard_bytes()).zip(samples.shard_lens())
        {
            missing_samples += shard.samples.saturating_sub(len);
            if found != shard.bytes {
                let folder = inside(&"".into()).to_string();
                let folder = quoted(&super::address_in(self.store, &folder));
                let message = format!(
                    "this shard has {found} bytes, and {} by {MANIFEST}; `spdl verify {folder}` tells \
                     more",
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
        let mut opened = self.opened_tar(samples);
        opened.warnings.append(&mut damage);
        if !manifest.classes().is_empty() {
            opened.classes = manifest.classes().to_vec();
        }
        Ok(OpenedDataset { missing_samples, ..opened })
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
pub(super) fn local_names(folder: &Key) -> Result<Vec<Key>> {
    let failed = |error: std::io::Error| {
        let message = match error.kind() {
            std::io::ErrorKind::NotFound => "there is no such file or folder",
            std::io::ErrorKind::NotADirectory => {
                "this is a file, and its name does not say what it holds: .tar, .parquet, \
                 .tfrecord, .txt, .csv and .jsonl are known"
            }
            _ => "cannot list this folder",
        };
        crate::files::os_error(message, folder, error)
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

/// The images of a folder as samples of one field.
#[derive(Debug)]
pub(super) struct FolderRecords(pub(super) ImageFolder);

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
