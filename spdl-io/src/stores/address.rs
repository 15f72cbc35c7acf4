//! An address as people write it, taken apart; what is secret in it is never shown.

use std::fmt;

use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::Key;
use crate::stores::Secret;

/// Where an object, or a folder of them, lies: `s3://bucket/prefix/x.tar`, or a path.
///
/// Displayed, it has neither name and password nor query. Servers of the web are told apart by their
/// names in lower case and their ports; 80 of `http:` and 443 of `https:` need not be said, and are left
/// out.
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

/// Their keys stand in addresses as they are, as everybody writes them.
const OBJECT_STORES: [&str; 3] = ["s3", "gs", "az"];

impl Address {
    /// Takes an address apart. What has no scheme is a path of this machine, and its scheme is
    /// `file`.
    ///
    /// In addresses of object stores (`s3:`, `gs:`, `az:`) the key stands as it is; in all others
    /// `%` and two digits are a byte, and `?` begins a query.
    ///
    /// # Errors
    /// `InvalidArgument` for a scheme without a host, and for name and password, or a query, where
    /// they do not belong; the message does not hold the address.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((scheme, rest)) = split_scheme(text) else {
            return Ok(Address::file(Key::from(text)));
        };
        if scheme == "file" {
            return file_address(rest);
        }
        let Some(rest) = rest.strip_prefix("//") else {
            return Err(unusable(&scheme, "`//` and a host are missing behind the scheme"));
        };
        let is_object_store = OBJECT_STORES.contains(&scheme.as_str());
        let end = rest.find(if is_object_store { &['/'][..] } else { &['/', '?', '#'][..] });
        let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
        let (user, authority) = match authority.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, authority),
        };
        if authority.is_empty() {
            return Err(unusable(&scheme, "it names no host and no bucket"));
        }
        let mut address = Address {
            authority: usual_authority(&scheme, authority),
            user: None,
            key: Key::from(""),
            query: None,
            scheme,
        };
        if is_object_store {
            if user.is_some() {
                let fault = "name and password do not belong into it; see the source's options";
                return Err(unusable(&address.scheme, fault));
            }
            let key = path.strip_prefix('/').unwrap_or(path);
            if key.split_once('?').is_some_and(|(_, query)| query.contains('=')) {
                let fault = "it has a query; a signed address begins with `https:`";
                return Err(unusable(&address.scheme, fault));
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

    /// What stands before the colon, in lower case: `s3`, `https`, `file`.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The host and port, the bucket, or the container; empty for files.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// What lies there: an object, or a folder; empty where nothing is named.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The name and the password before the host.
    pub fn user(&self) -> Option<(&str, &Secret)> {
        self.user.as_ref().map(|(name, password)| (name.as_str(), password))
    }

    /// What stands behind `?`, which may be a signature.
    pub fn query(&self) -> Option<&Secret> {
        self.query.as_ref()
    }

    /// The same server, and nothing on it.
    #[cfg(feature = "http")]
    pub(crate) fn without_key(&self) -> Self {
        Address { key: Key::from(""), ..self.clone() }
    }

    /// The same without name, password and query.
    pub(crate) fn without_secrets(&self) -> Self {
        Address { user: None, query: None, ..self.clone() }
    }

    /// The store alone, as it can be shown.
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

/// The authority in the one way in which a server of the web is written; of other schemes as it stands.
fn usual_authority(scheme: &str, authority: &str) -> String {
    let usual_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return authority.to_owned(),
    };
    let authority = authority.to_ascii_lowercase();
    match authority.strip_suffix(usual_port) {
        Some(host) if !host.is_empty() => host.to_owned(),
        _ => authority,
    }
}

/// The beginning of addresses as [`Address`] displays them.
pub(super) fn usual_beginning(start: &str) -> String {
    let start = start.trim_end_matches('/');
    let Some((scheme, rest)) = start.split_once("://") else { return start.to_owned() };
    let scheme = scheme.to_ascii_lowercase();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}://{}{path}", usual_authority(&scheme, authority))
}

fn unusable(scheme: &str, fault: &str) -> Error {
    let message = format!("this address of scheme `{scheme}:` cannot be used: {fault}");
    Error::new(ErrorKind::InvalidArgument, message)
}

/// The scheme in lower case, and what is behind its colon. One letter is a drive of Windows, and
/// without `//` only `file:` is a scheme.
fn split_scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_scheme = scheme.len() > 1
        && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte));
    let scheme = scheme.to_ascii_lowercase();
    (is_scheme && (rest.starts_with("//") || scheme == "file")).then_some((scheme, rest))
}

fn file_address(rest: &str) -> Result<Address> {
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(rest) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if !host.is_empty() && host != "localhost" {
                let fault = "files of other machines cannot be read; a path needs `file:///`";
                return Err(unusable("file", fault));
            }
            path
        }
    };
    Ok(Address::file(Key::from_bytes(&percent_decoded(path))))
}

/// Bytes written as `%` and two hexadecimal digits; what is none stays as it is.
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
    fn what_has_no_scheme_is_a_path() {
        for path in ["a/b.tar", "/a/b%20c", "C:\\data\\x", "c:/x", "odd:name", "a b?c#d", ""] {
            assert_eq!(parts(path), three("file", "", path));
        }
        assert_eq!(parts("file:///a/b%20c"), three("file", "", "/a/b c"));
        assert_eq!(parts("FILE:a/b"), three("file", "", "a/b"));
        assert_eq!(parts("file://localhost/a"), three("file", "", "/a"));
        assert!(Address::parse("file://other/a").is_err());
    }

    #[test]
    fn keys_of_object_stores_stand_as_they_are() {
        let raw = "a%20b c#d/größe+1&?";
        assert_eq!(parts(&format!("S3://bucket/{raw}")), three("s3", "bucket", raw));
        assert_eq!(parts("gs://bucket"), three("gs", "bucket", ""));
        assert_eq!(parts("az://bucket//x"), three("az", "bucket", "/x"));
    }

    #[test]
    fn addresses_of_the_web_are_decoded_and_lose_their_fragment() {
        assert_eq!(parts("http://h:81/a%20b%2?x#y"), three("http", "h:81", "a b%2"));
        assert_eq!(parts("http://h?x=/y"), three("http", "h", ""));
        let address = Address::parse("https://me%40x:p%3aw@h/a?q=1#z").unwrap();
        let (name, password) = address.user().unwrap();
        assert_eq!((name, password.reveal()), ("me@x", "p:w"));
        assert_eq!(address.query().unwrap().reveal(), "q=1");
    }

    #[test]
    fn a_server_of_the_web_is_written_in_one_way() {
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
            assert_eq!(usual_beginning(start), usual);
        }
    }

    #[test]
    fn what_is_secret_is_in_no_message() {
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
