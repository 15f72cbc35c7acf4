//! The HTML page: one file without external resources, which is also well-formed XML.

use std::fmt::{self, Display, Write as _};
use std::time::SystemTime;

use crate::ui::format::{date, printable};

/// The page of a command: title, subtitle and content. The content must end with a line break.
pub(crate) fn document(command: &str, of: &str, about: &str, content: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8" />
<meta name="viewport" content="width=device-width, initial-scale=1" />
<meta name="color-scheme" content="light dark" />
<title>{command}: {title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{command}</h1>
<p class="about">{about}</p>
</header>
<main>
{content}</main>
<footer><p>spdl {version}, {date}</p></footer>
</body>
</html>
"#,
        title = Escaped(of),
        style = include_str!("style.css"),
        about = Escaped(about),
        version = env!("CARGO_PKG_VERSION"),
        date = date(now.as_secs()),
    )
}

/// Text escaped for element content and quoted attributes.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in printable(self.0).chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

pub(crate) fn definitions(pairs: &[(&str, String)]) -> String {
    let lines = pairs.iter().map(|(name, value)| {
        format!("<div><dt>{}</dt><dd>{}</dd></div>", Escaped(name), Escaped(value))
    });
    format!("<dl class=\"pairs\">\n{}\n</dl>", lines.collect::<Vec<_>>().join("\n"))
}

/// A table whose first `left` columns hold text; the others hold numbers.
pub(crate) fn table(
    title: &str,
    class: &str,
    header: &[&str],
    left: usize,
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let mut html = format!("<div class=\"scroll\"><table class=\"{class}\">\n<thead><tr>");
    let kind = |column: usize| if column < left { "words" } else { "number" };
    for (column, name) in header.iter().enumerate() {
        let _ = write!(html, "<th scope=\"col\" class=\"{}\">{}</th>", kind(column), Escaped(name));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(html, "<td class=\"{}\">{}</td>", kind(column), Escaped(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table></div>");
    section(title, &html)
}

pub(crate) fn section(title: &str, content: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n{content}\n</section>", Escaped(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_is_escaped() {
        let hostile = "<script>alert('\"&\x07')</script>";
        let escaped = Escaped(hostile).to_string();
        let page = format!("<p title=\"{escaped}\">{escaped}</p>");
        let document = roxmltree::Document::parse(&page).unwrap();
        let root = document.root_element();
        assert_eq!(root.text(), Some("<script>alert('\"&\\x07')</script>"));
        assert_eq!(root.attribute("title"), root.text());
        assert!(!root.children().any(|child| child.is_element()));
    }
}
