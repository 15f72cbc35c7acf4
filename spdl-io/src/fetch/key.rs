//! [`Key`]: the name of a file or object as bytes.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The key of a file or an object: a path, or a name in a store. Cheap to clone.
///
/// On Unix, a key holds any path, even if it is not UTF-8. On other systems, invalid parts of a
/// path that is not Unicode are replaced, so that reading it fails with `NotFound`.
///
/// `Display` shows a single line of printable text. Each byte of a control character, and each byte
/// that is not UTF-8, is shown as `\x` and two hexadecimal digits. In a URL (`https://…`), the user
/// name and password are omitted, and `?***` replaces the query and all text after it. Keys are
/// compared, hashed and sorted by their bytes.
///
/// ```
/// use spdl_io::Key;
/// let key = Key::from("cats/7.jpg");
/// assert_eq!(key.as_str(), Some("cats/7.jpg"));
///
/// let key = Key::from_bytes(b"caf\xe9\n.jpg");
/// assert_eq!(key.as_str(), None);
/// assert_eq!(key.to_string(), r"caf\xe9\x0a.jpg");
///
/// let key = Key::from("https://me:hunter2@host/a.jpg?signature=abc");
/// assert_eq!(key.to_string(), "https://host/a.jpg?***");
/// ```
#[derive(Clone)]
pub struct Key(Repr);

#[derive(Clone)]
enum Repr {
    Text(Arc<str>),
    /// Only for bytes that are not UTF-8, so that equal keys have equal representations.
    Bytes(Arc<[u8]>),
}

impl Key {
    /// Creates a key from bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Key(Repr::Text(text.into())),
            Err(_) => Key(Repr::Bytes(bytes.into())),
        }
    }

    /// Creates the key of a local file.
    pub fn from_path(path: impl AsRef<Path>) -> Self {
        Key::from_bytes(&path_bytes(path.as_ref()))
    }

    /// Returns the bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Text(text) => text.as_bytes(),
            Repr::Bytes(bytes) => bytes,
        }
    }

    /// Returns the key as text, or `None` if it is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Repr::Text(text) => Some(text),
            Repr::Bytes(_) => None,
        }
    }

    /// Returns the key as a local path.
    pub fn to_path(&self) -> Cow<'_, Path> {
        match &self.0 {
            Repr::Text(text) => Cow::Borrowed(Path::new(&**text)),
            Repr::Bytes(bytes) => bytes_path(bytes),
        }
    }

    /// Returns the text that [`Display`](fmt::Display) shows. Most calls allocate no memory.
    pub fn display_name(&self) -> Arc<str> {
        match &self.0 {
            Repr::Text(text) if !has_control(text) && secret_parts(text.as_bytes()).is_none() => {
                Arc::clone(text)
            }
            _ => self.to_string().into(),
        }
    }
}

fn has_control(text: &str) -> bool {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    !is_plain && text.contains(char::is_control)
}

#[cfg(unix)]
fn path_bytes(path: &Path) -> Cow<'_, [u8]> {
    Cow::Borrowed(path.as_os_str().as_encoded_bytes())
}

#[cfg(not(unix))]
fn path_bytes(path: &Path) -> Cow<'_, [u8]> {
    match path.to_string_lossy() {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

#[cfg(unix)]
fn bytes_path(bytes: &[u8]) -> Cow<'_, Path> {
    use std::os::unix::ffi::OsStrExt;
    Cow::Borrowed(Path::new(std::ffi::OsStr::from_bytes(bytes)))
}

#[cfg(not(unix))]
fn bytes_path(bytes: &[u8]) -> Cow<'_, Path> {
    Cow::Owned(PathBuf::from(String::from_utf8_lossy(bytes).into_owned()))
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Key(Repr::Text(text.into()))
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Key(Repr::Text(text.into()))
    }
}

impl From<Arc<str>> for Key {
    fn from(text: Arc<str>) -> Self {
        Key(Repr::Text(text))
    }
}

impl From<&Path> for Key {
    fn from(path: &Path) -> Self {
        Key::from_path(path)
    }
}

impl From<PathBuf> for Key {
    fn from(path: PathBuf) -> Self {
        Key::from_path(path)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.as_bytes();
        let Some((user, query)) = secret_parts(bytes) else { return write_shown(f, bytes) };
        write_shown(f, &bytes[..user.start])?;
        write_shown(f, &bytes[user.end..query.unwrap_or(bytes.len())])?;
        if query.is_some() { f.write_str("?***") } else { Ok(()) }
    }
}

/// Finds the user information and the start of the query in a URL. Returns `None` if the key is
/// not a URL or has neither.
fn secret_parts(bytes: &[u8]) -> Option<(Range<usize>, Option<usize>)> {
    let colon = bytes.iter().position(|&byte| byte == b':')?;
    let host = colon + 3;
    let is_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+.-".contains(byte);
    if colon == 0 || !bytes[..colon].iter().all(is_scheme) || bytes.get(colon..host)? != b"://" {
        return None;
    }
    let rest = &bytes[host..];
    let host_end = rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len());
    let at = rest[..host_end].iter().rposition(|&byte| byte == b'@');
    let query = rest.iter().position(|&byte| byte == b'?').map(|mark| host + mark);
    if at.is_none() && query.is_none() {
        return None;
    }
    Some((host..at.map_or(host, |at| host + at + 1), query))
}

fn write_shown(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                let mut buffer = [0; 4];
                write_escaped(f, character.encode_utf8(&mut buffer).as_bytes())?;
            } else {
                fmt::Write::write_char(f, character)?;
            }
        }
        write_escaped(f, chunk.invalid())?;
    }
    Ok(())
}

fn write_escaped(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// Quotes a name for a POSIX shell, if necessary.
pub(crate) fn quoted(name: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "%+,-./:=@_".contains(letter);
    match name.chars().all(is_plain) {
        true => name.to_owned(),
        false => format!("'{}'", name.replace('\'', "'\\''")),
    }
}

/// The address of an object in a store, for messages; `store` is `None` for local files.
pub(crate) fn address_in(store: Option<&str>, key: &str) -> String {
    match store {
        Some(store) if !key.contains("://") => format!("{store}/{key}"),
        _ => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_names_are_shown_unchanged_without_a_copy() {
        let name: Arc<str> = "猫/größe 1.jpg".into();
        let key = Key::from(Arc::clone(&name));
        assert!(Arc::ptr_eq(&name, &key.display_name()));
        assert_eq!(key.to_string(), &*name);
    }

    #[test]
    fn control_characters_are_escaped() {
        let key = Key::from("a\n\x1b[31m\u{85}b");
        assert_eq!(key.to_string(), r"a\x0a\x1b[31m\xc2\x85b");
        assert_eq!(&*key.display_name(), key.to_string());
    }

    #[test]
    fn secrets_of_urls_are_not_shown() {
        for (key, shown) in [
            ("https://me:canary@host/a?sig=canary", "https://host/a?***"),
            ("https://host/a?sig=can:ary:0001", "https://host/a?***"),
            ("s3+x://canary@bucket", "s3+x://bucket"),
            ("https://host?canary@x", "https://host?***"),
            ("https://a@b:canary@host/x@y", "https://host/x@y"),
            ("https://host/a@b", "https://host/a@b"),
            ("what?/a://b@c?d", "what?/a://b@c?d"),
            ("a:b?c", "a:b?c"),
            ("://u@x?y", "://u@x?y"),
        ] {
            let key = Key::from(key);
            assert_eq!((&*key.to_string(), &*key.display_name()), (shown, shown));
            assert_eq!(format!("{key:?}"), format!("Key({shown})"));
        }
        let key = Key::from_bytes(b"https://u:canary\xff@h/\xff?canary");
        assert_eq!(key.to_string(), r"https://h/\xff?***");
    }

    #[cfg(unix)]
    #[test]
    fn paths_that_are_not_utf8_are_preserved() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"dir/\xff\x00\xfe.jpg"));
        let key = Key::from_path(path);
        assert_eq!(key.to_path(), path);
        assert_eq!(key.as_str(), None);
        assert_eq!(key.to_string(), r"dir/\xff\x00\xfe.jpg");
    }

    #[test]
    fn keys_sort_by_their_bytes() {
        let mut keys = [&b"b"[..], b"\xff", b"a/b", b"a.b", "ä".as_bytes()].map(Key::from_bytes);
        keys.sort();
        assert_eq!(keys, [&b"a.b"[..], b"a/b", b"b", "ä".as_bytes(), b"\xff"].map(Key::from_bytes));
    }
}
