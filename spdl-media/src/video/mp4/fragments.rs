//! The samples of movie fragments (`moof`).
//!
//! Time stamps are those of the standard: decoding time plus composition offset. If offsets are
//! negative, FFmpeg 5.1 adds the largest of them to all time stamps of fragments.

use spdl_core::Result;

use super::boxes::Mp4Box;
use super::tables::{Mp4Sample, check_descriptions, push_sample};
use crate::video::limits::VideoLimits;

const BASE_DATA_OFFSET: u32 = 0x1;
const DESCRIPTION_INDEX: u32 = 0x2;
const DEFAULT_DURATION: u32 = 0x8;
const DEFAULT_SIZE: u32 = 0x10;
const DEFAULT_FLAGS: u32 = 0x20;
const DEFAULT_BASE_IS_MOOF: u32 = 0x2_0000;

const DATA_OFFSET: u32 = 0x1;
const FIRST_SAMPLE_FLAGS: u32 = 0x4;
const SAMPLE_DURATION: u32 = 0x100;
const SAMPLE_SIZE: u32 = 0x200;
const SAMPLE_FLAGS: u32 = 0x400;
const SAMPLE_COMPOSITION: u32 = 0x800;

/// "The sample is no sync sample", and "it depends on others".
const NOT_KEY: u32 = 0x101_0000;

/// The values of samples without fields of this kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SampleDefaults {
    description: u32,
    duration: u32,
    size: u32,
    flags: u32,
}

impl SampleDefaults {
    /// The defaults of a track: its box `trex` in `mvex`.
    pub(super) fn of_track(moov: Mp4Box<'_>, track: u32) -> Result<Self> {
        let extends = moov.child(b"mvex").into_iter().flat_map(Mp4Box::children);
        for trex in extends.filter(|child| child.kind == *b"trex") {
            if trex.u32(4)? == track {
                return Ok(SampleDefaults {
                    description: trex.u32(8)?,
                    duration: trex.u32(12)?,
                    size: trex.u32(16)?,
                    flags: trex.u32(20)?,
                });
            }
        }
        Ok(SampleDefaults { description: 1, ..SampleDefaults::default() })
    }
}

/// Collects the samples of one track from fragments.
#[derive(Debug)]
pub(super) struct Fragments<'a> {
    pub(super) track: u32,
    pub(super) defaults: SampleDefaults,
    /// The samples so far, and the numbers of their descriptions.
    pub(super) samples: Vec<Mp4Sample>,
    pub(super) descriptions: Vec<u32>,
    pub(super) limits: &'a VideoLimits,
    /// The number of bytes of samples that may be listed without a field for each of them.
    pub(super) unlisted_bytes: u64,
}

/// Where the next run of samples is.
#[derive(Clone, Copy, Debug)]
struct RunStart {
    /// What the data offsets of runs count from.
    base: u64,
    next: u64,
}

impl Fragments<'_> {
    /// Appends the samples of a fragment whose header starts at `start`.
    pub(super) fn append(&mut self, moof: Mp4Box<'_>, start: u64) -> Result<()> {
        // The base of a track fragment without one: the end of the data of the previous one.
        let mut implicit = start;
        for traf in moof.children().filter(|child| child.kind == *b"traf") {
            let Some(tfhd) = traf.child(b"tfhd") else { continue };
            let flags = tfhd.u32(0)? & 0xFF_FFFF;
            let is_wanted = tfhd.u32(4)? == self.track;
            let mut fields = tfhd.content.get(8..).unwrap_or_default().chunks_exact(4);
            let mut field = || match fields.next().and_then(<[u8]>::first_chunk) {
                Some(field) => Ok(u32::from_be_bytes(*field)),
                None => Err(tfhd.corrupt("is too short")),
            };
            let mut base = if flags & DEFAULT_BASE_IS_MOOF != 0 { start } else { implicit };
            if flags & BASE_DATA_OFFSET != 0 {
                base = u64::from(field()?) << 32 | u64::from(field()?);
            }
            // Runs of other tracks count only where this track's data may follow theirs.
            let mut defaults = if is_wanted { self.defaults } else { SampleDefaults::default() };
            for (flag, value) in [
                (DESCRIPTION_INDEX, &mut defaults.description),
                (DEFAULT_DURATION, &mut defaults.duration),
                (DEFAULT_SIZE, &mut defaults.size),
                (DEFAULT_FLAGS, &mut defaults.flags),
            ] {
                if flags & flag != 0 {
                    *value = field()?;
                }
            }
            let last = self.samples.last();
            let mut time =
                last.map_or(0, |last| last.decode_time.saturating_add(last.duration.into()));
            if let Some(tfdt) = traf.child(b"tfdt") {
                let start = if tfdt.u8(0)? == 1 { tfdt.u64(4)? } else { tfdt.u32(4)?.into() };
                time = i64::try_from(start).map_err(|_| tfdt.corrupt("has an invalid time"))?;
            }
            let mut run = RunStart { base, next: base };
            for trun in traf.children().filter(|child| child.kind == *b"trun") {
                if is_wanted {
                    self.append_run(trun, &defaults, &mut run, &mut time)?;
                } else {
                    skip_run(trun, &defaults, &mut run)?;
                }
            }
            implicit = run.next;
        }
        Ok(())
    }

    fn append_run(
        &mut self,
        trun: Mp4Box<'_>,
        defaults: &SampleDefaults,
        run: &mut RunStart,
        time: &mut i64,
    ) -> Result<()> {
        let TrackRun { flags, first_flags, count, entry_bytes, mut entries } =
            TrackRun::read(trun, run)?;
        self.limits.check_packets(self.samples.len() as u64 + u64::from(count))?;
        if count > 0 && !self.descriptions.contains(&defaults.description) {
            check_descriptions(self.descriptions.len())?;
            self.descriptions.push(defaults.description);
        }
        for number in 0..count {
            let (entry, rest) = entries.split_at(entry_bytes);
            entries = rest;
            let mut fields = entry.chunks_exact(4);
            let mut field = |flag: u32, default: u32| match flags & flag {
                0 => default,
                _ => fields
                    .next()
                    .and_then(<[u8]>::first_chunk)
                    .map_or(0, |field| u32::from_be_bytes(*field)),
            };
            let duration = field(SAMPLE_DURATION, defaults.duration);
            let bytes = field(SAMPLE_SIZE, defaults.size);
            let default_flags = first_flags.filter(|_| number == 0).unwrap_or(defaults.flags);
            let sample_flags = field(SAMPLE_FLAGS, default_flags);
            let composition = field(SAMPLE_COMPOSITION, 0).cast_signed();
            if entry_bytes == 0 {
                // A run takes no memory in the file: its samples must have bytes there.
                let left = self.unlisted_bytes.checked_sub(bytes.into()).filter(|_| bytes > 0);
                self.unlisted_bytes =
                    left.ok_or_else(|| trun.corrupt("has more samples than the file has bytes"))?;
            }
            let sample = Mp4Sample {
                offset: run.next,
                bytes,
                decode_time: *time,
                composition_time: time.saturating_add(composition.into()),
                duration,
                is_key: sample_flags & NOT_KEY == 0,
                is_disposable: sample_flags >> 22 & 3 == 2,
            };
            push_sample(&mut self.samples, sample)?;
            run.next = run.next.saturating_add(bytes.into());
            *time = time.saturating_add(duration.into());
        }
        Ok(())
    }
}

/// The fields of `trun`.
#[derive(Debug)]
struct TrackRun<'a> {
    flags: u32,
    first_flags: Option<u32>,
    count: u32,
    entry_bytes: usize,
    entries: &'a [u8],
}

impl<'a> TrackRun<'a> {
    /// Reads the fields before the entries, and sets the position of the first sample.
    fn read(trun: Mp4Box<'a>, run: &mut RunStart) -> Result<Self> {
        let flags = trun.u32(0)? & 0xFF_FFFF;
        let count = trun.u32(4)?;
        let mut at = 8;
        if flags & DATA_OFFSET != 0 {
            let offset = trun.u32(at)?.cast_signed();
            let start = run.base.checked_add_signed(offset.into());
            run.next = start.ok_or_else(|| trun.corrupt("has an invalid data offset"))?;
            at += 4;
        }
        let mut first_flags = None;
        if flags & FIRST_SAMPLE_FLAGS != 0 {
            first_flags = Some(trun.u32(at)?);
            at += 4;
        }
        let per_sample = SAMPLE_DURATION | SAMPLE_SIZE | SAMPLE_FLAGS | SAMPLE_COMPOSITION;
        let entry_bytes = 4 * (flags & per_sample).count_ones() as usize;
        let entries = trun.content.get(at..).unwrap_or_default();
        if (entries.len() as u64) < u64::from(count) * entry_bytes as u64 {
            return Err(trun.corrupt(&format!("is too short for {count} samples")));
        }
        Ok(TrackRun { flags, first_flags, count, entry_bytes, entries })
    }
}

/// Moves to the end of the data of a run.
fn skip_run(trun: Mp4Box<'_>, defaults: &SampleDefaults, run: &mut RunStart) -> Result<()> {
    let TrackRun { flags, count, entry_bytes, entries, .. } = TrackRun::read(trun, run)?;
    let bytes = match flags & SAMPLE_SIZE {
        0 => u64::from(count) * u64::from(defaults.size),
        _ => {
            let at = if flags & SAMPLE_DURATION != 0 { 4 } else { 0 };
            let sizes = entries.chunks_exact(entry_bytes).take(count as usize);
            let size = |entry: &[u8]| entry.get(at..).and_then(<[u8]>::first_chunk).copied();
            sizes.filter_map(size).map(|size| u64::from(u32::from_be_bytes(size))).sum()
        }
    };
    run.next = run.next.saturating_add(bytes);
    Ok(())
}
