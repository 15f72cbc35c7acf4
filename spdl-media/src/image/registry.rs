//! Which codecs there are. A value that the program builds; nothing registers itself.

use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use super::codec::{ImageCodec, SNIFF_BYTES};
use super::unsupported::why_not;

/// The codecs of a program. Files are matched by content, never by name.
///
/// Cheap to clone: the codecs are shared.
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
    /// No codecs.
    pub fn new() -> Self {
        CodecRegistry::default()
    }

    /// These codecs, tried in this order.
    pub(crate) fn with_codecs(codecs: Vec<Arc<dyn ImageCodec>>) -> Self {
        CodecRegistry { codecs }
    }

    /// Adds a codec. It is asked before those that are there, so it may take a format over.
    pub fn register(&mut self, codec: impl ImageCodec) -> &mut Self {
        self.codecs.insert(0, Arc::new(codec));
        self
    }

    /// The codecs, in the order in which they are asked.
    pub fn codecs(&self) -> impl Iterator<Item = &Arc<dyn ImageCodec>> {
        self.codecs.iter()
    }

    /// The codec of a file, by how it starts.
    ///
    /// # Errors
    /// `Truncated` for an empty file, `Unsupported` where no codec knows the content.
    pub fn find(&self, encoded: &[u8]) -> Result<&Arc<dyn ImageCodec>> {
        self.position(encoded).map(|at| &self.codecs[at])
    }

    pub(crate) fn position(&self, encoded: &[u8]) -> Result<usize> {
        if encoded.is_empty() {
            return Err(Error::new(ErrorKind::Truncated, "the file is empty"));
        }
        let head = &encoded[..encoded.len().min(SNIFF_BYTES)];
        self.codecs.iter().position(|codec| codec.sniff(head)).ok_or_else(|| {
            if let Some(reason) = why_not(head) {
                return Error::new(ErrorKind::Unsupported, format!("the file is {reason}"));
            }
            let known: Vec<_> = self.codecs.iter().map(|codec| codec.name()).collect();
            let start = head[..head.len().min(8)].escape_ascii();
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "not an image of a known format: it starts with \"{start}\"; known are {}",
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
    fn what_is_known_but_not_decoded_is_named_with_the_reason() {
        let message = |bytes: &[u8]| {
            let error = CodecRegistry::new().find(bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            error.message().to_owned()
        };
        assert!(message(b"\0\0\0\x20ftypavif\0\0\0\0").contains("AVIF"));
        // Of this kind by its second name; what follows the names is none.
        assert!(message(b"\0\0\0\x18ftypmif1\0\0\0\0mif1avifmiaf").contains("AVIF"));
        assert!(message(b"\0\0\0\x14ftypmif1\0\0\0\0mif1avifmiaf").contains("HEIF"));
        assert!(message(b"\0\0\0\x20ftypheic\0\0\0\0").contains("HEIF"));
        assert!(message(b"\0\0\0\x20ftypisom\0\0\0\0").contains("known format"));
        assert!(message(b"\0\0\0\x0CJXL \r\n\x87\n").contains("`jxl`"));
        assert!(message(b"\x76\x2F\x31\x01\x02").contains("`exr`"));
        assert!(message(b"farbfeld").contains("`more-formats`"));
        assert!(message(b"\0\0\0\x0CjP  \r\n\x87\n").contains("JPEG 2000"));
    }
}
