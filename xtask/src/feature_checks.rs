//! Compiles crates with sets of features.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::Value;

use crate::steps::Counts;
use crate::tools::{CHECK_SETTINGS, Output, Workspace, cargo};

/// Which sets of features to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The empty set, and the default features.
    Ends,
    /// A small number of sets. For any two features, there are sets that enable both, only the
    /// first, only the second, and neither, unless one feature enables the other. Of a crate whose
    /// features only enable features of other crates, only the empty set.
    Pairs,
    /// The empty set, and a set for each single feature.
    EachAlone,
    /// For each feature, the set of all other features.
    AllButOne,
}

/// None of these crates enables features of another one, so one call of cargo can check a set of
/// features of each crate.
const INDEPENDENT: [&str; 2] = ["spdl-io", "spdl-media"];

/// Compiles each crate with each set of features; warnings are errors.
///
/// Each check counts as a test. The step `clippy` checks the set of all features.
pub(crate) fn check(
    workspace: &Workspace,
    output: &mut Output,
    selection: Selection,
) -> Result<Counts> {
    let mut counts = Counts::default();
    for check in checks(workspace, selection) {
        let packages = check.iter().flat_map(|(package, _)| ["-p", package]);
        let features: Vec<String> = check
            .iter()
            .flat_map(|(package, set)| set.iter().map(move |name| format!("{package}/{name}")))
            .collect();
        let mut cargo = cargo();
        cargo.args(["check", "--no-default-features"]).args(CHECK_SETTINGS).args(packages);
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

/// Whether the compiler printed a warning. The flag `-D warnings` is not used, because it would
/// recompile all dependencies.
fn has_warning(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("warning: ") || line.starts_with("warning["))
}

/// Pairs of a crate and a set of features that one call of cargo checks.
type Check<'a> = Vec<(&'a str, Vec<String>)>;

fn checks(workspace: &Workspace, selection: Selection) -> Vec<Check<'_>> {
    let mut checks: Vec<Check<'_>> = Vec::new();
    let mut independent: Vec<Check<'_>> = Vec::new();
    for package in &workspace.packages {
        let name = package["name"].as_str().unwrap_or_default();
        let sets = sets(package, selection);
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
    checks
}

fn sets(package: &Value, selection: Selection) -> Vec<Vec<String>> {
    let features = Features::of(package);
    let sets = match selection {
        Selection::Ends => features.ends(),
        Selection::Pairs if features.are_forwarded() => vec![Vec::new()],
        Selection::Pairs => features.pairs(),
        Selection::EachAlone => features.each_alone(),
        Selection::AllButOne => features.all_but_one(),
    };
    let owned = |set: Vec<&str>| set.into_iter().map(str::to_owned).collect();
    sets.into_iter().map(owned).collect()
}

/// The crates that have features beyond their default features.
pub(crate) fn packages_with_optional_features(workspace: &Workspace) -> Vec<&str> {
    let has_optional = |package: &&Value| {
        let features = Features::of(package);
        features.enabled_by(&["default"]) != features.enabled_by(&features.names())
    };
    let packages = workspace.packages.iter().filter(has_optional);
    packages.filter_map(|package| package["name"].as_str()).collect()
}

/// The features of a crate, each with the features of the same crate that it enables.
struct Features(BTreeMap<String, Vec<String>>);

/// Two features, and for each of them whether it is enabled.
type Way<'a> = (&'a str, bool, &'a str, bool);

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

    /// Whether there are features, and all only enable features of other crates, or each other.
    fn are_forwarded(&self) -> bool {
        let is_forwarded = |name: &String| {
            self.0.contains_key(name) || (name.contains('/') && !name.contains(':'))
        };
        let mut enabled = self.0.values();
        !self.0.is_empty()
            && enabled.all(|names| !names.is_empty() && names.iter().all(is_forwarded))
    }

    /// The given features, and all features of the same crate that they enable.
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

    /// A pairwise covering array: for any two features and each of the four combinations of on and
    /// off, one of the sets has that combination. Combinations that are impossible because one
    /// feature enables another are left out.
    ///
    /// The number of sets grows with the logarithm of the number of features. The array is built
    /// greedily: <https://csrc.nist.gov/projects/automated-combinatorial-testing-for-software>.
    fn pairs(&self) -> Vec<Vec<&str>> {
        let names = self.names();
        let mut uncovered: BTreeSet<Way<'_>> = BTreeSet::new();
        for (index, &first) in names.iter().enumerate() {
            for &second in &names[index + 1..] {
                for on in [(false, false), (false, true), (true, false), (true, true)] {
                    uncovered.insert((first, on.0, second, on.1));
                }
            }
        }
        let covers = |set: &BTreeSet<&str>, &(first, on, second, also_on): &Way<'_>| {
            set.contains(first) == on && set.contains(second) == also_on
        };
        let gain = |set: &BTreeSet<&str>, uncovered: &BTreeSet<Way<'_>>| {
            uncovered.iter().filter(|way| covers(set, way)).count()
        };
        let mut sets = vec![Vec::new()];
        uncovered.retain(|way| !covers(&BTreeSet::new(), way));
        while let Some(&way) = uncovered.first() {
            let (first, on, second, also_on) = way;
            let off = |name: &str| !on && name == first || !also_on && name == second;
            let mut chosen: Vec<&str> = Vec::new();
            chosen.extend(on.then_some(first));
            chosen.extend(also_on.then_some(second));
            for &name in &names {
                let more = self.enabled_by(&[&chosen[..], &[name]].concat());
                let now = self.enabled_by(&chosen);
                if !more.iter().any(|name| off(name))
                    && gain(&more, &uncovered) > gain(&now, &uncovered)
                {
                    chosen.push(name);
                }
            }
            let enabled = self.enabled_by(&chosen);
            // If one of the two features enables the other, this combination is impossible.
            uncovered.remove(&way);
            if covers(&enabled, &way) {
                uncovered.retain(|way| !covers(&enabled, way));
                sets.push(chosen);
            }
        }
        self.distinct(sets)
    }

    /// The empty set, and the default features.
    fn ends(&self) -> Vec<Vec<&str>> {
        self.distinct(vec![Vec::new(), vec!["default"]])
    }

    /// The empty set, and a set for each single feature.
    fn each_alone(&self) -> Vec<Vec<&str>> {
        let names = self.names();
        if names.is_empty() {
            return Vec::new();
        }
        let mut sets = vec![Vec::new()];
        sets.extend(names.iter().map(|&name| vec![name]));
        self.distinct(sets)
    }

    /// For each feature, the set of all other features.
    fn all_but_one(&self) -> Vec<Vec<&str>> {
        let names = self.names();
        let others = |one: &str| names.iter().copied().filter(|name| *name != one).collect();
        self.distinct(names.iter().map(|name| others(name)).collect())
    }

    /// Keeps only one of the sets that enable the same features, and removes the set of all
    /// features, because the step `clippy` checks it.
    fn distinct<'a>(&'a self, mut sets: Vec<Vec<&'a str>>) -> Vec<Vec<&'a str>> {
        let mut seen = BTreeSet::from([self.enabled_by(&self.names())]);
        sets.retain(|set| seen.insert(self.enabled_by(set)));
        sets
    }
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

    #[test]
    fn features_are_enabled_and_omitted_one_at_a_time() {
        let independent = features(&[("default", &["a"]), ("a", &[]), ("b", &["dep:b"])]);
        let expected: [&[&str]; 3] = [&[], &["a"], &["b"]];
        assert_eq!(independent.each_alone(), expected);
        assert_eq!(independent.all_but_one(), [["b"], ["a"]]);

        let nested = features(&[("a", &[]), ("b", &["a"]), ("c", &[])]);
        let expected: [&[&str]; 4] = [&[], &["a"], &["b"], &["c"]];
        assert_eq!(nested.each_alone(), expected);
        let expected: [&[&str]; 2] = [&["a", "c"], &["a", "b"]];
        assert_eq!(nested.all_but_one(), expected);
        assert!(features(&[]).each_alone().is_empty());
        assert_eq!(independent.ends(), [&[][..], &["default"]]);
        // Without features by default.
        assert_eq!(nested.ends(), [[""; 0]]);
    }

    #[test]
    fn each_pair_of_features_is_enabled_in_all_four_ways() {
        let names: Vec<String> = (0..16).map(|index| format!("f{index:02}")).collect();
        let list: Vec<(&str, &[&str])> = names.iter().map(|name| (&name[..], &[][..])).collect();
        let many = features(&list);
        let mut sets = many.pairs();
        // The step `clippy` checks the set of all features.
        sets.push(many.names());
        assert!(sets.len() <= 12, "{}", sets.len());
        for (index, first) in names.iter().enumerate() {
            for second in &names[index + 1..] {
                let has = |set: &Vec<&str>, name: &str| set.contains(&name);
                let ways: BTreeSet<_> =
                    sets.iter().map(|set| (has(set, first), has(set, second))).collect();
                assert_eq!(ways.len(), 4, "{first} {second}");
            }
        }
    }

    #[test]
    fn implied_features_are_never_left_out() {
        let nested = features(&[("a", &["b"]), ("b", &[])]);
        let expected: [&[&str]; 2] = [&[], &["b"]];
        assert_eq!(nested.pairs(), expected);
        assert!(features(&[]).pairs().is_empty());
    }

    #[test]
    fn features_that_only_enable_features_of_other_crates_are_found() {
        assert!(features(&[("a", &["x/a"]), ("b", &["a", "x/b"])]).are_forwarded());
        assert!(!features(&[("a", &["x/a"]), ("b", &["dep:x"])]).are_forwarded());
        assert!(!features(&[("a", &["x/a"]), ("b", &[])]).are_forwarded());
        assert!(!features(&[]).are_forwarded());
    }

    #[test]
    fn warnings_are_found() {
        assert!(has_warning("a\nwarning: unused variable: `x`\n"));
        assert!(!has_warning("    Checking a v0.1.0\n  warning: in the middle\n"));
    }
}
