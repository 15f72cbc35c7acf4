//! The number of `unsafe` blocks and implementations of each crate, and its limit.

use std::path::Path;

use anyhow::Result;

use crate::tools::{Workspace, text_files};

/// Crates with unsafe code, and the exact number of `unsafe` blocks and implementations in their folder
/// `src`. A commit that raises a number states the reason. Other crates have none.
const BUDGET: [(&str, usize); 2] = [("spdl-cuda", 95), ("spdl-media", 254)];

/// One line per crate: its number of `unsafe` blocks and implementations, and its budget.
pub(super) fn report(workspace: &Workspace) -> Result<Vec<String>> {
    let line = |(name, count): (String, usize)| {
        format!("{name}: {count} unsafe blocks and implementations, budget {}", budget(&name))
    };
    Ok(counts(workspace)?.into_iter().map(line).collect())
}

/// Crates whose number differs from the budget.
pub(super) fn findings(workspace: &Workspace) -> Result<Vec<String>> {
    let counts = counts(workspace)?;
    Ok(counts.iter().filter_map(|(name, count)| compare(name, *count, budget(name))).collect())
}

fn budget(name: &str) -> usize {
    BUDGET.iter().find(|(other, _)| *other == name).map_or(0, |(_, budget)| *budget)
}

fn compare(name: &str, count: usize, budget: usize) -> Option<String> {
    if count > budget {
        return Some(format!(
            "{name} has {count} unsafe blocks, more than its budget of {budget}: remove \
             {}, or explain in the commit why the budget must be raised",
            count - budget
        ));
    }
    // Otherwise later commits could add blocks without notice.
    (count < budget).then(|| {
        format!("{name} has {count} unsafe blocks: lower its budget from {budget} to {count}")
    })
}

/// The crates of the workspace, each with its number of `unsafe` blocks and implementations.
fn counts(workspace: &Workspace) -> Result<Vec<(String, usize)>> {
    let files = text_files(&workspace.root)?;
    let mut counts = Vec::new();
    for package in &workspace.packages {
        let name = package["name"].as_str().unwrap_or_default();
        let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let source = folder.with_file_name("src");
        let own = files.iter().filter(|path| path.starts_with(&source));
        let own = own.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
        let mut count = 0;
        for path in own {
            count += count_in(&std::fs::read_to_string(path)?);
        }
        counts.push((name.to_owned(), count));
    }
    counts.sort();
    Ok(counts)
}

/// The number of `unsafe` blocks and implementations in the source text, without comments.
fn count_in(text: &str) -> usize {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    let code: String = text.lines().map(|line| code(line) + "\n").collect();
    let starts = |after: &str| {
        let next = after.trim_start();
        next.starts_with('{') || next.starts_with("impl ") || next.starts_with("impl<")
    };
    // The word is composed, so that this file does not contain it as code.
    code.split(concat!("un", "safe")).skip(1).filter(|after| starts(after)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // promise: R22
    fn unsafe_blocks_and_implementations_are_counted() {
        let text = "// @ { no }\nfn a() { @ { b() } }\n@ impl Send for C {}\n\
                    @ impl<T> Sync for D<T> {}\n@\n{ e() }\n@ fn f() {}\n@ extern \"C\" {}\n";
        let text = text.replace('@', concat!("un", "safe"));
        assert_eq!(count_in(&text), 4);
    }

    #[test]
    // promise: R22
    fn a_crate_has_exactly_its_budget() {
        assert_eq!(compare("a", 3, 3), None);
        assert!(compare("a", 4, 3).is_some_and(|finding| finding.contains("more than its budget")));
        let lower = compare("a", 2, 3).unwrap();
        assert!(lower.ends_with("lower its budget from 3 to 2"), "{lower}");
    }
}
