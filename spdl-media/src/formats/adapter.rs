//! The steps that all codecs except `jpeg` and `turbojpeg` share: parse the header, check limits
//! and region, decode.

use std::fmt::{self, Debug};
use std::marker::PhantomData;

use spdl_core::{Error, ErrorKind, Result};

use crate::image::{
    CHANNELS, DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits, OnTruncated,
    Picture, PixelsMut, Rect, RgbaPicture, SampleDepth, Size,
};

/// A format whose decoder writes rows of RGB. The implementing type holds the scratch memory.
pub(super) trait FormatReader: Default + Send + 'static {
    /// See [`ImageCodec::name`].
    const NAME: &'static str;
    /// A file whose header was parsed.
    type File<'a>;

    /// See [`ImageCodec::sniff`].
    fn sniff(head: &[u8]) -> bool;

    /// Parses the header. The implementation checks the limits before each large allocation; the
    /// caller checks the image size.
    fn open<'a>(encoded: &'a [u8], limits: &Limits) -> Result<(Self::File<'a>, ImageInfo)>;

    /// Parses size and orientation only, if that is cheaper than [`open`](Self::open).
    fn inspect(encoded: &[u8], limits: &Limits) -> Result<ImageInfo> {
        Self::open(encoded, limits).map(|(_, info)| info)
    }

    /// Decodes the region of the request. If the job has an output for [`rgba`](DecodeJob::rgba), and the
    /// image has alpha or more than 8 bits, the pixels are written there instead of `out`.
    fn decode(&mut self, file: Self::File<'_>, job: DecodeJob<'_>) -> Result<Decoded>;

    /// The size of the scratch memory in bytes.
    fn scratch_bytes(&self) -> usize {
        0
    }
}

/// The maximum scratch memory that a decoder keeps between images.
const KEPT_BYTES: usize = 32 << 20;

/// A validated decode request.
pub(super) struct DecodeJob<'a> {
    pub(super) encoded: &'a [u8],
    pub(super) info: ImageInfo,
    pub(super) region: Rect,
    pub(super) on_truncated: OnTruncated,
    /// Whether the whole file must be read.
    pub(super) exact: bool,
    /// The remaining limits after `out` was allocated.
    pub(super) limits: &'a Limits,
    /// The output; it has the size of the region.
    pub(super) out: PixelsMut<'a>,
    /// The output with alpha and up to 16 bits, if it is requested.
    pub(super) rgba: Option<RgbaOut<'a>>,
}

/// An output of red, green, blue and alpha, of the size of the region.
pub(super) struct RgbaOut<'a> {
    pub(super) depth: SampleDepth,
    pixels: &'a mut [[u16; 4]],
    width: usize,
    is_written: &'a mut bool,
}

impl RgbaOut<'_> {
    /// A row of the region, which the caller writes. The other output is then not used.
    pub(super) fn row_mut(&mut self, row: u32) -> &mut [[u16; 4]] {
        *self.is_written = true;
        &mut self.pixels[row as usize * self.width..][..self.width]
    }
}

impl DecodeJob<'_> {
    /// The result for image data that end after `rows` rows because of `error`. If the request
    /// accepts partial results, the missing rows below are black; otherwise the result is `error`.
    /// `out` holds the decoded rows.
    pub(super) fn truncated_after(mut self, rows: u32, error: Error) -> Result<Decoded> {
        let valid = rows.saturating_sub(self.region.top).min(self.region.height);
        if !self.may_be_partial(&error) || valid == 0 {
            return Err(error);
        }
        for row in valid..self.region.height {
            self.out.row_mut(row).fill(0);
        }
        Ok(Decoded::partial(self.region.size(), valid))
    }

    /// Whether the request accepts a partial result after this error.
    pub(super) fn may_be_partial(&self, error: &Error) -> bool {
        self.on_truncated == OnTruncated::Partial && error.kind() == ErrorKind::Truncated
    }

    /// The whole output as one slice, if the region is the whole image and there is no padding.
    pub(super) fn whole_output(&mut self) -> Option<&mut [u8]> {
        let whole = self.region == Rect::full(self.info.size);
        self.out.as_contiguous_mut().filter(|_| whole)
    }

    /// The columns of the region.
    pub(super) fn columns(&self) -> std::ops::Range<usize> {
        self.region.left as usize..(self.region.left + self.region.width) as usize
    }

    /// The complete result.
    pub(super) fn done(&self) -> Decoded {
        Decoded::new(self.region.size())
    }
}

/// The codec of a [`FormatReader`].
pub(super) struct FormatCodec<F>(PhantomData<fn() -> F>);

impl<F> FormatCodec<F> {
    pub(super) const fn new() -> Self {
        FormatCodec(PhantomData)
    }
}

impl<F: FormatReader> Debug for FormatCodec<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FormatCodec({})", F::NAME)
    }
}

impl<F: FormatReader> ImageCodec for FormatCodec<F> {
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

impl<F: FormatReader> FormatDecoder<F> {
    fn check(&self, encoded: &[u8], size: Size) -> Result<()> {
        self.limits.check_size(size)?;
        self.limits.check_ratio(encoded.len(), size)
    }

    fn open<'a>(&self, encoded: &'a [u8], limits: &Limits) -> Result<(F::File<'a>, ImageInfo)> {
        let (file, info) = F::open(encoded, limits).map_err(|error| located(error, encoded))?;
        self.check(encoded, info.size)?;
        Ok((file, info))
    }

    fn decode(&mut self, file: F::File<'_>, job: DecodeJob<'_>) -> Result<Decoded> {
        let encoded = job.encoded;
        let outcome = self.format.decode(file, job).map_err(|error| located(error, encoded));
        if self.format.scratch_bytes() > KEPT_BYTES {
            self.format = F::default();
        }
        outcome
    }
}

/// Adds the file length as the offset of a truncation error that has no offset.
fn located(error: Error, encoded: &[u8]) -> Error {
    match (error.kind(), error.offset()) {
        (ErrorKind::Truncated, None) => error.with_offset(encoded.len() as u64),
        _ => error,
    }
}

/// The size of RGB pixels in bytes.
fn rgb_bytes(size: Size) -> u64 {
    size.pixels().saturating_mul(CHANNELS as u64)
}

impl<F: FormatReader> ImageDecoder for FormatDecoder<F> {
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
        let (limits, rgba) = (&limits, None);
        let job = DecodeJob { encoded, info, region, on_truncated, exact, limits, out, rgba };
        self.decode(file, job)
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
        let (on_truncated, exact, rgba) = (request.truncation(), request.is_exact(), None);
        let job = DecodeJob { encoded, info, region, on_truncated, exact, limits, out, rgba };
        self.decode(file, job)
    }

    fn decode_rgba(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        depth: SampleDepth,
        picture: &mut RgbaPicture,
    ) -> Result<Decoded> {
        let (file, info) = self.open(encoded, &self.limits)?;
        let region = request.region_within(info.size)?;
        let bytes = region.size().pixels().saturating_mul(RgbaPicture::PIXEL_BYTES);
        let limits = &self.limits.after(bytes, info.size)?;
        picture.start(info.size, region)?;
        let (on_truncated, exact) = (request.truncation(), request.is_exact());
        let mut is_written = false;
        let (out, pixels) = picture.targets()?;
        let width = region.width as usize;
        let rgba = Some(RgbaOut { depth, pixels, width, is_written: &mut is_written });
        let job = DecodeJob { encoded, info, region, on_truncated, exact, limits, out, rgba };
        let decoded = self.decode(file, job)?;
        match is_written {
            false => picture.widen_rgb(),
            true => {
                let missing = decoded.rows_valid..region.height;
                missing.for_each(|row| picture.row_mut(row).fill([0, 0, 0, u16::MAX]));
            }
        }
        Ok(decoded)
    }
}

/// Resizes `scratch` to `bytes` bytes, after checking the limits.
pub(super) fn reserve(
    scratch: &mut Vec<u8>,
    bytes: u64,
    limits: &Limits,
    size: Size,
) -> Result<()> {
    limits.check_bytes(bytes, size)?;
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let is_excessive = scratch.capacity() > KEPT_BYTES && scratch.capacity() / 4 > bytes;
    if scratch.capacity() < bytes || is_excessive {
        // Dropping the old buffer before the new one is allocated avoids copying its content.
        *scratch = Vec::new();
        scratch.try_reserve_exact(bytes).map_err(|_| {
            let message = format!("cannot allocate {bytes} bytes for an image");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
    }
    // The initial values do not matter: decoders write every byte or fail.
    scratch.resize(bytes, 0);
    Ok(())
}
