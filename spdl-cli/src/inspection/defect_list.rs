//! All damage that a pass over a data set found, and the messages about it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::data_set::DataSet;
use super::defect::Defect;
use crate::ui::format::{count, counted, printable};

/// So many are kept; more are counted.
const LISTED: usize = 100_000;
/// So many places are named in a sentence.
const PLACES: usize = 3;

impl Defect {
    /// The archive and the member.
    pub(crate) fn place(&self, set: &DataSet) -> String {
        let places = set.archive_name(self.archive).map(str::to_owned).into_iter();
        let places = places.chain(self.name.as_ref().map(ToString::to_string));
        printable(&places.collect::<Vec<_>>().join(": "))
    }
}

/// All that is wrong: what comes first, and how much there is.
#[derive(Debug, Default)]
pub(crate) struct DefectList {
    first: Vec<Defect>,
    total: u64,
    /// How many of all are members. The others are archives, or lie beside them.
    members: u64,
    /// In which archives something is wrong.
    archives: BTreeSet<usize>,
}

impl DefectList {
    pub(crate) fn add(&mut self, bad: Defect) {
        self.total += 1;
        self.members += u64::from(bad.name.is_some());
        self.archives.insert(bad.archive);
        if self.first.len() < LISTED {
            self.first.push(bad);
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The first ones.
    pub(crate) fn first(&self, most: usize) -> impl Iterator<Item = &Defect> {
        self.first.iter().take(most)
    }

    /// An object for each of the first ones.
    pub(crate) fn as_json(&self, set: &DataSet, most: usize) -> Vec<Value> {
        let object = |bad: &Defect| {
            json!({
                "shard": set.archive_name(bad.archive),
                "key": bad.name.as_ref().map(ToString::to_string),
                "offset": bad.offset,
                "kind": bad.kind.as_str(),
                "reason": bad.reason,
            })
        };
        self.first(most).map(object).collect()
    }

    /// Two lines for each of the first ones, and how many more `--json` lists.
    pub(crate) fn as_text(&self, set: &DataSet, most: usize, listed: &str) -> String {
        let mut text = String::new();
        for bad in self.first(most) {
            let offset =
                bad.offset.map_or(String::new(), |offset| format!(" (at byte {})", count(offset)));
            text.push_str(&format!("{}{offset}\n    {}\n", bad.place(set), bad.told()));
        }
        if self.total > most as u64 {
            let more = count(self.total - most as u64);
            text.push_str(&format!("and {more} more (--json lists up to {listed})\n"));
        }
        text
    }

    /// How much of how many members is wrong, and where: `1 of 30 members in 2 archives is bad
    /// (a.tar)`. `wrong` says what one thing is, and what several are.
    pub(crate) fn sentence(&self, set: &DataSet, members: u64, wrong: [&str; 2]) -> String {
        let of = |number: u64, whole: String| {
            let [one, many] = wrong;
            format!("{} of {whole} {}", count(number), if number == 1 { one } else { many })
        };
        let archives = match set {
            DataSet::Archives { archives, unlisted, .. } => archives.len() + unlisted.len(),
            DataSet::Samples(samples) => {
                let all = samples.len();
                let [one, many] = samples.noun();
                let told = of(self.total.min(all), counted(all, one, many));
                return format!("{told} ({})", self.places(set, true));
            }
        };
        let archives = counted(archives as u64, "archive", "archives");
        let others = self.total - self.members;
        let told = match (self.members, others) {
            (0, _) => of(self.archives.len() as u64, archives),
            (bad, others) => {
                let members = counted(members, "member", "members");
                let told = of(bad, format!("{members} in {archives}"));
                match others {
                    0 => told,
                    1 => format!("{told}, and 1 thing more"),
                    _ => format!("{told}, and {} things more", count(others)),
                }
            }
        };
        format!("{told} ({})", self.places(set, false))
    }

    /// The names of the first archives, or samples, of which something is wrong.
    fn places(&self, set: &DataSet, are_samples: bool) -> String {
        let (mut names, all): (Vec<String>, u64) = if are_samples {
            (self.first(PLACES).map(|bad| bad.place(set)).collect(), self.total)
        } else {
            let names = self.archives.iter().take(PLACES);
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

/// That something was not come upon, in a line of its own; nothing where all was.
pub(crate) fn unseen(members: u64, archives_without_end: u64) -> String {
    let mut told = String::new();
    if members > 0 {
        let were = if members == 1 { "was" } else { "were" };
        let members = counted(members, "member", "members");
        told += &format!("{members} {were} not seen: behind damage, or in what is missing\n");
    }
    match archives_without_end {
        0 => {}
        1 => told += "1 archive has no sound end; how many members it had is not known\n",
        more => {
            let more = count(more);
            told += &format!(
                "{more} archives have no sound end; how many members they had is not known\n"
            );
        }
    }
    told
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
    fn the_sentence_names_how_much_is_wrong_and_where() {
        let bad = |archive, name: Option<&str>| Defect::corrupt(archive, name.map(Key::from), "x");
        let told = |all: &[Defect], archives| {
            let mut list = DefectList::default();
            all.iter().cloned().for_each(|bad| list.add(bad));
            list.sentence(&set(archives), 30, ["is bad", "are bad"])
        };
        let a = bad(1, Some("a"));
        assert_eq!(
            told(std::slice::from_ref(&a), 2),
            "1 of 30 members in 2 archives is bad (1.tar)"
        );
        assert_eq!(
            told(&[bad(0, Some("b")), a.clone()], 2),
            "2 of 30 members in 2 archives are bad (0.tar, 1.tar)"
        );
        assert_eq!(told(&[bad(0, None)], 1), "1 of 1 archive is bad (0.tar)");
        assert_eq!(
            told(&[a, bad(0, None)], 2),
            "1 of 30 members in 2 archives is bad, and 1 thing more (0.tar, 1.tar)"
        );
        let many: Vec<Defect> = (0..5).map(|archive| bad(archive, None)).collect();
        assert_eq!(told(&many, 9), "5 of 9 archives are bad (0.tar, 1.tar, 2.tar, and 2 more)");
    }

    #[test]
    fn what_is_not_kept_is_counted() {
        let mut list = DefectList::default();
        (0..LISTED + 5).for_each(|_| list.add(Defect::corrupt(0, None, "x")));
        assert_eq!((list.total(), list.first(usize::MAX).count()), (LISTED as u64 + 5, LISTED));
        let text = list.as_text(&set(1), 2, "100,000");
        assert_eq!(text.lines().count(), 5);
        assert!(text.ends_with("and 100,003 more (--json lists up to 100,000)\n"), "{text}");
    }
}
