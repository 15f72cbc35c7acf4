//! Tag numbers and tag values.

/// The field type LONG: 32-bit unsigned integers.
pub(super) const LONG: u64 = 4;
/// Values of the tag `PhotometricInterpretation`.
pub(super) const WHITE_IS_ZERO: u64 = 0;
pub(super) const BLACK_IS_ZERO: u64 = 1;
#[cfg(feature = "jpeg")]
pub(super) const RGB: u64 = 2;
pub(super) const PALETTE: u64 = 3;
/// Separated inks: CMYK unless the tag `InkSet` differs.
#[cfg(feature = "jpeg")]
pub(super) const SEPARATED: u64 = 5;
pub(super) const YCBCR: u64 = 6;
/// Tags without a name in the crate.
pub(super) const T4_OPTIONS: u16 = 292;
#[cfg(feature = "jpeg")]
pub(super) const INK_SET: u16 = 332;
pub(super) const JPEG_START: u16 = 513;
#[cfg(feature = "jpeg")]
pub(super) const JPEG_LENGTH: u16 = 514;
pub(super) const LUMA_COEFFICIENTS: u16 = 529;
pub(super) const REFERENCE_BLACK_WHITE: u16 = 532;
/// `ExtraSamples` value for premultiplied alpha.
pub(super) const ASSOCIATED_ALPHA: u16 = 1;
