//! Tests of `HttpFetcher`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use spdl_core::{Labeled, PipelineBuilder, StageOptions};
use spdl_io::testing::{Fault, FaultPlan, FaultServer, fetcher_contract};
use spdl_io::{
    Bytes, Error, ErrorKind, Fetch, Fetcher, HttpFetcher, Key, ReadRequest, Resilient, Result,
    SourceOptions, StoreRegistry, block_on,
};

use crate::{contents, contract_objects, start_raw_server};

fn fetcher(url: &str) -> HttpFetcher {
    HttpFetcher::new(url, &SourceOptions::default()).unwrap()
}

fn read_error(fetcher: &HttpFetcher) -> Error {
    block_on(fetcher.read(&"a".into(), None)).unwrap_err()
}

// promise: DATA1
#[test]
fn web_servers_satisfy_the_contract() {
    let server = FaultServer::start(contract_objects("folder"));
    fetcher_contract(&fetcher(&server.url()), &"folder".into());
    fetcher_contract(&fetcher(&format!("{}/folder/", server.url())), &"".into());
}

#[test]
fn web_servers_of_a_registry_satisfy_the_contract() {
    let server = FaultServer::start(contract_objects("folder"));
    let place = StoreRegistry::new().open(&format!("{}/folder", server.url())).unwrap();
    fetcher_contract(&*place.fetcher, &place.key);
}

#[test]
fn statuses_map_to_error_kinds_with_retry_after() {
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
        let error = read_error(&fetcher);
        assert_eq!(error.kind(), kind, "{fault:?}: {}", error.report());
        assert!(error.message().contains(status), "{}", error.report());
        assert_eq!(error.key(), Some("a"));
        let asks = matches!(fault, Fault::Unavailable | Fault::TooManyRequests);
        assert_eq!(error.retry_after(), asks.then_some(Duration::from_secs(7)), "{fault:?}");
    }
}

// promise: DATA3
#[test]
fn broken_responses_are_transient_errors() {
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
        let error = read_error(&fetcher);
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
fn missing_servers_are_unavailable() {
    let gone = FaultServer::start([("a", "x")]).url();
    let error = read_error(&fetcher(&gone));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
    let error = read_error(&fetcher("http://no-such-host.invalid"));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
    // The server does not support TLS.
    let server = FaultServer::start([("a", "x")]);
    let error = read_error(&fetcher(&server.url().replace("http:", "https:")));
    assert_ne!(error.kind(), ErrorKind::Internal, "{}", error.report());
}

#[test]
fn the_size_limit_is_checked_before_the_body() {
    let server = FaultServer::start([("a", contents(1, 10_000_000))]);
    let error = block_on(fetcher(&server.url()).read_whole(&"a".into(), &1000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(server.served().bytes < 10_000_000, "the whole body was sent");
}

// promise: DATA2, R15
#[test]
fn objects_that_change_between_requests_are_detected() {
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
fn servers_without_ranges_or_head_are_handled() {
    let body = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nabcd";
    let plain = fetcher(&start_raw_server(|_| body.to_owned()));
    assert_eq!(block_on(plain.read(&"a".into(), None)).unwrap(), "abcd");
    let error = block_on(plain.read(&"a".into(), Some(1..2))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
    let url = start_raw_server(|head| {
        if head.starts_with("HEAD") {
            return "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n".to_owned();
        }
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-0/1234\r\nConnection: close\r\n\
         ETag: \"e\"\r\nContent-Length: 1\r\n\r\na"
            .to_owned()
    });
    let meta = block_on(fetcher(&url).stat(&"a".into())).unwrap();
    assert_eq!((meta.size, meta.version.as_deref()), (1234, Some("\"e\"")));
}

#[test]
fn chunked_bodies_are_read_to_their_end() {
    let url = start_raw_server(|_| {
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
         3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
            .to_owned()
    });
    assert_eq!(block_on(fetcher(&url).read(&"a".into(), None)).unwrap(), "abcde");
    let url = start_raw_server(|_| {
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n"
            .to_owned()
    });
    let error = block_on(fetcher(&url).read(&"a".into(), None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
}

#[test]
fn chunked_bodies_are_compared_with_the_required_size() {
    let server = FaultServer::start([("a", "abcde")]);
    let fetcher = Resilient::new(Arc::new(fetcher(&server.url())), crate::many_retries()).unwrap();
    let read = |size| block_on(fetcher.read_whole_version(&"a".into(), &100, None, Some(size)));
    server.set_faults(FaultPlan::script(|_| Some(Fault::Chunked)));
    assert_eq!(read(5).unwrap(), "abcde");
    let longer = read(4).unwrap_err();
    assert_eq!((longer.kind(), longer.offset()), (ErrorKind::Corrupt, Some(4)), "{longer}");
    let shorter = read(6).unwrap_err();
    assert_eq!(shorter.kind(), ErrorKind::Changed, "{shorter}");
    assert!(shorter.message().contains("its size was 6 bytes and is now 5 bytes"), "{shorter}");
    assert_eq!((longer.key(), shorter.key()), (Some("a"), Some("a")));
}

// promise: DATA3
#[test]
fn bodies_without_length_or_chunks_are_rejected() {
    let url = start_raw_server(|_| "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcde".to_owned());
    let error = block_on(fetcher(&url).read(&"a".into(), None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
    assert!(error.message().contains("Content-Length"), "{error}");
}

#[test]
fn redirects_send_no_secrets_to_other_servers() {
    let other = FaultServer::start([("b", "there")]);
    let target = format!("{}/b", other.url());
    let first = start_raw_server(move |_| {
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
fn redirects_are_limited() {
    let circle = start_raw_server(|_| {
        "HTTP/1.1 302 Found\r\nLocation: /again\r\nConnection: close\r\n\r\n".to_owned()
    });
    let error = read_error(&fetcher(&circle));
    assert!(error.message().contains("more than 10 redirects"), "{}", error.report());
    let file = start_raw_server(|_| {
        "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nConnection: close\r\n\r\n".to_owned()
    });
    assert_eq!(read_error(&fetcher(&file)).kind(), ErrorKind::Corrupt);
}

#[test]
fn presigned_urls_are_sent_whole_and_shown_without_query() {
    let server = FaultServer::start([("a/x.tar", "bytes")]);
    let address = format!("{}/a/x.tar?sig=canary&x=1", server.url());
    let place = StoreRegistry::new().open(&address).unwrap();
    assert_eq!(block_on(place.fetcher.read(&place.key, None)).unwrap(), "bytes");
    assert_eq!(server.seen()[0].target, "/a/x.tar?sig=canary&x=1");
    assert!(!format!("{place:?} {place} {:?}", place.fetcher).contains("canary"));
    assert_eq!(place.key, Key::from("a/x.tar"));
}

#[test]
fn reads_share_few_connections() {
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
fn a_limited_link_sends_responses_one_after_the_other() {
    let server = FaultServer::start((0..4).map(|n: usize| (n.to_string(), contents(n, 50_000))));
    server.set_faults(FaultPlan::none().bandwidth(1e6));
    let fetcher = HttpFetcher::new(&server.url(), &SourceOptions::default()).unwrap();
    let keys: Vec<Key> = (0..4).map(|n: usize| n.to_string().into()).collect();
    let started = std::time::Instant::now();
    let read = block_on(join_all(keys.iter().map(|key| fetcher.read(key, None))));
    assert!(read.iter().all(|bytes| bytes.as_ref().unwrap().len() == 50_000));
    assert!(started.elapsed() >= Duration::from_millis(200), "{:?}", started.elapsed());
}

#[test]
fn waits_for_a_connection_are_neither_stalls_nor_retry_time() {
    let server = FaultServer::start([("a", "some bytes")]);
    server.set_faults(FaultPlan::none().latency(Duration::from_millis(100)));
    let options = SourceOptions::default().connections(1);
    let resilience = crate::many_retries()
        .stall_timeout(Duration::from_millis(800))
        .budget(Duration::from_millis(900));
    let store = Arc::new(HttpFetcher::new(&server.url(), &options).unwrap());
    let fetcher = Resilient::new(store, resilience).unwrap();
    // The last read waits for 2 s.
    let key = Key::from("a");
    let reads = block_on(join_all((0..20).map(|_| fetcher.read(&key, None))));
    for read in reads {
        assert_eq!(read.unwrap(), "some bytes");
    }
    let statistics = fetcher.statistics();
    assert_eq!((statistics.requests, statistics.stalls, statistics.retries), (20, 0, 0));
}

// promise: R4
#[test]
fn responses_that_wait_for_memory_do_not_block_other_requests() {
    const SIZE: usize = 1 << 20;
    let names: Vec<_> = (0..8).map(|number| format!("data/{number}")).collect();
    let server = FaultServer::start(names.iter().map(|name| (name.clone(), contents(3, SIZE))));
    // The first object is the last to arrive. Until then, the others keep their memory.
    server.set_faults(FaultPlan::script(|request| {
        let is_first = request.key.ends_with("/0") && request.attempt < 3;
        is_first.then_some(Fault::InternalError)
    }));
    let options = SourceOptions::default().connections(1).resilience(crate::many_retries());
    let stores = StoreRegistry::new().with_options("http:", options);
    let place = stores.open(&server.url()).unwrap();
    let keys = names.iter().map(|name| Labeled { value: Key::from(name.as_str()), label: 0 });
    let pipeline = PipelineBuilder::from_iter(keys.collect::<Vec<_>>())
        .async_stage(StageOptions::new("fetch").concurrency(8), Fetch::new(place.fetcher))
        .measured()
        .map("size", |image: Labeled<Bytes>| Ok(image.value.len()))
        .memory(SIZE * 3 / 2)
        .largest_item(SIZE / 8)
        .deterministic()
        .build()
        .unwrap();
    let (send, sizes) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(pipeline.collect::<Result<Vec<_>>>()));
    let sizes = sizes.recv_timeout(Duration::from_secs(20)).expect("no deadlock");
    assert_eq!(sizes.unwrap(), [SIZE; 8]);
}

#[test]
fn urls_of_other_schemes_are_rejected() {
    for url in ["ftp://host", "some/path", "s3://bucket", "http://"] {
        let error = HttpFetcher::new(url, &SourceOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}: {}", error.report());
    }
    let options = SourceOptions::default().header("a b", "x");
    assert!(HttpFetcher::new("http://host", &options).is_err());
    let options = SourceOptions::default().header("a", "x\ny");
    assert!(HttpFetcher::new("http://host", &options).is_err());
}

// promise: R15
#[test]
fn answers_with_other_content_are_retried_and_named() {
    const GZIP: &str = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n";
    const PAGE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n";
    let answer = |head: &str, body: &str| {
        format!("{head}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let read = |name: &str, lies: usize| {
        let answers = std::sync::Mutex::new(0);
        let url = start_raw_server(move |_| {
            let mut answers = answers.lock().unwrap();
            *answers += 1;
            match *answers {
                number if number > lies => answer(PAGE, "an object"),
                number if number % 2 == 0 => answer(GZIP, "\u{1f}compressed"),
                _ => answer(PAGE, "\n<!DOCTYPE html><title>Please log in</title>"),
            }
        });
        let resilient = Resilient::new(Arc::new(fetcher(&url)), crate::many_retries().attempts(4));
        block_on(resilient.unwrap().read(&name.into(), None))
    };
    // The right object may have the header of a web page.
    assert_eq!(read("a.jpg", 0).unwrap(), "an object");
    assert_eq!(read("a.jpg", 3).unwrap(), "an object");
    let error = read("a.jpg", 100).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Unavailable, Some("a.jpg")));
    for words in ["sent a web page (Content-Type: text/html) instead", "compressed the object"] {
        assert!(error.report().contains(words), "{}", error.report());
    }
    // The object may be a web page itself.
    for name in ["a.html", "pages/1"] {
        assert!(read(name, 1).unwrap().starts_with(b"\n<!DOCTYPE"), "{name}");
    }
}

/// Starts a server whose object is "123456789". Its first `damaged` responses have another byte; of
/// these, the first is truncated after 5 bytes. All responses have the header `checksum`.
fn start_damaged_server(checksum: &'static str, damaged: usize) -> String {
    let responses = std::sync::Mutex::new(0);
    start_raw_server(move |head| {
        let mut responses = responses.lock().unwrap();
        *responses += 1;
        let is_rest = head.to_ascii_lowercase().contains("range: bytes=5-");
        let (status, body) = match is_rest {
            true => ("206 Partial Content\r\nContent-Range: bytes 5-8/9", "6789"),
            false if *responses == 1 && damaged > 0 => ("200 OK", "12X45"),
            false if *responses <= damaged => ("200 OK", "1234X6789"),
            false => ("200 OK", "123456789"),
        };
        let len = if is_rest { 4 } else { 9 };
        format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nETag: \"1\"\r\n{checksum}\r\n\
             Content-Length: {len}\r\n\r\n{body}"
        )
    })
}

// promise: R15
#[test]
fn damaged_bytes_are_read_again_if_the_store_sends_a_checksum() {
    let resilient = |fetcher: Arc<dyn Fetcher>| {
        Resilient::new(fetcher, crate::many_retries().attempts(5)).unwrap()
    };
    for checksum in [
        "Content-MD5: JfnnlDI7RTiF9RgfG2JNCw==",
        "x-amz-checksum-crc32: y/Q5Jg==",
        "x-amz-checksum-crc32c: 4waSgw==",
        "x-amz-checksum-crc64nvme: rosUhgp5mIg=",
        "x-goog-hash: crc32c=4waSgw==,md5=JfnnlDI7RTiF9RgfG2JNCw==",
    ] {
        let read = |damaged: usize| {
            let fetcher = resilient(Arc::new(fetcher(&start_damaged_server(checksum, damaged))));
            let read = block_on(fetcher.read(&"a".into(), None));
            (read, fetcher.statistics())
        };
        assert_eq!(read(0).0.unwrap(), "123456789", "{checksum}");
        let (bytes, statistics) = read(4);
        assert_eq!(bytes.unwrap(), "123456789", "{checksum}");
        // The truncated response is resumed before the checksum is known to differ.
        assert_eq!((statistics.requests, statistics.resumed), (5, 1), "{checksum}");
        let error = read(100).0.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some("a")), "{checksum}");
        assert!(error.message().contains("the bytes received are damaged"), "{error}");
        // Without retries, the damage is an error.
        let url = start_damaged_server(checksum, 100);
        assert_eq!(read_error(&fetcher(&url)).kind(), ErrorKind::Unavailable);
        assert_eq!(read_error(&fetcher(&url)).kind(), ErrorKind::Corrupt, "{checksum}");
        let trusting = HttpFetcher::new(&url, &SourceOptions::default().verify(false)).unwrap();
        assert_eq!(block_on(trusting.read(&"a".into(), None)).unwrap(), "1234X6789");
    }
}

#[test]
fn damaged_streams_fail_if_the_store_sends_a_checksum() {
    let url = start_damaged_server("x-amz-checksum-crc32c: 4waSgw==", 100);
    assert_eq!(read_error(&fetcher(&url)).kind(), ErrorKind::Unavailable);
    let resilient = Resilient::new(Arc::new(fetcher(&url)), crate::many_retries().attempts(3));
    let error = block_on(async {
        let body = resilient.unwrap().open(&"a".into(), &ReadRequest::whole()).await?;
        body.bytes().await
    });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn the_test_server_sends_the_header_of_an_object_with_whole_objects_only() {
    let server = FaultServer::start([("a", "123456789")]);
    server.set_header("x-amz-checksum-crc32c", |_| "AAAAAA==".to_owned());
    let fetcher = fetcher(&server.url());
    assert_eq!(block_on(fetcher.read(&"a".into(), Some(0..5))).unwrap(), "12345");
    assert_eq!(read_error(&fetcher).kind(), ErrorKind::Corrupt);
}

// promise: R15
#[test]
fn a_web_page_is_neither_a_size_nor_a_range_nor_another_version() {
    let server = FaultServer::start([("a.tar", contents(1, 10_000))]);
    let fetcher = fetcher(&server.url());
    let key = Key::from("a.tar");
    let version = block_on(fetcher.stat(&key)).unwrap().version.unwrap();
    server.set_faults(FaultPlan::script(|_| Some(Fault::WebPage)));
    let pinned = ReadRequest::whole().of_version(version);
    for error in [
        block_on(fetcher.stat(&key)).unwrap_err(),
        block_on(fetcher.read(&key, Some(20..30))).unwrap_err(),
        block_on(fetcher.open(&key, &pinned)).map(|_| ()).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.key()), (ErrorKind::Unavailable, Some("a.tar")));
        assert!(error.message().contains("web page"), "{error}");
    }
    // A server that sends the right object with the header of a page.
    let url = start_raw_server(|head| {
        let body = if head.starts_with("HEAD") { "" } else { "a" };
        format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Type: text/html\r\nConnection: close\r\n\
             Content-Range: bytes 0-0/1234\r\nContent-Length: 1\r\n\r\n{body}"
        )
    });
    assert_eq!(block_on(self::fetcher(&url).stat(&key)).unwrap().size, 1234);
}

#[test]
fn a_web_page_without_content_type_is_not_an_object() {
    let url = start_raw_server(|_| {
        let page = "\n<!DOCTYPE HTML><title>Please log in</title>";
        let len = page.len();
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{page}")
    });
    let resilient = Resilient::new(Arc::new(fetcher(&url)), crate::many_retries().attempts(3));
    let resilient = resilient.unwrap();
    for name in ["a.jpg", "a"] {
        let error = block_on(resilient.read(&name.into(), None)).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Unavailable, Some(name)));
        assert!(error.message().contains("web page (without Content-Type)"), "{error}");
    }
    assert_eq!(resilient.statistics().requests, 6);
    for name in ["a.html", "a.txt", "a.json"] {
        assert!(block_on(resilient.read(&name.into(), None)).is_ok(), "{name}");
    }
}

#[test]
fn an_empty_body_is_an_object_only_if_its_size_is_zero() {
    let server = FaultServer::start([("a.jpg", contents(1, 10_000)), ("e.cls", Bytes::new())]);
    let resilient = Resilient::new(Arc::new(fetcher(&server.url())), crate::many_retries());
    let resilient = resilient.unwrap();
    let read = |name: &str| block_on(resilient.read(&name.into(), None));
    assert_eq!(read("e.cls").unwrap(), "");
    let empty = |attempts| {
        FaultPlan::script(move |request| {
            (request.method == "GET" && request.attempt <= attempts).then_some(Fault::EmptyBody)
        })
    };
    server.set_faults(empty(2));
    assert_eq!(read("a.jpg").unwrap(), contents(1, 10_000));
    server.set_faults(empty(u32::MAX));
    let error = read("a.jpg").unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Unavailable, Some("a.jpg")));
    assert!(error.message().contains("an empty body, but reports a size of 10000"), "{error}");
}

#[test]
fn data_sets_of_hugging_face_are_read_and_listed() {
    use spdl_io::datasets::{DatasetKind, OpenedDataset};
    let listing = r#"[{"type": "directory", "path": "data", "size": 0},
                      {"type": "file", "path": "data/b.jpg"},
                      {"type": "file", "path": "data/a.jpg", "size": 9}]"#;
    let revision = "datasets/me/pets/resolve/refs/convert/parquet/list.csv";
    let server = FaultServer::start([
        ("datasets/me/pets/resolve/main/data/a.jpg", "picture a"),
        ("datasets/me/pets/resolve/main/data/b.jpg", "picture b"),
        ("datasets/me/pets/resolve/main/list.csv", "path,label\ndata/b.jpg,7\n"),
        (revision, "path,label\ndata/c.jpg,8\n"),
        ("api/datasets/me/pets/tree/main/data", listing),
    ]);
    let options = SourceOptions::default()
        .endpoint(server.url())
        .header("Authorization", "Bearer hf_canary".to_owned());
    let stores = StoreRegistry::new().with_options("hf:", options);
    let open = |address: &str| block_on(OpenedDataset::open(&[address], &stores));
    let read = |data: &OpenedDataset| -> Vec<_> {
        let samples = spdl_core::DatasetSource::new(Arc::clone(&data.samples));
        let fetch = data.fetch_labeled();
        let images = PipelineBuilder::new(samples).deterministic().async_stage("fetch", fetch);
        images.build().unwrap().map(|it| it.map(|it| (it.value, it.label)).unwrap()).collect()
    };
    let data = open("hf://datasets/me/pets/list.csv").unwrap();
    assert_eq!(read(&data), [("picture b".into(), 7)]);
    assert_eq!(data.store.as_deref(), Some("hf://datasets/me/pets"));
    let data = open("hf://datasets/me/pets@refs/convert/parquet/list.csv").unwrap();
    assert_eq!(data.samples.item(0).unwrap().label, 8);
    let is_encoded = |target: &str| target.contains("/resolve/refs%2Fconvert%2Fparquet/list.csv");
    assert!(server.seen().iter().any(|seen| is_encoded(&seen.target)));
    // A folder is listed, and its files are sorted.
    let data = open("hf://datasets/me/pets/data/").unwrap();
    assert_eq!(
        (data.kind, read(&data)[0].0.clone()),
        (DatasetKind::ImageFolder, "picture a".into())
    );
    // The size is compared with the listing.
    server.insert("datasets/me/pets/resolve/main/data/a.jpg", "a longer picture");
    let first = PipelineBuilder::from_iter([data.samples.item(0).unwrap()]);
    let mut first = first.async_stage("fetch", data.fetch_labeled()).build().unwrap();
    assert_eq!(first.next().unwrap().unwrap_err().kind(), ErrorKind::Changed);
    for seen in server.seen() {
        assert!(seen.headers.contains(&("authorization".into(), "Bearer hf_canary".into())));
    }
    let error = open("hf://datasets/me/pets/gone.csv").unwrap_err();
    let address = "hf://datasets/me/pets/gone.csv";
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some(address)));
    server.set_faults(FaultPlan::script(|_| Some(Fault::Forbidden)));
    let error = open("hf://datasets/me/pets/list.csv").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.message().contains("set HF_TOKEN"), "{error}");
    assert!(!format!("{error:?} {stores:?}").contains("canary"));
}
