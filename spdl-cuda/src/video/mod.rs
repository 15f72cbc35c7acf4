//! Video decoding on the device, with NVDEC.
//!
//! | file | content |
//! |---|---|
//! | `engine.rs` | [`NvDec`]: the decoders of a device, capabilities, statistics |
//! | `stream.rs` | [`VideoStream`]: packets in, frames out |
//! | `format.rs` | [`VideoFormat`]: codec, chroma format, bit depth, colour |
//! | `frame.rs` | [`VideoFrame`]: a decoded frame in device memory |
//! | `gather.rs` | copies parts of frames into one buffer |
//! | `annex_b.rs`, `ivf.rs` | demultiplexers: Annex B byte streams, IVF files |
//! | `parser.rs`, `session.rs` | the parser of nvcuvid, and its callbacks |
//! | `decoder.rs`, `cache.rs` | a decoder, and idle ones for reuse |
//! | `library.rs`, `bindings.rs` | `libnvcuvid`, opened at run time, and its structures |
//!
//! Imports `pixels`, `runtime`, `driver` and `libraries`.
//!
//!
//! ```text
//! packets ──► parser ──calls──► session ──► decoder ──► surface ──copy──► frame, in memory of its own
//!                │                 ▲            ▲           (on the decoder's stream, then an event)
//!                └──errors stay────┘            └── cache: those of videos that have ended
//! ```

mod annex_b;
mod bindings;
mod cache;
mod decoder;
mod engine;
mod format;
mod frame;
mod gather;
mod ivf;
mod library;
mod parser;
mod session;
mod stream;

pub use annex_b::AccessUnits;
pub use engine::{NvDec, NvDecStatistics, VideoCapability};
pub use format::{ChromaFormat, VideoCodec, VideoColor, VideoFormat};
pub use frame::{FramePlane, VideoFrame};
pub use gather::FrameCrop;
pub use ivf::{IvfFile, IvfPacket};
pub use stream::{VideoLimits, VideoStream};
