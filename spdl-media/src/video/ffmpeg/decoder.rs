//! Decoders of video streams.

use std::ffi::CString;
use std::ptr;

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::planes::copy_planes;
use crate::ffmpeg::errors::error_of;
use crate::ffmpeg::memory::{CodecContext, Frame, Packet, padded};
use crate::image::{Picture, Size};
use crate::video::{
    DecodedFrame, VideoCodec, VideoColor, VideoDecoder, VideoDecoderOptions, VideoLimits,
    VideoStream,
};

/// The video decoders of FFmpeg, in software.
///
/// ```
/// use spdl_media::video::ffmpeg::FfmpegCodec;
/// use spdl_media::video::VideoCodec;
/// assert!(FfmpegCodec.decodes("h264") && !FfmpegCodec.decodes("a codec"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FfmpegCodec;

impl VideoCodec for FfmpegCodec {
    fn name(&self) -> &'static str {
        "ffmpeg"
    }

    fn decodes(&self, codec: &str) -> bool {
        find(codec).is_some()
    }

    fn notices_damage_in_threads(&self, codec: &str) -> bool {
        let [(_, version), ..] = crate::ffmpeg::versions();
        match codec {
            // They return errors, and conceal nothing.
            "av1" | "hevc" | "vp8" | "vp9" => true,
            // Before FFmpeg 7, threads lose the mark of concealed damage.
            "h264" => version[0] >= 61,
            _ => false,
        }
    }

    fn decoder(
        &self,
        stream: &VideoStream,
        options: &VideoDecoderOptions,
    ) -> Result<Box<dyn VideoDecoder>> {
        crate::ffmpeg::start();
        Ok(Box::new(FfmpegDecoder::new(stream, options)?))
    }
}

/// The decoder of a codec of this name.
fn find(codec: &str) -> Option<*const ffi::AVCodec> {
    let name = CString::new(codec).ok()?;
    // SAFETY: `name` is terminated with 0; the result is null or a constant of the library.
    let descriptor = unsafe { ffi::avcodec_descriptor_get_by_name(name.as_ptr()) };
    // SAFETY: the descriptor is null or valid for the whole program.
    let descriptor = unsafe { descriptor.as_ref() }?;
    if descriptor.type_ != ffi::AVMediaType::AVMEDIA_TYPE_VIDEO {
        return None;
    }
    // SAFETY: any identifier is allowed; the result is null or a constant of the library.
    let found = unsafe { ffi::avcodec_find_decoder(descriptor.id) };
    (!found.is_null()).then_some(found)
}

struct FfmpegDecoder {
    codec: String,
    context: CodecContext,
    packet: Packet,
    frame: Frame,
    limits: VideoLimits,
    color: VideoColor,
}

impl FfmpegDecoder {
    fn new(stream: &VideoStream, options: &VideoDecoderOptions) -> Result<Self> {
        let Some(codec) = find(&stream.codec) else {
            let message = format!("FFmpeg was built without a decoder of {:?} video", stream.codec);
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        // SAFETY: `codec` is a constant of the library.
        let context = unsafe { ffi::avcodec_alloc_context3(codec) };
        // SAFETY: the function returned a new context or null.
        let mut context = unsafe { CodecContext::from_raw(context, "a video decoder") }?;
        let side = |pixels: u32| i32::try_from(pixels).unwrap_or(i32::MAX);
        {
            let fields = context.fields_mut();
            (fields.extradata, fields.extradata_size) = padded(&stream.setup)?;
            fields.width = side(stream.size.width);
            fields.height = side(stream.size.height);
            fields.thread_count = side(options.threads.max(1));
            fields.has_b_frames = i32::try_from(options.reorder_depth).unwrap_or(16).min(16);
            fields.pkt_timebase = ffi::AVRational { num: 1, den: 1 };
            // Memory for larger frames is not allocated. Coded frames may be larger than shown ones.
            let most = options.limits.pixels().saturating_mul(2).saturating_add(1 << 16);
            fields.max_pixels = i64::try_from(most).unwrap_or(i64::MAX);
            // Checksums that the stream has are compared; damage is reported with the frame.
            fields.err_recognition = ffi::AV_EF_CRCCHECK;
        }
        // SAFETY: the context was made for this codec, and is not open yet.
        let code = unsafe { ffi::avcodec_open2(context.as_ptr(), codec, ptr::null_mut()) };
        if code < 0 {
            return Err(error_of(code, &format!("cannot decode {:?} video", stream.codec)));
        }
        Ok(FfmpegDecoder {
            codec: stream.codec.clone(),
            context,
            packet: Packet::new()?,
            frame: Frame::new()?,
            limits: options.limits.clone(),
            color: stream.color,
        })
    }

    fn failed(&self, code: i32, number: Option<u32>) -> Error {
        let what = match number {
            Some(number) => format!("corrupt {} video in packet {number}", self.codec),
            None => format!("corrupt {} video", self.codec),
        };
        error_of(code, &what)
    }
}

impl VideoDecoder for FfmpegDecoder {
    fn send(&mut self, packet: &[u8], number: u32, is_key: bool) -> Result<()> {
        if packet.is_empty() {
            let message = format!("corrupt {} video: packet {number} is empty", self.codec);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        self.packet.fill(packet)?;
        // The decoder returns this number with the frame.
        let fields = self.packet.fields_mut();
        fields.pts = number.into();
        // Without this flag, the decoder of PNG adds the frame to the one before.
        fields.flags = if is_key { ffi::AV_PKT_FLAG_KEY } else { 0 };
        // SAFETY: context and packet are valid; the decoder copies or references the packet.
        let code = unsafe { ffi::avcodec_send_packet(self.context.as_ptr(), self.packet.as_ptr()) };
        self.packet.clear();
        if code < 0 { Err(self.failed(code, Some(number))) } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        // SAFETY: the context is valid; a null packet starts draining.
        let code = unsafe { ffi::avcodec_send_packet(self.context.as_ptr(), ptr::null()) };
        if code < 0 && code != ffi::AVERROR_EOF { Err(self.failed(code, None)) } else { Ok(()) }
    }

    fn receive(&mut self) -> Result<Option<DecodedFrame>> {
        // SAFETY: context and frame are valid; the function releases the old content of the frame.
        let code =
            unsafe { ffi::avcodec_receive_frame(self.context.as_ptr(), self.frame.as_ptr()) };
        if code == ffi::AVERROR(ffi::EAGAIN) || code == ffi::AVERROR_EOF {
            return Ok(None);
        }
        if code < 0 {
            return Err(self.failed(code, None));
        }
        let frame = self.frame.fields();
        let side = |pixels: i32| u32::try_from(pixels).unwrap_or(0);
        self.limits.check_size(Size::new(side(frame.width), side(frame.height)))?;
        let is_damaged =
            frame.decode_error_flags != 0 || frame.flags & ffi::AV_FRAME_FLAG_CORRUPT != 0;
        // Without a number, the frame belongs to no packet.
        let number = u32::try_from(frame.pts).unwrap_or(u32::MAX);
        Ok(Some(DecodedFrame { number, is_damaged }))
    }

    fn copy_to(&mut self, picture: &mut Picture) -> Result<()> {
        copy_planes(&self.frame, &self.color, picture)
    }

    fn reset(&mut self) {
        // SAFETY: the context is open.
        unsafe { ffi::avcodec_flush_buffers(self.context.as_ptr()) };
    }

    fn is_reusable(&self) -> bool {
        // Others keep state that a flush does not clear, and that shows where packets are damaged: FFV1 the
        // frame before, VP8 probabilities, HEVC pictures after a reported error.
        matches!(&*self.codec, "h264" | "vp9" | "av1")
    }
}

impl std::fmt::Debug for FfmpegDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FfmpegDecoder").field("codec", &self.codec).finish_non_exhaustive()
    }
}
