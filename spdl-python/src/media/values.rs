//! Codecs, packets and frames.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use spdl_core::{DType, Error, ErrorKind};
use spdl_media::ffmpeg::{Frames, MediaKind, Packets, Rational, StreamCodec, Time, TimeWindow};

use crate::interop::array::{Array, zeros};
use crate::interop::error::to_exception;
use crate::io::buffer::Buffer;

/// A fraction in Python.
pub(super) type Fraction = (i32, i32);

pub(super) fn fraction(value: Rational) -> Fraction {
    (value.numerator, value.denominator)
}

/// A window of times: the numerators and denominators of its start and its end in seconds.
pub(super) type Window = (i64, i64, i64, i64);

pub(super) fn time_window(window: Window) -> spdl_core::Result<TimeWindow> {
    let (start, start_unit, end, end_unit) = window;
    TimeWindow::new(Time::new(start, start_unit)?, Time::new(end, end_unit)?)
}

/// The kind of media of this name.
pub(super) fn kind_of(name: &str) -> spdl_core::Result<MediaKind> {
    let kinds = [MediaKind::Audio, MediaKind::Video, MediaKind::Image];
    kinds.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, format!("there is no kind of media {name:?}"))
    })
}

/// Calls a function of FFmpeg without the GIL.
pub(super) fn detached<R: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> spdl_core::Result<R> + Send,
) -> PyResult<R> {
    py.detach(work).map_err(|error| media_error(py, &error))
}

/// The exception for an error: a `MediaError`, and of the class of its kind.
pub(super) fn media_error(py: Python<'_>, error: &Error) -> PyErr {
    static OF_MEDIA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let exception = to_exception(py, error);
    let made = OF_MEDIA.import(py, "spdl_rs._errors", "of_media");
    match made.and_then(|of_media| of_media.call1((exception.value(py),))) {
        Ok(made) => PyErr::from_value(made),
        Err(_) => exception,
    }
}

/// How a stream is encoded.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct MediaCodec(pub(super) StreamCodec);

#[pymethods]
impl MediaCodec {
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind().name()
    }

    #[getter]
    fn name(&self) -> String {
        self.0.name()
    }

    #[getter]
    fn time_base(&self) -> Fraction {
        fraction(self.0.time_base())
    }

    #[getter]
    fn frame_rate(&self) -> Fraction {
        fraction(self.0.frame_rate())
    }

    #[getter]
    fn width(&self) -> u32 {
        self.0.width()
    }

    #[getter]
    fn height(&self) -> u32 {
        self.0.height()
    }

    #[getter]
    fn pix_fmt(&self) -> String {
        self.0.pixel_format()
    }

    #[getter]
    fn sample_aspect_ratio(&self) -> Fraction {
        fraction(self.0.sample_aspect_ratio())
    }

    #[getter]
    fn color_numbers(&self) -> [u64; 3] {
        self.0.color_numbers()
    }

    #[getter]
    fn sample_rate(&self) -> u32 {
        self.0.sample_rate()
    }

    #[getter]
    fn num_channels(&self) -> u32 {
        self.0.channels()
    }

    #[getter]
    fn sample_fmt(&self) -> String {
        self.0.sample_format()
    }

    #[getter]
    fn channel_layout(&self) -> String {
        self.0.channel_layout()
    }
}

/// Encoded packets of one stream.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct MediaPackets(pub(super) Packets);

#[pymethods]
impl MediaPackets {
    /// Packets from the bytes of `to_bytes`, without a copy if `data` is `bytes`.
    #[staticmethod]
    fn from_bytes(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = data.py();
        let buffer = Buffer::of(data)?;
        let bytes = buffer.read(py, 0..buffer.len());
        let packets = bytes.and_then(|bytes: Bytes| Packets::from_bytes(&bytes));
        packets.map(MediaPackets).map_err(|error| media_error(py, &error))
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.0.to_bytes()))
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind().name()
    }

    #[getter]
    fn codec(&self) -> Option<MediaCodec> {
        self.0.codec().cloned().map(MediaCodec)
    }

    /// The wanted times in seconds.
    #[getter]
    fn window(&self) -> Option<(f64, f64)> {
        self.0.window().map(|window| (window.start().to_f64(), window.end().to_f64()))
    }

    /// The wanted time stamps: the first one, and the first one after them.
    fn window_stamps(&self) -> Option<(i64, i64)> {
        self.0.window_stamps()
    }

    /// The number of packets.
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// The bytes of all packets.
    #[getter]
    fn num_bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The times of all packets in seconds, in their order.
    fn packet_times(&self) -> Vec<f64> {
        self.0.in_seconds(&self.0.timestamps())
    }

    /// The times of the frames in the window in seconds, in the order of presentation.
    fn frame_times(&self) -> Vec<f64> {
        self.0.frame_times()
    }

    /// The bytes of each packet, and its time stamp.
    fn payloads<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, Option<i64>)> {
        let payloads = self.0.payloads();
        payloads.map(|(bytes, timestamp)| (PyBytes::new(py, bytes), timestamp)).collect()
    }

    /// The packets that decoding the frames in a window needs.
    fn slice(&self, py: Python<'_>, window: Window) -> PyResult<Self> {
        let sliced = time_window(window).and_then(|window| self.0.slice(window));
        sliced.map(MediaPackets).map_err(|error| media_error(py, &error))
    }

    /// Another handle of the same packets.
    fn share(&self, py: Python<'_>) -> PyResult<Self> {
        self.0.share().map(MediaPackets).map_err(|error| media_error(py, &error))
    }
}

/// Decoded frames of one stream.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct MediaFrames(pub(super) Frames);

#[pymethods]
impl MediaFrames {
    /// Pictures from the bytes of an array. `dtype` is the name of its type.
    #[staticmethod]
    fn of_pictures(
        data: &Bound<'_, PyAny>,
        shape: Vec<usize>,
        dtype: &str,
        pix_fmt: &str,
        frame_rate: Fraction,
        pts: i64,
    ) -> PyResult<Self> {
        let py = data.py();
        let (bytes, dtype) = array(data, dtype)?;
        let rate = Rational::new(frame_rate.0, frame_rate.1);
        detached(py, || Frames::of_pictures(&bytes, &shape, dtype, pix_fmt, rate, pts))
            .map(MediaFrames)
    }

    /// Audio from the bytes of an array.
    #[staticmethod]
    fn of_samples(
        data: &Bound<'_, PyAny>,
        shape: [usize; 2],
        dtype: &str,
        sample_fmt: &str,
        sample_rate: u32,
        pts: i64,
    ) -> PyResult<Self> {
        let py = data.py();
        let (bytes, dtype) = array(data, dtype)?;
        detached(py, || Frames::of_samples(&bytes, shape, dtype, sample_fmt, sample_rate, pts))
            .map(MediaFrames)
    }

    /// The content of frames, as one array. A list has one more dimension; its frames have the same shape.
    #[staticmethod]
    fn to_array(
        py: Python<'_>,
        frames: Vec<PyRef<'_, MediaFrames>>,
        is_list: bool,
    ) -> PyResult<Array> {
        let frames: Vec<&Frames> = frames.iter().map(|frames| &frames.0).collect();
        detached(py, || stacked(&frames, is_list)).map(Array::from)
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind().name()
    }

    /// The number of pictures, or pieces of audio.
    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn num_samples(&self) -> usize {
        self.0.samples()
    }

    #[getter]
    fn num_planes(&self) -> usize {
        self.0.planes()
    }

    #[getter]
    fn width(&self) -> u32 {
        self.0.width()
    }

    #[getter]
    fn height(&self) -> u32 {
        self.0.height()
    }

    #[getter]
    fn color_numbers(&self) -> [u64; 3] {
        self.0.color_numbers()
    }

    #[getter]
    fn is_full_range(&self) -> Option<bool> {
        self.0.is_full_range()
    }

    /// The format of pixels or samples.
    #[getter]
    fn format(&self) -> String {
        self.0.format()
    }

    #[getter]
    fn sample_rate(&self) -> u32 {
        self.0.sample_rate()
    }

    #[getter]
    fn num_channels(&self) -> u32 {
        self.0.channels()
    }

    #[getter]
    fn time_base(&self) -> Fraction {
        fraction(self.0.time_base())
    }

    fn timestamps(&self) -> Vec<i64> {
        self.0.timestamps()
    }

    fn times(&self) -> Vec<f64> {
        self.0.times()
    }

    fn metadata(&self) -> Vec<(String, String)> {
        self.0.metadata()
    }

    /// The frames at some positions.
    fn pick(&self, py: Python<'_>, positions: Vec<usize>) -> PyResult<Self> {
        self.0.pick(positions).map(MediaFrames).map_err(|error| media_error(py, &error))
    }

    /// One picture as an image.
    fn image(&self, py: Python<'_>, position: usize) -> PyResult<Self> {
        self.0.image(position).map(MediaFrames).map_err(|error| media_error(py, &error))
    }

    /// These frames, followed by others.
    fn joined(&self, py: Python<'_>, others: &MediaFrames) -> PyResult<Self> {
        let joined = self.0.share().and_then(|mut frames| {
            frames.append(others.0.share()?)?;
            Ok(MediaFrames(frames))
        });
        joined.map_err(|error| media_error(py, &error))
    }

    /// Another handle of the same frames.
    fn share(&self, py: Python<'_>) -> PyResult<Self> {
        self.0.share().map(MediaFrames).map_err(|error| media_error(py, &error))
    }
}

/// The bytes of an array, and its type.
fn array(data: &Bound<'_, PyAny>, dtype: &str) -> PyResult<(Bytes, DType)> {
    let py = data.py();
    let buffer = Buffer::of(data)?;
    let named = crate::interop::array::named(dtype);
    let read = named.and_then(|dtype| Ok((buffer.read(py, 0..buffer.len())?, dtype)));
    read.map_err(|error| media_error(py, &error))
}

fn stacked(frames: &[&Frames], is_list: bool) -> spdl_core::Result<spdl_core::Array> {
    let invalid = |message: &str| Error::new(ErrorKind::InvalidArgument, message);
    let first = frames.first().ok_or_else(|| invalid("there are no frames to convert"))?;
    let (mut shape, dtype) = first.shape()?;
    let format = first.format();
    for other in frames {
        if other.shape()? != (shape.clone(), dtype) || other.format() != format {
            return Err(invalid("the frames of the list differ in shape or format"));
        }
    }
    let each = shape.iter().product::<usize>() * dtype.size();
    if is_list {
        shape.insert(0, frames.len());
    }
    let mut array = zeros(dtype, shape)?;
    for (frames, part) in frames.iter().zip(array.as_bytes_mut().chunks_mut(each.max(1))) {
        frames.copy_to(part)?;
    }
    Ok(array)
}
