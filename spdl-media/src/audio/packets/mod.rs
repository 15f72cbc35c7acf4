//! Decoders of packets, which the readers of containers call.
//!
//! | file | content |
//! |---|---|
//! | `symphonia` | AAC, Vorbis: decoders of the project Symphonia |
//! | `opus` | Opus, by the crate `opus-decoder` |

#[cfg(feature = "opus")]
mod opus;
#[cfg(any(feature = "aac", feature = "vorbis"))]
mod symphonia;

use spdl_core::Result;

#[cfg(feature = "opus")]
pub(super) use self::opus::{OpusHeader, OpusPackets, packet_frames};
#[cfg(any(feature = "aac", feature = "vorbis"))]
pub(super) use self::symphonia::{PacketCodec, SymphoniaPackets};
use super::collector::Collector;

/// Decodes the packets of one stream, one after the other.
pub(super) trait PacketDecoder: Send {
    /// Decodes a packet, and passes its frames to `out`. `offset` is its place in the file.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `LimitExceeded`; the errors of the collector.
    fn decode(&mut self, packet: &[u8], offset: usize, out: &mut Collector<'_>) -> Result<()>;
}
