//! Whether the servers that the options and the environment name can be asked, and may be.

use reqwest::Url;
use spdl_core::{Error, ErrorKind, Result};

use crate::stores::SourceOptions;

/// A store's variables: those that name a server, and the one that allows plain HTTP.
struct Variables {
    servers: &'static [&'static str],
    allow_http: &'static str,
}

fn variables(scheme: &str) -> Variables {
    match scheme {
        "s3" => Variables {
            servers: &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
            allow_http: "AWS_ALLOW_HTTP",
        },
        "gs" => Variables { servers: &["GOOGLE_BASE_URL"], allow_http: "GOOGLE_ALLOW_HTTP" },
        _ => Variables {
            servers: &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
            allow_http: "AZURE_ALLOW_HTTP",
        },
    }
}

/// Checks the server of a store of this scheme: that of the options, or those of the environment.
///
/// # Errors
/// `InvalidArgument` for what is no address of a server, and for plain HTTP to another machine without
/// leave.
pub(super) fn check(
    scheme: &str,
    options: &SourceOptions,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<()> {
    let Variables { servers, allow_http } = variables(scheme);
    let is_true =
        |value: String| matches!(&*value.to_ascii_lowercase(), "1" | "true" | "on" | "yes" | "y");
    let may_be_plain = options.allow_plain_http || environment(allow_http).is_some_and(is_true);
    if let Some(endpoint) = &options.endpoint {
        return check_one("the endpoint", endpoint, may_be_plain, allow_http);
    }
    for name in servers {
        if let Some(value) = environment(name) {
            check_one(name, &value, may_be_plain, allow_http)?;
        }
    }
    Ok(())
}

fn check_one(name: &str, value: &str, may_be_plain: bool, allow_http: &str) -> Result<()> {
    let invalid = |fault: &str| {
        let message = format!("{name} is {:?}{fault}", shown(value));
        Error::new(ErrorKind::InvalidArgument, message)
    };
    let lower = value.to_ascii_lowercase();
    if !lower.starts_with("https://") && !lower.starts_with("http://") {
        return Err(invalid("; it has to begin with https:// or http://"));
    }
    let url = Url::parse(value).ok().filter(Url::has_host);
    let url = url.ok_or_else(|| invalid(", which is no address of a server"))?;
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(invalid("; name, password and query do not belong into it"));
    }
    if url.scheme() == "http" && !may_be_plain && !is_loopback(&url) {
        return Err(invalid(&format!(
            ", where all that is sent can be read on the way: use https://, or allow it by \
             {allow_http}=true (in a program, `allow_plain_http`)"
        )));
    }
    Ok(())
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    host == "localhost" || address.is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// Without what may be secret.
fn shown(value: &str) -> String {
    let (value, query) = match value.split_once('?') {
        Some((value, _)) => (value, "?***"),
        None => (value, ""),
    };
    match value.rsplit_once('@') {
        Some((_, host)) => format!("***@{host}{query}"),
        None => format!("{value}{query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(scheme: &str, environment: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let error = check(scheme, &SourceOptions::default(), value).err()?;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        Some(error.message().to_owned())
    }

    #[test]
    fn an_endpoint_that_is_no_address_is_refused_by_its_name() {
        assert_eq!(
            told("s3", &[("AWS_ENDPOINT_URL", "127.0.0.1:8766")]).unwrap(),
            "AWS_ENDPOINT_URL is \"127.0.0.1:8766\"; it has to begin with https:// or http://"
        );
        for (scheme, name) in [
            ("s3", "AWS_ENDPOINT_URL_S3"),
            ("s3", "AWS_ENDPOINT"),
            ("gs", "GOOGLE_BASE_URL"),
            ("az", "AZURE_STORAGE_ENDPOINT"),
        ] {
            for value in ["", "host:9000", "ftp://host", "http://", "https://a b/", "https://h:x"] {
                let message = told(scheme, &[(name, value)]);
                assert!(message.is_some_and(|it| it.starts_with(name)), "{name}={value:?}");
            }
            assert_eq!(told(scheme, &[(name, "HTTPS://host:9000/base")]), None);
        }
        let options = SourceOptions::default().endpoint("host:9000");
        let error = check("s3", &options, |_| None).unwrap_err();
        assert!(error.message().starts_with("the endpoint is \"host:9000\""), "{error}");
    }

    #[test]
    fn plain_http_needs_leave_but_on_this_machine() {
        for host in ["localhost:9000", "127.0.0.1", "127.3.2.1:1", "[::1]:9000"] {
            let value = format!("http://{host}");
            assert_eq!(told("s3", &[("AWS_ENDPOINT_URL", &value)]), None, "{host}");
        }
        for host in ["10.0.0.7:9000", "localhost.example.org", "minio"] {
            let value = format!("http://{host}");
            let endpoint = ("AWS_ENDPOINT_URL", &*value);
            let message = told("s3", &[endpoint]).unwrap();
            assert!(message.contains("AWS_ALLOW_HTTP=true"), "{message}");
            assert!(told("s3", &[endpoint, ("AWS_ALLOW_HTTP", "false")]).is_some());
            assert_eq!(told("s3", &[endpoint, ("AWS_ALLOW_HTTP", "true")]), None);
            let options = SourceOptions::default().endpoint(value).allow_plain_http(true);
            assert!(check("s3", &options, |_| None).is_ok());
            assert!(check("s3", &options.allow_plain_http(false), |_| None).is_err());
        }
    }

    #[test]
    fn what_is_secret_in_an_endpoint_is_not_shown() {
        for value in ["http://me:canary@host?canary", "me:canary@host", "https://h?canary"] {
            let message = told("s3", &[("AWS_ENDPOINT_URL", value)]).unwrap();
            assert!(!message.contains("canary"), "{message}");
        }
    }
}
