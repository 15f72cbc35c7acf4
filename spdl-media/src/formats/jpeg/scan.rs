//! Scans: from entropy-coded data to coefficients.

use fearless_simd::{Level, Simd, dispatch};
use spdl_core::{Error, ErrorKind, Result};

use super::arithmetic;
use super::bits::{Bits, EntropyReader, Window};
use super::header::{
    BLOCK_AREA, Coding, EntropyCoding, Frame, Header, MAX_COMPONENTS, Next, RST0, Scan,
    max_block_visits, read_between_scans, skip_restarts,
};
use super::huffman::{BadCode, Coefficients, HuffmanTable, RUN_OF_16};
use super::stored::{Ac, Kept, Stored};
use super::surface::Surfaces;
use super::tables::Tables;
use super::{corrupt, truncated};
use crate::image::{Limits, OnTruncated};

/// What each coefficient is multiplied by, modulo 2¹⁶.
pub(super) type Quantization = [i16; BLOCK_AREA];

/// Decodes scans, and keeps tables and memory.
#[derive(Debug, Default)]
pub(super) struct Scans {
    pub(super) tables: Tables,
    /// All blocks of the image, where it has many scans.
    stored: Stored,
    /// Per component: as they were when its first scan began.
    quantization: [Option<Quantization>; MAX_COMPONENTS],
    state: State,
}

/// What is carried from block to block.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The last DC value of each component.
    predictions: [i32; MAX_COMPONENTS],
    /// How many more blocks have no coefficients left in this band.
    end_of_band_run: u32,
    /// Coded units until the next restart marker.
    until_restart: usize,
    /// Restart markers met so far, modulo 8.
    restarts: u8,
    /// The first coded unit of the next row that is read: 0, but where rows above were left out.
    first_unit: usize,
}

/// What scans may still cost. Each walks over all blocks of its components, however few bytes it has,
/// and arithmetic-coded data go on where there are no bytes at all.
pub(super) struct Work {
    visits: u64,
    coefficients: u64,
}

impl Work {
    fn new(frame: &Frame, encoded: &[u8]) -> Self {
        let blocks: usize = frame.components.iter().map(|component| component.blocks()).sum();
        let visits = max_block_visits(blocks as u64, encoded.len() as u64);
        // Blocks hold no more than 63, and scans tell of each three times in real files.
        let coefficients = visits + 192 * blocks as u64;
        Work { visits, coefficients }
    }

    /// Takes note of a scan before it is read.
    fn scan(&mut self, frame: &Frame, scan: &Scan, at: usize) -> Result<()> {
        let blocks = match scan.components[..] {
            [part] => {
                let component = &frame.components[part.component];
                component.blocks_wide * component.blocks_high
            }
            _ => scan.components.iter().map(|part| frame.components[part.component].blocks()).sum(),
        };
        self.visits = self.visits.checked_sub(blocks as u64).ok_or_else(|| {
            Error::new(
                ErrorKind::LimitExceeded,
                "more scans of a JPEG than its size and data account for",
            )
            .with_offset(at as u64)
        })?;
        Ok(())
    }

    /// Takes note of AC coefficients that arithmetic-coded data told of.
    pub(super) fn coefficients(&mut self, count: u64, at: usize) -> Result<()> {
        self.coefficients = self.coefficients.checked_sub(count).ok_or_else(|| {
            Error::new(
                ErrorKind::LimitExceeded,
                "more coefficients of a JPEG than its size and data account for",
            )
            .with_offset(at as u64)
        })?;
        Ok(())
    }
}

impl Scans {
    /// Prepares for an image whose only scan is read row by row.
    pub(super) fn begin_single(&mut self, frame: &Frame, scan: &Scan) -> Result<()> {
        self.quantization = [None; MAX_COMPONENTS];
        self.stored.pass();
        self.begin(frame, scan)
    }

    /// Leaves out what lies before the row `wanted` of units, and before a restart marker, where
    /// nothing depends on what was before. Says which row is to be read next, and where its data are.
    pub(super) fn skip_rows(
        &mut self,
        encoded: &[u8],
        header: &Header,
        wanted: usize,
    ) -> (usize, usize) {
        let units_wide = header.frame.units_wide;
        let interval = self.tables.restart_interval;
        let restarts = (wanted * units_wide).checked_div(interval).unwrap_or(0);
        let Some(data) = skip_restarts(encoded, header.data, restarts) else {
            // What is wrong with them is told by whoever reads them.
            return (0, header.data);
        };
        self.state.restarts = (restarts % 8) as u8;
        self.state.first_unit = restarts * interval % units_wide;
        (restarts * interval / units_wide, data)
    }

    fn begin(&mut self, frame: &Frame, scan: &Scan) -> Result<()> {
        self.state = State { until_restart: self.tables.restart_interval, ..State::default() };
        self.keep_quantization(frame, scan)?;
        for part in scan.components.iter() {
            if frame.entropy == EntropyCoding::Arithmetic {
                continue;
            }
            let needs_dc = scan.first == 0 && scan.high == 0;
            let needs_ac = scan.last > 0;
            if (needs_dc && !self.tables.dc[part.dc].is_defined())
                || (needs_ac && !self.tables.ac[part.ac].codes.is_defined())
            {
                return Err(corrupt("a JPEG Huffman table is missing, or none that can be", 0));
            }
            if frame.coding == Coding::Sequential {
                self.tables.ac[part.ac].prepare();
            }
        }
        Ok(())
    }

    /// Keeps the quantization tables of components as they are when their first scan begins.
    fn keep_quantization(&mut self, frame: &Frame, scan: &Scan) -> Result<()> {
        for part in scan.components.iter() {
            let number = frame.components[part.component].quantization;
            let slot = &mut self.quantization[part.component];
            *slot = slot.or(self.tables.quantization[number]);
            if slot.is_none() {
                return Err(corrupt(format!("the JPEG quantization table {number} is missing"), 0));
            }
        }
        Ok(())
    }

    /// Reads row `row` of units of an image's only scan, and draws the blocks that are wanted.
    pub(super) fn draw_row(
        &mut self,
        frame: &Frame,
        scan: &Scan,
        row: usize,
        reader: &mut EntropyReader<'_>,
        surfaces: &mut Surfaces<'_>,
        level: Level,
    ) -> Result<()> {
        let Scans { tables, quantization, state, .. } = self;
        let outcome = dispatch!(level, simd => {
            let blocks =
                Drawn { simd, tables, quantization, surfaces, block: &mut [0; _] };
            for_each_block(frame, scan, row, reader, state, tables.restart_interval, blocks)
        });
        outcome.map_err(|fault| fault.into_error(reader, frame.units_high - row))
    }

    /// Draws the wanted blocks of row `row` of units of an image whose scans were all read.
    pub(super) fn draw_stored_row(
        &self,
        frame: &Frame,
        row: usize,
        surfaces: &mut Surfaces<'_>,
        level: Level,
    ) {
        dispatch!(level, simd => self.draw_stored(simd, frame, row, surfaces));
    }

    #[inline(always)]
    fn draw_stored<S: Simd>(
        &self,
        simd: S,
        frame: &Frame,
        row: usize,
        surfaces: &mut Surfaces<'_>,
    ) {
        let mut block: Coefficients = [0; _];
        for (at, component) in frame.components.iter().enumerate() {
            let Some(quantization) = &self.quantization[at] else { continue };
            let Some(surface) = &mut surfaces[at] else { continue };
            let stored = self.stored.component(at);
            let wanted = surface.wanted.clone();
            let rows = row * component.down..(row + 1) * component.down;
            for y in rows.filter(|y| wanted.rows.contains(y)) {
                for x in wanted.columns.clone() {
                    let zero_from = stored.copy(y * component.padded_wide + x, &mut block);
                    surface.draw(simd, (x, y), &block, zero_from, quantization);
                }
            }
        }
    }

    /// Reads all scans of an image, or those with coefficients that are `kept`. Says how many of its
    /// rows of units, from the top, have all their coefficients: all of them, except where the data
    /// end early and `on_truncated` allows that; then it also says where they end.
    pub(super) fn read_all(
        &mut self,
        encoded: &[u8],
        header: &Header,
        window: &mut Window,
        kept: [Kept; MAX_COMPONENTS],
        (limits, on_truncated): (&Limits, OnTruncated),
        level: Level,
    ) -> Result<(usize, Option<Error>)> {
        let frame = &header.frame;
        self.stored.begin(frame, kept, limits)?;
        self.quantization = [None; MAX_COMPONENTS];
        let mut work = Work::new(frame, encoded);

        // How many low bits of each coefficient are still unknown; `None`: all.
        let mut unknown: Unknown = [[None; BLOCK_AREA]; _];
        let (mut scan, mut data) = (header.scan, header.data);
        loop {
            work.scan(frame, &scan, data)?;
            check_order(frame, &scan, &unknown, data)?;
            let is_skipped = scan.first > 0
                && scan.components.iter().all(|part| kept[part.component] == Kept::Dc);
            let (end, outcome) = match frame.entropy {
                _ if is_skipped => {
                    self.keep_quantization(frame, &scan)?;
                    (data, Ok(()))
                }
                EntropyCoding::Huffman => {
                    self.begin(frame, &scan)?;
                    let mut reader = EntropyReader::new(encoded, data, window, level);
                    let outcome = self.read_scan(frame, &scan, &mut reader, level);
                    (reader.offset(), outcome)
                }
                EntropyCoding::Arithmetic => {
                    self.begin(frame, &scan)?;
                    let Scans { tables, stored, .. } = self;
                    let stored = (stored, &mut work);
                    arithmetic::read_scan(encoded, data, frame, &scan, tables, stored)
                }
            };
            for part in scan.components.iter() {
                unknown[part.component][scan.first..=scan.last].fill(Some(scan.low));
            }
            if let Err((rows, error)) = outcome {
                let partial = on_truncated == OnTruncated::Partial
                    && error.kind() == ErrorKind::Truncated
                    && is_sharp(frame, &unknown);
                let rows = match scan.components[..] {
                    [part] => rows / frame.components[part.component].down,
                    _ => rows,
                };
                return if partial && rows > 0 { Ok((rows, Some(error))) } else { Err(error) };
            }
            let tables = &mut self.tables;
            let mut on_table = |marker, segment: &[u8], at| tables.read(marker, segment, at);
            match read_between_scans(encoded, end, frame, &mut on_table)? {
                Next::Scan { scan: next, data: start } => (scan, data) = (next, start),
                Next::EndOfImage => {
                    self.check_complete(frame, &unknown, limits, end)?;
                    return Ok((frame.units_high, None));
                }
                Next::EndOfData => {
                    if is_sharp(frame, &unknown) {
                        return Ok((frame.units_high, None));
                    }
                    return Err(truncated("the JPEG ends before its last scan", encoded.len()));
                }
            }
        }
    }

    /// A file may end with an image that is less than sharp, but not without a colour.
    fn check_complete(
        &self,
        frame: &Frame,
        unknown: &Unknown,
        limits: &Limits,
        end: usize,
    ) -> Result<()> {
        for (component, bits) in unknown[..frame.components.len()].iter().enumerate() {
            if self.quantization[component].is_none() || (bits[0].is_none() && limits.is_strict()) {
                return Err(corrupt(
                    format!("the JPEG ends without a scan of component {component}"),
                    end,
                ));
            }
        }
        Ok(())
    }

    /// Reads one scan of several; where that fails, says how many rows were read.
    fn read_scan(
        &mut self,
        frame: &Frame,
        scan: &Scan,
        reader: &mut EntropyReader<'_>,
        level: Level,
    ) -> Result<(), (usize, Error)> {
        let rows = match scan.components[..] {
            [part] => frame.components[part.component].blocks_high,
            _ => frame.units_high,
        };
        let Scans { tables, stored, state, .. } = self;
        let interval = tables.restart_interval;
        for row in 0..rows {
            let outcome = dispatch!(level, _simd => match frame.coding {
                Coding::Sequential | Coding::Lossless => {
                    let blocks = Whole { tables, stored, frame };
                    for_each_block(frame, scan, row, reader, state, interval, blocks)
                }
                Coding::Progressive => {
                    let blocks = Part { tables, stored, scan, frame };
                    for_each_block(frame, scan, row, reader, state, interval, blocks)
                }
            });
            outcome.map_err(|fault| (row, fault.into_error(reader, rows - row)))?;
        }
        Ok(())
    }
}

/// How many low bits of each coefficient of each component are still unknown; `None`: all.
type Unknown = [[Option<u32>; BLOCK_AREA]; MAX_COMPONENTS];

/// Refuses a scan of what is known already, or that leaves bits out between what was known and what
/// it tells.
fn check_order(frame: &Frame, scan: &Scan, unknown: &Unknown, at: usize) -> Result<()> {
    let expected = (scan.high > 0).then_some(scan.high);
    for part in scan.components.iter() {
        let known = &unknown[part.component][scan.first..=scan.last];
        if known.iter().any(|&low| low != expected) {
            return Err(corrupt(
                format!(
                    "a JPEG scan of coefficients {} to {} of component {}, bits {} to {}, which does \
                     not follow on those before it",
                    scan.first, scan.last, frame.components[part.component].id, scan.high, scan.low
                ),
                at,
            ));
        }
    }
    Ok(())
}

/// Whether all bits of all coefficients are known.
fn is_sharp(frame: &Frame, unknown: &Unknown) -> bool {
    unknown[..frame.components.len()].iter().flatten().all(|&bits| bits == Some(0))
}

/// Where a block belongs, and its tables.
#[derive(Clone, Copy)]
struct Place {
    component: usize,
    /// Its column and row among the component's blocks.
    column: usize,
    row: usize,
    dc: usize,
    ac: usize,
}

/// Why a row could not be read.
enum Fault {
    /// The data match no code, or a run of zeros leaves the block.
    BadCode,
    /// The data end, or a marker stands where there should be data.
    Overrun,
    NoRestart(NoRestart),
}

/// Another marker, or none, where this restart marker should be.
pub(super) struct NoRestart {
    expected: u8,
    found: Option<u8>,
}

impl NoRestart {
    /// Whether `found` is the restart marker that comes after so many others, modulo 8.
    pub(super) fn check(restarts: u8, found: Option<u8>) -> Result<(), Self> {
        let expected = RST0 + restarts;
        if found == Some(expected) { Ok(()) } else { Err(NoRestart { expected, found }) }
    }

    pub(super) fn into_error(self, at: usize, missing: usize) -> Error {
        match self {
            NoRestart { found: None, .. } => {
                truncated(format!("the JPEG data end {missing} rows of blocks early"), at)
            }
            NoRestart { expected, found: Some(found) } => corrupt(
                format!("expected the JPEG restart marker {expected:#04x}, found {found:#04x}"),
                at,
            ),
        }
    }
}

impl From<BadCode> for Fault {
    fn from(_: BadCode) -> Self {
        Fault::BadCode
    }
}

impl Fault {
    /// Data that end in front of an end marker are damaged, not cut: a part of the image, for which
    /// the rest need not be read, tells the same of whether a file is cut.
    fn into_error(self, reader: &EntropyReader<'_>, missing: usize) -> Error {
        let at = reader.offset();
        match self {
            Fault::BadCode if !reader.is_at_end() => {
                corrupt("the JPEG data match no code of their Huffman table", at)
            }
            Fault::BadCode | Fault::Overrun => match reader.peek_marker() {
                None => truncated(format!("the JPEG data end {missing} rows of blocks early"), at),
                Some(marker) => corrupt(
                    format!("the JPEG marker {marker:#04x} stands {missing} rows of blocks early"),
                    at,
                ),
            },
            Fault::NoRestart(fault) => fault.into_error(at, missing),
        }
    }
}

/// Reads the blocks of a kind of scan. A trait, since closures cannot be told to be inlined, and
/// only what is inlined is compiled for the processor at hand.
trait BlockReader {
    fn read(&mut self, place: Place, bits: &mut Bits<'_>, state: &mut State)
    -> Result<(), BadCode>;
}

/// Blocks of an image's only scan, which are drawn at once, or not wanted.
struct Drawn<'a, 's, S> {
    simd: S,
    tables: &'a Tables,
    quantization: &'a [Option<Quantization>; MAX_COMPONENTS],
    surfaces: &'a mut Surfaces<'s>,
    /// Zeros between blocks.
    block: &'a mut Coefficients,
}

impl<S: Simd> BlockReader for Drawn<'_, '_, S> {
    #[inline(always)]
    fn read(
        &mut self,
        place: Place,
        bits: &mut Bits<'_>,
        state: &mut State,
    ) -> Result<(), BadCode> {
        let Place { component, column, row, dc, ac } = place;
        let ac = &self.tables.ac[ac];
        let dc = read_dc(bits, &self.tables.dc[dc], &mut state.predictions[component])?;
        let surface = match &mut self.surfaces[component] {
            Some(surface) if surface.wants(column, row) => surface,
            _ => return ac.skip_block(bits, 1),
        };
        let zero_from = ac.read_block(bits, self.block, surface.last_coefficient())?;
        self.block[0] = dc;
        if let Some(quantization) = &self.quantization[component] {
            surface.draw(self.simd, (column, row), self.block, zero_from, quantization);
        }
        self.block[..BLOCK_AREA].fill(0);
        Ok(())
    }
}

/// Blocks of a sequential scan of several.
struct Whole<'a> {
    tables: &'a Tables,
    stored: &'a mut Stored,
    frame: &'a Frame,
}

impl BlockReader for Whole<'_> {
    #[inline(always)]
    fn read(
        &mut self,
        place: Place,
        bits: &mut Bits<'_>,
        state: &mut State,
    ) -> Result<(), BadCode> {
        let mut block: Coefficients = [0; _];
        block[0] =
            read_dc(bits, &self.tables.dc[place.dc], &mut state.predictions[place.component])?;
        let zero_from = self.tables.ac[place.ac].read_block(bits, &mut block, BLOCK_AREA - 1)?;
        let stored = self.stored.component_mut(place.component);
        let at = place.index(self.frame);
        *stored.dc_mut(at) = block[0];
        stored.ac(at).replace(&block, zero_from);
        Ok(())
    }
}

/// Some coefficients, or some of their bits.
struct Part<'a> {
    tables: &'a Tables,
    stored: &'a mut Stored,
    scan: &'a Scan,
    frame: &'a Frame,
}

impl BlockReader for Part<'_> {
    #[inline(always)]
    fn read(
        &mut self,
        place: Place,
        bits: &mut Bits<'_>,
        state: &mut State,
    ) -> Result<(), BadCode> {
        let scan = self.scan;
        let stored = self.stored.component_mut(place.component);
        let at = place.index(self.frame);
        let run = &mut state.end_of_band_run;
        match (scan.first, scan.high) {
            (0, 0) => {
                let prediction = &mut state.predictions[place.component];
                read_dc(bits, &self.tables.dc[place.dc], prediction)?;
                *stored.dc_mut(at) = (*prediction << scan.low) as i16;
                Ok(())
            }
            (0, _) => {
                *stored.dc_mut(at) |= (bits.take(1) << scan.low) as i16;
                Ok(())
            }
            (_, 0) => read_band(bits, &self.tables.ac[place.ac].codes, scan, run, stored.ac(at)),
            _ => refine_band(bits, &self.tables.ac[place.ac].codes, scan, run, stored.ac(at)),
        }
    }
}

impl Place {
    /// Its number among the component's blocks.
    #[inline(always)]
    fn index(&self, frame: &Frame) -> usize {
        self.row * frame.components[self.component].padded_wide + self.column
    }
}

/// Walks over the blocks of a scan's row in their coded order, and over restart markers.
#[inline(always)]
fn for_each_block(
    frame: &Frame,
    scan: &Scan,
    row: usize,
    reader: &mut EntropyReader<'_>,
    state: &mut State,
    restart_interval: usize,
    mut blocks: impl BlockReader,
) -> Result<(), Fault> {
    // A lone component's unit is one block, and only blocks with samples of the image are coded.
    let alone = scan.components.len() == 1;
    let units = match scan.components[..] {
        [part] => frame.components[part.component].blocks_wide,
        _ => frame.units_wide,
    };
    for unit in std::mem::take(&mut state.first_unit)..units {
        if restart_interval > 0 {
            if state.until_restart == 0 {
                restart(reader, state)?;
                state.until_restart = restart_interval;
            }
            state.until_restart -= 1;
        }
        let mut bits = reader.bits();
        let mut outcome = Ok(());
        'unit: for part in scan.components.iter() {
            let component = &frame.components[part.component];
            let (across, down) = if alone { (1, 1) } else { (component.across, component.down) };
            for y in 0..down {
                for x in 0..across {
                    let place = Place {
                        component: part.component,
                        column: unit * across + x,
                        row: row * down + y,
                        dc: part.dc,
                        ac: part.ac,
                    };
                    outcome = blocks.read(place, &mut bits, state);
                    if outcome.is_err() {
                        break 'unit;
                    }
                }
            }
        }
        let position = bits.position();
        reader.set_position(position);
        outcome?;
        if reader.is_overrun() {
            return Err(Fault::Overrun);
        }
    }
    Ok(())
}

#[cold]
fn restart(reader: &mut EntropyReader<'_>, state: &mut State) -> Result<(), Fault> {
    NoRestart::check(state.restarts, reader.next_marker()).map_err(Fault::NoRestart)?;
    state.restarts = (state.restarts + 1) % 8;
    state.predictions = [0; MAX_COMPONENTS];
    state.end_of_band_run = 0;
    Ok(())
}

/// A block's first coefficient, which is stored as the difference to the last one's.
#[inline(always)]
fn read_dc(
    bits: &mut Bits<'_>,
    table: &HuffmanTable,
    prediction: &mut i32,
) -> Result<i16, BadCode> {
    let (_, difference) = table.read_value(bits)?;
    *prediction = prediction.wrapping_add(difference);
    Ok(*prediction as i16)
}

/// The first scan of a band of coefficients (G.1.2.2).
#[inline(always)]
fn read_band(
    bits: &mut Bits<'_>,
    table: &HuffmanTable,
    scan: &Scan,
    end_of_band_run: &mut u32,
    mut block: Ac<'_>,
) -> Result<(), BadCode> {
    if *end_of_band_run > 0 {
        *end_of_band_run -= 1;
        return Ok(());
    }
    let mut at = scan.first;
    while at <= scan.last {
        let (symbol, value) = table.read_value(bits)?;
        let run = symbol.run();
        if symbol.size() == 0 {
            if symbol.is_end() {
                *end_of_band_run = (1 << run) + bits.take(run as u32) - 1;
                return Ok(());
            }
            at += 16;
            continue;
        }
        at += run;
        block.set(at, (value << scan.low) as i16);
        at += 1;
    }
    if at > scan.last + 1 { Err(BadCode) } else { Ok(()) }
}

/// A later scan of a band: one more bit of what is there, and what becomes visible (G.1.2.3).
#[inline(always)]
fn refine_band(
    bits: &mut Bits<'_>,
    table: &HuffmanTable,
    scan: &Scan,
    end_of_band_run: &mut u32,
    mut block: Ac<'_>,
) -> Result<(), BadCode> {
    let bit = 1i16 << scan.low;
    let mut at = scan.first;
    if *end_of_band_run == 0 {
        while at <= scan.last {
            let symbol = table.read(bits)?;
            let run = symbol.run();
            let value = match symbol.size() {
                0 if run != RUN_OF_16 => {
                    *end_of_band_run = (1 << run) + bits.take(run as u32);
                    break;
                }
                0 => 0,
                1 => {
                    if bits.take(1) == 1 {
                        bit
                    } else {
                        -bit
                    }
                }
                _ => return Err(BadCode),
            };
            // The run counts zeros only; what is not zero is refined on the way.
            let mut zeros = run;
            while at <= scan.last {
                if block.get(at) != 0 {
                    refine(bits, block.known(at), bit);
                } else if zeros == 0 {
                    break;
                } else {
                    zeros -= 1;
                }
                at += 1;
            }
            if value != 0 {
                if at > scan.last {
                    return Err(BadCode);
                }
                block.set(at, value);
            }
            at += 1;
        }
    }
    if *end_of_band_run > 0 {
        if at <= scan.last {
            let mut nonzero = block.nonzero(at, scan.last);
            while nonzero != 0 {
                refine(bits, block.known(nonzero.trailing_zeros() as usize), bit);
                nonzero &= nonzero - 1;
            }
        }
        *end_of_band_run -= 1;
    }
    Ok(())
}

/// Adds the next bit to a coefficient, away from zero.
#[inline(always)]
fn refine(bits: &mut Bits<'_>, coefficient: &mut i16, bit: i16) {
    if bits.take(1) == 1 && *coefficient & bit == 0 {
        *coefficient = coefficient.wrapping_add(if *coefficient >= 0 { bit } else { -bit });
    }
}
