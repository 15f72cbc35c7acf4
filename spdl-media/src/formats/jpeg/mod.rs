//! JPEG: the decoder of this crate, and the header parser of all JPEG decoders.
//!
//! The decoder supports sequential and progressive processes, Huffman and arithmetic coding, and 8
//! bits per sample.
//!
//! ```text
//! header ──► entropy decoding ──► coefficients ──► inverse DCT ──► planes of the caller, or
//! markers    without stuffed      of one block,    8, 4, 2 or 1    two MCU rows ──► upsampling,
//! tables     bytes, by windows    or of the image  samples a side  colour conversion, RGB rows
//!                                 (several scans)
//! ```
//!
//! | file | content |
//! |---|---|
//! | `errors` | errors with file offsets |
//! | `header` | markers, frame and scan headers |
//! | `inspect` | the header as public data |
//! | `tables` | quantisation and Huffman tables, restart interval, arithmetic conditioning |
//! | `bits` | entropy-coded data without stuffed bytes, as bits |
//! | `huffman` | Huffman decoding by lookup tables |
//! | `arithmetic` | arithmetic decoding |
//! | `scan` | scans, MCUs, restart markers, progressive passes |
//! | `budget` | limits on scans and coefficients, and restart marker checks |
//! | `coefficients` | the coefficients of images with several scans |
//! | `smoothing` | estimates of the coefficients that incomplete progressive files lack |
//! | `idct` | the inverse DCT, at full or reduced size |
//! | `output` | which blocks a region needs, and where their samples are stored |
//! | `row_buffer` | a ring buffer of two MCU rows, for RGB output |
//! | `color` | chroma upsampling and colour conversion |
//! | `decoder` | the codec |
//!
//! One table lookup decodes up to two coefficients. In a block outside the region, one lookup skips
//! as many coefficients as fit in it. The only unpredictable branch is the end of a block.
//!
//! If the file ends with an EOI marker, it is complete, and the decoder skips data: below the
//! region; above it up to the last restart marker; and, in progressive files, the AC scans of
//! components whose blocks become one sample. If there is no EOI marker, the whole file is read, so
//! that truncation is detected for every region.
//!
//! Arithmetic-coded files are rare: their coefficients are always stored before the inverse DCT.
//!
//! The arithmetic is that of libjpeg's accurate integer DCT, triangle ("fancy") upsampling and
//! 16-bit fixed-point colour conversion. Results are bit-identical to those of libjpeg-turbo, and
//! therefore to those of Pillow, OpenCV and torchvision.

#[cfg(feature = "jpeg")]
mod arithmetic;
#[cfg(feature = "jpeg")]
mod bits;
#[cfg(feature = "jpeg")]
mod budget;
#[cfg(feature = "jpeg")]
mod coefficients;
#[cfg(feature = "jpeg")]
mod color;
#[cfg(feature = "jpeg")]
mod decoder;
mod errors;
#[cfg_attr(
    not(all(feature = "jpeg", feature = "turbojpeg", feature = "zune-jpeg")),
    allow(dead_code, reason = "other decoders do not use all of it")
)]
mod header;
#[cfg(feature = "jpeg")]
mod huffman;
#[cfg(feature = "jpeg")]
mod idct;
#[cfg(feature = "jpeg")]
mod inspect;
#[cfg(feature = "jpeg")]
mod output;
#[cfg(feature = "jpeg")]
mod row_buffer;
#[cfg(feature = "jpeg")]
mod scan;
#[cfg(feature = "jpeg")]
mod smoothing;
#[cfg(feature = "jpeg")]
mod tables;

#[cfg(feature = "jpeg")]
pub use self::inspect::{JpegColor, JpegComponent, JpegHeader, JpegProcess};

#[cfg(feature = "jpeg")]
pub(super) use self::decoder::JpegCodec;
#[cfg(all(feature = "jpeg", feature = "tiff"))]
pub(super) use self::decoder::decoder_of_tiff_parts;
#[cfg(any(feature = "turbojpeg", feature = "zune-jpeg"))]
pub(super) use self::header::Header;
#[cfg(feature = "turbojpeg")]
pub(super) use self::header::max_block_visits;
