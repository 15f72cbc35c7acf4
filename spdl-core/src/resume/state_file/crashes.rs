//! Tests of saving that is cut short: by a disk that is full, and by an end of the process.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use signal_hook::consts::SIGKILL;

use super::tests::states;
use super::*;

/// In which folder a test that was started by itself saves,
const FOLDER: &str = "SPDL_TEST_SAVES_IN";
/// and where it ends.
const ENDS_AT: &str = "SPDL_TEST_ENDS_AT";

/// Ends the process as if it were killed at this point of a save, where a test asks for that.
pub(super) fn passes(point: &str) {
    if std::env::var_os(ENDS_AT).is_some_and(|end| end == point) {
        signal_hook::low_level::raise(SIGKILL).unwrap();
    }
}

/// Runs the test of this name once more, in a process of its own that saves in `folder`. `shell` says
/// what a shell does before that, which is started by `launcher`.
fn run_apart(name: &str, folder: &Path, ends_at: &str, launcher: &[&str], shell: &str) -> Output {
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).arg("-c").arg(format!("{shell}\nexec \"$0\" \"$@\""));
    command.arg(std::env::current_exe().unwrap());
    command.arg(format!("state_file::crashes::{name}")).arg("--exact").arg("--nocapture");
    command.env(FOLDER, folder).env(ENDS_AT, ends_at).output().unwrap()
}

/// Where this process is to save, if it was started by a test.
fn started_to_save() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

fn names(folder: &Path) -> Vec<String> {
    let name = |found: fs::DirEntry| found.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().flatten().map(name).collect();
    names.sort();
    names
}

/// Saves more than there is room for, and then what there is.
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
    // What was begun takes no room from what comes.
    file.save(&states[2]).unwrap();
    assert_eq!(
        (file.load().unwrap(), previous.load().unwrap()),
        (states[2].clone(), states[1].clone())
    );
    println!("it was saved");
}

fn assert_saved(run: &Output) {
    let (told, error) =
        (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && told.contains("it was saved"), "{told}{error}");
}

#[test]
fn files_that_must_not_grow_leave_the_state_that_was_there() {
    if let Some(folder) = started_to_save() {
        return save_too_much(&folder);
    }
    let folder = tempfile::tempdir().unwrap();
    // In blocks of half a KiB or one: more than a small state, and less than a large one.
    let limit = "trap '' XFSZ; ulimit -f 16";
    let name = "files_that_must_not_grow_leave_the_state_that_was_there";
    assert_saved(&run_apart(name, folder.path(), "", &["sh"], limit));
}

#[test]
fn a_full_disk_leaves_the_state_that_was_there() {
    if let Some(folder) = started_to_save() {
        return save_too_much(&folder);
    }
    let folder = tempfile::tempdir().unwrap();
    // A file system of its own, that nobody else sees.
    let apart = ["unshare", "-rm", "sh"];
    let mount = format!("mount -t tmpfs -o size=64k tmpfs \"${FOLDER}\" || exit 9");
    let may = Command::new(apart[0])
        .args(&apart[1..])
        .args(["-c", &mount])
        .env(FOLDER, folder.path())
        .output();
    if !may.is_ok_and(|tried| tried.status.success()) {
        println!("SKIPPED: this process may not mount a file system of its own");
        return;
    }
    let name = "a_full_disk_leaves_the_state_that_was_there";
    assert_saved(&run_apart(name, folder.path(), "", &apart, &mount));
    assert_eq!(names(folder.path()), [""; 0], "nothing of it is on this disk");
}

#[test]
fn a_process_that_is_killed_while_it_saves_leaves_a_sound_state() {
    if let Some(folder) = started_to_save() {
        StateFile::new(folder.join("run.state")).save(&states(3)[2]).unwrap();
        panic!("not ended");
    }
    let states = states(4);
    for point in ["created", "written", "synced", "linked", "kept", "renamed"] {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        states[..2].iter().for_each(|state| file.save(state).unwrap());
        let name = "a_process_that_is_killed_while_it_saves_leaves_a_sound_state";
        let run = run_apart(name, folder.path(), point, &["sh"], "");
        let told = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.signal(), Some(SIGKILL), "{point}: {told}");
        let (state, damage) = file.recover().unwrap();
        assert!(damage.is_none(), "{point}: {damage:?}");
        let last = if point == "renamed" { 2 } else { 1 };
        assert_eq!(state, states[last], "when it was {point}");
        // Whoever goes on finds nothing in its way, and leaves nothing.
        file.check_writable().unwrap();
        file.save(&states[3]).unwrap();
        assert_eq!(file.load().unwrap(), states[3]);
        let previous = StateFile::new(folder.path().join("run.state.previous"));
        assert_eq!(previous.load().unwrap(), states[last], "when it was {point}");
        assert_eq!(names(folder.path()), ["run.state", "run.state.previous"], "{point}");
    }
}
