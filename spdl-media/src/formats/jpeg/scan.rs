//! Scans: from entropy-coded data to coefficients.

use fearless_simd::{Level, Simd, dispatch};
use spdl_core::{Error, ErrorKind, Result};

use super::arithmetic;
use super::bits::{BitReader, EntropyReader, EntropyWindow};
use super::budget::{RestartError, WorkBudget};
use super::coefficients::{AcBlock, CoefficientBuffer, CoefficientSet};
use super::errors::{corrupt, truncated};
use super::header::{
    BLOCK_AREA, Coding, EntropyCoding, Frame, Header, MAX_COMPONENTS, Next, Quantization, Scan,
    read_between_scans, skip_restarts,
};
use super::huffman::{HuffmanTable, InvalidCode, WorkBlock, ZRL_RUN};
use super::output::ComponentOutputs;
use super::smoothing::Smoothing;
use super::tables::Tables;
use crate::image::{Limits, OnTruncated};

/// Decodes scans. It keeps tables and memory between images.
#[derive(Debug, Default)]
pub(super) struct ScanDecoder {
    pub(super) tables: Tables,
    /// The coefficients of an image with several scans.
    stored: CoefficientBuffer,
    /// The quantisation table of each component at the start of its first scan.
    quantization: [Option<Quantization>; MAX_COMPONENTS],
    state: ScanState,
    /// Estimates of the coefficients that an incomplete progressive image lacks.
    smoothing: Option<Smoothing>,
}

/// The state of a scan that continues from block to block.
#[derive(Clone, Copy, Debug, Default)]
struct ScanState {
    /// The previous DC value of each component.
    predictions: [i32; MAX_COMPONENTS],
    /// The remaining blocks of an end-of-band run.
    end_of_band_run: u32,
    /// MCUs until the next restart marker.
    until_restart: usize,
    /// The number of restart markers so far, modulo 8.
    restarts: u8,
    /// The first MCU of the next row to decode: 0, unless previous rows were skipped.
    first_unit: usize,
}

impl ScanDecoder {
    /// Prepares for an image with a single scan, which is decoded row by row.
    pub(super) fn begin_single(&mut self, frame: &Frame, scan: &Scan) -> Result<()> {
        self.quantization = [None; MAX_COMPONENTS];
        self.stored.record_unused();
        self.begin(frame, scan)
    }

    /// Skips restart intervals that end before the MCU row `wanted`. Returns the next row to
    /// decode, and the offset of its data.
    pub(super) fn skip_rows(
        &mut self,
        encoded: &[u8],
        header: &Header,
        wanted: usize,
    ) -> (usize, usize) {
        let mcus_per_row = header.frame.mcus_per_row;
        let interval = self.tables.restart_interval;
        let restarts = (wanted * mcus_per_row).checked_div(interval).unwrap_or(0);
        let Some(data) = skip_restarts(encoded, header.data, restarts) else {
            // Decoding starts at the first row then, and reports the error.
            return (0, header.data);
        };
        self.state.restarts = (restarts % 8) as u8;
        self.state.first_unit = restarts * interval % mcus_per_row;
        (restarts * interval / mcus_per_row, data)
    }

    fn begin(&mut self, frame: &Frame, scan: &Scan) -> Result<()> {
        self.state =
            ScanState { until_restart: self.tables.restart_interval, ..ScanState::default() };
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
                return Err(corrupt("corrupt JPEG: missing or invalid Huffman table", 0));
            }
            if frame.coding == Coding::Sequential {
                self.tables.ac[part.ac].prepare();
            }
        }
        Ok(())
    }

    /// Stores the quantisation tables as they are at the start of a component's first scan.
    fn keep_quantization(&mut self, frame: &Frame, scan: &Scan) -> Result<()> {
        for part in scan.components.iter() {
            let number = frame.components[part.component].quantization;
            let slot = &mut self.quantization[part.component];
            *slot = slot.or(self.tables.quantization[number]);
            if slot.is_none() {
                return Err(corrupt(
                    format!("corrupt JPEG: missing quantisation table {number}"),
                    0,
                ));
            }
        }
        Ok(())
    }

    /// Decodes MCU row `row` of a single scan, and writes the samples of the needed blocks.
    pub(super) fn decode_row(
        &mut self,
        frame: &Frame,
        scan: &Scan,
        row: usize,
        reader: &mut EntropyReader<'_>,
        outputs: &mut ComponentOutputs<'_>,
        level: Level,
    ) -> Result<()> {
        let ScanDecoder { tables, quantization, state, .. } = self;
        let outcome = dispatch!(level, simd => {
            let blocks =
                SingleScanBlocks { simd, tables, quantization, outputs, block: &mut [0; _] };
            for_each_block(frame, scan, row, reader, state, tables.restart_interval, blocks)
        });
        outcome.map_err(|error| error.into_error(reader, frame.mcu_rows - row))
    }

    /// Writes the samples of the needed blocks of MCU row `row`, from stored coefficients.
    pub(super) fn write_stored_row(
        &self,
        frame: &Frame,
        row: usize,
        outputs: &mut ComponentOutputs<'_>,
        level: Level,
    ) {
        dispatch!(level, simd => self.write_stored(simd, frame, row, outputs));
    }

    #[inline(always)]
    fn write_stored<S: Simd>(
        &self,
        simd: S,
        frame: &Frame,
        row: usize,
        outputs: &mut ComponentOutputs<'_>,
    ) {
        let mut block: WorkBlock = [0; _];
        for (at, component) in frame.components.iter().enumerate() {
            let Some(quantization) = &self.quantization[at] else { continue };
            let Some(output) = &mut outputs[at] else { continue };
            let stored = self.stored.component(at);
            let wanted = output.wanted.clone();
            let rows = row * component.down..(row + 1) * component.down;
            for y in rows.filter(|y| wanted.rows.contains(y)) {
                for x in wanted.columns.clone() {
                    let mut zero_from = stored.copy(y * component.padded_wide + x, &mut block);
                    if let Some(smoothing) = &self.smoothing {
                        let block = &mut block[..];
                        zero_from = smoothing.apply(
                            frame,
                            (at, x, y),
                            stored,
                            quantization,
                            block,
                            zero_from,
                        );
                    }
                    output.write_block(simd, (x, y), &block, zero_from, quantization);
                }
            }
        }
    }

    /// Decodes all scans of an image, or only the scans with the coefficients in `kept`. Returns
    /// the number of complete MCU rows. All rows are complete, unless the data are truncated and
    /// `on_truncated` accepts it; then the error is returned as well.
    pub(super) fn read_all(
        &mut self,
        encoded: &[u8],
        header: &Header,
        window: &mut EntropyWindow,
        kept: [CoefficientSet; MAX_COMPONENTS],
        (limits, on_truncated): (&Limits, OnTruncated),
        level: Level,
    ) -> Result<(usize, Option<Error>)> {
        let frame = &header.frame;
        self.stored.begin(frame, kept, limits)?;
        self.quantization = [None; MAX_COMPONENTS];
        self.smoothing = None;
        let mut work = WorkBudget::new(frame, encoded);

        // The number of unknown low bits of each coefficient; `None` if all bits are unknown.
        let mut unknown: UnknownBits = [[None; BLOCK_AREA]; _];
        let (mut scan, mut data) = (header.scan, header.data);
        loop {
            work.scan(frame, &scan, data)?;
            check_order(frame, &scan, &unknown, data)?;
            let is_skipped = scan.first > 0
                && scan
                    .components
                    .iter()
                    .all(|part| kept[part.component] == CoefficientSet::DcOnly);
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
                    let ScanDecoder { tables, stored, .. } = self;
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
                    && is_complete(frame, &unknown);
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
                    if frame.coding == Coding::Progressive {
                        self.smoothing = Smoothing::new(frame, &unknown, &self.quantization);
                    }
                    return Ok((frame.mcu_rows, None));
                }
                Next::EndOfData => {
                    if is_complete(frame, &unknown) {
                        return Ok((frame.mcu_rows, None));
                    }
                    return Err(truncated(
                        "truncated JPEG: the file ends before the last scan",
                        encoded.len(),
                    ));
                }
            }
        }
    }

    /// A file may lack the last progressive scans, but not the first scan of a component.
    fn check_complete(
        &self,
        frame: &Frame,
        unknown: &UnknownBits,
        limits: &Limits,
        end: usize,
    ) -> Result<()> {
        for (component, bits) in unknown[..frame.components.len()].iter().enumerate() {
            if self.quantization[component].is_none() || (bits[0].is_none() && limits.is_strict()) {
                return Err(corrupt(
                    format!("corrupt JPEG: EOI marker before the DC scan of component {component}"),
                    end,
                ));
            }
        }
        Ok(())
    }

    /// Decodes one of several scans. An error includes the number of complete rows.
    fn read_scan(
        &mut self,
        frame: &Frame,
        scan: &Scan,
        reader: &mut EntropyReader<'_>,
        level: Level,
    ) -> Result<(), (usize, Error)> {
        let rows = match scan.components[..] {
            [part] => frame.components[part.component].blocks_high,
            _ => frame.mcu_rows,
        };
        let ScanDecoder { tables, stored, state, .. } = self;
        let interval = tables.restart_interval;
        for row in 0..rows {
            let outcome = dispatch!(level, _simd => match frame.coding {
                Coding::Sequential | Coding::Lossless => {
                    let blocks = SequentialBlocks { tables, stored, frame };
                    for_each_block(frame, scan, row, reader, state, interval, blocks)
                }
                Coding::Progressive => {
                    let blocks = ProgressiveBlocks { tables, stored, scan, frame };
                    for_each_block(frame, scan, row, reader, state, interval, blocks)
                }
            });
            outcome.map_err(|error| (row, error.into_error(reader, rows - row)))?;
        }
        Ok(())
    }
}

/// The number of unknown low bits of each coefficient of each component; `None` if all bits are
/// unknown.
type UnknownBits = [[Option<u32>; BLOCK_AREA]; MAX_COMPONENTS];

/// Checks that a progressive scan continues the previous ones.
fn check_order(frame: &Frame, scan: &Scan, unknown: &UnknownBits, at: usize) -> Result<()> {
    let expected = (scan.high > 0).then_some(scan.high);
    for part in scan.components.iter() {
        let known = &unknown[part.component][scan.first..=scan.last];
        if known.iter().any(|&low| low != expected) {
            return Err(corrupt(
                format!(
                    "corrupt JPEG: progressive scan of coefficients {} to {} of component {}, bits {} \
                     to {}, does not continue the previous scans",
                    scan.first, scan.last, frame.components[part.component].id, scan.high, scan.low
                ),
                at,
            ));
        }
    }
    Ok(())
}

/// Whether all bits of all coefficients are known.
fn is_complete(frame: &Frame, unknown: &UnknownBits) -> bool {
    unknown[..frame.components.len()].iter().flatten().all(|&bits| bits == Some(0))
}

/// The position of a block, and its tables.
#[derive(Clone, Copy)]
struct BlockPosition {
    component: usize,
    /// Column and row among the blocks of the component.
    column: usize,
    row: usize,
    dc: usize,
    ac: usize,
}

/// Why an MCU row cannot be decoded.
enum ScanError {
    /// No Huffman code matches, or a run of zeros exceeds the block.
    InvalidCode,
    /// The data end, or a marker interrupts them.
    Overrun,
    RestartError(RestartError),
}

impl From<InvalidCode> for ScanError {
    fn from(_: InvalidCode) -> Self {
        ScanError::InvalidCode
    }
}

impl ScanError {
    /// Data that end before an EOI marker are corrupt, not truncated: decoding a region does not
    /// read all data, and therefore could not report the same truncation as decoding the whole
    /// image.
    fn into_error(self, reader: &EntropyReader<'_>, missing: usize) -> Error {
        let at = reader.offset();
        match self {
            ScanError::InvalidCode if !reader.is_at_end() => {
                corrupt("corrupt JPEG: invalid Huffman code", at)
            }
            ScanError::InvalidCode | ScanError::Overrun => match reader.peek_marker() {
                None => truncated(format!("truncated JPEG: {missing} MCU rows are missing"), at),
                Some(marker) => corrupt(
                    format!(
                        "corrupt JPEG: marker {marker:#04x} before the last {missing} MCU rows"
                    ),
                    at,
                ),
            },
            ScanError::RestartError(error) => error.into_error(at, missing),
        }
    }
}

/// Decodes the blocks of one kind of scan. This is a trait instead of a closure, because a closure
/// cannot be forced inline, and only inlined code is compiled for the SIMD level.
trait BlockDecoder {
    fn read(
        &mut self,
        position: BlockPosition,
        bits: &mut BitReader<'_>,
        state: &mut ScanState,
    ) -> Result<(), InvalidCode>;
}

/// Blocks of an image with a single scan: their samples are written immediately, or they are
/// skipped.
struct SingleScanBlocks<'a, 's, S> {
    simd: S,
    tables: &'a Tables,
    quantization: &'a [Option<Quantization>; MAX_COMPONENTS],
    outputs: &'a mut ComponentOutputs<'s>,
    /// Scratch memory for a block; all coefficients are zero between blocks.
    block: &'a mut WorkBlock,
}

impl<S: Simd> BlockDecoder for SingleScanBlocks<'_, '_, S> {
    #[inline(always)]
    fn read(
        &mut self,
        position: BlockPosition,
        bits: &mut BitReader<'_>,
        state: &mut ScanState,
    ) -> Result<(), InvalidCode> {
        let BlockPosition { component, column, row, dc, ac } = position;
        let ac = &self.tables.ac[ac];
        let dc = read_dc(bits, &self.tables.dc[dc], &mut state.predictions[component])?;
        let output = match &mut self.outputs[component] {
            Some(output) if output.needs(column, row) => output,
            _ => return ac.skip_block(bits, 1),
        };
        let zero_from = ac.read_block(bits, self.block, output.last_coefficient())?;
        self.block[0] = dc;
        if let Some(quantization) = &self.quantization[component] {
            output.write_block(self.simd, (column, row), self.block, zero_from, quantization);
        }
        self.block[..BLOCK_AREA].fill(0);
        Ok(())
    }
}

/// Blocks of a sequential scan of an image with several scans.
struct SequentialBlocks<'a> {
    tables: &'a Tables,
    stored: &'a mut CoefficientBuffer,
    frame: &'a Frame,
}

impl BlockDecoder for SequentialBlocks<'_> {
    #[inline(always)]
    fn read(
        &mut self,
        position: BlockPosition,
        bits: &mut BitReader<'_>,
        state: &mut ScanState,
    ) -> Result<(), InvalidCode> {
        let mut block: WorkBlock = [0; _];
        block[0] = read_dc(
            bits,
            &self.tables.dc[position.dc],
            &mut state.predictions[position.component],
        )?;
        let zero_from = self.tables.ac[position.ac].read_block(bits, &mut block, BLOCK_AREA - 1)?;
        let stored = self.stored.component_mut(position.component);
        let at = position.index(self.frame);
        *stored.dc_mut(at) = block[0];
        stored.ac(at).replace(&block, zero_from);
        Ok(())
    }
}

/// Blocks of a progressive scan.
struct ProgressiveBlocks<'a> {
    tables: &'a Tables,
    stored: &'a mut CoefficientBuffer,
    scan: &'a Scan,
    frame: &'a Frame,
}

impl BlockDecoder for ProgressiveBlocks<'_> {
    #[inline(always)]
    fn read(
        &mut self,
        position: BlockPosition,
        bits: &mut BitReader<'_>,
        state: &mut ScanState,
    ) -> Result<(), InvalidCode> {
        let scan = self.scan;
        let stored = self.stored.component_mut(position.component);
        let at = position.index(self.frame);
        let run = &mut state.end_of_band_run;
        match (scan.first, scan.high) {
            (0, 0) => {
                let prediction = &mut state.predictions[position.component];
                read_dc(bits, &self.tables.dc[position.dc], prediction)?;
                *stored.dc_mut(at) = (*prediction << scan.low) as i16;
                Ok(())
            }
            (0, _) => {
                *stored.dc_mut(at) |= (bits.take(1) << scan.low) as i16;
                Ok(())
            }
            (_, 0) => read_band(bits, &self.tables.ac[position.ac].codes, scan, run, stored.ac(at)),
            _ => refine_band(bits, &self.tables.ac[position.ac].codes, scan, run, stored.ac(at)),
        }
    }
}

impl BlockPosition {
    /// The index among the blocks of the component.
    #[inline(always)]
    fn index(&self, frame: &Frame) -> usize {
        self.row * frame.components[self.component].padded_wide + self.column
    }
}

/// Decodes the blocks of an MCU row in coded order, with restart markers.
#[inline(always)]
fn for_each_block(
    frame: &Frame,
    scan: &Scan,
    row: usize,
    reader: &mut EntropyReader<'_>,
    state: &mut ScanState,
    restart_interval: usize,
    mut blocks: impl BlockDecoder,
) -> Result<(), ScanError> {
    // In a scan of a single component, each MCU has one block, and only blocks with samples of the
    // image are coded.
    let alone = scan.components.len() == 1;
    let units = match scan.components[..] {
        [part] => frame.components[part.component].blocks_wide,
        _ => frame.mcus_per_row,
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
                    let position = BlockPosition {
                        component: part.component,
                        column: unit * across + x,
                        row: row * down + y,
                        dc: part.dc,
                        ac: part.ac,
                    };
                    outcome = blocks.read(position, &mut bits, state);
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
            return Err(ScanError::Overrun);
        }
    }
    Ok(())
}

#[cold]
fn restart(reader: &mut EntropyReader<'_>, state: &mut ScanState) -> Result<(), ScanError> {
    RestartError::check(state.restarts, reader.next_marker()).map_err(ScanError::RestartError)?;
    state.restarts = (state.restarts + 1) % 8;
    state.predictions = [0; MAX_COMPONENTS];
    state.end_of_band_run = 0;
    Ok(())
}

/// The DC coefficient, coded as the difference to the previous one.
#[inline(always)]
fn read_dc(
    bits: &mut BitReader<'_>,
    table: &HuffmanTable,
    prediction: &mut i32,
) -> Result<i16, InvalidCode> {
    let (_, difference) = table.read_value(bits)?;
    *prediction = prediction.wrapping_add(difference);
    Ok(*prediction as i16)
}

/// The first scan of a band of AC coefficients (G.1.2.2).
#[inline(always)]
fn read_band(
    bits: &mut BitReader<'_>,
    table: &HuffmanTable,
    scan: &Scan,
    end_of_band_run: &mut u32,
    mut block: AcBlock<'_>,
) -> Result<(), InvalidCode> {
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
    if at > scan.last + 1 { Err(InvalidCode) } else { Ok(()) }
}

/// A refinement scan of a band: one more bit of known coefficients, and new coefficients (G.1.2.3).
#[inline(always)]
fn refine_band(
    bits: &mut BitReader<'_>,
    table: &HuffmanTable,
    scan: &Scan,
    end_of_band_run: &mut u32,
    mut block: AcBlock<'_>,
) -> Result<(), InvalidCode> {
    let bit = 1i16 << scan.low;
    let mut at = scan.first;
    if *end_of_band_run == 0 {
        while at <= scan.last {
            let symbol = table.read(bits)?;
            let run = symbol.run();
            let value = match symbol.size() {
                0 if run != ZRL_RUN => {
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
                _ => return Err(InvalidCode),
            };
            // The run counts only zeros; non-zero coefficients that are passed are refined.
            let mut zeros = block.zeros(at, scan.last);
            for _ in 0..run {
                zeros &= zeros.wrapping_sub(1);
            }
            let before = zeros.wrapping_sub(1) & !zeros;
            let passed = block.nonzero(at, scan.last) & before;
            at = (zeros.trailing_zeros() as usize).min(scan.last + 1);
            refine_each(bits, &mut block, passed, bit);
            if value != 0 {
                if at > scan.last {
                    return Err(InvalidCode);
                }
                block.set(at, value);
            }
            at += 1;
        }
    }
    if *end_of_band_run > 0 {
        if at <= scan.last {
            let nonzero = block.nonzero(at, scan.last);
            refine_each(bits, &mut block, nonzero, bit);
        }
        *end_of_band_run -= 1;
    }
    Ok(())
}

/// Refines the coefficients of a mask of bits, which are not zero.
#[inline(always)]
fn refine_each(bits: &mut BitReader<'_>, block: &mut AcBlock<'_>, mut mask: u64, bit: i16) {
    while mask != 0 {
        refine(bits, block.known(mask.trailing_zeros() as usize), bit);
        mask &= mask - 1;
    }
}

/// Adds the next bit to a coefficient, which increases its magnitude.
#[inline(always)]
fn refine(bits: &mut BitReader<'_>, coefficient: &mut i16, bit: i16) {
    if bits.take(1) == 1 && *coefficient & bit == 0 {
        *coefficient = coefficient.wrapping_add(if *coefficient >= 0 { bit } else { -bit });
    }
}
