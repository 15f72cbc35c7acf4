//! Properties of video packets that all readers need.

/// The maximum size of a packet of MPEG-2 or MPEG-4 without a coded frame; one with a frame is larger.
#[cfg_attr(not(feature = "ffmpeg"), allow(dead_code, reason = "FFmpeg's readers need it"))]
pub(crate) const NOT_CODED_BYTES: usize = 10;

/// Whether a packet of this size has exactly one frame that is shown.
///
/// False if packets can have one field (H.264), hidden frames (VP8, VP9) or frames that decoders leave out after a
/// seek (HEVC).
pub(crate) fn has_one_frame(codec: &str, packet_bytes: usize) -> bool {
    match codec {
        // Smaller packets end a sequence, or state that the previous frame is shown again.
        "mpeg1video" | "mpeg2video" | "mpeg4" => packet_bytes > NOT_CODED_BYTES,
        "av1" => true,
        _ => false,
    }
}
