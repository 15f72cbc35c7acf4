//! Where items come from: restartable sources.

use std::fmt::Debug;
use std::sync::Arc;

use futures_core::Stream;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};

use crate::sync::Mutex;
use crate::{Error, ErrorKind, Result};

/// A place in a source: an epoch, and how many of its items are already behind.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The pass over the data, counted from 0.
    pub epoch: u64,
    /// Items of that epoch which come before this place.
    pub position: u64,
}

impl Cursor {
    /// The place before item `position` of `epoch`.
    pub fn new(epoch: u64, position: u64) -> Self {
        Cursor { epoch, position }
    }
}

/// A restartable origin of items, usually small keys: paths, shard references, indices.
///
/// # Contract
/// [`open`](Source::open) is called once per epoch. The same cursor always gives the same items in
/// the same order; a cursor at `position` gives what a cursor at 0 gives after `position` items.
/// The stream is polled on the pipeline's [`Runtime`](crate::Runtime) and must not block it.
pub trait Source: Debug + Send + Sync + 'static {
    /// What it yields.
    type Item: Send + 'static;

    /// Starts a pass at `at`.
    ///
    /// # Errors
    /// Whatever keeps the pass from starting; it ends the pipeline.
    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<Self::Item>>>;

    /// How many items an epoch has, where that is known.
    fn len_hint(&self) -> Option<u64> {
        None
    }

    /// What people call this item, for messages: a path, an object key.
    fn key(&self, item: &Self::Item) -> Option<Arc<str>> {
        let _ = item;
        None
    }
}

/// A stream as a source of one epoch.
pub(crate) struct StreamSource<T>(Mutex<Option<BoxStream<'static, Result<T>>>>);

impl<T: Send + 'static> StreamSource<T> {
    pub(crate) fn new(items: impl Stream<Item = Result<T>> + Send + 'static) -> Self {
        StreamSource(Mutex::new(Some(items.boxed())))
    }
}

/// An iterator as a source of one epoch.
pub(crate) struct IteratorSource;

impl IteratorSource {
    #[expect(clippy::new_ret_no_self, reason = "an iterator is a stream that is always ready")]
    pub(crate) fn new<T: Send + 'static>(
        items: impl Iterator<Item = Result<T>> + Send + 'static,
    ) -> StreamSource<T> {
        StreamSource::new(stream::iter(items))
    }
}

impl<T: Send + 'static> Source for StreamSource<T> {
    type Item = T;

    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<T>>> {
        self.0.lock().take().ok_or_else(|| {
            let message = format!(
                "this source gives one pass, and epoch {} would be another one; a `Source` can be \
                 opened again",
                at.epoch
            );
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

impl<T> Debug for StreamSource<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamSource")
    }
}
