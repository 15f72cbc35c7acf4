//! Arithmetic decoding: an adaptive binary decoder, and the decoding of coefficients with it (ITU-T
//! T.81, annex D, F.1.4, F.2.4 and G.1.3).

use spdl_core::Error;

use super::budget::{RestartError, WorkBudget};
use super::coefficients::{AcBlock, CoefficientBuffer};
use super::errors::{corrupt, truncated};
use super::header::{Coding, Frame, MAX_COMPONENTS, Scan, ScanComponent, find_marker};
use super::tables::{CONDITIONING_TABLES, Conditioning, Tables};

/// The state machine of T.81, table D.3: Qe, the next states after the less and the more probable
/// symbol, and whether the two symbols are exchanged. The last state always has equal
/// probabilities.
#[rustfmt::skip]
const STATES: [(u16, u8, u8, bool); 114] = [
    (0x5A1D, 1, 1, true), (0x2586, 14, 2, false), (0x1114, 16, 3, false), (0x080B, 18, 4, false),
    (0x03D8, 20, 5, false), (0x01DA, 23, 6, false), (0x00E5, 25, 7, false), (0x006F, 28, 8, false),
    (0x0036, 30, 9, false), (0x001A, 33, 10, false), (0x000D, 35, 11, false),
    (0x0006, 9, 12, false), (0x0003, 10, 13, false), (0x0001, 12, 13, false),
    (0x5A7F, 15, 15, true), (0x3F25, 36, 16, false), (0x2CF2, 38, 17, false),
    (0x207C, 39, 18, false), (0x17B9, 40, 19, false), (0x1182, 42, 20, false),
    (0x0CEF, 43, 21, false), (0x09A1, 45, 22, false), (0x072F, 46, 23, false),
    (0x055C, 48, 24, false), (0x0406, 49, 25, false), (0x0303, 51, 26, false),
    (0x0240, 52, 27, false), (0x01B1, 54, 28, false), (0x0144, 56, 29, false),
    (0x00F5, 57, 30, false), (0x00B7, 59, 31, false), (0x008A, 60, 32, false),
    (0x0068, 62, 33, false), (0x004E, 63, 34, false), (0x003B, 32, 35, false),
    (0x002C, 33, 9, false), (0x5AE1, 37, 37, true), (0x484C, 64, 38, false),
    (0x3A0D, 65, 39, false), (0x2EF1, 67, 40, false), (0x261F, 68, 41, false),
    (0x1F33, 69, 42, false), (0x19A8, 70, 43, false), (0x1518, 72, 44, false),
    (0x1177, 73, 45, false), (0x0E74, 74, 46, false), (0x0BFB, 75, 47, false),
    (0x09F8, 77, 48, false), (0x0861, 78, 49, false), (0x0706, 79, 50, false),
    (0x05CD, 48, 51, false), (0x04DE, 50, 52, false), (0x040F, 50, 53, false),
    (0x0363, 51, 54, false), (0x02D4, 52, 55, false), (0x025C, 53, 56, false),
    (0x01F8, 54, 57, false), (0x01A4, 55, 58, false), (0x0160, 56, 59, false),
    (0x0125, 57, 60, false), (0x00F6, 58, 61, false), (0x00CB, 59, 62, false),
    (0x00AB, 61, 63, false), (0x008F, 61, 32, false), (0x5B12, 65, 65, true),
    (0x4D04, 80, 66, false), (0x412C, 81, 67, false), (0x37D8, 82, 68, false),
    (0x2FE8, 83, 69, false), (0x293C, 84, 70, false), (0x2379, 86, 71, false),
    (0x1EDF, 87, 72, false), (0x1AA9, 87, 73, false), (0x174E, 72, 74, false),
    (0x1424, 72, 75, false), (0x119C, 74, 76, false), (0x0F6B, 74, 77, false),
    (0x0D51, 75, 78, false), (0x0BB6, 77, 79, false), (0x0A40, 77, 48, false),
    (0x5832, 80, 81, true), (0x4D1C, 88, 82, false), (0x438E, 89, 83, false),
    (0x3BDD, 90, 84, false), (0x34EE, 91, 85, false), (0x2EAE, 92, 86, false),
    (0x299A, 93, 87, false), (0x2516, 86, 71, false), (0x5570, 88, 89, true),
    (0x4CA9, 95, 90, false), (0x44D9, 96, 91, false), (0x3E22, 97, 92, false),
    (0x3824, 99, 93, false), (0x32B4, 99, 94, false), (0x2E17, 93, 86, false),
    (0x56A8, 95, 96, true), (0x4F46, 101, 97, false), (0x47E5, 102, 98, false),
    (0x41CF, 103, 99, false), (0x3C3D, 104, 100, false), (0x375E, 99, 93, false),
    (0x5231, 105, 102, false), (0x4C0F, 106, 103, false), (0x4639, 107, 104, false),
    (0x415E, 103, 99, false), (0x5627, 105, 106, true), (0x50E7, 108, 107, false),
    (0x4B85, 109, 103, false), (0x5597, 110, 109, false), (0x504F, 111, 107, false),
    (0x5A10, 110, 111, true), (0x5522, 112, 109, false), (0x59EB, 112, 111, true),
    (0x5A1D, 113, 113, false),
];
/// The index of the state that always has equal probabilities.
const FIXED: u8 = 113;

/// A statistics bin (adaptive probability): the state, and the more probable symbol in the highest
/// bit.
type Bin = u8;

const MORE_PROBABLE: u8 = 0x80;

/// The arithmetic decoder (T.81, D.2).
struct ArithmeticDecoder<'a> {
    encoded: &'a [u8],
    at: usize,
    /// The code register; its upper 16 bits are compared with the interval.
    code: u32,
    interval: u32,
    /// The number of valid bits in the lower part of the code register.
    count: u32,
    /// Whether the decoder read beyond the end of a file without a marker.
    is_truncated: bool,
}

impl<'a> ArithmeticDecoder<'a> {
    fn new(encoded: &'a [u8], at: usize) -> Self {
        let mut decoder =
            ArithmeticDecoder { encoded, at, code: 0, interval: 0, count: 0, is_truncated: false };
        decoder.begin();
        decoder
    }

    /// Initialises the decoder at the current offset.
    fn begin(&mut self) {
        self.code = 0;
        for _ in 0..2 {
            self.code |= self.byte() << 8;
            self.code <<= 8;
        }
        self.interval = 1 << 16;
        self.count = 0;
    }

    /// The next byte. Encoders omit zeros before a marker, so zeros follow the data.
    fn byte(&mut self) -> u32 {
        match self.encoded.get(self.at..) {
            Some(&[first, ..]) if first != 0xFF => {
                self.at += 1;
                return first.into();
            }
            Some(rest) => {
                let filling = rest.iter().take_while(|&&byte| byte == 0xFF).count();
                match rest.get(filling) {
                    Some(0) if filling > 0 => {
                        self.at += filling + 1;
                        return 0xFF;
                    }
                    Some(_) => {}
                    None => self.is_truncated = true,
                }
            }
            None => self.is_truncated = true,
        }
        0
    }

    /// Skips to the next marker and reads it; `None` at the end of the file.
    fn next_marker(&mut self) -> Option<u8> {
        let found = find_marker(self.encoded, self.at);
        self.at = found.map_or(self.encoded.len(), |(_, end)| end);
        found.map(|(marker, _)| marker)
    }

    /// Decodes a binary decision.
    #[inline]
    fn decode(&mut self, bin: &mut Bin) -> bool {
        let (less, after_less, after_more, swaps) = STATES[usize::from(*bin & !MORE_PROBABLE)];
        let less = u32::from(less);
        let more = *bin & MORE_PROBABLE;
        self.interval -= less;
        let is_upper = self.code >> 16 >= self.interval;
        if !is_upper && self.interval >= 0x8000 {
            return more != 0;
        }
        // The larger subinterval belongs to the more probable symbol.
        let is_more = is_upper == (self.interval < less);
        if is_upper {
            self.code -= self.interval << 16;
            self.interval = less;
        }
        let decision = if is_more {
            *bin = more | after_more;
            more
        } else {
            *bin = (if swaps { more ^ MORE_PROBABLE } else { more }) | after_less;
            more ^ MORE_PROBABLE
        };
        while self.interval < 0x8000 {
            if self.count == 0 {
                self.code |= self.byte() << 8;
                self.count = 8;
            }
            self.interval <<= 1;
            self.code <<= 1;
            self.count -= 1;
        }
        decision != 0
    }

    /// Decodes a binary decision of equal probabilities.
    fn decode_fixed(&mut self) -> bool {
        self.decode(&mut { FIXED })
    }

    /// The bits of a magnitude below its highest bit `top` (T.81, figures F.23 and F.24).
    fn magnitude(&mut self, top: u32, bin: &mut Bin) -> i32 {
        let (mut value, mut bit) = (top, top >> 1);
        while bit > 0 {
            if self.decode(bin) {
                value |= bit;
            }
            bit >>= 1;
        }
        value as i32 + 1
    }
}

/// Error: more coefficients than a block has, or a coefficient that is too large.
struct InvalidData;

/// Indices of statistics bins: the first bins of AC magnitudes of low and high frequency, and of DC
/// magnitudes; and the distance to the bins of their lower bits.
const LOW_MAGNITUDES: usize = 189;
const HIGH_MAGNITUDES: usize = 217;
const DC_MAGNITUDES: usize = 20;
const LOWER_BITS: usize = 14;
/// The highest valid bit of a magnitude.
const MAX_TOP: u32 = 1 << 14;

/// The statistics of a scan, and state that continues from block to block.
struct Statistics {
    dc: [[Bin; 64]; CONDITIONING_TABLES],
    ac: [[Bin; 256]; CONDITIONING_TABLES],
    /// The previous DC value of each component, and the context of its next difference.
    predictions: [i32; MAX_COMPONENTS],
    contexts: [usize; MAX_COMPONENTS],
}

impl Statistics {
    const fn new() -> Self {
        Statistics {
            dc: [[0; 64]; CONDITIONING_TABLES],
            ac: [[0; 256]; CONDITIONING_TABLES],
            predictions: [0; MAX_COMPONENTS],
            contexts: [0; MAX_COMPONENTS],
        }
    }

    /// Decodes a DC value (T.81, F.1.4.1 and figure F.19).
    fn read_dc(
        &mut self,
        decoder: &mut ArithmeticDecoder<'_>,
        part: &ScanComponent,
        conditioning: &Conditioning,
    ) -> Result<i32, InvalidData> {
        let bins = &mut self.dc[part.dc];
        let prediction = &mut self.predictions[part.component];
        let context = &mut self.contexts[part.component];
        let start = *context;
        if !decoder.decode(&mut bins[start]) {
            *context = 0;
            return Ok(*prediction);
        }
        let negative = decoder.decode(&mut bins[start + 1]);
        let mut at = start + 2 + usize::from(negative);
        let mut top = u32::from(decoder.decode(&mut bins[at]));
        if top > 0 {
            at = DC_MAGNITUDES;
            while decoder.decode(&mut bins[at]) {
                if top == MAX_TOP {
                    return Err(InvalidData);
                }
                top <<= 1;
                at += 1;
            }
        }
        let (small, large) = conditioning.dc[part.dc];
        *context = match top {
            _ if top < 1 << small >> 1 => 0,
            _ if top > 1 << large >> 1 => 12 + 4 * usize::from(negative),
            _ => 4 + 4 * usize::from(negative),
        };
        let difference = decoder.magnitude(top, &mut bins[at + LOWER_BITS]);
        *prediction = prediction.wrapping_add(if negative { -difference } else { difference });
        Ok(*prediction)
    }

    /// Decodes the first scan of a band (T.81, F.1.4.2 and figure F.20).
    fn read_band(
        &mut self,
        decoder: &mut ArithmeticDecoder<'_>,
        part: &ScanComponent,
        conditioning: &Conditioning,
        (scan, first): (&Scan, usize),
        block: &mut AcBlock<'_>,
    ) -> Result<(), InvalidData> {
        let bins = &mut self.ac[part.ac];
        let mut k = first;
        while k <= scan.last {
            if decoder.decode(&mut bins[3 * (k - 1)]) {
                break;
            }
            while !decoder.decode(&mut bins[3 * (k - 1) + 1]) {
                k += 1;
                if k > scan.last {
                    return Err(InvalidData);
                }
            }
            let negative = decoder.decode_fixed();
            let mut at = 3 * (k - 1) + 2;
            let mut top = u32::from(decoder.decode(&mut bins[at]));
            if top > 0 && decoder.decode(&mut bins[at]) {
                top = 2;
                let is_low = k <= usize::from(conditioning.ac[part.ac]);
                at = if is_low { LOW_MAGNITUDES } else { HIGH_MAGNITUDES };
                while decoder.decode(&mut bins[at]) {
                    if top == MAX_TOP {
                        return Err(InvalidData);
                    }
                    top <<= 1;
                    at += 1;
                }
            }
            // Values below 2 have no lower bits.
            let value = if top < 2 {
                top as i32 + 1
            } else {
                decoder.magnitude(top, &mut bins[at + LOWER_BITS])
            };
            let value = if negative { -value } else { value };
            block.set(k, (value << scan.low) as i16);
            k += 1;
        }
        Ok(())
    }

    /// Decodes a refinement scan of a band (T.81, G.1.3.3 and figure G.11).
    fn refine_band(
        &mut self,
        decoder: &mut ArithmeticDecoder<'_>,
        part: &ScanComponent,
        scan: &Scan,
        block: &mut AcBlock<'_>,
    ) -> Result<(), InvalidData> {
        let bins = &mut self.ac[part.ac];
        let bit = 1i16 << scan.low;
        // The block cannot end before the last known non-zero coefficient.
        let known = block.nonzero(1, scan.last).checked_ilog2().map_or(0, |last| last as usize);
        let mut k = scan.first;
        while k <= scan.last {
            if k > known && decoder.decode(&mut bins[3 * (k - 1)]) {
                break;
            }
            loop {
                if block.get(k) != 0 {
                    if decoder.decode(&mut bins[3 * (k - 1) + 2]) {
                        let coefficient = block.known(k);
                        let change = if *coefficient < 0 { -bit } else { bit };
                        *coefficient = coefficient.wrapping_add(change);
                    }
                    break;
                }
                if decoder.decode(&mut bins[3 * (k - 1) + 1]) {
                    block.set(k, if decoder.decode_fixed() { -bit } else { bit });
                    break;
                }
                k += 1;
                if k > scan.last {
                    return Err(InvalidData);
                }
            }
            k += 1;
        }
        Ok(())
    }
}

/// Decodes a scan into the stored coefficients. Returns the offset after the scan. An error
/// includes the number of complete MCU rows. In a scan of a single component, an MCU is one
/// block.
pub(super) fn read_scan(
    encoded: &[u8],
    data: usize,
    frame: &Frame,
    scan: &Scan,
    tables: &Tables,
    (stored, work): (&mut CoefficientBuffer, &mut WorkBudget),
) -> (usize, Result<(), (usize, Error)>) {
    let mut decoder = ArithmeticDecoder::new(encoded, data);
    let outcome = read_rows(&mut decoder, frame, scan, tables, (stored, work));
    (decoder.at, outcome)
}

fn read_rows(
    decoder: &mut ArithmeticDecoder<'_>,
    frame: &Frame,
    scan: &Scan,
    tables: &Tables,
    (stored, work): (&mut CoefficientBuffer, &mut WorkBudget),
) -> Result<(), (usize, Error)> {
    // In a scan of a single component, each MCU has one block, and only blocks with samples of the
    // image are coded.
    let (alone, rows, units) = match scan.components[..] {
        [part] => {
            let component = &frame.components[part.component];
            (true, component.blocks_high, component.blocks_wide)
        }
        _ => (false, frame.mcu_rows, frame.mcus_per_row),
    };
    let mut statistics = Statistics::new();
    let mut until_restart = tables.restart_interval;
    let mut restarts = 0;
    for row in 0..rows {
        let mut coefficients = 0;
        for unit in 0..units {
            if tables.restart_interval > 0 {
                if until_restart == 0 {
                    let found = decoder.next_marker();
                    RestartError::check(restarts, found)
                        .map_err(|fault| (row, fault.into_error(decoder.at, rows - row)))?;
                    restarts = (restarts + 1) % 8;
                    statistics = Statistics::new();
                    decoder.begin();
                    until_restart = tables.restart_interval;
                }
                until_restart -= 1;
            }
            for part in scan.components.iter() {
                let component = &frame.components[part.component];
                let (across, down) =
                    if alone { (1, 1) } else { (component.across, component.down) };
                for y in row * down..(row + 1) * down {
                    for x in unit * across..(unit + 1) * across {
                        let place = (&mut *stored, y * component.padded_wide + x);
                        read_block(decoder, &mut statistics, part, frame, scan, tables, place)
                            .map(|count| coefficients += u64::from(count))
                            .map_err(|InvalidData| (row, invalid_data(decoder, rows - row)))?;
                    }
                }
            }
        }
        if decoder.is_truncated {
            return Err((row, truncation(decoder, rows - row)));
        }
        work.coefficients(coefficients, decoder.at).map_err(|error| (row, error))?;
    }
    Ok(())
}

/// Decodes a block of a scan. Returns the number of its non-zero AC coefficients.
fn read_block(
    decoder: &mut ArithmeticDecoder<'_>,
    statistics: &mut Statistics,
    part: &ScanComponent,
    frame: &Frame,
    scan: &Scan,
    tables: &Tables,
    (stored, at): (&mut CoefficientBuffer, usize),
) -> Result<u32, InvalidData> {
    let conditioning = &tables.conditioning;
    let stored = stored.component_mut(part.component);
    let first = match (frame.coding, scan.first, scan.high) {
        (Coding::Sequential | Coding::Lossless, ..) => {
            *stored.dc_mut(at) = statistics.read_dc(decoder, part, conditioning)? as i16;
            stored.ac(at).clear();
            1
        }
        (Coding::Progressive, 0, 0) => {
            let value = statistics.read_dc(decoder, part, conditioning)?;
            *stored.dc_mut(at) = (value << scan.low) as i16;
            return Ok(0);
        }
        (Coding::Progressive, 0, _) => {
            *stored.dc_mut(at) |= i16::from(decoder.decode_fixed()) << scan.low;
            return Ok(0);
        }
        (Coding::Progressive, first, _) => first,
    };
    let mut block = stored.ac(at);
    match scan.high {
        0 => statistics.read_band(decoder, part, conditioning, (scan, first), &mut block)?,
        _ => statistics.refine_band(decoder, part, scan, &mut block)?,
    }
    Ok(block.nonzero(first, scan.last).count_ones())
}

fn invalid_data(decoder: &ArithmeticDecoder<'_>, missing: usize) -> Error {
    if decoder.is_truncated {
        return truncation(decoder, missing);
    }
    corrupt("corrupt JPEG: invalid arithmetic-coded coefficient", decoder.at)
}

fn truncation(decoder: &ArithmeticDecoder<'_>, missing: usize) -> Error {
    truncated(format!("truncated JPEG: {missing} MCU rows are missing"), decoder.at)
}
