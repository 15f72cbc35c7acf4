//! Synthetic MP4 files.

use spdl_core::ErrorKind;

use super::*;
use crate::video::VideoColor;

fn mp4_box(kind: &str, parts: &[Vec<u8>]) -> Vec<u8> {
    let content = parts.concat();
    [&(content.len() as u32 + 8).to_be_bytes(), kind.as_bytes(), &content].concat()
}

/// Big-endian numbers of 32 bits.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn table(kind: &str, entries: &[u32], per_entry: usize) -> Vec<u8> {
    let count = (entries.len() / per_entry) as u32;
    mp4_box(kind, &[words(&[0, count]), words(entries)])
}

/// A visual sample entry of 64 × 48 pixels.
fn entry(kind: &str, boxes: &[Vec<u8>]) -> Vec<u8> {
    let mut fields = vec![0; 78];
    fields[7] = 1;
    fields[24..28].copy_from_slice(&[0, 64, 0, 48]);
    mp4_box(kind, &[fields, boxes.concat()])
}

fn stsd(entries: &[Vec<u8>]) -> Vec<u8> {
    mp4_box("stsd", &[words(&[0, entries.len() as u32]), entries.concat()])
}

fn avc() -> Vec<u8> {
    entry("avc1", &[mp4_box("avcC", &[vec![1, 2, 3]])])
}

const IDENTITY: [u32; 9] = [0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000];

/// A movie of one video track: 1000 units per second in the movie, 100 in the track.
#[derive(Clone)]
struct TestMovie {
    format: Vec<u8>,
    tables: Vec<Vec<u8>>,
    edits: Vec<u8>,
    flags: u32,
    matrix: [u32; 9],
    movie_matrix: [u32; 9],
    extends: Vec<u8>,
}

impl TestMovie {
    /// Four samples of 10, 11, 12 and 13 bytes from byte 1000 on, 4 units each. The second one is
    /// presented last.
    fn new() -> Self {
        TestMovie {
            format: stsd(&[avc()]),
            tables: vec![
                table("stts", &[4, 4], 2),
                table("ctts", &[1, 4, 1, 12, 2, 0], 2),
                table("stss", &[1], 1),
                mp4_box("stsz", &[words(&[0, 0, 4, 10, 11, 12, 13])]),
                table("stsc", &[1, 4, 1], 3),
                table("stco", &[1000], 1),
            ],
            edits: Vec::new(),
            flags: 1,
            matrix: IDENTITY,
            movie_matrix: IDENTITY,
            extends: Vec::new(),
        }
    }

    /// With another table in place of that of the same type, or of `replaced`.
    fn with(mut self, replaced: &str, table: Vec<u8>) -> Self {
        self.tables.retain(|table| table[4..8] != *replaced.as_bytes());
        self.tables.push(table);
        self
    }

    fn format(mut self, entries: &[Vec<u8>]) -> Self {
        self.format = stsd(entries);
        self
    }

    /// Edits: durations in 1/1000 s, and media times in 1/100 s.
    fn edits(mut self, edits: &[(u32, i32)]) -> Self {
        let entries =
            edits.iter().flat_map(|&(duration, time)| [duration, time.cast_unsigned(), 0x1_0000]);
        self.edits = mp4_box("edts", &[table("elst", &entries.collect::<Vec<_>>(), 3)]);
        self
    }

    fn track(&self) -> Vec<u8> {
        let tkhd =
            [&[self.flags, 0, 0, 7, 0, 0, 0, 0, 0, 0], &self.matrix[..], &[64 << 16, 48 << 16]];
        let hdlr = mp4_box("hdlr", &[words(&[0, 0]), b"vide".to_vec(), vec![0; 13]]);
        let stbl = mp4_box("stbl", &[self.format.clone(), self.tables.concat()]);
        let mdhd = mp4_box("mdhd", &[words(&[0, 0, 0, 100, 16, 0])]);
        let mdia = mp4_box("mdia", &[mdhd, hdlr, mp4_box("minf", &[stbl])]);
        mp4_box("trak", &[mp4_box("tkhd", &[words(&tkhd.concat())]), self.edits.clone(), mdia])
    }

    fn movie_with(&self, tracks: &[Vec<u8>]) -> Vec<u8> {
        let mvhd = [&[0, 0, 0, 1000, 160, 0x1_0000, 0, 0, 0], &self.movie_matrix[..], &[0; 7]];
        let mvhd = mp4_box("mvhd", &[words(&mvhd.concat())]);
        mp4_box("moov", &[mvhd, tracks.concat(), self.extends.clone()])
    }

    fn movie(&self) -> Vec<u8> {
        self.movie_with(&[self.track()])
    }

    /// The file: `moov`, and media data up to byte 5000.
    fn file(&self) -> Vec<u8> {
        file(&[self.movie()])
    }

    fn index(&self) -> Result<VideoIndex> {
        index(&self.file())
    }
}

/// A file of these boxes, with media data up to byte 5000.
fn file(boxes: &[Vec<u8>]) -> Vec<u8> {
    let mut file = [mp4_box("ftyp", &[b"isom".to_vec()]), boxes.concat()].concat();
    let rest = 5000 - file.len();
    file.extend(mp4_box("mdat", &[vec![0; rest - 8]]));
    file
}

fn index(file: &[u8]) -> Result<VideoIndex> {
    assert!(Mp4Container.sniff(&file[..file.len().min(4096)]));
    Mp4Container.index(&file, &VideoLimits::default())
}

fn kind(result: Result<VideoIndex>) -> ErrorKind {
    result.expect_err("an error").kind()
}

/// Time stamps and packets of the frames.
fn frames(index: &VideoIndex) -> Vec<(i64, u32)> {
    index.frames().iter().map(|frame| (frame.timestamp, frame.packet)).collect()
}

fn keys(movie: &TestMovie) -> Vec<bool> {
    movie.index().unwrap().packets().iter().map(|packet| packet.is_key).collect()
}

#[test]
fn tables_give_packets_and_frames() {
    let movie = TestMovie::new().with("sdtp", mp4_box("sdtp", &[vec![0, 0, 0, 0, 0, 4, 8, 0x18]]));
    let index = movie.index().unwrap();
    let stream = index.stream();
    assert_eq!((&stream.codec[..], &stream.setup[..]), ("h264", &[1, 2, 3][..]));
    assert_eq!((stream.size, stream.time_base), (Size::new(64, 48), (1, 100)));
    let packets: Vec<_> = index
        .packets()
        .iter()
        .map(|p| (p.offset, p.bytes, p.timestamp, p.is_key, p.is_disposable))
        .collect();
    assert_eq!(
        packets,
        [
            (1000, 10, 4, true, false),
            (1010, 11, 16, false, false),
            (1021, 12, 8, false, true),
            (1033, 13, 12, false, true),
        ]
    );
    assert_eq!(frames(&index), [(4, 0), (8, 2), (12, 3), (16, 1)]);
    assert_eq!(index.end_seconds(), 0.2);
}

#[test]
fn the_sample_entry_names_colours() {
    let color = |content: &[&[u8]]| {
        let colr = mp4_box("colr", &[content.concat()]);
        let avc = entry("avc1", &[mp4_box("avcC", &[vec![1]]), colr]);
        TestMovie::new().format(&[avc]).index().unwrap().stream().color
    };
    let numbers = [0, 9, 0, 16, 0, 10];
    let named = |is_full_range| VideoColor {
        primaries: Some(9),
        transfer: Some(16),
        matrix: Some(10),
        is_full_range,
        siting: None,
    };
    assert_eq!(color(&[b"nclx", &numbers, &[0x80]]), named(Some(true)));
    assert_eq!(color(&[b"nclx", &numbers, &[0]]), named(Some(false)));
    assert_eq!(color(&[b"nclc", &numbers]), named(None));
    assert!(named(None).is_hdr());
    let unspecified = VideoColor { is_full_range: Some(false), ..VideoColor::default() };
    assert_eq!(color(&[b"nclx", &[0, 2, 0, 2, 0, 2, 0]]), unspecified);
    assert!(!unspecified.is_hdr());
    // A profile, and boxes that are too short.
    for other in [&[&b"prof"[..], &numbers][..], &[b"nclx", &numbers], &[b"nc"]] {
        assert_eq!(color(other), VideoColor::default());
    }
}

#[test]
fn samples_are_divided_into_chunks() {
    let co64 = mp4_box("co64", &[words(&[0, 3, 1, 0, 0, 2000, 0, 3000])]);
    let movie =
        TestMovie::new().with("stco", co64).with("stsc", table("stsc", &[1, 2, 1, 2, 1, 1], 3));
    let index = movie.index().unwrap();
    let offsets: Vec<_> = index.packets().iter().map(|packet| packet.offset).collect();
    assert_eq!(offsets, [1 << 32, (1 << 32) + 10, 2000, 3000]);
}

#[test]
fn compact_sizes_have_4_8_or_16_bits() {
    for (bits, table) in
        [(4, vec![0x12, 0x34]), (8, vec![1, 2, 3, 4]), (16, vec![0, 1, 0, 2, 0, 3, 0, 4])]
    {
        let stz2 = mp4_box("stz2", &[words(&[0, bits, 4]), table]);
        let index = TestMovie::new().with("stsz", stz2).index().unwrap();
        let bytes: Vec<_> = index.packets().iter().map(|packet| packet.bytes).collect();
        assert_eq!(bytes, [1, 2, 3, 4], "{bits} bits");
    }
    let stz2 = mp4_box("stz2", &[words(&[0, 5, 4]), vec![0; 4]]);
    assert_eq!(kind(TestMovie::new().with("stsz", stz2).index()), ErrorKind::Corrupt);
}

#[test]
fn key_frames_are_listed_in_several_tables() {
    let movie = TestMovie::new();
    assert_eq!(keys(&movie), [true, false, false, false]);
    let without = movie.clone().with("stss", mp4_box("free", &[]));
    assert_eq!(keys(&without), [true; 4]);
    let empty = movie.clone().with("stss", table("stss", &[], 1));
    assert_eq!(keys(&empty), [true, false, false, false]);
    let partial = movie.clone().with("stps", table("stps", &[3], 1));
    assert_eq!(keys(&partial), [true, false, true, false]);
    let group = mp4_box("sbgp", &[words(&[0]), b"rap ".to_vec(), words(&[2, 3, 0, 1, 1])]);
    assert_eq!(keys(&movie.clone().with("sbgp", group)), [true, false, false, true]);
    let from_zero = movie.with("stss", table("stss", &[0, 2], 1));
    assert_eq!(keys(&from_zero), [true, false, true, false]);
}

#[test]
fn tables_may_disagree_about_the_number_of_samples() {
    let movie = TestMovie::new();
    // Fewer sizes, fewer chunks; fewer durations and offsets.
    let fewer = mp4_box("stsz", &[words(&[0, 0, 3, 10, 11, 12])]);
    assert_eq!(movie.clone().with("stsz", fewer).index().unwrap().packets().len(), 3);
    let chunk = table("stsc", &[1, 2, 1], 3);
    assert_eq!(movie.clone().with("stsc", chunk).index().unwrap().packets().len(), 2);
    let short =
        movie.with("stts", table("stts", &[2, 4], 2)).with("ctts", table("ctts", &[1, 4], 2));
    assert_eq!(frames(&short.index().unwrap()), [(4, 0), (4, 1), (8, 2), (12, 3)]);
}

#[test]
fn counts_are_checked_against_the_bytes_of_their_box() {
    for name in ["stts", "ctts", "stss", "stsz", "stsc", "stco"] {
        let at = if name == "stsz" { vec![0, 0, 1_900_000] } else { vec![0, 0xFFFF_FFFF] };
        let result =
            TestMovie::new().with(name, mp4_box(name, &[words(&at), words(&[1; 6])])).index();
        let error = result.expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        assert!(error.offset().is_some(), "{name}");
    }
    for name in ["stts", "stsc"] {
        let missing = TestMovie::new().with(name, mp4_box("free", &[])).index();
        assert_eq!(kind(missing), ErrorKind::Corrupt, "{name}");
    }
}

#[test]
fn samples_of_one_size_are_limited_by_the_file() {
    let huge = |count| {
        TestMovie::new()
            .with("stsz", mp4_box("stsz", &[words(&[0, 100, count])]))
            .with("stsc", table("stsc", &[1, 0xFFFF_FFFF, 1], 3))
    };
    assert_eq!(kind(huge(0xFFFF_FFFF).index()), ErrorKind::LimitExceeded);
    assert_eq!(huge(1_900_000).index().unwrap().packets().len(), 50);
}

#[test]
fn the_movie_header_may_follow_the_media_data() {
    let movie = TestMovie::new().movie();
    let ftyp = mp4_box("ftyp", &[b"qt  ".to_vec()]);
    let long = [words(&[1]), b"mdat".to_vec(), 24_u64.to_be_bytes().to_vec(), vec![0; 8]].concat();
    let after = [ftyp.clone(), long, movie.clone()].concat();
    assert_eq!(index(&after).unwrap().packets().len(), 4);
    // Size 0: to the end of the file.
    let mut last = movie.clone();
    last[..4].fill(0);
    assert_eq!(index(&[ftyp.clone(), last].concat()).unwrap().packets().len(), 4);
    // Media data that end beyond the end of the file.
    let open = [ftyp.clone(), movie.clone(), words(&[9999]), b"mdat".to_vec()].concat();
    assert_eq!(index(&open).unwrap().packets().len(), 4);
    let lost = [ftyp.clone(), words(&[9999]), b"mdat".to_vec(), movie.clone()].concat();
    assert_eq!(kind(index(&lost)), ErrorKind::Truncated);
    let short = [ftyp.clone(), movie[..movie.len() - 9].to_vec()].concat();
    assert_eq!(kind(index(&short)), ErrorKind::Truncated);
    assert_eq!(kind(index(&ftyp)), ErrorKind::Corrupt);
}

#[test]
fn sniffing_accepts_boxes_that_start_a_file() {
    let sniff = |head: &[u8]| Mp4Container.sniff(head);
    assert!(sniff(&[mp4_box("wide", &[]), mp4_box("mdat", &[])].concat()));
    assert!(sniff(&[mp4_box("free", &[vec![0; 9]]), mp4_box("moov", &[])].concat()));
    assert!(!sniff(b"RIFF\0\0\0\0AVI LIST"));
    assert!(!sniff(b""));
}

#[test]
fn sample_descriptions_must_agree() {
    let two_chunks = |entries: &[Vec<u8>]| {
        TestMovie::new()
            .format(entries)
            .with("stsc", table("stsc", &[1, 2, 1, 2, 2, 2], 3))
            .with("stco", table("stco", &[1000, 2000], 1))
            .index()
    };
    assert!(two_chunks(&[avc(), avc()]).is_ok());
    let other = entry("avc1", &[mp4_box("avcC", &[vec![1, 9]])]);
    assert_eq!(kind(two_chunks(&[avc(), other.clone()])), ErrorKind::Unsupported);
    assert_eq!(kind(two_chunks(&[avc()])), ErrorKind::Corrupt);
    // A description that no chunk uses.
    assert!(TestMovie::new().format(&[avc(), other]).index().is_ok());
}

#[test]
fn codecs_have_the_names_of_ffmpeg() {
    let codec = |entry| TestMovie::new().format(&[entry]).index().unwrap().stream().codec.clone();
    for (kind, name) in [
        ("avc3", "h264"),
        ("hev1", "hevc"),
        ("dvh1", "hevc"),
        ("av01", "av1"),
        ("vp08", "vp8"),
        ("vp09", "vp9"),
        ("s263", "h263"),
        ("apcn", "prores"),
        ("mjpa", "mjpeg"),
        ("Ab1 ", "ab1"),
    ] {
        assert_eq!(codec(entry(kind, &[])), name);
    }
    let vp9 = entry("vp09", &[mp4_box("vpcC", &[vec![1, 2, 3]])]);
    let index = TestMovie::new().format(&[vp9]).index().unwrap();
    assert!(index.stream().setup.is_empty(), "FFmpeg needs no set-up data of VP9");
    let encrypted = TestMovie::new().format(&[entry("encv", &[])]).index();
    assert_eq!(kind(encrypted), ErrorKind::Unsupported);
}

#[test]
fn esds_has_the_codec_and_its_set_up_data() {
    let esds = |object_type: u8| {
        let decoder =
            [&[4, 0x80, 0x80, 0x80, 18, object_type][..], &[0; 12], &[5, 3, 7, 8, 9]].concat();
        let stream = [&[3, 0x80, 0x80, 0x80, 26, 0, 1, 0][..], &decoder].concat();
        entry("mp4v", &[mp4_box("esds", &[words(&[0]), stream])])
    };
    for (object_type, name) in [
        (0x20, "mpeg4"),
        (0x61, "mpeg2video"),
        (0x6A, "mpeg1video"),
        (0x6C, "mjpeg"),
        (0xF0, "mpeg4"),
    ] {
        let index = TestMovie::new().format(&[esds(object_type)]).index().unwrap();
        let stream = index.stream();
        assert_eq!((&stream.codec[..], &stream.setup[..]), (name, &[7, 8, 9][..]));
    }
}

#[test]
fn the_matrix_gives_the_orientation() {
    let one = 0x1_0000_u32;
    let minus = one.wrapping_neg();
    let orientation = |[a, b, c, d]: [u32; 4]| {
        let mut movie = TestMovie::new();
        movie.matrix = [a, b, 0, c, d, 0, 0, 0, 0x4000_0000];
        movie.index().unwrap().stream().orientation
    };
    let expected = [
        ([one, 0, 0, one], Orientation::Upright),
        ([minus, 0, 0, one], Orientation::FlippedHorizontally),
        ([minus, 0, 0, minus], Orientation::Rotated180),
        ([one, 0, 0, minus], Orientation::FlippedVertically),
        ([0, one, one, 0], Orientation::Transposed),
        ([0, one, minus, 0], Orientation::Rotated90),
        ([0, minus, minus, 0], Orientation::Transversed),
        ([0, minus, one, 0], Orientation::Rotated270),
        ([one, one, minus, one], Orientation::Upright),
    ];
    for (matrix, upright) in expected {
        assert_eq!(orientation(matrix), upright);
    }
    let mut movie = TestMovie::new();
    movie.matrix = [0, one, 0, minus, 0, 0, 0, 0, 0x4000_0000];
    movie.movie_matrix = movie.matrix;
    assert_eq!(movie.index().unwrap().stream().orientation, Orientation::Rotated180);
}

#[test]
fn the_first_enabled_track_without_still_images_is_chosen() {
    let cover = TestMovie::new().format(&[entry("jpeg", &[])]);
    let disabled = TestMovie { flags: 0, ..TestMovie::new().format(&[entry("vp08", &[])]) };
    let video = TestMovie::new();
    let codec = |tracks: &[&TestMovie]| {
        let tracks: Vec<_> = tracks.iter().map(|track| track.track()).collect();
        index(&file(&[video.movie_with(&tracks)])).unwrap().stream().codec.clone()
    };
    assert_eq!(codec(&[&cover, &disabled, &video]), "h264");
    assert_eq!(codec(&[&cover, &disabled]), "vp8");
    assert_eq!(codec(&[&cover]), "mjpeg");
    let empty = index(&file(&[video.movie_with(&[])]));
    assert_eq!(kind(empty), ErrorKind::Corrupt);
}

#[test]
fn an_edit_selects_frames() {
    let frames_of = |edits: &[(u32, i32)]| frames(&TestMovie::new().edits(edits).index().unwrap());
    // From the first composition time on: all frames, from 0.
    assert_eq!(frames_of(&[(160, 4)]), [(0, 0), (4, 2), (8, 3), (12, 1)]);
    // The media time 0: FFmpeg moves the first frame to 0.
    assert_eq!(frames_of(&[(200, 0)]), [(0, 0), (4, 2), (8, 3), (12, 1)]);
    // After an empty edit of 0.5 s.
    assert_eq!(frames_of(&[(500, -1), (160, 4)]), [(50, 0), (54, 2), (58, 3), (62, 1)]);
    // Frames from the third one on; without the last.
    assert_eq!(frames_of(&[(160, 8)]), [(0, 2), (4, 3), (8, 1)]);
    assert_eq!(frames_of(&[(80, 8)]), [(0, 2), (4, 3)]);
    // Duration 0: to the end.
    assert_eq!(frames_of(&[(0, 4)]).len(), 4);
    // The same frames twice, with an empty edit between them.
    assert_eq!(frames_of(&[(80, 4), (100, -1), (80, 4)]), [(0, 0), (4, 2), (18, 0), (22, 2)]);
    let index = TestMovie::new().edits(&[(80, 4)]).index().unwrap();
    assert_eq!(index.end_seconds(), 0.08);
    assert_eq!(index.packets().len(), 4);
    let none = TestMovie::new().edits(&[(80, 90)]).index();
    assert_eq!(kind(none), ErrorKind::Corrupt);
}

#[test]
fn edits_of_version_1_have_64_bits() {
    let entry = [160_u64.to_be_bytes(), 4_i64.to_be_bytes()].concat();
    let elst = mp4_box("elst", &[words(&[0x100_0000, 1]), entry, words(&[0x1_0000])]);
    let movie = TestMovie { edits: mp4_box("edts", &[elst]), ..TestMovie::new() };
    assert_eq!(frames(&movie.index().unwrap())[0], (0, 0));
}

#[test]
fn many_edits_are_limited() {
    let movie = TestMovie::new().edits(&[(160, 4); 40]);
    let limits = VideoLimits::default().max_packets(100);
    let error = Mp4Container.index(&&movie.file()[..], &limits).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

/// A movie without samples, whose fragments have samples of 10 bytes and 4 units that are no key
/// frames, unless they have other values.
fn fragmented() -> TestMovie {
    let mut movie = TestMovie::new();
    movie.tables = ["stts", "stsc", "stco"].map(|name| table(name, &[], 1)).to_vec();
    movie.tables.push(mp4_box("stsz", &[words(&[0, 0, 0])]));
    let trex = mp4_box("trex", &[words(&[0, 7, 1, 4, 10, 0x1_0000])]);
    movie.extends = mp4_box("mvex", &[trex]);
    movie
}

fn moof(trafs: &[&[Vec<u8>]]) -> Vec<u8> {
    let trafs: Vec<_> = trafs.iter().map(|boxes| mp4_box("traf", boxes)).collect();
    mp4_box("moof", &[mp4_box("mfhd", &[words(&[0, 1])]), trafs.concat()])
}

/// Offset, size and time stamp of the packets, and whether they are key frames.
fn packets(index: &VideoIndex) -> Vec<(u64, u32, i64, bool)> {
    let packet = |p: &VideoPacket| (p.offset, p.bytes, p.timestamp, p.is_key);
    index.packets().iter().map(packet).collect()
}

#[test]
fn fragments_have_defaults_and_values_per_sample() {
    let movie = fragmented().movie();
    let start = 12 + movie.len() as u64;
    // Two samples by default, the first of which is a key frame; then one with all values.
    let first = moof(&[&[
        mp4_box("tfhd", &[words(&[0x2_0000, 7])]),
        mp4_box("tfdt", &[words(&[0x100_0000, 0, 100])]),
        mp4_box("trun", &[words(&[0x5, 2, 1000, 0x200_0000])]),
        mp4_box("trun", &[words(&[0x100_0F00, 1, 5, 99, 0x80_0000, 8_u32.wrapping_neg()])]),
    ]]);
    // Defaults of the fragment; the time follows the last one.
    let second = moof(&[&[
        mp4_box("tfhd", &[words(&[0x39, 7, 0, 3000, 2, 20, 0])]),
        mp4_box("trun", &[words(&[0, 1])]),
    ]]);
    let file = file(&[movie, first, second]);
    let index = index(&file).unwrap();
    assert_eq!(
        packets(&index),
        [
            (start + 1000, 10, 100, true),
            (start + 1010, 10, 104, false),
            (start + 1020, 99, 100, true),
            (3000, 20, 113, true),
        ]
    );
    let disposable: Vec<_> = index.packets().iter().map(|packet| packet.is_disposable).collect();
    assert_eq!(disposable, [false, false, true, false]);
    assert_eq!(index.end_seconds(), 1.15);
}

#[test]
fn data_of_a_fragment_may_follow_those_of_another_track() {
    let movie = fragmented().movie();
    let start = 12 + movie.len() as u64;
    let other = [
        mp4_box("tfhd", &[words(&[0, 9])]),
        mp4_box("trun", &[words(&[0x301, 2, 500, 1, 30, 1, 40])]),
    ];
    let wanted = [mp4_box("tfhd", &[words(&[0x20, 7, 0])]), mp4_box("trun", &[words(&[0, 1])])];
    let file = file(&[movie, moof(&[&other, &wanted])]);
    assert_eq!(packets(&index(&file).unwrap()), [(start + 570, 10, 0, true)]);
}

#[test]
fn edits_of_fragmented_files_set_the_start() {
    let fragment =
        moof(&[&[mp4_box("tfhd", &[words(&[0x20, 7, 0])]), mp4_box("trun", &[words(&[0, 2])])]]);
    let movie = fragmented().edits(&[(500, -1), (0, 3)]).movie();
    let index = index(&file(&[movie, fragment])).unwrap();
    assert_eq!(frames(&index), [(47, 0), (51, 1)]);
}

#[test]
fn runs_without_values_are_limited_by_the_file() {
    let run = |count, size| {
        let fragment = moof(&[&[
            mp4_box("tfhd", &[words(&[0x10, 7, size])]),
            mp4_box("trun", &[words(&[0x4, count, 0])]),
        ]]);
        kind(index(&file(&[fragmented().movie(), fragment])))
    };
    assert_eq!(run(0xFFFF_FFFF, 10), ErrorKind::LimitExceeded);
    assert_eq!(run(1_900_000, 10), ErrorKind::Corrupt);
    assert_eq!(run(1_900_000, 0), ErrorKind::Corrupt);
    // Values per sample, without their bytes.
    let short =
        moof(&[&[mp4_box("tfhd", &[words(&[0, 7])]), mp4_box("trun", &[words(&[0x200, 100, 1])])]]);
    assert_eq!(kind(index(&file(&[fragmented().movie(), short]))), ErrorKind::Corrupt);
}

#[test]
fn a_truncated_last_fragment_is_left_out() {
    let fragment =
        moof(&[&[mp4_box("tfhd", &[words(&[0x20, 7, 0])]), mp4_box("trun", &[words(&[0, 2])])]]);
    let file = [mp4_box("ftyp", &[]), fragmented().movie(), fragment.clone(), fragment].concat();
    assert_eq!(index(&file).unwrap().packets().len(), 4);
    assert_eq!(index(&file[..file.len() - 1]).unwrap().packets().len(), 2);
}

#[test]
fn large_headers_are_limited() {
    let file = TestMovie::new().file();
    let limits = VideoLimits::default().max_index_bytes(100);
    let error = Mp4Container.index(&&file[..], &limits).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}
