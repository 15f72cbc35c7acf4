//! How a source is reached, where that is not what everybody does.

use std::time::Duration;

use bytes::Bytes;

use crate::layers::ResilientOptions;
use crate::stores::Secret;

/// How one source is reached: where it is, who asks, and how patiently. For a
/// [`StoreRegistry`](crate::StoreRegistry), and for stores that are opened without one.
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
            resilience: Some(ResilientOptions::default()),
        }
    }
}

impl SourceOptions {
    /// The server of an object store, `https://host:port`. Not for web servers, whose address says
    /// where they are. Default: the store's own, or what the environment says.
    #[must_use]
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// The region of an S3 bucket. Default: what the environment says, or else `us-east-1`.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Whether an object store on another machine may be spoken to without TLS, and whether a web
    /// server may send us from HTTPS to HTTP. An address that says `http:` itself needs no leave, nor
    /// does an endpoint on this machine. Default: no, or what the environment says (`AWS_ALLOW_HTTP`).
    #[must_use]
    pub fn allow_plain_http(mut self, allow: bool) -> Self {
        self.allow_plain_http = allow;
        self
    }

    /// Asks without credentials, for public data; none are looked for. Default: no.
    #[must_use]
    pub fn anonymous(mut self, anonymous: bool) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// A part of the credentials of an object store, by its name in the settings of the crate
    /// `object_store`, as in `access_key_id`, `secret_access_key` and `session_token` for S3. It
    /// goes before the environment. Default: the environment, or the machine's own identity.
    #[must_use]
    pub fn credential(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.credentials.push((name.into(), value.into()));
        self
    }

    /// A header that goes with every request to this source, such as `Authorization`. Where a web
    /// server sends us to another one, that one does not get it. Default: none.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Certificates of authorities whose word is taken for this source's servers, beside those that
    /// the machine trusts: the bytes of a PEM file, which may hold several. For servers whose
    /// certificate comes from an authority of one's own; called again, it adds more. What is no such
    /// file is `InvalidArgument` when the source is opened. Default: none.
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

    /// The longest that a connection may take to be made. How long answers may take is said by
    /// [`ResilientOptions::stall_timeout`]. Default: 2 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// So many requests are under way at once, at least 1; further ones wait, and that wait counts
    /// as the store's. Default: 256.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How failures are lived with: [`Resilient`](crate::Resilient) stands above the store. Default:
    /// its defaults.
    #[must_use]
    pub fn resilience(mut self, options: ResilientOptions) -> Self {
        self.resilience = Some(options);
        self
    }

    /// Every failure is the reader's at once: nothing is tried again.
    #[must_use]
    pub fn without_resilience(mut self) -> Self {
        self.resilience = None;
        self
    }
}
