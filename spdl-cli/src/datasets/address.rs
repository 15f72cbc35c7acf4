//! Paths and URLs of the command line.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use spdl_io::stores::Address;

/// Paths and URLs as messages show them: without passwords and signatures.
pub(crate) fn shown(addresses: &[PathBuf]) -> PathBuf {
    let shown = |address: &PathBuf| match address.to_str().map(Address::parse) {
        Some(Ok(parsed)) if parsed.scheme() != "file" => parsed.to_string(),
        // An invalid URL may contain secrets, so it is not shown; the error gives the reason.
        Some(Err(_)) => "the URL".to_owned(),
        _ => address.display().to_string(),
    };
    match addresses {
        [path] if path.to_str().is_none() => path.clone(),
        [] => PathBuf::new(),
        [one] => shown(one).into(),
        [first, rest @ ..] => format!("{} and {} more", shown(first), rest.len()).into(),
    }
}

/// Whether a path or URL is a URL of a store, and not a local file. Invalid URLs count as URLs.
pub(crate) fn is_address(place: &Path) -> bool {
    match place.to_str().map(Address::parse) {
        Some(Ok(address)) => address.scheme() != "file",
        Some(Err(_)) => true,
        // A path that is not UTF-8 is not a URL.
        None => false,
    }
}

/// Whether a URL has a query. The query may be a signature that is valid for this object only.
pub(crate) fn is_signed(place: &Path) -> bool {
    let address = place.to_str().map(Address::parse);
    matches!(address, Some(Ok(address)) if address.query().is_some())
}

/// Parses a path or URL of the command line; a `file:` URL becomes its path.
pub(crate) fn path_or_url() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(as_path)
}

/// Converts `file:///a%20b` to `/a b`; other values are unchanged.
fn as_path(place: PathBuf) -> PathBuf {
    match place.to_str().map(Address::parse) {
        Some(Ok(address)) if address.scheme() == "file" => {
            let path = address.key().to_path().into_owned();
            // A decoded path could look like a URL, so `./` is prepended.
            if path == place || !is_address(&path) { path } else { Path::new(".").join(path) }
        }
        _ => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_distinguished_from_paths() {
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
    fn a_file_url_becomes_a_path() {
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
