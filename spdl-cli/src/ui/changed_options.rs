//! What has changed since a state was saved, in the words of the command line.

use spdl_core::Change;

/// An option that decides the batches, as a state's fingerprint shows it.
struct ChangingOption {
    name: &'static str,
    /// The part that tells its value,
    told_by: &'static str,
    /// and all those that change with it.
    parts: &'static [&'static str],
    /// The value on the command line, of that of the part.
    value: fn(&str) -> String,
}

const OPTIONS: [ChangingOption; 6] = [
    ChangingOption {
        name: "batch",
        told_by: "stage decode: batch size",
        parts: &["stage decode: batch size"],
        value: str::to_owned,
    },
    ChangingOption {
        name: "size",
        told_by: "stage decode: size",
        parts: &["stage decode: size", "stage decode: crop", "stage decode: fields"],
        value: |size| size.split('x').next().unwrap_or(size).to_owned(),
    },
    ChangingOption {
        name: "layout",
        told_by: "stage decode: format",
        parts: &[
            "stage decode: format",
            "stage decode: fields",
            "stage decode: mean",
            "stage decode: std",
        ],
        value: str::to_owned,
    },
    ChangingOption {
        name: "mode",
        told_by: "stage decode: flips",
        parts: &["stage decode: flips", "stage decode: crop", "source order"],
        value: |flips| if flips == "0 0" { "eval" } else { "train" }.to_owned(),
    },
    ChangingOption {
        name: "seed",
        told_by: "seed",
        parts: &["seed", "source order"],
        value: str::to_owned,
    },
    ChangingOption {
        name: "on-truncated",
        told_by: "stage decode: truncated",
        parts: &["stage decode: truncated"],
        value: str::to_lowercase,
    },
];

/// The parts of a fingerprint that `--allow-change` means by this name.
pub(crate) fn parts_of(name: &str) -> Vec<String> {
    let bare = name.strip_prefix("--").unwrap_or(name);
    match OPTIONS.iter().find(|option| option.name == bare) {
        Some(option) => option.parts.iter().map(|&part| part.to_owned()).collect(),
        None => vec![name.to_owned()],
    }
}

/// What has changed since a state was saved that is refused, in the words of the command line:
/// options instead of parts of the fingerprint, wherever one tells all. `None` where nothing has.
pub(crate) fn in_own_words(changes: &[Change]) -> Option<String> {
    if changes.is_empty() {
        return None;
    }
    let (mut told, mut names, mut explained) = (Vec::new(), Vec::new(), Vec::new());
    // No batch is fuller than the folder: then it need not be the option that has changed.
    let more_images = changes.iter().any(|change| change.part == "source items");
    for option in &OPTIONS {
        let changed = changes.iter().find(|change| change.part == option.told_by);
        let Some(Change { was: Some(was), is: Some(is), .. }) = changed else { continue };
        if option.name == "batch" && more_images {
            continue;
        }
        let value = option.value;
        told.push(format!("--{} was {}, is {}", option.name, value(was), value(is)));
        names.push(option.name.to_owned());
        explained.extend(option.parts);
    }
    for change in changes.iter().filter(|change| !explained.contains(&change.part.as_str())) {
        told.push(change.to_string());
        names.push(format!("'{}'", change.part));
    }
    let allow: Vec<_> = names.iter().map(|name| format!("--allow-change {name}")).collect();
    Some(format!(
        "it is of another run: {}; where that is meant, go on with {}",
        told.join("; "),
        allow.join(" ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(changes: &[(&str, &str, &str)]) -> String {
        let change = |&(part, was, is): &(&str, &str, &str)| Change {
            part: part.into(),
            was: Some(was.into()),
            is: Some(is.into()),
        };
        in_own_words(&changes.iter().map(change).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn options_stand_for_all_that_changes_with_them() {
        let told = refused(&[
            ("source order", "Sequential", "Shuffled { seed: 0 }"),
            ("stage decode: crop", "A", "B"),
            ("stage decode: fields", "images [32, 32, 3]; labels", "images [40, 40, 3]; labels"),
            ("stage decode: flips", "0 0", "0.5 0"),
            ("stage decode: size", "32x32", "40x40"),
        ]);
        let expected = "it is of another run: --size was 32, is 40; --mode was eval, is train; \
                        where that is meant, go on with --allow-change size --allow-change mode";
        assert_eq!(told, expected);
    }

    #[test]
    fn what_no_option_decides_is_told_as_it_is() {
        let told =
            refused(&[("source items", "20", "21"), ("stage decode: batch size", "20", "21")]);
        let expected = "it is of another run: source items was 20, is 21; stage decode: batch size \
                        was 20, is 21; where that is meant, go on with --allow-change 'source items' \
                        --allow-change 'stage decode: batch size'";
        assert_eq!(told, expected);
        // Also where a value reads like the words around it, or there was none.
        let told = refused(&[("source name", "a was b; c, is d", "e")]);
        assert!(told.contains("source name was a was b; c, is d, is e; where"), "{told}");
        let new = Change { part: "stage decode: size".into(), was: None, is: Some("3x3".into()) };
        let told = in_own_words(&[new]).unwrap();
        assert!(told.contains("stage decode: size was absent, is 3x3; where"), "{told}");
        assert_eq!(in_own_words(&[]), None);
    }

    #[test]
    fn a_name_means_all_its_parts() {
        assert_eq!(parts_of("batch"), ["stage decode: batch size"]);
        assert_eq!(parts_of("--seed"), ["seed", "source order"]);
        assert_eq!(parts_of("stage decode"), ["stage decode"]);
    }
}
