//! The linked FFmpeg.

use pyo3::prelude::*;

/// The names and versions of the libraries of FFmpeg; empty if the module was built without them.
#[pyfunction]
pub(crate) fn ffmpeg_versions() -> Vec<(&'static str, (u32, u32, u32))> {
    #[cfg(feature = "ffmpeg")]
    let versions = spdl_media::video::ffmpeg::versions();
    #[cfg(not(feature = "ffmpeg"))]
    let versions: [(&str, [u32; 3]); 0] = [];
    versions
        .into_iter()
        .map(|(name, [major, minor, micro])| (name, (major, minor, micro)))
        .collect()
}
