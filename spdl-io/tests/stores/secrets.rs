//! Secrets in the environment, URLs, queries and headers do not appear in errors, `Debug` output or
//! logs of any crate at the most verbose level.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use spdl_io::testing::{Fault, FaultPlan, FaultServer};
use spdl_io::{ResilientOptions, SourceOptions, StoreRegistry, block_on};

/// Set in the child process, which prints all output to search.
const CHILD: &str = "SPDL_TEST_SECRETS_CHILD";
/// Prefix of all secrets.
const CANARY: &str = "c4n4ry";

// promise: R21
#[test]
fn secrets_do_not_appear_in_any_output() {
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
    let output = format!(
        "{}{}",
        String::from_utf8_lossy(&child.stdout),
        String::from_utf8_lossy(&child.stderr)
    );
    assert!(child.status.success(), "{output}");
    // Checks that the output contains the logs.
    assert!(output.contains("LOG reqwest") && output.contains("SHOWN"), "{output}");
    println!("{} bytes of output were searched", output.len());
    for secret in [CANARY, &base64_canary()[..20], "YzRuNHJ5"] {
        if let Some(at) = output.find(secret) {
            let start = output.floor_char_boundary(at.saturating_sub(500));
            let end = output.ceil_char_boundary((at + 200).min(output.len()));
            panic!("a secret is in the output: … {} …", &output[start..end]);
        }
    }
}

/// The canary as a base64 key, which Azure requires.
fn base64_canary() -> String {
    "YzRuNHJ5LWF6dXJlLWtleS1vZi1hbi1hY2NvdW50".to_owned()
}

#[test]
fn the_child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    log::set_boxed_logger(Box::new(PrintAll)).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    tracing::subscriber::set_global_default(PrintAll).unwrap();
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
        let is_own_server = address.contains(&server.url()[7..]) || !address.starts_with("http");
        for fault in faults.take(if is_own_server { usize::MAX } else { 1 }) {
            server.set_faults(FaultPlan::script(move |_| fault).retry_after(Duration::ZERO));
            println!("SHOWN {}", all_texts_of(&stores, &address));
        }
    }
    let secrets_sent =
        server.seen().iter().filter(|seen| format!("{seen:?}").contains(CANARY)).count();
    assert!(secrets_sent > 50, "only {secrets_sent} requests held secrets");
}

fn bad_account() -> String {
    format!("{{\"private_key\": \"{CANARY}-gcs\", \"client_email\": 7}}")
}

/// Returns all texts of a store and of its errors.
fn all_texts_of(stores: &StoreRegistry, address: &str) -> String {
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

/// Prints all log records and traces.
struct PrintAll;

impl log::Log for PrintAll {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        println!("LOG {} {}", record.target(), record.args());
    }

    fn flush(&self) {}
}

impl tracing::Subscriber for PrintAll {
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
