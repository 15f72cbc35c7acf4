//! Checks the length of commit subjects.

use std::path::Path;
use std::process::Command;

/// The maximum length of a subject, in characters.
const LONGEST_SUBJECT: usize = 72;

/// Time of the commit that introduced the rule, in seconds since 1970. Older commits are exempt.
const SINCE: u64 = 1_795_404_986;

/// The number of commits that are checked if no commit follows `origin/main`, or if that branch does
/// not exist.
const LAST: usize = 50;

/// Commits whose subject is too long. Without git or a commit history, no commits are checked.
pub(super) fn findings(root: &Path) -> Vec<String> {
    let log = |range: &[&str]| {
        let output = Command::new("git")
            .args(["log", "--format=%h%x09%ct%x09%s"])
            .args(range)
            .current_dir(root)
            .output()
            .ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let commits = log(&["origin/main..HEAD"]).filter(|log| !log.is_empty());
    let commits = commits.or_else(|| log(&["-n", &LAST.to_string(), "HEAD"]));
    too_long(&commits.unwrap_or_default())
}

/// Reads lines of hash, time and subject.
fn too_long(log: &str) -> Vec<String> {
    let finding = |line: &str| {
        let mut columns = line.splitn(3, '\t');
        let (hash, time, subject) = (columns.next()?, columns.next()?, columns.next()?);
        let length = subject.chars().count();
        let is_checked = time.parse::<u64>().is_ok_and(|time| time > SINCE);
        (is_checked && length > LONGEST_SUBJECT).then(|| {
            format!(
                "commit {hash}: its subject has {length} characters, more than {LONGEST_SUBJECT}"
            )
        })
    };
    log.lines().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_subjects_of_new_commits_are_found() {
        let long = "x".repeat(73);
        let fits = "x".repeat(72);
        let log =
            format!("aa\t1795404986\t{long}\nbb\t1795404987\t{long}\ncc\t1795404987\t{fits}\n");
        let findings = too_long(&log);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("commit bb: "), "{findings:?}");
    }
}
