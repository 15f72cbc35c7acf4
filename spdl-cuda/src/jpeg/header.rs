//! What a JPEG says of itself, read on the CPU before a device sees it: size, coding, orientation.
//!
//! Markers and segments are those of ITU-T T.81 (annex B); the orientation is tag 0x0112 of the first
//! directory of an EXIF block (EXIF 2.32, 4.6.4).

use std::fmt;

use spdl_core::{Error, ErrorKind, Result};

/// The most pixels that an image may have, unless the caller says otherwise.
const MAX_PIXELS: u64 = 1 << 28;

/// The markers that this file knows by name.
mod marker {
    pub(super) const SOI: u8 = 0xD8;
    pub(super) const EOI: u8 = 0xD9;
    pub(super) const SOS: u8 = 0xDA;
    pub(super) const APP1: u8 = 0xE1;
    pub(super) const APP14: u8 = 0xEE;
}

/// How the coefficients are coded.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JpegCoding {
    /// One pass, Huffman codes, 8 bits: what every decoder reads.
    Baseline,
    /// One pass, Huffman codes, with more tables or 12 bits.
    Extended,
    /// Several passes, each of which refines the image.
    Progressive,
}

/// How much smaller the planes of colour are.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subsampling {
    /// There is no colour.
    Grey,
    /// As large.
    S444,
    /// Half as wide.
    S422,
    /// Half as wide and half as high.
    S420,
    /// Half as high.
    S440,
    /// A quarter as wide.
    S411,
    /// Anything else.
    Other,
}

/// What the planes hold.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JpegColor {
    /// Luma alone.
    Grey,
    /// Luma and two differences, as in most files.
    YCbCr,
    /// Red, green and blue.
    Rgb,
    /// Cyan, magenta, yellow and black, or luma, two differences, and black.
    Cmyk,
}

/// What the header of a JPEG says.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JpegHeader {
    /// Columns as stored, 1 to 65,535.
    pub width: u32,
    /// Rows as stored, 1 to 65,535.
    pub height: u32,
    /// OutputPlanes: 1, 3 or 4.
    pub components: u8,
    /// Bits of a sample: 8 or 12.
    pub precision: u8,
    /// How the coefficients are coded.
    pub coding: JpegCoding,
    /// How much smaller the planes of colour are.
    pub subsampling: Subsampling,
    /// Whether the first scan holds all planes.
    pub is_interleaved: bool,
    /// How EXIF says it is to be turned, 1 to 8; 1 is upright.
    pub orientation: u8,
    /// Whether its end is there. Without it, the file was cut.
    pub has_end: bool,
    /// What the planes hold.
    pub color: JpegColor,
}

impl JpegHeader {
    /// Reads the header of an image of up to 2²⁸ pixels.
    ///
    /// ```
    /// use spdl_cuda::jpeg::{JpegCoding, JpegHeader};
    /// # let encoded = [
    /// #     0xFF, 0xD8, 0xFF, 0xC0, 0, 11, 8, 0, 2, 0, 3, 1, 1, 0x11, 0,
    /// #     0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0, 0xFF, 0xD9,
    /// # ];
    /// let header = JpegHeader::parse(&encoded)?;
    /// assert_eq!((header.width, header.height), (3, 2));
    /// assert_eq!(header.coding, JpegCoding::Baseline);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Truncated` where the file ends inside its header; `Corrupt` where it is no JPEG or contradicts
    /// itself; `Unsupported` for codings that nobody uses (lossless, hierarchical, arithmetic);
    /// `LimitExceeded` for more pixels. They tell the offset.
    pub fn parse(encoded: &[u8]) -> Result<JpegHeader> {
        JpegHeader::parse_within(encoded, MAX_PIXELS)
    }

    /// Columns and rows once it is turned upright.
    pub fn upright_size(&self) -> (u32, u32) {
        match self.orientation {
            5..=8 => (self.height, self.width),
            _ => (self.width, self.height),
        }
    }

    /// The same with another limit.
    ///
    /// # Errors
    /// As of [`parse`](JpegHeader::parse).
    pub fn parse_within(encoded: &[u8], max_pixels: u64) -> Result<JpegHeader> {
        let mut reader = Reader { encoded, offset: 0 };
        if reader.encoded.get(..2) != Some(&[0xFF, marker::SOI]) {
            let so_far = [0xFF, marker::SOI].starts_with(&encoded[..encoded.len().min(2)]);
            return Err(if so_far { cut(encoded) } else { corrupt("this is no JPEG", 0) });
        }
        reader.offset = 2;
        let (mut frame, mut orientation, mut adobe) = (None, 1, None);
        loop {
            let (kind, segment) = reader.segment()?;
            match kind {
                0xC4 | 0xC8 | 0xCC => {}
                0xC0..=0xCF if frame.is_some() => {
                    return Err(corrupt("a second frame", segment.offset));
                }
                0xC0..=0xCF => frame = Some(Frame::parse(kind, &segment, max_pixels)?),
                marker::APP1 => {
                    if let Some(turned) = segment.bytes.strip_prefix(b"Exif\0\0").map(exif) {
                        orientation = turned;
                    }
                }
                marker::APP14 if segment.bytes.starts_with(b"Adobe") => {
                    adobe = segment.bytes.get(11).copied();
                }
                marker::SOS => {
                    let Some(frame) = frame else {
                        return Err(corrupt("a scan before its frame", segment.offset));
                    };
                    let in_scan = segment.bytes.first().copied().unwrap_or(0);
                    if in_scan == 0 || in_scan > frame.components {
                        let message = format!("a scan of {in_scan} of {} planes", frame.components);
                        return Err(corrupt(&message, segment.offset));
                    }
                    return Ok(JpegHeader {
                        width: frame.width,
                        height: frame.height,
                        components: frame.components,
                        precision: frame.precision,
                        coding: frame.coding,
                        subsampling: frame.subsampling,
                        is_interleaved: in_scan == frame.components,
                        orientation,
                        has_end: has_end(&encoded[reader.offset..]),
                        color: frame.color(adobe),
                    });
                }
                marker::EOI => return Err(corrupt("an image without a scan", segment.offset)),
                _ => {}
            }
        }
    }

    /// The bytes of its pixels as RGB.
    pub fn rgb_bytes(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height) * 3
    }
}

/// Whether the end is there: behind the last scan there may be anything, so from behind.
fn has_end(scans: &[u8]) -> bool {
    scans.windows(2).rev().any(|pair| pair == [0xFF, marker::EOI])
}

struct Frame {
    width: u32,
    height: u32,
    components: u8,
    /// Whether the planes are called R, G and B.
    says_rgb: bool,
    precision: u8,
    coding: JpegCoding,
    subsampling: Subsampling,
}

impl Frame {
    fn parse(kind: u8, segment: &Segment<'_>, max_pixels: u64) -> Result<Frame> {
        let offset = segment.offset;
        let coding = match kind {
            0xC0 => JpegCoding::Baseline,
            0xC1 => JpegCoding::Extended,
            0xC2 => JpegCoding::Progressive,
            _ => {
                let how = match kind {
                    0xC3 => "lossless",
                    0xC9..=0xCF => "arithmetic",
                    _ => "hierarchical",
                };
                let error = Error::new(ErrorKind::Unsupported, format!("{how} coding"));
                return Err(error.with_offset(offset));
            }
        };
        let &[precision, high, low, wide, narrow, components, ref planes @ ..] = segment.bytes
        else {
            return Err(corrupt("a frame that is too short", offset));
        };
        let height = u32::from(u16::from_be_bytes([high, low]));
        let width = u32::from(u16::from_be_bytes([wide, narrow]));
        if !matches!(components, 1 | 3 | 4) || planes.len() != usize::from(components) * 3 {
            let message = format!("{components} planes, described in {} bytes", planes.len());
            return Err(corrupt(&message, offset));
        }
        if precision != 8 && (precision != 12 || coding == JpegCoding::Baseline) {
            return Err(corrupt(&format!("samples of {precision} bits"), offset));
        }
        if width == 0 || height == 0 {
            // A height of 0 means that it comes behind the first scan, which nobody writes.
            return Err(corrupt(&format!("an image of {width} x {height}"), offset));
        }
        if u64::from(width) * u64::from(height) > max_pixels {
            let message =
                format!("an image of {width} x {height} has more than {max_pixels} pixels");
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(offset));
        }
        let subsampling = Subsampling::of(planes)
            .ok_or_else(|| corrupt("a plane that is sampled 0 times, or more than 4", offset))?;
        let says_rgb = planes.iter().step_by(3).eq(b"RGB");
        Ok(Frame { width, height, components, says_rgb, precision, coding, subsampling })
    }

    /// `transform` is that of Adobe's segment: 0 for planes as they are, 1 for YCbCr, 2 for YCCK.
    fn color(&self, transform: Option<u8>) -> JpegColor {
        match (self.components, transform) {
            (1, _) => JpegColor::Grey,
            (4, _) => JpegColor::Cmyk,
            (_, Some(0)) => JpegColor::Rgb,
            (_, None) if self.says_rgb => JpegColor::Rgb,
            _ => JpegColor::YCbCr,
        }
    }
}

impl Subsampling {
    /// Of planes as a frame describes them: three bytes each, of which the second tells how often it
    /// is sampled, across and down.
    fn of(planes: &[u8]) -> Option<Subsampling> {
        let factors: Vec<(u8, u8)> =
            planes.chunks_exact(3).map(|plane| (plane[1] >> 4, plane[1] & 15)).collect();
        if !factors.iter().all(|(across, down)| (1..=4).contains(across) && (1..=4).contains(down))
        {
            return None;
        }
        let [luma, blue, red, ..] = factors[..] else { return Some(Subsampling::Grey) };
        if blue != red || luma.0 % blue.0 != 0 || luma.1 % blue.1 != 0 {
            return Some(Subsampling::Other);
        }
        Some(match (luma.0 / blue.0, luma.1 / blue.1) {
            (1, 1) => Subsampling::S444,
            (2, 1) => Subsampling::S422,
            (2, 2) => Subsampling::S420,
            (1, 2) => Subsampling::S440,
            (4, 1) => Subsampling::S411,
            _ => Subsampling::Other,
        })
    }
}

/// A marker's segment without its length.
struct Segment<'a> {
    offset: u64,
    bytes: &'a [u8],
}

struct Reader<'a> {
    encoded: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8> {
        let byte = *self.encoded.get(self.offset).ok_or_else(|| cut(self.encoded))?;
        self.offset += 1;
        Ok(byte)
    }

    /// The next marker with what belongs to it. Stray bytes in front of it are passed over, as others
    /// do.
    fn segment(&mut self) -> Result<(u8, Segment<'a>)> {
        let kind = loop {
            while self.byte()? != 0xFF {}
            let mut kind = self.byte()?;
            while kind == 0xFF {
                kind = self.byte()?;
            }
            // A zero is a byte of data, and the others have no segment.
            if !matches!(kind, 0 | 1 | 0xD0..=0xD8) {
                break kind;
            }
        };
        let offset = self.offset as u64;
        if kind == marker::EOI {
            return Ok((kind, Segment { offset, bytes: &[] }));
        }
        let len = usize::from(u16::from_be_bytes([self.byte()?, self.byte()?]));
        let Some(len) = len.checked_sub(2) else {
            return Err(corrupt("a segment that is shorter than its own length", offset));
        };
        let bytes = self.encoded.get(self.offset..).and_then(|rest| rest.get(..len));
        let bytes = bytes.ok_or_else(|| cut(self.encoded))?;
        self.offset += len;
        Ok((kind, Segment { offset, bytes }))
    }
}

/// The orientation that an EXIF block names; upright where it names none, or makes no sense.
fn exif(block: &[u8]) -> u8 {
    let number = |at: usize, len: usize| -> Option<u32> {
        let bytes = block.get(at..)?.get(..len)?;
        let add = |sum: u32, byte: &u8| sum << 8 | u32::from(*byte);
        match block.first()? {
            b'I' => Some(bytes.iter().rev().fold(0, add)),
            _ => Some(bytes.iter().fold(0, add)),
        }
    };
    let find = || -> Option<u8> {
        if !block.starts_with(b"II*\0") && !block.starts_with(b"MM\0*") {
            return None;
        }
        let directory = number(4, 4)? as usize;
        let entries = number(directory, 2)? as usize;
        (0..entries).map_while(|entry| directory.checked_add(2 + entry * 12)).find_map(|entry| {
            let is_orientation = number(entry, 2)? == 0x0112 && number(entry + 2, 2)? == 3;
            let value = is_orientation.then(|| number(entry + 8, 2))??;
            u8::try_from(value).ok().filter(|value| (1..=8).contains(value))
        })
    };
    find().unwrap_or(1)
}

fn corrupt(message: &str, offset: u64) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset)
}

fn cut(encoded: &[u8]) -> Error {
    Error::new(ErrorKind::Truncated, "the file ends inside the header of a JPEG")
        .with_offset(encoded.len() as u64)
}

impl fmt::Display for Subsampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subsampling::Grey => "grey",
            Subsampling::S444 => "4:4:4",
            Subsampling::S422 => "4:2:2",
            Subsampling::S420 => "4:2:0",
            Subsampling::S440 => "4:4:0",
            Subsampling::S411 => "4:1:1",
            Subsampling::Other => "another subsampling",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// What Pillow 13 says of the JPEGs that the tests of `spdl-media` decode.
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
    fn headers_are_what_pillow_says() {
        let mut count = 0;
        for (row, encoded) in images() {
            let header = JpegHeader::parse(&encoded).unwrap();
            let [name, width, height, mode, progressive, layers, orientation] = row[..] else {
                panic!("{row:?}")
            };
            assert_eq!(header.width.to_string(), width, "{name}");
            assert_eq!(header.height.to_string(), height, "{name}");
            assert_eq!(header.orientation.to_string(), orientation, "{name}");
            let is_progressive = header.coding == JpegCoding::Progressive;
            assert_eq!(is_progressive, progressive == "1", "{name}");
            let subsampling = match layers {
                "1x1" => Subsampling::Grey,
                "1x1 1x1 1x1" | "1x1 1x1 1x1 1x1" => Subsampling::S444,
                "2x1 1x1 1x1" => Subsampling::S422,
                "2x2 1x1 1x1" => Subsampling::S420,
                "1x2 1x1 1x1" => Subsampling::S440,
                "4x1 1x1 1x1" => Subsampling::S411,
                _ => Subsampling::Other,
            };
            assert_eq!(header.subsampling, subsampling, "{name}");
            let color = match mode {
                "L" => JpegColor::Grey,
                "CMYK" => JpegColor::Cmyk,
                // Pillow gives RGB for both.
                _ if name == "rgb.jpg" => JpegColor::Rgb,
                _ => JpegColor::YCbCr,
            };
            assert_eq!(header.color, color, "{name}");
            assert!(header.has_end, "{name}");
            assert_eq!(header.precision, 8, "{name}");
            count += 1;
        }
        assert_eq!(count, 32);
    }

    #[test]
    fn a_file_that_is_cut_says_so_wherever_it_is() {
        for (row, encoded) in images() {
            let whole = JpegHeader::parse(&encoded).unwrap();
            for len in 0..encoded.len() {
                match JpegHeader::parse(&encoded[..len]) {
                    Ok(header) => {
                        assert_eq!(JpegHeader { has_end: true, ..header }, whole, "{row:?} {len}");
                        assert!(!header.has_end || len + 1 == encoded.len(), "{row:?} {len}");
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Truncated, "{row:?} {len}: {error}");
                        assert_eq!(error.offset(), Some(len as u64), "{row:?} {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_byte_that_is_changed_makes_it_panic() {
        for (_, mut encoded) in images() {
            encoded.truncate(700);
            for at in 0..encoded.len() {
                let before = encoded[at];
                for byte in [0, 1, 3, 0x7F, 0xC0, 0xDA, 0xFF] {
                    encoded[at] = byte;
                    if let Ok(header) = JpegHeader::parse_within(&encoded, 1 << 20) {
                        assert!(header.width > 0 && header.height > 0);
                        assert!((1..=8).contains(&header.orientation));
                        assert!(header.rgb_bytes() <= 3 << 20);
                    }
                }
                encoded[at] = before;
            }
        }
    }

    /// A grey image with this frame header's kind, precision and size.
    fn grey(kind: u8, precision: u8, height: u16, width: u16) -> Vec<u8> {
        let mut encoded = vec![0xFF, 0xD8, 0xFF, kind, 0, 11, precision];
        encoded.extend(height.to_be_bytes());
        encoded.extend(width.to_be_bytes());
        encoded.extend([1, 1, 0x11, 0, 0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0, 0xFF, 0xD9]);
        encoded
    }

    #[test]
    fn what_no_device_decodes_is_told_apart_with_its_offset() {
        let refused = |encoded: &[u8], kind: ErrorKind, text: &str| {
            let error = JpegHeader::parse_within(encoded, 1_000).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(text) && error.offset().is_some(), "{error}");
        };
        assert_eq!(JpegHeader::parse(&grey(0xC1, 12, 5, 6)).unwrap().precision, 12);
        refused(&grey(0xC3, 8, 5, 6), ErrorKind::Unsupported, "lossless");
        refused(&grey(0xC9, 8, 5, 6), ErrorKind::Unsupported, "arithmetic");
        refused(&grey(0xC5, 8, 5, 6), ErrorKind::Unsupported, "hierarchical");
        refused(&grey(0xC0, 12, 5, 6), ErrorKind::Corrupt, "12 bits");
        refused(&grey(0xC0, 8, 0, 6), ErrorKind::Corrupt, "6 x 0");
        refused(&grey(0xC0, 8, 50, 21), ErrorKind::LimitExceeded, "21 x 50");
        assert!(JpegHeader::parse_within(&grey(0xC0, 8, 50, 20), 1_000).is_ok());
        refused(b"GIF89a", ErrorKind::Corrupt, "no JPEG");
        refused(&[0xFF, 0xD8, 0xFF, 0xD9], ErrorKind::Corrupt, "without a scan");
        refused(&[0xFF, 0xD8, 0xFF, 0xDB, 0, 1], ErrorKind::Corrupt, "shorter");
        refused(&[0xFF, 0xD8, 0xFF, 0xDA, 0, 3, 1], ErrorKind::Corrupt, "before its frame");
        let mut two = grey(0xC0, 8, 5, 6);
        let frame = two[2..15].to_vec();
        two.splice(2..2, frame);
        refused(&two, ErrorKind::Corrupt, "second frame");
        let mut planes = grey(0xC0, 8, 5, 6);
        planes[11] = 2;
        refused(&planes, ErrorKind::Corrupt, "2 planes");
        let mut sampled = grey(0xC0, 8, 5, 6);
        sampled[13] = 0x50;
        refused(&sampled, ErrorKind::Corrupt, "sampled");
    }
}
