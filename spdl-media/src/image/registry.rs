//! Codec selection by file content.

use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use super::codec::{ImageCodec, SNIFF_BYTES};
use super::unsupported::unsupported_format;

/// The codecs of a program. The first bytes of a file select the codec; the file name has no
/// influence.
///
/// The program builds the registry; codecs do not register themselves. Clones are cheap: they share
/// the codecs.
///
/// ```
/// # #[cfg(feature = "png")] {
/// use spdl_media::CodecRegistry;
/// let registry = CodecRegistry::with_defaults();
/// let codec = registry.find(b"\x89PNG\r\n\x1a\n")?;
/// assert_eq!(codec.name(), "png");
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CodecRegistry {
    codecs: Vec<Arc<dyn ImageCodec>>,
}

impl CodecRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        CodecRegistry::default()
    }

    /// A registry that tries these codecs in this order.
    pub(crate) fn with_codecs(codecs: Vec<Arc<dyn ImageCodec>>) -> Self {
        CodecRegistry { codecs }
    }

    /// Adds a codec. The codec takes precedence over the codecs that were registered before.
    pub fn register(&mut self, codec: impl ImageCodec) -> &mut Self {
        self.codecs.insert(0, Arc::new(codec));
        self
    }

    /// The codecs, in order of precedence.
    pub fn codecs(&self) -> impl Iterator<Item = &Arc<dyn ImageCodec>> {
        self.codecs.iter()
    }

    /// The first codec, in order of precedence, whose signature matches the first bytes of a file.
    ///
    /// # Errors
    /// `Truncated` for an empty file; `Unsupported` if no codec matches.
    pub fn find(&self, encoded: &[u8]) -> Result<&Arc<dyn ImageCodec>> {
        self.position(encoded).map(|at| &self.codecs[at])
    }

    pub(crate) fn position(&self, encoded: &[u8]) -> Result<usize> {
        if encoded.is_empty() {
            return Err(Error::new(ErrorKind::Truncated, "the file is empty"));
        }
        let head = &encoded[..encoded.len().min(SNIFF_BYTES)];
        self.codecs.iter().position(|codec| codec.sniff(head)).ok_or_else(|| {
            if let Some(reason) = unsupported_format(head) {
                return Error::new(ErrorKind::Unsupported, reason);
            }
            let known: Vec<_> = self.codecs.iter().map(|codec| codec.name()).collect();
            let start = head[..head.len().min(8)].escape_ascii();
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "unknown image format: the file starts with \"{start}\"; registered codecs: {}",
                    if known.is_empty() { "none".into() } else { known.join(", ") }
                ),
            )
        })
    }

    pub(crate) fn get(&self, at: usize) -> &Arc<dyn ImageCodec> {
        &self.codecs[at]
    }

    pub(crate) fn len(&self) -> usize {
        self.codecs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: IMG3
    #[test]
    fn errors_name_known_formats_without_a_codec() {
        let message = |bytes: &[u8]| {
            let error = CodecRegistry::new().find(bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            error.message().to_owned()
        };
        assert!(message(b"\0\0\0\x20ftypavif\0\0\0\0").contains("AVIF"));
        // The second brand is the first compatible brand; data after the file type box are ignored.
        assert!(message(b"\0\0\0\x18ftypmif1\0\0\0\0mif1avifmiaf").contains("AVIF"));
        assert!(message(b"\0\0\0\x14ftypmif1\0\0\0\0mif1avifmiaf").contains("HEIF"));
        assert!(message(b"\0\0\0\x20ftypheic\0\0\0\0").contains("HEIF"));
        assert!(message(b"\0\0\0\x20ftypisom\0\0\0\0").contains("unknown image format"));
        assert!(message(b"\0\0\0\x0CJXL \r\n\x87\n").contains("`jxl`"));
        assert!(message(b"\x76\x2F\x31\x01\x02").contains("`exr`"));
        assert!(message(b"farbfeld").contains("`more-formats`"));
        assert!(message(b"\0\0\0\x0CjP  \r\n\x87\n").contains("JPEG 2000"));
    }
}
