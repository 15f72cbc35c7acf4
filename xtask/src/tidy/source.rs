//! A minimal lexer for Rust files: separates comments and strings from code, and finds test
//! modules.

/// A Rust file, split into code and text.
#[derive(Debug)]
pub(crate) struct Source {
    /// The code; comments and the contents of literals are replaced by spaces.
    pub(crate) code: String,
    /// The comments and the contents of string literals; code is replaced by spaces.
    pub(crate) text: String,
}

/// Separates code from comments and literals. Line numbers and byte offsets stay the same.
pub(crate) fn split(file: &str) -> Source {
    let bytes = file.as_bytes();
    let mut is_text = vec![false; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let before = at.checked_sub(1).map(|before| bytes[before]);
        let in_word = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let end = if rest.starts_with(b"//") {
            at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            at + end_of_block_comment(rest)
        } else if let Some(hashes) = raw_string(rest).filter(|_| !in_word) {
            at + end_of_raw_string(rest, hashes)
        } else if rest[0] == b'"' {
            at + end_of_string(rest)
        } else if let Some(length) = char_literal(rest) {
            // A quote or a brace inside a literal does not count as code.
            at + length
        } else {
            at + 1
        };
        if end > at + 1 {
            is_text[at..end].fill(true);
        }
        at = end;
    }
    let keep = |wanted: bool| {
        let mut kept = bytes.to_vec();
        for (byte, is_text) in kept.iter_mut().zip(&is_text) {
            if *is_text != wanted && *byte != b'\n' {
                *byte = b' ';
            }
        }
        String::from_utf8_lossy(&kept).into_owned()
    };
    Source { code: keep(false), text: keep(true) }
}

fn end_of_block_comment(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The number of `#` of a raw string that starts here.
fn raw_string(text: &[u8]) -> Option<usize> {
    let rest = text.strip_prefix(b"br").or(text.strip_prefix(b"cr")).or(text.strip_prefix(b"r"))?;
    let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
    (rest.get(hashes) == Some(&b'"')).then_some(hashes)
}

fn end_of_raw_string(text: &[u8], hashes: usize) -> usize {
    let start = text.iter().position(|byte| *byte == b'"').map_or(text.len(), |at| at + 1);
    let end = [b"\"", &vec![b'#'; hashes][..]].concat();
    let found = text[start..].windows(end.len()).position(|window| window == end);
    found.map_or(text.len(), |at| start + at + end.len())
}

fn end_of_string(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// The length of a character literal that starts here; `None` for a lifetime.
fn char_literal(text: &[u8]) -> Option<usize> {
    let rest = text.strip_prefix(b"'")?;
    if rest.first() == Some(&b'\\') {
        return rest.iter().skip(2).position(|byte| *byte == b'\'').map(|at| at + 4);
    }
    // A character has up to four bytes in UTF-8.
    (1..=4)
        .find(|&length| {
            rest.get(length) == Some(&b'\'')
                && std::str::from_utf8(&rest[..length]).is_ok_and(|one| one.chars().count() == 1)
        })
        .map(|length| length + 2)
}

/// The code without items that follow `#[cfg(test)]` or a similar attribute; these items are
/// replaced by spaces.
pub(crate) fn without_tests(code: &str) -> String {
    let mut kept = code.as_bytes().to_vec();
    let mut from = 0;
    while let Some((start, end)) = next_test_item(code, from) {
        for byte in &mut kept[start..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        from = end;
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// The names of the modules that are declared only for tests.
pub(crate) fn test_modules(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut from = 0;
    while let Some((start, end)) = next_test_item(code, from) {
        let item = code[start..end].trim_end();
        if let Some((_, name)) = item.strip_suffix(';').and_then(|item| item.rsplit_once("mod ")) {
            names.push(name.trim().to_owned());
        }
        from = end;
    }
    names
}

/// The next item that is compiled only for tests: from its attribute to its end.
fn next_test_item(code: &str, from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let start = at + code.get(at..)?.find("#[cfg(")?;
        let attribute_end = start + code[start..].find(']')? + 1;
        let condition = &code[start + "#[cfg(".len()..attribute_end];
        if condition.starts_with("test)") || condition.starts_with("all(test,") {
            return Some((start, end_of_item(code, attribute_end)));
        }
        at = attribute_end;
    }
}

/// The end of an item: a `;` outside of brackets, or the brace that closes its body.
fn end_of_item(code: &str, start: usize) -> usize {
    let mut depth = 0_i32;
    for (at, letter) in code[start..].char_indices() {
        match letter {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth -= 1;
                if depth == 0 && letter == '}' || depth < 0 {
                    return start + at + 1;
                }
            }
            ';' if depth == 0 => return start + at + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_text_are_separated() {
        let file = "let a = \"x // {\"; // why 'x'\nlet b = '\"'; let c: &'a str = r#\"y\"z\"#; /* } */ f('{')\n";
        let Source { code, text } = split(file);
        assert_eq!(code.len(), file.len());
        for word in ["let a", "let b", "&'a str", "f(", ")"] {
            assert!(code.contains(word), "{word}: {code}");
        }
        assert!(!code.contains(['{', '}', '"', 'x', 'z']), "{code}");
        assert!(text.contains("x // {") && text.contains("// why 'x'") && text.contains("y\"z"));
        assert!(!text.contains("let"), "{text}");
    }

    #[test]
    fn test_items_are_left_out() {
        let code = "use a;\n#[cfg(test)]\nmod tests {\n    use b;\n}\n#[cfg(all(test, x))]\nmod models;\nuse c;\n";
        let kept = without_tests(code);
        assert!(kept.contains("use a;") && kept.contains("use c;"), "{kept}");
        assert!(!kept.contains("use b;") && !kept.contains("models"), "{kept}");
        assert_eq!(test_modules(code), ["models"]);
    }
}
