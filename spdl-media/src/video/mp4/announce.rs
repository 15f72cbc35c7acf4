//! Announces where the fragments of a file are, so that a source reads their headers together.
//!
//! Segment indexes (`sidx`) and random access tables (`mfra`) list where fragments start. Only the boxes `moof`
//! decide which samples there are, so a wrong position costs a read and changes no index.

use spdl_core::Result;

use super::boxes::{Mp4Box, TopLevelBoxes};
use crate::source::MediaSource;
use crate::video::limits::VideoLimits;

/// The bytes of a fragment that are read: most headers (`moof`) are shorter.
const FRAGMENT_HEADER: u64 = 16 << 10;
/// The maximum number of fragments that are announced. A file with more of them is read whole.
const MAX_FRAGMENTS: usize = 2048;
/// The maximum number of boxes between `moov` and the first fragment.
const MAX_BOXES: usize = 16;
/// The box `mfro`, which ends a file with a table of fragments.
const LAST_BOX: u64 = 16;

/// Announces the fragments of a file, if the source wants to know. `start` is the end of `moov`.
///
/// # Errors
/// Those of the source. Invalid tables are ignored.
pub(super) fn announce_fragments(
    file: &dyn MediaSource,
    start: u64,
    limits: &VideoLimits,
) -> Result<()> {
    if !file.will_read(&[]) {
        return Ok(());
    }
    let mut starts = indexed_segments(file, start, limits)?;
    if starts.is_empty() {
        starts = random_access_points(file, limits)?;
    }
    if starts.len() <= MAX_FRAGMENTS {
        let size = file.size();
        let inside = starts.into_iter().filter(|start| *start < size);
        let ranges: Vec<_> =
            inside.map(|start| start..start.saturating_add(FRAGMENT_HEADER).min(size)).collect();
        file.will_read(&ranges);
    }
    Ok(())
}

/// The starts of the segments that the first `sidx` after `moov` lists, and the end of the last one.
fn indexed_segments(file: &dyn MediaSource, start: u64, limits: &VideoLimits) -> Result<Vec<u64>> {
    let mut boxes = TopLevelBoxes::starting_at(file, start);
    for _ in 0..MAX_BOXES {
        match boxes.next_box()? {
            Some(found) if found.kind == *b"sidx" => {
                let mut memory = Vec::new();
                let sidx = found.read(file, limits, &mut memory)?;
                return Ok(segments(sidx, found.end).unwrap_or_default());
            }
            Some(found) if found.kind != *b"moof" => {}
            _ => break,
        }
    }
    Ok(Vec::new())
}

fn segments(sidx: Mp4Box<'_>, end: u64) -> Result<Vec<u64>> {
    let is_long = sidx.u8(0)? == 1;
    let (first, table) = match is_long {
        true => (sidx.u64(20)?, 28),
        false => (sidx.u32(16)?.into(), 20),
    };
    let count = usize::from(sidx.u16(table + 2)?);
    let mut at = end.saturating_add(first);
    let mut starts = Vec::with_capacity(count + 1);
    for entry in 0..count {
        starts.push(at);
        let size = sidx.u32(table + 4 + 12 * entry)? & 0x7FFF_FFFF;
        at = at.saturating_add(size.into());
    }
    starts.push(at);
    Ok(starts)
}

/// The starts of the fragments in the box `mfra` at the end of the file.
fn random_access_points(file: &dyn MediaSource, limits: &VideoLimits) -> Result<Vec<u64>> {
    let size = file.size();
    let Some(last) = size.checked_sub(LAST_BOX) else { return Ok(Vec::new()) };
    let mut memory = Vec::new();
    let mfro = file.read(last..size, &mut memory)?;
    let Some(bytes) = mfro.last_chunk().filter(|_| mfro[4..8] == *b"mfro") else {
        return Ok(Vec::new());
    };
    let start = size.checked_sub(u32::from_be_bytes(*bytes).into());
    let Some(start) = start else { return Ok(Vec::new()) };
    match TopLevelBoxes::starting_at(file, start).next_box()? {
        Some(found) if found.kind == *b"mfra" && found.end == size => {
            let mfra = found.read(file, limits, &mut memory)?;
            let tables = mfra.children().filter(|child| child.kind == *b"tfra");
            let mut starts: Vec<_> =
                tables.filter_map(|tfra| fragments(tfra).ok()).flatten().collect();
            // Tracks share fragments.
            starts.sort_unstable();
            starts.dedup();
            Ok(starts)
        }
        _ => Ok(Vec::new()),
    }
}

fn fragments(tfra: Mp4Box<'_>) -> Result<Vec<u64>> {
    let is_long = tfra.u8(0)? == 1;
    let lengths = tfra.u32(8)?;
    // The numbers of track fragment, run and sample have 1 to 4 bytes each.
    let numbers: u32 = (0..3).map(|at| (lengths >> (2 * at) & 3) + 1).sum();
    let times = if is_long { 16 } else { 8 };
    let entries = tfra.table(12, times + numbers as usize)?;
    let offset = |entry: &[u8]| {
        let offset = entry.get(times / 2..times)?;
        Some(offset.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    Ok(entries.chunks_exact(times + numbers as usize).filter_map(offset).collect())
}
