//! The header of a JPEG as public data, for decoders outside this crate (such as nvJPEG).

use spdl_core::Result;

use super::header::{Coding, Color, EntropyCoding, Header, MAX_COMPONENTS};
use crate::image::{Orientation, Size};

/// The coding process of a frame (ITU-T T.81, table B.1).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JpegProcess {
    /// Baseline sequential DCT (SOF0).
    Baseline,
    /// Extended sequential DCT (SOF1, SOF9).
    Extended,
    /// Progressive DCT (SOF2, SOF10).
    Progressive,
    /// Lossless (SOF3, SOF11).
    Lossless,
}

/// The colour space of the stored components, by the rules of libjpeg.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JpegColor {
    /// One component: luma.
    Grey,
    /// Red, green, blue.
    Rgb,
    /// Luma and two colour differences (ITU-R BT.601, full range).
    YCbCr,
    /// Cyan, magenta, yellow, black, stored inverted.
    Cmyk,
    /// CMYK whose first three components are stored as Y, Cb, Cr.
    Ycck,
}

/// A component of a frame (ITU-T T.81, B.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JpegComponent {
    /// The component identifier.
    pub id: u8,
    /// The horizontal sampling factor, 1 to 4.
    pub horizontal: u8,
    /// The vertical sampling factor, 1 to 4.
    pub vertical: u8,
}

/// The header of a JPEG: frame, first scan, APP markers. Parsing allocates nothing.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JpegHeader {
    /// Width and height as stored.
    pub size: Size,
    /// Bits of a sample: 8 or 12.
    pub precision: u8,
    /// The coding process.
    pub process: JpegProcess,
    /// Whether the entropy coding is arithmetic; otherwise it is Huffman coding.
    pub is_arithmetic: bool,
    components: [JpegComponent; MAX_COMPONENTS],
    component_count: usize,
    /// Whether the first scan holds all components.
    pub is_interleaved: bool,
    /// The byte offset of the entropy-coded data of the first scan.
    pub data_offset: usize,
    /// The orientation from the first EXIF APP1 marker; upright if the file has none.
    pub orientation: Orientation,
    /// Whether there is a JFIF APP0 marker.
    pub has_jfif: bool,
    /// The colour transform of the Adobe APP14 marker: 0 for none, 1 for YCbCr, 2 for YCCK.
    pub adobe_transform: Option<u8>,
    color: Option<JpegColor>,
}

impl JpegHeader {
    /// Parses everything up to the entropy-coded data of the first scan.
    ///
    /// ```
    /// use spdl_media::formats::jpeg::{JpegColor, JpegHeader, JpegProcess};
    /// # let encoded = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/420.jpg"));
    /// let header = JpegHeader::parse(encoded)?;
    /// assert_eq!((header.process, header.precision), (JpegProcess::Baseline, 8));
    /// assert_eq!(header.color(), Some(JpegColor::YCbCr));
    /// assert_eq!(header.components()[0].horizontal, 2);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Truncated` if the file ends inside the header; `Corrupt` if the data do not start with an
    /// SOI marker or the header is inconsistent; `Unsupported` for hierarchical processes, more
    /// than 4 components, samples of neither 8 nor 12 bits, or sampling factors that do not divide
    /// each other. The error has the byte offset.
    pub fn parse(encoded: &[u8]) -> Result<JpegHeader> {
        let header = Header::read_with(encoded, &[8, 12], &mut |_, _, _| Ok(()))?;
        let frame = &header.frame;
        let mut components = [JpegComponent::default(); MAX_COMPONENTS];
        for (component, stored) in components.iter_mut().zip(frame.components.iter()) {
            let (horizontal, vertical) = stored.sampling;
            *component = JpegComponent { id: stored.id, horizontal, vertical };
        }
        Ok(JpegHeader {
            size: frame.size,
            precision: frame.precision,
            process: match frame.coding {
                Coding::Sequential if frame.is_baseline => JpegProcess::Baseline,
                Coding::Sequential => JpegProcess::Extended,
                Coding::Progressive => JpegProcess::Progressive,
                Coding::Lossless => JpegProcess::Lossless,
            },
            is_arithmetic: frame.entropy == EntropyCoding::Arithmetic,
            components,
            component_count: frame.components.len(),
            is_interleaved: header.scan.components.len() == frame.components.len(),
            data_offset: header.data,
            orientation: header.orientation,
            has_jfif: header.jfif,
            adobe_transform: header.adobe,
            color: header.color().ok().map(|color| match color {
                Color::Grey => JpegColor::Grey,
                Color::Rgb => JpegColor::Rgb,
                Color::YCbCr => JpegColor::YCbCr,
                Color::Cmyk | Color::PlainCmyk => JpegColor::Cmyk,
                Color::Ycck => JpegColor::Ycck,
            }),
        })
    }

    /// The components in the order of the frame header, 1 to 4.
    pub fn components(&self) -> &[JpegComponent] {
        &self.components[..self.component_count]
    }

    /// The colour space of the components; `None` for two components, for which no convention
    /// exists.
    pub fn color(&self) -> Option<JpegColor> {
        self.color
    }

    /// Width and height of the upright image.
    pub fn upright_size(&self) -> Size {
        self.orientation.apply(self.size)
    }
}

#[cfg(test)]
mod tests {
    use spdl_core::ErrorKind;

    use super::*;

    #[test]
    fn precisions_other_than_8_bits_are_reported() {
        let mut encoded = include_bytes!("../../../tests/data/420.jpg").to_vec();
        let frame = encoded.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
        encoded[frame + 1] = 0xC1;
        encoded[frame + 4] = 12;
        let header = JpegHeader::parse(&encoded).unwrap();
        assert_eq!((header.precision, header.process), (12, JpegProcess::Extended));
        encoded[frame + 4] = 9;
        assert_eq!(JpegHeader::parse(&encoded).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_file_without_soi_is_no_jpeg() {
        assert_eq!(JpegHeader::parse(b"\x89PNG\r\n").unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(JpegHeader::parse(b"\xFF").unwrap_err().kind(), ErrorKind::Truncated);
        assert_eq!(JpegHeader::parse(b"\xFF\xD8").unwrap_err().kind(), ErrorKind::Truncated);
    }

    #[test]
    fn the_sampling_factors_are_those_of_the_file() {
        let header = JpegHeader::parse(include_bytes!("../../../tests/data/411.jpg")).unwrap();
        let factors: Vec<_> =
            header.components().iter().map(|part| (part.horizontal, part.vertical)).collect();
        assert_eq!(factors, [(4, 1), (1, 1), (1, 1)]);
        assert!(header.is_interleaved && header.has_jfif && !header.is_arithmetic);
    }
}
