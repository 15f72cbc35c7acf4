//! The consumer: it takes every batch, counts it, and sums up its bytes.

use std::time::{Duration, Instant};

use spdl_core::{Batch, Result, SampleId};
use twox_hash::XxHash3_128;

/// More epochs than this are too many for marks in a chart.
const EPOCHS_KEPT: usize = 64;

/// What the consumer got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) images: u64,
    pub(crate) batches: u64,
    /// From the start to the first batch.
    pub(crate) first: Option<Duration>,
    /// From the start to the last batch, or to the end where there was none.
    pub(crate) took: Duration,
    /// From the start to the first batch of each epoch, of the first [`EPOCHS_KEPT`] epochs.
    pub(crate) epochs: Vec<Duration>,
    /// `None` where it is not wanted.
    pub(crate) checksum: Option<u128>,
}

/// Takes all batches, and sums up their bytes where `sums` says so. `after` hears of the last sample of each.
pub(crate) fn take_all(
    batches: impl Iterator<Item = Result<Batch>>,
    start: Instant,
    sums: bool,
    mut after: impl FnMut(SampleId),
) -> Result<Delivery> {
    let mut delivery = Delivery::default();
    let mut checksum = sums.then(Checksum::default);
    let mut epoch = None;
    for batch in batches {
        let batch = batch?;
        delivery.took = start.elapsed();
        delivery.first.get_or_insert(delivery.took);
        if epoch.replace(batch.epoch()) != Some(batch.epoch())
            && delivery.epochs.len() < EPOCHS_KEPT
        {
            delivery.epochs.push(delivery.took);
        }
        delivery.batches += 1;
        delivery.images += batch.len() as u64;
        if let Some(checksum) = &mut checksum {
            checksum.add(batch.len(), batch.arrays().iter().map(|array| array.as_bytes()));
        }
        if let Some(&last) = batch.ids().last() {
            after(last);
        }
    }
    if delivery.batches == 0 {
        delivery.took = start.elapsed();
    }
    delivery.checksum = checksum.map(Checksum::finish);
    Ok(delivery)
}

/// One sum over everything delivered: a chain of hashes for each array, row by row, and a hash of the
/// chains' ends. So it depends on all elements and their order, but not on where one batch ends and
/// the next begins.
#[derive(Default)]
struct Checksum {
    chains: Vec<u128>,
}

impl Checksum {
    /// Takes in the rows of each array of a batch.
    fn add<'a>(&mut self, rows: usize, arrays: impl Iterator<Item = &'a [u8]>) {
        for (at, bytes) in arrays.enumerate() {
            if at == self.chains.len() {
                self.chains.push(0);
            }
            for row in bytes.chunks_exact((bytes.len() / rows.max(1)).max(1)) {
                self.chains[at] = hash_of_both(self.chains[at], XxHash3_128::oneshot(row));
            }
        }
    }

    fn finish(self) -> u128 {
        let ends: Vec<u8> = self.chains.iter().flat_map(|end| end.to_le_bytes()).collect();
        XxHash3_128::oneshot(&ends)
    }
}

fn hash_of_both(first: u128, second: u128) -> u128 {
    let mut both = [0; 32];
    both[..16].copy_from_slice(&first.to_le_bytes());
    both[16..].copy_from_slice(&second.to_le_bytes());
    XxHash3_128::oneshot(&both)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of batches of two arrays, with rows of a byte.
    fn checksum(batches: &[[&[u8]; 2]]) -> u128 {
        let mut checksum = Checksum::default();
        for batch in batches {
            checksum.add(batch[0].len(), batch.iter().copied());
        }
        checksum.finish()
    }

    #[test]
    fn the_checksum_depends_on_the_elements_and_not_on_the_batches() {
        let whole = checksum(&[[b"abcd", b"1234"]]);
        assert_eq!(whole, checksum(&[[b"abc", b"123"], [b"d", b"4"]]));
        assert_ne!(whole, checksum(&[[b"abdc", b"1234"]]), "order of pixels");
        assert_ne!(whole, checksum(&[[b"abcd", b"1243"]]), "order of labels");
        assert_ne!(whole, checksum(&[[b"1234", b"abcd"]]), "which array is which");
        assert_ne!(whole, checksum(&[]));
    }
}
