//! `spdl top` watches `spdl bench` in another process.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Folder, Run, finish, spdl};

/// A benchmark that runs until it is dropped.
struct Bench(Child);

impl Bench {
    fn start(folder: &Folder, socket: &Path) -> Self {
        let child = spdl()
            .arg("bench")
            .arg(folder.join("photos"))
            .args(["--batch", "8", "--size", "16", "--threads", "1", "--epochs", "1000000"])
            .args(["--step-ms", "1", "--monitor"])
            .arg(socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let bench = Bench(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !socket.exists() {
            assert!(Instant::now() < deadline, "the socket is opened");
            std::thread::sleep(Duration::from_millis(20));
        }
        bench
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn photos() -> Folder {
    let folder = Folder::new();
    for number in 0..20 {
        let name = crate::common::image_name(number, 2);
        folder.add(Path::new("photos").join(name), &crate::common::png(number));
    }
    folder
}

fn top(socket: &Path, arguments: &[&str]) -> Run {
    finish(spdl().arg("top").arg(socket).args(arguments).output().unwrap())
}

#[test]
fn top_shows_a_running_benchmark_and_reports_its_end() {
    let folder = photos();
    let socket = folder.join("bench.sock");
    let bench = Bench::start(&folder, &socket);
    assert!(socket.symlink_metadata().unwrap().file_type().is_socket());

    let run = top(&socket, &["--once"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let process = format!("process {}, pipeline 0, running for ", bench.0.id());
    assert!(run.stdout.starts_with(&process), "{}", run.stdout);
    for part in
        ["\nrate       ", " samples/s)\n", "\nreadiness  ", "\nmemory     ", "\nCPUs       "]
    {
        assert!(run.stdout.contains(part), "no {part:?} in\n{}", run.stdout);
    }
    let stages: Vec<&str> =
        run.stdout.lines().skip_while(|line| !line.starts_with("stage ")).collect();
    assert!(stages.iter().any(|line| line.starts_with("decode  fill")), "{}", run.stdout);

    let line = top(&socket, &["--once", "--json"]);
    let line: Value = serde_json::from_str(&line.stdout).unwrap();
    assert_eq!((&line["number"], &line["pid"]), (&1.into(), &bench.0.id().into()));
    assert!(line["items_per_s"].as_f64().unwrap() > 0.0, "{line}");
    let sentence = line["diagnosis"].as_str().unwrap();
    assert!(sentence.ends_with('.') && sentence.len() > 30, "{sentence}");

    drop(bench);
    let killed = top(&socket, &["--once"]);
    assert_eq!(killed.code, 1);
    assert!(
        killed.line().ends_with("no process serves this socket: the process was killed"),
        "{}",
        killed.stderr
    );
    // Between two epochs, there is no socket for a moment.
    std::fs::remove_file(&socket).unwrap();
    let early =
        spdl().arg("top").arg(&socket).arg("--once").stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let bench = Bench::start(&folder, &socket);
    let early = finish(early.wait_with_output().unwrap());
    assert_eq!((early.code, early.stderr.as_str()), (0, ""));
    drop(bench);
    // The next benchmark replaces the socket of the killed one.
    let bench = Bench::start(&folder, &folder.join("bench.sock"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while top(&socket, &["--once"]).code != 0 {
        assert!(Instant::now() < deadline);
    }
    drop(bench);
}

#[test]
fn json_lines_follow_until_the_pipeline_ends() {
    let folder = photos();
    let socket = folder.join("bench.sock");
    let bench = spdl()
        .arg("bench")
        .arg(folder.join("photos"))
        .args(["--batch", "1", "--size", "16", "--epochs", "10", "--step-ms", "10", "--monitor"])
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut bench = Bench(bench);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !socket.exists() {
        assert!(Instant::now() < deadline, "the socket is opened");
        std::thread::sleep(Duration::from_millis(5));
    }
    let run = top(&socket, &["--json"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let lines: Vec<Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() >= 2, "{}", run.stdout);
    let items: u64 = lines.iter().map(|line| line["consumer"]["items"].as_u64().unwrap()).sum();
    assert_eq!(items, 200, "the intervals cover the whole run");
    assert!(lines.iter().rev().skip(1).all(|line| line["ended"] == false));
    assert_eq!(lines.last().unwrap()["ended"], true);
    assert!(bench.0.wait().unwrap().success());
    assert!(!socket.exists());
    let ended = top(&socket, &["--once"]);
    assert!(ended.line().contains("no such socket: the pipeline has ended"), "{}", ended.stderr);
}

/// A server of metrics, until it is dropped.
struct MetricsServer {
    program: Child,
    address: String,
}

impl MetricsServer {
    fn start(socket: &Path) -> Self {
        let arguments = ["--prometheus", "127.0.0.1:0"];
        let mut program =
            spdl().arg("top").arg(socket).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(program.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split(['/', '\n']).nth(2).unwrap_or_default().to_owned();
        MetricsServer { program, address }
    }

    fn get(&self, path: &str) -> String {
        let mut client = TcpStream::connect(&self.address).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        response
    }

    /// The metrics, once they have or lack a data readiness.
    fn metrics(&self, has_gauges: bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let text = self.get("/metrics");
            let begins = "\nspdl_data_readiness_ratio{pipeline=\"bench\"} ";
            if text.contains("\nspdl_consumer_items_total") && text.contains(begins) == has_gauges {
                return text;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn metrics_have_the_names_of_the_exporter_and_continue_after_a_run() {
    let folder = photos();
    let socket = folder.join("bench.sock");
    // The server may start first.
    let server = MetricsServer::start(&socket);
    assert!(server.get("/").starts_with("HTTP/1.1 404 "));
    let bench = Bench::start(&folder, &socket);
    let text = server.metrics(true);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("{pipeline=\"bench\",stage=\"decode\",quantile=\"0.99\"} "), "{text}");

    let source = "../spdl-core/src/observe/exporters/metrics.rs";
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let source = std::fs::read_to_string(source).unwrap();
    let documented =
        source.lines().filter_map(|line| line.strip_prefix("/// | `")?.split_once('`'));
    let documented: BTreeSet<String> = documented
        .filter(|(name, _)| *name != "spdl_stage_fill_ratio")
        .map(|(name, rest)| {
            let kind = if rest.starts_with(" | counter ") { "counter" } else { "gauge" };
            format!("{name} {kind}")
        })
        .collect();
    assert!(documented.len() > 20, "{documented:?}");
    let served = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    assert_eq!(served.map(str::to_owned).collect::<BTreeSet<_>>(), documented);

    let delivered = |text: &str| {
        let line = "spdl_consumer_items_total{pipeline=\"bench\"} ";
        let value = text.lines().find_map(|it| it.strip_prefix(line)).unwrap();
        value.parse::<u64>().unwrap()
    };
    assert!(delivered(&text) > 0);
    drop(bench);
    let ended = delivered(&server.metrics(false));
    let bench = Bench::start(&folder, &socket);
    let again = delivered(&server.metrics(true));
    assert!(again > ended, "{again} > {ended}");
    drop(bench);
}

#[test]
fn several_sockets_need_separate_names() {
    let sockets = ["a/train.sock", "b/train.sock"];
    let twice = spdl().arg("top").args(sockets).args(["--prometheus", "127.0.0.1:0"]).output();
    let twice = finish(twice.unwrap());
    assert_eq!(twice.code, 2);
    assert!(twice.line().contains("two sockets have the name \"train\""), "{}", twice.stderr);
    let shown = finish(spdl().arg("top").args(sockets).arg("--once").output().unwrap());
    assert_eq!(shown.code, 2);
    assert!(
        shown.line().ends_with("only --prometheus watches several sockets"),
        "{}",
        shown.stderr
    );
}

#[test]
fn a_line_without_an_end_is_refused() {
    let folder = Folder::new();
    let socket = folder.join("endless.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Fails once the program has ended.
        while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
    });
    let run = top(&socket, &["--once"]);
    assert_eq!(run.code, 1);
    let expected = "a line is too long: no pipeline serves this socket";
    assert!(run.line().ends_with(expected), "{}", run.stderr);
}

#[test]
fn top_needs_a_terminal_and_bench_a_free_path() {
    let folder = photos();
    let socket = folder.join("file");
    let run = top(&socket, &[]);
    assert_eq!(run.code, 2);
    assert!(run.line().ends_with("is no terminal; add --once or --json"), "{}", run.stderr);
    std::fs::write(&socket, "data").unwrap();
    let bench =
        spdl().arg("bench").arg(folder.join("photos")).arg("--monitor").arg(&socket).output();
    let run = finish(bench.unwrap());
    assert_eq!(run.code, 1);
    let expected = format!(
        "spdl: bench: {}: cannot open the monitor socket: another file is there; use another path",
        socket.display()
    );
    assert_eq!(run.line(), expected);
    assert_eq!(std::fs::read(&socket).unwrap(), b"data");
}
