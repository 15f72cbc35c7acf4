//! Which files a pattern means: `train-{000..147}.tar`, `data/*.parquet`, or a folder.

use std::fs;
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt;
use spdl_core::{Error, ErrorKind, Result};

use super::expand_braces;
use crate::fetch::{Fetcher, Key};
use crate::files::os_error;

/// What the files of a data set are called.
#[derive(Clone, Copy)]
pub(super) struct FilePatterns<'a> {
    /// Which files of a folder are meant, where a folder is given.
    pub(super) in_folder: &'a str,
    /// What follows the name of a file in that of its index, which no pattern means.
    pub(super) index_suffix: Option<&'a str>,
}

impl FilePatterns<'_> {
    /// These in order, without the indices of others among them; `None` where there are none.
    fn sort(&self, mut keys: Vec<Key>) -> Option<Vec<Key>> {
        keys.sort_unstable();
        if let Some(suffix) = self.index_suffix.filter(|suffix| !suffix.is_empty()) {
            let all = keys.clone();
            keys.retain(|key| {
                let indexed = key.as_bytes().strip_suffix(suffix.as_bytes());
                indexed.is_none_or(|file| all.binary_search(&Key::from_bytes(file)).is_err())
            });
        }
        if keys.is_empty() { None } else { Some(keys) }
    }
}

/// A pattern without its braces; one that lists a folder is split at the last slash.
enum ParsedPattern {
    One(Key),
    Listed { folder: String, pattern: String },
}

fn parse_pattern(pattern: &str) -> Result<Vec<ParsedPattern>> {
    let place = |name: String| {
        if name.starts_with("pipe:") {
            let error = Error::new(ErrorKind::Unsupported, "commands are not run to get shards");
            // The command may hold what is secret.
            return Err(error.with_key("pipe:"));
        }
        let base = name.rfind('/').map_or(0, |slash| slash + 1);
        // Behind a question mark, an address has no name any more.
        let is_address = name.contains("://");
        let is_pattern = name[base..].contains('*') || (!is_address && name[base..].contains('?'));
        Ok(match is_pattern {
            true => {
                ParsedPattern::Listed { folder: name[..base].into(), pattern: name[base..].into() }
            }
            false => ParsedPattern::One(name.into()),
        })
    };
    expand_braces(pattern)?.into_iter().map(place).collect()
}

/// Whether a name is one that a pattern of `*` (any letters) and `?` (any byte) means.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Where the last star stands, and up to where it reaches so far.
    let mut star = None;
    while from < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(&letter) if letter == b'?' || letter == name[from] => {
                at += 1;
                from += 1;
            }
            _ => match &mut star {
                Some((star_at, reached)) => {
                    *reached += 1;
                    (at, from) = (*star_at + 1, *reached);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&letter| letter == b'*')
}

/// Stars and question marks do not mean hidden files.
fn is_meant(pattern: &str, name: &[u8]) -> bool {
    (pattern.starts_with('.') || !name.starts_with(b".")) && matches(pattern.as_bytes(), name)
}

fn nothing_found(folder: &str, pattern: &str) -> Error {
    let error = Error::new(ErrorKind::NotFound, "there is no file of such a name");
    error.with_key(Key::from(format!("{folder}{pattern}")).display_name())
}

/// What tar archives are called, and the indices beside them.
const ARCHIVES: FilePatterns<'static> =
    FilePatterns { in_folder: "*.tar", index_suffix: Some(".idx") };

/// The files of this machine that a pattern means, without the indices of tar archives among them:
/// braces as of [`expand_braces`], and in the last part of the path `*` for any letters and `?` for one.
/// A folder is all its `*.tar`. A name without a pattern is itself, be it there or not.
///
/// # Errors
/// `NotFound` where no file has such a name; as [`expand_braces`]; `Unsupported` for `pipe:`; what the
/// operating system answers.
pub fn local_files(pattern: &str) -> Result<Vec<PathBuf>> {
    let keys = local_keys(pattern, &ARCHIVES)?;
    Ok(keys.iter().map(|key| key.to_path().into_owned()).collect())
}

/// The same of the objects of a store. A folder, which ends with a slash here, is all its `*.tar`.
///
/// # Errors
/// As [`local_files`], and those of [`Fetcher::list`] where the store has to be asked.
pub async fn stored_files(fetcher: &dyn Fetcher, pattern: &str) -> Result<Vec<Key>> {
    stored_keys(fetcher, pattern, &ARCHIVES).await
}

/// The files of this machine that a pattern means; where it is a folder, its files.
pub(super) fn local_keys(pattern: &str, names: &FilePatterns<'_>) -> Result<Vec<Key>> {
    if fs::metadata(pattern).is_ok_and(|metadata| metadata.is_dir()) {
        let folder = format!("{}/", pattern.trim_end_matches('/'));
        return list_folder(&folder, names.in_folder, names);
    }
    let mut keys = Vec::new();
    for place in parse_pattern(pattern)? {
        match place {
            ParsedPattern::One(key) => keys.push(key),
            ParsedPattern::Listed { folder, pattern } => {
                keys.extend(list_folder(&folder, &pattern, names)?);
            }
        }
    }
    Ok(keys)
}

fn list_folder(folder: &str, pattern: &str, names: &FilePatterns<'_>) -> Result<Vec<Key>> {
    let path = if folder.is_empty() { Path::new(".") } else { Path::new(folder) };
    let failed = |error| os_error("cannot list this folder", &Key::from_path(path), error);
    let mut keys = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let name = Key::from_path(entry.map_err(failed)?.file_name());
        if is_meant(pattern, name.as_bytes()) {
            keys.push(Key::from_bytes(&[folder.as_bytes(), name.as_bytes()].concat()));
        }
    }
    names.sort(keys).ok_or_else(|| nothing_found(folder, pattern))
}

/// The objects of a store that a pattern means; where it ends with a slash, those of that folder.
pub(super) async fn stored_keys(
    fetcher: &dyn Fetcher,
    pattern: &str,
    names: &FilePatterns<'_>,
) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    for place in parse_pattern(pattern)? {
        let (folder, pattern) = match place {
            ParsedPattern::One(folder) if folder.as_bytes().ends_with(b"/") => {
                (folder, names.in_folder.to_owned())
            }
            ParsedPattern::One(key) => {
                keys.push(key);
                continue;
            }
            ParsedPattern::Listed { folder, pattern } => (folder.into(), pattern),
        };
        let mut objects = fetcher.list(&folder).await?;
        let mut found = Vec::new();
        while let Some(object) = objects.try_next().await? {
            let name = object.key.as_bytes().strip_prefix(folder.as_bytes());
            let is_here = |name: &&[u8]| !name.contains(&b'/');
            if name.filter(is_here).is_some_and(|name| is_meant(&pattern, name)) {
                found.push(object.key);
            }
        }
        let found = names.sort(found);
        keys.extend(found.ok_or_else(|| nothing_found(&folder.to_string(), &pattern))?);
    }
    Ok(keys)
}
