//! Audio: the header of WAV files.
//!
//! | file | content |
//! |---|---|
//! | `wav` | sample format and position of the sample data |
//!
//! Imports: no other module.

mod wav;

pub use wav::{WavHeader, WavSample};
