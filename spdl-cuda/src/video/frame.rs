//! A decoded frame in device memory, and its layout in surfaces of the decoder.

use spdl_core::memory::DeviceMemory;
use spdl_core::{Error, ErrorKind, Result};

use super::format::{VideoColor, VideoFormat};
use crate::driver::{DeviceAddress, Memcpy2D};
use crate::pixels::{ColorMatrix, DevicePlane, PixelFormat, SourceImage};
use crate::runtime::CudaMemory;

/// A decoded frame in device memory. The copy from the decoder may be in flight.
///
/// The memory holds the planes of the display area in order, without padding between rows. The
/// display area may have odd sides; the sides of subsampled chroma planes are then rounded up.
#[non_exhaustive]
#[derive(Debug)]
pub struct VideoFrame {
    /// The memory of the pixels. Streams wait for the pixels with [`CudaMemory::wait_on`].
    pub memory: CudaMemory,
    /// The pixel format.
    pub format: PixelFormat,
    /// Bits per sample. Samples of more than 8 bits have 2 bytes, with the value in the most
    /// significant bits.
    pub bits: u32,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The planes: luma, then interleaved Cb and Cr, or Cb and Cr separately.
    pub planes: Vec<FramePlane>,
    /// The colour description of the stream.
    pub color: VideoColor,
    /// The timestamp of the packet of this frame, or a timestamp that nvcuvid computes from the
    /// frame rate.
    pub timestamp: i64,
    /// The index of the frame in display order, counted from 0. Corrupt frames are counted, too.
    pub number: u64,
}

/// A plane of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePlane {
    /// Offset in the memory of the frame, in bytes.
    pub offset: usize,
    /// Distance between rows in bytes.
    pub pitch: usize,
    /// Number of rows.
    pub rows: usize,
}

impl VideoFrame {
    /// The frame as a source image of the kernels, with a colour matrix.
    ///
    /// # Errors
    /// `InvalidArgument` if the matrix has another bit depth.
    pub fn image(&self, matrix: ColorMatrix) -> Result<SourceImage> {
        let start = self.memory.address() as u64;
        let planes: Vec<DevicePlane> = self
            .planes
            .iter()
            .map(|plane| DevicePlane {
                address: start + plane.offset as u64,
                pitch: plane.pitch as u64,
            })
            .collect();
        SourceImage::yuv(self.format, self.width, self.height, &planes, matrix)
    }
}

/// The layout of the planes in decoder surfaces and in frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameLayout {
    pub(crate) format: PixelFormat,
    pub(crate) planes: Vec<FramePlane>,
    /// First row of each plane in the surface.
    first_rows: Vec<usize>,
    /// First byte of the display area in each row.
    first_byte: usize,
    /// Size of a frame in bytes.
    pub(crate) bytes: usize,
}

impl FrameLayout {
    /// Returns `None` if decoders do not output the format, or if the size overflows.
    pub(crate) fn of(video: &VideoFormat) -> Option<FrameLayout> {
        let format = video.pixel_format()?;
        let sample = usize::try_from(format.sample_bytes()).ok()?;
        let side = |number: u32| usize::try_from(number).ok();
        let (width, height) = (side(video.size.0)?, side(video.size.1)?);
        let (left, top) = (side(video.origin.0)?, side(video.origin.1)?);
        // Surfaces have an even number of luma rows.
        let surface_rows = side(video.coded_size.1)?.checked_next_multiple_of(2)?;
        let luma = (width.checked_mul(sample)?, height, top);
        let (chroma, count) = if format.is_subsampled() {
            let pairs = width.div_ceil(2).checked_mul(2)?;
            ((pairs.checked_mul(sample)?, height.div_ceil(2), top / 2), 1)
        } else {
            (luma, 2)
        };
        let mut layout = FrameLayout {
            format,
            planes: Vec::new(),
            first_rows: Vec::new(),
            first_byte: left.checked_mul(sample)?,
            bytes: 0,
        };
        for (at, (pitch, rows, first)) in
            std::iter::once(luma).chain(std::iter::repeat_n(chroma, count)).enumerate()
        {
            layout.planes.push(FramePlane { offset: layout.bytes, pitch, rows });
            layout.first_rows.push(surface_rows.checked_mul(at)?.checked_add(first)?);
            layout.bytes = layout.bytes.checked_add(pitch.checked_mul(rows)?)?;
        }
        Some(layout)
    }

    /// The copies from a surface to the memory of a frame.
    ///
    /// # Errors
    /// `Internal` if the pitch of the surface is too small.
    pub(crate) fn copies(
        &self,
        surface: u64,
        pitch: u32,
        memory: DeviceAddress,
    ) -> Result<Vec<Memcpy2D>> {
        let from_pitch = pitch as usize;
        let planes = self.planes.iter().zip(&self.first_rows);
        let copies = planes.map(|(plane, first)| {
            if self.first_byte + plane.pitch > from_pitch {
                let message = format!(
                    "surface of the video decoder has a pitch of {pitch} bytes: expected at least {}",
                    self.first_byte + plane.pitch
                );
                return Err(Error::new(ErrorKind::Internal, message));
            }
            let from = surface + (first * from_pitch + self.first_byte) as u64;
            Ok(Memcpy2D {
                from: DeviceAddress(from),
                from_pitch,
                to: DeviceAddress(memory.0 + plane.offset as u64),
                to_pitch: plane.pitch,
                row_bytes: plane.pitch,
                rows: plane.rows,
            })
        });
        copies.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::video::{ChromaFormat, VideoCodec};

    fn video(chroma: ChromaFormat, bits: u32, size: (u32, u32), origin: (u32, u32)) -> VideoFormat {
        VideoFormat {
            codec: VideoCodec::Hevc,
            chroma,
            bits,
            size,
            origin,
            coded_size: (64, 49),
            frame_rate: None,
            color: VideoColor { primaries: 2, transfer: 2, matrix: 2, full_range: false },
            min_surfaces: 4,
        }
    }

    fn places(copies: &[Memcpy2D]) -> Vec<(u64, u64, usize, usize)> {
        copies.iter().map(|copy| (copy.from.0, copy.to.0, copy.row_bytes, copy.rows)).collect()
    }

    #[test]
    fn odd_sides_keep_the_last_column_and_row() {
        let layout = FrameLayout::of(&video(ChromaFormat::Yuv420, 8, (31, 17), (0, 0))).unwrap();
        let plane = |offset, pitch, rows| FramePlane { offset, pitch, rows };
        assert_eq!(layout.planes, [plane(0, 31, 17), plane(31 * 17, 32, 9)]);
        assert_eq!(layout.bytes, 31 * 17 + 32 * 9);
        let copies = layout.copies(1000, 256, DeviceAddress(0)).unwrap();
        // 49 coded rows occupy 50 rows of the surface.
        assert_eq!(places(&copies), [(1000, 0, 31, 17), (1000 + 50 * 256, 31 * 17, 32, 9)]);
    }

    #[test]
    fn every_plane_is_cropped_to_the_display_area() {
        let layout = FrameLayout::of(&video(ChromaFormat::Yuv420, 10, (32, 16), (6, 4))).unwrap();
        assert_eq!(layout.format, PixelFormat::P016);
        let copies = layout.copies(0, 512, DeviceAddress(0)).unwrap();
        let (luma, chroma) = (4 * 512 + 12, (50 + 2) * 512 + 12);
        assert_eq!(places(&copies), [(luma, 0, 64, 16), (chroma, 64 * 16, 64, 8)]);
        let layout = FrameLayout::of(&video(ChromaFormat::Yuv444, 8, (5, 3), (7, 1))).unwrap();
        let copies = layout.copies(0, 64, DeviceAddress(100)).unwrap();
        let from = |plane: u64| (plane * 50 + 1) * 64 + 7;
        let expected = [0, 1, 2].map(|plane| (from(plane), 100 + 15 * plane, 5, 3));
        assert_eq!(places(&copies), expected);
    }

    #[test]
    fn a_surface_with_a_small_pitch_is_an_error() {
        let layout = FrameLayout::of(&video(ChromaFormat::Yuv420, 8, (31, 17), (2, 0))).unwrap();
        let error = layout.copies(0, 33, DeviceAddress(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(layout.copies(0, 34, DeviceAddress(0)).is_ok());
        assert_eq!(FrameLayout::of(&video(ChromaFormat::Yuv422, 8, (31, 17), (0, 0))), None);
    }
}
