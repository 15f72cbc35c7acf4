//! The traits of a codec, and the requests and results of a decode.

use std::fmt::Debug;

use spdl_core::{Error, ErrorKind, Result};

use super::geometry::{Orientation, Rect, Size};
use super::limits::Limits;
use super::picture::Picture;
use super::pixels::PixelsMut;
use super::rgba::{RgbaPicture, SampleDepth};

/// The number of leading bytes of a file that [`ImageCodec::sniff`] receives. A shorter file is
/// passed whole.
pub const SNIFF_BYTES: usize = 64;

/// An image format: recognises its files and creates decoders.
///
/// All workers share one instance. A codec may own a device or a thread pool.
pub trait ImageCodec: Debug + Send + Sync + 'static {
    /// The short name of the format, as in error messages: `jpeg`.
    fn name(&self) -> &'static str;

    /// Whether a file with these first bytes (at most [`SNIFF_BYTES`]) has this format.
    fn sniff(&self, head: &[u8]) -> bool;

    /// Creates a decoder. Each [`Decoder`](crate::Decoder) calls this method for its first image of
    /// the format, and again after an error of this method or a panic.
    ///
    /// # Errors
    /// Any failure to create the decoder, such as a missing device.
    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>>;
}

/// Decodes images in one worker, and keeps scratch memory between images.
///
/// Calls are independent; each one receives the whole file. For any input, a decoder returns pixels
/// or one of these errors: `Truncated` if the data end early, `Corrupt` if they violate the format,
/// `Unsupported`, `LimitExceeded`. A decoder invents no missing pixels, except the black rows of
/// [`OnTruncated::Partial`]. [`Decoder`](crate::Decoder) catches panics and creates a new decoder.
pub trait ImageDecoder: Send {
    /// Parses the header only.
    ///
    /// # Errors
    /// The errors that the trait lists. The limits apply to the header as well.
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo>;

    /// Decodes into `out` the part of the image that `request` selects. The orientation is not
    /// applied.
    ///
    /// Truncation is detected for every region. Other corruption outside the region may go
    /// unnoticed, unless the request is [`exact`](DecodeRequest::exact). After an error, the
    /// content of `out` is unspecified.
    ///
    /// # Errors
    /// The errors that the trait lists. `InvalidArgument` if the region is not inside the image, or
    /// `out` has another size than the region.
    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        out: PixelsMut<'_>,
    ) -> Result<Decoded>;

    /// Decodes into `picture` the part of the image that `request` selects, as the planes that are
    /// cheapest to produce.
    ///
    /// The caller resizes the planes before converting them to RGB. The picture holds the region,
    /// and possibly pixels around it. With [`DecodeRequest::at_least`], the picture may be smaller
    /// by a factor of 2, 4 or 8. The default implementation decodes to RGB.
    ///
    /// # Errors
    /// The errors that the trait lists. `InvalidArgument` if the region is not inside the image.
    fn decode_planes(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        picture: &mut Picture,
    ) -> Result<Decoded> {
        let image = self.inspect(encoded)?.size;
        let region = request.region_within(image)?;
        picture.start_rgb(image, region)?;
        let request = DecodeRequest { smallest: None, ..*request };
        self.decode_into(encoded, &request, picture.rgb_mut()?)
    }

    /// Decodes into `picture` the part of the image that `request` selects, with alpha if the image has
    /// it, and with `depth` bits. The result has full size.
    ///
    /// With [`SampleDepth::Eight`], red, green and blue are those of [`decode_into`](Self::decode_into).
    /// The default implementation decodes to RGB, without alpha and with 8 bits. Missing rows of
    /// [`OnTruncated::Partial`] are opaque black.
    ///
    /// # Errors
    /// The errors that the trait lists. `InvalidArgument` if the region is not inside the image.
    fn decode_rgba(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        depth: SampleDepth,
        picture: &mut RgbaPicture,
    ) -> Result<Decoded> {
        let _ = depth;
        let image = self.inspect(encoded)?.size;
        picture.start(image, request.region_within(image)?)?;
        let request = DecodeRequest { smallest: None, ..*request };
        picture.write_rgb(|out| self.decode_into(encoded, &request, out))
    }
}

/// Default of [`ImageInfo::working_bytes`] per pixel, which is enough for all formats of this crate.
const DEFAULT_WORKING_BYTES: u64 = 14;

/// Size, orientation and needed memory from the header of an image. Comparisons ignore the memory.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct ImageInfo {
    /// Width and height as stored.
    pub size: Size,
    /// The EXIF orientation.
    pub orientation: Orientation,
    /// An estimate of the memory in bytes that a decode takes: planes and scratch memory, without
    /// the encoded file and the buffer of the caller. Default: 14 bytes per pixel.
    pub working_bytes: u64,
}

impl PartialEq for ImageInfo {
    fn eq(&self, other: &Self) -> bool {
        (self.size, self.orientation) == (other.size, other.orientation)
    }
}

impl Eq for ImageInfo {}

impl ImageInfo {
    /// An image of this stored size and orientation.
    pub fn new(size: Size, orientation: Orientation) -> Self {
        let working_bytes = size.pixels().saturating_mul(DEFAULT_WORKING_BYTES);
        ImageInfo { size, orientation, working_bytes }
    }

    /// Sets the estimate of the memory in bytes that a decode takes.
    #[must_use]
    pub fn with_working_bytes(mut self, bytes: u64) -> Self {
        self.working_bytes = bytes;
        self
    }

    /// Width and height of the upright image.
    pub fn upright_size(&self) -> Size {
        self.orientation.apply(self.size)
    }
}

/// Options of one decode. Default: the whole image at full size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeRequest {
    region: Option<Rect>,
    smallest: Option<Size>,
    on_truncated: OnTruncated,
    exact: bool,
}

/// What to do with a truncated image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnTruncated {
    /// Fail with an error of the kind `Truncated`.
    #[default]
    Error,
    /// Return the decoded rows and fill the missing rows with black; [`Decoded::rows_valid`] is the
    /// number of decoded rows. Fail if no row can be decoded, or if the codec does not support
    /// partial images.
    Partial,
}

impl DecodeRequest {
    /// The whole image at full size.
    pub fn full() -> Self {
        DecodeRequest::default()
    }

    /// Selects a region of the stored image. Every decoder supports regions; some decode only the
    /// region, which is faster.
    #[must_use]
    pub fn region(mut self, region: Rect) -> Self {
        self.region = Some(region);
        self
    }

    /// Allows a result that is smaller by a factor of 2, 4 or 8, but not smaller than this size. A
    /// decoder may ignore the option, and [`exact`](Self::exact) overrides it; [`Decoded`] has the
    /// actual size.
    #[must_use]
    pub fn at_least(mut self, smallest: Size) -> Self {
        self.smallest = Some(smallest);
        self
    }

    /// What to do with a truncated image. Default: [`OnTruncated::Error`].
    #[must_use]
    pub fn on_truncated(mut self, on_truncated: OnTruncated) -> Self {
        self.on_truncated = on_truncated;
        self
    }

    /// Requires the pixels and the errors of a full decode: no smaller result, and the whole file
    /// is read. Default: no.
    #[must_use]
    pub fn exact(mut self, exact: bool) -> Self {
        self.exact = exact;
        self
    }

    /// What to do with a truncated image.
    pub fn truncation(&self) -> OnTruncated {
        self.on_truncated
    }

    /// Whether the result must equal a full decode.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// The requested region of a stored image of this size.
    pub fn region_of(&self, size: Size) -> Rect {
        self.region.unwrap_or(Rect::full(size))
    }

    /// The requested region, checked to be inside the image.
    ///
    /// # Errors
    /// `InvalidArgument` if the region is not inside the image.
    pub fn region_within(&self, size: Size) -> Result<Rect> {
        let region = self.region_of(size);
        if !region.is_within(size) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("region {region:?} is not inside the image of {size} pixels"),
            ));
        }
        Ok(region)
    }

    /// The minimum size of a reduced result; `None` if the result must have full size.
    pub fn smallest(&self) -> Option<Size> {
        self.smallest.filter(|_| !self.exact)
    }

    /// The requested region, checked to be inside the image and to have the size of `out`.
    ///
    /// # Errors
    /// `InvalidArgument` if the region is not inside the image, or `out` has another size.
    pub fn checked_region(&self, size: Size, out: &PixelsMut<'_>) -> Result<Rect> {
        let region = self.region_within(size)?;
        if out.size() != region.size() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "output of {} pixels does not match the region of {} pixels",
                    out.size(),
                    region.size()
                ),
            ));
        }
        Ok(region)
    }
}

/// The outcome of a decode.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The size of the result, at the top left of the output: the size of the region, or smaller by
    /// a factor of 2, 4 or 8 with [`DecodeRequest::at_least`].
    pub size: Size,
    /// The number of leading rows that were decoded. Less than the height of `size` only with
    /// [`OnTruncated::Partial`].
    pub rows_valid: u32,
}

impl Decoded {
    /// A complete result of this size.
    pub fn new(size: Size) -> Self {
        Decoded { size, rows_valid: size.height }
    }

    /// A result with `rows_valid` decoded rows.
    pub fn partial(size: Size, rows_valid: u32) -> Self {
        Decoded { size, rows_valid }
    }
}
