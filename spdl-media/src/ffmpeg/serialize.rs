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
use std::ptr;

use bytes::Bytes;
use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{MediaKind, Rational, StreamCodec, layout_name};
use super::errors::{error_of, out_of_memory};
use super::memory::{PADDING, Packet, Parameters, c_string, padded};
use super::names::{self, number_of};
use super::packets::{Packets, Time, TimeWindow};

/// FFmpeg's own limit of channels of a decoder.
const MAX_CHANNELS: c_int = 512;

const MAGIC: &[u8; 8] = b"SPDLPKT\x01";

/// Packets start at multiples of this number of bytes.
const ALIGNMENT: usize = 64;

impl Packets {
    /// The packets, their codec and their window as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
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
                write_codec(&mut header, codec);
            }
        }
        header.number(self.len() as i64);
        for packet in self.as_slice() {
            let fields = packet.fields();
            for number in [fields.pts, fields.dts, fields.duration, fields.pos] {
                header.number(number);
            }
            header.number(fields.flags.into());
            header.number(packet.bytes().len() as i64);
            let side_data = side_data(fields);
            header.number(side_data.len() as i64);
            for (number, bytes) in side_data {
                header.number(number.into());
                header.bytes(bytes);
            }
        }
        let mut out = Vec::from(*MAGIC);
        out.extend_from_slice(&(header.0.len() as u64).to_le_bytes());
        out.extend_from_slice(&header.0);
        for packet in self.as_slice() {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend_from_slice(packet.bytes());
            out.resize(out.len() + PADDING, 0);
        }
        out
    }

    /// Packets from the bytes of [`to_bytes`](Packets::to_bytes). The packets share the memory of `bytes`.
    ///
    /// # Errors
    /// `Corrupt` for other bytes; `Unsupported` if this build of FFmpeg lacks the codec or a format.
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
        let mut reader = Reader(header.ok_or_else(|| corrupt("the header is truncated"))?);
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
        if reader.number()? == 1 {
            packets = packets.with_codec(read_codec(&mut reader, kind)?);
        }
        let count = reader.number()?;
        let mut position = end.unwrap_or(head);
        for _ in 0..count {
            let numbers = [reader.number()?, reader.number()?, reader.number()?, reader.number()?];
            let flags = reader.int()?;
            let size = reader.size()?;
            let start = position.next_multiple_of(ALIGNMENT);
            let end = start.checked_add(size).filter(|&end| {
                let zeros = end.checked_add(PADDING).and_then(|last| bytes.get(end..last));
                zeros.is_some_and(|zeros| zeros.iter().all(|&byte| byte == 0))
            });
            let end = end.ok_or_else(|| corrupt("a packet is truncated"))?;
            position = end + PADDING;
            let mut packet = Packet::sharing(bytes, start..end)?;
            let fields = packet.fields_mut();
            [fields.pts, fields.dts, fields.duration, fields.pos] = numbers;
            // The other flags are about memory, and about trust in the content.
            fields.flags = flags
                & (ffi::AV_PKT_FLAG_KEY
                    | ffi::AV_PKT_FLAG_CORRUPT
                    | ffi::AV_PKT_FLAG_DISCARD
                    | ffi::AV_PKT_FLAG_DISPOSABLE);
            for _ in 0..reader.number()? {
                let number = reader.int()?;
                add_side_data(&mut packet, number, reader.bytes()?)?;
            }
            packets.push(packet);
        }
        Ok(packets)
    }
}

/// The side data of a packet: numbers of their types, and bytes.
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
    entries.iter().filter(|entry| !entry.data.is_null()).map(read).collect()
}

unsafe extern "C" {
    /// As in libavcodec, with the type as a number, as in `names`.
    fn av_packet_new_side_data(packet: *mut ffi::AVPacket, number: c_int, size: usize) -> *mut u8;
}

/// The types of side data that decoders need, by FFmpeg's number: palettes, new set-up data, changed parameters,
/// and samples to skip. Others are ignored: they may have pointers.
const SIDE_DATA: [c_int; 4] = [0, 1, 2, 11];

fn add_side_data(packet: &mut Packet, number: c_int, bytes: &[u8]) -> Result<()> {
    if !SIDE_DATA.contains(&number) || bytes.is_empty() {
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

fn write_codec(header: &mut Header, codec: &StreamCodec) {
    let fields = codec.parameters().fields();
    header.text(&codec.name());
    header.rational(codec.time_base());
    header.rational(codec.frame_rate());
    header.text(&match codec.kind() {
        MediaKind::Audio => codec.sample_format(),
        MediaKind::Video | MediaKind::Image => codec.pixel_format(),
    });
    header.text(&layout_name(&fields.ch_layout));
    header.number(fields.codec_tag.into());
    header.number(fields.bit_rate);
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
        number_of!(fields.field_order),
        number_of!(fields.color_range),
        number_of!(fields.color_primaries),
        number_of!(fields.color_trc),
        number_of!(fields.color_space),
        number_of!(fields.chroma_location),
        fields.video_delay,
        fields.sample_rate,
        fields.block_align,
        fields.frame_size,
        fields.seek_preroll,
    ]
}

fn read_codec(reader: &mut Reader<'_>, kind: MediaKind) -> Result<StreamCodec> {
    let name = reader.text()?;
    let (time_base, frame_rate) = (reader.rational()?, reader.rational()?);
    let (format, layout) = (reader.text()?, reader.text()?);
    let mut parameters = Parameters::new()?;
    let fields = parameters.fields_mut();
    fields.codec_type = kind.stream_type();
    set_codec(fields, &name)?;
    if !format.is_empty() {
        fields.format = match kind {
            MediaKind::Audio => names::sample_format(&format)?,
            MediaKind::Video | MediaKind::Image => names::pixel_format(&format)?,
        };
    }
    if kind == MediaKind::Audio && !layout.is_empty() {
        set_layout(fields, &layout)?;
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
    // The largest number of each enumeration in all versions of FFmpeg, and the number of an unknown value.
    let enumerations: [(*mut c_int, c_int, c_int); 6] = [
        ((&raw mut fields.field_order).cast(), 5, 0),
        ((&raw mut fields.color_range).cast(), 2, 0),
        ((&raw mut fields.color_primaries).cast(), 12, 2),
        ((&raw mut fields.color_trc).cast(), 18, 2),
        ((&raw mut fields.color_space).cast(), 14, 2),
        ((&raw mut fields.chroma_location).cast(), 6, 0),
    ];
    for (place, largest, unknown) in enumerations {
        let number = reader.int()?;
        let number = if (0..=largest).contains(&number) { number } else { unknown };
        // SAFETY: an enumeration of C has the size of an integer, and has this number.
        unsafe { place.write(number) };
    }
    fields.video_delay = reader.int_in(0..=16)?;
    fields.sample_rate = reader.int_in(0..=1 << 24)?;
    fields.block_align = reader.int_in(0..=1 << 24)?;
    fields.frame_size = reader.int_in(0..=1 << 24)?;
    fields.seek_preroll = reader.int_in(0..=1 << 30)?;
    (fields.extradata, fields.extradata_size) = padded(reader.bytes()?)?;
    Ok(StreamCodec::new(kind, parameters, time_base, frame_rate))
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

    fn int_in(&mut self, allowed: std::ops::RangeInclusive<c_int>) -> Result<c_int> {
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
