//! Names of members of tar shards, in the WebDataset convention, and of files.

use spdl_io::Key;

/// Splits a member name into key and field at the first dot of its last component.
///
/// `None` if the component has no dot, or starts with a dot.
pub(crate) fn key_and_field(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let file = name.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let dot = name[file..].iter().position(|&byte| byte == b'.').filter(|&dot| dot > 0)?;
    Some((&name[..file + dot], &name[file + dot + 1..]))
}

/// The file name extension of a path or URL, without the query.
pub(crate) fn extension_of(file: &Key) -> Option<&str> {
    let bytes = file.as_bytes();
    let path = match bytes.windows(3).any(|part| part == b"://") {
        true => bytes.split(|byte| b"?#".contains(byte)).next()?,
        false => bytes,
    };
    let name = path.rsplit(|&byte| byte == b'/').next()?;
    let dot = name.iter().rposition(|&byte| byte == b'.')?;
    std::str::from_utf8(&name[dot + 1..]).ok().filter(|ending| !ending.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_the_first_dot_of_the_last_component() {
        for (name, divided) in [
            ("a.jpg", Some(("a", "jpg"))),
            ("d.x/a.seg.png", Some(("d.x/a", "seg.png"))),
            ("d/a", None),
            ("d/.hidden", None),
            ("a.", Some(("a", ""))),
        ] {
            let divided = divided.map(|(key, field)| (key.as_bytes(), field.as_bytes()));
            assert_eq!(key_and_field(name.as_bytes()), divided, "{name}");
        }
    }

    #[test]
    fn the_extension_of_a_url_excludes_its_query() {
        for (name, ending) in [
            ("a.b/c.jpg", Some("jpg")),
            ("https://host/c.jpg?as=x.txt", Some("jpg")),
            ("https://host/c?as=x.png#y.png", None),
            ("a?b.png", Some("png")),
            ("a.b/c", None),
            ("a.", None),
        ] {
            assert_eq!(extension_of(&name.into()), ending, "{name}");
        }
    }
}
