//! The line protocol of `spdl tune`: requests, settings and errors.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::rounds::Extent;
use super::tune::time_of;

/// The version of the protocol. Further keys and commands do not change it.
pub(super) const VERSION: u32 = 1;
const COMMANDS: &str = "describe, set, measure, quit";
/// The default length of a measurement.
const TIME: Duration = Duration::from_secs(2);
/// The default number of rounds, and the largest.
const ROUNDS: u32 = 5;
const MAX_ROUNDS: u64 = 1000;

/// A setting that can be changed.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) min: u64,
    pub(super) max: u64,
    /// `None` if the pipeline chooses or adapts it.
    pub(super) default: Option<u64>,
    /// `None`: the default.
    pub(super) value: Option<u64>,
}

impl Setting {
    pub(super) fn as_json(&self) -> Value {
        json!({
            "name": self.name,
            "about": self.about,
            "type": "integer",
            "min": self.min,
            "max": self.max,
            "default": self.default,
            "value": self.value.or(self.default),
        })
    }
}

/// A valid request.
#[derive(Debug)]
pub(super) enum Request {
    Describe,
    /// New values of settings, by their index.
    Set(Vec<(usize, Option<u64>)>),
    Measure {
        extent: Extent,
        step: Option<Duration>,
    },
    Quit,
}

/// Why a request was refused or failed.
#[derive(Debug)]
pub(super) struct Refusal {
    kind: &'static str,
    message: String,
}

impl Refusal {
    pub(super) fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Refusal { kind, message: message.into() }
    }

    pub(super) fn response(&self, id: &Value) -> Value {
        let error = json!({ "kind": self.kind, "message": self.message });
        match id {
            Value::Null => json!({ "ok": false, "error": error }),
            id => json!({ "ok": false, "error": error, "id": id }),
        }
    }
}

/// Parses a line. Also returns its `id`, if it has one.
pub(super) fn parse(line: &str, settings: &[Setting]) -> (Value, Result<Request, Refusal>) {
    let mut request = match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(request)) => request,
        Ok(_) => {
            let message = "expected a JSON object with the key \"command\"";
            return (Value::Null, Err(Refusal::new("invalid-json", message)));
        }
        Err(error) => {
            return (Value::Null, Err(Refusal::new("invalid-json", error.to_string())));
        }
    };
    let id = request.remove("id").unwrap_or(Value::Null);
    (id, command(request, settings))
}

fn command(mut request: Map<String, Value>, settings: &[Setting]) -> Result<Request, Refusal> {
    let command = request.remove("command");
    let known = match command.as_ref().and_then(Value::as_str) {
        Some("describe") => Request::Describe,
        Some("set") => Request::Set(new_values(request.remove("settings"), settings)?),
        Some("measure") => measurement(&mut request)?,
        Some("quit") => Request::Quit,
        _ => {
            let given = command.unwrap_or(Value::Null);
            let message = format!("unknown command {given}; expected one of {COMMANDS}");
            return Err(Refusal::new("unknown-command", message));
        }
    };
    match request.keys().next() {
        None => Ok(known),
        Some(key) => Err(Refusal::new("unknown-key", format!("this command has no key {key:?}"))),
    }
}

fn new_values(
    given: Option<Value>,
    settings: &[Setting],
) -> Result<Vec<(usize, Option<u64>)>, Refusal> {
    let Some(Value::Object(given)) = given else {
        let message = "expected an object with names and values of settings";
        return Err(Refusal::new("invalid-value", message));
    };
    let value_of = |(name, value): (String, Value)| {
        let Some((at, setting)) = settings.iter().enumerate().find(|(_, it)| it.name == name)
        else {
            let names: Vec<&str> = settings.iter().map(|setting| setting.name).collect();
            let message =
                format!("unknown setting {name:?}; the settings are {}", names.join(", "));
            return Err(Refusal::new("unknown-setting", message));
        };
        let Setting { min, max, .. } = setting;
        if value.is_null() {
            return Ok((at, None));
        }
        match value.as_i64() {
            Some(number) if u64::try_from(number).is_ok_and(|it| (*min..=*max).contains(&it)) => {
                Ok((at, u64::try_from(number).ok()))
            }
            Some(number) => {
                let message = format!("{name} must be from {min} to {max}, not {number}");
                Err(Refusal::new("out-of-range", message))
            }
            None => {
                let message =
                    format!("{name} must be an integer from {min} to {max}, or null, not {value}");
                Err(Refusal::new("invalid-value", message))
            }
        }
    };
    given.into_iter().map(value_of).collect()
}

fn measurement(request: &mut Map<String, Value>) -> Result<Request, Refusal> {
    let mut time = |key: &str| match request.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64().and_then(time_of) {
            Some(time) => Ok(Some(time)),
            None => {
                let message = format!("{key} must be a number of seconds above 0, not {value}");
                Err(Refusal::new("invalid-value", message))
            }
        },
    };
    let (seconds, step) = (time("seconds")?, time("step_s")?);
    let mut number = |key: &str, most: u64| match request.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().filter(|number| (1..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let message = format!("{key} must be an integer from 1 to {most}, not {value}");
                Err(Refusal::new("invalid-value", message))
            }
        },
    };
    let batches = number("batches", u64::from(u32::MAX))?;
    let rounds = number("rounds", MAX_ROUNDS)?;
    // Without a time, the number of batches alone ends the measurement.
    let unlimited = Duration::from_secs(86_400);
    let time = seconds.unwrap_or(if batches.is_some() { unlimited } else { TIME });
    let rounds = rounds.and_then(|rounds| u32::try_from(rounds).ok()).unwrap_or(ROUNDS);
    Ok(Request::Measure { extent: Extent { time, batches, rounds }, step })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Vec<Setting> {
        let setting =
            |name| Setting { name, about: "", min: 1, max: 8, default: Some(2), value: None };
        vec![setting("threads"), setting("prefetch")]
    }

    fn refused(line: &str) -> String {
        let (id, request) = parse(line, &settings());
        request.unwrap_err().response(&id)["error"]["kind"].as_str().unwrap().to_owned()
    }

    #[test]
    fn invalid_lines_have_typed_errors() {
        for (line, kind) in [
            ("", "invalid-json"),
            ("{", "invalid-json"),
            ("[1]", "invalid-json"),
            ("{}", "unknown-command"),
            (r#"{"command": 1}"#, "unknown-command"),
            (r#"{"command": "stop"}"#, "unknown-command"),
            (r#"{"command": "quit", "seconds": 1}"#, "unknown-key"),
            (r#"{"command": "set"}"#, "invalid-value"),
            (r#"{"command": "set", "settings": {"thread": 1}}"#, "unknown-setting"),
            (r#"{"command": "set", "settings": {"threads": 9}}"#, "out-of-range"),
            (r#"{"command": "set", "settings": {"threads": -1}}"#, "out-of-range"),
            (r#"{"command": "set", "settings": {"threads": 1.5}}"#, "invalid-value"),
            (
                r#"{"command": "set", "settings": {"threads": 99999999999999999999}}"#,
                "invalid-value",
            ),
            (r#"{"command": "measure", "seconds": 0}"#, "invalid-value"),
            (r#"{"command": "measure", "seconds": "2"}"#, "invalid-value"),
            (r#"{"command": "measure", "rounds": 0}"#, "invalid-value"),
            (r#"{"command": "measure", "second": 1}"#, "unknown-key"),
        ] {
            assert_eq!(refused(line), kind, "{line}");
        }
    }

    #[test]
    fn requests_have_defaults_and_keep_their_id() {
        let (id, request) = parse(r#"{"command": "measure", "id": [7]}"#, &settings());
        let Ok(Request::Measure { extent, step: None }) = request else { panic!("{request:?}") };
        assert_eq!((id, extent.time, extent.batches), (json!([7]), TIME, None));
        let line = r#"{"command": "set", "settings": {"prefetch": 8, "threads": null}}"#;
        let (_, request) = parse(line, &settings());
        let Ok(Request::Set(values)) = request else { panic!("{request:?}") };
        assert_eq!(values, [(1, Some(8)), (0, None)]);
    }
}
