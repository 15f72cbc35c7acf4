//! Owners of contexts, packets and frames of the libraries.

use std::ptr::{self, NonNull};

use ffmpeg_next::ffi;
use spdl_core::Result;

use super::errors::{error_of, out_of_memory};

/// Owns a value of the libraries.
macro_rules! owner {
    ($(#[$doc:meta])* $name:ident, $type:ty, $free:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name(NonNull<$type>);

        impl $name {
            /// Takes ownership of what `pointer` points to; `None` if it is null.
            ///
            /// # Safety
            /// The value must be valid, and have no other owner.
            pub(super) unsafe fn from_raw(pointer: *mut $type) -> Option<Self> {
                NonNull::new(pointer).map($name)
            }

            /// The pointer for functions of the libraries. Valid as long as the owner.
            pub(super) fn as_ptr(&self) -> *mut $type {
                self.0.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                let mut pointer = self.0.as_ptr();
                // SAFETY: the owner holds a valid value, which is freed here only.
                unsafe { $free(&mut pointer) };
            }
        }

        // SAFETY: the libraries bind these values to no thread; `&mut` or ownership passes on.
        unsafe impl Send for $name {}
    };
}

owner!(
    /// An encoded packet.
    Packet, ffi::AVPacket, ffi::av_packet_free
);
owner!(
    /// A decoded frame.
    Frame, ffi::AVFrame, ffi::av_frame_free
);
owner!(
    /// A decoder.
    CodecContext, ffi::AVCodecContext, ffi::avcodec_free_context
);

impl Packet {
    pub(super) fn new() -> Result<Self> {
        // SAFETY: the function has no conditions.
        let packet = unsafe { ffi::av_packet_alloc() };
        // SAFETY: the function returned a new packet or null.
        unsafe { Packet::from_raw(packet) }.ok_or_else(|| out_of_memory("a packet"))
    }

    /// Copies `bytes`, followed by the padding that decoders require.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> Result<()> {
        self.clear();
        let Ok(size) = i32::try_from(bytes.len()) else {
            return Err(out_of_memory("a packet of 2 GiB"));
        };
        // SAFETY: the packet is valid and blank.
        let code = unsafe { ffi::av_new_packet(self.as_ptr(), size) };
        if code < 0 {
            return Err(error_of(code, "cannot allocate a packet"));
        }
        // SAFETY: the packet is valid, and nothing changes it now.
        let data = unsafe { &*self.as_ptr() }.data;
        // SAFETY: `av_new_packet` allocated `size` bytes and padding; `bytes` is other memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len()) };
        Ok(())
    }

    /// Releases the content.
    pub(super) fn clear(&mut self) {
        // SAFETY: the packet is valid.
        unsafe { ffi::av_packet_unref(self.as_ptr()) };
    }
}

impl Frame {
    pub(super) fn new() -> Result<Self> {
        // SAFETY: the function has no conditions.
        let frame = unsafe { ffi::av_frame_alloc() };
        // SAFETY: the function returned a new frame or null.
        unsafe { Frame::from_raw(frame) }.ok_or_else(|| out_of_memory("a frame"))
    }

    /// The fields of the frame.
    pub(super) fn fields(&self) -> &ffi::AVFrame {
        // SAFETY: the owner holds a valid frame, and `&self` excludes changes.
        unsafe { &*self.as_ptr() }
    }
}
