//! Opens COCO annotations, and finds the folder of their images.

use spdl_core::{Error, ErrorKind, Result};

use super::kinds::{Opener, folder_of};
use crate::datasets::FileList;
use crate::datasets::file_list::first_image;
use crate::fetch::Key;
use crate::records::Remedy;

/// The maximum size of annotations, in bytes.
const MAX_BYTES: u64 = 4 << 30;

impl Opener<'_> {
    /// The images of annotations, as a list.
    pub(super) async fn coco_list(&self, key: &Key) -> Result<FileList> {
        let text = self.fetcher.read_whole(key, &MAX_BYTES).await?;
        let of_file = |error: Error| error.with_key(key.display_name());
        let folder = match &self.options.images {
            Some(folder) => Key::from_bytes(folder.as_bytes()),
            None => {
                let first = first_image(&text).map_err(of_file)?.unwrap_or_default();
                self.folder_of_images(key, &first).await?
            }
        };
        FileList::from_coco(&text, folder).map_err(of_file)
    }

    /// The first folder near the annotations that contains `image`.
    async fn folder_of_images(&self, annotations: &Key, image: &str) -> Result<Key> {
        let folder = folder_of(annotations);
        let parent = match folder.as_bytes() {
            [] => None,
            bytes => Some(folder_of(&Key::from_bytes(&bytes[..bytes.len() - 1]))),
        };
        // `instances_val2017.json` has the images of `val2017`.
        let name = &annotations.as_bytes()[folder.as_bytes().len()..];
        let stem = name.split(|&byte| byte == b'.').next().unwrap_or_default();
        let split = stem.rsplit(|&byte| byte == b'_').next().unwrap_or_default();
        let split = String::from_utf8_lossy(split).into_owned();
        let below =
            [String::new(), "images/".to_owned(), format!("{split}/"), format!("images/{split}/")];
        let mut searched = Vec::new();
        for base in [Some(folder), parent].into_iter().flatten() {
            for below in &below {
                let candidate = Key::from_bytes(&[base.as_bytes(), below.as_bytes()].concat());
                let file = Key::from_bytes(&[candidate.as_bytes(), image.as_bytes()].concat());
                match self.fetcher.stat(&file).await {
                    Ok(_) => return Ok(candidate),
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        searched.push(format!("{:?}", candidate.to_string()));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        let message = format!(
            "cannot find the images of these annotations: none of the folders {} contains {image:?}, the first \
             image",
            searched.join(", ")
        );
        let error = Error::new(ErrorKind::NotFound, message).with_source(Remedy::Images);
        Err(error.with_key(annotations.display_name()))
    }
}
