//! Packets that the nvcuvid stub executes: see `stub/nvcuvid.c`.

/// The sequence header of a video, which the parser reports. A packet.
#[derive(Clone, Copy)]
pub(crate) struct Headers {
    pub(crate) codec: i32,
    pub(crate) chroma: i32,
    pub(crate) bits: u8,
    pub(crate) surfaces: u8,
    pub(crate) coded: (u32, u32),
    pub(crate) area: [i32; 4],
    pub(crate) signal: u8,
    pub(crate) matrix: u8,
}

/// Codes of `cudaVideoCodec`.
pub(crate) const H264: i32 = 4;
pub(crate) const HEVC: i32 = 8;
pub(crate) const VP9: i32 = 10;

impl Headers {
    /// A video of 4:2:0 with 8 bits.
    pub(crate) fn of(codec: i32, width: u32, height: u32) -> Headers {
        Headers {
            codec,
            chroma: 1,
            bits: 8,
            surfaces: 4,
            coded: (width, height),
            area: [0, 0, width as i32, height as i32],
            signal: 5,
            matrix: 6,
        }
    }

    pub(crate) fn packet(&self) -> Vec<u8> {
        let depth = self.bits.wrapping_sub(8);
        let mut bytes = vec![b'S'];
        bytes.extend(self.codec.to_ne_bytes());
        bytes.extend([30_u32, 1].iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend([1, depth, depth, self.surfaces]);
        bytes.extend([self.coded.0, self.coded.1].iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend(self.area.iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend(self.chroma.to_ne_bytes());
        bytes.extend([0; 12]);
        bytes.extend([self.signal, 1, 1, self.matrix]);
        bytes.extend([0; 4]);
        bytes
    }
}

/// Decodes picture `index`, with the status of success.
pub(crate) fn decode(index: u8) -> Vec<u8> {
    vec![b'D', index, 2]
}

pub(crate) fn show(index: u8) -> Vec<u8> {
    vec![b'P', index]
}

/// A short video: a header, and pictures that are displayed immediately after decoding.
pub(crate) fn short_video(headers: Headers, pictures: u8) -> Vec<Vec<u8>> {
    let shown = (0..pictures).map(|index| [decode(index % 8), show(index % 8)].concat());
    std::iter::once(headers.packet()).chain(shown).collect()
}
