//! Data sets of the Hugging Face Hub: the URLs of their files, and the listing of their folders.

use reqwest::Url;
use reqwest::header::{HeaderMap, LINK};
use serde::Deserialize;
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::ObjectMeta;
use crate::stores::network::check_endpoint;
use crate::stores::{Address, Secret, SourceOptions};

const ENDPOINT: &str = "https://huggingface.co";

/// A data set of the Hub, as a web server.
pub(super) struct HubDataset {
    /// The URL below which the files are.
    pub(super) files: Url,
    /// The URL that lists the files.
    pub(super) tree: Url,
    /// The value of the header `Authorization`, if there is a token.
    pub(super) authorization: Option<Secret>,
}

impl HubDataset {
    /// The data set of an `hf:` address. The endpoint is that of the options, or of `HF_ENDPOINT`; the token is that
    /// of `HF_TOKEN`.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid endpoint.
    pub(super) fn new(
        address: &Address,
        options: &SourceOptions,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        check_endpoint("hf", options, &environment)?;
        let endpoint = options.endpoint.clone().or_else(|| environment("HF_ENDPOINT"));
        let endpoint = endpoint.as_deref().unwrap_or(ENDPOINT).trim_end_matches('/');
        let (name, revision) =
            address.authority().split_once('@').unwrap_or((address.authority(), "main"));
        let revision: String = revision.bytes().map(encoded).collect();
        let url = |path: String| {
            Url::parse(&path).map_err(|_| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    "invalid address of a data set of Hugging Face",
                )
            })
        };
        let token = environment("HF_TOKEN").filter(|_| !options.anonymous);
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        Ok(HubDataset {
            files: url(format!("{endpoint}/{name}/resolve/{revision}"))?,
            tree: url(format!("{endpoint}/api/{name}/tree/{revision}"))?,
            authorization: token.map(|token| format!("Bearer {token}").into()),
        })
    }
}

/// Percent-encodes a byte of a path segment. A slash is encoded too.
fn encoded(byte: u8) -> String {
    match byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    }
}

/// An entry of a listing.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
}

/// The files of a page of a listing.
///
/// # Errors
/// `Corrupt` if the page is not a listing.
pub(super) fn files_of_page(page: &[u8]) -> Result<Vec<ObjectMeta>> {
    let entries: Vec<Entry> = serde_json::from_slice(page).map_err(|error| {
        Error::new(ErrorKind::Corrupt, "the server sent no valid listing").with_source(error)
    })?;
    let files = entries.into_iter().filter(|entry| entry.kind == "file");
    Ok(files.map(|file| ObjectMeta::new(file.path.into(), file.size)).collect())
}

/// The URL of the next page, from the header `Link`: `<URL>; rel="next"`.
pub(super) fn next_page(headers: &HeaderMap) -> Option<String> {
    let links = headers.get_all(LINK).into_iter().filter_map(|link| link.to_str().ok());
    let next =
        links.flat_map(|links| links.split(',')).find(|link| link.contains("rel=\"next\""))?;
    let (_, link) = next.split_once('<')?;
    Some(link.split_once('>')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(address: &str, endpoint: Option<&str>) -> (String, String) {
        let environment =
            |name: &str| endpoint.filter(|_| name == "HF_ENDPOINT").map(str::to_owned);
        let address = Address::parse(address).unwrap();
        let hub = HubDataset::new(&address, &SourceOptions::default(), environment).unwrap();
        assert!(hub.authorization.is_none());
        (hub.files.to_string(), hub.tree.to_string())
    }

    #[test]
    fn addresses_become_urls_of_the_hub() {
        let of = |path: &str, revision: &str, endpoint: &str| {
            let url = |api: &str, what: &str| format!("{endpoint}/{api}{path}/{what}/{revision}");
            (url("", "resolve"), url("api/", "tree"))
        };
        let name = "datasets/me/pets-1.0";
        for (address, revision) in [
            ("hf://datasets/me/pets-1.0/data/a.parquet", "main"),
            ("hf://datasets/me/pets-1.0@v2/a", "v2"),
            ("hf://datasets/me/pets-1.0@refs/convert/parquet/a", "refs%2Fconvert%2Fparquet"),
            ("hf://datasets/me/pets-1.0@refs%2Fpr%2F3/a", "refs%2Fpr%2F3"),
        ] {
            assert_eq!(urls(address, None), of(name, revision, ENDPOINT));
            let mirror = "https://mirror.example/hub";
            assert_eq!(urls(address, Some(mirror)), of(name, revision, mirror));
        }
    }

    #[test]
    fn a_token_is_sent_only_over_tls_and_never_shown() {
        let address = Address::parse("hf://datasets/me/pets/a").unwrap();
        let open = |endpoint: &str, options: &SourceOptions| {
            let value = |name: &str| match name {
                "HF_TOKEN" => Some(" hf_canary\n".to_owned()),
                _ => Some(endpoint.to_owned()),
            };
            HubDataset::new(&address, options, value).map(|hub| hub.authorization)
        };
        let default = SourceOptions::default();
        let token = open("https://hub.example", &default).unwrap().unwrap();
        assert_eq!(token.reveal(), "Bearer hf_canary");
        assert!(open("https://hub.example", &default.clone().anonymous(true)).unwrap().is_none());
        assert!(open("http://127.0.0.1:8000", &default).is_ok());
        for endpoint in ["http://hub.example", "hub.example", "https://me:canary@hub.example"] {
            let error = open(endpoint, &default).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().starts_with("invalid HF_ENDPOINT"), "{error}");
            assert!(!error.report().contains("canary"), "{error}");
        }
        assert!(open("http://hub.example", &default.allow_plain_http(true)).is_ok());
    }

    #[test]
    fn pages_of_a_listing_are_parsed() {
        let page = br#"[{"type": "directory", "oid": "1", "size": 0, "path": "data"},
                        {"type": "file", "oid": "2", "size": 7, "path": "data/a.parquet", "lfs": {}}]"#;
        let files = files_of_page(page).unwrap();
        assert_eq!(
            (files.len(), files[0].key.as_str(), files[0].size),
            (1, Some("data/a.parquet"), 7)
        );
        for damaged in [&b"{}"[..], b"[{}]", b"[", b""] {
            assert_eq!(files_of_page(damaged).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        let mut headers = HeaderMap::new();
        assert_eq!(next_page(&headers), None);
        headers.insert(
            LINK,
            "<https://h/1>; rel=\"prev\", <https://h/2?x=1>; rel=\"next\"".parse().unwrap(),
        );
        assert_eq!(next_page(&headers).as_deref(), Some("https://h/2?x=1"));
    }
}
