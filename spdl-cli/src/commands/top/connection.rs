//! Reads lines from a monitor socket.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use super::sample::TopSample;
use crate::ui::failure::Failure;

const FAILED: &str = "cannot watch the pipeline";
/// A pipeline that sends no line for this time is stopped, for example by a debugger.
const SILENCE: Duration = Duration::from_secs(10);
/// The longest line, in bytes. A pipeline with a hundred stages sends some 100 kB.
const LONGEST_LINE: u64 = 16 << 20;
/// Time between attempts to connect to the next pipeline.
const RETRY: Duration = Duration::from_millis(300);
/// Between two epochs, a loader has no socket for less than this time.
const BETWEEN_EPOCHS: Duration = Duration::from_secs(2);

/// A connection to a pipeline.
#[derive(Debug)]
pub(crate) struct Connection {
    path: PathBuf,
    lines: BufReader<UnixStream>,
    /// Whether a line has arrived.
    served: bool,
}

/// One line: the text and its statistics.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) sample: TopSample,
}

impl Connection {
    /// Connects to the socket at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let stream = UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(SILENCE))?;
            Ok(stream)
        });
        let stream = stream.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => failed(
                path,
                "no such socket: the pipeline has ended, has not started, or has no option `monitor`",
            ),
            io::ErrorKind::ConnectionRefused => {
                failed(path, "no process serves this socket: the process was killed")
            }
            _ => failed(path, &error.to_string()),
        })?;
        Ok(Connection { path: path.to_owned(), lines: BufReader::new(stream), served: false })
    }

    /// [`open`](Self::open), and waits for a socket for up to [`BETWEEN_EPOCHS`].
    pub(crate) fn open_soon(path: &Path) -> Result<Self, Failure> {
        let begun = Instant::now();
        while !path.exists() && begun.elapsed() < BETWEEN_EPOCHS {
            std::thread::sleep(RETRY / 10);
        }
        Connection::open(path)
    }

    /// Waits for the next line. Returns `None` after the pipeline has ended.
    pub(crate) fn next(&mut self) -> Result<Option<Line>, Failure> {
        let mut text = String::new();
        match self.lines.by_ref().take(LONGEST_LINE).read_line(&mut text) {
            Ok(0) if self.served => return Ok(None),
            Ok(0) => return Err(failed(&self.path, "the pipeline ended before it sent a line")),
            Ok(length) if length as u64 == LONGEST_LINE => {
                return Err(failed(
                    &self.path,
                    "a line is too long: no pipeline serves this socket",
                ));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let reason = format!("no line for {} s: the process is stopped", SILENCE.as_secs());
                return Err(failed(&self.path, &reason));
            }
            // The process was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(failed(&self.path, &error.to_string())),
        }
        let text = text.trim_end().to_owned();
        let sample = TopSample::parse(&text).map_err(|reason| failed(&self.path, &reason))?;
        self.served = true;
        Ok(Some(Line { text, sample }))
    }
}

fn failed(path: &Path, reason: &str) -> Failure {
    Failure::new(FAILED, path.display(), reason)
}

/// What happens on a connection.
#[derive(Debug)]
pub(crate) enum Event {
    Line(Line),
    /// The pipeline has ended. Lines of the next one may follow.
    Ended,
    Failed(Failure),
}

/// Starts a thread that reads lines, also of later pipelines at the same path.
pub(crate) fn follow(mut connection: Connection) -> io::Result<Receiver<Event>> {
    let (sender, events) = mpsc::channel();
    let read = move || {
        // Sending fails after the user has quit.
        loop {
            let event = match connection.next() {
                Ok(Some(line)) => Event::Line(line),
                Ok(None) => {
                    if sender.send(Event::Ended).is_err() {
                        return;
                    }
                    connection = loop {
                        std::thread::sleep(RETRY);
                        match Connection::open(&connection.path) {
                            Ok(next) => break next,
                            // A failed send reports that the user has quit.
                            Err(_) if sender.send(Event::Ended).is_err() => return,
                            Err(_) => {}
                        }
                    };
                    continue;
                }
                Err(failure) => {
                    let _ = sender.send(Event::Failed(failure));
                    return;
                }
            };
            if sender.send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("top-reader".into()).spawn(read)?;
    Ok(events)
}
