//! [`TarStream`]: a tar archive that is read sequentially.

use std::io::{self, BufRead, BufReader, Read};

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::slice::at_end;
use super::{TarEntry, TarEvent, TarFile, TarOptions, TarParser};

/// The size of the read buffer, in bytes. Larger reads bypass the buffer.
const BUFFER: usize = 64 << 10;

/// The maximum initial allocation for a file, in bytes. The size in a corrupt header may be wrong.
const MAX_INITIAL_BYTES: u64 = 1 << 20;

/// The members of a tar archive, read once from start to end, without seeking.
///
/// Uses memory for one file at a time, and only for requested data. Data after the end-of-archive marker are
/// read and discarded, because a compressed stream has its checksum at the end.
///
/// ```
/// use spdl_io::archive::TarStream;
/// # let archive = &[0_u8; 1024][..];
/// let mut archive = TarStream::new(archive);
/// while let Some(entry) = archive.next_entry()? {
///     if entry.key.as_bytes().ends_with(b".json") {
///         println!("{}: {:?}", entry.key, archive.data()?);
///     }
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct TarStream<R> {
    reader: BufReader<R>,
    parser: TarParser,
    options: TarOptions,
    /// The number of bytes read so far.
    position: u64,
    /// The last entry, and whether its data were read.
    entry: Option<(TarEntry, bool)>,
    /// The bytes for the parser.
    block: Vec<u8>,
    /// Whether the archive has ended. The reader is not used again, because a damaged stream may
    /// fail forever.
    ended: bool,
}

impl<R: Read> TarStream<R> {
    /// The members of an archive, with default limits. The reader need not be buffered.
    pub fn new(reader: R) -> Self {
        TarStream::with_options(reader, TarOptions::default())
    }

    /// The members of an archive.
    pub fn with_options(reader: R, options: TarOptions) -> Self {
        TarStream {
            reader: BufReader::with_capacity(BUFFER, reader),
            parser: TarParser::new(options),
            options,
            position: 0,
            entry: None,
            block: Vec::new(),
            ended: false,
        }
    }

    /// The next entry; `None` at the end. Unread data of the last entry are skipped.
    ///
    /// # Errors
    /// The archive ends after an error.
    ///
    /// - The errors of [`TarParser`].
    /// - `Truncated` if the archive ends inside the data of the last entry.
    /// - The errors of the reader.
    pub fn next_entry(&mut self) -> Result<Option<TarEntry>> {
        if self.ended {
            return Ok(None);
        }
        let entry = self.step();
        if !matches!(entry, Ok(Some(_))) {
            self.stop();
        }
        entry
    }

    /// The data of the last entry.
    ///
    /// # Errors
    /// The errors of [`TarSlice::data`](super::TarSlice::data) and of the reader; `InvalidArgument` if
    /// there is no entry, or if its data were read already.
    pub fn data(&mut self) -> Result<Bytes> {
        let refuse = |message: &str| Err(Error::new(ErrorKind::InvalidArgument, message));
        let entry = match &mut self.entry {
            None => return refuse("no current member: call `next_entry` first"),
            Some((_, true)) => return refuse("the data of this member were read already"),
            Some((entry, taken)) => {
                entry.check_readable()?;
                self.options.check_file(entry)?;
                *taken = true;
                entry.clone()
            }
        };
        let data = self.read_data(&entry);
        if data.is_err() {
            self.stop();
        }
        data
    }

    /// The files with their data: see [`TarSlice::files`](super::TarSlice::files).
    pub fn files(mut self) -> impl Iterator<Item = Result<TarFile>> {
        std::iter::from_fn(move || {
            loop {
                match self.next_entry().transpose()? {
                    Ok(entry) if entry.is_not_a_file() => {}
                    Ok(entry) => {
                        return Some(self.data().map(|data| TarFile { entry, data }));
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }

    fn stop(&mut self) {
        self.entry = None;
        self.ended = true;
    }

    fn step(&mut self) -> Result<Option<TarEntry>> {
        if let Some((entry, _)) = self.entry.take() {
            self.skip_to(entry.data_range().end)?;
            if self.position < entry.data_range().end {
                return Err(entry.truncated(self.position));
            }
        }
        loop {
            let wanted = self.parser.wants();
            // Skip padding.
            self.skip_to(wanted.start)?;
            let len = (wanted.end - wanted.start) as usize;
            self.read_block(len)?;
            if self.block.len() < len {
                let position = self.position;
                let end = self.parser.finish(&self.block);
                return end.map(|()| None).map_err(|error| at_end(error, position));
            }
            match self.parser.supply(&self.block)? {
                TarEvent::More => {}
                TarEvent::End => return self.drain().map(|()| None),
                TarEvent::Entry(entry) => {
                    self.entry = Some((entry.clone(), false));
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Reads to the end, so that a decompressor verifies its checksum.
    fn drain(&mut self) -> Result<()> {
        self.skip_to(u64::MAX)
    }

    /// Reads up to `len` bytes into `block`.
    fn read_block(&mut self, len: usize) -> Result<()> {
        self.block.clear();
        let read = self.reader.by_ref().take(len as u64).read_to_end(&mut self.block);
        self.position += self.block.len() as u64;
        read.map(|_| ()).map_err(|error| failed(error, self.position))
    }

    fn read_data(&mut self, entry: &TarEntry) -> Result<Bytes> {
        let mut data = Vec::new();
        let initial = entry.size.min(MAX_INITIAL_BYTES);
        data.try_reserve_exact(initial as usize).map_err(|_| {
            let message = format!("cannot allocate {initial} bytes");
            Error::new(ErrorKind::LimitExceeded, message).with_key(entry.key.display_name())
        })?;
        let read = self.reader.by_ref().take(entry.size).read_to_end(&mut data);
        self.position += data.len() as u64;
        read.map_err(|error| failed(error, self.position).with_key(entry.key.display_name()))?;
        if (data.len() as u64) < entry.size {
            return Err(entry.truncated(self.position));
        }
        Ok(data.into())
    }

    /// Skips to an offset, or to the end.
    fn skip_to(&mut self, offset: u64) -> Result<()> {
        while self.position < offset {
            let available = match self.reader.fill_buf() {
                Ok([]) => break,
                Ok(bytes) => bytes.len(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error, self.position)),
            };
            let step = (offset - self.position).min(available as u64);
            self.reader.consume(step as usize);
            self.position += step;
        }
        Ok(())
    }
}

/// The error of a reader. An [`Error`] inside the [`io::Error`] is unwrapped.
fn failed(error: io::Error, position: u64) -> Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(inner) => inner.clone(),
        None => Error::from(error).with_offset(position),
    }
}
