//! Which features of a crate to build together, so that whatever depends on them is built every way
//! that matters.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// A crate's features and what each turns on, without other crates' features.
pub(crate) struct Features(BTreeMap<String, Vec<String>>);

/// Features that decide about one piece of code together.
pub(crate) type Group = BTreeSet<String>;

/// Of a larger group only the pairs are tried.
const LARGEST_GROUP: usize = 4;

impl Features {
    pub(crate) fn of(package: &Value) -> Self {
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

    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).filter(|name| *name != "default").collect()
    }

    /// All that these features turn on in this crate, themselves included.
    pub(crate) fn enabled_by(&self, names: &[&str]) -> BTreeSet<&str> {
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

    /// The sets of features to try: none, each alone, all but each, and of each group that meets
    /// somewhere in the code all parts of two or more. Two features that meet nowhere can do nothing
    /// together that they do not do alone or with all. Sets that turn on the same are tried once;
    /// the set of all is left out.
    pub(crate) fn combinations(&self, groups: &BTreeSet<Group>) -> Vec<Vec<&str>> {
        let names = self.names();
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
        let others = |one: &str| names.iter().copied().filter(|name| *name != one).collect();
        sets.extend(names.iter().map(|name| others(name)));
        let mut seen = BTreeSet::from([self.enabled_by(&names)]);
        sets.retain(|set| seen.insert(self.enabled_by(set)));
        sets
    }
}

/// The groups of features that meet in the code of the crate whose root is the file `root`: in one
/// condition, or in one within what another condition is about. The code is as `cargo fmt` leaves it.
pub(crate) fn groups(root: &Path) -> Result<BTreeSet<Group>> {
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

/// The file of a module that the file `parent` declares; none where that says another path.
fn file_of(parent: &Path, module: &str) -> Option<PathBuf> {
    let stem = parent.file_stem()?;
    let folder = match stem.to_str() {
        Some("lib" | "main" | "mod") => parent.with_file_name(""),
        _ => parent.with_extension(""),
    };
    let files = [folder.join(format!("{module}.rs")), folder.join(module).join("mod.rs")];
    files.into_iter().find(|path| path.is_file())
}

/// What conditions a file has.
#[derive(Debug, Default, PartialEq)]
struct Found {
    groups: BTreeSet<Group>,
    /// The modules that it declares, and the features that decide about each.
    modules: Vec<(String, Group)>,
}

/// Reads a file that is there where the features of `gate` say so.
fn scan(text: &str, gate: &Group) -> Found {
    let mut found = Found::default();
    // What conditions are about the code at hand, each with the indentation of that code.
    let mut open: Vec<(usize, Group)> = vec![(0, gate.clone())];
    // Conditions above an item that has not come yet.
    let mut above = Group::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        let mut code = code.to_owned();
        // An attribute of several lines is read as one.
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
            // An item ends in the line that is indented as it is and closes it, or before one that
            // is indented less.
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

/// The features in each condition of a piece of code.
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
                // Of an attribute that is conditional, the condition comes first.
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
    fn features_are_tried_alone_and_left_out_alone() {
        let independent = features(&[("default", &["a"]), ("a", &[]), ("b", &["dep:b"])]);
        let expected: [&[&str]; 3] = [&[], &["a"], &["b"]];
        assert_eq!(independent.combinations(&BTreeSet::new()), expected);

        let nested = features(&[("a", &[]), ("b", &["a"]), ("c", &[])]);
        let expected: [&[&str]; 5] = [&[], &["a"], &["b"], &["c"], &["a", "c"]];
        assert_eq!(nested.combinations(&BTreeSet::new()), expected);
        assert!(features(&[]).combinations(&BTreeSet::new()).is_empty());
    }

    #[test]
    fn features_that_meet_are_tried_together() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let list: Vec<(&str, &[&str])> = names.iter().map(|&name| (name, &[][..])).collect();
        let many = features(&list);
        let groups = BTreeSet::from([group(&["a", "c", "e"]), group(&["a", "b", "unknown"])]);
        let combinations = many.combinations(&groups);
        // None, 8 alone, 8 times all but one; 3 pairs and a triple, and another pair.
        assert_eq!(combinations.len(), 1 + 8 + 8 + 4 + 1);
        for set in [&["a", "c"][..], &["a", "e"], &["c", "e"], &["a", "c", "e"], &["a", "b"]] {
            assert!(combinations.iter().any(|tried| tried == set), "{set:?}");
        }
        let five = BTreeSet::from([group(&names[..5])]);
        assert_eq!(many.combinations(&five).len(), 1 + 8 + 8 + 10);
    }

    #[test]
    fn features_meet_in_one_condition_and_in_one_within_another() {
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
        // A file that is there for a feature only.
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
    fn features_that_meet_in_our_own_code_are_found() {
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
