//! Compiles crates with sets of features.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::steps::Counts;
use crate::tools::{Output, Workspace, cargo};

/// Which sets of features to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// No feature, each feature alone, and those that decide about one piece of code together.
    EachAlone,
    /// All features but one.
    AllButOne,
}

/// These crates do not depend on each other, so one call of cargo can check a set of each.
const INDEPENDENT: [&str; 2] = ["spdl-io", "spdl-media"];

/// Compiles each crate with each set of features; warnings are errors.
///
/// Each check counts as a test. Step `clippy` covers the set of all features.
pub(crate) fn check(
    workspace: &Workspace,
    output: &mut Output,
    selection: Selection,
) -> Result<Counts> {
    let mut counts = Counts::default();
    for check in checks(workspace, selection)? {
        let packages = check.iter().flat_map(|(package, _)| ["-p", package]);
        let features: Vec<String> = check
            .iter()
            .flat_map(|(package, set)| set.iter().map(move |name| format!("{package}/{name}")))
            .collect();
        let mut cargo = cargo();
        cargo.args(["check", "--quiet", "--no-default-features"]).args(packages);
        cargo.args(["--features", &features.join(",")]).current_dir(&workspace.root);
        let result = output.run_and_read(&mut cargo);
        let failed = match result {
            Ok((status, text)) => !status.success() || has_warning(&text),
            Err(error) => {
                output.say(&format!("error: {error:#}"));
                true
            }
        };
        counts.add(if failed {
            let shown = |(package, set): &(&str, Vec<String>)| format!("{package} {set:?}");
            Counts::one_failed_test(&check.iter().map(shown).collect::<Vec<_>>().join(", "))
        } else {
            Counts::passed(check.len())
        });
    }
    Ok(counts)
}

/// Whether the compiler printed a warning. `-D warnings` would compile all dependencies again.
fn has_warning(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("warning: ") || line.starts_with("warning["))
}

/// Crates, each with a set of features, in groups of one call of cargo.
type Check<'a> = Vec<(&'a str, Vec<String>)>;

fn checks(workspace: &Workspace, selection: Selection) -> Result<Vec<Check<'_>>> {
    let mut checks: Vec<Check<'_>> = Vec::new();
    let mut independent: Vec<Check<'_>> = Vec::new();
    for package in &workspace.packages {
        let name = package["name"].as_str().unwrap_or_default();
        let sets = sets(package, selection)?;
        if INDEPENDENT.contains(&name) {
            independent.resize(independent.len().max(sets.len()), Vec::new());
            for (check, set) in independent.iter_mut().zip(sets) {
                check.push((name, set));
            }
        } else {
            checks.extend(sets.into_iter().map(|set| vec![(name, set)]));
        }
    }
    checks.extend(independent);
    Ok(checks)
}

fn sets(package: &Value, selection: Selection) -> Result<Vec<Vec<String>>> {
    let features = Features::of(package);
    let sets = match selection {
        Selection::EachAlone => {
            let mut groups = BTreeSet::new();
            for target in package["targets"].as_array().into_iter().flatten() {
                let kinds = target["kind"].as_array().into_iter().flatten();
                let is_compiled =
                    |kind: &Value| ["lib", "bin", "cdylib"].iter().any(|compiled| kind == compiled);
                if kinds.into_iter().any(is_compiled)
                    && let Some(root) = target["src_path"].as_str()
                {
                    groups.extend(self::groups(Path::new(root))?);
                }
            }
            features.each_alone(&groups)
        }
        Selection::AllButOne => features.all_but_one(),
    };
    let owned = |set: Vec<&str>| set.into_iter().map(str::to_owned).collect();
    Ok(sets.into_iter().map(owned).collect())
}

/// The crates whose default features are not all of their features.
pub(crate) fn packages_with_optional_features(workspace: &Workspace) -> Vec<&str> {
    let has_optional = |package: &&Value| {
        let features = Features::of(package);
        features.enabled_by(&["default"]) != features.enabled_by(&features.names())
    };
    let packages = workspace.packages.iter().filter(has_optional);
    packages.filter_map(|package| package["name"].as_str()).collect()
}

/// The features of a crate, each with the features of this crate that it enables.
struct Features(BTreeMap<String, Vec<String>>);

/// Features that decide about one piece of code together.
type Group = BTreeSet<String>;

/// Larger groups are tried in pairs only.
const LARGEST_GROUP: usize = 3;

impl Features {
    fn of(package: &Value) -> Self {
        let features = package["features"].as_object().into_iter().flatten();
        Features(
            features
                .map(|(name, implied)| {
                    let implied = implied.as_array().into_iter().flatten();
                    let implied = implied.filter_map(|name| name.as_str().map(str::to_owned));
                    (name.clone(), implied.collect())
                })
                .collect(),
        )
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).filter(|name| *name != "default").collect()
    }

    /// The features of this crate that these features enable, themselves included.
    fn enabled_by(&self, names: &[&str]) -> BTreeSet<&str> {
        let mut waiting: Vec<&str> = names.to_vec();
        let mut enabled = BTreeSet::new();
        while let Some(name) = waiting.pop() {
            if let Some((name, implied)) = self.0.get_key_value(name)
                && enabled.insert(name.as_str())
            {
                waiting.extend(implied.iter().map(String::as_str));
            }
        }
        enabled.remove("default");
        enabled
    }

    /// The empty set, each feature alone, and the subsets of each group with two or more features.
    ///
    /// Two features without a common group behave together as they do alone. Sets that enable the
    /// same features appear once; the set of all features is left out.
    fn each_alone(&self, groups: &BTreeSet<Group>) -> Vec<Vec<&str>> {
        let names = self.names();
        if names.is_empty() {
            return Vec::new();
        }
        let mut sets = vec![Vec::new()];
        sets.extend(names.iter().map(|&name| vec![name]));
        for group in groups {
            let group: Vec<&str> = names.iter().copied().filter(|&it| group.contains(it)).collect();
            for bits in 0..1_u64 << group.len().min(63) {
                let count = bits.count_ones() as usize;
                if count == 2
                    || (2..=LARGEST_GROUP).contains(&count) && group.len() <= LARGEST_GROUP
                {
                    let chosen = group.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
                    sets.push(chosen.map(|(_, name)| *name).collect());
                }
            }
        }
        self.distinct(sets)
    }

    /// For each feature, the set of all others.
    fn all_but_one(&self) -> Vec<Vec<&str>> {
        let names = self.names();
        let others = |one: &str| names.iter().copied().filter(|name| *name != one).collect();
        self.distinct(names.iter().map(|name| others(name)).collect())
    }

    fn distinct<'a>(&'a self, mut sets: Vec<Vec<&'a str>>) -> Vec<Vec<&'a str>> {
        let mut seen = BTreeSet::from([self.enabled_by(&self.names())]);
        sets.retain(|set| seen.insert(self.enabled_by(set)));
        sets
    }
}

/// Features that one condition names, or conditions nested in each other, in the crate of the root
/// file `root`. The code must be formatted by `cargo fmt`.
fn groups(root: &Path) -> Result<BTreeSet<Group>> {
    let mut groups = BTreeSet::new();
    let mut waiting = vec![(root.to_owned(), Group::new())];
    while let Some((path, gate)) = waiting.pop() {
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let found = scan(&text, &gate);
        groups.extend(found.groups);
        for (module, gate) in found.modules {
            waiting.extend(file_of(&path, &module).map(|path| (path, gate)));
        }
    }
    groups.retain(|group| group.len() > 1);
    Ok(groups)
}

/// The file of a module that the file `parent` declares; `None` for `#[path]`.
fn file_of(parent: &Path, module: &str) -> Option<PathBuf> {
    let stem = parent.file_stem()?;
    let folder = match stem.to_str() {
        Some("lib" | "main" | "mod") => parent.with_file_name(""),
        _ => parent.with_extension(""),
    };
    let files = [folder.join(format!("{module}.rs")), folder.join(module).join("mod.rs")];
    files.into_iter().find(|path| path.is_file())
}

/// The conditions of a file.
#[derive(Debug, Default, PartialEq)]
struct Found {
    groups: BTreeSet<Group>,
    /// The declared modules, each with the features that decide about it.
    modules: Vec<(String, Group)>,
}

/// Scans a file that is compiled under conditions on the features of `gate`.
fn scan(text: &str, gate: &Group) -> Found {
    let mut found = Found::default();
    // Conditions on the current code, each with the indentation of the item.
    let mut open: Vec<(usize, Group)> = vec![(0, gate.clone())];
    // Conditions in attributes above the next item.
    let mut above = Group::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        let mut code = code.to_owned();
        // Join the lines of an attribute.
        while code.starts_with("#[") && !code.trim_end().ends_with(']') {
            let Some(more) = lines.next() else { break };
            code.push_str(more.trim_start());
        }
        let around = || open.iter().flat_map(|(_, features)| features).cloned();
        for condition in conditions(&code) {
            found.groups.insert(condition.iter().cloned().chain(around()).collect());
        }
        if code.starts_with("#![cfg(") {
            let more: Vec<String> = conditions(&code).into_iter().flatten().collect();
            open[0].1.extend(more);
        } else if code.starts_with("#[") {
            if code.starts_with("#[cfg(") {
                above.extend(conditions(&code).into_iter().flatten());
            }
        } else {
            let own = std::mem::take(&mut above);
            let declared = code.strip_suffix(';').and_then(|code| code.split_once("mod "));
            if let Some((before, name)) = declared
                && (before.is_empty() || before.starts_with("pub"))
            {
                let gate = around().chain(own.iter().cloned()).collect();
                found.modules.push((name.to_owned(), gate));
            }
            // An item ends at a closing line with its own indentation, or before a line with less.
            let closes =
                code.starts_with('}') && !code.ends_with('{') || code.ends_with([';', ',']);
            while open.len() > 1
                && open.last().is_some_and(|&(at, _)| at > indent || at == indent && closes)
            {
                open.pop();
            }
            let ends_here = code.ends_with([';', ',', '}']);
            if !own.is_empty() && !ends_here {
                open.push((indent, own));
            }
        }
    }
    found
}

/// The features of each condition in a piece of code.
fn conditions(code: &str) -> Vec<Group> {
    let mut conditions = Vec::new();
    for start in ["cfg(", "cfg!(", "cfg_attr("] {
        for (at, _) in code.match_indices(start) {
            let rest = &code[at + start.len()..];
            let mut depth = 0;
            let end = rest.find(|letter| {
                match letter {
                    '(' => depth += 1,
                    ')' => depth -= 1,
                    _ => {}
                }
                // The first argument of `cfg_attr` is the condition.
                depth < 0 || depth == 0 && letter == ','
            });
            let condition = &rest[..end.unwrap_or(rest.len())];
            let named = condition.split("feature = \"").skip(1);
            let features: Group =
                named.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect();
            if !features.is_empty() {
                conditions.push(features);
            }
        }
    }
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(list: &[(&str, &[&str])]) -> Features {
        let entry = |(name, implied): &(&str, &[&str])| {
            ((*name).to_owned(), implied.iter().map(|&name| name.to_owned()).collect())
        };
        Features(list.iter().map(entry).collect())
    }

    fn group(names: &[&str]) -> Group {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn features_are_enabled_alone_and_left_out_alone() {
        let none = BTreeSet::new();
        let independent = features(&[("default", &["a"]), ("a", &[]), ("b", &["dep:b"])]);
        let expected: [&[&str]; 3] = [&[], &["a"], &["b"]];
        assert_eq!(independent.each_alone(&none), expected);
        assert_eq!(independent.all_but_one(), [["b"], ["a"]]);

        let nested = features(&[("a", &[]), ("b", &["a"]), ("c", &[])]);
        let expected: [&[&str]; 4] = [&[], &["a"], &["b"], &["c"]];
        assert_eq!(nested.each_alone(&none), expected);
        let expected: [&[&str]; 2] = [&["a", "c"], &["a", "b"]];
        assert_eq!(nested.all_but_one(), expected);
        assert!(features(&[]).each_alone(&none).is_empty());
    }

    #[test]
    fn features_of_one_condition_are_enabled_together() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let list: Vec<(&str, &[&str])> = names.iter().map(|&name| (name, &[][..])).collect();
        let many = features(&list);
        let groups = BTreeSet::from([group(&["a", "c", "e"]), group(&["a", "b", "unknown"])]);
        let sets = many.each_alone(&groups);
        // None, 8 alone; 3 pairs and a triple, and another pair.
        assert_eq!(sets.len(), 1 + 8 + 4 + 1);
        for set in [&["a", "c"][..], &["a", "e"], &["c", "e"], &["a", "c", "e"], &["a", "b"]] {
            assert!(sets.iter().any(|found| found == set), "{set:?}");
        }
        let four = BTreeSet::from([group(&names[..4])]);
        assert_eq!(many.each_alone(&four).len(), 1 + 8 + 6);
    }

    #[test]
    fn warnings_are_found() {
        assert!(has_warning("a\nwarning: unused variable: `x`\n"));
        assert!(!has_warning("    Checking a v0.1.0\n  warning: in the middle\n"));
    }

    #[test]
    fn groups_are_found_in_one_condition_and_in_nested_ones() {
        let text = r#"
#[cfg(feature = "a")]
mod alone;
#[cfg(any(
    feature = "b",
    not(feature = "c"),
))]
pub(crate) mod both;
mod free;
#[cfg_attr(feature = "d", derive(Debug), doc = "feature = \"a\"")]
struct Plain;

#[cfg(feature = "a")]
impl Plain {
    #[cfg(feature = "d")]
    fn inner() {
        if cfg!(feature = "e") {}
    }

    fn after(
        many: u8,
    ) -> u8 {
        if cfg!(feature = "f") { 1 } else { 2 }
    }
}

#[cfg(feature = "g")]
fn last() {}
"#;
        let found = scan(text, &Group::new());
        let modules: [(String, Group); 3] = [
            ("alone".into(), group(&["a"])),
            ("both".into(), group(&["b", "c"])),
            ("free".into(), group(&[])),
        ];
        assert_eq!(found.modules, modules);
        let met: Vec<_> = found.groups.into_iter().filter(|group| group.len() > 1).collect();
        let expected: [&[&str]; 4] = [&["a", "d"], &["a", "d", "e"], &["a", "f"], &["b", "c"]];
        assert_eq!(met, expected.map(group));
        // A file with a condition on the whole module.
        let gated =
            scan("#![cfg(feature = \"y\")]\n#[cfg(feature = \"x\")]\nuse a;\n", &group(&["z"]));
        assert!(gated.groups.contains(&group(&["x", "y", "z"])), "{gated:?}");
    }

    #[test]
    fn modules_are_followed_into_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("lib.rs", "#[cfg(feature = \"a\")]\nmod outer;\nmod other;\n");
        write("outer.rs", "mod inner;\n");
        write("outer/inner.rs", "#[cfg(feature = \"b\")]\nuse x;\n");
        write("other/mod.rs", "mod deep;\n");
        write("other/deep.rs", "#[cfg(all(feature = \"c\", feature = \"d\"))]\nuse x;\n");
        let groups = groups(&folder.path().join("lib.rs")).unwrap();
        assert_eq!(groups, BTreeSet::from([group(&["a", "b"]), group(&["c", "d"])]));
    }

    #[test]
    fn groups_of_spdl_media_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spdl-media/src/lib.rs");
        let groups = groups(&root).unwrap();
        println!("{groups:?}");
        for names in [&["jpeg", "tiff"][..], &["exr", "more-formats"], &["turbojpeg", "zune-jpeg"]]
        {
            let group = group(names);
            assert!(groups.iter().any(|found| group.is_subset(found)), "{names:?}");
        }
        assert!(!groups.contains(&group(&["gif", "bmp"])));
    }
}
