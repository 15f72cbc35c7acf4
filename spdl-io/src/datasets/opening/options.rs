//! [`OpenOptions`]: how a data set is opened.

use spdl_core::{Error, ErrorKind, Result};

use crate::records::IMAGE_EXTENSIONS;

/// The smallest limit for sequential reads, in bytes: several parts.
const MIN_SEQUENTIAL_BYTES: u64 = 64 << 20;

/// Options of [`OpenedDataset::open_with`](super::OpenedDataset::open_with).
///
/// ```
/// use spdl_io::StoreRegistry;
/// use spdl_io::datasets::{OpenOptions, OpenedDataset};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("birds.csv");
/// # std::fs::write(&path, "photo,species\n1.jpg,wren\n2.jpg,crow\n")?;
/// # let list = path.to_str().unwrap_or_default();
/// # #[cfg(feature = "local")] {
/// // The list `birds.csv` has the columns `photo` and `species`.
/// let options = OpenOptions::default().image_field("photo").label_field("species");
/// let stores = StoreRegistry::new();
/// let mut birds = spdl_core::block_on(OpenedDataset::open_with(&[list], &stores, &options))?;
/// spdl_core::block_on(birds.name_classes("species"))?;
/// assert_eq!(birds.classes, ["crow", "wren"]);
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    extensions: Vec<String>,
    pub(super) accepts_damage: bool,
    pub(super) image_field: Option<String>,
    pub(super) label_field: Option<String>,
    pub(super) file_fields: Vec<String>,
    pub(super) path_fields: Vec<String>,
    pub(super) value_fields: Vec<Vec<String>>,
    pub(super) images: Option<String>,
    pub(super) has_external_classes: bool,
    pub(super) sequential: Option<u64>,
}

impl Default for OpenOptions {
    /// The default image extensions and field names. Damaged sets that `spdl pack` wrote are
    /// refused.
    fn default() -> Self {
        OpenOptions {
            extensions: IMAGE_EXTENSIONS.map(Into::into).into(),
            accepts_damage: false,
            image_field: None,
            label_field: None,
            file_fields: Vec::new(),
            path_fields: Vec::new(),
            value_fields: Vec::new(),
            images: None,
            has_external_classes: false,
            sequential: None,
        }
    }
}

impl OpenOptions {
    /// Sets the file name extensions of images in folders, without a dot. Letter case is ignored. Default:
    /// [`IMAGE_EXTENSIONS`].
    #[must_use]
    pub fn extensions(mut self, extensions: &[&str]) -> Self {
        self.extensions = extensions.iter().map(|&it| it.to_owned()).collect();
        self
    }

    /// Also opens a damaged set that `spdl pack` wrote.
    ///
    /// Missing shards, and shards whose size differs from the manifest, become
    /// [warnings](super::OpenedDataset::warnings). The remaining samples can be read.
    #[must_use]
    pub fn accept_damage(mut self) -> Self {
        self.accepts_damage = true;
        self
    }

    /// Sets the field that holds the image. In a list, this is the column that names the file; the field
    /// itself is called `file`. Default: the names of [`FetchLabeled::new`](crate::FetchLabeled::new).
    #[must_use]
    pub fn image_field(mut self, name: impl Into<String>) -> Self {
        self.image_field = Some(name.into());
        self
    }

    /// Sets the field, or the column of a list, that holds the label. Every sample must have this
    /// field, with one exception: an empty cell in a list's column `label`, `class` or `cls` is the
    /// label −1. Default: the names of [`FetchLabeled::new`](crate::FetchLabeled::new).
    #[must_use]
    pub fn label_field(mut self, name: impl Into<String>) -> Self {
        self.label_field = Some(name.into());
        self
    }

    /// Sets columns of a list that name further files, such as the masks of images: see
    /// [`FileListOptions::file_columns`](crate::datasets::FileListOptions::file_columns). Data sets of other
    /// kinds ignore them. Default: none.
    #[must_use]
    pub fn file_fields(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.file_fields = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets columns of a list that are tried as its path column after the default ones: see
    /// [`FileListOptions::other_path_columns`](crate::datasets::FileListOptions::other_path_columns). Default: none.
    #[must_use]
    pub fn path_fields(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.path_fields = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the fields that the caller reads from lists, if it reads no files: for each field, its alternative
    /// columns. CSV lists then need no [path column](crate::datasets::FileListOptions::value_columns), and files of
    /// JSON Lines are [a data set of their rows](super::DatasetKind::JsonLines). Data sets of other kinds ignore the
    /// fields. Default: none.
    #[must_use]
    pub fn value_fields(mut self, fields: Vec<Vec<String>>) -> Self {
        self.value_fields = fields;
        self
    }

    /// Sets the folder of the images of [COCO annotations](crate::datasets::FileList::from_coco) or
    /// [labels of ImageNet](crate::datasets::FileList::from_imagenet_labels): a path, or a key or an address in
    /// the store of the annotations. Default: the first folder near the annotations that
    /// contains the first image. A checkpoint state does not depend on the folder, as for other locations of data.
    ///
    /// For other data sets, and for an address in another store, opening fails with `InvalidArgument`.
    #[must_use]
    pub fn images(mut self, folder: impl Into<String>) -> Self {
        self.images = Some(folder.into());
        self
    }

    /// States that the caller provides the class names, for example by [`FetchLabeled::with_classes`].
    ///
    /// Opening then derives no class names from a label column of Parquet files, and accepts a mixture of
    /// names and numbers in it.
    ///
    /// [`FetchLabeled::with_classes`]: crate::FetchLabeled::with_classes
    #[must_use]
    pub fn external_classes(mut self) -> Self {
        self.has_external_classes = true;
        self
    }

    /// Reads tar shards in parts of 8 MiB, which many samples share, with at most `max_bytes` bytes of memory for parts.
    ///
    /// For shards of small samples in a store, requests cost more than bytes. With this option, an epoch has about one
    /// request per part instead of one per sample. [`OpenedDataset::sampler`] then shuffles the order of the shards, and
    /// samples within a [window](crate::datasets::WebDataset::sequential_window) that the memory allows.
    ///
    /// - The memory is separate from the memory budget of a pipeline. With several ranks, each rank reads all parts.
    /// - Shards of a server without range requests, and compressed shards (`.tar.gz`, `.tgz`, `.tar.zst`), are kept in
    ///   memory as a whole. Opening reads each of them once, and each epoch reads them again, unless all fit.
    /// - Uncompressed local shards are read as without this option, but in the same order.
    /// - Checkpoint states depend on the window, and so on `max_bytes`.
    /// - The option is for all samples, or for consecutive ones. If few samples of each shard are chosen, most bytes are read
    ///   for nothing.
    ///
    /// Data sets of other kinds ignore the option. Default: each sample is a request, and all samples are shuffled together.
    ///
    /// # Errors
    /// Opening fails with `InvalidArgument` if `max_bytes` is less than 64 MiB, and with `LimitExceeded` if shards that must
    /// be in memory as a whole do not fit.
    ///
    /// [`OpenedDataset::sampler`]: super::OpenedDataset::sampler
    #[must_use]
    pub fn sequential(mut self, max_bytes: u64) -> Self {
        self.sequential = Some(max_bytes);
        self
    }

    /// A common limit for [`sequential`](OpenOptions::sequential), in bytes: 1 GiB.
    pub const SEQUENTIAL_BYTES: u64 = 1 << 30;

    /// # Errors
    /// `InvalidArgument` if the memory for sequential reads is too small.
    pub(super) fn check_sequential(&self) -> Result<()> {
        match self.sequential {
            Some(bytes) if bytes < MIN_SEQUENTIAL_BYTES => {
                let message = format!(
                    "sequential reads need at least {MIN_SEQUENTIAL_BYTES} bytes of memory, not {bytes}"
                );
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn image_extensions(&self) -> Vec<&str> {
        self.extensions.iter().map(String::as_str).collect()
    }
}
