//! The parameters of a described object, and their types.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use spdl_core::{Error, ErrorKind, Result};

use super::text;
use crate::image::Size;

/// The longest value that a message shows, in characters.
const SHOWN: usize = 60;

/// The parameters of one object. Each must be taken before [`finish`](Self::finish).
///
/// Positional arguments of a [text](text::Call) belong to the parameters in the order in which they are taken.
#[derive(Debug)]
pub(super) struct Settings {
    place: String,
    positional: std::vec::IntoIter<Value>,
    named: Map<String, Value>,
    taken: Vec<&'static str>,
}

impl Settings {
    /// The type and the parameters of an object: a table with the key `type`, or text.
    pub(super) fn of(place: &str, value: &Value, example: &str) -> Result<(String, Self)> {
        let (kind, positional, named) = match value {
            Value::Object(members) => {
                let mut named = members.clone();
                let kind = match named.remove("type") {
                    Some(Value::String(kind)) => kind,
                    Some(other) => {
                        return Err(unexpected(place, "type", "a name", &other));
                    }
                    None => {
                        let message = format!("{place}: the key \"type\" is missing");
                        return Err(Error::new(ErrorKind::InvalidArgument, message));
                    }
                };
                (kind, Vec::new(), named)
            }
            Value::String(text) => {
                let call = text::Call::parse(text);
                let call = call.ok_or_else(|| {
                    let expected = format!("text such as {example}");
                    invalid(format!("{place}: expected {expected}, found {}", shown(value)))
                })?;
                (call.name, call.positional, call.named)
            }
            other => {
                let found = shown(other);
                let message =
                    format!("{place}: expected a table, or text such as {example}, found {found}");
                return Err(invalid(message));
            }
        };
        let positional = positional.into_iter();
        Ok((kind, Settings { place: place.to_owned(), positional, named, taken: Vec::new() }))
    }

    /// The parameters of an object without a type.
    pub(super) fn of_members(place: &str, value: &Value) -> Result<Self> {
        let Value::Object(named) = value else {
            return Err(invalid(format!("{place}: expected a table, found {}", shown(value))));
        };
        let (place, named) = (place.to_owned(), named.clone());
        Ok(Settings { place, positional: Vec::new().into_iter(), named, taken: Vec::new() })
    }

    /// The place of a parameter in messages.
    pub(super) fn place_of(&self, key: &str) -> String {
        format!("{}: {key}", self.place)
    }

    /// The value of a parameter, which may be `null`; `None` if it is not given.
    pub(super) fn value(&mut self, key: &'static str) -> Result<Option<Value>> {
        self.taken.push(key);
        let named = self.named.shift_remove(key);
        match (self.positional.next(), named) {
            (Some(_), Some(_)) => Err(invalid(format!("{}: {key} is given twice", self.place))),
            (positional, named) => Ok(positional.or(named)),
        }
    }

    /// A parameter; `None` if it is `null` or not given.
    pub(super) fn get<T: Parameter>(&mut self, key: &'static str) -> Result<Option<T>> {
        match self.value(key)? {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match T::of(&value) {
                Some(setting) => Ok(Some(setting)),
                None => Err(unexpected(&self.place, key, T::EXPECTED, &value)),
            },
        }
    }

    /// A parameter without a default.
    pub(super) fn need<T: Parameter>(&mut self, key: &'static str) -> Result<T> {
        let found = self.get(key)?;
        found.ok_or_else(|| {
            invalid(format!("{}: {key} is missing; expected {}", self.place, T::EXPECTED))
        })
    }

    /// A parameter that is one of these names.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>> {
        match self.value(key)? {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let named = choices.iter().find(|(name, _)| value.as_str() == Some(name));
                named.map(|(_, choice)| Some(*choice)).ok_or_else(|| {
                    let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                    let expected = format!("one of {}", names.join(", "));
                    unexpected(&self.place, key, &expected, &value)
                })
            }
        }
    }

    /// Checks that all parameters were taken.
    pub(super) fn finish(self) -> Result<()> {
        let known = self.taken.join(", ");
        if let Some(key) = self.named.keys().next() {
            return Err(invalid(match known.is_empty() {
                true => format!("{}: unknown key {key:?}; there are no parameters", self.place),
                false => format!("{}: unknown key {key:?}; expected one of {known}", self.place),
            }));
        }
        match self.positional.len() {
            0 => Ok(()),
            _ => {
                let most = self.taken.len();
                Err(invalid(format!("{}: at most {most} arguments: {known}", self.place)))
            }
        }
    }

    /// The error for a value of a parameter.
    pub(super) fn fault(&self, key: &str, message: impl std::fmt::Display) -> Error {
        invalid(format!("{}: {key}: {message}", self.place))
    }
}

pub(super) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// The error for a type that does not exist.
pub(super) fn unknown(place: &str, kind: &str, names: &[&str]) -> Error {
    invalid(format!("{place}: unknown type {kind:?}; expected one of {}", names.join(", ")))
}

fn unexpected(place: &str, key: &str, expected: &str, found: &Value) -> Error {
    invalid(format!("{place}: {key}: expected {expected}, found {}", shown(found)))
}

/// A value as JSON, shortened.
fn shown(value: &Value) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(text, "{value}");
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A name without case, underscores and hyphens: `KeyPoints`, `key_points` and `key-points` are one name.
pub(super) fn folded(name: &str) -> String {
    let letters = name.chars().filter(|letter| !matches!(letter, '_' | '-'));
    letters.flat_map(char::to_lowercase).collect()
}

/// The type of a parameter.
pub(super) trait Parameter: Sized {
    /// The accepted values.
    const EXPECTED: &'static str;

    /// `None` if the value is not accepted.
    fn of(value: &Value) -> Option<Self>;
}

macro_rules! settings {
    ($($type:ty, $expected:literal, $value:ident => $made:expr;)*) => {$(
        impl Parameter for $type {
            const EXPECTED: &'static str = $expected;

            fn of($value: &Value) -> Option<Self> {
                $made
            }
        }
    )*};
}

settings! {
    bool, "true or false", value => value.as_bool();
    String, "text", value => value.as_str().map(str::to_owned);
    f64, "a number", value => number(value);
    f32, "a number", value => number(value).map(|number| number as f32);
    u8, "a whole number from 0 to 255", value => value.as_u64()?.try_into().ok();
    u16, "a whole number from 0 to 65535", value => value.as_u64()?.try_into().ok();
    u32, "a whole number of at least 0", value => value.as_u64()?.try_into().ok();
    usize, "a whole number of at least 0", value => value.as_u64()?.try_into().ok();
    i64, "a whole number", value => value.as_i64();
    (f64, f64), "two numbers: minimum and maximum", value => pair(value);
    (u32, u32), "two whole numbers: minimum and maximum", value => pair(value);
    [f32; 3], "three numbers", value => list(value)?.try_into().ok();
    Vec<f64>, "a list of numbers", value => list(value);
    Vec<usize>, "a list of whole numbers of at least 0", value => list(value);
    Vec<(usize, usize)>, "a list of pairs of whole numbers",
        value => value.as_array()?.iter().map(pair).collect();
}

/// A number. JSON has none that is not finite, so that these are text.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or(match value.as_str() {
        Some("nan") => Some(f64::NAN),
        Some("inf") => Some(f64::INFINITY),
        Some("-inf") => Some(f64::NEG_INFINITY),
        _ => None,
    })
}

/// A list of parameters.
pub(super) fn list<T: Parameter>(value: &Value) -> Option<Vec<T>> {
    value.as_array()?.iter().map(T::of).collect()
}

pub(super) fn pair<T: Parameter>(value: &Value) -> Option<(T, T)> {
    let [first, second]: [T; 2] = list(value)?.try_into().ok()?;
    Some((first, second))
}

/// Names: one, or a list.
pub(super) struct Names(pub(super) Vec<String>);

/// Height and width, from both or from the side of a square.
pub(super) struct Sides(pub(super) Size);

/// The shape of a sample, in which 0 or `null` stands for any length.
pub(super) struct Shape(pub(super) Vec<usize>);

/// Red, green and blue, from three levels or one for all.
pub(super) struct RgbLevels(pub(super) [u8; 3]);

/// Three numbers, or one for all.
pub(super) struct Levels(pub(super) [f32; 3]);

/// One number for all fields, or a number for some; others have 0.
pub(super) enum PerField {
    All(f64),
    Each(Vec<(String, f64)>),
}

impl PerField {
    pub(super) fn of(&self, field: &str) -> f64 {
        match self {
            PerField::All(number) => *number,
            PerField::Each(numbers) => {
                numbers.iter().find(|(name, _)| name == field).map_or(0.0, |(_, number)| *number)
            }
        }
    }

    /// The first field with a number that is not one of these.
    pub(super) fn unknown(&self, fields: &[String]) -> Option<&str> {
        let PerField::Each(numbers) = self else { return None };
        numbers
            .iter()
            .map(|(name, _)| name.as_str())
            .find(|name| !fields.iter().any(|it| it == name))
    }
}

/// A minimum and a maximum, or one number.
pub(super) enum Around {
    Number(f64),
    Between(f64, f64),
}

impl Around {
    /// The range from the middle minus the number to the middle plus the number.
    pub(super) fn range(self, middle: f64) -> (f64, f64) {
        match self {
            Around::Number(number) => {
                let least = middle - number;
                (if middle > 0.0 { least.max(0.0) } else { least }, middle + number)
            }
            Around::Between(least, most) => (least, most),
        }
    }
}

settings! {
    Names, "a name, or a list of names", value => match value {
        Value::String(name) => Some(Names(vec![name.clone()])),
        names => list(names).map(Names),
    };
    Sides, "the side of a square, or [height, width]", value => match u32::of(value) {
        Some(side) => Some(Sides(Size::new(side, side))),
        None => pair(value).map(|(height, width)| Sides(Size::new(width, height))),
    };
    Shape, "a list of lengths, in which 0 stands for any length", value => {
        let side = |value: &Value| match value {
            Value::Null => Some(0),
            side => usize::of(side),
        };
        match value {
            Value::Array(sides) => sides.iter().map(side).collect::<Option<_>>().map(Shape),
            one => side(one).map(|side| Shape(vec![side])),
        }
    };
    RgbLevels, "one level from 0 to 255, or three: red, green, blue", value => match u8::of(value) {
        Some(level) => Some(RgbLevels([level; 3])),
        None => list(value)?.try_into().ok().map(RgbLevels),
    };
    Levels, "one number, or three", value => match f32::of(value) {
        Some(level) => Some(Levels([level; 3])),
        None => <[f32; 3]>::of(value).map(Levels),
    };
    PerField, "a number, or a table of numbers by field", value => match value {
        Value::Object(members) => {
            let number = |(name, value): (&String, &Value)| Some((name.clone(), f64::of(value)?));
            members.iter().map(number).collect::<Option<_>>().map(PerField::Each)
        }
        number => f64::of(number).map(PerField::All),
    };
    Around, "a number, or two: minimum and maximum", value => match value.as_f64() {
        Some(number) => Some(Around::Number(number)),
        None => pair(value).map(|(least, most)| Around::Between(least, most)),
    };
}
