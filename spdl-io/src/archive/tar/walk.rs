//! From header to header through an archive of which any part can be read.

use std::ops::Range;
use std::time::{Duration, Instant};

use spdl_core::{Error, ErrorKind, Result};

use super::slice::at_end;
use super::{TarEntry, TarEvent, TarOptions, TarParser};

/// The headers of an archive of known length. It says what to read; who drives it reads.
#[derive(Debug)]
pub(crate) struct HeaderWalk {
    parser: TarParser,
    window: Window,
    len: u64,
    /// That the archive ends inside the data of the last entry.
    cut: Option<Error>,
    is_damaged: bool,
}

/// What is to be done next.
#[derive(Debug)]
pub(crate) enum Step {
    /// To read this part of the archive, [put](HeaderWalk::put) it there, and step again.
    Read(Range<u64>),
    Entry(TarEntry),
    End,
}

impl HeaderWalk {
    pub(crate) fn new(len: u64, options: TarOptions, sizes: WindowSizes) -> Self {
        let (parser, window) = (TarParser::new(options), Window::new(sizes));
        HeaderWalk { parser, window, len, cut: None, is_damaged: false }
    }

    /// The part of the archive that was read last, as far as it is inside `range`.
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

    /// Whether a step found the archive to be damaged.
    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    fn try_step(&mut self) -> Result<Step> {
        if let Some(error) = self.cut.take() {
            return Err(error);
        }
        loop {
            let wanted = self.parser.wants();
            let Some(bytes) = self.window.get(&wanted) else {
                let there = wanted.start.min(self.len)..wanted.end.min(self.len);
                let Some(rest) = self.window.get(&there).filter(|_| there != wanted) else {
                    return match there.is_empty() {
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
                        self.cut = Some(entry.data_cut(self.len));
                    }
                    return Ok(Step::Entry(entry));
                }
            }
        }
    }

    fn end(&mut self, rest: &[u8]) -> Result<Step> {
        self.parser.finish(rest).map(|()| Step::End).map_err(|error| at_end(error, self.len))
    }

    /// Takes the part of the archive that a [`Step::Read`] asked for; `read` appends it to what it
    /// is given.
    pub(crate) fn put(
        &mut self,
        range: &Range<u64>,
        read: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        self.window.start = range.start;
        self.window.bytes.clear();
        let started = Instant::now();
        read(&mut self.window.bytes)?;
        let (came, wanted) = (self.window.bytes.len() as u64, range.end - range.start);
        self.window.is_slow = started.elapsed() > SLOW + Duration::from_nanos(came);
        if came == wanted {
            return Ok(());
        }
        let message = format!("{came} bytes came where {wanted} of the archive were asked for");
        Err(Error::new(ErrorKind::Io, message).with_offset(range.start))
    }
}

/// A part of an archive in memory. Where members are small, headers lie close together, and large
/// parts are read one behind the other; where they are large, only what is around the headers.
#[derive(Debug)]
struct Window {
    sizes: WindowSizes,
    /// Whether the last read was slow, so that the bytes had to come from a disk.
    is_slow: bool,
    start: u64,
    bytes: Vec<u8>,
}

/// A read that takes longer than this, and a nanosecond for each byte, waits for a disk.
const SLOW: Duration = Duration::from_micros(50);

/// How much is read at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowSizes {
    /// A gap up to this size is read and thrown away, as that costs less than another read.
    pub(crate) small_gap: u64,
    /// The same where reads are slow, as disks take the longer for each than for more bytes.
    pub(crate) small_gap_if_slow: u64,
    /// How much is read where the gap was small.
    pub(crate) sequential: u64,
    /// How much is read where it was large: a header, and those of a long name before it.
    pub(crate) hop: u64,
}

impl WindowSizes {
    /// For files of this machine: in the page cache, a read costs as much as a copy of some KB.
    pub(crate) const LOCAL: WindowSizes = WindowSizes {
        small_gap: 4 << 10,
        small_gap_if_slow: 128 << 10,
        sequential: 256 << 10,
        hop: 4 << 10,
    };

    /// For stores that answer after some milliseconds.
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

    /// The bytes of a part of the archive, where they are there.
    fn get(&self, range: &Range<u64>) -> Option<&[u8]> {
        let start = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.start)?).ok()?;
        self.bytes.get(start..end)
    }

    /// Which part of an archive of `len` bytes to read, so that `wanted` is in it as far as the
    /// archive goes. Empty where it starts at the end, or behind.
    fn next(&self, wanted: &Range<u64>, len: u64) -> Range<u64> {
        let here = self.start + self.bytes.len() as u64;
        let gap = wanted.start.saturating_sub(here);
        let small = match self.is_slow {
            true => self.sizes.small_gap_if_slow,
            false => self.sizes.small_gap,
        };
        let is_close = here > 0 && gap <= small;
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
    fn what_is_wanted_is_read_as_far_as_there_is_something() {
        let window = Window::new(SIZES);
        assert_eq!(window.next(&(7..50), 10_000), 7..50);
        assert_eq!(window.next(&(7..50), 20), 7..20);
        assert_eq!(window.next(&(30..50), 20), 20..20);
        assert_eq!(window.next(&(u64::MAX - 1..u64::MAX), u64::MAX), u64::MAX - 1..u64::MAX);
    }
}
