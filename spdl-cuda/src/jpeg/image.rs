//! What becomes of each image of a batch: who decodes it, and where it goes.

use spdl_core::Error;

use super::decoder::DecodedJpeg;
use super::error::NvJpegError;
use super::header::JpegHeader;
use super::library::OutputPlanes;
use super::load_balance::{BackendSet, JpegBackend};
use crate::driver::MemoryAccess;
use crate::runtime::Slab;

/// Where an image of a batch begins: at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// An image on its way.
pub(super) enum PendingImage {
    Assigned { offset: usize, header: JpegHeader, path: JpegBackend, ways: BackendSet },
    Failed(Error),
}

impl PendingImage {
    pub(super) fn size_and_ways(&self) -> (u64, BackendSet) {
        match self {
            PendingImage::Assigned { header, ways, .. } => (header.rgb_bytes(), *ways),
            PendingImage::Failed(_) => (0, BackendSet { hardware: false, hybrid: false }),
        }
    }

    /// Its width and height, by its header.
    pub(super) fn size(&self) -> [u32; 2] {
        match self {
            PendingImage::Assigned { header, .. } => [header.width, header.height],
            PendingImage::Failed(_) => [0; 2],
        }
    }

    /// Where it goes.
    pub(super) fn planes(&self, slab: &Slab) -> OutputPlanes {
        match self {
            PendingImage::Assigned { offset, header, .. } => {
                let address = slab.memory.address.0 + *offset as u64;
                OutputPlanes::interleaved(address, header.width as usize * 3)
            }
            PendingImage::Failed(_) => OutputPlanes::interleaved(0, 0),
        }
    }

    /// What of the slab it becomes.
    pub(super) fn written(&self, slab: &Slab) -> MemoryAccess {
        match self {
            PendingImage::Assigned { offset, header, .. } => {
                MemoryAccess::written(slab.memory.address.0 + *offset as u64, header.rgb_bytes())
            }
            PendingImage::Failed(_) => MemoryAccess::written(slab.memory.address.0, 0),
        }
    }

    pub(super) fn go_the_other_way(&mut self, error: &NvJpegError) {
        if let PendingImage::Assigned { path, ways, .. } = self {
            if ways.hybrid {
                *path = JpegBackend::Hybrid;
            } else {
                *self = PendingImage::Failed(error.into_error("decode this JPEG"));
            }
        }
    }

    pub(super) fn delivered(self) -> DecodedJpeg {
        match self {
            PendingImage::Failed(error) => DecodedJpeg::Failed(error),
            PendingImage::Assigned { header, path: JpegBackend::Host, .. } => {
                DecodedJpeg::ForHost(header)
            }
            PendingImage::Assigned { offset, header, path, .. } => {
                DecodedJpeg::Decoded { offset, header, path }
            }
        }
    }
}

pub(super) fn at_path(images: &[PendingImage], wanted: JpegBackend) -> impl Iterator<Item = usize> {
    let is_it = move |image: &PendingImage| matches!(image, PendingImage::Assigned { path, .. } if *path == wanted);
    images.iter().enumerate().filter(move |(_, image)| is_it(image)).map(|(at, _)| at)
}

/// Gives each image that the device decodes a place; the bytes of all of them.
pub(super) fn place(images: &mut [PendingImage]) -> usize {
    let mut end = 0_usize;
    for image in images {
        if let PendingImage::Assigned { offset, header, path, .. } = image
            && *path != JpegBackend::Host
        {
            *offset = end;
            // At most 2^28 pixels: it fits.
            end += (header.rgb_bytes() as usize).next_multiple_of(ALIGNMENT);
        }
    }
    end
}
