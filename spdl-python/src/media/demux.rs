//! From a file to packets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use pyo3::prelude::*;
use spdl_core::{Error, ErrorKind};
use spdl_io::stores::Address;
use spdl_media::MediaSource;
use spdl_media::ffmpeg::{BitStreamFilter, DemuxOptions, Demuxer, Portion};

use super::values::{
    MediaCodec, MediaPackets, Window, detached, kind_of, media_error, time_window,
};
use crate::interop::wait::interruptible;
use crate::io::buffer::Buffer;
use crate::operators::{SharedStores, Stores};

/// Names and values of options.
pub(super) type Options = Vec<(String, String)>;

/// Connections of all demuxers to stores.
static STORES: LazyLock<SharedStores> = LazyLock::new(SharedStores::default);

/// A file that FFmpeg reads.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct MediaDemuxer(Mutex<Option<Demuxer<'static>>>);

#[pymethods]
impl MediaDemuxer {
    /// Opens the path or the address, or reads the buffer, `source`.
    #[new]
    #[pyo3(signature = (source, name, *, format, options, buffer_size))]
    fn new(
        source: &Bound<'_, PyAny>,
        name: Option<String>,
        format: Option<String>,
        options: Options,
        buffer_size: usize,
    ) -> PyResult<Self> {
        let py = source.py();
        let mut settings = DemuxOptions::default();
        (settings.format, settings.options) = (format, options);
        settings.buffer_bytes = buffer_size;
        let opened: spdl_core::Result<Demuxer<'static>> = match source.extract::<PathBuf>() {
            Ok(path) => {
                let stores = STORES.get(py);
                let is_address = address_of(&path).is_some();
                let open = move || {
                    let (shown, file) = open(&path, &stores)?;
                    Demuxer::open(file, name.as_deref().unwrap_or(&shown), &settings)
                };
                // A store may be slow, and Ctrl-C ends the wait.
                if is_address { interruptible(py, open)? } else { py.detach(open) }
            }
            Err(_) => {
                let buffer = Buffer::of(source)?;
                let bytes = buffer.read(py, 0..buffer.len());
                let bytes = bytes.map_err(|error| media_error(py, &error))?;
                let name = name.unwrap_or_else(|| format!("{} bytes in memory", bytes.len()));
                py.detach(|| Demuxer::open(Box::new(bytes), &name, &settings))
            }
        };
        let demuxer = opened.map_err(|error| media_error(py, &failed_to_open(error)))?;
        Ok(MediaDemuxer(Mutex::new(Some(demuxer))))
    }

    #[getter]
    fn format(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |demuxer| Ok(demuxer.format()))
    }

    /// The duration of the best stream of a kind in seconds, as the header has it.
    fn seconds(&self, py: Python<'_>, kind: &str) -> PyResult<Option<f64>> {
        self.with(py, |demuxer| demuxer.seconds(kind_of(kind)?))
    }

    fn has_audio(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |demuxer| Ok(demuxer.has_audio()))
    }

    fn stream_index(&self, py: Python<'_>, kind: &str) -> PyResult<usize> {
        self.with(py, |demuxer| demuxer.stream_index(kind_of(kind)?))
    }

    fn codec(&self, py: Python<'_>, kind: &str) -> PyResult<MediaCodec> {
        self.with(py, |demuxer| demuxer.codec(kind_of(kind)?).map(MediaCodec))
    }

    #[pyo3(signature = (kind, window, bsf))]
    fn demux(
        &self,
        py: Python<'_>,
        kind: &str,
        window: Option<Window>,
        bsf: Option<&str>,
    ) -> PyResult<MediaPackets> {
        self.with(py, |demuxer| {
            let window = window.map(time_window).transpose()?;
            let packets = demuxer.demux(kind_of(kind)?, window)?;
            match (bsf, packets.codec()) {
                (Some(bsf), Some(codec)) => {
                    let mut filter = BitStreamFilter::new(codec, bsf)?;
                    let mut filtered = filter.filter(&packets)?;
                    filtered.append(filter.finish()?)?;
                    Ok(MediaPackets(filtered))
                }
                _ => Ok(MediaPackets(packets)),
            }
        })
    }

    /// The next packets of some streams; an empty dictionary at the end of the file.
    fn read_some(
        &self,
        py: Python<'_>,
        streams: BTreeSet<usize>,
        num_packets: usize,
        duration: f64,
    ) -> PyResult<BTreeMap<usize, MediaPackets>> {
        let portion = match num_packets {
            0 => Portion::Seconds(duration),
            count => Portion::Packets(count),
        };
        let read = self.with(py, |demuxer| demuxer.read_some(&streams, portion))?;
        Ok(read.into_iter().map(|(number, packets)| (number, MediaPackets(packets))).collect())
    }

    /// Closes the file.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl MediaDemuxer {
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Demuxer<'static>) -> spdl_core::Result<R> + Send,
    ) -> PyResult<R> {
        detached(py, || {
            let mut demuxer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let demuxer = demuxer
                .as_mut()
                .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "the demuxer is closed"))?;
            work(demuxer)
        })
    }
}

/// The path as text, if it is an address.
fn address_of(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.contains("://"))
}

/// Opens a path or an address. Also returns the text for messages, without credentials.
fn open(path: &Path, stores: &Stores) -> spdl_core::Result<(String, Box<dyn MediaSource + Send>)> {
    let address =
        address_of(path).map(|text| Ok::<_, Error>((text, Address::parse(text)?))).transpose()?;
    let path = match &address {
        Some((_, parsed)) if parsed.scheme() == "file" => parsed.key().to_path(),
        Some((text, parsed)) => return Ok((parsed.to_string(), Box::new(stores.open(text)?))),
        None => path.into(),
    };
    let shown = path.display().to_string();
    let file = File::open(&path).map_err(|error| Error::from(error).with_key(&*shown))?;
    Ok((shown, Box::new(file)))
}

fn failed_to_open(error: Error) -> Error {
    let (kind, key) = (error.kind(), error.key().map(str::to_owned));
    let mut made = Error::new(kind, format!("Failed to open the input: {}", error.message()));
    if let Some(offset) = error.offset() {
        made = made.with_offset(offset);
    }
    match key {
        Some(key) => made.with_key(key),
        None => made,
    }
}

/// Filters of packets.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct MediaBitStreamFilter(Mutex<BitStreamFilter>);

#[pymethods]
impl MediaBitStreamFilter {
    #[new]
    fn new(py: Python<'_>, codec: &MediaCodec, description: &str) -> PyResult<Self> {
        detached(py, || BitStreamFilter::new(&codec.0, description))
            .map(|filter| MediaBitStreamFilter(Mutex::new(filter)))
    }

    /// The packets that are ready; all that are left if `flush` is set.
    fn filter(
        &self,
        py: Python<'_>,
        packets: Option<&MediaPackets>,
        flush: bool,
    ) -> PyResult<MediaPackets> {
        detached(py, || {
            let mut filter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match packets {
                None => filter.finish(),
                Some(packets) => {
                    let mut filtered = filter.filter(&packets.0)?;
                    if flush {
                        filtered.append(filter.finish()?)?;
                    }
                    Ok(filtered)
                }
            }
        })
        .map(MediaPackets)
    }
}
