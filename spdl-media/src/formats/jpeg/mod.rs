//! JPEG: a decoder of our own, sequential and progressive, 8 bits, Huffman- or arithmetic-coded.
//!
//! ```text
//! header ──► entropy-coded data ──► coefficients ──► inverse DCT ──► planes of the caller's, or
//! markers    without stuffing,      of one block     8, 4, 2 or 1    two rows of units ──► RGB,
//! tables     a window at a time     (or of the       samples a side  row by row, upsampled and
//!                                   image, where it                  converted
//!                                   has many scans)
//! ```
//!
//! Most of the time goes into Huffman codes. One look at the data tells of two coefficients, and of
//! as many as fit where a block is not wanted; nothing depends on which way a branch goes but the
//! end of a block. What lies below the wanted region is not read where the file ends with its
//! marker, so that nothing can be missing; without one all is read, and a file that is cut is an
//! error whatever the region.
//!
//! Arithmetic-coded files are rare: their coefficients are always kept, and then drawn.
//!
//! The decoder's own arithmetic is that of libjpeg's accurate integer DCT, triangle ("fancy") upsampling and
//! 16-bit fixed-point colour conversion, so that results are equal to what libjpeg-turbo, and with
//! it Pillow, OpenCV and torchvision, give. No other crate that builds with gcc and rustup alone
//! does that within a level of 255.

mod arithmetic;
mod bits;
mod color;
mod header;
mod huffman;
mod idct;
mod planes;
mod scan;
mod surface;

use std::ops::Range;

use fearless_simd::Level;
use spdl_core::{Error, ErrorKind, Result};

use self::bits::{EntropyReader, Window};
use self::header::{BLOCK, Coding, Color, EntropyCoding, Frame, Header, MAX_COMPONENTS};
use self::planes::Planes;
use self::scan::Scans;
use self::surface::{Side, Surface, Surfaces, Wanted};
use crate::{
    ColorModel, DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits, OnTruncated,
    Picture, PixelsMut, PlaneShape, Rect, Size,
};

/// JPEG, sequential and progressive.
#[derive(Debug)]
pub(crate) struct JpegCodec;

impl ImageCodec for JpegCodec {
    fn name(&self) -> &'static str {
        "jpeg"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(&[0xFF, 0xD8, 0xFF])
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(JpegDecoder {
            limits: limits.clone(),
            level: level(),
            window: Window::default(),
            scans: Scans::default(),
            planes: Planes::default(),
        }))
    }
}

/// What the processor can do, up to AVX2: with AVX-512 blocks of eight are no faster.
fn level() -> Level {
    let level = Level::new();
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let level = level.as_avx2().map_or(level, Level::Avx2);
    level
}

struct JpegDecoder {
    limits: Limits,
    /// What the processor can do.
    level: Level,
    window: Window,
    scans: Scans,
    planes: Planes,
}

impl ImageDecoder for JpegDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        let header = Header::read(encoded, None)?;
        self.limits.check_size(header.frame.size)?;
        self.limits.check_ratio(encoded.len(), header.frame.size)?;
        Ok(ImageInfo::new(header.frame.size, header.orientation))
    }

    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        mut out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let (header, color) = self.read_header(encoded)?;
        let frame = &header.frame;
        let region = request.checked_region(frame.size, &out)?;
        let JpegDecoder { level, planes, .. } = self;
        planes.prepare(frame, region);
        let task = Task { encoded, header: &header, request, limits: &self.limits, level: *level };
        let mut rows = Rows::begin(task, &mut self.scans, &mut self.window, planes.rows())?;
        while let Some(row) = rows.draw_next(|row| planes.surfaces(frame, row))? {
            planes.emit(frame, row, region, color, &mut out, *level);
        }
        let valid = (planes.emitted() as u32).saturating_sub(region.top).min(region.height);
        rows.check_valid(valid)?;
        (valid..region.height).for_each(|row| out.row_mut(row).fill(0));
        Ok(Decoded::partial(region.size(), valid))
    }

    fn decode_planes(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        picture: &mut Picture,
    ) -> Result<Decoded> {
        let (header, color) = self.read_header(encoded)?;
        let frame = &header.frame;
        let region = request.region_of(frame.size);
        if !region.is_within(frame.size) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the region {region:?} is not inside an image of {} pixels", frame.size),
            ));
        }
        let Some(color) = planes_of(frame, color) else {
            picture.start_rgb(frame.size, region)?;
            return self.decode_into(encoded, request, picture.rgb_mut()?);
        };
        let layout = PlaneLayout::choose(frame, region, request.smallest());
        picture.start(frame.size, color, &layout.shapes[..frame.components.len()])?;
        let task =
            Task { encoded, header: &header, request, limits: &self.limits, level: self.level };
        let mut rows = Rows::begin(task, &mut self.scans, &mut self.window, layout.rows(frame))?;
        let mut drawn = 0;
        while let Some(row) = rows.draw_next(|_| layout.surfaces(picture))? {
            drawn = row + 1;
        }
        let size = layout.size;
        let valid = match rows.is_cut() {
            true => layout.blacken(frame, region, drawn, picture),
            false => size.height,
        };
        rows.check_valid(valid)?;
        Ok(Decoded::partial(size, valid))
    }
}

impl JpegDecoder {
    fn read_header(&mut self, encoded: &[u8]) -> Result<(Header, Color)> {
        let header = Header::read(encoded, Some(&mut self.scans.tables))?;
        self.limits.check_size(header.frame.size)?;
        self.limits.check_ratio(encoded.len(), header.frame.size)?;
        let color = header.color()?;
        Ok((header, color))
    }
}

/// What is to be decoded, and how.
struct Task<'a> {
    encoded: &'a [u8],
    header: &'a Header,
    request: &'a DecodeRequest,
    limits: &'a Limits,
    level: Level,
}

/// Decodes an image row of units by row of units.
struct Rows<'a> {
    task: Task<'a>,
    scans: &'a mut Scans,
    /// Where the image has one scan, which is read while it is drawn.
    reader: Option<EntropyReader<'a>>,
    /// Rows that are still to be read.
    remaining: Range<usize>,
    /// Rows that are to be drawn.
    wanted: Range<usize>,
    /// Rows that have all their coefficients.
    complete: usize,
    /// Why the rows ended early.
    cut: Option<Error>,
}

impl<'a> Rows<'a> {
    /// Prepares to draw the rows of units that are wanted. Those above must be read, those below
    /// only to find whether the file is cut.
    fn begin(
        task: Task<'a>,
        scans: &'a mut Scans,
        window: &'a mut Window,
        wanted: Range<usize>,
    ) -> Result<Self> {
        let Task { encoded, header, request, limits, level } = task;
        let frame = &header.frame;
        let single = (frame.coding, frame.entropy) == (Coding::Sequential, EntropyCoding::Huffman)
            && header.scan.components.len() == frame.components.len();
        let (reader, remaining, complete, cut) = if single {
            scans.begin_single(frame, &header.scan)?;
            let all = request.is_exact() || !has_end_marker(encoded, header.data);
            let end = if all { frame.units_high } else { wanted.end };
            let reader = EntropyReader::new(encoded, header.data, window, level);
            (Some(reader), 0..end, frame.units_high, None)
        } else {
            let lenience = (limits, request.truncation());
            let (complete, cut) = scans.read_all(encoded, header, window, lenience, level)?;
            // Below the region nothing is missing.
            (None, wanted.clone(), complete, cut.filter(|_| complete < wanted.end))
        };
        Ok(Rows { task, scans, reader, remaining, wanted, complete, cut })
    }

    /// Draws the next wanted row, where `surfaces` says, and tells which that was; `None` after the
    /// last one, or where the data end early and that is allowed.
    fn draw_next<'s>(
        &mut self,
        surfaces: impl FnOnce(usize) -> Surfaces<'s>,
    ) -> Result<Option<usize>> {
        let Task { header, level, .. } = self.task;
        let frame = &header.frame;
        let Some(reader) = &mut self.reader else {
            let row = self.remaining.next().filter(|&row| row < self.complete);
            if let Some(row) = row {
                self.scans.draw_stored_row(frame, row, &mut surfaces(row), level);
            }
            return Ok(row);
        };
        let mut surfaces = Some(surfaces);
        for row in self.remaining.by_ref() {
            let wanted = self.wanted.contains(&row);
            let mut place = match surfaces.take_if(|_| wanted) {
                Some(surfaces) => surfaces(row),
                None => Surfaces::default(),
            };
            let outcome = self.scans.draw_row(frame, &header.scan, row, reader, &mut place, level);
            match outcome {
                Ok(()) if wanted => return Ok(Some(row)),
                Ok(()) => {}
                Err(error) => {
                    let allowed = self.task.request.truncation() == OnTruncated::Partial
                        && error.kind() == ErrorKind::Truncated;
                    self.remaining = 0..0;
                    if !allowed {
                        return Err(error);
                    }
                    // Below the region nothing is missing.
                    if row < self.wanted.end {
                        self.cut = Some(error);
                    }
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Whether wanted rows are missing.
    fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Refuses an image of which not a row is valid.
    fn check_valid(self, rows: u32) -> Result<()> {
        match self.cut {
            Some(error) if rows == 0 => Err(error),
            _ => Ok(()),
        }
    }
}

/// Whether the file has its end marker, so that nothing of it is missing. A few bytes may follow,
/// and any number of zeros.
fn has_end_marker(encoded: &[u8], data: usize) -> bool {
    const FEW: usize = 32;
    let end = encoded.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let tail = encoded.get(data.max(end.saturating_sub(FEW))..end).unwrap_or_default();
    tail.windows(2).any(|pair| pair == [0xFF, 0xD9])
}

/// What the planes of an image stand for, where they are delivered as they are stored.
fn planes_of(frame: &Frame, color: Color) -> Option<ColorModel> {
    match color {
        Color::Grey => Some(ColorModel::Grey),
        Color::YCbCr => {
            let ratios = |component: &header::Component| {
                [frame.across / component.across, frame.down / component.down]
            };
            let usual = frame.components.iter().flat_map(ratios).all(|ratio| ratio != 3);
            usual.then_some(ColorModel::YCbCr)
        }
        Color::Rgb | Color::Cmyk | Color::Ycck => None,
    }
}

/// Which samples of each component are delivered, and where they go.
struct PlaneLayout {
    /// Of the result, and how many pixels of the image share one of its pixels on each side.
    size: Size,
    scale: u32,
    shapes: [PlaneShape; MAX_COMPONENTS],
    wanted: [Wanted; MAX_COMPONENTS],
    sides: [Side; MAX_COMPONENTS],
    /// How many rows of the result's are not the same without the samples below them.
    looks_down: u32,
}

impl PlaneLayout {
    /// The samples that `region` needs, at the smallest scale that gives `smallest` pixels.
    fn choose(frame: &Frame, region: Rect, smallest: Option<Size>) -> Self {
        let reduced =
            |scale: u32| Size::new(region.width.div_ceil(scale), region.height.div_ceil(scale));
        // A part of a sample is none: what it is reduced with may lie outside the region.
        let fits = |&scale: &u32| {
            smallest.is_some_and(|it| {
                it.width <= region.width / scale && it.height <= region.height / scale
            })
        };
        let scale = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        let mut layout = PlaneLayout {
            size: reduced(scale),
            scale,
            shapes: Default::default(),
            wanted: Default::default(),
            sides: Default::default(),
            looks_down: 0,
        };
        for (at, component) in frame.components.iter().enumerate() {
            let (across, down) = (frame.across / component.across, frame.down / component.down);
            // Where pixels share samples, those need not become fewer by as much.
            let shrunk = scale as usize / across.min(down).min(scale as usize);
            let side = match shrunk {
                8 => Side::One,
                4 => Side::Two,
                2 => Side::Four,
                _ => Side::Eight,
            };
            let wanted = Wanted::of(frame, component, region);
            let scaled = |samples: usize| (samples * side.samples()).div_ceil(BLOCK);
            let (left, top) =
                (wanted.columns.start * side.samples(), wanted.rows.start * side.samples());
            let right = (wanted.columns.end * side.samples()).min(scaled(component.width));
            let bottom = (wanted.rows.end * side.samples()).min(scaled(component.height));
            layout.shapes[at] = PlaneShape {
                channels: 1,
                area: Rect {
                    left: left as u32,
                    top: top as u32,
                    width: (right - left) as u32,
                    height: (bottom - top) as u32,
                },
                across: (across * shrunk) as u32,
                down: (down * shrunk) as u32,
                stride: wanted.columns.len() * side.samples(),
            };
            layout.looks_down |= u32::from(down * shrunk > scale as usize);
            layout.wanted[at] = wanted;
            layout.sides[at] = side;
        }
        layout
    }

    /// The rows of units that are needed.
    fn rows(&self, frame: &Frame) -> Range<usize> {
        let rows = |(wanted, component): (&Wanted, &header::Component)| {
            (wanted.rows.start / component.down, wanted.rows.end.div_ceil(component.down))
        };
        let parts = self.wanted.iter().zip(frame.components.iter()).map(rows);
        let (start, end) =
            parts.fold((usize::MAX, 0), |(a, b), (start, end)| (a.min(start), b.max(end)));
        start..end
    }

    fn surfaces<'p>(&self, picture: &'p mut Picture) -> Surfaces<'p> {
        let mut surfaces = Surfaces::default();
        let places = surfaces.iter_mut().zip(picture.planes_mut());
        for (at, (surface, plane)) in places.enumerate() {
            let shape = &self.shapes[at];
            *surface = Some(Surface {
                samples: plane.samples_mut(),
                stride: shape.stride,
                height: shape.area.height as usize,
                wanted: self.wanted[at].clone(),
                left: self.wanted[at].columns.start,
                top: self.wanted[at].rows.start,
                side: self.sides[at],
            });
        }
        surfaces
    }

    /// Makes black what lies below the first `drawn` rows of units, and says how many rows of the
    /// result do not depend on it.
    fn blacken(&self, frame: &Frame, region: Rect, drawn: usize, picture: &mut Picture) -> u32 {
        for (at, plane) in picture.planes_mut().iter_mut().enumerate() {
            let shape = &self.shapes[at];
            let rows = drawn * frame.components[at].down * self.sides[at].samples();
            let valid = rows.saturating_sub(shape.area.top as usize);
            let end = shape.area.height as usize * shape.stride;
            if let Some(missing) = plane.samples_mut().get_mut(valid * shape.stride..end) {
                missing.fill(if at == 0 { 0 } else { 128 });
            }
        }
        let pixels = ((drawn * frame.unit_height()) as u32).saturating_sub(region.top);
        (pixels / self.scale).saturating_sub(self.looks_down).min(self.size.height)
    }
}

fn corrupt(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}

fn truncated(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Truncated, message).with_offset(offset as u64)
}

fn unsupported(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Unsupported, message).with_offset(offset as u64)
}
