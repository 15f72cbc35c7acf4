//! Words that the text of this project avoids, and what to write instead.

use super::source::split;

/// Phrases in lower case, each with its replacement.
const WORDS: [(&str, &str); 72] = [
    ("is told", "report, log, return, raise"),
    ("are told", "report, log, return, raise"),
    ("was told", "report, log, return, raise"),
    ("be told", "report, log, return, raise"),
    ("told", "report, log, return, raise"),
    ("tells", "reports, logs, returns, raises, documents"),
    ("says", "reports, logs, returns, raises, documents"),
    ("say so", "report, document"),
    ("of its own", "separate, dedicated, custom"),
    ("of their own", "separate, dedicated, custom"),
    ("of our own", "separate, dedicated, custom"),
    ("of one's own", "separate, dedicated, custom"),
    ("of my own", "separate, dedicated, custom"),
    ("of your own", "separate, dedicated, custom"),
    ("of the caller's own", "separate, dedicated, custom"),
    ("where there is no", "if there is no"),
    ("where there is none", "if there is none"),
    ("where there are no", "if there are no"),
    ("where there are none", "if there are none"),
    ("where there is one", "if there is one"),
    ("where it is not", "if it is not"),
    ("where that is not", "if that is not"),
    ("where nothing", "if nothing"),
    ("whoever", "the caller"),
    ("whom", "name who acts"),
    ("nobody", "no thread, no caller"),
    ("somebody", "a caller, a thread, a third party"),
    ("anybody", "a caller, a thread"),
    ("everybody", "all callers, all threads"),
    ("who waits", "a waiting thread"),
    ("who asks", "the caller"),
    ("who wants", "a user that"),
    ("goes on", "continues, resumes"),
    ("go on", "continue, resume"),
    ("went on", "continued, resumed"),
    ("gone on", "continued, resumed"),
    ("going on", "in progress"),
    ("is cut", "is truncated"),
    ("are cut", "are truncated"),
    ("was cut", "was truncated"),
    ("cut short", "truncated"),
    ("is sound", "is valid"),
    ("are sound", "are valid"),
    ("not sound", "corrupt"),
    ("unsound file", "corrupt file"),
    ("makes no sense", "is invalid, is inconsistent"),
    ("make no sense", "are invalid, are inconsistent"),
    ("is asked for", "is requested"),
    ("are asked for", "are requested"),
    ("was asked for", "was requested"),
    ("asked for", "requested"),
    ("lets go of", "releases, drops"),
    ("let go of", "released, dropped"),
    ("letting go of", "releasing, dropping"),
    ("at once", "immediately; concurrently"),
    ("amid", "during"),
    ("is heard", "is handled"),
    ("are heard", "are handled"),
    ("under way", "in flight, in progress"),
    ("hand out", "assign"),
    ("hands out", "assigns"),
    ("handed out", "assigned"),
    ("hand on", "return, forward"),
    ("hands on", "returns, forwards"),
    ("handed on", "returned, forwarded"),
    ("kept back", "buffered"),
    ("held back", "buffered"),
    ("holds back", "buffers"),
    ("the way back", "return path, recycling"),
    ("a stranger", "an unknown host"),
    ("none may", "unsupported"),
    ("comes of", "results from"),
];

/// The phrases of the table that occur in a file: line, phrase, replacement.
pub(crate) fn findings(file: &str, extension: &str) -> Vec<(usize, &'static str, &'static str)> {
    let text = match extension {
        "rs" => split(file).text,
        "py" | "pyi" => text_of_python(file),
        "md" => text_of_markdown(file),
        _ => return Vec::new(),
    };
    let (words, lines) = normalised(&text);
    let mut findings: Vec<(usize, &str, &str)> = Vec::new();
    for (phrase, better) in WORDS {
        for (at, _) in words.match_indices(phrase) {
            let is_letter =
                |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
            let before = words[..at].chars().next_back();
            let after = words[at + phrase.len()..].chars().next();
            if !before.is_some_and(is_letter) && !after.is_some_and(is_letter) {
                findings.push((lines[at], phrase, better));
            }
        }
    }
    findings.sort_unstable();
    // The phrase "is told" also matches the entry "told"; only the longer match is reported.
    findings.dedup_by(|later, earlier| {
        later.0 == earlier.0 && (earlier.1.contains(later.1) || later.1.contains(earlier.1))
    });
    findings
}

/// The text in lower case, with single spaces instead of line breaks and comment markers; and, for
/// each byte, its line.
fn normalised(text: &str) -> (String, Vec<usize>) {
    let mut words = String::with_capacity(text.len());
    let mut lines = Vec::with_capacity(text.len());
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start().trim_start_matches(['/', '!', '#', '*', '>']);
        for word in line.split_whitespace() {
            for letter in word.chars().flat_map(char::to_lowercase).chain([' ']) {
                words.push(letter);
                lines.resize(words.len(), number + 1);
            }
        }
    }
    (words, lines)
}

/// The comments and string literals of a Python file.
fn text_of_python(file: &str) -> String {
    let mut text = String::with_capacity(file.len());
    let mut rest = file;
    while let Some(letter) = rest.chars().next() {
        let quotes = ["\"\"\"", "'''", "\"", "'"];
        let end = if letter == '#' {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(quote) = quotes.into_iter().find(|quote| rest.starts_with(quote)) {
            end_of_python_string(rest, quote)
        } else {
            text.push(if letter == '\n' { '\n' } else { ' ' });
            rest = &rest[letter.len_utf8()..];
            continue;
        };
        text.push_str(&rest[..end]);
        rest = &rest[end..];
    }
    text
}

fn end_of_python_string(text: &str, quote: &str) -> usize {
    let mut at = quote.len();
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with(quote) {
            return at + quote.len();
        }
        if quote.len() == 1 && rest.starts_with('\n') {
            return at;
        }
        let escaped = usize::from(rest.starts_with('\\'));
        at += rest.chars().take(1 + escaped).map(char::len_utf8).sum::<usize>();
    }
    text.len()
}

/// The text of a Markdown file without its code.
fn text_of_markdown(file: &str) -> String {
    let mut text = String::with_capacity(file.len());
    let mut in_block = false;
    for line in file.lines() {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        if !in_block && !is_fence {
            // The parts between backticks are code: every second part.
            for (index, part) in line.split('`').enumerate() {
                text.push_str(if index % 2 == 0 { part } else { " code " });
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phrases(file: &str, extension: &str) -> Vec<(usize, &'static str)> {
        findings(file, extension).into_iter().map(|(line, phrase, _)| (line, phrase)).collect()
    }

    #[test]
    fn phrases_are_found_in_comments_and_literals_only() {
        let file =
            "// A thread of\n// its own is told.\nlet told = \"It Goes  on.\";\nfn nobody() {}\n";
        assert_eq!(phrases(file, "rs"), [(1, "of its own"), (2, "is told"), (3, "goes on")]);
        let file = "x = told  # nobody\n\"\"\"At once,\n'amid' all.\"\"\"\n";
        assert_eq!(phrases(file, "py"), [(1, "nobody"), (2, "at once"), (3, "amid")]);
        let file = "It is `told` at once.\n```\nnobody\n```\npyramid, one-at once\n";
        assert_eq!(phrases(file, "md"), [(1, "at once")]);
    }

    #[test]
    fn the_table_is_in_lower_case_without_repetitions() {
        for (index, (phrase, _)) in WORDS.iter().enumerate() {
            assert_eq!(*phrase, phrase.to_lowercase());
            assert!(WORDS[..index].iter().all(|(other, _)| other != phrase), "{phrase}");
        }
    }
}
