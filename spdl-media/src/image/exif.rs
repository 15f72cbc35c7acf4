//! The orientation tag of an EXIF block (EXIF 2.32, 4.6.4).

use super::geometry::Orientation;

const TAG_ORIENTATION: u16 = 0x0112;
const TYPE_SHORT: u16 = 3;
const TYPE_LONG: u16 = 4;
const ENTRY_BYTES: usize = 12;

/// The orientation in an EXIF block: a TIFF structure, with or without the prefix `Exif\0\0`.
/// Returns `Upright` if the tag is missing or the block is corrupt, so that corrupt metadata do not
/// prevent decoding.
pub(crate) fn orientation(exif: &[u8]) -> Orientation {
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    find_tag(tiff).and_then(Orientation::from_exif).unwrap_or_default()
}

fn find_tag(tiff: &[u8]) -> Option<u16> {
    let little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = long(4)? as usize;
    let entries = directory.checked_add(2)?;
    for entry in 0..usize::from(short(directory)?) {
        let at = entries.checked_add(entry * ENTRY_BYTES)?;
        if short(at)? == TAG_ORIENTATION {
            return match (short(at + 2)?, long(at + 4)?) {
                (TYPE_SHORT, 1) => short(at + 8),
                // The standard requires SHORT; some writers use LONG, and other readers accept it.
                (TYPE_LONG, 1) => u16::try_from(long(at + 8)?).ok(),
                _ => None,
            };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(little: bool, number: u16) -> Vec<u8> {
        let mut bytes = if little { number.to_le_bytes() } else { number.to_be_bytes() }.to_vec();
        bytes.extend([0, 0]);
        block_of(little, TYPE_SHORT, &bytes)
    }

    /// An EXIF block whose orientation tag has this type and these four bytes as its value.
    fn block_of(little: bool, kind: u16, value: &[u8]) -> Vec<u8> {
        let short = |v: u16| if little { v.to_le_bytes() } else { v.to_be_bytes() };
        let long = |v: u32| if little { v.to_le_bytes() } else { v.to_be_bytes() };
        let mut bytes = if little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        bytes.extend(long(8));
        bytes.extend(short(2));
        // Another tag first: ImageWidth.
        for (tag, kind, value) in
            [(0x0100, TYPE_SHORT, &[77; 4][..]), (TAG_ORIENTATION, kind, value)]
        {
            bytes.extend(short(tag));
            bytes.extend(short(kind));
            bytes.extend(long(1));
            bytes.extend(value);
        }
        bytes
    }

    #[test]
    fn both_byte_orders_and_the_prefix_are_accepted() {
        for little in [false, true] {
            for number in 1..=8 {
                let plain = block(little, number);
                let prefixed = [b"Exif\0\0".to_vec(), plain.clone()].concat();
                assert_eq!(orientation(&plain).exif(), number);
                assert_eq!(orientation(&prefixed).exif(), number);
            }
        }
    }

    #[test]
    fn long_values_are_accepted() {
        for number in 1..=8u32 {
            let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
            assert_eq!(orientation(&block_of(true, TYPE_LONG, &little)).exif(), number as u16);
            assert_eq!(orientation(&block_of(false, TYPE_LONG, &big)).exif(), number as u16);
        }
        let far = (6 + (1u32 << 16)).to_le_bytes();
        assert_eq!(orientation(&block_of(true, TYPE_LONG, &far)), Orientation::Upright);
        // Bytes and rationals are not accepted.
        for kind in [1, 2, 5, 7] {
            assert_eq!(orientation(&block_of(true, kind, &[6, 0, 0, 0])), Orientation::Upright);
        }
    }

    #[test]
    fn a_corrupt_block_means_upright() {
        let whole = block(true, 6);
        // The last two bytes are padding.
        for end in 0..whole.len() - 2 {
            assert_eq!(orientation(&whole[..end]), Orientation::Upright, "cut at {end}");
        }
        assert_eq!(orientation(&block(true, 0)), Orientation::Upright);
        assert_eq!(orientation(&block(true, 9)), Orientation::Upright);
        let mut far = block(true, 6);
        far[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(orientation(&far), Orientation::Upright);
    }
}
