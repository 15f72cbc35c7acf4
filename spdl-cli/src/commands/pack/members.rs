//! What is written of a sample: its image, encoded anew or not, its class, and its other fields.

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::datasets::DatasetKind;

use super::recode::Recoder;
use crate::datasets::sample_files::{Role, Sample};

/// The members of a sample in a shard.
#[derive(Debug)]
pub(crate) struct Members {
    /// The names of the fields, none of them twice, and their bytes.
    pub(crate) files: Vec<(String, Bytes)>,
    /// Whether the image was encoded anew.
    pub(crate) encoded: bool,
}

impl Members {
    /// # Errors
    /// `NotFound` where none of the fields is an image; as [`Recoder::recode`].
    pub(crate) fn of(sample: Sample, kind: DatasetKind, recoder: &mut Recoder) -> Result<Self> {
        let keeps_names = kind == DatasetKind::TarShards;
        if !sample.files.iter().any(|file| file.role == Role::Image) {
            let there = sample.files.iter().map(|file| &*file.field);
            return Err(Error::new(ErrorKind::NotFound, no_image(there)));
        }
        let has_label = sample.files.iter().any(|file| file.role == Role::Label);
        let class = (!has_label && sample.label >= 0).then(|| sample.label.to_string());
        let mut members = Members { files: Vec::new(), encoded: false };
        // Image and label have their names before others, wherever they come.
        let mut named = Vec::new();
        for file in sample.files {
            match file.role {
                Role::Image => {
                    let image = recoder.recode(file.data)?;
                    members.encoded = image.encoded;
                    let name = match keeps_names {
                        true if !image.encoded => file.name,
                        true => with_ending(&file.name, &image.ending),
                        false => image.ending,
                    };
                    named.push((Role::Image, name, image.bytes));
                    if let Some(class) = &class {
                        named.push((Role::Label, "cls".to_owned(), class.clone().into()));
                    }
                }
                // A number below 0 says in tables that there is no class.
                Role::Label if sample.label < 0 && !keeps_names => {}
                Role::Label | Role::Other => named.push((file.role, file.name, file.data)),
            }
        }
        members.files = with_own_names(named);
        Ok(members)
    }

    /// How many bytes they are.
    pub(crate) fn bytes(&self) -> usize {
        self.files.iter().map(|(_, data)| data.len()).sum()
    }
}

/// That none of these fields is an image, as far as anybody knows.
pub(super) fn no_image<'a>(there: impl Iterator<Item = &'a str>) -> String {
    let there = there.collect::<Vec<_>>();
    let there = if there.is_empty() { "none at all".to_owned() } else { there.join(", ") };
    format!("none of the fields is known to be an image ({there}); --image-field names it")
}

/// Files in the order in which they come, each with a name of its own: that of the image is as it is, then
/// that of the label. Another that is taken gets a number, before what says its type.
fn with_own_names(files: Vec<(Role, String, Bytes)>) -> Vec<(String, Bytes)> {
    let mut taken: Vec<String> = Vec::new();
    let mut named: Vec<(usize, String, Bytes)> = Vec::with_capacity(files.len());
    let rank = |role: Role| match role {
        Role::Image => 0,
        Role::Label => 1,
        Role::Other => 2,
    };
    let mut files: Vec<_> = files.into_iter().enumerate().collect();
    files.sort_by_key(|(_, (role, ..))| rank(*role));
    for (place, (_, name, data)) in files {
        let mut unique = name.clone();
        let mut number = 1;
        while taken.contains(&unique) {
            number += 1;
            unique = format!("{number}.{name}");
        }
        taken.push(unique.clone());
        named.push((place, unique, data));
    }
    named.sort_by_key(|(place, ..)| *place);
    named.into_iter().map(|(_, name, data)| (name, data)).collect()
}

/// `seg.png` as `seg.jpg`.
fn with_ending(name: &str, ending: &str) -> String {
    match name.rsplit_once('.') {
        Some((before, _)) => format!("{before}.{ending}"),
        None => ending.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_keeps_what_says_its_type() {
        let names = |files: &[(Role, &str)]| {
            let file = |&(role, name): &(Role, &str)| (role, name.to_owned(), Bytes::new());
            let named = with_own_names(files.iter().map(file).collect());
            named.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let other = |name| (Role::Other, name);
        let found = names(&["png", "png", "seg.png", "png"].map(other));
        assert_eq!(found, ["png", "2.png", "seg.png", "3.png"]);
        // The image and the label come first to their names, and stay where they are.
        let found = names(&[
            other("cls"),
            other("png"),
            (Role::Image, "png"),
            other("jpg"),
            (Role::Label, "cls"),
        ]);
        assert_eq!(found, ["2.cls", "2.png", "png", "jpg", "cls"]);
        assert_eq!(
            (with_ending("jpeg", "png"), with_ending("a.b.gif", "jpg")),
            ("png".into(), "a.b.jpg".into())
        );
    }
}
