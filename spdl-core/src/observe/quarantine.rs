//! [`Quarantine`]: a JSON Lines file that lists dropped samples.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::observe::statistics::Dropped;
use crate::runtime::{STALL_TIMEOUT, read_file};
use crate::sync::{Counter, Mutex};

/// A list of the samples that failure policies dropped, written while the pipeline runs.
///
/// The format is JSON Lines; each line is an [`Entry`]. Each line of a file is passed to the
/// operating system immediately, so the list survives a crash of the program. A failed write ends
/// the pipeline with an error, unless the list is [lenient](Quarantine::lenient).
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("bad.jsonl");
/// use spdl_core::{DatasetSource, Error, ErrorKind, OnError, PipelineBuilder};
/// use spdl_core::observe::Quarantine;
/// use spdl_core::stage::stage_fn;
///
/// let pipeline = PipelineBuilder::new(DatasetSource::new(vec![1, 2, 3]))
///     .stage("check", || Ok(stage_fn(|n: i32| match n {
///         2 => Err(Error::new(ErrorKind::User, "an even number")),
///         n => Ok(n),
///     })))
///     .on_error(OnError::SKIP)
///     .build()?;
/// let monitor = pipeline.monitor();
/// assert_eq!(pipeline.count(), 2);
///
/// let quarantine = Quarantine::append(&path)?;
/// for dropped in &monitor.statistics().dropped {
///     quarantine.record(dropped)?;
/// }
/// let list = Quarantine::read(&path)?;
/// assert_eq!(list.entries[0].stage, "check");
/// assert_eq!(list.entries[0].message, "an even number");
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct Quarantine {
    /// The lock keeps lines of several threads separate. No other lock is taken while it is held.
    writer: Mutex<LineWriter>,
    /// The file name in error messages.
    name: String,
    lenient: bool,
    lost: Counter,
}

struct LineWriter {
    to: Box<dyn Write + Send>,
    /// Whether the last line may be incomplete.
    incomplete: bool,
}

impl Quarantine {
    /// Appends to the file at `path`, which is created if it does not exist.
    ///
    /// Several processes may append to the same file.
    ///
    /// # Errors
    /// Any I/O error of opening the file.
    pub fn append(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let open = || {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            let incomplete = !ends_with_newline(&mut file)?;
            Ok((file, incomplete))
        };
        let (file, incomplete) = open().map_err(|error| at_path(path, "open", error))?;
        Ok(Quarantine::with_writer(Box::new(file), incomplete, format!("{:?}", path.display())))
    }

    /// Writes to `writer`, with one call of `write_all` and one of `flush` per line.
    ///
    /// The writer must not call methods of this list, because they would deadlock.
    pub fn to_writer(writer: impl Write + Send + 'static) -> Self {
        Quarantine::with_writer(Box::new(writer), false, "its writer".into())
    }

    fn with_writer(to: Box<dyn Write + Send>, incomplete: bool, name: String) -> Self {
        let writer = Mutex::new(LineWriter { to, incomplete });
        Quarantine { writer, name, lenient: false, lost: Counter::default() }
    }

    /// Ignores failed writes, and only counts their entries as [lost](Quarantine::lost).
    #[must_use]
    pub fn lenient(mut self) -> Self {
        self.lenient = true;
        self
    }

    /// Number of entries that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Writes an entry with the current time. Several threads may call `record` concurrently.
    ///
    /// # Errors
    /// Any I/O error of writing the line, unless the list is lenient.
    pub fn record(&self, dropped: &Dropped) -> Result<()> {
        self.record_at(dropped, SystemTime::now())
    }

    fn record_at(&self, dropped: &Dropped, time: SystemTime) -> Result<()> {
        let entry = Entry::of(dropped, time);
        let written = serde_json::to_string(&entry).map_err(std::io::Error::other);
        let written = written.and_then(|line| self.writer.lock().write(&line));
        written.or_else(|error| {
            self.lost.add(1);
            if self.lenient {
                return Ok(());
            }
            let message = format!("cannot write the quarantine list to {}", self.name);
            Err(Error::new(Error::from(kind_only(&error)).kind(), message).with_source(error))
        })
    }

    /// Reads a list from a file.
    ///
    /// A crash may truncate a line, and a later run appends lines after it. Truncated lines are
    /// skipped; [`damaged_lines`](QuarantineList::damaged_lines) contains their numbers.
    ///
    /// # Errors
    /// Any I/O error of reading the file; `Corrupt` if a complete line is not an [`Entry`].
    pub fn read(path: impl AsRef<Path>) -> Result<QuarantineList> {
        let path = path.as_ref();
        let text = read_file(path, u64::MAX, STALL_TIMEOUT);
        let text = text.map_err(|error| at_path(path, "read", error))?;
        QuarantineList::read(&text[..], path)
    }
}

impl fmt::Debug for Quarantine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quarantine")
            .field("name", &self.name)
            .field("lenient", &self.lenient)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

impl LineWriter {
    fn write(&mut self, line: &str) -> std::io::Result<()> {
        // One write per line keeps the lines of several processes separate.
        let text = format!("{}{line}\n", if self.incomplete { "\n" } else { "" });
        self.incomplete = true;
        self.to.write_all(text.as_bytes())?;
        self.incomplete = false;
        self.to.flush()
    }
}

/// A dropped sample: one line of a quarantine list.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The key of the sample, if the source or the error has one.
    pub key: Option<String>,
    /// The stage in which the sample failed.
    pub stage: String,
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The error message with its causes.
    pub message: String,
    /// The epoch of the sample.
    pub epoch: u64,
    /// The position of the sample in the order of the epoch.
    pub index: u64,
    /// Time of the drop: RFC 3339, UTC, with milliseconds.
    pub time: String,
}

impl Entry {
    fn of(dropped: &Dropped, time: SystemTime) -> Self {
        Entry {
            key: dropped.key.as_deref().map(str::to_owned),
            stage: dropped.stage.as_ref().to_owned(),
            kind: dropped.kind,
            message: dropped.reason.clone(),
            epoch: dropped.id.epoch,
            index: dropped.id.index,
            time: rfc_3339(time),
        }
    }
}

/// The content of a quarantine list, as [`Quarantine::read`] returns it.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuarantineList {
    /// The entries, in the order of the file.
    pub entries: Vec<Entry>,
    /// Numbers of truncated lines, counted from 1.
    pub damaged_lines: Vec<u64>,
}

impl QuarantineList {
    fn read(mut from: impl BufRead, path: &Path) -> Result<Self> {
        let mut list = QuarantineList::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = from.read_until(b'\n', &mut line);
            if read.map_err(|error| at_path(path, "read", error))? == 0 {
                break;
            }
            // The newline is removed, so that `serde_json` reports a string truncated at the end of
            // the line as an unexpected end of input.
            let is_complete = line.pop_if(|byte| *byte == b'\n').is_some();
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(entry) => list.entries.push(entry),
                Err(error) if error.is_eof() || !is_complete => list.damaged_lines.push(number),
                Err(error) => {
                    let message = format!("line {number} is not an entry of a quarantine list");
                    let key = path.display().to_string();
                    return Err(Error::new(ErrorKind::Corrupt, message)
                        .with_key(key)
                        .with_source(error));
                }
            }
        }
        Ok(list)
    }
}

/// Whether the file is empty or ends with a newline.
fn ends_with_newline(file: &mut File) -> std::io::Result<bool> {
    if file.metadata()?.len() == 0 || file.seek(SeekFrom::End(-1)).is_err() {
        // A terminal or a pipe cannot seek, and has no earlier content.
        return Ok(true);
    }
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

fn kind_only(error: &std::io::Error) -> std::io::Error {
    std::io::Error::from(error.kind())
}

fn at_path(path: &Path, verb: &str, error: std::io::Error) -> Error {
    let kind = Error::from(kind_only(&error)).kind();
    Error::new(kind, format!("cannot {verb} the quarantine list"))
        .with_key(path.display().to_string())
        .with_source(error)
}

/// Formats a time in UTC by RFC 3339: `2026-02-28T23:59:59.999Z`. Times outside the years 0 to 9999
/// are clamped.
fn rfc_3339(time: SystemTime) -> String {
    const FIRST: i128 = -62_167_219_200_000; // 0000-01-01T00:00:00Z
    const LAST: i128 = 253_402_300_799_999; // 9999-12-31T23:59:59.999Z
    let millis = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_nanos() / 1_000_000) as i128,
        // Rounds down, like for times after 1970.
        Err(before) => -(before.duration().as_nanos().div_ceil(1_000_000) as i128),
    };
    let millis = millis.clamp(FIRST, LAST) as i64;
    let (days, of_day) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000));
    let (year, month, day) = date(days);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, milli) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Year, month and day in the Gregorian calendar, `days` after 1970-01-01.
///
/// Years start in March, so that the leap day is the last day of a year. Then the lengths of months
/// repeat: every five months have 153 days.
fn date(days: i64) -> (i64, i64, i64) {
    const CYCLE: i64 = 146_097; // days in 400 years
    let days = days + 719_468; // since 0000-03-01
    let (cycle, day) = (days.div_euclid(CYCLE), days.rem_euclid(CYCLE));
    // Subtracts the earlier leap days, so that each year has 365 days.
    let leap_days = day / 1460 - day / 36_524 + day / (CYCLE - 1);
    let year = (day - leap_days) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * cycle + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::source::sample::SampleId;

    fn dropped(index: u64) -> Dropped {
        Dropped {
            id: SampleId { epoch: 2, index },
            key: Some("cats/\u{1F408}\n\"7\".jpg".into()),
            stage: "decode".into(),
            kind: ErrorKind::Truncated,
            reason: "ends inside the image".into(),
        }
    }

    fn indices(list: &QuarantineList) -> Vec<u64> {
        list.entries.iter().map(|entry| entry.index).collect()
    }

    /// A disk with limited free space.
    #[derive(Clone, Default)]
    struct Disk {
        bytes: Arc<Mutex<Vec<u8>>>,
        free: Arc<Mutex<usize>>,
        flushes: Counter,
    }

    impl Disk {
        fn with_free_bytes(free: usize) -> Self {
            Disk { free: Arc::new(Mutex::new(free)), ..Disk::default() }
        }

        fn read(&self) -> Result<QuarantineList> {
            QuarantineList::read(self.bytes.lock().as_slice(), Path::new("list"))
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut free = self.free.lock();
            let written = bytes.len().min(*free);
            if written == 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            *free -= written;
            self.bytes.lock().extend(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.flushes.add(1);
            Ok(())
        }
    }

    #[test]
    fn a_line_has_key_stage_kind_message_position_and_time() {
        let disk = Disk::with_free_bytes(10_000);
        let quarantine = Quarantine::to_writer(disk.clone());
        let time = UNIX_EPOCH + Duration::from_millis(1_772_323_199_042);
        quarantine.record_at(&dropped(9), time).unwrap();
        let nameless = Dropped { key: None, ..dropped(10) };
        quarantine.record_at(&nameless, time).unwrap();
        let text = String::from_utf8(disk.bytes.lock().clone()).unwrap();
        let line = "{\"key\":\"cats/\u{1F408}\\n\\\"7\\\".jpg\",\"stage\":\"decode\",\
            \"kind\":\"truncated\",\"message\":\"ends inside the image\",\"epoch\":2,\"index\":9,\
            \"time\":\"2026-02-28T23:59:59.042Z\"}";
        assert_eq!(text.lines().next(), Some(line));
        assert_eq!(disk.flushes.get(), 2);
        let list = disk.read().unwrap();
        assert_eq!(list.entries, [Entry::of(&dropped(9), time), Entry::of(&nameless, time)]);
        assert!(list.damaged_lines.is_empty());
    }

    #[test]
    fn append_keeps_earlier_entries() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.jsonl");
        for index in 0..3 {
            Quarantine::append(&path).unwrap().record(&dropped(index)).unwrap();
        }
        assert_eq!(indices(&Quarantine::read(&path).unwrap()), [0, 1, 2]);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    }

    #[test]
    fn truncated_lines_are_listed_and_others_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.jsonl");
        let quarantine = Quarantine::append(&path).unwrap();
        (0..2).for_each(|index| quarantine.record(&dropped(index)).unwrap());
        drop(quarantine);
        let whole = std::fs::read(&path).unwrap();
        let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for len in first + 1..whole.len() - 1 {
            std::fs::write(&path, &whole[..len]).unwrap();
            let list = Quarantine::read(&path).unwrap();
            assert_eq!((indices(&list), list.damaged_lines), (vec![0], vec![2]), "at {len}");
            Quarantine::append(&path).unwrap().record(&dropped(7)).unwrap();
            let list = Quarantine::read(&path).unwrap();
            assert_eq!((indices(&list), list.damaged_lines), (vec![0, 7], vec![2]), "at {len}");
        }
    }

    #[test]
    fn a_missing_newline_at_the_end_is_not_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.jsonl");
        Quarantine::append(&path).unwrap().record(&dropped(0)).unwrap();
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, text.trim_ascii_end()).unwrap();
        Quarantine::append(&path).unwrap().record(&dropped(1)).unwrap();
        let list = Quarantine::read(&path).unwrap();
        assert_eq!((indices(&list), list.damaged_lines.len()), (vec![0, 1], 0));
    }

    #[test]
    fn invalid_bytes_are_tolerated_only_in_an_incomplete_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.jsonl");
        Quarantine::append(&path).unwrap().record(&dropped(0)).unwrap();
        let mut text = std::fs::read(&path).unwrap();
        text.extend([0; 100]);
        std::fs::write(&path, &text).unwrap();
        let list = Quarantine::read(&path).unwrap();
        assert_eq!((indices(&list), list.damaged_lines), (vec![0], vec![2]));
        text.extend(b"\n");
        std::fs::write(&path, &text).unwrap();
        let error = Quarantine::read(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("line 2"), "{error}");
        std::fs::write(&path, "{\"key\": \"not an entry\"}\n").unwrap();
        assert_eq!(Quarantine::read(&path).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_missing_list_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = Quarantine::read(folder.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = Quarantine::append(folder.path().join("none/list")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.key().unwrap().ends_with("list"));
    }

    #[test]
    fn a_full_disk_is_an_error_and_later_lines_are_valid() {
        let disk = Disk::with_free_bytes(50);
        let quarantine = Quarantine::to_writer(disk.clone());
        let error = quarantine.record(&dropped(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(quarantine.lost(), 1);
        *disk.free.lock() = 10_000;
        quarantine.record(&dropped(1)).unwrap();
        let list = disk.read().unwrap();
        assert_eq!((indices(&list), list.damaged_lines), (vec![1], vec![1]));
    }

    #[test]
    fn a_lenient_list_counts_lost_entries() {
        let quarantine = Quarantine::to_writer(Disk::with_free_bytes(0)).lenient();
        quarantine.record(&dropped(0)).unwrap();
        quarantine.record(&dropped(1)).unwrap();
        assert_eq!(quarantine.lost(), 2);
    }

    #[test]
    fn lines_of_several_threads_are_not_mixed() {
        let disk = Disk::with_free_bytes(1 << 20);
        let quarantine = Quarantine::to_writer(disk.clone());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let quarantine = &quarantine;
                scope.spawn(move || {
                    (0..100).for_each(|i| quarantine.record(&dropped(thread * 100 + i)).unwrap());
                });
            }
        });
        let list = disk.read().unwrap();
        let mut indices = indices(&list);
        indices.sort_unstable();
        assert_eq!(indices, (0..400).collect::<Vec<_>>());
        assert!(list.damaged_lines.is_empty());
    }

    #[test]
    fn known_times_are_formatted_by_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_000_000_000, "2001-09-09T01:46:40.000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(rfc_3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        let before = UNIX_EPOCH - Duration::from_micros(1);
        assert_eq!(rfc_3339(before), "1969-12-31T23:59:59.999Z");
        let late = UNIX_EPOCH + Duration::from_secs(1 << 50);
        assert_eq!(rfc_3339(late), "9999-12-31T23:59:59.999Z");
        let early = UNIX_EPOCH - Duration::from_secs(1 << 50);
        assert_eq!(rfc_3339(early), "0000-01-01T00:00:00.000Z");
    }

    #[test]
    fn dates_are_consecutive_for_a_thousand_years() {
        let leap = |year| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let (mut year, mut month, mut day) = (1600, 1, 1);
        for days in -135_140..230_103 {
            assert_eq!(date(days), (year, month, day), "{days} days");
            let length = match month {
                2 => 28 + i64::from(leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert_eq!((year, month, day), (2600, 1, 1));
    }

    proptest! {
        #[test]
        fn any_text_is_read_back(key: Option<String>, stage: String, message: String) {
            let disk = Disk::with_free_bytes(1 << 20);
            let dropped = Dropped {
                key: key.as_deref().map(Arc::from), stage: stage.as_str().into(), reason: message,
                ..dropped(0)
            };
            let time = SystemTime::now();
            Quarantine::to_writer(disk.clone()).record_at(&dropped, time).unwrap();
            prop_assert_eq!(disk.read().unwrap().entries, [Entry::of(&dropped, time)]);
        }
    }
}
