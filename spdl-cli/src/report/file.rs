//! A file that is there in whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

const WHAT: &str = "cannot write the report";

/// A place where a report can be written: under another name first, then renamed.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
    unfinished: PathBuf,
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
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.unfinished", std::process::id()));
        let report =
            ReportFile { path: path.to_path_buf(), unfinished: path.with_file_name(hidden) };
        // The file is not kept during the run, which may be ended at any moment.
        let made = report.create().and_then(|_| fs::remove_file(&report.unfinished));
        made.map_err(|error| Failure::new(WHAT, path.display(), error))?;
        Ok(report)
    }

    /// Writes the report.
    pub(crate) fn write(&self, text: &str) -> Result<(), Failure> {
        let written = self
            .create()
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&self.unfinished, &self.path));
        written.map_err(|error| {
            // What cannot be removed either stays; the error that is told matters more.
            let _ = fs::remove_file(&self.unfinished);
            Failure::new(WHAT, self.path.display(), error)
        })
    }

    fn create(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).open(&self.unfinished)
    }
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

    #[test]
    fn a_place_that_cannot_be_written_is_noticed_beforehand() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().join("missing/report.html"), folder.path().to_path_buf()] {
            assert!(ReportFile::prepare(&path).is_err(), "{}", path.display());
        }
    }
}
