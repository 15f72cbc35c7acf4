//! ISO base media files: MP4, MOV, M4V, 3GP.
//!
//! | file | content |
//! |---|---|
//! | `boxes` | boxes, and the numbers in them |
//! | `tables` | the sample tables of a track |
//! | `fragments` | the samples of movie fragments |
//! | `announce` | where fragments are, for sources that are not local |
//! | `edits` | edit lists: which samples are presented, and when |

mod announce;
mod boxes;
mod edits;
mod fragments;
mod tables;
#[cfg(test)]
mod tests;

use spdl_core::{Error, ErrorKind, Result};

use self::announce::announce_fragments;
use self::boxes::{Mp4Box, TopLevelBoxes};
use self::edits::{Edit, apply_edits, read_edits, start_shift};
use self::fragments::{Fragments, SampleDefaults};
pub(super) use self::tables::codec_of_entry;
use self::tables::{Mp4Sample, SampleDescription, SampleTables};
use super::codec::VideoContainer;
use super::index::{VideoIndex, VideoPacket, VideoStream};
use super::limits::VideoLimits;
use crate::image::{Orientation, Size};
use crate::source::MediaSource;

/// ISO base media files: MP4, MOV, M4V, 3GP, with sample tables or fragments.
///
/// The index has the first enabled video track with samples. Still images, such as covers, count
/// only if there is no other track. Only the boxes `moov` and `moof` are read. Packets beyond the
/// end of a truncated file are listed if `moov` is present. The index of a fragmented file that ends inside a
/// box is [truncated](VideoIndex::is_truncated).
///
/// Edit lists select frames and set their time stamps as in FFmpeg; rates other than 1 are ignored.
/// In fragmented files an edit list only sets the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mp4Container;

impl VideoContainer for Mp4Container {
    fn name(&self) -> &'static str {
        "mp4"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        let mut rest = head;
        // `wide`, `free` and `skip` may precede the first box that counts.
        for _ in 0..8 {
            match rest.get(4..8) {
                Some(b"ftyp" | b"styp" | b"moov" | b"moof" | b"mdat" | b"pnot") => return true,
                Some(b"wide" | b"free" | b"skip") => {}
                _ => return false,
            }
            let size = rest.first_chunk().map_or(0, |size| u32::from_be_bytes(*size)) as usize;
            match rest.get(size..) {
                Some(after) if size >= 8 => rest = after,
                // A box that is longer than the head of the file.
                _ => return size > rest.len(),
            }
        }
        false
    }

    fn has_tables(&self) -> bool {
        true
    }

    fn index(&self, file: &dyn MediaSource, limits: &VideoLimits) -> Result<VideoIndex> {
        let mut boxes = TopLevelBoxes::new(file);
        let mut memory = Vec::new();
        let moov = loop {
            match boxes.next_box()? {
                Some(found) if found.kind == *b"moov" => break found,
                Some(_) => {}
                None if boxes.is_truncated() => {
                    let message = "truncated MP4: the file ends before the box \"moov\"";
                    let error = Error::new(ErrorKind::Truncated, message);
                    return Err(error.with_offset(file.size()));
                }
                None => {
                    let message = "corrupt MP4: box \"moov\" not found";
                    return Err(Error::new(ErrorKind::Corrupt, message));
                }
            }
        };
        let after = moov.end;
        let moov = moov.read(file, limits, &mut memory)?;
        let movie = Movie::new(moov)?;
        limits.check_streams(movie.tracks().count() as u64)?;
        let track = movie.video_track()?;
        let (samples, descriptions) = track.tables.samples(file.size(), limits)?;
        let listed: u64 = samples.iter().map(|sample| u64::from(sample.bytes)).sum();
        let mut fragments = Fragments {
            track: track.id,
            defaults: SampleDefaults::of_track(moov, track.id)?,
            samples,
            descriptions,
            limits,
            unlisted_bytes: file.size().saturating_sub(listed),
        };
        if movie.is_fragmented {
            announce_fragments(file, after, limits)?;
            // Fragments may precede `moov` only in files that no program writes.
            let mut memory = Vec::new();
            while let Some(found) = boxes.next_box()? {
                if found.kind == *b"moof" {
                    // The last fragment of a truncated file.
                    if found.end > file.size() {
                        break;
                    }
                    let moof = found.read(file, limits, &mut memory)?;
                    fragments.append(moof, found.start)?;
                }
            }
        }
        let Fragments { samples, descriptions, .. } = fragments;
        let index = track.index(&samples, &descriptions, limits)?;
        // The box `moov` lists all packets of a file without fragments.
        match movie.is_fragmented && boxes.is_truncated() {
            true => Ok(index.truncated()),
            false => Ok(index),
        }
    }
}

/// The box `moov`.
#[derive(Debug)]
struct Movie<'a> {
    moov: Mp4Box<'a>,
    /// Units of a second in edit lists.
    timescale: u32,
    matrix: Matrix,
    is_fragmented: bool,
}

impl<'a> Movie<'a> {
    fn new(moov: Mp4Box<'a>) -> Result<Self> {
        if moov.child(b"cmov").is_some() {
            let error =
                Error::new(ErrorKind::Unsupported, "compressed MOV headers are unsupported");
            return Err(error.with_offset(moov.offset));
        }
        let (mut timescale, mut matrix) = (0, UPRIGHT);
        if let Some(mvhd) = moov.child(b"mvhd") {
            let is_long = mvhd.u8(0)? == 1;
            timescale = mvhd.u32(if is_long { 20 } else { 12 })?;
            matrix = read_matrix(mvhd, if is_long { 48 } else { 36 })?;
        }
        Ok(Movie { moov, timescale, matrix, is_fragmented: moov.child(b"mvex").is_some() })
    }

    fn tracks(&self) -> impl Iterator<Item = Mp4Box<'a>> {
        self.moov.children().filter(|child| child.kind == *b"trak")
    }

    /// The first enabled video track with samples.
    fn video_track(&self) -> Result<Mp4Track<'a>> {
        let mut best: Option<(u32, Mp4Track<'a>)> = None;
        let mut problem = None;
        for trak in self.tracks() {
            let track = match Mp4Track::new(trak, self) {
                Ok(Some(track)) => track,
                Ok(None) => continue,
                Err(error) => {
                    problem.get_or_insert(error);
                    continue;
                }
            };
            if !track.tables.has_samples() && !self.is_fragmented {
                continue;
            }
            let rank = u32::from(!track.is_still) << 1 | u32::from(track.is_enabled);
            if best.as_ref().is_none_or(|(best, _)| rank > *best) {
                best = Some((rank, track));
            }
        }
        match (best, problem) {
            (Some((_, track)), _) => Ok(track),
            (None, Some(error)) => Err(error),
            (None, None) => {
                let message = "corrupt MP4: no video track with samples";
                Err(Error::new(ErrorKind::Corrupt, message).with_offset(self.moov.offset))
            }
        }
    }
}

/// A video track.
#[derive(Debug)]
struct Mp4Track<'a> {
    id: u32,
    is_enabled: bool,
    /// Whether its samples are still images: a cover or a slide show of chapters.
    is_still: bool,
    orientation: Orientation,
    /// Width and height of the presentation.
    size: Size,
    timescale: u32,
    edits: Vec<Edit>,
    stsd: Mp4Box<'a>,
    tables: SampleTables<'a>,
}

impl<'a> Mp4Track<'a> {
    /// The track of `trak`; `None` if it has no video.
    fn new(trak: Mp4Box<'a>, movie: &Movie<'a>) -> Result<Option<Self>> {
        let Some(mdia) = trak.child(b"mdia") else { return Ok(None) };
        let handler = mdia.child(b"hdlr").and_then(|hdlr| hdlr.array::<4>(8).ok());
        if handler != Some(*b"vide") {
            return Ok(None);
        }
        let required = |found: Option<Mp4Box<'a>>, parent: Mp4Box<'a>, name: &str| {
            found.ok_or_else(|| parent.corrupt(&format!("has no box {name:?}")))
        };
        let tkhd = required(trak.child(b"tkhd"), trak, "tkhd")?;
        let mdhd = required(mdia.child(b"mdhd"), mdia, "mdhd")?;
        let minf = required(mdia.child(b"minf"), mdia, "minf")?;
        let stbl = required(minf.child(b"stbl"), minf, "stbl")?;
        let tables = SampleTables::new(stbl);
        let stsd = required(tables.descriptions, stbl, "stsd")?;

        let timescale = mdhd.u32(if mdhd.u8(0)? == 1 { 20 } else { 12 })?;
        if timescale == 0 {
            return Err(mdhd.corrupt("has the time scale 0"));
        }
        let is_long = tkhd.u8(0)? == 1;
        let (id_at, matrix_at) = if is_long { (20, 52) } else { (12, 40) };
        let matrix = multiply(read_matrix(tkhd, matrix_at)?, movie.matrix);
        let side = |at| tkhd.u32(at).map(|side| side >> 16);
        let elst = trak.child(b"edts").and_then(|edts| edts.child(b"elst"));
        let edits = match elst {
            Some(elst) if movie.timescale > 0 => read_edits(elst, movie.timescale, timescale)?,
            _ => Vec::new(),
        };
        let format = SampleDescription::first_format(stsd);
        Ok(Some(Mp4Track {
            id: tkhd.u32(id_at)?,
            is_enabled: tkhd.u8(3)? & 1 != 0,
            is_still: matches!(format.as_ref(), Some(b"jpeg" | b"png " | b"tiff" | b"gif ")),
            orientation: orientation(&matrix),
            size: Size::new(side(matrix_at + 36)?, side(matrix_at + 40)?),
            timescale,
            edits,
            stsd,
            tables,
        }))
    }

    /// The format of the stream. All `descriptions` must have the same codec and set-up data.
    fn stream(&self, descriptions: &[u32]) -> Result<VideoStream> {
        let (&first, others) = descriptions.split_first().unwrap_or((&1, &[]));
        let description = SampleDescription::read(self.stsd, first)?;
        for &other in others {
            let other = SampleDescription::read(self.stsd, other)?;
            if (other.codec, other.setup) != (description.codec.clone(), description.setup.clone())
            {
                let message = "video that changes its sample description is unsupported";
                let error = Error::new(ErrorKind::Unsupported, message);
                return Err(error.with_offset(self.stsd.offset));
            }
        }
        let SampleDescription { codec, setup, width, height, color } = description;
        let size = Size::new(width.into(), height.into());
        let mut stream = VideoStream::new(codec, if size.pixels() > 0 { size } else { self.size });
        stream.setup = setup;
        stream.orientation = self.orientation;
        stream.time_base = (1, self.timescale);
        stream.color = color;
        Ok(stream)
    }

    fn index(
        &self,
        samples: &[Mp4Sample],
        descriptions: &[u32],
        limits: &VideoLimits,
    ) -> Result<VideoIndex> {
        let stream = self.stream(descriptions)?;
        for sample in samples {
            limits.check_packet_bytes(sample.bytes.into())?;
            if sample.offset > i64::MAX.cast_unsigned() {
                return Err(self.stsd.corrupt("describes samples at invalid positions"));
            }
        }
        let has_media_edit = self.edits.iter().any(|edit| edit.media_time.is_some());
        // As in FFmpeg: the edits of fragmented files only set the start.
        let presented = match has_media_edit && self.tables.has_decode_times() {
            true => {
                let has_offsets = self.tables.has_composition_offsets();
                Some(apply_edits(&self.edits, samples, has_offsets, limits)?)
            }
            false => None,
        };
        let shift = match &presented {
            // Packets have the time stamps of their frames, as far as one edit presents all.
            Some((frames, _)) => frames.first().map_or(0, |first| {
                let sample = &samples[first.packet as usize];
                first.timestamp.saturating_sub(sample.composition_time)
            }),
            None => start_shift(&self.edits),
        };
        let time = |sample: &Mp4Sample| sample.composition_time.saturating_add(shift);
        let mut packets = Vec::new();
        packets.try_reserve_exact(samples.len()).map_err(|_| {
            let message = format!("cannot allocate the index of {} packets", samples.len());
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        packets.extend(samples.iter().map(|sample| VideoPacket {
            offset: sample.offset,
            bytes: sample.bytes,
            timestamp: time(sample),
            is_key: sample.is_key,
            is_disposable: sample.is_disposable,
        }));
        match presented {
            Some((frames, end)) => VideoIndex::with_frames(stream, packets, frames, end),
            None => {
                let ends = samples
                    .iter()
                    .map(|sample| time(sample).saturating_add(sample.duration.into()));
                let end = ends.max().unwrap_or(0);
                VideoIndex::new(stream, packets, end)
            }
        }
    }
}

/// The upper left part of a transformation matrix, row by row: `(x, y)` becomes
/// `(a·x + c·y, b·x + d·y)` for `[a, b, c, d]`. y grows downwards.
type Matrix = [i64; 4];

const UPRIGHT: Matrix = [1, 0, 0, 1];

fn read_matrix(header: Mp4Box<'_>, at: usize) -> Result<Matrix> {
    let number = |at| Ok::<_, Error>(i64::from(header.u32(at)?.cast_signed()));
    // Two values of 16.16 bits, then one of 2.30 bits.
    Ok([number(at)?, number(at + 4)?, number(at + 12)?, number(at + 16)?])
}

/// The matrix of `first`, then `second`; only the directions count.
fn multiply(first: Matrix, second: Matrix) -> Matrix {
    let [a, b, c, d] = first.map(i64::signum);
    let [e, f, g, h] = second.map(i64::signum);
    [a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h]
}

/// The orientation of frames that are shown with this matrix. Rotations by other angles than
/// multiples of 90 degrees count as upright.
fn orientation(matrix: &Matrix) -> Orientation {
    match matrix {
        [-1, 0, 0, 1] => Orientation::FlippedHorizontally,
        [-1, 0, 0, -1] => Orientation::Rotated180,
        [1, 0, 0, -1] => Orientation::FlippedVertically,
        [0, 1, 1, 0] => Orientation::Transposed,
        [0, 1, -1, 0] => Orientation::Rotated90,
        [0, -1, -1, 0] => Orientation::Transversed,
        [0, -1, 1, 0] => Orientation::Rotated270,
        _ => Orientation::Upright,
    }
}
