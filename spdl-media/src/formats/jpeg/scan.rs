//! Scans: from entropy-coded data to coefficients.

use fearless_simd::{Level, dispatch};
use spdl_core::{Error, ErrorKind, Result};

use super::header::{
    BLOCK_AREA, Coding, Frame, Header, Next, Scan, Tables, ZIGZAG, read_between_scans,
};
use super::huffman::{BadCode, BitReader, HuffmanTable};
use super::{corrupt, truncated};
use crate::Limits;

/// A block's coefficients, row by row, not yet multiplied by their quantization.
pub(super) type Block = [i16; BLOCK_AREA];
/// What each coefficient is multiplied by, modulo 2¹⁶.
pub(super) type Quantization = [i16; BLOCK_AREA];

const MAX_COMPONENTS: usize = 4;
/// Real files have about ten. Each costs a walk over the image, however few bytes it has.
const MAX_SCANS: usize = 256;
const EOI: u8 = 0xD9;
const RST0: u8 = 0xD0;
/// A run of zeros that no value follows.
const RUN_OF_16: usize = 15;

/// One row of coded units, per component: `down` rows of `padded_wide` blocks.
pub(super) struct UnitRow<'a> {
    pub(super) components: [Option<(&'a [Block], &'a Quantization)>; MAX_COMPONENTS],
}

/// Decodes scans, and keeps tables and memory.
#[derive(Debug, Default)]
pub(super) struct Scans {
    pub(super) tables: Tables,
    /// Per component: of one row of units where the image has one scan, otherwise of all.
    coefficients: [Vec<Block>; MAX_COMPONENTS],
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
}

impl Scans {
    /// Prepares for an image whose only scan is read row by row.
    pub(super) fn begin_single(&mut self, frame: &Frame, scan: &Scan) -> Result<()> {
        for (blocks, component) in self.coefficients.iter_mut().zip(&frame.components) {
            blocks.clear();
            blocks.resize(component.padded_wide * component.down, [0; BLOCK_AREA]);
        }
        self.quantization = [None; MAX_COMPONENTS];
        self.begin(frame, scan)
    }

    fn begin(&mut self, frame: &Frame, scan: &Scan) -> Result<()> {
        self.state = State { until_restart: self.tables.restart_interval, ..State::default() };
        for part in &scan.components {
            let number = frame.components[part.component].quantization;
            let slot = &mut self.quantization[part.component];
            if slot.is_none() {
                *slot = self.tables.quantization[number];
            }
            if slot.is_none() {
                return Err(corrupt(format!("the JPEG quantization table {number} is missing"), 0));
            }
            let needs_dc = scan.first == 0 && scan.high == 0;
            let needs_ac = scan.last > 0;
            if (needs_dc && !self.tables.dc[part.dc].is_defined())
                || (needs_ac && !self.tables.ac[part.ac].is_defined())
            {
                return Err(corrupt("a JPEG Huffman table is missing", 0));
            }
        }
        Ok(())
    }

    /// Reads the next row of units of an image's only scan.
    pub(super) fn read_row(
        &mut self,
        frame: &Frame,
        scan: &Scan,
        row: usize,
        reader: &mut BitReader<'_>,
        level: Level,
    ) -> Result<()> {
        for blocks in &mut self.coefficients[..frame.components.len()] {
            blocks.as_flattened_mut().fill(0);
        }
        let mut local = reader.clone();
        let outcome = dispatch!(level, _simd => self.read_units(frame, scan, 0, &mut local));
        *reader = local;
        let missing = frame.units_high - row;
        outcome.map_err(|fault| fault.into_error(reader, missing))
    }

    /// Reads all scans of an image.
    pub(super) fn read_all(
        &mut self,
        encoded: &[u8],
        header: &Header,
        limits: &Limits,
        level: Level,
    ) -> Result<()> {
        let frame = &header.frame;
        let blocks_of = |at: usize| {
            frame.components.get(at).map_or(0, |part| part.padded_wide * part.padded_high)
        };
        let blocks: usize = (0..MAX_COMPONENTS).map(blocks_of).sum();
        limits.check_bytes((blocks * size_of::<Block>()) as u64, frame.size)?;
        for (at, blocks) in self.coefficients.iter_mut().enumerate() {
            blocks.clear();
            blocks.resize(blocks_of(at), [0; BLOCK_AREA]);
        }
        self.quantization = [None; MAX_COMPONENTS];

        // How many low bits of each coefficient are still unknown; `None`: all.
        let mut unknown: [[Option<u32>; BLOCK_AREA]; MAX_COMPONENTS] = [[None; BLOCK_AREA]; _];
        let (mut scan, mut data) = (header.scan.clone(), header.data);
        for _ in 0..MAX_SCANS {
            self.begin(frame, &scan)?;
            let mut reader = BitReader::new(encoded, data);
            self.read_scan(frame, &scan, &mut reader, level)?;
            for part in &scan.components {
                unknown[part.component][scan.first..=scan.last].fill(Some(scan.low));
            }
            let end = reader.offset();
            match read_between_scans(encoded, end, frame, &mut self.tables)? {
                Next::Scan { scan: next, data: start } => (scan, data) = (next, start),
                Next::EndOfImage => return self.check_complete(frame, &unknown, limits, end),
                Next::EndOfData => {
                    let known = &unknown[..frame.components.len()];
                    if known.iter().flatten().all(|&bits| bits == Some(0)) {
                        return Ok(());
                    }
                    return Err(truncated("the JPEG ends before its last scan", encoded.len()));
                }
            }
        }
        Err(Error::new(
            ErrorKind::LimitExceeded,
            format!("the JPEG has more than {MAX_SCANS} scans"),
        ))
    }

    /// A file may end with an image that is less than sharp, but not without a colour.
    fn check_complete(
        &self,
        frame: &Frame,
        unknown: &[[Option<u32>; BLOCK_AREA]; MAX_COMPONENTS],
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

    /// Reads one scan of several.
    fn read_scan(
        &mut self,
        frame: &Frame,
        scan: &Scan,
        reader: &mut BitReader<'_>,
        level: Level,
    ) -> Result<()> {
        let rows = match scan.components[..] {
            [part] => frame.components[part.component].blocks_high,
            _ => frame.units_high,
        };
        for row in 0..rows {
            let mut local = reader.clone();
            let outcome = dispatch!(level, _simd => self.read_units(frame, scan, row, &mut local));
            *reader = local;
            outcome.map_err(|fault| fault.into_error(reader, rows - row))?;
        }
        Ok(())
    }

    /// Row `row` of a scan.
    #[inline(always)]
    fn read_units(
        &mut self,
        frame: &Frame,
        scan: &Scan,
        row: usize,
        reader: &mut BitReader<'_>,
    ) -> Result<(), Fault> {
        let Scans { tables, coefficients, state, .. } = self;
        match frame.coding {
            Coding::Sequential => {
                for_each_block(frame, scan, row, reader, state, Whole { tables, coefficients })
            }
            Coding::Progressive => {
                for_each_block(frame, scan, row, reader, state, Part { tables, coefficients, scan })
            }
        }
    }

    /// The row of units that was read last.
    pub(super) fn row(&self) -> UnitRow<'_> {
        let part = |at: usize| Some((&self.coefficients[at][..], self.quantization[at].as_ref()?));
        UnitRow { components: std::array::from_fn(part) }
    }

    /// A row of units of an image whose scans were all read.
    pub(super) fn stored_row(&self, frame: &Frame, row: usize) -> UnitRow<'_> {
        let part = |at: usize| {
            let component = frame.components.get(at)?;
            let blocks = component.padded_wide * component.down;
            let stored = &self.coefficients[at][row * blocks..][..blocks];
            Some((stored, self.quantization[at].as_ref()?))
        };
        UnitRow { components: std::array::from_fn(part) }
    }
}

/// Where a block belongs, and its tables.
#[derive(Clone, Copy)]
struct Place {
    component: usize,
    /// Its position among the component's blocks.
    block: usize,
    dc: usize,
    ac: usize,
}

/// Why a row could not be read.
enum Fault {
    /// The data match no code, or a run of zeros leaves the block.
    BadCode,
    /// The data end, or a marker stands where there should be data.
    Overrun,
    /// Another marker, or none, where this restart marker should be.
    NoRestart { expected: u8, found: Option<u8> },
}

impl From<BadCode> for Fault {
    fn from(_: BadCode) -> Self {
        Fault::BadCode
    }
}

impl Fault {
    fn into_error(self, reader: &BitReader<'_>, missing: usize) -> Error {
        let at = reader.offset();
        match self {
            Fault::BadCode if !reader.is_overrun() => {
                corrupt("the JPEG data match no code of their Huffman table", at)
            }
            Fault::BadCode | Fault::Overrun => match reader.peek_marker() {
                None | Some(EOI) => {
                    truncated(format!("the JPEG data end {missing} rows of blocks early"), at)
                }
                Some(marker) => corrupt(
                    format!("the JPEG marker {marker:#04x} stands {missing} rows of blocks early"),
                    at,
                ),
            },
            Fault::NoRestart { found: None | Some(EOI), .. } => {
                truncated(format!("the JPEG data end {missing} rows of blocks early"), at)
            }
            Fault::NoRestart { expected, found: Some(found) } => corrupt(
                format!("expected the JPEG restart marker {expected:#04x}, found {found:#04x}"),
                at,
            ),
        }
    }
}

/// Reads the blocks of a kind of scan. A trait, since closures cannot be told to be inlined, and
/// only what is inlined is compiled for the processor at hand.
trait BlockReader {
    fn tables(&self) -> &Tables;

    fn read(
        &mut self,
        place: Place,
        reader: &mut BitReader<'_>,
        state: &mut State,
    ) -> Result<(), Fault>;
}

/// Blocks of a sequential scan.
struct Whole<'a> {
    tables: &'a Tables,
    coefficients: &'a mut [Vec<Block>; MAX_COMPONENTS],
}

impl BlockReader for Whole<'_> {
    #[inline(always)]
    fn tables(&self) -> &Tables {
        self.tables
    }

    #[inline(always)]
    fn read(
        &mut self,
        place: Place,
        reader: &mut BitReader<'_>,
        state: &mut State,
    ) -> Result<(), Fault> {
        let Place { component, block, dc, ac } = place;
        read_block(
            reader,
            &self.tables.dc[dc],
            &self.tables.ac[ac],
            &mut state.predictions[component],
            &mut self.coefficients[component][block],
        )
    }
}

/// Some coefficients, or some of their bits.
struct Part<'a> {
    tables: &'a Tables,
    coefficients: &'a mut [Vec<Block>; MAX_COMPONENTS],
    scan: &'a Scan,
}

impl BlockReader for Part<'_> {
    #[inline(always)]
    fn tables(&self) -> &Tables {
        self.tables
    }

    #[inline(always)]
    fn read(
        &mut self,
        place: Place,
        reader: &mut BitReader<'_>,
        state: &mut State,
    ) -> Result<(), Fault> {
        let scan = self.scan;
        let block = &mut self.coefficients[place.component][place.block];
        let run = &mut state.end_of_band_run;
        match (scan.first, scan.high) {
            (0, 0) => {
                let (_, difference) = reader.code_and_value(&self.tables.dc[place.dc])?;
                let prediction = &mut state.predictions[place.component];
                *prediction = prediction.wrapping_add(difference);
                block[0] = (*prediction << scan.low) as i16;
                Ok(())
            }
            (0, _) => {
                block[0] |= (reader.bits(1) << scan.low) as i16;
                Ok(())
            }
            (_, 0) => read_band(reader, &self.tables.ac[place.ac], scan, run, block),
            _ => refine_band(reader, &self.tables.ac[place.ac], scan, run, block),
        }
    }
}

/// Walks over the blocks of a scan's row in their coded order, and over restart markers.
#[inline(always)]
fn for_each_block(
    frame: &Frame,
    scan: &Scan,
    row: usize,
    reader: &mut BitReader<'_>,
    state: &mut State,
    mut blocks: impl BlockReader,
) -> Result<(), Fault> {
    let restart_interval = blocks.tables().restart_interval;
    // A lone component's unit is one block, and only blocks with samples of the image are coded.
    let alone = scan.components.len() == 1;
    let units = match scan.components[..] {
        [part] => frame.components[part.component].blocks_wide,
        _ => frame.units_wide,
    };
    for unit in 0..units {
        if restart_interval > 0 {
            if state.until_restart == 0 {
                restart(reader, state)?;
                state.until_restart = restart_interval;
            }
            state.until_restart -= 1;
        }
        for part in &scan.components {
            let component = &frame.components[part.component];
            let (across, down) = if alone { (1, 1) } else { (component.across, component.down) };
            for y in 0..down {
                for x in 0..across {
                    let block = (row * down + y) * component.padded_wide + unit * across + x;
                    let place =
                        Place { component: part.component, block, dc: part.dc, ac: part.ac };
                    blocks.read(place, reader, state)?;
                }
            }
        }
        if reader.is_overrun() {
            return Err(Fault::Overrun);
        }
    }
    Ok(())
}

#[cold]
fn restart(reader: &mut BitReader<'_>, state: &mut State) -> Result<(), Fault> {
    let expected = RST0 + state.restarts;
    match reader.next_marker() {
        Some(found) if found == expected => {
            state.restarts = (state.restarts + 1) % 8;
            state.predictions = [0; MAX_COMPONENTS];
            state.end_of_band_run = 0;
            Ok(())
        }
        found => Err(Fault::NoRestart { expected, found }),
    }
}

/// A block of a sequential scan (ITU-T T.81, F.2.2).
#[inline(always)]
fn read_block(
    reader: &mut BitReader<'_>,
    dc: &HuffmanTable,
    ac: &HuffmanTable,
    prediction: &mut i32,
    block: &mut Block,
) -> Result<(), Fault> {
    let (_, difference) = reader.code_and_value(dc)?;
    *prediction = prediction.wrapping_add(difference);
    block[0] = *prediction as i16;
    let mut at = 1;
    while at < BLOCK_AREA {
        let (entry, value) = reader.code_and_value(ac)?;
        if entry.size() == 0 {
            if entry.run() != RUN_OF_16 {
                return Ok(());
            }
            at += 16;
            continue;
        }
        at += entry.run();
        block[usize::from(ZIGZAG[at & 127]) & 63] = value as i16;
        at += 1;
    }
    if at > BLOCK_AREA { Err(Fault::BadCode) } else { Ok(()) }
}

/// The first scan of a band of coefficients (G.1.2.2).
#[inline(always)]
fn read_band(
    reader: &mut BitReader<'_>,
    table: &HuffmanTable,
    scan: &Scan,
    end_of_band_run: &mut u32,
    block: &mut Block,
) -> Result<(), Fault> {
    if *end_of_band_run > 0 {
        *end_of_band_run -= 1;
        return Ok(());
    }
    let mut at = scan.first;
    while at <= scan.last {
        let (entry, value) = reader.code_and_value(table)?;
        let run = entry.run();
        if entry.size() == 0 {
            if run != RUN_OF_16 {
                *end_of_band_run = (1 << run) + reader.bits(run as u32) - 1;
                return Ok(());
            }
            at += 16;
            continue;
        }
        at += run;
        block[usize::from(ZIGZAG[at & 127]) & 63] = (value << scan.low) as i16;
        at += 1;
    }
    if at > scan.last + 1 { Err(Fault::BadCode) } else { Ok(()) }
}

/// A later scan of a band: one more bit of what is there, and what becomes visible (G.1.2.3).
#[inline(always)]
fn refine_band(
    reader: &mut BitReader<'_>,
    table: &HuffmanTable,
    scan: &Scan,
    end_of_band_run: &mut u32,
    block: &mut Block,
) -> Result<(), Fault> {
    let bit = 1i16 << scan.low;
    let mut at = scan.first;
    if *end_of_band_run == 0 {
        while at <= scan.last {
            let entry = reader.code(table)?;
            let run = entry.run();
            let value = match entry.size() {
                0 if run != RUN_OF_16 => {
                    *end_of_band_run = (1 << run) + reader.bits(run as u32);
                    break;
                }
                0 => 0,
                1 => {
                    if reader.bits(1) == 1 {
                        bit
                    } else {
                        -bit
                    }
                }
                _ => return Err(Fault::BadCode),
            };
            // The run counts zeros only; what is not zero is refined on the way.
            let mut zeros = run;
            while at <= scan.last {
                let coefficient = &mut block[usize::from(ZIGZAG[at])];
                if *coefficient != 0 {
                    refine(reader, coefficient, bit);
                } else if zeros == 0 {
                    break;
                } else {
                    zeros -= 1;
                }
                at += 1;
            }
            if value != 0 {
                if at > scan.last {
                    return Err(Fault::BadCode);
                }
                block[usize::from(ZIGZAG[at])] = value;
            }
            at += 1;
        }
    }
    if *end_of_band_run > 0 {
        while at <= scan.last {
            let coefficient = &mut block[usize::from(ZIGZAG[at])];
            if *coefficient != 0 {
                refine(reader, coefficient, bit);
            }
            at += 1;
        }
        *end_of_band_run -= 1;
    }
    Ok(())
}

/// Adds the next bit to a coefficient, away from zero.
#[inline(always)]
fn refine(reader: &mut BitReader<'_>, coefficient: &mut i16, bit: i16) {
    if reader.bits(1) == 1 && *coefficient & bit == 0 {
        *coefficient = coefficient.wrapping_add(if *coefficient >= 0 { bit } else { -bit });
    }
}
