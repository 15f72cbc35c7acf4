//! The output format of measurements: one JSON object per line. Processes of this program and the
//! Python scripts share the format.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The amount of work of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Enough for meaningful figures.
    Full,
    /// Just enough to execute every line of code.
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

/// A running measurement: its time limit and its output.
pub(crate) struct Measurement {
    start: Instant,
    time: Duration,
    pub(crate) size: Size,
}

impl Measurement {
    pub(crate) fn new(time: Duration, size: Size) -> Measurement {
        Measurement { start: Instant::now(), time, size }
    }

    /// Whether this share of the time, 0 to 1, has passed.
    pub(crate) fn is_over(&self, share: f64) -> bool {
        self.start.elapsed() >= self.time.mul_f64(share)
    }

    /// Whether to continue with the next case: always in a tiny run; otherwise, if this share of
    /// the time has passed.
    pub(crate) fn is_enough(&self, share: f64) -> bool {
        self.size.is_tiny() || self.is_over(share)
    }

    /// Prints a figure.
    pub(crate) fn figure(&self, case: &str, name: &str, value: f64, unit: &str) {
        print_line(
            &json!({"kind": "figure", "case": case, "name": name, "value": value, "unit": unit}),
        );
    }

    /// Prints whether a promise of the project holds.
    pub(crate) fn promise(&self, promise: &str, holds: bool, found: &str, wanted: &str) {
        print_line(&json!({
            "kind": "promise", "promise": promise, "holds": holds, "found": found, "wanted": wanted
        }));
    }

    /// Prints why a case is not measured.
    pub(crate) fn unsupported(&self, case: &str, reason: &str) {
        print_line(&json!({"kind": "unsupported", "case": case, "reason": reason}));
    }

    /// Prints a note.
    pub(crate) fn note(&self, text: &str) {
        print_line(&json!({"kind": "note", "text": text}));
    }
}

/// Prints and flushes a line, so that a killed process loses no finished line.
fn print_line(line: &Value) {
    let mut out = std::io::stdout().lock();
    // A closed pipe is not an error.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The required fields of each kind of line, and their types.
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

/// Parses a line of a measurement, and adds the field `measurement`. Returns an error message if
/// the line is invalid.
pub(crate) fn parse(line: &str, measurement: &str) -> Result<Value, String> {
    let invalid = |reason: &str| format!("invalid line {line:?} of {measurement}: {reason}");
    let value: Value = serde_json::from_str(line).map_err(|error| invalid(&error.to_string()))?;
    let object = value.as_object().ok_or_else(|| invalid("expected an object"))?;
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    let (_, fields) = FIELDS
        .iter()
        .find(|(known, _)| *known == kind)
        .ok_or_else(|| invalid(&format!("unknown kind {kind:?}")))?;
    for (name, of) in *fields {
        let fits = object.get(*name).is_some_and(|value| match of {
            Type::Text => value.is_string(),
            Type::Number => value.is_number(),
            Type::Truth => value.is_boolean(),
        });
        if !fits {
            return Err(invalid(&format!("the field {name:?} is missing, or has the wrong type")));
        }
    }
    if object.len() != fields.len() + 1 {
        return Err(invalid(&format!("unknown fields for the kind {kind:?}")));
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
        let valid = r#"{"kind":"figure","case":"a","name":"rate","value":1.5,"unit":"GB/s"}"#;
        assert_eq!(parse(valid, "g1").unwrap()["measurement"], "g1");
        for invalid in [
            "1.5",
            "not JSON",
            r#"{"kind":"other"}"#,
            r#"{"kind":"figure","case":"a","name":"rate","unit":"GB/s"}"#,
            r#"{"kind":"figure","case":"a","name":"rate","value":null,"unit":"GB/s"}"#,
            r#"{"kind":"promise","promise":"G1","holds":"yes","found":"","wanted":""}"#,
            r#"{"kind":"note","text":"a","case":"b"}"#,
        ] {
            let error = parse(invalid, "g1").unwrap_err();
            assert!(error.starts_with("invalid line ") && error.contains(" of g1: "), "{error}");
        }
    }
}
