//! Compares listings of tar archives with GNU tar and Python's `tarfile`.

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

/// A store that holds one archive in memory.
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
            return Err(Error::new(ErrorKind::Truncated, "the range ends after the archive"));
        }
        Ok(self.0.slice(range.start as usize..range.end as usize))
    }
}

/// A reader that returns at most `.1` bytes per call, like a socket.
pub(crate) struct ShortReads<'a>(pub(crate) &'a [u8], pub(crate) usize);

impl std::io::Read for ShortReads<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = self.1.min(buffer.len()).min(self.0.len());
        buffer[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

/// All entries, and the error after them.
pub(crate) type Listing = (Vec<TarEntry>, Option<Error>);

fn collect(entries: impl IntoIterator<Item = Result<TarEntry>>) -> Listing {
    let mut listing = (Vec::new(), None);
    for entry in entries {
        assert!(listing.1.is_none(), "found an item after an error");
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

/// The parts of an error that must be equal for all readers.
fn summary(error: &Option<Error>) -> Option<(ErrorKind, String, Option<u64>)> {
    error.as_ref().map(|error| (error.kind(), error.message().to_owned(), error.offset()))
}

/// Checks that all readers return the same entries, data and error.
pub(crate) fn check_all_readers(archive: &[u8], options: TarOptions, name: &str) -> Listing {
    let bytes = Bytes::copy_from_slice(archive);
    let slice = TarSlice::with_options(bytes.clone(), options);
    let data: Vec<Option<Bytes>>;
    let listing = collect(TarSlice::with_options(bytes.clone(), options));
    data = listing.0.iter().map(|entry| slice.data(entry).ok()).collect();

    for piece in [7, usize::MAX] {
        // Every other member is skipped.
        let mut stream = TarStream::with_options(ShortReads(archive, piece), options);
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
        assert_eq!(summary(&error), summary(&listing.1), "{name}: as a stream");
        assert!(stream.next_entry().unwrap().is_none(), "{name}: after the end");
    }

    let key = Key::from("archive");
    let fetcher: Arc<dyn Fetcher> = Arc::new(InMemory(bytes.clone()));
    let mut ranges =
        TarRanges::with_options(Arc::clone(&fetcher), key.clone(), archive.len() as u64, options);
    let by_ranges = collect(std::iter::from_fn(|| block_on(ranges.next_entry()).transpose()));
    assert_eq!(by_ranges.0, listing.0, "{name}: by ranges");
    assert_eq!(summary(&by_ranges.1), summary(&listing.1), "{name}: by ranges");
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
            assert_eq!(summary(&Some(error.clone())), summary(&listing.1), "{name}: by index");
        }
        _ => panic!("{name}: {index:?}, but {:?}", listing.1),
    }
    listing
}

/// A member in the listing of GNU tar.
#[derive(Debug, PartialEq)]
struct Line {
    kind: char,
    name: Vec<u8>,
    target: Option<Vec<u8>>,
    /// `None` for devices.
    size: Option<u64>,
}

/// The listing of GNU tar, whether it succeeded without relevant warnings, and its warnings.
fn by_gnu_tar(archive: &[u8]) -> Option<(Vec<Line>, bool, String)> {
    let names = ["--quoting-style=escape", "-P", "-tf", "-"];
    let long = ["--quoting-style=escape", "-P", "--numeric-owner", "--full-time", "-tvf", "-"];
    let (names, _, _) = corpus::run("tar", &names, archive)?;
    let (long, succeeded, warnings) = corpus::run("tar", &long, archive)?;
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
    // Warnings that do not concern the members.
    let harmless = ["A lone zero block", "Ignoring unknown extended", "for empty member name"];
    let is_harmless = |line: &str| harmless.iter().any(|text| line.contains(text));
    Some((list, succeeded && warnings.lines().all(is_harmless), warnings))
}

/// The bytes of a name in GNU tar's quoting style `escape`.
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

/// The first difference between this crate's listing and that of GNU tar.
fn difference(ours: &Listing, theirs: &[Line], has_warned: bool, warnings: &str) -> Option<String> {
    let (entries, error) = ours;
    match error {
        Some(error) if !has_warned => return Some(format!("only we refuse: {}", error.report())),
        None if has_warned => return Some(format!("only GNU tar warns: {}", warnings.trim())),
        // For a damaged archive, this crate may list fewer members, but no others.
        Some(_) if entries.len() > theirs.len() => return Some("we list more members".to_owned()),
        Some(_) => {}
        None if entries.len() != theirs.len() => {
            return Some(format!("{} members, but {} by GNU tar", entries.len(), theirs.len()));
        }
        None => {}
    }
    for (entry, theirs) in entries.iter().zip(theirs) {
        let mut ours = line_of(entry);
        // The expanded size of a sparse file is unknown; directories and devices have no size.
        let sizeless = !matches!(entry.kind, TarKind::File);
        ours.size = if sizeless { theirs.size } else { ours.size };
        if entry.kind == TarKind::File && theirs.kind == 'C' {
            // A contiguous file.
            ours.kind = 'C';
        }
        if ours != *theirs {
            return Some(format!("{ours:?}, but {theirs:?} by GNU tar"));
        }
    }
    None
}

/// The tar archives of the corpora, decompressed with `gzip` if it is installed.
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
fn listings_of_tar_archives_equal_those_of_gnu_tar() {
    let Some(folder) = corpus::folder() else { return };
    if !corpus::run("tar", &["--version"], b"")
        .is_some_and(|(text, _, _)| text.starts_with(b"tar (GNU"))
    {
        println!("SKIPPED: GNU tar is not installed");
        return;
    }
    let exceptions = corpus::exceptions(include_str!("tar_exceptions.tsv"));
    // GNU tar accepts a missing end-of-archive marker.
    let options = TarOptions::default().accept_missing_end(true);
    let (mut alike, mut listed, mut members, mut wrong) = (0, 0, 0, Vec::new());
    for (path, archive) in archives(&folder) {
        let (theirs, is_valid, warnings) = by_gnu_tar(&archive).unwrap();
        let ours = check_all_readers(&archive, options, &path);
        members += ours.0.len();
        let difference = difference(&ours, &theirs, !is_valid, &warnings);
        match (difference, exceptions.contains_key(&*path)) {
            (None, false) => alike += 1,
            (Some(_), true) => listed += 1,
            (None, true) => wrong.push(format!("{path}: unneeded exception")),
            (Some(difference), false) => wrong.push(format!("{path}: {difference}")),
        }
    }
    println!("{alike} archives with {members} members equal GNU tar's, {listed} exceptions");
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), alike + wrong.len(), wrong.join("\n"));
}

#[test]
fn data_offsets_equal_those_of_python() {
    let Some(folder) = corpus::folder() else { return };
    let options = TarOptions::default().accept_missing_end(true);
    // Compressed archives are left out, because Python reads the files by path.
    let archives = corpus::files(&folder, &["tar", "fuzz-tar"]);
    let Some(output) = corpus::run_python("list_tar.py", &folder, &archives) else { return };
    let mut lines = output.lines();
    let exceptions = corpus::exceptions(include_str!("tar_python_exceptions.tsv"));
    let (mut compared, mut alike, mut wrong) = (0, 0, Vec::new());
    for (path, archive) in archives {
        let mut theirs = Vec::new();
        let is_valid = loop {
            match lines.next().unwrap() {
                "ok" => break true,
                line if line.starts_with("error") => break false,
                line => theirs.push(line.to_owned()),
            }
        };
        let (entries, None) = list(&archive, options) else { continue };
        if !is_valid {
            continue;
        }
        let ours: Vec<_> = entries.iter().map(python_line).collect();
        compared += 1;
        match (ours == theirs, exceptions.contains_key(&*path)) {
            (true, false) => alike += 1,
            (true, true) => wrong.push(format!("{path}: unneeded exception")),
            (false, true) => {}
            (false, false) => {
                let at = ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs);
                let at = at.count();
                wrong.push(format!("{path}: {:?}, but {:?}", ours.get(at), theirs.get(at)));
            }
        }
    }
    println!("{alike} of {compared} archives equal Python's");
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
    // The expanded size and the data offset of a sparse file are unknown.
    if entry.kind == TarKind::Sparse {
        return format!("{} sparse", hexadecimal(entry.key.as_bytes()));
    }
    // Python removes trailing slashes.
    let name = entry.key.as_bytes();
    let slashes = name.iter().rev().take_while(|&&byte| byte == b'/').count();
    let name = hexadecimal(&name[..name.len() - slashes]);
    format!("{name} {kind} {} {}", entry.size, entry.data_offset)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn all_readers_agree_on_damaged_archives() {
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
            let ours = check_all_readers(&mutant, options, &name);
            count += 1;
            let Some(error) = &ours.1 else {
                // If GNU tar accepts the archive, too, the listings are equal.
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
            assert!(error.offset().is_some(), "{name}: {} has no offset", error.report());
            refused += 1;
        }
    }
    println!("{count} damaged archives, {refused} refused, {agreed} equal GNU tar's");
    assert!(refused * 2 > count, "only {refused} of {count} were refused");
}

/// Corrects the checksums of headers, so that the parser reads the damaged fields.
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
