//! Tar archives of other projects: our lists are those of GNU tar and of Python.

// promise of this file: DATA6

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result, block_on};
use spdl_io::archive::{
    AfterEnd, ArchiveStamp, TarEntry, TarIndex, TarKind, TarOptions, TarRanges, TarSlice, TarStream,
};
use spdl_io::{Capability, Fetcher, Key};

use crate::corpus::{self, Random};

/// An archive in memory as a store that reads ranges.
#[derive(Debug)]
pub(crate) struct InMemory(pub(crate) Bytes);

#[async_trait]
impl Fetcher for InMemory {
    fn capability(&self) -> Capability {
        Capability::default().with_ranges()
    }

    async fn read(&self, _: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let range = range.unwrap_or(0..self.0.len() as u64);
        if range.end > self.0.len() as u64 {
            return Err(Error::new(ErrorKind::Truncated, "the range reaches past the end"));
        }
        Ok(self.0.slice(range.start as usize..range.end as usize))
    }
}

/// A reader that gives a few bytes at a time, as sockets do.
pub(crate) struct Dribble<'a>(pub(crate) &'a [u8], pub(crate) usize);

impl std::io::Read for Dribble<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = self.1.min(buffer.len()).min(self.0.len());
        buffer[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

/// All entries, and what ended them.
pub(crate) type Listing = (Vec<TarEntry>, Option<Error>);

fn collect(entries: impl IntoIterator<Item = Result<TarEntry>>) -> Listing {
    let mut listing = (Vec::new(), None);
    for entry in entries {
        assert!(listing.1.is_none(), "there is something behind an error");
        match entry {
            Ok(entry) => listing.0.push(entry),
            Err(error) => listing.1 = Some(error),
        }
    }
    listing
}

pub(crate) fn list(archive: &[u8], options: TarOptions) -> Listing {
    collect(TarSlice::with_options(Bytes::copy_from_slice(archive), options))
}

/// What an error says, as far as it has to be the same for every way of reading.
fn of_error(error: &Option<Error>) -> Option<(ErrorKind, String, Option<u64>)> {
    error.as_ref().map(|error| (error.kind(), error.message().to_owned(), error.offset()))
}

/// Every way of reading gives the same entries, the same data and the same error.
pub(crate) fn every_way_agrees(archive: &[u8], options: TarOptions, name: &str) -> Listing {
    let bytes = Bytes::copy_from_slice(archive);
    let slice = TarSlice::with_options(bytes.clone(), options);
    let data: Vec<Option<Bytes>>;
    let listing = collect(TarSlice::with_options(bytes.clone(), options));
    data = listing.0.iter().map(|entry| slice.data(entry).ok()).collect();

    for piece in [7, usize::MAX] {
        // Every other member is skipped.
        let mut stream = TarStream::with_options(Dribble(archive, piece), options);
        let mut entries = Vec::new();
        let error = loop {
            match stream.next_entry() {
                Ok(Some(entry)) => entries.push(entry),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
            let number = entries.len() - 1;
            if number % 2 == 0
                && let Some(data) = &data[number]
            {
                assert_eq!(stream.data().unwrap(), data, "{name}: member {number}");
            }
        };
        assert_eq!(entries, listing.0, "{name}: as a stream");
        assert_eq!(of_error(&error), of_error(&listing.1), "{name}: as a stream");
        assert!(stream.next_entry().unwrap().is_none(), "{name}: behind the end");
    }

    let key = Key::from("archive");
    let fetcher: Arc<dyn Fetcher> = Arc::new(InMemory(bytes.clone()));
    let mut ranges =
        TarRanges::with_options(Arc::clone(&fetcher), key.clone(), archive.len() as u64, options);
    let by_ranges = collect(std::iter::from_fn(|| block_on(ranges.next_entry()).transpose()));
    assert_eq!(by_ranges.0, listing.0, "{name}: by ranges");
    assert_eq!(of_error(&by_ranges.1), of_error(&listing.1), "{name}: by ranges");
    for (entry, data) in listing.0.iter().zip(&data) {
        let by_range = block_on(ranges.data(entry)).ok();
        assert_eq!(by_range.as_ref(), data.as_ref(), "{name}: {} by range", entry.key);
    }

    let stamp = ArchiveStamp::new(archive.len() as u64);
    let index = block_on(TarIndex::fetch(fetcher, key, stamp.clone(), options));
    match (&index, &listing.1) {
        (Ok(index), None) => {
            assert_eq!(index.iter().collect::<Vec<_>>(), listing.0, "{name}: by index");
            let again = TarIndex::from_bytes(&index.to_bytes(), &stamp, options);
            let again = again.unwrap_or_else(|error| panic!("{name}: {}", error.report()));
            assert_eq!(again.iter().collect::<Vec<_>>(), listing.0, "{name}: by saved index");
            for entry in &listing.0 {
                let number = index.find(entry.key.as_bytes()).unwrap();
                assert_eq!(index.name(number), Some(entry.key.as_bytes()), "{name}");
            }
        }
        (Err(error), Some(_)) => {
            assert_eq!(of_error(&Some(error.clone())), of_error(&listing.1), "{name}: by index");
        }
        _ => panic!("{name}: {index:?}, but {:?}", listing.1),
    }
    listing
}

/// A member as GNU tar lists it.
#[derive(Debug, PartialEq)]
struct Line {
    kind: char,
    name: Vec<u8>,
    target: Option<Vec<u8>>,
    /// Not known of devices.
    size: Option<u64>,
}

/// GNU tar's list of an archive, and whether it had nothing to complain of.
fn by_gnu_tar(archive: &[u8]) -> Option<(Vec<Line>, bool, String)> {
    let names = ["--quoting-style=escape", "-P", "-tf", "-"];
    let long = ["--quoting-style=escape", "-P", "--numeric-owner", "--full-time", "-tvf", "-"];
    let (names, _, _) = corpus::run("tar", &names, archive)?;
    let (long, succeeded, complaints) = corpus::run("tar", &long, archive)?;
    let lines = |text: Vec<u8>| -> Vec<String> {
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    };
    let mut list = Vec::new();
    for (name, line) in lines(names).into_iter().zip(lines(long)) {
        let mut words = line.split_whitespace();
        let kind = words.next().unwrap().chars().next().unwrap();
        let size = words.nth(1).unwrap().parse().ok();
        let target = match kind {
            'l' => line.split_once(&format!("{name} -> ")),
            'h' => line.split_once(&format!("{name} link to ")),
            _ => None,
        };
        let target = target.map(|(_, target)| unescape(target));
        list.push(Line { kind, name: unescape(&name), target, size });
    }
    // What it only remarks on.
    let remarks = ["A lone zero block", "Ignoring unknown extended", "for empty member name"];
    let is_remark = |line: &str| remarks.iter().any(|remark| line.contains(remark));
    Some((list, succeeded && complaints.lines().all(is_remark), complaints))
}

/// The bytes of a name in the style `escape`.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 3 {
            bytes.push(rest[..3].iter().fold(0, |value: u8, digit| (value << 3) | (digit - b'0')));
            rest = &rest[3..];
            continue;
        }
        let letters = b"abfnrtv\\";
        let meant = b"\x07\x08\x0c\n\r\t\x0b\\";
        let at = letters.iter().position(|letter| rest.first() == Some(letter)).unwrap();
        bytes.push(meant[at]);
        rest = &rest[1..];
    }
    bytes
}

fn line_of(entry: &TarEntry) -> Line {
    let kind = match entry.kind {
        TarKind::File | TarKind::Sparse => '-',
        TarKind::HardLink => 'h',
        TarKind::SymbolicLink => 'l',
        TarKind::CharacterDevice => 'c',
        TarKind::BlockDevice => 'b',
        TarKind::Directory => 'd',
        TarKind::Fifo => 'p',
        TarKind::Other(b'V') => 'V',
        TarKind::Other(b'M') => 'M',
        _ => '?',
    };
    Line {
        kind,
        name: entry.key.as_bytes().to_vec(),
        target: entry.link_target.as_ref().map(|target| target.as_bytes().to_vec()),
        size: Some(entry.size),
    }
}

/// How our list differs from theirs.
fn difference(ours: &Listing, theirs: &[Line], they_complain: bool, why: &str) -> Option<String> {
    let (entries, error) = ours;
    match error {
        Some(error) if !they_complain => return Some(format!("we refuse: {}", error.report())),
        None if they_complain => return Some(format!("they complain: {}", why.trim())),
        // Of a damaged archive, we may give fewer members, but none that they do not know.
        Some(_) if entries.len() > theirs.len() => return Some("we give more".to_owned()),
        Some(_) => {}
        None if entries.len() != theirs.len() => {
            return Some(format!("we give {} members, they {}", entries.len(), theirs.len()));
        }
        None => {}
    }
    for (entry, theirs) in entries.iter().zip(theirs) {
        let mut ours = line_of(entry);
        // The size with the holes is not ours to know; folders and devices have none.
        let sizeless = !matches!(entry.kind, TarKind::File);
        ours.size = if sizeless { theirs.size } else { ours.size };
        if entry.kind == TarKind::File && theirs.kind == 'C' {
            // A file that is to lie in one piece on the disk.
            ours.kind = 'C';
        }
        if ours != *theirs {
            return Some(format!("we give {ours:?}, they {theirs:?}"));
        }
    }
    None
}

/// The tar archives of the corpora, those that are compressed, too, where there is a program for it.
fn archives(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archives = corpus::files(folder, &["tar", "fuzz-tar"]);
    let all = corpus::files(folder, &["gz", "fuzz-libarchive", "tar"]);
    let known: Vec<_> = archives.iter().map(|(path, _)| path.clone()).collect();
    for (path, bytes) in all {
        let is_compressed = [".tgz", ".tar.gz", ".tar.Z"].iter().any(|end| path.ends_with(end));
        if is_compressed
            && !known.contains(&path)
            && let Some((bytes, true, _)) = corpus::run("gzip", &["-dc"], &bytes)
        {
            archives.push((path, bytes));
        }
    }
    archives
}

#[test]
fn archives_of_other_projects_are_listed_as_gnu_tar_lists_them() {
    let Some(folder) = corpus::folder() else { return };
    if !corpus::run("tar", &["--version"], b"")
        .is_some_and(|(text, _, _)| text.starts_with(b"tar (GNU"))
    {
        println!("SKIPPED: GNU tar is not there");
        return;
    }
    let exceptions = corpus::exceptions(include_str!("tar_exceptions.tsv"));
    // It takes an end without the marker for an end.
    let options = TarOptions::default().accept_missing_end(true);
    let (mut alike, mut listed, mut members, mut wrong) = (0, 0, 0, Vec::new());
    for (path, archive) in archives(&folder) {
        let (theirs, is_content, complaints) = by_gnu_tar(&archive).unwrap();
        let ours = every_way_agrees(&archive, options, &path);
        members += ours.0.len();
        let difference = difference(&ours, &theirs, !is_content, &complaints);
        match (difference, exceptions.contains_key(&*path)) {
            (None, false) => alike += 1,
            (Some(_), true) => listed += 1,
            (None, true) => wrong.push(format!("{path}: an exception without need")),
            (Some(difference), false) => wrong.push(format!("{path}: {difference}")),
        }
    }
    println!("{alike} archives with {members} members as GNU tar lists them, {listed} exceptions");
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), alike + wrong.len(), wrong.join("\n"));
}

#[test]
fn data_lie_where_python_finds_them() {
    let Some(folder) = corpus::folder() else { return };
    let options = TarOptions::default().accept_missing_end(true);
    // Compressed ones are not on the disk as they are.
    let archives = corpus::files(&folder, &["tar", "fuzz-tar"]);
    let Some(output) = corpus::told_by_python("list_tar.py", &folder, &archives) else { return };
    let mut lines = output.lines();
    let exceptions = corpus::exceptions(include_str!("tar_python_exceptions.tsv"));
    let (mut compared, mut alike, mut wrong) = (0, 0, Vec::new());
    for (path, archive) in archives {
        let mut theirs = Vec::new();
        let is_content = loop {
            match lines.next().unwrap() {
                "ok" => break true,
                line if line.starts_with("error") => break false,
                line => theirs.push(line.to_owned()),
            }
        };
        let (entries, None) = list(&archive, options) else { continue };
        if !is_content {
            continue;
        }
        let ours: Vec<_> = entries.iter().map(python_line).collect();
        compared += 1;
        match (ours == theirs, exceptions.contains_key(&*path)) {
            (true, false) => alike += 1,
            (true, true) => wrong.push(format!("{path}: an exception without need")),
            (false, true) => {}
            (false, false) => {
                let at = ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs);
                let at = at.count();
                wrong.push(format!("{path}: {:?}, but {:?}", ours.get(at), theirs.get(at)));
            }
        }
    }
    println!("{alike} of {compared} archives as Python lists them");
    assert!(compared > 50, "only {compared} archives were compared");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn python_line(entry: &TarEntry) -> String {
    let kind = match entry.kind {
        TarKind::File => "file",
        TarKind::Directory => "folder",
        TarKind::HardLink => "hard-link",
        TarKind::SymbolicLink => "symbolic-link",
        TarKind::CharacterDevice => "character-device",
        TarKind::BlockDevice => "block-device",
        TarKind::Fifo => "pipe",
        TarKind::Sparse => "sparse",
        _ => "other",
    };
    // Sizes with holes are not ours to know, nor where data start behind a map.
    if entry.kind == TarKind::Sparse {
        return format!("{} sparse", hexadecimal(entry.key.as_bytes()));
    }
    // Python cuts the slash off.
    let name = entry.key.as_bytes();
    let slashes = name.iter().rev().take_while(|&&byte| byte == b'/').count();
    let name = hexadecimal(&name[..name.len() - slashes]);
    format!("{name} {kind} {} {}", entry.size, entry.data_offset)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn damaged_archives_are_errors_and_every_way_of_reading_agrees_on_them() {
    let Some(folder) = corpus::folder() else { return };
    let mut random = Random(1);
    let exceptions = corpus::exceptions(include_str!("tar_exceptions.tsv"));
    let (mut count, mut refused, mut agreed) = (0, 0, 0);
    for (path, archive) in archives(&folder) {
        for number in 0..20 {
            let mut mutant = corpus::mutant(&archive, &mut random);
            if number % 2 == 0 {
                repair_checksums(&mut mutant);
            }
            let after = [AfterEnd::Ignore, AfterEnd::Refuse, AfterEnd::Continue][number % 3];
            let options =
                TarOptions::default().after_end(after).accept_missing_end(number % 5 == 0);
            let name = format!("{path}, mutant {number}");
            let ours = every_way_agrees(&mutant, options, &name);
            count += 1;
            let Some(error) = &ours.1 else {
                // What both find nothing wrong with, both see alike.
                if after == AfterEnd::Ignore
                    && !exceptions.contains_key(&*path)
                    && let Some((theirs, true, _)) = by_gnu_tar(&mutant)
                {
                    assert_eq!(difference(&ours, &theirs, false, ""), None, "{name}");
                    agreed += 1;
                }
                continue;
            };
            let kinds = [ErrorKind::Corrupt, ErrorKind::Truncated, ErrorKind::LimitExceeded];
            assert!(kinds.contains(&error.kind()), "{name}: {}", error.report());
            assert!(error.offset().is_some(), "{name}: {} says not where", error.report());
            refused += 1;
        }
    }
    println!("{count} damaged archives, {refused} refused, {agreed} read as by GNU tar");
    assert!(refused * 2 > count, "only {refused} of {count} were refused");
}

/// Makes the checksums of the headers right, so that damage is not refused at once.
fn repair_checksums(archive: &mut [u8]) {
    for block in archive.chunks_exact_mut(512) {
        if block[148..156].iter().all(|byte| matches!(byte, b'0'..=b'7' | b' ' | 0))
            && block[148..156].iter().any(u8::is_ascii_digit)
        {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}
