//! Tests of interrupted saves: the disk is full, or the process is killed.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use signal_hook::consts::SIGKILL;

use super::tests::states;
use super::*;

/// The folder in which a child process of a test saves.
const FOLDER: &str = "SPDL_TEST_SAVES_IN";
/// The point at which the child process is killed.
const ENDS_AT: &str = "SPDL_TEST_ENDS_AT";

/// Kills the process if a test requested it at this point of a save.
pub(super) fn passes(point: &str) {
    if std::env::var_os(ENDS_AT).is_some_and(|end| end == point) {
        signal_hook::low_level::raise(SIGKILL).unwrap();
    }
}

/// Runs the test `name` again in a child process that saves in `folder`. `launcher` starts a shell,
/// which runs the script `shell` first.
fn run_apart(name: &str, folder: &Path, ends_at: &str, launcher: &[&str], shell: &str) -> Output {
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).arg("-c").arg(format!("{shell}\nexec \"$0\" \"$@\""));
    command.arg(std::env::current_exe().unwrap());
    let module = module_path!().split_once("::").unwrap().1;
    command.arg(format!("{module}::{name}")).arg("--exact").arg("--nocapture");
    command.env(FOLDER, folder).env(ENDS_AT, ends_at).output().unwrap()
}

/// The folder to save in if this is a child process of a test.
fn started_to_save() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

fn names(folder: &Path) -> Vec<String> {
    let name = |found: fs::DirEntry| found.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().flatten().map(name).collect();
    names.sort();
    names
}

/// Saves a state that is too large, then one that fits.
fn save_too_much(folder: &Path) {
    let file = StateFile::new(folder.join("run.state"));
    let previous = StateFile::new(folder.join("run.state.previous"));
    let states = states(3);
    states[..2].iter().for_each(|state| file.save(state).unwrap());
    let mut large = states[2].clone();
    large.notes.insert("large".into(), "x".repeat(1 << 20));
    for _ in 0..3 {
        let error = file.save(&large).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains("run.state"), "{error}");
        let (state, damage) = file.recover().unwrap();
        assert!(state == states[1] && damage.is_none(), "{damage:?}");
        assert_eq!(previous.load().unwrap(), states[0]);
        assert_eq!(names(folder), ["run.state", "run.state.previous"]);
    }
    // The failed save leaves no partial file that takes space.
    file.save(&states[2]).unwrap();
    assert_eq!(
        (file.load().unwrap(), previous.load().unwrap()),
        (states[2].clone(), states[1].clone())
    );
    println!("it was saved");
}

fn assert_saved(run: &Output) {
    let (output, error) =
        (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && output.contains("it was saved"), "{output}{error}");
}

#[test]
fn a_file_size_limit_leaves_the_previous_state() {
    if let Some(folder) = started_to_save() {
        return save_too_much(&folder);
    }
    let folder = tempfile::tempdir().unwrap();
    // 16 blocks of 512 or 1024 bytes: more than a small state, less than a large one.
    let limit = "trap '' XFSZ; ulimit -f 16";
    let name = "a_file_size_limit_leaves_the_previous_state";
    assert_saved(&run_apart(name, folder.path(), "", &["sh"], limit));
}

#[test]
fn a_full_disk_leaves_the_previous_state() {
    if let Some(folder) = started_to_save() {
        return save_too_much(&folder);
    }
    let folder = tempfile::tempdir().unwrap();
    // A file system that only the child process sees.
    let apart = ["unshare", "-rm", "sh"];
    let mount = format!("mount -t tmpfs -o size=64k tmpfs \"${FOLDER}\" || exit 9");
    let may = Command::new(apart[0])
        .args(&apart[1..])
        .args(["-c", &mount])
        .env(FOLDER, folder.path())
        .output();
    if !may.is_ok_and(|tried| tried.status.success()) {
        println!("SKIPPED: this process may not mount a file system");
        return;
    }
    let name = "a_full_disk_leaves_the_previous_state";
    assert_saved(&run_apart(name, folder.path(), "", &apart, &mount));
    assert_eq!(names(folder.path()), [""; 0], "no file is written outside the mount");
}

/// Checks that damage to the state file, written in place, leaves the state in `NAME.previous`, and
/// that the file is still accepted as a state file.
fn check_previous_survives(file: &StateFile, point: &str) {
    let whole = fs::read(file.path()).unwrap();
    let open = fs::File::options().write(true).open(file.path()).unwrap();
    for (written, len) in [(20, 20), (1, 1), (0, 0), (0, 10), (0, 5000), (20, 5000), (100, 5000)] {
        // Part of the content, then zeros.
        open.set_len(0).unwrap();
        fs::write(file.path(), &whole[..written]).unwrap();
        open.set_len(len).unwrap();
        let (_, damage) = file.recover().unwrap_or_else(|error| panic!("{point}: {error}"));
        assert!(damage.is_some(), "{point}, {written} of {len} bytes");
        file.check_writable().unwrap();
    }
    fs::write(file.path(), [&[0; 100][..], b"other"].concat()).unwrap();
    assert_eq!(file.check_writable().unwrap_err().kind(), ErrorKind::InvalidArgument);
    fs::write(file.path(), whole).unwrap();
}

// promise: R11
#[test]
fn a_process_killed_during_a_save_leaves_a_valid_state() {
    if let Some(folder) = started_to_save() {
        StateFile::new(folder.join("run.state")).save(&states(3)[2]).unwrap();
        panic!("the process was not killed");
    }
    let states = states(4);
    for point in ["created", "written", "synced", "linked", "renamed", "kept"] {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        states[..2].iter().for_each(|state| file.save(state).unwrap());
        let name = "a_process_killed_during_a_save_leaves_a_valid_state";
        let run = run_apart(name, folder.path(), point, &["sh"], "");
        let output = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.signal(), Some(SIGKILL), "{point}: {output}");
        let (state, damage) = file.recover().unwrap();
        assert!(damage.is_none(), "{point}: {damage:?}");
        let last = if ["renamed", "kept"].contains(&point) { 2 } else { 1 };
        assert_eq!(state, states[last], "killed at {point}");
        check_previous_survives(&file, point);
        // The next run is not blocked and leaves no extra file.
        file.check_writable().unwrap();
        file.save(&states[3]).unwrap();
        assert_eq!(file.load().unwrap(), states[3]);
        let previous = StateFile::new(folder.path().join("run.state.previous"));
        assert_eq!(previous.load().unwrap(), states[last], "killed at {point}");
        assert_eq!(names(folder.path()), ["run.state", "run.state.previous"], "{point}");
    }
}
