//! Builds clients of the crate `object_store` from an address, options and environment variables.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;

use object_store::{
    BackoffConfig, ClientOptions, HeaderMap, HeaderValue, ObjectStore, RetryConfig,
};
use reqwest::header::HeaderName;
use spdl_core::{Error, ErrorKind, Result};

use super::connector::Connector;
use super::{ObjectStoreFetcher, scrub};
use crate::stores::network::{
    self, Connections, Reactor, causes, check_endpoint, is_this_machine, panicked,
};
use crate::stores::{Address, Secret, SourceOptions};

/// Opens the bucket or container of an address.
pub(crate) fn open(
    address: &Address,
    options: &SourceOptions,
    reactor: Reactor,
) -> Result<ObjectStoreFetcher> {
    check_endpoint(address.scheme(), options, |name| std::env::var(name).ok())?;
    let host = options.endpoint.as_deref().and_then(|url| url.split_once("://")).map(|it| it.1);
    let client = network::client(options, host.is_some_and(is_this_machine))?;
    let identity_service = std::env::var("AWS_METADATA_ENDPOINT").ok();
    let identity_service = identity_service.and_then(|url| {
        let (_, rest) = url.split_once("://")?;
        Some(rest.split('/').next().unwrap_or_default().to_owned())
    });
    let setup = StoreSetup {
        bucket: address.authority(),
        options,
        connector: Connector { client, identity_service },
    };
    let secrets: Arc<[Secret]> = secrets(options).into();
    let build = || match address.scheme() {
        #[cfg(feature = "s3")]
        "s3" => setup.s3(),
        #[cfg(feature = "gcs")]
        "gs" => setup.gcs(),
        #[cfg(feature = "azure")]
        "az" => setup.azure(),
        other => Err(invalid(format!("scheme {other:?} does not denote an object store"))),
    };
    // The builders of `object_store` may panic on invalid environment variables.
    let store = catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|it| Err(panicked(&*it)));
    let store = store.map_err(|error| {
        Error::new(
            error.kind(),
            scrub(format!("{}: {}", address.store(), error.message()), &secrets),
        )
    })?;
    Ok(ObjectStoreFetcher {
        store,
        name: address.store().into(),
        reactor,
        connections: Connections::new(options.connections),
        verify: options.verify,
        secrets,
    })
}

/// Requests the checksum of an object with its bytes.
#[cfg(feature = "s3")]
const CHECKSUM_MODE: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"));

struct StoreSetup<'a> {
    bucket: &'a str,
    options: &'a SourceOptions,
    connector: Connector,
}

impl StoreSetup<'_> {
    #[cfg(feature = "s3")]
    fn s3(self) -> Result<Arc<dyn ObjectStore>> {
        use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
        let mut builder = AmazonS3Builder::from_env();
        for (key, value) in self.settings()? {
            builder = builder.with_config(key, value);
        }
        if let Some(endpoint) = &self.options.endpoint {
            // Sets both keys, so that the options override both environment variables.
            builder = builder.with_endpoint(endpoint);
            builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
        }
        if let Some(region) = &self.options.region {
            builder = builder.with_region(region);
        }
        if self.options.allow_plain_http {
            builder = builder.with_allow_http(true);
        }
        if self.options.anonymous {
            builder = builder.with_skip_signature(true);
        }
        let store = builder
            .with_bucket_name(self.bucket)
            .with_retry(no_retries())
            .with_client_options(self.client_options(self.options.verify.then_some(CHECKSUM_MODE))?)
            .with_http_connector(self.connector)
            .build();
        Ok(Arc::new(store.map_err(setup_error)?))
    }

    #[cfg(feature = "gcs")]
    fn gcs(self) -> Result<Arc<dyn ObjectStore>> {
        use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
        let mut builder = GoogleCloudStorageBuilder::from_env();
        for (key, value) in self.settings()? {
            builder = builder.with_config(key, value);
        }
        if let Some(endpoint) = &self.options.endpoint {
            builder = builder.with_config(GoogleConfigKey::BaseUrl, endpoint);
        }
        if self.options.anonymous {
            builder = builder.with_skip_signature(true);
        }
        let store = builder
            .with_bucket_name(self.bucket)
            .with_retry(no_retries())
            .with_client_options(self.client_options(None)?)
            .with_http_connector(self.connector)
            .build();
        Ok(Arc::new(store.map_err(setup_error)?))
    }

    #[cfg(feature = "azure")]
    fn azure(self) -> Result<Arc<dyn ObjectStore>> {
        use object_store::azure::MicrosoftAzureBuilder;
        let mut builder = MicrosoftAzureBuilder::from_env();
        for (key, value) in self.settings()? {
            builder = builder.with_config(key, value);
        }
        if let Some(endpoint) = &self.options.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        if self.options.allow_plain_http {
            builder = builder.with_allow_http(true);
        }
        if self.options.anonymous {
            builder = builder.with_skip_signature(true);
        }
        let store = builder
            .with_container_name(self.bucket)
            .with_retry(no_retries())
            .with_client_options(self.client_options(None)?)
            .with_http_connector(self.connector)
            .build();
        Ok(Arc::new(store.map_err(setup_error)?))
    }

    /// Parses the credentials of the options into configuration keys of the store.
    fn settings<K: FromStr>(&self) -> Result<Vec<(K, String)>> {
        let setting = |(name, value): &(String, Secret)| match name.parse() {
            Ok(key) => Ok((key, value.reveal().to_owned())),
            Err(_) => Err(invalid(format!("unknown credential name {name:?}"))),
        };
        self.options.credentials.iter().map(setting).collect()
    }

    fn client_options(&self, header: Option<(HeaderName, HeaderValue)>) -> Result<ClientOptions> {
        let mut headers = HeaderMap::from_iter(header);
        for (name, value) in &self.options.headers {
            let name: HeaderName =
                name.parse().map_err(|_| invalid("invalid character in header name".to_owned()))?;
            let mut value = HeaderValue::from_str(value.reveal())
                .map_err(|_| invalid("invalid character in header value".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let allow_http = self.options.allow_plain_http;
        Ok(ClientOptions::new().with_allow_http(allow_http).with_default_headers(headers))
    }
}

/// Disables the retries of `object_store`, because the [`Resilient`](crate::Resilient) layer
/// retries.
fn no_retries() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, ..RetryConfig::default() }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

fn setup_error(error: object_store::Error) -> Error {
    invalid(format!("cannot set up the store: {}", causes(&error)))
}

/// Returns the values that no message may contain: secrets of the options and the environment.
fn secrets(options: &SourceOptions) -> Vec<Secret> {
    let given = options.credentials.iter().chain(&options.headers);
    let mut secrets: Vec<Secret> = given.map(|(_, value)| value.clone()).collect();
    for (name, value) in std::env::vars_os() {
        let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
        let is_ours = ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|it| name.starts_with(it));
        let is_secret = ["KEY", "SECRET", "TOKEN", "PASSWORD", "ACCOUNT", "SAS"]
            .iter()
            .any(|word| name.contains(word));
        let is_path = value.starts_with('/');
        if is_ours && is_secret && !is_path && !name.ends_with("ACCOUNT_NAME") {
            secrets.push(value.into());
        }
    }
    secrets
}
