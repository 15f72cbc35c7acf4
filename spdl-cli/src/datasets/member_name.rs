//! Names of members of tar shards, in the WebDataset convention.

use super::extensions::image_extensions;

/// Splits a member name into key and field at the first dot of its last component.
///
/// `None` if the component has no dot, or starts with a dot.
pub(crate) fn key_and_field(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let file = name.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let dot = name[file..].iter().position(|&byte| byte == b'.').filter(|&dot| dot > 0)?;
    Some((&name[..file + dot], &name[file + dot + 1..]))
}

/// Whether a member is an image, by its name.
pub(crate) fn is_image(name: &[u8]) -> bool {
    let ending = name.rsplit(|&byte| byte == b'.').next().unwrap_or_default();
    image_extensions().any(|known| ending.eq_ignore_ascii_case(known.as_bytes()))
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
        assert!(is_image(b"a/b.seg.PNG") && !is_image(b"a/png") && !is_image(b"a.cls"));
    }
}
