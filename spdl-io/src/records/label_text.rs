//! Labels that are stored as text: integers, or class names.

use spdl_core::{Error, ErrorKind};

use crate::records::{FieldValue, Remedy, abbreviated};

/// One label, parsed from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelText {
    Empty,
    /// `3`, and also `3.0` and `3.0e+00`, which programs write for integers if a column has missing
    /// values.
    Integer(i64),
    /// A fraction, or a number too large for exact floating-point representation.
    OtherNumber,
    /// Any other text. `7e10` is a name: usually a part of a hash.
    Name,
}

impl LabelText {
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.trim();
        if text.is_empty() {
            return LabelText::Empty;
        }
        if let Ok(number) = text.parse() {
            return LabelText::Integer(number);
        }
        // `nan` and `inf` are names.
        let digits = text.trim_start_matches(['+', '-']);
        let is_number = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
            && has_no_exponent_or_a_formatted_one(text);
        match text.parse::<f64>() {
            Ok(number) if is_number => {
                to_integer(number).map_or(LabelText::OtherNumber, Self::Integer)
            }
            _ => LabelText::Name,
        }
    }

    /// The integer; `None` for any other label.
    pub(crate) fn number(self) -> Option<i64> {
        match self {
            LabelText::Integer(number) => Some(number),
            _ => None,
        }
    }
}

/// Number formatters write exponents with a decimal point and a sign: `1.0e+05`.
fn has_no_exponent_or_a_formatted_one(text: &str) -> bool {
    text.split_once(['e', 'E'])
        .is_none_or(|(number, exponent)| number.contains('.') && exponent.starts_with(['+', '-']))
}

/// A floating-point label as an integer; `None` for a fraction, and from 2⁵³ on.
pub(crate) fn to_integer(number: f64) -> Option<i64> {
    /// From this value on, `f64` does not represent every integer.
    const LAST_EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    (number.fract() == 0.0 && number.abs() < LAST_EXACT).then_some(number as i64)
}

/// Whether the value of a field is text that is empty or holds only white space.
pub(crate) fn is_empty_text(value: &FieldValue) -> bool {
    value.as_str().is_some_and(|text| LabelText::parse(text) == LabelText::Empty)
}

/// A column of labels: all integers, or all names.
#[derive(Debug, Default)]
pub(crate) struct LabelColumn {
    /// The first label that is not empty, with its position.
    first: Option<(String, u64, LabelText)>,
}

/// Why a text is not a valid label of its column.
#[derive(Debug)]
pub(crate) enum InvalidLabel {
    /// A number that is not an integer below 2⁵³.
    NotAnInteger,
    /// A number in a column of names, or a name in a column of numbers. Holds the first label of the
    /// column and its position.
    Mixed { first: String, position: u64 },
}

impl LabelColumn {
    /// Adds the next label.
    pub(crate) fn add(&mut self, text: &str, position: u64) -> Result<LabelText, InvalidLabel> {
        let label = LabelText::parse(text);
        match (label, &self.first) {
            (LabelText::Empty, _) => {}
            (LabelText::OtherNumber, _) => return Err(InvalidLabel::NotAnInteger),
            (_, None) => self.first = Some((text.to_owned(), position, label)),
            (_, Some((_, _, first))) if first.number().is_some() == label.number().is_some() => {}
            (_, Some((first, position, _))) => {
                return Err(InvalidLabel::Mixed { first: first.clone(), position: *position });
            }
        }
        Ok(label)
    }

    /// Whether the labels are names.
    pub(crate) fn are_names(&self) -> bool {
        self.first.as_ref().is_some_and(|(_, _, label)| *label == LabelText::Name)
    }
}

impl InvalidLabel {
    /// The error for the label `text`.
    ///
    /// `position_name` describes the position of the first label, such as `in line 3`. If `may_be_empty`, empty
    /// text means that the sample has no label, and the message suggests leaving the label empty.
    pub(crate) fn error(
        &self,
        text: &str,
        position_name: impl Fn(u64) -> String,
        may_be_empty: bool,
    ) -> Error {
        let quoted = abbreviated(text.trim());
        let message = match self {
            InvalidLabel::NotAnInteger => {
                format!("label {quoted} is a number but not an integer below 2^53")
            }
            InvalidLabel::Mixed { first, position } => {
                let first = format!("{} {}", abbreviated(first.trim()), position_name(*position));
                let conflict = match LabelText::parse(text).number() {
                    Some(_) => format!("label {quoted} is an integer, but {first} is not"),
                    None => format!("label {quoted} is not an integer, but {first} is"),
                };
                let or_empty = match may_be_empty {
                    true => ", or leave it empty if the sample has no label",
                    false => "",
                };
                format!(
                    "{conflict}: labels must be all integers or all class names; correct the \
                     label{or_empty}; to use numbers as class names, add a letter to each"
                )
            }
        };
        Error::new(ErrorKind::InvalidArgument, message).with_source(Remedy::LabelField)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_parsed_in_all_common_notations() {
        for (text, expected) in [
            ("7", LabelText::Integer(7)),
            (" -3 ", LabelText::Integer(-3)),
            ("007", LabelText::Integer(7)),
            ("10.0", LabelText::Integer(10)),
            ("-1.000", LabelText::Integer(-1)),
            ("2.", LabelText::Integer(2)),
            ("1.0e+01", LabelText::Integer(10)),
            ("-1.000000E+00", LabelText::Integer(-1)),
            ("2.0e-01", LabelText::OtherNumber),
            ("1.0e+400", LabelText::OtherNumber),
            ("9223372036854775807", LabelText::Integer(i64::MAX)),
            ("0.5", LabelText::OtherNumber),
            (".5", LabelText::OtherNumber),
            ("9007199254740993.0", LabelText::OtherNumber),
            ("18446744073709551615", LabelText::OtherNumber),
            ("nan", LabelText::Name),
            ("-inf", LabelText::Name),
            ("1.0.0", LabelText::Name),
            ("7up", LabelText::Name),
            ("7e10", LabelText::Name),
            ("0e1", LabelText::Name),
            ("2E5", LabelText::Name),
            ("1e+05", LabelText::Name),
            ("1.0e5", LabelText::Name),
            (".", LabelText::Name),
            ("cat", LabelText::Name),
            (" \t", LabelText::Empty),
        ] {
            assert_eq!(LabelText::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn a_column_of_numbers_and_names_is_an_error_that_names_both() {
        let read = |texts: &[&str]| {
            let mut column = LabelColumn::default();
            let mut errors = (0..).zip(texts).filter_map(|(position, text)| {
                let invalid = column.add(text, position).err()?;
                let error = |may_be_empty| {
                    let row = |position| format!("in row {position}");
                    invalid.error(text, row, may_be_empty)
                };
                assert!(!error(false).message().contains("empty"), "{}", error(false));
                assert_eq!(Remedy::of(&error(true)), Some(Remedy::LabelField));
                Some((position, error(true).message().to_owned()))
            });
            let first = errors.next();
            first.ok_or_else(|| column.are_names())
        };
        assert_eq!(read(&["1", "2.0", "", "-1"]), Err(false));
        assert_eq!(read(&["cat", "", "nan", "1a"]), Err(true));
        let (position, message) = read(&["", "1", "2.0", "n/a", "dog"]).unwrap();
        let start = "label \"n/a\" is not an integer, but \"1\" in row 1 is: labels must be all";
        assert!(position == 3 && message.starts_with(start), "{message}");
        let advice = "correct the label, or leave it empty if the sample has no label;";
        assert!(message.contains(advice), "{message}");
        let (position, message) = read(&["cat", "7"]).unwrap();
        let start = "label \"7\" is an integer, but \"cat\" in row 0 is not: labels must";
        assert!(position == 1 && message.starts_with(start), "{message}");
        let (position, message) = read(&["1", "0.5"]).unwrap();
        let start = "label \"0.5\" is a number but not an integer";
        assert!(position == 1 && message.starts_with(start), "{message}");
    }
}
