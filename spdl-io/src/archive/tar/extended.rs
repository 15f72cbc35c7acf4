//! The records of pax extended headers: lines of the form `length key=value`.

use spdl_core::Result;

use super::header::corrupt;

/// The values of the extended headers of one member, or of the global extended headers.
#[derive(Clone, Debug, Default)]
pub(super) struct PaxValues {
    pub(super) path: PaxValue<Vec<u8>>,
    pub(super) link_path: PaxValue<Vec<u8>>,
    pub(super) size: PaxValue<u64>,
    pub(super) mtime: PaxValue<i64>,
    /// Whether the records mark the member as a sparse file, by any of the known conventions.
    pub(super) is_sparse: bool,
    /// The name of a sparse file. Its header holds only a generated name.
    pub(super) sparse_name: PaxValue<Vec<u8>>,
}

/// The value of a pax record. `Some(None)` is an invalid time, or an empty record, which removes an
/// earlier value.
pub(super) type PaxValue<T> = Option<Option<T>>;

/// How to handle two records with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DuplicateRecords {
    /// For one member: conflicting records are an error, because programs disagree on which record applies.
    MustAgree,
    /// For global headers: the last record applies; an empty record removes the value.
    Replace,
}

impl PaxValues {
    /// Adds the records of one extended header, whose data start at `offset` of the archive.
    ///
    /// # Errors
    /// `Corrupt` for malformed or conflicting records.
    pub(super) fn add(
        &mut self,
        data: &[u8],
        offset: u64,
        duplicates: DuplicateRecords,
    ) -> Result<()> {
        let mut rest = data;
        // Some programs pad the records with zero bytes.
        while !rest.is_empty() && !rest.iter().all(|&byte| byte == 0) {
            let at = offset + (data.len() - rest.len()) as u64;
            let (key, value, len) = record(rest)
                .ok_or_else(|| corrupt("malformed record in a pax extended header", at))?;
            self.set(key, value, at, duplicates)?;
            rest = &rest[len..];
        }
        Ok(())
    }

    fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        offset: u64,
        duplicates: DuplicateRecords,
    ) -> Result<()> {
        let name = key.escape_ascii();
        match key {
            b"path" => put(&mut self.path, name_of(key, value, offset)?, &name, offset, duplicates),
            b"linkpath" => {
                put(&mut self.link_path, name_of(key, value, offset)?, &name, offset, duplicates)
            }
            b"GNU.sparse.name" => {
                put(&mut self.sparse_name, name_of(key, value, offset)?, &name, offset, duplicates)
            }
            b"size" => {
                let size = match value {
                    [] => None,
                    digits => Some(decimal(digits).ok_or_else(|| {
                        let value = value.escape_ascii();
                        corrupt(format!("invalid size={value} in a pax extended header"), offset)
                    })?),
                };
                put(&mut self.size, size, &name, offset, duplicates)
            }
            b"mtime" => {
                self.mtime = Some(seconds(value));
                Ok(())
            }
            // Solaris stores the holes of a sparse file in a separate record.
            b"SUN.holesdata" => {
                self.is_sparse = true;
                Ok(())
            }
            _ => {
                self.is_sparse |= key.starts_with(b"GNU.sparse.");
                Ok(())
            }
        }
    }
}

/// Sets a value, which may exist already.
fn put<T: PartialEq>(
    slot: &mut PaxValue<T>,
    value: Option<T>,
    name: &impl std::fmt::Display,
    offset: u64,
    duplicates: DuplicateRecords,
) -> Result<()> {
    let conflicts = slot.as_ref().is_some_and(|existing| *existing != value);
    if duplicates == DuplicateRecords::MustAgree && conflicts {
        let message = format!("conflicting values of {name} in pax extended headers");
        return Err(corrupt(message, offset));
    }
    *slot = Some(value);
    Ok(())
}

/// The value as a name; `None` if it is empty.
fn name_of(key: &[u8], value: &[u8], offset: u64) -> Result<Option<Vec<u8>>> {
    if value.contains(&0) {
        // Programs disagree on whether a name ends at a NUL byte.
        let message = format!("NUL byte in pax record {}", key.escape_ascii());
        return Err(corrupt(message, offset));
    }
    Ok((!value.is_empty()).then(|| value.to_vec()))
}

/// The key, the value and the length in bytes of the first record.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], usize)> {
    // A `u64` has at most 20 digits.
    let space = bytes.iter().take(20).position(|&byte| byte == b' ')?;
    let len = usize::try_from(decimal(&bytes[..space])?).ok()?;
    let [content @ .., b'\n'] = bytes.get(space + 1..len)? else { return None };
    let equals = content.iter().position(|&byte| byte == b'=')?;
    let (key, value) = (&content[..equals], &content[equals + 1..]);
    (!key.is_empty()).then_some((key, value, len))
}

/// A decimal number without a sign.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The seconds of a time, rounded down: `-1.5` is -2.
fn seconds(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if digits.is_empty() || !all_digits(digits) || !all_digits(fraction) {
        return None;
    }
    let value: i64 = whole.parse().ok()?;
    let is_below = whole.starts_with('-') && fraction.bytes().any(|digit| digit != b'0');
    value.checked_sub(i64::from(is_below))
}

#[cfg(test)]
mod tests {
    use spdl_core::ErrorKind;

    use super::*;

    fn read(data: &[u8]) -> Result<PaxValues> {
        let mut extended = PaxValues::default();
        extended.add(data, 0, DuplicateRecords::MustAgree)?;
        Ok(extended)
    }

    #[test]
    fn records_are_read_by_their_length() {
        // A value may contain line breaks and equals signs.
        let extended = read(b"16 path=a=b\nc d\n12 size=123\n20 comment=whatever\n").unwrap();
        assert_eq!(extended.path, Some(Some(b"a=b\nc d".to_vec())));
        assert_eq!(extended.size, Some(Some(123)));
        assert!(!extended.is_sparse);
        assert!(read(b"22 GNU.sparse.major=1\n").unwrap().is_sparse);
    }

    #[test]
    fn malformed_records_are_corrupt_at_their_offset() {
        let malformed: [&[u8]; 10] = [
            b"8 path=ab\n",
            b"99 path=a\n",
            b"9 path=aa",
            b"11 pathaaa\n",
            b"6 =ab\n",
            b"+9 path=a\n",
            b"09x path=a\n",
            b"12 size=-12\n",
            b"12 path=a\0b\n",
            b"99999999999999999999999 path=a\n",
        ];
        for bad in malformed {
            let data = [&b"9 size=1\n"[..], bad].concat();
            let error = read(&data).err().unwrap_or_else(|| panic!("{}", bad.escape_ascii()));
            assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(9)), "{error}");
        }
    }

    #[test]
    fn conflicting_records_are_an_error_unless_they_are_global() {
        assert!(read(b"9 size=1\n9 size=1\n").is_ok());
        assert_eq!(read(b"9 size=1\n9 size=2\n").err().unwrap().kind(), ErrorKind::Corrupt);
        assert_eq!(read(b"9 path=a\n9 path=b\n").err().unwrap().kind(), ErrorKind::Corrupt);
        let mut global = PaxValues::default();
        global.add(b"11 path=ab\n9 path=b\n", 0, DuplicateRecords::Replace).unwrap();
        assert_eq!(global.path, Some(Some(b"b".to_vec())));
        global.add(b"8 path=\n", 0, DuplicateRecords::Replace).unwrap();
        assert_eq!(global.path, Some(None));
    }

    #[test]
    fn times_are_rounded_down_to_seconds() {
        assert_eq!(seconds(b"1350244992.023960108"), Some(1_350_244_992));
        assert_eq!(seconds(b"-1.5"), Some(-2));
        assert_eq!(seconds(b"-1.0"), Some(-1));
        assert_eq!(seconds(b"-0.5"), Some(-1));
        for bad in [&b"999xxx"[..], b"", b"-", b"1.x", b"1e3", b"99999999999999999999"] {
            assert_eq!(seconds(bad), None, "{}", bad.escape_ascii());
        }
    }
}
