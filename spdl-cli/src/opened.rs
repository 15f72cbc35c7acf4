//! What lies at the addresses of a command line, of whatever kind it is, and what reads it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use spdl_core::sampler::ShardWindow;
use spdl_core::{Error, PipelineBuilder, Result, StageOptions, block_on};
use spdl_io::datasets::{DatasetKind, OpenOptions, OpenedDataset};
use spdl_io::{Address, Fetch, IMAGE_EXTENSIONS, Key, LocalFetcher, OptionNames, StoreRegistry};

use crate::failure::Failure;
use crate::output;

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
pub(crate) struct Opened {
    pub(crate) set: OpenedDataset,
    stores: StoreRegistry,
    /// What was given first: a folder, a file, a pattern.
    first: Key,
}

impl Opened {
    /// Opens it. What people should know of it is told at once; `what` failed otherwise.
    pub(crate) fn open(
        addresses: &[PathBuf],
        fields: Fields<'_>,
        what: &str,
    ) -> std::result::Result<Self, Failure> {
        let opened = Opened::open_as(addresses, fields, what, false)?;
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
        let opened = Opened::open_as(addresses, fields, what, true)?;
        opened.warn();
        Ok(opened)
    }

    /// As [`open`](Opened::open), and nothing is told.
    pub(crate) fn open_silently(
        addresses: &[PathBuf],
        what: &str,
    ) -> std::result::Result<Self, Failure> {
        Opened::open_as(addresses, Fields::default(), what, false)
    }

    fn open_as(
        addresses: &[PathBuf],
        fields: Fields<'_>,
        what: &str,
        accepts_damage: bool,
    ) -> std::result::Result<Self, Failure> {
        let failed = |error: Error| Failure::of(what, &error, &shown(addresses));
        let stores = output::telling(StoreRegistry::new());
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
        Ok(Opened { set, stores, first })
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
        output::warn(&warnings.collect::<Vec<_>>());
    }

    fn by_address(&self, warning: &Error) -> Error {
        match warning.key() {
            Some(key) => warning.clone().renamed(self.set.address_of(key)),
            None => warning.clone(),
        }
    }

    /// Tells where samples have no label, unless it was said which field that is.
    pub(crate) fn warn_of_no_labels(&self) {
        output::warn(self.set.unlabeled().map(|it| self.by_address(&it)).as_slice());
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

/// The addresses as they may be shown: without passwords and signatures.
pub(crate) fn shown(addresses: &[PathBuf]) -> PathBuf {
    let shown = |address: &PathBuf| match address.to_str().map(Address::parse) {
        Some(Ok(parsed)) if parsed.scheme() != "file" => parsed.to_string(),
        // The error says what is wrong, and never shows it.
        Some(Err(_)) => "the address".to_owned(),
        _ => address.display().to_string(),
    };
    match addresses {
        [path] if path.to_str().is_none() => path.clone(),
        [] => PathBuf::new(),
        [one] => shown(one).into(),
        [first, rest @ ..] => format!("{} and {} more", shown(first), rest.len()).into(),
    }
}

/// Whether it leads elsewhere than to a file or folder of this machine. This alone decides it.
pub(crate) fn is_address(place: &Path) -> bool {
    match place.to_str().map(Address::parse) {
        Some(Ok(address)) => address.scheme() != "file",
        Some(Err(_)) => true,
        // What is not UTF-8 is a path.
        None => false,
    }
}

/// Whether an address has something behind a question mark, which may be a signature of it alone.
pub(crate) fn is_signed(place: &Path) -> bool {
    let address = place.to_str().map(Address::parse);
    matches!(address, Some(Ok(address)) if address.query().is_some())
}

/// What reads a path or an address of the command line: an address of this machine becomes its path.
pub(crate) fn place() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(as_path)
}

/// `file:///a%20b` as `/a b`; anything else as it is.
fn as_path(place: PathBuf) -> PathBuf {
    match place.to_str().map(Address::parse) {
        Some(Ok(address)) if address.scheme() == "file" => {
            let path = address.key().to_path().into_owned();
            // What was written in percent might look like an address now.
            if path == place || !is_address(&path) { path } else { Path::new(".").join(path) }
        }
        _ => place,
    }
}

/// The name extensions of formats that are read by features, and whether this build does.
const MORE_EXTENSIONS: [(bool, &[&str]); 3] = [
    (cfg!(feature = "jxl"), &["jxl"]),
    (cfg!(feature = "exr"), &["exr"]),
    (
        cfg!(feature = "more-formats"),
        &["pnm", "pbm", "pgm", "ppm", "pam", "qoi", "tga", "dds", "hdr", "ico", "ff"],
    ),
];

/// The name extensions of formats that this build reads beside the usual ones.
pub(crate) fn more_extensions() -> impl Iterator<Item = &'static str> {
    let read = MORE_EXTENSIONS.into_iter().filter(|(is_read, _)| *is_read);
    read.flat_map(|(_, names)| names.iter().copied())
}

/// The name extensions of images of any format, be it read by this build or not.
pub(crate) fn image_extensions() -> impl Iterator<Item = &'static str> {
    let more = MORE_EXTENSIONS.into_iter().flat_map(|(_, names)| names.iter().copied());
    IMAGE_EXTENSIONS.into_iter().chain(more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_paths() {
        for address in ["s3://b/x", "gs://b", "https://u:p@h/x", "file://other/x", "a+b.c-1://x"] {
            assert!(is_address(address.as_ref()), "{address}");
            assert_eq!(as_path(address.into()), Path::new(address));
        }
        for path in ["shards", "/a/b", "./s3:/x", "a b://c", "://x", "1a://x", "C:\\x", "a%20b"] {
            assert!(!is_address(path.as_ref()), "{path}");
            assert_eq!(as_path(path.into()), Path::new(path));
        }
    }

    #[test]
    fn an_address_of_this_machine_is_a_path() {
        for (address, path) in [
            ("file:///a%20b", "/a b"),
            ("FILE:a/b", "a/b"),
            ("file://localhost/a", "/a"),
            ("file:s3%3a//b", "./s3://b"),
        ] {
            assert!(!is_address(address.as_ref()), "{address}");
            assert_eq!(as_path(address.into()), Path::new(path));
        }
    }
}
