//! The images of the contact sheet.

use std::collections::BTreeMap;

use spdl_core::{Result, SampleId, SampleRng};
use spdl_io::Key;
use spdl_media::encode::{ImageEncoder, JpegEncoder};
use spdl_media::{CodecRegistry, Crop, FillImage, Image, ImageTransform, Limits, Sample, Size};
use twox_hash::XxHash3_128;

/// Maximum number of images on the contact sheet, and their size in pixels.
const THUMBNAILS: usize = 48;
const THUMBNAIL: u32 = 120;

/// A thumbnail on the contact sheet.
#[derive(Debug)]
pub(crate) struct Thumbnail {
    pub(crate) name: String,
    /// The thumbnail as a JPEG file.
    pub(crate) bytes: Vec<u8>,
}

/// Selects the images whose names have the smallest hashes: a reproducible sample from all parts of
/// the set.
#[derive(Debug, Default)]
pub(super) struct Thumbnails(BTreeMap<u128, Option<Thumbnail>>);

impl Thumbnails {
    pub(super) fn offer(&mut self, name: &Key, data: &[u8]) {
        let hash = XxHash3_128::oneshot(name.as_bytes());
        let largest = self.0.last_key_value().map(|(hash, _)| *hash);
        if self.0.len() >= THUMBNAILS && largest.is_some_and(|largest| hash >= largest) {
            return;
        }
        // An image that cannot be decoded keeps its entry, so that the selection of other images
        // does not depend on it.
        self.0.insert(hash, thumbnail(name, data).ok());
        while self.0.len() > THUMBNAILS {
            self.0.pop_last();
        }
    }

    pub(super) fn into_sheet(self) -> Vec<Thumbnail> {
        let mut sheet: Vec<_> = self.0.into_values().flatten().collect();
        sheet.sort_by(|a, b| a.name.cmp(&b.name));
        sheet
    }
}

fn thumbnail(name: &Key, data: &[u8]) -> Result<Thumbnail> {
    let size = Size::new(THUMBNAIL, THUMBNAIL);
    let transform = ImageTransform::with_size(size).crop(Crop::ResizedCenter { covering: size });
    let mut fill = FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())?;
    let mut pixels = vec![0; size.pixels() as usize * 3];
    let rng = || SampleRng::new(0, SampleId { epoch: 0, index: 0 }, "thumbnail");
    fill.write(data, Sample::U8(&mut pixels), rng)?;
    let bytes = JpegEncoder::new().quality(75).encode_image(&Image { size, pixels })?;
    Ok(Thumbnail { name: name.to_string(), bytes })
}
