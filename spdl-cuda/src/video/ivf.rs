//! IVF files: a minimal container for VP8, VP9 and AV1.

use std::iter::FusedIterator;

use spdl_core::{Error, ErrorKind, Result};

use super::format::VideoCodec;

/// Default maximum size of a packet in bytes.
const MAX_PACKET_BYTES: usize = 1 << 28;
/// Size of the frame header: length and timestamp.
const PACKET_HEADER: usize = 12;

/// Iterates over the packets of an IVF file, without copying.
///
/// ```
/// use spdl_cuda::video::{IvfFile, VideoCodec};
/// let mut file = b"DKIF\0\0\x20\0VP90".to_vec();
/// file.extend([64, 0, 48, 0]); // width and height
/// file.extend([25, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]); // 25 / 1 ticks a second, 1 frame
/// file.extend([3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]); // 3 bytes, timestamp 7
/// let mut packets = IvfFile::new(&file)?;
/// assert_eq!((packets.codec(), packets.size()), (VideoCodec::Vp9, (64, 48)));
/// let packet = packets.next().unwrap()?;
/// assert_eq!((packet.data, packet.timestamp), (&[1, 2, 3][..], 7));
/// assert!(packets.next().is_none());
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IvfFile<'a> {
    file: &'a [u8],
    /// Offset of the next frame header.
    at: usize,
    codec: VideoCodec,
    size: (u32, u32),
    ticks: (u32, u32),
    max_bytes: usize,
}

/// A packet of an IVF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IvfPacket<'a> {
    /// The encoded picture.
    pub data: &'a [u8],
    /// The presentation time in [ticks](IvfFile::ticks).
    pub timestamp: i64,
}

impl<'a> IvfFile<'a> {
    /// Parses the file header.
    ///
    /// # Errors
    /// `Corrupt` if the signature is missing; `Truncated` if the file ends inside the header;
    /// `Unsupported` for codecs other than VP8, VP9 and AV1, for versions other than 0, and for
    /// headers of less than 32 bytes.
    pub fn new(file: &'a [u8]) -> Result<Self> {
        if !file.starts_with(b"DKIF") {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "signature \"DKIF\" not found: not an IVF file",
            ));
        }
        let header = file.first_chunk::<32>().ok_or_else(|| {
            let message = format!("IVF header is truncated: {} of 32 bytes", file.len());
            Error::new(ErrorKind::Truncated, message)
        })?;
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let long = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let codec = match &header[8..12] {
            b"VP80" => VideoCodec::Vp8,
            b"VP90" => VideoCodec::Vp9,
            b"AV01" => VideoCodec::Av1,
            other => {
                let other = other.escape_ascii();
                let message = format!("unsupported codec \"{other}\": expected VP80, VP90 or AV01");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        let (version, at) = (short(4), usize::from(short(6)));
        if version != 0 || at < header.len() {
            let message = format!(
                "unsupported IVF version {version} with a header of {at} bytes: expected version 0 with at \
                 least 32 bytes"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(IvfFile {
            file,
            at,
            codec,
            size: (u32::from(short(12)), u32::from(short(14))),
            ticks: (long(16), long(20)),
            max_bytes: MAX_PACKET_BYTES,
        })
    }

    /// Sets the maximum size of a packet. Default: 2²⁸ bytes.
    #[must_use]
    pub fn packet_bytes(mut self, max: usize) -> Self {
        self.max_bytes = max;
        self
    }

    /// The codec.
    pub fn codec(&self) -> VideoCodec {
        self.codec
    }

    /// Width and height in pixels, from the file header. Frames may have other sizes.
    pub fn size(&self) -> (u32, u32) {
        self.size
    }

    /// The time base from the file header: ticks per second, as a fraction.
    pub fn ticks(&self) -> (u32, u32) {
        self.ticks
    }

    fn packet(&self, rest: &'a [u8]) -> Result<IvfPacket<'a>> {
        let truncated = |expected: usize, what: &str| {
            let message = format!("{what} is truncated: {} of {expected} bytes", rest.len());
            Error::new(ErrorKind::Truncated, message)
        };
        let (length, after) = rest
            .split_first_chunk::<4>()
            .ok_or_else(|| truncated(PACKET_HEADER, "IVF frame header"))?;
        let (timestamp, data) = after
            .split_first_chunk::<8>()
            .ok_or_else(|| truncated(PACKET_HEADER, "IVF frame header"))?;
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.max_bytes {
            let message =
                format!("packet of {length} bytes exceeds the limit of {} bytes", self.max_bytes);
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let expected = length.saturating_add(PACKET_HEADER);
        let data = data.get(..length).ok_or_else(|| truncated(expected, "IVF frame"))?;
        Ok(IvfPacket { data, timestamp: i64::from_le_bytes(*timestamp) })
    }
}

impl<'a> Iterator for IvfFile<'a> {
    type Item = Result<IvfPacket<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.file.get(self.at..).filter(|rest| !rest.is_empty())?;
        let start = self.at;
        let packet = self.packet(rest);
        self.at = match &packet {
            Ok(packet) => start + PACKET_HEADER + packet.data.len(),
            // After this error, the start of the next packet is unknown.
            Err(_) => self.file.len(),
        };
        Some(packet.map_err(|error| error.with_offset(start as u64)))
    }
}

impl FusedIterator for IvfFile<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(codec: &[u8; 4], packets: &[(&[u8], i64)]) -> Vec<u8> {
        let mut file = [&b"DKIF\0\0\x20\0"[..], codec, &[64, 1, 240, 0]].concat();
        file.extend(30_000_u32.to_le_bytes());
        file.extend(1001_u32.to_le_bytes());
        file.extend([0; 8]);
        for (data, timestamp) in packets {
            file.extend((data.len() as u32).to_le_bytes());
            file.extend(timestamp.to_le_bytes());
            file.extend(*data);
        }
        file
    }

    #[test]
    fn packets_have_their_timestamps() {
        let file = file(b"AV01", &[(b"one", -1), (b"", 0), (b"three", 1 << 40)]);
        let packets = IvfFile::new(&file).unwrap();
        assert_eq!((packets.codec(), packets.size()), (VideoCodec::Av1, (320, 240)));
        assert_eq!(packets.ticks(), (30_000, 1001));
        let packets: Vec<_> = packets.map(Result::unwrap).collect();
        let expected: [(&[u8], i64); 3] = [(b"one", -1), (b"", 0), (b"three", 1 << 40)];
        assert_eq!(packets, expected.map(|(data, timestamp)| IvfPacket { data, timestamp }));
    }

    #[test]
    fn a_truncated_file_gives_its_complete_packets_and_an_error() {
        let file = file(b"VP80", &[(b"one", 0), (b"two", 1)]);
        for length in 0..file.len() {
            let mut packets = match IvfFile::new(&file[..length]) {
                Ok(packets) => packets,
                Err(error) => {
                    let kind = if length < 4 { ErrorKind::Corrupt } else { ErrorKind::Truncated };
                    assert_eq!((error.kind(), length < 32), (kind, true));
                    continue;
                }
            };
            let whole = (length - 32) / 15;
            assert!(packets.by_ref().take(whole).all(|packet| packet.is_ok()));
            let last = packets.next().map(|packet| packet.unwrap_err());
            assert_eq!(last.is_none(), (length - 32).is_multiple_of(15), "{length}");
            if let Some(error) = last {
                let offset = 32 + 15 * whole as u64;
                assert_eq!((error.kind(), error.offset()), (ErrorKind::Truncated, Some(offset)));
            }
            assert!(packets.next().is_none());
        }
    }

    #[test]
    fn invalid_headers_are_errors() {
        let with = |at: usize, byte: u8| {
            let mut file = file(b"VP90", &[]);
            file[at] = byte;
            IvfFile::new(&file).map(|_| ()).map_err(|error| error.kind())
        };
        assert_eq!(with(0, b'R'), Err(ErrorKind::Corrupt));
        assert_eq!(with(11, b'1'), Err(ErrorKind::Unsupported));
        assert_eq!(with(4, 1), Err(ErrorKind::Unsupported));
        assert_eq!(with(6, 31), Err(ErrorKind::Unsupported));
        assert_eq!(with(6, 255), Ok(()), "the header length may exceed 32 bytes and the file");
    }

    #[test]
    fn a_packet_beyond_the_limit_is_an_error() {
        let file = file(b"VP90", &[(b"four", 0), (b"five5", 0)]);
        let mut packets = IvfFile::new(&file).unwrap().packet_bytes(4);
        assert!(packets.next().unwrap().is_ok());
        assert_eq!(packets.next().unwrap().unwrap_err().kind(), ErrorKind::LimitExceeded);
        let mut huge = file.clone();
        huge[32..36].fill(255);
        let error = IvfFile::new(&huge).unwrap().packet_bytes(usize::MAX).next().unwrap();
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Truncated);
    }
}
