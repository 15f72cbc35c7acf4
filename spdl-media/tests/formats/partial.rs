//! Truncated files: an error, or the complete rows, never other pixels.

// promise of this file: R2

use proptest::prelude::*;
use spdl_core::{ErrorKind, Result};
use spdl_media::image::{DecodeRequest, Decoded, PixelsMut};
use spdl_media::{CodecRegistry, Decoder, Limits, OnTruncated, Rect};

use crate::files::{common, data, names, own};

fn decoder() -> Decoder {
    Decoder::new(&CodecRegistry::with_defaults(), &Limits::default())
}

fn decode(
    decoder: &mut Decoder,
    file: &[u8],
    region: Rect,
    on_truncated: OnTruncated,
) -> Result<(Decoded, Vec<u8>)> {
    // Makes unwritten pixels visible.
    let mut pixels = vec![0xA5; (region.width * region.height * 3) as usize];
    let out = PixelsMut::new(&mut pixels, region.size())?;
    let request = DecodeRequest::full().region(region).on_truncated(on_truncated);
    let decoded = decoder.decode_into(file, &request, out)?;
    Ok((decoded, pixels))
}

/// Compares a truncated file with the whole one. Returns the number of valid rows of the region.
fn check(name: &str, file: &[u8], end: usize, share: (f64, f64)) -> Option<u32> {
    let mut decoder = decoder();
    let size = decoder.inspect(file).unwrap().size;
    let top = ((size.height as f64 * share.0) as u32).min(size.height - 1);
    let height = (((size.height - top) as f64 * share.1) as u32).max(1);
    let region = Rect { left: size.width / 3, top, width: size.width - size.width / 3, height };
    let whole = decode(&mut decoder, file, region, OnTruncated::Error).unwrap().1;
    let row_bytes = region.width as usize * 3;
    let truncated = &file[..end];
    let strict = decode(&mut decoder, truncated, region, OnTruncated::Error);
    if let Ok((decoded, pixels)) = &strict {
        assert_eq!(decoded.rows_valid, region.height, "{name}, truncated to {end}");
        assert!(*pixels == whole, "{name}, truncated to {end}: other pixels");
    }
    // A new decoder: the scratch memory of the old one contains the missing rows.
    match decode(&mut self::decoder(), truncated, region, OnTruncated::Partial) {
        Ok((decoded, pixels)) => {
            let rows = decoded.rows_valid;
            assert!((1..=region.height).contains(&rows), "{name}, truncated to {end}: {rows} rows");
            assert_eq!(strict.is_ok() && rows == region.height, strict.is_ok(), "{name}, {end}");
            let valid = rows as usize * row_bytes;
            assert!(pixels[..valid] == whole[..valid], "{name}, truncated to {end}: other pixels");
            assert!(
                pixels[valid..].iter().all(|&byte| byte == 0),
                "{name}, truncated to {end}: not black"
            );
            Some(rows)
        }
        Err(error) => {
            // `Unsupported` if the file signature is truncated.
            let kinds = [ErrorKind::Truncated, ErrorKind::Corrupt, ErrorKind::Unsupported];
            assert!(kinds.contains(&error.kind()), "{name}, truncated to {end}: {error}");
            assert!(
                strict.is_err(),
                "{name}, truncated to {end}: the partial decode fails: {error}"
            );
            None
        }
    }
}

fn files() -> Vec<(String, Vec<u8>)> {
    let ours = |name: &String| [".bmp", ".tiff"].iter().any(|end| name.ends_with(end));
    let more = names("tests/formats/data")
        .into_iter()
        .filter(ours)
        .map(|name| (name.clone(), data(&name)));
    let folder = "tests/formats/variants";
    let rare = [".bmp", ".gif", ".tiff"];
    let rare = names(folder).into_iter().filter(|name| rare.iter().any(|it| name.ends_with(it)));
    let rare = rare.map(|name| {
        let file = std::fs::read(own(folder).join(&name)).unwrap();
        (name, file)
    });
    let formats = [".png", ".gif", ".bmp", ".tiff", ".webp"];
    let theirs = move |name: &String| formats.iter().any(|end| name.ends_with(end));
    let common = names("tests/data").into_iter().filter(theirs).map(|name| {
        let file = common(&name);
        (name, file)
    });
    common.chain(more).chain(rare).collect()
}

#[test]
fn complete_rows_are_returned_if_the_format_allows_it() {
    let rows = |name: &str, file: &[u8], share: f64| {
        let end = (file.len() as f64 * share) as usize;
        check(name, file, end, (0.0, 1.0))
    };
    for name in ["rgb.png", "grey16.png", "palette.png", "palette.gif", "animated.gif"] {
        assert!(rows(name, &common(name), 0.8).is_some_and(|rows| rows > 5), "{name}");
        assert!(rows(name, &common(name), 1.0).is_some_and(|rows| rows == 29), "{name}");
    }
    for name in ["packed-strips.tiff", "deflate-strips.tiff", "lzw-strips.tiff", "top-down.bmp"] {
        let found = rows(name, &data(name), 0.8);
        assert!(found.is_some_and(|rows| rows > 5), "{name}: {found:?}");
    }
    for name in ["interlaced.png", "interlaced.gif", "rgb.bmp", "lossy.webp", "lossless.webp"] {
        assert_eq!(rows(name, &common(name), 0.8), None, "{name}");
    }
}

#[test]
fn a_region_above_the_truncation_is_complete() {
    let file = common("rgb.png");
    let end = file.len() * 9 / 10;
    assert_eq!(check("rgb.png", &file, end, (0.0, 0.2)), Some(5));
    // The region is below the truncation.
    assert_eq!(check("rgb.png", &file, file.len() / 2, (0.95, 1.0)), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn truncated_files_are_errors_or_have_the_rows_of_the_whole(
        choice in any::<prop::sample::Index>(),
        end in 0.0..1.0f64,
        top in 0.0..1.0f64,
        height in 0.0..=1.0f64,
    ) {
        let files = files();
        let (name, file) = choice.get(&files);
        let end = (file.len() as f64 * end) as usize;
        if end > 0 {
            check(name, file, end, (top, height));
        }
    }
}
