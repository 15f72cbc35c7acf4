//! [`TarIndex`]: the members of a tar archive, stored in a file next to it.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use bytes::Bytes;
use spdl_core::runtime::{ReadProgress, WatchedFile};
use spdl_core::{Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

use super::tar::{HeaderWalk, Step, TarRanges, WindowSizes};
use super::{TarEntry, TarKind, TarOptions};
use crate::fetch::{Fetcher, Key};
use crate::files::{os_error, watched};

/// The members of a tar archive by number, in archive order, and by name.
///
/// The index is built by one pass over the headers, and saved next to the archive as
/// `SHARD.tar.idx`. A saved index is rebuilt if it is damaged, has another version, or was built
/// with other options. It is also rebuilt if the size, modification time or entity tag of the
/// archive has changed, or if the index file is not newer than the archive.
///
/// Memory use per member: 32 bytes and the name; the first lookup by name adds 8 to 16 bytes per member.
///
/// ```
/// use spdl_io::archive::TarIndex;
/// # let folder = tempfile::tempdir().unwrap();
/// # let shard = folder.path().join("shard.tar");
/// # std::fs::write(&shard, [0; 1024]).unwrap();
/// let index = TarIndex::open(&shard)?;
/// if let Some(number) = index.find(b"cat.jpg") {
///     println!("at {:?}", index.file(number)?.data_range());
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # File format
///
/// Numbers are little-endian. The header has 80 bytes:
///
/// | offset | bytes | content |
/// |---|---|---|
/// | 0 | 8 | `SPDL-TAR` |
/// | 8 | 4 | version: 1 |
/// | 12 | 4 | option bits: 1 for [`TarOptions::accept_missing_end`]; 2 for [`AfterEnd::Refuse`](super::AfterEnd::Refuse), 4 for [`AfterEnd::Continue`](super::AfterEnd::Continue) |
/// | 16 | 8 | size of the archive in bytes |
/// | 24 | 8 | modification time of the archive: seconds since 1970, signed; −2⁶³ if unknown |
/// | 32 | 4 | nanoseconds of the modification time |
/// | 36 | 4 | length of the entity tag in bytes; 2³² − 1 if the archive has no entity tag |
/// | 40 | 8 | number of members |
/// | 48 | 8 | number of links |
/// | 56 | 8 | length of all names in bytes |
/// | 64 | 8 | length of all link targets in bytes |
/// | 72 | 8 | number of part indexes |
///
/// After the header:
///
/// 1. The entity tag.
/// 2. 32 bytes per member: offset of the data (8), size of the data (8), modification time in seconds (8;
///    −2⁶³ if unknown), end of the name in the list of names (4), type flag (1), number of 512-byte
///    header blocks before the data (3).
/// 3. 8 bytes per link: the number of the member, and the end of its target in the list of targets.
/// 4. All names, then all link targets.
/// 5. 16 bytes per part index: the number of the member (8), and the end in the list of part indexes (8).
/// 6. All part indexes, in a format of the program that wrote the archive: see
///    [`IndexParts`](crate::shards::IndexParts).
/// 7. The XXH3-128 hash of all preceding bytes.
pub struct TarIndex {
    stamp: ArchiveStamp,
    options: u32,
    members: Vec<IndexMember>,
    names: Vec<u8>,
    links: Vec<Link>,
    targets: Vec<u8>,
    part_ends: Vec<PartIndexEnd>,
    part_indexes: Bytes,
    by_name: OnceLock<NameTable>,
}

/// The end of the part index of a member. It starts at the end of the one before.
#[derive(Clone, Copy)]
struct PartIndexEnd {
    member: usize,
    end: usize,
}

#[derive(Clone, Copy)]
struct IndexMember {
    data_offset: u64,
    size: u64,
    /// [`UNKNOWN_TIME`] if unknown.
    mtime: i64,
    name_end: u32,
    /// The type flag in the lowest 8 bits, and the number of header blocks above them.
    kind_and_blocks: u32,
}

#[derive(Clone, Copy)]
struct Link {
    member: u32,
    target_end: u32,
}

const UNKNOWN_TIME: i64 = i64::MIN;
const BLOCK: u64 = 512;
const MAGIC: &[u8; 8] = b"SPDL-TAR";
const VERSION: u32 = 1;
const HEADER: usize = 80;
const MEMBER: usize = 32;
const LINK: usize = 8;
const PART_INDEX: usize = 16;
const SUM: usize = 16;
const NO_TAG: u32 = u32::MAX;

/// The state of an archive: size, and modification time or entity tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveStamp {
    size: u64,
    /// Seconds since 1970, and nanoseconds.
    modified: Option<(i64, u32)>,
    entity_tag: Option<String>,
}

impl ArchiveStamp {
    /// An archive of `size` bytes with unknown modification time and entity tag.
    pub fn new(size: u64) -> Self {
        ArchiveStamp { size, modified: None, entity_tag: None }
    }

    /// The current state of a local file.
    ///
    /// # Errors
    /// The errors of the operating system; `InvalidArgument` if the path is not a regular file.
    pub fn of_file(path: impl AsRef<Path>) -> Result<Self> {
        let key = Key::from_path(&path);
        let failed = |error| os_error("cannot read the metadata of the archive", &key, error);
        let metadata = fs::metadata(&path).map_err(failed)?;
        if !metadata.is_file() {
            let error = Error::new(ErrorKind::InvalidArgument, "the archive is not a regular file");
            return Err(error.with_key(key.display_name()));
        }
        let stamp = ArchiveStamp::new(metadata.len());
        // If the system does not support modification times, compare the size only.
        Ok(metadata.modified().map_or(stamp.clone(), |time| stamp.modified(time)))
    }

    /// Sets the modification time.
    #[must_use]
    pub fn modified(mut self, time: SystemTime) -> Self {
        let split = |duration: std::time::Duration| {
            (duration.as_secs().try_into().unwrap_or(i64::MAX), duration.subsec_nanos())
        };
        self.modified = Some(match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => split(after),
            Err(before) => match split(before.duration()) {
                (seconds, 0) => (-seconds, 0),
                (seconds, nanos) => (-seconds - 1, 1_000_000_000 - nanos),
            },
        });
        self
    }

    /// Sets the entity tag.
    #[must_use]
    pub fn entity_tag(mut self, tag: impl Into<String>) -> Self {
        self.entity_tag = Some(tag.into());
        self
    }

    /// The size of the archive in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl TarIndex {
    /// Opens the index of a local archive. If the saved index is missing, damaged or stale, builds
    /// a new one and tries to save it. If saving fails, for example in a read-only folder, the
    /// failure is ignored.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub fn open(archive: impl AsRef<Path>) -> Result<Self> {
        TarIndex::open_with(archive, TarOptions::default())
    }

    /// [`open`](Self::open) with options.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub fn open_with(archive: impl AsRef<Path>, options: TarOptions) -> Result<Self> {
        let archive = archive.as_ref();
        let stamp = ArchiveStamp::of_file(archive)?;
        if let Ok(index) = TarIndex::load(archive, &stamp, options) {
            return Ok(index);
        }
        let index = TarIndex::build(archive, options)?;
        // Saving is optional.
        let _ = index.save(TarIndex::path_of(archive));
        Ok(index)
    }

    /// Builds the index of a local archive. Reads the headers, and small gaps between them.
    ///
    /// # Errors
    /// - The errors of [`TarParser`](super::TarParser) and of the operating system.
    /// - `Truncated` if the archive ends early.
    /// - `Io` if the archive changes during the pass.
    pub fn build(archive: impl AsRef<Path>, options: TarOptions) -> Result<Self> {
        match TarIndex::build_until_damage(archive, options)? {
            (index, None) => Ok(index),
            (_, Some(damage)) => Err(damage),
        }
    }

    /// As [`build`](Self::build), but for a damaged archive returns the members before the damaged header, and
    /// the error. The data of the last member may be truncated.
    pub(crate) fn build_until_damage(
        archive: impl AsRef<Path>,
        options: TarOptions,
    ) -> Result<(Self, Option<Error>)> {
        let archive = archive.as_ref().to_owned();
        let key = Key::from_path(&archive);
        watched("cannot read the archive", &key, move |progress| {
            TarIndex::build_watched(&archive, options, progress)
        })
    }

    fn build_watched(
        archive: &Path,
        options: TarOptions,
        progress: &ReadProgress,
    ) -> Result<(Self, Option<Error>)> {
        let key = Key::from_path(archive);
        let stamp = ArchiveStamp::of_file(archive)?;
        let mut file = WatchedFile::open_regular(archive, progress)
            .map_err(|error| os_error("cannot open the archive", &key, error))?;
        let mut index = TarIndex::empty(stamp.clone(), options);
        let mut walk = HeaderWalk::new(stamp.size, options, WindowSizes::LOCAL);
        let damage = loop {
            match walk.step() {
                Err(damage) => break Some(damage.with_key(key.display_name())),
                Ok(Step::Entry(entry)) => index.push(&entry)?,
                Ok(Step::End) => break None,
                Ok(Step::Read(range)) => walk.put(&range, |bytes| {
                    let len = range.end - range.start;
                    let read = file.seek(SeekFrom::Start(range.start));
                    let read = read.and_then(|_| (&mut file).take(len).read_to_end(bytes));
                    read.map(|_| ())
                        .map_err(|error| os_error("cannot read the archive", &key, error))
                })?,
            }
        };
        if ArchiveStamp::of_file(archive)? != stamp {
            let error = Error::new(ErrorKind::Io, "the archive changed while it was being indexed");
            return Err(error.with_key(key.display_name()));
        }
        index.shrink();
        Ok((index, damage))
    }

    /// Builds the index of an archive in a store, by range requests.
    ///
    /// # Errors
    /// The errors of [`TarParser`](super::TarParser) and of the fetcher; `Truncated` if the archive ends
    /// early.
    pub async fn fetch(
        fetcher: Arc<dyn Fetcher>,
        key: Key,
        stamp: ArchiveStamp,
        options: TarOptions,
    ) -> Result<Self> {
        match TarIndex::fetch_until_damage(fetcher, key, stamp, options).await? {
            (index, None) => Ok(index),
            (_, Some(damage)) => Err(damage),
        }
    }

    /// As [`fetch`](Self::fetch), but for a damaged archive returns the members before the damaged header, and
    /// the error. The data of the last member may be truncated.
    pub(crate) async fn fetch_until_damage(
        fetcher: Arc<dyn Fetcher>,
        key: Key,
        stamp: ArchiveStamp,
        options: TarOptions,
    ) -> Result<(Self, Option<Error>)> {
        let mut archive = TarRanges::with_options(fetcher, key, stamp.size, options);
        let mut index = TarIndex::empty(stamp, options);
        let damage = loop {
            match archive.next_entry().await {
                Ok(Some(entry)) => index.push(&entry)?,
                Ok(None) => break None,
                Err(error) if archive.is_damaged() => break Some(error),
                Err(error) => return Err(error),
            }
        };
        index.shrink();
        Ok((index, damage))
    }

    /// Builds an index from entries in archive order.
    ///
    /// # Errors
    /// The first error of the entries; `InvalidArgument` if entries overlap, are not in archive
    /// order, or exceed the archive.
    pub fn from_entries(
        entries: impl IntoIterator<Item = Result<TarEntry>>,
        stamp: ArchiveStamp,
        options: TarOptions,
    ) -> Result<Self> {
        let mut index = TarIndex::empty(stamp, options);
        let mut end = 0;
        for entry in entries {
            let entry = entry?;
            if entry.header_offset < end || entry.data_range().end > index.stamp.size {
                let message = "entries overlap, are out of order, or extend beyond the archive";
                return Err(Error::new(ErrorKind::InvalidArgument, message)
                    .with_key(entry.key.display_name())
                    .with_offset(entry.header_offset));
            }
            end = entry.data_range().end;
            index.push(&entry)?;
        }
        index.shrink();
        Ok(index)
    }

    /// The path of the index of an archive: the path of the archive with the suffix `.idx`.
    pub fn path_of(archive: impl AsRef<Path>) -> PathBuf {
        let mut path = archive.as_ref().as_os_str().to_owned();
        path.push(".idx");
        path.into()
    }

    fn empty(stamp: ArchiveStamp, options: TarOptions) -> Self {
        TarIndex {
            stamp,
            options: options.bits(),
            members: Vec::new(),
            names: Vec::new(),
            links: Vec::new(),
            targets: Vec::new(),
            part_ends: Vec::new(),
            part_indexes: Bytes::new(),
            by_name: OnceLock::new(),
        }
    }

    /// Sets the part indexes, with the numbers of their members, in ascending order.
    pub(crate) fn set_part_indexes(&mut self, part_indexes: &[(usize, Vec<u8>)]) {
        let mut all = Vec::new();
        for (member, index) in part_indexes {
            all.extend_from_slice(index);
            self.part_ends.push(PartIndexEnd { member: *member, end: all.len() });
        }
        self.part_indexes = all.into();
    }

    /// Where the parts of a member are, if the program that wrote the archive stored it: see
    /// [`IndexParts`](crate::shards::IndexParts).
    pub fn part_index(&self, number: usize) -> Option<Bytes> {
        let at = self.part_ends.binary_search_by_key(&number, |end| end.member).ok()?;
        let start = at.checked_sub(1).map_or(0, |before| self.part_ends[before].end);
        Some(self.part_indexes.slice(start..self.part_ends[at].end))
    }

    fn push(&mut self, entry: &TarEntry) -> Result<()> {
        let too_much = |what: &str| {
            let message = format!("the archive has too many {what} for an index");
            Error::new(ErrorKind::LimitExceeded, message).with_offset(entry.header_offset)
        };
        let blocks = (entry.data_offset - entry.header_offset) / BLOCK;
        if blocks >= 1 << 24 {
            return Err(too_much("extended headers"));
        }
        let number = u32::try_from(self.members.len()).ok().filter(|&number| number < u32::MAX);
        let number = number.ok_or_else(|| too_much("members"))?;
        self.names.extend_from_slice(entry.key.as_bytes());
        let name_end = u32::try_from(self.names.len()).map_err(|_| too_much("names"))?;
        if let Some(target) = &entry.link_target {
            self.targets.extend_from_slice(target.as_bytes());
            let target_end = u32::try_from(self.targets.len()).map_err(|_| too_much("links"))?;
            self.links.push(Link { member: number, target_end });
        }
        self.members.push(IndexMember {
            data_offset: entry.data_offset,
            size: entry.size,
            mtime: entry.mtime.unwrap_or(UNKNOWN_TIME),
            name_end,
            kind_and_blocks: u32::from(letter(entry.kind)) | (blocks as u32) << 8,
        });
        Ok(())
    }

    fn shrink(&mut self) {
        self.members.shrink_to_fit();
        self.names.shrink_to_fit();
        self.links.shrink_to_fit();
        self.targets.shrink_to_fit();
    }

    /// The number of members, including directories and links.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether the archive is empty.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The state of the indexed archive.
    pub fn stamp(&self) -> &ArchiveStamp {
        &self.stamp
    }

    /// The name of a member; `None` if `number` is out of range.
    pub fn name(&self, number: usize) -> Option<&[u8]> {
        let end = self.members.get(number)?.name_end;
        let start = number.checked_sub(1).map_or(0, |before| self.members[before].name_end);
        self.names.get(start as usize..end as usize)
    }

    /// The byte range of a member's data in the archive; `None` if `number` is out of range.
    pub fn data_range(&self, number: usize) -> Option<Range<u64>> {
        let member = self.members.get(number)?;
        Some(member.data_offset..member.data_offset.saturating_add(member.size))
    }

    /// The type of a member; `None` if `number` is out of range.
    pub fn kind(&self, number: usize) -> Option<TarKind> {
        self.members.get(number).map(IndexMember::kind)
    }

    /// A member; `None` if `number` is out of range.
    pub fn entry(&self, number: usize) -> Option<TarEntry> {
        let member = self.members.get(number)?;
        Some(TarEntry {
            key: Key::from_bytes(self.name(number)?),
            kind: member.kind(),
            link_target: self.target(number).map(Key::from_bytes),
            size: member.size,
            header_offset: member.data_offset - u64::from(member.kind_and_blocks >> 8) * BLOCK,
            data_offset: member.data_offset,
            mtime: (member.mtime != UNKNOWN_TIME).then_some(member.mtime),
        })
    }

    /// All members, in archive order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TarEntry> + '_ {
        // Each number below the length has an entry.
        (0..self.len()).map(|number| self.entry(number).unwrap_or_else(|| unreachable!()))
    }

    /// The file to read for a member: the member, or the target of its hard link.
    ///
    /// # Errors
    /// - `InvalidArgument` if `number` is out of range, or if the member is not a file.
    /// - `Unsupported` for sparse files, symbolic links and members of unknown type.
    /// - `NotFound` for a hard link whose target is not an earlier member.
    pub fn file(&self, number: usize) -> Result<TarEntry> {
        let Some(mut entry) = self.entry(number) else {
            let message = format!(
                "member index {number} is out of range: the archive has {} members",
                self.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        if entry.kind == TarKind::HardLink {
            let at = self.links.partition_point(|link| (link.member as usize) < number);
            let file = self.by_name().hard_links.get(at).copied().unwrap_or(NO_MEMBER);
            entry = self.entry(file as usize).ok_or_else(|| {
                let target = entry.link_target.as_ref().map(Key::to_string).unwrap_or_default();
                let message = format!("target {target} of a hard link is not an earlier member");
                Error::new(ErrorKind::NotFound, message)
                    .with_key(entry.key.display_name())
                    .with_offset(entry.header_offset)
            })?;
        }
        entry.check_readable()?;
        Ok(entry)
    }

    /// The number of the last member with this name. Extraction keeps that member and overwrites earlier ones.
    /// The first call builds a table of all names.
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        let by_name = self.by_name();
        match by_name.slot(self, name) {
            (_, NO_MEMBER) => None,
            (_, number) => Some(number as usize),
        }
    }

    fn target(&self, number: usize) -> Option<&[u8]> {
        let at = self.links.binary_search_by_key(&number, |link| link.member as usize).ok()?;
        let start = at.checked_sub(1).map_or(0, |before| self.links[before].target_end);
        self.targets.get(start as usize..self.links[at].target_end as usize)
    }

    fn by_name(&self) -> &NameTable {
        self.by_name.get_or_init(|| NameTable::new(self))
    }
}

impl std::fmt::Debug for TarIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TarIndex({} members, {:?})", self.len(), self.stamp)
    }
}

impl IndexMember {
    fn kind(&self) -> TarKind {
        match self.kind_and_blocks as u8 {
            b'0' => TarKind::File,
            b'1' => TarKind::HardLink,
            b'2' => TarKind::SymbolicLink,
            b'3' => TarKind::CharacterDevice,
            b'4' => TarKind::BlockDevice,
            b'5' => TarKind::Directory,
            b'6' => TarKind::Fifo,
            b'S' => TarKind::Sparse,
            other => TarKind::Other(other),
        }
    }
}

fn letter(kind: TarKind) -> u8 {
    match kind {
        TarKind::File => b'0',
        TarKind::HardLink => b'1',
        TarKind::SymbolicLink => b'2',
        TarKind::CharacterDevice => b'3',
        TarKind::BlockDevice => b'4',
        TarKind::Directory => b'5',
        TarKind::Fifo => b'6',
        TarKind::Sparse => b'S',
        TarKind::Other(other) => other,
    }
}

/// Marks an empty slot or a missing link target.
const NO_MEMBER: u32 = u32::MAX;

/// A hash table of names, with open addressing. The random seed prevents collision attacks.
struct NameTable {
    seed: RandomState,
    /// Member numbers, or [`NO_MEMBER`].
    slots: Vec<u32>,
    /// For each link, the target of a hard link, or [`NO_MEMBER`].
    hard_links: Vec<u32>,
}

impl NameTable {
    fn new(index: &TarIndex) -> Self {
        let slots = (index.len().saturating_mul(2)).next_power_of_two().max(2);
        let mut by_name = NameTable {
            seed: RandomState::new(),
            slots: vec![NO_MEMBER; slots],
            hard_links: Vec::new(),
        };
        for number in 0..index.len() {
            if let Some(target) = index.target(number) {
                let found = match index.members[number].kind() {
                    TarKind::HardLink => by_name.slot(index, target).1,
                    _ => NO_MEMBER,
                };
                // The target is an earlier member; if that is a link, its target is known.
                let at = index.links.binary_search_by_key(&found, |link| link.member);
                let file = match at {
                    Ok(at) => by_name.hard_links.get(at).copied().unwrap_or(NO_MEMBER),
                    Err(_) => found,
                };
                by_name.hard_links.push(file);
            }
            let (slot, _) = by_name.slot(index, index.name(number).unwrap_or_default());
            by_name.slots[slot] = number as u32;
        }
        by_name
    }

    /// The slot of a name and the number in it, or the empty slot for a new name. An empty slot always
    /// exists, because there are twice as many slots as members.
    fn slot(&self, index: &TarIndex, name: &[u8]) -> (usize, u32) {
        let mask = self.slots.len() - 1;
        let mut slot = self.seed.hash_one(name) as usize & mask;
        loop {
            let number = self.slots[slot];
            if number == NO_MEMBER || index.name(number as usize) == Some(name) {
                return (slot, number);
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// Reading and writing of the index file.
impl TarIndex {
    /// The content of the index file. [`save`](Self::save) writes it to a local path.
    pub fn to_bytes(&self) -> Vec<u8> {
        let tag = self.stamp.entity_tag.as_deref();
        let (seconds, nanos) = self.stamp.modified.unwrap_or((UNKNOWN_TIME, 0));
        let mut bytes = Vec::with_capacity(
            HEADER
                + tag.map_or(0, str::len)
                + self.len() * MEMBER
                + self.links.len() * LINK
                + self.names.len()
                + self.targets.len()
                + self.part_ends.len() * PART_INDEX
                + self.part_indexes.len()
                + SUM,
        );
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.options.to_le_bytes());
        bytes.extend_from_slice(&self.stamp.size.to_le_bytes());
        bytes.extend_from_slice(&seconds.to_le_bytes());
        bytes.extend_from_slice(&nanos.to_le_bytes());
        bytes.extend_from_slice(&tag.map_or(NO_TAG, |tag| tag.len() as u32).to_le_bytes());
        let counts = [
            self.members.len(),
            self.links.len(),
            self.names.len(),
            self.targets.len(),
            self.part_ends.len(),
        ];
        for count in counts {
            bytes.extend_from_slice(&(count as u64).to_le_bytes());
        }
        bytes.extend_from_slice(tag.unwrap_or_default().as_bytes());
        for member in &self.members {
            bytes.extend_from_slice(&member.data_offset.to_le_bytes());
            bytes.extend_from_slice(&member.size.to_le_bytes());
            bytes.extend_from_slice(&member.mtime.to_le_bytes());
            bytes.extend_from_slice(&member.name_end.to_le_bytes());
            bytes.extend_from_slice(&member.kind_and_blocks.to_le_bytes());
        }
        for link in &self.links {
            bytes.extend_from_slice(&link.member.to_le_bytes());
            bytes.extend_from_slice(&link.target_end.to_le_bytes());
        }
        bytes.extend_from_slice(&self.names);
        bytes.extend_from_slice(&self.targets);
        for part in &self.part_ends {
            bytes.extend_from_slice(&(part.member as u64).to_le_bytes());
            bytes.extend_from_slice(&(part.end as u64).to_le_bytes());
        }
        bytes.extend_from_slice(&self.part_indexes);
        let sum = XxHash3_128::oneshot(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses the content of an index file.
    ///
    /// # Errors
    /// - `Corrupt` or `Truncated` if the file is damaged.
    /// - `Unsupported` for another version.
    /// - `InvalidArgument` if the index was built for another `stamp` or with other `options`.
    pub fn from_bytes(bytes: &[u8], stamp: &ArchiveStamp, options: TarOptions) -> Result<Self> {
        let mut fields = IndexReader { bytes, at: 0 };
        if fields.take(8)? != MAGIC {
            return Err(damaged("not a tar index: magic string not found", 0));
        }
        let version = fields.u32()?;
        if version != VERSION {
            let message =
                format!("unsupported tar index version {version}; expected version {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(8));
        }
        let content = bytes.len().checked_sub(SUM).filter(|&content| content >= HEADER);
        let content = content.ok_or_else(|| fields.truncated())?;
        let sum = XxHash3_128::oneshot(&bytes[..content]);
        if bytes[content..] != sum.to_le_bytes() {
            return Err(damaged("tar index checksum mismatch", content));
        }
        fields.bytes = &bytes[..content];
        let (saved_options, size) = (fields.u32()?, fields.u64()?);
        let (seconds, nanos, tag_len) = (fields.u64()? as i64, fields.u32()?, fields.u32()?);
        let [members, links, names, targets, part_indexes] =
            [fields.count()?, fields.count()?, fields.count()?, fields.count()?, fields.count()?];
        let entity_tag = match tag_len {
            NO_TAG => None,
            len => Some(String::from_utf8_lossy(fields.take(len as usize)?).into_owned()),
        };
        let saved = ArchiveStamp {
            size,
            modified: (seconds != UNKNOWN_TIME).then_some((seconds, nanos)),
            entity_tag,
        };
        if saved != *stamp {
            return Err(stale(format!(
                "the tar index is stale: it was built for {saved:?}; the archive is now {stamp:?}"
            )));
        }
        if saved_options != options.bits() {
            return Err(stale("the tar index was built with different options".to_owned()));
        }
        let mut index = TarIndex::empty(saved, options);
        index.read_members(fields.array(members, MEMBER)?, names)?;
        index.read_links(fields.array(links, LINK)?, targets)?;
        index.names = fields.take(names)?.to_vec();
        index.targets = fields.take(targets)?.to_vec();
        let ends = fields.array(part_indexes, PART_INDEX)?;
        let bytes = index.read_part_ends(ends)?;
        index.part_indexes = Bytes::copy_from_slice(fields.take(bytes)?);
        match fields.at == content {
            true => Ok(index),
            false => Err(damaged("unexpected data at the end of the tar index", fields.at)),
        }
    }

    /// The state of the archive for which an index file was built, without validation; `None` if
    /// the bytes are too few.
    pub fn claimed_stamp(bytes: &[u8]) -> Option<ArchiveStamp> {
        let mut fields = IndexReader { bytes, at: 16 };
        let (size, seconds) = (fields.u64().ok()?, fields.u64().ok()? as i64);
        let (nanos, tag_len) = (fields.u32().ok()?, fields.u32().ok()?);
        fields.at = HEADER;
        let entity_tag = match tag_len {
            NO_TAG => None,
            len => Some(String::from_utf8_lossy(fields.take(len as usize).ok()?).into_owned()),
        };
        let modified = (seconds != UNKNOWN_TIME).then_some((seconds, nanos));
        Some(ArchiveStamp { size, modified, entity_tag })
    }

    fn read_members(&mut self, bytes: &[u8], names: usize) -> Result<()> {
        self.members.reserve_exact(bytes.len() / MEMBER);
        let (mut end, mut name_end) = (0, 0);
        for (number, bytes) in bytes.chunks_exact(MEMBER).enumerate() {
            let mut fields = IndexReader { bytes, at: 0 };
            let member = IndexMember {
                data_offset: fields.u64()?,
                size: fields.u64()?,
                mtime: fields.u64()? as i64,
                name_end: fields.u32()?,
                kind_and_blocks: fields.u32()?,
            };
            let blocks = u64::from(member.kind_and_blocks >> 8);
            let header = member.data_offset.checked_sub(blocks * BLOCK);
            let data_end = member.data_offset.checked_add(member.size);
            let fits = header.is_some_and(|header| header >= end)
                && data_end.is_some_and(|end| end <= self.stamp.size)
                && blocks > 0
                && member.data_offset.is_multiple_of(BLOCK)
                && member.name_end >= name_end
                && member.name_end as usize <= names;
            if !fits {
                let at = HEADER + number * MEMBER;
                return Err(damaged("invalid member record in the tar index", at));
            }
            (end, name_end) = (data_end.unwrap_or(u64::MAX), member.name_end);
            self.members.push(member);
        }
        match name_end as usize == names {
            true => Ok(()),
            false => Err(damaged("the tar index contains names that belong to no member", HEADER)),
        }
    }

    fn read_links(&mut self, bytes: &[u8], targets: usize) -> Result<()> {
        self.links.reserve_exact(bytes.len() / LINK);
        let mut target_end = 0;
        let is_link = |member: &IndexMember| {
            matches!(member.kind(), TarKind::HardLink | TarKind::SymbolicLink)
        };
        // There must be one record for each member that is a link, in the same order.
        let mut of_members = self.members.iter().enumerate().filter(|(_, member)| is_link(member));
        for bytes in bytes.chunks_exact(LINK) {
            let mut fields = IndexReader { bytes, at: 0 };
            let link = Link { member: fields.u32()?, target_end: fields.u32()? };
            let number = of_members.next().map(|(number, _)| number);
            let fits = number == Some(link.member as usize)
                && link.target_end >= target_end
                && link.target_end as usize <= targets;
            if !fits {
                return Err(damaged("invalid link record in the tar index", HEADER));
            }
            target_end = link.target_end;
            self.links.push(link);
        }
        match of_members.next().is_none() && target_end as usize == targets {
            true => Ok(()),
            false => Err(damaged("link records do not match the members of the tar index", HEADER)),
        }
    }

    /// Returns the number of bytes of the part indexes.
    fn read_part_ends(&mut self, bytes: &[u8]) -> Result<usize> {
        for bytes in bytes.chunks_exact(PART_INDEX) {
            let mut fields = IndexReader { bytes, at: 0 };
            let part = PartIndexEnd { member: fields.count()?, end: fields.count()? };
            let fits = part.member < self.members.len()
                && self
                    .part_ends
                    .last()
                    .is_none_or(|before| before.member < part.member && before.end <= part.end);
            if !fits {
                return Err(damaged("invalid record of a part index in the tar index", HEADER));
            }
            self.part_ends.push(part);
        }
        Ok(self.part_ends.last().map_or(0, |part| part.end))
    }

    /// Writes the index file atomically: to a temporary file, which is renamed to `path`.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let path = path.as_ref();
        let key = Key::from_path(path);
        let failed = |error: io::Error| os_error("cannot save the tar index", &key, error);
        let mut temporary = path.as_os_str().to_owned();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        temporary.push(format!(".{}-{number}.tmp", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let written = File::create_new(&temporary).and_then(|mut file| {
            let written = file.write_all(&self.to_bytes());
            written.and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| {
                let _ = fs::remove_file(&temporary);
            })
        });
        written.map_err(failed)
    }

    /// Reads the index file of a local archive.
    ///
    /// # Errors
    /// The errors of [`from_bytes`](Self::from_bytes) and of the operating system.
    pub fn load(
        archive: impl AsRef<Path>,
        stamp: &ArchiveStamp,
        options: TarOptions,
    ) -> Result<Self> {
        let path = TarIndex::path_of(archive);
        let key = Key::from_path(&path);
        let stamp = stamp.clone();
        watched("cannot read the tar index", &key, move |progress| {
            TarIndex::load_watched(&path, &stamp, options, progress)
        })
    }

    fn load_watched(
        path: &Path,
        stamp: &ArchiveStamp,
        options: TarOptions,
        progress: &ReadProgress,
    ) -> Result<Self> {
        let key = Key::from_path(path);
        let failed = |error| os_error("cannot read the tar index", &key, error);
        let file = WatchedFile::open_regular(path, progress).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        // Each member takes less space in the index than in the archive, so a larger index is invalid.
        let max_len = stamp.size.saturating_add(1 << 16);
        if metadata.len() > max_len {
            let message = "the tar index is too large for its archive";
            let error = damaged(message, 0);
            return Err(error.with_key(key.display_name()));
        }
        // Modification times are coarse: two writes in the same tick cannot be distinguished.
        let saved = metadata.modified().ok();
        let saved = saved.and_then(|time| ArchiveStamp::new(0).modified(time).modified);
        if saved.is_some() && saved <= stamp.modified {
            let error = stale("the tar index is not newer than its archive".to_owned());
            return Err(error.with_key(key.display_name()));
        }
        let mut bytes = Vec::new();
        file.take(max_len).read_to_end(&mut bytes).map_err(failed)?;
        TarIndex::from_bytes(&bytes, stamp, options)
            .map_err(|error| error.with_key(key.display_name()))
    }
}

/// A reader of the fields of an index file.
struct IndexReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> IndexReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = self.at.checked_add(len).and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.truncated())?;
        self.at += len;
        Ok(taken)
    }

    fn truncated(&self) -> Error {
        let error = Error::new(ErrorKind::Truncated, "the tar index ends early");
        error.with_offset(self.bytes.len() as u64)
    }

    fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte)))
    }

    fn u64(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn count(&mut self) -> Result<usize> {
        let count = self.u64()?;
        usize::try_from(count).map_err(|_| self.truncated())
    }

    fn array(&mut self, count: usize, size: usize) -> Result<&'a [u8]> {
        let len = count.checked_mul(size).ok_or_else(|| self.truncated())?;
        self.take(len)
    }
}

fn damaged(message: &str, at: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(at as u64)
}

fn stale(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
