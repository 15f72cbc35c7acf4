//! How a data set is opened.

use crate::records::{IMAGE_EXTENSIONS, OptionNames};

/// How an [`OpenedDataset`](super::OpenedDataset) is opened, and which fields of its samples are read.
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
    pub(super) classes_are_told: bool,
    pub(super) names: OptionNames,
}

impl Default for OpenOptions {
    /// Images by their usual extensions, image and label by the usual names of fields, and no damaged sets.
    fn default() -> Self {
        OpenOptions {
            extensions: IMAGE_EXTENSIONS.map(Into::into).into(),
            accepts_damage: false,
            image_field: None,
            label_field: None,
            classes_are_told: false,
            names: OptionNames::default(),
        }
    }
}

impl OpenOptions {
    /// The name extensions by which images in folders are known, in any case and without a dot. Default:
    /// [`IMAGE_EXTENSIONS`].
    #[must_use]
    pub fn extensions(mut self, extensions: &[&str]) -> Self {
        self.extensions = extensions.iter().map(|&it| it.to_owned()).collect();
        self
    }

    /// Opens also a set that `spdl pack` wrote and that is damaged: shards that are missing, or have another
    /// size than the manifest says, are [warnings](super::OpenedDataset::warnings) then, and what is left of
    /// the set can be read.
    #[must_use]
    pub fn accept_damage(mut self) -> Self {
        self.accepts_damage = true;
        self
    }

    /// The field of a sample that is its image; of a list, the column that names the file, which is called
    /// `file` as a field. Default: by the usual names.
    #[must_use]
    pub fn image_field(mut self, name: impl Into<String>) -> Self {
        self.image_field = Some(name.into());
        self
    }

    /// The field of a sample, or the column of a list, that is its label: every sample must have it. Default:
    /// by the usual names.
    #[must_use]
    pub fn label_field(mut self, name: impl Into<String>) -> Self {
        self.label_field = Some(name.into());
        self
    }

    /// That the caller tells the classes himself, as by [`FetchLabeled::with_classes`], so that a column of labels
    /// of a Parquet file may hold names and numbers: opening names no classes of it, and refuses none.
    ///
    /// [`FetchLabeled::with_classes`]: crate::FetchLabeled::with_classes
    #[must_use]
    pub fn classes_are_told(mut self) -> Self {
        self.classes_are_told = true;
        self
    }

    /// What messages call the options that they advise. Default: as they are called in Rust.
    #[must_use]
    pub fn option_names(mut self, names: OptionNames) -> Self {
        self.names = names;
        self
    }

    pub(super) fn known_extensions(&self) -> Vec<&str> {
        self.extensions.iter().map(String::as_str).collect()
    }
}
