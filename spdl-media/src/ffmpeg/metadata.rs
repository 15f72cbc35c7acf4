//! Metadata of images, in one form for all versions of the libraries.
//!
//! FFmpeg before version 8 names the entries of EXIF by their tags. Newer versions add the name of the group to
//! entries of nested groups, also read the group of the thumbnail, and move the orientation to the display matrix
//! of the frame. They also pad numbers differently.

use std::ffi::{c_char, c_int};

use ffmpeg_next::ffi;

use super::memory::{entries, text};
use super::names::number_of;

unsafe extern "C" {
    // As in libavutil, with the kind as a number, as in `names`.
    fn av_frame_side_data_name(kind: c_int) -> *const c_char;
}

/// The name of the orientation, as EXIF names its tag.
const ORIENTATION: &str = "Orientation";

/// Nested groups whose entries all versions read.
const GROUPS: [&str; 3] = ["ExifIFD", "GPSInfo", "InteropIFD"];

/// The metadata of an image: names and values.
pub(super) fn of_image(frame: &ffi::AVFrame) -> Vec<(String, String)> {
    // SAFETY: the dictionary belongs to the frame, which is borrowed.
    let found = unsafe { entries(frame.metadata) };
    let mut metadata: Vec<_> = found
        .into_iter()
        .filter_map(|(name, value)| Some((tag_of(&name)?.to_owned(), without_padding(&value))))
        .collect();
    let has_orientation = metadata.iter().any(|(name, _)| name == ORIENTATION);
    if !has_orientation && let Some(number) = moved_orientation(frame) {
        metadata.push((ORIENTATION.to_owned(), number.to_string()));
    }
    metadata
}

/// The tag of an entry without its group; `None` for tags of thumbnails.
fn tag_of(name: &str) -> Option<&str> {
    match name.split_once('/') {
        Some((group, rest)) if GROUPS.contains(&group) => tag_of(rest),
        Some((group, _)) if is_further_group(group) => None,
        _ => Some(name),
    }
}

/// Whether a group follows the first one, such as `IFD1`, that of the thumbnail.
fn is_further_group(name: &str) -> bool {
    name.strip_prefix("IFD").is_some_and(|number| number.parse::<u8>().is_ok())
}

/// Numbers without the spaces and line ends between them: `"  1:125  "` is `"1:125"`. Other texts do not change.
fn without_padding(value: &str) -> String {
    let is_padded = value.trim() != value || value.contains('\n') || value.contains("  ");
    let is_numeric = |text: char| text.is_ascii_digit() || ":,.+-einf \n".contains(text);
    if !is_padded
        || !value.contains(|text: char| text.is_ascii_digit())
        || !value.chars().all(is_numeric)
    {
        return value.to_owned();
    }
    let numbers = value.split([',', '\n']).map(str::trim).filter(|number| !number.is_empty());
    let parts = |number: &str| number.split(':').map(str::trim).collect::<Vec<_>>().join(":");
    numbers.map(parts).collect::<Vec<_>>().join(", ")
}

/// The orientation in the display matrix of a frame whose EXIF block lacks it.
fn moved_orientation(frame: &ffi::AVFrame) -> Option<u32> {
    let count = usize::try_from(frame.nb_side_data).unwrap_or(0);
    if frame.side_data.is_null() || count == 0 {
        return None;
    }
    // SAFETY: the frame has this number of pointers.
    let all = unsafe { std::slice::from_raw_parts(frame.side_data, count) };
    // SAFETY: the pointers are valid as long as the frame.
    let all = || all.iter().filter_map(|part| unsafe { part.as_ref() });
    let has_exif = all().any(|part| {
        let kind = number_of!(part.type_);
        // SAFETY: any number is allowed.
        let name = unsafe { av_frame_side_data_name(kind) };
        // SAFETY: the name is null or a constant of the library.
        unsafe { text(name) == "EXIF metadata" }
    });
    let is_matrix = |part: &&ffi::AVFrameSideData| {
        number_of!(part.type_) == ffi::AVFrameSideDataType::AV_FRAME_DATA_DISPLAYMATRIX as c_int
    };
    let matrix =
        all().find(is_matrix).filter(|part| has_exif && part.size >= size_of::<[i32; 9]>())?;
    // SAFETY: the data has the size of nine numbers, and the library aligns memory for all types.
    orientation_of(unsafe { &*matrix.data.cast::<[i32; 9]>() })
}

/// The number of the orientation of EXIF that a display matrix stands for.
fn orientation_of(matrix: &[i32; 9]) -> Option<u32> {
    let [a, b, _, c, d, ..] = matrix.map(i32::signum);
    match (a, b, c, d) {
        (1, 0, 0, 1) => Some(1),
        (-1, 0, 0, 1) => Some(2),
        (-1, 0, 0, -1) => Some(3),
        (1, 0, 0, -1) => Some(4),
        (0, 1, 1, 0) => Some(5),
        (0, 1, -1, 0) => Some(6),
        (0, -1, -1, 0) => Some(7),
        (0, -1, 1, 0) => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_have_no_group() {
        assert_eq!(tag_of("Model"), Some("Model"));
        assert_eq!(tag_of("ExifIFD/ExposureTime"), Some("ExposureTime"));
        assert_eq!(tag_of("ExifIFD/InteropIFD/0x0001"), Some("0x0001"));
        assert_eq!(tag_of("GPSInfo/GPSLatitude"), Some("GPSLatitude"));
        assert_eq!(tag_of("IFD1/Compression"), None);
        // Not of EXIF.
        assert_eq!(tag_of("a/b"), Some("a/b"));
        assert_eq!(tag_of("IFDx/b"), Some("IFDx/b"));
    }

    #[test]
    fn numbers_have_no_padding() {
        for (padded, plain) in [
            ("    6", "6"),
            ("      1:125    ", "1:125"),
            ("\n     51:1      ,      30:1      , -12:5", "51:1, 30:1, -12:5"),
            ("  2,   3,   0,   0", "2, 3, 0, 0"),
            ("  1,   2\n  3", "1, 2, 3"),
            (" 0.5", "0.5"),
        ] {
            assert_eq!(without_padding(padded), plain);
            assert_eq!(without_padding(plain), plain);
        }
        for text in ["2026:01:02 10:00:00", "1,2", " a ", "  Model 5  ", "", "  ", "a\nb"] {
            assert_eq!(without_padding(text), text);
        }
    }
}
