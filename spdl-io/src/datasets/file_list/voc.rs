//! Annotations in the format of Pascal VOC, as a list of the images of an image set.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use roxmltree::{Document, Node};
use serde::Serialize;
use spdl_core::{Error, ErrorKind, Result};

use super::{BoxFields, FileList, FileListOptions, ListFormat, corrupt, line, with_line};
use crate::fetch::{Fetcher, Key};
use crate::records::IMAGE_EXTENSIONS;

/// The fields with one value per box.
const BOX_FIELDS: BoxFields = &[
    ("boxes", Some("xyxy")),
    ("bndbox", Some("xyxy")),
    ("classes", None),
    ("names", None),
    ("pose", None),
    ("difficult", None),
    ("truncated", None),
    ("occluded", None),
];

/// The classes of Pascal VOC.
const CLASSES: [&str; 20] = [
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
];
/// The maximum size of an image set, in bytes.
const MAX_SET_BYTES: u64 = 1 << 30;
/// The maximum size of the annotations of one image, in bytes.
const MAX_XML_BYTES: u64 = 16 << 20;
/// The number of annotation files that are read concurrently.
const CONCURRENCY: usize = 64;

/// An image of an image set.
struct SetImage<'a> {
    name: &'a str,
    /// Whether the image has an object of the class of the set (1), has none (−1), or has only difficult ones (0).
    label: Option<i64>,
}

/// The annotations of an image.
#[derive(Default)]
struct VocImage {
    /// The extension of the image file, if the annotations name one.
    extension: Option<String>,
    width: Option<u32>,
    height: Option<u32>,
    has_masks: bool,
    objects: VocObjects,
}

/// The objects of an image. All lists have the same length.
#[derive(Default, Serialize)]
struct VocObjects {
    boxes: Vec<[f64; 4]>,
    bndbox: Vec<[f64; 4]>,
    names: Vec<String>,
    difficult: Vec<i64>,
    truncated: Vec<i64>,
    occluded: Vec<i64>,
    pose: Vec<String>,
}

/// A row of the list.
#[derive(Serialize)]
struct VocRow<'a> {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    width: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    height: Option<u32>,
    classes: Vec<usize>,
    #[serde(flatten)]
    objects: &'a VocObjects,
    mask: Option<String>,
    object_mask: Option<String>,
}

/// The folder of a data set in the layout of Pascal VOC, if `list` is one of its image sets:
/// `FOLDER/ImageSets/Main/train.txt`.
pub(crate) fn folder_of_image_set(list: &Key) -> Option<Key> {
    let mut parts = list.as_bytes().rsplitn(4, |byte| *byte == b'/');
    let (name, subfolder, sets) = (parts.next()?, parts.next()?, parts.next()?);
    let is_set = sets == b"ImageSets" && name.ends_with(b".txt");
    let folder = list.as_bytes().len() - (name.len() + subfolder.len() + sets.len() + 2);
    is_set.then(|| Key::from_bytes(&list.as_bytes()[..folder]))
}

impl FileList {
    /// Reads an image set of a data set in the format of Pascal VOC, and the annotations of its images.
    ///
    /// ```text
    /// VOC2012/ImageSets/Main/train.txt           the image set: names, such as 2008_000002
    /// VOC2012/Annotations/2008_000002.xml
    /// VOC2012/JPEGImages/2008_000002.jpg         or another extension that the annotations name
    /// VOC2012/SegmentationClass/2008_000002.png, SegmentationObject/2008_000002.png
    /// ```
    ///
    /// Each image is a sample with its file and these fields:
    ///
    /// | field | value |
    /// |---|---|
    /// | `width`, `height` | integers, if the annotations have them |
    /// | `bndbox` | xmin, ymin, xmax, ymax of each box, as stored: the first and last column and row, counted from 1 |
    /// | `boxes` | left, top, right, bottom of each box: `xmin − 1`, `ymin − 1`, `xmax`, `ymax` |
    /// | `classes` | the class of each box: an index in [`classes`](FileList::classes) |
    /// | `names`, `pose` | a text per box, as stored |
    /// | `difficult`, `truncated`, `occluded` | 0 or 1 per box |
    /// | `mask`, `object_mask` | the PNG files of the folders `SegmentationClass` and `SegmentationObject`; null if the image has none |
    ///
    /// - The classes are the 20 classes of Pascal VOC; or, if an object has another name, the names of all objects
    ///   of the image set, sorted by their bytes.
    /// - An image of a set in `Segmentation` has masks. Another image has masks if its annotations contain
    ///   `<segmented>1</segmented>`.
    /// - If the lines of the set hold a number, as `Main/cat_train.txt`, the number is the label: 1 if the
    ///   image has an object of the class, −1 if it has none, 0 if it has only difficult ones. The data set
    ///   then has no class names, because its labels are not classes.
    /// - If the annotations of an image are missing or damaged, its sample fails with that error.
    ///
    /// # Errors
    /// - `InvalidArgument` if the key does not have the form `…/ImageSets/SUBFOLDER/NAME.txt`.
    /// - `Corrupt` for an invalid line of the set, with its offset; `NotFound` for an empty set; `Unsupported` for
    ///   the sets of persons in `Layout` and `Action`.
    /// - The errors of the fetcher, and the first error of the samples if the annotations of all images are missing
    ///   or damaged.
    pub async fn fetch_voc(fetcher: &Arc<dyn Fetcher>, set: impl Into<Key>) -> Result<Self> {
        let set = set.into();
        let of_set = |error: Error| error.with_key(set.display_name());
        let Some(folder) = folder_of_image_set(&set) else {
            let message = "not an image set of Pascal VOC: expected `ImageSets/SUBFOLDER/NAME.txt`";
            return Err(of_set(Error::new(ErrorKind::InvalidArgument, message)));
        };
        let subfolder = set.as_bytes().rsplit(|byte| *byte == b'/').nth(1).unwrap_or_default();
        let text = fetcher.read_whole(&set, &MAX_SET_BYTES).await?;
        let images =
            parse_set(&text, subfolder).map_err(|error| of_set(with_line(error, &text)))?;
        let read = images.iter().map(|image| read_annotations(fetcher, &folder, image.name));
        let read: Vec<_> = stream::iter(read).buffered(CONCURRENCY).try_collect().await?;
        if let Some(Err(first)) = read.first()
            && read.iter().all(Result::is_err)
        {
            return Err(first.clone());
        }
        let names = read.iter().flatten().flat_map(|image| &image.objects.names);
        let found: BTreeSet<&str> = names.map(String::as_str).collect();
        let classes: Vec<&str> = match found.iter().all(|name| CLASSES.contains(name)) {
            true => CLASSES.to_vec(),
            false => found.into_iter().collect(),
        };
        let (mut rows, nothing) = (Vec::new(), VocImage::default());
        for (image, read) in images.iter().zip(&read) {
            let found = read.as_ref().unwrap_or(&nothing);
            let has_masks = found.has_masks || subfolder == b"Segmentation";
            let mask = |folder| has_masks.then(|| format!("{folder}/{}.png", image.name));
            let class = |name: &String| classes.binary_search(&&**name).unwrap_or_default();
            let row = VocRow {
                path: image_path(image.name, found.extension.as_deref()),
                label: image.label,
                width: found.width,
                height: found.height,
                classes: found.objects.names.iter().map(class).collect(),
                objects: &found.objects,
                mask: mask("SegmentationClass"),
                object_mask: mask("SegmentationObject"),
            };
            serde_json::to_writer(&mut rows, &row).map_err(|error| {
                of_set(Error::new(ErrorKind::Internal, format!("image {:?}: {error}", image.name)))
            })?;
            rows.push(b'\n');
        }
        let options = FileListOptions::default().max_bytes(u64::MAX);
        let options = options.file_columns(["mask", "object_mask"]);
        let list =
            FileList::parse(rows, ListFormat::JsonLines, folder, &options).map_err(of_set)?;
        let has_labels = images.iter().any(|image| image.label.is_some());
        let classes = if has_labels { Vec::new() } else { classes };
        Ok(FileList {
            classes: classes.into_iter().map(str::to_owned).collect(),
            failures: (0..).zip(read).filter_map(|(row, read)| Some((row, read.err()?))).collect(),
            name: Some(set.display_name()),
            box_fields: BOX_FIELDS,
            ..list
        })
    }
}

/// The path of an image, relative to the folder of the data set.
fn image_path(name: &str, extension: Option<&str>) -> String {
    format!("JPEGImages/{name}.{}", extension.unwrap_or("jpg"))
}

/// Parses an image set. Offsets of errors refer to `text`.
fn parse_set<'a>(text: &'a [u8], subfolder: &[u8]) -> Result<Vec<SetImage<'a>>> {
    let mut images = Vec::new();
    let mut start = if text.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
    while start < text.len() {
        let (content, next) = line(text, start);
        let content = std::str::from_utf8(content)
            .map_err(|error| corrupt("invalid UTF-8", start + error.valid_up_to()))?;
        let mut words = content.split_ascii_whitespace();
        let (name, number, more) = (words.next(), words.next(), words.next());
        let label = match number {
            None => None,
            Some(_) if [&b"Layout"[..], b"Action"].contains(&subfolder) => {
                let message = "image sets of persons (`Layout`, `Action`) are not supported; open a set of \
                               `Main` or `Segmentation`";
                return Err(Error::new(ErrorKind::Unsupported, message).with_offset(start as u64));
            }
            Some(number) => {
                let number = number.parse().ok().filter(|_| more.is_none());
                let message = "expected the name of an image, and optionally a number: 1, 0 or -1";
                Some(number.ok_or_else(|| corrupt(message, start))?)
            }
        };
        images.extend(name.map(|name| SetImage { name, label }));
        start = next;
    }
    match images.is_empty() {
        true => Err(Error::new(ErrorKind::NotFound, "the image set contains no images")),
        false => Ok(images),
    }
}

/// Reads the annotations of an image. The inner error is that of the sample.
async fn read_annotations(
    fetcher: &Arc<dyn Fetcher>,
    folder: &Key,
    name: &str,
) -> Result<Result<VocImage>> {
    let file = format!("Annotations/{name}.xml");
    let file = Key::from_bytes(&[folder.as_bytes(), file.as_bytes()].concat());
    let read = match fetcher.read_whole(&file, &MAX_XML_BYTES).await {
        Ok(text) => parse_annotations(&text),
        Err(error) => Err(error),
    };
    use ErrorKind::{Corrupt, LimitExceeded, NotFound, Truncated, Unsupported};
    match read {
        Ok(image) => Ok(Ok(image)),
        Err(error)
            if matches!(
                error.kind(),
                Corrupt | LimitExceeded | NotFound | Truncated | Unsupported
            ) =>
        {
            let message = format!("cannot read the annotations of {name:?}: {}", error.message());
            let mut of_sample = Error::new(error.kind(), message).with_key(file.display_name());
            if let Some(offset) = error.offset() {
                of_sample = of_sample.with_offset(offset);
            }
            Ok(Err(of_sample.with_cause_of(error)))
        }
        Err(error) => Err(error.with_key(file.display_name())),
    }
}

/// Parses the annotations of an image.
fn parse_annotations(text: &[u8]) -> Result<VocImage> {
    let text = std::str::from_utf8(text)
        .map_err(|error| corrupt("invalid UTF-8", error.valid_up_to()).with_source(error))?;
    let document = Document::parse(text).map_err(|error| of_xml(text, &error))?;
    let root = document.root_element();
    if !root.has_tag_name("annotation") {
        let name = root.tag_name().name();
        let message = format!("expected the element `annotation`, found {name:?}");
        return Err(corrupt(message, root.range().start));
    }
    let mut image = VocImage {
        extension: text_of(root, "filename").and_then(extension_of),
        has_masks: text_of(root, "segmented") == Some("1"),
        ..VocImage::default()
    };
    if let Some(size) = child(root, "size") {
        image.width = number(size, "width")?;
        image.height = number(size, "height")?;
    }
    for object in root.children().filter(|node| node.has_tag_name("object")) {
        let objects = &mut image.objects;
        let name = text_of(object, "name").ok_or_else(|| missing(object, "name"))?;
        let bndbox = child(object, "bndbox").ok_or_else(|| missing(object, "bndbox"))?;
        let mut edges = [0.0_f64; 4];
        for (edge, name) in edges.iter_mut().zip(["xmin", "ymin", "xmax", "ymax"]) {
            *edge = number(bndbox, name)?.ok_or_else(|| missing(bndbox, name))?;
        }
        let [left, top, right, bottom] = edges;
        if !edges.iter().all(|edge| edge.is_finite()) || left > right || top > bottom {
            let message = format!("invalid box of an object {name:?}: {edges:?}");
            return Err(corrupt(message, bndbox.range().start));
        }
        objects.boxes.push([left - 1.0, top - 1.0, right, bottom]);
        objects.bndbox.push(edges);
        objects.names.push(name.to_owned());
        objects.difficult.push(number(object, "difficult")?.unwrap_or(0));
        objects.truncated.push(number(object, "truncated")?.unwrap_or(0));
        objects.occluded.push(number(object, "occluded")?.unwrap_or(0));
        objects.pose.push(text_of(object, "pose").unwrap_or("Unspecified").to_owned());
    }
    Ok(image)
}

/// The extension of an image file.
fn extension_of(file: &str) -> Option<String> {
    let (_, extension) = file.rsplit_once('.')?;
    let is_image = IMAGE_EXTENSIONS.contains(&&*extension.to_ascii_lowercase());
    is_image.then(|| extension.to_owned())
}

fn child<'a, 'b>(node: Node<'a, 'b>, name: &str) -> Option<Node<'a, 'b>> {
    node.children().find(|node| node.has_tag_name(name))
}

fn text_of<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    Some(child(node, name)?.text()?.trim())
}

/// The number in a child of an element; `None` without such a child.
fn number<T: std::str::FromStr>(node: Node<'_, '_>, name: &str) -> Result<Option<T>> {
    let Some(child) = child(node, name) else { return Ok(None) };
    let text = child.text().unwrap_or_default().trim();
    text.parse().map(Some).map_err(|_| {
        corrupt(format!("expected a number in `{name}`, found {text:?}"), child.range().start)
    })
}

fn missing(node: Node<'_, '_>, name: &str) -> Error {
    let parent = node.tag_name().name();
    corrupt(format!("the element `{parent}` has no `{name}`"), node.range().start)
}

/// The error of a document that is not well-formed.
fn of_xml(text: &str, error: &roxmltree::Error) -> Error {
    use roxmltree::Error::{NoRootNode, UnclosedRootNode, UnexpectedEndOfStream};
    let message = format!("not well-formed XML: {error}");
    // Line and column count from 1. Some errors have no position.
    let (row, column) = (error.pos().row as usize, error.pos().col as usize);
    let before: usize = text.split_inclusive('\n').take(row.saturating_sub(1)).map(str::len).sum();
    let in_line = text[before..].chars().take(column.saturating_sub(1)).map(char::len_utf8);
    let offset = before + in_line.sum::<usize>();
    let is_at_end = matches!(error, NoRootNode | UnclosedRootNode | UnexpectedEndOfStream);
    if is_at_end || offset >= text.len() {
        return Error::new(ErrorKind::Truncated, message).with_offset(text.len() as u64);
    }
    corrupt(message, offset)
}
