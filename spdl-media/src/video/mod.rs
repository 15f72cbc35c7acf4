//! Video: from an encoded file to the frames of a clip.
//!
//! ```text
//! container ──► index ──► which frames ──► packets from the nearest key frame ──► codec ──► planes ──► batch slot
//! ```
//!
//! | file | content |
//! |---|---|
//! | `limits` | limits of files |
//! | `index` | the packets of a stream, and its frames in order of presentation |
//! | `codec`, `registry` | the traits of containers and codecs; their selection by content |
//! | `mp4`, `matroska` | the tables of MP4 and MOV files; of Matroska and WebM files |
//! | `cues` | the part of an index that a clip needs, by the key frames that a container lists |
//! | `clip` | which frames become a sample |
//! | `disposable` | packets to which no other frame refers |
//! | `stored_index` | an index in few bytes, which is stored beside a shard |
//! | `timer` | how long a decoder has worked |
//! | `reader` | decodes chosen frames |
//! | `ffmpeg` | containers and codecs by FFmpeg (feature `ffmpeg`) |
//! | `transform` | which frames become a sample, and how |
//!
//! Imports: `source`, `packets`, `ffmpeg`, [`image`](crate::image).

mod clip;
mod codec;
mod cues;
mod decoder_pool;
mod disposable;
#[cfg(feature = "ffmpeg")]
pub mod ffmpeg;
mod index;
mod limits;
mod matroska;
mod mp4;
mod reader;
mod registry;
#[cfg(feature = "records")]
mod stored_index;
mod timer;
mod transform;

use std::sync::Arc;

pub use clip::{ChosenFrames, ShortVideo, VideoClip};
pub use codec::{
    DecodedFrame, VIDEO_SNIFF_BYTES, VideoCodec, VideoContainer, VideoDecoder, VideoDecoderOptions,
};
#[cfg(feature = "records")]
pub(crate) use cues::bytes_of_clip;
pub use cues::{VideoCues, VideoKeyFrame};
pub(crate) use decoder_pool::bytes_of_decoder;
pub use index::{VideoColor, VideoFrame, VideoIndex, VideoPacket, VideoStream};
pub use limits::VideoLimits;
pub use matroska::MatroskaContainer;
pub use mp4::Mp4Container;
pub use reader::{ClipDecoded, VideoReader};
#[cfg(feature = "records")]
pub(crate) use reader::{container_of, index_of, ranges_of, stored_index_of};
pub use registry::VideoRegistry;
#[cfg(feature = "records")]
pub(crate) use stored_index::StoredVideoIndex;
pub use transform::VideoTransform;

/// The containers of this build: those of this crate first.
fn containers() -> Vec<Arc<dyn VideoContainer>> {
    vec![
        Arc::new(Mp4Container),
        Arc::new(MatroskaContainer),
        #[cfg(feature = "ffmpeg")]
        Arc::new(ffmpeg::FfmpegContainer),
    ]
}

/// The codecs of this build.
fn codecs() -> Vec<Arc<dyn VideoCodec>> {
    vec![
        #[cfg(feature = "ffmpeg")]
        Arc::new(ffmpeg::FfmpegCodec),
    ]
}
