//! Estimates of coefficients that an incomplete progressive JPEG lacks.
//!
//! As in libjpeg-turbo, the DC coefficients of 5 × 5 blocks predict the first AC coefficients of
//! the block in the centre. If no scan had AC coefficients of a component, the prediction is a
//! Gaussian-like filter, which changes DC too. Otherwise it extends the method of T.81, K.8.

use super::coefficients::ComponentCoefficients;
use super::header::{BLOCK_AREA, Component, Frame, MAX_COMPONENTS, Quantization};

/// The number of coefficients, in zigzag order, whose accuracy matters: DC and 9 AC coefficients.
const COEFFICIENTS: usize = 10;

/// The weights of 5 × 5 DC coefficients.
type Kernel = [[i32; 5]; 5];

/// An estimate of a coefficient.
struct Estimate {
    /// The index in zigzag order, and in row order.
    zigzag: usize,
    at: usize,
    kernel: &'static Kernel,
    /// Whether rows and columns of the kernel are exchanged.
    transposed: bool,
}

const fn estimate(zigzag: usize, at: usize, kernel: &'static Kernel, transposed: bool) -> Estimate {
    Estimate { zigzag, at, kernel, transposed }
}

const ZEROS: [i32; 5] = [0; 5];

/// Kernels for components without any AC coefficients.
const DC: Kernel = [
    [-2, -6, -8, -6, -2],
    [-6, 6, 42, 6, -6],
    [-8, 42, 152, 42, -8],
    [-6, 6, 42, 6, -6],
    [-2, -6, -8, -6, -2],
];
const WITHOUT_AC: [Estimate; 9] = {
    const FIRST: Kernel = [
        [-1, -1, 0, 1, 1],
        [-3, 13, 0, -13, 3],
        [-3, 38, 0, -38, 3],
        [-3, 13, 0, -13, 3],
        [-1, -1, 0, 1, 1],
    ];
    const SECOND: Kernel =
        [[0, 0, 1, 0, 0], [0, 2, 7, 2, 0], [0, -5, -14, -5, 0], [0, 2, 7, 2, 0], [0, 0, 1, 0, 0]];
    const DIAGONAL: Kernel =
        [[-1, 0, 0, 0, 1], [0, 9, 0, -9, 0], ZEROS, [0, -9, 0, 9, 0], [1, 0, 0, 0, -1]];
    const THIRD: Kernel = [ZEROS, [0, 1, 0, -1, 0], [0, 2, 0, -2, 0], [0, 1, 0, -1, 0], ZEROS];
    const MIXED: Kernel = [ZEROS, [0, 1, -3, 1, 0], ZEROS, [0, -1, 3, -1, 0], ZEROS];
    [
        estimate(1, 1, &FIRST, false),
        estimate(2, 8, &FIRST, true),
        estimate(3, 16, &SECOND, false),
        estimate(4, 9, &DIAGONAL, false),
        estimate(5, 2, &SECOND, true),
        estimate(6, 3, &THIRD, false),
        estimate(7, 10, &MIXED, false),
        estimate(8, 17, &MIXED, true),
        estimate(9, 24, &THIRD, true),
    ]
};

/// Kernels for components with some AC coefficients.
const WITH_AC: [Estimate; 5] = {
    const FIRST: Kernel = [ZEROS, ZEROS, [-7, 50, 0, -50, 7], ZEROS, ZEROS];
    const SECOND: Kernel = [ZEROS, ZEROS, [-1, 13, -24, 13, -1], ZEROS, ZEROS];
    const DIAGONAL: Kernel =
        [[0, -1, 0, 1, 0], [-1, 10, 0, -10, 1], ZEROS, [1, -10, 0, 10, -1], [0, 1, 0, -1, 0]];
    [
        estimate(1, 1, &FIRST, false),
        estimate(2, 8, &FIRST, true),
        estimate(3, 16, &SECOND, true),
        estimate(4, 9, &DIAGONAL, false),
        estimate(5, 2, &SECOND, false),
    ]
};

/// What an incomplete image lacks.
#[derive(Debug)]
pub(super) struct Smoothing {
    /// The number of unknown low bits of the first coefficients of each component, in zigzag order;
    /// `None` if all bits are unknown.
    unknown: [[Option<u32>; COEFFICIENTS]; MAX_COMPONENTS],
}

impl Smoothing {
    /// `None` if no estimate is needed or possible.
    pub(super) fn new(
        frame: &Frame,
        unknown: &[[Option<u32>; BLOCK_AREA]; MAX_COMPONENTS],
        quantization: &[Option<Quantization>; MAX_COMPONENTS],
    ) -> Option<Smoothing> {
        let unknown = unknown.map(|bits| std::array::from_fn(|at| bits[at]));
        let mut is_useful = false;
        for at in 0..frame.components.len() {
            let table = quantization[at].as_ref()?;
            let needed = WITHOUT_AC.iter().map(|estimate| estimate.at).chain([0]);
            let bits: &[Option<u32>; COEFFICIENTS] = &unknown[at];
            if bits[0].is_none() || needed.into_iter().any(|at| table[at] == 0) {
                return None;
            }
            is_useful |= bits[1..].iter().any(|&low| low != Some(0));
        }
        is_useful.then_some(Smoothing { unknown })
    }

    /// Adds estimates to the block at column `x` and row `y` of a component. Returns the index, in zigzag order, from which all
    /// coefficients are zero; `zero_from` is that index before.
    pub(super) fn apply(
        &self,
        frame: &Frame,
        (component, x, y): (usize, usize, usize),
        stored: &ComponentCoefficients,
        quantization: &Quantization,
        block: &mut [i16],
        mut zero_from: usize,
    ) -> usize {
        let unknown = &self.unknown[component];
        if unknown[1..].iter().all(|&low| low == Some(0)) {
            return zero_from;
        }
        if zero_from <= 1 {
            // The stored block has no AC coefficients.
            block[1..BLOCK_AREA].fill(0);
        }
        let window = window(frame, &frame.components[component], (x, y), stored);
        let without_ac = unknown[1..].iter().all(Option::is_none);
        let estimates = if without_ac { &WITHOUT_AC[..] } else { &WITH_AC };
        let quantiser = |at: usize| i64::from(quantization[at] as u16);
        let scale = quantiser(0);
        for Estimate { zigzag, at, kernel, transposed } in estimates {
            let low = unknown[*zigzag];
            if low == Some(0) || block[*at] != 0 {
                continue;
            }
            let sum = scale * weighted(&window, kernel, *transposed);
            let mut magnitude = rounded(sum.abs(), quantiser(*at));
            if let Some(low) = low {
                magnitude = magnitude.min((1 << low) - 1);
            }
            block[*at] = (magnitude * sum.signum()) as i16;
            if block[*at] != 0 {
                zero_from = zero_from.max(zigzag + 1);
            }
        }
        if without_ac {
            let sum = scale * weighted(&window, &DC, false);
            block[0] = (rounded(sum.abs(), scale) * sum.signum()) as i16;
        }
        zero_from
    }
}

/// A sum of weights of 256ths, divided by the quantiser.
fn rounded(sum: i64, quantiser: i64) -> i64 {
    ((quantiser << 7) + sum) / (quantiser << 8).max(1)
}

fn weighted(window: &[[i16; 5]; 5], kernel: &Kernel, transposed: bool) -> i64 {
    let mut sum = 0;
    for (row, values) in window.iter().enumerate() {
        for (column, &value) in values.iter().enumerate() {
            let weight = if transposed { kernel[column][row] } else { kernel[row][column] };
            sum += i64::from(weight) * i64::from(value);
        }
    }
    sum
}

/// The DC coefficients of 5 × 5 blocks around a block. Beyond the edges, they are repeated.
fn window(
    frame: &Frame,
    component: &Component,
    (x, y): (usize, usize),
    stored: &ComponentCoefficients,
) -> [[i16; 5]; 5] {
    let (mcu_row, inside) = (y / component.down, y % component.down);
    // As in libjpeg-turbo, the rows of the last MCU row count as if all MCU rows had its height.
    let height = match component.blocks_high % component.down {
        rest if rest > 0 && mcu_row + 1 == frame.mcu_rows => rest,
        _ => component.down,
    };
    let (row, rows) = (mcu_row * height + inside, height * frame.mcu_rows);
    let above = if row > 0 { y - 1 } else { y };
    let below = if row + 1 < rows { y + 1 } else { y };
    let ys = [
        if row > 1 { y - 2 } else { above },
        above,
        y,
        below,
        if row + 2 < rows { y + 2 } else { below },
    ];
    let last = component.blocks_wide - 1;
    let xs = [-2, -1, 0, 1, 2].map(|by| x.saturating_add_signed(by).min(last));
    ys.map(|y| xs.map(|x| stored.dc(y * component.padded_wide + x)))
}
