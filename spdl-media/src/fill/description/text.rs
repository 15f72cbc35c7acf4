//! Crops and augmentations as text: `randaugment(2, magnitude=9)`, or timm's `rand-m9-mstd0.5-inc1`.

use std::str::Chars;

use serde_json::{Map, Value};

/// The deepest nesting of lists and calls.
const DEPTH: usize = 16;
/// timm draws magnitudes uniformly above this standard deviation.
const MAX_STD: f64 = 100.0;

/// A name with arguments.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) positional: Vec<Value>,
    pub(super) named: Map<String, Value>,
}

impl Call {
    /// `None` if the text has another form. Calls among the arguments are text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        match text.split_once('-') {
            _ if text == "rand" => Call::of_timm("TimmRandAugment", "", &RAND),
            Some(("rand", rest)) => Call::of_timm("TimmRandAugment", rest, &RAND),
            Some(("augmix", rest)) if !rest.is_empty() => {
                Call::of_timm("TimmAugMix", rest, &AUGMIX)
            }
            _ => {
                let mut parser = Parser { rest: text.chars(), depth: 0 };
                let call = parser.call()?;
                parser.at_end().then_some(call)
            }
        }
    }

    /// A name of timm: parts of letters and a number, separated by hyphens.
    fn of_timm(name: &str, text: &str, parts: &[(&str, &str)]) -> Option<Self> {
        let mut call = Call { name: name.to_owned(), ..Call::default() };
        for part in text.split('-').filter(|_| !text.is_empty()) {
            let key = part.trim_end_matches(|digit: char| digit.is_ascii_digit() || digit == '.');
            let (_, parameter) = parts.iter().find(|(known, _)| *known == key)?;
            let number: f64 = part[key.len()..].parse().ok()?;
            let value = match *parameter {
                "increasing" => (number != 0.0).into(),
                "magnitude_std" if number > MAX_STD => "uniform".into(),
                "num_ops" | "mixture_width" | "chain_depth" => {
                    part[key.len()..].parse::<u64>().ok()?.into()
                }
                _ => number.into(),
            };
            if call.named.insert((*parameter).to_owned(), value).is_some() {
                return None;
            }
        }
        // The chains are blended one after another: the result is the same but for rounding.
        call.named.shift_remove("blended");
        Some(call)
    }
}

/// Parts of timm's names, and our parameters.
const RAND: [(&str, &str); 6] = [
    ("n", "num_ops"),
    ("m", "magnitude"),
    ("mstd", "magnitude_std"),
    ("mmax", "magnitude_max"),
    ("inc", "increasing"),
    ("p", "p"),
];
const AUGMIX: [(&str, &str); 6] = [
    ("m", "magnitude"),
    ("mstd", "magnitude_std"),
    ("w", "mixture_width"),
    ("d", "chain_depth"),
    ("a", "alpha"),
    ("b", "blended"),
];

struct Parser<'a> {
    rest: Chars<'a>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&mut self) -> Option<char> {
        let text = self.rest.as_str();
        self.rest = text.trim_start().chars();
        self.rest.clone().next()
    }

    fn accept(&mut self, wanted: char) -> bool {
        let is_next = self.peek() == Some(wanted);
        if is_next {
            self.rest.next();
        }
        is_next
    }

    fn at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    /// The longest text of such characters, which is not empty.
    fn word(&mut self, is_part: impl Fn(char) -> bool) -> Option<&'a str> {
        self.peek();
        let text = self.rest.as_str();
        let end = text.find(|letter| !is_part(letter)).unwrap_or(text.len());
        self.rest = text[end..].chars();
        (end > 0).then(|| &text[..end])
    }

    fn name(&mut self) -> Option<&'a str> {
        let name = self.word(|letter| letter.is_ascii_alphanumeric() || letter == '_')?;
        name.starts_with(|first: char| !first.is_ascii_digit()).then_some(name)
    }

    fn call(&mut self) -> Option<Call> {
        let mut call = Call { name: self.name()?.to_owned(), ..Call::default() };
        if !self.accept('(') {
            return Some(call);
        }
        while !self.accept(')') {
            let before = self.rest.clone();
            match self.name().filter(|_| self.accept('=')) {
                Some(key) => {
                    let value = self.value()?;
                    if call.named.insert(key.to_owned(), value).is_some() {
                        return None;
                    }
                }
                None if call.named.is_empty() => {
                    self.rest = before;
                    let value = self.value()?;
                    call.positional.push(value);
                }
                None => return None,
            }
            if !self.accept(',') && self.peek() != Some(')') {
                return None;
            }
        }
        Some(call)
    }

    fn value(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > DEPTH {
            return None;
        }
        let value = match self.peek()? {
            '(' | '[' => self.list()?,
            quote @ ('"' | '\'') => {
                self.rest.next();
                let text = self.rest.as_str();
                let end = text.find(quote)?;
                self.rest = text[end + 1..].chars();
                text[..end].into()
            }
            first if first.is_ascii_alphabetic() || first == '_' => {
                let text = self.rest.as_str();
                self.call()?;
                let used = &text[..text.len() - self.rest.as_str().len()];
                match used.trim() {
                    "True" | "true" => true.into(),
                    "False" | "false" => false.into(),
                    "None" | "null" => Value::Null,
                    call => call.into(),
                }
            }
            _ => self.number()?,
        };
        self.depth -= 1;
        Some(value)
    }

    /// Values in parentheses or brackets. One value in parentheses without a comma is that value.
    fn list(&mut self) -> Option<Value> {
        let (end, is_tuple) = if self.accept('(') { (')', true) } else { (']', !self.accept('[')) };
        let (mut values, mut commas) = (Vec::new(), 0);
        while !self.accept(end) {
            let value = self.value()?;
            values.push(value);
            match self.accept(',') {
                true => commas += 1,
                false if self.peek() != Some(end) => return None,
                false => {}
            }
        }
        match (is_tuple && commas == 0, values.pop()) {
            (true, Some(value)) => Some(value),
            (_, last) => Some(values.into_iter().chain(last).collect()),
        }
    }

    fn number(&mut self) -> Option<Value> {
        let text = self.word(|letter| letter.is_ascii_alphanumeric() || "+-._".contains(letter))?;
        match text.parse::<i64>() {
            _ if text.starts_with('+') => None,
            Ok(whole) => Some(whole.into()),
            Err(_) => text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(text: &str) -> Option<(String, Value, Value)> {
        let Call { name, positional, named } = Call::parse(text)?;
        Some((name, positional.into(), named.into()))
    }

    #[test]
    fn calls_have_positional_and_named_arguments() {
        let check = |text: &str, name: &str, positional: Value, named: Value| {
            assert_eq!(parsed(text), Some((name.to_owned(), positional, named)), "{text}");
        };
        check("augmix", "augmix", json!([]), json!({}));
        check(" randaugment( 2 ,9, )", "randaugment", json!([2, 9]), json!({}));
        check(
            "blur((9, 5), sigma=[0.1, -2e0])",
            "blur",
            json!([[9, 5]]),
            json!({"sigma": [0.1, -2.0]}),
        );
        check(
            "a((3), (3,), fill=None, x='y')",
            "a",
            json!([3, [3]]),
            json!({"fill": null, "x": "y"}),
        );
        let nested = "apply([jitter(0.4, hue=(0, .1)), grey], p=0.5)";
        check(nested, "apply", json!([["jitter(0.4, hue=(0, .1))", "grey"]]), json!({"p": 0.5}));
    }

    #[test]
    fn names_of_timm_are_parameters() {
        let named = json!({"magnitude": 9.0, "magnitude_std": 0.5, "increasing": true});
        let expected = Some(("TimmRandAugment".to_owned(), json!([]), named));
        assert_eq!(parsed("rand-m9-mstd0.5-inc1"), expected);
        let named = json!({"magnitude_std": "uniform", "chain_depth": 2});
        let expected = Some(("TimmAugMix".to_owned(), json!([]), named));
        assert_eq!(parsed("augmix-mstd101-d2-b1"), expected);
    }

    #[test]
    fn other_text_is_refused() {
        let deep = format!("a({}1{})", "[".repeat(99_999), "]".repeat(99_999));
        let texts = [
            "",
            "2",
            "a(",
            "a)",
            "a(1 2)",
            "a(,)",
            "a(x=1, 2)",
            "a(x=1, x=2)",
            "a() b",
            "a(1e999)",
            "a(+1)",
            "a('b)",
            "rand-q3",
            "rand-m",
            "rand-m9-m9",
            "rand-n2.5",
            "augmix-",
            "a-b",
            "a([1)]",
            "9a",
            &deep,
        ];
        for text in texts {
            assert_eq!(parsed(text), None, "{text:.40}");
        }
    }
}
