//! What has changed since a state was saved, in the words of the command line.

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

/// The reason for which a state is refused, in the words of the command line, where it is that
/// something has changed: options instead of parts of the fingerprint, wherever one tells all.
pub(crate) fn in_own_words(reason: &str) -> Option<String> {
    let (_, changes) = reason.split_once("the state is of another pipeline: ")?;
    let (changes, _) = changes.rsplit_once("; where a change is meant")?;
    // Values may have semicolons of their own.
    let mut left: Vec<(String, String)> = Vec::new();
    for piece in changes.split("; ") {
        match (piece.split_once(" was "), left.last_mut()) {
            (Some((part, values)), _) => left.push((part.to_owned(), values.to_owned())),
            (None, Some((_, values))) => values.push_str(&format!("; {piece}")),
            (None, None) => return None,
        }
    }
    let (mut told, mut names, mut explained) = (Vec::new(), Vec::new(), Vec::new());
    // No batch is fuller than the folder: then it need not be the option that has changed.
    let more_images = left.iter().any(|(part, _)| part == "source items");
    for option in &OPTIONS {
        let changed = left.iter().find(|(part, _)| part == option.told_by);
        let Some((was, is)) = changed.and_then(|(_, values)| values.split_once(", is ")) else {
            continue;
        };
        if option.name == "batch" && more_images {
            continue;
        }
        let value = option.value;
        told.push(format!("--{} was {}, is {}", option.name, value(was), value(is)));
        names.push(option.name.to_owned());
        explained.extend(option.parts);
    }
    for (part, values) in left.iter().filter(|(part, _)| !explained.contains(&part.as_str())) {
        told.push(format!("{part} was {values}"));
        names.push(format!("'{part}'"));
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

    fn refused(changes: &str) -> String {
        let tail = "; where a change is meant, allow it with `State::allow_change`";
        in_own_words(&format!("the state is of another pipeline: {changes}{tail}")).unwrap()
    }

    #[test]
    fn options_stand_for_all_that_changes_with_them() {
        let told = refused(
            "source order was Sequential, is Shuffled { seed: 0 }; stage decode: crop was A, is B; \
             stage decode: fields was images uint8 [32, 32, 3]; labels int64 [], is images uint8 \
             [40, 40, 3]; labels int64 []; stage decode: flips was 0 0, is 0.5 0; stage decode: size \
             was 32x32, is 40x40",
        );
        let expected = "it is of another run: --size was 32, is 40; --mode was eval, is train; \
                        where that is meant, go on with --allow-change size --allow-change mode";
        assert_eq!(told, expected);
    }

    #[test]
    fn what_no_option_decides_is_told_as_it_is() {
        let told = refused("source items was 20, is 21; stage decode: batch size was 20, is 21");
        assert!(
            told.contains(": source items was 20, is 21; stage decode: batch size was"),
            "{told}"
        );
        assert!(
            told.ends_with("'source items' --allow-change 'stage decode: batch size'"),
            "{told}"
        );
        assert_eq!(in_own_words("no such file"), None);
    }

    #[test]
    fn a_name_means_all_its_parts() {
        assert_eq!(parts_of("batch"), ["stage decode: batch size"]);
        assert_eq!(parts_of("--seed"), ["seed", "source order"]);
        assert_eq!(parts_of("stage decode"), ["stage decode"]);
    }
}
