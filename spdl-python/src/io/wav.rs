//! The header of a WAV file.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use spdl_core::{Error, ErrorKind, Result};
use spdl_media::audio::{self, WavSample};

use super::buffer::Buffer;
use crate::interop::array::Array;
use crate::interop::error::to_exception;

/// The header of a WAV file. Returned by `spdl_rs.io.parse_wav`.
#[pyclass(frozen, eq, name = "WAVHeader", module = "spdl_rs.io")]
#[derive(PartialEq)]
pub(crate) struct WavHeader(audio::WavHeader);

#[pymethods]
impl WavHeader {
    #[new]
    fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = data.py();
        let buffer = Buffer::of(data)?;
        let header = audio::WavHeader::read(buffer.len(), |range| buffer.read(py, range));
        header.map(WavHeader).map_err(|error| to_exception(py, &error))
    }

    /// The format code in the file: 1 for PCM, 3 for floating point, 65534 for extensible.
    #[getter]
    fn audio_format(&self) -> u16 {
        self.0.format()
    }

    /// The number of channels.
    #[getter]
    fn num_channels(&self) -> u16 {
        self.0.channels()
    }

    /// Frames per second.
    #[getter]
    fn sample_rate(&self) -> u32 {
        self.0.sample_rate()
    }

    /// Bytes per second, as stored in the file.
    #[getter]
    fn byte_rate(&self) -> u32 {
        self.0.byte_rate()
    }

    /// The size of a frame (one sample per channel), in bytes.
    #[getter]
    fn block_align(&self) -> u16 {
        self.0.block_align()
    }

    /// Bits per sample.
    #[getter]
    fn bits_per_sample(&self) -> u16 {
        self.0.bits_per_sample()
    }

    /// The size of all samples, in bytes.
    #[getter]
    fn data_size(&self) -> u64 {
        let data = self.0.data_range();
        data.end - data.start
    }

    /// The number of frames.
    #[getter]
    fn num_frames(&self) -> u64 {
        self.0.frames()
    }

    /// The NumPy type, byte offset and number of frames of a time range.
    #[pyo3(signature = (time_offset_seconds, duration_seconds))]
    fn _stretch(
        &self,
        py: Python<'_>,
        time_offset_seconds: Option<f64>,
        duration_seconds: Option<f64>,
    ) -> PyResult<(&'static str, u64, u64)> {
        let fault = |error| to_exception(py, &error);
        let sample = self.0.sample().map_err(fault)?;
        let frames = self.0.frames_between(time_offset_seconds, duration_seconds).map_err(fault)?;
        // No overflow: the range is inside the file.
        let start = self.0.data_range().start + frames.start * u64::from(self.0.block_align());
        let type_string = type_string(sample).map_err(|error| to_exception(py, &error))?;
        Ok((type_string, start, frames.end - frames.start))
    }

    /// Widens 24-bit samples to 32 bits, left-aligned, and returns their bytes.
    fn _widened(&self, data: &Bound<'_, PyAny>, start: u64, frames: u64) -> PyResult<Array> {
        let py = data.py();
        let buffer = Buffer::of(data)?;
        let size = frames.checked_mul(u64::from(self.0.block_align()));
        let end = size.and_then(|size| start.checked_add(size));
        let end = end.ok_or_else(|| PyValueError::new_err("the frame range exceeds the file"))?;
        let widen = || {
            let packed = Python::attach(|py| buffer.read(py, start..end))?;
            // Four output bytes for three input bytes. The last frame may be incomplete if `data` is not the
            // file that the header was read from.
            Array::of_bytes(packed.len() / 3 * 4, |wide| WavSample::widen(&packed, wide))
        };
        py.detach(widen).map_err(|error| to_exception(py, &error))
    }

    fn __repr__(&self) -> String {
        format!(
            "WAVHeader(audio_format={}, num_channels={}, sample_rate={}, bits_per_sample={}, \
             num_frames={})",
            self.0.format(),
            self.0.channels(),
            self.0.sample_rate(),
            self.0.bits_per_sample(),
            self.0.frames()
        )
    }
}

/// NumPy's type string. NumPy has no type string for 24-bit samples: `<i3` is private to this package.
fn type_string(sample: WavSample) -> Result<&'static str> {
    let unsupported = |format: &str| {
        let message = format!("unsupported WAV format for NumPy: {format}; use fields.Audio");
        Error::new(ErrorKind::Unsupported, message)
    };
    Ok(match sample {
        WavSample::U8 => "|u1",
        WavSample::I16 => "<i2",
        WavSample::I24 => "<i3",
        WavSample::I32 => "<i4",
        WavSample::F32 => "<f4",
        WavSample::F64 => "<f8",
        WavSample::ALaw => return Err(unsupported("8-bit A-law")),
        WavSample::MuLaw => return Err(unsupported("8-bit µ-law")),
        other => return Err(unsupported(&other.to_string())),
    })
}
