//! File name patterns: `train-{000..147}.tar`, `data/*.parquet`, or a folder.

use std::fs;
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt;
use spdl_core::{Error, ErrorKind, Result};

use super::expand_braces;
use crate::fetch::{Fetcher, Key};
use crate::files::os_error;

/// The file names of a data set.
#[derive(Clone, Copy)]
pub(super) struct FilePatterns<'a> {
    /// The pattern for the files of a folder.
    pub(super) in_folder: &'a str,
    /// The suffix of index files. Patterns do not match an index next to its file.
    pub(super) index_suffix: Option<&'a str>,
}

impl FilePatterns<'_> {
    /// Sorts keys, and removes index files; `None` if there are no keys.
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

/// A pattern after brace expansion.
enum ParsedPattern {
    /// A literal name.
    One(Key),
    /// A folder, and a pattern for the names in it.
    Listed { folder: String, pattern: String },
}

fn parse_pattern(pattern: &str) -> Result<Vec<ParsedPattern>> {
    let place = |name: String| {
        if name.starts_with("pipe:") {
            let error = Error::new(ErrorKind::Unsupported, "`pipe:` commands are not supported");
            // The command may contain secrets.
            return Err(error.with_key("pipe:"));
        }
        let base = name.rfind('/').map_or(0, |slash| slash + 1);
        // In an address, a question mark starts the query.
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

/// Whether a name matches a pattern of `*` (any bytes) and `?` (one byte).
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // The position of the last star, and the end of what it matches so far.
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

/// [`matches`], except that wildcards do not match hidden files.
fn matches_visible(pattern: &str, name: &[u8]) -> bool {
    (pattern.starts_with('.') || !name.starts_with(b".")) && matches(pattern.as_bytes(), name)
}

fn nothing_found(folder: &str, pattern: &str) -> Error {
    let error = Error::new(ErrorKind::NotFound, "no file matches this pattern");
    error.with_key(Key::from(format!("{folder}{pattern}")).display_name())
}

/// The file names of tar shards and their indexes.
const ARCHIVES: FilePatterns<'static> =
    FilePatterns { in_folder: "*.tar", index_suffix: Some(".idx") };

/// The local tar shards that a pattern matches, without index files.
///
/// Braces are expanded by [`expand_braces`]. In the last part of the path, `*` matches any bytes,
/// and `?` matches one byte. Only a pattern that begins with a dot matches hidden files. A folder
/// matches its `*.tar` files. A literal name is returned whether or not it exists.
///
/// # Errors
/// - `NotFound` if an expanded pattern or a folder matches no file.
/// - `Unsupported` for a `pipe:` command.
/// - The errors of [`expand_braces`] and of the operating system.
pub fn local_files(pattern: &str) -> Result<Vec<PathBuf>> {
    let keys = local_keys(pattern, &ARCHIVES)?;
    Ok(keys.iter().map(|key| key.to_path().into_owned()).collect())
}

/// The tar shards of a store that a pattern matches: see [`local_files`]. A folder must end with a slash.
///
/// # Errors
/// The errors of [`local_files`], and of [`Fetcher::list`] if the pattern requires a listing.
pub async fn stored_files(fetcher: &dyn Fetcher, pattern: &str) -> Result<Vec<Key>> {
    stored_keys(fetcher, pattern, &ARCHIVES).await
}

/// The local files that a pattern matches, or the files of a folder.
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
    let failed = |error| os_error("cannot list the folder", &Key::from_path(path), error);
    let mut keys = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let name = Key::from_path(entry.map_err(failed)?.file_name());
        if matches_visible(pattern, name.as_bytes()) {
            keys.push(Key::from_bytes(&[folder.as_bytes(), name.as_bytes()].concat()));
        }
    }
    names.sort(keys).ok_or_else(|| nothing_found(folder, pattern))
}

/// The objects of a store that a pattern matches, or the objects of a folder if it ends with a slash.
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
            if name.filter(is_here).is_some_and(|name| matches_visible(&pattern, name)) {
                found.push(object.key);
            }
        }
        let found = names.sort(found);
        keys.extend(found.ok_or_else(|| nothing_found(&folder.to_string(), &pattern))?);
    }
    Ok(keys)
}
