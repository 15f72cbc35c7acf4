//! Matroska files with valid elements and arbitrary clusters.

use super::choices::Choices;

/// A Matroska file whose elements are valid, with the tracks, clusters and blocks that `choices` describes.
pub(crate) fn matroska_file(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut file = element(0x1A45_DFA3, &element(0x4282, b"webm"));
    let mut segment = Vec::new();
    if choices.happens(200) {
        let scale = if choices.happens(60) { choices.number() } else { 1_000_000 };
        segment.extend(element(0x1549_A966, &number(0x2A_D7B1, scale.into())));
    }
    let tracks = element(0x1654_AE6B, &tracks(choices));
    let is_late = choices.happens(20);
    if !is_late {
        segment.extend(&tracks);
    }
    for _ in 0..1 + choices.below(5) {
        segment.extend(cluster(choices));
    }
    if is_late {
        segment.extend(&tracks);
    }
    match choices.happens(40) {
        true => file.extend([&0x1853_8067_u32.to_be_bytes()[..], UNKNOWN_SIZE, &segment].concat()),
        false => file.extend(element(0x1853_8067, &segment)),
    }
    file
}

const UNKNOWN_SIZE: &[u8] = b"\x01\xFF\xFF\xFF\xFF\xFF\xFF\xFF";

fn tracks(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for track in 1..2 + choices.below(3) {
        let kind = if choices.happens(40) { 2 } else { 1 };
        let mut entry = [number(0xD7, track), number(0x83, kind)].concat();
        if choices.happens(40) {
            entry.extend(number(0xB9, choices.below(2)));
        }
        if choices.happens(80) {
            entry.extend(number(0x23_E383, choices.number().into()));
        }
        let codecs: [&[u8]; 4] = [b"V_VP9", b"V_VP8", b"V_QUICKTIME", b"V_MS/VFW/FOURCC"];
        entry.extend(element(0x86, codecs[choices.below(4) as usize]));
        if choices.happens(80) {
            let private: Vec<u8> = (0..choices.below(48)).map(|_| choices.byte()).collect();
            entry.extend(element(0x63A2, &private));
        }
        let mut video = [number(0xB0, 64), number(0xBA, 48)].concat();
        if choices.happens(30) {
            let roll = choices.word().to_be_bytes();
            video.extend(element(0x7670, &element(0x7675, &roll)));
        }
        entry.extend(element(0xE0, &video));
        if choices.happens(40) {
            entry.extend(encodings(choices));
        }
        out.extend(element(0xAE, &entry));
    }
    out
}

/// Encodings of the blocks: mostly stripped headers.
fn encodings(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..1 + choices.below(3) {
        let algorithm = if choices.happens(40) { choices.below(4) } else { 3 };
        let settings: Vec<u8> = (0..choices.below(8)).map(|_| choices.byte()).collect();
        let compression = [number(0x4254, algorithm), element(0x4255, &settings)].concat();
        out.extend(element(0x6240, &element(0x5034, &compression)));
    }
    element(0x6D80, &out)
}

fn cluster(choices: &mut Choices<'_>) -> Vec<u8> {
    let time = u64::from(choices.number()) << choices.below(40);
    let mut out = number(0xE7, time);
    for _ in 0..choices.below(6) {
        let block = block(choices);
        if choices.happens(80) {
            let mut group = element(0xA1, &block);
            if choices.happens(100) {
                group.extend(number(0x9B, choices.number().into()));
            }
            if choices.happens(100) {
                group.extend(element(0xFB, &[choices.byte()]));
            }
            out.extend(element(0xA0, &group));
        } else {
            out.extend(element(0xA3, &block));
        }
    }
    match choices.happens(40) {
        true => [&0x1F43_B675_u32.to_be_bytes()[..], UNKNOWN_SIZE, &out].concat(),
        false => element(0x1F43_B675, &out),
    }
}

/// Track, time, flags and data of a block; a few blocks are too short.
fn block(choices: &mut Choices<'_>) -> Vec<u8> {
    let track = if choices.happens(60) { choices.below(4) as u8 } else { 1 };
    let [high, low] = (choices.number() as u16).to_be_bytes();
    // Without lacing, which is unsupported.
    let flags = if choices.happens(120) { choices.byte() & 0xF9 } else { 0x80 };
    let mut out = vec![0x80 | track, high, low, flags];
    out.extend((0..choices.below(20)).map(|_| choices.byte()));
    if choices.happens(4) {
        out.truncate(choices.below(4) as usize);
    }
    out
}

/// An element, with a size of 8 bytes.
fn element(id: u32, content: &[u8]) -> Vec<u8> {
    let id = id.to_be_bytes();
    let start = id.iter().position(|&byte| byte != 0).unwrap_or(3);
    let size = (1 << 56 | content.len() as u64).to_be_bytes();
    [&id[start..], &size[..], content].concat()
}

fn number(id: u32, value: u64) -> Vec<u8> {
    element(id, &value.to_be_bytes())
}
