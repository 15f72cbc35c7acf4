//! Audio: what a file says of its samples.

mod wav;

pub use wav::{WavHeader, WavSample};
