//! The checksum over all delivered batches.

use twox_hash::XxHash3_128;

/// A checksum of all elements and their order, independent of the batch size.
///
/// For each array of the batches (images, labels), a running hash covers all rows in order. The
/// checksum is the hash of these running hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checksum {
    chains: Vec<u128>,
}

impl Checksum {
    /// Adds the rows of each array of a batch.
    pub(super) fn add<'a>(&mut self, rows: usize, arrays: impl Iterator<Item = &'a [u8]>) {
        for (at, bytes) in arrays.enumerate() {
            if at == self.chains.len() {
                self.chains.push(0);
            }
            for row in bytes.chunks_exact((bytes.len() / rows.max(1)).max(1)) {
                self.chains[at] = hash_of_both(self.chains[at], XxHash3_128::oneshot(row));
            }
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
            checksum.add(batch[0].len(), batch.iter().copied());
        }
        checksum.finish()
    }

    #[test]
    fn a_checksum_resumes_from_its_text() {
        let rows: [&[u8]; 2] = [b"ab", b"12"];
        let mut whole = Checksum::default();
        whole.add(2, rows.into_iter());
        let mut part = Checksum::parse(&whole.to_text()).unwrap();
        assert_eq!(part, whole);
        part.add(2, rows.into_iter());
        whole.add(2, rows.into_iter());
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
