//! Shards of tar archives, as the Python library `webdataset` writes them.

mod folders;
mod grouping;
mod shards;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spdl_core::{Dataset, Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

use self::folders::{ClassFolders, is_image};
use self::grouping::{SampleMember, TarShard};
use super::patterns::{self, FilePatterns};
use crate::archive::TarOptions;
use crate::fetch::{Fetcher, Key};
use crate::records::{Encoding, Extent, FetchLabeled, StoredField, StoredRecord};

/// What shards are called, and the indices beside them.
const NAMES: FilePatterns<'static> =
    FilePatterns { in_folder: "*.tar", index_suffix: Some(".idx") };

/// The samples of tar archives, each of the members that follow each other and share a name.
///
/// ```text
/// shard-000000.tar:  0001.jpg 0001.cls 0002.jpg 0002.seg.png 0002.cls …
/// samples:           0001: jpg, cls    0002: jpg, seg.png, cls       …
/// ```
///
/// - A sample's name is the path of its members up to the first dot behind the last slash; all behind
///   that dot is the name of a field, in lower case. Members of one sample lie behind each other:
///   where a name comes again later, it is another sample.
/// - Left out are folders, links by name, hidden files, names without an extension, and what stands at
///   the top of the archive under `__NAME__`.
/// - A name twice in a sample is `Corrupt`; a member that cannot be read (sparse, say) fails its
///   sample. Such a sample has its place in the data set, and [`item`](Dataset::item) is its error: the
///   pipeline's policy says whether that ends the run.
/// - Where the headers of a shard are damaged, or it ends early, its samples before that are there; the
///   last one, which may lack members, is the error. It stands for all that lies behind, however many
///   that are: [`cut_shards`](WebDataset::cut_shards) counts such shards.
/// - The key of a sample is `SHARD:NAME`, where a name has its folders. Its label is in a field (`cls`),
///   which [`FetchLabeled`](crate::FetchLabeled) reads: a whole number, or the name of a class where the
///   classes are told ([`with_classes`](crate::FetchLabeled::with_classes)). An index does not know them.
/// - Where samples are images alone, and all lie in folders, the folders directly below the one that all
///   lie in are the classes ([`classes`](WebDataset::classes)), as for
///   [`ImageFolder`](crate::ImageFolder): `train/cat/1.jpg` and `train/dog/1.jpg` are of the classes `cat`
///   and `dog`. There are none where an image has another field beside it, or lies beside the folders, and
///   where all folders are called `train`, `val` and so on, or are hexadecimal numbers of one length, of two
///   digits at least (`00`, `3f`), over which hashes spread files. All else is taken for classes.
///
/// | fields | are |
/// |---|---|
/// | `txt`, `text`, `transcript` | text in UTF-8 |
/// | `cls`, `cls2`, `index`, `inx`, `id` | a whole number |
/// | `json`, `jsn` | JSON |
/// | `npy` | an array |
/// | `pyd`, `pkl`, `pickle`, `pth`, `pt` | refused where they are asked for: reading them runs code |
/// | all others: `jpg`, `png`, `mp4`, `flac`, … | bytes |
///
/// What counts is the part behind the last dot; [`WebDatasetOptions::encoding`] says otherwise.
///
/// Only the headers of a shard are read, once: the index is kept beside archives of this machine
/// ([`TarIndex`](crate::archive::TarIndex)), and looked for there in a store. In memory a sample takes
/// 8 bytes, its name, and 24 for each field.
///
/// Compressed archives are `Unsupported`: their members have no place of their own.
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::source::sampler::ShardWindow;
/// use spdl_core::{Dataset, DatasetSource, PipelineBuilder};
/// use spdl_io::datasets::WebDataset;
/// use spdl_io::{FetchRecord, LocalFetcher};
/// # let folder = tempfile::tempdir()?;
/// # let mut tar = tar::Builder::new(std::fs::File::create(folder.path().join("shard-000000.tar"))?);
/// # for (name, data) in [("0001.jpg", "not really"), ("0001.cls", "7")] {
/// #     let mut header = tar::Header::new_ustar();
/// #     header.set_size(data.len() as u64);
/// #     tar.append_data(&mut header, name, data.as_bytes())?;
/// # }
/// # tar.into_inner()?;
/// # let pattern = format!("{}/shard-{{000000..000000}}.tar", folder.path().display());
/// let samples = WebDataset::open(&pattern)?; // "data/shard-{000000..000147}.tar"
/// // Shards in shuffled order, and samples within windows of 5,000.
/// let order = ShardWindow::new(samples.shard_lens(), 5_000, 42)?;
/// let fetch = FetchRecord::new(Arc::new(LocalFetcher::new())).with_fields(["jpg", "cls"]);
/// let pipeline = PipelineBuilder::new(DatasetSource::new(samples).sampler(order))
///     .async_stage("fetch", fetch)
///     .build()?;
/// for record in pipeline {
///     let record = record?;
///     println!("{}: class {:?}", record.key, record.get("cls")?.as_i64());
///     # assert_eq!(record.get("cls")?.as_i64(), Some(7));
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct WebDataset {
    shards: Vec<TarShard>,
    /// The number of each shard's first sample, and behind the last one that of all samples.
    firsts: Vec<u64>,
    /// The names of the fields, and how each is stored.
    fields: Vec<(Arc<str>, Encoding)>,
    /// Where labels are folders.
    folders: Option<ClassFolders>,
}

/// How a [`WebDataset`] is opened.
#[derive(Clone, Debug)]
pub struct WebDatasetOptions {
    tar: TarOptions,
    concurrency: usize,
    index_folder: Option<PathBuf>,
    encodings: Vec<(String, Encoding)>,
}

impl Default for WebDatasetOptions {
    /// 16 shards at once, the default limits of archives, and no folder for indices.
    fn default() -> Self {
        WebDatasetOptions {
            tar: TarOptions::default(),
            concurrency: 16,
            index_folder: None,
            encodings: Vec::new(),
        }
    }
}

impl WebDatasetOptions {
    /// What is allowed in an archive. Default: [`TarOptions::default`].
    #[must_use]
    pub fn tar_options(mut self, options: TarOptions) -> Self {
        self.tar = options;
        self
    }

    /// How many shards are opened at once; 0 counts as 1. Default: 16.
    #[must_use]
    pub fn concurrency(mut self, shards: usize) -> Self {
        self.concurrency = shards.max(1);
        self
    }

    /// A folder of this machine in which the indices of a store's shards are kept, so that their
    /// headers are read once and not in every run. Only for stores that know versions: an index is
    /// used as long as the shard's version is the same. Default: none.
    #[must_use]
    pub fn index_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.index_folder = Some(folder.into());
        self
    }

    /// How the field `extension` (as `cls` or `meta.json`, in lower case) is stored, instead of what its
    /// last part says.
    #[must_use]
    pub fn encoding(mut self, extension: impl Into<String>, encoding: Encoding) -> Self {
        self.encodings.push((extension.into(), encoding));
        self
    }

    fn encoding_of(&self, extension: &str) -> Encoding {
        let told = self.encodings.iter().rev().find(|(told, _)| told == extension);
        told.map_or_else(|| usual_encoding(extension), |(_, encoding)| *encoding)
    }
}

/// How `webdataset` stores a field of this name.
fn usual_encoding(extension: &str) -> Encoding {
    match extension.rsplit('.').next().unwrap_or_default() {
        "txt" | "text" | "transcript" => Encoding::Text,
        "cls" | "cls2" | "index" | "inx" | "id" => Encoding::Integer,
        "json" | "jsn" => Encoding::Json,
        "npy" => Encoding::Npy,
        "pyd" | "pkl" | "pickle" | "pth" | "pt" => Encoding::Pickle,
        _ => Encoding::Bytes,
    }
}

impl WebDataset {
    /// The shards of this machine that `pattern` means: braces as of
    /// [`expand_braces`](super::expand_braces); in the last part of the path also `*` for any letters
    /// and `?` for one, sorted by their bytes, without hidden files and the indices beside others; or a
    /// folder, for all its `*.tar`. Waits until all are opened: async code calls
    /// [`fetch`](WebDataset::fetch).
    ///
    /// # Errors
    /// `NotFound` where a shard is missing, or a folder holds none; as
    /// [`expand_braces`](super::expand_braces); `Unsupported` for compressed shards and for `pipe:`;
    /// `Io` and `PermissionDenied` of the operating system.
    pub fn open(pattern: &str) -> Result<Self> {
        WebDataset::open_with(pattern, &WebDatasetOptions::default())
    }

    /// The same with options of the caller's.
    ///
    /// # Errors
    /// As [`open`](WebDataset::open).
    pub fn open_with(pattern: &str, options: &WebDatasetOptions) -> Result<Self> {
        WebDataset::new(shards::open(&patterns::local_keys(pattern, &NAMES)?, options)?, options)
    }

    /// These shards of this machine, in this order.
    ///
    /// # Errors
    /// As [`open`](WebDataset::open); `InvalidArgument` where there are none.
    pub fn open_files<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        options: &WebDatasetOptions,
    ) -> Result<Self> {
        let keys: Vec<_> = paths.into_iter().map(Key::from_path).collect();
        WebDataset::new(shards::open(&keys, options)?, options)
    }

    /// The shards of a store that `pattern` means, as for [`open`](WebDataset::open); a folder ends with
    /// a slash here. It, `*` and `?` need a store that lists.
    ///
    /// The index beside a shard (`SHARD.tar.idx`) is taken where it agrees with the shard, by its size
    /// and the header of its last member; else the headers are read through the fetcher.
    ///
    /// # Errors
    /// As [`open`](WebDataset::open), and what the fetcher answers; `Unsupported` where it does not tell
    /// sizes or read ranges.
    pub async fn fetch(
        fetcher: &Arc<dyn Fetcher>,
        pattern: &str,
        options: &WebDatasetOptions,
    ) -> Result<Self> {
        let keys = patterns::stored_keys(&**fetcher, pattern, &NAMES).await?;
        WebDataset::fetch_files(fetcher, keys, options).await
    }

    /// These shards of a store, in this order.
    ///
    /// # Errors
    /// As [`fetch`](WebDataset::fetch); `InvalidArgument` where there are none.
    pub async fn fetch_files(
        fetcher: &Arc<dyn Fetcher>,
        keys: impl IntoIterator<Item = Key>,
        options: &WebDatasetOptions,
    ) -> Result<Self> {
        let keys = keys.into_iter().collect();
        WebDataset::new(shards::fetch(fetcher, keys, options).await?, options)
    }

    fn new(mut shards: Vec<TarShard>, options: &WebDatasetOptions) -> Result<Self> {
        if shards.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "the list of shards is empty"));
        }
        let mut fields = Vec::new();
        let mut numbers: HashMap<Arc<str>, u32> = HashMap::new();
        let mut firsts = vec![0];
        let mut samples = 0;
        for shard in &mut shards {
            let of_shard = std::mem::take(&mut shard.extensions);
            let of_shard: Vec<u32> = of_shard
                .into_iter()
                .map(|extension| {
                    *numbers.entry(extension).or_insert_with_key(|extension| {
                        fields.push((Arc::clone(extension), options.encoding_of(extension)));
                        fields.len() as u32 - 1
                    })
                })
                .collect();
            for member in shard.members_mut() {
                member.extension = of_shard[member.extension as usize];
            }
            samples += shard.len() as u64;
            firsts.push(samples);
        }
        let mut samples = WebDataset { shards, firsts, fields, folders: None };
        samples.folders = samples.class_folders();
        Ok(samples)
    }

    /// The folders that seem to be classes.
    fn class_folders(&self) -> Option<ClassFolders> {
        let are_images: Vec<bool> = self.fields.iter().map(|(name, _)| is_image(name)).collect();
        let samples = self.shards.iter().flat_map(|shard| {
            // One that cannot be read may lack members.
            let samples = (0..shard.len())
                .filter_map(|sample| Some((shard.name(sample)?, shard.members(sample).ok()?)));
            samples.map(|(name, members)| {
                let images = members.iter().filter(|it| are_images[it.extension as usize]).count();
                (name, images, members.len())
            })
        });
        let is_uncertain = |(_, images, fields): (_, usize, usize)| images > 0 && images < fields;
        if samples.clone().any(is_uncertain) {
            return None;
        }
        ClassFolders::of(samples.filter(|(_, images, _)| *images > 0).map(|(name, ..)| name))
    }

    /// Of the samples that have a field of the values of `fetch`: how many there are, how many of them have
    /// none of its labels, and the first of these.
    pub(super) fn without_label(&self, fetch: &FetchLabeled) -> (u64, u64, Option<Key>) {
        let fields = || self.fields.iter().map(|(name, _)| name);
        let are_values: Vec<bool> = fields().map(|name| fetch.is_value(name)).collect();
        let are_labels: Vec<bool> = fields().map(|name| fetch.is_label(name)).collect();
        let has = |members: &[SampleMember], wanted: &[bool]| {
            members.iter().any(|member| wanted[member.extension as usize])
        };
        let (mut all, mut without, mut first) = (0, 0, None);
        for shard in &self.shards {
            for sample in 0..shard.len() {
                // One that cannot be read is told of in its turn.
                let Ok(members) = shard.members(sample) else { continue };
                if !has(members, &are_values) {
                    continue;
                }
                all += 1;
                if !has(members, &are_labels) {
                    without += 1;
                    let name = || shard.shown(shard.name(sample).unwrap_or_default(), None);
                    first.get_or_insert_with(name);
                }
            }
        }
        (all, without, first)
    }

    /// The shards, in their order.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.shards.iter().map(|shard| &shard.key)
    }

    /// How many samples each shard has: for
    /// [`ShardWindow`](spdl_core::source::sampler::ShardWindow).
    pub fn shard_lens(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.len() as u64).collect()
    }

    /// The size of each shard in bytes, as it was when it was opened.
    pub(super) fn shard_bytes(&self) -> impl ExactSizeIterator<Item = u64> {
        self.shards.iter().map(|shard| shard.bytes)
    }

    /// The names of all fields that some sample has, in the order in which they first come.
    pub fn field_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.fields.iter().map(|(name, _)| &**name)
    }

    /// The names of the classes, where they are folders in the archives; a label is an index into them.
    /// Else empty.
    ///
    /// ```
    /// use spdl_core::Dataset;
    /// use spdl_io::datasets::WebDataset;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("photos.tar");
    /// # let mut tar = tar::Builder::new(std::fs::File::create(&path)?);
    /// # for name in ["train/cat/1.jpg", "train/dog/1.jpg"] {
    /// #     let mut header = tar::Header::new_ustar();
    /// #     header.set_size(0);
    /// #     tar.append_data(&mut header, name, &[][..])?;
    /// # }
    /// # tar.into_inner()?;
    /// // Of the images `train/cat/1.jpg` and `train/dog/1.jpg`.
    /// let samples = WebDataset::open_files([path], &Default::default())?;
    /// assert_eq!((samples.classes(), samples.item(1)?.label), (vec!["cat".into(), "dog".into()], 1));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn classes(&self) -> Vec<String> {
        self.folders.as_ref().map(ClassFolders::names).unwrap_or_default()
    }

    /// How many shards have damaged headers, so that nobody knows how many samples lie behind.
    pub fn cut_shards(&self) -> u64 {
        self.shards.iter().filter(|shard| shard.is_truncated).count() as u64
    }

    /// Why some samples cannot be read, as far as that is known without reading their data.
    pub fn failures(&self) -> impl Iterator<Item = &Error> {
        self.shards.iter().flat_map(TarShard::failures)
    }
}

impl Dataset for WebDataset {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.firsts.last().copied().unwrap_or_default()
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let number = self.firsts.partition_point(|&first| first <= index).saturating_sub(1);
        let (Some(shard), Some(first)) = (self.shards.get(number), self.firsts.get(number)) else {
            let message = format!("sample {index} of {} was asked for", self.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        // Less than the number of samples of the shard, which is a `usize`.
        let sample = (index - first) as usize;
        let members = shard.members(sample)?;
        let name = shard.name(sample).unwrap_or_default();
        let label = self.folders.as_ref().map_or(-1, |folders| folders.label(name));
        let mut record = StoredRecord::new(shard.shown(name, None)).with_label(label);
        record.version = shard.version;
        record.fields = members
            .iter()
            .map(|member| {
                let (name, encoding) = &self.fields[member.extension as usize];
                let extent = Extent::part(shard.key.clone(), member.range());
                (Arc::clone(name), StoredField::At(extent, *encoding))
            })
            .collect();
        Ok(record)
    }

    /// Of the file names of the shards, the names of all samples, and the names and sizes of all fields:
    /// half of their XXH3 sum of 128 bits.
    fn content_hash(&self) -> Option<u64> {
        let mut hasher = XxHash3_128::new();
        let mut add = |bytes: &[u8]| {
            hasher.write(&(bytes.len() as u64).to_le_bytes());
            hasher.write(bytes);
        };
        for shard in &self.shards {
            add(shard.key.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default());
            add(&(shard.len() as u64).to_le_bytes());
            for sample in 0..shard.len() {
                add(shard.name(sample).unwrap_or_default());
                for member in shard.members(sample).unwrap_or_default() {
                    add(self.fields[member.extension as usize].0.as_bytes());
                    let range = member.range();
                    add(&(range.end - range.start).to_le_bytes());
                }
            }
        }
        Some(hasher.finish_128() as u64)
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        Some(item.key.display_name())
    }
}

impl fmt::Debug for WebDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebDataset")
            .field("shards", &self.shards.len())
            .field("samples", &self.len())
            .field("fields", &self.field_names().take(20).collect::<Vec<_>>())
            .field("failures", &self.failures().count())
            .finish()
    }
}
