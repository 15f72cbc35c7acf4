//! Tests of annotations in the format of Pascal VOC, and of labels of ImageNet.

// promise of this file: DATA7

use std::fs;
use std::path::Path;

use spdl_core::{Error, ErrorKind, OnError, block_on};
use spdl_io::datasets::{FileList, OpenOptions, OpenedDataset};
use spdl_io::records::StoredField;
use spdl_io::stores::{Address, StoreFactory};
use spdl_io::{FieldValue, SourceOptions, StoreRegistry};

use super::*;

/// A store that holds given objects.
#[derive(Clone, Debug)]
struct Held(Arc<MemoryFetcher>);

impl StoreFactory for Held {
    fn open(&self, _: &Address, _: &SourceOptions) -> Result<Arc<dyn Fetcher>> {
        Ok(Arc::clone(&self.0) as _)
    }
}

fn open(objects: &Arc<MemoryFetcher>, name: &str) -> Result<OpenedDataset> {
    open_with(objects, name, &OpenOptions::default())
}

fn open_with(
    objects: &Arc<MemoryFetcher>,
    name: &str,
    options: &OpenOptions,
) -> Result<OpenedDataset> {
    let stores = StoreRegistry::new().register("acme", Arc::new(Held(Arc::clone(objects))));
    block_on(OpenedDataset::open_with(&[format!("acme://vault/{name}")], &stores, options))
}

fn object(name: &str, bounds: [&str; 4], difficult: &str) -> String {
    let [left, top, right, bottom] = bounds;
    format!(
        "<object><name>{name}</name><pose>Left</pose><truncated>1</truncated><difficult>{difficult}</difficult>
        <bndbox><xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox>
        <part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>"
    )
}

fn xml(file: &str, segmented: u8, objects: &[String]) -> String {
    format!(
        "<annotation>\n  <folder>VOC2012</folder><filename>{file}</filename>
        <size><width>500</width><height>375</height><depth>3</depth></size>
        <segmented>{segmented}</segmented>{}</annotation>",
        objects.concat()
    )
}

/// A data set of three images.
fn voc() -> Arc<MemoryFetcher> {
    let dog = object("dog", ["1", "2", "500", "375"], "0");
    let person = object("person", ["45.5", "10", "45.5", "10"], "1");
    let objects = Arc::new(MemoryFetcher::new());
    for (name, text) in [
        ("ImageSets/Main/train.txt", "a\nb\n\nc\n".to_owned()),
        ("ImageSets/Main/dog_train.txt", "a  1\r\nb -1\r\nc  0\r\n".to_owned()),
        ("ImageSets/Segmentation/val.txt", "b\n".to_owned()),
        ("ImageSets/Layout/val.txt", "a 1\n".to_owned()),
        ("Annotations/a.xml", xml("a.jpg", 1, &[dog, person])),
        ("Annotations/b.xml", xml("b.png", 0, &[])),
        ("Annotations/c.xml", xml("other", 0, &[object("cat", ["3", "4", "5", "6"], "0")])),
        ("JPEGImages/a.jpg", "picture a".to_owned()),
        ("JPEGImages/b.png", "picture b".to_owned()),
        ("JPEGImages/c.jpg", "picture c".to_owned()),
        ("SegmentationClass/a.png", "mask a".to_owned()),
        ("SegmentationClass/b.png", "mask b".to_owned()),
        ("SegmentationObject/a.png", "instances a".to_owned()),
        ("SegmentationObject/b.png", "instances b".to_owned()),
    ] {
        objects.insert(format!("VOC2012/{name}").as_str(), text);
    }
    objects
}

fn value(record: &Record, name: &str) -> String {
    match record.get(name).unwrap() {
        FieldValue::Json(value) => value.to_string(),
        FieldValue::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        FieldValue::Integer(number) => number.to_string(),
        FieldValue::Null => "null".to_owned(),
        other => panic!("{name}: {other:?}"),
    }
}

fn records(data: &OpenedDataset) -> Vec<Record> {
    read_all(Arc::clone(&data.samples), Arc::clone(&data.fetcher))
}

#[test]
fn an_image_set_of_voc_has_images_boxes_and_masks() {
    let data = open(&voc(), "VOC2012/ImageSets/Main/train.txt").unwrap();
    // Each value per box is a field of the samples.
    let sample = data.samples.item(0).unwrap();
    let has = |name: &str| sample.names().any(|field| field == name);
    assert!(data.box_fields().iter().all(|(name, _)| has(name)), "{sample:?}");
    assert!(data.box_fields().contains(&("bndbox", Some("xyxy"))));
    assert_eq!((data.classes.len(), &*data.classes[11]), (20, "dog"));
    assert!(data.warnings.is_empty());
    let samples = records(&data);
    let expected = [
        ("file", ["picture a", "picture b", "picture c"]),
        ("mask", ["mask a", "null", "null"]),
        ("object_mask", ["instances a", "null", "null"]),
        ("bndbox", ["[[1.0,2.0,500.0,375.0],[45.5,10.0,45.5,10.0]]", "[]", "[[3.0,4.0,5.0,6.0]]"]),
        ("boxes", ["[[0.0,1.0,500.0,375.0],[44.5,9.0,45.5,10.0]]", "[]", "[[2.0,3.0,5.0,6.0]]"]),
        ("classes", ["[11,14]", "[]", "[7]"]),
        ("names", ["[\"dog\",\"person\"]", "[]", "[\"cat\"]"]),
        ("pose", ["[\"Left\",\"Left\"]", "[]", "[\"Left\"]"]),
        ("difficult", ["[0,1]", "[]", "[0]"]),
        ("truncated", ["[1,1]", "[]", "[1]"]),
        ("occluded", ["[0,0]", "[]", "[0]"]),
        ("width", ["500"; 3]),
        ("height", ["375"; 3]),
    ];
    for (name, values) in expected {
        let found: Vec<_> = samples.iter().map(|record| value(record, name)).collect();
        assert_eq!(found, values, "{name}");
    }
    let keys: Vec<_> = samples.iter().map(|it| it.key.as_str().unwrap()).collect();
    let paths =
        ["VOC2012/JPEGImages/a.jpg", "VOC2012/JPEGImages/b.png", "VOC2012/JPEGImages/c.jpg"];
    assert_eq!(keys, paths);
    // Each image of a set for segmentation has masks, whatever its annotations state.
    let data = open(&voc(), "VOC2012/ImageSets/Segmentation/val.txt").unwrap();
    assert_eq!(value(&records(&data)[0], "mask"), "mask b");
}

#[test]
fn the_set_of_a_class_has_labels() {
    let data = open(&voc(), "VOC2012/ImageSets/Main/dog_train.txt").unwrap();
    assert_eq!(records(&data).iter().map(|it| it.label).collect::<Vec<_>>(), [1, -1, 0]);
    assert_eq!(value(&records(&data)[2], "classes"), "[7]");
    assert!(data.classes.is_empty() && data.unlabeled().is_none());
}

#[test]
fn other_names_than_those_of_voc_become_the_classes() {
    let objects = voc();
    let wheel = object("wheel", ["1", "1", "9", "9"], "0");
    objects.insert("VOC2012/Annotations/b.xml", xml("b.png", 0, &[wheel]));
    let data = open(&objects, "VOC2012/ImageSets/Main/train.txt").unwrap();
    assert_eq!(data.classes, ["cat", "dog", "person", "wheel"]);
    assert_eq!(value(&records(&data)[1], "classes"), "[3]");
}

#[test]
fn damaged_annotations_are_errors_of_their_sample() {
    let whole = xml("b.png", 0, &[object("dog", ["1", "2", "30", "40"], "0")]);
    let at = |text: &str| whole.find(text).unwrap() as u64;
    let replaced = |from: &str, to: &str| whole.replacen(from, to, 1);
    use ErrorKind::{Corrupt, NotFound, Truncated};
    for (damaged, kind, offset, words) in [
        (None, NotFound, None, "object not found"),
        (Some(String::new()), Truncated, Some(0), "not well-formed"),
        (
            Some(whole[..whole.len() - 20].to_owned()),
            Truncated,
            Some(whole.len() as u64 - 20),
            "not well-formed",
        ),
        (
            Some(replaced("</object>", "</wrong>")),
            Corrupt,
            Some(at("</object>")),
            "not well-formed",
        ),
        (Some(replaced("annotation", "other")), Corrupt, None, "not well-formed"),
        (
            Some("<kml/>".to_owned()),
            Corrupt,
            Some(0),
            "expected the element `annotation`, found \"kml\"",
        ),
        (
            Some(replaced("<xmax>30", "<xmax>0")),
            Corrupt,
            Some(at("<bndbox>")),
            "invalid box of an object \"dog\"",
        ),
        (Some(replaced("<ymin>2", "<ymin>NaN")), Corrupt, Some(at("<bndbox>")), "invalid box"),
        (
            Some(replaced("<xmax>30", "<xmax>wide")),
            Corrupt,
            Some(at("<xmax>")),
            "expected a number in `xmax`, found \"wide\"",
        ),
        (
            Some(replaced("<xmax>30</xmax>", "")),
            Corrupt,
            Some(at("<bndbox>")),
            "the element `bndbox` has no `xmax`",
        ),
        (
            Some(replaced("<name>dog</name>", "")),
            Corrupt,
            Some(at("<object>")),
            "the element `object` has no `name`",
        ),
        (
            Some(replaced("<width>500", "<width>-1")),
            Corrupt,
            Some(at("<width>")),
            "expected a number in `width`",
        ),
        (
            Some(format!("<!DOCTYPE a [<!ENTITY b \"c\">]>{whole}")),
            Corrupt,
            Some(0),
            "not well-formed",
        ),
    ] {
        let objects = voc();
        match damaged {
            Some(text) => objects.insert("VOC2012/Annotations/b.xml", text),
            None => _ = objects.remove(&"VOC2012/Annotations/b.xml".into()),
        };
        let data = open(&objects, "VOC2012/ImageSets/Main/train.txt").unwrap();
        assert_eq!((data.samples.len(), data.warnings.len()), (3, 1));
        let error = data.samples.item(1).unwrap_err();
        assert_eq!(
            (error.kind(), error.key()),
            (kind, Some("VOC2012/Annotations/b.xml")),
            "{error}"
        );
        assert!(error.message().starts_with("cannot read the annotations of \"b\": "), "{error}");
        assert!(error.message().contains(words), "{words}: {error}");
        assert!(offset.is_none() || error.offset() == offset, "{offset:?}: {error:?}");
        // The sample is skipped and counted.
        let mut pipeline = PipelineBuilder::new(DatasetSource::new(Arc::clone(&data.samples)))
            .on_error(OnError::Skip { at_most: Some(1) })
            .async_stage("fetch", FetchRecord::new(Arc::clone(&data.fetcher)))
            .build()
            .unwrap();
        assert_eq!(pipeline.by_ref().map(Result::unwrap).count(), 2);
        assert_eq!(pipeline.statistics().dropped_total, 1);
    }
    // If no annotations can be read, opening fails.
    let objects = voc();
    for name in ["a", "b", "c"] {
        objects.remove(&format!("VOC2012/Annotations/{name}.xml").as_str().into());
    }
    let error = open(&objects, "VOC2012/ImageSets/Main/train.txt").unwrap_err();
    let key = "acme://vault/VOC2012/Annotations/a.xml";
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some(key)));
}

#[test]
fn the_folder_of_voc_lists_its_image_sets() {
    let check = |error: Error, folder: &str| {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let words = format!("such as {folder}/ImageSets/Main/train.txt;");
        assert!(error.message().contains(&words), "{error}");
        let sets = "found ImageSets/Layout/val.txt, ImageSets/Main/train.txt, ImageSets/Segmentation/val.txt";
        assert!(error.message().ends_with(sets), "{error}");
    };
    let objects = voc();
    for slash in ["", "/"] {
        check(open(&objects, &format!("VOC2012{slash}")).unwrap_err(), "acme://vault/VOC2012");
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["Layout/val", "Main/train", "Main/dog_train", "Segmentation/val"] {
        let path = folder.path().join(format!("ImageSets/{name}.txt"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "a\n").unwrap();
    }
    fs::create_dir(folder.path().join("Annotations")).unwrap();
    let path = folder.path().to_str().unwrap();
    check(block_on(OpenedDataset::open(&[path], &StoreRegistry::new())).unwrap_err(), path);
}

#[test]
fn invalid_image_sets_are_errors() {
    let objects = voc();
    for (set, text, kind, offset, words) in [
        (
            "Main",
            "a\nb one\n",
            ErrorKind::Corrupt,
            Some(2),
            "line 2: expected the name of an image",
        ),
        ("Main", "a 1 2\n", ErrorKind::Corrupt, Some(0), "expected the name of an image"),
        ("Main", "\n\n", ErrorKind::NotFound, None, "contains no images"),
        ("Action", "a 1\n", ErrorKind::Unsupported, Some(0), "sets of persons"),
        ("Layout", "a 1\n", ErrorKind::Unsupported, Some(0), "sets of persons"),
    ] {
        let name = format!("VOC2012/ImageSets/{set}/broken.txt");
        objects.insert(name.as_str(), text);
        let error = open(&objects, &name).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (kind, offset), "{error}");
        assert!(
            error.key().unwrap().ends_with(&name) && error.message().contains(words),
            "{error}"
        );
    }
    let fetcher: Arc<dyn Fetcher> = voc();
    let error = block_on(FileList::fetch_voc(&fetcher, "VOC2012/train.txt")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

const KAGGLE: &str = "ImageId,PredictionString\n\
                      ILSVRC2012_val_00000001,n03995372 85 1 499 272 n03995372 1 2 3 4\n\
                      ILSVRC2012_val_00000002,\"n01751748 111 108 441 193 \"\n\
                      ILSVRC2012_val_00000003,n01440764 1 2 3 4\n";
const SYNSETS: &str = "n03995372\nn01751748\nn01440764\n";

// feature: Q07
#[test]
fn labels_of_imagenet_are_indices_of_the_sorted_wordnet_ids() {
    for (file, text, images) in [
        ("LOC_val_solution.csv", KAGGLE, "ILSVRC/Data/CLS-LOC/val/"),
        ("LOC_val_solution.csv", KAGGLE, "val/"),
        ("imagenet_2012_validation_synset_labels.txt", SYNSETS, ""),
    ] {
        let objects = Arc::new(MemoryFetcher::new());
        objects.insert(format!("set/{file}").as_str(), text);
        for number in 1..=3 {
            let key = format!("set/{images}ILSVRC2012_val_{number:08}.JPEG");
            objects.insert(key.as_str(), format!("picture {number}"));
        }
        let data = open(&objects, &format!("set/{file}")).unwrap();
        assert_eq!(data.classes, ["n01440764", "n01751748", "n03995372"]);
        let found = records(&data);
        assert_eq!(found.iter().map(|it| it.label).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(value(&found[2], "file"), "picture 3");
        assert!(data.unlabeled().is_none());
        // The folder may be given, and is searched otherwise.
        let moved = Arc::new(MemoryFetcher::new());
        moved.insert("labels/LOC_val_solution.csv", KAGGLE);
        let error = open(&moved, "labels/LOC_val_solution.csv").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("ILSVRC2012_val_00000001.JPEG"), "{error}");
        let options = OpenOptions::default().images("photos");
        let data = open_with(&moved, "labels/LOC_val_solution.csv", &options).unwrap();
        let key = data.samples.item(0).unwrap().key;
        assert_eq!(key.as_str(), Some("photos/ILSVRC2012_val_00000001.JPEG"));
    }
}

#[test]
fn invalid_labels_of_imagenet_are_errors_with_their_line() {
    for (text, kind, offset, words) in [
        ("490\n361\n", ErrorKind::Unsupported, Some(0), "development kit"),
        (
            "n01440764\nn0144\n",
            ErrorKind::Corrupt,
            Some(10),
            "line 2: expected the name of an image",
        ),
        ("n01440764\ncat\n", ErrorKind::Corrupt, Some(10), "a WordNet ID"),
        (
            "ImageId,PredictionString\nILSVRC2012_val_00000001,\n",
            ErrorKind::Corrupt,
            Some(25),
            "line 2",
        ),
        (
            "ImageId,PredictionString\nILSVRC2012_val_00000001\n",
            ErrorKind::Corrupt,
            Some(25),
            "line 2",
        ),
        ("ImageId,PredictionString\na b,n01440764\n", ErrorKind::Corrupt, Some(25), "line 2"),
        ("ImageId,PredictionString\n\"a", ErrorKind::Truncated, Some(25), "quotation mark"),
        ("ImageId,PredictionString\n", ErrorKind::NotFound, None, "no labels"),
    ] {
        let error = FileList::from_imagenet_labels(text.as_bytes(), "").unwrap_err();
        assert_eq!((error.kind(), error.offset()), (kind, offset), "{text:?}: {error}");
        assert!(error.message().contains(words), "{error}");
    }
}

// feature: Q07
#[test]
fn a_flat_folder_of_imagenet_has_a_warning_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let warnings = |folder: &Path| {
        let path = folder.to_str().unwrap();
        block_on(OpenedDataset::open(&[path], &StoreRegistry::new())).unwrap().warnings
    };
    fs::write(folder.path().join("other.jpg"), "a picture").unwrap();
    assert!(warnings(folder.path()).is_empty());
    fs::remove_file(folder.path().join("other.jpg")).unwrap();
    fs::write(folder.path().join("ILSVRC2012_val_00000001.JPEG"), "a picture").unwrap();
    let found = warnings(folder.path());
    assert!(found[0].message().contains("LOC_val_solution.csv"), "{found:?}");
    // With folders of classes, there is no warning.
    fs::create_dir(folder.path().join("n01440764")).unwrap();
    let name = "n01440764/ILSVRC2012_val_00000001.JPEG";
    fs::rename(folder.path().join("ILSVRC2012_val_00000001.JPEG"), folder.path().join(name))
        .unwrap();
    assert!(warnings(folder.path()).is_empty());
}

#[test]
fn content_hashes_depend_on_the_annotations() {
    let hash = |objects: &Arc<MemoryFetcher>| {
        open(objects, "VOC2012/ImageSets/Main/train.txt").unwrap().samples.content_hash()
    };
    let (objects, before) = (voc(), hash(&voc()));
    assert_eq!(hash(&objects), before);
    objects.insert("VOC2012/Annotations/b.xml", xml("b.png", 1, &[]));
    assert_ne!(hash(&objects), before);
    let mask = open(&objects, "VOC2012/ImageSets/Main/train.txt").unwrap().samples.item(1).unwrap();
    let mask = mask.fields.into_iter().find(|(name, _)| &**name == "mask").unwrap().1;
    assert!(matches!(mask, StoredField::At(..)));
}
