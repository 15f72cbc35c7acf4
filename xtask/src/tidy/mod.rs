//! `cargo xtask tidy`: checks design and text rules that neither the compiler nor lints check.

mod commits;
mod dependencies;
mod modules;
mod names;
mod source;
mod unsafe_budget;
mod words;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::tools::{Workspace, cargo, text_files};
use crate::{acceptance, kernels};

/// Check layers, modules, words, type names, manifests, licences, paths and commit subjects.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask tidy
  cargo xtask tidy --only spdl-io")]
pub(crate) struct TidyArguments {
    /// Print only findings that contain this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Each crate and the crates of the workspace that it may depend on.
const LAYERS: [(&str, &[&str]); 7] = [
    ("spdl-core", &[]),
    ("spdl-io", &["spdl-core"]),
    ("spdl-media", &["spdl-core", "spdl-io"]),
    ("spdl-cuda", &["spdl-core", "spdl-media"]),
    ("spdl-cli", &["spdl-core", "spdl-io", "spdl-media", "spdl-cuda"]),
    ("spdl-python", &["spdl-core", "spdl-io", "spdl-media", "spdl-cuda", "spdl-cli"]),
    ("xtask", &[]),
];

/// Crates without any unsafe code.
const SAFE_CRATES: [&str; 3] = ["spdl-core", "spdl-io", "xtask"];

/// Crates that `spdl-core` must not depend on by default: runtimes, network, codecs, devices, Python.
const NOT_IN_CORE: [&str; 16] = [
    "async-executor",
    "async-io",
    "async-std",
    "cudarc",
    "futures-executor",
    "hyper",
    "image",
    "libc",
    "mio",
    "polling",
    "pyo3",
    "reqwest",
    "smol",
    "tokio",
    "zune-jpeg",
    "zune-core",
];

pub(crate) fn run(workspace: &Workspace, arguments: &TidyArguments) -> Result<ExitCode> {
    let mut findings = findings(workspace)?;
    if let Err(error) = acceptance::check_page(workspace) {
        findings.push(format!("{error:#}"));
    }
    let wanted = |finding: &&String| {
        arguments.only.as_ref().is_none_or(|only| finding.contains(only.as_str()))
    };
    let findings: Vec<&String> = findings.iter().filter(wanted).collect();
    for line in unsafe_budget::report(workspace)? {
        println!("{line}");
    }
    for finding in &findings {
        println!("{finding}");
    }
    println!("{} findings", findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every violation of a rule, one line each.
pub(crate) fn findings(workspace: &Workspace) -> Result<Vec<String>> {
    let mut findings = layers(&workspace.packages);
    findings.extend(core_tree(&core_dependencies(workspace)?));
    for name in SAFE_CRATES {
        let folder = workspace.root.join(name).join("src");
        let root = ["lib.rs", "main.rs"].map(|file| folder.join(file));
        let text = root.iter().find_map(|path| fs::read_to_string(path).ok());
        findings.extend(unsafe_code(name, &text.with_context(|| format!("{name} has no root"))?));
    }
    for package in &workspace.packages {
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap_or_default());
        let text = fs::read_to_string(&manifest)
            .with_context(|| format!("cannot read {}", manifest.display()))?;
        findings.extend(manifest_rules(&workspace.shown(&manifest), &text));
    }
    findings.extend(dependencies::findings(workspace)?);
    findings.extend(kernels::stale(&workspace.root)?);
    for path in text_files(&workspace.root)? {
        // Binary files are skipped.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let shown = workspace.shown(&path);
        findings.extend(machine_paths(&shown, &text));
        if !WORDS_EXCEPT.contains(&shown.as_str()) {
            let extension = path.extension().unwrap_or_default().to_string_lossy();
            let found = words::findings(&text, &extension).into_iter();
            findings.extend(found.map(|(line, phrase, better)| {
                format!("{shown}:{line}: not {phrase:?}, but: {better}")
            }));
        }
    }
    findings.extend(modules::findings(workspace)?);
    findings.extend(unsafe_budget::findings(workspace)?);
    findings.extend(names::duplicates(workspace)?);
    findings.extend(names::root_names(workspace)?);
    findings.extend(commits::findings(&workspace.root));
    Ok(findings)
}

/// Files whose text is not checked: the table of words, and a script whose strings are part of
/// golden files.
const WORDS_EXCEPT: [&str; 2] =
    ["xtask/src/tidy/words.rs", "spdl-io/tests/datasets/golden/make.py"];

fn layers(packages: &[Value]) -> Vec<String> {
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, below)) = LAYERS.iter().find(|(layer, _)| *layer == name) else {
            findings.push(format!("{name} is not in xtask's table of layers"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let needed = dependency["name"].as_str().unwrap_or_default();
            let is_ours = LAYERS.iter().any(|(layer, _)| *layer == needed);
            // Test dependencies may be any crate of the workspace.
            if is_ours && dependency["kind"] != "dev" && !below.contains(&needed) {
                findings.push(format!("{name} depends on {needed}, which is not a lower layer"));
            }
        }
    }
    findings
}

/// The names of all crates in the dependency tree of `spdl-core` with default features.
fn core_dependencies(workspace: &Workspace) -> Result<Vec<String>> {
    let output = cargo()
        .args(["tree", "-p", "spdl-core", "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{p}"])
        .current_dir(&workspace.root)
        .output()?;
    ensure!(
        output.status.success(),
        "cargo tree failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.map(str::to_owned).collect())
}

fn core_tree(dependencies: &[String]) -> Vec<String> {
    if dependencies.is_empty() {
        return vec!["cargo tree lists no packages for spdl-core".to_owned()];
    }
    let found = NOT_IN_CORE.iter().filter(|name| dependencies.iter().any(|found| found == *name));
    found.map(|name| format!("spdl-core's default dependency tree contains {name}")).collect()
}

fn unsafe_code(name: &str, root: &str) -> Option<String> {
    let forbids = root.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
    (!forbids).then(|| format!("{name} lacks #![forbid(unsafe_code)]"))
}

/// Manifests must take the versions of dependencies and the lints from the workspace.
fn manifest_rules(shown: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let has_lints = text
        .split("\n[")
        .any(|table| table.starts_with("lints]\n") && table.contains("workspace = true"));
    if !has_lints {
        findings.push(format!("{shown} lacks `[lints] workspace = true`"));
    }
    for (number, line) in text.lines().enumerate() {
        let ours = LAYERS.iter().any(|(name, _)| line.starts_with(&format!("{name} ")));
        if ours && line.contains("path") {
            let number = number + 1;
            findings.push(format!("{shown}:{number}: use `workspace = true`, not a path"));
        }
    }
    findings
}

/// Absolute paths that exist on one machine only.
fn machine_paths(shown: &str, text: &str) -> Vec<String> {
    // The patterns are composed at run time, so that this file does not contain them.
    let homes = ["root", "work", "home", "Users"].map(|name| format!("/{name}/"));
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for home in &homes {
            let starts_a_path = line.match_indices(home.as_str()).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                // Part of a URL or of a relative path: not an absolute path.
                !before.is_some_and(|c| c.is_alphanumeric() || "._-/}$".contains(c))
            });
            if starts_a_path {
                findings.push(format!(
                    "{shown}:{}: an absolute path of one machine: {home}…",
                    number + 1
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_crate_may_depend_only_on_those_below_it() {
        let package = |name: &str, needs: &str, kind: Value| json!({"name": name, "dependencies": [{"name": needs, "kind": kind}]});
        let check = |name, needs, kind| layers(&[package(name, needs, kind)]).len();
        assert_eq!(check("spdl-io", "spdl-core", Value::Null), 0);
        assert_eq!(check("spdl-io", "bytes", Value::Null), 0);
        assert_eq!(check("spdl-io", "spdl-media", json!("dev")), 0);
        assert_eq!(check("spdl-io", "spdl-media", Value::Null), 1);
        assert_eq!(check("spdl-core", "spdl-io", json!("build")), 1);
        assert_eq!(check("xtask", "spdl-core", Value::Null), 1);
        assert_eq!(check("spdl-new", "bytes", Value::Null), 1);
    }

    #[test]
    fn the_core_has_no_runtime_in_its_tree() {
        let tree = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert!(core_tree(&tree(&["spdl-core", "bytes"])).is_empty());
        assert_eq!(core_tree(&tree(&["spdl-core", "tokio", "mio"])).len(), 2);
        assert_eq!(core_tree(&[]).len(), 1);
    }

    // promise: R22
    #[test]
    fn unsafe_code_must_be_forbidden_not_just_mentioned() {
        assert!(unsafe_code("a", "//! Docs.\n#![forbid(unsafe_code)]\n").is_none());
        assert!(unsafe_code("a", "// #![forbid(unsafe_code)]\n").is_some());
        assert!(unsafe_code("a", "").is_some());
    }

    #[test]
    fn manifests_take_versions_and_lints_from_the_workspace() {
        let good = "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n";
        assert!(manifest_rules("a", good).is_empty());
        let path = format!("{good}\n[dependencies]\nspdl-core = {{ path = \"../spdl-core\" }}\n");
        assert_eq!(manifest_rules("a", &path).len(), 1);
        assert_eq!(manifest_rules("a", "[package]\nversion.workspace = true\n").len(), 1);
    }

    #[test]
    fn paths_of_one_machine_are_found_but_not_addresses() {
        let found = |text: &str| machine_paths("a", text).len();
        let home = ["", "home", "me"].join("/");
        let work = ["", "work", "main"].join("/");
        assert_eq!(found(&format!("let path = \"{home}\";\n\nsee {work}\n")), 2);
        assert_eq!(found(&format!("https://example.org{work}")), 0);
        assert_eq!(found(&format!("target{work}")), 0);
        assert_eq!(found(&format!("$PREFIX{work} and ${{PREFIX}}{home}")), 0);
    }
}
