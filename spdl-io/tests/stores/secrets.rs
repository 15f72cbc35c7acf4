//! Secrets in the environment, in addresses, in queries and in headers appear nowhere: in no error,
//! no `Debug`, and no line of any crate's log at its most talkative.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use spdl_io::testing::{Fault, FaultPlan, FaultServer};
use spdl_io::{ResilientOptions, SourceOptions, StoreRegistry, block_on};

/// Set in the child, which says all it knows.
const CHILD: &str = "SPDL_TEST_SECRETS_CHILD";
/// The beginning of all that is secret.
const CANARY: &str = "c4n4ry";

// promise: R21
#[test]
fn what_is_secret_appears_in_nothing_that_is_said() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "secrets::the_child", "--nocapture"])
        .env(CHILD, "1")
        .env("RUST_BACKTRACE", "1")
        .env("AWS_ACCESS_KEY_ID", "reader")
        .env("AWS_SECRET_ACCESS_KEY", format!("{CANARY}-aws-secret"))
        .env("AWS_SESSION_TOKEN", format!("{CANARY}-aws-token"))
        .env("AZURE_STORAGE_ACCOUNT_NAME", "account")
        .env("AZURE_STORAGE_ACCOUNT_KEY", base64_canary())
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&child.stdout),
        String::from_utf8_lossy(&child.stderr)
    );
    assert!(child.status.success(), "{said}");
    // The log is there: other crates talked, and so did we.
    assert!(said.contains("LOG reqwest") && said.contains("SHOWN"), "{said}");
    println!("{} bytes were looked through", said.len());
    for secret in [CANARY, &base64_canary()[..20], "YzRuNHJ5"] {
        if let Some(at) = said.find(secret) {
            let start = said.floor_char_boundary(at.saturating_sub(500));
            let end = said.ceil_char_boundary((at + 200).min(said.len()));
            panic!("a secret is said: … {} …", &said[start..end]);
        }
    }
}

/// The canary as a key that Azure takes: base64.
fn base64_canary() -> String {
    "YzRuNHJ5LWF6dXJlLWtleS1vZi1hbi1hY2NvdW50".to_owned()
}

#[test]
fn the_child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    log::set_boxed_logger(Box::new(Everything)).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    tracing::subscriber::set_global_default(Everything).unwrap();
    let server = FaultServer::start([("bucket/a", "some bytes"), ("account/bucket/a", "x")]);
    let patience = ResilientOptions::default()
        .attempts(2)
        .first_delay(Duration::from_millis(1))
        .most_delay(Duration::from_millis(2))
        .stall_timeout(Duration::from_millis(50));
    let options = SourceOptions::default()
        .endpoint(server.url())
        .allow_plain_http(true)
        .region("us-east-1")
        .resilience(patience)
        .header("X-Canary", format!("{CANARY}-header"));
    let stores = StoreRegistry::new()
        .with_options("", options.clone())
        .with_options("gs:", options.clone().credential("service_account_key", bad_account()))
        .with_options("s3://given", options.credential("secret_access_key", CANARY));
    let web = server.url().replace("http://", &format!("http://me:{CANARY}-password@"));
    let addresses = [
        format!("{web}/bucket/a?X-Amz-Signature={CANARY}-query"),
        "s3://bucket/a".to_owned(),
        "s3://given/a".to_owned(),
        "gs://bucket/a".to_owned(),
        "az://bucket/a".to_owned(),
        format!("s3://{CANARY}:{CANARY}@bucket/a"),
        format!("s3://bucket/a?sig={CANARY}"),
        format!("https://me:{CANARY}@/x?{CANARY}"),
        format!("http://me:{CANARY}@127.0.0.1:1/x?sig={CANARY}"),
        format!("https://me:{CANARY}@127.0.0.1:1/x?sig={CANARY}"),
        format!("http://me:{CANARY}@no-such-host.invalid/x?sig={CANARY}"),
    ];
    println!("SHOWN {stores:?}");
    for address in addresses {
        let faults = [None].into_iter().chain(Fault::ALL.map(Some));
        let is_ours = address.contains(&server.url()[7..]) || !address.starts_with("http");
        for fault in faults.take(if is_ours { usize::MAX } else { 1 }) {
            server.set_faults(FaultPlan::script(move |_| fault).retry_after(Duration::ZERO));
            println!("SHOWN {}", everything_about(&stores, &address));
        }
    }
    let secrets_sent =
        server.seen().iter().filter(|seen| format!("{seen:?}").contains(CANARY)).count();
    assert!(secrets_sent > 50, "what must be sent was sent {secrets_sent} times");
}

fn bad_account() -> String {
    format!("{{\"private_key\": \"{CANARY}-gcs\", \"client_email\": 7}}")
}

/// All that can be shown of a store and of its answers.
fn everything_about(stores: &StoreRegistry, address: &str) -> String {
    let mut shown = String::new();
    let place = match stores.open(address) {
        Ok(place) => place,
        Err(error) => return format!("{error} {error:?} {error:#?} {}", error.report()),
    };
    write!(shown, "{place} {place:?} {place:#?} {:?} {:#?}", place.fetcher, place.fetcher).unwrap();
    let (fetcher, key) = (&place.fetcher, &place.key);
    let errors = [
        block_on(fetcher.read(key, None)).err(),
        block_on(fetcher.read(key, Some(1..5))).err(),
        block_on(fetcher.read(&"missing".into(), None)).err(),
        block_on(fetcher.stat(key)).err(),
        block_on(async {
            use futures_util::TryStreamExt;
            fetcher.list(key).await?.try_collect::<Vec<_>>().await
        })
        .err(),
    ];
    for error in errors.into_iter().flatten() {
        write!(shown, "{error} {error:?} {error:#?} {} ", error.report()).unwrap();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            write!(shown, "{error} {error:?} {error:#?} ").unwrap();
            cause = error.source();
        }
    }
    shown
}

/// Prints whatever any crate has to say.
struct Everything;

impl log::Log for Everything {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        println!("LOG {} {}", record.target(), record.args());
    }

    fn flush(&self) {}
}

impl tracing::Subscriber for Everything {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        println!("SPAN {span:?}");
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        println!("SPAN {values:?}");
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        println!("EVENT {event:?}");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
