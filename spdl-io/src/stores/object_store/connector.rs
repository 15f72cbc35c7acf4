//! The HTTP client of `object_store`, which keeps all details of error responses.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use reqwest::header::HeaderMap;

use crate::stores::network::ResponseError;

/// Number of bytes of an error response that are searched for the error code.
const MAX_ERROR_BODY: usize = 16 << 10;

/// Timeout for metadata services. They respond immediately if they exist.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(1);

/// Hosts of the metadata services that give cloud machines their credentials.
const IDENTITY_SERVICES: [&str; 5] =
    ["169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata", "[fd00:ec2::254]"];

#[derive(Clone)]
pub(super) struct Connector {
    pub(super) client: reqwest::Client,
    /// Host and port of a metadata service that the environment names.
    pub(super) identity_service: Option<String>,
}

/// The headers of a response, in its extensions.
#[derive(Clone)]
pub(super) struct ResponseHeaders {
    pub(super) headers: Arc<HeaderMap>,
    pub(super) has_tls: bool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    /// Sends a request. An error response becomes an error that holds a [`ResponseError`].
    ///
    /// Otherwise `object_store` would drop `Retry-After` and the size in `Content-Range`.
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri();
        let is_identity_request = uri.host().is_some_and(|host| IDENTITY_SERVICES.contains(&host))
            || uri.authority().map(|it| it.as_str()) == self.identity_service.as_deref()
                && self.identity_service.is_some();
        if is_identity_request {
            let answer = tokio::time::timeout(IDENTITY_TIMEOUT, self.client.call(request)).await;
            return match answer {
                Ok(Ok(answer)) if !denies_permanently(answer.status().as_u16()) => Ok(answer),
                Ok(_) | Err(_) => Err(HttpError::new(HttpErrorKind::Unknown, NoIdentity)),
            };
        }
        let has_tls = uri.scheme_str() == Some("https");
        let mut response = self.client.call(request).await?;
        let headers = response.headers().clone().into();
        response.extensions_mut().insert(ResponseHeaders { headers, has_tls });
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let mut head = Vec::new();
        let mut pieces = body.bytes_stream();
        while let Some(Ok(piece)) = pieces.next().await {
            head.extend_from_slice(&piece[..piece.len().min(MAX_ERROR_BODY - head.len())]);
            if head.len() == MAX_ERROR_BODY {
                break;
            }
        }
        let response_error = ResponseError::new(parts.status, &parts.headers).with_body(&head);
        Err(HttpError::new(HttpErrorKind::Unknown, response_error))
    }
}

/// Returns whether a metadata service denies credentials permanently.
///
/// Old services reject tokens with 403 or 404. With `AWS_IMDSV1_FALLBACK`, `object_store` then
/// retries without a token.
fn denies_permanently(status: u16) -> bool {
    let retries_without_token = || std::env::var_os("AWS_IMDSV1_FALLBACK").is_some();
    (400..500).contains(&status) && !(matches!(status, 403 | 404) && retries_without_token())
}

/// No credentials are configured, and no metadata service offers any.
#[derive(Debug)]
pub(super) struct NoIdentity;

impl NoIdentity {
    /// Returns the error message for missing credentials of the store with this address.
    pub(super) fn advice(store: &str) -> &'static str {
        match store.split_once(':').map_or(store, |(scheme, _)| scheme) {
            "s3" => {
                "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or, for \
                 anonymous access to public data, AWS_SKIP_SIGNATURE=true (~/.aws is not read)"
            }
            "gs" => {
                "no credentials: set GOOGLE_SERVICE_ACCOUNT to the path of a service account file, \
                 or, for anonymous access to public data, GOOGLE_SKIP_SIGNATURE=true"
            }
            "az" => {
                "no credentials: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or, for \
                 anonymous access to public data, AZURE_SKIP_SIGNATURE=true"
            }
            _ => "no credentials",
        }
    }
}

impl fmt::Display for NoIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no credentials configured, and no cloud metadata service responds")
    }
}

impl std::error::Error for NoIdentity {}
