//! All defects that a scan found, as text and as JSON.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use spdl_core::ErrorKind;

use super::data_set::DataSet;
use super::defect::Defect;
use crate::ui::format::{count, counted, printable};

/// Maximum number of defects that are stored; further defects are only counted.
const MAX_KEPT: usize = 100_000;
/// Maximum number of names in a summary.
const MAX_NAMES: usize = 3;

impl Defect {
    /// The archive and the member.
    pub(crate) fn location(&self, set: &DataSet) -> String {
        let places = set.archive_name(self.archive).map(str::to_owned).into_iter();
        let places = places.chain(self.name.as_ref().map(ToString::to_string));
        printable(&places.collect::<Vec<_>>().join(": "))
    }
}

/// The first defects, and the number of all defects.
#[derive(Debug, Default)]
pub(crate) struct DefectList {
    first: Vec<Defect>,
    total: u64,
    /// Number of defects of members; the other defects are in archives or in their checksum files.
    members: u64,
    /// The archives with defects.
    archives: BTreeSet<usize>,
}

impl DefectList {
    pub(crate) fn add(&mut self, defect: Defect) {
        self.total += 1;
        self.members += u64::from(defect.name.is_some());
        self.archives.insert(defect.archive);
        if self.first.len() < MAX_KEPT {
            self.first.push(defect);
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Whether all known defects are files that this build cannot read.
    pub(crate) fn are_all_unsupported(&self) -> bool {
        self.first.iter().all(|defect| defect.kind == ErrorKind::Unsupported)
    }

    /// The first `most` defects.
    pub(crate) fn first(&self, most: usize) -> impl Iterator<Item = &Defect> {
        self.first.iter().take(most)
    }

    /// One JSON object for each of the first `most` defects.
    pub(crate) fn as_json(&self, set: &DataSet, most: usize) -> Vec<Value> {
        let object = |defect: &Defect| {
            json!({
                "shard": set.archive_name(defect.archive),
                "key": defect.name.as_ref().map(ToString::to_string),
                "offset": defect.offset,
                "kind": defect.kind.as_str(),
                "reason": defect.reason,
            })
        };
        self.first(most).map(object).collect()
    }

    /// Two lines for each of the first `most` defects, then the number of further defects.
    ///
    /// `listed` is the maximum number of defects that `--json` prints.
    pub(crate) fn as_text(&self, set: &DataSet, most: usize, listed: &str) -> String {
        let mut text = String::new();
        for defect in self.first(most) {
            let offset = defect
                .offset
                .map_or(String::new(), |offset| format!(" (at byte {})", count(offset)));
            text.push_str(&format!(
                "{}{offset}\n    {}\n",
                defect.location(set),
                defect.describe()
            ));
        }
        if self.total > most as u64 {
            let more = count(self.total - most as u64);
            text.push_str(&format!("and {more} more (--json lists up to {listed})\n"));
        }
        text
    }

    /// One line: `1 of 30 members in 2 archives is invalid (a.tar)`.
    ///
    /// `verb` is the end of the sentence, in singular and plural.
    pub(crate) fn summary(&self, set: &DataSet, members: u64, verb: [&str; 2]) -> String {
        let of = |number: u64, whole: String| {
            let [one, many] = verb;
            format!("{} of {whole} {}", count(number), if number == 1 { one } else { many })
        };
        let archives = match set {
            DataSet::Archives { archives, unlisted, .. } => archives.len() + unlisted.len(),
            DataSet::Samples(samples) => {
                let all = samples.len();
                let [one, many] = samples.noun();
                let samples = of(self.total.min(all), counted(all, one, many));
                return format!("{samples} ({})", self.names(set, true));
            }
        };
        let archives = counted(archives as u64, "archive", "archives");
        let others = self.total - self.members;
        let counts = match (self.members, others) {
            (0, _) => of(self.archives.len() as u64, archives),
            (invalid, others) => {
                let members = counted(members, "member", "members");
                let invalid = of(invalid, format!("{members} in {archives}"));
                match others {
                    0 => invalid,
                    others => {
                        format!(
                            "{invalid}, and {}",
                            counted(others, "other defect", "other defects")
                        )
                    }
                }
            }
        };
        format!("{counts} ({})", self.names(set, false))
    }

    /// The names of the first archives or samples with defects.
    fn names(&self, set: &DataSet, are_samples: bool) -> String {
        let (mut names, all): (Vec<String>, u64) = if are_samples {
            (self.first(MAX_NAMES).map(|defect| defect.location(set)).collect(), self.total)
        } else {
            let names = self.archives.iter().take(MAX_NAMES);
            let names = names.filter_map(|&number| set.archive_name(number));
            (names.map(printable).collect(), self.archives.len() as u64)
        };
        let more = all.saturating_sub(names.len() as u64);
        if more > 0 {
            names.push(format!("and {} more", count(more)));
        }
        names.join(", ")
    }
}

/// Lines about members that were not read, and about archives whose end was not reached; empty if
/// both numbers are 0.
pub(crate) fn unseen(members: u64, archives_without_end: u64) -> String {
    let mut text = String::new();
    if members > 0 {
        let were = if members == 1 { "was" } else { "were" };
        let members = counted(members, "member", "members");
        text += &format!("{members} {were} not read: after damage, or in missing archives\n");
    }
    match archives_without_end {
        0 => {}
        1 => text += "1 archive is damaged or truncated; its number of members is unknown\n",
        more => {
            let more = count(more);
            text += &format!(
                "{more} archives are damaged or truncated; their number of members is unknown\n"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspection::archive::unlisted_archives;
    use spdl_io::Key;

    fn set(archives: usize) -> DataSet {
        DataSet::Archives {
            archives: unlisted_archives(
                (0..archives).map(|at| format!("{at}.tar").into()).collect(),
            ),
            unlisted: Vec::new(),
            manifest: None,
        }
    }

    #[test]
    fn the_summary_counts_defects_and_names_archives() {
        let defect =
            |archive, name: Option<&str>| Defect::corrupt(archive, name.map(Key::from), "x");
        let summary = |all: &[Defect], archives| {
            let mut list = DefectList::default();
            all.iter().cloned().for_each(|defect| list.add(defect));
            list.summary(&set(archives), 30, ["is invalid", "are invalid"])
        };
        let a = defect(1, Some("a"));
        assert_eq!(
            summary(std::slice::from_ref(&a), 2),
            "1 of 30 members in 2 archives is invalid (1.tar)"
        );
        assert_eq!(
            summary(&[defect(0, Some("b")), a.clone()], 2),
            "2 of 30 members in 2 archives are invalid (0.tar, 1.tar)"
        );
        assert_eq!(summary(&[defect(0, None)], 1), "1 of 1 archive is invalid (0.tar)");
        assert_eq!(
            summary(&[a, defect(0, None)], 2),
            "1 of 30 members in 2 archives is invalid, and 1 other defect (0.tar, 1.tar)"
        );
        let many: Vec<Defect> = (0..5).map(|archive| defect(archive, None)).collect();
        let expected = "5 of 9 archives are invalid (0.tar, 1.tar, 2.tar, and 2 more)";
        assert_eq!(summary(&many, 9), expected);
    }

    #[test]
    fn defects_beyond_the_limit_are_counted() {
        let mut list = DefectList::default();
        (0..MAX_KEPT + 5).for_each(|_| list.add(Defect::corrupt(0, None, "x")));
        assert_eq!((list.total(), list.first(usize::MAX).count()), (MAX_KEPT as u64 + 5, MAX_KEPT));
        let text = list.as_text(&set(1), 2, "100,000");
        assert_eq!(text.lines().count(), 5);
        assert!(text.ends_with("and 100,003 more (--json lists up to 100,000)\n"), "{text}");
    }
}
