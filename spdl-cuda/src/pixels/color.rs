//! Colour matrices: from Y'CbCr to RGB.

use spdl_core::{Error, ErrorKind, Result};

use super::invalid;

/// The luma coefficients Kr and Kb of a colour standard; Kg = 1 − Kr − Kb.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColorStandard {
    kr: f64,
    kb: f64,
}

impl ColorStandard {
    /// ITU-R BT.601: JPEG and standard-definition video.
    pub const BT601: ColorStandard = ColorStandard { kr: 0.299, kb: 0.114 };
    /// ITU-R BT.709: high-definition video.
    pub const BT709: ColorStandard = ColorStandard { kr: 0.2126, kb: 0.0722 };
    /// ITU-R BT.2020 with non-constant luminance: ultra-high-definition video.
    pub const BT2020: ColorStandard = ColorStandard { kr: 0.2627, kb: 0.0593 };

    /// A standard with these coefficients.
    ///
    /// # Errors
    /// `InvalidArgument` unless `kr`, `kb` and 1 − `kr` − `kb` are positive.
    pub fn new(kr: f64, kb: f64) -> Result<Self> {
        if kr > 0.0 && kb > 0.0 && kr + kb < 1.0 {
            return Ok(ColorStandard { kr, kb });
        }
        Err(invalid(format!(
            "invalid luma coefficients {kr} and {kb}: expected positive numbers with a sum below 1"
        )))
    }

    /// The standard of the `matrix_coefficients` of a video stream (ITU-T H.273).
    ///
    /// # Errors
    /// `Unsupported` for codes without such a matrix (RGB, YCgCo, constant luminance and others),
    /// and for code 2, "unspecified". For code 2 the caller must choose; usual choices are BT.709
    /// for 720 or more rows and BT.601 for fewer rows.
    pub fn of_video(matrix_coefficients: u8) -> Result<Self> {
        match matrix_coefficients {
            1 => Ok(ColorStandard::BT709),
            4 => Ok(ColorStandard { kr: 0.30, kb: 0.11 }),
            5 | 6 => Ok(ColorStandard::BT601),
            7 => Ok(ColorStandard { kr: 0.212, kb: 0.087 }),
            9 => Ok(ColorStandard::BT2020),
            other => {
                let what = match other {
                    0 => "RGB",
                    2 => "unspecified",
                    8 => "YCgCo",
                    10 => "BT.2020 with constant luminance",
                    _ => "unknown",
                };
                let message = format!(
                    "unsupported matrix_coefficients {other} ({what}) of a video: expected 1, 4, 5, 6, 7 or 9"
                );
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

/// The range of the stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColorRange {
    /// Luma 16 to 235 and chroma 16 to 240, times 2^(bits − 8): most video.
    Limited,
    /// All values: JPEG and some video.
    Full,
}

/// The conversion of stored components to RGB values in the range 0 to 255: `matrix · (component −
/// zero)`.
///
/// ```
/// use spdl_cuda::pixels::{ColorMatrix, ColorRange, ColorStandard};
/// let matrix = ColorMatrix::new(ColorStandard::BT709, ColorRange::Limited, 10)?;
/// assert_eq!(matrix.zero(), [64.0, 512.0, 512.0]);
/// // From black to white are 876 codes of luma.
/// assert!((matrix.matrix()[0][0] * 876.0 - 255.0).abs() < 1e-9);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColorMatrix {
    matrix: [[f64; 3]; 3],
    zero: [f64; 3],
    bits: u32,
}

impl ColorMatrix {
    /// The matrix of a standard for components of `bits` bits.
    ///
    /// # Errors
    /// `InvalidArgument` if `bits` is not in 8 to 16.
    pub fn new(standard: ColorStandard, range: ColorRange, bits: u32) -> Result<Self> {
        if !(8..=16).contains(&bits) {
            return Err(invalid(format!("invalid bit depth {bits}: expected 8 to 16")));
        }
        let step = f64::from(1u32 << (bits - 8));
        let codes = f64::from((1u32 << bits) - 1);
        let (luma, chroma, black) = match range {
            ColorRange::Limited => (255.0 / (219.0 * step), 255.0 / (224.0 * step), 16.0 * step),
            ColorRange::Full => (255.0 / codes, 255.0 / codes, 0.0),
        };
        let ColorStandard { kr, kb } = standard;
        let kg = 1.0 - kr - kb;
        let (red, blue) = (2.0 * (1.0 - kr), 2.0 * (1.0 - kb));
        let neutral = 128.0 * step;
        Ok(ColorMatrix {
            matrix: [
                [luma, 0.0, chroma * red],
                [luma, -chroma * blue * kb / kg, -chroma * red * kr / kg],
                [luma, chroma * blue, 0.0],
            ],
            zero: [black, neutral, neutral],
            bits,
        })
    }

    /// The matrix of JPEG: BT.601, full range, 8 bits.
    pub fn jpeg() -> Self {
        let matrix = ColorMatrix::new(ColorStandard::BT601, ColorRange::Full, 8);
        matrix.unwrap_or_else(|_| unreachable!("8 bits are within bounds"))
    }

    /// The identity, for RGB of 8 bits.
    pub(crate) fn rgb() -> Self {
        let matrix = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
        ColorMatrix { matrix, zero: [0.0; 3], bits: 8 }
    }

    /// This matrix, followed by the conversion to BT.601 luma; all three rows of the result are
    /// luma.
    pub(crate) fn grey(&self) -> Self {
        let ColorStandard { kr, kb } = ColorStandard::BT601;
        let [red, green, blue] = self.matrix;
        let luma = std::array::from_fn(|component| {
            kr * red[component] + (1.0 - kr - kb) * green[component] + kb * blue[component]
        });
        ColorMatrix { matrix: [luma; 3], ..*self }
    }

    /// Rows for red, green and blue, with the factors of luma, Cb and Cr.
    pub fn matrix(&self) -> [[f64; 3]; 3] {
        self.matrix
    }

    /// The stored values of black: luma, Cb and Cr.
    pub fn zero(&self) -> [f64; 3] {
        self.zero
    }

    /// Bits per component.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// The same matrix for stored values that are multiplied by `times`.
    pub(crate) fn scaled(&self, times: f64) -> Self {
        ColorMatrix {
            matrix: self.matrix.map(|row| row.map(|factor| factor / times)),
            zero: self.zero.map(|zero| zero * times),
            bits: self.bits,
        }
    }
}
