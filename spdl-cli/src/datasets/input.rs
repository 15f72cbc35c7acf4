//! Opens the data set at the paths and URLs of the command line.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use spdl_core::source::sampler::ShardWindow;
use spdl_core::{Error, ErrorKind, PipelineBuilder, Result, StageOptions, block_on};
use spdl_io::datasets::{DatasetKind, OpenOptions, OpenedDataset};
use spdl_io::records::IMAGE_EXTENSIONS;
use spdl_io::stores::Address;
use spdl_io::{Fetch, Key, LocalFetcher, StoreRegistry};
use spdl_media::fill::SampleSpec;

use super::address::{is_address, shown};
use super::extensions::{MediaType, more_extensions, timed_extensions};
use super::member_name::extension_of;
use crate::ui::failure::Failure;
use crate::ui::stderr;

/// The number of samples in a shuffle window of Parquet files.
const WINDOW: u64 = 10_000;

/// Maximum number of field names in a message.
const FIELDS_SHOWN: usize = 50;

/// The largest file in bytes if files may be audio or video: 4 GiB.
const TIMED_FILE_BYTES: u64 = 4 << 30;

/// The files of a folder that are samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FolderMedia {
    #[default]
    Images,
    /// The images; in a folder without images, audio and video.
    ImagesOrTimed,
    /// Images, audio and video.
    All,
}

/// Whether a path or URL names an image, audio or video file, by its extension. A local path must
/// be a file.
pub(crate) fn is_media_file(place: &Path) -> bool {
    let is_named = extension_of(&Key::from_path(place))
        .is_some_and(|ending| MediaType::of_name(ending.as_bytes()).is_some());
    is_named && (is_address(place) || place.is_file())
}

/// The field names and the limits given on the command line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields<'a> {
    pub(crate) image: Option<&'a str>,
    pub(crate) label: Option<&'a str>,
    /// The columns of a list that name further files.
    pub(crate) files: &'a [String],
    pub(crate) max_file_bytes: Option<u64>,
    /// The memory for sequential reads of tar shards.
    pub(crate) sequential: Option<u64>,
    /// The fields that are read.
    pub(crate) spec: Option<&'a SampleSpec>,
    /// The files of a folder that are samples, unless the fields decide that.
    pub(crate) media: FolderMedia,
    /// The names of the classes of a label field; `None` if the data set names them.
    pub(crate) classes: Option<&'a [String]>,
    /// The folder of the images of COCO annotations and of labels of ImageNet's validation images.
    pub(crate) image_folder: Option<&'a str>,
}

/// An opened data set, with the connections to its store.
#[derive(Debug)]
pub(crate) struct InputDataset {
    pub(crate) set: OpenedDataset,
    stores: StoreRegistry,
    /// The first argument: a folder, a file, or a pattern.
    first: Key,
}

impl InputDataset {
    /// Opens the data set and prints its warnings; `what` names the operation in error messages.
    pub(crate) fn open(
        addresses: &[PathBuf],
        fields: Fields<'_>,
        what: &str,
    ) -> std::result::Result<Self, Failure> {
        let opened = InputDataset::open_as(addresses, fields, what, false)?;
        opened.warn();
        Ok(opened)
    }

    /// Like [`open`](InputDataset::open), but accepts a packed set with missing or truncated shards,
    /// and prints warnings about them.
    pub(crate) fn open_damaged(
        addresses: &[PathBuf],
        fields: Fields<'_>,
        what: &str,
    ) -> std::result::Result<Self, Failure> {
        let opened = InputDataset::open_as(addresses, fields, what, true)?;
        opened.warn();
        Ok(opened)
    }

    /// Opens a data set with images, audio and video, and prints no warnings.
    ///
    /// Addresses that are all media files are a list of files.
    pub(crate) fn open_media_silently(
        addresses: &[PathBuf],
        what: &str,
    ) -> std::result::Result<Self, Failure> {
        let fields = Fields { media: FolderMedia::All, ..Fields::default() };
        if !addresses.iter().all(|address| is_media_file(address)) {
            return InputDataset::open_as(addresses, fields, what, false);
        }
        let failed = |error: Error| Failure::of(what, &error, &shown(addresses));
        let stores = stderr::warn_if_unreachable(StoreRegistry::new());
        let given: Vec<&OsStr> = addresses.iter().map(|it| it.as_os_str()).collect();
        let set = OpenedDataset::of_images(&given, None, &stores).map_err(failed)?;
        let set = set.with_max_file_bytes(TIMED_FILE_BYTES);
        let first = InputDataset::first_of(addresses).map_err(failed)?;
        Ok(InputDataset { set, stores, first })
    }

    fn open_as(
        addresses: &[PathBuf],
        fields: Fields<'_>,
        what: &str,
        accepts_damage: bool,
    ) -> std::result::Result<Self, Failure> {
        let failed = |error: Error| Failure::of(what, &error, &shown(addresses));
        let stores = stderr::warn_if_unreachable(StoreRegistry::new());
        let images: Vec<&str> = IMAGE_EXTENSIONS.into_iter().chain(more_extensions()).collect();
        let all: Vec<&str> = images.iter().copied().chain(timed_extensions()).collect();
        let given: Vec<&OsStr> = addresses.iter().map(|it| it.as_os_str()).collect();
        let mut options = OpenOptions::default().extensions(match fields.media {
            FolderMedia::All => &all,
            FolderMedia::Images | FolderMedia::ImagesOrTimed => &images,
        });
        if accepts_damage {
            options = options.accept_damage();
        }
        if let Some(spec) = fields.spec {
            options = spec.opening(options);
        }
        if let Some(name) = fields.image {
            options = options.image_field(name);
        }
        if let Some(name) = fields.label {
            options = options.label_field(name);
        }
        if !fields.files.is_empty() {
            options = options.file_fields(fields.files);
        }
        if let Some(bytes) = fields.sequential {
            options = options.sequential(bytes);
        }
        if let Some(folder) = fields.image_folder {
            options = options.images(folder);
        }
        if fields.classes.is_some() {
            options = options.external_classes();
        }
        let open =
            |options: &OpenOptions| block_on(OpenedDataset::open_with(&given, &stores, options));
        let opened = match open(&options) {
            Err(error)
                if fields.media == FolderMedia::ImagesOrTimed
                    && error.kind() == ErrorKind::NotFound =>
            {
                let timed: Vec<&str> = timed_extensions().collect();
                // If there is no audio or video either, the first message is the better one.
                open(&options.extensions(&timed)).map_err(|_| error)
            }
            opened => opened,
        };
        let mut set = opened.map_err(failed)?;
        if let Some(classes) = fields.classes {
            if set.has_own_classes() {
                let reason =
                    "the data set has its own classes, by folders or a list; remove `classes`";
                return Err(failed(Error::new(ErrorKind::InvalidArgument, reason)));
            }
            set.classes = classes.to_vec();
        }
        let may_be_long = fields.media != FolderMedia::Images;
        let default = may_be_long.then_some(TIMED_FILE_BYTES);
        let set = match fields.max_file_bytes.or(default) {
            Some(bytes) => set.with_max_file_bytes(bytes),
            None => set,
        };
        let first = InputDataset::first_of(addresses).map_err(failed)?;
        Ok(InputDataset { set, stores, first })
    }

    /// The key of the first argument.
    fn first_of(addresses: &[PathBuf]) -> Result<Key> {
        Ok(match addresses.first().map(|first| (first, first.to_str())) {
            Some((_, Some(text))) => Address::parse(text)?.key().clone(),
            Some((path, None)) => Key::from_path(path),
            None => Key::from_bytes(b""),
        })
    }

    /// Reads the class names for a label field given on the command line.
    pub(crate) fn name_classes(
        &mut self,
        label: Option<&str>,
        what: &str,
    ) -> std::result::Result<(), Failure> {
        let Some(label) = label else { return Ok(()) };
        let first = self.first.to_path().into_owned();
        let failed = |error: Error| Failure::of(what, &error, &first);
        block_on(self.set.name_classes(label)).map_err(failed)
    }

    /// Prints the warnings of the data set.
    pub(crate) fn warn(&self) {
        let warnings = self.set.warnings.iter().map(|warning| self.by_address(warning));
        stderr::warn(&warnings.collect::<Vec<_>>());
    }

    fn by_address(&self, warning: &Error) -> Error {
        match warning.key() {
            Some(key) => warning.clone().renamed(self.set.address_of(key)),
            None => warning.clone(),
        }
    }

    /// Prints a warning if samples have no label and no label field was given.
    pub(crate) fn warn_of_no_labels(&self) {
        stderr::warn(self.set.unlabeled().map(|it| self.by_address(&it)).as_slice());
    }

    /// Fails if no sample has a given field, so that a misspelt name is not ignored.
    /// Does not fail if all samples are unreadable.
    ///
    /// `asked` holds the option and the field name of each given field.
    pub(crate) fn check_fields(
        &self,
        asked: &[(&'static str, &str)],
    ) -> std::result::Result<(), Failure> {
        let mut missing = asked.to_vec();
        missing.retain(|(_, name)| !self.set.is_own_label(name));
        missing.retain(|(_, name)| self.set.image_field(name) == *name);
        let mut there: BTreeSet<String> = BTreeSet::new();
        for number in 0..self.set.samples.len() {
            if missing.is_empty() {
                return Ok(());
            }
            // The pipeline reports samples that cannot be read.
            let Ok(record) = self.set.samples.item(number) else { continue };
            for name in record.names() {
                missing.retain(|(_, asked)| *asked != name);
                if there.len() < FIELDS_SHOWN && !there.contains(name) {
                    there.insert(name.to_owned());
                }
            }
        }
        match missing.first() {
            // If all samples are unreadable, their fields are unknown, so no error is reported
            // here.
            Some((option, name)) if !there.is_empty() => {
                let there = there.into_iter().collect::<Vec<_>>().join(", ");
                let reason = format!(
                    "{option} \"{name}\": no sample has this field; the fields are {there}"
                );
                Err(Failure::usage(reason))
            }
            _ => Ok(()),
        }
    }

    /// The key of the first argument.
    pub(crate) fn first(&self) -> &Key {
        &self.first
    }

    /// A shuffle within windows for Parquet, because Parquet is read by row group; `None` for all
    /// other data sets.
    pub(crate) fn window(&self, seed: u64) -> Result<Option<ShardWindow>> {
        match self.set.kind {
            DatasetKind::Parquet => {
                ShardWindow::new(self.set.shard_lens.clone(), WINDOW, seed).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Runs the pipeline on the runtime of the store, unless the data set is local.
    pub(crate) fn with_runtime<T: Send + 'static>(
        &self,
        pipeline: PipelineBuilder<T>,
    ) -> Result<PipelineBuilder<T>> {
        match self.set.is_local {
            true => Ok(pipeline),
            false => Ok(pipeline.runtime(self.stores.runtime()?)),
        }
    }

    /// Options for a stage that reads from the data set.
    pub(crate) fn stage(&self, name: &str) -> StageOptions {
        let stage = StageOptions::new(name);
        match self.set.is_local {
            // Each local read uses a thread. For a store, the stage adjusts its concurrency
            // automatically.
            true => stage.concurrency(LocalFetcher::new().max_threads()).queue(Fetch::READ_AHEAD),
            false => stage,
        }
    }
}
