//! Vector operations that several kernels share.

use fearless_simd::i16x8;
use fearless_simd::prelude::*;

/// Transposes 8 × 8 values: three rounds interleave the upper and the lower half of the rows.
#[inline(always)]
pub(crate) fn transpose_8x8<S: Simd>(mut rows: [i16x8<S>; 8]) -> [i16x8<S>; 8] {
    for _ in 0..3 {
        let (a, b) = rows[0].interleave(rows[4]);
        let (c, d) = rows[1].interleave(rows[5]);
        let (e, f) = rows[2].interleave(rows[6]);
        let (g, h) = rows[3].interleave(rows[7]);
        rows = [a, b, c, d, e, f, g, h];
    }
    rows
}

#[cfg(test)]
mod tests {
    use fearless_simd::{Level, dispatch};

    use super::*;

    #[test]
    fn rows_become_columns() {
        let values: [[i16; 8]; 8] =
            std::array::from_fn(|y| std::array::from_fn(|x| (10 * y + x) as i16));
        let mut found = [[0i16; 8]; 8];
        dispatch!(Level::new(), simd => {
            let rows = transpose_8x8(std::array::from_fn(|y| i16x8::from_slice(simd, &values[y])));
            for (row, place) in rows.into_iter().zip(&mut found) {
                row.store_slice(place);
            }
        });
        for y in 0..8 {
            for x in 0..8 {
                assert_eq!(found[y][x], values[x][y]);
            }
        }
    }
}
