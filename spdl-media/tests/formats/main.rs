//! Optional formats and JPEG codecs, truncated files, format variants and encoders.
//!
//! `make_data.py` and `make_variants.py` make the files and the expected pixels.

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
