//! `cargo xtask sbom`: a software bill of materials in CycloneDX format.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::ffmpeg;
use crate::tools::{Workspace, cargo, command};

/// Write a software bill of materials: every package that a crate is built from.
///
/// The file has the format CycloneDX 1.5 (JSON). For each package, it has the version, the licence, the
/// package URL, and the SHA-256 of the package in Cargo.lock. Build dependencies are included;
/// packages for other platforms and development dependencies are not. For spdl-python on Linux, the
/// FFmpeg library of the wheel and its parts are included. The same Cargo.lock and platform give the
/// same file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask sbom                            spdl-python, in target/sbom/spdl-python.cdx.json
  cargo xtask sbom --package spdl-cli --output spdl.cdx.json
  cargo xtask sbom --target aarch64-unknown-linux-gnu    of a wheel for ARM")]
pub(crate) struct SbomArguments {
    /// The crate of the workspace
    #[arg(long, value_name = "NAME", default_value = "spdl-python")]
    package: String,
    /// The platform that the crate is built for [default: that of this machine]
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// Where to write the file [default: target/sbom/PACKAGE.cdx.json]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(workspace: &Workspace, arguments: &SbomArguments) -> Result<()> {
    let name = &arguments.package;
    let path = arguments
        .output
        .clone()
        .unwrap_or_else(|| workspace.root.join("target/sbom").join(format!("{name}.cdx.json")));
    let bill = bill_of(workspace, name, arguments.target.as_deref())?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(&bill)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    let components = bill["components"].as_array().map_or(0, Vec::len);
    println!("{}: {components} packages", workspace.shown(&path));
    Ok(())
}

/// The bill of materials of a crate of the workspace for a platform, by default that of this machine.
fn bill_of(workspace: &Workspace, name: &str, platform: Option<&str>) -> Result<Value> {
    let platform = platform.map_or_else(host, |platform| Ok(platform.to_owned()))?;
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &platform])
        .current_dir(&workspace.root)
        .output()?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lock = fs::read_to_string(workspace.root.join("Cargo.lock"))?;
    let mut bill = bill(&serde_json::from_slice(&output.stdout)?, &checksums(&lock), name)?;
    // As `cargo xtask wheel` builds it.
    if name == "spdl-python" && platform.contains("linux") {
        add_ffmpeg(&mut bill);
    }
    Ok(bill)
}

/// Adds the FFmpeg library that the wheel contains.
fn add_ffmpeg(bill: &mut Value) {
    let components = ffmpeg::components();
    let [first, others @ ..] = components.each_ref().map(|component| component["bom-ref"].clone());
    let root = bill["metadata"]["component"]["bom-ref"].clone();
    let append = |list: &mut Value, items: &mut Vec<Value>| {
        list.as_array_mut().into_iter().for_each(|list| list.append(items));
    };
    let dependencies = bill["dependencies"].as_array_mut().into_iter().flatten();
    for edges in dependencies.filter(|edges| edges["ref"] == root) {
        append(&mut edges["dependsOn"], &mut vec![first.clone()]);
    }
    let edges = others.iter().map(|part| json!({ "ref": part, "dependsOn": [] }));
    let mut edges: Vec<Value> = edges.collect();
    edges.insert(0, json!({ "ref": first, "dependsOn": others }));
    append(&mut bill["dependencies"], &mut edges);
    append(&mut bill["components"], &mut components.to_vec());
}

/// The platform of this machine, such as `x86_64-unknown-linux-gnu`.
fn host() -> Result<String> {
    let version = command("rustc").arg("-vV").output().context("cannot run rustc")?.stdout;
    let version = String::from_utf8_lossy(&version);
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not print its platform")?.to_owned())
}

/// The SHA-256 of each package in Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |package: &str, key: &str| {
        let start = format!("{key} = \"");
        let line = package.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let package = |text: &str| {
        let key = (field(text, "name")?, field(text, "version")?);
        Some((key, field(text, "checksum")?))
    };
    lock.split("[[package]]").filter_map(package).collect()
}

/// Converts the output of `cargo metadata` for the package `name`, and all packages that it is built
/// from.
fn bill(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    name: &str,
) -> Result<Value> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let root = packages
        .iter()
        .find(|(_, package)| package["name"] == name && package["source"].is_null())
        .map(|(id, _)| id.clone())
        .with_context(|| format!("the workspace has no crate {name}"))?;
    // The packages that are compiled, without development dependencies.
    let mut needed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| (text(&node["id"]), node))
        .collect();
    let mut open = vec![root.clone()];
    while let Some(id) = open.pop() {
        if needed.contains_key(&id) {
            continue;
        }
        let node = nodes.get(&id).with_context(|| format!("{id} is not resolved"))?;
        let is_built = |dependency: &&Value| {
            list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev")
        };
        let dependencies = list(&node["deps"]);
        let mut dependencies: Vec<String> =
            dependencies.iter().filter(is_built).map(|it| text(&it["pkg"])).collect();
        dependencies.sort();
        open.extend(dependencies.iter().cloned());
        needed.insert(id, dependencies);
    }
    let reference = |id: &str| {
        let package = &packages[id];
        format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"]))
    };
    let component = |id: &str| {
        let package = &packages[id];
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let mut component = json!({
            "type": "library",
            "bom-ref": reference(id),
            "purl": reference(id),
            "name": name,
            "version": version,
        });
        if let Some(licence) = package["license"].as_str() {
            // Cargo once accepted `/` for `OR`.
            let licence = licence.replace('/', " OR ");
            component["licenses"] = json!([{ "expression": licence }]);
        }
        if let Some(checksum) = checksums.get(&(name, version)) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        component
    };
    let others: Vec<Value> =
        needed.keys().filter(|id| **id != root).map(|id| component(id)).collect();
    let dependencies: Vec<Value> = needed
        .iter()
        .map(|(id, on)| {
            let on: Vec<String> = on.iter().map(|id| reference(id)).collect();
            json!({ "ref": reference(id), "dependsOn": on })
        })
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(&root) },
        "components": others,
        "dependencies": dependencies,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // promise: R22
    fn a_bill_of_materials_lists_what_a_crate_is_built_from() {
        let workspace = Workspace::find().unwrap();
        let platform = Some("x86_64-unknown-linux-gnu");
        let bill = bill_of(&workspace, "spdl-media", platform).unwrap();
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["metadata"]["component"]["name"], "spdl-media");
        let components = bill["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|component| component["name"] == name);
        // A crate of the workspace has no checksum.
        assert!(named("spdl-core").is_some_and(|core| core["hashes"].is_null()));
        // Development dependencies are not part of the crate.
        assert!(named("proptest").is_none());
        let foreign = components.iter().filter(|component| !component["hashes"].is_null());
        assert!(foreign.clone().count() > 30);
        for component in foreign {
            let digest = component["hashes"][0]["content"].as_str().unwrap();
            assert_eq!(digest.len(), 64, "{component}");
            assert!(component["licenses"][0]["expression"].is_string(), "{component}");
        }
        assert!(components.len() > 30, "{}", components.len());
        let references: Vec<_> = components.iter().map(|component| &component["bom-ref"]).collect();
        let edges = bill["dependencies"].as_array().unwrap();
        assert_eq!(edges.len(), components.len() + 1);
        for on in edges.iter().flat_map(|edge| edge["dependsOn"].as_array().unwrap()) {
            assert!(references.contains(&on), "{on} is not listed");
        }
        let again = bill_of(&workspace, "spdl-media", platform).unwrap();
        assert_eq!(bill, again);
        assert!(bill_of(&workspace, "spdl-none", None).is_err());
        // Packages of other platforms are not part of the crate.
        let names = |platform| {
            let bill = bill_of(&workspace, "spdl-io", Some(platform)).unwrap();
            let components = bill["components"].as_array().unwrap().iter();
            components.map(|it| it["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let is_of_windows = |name: &String| name.starts_with("windows");
        assert!(!names("x86_64-unknown-linux-gnu").iter().any(is_of_windows));
        assert!(names("x86_64-pc-windows-msvc").iter().any(is_of_windows));
    }

    #[test]
    // promise: R22
    fn the_bill_of_the_wheel_lists_its_ffmpeg_library() {
        let workspace = Workspace::find().unwrap();
        let bill = bill_of(&workspace, "spdl-python", Some("aarch64-unknown-linux-gnu")).unwrap();
        let components = bill["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|it| it["name"] == name).unwrap();
        for (name, licence) in
            [("FFmpeg", "LGPL-2.1-or-later AND IJG"), ("dav1d", "BSD-2-Clause"), ("zlib", "Zlib")]
        {
            let component = named(name);
            assert_eq!(component["licenses"][0]["expression"], licence);
            let source = &component["pedigree"]["ancestors"][0];
            assert_eq!(source["hashes"][0]["content"].as_str().unwrap().len(), 64, "{source}");
            // Versions match those of the notice in the wheel.
            let description = component["description"].as_str().unwrap();
            let version = component["version"].as_str();
            assert!(version.is_none_or(|version| description.contains(version)), "{component}");
        }
        let edges = bill["dependencies"].as_array().unwrap();
        assert_eq!(edges.len(), components.len() + 1);
        let on = |reference: &Value| {
            let edges = edges.iter().find(|edges| edges["ref"] == *reference).unwrap();
            edges["dependsOn"].as_array().unwrap()
        };
        let library = &named("FFmpeg")["bom-ref"];
        assert!(on(&bill["metadata"]["component"]["bom-ref"]).contains(library));
        assert_eq!(
            on(library),
            &vec![named("dav1d")["bom-ref"].clone(), named("zlib")["bom-ref"].clone()]
        );
        // Wheels for other systems do not contain the library.
        let other = bill_of(&workspace, "spdl-python", Some("x86_64-pc-windows-msvc")).unwrap();
        let components = other["components"].as_array().unwrap();
        assert!(!components.iter().any(|it| it["name"] == "FFmpeg"));
    }
}
