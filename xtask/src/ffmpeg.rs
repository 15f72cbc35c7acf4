//! `cargo xtask ffmpeg`: builds the FFmpeg library that the Python wheel contains.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::tools::{Output, Workspace, cargo, command, install_packages, require_programs};
use crate::venv::Venv;

/// Build FFmpeg for the Python wheel: one shared library, `libspdl_av.so.1`.
///
/// The library contains FFmpeg, dav1d (AV1) and zlib. FFmpeg is configured without GPL code, network,
/// devices and file access. All symbols have the version SPDL_AV_1, so that one process can also load
/// other builds of FFmpeg. The sources are in crates of the package registry, and their SHA-256 is
/// verified. The result is in target/ffmpeg/HASH, where HASH identifies the recipe and the platform. If
/// this folder exists, nothing is built.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask ffmpeg
  PKG_CONFIG_LIBDIR=$(cargo xtask ffmpeg --path)/lib/pkgconfig cargo build -p spdl-media --features ffmpeg")]
pub(crate) struct FfmpegArguments {
    /// Print only the folder of the result, and build nothing
    #[arg(long)]
    path: bool,
}

/// Builds the library from the sources.
const RECIPE: &str = include_str!("../ffmpeg/build.sh");

/// A crate that carries the source of a library.
struct Carrier {
    name: &'static str,
    version: &'static str,
    /// SHA-256 of the package in the registry.
    sha256: &'static str,
    /// The source within the package.
    source: &'static str,
    /// Where the source is published.
    origin: &'static str,
    /// The name of the library, its version if the crate has another one, and its licence.
    library: (&'static str, Option<&'static str>, &'static str),
}

const CARRIERS: [Carrier; 3] = [
    Carrier {
        name: "ramp-ffmpeg-sys",
        version: "9.0.5",
        sha256: "dd4ae4cd5a1349c5608711b34c09d6f593ca884415d9646c39920d7011c8bd8b",
        source: "vendor/ffmpeg-9.0.2.tar.xz",
        origin: "FFmpeg 9.0.2, https://github.com/FFmpeg/FFmpeg, tag n9.0.2, without tests/ref and \
                 doc/*.texi",
        library: ("FFmpeg", Some("9.0.2"), "LGPL-2.1-or-later AND IJG"),
    },
    Carrier {
        name: "libdav1d-sys",
        version: "0.7.1+libdav1d.1.4.3",
        sha256: "3d875e9669d116a603412a126de599b7bf47789a365b79fcf461fbf9c18d141f",
        source: "vendor",
        origin: "dav1d 1.4.3, https://code.videolan.org/videolan/dav1d",
        library: ("dav1d", Some("1.4.3"), "BSD-2-Clause"),
    },
    Carrier {
        name: "libz-sys",
        version: "1.1.33",
        sha256: "fee3f59f4321dab0c78d828942e7aa09d0bd8ad6e78a501977e6bf3d02938045",
        source: "src/zlib",
        origin: "zlib, https://github.com/madler/zlib",
        library: ("zlib", None, "Zlib"),
    },
];

/// SHA-256 of the archive with the source of FFmpeg.
const ARCHIVE_SHA256: &str = "b8663330d81917929710c9d6e644fbc0004a6c491b71900c1605a470a46e39b7";

/// The name of the library, which is also its soname.
pub(crate) const LIBRARY: &str = "libspdl_av.so.1";

/// The version of all symbols of the library.
const SYMBOL_VERSION: &str = "SPDL_AV_1";

/// Files that a wheel with the library must contain.
pub(crate) const NOTICES: [&str; 2] = ["FFMPEG-LICENSE.txt", "FFMPEG-SOURCE.txt"];

pub(crate) fn run(workspace: &Workspace, arguments: &FfmpegArguments) -> Result<()> {
    if arguments.path {
        println!("{}", folder(workspace).display());
        return Ok(());
    }
    let folder = build(workspace, &mut Output::Terminal)?;
    let library = folder.join("lib").join(LIBRARY);
    let bytes = fs::metadata(&library).with_context(|| library.display().to_string())?.len();
    println!("{}\n{:.1} MB", library.display(), bytes as f64 / 1e6);
    Ok(())
}

/// Builds the library unless it is built; returns the folder with `lib`, `include` and the notices.
pub(crate) fn build(workspace: &Workspace, output: &mut Output) -> Result<PathBuf> {
    let folder = folder(workspace);
    if folder.is_dir() {
        return Ok(folder);
    }
    ensure!(cfg!(target_os = "linux"), "the FFmpeg library is built on Linux only");
    let assembler: &[&str] = if cfg!(target_arch = "x86_64") { &["nasm"] } else { &[] };
    let programs = [&["gcc", "make", "pkg-config"], assembler].concat();
    require_programs(output, "FFmpeg", &programs)?;
    let tools =
        Venv::prepare(workspace, output, "venv-ffmpeg", &["meson==1.9.1", "ninja==1.13.0"])?;
    let parent = workspace.target.join("ffmpeg");
    let [archive, dav1d, zlib] = fetch(&parent.join("sources"))?;
    let build = parent.join("build");
    if build.exists() {
        fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))?;
    }
    fs::create_dir_all(&build).with_context(|| format!("cannot create {}", build.display()))?;
    let script = build.join("build.sh");
    fs::write(&script, RECIPE).with_context(|| format!("cannot write {}", script.display()))?;
    output.say(&format!("building {}, which takes several minutes", workspace.shown(&folder)));
    let jobs = thread::available_parallelism().map_or(2, usize::from).to_string();
    let mut bash = command("bash");
    bash.arg(&script)
        .args([&archive, &dav1d, &zlib, &build])
        .arg(jobs)
        .env("PATH", path_with(&tools)?);
    output.run(&mut bash)?;
    let result = build.join("result");
    check(&result.join("lib").join(LIBRARY))?;
    let notice = source_notice(&result)?;
    fs::write(result.join(NOTICES[1]), notice)?;
    fs::rename(&result, &folder).with_context(|| format!("cannot create {}", folder.display()))?;
    fs::remove_dir_all(&build)?;
    Ok(folder)
}

/// The folder of the result, which depends on the recipe and the platform.
fn folder(workspace: &Workspace) -> PathBuf {
    let mut hash = Sha256::new();
    for text in [RECIPE, ARCHIVE_SHA256, env::consts::ARCH, env::consts::OS] {
        hash.update(text);
        hash.update([0]);
    }
    for carrier in CARRIERS {
        hash.update(carrier.sha256);
    }
    workspace.target.join("ffmpeg").join(&hex(&hash.finalize())[..16])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The search path for programs, which starts with that of a virtual environment.
fn path_with(venv: &Venv) -> Result<std::ffi::OsString> {
    let programs = venv.program("python");
    let first = programs.parent().map(Path::to_owned);
    let rest = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths(first.into_iter().chain(env::split_paths(&rest)))?)
}

/// Downloads the crates that carry the sources, and verifies them; returns the paths of the sources.
///
/// The crates are dependencies of an otherwise empty package, so that they are not in the workspace's
/// `Cargo.lock`. They are not compiled.
fn fetch(folder: &Path) -> Result<[PathBuf; 3]> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let manifest = folder.join("Cargo.toml");
    fs::write(&manifest, throw_away_manifest())?;
    fs::write(folder.join("lib.rs"), "")?;
    let lock = folder.join("Cargo.lock");
    // A lock file of an earlier recipe could have other versions of the crates.
    if lock.exists() {
        fs::remove_file(&lock)?;
    }
    let found = cargo()
        .args([
            "metadata",
            "--format-version",
            "1",
            "--filter-platform",
            &host()?,
            "--manifest-path",
        ])
        .arg(&manifest)
        .output()
        .context("cannot run cargo")?;
    ensure!(
        found.status.success(),
        "cannot download the source of FFmpeg: {}",
        String::from_utf8_lossy(&found.stderr)
    );
    let metadata: Value = serde_json::from_slice(&found.stdout)?;
    let locked = fs::read_to_string(&lock)?;
    let [archive, dav1d, zlib] = CARRIERS.each_ref().map(|it| source_of(it, &metadata, &locked));
    let archive = archive?;
    let bytes = fs::read(&archive).with_context(|| format!("cannot read {}", archive.display()))?;
    let sum = hex(&Sha256::digest(&bytes));
    ensure!(
        sum == ARCHIVE_SHA256,
        "{} has the SHA-256 {sum}, not {ARCHIVE_SHA256}",
        archive.display()
    );
    Ok([archive, dav1d?, zlib?])
}

fn throw_away_manifest() -> String {
    let dependencies = CARRIERS.iter().fold(String::new(), |mut text, carrier| {
        let version = carrier.version.split('+').next().unwrap_or_default();
        let _ = writeln!(text, "{} = \"={version}\"", carrier.name);
        text
    });
    format!(
        "[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [lib]\npath = \"lib.rs\"\n\n[dependencies]\n{dependencies}"
    )
}

/// The target triple of this machine.
fn host() -> Result<String> {
    let output = command("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV printed no host")
}

/// The path of the source in a downloaded crate.
fn source_of(carrier: &Carrier, metadata: &Value, lock: &str) -> Result<PathBuf> {
    let Carrier { name, version, sha256, source, .. } = carrier;
    // Cargo compares the package with the checksum in the lock file.
    ensure!(
        lock.contains(&format!("checksum = \"{sha256}\"")),
        "the registry's {name} {version} does not have the SHA-256 {sha256}"
    );
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let manifest = packages
        .filter(|package| package["name"] == *name && package["version"] == *version)
        .find_map(|package| package["manifest_path"].as_str())
        .with_context(|| format!("cargo downloaded no {name} {version}"))?;
    Ok(Path::new(manifest).with_file_name(source))
}

/// The parts of the library as components of a CycloneDX bill of materials. The first one is FFmpeg.
pub(crate) fn components() -> [Value; 3] {
    CARRIERS.map(|carrier| {
        let (library, version, licence) = carrier.library;
        let name = library.to_lowercase();
        let reference =
            version.map_or(format!("pkg:generic/{name}"), |it| format!("pkg:generic/{name}@{it}"));
        let mut component = json!({
            "type": "library",
            "bom-ref": reference,
            "purl": reference,
            "name": library,
            "description": carrier.origin,
            "licenses": [{ "expression": licence }],
            // The crate with the source.
            "pedigree": { "ancestors": [{
                "type": "library",
                "name": carrier.name,
                "version": carrier.version,
                "purl": format!("pkg:cargo/{}@{}", carrier.name, carrier.version),
                "hashes": [{ "alg": "SHA-256", "content": carrier.sha256 }],
            }] },
        });
        if let Some(version) = version {
            component["version"] = json!(version);
        }
        component
    })
}

/// The sources of the library, and how it was built from them.
fn source_notice(result: &Path) -> Result<String> {
    let line = result.join("configure-line.txt");
    let line =
        fs::read_to_string(&line).with_context(|| format!("cannot read {}", line.display()))?;
    let mut text = format!(
        "{LIBRARY} is a separate shared library, built by `cargo xtask ffmpeg`. A library with the same\n\
         soname and symbols can replace it. Sources:\n"
    );
    for Carrier { name, version, sha256, source, origin, .. } in CARRIERS {
        let _ = write!(
            text,
            "\n{origin}\n  {source} of the crate {name} {version} of Rust's package registry\n  \
             SHA-256 of the package: {sha256}\n"
        );
    }
    let _ = write!(
        text,
        "\nSHA-256 of {}: {ARCHIVE_SHA256}\n\nFFmpeg was configured with:\n{}\n\nThe complete \
         script:\n\n{RECIPE}",
        CARRIERS[0].source,
        line.trim_end()
    );
    Ok(text)
}

/// Libraries that each Linux system with glibc has.
const SYSTEM_LIBRARIES: [&str; 4] = ["libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux"];

/// Fails if the library needs others than those of glibc, or exports a symbol without its version.
fn check(library: &Path) -> Result<()> {
    for name in needed(library)? {
        ensure!(
            SYSTEM_LIBRARIES.iter().any(|system| name.starts_with(system)),
            "{LIBRARY} needs {name}"
        );
    }
    let symbols = read(Command::new("nm").args(["-D", "--defined-only"]).arg(library))?;
    let suffix = format!("@@{SYMBOL_VERSION}");
    let other = symbols.lines().find(|line| !line.ends_with(&suffix) && !is_version(line));
    ensure!(other.is_none(), "{LIBRARY} exports {other:?} without the version {SYMBOL_VERSION}");
    ensure!(symbols.contains(" avcodec_open2@@"), "{LIBRARY} does not export avcodec_open2");
    Ok(())
}

/// Whether a line of `nm` is the definition of the version.
fn is_version(line: &str) -> bool {
    line.split_whitespace().nth(2) == Some(SYMBOL_VERSION)
}

/// The libraries that a shared library needs.
pub(crate) fn needed(library: &Path) -> Result<Vec<String>> {
    let text = read(Command::new("readelf").arg("-d").arg(library))?;
    let names = text.lines().filter(|line| line.contains("(NEEDED)"));
    Ok(names
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned()))
        .collect())
}

/// The newest version of glibc whose symbols a shared library needs: `(2, 34)`.
pub(crate) fn glibc(library: &Path) -> Result<(u32, u32)> {
    let text = read(Command::new("objdump").arg("-T").arg(library))?;
    let versions = text.split("(GLIBC_").skip(1).filter_map(|rest| rest.split_once(')'));
    let parts = versions.filter_map(|(version, _)| {
        let mut parts = version.split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    parts.max().with_context(|| format!("{} needs no glibc", library.display()))
}

/// The output of a program that succeeds.
fn read(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.env("LC_ALL", "C").output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} failed: {error}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Libraries of FFmpeg that the feature `ffmpeg` links to, and those that it will link to.
const SYSTEM_FFMPEG: [&str; 6] =
    ["libavcodec", "libavfilter", "libavformat", "libavutil", "libswresample", "libswscale"];

/// Debian packages that the feature `ffmpeg` needs to build.
const DEBIAN_PACKAGES: [&str; 9] = [
    "clang",
    "libclang-dev",
    "pkg-config",
    "libavcodec-dev",
    "libavfilter-dev",
    "libavformat-dev",
    "libavutil-dev",
    "libswresample-dev",
    "libswscale-dev",
];

/// Whether the system has FFmpeg with its headers, and clang.
pub(crate) fn system_has_ffmpeg() -> bool {
    let succeeds = |program: &str, arguments: &[&str]| {
        let output = command(program).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    succeeds("pkg-config", &[&["--exists"], &SYSTEM_FFMPEG[..]].concat())
        && succeeds("clang", &["--version"])
}

/// Ensures that the system has FFmpeg with its headers, and clang; installs Debian's packages if
/// necessary.
pub(crate) fn require_system_ffmpeg(output: &mut Output) -> Result<()> {
    if system_has_ffmpeg() {
        return Ok(());
    }
    let why = "the feature `ffmpeg` needs FFmpeg's headers and clang, which are not installed";
    install_packages(output, why, &DEBIAN_PACKAGES)?;
    ensure!(system_has_ffmpeg(), "FFmpeg is installed, but pkg-config does not find it");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_exact_versions() {
        let text = throw_away_manifest();
        assert!(text.contains("\nlibdav1d-sys = \"=0.7.1\"\n"), "{text}");
        assert!(text.contains("[workspace]"), "{text}");
    }

    #[test]
    fn a_package_with_another_checksum_is_an_error() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "libz-sys", "version": "1.1.33", "manifest_path": "/registry/libz/Cargo.toml" },
        ]});
        let carrier = &CARRIERS[2];
        let lock = format!("checksum = \"{}\"", carrier.sha256);
        let source = source_of(carrier, &metadata, &lock).unwrap();
        assert_eq!(source, Path::new("/registry/libz/src/zlib"));
        let error = source_of(carrier, &metadata, "checksum = \"00\"").unwrap_err().to_string();
        assert!(error.contains("does not have the SHA-256"), "{error}");
    }

    #[test]
    fn the_recipe_enables_no_gpl_code_and_no_file_access() {
        for flag in ["--enable-gpl", "--enable-nonfree", "--enable-version3", "--enable-protocol"] {
            assert!(!RECIPE.contains(flag), "{flag}");
        }
    }
}
