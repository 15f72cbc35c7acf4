//! Generated images.

use spdl_cuda::pixels::{
    ColorMatrix, ColorRange, ColorStandard, DevicePlane, PixelFormat, SourceImage,
};

use crate::host::Memory;

/// The colours of a picture with luma and chroma.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Colors {
    pub(crate) kr: f64,
    pub(crate) kb: f64,
    pub(crate) range: ColorRange,
}

pub(crate) const BT601: (f64, f64) = (0.299, 0.114);
pub(crate) const BT709: (f64, f64) = (0.2126, 0.0722);
pub(crate) const BT2020: (f64, f64) = (0.2627, 0.0593);

impl Colors {
    pub(crate) const JPEG: Colors = Colors { kr: BT601.0, kb: BT601.1, range: ColorRange::Full };
    pub(crate) const VIDEO: Colors =
        Colors { kr: BT709.0, kb: BT709.1, range: ColorRange::Limited };
}

/// The samples of a component in row-major order.
#[derive(Clone, Debug)]
pub(crate) struct Samples {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) values: Vec<u16>,
}

/// An image and its components.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) format: PixelFormat,
    pub(crate) bits: u32,
    pub(crate) colors: Colors,
    pub(crate) components: [Samples; 3],
}

/// A pseudo-random number, as in `make_golden.py`.
pub(crate) fn noise(x: u32, y: u32, component: u32) -> u32 {
    let mut hash = x
        .wrapping_mul(1_103_515_245)
        .wrapping_add(y.wrapping_mul(2_654_435_761))
        .wrapping_add(component.wrapping_mul(40_503));
    for _ in 0..2 {
        hash = (hash ^ (hash >> 15)).wrapping_mul(2_246_822_519);
    }
    hash ^ (hash >> 13)
}

impl Picture {
    /// A picture of noise, half of it black and white.
    pub(crate) fn noise(
        format: PixelFormat,
        width: u32,
        height: u32,
        bits: u32,
        colors: Colors,
    ) -> Self {
        Picture::new(format, width, height, bits, colors, |component, x, y| {
            let hash = noise(x, y, component);
            let value = hash >> (32 - bits);
            if hash & 1 == 0 { value } else { (hash >> 1 & 1) * ((1 << bits) - 1) }
        })
    }

    /// A picture with the samples `sample(component, x, y)`.
    pub(crate) fn new(
        format: PixelFormat,
        width: u32,
        height: u32,
        bits: u32,
        colors: Colors,
        sample: impl Fn(u32, u32, u32) -> u32,
    ) -> Self {
        let components = [0, 1, 2].map(|component| {
            let is_halved = component > 0 && format.is_subsampled();
            let pixels = if is_halved { 2 } else { 1 };
            let (width, height) = (width.div_ceil(pixels), height.div_ceil(pixels));
            let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
            Samples {
                width: width as usize,
                height: height as usize,
                values: places.map(|(x, y)| sample(component, x, y) as u16).collect(),
            }
        });
        Picture { format, bits, colors, components }
    }

    pub(crate) fn width(&self) -> u32 {
        self.components[0].width as u32
    }

    pub(crate) fn height(&self) -> u32 {
        self.components[0].height as u32
    }

    pub(crate) fn matrix(&self) -> ColorMatrix {
        let Colors { kr, kb, range } = self.colors;
        ColorMatrix::new(ColorStandard::new(kr, kb).unwrap(), range, self.bits).unwrap()
    }

    /// Copies the planes into memory, with padding between rows but not after the last row.
    pub(crate) fn upload(&self, memory: &mut Memory) -> SourceImage {
        let [first, second, third] = &self.components;
        let planes = match self.format {
            PixelFormat::Rgb8 => vec![self.plane(&[first, second, third])],
            PixelFormat::Nv12 | PixelFormat::P016 => {
                vec![self.plane(&[first]), self.plane(&[second, third])]
            }
            _ => vec![self.plane(&[first]), self.plane(&[second]), self.plane(&[third])],
        };
        let planes: Vec<DevicePlane> = planes
            .into_iter()
            .map(|(bytes, pitch)| DevicePlane { address: memory.add(bytes), pitch })
            .collect();
        let (width, height) = (self.width(), self.height());
        match self.format {
            PixelFormat::Rgb8 => SourceImage::rgb8(width, height, planes[0]),
            format => SourceImage::yuv(format, width, height, &planes, self.matrix()),
        }
        .unwrap()
    }

    /// The bytes of a plane of interleaved components, and its pitch.
    fn plane(&self, components: &[&Samples]) -> (Vec<u8>, u64) {
        let Samples { width, height, .. } = *components[0];
        let mut bytes = Vec::new();
        let mut pitch = 0;
        for y in 0..height {
            for x in 0..width {
                for component in components {
                    let value = component.values[y * width + x];
                    if self.format.sample_bytes() == 2 {
                        bytes.extend((value << (16 - self.bits)).to_ne_bytes());
                    } else {
                        bytes.push(value as u8);
                    }
                }
            }
            if y == 0 {
                pitch = bytes.len() + 6;
            }
            if y + 1 < height {
                bytes.resize((y + 1) * pitch, 0xEE);
            }
        }
        (bytes, pitch as u64)
    }
}
