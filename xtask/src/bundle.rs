//! Adds the FFmpeg library to a wheel.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::ffmpeg::{self, LIBRARY, NOTICES};
use crate::tools::{Output, Workspace, command};
use crate::venv::Venv;

/// A Python program that compresses each file of a wheel with Zopfli, whose output is deflate; zlib's highest
/// level makes the wheel 3 % larger.
const COMPRESS: &str = "
import os, sys, zipfile
from zopfli.zlib import compress

class Compressor:
    def __init__(self, *_):
        self.parts = []
    def compress(self, part):
        self.parts.append(part)
        return b''
    def flush(self):
        # Without the header and the checksum of zlib.
        return compress(b''.join(self.parts), numiterations=1)[2:-4]

zipfile._get_compressor = Compressor
wheel = sys.argv[1]
smaller = wheel + '.part'
with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(smaller, 'w') as new:
    for entry in old.infolist():
        new.writestr(entry, old.read(entry), zipfile.ZIP_DEFLATED)
with zipfile.ZipFile(smaller) as new:
    assert new.testzip() is None
os.replace(smaller, wheel)
";

/// The folder of the library in the wheel, next to the folder of the package.
const FOLDER: &str = "spdl_rs.libs";

/// The argument of rustc with which the native module finds the library in the wheel.
pub(crate) fn link_argument() -> String {
    format!("link-arg=-Wl,-rpath,$ORIGIN/../{FOLDER}")
}

/// Licences of the code in the library.
const LICENCES: &str = "LGPL-2.1-or-later AND BSD-2-Clause AND Zlib AND IJG";

/// Libraries that every system for a manylinux wheel has, and the library of the wheel.
const ALLOWED: [&str; 8] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "librt.so.1",
    "libpthread.so.0",
    "libgcc_s.so.1",
    "ld-linux",
    LIBRARY,
];

/// Replaces a wheel by one that contains the library and its notices; returns its path.
///
/// `built` is the folder that `cargo xtask ffmpeg` has made. `venv` has the package `wheel`. The
/// platform tag is the oldest manylinux policy that both binaries comply with.
pub(crate) fn add_ffmpeg(
    workspace: &Workspace,
    output: &mut Output,
    venv: &Venv,
    wheel: &Path,
    built: &Path,
) -> Result<PathBuf> {
    let unpacked = workspace.target.join("wheel-unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)?;
    }
    let tool = |arguments: &[&str]| {
        let mut tool = command(venv.python());
        tool.args(["-m", "wheel"]).args(arguments);
        tool
    };
    output.run(tool(&["unpack", "--dest"]).args([unpacked.as_path(), wheel]))?;
    let root = only_entry(&unpacked, |_| true)?;
    let information = only_entry(&root, |name| name.ends_with(".dist-info"))?;
    let module = only_entry(&root.join("spdl_rs"), |name| name.ends_with(".so"))?;
    let library = root.join(FOLDER).join(LIBRARY);
    fs::create_dir_all(root.join(FOLDER))?;
    copy(&built.join("lib").join(LIBRARY), &library)?;
    for name in NOTICES {
        copy(&built.join(name), &information.join("licenses").join(name))?;
    }
    let metadata = information.join("METADATA");
    fs::write(&metadata, with_licences(&fs::read_to_string(&metadata)?)?)?;
    let tag = platform_tag(&[&module, &library])?;

    let folder = wheel.parent().context("the wheel has no folder")?;
    fs::remove_file(wheel)?;
    output.run(tool(&["pack", "--dest-dir"]).args([folder, &root]))?;
    let packed = only_entry(folder, |name| name.ends_with(".whl"))?;
    output.run(tool(&["tags", "--remove", "--platform-tag", &tag]).arg(packed))?;
    fs::remove_dir_all(&unpacked)?;
    let tagged = only_entry(folder, |name| name.ends_with(".whl"))?;
    output.run(command(venv.python()).args(["-c", COMPRESS]).arg(&tagged))?;
    Ok(tagged)
}

/// The entry of a folder whose name satisfies a condition.
fn only_entry(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut found = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_wanted(&path.file_name().unwrap_or_default().to_string_lossy()));
    let first = found.next();
    ensure!(found.next().is_none(), "more than one candidate in {}", folder.display());
    first.with_context(|| format!("no candidate in {}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = fs::copy(from, to);
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// The metadata of the package with the licences of the library.
fn with_licences(metadata: &str) -> Result<String> {
    const EXPRESSION: &str = "License-Expression: ";
    let mut text = String::new();
    let (headers, description) = metadata.split_once("\n\n").unwrap_or((metadata, ""));
    for line in headers.lines() {
        match line.strip_prefix(EXPRESSION) {
            Some(expression) => {
                text.push_str(&format!("{EXPRESSION}({expression}) AND {LICENCES}\n"));
                for name in NOTICES {
                    text.push_str(&format!("License-File: {name}\n"));
                }
            }
            None => text.push_str(&format!("{line}\n")),
        }
    }
    ensure!(text.contains(LICENCES), "the metadata of the wheel has no {EXPRESSION:?}");
    Ok(format!("{text}\n{description}"))
}

/// The tag of the oldest manylinux policy that all these binaries comply with.
fn platform_tag(binaries: &[&Path]) -> Result<String> {
    let mut newest = (2, 17);
    for binary in binaries {
        for name in ffmpeg::needed(binary)? {
            ensure!(
                ALLOWED.iter().any(|allowed| name.starts_with(allowed)),
                "{} needs {name}, which other machines may not have",
                binary.display()
            );
        }
        newest = newest.max(ffmpeg::glibc(binary)?);
    }
    Ok(format!("manylinux_{}_{}_{}", newest.0, newest.1, env::consts::ARCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_name_all_licences() {
        let before =
            "Name: spdl-rs\nLicense-Expression: MIT OR Apache-2.0\nVersion: 1\n\n# Title\n\nText\n";
        let after = with_licences(before).unwrap();
        assert_eq!(
            after,
            "Name: spdl-rs\n\
             License-Expression: (MIT OR Apache-2.0) AND LGPL-2.1-or-later AND BSD-2-Clause AND Zlib AND IJG\n\
             License-File: FFMPEG-LICENSE.txt\nLicense-File: FFMPEG-SOURCE.txt\nVersion: 1\n\n\
             # Title\n\nText\n"
        );
        assert!(with_licences("Name: spdl-rs\n\n").is_err());
    }
}
