//! The file name extensions of image formats.

use spdl_io::records::IMAGE_EXTENSIONS;

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

/// The file name extensions of all image formats, including formats that this build cannot read.
pub(crate) fn image_extensions() -> impl Iterator<Item = &'static str> {
    let more = MORE_EXTENSIONS.into_iter().flat_map(|(_, names)| names.iter().copied());
    IMAGE_EXTENSIONS.into_iter().chain(more)
}
