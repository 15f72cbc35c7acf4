//! What lies at the addresses of a command line, of whatever kind it is, and what reads it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;

use spdl_core::source::sampler::ShardWindow;
use spdl_core::{Error, PipelineBuilder, Result, StageOptions, block_on};
use spdl_io::datasets::{DatasetKind, OpenOptions, OpenedDataset};
use spdl_io::records::{IMAGE_EXTENSIONS, OptionNames};
use spdl_io::stores::Address;
use spdl_io::{Fetch, Key, LocalFetcher, StoreRegistry};

use super::address::shown;
use super::extensions::more_extensions;
use crate::ui::failure::Failure;
use crate::ui::stderr;

/// Samples that are shuffled with each other where shards can only be read as a whole.
const WINDOW: u64 = 10_000;

/// So many names of fields are listed.
const FIELDS_SHOWN: usize = 50;

/// What the options are called here.
const OPTION_NAMES: OptionNames =
    OptionNames { image_field: "`--image-field`", label_field: "`--label-field`", classes: None };

/// The fields of a sample that were named on the command line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields<'a> {
    pub(crate) image: Option<&'a str>,
    pub(crate) label: Option<&'a str>,
}

/// A data set, and what holds the connections to its store.
#[derive(Debug)]
pub(crate) struct InputDataset {
    pub(crate) set: OpenedDataset,
    stores: StoreRegistry,
    /// What was given first: a folder, a file, a pattern.
    first: Key,
}

impl InputDataset {
    /// Opens it. What people should know of it is told at once; `what` failed otherwise.
    pub(crate) fn open(
        addresses: &[PathBuf],
        fields: Fields<'_>,
        what: &str,
    ) -> std::result::Result<Self, Failure> {
        let opened = InputDataset::open_as(addresses, fields, what, false)?;
        opened.warn();
        Ok(opened)
    }

    /// The same, also of a set that was packed and lacks shards, or has some of another size: that is
    /// told, and what there is of it can be read.
    pub(crate) fn open_damaged(
        addresses: &[PathBuf],
        fields: Fields<'_>,
        what: &str,
    ) -> std::result::Result<Self, Failure> {
        let opened = InputDataset::open_as(addresses, fields, what, true)?;
        opened.warn();
        Ok(opened)
    }

    /// As [`open`](InputDataset::open), and nothing is told.
    pub(crate) fn open_silently(
        addresses: &[PathBuf],
        what: &str,
    ) -> std::result::Result<Self, Failure> {
        InputDataset::open_as(addresses, Fields::default(), what, false)
    }

    fn open_as(
        addresses: &[PathBuf],
        fields: Fields<'_>,
        what: &str,
        accepts_damage: bool,
    ) -> std::result::Result<Self, Failure> {
        let failed = |error: Error| Failure::of(what, &error, &shown(addresses));
        let stores = stderr::warn_if_unreachable(StoreRegistry::new());
        let extensions: Vec<&str> = IMAGE_EXTENSIONS.into_iter().chain(more_extensions()).collect();
        let given: Vec<&OsStr> = addresses.iter().map(|it| it.as_os_str()).collect();
        let mut options = OpenOptions::default().extensions(&extensions).option_names(OPTION_NAMES);
        if accepts_damage {
            options = options.accept_damage();
        }
        if let Some(name) = fields.image {
            options = options.image_field(name);
        }
        if let Some(name) = fields.label {
            options = options.label_field(name);
        }
        let set = block_on(OpenedDataset::open_with(&given, &stores, &options)).map_err(failed)?;
        let first = match addresses.first().map(|first| (first, first.to_str())) {
            Some((_, Some(text))) => Address::parse(text).map_err(failed)?.key().clone(),
            Some((path, None)) => Key::from_path(path),
            None => Key::from_bytes(b""),
        };
        Ok(InputDataset { set, stores, first })
    }

    /// Finds the classes that the field of the label names, where that is not the usual one.
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

    /// Tells what people should know of it.
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

    /// Tells where samples have no label, unless it was said which field that is.
    pub(crate) fn warn_of_no_labels(&self) {
        stderr::warn(self.set.unlabeled().map(|it| self.by_address(&it)).as_slice());
    }

    /// Refuses names of fields that no sample has, each with the option that gave it: a misspelt one would
    /// be missing in silence.
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
            // What cannot be read is told in its turn.
            let Ok(record) = self.set.samples.item(number) else { continue };
            for name in record.names() {
                missing.retain(|(_, asked)| *asked != name);
                if there.len() < FIELDS_SHOWN && !there.contains(name) {
                    there.insert(name.to_owned());
                }
            }
        }
        match missing.first() {
            // Of samples that all are damaged nobody knows what they had.
            Some((option, name)) if !there.is_empty() => {
                let there = there.into_iter().collect::<Vec<_>>().join(", ");
                let reason =
                    format!("{option} {name}: no sample has such a field; there are {there}");
                Err(Failure::usage(reason))
            }
            _ => Ok(()),
        }
    }

    /// The key of what was given first.
    pub(crate) fn first(&self) -> &Key {
        &self.first
    }

    /// The order of a shuffle that reads few parts at a time; `None` where each sample can be read by
    /// itself, so that all may be shuffled with all.
    pub(crate) fn window(&self, seed: u64) -> Result<Option<ShardWindow>> {
        match self.set.kind {
            DatasetKind::Parquet => {
                ShardWindow::new(self.set.shard_lens.clone(), WINDOW, seed).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The same pipeline where its stages read from this data set best.
    pub(crate) fn runs<T: Send + 'static>(
        &self,
        pipeline: PipelineBuilder<T>,
    ) -> Result<PipelineBuilder<T>> {
        match self.set.is_local {
            true => Ok(pipeline),
            false => Ok(pipeline.runtime(self.stores.runtime()?)),
        }
    }

    /// A stage that reads from it.
    pub(crate) fn stage(&self, name: &str) -> StageOptions {
        let stage = StageOptions::new(name);
        match self.set.is_local {
            // No more at once than there are threads to read what is not in memory. From a store, the
            // stage finds out how many.
            true => stage.concurrency(LocalFetcher::new().max_threads()).queue(Fetch::READ_AHEAD),
            false => stage,
        }
    }
}
