//! Whether our decoders accept what Pillow accepts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::worker::{Outcome, Verdict};

/// A file that one of the two accepts and the other refuses.
#[derive(Debug)]
struct Exception {
    file: String,
    format: String,
    ours: String,
    pillows: String,
}

#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// By format: files in all, and those that are judged alike.
    counts: BTreeMap<String, (u64, u64)>,
    exceptions: Vec<Exception>,
}

/// Compares our verdicts, by path below `folder`, with the tables in it. Left out are files that the
/// tables do not know, and formats of which no decoder of ours claims any file.
pub(crate) fn compare(folder: &Path, verdicts: &BTreeMap<&str, &Verdict>) -> Result<Agreement> {
    let read = |name: &str| {
        fs::read_to_string(folder.join(name))
            .with_context(|| format!("--pillow needs {}", folder.join(name).display()))
    };
    compare_tables(&read("MANIFEST.tsv")?, &read("ORACLE_pillow.tsv")?, verdicts)
}

fn compare_tables(
    manifest: &str,
    oracle: &str,
    verdicts: &BTreeMap<&str, &Verdict>,
) -> Result<Agreement> {
    // By hash: what Pillow says.
    let mut judged = HashMap::new();
    for line in oracle.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        ensure!(fields.len() >= 4, "an odd line in ORACLE_pillow.tsv: {line}");
        judged.insert(fields[0], (fields[2] == "ok", fields[3]));
    }
    let mut files = Vec::new();
    for line in manifest.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [corpus, format, _, hash, _, path] = fields[..] else {
            anyhow::bail!("an odd line in MANIFEST.tsv: {line}");
        };
        if let Some(&judgement) = judged.get(hash) {
            let file = format!("{corpus}/files/{path}");
            files.push((format, verdicts.get(file.as_str()), judgement, file));
        }
    }
    let known: BTreeSet<&str> =
        files.iter().filter(|file| file.1.is_some()).map(|file| file.0).collect();
    ensure!(!known.is_empty(), "the tables know none of these files");
    let mut agreement = Agreement::default();
    for (format, verdict, (accepted, words), file) in files {
        if !known.contains(format) {
            continue;
        }
        let outcome = verdict.map_or(Outcome::Unsupported, |verdict| verdict.outcome);
        let (all, alike) = agreement.counts.entry(format.to_owned()).or_default();
        *all += 1;
        if (outcome == Outcome::Ok) == accepted {
            *alike += 1;
            continue;
        }
        let ours = match verdict {
            None => "no decoder claims it".to_owned(),
            Some(_) if outcome == Outcome::Ok => "ok".to_owned(),
            Some(verdict) => format!("{}: {}", outcome.name(), verdict.message),
        };
        let (format, pillows) = (format.to_owned(), words.to_owned());
        agreement.exceptions.push(Exception { file, format, ours, pillows });
    }
    Ok(agreement)
}

fn percent((all, alike): (u64, u64)) -> f64 {
    100.0 * alike as f64 / all.max(1) as f64
}

impl Agreement {
    fn sum(&self) -> (u64, u64) {
        self.counts.values().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1))
    }

    pub(crate) fn text(&self) -> String {
        let mut text = "\nfiles that Pillow judges alike\n".to_owned();
        let rows = self.counts.iter().map(|(format, row)| (format.as_str(), *row));
        for (format, row) in rows.chain([("all", self.sum())]) {
            let (all, alike) = row;
            let _ = writeln!(text, "{format:<10} {alike:>6} of {all:>6}  {:5.1} %", percent(row));
        }
        for Exception { file, format, ours, pillows } in &self.exceptions {
            let _ = writeln!(text, "\n{format}: {file}\n  ours:   {ours}\n  Pillow: {pillows}");
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let rows = self.counts.iter().map(|(format, row)| {
            json!({"format": format, "files": row.0, "alike": row.1, "percent": percent(*row)})
        });
        let exceptions = self.exceptions.iter().map(|it| {
            json!({"file": it.file, "format": it.format, "ours": it.ours, "pillow": it.pillows})
        });
        json!({
            "percent": percent(self.sum()),
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
        let agreement = compare_tables(manifest, oracle, &BTreeMap::from(verdicts)).unwrap();
        assert_eq!(agreement.sum(), (3, 0), "neither z, which Pillow has not seen, nor the TGA");
        let text = agreement.text();
        assert!(text.contains("a/files/x.png\n  ours:   corrupt: bad\n  Pillow: PNG"), "{text}");
        assert!(text.contains("y.png\n  ours:   ok\n  Pillow: OSError: broken"), "{text}");
        assert!(text.contains("w.png\n  ours:   no decoder claims it"), "{text}");
        let agreeing = BTreeMap::from([("a/files/x.png", &ok), ("a/files/y.png", &corrupt)]);
        let agreement = compare_tables(manifest, oracle, &agreeing).unwrap();
        assert_eq!(agreement.counts["png"], (3, 2), "w is still claimed by none");
        assert!((agreement.json()["percent"].as_f64().unwrap() - 66.667).abs() < 0.001);
        assert!(compare_tables(manifest, oracle, &BTreeMap::new()).is_err());
    }
}
