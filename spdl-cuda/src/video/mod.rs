//! Video decoding on the device, with NVDEC.
//!
//! ```text
//! packets ──► parser ──callbacks──► session ──► decoder ──► surface ──copy──► frame
//!                                      ▲            ▲          (on the stream of the decoder)
//!                                      │            └── cache: decoders of finished videos
//!                                      └── errors are returned after the parser call
//! ```
//!
//! | file | content |
//! |---|---|
//! | `nvdec.rs` | [`NvDec`]: opens videos, capabilities, statistics |
//! | `decoders.rs`, `cache.rs` | the decoders that all videos share, and idle decoders for reuse |
//! | `stream.rs` | [`VideoStream`]: packets in, frames out |
//! | `limits.rs` | [`VideoLimits`] |
//! | `format.rs` | [`VideoFormat`]: codec, chroma format, bit depth, colour |
//! | `frame.rs` | [`VideoFrame`]: a decoded frame in device memory |
//! | `gather.rs` | copies frames into one array |
//! | `annex_b.rs`, `ivf.rs` | demultiplexers: Annex B byte streams, IVF files |
//! | `parser.rs`, `session.rs` | the parser of nvcuvid, and its callbacks |
//! | `decoder.rs` | a hardware decoder |
//! | `library.rs`, `bindings.rs` | `libnvcuvid`, opened at run time, and its structures |
//!
//! Imports `pixels`, `runtime`, `driver` and `libraries`.

mod annex_b;
mod bindings;
mod cache;
mod decoder;
mod decoders;
mod format;
mod frame;
mod gather;
mod ivf;
mod library;
mod limits;
mod nvdec;
mod parser;
mod session;
mod stream;

pub use self::annex_b::AccessUnits;
pub use self::decoders::VideoCapability;
pub use self::format::{ChromaFormat, VideoCodec, VideoColor, VideoFormat};
pub use self::frame::{FramePlane, VideoFrame};
pub use self::gather::FrameCrop;
pub use self::ivf::{IvfFile, IvfPacket};
pub use self::limits::VideoLimits;
pub use self::nvdec::{NvDec, NvDecStatistics};
pub use self::stream::VideoStream;
