//! Compares which files our decoders and Pillow accept.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::worker::{Outcome, Verdict};

/// Files whose result differs from Pillow's for a valid reason, with the reason.
const EXCEPTIONS: &str = include_str!("../../../spdl-media/tests/agreement_exceptions.tsv");

/// A file that either our decoder or Pillow accepts, but not both.
#[derive(Debug)]
struct Exception {
    file: String,
    format: String,
    ours: String,
    pillows: String,
    /// The class of the file in [`EXCEPTIONS`].
    class: Option<String>,
}

/// Numbers of all files, of files with the same result as Pillow, and of files with a different
/// result that are listed as exceptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    all: u64,
    alike: u64,
    listed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Agreement {
    counts: BTreeMap<String, Count>,
    exceptions: Vec<Exception>,
}

/// For each file: its class, and whether our decoder accepts it.
fn listed(exceptions: &str) -> Result<HashMap<&str, (&str, bool)>> {
    let mut classes = HashMap::new();
    let mut files = HashMap::new();
    for line in exceptions.lines().filter(|line| !line.starts_with('#')) {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["class", name, who @ ("ours" | "pillow"), _] => {
                classes.insert(name, who == "ours");
            }
            ["file", class, path] => {
                let ours = classes.get(class).with_context(|| format!("no class {class}"))?;
                files.insert(path, (class, *ours));
            }
            _ => anyhow::bail!("invalid line in the list of exceptions: {line:?}"),
        }
    }
    Ok(files)
}

/// Compares our results, by path below `folder`, with the tables of Pillow's results in that
/// folder.
///
/// Files that are not in the tables, and formats that we have no decoder for, are not compared.
pub(crate) fn compare(folder: &Path, verdicts: &BTreeMap<&str, &Verdict>) -> Result<Agreement> {
    let read = |name: &str| {
        fs::read_to_string(folder.join(name))
            .with_context(|| format!("--pillow needs {}", folder.join(name).display()))
    };
    compare_tables(&read("MANIFEST.tsv")?, &read("ORACLE_pillow.tsv")?, EXCEPTIONS, verdicts)
}

fn compare_tables(
    manifest: &str,
    oracle: &str,
    exceptions: &str,
    verdicts: &BTreeMap<&str, &Verdict>,
) -> Result<Agreement> {
    let listed = listed(exceptions)?;
    // Pillow's result for each file hash.
    let mut judged = HashMap::new();
    for line in oracle.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        ensure!(fields.len() >= 4, "invalid line in ORACLE_pillow.tsv: {line:?}");
        judged.insert(fields[0], (fields[2] == "ok", fields[3]));
    }
    let mut files = Vec::new();
    for line in manifest.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [corpus, format, _, hash, _, path] = fields[..] else {
            anyhow::bail!("invalid line in MANIFEST.tsv: {line:?}");
        };
        if let Some(&judgement) = judged.get(hash) {
            let file = format!("{corpus}/files/{path}");
            files.push((format, verdicts.get(file.as_str()), judgement, file));
        }
    }
    let known: BTreeSet<&str> =
        files.iter().filter(|file| file.1.is_some()).map(|file| file.0).collect();
    ensure!(!known.is_empty(), "MANIFEST.tsv and ORACLE_pillow.tsv list none of these files");
    let mut agreement = Agreement::default();
    for (format, verdict, (accepted, words), file) in files {
        if !known.contains(format) {
            continue;
        }
        let outcome = verdict.map_or(Outcome::Unsupported, |verdict| verdict.outcome);
        let count = agreement.counts.entry(format.to_owned()).or_default();
        count.all += 1;
        if (outcome == Outcome::Ok) == accepted {
            count.alike += 1;
            continue;
        }
        let class = listed.get(file.as_str()).filter(|(_, ours)| *ours != accepted);
        let class = class.map(|(class, _)| (*class).to_owned());
        count.listed += u64::from(class.is_some());
        let ours = match verdict {
            None => "no decoder recognizes the file".to_owned(),
            Some(_) if outcome == Outcome::Ok => "ok".to_owned(),
            Some(verdict) => format!("{}: {}", outcome.name(), verdict.message),
        };
        let (format, pillows) = (format.to_owned(), words.to_owned());
        agreement.exceptions.push(Exception { file, format, ours, pillows, class });
    }
    Ok(agreement)
}

impl Count {
    /// Percentage of files with the same result as Pillow.
    fn percent(self) -> f64 {
        if self.all == 0 { 100.0 } else { 100.0 * self.alike as f64 / self.all as f64 }
    }

    /// The same percentage without listed exceptions.
    fn percent_of_others(self) -> f64 {
        Count { all: self.all - self.listed, ..self }.percent()
    }
}

impl Agreement {
    fn sum(&self) -> Count {
        self.counts.values().fold(Count::default(), |sum, row| Count {
            all: sum.all + row.all,
            alike: sum.alike + row.alike,
            listed: sum.listed + row.listed,
        })
    }

    pub(crate) fn text(&self) -> String {
        let mut text =
            "\nfiles with the same result as Pillow; in parentheses: without files that rightly differ, \
                        listed in spdl-media/tests/agreement_exceptions.tsv\n"
                .to_owned();
        let rows = self.counts.iter().map(|(format, row)| (format.as_str(), *row));
        for (format, row) in rows.chain([("all", self.sum())]) {
            let Count { all, alike, listed } = row;
            let (share, others) = (row.percent(), row.percent_of_others());
            let _ = writeln!(
                text,
                "{format:<10} {alike:>6} of {all:>6}  {share:5.1} %  ({listed:>3} listed: {others:5.1} %)"
            );
        }
        for Exception { file, format, ours, pillows, class } in &self.exceptions {
            let class = class.as_deref().unwrap_or("not listed");
            let _ = writeln!(
                text,
                "\n{format}: {file}\n  ours:   {ours}\n  Pillow: {pillows}\n  {class}"
            );
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let rows = self.counts.iter().map(|(format, row)| {
            let Count { all, alike, listed } = *row;
            json!({
                "format": format, "files": all, "alike": alike, "listed": listed,
                "percent": row.percent(), "percent_of_others": row.percent_of_others(),
            })
        });
        let exceptions = self.exceptions.iter().map(|it| {
            json!({
                "file": it.file, "format": it.format, "ours": it.ours, "pillow": it.pillows,
                "class": it.class,
            })
        });
        json!({
            "percent": self.sum().percent(),
            "percent_of_others": self.sum().percent_of_others(),
            "formats": rows.collect::<Vec<_>>(),
            "exceptions": exceptions.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_matched_by_hash_and_disagreements_listed_with_both_reasons() {
        let manifest = "corpus\tformat\tbytes\tsha256\tlicence\tpath\n\
            a\tpng\t1\th1\tMIT\tx.png\na\tpng\t1\th2\tMIT\ty.png\na\tpng\t1\th3\tMIT\tz.png\n\
            a\tpng\t1\th4\tMIT\tw.png\na\ttga\t1\th5\tMIT\tv.tga\n";
        let oracle = "sha256\tformat\tresult\tfmt\tsize\tmode\tpixels\n\
            h1\tpng\tok\tPNG\t1x1\tRGB\tp\nh2\tpng\terr\tOSError: broken\t\t\t\n\
            h4\tpng\tok\tPNG\t1x1\tRGB\tp\nh5\ttga\tok\tTGA\t1x1\tRGB\tp\n";
        let verdict = |outcome, message: &str| Verdict {
            decoder: "png".to_owned(),
            outcome,
            request: "decode".to_owned(),
            message: message.to_owned(),
        };
        let (ok, corrupt) = (verdict(Outcome::Ok, ""), verdict(Outcome::Corrupt, "bad"));
        let verdicts =
            [("a/files/x.png", &corrupt), ("a/files/y.png", &ok), ("a/files/z.png", &ok)];
        let exceptions = "# a comment\nclass\tdamaged\tpillow\twhy\nfile\tdamaged\ta/files/x.png\n\
            file\tdamaged\ta/files/y.png\n";
        let compare = |verdicts| compare_tables(manifest, oracle, exceptions, verdicts);
        let verdicts = BTreeMap::from(verdicts);
        let agreement = compare(&verdicts).unwrap();
        let count = Count { all: 3, alike: 0, listed: 1 };
        assert_eq!(
            agreement.sum(),
            count,
            "y is not Pillow's to accept; neither z, which Pillow has not seen, nor the TGA"
        );
        let text = agreement.text();
        assert!(
            text.contains("a/files/x.png\n  ours:   corrupt: bad\n  Pillow: PNG\n  damaged"),
            "{text}"
        );
        assert!(
            text.contains("y.png\n  ours:   ok\n  Pillow: OSError: broken\n  not listed"),
            "{text}"
        );
        assert!(text.contains("w.png\n  ours:   no decoder recognizes the file"), "{text}");
        let agreeing = BTreeMap::from([("a/files/x.png", &ok), ("a/files/y.png", &corrupt)]);
        let agreement = compare(&agreeing).unwrap();
        let count = Count { all: 3, alike: 2, listed: 0 };
        assert_eq!(agreement.counts["png"], count, "still no decoder recognizes w");
        assert!(compare_tables(manifest, oracle, "file\tnone\tx", &agreeing).is_err());
        assert!((agreement.json()["percent"].as_f64().unwrap() - 66.667).abs() < 0.001);
        assert!(compare(&BTreeMap::new()).is_err());
    }
}
