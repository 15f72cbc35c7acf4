//! Tests of `ObjectStoreFetcher` with a third-party S3 server and with `FaultServer`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use spdl_io::stores::Location;
use spdl_io::testing::{Fault, FaultPlan, FaultServer, fetcher_contract};
use spdl_io::{
    ErrorKind, Fetcher, Key, ObjectStoreFetcher, SourceOptions, StoreRegistry, block_on,
};

use crate::s3_server::S3Server;
use crate::{contents, contract_objects, start_raw_server};

fn options(url: &str) -> SourceOptions {
    SourceOptions::default()
        .endpoint(url)
        .allow_plain_http(true)
        .region("us-east-1")
        .without_resilience()
}

fn open(address: &str, options: SourceOptions) -> Location {
    StoreRegistry::new().with_options("", options).open(address).unwrap()
}

fn anonymous(server: &FaultServer, address: &str) -> Location {
    open(address, options(&server.url()).anonymous(true))
}

// promise: DATA1
#[test]
fn s3_servers_satisfy_the_contract() {
    let root = tempfile::tempdir().unwrap();
    for (name, bytes) in contract_objects("bucket/some folder") {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let server = S3Server::start(root.path(), "reader", "right");
    let signed = |secret: &str| {
        let options = options(&server.url).credential("access_key_id", "reader");
        open("s3://bucket/some folder", options.credential("secret_access_key", secret))
    };
    let place = signed("right");
    fetcher_contract(&*place.fetcher, &place.key);
    let error = block_on(signed("wrong").fetcher.read(&"a".into(), None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{}", error.report());
}

// promise: DATA1
#[test]
fn paged_listings_satisfy_the_contract() {
    let server = FaultServer::start(contract_objects("bucket/folder"));
    server.insert("bucket/folder2/x", "beside it");
    server.set_page(2);
    for address in ["s3://bucket/folder", "gs://bucket/folder"] {
        let place = anonymous(&server, address);
        fetcher_contract(&*place.fetcher, &place.key);
    }
}

#[test]
fn stores_of_the_crate_object_store_are_read_and_listed() {
    use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
    let store = InMemory::new();
    for (name, bytes) in contract_objects("folder") {
        block_on(store.put(&Path::parse(name).unwrap(), bytes.into())).unwrap();
    }
    let fetcher = ObjectStoreFetcher::new(Arc::new(store), "memory");
    // `InMemory` reports an unspecific error for a range beyond the end.
    for (name, bytes) in contract_objects("folder") {
        assert_eq!(block_on(fetcher.read(&name.into(), None)).unwrap(), bytes);
    }
    let listed: Vec<_> =
        block_on(async { fetcher.list(&"folder".into()).await?.try_collect().await }).unwrap();
    assert_eq!(listed.len(), contract_objects("").len());
}

#[test]
fn azure_reads_objects_and_ranges() {
    let server = FaultServer::start([("box/a b", "some bytes"), ("account/box/a b", "some bytes")]);
    let options = options(&server.url()).anonymous(true).credential("account_name", "account");
    let place = open("az://box/a b", options);
    assert_eq!(block_on(place.fetcher.read(&place.key, None)).unwrap(), "some bytes");
    assert_eq!(block_on(place.fetcher.read(&place.key, Some(5..10))).unwrap(), "bytes");
}

/// Azure lists ETags without quotes.
#[test]
fn a_listed_version_without_quotes_can_be_required() {
    let server = FaultServer::start(Vec::<(String, String)>::new());
    server.insert_with_etag("bucket/a", "some bytes", "\"1\"");
    let place = anonymous(&server, "s3://bucket/a");
    let version = Some("1".into());
    let read = || place.fetcher.read_whole_version(&place.key, &100, version.as_ref(), Some(10));
    assert_eq!(block_on(read()).unwrap(), "some bytes");
    let empty = place.fetcher.read_version(&place.key, &[3..3, 5..10], version.as_ref(), None);
    assert_eq!(block_on(empty).unwrap().0, ["", "bytes"]);
    server.insert_with_etag("bucket/a", "some bytes", "\"2\"");
    assert_eq!(block_on(read()).unwrap_err().kind(), ErrorKind::Changed);
}

#[test]
fn object_names_are_sent_unchanged() {
    let names = ["a#b", "a?b", "a%20b", "a b+c", "größe", "a&b=c", "a\\b", "~x*'()!$,;:@"];
    let server = FaultServer::start(names.map(|name| (format!("bucket/{name}"), name.to_owned())));
    for store in ["s3", "gs"] {
        for name in names {
            let place = anonymous(&server, &format!("{store}://bucket/{name}"));
            let read = block_on(place.fetcher.read(&place.key, None));
            let read = read.unwrap_or_else(|error| panic!("{store} {name}: {}", error.report()));
            assert_eq!(read, name, "{store}");
        }
    }
    for name in ["a//b", "/a", "a/", "a/../b", "a\nb", ""] {
        let place = anonymous(&server, "s3://bucket");
        let error = block_on(place.fetcher.read(&Key::from(name), None)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name:?}: {}", error.report());
    }
}

#[test]
fn error_responses_keep_kind_and_retry_after_without_retries() {
    let server = FaultServer::start([("bucket/a", contents(1, 10_000))]);
    for store in ["s3", "gs", "az"] {
        let options = options(&server.url()).anonymous(true).credential("account_name", "bucket");
        let options =
            if store == "az" { options } else { self::options(&server.url()).anonymous(true) };
        let place = open(&format!("{store}://bucket/a"), options);
        for (fault, kind) in [
            (Fault::InternalError, ErrorKind::Unavailable),
            (Fault::BadGateway, ErrorKind::Unavailable),
            (Fault::Unavailable, ErrorKind::Unavailable),
            (Fault::TooManyRequests, ErrorKind::Unavailable),
            (Fault::RequestTimeout, ErrorKind::Timeout),
            (Fault::Closed, ErrorKind::Unavailable),
            (Fault::Garbage, ErrorKind::Unavailable),
        ] {
            let plan = FaultPlan::script(move |_| Some(fault));
            server.set_faults(plan.retry_after(Duration::from_secs(7)));
            let before = server.served().requests;
            let error = block_on(place.fetcher.read(&place.key, None)).unwrap_err();
            assert_eq!(error.kind(), kind, "{store} {fault:?}: {}", error.report());
            assert_eq!(error.key(), Some("a"));
            let has_retry_after = matches!(fault, Fault::Unavailable | Fault::TooManyRequests);
            assert_eq!(
                error.retry_after(),
                has_retry_after.then_some(Duration::from_secs(7)),
                "{fault:?}"
            );
            assert_eq!(server.served().requests, before + 1, "{store} {fault:?}");
        }
        server.set_faults(FaultPlan::script(|_| Some(Fault::ClosedInBody)));
        let before = server.served().requests;
        let key = &place.key;
        if store != "az" {
            let error = block_on(place.fetcher.read(key, None)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{store}: {}", error.report());
            assert_eq!(server.served().requests, before + 1, "{store}");
        }
    }
}

#[test]
fn errors_name_the_region_of_the_bucket() {
    let url = crate::start_raw_server(|_| {
        "HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: eu-west-1\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
            .to_owned()
    });
    let place = open("s3://bucket/a", options(&url).anonymous(true));
    let error = block_on(place.fetcher.read(&place.key, None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "not retried");
    assert!(error.message().contains("set AWS_REGION to eu-west-1"), "{}", error.report());
}

#[test]
fn unsorted_listings_are_rejected() {
    let page = |keys: &[&str]| {
        let entries: String = keys
            .iter()
            .map(|key| {
                format!(
                    "<Contents><Key>{key}</Key><LastModified>1994-11-06T08:49:37.000Z\
                     </LastModified><Size>1</Size></Contents>"
                )
            })
            .collect();
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>")
    };
    let body = page(&["b", "a"]);
    let url = crate::start_raw_server(move |_| {
        let len = body.len();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}")
    });
    let place = open("s3://bucket", options(&url).anonymous(true));
    let listed: Result<Vec<_>, _> =
        block_on(async { place.fetcher.list(&"".into()).await?.try_collect().await });
    let error = listed.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
}

#[test]
fn invalid_settings_are_rejected_without_being_shown() {
    let server = FaultServer::start([("bucket/a", "x")]);
    let bad = options(&server.url()).credential("no_such_setting", "canary");
    for address in ["s3://bucket/a", "gs://bucket/a", "az://bucket/a"] {
        let stores = StoreRegistry::new().with_options("", bad.clone());
        let error = stores.open(address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}", error.report());
        assert!(!error.report().contains("canary"), "{}", error.report());
    }
}

// promise: R15
#[test]
fn damaged_objects_are_detected_by_the_checksum_of_the_store() {
    let serve = |checksum: &'static str, body: &'static str| {
        start_raw_server(move |head| {
            let asks = head.to_ascii_lowercase().contains("x-amz-checksum-mode: enabled");
            let checksum = if asks || checksum.starts_with("x-goog") { checksum } else { "x: y" };
            format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \"1\"\r\n{checksum}\r\n\
                 Last-Modified: Mon, 02 Jan 2023 00:00:00 GMT\r\nContent-Length: 9\r\n\r\n{body}"
            )
        })
    };
    for (address, checksum) in [
        ("s3://bucket", "x-amz-checksum-crc64nvme: rosUhgp5mIg="),
        ("gs://bucket", "x-goog-hash: crc32c=4waSgw=="),
    ] {
        let read = |body, verify: bool| {
            let options = options(&serve(checksum, body)).anonymous(true).verify(verify);
            block_on(open(address, options).fetcher.read(&"a".into(), None))
        };
        assert_eq!(read("123456789", true).unwrap(), "123456789", "{address}");
        let error = read("12345678X", true).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some("a")), "{error}");
        assert_eq!(read("12345678X", false).unwrap(), "12345678X", "{address}");
    }
}

#[test]
fn web_pages_instead_of_objects_are_transient_errors() {
    let url = start_raw_server(|_| {
        "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \"1\"\r\nContent-Type: text/html\r\n\
         Last-Modified: Mon, 02 Jan 2023 00:00:00 GMT\r\nContent-Length: 6\r\n\r\n<html>"
            .to_owned()
    });
    let fetcher = open("s3://bucket", options(&url).anonymous(true)).fetcher;
    let error = block_on(fetcher.read(&"a.jpg".into(), None)).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Unavailable, Some("a.jpg")), "{error}");
    assert!(error.message().contains("sent a web page"), "{error}");
    assert_eq!(block_on(fetcher.read(&"a.html".into(), None)).unwrap(), "<html>");
}
