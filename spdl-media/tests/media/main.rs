//! Tests on files: of this folder, of the repository's photographs, and of other projects.
//!
//! They want all default formats.
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
mod sample;
