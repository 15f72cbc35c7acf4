//! From the planes of a frame to a [`Picture`].

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use crate::ffmpeg::memory::Frame;
use crate::image::{
    CHANNELS, ChromaPosition, ChromaSiting, ColorModel, Picture, PlaneShape, Rect, Size,
    YCbCrEncoding,
};
use crate::video::VideoColor;

/// Copies the planes of a frame, in 8 bits per sample. `color` has what the frame does not name.
pub(super) fn copy_planes(frame: &Frame, color: &VideoColor, picture: &mut Picture) -> Result<()> {
    let format = PixelFormat::of(frame)?;
    let components = format.components();
    let size = format.size;
    if format.has_flag(ffi::AV_PIX_FMT_FLAG_RGB) {
        picture.start_rgb(size, Rect::full(size))?;
        let mut pixels = picture.rgb_mut()?;
        for row in 0..size.height {
            let out = pixels.row_mut(row);
            for (channel, component) in components.iter().take(CHANNELS).enumerate() {
                let out = out.iter_mut().skip(channel).step_by(CHANNELS);
                component.read(format.row(component, row)?, out);
            }
        }
        return Ok(());
    }
    let model = if components.len() < CHANNELS { ColorModel::Grey } else { ColorModel::YCbCr };
    let shapes: [PlaneShape; CHANNELS] = std::array::from_fn(|at| {
        let (across, down) = if at == 0 { (1, 1) } else { format.subsampling() };
        let (width, height) = (size.width.div_ceil(across), size.height.div_ceil(down));
        let area = Rect::full(Size::new(width, height));
        PlaneShape { channels: 1, area, across, down, stride: width as usize }
    });
    picture.start(size, model, &shapes[..model.planes()])?;
    if model == ColorModel::YCbCr {
        picture.set_encoding(encoding(frame.fields(), color, &format));
        picture.set_siting(siting(frame.fields()).or(color.siting).unwrap_or_default());
    }
    for ((plane, shape), component) in picture.planes_mut().iter_mut().zip(shapes).zip(&components)
    {
        let rows = plane.samples_mut().chunks_exact_mut(shape.stride);
        for (out, row) in rows.zip(0..shape.area.height) {
            component.read(format.row(component, row)?, out.iter_mut());
        }
    }
    Ok(())
}

/// The matrix and the range of YCbCr; as FFmpeg's scaler, ITU-R BT.601 and limited range if neither the
/// stream nor its container names them, or they name a matrix of another kind (YCgCo, ICtCp).
fn encoding(frame: &ffi::AVFrame, color: &VideoColor, format: &PixelFormat<'_>) -> YCbCrEncoding {
    // Decoders store the numbers of the stream, of which the enumerations may lack some.
    // SAFETY: an enumeration of C has the size of an unsigned integer.
    let matrix = unsafe { (&raw const frame.colorspace).cast::<u32>().read() };
    // SAFETY: as above.
    let range = unsafe { (&raw const frame.color_range).cast::<u32>().read() };
    let is_named = matrix != ffi::AVColorSpace::AVCOL_SPC_UNSPECIFIED as u32;
    let matrix = color.matrix.filter(|_| !is_named).map_or(matrix, u32::from);
    // Matrix coefficients of ITU-T H.273.
    let encoding = match matrix {
        1 => YCbCrEncoding::BT709,
        4 => YCbCrEncoding::FCC,
        7 => YCbCrEncoding::SMPTE240M,
        9 | 10 => YCbCrEncoding::BT2020,
        _ => YCbCrEncoding::BT601,
    };
    let is_named = range != ffi::AVColorRange::AVCOL_RANGE_UNSPECIFIED as u32;
    let is_full = match color.is_full_range {
        Some(is_full) if !is_named => is_full,
        _ => range == ffi::AVColorRange::AVCOL_RANGE_JPEG as u32,
    };
    if is_full || format.is_full() { encoding } else { encoding.limited() }
}

/// Where the samples of chroma are; `None` if the stream does not name it.
fn siting(frame: &ffi::AVFrame) -> Option<ChromaSiting> {
    use ChromaPosition::{First, Last, Middle};
    // SAFETY: an enumeration of C has the size of an unsigned integer.
    let location = unsafe { (&raw const frame.chroma_location).cast::<u32>().read() };
    let (across, down) = match location {
        1 => (First, Middle),
        2 => (Middle, Middle),
        3 => (First, First),
        4 => (Middle, First),
        5 => (First, Last),
        6 => (Middle, Last),
        _ => return None,
    };
    Some(ChromaSiting { across, down })
}

/// A frame with samples in memory, one component after another or interleaved.
struct PixelFormat<'a> {
    frame: &'a ffi::AVFrame,
    descriptor: &'a ffi::AVPixFmtDescriptor,
    size: Size,
}

/// Where a component is in its rows.
struct FrameComponent {
    plane: usize,
    /// The distance between samples, in bytes.
    step: usize,
    /// The position of the first sample, in bytes.
    offset: usize,
    /// The number of bits below a sample, and its number of bits.
    shift: u32,
    depth: u32,
    /// The number of samples of a row, and of rows.
    width: usize,
    height: u32,
}

impl<'a> PixelFormat<'a> {
    /// The format of a frame of software decoders.
    fn of(frame: &'a Frame) -> Result<Self> {
        let fields = frame.fields();
        let side = |pixels: i32| u32::try_from(pixels).unwrap_or(0);
        let size = Size::new(side(fields.width), side(fields.height));
        let unsupported = |name: &str| {
            let message = format!("unsupported pixel format of video: {name}");
            Err(Error::new(ErrorKind::Unsupported, message))
        };
        let Some(descriptor) = descriptor(fields.format) else {
            return unsupported(&format!("number {}", fields.format));
        };
        let refused = ffi::AV_PIX_FMT_FLAG_BE
            | ffi::AV_PIX_FMT_FLAG_PAL
            | ffi::AV_PIX_FMT_FLAG_BITSTREAM
            | ffi::AV_PIX_FMT_FLAG_HWACCEL
            | ffi::AV_PIX_FMT_FLAG_BAYER
            | ffi::AV_PIX_FMT_FLAG_FLOAT;
        let deep = descriptor.comp.iter().any(|component| component.depth > 16);
        if descriptor.flags & refused as u64 != 0 || deep || size.pixels() == 0 {
            // SAFETY: the name of a descriptor is a string of the library.
            let name = unsafe { std::ffi::CStr::from_ptr(descriptor.name) };
            return unsupported(&name.to_string_lossy());
        }
        Ok(PixelFormat { frame: fields, descriptor, size })
    }

    fn has_flag(&self, flag: i32) -> bool {
        self.descriptor.flags & flag as u64 != 0
    }

    /// Image pixels per chroma sample, across and down.
    fn subsampling(&self) -> (u32, u32) {
        (1 << self.descriptor.log2_chroma_w, 1 << self.descriptor.log2_chroma_h)
    }

    /// Whether the format itself has full range.
    fn is_full(&self) -> bool {
        use ffi::AVPixelFormat::*;
        [
            AV_PIX_FMT_YUVJ420P,
            AV_PIX_FMT_YUVJ422P,
            AV_PIX_FMT_YUVJ444P,
            AV_PIX_FMT_YUVJ440P,
            AV_PIX_FMT_YUVJ411P,
        ]
        .iter()
        .any(|format| *format as i32 == self.frame.format)
    }

    /// The components without alpha.
    fn components(&self) -> Vec<FrameComponent> {
        let colors = if self.descriptor.nb_components < CHANNELS as u8 { 1 } else { CHANNELS };
        let (across, down) = self.subsampling();
        let component = |(at, found): (usize, &ffi::AVComponentDescriptor)| {
            let is_chroma = at > 0 && !self.has_flag(ffi::AV_PIX_FMT_FLAG_RGB);
            let (across, down) = if is_chroma { (across, down) } else { (1, 1) };
            let number = |value: i32| usize::try_from(value).unwrap_or(0);
            FrameComponent {
                plane: number(found.plane),
                step: number(found.step),
                offset: number(found.offset),
                shift: number(found.shift) as u32,
                depth: number(found.depth) as u32,
                width: self.size.width.div_ceil(across) as usize,
                height: self.size.height.div_ceil(down),
            }
        };
        self.descriptor.comp[..colors].iter().enumerate().map(component).collect()
    }

    /// The bytes of a row of a component, from its first sample to its last.
    fn row(&self, component: &FrameComponent, row: u32) -> Result<&[u8]> {
        let sample = component.sample_bytes();
        let bytes = (component.width - 1) * component.step + component.offset + sample;
        let stride = self.frame.linesize[component.plane];
        let data = self.frame.data[component.plane];
        if data.is_null() || row >= component.height || (stride.unsigned_abs() as usize) < bytes {
            let message = "the decoder returned a frame without memory for its rows";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let start = stride as isize * row as isize;
        // SAFETY: the decoder allocated `height` rows of the plane, `stride` bytes apart.
        let first = unsafe { data.offset(start) };
        // SAFETY: a row has |stride| bytes, which are initialised; the frame is not changed while it
        // is borrowed.
        Ok(unsafe { std::slice::from_raw_parts(first, bytes) })
    }
}

unsafe extern "C" {
    // As in libavutil, with the format as a number: a newer library may have formats that the bindings lack.
    fn av_pix_fmt_desc_get(format: std::ffi::c_int) -> *const ffi::AVPixFmtDescriptor;
}

/// The descriptor of the pixel format of this number.
fn descriptor(number: i32) -> Option<&'static ffi::AVPixFmtDescriptor> {
    // SAFETY: any number is allowed.
    let descriptor = unsafe { av_pix_fmt_desc_get(number) };
    // SAFETY: the result is null or a constant of the library.
    unsafe { descriptor.as_ref() }
}

impl FrameComponent {
    fn sample_bytes(&self) -> usize {
        if self.depth + self.shift > 8 { 2 } else { 1 }
    }

    /// Reads the samples of a row.
    fn read<'a>(&self, row: &[u8], out: impl Iterator<Item = &'a mut u8>) {
        let row = &row[self.offset..];
        if self.sample_bytes() == 1 && self.depth == 8 {
            match self.step {
                1 => out.zip(row).for_each(|(out, sample)| *out = *sample),
                step => {
                    out.zip(row.iter().step_by(step)).for_each(|(out, sample)| *out = *sample);
                }
            }
            return;
        }
        let (mask, max) = ((1u32 << self.depth) - 1, (1u32 << self.depth) - 1);
        let value = |sample: u32| {
            let sample = sample >> self.shift & mask;
            match self.depth {
                // Dividing by a power of 2 keeps limited range where it is.
                9.. => ((sample + (1 << (self.depth - 9))) >> (self.depth - 8)).min(255) as u8,
                _ => (sample * 255 / max) as u8,
            }
        };
        match self.sample_bytes() {
            1 => out
                .zip(row.iter().step_by(self.step.max(1)))
                .for_each(|(out, sample)| *out = value((*sample).into())),
            _ => out.zip(row.chunks(self.step.max(2))).for_each(|(out, sample)| {
                *out = value(u16::from_le_bytes([sample[0], sample[1]]).into());
            }),
        }
    }
}
