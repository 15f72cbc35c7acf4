//! What a measurement says: JSON objects, one a line. They are the same from this program's processes
//! and from Python scripts.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// As much as tells something.
    Full,
    /// Just enough to run every line.
    Tiny,
}

impl Size {
    pub(crate) fn is_tiny(self) -> bool {
        self == Size::Tiny
    }

    pub(crate) fn word(self) -> &'static str {
        if self.is_tiny() { "tiny" } else { "full" }
    }
}

/// A measurement that is under way.
pub(crate) struct Measuring {
    start: Instant,
    time: Duration,
    pub(crate) size: Size,
}

impl Measuring {
    pub(crate) fn new(time: Duration, size: Size) -> Measuring {
        Measuring { start: Instant::now(), time, size }
    }

    /// Whether this share, from 0 to 1, of the time is over.
    pub(crate) fn is_over(&self, share: f64) -> bool {
        self.start.elapsed() >= self.time.mul_f64(share)
    }

    /// Whether it is time to go on to what comes next: where this share of the time is over, and in a tiny
    /// run at once.
    pub(crate) fn is_enough(&self, share: f64) -> bool {
        self.size.is_tiny() || self.is_over(share)
    }

    /// A number, and what it is of.
    pub(crate) fn figure(&self, case: &str, name: &str, value: f64, unit: &str) {
        say(&json!({"kind": "figure", "case": case, "name": name, "value": value, "unit": unit}));
    }

    /// Whether something that is promised holds.
    pub(crate) fn promise(&self, promise: &str, holds: bool, found: &str, wanted: &str) {
        say(&json!({
            "kind": "promise", "promise": promise, "holds": holds, "found": found, "wanted": wanted
        }));
    }

    /// That something is not measured, and why.
    pub(crate) fn unsupported(&self, case: &str, reason: &str) {
        say(&json!({"kind": "unsupported", "case": case, "reason": reason}));
    }

    /// What else is to be known.
    pub(crate) fn note(&self, text: &str) {
        say(&json!({"kind": "note", "text": text}));
    }
}

/// Each line at once, so that a process that is killed has said what it had found.
fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    // Where nobody listens any more, there is nothing to be told.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The fields of each kind of line, all of them needed, and what they are.
const FIELDS: [(&str, &[(&str, Type)]); 4] = {
    use Type::{Number, Text, Truth};
    [
        ("figure", &[("case", Text), ("name", Text), ("value", Number), ("unit", Text)]),
        ("promise", &[("promise", Text), ("holds", Truth), ("found", Text), ("wanted", Text)]),
        ("unsupported", &[("case", Text), ("reason", Text)]),
        ("note", &[("text", Text)]),
    ]
};

#[derive(Clone, Copy)]
enum Type {
    Text,
    Number,
    Truth,
}

/// What a measurement has said, with its name; else what is wrong with it.
pub(crate) fn checked(line: &str, measurement: &str) -> Result<Value, String> {
    let wrong = |reason: &str| format!("{measurement} said {line:?}: {reason}");
    let value: Value = serde_json::from_str(line).map_err(|error| wrong(&error.to_string()))?;
    let object = value.as_object().ok_or_else(|| wrong("it is no object"))?;
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    let (_, fields) = FIELDS
        .iter()
        .find(|(known, _)| *known == kind)
        .ok_or_else(|| wrong(&format!("no kind of line is {kind:?}")))?;
    for (name, of) in *fields {
        let fits = object.get(*name).is_some_and(|value| match of {
            Type::Text => value.is_string(),
            Type::Number => value.is_number(),
            Type::Truth => value.is_boolean(),
        });
        if !fits {
            return Err(wrong(&format!("it lacks {name:?}, or has it of another type")));
        }
    }
    if object.len() != fields.len() + 1 {
        return Err(wrong("it has more than its kind has"));
    }
    let mut object = object.clone();
    object.insert("measurement".to_owned(), measurement.into());
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_all_fields_of_its_kind_and_no_others() {
        let sound = r#"{"kind":"figure","case":"a","name":"rate","value":1.5,"unit":"GB/s"}"#;
        assert_eq!(checked(sound, "g1").unwrap()["measurement"], "g1");
        for wrong in [
            "1.5",
            "not JSON",
            r#"{"kind":"other"}"#,
            r#"{"kind":"figure","case":"a","name":"rate","unit":"GB/s"}"#,
            r#"{"kind":"figure","case":"a","name":"rate","value":null,"unit":"GB/s"}"#,
            r#"{"kind":"promise","promise":"G1","holds":"yes","found":"","wanted":""}"#,
            r#"{"kind":"note","text":"a","case":"b"}"#,
        ] {
            let error = checked(wrong, "g1").unwrap_err();
            assert!(error.starts_with("g1 said "), "{error}");
        }
    }
}
