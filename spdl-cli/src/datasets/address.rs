//! Paths and addresses of the command line.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use spdl_io::stores::Address;

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
pub(crate) fn path_or_url() -> impl TypedValueParser<Value = PathBuf> {
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
