//! Tests with test files, the photos of this repository, and third-party files.
//!
//! They require all default formats.
#![cfg(all(
    feature = "augment",
    feature = "jpeg",
    feature = "png",
    feature = "webp",
    feature = "gif",
    feature = "bmp",
    feature = "tiff"
))]

#[cfg(test)]
mod augment;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod files;
#[cfg(test)]
mod fill;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod jpeg;
#[cfg(test)]
mod parameters;
#[cfg(test)]
mod resize;
#[cfg(test)]
mod rgba;
#[cfg(test)]
mod sample;
