//! Videos decoded by the device, with NVDEC.
//!
//! ```text
//! packets ──► parser ──calls──► session ──► decoder ──► surface ──copy──► frame, in memory of its own
//!                │                 ▲            ▲           (on the decoder's stream, then an event)
//!                └──errors stay────┘            └── cache: those of videos that have ended
//! ```

mod annex_b;
mod cache;
mod declared;
mod decoder;
mod engine;
mod format;
mod frame;
mod gather;
mod ivf;
mod library;
mod parser;
mod session;
mod video;

pub use annex_b::AccessUnits;
pub use engine::{NvDec, NvDecStatistics, VideoCapability};
pub use format::{ChromaFormat, VideoCodec, VideoColor, VideoFormat};
pub use frame::{FramePlane, VideoFrame};
pub use gather::FrameCrop;
pub use ivf::{IvfFile, IvfPacket};
pub use video::{VideoLimits, VideoStream};
