//! MP4 files with valid boxes and arbitrary tables.

use super::choices::Choices;

/// An MP4 file whose boxes are valid, with the tables and fragments that `choices` describes.
///
/// Damaged bytes of a file mostly end in the size of a box or a missing box. Here, every input reaches the tables.
pub(crate) fn mp4_file(choices: &mut Choices<'_>) -> Vec<u8> {
    let samples = choices.below(12) as u32;
    let mut file = boxed(b"ftyp", b"isom\0\0\0\0isom");
    let tkhd = {
        let mut content = vec![0; 84];
        content[3] = 1;
        content[15] = 1;
        put(
            &mut content,
            40,
            &[0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000, 64 << 16, 48 << 16],
        );
        boxed(b"tkhd", &content)
    };
    let mut trak = tkhd;
    if choices.happens(120) {
        let elst = table(choices, b"elst", &[], 3);
        trak.extend(boxed(b"edts", &elst));
    }
    let mut mdhd = vec![0; 24];
    put(&mut mdhd, 12, &[1 + choices.number() % 90_000]);
    let mut hdlr = vec![0; 24];
    hdlr[8..12].copy_from_slice(b"vide");
    let stbl = boxed(b"stbl", &sample_tables(choices, samples));
    let minf = boxed(b"minf", &stbl);
    let mdia = [boxed(b"mdhd", &mdhd), boxed(b"hdlr", &hdlr), minf].concat();
    trak.extend(boxed(b"mdia", &mdia));

    let mut mvhd = vec![0; 100];
    put(&mut mvhd, 12, &[1 + choices.number() % 90_000]);
    put(&mut mvhd, 36, &[0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000]);
    let mut moov = [boxed(b"mvhd", &mvhd), boxed(b"trak", &trak)].concat();
    let fragments = choices.below(6).saturating_sub(2);
    if fragments > 0 {
        let mut trex = vec![0; 24];
        put(&mut trex, 4, &[1, 1, choices.number(), choices.number(), choices.number()]);
        moov.extend(boxed(b"mvex", &boxed(b"trex", &trex)));
    }
    file.extend(boxed(b"moov", &moov));
    for _ in 0..fragments {
        file.extend(fragment(choices));
    }
    file.extend(boxed(b"mdat", &[0; 512]));
    file
}

/// The boxes of `stbl`. Without choices, they describe `samples` samples in one chunk.
fn sample_tables(choices: &mut Choices<'_>, samples: u32) -> Vec<u8> {
    let mut entry = vec![0; 78];
    entry[24..28].copy_from_slice(&[0, 64, 0, 48]);
    entry.extend(boxed(b"avcC", &[1, 66, 0, 10, 0xFF, 0xE0, 0]));
    // The small numbers of tables are numbers of equal descriptions.
    let mut stsd = vec![0, 0, 0, 0, 0, 0, 0, 40];
    stsd.extend(boxed(b"avc1", &entry).repeat(40));
    let mut out = boxed(b"stsd", &stsd);
    out.extend(table(choices, b"stts", &[samples, 10], 2));
    if choices.happens(120) {
        out.extend(table(choices, b"ctts", &[], 2));
    }
    out.extend(table(choices, b"stsc", &[1, samples, 1], 3));
    if choices.happens(100) {
        out.extend(table(choices, b"stss", &[1], 1));
    }
    if choices.happens(20) {
        out.extend(table(choices, b"stps", &[1], 1));
    }
    out.extend(sizes(choices, samples));
    let is_long = choices.happens(60);
    let kind = if is_long { b"co64" } else { b"stco" };
    let chunk: &[u32] = if is_long { &[0, 600] } else { &[600] };
    out.extend(table(choices, kind, chunk, chunk.len()));
    if choices.happens(60) {
        let mut flags = vec![0; 4];
        flags.extend((0..choices.below(16)).map(|_| choices.byte()));
        out.extend(boxed(b"sdtp", &flags));
    }
    if choices.happens(60) {
        let count = choices.below(4) as u32;
        let mut content = b"\0\0\0\0rap ".to_vec();
        content.extend(count.to_be_bytes());
        (0..2 * count).for_each(|_| content.extend(choices.number().to_be_bytes()));
        out.extend(boxed(b"sbgp", &content));
    }
    out
}

fn sizes(choices: &mut Choices<'_>, samples: u32) -> Vec<u8> {
    let mut content = vec![0; 4];
    let is_constant = choices.happens(60);
    let count = if choices.happens(20) { choices.number() } else { samples };
    if choices.happens(40) {
        let bits = [4, 8, 16, 7][choices.below(4) as usize];
        content.extend([0, 0, 0, bits]);
        content.extend(count.to_be_bytes());
        content.extend((0..choices.below(40)).map(|_| choices.byte()));
        return boxed(b"stz2", &content);
    }
    let constant = if is_constant { choices.number() } else { 0 };
    content.extend(constant.to_be_bytes());
    content.extend(count.to_be_bytes());
    if !is_constant {
        (0..samples).for_each(|_| content.extend(choices.number().to_be_bytes()));
    }
    boxed(b"stsz", &content)
}

/// A table of entries of `words` numbers: one entry, `usual`, or arbitrary ones.
fn table(choices: &mut Choices<'_>, kind: &[u8; 4], usual: &[u32], words: usize) -> Vec<u8> {
    let is_usual = !usual.is_empty() && !choices.happens(100);
    let entries = if is_usual { 1 } else { choices.below(6) as u32 };
    let version = u32::from(choices.happens(30)) << 24;
    // A count that differs from the entries.
    let count = if choices.happens(4) { choices.number() } else { entries };
    let mut content = [version.to_be_bytes(), count.to_be_bytes()].concat();
    match is_usual {
        true => usual.iter().for_each(|word| content.extend(word.to_be_bytes())),
        false => {
            (0..entries as usize * words)
                .for_each(|_| content.extend(choices.number().to_be_bytes()));
        }
    }
    boxed(kind, &content)
}

/// A movie fragment with runs of samples.
fn fragment(choices: &mut Choices<'_>) -> Vec<u8> {
    let flags = choices.word() & 0x2_003B;
    let track = if choices.happens(30) { 2_u32 } else { 1 };
    let mut tfhd = [flags.to_be_bytes(), track.to_be_bytes()].concat();
    let fields = 2 * (flags & 1) + (flags & 0x3A).count_ones();
    (0..fields).for_each(|_| tfhd.extend(choices.number().to_be_bytes()));
    let mut traf = boxed(b"tfhd", &tfhd);
    if choices.happens(160) {
        traf.extend(boxed(b"tfdt", &[[0; 4], choices.number().to_be_bytes()].concat()));
    }
    for _ in 0..choices.below(4) {
        let flags = choices.word() & 0xF05;
        let samples = if choices.happens(16) { choices.number() } else { choices.below(8) as u32 };
        let mut trun = [flags.to_be_bytes(), samples.to_be_bytes()].concat();
        let fields = (flags & 5).count_ones() + (flags & 0xF00).count_ones() * samples.min(8);
        (0..fields).for_each(|_| trun.extend(choices.number().to_be_bytes()));
        traf.extend(boxed(b"trun", &trun));
    }
    boxed(b"moof", &[boxed(b"mfhd", &[0; 8]), boxed(b"traf", &traf)].concat())
}

fn boxed(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    [&(8 + content.len() as u32).to_be_bytes()[..], kind, content].concat()
}

/// Writes numbers into the fields of a box, from byte `at` on.
fn put(content: &mut [u8], at: usize, numbers: &[u32]) {
    for (place, number) in content[at..].chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_be_bytes());
    }
}
