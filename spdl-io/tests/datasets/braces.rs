//! Tests of brace expansion.

// promise of this file: DATA7

use proptest::prelude::*;
use spdl_core::ErrorKind;
use spdl_io::datasets::expand_braces;

use crate::golden_lines;

#[test]
fn names_equal_those_of_braceexpand() {
    let lines = golden_lines("braces.tsv");
    assert!(lines.len() > 25);
    for line in lines {
        let names = expand_braces(&line[0]);
        if line[1] == "ERROR" {
            let error = names.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}", line[0]);
            assert_eq!(error.key(), Some(&line[0][..]));
            assert!(error.offset().is_some());
        } else {
            assert_eq!(names.unwrap(), line[1..], "{}", line[0]);
        }
    }
}

#[test]
fn errors_have_the_offset_in_the_pattern() {
    let at = |pattern: &str| expand_braces(pattern).unwrap_err().offset();
    assert_eq!(at("ä{1,2"), Some(2));
    assert_eq!(at("a{1,{2}"), Some(1));
    assert_eq!(at("a{1,2}}b"), Some(6));
}

#[test]
fn too_many_names_are_refused_before_expansion() {
    let bomb = "{1..1000}".repeat(1000);
    let wide = format!("{{{}}}{{1..999999}}", "x,".repeat(2) + &"y".repeat(600));
    let deep = "{a,".repeat(40) + &"}".repeat(40);
    let long = "a".repeat(70_000);
    let endless = "{0..999999999999999999}".to_owned();
    for pattern in [bomb, wide, deep, long, endless] {
        let error = expand_braces(&pattern).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", error.report());
    }
    assert_eq!(expand_braces("{1..1000000}").unwrap().len(), 1_000_000);
}

#[test]
fn invalid_ranges_are_literal() {
    let names = expand_braces("{1..99999999999999999999}").unwrap();
    assert_eq!(names, ["{1..99999999999999999999}"]);
    assert_eq!(expand_braces("{a..Z}").unwrap(), ["{a..Z}"]);
}

/// A pattern and its names.
fn patterns() -> impl Strategy<Value = (String, Vec<String>)> {
    let literal = "[a-zä/.:-]{0,4}".prop_map(|text| (text.clone(), vec![text]));
    let escaped = "[{},\\\\]".prop_map(|letter| (format!("\\{letter}"), vec![letter]));
    let range = (0_u32..20, 0_u32..20, 1_u32..4).prop_map(|(start, end, step)| {
        let mut names: Vec<u32> = (start.min(end)..=start.max(end)).collect();
        if start > end {
            names.reverse();
        }
        let names = names.into_iter().step_by(step as usize).map(|it| format!("{it:03}"));
        (format!("{{{start:03}..{end:03}..{step}}}"), names.collect())
    });
    prop_oneof![literal, escaped, range].prop_recursive(3, 24, 3, |inner| {
        let list = proptest::collection::vec(inner.clone(), 2..4).prop_map(|parts| {
            let pattern: Vec<_> = parts.iter().map(|(pattern, _)| pattern.clone()).collect();
            (format!("{{{}}}", pattern.join(",")), parts.into_iter().flat_map(|it| it.1).collect())
        });
        let joined = (inner.clone(), inner).prop_map(|(a, b)| {
            let both = |start: &String| {
                let start = start.clone();
                b.1.iter().map(move |end| format!("{start}{end}")).collect::<Vec<_>>()
            };
            (format!("{}{}", a.0, b.0), a.1.iter().flat_map(both).collect())
        });
        prop_oneof![list, joined]
    })
}

proptest! {
    #[test]
    fn nested_lists_and_ranges_are_expanded_in_order((pattern, names) in patterns()) {
        prop_assert_eq!(expand_braces(&pattern).unwrap(), names);
    }

    #[test]
    fn any_text_is_names_or_an_error(pattern in "[a-c0-3{},.\\\\-]{0,40}") {
        if let Err(error) = expand_braces(&pattern) {
            prop_assert!(error.offset().is_some_and(|at| at <= pattern.len() as u64));
        }
    }
}
