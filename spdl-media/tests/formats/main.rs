//! Formats and decoders that are not on by default, what becomes of files that are cut, and what
//! encoders write. See `make_data.py` for where the files and the expected pixels come from.

#[cfg(test)]
#[cfg(all(
    feature = "bmp",
    feature = "encode",
    feature = "jpeg",
    feature = "png",
    feature = "webp"
))]
mod encode;
#[cfg(test)]
mod files;
#[cfg(test)]
#[cfg(all(feature = "png", feature = "webp", feature = "gif", feature = "bmp", feature = "tiff"))]
mod partial;
#[cfg(test)]
#[cfg(any(feature = "more-formats", feature = "exr", feature = "jxl"))]
mod pixels;
#[cfg(test)]
#[cfg(all(feature = "turbojpeg", feature = "zune-jpeg", feature = "jpeg", feature = "testing"))]
mod tiers;
#[cfg(test)]
#[cfg(all(
    feature = "jpeg",
    feature = "png",
    feature = "webp",
    feature = "gif",
    feature = "bmp",
    feature = "tiff"
))]
mod variants;
