//! The fuzz targets of `spdl-media`, as functions of the input bytes.
//!
//! A finding is a panic, an error kind that blames the caller, contradictory results, or a run that
//! exceeds the fuzzer's limits on time and memory.

#![forbid(unsafe_code)]

pub mod audio;
mod choices;
#[cfg(feature = "ffmpeg")]
pub mod ffmpeg;
mod matroska_file;
mod mp4_file;
pub mod video;

use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result, SampleId, SampleRng};
use spdl_media::formats::jpeg::JpegHeader;
use spdl_media::image::{
    ColorModel, DecodeRequest, ImageCodec, ImageDecoder, Picture, PixelsMut, Plane, PlaneShape,
    SNIFF_BYTES,
};
use spdl_media::{
    CodecRegistry, Crop, Decoder, FillImage, ImageTransform, Limits, Mode, OnTruncated,
    Orientation, Rect, Sample, SampleFormat, Size,
};

/// Small limits, for speed. The rejection of larger images is tested too.
fn limits() -> Limits {
    Limits::default().max_pixels(1 << 20).max_bytes(1 << 24)
}

/// Limits similar to those of a program, but smaller to save time.
fn large_limits() -> Limits {
    Limits::default().max_pixels(1 << 24).max_bytes(1 << 28)
}

/// All requests to the decoder of one format, on a file of any format.
pub fn decode_as(format: &str, file: &[u8]) {
    decode_by(codec_of(format).as_ref(), &limits(), file);
}

/// All requests to every decoder that sniffs the file, and to one more.
pub fn decode_every(file: &[u8]) {
    let registry = CodecRegistry::with_defaults();
    let another = hash(file) as usize % registry.codecs().count();
    for (at, codec) in registry.codecs().enumerate() {
        if at == another || codec.sniff(&file[..file.len().min(SNIFF_BYTES)]) {
            decode_by(codec.as_ref(), &limits(), file);
        }
    }
}

/// All requests to the decoder of the file, with limits that allow large images.
pub fn decode_large(file: &[u8]) {
    if let Ok(codec) = CodecRegistry::with_defaults().find(file) {
        decode_by(codec.as_ref(), &large_limits(), file);
    }
}

fn decode_by(codec: &dyn ImageCodec, limits: &Limits, file: &[u8]) {
    let mut decoder = codec.decoder(limits).expect("the codec has a decoder");
    let Some((size, whole)) = decode(decoder.as_mut(), file) else { return };
    let region = region_of(file, size);

    let mut pixels = vec![0; region.size().pixels() as usize * 3];
    let out =
        PixelsMut::new(&mut pixels, region.size()).expect("the buffer has the size of the region");
    let outcome = decoder.decode_into(file, &DecodeRequest::full().region(region), out);
    check_kind(outcome.as_ref().err());
    match (&outcome, &whole) {
        (Ok(_), Ok(whole)) => assert!(pixels == crop(whole, size, region), "{region:?} differs"),
        (Ok(_), Err(error)) => {
            assert_ne!(
                error.kind(),
                ErrorKind::Truncated,
                "the decode of {region:?} does not detect the truncation"
            );
        }
        (Err(error), Ok(_)) => {
            panic!("{region:?} cannot be decoded, but the whole image can: {error}")
        }
        (Err(_), Err(_)) => {}
    }

    let mut picture = Picture::new();
    let smallest = Size::new(size.width.div_ceil(3), size.height.div_ceil(3));
    let requests = [
        DecodeRequest::full().region(region),
        DecodeRequest::full().at_least(smallest),
        DecodeRequest::full().on_truncated(OnTruncated::Partial),
    ];
    for request in requests {
        let outcome = decoder.decode_planes(file, &request, &mut picture);
        check_kind(outcome.as_ref().err());
        if let (Err(error), Ok(_)) = (&outcome, &whole) {
            panic!("{request:?} fails, but the whole image is decoded: {error}");
        }
        if let Ok(decoded) = outcome {
            assert!(decoded.rows_valid <= decoded.size.height, "{request:?}: {decoded:?}");
        }
    }

    let request = DecodeRequest::full().on_truncated(OnTruncated::Partial);
    let mut pixels = vec![0; size.pixels() as usize * 3];
    let out = PixelsMut::new(&mut pixels, size).expect("the buffer has the size of the region");
    let outcome = decoder.decode_into(file, &request, out);
    check_kind(outcome.as_ref().err());
    if let Ok(whole) = whole {
        let decoded = outcome.expect("a file that is decoded completely can be decoded partially");
        assert_eq!(decoded.rows_valid, size.height);
        assert!(pixels == whole, "`OnTruncated::Partial` changes the pixels of a complete file");
    }
}

/// A training sample of a picture. The bytes choose its shape and orientation.
pub fn fill_from_picture(bytes: &[u8]) {
    const SIDE: u32 = 32;
    // Larger pictures take too long.
    const MOST: u64 = 1 << 18;
    let Some((&[a, b, c, d, orientation, color, mode, seed], rest)) = bytes.split_first_chunk()
    else {
        return;
    };
    let side = |high: u8, low: u8| u32::from(u16::from_be_bytes([high, low])) + 1;
    let image = Size::new(side(a, b), side(c, d));
    if image.pixels() > MOST {
        return;
    }
    let region = match color & 4 {
        0 => Rect::full(image),
        _ => region_of(bytes, image),
    };
    let mut picture = Picture::new();
    let plane = |channels: usize, step: u32| {
        let (left, top) = (region.left / step, region.top / step);
        let width = (region.left + region.width).div_ceil(step) - left;
        let height = (region.top + region.height).div_ceil(step) - top;
        let area = Rect { left, top, width, height };
        let stride = width as usize * channels + usize::from(seed);
        PlaneShape { channels, area, across: step, down: step, stride }
    };
    let (model, shapes) = match color & 3 {
        0 => (ColorModel::Rgb, vec![plane(3, 1)]),
        1 => (ColorModel::Grey, vec![plane(1, 1)]),
        step => {
            (ColorModel::YCbCr, vec![plane(1, 1), plane(1, step.into()), plane(1, step.into())])
        }
    };
    // No decoder produces three pixels per sample.
    if color & 3 == 3 {
        return;
    }
    picture.start(image, model, &shapes).expect("the shapes are valid");
    for plane in picture.planes_mut() {
        let samples = plane.samples_mut().iter_mut();
        samples.zip(rest.iter().cycle()).for_each(|(sample, &byte)| *sample = byte);
    }
    let orientation = Orientation::ALL[usize::from(orientation) % Orientation::ALL.len()];
    let crops = [
        Crop::Stretch,
        Crop::Letterbox { fill: [1, 2, 3] },
        Crop::Center { fill: [4; 3] },
        Crop::Random { padding: 3, fill: [5; 3] },
    ];
    let transform = ImageTransform::new(SIDE);
    let transform = match usize::from(mode) % 6 {
        0 => transform.mode(Mode::Eval),
        1 => transform.mode(Mode::Train),
        crop => transform.crop(crops[crop - 2]),
    };
    let registry = CodecRegistry::with_defaults();
    let mut fill =
        FillImage::new(&registry, &transform, &limits()).expect("the transform is valid");
    let id = SampleId { epoch: 0, index: seed.into() };
    let mut outputs = [[0; (SIDE * SIDE * 3) as usize]; 2];
    let outcomes = outputs.each_mut().map(|output| {
        let rng = || SampleRng::new(0, id, "fill");
        let outcome = fill.write_picture(&picture, orientation, Sample::U8(output), rng);
        // `InvalidArgument` is correct if the picture contains nothing of the crop.
        let kind = outcome.as_ref().err().map(Error::kind);
        let allowed = [None, Some(ErrorKind::LimitExceeded), Some(ErrorKind::InvalidArgument)];
        let part = region != Rect::full(image);
        assert!(allowed[..if part { 3 } else { 2 }].contains(&kind), "{outcome:?}");
        kind
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert!(outcomes[0].is_some() || outputs[0] == outputs[1], "the second sample differs");
}

/// A file of any format, decoded by a registry.
pub fn decode_any(file: &[u8]) {
    let registry = CodecRegistry::with_defaults();
    let mut decoder = Decoder::new(&registry, &limits());
    let upright = decoder.decode_rgb(file);
    check_kind(upright.as_ref().err());
    let Ok(upright) = upright else { return };
    let info = decoder.inspect(file).expect("a decoded file can be inspected");
    assert_eq!(info.upright_size(), upright.size);
    let again = decoder.decode_rgb(file).expect("a decoded file can be decoded again");
    assert!(upright == again, "the second decode has other pixels");
}

/// Planes of a region equal those of the whole image. Another request before has no influence.
pub fn compare_parts(format: &str, file: &[u8]) {
    let mut decoder = codec_of(format).decoder(&limits()).expect("the codec has a decoder");
    let Some((size, Ok(whole))) = decode(decoder.as_mut(), file) else { return };
    let region = region_of(file, size);
    let mut all = Picture::new();
    let mut part = Picture::new();
    let exact = DecodeRequest::full().exact(true);
    for request in [DecodeRequest::full(), exact] {
        let decoded = decoder.decode_planes(file, &request, &mut all);
        decoded.expect("a decoded file can be decoded into planes");
        let decoded = decoder.decode_planes(file, &request.region(region), &mut part);
        decoded.expect("a file that is decoded completely can be decoded partially");
        assert_eq!((all.image(), part.image()), (size, size));
        assert_eq!(all.color(), part.color());
        for (all, part) in all.planes().iter().zip(part.planes()) {
            compare_planes(all, part);
        }
    }
    let (_, again) = decode(decoder.as_mut(), file).expect("the file was inspected before");
    assert!(
        again.expect("the file was decoded before") == whole,
        "other pixels after other requests"
    );
}

fn compare_planes(all: &Plane, part: &Plane) {
    let (whole, shape) = (all.shape(), part.shape());
    let layout = |plane: &Plane| (plane.shape().channels, plane.shape().across, plane.shape().down);
    assert_eq!(layout(all), layout(part));
    for row in 0..shape.area.height {
        let y = shape.area.top + row;
        if y < whole.area.top || y >= whole.area.top + whole.area.height {
            continue;
        }
        let full = all.row(y - whole.area.top);
        for (column, sample) in part.row(row).chunks(shape.channels).enumerate() {
            let x = shape.area.left as usize + column;
            let Some(x) = x.checked_sub(whole.area.left as usize) else { continue };
            let Some(expected) = full.chunks(shape.channels).nth(x) else { continue };
            assert_eq!(sample, expected, "column {x}, row {y} of {shape:?} and {whole:?}");
        }
    }
}

/// The public header of a JPEG: values are in range, and equal those of the decoder.
pub fn jpeg_header(file: &[u8]) {
    let header = JpegHeader::parse(file);
    check_kind(header.as_ref().err());
    let Ok(header) = header else { return };
    assert!(header.size.pixels() > 0);
    assert!((1..=4).contains(&header.components().len()));
    assert!(header.data_offset <= file.len());
    let mut decoder = codec_of("jpeg").decoder(&limits()).expect("the codec has a decoder");
    if let Ok(info) = decoder.inspect(file) {
        assert_eq!((info.size, info.orientation), (header.size, header.orientation));
    }
}

/// An EXIF block in a valid JPEG and a valid PNG: metadata never fails an image.
pub fn orient(block: &[u8]) {
    const JPEG: &[u8] = include_bytes!("../../tests/data/420.jpg");
    const LONGEST: usize = 0xFFFF - 2 - 6;
    let block = &block[..block.len().min(LONGEST)];
    let length = (block.len() + 2 + 6) as u16;
    let mut file = b"\xFF\xD8\xFF\xE1".to_vec();
    file.extend(length.to_be_bytes());
    file.extend(b"Exif\0\0");
    file.extend(block);
    file.extend(&JPEG[2..]);
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &limits());
    let plain = decoder.inspect(JPEG).expect("the file is valid");
    let info = decoder.inspect(&file).expect("an EXIF block never fails an image");
    assert_eq!(info.size, plain.size);
    let upright = decoder.decode_rgb(&file).expect("an EXIF block never fails an image");
    assert_eq!(upright.size, info.upright_size());
}

/// Training samples of each mode and format, from any file.
pub fn fill(file: &[u8]) {
    const SIDE: u32 = 32;
    const VALUES: usize = (SIDE * SIDE * 3) as usize;
    let registry = CodecRegistry::with_defaults();
    let decodes = Decoder::new(&registry, &limits()).decode_rgb(file).is_ok();
    let mut bytes = [0; VALUES];
    let mut floats = [0.0; VALUES];
    for mode in [Mode::Eval, Mode::Train] {
        for format in [SampleFormat::NHWC_U8, SampleFormat::NCHW_F32] {
            let transform = ImageTransform::new(SIDE).mode(mode).format(format);
            let mut fill =
                FillImage::new(&registry, &transform, &limits()).expect("the transform is valid");
            let sample = match format {
                SampleFormat::NCHW_F32 => Sample::F32(&mut floats),
                _ => Sample::U8(&mut bytes),
            };
            let id = SampleId { epoch: 0, index: hash(file) };
            let outcome = fill.write(file, sample, || SampleRng::new(0, id, "fill"));
            check_kind(outcome.as_ref().err());
            assert!(outcome.is_ok() || !decodes, "{mode} {format}: {outcome:?}");
        }
    }
    assert!(floats.iter().all(|value| value.is_finite()));
}

fn codec_of(format: &str) -> Arc<dyn ImageCodec> {
    let registry = CodecRegistry::with_defaults();
    let is_it = |codec: &&Arc<dyn ImageCodec>| codec.name() == format;
    registry.codecs().find(is_it).expect("the format is in this build").clone()
}

/// The size of the image and its pixels; `None` if the header cannot be parsed.
fn decode(decoder: &mut dyn ImageDecoder, file: &[u8]) -> Option<(Size, Result<Vec<u8>>)> {
    let info = decoder.inspect(file);
    check_kind(info.as_ref().err());
    let size = info.ok()?.size;
    let mut pixels = vec![0; size.pixels() as usize * 3];
    let out = PixelsMut::new(&mut pixels, size).expect("the buffer has the size of the region");
    let outcome = decoder.decode_into(file, &DecodeRequest::full(), out);
    check_kind(outcome.as_ref().err());
    Some((size, outcome.map(|_| pixels)))
}

/// Checks that the error kind blames the file, not the caller.
fn check_kind(error: Option<&Error>) {
    use ErrorKind::*;
    if let Some(error) = error {
        let kind = error.kind();
        assert!(
            matches!(kind, Truncated | Corrupt | Unsupported | LimitExceeded),
            "an error of the kind {kind}: {error}"
        );
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A region of the image that depends on the file.
fn region_of(file: &[u8], size: Size) -> Rect {
    let hash = hash(file);
    let part = |shift: u32, limit: u32| (hash >> shift & 0xFFFF) as u32 % limit;
    let (left, top) = (part(0, size.width), part(16, size.height));
    let width = 1 + part(32, size.width - left);
    let height = 1 + part(48, size.height - top);
    Rect { left, top, width, height }
}

/// The pixels of a region.
fn crop(pixels: &[u8], size: Size, region: Rect) -> Vec<u8> {
    let row = size.width as usize * 3;
    let columns = region.left as usize * 3..(region.left + region.width) as usize * 3;
    let rows = pixels.chunks_exact(row).skip(region.top as usize).take(region.height as usize);
    rows.flat_map(|row| &row[columns.clone()]).copied().collect()
}
