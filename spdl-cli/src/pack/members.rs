//! What is written of a sample: its image, encoded anew or not, its class, and its other fields.

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::datasets::DatasetKind;

use super::recode::Recoder;
use crate::sample_files::{Role, Sample};

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
            let there: Vec<_> = sample.files.iter().map(|file| &*file.field).collect();
            let there = if there.is_empty() { "none at all".to_owned() } else { there.join(", ") };
            let message = format!(
                "none of the fields is known to be an image ({there}); --image-field names it"
            );
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let has_label = sample.files.iter().any(|file| file.role == Role::Label);
        let class = (!has_label && sample.label >= 0).then(|| sample.label.to_string());
        let mut members = Members { files: Vec::new(), encoded: false };
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
                    members.add(name, image.bytes);
                    if let Some(class) = &class {
                        members.add("cls".to_owned(), class.clone().into());
                    }
                }
                // A number below 0 says in tables that there is no class.
                Role::Label if sample.label < 0 && !keeps_names => {}
                Role::Label | Role::Other => members.add(file.name, file.data),
            }
        }
        Ok(members)
    }

    /// A name that is taken gets a number, before what says its type.
    fn add(&mut self, name: String, data: Bytes) {
        let is_taken = |name: &str| self.files.iter().any(|(taken, _)| taken == name);
        let mut unique = name.clone();
        let mut number = 1;
        while is_taken(&unique) {
            number += 1;
            unique = format!("{number}.{name}");
        }
        self.files.push((unique, data));
    }

    /// How many bytes they are.
    pub(crate) fn bytes(&self) -> usize {
        self.files.iter().map(|(_, data)| data.len()).sum()
    }
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
        let mut members = Members { files: Vec::new(), encoded: false };
        for name in ["png", "png", "seg.png", "png"] {
            members.add(name.to_owned(), Bytes::new());
        }
        let names: Vec<_> = members.files.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["png", "2.png", "seg.png", "3.png"]);
        assert_eq!(
            (with_ending("jpeg", "png"), with_ending("a.b.gif", "jpg")),
            ("png".into(), "a.b.jpg".into())
        );
    }
}
