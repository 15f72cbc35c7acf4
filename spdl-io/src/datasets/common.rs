//! What data sets in several files have in common.

use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

#[cfg(feature = "local")]
use crate::fetch::Fetcher;
use crate::fetch::Key;
use crate::records::{FieldValue, StoredRecord};
#[cfg(feature = "local")]
use crate::stores::LocalFetcher;

/// The files of this machine, for what is opened by its path.
#[cfg(feature = "local")]
pub(crate) fn local_fetcher() -> Arc<dyn Fetcher> {
    Arc::new(LocalFetcher::new())
}

/// The number of each shard's first sample, and of all together at the end.
#[derive(Clone, Debug)]
pub(crate) struct ShardOffsets(Vec<u64>);

impl ShardOffsets {
    /// Of shards of these lengths.
    pub(crate) fn new(lens: impl IntoIterator<Item = u64>) -> Result<Self> {
        let mut offsets = vec![0];
        let mut end = 0_u64;
        for len in lens {
            end = end.checked_add(len).filter(|end| *end <= 1 << 63).ok_or_else(|| {
                Error::new(ErrorKind::LimitExceeded, "the shards hold more than 2^63 samples")
            })?;
            offsets.push(end);
        }
        Ok(ShardOffsets(offsets))
    }

    /// How many samples there are.
    pub(crate) fn total(&self) -> u64 {
        self.0.last().copied().unwrap_or_default()
    }

    /// How many samples each shard holds.
    pub(crate) fn lens(&self) -> Vec<u64> {
        self.0.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// The shard of a sample, and its place there.
    pub(crate) fn locate(&self, index: u64) -> Result<(usize, u64)> {
        if index >= self.total() {
            let message = format!("sample {index} of {} was asked for", self.total());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // The last shard that starts at or before it: empty ones in front have the same start.
        let shard = self.0.partition_point(|first| *first <= index) - 1;
        Ok((shard, index - self.0[shard]))
    }
}

/// The key of a sample: the object, and the number of the sample there.
pub(crate) fn row_key(object: &Key, row: u64) -> Key {
    Key::from_bytes(&[object.as_bytes(), format!(":{row}").as_bytes()].concat())
}

/// What people call a sample.
pub(crate) fn shown(record: &StoredRecord) -> Option<Arc<str>> {
    Some(record.key.display_name())
}

/// A hash of what tells one data set from another; parts are told apart by their lengths.
pub(crate) struct ContentHash(XxHash3_128);

impl ContentHash {
    pub(crate) fn new(format: &str) -> Self {
        let mut hash = ContentHash(XxHash3_128::new());
        hash.bytes(format.as_bytes());
        hash
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.write(bytes);
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.0.write(&number.to_le_bytes());
    }

    /// The name of an object without the folders it is in, as it should not matter where data lie.
    pub(crate) fn name(&mut self, object: &Key) {
        let name = object.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        self.bytes(name);
    }

    pub(crate) fn finish(&self) -> u64 {
        // Half of the bits are a hash as well.
        self.0.finish_128() as u64
    }
}

/// An error where the fields of a sample are together larger than was asked for.
pub(crate) fn check_size(bytes: u64, max_bytes: u64) -> Result<()> {
    if bytes <= max_bytes {
        return Ok(());
    }
    let message = format!("a sample of {bytes} bytes, of which at most {max_bytes} are allowed");
    Err(Error::new(ErrorKind::LimitExceeded, message))
}

/// Bytes of a file as far as they are there, little-endian.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The value of a number in IEEE 754's half precision, which is exact.
pub(crate) fn half_to_f64(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3FF);
    let value = match bits >> 10 & 0x1F {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * 2_f64.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 1 { -value } else { value }
}

/// A field for a whole number, which has room for those below 2⁶³.
pub(crate) fn unsigned(number: u64) -> Result<FieldValue> {
    i64::try_from(number).map(FieldValue::Integer).map_err(|_| {
        let message = format!("the number {number} is larger than a field of integers holds");
        Error::new(ErrorKind::Unsupported, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_through_all_shards_and_empty_ones_hold_none() {
        let offsets = ShardOffsets::new([2, 0, 3]).unwrap();
        assert_eq!((offsets.total(), offsets.lens()), (5, vec![2, 0, 3]));
        let places: Vec<_> = (0..5).map(|index| offsets.locate(index).unwrap()).collect();
        assert_eq!(places, [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]);
        assert_eq!(offsets.locate(5).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert!(ShardOffsets::new([1 << 63, 1]).is_err());
    }

    #[test]
    fn half_precision_is_exact() {
        let cases = [
            (0x0000, 0.0),
            (0x0001, 5.960_464_477_539_063e-8),
            (0x03FF, 6.097_555_160_522_461e-5),
            (0x0400, 6.103_515_625e-5),
            (0x3C00, 1.0),
            (0xC100, -2.5),
            (0x7BFF, 65504.0),
            (0x7C00, f64::INFINITY),
            (0xFC00, f64::NEG_INFINITY),
        ];
        for (bits, value) in cases {
            assert_eq!(half_to_f64(bits), value, "{bits:#x}");
        }
        assert!(half_to_f64(0x7E00).is_nan());
    }
}
