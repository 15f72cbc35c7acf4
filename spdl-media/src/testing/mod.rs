//! Contract tests for codecs, for authors of third-party codecs to call from their tests.
//!
//! ```
//! # #[cfg(feature = "bmp")] {
//! use spdl_media::{CodecRegistry, testing::codec_contract};
//! # let mut bmp = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
//! # bmp.extend([1u32.to_le_bytes(), 1u32.to_le_bytes()].concat());
//! # bmp.extend([1, 0, 24, 0]);
//! # bmp.extend([0; 24]);
//! # bmp.extend([1, 2, 3, 0]);
//! let registry = CodecRegistry::with_defaults();
//! let codec = registry.find(&bmp)?;
//! codec_contract(codec.as_ref(), &[&bmp]);
//! # }
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! | file | content |
//! |---|---|
//! | `contract` | the contract tests of image codecs |
//! | `audio` | those of audio codecs |
//! | `video` | those of video codecs |
//!
//! Imports: [`image`](crate::image), [`audio`](crate::audio), [`video`](crate::video).

mod audio;
mod contract;
mod video;

pub use audio::audio_contract;
pub use contract::{codec_contract, memory_contract};
pub use video::video_contract;
