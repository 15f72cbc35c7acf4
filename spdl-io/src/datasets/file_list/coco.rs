//! Annotations in the format of COCO, as a list of images.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use spdl_core::{Error, ErrorKind, Result};

use super::{BoxFields, FileList, FileListOptions, ListFormat, is_relative};
use crate::fetch::Key;

/// The fields with one value per box.
const BOX_FIELDS: BoxFields = &[
    ("boxes", Some("xyxy")),
    ("bbox", Some("xywh")),
    ("classes", None),
    ("category_ids", None),
    ("areas", None),
    ("crowd", None),
    ("annotation_ids", None),
    ("keypoints", None),
];

/// The parts of the document that are read. Segmentations and other members are ignored.
///
/// Format: <https://cocodataset.org/#format-data>.
#[derive(Deserialize)]
pub(crate) struct CocoDocument<'a> {
    #[serde(borrow)]
    images: Vec<Image<'a>>,
    #[serde(borrow, default)]
    annotations: Vec<Annotation<'a>>,
    #[serde(borrow, default)]
    categories: Vec<Category<'a>>,
}

#[derive(Deserialize)]
struct Image<'a> {
    id: i64,
    #[serde(borrow)]
    file_name: Cow<'a, str>,
    width: Option<u32>,
    height: Option<u32>,
}

#[derive(Deserialize)]
struct Annotation<'a> {
    id: Option<i64>,
    image_id: i64,
    category_id: Option<i64>,
    bbox: Option<[f64; 4]>,
    area: Option<f64>,
    #[serde(default)]
    iscrowd: Number,
    keypoints: Option<Vec<f64>>,
    #[serde(borrow)]
    caption: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Category<'a> {
    id: i64,
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// A flag, which some programs write as a Boolean.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Number {
    Integer(i64),
    Boolean(bool),
}

impl Default for Number {
    fn default() -> Self {
        Number::Integer(0)
    }
}

/// A row of the list.
#[derive(Serialize)]
struct Row<'a> {
    path: &'a str,
    image_id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    width: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    height: Option<u32>,
    #[serde(flatten)]
    objects: Option<ImageObjects>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keypoints: Option<Vec<Vec<[f64; 3]>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    captions: Option<Vec<&'a str>>,
}

/// The boxes of an image. All lists have the same length.
#[derive(Default, Serialize)]
struct ImageObjects {
    boxes: Vec<[f64; 4]>,
    bbox: Vec<[f64; 4]>,
    classes: Vec<usize>,
    category_ids: Vec<i64>,
    areas: Vec<f64>,
    crowd: Vec<i64>,
    annotation_ids: Vec<i64>,
}

impl FileList {
    /// Reads annotations in the format of COCO: objects, persons with key points, or captions.
    ///
    /// Each image is a sample with its file and these fields, as far as the annotations have them:
    ///
    /// | field | value |
    /// |---|---|
    /// | `image_id`, `width`, `height` | integers |
    /// | `boxes` | left, top, right, bottom of each box, in pixels |
    /// | `bbox` | left, top, width, height of each box, as stored |
    /// | `classes` | the class of each box: an index in [`classes`](FileList::classes) |
    /// | `category_ids`, `areas`, `crowd`, `annotation_ids` | one number per box, as stored |
    /// | `keypoints` | for each box, x, y and visibility of its points |
    /// | `captions` | a list of texts |
    ///
    /// The classes are the names of the categories, sorted by their numbers. Images without annotations have
    /// empty lists. Segmentations are not read. `images` is the folder of the images.
    ///
    /// ```
    /// use spdl_core::Dataset;
    /// use spdl_io::datasets::FileList;
    /// let text = r#"{
    ///     "images": [{"id": 7, "file_name": "a.jpg", "width": 40, "height": 30}],
    ///     "annotations": [{"id": 1, "image_id": 7, "category_id": 90, "bbox": [1, 2, 3, 4]}],
    ///     "categories": [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}]
    /// }"#;
    /// let list = FileList::from_coco(text.as_bytes(), "val2017")?;
    /// assert_eq!(list.classes(), ["person", "toothbrush"]);
    /// let sample = list.item(0)?;
    /// assert_eq!(sample.key.as_str(), Some("val2017/a.jpg"));
    /// let names: Vec<_> = sample.names().collect();
    /// assert!(names.contains(&"boxes") && names.contains(&"classes"), "{names:?}");
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// - `Corrupt` if the text is not such a document, with the offset; if an annotation names an unknown
    ///   image or category; if two images or two categories have the same number; if a `file_name` is empty.
    /// - `NotFound` if the document contains no images.
    pub fn from_coco(text: &[u8], images: impl Into<Key>) -> Result<Self> {
        CocoDocument::parse(text)?.list(images)
    }
}

impl<'a> CocoDocument<'a> {
    pub(crate) fn parse(text: &'a [u8]) -> Result<Self> {
        let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
        serde_json::from_slice(text).map_err(|error| {
            let lines = text.split_inclusive(|&byte| byte == b'\n');
            let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
            let offset = (before + error.column().saturating_sub(1)).min(text.len());
            let message = format!(
                "not annotations in the format of COCO, an object with the members `images`, `annotations` \
                 and `categories`: {error}"
            );
            Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
        })
    }

    /// The first relative path of an image; `None` if all are absolute paths or addresses.
    pub(crate) fn first_relative_image(&self) -> Option<&str> {
        let mut names = self.images.iter().map(|image| &*image.file_name);
        names.find(|name| !name.is_empty() && is_relative(name.as_bytes()))
    }

    /// The images, which lie in the folder `images`.
    pub(crate) fn list(self, images: impl Into<Key>) -> Result<FileList> {
        let (rows, classes) = rows_of(&self)?;
        drop(self);
        let options = FileListOptions::default().max_bytes(u64::MAX);
        let list = FileList::parse(rows, ListFormat::JsonLines, images, &options)?;
        Ok(FileList { classes, has_image_ids: true, box_fields: BOX_FIELDS, ..list })
    }
}

/// The images as JSON Lines, and the names of the classes.
fn rows_of(document: &CocoDocument<'_>) -> Result<(Vec<u8>, Vec<String>)> {
    let mut categories: Vec<&Category<'_>> = document.categories.iter().collect();
    categories.sort_by_key(|category| category.id);
    let classes: HashMap<i64, usize> =
        categories.iter().enumerate().map(|(index, category)| (category.id, index)).collect();
    if let Some(two) = categories.windows(2).find(|two| two[0].id == two[1].id) {
        return Err(corrupt(format!("two categories have the number {}", two[0].id)));
    }
    let mut of_image: HashMap<i64, Vec<&Annotation<'_>>> = HashMap::new();
    for image in &document.images {
        if image.file_name.is_empty() {
            return Err(corrupt(format!("image {}: `file_name` is empty", image.id)));
        }
        if of_image.insert(image.id, Vec::new()).is_some() {
            return Err(corrupt(format!("two images have the number {}", image.id)));
        }
    }
    for annotation in &document.annotations {
        match of_image.get_mut(&annotation.image_id) {
            Some(annotations) => annotations.push(annotation),
            None => {
                let problem = format!("the image {} does not exist", annotation.image_id);
                return Err(annotation.error(&problem));
            }
        }
    }
    let all = || document.annotations.iter();
    let has_boxes = all().any(|it| it.bbox.is_some()) || !document.categories.is_empty();
    let has_points = all().any(|it| it.keypoints.is_some());
    let has_captions = all().any(|it| it.caption.is_some());
    let mut rows = Vec::new();
    for image in &document.images {
        let annotations = of_image.get(&image.id).map_or(&[][..], Vec::as_slice);
        let captions = annotations.iter().filter_map(|it| it.caption.as_deref());
        let points = || annotations.iter().map(|it| it.points()).collect::<Result<Vec<_>>>();
        let row = Row {
            path: &image.file_name,
            image_id: image.id,
            width: image.width,
            height: image.height,
            objects: has_boxes.then(|| objects(annotations, &classes)).transpose()?,
            keypoints: has_points.then(points).transpose()?,
            captions: has_captions.then(|| captions.collect()),
        };
        serde_json::to_writer(&mut rows, &row)
            .map_err(|error| corrupt(format!("image {}: {error}", image.id)))?;
        rows.push(b'\n');
    }
    let names = categories.iter().map(|category| category.name.clone().into_owned());
    Ok((rows, names.collect()))
}

fn objects(annotations: &[&Annotation<'_>], classes: &HashMap<i64, usize>) -> Result<ImageObjects> {
    let mut objects = ImageObjects::default();
    for annotation in annotations {
        let Some([left, top, width, height]) = annotation.bbox else {
            return Err(annotation.error("`bbox` is missing"));
        };
        let Some(category) = annotation.category_id else {
            return Err(annotation.error("`category_id` is missing"));
        };
        let Some(&class) = classes.get(&category) else {
            return Err(annotation.error(&format!("the category {category} does not exist")));
        };
        objects.boxes.push([left, top, left + width, top + height]);
        objects.bbox.push([left, top, width, height]);
        objects.classes.push(class);
        objects.category_ids.push(category);
        objects.areas.push(annotation.area.unwrap_or(width * height));
        objects.crowd.push(match annotation.iscrowd {
            Number::Integer(number) => number,
            Number::Boolean(is_crowd) => is_crowd.into(),
        });
        objects.annotation_ids.push(annotation.id.unwrap_or(-1));
    }
    Ok(objects)
}

impl Annotation<'_> {
    fn points(&self) -> Result<Vec<[f64; 3]>> {
        let numbers = self.keypoints.as_deref().unwrap_or_default();
        let points = numbers.chunks_exact(3);
        match points.remainder() {
            [] => Ok(points.map(|point| [point[0], point[1], point[2]]).collect()),
            _ => Err(self.error(&format!("{} numbers are not key points", numbers.len()))),
        }
    }

    fn error(&self, problem: &str) -> Error {
        match self.id {
            Some(id) => corrupt(format!("annotation {id}: {problem}")),
            None => corrupt(format!("an annotation of image {}: {problem}", self.image_id)),
        }
    }
}

fn corrupt(message: String) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

#[cfg(test)]
mod tests {
    use spdl_core::Dataset;

    use super::*;
    use crate::records::StoredField;

    fn values(list: &FileList, at: u64) -> Vec<(String, String)> {
        let sample = list.item(at).unwrap();
        let shown = |field: &StoredField| match field {
            StoredField::Known(value) => format!("{value:?}"),
            StoredField::At(extent, _) => extent.to_string(),
        };
        sample.fields.iter().map(|(name, field)| (name.to_string(), shown(field))).collect()
    }

    const OBJECTS: &str = r#"{
        "info": {"year": 2017},
        "images": [
            {"id": 9, "file_name": "b.jpg", "width": 64, "height": 48, "license": 3},
            {"id": 4, "file_name": "sub/a.jpg", "width": 32, "height": 24}
        ],
        "annotations": [
            {"id": 1, "image_id": 4, "category_id": 18, "bbox": [1, 2.5, 3, 4], "area": 7.5, "iscrowd": 1,
             "segmentation": [[1, 2, 3, 4, 5, 6]]},
            {"id": 2, "image_id": 4, "category_id": 3, "bbox": [0, 0, 2, 2], "iscrowd": false}
        ],
        "categories": [{"id": 18, "name": "dog", "supercategory": "animal"}, {"id": 3, "name": "car"}]
    }"#;

    #[test]
    fn coco_objects_are_fields_of_their_image() {
        let list = FileList::from_coco(OBJECTS.as_bytes(), "images").unwrap();
        assert_eq!(list.classes(), ["car", "dog"]);
        let field = |at, name: &str| {
            let found = values(&list, at).into_iter().find(|(it, _)| it == name);
            found.map(|(_, value)| value).unwrap_or_default()
        };
        assert_eq!((list.len(), field(1, "file")), (2, "images/sub/a.jpg".to_owned()));
        assert!(field(1, "bbox").contains("2.5"), "{}", field(1, "bbox"));
        assert!(field(1, "boxes").contains("6.5"), "{}", field(1, "boxes"));
        // The classes are numbered by the order of the categories' numbers.
        let numbers = |text: String| text.chars().filter(char::is_ascii_digit).collect::<String>();
        assert_eq!(numbers(field(1, "classes")), "10");
        assert_eq!(numbers(field(1, "category_ids")), "183");
        assert_eq!(numbers(field(1, "crowd")), "10");
        assert!(field(1, "areas").contains("7.5") && field(1, "areas").contains("4.0"));
        assert_eq!(numbers(field(0, "boxes")), "");
        assert_eq!(numbers(field(0, "image_id")), "9");
        assert_eq!(field(0, "captions"), "");
    }

    #[test]
    fn coco_captions_and_key_points_are_lists() {
        let text = r#"{
            "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
            "annotations": [
                {"id": 1, "image_id": 1, "caption": "a \"dog\""}, {"id": 2, "image_id": 1, "caption": "two"}
            ]
        }"#;
        let list = FileList::from_coco(text.as_bytes(), "").unwrap();
        let names: Vec<_> = values(&list, 0).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["file", "captions", "image_id"]);
        assert!(values(&list, 0)[1].1.contains("two"));
        let text = r#"{"images": [{"id": 1, "file_name": "a.jpg"}], "categories": [{"id": 1, "name": "person"}],
            "annotations": [{"id": 5, "image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9],
                             "keypoints": [1, 2, 2, 3, 4, 0]}]}"#;
        let list = FileList::from_coco(text.as_bytes(), "").unwrap();
        let (_, points) =
            values(&list, 0).into_iter().find(|(name, _)| name == "keypoints").unwrap();
        let digits: String = points.chars().filter(|it| "123456789".contains(*it)).collect();
        assert_eq!(digits, "12234", "{points}");
    }

    #[test]
    fn invalid_annotations_are_errors_that_name_the_annotation() {
        let error = |text: &str| FileList::from_coco(text.as_bytes(), "").unwrap_err();
        let damaged = |from: &str, to: &str| error(&OBJECTS.replacen(from, to, 1)).to_string();
        for (from, to, expected) in [
            (r#""image_id": 4"#, r#""image_id": 5"#, "annotation 1: the image 5 does not exist"),
            (r#""category_id": 3"#, r#""category_id": 4"#, "annotation 2: the category 4 does not"),
            (r#""bbox": [0, 0, 2, 2], "#, "", "annotation 2: `bbox` is missing"),
            (r#""id": 9"#, r#""id": 4"#, "two images have the number 4"),
            (r#""id": 18"#, r#""id": 3"#, "two categories have the number 3"),
            (r#""sub/a.jpg""#, "\"\"", "image 4: `file_name` is empty"),
            (r#""bbox": [0, 0, 2, 2]"#, r#""bbox": [0, 0, 2]"#, "not annotations in the format"),
        ] {
            let found = damaged(from, to);
            assert!(found.contains(expected), "{found}");
        }
        let other = error(r#"{"shards": []}"#);
        assert_eq!(other.kind(), ErrorKind::Corrupt);
        assert_eq!(error("{\"images\": [],\n \"annotations\": 3}").offset(), Some(31));
        assert_eq!(error(r#"{"images": []}"#).kind(), ErrorKind::NotFound);
    }
}
