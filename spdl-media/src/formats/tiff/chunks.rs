//! The strips or tiles of a page.

use spdl_core::Result;
use tiff::tags::Tag;

use super::super::errors;
use super::directory::Reader;
use super::errors::{NAME, convert_error};
use crate::image::{Rect, Size};

/// The strips or tiles of a page; the last strips or tiles may extend beyond the page.
pub(super) struct ChunkGrid {
    pub(super) page: Size,
    pub(super) part: Size,
    pub(super) across: u32,
    pub(super) down: u32,
}

impl ChunkGrid {
    pub(super) fn new(page: Size, (width, height): (u32, u32)) -> Self {
        let part = Size::new(width.max(1), height.max(1));
        let (across, down) = (page.width.div_ceil(part.width), page.height.div_ceil(part.height));
        ChunkGrid { page, part, across, down }
    }

    pub(super) fn count(&self) -> u64 {
        u64::from(self.across) * u64::from(self.down)
    }

    /// The rectangle of the page that a chunk covers.
    pub(super) fn part(&self, index: u32) -> Rect {
        let (left, top) =
            (index % self.across * self.part.width, index / self.across * self.part.height);
        let width = self.part.width.min(self.page.width - left);
        Rect { left, top, width, height: self.part.height.min(self.page.height - top) }
    }
}

/// The intersection of two rectangles.
pub(super) fn overlap(one: Rect, other: Rect) -> Option<Rect> {
    let (left, top) = (one.left.max(other.left), one.top.max(other.top));
    let right = (one.left + one.width).min(other.left + other.width);
    let bottom = (one.top + one.height).min(other.top + other.height);
    (left < right && top < bottom).then(|| Rect {
        left,
        top,
        width: right - left,
        height: bottom - top,
    })
}

/// The tags of chunk offsets and chunk lengths.
pub(super) const STRIP_TAGS: (Tag, Tag) = (Tag::StripOffsets, Tag::StripByteCounts);
pub(super) const TILE_TAGS: (Tag, Tag) = (Tag::TileOffsets, Tag::TileByteCounts);

/// The byte range of a chunk in the file.
pub(super) struct ChunkRange {
    pub(super) start: u64,
    pub(super) length: u64,
}

impl ChunkRange {
    /// The available bytes of the chunk.
    pub(super) fn data<'a>(&self, encoded: &'a [u8]) -> &'a [u8] {
        let start = usize::try_from(self.start).unwrap_or(usize::MAX).min(encoded.len());
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        &encoded[start..start.saturating_add(length).min(encoded.len())]
    }

    pub(super) fn is_truncated(&self, encoded: &[u8]) -> bool {
        self.start.saturating_add(self.length) > encoded.len() as u64
    }
}

/// The chunks of a page, from the tags of offsets and lengths.
pub(super) fn chunks(
    decoder: &mut Reader<'_>,
    (starts, lengths): (Tag, Tag),
) -> Result<Vec<ChunkRange>> {
    let mut numbers = |tag| {
        let found = decoder.find_tag_unsigned_vec::<u64>(tag).map_err(convert_error)?;
        found.ok_or_else(|| errors::corrupt(NAME, format!("missing tag {tag:?}")))
    };
    let (starts, lengths) = (numbers(starts)?, numbers(lengths)?);
    Ok(starts
        .into_iter()
        .zip(lengths)
        .map(|(start, length)| ChunkRange { start, length })
        .collect())
}
