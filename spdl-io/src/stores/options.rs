//! [`SourceOptions`]: connection settings of a store.

use std::time::Duration;

use bytes::Bytes;

use crate::layers::ResilientOptions;
use crate::stores::Secret;

/// Connection settings of one store: endpoint, credentials, headers, timeouts, resilience.
///
/// [`StoreRegistry::with_options`](crate::StoreRegistry::with_options) applies them to addresses
/// with a given prefix. `HttpFetcher::new` also accepts options. Local files ignore all options.
///
/// ```
/// use spdl_io::SourceOptions;
/// use spdl_io::stores::Secret;
/// let minio = SourceOptions::default()
///     .endpoint("http://127.0.0.1:9000")
///     .allow_plain_http(true)
///     .credential("access_key_id", "reader")
///     .credential("secret_access_key", Secret::from("hunter2"));
/// assert!(!format!("{minio:?}").contains("hunter2"));
/// ```
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct SourceOptions {
    /// See [`endpoint`](SourceOptions::endpoint).
    pub endpoint: Option<String>,
    /// See [`region`](SourceOptions::region).
    pub region: Option<String>,
    /// See [`allow_plain_http`](SourceOptions::allow_plain_http).
    pub allow_plain_http: bool,
    /// See [`anonymous`](SourceOptions::anonymous).
    pub anonymous: bool,
    /// See [`credential`](SourceOptions::credential): names and values.
    pub credentials: Vec<(String, Secret)>,
    /// See [`header`](SourceOptions::header): names and values.
    pub headers: Vec<(String, Secret)>,
    /// See [`ca_certificates`](SourceOptions::ca_certificates).
    pub ca_certificates: Vec<Bytes>,
    /// See [`connect_timeout`](SourceOptions::connect_timeout).
    pub connect_timeout: Duration,
    /// See [`connections`](SourceOptions::connections).
    pub connections: usize,
    /// See [`verify`](SourceOptions::verify).
    pub verify: bool,
    /// See [`resilience`](SourceOptions::resilience); `None` for
    /// [`without_resilience`](SourceOptions::without_resilience).
    pub resilience: Option<ResilientOptions>,
}

impl Default for SourceOptions {
    fn default() -> Self {
        SourceOptions {
            endpoint: None,
            region: None,
            allow_plain_http: false,
            anonymous: false,
            credentials: Vec::new(),
            headers: Vec::new(),
            ca_certificates: Vec::new(),
            connect_timeout: Duration::from_secs(2),
            connections: 256,
            verify: true,
            resilience: Some(ResilientOptions::default()),
        }
    }
}

impl SourceOptions {
    /// Sets the endpoint URL of an object store or of the Hugging Face Hub, `https://host:port`. Ignored for web
    /// servers.
    ///
    /// Default: the environment (such as `AWS_ENDPOINT_URL` or `HF_ENDPOINT`), or else the provider's endpoint.
    #[must_use]
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Sets the region of an S3 bucket. Default: the environment (`AWS_REGION`), or `us-east-1`.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Allows connections without TLS to object stores on other machines, and redirects of web
    /// servers from HTTPS to HTTP.
    ///
    /// Addresses with scheme `http:` and endpoints on this machine are always allowed. Default:
    /// `false`. For object stores, the environment variables `AWS_ALLOW_HTTP`, `GOOGLE_ALLOW_HTTP`
    /// and `AZURE_ALLOW_HTTP` also allow plain HTTP.
    #[must_use]
    pub fn allow_plain_http(mut self, allow: bool) -> Self {
        self.allow_plain_http = allow;
        self
    }

    /// Sends unsigned requests to an object store, or requests without a token to the Hugging Face Hub, for public
    /// data. No credentials are looked up.
    /// Default: the environment (such as `AWS_SKIP_SIGNATURE`), or else `false`. The value `false`
    /// does not override the environment.
    #[must_use]
    pub fn anonymous(mut self, anonymous: bool) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// Sets one credential of an object store, named as in the configuration of the crate
    /// `object_store`. For S3: `access_key_id`, `secret_access_key` and `session_token`.
    ///
    /// The credential overrides environment variables. Default: environment variables, or else the
    /// credentials that the metadata service of a cloud machine provides.
    #[must_use]
    pub fn credential(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.credentials.push((name.into(), value.into()));
        self
    }

    /// Adds a header, such as `Authorization`, to every request to a web server. In object stores,
    /// only S3 requests that read objects or their sizes have the header. The header is not sent to
    /// other servers after a redirect. Default: none.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds trusted root certificates (CA) for the servers of this source: the bytes of a PEM file,
    /// which may hold several certificates.
    ///
    /// The certificates are trusted in addition to the system's roots, for servers with a private
    /// CA. Each call adds certificates. If the bytes are not PEM certificates, opening the source
    /// fails with `InvalidArgument`. Default: none.
    ///
    /// ```no_run
    /// use spdl_io::SourceOptions;
    /// let options = SourceOptions::default().ca_certificates(std::fs::read("our-ca.pem")?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn ca_certificates(mut self, pem: impl Into<Bytes>) -> Self {
        self.ca_certificates.push(pem.into());
        self
    }

    /// Sets the timeout for establishing a connection. The timeout for responses is
    /// [`ResilientOptions::stall_timeout`]. Default: 2 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the maximum number of concurrent requests to each store, at least 1 (0 counts as 1).
    /// Further requests wait. Their waiting time counts as latency of the store. Default: 256.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Sets whether whole objects are compared with the checksum that the store sends with them, in
    /// `x-amz-checksum-crc32c`, `-crc32` or `-crc64nvme`, in `x-goog-hash`, or, without TLS, in
    /// `Content-MD5`. SHA checksums are ignored. An object with other bytes is read again; at last, the read fails with
    /// `Corrupt`. Default: `true`.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Sets the retry and hedging policy of the [`Resilient`](crate::Resilient) layer above the
    /// store. Default: `ResilientOptions::default()`.
    #[must_use]
    pub fn resilience(mut self, options: ResilientOptions) -> Self {
        self.resilience = Some(options);
        self
    }

    /// Removes the [`Resilient`](crate::Resilient) layer. Each failure is returned immediately.
    #[must_use]
    pub fn without_resilience(mut self) -> Self {
        self.resilience = None;
        self
    }
}
