//! [`Substitute`]: successful responses that hold other content than the object.

use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName};
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::Key;

/// The extensions of objects that may be web pages, as may be objects without an extension.
const PAGES: [&str; 11] =
    ["asp", "aspx", "htm", "html", "jsp", "md", "php", "svg", "txt", "xhtml", "xml"];

/// Other content than the object, which the headers of a successful response announce. Servers also
/// send these headers with the object itself, so the first byte decides.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Substitute {
    /// `Content-Encoding: gzip`, although the request accepts no encoding.
    Gzip,
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
        let is_gzip = matches!(extension, Some("gz" | "tgz"));
        let may_be_page = extension.is_none_or(|extension| PAGES.contains(&extension));
        match () {
            () if can_compress && has(CONTENT_ENCODING, "gzip") && !is_gzip => {
                Some(Substitute::Gzip)
            }
            () if has(CONTENT_TYPE, "text/html") && !may_be_page => Some(Substitute::WebPage),
            () => None,
        }
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
        let fault = match (self, first.trim_ascii().first()) {
            (Substitute::Gzip, Some(0x1f)) => {
                "the server compressed the object (Content-Encoding: gzip), although the request \
                 accepts only uncompressed objects"
            }
            (Substitute::WebPage, Some(b'<')) => {
                "the server sent a web page (Content-Type: text/html) instead of the object"
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Unavailable, fault))
    }
}
