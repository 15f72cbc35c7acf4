//! The report that `spdl bench --report` writes.

use std::fs;

use crate::common::{Folder, bench, finish, spdl};
use roxmltree::{Document, ParsingOptions};

fn parse(html: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(html, options).unwrap()
}

/// All text below the nodes with this name.
fn texts(document: &Document<'_>, name: &str) -> Vec<String> {
    let nodes = document.descendants().filter(|node| node.tag_name().name() == name);
    nodes
        .map(|node| {
            node.descendants()
                .filter(|node| node.is_text())
                .filter_map(|node| node.text())
                .collect::<Vec<_>>()
                .concat()
        })
        .collect()
}

#[test]
fn the_report_is_one_file_with_figures_charts_and_tables() {
    let folder = Folder::with_images(60, 3);
    let target = Folder::new();
    let path = target.join("report.html");
    let run = bench(folder.path(), &["--epochs", "3", "--report", path.to_str().unwrap()]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert!(run.stdout.contains(path.to_str().unwrap()), "its path is result");
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 1, "nothing else is left");

    let html = fs::read_to_string(&path).unwrap();
    let document = parse(&html);
    assert_eq!(texts(&document, "svg").len(), 5);
    let headings = texts(&document, "h2");
    for title in ["Throughput over time", "Service times", "Queues over time", "Settings"] {
        assert!(headings.iter().any(|heading| heading == title), "{title} in {headings:?}");
    }
    // Screen readers read title and summary.
    for svg in document.descendants().filter(|node| node.has_tag_name(SVG)) {
        let names = svg.attribute("aria-labelledby").unwrap().split(' ');
        for name in names {
            let node = svg.descendants().find(|node| node.attribute("id") == Some(name)).unwrap();
            assert!(node.text().is_some_and(|text| text.len() > 5));
        }
    }
    for broken in ["NaN", "inf"] {
        let drawn = document.descendants().flat_map(|node| node.attributes());
        assert!(drawn.into_iter().all(|attribute| !attribute.value().contains(broken)));
    }
    for foreign in ["<script", "<link", "@import", "url(", "src=\"", "href=\""] {
        assert!(!html.contains(foreign), "{foreign} would fetch something");
    }
}

const SVG: (&str, &str) = ("http://www.w3.org/2000/svg", "svg");

#[test]
fn markup_in_file_names_is_escaped() {
    let folder = Folder::with_images(20, 1);
    let hostile = "</td><script>alert('&\"')<svg onload=x>\u{202e}gpj\x1b[2J\n.jpg";
    folder.add(format!("class-0/{}", hostile.replace('/', "∕")), b"");
    folder.add("class-0/<!--]]>.jpg", b"");
    let path = folder.join("report.html");
    let run = bench(folder.path(), &["--on-error", "skip", "--report", path.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(!run.stdout.contains(['\x1b', '\u{202e}']), "control characters in the output");

    let html = fs::read_to_string(&path).unwrap();
    let document = parse(&html);
    let cells = texts(&document, "td").concat();
    assert!(cells.contains("<script>alert('&\"')<svg onload=x>"), "{cells}");
    assert!(cells.contains("<!--]]>.jpg"), "{cells}");
    assert_eq!(texts(&document, "script").len(), 0);
    assert!(!html.contains(['\u{202e}', '\x1b']));
}

#[test]
fn json_and_report_can_be_combined() {
    let folder = Folder::with_images(20, 1);
    let path = folder.join("report.html");
    let run = bench(folder.path(), &["--json", "--report", path.to_str().unwrap()]);
    assert_eq!(run.json()["images"], 20);
    parse(&fs::read_to_string(&path).unwrap());
}

#[test]
fn a_failed_run_keeps_the_old_report() {
    let folder = Folder::with_images(20, 1);
    folder.add("class-0/bad.jpg", b"");
    let path = folder.join("report.html");
    fs::write(&path, "old").unwrap();
    let run = bench(folder.path(), &["--report", path.to_str().unwrap()]);
    assert_eq!(run.code, 1);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn an_unwritable_report_fails_before_the_run() {
    let folder = Folder::with_images(4, 1);
    // The run itself would fail, too.
    folder.add("class-0/bad.jpg", b"");
    for place in ["missing/report.html", "class-0", ".."] {
        let run = bench(folder.path(), &["--report", folder.join(place).to_str().unwrap()]);
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{place}");
        assert!(run.line().starts_with("spdl: cannot write the report: "), "{}", run.line());
    }
}

#[test]
fn a_report_may_be_a_bare_file_name() {
    let folder = Folder::with_images(4, 1);
    let mut command = spdl();
    command.current_dir(folder.path()).args(["bench", ".", "--report", "report.html"]);
    let run = finish(command.output().unwrap());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(folder.join("report.html").is_file());
}
