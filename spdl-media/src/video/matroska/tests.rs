//! Synthetic Matroska files.

use super::*;

/// An element with a size field of 8 bytes.
fn element(id: u32, content: &[u8]) -> Vec<u8> {
    let id = id.to_be_bytes();
    let skipped = id.iter().take_while(|&&byte| byte == 0).count();
    let size = (1 << 56 | content.len() as u64).to_be_bytes();
    [&id[skipped..], &size, content].concat()
}

/// An element of unknown size.
fn open(id: u32, content: &[u8]) -> Vec<u8> {
    let mut element = element(id, content);
    element[4..12].copy_from_slice(&(u64::MAX >> 7).to_be_bytes());
    element
}

fn number(id: u32, value: u32) -> Vec<u8> {
    element(id, &value.to_be_bytes())
}

/// A track of 64 × 48 pixels, with `more` elements.
fn track(number_of: u32, kind: u32, codec: &str, more: &[Vec<u8>]) -> Vec<u8> {
    let video = [number(id::PIXEL_WIDTH, 64), number(id::PIXEL_HEIGHT, 48)].concat();
    let fields = [
        number(id::TRACK_NUMBER, number_of),
        number(id::TRACK_TYPE, kind),
        element(id::CODEC_ID, codec.as_bytes()),
        element(id::VIDEO, &video),
    ];
    element(id::TRACK_ENTRY, &[fields.concat(), more.concat()].concat())
}

/// The content of a block of 10 bytes.
fn block(track: u8, time: i16, flags: u8) -> Vec<u8> {
    let [high, low] = time.to_be_bytes();
    [&[0x80 | track, high, low, flags][..], &[7; 10]].concat()
}

fn cluster(time: u32, blocks: &[Vec<u8>]) -> Vec<u8> {
    element(id::CLUSTER, &[number(id::TIMESTAMP, time), blocks.concat()].concat())
}

/// Three blocks; the second is presented last.
fn clusters() -> Vec<u8> {
    let group = [element(id::BLOCK, &block(1, 80, 0)), element(id::REFERENCE_BLOCK, &[1])].concat();
    [
        cluster(
            100,
            &[
                element(id::SIMPLE_BLOCK, &block(2, 0, 0x80)),
                element(id::SIMPLE_BLOCK, &block(1, 0, 0x80)),
                element(id::BLOCK_GROUP, &group),
            ],
        ),
        cluster(150, &[element(id::SIMPLE_BLOCK, &block(1, -10, 0x01))]),
    ]
    .concat()
}

fn file_of(segment: &[Vec<u8>]) -> Vec<u8> {
    let head = element(id::EBML, &element(0x4282, b"matroska"));
    [head, element(id::SEGMENT, &segment.concat())].concat()
}

/// A file with this track and [`clusters`].
fn file(track: Vec<u8>) -> Vec<u8> {
    file_of(&[element(id::TRACKS, &track), clusters()])
}

fn h264(more: &[Vec<u8>]) -> Vec<u8> {
    track(1, 1, "V_MPEG4/ISO/AVC", more)
}

fn index(file: &[u8]) -> Result<VideoIndex> {
    assert!(MatroskaContainer.sniff(file));
    MatroskaContainer.index(&file, &VideoLimits::default())
}

fn kind(result: Result<VideoIndex>) -> ErrorKind {
    result.expect_err("an error").kind()
}

/// Time stamps and flags of the packets.
fn packets(index: &VideoIndex) -> Vec<(i64, bool, bool)> {
    index.packets().iter().map(|p| (p.timestamp, p.is_key, p.is_disposable)).collect()
}

const PACKETS: [(i64, bool, bool); 3] =
    [(100, true, false), (180, false, false), (140, false, true)];

#[test]
fn blocks_give_packets() {
    let file = file(h264(&[element(id::CODEC_PRIVATE, &[1, 2])]));
    let index = index(&file).unwrap();
    assert_eq!(packets(&index), PACKETS);
    for packet in index.packets() {
        let start = packet.offset as usize;
        assert_eq!(file[start - 4] & 0x7F, 1);
        assert_eq!(file[start..start + packet.bytes as usize], [7; 10]);
    }
    let stream = index.stream();
    assert_eq!((&stream.codec[..], &stream.setup[..]), ("h264", &[1, 2][..]));
    assert_eq!((stream.size, stream.time_base), (Size::new(64, 48), (1, 1000)));
    // The last frame is as long as the one before it.
    assert_eq!(index.end_seconds(), 0.22);
}

#[test]
fn the_last_frame_has_the_default_duration() {
    let index = index(&file(h264(&[number(id::DEFAULT_DURATION, 25_000_000)]))).unwrap();
    assert_eq!(index.end_seconds(), 0.205);
}

#[test]
fn time_stamps_have_a_scale() {
    let scale = |scale| {
        let info = element(id::INFO, &number(id::TIMESTAMP_SCALE, scale));
        index(&file_of(&[info, element(id::TRACKS, &h264(&[])), clusters()]))
    };
    assert_eq!(scale(500_000).unwrap().stream().time_base, (1, 2000));
    assert_eq!(scale(3).unwrap().stream().time_base, (3, 1_000_000_000));
    assert_eq!(kind(scale(0)), ErrorKind::Corrupt);
}

#[test]
fn elements_end_with_their_block_group() {
    // Each of these groups has a duration that ends with the file: without the check, the scan reads the rest
    // of the file for each group.
    let groups: Vec<_> = (0..2000_u64)
        .rev()
        .map(|after| {
            let mut group = element(id::BLOCK_GROUP, &element(id::BLOCK_DURATION, &[0; 3]));
            let size = (1 << 56 | (3 + after * group.len() as u64)).to_be_bytes();
            group[10..18].copy_from_slice(&size);
            group
        })
        .collect();
    let file = file_of(&[element(id::TRACKS, &h264(&[])), clusters(), cluster(200, &groups)]);
    assert_eq!(kind(index(&file)), ErrorKind::Corrupt);
}

#[test]
fn segments_and_clusters_may_have_unknown_sizes() {
    let head = element(id::EBML, &element(0x4282, b"webm"));
    let time = number(id::TIMESTAMP, 0);
    let block = element(id::SIMPLE_BLOCK, &block(1, 5, 0x80));
    let cluster = open(id::CLUSTER, &[time, block].concat());
    let tracks = element(id::TRACKS, &h264(&[]));
    let segment = open(id::SEGMENT, &[tracks, cluster.clone(), cluster].concat());
    assert_eq!(index(&[head, segment].concat()).unwrap().packets().len(), 2);
}

#[test]
fn a_cluster_of_known_size_must_end_in_the_file() {
    let head = element(id::EBML, &element(0x4282, b"webm"));
    let segment = open(id::SEGMENT, &[element(id::TRACKS, &h264(&[])), clusters()].concat());
    let whole = index(&[head.clone(), segment.clone()].concat()).unwrap();
    assert!(!whole.is_truncated());
    // Between two blocks of the last cluster but one.
    let last_cluster = cluster(150, &[element(id::SIMPLE_BLOCK, &block(1, -10, 0x01))]).len();
    let group = 9 + 23 + 10;
    let cut = segment.len() - last_cluster - group;
    assert_eq!(segment[cut], id::BLOCK_GROUP as u8);
    let found = index(&[&head, &segment[..cut]].concat()).unwrap();
    assert_eq!((found.packets().len(), found.is_truncated()), (1, true));
    // All clusters are complete.
    let found = index(&[&head, &segment[..segment.len() - last_cluster]].concat()).unwrap();
    assert_eq!((found.packets().len(), found.is_truncated()), (2, false));
}

#[test]
fn tracks_may_follow_the_clusters() {
    let file = file_of(&[clusters(), element(id::TRACKS, &h264(&[]))]);
    assert_eq!(packets(&index(&file).unwrap()), PACKETS);
}

#[test]
fn the_first_enabled_video_track_is_chosen() {
    let tracks = |tracks: &[Vec<u8>]| index(&file(tracks.concat()));
    let audio = track(2, 2, "A_OPUS", &[]);
    let disabled = track(2, 1, "V_VP9", &[number(id::FLAG_ENABLED, 0)]);
    let index = tracks(&[audio.clone(), disabled.clone(), h264(&[])]).unwrap();
    assert_eq!(index.stream().codec, "h264");
    assert_eq!(tracks(&[disabled]).unwrap().stream().codec, "vp9");
    assert_eq!(kind(tracks(&[audio])), ErrorKind::Corrupt);
}

#[test]
fn stripped_headers_are_restored() {
    let compression =
        [number(id::COMPRESSION_ALGORITHM, 3), element(id::COMPRESSION_SETTINGS, &[1, 2, 3])];
    let compression = element(id::COMPRESSION, &compression.concat());
    let encoding = element(id::CONTENT_ENCODING, &compression);
    let index = index(&file(h264(&[element(id::CONTENT_ENCODINGS, &encoding)]))).unwrap();
    let bytes = index.packet_bytes().unwrap();
    for packet in index.packets() {
        let start = packet.offset as usize;
        let packet = &bytes[start..start + packet.bytes as usize];
        assert_eq!(packet, [1, 2, 3, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    }
}

#[test]
fn compression_encryption_and_lacing_are_unsupported() {
    let zlib = element(id::COMPRESSION, &number(id::COMPRESSION_ALGORITHM, 0));
    for encoding in [zlib, number(id::ENCODING_TYPE, 1)] {
        let encoding = element(id::CONTENT_ENCODING, &encoding);
        let track = h264(&[element(id::CONTENT_ENCODINGS, &encoding)]);
        assert_eq!(kind(index(&file(track))), ErrorKind::Unsupported);
    }
    let laced = cluster(0, &[element(id::SIMPLE_BLOCK, &block(1, 0, 0x82))]);
    let file = file_of(&[element(id::TRACKS, &h264(&[])), laced]);
    assert_eq!(kind(index(&file)), ErrorKind::Unsupported);
}

#[test]
fn codecs_have_the_names_of_ffmpeg() {
    let codec = |codec: &str, private: &[u8]| {
        let track = track(1, 1, codec, &[element(id::CODEC_PRIVATE, private)]);
        let stream = index(&file(track)).unwrap().stream().clone();
        (stream.codec, stream.setup)
    };
    assert_eq!(codec("V_MPEGH/ISO/HEVC", &[]).0, "hevc");
    assert_eq!(codec("V_MPEG4/ISO/ASP", &[]).0, "mpeg4");
    assert_eq!(codec("V_Some\0", &[]).0, "v_some");
    assert_eq!(
        codec("V_QUICKTIME", b"\0\0\0\x56rle "),
        ("qtrle".to_owned(), b"\0\0\0\x56rle ".to_vec())
    );
    let mut header = [0; 42];
    header[16..20].copy_from_slice(b"XVID");
    header[40] = 9;
    assert_eq!(codec("V_MS/VFW/FOURCC", &header), ("mpeg4".to_owned(), vec![9, 0]));
}

#[test]
fn the_track_names_colours() {
    let color = |elements: &[(u32, u32)]| {
        let colour: Vec<_> = elements.iter().map(|&(id, value)| number(id, value)).collect();
        let video = element(id::VIDEO, &element(id::COLOUR, &colour.concat()));
        let fields = [
            number(id::TRACK_NUMBER, 1),
            number(id::TRACK_TYPE, 1),
            element(id::CODEC_ID, b"V_VP9"),
            video,
        ];
        index(&file(element(id::TRACK_ENTRY, &fields.concat()))).unwrap().stream().color
    };
    let siting = [(id::CHROMA_SITING_HORIZONTAL, 1), (id::CHROMA_SITING_VERTICAL, 2)];
    let numbers = [
        (id::PRIMARIES, 9),
        (id::TRANSFER_CHARACTERISTICS, 18),
        (id::MATRIX_COEFFICIENTS, 10),
        (id::RANGE, 2),
    ];
    let named = [&numbers, &siting[..]].concat();
    let expected = VideoColor {
        primaries: Some(9),
        transfer: Some(18),
        matrix: Some(10),
        is_full_range: Some(true),
        siting: Some(ChromaSiting { across: ChromaPosition::First, down: ChromaPosition::Middle }),
    };
    assert_eq!(color(&named), expected);
    assert!(expected.is_hdr());
    assert_eq!(color(&[(id::RANGE, 1)]).is_full_range, Some(false));
    let unspecified = [(id::MATRIX_COEFFICIENTS, 2), (id::RANGE, 0), siting[0]];
    assert_eq!(color(&unspecified), VideoColor::default());
}

#[test]
fn the_projection_has_the_orientation() {
    for (roll, expected) in [
        (90.0_f32, Orientation::Rotated270),
        (-90.0, Orientation::Rotated90),
        (180.0, Orientation::Rotated180),
        (30.0, Orientation::Upright),
    ] {
        let roll = element(id::POSE_ROLL, &roll.to_be_bytes());
        let video = element(id::VIDEO, &element(id::PROJECTION, &roll));
        let fields = [
            number(id::TRACK_NUMBER, 1),
            number(id::TRACK_TYPE, 1),
            element(id::CODEC_ID, b"V_VP9"),
            video,
        ];
        let track = element(id::TRACK_ENTRY, &fields.concat());
        assert_eq!(index(&file(track)).unwrap().stream().orientation, expected);
    }
}

#[test]
fn a_truncated_file_has_its_complete_blocks() {
    let file = file(h264(&[]));
    let counts: Vec<_> = (60..=file.len())
        .map(|size| match index(&file[..size]) {
            Ok(index) => {
                assert_eq!(index.is_truncated(), size < file.len());
                index.packets().len()
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Truncated, "{size} bytes: {error}");
                0
            }
        })
        .collect();
    assert!(counts.is_sorted());
    assert_eq!(counts.last(), Some(&3));
}

#[test]
fn damaged_elements_are_corrupt() {
    let tracks = element(id::TRACKS, &h264(&[]));
    let damaged = file_of(&[tracks.clone(), cluster(0, &[vec![0; 20]])]);
    assert_eq!(kind(index(&damaged)), ErrorKind::Corrupt);
    let short = file_of(&[tracks, cluster(0, &[element(id::SIMPLE_BLOCK, &[0x81, 0])])]);
    assert_eq!(kind(index(&short)), ErrorKind::Corrupt);
    let error = index(&file(h264(&[]))[..31]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
}

#[test]
fn packets_are_limited() {
    let limits = VideoLimits::default().max_packets(2);
    let error = MatroskaContainer.index(&&file(h264(&[]))[..], &limits).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

/// A file that counts the bytes that are read.
struct Counted<'a> {
    file: &'a [u8],
    bytes: std::cell::Cell<u64>,
}

impl MediaSource for Counted<'_> {
    fn size(&self) -> u64 {
        self.file.len() as u64
    }

    fn read<'a>(
        &'a self,
        range: std::ops::Range<u64>,
        memory: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        self.bytes.set(self.bytes.get() + range.end - range.start);
        self.file.read(range, memory)
    }
}

#[test]
fn large_blocks_are_skipped() {
    let large = [block(1, 0, 0x80), vec![0; 1 << 20]].concat();
    let cluster =
        cluster(0, &[element(id::SIMPLE_BLOCK, &large), element(id::SIMPLE_BLOCK, &large)]);
    let file = file_of(&[element(id::TRACKS, &h264(&[])), cluster]);
    let file = Counted { file: &file, bytes: std::cell::Cell::new(0) };
    let index = MatroskaContainer.index(&file, &VideoLimits::default()).unwrap();
    assert_eq!(index.packets().len(), 2);
    assert!(file.bytes.get() <= 2 * WINDOW, "{} bytes read", file.bytes.get());
}
