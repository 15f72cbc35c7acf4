//! What every codec must keep: for the authors of codecs, to be called from their tests.
//!
//! ```
//! # #[cfg(feature = "bmp")] {
//! use spdl_media::{CodecRegistry, testing::codec_contract};
//! # let mut bmp = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
//! # bmp.extend([1u32.to_le_bytes(), 1u32.to_le_bytes()].concat());
//! # bmp.extend([1, 0, 24, 0]);
//! # bmp.extend([0; 24]);
//! # bmp.extend([1, 2, 3, 0]);
//! let registry = CodecRegistry::with_defaults();
//! let codec = registry.find(&bmp)?;
//! codec_contract(codec.as_ref(), &[&bmp]);
//! # }
//! # Ok::<(), spdl_core::Error>(())
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};

use spdl_core::{ErrorKind, Result};

use crate::{
    DecodeRequest, ImageCodec, ImageDecoder, ImageInfo, Limits, PixelsMut, Rect, SNIFF_BYTES, Size,
};

/// What a file may be cut to, at most, per file: a decode each.
const CUTS: usize = 200;

/// Checks a codec on valid files of its format: small ones, for each is decoded hundreds of times.
///
/// It recognises them by their start and nothing else; it keeps to the limits; a region is the same
/// part of the whole; rows may lie apart, and what lies between is left alone; a decoder can be
/// used again, also after an error; wrong requests are `InvalidArgument`; a file that is cut gives
/// a typed error or the same pixels, and one with changed bytes pixels or a typed error.
///
/// # Panics
/// Where the codec does not keep this contract, with what it did instead.
pub fn codec_contract(codec: &dyn ImageCodec, files: &[&[u8]]) {
    assert!(!codec.name().is_empty(), "a codec has a name");
    assert!(!codec.sniff(b""), "{}: nothing is no image", codec.name());
    assert!(!codec.sniff(&[0; SNIFF_BYTES]), "{}: zeros are no image", codec.name());
    for (number, file) in files.iter().enumerate() {
        let name = format!("{}, file {number}", codec.name());
        check_file(codec, file, &name);
    }
}

fn check_file(codec: &dyn ImageCodec, file: &[u8], name: &str) {
    assert!(codec.sniff(&file[..file.len().min(SNIFF_BYTES)]), "{name}: not recognised");
    let limits = Limits::default();
    let mut decoder = expect(codec.decoder(&limits), name, "no decoder");
    let info = expect(decoder.inspect(file), name, "cannot be inspected");
    assert!(info.size.pixels() > 0, "{name}: empty");
    let whole = expect(decode(decoder.as_mut(), file, &info), name, "cannot be decoded");

    check_limits(codec, file, &info, name);
    check_regions(decoder.as_mut(), file, &info, &whole, name);
    check_requests(decoder.as_mut(), file, &info, name);
    check_damage(decoder.as_mut(), file, &whole, name);

    let again = expect(decode(decoder.as_mut(), file, &info), name, "not after errors");
    assert!(again == whole, "{name}: other pixels after errors");
}

fn check_limits(codec: &dyn ImageCodec, file: &[u8], info: &ImageInfo, name: &str) {
    let pixels = info.size.pixels();
    let tight = Limits::default().max_pixels(pixels);
    let mut decoder = expect(codec.decoder(&tight), name, "no decoder");
    expect(decoder.inspect(file), name, "refused within the limits");
    let mut decoder =
        expect(codec.decoder(&Limits::default().max_pixels(pixels - 1)), name, "no decoder");
    let kind = decoder.inspect(file).err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::LimitExceeded), "{name}: a pixel too many is inspected");
    let kind = decode(decoder.as_mut(), file, info).err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::LimitExceeded), "{name}: a pixel too many is decoded");
}

fn check_regions(
    decoder: &mut dyn ImageDecoder,
    file: &[u8],
    info: &ImageInfo,
    whole: &[u8],
    name: &str,
) {
    const GAP: u8 = 0xA5;
    let Size { width, height } = info.size;
    let row_bytes = width as usize * 3;
    let lefts = [0, width / 3, width / 2, width - 1];
    let tops = [0, height / 3, height / 2, height - 1];
    for (left, top) in lefts.into_iter().flat_map(|left| tops.map(|top| (left, top))) {
        for (wide, high) in [(1, 1), (width - left, height - top), ((width - left).div_ceil(2), 1)]
        {
            let region = Rect { left, top, width: wide, height: high };
            let stride = wide as usize * 3 + 5;
            let mut memory = vec![GAP; stride * high as usize];
            let out = PixelsMut::with_stride(&mut memory, region.size(), stride);
            let out = expect(out, name, "no room");
            let request = DecodeRequest::full().region(region);
            let decoded = expect(decoder.decode_into(file, &request, out), name, "no region");
            assert_eq!(decoded.size, region.size(), "{name}: a smaller result was not asked for");
            for (y, row) in memory.chunks(stride).enumerate() {
                let start = (top as usize + y) * row_bytes + left as usize * 3;
                let (pixels, gap) = row.split_at(wide as usize * 3);
                assert!(pixels == &whole[start..][..pixels.len()], "{name}: {region:?} differs");
                assert!(gap.iter().all(|&byte| byte == GAP), "{name}: wrote between rows");
            }
        }
    }
}

fn check_requests(decoder: &mut dyn ImageDecoder, file: &[u8], info: &ImageInfo, name: &str) {
    let Size { width, height } = info.size;
    let outside = Rect { left: 1, top: 0, width, height };
    let smaller = Rect { left: 0, top: 0, width, height: 1 };
    let mut memory = vec![0; info.size.pixels() as usize * 3 + 3];
    for (region, room) in [(outside, info.size), (smaller, Size::new(width, height + 1))] {
        if room.height > height && height == u32::MAX {
            continue;
        }
        memory.resize(room.pixels() as usize * 3, 0);
        let out = expect(PixelsMut::new(&mut memory, room), name, "no room");
        let request = DecodeRequest::full().region(region);
        let kind = decoder.decode_into(file, &request, out).err().map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::InvalidArgument), "{name}: {region:?} into {room}");
    }
}

fn check_damage(decoder: &mut dyn ImageDecoder, file: &[u8], whole: &[u8], name: &str) {
    let step = file.len().div_ceil(CUTS).max(1);
    for end in (0..file.len()).step_by(step) {
        let outcome = decode_any(decoder, &file[..end], &format!("{name} cut to {end} bytes"));
        if let Ok(pixels) = outcome {
            let size = file.len();
            assert!(pixels == whole, "{name}: cut to {end} of {size} bytes, and other pixels");
        }
    }
    let mut damaged = file.to_vec();
    for at in (0..file.len()).step_by(step) {
        for change in [0xFF, 0x01, 0x80] {
            damaged[at] ^= change;
            let what = format!("{name} with byte {at} changed by {change:#04x}");
            // Pixels are right, too: not each change can be noticed.
            drop(decode_any(decoder, &damaged, &what));
            damaged[at] ^= change;
        }
    }
}

/// Decodes what may be damaged: a panic, or an error of a kind that blames others, is a failure.
fn decode_any(decoder: &mut dyn ImageDecoder, file: &[u8], what: &str) -> Result<Vec<u8>> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let info = decoder.inspect(file)?;
        // Damage to the header may make the image huge, and decoding it slow.
        if info.size.pixels() > 1 << 20 {
            return Ok(None);
        }
        decode(decoder, file, &info).map(Some)
    }));
    let Ok(outcome) = outcome else { panic!("{what}: panicked") };
    if let Err(error) = &outcome {
        use ErrorKind::*;
        let kind = error.kind();
        assert!(
            matches!(kind, Truncated | Corrupt | Unsupported | LimitExceeded),
            "{what}: an error of kind {kind}: {error}"
        );
    }
    outcome.map(Option::unwrap_or_default)
}

fn decode(decoder: &mut dyn ImageDecoder, file: &[u8], info: &ImageInfo) -> Result<Vec<u8>> {
    let mut pixels = vec![0; info.size.pixels() as usize * 3];
    let out = PixelsMut::new(&mut pixels, info.size)?;
    decoder.decode_into(file, &DecodeRequest::full(), out)?;
    Ok(pixels)
}

fn expect<T>(result: Result<T>, name: &str, what: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{name}: {what}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::codec_contract;
    use crate::CodecRegistry;

    #[test]
    fn our_codecs_keep_the_contract() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            files.push(std::fs::read(entry.unwrap().path()).unwrap());
        }
        assert!(files.len() > 60, "{folder} holds {} files", files.len());
        let registry = CodecRegistry::with_defaults();
        for codec in registry.codecs() {
            let own: Vec<&[u8]> =
                files.iter().map(Vec::as_slice).filter(|file| codec.sniff(file)).collect();
            assert!(own.len() >= 5, "{}: {} files", codec.name(), own.len());
            codec_contract(codec.as_ref(), &own);
        }
    }
}
