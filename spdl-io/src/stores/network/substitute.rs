//! [`Substitute`]: successful responses that hold other content than the object.

use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName};
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::{Key, ObjectMeta};

/// The extensions of objects that may be web pages, as may be objects without an extension. For
/// missing files next to shards (`idx`, `sums`), some servers send a page, which is no valid index.
const PAGES: [&str; 13] =
    ["asp", "aspx", "htm", "html", "idx", "jsp", "md", "php", "sums", "svg", "txt", "xhtml", "xml"];

/// Content encodings, and the first byte of content with this encoding. Brotli has no fixed byte.
const ENCODINGS: [(&str, Option<u8>); 4] =
    [("gzip", Some(0x1f)), ("deflate", Some(0x78)), ("zstd", Some(0x28)), ("br", None)];

/// How a web page begins, in lower case.
const PAGE_STARTS: [&[u8]; 2] = [b"<!doctype html", b"<html"];

/// The byte order mark of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns the error for an empty response if `reported`, the result of a request for the size, is not
/// empty. A store that does not report sizes is trusted.
pub(crate) fn check_empty(reported: Result<ObjectMeta>) -> Result<()> {
    match reported {
        Ok(ObjectMeta { size, .. }) if size > 0 => {
            let message =
                format!("the server sent an empty body, but reports a size of {size} bytes");
            Err(Error::new(ErrorKind::Unavailable, message))
        }
        Err(error) if error.kind().is_transient() => Err(error),
        _ => Ok(()),
    }
}

/// Other content than the object, which the headers of a successful response announce. Servers also
/// send these headers with the object itself, so the first byte decides.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Substitute {
    /// A `Content-Encoding`, although the request accepts none: the index in [`ENCODINGS`].
    Compressed(usize),
    /// `Content-Type: text/html`, for example the page of a proxy.
    WebPage,
    /// No `Content-Type`: the content is a web page if it begins as one.
    Untyped,
}

impl Substitute {
    /// Returns what the headers announce; [`Untyped`](Substitute::Untyped) if they announce nothing.
    pub(crate) fn possible(
        headers: &HeaderMap,
        key: &Key,
        can_compress: bool,
    ) -> Option<Substitute> {
        let is_untyped = || {
            let extension = extension(key);
            let may_be_page = extension.is_some_and(|it| it == "json" || PAGES.contains(&&*it));
            !headers.contains_key(CONTENT_TYPE) && !may_be_page
        };
        let announced = Substitute::announced(headers, key, can_compress);
        announced.or_else(|| is_untyped().then_some(Substitute::Untyped))
    }

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
        let extension = extension(key);
        let extension = extension.as_deref();
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
        let first = pieces.next().await;
        if let Some(Ok(first)) = &first {
            self.check_first(first)?;
        }
        Ok(stream::iter(first).chain(pieces).boxed())
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
            Substitute::Untyped => {
                let text = first.strip_prefix(BYTE_ORDER_MARK).unwrap_or(first).trim_ascii_start();
                let begins_with = |tag: &[u8]| {
                    text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag))
                };
                if !PAGE_STARTS.iter().any(|tag| begins_with(tag)) {
                    return Ok(());
                }
                "the server sent a web page (without Content-Type) instead of the object".into()
            }
        };
        Err(Error::new(ErrorKind::Unavailable, fault))
    }
}

/// The extension of an object's name, in lower case, without query and fragment.
fn extension(key: &Key) -> Option<String> {
    let name = key.display_name().to_ascii_lowercase();
    let name = name.split(['?', '#']).next().unwrap_or_default();
    let file = name.rsplit('/').next().unwrap_or_default();
    file.rsplit_once('.').map(|(_, extension)| extension.to_owned())
}
