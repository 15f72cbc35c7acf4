//! [`Remedy`]: what a caller can specify to avoid an error.

use std::error::Error as StdError;
use std::fmt;

use spdl_core::Error;

/// What a caller can specify to avoid an error: attached to an [`Error`] as its source.
///
/// The error message does not name options of a program. A program can append advice that names its
/// own options.
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::{AsyncContext, DatasetSource, PipelineBuilder};
/// use spdl_io::records::Remedy;
/// use spdl_io::{FetchLabeled, FieldValue, MemoryFetcher, StoredRecord};
///
/// let sample = StoredRecord::new("1")
///     .with_known("jpg", FieldValue::Bytes("an image".into()))
///     .with_known("cls", FieldValue::Text("cat".into()));
/// let mut pipeline = PipelineBuilder::from_iter([sample])
///     .async_stage("fetch", FetchLabeled::new(Arc::new(MemoryFetcher::new())))
///     .build()?;
/// let error = pipeline.next().expect("one sample").unwrap_err();
/// assert_eq!(Remedy::of(&error), Some(Remedy::Classes));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// The field of a sample that holds the image, or the column of a list that names the file:
    /// [`OpenOptions::image_field`](crate::datasets::OpenOptions::image_field).
    ImageField,
    /// The field or column that holds the label:
    /// [`OpenOptions::label_field`](crate::datasets::OpenOptions::label_field).
    LabelField,
    /// The stored field that holds a value: [`FieldChoice`](super::FieldChoice).
    StoredField,
    /// The names of the classes: [`FetchLabeled::with_classes`](crate::FetchLabeled::with_classes).
    Classes,
    /// The limit of the bytes that are read for a sample:
    /// [`FetchLabeled::with_max_bytes`](crate::FetchLabeled::with_max_bytes).
    MaxFileBytes,
    /// The folder of the images of COCO annotations:
    /// [`OpenOptions::images`](crate::datasets::OpenOptions::images).
    Images,
    /// The memory for sequential reads:
    /// [`OpenOptions::sequential`](crate::datasets::OpenOptions::sequential).
    SequentialMemory,
}

impl Remedy {
    /// The remedy for `error`, if one is known.
    pub fn of(error: &Error) -> Option<Remedy> {
        let first = StdError::source(error);
        let mut sources = std::iter::successors(first, |&source| source.source());
        sources.find_map(|source| source.downcast_ref().copied())
    }
}

/// Displays an empty string, so that [`Error::report`] does not show the remedy. Other printers of error
/// chains show an empty cause.
impl fmt::Display for Remedy {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl StdError for Remedy {}
