//! Tests of `TarIndex`: lookups, saved indexes, and stale, damaged or forged indexes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use spdl_core::{ErrorKind, block_on};
use spdl_io::archive::{AfterEnd, ArchiveStamp, TarIndex, TarKind, TarOptions};
use spdl_io::{Key, LocalFetcher};

use crate::corpus::{Random, mutant};
use crate::tar_files::list;
use crate::tar_members::Archive;

/// Writes an archive into a folder. It was modified one minute ago.
fn shard(folder: &Path, archive: &Archive) -> PathBuf {
    let path = folder.join("shard.tar");
    write(&path, &archive.0);
    path
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    let file = fs::File::options().append(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
}

fn sample() -> Archive {
    let link = |archive: Archive, name: &str, target: &str| {
        let mut archive = archive.header(b'1', name, 0);
        let start = archive.0.len() - 512;
        let block = &mut archive.0[start..];
        block[157..157 + target.len()].copy_from_slice(target.as_bytes());
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive
    };
    let archive = Archive::default().file("a", b"first").header(b'5', "folder/", 0);
    let archive = link(archive, "link to a", "a");
    let archive = link(archive, "link to link", "link to a");
    let archive = link(archive, "link to later", "b");
    archive.file("b", &[2; 3000]).file("a", b"second").end()
}

// promise: DATA6
#[test]
fn members_are_found_by_number_and_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let index = TarIndex::open(shard(folder.path(), &sample())).unwrap();
    assert_eq!(index.iter().collect::<Vec<_>>(), list(&sample().0, TarOptions::default()).0);
    assert_eq!(index.len(), 7);
    assert_eq!(index.name(5), Some(&b"b"[..]));
    assert_eq!(index.find(b"b"), Some(5));
    assert_eq!(index.find(b"a"), Some(6), "the last of two members with the same name");
    assert_eq!(index.find(b"c"), None);
    assert_eq!(index.find(b""), None);
    assert_eq!(index.kind(1), Some(TarKind::Directory));
    assert_eq!(index.data_range(5).map(|range| range.end - range.start), Some(3000));
    assert!(index.name(7).is_none() && index.entry(7).is_none() && index.data_range(7).is_none());
}

// promise: DATA6
#[test]
fn hard_links_resolve_to_an_earlier_file() {
    let folder = tempfile::tempdir().unwrap();
    let index = TarIndex::open(shard(folder.path(), &sample())).unwrap();
    let first = index.entry(0).unwrap();
    assert_eq!(index.file(2).unwrap(), first);
    assert_eq!(index.file(3).unwrap(), first);
    assert_eq!(index.file(4).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(index.file(6).unwrap(), index.entry(6).unwrap());
    assert_eq!(index.file(1).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(index.file(7).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_saved_index_is_reused() {
    let folder = tempfile::tempdir().unwrap();
    let path = shard(folder.path(), &sample());
    TarIndex::open(&path).unwrap();
    let saved = fs::read(folder.path().join("shard.tar.idx")).unwrap();
    let stamp = ArchiveStamp::of_file(&path).unwrap();
    let index = TarIndex::load(&path, &stamp, TarOptions::default()).unwrap();
    assert_eq!(index.to_bytes(), saved);
    // The saved index is used: the changed content of the archive is not read.
    let truth = index.len();
    let other = Archive::default().file("other", b"").end();
    let mut same_size = other.0;
    same_size.resize(sample().0.len(), 0);
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, same_size).unwrap();
    fs::File::options().append(true).open(&path).unwrap().set_modified(modified).unwrap();
    assert_eq!(TarIndex::open(&path).unwrap().len(), truth);
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_stale_index_is_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let path = shard(folder.path(), &sample());
    TarIndex::open(&path).unwrap();
    // A different size.
    write(&path, &Archive::default().file("new", b"").end().0);
    assert_eq!(TarIndex::open(&path).unwrap().len(), 1);
    // The same size, but a different modification time.
    let two = Archive::default().header(b'5', "new", 0).header(b'5', "er", 0).end();
    assert_eq!(two.0.len(), 2048);
    write(&path, &two.0);
    TarIndex::open(&path).unwrap();
    write(&path, &Archive::default().file("new", b"longer").end().0);
    assert_eq!(TarIndex::open(&path).unwrap().len(), 1);
    // Different options.
    let joined = Archive::default().file("a", b"").end().file("b", b"").end();
    write(&path, &joined.0);
    assert_eq!(TarIndex::open(&path).unwrap().len(), 1);
    let options = TarOptions::default().after_end(AfterEnd::Continue);
    assert_eq!(TarIndex::open_with(&path, options).unwrap().len(), 2);
    assert_eq!(TarIndex::open(&path).unwrap().len(), 1);
}

#[test]
fn an_index_as_old_as_its_archive_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = shard(folder.path(), &sample());
    TarIndex::open(&path).unwrap();
    let stamp = ArchiveStamp::of_file(&path).unwrap();
    assert!(TarIndex::load(&path, &stamp, TarOptions::default()).is_ok());
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let saved = fs::File::options().append(true).open(TarIndex::path_of(&path)).unwrap();
    saved.set_modified(modified).unwrap();
    let error = TarIndex::load(&path, &stamp, TarOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(TarIndex::open(&path).unwrap().len(), 7);
}

#[test]
fn a_damaged_index_is_rebuilt() {
    let stamp = ArchiveStamp::new(sample().0.len() as u64).entity_tag("tag");
    let options = TarOptions::default();
    let entries = list(&sample().0, options).0.into_iter().map(Ok);
    let index = TarIndex::from_entries(entries, stamp.clone(), options).unwrap();
    let bytes = index.to_bytes();
    let kind = |bytes: &[u8]| TarIndex::from_bytes(bytes, &stamp, options).unwrap_err().kind();
    for len in 0..bytes.len() {
        assert!(matches!(kind(&bytes[..len]), ErrorKind::Corrupt | ErrorKind::Truncated), "{len}");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        assert!(matches!(kind(&damaged), ErrorKind::Corrupt | ErrorKind::Unsupported), "{at}");
    }
    let others = [
        stamp.clone().entity_tag("other"),
        ArchiveStamp::new(sample().0.len() as u64),
        stamp.clone().modified(SystemTime::UNIX_EPOCH),
    ];
    for other in others {
        let error = TarIndex::from_bytes(&bytes, &other, options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }

    let folder = tempfile::tempdir().unwrap();
    let path = shard(folder.path(), &sample());
    fs::write(TarIndex::path_of(&path), b"SPDL-TAR and then nothing of use").unwrap();
    assert_eq!(TarIndex::open(&path).unwrap().len(), 7);
    let stamp = ArchiveStamp::of_file(&path).unwrap();
    assert!(TarIndex::load(&path, &stamp, options).is_ok(), "it was replaced");
}

/// The forged indexes have valid checksums, so that their content is parsed.
#[test]
fn a_forged_index_never_points_outside_its_archive() {
    let archive = sample();
    let stamp = ArchiveStamp::new(archive.0.len() as u64);
    let options = TarOptions::default();
    let entries = list(&archive.0, options).0.into_iter().map(Ok);
    let bytes = TarIndex::from_entries(entries, stamp.clone(), options).unwrap().to_bytes();
    let content = &bytes[..bytes.len() - 16];
    let mut random = Random(3);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut forged = mutant(content, &mut random);
        let sum = twox_hash::XxHash3_128::oneshot(&forged);
        forged.extend_from_slice(&sum.to_le_bytes());
        let Ok(index) = TarIndex::from_bytes(&forged, &stamp, options) else {
            refused += 1;
            continue;
        };
        accepted += 1;
        for (number, entry) in index.iter().enumerate() {
            assert!(entry.data_range().end <= archive.0.len() as u64);
            let found = index.find(entry.key.as_bytes()).unwrap();
            assert_eq!(index.name(found), Some(entry.key.as_bytes()));
            let _ = index.file(number);
        }
    }
    println!("{accepted} forged indexes accepted, {refused} refused");
    assert!(accepted > 0 && refused > accepted);
}

#[test]
fn local_and_stored_archives_have_the_same_index() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(5);
    for largest in [0, 3000, 40_000, 600_000] {
        let mut archive = Archive::default();
        for number in 0..60 {
            let size = random.below(largest + 1);
            archive = archive.file(&format!("member {number}"), &vec![number; size]);
        }
        let archive = archive.end();
        let path = shard(folder.path(), &archive);
        let index = TarIndex::build(&path, TarOptions::default()).unwrap();
        let entries = list(&archive.0, TarOptions::default()).0;
        assert_eq!(index.iter().collect::<Vec<_>>(), entries);
        let fetched = TarIndex::fetch(
            Arc::new(LocalFetcher::new()),
            Key::from_path(&path),
            ArchiveStamp::of_file(&path).unwrap(),
            TarOptions::default(),
        );
        assert_eq!(block_on(fetched).unwrap().to_bytes(), index.to_bytes());
    }
}

// promise: DATA6
#[test]
fn a_truncated_archive_has_no_index() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = sample();
    archive.0.truncate(archive.0.len() - 1500);
    let path = shard(folder.path(), &archive);
    let error = TarIndex::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
    assert_eq!(error.offset(), Some(archive.0.len() as u64));
    assert!(!TarIndex::path_of(&path).exists());
}

#[test]
fn lookups_are_fast_for_many_members_with_one_name() {
    let stamp = ArchiveStamp::new(u64::MAX);
    let options = TarOptions::default();
    let first = list(&Archive::default().file("same", b"").end().0, options).0.remove(0);
    let entries = (0..200_000).map(|number| {
        let mut entry = first.clone();
        entry.header_offset = number * 512;
        entry.data_offset = entry.header_offset + 512;
        Ok(entry)
    });
    let index = TarIndex::from_entries(entries, stamp, options).unwrap();
    let start = std::time::Instant::now();
    assert_eq!(index.find(b"same"), Some(199_999));
    assert!(start.elapsed() < Duration::from_secs(5));
}
