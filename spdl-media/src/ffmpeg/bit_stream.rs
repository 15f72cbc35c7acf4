//! Bit stream filters: from packets to packets.

use std::ptr;

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{MediaKind, StreamCodec};
use super::errors::error_of;
use super::memory::{BitStream, Packet, Parameters, c_string};
use super::packets::Packets;

/// Changes encoded packets without decoding them, such as `h264_mp4toannexb`.
#[derive(Debug)]
pub struct BitStreamFilter {
    context: BitStream,
    kind: MediaKind,
    codec: StreamCodec,
    /// Whether the packets that are filtered have a codec.
    have_codec: bool,
}

impl BitStreamFilter {
    /// Starts filters; `description` lists their names and options, as `name=option=value,name`.
    ///
    /// # Errors
    /// `InvalidArgument` for unknown filters or options, and filters that do not support the codec.
    pub fn new(codec: &StreamCodec, description: &str) -> Result<Self> {
        super::start();
        let wrong = |code| {
            let reason = error_of(code, "cannot filter packets").to_string();
            Error::new(ErrorKind::InvalidArgument, format!("{reason} ({description:?})"))
        };
        let string = c_string(description)?;
        let mut made = ptr::null_mut();
        // SAFETY: the description is terminated with 0; `made` is an out-parameter.
        let code = unsafe { ffi::av_bsf_list_parse_str(string.as_ptr(), &mut made) };
        if code < 0 {
            return Err(wrong(code));
        }
        // SAFETY: the function has set `made` to a new context.
        let mut context = unsafe { BitStream::from_raw(made, "bit stream filters") }?;
        let input = context.fields().par_in;
        // SAFETY: a context has parameters of its input.
        let code = unsafe { ffi::avcodec_parameters_copy(input, codec.parameters().as_ptr()) };
        if code < 0 {
            return Err(wrong(code));
        }
        context.fields_mut().time_base_in = codec.time_base().to_ffi();
        // SAFETY: the context is new, and its input is described.
        let code = unsafe { ffi::av_bsf_init(context.as_ptr()) };
        if code < 0 {
            return Err(wrong(code));
        }
        // SAFETY: a context has parameters of its output, which `av_bsf_init` has set.
        let output = Parameters::of(unsafe { &*context.fields().par_out })?;
        let unit = context.fields().time_base_out.into();
        let codec = StreamCodec::new(codec.kind(), output, unit, codec.frame_rate());
        Ok(BitStreamFilter { context, kind: codec.kind(), codec, have_codec: true })
    }

    /// The codec of the filtered packets.
    pub fn codec(&self) -> &StreamCodec {
        &self.codec
    }

    /// Filters packets; those that are ready. They have a codec if the given ones have one.
    ///
    /// # Errors
    /// `InvalidArgument` for packets of another kind; `Corrupt` if a packet cannot be filtered.
    pub fn filter(&mut self, packets: &Packets) -> Result<Packets> {
        if packets.kind() != self.kind {
            let message = format!("the filter changes packets of {}", self.kind.name());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.have_codec = packets.codec().is_some();
        let mut filtered = self.none();
        filtered.set_window(packets.window());
        for packet in packets.as_slice() {
            self.send(packet.share()?.as_ptr(), &mut filtered)?;
        }
        Ok(filtered)
    }

    /// The packets that are left after the last one.
    ///
    /// # Errors
    /// `Corrupt` if a packet cannot be filtered.
    pub fn finish(&mut self) -> Result<Packets> {
        let mut filtered = self.none();
        self.send(ptr::null_mut(), &mut filtered)?;
        // SAFETY: the context is open; afterwards it accepts packets again.
        unsafe { ffi::av_bsf_flush(self.context.as_ptr()) };
        Ok(filtered)
    }

    fn none(&self) -> Packets {
        let packets = Packets::new(self.kind, self.codec.time_base());
        if self.have_codec { packets.with_codec(self.codec.clone()) } else { packets }
    }

    fn send(&mut self, packet: *mut ffi::AVPacket, filtered: &mut Packets) -> Result<()> {
        // SAFETY: the context is open; the packet is valid, or null at the end of the stream.
        let code = unsafe { ffi::av_bsf_send_packet(self.context.as_ptr(), packet) };
        if code < 0 && code != ffi::AVERROR_EOF {
            return Err(error_of(code, "cannot filter a packet"));
        }
        loop {
            let out = Packet::new()?;
            // SAFETY: context and packet are valid.
            let code = unsafe { ffi::av_bsf_receive_packet(self.context.as_ptr(), out.as_ptr()) };
            if code == ffi::AVERROR(ffi::EAGAIN) || code == ffi::AVERROR_EOF {
                return Ok(());
            }
            if code < 0 {
                return Err(error_of(code, "cannot filter a packet"));
            }
            filtered.push(out);
        }
    }
}
