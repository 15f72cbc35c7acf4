//! The B+ tree of an LMDB file: pages of a fixed size, without checksums, with little-endian numbers.
//!
//! | page | content |
//! |---|---|
//! | 0 and 1 | meta pages: page size, root of the tree, number of the last transaction |
//! | branch | the numbers of child pages |
//! | leaf | keys, and values or the first page of a large value |
//! | overflow | a large value, after a header, in consecutive pages |

use std::ops::Range;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use crate::datasets::common::u32_at;
use crate::fetch::{Fetcher, Key};

const MAGIC: u32 = 0xBEEF_C0DE;
/// The size of a page header, in bytes.
const HEADER: usize = 16;
/// The size of a node before its key, in bytes.
const NODE: usize = 8;
/// The size of a meta page with its header, in bytes.
const META: usize = 152;
const MIN_PAGE: usize = 512;
const MAX_PAGE: usize = 1 << 16;
/// The maximum depth of a tree, as in LMDB.
const MAX_DEPTH: u16 = 32;
/// A page number that does not exist: the root of an empty database.
const NO_PAGE: u64 = u64::MAX;
/// The maximum size of a read of consecutive pages, in bytes.
const WINDOW: u64 = 256 << 10;
/// The number of reads in flight.
const CONCURRENCY: usize = 16;

// Flags of pages.
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
// Flags of nodes.
const BIG: u16 = 1;
const SUB_DATABASE: u16 = 2;
const DUPLICATES: u16 = 4;
// Flags of databases.
const REVERSED_KEYS: u16 = 2;
const SORTED_DUPLICATES: u16 = 4;
const INTEGER_KEYS: u16 = 8;

/// The keys of a file and the places of their values, in the order of the keys.
#[derive(Default)]
pub(super) struct Entries {
    /// All keys, concatenated.
    keys: Vec<u8>,
    places: Vec<Place>,
}

struct Place {
    key_end: u32,
    size: u32,
    start: u64,
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn key(&self, entry: usize) -> &[u8] {
        let start = entry.checked_sub(1).map_or(0, |before| self.places[before].key_end);
        &self.keys[start as usize..self.places[entry].key_end as usize]
    }

    /// The range of the value in the file.
    pub(super) fn value(&self, entry: usize) -> Range<u64> {
        let place = &self.places[entry];
        place.start..place.start + u64::from(place.size)
    }

    fn push(&mut self, key: &[u8], value: Range<u64>) -> Result<()> {
        self.keys.extend_from_slice(key);
        let key_end = u32::try_from(self.keys.len()).map_err(|_| {
            Error::new(ErrorKind::LimitExceeded, "the keys of the file exceed 4 GiB in total")
        })?;
        // Lossless: the size of a value has 32 bits.
        let size = (value.end - value.start) as u32;
        self.places.push(Place { key_end, size, start: value.start });
        Ok(())
    }
}

/// The main database, from a meta page.
#[derive(Clone, Copy)]
struct Meta {
    page_size: usize,
    flags: u16,
    depth: u16,
    entries: u64,
    root: u64,
    last_page: u64,
    transaction: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u16::from_le_bytes(*it))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u64::from_le_bytes(*it))
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

impl Meta {
    fn parse(page: &[u8]) -> Option<Meta> {
        let word = |at| u32_at(page, at).unwrap_or_default();
        let page_size = word(40) as usize;
        let is_valid = page.len() >= META
            && word(16) == MAGIC
            && word(20) == 1
            && (MIN_PAGE..=MAX_PAGE).contains(&page_size)
            && page_size.is_power_of_two();
        is_valid.then(|| Meta {
            page_size,
            flags: u16_at(page, 92),
            depth: u16_at(page, 94),
            entries: u64_at(page, 120),
            root: u64_at(page, 128),
            last_page: u64_at(page, 136),
            transaction: u64_at(page, 144),
        })
    }

    /// The newest valid meta page. If the first one is damaged, the second one is searched at each page size.
    fn newest(start: &[u8]) -> Result<Meta> {
        let second = |page_size: usize| {
            let meta = start.get(page_size..).and_then(Meta::parse);
            meta.filter(|meta| meta.page_size == page_size)
        };
        let first = Meta::parse(start);
        let sizes = (MIN_PAGE.ilog2()..=MAX_PAGE.ilog2()).map(|bits| 1 << bits);
        let second = match &first {
            Some(first) => second(first.page_size),
            None => sizes.into_iter().find_map(second),
        };
        let newest = first.into_iter().chain(second).max_by_key(|meta| meta.transaction);
        newest.ok_or_else(|| match (u32_at(start, 16), u32_at(start, 20)) {
            (Some(MAGIC), Some(version)) if version != 1 => {
                let message = format!("unsupported LMDB version {version}; expected version 1");
                Error::new(ErrorKind::Unsupported, message)
            }
            _ => corrupt("no valid meta page: not an LMDB file, or damaged").with_offset(0),
        })
    }
}

/// The entries of the main database in a file of `size` bytes.
///
/// # Errors
/// - The errors of the fetcher.
/// - `Corrupt` for invalid pages and for cycles; `Truncated` if a page or value is beyond the end of the file.
/// - `Unsupported` for sub-databases, for keys with several values, and for other versions.
/// - `LimitExceeded` for keys of more than 4 GiB in total.
pub(super) async fn read_entries(
    fetcher: &Arc<dyn Fetcher>,
    key: &Key,
    size: u64,
) -> Result<Entries> {
    let located = |error: Error| error.with_key(key.display_name());
    let start_bytes = size.min((MAX_PAGE + META) as u64);
    if start_bytes == 0 {
        let error = Error::new(ErrorKind::Truncated, "the file is empty").with_offset(0);
        return Err(located(error));
    }
    let start = fetcher.read(key, Some(0..start_bytes)).await?;
    let meta = Meta::newest(&start).map_err(located)?;
    let mut tree = Tree { meta, size, entries: Entries::default() };
    tree.check().map_err(located)?;
    let mut pages = if meta.root == NO_PAGE { Vec::new() } else { vec![meta.root] };
    let (mut level, mut visited) = (0, 0);
    while !pages.is_empty() && level < meta.depth {
        level += 1;
        // A tree refers to each page once.
        visited += pages.len() as u64;
        if visited > size / meta.page_size as u64 {
            let message =
                "the tree refers to more pages than the file has: a page has several parents";
            return Err(located(corrupt(message)));
        }
        let is_leaf = level == meta.depth;
        let page_size = meta.page_size as u64;
        let runs = runs(&pages, (WINDOW / page_size).max(1));
        let read = |run: Range<u64>| async move {
            let bytes = fetcher.read(key, Some(run.start * page_size..run.end * page_size)).await?;
            Ok::<_, Error>((run.start, bytes))
        };
        let mut children = Vec::new();
        let mut reads = stream::iter(runs).map(read).buffered(CONCURRENCY);
        while let Some((first, bytes)) = reads.try_next().await? {
            for (page, number) in bytes.chunks_exact(meta.page_size).zip(first..) {
                let parsed = match is_leaf {
                    true => tree.leaf(page, number),
                    false => tree.branch(page, number, &mut children),
                };
                parsed.map_err(|error| {
                    let within = error.offset().unwrap_or_default();
                    located(error).with_offset(number * page_size + within)
                })?;
            }
        }
        pages = children;
    }
    if tree.entries.len() as u64 != meta.entries {
        let message =
            format!("the tree has {} entries; expected {}", tree.entries.len(), meta.entries);
        return Err(located(corrupt(message)));
    }
    tree.entries.keys.shrink_to_fit();
    tree.entries.places.shrink_to_fit();
    Ok(tree.entries)
}

/// Ranges of consecutive page numbers, of at most `longest` pages.
fn runs(pages: &[u64], longest: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for &page in pages {
        match runs.last_mut() {
            Some(run) if run.end == page && page - run.start < longest => run.end += 1,
            _ => runs.push(page..page + 1),
        }
    }
    runs
}

struct Tree {
    meta: Meta,
    /// The size of the file.
    size: u64,
    entries: Entries,
}

impl Tree {
    fn check(&self) -> Result<()> {
        let Meta { flags, depth, root, .. } = self.meta;
        if flags & SORTED_DUPLICATES != 0 {
            return Err(unsupported("keys with several values (`dupsort`)"));
        }
        if root == NO_PAGE {
            return Ok(());
        }
        if !(1..=MAX_DEPTH).contains(&depth) {
            return Err(corrupt(format!("invalid depth {depth} of the tree")));
        }
        self.check_page(root)
    }

    fn check_page(&self, number: u64) -> Result<()> {
        if !(2..=self.meta.last_page).contains(&number) {
            let last = self.meta.last_page;
            return Err(corrupt(format!("page {number} is out of range: expected 2 to {last}")));
        }
        self.check_end(
            number.checked_add(1).and_then(|end| end.checked_mul(self.meta.page_size as u64)),
        )
    }

    fn check_end(&self, end: Option<u64>) -> Result<()> {
        if end.is_some_and(|end| end <= self.size) {
            return Ok(());
        }
        let message =
            format!("a page or value is beyond the end of the file of {} bytes", self.size);
        Err(Error::new(ErrorKind::Truncated, message))
    }

    /// The offsets of the nodes in a page.
    fn nodes<'a>(
        &self,
        page: &'a [u8],
        number: u64,
        wanted: u16,
    ) -> Result<impl Iterator<Item = Result<usize>> + 'a> {
        let (found, flags) = (u64_at(page, 0), u16_at(page, 10));
        if found != number || flags & !0x10 != wanted {
            let message = format!("page {number} has the number {found} and the flags {flags:#x}");
            return Err(corrupt(message).with_offset(0));
        }
        let (lower, upper) = (usize::from(u16_at(page, 12)), usize::from(u16_at(page, 14)));
        if lower < HEADER || !lower.is_multiple_of(2) || lower > upper || upper > page.len() {
            let message = format!("page {number} has invalid bounds: {lower} and {upper}");
            return Err(corrupt(message).with_offset(12));
        }
        Ok((HEADER..lower).step_by(2).map(move |at| {
            let node = usize::from(u16_at(page, at));
            match node >= upper && node + NODE <= page.len() {
                true => Ok(node),
                false => Err(corrupt(format!("invalid node offset {node}")).with_offset(at as u64)),
            }
        }))
    }

    fn branch(&self, page: &[u8], number: u64, children: &mut Vec<u64>) -> Result<()> {
        for node in self.nodes(page, number, BRANCH)? {
            let node = node?;
            let words = [0, 2, 4].map(|at| u64::from(u16_at(page, node + at)));
            let child = words[0] | words[1] << 16 | words[2] << 32;
            self.check_page(child).map_err(|error| error.with_offset(node as u64))?;
            children.push(child);
        }
        Ok(())
    }

    fn leaf(&mut self, page: &[u8], number: u64) -> Result<()> {
        let page_size = self.meta.page_size as u64;
        let mut used = 0;
        for node in self.nodes(page, number, LEAF)? {
            let node = node?;
            let located = |error: Error| error.with_offset(node as u64);
            let (flags, key_size) = (u16_at(page, node + 4), usize::from(u16_at(page, node + 6)));
            let size = u32_at(page, node).unwrap_or_default();
            let data = node + NODE + key_size;
            let inline = if flags & BIG == 0 { size as usize } else { 8 };
            let end = data.checked_add(inline).filter(|end| *end <= page.len());
            let end = end.ok_or_else(|| located(corrupt("a node exceeds its page")))?;
            // Without overlaps, the memory for keys is bounded by the size of the file.
            used += end - node;
            if used > page.len() {
                return Err(located(corrupt("the nodes of a page overlap")));
            }
            let key = &page[node + NODE..data];
            if flags & (SUB_DATABASE | DUPLICATES) != 0 {
                let name = key.escape_ascii();
                return Err(located(match flags & SUB_DATABASE {
                    0 => unsupported(&format!("several values of the key '{name}' (`dupsort`)")),
                    _ => unsupported(&format!("the named database '{name}'")),
                }));
            }
            if flags & BIG != 0 {
                let first = u64_at(page, data);
                self.check_page(first).map_err(located)?;
                let start = first * page_size + HEADER as u64;
                let end = start.checked_add(size.into());
                self.check_end(end).map_err(located)?;
                self.push(key, start, size).map_err(located)?;
            } else {
                self.push(key, number * page_size + data as u64, size).map_err(located)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, key: &[u8], start: u64, size: u32) -> Result<()> {
        let is_sorted = self.meta.flags & (REVERSED_KEYS | INTEGER_KEYS) == 0;
        let last = self.entries.len().checked_sub(1).map(|last| self.entries.key(last));
        if is_sorted && last.is_some_and(|last| last >= key) {
            return Err(corrupt("the keys of the tree are not in order"));
        }
        self.entries.push(key, start..start + u64::from(size))
    }
}

fn unsupported(what: &str) -> Error {
    let message = format!(
        "{what}: not supported; only the unnamed database of an LMDB file is read, with one \
                           value per key"
    );
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_pages_are_read_together() {
        assert_eq!(
            runs(&[2, 3, 4, 9, 8, 10, 11, 12], 2),
            [2..4, 4..5, 9..10, 8..9, 10..12, 12..13]
        );
    }

    #[test]
    fn the_memory_of_an_entry_is_16_bytes_and_its_key() {
        assert_eq!(size_of::<Place>(), 16);
    }
}
