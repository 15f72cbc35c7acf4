//! JPEG: stored planes, regions, reduced sizes, and truncated files.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use spdl_core::{ErrorKind, Result};
use spdl_media::image::{ColorModel, DecodeRequest, Decoded, Picture, PixelsMut, Plane};
use spdl_media::{CodecRegistry, Decoder, Limits, OnTruncated, Rect, Size};

use crate::files::{self, data};

/// Files of all chroma subsamplings, their size, and CRC-32 of the RGB pixels and of the plane Y by
/// Pillow 13.0.0 with libjpeg-turbo 3.2.0 (Y by `draft("L", size)`). simplejpeg 1.9.0 made `440.jpg`
/// and `411.jpg` with quality 90 from the scene of `make_golden.py`, 67 × 45 pixels.
const FILES: [(&str, Size, u32, u32); 20] = [
    ("420.jpg", Size { width: 37, height: 29 }, 0x9347_c064, 0xe868_ae6d),
    ("420-narrow.jpg", Size { width: 4, height: 3 }, 0x823e_4e40, 0x9b26_8630),
    ("420-tall.jpg", Size { width: 29, height: 37 }, 0xa785_9d91, 0x13e3_6da5),
    ("420-tiny.jpg", Size { width: 2, height: 2 }, 0xbdd9_4b12, 0x0504_2b2f),
    ("420-one-unit.jpg", Size { width: 16, height: 16 }, 0x96ac_983c, 0x6fda_03c4),
    ("422.jpg", Size { width: 37, height: 29 }, 0xe213_b11d, 0xe868_ae6d),
    ("444.jpg", Size { width: 37, height: 29 }, 0xeee5_2ad6, 0xe868_ae6d),
    ("440.jpg", Size { width: 67, height: 45 }, 0xa998_e238, 0x26f6_0aff),
    ("411.jpg", Size { width: 67, height: 45 }, 0x4ffb_f6e4, 0x26f6_0aff),
    ("grey.jpg", Size { width: 37, height: 29 }, 0xd4d0_351f, 0xe868_ae6d),
    ("420-progressive.jpg", Size { width: 37, height: 29 }, 0x9347_c064, 0xe868_ae6d),
    ("422-progressive.jpg", Size { width: 37, height: 29 }, 0xe213_b11d, 0xe868_ae6d),
    ("444-progressive.jpg", Size { width: 37, height: 29 }, 0xeee5_2ad6, 0xe868_ae6d),
    ("grey-progressive.jpg", Size { width: 37, height: 29 }, 0xd4d0_351f, 0xe868_ae6d),
    ("restarts.jpg", Size { width: 37, height: 29 }, 0x9347_c064, 0xe868_ae6d),
    ("restarts-progressive.jpg", Size { width: 37, height: 29 }, 0x9347_c064, 0xe868_ae6d),
    ("restarts-of-rows.jpg", Size { width: 112, height: 64 }, 0xaa2c_0ead, 0x3e37_1da5),
    ("restarts-within-rows.jpg", Size { width: 112, height: 64 }, 0xaa2c_0ead, 0x3e37_1da5),
    ("coarse.jpg", Size { width: 37, height: 29 }, 0x2b89_887e, 0xced3_89e0),
    ("optimized.jpg", Size { width: 37, height: 29 }, 0x1e51_5a35, 0x8f6b_09d9),
];

/// The planes of `444.jpg`, by `draft("YCbCr", size)`.
const PLANES_OF_444: [u32; 3] = [0xe868_ae6d, 0x36e8_df8e, 0xe1bf_7270];

fn decoder() -> Decoder {
    Decoder::new(&CodecRegistry::with_defaults(), &Limits::default())
}

fn planes(encoded: &[u8], request: DecodeRequest) -> Result<(Picture, Decoded)> {
    let mut picture = Picture::new();
    let decoded = decoder().decode_planes(encoded, &request, &mut picture)?;
    Ok((picture, decoded))
}

fn pixels(encoded: &[u8], request: DecodeRequest) -> Result<(Vec<u8>, Decoded)> {
    let mut decoder = decoder();
    let region = request.region_of(decoder.inspect(encoded)?.size);
    let mut pixels = vec![77; region.size().pixels() as usize * 3];
    let out = PixelsMut::new(&mut pixels, region.size())?;
    let decoded = decoder.decode_into(encoded, &request, out)?;
    Ok((pixels, decoded))
}

fn checksum(bytes: impl IntoIterator<Item = impl AsRef<[u8]>>) -> u32 {
    let mut crc = flate2::Crc::new();
    bytes.into_iter().for_each(|part| crc.update(part.as_ref()));
    crc.sum()
}

fn rows(plane: &Plane) -> impl Iterator<Item = &[u8]> {
    (0..plane.shape().area.height).map(|row| plane.row(row))
}

// promise: IMG2
#[test]
fn pixels_and_planes_equal_libjpeg_turbo() {
    for (name, size, rgb, luma) in FILES {
        let (pixels, decoded) = pixels(&data(name), DecodeRequest::full()).unwrap();
        assert_eq!((checksum([pixels]), decoded), (rgb, Decoded::new(size)), "{name}");
        let (picture, decoded) = planes(&data(name), DecodeRequest::full()).unwrap();
        let expected = if name.starts_with("grey") { ColorModel::Grey } else { ColorModel::YCbCr };
        assert_eq!((picture.color(), picture.image()), (expected, size), "{name}");
        assert_eq!(decoded, Decoded::new(size), "{name}");
        let plane = &picture.planes()[0];
        assert_eq!((plane.shape().area, plane.shape().across), (Rect::full(size), 1), "{name}");
        assert_eq!(checksum(rows(plane)), luma, "{name}");
    }
    let (picture, _) = planes(&data("444.jpg"), DecodeRequest::full()).unwrap();
    let found: Vec<u32> = picture.planes().iter().map(|plane| checksum(rows(plane))).collect();
    assert_eq!(found, PLANES_OF_444);
}

#[test]
fn chroma_planes_have_the_stored_resolution() {
    for (name, across, down) in [
        ("444.jpg", 1, 1),
        ("422.jpg", 2, 1),
        ("440.jpg", 1, 2),
        ("420-progressive.jpg", 2, 2),
        ("411.jpg", 4, 1),
    ] {
        let (picture, _) = planes(&data(name), DecodeRequest::full()).unwrap();
        let image = picture.image();
        for plane in &picture.planes()[1..] {
            let shape = plane.shape();
            let size = Size::new(image.width.div_ceil(across), image.height.div_ceil(down));
            assert_eq!((shape.across, shape.down), (across, down), "{name}");
            assert_eq!(shape.area, Rect::full(size), "{name}");
        }
    }
}

#[test]
fn cmyk_and_rgb_files_are_decoded_to_full_size_rgb() {
    for name in ["rgb.jpg", "cmyk.jpg", "ycck.jpg", "cmyk-progressive.jpg"] {
        let region = Rect { left: 3, top: 2, width: 20, height: 11 };
        let request = DecodeRequest::full().region(region);
        let (expected, _) = pixels(&data(name), request).unwrap();
        let (picture, decoded) = planes(&data(name), request.at_least(Size::new(2, 2))).unwrap();
        assert_eq!(picture.color(), ColorModel::Rgb, "{name}");
        assert_eq!(decoded, Decoded::new(region.size()), "{name}");
        assert_eq!(picture.planes()[0].shape().area, region, "{name}");
        assert_eq!(rows(&picture.planes()[0]).collect::<Vec<_>>().concat(), expected, "{name}");
    }
}

/// Checks that `part` covers the region and equals `whole` there.
fn check_part(part: &Picture, whole: &Picture, region: Rect) -> Result<(), TestCaseError> {
    prop_assert_eq!(part.planes().len(), whole.planes().len());
    let scale = whole.planes()[0].shape().across;
    for (part, whole) in part.planes().iter().zip(whole.planes()) {
        let (shape, full) = (part.shape(), whole.shape());
        prop_assert_eq!((shape.across, shape.down), (full.across, full.down));
        // Every sample that covers a pixel of the region; for subsampled planes one more on each
        // side, if it exists.
        let needed = |start: u32, extent: u32, ratio: u32, end: u32| {
            let around = u32::from(scale == 1 && ratio > 1);
            let last = (start + extent - 1) / ratio + around;
            ((start / ratio).saturating_sub(around), last.min(end - 1))
        };
        let (left, right) = needed(region.left, region.width, shape.across, full.area.width);
        let (top, bottom) = needed(region.top, region.height, shape.down, full.area.height);
        let area = shape.area;
        prop_assert!(area.left <= left && area.left + area.width > right, "{:?}", shape);
        prop_assert!(area.top <= top && area.top + area.height > bottom, "{:?}", shape);
        // At most whole blocks more.
        prop_assert!(area.width <= right - left + 1 + 16 && area.height <= bottom - top + 1 + 16);
        for y in 0..area.height {
            let columns = area.left as usize..(area.left + area.width) as usize;
            prop_assert_eq!(part.row(y), &whole.row(area.top + y)[columns]);
        }
    }
    Ok(())
}

/// A region of an image. The corners are fractions of its size.
fn region_of(size: Size, corners: [f64; 4]) -> Rect {
    let span = |a: f64, b: f64, extent: u32| {
        let at = |share: f64| (share * f64::from(extent)) as u32;
        let (first, last) = (at(a.min(b)), at(a.max(b)));
        (first, last - first + 1)
    };
    let (left, width) = span(corners[0], corners[1], size.width);
    let (top, height) = span(corners[2], corners[3], size.height);
    Rect { left, top, width, height }
}

/// A file, its size, and its pixels.
type Photo = (Vec<u8>, Size, Vec<u8>);

/// Baseline photos, decoded once. They are large enough for regions with pixels on all sides.
fn photos() -> &'static [Photo] {
    static PHOTOS: OnceLock<Vec<Photo>> = OnceLock::new();
    PHOTOS.get_or_init(|| {
        ["astronaut.jpg", "chelsea.jpg", "coffee.jpg", "rocket.jpg"]
            .map(|name| {
                let encoded = std::fs::read(files::photos().join(name)).unwrap();
                let (pixels, decoded) = pixels(&encoded, DecodeRequest::full()).unwrap();
                (encoded, decoded.size, pixels)
            })
            .into()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // promise: IMG4
    #[test]
    fn planes_of_a_region_are_a_part_of_the_whole(
        file in 0..FILES.len(),
        corners in prop::array::uniform4(0.0..1.0),
        scale in prop::sample::select(vec![1u32, 2, 4, 8]),
        exact: bool,
    ) {
        let (name, size, ..) = FILES[file];
        let encoded = data(name);
        let region = region_of(size, corners);
        let reduced = |size: Size| Size::new(size.width.div_ceil(scale), size.height.div_ceil(scale));
        let asked = |size: Size| Size::new(size.width / scale, size.height / scale);
        let request = DecodeRequest::full().exact(exact);
        let (whole, _) = planes(&encoded, request.at_least(asked(size))).unwrap();
        let request = request.region(region).at_least(asked(region.size()));
        let (part, decoded) = planes(&encoded, request).unwrap();
        let expected = if exact { region.size() } else { reduced(region.size()) };
        // A small region may be reduced further than the whole image.
        let further = part.planes()[0].shape().across > whole.planes()[0].shape().across;
        prop_assert!(!further || decoded.size == expected);
        if !further {
            prop_assert_eq!(decoded, Decoded::new(expected));
            check_part(&part, &whole, region)?;
        }
    }

    // promise: IMG4
    #[test]
    fn pixels_of_a_region_are_a_part_of_the_whole(
        photograph in 0..4usize,
        corners in prop::array::uniform4(0.0..1.0),
        exact: bool,
    ) {
        let (encoded, size, whole) = &photos()[photograph];
        let region = region_of(*size, corners);
        let request = DecodeRequest::full().region(region).exact(exact);
        let (part, decoded) = pixels(encoded, request).unwrap();
        prop_assert_eq!(decoded, Decoded::new(region.size()));
        let row = size.width as usize * 3;
        let lines = part.chunks_exact(region.width as usize * 3);
        for (line, whole) in lines.zip(whole.chunks_exact(row).skip(region.top as usize)) {
            prop_assert!(line == &whole[region.left as usize * 3..][..line.len()]);
        }
    }

    // promise: IMG4
    #[test]
    fn planes_of_a_region_of_a_photograph_are_a_part_of_the_whole(
        photograph in 0..4usize,
        corners in prop::array::uniform4(0.0..1.0),
        scale in prop::sample::select(vec![1u32, 2, 4, 8]),
    ) {
        let (encoded, size, _) = &photos()[photograph];
        let region = region_of(*size, corners);
        prop_assume!(region.width > 8 && region.height > 8);
        let reduced = |size: Size| Size::new(size.width.div_ceil(scale), size.height.div_ceil(scale));
        let asked = |size: Size| Size::new(size.width / scale, size.height / scale);
        let request = DecodeRequest::full();
        let (whole, _) = planes(encoded, request.at_least(asked(*size))).unwrap();
        let request = request.region(region).at_least(asked(region.size()));
        let (part, decoded) = planes(encoded, request).unwrap();
        prop_assert_eq!(decoded, Decoded::new(reduced(region.size())));
        check_part(&part, &whole, region)?;
    }
}

#[test]
fn the_smallest_sufficient_scale_is_used() {
    let encoded = data("444.jpg");
    for (smallest, scale) in [
        (Size::new(37, 29), 1),
        // At half size the last column and row are only half covered.
        (Size::new(19, 14), 1),
        (Size::new(18, 15), 1),
        (Size::new(18, 14), 2),
        (Size::new(10, 7), 2),
        (Size::new(9, 7), 4),
        (Size::new(4, 3), 8),
        (Size::new(1, 1), 8),
        // Larger than the image: full size.
        (Size::new(900, 1), 1),
    ] {
        let request = DecodeRequest::full().at_least(smallest);
        let (picture, decoded) = planes(&encoded, request).unwrap();
        let size = Size::new(37u32.div_ceil(scale), 29u32.div_ceil(scale));
        assert_eq!(decoded, Decoded::new(size), "{smallest}");
        for plane in picture.planes() {
            assert_eq!(plane.shape().area, Rect::full(size), "{smallest}");
            assert_eq!((plane.shape().across, plane.shape().down), (scale, scale), "{smallest}");
        }
        let (_, exact) = planes(&encoded, request.exact(true)).unwrap();
        assert_eq!(exact, Decoded::new(Size::new(37, 29)), "{smallest}");
    }
}

#[test]
fn chroma_is_not_reduced_below_the_luma_size() {
    let request = DecodeRequest::full().at_least(Size::new(9, 7));
    for (name, expected) in [
        ("420.jpg", (4, 4)),
        ("422.jpg", (4, 2)),
        ("440.jpg", (2, 4)),
        ("411.jpg", (4, 1)),
        ("444.jpg", (4, 4)),
    ] {
        let (picture, _) = planes(&data(name), request).unwrap();
        let shape = picture.planes()[1].shape();
        assert_eq!((shape.across, shape.down), expected, "{name}");
        assert_eq!(picture.planes()[0].shape().across, 4, "{name}");
    }
}

/// The mean squared difference of a reduced plane from the means of the full-size samples, and the
/// number of compared samples. Samples at the image border are excluded.
fn difference(reduced: &Plane, whole: &Plane) -> (f64, usize) {
    let (shape, full) = (reduced.shape(), whole.shape());
    let (across, down) = ((shape.across / full.across) as usize, (shape.down / full.down) as usize);
    let (mut sum, mut count) = (0.0, 0);
    for y in 0..full.area.height as usize / down {
        for x in 0..full.area.width as usize / across {
            let square = (0..down)
                .flat_map(|dy| &whole.row((y * down + dy) as u32)[x * across..][..across])
                .map(|&sample| f64::from(sample))
                .sum::<f64>();
            let mean = square / (across * down) as f64;
            sum += (mean - f64::from(reduced.row(y as u32)[x])).powi(2);
            count += 1;
        }
    }
    (sum, count)
}

// promise: IMG5
#[test]
fn reduced_photos_are_close_to_averages() {
    const LEAST_PSNR: f64 = 40.0;
    for name in ["astronaut.jpg", "chelsea.jpg", "coffee.jpg", "rocket.jpg", "umang.jpg"] {
        let encoded = std::fs::read(files::photos().join(name)).unwrap();
        let (whole, decoded) = planes(&encoded, DecodeRequest::full()).unwrap();
        for scale in [2, 4, 8] {
            let smallest = Size::new(decoded.size.width / scale, decoded.size.height / scale);
            let (reduced, _) = planes(&encoded, DecodeRequest::full().at_least(smallest)).unwrap();
            assert_eq!(reduced.planes()[0].shape().across, scale, "{name}");
            for (number, (reduced, whole)) in
                reduced.planes().iter().zip(whole.planes()).enumerate()
            {
                let (sum, count) = difference(reduced, whole);
                let psnr = 10.0 * (255.0 * 255.0 * count as f64 / sum).log10();
                println!("{name} 1/{scale}, plane {number}: {psnr:.1} dB");
                assert!(count > 500 && psnr >= LEAST_PSNR, "{name} 1/{scale}: {psnr:.1} dB");
            }
        }
    }
}

/// A photo whose last quarter is corrupt, and the region of its first half.
fn damaged_below() -> (Vec<u8>, Rect) {
    let (encoded, size, _) = &photos()[1];
    let mut damaged = encoded.clone();
    let (start, end) = (encoded.len() * 3 / 4, encoded.len() - 2);
    // 0xFE starts no marker, and a run of ones is no Huffman code.
    damaged[start..end].fill(0xFE);
    (damaged, Rect { left: 9, top: 0, width: 100, height: size.height / 2 })
}

// promise: IMG4
#[test]
fn rows_below_a_region_are_not_read_if_the_end_marker_exists() {
    let (damaged, region) = damaged_below();
    let request = DecodeRequest::full().region(region);
    let (expected, _) = pixels(&photos()[1].0, request).unwrap();
    for (trailer, what) in [(&[][..], "nothing"), (&[0; 5000], "zeros"), (&[7; 20], "a few bytes")]
    {
        let file = [&damaged[..], trailer].concat();
        let (found, decoded) = pixels(&file, request).unwrap();
        assert_eq!(decoded, Decoded::new(region.size()), "{what} after the end marker");
        assert!(found == expected, "{what} after the end marker");
        assert!(planes(&file, request).is_ok(), "{what} after the end marker");
        for read_all in [request.exact(true), DecodeRequest::full()] {
            let error = pixels(&file, read_all).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let error = planes(&file, read_all).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }
}

// promise: IMG4
#[test]
fn restart_intervals_above_a_region_are_skipped() {
    // 7 MCUs per row; the restart interval is 7 or 5.
    for name in ["restarts-of-rows.jpg", "restarts-within-rows.jpg"] {
        let file = data(name);
        let region = Rect { left: 20, top: 3 * 16 + 2, width: 80, height: 4 };
        let request = DecodeRequest::full().region(region);
        let (expected, _) = pixels(&file, request).unwrap();
        let start = file.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap() + 14;
        let markers: Vec<usize> = (start..file.len() - 1)
            .filter(|&at| file[at] == 0xFF && (0xD0..0xD8).contains(&file[at + 1]))
            .collect();
        // A run of ones after the first marker is no Huffman code.
        let mut damaged = file.clone();
        damaged[markers[0] + 2..markers[1]].fill(0xFE);
        assert!(pixels(&damaged, request).unwrap().0 == expected, "{name}");
        assert!(planes(&damaged, request).is_ok(), "{name}");
        for read_all in [request.exact(true), DecodeRequest::full()] {
            let error = pixels(&damaged, read_all).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        }
        // Nothing is skipped if a marker is missing or has a wrong number.
        let mut renumbered = file.clone();
        renumbered[markers[2] + 1] = 0xD5;
        let mut without = file.clone();
        without.drain(markers[2]..markers[2] + 2);
        for damaged in [renumbered, without] {
            let error = pixels(&damaged, request).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        }
    }
}

#[test]
fn progressive_and_sequential_files_equal_each_other_at_one_eighth() {
    for (sequential, progressive) in [
        ("420.jpg", "420-progressive.jpg"),
        ("422.jpg", "422-progressive.jpg"),
        ("444.jpg", "444-progressive.jpg"),
        ("grey.jpg", "grey-progressive.jpg"),
    ] {
        let request = DecodeRequest::full().at_least(Size::new(4, 3));
        let (expected, _) = planes(&data(sequential), request).unwrap();
        let (found, _) = planes(&data(progressive), request).unwrap();
        assert_eq!(found.planes()[0].shape().across, 8, "{progressive}");
        for (found, expected) in found.planes().iter().zip(expected.planes()) {
            assert_eq!(found.shape(), expected.shape(), "{progressive}");
            assert!(rows(found).eq(rows(expected)), "{progressive}");
        }
    }
}

#[test]
fn one_eighth_of_a_progressive_file_needs_only_dc_coefficients() {
    let file = data("444-progressive.jpg");
    let eighth = DecodeRequest::full().at_least(Size::new(4, 3));
    // Two bytes per block suffice. A full decode needs two bytes per sample.
    let tight = Limits::default().max_bytes(37 * 29 * 3);
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &tight);
    let mut picture = Picture::new();
    assert!(decoder.decode_planes(&file, &eighth, &mut picture).is_ok());
    let error = decoder.decode_planes(&file, &eighth.exact(true), &mut picture).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    // Scans of AC coefficients are not read. The first one has one component and Ss = 1.
    let scan = file.windows(6).position(|it| it == [0xFF, 0xDA, 0, 8, 1, 1]).unwrap() + 10;
    let mut damaged = file.clone();
    damaged[scan..scan + 12].fill(0xFE);
    let (expected, _) = planes(&file, eighth).unwrap();
    let (found, _) = planes(&damaged, eighth).unwrap();
    assert!(rows(&found.planes()[0]).eq(rows(&expected.planes()[0])));
    // They are read if the end marker is missing, or for an exact decode.
    let cut = &damaged[..damaged.len() - 2];
    for (file, request) in [(&damaged[..], eighth.exact(true)), (cut, eighth)] {
        let error = planes(file, request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

/// A uniform grey progressive image with scans of `[Ss, Se, Ah, Al]`. All coefficients are zero.
fn flat_progressive(side: u16, scans: &[[u8; 4]], arithmetic: bool) -> Vec<u8> {
    let mut file = vec![0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0];
    file.extend([1; 64]);
    file.extend([0xFF, if arithmetic { 0xCA } else { 0xC2 }, 0, 11, 8]);
    file.extend([side.to_be_bytes(), side.to_be_bytes()].concat());
    file.extend([1, 1, 0x11, 0]);
    // One code `0` per table: DC difference 0, and EOB14.
    for (table, symbol) in [(0x00, 0x00), (0x10, 0xE0)] {
        file.extend([0xFF, 0xC4, 0, 20, table, 1]);
        file.extend([0; 15]);
        file.push(symbol);
    }
    let blocks = usize::from(side).div_ceil(8).pow(2);
    for &[first, last, high, low] in scans {
        file.extend([0xFF, 0xDA, 0, 8, 1, 1, 0, first, last, high << 4 | low]);
        if arithmetic {
            // Trailing zeros may be omitted: all decisions are the more probable symbol.
        } else if first == 0 {
            file.extend(vec![0; blocks.div_ceil(8)]);
        } else {
            // A code and 14 ones mean 32,767 blocks; eight of them fill 15 bytes.
            let runs = blocks.div_ceil(32_767);
            let bits: Vec<bool> = (0..runs * 15).map(|at| at % 15 > 0).collect();
            for byte in bits.chunks(8) {
                let bit = |at: usize| byte.get(at).copied().unwrap_or(false);
                let byte = (0..8).fold(0, |byte, at| byte << 1 | u8::from(bit(at)));
                file.push(byte);
                if byte == 0xFF {
                    file.push(0);
                }
            }
        }
    }
    file.extend([0xFF, 0xD9]);
    file
}

#[test]
fn scans_that_contradict_earlier_scans_are_corrupt() {
    let whole = vec![[0, 0, 0, 1], [0, 0, 1, 0], [1, 63, 0, 2], [1, 63, 2, 1], [1, 63, 1, 0]];
    for arithmetic in [false, true] {
        let kind = |scans: &[[u8; 4]]| {
            let outcome = pixels(&flat_progressive(16, scans, arithmetic), DecodeRequest::full());
            outcome.map_err(|error| (error.kind(), error.offset().is_some()))
        };
        let expected = kind(&whole).unwrap();
        // Bands may be split and may have any order.
        let parts = [[0, 0, 0, 0], [6, 63, 0, 0], [1, 1, 0, 1], [2, 5, 0, 1], [1, 5, 1, 0]];
        let parts = kind(&parts).unwrap();
        // Missing arithmetic-coded data decode to coefficients.
        assert!(arithmetic || parts.0 == expected.0);
        for wrong in [
            // A second first scan; a repeated bit; a skipped bit; a refinement without first scan.
            vec![[0, 0, 0, 0], [1, 63, 0, 0], [0, 0, 0, 0]],
            vec![[0, 0, 0, 0], [1, 63, 0, 0], [9, 9, 0, 0]],
            vec![[0, 0, 0, 0], [1, 63, 0, 1], [1, 63, 1, 0], [1, 63, 1, 0]],
            vec![[0, 0, 0, 0], [1, 63, 0, 3], [1, 63, 2, 1]],
            vec![[0, 0, 0, 0], [1, 62, 0, 1], [1, 63, 1, 0]],
            vec![[0, 0, 1, 0]],
        ] {
            assert_eq!(kind(&wrong), Err((ErrorKind::Corrupt, true)), "{arithmetic} {wrong:?}");
        }
    }
}

#[test]
fn scans_without_data_are_limited() {
    for arithmetic in [false, true] {
        let mut scans = vec![[0, 0, 0, 0]];
        scans.extend((1..64).map(|at| [at, at, 0, 1]));
        let outcome = |scans: &[[u8; 4]], side| {
            let file = flat_progressive(side, scans, arithmetic);
            pixels(&file, DecodeRequest::full()).map(|_| ()).map_err(|error| error.kind())
        };
        assert_eq!(outcome(&scans[..20], 1600), Ok(()), "{arithmetic}");
        assert_eq!(outcome(&scans, 1600), Err(ErrorKind::LimitExceeded), "{arithmetic}");
        // A small image may have as many scans.
        assert_eq!(outcome(&scans, 64), Ok(()), "{arithmetic}");
    }
}

#[cfg(feature = "turbojpeg")]
#[test]
fn scans_without_data_are_limited_in_libjpeg_turbo_too() {
    let mut registry = CodecRegistry::with_defaults();
    registry.register(spdl_media::formats::TurboJpegCodec);
    let mut decoder = Decoder::new(&registry, &Limits::default());
    let mut scans = vec![[0, 0, 0, 0]];
    scans.extend((1..64).map(|at| [at, at, 0, 1]));
    assert!(decoder.decode_rgb(&flat_progressive(1600, &scans[..20], false)).is_ok());
    assert!(decoder.decode_rgb(&flat_progressive(64, &scans, false)).is_ok());
    let error = decoder.decode_rgb(&flat_progressive(1600, &scans, false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
}

/// The CPU time of this thread, or the wall-clock time if the system does not report it.
fn cpu_time() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let reported = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = reported.and_then(|line| line.split(' ').next()?.parse().ok());
    match nanoseconds {
        Some(nanoseconds) => Duration::from_nanos(nanoseconds),
        None => START.get_or_init(Instant::now).elapsed(),
    }
}

#[test]
fn scans_without_coefficients_take_little_time() {
    // 65,536 blocks in 14 scans, of one coefficient each or of 63. Compares medians of 9 decodes.
    let median = |first: u8, last: u8| {
        let mut scans = vec![if first > 0 { [0, 0, 0, 0] } else { [1, 63, 0, 0] }];
        scans.push([first, last, 0, 13]);
        scans.extend((0..13).rev().map(|low| [first, last, low + 1, low]));
        let file = flat_progressive(2048, &scans, false);
        let mut decoder = decoder();
        let mut picture = Picture::new();
        let mut times = [(); 9].map(|()| {
            let started = cpu_time();
            decoder.decode_planes(&file, &DecodeRequest::full(), &mut picture).unwrap();
            cpu_time() - started
        });
        times.sort();
        assert!(rows(&picture.planes()[0]).flatten().all(|&sample| sample == 128));
        times[4]
    };
    let (one, many) = (median(0, 0), median(1, 63));
    println!("{one:?}, {many:?}");
    assert!(many < one * 3, "{many:?} for blocks without coefficients, {one:?} for one each");
}

// promise: IMG3
#[test]
fn unsupported_kinds_of_jpeg_are_rejected_with_the_reason() {
    let file = data("444.jpg");
    // Marker, length, precision, height, width, number of components, then three bytes for each.
    let frame = file.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    for (changes, words) in [
        (&[(1, 0xC1), (4, 12)][..], "12 bits per sample: expected 8"),
        (&[(1, 0xC2), (4, 12)], "12 bits per sample: expected 8"),
        (&[(1, 0xC3)], "lossless process"),
        (&[(1, 0xCB)], "lossless process"),
        (&[(1, 0xC5)], "hierarchical process"),
        (&[(1, 0xCF)], "hierarchical process"),
        (&[(11, 0x31), (14, 0x21)], "sampling factors that do not divide the maximum"),
    ] {
        let mut file = file.clone();
        changes.iter().for_each(|&(at, byte)| file[frame + at] = byte);
        let found = [
            decoder().inspect(&file).unwrap_err(),
            pixels(&file, DecodeRequest::full()).unwrap_err(),
            planes(&file, DecodeRequest::full()).unwrap_err(),
        ];
        for error in found {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.message().contains(words) && error.offset().is_some(), "{error}");
        }
    }
}

#[test]
fn the_first_exif_block_sets_the_orientation() {
    // As Pillow 13.0.0, which treats further blocks as a continuation of the first.
    let block = |entries: &[u8]| {
        let mut segment = b"Exif\0\0II*\0\x08\0\0\0".to_vec();
        segment.extend([entries.len() as u8, 0]);
        for &number in entries {
            segment.extend([0x12, 1, 3, 0, 1, 0, 0, 0, number, 0, 0, 0]);
        }
        [&[0xFF, 0xE1, 0, segment.len() as u8 + 2], &segment[..]].concat()
    };
    let file = data("420.jpg");
    for (blocks, expected) in [
        ([block(&[6]), block(&[3])], 6),
        ([block(&[3]), block(&[6])], 3),
        ([block(&[]), block(&[6])], 1),
        ([b"\xFF\xE1\0\x0AExif\0\0oh".to_vec(), block(&[6])], 1),
    ] {
        let encoded = [&file[..2], &blocks.concat(), &file[2..]].concat();
        for registry in registries() {
            let mut decoder = Decoder::new(&registry, &Limits::default());
            assert_eq!(decoder.inspect(&encoded).unwrap().orientation.exif(), expected);
        }
    }
}

/// One registry per JPEG codec of this build.
fn registries() -> Vec<CodecRegistry> {
    #[allow(unused_mut, reason = "without other decoders there is one")]
    let mut registries = vec![CodecRegistry::with_defaults()];
    #[cfg(feature = "turbojpeg")]
    registries.push({
        let mut registry = CodecRegistry::with_defaults();
        registry.register(spdl_media::formats::TurboJpegCodec);
        registry
    });
    #[cfg(feature = "zune-jpeg")]
    registries.push({
        let mut registry = CodecRegistry::with_defaults();
        registry.register(spdl_media::formats::ZuneJpegCodec);
        registry
    });
    registries
}

#[test]
fn planes_are_not_reduced_below_the_requested_size() {
    for (name, size, ..) in FILES {
        let (whole, _) = planes(&data(name), DecodeRequest::full()).unwrap();
        for scale in [2, 4, 8] {
            let smallest = Size::new(size.width / scale, size.height / scale);
            let (picture, _) =
                planes(&data(name), DecodeRequest::full().at_least(smallest)).unwrap();
            for (plane, whole) in picture.planes().iter().zip(whole.planes()) {
                // At most the stored number of samples.
                let (found, stored) = (plane.shape().area, whole.shape().area);
                assert!(found.width >= smallest.width.min(stored.width), "{name} 1/{scale}");
                assert!(found.height >= smallest.height.min(stored.height), "{name} 1/{scale}");
            }
        }
    }
}

#[test]
fn a_truncated_file_is_an_error_for_every_region() {
    let (encoded, size, _) = &photos()[1];
    for cut in [encoded.len() - 2000, encoded.len() * 3 / 4, encoded.len() / 2] {
        // The end marker is missing, or replaced by other bytes.
        for tail in [&[][..], &[0; 100], b"no marker"] {
            let file = [&encoded[..cut], tail].concat();
            for top in [0, size.height / 4] {
                let region = Rect { left: 0, top, width: 50, height: 30 };
                let request = DecodeRequest::full().region(region);
                for error in
                    [pixels(&file, request).unwrap_err(), planes(&file, request).unwrap_err()]
                {
                    assert!(
                        matches!(error.kind(), ErrorKind::Truncated | ErrorKind::Corrupt),
                        "{error}"
                    );
                    assert!(error.kind() == ErrorKind::Truncated || !tail.is_empty(), "{error}");
                }
            }
        }
    }
}

/// Checks a truncated file: an error, or rows that equal those of the whole file. Returns their number.
fn check_cut(name: &str, encoded: &[u8], cut: usize, region: Option<Rect>) -> u32 {
    let whole = match region {
        Some(region) => DecodeRequest::full().region(region),
        None => DecodeRequest::full(),
    };
    let request = whole.on_truncated(OnTruncated::Partial);
    let outcomes = (pixels(&encoded[..cut], request), planes(&encoded[..cut], request));
    let ((found, decoded), (picture, of_planes)) = match outcomes {
        (Ok(pixels), Ok(planes)) => (pixels, planes),
        (Err(error), Err(_)) => {
            // The first bytes alone are not recognised as JPEG.
            let kind = error.kind();
            assert!(kind == ErrorKind::Truncated || cut < 3, "{name} to {cut}: {error}");
            return 0;
        }
        (pixels, planes) => panic!("{name} to {cut}: {pixels:?}, {planes:?}"),
    };
    let (expected, _) = pixels(encoded, whole).unwrap();
    let (full, _) = planes(encoded, whole).unwrap();
    assert_eq!(decoded, of_planes, "{name} to {cut}");
    let valid = decoded.rows_valid;
    assert!(valid > 0, "{name} to {cut}");
    let end = valid as usize * decoded.size.width as usize * 3;
    assert!(found[..end] == expected[..end], "{name} to {cut}: {valid} rows");
    assert!(found[end..].iter().all(|&sample| sample == 0), "{name} to {cut}: {valid} rows");
    let top = region.map_or(0, |region| region.top);
    for (number, (plane, full)) in picture.planes().iter().zip(full.planes()).enumerate() {
        let shape = plane.shape();
        assert_eq!(shape, full.shape());
        // Including the row below, which upsampling needs.
        let needed = (top + valid + u32::from(shape.down > 1)).div_ceil(shape.down);
        let same = (needed - shape.area.top).min(shape.area.height);
        for row in 0..same {
            assert!(plane.row(row) == full.row(row), "{name} to {cut}: plane {number} row {row}");
        }
        // Valid rows extend to whole blocks.
        let black = if number == 0 { 0 } else { 128 };
        for row in same + 8..shape.area.height {
            assert!(plane.row(row).iter().all(|&sample| sample == black), "{name} to {cut}: {row}");
        }
    }
    valid
}

// promise: R2
#[test]
fn the_valid_rows_of_a_truncated_file_equal_the_whole() {
    for (name, size, ..) in FILES {
        let encoded = data(name);
        let mut most = 0;
        for cut in 0..encoded.len() {
            most = most.max(check_cut(name, &encoded, cut, None));
        }
        // All data are present if only the end marker is missing.
        assert_eq!(most, size.height, "{name}");
    }
    let counts = |name: &str| -> Vec<u32> {
        let encoded = data(name);
        let counts = (0..encoded.len()).map(|cut| check_cut(name, &encoded, cut, None));
        let mut counts: Vec<u32> = counts.collect();
        counts.dedup();
        counts
    };
    // MCU rows of 16 pixel rows, the last of which needs the next MCU row; or of 8.
    assert_eq!(counts("420.jpg"), [0, 15, 29]);
    assert_eq!(counts("444.jpg"), [0, 8, 16, 24, 29]);
    assert_eq!(counts("440.jpg"), [0, 15, 31, 45]);
    // Rows of a progressive file become final in the last scan.
    let progressive = counts("444-progressive.jpg");
    assert_eq!((progressive[0], progressive.last()), (0, Some(&29)));
    assert!(progressive.len() > 2, "{progressive:?}");
}

#[test]
fn a_region_of_a_truncated_file_may_be_complete() {
    let (encoded, size, _) = &photos()[1];
    let mut kinds = [0; 3];
    for tenth in 1..10 {
        let cut = encoded.len() * tenth / 10;
        let region = Rect { left: 5, top: size.height / 3, width: 99, height: size.height / 3 };
        match check_cut("chelsea.jpg", encoded, cut, Some(region)) {
            0 => kinds[0] += 1,
            valid if valid < region.height => kinds[1] += 1,
            _ => kinds[2] += 1,
        }
    }
    assert!(kinds.iter().all(|&count| count > 0), "{kinds:?}");
}

#[test]
fn a_reduced_row_of_a_truncated_file_is_valid_only_if_complete() {
    let (encoded, ..) = &photos()[1];
    let mut partial = 0;
    // Regions that start inside a reduced row, or at its start.
    for (scale, top) in [(2, 33), (4, 42), (8, 0), (8, 51)] {
        let region = Rect { left: 5, top, width: 96, height: 200 };
        let request = DecodeRequest::full()
            .region(region)
            .at_least(Size::new(region.width / scale, region.height / scale))
            .on_truncated(OnTruncated::Partial);
        let (whole, _) = planes(encoded, request).unwrap();
        for tenth in 1..10 {
            let cut = &encoded[..encoded.len() * tenth / 10];
            let Ok((picture, decoded)) = planes(cut, request) else { continue };
            let (luma, whole) = (&picture.planes()[0], &whole.planes()[0]);
            let shape = luma.shape();
            assert_eq!(shape.down, scale);
            let rows = shape.area.height;
            let black = |&row: &u32| luma.row(row).iter().all(|&sample| sample == 0);
            let there = (0..rows).find(black).unwrap_or(rows);
            assert!((0..there).all(|row| luma.row(row) == whole.row(row)), "1/{scale}, {tenth}");
            let pixels = (shape.area.top + there) * scale - top;
            let valid = (pixels / scale).min(decoded.size.height);
            assert_eq!(decoded.rows_valid, valid, "1/{scale} from {top}, {tenth}");
            partial += u32::from(valid < decoded.size.height);
        }
    }
    assert!(partial > 4, "{partial}");
}

#[test]
fn truncation_below_a_region_leaves_it_complete() {
    // The region ends at an MCU row, and not at a multiple of 8.
    let region = Rect { left: 0, top: 3, width: 16, height: 13 };
    let request = DecodeRequest::full().region(region).on_truncated(OnTruncated::Partial);
    let eighth = request.at_least(Size::new(1, 1));
    for name in ["444.jpg", "444-progressive.jpg", "grey.jpg", "grey-progressive.jpg"] {
        let encoded = data(name);
        let mut whole = 0;
        for cut in 0..encoded.len() {
            let Ok((_, decoded)) = pixels(&encoded[..cut], request) else { continue };
            if decoded.rows_valid == region.height {
                whole += 1;
                let (_, decoded) = planes(&encoded[..cut], eighth).unwrap();
                assert_eq!(decoded, Decoded::new(Size::new(2, 2)), "{name} to {cut}");
            }
        }
        assert!(whole > 2, "{name}: {whole}");
    }
}

#[test]
fn the_previous_image_has_no_influence_on_a_decoder() {
    // The decoder keeps tables and buffers; their old contents must have no influence.
    let mut decoder = decoder();
    let mut picture = Picture::new();
    let mut order: Vec<usize> = (0..FILES.len()).collect();
    for round in 0..4 {
        order.rotate_left(round * 5 + 1);
        for &file in &order {
            let (name, ..) = FILES[file];
            let encoded = data(name);
            let mut request = DecodeRequest::full();
            if round % 2 == 1 {
                request = request.at_least(Size::new(1 + round as u32 * 2, 1));
            }
            let fresh = planes(&encoded, request).unwrap();
            let decoded = decoder.decode_planes(&encoded, &request, &mut picture).unwrap();
            assert_eq!(decoded, fresh.1, "{name}");
            for (plane, fresh) in picture.planes().iter().zip(fresh.0.planes()) {
                assert!(rows(plane).eq(rows(fresh)), "{name}");
            }
            // An error between two images.
            let cut = &encoded[..encoded.len() * 2 / 3];
            assert!(decoder.decode_planes(cut, &request, &mut picture).is_err(), "{name}");
        }
    }
}
