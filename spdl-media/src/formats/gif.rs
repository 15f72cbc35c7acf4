//! GIF through the `gif` crate: the first frame on its screen.

use std::io::Cursor;

use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};
use spdl_core::{Error, ErrorKind, Result};

use super::failure;
use crate::pixels::CHANNELS;
use crate::{
    DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits, Orientation, PixelsMut,
    Size,
};

const NAME: &str = "gif";

/// GIF, the first frame.
#[derive(Debug)]
pub(crate) struct GifCodec;

impl ImageCodec for GifCodec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(b"GIF87a") || head.starts_with(b"GIF89a")
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(GifDecoder { limits: limits.clone(), scratch: Vec::new() }))
    }
}

struct GifDecoder {
    limits: Limits,
    /// The palette indices of the frame.
    scratch: Vec<u8>,
}

/// The frame's place on the screen.
#[derive(Clone, Copy)]
struct Place {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
}

type Opened<'a> = (gif::Decoder<Cursor<&'a [u8]>>, ImageInfo, Place);

impl GifDecoder {
    /// Reads up to the first frame's pixels.
    fn open<'a>(&self, encoded: &'a [u8]) -> Result<Opened<'a>> {
        let mut options = DecodeOptions::new();
        options.set_color_output(ColorOutput::Indexed);
        options.allow_unknown_blocks(true);
        options.check_lzw_end_code(self.limits.is_strict());
        let bytes =
            std::num::NonZeroU64::new(self.limits.bytes()).unwrap_or(std::num::NonZeroU64::MIN);
        options.set_memory_limit(MemoryLimit::Bytes(bytes));
        let mut decoder = options.read_info(Cursor::new(encoded)).map_err(error)?;
        let screen = Size::new(decoder.width().into(), decoder.height().into());
        let frame = decoder.next_frame_info().map_err(error)?.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "the GIF holds no frame; expected one at least")
        })?;
        let place = Place {
            left: frame.left.into(),
            top: frame.top.into(),
            width: frame.width.into(),
            height: frame.height.into(),
        };
        // A frame may be larger than the screen; the screen then grows, as in browsers.
        let size = Size::new(
            screen.width.max((place.left + place.width) as u32),
            screen.height.max((place.top + place.height) as u32),
        );
        self.limits.check_size(size)?;
        Ok((decoder, ImageInfo::new(size, Orientation::Upright), place))
    }
}

impl ImageDecoder for GifDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        self.open(encoded).map(|(_, info, _)| info)
    }

    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        mut out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let (mut decoder, info, place) = self.open(encoded)?;
        let region = request.checked_region(info.size, &out)?;
        self.scratch.resize(decoder.buffer_size(), 0);
        decoder.read_into_buffer(&mut self.scratch).map_err(error)?;

        // An index beyond the palette is a grey of that value, and so is each without a palette.
        let mut colors: [[u8; CHANNELS]; 256] =
            std::array::from_fn(|index| [index as u8; CHANNELS]);
        let palette = decoder.palette().unwrap_or(&[]);
        for (color, entry) in colors.iter_mut().zip(palette.as_chunks::<CHANNELS>().0) {
            *color = *entry;
        }
        // What the frame does not cover has the transparent colour; without one, the first.
        let transparent = decoder.current_frame_info().and_then(|frame| frame.transparent);
        let background = colors[usize::from(transparent.unwrap_or(0))];

        for row in 0..region.height {
            let y = (region.top + row) as usize;
            let source = y
                .checked_sub(place.top)
                .filter(|&line| line < place.height)
                .map(|line| &self.scratch[line * place.width..][..place.width]);
            let (pixels, _) = out.row_mut(row).as_chunks_mut::<CHANNELS>();
            for (x, pixel) in (region.left as usize..).zip(pixels) {
                let index = x.checked_sub(place.left).and_then(|column| source?.get(column));
                *pixel = index.map_or(background, |&index| colors[usize::from(index)]);
            }
        }
        Ok(Decoded::new(region.size()))
    }
}

fn error(error: DecodingError) -> Error {
    match error {
        DecodingError::Io(error) => failure::read_error(NAME, error),
        DecodingError::OutOfMemory | DecodingError::MemoryLimit => failure::limit_exceeded(NAME),
        DecodingError::UnexpectedEof => Error::new(ErrorKind::Truncated, "the gif data end early"),
        error => failure::corrupt(NAME, error),
    }
}
