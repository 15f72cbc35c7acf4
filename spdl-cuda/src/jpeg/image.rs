//! The images of a batch during decoding: the backend and the output address of each.

use spdl_core::Error;
use spdl_media::formats::jpeg::JpegHeader;

use super::decoded::DecodedJpeg;
use super::error::NvJpegError;
use super::header::{BackendSet, JpegBackend, rgb_bytes};
use super::library::OutputPlanes;
use crate::driver::MemoryAccess;
use crate::runtime::Slab;

/// Alignment of the first pixel of each image, in bytes.
const ALIGNMENT: usize = 256;

/// An image of a batch, before and during decoding.
pub(super) enum PendingImage {
    Assigned { offset: usize, header: JpegHeader, backend: JpegBackend, backends: BackendSet },
    Failed(Error),
}

impl PendingImage {
    /// Width and height of the header.
    pub(super) fn size(&self) -> [u32; 2] {
        match self {
            PendingImage::Assigned { header, .. } => [header.size.width, header.size.height],
            PendingImage::Failed(_) => [0; 2],
        }
    }

    /// The output planes in `slab`.
    pub(super) fn planes(&self, slab: &Slab) -> OutputPlanes {
        match self {
            PendingImage::Assigned { offset, header, .. } => {
                let address = slab.memory.address.0 + *offset as u64;
                OutputPlanes::interleaved(address, header.size.width as usize * 3)
            }
            PendingImage::Failed(_) => OutputPlanes::interleaved(0, 0),
        }
    }

    /// The range of `slab` that the decoding writes.
    pub(super) fn written(&self, slab: &Slab) -> MemoryAccess {
        match self {
            PendingImage::Assigned { offset, header, .. } => {
                MemoryAccess::written(slab.memory.address.0 + *offset as u64, rgb_bytes(header))
            }
            PendingImage::Failed(_) => MemoryAccess::written(slab.memory.address.0, 0),
        }
    }

    /// After a failure of the hardware backend, assigns the hybrid backend if it supports the
    /// image; otherwise, the image fails with `error`.
    pub(super) fn fall_back_to_hybrid(&mut self, error: &NvJpegError) {
        if let PendingImage::Assigned { backend, backends, .. } = self {
            if backends.hybrid {
                *backend = JpegBackend::Hybrid;
            } else {
                *self = PendingImage::Failed(error.into_error("decode this JPEG"));
            }
        }
    }

    pub(super) fn into_decoded(self) -> DecodedJpeg {
        match self {
            PendingImage::Failed(error) => DecodedJpeg::Failed(error),
            PendingImage::Assigned { header, backend: JpegBackend::Host, .. } => {
                DecodedJpeg::Unsupported(header)
            }
            PendingImage::Assigned { offset, header, backend, .. } => {
                DecodedJpeg::Decoded { offset, header, backend }
            }
        }
    }
}

/// The positions of the images that are assigned to a backend.
pub(super) fn assigned_to(
    images: &[PendingImage],
    wanted: JpegBackend,
) -> impl Iterator<Item = usize> {
    let is_wanted = move |image: &PendingImage| matches!(image, PendingImage::Assigned { backend, .. } if *backend == wanted);
    images.iter().enumerate().filter(move |(_, image)| is_wanted(image)).map(|(at, _)| at)
}

/// Sets the output offset of each image that the device decodes, and returns the total size in
/// bytes.
pub(super) fn assign_offsets(images: &mut [PendingImage]) -> usize {
    let mut end = 0_usize;
    for image in images {
        if let PendingImage::Assigned { offset, header, backend, .. } = image
            && *backend != JpegBackend::Host
        {
            *offset = end;
            // No overflow: an image has at most 2^28 pixels.
            end += (rgb_bytes(header) as usize).next_multiple_of(ALIGNMENT);
        }
    }
    end
}
