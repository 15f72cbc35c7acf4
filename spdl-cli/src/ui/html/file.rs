//! A file that is there in whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::ui::failure::Failure;

const WHAT: &str = "cannot write the report";

/// A place where a report can be written: under another name first, then renamed; but a device or a pipe
/// is written into, and never replaced.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
    /// `None` where the report goes into what is there.
    unfinished: Option<PathBuf>,
}

impl ReportFile {
    /// Makes sure that the report can be written. A report that is there already stays until the
    /// new one is whole.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Failure> {
        let failure = |reason: &str| Failure::new(WHAT, path.display(), reason);
        let name = path.file_name().ok_or_else(|| failure("expected the name of a file"))?;
        if path.is_dir() {
            return Err(failure("this is a folder, but a file was expected"));
        }
        // What a link leads to is written, and the link stays.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Ok(ReportFile { path, unfinished: None });
        }
        let mut hidden = OsString::from(".");
        hidden.push(path.file_name().unwrap_or(name));
        hidden.push(format!(".{}.unfinished", std::process::id()));
        let unfinished = path.with_file_name(hidden);
        // The file is not kept during the run, which may be ended at any moment.
        let made = create(&unfinished).and_then(|_| fs::remove_file(&unfinished));
        made.map_err(|error| Failure::new(WHAT, path.display(), error))?;
        Ok(ReportFile { path, unfinished: Some(unfinished) })
    }

    /// Writes the report.
    pub(crate) fn write(&self, text: &str) -> Result<(), Failure> {
        let written = match &self.unfinished {
            Some(unfinished) => create(unfinished)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .and_then(|()| fs::rename(unfinished, &self.path)),
            None => OpenOptions::new()
                .write(true)
                .open(&self.path)
                .and_then(|mut file| file.write_all(text.as_bytes())),
        };
        written.map_err(|error| {
            if let Some(unfinished) = &self.unfinished {
                // What cannot be removed either stays; the error that is told matters more.
                let _ = fs::remove_file(unfinished);
            }
            Failure::new(WHAT, self.path.display(), error)
        })
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_report_stays_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        fs::write(&path, "old").unwrap();
        let report = ReportFile::prepare(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        report.write("new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_written_into_and_links_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target.html"), folder.path().join("link.html"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        ReportFile::prepare(&link).unwrap().write("new").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        // A link, so that nothing happens to the device where this test fails.
        let device = folder.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        let report = ReportFile::prepare(&device).unwrap();
        assert!(report.unfinished.is_none(), "it would be replaced");
        report.write("anything").unwrap();
    }

    #[test]
    fn a_place_that_cannot_be_written_is_noticed_beforehand() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().join("missing/report.html"), folder.path().to_path_buf()] {
            assert!(ReportFile::prepare(&path).is_err(), "{}", path.display());
        }
    }
}
