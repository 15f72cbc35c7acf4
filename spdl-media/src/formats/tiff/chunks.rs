//! The strips or tiles of a page.

use spdl_core::Result;

use super::super::errors;
use super::directory::{Directory, Values};
use super::errors::NAME;
use super::tags::Tag;
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

/// The byte range of a chunk in the file.
#[derive(Clone, Copy)]
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

/// The chunks of a page: their sizes, and their positions in the file.
pub(super) struct Chunks<'a> {
    pub(super) grid: ChunkGrid,
    pub(super) is_tiled: bool,
    starts: Values<'a>,
    lengths: Option<Values<'a>>,
}

impl<'a> Chunks<'a> {
    /// The chunks of a page whose samples are stored in `planes` planes.
    pub(super) fn read(directory: &Directory<'a>, page: Size, planes: u64) -> Result<Chunks<'a>> {
        let tiles = directory.values(Tag::TileOffsets)?;
        let strips = directory.values(Tag::StripOffsets)?;
        let side = |tag| -> Result<u32> {
            let side = directory.required(tag)?;
            u32::try_from(side).ok().filter(|&side| side > 0).ok_or_else(|| {
                errors::corrupt(NAME, format!("invalid value {side} of tag {tag:?}"))
            })
        };
        let (starts, lengths, part) = match (tiles, strips) {
            (Some(tiles), None) => {
                let lengths = directory.values(Tag::TileByteCounts)?;
                (tiles, lengths, (side(Tag::TileWidth)?, side(Tag::TileLength)?))
            }
            (None, Some(strips)) => {
                // libtiff would read tiles.
                for tag in [Tag::TileWidth, Tag::TileLength, Tag::TileByteCounts] {
                    if directory.values(tag)?.is_some() {
                        let message = format!("the page has strips and the tag {tag:?}");
                        return Err(errors::corrupt(NAME, message));
                    }
                }
                let rows = match directory.number(Tag::RowsPerStrip)? {
                    Some(0) => return Err(errors::corrupt(NAME, "strips without rows")),
                    // 2³² − 1 is the default value: one strip.
                    Some(rows) => rows.min(page.height.into()) as u32,
                    None => page.height,
                };
                let lengths = directory.values(Tag::StripByteCounts)?;
                (strips, lengths, (page.width, rows))
            }
            (Some(_), Some(_)) => {
                return Err(errors::corrupt(NAME, "the page has both strips and tiles"));
            }
            (None, None) => return Err(errors::corrupt(NAME, "missing tag StripOffsets")),
        };
        let grid = ChunkGrid::new(page, part);
        let needed = grid.count().saturating_mul(planes);
        let stored = lengths.map_or(starts.len(), |lengths| lengths.len().min(starts.len()));
        if (stored as u64) < needed {
            let message = "fewer strips or tiles than the image size needs";
            return Err(errors::corrupt(NAME, message));
        }
        Ok(Chunks { grid, is_tiled: tiles.is_some(), starts, lengths })
    }

    /// The number of stored offsets.
    pub(super) fn offsets(&self) -> usize {
        self.starts.len()
    }

    /// The byte range of a chunk. If its length is not stored, the range has no end, so that the
    /// chunk counts as truncated if its data end early.
    pub(super) fn range(&self, index: usize) -> Result<ChunkRange> {
        let start = self.starts.number(index)?;
        let length = self.lengths.map_or(Ok(u64::MAX), |lengths| lengths.number(index))?;
        Ok(ChunkRange { start, length })
    }
}
