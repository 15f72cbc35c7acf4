//! The order of modules: a top-level module of a crate imports only modules of lower layers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::source::{split, test_modules, without_tests};
use crate::tools::Workspace;

/// The top-level modules of each crate, lowest layer first: files and folders directly below `src`.
const RUST: [(&str, &[&str]); 7] = [
    ("spdl-cli", &["ui", "datasets", "inspection", "commands"]),
    (
        "spdl-cuda",
        &[
            "libraries",
            "driver",
            "runtime",
            "pixels",
            "kernels",
            "jpeg",
            "video",
            "images",
            "python",
            "testing",
        ],
    ),
    (
        "spdl-io",
        &[
            "fetch", "files", "layers", "stores", "archive", "records", "shards", "datasets",
            "testing",
        ],
    ),
    (
        "spdl-media",
        &[
            "image",
            "formats",
            "transform",
            "augment",
            "encode",
            "source",
            "packets",
            "ffmpeg",
            "audio",
            "video",
            "fill",
            "testing",
        ],
    ),
    (
        "spdl-core",
        &[
            "error",
            "seconds",
            "sync",
            "runtime",
            "memory",
            "source",
            "item",
            "stage",
            "observe",
            "resume",
            "scheduler",
            "pipeline",
        ],
    ),
    (
        "spdl-python",
        &[
            "command_line",
            "interop",
            "trace",
            "sampler",
            "io",
            "operators",
            "media",
            "cuda",
            "statistics",
            "loader",
            "pipeline",
        ],
    ),
    (
        "xtask",
        &[
            "tools",
            "steps",
            "venv",
            "ffmpeg",
            "bundle",
            "wheel",
            "dataset",
            "fuzz",
            "feature_checks",
            "corpus",
            "kernels",
            "acceptance",
            "tidy",
            "test",
            "sbom",
            "soak",
            "demo",
            "engine_bench",
            "bench",
            "gpu",
        ],
    ),
];

/// The path and the top-level modules of each Python package, lowest layer first.
const PYTHON: [(&str, &[&str]); 1] = [(
    "spdl-python/python/spdl_rs/pipeline",
    &[
        "_failures",
        "defs",
        "_hooks",
        "_processes",
        "_event_loop",
        "_run",
        "_regions",
        "_profile",
        "_build",
        "config",
    ],
)];

/// An import of one top-level module by another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    pub(crate) from: String,
    pub(crate) to: String,
    /// The file and line.
    pub(crate) place: String,
}

/// Imports of modules of higher layers, in all crates, and modules that the table lacks.
pub(crate) fn findings(workspace: &Workspace) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for (name, order) in RUST {
        let imports = rust_imports(workspace, &workspace.root.join(name).join("src"))?;
        findings.extend(check(name, order, &imports));
        findings.extend(unlisted(&workspace.root.join(name).join("src"), name, order)?);
    }
    for (package, order) in PYTHON {
        let imports = python_imports(workspace, &workspace.root.join(package))?;
        findings.extend(check(package, order, &imports));
        findings.extend(unlisted(&workspace.root.join(package), package, order)?);
    }
    Ok(findings)
}

/// Files and folders that the table lacks.
fn unlisted(src: &Path, name: &str, order: &[&str]) -> Result<Vec<String>> {
    let tests = test_files(src)?;
    let mut findings = Vec::new();
    for entry in fs::read_dir(src).with_context(|| format!("cannot list {}", src.display()))? {
        let path = entry?.path();
        let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_root = ["lib", "main", "__init__", "__pycache__"].contains(&module.as_str());
        if !is_root && !tests.contains(&path) && !order.contains(&module.as_str()) {
            findings
                .push(format!("{name}: the module {module:?} is not in xtask's table of modules"));
        }
    }
    Ok(findings)
}

fn check(name: &str, order: &[&str], imports: &[Import]) -> Vec<String> {
    let rank = |module: &str| order.iter().position(|it| *it == module);
    let mut findings = Vec::new();
    for Import { from, to, place } in imports {
        if let (Some(own), Some(other)) = (rank(from), rank(to))
            && other > own
        {
            findings.push(format!(
                "{place}: module {from:?} of {name} imports {to:?}, which is in a higher layer"
            ));
        }
    }
    findings
}

/// All imports between top-level modules of the crate with this `src` folder, tests excepted.
pub(crate) fn rust_imports(workspace: &Workspace, src: &Path) -> Result<Vec<Import>> {
    let tests = test_files(src)?;
    let root = ["lib.rs", "main.rs"].map(|name| src.join(name));
    let root = root
        .iter()
        .find(|path| path.is_file())
        .context("the crate has neither lib.rs nor main.rs")?;
    let reexports = reexports(&split(&fs::read_to_string(root)?).code);
    let mut imports = Vec::new();
    for path in rust_files(src)? {
        let is_test = tests.iter().any(|test| path.starts_with(test));
        if is_test || path == *root {
            continue;
        }
        let file = fs::read_to_string(&path)?;
        let code = without_tests(&split(&file).code);
        let module = module_of(src, &path);
        let Some(from) = module.first().cloned() else { continue };
        for (line, name) in crate_paths(&code, &module) {
            let to = reexports.get(&name).cloned().unwrap_or(name);
            let is_module = src.join(&to).is_dir() || src.join(format!("{to}.rs")).is_file();
            if is_module && to != from {
                let place = format!("{}:{line}", workspace.shown(&path));
                imports.push(Import { from: from.clone(), to, place });
            }
        }
    }
    imports.sort();
    imports.dedup();
    Ok(imports)
}

/// All `.rs` files below a folder.
pub(super) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The files and folders of modules that are declared for tests only.
pub(super) fn test_files(src: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for path in rust_files(src)? {
        let code = split(&fs::read_to_string(&path)?).code;
        let stem = path.file_stem().unwrap_or_default();
        let folder = match stem.to_str() {
            Some("lib" | "main" | "mod") => path.with_file_name(""),
            _ => path.with_extension(""),
        };
        for name in test_modules(&code) {
            found.insert(folder.join(format!("{name}.rs")));
            found.insert(folder.join(name));
        }
    }
    Ok(found)
}

/// The path of a file's module, without the crate.
fn module_of(src: &Path, path: &Path) -> Vec<String> {
    let relative = path.strip_prefix(src).unwrap_or(path).with_extension("");
    let mut module: Vec<String> =
        relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    module
}

/// Names that the crate's root re-exports, with their top-level modules.
fn reexports(root: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (at, _) in root.match_indices("use ") {
        let Some(end) = root[at..].find(';') else { continue };
        for path in expand(&root[at + 4..at + end]) {
            let mut parts: Vec<&str> = path.split("::").map(str::trim).collect();
            if ["crate", "self"].contains(&parts[0]) {
                parts.remove(0);
            }
            if let [module, .., last] = parts[..] {
                let name = last.rsplit(" as ").next().unwrap_or(last).trim();
                found.insert(name.to_owned(), module.to_owned());
            }
        }
    }
    found
}

/// Expands `a::{b, c::{d}}` to `a::b` and `a::c::d`.
pub(super) fn expand(tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else { return vec![tree.trim().to_owned()] };
    let prefix = tree[..open].trim();
    let close = tree.rfind('}').unwrap_or(tree.len());
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_i32, open + 1);
    for (at, letter) in tree.char_indices().skip_while(|(at, _)| *at <= open) {
        if at >= close {
            break;
        }
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&tree[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(tree.get(start..close).unwrap_or_default());
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(expand).map(|part| format!("{prefix}{part}")).collect()
}

/// The line and the first name of each path that starts at the crate's root, by `crate::` or
/// `super::`.
fn crate_paths(code: &str, module: &[String]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut add = |at: usize, name: &str| {
        let line = code[..at].matches('\n').count() + 1;
        found.push((line, name.to_owned()));
    };
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|letter| letter.is_alphanumeric() || "_:$".contains(letter)) {
                continue;
            }
            let mut rest = &code[at..];
            let mut names: Vec<&str> = Vec::new();
            if let Some(after) = rest.strip_prefix("crate::") {
                rest = after;
            } else {
                let mut supers = 0;
                while let Some(after) = rest.strip_prefix("super::") {
                    supers += 1;
                    rest = after;
                }
                // `super` in an inline module leads to the file's own module at least.
                if supers < module.len() {
                    continue;
                }
            }
            rest = rest.trim_start();
            if rest.starts_with('{') {
                let end = end_of_group(rest);
                let paths = expand(&rest[..end]);
                for path in &paths {
                    add(at, path.split("::").next().unwrap_or_default().trim());
                }
                continue;
            }
            names.extend(
                rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next(),
            );
            for name in names.into_iter().filter(|name| !name.is_empty()) {
                add(at, name);
            }
        }
    }
    found
}

/// The length of a group in braces that starts here.
fn end_of_group(text: &str) -> usize {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

/// All imports between top-level modules of a Python package.
fn python_imports(workspace: &Workspace, package: &Path) -> Result<Vec<Import>> {
    let mut imports = Vec::new();
    let mut folders = vec![package.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("__pycache__") {
                folders.push(path);
                continue;
            }
            if !path.extension().is_some_and(|extension| extension == "py" || extension == "pyi") {
                continue;
            }
            let relative = path.strip_prefix(package).unwrap_or(&path).with_extension("");
            let mut module: Vec<String> =
                relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            let is_package = module.last().is_some_and(|last| last == "__init__");
            if is_package {
                module.pop();
            }
            let Some(from) = module.first().cloned() else { continue };
            let depth = module.len() - usize::from(!is_package);
            for (line, to) in relative_imports(&fs::read_to_string(&path)?, depth) {
                if to != from {
                    let place = format!("{}:{line}", workspace.shown(&path));
                    imports.push(Import { from: from.clone(), to, place });
                }
            }
        }
    }
    imports.sort();
    imports.dedup();
    Ok(imports)
}

/// The line and the first name of each import relative to the package; the module is `depth`
/// folders below the package.
fn relative_imports(file: &str, depth: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = file.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(rest) = line.trim_start().strip_prefix("from .") else { continue };
        let dots = rest.chars().take_while(|letter| *letter == '.').count();
        if dots != depth {
            continue;
        }
        let Some((path, names)) = rest[dots..].split_once("import") else { continue };
        let path = path.trim();
        if path.is_empty() {
            // `from .. import _a, _b`, or names in parentheses on several lines.
            let mut names = names.to_owned();
            while names.contains('(') && !names.contains(')') {
                let Some((_, line)) = lines.next() else { break };
                names.push_str(line);
            }
            let names = names.trim().trim_matches(['(', ')']).split(',');
            let names = names.filter_map(|name| name.split_whitespace().next());
            found.extend(names.map(|name| (number + 1, name.to_owned())));
        } else {
            let first = path.split('.').next().unwrap_or_default();
            found.push((number + 1, first.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &str, module: &[&str]) -> Vec<String> {
        let module: Vec<String> = module.iter().map(|&part| part.to_owned()).collect();
        crate_paths(code, &module).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn paths_from_the_root_are_found() {
        let code = "use crate::memory::{Array, buffer};\nuse crate::{error::Error, source::{A, B}};\n\
            fn f() -> crate::stage::Stage { x::crate::y }";
        assert_eq!(names(code, &["a"]), ["memory", "error", "source", "source", "stage"]);
        assert_eq!(names("use super::b::C;", &["a"]), ["b"]);
        assert!(names("use super::b::C;", &["a", "x"]).is_empty());
        assert_eq!(names("use super::super::b::C;", &["a", "x"]), ["b"]);
    }

    #[test]
    fn imports_of_an_upper_module_are_found() {
        let import = |from: &str, to: &str| Import {
            from: from.to_owned(),
            to: to.to_owned(),
            place: "a/src/x.rs:3".to_owned(),
        };
        let imports =
            [import("stage", "error"), import("error", "stage"), import("error", "other")];
        let findings = check("a", &["error", "stage"], &imports);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("a/src/x.rs:3: "));
        assert!(findings[0].contains("imports \"stage\", which is in a higher layer"));
    }

    #[test]
    fn names_of_the_root_belong_to_their_modules() {
        let root = "mod a;\npub use crate::a::{B, c::D as E};\npub use f::G;\n";
        let expected = [("B", "a"), ("E", "a"), ("G", "f")];
        let expected = expected.map(|(name, module)| (name.to_owned(), module.to_owned()));
        assert_eq!(reexports(root), BTreeMap::from(expected));
    }

    #[test]
    fn python_imports_are_relative_to_the_package() {
        let file = "from . import _x\nfrom .._run import y\nfrom ..config import (\n    z,\n)\nimport os\n";
        let found = |depth| relative_imports(file, depth);
        assert_eq!(found(0), [(1, "_x".to_owned())]);
        assert_eq!(found(1), [(2, "_run".to_owned()), (3, "config".to_owned())]);
        let file = "from .. import (\n    _a as b,\n    _c,\n)\nfrom ._d import e\n";
        let expected = [(1, "_a"), (1, "_c")].map(|(line, name)| (line, name.to_owned()));
        assert_eq!(relative_imports(file, 1), expected);
    }
}
