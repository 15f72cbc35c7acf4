//! Decoding of a batch of JPEGs to one array on a device.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use spdl_core::memory::Upload;
use spdl_core::{Error, ErrorKind, Result};
use spdl_cuda::jpeg::{DecodedJpeg, DecodedJpegs, parse_header};
use spdl_cuda::kernels::ResizePlan;
use spdl_cuda::pixels::{DevicePlane, SourceImage};
use spdl_media::Size;
use spdl_media::formats::jpeg::{JpegColor, JpegHeader};

use super::decoders::Decoders;
use super::memory::DeviceMemory;
use super::pixels::{format_of, shape_of};
use crate::interop::error::to_exception;
use crate::interop::wait::without_python;
use crate::operators::bytes_with_message;

/// Device memory, and the shape of the array in it.
pub(super) type ArrayParts = (DeviceMemory, Vec<usize>);

/// Decodes JPEGs. Errors name the image, as in `names`.
pub(super) fn decode_all(
    py: Python<'_>,
    decoders: &Decoders,
    encoded: &[Bound<'_, PyAny>],
    names: &[String],
    size: Option<(u32, u32)>,
    pix_fmt: &str,
) -> PyResult<ArrayParts> {
    const EXPECTED: &str = "a JPEG must be a path or bytes";
    let encoded = encoded.iter().map(|data| bytes_with_message(data, EXPECTED));
    let encoded: Vec<Bytes> = encoded.collect::<PyResult<_>>()?;
    let decoded = without_python(py, || decode(decoders, &encoded, names, size, pix_fmt));
    let (upload, shape) = decoded.map_err(|error| to_exception(py, &error))?;
    Ok((DeviceMemory::from(upload), shape))
}

fn decode(
    decoders: &Decoders,
    encoded: &[Bytes],
    names: &[String],
    size: Option<(u32, u32)>,
    pix_fmt: &str,
) -> Result<(Upload, Vec<usize>)> {
    let name = |at: usize| names.get(at).map_or("image", String::as_str);
    let size = match size {
        Some(size) => size,
        None => common_size(encoded, names)?,
    };
    let format = format_of(pix_fmt, size)?;
    let kernels = decoders.kernels()?;
    let DecodedJpegs { memory, images } = decoders.with_jpegs(|jpegs| jpegs.decode(encoded))?;
    let memory = Arc::new(memory);
    let mut batch = kernels.batch(&format, images.len())?;
    for (at, image) in images.into_iter().enumerate() {
        let (offset, header) = match image {
            DecodedJpeg::Decoded { offset, header, .. } => (offset, header),
            DecodedJpeg::Unsupported(header) => return Err(unsupported(&header).with_key(name(at))),
            DecodedJpeg::Failed(error) => return Err(error.with_key(name(at))),
            _ => {
                let message = "unexpected outcome of decoding a JPEG";
                return Err(Error::new(ErrorKind::Internal, message).with_key(name(at)));
            }
        };
        let plan = ResizePlan::whole(header.size, header.orientation, format.size);
        let address = (spdl_core::memory::DeviceMemory::address(&*memory) + offset) as u64;
        let plane = DevicePlane { address, pitch: 3 * u64::from(header.size.width) };
        let image = SourceImage::rgb8(header.size.width, header.size.height, plane)?;
        batch.push(&memory, &image, &plan).map_err(|error| error.with_key(name(at)))?;
    }
    let shape = shape_of(batch.len(), &format);
    Ok((kernels.launch(batch)?, shape))
}

/// The size of all images.
///
/// # Errors
/// `InvalidArgument` if the sizes differ, or there are no images.
fn common_size(encoded: &[Bytes], names: &[String]) -> Result<(u32, u32)> {
    let mut first: Option<Size> = None;
    for (bytes, name) in encoded.iter().zip(names) {
        let header = parse_header(bytes).map_err(|error| error.with_key(name.as_str()))?;
        let size = header.upright_size();
        match first {
            Some(before) if before != size => {
                let message = format!(
                    "image size {size} differs from {before} of the images before it; set scale_width and \
                     scale_height"
                );
                let error = Error::new(ErrorKind::InvalidArgument, message);
                return Err(error.with_key(name.as_str()));
            }
            Some(_) => {}
            None => first = Some(size),
        }
    }
    let size = first.map(|size| (size.width, size.height));
    size.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "no images"))
}

/// The error for a valid JPEG that nvJPEG does not support.
fn unsupported(header: &JpegHeader) -> Error {
    let what = match header.color() {
        _ if header.precision != 8 => format!("sample precision of {} bits", header.precision),
        Some(JpegColor::Rgb) => "colour space RGB".to_owned(),
        Some(JpegColor::Cmyk | JpegColor::Ycck) => "colour space CMYK".to_owned(),
        _ => "coding process".to_owned(),
    };
    let message = format!(
        "cannot decode this JPEG on the device: unsupported {what}; decode it on the host with DecodeImage"
    );
    Error::new(ErrorKind::Unsupported, message)
}
