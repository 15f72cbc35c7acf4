//! Huffman decoding with lookup tables for several codes at a time.

use super::bits::BitReader;
use super::header::{BLOCK_AREA, ZIGZAG};

/// Codes of up to this length are decoded by one lookup.
const LOOK: u32 = 11;
/// Entries of a lookup table with [`LOOK`] index bits.
const PLACES: usize = 1 << LOOK;
/// Index bits of the table that skips coefficients.
const SKIP_LOOK: u32 = 13;
const SKIP_PLACES: usize = 1 << SKIP_LOOK;
/// ZRL: a run of 16 zeros without a value.
pub(super) const ZRL_RUN: usize = 15;

/// A Huffman table of run/size symbols.
#[derive(Clone, Debug)]
pub(super) struct HuffmanTable {
    /// The length (8 bits) and symbol (8 bits) of the code at the start of [`LOOK`] bits; 0 if the
    /// code is longer.
    look: Box<[u16; PLACES]>,
    /// For each code length, the first 16-bit prefix after the codes of that length.
    limit: [u32; 17],
    /// For each code length, symbol index − code; the subtraction wraps around.
    offset: [u32; 17],
    /// The number of codes of each length, and the symbols in the order of their codes.
    counts: [u8; 16],
    symbols: [u8; 256],
    built: bool,
    defined: bool,
}

/// Error: no code matches the data.
#[derive(Clone, Copy, Debug)]
pub(super) struct InvalidCode;

/// A run/size symbol: a run of zeros, and the number of bits of the value that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Symbol(u8);

impl Symbol {
    #[inline(always)]
    pub(super) fn run(self) -> usize {
        usize::from(self.0 >> 4)
    }

    #[inline(always)]
    pub(super) fn size(self) -> u32 {
        u32::from(self.0 & 15)
    }

    /// Whether the symbol is EOB, or EOBn in progressive scans.
    #[inline(always)]
    pub(super) fn is_end(self) -> bool {
        self.size() == 0 && self.run() != ZRL_RUN
    }
}

impl Default for HuffmanTable {
    fn default() -> Self {
        HuffmanTable {
            look: Box::new([0; PLACES]),
            limit: [0; 17],
            offset: [0; 17],
            counts: [0; 16],
            symbols: [0; 256],
            built: false,
            defined: false,
        }
    }
}

impl HuffmanTable {
    /// Marks the table as undefined, but keeps the lookup table, because most files use the same
    /// codes.
    pub(super) fn clear(&mut self) {
        self.defined = false;
    }

    pub(super) fn is_defined(&self) -> bool {
        self.defined
    }

    /// Builds the table from the number of codes of each length and their symbols. Returns whether
    /// it changed; `None` if the code is invalid.
    pub(super) fn build(&mut self, counts: &[u8; 16], symbols: &[u8], is_dc: bool) -> Option<bool> {
        self.defined = false;
        if symbols.len() > 256 || (is_dc && symbols.iter().any(|&symbol| symbol > 15)) {
            return None;
        }
        if self.built && self.counts == *counts && self.symbols.starts_with(symbols) {
            self.defined = true;
            return Some(false);
        }
        self.built = false;
        self.counts = *counts;
        self.symbols[..symbols.len()].copy_from_slice(symbols);
        self.look.fill(0);
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=16u32 {
            self.offset[length as usize] = (index as u32).wrapping_sub(code);
            for _ in 0..counts[length as usize - 1] {
                if code >= 1 << length {
                    return None;
                }
                if length <= LOOK {
                    let free = LOOK - length;
                    let places = (code << free) as usize..((code + 1) << free) as usize;
                    self.look[places].fill((length as u16) << 8 | u16::from(symbols[index]));
                }
                code += 1;
                index += 1;
            }
            self.limit[length as usize] = code << (16 - length);
            code <<= 1;
        }
        self.built = true;
        self.defined = true;
        Some(true)
    }

    /// Length and symbol of the code at the start of `count` known bits; `None` if these bits do
    /// not determine a code.
    fn known(&self, bits: u32, count: u32) -> Option<(u32, Symbol)> {
        let found = self.look[(bits >> (32 - LOOK)) as usize];
        let length = u32::from(found >> 8);
        (length > 0 && length <= count).then_some((length, Symbol(found as u8)))
    }

    /// Decodes the code at the start of the bits: length and symbol.
    #[inline(always)]
    fn find(&self, bits: u64) -> Result<(u32, Symbol), InvalidCode> {
        let found = self.look[(bits >> (64 - LOOK)) as usize];
        if found == 0 {
            return self.find_long(bits).ok_or(InvalidCode);
        }
        Ok((u32::from(found >> 8), Symbol(found as u8)))
    }

    /// Decodes a code longer than [`LOOK`]; `None` if no code matches.
    #[cold]
    fn find_long(&self, bits: u64) -> Option<(u32, Symbol)> {
        let prefix = (bits >> 48) as u32;
        let length = (LOOK + 1..=16).find(|&length| prefix < self.limit[length as usize])?;
        let index = (prefix >> (16 - length)).wrapping_add(self.offset[length as usize]);
        Some((length, Symbol(self.symbols[index as usize & 255])))
    }

    /// The next symbol.
    #[inline(always)]
    pub(super) fn read(&self, bits: &mut BitReader<'_>) -> Result<Symbol, InvalidCode> {
        bits.refill();
        let (length, symbol) = self.find(bits.peek())?;
        bits.consume(length);
        Ok(symbol)
    }

    /// The next symbol with its value (0 if it has no value bits).
    #[inline(always)]
    pub(super) fn read_value(
        &self,
        bits: &mut BitReader<'_>,
    ) -> Result<(Symbol, i32), InvalidCode> {
        bits.refill();
        let (length, symbol) = self.find(bits.peek())?;
        let value = value(bits.peek() << length, symbol.size());
        bits.consume(length + symbol.size());
        Ok((symbol, value))
    }
}

/// Computes the value of the first `size` bits (ITU-T T.81, F.2.2.1) without an unpredictable
/// branch.
#[inline(always)]
fn value(bits: u64, size: u32) -> i32 {
    // Negative values are stored as the complement of their magnitude, with a leading 0.
    let complement = !(bits as i64 >> 63);
    // Two shifts, because a shift by 64 is undefined.
    let magnitude = ((bits as i64 ^ complement) as u64 >> 1 >> (63 - size)) as i32;
    (magnitude ^ complement as i32) - complement as i32
}

/// The coefficients of a block during decoding, in row order: the first 64 elements. Writes of
/// corrupt data and of incomplete lookups go to the other elements.
pub(super) type WorkBlock = [i16; 256];

/// A Huffman table of AC coefficients of sequential scans.
///
/// One lookup decodes two coefficients, or skips as many as fit.
#[derive(Clone, Debug)]
pub(super) struct AcTable {
    pub(super) codes: HuffmanTable,
    /// See [`PairEntry`].
    pairs: Box<[u32; PLACES]>,
    pairs_known: bool,
    /// See [`SkipEntry`].
    skips: Box<[u16; SKIP_PLACES]>,
    skips_known: bool,
}

impl Default for AcTable {
    fn default() -> Self {
        AcTable {
            codes: HuffmanTable::default(),
            pairs: Box::new([PairEntry::LONG; PLACES]),
            pairs_known: false,
            skips: Box::new([SkipEntry::LONG; SKIP_PLACES]),
            skips_known: false,
        }
    }
}

/// The result of a lookup for two coefficients. The entry has the run of zeros and the value of the
/// first coefficient, and the distance and the size of the second coefficient. The value bits of
/// the second coefficient may follow the lookup bits. If there is only one coefficient, it is
/// stored as the second; the first is then a zero, which is overwritten later.
#[derive(Clone, Copy)]
struct PairEntry(u32);

impl PairEntry {
    /// Flag: the block ends after the first coefficient, or before it.
    const END: u32 = 1 << 6;
    /// Flag: the first code is longer than the lookup, or invalid.
    const LONG: u32 = 1 << 7;

    fn new(length: u32, run: usize, value: i32, distance: usize, size: u32) -> Self {
        let value = (value as u32) << 24;
        PairEntry(value | (distance as u32) << 16 | (run as u32) << 12 | size << 8 | length)
    }

    /// The number of bits of both codes and values.
    #[inline(always)]
    fn length(self) -> u32 {
        self.0 & 63
    }

    /// The number of bits of the second value.
    #[inline(always)]
    fn size(self) -> u32 {
        self.0 >> 8 & 15
    }

    #[inline(always)]
    fn run(self) -> usize {
        (self.0 >> 12 & 15) as usize
    }

    #[inline(always)]
    fn value(self) -> i16 {
        (self.0 as i32 >> 24) as i16
    }

    #[inline(always)]
    fn distance(self) -> usize {
        (self.0 >> 16 & 31) as usize
    }
}

/// The result of a lookup that skips coefficients: the number of bits, and of coefficients.
#[derive(Clone, Copy)]
struct SkipEntry(u16);

impl SkipEntry {
    /// Flag: the block ends after these coefficients.
    const END: u16 = 1 << 6;
    /// Flag: the first code is longer than the lookup, or invalid.
    const LONG: u16 = 1 << 7;

    #[inline(always)]
    fn length(self) -> u32 {
        u32::from(self.0 & 63)
    }

    #[inline(always)]
    fn distance(self) -> usize {
        usize::from(self.0 >> 8)
    }
}

/// What to do after a lookup.
enum LookupOutcome {
    /// Continue with the coefficient at this index.
    Go(usize),
    /// The block ends; coefficients from this index on are zero.
    End(usize),
    /// Decode the next code without these lookups.
    Step,
}

impl AcTable {
    /// Builds the table; returns whether the code is valid.
    pub(super) fn build(&mut self, counts: &[u8; 16], symbols: &[u8]) -> bool {
        let changed = self.codes.build(counts, symbols, false);
        if changed != Some(false) {
            self.pairs.fill(PairEntry::LONG);
            self.skips.fill(SkipEntry::LONG);
            (self.pairs_known, self.skips_known) = (false, false);
        }
        changed.is_some()
    }

    /// Builds the lookup tables. Without them, each block is decoded one code at a time.
    pub(super) fn prepare(&mut self) {
        let AcTable { codes, .. } = self;
        if !self.pairs_known {
            for (start, pair) in (0u32..).zip(self.pairs.iter_mut()) {
                *pair = pair_of(codes, start << (32 - LOOK)).0;
            }
            self.pairs_known = true;
        }
        if !self.skips_known {
            for (start, skip) in (0u32..).zip(self.skips.iter_mut()) {
                *skip = skip_of(codes, start << (32 - SKIP_LOOK)).0;
            }
            self.skips_known = true;
        }
    }

    /// Decodes the AC coefficients of a zeroed block; coefficients after `wanted` may be skipped.
    /// Returns the index from which all coefficients are zero or not needed.
    #[inline(always)]
    pub(super) fn read_block(
        &self,
        bits: &mut BitReader<'_>,
        block: &mut WorkBlock,
        wanted: usize,
    ) -> Result<usize, InvalidCode> {
        let mut at = 1;
        while at <= wanted {
            bits.refill();
            // Two lookups use at most 2 × (11 + 15) of 56 bits; skipping uses 2 × (13 + 15).
            let mut then = self.read_pair(bits, block, at);
            if let LookupOutcome::Go(next) = then {
                at = next;
                then = self.read_pair(bits, block, at);
            }
            match then {
                LookupOutcome::Go(next) => at = next,
                LookupOutcome::End(end) => return Ok(end),
                LookupOutcome::Step => {
                    let (symbol, value) = self.codes.read_value(bits)?;
                    if symbol.is_end() {
                        return Ok(at);
                    }
                    at += symbol.run();
                    block[usize::from(ZIGZAG[at & 127])] = value as i16;
                    at += 1;
                    if at >= BLOCK_AREA {
                        return if at > BLOCK_AREA { Err(InvalidCode) } else { Ok(at) };
                    }
                }
            }
        }
        self.skip_block(bits, at)?;
        Ok(at)
    }

    /// Decodes with a lookup of two coefficients.
    #[inline(always)]
    fn read_pair(
        &self,
        bits: &mut BitReader<'_>,
        block: &mut WorkBlock,
        at: usize,
    ) -> LookupOutcome {
        let pair = PairEntry(self.pairs[(bits.peek() >> (64 - LOOK)) as usize]);
        let second = at + pair.distance();
        block[usize::from(ZIGZAG[(at + pair.run()) & 127])] = pair.value();
        let value = value(bits.peek() << (pair.length() - pair.size()), pair.size());
        block[usize::from(ZIGZAG[second & 127])] = value as i16;
        if pair.0 & (PairEntry::END | PairEntry::LONG) == 0 && second < BLOCK_AREA - 1 {
            bits.consume(pair.length());
            return LookupOutcome::Go(second + 1);
        }
        // If the first coefficient completes the block, the second code belongs to the next block.
        if pair.0 & PairEntry::LONG != 0 || second >= BLOCK_AREA {
            return LookupOutcome::Step;
        }
        bits.consume(pair.length());
        LookupOutcome::End(if pair.0 & PairEntry::END != 0 { second } else { BLOCK_AREA })
    }

    /// Skips the coefficients of a block from `at` on.
    #[inline(always)]
    pub(super) fn skip_block(
        &self,
        bits: &mut BitReader<'_>,
        mut at: usize,
    ) -> Result<(), InvalidCode> {
        loop {
            bits.refill();
            let mut then = self.skip(bits, at);
            if let LookupOutcome::Go(next) = then {
                at = next;
                then = self.skip(bits, at);
            }
            match then {
                LookupOutcome::Go(next) => at = next,
                LookupOutcome::End(_) => return Ok(()),
                LookupOutcome::Step => {
                    let (symbol, _) = self.codes.read_value(bits)?;
                    if symbol.is_end() {
                        return Ok(());
                    }
                    at += symbol.run() + 1;
                    if at >= BLOCK_AREA {
                        return if at > BLOCK_AREA { Err(InvalidCode) } else { Ok(()) };
                    }
                }
            }
        }
    }

    /// Skips coefficients with a lookup.
    #[inline(always)]
    fn skip(&self, bits: &mut BitReader<'_>, at: usize) -> LookupOutcome {
        let skip = SkipEntry(self.skips[(bits.peek() >> (64 - SKIP_LOOK)) as usize]);
        let next = at + skip.distance();
        if skip.0 & (SkipEntry::END | SkipEntry::LONG) == 0 && next < BLOCK_AREA {
            bits.consume(skip.length());
            return LookupOutcome::Go(next);
        }
        let whole =
            if skip.0 & SkipEntry::END != 0 { next < BLOCK_AREA } else { next == BLOCK_AREA };
        if skip.0 & SkipEntry::LONG != 0 || !whole {
            return LookupOutcome::Step;
        }
        bits.consume(skip.length());
        LookupOutcome::End(next)
    }
}

/// Computes the entry for [`LOOK`] bits, which are the upper bits of `bits`.
fn pair_of(codes: &HuffmanTable, bits: u32) -> PairEntry {
    /// The maximum number of value bits that fits the entry.
    const MAX_SIZE: u32 = 7;
    let Some((length, first)) = codes.known(bits, LOOK) else { return PairEntry(PairEntry::LONG) };
    if first.is_end() {
        return PairEntry(PairEntry::new(length, 0, 0, 0, 0).0 | PairEntry::END);
    }
    let (run, size) = (first.run(), first.size());
    let used = length + size;
    if used < LOOK && size <= MAX_SIZE {
        let first_value = value(u64::from(bits) << (32 + length), size);
        if let Some((length, second)) = codes.known(bits << used, LOOK - used) {
            let (distance, size) = match second.is_end() {
                true => (run + 1, 0),
                false => (run + 1 + second.run(), second.size()),
            };
            let pair = PairEntry::new(used + length + size, run, first_value, distance, size);
            return PairEntry(pair.0 | if second.is_end() { PairEntry::END } else { 0 });
        }
    }
    PairEntry::new(used, 0, 0, run, size)
}

/// Computes the entry for [`SKIP_LOOK`] bits, which are the upper bits of `bits`.
fn skip_of(codes: &HuffmanTable, bits: u32) -> SkipEntry {
    let (mut used, mut distance) = (0, 0);
    while used < SKIP_LOOK {
        let Some((length, symbol)) = codes.known(bits << used, SKIP_LOOK - used) else { break };
        if symbol.is_end() {
            return SkipEntry((distance as u16) << 8 | SkipEntry::END | (used + length) as u16);
        }
        used += length + symbol.size();
        distance += symbol.run() + 1;
    }
    match used {
        0 => SkipEntry(SkipEntry::LONG),
        _ => SkipEntry((distance as u16) << 8 | used as u16),
    }
}

#[cfg(test)]
mod tests {
    use fearless_simd::Level;
    use proptest::prelude::*;

    use super::super::bits::{EntropyReader, EntropyWindow};
    use super::*;

    /// A table of random code lengths for random symbols; some symbols repeat.
    fn codes(choices: &[u8; 64]) -> ([u8; 16], Vec<u8>) {
        let (mut counts, mut symbols) = ([0; 16], Vec::new());
        let mut free = 1u32;
        for (length, count) in counts.iter_mut().enumerate() {
            free *= 2;
            // Few codes are short; one code is always left unused, as in real files.
            let wanted = u32::from(choices[length] % 8).min(free - 1).min(1 << length);
            for _ in 0..wanted {
                let choice = choices[(16 + symbols.len()) % 64];
                // Symbols: the end of the block, runs of 16 zeros, and mostly short runs before
                // small values.
                symbols.push(match choice % 9 {
                    0 => 0,
                    1 => 0xF0,
                    2 => choice,
                    _ => choice / 64 * 16 + choice / 8 % 8,
                });
            }
            *count = wanted as u8;
            free -= wanted;
        }
        (counts, symbols)
    }

    /// What the blocks of data are, or where no code fits; each starts with a bit of another kind.
    fn blocks(table: &AcTable, data: &[u8], skips: u64) -> Vec<Option<Vec<i16>>> {
        let mut window = EntropyWindow::default();
        let mut reader = EntropyReader::new(data, 0, &mut window, Level::new());
        let mut found = Vec::new();
        for number in 0..64 {
            let mut bits = reader.bits();
            let start = bits.take(1) as i16;
            let mut block: WorkBlock = [0; _];
            let outcome = match skips >> number & 1 {
                0 => table.read_block(&mut bits, &mut block, BLOCK_AREA - 1).map(|zero_from| {
                    assert!(block[..BLOCK_AREA].iter().all(|&it| it == 0) || zero_from > 1);
                }),
                _ => table.skip_block(&mut bits, 1),
            };
            let position = bits.position();
            reader.set_position(position);
            if reader.is_overrun() {
                break;
            }
            block[0] = start;
            found.push(outcome.is_ok().then(|| block[..BLOCK_AREA].to_vec()));
            if outcome.is_err() {
                break;
            }
        }
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn lookups_of_several_codes_equal_single_codes(
            choices in prop::array::uniform32(any::<u8>()),
            more in prop::array::uniform32(any::<u8>()),
            mut data in prop::collection::vec(any::<u8>(), 1..400),
            skips: u64,
        ) {
            // The data contain no markers.
            data.iter_mut().for_each(|byte| *byte = (*byte).min(0xFE));
            let mut all = [0; 64];
            all[..32].copy_from_slice(&choices);
            all[32..].copy_from_slice(&more);
            let (counts, symbols) = codes(&all);
            let mut single = AcTable::default();
            prop_assume!(single.build(&counts, &symbols));
            let mut looked = single.clone();
            looked.prepare();
            prop_assert_eq!(blocks(&looked, &data, skips), blocks(&single, &data, skips));
        }
    }
}
