//! Where the members of a tar archive lie, found once and kept beside it.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use spdl_core::{Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

use super::tar::{HeaderWalk, Step, TarRanges, WindowSizes};
use super::{TarEntry, TarKind, TarOptions};
use crate::fetch::{Fetcher, Key};
use crate::files::os_error;

/// The members of a tar archive by number, in the order of the archive, and by name.
///
/// It is made by one walk over the headers, and saved beside the archive as `SHARD.tar.idx`. A saved
/// index that is of another state of the archive (by its size, and by its modification time or
/// entity tag), of other options or another version, or damaged, is made anew, never believed.
///
/// In memory a member takes 32 bytes and its name; from the first look-up by name on, 8 to 16 more.
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
/// # The file
///
/// Numbers are little-endian. A header of 80 bytes:
///
/// | at | bytes | what |
/// |---|---|---|
/// | 0 | 8 | `SPDL-TAR` |
/// | 8 | 4 | version: 1 |
/// | 12 | 4 | options: 1 where a missing end is accepted; 2 and 4 for what is behind the end: refuse, continue |
/// | 16 | 8 | size of the archive in bytes |
/// | 24 | 8 | its modification time: whole seconds since 1970, signed; −2⁶³ where unknown |
/// | 32 | 4 | and nanoseconds |
/// | 36 | 4 | length of its entity tag in bytes; 2³² − 1 where there is none |
/// | 40 | 8 | number of members |
/// | 48 | 8 | number of links among them |
/// | 56 | 8 | length of all names in bytes |
/// | 64 | 8 | length of all link targets in bytes |
/// | 72 | 8 | 0 |
///
/// then the entity tag; 32 bytes a member: offset of its data (8), their length (8), modification
/// time in seconds (8; −2⁶³ where unknown), end of its name among the names (4), its kind as tar's
/// letter (1), and the blocks of 512 bytes before its data that belong to it (3); 8 bytes a link: the
/// number of the member, and the end of its target among the targets; all names; all targets; and
/// the XXH3 sum of 128 bits of everything before.
pub struct TarIndex {
    stamp: ArchiveStamp,
    options: u32,
    members: Vec<Member>,
    names: Vec<u8>,
    links: Vec<Link>,
    targets: Vec<u8>,
    by_name: OnceLock<ByName>,
}

#[derive(Clone, Copy)]
struct Member {
    data_offset: u64,
    size: u64,
    /// [`UNKNOWN_TIME`] where it is not known.
    mtime: i64,
    name_end: u32,
    /// The kind in the lowest 8 bits; the blocks before the data above it.
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
const SUM: usize = 16;
const NO_TAG: u32 = u32::MAX;

/// Which state of an archive is meant: that of this size, and changed at this time or having this
/// entity tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveStamp {
    size: u64,
    /// Seconds since 1970, and nanoseconds.
    modified: Option<(i64, u32)>,
    entity_tag: Option<String>,
}

impl ArchiveStamp {
    /// An archive of `size` bytes, of which nothing else is known.
    pub fn new(size: u64) -> Self {
        ArchiveStamp { size, modified: None, entity_tag: None }
    }

    /// The state in which a file of this machine is now.
    ///
    /// # Errors
    /// What the operating system answers; `InvalidArgument` where it is no file.
    pub fn of_file(path: impl AsRef<Path>) -> Result<Self> {
        let key = Key::from_path(&path);
        let failed = |error| os_error("cannot look at this archive", &key, error);
        let metadata = fs::metadata(&path).map_err(failed)?;
        if !metadata.is_file() {
            let error = Error::new(ErrorKind::InvalidArgument, "an archive is a regular file");
            return Err(error.with_key(key.display_name()));
        }
        let stamp = ArchiveStamp::new(metadata.len());
        // Where the system has no such times, the size is all there is.
        Ok(metadata.modified().map_or(stamp.clone(), |time| stamp.modified(time)))
    }

    /// Says when it was changed.
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

    /// Says the tag by which a store knows this state of it.
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
    /// The index of an archive of this machine: the one beside it, if that is of this state of it;
    /// else a new one, which is saved beside it where the folder may be written.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn open(archive: impl AsRef<Path>) -> Result<Self> {
        TarIndex::open_with(archive, TarOptions::default())
    }

    /// The same with options of the caller's.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn open_with(archive: impl AsRef<Path>, options: TarOptions) -> Result<Self> {
        let archive = archive.as_ref();
        let stamp = ArchiveStamp::of_file(archive)?;
        if let Ok(index) = TarIndex::load(archive, &stamp, options) {
            return Ok(index);
        }
        let index = TarIndex::build(archive, options)?;
        // An index that cannot be kept is as good for this run.
        let _ = index.save(TarIndex::path_of(archive));
        Ok(index)
    }

    /// Makes the index of an archive of this machine. Only the headers are read, and what lies
    /// between them where that is little.
    ///
    /// # Errors
    /// Those of the archive's headers; `Truncated` where it is cut; what the operating system
    /// answers; `Io` where it changes meanwhile.
    pub fn build(archive: impl AsRef<Path>, options: TarOptions) -> Result<Self> {
        match TarIndex::build_until_damage(archive, options)? {
            (index, None) => Ok(index),
            (_, Some(damage)) => Err(damage),
        }
    }

    /// The same, of the members before a damage of the headers, and that damage. The data of the last
    /// member may be cut.
    pub(crate) fn build_until_damage(
        archive: impl AsRef<Path>,
        options: TarOptions,
    ) -> Result<(Self, Option<Error>)> {
        let archive = archive.as_ref();
        let key = Key::from_path(archive);
        let stamp = ArchiveStamp::of_file(archive)?;
        let mut file = File::open(archive)
            .map_err(|error| os_error("cannot open this archive", &key, error))?;
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
                    let read = read.and_then(|_| (&file).take(len).read_to_end(bytes));
                    read.map(|_| ())
                        .map_err(|error| os_error("cannot read this archive", &key, error))
                })?,
            }
        };
        if ArchiveStamp::of_file(archive)? != stamp {
            let error = Error::new(ErrorKind::Io, "the archive changed while it was read");
            return Err(error.with_key(key.display_name()));
        }
        index.shrink();
        Ok((index, damage))
    }

    /// Makes the index of an archive in a store, by reading ranges of it.
    ///
    /// # Errors
    /// Those of the archive's headers; `Truncated` where it is cut; what the fetcher answers.
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

    /// The same, of the members before a damage of the headers, and that damage. The data of the last
    /// member may be cut.
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

    /// Makes an index of entries that were read otherwise, in the order of the archive.
    ///
    /// # Errors
    /// The first error among the entries; `InvalidArgument` where they do not follow each other, or
    /// lie behind the archive's end.
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
                let message = "the entries are not those of one archive in their order";
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

    /// Where the index of an archive is saved: `.idx` is added to its name.
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
            by_name: OnceLock::new(),
        }
    }

    fn push(&mut self, entry: &TarEntry) -> Result<()> {
        let too_much = |what: &str| {
            let message = format!("the archive has more {what} than an index can hold");
            Error::new(ErrorKind::LimitExceeded, message).with_offset(entry.header_offset)
        };
        let blocks = (entry.data_offset - entry.header_offset) / BLOCK;
        if blocks >= 1 << 24 {
            return Err(too_much("headers before one member"));
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
        self.members.push(Member {
            data_offset: entry.data_offset,
            size: entry.size,
            mtime: entry.mtime.unwrap_or(UNKNOWN_TIME),
            name_end,
            kind_and_blocks: u32::from(letter(entry.kind)) | (blocks as u32) << 8,
        });
        Ok(())
    }

    /// Gives back what was reserved and is not needed.
    fn shrink(&mut self) {
        self.members.shrink_to_fit();
        self.names.shrink_to_fit();
        self.links.shrink_to_fit();
        self.targets.shrink_to_fit();
    }

    /// The number of members, folders and links included.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether the archive is empty.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Which state of the archive it is of.
    pub fn stamp(&self) -> &ArchiveStamp {
        &self.stamp
    }

    /// The name of a member; `None` where there are fewer.
    pub fn name(&self, number: usize) -> Option<&[u8]> {
        let end = self.members.get(number)?.name_end;
        let start = number.checked_sub(1).map_or(0, |before| self.members[before].name_end);
        self.names.get(start as usize..end as usize)
    }

    /// Where a member's data lie in the archive, in bytes; `None` where there are fewer members.
    pub fn data_range(&self, number: usize) -> Option<Range<u64>> {
        let member = self.members.get(number)?;
        Some(member.data_offset..member.data_offset.saturating_add(member.size))
    }

    /// What a member is; `None` where there are fewer.
    pub fn kind(&self, number: usize) -> Option<TarKind> {
        self.members.get(number).map(Member::kind)
    }

    /// A member; `None` where there are fewer.
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

    /// All members, in the order of the archive.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TarEntry> + '_ {
        // A number below the length has an entry.
        (0..self.len()).map(|number| self.entry(number).unwrap_or_else(|| unreachable!()))
    }

    /// The file to read for a member: itself, or what its hard link leads to.
    ///
    /// # Errors
    /// `InvalidArgument` for a number beyond the last, and for what is no file; `Unsupported` for
    /// sparse files, symbolic links and members of an unknown kind; `NotFound` for a hard link to
    /// nothing that came before it.
    pub fn file(&self, number: usize) -> Result<TarEntry> {
        let Some(mut entry) = self.entry(number) else {
            let message = format!("there is no member {number} among {}", self.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        if entry.kind == TarKind::HardLink {
            let at = self.links.partition_point(|link| (link.member as usize) < number);
            let file = self.by_name().hard_links.get(at).copied().unwrap_or(NOWHERE);
            entry = self.entry(file as usize).ok_or_else(|| {
                let target = entry.link_target.as_ref().map(Key::to_string).unwrap_or_default();
                let message = format!("a hard link to {target}, which is not in front of it");
                Error::new(ErrorKind::NotFound, message)
                    .with_key(entry.key.display_name())
                    .with_offset(entry.header_offset)
            })?;
        }
        entry.check_readable()?;
        Ok(entry)
    }

    /// The number of the member with this name; of several, the last, as that is the one which is
    /// left when an archive is unpacked. The first call takes time for each member.
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        let by_name = self.by_name();
        match by_name.slot(self, name) {
            (_, NOWHERE) => None,
            (_, number) => Some(number as usize),
        }
    }

    fn target(&self, number: usize) -> Option<&[u8]> {
        let at = self.links.binary_search_by_key(&number, |link| link.member as usize).ok()?;
        let start = at.checked_sub(1).map_or(0, |before| self.links[before].target_end);
        self.targets.get(start as usize..self.links[at].target_end as usize)
    }

    fn by_name(&self) -> &ByName {
        self.by_name.get_or_init(|| ByName::new(self))
    }
}

impl std::fmt::Debug for TarIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TarIndex({} members, {:?})", self.len(), self.stamp)
    }
}

impl Member {
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

/// No member: there are fewer than this.
const NOWHERE: u32 = u32::MAX;

/// A table of the names' hashes, with a seed of its own: names that collide cannot be prepared.
struct ByName {
    seed: RandomState,
    /// The number of a member, or [`NOWHERE`], where the hash of its name says, or behind.
    slots: Vec<u32>,
    /// For each link, the file that a hard link leads to, or [`NOWHERE`].
    hard_links: Vec<u32>,
}

impl ByName {
    fn new(index: &TarIndex) -> Self {
        let slots = (index.len().saturating_mul(2)).next_power_of_two().max(2);
        let mut by_name = ByName {
            seed: RandomState::new(),
            slots: vec![NOWHERE; slots],
            hard_links: Vec::new(),
        };
        for number in 0..index.len() {
            if let Some(target) = index.target(number) {
                let found = match index.members[number].kind() {
                    TarKind::HardLink => by_name.slot(index, target).1,
                    _ => NOWHERE,
                };
                // What it leads to came before, and if that is a link, too, is known already.
                let at = index.links.binary_search_by_key(&found, |link| link.member);
                let file = match at {
                    Ok(at) => by_name.hard_links.get(at).copied().unwrap_or(NOWHERE),
                    Err(_) => found,
                };
                by_name.hard_links.push(file);
            }
            let (slot, _) = by_name.slot(index, index.name(number).unwrap_or_default());
            by_name.slots[slot] = number as u32;
        }
        by_name
    }

    /// The slot of a name, and the number in it; an empty one where there is no such name. There is
    /// always an empty one, as there are twice as many slots as members.
    fn slot(&self, index: &TarIndex, name: &[u8]) -> (usize, u32) {
        let mask = self.slots.len() - 1;
        let mut slot = self.seed.hash_one(name) as usize & mask;
        loop {
            let number = self.slots[slot];
            if number == NOWHERE || index.name(number as usize) == Some(name) {
                return (slot, number);
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// Reading and writing of the file.
impl TarIndex {
    /// The bytes of the file, for a store of your own; [`save`](Self::save) writes it on this
    /// machine.
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
                + SUM,
        );
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.options.to_le_bytes());
        bytes.extend_from_slice(&self.stamp.size.to_le_bytes());
        bytes.extend_from_slice(&seconds.to_le_bytes());
        bytes.extend_from_slice(&nanos.to_le_bytes());
        bytes.extend_from_slice(&tag.map_or(NO_TAG, |tag| tag.len() as u32).to_le_bytes());
        let counts =
            [self.members.len(), self.links.len(), self.names.len(), self.targets.len(), 0];
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
        let sum = XxHash3_128::oneshot(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// `Corrupt` and `Truncated` where it is damaged; `Unsupported` where it is of another version;
    /// `InvalidArgument` where it is of another state of the archive, or of other options.
    pub fn from_bytes(bytes: &[u8], stamp: &ArchiveStamp, options: TarOptions) -> Result<Self> {
        let mut fields = Fields { bytes, at: 0 };
        if fields.take(8)? != MAGIC {
            return Err(damaged("this is no index of a tar archive", 0));
        }
        let version = fields.u32()?;
        if version != VERSION {
            let message = format!("an index of version {version}; this program knows {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(8));
        }
        let content = bytes.len().checked_sub(SUM).filter(|&content| content >= HEADER);
        let content = content.ok_or_else(|| fields.cut())?;
        let sum = XxHash3_128::oneshot(&bytes[..content]);
        if bytes[content..] != sum.to_le_bytes() {
            return Err(damaged("the checksum of this index is wrong", content));
        }
        fields.bytes = &bytes[..content];
        let (saved_options, size) = (fields.u32()?, fields.u64()?);
        let (seconds, nanos, tag_len) = (fields.u64()? as i64, fields.u32()?, fields.u32()?);
        let [members, links, names, targets, reserved] =
            [fields.count()?, fields.count()?, fields.count()?, fields.count()?, fields.count()?];
        if reserved != 0 {
            return Err(damaged("what is 0 in this version of an index is not", HEADER - 8));
        }
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
            return Err(stale(format!("this index is of {saved:?}, the archive is {stamp:?}")));
        }
        if saved_options != options.bits() {
            return Err(stale("this index was made with other options".to_owned()));
        }
        let mut index = TarIndex::empty(saved, options);
        index.read_members(fields.array(members, MEMBER)?, names)?;
        index.read_links(fields.array(links, LINK)?, targets)?;
        index.names = fields.take(names)?.to_vec();
        index.targets = fields.take(targets)?.to_vec();
        match fields.at == content {
            true => Ok(index),
            false => Err(damaged("this index holds more than it says", fields.at)),
        }
    }

    /// Which state of an archive the bytes of a file say they are of, unchecked; `None` where they are
    /// no such file.
    pub fn claimed_stamp(bytes: &[u8]) -> Option<ArchiveStamp> {
        let mut fields = Fields { bytes, at: 16 };
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
            let mut fields = Fields { bytes, at: 0 };
            let member = Member {
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
                return Err(damaged("a member of this index cannot be", HEADER + number * MEMBER));
            }
            (end, name_end) = (data_end.unwrap_or(u64::MAX), member.name_end);
            self.members.push(member);
        }
        match name_end as usize == names {
            true => Ok(()),
            false => Err(damaged("this index holds names of no member", HEADER)),
        }
    }

    fn read_links(&mut self, bytes: &[u8], targets: usize) -> Result<()> {
        self.links.reserve_exact(bytes.len() / LINK);
        let mut target_end = 0;
        let is_link =
            |member: &Member| matches!(member.kind(), TarKind::HardLink | TarKind::SymbolicLink);
        // Each link among the members, in their order, and nothing else.
        let mut of_members = self.members.iter().enumerate().filter(|(_, member)| is_link(member));
        for bytes in bytes.chunks_exact(LINK) {
            let mut fields = Fields { bytes, at: 0 };
            let link = Link { member: fields.u32()?, target_end: fields.u32()? };
            let number = of_members.next().map(|(number, _)| number);
            let fits = number == Some(link.member as usize)
                && link.target_end >= target_end
                && link.target_end as usize <= targets;
            if !fits {
                return Err(damaged("a link of this index cannot be", HEADER));
            }
            target_end = link.target_end;
            self.links.push(link);
        }
        match of_members.next().is_none() && target_end as usize == targets {
            true => Ok(()),
            false => Err(damaged("the links of this index are not those of its members", HEADER)),
        }
    }

    /// Writes the file, whole or not at all: to another name first, which then becomes `path`.
    ///
    /// # Errors
    /// What the operating system answers.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let path = path.as_ref();
        let key = Key::from_path(path);
        let failed = |error: io::Error| os_error("cannot save this index", &key, error);
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

    /// Reads the file beside an archive of this machine, where it is of this state of the archive.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes), and what the operating system answers.
    pub fn load(
        archive: impl AsRef<Path>,
        stamp: &ArchiveStamp,
        options: TarOptions,
    ) -> Result<Self> {
        let path = TarIndex::path_of(archive);
        let key = Key::from_path(&path);
        let failed = |error| os_error("cannot read this index", &key, error);
        let file = File::open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        // A member takes 512 bytes of the archive at least, and fewer here, but for its name, which
        // is in both.
        let most = stamp.size.saturating_add(1 << 16);
        if !metadata.is_file() || metadata.len() > most {
            let error = damaged("this is no index of an archive of that size", 0);
            return Err(error.with_key(key.display_name()));
        }
        // Times are coarse: an archive that is written again within the same instant looks alike.
        let saved = metadata.modified().ok();
        let saved = saved.and_then(|time| ArchiveStamp::new(0).modified(time).modified);
        if saved.is_some() && saved <= stamp.modified {
            let error = stale("this index is not younger than its archive".to_owned());
            return Err(error.with_key(key.display_name()));
        }
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).map_err(failed)?;
        TarIndex::from_bytes(&bytes, stamp, options)
            .map_err(|error| error.with_key(key.display_name()))
    }
}

/// The numbers of a file, one after another.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = self.at.checked_add(len).and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.cut())?;
        self.at += len;
        Ok(taken)
    }

    fn cut(&self) -> Error {
        Error::new(ErrorKind::Truncated, "this index is cut").with_offset(self.bytes.len() as u64)
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
        usize::try_from(count).map_err(|_| self.cut())
    }

    fn array(&mut self, count: usize, size: usize) -> Result<&'a [u8]> {
        let len = count.checked_mul(size).ok_or_else(|| self.cut())?;
        self.take(len)
    }
}

fn damaged(message: &str, at: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(at as u64)
}

fn stale(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
