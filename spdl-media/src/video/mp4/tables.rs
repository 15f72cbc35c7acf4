//! The sample tables of a track: where its samples are, and when they are decoded and presented.

use std::slice::ChunksExact;

use spdl_core::{Error, ErrorKind, Result};

use super::boxes::{FourCc, Mp4Box};
use crate::video::index::VideoColor;
use crate::video::limits::VideoLimits;

/// A sample of a track in decoding order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mp4Sample {
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) decode_time: i64,
    /// The time stamp of the presentation, before edit lists.
    pub(super) composition_time: i64,
    /// The time to the next sample in decoding order.
    pub(super) duration: u32,
    pub(super) is_key: bool,
    pub(super) is_disposable: bool,
}

/// Appends a sample.
pub(super) fn push_sample(samples: &mut Vec<Mp4Sample>, sample: Mp4Sample) -> Result<()> {
    samples.try_reserve(1).map_err(|_| {
        let message = format!("cannot allocate the index of {} packets", samples.len());
        Error::new(ErrorKind::LimitExceeded, message)
    })?;
    samples.push(sample);
    Ok(())
}

/// The boxes of `stbl`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SampleTables<'a> {
    pub(super) descriptions: Option<Mp4Box<'a>>,
    decode_times: Option<Mp4Box<'a>>,
    composition_offsets: Option<Mp4Box<'a>>,
    sync_samples: Option<Mp4Box<'a>>,
    partial_sync_samples: Option<Mp4Box<'a>>,
    sizes: Option<Mp4Box<'a>>,
    chunk_samples: Option<Mp4Box<'a>>,
    chunk_offsets: Option<Mp4Box<'a>>,
    dependencies: Option<Mp4Box<'a>>,
    random_access_group: Option<Mp4Box<'a>>,
}

impl<'a> SampleTables<'a> {
    pub(super) fn new(stbl: Mp4Box<'a>) -> Self {
        let mut tables = SampleTables::default();
        for child in stbl.children() {
            let place = match &child.kind {
                b"stsd" => &mut tables.descriptions,
                b"stts" => &mut tables.decode_times,
                b"ctts" => &mut tables.composition_offsets,
                b"stss" => &mut tables.sync_samples,
                b"stps" => &mut tables.partial_sync_samples,
                b"stsz" | b"stz2" => &mut tables.sizes,
                b"stsc" => &mut tables.chunk_samples,
                b"stco" | b"co64" => &mut tables.chunk_offsets,
                b"sdtp" => &mut tables.dependencies,
                b"sbgp" if child.content.get(4..8) == Some(b"rap ") => {
                    &mut tables.random_access_group
                }
                _ => continue,
            };
            // FFmpeg, too, ignores a second table.
            place.get_or_insert(child);
        }
        tables
    }

    /// Whether the samples are in these tables, not in fragments.
    pub(super) fn has_samples(&self) -> bool {
        let count = |table: Option<Mp4Box<'_>>, at| table.and_then(|table| table.u32(at).ok());
        count(self.sizes, 8).unwrap_or(0) > 0 && count(self.chunk_offsets, 4).unwrap_or(0) > 0
    }

    /// Whether there are decoding times. Fragmented files have none here.
    pub(super) fn has_decode_times(&self) -> bool {
        self.decode_times.and_then(|times| times.u32(4).ok()).is_some_and(|count| count > 0)
    }

    /// The samples, and the numbers (from 1) of their descriptions in order of use.
    ///
    /// The tables may disagree about the number of samples. Samples without a size or a chunk are
    /// left out. After the end of `stts` its last duration applies; after the end of `ctts` the
    /// offset is 0. If all samples have the same size, no more of them are listed than fit in the
    /// file.
    pub(super) fn samples(
        &self,
        file_bytes: u64,
        limits: &VideoLimits,
    ) -> Result<(Vec<Mp4Sample>, Vec<u32>)> {
        if !self.has_samples() {
            return Ok((Vec::new(), Vec::new()));
        }
        let required = |table: Option<Mp4Box<'a>>, name: &str| {
            table.ok_or_else(|| {
                let message = format!("corrupt MP4: box \"{name}\" not found in the video track");
                Error::new(ErrorKind::Corrupt, message)
            })
        };
        let stts = required(self.decode_times, "stts")?;
        let stsc = required(self.chunk_samples, "stsc")?;
        let sizes = SampleSizes::new(required(self.sizes, "stsz")?)?;
        limits.check_packets(sizes.count)?;
        let offsets = required(self.chunk_offsets, "stco")?;
        let offset_bytes = if offsets.kind == *b"co64" { 8 } else { 4 };
        let offsets = offsets.table(4, offset_bytes)?.chunks_exact(offset_bytes);
        let mut durations = Runs::new(stts.table(4, 8)?);
        let mut compositions = match self.composition_offsets {
            Some(table) => Runs::new(table.table(4, 8)?),
            None => Runs::new(&[]),
        };
        let mut keys = Keys::new(self)?;
        let dependencies = self.dependencies.and_then(|table| table.content.get(4..));

        let mut chunk_runs = stsc.table(4, 12)?.chunks_exact(12).peekable();
        let first = chunk_runs.next().ok_or_else(|| stsc.corrupt("has no entries"))?;
        let (mut in_chunk, mut description) = (word(first, 4), word(first, 8));
        let mut samples = Vec::new();
        let mut descriptions: Vec<u32> = Vec::new();
        let (mut decode_time, mut duration) = (0_i64, None);
        let mut constant_bytes = 0;
        'chunks: for (chunk, offset) in (1_u32..).zip(offsets) {
            while let Some(run) = chunk_runs.next_if(|run| word(run, 0) <= chunk) {
                (in_chunk, description) = (word(run, 4), word(run, 8));
            }
            if in_chunk > 0 && !descriptions.contains(&description) {
                check_descriptions(descriptions.len())?;
                descriptions.push(description);
            }
            let mut offset = number(offset);
            for _ in 0..in_chunk {
                let number = samples.len();
                let Some(bytes) = sizes.get(number) else { break 'chunks };
                if sizes.constant > 0 {
                    constant_bytes += u64::from(bytes);
                    if constant_bytes > file_bytes {
                        break 'chunks;
                    }
                }
                duration = durations.next().map(clip_duration).or(duration);
                let duration = duration.ok_or_else(|| stts.corrupt("has no entries"))?;
                let composition = compositions.next().unwrap_or(0).cast_signed();
                let dependency = dependencies.and_then(|table| table.get(number)).copied();
                let sample = Mp4Sample {
                    offset,
                    bytes,
                    decode_time,
                    composition_time: decode_time.saturating_add(composition.into()),
                    duration,
                    is_key: keys.next_is_key(number as u64),
                    is_disposable: dependency.is_some_and(|flags| flags >> 2 & 3 == 2),
                };
                push_sample(&mut samples, sample)?;
                offset = offset.saturating_add(bytes.into());
                decode_time = decode_time.saturating_add(duration.into());
            }
        }
        Ok((samples, descriptions))
    }

    pub(super) fn has_composition_offsets(&self) -> bool {
        self.composition_offsets.and_then(|table| table.u32(4).ok()).is_some_and(|count| count > 0)
    }
}

/// A duration that is negative, as some files have it, counts as 1.
fn clip_duration(duration: u32) -> u32 {
    // FFmpeg's limit: ten seconds at 48 kHz below 2³².
    if duration > u32::MAX - 480_000 { 1 } else { duration }
}

/// A big-endian number of up to 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The 32-bit number at `at` of a table entry.
fn word(entry: &[u8], at: usize) -> u32 {
    number(&entry[at..at + 4]) as u32
}

/// The sizes of `stsz` or `stz2`.
#[derive(Debug)]
struct SampleSizes<'a> {
    /// The size of all samples; 0 if there is a table.
    constant: u32,
    count: u64,
    bits: usize,
    table: &'a [u8],
}

impl<'a> SampleSizes<'a> {
    fn new(sizes: Mp4Box<'a>) -> Result<Self> {
        let is_compact = sizes.kind == *b"stz2";
        let count = sizes.u32(8)?;
        let (constant, bits) = match is_compact {
            true => (0, usize::from(sizes.u8(7)?)),
            false => (sizes.u32(4)?, 32),
        };
        if !matches!(bits, 4 | 8 | 16 | 32) {
            return Err(sizes.corrupt(&format!("has entries of {bits} bits")));
        }
        let table = sizes.content.get(12..).unwrap_or_default();
        let bytes = (u64::from(count) * bits as u64).div_ceil(8);
        if constant == 0 && bytes > table.len() as u64 {
            return Err(sizes.corrupt(&format!("is too short for {count} entries")));
        }
        Ok(SampleSizes { constant, count: count.into(), bits, table })
    }

    fn get(&self, sample: usize) -> Option<u32> {
        if sample as u64 >= self.count {
            return None;
        }
        if self.constant > 0 {
            return Some(self.constant);
        }
        if self.bits == 4 {
            let byte = self.table.get(sample / 2)?;
            return Some(u32::from(if sample.is_multiple_of(2) { byte >> 4 } else { byte & 15 }));
        }
        let bytes = self.bits / 8;
        Some(number(self.table.get(sample * bytes..(sample + 1) * bytes)?) as u32)
    }
}

/// The values of a table of runs (count and value), one for each sample.
#[derive(Debug)]
struct Runs<'a> {
    entries: ChunksExact<'a, u8>,
    left: u32,
    value: u32,
}

impl<'a> Runs<'a> {
    fn new(table: &'a [u8]) -> Self {
        Runs { entries: table.chunks_exact(8), left: 0, value: 0 }
    }
}

impl Iterator for Runs<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        while self.left == 0 {
            let entry = self.entries.next()?;
            (self.left, self.value) = (word(entry, 0), word(entry, 4));
        }
        self.left -= 1;
        Some(self.value)
    }
}

/// Which samples are key frames.
#[derive(Debug)]
struct Keys<'a> {
    /// Numbers of samples, in order. `None` if all samples are key frames.
    full: Option<ListedSamples<'a>>,
    partial: ListedSamples<'a>,
    /// The groups of random access points.
    groups: Option<Runs<'a>>,
    /// `stss` is empty, and no other table lists key frames: the first one is a key frame.
    is_first_only: bool,
}

impl<'a> Keys<'a> {
    fn new(tables: &SampleTables<'a>) -> Result<Self> {
        let listed = |table: Option<Mp4Box<'a>>| {
            table
                .map(|table| table.table(4, 4))
                .transpose()
                .map(|table| table.map(ListedSamples::new))
        };
        let full = listed(tables.sync_samples)?;
        let partial =
            listed(tables.partial_sync_samples)?.unwrap_or_else(|| ListedSamples::new(&[]));
        let groups = tables.random_access_group.map(|group| {
            // Version 1 has a parameter of the grouping type.
            let at = if group.u8(0)? == 0 { 8 } else { 12 };
            Ok::<_, Error>(Runs::new(group.table(at, 8)?))
        });
        let groups = groups.transpose()?;
        let is_first_only = full.as_ref().is_some_and(ListedSamples::is_empty)
            && partial.is_empty()
            && groups.is_none();
        Ok(Keys { full, partial, groups, is_first_only })
    }

    /// Whether the sample with this number, counted from 0, is a key frame. Call it for each.
    fn next_is_key(&mut self, sample: u64) -> bool {
        let full = self.full.as_mut().is_none_or(|full| full.has(sample));
        let partial = self.partial.has(sample);
        let grouped = self.groups.as_mut().and_then(Runs::next).is_some_and(|group| group > 0);
        full || partial || grouped || self.is_first_only && sample == 0
    }
}

/// Numbers of samples in rising order.
#[derive(Debug)]
struct ListedSamples<'a> {
    entries: ChunksExact<'a, u8>,
    next: Option<u64>,
    /// The number of the first sample: 1, but 0 in some files.
    base: u64,
}

impl<'a> ListedSamples<'a> {
    fn new(table: &'a [u8]) -> Self {
        let mut entries = table.chunks_exact(4);
        let next = entries.next().map(number);
        ListedSamples { entries, next, base: u64::from(next != Some(0)) }
    }

    fn is_empty(&self) -> bool {
        self.next.is_none()
    }

    /// Whether `sample`, counted from 0, is listed. Call it in rising order.
    fn has(&mut self, sample: u64) -> bool {
        while self.next.is_some_and(|next| next < sample + self.base) {
            self.next = self.entries.next().map(number);
        }
        self.next == Some(sample + self.base)
    }
}

/// A sample description, the entry of `stsd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SampleDescription {
    pub(super) codec: String,
    pub(super) setup: Vec<u8>,
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) color: VideoColor,
}

/// The fields of a visual sample entry before its boxes.
const VISUAL_SAMPLE_ENTRY: usize = 78;

impl SampleDescription {
    /// The description with this number, counted from 1.
    pub(super) fn read(stsd: Mp4Box<'_>, number: u32) -> Result<Self> {
        let index = number.saturating_sub(1) as usize;
        let entry = stsd.children_from(8).nth(index);
        let entry = entry.ok_or_else(|| stsd.corrupt(&format!("has no entry {number}")))?;
        SampleDescription::parse(entry)
    }

    /// The format of the first entry.
    pub(super) fn first_format(stsd: Mp4Box<'_>) -> Option<FourCc> {
        stsd.children_from(8).next().map(|entry| entry.kind)
    }

    fn parse(entry: Mp4Box<'_>) -> Result<Self> {
        let unsupported = |message: &str| {
            Err(Error::new(ErrorKind::Unsupported, message).with_offset(entry.offset))
        };
        let (width, height) = (entry.u16(24)?, entry.u16(26)?);
        let boxes = entry.children_from(VISUAL_SAMPLE_ENTRY);
        if entry.kind == *b"encv" || boxes.clone().any(|child| child.kind == *b"sinf") {
            return unsupported("encrypted video is unsupported");
        }
        let mut codec = codec_of_entry(&entry.kind);
        let (mut setup, mut color) = (Vec::new(), VideoColor::default());
        for child in boxes {
            match &child.kind {
                b"avcC" | b"hvcC" | b"av1C" | b"vvcC" | b"glbl" => setup = child.content.to_vec(),
                b"esds" => {
                    let (object_type, decoder_setup) = descriptors(child)?;
                    if let Some(name) = codec_of_object_type(object_type) {
                        codec = name.to_owned();
                    }
                    setup = decoder_setup.to_vec();
                }
                b"colr" => color = read_color(child).unwrap_or(color),
                _ => {}
            }
        }
        Ok(SampleDescription { codec, setup, width, height, color })
    }
}

/// The colours of `colr`: numbers of ITU-T H.273; `None` for a profile.
fn read_color(colr: Mp4Box<'_>) -> Option<VideoColor> {
    let kind = colr.content.get(..4)?;
    let number = |at| colr.u16(at).map(u64::from).ok();
    let numbers = [number(4)?, number(6)?, number(8)?];
    let is_full_range = match kind {
        b"nclx" => Some(colr.u8(10).ok()? >> 7 == 1),
        // QuickTime.
        b"nclc" => None,
        _ => return None,
    };
    Some(VideoColor { is_full_range, ..VideoColor::of_numbers(numbers) })
}

/// The name of the codec of a sample entry; unknown ones in lower case.
pub(in crate::video) fn codec_of_entry(kind: &[u8; 4]) -> String {
    let name = match kind {
        b"avc1" | b"avc2" | b"avc3" | b"avc4" | b"dva1" | b"dvav" | b"H264" | b"h264" => "h264",
        b"hvc1" | b"hev1" | b"hvc2" | b"hev2" | b"dvh1" | b"dvhe" => "hevc",
        b"vvc1" | b"vvi1" => "vvc",
        b"av01" | b"dav1" => "av1",
        b"vp08" | b"VP80" => "vp8",
        b"vp09" | b"VP90" => "vp9",
        b"mp4v" | b"xvid" | b"XVID" | b"divx" | b"DIVX" | b"DX50" | b"FMP4" => "mpeg4",
        b"mp1v" | b"m1v1" => "mpeg1video",
        b"mpg2" | b"mp2v" | b"m2v1" => "mpeg2video",
        [b'h', b'd', b'v', _] | [b'x', b'd', b'v', _] | [b'm', b'x', b'3' | b'4' | b'5', _] => {
            "mpeg2video"
        }
        b"jpeg" | b"mjpa" | b"mjpg" | b"MJPG" | b"AVDJ" | b"dmb1" => "mjpeg",
        b"s263" | b"h263" | b"H263" => "h263",
        b"apch" | b"apcn" | b"apcs" | b"apco" | b"ap4h" | b"ap4x" | b"aprn" | b"aprh" => "prores",
        b"AVdn" | b"AVdh" => "dnxhd",
        b"rle " => "qtrle",
        b"raw " => "rawvideo",
        b"SVQ1" | b"svq1" => "svq1",
        b"SVQ3" => "svq3",
        b"cvid" => "cinepak",
        _ => return text_of(kind),
    };
    name.to_owned()
}

fn text_of(kind: &FourCc) -> String {
    super::boxes::text(kind).trim().to_lowercase()
}

/// The codec of an object type of `esds`; `None` if the sample entry decides.
fn codec_of_object_type(object_type: u8) -> Option<&'static str> {
    Some(match object_type {
        0x20 => "mpeg4",
        0x21 => "h264",
        0x23 => "hevc",
        0x60..=0x65 => "mpeg2video",
        0x6A => "mpeg1video",
        0x6C => "mjpeg",
        0x6D => "png",
        0x6E => "jpeg2000",
        0xA3 => "vc1",
        _ => return None,
    })
}

/// The object type and the decoder-specific information of `esds`.
fn descriptors(esds: Mp4Box<'_>) -> Result<(u8, &[u8])> {
    let mut rest = esds.content.get(4..).unwrap_or_default();
    let mut object_type = 0;
    // Descriptors are nested; a loop over headers skips the fields of the outer ones.
    while let Some((&tag, after)) = rest.split_first() {
        let mut size = 0_usize;
        let mut at = 0;
        while let Some(&byte) = after.get(at).filter(|_| at < 4) {
            size = size << 7 | usize::from(byte & 0x7F);
            at += 1;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let content = after.get(at..).unwrap_or_default();
        let fields = match tag {
            // ES_Descriptor: its flags announce optional fields.
            3 => {
                let flags = content.get(2).copied().unwrap_or(0);
                let url = content.get(3).copied().unwrap_or(0);
                let url = if flags & 0x40 != 0 { 1 + usize::from(url) } else { 0 };
                let optional = |bit: u8| if flags & bit != 0 { 2 } else { 0 };
                3 + optional(0x80) + url + optional(0x20)
            }
            // DecoderConfigDescriptor.
            4 => {
                object_type = content.first().copied().unwrap_or(0);
                13
            }
            // DecoderSpecificInfo.
            5 => {
                let setup = content.get(..size);
                let setup = setup.ok_or_else(|| esds.corrupt("ends inside a descriptor"))?;
                return Ok((object_type, setup));
            }
            _ => size,
        };
        rest = content.get(fields..).unwrap_or_default();
    }
    Ok((object_type, &[]))
}

/// The most sample descriptions of a track.
const MAX_DESCRIPTIONS: usize = 64;

/// Checks that a track may use one more sample description.
pub(super) fn check_descriptions(count: usize) -> Result<()> {
    if count < MAX_DESCRIPTIONS {
        return Ok(());
    }
    let message =
        format!("MP4 video with more than {MAX_DESCRIPTIONS} sample descriptions is unsupported");
    Err(Error::new(ErrorKind::Unsupported, message))
}
