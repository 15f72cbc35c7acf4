//! From a file to packets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use pyo3::prelude::*;
use spdl_core::{Error, ErrorKind};
use spdl_io::stores::Address;
use spdl_media::MediaSource;
use spdl_media::ffmpeg::{BitStreamFilter, DemuxOptions, Demuxer, Portion};

use super::values::{
    MediaCodec, MediaPackets, Window, detached, kind_of, media_error, time_window,
};
use crate::interop::wait::{interruptible, without_python};
use crate::io::buffer::Buffer;
use crate::operators::{SharedStores, Stores};

/// Names and values of options.
pub(super) type Options = Vec<(String, String)>;

/// Connections of all demuxers to stores.
static STORES: LazyLock<SharedStores> = LazyLock::new(SharedStores::default);

/// A file that FFmpeg reads.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct MediaDemuxer {
    /// `None` after `close`. A read that Ctrl-C has interrupted still uses the demuxer.
    demuxer: Mutex<Option<Arc<Mutex<Demuxer<'static>>>>>,
    /// Whether reads wait for a store.
    is_remote: bool,
}

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
        let mut is_remote = false;
        let opened: spdl_core::Result<Demuxer<'static>> = match source.extract::<PathBuf>() {
            Ok(path) => {
                let stores = STORES.get(py);
                is_remote = address_of(&path).is_some();
                let open = move || {
                    let (shown, file) = open(&path, &stores)?;
                    Demuxer::open(file, name.as_deref().unwrap_or(&shown), &settings)
                };
                waiting(py, is_remote, open)?
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
        let demuxer = Mutex::new(Some(Arc::new(Mutex::new(demuxer))));
        Ok(MediaDemuxer { demuxer, is_remote })
    }

    #[getter]
    fn format(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |demuxer| Ok(demuxer.format()))
    }

    /// The duration of the best stream of a kind in seconds, as the header has it.
    fn seconds(&self, py: Python<'_>, kind: &str) -> PyResult<Option<f64>> {
        let kind = kind.to_owned();
        self.with(py, move |demuxer| demuxer.seconds(kind_of(&kind)?))
    }

    fn has_audio(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |demuxer| Ok(demuxer.has_audio()))
    }

    fn stream_index(&self, py: Python<'_>, kind: &str) -> PyResult<usize> {
        let kind = kind.to_owned();
        self.with(py, move |demuxer| demuxer.stream_index(kind_of(&kind)?))
    }

    fn codec(&self, py: Python<'_>, kind: &str) -> PyResult<MediaCodec> {
        let kind = kind.to_owned();
        self.with(py, move |demuxer| demuxer.codec(kind_of(&kind)?).map(MediaCodec))
    }

    #[pyo3(signature = (kind, window, bsf))]
    fn demux(
        &self,
        py: Python<'_>,
        kind: &str,
        window: Option<Window>,
        bsf: Option<String>,
    ) -> PyResult<MediaPackets> {
        let kind = kind.to_owned();
        self.with(py, move |demuxer| {
            let window = window.map(time_window).transpose()?;
            let packets = demuxer.demux(kind_of(&kind)?, window)?;
            match (&bsf, packets.codec()) {
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
        let read = self.with(py, move |demuxer| demuxer.read_some(&streams, portion))?;
        Ok(read.into_iter().map(|(number, packets)| (number, MediaPackets(packets))).collect())
    }

    /// Closes the file, after a call of another thread has returned.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.demuxer.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl MediaDemuxer {
    /// Calls `work` without the GIL. If Ctrl-C interrupts it, the demuxer is closed: its position is unknown.
    fn with<R: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Demuxer<'static>) -> spdl_core::Result<R> + Send + 'static,
    ) -> PyResult<R> {
        let demuxer = py.detach(|| {
            self.demuxer.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Arc::clone)
        });
        let demuxer = demuxer.ok_or_else(|| {
            let error = Error::new(ErrorKind::InvalidArgument, "the demuxer is closed");
            media_error(py, &error)
        })?;
        let done = waiting(py, self.is_remote, move || {
            work(&mut demuxer.lock().unwrap_or_else(PoisonError::into_inner))
        });
        done.inspect_err(|_| self.close(py))?.map_err(|error| media_error(py, &error))
    }
}

/// Calls `work` without the GIL. Ctrl-C interrupts the wait if `work` reads from a store.
///
/// # Errors
/// Those of [`interruptible`].
fn waiting<T: Send + 'static>(
    py: Python<'_>,
    is_remote: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    // Python runs signal handlers on the main thread. Elsewhere, `work` stays on the thread of the stage that calls
    // it, whose pipeline ends the read when it stops.
    if is_remote && is_main_thread(py)? {
        interruptible(py, work)
    } else {
        Ok(without_python(py, work))
    }
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    threading.call_method0("get_ident")?.eq(main)
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
