//! The file name extensions of images, audio and video.

use spdl_io::records::{AUDIO_EXTENSIONS, IMAGE_EXTENSIONS, VIDEO_EXTENSIONS};

/// The type of a media file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaType {
    Image,
    Audio,
    Video,
}

impl MediaType {
    /// The type of a file, member or field by the extension of its name. A name without a dot is an
    /// extension.
    ///
    /// Includes formats that this build cannot read.
    pub(crate) fn of_name(name: &[u8]) -> Option<Self> {
        let ending = name.rsplit(|&byte| byte == b'.').next().unwrap_or_default();
        let is = |known: &&str| ending.eq_ignore_ascii_case(known.as_bytes());
        match () {
            () if image_extensions().any(|known| is(&known)) => Some(MediaType::Image),
            () if AUDIO_EXTENSIONS.iter().any(is) => Some(MediaType::Audio),
            () if VIDEO_EXTENSIONS.iter().any(is) => Some(MediaType::Video),
            () => None,
        }
    }

    /// Like [`of_name`](Self::of_name), but `None` for a file that ends in `.ts` and is no MPEG
    /// transport stream: such members may be times, or programs.
    pub(crate) fn of_member(name: &[u8], data: &[u8]) -> Option<Self> {
        const SYNC: Option<&u8> = Some(&0x47);
        let is_ts = name.to_ascii_lowercase().rsplit(|&byte| byte == b'.').next() == Some(b"ts");
        // Some recorders put a time of four bytes before each packet.
        let is_stream = data.first() == SYNC || data.get(4) == SYNC;
        MediaType::of_name(name).filter(|_| !is_ts || is_stream)
    }

    /// Whether this is audio or video.
    pub(crate) fn is_timed(self) -> bool {
        self != MediaType::Image
    }
}

/// The file name extensions of optional formats, and whether this build reads them.
const MORE_EXTENSIONS: [(bool, &[&str]); 3] = [
    (cfg!(feature = "jxl"), &["jxl"]),
    (cfg!(feature = "exr"), &["exr"]),
    (
        cfg!(feature = "more-formats"),
        &["pnm", "pbm", "pgm", "ppm", "pam", "qoi", "tga", "dds", "hdr", "ico", "ff"],
    ),
];

/// The file name extensions of the optional formats in this build.
pub(crate) fn more_extensions() -> impl Iterator<Item = &'static str> {
    let read = MORE_EXTENSIONS.into_iter().filter(|(is_read, _)| *is_read);
    read.flat_map(|(_, names)| names.iter().copied())
}

/// The file name extensions of audio and video.
pub(crate) fn timed_extensions() -> impl Iterator<Item = &'static str> {
    AUDIO_EXTENSIONS.into_iter().chain(VIDEO_EXTENSIONS)
}

/// The file name extensions of all image formats, including formats that this build cannot read.
fn image_extensions() -> impl Iterator<Item = &'static str> {
    let more = MORE_EXTENSIONS.into_iter().flat_map(|(_, names)| names.iter().copied());
    IMAGE_EXTENSIONS.into_iter().chain(more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_extension_selects_the_type() {
        for (name, media) in [
            ("a/b.seg.PNG", Some(MediaType::Image)),
            ("d.mp4/1.Flac", Some(MediaType::Audio)),
            ("1.left.mkv", Some(MediaType::Video)),
            ("mp4", Some(MediaType::Video)),
            ("a/png", None),
            ("a.cls", None),
            ("", None),
        ] {
            assert_eq!(MediaType::of_name(name.as_bytes()), media, "{name}");
        }
    }

    #[test]
    fn text_in_a_member_that_ends_in_ts_is_no_video() {
        let of = |name: &str, data: &[u8]| MediaType::of_member(name.as_bytes(), data);
        assert_eq!((of("a.ts", b"1700000000"), of("a.TS", b"")), (None, None));
        assert_eq!(of("a.ts", &[0x47, 0x40, 0, 0x10]), Some(MediaType::Video));
        assert_eq!(of("a.ts", &[0, 0, 0, 0, 0x47]), Some(MediaType::Video));
        assert_eq!(of("a.mp4", b""), Some(MediaType::Video));
    }
}
