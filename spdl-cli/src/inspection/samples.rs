//! The samples of a data set that is not opened as tar archives.

use std::sync::Arc;

use spdl_core::{
    AsyncContext, AsyncStage, Dataset, DatasetSource, Pipeline, PipelineBuilder, Result,
    async_trait,
};
use spdl_io::datasets::DatasetKind;
use spdl_io::records::StoredField;
use spdl_io::{Key, StoredRecord};

use super::defect::Defect;
use super::scan_item::{Member, ScanItem};
use crate::datasets::extensions::MediaType;
use crate::datasets::input::InputDataset;
use crate::datasets::member_name::extension_of;
use crate::datasets::sample_files::{Role, Sample, SampleFile, SampleReader, are_files};

/// A data set that is inspected sample by sample.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(crate) opened: InputDataset,
}

impl Samples {
    pub(crate) fn len(&self) -> u64 {
        self.opened.set.samples.len()
    }

    pub(crate) fn classes(&self) -> &[String] {
        &self.opened.set.classes
    }

    /// The noun for one sample, and its plural, in messages.
    pub(crate) fn noun(&self) -> [&'static str; 2] {
        let is_image = |record: StoredRecord| {
            let ending = extension_of(&record.key)?;
            Some(MediaType::of_name(ending.as_bytes())? == MediaType::Image)
        };
        match self.opened.set.kind {
            DatasetKind::ImageFolder if self.record(0).ok().and_then(is_image) == Some(true) => {
                ["image", "images"]
            }
            DatasetKind::ImageFolder => ["file", "files"],
            _ => ["sample", "samples"],
        }
    }

    /// Whether each sample has a separate file.
    pub(crate) fn are_files(&self) -> bool {
        are_files(self.opened.set.kind)
    }

    /// The record of a sample; reads no data.
    pub(crate) fn record(&self, number: u64) -> Result<StoredRecord> {
        self.opened.set.samples.item(number)
    }

    /// The file or object that contains this and other samples; `None` if each sample is a file.
    pub(crate) fn shard_of<'a>(&self, record: &'a StoredRecord) -> Option<&'a Key> {
        if self.are_files() {
            return None;
        }
        let of_field = record.fields.iter().find_map(|(_, field)| match field {
            StoredField::At(extent, _) => Some(&extent.object),
            _ => None,
        });
        of_field.or_else(|| record.row.as_ref()?.group.object())
    }

    /// The key of a sample within its tar or zip archive; for other samples, the whole key.
    pub(crate) fn short_name<'a>(&self, record: &'a StoredRecord) -> &'a [u8] {
        let key = record.key.as_bytes();
        let is_archive =
            matches!(self.opened.set.kind, DatasetKind::TarShards | DatasetKind::ZipShards);
        let shard = self.shard_of(record).filter(|_| is_archive);
        let name = shard.and_then(|shard| key.strip_prefix(shard.as_bytes())?.strip_prefix(b":"));
        name.unwrap_or(key)
    }

    /// Reads a field of a sample as files: one file for most values, no file for a null.
    pub(crate) fn field(&self, record: StoredRecord, field: &str) -> Result<Vec<SampleFile>> {
        let reader = SampleReader::new(&self.opened.set).with_only(field);
        let key = record.key.clone();
        let mut read = self
            .opened
            .with_runtime(PipelineBuilder::from_iter([record]))?
            .async_stage("read", ReadRecord(reader))
            .build()?;
        match read.next().transpose()? {
            Some((_, sample)) => {
                let files = sample.map_err(|error| error.with_key(key.display_name()))?.files;
                Ok(files.into_iter().filter(|file| &*file.field == field).collect())
            }
            None => Ok(Vec::new()),
        }
    }

    /// Reads all samples in order.
    pub(crate) fn scan(&self) -> Result<impl Iterator<Item = ScanItem> + Send + use<>> {
        let kind = self.opened.set.kind;
        let source = DatasetSource::new(RecordsWithErrors(Arc::clone(&self.opened.set.samples)));
        let read: Pipeline<_> = self
            .opened
            .with_runtime(PipelineBuilder::new(source))?
            .async_stage(
                self.opened.stage("read"),
                ReadItem(ReadRecord(SampleReader::new(&self.opened.set))),
            )
            .measured_by(|(_, sample)| sample.as_ref().map_or(0, Sample::bytes))
            .deterministic()
            .build()?;
        Ok(read.flat_map(move |read| match read {
            Ok((key, Ok(sample))) => {
                let members = members(kind, &key, sample);
                std::iter::once(ScanItem::Sample).chain(members).collect()
            }
            Ok((key, Err(error))) => {
                vec![ScanItem::Sample, ScanItem::Defect(Defect::new(0, Some(key), &error))]
            }
            Err(error) => vec![ScanItem::Defect(Defect::new(0, None, &error))],
        }))
    }
}

/// Converts the fields of a sample to scan items.
fn members(kind: DatasetKind, key: &Key, sample: Sample) -> Vec<ScanItem> {
    let mut label = Some(sample.label).filter(|label| *label >= 0);
    let member = |file: SampleFile| {
        // If the sample is a file, the item has the name of the file.
        let is_file = are_files(kind) && matches!(file.role, Role::Media(_));
        let (name, field) = match is_file {
            true => {
                let field = extension_of(key).map_or_else(|| file.field.to_string(), str::to_owned);
                (key.clone(), field)
            }
            false => {
                let name = [key.as_bytes(), b".", file.field.as_bytes()].concat();
                (Key::from_bytes(&name), file.field.to_string())
            }
        };
        let media = match file.role {
            // Lists may contain files of any type.
            Role::Media(MediaType::Image) if kind == DatasetKind::FileList => {
                extension_of(key).and_then(|ending| MediaType::of_name(ending.as_bytes()))
            }
            Role::Media(MediaType::Image) => Some(MediaType::Image),
            // In archives, the name of the field is that of the member.
            _ => MediaType::of_member(file.name.as_bytes(), &file.data),
        };
        ScanItem::Member(Member {
            archive: 0,
            field,
            media,
            name,
            offset: file.offset,
            data: file.data,
            sum: None,
            defect: None,
            // Only the first member of the sample holds the class.
            label: label.take(),
        })
    };
    sample.files.into_iter().map(member).collect()
}

/// A data set of sample records in which the item of an unreadable record is its error.
#[derive(Debug)]
struct RecordsWithErrors(Arc<dyn Dataset<Item = StoredRecord>>);

impl Dataset for RecordsWithErrors {
    type Item = (Key, Result<StoredRecord>);

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn item(&self, index: u64) -> Result<Self::Item> {
        Ok(match self.0.item(index) {
            Ok(record) => (record.key.clone(), Ok(record)),
            Err(error) => {
                let key = error.key().map_or_else(|| format!("sample {index}"), str::to_owned);
                (key.into(), Err(error))
            }
        })
    }
}

/// The stage that reads the fields of a sample; errors are passed on as results.
struct ReadRecord(SampleReader);

#[async_trait]
impl AsyncStage<StoredRecord> for ReadRecord {
    type Out = (Key, Result<Sample>);

    async fn process(&self, record: StoredRecord, cx: &AsyncContext) -> Result<Self::Out> {
        Ok((record.key.clone(), self.0.read(record, cx).await))
    }
}

struct ReadItem(ReadRecord);

#[async_trait]
impl AsyncStage<(Key, Result<StoredRecord>)> for ReadItem {
    type Out = (Key, Result<Sample>);

    async fn process(
        &self,
        (key, record): (Key, Result<StoredRecord>),
        cx: &AsyncContext,
    ) -> Result<Self::Out> {
        match record {
            Ok(record) => self.0.process(record, cx).await,
            Err(error) => Ok((key, Err(error))),
        }
    }
}
