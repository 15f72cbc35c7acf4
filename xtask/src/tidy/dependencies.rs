//! Licences, sources and banned crates of all dependencies, by the rules in deny.toml.
//!
//! `cargo xtask soak` runs cargo-deny, which also reads the licence files and the list of known
//! vulnerabilities. Compiling cargo-deny takes minutes, so this check only reads the manifests.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::tools::{Workspace, cargo};

/// The rules of deny.toml that are checked.
struct Rules {
    licences: BTreeSet<String>,
    /// Licences of single crates.
    exceptions: BTreeSet<(String, String)>,
    banned: BTreeSet<String>,
}

/// Every dependency that violates a rule, one line each.
pub(super) fn findings(workspace: &Workspace) -> Result<Vec<String>> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .current_dir(&workspace.root)
        .output()?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let path = workspace.root.join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let rules = Rules::parse(&text)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    Ok(packages.iter().flat_map(|package| rules.findings(package)).collect())
}

impl Rules {
    fn parse(text: &str) -> Result<Self> {
        let rules: toml::Table = text.parse().context("cannot parse deny.toml")?;
        let list = |section: &str, key: &str| {
            rules.get(section).and_then(|it| it.get(key)).and_then(|it| it.as_array())
        };
        let texts = |value: &toml::Value| value.as_str().map(str::to_owned);
        let licences = list("licenses", "allow").context("deny.toml allows no licences")?;
        let exceptions = list("licenses", "exceptions").into_iter().flatten().flat_map(|it| {
            let allowed = it.get("allow").and_then(|it| it.as_array()).into_iter().flatten();
            let name = it.get("crate").and_then(texts).unwrap_or_default();
            allowed.filter_map(texts).map(move |licence| (name.clone(), licence))
        });
        let banned = list("bans", "deny").into_iter().flatten();
        Ok(Rules {
            licences: licences.iter().filter_map(texts).collect(),
            exceptions: exceptions.collect(),
            banned: banned.filter_map(|it| it.get("crate").and_then(texts)).collect(),
        })
    }

    fn findings(&self, package: &Value) -> Vec<String> {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, licence, source) = (text("name"), text("license"), text("source"));
        let mut findings = Vec::new();
        if self.banned.contains(name) {
            findings.push(format!("{name}: deny.toml bans this crate"));
        }
        // Crates of the workspace have no source.
        if !source.is_empty() && !source.starts_with("registry+") {
            findings.push(format!("{name}: not from a registry, but from {source}"));
        }
        let is_allowed = |licence: &str| {
            self.licences.contains(licence)
                || self.exceptions.contains(&(name.to_owned(), licence.to_owned()))
        };
        let evaluated = Expression::parse_mode(licence, ParseMode::LAX)
            .is_ok_and(|licences| licences.evaluate(|one| is_allowed(&one.to_string())));
        if !evaluated {
            findings.push(format!("{name}: deny.toml does not allow the licence {licence:?}"));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: &str = r#"
[licenses]
allow = ["Apache-2.0", "Apache-2.0 WITH LLVM-exception", "MIT"]
exceptions = [{ crate = "roots", allow = ["CDLA-Permissive-2.0"] }]
[bans]
deny = [{ crate = "pickle", reason = "unsafe" }]
"#;

    fn found(name: &str, licence: &str, source: &str) -> Vec<String> {
        let package = json!({ "name": name, "license": licence, "source": source });
        Rules::parse(RULES).unwrap().findings(&package)
    }

    #[test]
    fn one_alternative_of_a_licence_must_be_allowed() {
        let registry = "registry+https://example.org";
        let allowed = [
            "MIT",
            "MIT/GPL-2.0",
            "(GPL-3.0-only OR Apache-2.0) AND MIT",
            "Apache-2.0 WITH LLVM-exception",
        ];
        for licence in allowed {
            assert_eq!(found("a", licence, registry), [""; 0], "{licence}");
        }
        for licence in ["GPL-3.0-only", "MIT AND GPL-2.0-only", "", "CDLA-Permissive-2.0"] {
            let message = format!("a: deny.toml does not allow the licence {licence:?}");
            assert_eq!(found("a", licence, registry), [message]);
        }
        assert_eq!(found("roots", "CDLA-Permissive-2.0", registry), [""; 0]);
    }

    #[test]
    fn banned_crates_and_other_sources_are_found() {
        assert_eq!(found("a", "MIT", ""), [""; 0]);
        assert_eq!(
            found("pickle", "MIT", "git+https://example.org"),
            [
                "pickle: deny.toml bans this crate",
                "pickle: not from a registry, but from git+https://example.org"
            ]
        );
    }
}
