//! A hardware decoder of nvcuvid, with its output stream.

use std::ffi::{c_int, c_uint, c_ulong};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use spdl_core::Result;

use super::bindings::{
    CREATE_PREFER_ENGINES, DEINTERLACE_WEAVE, DecodeCreateInfo, ParserDispInfo, PicParams,
    ProcParams, ReconfigureDecoderInfo, Rectangle, STATUS_CONCEALED, STATUS_ERROR,
};
use super::cache::DecoderConfig;
use super::library::{ContextLock, NvcuvidHandle, NvcuvidLibrary};
use crate::driver::DriverResult;
use crate::pixels::PixelFormat;
use crate::runtime::{ComputeStream, Context};

/// Number of output surfaces: one is mapped while the library writes to the other.
const OUTPUT_SURFACES: c_ulong = 2;

/// The decode status of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PictureStatus {
    /// Decoded without errors, or the decode status is unknown.
    Success,
    /// Decoded with concealed errors.
    Concealed,
    /// Not decoded.
    Failed,
}

/// A decoder with a fixed configuration, for one video at a time.
///
/// The library writes the surfaces on the stream of the decoder, and all reads are queued on the
/// same stream. So no surface is overwritten before it is read, and the host does not wait for the
/// reads.
pub(crate) struct Decoder {
    handle: NvcuvidHandle,
    config: DecoderConfig,
    /// The configured picture size.
    coded_size: (u32, u32),
    stream: ComputeStream,
    library: NvcuvidLibrary,
    context: Arc<Context>,
    /// The lock that the decoder uses; it must outlive the decoder.
    lock: Arc<ContextLock>,
}

// SAFETY: a decoder is not bound to a thread, and exclusive access prevents concurrent calls.
unsafe impl Send for Decoder {}

/// The `cudaVideoSurfaceFormat` of a pixel format.
fn output_format(format: PixelFormat) -> c_int {
    match format {
        PixelFormat::P016 => 1,
        PixelFormat::Yuv444 => 2,
        PixelFormat::Yuv444P16 => 3,
        // Decoders do not output the other pixel formats.
        PixelFormat::Nv12 | PixelFormat::Rgb8 | PixelFormat::Yuv420 => 0,
    }
}

/// Whether the mask of output formats contains a pixel format.
pub(crate) fn supports_output(format: PixelFormat, mask: u16) -> bool {
    mask & (1 << output_format(format)) != 0
}

impl Decoder {
    pub(crate) fn new(
        library: &NvcuvidLibrary,
        lock: &Arc<ContextLock>,
        context: &Arc<Context>,
        config: DecoderConfig,
        format: PixelFormat,
        coded_size: (u32, u32),
    ) -> Result<Decoder> {
        let stream = ComputeStream::new(context)?;
        let (width, height) = (c_ulong::from(coded_size.0), c_ulong::from(coded_size.1));
        let mut info = DecodeCreateInfo {
            width,
            height,
            decode_surfaces: c_ulong::from(config.surfaces),
            codec: config.codec.code(),
            chroma_format: config.chroma.code(),
            creation_flags: CREATE_PREFER_ENGINES,
            bit_depth_minus_8: c_ulong::from(config.bits - 8),
            intra_decode_only: 0,
            max_width: c_ulong::from(config.max_size.0),
            max_height: c_ulong::from(config.max_size.1),
            reserved_1: 0,
            display_area: Rectangle::default(),
            output_format: output_format(format),
            deinterlace_mode: DEINTERLACE_WEAVE,
            target_width: width,
            target_height: height,
            output_surfaces: OUTPUT_SURFACES,
            context_lock: lock.raw(),
            target_rectangle: Rectangle::default(),
            enable_histogram: 0,
            reserved_2: [0; 4],
        };
        let handle = context.run("create a video decoder", |_| {
            // SAFETY: the decoder holds the lock.
            unsafe { library.create_decoder(&mut info) }
        })?;
        Ok(Decoder {
            handle,
            config,
            coded_size,
            stream,
            library: library.clone(),
            context: Arc::clone(context),
            lock: Arc::clone(lock),
        })
    }

    pub(crate) fn config(&self) -> DecoderConfig {
        self.config
    }

    /// Reconfigures the decoder for pictures of this size, within its configuration. Returns
    /// whether the size changed.
    pub(crate) fn reconfigure(&mut self, coded_size: (u32, u32)) -> DriverResult<bool> {
        if coded_size == self.coded_size {
            return Ok(false);
        }
        let (width, height): (c_uint, c_uint) = coded_size;
        let mut info = ReconfigureDecoderInfo {
            width,
            height,
            target_width: width,
            target_height: height,
            decode_surfaces: self.config.surfaces,
            ..ReconfigureDecoderInfo::default()
        };
        self.context.attempt(|_| {
            // SAFETY: the decoder exists, and no surface is mapped, because a surface borrows the
            // decoder.
            unsafe { self.library.reconfigure_decoder(self.handle, &mut info) }
        })?;
        self.coded_size = coded_size;
        Ok(true)
    }

    /// Starts to decode a picture.
    ///
    /// # Safety
    /// `picture` is the argument of a callback of the parser.
    pub(crate) unsafe fn decode(&mut self, picture: *mut PicParams) -> DriverResult<()> {
        // SAFETY: the decoder exists; the caller guarantees the picture.
        self.context.attempt(|_| unsafe { self.library.decode_picture(self.handle, picture) })
    }

    /// Waits until a picture is decoded, and maps it to a surface for work on the
    /// [stream](Surface::stream) of that surface.
    pub(crate) fn map(&mut self, shown: &ParserDispInfo) -> DriverResult<Surface<'_>> {
        let mut processing = ProcParams {
            progressive_frame: shown.progressive_frame,
            second_field: 0,
            top_field_first: shown.top_field_first,
            unpaired_field: c_int::from(shown.repeat_first_field < 0),
            reserved_flags: 0,
            reserved_zero: 0,
            raw_input_address: 0,
            raw_input_pitch: 0,
            raw_input_format: 0,
            raw_output_address: 0,
            raw_output_pitch: 0,
            reserved_1: 0,
            output_stream: ptr::without_provenance_mut(self.stream.handle().0),
            reserved: [0; 46],
            histogram_address: ptr::null_mut(),
            reserved_2: [ptr::null_mut()],
        };
        let index = shown.picture_index;
        let (address, pitch) = self.context.attempt(|_| {
            // SAFETY: the decoder and its stream exist.
            unsafe { self.library.map_frame(self.handle, index, &mut processing) }
        })?;
        Ok(Surface { decoder: self, address, pitch, is_mapped: true })
    }

    /// The decode status of a picture.
    pub(crate) fn status(&self, index: c_int) -> PictureStatus {
        // SAFETY: the decoder exists.
        let status =
            self.context.attempt(|_| unsafe { self.library.decode_status(self.handle, index) });
        match status {
            Ok(STATUS_ERROR) => PictureStatus::Failed,
            Ok(STATUS_CONCEALED) => PictureStatus::Concealed,
            // Not all codecs report a status; a missing status is not an error of the picture.
            Ok(_) | Err(_) => PictureStatus::Success,
        }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        if !self.stream.synchronize() {
            // The device may still read the surfaces, so decoder and lock are leaked.
            std::mem::forget(Arc::clone(&self.lock));
            return;
        }
        // SAFETY: the decoder exists, is not used again, and all work on its surfaces has
        // completed.
        self.context.release(|_| unsafe { self.library.destroy_decoder(self.handle) });
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (width, height) = self.coded_size;
        write!(f, "Decoder({} {width}x{height})", self.config.codec)
    }
}

/// A mapped output surface. The library writes to it again only after all work that was queued on
/// the stream before the unmapping.
pub(crate) struct Surface<'a> {
    decoder: &'a mut Decoder,
    pub(crate) address: u64,
    pub(crate) pitch: u32,
    is_mapped: bool,
}

impl Surface<'_> {
    /// The stream on which all work that reads the surface must be queued.
    pub(crate) fn stream(&self) -> &ComputeStream {
        &self.decoder.stream
    }

    /// The decode status of the picture in this surface.
    pub(crate) fn status(&self, index: c_int) -> PictureStatus {
        self.decoder.status(index)
    }

    /// Unmaps the surface.
    pub(crate) fn unmap(mut self) -> DriverResult<()> {
        self.unmap_once()
    }

    fn unmap_once(&mut self) -> DriverResult<()> {
        if !std::mem::take(&mut self.is_mapped) {
            return Ok(());
        }
        let Decoder { context, library, handle, .. } = &*self.decoder;
        // SAFETY: the decoder exists, and the surface is mapped.
        context.attempt(|_| unsafe { library.unmap_frame(*handle, self.address) })
    }
}

impl Drop for Surface<'_> {
    fn drop(&mut self) {
        // The surface is still mapped here only after another error; then the decoder is not used
        // again.
        let _ = self.unmap_once();
    }
}
