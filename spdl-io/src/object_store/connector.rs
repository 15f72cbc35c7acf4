//! How `object_store` asks: through a client of our own, which keeps what it would drop of a refusal.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};

use crate::network::Refusal;

/// So much of the body of a refusal is looked at.
const LOOKED_AT: usize = 16 << 10;

/// Whoever is there answers at once; where nobody is, packets are lost.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(1);

/// Where the machines of a cloud learn who they are.
const IDENTITY_SERVICES: [&str; 5] =
    ["169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata", "[fd00:ec2::254]"];

#[derive(Clone)]
pub(super) struct Connector(pub(super) reqwest::Client);

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
        let asks_identity =
            request.uri().host().is_some_and(|host| IDENTITY_SERVICES.contains(&host));
        if asks_identity {
            let answer = tokio::time::timeout(IDENTITY_TIMEOUT, self.0.call(request)).await;
            return match answer {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(_)) | Err(_) => Err(HttpError::new(HttpErrorKind::Unknown, NoIdentity)),
            };
        }
        let response = self.0.call(request).await?;
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

/// There are no credentials, and no cloud around that would give some.
#[derive(Debug)]
pub(super) struct NoIdentity;

impl fmt::Display for NoIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no credentials: there are none in the environment, and this machine has no identity \
             of a cloud; public data can be read by anonymous access",
        )
    }
}

impl std::error::Error for NoIdentity {}
