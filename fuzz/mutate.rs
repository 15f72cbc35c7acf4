//! Damaged copies of files: each a pure function of (seed, name, number).

/// One damaged copy of `file`, which `name` names. `other` is another file of the same format,
/// parts of which may be mixed in. Between one and four damages are done, one after another. In half
/// of the PNG files the checksums are made right again, so that decoders read past them.
pub(crate) fn mutant(file: &[u8], other: &[u8], name: &str, seed: u64, number: u32) -> Vec<u8> {
    let mut random = Random::new(seed, name, number);
    let mut bytes = file.to_vec();
    for _ in 0..1 + random.below(4) {
        damage(&mut bytes, other, &mut random);
    }
    if random.below(2) == 0 {
        repair_png_checksums(&mut bytes);
    }
    bytes
}

/// Values at the ends of ranges, where arithmetic goes wrong.
const EXTREMES: [u8; 6] = [0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF];

fn damage(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    if bytes.is_empty() {
        bytes.extend_from_slice(other);
        return;
    }
    let length = bytes.len();
    match random.below(10) {
        0 | 1 => {
            for _ in 0..1 + random.below(8) {
                let at = random.place(length);
                bytes[at] ^= 1 << random.below(8);
            }
        }
        2 => {
            let at = random.place(length);
            bytes[at] = random.below(256) as u8;
        }
        3 => {
            let at = random.place(length);
            bytes[at] = EXTREMES[random.below(EXTREMES.len())];
        }
        // A number of 2 or 4 bytes: a size, an offset, a count.
        4 => {
            let wide = if random.below(2) == 0 { 2 } else { 4 };
            let at = random.place(length);
            let value = EXTREMES[random.below(EXTREMES.len())];
            for (i, byte) in bytes.iter_mut().skip(at).take(wide).enumerate() {
                *byte = if i == 0 { value } else { value.wrapping_neg() };
            }
        }
        5 => bytes.truncate(random.below(length)),
        6 => {
            let range = random.range(length);
            bytes[range].fill(0);
        }
        7 => {
            let range = random.range(length);
            bytes.drain(range);
        }
        8 => {
            let mut range = random.range(length);
            range.end = range.end.min(range.start + 4096);
            let copy = bytes[range.clone()].to_vec();
            bytes.splice(range.start..range.start, copy);
        }
        // The start of this one and the end of another.
        _ => {
            let kept = random.below(length);
            bytes.truncate(kept);
            // At the same place, so that headers and what follows them may still fit.
            let from = if random.below(2) == 0 { kept } else { random.below(other.len() + 1) };
            bytes.extend_from_slice(other.get(from..).unwrap_or_default());
        }
    }
}

/// Gives every chunk that is whole its right checksum: PNG (third edition), 5.3.
fn repair_png_checksums(file: &mut [u8]) {
    const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
    if !file.starts_with(SIGNATURE) {
        return;
    }
    let mut rest = &mut file[SIGNATURE.len()..];
    // Length, type, data, checksum.
    while let Some((length, after)) = rest.split_first_chunk_mut::<4>() {
        let covered = (u32::from_be_bytes(*length) as usize).saturating_add(4);
        let Some((data, after)) = after.split_at_mut_checked(covered) else { return };
        let Some((checksum, after)) = after.split_first_chunk_mut::<4>() else { return };
        *checksum = crc32(data).to_be_bytes();
        rest = after;
    }
}

/// The checksum of PNG and zip (ISO 3309), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn new(seed: u64, name: &str, number: u32) -> Self {
        // FNV-1a, so that the same file has the same mutants in every folder and on every thread.
        let name = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut random = Random(seed ^ name);
        let mixed = random.next();
        Random(mixed.wrapping_add(u64::from(number).wrapping_mul(0xd134_2543_de82_ef95)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// A place in a file of this length: half the time in its first 256 bytes, where headers are.
    fn place(&mut self, length: usize) -> usize {
        let length = if self.below(2) == 0 { length.min(256) } else { length };
        self.below(length)
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.place(length);
        // Short ones are as likely as long ones.
        let longest = (length - start).min(1 << self.below(16));
        start..start + 1 + self.below(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_depends_on_seed_name_and_number_alone() {
        let file: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let other = vec![7; 500];
        let one = mutant(&file, &other, "a.png", 1, 5);
        assert_eq!(one, mutant(&file, &other, "a.png", 1, 5));
        for (name, seed, number) in [("b.png", 1, 5), ("a.png", 2, 5), ("a.png", 1, 6)] {
            assert_ne!(one, mutant(&file, &other, name, seed, number), "{name} {seed} {number}");
        }
    }

    #[test]
    fn checksums_of_whole_chunks_are_made_right() {
        let header = b"\0\0\0\x0dIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0";
        // As every PNG of one RGB pixel has it.
        let right = [&b"\x89PNG\r\n\x1a\n"[..], header, b"\x90\x77\x53\xde"].concat();
        let mut file = right.clone();
        *file.last_mut().unwrap() ^= 0xFF;
        file.extend(b"\xFF\xFF\xFF\xFFIDAT");
        repair_png_checksums(&mut file);
        assert_eq!(file[..right.len()], right);
        assert_eq!(file[right.len()..], *b"\xFF\xFF\xFF\xFFIDAT", "the removed bytes remain");
    }

    #[test]
    fn every_length_can_be_damaged_and_nearly_all_mutants_differ_from_their_file() {
        let file: Vec<u8> = (0..=255).cycle().take(3000).collect();
        let mut unchanged = 0;
        for length in [0, 1, 2, 255, 256, 257, 3000] {
            for number in 0..500 {
                let bytes = mutant(&file[..length], &file[..100], "x", 0, number);
                assert!(bytes.len() <= length + 4 * (4096 + 100));
                unchanged += u32::from(bytes == file[..length]);
            }
        }
        assert!(unchanged < 300, "{unchanged} of 3,500 mutants are what they were made of");
    }
}
