//! Packets as bytes, for other processes and machines.
//!
//! ```text
//! "SPDLPKT" version │ bytes of the header (u64) │ header │ 0s │ packet, 0s │ packet, 0s │ …
//! ```
//!
//! Numbers are little-endian. Codecs and formats are stored by name, because their numbers differ between versions of FFmpeg. Each
//! packet starts at a multiple of 64 bytes, and is followed by the 0s that decoders require, so that it
//! can be decoded in place.

use std::ffi::{c_int, c_uint};
use std::ops::{Range, RangeInclusive};
use std::ptr;

use bytes::Bytes;
use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{MediaKind, Rational, StreamCodec};
use super::errors::{error_of, out_of_memory};
use super::memory::{PADDING, Packet, Parameters, c_string, padded};
use super::names::{self, number_of};
use super::packets::{Packets, Time, TimeWindow};

/// FFmpeg's own limit of channels of a decoder.
const MAX_CHANNELS: c_int = 512;

const MAGIC: &[u8; 8] = b"SPDLPKT\x01";

/// The flags of packets that are kept. The others are about memory, and about trust in the content.
const FLAGS: c_int = ffi::AV_PKT_FLAG_KEY
    | ffi::AV_PKT_FLAG_CORRUPT
    | ffi::AV_PKT_FLAG_DISCARD
    | ffi::AV_PKT_FLAG_DISPOSABLE;

/// Packets start at multiples of this number of bytes.
const ALIGNMENT: usize = 64;

impl Packets {
    /// The packets, their codec and their window as bytes.
    ///
    /// Side data that decoders do not need, and unknown values of enumerations, are omitted.
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = self.header(&self.codec().map(FormatNames::of).unwrap_or_default());
        let mut out = Vec::from(*MAGIC);
        out.extend_from_slice(&(header.len() as u64).to_le_bytes());
        out.extend_from_slice(&header);
        for packet in self.as_slice() {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend_from_slice(packet.bytes());
            out.resize(out.len() + PADDING, 0);
        }
        out
    }

    fn header(&self, names: &FormatNames) -> Vec<u8> {
        let mut header = Header::default();
        header.number(self.kind() as u8 as i64);
        header.rational(self.time_base());
        match self.window() {
            None => header.number(0),
            Some(window) => {
                header.number(1);
                for time in [window.start(), window.end()] {
                    let (numerator, denominator) = time.parts();
                    header.number(numerator);
                    header.number(denominator);
                }
            }
        }
        match self.codec() {
            None => header.number(0),
            Some(codec) => {
                header.number(1);
                write_codec(&mut header, codec, names);
            }
        }
        header.number(self.len() as i64);
        for packet in self.as_slice() {
            let fields = packet.fields();
            for number in [fields.pts, fields.dts, fields.duration, fields.pos] {
                header.number(number);
            }
            header.number((fields.flags & FLAGS).into());
            header.number(packet.bytes().len() as i64);
            let side_data = side_data(fields);
            header.number(side_data.len() as i64);
            for (number, bytes) in side_data {
                header.number(number.into());
                header.bytes(bytes);
            }
        }
        header.0
    }

    /// Packets from the bytes of [`to_bytes`](Packets::to_bytes). The packets share the memory of `bytes`.
    ///
    /// # Errors
    /// `Corrupt` for bytes that `to_bytes` never writes; `Unsupported` if this build of FFmpeg lacks the codec
    /// or a format.
    pub fn from_bytes(bytes: &Bytes) -> Result<Self> {
        Packets::parse(bytes).map_err(|error| match error.kind() {
            // The bytes are at fault, not an argument.
            ErrorKind::InvalidArgument => {
                Error::new(ErrorKind::Corrupt, error.message().to_owned())
            }
            _ => error,
        })
    }

    fn parse(bytes: &Bytes) -> Result<Self> {
        let head = bytes.len().min(MAGIC.len() + 8);
        let length = match bytes[..head].split_at_checked(MAGIC.len()) {
            Some((magic, length)) if magic == MAGIC => length,
            _ => return Err(corrupt("the magic number of version 1 was not found")),
        };
        let length = <[u8; 8]>::try_from(length).map(u64::from_le_bytes);
        let end = length.ok().and_then(|length| usize::try_from(length).ok()?.checked_add(head));
        let header = end.and_then(|end| bytes.get(head..end));
        let header = header.ok_or_else(|| corrupt("the header is truncated"))?;
        let mut reader = Reader(header);
        let kind = match reader.number()? {
            0 => MediaKind::Audio,
            1 => MediaKind::Video,
            2 => MediaKind::Image,
            other => return Err(corrupt(&format!("unknown kind of media: {other}"))),
        };
        let unit = reader.rational()?;
        if unit.numerator <= 0 || unit.denominator <= 0 {
            return Err(corrupt("the unit of time stamps is not positive"));
        }
        let mut packets = Packets::new(kind, unit);
        if reader.number()? == 1 {
            let mut time = || Time::new(reader.number()?, reader.number()?);
            let (start, end) = (time()?, time()?);
            packets.set_window(Some(TimeWindow::new(start, end)?));
        }
        let mut names = FormatNames::default();
        if reader.number()? == 1 {
            let codec;
            (codec, names) = read_codec(&mut reader, kind)?;
            packets = packets.with_codec(codec);
        }
        let count = reader.number()?;
        let mut position = end.unwrap_or(head);
        for _ in 0..count {
            let numbers = [reader.number()?, reader.number()?, reader.number()?, reader.number()?];
            let flags = reader.int()?;
            let size = reader.size()?;
            let start = position.next_multiple_of(ALIGNMENT);
            let is_zero = |range: Range<usize>| {
                bytes.get(range).is_some_and(|zeros| zeros.iter().all(|&byte| byte == 0))
            };
            let end = start.checked_add(size).filter(|&end| {
                let last = end.checked_add(PADDING);
                is_zero(position..start) && last.is_some_and(|last| is_zero(end..last))
            });
            let end = end.ok_or_else(|| corrupt("a packet is truncated"))?;
            position = end + PADDING;
            let mut packet = Packet::sharing(bytes, start..end)?;
            let fields = packet.fields_mut();
            [fields.pts, fields.dts, fields.duration, fields.pos] = numbers;
            fields.flags = flags & FLAGS;
            for _ in 0..reader.number()? {
                let number = reader.int()?;
                add_side_data(&mut packet, number, reader.bytes()?)?;
            }
            packets.push(packet);
        }
        if packets.header(&names) != header || position != bytes.len() {
            return Err(corrupt("some bytes have values that are never written"));
        }
        Ok(packets)
    }
}

/// The side data of a packet that decoders need: numbers of their types, and bytes.
fn side_data(packet: &ffi::AVPacket) -> Vec<(c_int, &[u8])> {
    let count = usize::try_from(packet.side_data_elems).unwrap_or(0);
    if packet.side_data.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: a packet has this many entries.
    let entries = unsafe { std::slice::from_raw_parts(packet.side_data, count) };
    let read = |entry: &ffi::AVPacketSideData| {
        // SAFETY: an enumeration of C has the size of an integer.
        let number = unsafe { (&raw const entry.type_).cast::<c_int>().read() };
        // SAFETY: an entry has `size` bytes, and lives as long as the packet.
        (number, unsafe { std::slice::from_raw_parts(entry.data, entry.size) })
    };
    let entries = entries.iter().filter(|entry| !entry.data.is_null()).map(read);
    entries.filter(|(number, bytes)| is_kept(*number, bytes)).collect()
}

unsafe extern "C" {
    /// As in libavcodec, with the type as a number, as in `names`.
    fn av_packet_new_side_data(packet: *mut ffi::AVPacket, number: c_int, size: usize) -> *mut u8;
}

/// The types of side data that decoders need, by FFmpeg's number: palettes, new set-up data, changed parameters,
/// and samples to skip. Others are ignored: they may have pointers.
const SIDE_DATA: [c_int; 4] = [0, 1, 2, 11];

fn is_kept(number: c_int, bytes: &[u8]) -> bool {
    SIDE_DATA.contains(&number) && !bytes.is_empty()
}

fn add_side_data(packet: &mut Packet, number: c_int, bytes: &[u8]) -> Result<()> {
    if !is_kept(number, bytes) {
        return Ok(());
    }
    // SAFETY: the packet is valid; the result is null or has this size.
    let memory = unsafe { av_packet_new_side_data(packet.as_ptr(), number, bytes.len()) };
    if memory.is_null() {
        return Err(out_of_memory("side data of a packet"));
    }
    // SAFETY: the memory is new, and has the size of `bytes`.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) };
    Ok(())
}

/// The names of the sample or pixel format and of the channels. Other versions of FFmpeg may use other
/// names.
#[derive(Default)]
struct FormatNames {
    format: String,
    layout: String,
}

impl FormatNames {
    fn of(codec: &StreamCodec) -> Self {
        match codec.kind() {
            MediaKind::Audio => {
                FormatNames { format: codec.sample_format(), layout: codec.channel_layout() }
            }
            MediaKind::Video | MediaKind::Image => {
                FormatNames { format: codec.pixel_format(), layout: String::new() }
            }
        }
    }
}

fn write_codec(header: &mut Header, codec: &StreamCodec, names: &FormatNames) {
    let fields = codec.parameters().fields();
    header.text(&codec.name());
    header.rational(codec.time_base());
    header.rational(codec.frame_rate());
    header.text(&names.format);
    header.text(&names.layout);
    header.number(fields.codec_tag.into());
    header.number(fields.bit_rate.max(0));
    for number in ints(fields) {
        header.number(number.into());
    }
    let extradata = usize::try_from(fields.extradata_size).unwrap_or(0);
    header.bytes(match extradata {
        _ if fields.extradata.is_null() => &[],
        // SAFETY: the parameters have this many bytes of set-up data.
        size => unsafe { std::slice::from_raw_parts(fields.extradata, size) },
    });
}

/// The values of an enumeration that all versions of FFmpeg have: from 0 on.
struct Enumeration {
    largest: c_int,
    /// The value for an unknown one.
    unknown: c_int,
}

const FIELD_ORDER: Enumeration = Enumeration { largest: 5, unknown: 0 };
const COLOR_RANGE: Enumeration = Enumeration { largest: 2, unknown: 0 };
const COLOR_PRIMARIES: Enumeration = Enumeration { largest: 12, unknown: 2 };
const COLOR_TRC: Enumeration = Enumeration { largest: 18, unknown: 2 };
const COLOR_SPACE: Enumeration = Enumeration { largest: 14, unknown: 2 };
const CHROMA_LOCATION: Enumeration = Enumeration { largest: 6, unknown: 0 };

impl Enumeration {
    fn known(&self, number: c_int) -> c_int {
        if (0..=self.largest).contains(&number) { number } else { self.unknown }
    }
}

/// The fields of parameters that are integers.
fn ints(fields: &ffi::AVCodecParameters) -> [c_int; 19] {
    [
        fields.bits_per_coded_sample,
        // `bits_per_raw_sample`: decoders set this field, and some use it as an index.
        0,
        fields.profile,
        fields.level,
        fields.width,
        fields.height,
        fields.sample_aspect_ratio.num,
        fields.sample_aspect_ratio.den,
        FIELD_ORDER.known(number_of!(fields.field_order)),
        COLOR_RANGE.known(number_of!(fields.color_range)),
        COLOR_PRIMARIES.known(number_of!(fields.color_primaries)),
        COLOR_TRC.known(number_of!(fields.color_trc)),
        COLOR_SPACE.known(number_of!(fields.color_space)),
        CHROMA_LOCATION.known(number_of!(fields.chroma_location)),
        fields.video_delay,
        fields.sample_rate,
        fields.block_align,
        fields.frame_size,
        fields.seek_preroll,
    ]
}

fn read_codec(reader: &mut Reader<'_>, kind: MediaKind) -> Result<(StreamCodec, FormatNames)> {
    let name = reader.text()?;
    let (time_base, frame_rate) = (reader.rational()?, reader.rational()?);
    let names = FormatNames { format: reader.text()?, layout: reader.text()? };
    let mut parameters = Parameters::new()?;
    let fields = parameters.fields_mut();
    fields.codec_type = kind.stream_type();
    set_codec(fields, &name)?;
    if !names.format.is_empty() {
        fields.format = match kind {
            MediaKind::Audio => names::sample_format(&names.format)?,
            MediaKind::Video | MediaKind::Image => names::pixel_format(&names.format)?,
        };
    }
    match kind {
        _ if names.layout.is_empty() => {}
        MediaKind::Audio => set_layout(fields, &names.layout)?,
        MediaKind::Video | MediaKind::Image => return Err(corrupt("a video with audio channels")),
    }
    fields.codec_tag =
        u32::try_from(reader.number()?).map_err(|_| corrupt("the codec tag is out of range"))?;
    fields.bit_rate = reader.number()?.max(0);
    let side = 0..=1 << 24;
    fields.bits_per_coded_sample = reader.int_in(0..=64)?;
    reader.int()?;
    fields.profile = reader.int()?;
    fields.level = reader.int()?;
    fields.width = reader.int_in(side.clone())?;
    fields.height = reader.int_in(side)?;
    fields.sample_aspect_ratio = ffi::AVRational { num: reader.int()?, den: reader.int()? };
    let enumerations: [(*mut c_int, Enumeration); 6] = [
        ((&raw mut fields.field_order).cast(), FIELD_ORDER),
        ((&raw mut fields.color_range).cast(), COLOR_RANGE),
        ((&raw mut fields.color_primaries).cast(), COLOR_PRIMARIES),
        ((&raw mut fields.color_trc).cast(), COLOR_TRC),
        ((&raw mut fields.color_space).cast(), COLOR_SPACE),
        ((&raw mut fields.chroma_location).cast(), CHROMA_LOCATION),
    ];
    for (place, enumeration) in enumerations {
        let number = enumeration.known(reader.int()?);
        // SAFETY: an enumeration of C has the size of an integer, and has this number.
        unsafe { place.write(number) };
    }
    fields.video_delay = reader.int_in(0..=16)?;
    fields.sample_rate = reader.int_in(0..=1 << 24)?;
    fields.block_align = reader.int_in(0..=1 << 24)?;
    fields.frame_size = reader.int_in(0..=1 << 24)?;
    fields.seek_preroll = reader.int_in(0..=1 << 30)?;
    (fields.extradata, fields.extradata_size) = padded(reader.bytes()?)?;
    Ok((StreamCodec::new(kind, parameters, time_base, frame_rate), names))
}

fn set_codec(fields: &mut ffi::AVCodecParameters, name: &str) -> Result<()> {
    let string = c_string(name)?;
    // SAFETY: the name is terminated with 0; the result is null or a constant of the library.
    let descriptor = unsafe { ffi::avcodec_descriptor_get_by_name(string.as_ptr()) };
    // SAFETY: as above.
    let descriptor = unsafe { descriptor.as_ref() }.ok_or_else(|| {
        let message = format!("this build of FFmpeg does not know the codec {name:?}");
        Error::new(ErrorKind::Unsupported, message)
    })?;
    // SAFETY: an enumeration of C has the size of an integer.
    let number = unsafe { (&raw const descriptor.id).cast::<c_uint>().read() };
    // SAFETY: as above, and the library knows this number.
    unsafe { (&raw mut fields.codec_id).cast::<c_uint>().write(number) };
    Ok(())
}

fn set_layout(fields: &mut ffi::AVCodecParameters, name: &str) -> Result<()> {
    let string = c_string(name)?;
    // SAFETY: the name is terminated with 0; the layout of new parameters is blank.
    let code =
        unsafe { ffi::av_channel_layout_from_string(&mut fields.ch_layout, string.as_ptr()) };
    if code < 0 {
        return Err(error_of(code, &format!("unknown channels {name:?}")));
    }
    if fields.ch_layout.nb_channels > MAX_CHANNELS {
        return Err(corrupt("there are more than 512 channels"));
    }
    Ok(())
}

#[derive(Default)]
struct Header(Vec<u8>);

impl Header {
    fn number(&mut self, number: i64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn rational(&mut self, value: Rational) {
        self.number(value.numerator.into());
        self.number(value.denominator.into());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as i64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Result<i64> {
        let (number, rest) =
            self.0.split_first_chunk().ok_or_else(|| corrupt("the header is truncated"))?;
        self.0 = rest;
        Ok(i64::from_le_bytes(*number))
    }

    fn int(&mut self) -> Result<c_int> {
        c_int::try_from(self.number()?).map_err(|_| corrupt("a number is out of range"))
    }

    fn int_in(&mut self, allowed: RangeInclusive<c_int>) -> Result<c_int> {
        let number = self.int()?;
        if allowed.contains(&number) {
            return Ok(number);
        }
        Err(corrupt(&format!("{number} is not in the range {allowed:?}")))
    }

    fn size(&mut self) -> Result<usize> {
        usize::try_from(self.number()?).map_err(|_| corrupt("a size is negative"))
    }

    fn rational(&mut self) -> Result<Rational> {
        Ok(Rational::new(self.int()?, self.int()?))
    }

    fn bytes(&mut self) -> Result<&'a [u8]> {
        let size = self.size()?;
        let (bytes, rest) =
            self.0.split_at_checked(size).ok_or_else(|| corrupt("the header is truncated"))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| corrupt("a name is not UTF-8"))
    }
}

fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("corrupt packets: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffmpeg::{DemuxOptions, Demuxer};

    #[test]
    fn data_that_decoders_do_not_need_is_not_written() {
        // In an MPEG transport stream, packets have the identifier of their stream as side data.
        let file = Bytes::from_static(include_bytes!("../../tests/audio/container.ts"));
        let mut demuxer =
            Demuxer::open(Box::new(file), "container.ts", &DemuxOptions::default()).unwrap();
        let mut packets = demuxer.demux(MediaKind::Audio, None).unwrap();
        assert!(packets.as_slice().iter().any(|packet| packet.fields().side_data_elems > 0));
        let mut packet = packets.as_slice()[0].share().unwrap();
        packet.fields_mut().flags |= ffi::AV_PKT_FLAG_TRUSTED;
        packets.push(packet);
        let codec = packets.codec().unwrap();
        let mut parameters = Parameters::of(codec.parameters().fields()).unwrap();
        parameters.fields_mut().bit_rate = -1;
        let (time_base, frame_rate) = (codec.time_base(), codec.frame_rate());
        let codec = StreamCodec::new(MediaKind::Audio, parameters, time_base, frame_rate);
        let packets = packets.with_codec(codec);

        let bytes = Bytes::from(packets.to_bytes());
        let read = Packets::from_bytes(&bytes).unwrap();
        assert_eq!(read.to_bytes(), bytes);
        assert_eq!(read.len(), packets.len());
        assert!(read.as_slice().iter().all(|packet| packet.fields().side_data_elems == 0));
        assert_eq!((COLOR_PRIMARIES.known(22), COLOR_PRIMARIES.known(9)), (2, 9));
    }

    #[test]
    fn bytes_that_are_never_written_are_corrupt() {
        let stored = include_bytes!("../../tests/packets/h264.packets");
        let header_end = 16 + usize::from(u16::from_le_bytes([stored[8], stored[9]]));
        assert!(!header_end.is_multiple_of(ALIGNMENT));
        // Kind and time base are before the number of windows; the last 8 bytes of the header are the
        // number of entries of side data.
        for (at, value) in [(16 + 24, 2), (header_end - 1, 0x80), (header_end, 1)] {
            let mut changed = stored.to_vec();
            assert_eq!(changed[at], 0);
            changed[at] = value;
            let error = Packets::from_bytes(&changed.into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {error}");
        }
        let longer = [&stored[..], &[0]].concat();
        let error = Packets::from_bytes(&longer.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(Packets::from_bytes(&Bytes::from_static(stored)).is_ok());
    }
}
