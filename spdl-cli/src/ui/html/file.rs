//! An output file that is replaced atomically.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::ui::failure::Failure;

const WHAT: &str = "cannot write the report";

/// The output file of a report. The file is written under a temporary name and then renamed.
///
/// A device or a pipe is opened and written directly, because renaming would replace it.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
    /// The temporary file; `None` for a device or a pipe.
    temporary: Option<PathBuf>,
}

impl ReportFile {
    /// Checks that the report can be written. An existing report stays until the new one is complete.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Failure> {
        let failure = |reason: &str| Failure::new(WHAT, path.display(), reason);
        let name = path.file_name().ok_or_else(|| failure("the path has no file name"))?;
        if path.is_dir() {
            return Err(failure("the path is a folder, not a file"));
        }
        // Write to the target of a symbolic link, so that the link is kept.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Ok(ReportFile { path, temporary: None });
        }
        let mut hidden = OsString::from(".");
        hidden.push(path.file_name().unwrap_or(name));
        hidden.push(format!(".{}.unfinished", std::process::id()));
        let temporary = path.with_file_name(hidden);
        // Remove the file that the check created: an interrupted run then leaves no file.
        let created = create(&temporary).and_then(|_| fs::remove_file(&temporary));
        created.map_err(|error| Failure::new(WHAT, path.display(), error))?;
        Ok(ReportFile { path, temporary: Some(temporary) })
    }

    /// Writes the report.
    pub(crate) fn write(&self, text: &str) -> Result<(), Failure> {
        let written = match &self.temporary {
            Some(temporary) => create(temporary)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .and_then(|()| fs::rename(temporary, &self.path)),
            None => OpenOptions::new()
                .write(true)
                .open(&self.path)
                .and_then(|mut file| file.write_all(text.as_bytes())),
        };
        written.map_err(|error| {
            if let Some(temporary) = &self.temporary {
                // If a write failed before, report that error.
                let _ = fs::remove_file(temporary);
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
    fn the_old_report_stays_until_the_new_one_is_complete() {
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
    fn devices_are_written_directly_and_links_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target.html"), folder.path().join("link.html"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        ReportFile::prepare(&link).unwrap().write("new").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        // The test writes through a symbolic link, so that the device is safe if this test fails.
        let device = folder.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        let report = ReportFile::prepare(&device).unwrap();
        assert!(report.temporary.is_none(), "the device would be replaced");
        report.write("anything").unwrap();
    }

    #[test]
    fn an_unwritable_path_is_an_error_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().join("missing/report.html"), folder.path().to_path_buf()] {
            assert!(ReportFile::prepare(&path).is_err(), "{}", path.display());
        }
    }
}
