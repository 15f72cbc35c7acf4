//! Rare variants of common formats, and files that lack something other than pixels.
//!
//! `make_variants.py` makes the files and the expected pixels.

use std::io::{Read, Write};

use spdl_core::ErrorKind;
use spdl_media::image::{DecodeRequest, PixelsMut};
use spdl_media::{CodecRegistry, Decoder, Image, Limits, OnTruncated, Rect, Size, decode_rgb};

use crate::files::{common, corpora, names, own};

const FOLDER: &str = "tests/formats/variants";

fn variant(name: &str) -> Vec<u8> {
    std::fs::read(own(FOLDER).join(name)).unwrap()
}

fn expected(name: &str) -> Image {
    let packed = variant(&format!("{name}.rgb"));
    let mut content = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut content).unwrap();
    let side = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().unwrap());
    Image { size: Size::new(side(0), side(4)), pixels: content[8..].to_vec() }
}

/// CRC-32 of the pixels.
fn checksum(image: &Image) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(&image.pixels);
    crc.sum()
}

fn kind_of(encoded: &[u8]) -> Option<ErrorKind> {
    decode_rgb(encoded).err().map(|error| error.kind())
}

/// Progressive files with an EOI marker after some scans lack low bits and coefficients, which
/// libjpeg-turbo estimates from neighbouring blocks.
// promise: R23
#[test]
fn incomplete_progressive_jpegs_have_the_pixels_of_libjpeg_turbo() {
    let names = names(FOLDER);
    let incomplete = |name: &&String| name.starts_with("incomplete-") && name.ends_with(".jpg");
    let mut complete = 0;
    for name in names.iter().filter(incomplete) {
        let (file, expected) = (variant(name), expected(name));
        let image = decode_rgb(&file).unwrap();
        assert!(image == expected, "{name}: other pixels");
        // Blocks outside a region contribute to the estimates.
        let size = image.size;
        let region = Rect {
            left: size.width / 2,
            top: size.height / 2,
            width: size.width / 3,
            height: size.height / 3,
        };
        let mut pixels = vec![0; region.size().pixels() as usize * 3];
        let out = PixelsMut::new(&mut pixels, region.size()).unwrap();
        let request = DecodeRequest::full().region(region);
        Decoder::new(&CodecRegistry::with_defaults(), &Limits::default())
            .decode_into(&file, &request, out)
            .unwrap();
        for row in 0..region.height {
            let start = ((region.top + row) * size.width + region.left) as usize * 3;
            let bytes = region.width as usize * 3;
            assert!(
                pixels[row as usize * bytes..][..bytes] == image.pixels[start..][..bytes],
                "{name}: row {row} of the region differs"
            );
        }
        complete += 1;
    }
    assert!(complete >= 20, "{complete}");
}

// promise: IMG2, R23
#[test]
fn rare_variants_have_the_pixels_of_independent_decoders() {
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    let mut faults = Vec::new();
    let mut compared = 0;
    for name in names(FOLDER).iter().filter(|name| !name.ends_with(".rgb")) {
        match decoder.decode_rgb(&variant(name)) {
            Ok(image) if image == expected(name) => compared += 1,
            Ok(_) => faults.push(format!("{name}: other pixels")),
            Err(error) => faults.push(format!("{name}: {error}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(compared > 120, "{compared}");
}

#[test]
fn truncated_arithmetic_coded_jpegs_are_errors_or_give_complete_rows() {
    for name in ["arithmetic-grey.jpg", "arithmetic-progressive.jpg", "arithmetic-restarts.jpg"] {
        let (file, whole) = (variant(name), expected(name));
        let data = file.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap() + 14;
        let mut errors = 0;
        let mut rows = Vec::new();
        for end in data..file.len() {
            match decode_rgb(&file[..end]) {
                Ok(image) => assert!(image == whole, "{name}, truncated to {end}: other pixels"),
                Err(error) => {
                    assert_eq!(
                        error.kind(),
                        ErrorKind::Truncated,
                        "{name}, truncated to {end}: {error}"
                    );
                    errors += 1;
                }
            }
            let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
            let mut pixels = vec![0; whole.pixels.len()];
            let out = PixelsMut::new(&mut pixels, whole.size).unwrap();
            let request = DecodeRequest::full().on_truncated(OnTruncated::Partial);
            if let Ok(decoded) = decoder.decode_into(&file[..end], &request, out) {
                let valid = decoded.rows_valid as usize * 3 * whole.size.width as usize;
                assert!(pixels[..valid] == whole.pixels[..valid], "{name}, truncated to {end}");
                rows.push(decoded.rows_valid);
            }
        }
        assert!(errors > (file.len() - data) * 9 / 10, "{name}: {errors} errors");
        assert!(rows.iter().any(|rows| (1..whole.size.height).contains(rows)), "{name}: {rows:?}");
    }
}

#[test]
fn invalid_arithmetic_coded_data_is_corrupt() {
    let file = variant("arithmetic-sharp.jpg");
    let data = file.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap() + 14;
    // Nearly all data are valid. With ones (0xFF with a stuffed zero) a DC difference never ends.
    let ones = [&file[..data], &b"\xFF\0".repeat(100), b"\xFF\xD9"].concat();
    assert_eq!(kind_of(&ones), Some(ErrorKind::Corrupt));
    let mut file = variant("arithmetic-restarts.jpg");
    let marker = file.windows(2).position(|pair| pair == [0xFF, 0xD1]).unwrap();
    file[marker + 1] = 0xD5;
    assert_eq!(kind_of(&file), Some(ErrorKind::Corrupt));
}

#[test]
fn dac_segments_set_arithmetic_conditioning() {
    // No available encoder writes DAC segments. An added segment changes the pixels. The values are
    // CRC-32 of the pixels by Pillow 13.0.0 with libjpeg-turbo 3.2.0.
    for (name, conditioning, expected) in [
        ("arithmetic-grey.jpg", &[(0x00, 0x10), (0x10, 5)][..], 0xd4d0_351f),
        ("arithmetic-grey.jpg", &[(0x00, 0x42)], 0x475c_af05),
        ("arithmetic-grey.jpg", &[(0x10, 1)], 0x5bcf_c27e),
        ("arithmetic-grey.jpg", &[(0x10, 3)], 0xd504_3479),
        ("arithmetic-grey.jpg", &[(0x10, 40)], 0x4510_b85c),
        ("arithmetic-progressive.jpg", &[(0x00, 0x31)], 0x3233_31f7),
    ] {
        let mut segment = vec![0xFF, 0xCC, 0, 2 + 2 * conditioning.len() as u8];
        segment.extend(conditioning.iter().flat_map(|&(kind, value)| [kind, value]));
        let file = variant(name);
        let scan = file.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap();
        let image = decode_rgb(&[&file[..scan], &segment, &file[scan..]].concat()).unwrap();
        assert_eq!(checksum(&image), expected, "{name} {conditioning:?}");
    }
}

#[test]
fn coefficients_without_data_are_limited() {
    let file = std::fs::read(own("tests/formats/refused/arithmetic-many-steps.jpg")).unwrap();
    assert_eq!(kind_of(&file), Some(ErrorKind::LimitExceeded));
}

#[test]
fn an_invalid_huffman_table_is_an_error_only_if_used() {
    // Three codes of one bit: only two exist.
    let table = |slot: u8| {
        let mut segment = b"\xFF\xC4\0\x16".to_vec();
        segment.push(slot);
        segment.extend([3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
        segment
    };
    let with = |file: &[u8], slot| {
        let scan = file.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap();
        [&file[..scan], &table(slot), &file[scan..]].concat()
    };
    let file = common("420.jpg");
    let image = decode_rgb(&file).unwrap();
    assert!(decode_rgb(&with(&file, 0x13)).unwrap() == image);
    assert_eq!(kind_of(&with(&file, 0x11)), Some(ErrorKind::Corrupt));
    let file = variant("arithmetic.jpg");
    assert!(decode_rgb(&with(&file, 0x11)).unwrap() == expected("arithmetic.jpg"));
}

// promise: R1
#[test]
fn a_png_palette_of_an_invalid_length_is_corrupt() {
    let file = common("palette.png");
    let at = file.windows(4).position(|part| part == b"PLTE").unwrap();
    let length = u32::from_be_bytes(file[at - 4..at].try_into().unwrap()) as usize;
    let with = |palette: &[u8]| {
        let mut checksum = flate2::Crc::new();
        checksum.update(b"PLTE");
        checksum.update(palette);
        let head = [&file[..at - 4], &(palette.len() as u32).to_be_bytes(), b"PLTE"].concat();
        let end = &file[at + 4 + length + 4..];
        kind_of(&[&head, palette, &checksum.sum().to_be_bytes(), end].concat())
    };
    let palette = &file[at + 4..at + 4 + length];
    assert_eq!(with(palette), None);
    for length in [1, 2, 4, 7, palette.len() - 1, 769, 770, 771, 774] {
        let other: Vec<u8> = palette.iter().cycle().copied().take(length).collect();
        assert_eq!(with(&other), Some(ErrorKind::Corrupt), "palette of {length} bytes");
    }
}

#[test]
fn an_invalid_gif_frame_is_corrupt() {
    let file = variant("noise-behind.gif");
    let start = 13 + (3 << ((file[10] & 7) + 1));
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = file.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        kind_of(&file)
    };
    assert_eq!(changed(start, &[0x2C]), None);
    assert_eq!(changed(start + 5, &[0, 0]), Some(ErrorKind::Corrupt), "no columns");
    assert_eq!(changed(start + 10, &[9]), Some(ErrorKind::Corrupt), "pixels of 9 bits");
    // The first code after a clear code must be a literal.
    let bits = u32::from(file[start + 10]) + 1;
    let clear = 1u32 << (bits - 1);
    let codes = (clear | (clear + 2) << bits).to_le_bytes();
    assert_eq!(changed(start + 12, &codes[..3]), Some(ErrorKind::Corrupt), "an undefined code");
    // An early end code.
    let codes = (clear | (clear + 1) << bits).to_le_bytes();
    assert_eq!(changed(start + 12, &codes[..3]), Some(ErrorKind::Truncated));
}

#[test]
fn truncated_bitmaps_and_invalid_masks_are_errors() {
    let file = variant("runs8.bmp");
    let rows = file.len() * 4 / 5;
    assert_eq!(kind_of(&file[..rows]), Some(ErrorKind::Truncated));
    let start = u32::from_le_bytes(file[10..14].try_into().unwrap()) as usize;
    let mut ended = file.clone();
    ended[start..start + 2].copy_from_slice(&[0, 1]);
    assert_eq!(kind_of(&ended), Some(ErrorKind::Truncated), "end of bitmap at the start");
    let masked = |masks: [u32; 3]| {
        let mut file = variant("565.bmp");
        file[54..66].copy_from_slice(&masks.map(u32::to_le_bytes).concat());
        kind_of(&file)
    };
    assert_eq!(masked([0xF800, 0x7E0, 0x1F]), None);
    assert_eq!(masked([0xF800, 0xFE0, 0x1F]), Some(ErrorKind::Unsupported), "overlapping masks");
    assert_eq!(masked([0xF800, 0x7E0, 0]), Some(ErrorKind::Unsupported), "empty blue mask");
    assert_eq!(masked([0xF800, 0x5E0, 0x1F]), Some(ErrorKind::Unsupported), "mask with a gap");
    assert_eq!(
        masked([0x1_F800, 0x7E0, 0x1F]),
        Some(ErrorKind::Unsupported),
        "mask exceeds 16 bits"
    );
}

#[test]
fn damaged_runs_of_a_bitmap_have_the_pixels_of_pillow() {
    // Top-down rows of 4 × 3 palette indices. The green of each colour is its index.
    let decode = |runs: &[u8], gap: usize| {
        let mut file = b"BM\0\0\0\0\0\0\0\0".to_vec();
        file.extend((54 + 8 * 4 + gap as u32).to_le_bytes());
        for field in [40, 4, -3, 1 | 8 << 16, 1, 0, 0, 0, 8, 0] {
            file.extend(i32::to_le_bytes(field));
        }
        file.extend((0..8).flat_map(|index| [9, index, 7, 0]));
        file.resize(file.len() + gap, 0);
        file.extend(runs);
        let greens =
            |image: Image| image.pixels.chunks(3).map(|pixel| pixel[1]).collect::<Vec<_>>();
        decode_rgb(&file).map(greens).map_err(|error| error.kind())
    };
    let rows = |rows: [[u8; 4]; 3]| Ok(rows.concat());
    for (runs, gap, expected) in [
        // Encoded runs stop at the end of the row.
        (&[6, 1, 0, 0, 4, 2, 3, 5, 0, 0, 9, 3][..], 0, rows([[1; 4], [2; 4], [3; 4]])),
        // Absolute runs do not; then encoded runs are ignored until the end-of-line marker.
        (
            &[0, 6, 1, 2, 3, 4, 5, 6, 4, 7, 0, 0, 4, 2, 0, 1],
            0,
            rows([[1, 2, 3, 4], [5, 6, 0, 0], [2; 4]]),
        ),
        (
            &[4, 1, 0, 0, 4, 2, 0, 0, 0, 6, 1, 2, 3, 4, 5, 6, 0, 1],
            0,
            rows([[1; 4], [2; 4], [1, 2, 3, 4]]),
        ),
        // Deltas to the end of a row, beyond it, and from it.
        (&[2, 1, 0, 2, 2, 0, 0, 0, 4, 2, 0, 0, 4, 3], 0, rows([[1, 1, 0, 0], [2; 4], [3; 4]])),
        (&[0, 2, 5, 0, 1, 1, 0, 0, 4, 2, 0, 1], 0, rows([[0; 4], [0, 1, 0, 0], [2; 4]])),
        (&[4, 1, 0, 2, 0, 1, 0, 0, 4, 3], 0, rows([[1; 4], [0; 4], [3; 4]])),
        (&[4, 1, 0, 2, 0, 1, 4, 3, 0, 1], 0, rows([[1; 4], [0; 4], [3; 4]])),
        // An end-of-line marker in column 0 is ignored, or skips a row if data are missing.
        (&[4, 1, 0, 0, 0, 0, 4, 2, 0, 0, 0, 1], 0, rows([[1; 4], [0; 4], [2; 4]])),
        (&[4, 1, 0, 0, 0, 0, 4, 2, 0, 0, 4, 3, 0, 1], 0, rows([[1; 4], [2; 4], [3; 4]])),
        (&[2, 1, 0, 2, 2, 0, 0, 0, 0, 0, 4, 3, 0, 1], 0, rows([[1, 1, 0, 0], [0; 4], [3; 4]])),
        // Absolute runs are padded to an even offset in the file.
        (&[0, 3, 1, 2, 3, 9, 0, 0, 4, 2, 0, 0, 4, 3], 0, rows([[1, 2, 3, 0], [2; 4], [3; 4]])),
        (&[0, 3, 1, 2, 3, 0, 0, 4, 2, 0, 0, 4, 3], 1, rows([[1, 2, 3, 0], [2; 4], [3; 4]])),
    ] {
        assert_eq!(decode(runs, gap), expected, "{runs:?}");
    }
}

/// The offset of the value field of a TIFF tag.
fn tag_value(file: &[u8], number: u16) -> usize {
    let directory = u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize;
    (0..usize::from(file[directory]))
        .map(|entry| directory + 2 + 12 * entry)
        .find(|&at| file[at..at + 2] == number.to_le_bytes())
        .map(|at| at + 8)
        .unwrap()
}

#[test]
fn a_jpeg_in_a_tiff_must_have_the_size_of_its_strip() {
    for name in ["jpeg-420.tiff", "jpeg-rgb.tiff", "jpeg-grey.tiff", "jpeg-tiles.tiff"] {
        let file = variant(name);
        let frame = file.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
        for height in [8u16, 1000] {
            let mut file = file.clone();
            file[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
            assert_eq!(kind_of(&file), Some(ErrorKind::Corrupt), "{name}: {height} rows of 16");
        }
        let tight = Limits::default().max_depth(1);
        let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &tight);
        assert_eq!(decoder.decode_rgb(&file).unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
    // A strip that is much longer than its pixels need.
    let mut file = variant("jpeg-420.tiff");
    let lengths = tag_value(&file, 279);
    let at = u32::from_le_bytes(file[lengths..lengths + 4].try_into().unwrap()) as usize;
    file[at..at + 4].copy_from_slice(&40_000_u32.to_le_bytes());
    file.extend([0; 40_000]);
    assert_eq!(kind_of(&file), Some(ErrorKind::Corrupt));
    // The padding of tiles counts: 6 tiles of 16 × 16 for 37 × 29 pixels.
    let file = variant("jpeg-tiles.tiff");
    let decode = |pixels| {
        let limits = Limits::default().max_pixels(pixels);
        Decoder::new(&CodecRegistry::with_defaults(), &limits).decode_rgb(&file)
    };
    assert!(decode(6 * 256).is_ok());
    assert_eq!(decode(6 * 256 - 1).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn a_corrupt_jpeg_in_a_tiff_is_an_error_or_gives_complete_rows() {
    let names = [
        "jpeg-420.tiff",
        "jpeg-rgb.tiff",
        "jpeg-grey.tiff",
        "jpeg-white-is-zero.tiff",
        "jpeg-cmyk.tiff",
    ];
    for name in names {
        let (file, whole) = (variant(name), expected(name));
        // The lengths of the two strips: 16-bit values in the tag itself, or 32-bit values elsewhere.
        let lengths = tag_value(&file, 279);
        let short = file[lengths - 6] == 3;
        let mut cut = file.clone();
        if short {
            let length = u16::from_le_bytes(file[lengths + 2..lengths + 4].try_into().unwrap());
            cut[lengths + 2..lengths + 4].copy_from_slice(&(length - length / 8).to_le_bytes());
        } else {
            let at = u32::from_le_bytes(file[lengths..lengths + 4].try_into().unwrap()) as usize;
            let length = u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap());
            cut[at + 4..at + 8].copy_from_slice(&(length - length / 8).to_le_bytes());
        }
        assert_eq!(kind_of(&cut), Some(ErrorKind::Truncated), "{name}");
        let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
        let mut pixels = vec![0xA5; whole.pixels.len()];
        let request = DecodeRequest::full().on_truncated(OnTruncated::Partial);
        let out = PixelsMut::new(&mut pixels, whole.size).unwrap();
        let decoded = decoder.decode_into(&cut, &request, out).unwrap();
        assert!((16..29).contains(&decoded.rows_valid), "{name}: {decoded:?}");
        let valid = decoded.rows_valid as usize * 3 * 37;
        assert!(pixels[..valid] == whole.pixels[..valid], "{name}: other pixels");
        assert!(pixels[valid..].iter().all(|&byte| byte == 0), "{name}: not black");
        // A region above the truncation is complete, but an error without `Partial`.
        let region = Rect { left: 3, top: 2, width: 7, height: 5 };
        let mut pixels = [0; 7 * 5 * 3];
        let request = request.region(region);
        let out = PixelsMut::new(&mut pixels, region.size()).unwrap();
        assert_eq!(decoder.decode_into(&cut, &request, out).unwrap().rows_valid, 5);
        let request = DecodeRequest::full().region(region);
        let out = PixelsMut::new(&mut pixels, region.size()).unwrap();
        let error = decoder.decode_into(&cut, &request, out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated, "{name}");
        assert!(error.offset().is_some(), "{name}: {error}");

        // A marker inside the scan data.
        let scan = file.windows(2).rposition(|pair| pair == [0xFF, 0xDA]).unwrap() + 30;
        let mut damaged = file.clone();
        damaged[scan..scan + 2].copy_from_slice(&[0xFF, 0xC0]);
        let kind = kind_of(&damaged);
        assert!(
            matches!(kind, Some(ErrorKind::Corrupt | ErrorKind::Truncated)),
            "{name}: {kind:?}"
        );
    }
}

// promise: IMG3
#[test]
fn an_old_style_jpeg_with_separate_tables_in_a_tiff_is_unsupported() {
    let mut file = variant("old-jpeg.tiff");
    assert_eq!(kind_of(&file), None);
    // Without JPEGInterchangeFormat (513), which becomes JPEGProc (512).
    let start = tag_value(&file, 513) - 8;
    file[start..start + 2].copy_from_slice(&512_u16.to_le_bytes());
    let error = decode_rgb(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for words in ["unsupported", "old-style JPEG", "compression (6)", "separate tables"] {
        assert!(error.message().contains(words), "{error}");
    }
    // A third-party file.
    if let Some(corpora) = corpora() {
        let file = corpora.join("image-rs-tiff/files/tests/libtiffpic/zackthecat.tif");
        let error = decode_rgb(&std::fs::read(file).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("separate tables"), "{error}");
    }
}

// promise: R23
#[test]
fn an_old_style_jpeg_with_subsampled_chroma_in_a_tiff_is_unsupported() {
    let mut file = variant("old-jpeg.tiff");
    assert_eq!(kind_of(&file), None);
    let frame = file.windows(2).position(|it| it == [0xFF, 0xC0]).unwrap();
    // The sampling factors of luma: 2×2 instead of 1×1.
    assert_eq!(std::mem::replace(&mut file[frame + 11], 0x22), 0x11);
    let error = decode_rgb(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("old-style JPEG with subsampled chroma"), "{error}");
}

#[test]
fn an_ink_set_other_than_cmyk_is_unsupported() {
    let mut file = variant("jpeg-cmyk.tiff");
    // PlanarConfiguration (284) becomes InkSet (332), where 1 is CMYK.
    let set = tag_value(&file, 284);
    file[set - 8..set - 6].copy_from_slice(&332_u16.to_le_bytes());
    assert_eq!(kind_of(&file), None);
    file[set] = 2;
    assert_eq!(kind_of(&file), Some(ErrorKind::Unsupported));
}

#[test]
fn uncommon_ycbcr_coefficients_of_a_jpeg_in_a_tiff_are_unsupported() {
    // Pillow ignores YCbCrCoefficients; libtiff's viewer does not.
    for (name, kind) in [("jpeg-420.tiff", None), ("luma-709.tiff", Some(ErrorKind::Unsupported))] {
        let mut file = variant(name);
        if kind.is_some() {
            let compression = tag_value(&file, 259);
            file[compression] = 7;
        }
        assert_eq!(kind_of(&file), kind, "{name}");
    }
    let mut file = variant("luma-709.tiff");
    let at = tag_value(&file, 529);
    let at = u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    // The green coefficient of luma is 0.
    file[at + 8..at + 12].fill(0);
    assert_eq!(kind_of(&file), Some(ErrorKind::Corrupt));
    file[at + 12..at + 16].fill(0);
    assert_eq!(kind_of(&file), Some(ErrorKind::Corrupt));
}

#[test]
fn uncompressed_ycbcr_in_a_tiff_becomes_rgb() {
    // Uncompressed YCbCr by Pillow's `convert("YCbCr")`.
    let mut file = variant("luma.tiff");
    let strips = tag_value(&file, 279);
    let at = u32::from_le_bytes(file[strips..strips + 4].try_into().unwrap()) as usize;
    let starts = tag_value(&file, 273);
    let starts = u32::from_le_bytes(file[starts..starts + 4].try_into().unwrap()) as usize;
    for strip in 0..2 {
        let value =
            |at: usize, file: &[u8]| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let (start, length) = (value(starts + 4 * strip, &file), value(at + 4 * strip, &file));
        let mut rows = Vec::new();
        let packed = file[start as usize..(start + length) as usize].to_vec();
        flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut rows).unwrap();
        let place = file.len() as u32;
        file[starts + 4 * strip..][..4].copy_from_slice(&place.to_le_bytes());
        file[at + 4 * strip..][..4].copy_from_slice(&(rows.len() as u32).to_le_bytes());
        file.extend(rows);
    }
    let compression = tag_value(&file, 259);
    file[compression] = 1;
    // CRC-32 of the pixels by Pillow 13.0.0, which converts them with other rounding than libtiff.
    assert_eq!(checksum(&decode_rgb(&file).unwrap()), 0x72aa_7310);

    let mut file = variant("luma-709.tiff");
    let compression = tag_value(&file, 259);
    file[compression] = 1;
    assert_eq!(kind_of(&file), Some(ErrorKind::Unsupported), "coefficients that Pillow ignores");
}

#[test]
fn invalid_ycbcr_coefficients_have_the_pixels_of_libtiff() {
    // Changed bytes in fractions of the tags YCbCrCoefficients and ReferenceBlackWhite. The values
    // are CRC-32 of the pixels by Pillow 13.0.0 with libtiff 4.7.2.
    for (name, at, value, expected) in [
        ("luma-709.tiff", 2960, 64, 0x5edf_10a7),
        ("luma-709.tiff", 2963, 40, 0x81a2_b7fe),
        ("luma-709.tiff", 2966, 0, 0xe37a_ed9a),
        ("luma-709.tiff", 2971, 103, 0x0fe8_8202),
        ("luma-video.tiff", 2996, 2, 0x73d0_ee10),
    ] {
        let mut file = variant(name);
        file[at] = value;
        assert_eq!(checksum(&decode_rgb(&file).unwrap()), expected, "{name} {at} {value}");
    }
    // ReferenceBlackWhite with the type FLOAT: the values are almost 0.
    let mut file = variant("luma-video.tiff");
    let at = tag_value(&file, 532) - 6;
    file[at] = 11;
    assert_eq!(kind_of(&file), Some(ErrorKind::Corrupt));
}

#[test]
fn a_tiff_tag_with_too_many_values_is_corrupt() {
    // libtiff ignores the tags, so the pixels are inverted, or the coding is one-dimensional.
    for (name, tag) in [("group3.tiff", 262), ("group3-2d.tiff", 292)] {
        let mut file = variant(name);
        let count = tag_value(&file, tag) - 4;
        file[count] = 2;
        assert_eq!(kind_of(&file), Some(ErrorKind::Corrupt), "{name}");
    }
    // The two values of YCbCrSubSampling (530) become Orientation. Pillow uses the first one.
    let mut file = variant("jpeg-420.tiff");
    let tag = tag_value(&file, 530) - 8;
    file[tag..tag + 2].copy_from_slice(&274_u16.to_le_bytes());
    assert_eq!(kind_of(&file), Some(ErrorKind::Corrupt), "Orientation");
}

#[test]
fn an_uncompressed_tiff_with_more_offsets_than_strips_is_corrupt() {
    // Without PlanarConfiguration (284), two planes become one strip with two offsets. Pillow reads
    // the last strip, libtiff the first.
    let mut file = variant("palette-planar-extra.tiff");
    let tag = tag_value(&file, 284) - 8;
    file[tag + 1] = 0x80;
    let error = decode_rgb(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.message().contains("2 offsets"), "{error}");
}

#[test]
fn tiff_strips_with_a_tag_of_tiles_are_corrupt() {
    // StripByteCounts becomes TileWidth, and PlanarConfiguration becomes TileByteCounts.
    for (tag, tile_tag) in [(279, 322_u16), (284, 325)] {
        let mut file = variant("group3.tiff");
        let start = tag_value(&file, tag) - 8;
        file[start..start + 2].copy_from_slice(&tile_tag.to_le_bytes());
        assert_eq!(kind_of(&file), Some(ErrorKind::Corrupt), "{tile_tag}");
    }
}

#[test]
fn a_tiff_tag_whose_type_libtiff_ignores_is_corrupt() {
    // UNDEFINED, LONG8 with a value of more than 32 bits, and IFD8. Pillow reads some of these.
    for kind in [7, 16, 18] {
        let mut file = variant("group3-2d.tiff");
        let start = tag_value(&file, 292) - 6;
        file[start] = kind;
        assert_eq!(kind_of(&file), Some(ErrorKind::Corrupt), "type {kind}");
    }
}

#[test]
fn unsigned_32_bit_samples_of_a_tiff_have_the_pixels_of_pillow() {
    // The bits of floats, of which the negative ones are 2³¹ or more. Without SampleFormat (339),
    // samples are unsigned. The value is CRC-32 of the pixels by Pillow 13.0.0.
    let file = variant("float-little.tiff");
    let at = tag_value(&file, 339);
    for (at, value) in [(at, 1), (at - 7, 0x80)] {
        let mut file = file.clone();
        file[at] = value;
        assert_eq!(checksum(&decode_rgb(&file).unwrap()), 0x6b16_3f55, "{at} {value}");
    }
}

#[test]
fn a_jpeg_with_alpha_in_a_tiff_is_unsupported() {
    for (name, samples) in [("jpeg-grey.tiff", 2), ("jpeg-rgb.tiff", 4)] {
        let mut file = variant(name);
        let count = tag_value(&file, 277);
        file[count] = samples;
        let error = decode_rgb(&file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
        assert!(error.message().contains("JPEG with alpha"), "{name}: {error}");
    }
}

/// A PNG with so many rows that the reader does not buffer the last ones early.
fn tall_png() -> Vec<u8> {
    let rows = (0..9_000 * (37 * 3 + 1)).map(|at: u32| match at % (37 * 3 + 1) {
        0 => 0,
        _ => (at.wrapping_mul(at) % 251) as u8,
    });
    let level = flate2::Compression::fast();
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
    encoder.write_all(&rows.collect::<Vec<_>>()).unwrap();
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let header = b"\0\0\0\x25\0\0\x23\x28\x08\x02\0\0\0";
    let data = encoder.finish().unwrap();
    for (kind, content) in [(b"IHDR", &header[..]), (b"IDAT", &data), (b"IEND", &[])] {
        let mut checksum = flate2::Crc::new();
        checksum.update(kind);
        checksum.update(content);
        file.extend((content.len() as u32).to_be_bytes());
        file.extend([&kind[..], content, &checksum.sum().to_be_bytes()].concat());
    }
    file
}

// promise: IMG4
#[test]
fn corruption_below_a_region_of_a_png_or_tiff_is_found_only_by_an_exact_decode() {
    let limits = Limits::default();
    let region = Rect { left: 1, top: 2, width: 20, height: 3 };
    for (name, mut file) in [
        ("png", tall_png()),
        ("deflate-strips.tiff", crate::files::data("deflate-strips.tiff")),
        ("jpeg-420.tiff", variant("jpeg-420.tiff")),
    ] {
        let mut decoder =
            Decoder::new(&CodecRegistry::with_defaults(), &limits.clone().strict(false));
        let mut decode = |file: &[u8], request: DecodeRequest| {
            let mut pixels = vec![0; 20 * 3 * 3];
            let out = PixelsMut::new(&mut pixels, region.size()).unwrap();
            decoder.decode_into(file, &request.region(region), out).map(|_| pixels)
        };
        let expected = decode(&file, DecodeRequest::full()).unwrap();
        let damage = match name {
            "png" => file.len() / 2,
            "jpeg-420.tiff" => file.windows(2).rposition(|pair| pair == [0xFF, 0xDA]).unwrap() + 20,
            _ => {
                let starts = tag_value(&file, 273);
                let count = u32::from_le_bytes(file[starts - 4..starts].try_into().unwrap());
                let starts = u32::from_le_bytes(file[starts..starts + 4].try_into().unwrap());
                let last = (starts + 4 * (count - 1)) as usize;
                u32::from_le_bytes(file[last..last + 4].try_into().unwrap()) as usize
            }
        };
        file[damage..damage + 12].fill(0xFF);
        assert!(decode(&file, DecodeRequest::full()).unwrap() == expected, "{name}: other pixels");
        let error = decode(&file, DecodeRequest::full().exact(true)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
    }
}

#[test]
fn errors_of_truncated_files_have_an_offset() {
    let files = ["rgb.png", "interlaced.png", "palette.gif", "rgb.bmp", "rgb.tiff", "lossy.webp"];
    let files = files.into_iter().chain(["lossless.webp", "deflate.tiff", "palette.bmp"]);
    for name in files {
        let file = common(name);
        let mut truncated = 0;
        for end in (8..file.len()).step_by(7) {
            let Err(error) = decode_rgb(&file[..end]) else { continue };
            if error.kind() == ErrorKind::Truncated {
                truncated += 1;
                assert!(
                    error.offset().is_some_and(|at| at <= end as u64),
                    "{name}, {end}: {error}"
                );
            }
        }
        assert!(truncated > 3, "{name}: {truncated}");
    }
}

#[test]
fn inspect_agrees_with_decode() {
    let folders = ["tests/data", "tests/formats/data", FOLDER];
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    for (folder, name) in folders.iter().flat_map(|&it| names(it).into_iter().map(move |n| (it, n)))
    {
        let file = std::fs::read(own(folder).join(&name)).unwrap();
        let Ok(image) = decoder.decode_rgb(&file) else { continue };
        let info = decoder.inspect(&file).unwrap();
        assert_eq!(info.upright_size(), image.size, "{name}");
        assert_eq!(
            info.orientation.exif() > 1,
            name.starts_with("orientation-") && !name.contains("-1."),
            "{name}"
        );
    }
}

#[test]
fn truncated_and_invalid_ccitt_data_are_errors() {
    for name in ["runs.tiff", "group3.tiff", "group3-2d.tiff", "group4.tiff"] {
        let mut file = variant(name);
        let (start, length) = (tag_value(&file, 273), tag_value(&file, 279));
        let start = usize::from(u16::from_le_bytes([file[start], file[start + 1]]));
        let count = usize::from(u16::from_le_bytes([file[length], file[length + 1]]));
        let mut cut = file.clone();
        cut[length..length + 2].copy_from_slice(&(count as u16 / 2).to_le_bytes());
        assert_eq!(kind_of(&cut), Some(ErrorKind::Truncated), "{name}");
        // Only EOL begins with so many zeros.
        file[start + count / 3..start + count / 3 + 12].fill(0);
        let kind = kind_of(&file);
        assert!(
            matches!(kind, Some(ErrorKind::Corrupt | ErrorKind::Truncated)),
            "{name}: {kind:?}"
        );
    }
}
