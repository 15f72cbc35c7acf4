//! Compares zip archives with Python's `zipfile`, and tests damaged archives.

// promise of this file: DATA6

use std::io::{Cursor, Write};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use spdl_core::{Error, ErrorKind, Result, block_on};
use spdl_io::Key;
use spdl_io::archive::{ZipDirectory, ZipEntry, ZipMethod, ZipOptions, ZipRanges, ZipSlice};

use crate::corpus::{self, Random};
use crate::tar_files::InMemory;

type Listing = Result<Vec<(ZipEntry, Result<Bytes>)>>;

fn kinds(
    listing: &Listing,
) -> std::result::Result<Vec<std::result::Result<&Bytes, ErrorKind>>, ErrorKind> {
    match listing {
        Ok(members) => Ok(members
            .iter()
            .map(|(_, data)| data.as_ref().map_err(|error| error.kind()))
            .collect()),
        Err(error) => Err(error.kind()),
    }
}

/// Checks that all readers return the same members and errors.
fn check_all_readers(archive: &[u8], options: ZipOptions, name: &str) -> Listing {
    let bytes = Bytes::copy_from_slice(archive);
    let slice: Listing = ZipSlice::with_options(bytes.clone(), options).map(|archive| {
        archive.entries().iter().map(|entry| (entry.clone(), archive.data(entry))).collect()
    });
    let fetcher = Arc::new(InMemory(bytes.clone()));
    let ranges: Listing = block_on(async {
        let archive =
            ZipRanges::open(fetcher, Key::from("archive"), bytes.len() as u64, options).await?;
        let mut members = Vec::new();
        for entry in archive.entries() {
            members.push((entry.clone(), archive.data(entry).await));
        }
        Ok(members)
    });
    assert_eq!(kinds(&slice), kinds(&ranges), "{name}");
    let read =
        |range: std::ops::Range<u64>| Ok(bytes.slice(range.start as usize..range.end as usize));
    if let (Ok(directory), Ok(members)) =
        (ZipDirectory::read(bytes.len() as u64, options, read), &slice)
    {
        for (entry, data) in members {
            let Ok(data) = data else { continue };
            let range = directory.stored_range(entry, read).expect("a range");
            assert_eq!(range.end - range.start, entry.compressed_size, "{name}");
            if entry.method == ZipMethod::Stored {
                assert_eq!(bytes[range.start as usize..range.end as usize], data[..], "{name}");
            }
        }
    }
    for error in errors(&slice) {
        let known = [
            ErrorKind::Corrupt,
            ErrorKind::Truncated,
            ErrorKind::Unsupported,
            ErrorKind::LimitExceeded,
        ];
        assert!(known.contains(&error.kind()), "{name}: {}", error.report());
        assert!(error.offset().is_some(), "{name}: {} has no offset", error.report());
    }
    slice
}

fn errors(listing: &Listing) -> Vec<&Error> {
    match listing {
        Err(error) => vec![error],
        Ok(members) => members.iter().filter_map(|(_, data)| data.as_ref().err()).collect(),
    }
}

#[test]
fn zip_archives_are_read_as_by_python() {
    let Some(folder) = corpus::folder() else { return };
    let archives = corpus::files(&folder, &["zip", "fuzz-zip"]);
    let Some(output) = corpus::run_python("list_zip.py", &folder, &archives) else { return };
    let exceptions = corpus::exceptions(include_str!("zip_exceptions.tsv"));
    let mut lines = output.lines();
    let (mut alike, mut listed, mut wrong) = (0, 0, Vec::new());
    for (path, archive) in &archives {
        let mut theirs = Vec::new();
        let verdict = loop {
            match lines.next().unwrap() {
                line if line == "ok" || line.starts_with("error") => break line,
                line => theirs.push(line.to_owned()),
            }
        };
        let ours = check_all_readers(archive, ZipOptions::default(), path);
        let difference = match &ours {
            Err(_) if verdict != "ok" => None,
            Err(error) => Some(format!("only we refuse: {}; Python: {theirs:?}", error.report())),
            Ok(_) if verdict != "ok" => Some(format!("only Python refuses: {verdict}")),
            Ok(ours) => members_differ(ours, &theirs),
        };
        match (difference, exceptions.contains_key(&**path)) {
            (None, false) => alike += 1,
            (Some(_), true) => listed += 1,
            (None, true) => wrong.push(format!("{path}: unneeded exception")),
            (Some(difference), false) => wrong.push(format!("{path}: {difference}")),
        }
    }
    println!("{alike} archives equal Python's, {listed} exceptions");
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), archives.len(), wrong.join("\n"));
}

fn members_differ(ours: &[(ZipEntry, Result<Bytes>)], theirs: &[String]) -> Option<String> {
    if ours.len() != theirs.len() {
        return Some(format!("{} members, but {} by Python", ours.len(), theirs.len()));
    }
    ours.iter().zip(theirs).find_map(|((entry, data), theirs)| {
        let words: Vec<_> = theirs.split(' ').collect();
        let name: String = entry.key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut crc = flate2::Crc::new();
        let crc = data.as_ref().map(|data| {
            crc.update(data);
            format!("{:08x}", crc.sum())
        });
        let they_read = words[2].len() == 8 && words[2].bytes().all(|b| b.is_ascii_hexdigit());
        let same_data = match &crc {
            Ok(crc) => crc == words[2],
            Err(_) => !they_read,
        };
        let same = name == words[0] && entry.size.to_string() == words[1] && same_data;
        (!same).then(|| {
            let ours = crc.map_err(Error::report);
            format!("{}: {} {ours:?}, but {theirs} by Python", entry.key, entry.size)
        })
    })
}

#[test]
fn damaged_zip_archives_are_errors() {
    let Some(folder) = corpus::folder() else { return };
    let mut random = Random(2);
    let (mut count, mut refused) = (0, 0);
    for (path, archive) in corpus::files(&folder, &["zip", "fuzz-zip"]) {
        for number in 0..20 {
            let mutant = corpus::mutant(&archive, &mut random);
            let options = ZipOptions::default().max_file_bytes(64 << 20);
            let listing = check_all_readers(&mutant, options, &format!("{path}, mutant {number}"));
            count += 1;
            refused += usize::from(!errors(&listing).is_empty());
        }
    }
    println!("{count} damaged archives, {refused} refused");
    assert!(refused * 2 > count);
}

/// An archive of the crate `zip` with a stored and a deflated member.
fn sample() -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    let stored = options.compression_method(zip::CompressionMethod::Stored);
    writer.start_file("stored.bin", stored).unwrap();
    writer.write_all(&[7; 1000]).unwrap();
    let deflated = options.compression_method(zip::CompressionMethod::Deflated);
    writer.start_file("deflated.txt", deflated).unwrap();
    writer.write_all(&b"again and ".repeat(100)).unwrap();
    writer.finish().unwrap().into_inner()
}

/// The offset of the first occurrence of a signature.
fn position(archive: &[u8], signature: &[u8]) -> usize {
    archive.windows(signature.len()).position(|window| window == signature).unwrap()
}

const CENTRAL: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";

fn read_first(archive: Vec<u8>) -> Result<Bytes> {
    let archive = ZipSlice::new(archive)?;
    archive.data(&archive.entries()[0])
}

#[test]
fn stored_data_are_not_copied() {
    let bytes = Bytes::from(sample());
    let archive = ZipSlice::new(bytes.clone()).unwrap();
    let data = archive.data(archive.find(&Key::from("stored.bin")).unwrap()).unwrap();
    let at = data.as_ptr() as usize - bytes.as_ptr() as usize;
    assert_eq!(&bytes[at..at + 1000], &[7; 1000]);
}

#[test]
fn a_local_header_that_contradicts_the_directory_is_corrupt() {
    // Flags, method, checksum, sizes, a letter of the name.
    for at in [6, 8, 14, 18, 22, 30] {
        let mut archive = sample();
        let start = position(&archive, LOCAL);
        archive[start + at] ^= 1;
        let error = read_first(archive).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some("stored.bin")), "{at}");
    }
    assert!(read_first(sample()).is_ok());
}

#[test]
fn damaged_data_fail_their_checksum() {
    let mut archive = sample();
    archive[500] ^= 1;
    let error = read_first(archive).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("CRC-32 mismatch"), "{error}");
}

// promise: R19
#[test]
fn overlapping_members_are_refused() {
    // Both entries point to the first member, as in an overlapping zip bomb.
    let mut archive = sample();
    let first = position(&archive, CENTRAL);
    let second = first + 4 + position(&archive[first + 4..], CENTRAL);
    archive[second + 42..second + 46].fill(0);
    let error = ZipSlice::new(archive).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("next member"), "{error}");
}

#[test]
fn impossible_sizes_are_refused_before_allocation() {
    let mut archive = sample();
    let first = position(&archive, CENTRAL);
    let second = first + 4 + position(&archive[first + 4..], CENTRAL);
    archive[second + 24..second + 28].copy_from_slice(&(900_u32 << 20).to_le_bytes());
    let archive = ZipSlice::new(archive).unwrap();
    let error = archive.data(&archive.entries()[1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("impossible sizes"), "{error}");

    let options = ZipOptions::default().max_file_bytes(999);
    let archive = ZipSlice::with_options(sample(), options).unwrap();
    for entry in archive.entries() {
        assert_eq!(archive.data(entry).unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
    let options = ZipOptions::default().max_directory_bytes(100);
    let error = ZipSlice::with_options(sample(), options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn encrypted_members_and_other_methods_are_unsupported() {
    for (at, value) in [(8, 1_u8), (10, 12)] {
        let mut archive = sample();
        let start = position(&archive, CENTRAL);
        archive[start + at] = value;
        let archive = ZipSlice::new(archive).unwrap();
        let error = archive.data(&archive.entries()[0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(archive.data(&archive.entries()[1]).is_ok(), "other members can be read");
    }
}

#[test]
fn every_truncation_is_an_error() {
    let archive = sample();
    for len in 0..archive.len() {
        let listing =
            check_all_readers(&archive[..len], ZipOptions::default(), &format!("{len} bytes"));
        let kind = listing.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Truncated | ErrorKind::Corrupt), "{len}: {kind}");
    }
}

#[test]
fn bytes_before_an_archive_are_skipped() {
    let with_program = [&b"#!/bin/sh\nexit\n"[..], &sample()].concat();
    let listing = check_all_readers(&with_program, ZipOptions::default(), "with a program");
    assert!(listing.unwrap().iter().all(|(_, data)| data.is_ok()));
}

#[test]
fn names_without_the_utf8_flag_use_code_page_437() {
    let python = std::env::var("SPDL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script =
        "import sys; sys.stdout.buffer.write(bytes(range(128, 256)).decode('cp437').encode())";
    let Some((expected, true, _)) = corpus::run(&python, &["-c", script], b"") else {
        println!("SKIPPED: python3 is not installed");
        return;
    };
    let mut archive = sample();
    let mut names = Vec::new();
    for start in (0..128).step_by(8) {
        let name: Vec<u8> =
            (0..10).map(|at| if at < 8 { 128 + start + at } else { b'.' }).collect();
        for (signature, at) in [(LOCAL, 30), (CENTRAL, 46)] {
            let found = position(&archive, signature);
            archive[found + at..found + at + 10].copy_from_slice(&name);
        }
        let key = ZipSlice::new(archive.clone()).unwrap().entries()[0].key.clone();
        names.extend_from_slice(key.as_bytes().strip_suffix(b"..").unwrap());
    }
    assert_eq!(String::from_utf8(names), String::from_utf8(expected));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn archives_of_other_writers_are_read(
        members in prop::collection::vec(
            ("[a-zé/ ]{0,30}", prop::collection::vec(any::<u8>(), 0..3000), any::<bool>(), any::<bool>()),
            0..6,
        ),
        comment in "[a-z]{0,40}",
    ) {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        writer.set_comment(comment).unwrap();
        for (number, (name, data, is_deflated, is_large)) in members.iter().enumerate() {
            let method = match is_deflated {
                true => zip::CompressionMethod::Deflated,
                false => zip::CompressionMethod::Stored,
            };
            let options = zip::write::SimpleFileOptions::default();
            let options = options.compression_method(method).large_file(*is_large);
            writer.start_file(format!("{number}{name}."), options).unwrap();
            writer.write_all(data).unwrap();
        }
        let archive = writer.finish().unwrap().into_inner();
        let listing = check_all_readers(&archive, ZipOptions::default(), "written").unwrap();
        prop_assert_eq!(listing.len(), members.len());
        for (number, ((entry, read), (name, data, is_deflated, _))) in
            listing.iter().zip(&members).enumerate()
        {
            let name = format!("{number}{name}.");
            prop_assert_eq!(entry.key.as_str(), Some(&*name));
            prop_assert_eq!(&read.as_ref().unwrap()[..], &data[..]);
            prop_assert_eq!(entry.method == ZipMethod::Deflated, *is_deflated);
        }
    }
}
