//! Describes differences between a checkpoint and the current run as options of the command line.

use spdl_core::resume::Change;

/// An option that determines the batches, and its entries in the fingerprint of a checkpoint.
struct FingerprintOption {
    name: &'static str,
    /// The key of the entry that holds the value of the option.
    value_part: &'static str,
    /// The keys of all entries that depend on the option.
    parts: &'static [&'static str],
    /// Converts the entry `value_part` to the value of the option on the command line.
    value: fn(&str) -> String,
}

const OPTIONS: [FingerprintOption; 6] = [
    FingerprintOption {
        name: "batch",
        value_part: "stage decode: batch size",
        parts: &["stage decode: batch size"],
        value: str::to_owned,
    },
    FingerprintOption {
        name: "size",
        value_part: "stage decode: size",
        parts: &["stage decode: size", "stage decode: crop", "stage decode: fields"],
        value: |size| size.split('x').next().unwrap_or(size).to_owned(),
    },
    FingerprintOption {
        name: "layout",
        value_part: "stage decode: format",
        parts: &[
            "stage decode: format",
            "stage decode: fields",
            "stage decode: mean",
            "stage decode: std",
        ],
        value: str::to_owned,
    },
    FingerprintOption {
        name: "mode",
        value_part: "stage decode: flips",
        parts: &["stage decode: flips", "stage decode: crop", "source order"],
        value: |flips| if flips == "0 0" { "eval" } else { "train" }.to_owned(),
    },
    FingerprintOption {
        name: "seed",
        value_part: "seed",
        parts: &["seed", "source order"],
        value: str::to_owned,
    },
    FingerprintOption {
        name: "on-truncated",
        value_part: "stage decode: truncated",
        parts: &["stage decode: truncated"],
        value: str::to_lowercase,
    },
];

/// The keys of the fingerprint entries whose change `--allow-change NAME` accepts.
pub(crate) fn parts_of(name: &str) -> Vec<String> {
    let bare = name.strip_prefix("--").unwrap_or(name);
    match OPTIONS.iter().find(|option| option.name == bare) {
        Some(option) => option.parts.iter().map(|&part| part.to_owned()).collect(),
        None => vec![name.to_owned()],
    }
}

/// Describes which changes prevent a resume, and which options caused them; `None` if nothing
/// changed.
///
/// If entries depend on an option, the message names the option instead of the entries.
pub(crate) fn describe(changes: &[Change]) -> Option<String> {
    if changes.is_empty() {
        return None;
    }
    let (mut values, mut names, mut explained) = (Vec::new(), Vec::new(), Vec::new());
    // The number of images limits the batch size, so the batch size can change although `--batch`
    // did not.
    let more_images = changes.iter().any(|change| change.part == "source items");
    for option in &OPTIONS {
        let changed = changes.iter().find(|change| change.part == option.value_part);
        let Some(Change { was: Some(was), is: Some(is), .. }) = changed else { continue };
        if option.name == "batch" && more_images {
            continue;
        }
        let value = option.value;
        values.push(format!("--{} was {}, is {}", option.name, value(was), value(is)));
        names.push(option.name.to_owned());
        explained.extend(option.parts);
    }
    for change in changes.iter().filter(|change| !explained.contains(&change.part.as_str())) {
        values.push(change.to_string());
        names.push(format!("'{}'", change.part));
    }
    let allow: Vec<_> = names.iter().map(|name| format!("--allow-change {name}")).collect();
    Some(format!(
        "the checkpoint is of a different run: {}; to resume anyway, add {}",
        values.join("; "),
        allow.join(" ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe_all(changes: &[(&str, &str, &str)]) -> String {
        let change = |&(part, was, is): &(&str, &str, &str)| Change {
            part: part.into(),
            was: Some(was.into()),
            is: Some(is.into()),
        };
        describe(&changes.iter().map(change).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn an_option_replaces_the_entries_that_depend_on_it() {
        let text = describe_all(&[
            ("source order", "Sequential", "Shuffled { seed: 0 }"),
            ("stage decode: crop", "A", "B"),
            ("stage decode: fields", "images [32, 32, 3]; labels", "images [40, 40, 3]; labels"),
            ("stage decode: flips", "0 0", "0.5 0"),
            ("stage decode: size", "32x32", "40x40"),
        ]);
        let expected = "the checkpoint is of a different run: --size was 32, is 40; --mode was eval, is \
                        train; to resume anyway, add --allow-change size --allow-change mode";
        assert_eq!(text, expected);
    }

    #[test]
    fn entries_that_no_option_determines_keep_their_names() {
        let text =
            describe_all(&[("source items", "20", "21"), ("stage decode: batch size", "20", "21")]);
        let expected = "the checkpoint is of a different run: source items was 20, is 21; stage decode: \
                        batch size was 20, is 21; to resume anyway, add --allow-change 'source items' \
                        --allow-change 'stage decode: batch size'";
        assert_eq!(text, expected);
        // Values that look like the surrounding text, and entries that have no old value.
        let text = describe_all(&[("source name", "a was b; c, is d", "e")]);
        assert!(text.contains("source name was a was b; c, is d, is e; to"), "{text}");
        let new = Change { part: "stage decode: size".into(), was: None, is: Some("3x3".into()) };
        let text = describe(&[new]).unwrap();
        assert!(text.contains("stage decode: size was absent, is 3x3; to"), "{text}");
        assert_eq!(describe(&[]), None);
    }

    #[test]
    fn an_option_name_accepts_all_its_entries() {
        assert_eq!(parts_of("batch"), ["stage decode: batch size"]);
        assert_eq!(parts_of("--seed"), ["seed", "source order"]);
        assert_eq!(parts_of("stage decode"), ["stage decode"]);
    }
}
