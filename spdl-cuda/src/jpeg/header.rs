//! Headers of JPEGs, and which backends of nvJPEG decode an image.

use spdl_core::{Error, ErrorKind, Result};
use spdl_media::formats::jpeg::{JpegColor, JpegHeader, JpegProcess};

/// The maximum number of pixels of an image: 2²⁸.
const MAX_PIXELS: u64 = 1 << 28;
/// End of image (ITU-T T.81, B.2.1).
const EOI: [u8; 2] = [0xFF, 0xD9];

/// Parses the header of a JPEG of at most 2²⁸ pixels.
///
/// # Errors
/// The errors of [`JpegHeader::parse`]; `LimitExceeded` for an image of more pixels.
pub fn parse_header(encoded: &[u8]) -> Result<JpegHeader> {
    let header = JpegHeader::parse(encoded)?;
    if header.size.pixels() > MAX_PIXELS {
        let message = format!(
            "JPEG of {} pixels is too large: the limit is {MAX_PIXELS} pixels",
            header.size
        );
        return Err(Error::new(ErrorKind::LimitExceeded, message));
    }
    Ok(header)
}

/// The size of the decoded pixels in bytes.
pub(crate) fn rgb_bytes(header: &JpegHeader) -> u64 {
    3 * header.size.pixels()
}

/// Whether the image is grey or YCbCr. nvJPEG treats the components of other colour spaces as luma
/// and chroma, which would give wrong colours.
///
/// This check is stricter than [`JpegHeader::color`], which prefers a JFIF marker to contradictory
/// information.
pub(crate) fn is_grey_or_ycbcr(header: &JpegHeader) -> bool {
    let is_rgb = match header.adobe_transform {
        Some(transform) => transform == 0,
        None => header.components().iter().map(|component| component.id).eq(*b"RGB"),
    };
    match header.color() {
        Some(JpegColor::Grey) => true,
        Some(JpegColor::YCbCr) => !is_rgb,
        _ => false,
    }
}

/// The backend that decodes a JPEG.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JpegBackend {
    /// `NVJPEG_BACKEND_HARDWARE`: the JPEG engines of the device.
    Hardware,
    /// `NVJPEG_BACKEND_HYBRID`: Huffman decoding on the CPU, the remaining steps on the
    /// multiprocessors.
    Hybrid,
    /// The host, with a decoder of `spdl-media`.
    Host,
}

/// The backends that decode an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackendSet {
    pub(crate) hardware: bool,
    pub(crate) hybrid: bool,
}

impl BackendSet {
    /// Decides by the header and the end of the file. nvJPEG may still reject the image for the
    /// hardware backend.
    pub(crate) fn of(header: &JpegHeader, encoded: &[u8]) -> BackendSet {
        let is_sequential = matches!(header.process, JpegProcess::Baseline | JpegProcess::Extended);
        let is_dct = is_sequential || header.process == JpegProcess::Progressive;
        let hybrid =
            header.precision == 8 && is_dct && !header.is_arithmetic && is_grey_or_ycbcr(header);
        // A truncated image is decoded separately by the hybrid backend, so that its failure
        // affects no other image.
        let hardware = hybrid
            && header.process == JpegProcess::Baseline
            && header.is_interleaved
            && has_usual_subsampling(header)
            && has_end(encoded.get(header.data_offset..).unwrap_or_default());
        BackendSet { hardware, hybrid }
    }

    /// The backend that decodes the image: the first of this set, or the host.
    ///
    /// The hybrid backend decodes only images that the engines do not decode: it occupies the
    /// thread that also feeds the engines, and decodes about 500 images/s, the engines of an H200
    /// 23,000.
    pub(crate) fn best(self) -> JpegBackend {
        match self {
            BackendSet { hardware: true, .. } => JpegBackend::Hardware,
            BackendSet { hybrid: true, .. } => JpegBackend::Hybrid,
            _ => JpegBackend::Host,
        }
    }
}

/// Whether the file has an EOI marker. The search starts at the end, because data may follow the
/// marker.
fn has_end(scans: &[u8]) -> bool {
    scans.windows(2).rev().any(|pair| pair == EOI)
}

/// Whether the image has no chroma, or its subsampling is 4:4:4, 4:2:2, 4:2:0 or 4:4:0.
fn has_usual_subsampling(header: &JpegHeader) -> bool {
    let [luma, cb, cr, ..] = header.components() else { return true };
    let is_ratio = |across: u8, down: u8| {
        luma.horizontal == across * cb.horizontal && luma.vertical == down * cb.vertical
    };
    (cb.horizontal, cb.vertical) == (cr.horizontal, cr.vertical)
        && (is_ratio(1, 1) || is_ratio(2, 1) || is_ratio(2, 2) || is_ratio(1, 2))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The headers of the JPEGs in `spdl-media/tests/data`, as reported by Pillow 13.
    const BY_PILLOW: &str = include_str!("../../tests/data/jpeg_headers.tsv");

    fn images() -> impl Iterator<Item = (Vec<&'static str>, Vec<u8>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spdl-media/tests/data");
        BY_PILLOW.lines().skip(1).map(move |line| {
            let row: Vec<_> = line.split('\t').collect();
            let encoded = fs::read(folder.join(row[0])).unwrap();
            (row, encoded)
        })
    }

    #[test]
    fn headers_match_pillow_and_decide_the_backends() {
        let mut count = 0;
        for (row, encoded) in images() {
            let header = parse_header(&encoded).unwrap();
            let [name, width, height, mode, progressive, layers, orientation] = row[..] else {
                panic!("{row:?}")
            };
            assert_eq!(header.size.width.to_string(), width, "{name}");
            assert_eq!(header.size.height.to_string(), height, "{name}");
            assert_eq!(header.orientation.exif().to_string(), orientation, "{name}");
            let is_progressive = header.process == JpegProcess::Progressive;
            assert_eq!(is_progressive, progressive == "1", "{name}");
            let usual = [
                "1x1",
                "1x1 1x1 1x1",
                "1x1 1x1 1x1 1x1",
                "2x1 1x1 1x1",
                "2x2 1x1 1x1",
                "1x2 1x1 1x1",
            ];
            assert_eq!(has_usual_subsampling(&header), usual.contains(&layers), "{name}");
            // Pillow reports RGB for both.
            let is_plain = mode != "CMYK" && name != "rgb.jpg";
            assert_eq!(is_grey_or_ycbcr(&header), is_plain, "{name}");
            let backends = BackendSet::of(&header, &encoded);
            assert_eq!(backends.hybrid, is_plain, "{name}");
            let hardware = header.process == JpegProcess::Baseline
                && header.is_interleaved
                && usual.contains(&layers);
            assert_eq!(backends.hardware, is_plain && hardware, "{name}");
            count += 1;
        }
        assert_eq!(count, 32);
    }

    #[test]
    fn a_truncated_file_is_not_for_the_hardware_backend() {
        for (row, encoded) in images() {
            let whole = parse_header(&encoded).unwrap();
            for len in 0..encoded.len() {
                match parse_header(&encoded[..len]) {
                    Ok(header) => {
                        assert_eq!(header, whole, "{row:?} {len}");
                        let has_end = has_end(&encoded[header.data_offset..len]);
                        assert!(!has_end || len + 1 == encoded.len(), "{row:?} {len}");
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Truncated, "{row:?} {len}: {error}");
                    }
                }
            }
        }
    }

    /// A grey image with this SOF marker, precision and size.
    fn grey(marker: u8, precision: u8, height: u16, width: u16) -> Vec<u8> {
        // The first scan of a progressive image has only DC coefficients.
        let last_coefficient = if marker == 0xC2 { 0 } else { 63 };
        let mut encoded = vec![0xFF, 0xD8, 0xFF, marker, 0, 11, precision];
        encoded.extend(height.to_be_bytes());
        encoded.extend(width.to_be_bytes());
        encoded.extend([1, 1, 0x11, 0, 0xFF, 0xDA, 0, 8, 1, 1, 0, 0, last_coefficient, 0]);
        encoded.extend([0xFF, 0xD9]);
        encoded
    }

    #[test]
    fn unsupported_processes_and_sizes_are_refused() {
        let backends = |encoded: &[u8]| {
            let set = BackendSet::of(&parse_header(encoded).unwrap(), encoded);
            (set.hardware, set.hybrid)
        };
        assert_eq!(backends(&grey(0xC0, 8, 5, 6)), (true, true));
        assert_eq!(backends(&grey(0xC1, 8, 5, 6)), (false, true));
        assert_eq!(backends(&grey(0xC2, 8, 5, 6)), (false, true));
        assert_eq!(backends(&grey(0xC1, 12, 5, 6)), (false, false), "12 bits");
        assert_eq!(backends(&grey(0xC3, 8, 5, 6)), (false, false), "lossless");
        assert_eq!(backends(&grey(0xC9, 8, 5, 6)), (false, false), "arithmetic");
        let kind = |encoded: &[u8]| parse_header(encoded).unwrap_err().kind();
        assert_eq!(kind(&grey(0xC5, 8, 5, 6)), ErrorKind::Unsupported, "hierarchical");
        assert_eq!(kind(&grey(0xC0, 8, 0, 6)), ErrorKind::Corrupt);
        assert_eq!(kind(&grey(0xC0, 8, 65_535, 4_097)), ErrorKind::LimitExceeded);
        assert_eq!(backends(&grey(0xC0, 8, 65_535, 4_096)), (true, true));
    }
}
