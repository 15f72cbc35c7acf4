//! Files that end early: an error, or the rows above, never other pixels.

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
    // What is not written would be seen.
    let mut pixels = vec![0xA5; (region.width * region.height * 3) as usize];
    let out = PixelsMut::new(&mut pixels, region.size())?;
    let request = DecodeRequest::full().region(region).on_truncated(on_truncated);
    let decoded = decoder.decode_into(file, &request, out)?;
    Ok((decoded, pixels))
}

/// Checks a cut file against the whole: how many rows of the region came out, if any.
fn check(name: &str, file: &[u8], end: usize, share: (f64, f64)) -> Option<u32> {
    let mut decoder = decoder();
    let size = decoder.inspect(file).unwrap().size;
    let top = ((size.height as f64 * share.0) as u32).min(size.height - 1);
    let height = (((size.height - top) as f64 * share.1) as u32).max(1);
    let region = Rect { left: size.width / 3, top, width: size.width - size.width / 3, height };
    let whole = decode(&mut decoder, file, region, OnTruncated::Error).unwrap().1;
    let row_bytes = region.width as usize * 3;
    let cut = &file[..end];
    let strict = decode(&mut decoder, cut, region, OnTruncated::Error);
    if let Ok((decoded, pixels)) = &strict {
        assert_eq!(decoded.rows_valid, region.height, "{name} cut to {end}");
        assert!(*pixels == whole, "{name} cut to {end}: other pixels");
    }
    // A new decoder: the memory of the old one holds the rows that are missing.
    match decode(&mut self::decoder(), cut, region, OnTruncated::Partial) {
        Ok((decoded, pixels)) => {
            let rows = decoded.rows_valid;
            assert!((1..=region.height).contains(&rows), "{name} cut to {end}: {rows} rows");
            assert_eq!(strict.is_ok() && rows == region.height, strict.is_ok(), "{name}, {end}");
            let valid = rows as usize * row_bytes;
            assert!(pixels[..valid] == whole[..valid], "{name} cut to {end}: other pixels");
            assert!(
                pixels[valid..].iter().all(|&byte| byte == 0),
                "{name} cut to {end}: not black"
            );
            Some(rows)
        }
        Err(error) => {
            // `Unsupported` where not even the signature is left.
            let kinds = [ErrorKind::Truncated, ErrorKind::Corrupt, ErrorKind::Unsupported];
            assert!(kinds.contains(&error.kind()), "{name} cut to {end}: {error}");
            assert!(strict.is_err(), "{name} cut to {end}: only partly an error: {error}");
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
    let seldom = [".bmp", ".gif", ".tiff"];
    let seldom =
        names(folder).into_iter().filter(|name| seldom.iter().any(|it| name.ends_with(it)));
    let seldom = seldom.map(|name| {
        let file = std::fs::read(own(folder).join(&name)).unwrap();
        (name, file)
    });
    let formats = [".png", ".gif", ".bmp", ".tiff", ".webp"];
    let theirs = move |name: &String| formats.iter().any(|end| name.ends_with(end));
    let common = names("tests/data").into_iter().filter(theirs).map(|name| {
        let file = common(&name);
        (name, file)
    });
    common.chain(more).chain(seldom).collect()
}

#[test]
fn rows_above_the_cut_are_delivered_where_the_format_allows_it() {
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
fn a_region_above_the_cut_is_whole() {
    let file = common("rgb.png");
    let end = file.len() * 9 / 10;
    assert_eq!(check("rgb.png", &file, end, (0.0, 0.2)), Some(5));
    // None of this one is left.
    assert_eq!(check("rgb.png", &file, file.len() / 2, (0.95, 1.0)), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_cut_is_an_error_or_its_rows_are_those_of_the_whole(
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
