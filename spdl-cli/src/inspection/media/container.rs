//! Names of containers.

/// The name of the format: the name that the reader has, or, if FFmpeg reads the file, the name
/// that FFmpeg has, such as `avi`.
pub(super) fn name_of(reader: &str, file: &[u8]) -> String {
    match reader {
        "ffmpeg" => by_ffmpeg(file).unwrap_or_else(|| reader.to_owned()),
        reader => reader.to_owned(),
    }
}

#[cfg(feature = "ffmpeg")]
fn by_ffmpeg(file: &[u8]) -> Option<String> {
    use spdl_media::ffmpeg::{DemuxOptions, Demuxer};
    let demuxer = Demuxer::open(Box::new(file), "", &DemuxOptions::default()).ok()?;
    Some(first_name(&demuxer.format()).to_owned())
}

#[cfg(not(feature = "ffmpeg"))]
fn by_ffmpeg(_: &[u8]) -> Option<String> {
    None
}

/// The usual name among FFmpeg's names of a format, which are separated by commas.
#[cfg_attr(not(feature = "ffmpeg"), allow(dead_code, reason = "only FFmpeg has such names"))]
fn first_name(names: &str) -> &str {
    if names.split(',').any(|name| name == "mp4") {
        return "mp4";
    }
    names.split(',').next().unwrap_or(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_its_usual_name() {
        assert_eq!(first_name("mov,mp4,m4a,3gp,3g2,mj2"), "mp4");
        assert_eq!(first_name("matroska,webm"), "matroska");
        assert_eq!(first_name("avi"), "avi");
        assert_eq!(name_of("flac", b""), "flac");
    }
}
