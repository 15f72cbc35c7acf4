//! What codecs around the decoders of other crates have in common: the header is read, the limits
//! are checked, the region is; only then pixels are made.

use std::fmt::{self, Debug};
use std::marker::PhantomData;

use spdl_core::{Error, ErrorKind, Result};

use crate::image::{
    CHANNELS, DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits, OnTruncated,
    Picture, PixelsMut, Rect, Size,
};

/// A format that the decoder of another crate reads. The value is its scratch memory.
pub(super) trait Format: Default + Send + 'static {
    /// See [`ImageCodec::name`].
    const NAME: &'static str;
    /// A file whose header was read.
    type File<'a>;

    /// See [`ImageCodec::sniff`].
    fn sniff(head: &[u8]) -> bool;

    /// Reads the header. It allocates next to nothing, or checks the limits before; the size is
    /// checked against them after.
    fn open<'a>(encoded: &'a [u8], limits: &Limits) -> Result<(Self::File<'a>, ImageInfo)>;

    /// Reads no more than the size and the orientation, where that is less work than
    /// [`open`](Self::open); the size is checked after.
    fn inspect(encoded: &[u8], limits: &Limits) -> Result<ImageInfo> {
        Self::open(encoded, limits).map(|(_, info)| info)
    }

    /// Writes the region of the image.
    fn decode(&mut self, file: Self::File<'_>, job: Job<'_>) -> Result<Decoded>;

    /// The bytes of its scratch memory.
    fn scratch_bytes(&self) -> usize {
        0
    }
}

/// What a decoder keeps of its scratch memory from image to image, at most.
const KEPT_BYTES: usize = 32 << 20;

/// What is to be decoded, checked.
pub(super) struct Job<'a> {
    pub(super) encoded: &'a [u8],
    pub(super) info: ImageInfo,
    pub(super) region: Rect,
    pub(super) on_truncated: OnTruncated,
    /// Whether nothing may be left unread.
    pub(super) exact: bool,
    /// For what is allocated beside `out`, which they count already.
    pub(super) limits: &'a Limits,
    /// As large as the region.
    pub(super) out: PixelsMut<'a>,
}

impl Job<'_> {
    /// The answer where the data of an image ended after `rows` of its rows, for which `error` is
    /// the reason: a part of the region, black below, where that was asked for and there is one.
    /// The rows above are those that `out` holds.
    pub(super) fn ended_after(mut self, rows: u32, error: Error) -> Result<Decoded> {
        let valid = rows.saturating_sub(self.region.top).min(self.region.height);
        if !self.may_be_partial(&error) || valid == 0 {
            return Err(error);
        }
        for row in valid..self.region.height {
            self.out.row_mut(row).fill(0);
        }
        Ok(Decoded::partial(self.region.size(), valid))
    }

    /// Whether the rows before this error are wanted.
    pub(super) fn may_be_partial(&self, error: &Error) -> bool {
        self.on_truncated == OnTruncated::Partial && error.kind() == ErrorKind::Truncated
    }

    /// The whole output as one slice, where the region is the image and no gaps lie between rows.
    pub(super) fn whole_output(&mut self) -> Option<&mut [u8]> {
        let whole = self.region == Rect::full(self.info.size);
        self.out.as_contiguous_mut().filter(|_| whole)
    }

    /// The index of the first and the last pixel, plus 1, that is wanted of a row.
    pub(super) fn columns(&self) -> std::ops::Range<usize> {
        self.region.left as usize..(self.region.left + self.region.width) as usize
    }

    /// Everything was written.
    pub(super) fn done(&self) -> Decoded {
        Decoded::new(self.region.size())
    }
}

/// The codec of a [`Format`].
pub(super) struct FormatCodec<F>(PhantomData<fn() -> F>);

impl<F> FormatCodec<F> {
    pub(super) const fn new() -> Self {
        FormatCodec(PhantomData)
    }
}

impl<F: Format> Debug for FormatCodec<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "codec of {}", F::NAME)
    }
}

impl<F: Format> ImageCodec for FormatCodec<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn sniff(&self, head: &[u8]) -> bool {
        F::sniff(head)
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(FormatDecoder { limits: limits.clone(), format: F::default() }))
    }
}

struct FormatDecoder<F> {
    limits: Limits,
    format: F,
}

impl<F: Format> FormatDecoder<F> {
    fn check(&self, encoded: &[u8], size: Size) -> Result<()> {
        self.limits.check_size(size)?;
        self.limits.check_ratio(encoded.len(), size)
    }

    fn open<'a>(&self, encoded: &'a [u8], limits: &Limits) -> Result<(F::File<'a>, ImageInfo)> {
        let (file, info) = F::open(encoded, limits).map_err(|error| located(error, encoded))?;
        self.check(encoded, info.size)?;
        Ok((file, info))
    }

    fn decode(&mut self, file: F::File<'_>, job: Job<'_>) -> Result<Decoded> {
        let encoded = job.encoded;
        let outcome = self.format.decode(file, job).map_err(|error| located(error, encoded));
        if self.format.scratch_bytes() > KEPT_BYTES {
            self.format = F::default();
        }
        outcome
    }
}

/// An error that says where: data that end early do so at the end of the file, where nothing else
/// is known.
fn located(error: Error, encoded: &[u8]) -> Error {
    match (error.kind(), error.offset()) {
        (ErrorKind::Truncated, None) => error.with_offset(encoded.len() as u64),
        _ => error,
    }
}

/// The bytes of so many pixels as RGB.
fn rgb_bytes(size: Size) -> u64 {
    size.pixels().saturating_mul(CHANNELS as u64)
}

impl<F: Format> ImageDecoder for FormatDecoder<F> {
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        let outcome = F::inspect(encoded, &self.limits);
        let info = outcome.map_err(|error| located(error, encoded))?;
        self.check(encoded, info.size)?;
        Ok(info)
    }

    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let limits = self.limits.after(rgb_bytes(out.size()), out.size())?;
        let (file, info) = self.open(encoded, &limits)?;
        let region = request.checked_region(info.size, &out)?;
        let (on_truncated, exact) = (request.truncation(), request.is_exact());
        let limits = &limits;
        self.decode(file, Job { encoded, info, region, on_truncated, exact, limits, out })
    }

    fn decode_planes(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        picture: &mut Picture,
    ) -> Result<Decoded> {
        let (file, info) = self.open(encoded, &self.limits)?;
        let region = request.region_within(info.size)?;
        let limits = &self.limits.after(rgb_bytes(region.size()), info.size)?;
        picture.start_rgb(info.size, region)?;
        let out = picture.rgb_mut()?;
        let (on_truncated, exact) = (request.truncation(), request.is_exact());
        self.decode(file, Job { encoded, info, region, on_truncated, exact, limits, out })
    }
}

/// Makes `scratch` hold `bytes` bytes for an image of this size, once it is known that they may be
/// used.
pub(super) fn reserve(
    scratch: &mut Vec<u8>,
    bytes: u64,
    limits: &Limits,
    size: Size,
) -> Result<()> {
    limits.check_bytes(bytes, size)?;
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let far_too_large = scratch.capacity() > KEPT_BYTES && scratch.capacity() / 4 > bytes;
    if scratch.capacity() < bytes || far_too_large {
        // Nothing of what is there is needed, so it is not carried along.
        *scratch = Vec::new();
        scratch.try_reserve_exact(bytes).map_err(|_| {
            let message = format!("the system has no {bytes} bytes of memory for an image");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
    }
    // What was there before is as good as zeros: decoders write all of it, or fail.
    scratch.resize(bytes, 0);
    Ok(())
}
