//! The records of extended headers (pax): lines of `length key=value`.

use spdl_core::Result;

use super::header::corrupt;

/// What the extended headers before a member say of it; or, of the global ones, of all that follow.
#[derive(Clone, Debug, Default)]
pub(super) struct Extended {
    pub(super) path: Said<Vec<u8>>,
    pub(super) link_path: Said<Vec<u8>>,
    pub(super) size: Said<u64>,
    pub(super) mtime: Said<i64>,
    /// Whether the data are stored without their holes, by one of several conventions.
    pub(super) is_sparse: bool,
    /// The name, where the header before it has a made-up one.
    pub(super) sparse_name: Said<Vec<u8>>,
}

/// A value that an extended header may give. `Some(None)` is an empty one, which takes back what
/// was said before; and a time that is none.
pub(super) type Said<T> = Option<Option<T>>;

/// Whether a record that repeats another may say something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    /// For one member: programs disagree on which of two is meant, so none is.
    MustAgree,
    /// For all that follow: the last one counts, and an empty one takes the others back.
    Replace,
}

impl Extended {
    /// Adds the records of one extended header, whose data lie at byte `offset` of the archive.
    ///
    /// # Errors
    /// `Corrupt` where they are no records, or contradict earlier ones.
    pub(super) fn add(&mut self, data: &[u8], offset: u64, repeats: Repeats) -> Result<()> {
        let mut rest = data;
        // Some programs fill up with zero bytes.
        while !rest.is_empty() && !rest.iter().all(|&byte| byte == 0) {
            let at = offset + (data.len() - rest.len()) as u64;
            let (key, value, len) = record(rest)
                .ok_or_else(|| corrupt("a record of an extended header is malformed", at))?;
            self.set(key, value, at, repeats)?;
            rest = &rest[len..];
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8], offset: u64, repeats: Repeats) -> Result<()> {
        let name = key.escape_ascii();
        match key {
            b"path" => put(&mut self.path, name_of(key, value, offset)?, &name, offset, repeats),
            b"linkpath" => {
                put(&mut self.link_path, name_of(key, value, offset)?, &name, offset, repeats)
            }
            b"GNU.sparse.name" => {
                put(&mut self.sparse_name, name_of(key, value, offset)?, &name, offset, repeats)
            }
            b"size" => {
                let size = match value {
                    [] => None,
                    digits => Some(decimal(digits).ok_or_else(|| {
                        let value = value.escape_ascii();
                        corrupt(format!("an extended header says size={value}"), offset)
                    })?),
                };
                put(&mut self.size, size, &name, offset, repeats)
            }
            b"mtime" => {
                self.mtime = Some(seconds(value));
                Ok(())
            }
            // Solaris keeps the holes in a record of its own.
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

/// Puts a value where there may be one already.
fn put<T: PartialEq>(
    slot: &mut Said<T>,
    value: Option<T>,
    name: &impl std::fmt::Display,
    offset: u64,
    repeats: Repeats,
) -> Result<()> {
    if repeats == Repeats::MustAgree && slot.as_ref().is_some_and(|said| *said != value) {
        let message = format!("extended headers say two different things about {name}");
        return Err(corrupt(message, offset));
    }
    *slot = Some(value);
    Ok(())
}

/// The value as a name; `None` where it is empty.
fn name_of(key: &[u8], value: &[u8], offset: u64) -> Result<Option<Vec<u8>>> {
    if value.contains(&0) {
        // Some programs would end the name there, and others not.
        let message = format!("the record {} holds a zero byte", key.escape_ascii());
        return Err(corrupt(message, offset));
    }
    Ok((!value.is_empty()).then(|| value.to_vec()))
}

/// The first record: its key, its value, and its length in bytes.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], usize)> {
    // No length of a record that fits memory has more digits.
    let space = bytes.iter().take(20).position(|&byte| byte == b' ')?;
    let len = usize::try_from(decimal(&bytes[..space])?).ok()?;
    let [content @ .., b'\n'] = bytes.get(space + 1..len)? else { return None };
    let equals = content.iter().position(|&byte| byte == b'=')?;
    let (key, value) = (&content[..equals], &content[equals + 1..]);
    (!key.is_empty()).then_some((key, value, len))
}

/// A number of digits and nothing else.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whole seconds of a time such as `-1.5`, which is half a second after second -2.
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

    fn read(data: &[u8]) -> Result<Extended> {
        let mut extended = Extended::default();
        extended.add(data, 0, Repeats::MustAgree)?;
        Ok(extended)
    }

    #[test]
    fn records_are_read_by_their_length() {
        // A line break and an equals sign in a value are part of it.
        let extended = read(b"16 path=a=b\nc d\n12 size=123\n20 comment=whatever\n").unwrap();
        assert_eq!(extended.path, Some(Some(b"a=b\nc d".to_vec())));
        assert_eq!(extended.size, Some(Some(123)));
        assert!(!extended.is_sparse);
        assert!(read(b"22 GNU.sparse.major=1\n").unwrap().is_sparse);
    }

    #[test]
    fn what_is_no_record_is_corrupt_where_it_stands() {
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
    fn two_records_may_not_contradict_each_other_but_where_they_are_global() {
        assert!(read(b"9 size=1\n9 size=1\n").is_ok());
        assert_eq!(read(b"9 size=1\n9 size=2\n").err().unwrap().kind(), ErrorKind::Corrupt);
        assert_eq!(read(b"9 path=a\n9 path=b\n").err().unwrap().kind(), ErrorKind::Corrupt);
        let mut global = Extended::default();
        global.add(b"11 path=ab\n9 path=b\n", 0, Repeats::Replace).unwrap();
        assert_eq!(global.path, Some(Some(b"b".to_vec())));
        global.add(b"8 path=\n", 0, Repeats::Replace).unwrap();
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
