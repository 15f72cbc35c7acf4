//! Opens COCO annotations and the labels of ImageNet, and finds the folder of their images.

use std::path::Path;

use spdl_core::{Error, ErrorKind, Result};

use super::OpenOptions;
use super::kinds::{Opener, folder_of, is_json};
use crate::datasets::FileList;
use crate::datasets::file_list::{CocoDocument, is_validation_labels};
use crate::fetch::Key;
use crate::records::Remedy;
use crate::stores::Address;

/// The maximum size of annotations, in bytes.
const MAX_BYTES: u64 = 4 << 30;

impl Opener<'_> {
    /// The images of annotations, as a list.
    pub(super) async fn coco_list(&self, key: &Key) -> Result<FileList> {
        let text = self.fetcher.read_whole(key, &MAX_BYTES).await?;
        let of_file = |error: Error| error.with_key(key.display_name());
        let document = CocoDocument::parse(&text).map_err(of_file)?;
        let folder = match &self.options.images {
            Some(folder) => self.key_of_folder(folder)?,
            None => match document.first_relative_image() {
                Some(first) => self.folder_of_images(key, first, &below_coco(key)).await?,
                None => folder_of(key),
            },
        };
        document.list(folder).map_err(of_file)
    }

    /// The validation images of ImageNet, as a list.
    pub(super) async fn imagenet_list(&self, key: &Key) -> Result<FileList> {
        let text = self.fetcher.read_whole(key, &MAX_BYTES).await?;
        let of_file = |error: Error| error.with_key(key.display_name());
        let list = |folder: Key| FileList::from_imagenet_labels(&text, folder).map_err(of_file);
        let folder = match &self.options.images {
            Some(folder) => self.key_of_folder(folder)?,
            None => {
                let first = list(Key::from(""))?.first_row_path().unwrap_or_default();
                let below = [
                    "",
                    "val/",
                    "ILSVRC2012_img_val/",
                    "Data/CLS-LOC/val/",
                    "ILSVRC/Data/CLS-LOC/val/",
                ];
                self.folder_of_images(key, &first, &below.map(str::to_owned)).await?
            }
        };
        list(folder)
    }

    /// The key of the folder of [`OpenOptions::images`].
    fn key_of_folder(&self, folder: &str) -> Result<Key> {
        if !folder.contains("://") {
            if self.is_local && !Path::new(folder).is_dir() {
                let message = "the folder of the images does not exist, or is not a folder";
                let error = Error::new(ErrorKind::NotFound, message).with_source(Remedy::Images);
                return Err(error.with_key(folder));
            }
            return Ok(Key::from_bytes(folder.as_bytes()));
        }
        let address = Address::parse(folder)?;
        let store = (address.scheme() != "file").then(|| address.store());
        if store.as_deref() == self.store && address.query().is_none() {
            return Ok(address.key().clone());
        }
        let message = "the folder of the images must be in the store of the annotations, and its address must \
                       not have a query; for other stores, let `file_name` be the address of each image";
        Err(Error::new(ErrorKind::InvalidArgument, message).with_key(address.to_string()))
    }

    /// The first folder near the annotations that contains `image`: one of the folders `below` the folder of the
    /// annotations, or below its parent.
    async fn folder_of_images(
        &self,
        annotations: &Key,
        image: &str,
        below: &[String],
    ) -> Result<Key> {
        let folder = folder_of(annotations);
        let parent = match folder.as_bytes() {
            [] => None,
            bytes => Some(folder_of(&Key::from_bytes(&bytes[..bytes.len() - 1]))),
        };
        let mut searched = Vec::new();
        for base in [Some(folder), parent].into_iter().flatten() {
            for below in below {
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
            "cannot find the images of these annotations: none of the folders {} contains {:?}, the first \
             image",
            searched.join(", "),
            Key::from(image).display_name()
        );
        let error = Error::new(ErrorKind::NotFound, message).with_source(Remedy::Images);
        Err(error.with_key(annotations.display_name()))
    }
}

/// The folders in which the images of COCO annotations are searched.
fn below_coco(annotations: &Key) -> [String; 4] {
    // `instances_val2017.json` has the images of `val2017`.
    let name = &annotations.as_bytes()[folder_of(annotations).as_bytes().len()..];
    let stem = name.split(|&byte| byte == b'.').next().unwrap_or_default();
    let split = stem.rsplit(|&byte| byte == b'_').next().unwrap_or_default();
    let split = String::from_utf8_lossy(split);
    [String::new(), "images/".to_owned(), format!("{split}/"), format!("images/{split}/")]
}

/// Whether the folder of the images may be set for a data set.
pub(super) fn has_image_folder(key: &Key) -> bool {
    is_json(key) || is_validation_labels(key)
}

impl OpenOptions {
    /// # Errors
    /// `InvalidArgument` if the folder of images is set, although the data set has no such folder.
    pub(super) fn check_no_images(&self) -> Result<()> {
        match self.images {
            None => Ok(()),
            Some(_) => {
                let message = "the folder of the images can be set only for COCO annotations, whose \
                               file name ends with .json, and for labels of ImageNet";
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
        }
    }
}
