//! Image encoders, for dataset writers and tools.
//!
//! | file | content |
//! |---|---|
//! | `encoder` | the trait of an encoder, and checks of its input |
//! | `bmp`, `jpeg`, `png`, `webp`, `webp_lossy` | one encoder per format |
//!
//! Imports: [`image`](crate::image).
//!
//! ```
//! # #[cfg(feature = "jpeg")] {
//! use spdl_media::encode::{ImageEncoder, JpegEncoder, PngEncoder};
//! use spdl_media::{Image, Size, decode_rgb};
//! let image = Image { size: Size::new(40, 30), pixels: vec![128; 40 * 30 * 3] };
//! let small = JpegEncoder::new().quality(80).encode_image(&image)?;
//! assert_eq!(decode_rgb(&small)?.size, image.size);
//! # #[cfg(feature = "png")]
//! assert_eq!(decode_rgb(&PngEncoder::new().encode_image(&image)?)?, image);
//! # }
//! # Ok::<(), spdl_core::Error>(())
//! ```

mod bmp;
mod encoder;
mod jpeg;
mod png;
mod webp;
#[cfg(feature = "webp-lossy")]
mod webp_lossy;

pub use self::bmp::BmpEncoder;
pub use self::encoder::ImageEncoder;
pub use self::jpeg::{JpegEncoder, Subsampling};
pub use self::png::{PngCompression, PngEncoder};
pub use self::webp::WebpEncoder;
#[cfg(feature = "webp-lossy")]
pub use self::webp_lossy::LossyWebpEncoder;
