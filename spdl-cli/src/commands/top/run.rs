//! Connects to a pipeline, and shows samples until the user quits.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyModifiers};

use super::arguments::TopArguments;
use super::connection::{Connection, Event, Line, follow};
use super::prometheus;
use super::text::text;
use super::view::View;
use crate::ui::failure::Failure;
use crate::ui::stdout;

/// Time between looks for new lines while no key is pressed.
const REFRESH: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &TopArguments) -> Result<(), Failure> {
    if let Some(address) = arguments.prometheus {
        return prometheus::serve(&arguments.paths, address);
    }
    let [path] = &arguments.paths[..] else {
        return Err(Failure::usage("only --prometheus watches several sockets"));
    };
    let shows = !arguments.once && !arguments.json;
    if shows && !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        return Err(Failure::usage(
            "standard input or output is no terminal; add --once or --json",
        ));
    }
    let mut connection = Connection::open_soon(path)?;
    if arguments.once {
        let line = once(&mut connection)?;
        let text = if arguments.json { line.text + "\n" } else { text(&line.sample) };
        return stdout::print(&text);
    }
    if arguments.json {
        while let Some(line) = connection.next()? {
            let written = writeln!(io::stdout(), "{}", line.text);
            if written.is_err() {
                // Also if the reader has closed the pipe.
                return stdout::check(written);
            }
        }
        return Ok(());
    }
    let shown = |error: io::Error| Failure::new("cannot show the statistics", "terminal", error);
    let mut terminal = ratatui::try_init().map_err(shown)?;
    let result = show(&mut terminal, connection);
    let restored = ratatui::try_restore();
    result.map_err(shown)??;
    restored.map_err(shown)
}

/// The statistics of the last second, or those of the whole run if it ends before.
fn once(connection: &mut Connection) -> Result<Line, Failure> {
    // The first line covers the whole run.
    let whole = connection.next()?;
    let last = connection.next()?;
    last.or(whole).ok_or_else(|| Failure::sentence("the pipeline has ended".into()))
}

/// Shows samples until the user quits, or the connection fails.
fn show(terminal: &mut DefaultTerminal, connection: Connection) -> io::Result<Result<(), Failure>> {
    let events = follow(connection)?;
    let mut view = View::default();
    loop {
        loop {
            match events.try_recv() {
                Ok(Event::Line(line)) => view.add(line.sample),
                Ok(Event::Ended) => view.end(),
                Ok(Event::Failed(failure)) => return Ok(Err(failure)),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        terminal.draw(|frame| view.draw(frame))?;
        if event::poll(REFRESH)? && quits(&event::read()?) {
            return Ok(Ok(()));
        }
    }
}

fn quits(event: &event::Event) -> bool {
    let event::Event::Key(KeyEvent { code, modifiers, .. }) = event else { return false };
    match code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}
