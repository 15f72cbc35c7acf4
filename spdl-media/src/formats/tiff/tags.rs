//! Tag numbers and tag values.

/// The tags that decoding needs, with the names of TIFF 6.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Tag {
    ImageWidth = 256,
    ImageLength = 257,
    BitsPerSample = 258,
    Compression = 259,
    PhotometricInterpretation = 262,
    FillOrder = 266,
    StripOffsets = 273,
    Orientation = 274,
    SamplesPerPixel = 277,
    RowsPerStrip = 278,
    StripByteCounts = 279,
    PlanarConfiguration = 284,
    T4Options = 292,
    Predictor = 317,
    ColorMap = 320,
    TileWidth = 322,
    TileLength = 323,
    TileOffsets = 324,
    TileByteCounts = 325,
    #[cfg(feature = "jpeg")]
    InkSet = 332,
    ExtraSamples = 338,
    SampleFormat = 339,
    #[cfg(feature = "jpeg")]
    JpegTables = 347,
    JpegInterchangeFormat = 513,
    #[cfg(feature = "jpeg")]
    JpegInterchangeFormatLength = 514,
    YCbCrCoefficients = 529,
    YCbCrSubSampling = 530,
    ReferenceBlackWhite = 532,
}

/// Values of the tag `PhotometricInterpretation`.
pub(super) const WHITE_IS_ZERO: u64 = 0;
pub(super) const BLACK_IS_ZERO: u64 = 1;
pub(super) const RGB: u64 = 2;
pub(super) const PALETTE: u64 = 3;
/// Separated inks: CMYK unless the tag `InkSet` differs.
pub(super) const SEPARATED: u64 = 5;
pub(super) const YCBCR: u64 = 6;
/// Values of the tag `ExtraSamples`: premultiplied alpha, and alpha.
pub(super) const ASSOCIATED_ALPHA: u64 = 1;
pub(super) const UNASSOCIATED_ALPHA: u64 = 2;
/// Values of the tag `SampleFormat`.
pub(super) const UNSIGNED: u64 = 1;
pub(super) const SIGNED: u64 = 2;
pub(super) const FLOAT: u64 = 3;
