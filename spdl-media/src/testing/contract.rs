use std::panic::{AssertUnwindSafe, catch_unwind};

use spdl_core::{ErrorKind, Result};

use crate::image::{
    ColorModel, DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits, OnTruncated,
    Picture, PixelsMut, PlaneShape, Rect, RgbaPicture, SNIFF_BYTES, SampleDepth, Size,
};

/// The maximum number of truncated copies to test per file; each of them is decoded.
const TRUNCATIONS: usize = 200;

/// Checks a codec with valid files of its format. Use small files: each is decoded hundreds of
/// times.
///
/// - Signature: the codec recognises the given files, but neither empty input nor zeros.
/// - Limits: the decoder applies them.
/// - Regions: a decoded region has the same pixels as in the full decode. Padding between rows is
///   not written.
/// - Reuse: a decoder can be used again, also after an error, and for larger and smaller images.
/// - Requests: an invalid request returns `InvalidArgument`.
/// - Truncation: a truncated file returns one of the documented errors or the same pixels.
/// - Corruption: a file with changed bytes returns pixels or one of the documented errors.
/// - Partial images: the decoder returns an error, or the decoded rows of the full image with black
///   rows below.
/// - Reduced size: the result is not smaller than requested, and has full size for an exact
///   request.
/// - Planes: the planes hold the region, and equal those of the full decode. RGB planes equal the
///   decoded pixels; other planes show the same image.
/// - RGBA: a region has the same pixels as in the full decode, and with 8 bits, colours are those of the
///   decoded pixels.
///
/// # Panics
/// If the codec violates the contract; the message names the violation.
pub fn codec_contract(codec: &dyn ImageCodec, files: &[&[u8]]) {
    assert!(!codec.name().is_empty(), "the codec has no name");
    assert!(!codec.sniff(b""), "{}: recognises empty input", codec.name());
    assert!(!codec.sniff(&[0; SNIFF_BYTES]), "{}: recognises zeros", codec.name());
    for (number, file) in files.iter().enumerate() {
        let name = format!("{}, file {number}", codec.name());
        check_file(codec, file, &name);
    }
    check_growing(codec, files);
}

/// Checks that a codec respects [`Limits::max_bytes`], which counts the pixels and all memory that
/// the decoder allocates.
///
/// The test searches for the smallest limit with which each file decodes. The actual memory must
/// not exceed that limit by more than 5 % and 300 kB. `measure` runs a closure and returns the peak
/// of allocated bytes, from a counting allocator. Use files of at least a megapixel, so that fixed
/// costs are small.
///
/// # Panics
/// If the codec violates the contract.
pub fn memory_contract(
    codec: &dyn ImageCodec,
    files: &[&[u8]],
    measure: impl Fn(&mut dyn FnMut()) -> u64,
) {
    /// Fixed memory, such as tables and compression windows.
    const FIXED_BYTES: u64 = 300_000;
    const STEP: u64 = 50_000;
    for (number, file) in files.iter().enumerate() {
        for planes in [false, true] {
            let name = format!("{}, file {number}, planes: {planes}", codec.name());
            let run = |max_bytes: u64| {
                let limits = Limits::default().max_bytes(max_bytes);
                let mut decoder = expect(codec.decoder(&limits), &name, "no decoder");
                let mut outcome = Ok(());
                let used = measure(&mut || {
                    outcome = match planes {
                        true => {
                            let mut picture = Picture::new();
                            let request = DecodeRequest::full();
                            decoder.decode_planes(file, &request, &mut picture).map(drop)
                        }
                        false => decoder
                            .inspect(file)
                            .and_then(|info| decode(decoder.as_mut(), file, &info))
                            .map(drop),
                    };
                });
                (outcome, used)
            };
            let (mut refused, mut allowed) = (0_u64, Limits::default().bytes());
            while allowed - refused > STEP {
                let middle = refused.midpoint(allowed);
                match run(middle).0 {
                    Ok(()) => allowed = middle,
                    Err(error) => {
                        let kind = error.kind();
                        assert_eq!(kind, ErrorKind::LimitExceeded, "{name}: {error}");
                        refused = middle;
                    }
                }
            }
            let (outcome, used) = run(allowed);
            expect(outcome, &name, "the file is within the limits, but rejected");
            let most = allowed + allowed / 20 + FIXED_BYTES;
            assert!(used <= most, "{name}: {used} bytes are used with a limit of {allowed}");
            let most = 3 * (used + FIXED_BYTES);
            assert!(
                allowed <= most,
                "{name}: {used} bytes are used, but a limit of {allowed} is needed"
            );
        }
    }
}

/// Checks that a decoder used for larger and smaller images gives the same pixels as a new decoder.
fn check_growing(codec: &dyn ImageCodec, files: &[&[u8]]) {
    let name = codec.name();
    let new = || expect(codec.decoder(&Limits::default()), name, "no decoder");
    let mut sorted: Vec<(ImageInfo, &[u8])> = files
        .iter()
        .map(|file| (expect(new().inspect(file), name, "cannot be inspected"), *file))
        .collect();
    sorted.sort_by_key(|(info, _)| info.size.pixels());
    let mut decoder = new();
    let mut picture = Picture::new();
    for (info, file) in sorted.iter().chain(sorted.iter().rev()) {
        let what = format!("{name}, {} after others", info.size);
        let pixels = expect(decode(decoder.as_mut(), file, info), &what, "cannot be decoded");
        let expected = expect(decode(new().as_mut(), file, info), &what, "cannot be decoded");
        assert!(pixels == expected, "{what}: different pixels");
        let request = DecodeRequest::full();
        let mut alone = Picture::new();
        expect(decoder.decode_planes(file, &request, &mut picture), &what, "no planes");
        expect(new().decode_planes(file, &request, &mut alone), &what, "no planes");
        assert_eq!(picture.color(), alone.color(), "{what}: different planes");
        for (plane, expected) in picture.planes().iter().zip(alone.planes()) {
            assert_eq!(plane.shape(), expected.shape(), "{what}: different plane shapes");
            let same = |row| plane.row(row) == expected.row(row);
            assert!((0..plane.shape().area.height).all(same), "{what}: different planes");
        }
    }
}

fn check_file(codec: &dyn ImageCodec, file: &[u8], name: &str) {
    assert!(codec.sniff(&file[..file.len().min(SNIFF_BYTES)]), "{name}: signature not recognised");
    let limits = Limits::default();
    let mut decoder = expect(codec.decoder(&limits), name, "no decoder");
    let info = expect(decoder.inspect(file), name, "cannot be inspected");
    assert!(info.size.pixels() > 0, "{name}: empty");
    let whole = expect(decode(decoder.as_mut(), file, &info), name, "cannot be decoded");

    check_limits(codec, file, &info, name);
    check_regions(decoder.as_mut(), file, &info, &whole, name);
    check_requests(decoder.as_mut(), file, &info, name);
    check_smaller(decoder.as_mut(), file, &info, &whole, name);
    check_planes(decoder.as_mut(), file, &info, &whole, name);
    check_rgba(decoder.as_mut(), file, &info, &whole, name);
    check_damage(decoder.as_mut(), file, &whole, name);
    check_partial(codec, file, &info, &whole, name);

    let again =
        expect(decode(decoder.as_mut(), file, &info), name, "decoding fails after earlier errors");
    assert!(again == whole, "{name}: different pixels after errors");
}

fn check_limits(codec: &dyn ImageCodec, file: &[u8], info: &ImageInfo, name: &str) {
    let pixels = info.size.pixels();
    let tight = Limits::default().max_pixels(pixels);
    let mut decoder = expect(codec.decoder(&tight), name, "no decoder");
    expect(decoder.inspect(file), name, "the file is within the limits, but rejected");
    let mut decoder =
        expect(codec.decoder(&Limits::default().max_pixels(pixels - 1)), name, "no decoder");
    let kind = decoder.inspect(file).err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::LimitExceeded), "{name}: inspect ignores max_pixels");
    let kind = decode(decoder.as_mut(), file, info).err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::LimitExceeded), "{name}: decode ignores max_pixels");
    // One byte less than the pixels need.
    let tight = Limits::default().max_bytes(pixels * 3 - 1);
    let mut decoder = expect(codec.decoder(&tight), name, "no decoder");
    let kind = decode(decoder.as_mut(), file, info).err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::LimitExceeded), "{name}: decode ignores max_bytes");
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
            assert_eq!(decoded.size, region.size(), "{name}: reduced result without a request");
            for (y, row) in memory.chunks(stride).enumerate() {
                let start = (top as usize + y) * row_bytes + left as usize * 3;
                let (pixels, gap) = row.split_at(wide as usize * 3);
                assert!(pixels == &whole[start..][..pixels.len()], "{name}: {region:?} differs");
                assert!(gap.iter().all(|&byte| byte == GAP), "{name}: writes between rows");
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

fn check_smaller(
    decoder: &mut dyn ImageDecoder,
    file: &[u8],
    info: &ImageInfo,
    whole: &[u8],
    name: &str,
) {
    let Size { width, height } = info.size;
    for divisor in [1, 2, 3, 4, 8, u32::MAX] {
        let smallest = Size::new((width / divisor).max(1), (height / divisor).max(1));
        for exact in [false, true] {
            let request = DecodeRequest::full().at_least(smallest).exact(exact);
            let mut pixels = vec![0; whole.len()];
            let out = expect(PixelsMut::new(&mut pixels, info.size), name, "no room");
            let decoded =
                expect(decoder.decode_into(file, &request, out), name, "no reduced result");
            let factor = check_size(decoded, info.size, smallest, name);
            assert!(factor == 1 || !exact, "{name}: reduced result for an exact request");
            if factor == 1 {
                assert!(pixels == whole, "{name}: different pixels if a reduced result is allowed");
            }
        }
    }
}

/// The reduction factor of a decoded result.
fn check_size(decoded: Decoded, region: Size, smallest: Size, name: &str) -> u32 {
    let Decoded { size, rows_valid } = decoded;
    assert_eq!(rows_valid, size.height, "{name}: missing rows of a valid file");
    let scaled =
        |factor| Size::new(region.width.div_ceil(factor), region.height.div_ceil(factor)) == size;
    let factor = [1, 2, 4, 8].into_iter().find(|&factor| scaled(factor));
    let Some(factor) = factor else { panic!("{name}: invalid result size {size} for {region}") };
    let enough = size.width >= smallest.width && size.height >= smallest.height;
    assert!(enough, "{name}: result size {size} is smaller than the requested {smallest}");
    factor
}

fn check_rgba(
    decoder: &mut dyn ImageDecoder,
    file: &[u8],
    info: &ImageInfo,
    whole: &[u8],
    name: &str,
) {
    let Size { width, height } = info.size;
    let mut decode = |region: Rect, depth: SampleDepth| {
        let mut picture = RgbaPicture::new();
        let request = DecodeRequest::full().region(region);
        let decoded = decoder.decode_rgba(file, &request, depth, &mut picture);
        let decoded = expect(decoded, name, "no RGBA pixels");
        assert_eq!(decoded, Decoded::new(region.size()), "{name}: RGBA pixels of another size");
        assert_eq!((picture.image(), picture.region()), (info.size, region), "{name}");
        picture
    };
    let full = Rect::full(info.size);
    let middle = Rect {
        left: width / 3,
        top: height / 3,
        width: (width / 2).max(1),
        height: (height / 2).max(1),
    };
    for depth in [SampleDepth::Eight, SampleDepth::Sixteen] {
        let (all, part) = (decode(full, depth), decode(middle, depth));
        for y in 0..middle.height {
            let expected = &all.row(middle.top + y)[middle.left as usize..];
            let is_equal = part.row(y) == &expected[..middle.width as usize];
            assert!(is_equal, "{name}: RGBA row {y} of a region differs, {depth:?}");
        }
        if depth == SampleDepth::Eight {
            let found = (0..height).flat_map(|y| all.row(y)).flat_map(|pixel| &pixel[..3]);
            let is_equal =
                found.eq(&whole.iter().map(|it| u16::from(*it) * 257).collect::<Vec<_>>());
            assert!(is_equal, "{name}: colours of RGBA pixels differ from those of RGB");
        }
    }
}

fn check_planes(
    decoder: &mut dyn ImageDecoder,
    file: &[u8],
    info: &ImageInfo,
    whole: &[u8],
    name: &str,
) {
    let Size { width, height } = info.size;
    let mut planes = |region: Rect, smallest: Size, picture: &mut Picture| {
        let request = DecodeRequest::full().region(region).at_least(smallest);
        let decoded = expect(decoder.decode_planes(file, &request, picture), name, "no planes");
        let factor = check_size(decoded, region.size(), smallest, name);
        assert_eq!(picture.image(), info.size, "{name}: planes of another image size");
        check_cover(picture, region, factor, name);
    };
    let full = Rect::full(info.size);
    let (mut all, mut part) = (Picture::new(), Picture::new());
    for divisor in [8, 4, 2] {
        planes(full, Size::new(width.div_ceil(divisor), height.div_ceil(divisor)), &mut all);
    }
    planes(full, info.size, &mut all);
    match all.color() {
        ColorModel::Rgb => {
            for y in 0..height {
                let row = width as usize * 3;
                let expected = &whole[y as usize * row..][..row];
                let found = position(&all, 0, 0, y);
                assert!(&found[..row] == expected, "{name}: row {y} of the RGB plane differs");
            }
        }
        _ => check_color(&all, info.size, whole, name),
    }
    let middle = Rect {
        left: width / 3,
        top: height / 3,
        width: (width / 2).max(1),
        height: (height / 2).max(1),
    };
    let last = Rect { left: width - 1, top: height - 1, width: 1, height: 1 };
    for region in [middle, last] {
        planes(region, region.size(), &mut part);
        assert_eq!(part.color(), all.color(), "{name}: different colour model for a region");
        for (number, plane) in part.planes().iter().enumerate() {
            let shape = plane.shape();
            for y in region.top / shape.down..(region.top + region.height).div_ceil(shape.down) {
                let left = region.left / shape.across;
                let right = (region.left + region.width).div_ceil(shape.across);
                let length = (right - left) as usize * shape.channels;
                let found = &position(&part, number, left, y)[..length];
                let expected = &position(&all, number, left, y)[..length];
                assert!(found == expected, "{name}: {region:?}: row {y} of plane {number} differs");
            }
        }
    }
    let outside = Rect { left: 1, top: 0, width, height };
    let request = DecodeRequest::full().region(outside);
    let kind = decoder.decode_planes(file, &request, &mut part).err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::InvalidArgument), "{name}: planes of {outside:?}");
}

/// Checks that the first plane has the scale of the result, and that all planes hold the region.
fn check_cover(picture: &Picture, region: Rect, factor: u32, name: &str) {
    let first = picture.planes()[0].shape();
    assert_eq!((first.across, first.down), (factor, factor), "{name}: the first plane's scale");
    for plane in picture.planes() {
        let shape = plane.shape();
        let holds = |start: u32, extent: u32, from: u32, count: u32, step: u32| {
            from <= start / step && from + count >= (start + extent).div_ceil(step)
        };
        let across =
            holds(region.left, region.width, shape.area.left, shape.area.width, shape.across);
        let down = holds(region.top, region.height, shape.area.top, shape.area.height, shape.down);
        assert!(across && down, "{name}: {shape:?} does not hold {region:?}");
        // A subsampled component may be reduced by a smaller factor.
        let is_compatible =
            |pixels: u32| pixels.is_multiple_of(factor) || factor.is_multiple_of(pixels);
        assert!(
            is_compatible(shape.across) && is_compatible(shape.down),
            "{name}: invalid scale of {shape:?}"
        );
    }
}

/// The samples of a plane from a position on, counted from the top left corner of the image.
fn position(picture: &Picture, plane: usize, x: u32, y: u32) -> &[u8] {
    let plane = &picture.planes()[plane];
    let PlaneShape { area, channels, .. } = plane.shape();
    &plane.row(y - area.top)[(x - area.left) as usize * channels..]
}

/// Checks luma and colour differences against the RGB pixels: luma per pixel, the differences on
/// average, because they may be subsampled and RGB is clipped.
fn check_color(picture: &Picture, size: Size, whole: &[u8], name: &str) {
    const LUMA: f64 = 8.0;
    const DIFFERENCE: f64 = 8.0;
    // ITU-R BT.601, full range.
    let weights =
        [[0.299, 0.587, 0.114], [-0.168_736, -0.331_264, 0.5], [0.5, -0.418_688, -0.081_312]];
    let value = |weights: [f64; 3], pixel: &[u8]| {
        weights.iter().zip(pixel).map(|(weight, &sample)| weight * f64::from(sample)).sum::<f64>()
    };
    let (pixels, _) = whole.as_chunks::<3>();
    let mut luma = 0.0;
    for y in 0..size.height {
        let row = position(picture, 0, 0, y);
        for x in 0..size.width as usize {
            let pixel = &pixels[y as usize * size.width as usize + x];
            luma += (f64::from(row[x]) - value(weights[0], pixel)).abs();
        }
    }
    let luma = luma / pixels.len() as f64;
    assert!(luma < LUMA, "{name}: luma differs by {luma:.1}");
    for (number, weights) in weights.into_iter().enumerate().take(picture.planes().len()).skip(1) {
        let shape = picture.planes()[number].shape();
        let (mut sum, mut count) = (0.0, 0.0);
        for y in 0..size.height / shape.down {
            for &sample in &position(picture, number, 0, y)[..(size.width / shape.across) as usize]
            {
                sum += f64::from(sample) - 128.0;
                count += 1.0;
            }
        }
        let expected = pixels.iter().map(|pixel| value(weights, pixel)).sum::<f64>();
        let differs = (sum / f64::max(count, 1.0) - expected / pixels.len() as f64).abs();
        // The region has too few positions for a meaningful average.
        assert!(
            differs < DIFFERENCE || count < 16.0,
            "{name}: plane {number} differs by {differs:.1}"
        );
    }
}

fn check_damage(decoder: &mut dyn ImageDecoder, file: &[u8], whole: &[u8], name: &str) {
    let step = file.len().div_ceil(TRUNCATIONS).max(1);
    for end in (0..file.len()).step_by(step) {
        let what = format!("{name} truncated to {end} of {} bytes", file.len());
        if let Ok(pixels) = decode_any(decoder, &file[..end], &what) {
            assert!(pixels == whole, "{what}: different pixels");
        }
    }
    let mut damaged = file.to_vec();
    for at in (0..file.len()).step_by(step) {
        for change in [0xFF, 0x01, 0x80] {
            damaged[at] ^= change;
            let what = format!("{name} with byte {at} changed by {change:#04x}");
            // Not every change is detectable.
            drop(decode_any(decoder, &damaged, &what));
            damaged[at] ^= change;
        }
    }
}

/// Checks partial images.
fn check_partial(codec: &dyn ImageCodec, file: &[u8], info: &ImageInfo, whole: &[u8], name: &str) {
    let step = file.len().div_ceil(TRUNCATIONS).max(1);
    for end in (0..file.len()).step_by(step) {
        let (cut, what) =
            (&file[..end], format!("{name} truncated to {end} of {} bytes", file.len()));
        // Each file is decoded by a new decoder: the state of an old one could hide missing data.
        let new = || expect(codec.decoder(&Limits::default()), name, "no decoder");
        let is_enough = decode(new().as_mut(), cut, info).is_ok();
        let mut pixels = vec![0xA5; whole.len()];
        let out = expect(PixelsMut::new(&mut pixels, info.size), &what, "no room");
        let request = DecodeRequest::full().on_truncated(OnTruncated::Partial);
        let outcome = catch_unwind(AssertUnwindSafe(|| new().decode_into(cut, &request, out)));
        let Ok(outcome) = outcome else { panic!("{what}: panicked") };
        match outcome {
            Ok(decoded) => {
                let rows = decoded.rows_valid;
                assert_eq!(decoded.size, info.size, "{what}: a smaller result was not requested");
                assert!(
                    (1..=info.size.height).contains(&rows),
                    "{what}: invalid number of rows {rows}"
                );
                assert!(
                    rows == info.size.height || !is_enough,
                    "{what}: only {rows} rows, but the data are complete"
                );
                let (valid, rest) = pixels.split_at(rows as usize * info.size.width as usize * 3);
                assert!(whole.starts_with(valid), "{what}: different pixels in its {rows} rows");
                assert!(
                    rest.iter().all(|&byte| byte == 0),
                    "{what}: rows below row {rows} are not black"
                );
            }
            Err(error) => {
                assert!(!is_enough, "{what}: error for complete data: {error}");
            }
        }
    }
}

/// Decodes possibly corrupt data. Fails on a panic, and on an error of any other kind than the
/// documented ones.
fn decode_any(decoder: &mut dyn ImageDecoder, file: &[u8], what: &str) -> Result<Vec<u8>> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let info = decoder.inspect(file)?;
        // A corrupt header may declare a huge image, which would be slow.
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
            "{what}: unexpected error kind {kind}: {error}"
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
    use spdl_core::{Error, ErrorKind, Result};

    use super::{codec_contract, memory_contract};
    use crate::image::{
        CodecRegistry, ColorModel, DecodeRequest, Decoded, Decoder, ImageCodec, ImageDecoder,
        ImageInfo, Limits, OnTruncated, Orientation, Picture, PixelsMut, PlaneShape, Rect, Size,
    };

    // promise: IMG1
    #[test]
    fn our_codecs_keep_the_contract() {
        let registry = CodecRegistry::with_defaults();
        let mut files = Vec::new();
        for folder in ["tests/data", "tests/formats/data"] {
            let folder = format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"));
            for entry in std::fs::read_dir(folder).unwrap() {
                let file = std::fs::read(entry.unwrap().path()).unwrap();
                if let Ok(codec) = registry.find(&file) {
                    files.push((codec.name(), file));
                }
            }
        }
        for codec in registry.codecs() {
            let own = files.iter().filter(|(name, _)| *name == codec.name());
            let mut own: Vec<&[u8]> = own.map(|(_, file)| file.as_slice()).collect();
            let common = ["jpeg", "png", "webp", "gif", "bmp", "tiff"].contains(&codec.name());
            let least = if common { 5 } else { 1 };
            if !common {
                // Some of these codecs are slow.
                own.truncate(2);
            }
            assert!(own.len() >= least, "{}: {} files", codec.name(), own.len());
            codec_contract(codec.as_ref(), &own);
        }
    }

    /// A third-party format: `TOY1`, width and height in a byte each, RGB pixels. It can violate
    /// the contract on purpose.
    #[derive(Clone, Copy, Debug, Default)]
    struct Toy {
        violation: Option<Violation>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Violation {
        LimitsUnchecked,
        GreyForMissingRows,
        OneRowTooMany,
        PlanesOfAnotherRegion,
        LumaTooDark,
        DifferencesExchanged,
        TooSmall,
        SmallerAfterLarger,
    }

    impl ImageCodec for Toy {
        fn name(&self) -> &'static str {
            "toy"
        }

        fn sniff(&self, head: &[u8]) -> bool {
            head.starts_with(b"TOY1")
        }

        fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
            Ok(Box::new(ToyDecoder {
                violation: self.violation,
                limits: limits.clone(),
                largest: 0,
            }))
        }
    }

    struct ToyDecoder {
        violation: Option<Violation>,
        limits: Limits,
        /// The number of pixels of the largest image so far.
        largest: u64,
    }

    impl ToyDecoder {
        fn has(&self, violation: Violation) -> bool {
            self.violation == Some(violation)
        }
    }

    impl ImageDecoder for ToyDecoder {
        fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
            let [b'T', b'O', b'Y', b'1', width, height, ..] = *encoded else {
                return Err(Error::new(ErrorKind::Truncated, "the toy header is truncated"));
            };
            let size = Size::new(width.into(), height.into());
            if !self.has(Violation::LimitsUnchecked) {
                self.limits.check_size(size)?;
            }
            Ok(ImageInfo::new(size, Orientation::Upright))
        }

        fn decode_into(
            &mut self,
            encoded: &[u8],
            request: &DecodeRequest,
            mut out: PixelsMut<'_>,
        ) -> Result<Decoded> {
            let size = self.inspect(encoded)?.size;
            let region = request.checked_region(size, &out)?;
            let row_bytes = size.width as usize * 3;
            let rows = ((encoded.len() - 6) / row_bytes).min(size.height as usize) as u32;
            let valid = rows.saturating_sub(region.top).min(region.height);
            let partial = request.truncation() == OnTruncated::Partial && valid > 0;
            if rows < size.height && !partial {
                return Err(Error::new(ErrorKind::Truncated, "the toy data end early"));
            }
            for row in 0..region.height {
                let target = out.row_mut(row);
                if row >= valid {
                    target.fill(if self.has(Violation::GreyForMissingRows) { 128 } else { 0 });
                    continue;
                }
                let start = 6 + (region.top + row) as usize * row_bytes + region.left as usize * 3;
                target.copy_from_slice(&encoded[start..start + target.len()]);
            }
            if self.has(Violation::SmallerAfterLarger) && size.pixels() < self.largest {
                out.row_mut(0)[0] ^= 1;
            }
            self.largest = self.largest.max(size.pixels());
            let claimed =
                valid + u32::from(self.has(Violation::OneRowTooMany) && valid < region.height);
            if self.has(Violation::TooSmall) && request.smallest().is_some() {
                return Ok(Decoded::new(Size::new(1, 1)));
            }
            Ok(Decoded::partial(region.size(), claimed))
        }

        fn decode_planes(
            &mut self,
            encoded: &[u8],
            request: &DecodeRequest,
            picture: &mut Picture,
        ) -> Result<Decoded> {
            let size = self.inspect(encoded)?.size;
            let region = request.region_of(size);
            if !region.is_within(size) {
                return Err(Error::new(ErrorKind::InvalidArgument, "outside"));
            }
            let mut rgb = vec![0; (region.width * region.height * 3) as usize];
            let out = PixelsMut::new(&mut rgb, region.size())?;
            let request = DecodeRequest::full().region(region).exact(true);
            let decoded = self.decode_into(encoded, &request, out)?;
            let mut area = region;
            if self.has(Violation::PlanesOfAnotherRegion) && area.left > 0 {
                area.left -= 1;
            }
            let stride = region.width as usize;
            let shape = PlaneShape { channels: 1, area, across: 1, down: 1, stride };
            picture.start(size, ColorModel::YCbCr, &[shape; 3])?;
            let mut weights =
                [[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]];
            if self.has(Violation::DifferencesExchanged) {
                weights.swap(1, 2);
            }
            if self.has(Violation::LumaTooDark) {
                weights[0] = [0.2, 0.4, 0.1];
            }
            let zero = [0.0, 128.0, 128.0];
            for ((plane, weights), zero) in picture.planes_mut().iter_mut().zip(weights).zip(zero) {
                for (sample, pixel) in plane.samples_mut().iter_mut().zip(rgb.chunks(3)) {
                    let parts = weights.iter().zip(pixel).map(|(w, &p)| w * f64::from(p));
                    *sample = (parts.sum::<f64>() + zero).round() as u8;
                }
            }
            Ok(decoded)
        }
    }

    fn toy_file() -> Vec<u8> {
        toy_file_of(11, 9)
    }

    fn toy_file_of(width: u8, height: u8) -> Vec<u8> {
        let mut file = b"TOY1".to_vec();
        file.extend([width, height]);
        for y in 0..height {
            for x in 0..width {
                file.extend([
                    200_u8.wrapping_sub(x.wrapping_mul(5)),
                    y.wrapping_mul(20),
                    x.wrapping_mul(7),
                ]);
            }
        }
        file
    }

    #[test]
    fn a_third_party_codec_keeps_the_contract() {
        codec_contract(&Toy::default(), &[&toy_file()]);
    }

    // promise: IMG1
    #[test]
    fn each_violation_of_the_codec_contract_is_reported() {
        for (violation, complaint) in [
            (Violation::LimitsUnchecked, "ignores max_pixels"),
            (Violation::GreyForMissingRows, "not black"),
            (Violation::OneRowTooMany, "different pixels in its"),
            (Violation::PlanesOfAnotherRegion, "does not hold"),
            (Violation::LumaTooDark, "luma differs"),
            (Violation::DifferencesExchanged, "plane 1 differs"),
            (Violation::TooSmall, "result size 1x1"),
            (Violation::SmallerAfterLarger, "7x5 after others: different pixels"),
        ] {
            let broken = Toy { violation: Some(violation) };
            let files: [&[u8]; 2] = [&toy_file(), &toy_file_of(7, 5)];
            let outcome = std::panic::catch_unwind(|| codec_contract(&broken, &files));
            let panic = outcome.expect_err(&format!("{violation:?} is not detected"));
            let message = panic.downcast_ref::<String>().map_or("", String::as_str);
            assert!(message.contains(complaint), "{violation:?}: {message}");
        }
    }

    // promise: IMG1
    #[test]
    fn the_decoder_checks_results_of_third_party_codecs() {
        let region = Rect { left: 2, top: 1, width: 5, height: 4 };
        let decode = |violation, limits: &Limits, request: DecodeRequest| {
            let mut registry = CodecRegistry::new();
            registry.register(Toy { violation });
            let mut decoder = Decoder::new(&registry, limits);
            let outcome = decoder.decode_planes(&toy_file(), &request, &mut Picture::new());
            outcome.err().map(|error| error.kind())
        };
        let (full, part) = (DecodeRequest::full(), DecodeRequest::full().region(region));
        let limits = Limits::default();
        assert_eq!(decode(None, &limits, part), None);
        let other_region = Some(Violation::PlanesOfAnotherRegion);
        assert_eq!(decode(other_region, &limits, part), Some(ErrorKind::Corrupt));
        let unchecked = Some(Violation::LimitsUnchecked);
        let small = Limits::default().max_pixels(98);
        assert_eq!(decode(unchecked, &limits, full), None);
        assert_eq!(decode(unchecked, &small, full), Some(ErrorKind::LimitExceeded));
    }

    #[test]
    fn a_codec_that_exceeds_its_memory_limit_is_detected() {
        let file = toy_file_of(200, 250);
        // This codec only uses the memory of the pixels.
        memory_contract(&Toy::default(), &[&file], |run| {
            run();
            200 * 250 * 3
        });
        let broken = || {
            memory_contract(&Toy::default(), &[&file], |run| {
                run();
                1_000_000
            });
        };
        let panic = std::panic::catch_unwind(broken).expect_err("the violation is not detected");
        let message = panic.downcast_ref::<String>().map_or("", String::as_str);
        assert!(message.contains("1000000 bytes are used"), "{message}");
    }
}
