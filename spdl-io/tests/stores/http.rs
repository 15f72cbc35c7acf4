//! Web servers.

use std::time::Duration;

use spdl_io::testing::{Fault, FaultPlan, FaultServer, fetcher_contract};
use spdl_io::{
    Error, ErrorKind, Fetcher, HttpFetcher, Key, ReadRequest, SourceOptions, StoreRegistry,
    block_on,
};

use crate::{canned, contents, contract_objects};

fn fetcher(url: &str) -> HttpFetcher {
    HttpFetcher::new(url, &SourceOptions::default()).unwrap()
}

fn refusal(fetcher: &HttpFetcher) -> Error {
    block_on(fetcher.read(&"a".into(), None)).unwrap_err()
}

// promise: DATA1
#[test]
fn a_web_server_keeps_the_contract() {
    let server = FaultServer::start(contract_objects("folder"));
    fetcher_contract(&fetcher(&server.url()), &"folder".into());
    fetcher_contract(&fetcher(&format!("{}/folder/", server.url())), &"".into());
}

#[test]
fn a_web_server_keeps_the_contract_behind_the_layer_of_a_registry() {
    let server = FaultServer::start(contract_objects("folder"));
    let place = StoreRegistry::new().open(&format!("{}/folder", server.url())).unwrap();
    fetcher_contract(&*place.fetcher, &place.key);
}

#[test]
fn a_status_is_an_error_of_its_kind_with_the_wait_that_is_asked_for() {
    let server = FaultServer::start([("a", "some bytes")]);
    let fetcher = fetcher(&server.url());
    for (fault, kind, status) in [
        (Fault::InternalError, ErrorKind::Unavailable, "500"),
        (Fault::BadGateway, ErrorKind::Unavailable, "502"),
        (Fault::Unavailable, ErrorKind::Unavailable, "503"),
        (Fault::TooManyRequests, ErrorKind::Unavailable, "429"),
        (Fault::RequestTimeout, ErrorKind::Timeout, "408"),
    ] {
        let plan = FaultPlan::script(move |_| Some(fault)).retry_after(Duration::from_secs(7));
        server.set_faults(plan);
        let error = refusal(&fetcher);
        assert_eq!(error.kind(), kind, "{fault:?}: {}", error.report());
        assert!(error.message().contains(status), "{}", error.report());
        assert_eq!(error.key(), Some("a"));
        let asks = matches!(fault, Fault::Unavailable | Fault::TooManyRequests);
        assert_eq!(error.retry_after(), asks.then_some(Duration::from_secs(7)), "{fault:?}");
    }
}

// promise: DATA3
#[test]
fn a_broken_answer_is_a_transient_error() {
    let server = FaultServer::start([("a", contents(1, 10_000))]);
    let fetcher = fetcher(&server.url());
    for fault in [
        Fault::Closed,
        Fault::Reset,
        Fault::Garbage,
        Fault::GarbageHeader,
        Fault::ClosedInBody,
        Fault::ResetInBody,
        Fault::LongLength,
    ] {
        server.set_faults(FaultPlan::script(move |_| Some(fault)));
        let error = refusal(&fetcher);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {}", error.report());
    }
    for fault in [Fault::ShortRange, Fault::OtherRange, Fault::IgnoredRange] {
        server.set_faults(FaultPlan::script(move |_| Some(fault)));
        let error = block_on(fetcher.read(&"a".into(), Some(10..20))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{fault:?}: {}", error.report());
    }
    server.set_faults(FaultPlan::none());
    assert_eq!(block_on(fetcher.read(&"a".into(), None)).unwrap(), contents(1, 10_000));
}

#[test]
fn a_server_that_is_not_there_is_unavailable() {
    let gone = FaultServer::start([("a", "x")]).url();
    let error = refusal(&fetcher(&gone));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
    let error = refusal(&fetcher("http://no-such-host.invalid"));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
    // It speaks no TLS.
    let server = FaultServer::start([("a", "x")]);
    let error = refusal(&fetcher(&server.url().replace("http:", "https:")));
    assert_ne!(error.kind(), ErrorKind::Internal, "{}", error.report());
}

#[test]
fn a_limit_is_held_before_the_body_is_read() {
    let server = FaultServer::start([("a", contents(1, 10_000_000))]);
    let error = block_on(fetcher(&server.url()).read_at_most(&"a".into(), 1000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(server.served().bytes < 10_000_000, "all of it was sent");
}

// promise: DATA2, R15
#[test]
fn an_object_that_changes_in_the_middle_is_changed() {
    let server = FaultServer::start([("a", contents(1, 100_000))]);
    let fetcher = fetcher(&server.url());
    let version = block_on(fetcher.stat(&"a".into())).unwrap().version.unwrap();
    let rest = ReadRequest::starting_at(50_000).of_version(version);
    assert!(block_on(fetcher.open(&"a".into(), &rest)).is_ok());
    server.insert("a", contents(2, 100_000));
    let error = block_on(fetcher.open(&"a".into(), &rest)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
}

#[test]
fn a_server_without_ranges_says_so_and_one_without_head_is_asked_otherwise() {
    let body = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nabcd";
    let plain = fetcher(&canned(|_| body.to_owned()));
    assert_eq!(block_on(plain.read(&"a".into(), None)).unwrap(), "abcd");
    let error = block_on(plain.read(&"a".into(), Some(1..2))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
    let url = canned(|head| {
        if head.starts_with("HEAD") {
            return "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n".to_owned();
        }
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-0/1234\r\nConnection: close\r\n\
         ETag: \"e\"\r\nContent-Length: 1\r\n\r\na"
            .to_owned()
    });
    let told = block_on(fetcher(&url).stat(&"a".into())).unwrap();
    assert_eq!((told.size, told.version.as_deref()), (1234, Some("\"e\"")));
}

#[test]
fn a_body_without_a_length_is_read_to_its_end() {
    let url = canned(|_| {
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
         3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
            .to_owned()
    });
    assert_eq!(block_on(fetcher(&url).read(&"a".into(), None)).unwrap(), "abcde");
    let url = canned(|_| {
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n"
            .to_owned()
    });
    let error = block_on(fetcher(&url).read(&"a".into(), None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
}

// promise: DATA3
#[test]
fn a_body_that_ends_with_its_connection_is_refused_as_it_may_be_cut() {
    let url = canned(|_| "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcde".to_owned());
    let error = block_on(fetcher(&url).read(&"a".into(), None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
    assert!(error.message().contains("length"), "{error}");
}

#[test]
fn a_redirect_is_followed_and_no_secret_goes_along_to_another_server() {
    let other = FaultServer::start([("b", "there")]);
    let target = format!("{}/b", other.url());
    let first = canned(move |_| {
        format!("HTTP/1.1 302 Found\r\nLocation: {target}\r\nConnection: close\r\n\r\n")
    });
    let options = SourceOptions::default().header("X-Secret", "canary");
    let url = first.replace("http://", "http://me:pw@");
    let fetcher = HttpFetcher::new(&url, &options).unwrap();
    assert_eq!(block_on(fetcher.read(&"a".into(), None)).unwrap(), "there");
    let [seen] = &other.seen()[..] else { panic!("{:?}", other.seen()) };
    let names: Vec<_> = seen.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert!(!names.contains(&"x-secret") && !names.contains(&"authorization"), "{names:?}");

    let server = FaultServer::start([("a", "here")]);
    server.set_faults(FaultPlan::script(|_| Some(Fault::Redirect)));
    let url = server.url().replace("http://", "http://me:pw@");
    let fetcher = HttpFetcher::new(&url, &options).unwrap();
    assert_eq!(block_on(fetcher.read(&"a".into(), None)).unwrap(), "here");
    for seen in server.seen() {
        assert!(seen.headers.contains(&("x-secret".into(), "canary".into())));
        assert!(seen.headers.contains(&("authorization".into(), "Basic bWU6cHc=".into())));
    }
}

#[test]
fn redirects_come_to_an_end() {
    let circle = canned(|_| {
        "HTTP/1.1 302 Found\r\nLocation: /again\r\nConnection: close\r\n\r\n".to_owned()
    });
    let error = refusal(&fetcher(&circle));
    assert!(error.message().contains("more than 10 redirects"), "{}", error.report());
    let file = canned(|_| {
        "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nConnection: close\r\n\r\n".to_owned()
    });
    assert_eq!(refusal(&fetcher(&file)).kind(), ErrorKind::Corrupt);
}

#[test]
fn a_signed_address_is_sent_whole_and_shown_without_its_query() {
    let server = FaultServer::start([("a/x.tar", "bytes")]);
    let address = format!("{}/a/x.tar?sig=canary&x=1", server.url());
    let place = StoreRegistry::new().open(&address).unwrap();
    assert_eq!(block_on(place.fetcher.read(&place.key, None)).unwrap(), "bytes");
    assert_eq!(server.seen()[0].target, "/a/x.tar?sig=canary&x=1");
    assert!(!format!("{place:?} {place} {:?}", place.fetcher).contains("canary"));
    assert_eq!(place.key, Key::from("a/x.tar"));
}

#[test]
fn fewer_connections_than_reads_are_enough() {
    let objects = (0..20).map(|n| (n.to_string(), contents(n, 50_000)));
    let server = FaultServer::start(objects);
    let options = SourceOptions::default().connections(2);
    let fetcher = HttpFetcher::new(&server.url(), &options).unwrap();
    let keys: Vec<Key> = (0..20).map(|n: usize| n.to_string().into()).collect();
    let reads = keys.iter().map(|key| fetcher.read(key, None));
    let bytes = block_on(futures_util::future::try_join_all(reads)).unwrap();
    assert!(bytes.into_iter().enumerate().all(|(n, bytes)| bytes == contents(n, 50_000)));
}

#[test]
fn what_is_no_address_of_the_web_is_refused() {
    for url in ["ftp://host", "some/path", "s3://bucket", "http://"] {
        let error = HttpFetcher::new(url, &SourceOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}: {}", error.report());
    }
    let options = SourceOptions::default().header("a b", "x");
    assert!(HttpFetcher::new("http://host", &options).is_err());
    let options = SourceOptions::default().header("a", "x\ny");
    assert!(HttpFetcher::new("http://host", &options).is_err());
}
