//! What the texts of a column of labels say: whole numbers, or else the names of classes.

use crate::records::{FieldValue, shown};

/// What one text says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelText {
    Empty,
    /// `3`, and also `3.0` and `3.0e+00`, as programs write whole numbers that lie beside missing ones.
    Whole(i64),
    /// A number that is not whole, or too large to be told from its neighbours.
    OtherNumber,
    /// All else, as `7e10`, which is mostly a part of a hash.
    Name,
}

impl LabelText {
    pub(crate) fn of(text: &str) -> Self {
        let text = text.trim();
        if text.is_empty() {
            return LabelText::Empty;
        }
        if let Ok(number) = text.parse() {
            return LabelText::Whole(number);
        }
        // `nan` and `inf` are words as others are.
        let digits = text.trim_start_matches(['+', '-']);
        let is_number = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
            && has_no_exponent_or_a_programs(text);
        match text.parse::<f64>() {
            Ok(number) if is_number => whole(number).map_or(LabelText::OtherNumber, Self::Whole),
            _ => LabelText::Name,
        }
    }

    /// The whole number, where it is one.
    pub(crate) fn number(self) -> Option<i64> {
        match self {
            LabelText::Whole(number) => Some(number),
            _ => None,
        }
    }
}

/// Programs write an exponent behind a point, and with its sign.
fn has_no_exponent_or_a_programs(text: &str) -> bool {
    text.split_once(['e', 'E'])
        .is_none_or(|(number, exponent)| number.contains('.') && exponent.starts_with(['+', '-']))
}

/// A number without a fraction as a label.
pub(crate) fn whole(number: f64) -> Option<i64> {
    /// Up to here each whole number is told from the next one.
    const LAST_EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    (number.fract() == 0.0 && number.abs() < LAST_EXACT).then_some(number as i64)
}

/// Whether the value of a field is a text that says nothing.
pub(crate) fn is_empty_text(value: &FieldValue) -> bool {
    value.as_str().is_some_and(|text| LabelText::of(text) == LabelText::Empty)
}

/// The texts of one column, which are all whole numbers or all names.
#[derive(Debug, Default)]
pub(crate) struct LabelTexts {
    /// The first that is not empty, with its place and what it says.
    first: Option<(String, u64, LabelText)>,
}

/// Why a text cannot be a label of its column.
#[derive(Debug)]
pub(crate) enum LabelFault {
    /// It is a number that is not whole.
    NotWhole,
    /// It is a number among names, or a name among numbers: the first text, and its place.
    Mixed { first: String, place: u64 },
}

impl LabelTexts {
    /// Takes the next text, at a `place` that its caller can tell people.
    pub(crate) fn add(&mut self, text: &str, place: u64) -> Result<LabelText, LabelFault> {
        let says = LabelText::of(text);
        match (says, &self.first) {
            (LabelText::Empty, _) => {}
            (LabelText::OtherNumber, _) => return Err(LabelFault::NotWhole),
            (_, None) => self.first = Some((text.to_owned(), place, says)),
            (_, Some((_, _, first))) if first.number().is_some() == says.number().is_some() => {}
            (_, Some((first, place, _))) => {
                return Err(LabelFault::Mixed { first: first.clone(), place: *place });
            }
        }
        Ok(says)
    }

    /// Whether they are names.
    pub(crate) fn are_names(&self) -> bool {
        self.first.as_ref().is_some_and(|(_, _, says)| *says == LabelText::Name)
    }
}

impl LabelFault {
    /// What is wrong with the label `text`, where `place_name` says where the first one is (`in line 3`), and
    /// the option that names another column is called `label_field`. It may be advised to leave labels empty
    /// where `empty_is_none`: where the sample has no label then, and is no error.
    pub(crate) fn message(
        &self,
        text: &str,
        place_name: impl Fn(u64) -> String,
        label_field: &str,
        empty_is_none: bool,
    ) -> String {
        let text_shown = shown(text.trim());
        match self {
            LabelFault::NotWhole => format!(
                "the label {text_shown} is no whole number that a label can be. If this column holds no \
                 labels, call it otherwise, or say which one does ({label_field})"
            ),
            LabelFault::Mixed { first, place } => {
                let (is, was) = match LabelText::of(text).number() {
                    Some(_) => ("a whole number", "is none"),
                    None => ("no whole number", "is one"),
                };
                let or_empty = match empty_is_none {
                    true => ", leave it empty where there is no label",
                    false => "",
                };
                format!(
                    "the label {text_shown} is {is}, and {} {} {was}; labels are all whole numbers, or all \
                     names of classes. Mend it{or_empty}, or, where numbers are \
                     names, put a letter before them; if this column holds no labels, say which one does \
                     ({label_field})",
                    shown(first.trim()),
                    place_name(*place),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_is_a_label_however_it_is_written() {
        for (text, expected) in [
            ("7", LabelText::Whole(7)),
            (" -3 ", LabelText::Whole(-3)),
            ("007", LabelText::Whole(7)),
            ("10.0", LabelText::Whole(10)),
            ("-1.000", LabelText::Whole(-1)),
            ("2.", LabelText::Whole(2)),
            ("1.0e+01", LabelText::Whole(10)),
            ("-1.000000E+00", LabelText::Whole(-1)),
            ("2.0e-01", LabelText::OtherNumber),
            ("1.0e+400", LabelText::OtherNumber),
            ("9223372036854775807", LabelText::Whole(i64::MAX)),
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
            assert_eq!(LabelText::of(text), expected, "{text}");
        }
    }

    #[test]
    fn a_column_is_of_numbers_or_of_names_and_the_first_of_the_others_is_told() {
        let read = |texts: &[&str]| {
            let mut all = LabelTexts::default();
            let mut faults = (0..).zip(texts).filter_map(|(place, text)| {
                let fault = all.add(text, place).err()?;
                let told = |empty_is_none| {
                    let row = |place| format!("in row {place}");
                    fault.message(text, row, "`other`", empty_is_none)
                };
                assert!(!told(false).contains("empty"), "{}", told(false));
                Some((place, told(true)))
            });
            let first = faults.next();
            first.ok_or_else(|| all.are_names())
        };
        assert_eq!(read(&["1", "2.0", "", "-1"]), Err(false));
        assert_eq!(read(&["cat", "", "nan", "1a"]), Err(true));
        let (place, told) = read(&["", "1", "2.0", "n/a", "dog"]).unwrap();
        let words =
            "the label \"n/a\" is no whole number, and \"1\" in row 1 is one; labels are all";
        assert!(place == 3 && told.starts_with(words) && told.ends_with("(`other`)"), "{told}");
        assert!(told.contains("Mend it, leave it empty where there is no label, or,"), "{told}");
        let (place, told) = read(&["cat", "7"]).unwrap();
        let words = "the label \"7\" is a whole number, and \"cat\" in row 0 is none; labels are";
        assert!(place == 1 && told.starts_with(words), "{told}");
        let (place, told) = read(&["1", "0.5"]).unwrap();
        assert!(
            place == 1 && told.starts_with("the label \"0.5\" is no whole number that"),
            "{told}"
        );
    }
}
