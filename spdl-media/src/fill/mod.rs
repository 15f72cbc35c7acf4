//! From the bytes of a file to a sample in a batch: decode, transform and augment in one worker.
//!
//! | file | content |
//! |---|---|
//! | `image` | [`FillImage`]: writes one image into its batch slot |
//! | `shrink` | [`Shrink`]: makes smaller copies of large images |
//!
//! Imports: [`image`](crate::image), [`transform`](crate::transform), [`augment`](crate::augment).

mod image;
mod shrink;

pub use image::{FillImage, Written};
pub use shrink::Shrink;
