//! A member of an archive whose headers are damaged.

use std::fs;

use bytes::Bytes;
use spdl_core::Error;
use spdl_io::archive::{TarIndex, TarKind, TarOptions, TarStream};
use spdl_io::shards::Sums;
use twox_hash::XxHash3_128;

use crate::inspection::archive::Archive;
use crate::inspection::location::Location;

/// What became of a member.
pub(super) enum Search {
    /// Its bytes, as they were written.
    Found(Bytes),
    /// The archive never had it.
    NotThere,
    /// It may lie behind this damage.
    Hidden(Error),
}

/// Looks for a member before the damage, and behind it by what lies beside the archive: an index of what
/// it was before says where, and a checksum says whether the bytes there are those of the member.
pub(super) fn search(archive: &Archive, name: &[u8]) -> Search {
    let damage = match before_damage(archive, name) {
        (Some(data), _) => return Search::Found(data),
        (None, None) => return Search::NotThere,
        (None, Some(damage)) => damage,
    };
    let Ok((sums, _)) = archive.location.sums() else { return Search::Hidden(damage) };
    if sums.as_slice().iter().all(|sum| sum.name.as_bytes() != name) {
        return Search::NotThere;
    }
    match by_old_index(archive, &sums, name) {
        Some(data) => Search::Found(data),
        None => Search::Hidden(damage),
    }
}

/// The member of this name that comes last before the damage, and the damage.
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
    let index = fs::read(TarIndex::path_of(path)).ok()?;
    let stamp = TarIndex::claimed_stamp(&index)?;
    let index = TarIndex::from_bytes(&index, &stamp, TarOptions::default()).ok()?;
    let place = index.file(index.find(name)?).ok()?.data_range();
    let data = read_part(path, place)?;
    let sum = XxHash3_128::oneshot(&data);
    let is_right = |it: &&spdl_io::shards::Sum| it.name.as_bytes() == name && it.xxh3_128 == sum;
    sums.as_slice().iter().find(is_right).map(|_| data)
}

/// A part of a file; `None` where it ends before.
fn read_part(path: &std::path::Path, part: std::ops::Range<u64>) -> Option<Bytes> {
    use std::io::{Read, Seek, SeekFrom};
    let len = part.end.checked_sub(part.start)?;
    let mut file = fs::File::open(path).ok()?;
    // What the file does not hold need not be asked for.
    if file.metadata().ok()?.len() < part.end {
        return None;
    }
    file.seek(SeekFrom::Start(part.start)).ok()?;
    let mut data = Vec::new();
    file.take(len).read_to_end(&mut data).ok()?;
    (data.len() as u64 == len).then(|| data.into())
}
