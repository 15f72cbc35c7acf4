//! The contract of a codec: who knows a format, and who decodes it in a worker.

use std::fmt::Debug;

use spdl_core::{Error, ErrorKind, Result};

use super::geometry::{Orientation, Rect, Size};
use super::limits::Limits;
use super::picture::Picture;
use super::pixels::PixelsMut;

/// How many bytes of a file [`ImageCodec::sniff`] is shown, or fewer where the file is shorter.
pub const SNIFF_BYTES: usize = 64;

/// A format: recognises its files and makes decoders. One instance is shared by all workers; it
/// may carry a device or a pool.
pub trait ImageCodec: Debug + Send + Sync + 'static {
    /// The format's short name, as it appears in messages: `jpeg`.
    fn name(&self) -> &'static str;

    /// Whether a file that starts like this (its first [`SNIFF_BYTES`] bytes) is of this format.
    fn sniff(&self, head: &[u8]) -> bool;

    /// Makes a decoder. Called once per worker, and again after a panic.
    ///
    /// # Errors
    /// Whatever keeps the decoder from being made: a device that is not there, say.
    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>>;
}

/// Decodes images one after another in one worker, and keeps its scratch memory between them.
///
/// No call depends on an earlier one: each is given the whole file. Whatever the bytes are, a
/// decoder answers with pixels or a typed error: `Truncated` where the data end early, `Corrupt`
/// where they contradict their format, `Unsupported`, or `LimitExceeded`; never with pixels made
/// up for missing data. A panic is caught by [`Decoder`](crate::Decoder), which then makes a new
/// one of these.
pub trait ImageDecoder: Send {
    /// Reads the header alone.
    ///
    /// # Errors
    /// As above; the limits hold already here.
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo>;

    /// Writes what `request` asks for into `out`, as stored (the orientation is not applied), and
    /// says what it wrote. Whether a file is cut off never depends on the region; other damage that
    /// the region does not need may go unnoticed, except where the request is
    /// [`exact`](DecodeRequest::exact). After an error `out` holds anything.
    ///
    /// # Errors
    /// As above; `InvalidArgument` where the region is not inside the image or `out` has another
    /// size than the region.
    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        out: PixelsMut<'_>,
    ) -> Result<Decoded>;

    /// Writes what `request` asks for into `picture`, in whatever planes cost least: they are
    /// resized, and turned into RGB only then. The picture holds the region, and may hold more
    /// around it; smaller by 2, 4 or 8 where [`DecodeRequest::at_least`] allowed that.
    ///
    /// What is there by default decodes to RGB.
    ///
    /// # Errors
    /// As [`decode_into`](Self::decode_into).
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
}

/// What a header tells.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Width and height as stored.
    pub size: Size,
    /// How to turn it upright.
    pub orientation: Orientation,
}

impl ImageInfo {
    /// An image of this stored size and orientation.
    pub fn new(size: Size, orientation: Orientation) -> Self {
        ImageInfo { size, orientation }
    }

    /// Width and height once upright.
    pub fn upright_size(&self) -> Size {
        self.orientation.apply(self.size)
    }
}

/// What a decoder is asked for. The default is the whole image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeRequest {
    region: Option<Rect>,
    smallest: Option<Size>,
    on_truncated: OnTruncated,
    exact: bool,
}

/// What becomes of an image whose data end early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnTruncated {
    /// It is an error of the kind `Truncated`.
    #[default]
    Error,
    /// The rows that could be decoded are delivered, those below are black, and
    /// [`Decoded::rows_valid`] tells how many those are; an error where there is none.
    Partial,
}

impl DecodeRequest {
    /// The whole image at full size.
    pub fn full() -> Self {
        DecodeRequest::default()
    }

    /// Asks for this part of the stored image alone. Every decoder honours it; some are faster so.
    #[must_use]
    pub fn region(mut self, region: Rect) -> Self {
        self.region = Some(region);
        self
    }

    /// Allows a result that is smaller by 2, 4 or 8, as long as it is not smaller than this. A
    /// decoder may ignore it, and says in [`Decoded`] what it did.
    #[must_use]
    pub fn at_least(mut self, smallest: Size) -> Self {
        self.smallest = Some(smallest);
        self
    }

    /// What becomes of data that end early. Default: an error.
    #[must_use]
    pub fn on_truncated(mut self, on_truncated: OnTruncated) -> Self {
        self.on_truncated = on_truncated;
        self
    }

    /// Asks for every pixel as decoding the whole file gives it, and for every error that this
    /// finds: no smaller result, and nothing of the file left unread. Default: no.
    #[must_use]
    pub fn exact(mut self, exact: bool) -> Self {
        self.exact = exact;
        self
    }

    /// What becomes of data that end early.
    pub fn truncation(&self) -> OnTruncated {
        self.on_truncated
    }

    /// Whether the whole file is to be read, and nothing left out.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// The part of a stored image of this size that is asked for.
    pub fn region_of(&self, size: Size) -> Rect {
        self.region.unwrap_or(Rect::full(size))
    }

    /// The same, once it is known to lie in the image.
    ///
    /// # Errors
    /// `InvalidArgument` where it does not.
    pub fn region_within(&self, size: Size) -> Result<Rect> {
        let region = self.region_of(size);
        if !region.is_within(size) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the region {region:?} is not inside an image of {size} pixels"),
            ));
        }
        Ok(region)
    }

    /// The smallest result that would do; `None` where it must be of full size.
    pub fn smallest(&self) -> Option<Size> {
        self.smallest.filter(|_| !self.exact)
    }

    /// The region, once it is known to lie in the image and to fit `out`.
    ///
    /// # Errors
    /// `InvalidArgument` where it does not.
    pub fn checked_region(&self, size: Size, out: &PixelsMut<'_>) -> Result<Rect> {
        let region = self.region_within(size)?;
        if out.size() != region.size() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("room for {} pixels was expected, found {}", region.size(), out.size()),
            ));
        }
        Ok(region)
    }
}

/// What a decoder wrote.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The size of the result, at the upper left of the output: the region's, or smaller by 2, 4
    /// or 8 where [`DecodeRequest::at_least`] allowed that.
    pub size: Size,
    /// How many rows of it, from the top, hold what the file says: all of them, except with
    /// [`OnTruncated::Partial`].
    pub rows_valid: u32,
}

impl Decoded {
    /// A whole result of this size.
    pub fn new(size: Size) -> Self {
        Decoded { size, rows_valid: size.height }
    }

    /// A result of which only the first rows could be decoded.
    pub fn partial(size: Size, rows_valid: u32) -> Self {
        Decoded { size, rows_valid }
    }
}
