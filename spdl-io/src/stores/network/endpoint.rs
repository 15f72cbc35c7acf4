//! Checks the endpoint URLs in the options and the environment.

use reqwest::Url;
use spdl_core::{Error, ErrorKind, Result};

use crate::stores::SourceOptions;

/// Environment variables of a store: its endpoints, and the permission for plain HTTP.
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
        "hf" => Variables { servers: &["HF_ENDPOINT"], allow_http: "" },
        "gs" => Variables { servers: &["GOOGLE_BASE_URL"], allow_http: "GOOGLE_ALLOW_HTTP" },
        _ => Variables {
            servers: &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
            allow_http: "AZURE_ALLOW_HTTP",
        },
    }
}

/// Checks the endpoint of a store: that of the options, or else those of the environment.
///
/// # Errors
/// `InvalidArgument` if the endpoint is not a valid URL, holds a user name, password or query, or
/// uses plain HTTP to another machine without permission.
pub(crate) fn check(
    scheme: &str,
    options: &SourceOptions,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<()> {
    let Variables { servers, allow_http } = variables(scheme);
    let is_true =
        |value: String| matches!(&*value.to_ascii_lowercase(), "1" | "true" | "on" | "yes" | "y");
    let allows_plain_http =
        options.allow_plain_http || environment(allow_http).is_some_and(is_true);
    if let Some(endpoint) = &options.endpoint {
        return check_one("endpoint", endpoint, allows_plain_http, allow_http);
    }
    for name in servers {
        if let Some(value) = environment(name) {
            check_one(name, &value, allows_plain_http, allow_http)?;
        }
    }
    Ok(())
}

fn check_one(name: &str, value: &str, allows_plain_http: bool, allow_http: &str) -> Result<()> {
    let invalid = |fault: &str| {
        let message = format!("invalid {name} {:?}: {fault}", redacted(value));
        Error::new(ErrorKind::InvalidArgument, message)
    };
    let lower = value.to_ascii_lowercase();
    if !lower.starts_with("https://") && !lower.starts_with("http://") {
        return Err(invalid("must begin with https:// or http://"));
    }
    let url = Url::parse(value).ok().filter(Url::has_host);
    let url = url.ok_or_else(|| invalid("not a valid URL"))?;
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(invalid("user name, password and query are not allowed"));
    }
    if url.scheme() == "http" && !allows_plain_http && !is_loopback(&url) {
        let or_set = match allow_http {
            "" => String::new(),
            name => format!(", or set {name}=true"),
        };
        return Err(invalid(&format!(
            "plain HTTP sends credentials and data unencrypted; use https://{or_set} (in a program: \
             `allow_plain_http`)"
        )));
    }
    Ok(())
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    host == "localhost" || address.is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// Hides user information and the query, which may be secret.
fn redacted(value: &str) -> String {
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

    fn check_environment(scheme: &str, environment: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let error = check(scheme, &SourceOptions::default(), value).err()?;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        Some(error.message().to_owned())
    }

    #[test]
    fn invalid_endpoints_are_rejected_by_name() {
        assert_eq!(
            check_environment("s3", &[("AWS_ENDPOINT_URL", "127.0.0.1:8766")]).unwrap(),
            "invalid AWS_ENDPOINT_URL \"127.0.0.1:8766\": must begin with https:// or http://"
        );
        for (scheme, name) in [
            ("s3", "AWS_ENDPOINT_URL_S3"),
            ("s3", "AWS_ENDPOINT"),
            ("gs", "GOOGLE_BASE_URL"),
            ("az", "AZURE_STORAGE_ENDPOINT"),
        ] {
            for value in ["", "host:9000", "ftp://host", "http://", "https://a b/", "https://h:x"] {
                let message = check_environment(scheme, &[(name, value)]);
                assert!(
                    message.is_some_and(|it| it.starts_with(&format!("invalid {name} "))),
                    "{name}={value:?}"
                );
            }
            assert_eq!(check_environment(scheme, &[(name, "HTTPS://host:9000/base")]), None);
        }
        let options = SourceOptions::default().endpoint("host:9000");
        let error = check("s3", &options, |_| None).unwrap_err();
        assert!(error.message().starts_with("invalid endpoint \"host:9000\""), "{error}");
    }

    #[test]
    fn plain_http_needs_permission_except_for_localhost() {
        for host in ["localhost:9000", "127.0.0.1", "127.3.2.1:1", "[::1]:9000"] {
            let value = format!("http://{host}");
            assert_eq!(check_environment("s3", &[("AWS_ENDPOINT_URL", &value)]), None, "{host}");
        }
        for host in ["10.0.0.7:9000", "localhost.example.org", "minio"] {
            let value = format!("http://{host}");
            let endpoint = ("AWS_ENDPOINT_URL", &*value);
            let message = check_environment("s3", &[endpoint]).unwrap();
            assert!(message.contains("AWS_ALLOW_HTTP=true"), "{message}");
            assert!(check_environment("s3", &[endpoint, ("AWS_ALLOW_HTTP", "false")]).is_some());
            assert_eq!(check_environment("s3", &[endpoint, ("AWS_ALLOW_HTTP", "true")]), None);
            let options = SourceOptions::default().endpoint(value).allow_plain_http(true);
            assert!(check("s3", &options, |_| None).is_ok());
            assert!(check("s3", &options.allow_plain_http(false), |_| None).is_err());
        }
    }

    #[test]
    fn errors_hide_secrets_of_endpoints() {
        for value in ["http://me:canary@host?canary", "me:canary@host", "https://h?canary"] {
            let message = check_environment("s3", &[("AWS_ENDPOINT_URL", value)]).unwrap();
            assert!(!message.contains("canary"), "{message}");
        }
    }
}
