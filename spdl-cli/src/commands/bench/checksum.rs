//! The checksum over all delivered batches.

use spdl_core::stage::Collation;
use spdl_core::{Array, Batch, Field};
use twox_hash::XxHash3_128;

/// A checksum of all elements and their order, independent of the batch size.
///
/// For each field of the batches (images, labels), a running hash covers all rows in order. The
/// checksum is the hash of these running hashes. Rows of padded fields include their padding and are followed by their
/// sizes, so that the checksum depends on the batch size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checksum {
    chains: Vec<u128>,
}

impl Checksum {
    /// Adds the rows of each field of a batch.
    pub(super) fn add(&mut self, batch: &Batch, fields: &[Field]) {
        for (at, field) in fields.iter().enumerate() {
            self.add_rows(at, rows(batch, field).into_iter());
        }
    }

    /// Adds rows of the field with this number.
    fn add_rows<'a>(&mut self, at: usize, rows: impl Iterator<Item = &'a [u8]>) {
        if at >= self.chains.len() {
            self.chains.resize(at + 1, 0);
        }
        for row in rows {
            self.chains[at] = hash_of_both(self.chains[at], XxHash3_128::oneshot(row));
        }
    }

    /// The running hashes in hexadecimal digits.
    pub(crate) fn to_text(&self) -> String {
        let chains: Vec<_> = self.chains.iter().map(|end| format!("{end:032x}")).collect();
        chains.join(" ")
    }

    /// Parses the text of [`to_text`](Checksum::to_text).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let chains = text.split_whitespace().map(|end| u128::from_str_radix(end, 16).ok());
        Some(Checksum { chains: chains.collect::<Option<_>>()? })
    }

    pub(super) fn finish(self) -> u128 {
        let ends: Vec<u8> = self.chains.iter().flat_map(|end| end.to_le_bytes()).collect();
        XxHash3_128::oneshot(&ends)
    }
}

/// The bytes of each sample, or of each packed sequence, in a field.
fn rows<'a>(batch: &'a Batch, field: &Field) -> Vec<&'a [u8]> {
    let bytes = |name: &str| batch.array(name).map_or(&[][..], |array| array.as_bytes());
    let stacked = |name: &str| {
        let rows = batch.array(name).and_then(|array: &Array| array.shape().first().copied());
        let bytes = bytes(name);
        bytes.chunks_exact((bytes.len() / rows.unwrap_or(0).max(1)).max(1))
    };
    let name = &*field.name;
    match field.collation {
        Collation::List => {
            batch.list(name).unwrap_or_default().iter().map(|array| array.as_bytes()).collect()
        }
        Collation::Ragged => {
            let (values, offsets) = (bytes(name), batch.array(&format!("{name}.offsets")));
            let offsets = offsets.and_then(|offsets| offsets.as_slice::<i64>().ok());
            let ends = offsets.unwrap_or_default();
            // Elements of the first dimension.
            let elements = ends.last().map_or(1, |&end| (end as usize).max(1));
            let of_element = values.len() / elements;
            let row = |pair: &[i64]| {
                &values[pair[0] as usize * of_element..pair[1] as usize * of_element]
            };
            ends.windows(2).map(row).collect()
        }
        Collation::Padded => {
            let sizes = stacked(&format!("{name}.sizes"));
            stacked(name).zip(sizes).flat_map(|(row, size)| [row, size]).collect()
        }
        _ => stacked(name).collect(),
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

    /// The checksum of batches that have two arrays with rows of one byte.
    fn checksum(batches: &[[&[u8]; 2]]) -> u128 {
        let mut checksum = Checksum::default();
        for batch in batches {
            for (at, bytes) in batch.iter().enumerate() {
                checksum.add_rows(at, bytes.chunks(1));
            }
        }
        checksum.finish()
    }

    #[test]
    fn a_checksum_resumes_from_its_text() {
        let rows: [&[u8]; 2] = [b"ab", b"12"];
        let mut whole = Checksum::default();
        let add = |checksum: &mut Checksum| {
            rows.iter().enumerate().for_each(|(at, bytes)| checksum.add_rows(at, bytes.chunks(1)));
        };
        add(&mut whole);
        let mut part = Checksum::parse(&whole.to_text()).unwrap();
        assert_eq!(part, whole);
        add(&mut part);
        add(&mut whole);
        assert_eq!(part.finish(), whole.finish());
        assert_eq!(Checksum::parse(""), Some(Checksum::default()), "before the first batch");
        assert_eq!(Checksum::parse("12 no"), None);
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
