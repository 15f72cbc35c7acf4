//! [`Address`]: a path or URL split into its parts. `Display` hides secrets.

use std::fmt;

use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::Key;
use crate::stores::Secret;

/// The address of an object or a folder: a URL such as `s3://bucket/prefix/x.tar`, or a path.
///
/// `Display` omits the user name and the password, and shows `?***` in place of the query. For
/// `http` and `https`, the host is converted to lower case and the default port (80 or 443) is
/// removed.
///
/// ```
/// use spdl_io::stores::Address;
/// let address = Address::parse("https://me:pw@host:8000/a%20folder/x.tar?signature=abc")?;
/// assert_eq!((address.scheme(), address.authority()), ("https", "host:8000"));
/// assert_eq!(address.key().as_str(), Some("a folder/x.tar"));
/// assert_eq!(address.to_string(), "https://host:8000/a folder/x.tar?***");
/// # Ok::<(), spdl_io::Error>(())
/// ```
#[derive(Clone)]
pub struct Address {
    scheme: String,
    authority: String,
    user: Option<(String, Secret)>,
    key: Key,
    query: Option<Secret>,
}

/// Schemes whose addresses hold the key without percent encoding.
const OBJECT_STORES: [&str; 3] = ["s3", "gs", "az"];

impl Address {
    /// Parses an address. Text without a scheme is a local path with the scheme `file`.
    ///
    /// In addresses of object stores (`s3:`, `gs:`, `az:`) and of the Hugging Face Hub (`hf:`) the key is taken literally. In all other
    /// URLs, percent encoding (RFC 3986) is decoded. Except in `file:` URLs, `?` starts the query
    /// and a fragment (`#...`) is removed.
    ///
    /// # Errors
    /// `InvalidArgument` if a URL other than `file:` names no host or bucket, if an `hf:` address names no data set, if an object store's
    /// address holds user information or a query (a `?` that a `=` follows), or if a `file:` URL
    /// names another machine. The message does not contain the address, which may hold secrets.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((scheme, rest)) = split_scheme(text) else {
            return Ok(Address::file(Key::from(text)));
        };
        if scheme == "file" {
            return file_address(rest);
        }
        let Some(rest) = rest.strip_prefix("//") else {
            return Err(invalid_address(&scheme, "`//` and a host are missing after the scheme"));
        };
        if scheme == "hf" {
            return hub_address(rest);
        }
        let is_object_store = OBJECT_STORES.contains(&scheme.as_str());
        let end = rest.find(if is_object_store { &['/'][..] } else { &['/', '?', '#'][..] });
        let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
        let (user, authority) = match authority.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, authority),
        };
        if authority.is_empty() {
            return Err(invalid_address(&scheme, "no host or bucket name"));
        }
        let mut address = Address {
            authority: normalized_authority(&scheme, authority),
            user: None,
            key: Key::from(""),
            query: None,
            scheme,
        };
        if is_object_store {
            if user.is_some() {
                let fault = "object stores accept no user name or password in the address; pass \
                             credentials in the source options";
                return Err(invalid_address(&address.scheme, fault));
            }
            let key = path.strip_prefix('/').unwrap_or(path);
            if key.split_once('?').is_some_and(|(_, query)| query.contains('=')) {
                let fault = "object stores accept no query in the address; use the `https:` URL of a \
                             presigned object";
                return Err(invalid_address(&address.scheme, fault));
            }
            address.key = Key::from(key);
            return Ok(address);
        }
        address.user = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let decoded = |text| String::from_utf8_lossy(&percent_decoded(text)).into_owned();
            (decoded(name), decoded(password).into())
        });
        let path = path.split_once('#').map_or(path, |(path, _)| path);
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query.into())),
            None => (path, None),
        };
        address.query = query;
        address.key = Key::from_bytes(&percent_decoded(path.strip_prefix('/').unwrap_or(path)));
        Ok(address)
    }

    fn file(key: Key) -> Self {
        let (scheme, authority) = ("file".to_owned(), String::new());
        Address { scheme, authority, user: None, key, query: None }
    }

    /// Returns the scheme in lower case, without the colon: `s3`, `https`, `file`.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the host and port, the bucket, or the container; for the Hugging Face Hub,
    /// `datasets/USER/NAME@REVISION`. Empty for files.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the decoded key of the object or folder. Empty if the URL has no path.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the user name and the password of the URL.
    pub fn user(&self) -> Option<(&str, &Secret)> {
        self.user.as_ref().map(|(name, password)| (name.as_str(), password))
    }

    /// Returns the query without the `?`. The query may hold a signature.
    pub fn query(&self) -> Option<&Secret> {
        self.query.as_ref()
    }

    /// Returns the address of the server, without a key.
    #[cfg(feature = "http")]
    pub(crate) fn without_key(&self) -> Self {
        Address { key: Key::from(""), ..self.clone() }
    }

    /// Returns the address without user name, password and query.
    pub(crate) fn without_secrets(&self) -> Self {
        Address { user: None, query: None, ..self.clone() }
    }

    /// Returns the scheme and the authority, which hold no secrets.
    pub(crate) fn store(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scheme == "file" {
            return self.key.fmt(f);
        }
        write!(f, "{}/{}", self.store(), self.key)?;
        if self.query.is_some() { f.write_str("?***") } else { Ok(()) }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// Normalizes the authority of a web server. Authorities of other schemes stay as they are.
fn normalized_authority(scheme: &str, authority: &str) -> String {
    let default_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return authority.to_owned(),
    };
    let authority = authority.to_ascii_lowercase();
    match authority.strip_suffix(default_port) {
        Some(host) if !host.is_empty() => host.to_owned(),
        _ => authority,
    }
}

/// Normalizes an address prefix to the form in which [`Address`] displays addresses.
pub(super) fn normalized_prefix(start: &str) -> String {
    let start = start.trim_end_matches('/');
    let Some((scheme, rest)) = start.split_once("://") else { return start.to_owned() };
    let scheme = scheme.to_ascii_lowercase();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}://{}{path}", normalized_authority(&scheme, authority))
}

fn invalid_address(scheme: &str, fault: &str) -> Error {
    let message = format!("invalid address with scheme {scheme:?}: {fault}");
    Error::new(ErrorKind::InvalidArgument, message)
}

/// Splits off the scheme and converts it to lower case.
///
/// A single letter is a Windows drive. Without `//`, only `file:` is a scheme.
fn split_scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_scheme = scheme.len() > 1
        && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte));
    let scheme = scheme.to_ascii_lowercase();
    (is_scheme && (rest.starts_with("//") || scheme == "file")).then_some((scheme, rest))
}

/// The address of a file of a data set of the Hugging Face Hub: `datasets/USER/NAME@REVISION/KEY`. Without a revision,
/// the branch `main`.
fn hub_address(rest: &str) -> Result<Address> {
    let fault = "expected hf://datasets/USER/NAME/PATH or hf://datasets/USER/NAME@REVISION/PATH; models, spaces and \
                 buckets are not supported";
    let invalid = || invalid_address("hf", fault);
    let mut parts = rest.splitn(4, '/');
    let (Some("datasets"), Some(user), Some(name)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(invalid());
    };
    let mut key = parts.next().unwrap_or_default();
    let (name, revision) = match name.split_once('@') {
        None => (name, None),
        // `refs/convert/parquet` and `refs/pr/1` are revisions.
        Some((name, "refs")) => {
            let mut parts = key.splitn(3, '/');
            let (Some(kind), Some(which)) = (parts.next(), parts.next()) else {
                return Err(invalid());
            };
            key = parts.next().unwrap_or_default();
            (name, Some(format!("refs/{kind}/{which}")))
        }
        Some((name, revision)) => {
            (name, Some(String::from_utf8_lossy(&percent_decoded(revision)).into_owned()))
        }
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name = |name: &str| name.bytes().all(is_plain) && !["", ".", ".."].contains(&name);
    if !is_name(user)
        || !is_name(name)
        || revision.as_deref().is_some_and(|it| ["", ".", ".."].contains(&it))
    {
        return Err(invalid());
    }
    let revision = revision.map(|revision| format!("@{revision}")).unwrap_or_default();
    Ok(Address {
        scheme: "hf".to_owned(),
        authority: format!("datasets/{user}/{name}{revision}"),
        user: None,
        key: Key::from(key),
        query: None,
    })
}

fn file_address(rest: &str) -> Result<Address> {
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(rest) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if !host.is_empty() && host != "localhost" {
                let fault =
                    "the host must be empty or `localhost`; write local paths as `file:///path`";
                return Err(invalid_address("file", fault));
            }
            path
        }
    };
    Ok(Address::file(Key::from_bytes(&percent_decoded(path))))
}

/// Decodes percent encoding (RFC 3986, 2.1). Invalid sequences stay as they are.
pub(crate) fn percent_decoded(text: &str) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (high, low) = (digit(after.first()), digit(after.get(1)));
        if let (b'%', Some(high), Some(low)) = (first, high, low) {
            bytes.push((high * 16 + low) as u8);
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (String, String, String) {
        let address = Address::parse(text).unwrap();
        (address.scheme.clone(), address.authority.clone(), address.key.to_string())
    }

    fn three(scheme: &str, authority: &str, key: &str) -> (String, String, String) {
        (scheme.into(), authority.into(), key.into())
    }

    #[test]
    fn text_without_scheme_is_a_path() {
        for path in ["a/b.tar", "/a/b%20c", "C:\\data\\x", "c:/x", "odd:name", "a b?c#d", ""] {
            assert_eq!(parts(path), three("file", "", path));
        }
        assert_eq!(parts("file:///a/b%20c"), three("file", "", "/a/b c"));
        assert_eq!(parts("FILE:a/b"), three("file", "", "a/b"));
        assert_eq!(parts("file://localhost/a"), three("file", "", "/a"));
        assert!(Address::parse("file://other/a").is_err());
    }

    #[test]
    fn object_store_keys_are_literal() {
        let raw = "a%20b c#d/größe+1&?";
        assert_eq!(parts(&format!("S3://bucket/{raw}")), three("s3", "bucket", raw));
        assert_eq!(parts("gs://bucket"), three("gs", "bucket", ""));
        assert_eq!(parts("az://bucket//x"), three("az", "bucket", "/x"));
    }

    #[test]
    fn addresses_of_hugging_face_name_a_data_set() {
        for (text, authority, key) in [
            (
                "hf://datasets/me/pets/data/a b%20?.parquet",
                "datasets/me/pets",
                "data/a b%20?.parquet",
            ),
            ("hf://datasets/me/pets", "datasets/me/pets", ""),
            ("HF://datasets/me/pets@v1.0/", "datasets/me/pets@v1.0", ""),
            ("hf://datasets/me/p@refs/pr/1/a/b", "datasets/me/p@refs/pr/1", "a/b"),
            ("hf://datasets/me/p@refs%2Fpr%2F1/a", "datasets/me/p@refs/pr/1", "a"),
        ] {
            assert_eq!(parts(text), three("hf", authority, key));
        }
        for text in [
            "hf://me/model/config.json",
            "hf://buckets/me/data/a.tar",
            "hf://spaces/me/app/a",
            "hf://datasets/squad",
            "hf://datasets/me/pets@/a",
            "hf://datasets/me/pets@refs/pr",
            "hf://datasets/../pets/a",
            "hf://datasets/me:canary/pets/a",
        ] {
            let error = Address::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("expected hf://datasets/USER/NAME/PATH"), "{error}");
            assert!(!error.report().contains("canary"), "{error}");
        }
    }

    #[test]
    fn web_addresses_are_decoded_without_fragment() {
        assert_eq!(parts("http://h:81/a%20b%2?x#y"), three("http", "h:81", "a b%2"));
        assert_eq!(parts("http://h?x=/y"), three("http", "h", ""));
        let address = Address::parse("https://me%40x:p%3aw@h/a?q=1#z").unwrap();
        let (name, password) = address.user().unwrap();
        assert_eq!((name, password.reveal()), ("me@x", "p:w"));
        assert_eq!(address.query().unwrap().reveal(), "q=1");
    }

    #[test]
    fn web_authorities_are_normalized() {
        for (text, store) in [
            ("https://h:443/x", "https://h"),
            ("HTTPS://Host.Example:443", "https://host.example"),
            ("http://h:80/x", "http://h"),
            ("http://h:443/x", "http://h:443"),
            ("https://h:80/x", "https://h:80"),
            ("https://h:4430/x", "https://h:4430"),
            ("https://u:443@h:443/x", "https://h"),
            ("http://[::80]/x", "http://[::80]"),
            ("http://[::1]:80/x", "http://[::1]"),
            ("s3://Bucket:443/x", "s3://Bucket:443"),
        ] {
            assert_eq!(Address::parse(text).unwrap().store(), store, "{text}");
        }
        for (start, usual) in [
            ("", ""),
            ("s3:", "s3:"),
            ("https://H:443", "https://h"),
            ("https://H:443/A/", "https://h/A"),
            ("s3://B/A", "s3://B/A"),
        ] {
            assert_eq!(normalized_prefix(start), usual);
        }
    }

    #[test]
    fn errors_and_display_hold_no_secrets() {
        for text in [
            "s3://KEY:canary@bucket/a",
            "s3://bucket/a?X-Amz-Signature=canary",
            "https://me:canary@",
            "acme://?canary",
        ] {
            let error = Address::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(!error.report().contains("canary"), "{}", error.report());
        }
        let address = Address::parse("https://me:canary@h/a?sig=canary").unwrap();
        let shown = format!("{address} {address:?}");
        assert_eq!(shown, "https://h/a?*** Address(https://h/a?***)");
    }
}
