//! Tests how members are grouped into samples, as by `webdataset`.

// promise of this file: DATA7

use std::sync::Arc;

use proptest::prelude::*;
use spdl_core::{Dataset, ErrorKind, block_on};
use spdl_io::datasets::{WebDataset, WebDatasetOptions};
use spdl_io::{Fetcher, MemoryFetcher};

use crate::archive;

/// The name and the field names of each sample, or its error.
type Samples = Vec<(String, Result<Vec<String>, ErrorKind>)>;

fn samples_of(shard: Vec<u8>) -> Samples {
    let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter([("s.tar", shard)]));
    let options = WebDatasetOptions::default();
    let samples = block_on(WebDataset::fetch(&fetcher, "s.tar", &options)).unwrap();
    (0..samples.len())
        .map(|index| match samples.item(index) {
            Ok(record) => {
                let name = record.key.as_str().unwrap().strip_prefix("s.tar:").unwrap().to_owned();
                (name, Ok(record.names().map(str::to_owned).collect()))
            }
            Err(error) => (error.key().unwrap().to_owned(), Err(error.kind())),
        })
        .collect()
}

/// A reference implementation of the grouping.
fn expected(names: &[String]) -> Samples {
    let mut samples: Vec<(String, Vec<String>)> = Vec::new();
    for name in names {
        let (folder, base) = name.rsplit_once('/').unwrap_or(("", name));
        let Some((stem, extension)) = base.split_once('.') else { continue };
        if stem.is_empty() {
            continue;
        }
        let slash = if name.contains('/') { "/" } else { "" };
        let stem = format!("{folder}{slash}{stem}");
        if samples.last().is_none_or(|(last, _)| *last != stem) {
            samples.push((stem, Vec::new()));
        }
        samples.last_mut().unwrap().1.push(extension.to_lowercase());
    }
    let of = |(name, fields): (String, Vec<String>)| {
        let twice = (0..fields.len()).find(|&at| fields[..at].contains(&fields[at]));
        match twice {
            Some(at) => (format!("s.tar:{name}.{}", fields[at]), Err(ErrorKind::Corrupt)),
            None => (name, Ok(fields)),
        }
    };
    samples.into_iter().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn consecutive_members_with_one_name_are_a_sample(
        names in proptest::collection::vec("([ab]/)?[12]?(\\.(jpg|JPG|cls|a\\.txt|))?", 0..20)
    ) {
        let names: Vec<String> =
            names.into_iter().filter(|it| !it.is_empty() && !it.ends_with('/')).collect();
        let shard = archive(names.iter().map(|name| (&name[..], &b"x"[..])));
        prop_assert_eq!(samples_of(shard), expected(&names));
    }
}

#[test]
fn a_duplicate_field_fails_only_its_sample() {
    let files = ["1.jpg", "2.jpg", "2.cls", "2.JPG", "2.txt", "3.jpg"].map(|it| (it, &b"x"[..]));
    let samples = samples_of(archive(files));
    assert_eq!(samples.len(), 3);
    assert_eq!(samples[1], ("s.tar:2.jpg".into(), Err(ErrorKind::Corrupt)));
    assert_eq!(samples[2], ("3".into(), Ok(vec!["jpg".into()])));
}

#[test]
fn archive_metadata_and_hidden_files_are_ignored() {
    let files = ["__a__.jpg", "__b__/1.jpg", "1.jpg", "a/__c__.cls", "._1.jpg", "a/.2.jpg"];
    let samples = samples_of(archive(files.map(|it| (it, &b"x"[..]))));
    let names: Vec<_> = samples.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["__a__", "1", "a/__c__"]);
}

#[test]
fn a_hard_link_is_a_field_with_the_data_of_its_target() {
    let mut tar = tar::Builder::new(archive([("1.jpg", &b"same"[..])])[..1024].to_vec());
    let bytes = {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Link);
        header.set_size(0);
        tar.append_link(&mut header, "2.jpg", "1.jpg").unwrap();
        header.set_entry_type(tar::EntryType::Link);
        tar.append_link(&mut header, "3.jpg", "nowhere.jpg").unwrap();
        tar.into_inner().unwrap()
    };
    let [_, linked, lost] = &samples_of(bytes.clone())[..] else { panic!("three samples") };
    assert_eq!(linked.1, Ok(vec!["jpg".into()]));
    assert_eq!(*lost, ("s.tar:3.jpg".into(), Err(ErrorKind::NotFound)));
}
