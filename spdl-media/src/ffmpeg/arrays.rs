//! From frames to arrays, and from arrays to frames.

use std::ffi::c_int;
use std::ptr;

use ffmpeg_next::ffi;
use spdl_core::{DType, Error, ErrorKind, Result};

use super::codec::{MediaKind, Rational};
use super::errors::error_of;
use super::frames::Frames;
use super::memory::Frame;
use super::names;

unsafe extern "C" {
    // As in libavutil, with formats as numbers: see `names`.
    fn av_image_get_buffer_size(format: c_int, width: c_int, height: c_int, align: c_int) -> c_int;
    fn av_image_copy_to_buffer(
        out: *mut u8,
        bytes: c_int,
        planes: *const *const u8,
        strides: *const c_int,
        format: c_int,
        width: c_int,
        height: c_int,
        align: c_int,
    ) -> c_int;
    fn av_image_fill_arrays(
        planes: *mut *mut u8,
        strides: *mut c_int,
        memory: *const u8,
        format: c_int,
        width: c_int,
        height: c_int,
        align: c_int,
    ) -> c_int;
    fn av_image_copy(
        planes: *mut *mut u8,
        strides: *const c_int,
        source: *const *const u8,
        source_strides: *const c_int,
        format: c_int,
        width: c_int,
        height: c_int,
    );
}

/// How the pixels of a picture are arranged in an array.
#[derive(Clone, Copy)]
enum Arrangement {
    /// `[height, width, channels]`
    Packed(usize),
    /// `[planes, height, width]`
    Planes(usize),
    /// `[1, rows, width]`: luma, followed by chroma of half the width; 2 × `rows` per row of pixels.
    Stacked(usize),
}

impl Arrangement {
    /// The arrangement of a pixel format, and the type of its elements.
    fn of(format: &str) -> Option<(Self, DType)> {
        let arrangement = match format {
            "gray" => Arrangement::Packed(1),
            "rgb24" | "bgr24" => Arrangement::Packed(3),
            "rgba" | "bgra" | "argb" | "abgr" => Arrangement::Packed(4),
            "yuv444p" | "yuvj444p" | "gbrp" => Arrangement::Planes(3),
            "yuv420p" | "yuvj420p" | "nv12" | "nv21" => Arrangement::Stacked(3),
            "yuv422p" | "yuvj422p" => Arrangement::Stacked(4),
            "gray16le" | "gray16be" => return Some((Arrangement::Planes(1), DType::U16)),
            _ => return None,
        };
        Some((arrangement, DType::U8))
    }

    fn shape(self, width: usize, height: usize) -> [usize; 3] {
        match self {
            Arrangement::Packed(channels) => [height, width, channels],
            Arrangement::Planes(planes) => [planes, height, width],
            Arrangement::Stacked(halves) => [1, height * halves / 2, width],
        }
    }
}

impl Frames {
    /// The shape and the type of the array of all frames.
    ///
    /// - Pictures in the format `gray`, `rgb24`, `bgr24` or with four such channels: `[frames, height, width,
    ///   channels]`; `yuv444p` and `gbrp`: `[frames, 3, height, width]`; `yuv420p` and `nv12`: `[frames, 1, 1.5 ×
    ///   height, width]`; `yuv422p`: `[frames, 1, 2 × height, width]`; all `U8`. `gray16`: `[frames, 1, height,
    ///   width]`, `U16`. An image lacks the first dimension.
    /// - Audio in a planar format: `[channels, samples]`; in others `[samples, channels]`.
    ///
    /// # Errors
    /// `Unsupported` for other formats, and 4:2:0 or 4:2:2 with odd width or height; `InvalidArgument` if frames
    /// differ in size or format, or there are none.
    pub fn shape(&self) -> Result<(Vec<usize>, DType)> {
        let first = self.first().ok_or_else(|| invalid("there are no frames to convert"))?;
        let form = |frame: &ffi::AVFrame| {
            (frame.format, frame.width, frame.height, frame.ch_layout.nb_channels)
        };
        if self.as_slice().iter().any(|frame| form(frame.fields()) != form(first)) {
            return Err(invalid("the frames differ in size, format or channels"));
        }
        match self.kind() {
            MediaKind::Audio => self.shape_of_samples(),
            MediaKind::Video | MediaKind::Image => self.shape_of_pictures(first),
        }
    }

    fn shape_of_samples(&self) -> Result<(Vec<usize>, DType)> {
        let format = self.format();
        let dtype = sample_type(&format)?;
        let (channels, samples) = (self.channels() as usize, self.samples());
        let shape = if is_planar(&format) { [channels, samples] } else { [samples, channels] };
        Ok((shape.to_vec(), dtype))
    }

    fn shape_of_pictures(&self, first: &ffi::AVFrame) -> Result<(Vec<usize>, DType)> {
        let format = self.format();
        let unsupported = |why: &str| {
            let message = format!("Unsupported pixel format: {format}{why}");
            Error::new(ErrorKind::Unsupported, message)
        };
        let found = Arrangement::of(&format);
        let (arrangement, dtype) =
            found.ok_or_else(|| unsupported("; convert it with a filter such as format=rgb24"))?;
        let (width, height) = (self.width() as usize, self.height() as usize);
        let picture = arrangement.shape(width, height);
        let bytes = picture.iter().product::<usize>() * dtype.size();
        // SAFETY: any numbers are allowed.
        let needed =
            unsafe { av_image_get_buffer_size(first.format, first.width, first.height, 1) };
        if usize::try_from(needed).ok() != Some(bytes) {
            return Err(unsupported(&format!(" of {width} × {height} pixels: a side is odd")));
        }
        let mut shape = picture.to_vec();
        // Filters may make several pictures of an image.
        if self.kind() == MediaKind::Video || self.len() > 1 {
            shape.insert(0, self.len());
        }
        Ok((shape, dtype))
    }

    /// Writes all frames to `out`, in the shape of [`shape`](Frames::shape).
    ///
    /// # Errors
    /// As [`shape`](Frames::shape); `InvalidArgument` if `out` does not have the size of that array.
    pub fn copy_to(&self, out: &mut [u8]) -> Result<()> {
        let (shape, dtype) = self.shape()?;
        let bytes = shape.iter().product::<usize>() * dtype.size();
        if out.len() != bytes {
            let message = format!("the frames need {bytes} bytes, and there are {}", out.len());
            return Err(invalid(&message));
        }
        match self.kind() {
            MediaKind::Audio => self.copy_samples(out, dtype.size()),
            MediaKind::Video | MediaKind::Image => self.copy_pictures(out),
        }
    }

    fn copy_pictures(&self, out: &mut [u8]) -> Result<()> {
        let each = out.len() / self.len().max(1);
        for (frame, out) in self.as_slice().iter().zip(out.chunks_exact_mut(each.max(1))) {
            let fields = frame.fields();
            let size = c_int::try_from(out.len()).map_err(|_| invalid("the frame is too large"))?;
            // SAFETY: the frame is valid, and `out` has `size` bytes, which the function checks.
            let code = unsafe {
                av_image_copy_to_buffer(
                    out.as_mut_ptr(),
                    size,
                    fields.data.as_ptr().cast(),
                    fields.linesize.as_ptr(),
                    fields.format,
                    fields.width,
                    fields.height,
                    1,
                )
            };
            if code < 0 {
                return Err(error_of(code, "cannot copy a frame"));
            }
        }
        Ok(())
    }

    fn copy_samples(&self, out: &mut [u8], sample_bytes: usize) -> Result<()> {
        let channels = self.channels() as usize;
        // Planes of planar audio have one channel; the only plane of other audio has all.
        let (planes, per_sample) = match is_planar(&self.format()) {
            true => (channels, sample_bytes),
            false => (1, sample_bytes * channels),
        };
        let plane_bytes = out.len() / planes.max(1);
        let mut start = 0;
        for frame in self.as_slice() {
            let bytes = samples_of(frame) * per_sample;
            if bytes == 0 {
                continue;
            }
            for (number, out) in out.chunks_exact_mut(plane_bytes.max(1)).enumerate() {
                let out = &mut out[start..start + bytes];
                // SAFETY: a plane of this frame has `bytes` bytes.
                let plane = unsafe { std::slice::from_raw_parts(frame.plane(number), bytes) };
                out.copy_from_slice(plane);
            }
            start += bytes;
        }
        Ok(())
    }

    /// Pictures from an array of the shape `[frames, …]`, as [`shape`](Frames::shape) has it; the content is
    /// copied. The pictures follow each other at `frame_rate` pictures per second; the first one has the number
    /// `first`.
    ///
    /// # Errors
    /// `Unsupported` for a format without a shape; `InvalidArgument` if shape, type and bytes do not fit the format;
    /// `LimitExceeded` if no memory is left.
    pub fn of_pictures(
        array: &[u8],
        shape: &[usize],
        dtype: DType,
        format: &str,
        frame_rate: Rational,
        first: i64,
    ) -> Result<Self> {
        let number = names::pixel_format(format)?;
        let format = names::of_pixel_format(number);
        let (arrangement, needed) = Arrangement::of(&format).ok_or_else(|| {
            let message = format!("Unsupported pixel format: {format}");
            Error::new(ErrorKind::Unsupported, message)
        })?;
        // 16-bit grey may have any sign.
        if dtype.size() != needed.size() || !matches!(dtype, DType::U8 | DType::U16 | DType::I16) {
            let message = format!("{format} pictures have elements of {needed:?}, not {dtype:?}");
            return Err(invalid(&message));
        }
        let (_, width, height) = size_of(arrangement, shape).ok_or_else(|| {
            invalid(&format!("{format} pictures do not have the shape {shape:?}"))
        })?;
        let bytes = bytes_of(&shape[1..], dtype)?;
        let side = |pixels: usize| {
            c_int::try_from(pixels).map_err(|_| invalid("the pictures are too large"))
        };
        let (width, height) = (side(width)?, side(height)?);
        // SAFETY: any numbers are allowed.
        let expected = unsafe { av_image_get_buffer_size(number, width, height, 1) };
        if usize::try_from(expected).ok() != Some(bytes) || array.len() != bytes_of(shape, dtype)? {
            return Err(invalid(&format!("{format} pictures do not have the shape {shape:?}")));
        }
        if frame_rate.numerator <= 0 || frame_rate.denominator <= 0 {
            return Err(invalid("the frame rate must be positive"));
        }
        let unit = Rational::new(frame_rate.denominator, frame_rate.numerator);
        let mut made = Frames::new(MediaKind::Video, unit);
        for (index, picture) in (0_i64..).zip(array.chunks_exact(bytes.max(1))) {
            let mut frame = Frame::new()?;
            let fields = frame.fields_mut();
            (fields.format, fields.width, fields.height) = (number, width, height);
            fields.pts = first.saturating_add(index);
            fields.sample_aspect_ratio = ffi::AVRational { num: 1, den: 1 };
            allocate(&mut frame)?;
            copy_picture(picture, &mut frame)?;
            made.push(frame);
        }
        Ok(made)
    }

    /// Audio from an array of the shape `[channels, samples]` for planar formats, `[samples, channels]` for others;
    /// the content is copied. `first` is the number of the first sample.
    ///
    /// # Errors
    /// `InvalidArgument` if shape, type and bytes do not fit the format; `LimitExceeded` if no memory is left.
    pub fn of_samples(
        array: &[u8],
        shape: [usize; 2],
        dtype: DType,
        format: &str,
        sample_rate: u32,
        first: i64,
    ) -> Result<Self> {
        let number = names::sample_format(format)?;
        let needed = sample_type(format)?;
        if dtype != needed {
            let message = format!("{format} audio has elements of {needed:?}, not {dtype:?}");
            return Err(invalid(&message));
        }
        let planar = is_planar(format);
        let [channels, samples] = if planar { shape } else { [shape[1], shape[0]] };
        let number_of = |count: usize| c_int::try_from(count).ok().filter(|&count| count > 0);
        let sizes =
            number_of(channels).zip(number_of(samples)).zip(number_of(sample_rate as usize));
        let fits = array.len() == bytes_of(&shape, dtype)?;
        let Some(((channel_count, sample_count), rate)) = sizes.filter(|_| fits) else {
            let message =
                format!("{format} audio at {sample_rate} Hz cannot have the shape {shape:?}");
            return Err(invalid(&message));
        };
        let mut frame = Frame::new()?;
        let fields = frame.fields_mut();
        (fields.format, fields.nb_samples, fields.sample_rate) = (number, sample_count, rate);
        fields.pts = first;
        // SAFETY: the layout of a new frame is blank, and belongs to it.
        unsafe { ffi::av_channel_layout_default(&mut fields.ch_layout, channel_count) };
        allocate(&mut frame)?;
        let planes = if planar { channels } else { 1 };
        let bytes = array.len() / planes;
        for (plane, source) in array.chunks_exact(bytes).enumerate() {
            let plane = frame.plane(plane);
            // SAFETY: the frame was allocated with planes of at least `bytes` bytes.
            unsafe { ptr::copy_nonoverlapping(source.as_ptr(), plane, bytes) };
        }
        let mut made = Frames::new(MediaKind::Audio, Rational::new(1, rate));
        made.push(frame);
        Ok(made)
    }
}

/// The bytes of an array.
fn bytes_of(shape: &[usize], dtype: DType) -> Result<usize> {
    let bytes = shape.iter().try_fold(dtype.size(), |bytes, &extent| bytes.checked_mul(extent));
    bytes.ok_or_else(|| invalid("the array is too large"))
}

/// The frames, width and height of an array of pictures.
fn size_of(arrangement: Arrangement, shape: &[usize]) -> Option<(usize, usize, usize)> {
    // FFmpeg has no larger sides.
    if shape.iter().skip(1).any(|&extent| extent > 1 << 24) {
        return None;
    }
    let (frames, width, height) = match (arrangement, shape) {
        // One channel or plane may be omitted.
        (Arrangement::Packed(1) | Arrangement::Planes(1), &[frames, height, width]) => {
            (frames, width, height)
        }
        (Arrangement::Packed(_), &[frames, height, width, _]) => (frames, width, height),
        (Arrangement::Planes(_), &[frames, _, height, width]) => (frames, width, height),
        (Arrangement::Stacked(halves), &[frames, 1, rows, width]) => {
            (frames, width, rows * 2 / halves)
        }
        _ => return None,
    };
    let one = arrangement.shape(width, height);
    let fits = one.iter().product::<usize>() == shape[1..].iter().product::<usize>();
    let is_last = !matches!(arrangement, Arrangement::Packed(channels)
        if shape.len() == 4 && shape[3] != channels);
    (fits && is_last && frames > 0 && width > 0 && height > 0).then_some((frames, width, height))
}

/// Allocates the memory of a frame that is described.
fn allocate(frame: &mut Frame) -> Result<()> {
    // SAFETY: the frame is described, and has no memory yet.
    let code = unsafe { ffi::av_frame_get_buffer(frame.as_ptr(), 0) };
    if code < 0 { Err(error_of(code, "cannot allocate a frame")) } else { Ok(()) }
}

/// Copies the planes of a picture without gaps to an allocated frame.
fn copy_picture(picture: &[u8], frame: &mut Frame) -> Result<()> {
    let fields = frame.fields_mut();
    let mut planes = [ptr::null_mut(); 4];
    let mut strides: [c_int; 4] = [0; 4];
    // SAFETY: the caller has compared the size of `picture` with that of the format; the arrays have 4 elements.
    let code = unsafe {
        av_image_fill_arrays(
            planes.as_mut_ptr(),
            strides.as_mut_ptr(),
            picture.as_ptr(),
            fields.format,
            fields.width,
            fields.height,
            1,
        )
    };
    if code < 0 {
        return Err(error_of(code, "cannot copy a picture"));
    }
    // SAFETY: both have the planes of this format and size.
    unsafe {
        av_image_copy(
            fields.data.as_mut_ptr(),
            fields.linesize.as_ptr(),
            planes.as_ptr().cast(),
            strides.as_ptr(),
            fields.format,
            fields.width,
            fields.height,
        );
    }
    Ok(())
}

fn samples_of(frame: &Frame) -> usize {
    usize::try_from(frame.fields().nb_samples).unwrap_or(0)
}

fn is_planar(format: &str) -> bool {
    format.ends_with('p')
}

fn sample_type(format: &str) -> Result<DType> {
    Ok(match format.strip_suffix('p').unwrap_or(format) {
        "u8" => DType::U8,
        "s16" => DType::I16,
        "s32" => DType::I32,
        "s64" => DType::I64,
        "flt" => DType::F32,
        "dbl" => DType::F64,
        _ => {
            let message = format!("Unsupported sample format: {format}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    })
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
