//! [`Substitute`]: successful responses that hold other content than the object.

use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName};
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::Key;

/// The extensions of objects that may be web pages, as may be objects without an extension. For
/// missing files next to shards (`idx`, `sums`), some servers send a page, which is no valid index.
const PAGES: [&str; 13] =
    ["asp", "aspx", "htm", "html", "idx", "jsp", "md", "php", "sums", "svg", "txt", "xhtml", "xml"];

/// Content encodings, and the first byte of content with this encoding. Brotli has no fixed byte.
const ENCODINGS: [(&str, Option<u8>); 4] =
    [("gzip", Some(0x1f)), ("deflate", Some(0x78)), ("zstd", Some(0x28)), ("br", None)];

/// The byte order mark of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Other content than the object, which the headers of a successful response announce. Servers also
/// send these headers with the object itself, so the first byte decides.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Substitute {
    /// A `Content-Encoding`, although the request accepts none: the index in [`ENCODINGS`].
    Compressed(usize),
    /// `Content-Type: text/html`, for example the page of a proxy.
    WebPage,
}

impl Substitute {
    /// Returns what the headers announce. Object stores send the encoding that the object was uploaded
    /// with, so `can_compress` is false for them.
    pub(crate) fn announced(
        headers: &HeaderMap,
        key: &Key,
        can_compress: bool,
    ) -> Option<Substitute> {
        let has = |name: HeaderName, value: &str| {
            let found = headers.get(name).and_then(|found| found.to_str().ok());
            found.is_some_and(|found| found.to_ascii_lowercase().contains(value))
        };
        let name = key.display_name().to_ascii_lowercase();
        let name = name.split(['?', '#']).next().unwrap_or_default();
        let file = name.rsplit('/').next().unwrap_or_default();
        let extension = file.rsplit_once('.').map(|(_, extension)| extension);
        let may_be_page = extension.is_none_or(|extension| PAGES.contains(&extension));
        let is_compressed_file = matches!(extension, Some("gz" | "tgz" | "zst" | "tzst" | "br"));
        if can_compress && !is_compressed_file {
            let found = ENCODINGS.iter().position(|(encoding, _)| has(CONTENT_ENCODING, encoding));
            if let Some(encoding) = found {
                return Some(Substitute::Compressed(encoding));
            }
        }
        (has(CONTENT_TYPE, "text/html") && !may_be_page).then_some(Substitute::WebPage)
    }

    /// Waits for the first bytes.
    ///
    /// # Errors
    /// `Unavailable` if they are other content than the object.
    pub(crate) async fn check(
        self,
        mut pieces: BoxStream<'static, Result<Bytes>>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let first = pieces.next().await.transpose()?.unwrap_or_default();
        self.check_first(&first)?;
        Ok(stream::iter([Ok(first)]).chain(pieces).boxed())
    }

    /// Checks the first bytes of the response.
    ///
    /// # Errors
    /// `Unavailable` if they are other content than the object.
    pub(crate) fn check_first(self, first: &[u8]) -> Result<()> {
        let fault = match self {
            Substitute::Compressed(encoding) => {
                let (name, magic) = ENCODINGS[encoding];
                if first.is_empty() || magic.is_some_and(|magic| first.first() != Some(&magic)) {
                    return Ok(());
                }
                format!(
                    "the server compressed the object (Content-Encoding: {name}), although the \
                     request accepts only uncompressed objects"
                )
            }
            Substitute::WebPage => {
                let text = first.strip_prefix(BYTE_ORDER_MARK).unwrap_or(first);
                if text.trim_ascii().first() != Some(&b'<') {
                    return Ok(());
                }
                "the server sent a web page (Content-Type: text/html) instead of the object".into()
            }
        };
        Err(Error::new(ErrorKind::Unavailable, fault))
    }
}
