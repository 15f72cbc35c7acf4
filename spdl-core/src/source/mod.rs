//! Sources of items: identities, data sets, shards of ranks, orders and random numbers.
//!
//! | file | what |
//! |---|---|
//! | this file | [`Source`], [`Cursor`], [`Fingerprint`]: restartable streams of items |
//! | `dataset` | [`Dataset`], [`DatasetSource`]: a source with a known length and an order |
//! | `sample` | [`SampleId`], [`Labeled`] |
//! | `shard` | [`Shard`]: the part of the data that one rank reads |
//! | `ranges`, `layers` | sets of positions, and positions left after several divisions |
//! | `shuffle` | [`Permutation`]: a shuffled order computed position by position |
//! | `random` | [`SampleRng`]: random numbers of a sample in a stage |
//! | `sampler/` | orders of an epoch: weighted, mixed, windowed, NumPy's |
//!
//! Imports: `error`, `sync`, `memory`.

pub(crate) mod dataset;
pub(crate) mod layers;
pub(crate) mod random;
pub(crate) mod range_run;
pub(crate) mod ranges;
pub(crate) mod sample;
pub mod sampler;
pub(crate) mod shard;
pub(crate) mod shuffle;

pub use futures_core::Stream;

pub use dataset::{Dataset, DatasetSource};
pub use random::SampleRng;
pub use range_run::RangeRun;
pub use sample::{Labeled, SampleId};
pub use shard::{Position, Positions, Remainder, Shard};
pub use shuffle::Permutation;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

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
/// The same cursor always gives the same items in the same order; a cursor at `position` gives what
/// a cursor at 0 gives after `position` items, nothing where there are not so many. The stream is
/// polled on the pipeline's [`Runtime`](crate::Runtime) and must not block it.
pub trait Source: Debug + Send + Sync + 'static {
    /// What it yields.
    type Item: Send + 'static;

    /// Starts a pass at `at`.
    ///
    /// # Errors
    /// Whatever keeps the pass from starting; it ends the pipeline.
    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<Self::Item>>>;

    /// Starts a pass over these positions only, and gives each item with its position's
    /// [`id`](Position::id). Called once per epoch: with all positions, or with one rank's, or with
    /// those that an earlier run has left.
    ///
    /// By default the source is [opened](Source::open) at the first of them, and what is not among
    /// them is passed over. A source that can go to any position at once should do so.
    ///
    /// # Errors
    /// As for [`open`](Source::open).
    fn open_at(
        &self,
        positions: Positions,
    ) -> Result<BoxStream<'static, (u64, Result<Self::Item>)>> {
        pass_over(positions, |at| self.open(at))
    }

    /// How many items an epoch has, where that is known. [`Remainder::Drop`](crate::source::Remainder) and
    /// `Pad` rely on it.
    fn len_hint(&self) -> Option<u64> {
        None
    }

    /// What tells this source from others: a run is resumed only where it is the same. Default: the
    /// number of its items, where that is known.
    fn fingerprint(&self) -> Fingerprint {
        let len = self.len_hint();
        Fingerprint::default().with("items", len.map_or("unknown".into(), |len| len.to_string()))
    }

    /// What people call this item, for messages: a path, an object key.
    fn key(&self, item: &Self::Item) -> Option<Arc<str>> {
        let _ = item;
        None
    }
}

/// What something is, as short texts with names: to tell whether it has changed, and in what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(BTreeMap<String, String>);

impl Fingerprint {
    /// Adds a part, or replaces the one of this name. Long values are for hashing first.
    #[must_use]
    pub fn with(mut self, part: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(part.into(), value.into());
        self
    }

    /// The parts by name.
    pub fn parts(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

/// The items at `positions` of what `open` gives. It is opened a second time for the sample that is
/// repeated, where there is one, since that lies further ahead.
fn pass_over<T: Send + 'static>(
    positions: Positions,
    open: impl Fn(Cursor) -> Result<BoxStream<'static, Result<T>>>,
) -> Result<BoxStream<'static, (u64, Result<T>)>> {
    let epoch = positions.epoch();
    let repeated = positions.repeated();
    let mut ascending = positions.take_while(|position| position.id == position.at).peekable();
    let items = match ascending.peek() {
        Some(&Position { at, .. }) => {
            let items = open(Cursor::new(epoch, at))?;
            Pick { items, next: at, wanted: ascending }.boxed()
        }
        None => stream::empty().boxed(),
    };
    let Some(Position { id, at }) = repeated else { return Ok(items) };
    let again = open(Cursor::new(epoch, at))?.take(1).map(move |item| (id, item));
    Ok(items.chain(again).boxed())
}

/// Those items of a stream that are wanted.
struct Pick<T, W: Iterator<Item = Position>> {
    items: BoxStream<'static, Result<T>>,
    /// The position of the item that comes next.
    next: u64,
    wanted: std::iter::Peekable<W>,
}

impl<T, W: Iterator<Item = Position>> Unpin for Pick<T, W> {}

impl<T, W: Iterator<Item = Position>> Stream for Pick<T, W> {
    type Item = (u64, Result<T>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while let Some(&Position { id, at }) = this.wanted.peek() {
            let Some(item) = ready!(this.items.poll_next_unpin(cx)) else { break };
            let here = this.next;
            this.next += 1;
            if here == at {
                this.wanted.next();
                return Poll::Ready(Some((id, item)));
            }
        }
        Poll::Ready(None)
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
        let items = self.0.lock().take().ok_or_else(|| {
            let message = format!(
                "this source gives one pass, and epoch {} would be another one; a `Source` can be \
                 opened again",
                at.epoch
            );
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        Ok(match usize::try_from(at.position).unwrap_or(usize::MAX) {
            0 => items,
            passed => items.skip(passed).boxed(),
        })
    }
}

impl<T> Debug for StreamSource<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamSource")
    }
}
