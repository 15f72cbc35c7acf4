//! Tests how tar headers become members.

// promise of this file: DATA6

use std::io::Write;

use bytes::Bytes;
use proptest::prelude::*;
use spdl_core::{Error, ErrorKind};
use spdl_io::archive::{AfterEnd, TarKind, TarOptions, TarSlice, TarStream};

use crate::tar_files::{ShortReads, check_all_readers, list};

/// An archive that is built block by block.
#[derive(Clone, Default)]
pub(crate) struct Archive(pub(crate) Vec<u8>);

impl Archive {
    /// Adds a ustar header for `size` bytes of data.
    pub(crate) fn header(self, flag: u8, name: &str, size: u64) -> Self {
        self.edited(flag, name, size, |_| {})
    }

    /// Adds a header that `edit` changes, with a valid checksum.
    fn edited(mut self, flag: u8, name: &str, size: u64, edit: impl Fn(&mut [u8])) -> Self {
        let mut block = [0; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        block[136..147].copy_from_slice(format!("{:011o}", 1_700_000_000).as_bytes());
        block[156] = flag;
        block[257..265].copy_from_slice(b"ustar\x0000");
        edit(&mut block);
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
        block[154] = 0;
        self.0.extend_from_slice(&block);
        self
    }

    pub(crate) fn data(mut self, data: &[u8]) -> Self {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// Adds a file with its data.
    pub(crate) fn file(self, name: &str, data: &[u8]) -> Self {
        self.header(b'0', name, data.len() as u64).data(data)
    }

    /// Adds a pax extended header with these records.
    fn extended(self, flag: u8, records: &[(&str, &str)]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let digits = (rest + 1).to_string().len();
            let len = rest + digits;
            let len = if len.to_string().len() > digits { len + 1 } else { len };
            writeln!(data, "{len} {key}={value}").unwrap();
        }
        self.header(flag, "PaxHeaders/x", data.len() as u64).data(&data)
    }

    pub(crate) fn end(mut self) -> Self {
        self.0.extend_from_slice(&[0; 1024]);
        self
    }

    fn zero_block(mut self) -> Self {
        self.0.extend_from_slice(&[0; 512]);
        self
    }

    fn read(&self) -> (Vec<(String, TarKind, u64)>, Option<Error>) {
        self.read_with(TarOptions::default())
    }

    fn read_with(&self, options: TarOptions) -> (Vec<(String, TarKind, u64)>, Option<Error>) {
        let (entries, error) = check_all_readers(&self.0, options, "archive");
        let members =
            entries.into_iter().map(|entry| (entry.key.to_string(), entry.kind, entry.size));
        (members.collect(), error)
    }

    fn names(&self) -> Vec<String> {
        let (members, error) = self.read();
        assert!(error.is_none(), "{}", error.unwrap().report());
        members.into_iter().map(|(name, _, _)| name).collect()
    }

    #[track_caller]
    fn refused(&self, kind: ErrorKind, offset: u64, words: &str) {
        let (_, error) = self.read();
        let error = error.expect("an error");
        assert_eq!((error.kind(), error.offset()), (kind, Some(offset)), "{}", error.report());
        assert!(error.message().contains(words), "{}", error.report());
    }
}

fn file(name: &str, size: u64) -> (String, TarKind, u64) {
    (name.to_owned(), TarKind::File, size)
}

#[test]
fn members_are_delivered_with_their_data() {
    let archive = Archive::default()
        .header(b'5', "cats/", 0)
        .file("cats/1.jpg", b"one")
        .edited(b'2', "link", 0, |block| block[157..160].copy_from_slice(b"far"))
        .file("empty", b"")
        .file("cats/2.jpg", &[7; 513])
        .end();
    let files: Vec<_> = TarSlice::new(archive.0.clone()).files().map(Result::unwrap).collect();
    let names: Vec<_> = files.iter().map(|file| file.entry.key.to_string()).collect();
    assert_eq!(names, ["cats/1.jpg", "empty", "cats/2.jpg"]);
    assert_eq!(files[0].data, "one");
    assert_eq!(files[2].data, [7; 513][..]);
    assert_eq!(files[0].entry.mtime, Some(1_700_000_000));
    assert_eq!((files[0].entry.header_offset, files[0].entry.data_offset), (512, 1024));
    let streamed: Vec<_> =
        TarStream::new(ShortReads(&archive.0, 100)).files().map(Result::unwrap).collect();
    assert_eq!(streamed, files);
    let (entries, _) = list(&archive.0, TarOptions::default());
    assert_eq!(entries[2].link_target.as_ref().unwrap().as_str(), Some("far"));
}

#[test]
fn data_in_memory_are_not_copied() {
    let archive = Bytes::from(Archive::default().file("a", &[1; 5000]).end().0);
    let file = TarSlice::new(archive.clone()).files().next().unwrap().unwrap();
    assert_eq!(file.data.as_ptr(), archive[512..].as_ptr());
}

#[test]
fn a_size_in_an_extended_header_overrides_the_header() {
    // A reader that ignores the extended header would list the members of the inner archive.
    let inner = Archive::default().file("smuggled", b"x").0;
    let archive = Archive::default()
        .extended(b'x', &[("size", "1024")])
        .header(b'0', "outer", 0)
        .data(&inner)
        .file("behind", b"")
        .end();
    assert_eq!(archive.read().0, [file("outer", 1024), file("behind", 0)]);
    // The same with a long-name header between the two headers.
    let archive = Archive::default()
        .extended(b'x', &[("size", "1024")])
        .header(b'L', "././@LongLink", 6)
        .data(b"outer\0")
        .header(b'0', "short", 0)
        .data(&inner)
        .file("behind", b"")
        .end();
    assert_eq!(archive.read().0, [file("outer", 1024), file("behind", 0)]);
    // The size applies to one member only.
    let archive = Archive::default()
        .extended(b'x', &[("size", "1")])
        .header(b'0', "a", 0)
        .data(b"a")
        .file("b", &[2; 600])
        .file("c", b"")
        .end();
    assert_eq!(archive.read().0, [file("a", 1), file("b", 600), file("c", 0)]);
}

// promise: R19
#[test]
fn ambiguous_archives_are_corrupt() {
    let start = Archive::default;
    let corrupt = ErrorKind::Corrupt;
    start().extended(b'x', &[("size", "3")]).file("a", b"1234").refused(
        corrupt,
        1024,
        "the start of the next member is ambiguous",
    );
    start()
        .extended(b'x', &[("path", "a")])
        .extended(b'x', &[("path", "b")])
        .file("c", b"")
        .refused(corrupt, 1536, "conflicting values of path");
    start()
        .header(b'L', "././@LongLink", 2)
        .data(b"a\0")
        .header(b'L', "././@LongLink", 2)
        .data(b"b\0")
        .file("c", b"")
        .refused(corrupt, 1536, "conflicting names");
    start()
        .extended(b'x', &[("path", "a")])
        .header(b'L', "././@LongLink", 2)
        .data(b"b\0")
        .file("c", b"")
        .refused(corrupt, 2048, "conflicting names");
    start()
        .extended(b'x', &[("linkpath", "a")])
        .header(b'K', "././@LongLink", 2)
        .data(b"b\0")
        .header(b'2', "c", 0)
        .refused(corrupt, 2048, "conflicting link targets");
    for flag in [b'2', b'3', b'4', b'6'] {
        start().header(flag, "c", 700).refused(corrupt, 0, "ambiguous");
    }
    start().header(0, "folder/", 700).refused(corrupt, 0, "ambiguous");
    start().extended(b'x', &[("size", "700")]).header(b'1', "c", 0).refused(
        corrupt,
        1024,
        "ambiguous",
    );
    // Equal duplicates are not ambiguous.
    let archive = start()
        .extended(b'x', &[("path", "a")])
        .extended(b'x', &[("path", "a"), ("size", "3")])
        .header(b'L', "././@LongLink", 2)
        .data(b"a\0")
        .file("c", b"123")
        .end();
    assert_eq!(archive.read().0, [file("a", 3)]);
}

#[test]
fn directories_and_links_have_no_data() {
    // Old programs store the allocated size of a directory, and the size of the target of a link.
    let archive = Archive::default()
        .header(b'5', "folder", 5000)
        .header(b'1', "link", 4000)
        .file("file", b"abc")
        .end();
    let (members, error) = archive.read();
    assert!(error.is_none());
    assert_eq!(
        members,
        [
            ("folder".to_owned(), TarKind::Directory, 0),
            ("link".to_owned(), TarKind::HardLink, 0),
            file("file", 3)
        ]
    );
}

#[test]
fn names_are_read_from_prefixes_long_names_and_extended_headers() {
    let long = "d/".repeat(120) + "file";
    let prefix = |block: &mut [u8]| block[345..351].copy_from_slice(b"in/the");
    let of_gnu = |block: &mut [u8]| {
        prefix(block);
        block[257..265].copy_from_slice(b"ustar  \0");
    };
    let archive = Archive::default()
        .edited(b'0', "a", 0, prefix)
        .edited(b'0', "b", 0, of_gnu)
        .header(b'L', "././@LongLink", 245)
        .data(format!("{long}\0").as_bytes())
        .file("cut", b"")
        .extended(b'x', &[("path", &long)])
        .file("cut", b"")
        .file("plain", b"")
        .end();
    assert_eq!(archive.names(), ["in/the/a", "b", &long, &long, "plain"]);
}

#[test]
fn global_records_apply_until_they_are_cancelled() {
    let archive = Archive::default()
        .extended(b'g', &[("path", "everywhere"), ("mtime", "5.9")])
        .file("a", b"")
        .extended(b'x', &[("path", "here"), ("mtime", "-1")])
        .file("b", b"")
        .extended(b'g', &[("path", "")])
        .file("c", b"")
        .end();
    assert_eq!(archive.names(), ["everywhere", "here", "c"]);
    let (entries, _) = list(&archive.0, TarOptions::default());
    let times: Vec<_> = entries.iter().map(|entry| entry.mtime).collect();
    assert_eq!(times, [Some(5), Some(-1), Some(5)]);
}

#[test]
fn sparse_files_are_listed_and_later_members_are_read() {
    let with_map = |block: &mut [u8]| {
        block[257..265].copy_from_slice(b"ustar  \0");
        block[482] = 1;
    };
    let mut map = [0; 512];
    map[504] = 1;
    let archive = Archive::default()
        .edited(b'S', "old", 700, with_map)
        .data(&map)
        .data(&[0; 512])
        .data(&[1; 700])
        .extended(
            b'x',
            &[("GNU.sparse.major", "1"), ("GNU.sparse.name", "new"), ("path", "made up")],
        )
        .file("c", &[3; 600])
        .file("behind", b"data")
        .end();
    let (members, error) = archive.read();
    assert!(error.is_none());
    let sparse = |name: &str, size| (name.to_owned(), TarKind::Sparse, size);
    assert_eq!(members, [sparse("old", 700), sparse("new", 600), file("behind", 4)]);
    let files: Vec<_> = TarSlice::new(archive.0.clone()).files().collect();
    let streamed: Vec<_> = TarStream::new(&archive.0[..]).files().collect();
    for files in [files, streamed] {
        let error = files[0].as_ref().unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Unsupported, Some("old")));
        assert_eq!(files[1].as_ref().unwrap_err().key(), Some("new"));
        assert_eq!(files[2].as_ref().unwrap().data, "data");
        assert_eq!(files.len(), 3);
    }
}

#[test]
fn reading_a_hard_link_is_an_error() {
    let archive =
        Archive::default().file("a", b"data").edited(b'1', "b", 0, |block| block[157] = b'a').end();
    let files: Vec<_> = TarSlice::new(archive.0).files().collect();
    let error = files[1].as_ref().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Unsupported, Some("b")));
    assert!(error.message().contains("hard link to a"), "{error}");
}

#[test]
fn sizes_beyond_8_gib_are_read() {
    let claim = |block: &mut [u8]| {
        block[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 5]);
    };
    let base_256 = Archive::default().edited(b'0', "a", 0, claim);
    let extended =
        Archive::default().extended(b'x', &[("size", "12884901893")]).header(b'0', "a", 0);
    for archive in [base_256, extended] {
        let (members, error) = archive.read();
        assert_eq!(members, [file("a", (3 << 32) + 5)]);
        assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
    }
}

#[test]
fn impossible_sizes_are_corrupt() {
    for claim in [[0xFF; 12], [0x80, 0, 0, 0, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]] {
        let archive = Archive::default()
            .edited(b'0', "a", 0, |block| block[124..136].copy_from_slice(&claim));
        let (_, error) = archive.read();
        let kind = error.unwrap().kind();
        assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Truncated), "{kind}");
    }
    Archive::default()
        .extended(b'x', &[("size", "18446744073709551615")])
        .header(b'0', "a", 0)
        .refused(ErrorKind::Corrupt, 1024, "exceeds the range of file offsets");
}

#[test]
fn truncation_is_an_error_after_the_complete_members() {
    let archive = Archive::default()
        .file("a", b"123")
        .extended(b'x', &[("path", "b")])
        .file("short", &[9; 600])
        .file("c", b"")
        .end();
    let whole = list(&archive.0, TarOptions::default()).0;
    let ends: Vec<_> = whole.iter().map(|entry| entry.data_range().end).collect();
    for len in 0..archive.0.len() {
        let (entries, error) =
            check_all_readers(&archive.0[..len], TarOptions::default(), &format!("{len} bytes"));
        assert_eq!(entries, whole[..entries.len()]);
        let complete = ends.iter().filter(|&&end| end <= len as u64).count();
        assert!(entries.len() >= complete - usize::from(complete == 3 && entries.len() == 2));
        // One block of the end-of-archive marker suffices.
        if len >= archive.0.len() - 512 {
            assert!(error.is_none(), "{len} bytes");
            continue;
        }
        let error = error.unwrap_or_else(|| panic!("{len} bytes"));
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Truncated, Some(len as u64)));
        let files: Vec<_> = TarSlice::new(archive.0[..len].to_vec()).files().collect();
        let (last, before) = files.split_last().unwrap();
        assert_eq!(last.as_ref().unwrap_err().kind(), ErrorKind::Truncated, "{len} bytes");
        assert!(before.iter().all(Result::is_ok), "{len} bytes");
    }
}

#[test]
fn a_missing_end_marker_is_accepted_only_by_option() {
    let archive = Archive::default().file("a", b"123");
    archive.refused(ErrorKind::Truncated, 1024, "end-of-archive marker not found");
    let options = TarOptions::default().accept_missing_end(true);
    assert_eq!(archive.read_with(options).0, [file("a", 3)]);
    assert!(archive.read_with(options).1.is_none());
}

#[test]
fn data_after_the_end_are_handled_by_option() {
    let joined = Archive::default().file("a", b"").end().file("b", b"").end();
    let lone = Archive::default().file("a", b"").zero_block().file("b", b"").end();
    let first = [file("a", 0)];
    let both = [file("a", 0), file("b", 0)];
    for (archive, offset) in [(&joined, 1536), (&lone, 1024)] {
        assert_eq!(archive.read().0, first);
        assert!(archive.read().1.is_none());
        let refused = archive.read_with(TarOptions::default().after_end(AfterEnd::Refuse));
        assert_eq!(refused.0, first);
        let error = refused.1.unwrap();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(offset)), "{error}");
        let joined = archive.read_with(TarOptions::default().after_end(AfterEnd::Continue));
        assert_eq!(joined.0, both);
        assert!(joined.1.is_none());
    }
    // Zero bytes pad the archive to a full record.
    let mut filled = Archive::default().file("a", b"").end();
    filled.0.resize(10_240, 0);
    let read = filled.read_with(TarOptions::default().after_end(AfterEnd::Refuse));
    assert!(read.1.is_none());
    filled.0.push(1);
    let read = filled.read_with(TarOptions::default().after_end(AfterEnd::Refuse));
    assert_eq!(read.1.unwrap().offset(), Some(10_240));
}

#[test]
fn members_after_a_too_large_file_are_read() {
    let archive = Archive::default().file("large", &[1; 101]).file("small", &[2; 100]).end();
    let options = TarOptions::default().max_file_bytes(100);
    let slices: Vec<_> = TarSlice::with_options(archive.0.clone(), options).files().collect();
    let streamed: Vec<_> = TarStream::with_options(&archive.0[..], options).files().collect();
    for files in [slices, streamed] {
        let error = files[0].as_ref().unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::LimitExceeded, Some("large")));
        assert_eq!(files[1].as_ref().unwrap().data.len(), 100);
        assert_eq!(files.len(), 2);
    }
    let archive = Archive::default().header(b'L', "././@LongLink", 101).data(&[b'n'; 101]);
    let options = TarOptions::default().max_extension_bytes(100);
    let error = archive.read_with(options).1.unwrap();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::LimitExceeded, Some(0)));
}

// promise: R19
#[test]
fn names_that_escape_the_folder_are_not_interpreted() {
    let names = ["/etc/passwd", "../../up", "..\\..\\up", "C:\\up", "a/../../b", "", "./."];
    let archive = names.iter().fold(Archive::default(), |archive, name| archive.file(name, b"x"));
    assert_eq!(archive.end().names(), names);
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    // Often longer than the name field of a header. No zero byte, and no slash at the end.
    prop::collection::vec(prop::sample::select(b"ab/.-\xC3\xA9 \n\\".to_vec()), 0..300).prop_map(
        |mut name| {
            name.insert(0, b'n');
            name.push(b'e');
            name
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn archives_of_other_writers_are_read(
        members in prop::collection::vec((names(), prop::collection::vec(any::<u8>(), 0..1500)), 0..8),
    ) {
        use std::os::unix::ffi::OsStrExt;
        let mut builder = tar::Builder::new(Vec::new());
        let mut written = Vec::new();
        for (name, data) in &members {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mtime(123);
            let path = std::ffi::OsStr::from_bytes(name);
            // The crate `tar` refuses some names.
            if builder.append_data(&mut header, path, &data[..]).is_ok() {
                written.push(data);
            }
        }
        let archive = builder.into_inner().unwrap();
        let (entries, error) = check_all_readers(&archive, TarOptions::default(), "written");
        prop_assert!(error.is_none());
        let files: Vec<_> = TarSlice::new(archive.clone()).files().map(Result::unwrap).collect();
        prop_assert_eq!(files.len(), written.len());
        // The names equal those that the crate `tar` reads.
        let mut theirs = tar::Archive::new(&archive[..]);
        for ((file, data), theirs) in files.iter().zip(written).zip(theirs.entries().unwrap()) {
            prop_assert_eq!(&file.data[..], &data[..]);
            let theirs = theirs.unwrap();
            prop_assert_eq!(file.entry.key.as_bytes(), &*theirs.path_bytes());
        }
        prop_assert_eq!(entries.len(), files.len());
    }
}
