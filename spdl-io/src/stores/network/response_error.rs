//! [`ResponseError`]: HTTP responses with an error status.

use std::fmt;
use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::{CONTENT_RANGE, DATE, HeaderMap, RETRY_AFTER};
use spdl_core::{Error, ErrorKind};

/// An HTTP error response: its status and headers, and the error code of an object store.
///
/// Other parts of the body are not kept, as they may contain secrets.
#[derive(Clone, Debug)]
pub(crate) struct ResponseError {
    pub(crate) status: StatusCode,
    /// Delay until the next request, from `Retry-After`.
    pub(crate) retry_after: Option<Duration>,
    /// Size of the object, from the `Content-Range` of status 416.
    pub(crate) size: Option<u64>,
    /// Actual region of a bucket.
    region: Option<String>,
    /// Error code of an object store.
    code: Option<String>,
}

impl ResponseError {
    pub(crate) fn new(status: StatusCode, headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let size = text(CONTENT_RANGE.as_str()).and_then(|value| value.strip_prefix("bytes */"));
        ResponseError {
            status,
            retry_after: text(RETRY_AFTER.as_str()).and_then(|value| {
                // Uses the server's time (header `Date`) if present, because the local clock may be
                // wrong.
                let now = text(DATE.as_str()).and_then(|now| httpdate::parse_http_date(now).ok());
                retry_after(value, now.unwrap_or_else(SystemTime::now))
            }),
            size: size.and_then(|size| size.trim().parse().ok()),
            region: text("x-amz-bucket-region").filter(|it| is_word(it)).map(str::to_owned),
            code: text("x-ms-error-code").filter(|it| is_word(it)).map(str::to_owned),
        }
    }

    /// Extracts the error code of an XML body. Other parts may repeat secrets of the request.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn with_body(mut self, body: &[u8]) -> Self {
        let body = String::from_utf8_lossy(body);
        let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        let code = code.map(|(code, _)| code.trim()).filter(|code| is_word(code));
        self.code = code.map(str::to_owned).or(self.code);
        self
    }

    pub(crate) fn to_error(&self) -> Error {
        let status = self.status.as_u16();
        let kind = match (status, self.code.as_deref()) {
            (_, Some("RequestTimeout")) | (408, _) => ErrorKind::Timeout,
            (_, Some("SlowDown" | "InternalError" | "ServiceUnavailable")) => {
                ErrorKind::Unavailable
            }
            (_, Some("ExpiredToken" | "InvalidToken" | "RequestTimeTooSkewed")) => {
                ErrorKind::PermissionDenied
            }
            (404 | 410, _) => ErrorKind::NotFound,
            (401 | 403 | 407, _) => ErrorKind::PermissionDenied,
            // The bucket is in another region. A retry does not help.
            (_, Some("PermanentRedirect")) => ErrorKind::InvalidArgument,
            (301, _) if self.region.is_some() => ErrorKind::InvalidArgument,
            (412, _) => ErrorKind::Changed,
            (416, _) => ErrorKind::Truncated,
            (405 | 501 | 505, _) => ErrorKind::Unsupported,
            (425 | 429 | 500..=599, _) => ErrorKind::Unavailable,
            (400..=499, _) => ErrorKind::InvalidArgument,
            _ => ErrorKind::Corrupt,
        };
        let error = Error::new(kind, self.to_string());
        match self.retry_after {
            Some(delay) => error.with_retry_after(delay),
            None => error,
        }
    }
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server returned {}", self.status.as_u16())?;
        if let Some(reason) = self.status.canonical_reason() {
            write!(f, " {reason}")?;
        }
        if let Some(code) = &self.code {
            write!(f, " ({code})")?;
        }
        let is_redirect = self.status.is_redirection();
        match (&self.region, self.code.as_deref()) {
            (Some(region), code) if is_redirect || code == Some("AuthorizationHeaderMalformed") => {
                write!(f, "; the bucket is in another region; set AWS_REGION to {region}")
            }
            (None, Some("PermanentRedirect" | "AuthorizationHeaderMalformed")) => {
                f.write_str("; the bucket is in another region; set AWS_REGION")
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ResponseError {}

/// Returns whether the text is a short identifier, as codes and regions are.
fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Parses the header `Retry-After`: seconds, or an HTTP date (RFC 9110, 10.2.3).
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    // A date in the past means no delay.
    Some(at.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_error(status: u16, headers: &[(&'static str, &str)]) -> ResponseError {
        let headers = headers.iter().map(|(name, value)| {
            (reqwest::header::HeaderName::from_static(name), value.parse().unwrap())
        });
        ResponseError::new(StatusCode::from_u16(status).unwrap(), &headers.collect())
    }

    #[test]
    fn statuses_map_to_error_kinds() {
        for (status, kind) in [
            (301, ErrorKind::Corrupt),
            (400, ErrorKind::InvalidArgument),
            (401, ErrorKind::PermissionDenied),
            (403, ErrorKind::PermissionDenied),
            (404, ErrorKind::NotFound),
            (408, ErrorKind::Timeout),
            (410, ErrorKind::NotFound),
            (412, ErrorKind::Changed),
            (416, ErrorKind::Truncated),
            (429, ErrorKind::Unavailable),
            (500, ErrorKind::Unavailable),
            (501, ErrorKind::Unsupported),
            (502, ErrorKind::Unavailable),
            (503, ErrorKind::Unavailable),
            (599, ErrorKind::Unavailable),
        ] {
            assert_eq!(response_error(status, &[]).to_error().kind(), kind, "{status}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let seconds = |value| retry_after(value, now).map(|delay| delay.as_secs());
        assert_eq!(seconds("120"), Some(120));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:40:00 GMT"), Some(0));
        assert_eq!(seconds("soon"), None);
        assert_eq!(seconds("-1"), None);
        let error = response_error(503, &[("retry-after", "7")]).to_error();
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    }

    #[test]
    fn retry_after_dates_use_the_servers_clock() {
        // The local clock is years ahead of the server's.
        let headers = [
            ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT"),
        ];
        let error = response_error(503, &headers).to_error();
        assert_eq!(error.retry_after(), Some(Duration::from_secs(30)));
    }

    #[test]
    fn status_416_reports_the_object_size() {
        assert_eq!(response_error(416, &[("content-range", "bytes */1234")]).size, Some(1234));
        assert_eq!(response_error(416, &[("content-range", "bytes */x")]).size, None);
    }

    #[cfg(feature = "s3")]
    #[test]
    fn only_the_error_code_of_a_body_is_shown() {
        let shown = |body: &str| response_error(400, &[]).with_body(body.as_bytes()).to_error();
        let error = shown("<Error><Code>ExpiredToken</Code><Token>canary</Token></Error>");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(error.to_string(), "server returned 400 Bad Request (ExpiredToken)");
        let error = shown("<Code>a b canary</Code>");
        assert_eq!(error.to_string(), "server returned 400 Bad Request");
        assert_eq!(shown("<Code>SlowDown</Code>").kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn errors_name_the_region_of_the_bucket() {
        let error = response_error(301, &[("x-amz-bucket-region", "eu-west-1")]).to_error();
        let expected = "the bucket is in another region; set AWS_REGION to eu-west-1";
        assert!(error.message().ends_with(expected), "{error}");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "not retried");
    }

    #[cfg(feature = "s3")]
    #[test]
    fn errors_report_another_region_without_its_name() {
        let body = b"<Error><Code>PermanentRedirect</Code></Error>";
        let error = response_error(301, &[]).with_body(body).to_error();
        let expected = "the bucket is in another region; set AWS_REGION";
        assert!(error.message().ends_with(expected), "{error}");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
