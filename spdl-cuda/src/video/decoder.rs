//! A decoder of the library's, with the stream on which its pictures come out.

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

/// How many surfaces may be mapped at a time. One is; the other is written meanwhile.
const OUTPUT_SURFACES: c_ulong = 2;

/// What became of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PictureStatus {
    /// It is sound, or the device does not say for this codec.
    NotDamaged,
    /// It is damaged, and part of it is made up.
    Concealed,
    /// It is damaged.
    Damaged,
}

/// A decoder for videos of one kind, one at a time.
///
/// All that its surfaces are read by goes to its own stream, which the library writes them on: so no
/// surface is written again too early, and nobody waits for that.
pub(crate) struct Decoder {
    handle: NvcuvidHandle,
    kind: DecoderConfig,
    /// The size for which it is configured.
    coded_size: (u32, u32),
    stream: ComputeStream,
    library: NvcuvidLibrary,
    context: Arc<Context>,
    /// It is used by the decoder, and outlives it.
    lock: Arc<ContextLock>,
}

// SAFETY: a decoder belongs to no thread; one at a time calls for it, since it is used exclusively.
unsafe impl Send for Decoder {}

/// The library's number for how pixels come out.
fn output_format(format: PixelFormat) -> c_int {
    match format {
        PixelFormat::P016 => 1,
        PixelFormat::Yuv444 => 2,
        PixelFormat::Yuv444P16 => 3,
        // What else there is does not come out of decoders.
        PixelFormat::Nv12 | PixelFormat::Rgb8 | PixelFormat::Yuv420 => 0,
    }
}

/// Whether the device has this among its output formats.
pub(crate) fn comes_out(format: PixelFormat, mask: u16) -> bool {
    mask & (1 << output_format(format)) != 0
}

impl Decoder {
    pub(crate) fn new(
        library: &NvcuvidLibrary,
        lock: &Arc<ContextLock>,
        context: &Arc<Context>,
        kind: DecoderConfig,
        format: PixelFormat,
        coded_size: (u32, u32),
    ) -> Result<Decoder> {
        let stream = ComputeStream::new(context)?;
        let (width, height) = (c_ulong::from(coded_size.0), c_ulong::from(coded_size.1));
        let mut info = DecodeCreateInfo {
            width,
            height,
            decode_surfaces: c_ulong::from(kind.surfaces),
            codec: kind.codec.code(),
            chroma_format: kind.chroma.code(),
            creation_flags: CREATE_PREFER_ENGINES,
            bit_depth_minus_8: c_ulong::from(kind.bits - 8),
            intra_decode_only: 0,
            max_width: c_ulong::from(kind.largest.0),
            max_height: c_ulong::from(kind.largest.1),
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
        let handle = context.run("make a video decoder", |_| {
            // SAFETY: the decoder holds the lock.
            unsafe { library.create_decoder(&mut info) }
        })?;
        Ok(Decoder {
            handle,
            kind,
            coded_size,
            stream,
            library: library.clone(),
            context: Arc::clone(context),
            lock: Arc::clone(lock),
        })
    }

    pub(crate) fn kind(&self) -> DecoderConfig {
        self.kind
    }

    /// Makes it one for pictures of this size, which its kind allows. Whether that was needed.
    pub(crate) fn configure(&mut self, coded_size: (u32, u32)) -> DriverResult<bool> {
        if coded_size == self.coded_size {
            return Ok(false);
        }
        let (width, height): (c_uint, c_uint) = coded_size;
        let mut info = ReconfigureDecoderInfo {
            width,
            height,
            target_width: width,
            target_height: height,
            decode_surfaces: self.kind.surfaces,
            ..ReconfigureDecoderInfo::default()
        };
        self.context.attempt(|_| {
            // SAFETY: it is alive, and frames are unmapped where they were mapped.
            unsafe { self.library.reconfigure_decoder(self.handle, &mut info) }
        })?;
        self.coded_size = coded_size;
        Ok(true)
    }

    /// Starts to decode a picture.
    ///
    /// # Safety
    /// It is the picture about which the parser is calling.
    pub(crate) unsafe fn decode(&mut self, picture: *mut PicParams) -> DriverResult<()> {
        // SAFETY: it is alive; the caller answers for the picture.
        self.context.attempt(|_| unsafe { self.library.decode_picture(self.handle, picture) })
    }

    /// Waits until a picture is decoded, and puts it where work of its
    /// [stream](Surface::stream) can read it.
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
            // SAFETY: the decoder is alive, and so is its stream.
            unsafe { self.library.map_frame(self.handle, index, &mut processing) }
        })?;
        Ok(Surface { decoder: self, address, pitch, is_mapped: true })
    }

    /// What became of a picture that was decoded.
    pub(crate) fn status(&self, index: c_int) -> PictureStatus {
        // SAFETY: it is alive.
        let told =
            self.context.attempt(|_| unsafe { self.library.decode_status(self.handle, index) });
        match told {
            Ok(STATUS_ERROR) => PictureStatus::Damaged,
            Ok(STATUS_CONCEALED) => PictureStatus::Concealed,
            // It is not told for all codecs, and that it is not is no failure of the picture.
            Ok(_) | Err(_) => PictureStatus::NotDamaged,
        }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        if !self.stream.synchronize() {
            // Whether the device still reads its surfaces, nobody knows. They stay, and so does the lock.
            std::mem::forget(Arc::clone(&self.lock));
            return;
        }
        // SAFETY: it is alive, nobody uses it again, and all work with its surfaces is done.
        self.context.release(|_| unsafe { self.library.destroy_decoder(self.handle) });
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (width, height) = self.coded_size;
        write!(f, "Decoder({} {width} x {height})", self.kind.codec)
    }
}

/// A picture where work of a stream can read it, until this is dropped: what they were told before is done first.
pub(crate) struct Surface<'a> {
    decoder: &'a mut Decoder,
    pub(crate) address: u64,
    pub(crate) pitch: u32,
    is_mapped: bool,
}

impl Surface<'_> {
    /// What reads it goes here.
    pub(crate) fn stream(&self) -> &ComputeStream {
        &self.decoder.stream
    }

    /// What became of its picture, now that it is decoded.
    pub(crate) fn status(&self, index: c_int) -> PictureStatus {
        self.decoder.status(index)
    }

    /// Gives it back.
    pub(crate) fn unmap(mut self) -> DriverResult<()> {
        self.unmap_once()
    }

    fn unmap_once(&mut self) -> DriverResult<()> {
        if !std::mem::take(&mut self.is_mapped) {
            return Ok(());
        }
        let Decoder { context, library, handle, .. } = &*self.decoder;
        // SAFETY: the decoder is alive, and this is mapped.
        context.attempt(|_| unsafe { library.unmap_frame(*handle, self.address) })
    }
}

impl Drop for Surface<'_> {
    fn drop(&mut self) {
        // There was an error already: with it the decoder is done for.
        let _ = self.unmap_once();
    }
}
