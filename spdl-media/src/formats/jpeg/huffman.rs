//! Bits and Huffman codes.

/// Codes up to this length are found in one look.
const LOOK: u32 = 10;

/// A Huffman table for run-and-size symbols.
///
/// One look at the next [`LOOK`] bits gives the code's length, the run of zeros, the size of the
/// value, and in most cases the value itself.
#[derive(Clone, Debug)]
pub(super) struct HuffmanTable {
    /// See [`Entry`]; 0 where the code is longer.
    look: Box<[u32; 1 << LOOK]>,
    /// The first 16-bit prefix that is beyond the codes of each length.
    limit: [u32; 17],
    /// What to add to a code of each length to find its symbol; wraps.
    offset: [u32; 17],
    symbols: [u8; 256],
    defined: bool,
}

/// What the table tells of a code: value (16 bits), size (4), run (4), value known (1), length (7).
#[derive(Clone, Copy)]
pub(super) struct Entry(u32);

impl Entry {
    fn new(length: u32, symbol: u8, value: Option<i16>) -> Self {
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        let known = u32::from(value.is_some());
        let value = u32::from(value.unwrap_or(0) as u16);
        Entry(value << 16 | size << 12 | run << 8 | known << 7 | length)
    }

    /// The bits to consume: the code's, and the value's where it is known.
    #[inline(always)]
    fn length(self) -> u32 {
        self.0 & 0x7F
    }

    #[inline(always)]
    fn value(self) -> Option<i16> {
        (self.0 & 0x80 != 0).then_some((self.0 >> 16) as i16)
    }

    #[inline(always)]
    pub(super) fn run(self) -> usize {
        (self.0 >> 8 & 15) as usize
    }

    #[inline(always)]
    pub(super) fn size(self) -> u32 {
        self.0 >> 12 & 15
    }
}

impl Default for HuffmanTable {
    fn default() -> Self {
        HuffmanTable {
            look: Box::new([0; 1 << LOOK]),
            limit: [0; 17],
            offset: [0; 17],
            symbols: [0; 256],
            defined: false,
        }
    }
}

impl HuffmanTable {
    pub(super) fn clear(&mut self) {
        self.defined = false;
    }

    pub(super) fn is_defined(&self) -> bool {
        self.defined
    }

    /// Sets the table: how many codes there are of each length, and their symbols in order. Says
    /// whether that is possible.
    pub(super) fn build(&mut self, counts: &[u8; 16], symbols: &[u8], is_dc: bool) -> bool {
        self.defined = false;
        if symbols.len() > 256 || (is_dc && symbols.iter().any(|&symbol| symbol > 15)) {
            return false;
        }
        self.symbols[..symbols.len()].copy_from_slice(symbols);
        self.look.fill(0);
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=16u32 {
            self.offset[length as usize] = (index as u32).wrapping_sub(code);
            for _ in 0..counts[length as usize - 1] {
                if code >= 1 << length {
                    return false;
                }
                if length <= LOOK {
                    self.set_look(code, length, symbols[index]);
                }
                code += 1;
                index += 1;
            }
            self.limit[length as usize] = code << (16 - length);
            code <<= 1;
        }
        self.defined = true;
        true
    }

    /// Fills all places whose bits start with the code.
    fn set_look(&mut self, code: u32, length: u32, symbol: u8) {
        let size = u32::from(symbol & 15);
        let free = LOOK - length;
        for rest in 0..1u32 << free {
            let entry = if size > 0 && size <= free {
                let value = extend(rest >> (free - size), size);
                Entry::new(length + size, symbol, Some(value as i16))
            } else {
                Entry::new(length, symbol, None)
            };
            self.look[(code << free | rest) as usize] = entry.0;
        }
    }

    /// The symbol of a code that is longer than [`LOOK`]; `None` where no code fits.
    #[cold]
    fn long_code(&self, bits: u64) -> Option<Entry> {
        let prefix = (bits >> 48) as u32;
        let length = (LOOK + 1..=16).find(|&length| prefix < self.limit[length as usize])?;
        let index = (prefix >> (16 - length)).wrapping_add(self.offset[length as usize]);
        Some(Entry::new(length, self.symbols[index as usize & 255], None))
    }
}

/// The value that `bits` of this size stand for (ITU-T T.81, F.2.2.1).
#[inline(always)]
fn extend(bits: u32, size: u32) -> i32 {
    let negative = bits >> (size - 1) == 0;
    bits as i32 - if negative { (1 << size) - 1 } else { 0 }
}

/// No code of the table starts like the data.
#[derive(Clone, Copy, Debug)]
pub(super) struct BadCode;

/// Reads bits of entropy-coded data, up to the next marker. What is read beyond are zeros, and
/// [`is_overrun`](BitReader::is_overrun) then says so.
#[derive(Clone, Debug)]
pub(super) struct BitReader<'a> {
    data: &'a [u8],
    /// The first byte that is not yet in `bits`; never beyond a marker.
    at: usize,
    /// The next bits, from the highest on. Below the `count` bits lie zeros, or a part of what
    /// comes next.
    bits: u64,
    count: u32,
    /// How many zeros were put below the last bit.
    padding: u32,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(data: &'a [u8], at: usize) -> Self {
        BitReader { data, at, bits: 0, count: 0, padding: 0 }
    }

    /// Where reading has come to, or a few bytes further; no marker lies before.
    pub(super) fn offset(&self) -> usize {
        self.at
    }

    /// Whether bits were consumed that are not there.
    #[inline(always)]
    pub(super) fn is_overrun(&self) -> bool {
        self.count < self.padding
    }

    /// Passes over what is left before the next marker, and reads that; `None` at the end.
    pub(super) fn next_marker(&mut self) -> Option<u8> {
        let mut after_ff = false;
        while let Some(&byte) = self.data.get(self.at) {
            self.at += 1;
            match byte {
                0xFF => after_ff = true,
                0 => after_ff = false,
                _ if after_ff => {
                    (self.bits, self.count, self.padding) = (0, 0, 0);
                    return Some(byte);
                }
                _ => {}
            }
        }
        None
    }

    /// The marker at which reading stopped, or would; `None` at the end of the file.
    pub(super) fn peek_marker(&self) -> Option<u8> {
        self.clone().next_marker()
    }

    /// Makes sure of 48 bits, enough for a code and its value.
    #[inline(always)]
    fn refill(&mut self) {
        if self.count < 32 {
            self.load();
        }
    }

    #[inline(always)]
    fn load(&mut self) {
        if let Some(next) = self.data.get(self.at..).and_then(|rest| rest.first_chunk()) {
            let word = u64::from_be_bytes(*next);
            // A byte of 0xFF is a zero byte of the complement.
            let has_ff = (!word).wrapping_sub(0x0101_0101_0101_0101) & word & 0x8080_8080_8080_8080;
            if has_ff == 0 {
                self.bits |= word >> self.count;
                self.at += ((63 - self.count) >> 3) as usize;
                self.count |= 56;
                return;
            }
        }
        self.load_bytes();
    }

    #[inline(never)]
    fn load_bytes(&mut self) {
        while self.count <= 56 {
            let byte = match self.data.get(self.at) {
                Some(0xFF) if self.data.get(self.at + 1) == Some(&0) => {
                    self.at += 2;
                    0xFF
                }
                None | Some(0xFF) => {
                    self.padding += 64 - self.count;
                    self.count = 64;
                    return;
                }
                Some(&byte) => {
                    self.at += 1;
                    byte
                }
            };
            self.bits |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    #[inline(always)]
    fn consume(&mut self, count: u32) {
        self.bits <<= count;
        self.count -= count;
    }

    /// The next code, with its value where it has one (0 bits: 0).
    #[inline(always)]
    pub(super) fn code_and_value(&mut self, table: &HuffmanTable) -> Result<(Entry, i32), BadCode> {
        self.refill();
        let mut entry = Entry(table.look[(self.bits >> (64 - LOOK)) as usize]);
        if let Some(value) = entry.value() {
            self.consume(entry.length());
            return Ok((entry, value.into()));
        }
        if entry.0 == 0 {
            entry = table.long_code(self.bits).ok_or(BadCode)?;
        }
        self.consume(entry.length());
        let value =
            if entry.size() == 0 { 0 } else { extend(self.take(entry.size()), entry.size()) };
        Ok((entry, value))
    }

    /// The next code without a value.
    #[inline(always)]
    pub(super) fn code(&mut self, table: &HuffmanTable) -> Result<Entry, BadCode> {
        self.refill();
        let mut entry = Entry(table.look[(self.bits >> (64 - LOOK)) as usize]);
        if entry.0 == 0 {
            entry = table.long_code(self.bits).ok_or(BadCode)?;
        }
        let values = if entry.value().is_some() { entry.size() } else { 0 };
        self.consume(entry.length() - values);
        Ok(entry)
    }

    /// The next bits as a number; 16 at most.
    #[inline(always)]
    pub(super) fn bits(&mut self, count: u32) -> u32 {
        if count == 0 {
            return 0;
        }
        self.refill();
        self.take(count)
    }

    #[inline(always)]
    fn take(&mut self, count: u32) -> u32 {
        let bits = (self.bits >> (64 - count)) as u32;
        self.consume(count);
        bits
    }
}
