//! The expected samples, computed in `f64` by the definitions, independently of `spdl-media`.

use spdl_cuda::kernels::ResizePlan;
use spdl_cuda::pixels::{ChromaSiting, ColorRange, PixelFormat};

use crate::picture::{Picture, Samples};
use spdl_media::image::CropBox;
use spdl_media::{Rect, ResizeFilter, Size};

/// A crop and its target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) source: CropBox,
    pub(crate) bounds: Option<Rect>,
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) filter: ResizeFilter,
    pub(crate) siting: ChromaSiting,
}

impl Case {
    /// The whole picture, resized to this size.
    pub(crate) fn whole(picture: &Picture, width: u32, height: u32, filter: ResizeFilter) -> Self {
        let source = CropBox {
            left: 0.0,
            top: 0.0,
            width: picture.width().into(),
            height: picture.height().into(),
        };
        let siting = match picture.format {
            PixelFormat::Yuv420 => ChromaSiting::Center,
            _ => ChromaSiting::Left,
        };
        Case { source, bounds: None, width, height, filter, siting }
    }

    pub(crate) fn plan(&self) -> ResizePlan {
        let plan =
            ResizePlan::new(self.source, Size::new(self.width, self.height)).filter(self.filter);
        match self.bounds {
            Some(bounds) => plan.bounds(bounds),
            None => plan,
        }
    }

    /// The nearest RGB bytes, ties up, in exact integer arithmetic. Only without resizing.
    pub(crate) fn nearest_bytes(&self, picture: &Picture) -> Vec<[u8; 3]> {
        let [first, second, third] = [0, 1, 2].map(|at| self.component(picture, at, false));
        let pixels = first.into_iter().zip(second).zip(third);
        pixels.map(|((a, b), c)| nearest_bytes_of(picture, [a, b, c])).collect()
    }

    /// RGB of each pixel, not clamped to 0 to 255. If `clamp`, components are clamped to the range of
    /// samples between the two passes.
    pub(crate) fn colors(&self, picture: &Picture, clamp: bool) -> Vec<[f64; 3]> {
        let [first, second, third] = [0, 1, 2].map(|at| self.component(picture, at, clamp));
        let pixels = first.into_iter().zip(second).zip(third);
        pixels.map(|((a, b), c)| rgb_of(picture, [a, b, c])).collect()
    }

    fn component(&self, picture: &Picture, component: usize, clamp: bool) -> Vec<f64> {
        let samples = &picture.components[component];
        let halved = component > 0 && picture.format.is_subsampled();
        let (across, down) = match self.siting {
            ChromaSiting::Center => (false, false),
            ChromaSiting::Left => (true, false),
            ChromaSiting::TopLeft => (true, true),
        };
        let CropBox { left, top, width, height } = self.source;
        let bounds = self.bounds;
        let x = Positions {
            source: (left, width),
            bounds: bounds.map(|b| (b.left, b.width)),
            pixels: picture.width(),
            halved,
            cosited: across,
            target: self.width,
            filter: self.filter,
        };
        let y = Positions {
            source: (top, height),
            bounds: bounds.map(|b| (b.top, b.height)),
            pixels: picture.height(),
            halved,
            cosited: down,
            target: self.height,
            filter: self.filter,
        };
        let largest = f64::from((1u32 << picture.bits) - 1);
        let columns: Vec<_> = (0..self.width).map(|at| x.weights(at)).collect();
        let Samples { width, height, values } = samples;
        let row = |row: usize, (first, weights): &(usize, Vec<f64>)| -> f64 {
            assert!(first + weights.len() <= *width);
            let values = &values[row * width + first..];
            let sum = weights.iter().zip(values).map(|(w, v)| w * f64::from(*v)).sum::<f64>();
            if clamp { sum.clamp(0.0, largest) } else { sum }
        };
        let between: Vec<Vec<f64>> =
            (0..*height).map(|at| columns.iter().map(|column| row(at, column)).collect()).collect();
        let mut result = Vec::new();
        for at in 0..self.height {
            let (first, weights) = y.weights(at);
            for column in 0..self.width as usize {
                let rows = weights.iter().zip(&between[first..]);
                result.push(rows.map(|(weight, row)| weight * row[column]).sum());
            }
        }
        result
    }
}

/// An axis of a component.
struct Positions {
    /// Start and extent of the source in pixels.
    source: (f64, f64),
    bounds: Option<(u32, u32)>,
    pixels: u32,
    halved: bool,
    /// Whether a chroma sample is sited on the first of its two pixels, not between them.
    cosited: bool,
    target: u32,
    filter: ResizeFilter,
}

impl Positions {
    /// The centre of a sample in pixels.
    fn center(&self, sample: u32) -> f64 {
        match (self.halved, self.cosited) {
            (false, _) => f64::from(sample) + 0.5,
            (true, false) => 2.0 * f64::from(sample) + 1.0,
            (true, true) => 2.0 * f64::from(sample) + 0.5,
        }
    }

    /// The first sample of a target position, and the weights of the samples from there on.
    fn weights(&self, at: u32) -> (usize, Vec<f64>) {
        let (start, extent) = self.source;
        let center = start + (f64::from(at) + 0.5) * extent / f64::from(self.target);
        let pixels = if self.halved { 2.0 } else { 1.0 };
        let scale = (extent / f64::from(self.target)).max(pixels);
        let (from, count) = self.bounds.unwrap_or_else(|| {
            let first = start.floor().max(0.0);
            let end = (start + extent).ceil().min(self.pixels.into());
            (first as u32, (end - first) as u32)
        });
        let step = pixels as u32;
        let weight = |sample: u32| {
            let x = ((self.center(sample) - center) / scale).abs();
            match self.filter {
                ResizeFilter::Bilinear => (1.0 - x).max(0.0),
                ResizeFilter::Bicubic if x < 1.0 => 1.5 * x.powi(3) - 2.5 * x.powi(2) + 1.0,
                ResizeFilter::Bicubic if x < 2.0 => {
                    -0.5 * x.powi(3) + 2.5 * x.powi(2) - 4.0 * x + 2.0
                }
                _ => 0.0,
            }
        };
        let seen = from / step..(from + count).div_ceil(step);
        // Samples with a weight are contiguous.
        let first = seen.clone().find(|&sample| weight(sample) != 0.0).unwrap_or(seen.start);
        let near = |sample: &u32| (self.center(*sample) - center).abs() < 2.0 * scale;
        let weights: Vec<f64> = (first..seen.end).take_while(near).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        if sum <= 0.0 {
            // Outside the image: the nearest sample.
            let nearest = if self.center(seen.start) > center { seen.start } else { seen.end - 1 };
            return (nearest as usize, vec![1.0]);
        }
        (first as usize, weights.into_iter().map(|weight| weight / sum).collect())
    }
}

/// RGB by the definition of luma and colour differences.
fn rgb_of(picture: &Picture, components: [f64; 3]) -> [f64; 3] {
    if picture.format == PixelFormat::Rgb8 {
        return components;
    }
    let step = f64::from(1u32 << (picture.bits - 8));
    let codes = f64::from((1u32 << picture.bits) - 1);
    let [y, cb, cr] = components;
    let (cb, cr) = (cb - 128.0 * step, cr - 128.0 * step);
    let (y, cb, cr) = match picture.colors.range {
        ColorRange::Limited => {
            ((y - 16.0 * step) / (219.0 * step), cb / (224.0 * step), cr / (224.0 * step))
        }
        ColorRange::Full => (y / codes, cb / codes, cr / codes),
    };
    let (kr, kb) = (picture.colors.kr, picture.colors.kb);
    let red = y + 2.0 * (1.0 - kr) * cr;
    let blue = y + 2.0 * (1.0 - kb) * cb;
    let green = (y - kr * red - kb * blue) / (1.0 - kr - kb);
    [red, green, blue].map(|value| value * 255.0)
}

/// The nearest bytes, in integer arithmetic.
fn nearest_bytes_of(picture: &Picture, components: [f64; 3]) -> [u8; 3] {
    if picture.format == PixelFormat::Rgb8 {
        return components.map(|value| value as u8);
    }
    // Chroma interpolated between four samples is a multiple of 1/16.
    const PARTS: i128 = 16;
    let step = 1i128 << (picture.bits - 8);
    let [y, cb, cr] = components.map(|value| {
        let parts = value * PARTS as f64;
        assert!((parts - parts.round()).abs() < 1e-6, "{value}");
        parts.round() as i128
    });
    let (black, luma, chroma) = match picture.colors.range {
        ColorRange::Limited => (16 * step, 219 * step, 224 * step),
        ColorRange::Full => (0, 256 * step - 1, 256 * step - 1),
    };
    let (y, cb, cr) = (y - PARTS * black, cb - PARTS * 128 * step, cr - PARTS * 128 * step);
    // Luma coefficients in ten-thousandths.
    const WHOLE: i128 = 10_000;
    let share = |share: f64| (share * WHOLE as f64).round() as i128;
    let (kr, kb) = (share(picture.colors.kr), share(picture.colors.kb));
    let kg = WHOLE - kr - kb;
    let y = y * chroma * WHOLE * kg;
    let (cb, cr) = (2 * (WHOLE - kb) * luma * cb, 2 * (WHOLE - kr) * luma * cr);
    let divisor = PARTS * luma * chroma * WHOLE * kg;
    [y + cr * kg, y - cb * kb - cr * kr, y + cb * kg].map(|sum| {
        let nearest = (2 * 255 * sum + divisor).div_euclid(2 * divisor);
        nearest.clamp(0, 255) as u8
    })
}
