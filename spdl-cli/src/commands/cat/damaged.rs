//! Finds a member in an archive with damaged headers.

use std::fs;

use bytes::Bytes;
use spdl_core::Error;
use spdl_core::runtime::{STALL_TIMEOUT, read_file};
use spdl_io::archive::{TarIndex, TarKind, TarOptions, TarStream};
use spdl_io::shards::Sums;
use twox_hash::XxHash3_128;

use crate::inspection::archive::Archive;
use crate::inspection::location::Location;

/// The result of a search.
pub(super) enum SearchResult {
    /// The data of the member.
    Found(Bytes),
    /// The archive does not contain the member.
    NotFound,
    /// The member may be in the unreadable part after this damage.
    AfterDamage(Error),
}

/// Searches the members before the damage; then uses the index file and the checksum file in the
/// same folder to find the member after the damage.
///
/// If the index file was written before the archive was damaged, it contains the position of the
/// member; the checksum proves that the data are intact.
pub(super) fn search(archive: &Archive, name: &[u8]) -> SearchResult {
    let damage = match before_damage(archive, name) {
        (Some(data), _) => return SearchResult::Found(data),
        (None, None) => return SearchResult::NotFound,
        (None, Some(damage)) => damage,
    };
    let Ok((sums, _)) = archive.location.sums() else { return SearchResult::AfterDamage(damage) };
    if sums.as_slice().iter().all(|sum| sum.name.as_bytes() != name) {
        return SearchResult::NotFound;
    }
    match by_old_index(archive, &sums, name) {
        Some(data) => SearchResult::Found(data),
        None => SearchResult::AfterDamage(damage),
    }
}

/// Reads the members up to the damage: the last member of this name, and the error at the damage.
fn before_damage(archive: &Archive, name: &[u8]) -> (Option<Bytes>, Option<Error>) {
    let mut found = None;
    let mut stream = match archive.location.open() {
        Ok((bytes, _)) => TarStream::new(bytes),
        Err(error) => return (None, Some(error)),
    };
    loop {
        match stream.next_entry() {
            Ok(Some(entry)) if entry.kind == TarKind::File && entry.key.as_bytes() == name => {
                match stream.data() {
                    Ok(data) => found = Some(data),
                    Err(error) => return (None, Some(error)),
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}

fn by_old_index(archive: &Archive, sums: &Sums, name: &[u8]) -> Option<Bytes> {
    let Location::Local(path) = &archive.location else { return None };
    let index = read_file(TarIndex::path_of(path), u64::MAX, STALL_TIMEOUT).ok()?;
    let stamp = TarIndex::claimed_stamp(&index)?;
    let index = TarIndex::from_bytes(&index, &stamp, TarOptions::default()).ok()?;
    let place = index.file(index.find(name)?).ok()?.data_range();
    let data = read_part(path, place)?;
    let sum = XxHash3_128::oneshot(&data);
    let is_right = |it: &&spdl_io::shards::Sum| it.name.as_bytes() == name && it.xxh3_128 == sum;
    sums.as_slice().iter().find(is_right).map(|_| data)
}

/// Reads a range of a file; `None` if the file is shorter.
fn read_part(path: &std::path::Path, part: std::ops::Range<u64>) -> Option<Bytes> {
    use std::io::{Read, Seek, SeekFrom};
    let len = part.end.checked_sub(part.start)?;
    let mut file = fs::File::open(path).ok()?;
    if file.metadata().ok()?.len() < part.end {
        return None;
    }
    file.seek(SeekFrom::Start(part.start)).ok()?;
    let mut data = Vec::new();
    file.take(len).read_to_end(&mut data).ok()?;
    (data.len() as u64 == len).then(|| data.into())
}
