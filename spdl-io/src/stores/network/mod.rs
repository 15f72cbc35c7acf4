//! HTTP client, network thread and error mapping, which all network stores share.
//!
//! | file | what |
//! |---|---|
//! | this file | builds HTTP clients, maps transport errors to [`Error`] |
//! | `body` | response bodies: length checks and buffering |
//! | `checksum` | checksums of objects in response headers |
//! | `endpoint` | checks the endpoint URLs of object stores and of Hugging Face |
//! | `reactor` | the network thread, and the limit of concurrent requests |
//! | `response_error` | error responses: status, headers and code |
//! | `substitute` | successful responses that hold other content than the object |

mod body;
mod checksum;
mod endpoint;
mod reactor;
mod response_error;
mod substitute;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use reqwest::Certificate;
use reqwest::redirect::Policy;
use rustls::crypto::CryptoProvider;
use spdl_core::{Error, ErrorKind, Result};

pub(crate) use self::body::{buffer_first_chunk, exact};
pub(crate) use self::checksum::Checksum;
pub(crate) use self::endpoint::check as check_endpoint;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub(crate) use self::reactor::panicked;
pub(crate) use self::reactor::{Connections, Reactor};
pub(crate) use self::response_error::ResponseError;
pub(crate) use self::substitute::{Substitute, check_empty};
use crate::fetch::Unreached;
use crate::stores::SourceOptions;

/// Largest requested offset in an object, in bytes. Servers use signed 64-bit numbers.
pub(crate) const MAX_OFFSET: u64 = i64::MAX as u64;

/// Builds a client for HTTP/1.1 without retries or redirects.
///
/// Each concurrent request has its own connection, which is faster than one shared HTTP/2
/// connection.
pub(crate) fn client(options: &SourceOptions, is_local: bool) -> Result<reqwest::Client> {
    let mut builder = client_builder()
        .http1_only()
        .redirect(Policy::none())
        .referer(false)
        .retry(reqwest::retry::never())
        .connect_timeout(options.connect_timeout)
        .user_agent(concat!("spdl/", env!("CARGO_PKG_VERSION")));
    if is_local {
        builder = builder.no_proxy();
    }
    for pem in &options.ca_certificates {
        builder = builder.tls_certs_merge(certificates(pem)?);
    }
    builder.build().map_err(|error| {
        let message = format!("cannot create an HTTP client: {}", causes(&error.without_url()));
        Error::new(ErrorKind::Io, message)
    })
}

/// A builder of clients whose TLS uses the cryptography that the program has chosen, by default `ring`.
fn client_builder() -> reqwest::ClientBuilder {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread has chosen meanwhile.
        _ = rustls::crypto::ring::default_provider().install_default();
    }
    reqwest::Client::builder()
}

/// Cache of clients. Each set of options has one client for this machine and one for other servers.
/// Each client keeps a pool of connections per server.
///
/// Creating a client takes longer than a request.
#[derive(Clone, Default)]
pub(crate) struct Clients(Arc<Mutex<HashMap<ClientKey, reqwest::Client>>>);

/// Index of the options, and whether the server is this machine.
type ClientKey = (Option<usize>, bool);

impl Clients {
    /// Returns the client for the server `authority` and the options with index `options_index`.
    pub(crate) fn get(
        &self,
        authority: &str,
        options: &SourceOptions,
        options_index: Option<usize>,
    ) -> Result<reqwest::Client> {
        let is_local = is_this_machine(authority);
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = made.get(&(options_index, is_local)) {
            return Ok(client.clone());
        }
        let new = client(options, is_local)?;
        made.insert((options_index, is_local), new.clone());
        Ok(new)
    }
}

/// Parses the certificates of a PEM file.
fn certificates(pem: &[u8]) -> Result<Vec<Certificate>> {
    let invalid = |why: &str| {
        let message = format!("invalid ca_certificates: {why}");
        Error::new(ErrorKind::InvalidArgument, message)
    };
    let found = Certificate::from_pem_bundle(pem).map_err(|error| invalid(&causes(&error)))?;
    if found.is_empty() {
        return Err(invalid("no `-----BEGIN CERTIFICATE-----` found; expected a PEM file"));
    }
    // Checks each certificate separately: the client's error does not name the invalid one.
    for certificate in &found {
        let alone = client_builder().tls_certs_only([certificate.clone()]).build();
        alone.map_err(|error| invalid(&causes(&error)))?;
    }
    Ok(found)
}

/// Returns whether `authority` (`host:port`) is this machine. Requests to this machine bypass
/// proxies.
pub(crate) fn is_this_machine(authority: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|host| {
        authority.strip_prefix(host).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    })
}

/// Maps an error without HTTP status: a failed connection or body.
pub(crate) fn transport_error(error: reqwest::Error) -> Error {
    let error = error.without_url();
    let unreached = unreached(&error);
    let is_handshake = error.is_connect() && has_cause(&error, io::ErrorKind::InvalidData);
    let (kind, what) = if error.is_timeout() {
        (ErrorKind::Timeout, "connection timed out")
    } else if is_handshake {
        // A retry does not make an untrusted certificate valid.
        (ErrorKind::Io, "TLS handshake with the server failed")
    } else if is_unresolved(&error) {
        // A failure of the name server may be temporary. Some resolvers do not report whether a
        // name exists.
        (ErrorKind::Unavailable, "cannot resolve the host name of the server")
    } else if error.is_connect() {
        (ErrorKind::Unavailable, "cannot connect to the server")
    } else if error.is_builder() {
        (ErrorKind::InvalidArgument, "invalid request")
    } else if error.is_body() || error.is_decode() {
        (ErrorKind::Unavailable, "response body interrupted")
    } else {
        (ErrorKind::Unavailable, "connection lost")
    };
    let transport_error = Error::new(kind, format!("{what}: {}", causes(&error)));
    match unreached {
        Some(unreached) => transport_error.with_source(unreached),
        None => transport_error,
    }
}

/// Returns why no server was reached, or `None` if a connection was established.
pub(crate) fn unreached(error: &(dyn StdError + 'static)) -> Option<Unreached> {
    let is_before_contact = |cause: &(dyn StdError + 'static)| {
        let error = cause.downcast_ref::<reqwest::Error>();
        error.is_some_and(|error| error.is_connect() || error.is_builder())
    };
    if has_cause(error, io::ErrorKind::ConnectionRefused) {
        Some(Unreached::Refused)
    } else if is_unknown_name(error) {
        Some(Unreached::NoAddress)
    } else if chain(error).any(is_before_contact) {
        Some(Unreached::Otherwise)
    } else {
        None
    }
}

/// Returns whether resolving the name of a server failed. The HTTP connector reports this error
/// only as text.
pub(crate) fn is_unresolved(error: &(dyn StdError + 'static)) -> bool {
    resolving(error).next().is_some()
}

/// Returns whether the resolver reports that the host name does not exist. Returns `false` if the
/// resolver itself failed. The operating system reports the difference only as text.
fn is_unknown_name(error: &(dyn StdError + 'static)) -> bool {
    /// Messages for `EAI_NONAME` of glibc, musl, macOS and Windows.
    const WORDS: [&str; 4] = [
        "name or service not known",
        "name does not resolve",
        "nodename nor servname",
        "no such host",
    ];
    resolving(error).skip(1).any(|cause| {
        let text = cause.to_string().to_ascii_lowercase();
        WORDS.iter().any(|words| text.contains(words))
    })
}

/// Returns the error of name resolution and its causes.
fn resolving<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    chain(error).skip_while(|cause| cause.to_string() != "dns error")
}

pub(crate) fn has_cause(error: &(dyn StdError + 'static), kind: io::ErrorKind) -> bool {
    chain(error).any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|cause| {
            // `io::Error` wraps a TLS error twice.
            let inner = cause.get_ref().and_then(|inner| inner.downcast_ref::<io::Error>());
            cause.kind() == kind || inner.is_some_and(|inner| inner.kind() == kind)
        })
    })
}

pub(crate) fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Joins the causes of an error into one line without repetitions.
pub(crate) fn causes(error: &(dyn StdError + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in chain(error) {
        let text = cause.to_string();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Box<dyn StdError>);

    impl std::fmt::Display for Layer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Layer {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&*self.1)
        }
    }

    #[test]
    fn resolver_failures_do_not_count_as_unknown_names() {
        let resolver = "failed to lookup address information: ";
        for (why, is_unknown) in [
            ("Name or service not known", true),
            ("Name does not resolve", true),
            ("nodename nor servname provided, or not known", true),
            ("No such host is known. (os error 11001)", true),
            ("Temporary failure in name resolution", false),
            ("Try again", false),
            ("Non-recoverable failure in name resolution", false),
            ("No address associated with hostname", false),
        ] {
            let error = io::Error::other(format!("{resolver}{why}"));
            let error = Layer("client error (Connect)", Layer("dns error", error.into()).into());
            assert!(is_unresolved(&error), "{why}");
            assert_eq!(is_unknown_name(&error), is_unknown, "{why}");
            assert_eq!(unreached(&error) == Some(Unreached::NoAddress), is_unknown, "{why}");
        }
        let other = Layer("tcp connect error", io::Error::other("no such host").into());
        assert!(!is_unresolved(&other) && !is_unknown_name(&other));
    }

    #[test]
    fn local_addresses_are_recognized() {
        for host in ["localhost", "127.0.0.1:80", "[::1]:9000", "localhost:1"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["localhost.example.org", "127.0.0.10", "example.org"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
