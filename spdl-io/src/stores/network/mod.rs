//! What all stores of the network have in common: who waits for their answers, how they are
//! connected to, and what their refusals mean.

mod body;
mod reactor;
mod refusal;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use reqwest::Certificate;
use reqwest::redirect::Policy;
use spdl_core::{Error, ErrorKind, Result};

pub(crate) use self::body::{collect, exact, gathered};
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub(crate) use self::reactor::panicked;
pub(crate) use self::reactor::{Connections, Reactor};
pub(crate) use self::refusal::Refusal;
use crate::fetch::Unreached;
use crate::stores::SourceOptions;

/// No object reaches farther, and servers know no greater number.
pub(crate) const FARTHEST: u64 = i64::MAX as u64;

/// A client that asks once, follows nothing, and keeps one connection for each request under way:
/// they carry more than one that all share.
pub(crate) fn client(options: &SourceOptions, is_local: bool) -> Result<reqwest::Client> {
    let mut builder = reqwest::Client::builder()
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
        let message = format!("cannot set up a client for HTTP: {}", causes(&error.without_url()));
        Error::new(ErrorKind::Io, message)
    })
}

/// Clients for many servers: one for each way to reach them, as it keeps connections by server, and takes
/// longer to make than a request.
#[derive(Clone, Default)]
pub(crate) struct Clients(Arc<Mutex<HashMap<Way, reqwest::Client>>>);

/// The place of the options, and whether the server is this machine.
type Way = (Option<usize>, bool);

impl Clients {
    /// The client for the server `authority` and these options, which are known by their `place`.
    pub(crate) fn get(
        &self,
        authority: &str,
        options: &SourceOptions,
        place: Option<usize>,
    ) -> Result<reqwest::Client> {
        let is_local = is_this_machine(authority);
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = made.get(&(place, is_local)) {
            return Ok(client.clone());
        }
        let new = client(options, is_local)?;
        made.insert((place, is_local), new.clone());
        Ok(new)
    }
}

/// The certificates of a PEM file.
fn certificates(pem: &[u8]) -> Result<Vec<Certificate>> {
    let invalid = |why: &str| {
        let message = format!("these are no certificates of authorities: {why}");
        Error::new(ErrorKind::InvalidArgument, message)
    };
    let found = Certificate::from_pem_bundle(pem).map_err(|error| invalid(&causes(&error)))?;
    if found.is_empty() {
        return Err(invalid("a PEM file has `-----BEGIN CERTIFICATE-----`"));
    }
    // One by one, as a client that cannot be set up does not say which of them is to blame.
    for certificate in &found {
        let alone = reqwest::Client::builder().tls_certs_only([certificate.clone()]).build();
        alone.map_err(|error| invalid(&causes(&error)))?;
    }
    Ok(found)
}

/// Whether `authority` (`host:port`) is this machine, which is reached without a proxy.
pub(crate) fn is_this_machine(authority: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|host| {
        authority.strip_prefix(host).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    })
}

/// An error that no status tells about: of a connection, or of a body under way.
pub(crate) fn broken(error: reqwest::Error) -> Error {
    let error = error.without_url();
    let unreached = unreached(&error);
    let is_handshake = error.is_connect() && has_cause(&error, io::ErrorKind::InvalidData);
    let (kind, what) = if error.is_timeout() {
        (ErrorKind::Timeout, "the server cannot be reached in time")
    } else if is_handshake {
        // A certificate that nobody vouches for does not get better with time.
        (ErrorKind::Io, "no secure connection to the server")
    } else if is_unresolved(&error) {
        // Name servers fail as others do, and do not always say whether a name is unknown for good.
        (ErrorKind::Unavailable, "no address is known for the name of the server")
    } else if error.is_connect() {
        (ErrorKind::Unavailable, "cannot connect to the server")
    } else if error.is_builder() {
        (ErrorKind::InvalidArgument, "this cannot be asked for")
    } else if error.is_body() || error.is_decode() {
        (ErrorKind::Unavailable, "the answer broke off")
    } else {
        (ErrorKind::Unavailable, "the connection broke")
    };
    let broken = Error::new(kind, format!("{what}: {}", causes(&error)));
    match unreached {
        Some(unreached) => broken.with_source(unreached),
        None => broken,
    }
}

/// Whether no server was met at all: neither an answer nor a connection that broke.
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

/// Whether the name of a server led to no address, for whatever reason, which the connector says in words
/// alone.
pub(crate) fn is_unresolved(error: &(dyn StdError + 'static)) -> bool {
    resolving(error).next().is_some()
}

/// Whether the resolver says that nobody has the name of a server, and not that it failed itself. It says
/// that in the words of the system alone.
fn is_unknown_name(error: &(dyn StdError + 'static)) -> bool {
    /// `EAI_NONAME` of glibc, musl, macOS and Windows.
    const WORDS: [&str; 4] = [
        "name or service not known",
        "name does not resolve",
        "nodename nor servname",
        "no such host",
    ];
    resolving(error).skip(1).any(|cause| {
        let told = cause.to_string().to_ascii_lowercase();
        WORDS.iter().any(|words| told.contains(words))
    })
}

/// That a name led to no address, and why.
fn resolving<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    chain(error).skip_while(|cause| cause.to_string() != "dns error")
}

pub(crate) fn has_cause(error: &(dyn StdError + 'static), kind: io::ErrorKind) -> bool {
    chain(error).any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|cause| {
            // An error of TLS travels inside two of these.
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

/// The causes of an error in one line, none twice.
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
    fn a_resolver_that_fails_does_not_make_a_name_unknown() {
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
    fn only_this_machine_is_reached_without_a_proxy() {
        for host in ["localhost", "127.0.0.1:80", "[::1]:9000", "localhost:1"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["localhost.example.org", "127.0.0.10", "example.org"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
