//! Checks names of types: each occurs once in a crate, and the root of `spdl-core` exports a
//! limited number.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Result;

use super::modules::{rust_files, test_files};
use super::source::{split, without_tests};
use crate::tools::Workspace;

/// The maximum number of names that the root of `spdl-core` exports, not counting modules.
const ROOT_NAMES: usize = 45;

/// Finds names that several types of one crate have.
pub(crate) fn duplicates(workspace: &Workspace) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for package in &workspace.packages {
        let name = package["name"].as_str().unwrap_or_default();
        let src = workspace.root.join(name).join("src");
        let tests = test_files(&src)?;
        let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for path in rust_files(&src)? {
            if tests.iter().any(|test| path.starts_with(test)) {
                continue;
            }
            let code = without_tests(&split(&fs::read_to_string(&path)?).code);
            let mut own: Vec<String> = type_names(&code);
            // One file may declare variants of a type for several platforms.
            own.sort();
            own.dedup();
            for name in own {
                types.entry(name).or_default().push(workspace.shown(&path));
            }
        }
        for (type_name, files) in types {
            if files.len() > 1 {
                findings.push(format!(
                    "{name}: the type name {type_name:?} is in {}",
                    files.join(", ")
                ));
            }
        }
    }
    Ok(findings)
}

/// The names of types that are declared at the top level of a file.
fn type_names(code: &str) -> Vec<String> {
    let declared = |line: &str| {
        let line = match line.strip_prefix("pub") {
            Some(rest) => rest.trim_start_matches(|letter: char| letter != ' ').trim_start(),
            None => line,
        };
        let line = line.strip_prefix("unsafe ").unwrap_or(line);
        let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
        let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
        let name = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?;
        Some(name.to_owned())
    };
    code.lines().filter_map(declared).collect()
}

/// A message, if the root of `spdl-core` exports too many names.
pub(crate) fn root_names(workspace: &Workspace) -> Result<Option<String>> {
    let root = fs::read_to_string(workspace.root.join("spdl-core/src/lib.rs"))?;
    let names = public_names(&split(&root).code);
    let message = || format!("spdl-core/src/lib.rs exports {names} names, more than {ROOT_NAMES}");
    Ok((names > ROOT_NAMES).then(message))
}

/// The number of public items and re-exports of a file, without modules.
fn public_names(code: &str) -> usize {
    let mut count = 0;
    for (at, _) in code.match_indices("pub ") {
        let rest = &code[at + 4..];
        let starts_a_line = code[..at].ends_with('\n') || at == 0;
        let is_hidden = code[..at].trim_end().ends_with("#[doc(hidden)]");
        if !starts_a_line || is_hidden || rest.starts_with("mod ") {
            continue;
        }
        count += match rest.strip_prefix("use ") {
            Some(tree) => {
                let tree = &tree[..tree.find(';').unwrap_or(tree.len())];
                super::modules::expand(tree).len()
            }
            None => 1,
        };
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_at_the_top_level_are_found() {
        let code = "pub(crate) struct A<T>(T);\nenum B {}\nimpl C for A {\n    type D = u8;\n}\n\
            pub unsafe trait E {}\ntype F = u8;\nfn struct_g() {}\n";
        assert_eq!(type_names(code), ["A", "B", "E", "F"]);
    }

    #[test]
    fn public_names_are_counted_without_modules() {
        let code = "pub mod a;\nmod b;\npub use a::{B, c::{D, E}};\npub use f::G;\nuse h::I;\npub fn j() {}\n";
        assert_eq!(public_names(code), 5);
    }
}
