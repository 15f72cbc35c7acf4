//! [`HeaderWalk`]: the headers of an archive with random access, such as a file or an object.

use std::ops::Range;
use std::time::{Duration, Instant};

use spdl_core::{Error, ErrorKind, Result};

use super::slice::at_end;
use super::{TarEntry, TarEvent, TarOptions, TarParser};

/// Walks over the headers of an archive of known length, without I/O. The caller performs the reads.
#[derive(Debug)]
pub(crate) struct HeaderWalk {
    parser: TarParser,
    window: Window,
    len: u64,
    /// The error if the archive ends inside the data of the last entry.
    truncation: Option<Error>,
    is_damaged: bool,
}

/// The next action of the caller.
#[derive(Debug)]
pub(crate) enum Step {
    /// Read this range of the archive, pass it to [`put`](HeaderWalk::put), and step again.
    Read(Range<u64>),
    Entry(TarEntry),
    End,
}

impl HeaderWalk {
    pub(crate) fn new(len: u64, options: TarOptions, sizes: WindowSizes) -> Self {
        let (parser, window) = (TarParser::new(options), Window::new(sizes));
        HeaderWalk { parser, window, len, truncation: None, is_damaged: false }
    }

    /// The bytes of `range`, if the last read contains it.
    pub(crate) fn get(&self, range: &Range<u64>) -> Option<&[u8]> {
        self.window.get(range)
    }

    pub(crate) fn step(&mut self) -> Result<Step> {
        let step = self.try_step();
        if step.is_err() {
            self.parser = TarParser::ended();
            self.is_damaged = true;
        }
        step
    }

    /// Whether a step returned an error of the archive.
    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    fn try_step(&mut self) -> Result<Step> {
        if let Some(error) = self.truncation.take() {
            return Err(error);
        }
        loop {
            let wanted = self.parser.wants();
            let Some(bytes) = self.window.get(&wanted) else {
                let existing = wanted.start.min(self.len)..wanted.end.min(self.len);
                let Some(rest) = self.window.get(&existing).filter(|_| existing != wanted) else {
                    return match existing.is_empty() {
                        true => self.end(&[]),
                        false => Ok(Step::Read(self.window.next(&wanted, self.len))),
                    };
                };
                let rest = rest.to_vec();
                return self.end(&rest);
            };
            match self.parser.supply(bytes)? {
                TarEvent::More => {}
                TarEvent::End => return Ok(Step::End),
                TarEvent::Entry(entry) => {
                    if entry.data_range().end > self.len {
                        self.truncation = Some(entry.truncated(self.len));
                    }
                    return Ok(Step::Entry(entry));
                }
            }
        }
    }

    fn end(&mut self, rest: &[u8]) -> Result<Step> {
        self.parser.finish(rest).map(|()| Step::End).map_err(|error| at_end(error, self.len))
    }

    /// Stores the range of a [`Step::Read`]; `read` appends its bytes to the buffer.
    pub(crate) fn put(
        &mut self,
        range: &Range<u64>,
        read: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        self.window.start = range.start;
        self.window.bytes.clear();
        let started = Instant::now();
        read(&mut self.window.bytes)?;
        let (received, wanted) = (self.window.bytes.len() as u64, range.end - range.start);
        self.window.is_slow = started.elapsed() > SLOW + Duration::from_nanos(received);
        if received == wanted {
            return Ok(());
        }
        let message = format!("expected {wanted} bytes of the archive, got {received}");
        Err(Error::new(ErrorKind::Io, message).with_offset(range.start))
    }
}

/// The most recently read range of an archive. Small members are read sequentially, in large reads;
/// for large members, only the headers are read.
#[derive(Debug)]
struct Window {
    sizes: WindowSizes,
    /// Whether the last read was slow: the data were not in the page cache.
    is_slow: bool,
    start: u64,
    bytes: Vec<u8>,
}

/// A read is slow if it takes longer than this plus 1 ns per byte.
const SLOW: Duration = Duration::from_micros(50);

/// Sizes of reads, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowSizes {
    /// The maximum gap between headers that is read and discarded, which costs less than another read.
    pub(crate) small_gap: u64,
    /// The maximum gap if reads are slow, because their latency outweighs the additional bytes.
    pub(crate) small_gap_if_slow: u64,
    /// The size of a read after a small gap.
    pub(crate) sequential: u64,
    /// The size of a read after a large gap: a header with its extended headers.
    pub(crate) hop: u64,
}

impl WindowSizes {
    /// For local files: a read from the page cache takes as long as copying a few KB.
    pub(crate) const LOCAL: WindowSizes = WindowSizes {
        small_gap: 4 << 10,
        small_gap_if_slow: 128 << 10,
        sequential: 256 << 10,
        hop: 4 << 10,
    };

    /// For stores with a latency of milliseconds.
    pub(crate) const REMOTE: WindowSizes = WindowSizes {
        small_gap: 1 << 20,
        small_gap_if_slow: 1 << 20,
        sequential: 8 << 20,
        hop: 16 << 10,
    };
}

impl Window {
    fn new(sizes: WindowSizes) -> Self {
        Window { sizes, is_slow: false, start: 0, bytes: Vec::new() }
    }

    /// The bytes of a range, if the window contains it.
    fn get(&self, range: &Range<u64>) -> Option<&[u8]> {
        let start = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.start)?).ok()?;
        self.bytes.get(start..end)
    }

    /// The next range to read of an archive of `len` bytes. It contains `wanted`, up to the end of the
    /// archive, and is empty at the end.
    fn next(&self, wanted: &Range<u64>, len: u64) -> Range<u64> {
        let end = self.start + self.bytes.len() as u64;
        let gap = wanted.start.saturating_sub(end);
        let small = match self.is_slow {
            true => self.sizes.small_gap_if_slow,
            false => self.sizes.small_gap,
        };
        let is_close = end > 0 && gap <= small;
        let size = if is_close { self.sizes.sequential } else { self.sizes.hop };
        let start = wanted.start.min(len);
        start..wanted.start.saturating_add(size).max(wanted.end).min(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: WindowSizes =
        WindowSizes { small_gap: 100, small_gap_if_slow: 200, sequential: 1000, hop: 10 };

    #[test]
    fn small_gaps_are_read_and_large_ones_are_not() {
        let mut window = Window::new(SIZES);
        assert_eq!(window.next(&(0..5), 10_000), 0..10);
        window.bytes.resize(10, 1);
        assert_eq!(window.get(&(2..5)).map(<[u8]>::len), Some(3));
        assert_eq!(window.get(&(5..11)), None);
        assert_eq!(window.next(&(110..115), 10_000), 110..1110);
        assert_eq!(window.next(&(111..116), 10_000), 111..121);
        window.is_slow = true;
        assert_eq!(window.next(&(111..116), 10_000), 111..1111);
        assert_eq!(window.next(&(211..216), 10_000), 211..221);
    }

    #[test]
    fn reads_stop_at_the_end_of_the_archive() {
        let window = Window::new(SIZES);
        assert_eq!(window.next(&(7..50), 10_000), 7..50);
        assert_eq!(window.next(&(7..50), 20), 7..20);
        assert_eq!(window.next(&(30..50), 20), 20..20);
        assert_eq!(window.next(&(u64::MAX - 1..u64::MAX), u64::MAX), u64::MAX - 1..u64::MAX);
    }
}
