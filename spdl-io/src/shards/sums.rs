//! [`Sums`]: the checksums of the members of a shard.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use spdl_core::{Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

use super::manifest::sum_of;
use crate::fetch::Key;
use crate::files::{os_error, read_regular_file};

/// Size limit of a checksum file in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// The checksums of a shard's members in archive order: the file `SHARD.tar.sums`.
///
/// Each line holds the XXH3-128 hash of the member's data as 32 hexadecimal digits, two spaces,
/// and the name. In a name, a backslash is written as `\\`, a line feed as `\n` and a carriage
/// return as `\r`; such a line begins with a backslash. `xxh128sum --check` accepts this format,
/// in a folder into which the shard was extracted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(Vec<Sum>);

/// The checksum of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Name of the member.
    pub name: Key,
    /// XXH3-128 hash of its data.
    pub xxh3_128: u128,
}

impl Sums {
    /// Returns the path of a shard's checksum file, which is the shard's path plus `.sums`.
    pub fn path_of(shard: impl AsRef<Path>) -> PathBuf {
        let mut path = shard.as_ref().as_os_str().to_owned();
        path.push(".sums");
        path.into()
    }

    /// Maximum size of a checksum file: 1 GiB.
    pub const MAX_BYTES: u64 = MAX_BYTES;

    /// Reads the checksums of a shard's members. Also returns the XXH3-128 hash of the file itself.
    ///
    /// # Errors
    /// Errors of the operating system, such as `NotFound`. `Corrupt` with the offset of an invalid
    /// line. `LimitExceeded` if the file is larger than 1 GiB.
    pub fn read(shard: impl AsRef<Path>) -> Result<(Self, u128)> {
        let key = Key::from_path(Sums::path_of(&shard));
        let missing = || {
            let error = io::ErrorKind::NotFound.into();
            os_error("cannot read the checksum file", &key, error)
        };
        let text = Sums::text(shard)?.ok_or_else(missing)?;
        let sums = Sums::parse(&text).map_err(|error| error.with_key(key.display_name()))?;
        Ok((sums, XxHash3_128::oneshot(&text)))
    }

    /// Reads the text of a shard's checksum file. `None` if there is none.
    pub(crate) fn text(shard: impl AsRef<Path>) -> Result<Option<Vec<u8>>> {
        let path = Sums::path_of(shard);
        let key = Key::from_path(&path);
        let failed = |error| os_error("cannot read the checksum file", &key, error);
        let text = match read_regular_file(&path, MAX_BYTES + 1) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(failed)?,
        };
        if text.len() as u64 > MAX_BYTES {
            let message = format!("the checksum file exceeds the limit of {MAX_BYTES} bytes");
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_key(key.display_name()));
        }
        Ok(Some(text))
    }

    /// Returns the checksums in archive order.
    pub fn as_slice(&self) -> &[Sum] {
        &self.0
    }

    /// Parses the text of a checksum file.
    ///
    /// # Errors
    /// `Corrupt` with the byte offset of an invalid line.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let sums = lines(text).map(|line| {
            let (name, xxh3_128) = line?;
            Ok(Sum { name: Key::from_bytes(&name), xxh3_128 })
        });
        Ok(Sums(sums.collect::<Result<_>>()?))
    }
}

/// The names and checksums in the text of a checksum file.
///
/// # Errors
/// `Corrupt` with the byte offset of an invalid line.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = Result<(Cow<'_, [u8]>, u128)>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
        let len = rest.iter().position(|&byte| byte == b'\n');
        at = len.map_or(text.len(), |len| start + len + 1);
        let found = len.and_then(|len| line(&rest[..len]));
        Some(found.ok_or_else(|| {
            let message = "invalid line in a checksum file";
            Error::new(ErrorKind::Corrupt, message).with_offset(start as u64)
        }))
    })
}

/// Appends the line of a member.
pub(super) fn append(lines: &mut Vec<u8>, name: &[u8], sum: u128) {
    let special = |byte: &u8| matches!(byte, b'\\' | b'\n' | b'\r');
    if name.iter().any(special) {
        lines.push(b'\\');
    }
    lines.extend_from_slice(format!("{sum:032x}  ").as_bytes());
    for &byte in name {
        match byte {
            b'\\' => lines.extend_from_slice(b"\\\\"),
            b'\n' => lines.extend_from_slice(b"\\n"),
            b'\r' => lines.extend_from_slice(b"\\r"),
            other => lines.push(other),
        }
    }
    lines.push(b'\n');
}

fn line(line: &[u8]) -> Option<(Cow<'_, [u8]>, u128)> {
    let (escaped, line) = match line.strip_prefix(b"\\") {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let (digits, rest) = line.split_at_checked(32)?;
    let xxh3_128 = sum_of(std::str::from_utf8(digits).ok()?)?;
    let name = rest.strip_prefix(b"  ").filter(|name| !name.is_empty())?;
    if !escaped {
        return Some((Cow::Borrowed(name), xxh3_128));
    }
    let mut plain = Vec::with_capacity(name.len());
    let mut bytes = name.iter();
    while let Some(&byte) = bytes.next() {
        plain.push(match byte {
            b'\\' => match bytes.next()? {
                b'\\' => b'\\',
                b'n' => b'\n',
                b'r' => b'\r',
                _ => return None,
            },
            other => other,
        });
    }
    Some((Cow::Owned(plain), xxh3_128))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_are_preserved() {
        let names = [
            &b"a.jpg"[..],
            b"a b",
            b"  c",
            b"line\nfeed\\n",
            b"\\",
            b"\r",
            b"caf\xe9",
            "猫".as_bytes(),
        ];
        let mut text = Vec::new();
        for (sum, name) in (7_u128..).zip(names) {
            append(&mut text, name, sum << 96);
        }
        assert_eq!(text.iter().filter(|&&byte| byte == b'\n').count(), names.len());
        let sums = Sums::parse(&text).unwrap();
        for (sum, (number, name)) in sums.as_slice().iter().zip((7_u128..).zip(names)) {
            assert_eq!((sum.name.as_bytes(), sum.xxh3_128), (name, number << 96));
        }
        assert_eq!(sums.as_slice().len(), names.len());
    }

    #[test]
    fn invalid_lines_are_reported_with_their_offset() {
        let mut good = Vec::new();
        append(&mut good, b"a", 1);
        for bad in [
            &b"zz"[..],
            b"0123456789abcdef0123456789abcdef a\n",
            b"\n",
            b"\\0123456789abcdef0123456789abcdef  a\\x\n",
            b"+123456789abcdef0123456789abcdef  a\n",
        ] {
            let error = Sums::parse(&[&good, bad].concat()).unwrap_err();
            assert_eq!(
                (error.kind(), error.offset()),
                (ErrorKind::Corrupt, Some(good.len() as u64))
            );
        }
        // Truncated within a line.
        for len in 1..good.len() {
            assert!(Sums::parse(&good[..len]).is_err());
        }
    }
}
