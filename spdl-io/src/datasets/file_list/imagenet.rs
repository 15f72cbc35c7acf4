//! Labels of the validation images of ImageNet (ILSVRC 2012), as a list of images.

use spdl_core::{Error, ErrorKind, Result};

use super::{FileList, FileListOptions, ListFormat, corrupt, csv_row, line, with_line};
use crate::fetch::Key;

/// The start of the names of ImageNet's validation images: `ILSVRC2012_val_00000001.JPEG`.
pub(crate) const VALIDATION_IMAGE: &str = "ILSVRC2012_val_";
/// The endings of the names of files with labels, in lower case.
const LABEL_FILES: [&str; 3] =
    ["loc_val_solution.csv", "validation_synset_labels.txt", "validation_ground_truth.txt"];

/// Whether a file has the name of a file with the labels of ImageNet's validation images.
pub(crate) fn is_validation_labels(file: &Key) -> bool {
    let name = file.as_bytes().to_ascii_lowercase();
    LABEL_FILES.iter().any(|ending| name.ends_with(ending.as_bytes()))
}

impl FileList {
    /// Parses the labels of ImageNet's validation images, which are in the folder `images`:
    /// `ILSVRC2012_val_00000001.JPEG` and so on.
    ///
    /// | file | text |
    /// |---|---|
    /// | `LOC_val_solution.csv` of Kaggle | the header `ImageId,PredictionString`; rows such as `ILSVRC2012_val_00000001,n01751748 111 108 441 193` |
    /// | `imagenet_2012_validation_synset_labels.txt` of TensorFlow | line *n* is the WordNet ID of image *n* |
    ///
    /// The classes are the WordNet IDs, sorted, as in a folder with one folder per class: with all images, a label
    /// is the index that models trained on ImageNet use.
    ///
    /// ```
    /// use spdl_core::Dataset;
    /// use spdl_io::datasets::FileList;
    /// let list = FileList::from_imagenet_labels(b"n01751748\nn01440764\n", "val")?;
    /// let second = list.item(1)?;
    /// assert_eq!(second.key.as_str(), Some("val/ILSVRC2012_val_00000002.JPEG"));
    /// assert_eq!((second.label, &*list.classes()[0]), (0, "n01440764"));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// - `Corrupt` or `Truncated` for invalid CSV, and for a row without a WordNet ID, with the offset.
    /// - `Unsupported` for `ILSVRC2012_validation_ground_truth.txt` of the development kit: its numbers are not indices
    ///   of the sorted WordNet IDs.
    /// - `NotFound` for a text without labels.
    pub fn from_imagenet_labels(text: &[u8], images: impl Into<Key>) -> Result<Self> {
        let rows = rows_of(text).map_err(|error| with_line(error, text))?;
        let options = FileListOptions::default().max_bytes(u64::MAX);
        FileList::parse(rows, ListFormat::Csv, images, &options)
    }

    /// The path of the first row, as written.
    pub(crate) fn first_row_path(&self) -> Option<String> {
        let (row, _) = self.row(&self.text, *self.starts.first()? as usize).ok()?;
        Some(Key::from_bytes(&row.path).as_str()?.to_owned())
    }
}

/// The images and their WordNet IDs as CSV.
fn rows_of(text: &[u8]) -> Result<String> {
    let mut rows = "path,label\n".to_owned();
    let mut start = if text.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
    let is_csv = text[start..].starts_with(b"ImageId,");
    if is_csv {
        start = csv_row(text, start)?.end;
    }
    let mut images = 0;
    while start < text.len() {
        let (content, next) = line(text, start);
        if content.iter().all(u8::is_ascii_whitespace) {
            start = next;
            continue;
        }
        images += 1;
        let (image, words, end) = match is_csv {
            true => {
                let row = csv_row(text, start)?;
                let cell =
                    |at: usize| Some(std::str::from_utf8(row.cells.get(at)?).ok()?.to_owned());
                (cell(0), cell(1), row.end)
            }
            false => {
                let words = std::str::from_utf8(content).ok().map(str::to_owned);
                (Some(format!("{VALIDATION_IMAGE}{images:08}")), words, next)
            }
        };
        let first = words.as_deref().and_then(|words| words.split_whitespace().next());
        let first = first.unwrap_or_default();
        if !is_csv && !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit()) {
            let message = "the numbers of the development kit are not the class indices that models use, and its \
                           file `meta.mat` is not read; open `LOC_val_solution.csv` of Kaggle or \
                           `imagenet_2012_validation_synset_labels.txt`, or move each image to the folder of its class";
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(start as u64));
        }
        let is_name = |name: &&String| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        match (image.as_ref().filter(is_name), is_wordnet_id(first)) {
            (Some(image), true) => rows.push_str(&format!("{image}.JPEG,{first}\n")),
            _ => {
                let message = "expected the name of an image and a WordNet ID, such as n01440764";
                return Err(corrupt(message, start));
            }
        }
        start = end;
    }
    match images {
        0 => Err(Error::new(ErrorKind::NotFound, "the file contains no labels")),
        _ => Ok(rows),
    }
}

/// Whether a word is `n` and eight digits.
fn is_wordnet_id(word: &str) -> bool {
    let digits = word.strip_prefix('n').unwrap_or_default();
    digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit())
}
