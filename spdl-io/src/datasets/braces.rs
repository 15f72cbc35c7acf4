//! Brace expansion, as in shells: `shard-{000000..000147}.tar`.

use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::Key;

/// The maximum number of names. Lower for fuzzing, whose allocator retains freed memory.
const MAX_NAMES: usize = if cfg!(fuzzing) { 10_000 } else { 1_000_000 };
/// The maximum total size of the names, in bytes.
const MAX_BYTES: usize = if cfg!(fuzzing) { 1 << 20 } else { 64 << 20 };
/// The maximum length of a pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 64 << 10;
/// The maximum nesting depth of braces.
const MAX_DEPTH: usize = 32;

/// Expands the braces of a pattern. The names are in the order of the pattern.
///
/// | pattern | names |
/// |---|---|
/// | `{a,b,}.tar` | `a.tar`, `b.tar`, `.tar` |
/// | `{8..10}`, `{10..8}` | `8`, `9`, `10`; `10`, `9`, `8` |
/// | `{008..10}` | `008`, `009`, `010`: a leading zero pads all numbers to the same width |
/// | `{0..9..4}` | `0`, `4`, `8` |
/// | `{a..e..2}` | `a`, `c`, `e`: both letters must have the same case |
/// | `{train,val}-{0..1}` | `train-0`, `train-1`, `val-0`, `val-1` |
/// | `{a,b{1,2}}` | `a`, `b1`, `b2` |
/// | `{a}`, `{}` | unchanged: neither a list nor a range |
/// | `\{`, `\}`, `\,`, `\\` | the character after the backslash |
///
/// ```
/// use spdl_io::datasets::expand_braces;
/// let shards = expand_braces("shard-{000000..000147}.tar")?;
/// assert_eq!(shards.len(), 148);
/// assert_eq!(shards[147], "shard-000147.tar");
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// - `InvalidArgument` for an unmatched brace, with its offset in the pattern.
/// - `LimitExceeded` for more than 1,000,000 names, 64 MiB of names, a pattern of more than 64 KiB, or more
///   than 32 nested braces.
pub fn expand_braces(pattern: &str) -> Result<Vec<String>> {
    let with_pattern = |error: Error| match error.key() {
        Some(_) => error,
        None => {
            let start: String = pattern.chars().take(200).collect();
            error.with_key(Key::from(start).display_name())
        }
    };
    if pattern.len() > MAX_PATTERN_BYTES {
        let len = pattern.len();
        let message =
            format!("pattern of {len} bytes exceeds the limit of {MAX_PATTERN_BYTES} bytes");
        return Err(with_pattern(Error::new(ErrorKind::LimitExceeded, message)));
    }
    let mut parser = BraceParser { pattern, at: 0, depth: 0 };
    let names = parser.alternatives().and_then(|names| match parser.at == pattern.len() {
        true => Ok(names),
        false => Err(parser.invalid("unmatched closing brace", parser.at)),
    });
    names.map_err(with_pattern)
}

struct BraceParser<'a> {
    pattern: &'a str,
    at: usize,
    depth: usize,
}

impl BraceParser<'_> {
    /// The names up to the end of the pattern, or to the comma or brace that ends this item of a
    /// list.
    fn alternatives(&mut self) -> Result<Vec<String>> {
        let mut names = vec![String::new()];
        let mut literal = String::new();
        while let Some(letter) = self.pattern[self.at..].chars().next() {
            match letter {
                '}' => break,
                ',' if self.depth > 0 => break,
                '{' => {
                    names = self.product(names, vec![std::mem::take(&mut literal)])?;
                    let inner = self.braces()?;
                    names = self.product(names, inner)?;
                }
                '\\' => {
                    let escaped = self.pattern[self.at + 1..].chars().next();
                    self.at += 1 + escaped.map_or(0, char::len_utf8);
                    literal.push(escaped.unwrap_or('\\'));
                }
                letter => {
                    self.at += letter.len_utf8();
                    literal.push(letter);
                }
            }
        }
        self.product(names, vec![literal])
    }

    /// The names from the pair of braces that opens here.
    fn braces(&mut self) -> Result<Vec<String>> {
        let start = self.at;
        if self.depth == MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} nested braces");
            let error = Error::new(ErrorKind::LimitExceeded, message);
            return Err(error.with_offset(start as u64));
        }
        if let Some((range, len)) = self.range()? {
            self.at += len;
            return Ok(range);
        }
        self.at += 1;
        self.depth += 1;
        let mut parts = 1;
        let mut names = self.alternatives()?;
        while self.pattern[self.at..].starts_with(',') {
            self.at += 1;
            parts += 1;
            let more = self.alternatives()?;
            self.check(names.len() + more.len(), bytes_of(&names) + bytes_of(&more))?;
            names.extend(more);
        }
        self.depth -= 1;
        if !self.pattern[self.at..].starts_with('}') {
            return Err(self.invalid("unmatched opening brace", start));
        }
        self.at += 1;
        if parts > 1 {
            return Ok(names);
        }
        self.check(names.len(), bytes_of(&names) + 2 * names.len())?;
        Ok(names.into_iter().map(|name| format!("{{{name}}}")).collect())
    }

    /// The names of a range that starts here, and its length including braces; `None` if there is none.
    fn range(&self) -> Result<Option<(Vec<String>, usize)>> {
        let rest = &self.pattern[self.at + 1..];
        let Some(inner) = rest.find('}').map(|end| &rest[..end]) else { return Ok(None) };
        let mut parts = inner.split("..");
        let (Some(first), Some(last)) = (parts.next(), parts.next()) else { return Ok(None) };
        let step = match (parts.next(), parts.next()) {
            (None, _) => 1,
            (Some(step), None) => match integer(step) {
                // As in shells, the order of the two bounds determines the direction.
                Some(step) => step.unsigned_abs().max(1),
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let names = if let (Some(start), Some(end)) = (integer(first), integer(last)) {
            let is_padded = |text: &str| {
                let digits = text.trim_start_matches('-');
                digits.len() > 1 && digits.starts_with('0')
            };
            let width = match is_padded(first) || is_padded(last) {
                true => first.len().max(last.len()),
                false => 0,
            };
            let width_of_all = width.max(first.len()).max(last.len());
            self.sequence(start, end, step, width_of_all, |number| match number < 0 {
                true => format!("-{:0>width$}", number.unsigned_abs(), width = width.max(1) - 1),
                false => format!("{number:0>width$}"),
            })?
        } else if let (Some(start), Some(end)) = (letter(first), letter(last))
            && (start < i64::from(b'a')) == (end < i64::from(b'a'))
        {
            self.sequence(start, end, step, 1, |letter| {
                u8::try_from(letter).map_or(String::new(), |letter| char::from(letter).to_string())
            })?
        } else {
            return Ok(None);
        };
        Ok(Some((names, inner.len() + 2)))
    }

    fn sequence(
        &self,
        start: i64,
        end: i64,
        step: u64,
        width: usize,
        name: impl Fn(i64) -> String,
    ) -> Result<Vec<String>> {
        let count = start.abs_diff(end) / step;
        let count = usize::try_from(count).unwrap_or(usize::MAX).saturating_add(1);
        self.check(count, count.saturating_mul(width))?;
        let numbers = (0..count as i64).map(|number| {
            let distance = number * step as i64;
            if start <= end { start + distance } else { start - distance }
        });
        Ok(numbers.map(name).collect())
    }

    /// The Cartesian product of two lists.
    fn product(&self, starts: Vec<String>, ends: Vec<String>) -> Result<Vec<String>> {
        let bytes = bytes_of(&starts).saturating_mul(ends.len());
        let bytes = bytes.saturating_add(bytes_of(&ends).saturating_mul(starts.len()));
        self.check(starts.len().saturating_mul(ends.len()), bytes)?;
        match (&starts[..], &ends[..]) {
            ([start], _) if start.is_empty() => return Ok(ends),
            (_, [end]) if end.is_empty() => return Ok(starts),
            _ => {}
        }
        let join = |start: &String| {
            let start = start.clone();
            ends.iter().map(move |end| format!("{start}{end}"))
        };
        Ok(starts.iter().flat_map(join).collect())
    }

    fn check(&self, names: usize, bytes: usize) -> Result<()> {
        let message = if names > MAX_NAMES {
            format!("the pattern expands to more than {MAX_NAMES} names")
        } else if bytes > MAX_BYTES {
            format!("the pattern expands to more than {MAX_BYTES} bytes")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(self.at as u64))
    }

    fn invalid(&self, message: &str, at: usize) -> Error {
        Error::new(ErrorKind::InvalidArgument, message).with_offset(at as u64)
    }
}

fn bytes_of(names: &[String]) -> usize {
    names.iter().map(String::len).sum()
}

/// An integer of at most 18 digits.
fn integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_one = (1..=18).contains(&digits.len()) && digits.bytes().all(|it| it.is_ascii_digit());
    if is_one { text.parse().ok() } else { None }
}

fn letter(text: &str) -> Option<i64> {
    match text.as_bytes() {
        [letter] if letter.is_ascii_alphabetic() => Some(i64::from(*letter)),
        _ => None,
    }
}
