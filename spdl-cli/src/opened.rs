//! What lies at the addresses of a command line, of whatever kind it is, and what reads it.

use std::ffi::OsStr;
use std::path::PathBuf;

use spdl_core::sampler::ShardWindow;
use spdl_core::{PipelineBuilder, Result, StageOptions, block_on};
use spdl_io::datasets::{DatasetKind, OpenedDataset};
use spdl_io::{Address, Fetch, IMAGE_EXTENSIONS, Key, LocalFetcher, StoreRegistry};

use crate::failure::Failure;
use crate::output;

/// Samples that are shuffled with each other where shards can only be read as a whole.
const WINDOW: u64 = 10_000;

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
    pub(crate) fn open(addresses: &[PathBuf], what: &str) -> std::result::Result<Self, Failure> {
        let failed = |error: spdl_core::Error| Failure::of(what, &error, &shown(addresses));
        let stores = StoreRegistry::new();
        let extensions: Vec<&str> = IMAGE_EXTENSIONS.into_iter().chain(more_extensions()).collect();
        let given: Vec<&OsStr> = addresses.iter().map(|it| it.as_os_str()).collect();
        let set = block_on(OpenedDataset::open_with(&given, &stores, &extensions));
        let set = set.map_err(failed)?;
        output::warn(&set.warnings);
        let first = match addresses.first().map(|first| (first, first.to_str())) {
            Some((_, Some(text))) => Address::parse(text).map_err(failed)?.key().clone(),
            Some((path, None)) => Key::from_path(path),
            None => Key::from_bytes(b""),
        };
        Ok(Opened { set, stores, first })
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

/// Whether it begins as `s3://` does.
pub(crate) fn is_address(path: &std::path::Path) -> bool {
    let path = path.to_string_lossy();
    path.split_once("://").is_some_and(|(scheme, _)| {
        let letters =
            scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        letters && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
    })
}

/// The name extensions of formats that this build reads beside the usual ones.
pub(crate) fn more_extensions() -> impl Iterator<Item = &'static str> {
    let groups: [(bool, &[&str]); 3] = [
        (cfg!(feature = "jxl"), &["jxl"]),
        (cfg!(feature = "exr"), &["exr"]),
        (
            cfg!(feature = "more-formats"),
            &["pnm", "pbm", "pgm", "ppm", "pam", "qoi", "tga", "dds", "hdr", "ico", "ff"],
        ),
    ];
    groups.into_iter().filter(|(read, _)| *read).flat_map(|(_, names)| names.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_paths() {
        for address in ["s3://b/x", "gs://b", "https://u:p@h/x", "file:///x", "a+b.c-1://x"] {
            assert!(is_address(address.as_ref()), "{address}");
        }
        for path in ["shards", "/a/b", "./s3:/x", "a b://c", "://x", "1a://x", "C:\\x"] {
            assert!(!is_address(path.as_ref()), "{path}");
        }
    }
}
