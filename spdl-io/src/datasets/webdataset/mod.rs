//! [`WebDataset`]: tar and zip shards in the layout of the Python library `webdataset`.
//!
//! | file | what it holds |
//! |---|---|
//! | `shards` | the index of each archive: next to it, cached, or built |
//! | `grouping` | the members of an archive, grouped into samples |
//! | `window` | the shuffle window of shards that are read in parts |
//! | `zip` | members of zip archives |
//! | `folders` | classes that are folders in the archives |

mod folders;
mod grouping;
mod shards;
mod window;
#[cfg(feature = "zip")]
mod zip;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::folders::{ClassFolders, is_image};
pub(super) use self::grouping::split_name;
use self::grouping::{ArchiveShard, SampleMember};
pub(super) use self::shards::UNPACK;
#[cfg(feature = "zip")]
use self::zip::ZipSample;
use super::common::ContentHash;
use super::patterns::FilePatterns;
use super::sharded::{Shard, Sharded, Shards, impl_dataset, impl_openers};
use crate::archive::TarOptions;
use crate::fetch::{Fetcher, Key};
use crate::layers::PartFetcher;
use crate::records::{Encoding, Extent, FetchLabeled, StoredField, StoredRecord};
use spdl_core::{Dataset, Error, Result};

/// The maximum number of bytes of the part indexes of a data set, which are in memory.
const MAX_PART_INDEX_BYTES: u64 = 256 << 20;

/// The samples of tar and zip archives. Consecutive members that share a name are one sample.
///
/// ```text
/// shard-000000.tar:  0001.jpg 0001.cls 0002.jpg 0002.seg.png 0002.cls …
/// samples:           0001: jpg, cls    0002: jpg, seg.png, cls       …
/// ```
///
/// - **Names.** The name of a sample is the path of its members up to the first dot after the last slash. The
///   rest, in lower case, is the name of a field. If a name occurs again after other members, it starts another
///   sample. In a zip archive of images only, names end at the last dot if the texts between the first and the last
///   dot differ too much to be names of fields, as in `cat.1.jpg`, `cat.2.jpg`, `cat.3.jpg`.
/// - **Ignored members.** Directories, symbolic links, hidden files, names without an extension, and
///   `__NAME__` at the top of the archive.
/// - **Bad samples.** A sample with a duplicate field fails with `Corrupt`. A sample also fails if one of its
///   members cannot be read, such as a sparse file. A bad sample keeps its position; [`item`](Dataset::item)
///   returns its error, and the failure policy of the pipeline applies.
/// - **Damaged shards.** If a header is damaged, or the shard is truncated, the samples before the damage are
///   available. The last of them may lack members and is an error. This error represents all samples after the
///   damage, whose number is unknown: see [`truncated_shards`](WebDataset::truncated_shards).
/// - **Checksums.** If a checksum file ([`Sums`](crate::shards::Sums)) is next to a shard, each member
///   is compared with its checksum. A member that differs is read again; at last, its sample fails
///   with `Corrupt`.
/// - **Labels.** The label is a field (`cls`) that [`FetchLabeled`](crate::FetchLabeled) reads: an integer,
///   or a class name if [`with_classes`](crate::FetchLabeled::with_classes) is set.
/// - **Class folders.** If samples with images have only image fields, and each image lies in a
///   folder below the common folder of all images, these folders are the
///   [`classes`](WebDataset::classes): `train/cat/1.jpg` has the class `cat`. Folders are not
///   classes if all are named like splits (`train`, `val`), or like hash buckets: hexadecimal
///   numbers of equal length with at least two digits (`00`, `3f`).
/// - **Keys.** The key of a sample is `SHARD:NAME`, with the folders of the name.
///
/// | last part of the field name | encoding |
/// |---|---|
/// | `txt`, `text`, `transcript` | UTF-8 text |
/// | `cls`, `cls2`, `index`, `inx`, `id` | integer |
/// | `json`, `jsn` | JSON |
/// | `npy` | NumPy array |
/// | `pyd`, `pkl`, `pickle`, `pth`, `pt` | `Unsupported` if requested, because unpickling executes code |
/// | others: `jpg`, `png`, `mp4`, `flac`, … | bytes |
///
/// [`WebDatasetOptions::encoding`] overrides the table.
///
/// Opening reads the headers of each shard once. The index ([`TarIndex`](crate::archive::TarIndex)) is saved
/// next to local archives. In a store, an existing index next to the archive is used. Memory use: 8 bytes and
/// the name per sample, and 24 bytes per field; with checksums, 32 bytes per field.
///
/// Compressed tar archives fail with `Unsupported`, because their members have no fixed offset. [`OpenedDataset`] reads
/// them with [`OpenOptions::sequential`].
///
/// **Sequential reads.** For shards of small samples in a store, requests cost more than bytes. Read them with
/// [`PartFetcher`], in the order of a `ShardWindow` whose window is [`sequential_window`](WebDataset::sequential_window).
/// [`OpenOptions::sequential`] does both.
///
/// [`OpenedDataset`]: super::OpenedDataset
/// [`OpenOptions::sequential`]: super::OpenOptions::sequential
///
/// **Zip archives** (feature `zip`) have names that end with `.zip`. Members are stored or compressed with DEFLATE.
/// Opening reads the central directory only. Samples are sorted by the parts of their paths, because zip programs
/// store members in any order. The CRC-32 of each member is verified; a member that differs fails with `Corrupt`, and
/// an encrypted member with `Unsupported`. A damaged central directory is an error of opening. Memory use: about 200
/// bytes per member. Checksum files are not used.
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
/// // Shuffled shards, and a shuffle window of 5,000 samples.
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
    shards: Shards<ArchiveShard>,
    /// The names and encodings of all fields.
    fields: Vec<(Arc<str>, Encoding)>,
    /// The class folders, if folders are classes.
    folders: Option<ClassFolders>,
}

/// Options of [`WebDataset`].
#[derive(Clone, Debug)]
pub struct WebDatasetOptions {
    tar: TarOptions,
    concurrency: usize,
    index_folder: Option<PathBuf>,
    encodings: Vec<(String, Encoding)>,
    verify: bool,
    /// Whether the fetcher decompresses shards.
    accepts_compressed: bool,
}

impl Default for WebDatasetOptions {
    /// 16 shards concurrently, default limits for archives, no folder for indexes, with verification.
    fn default() -> Self {
        WebDatasetOptions {
            tar: TarOptions::default(),
            concurrency: 16,
            index_folder: None,
            encodings: Vec::new(),
            verify: true,
            accepts_compressed: false,
        }
    }
}

impl WebDatasetOptions {
    /// Sets the limits for archives. Default: [`TarOptions::default`].
    #[must_use]
    pub fn tar_options(mut self, options: TarOptions) -> Self {
        self.tar = options;
        self
    }

    /// Sets how many shards are opened concurrently; 0 means 1. Default: 16.
    #[must_use]
    pub fn concurrency(mut self, shards: usize) -> Self {
        self.concurrency = shards.max(1);
        self
    }

    /// Sets a local folder that caches the indexes of a store's shards, so that their headers are
    /// read once. A cached index is valid for one version of its shard. If the store reports no
    /// versions, or if there is a checksum file, indexes are not cached. Default: none.
    #[must_use]
    pub fn index_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.index_folder = Some(folder.into());
        self
    }

    /// Sets whether members are compared with the checksum file next to their shard
    /// (`SHARD.tar.sums`, see [`Sums`](crate::shards::Sums)), if there is one. Default: true.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Sets the encoding of the field `extension`, such as `cls` or `meta.json`, in lower case.
    #[must_use]
    pub fn encoding(mut self, extension: impl Into<String>, encoding: Encoding) -> Self {
        self.encodings.push((extension.into(), encoding));
        self
    }

    /// Accepts the names of shards that [`UNPACK`] decompresses.
    pub(super) fn accept_compressed(mut self) -> Self {
        self.accepts_compressed = true;
        self
    }

    #[expect(clippy::unused_self, reason = "the same call for all data sets")]
    fn patterns(&self) -> FilePatterns<'static> {
        FilePatterns { in_folder: "*.tar", index_suffix: Some(".idx") }
    }

    fn encoding_of(&self, extension: &str) -> Encoding {
        let set = self.encodings.iter().rev().find(|(name, _)| name == extension);
        set.map_or_else(|| default_encoding(extension), |(_, encoding)| *encoding)
    }
}

/// The encoding that `webdataset` uses for a field.
pub(super) fn default_encoding(extension: &str) -> Encoding {
    match extension.rsplit('.').next().unwrap_or_default() {
        "txt" | "text" | "transcript" => Encoding::Text,
        "cls" | "cls2" | "index" | "inx" | "id" => Encoding::Integer,
        "json" | "jsn" => Encoding::Json,
        "npy" => Encoding::Npy,
        "pyd" | "pkl" | "pickle" | "pth" | "pt" => Encoding::Pickle,
        _ => Encoding::Bytes,
    }
}

impl_openers! {
    WebDataset, WebDatasetOptions, "`*.tar` files";
    /// Opens shards of a store, in this order.
    ///
    /// The index next to a shard (`SHARD.tar.idx`) is used if it matches the size of the shard and the
    /// header of its last member. Otherwise the headers are read. The checksum file next to the shard
    /// (`SHARD.tar.sums`) is used if it exists. Without an index, the file is ignored if its first line is
    /// invalid, because some servers send a page for a missing file.
    ///
    /// # Errors
    /// - The errors of the fetcher.
    /// - `InvalidArgument` for an empty list.
    /// - `Unsupported` for compressed shards, and for a fetcher without sizes or range requests.
}

impl WebDataset {
    fn open_keys(keys: Vec<Key>, options: &WebDatasetOptions) -> Result<Self> {
        #[cfg(feature = "local")]
        if keys.iter().any(shards::is_zip) {
            let fetcher = super::common::local_fetcher();
            return spdl_core::block_on(WebDataset::fetch_keys(&fetcher, keys, options));
        }
        WebDataset::new(shards::open(keys, options)?, options)
    }

    async fn fetch_keys(
        fetcher: &Arc<dyn Fetcher>,
        keys: Vec<Key>,
        options: &WebDatasetOptions,
    ) -> Result<Self> {
        WebDataset::new(shards::fetch(fetcher, keys, options).await?, options)
    }

    fn new(mut shards: Vec<ArchiveShard>, options: &WebDatasetOptions) -> Result<Self> {
        let mut fields = Vec::new();
        let mut numbers: HashMap<Arc<str>, u32> = HashMap::new();
        let mut part_index_bytes = 0;
        for shard in &mut shards {
            // Without its index, a member is read by its headers and tables, or whole.
            part_index_bytes += shard.part_index_bytes();
            if part_index_bytes > MAX_PART_INDEX_BYTES {
                shard.drop_part_indexes();
            }
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
        }
        let shards = Shards::new(shards)?;
        let mut samples = WebDataset { shards, fields, folders: None };
        samples.folders = samples.class_folders();
        Ok(samples)
    }

    /// The folders that are classes, if any.
    fn class_folders(&self) -> Option<ClassFolders> {
        let are_images: Vec<bool> = self.fields.iter().map(|(name, _)| is_image(name)).collect();
        let samples = self.shards.iter().flat_map(|shard| {
            // A bad sample may lack members.
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

    /// The number of samples with a value field of `fetch`, the number of those without a label field, and
    /// the first such sample.
    pub(super) fn without_label(&self, fetch: &FetchLabeled) -> (u64, u64, Option<Key>) {
        let fields = || self.fields.iter().map(|(name, _)| name);
        let are_values: Vec<bool> = fields().map(|name| fetch.is_value(name)).collect();
        let are_labels: Vec<bool> = fields().map(|name| fetch.is_label(name)).collect();
        let has = |members: &[SampleMember], wanted: &[bool]| {
            members.iter().any(|member| wanted[member.extension as usize])
        };
        let (mut all, mut without, mut first) = (0, 0, None);
        for shard in self.shards.iter() {
            for sample in 0..shard.len() {
                // The pipeline reports bad samples.
                let Ok(members) = shard.members(sample) else { continue };
                if !has(members, &are_values) {
                    continue;
                }
                all += 1;
                if !has(members, &are_labels) {
                    without += 1;
                    let name = || shard.sample_key(shard.name(sample).unwrap_or_default(), None);
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

    /// The largest shuffle window, in samples, for which a [`PartFetcher`] with this limit reads each part about once per
    /// epoch: the parts of any two consecutive windows fit into `max_bytes`. At least 1.
    ///
    /// The window depends on `max_bytes`, on the order of the shards, and on the numbers and sizes of their samples.
    ///
    /// # Errors
    /// Those of [`ShardWindow::new`](spdl_core::source::sampler::ShardWindow::new).
    pub fn sequential_window(&self, max_bytes: u64) -> Result<u64> {
        let is_whole = |shard: &ArchiveShard| (UNPACK.is_packed)(&shard.key);
        window::largest_window(&self.shard_list(), &self.shards.lens(), max_bytes, is_whole)
    }

    /// Checks that `parts`, with the limit `max_bytes`, can hold the shards of two windows.
    ///
    /// # Errors
    /// `LimitExceeded` if shards that must be in memory as a whole do not fit.
    pub(super) fn check_memory(
        &self,
        parts: &PartFetcher,
        window: u64,
        max_bytes: u64,
    ) -> Result<()> {
        let is_whole = |shard: &ArchiveShard| parts.keeps_whole(&shard.key);
        let limits = (window, max_bytes);
        window::check_whole_shards(&self.shard_list(), &self.shards.lens(), limits, is_whole)
    }

    fn shard_list(&self) -> Vec<&ArchiveShard> {
        self.shards.iter().collect()
    }

    /// The size of each shard when it was opened, in bytes.
    pub(super) fn shard_bytes(&self) -> impl ExactSizeIterator<Item = u64> {
        self.shards.iter().map(|shard| shard.bytes)
    }

    /// The names of all fields, in the order of their first occurrence.
    pub fn field_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.fields.iter().map(|(name, _)| &**name)
    }

    /// The class names, if folders in the archives are classes; a label is an index. Otherwise empty.
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
    /// // The archive holds `train/cat/1.jpg` and `train/dog/1.jpg`.
    /// let samples = WebDataset::open_files([path], &Default::default())?;
    /// assert_eq!((samples.classes(), samples.item(1)?.label), (vec!["cat".into(), "dog".into()], 1));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn classes(&self) -> Vec<String> {
        self.folders.as_ref().map(ClassFolders::names).unwrap_or_default()
    }

    /// The number of damaged or truncated shards. The number of samples after the damage is
    /// unknown.
    pub fn truncated_shards(&self) -> u64 {
        self.shards.iter().filter(|shard| shard.is_truncated).count() as u64
    }

    /// The errors of bad samples that are known from the headers.
    pub fn failures(&self) -> impl Iterator<Item = &Error> {
        self.shards.iter().flat_map(ArchiveShard::failures)
    }
}

impl Shard for ArchiveShard {
    fn rows(&self) -> u64 {
        self.len() as u64
    }
}

impl Sharded for WebDataset {
    type Shard = ArchiveShard;

    fn sample(&self, shard: &ArchiveShard, row: u64) -> Result<StoredRecord> {
        // Lossless: below the number of samples of the shard.
        let sample = row as usize;
        let (members, sums) = (shard.members(sample)?, shard.sums(sample));
        let name = shard.name(sample).unwrap_or_default();
        let label = self.folders.as_ref().map_or(-1, |folders| folders.label(name));
        let mut record = StoredRecord::new(shard.sample_key(name, None)).with_label(label);
        record.version = shard.version;
        #[cfg(feature = "zip")]
        if let Some(archive) = &shard.zip {
            let of_field = |member: &SampleMember| {
                let (name, encoding) = &self.fields[member.extension as usize];
                (Arc::clone(name), (member.start as usize, *encoding))
            };
            let (names, members) = members.iter().map(of_field).unzip();
            let (archive, key) = (Arc::clone(archive), record.key.clone());
            return Ok(record.with_row(Arc::new(ZipSample { archive, key, names, members }), 0));
        }
        record.fields = members
            .iter()
            .enumerate()
            .map(|(number, member)| {
                let (name, encoding) = &self.fields[member.extension as usize];
                let extent = Extent::part(shard.key.clone(), member.range());
                let extent = extent.with_xxh3(sums.get(number).copied());
                let extent = extent.with_part_index(shard.part_index(member));
                (Arc::clone(name), StoredField::At(extent, *encoding))
            })
            .collect();
        Ok(record)
    }

    fn content(&self) -> ContentHash {
        let mut hash = ContentHash::without_format();
        for shard in self.shards.iter() {
            hash.name(&shard.key);
            hash.bytes(&(shard.len() as u64).to_le_bytes());
            for sample in 0..shard.len() {
                hash.bytes(shard.name(sample).unwrap_or_default());
                for member in shard.members(sample).unwrap_or_default() {
                    hash.bytes(self.fields[member.extension as usize].0.as_bytes());
                    let range = member.range();
                    hash.bytes(&(range.end - range.start).to_le_bytes());
                }
            }
        }
        hash
    }
}

impl_dataset!(
    WebDataset,
    "samples of each shard",
    "the file names of the shards, the names of all samples, and the names and sizes of all fields"
);

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
