//! A tar archive that comes as a stream.

use std::io::{self, BufRead, BufReader, Read};

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::slice::at_end;
use super::{TarEntry, TarEvent, TarFile, TarOptions, TarParser};

/// The size of the buffer between the stream and the archive, in bytes. Larger pieces are read
/// without it.
const BUFFER: usize = 64 << 10;

/// Memory is asked for in this step while data come in, in bytes: what a damaged header claims is
/// not believed before it is there.
const STEP: u64 = 1 << 20;

/// The members of a tar archive that is read from its start to its end, once, without seeking.
///
/// Memory is needed for one file at a time, and only for those whose data are asked for. What is
/// behind the end marker is read, too, and thrown away: a compressed stream has its checksum there.
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
    /// How many bytes were read.
    position: u64,
    /// The last entry, and whether its data were given out.
    entry: Option<(TarEntry, bool)>,
    /// The bytes that the parser is given.
    piece: Vec<u8>,
}

impl<R: Read> TarStream<R> {
    /// The members of an archive, within default limits. The reader need not be buffered.
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
            piece: Vec::new(),
        }
    }

    /// The next entry; `None` at the end. What was not read of the last one's data is passed over.
    ///
    /// # Errors
    /// As those of [`TarParser`]; `Truncated` where the data of the last entry are cut; what the
    /// reader answers, with its kind. After an error there is nothing more.
    pub fn next_entry(&mut self) -> Result<Option<TarEntry>> {
        let entry = self.step();
        if entry.is_err() {
            self.stop();
        }
        entry
    }

    /// The data of the entry that [`next_entry`](Self::next_entry) gave last.
    ///
    /// # Errors
    /// As those of [`TarSlice::data`](super::TarSlice::data), and what the reader answers;
    /// `InvalidArgument` where there is no entry, and where its data were taken before.
    pub fn data(&mut self) -> Result<Bytes> {
        let refuse = |message: &str| Err(Error::new(ErrorKind::InvalidArgument, message));
        let entry = match &mut self.entry {
            None => return refuse("there is no member whose data could be read"),
            Some((_, true)) => return refuse("the data of this member were taken before"),
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

    /// The files with their data, as [`TarSlice::files`](super::TarSlice::files) gives them.
    pub fn files(mut self) -> impl Iterator<Item = Result<TarFile>> {
        std::iter::from_fn(move || {
            loop {
                match self.next_entry().transpose()? {
                    Ok(entry) if entry.is_no_file() => {}
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
        self.parser = TarParser::ended();
    }

    fn step(&mut self) -> Result<Option<TarEntry>> {
        if let Some((entry, _)) = self.entry.take() {
            self.skip_to(entry.data_range().end)?;
            if self.position < entry.data_range().end {
                return Err(entry.data_cut(self.position));
            }
        }
        loop {
            let wanted = self.parser.wants();
            // Padding behind data.
            self.skip_to(wanted.start)?;
            let len = (wanted.end - wanted.start) as usize;
            self.read_piece(len)?;
            if self.piece.len() < len {
                let position = self.position;
                let end = self.parser.finish(&self.piece);
                return end.map(|()| None).map_err(|error| at_end(error, position));
            }
            match self.parser.supply(&self.piece)? {
                TarEvent::More => {}
                TarEvent::End => return self.drain().map(|()| None),
                TarEvent::Entry(entry) => {
                    self.entry = Some((entry.clone(), false));
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Reads what is behind the end marker, so that a decompressor gets to the checksum at its end.
    fn drain(&mut self) -> Result<()> {
        self.skip_to(u64::MAX)
    }

    /// Reads so many bytes, or those that are left.
    fn read_piece(&mut self, len: usize) -> Result<()> {
        self.piece.clear();
        let read = self.reader.by_ref().take(len as u64).read_to_end(&mut self.piece);
        self.position += self.piece.len() as u64;
        read.map(|_| ()).map_err(|error| failed(error, self.position))
    }

    fn read_data(&mut self, entry: &TarEntry) -> Result<Bytes> {
        let mut data = Vec::new();
        let reserved = data.try_reserve_exact(entry.size.min(STEP) as usize);
        reserved.map_err(|_| {
            let message = format!("cannot get memory for {} bytes", entry.size.min(STEP));
            Error::new(ErrorKind::LimitExceeded, message).with_key(entry.key.display_name())
        })?;
        let read = self.reader.by_ref().take(entry.size).read_to_end(&mut data);
        self.position += data.len() as u64;
        read.map_err(|error| failed(error, self.position).with_key(entry.key.display_name()))?;
        if (data.len() as u64) < entry.size {
            return Err(entry.data_cut(self.position));
        }
        Ok(data.into())
    }

    /// Passes over what lies before a byte of the archive, or all there is.
    fn skip_to(&mut self, offset: u64) -> Result<()> {
        while self.position < offset {
            let there = match self.reader.fill_buf() {
                Ok([]) => break,
                Ok(bytes) => bytes.len(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error, self.position)),
            };
            let step = (offset - self.position).min(there as u64);
            self.reader.consume(step as usize);
            self.position += step;
        }
        Ok(())
    }
}

/// The error of a reader. One of ours that was passed through it stays what it is.
fn failed(error: io::Error, position: u64) -> Error {
    let ours = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match ours {
        Some(ours) => ours.clone(),
        None => Error::from(error).with_offset(position),
    }
}
