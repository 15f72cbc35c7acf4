//! The members of a sample in the output: image, audio or video, class and other fields.

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::datasets::DatasetKind;

use super::recode::Recoder;
use crate::datasets::extensions::MediaType;
use crate::datasets::sample_files::{Role, Sample};

/// The members of a sample in a shard.
#[derive(Debug)]
pub(crate) struct Members {
    /// The names of the fields, which are unique, and their bytes.
    pub(crate) files: Vec<(String, Bytes)>,
    /// Whether an image was encoded, not copied.
    pub(crate) encoded: bool,
}

impl Members {
    /// Encodes the image if necessary, checks audio and video, and names all fields.
    ///
    /// # Errors
    /// `NotFound` if no field is an image, audio or video; errors of [`Recoder`].
    pub(crate) fn of(sample: Sample, kind: DatasetKind, recoder: &mut Recoder) -> Result<Self> {
        let keeps_names = kind == DatasetKind::TarShards;
        if !sample.files.iter().any(|file| matches!(file.role, Role::Media(_))) {
            let there = sample.files.iter().map(|file| &*file.field);
            return Err(Error::new(ErrorKind::NotFound, no_image(there)));
        }
        let has_label = sample.files.iter().any(|file| file.role == Role::Label);
        let mut class = (!has_label && sample.label >= 0).then(|| sample.label.to_string());
        let mut members = Members { files: Vec::new(), encoded: false };
        let mut named = Vec::new();
        for file in sample.files {
            match file.role {
                Role::Media(MediaType::Image) => {
                    let image = recoder.recode(file.data)?;
                    members.encoded = image.encoded;
                    let name = match keeps_names {
                        true if !image.encoded => file.name,
                        true => with_extension(&file.name, &image.extension),
                        false => image.extension,
                    };
                    named.push((file.role, name, image.bytes));
                    named.extend(class.take().map(in_label));
                }
                Role::Media(_) => {
                    if let Some(media) = MediaType::of_member(file.name.as_bytes(), &file.data) {
                        recoder.check_timed(media, &file.data)?;
                    }
                    named.push((file.role, file.name, file.data));
                    named.extend(class.take().map(in_label));
                }
                // In tables (Parquet, lists), a negative label means "no class".
                Role::Label if sample.label < 0 && !keeps_names => {}
                Role::Label | Role::Other => named.push((file.role, file.name, file.data)),
            }
        }
        members.files = with_unique_names(named);
        Ok(members)
    }

    /// The total size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.files.iter().map(|(_, data)| data.len()).sum()
    }
}

/// The error message for a sample without a known image field.
pub(super) fn no_image<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    let fields = fields.collect::<Vec<_>>();
    let fields = if fields.is_empty() { "none".to_owned() } else { fields.join(", ") };
    format!("cannot determine which field is the image (fields: {fields}); set --image-field")
}

/// The member for the class that the data set has for a sample.
fn in_label(class: String) -> (Role, String, Bytes) {
    (Role::Label, "cls".to_owned(), class.into())
}

/// Returns the files in the same order with unique names: a repeated name gets a number as a
/// prefix, such as `2.png`.
///
/// The image and then the label have priority, so they keep their names.
fn with_unique_names(files: Vec<(Role, String, Bytes)>) -> Vec<(String, Bytes)> {
    let mut taken: Vec<String> = Vec::new();
    let mut named: Vec<(usize, String, Bytes)> = Vec::with_capacity(files.len());
    let rank = |role: Role| match role {
        Role::Media(_) => 0,
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

/// Replaces the extension: `seg.png` becomes `seg.jpg`.
fn with_extension(name: &str, extension: &str) -> String {
    match name.rsplit_once('.') {
        Some((before, _)) => format!("{before}.{extension}"),
        None => extension.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_name_gets_a_number_in_front() {
        let names = |files: &[(Role, &str)]| {
            let file = |&(role, name): &(Role, &str)| (role, name.to_owned(), Bytes::new());
            let named = with_unique_names(files.iter().map(file).collect());
            named.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let other = |name| (Role::Other, name);
        let found = names(&["png", "png", "seg.png", "png"].map(other));
        assert_eq!(found, ["png", "2.png", "seg.png", "3.png"]);
        // Image and label keep their names; the order stays the same.
        let found = names(&[
            other("cls"),
            other("png"),
            (Role::Media(MediaType::Image), "png"),
            other("jpg"),
            (Role::Label, "cls"),
        ]);
        assert_eq!(found, ["2.cls", "2.png", "png", "jpg", "cls"]);
        assert_eq!(
            (with_extension("jpeg", "png"), with_extension("a.b.gif", "jpg")),
            ("png".into(), "a.b.jpg".into())
        );
    }
}
