//! What becomes of each image of a batch: who decodes it, and where it goes.

use spdl_core::Error;

use super::decoder::DecodedJpeg;
use super::error::NvJpegError;
use super::header::JpegHeader;
use super::library::Planes;
use super::load_balance::{JpegPath, Ways};
use crate::driver::Touched;
use crate::runtime::Slab;

/// Where an image of a batch begins: at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// An image on its way.
pub(super) enum Image {
    To { offset: usize, header: JpegHeader, path: JpegPath, ways: Ways },
    Failed(Error),
}

impl Image {
    pub(super) fn size_and_ways(&self) -> (u64, Ways) {
        match self {
            Image::To { header, ways, .. } => (header.rgb_bytes(), *ways),
            Image::Failed(_) => (0, Ways { hardware: false, hybrid: false }),
        }
    }

    /// Its width and height, by its header.
    pub(super) fn size(&self) -> [u32; 2] {
        match self {
            Image::To { header, .. } => [header.width, header.height],
            Image::Failed(_) => [0; 2],
        }
    }

    /// Where it goes.
    pub(super) fn planes(&self, slab: &Slab) -> Planes {
        match self {
            Image::To { offset, header, .. } => {
                let address = slab.memory.address.0 + *offset as u64;
                Planes::interleaved(address, header.width as usize * 3)
            }
            Image::Failed(_) => Planes::interleaved(0, 0),
        }
    }

    /// What of the slab it becomes.
    pub(super) fn written(&self, slab: &Slab) -> Touched {
        match self {
            Image::To { offset, header, .. } => {
                Touched::written(slab.memory.address.0 + *offset as u64, header.rgb_bytes())
            }
            Image::Failed(_) => Touched::written(slab.memory.address.0, 0),
        }
    }

    pub(super) fn go_the_other_way(&mut self, error: &NvJpegError) {
        if let Image::To { path, ways, .. } = self {
            if ways.hybrid {
                *path = JpegPath::Hybrid;
            } else {
                *self = Image::Failed(error.into_error("decode this JPEG"));
            }
        }
    }

    pub(super) fn delivered(self) -> DecodedJpeg {
        match self {
            Image::Failed(error) => DecodedJpeg::Failed(error),
            Image::To { header, path: JpegPath::Host, .. } => DecodedJpeg::ForHost(header),
            Image::To { offset, header, path, .. } => DecodedJpeg::Decoded { offset, header, path },
        }
    }
}

pub(super) fn at_path(images: &[Image], wanted: JpegPath) -> impl Iterator<Item = usize> {
    let is_it = move |image: &Image| matches!(image, Image::To { path, .. } if *path == wanted);
    images.iter().enumerate().filter(move |(_, image)| is_it(image)).map(|(at, _)| at)
}

/// Gives each image that the device decodes a place; the bytes of all of them.
pub(super) fn place(images: &mut [Image]) -> usize {
    let mut end = 0_usize;
    for image in images {
        if let Image::To { offset, header, path, .. } = image
            && *path != JpegPath::Host
        {
            *offset = end;
            // At most 2^28 pixels: it fits.
            end += (header.rgb_bytes() as usize).next_multiple_of(ALIGNMENT);
        }
    }
    end
}
