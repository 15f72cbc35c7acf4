//! What the markers of a JPEG file tell, for codecs whose decoders do not say it before they
//! allocate: see ITU-T T.81, B.1 and B.2.

use spdl_core::{Error, ErrorKind, Result};

use crate::{ImageInfo, Orientation, Size, exif};

const SOI: u8 = 0xD8;
const EOI: u8 = 0xD9;
const SOS: u8 = 0xDA;
const APP1: u8 = 0xE1;
/// The side of a block of samples, and the bytes of its coefficients in a decoder's memory.
const BLOCK: u64 = 8;
const BLOCK_BYTES: u64 = BLOCK * BLOCK * 2;

/// The header of a JPEG file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Markers {
    pub(super) info: ImageInfo,
    /// What the coefficients of the whole image take, where a decoder has to keep them all because
    /// they come in several scans; else 0.
    pub(super) coefficient_bytes: u64,
    /// Where the first scan's data begin.
    data: usize,
}

struct Frame {
    size: Size,
    progressive: bool,
    components: usize,
    coefficient_bytes: u64,
}

impl Markers {
    /// Reads up to the first scan's data.
    pub(super) fn read(encoded: &[u8]) -> Result<Markers> {
        let (mut frame, mut orientation) = (None, Orientation::Upright);
        let mut at = 2;
        loop {
            let (marker, segment, next) = segment(encoded, at)?;
            match marker {
                // DHT, JPG and DAC share their range with the frame headers.
                0xC0..=0xCF if ![0xC4, 0xC8, 0xCC].contains(&marker) => {
                    frame = Some(read_frame(marker, segment, at)?);
                }
                APP1 if segment.starts_with(b"Exif\0\0") => {
                    orientation = exif::orientation(segment);
                }
                EOI => return Err(corrupt("the JPEG holds no scan; expected one at least", at)),
                SOS => {
                    let Some(frame) = frame else {
                        return Err(corrupt("a JPEG scan before the frame header", at));
                    };
                    let scanned = segment.first().copied().unwrap_or(0);
                    let at_once = !frame.progressive && usize::from(scanned) == frame.components;
                    return Ok(Markers {
                        info: ImageInfo::new(frame.size, orientation),
                        coefficient_bytes: if at_once { 0 } else { frame.coefficient_bytes },
                        data: next,
                    });
                }
                _ => {}
            }
            at = next;
        }
    }

    /// Whether the last scan is followed by the end-of-image marker: where it is not, the data were
    /// cut off. Decoders that make up what is missing do not tell.
    pub(super) fn check_end(&self, encoded: &[u8]) -> Result<()> {
        let mut at = self.data;
        loop {
            // In a scan's data, 0xFF is followed by 0 where it stands for itself, by a restart
            // marker, or by the marker that ends it.
            let Some(step) =
                encoded.get(at..).and_then(|rest| rest.iter().position(|&b| b == 0xFF))
            else {
                return Err(truncated("the JPEG data end early", encoded.len()));
            };
            at += step;
            match encoded.get(at + 1) {
                None => return Err(truncated("the JPEG data end early", encoded.len())),
                Some(&EOI) => return Ok(()),
                Some(0 | 0xD0..=0xD7) => at += 2,
                Some(0xFF) => at += 1,
                Some(_) => (_, _, at) = segment(encoded, at)?,
            }
        }
    }
}

/// The marker at an address, after filling bytes: its kind, its content, and what follows it.
fn segment(encoded: &[u8], start: usize) -> Result<(u8, &[u8], usize)> {
    let early = || truncated("the JPEG header ends early", encoded.len());
    let mut at = start;
    if *encoded.get(at).ok_or_else(early)? != 0xFF {
        return Err(corrupt(format!("expected a JPEG marker, found {:#04x}", encoded[at]), at));
    }
    while *encoded.get(at).ok_or_else(early)? == 0xFF {
        at += 1;
    }
    let marker = encoded[at];
    at += 1;
    // Some have no content.
    if matches!(marker, 0x01 | 0xD0..=0xD7 | SOI | EOI) {
        return Ok((marker, &[], at));
    }
    let [high, low] = *encoded.get(at..).and_then(|rest| rest.first_chunk()).ok_or_else(early)?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length < 2 {
        return Err(corrupt(format!("a JPEG segment of {length} bytes; expected 2 at least"), at));
    }
    let content = encoded.get(at + 2..at + length).ok_or_else(early)?;
    Ok((marker, content, at + length))
}

fn read_frame(marker: u8, segment: &[u8], at: usize) -> Result<Frame> {
    let [_, h1, h0, w1, w0, components, factors @ ..] = segment else {
        return Err(corrupt("the JPEG frame header is too short", at));
    };
    let size =
        Size::new(u16::from_be_bytes([*w1, *w0]).into(), u16::from_be_bytes([*h1, *h0]).into());
    let components = usize::from(*components);
    let sampling = || {
        let factors = factors.as_chunks::<3>().0.iter().take(components);
        factors.map(|[_, both, _]| (u64::from(both >> 4), u64::from(both & 15)))
    };
    if components == 0 || sampling().count() != components || sampling().any(|f| f.0 * f.1 == 0) {
        return Err(corrupt("the JPEG frame header contradicts itself", at));
    }
    let across = sampling().map(|factors| factors.0).max().unwrap_or(1);
    let down = sampling().map(|factors| factors.1).max().unwrap_or(1);
    let units = u64::from(size.width).div_ceil(BLOCK * across)
        * u64::from(size.height).div_ceil(BLOCK * down);
    let blocks: u64 = sampling().map(|(across, down)| across * down).sum();
    Ok(Frame {
        size,
        // The kinds are sequential, progressive or lossless, in three variants each.
        progressive: marker & 3 == 2,
        components,
        coefficient_bytes: units * blocks * BLOCK_BYTES,
    })
}

fn corrupt(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}

fn truncated(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Truncated, message).with_offset(offset as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
        std::fs::read(format!("{folder}/{name}")).unwrap()
    }

    #[test]
    fn the_header_tells_size_orientation_and_what_several_scans_need() {
        let read = |name| Markers::read(&data(name)).unwrap();
        let size = Size::new(37, 29);
        assert_eq!(read("420.jpg").info, ImageInfo::new(size, Orientation::Upright));
        assert_eq!(read("420.jpg").coefficient_bytes, 0);
        // 3 × 2 coded units of 6 blocks, and 5 × 4 blocks of each of 3 components.
        assert_eq!(read("420-progressive.jpg").coefficient_bytes, 3 * 2 * 6 * 128);
        assert_eq!(read("444-progressive.jpg").coefficient_bytes, 5 * 4 * 3 * 128);
        assert_eq!(read("orientation-6.jpg").info.orientation.exif(), 6);
    }

    #[test]
    fn the_end_is_found_and_missed_wherever_the_file_is_cut() {
        for name in ["420.jpg", "restarts.jpg", "444-progressive.jpg", "grey.jpg"] {
            let file = data(name);
            let markers = Markers::read(&file).unwrap();
            assert!(markers.check_end(&file).is_ok(), "{name}");
            let kind = |end: usize| {
                let cut = &file[..end];
                let outcome = Markers::read(cut).and_then(|markers| markers.check_end(cut));
                outcome.err().map(|error| error.kind())
            };
            for end in 2..file.len() {
                assert_eq!(kind(end), Some(ErrorKind::Truncated), "{name} cut to {end}");
            }
        }
    }

    #[test]
    fn nonsense_is_corrupt() {
        let kind = |bytes: &[u8]| Markers::read(bytes).err().map(|error| error.kind());
        assert_eq!(kind(b"\xFF\xD8\xFF\xD9"), Some(ErrorKind::Corrupt));
        assert_eq!(kind(b"\xFF\xD8\xFF\xFE\0\x01"), Some(ErrorKind::Corrupt));
        assert_eq!(kind(b"\xFF\xD8\xFF\xDA\0\x02"), Some(ErrorKind::Corrupt));
        assert_eq!(kind(b"\xFF\xD8\x00"), Some(ErrorKind::Corrupt));
        assert_eq!(kind(b"\xFF\xD8\xFF\xC0\0\x08\x08\0\x01\0\x01\x03"), Some(ErrorKind::Corrupt));
    }
}
