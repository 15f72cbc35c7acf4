//! How `object_store` asks: through a client of our own, which keeps what it would drop of a refusal.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};

use crate::stores::network::Refusal;

/// So much of the body of a refusal is looked at.
const LOOKED_AT: usize = 16 << 10;

/// Whoever is there answers at once; where nobody is, packets are lost.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(1);

/// Where the machines of a cloud learn who they are.
const IDENTITY_SERVICES: [&str; 5] =
    ["169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata", "[fd00:ec2::254]"];

#[derive(Clone)]
pub(super) struct Connector {
    pub(super) client: reqwest::Client,
    /// Another identity service that the environment names: its host and port.
    pub(super) identity_service: Option<String>,
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
    /// A refusal comes back as an error that holds a [`Refusal`]: `object_store` knows its status
    /// else, but neither `Retry-After` nor the length behind which a range lies.
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri();
        let asks_identity = uri.host().is_some_and(|host| IDENTITY_SERVICES.contains(&host))
            || uri.authority().map(|it| it.as_str()) == self.identity_service.as_deref()
                && self.identity_service.is_some();
        if asks_identity {
            let answer = tokio::time::timeout(IDENTITY_TIMEOUT, self.client.call(request)).await;
            return match answer {
                Ok(Ok(answer)) if !refuses_for_good(answer.status().as_u16()) => Ok(answer),
                Ok(_) | Err(_) => Err(HttpError::new(HttpErrorKind::Unknown, NoIdentity)),
            };
        }
        let response = self.client.call(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let mut head = Vec::new();
        let mut pieces = body.bytes_stream();
        while let Some(Ok(piece)) = pieces.next().await {
            head.extend_from_slice(&piece[..piece.len().min(LOOKED_AT - head.len())]);
            if head.len() == LOOKED_AT {
                break;
            }
        }
        let refusal = Refusal::new(parts.status, &parts.headers).with_body(&head);
        Err(HttpError::new(HttpErrorKind::Unknown, refusal))
    }
}

/// Whether an identity service has nothing for us, now and later. Old ones refuse a token, and are
/// asked without where `AWS_IMDSV1_FALLBACK` says so.
fn refuses_for_good(status: u16) -> bool {
    let is_asked_otherwise = || std::env::var_os("AWS_IMDSV1_FALLBACK").is_some();
    (400..500).contains(&status) && !(matches!(status, 403 | 404) && is_asked_otherwise())
}

/// There are no credentials, and no cloud around that would give some.
#[derive(Debug)]
pub(super) struct NoIdentity;

impl NoIdentity {
    /// What to do about it, where the store is that of this address.
    pub(super) fn advice(store: &str) -> &'static str {
        match store.split_once(':').map_or(store, |(scheme, _)| scheme) {
            "s3" => {
                "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or, for public \
                 data, anonymous access by AWS_SKIP_SIGNATURE=true (~/.aws is not read)"
            }
            "gs" => {
                "no credentials: set GOOGLE_SERVICE_ACCOUNT to the file of a service account, or, for \
                 public data, anonymous access by GOOGLE_SKIP_SIGNATURE=true"
            }
            "az" => {
                "no credentials: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or, for \
                 public data, anonymous access by AZURE_SKIP_SIGNATURE=true"
            }
            _ => "no credentials",
        }
    }
}

impl fmt::Display for NoIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no credentials, and this machine has no identity of a cloud")
    }
}

impl std::error::Error for NoIdentity {}
