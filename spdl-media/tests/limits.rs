//! Limits: decompression bombs are rejected quickly and with little memory.
//!
//! A separate test program, because its global allocator counts.

// promise of this file: R3
#![cfg(all(
    feature = "jpeg",
    feature = "png",
    feature = "webp",
    feature = "gif",
    feature = "bmp",
    feature = "tiff"
))]

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::{Duration, Instant};

    use spdl_core::{ErrorKind, Result};
    use spdl_media::image::{DecodeRequest, PixelsMut};
    use spdl_media::{CodecRegistry, Decoder, Limits, OnTruncated, Rect, Size};

    /// The memory limit of a decode.
    const MAX_BYTES: u64 = 16 << 20;
    /// The maximum that the allocator may count.
    const PEAK: u64 = MAX_BYTES + MAX_BYTES / 20;
    const SIDE: u32 = 100_000;
    const MILLION: u32 = 1_000_000;

    fn common(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
        std::fs::read(format!("{folder}/{name}")).unwrap()
    }

    fn deflated(bytes: usize) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![0; bytes]).unwrap();
        encoder.finish().unwrap()
    }

    fn chunk(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let mut checksum = flate2::Crc::new();
        checksum.update(kind);
        checksum.update(content);
        let length = (content.len() as u32).to_be_bytes();
        [&length, &kind[..], content, &checksum.sum().to_be_bytes()].concat()
    }

    /// A square PNG. `kind` has the bit depth, colour type and interlace method.
    fn png(
        side: u32,
        kind: [u8; 3],
        before: &[Vec<u8>],
        data: &[u8],
        after: &[Vec<u8>],
    ) -> Vec<u8> {
        let sides = [side.to_be_bytes(), side.to_be_bytes()].concat();
        let header = [&sides[..], &[kind[0], kind[1], 0, 0, kind[2]]].concat();
        [
            b"\x89PNG\r\n\x1a\n".to_vec(),
            chunk(b"IHDR", &header),
            before.concat(),
            chunk(b"IDAT", data),
            after.concat(),
            chunk(b"IEND", &[]),
        ]
        .concat()
    }

    const RGB: [u8; 3] = [8, 2, 0];

    /// Compressed rows of 8 × 8 black pixels.
    fn small_data() -> Vec<u8> {
        deflated(8 * (8 * 3 + 1))
    }

    fn tiff(entries: &[(u16, u16, u32, u32)], rest: &[u8]) -> Vec<u8> {
        let mut file = b"II*\0\x08\0\0\0".to_vec();
        file.extend((entries.len() as u16).to_le_bytes());
        for &(tag, kind, count, value) in entries {
            file.extend(tag.to_le_bytes());
            file.extend(kind.to_le_bytes());
            file.extend(count.to_le_bytes());
            file.extend(value.to_le_bytes());
        }
        file.extend([0; 4]);
        file.extend(rest);
        file
    }

    /// Small files that claim or contain very large images. Every request must fail.
    fn bombs() -> Vec<(&'static str, Vec<u8>)> {
        let mut all = vec![
            ("png", png(SIDE, RGB, &[], &small_data(), &[])),
            ("png, 1 bit", png(20_000, [1, 0, 0], &[], &small_data(), &[])),
            ("png, interlaced, 16 bits", png(SIDE, [16, 6, 1], &[], &small_data(), &[])),
            // RGB fits the limit, RGBA does not.
            ("png, interlaced, with alpha", {
                // Keeps the compression ratio below the limit.
                let text = chunk(b"tEXt", &[b'a'; 4_000]);
                png(2_200, [8, 6, 1], &[text], &deflated(200_000), &[])
            }),
            ("apng of a million frames", {
                let frames = [MILLION.to_be_bytes(), [0; 4]].concat();
                png(8, RGB, &[chunk(b"acTL", &frames)], &small_data(), &[])
            }),
            ("gif of a million frames", {
                let mut file = b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xFF\xFF\xFF".to_vec();
                for _ in 0..MILLION {
                    file.extend(b"\x2C\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0");
                }
                file.push(0x3B);
                file
            }),
            ("webp of a million frames", {
                let mut file = b"WEBPVP8X\x0A\0\0\0\x02\0\0\0\x07\0\0\x07\0\0".to_vec();
                file.extend(b"ANIM\x06\0\0\0\0\0\0\0\0\0");
                for _ in 0..MILLION {
                    file.extend(b"ANMF\x18\0\0\0");
                    file.extend([0; 24]);
                }
                [b"RIFF".to_vec(), (file.len() as u32).to_le_bytes().to_vec(), file].concat()
            }),
            ("webp, lossless", {
                // 14 bits of width − 1, 14 bits of height − 1.
                let sides = (16_000_u32 | 16_000 << 14).to_le_bytes();
                let content = [&[0x2F][..], &sides, &[0; 11]].concat();
                let chunk = [b"WEBPVP8L\x10\0\0\0".to_vec(), content].concat();
                [b"RIFF".to_vec(), (chunk.len() as u32).to_le_bytes().to_vec(), chunk].concat()
            }),
            ("tiff of one huge tile", {
                let tags = [
                    (256, 4, 1, SIDE),
                    (257, 4, 1, SIDE),
                    (258, 3, 1, 8),
                    (259, 3, 1, 1),
                    (262, 3, 1, 1),
                    (277, 3, 1, 1),
                    (322, 4, 1, SIDE),
                    (323, 4, 1, SIDE),
                    (324, 4, 1, 8),
                    (325, 4, 1, u32::MAX),
                ];
                tiff(&tags, &[0; 64])
            }),
            ("bmp", {
                let mut file = common("rgb.bmp");
                file[18..26].copy_from_slice(&[SIDE.to_le_bytes(), SIDE.to_le_bytes()].concat());
                file
            }),
            ("gif of one huge frame", {
                let mut file = common("palette.gif");
                file[6..10].copy_from_slice(&[0xFF; 4]);
                file
            }),
            ("jpeg", {
                let mut file = common("420.jpg");
                let frame = file.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
                file[frame + 5..frame + 9].fill(0xFF);
                file
            }),
        ];
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/data");
        if cfg!(feature = "exr") {
            let mut file = std::fs::read(format!("{folder}/rgb.exr")).unwrap();
            // Two inclusive corners: x, y, x, y.
            for name in [&b"dataWindow\0box2i\0"[..], b"displayWindow\0box2i\0"] {
                let at = file.windows(name.len()).position(|part| part == name).unwrap();
                let corner = at + name.len() + 4 + 8;
                let last = (SIDE - 1).to_le_bytes();
                file[corner..corner + 8].copy_from_slice(&[last, last].concat());
            }
            all.push(("exr", file));
        }
        if cfg!(feature = "jxl") {
            // From the least significant bit: size not a multiple of 8; 30 bits of height − 1;
            // aspect ratio 1:1; default metadata.
            let bits = 3_u64 << 1 | ((1 << 30) - 1) << 3 | 1 << 33 | 1 << 36;
            all.push(("jxl", [&[0xFF, 0x0A][..], &bits.to_le_bytes(), &[0; 64]].concat()));
        }
        if cfg!(feature = "more-formats") {
            let sides = [SIDE.to_be_bytes(), SIDE.to_be_bytes()].concat();
            // The crate reports more than 400 megapixels as corrupt.
            let qoi = [19_000_u32.to_be_bytes(), 19_000_u32.to_be_bytes()].concat();
            let png = png(SIDE, RGB, &[], &small_data(), &[]);
            let length = (png.len() as u32).to_le_bytes();
            let entry = [&[0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 24, 0][..], &length, &[22, 0, 0, 0]];
            let mut tga = vec![0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            tga.extend([0xFF, 0xFF, 0xFF, 0xFF, 24, 0, 1, 2, 3]);
            let mut dds = std::fs::read(format!("{folder}/rgb.dds")).unwrap();
            dds[12..20].copy_from_slice(&[SIDE.to_le_bytes(), SIDE.to_le_bytes()].concat());
            all.extend([
                ("ico", [&entry.concat(), &png[..]].concat()),
                ("tga", tga),
                ("dds", dds),
                ("qoi", [b"qoif".to_vec(), qoi, vec![3, 0], vec![0xFD; 99]].concat()),
                ("farbfeld", [b"farbfeld".to_vec(), sides.clone(), vec![0; 99]].concat()),
                ("pnm", b"P6\n100000 100000\n255\n\0\0\0".to_vec()),
                ("hdr", b"#?RADIANCE\n\n-Y 100000 +X 100000\n\x02\x02\x02\x02".to_vec()),
            ]);
        }
        all
    }

    /// Small images with large metadata or large claimed sizes. The decode may succeed or fail, but
    /// with little memory.
    fn small_images_with_large_data() -> Vec<(&'static str, Vec<u8>)> {
        let packed = deflated(100 << 20);
        assert!(packed.len() < 200_000);
        let text = |kind: &[u8; 4], head: &[u8]| chunk(kind, &[head, &packed].concat());
        let mut all = Vec::new();
        for (name, extra) in [
            ("png with zTXt", text(b"zTXt", b"Comment\0\0")),
            ("png with iTXt", text(b"iTXt", b"Comment\0\x01\0\0\0")),
            ("png with iCCP", text(b"iCCP", b"Profile\0\0")),
            ("png with tEXt", chunk(b"tEXt", &vec![b'a'; 40 << 20])),
            ("png with eXIf", chunk(b"eXIf", &vec![b'a'; 40 << 20])),
        ] {
            all.push((name, png(8, RGB, std::slice::from_ref(&extra), &small_data(), &[])));
            all.push((name, png(8, RGB, &[], &small_data(), &[extra])));
        }
        // Image data after the last row.
        all.push(("png with excess data", png(8, RGB, &[], &packed, &[])));
        // Deflate strips that inflate to more than the image.
        let tags = |rows| {
            [
                (256, 4, 1, 64),
                (257, 4, 1, 64),
                (258, 3, 1, 8),
                (259, 3, 1, 8),
                (262, 3, 1, 1),
                (273, 4, 1, 122),
                (277, 3, 1, 1),
                (278, 4, 1, rows),
                (279, 4, 1, 150_000),
            ]
        };
        all.push(("tiff with a strip of excess data", tiff(&tags(64), &packed)));
        all.push(("tiff with 2³² rows per strip", tiff(&tags(u32::MAX), &packed)));
        all.push(("tiff with a huge tile", {
            let tags = [
                (256, 4, 1, 64),
                (257, 4, 1, 64),
                (258, 3, 1, 8),
                (259, 3, 1, 8),
                (262, 3, 1, 1),
                (277, 3, 1, 1),
                (322, 4, 1, SIDE - SIDE % 16),
                (323, 4, 1, SIDE - SIDE % 16),
                (324, 4, 1, 134),
                (325, 4, 1, 150_000),
            ];
            tiff(&tags, &packed)
        }));
        all.push(("tiff whose directory claims 2³² values", {
            let tags = [
                (256, 4, 1, 64),
                (257, 4, 1, 64),
                (258, 3, 1, 8),
                (259, 3, 1, 1),
                (262, 3, 1, 1),
                (273, 4, u32::MAX, 8),
                (277, 3, 1, 1),
                (278, 4, 1, 1),
                (279, 4, u32::MAX, 8),
            ];
            tiff(&tags, &[0; 64])
        }));
        all
    }

    fn decoder(limits: &Limits) -> Decoder {
        Decoder::new(&CodecRegistry::with_defaults(), limits)
    }

    /// Decodes into memory of the caller.
    fn decode(decoder: &mut Decoder, file: &[u8], out: &mut [u8], size: Size) -> Result<()> {
        let request =
            DecodeRequest::full().region(Rect::full(size)).on_truncated(OnTruncated::Partial);
        decoder.decode_into(file, &request, PixelsMut::new(out, size)?).map(|_| ())
    }

    #[test]
    fn decompression_bombs_fail_quickly_with_little_memory() {
        let limits = Limits::default().max_bytes(MAX_BYTES);
        for (name, file) in bombs() {
            let mut times = [Duration::MAX; 5];
            for time in &mut times {
                let mut decoder = decoder(&limits);
                let started = Instant::now();
                let used = allocation_counter::measure(|| {
                    // One of both fails. `decode` may be the first call on a file.
                    let mut pixel = [0; 3];
                    let inspected = decoder.inspect(&file).map(|_| ());
                    let decoded = decode(&mut decoder, &file, &mut pixel, Size::new(1, 1));
                    let error = inspected.and(decoded).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{name}: {error}");
                });
                assert!(used.bytes_max <= PEAK, "{name}: {} bytes", used.bytes_max);
                *time = started.elapsed();
            }
            times.sort();
            assert!(times[2] < Duration::from_millis(20), "{name}: {:?} for two errors", times[2]);
        }
    }

    #[test]
    fn large_metadata_takes_little_memory() {
        let limits = Limits::default().max_bytes(MAX_BYTES);
        let mut decoded = 0;
        for (name, file) in small_images_with_large_data() {
            let mut decoder = decoder(&limits);
            let mut pixels = vec![0; 64 * 64 * 3];
            let used = allocation_counter::measure(|| {
                let Ok(info) = decoder.inspect(&file) else { return };
                let out = &mut pixels[..(info.size.pixels() * 3) as usize];
                match decode(&mut decoder, &file, out, info.size) {
                    Ok(()) => decoded += 1,
                    Err(error) => {
                        use ErrorKind::*;
                        let kinds = [LimitExceeded, Corrupt, Truncated, Unsupported];
                        assert!(kinds.contains(&error.kind()), "{name}: {error}");
                    }
                }
            });
            assert!(used.bytes_max <= PEAK, "{name}: {} bytes", used.bytes_max);
        }
        // Large text and profiles do not fail an image.
        assert!(decoded >= 8, "{decoded}");
    }

    /// Pseudorandom bytes.
    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..bytes).map(|_| next()).collect()
    }

    /// Packs numbers of the given bit lengths into bytes.
    fn pack(numbers: impl IntoIterator<Item = (u32, u32)>, lowest_first: bool) -> Vec<u8> {
        let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u64, 0);
        for (number, length) in numbers {
            bits = match lowest_first {
                true => bits | u64::from(number) << count,
                false => bits << length | u64::from(number),
            };
            count += length;
            while count >= 8 {
                count -= 8;
                if lowest_first {
                    bytes.push(bits as u8);
                    bits >>= 8;
                } else {
                    bytes.push((bits >> count) as u8);
                    bits &= (1 << count) - 1;
                }
            }
        }
        bytes.push(if lowest_first { bits as u8 } else { (bits << (8 - count)) as u8 });
        bytes
    }

    /// A grey progressive JPEG without AC coefficients.
    fn progressive(side: u16) -> Vec<u8> {
        let segment = |marker: u8, content: &[u8]| {
            let length = (content.len() as u16 + 2).to_be_bytes();
            [&[0xFF, marker][..], &length, content].concat()
        };
        let table = |slot: u8, counts: [u8; 2], values: &[u8]| {
            segment(0xC4, &[&[slot][..], &counts, &[0; 14], values].concat())
        };
        let blocks = usize::from(side).div_ceil(8).pow(2);
        let sides = [side.to_be_bytes(), side.to_be_bytes()].concat();
        [
            vec![0xFF, 0xD8],
            segment(0xDB, &[0].into_iter().chain([1; 64]).collect::<Vec<_>>()),
            segment(0xC2, &[&[8][..], &sides, &[1, 1, 0x11, 0]].concat()),
            // One code each: DC difference 0, and end of block.
            table(0, [1, 0], &[0]),
            table(0x10, [1, 0], &[0]),
            segment(0xDA, &[1, 1, 0, 0, 0, 0]),
            pack(vec![(0, 1); blocks], false),
            segment(0xDA, &[1, 1, 0, 1, 63, 0]),
            pack(vec![(0, 1); blocks], false),
            vec![0xFF, 0xD9],
        ]
        .concat()
    }

    fn valid_tiff(side: u32, channels: u32, rows: u32, deflated: bool) -> Vec<u8> {
        let pixels = noise((side * side * channels) as usize);
        let (start, mut strips) = (8, Vec::new());
        for rows in pixels.chunks((side * channels * rows) as usize) {
            let mut encoder =
                flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(rows).unwrap();
            strips.push(if deflated { encoder.finish().unwrap() } else { rows.to_vec() });
        }
        let data = strips.concat();
        let starts = start + data.len() as u32;
        let lengths = starts + 4 * strips.len() as u32;
        let directory = lengths + 4 * strips.len() as u32;
        let mut file = [&b"II*\0"[..], &directory.to_le_bytes(), &data].concat();
        let mut at = start;
        for strip in &strips {
            file.extend(at.to_le_bytes());
            at += strip.len() as u32;
        }
        strips.iter().for_each(|strip| file.extend((strip.len() as u32).to_le_bytes()));
        let count = strips.len() as u32;
        let places = if count > 1 { [starts, lengths] } else { [start, data.len() as u32] };
        let entries = [
            (256, 4, 1, side),
            (257, 4, 1, side),
            (258, 3, 1, 8),
            (259, 3, 1, if deflated { 8 } else { 1 }),
            (262, 3, 1, if channels == 3 { 2 } else { 1 }),
            (273, 4, count, places[0]),
            (277, 3, 1, channels),
            (278, 4, 1, rows),
            (279, 4, count, places[1]),
        ];
        file.extend(tiff(&entries, &[])[8..].to_vec());
        file
    }

    /// Valid square images, each of which needs another kind of memory.
    fn valid_files(side: u32) -> Vec<(&'static str, Vec<u8>)> {
        let plain_png = {
            let row = side as usize * 3 + 1;
            let mut rows = noise(row * side as usize);
            rows.chunks_mut(row).for_each(|row| row[0] = 0);
            let mut encoder =
                flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&rows).unwrap();
            png(side, RGB, &[], &encoder.finish().unwrap(), &[])
        };
        let sides = [side.to_le_bytes(), side.to_le_bytes()].concat();
        let gif = {
            let short = [&sides[..2], &sides[4..6]].concat();
            // Literal codes. Clear codes keep their length at 9 bits.
            let codes = (0..side * side).flat_map(|at| {
                let clear = (at % 250 == 0).then_some((256, 9));
                clear.into_iter().chain([(at * 7 % 256, 9)])
            });
            let data = pack(codes, true);
            let blocks = data.chunks(255).flat_map(|part| [&[part.len() as u8][..], part].concat());
            let mut file = [&b"GIF89a"[..], &short, &[0x70, 0, 0]].concat();
            file.extend([&[0x2C, 0, 0, 0, 0][..], &short, &[0, 8]].concat());
            file.extend(blocks);
            file.extend(b"\0;");
            file
        };
        let bmp = {
            let runs = (0..side * side).map(|at| [1, at as u8]);
            let ends = side as usize;
            let mut data = Vec::new();
            for row in runs.collect::<Vec<_>>().chunks(ends) {
                data.extend(row.as_flattened());
                data.extend([0, 0]);
            }
            let mut file = [&b"BM\0\0\0\0\0\0\0\0"[..], &54_u32.to_le_bytes()].concat();
            file.extend([&40_u32.to_le_bytes()[..], &sides, &[1, 0, 8, 0, 1, 0, 0, 0]].concat());
            file.extend([0; 20]);
            let start = (file.len() as u32 + 1024).to_le_bytes();
            file[10..14].copy_from_slice(&start);
            file.extend([9; 1024]);
            file.extend(data);
            file
        };
        let mut all = vec![
            ("png", plain_png),
            ("png, interlaced", small_png(side)),
            ("gif", gif),
            ("bmp, run-length-coded", bmp),
            ("tiff of one strip", valid_tiff(side, 3, side, false)),
            ("tiff of many strips", valid_tiff(side, 3, 16, true)),
            ("tiff, grey", valid_tiff(side, 1, side, true)),
            ("jpeg", progressive(side as u16)),
        ];
        if cfg!(feature = "encode") {
            all.push(("webp", webp(side)));
        }
        all
    }

    #[cfg(feature = "encode")]
    fn webp(side: u32) -> Vec<u8> {
        use spdl_media::encode::{ImageEncoder, WebpEncoder};
        let pixels = noise((side * side * 3) as usize);
        WebpEncoder::new().encode(&pixels, Size::new(side, side)).unwrap()
    }

    #[cfg(not(feature = "encode"))]
    fn webp(_: u32) -> Vec<u8> {
        Vec::new()
    }

    #[cfg(feature = "testing")]
    #[test]
    fn decoders_keep_to_the_memory_limit() {
        let registry = CodecRegistry::with_defaults();
        for (name, file) in valid_files(1_000) {
            println!("{name}");
            let codec = registry.find(&file).unwrap();
            spdl_media::testing::memory_contract(codec.as_ref(), &[&file], |run| {
                allocation_counter::measure(run).bytes_max
            });
        }
    }

    #[test]
    fn a_rotated_image_needs_two_buffers() {
        let file = common("orientation-5.tiff");
        let size = decoder(&Limits::default()).inspect(&file).unwrap().size;
        let bytes = size.pixels() * 3;
        let refused = Limits::default().max_bytes(2 * bytes - 1);
        let error = decoder(&refused).decode_rgb(&file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert!(decoder(&Limits::default().max_bytes(2 * bytes + 8_000)).decode_rgb(&file).is_ok());
    }

    #[test]
    fn a_decoder_releases_memory_after_a_large_image() {
        let (small, large) = (small_png(64), small_png(3_500));
        let mut decoder = decoder(&Limits::default());
        // The caller owns the picture.
        let mut decode = |file: &[u8]| {
            let mut picture = spdl_media::image::Picture::new();
            decoder.decode_planes(file, &DecodeRequest::full(), &mut picture).unwrap();
        };
        decode(&small);
        let used = allocation_counter::measure(|| {
            // Decoded to RGBA in passes, then converted to RGB.
            decode(&large);
            decode(&small);
        });
        assert!(used.bytes_max > 3_500 * 3_500 * 7, "{} bytes at the peak", used.bytes_max);
        assert!(used.bytes_current < 100_000, "{} bytes are kept", used.bytes_current);
    }

    /// A small file of an interlaced RGBA image.
    fn small_png(side: u32) -> Vec<u8> {
        let (side_bytes, passes) = (side as usize * 4, side as usize * 16);
        let text = chunk(b"tEXt", &[b'a'; 4_000]);
        png(side, [8, 6, 1], &[text], &deflated(side_bytes * side as usize + passes), &[])
    }

    #[test]
    fn the_frame_limit_applies_to_animations() {
        let limits = |frames| Limits::default().max_frames(frames);
        for name in ["animated.gif", "animated.webp"] {
            let file = common(name);
            assert!(decoder(&limits(2)).decode_rgb(&file).is_ok(), "{name}");
            let error = decoder(&limits(1)).decode_rgb(&file).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{name}: {error}");
        }
    }

    #[test]
    fn the_compression_ratio_is_limited() {
        // 600 × 600 × 3 bytes from about 1,100: ratio 980.
        let rows = deflated(600 * (600 * 3 + 1));
        let file = png(600, RGB, &[], &rows, &[]);
        let ratio = 600 * 600 * 3 / file.len() as u64;
        assert!((500..1100).contains(&ratio), "{ratio}");
        let limits = |ratio| Limits::default().max_ratio(ratio);
        assert!(decoder(&limits(ratio + 1)).decode_rgb(&file).is_ok());
        let mut strict = decoder(&limits(ratio));
        let error = strict.inspect(&file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        let mut out = vec![0; 600 * 600 * 3];
        let error = decode(&mut strict, &file, &mut out, Size::new(600, 600)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        // The limit applies to every codec.
        let jpeg = common("444.jpg");
        let mut roomy = vec![0; 600 * 600 * 3];
        let error = decode(&mut decoder(&limits(1)), &jpeg, &mut roomy, Size::new(600, 600));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::LimitExceeded);
        // The ratio of an image of up to 1 MiB is not checked.
        let rows = deflated(500 * (500 * 3 + 1));
        assert!(decoder(&limits(1)).decode_rgb(&png(500, RGB, &[], &rows, &[])).is_ok());
    }

    #[cfg(feature = "more-formats")]
    #[test]
    fn an_image_inside_an_icon_has_depth_two() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/data");
        let file = std::fs::read(format!("{folder}/png.ico")).unwrap();
        assert!(decoder(&Limits::default().max_depth(2)).decode_rgb(&file).is_ok());
        let error = decoder(&Limits::default().max_depth(1)).decode_rgb(&file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }

    #[cfg(all(feature = "turbojpeg", feature = "zune-jpeg"))]
    #[test]
    fn other_jpeg_codecs_reject_huge_sizes() {
        use spdl_media::formats::{TurboJpegCodec, ZuneJpegCodec};
        use spdl_media::image::ImageCodec;
        for name in ["420.jpg", "420-progressive.jpg"] {
            let mut file = common(name);
            let frame =
                file.windows(2).position(|pair| pair == [0xFF, 0xC0] || pair == [0xFF, 0xC2]);
            let sides = frame.unwrap() + 5;
            file[sides..sides + 4].fill(0xFF);
            let codecs: [&dyn ImageCodec; 2] = [&TurboJpegCodec, &ZuneJpegCodec];
            for codec in codecs {
                let mut decoder = codec.decoder(&Limits::default()).unwrap();
                let error = decoder.inspect(&file).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
                let mut pixel = [0; 3];
                let out = PixelsMut::new(&mut pixel, Size::new(1, 1)).unwrap();
                let error = decoder.decode_into(&file, &DecodeRequest::full(), out).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
            }
        }
    }
}
