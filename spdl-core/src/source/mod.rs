//! Sources of items: identities, data sets, shards of ranks, orders and random numbers.
//!
//! | file | what |
//! |---|---|
//! | this file | [`Source`], [`Cursor`], [`Fingerprint`]: restartable streams of items |
//! | `dataset` | [`Dataset`], [`DatasetSource`]: a source with a known length and an order |
//! | `subset` | [`Subset`]: chosen items of a data set |
//! | `sample` | [`SampleId`], [`Labeled`] |
//! | `shard` | [`Shard`]: the part of the data that one rank reads |
//! | `ranges`, `layers` | sets of positions; remaining positions after several divisions |
//! | `shuffle` | [`Permutation`]: a shuffled order computed position by position |
//! | `random` | [`SampleRng`], [`ItemRng`], [`StageRng`]: random numbers of a sample in a stage |
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
pub(crate) mod subset;

pub use futures_core::Stream;

pub use dataset::{Dataset, DatasetSource};
pub use random::{ItemRng, SampleRng, StageRng};
pub use range_run::RangeRun;
pub use sample::{Labeled, SampleId};
pub use shard::{Position, Positions, Remainder, Shard};
pub use shuffle::Permutation;
pub use subset::Subset;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// A position in a source: an epoch, and the number of items before the position.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The number of items of the epoch before this position.
    pub position: u64,
}

impl Cursor {
    /// The position before item `position` of `epoch`.
    pub fn new(epoch: u64, position: u64) -> Self {
        Cursor { epoch, position }
    }
}

/// A restartable stream of items, usually small keys: paths, shard references, indices.
///
/// # Contract
/// The same cursor always yields the same items in the same order. A stream opened at `position`
/// yields the items that a stream opened at 0 yields after its first `position` items. The stream
/// is empty if `position` is at or beyond the end. The pipeline polls the stream on its
/// [`Runtime`](crate::Runtime), and the stream must not block.
pub trait Source: Debug + Send + Sync + 'static {
    /// The type of the items.
    type Item: Send + 'static;

    /// Opens the source at `at`.
    ///
    /// # Errors
    /// Any error that prevents reading. The error ends the pipeline.
    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<Self::Item>>>;

    /// Opens the source at `positions`, and yields each item with the [`id`](Position::id) of its
    /// position.
    ///
    /// The pipeline calls this method once per epoch. `positions` contains the positions of the
    /// pipeline's rank that earlier runs have not done. For a single rank and a new epoch, these
    /// are all positions.
    ///
    /// The default implementation [opens](Source::open) the source at the first of the positions
    /// and discards items between positions. If the rank repeats a sample
    /// ([`Remainder::Pad`]), the implementation opens the source a
    /// second time. Override the method for a source with random access.
    ///
    /// # Errors
    /// The errors of [`open`](Source::open).
    fn open_at(
        &self,
        positions: Positions,
    ) -> Result<BoxStream<'static, (u64, Result<Self::Item>)>> {
        select(positions, |at| self.open(at))
    }

    /// The number of items in an epoch, or `None` (the default) if unknown.
    /// With more than one rank, [`Remainder::Drop`](crate::source::Remainder) and `Remainder::Pad`
    /// need this number.
    fn len_hint(&self) -> Option<u64> {
        None
    }

    /// The time that the source has spent on its items so far, or `None` (the default) if the
    /// pipeline measures the time: how long each item takes from the request until it is ready.
    ///
    /// Override the method for a source that works ahead on another thread, or that waits for the
    /// consumer.
    fn busy(&self) -> Option<Duration> {
        None
    }

    /// The settings that determine the items and their order. A run resumes only with an equal
    /// fingerprint, except for changes that [`State::allow_change`](crate::State::allow_change)
    /// permits. Default: the number of items, or `unknown`.
    fn fingerprint(&self) -> Fingerprint {
        let len = self.len_hint();
        Fingerprint::default().with("items", len.map_or("unknown".into(), |len| len.to_string()))
    }

    /// The name of an item in messages, such as a path or an object key. Default: `None`.
    fn key(&self, item: &Self::Item) -> Option<Arc<str>> {
        let _ = item;
        None
    }
}

/// The settings of a source as short named strings, to detect changes when a run is resumed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(BTreeMap<String, String>);

impl Fingerprint {
    /// Adds the setting named `part`, or replaces its value. Pass a hash instead of a long value.
    #[must_use]
    pub fn with(mut self, part: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(part.into(), value.into());
        self
    }

    /// The value of each setting, by the name of the setting.
    pub fn parts(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

/// Selects the items at `positions` from the streams that `open` returns. A repeated (padding)
/// sample is at an earlier position, so the source is opened again for it.
fn select<T: Send + 'static>(
    positions: Positions,
    open: impl Fn(Cursor) -> Result<BoxStream<'static, Result<T>>>,
) -> Result<BoxStream<'static, (u64, Result<T>)>> {
    let epoch = positions.epoch();
    let repeated = positions.repeated();
    let mut ascending = positions.take_while(|position| position.id == position.at).peekable();
    let items = match ascending.peek() {
        Some(&Position { at, .. }) => {
            let items = open(Cursor::new(epoch, at))?;
            SelectStream { items, next: at, wanted: ascending }.boxed()
        }
        None => stream::empty().boxed(),
    };
    let Some(Position { id, at }) = repeated else { return Ok(items) };
    let again = open(Cursor::new(epoch, at))?.take(1).map(move |item| (id, item));
    Ok(items.chain(again).boxed())
}

/// The items of a stream at the wanted positions.
struct SelectStream<T, W: Iterator<Item = Position>> {
    items: BoxStream<'static, Result<T>>,
    /// The position of the next item.
    next: u64,
    wanted: std::iter::Peekable<W>,
}

impl<T, W: Iterator<Item = Position>> Unpin for SelectStream<T, W> {}

impl<T, W: Iterator<Item = Position>> Stream for SelectStream<T, W> {
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

/// A source of one epoch that reads from a stream.
pub(crate) struct StreamSource<T>(Mutex<Option<BoxStream<'static, Result<T>>>>);

impl<T: Send + 'static> StreamSource<T> {
    pub(crate) fn new(items: impl Stream<Item = Result<T>> + Send + 'static) -> Self {
        StreamSource(Mutex::new(Some(items.boxed())))
    }
}

/// A source of one epoch that reads from an iterator.
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
                "cannot open epoch {}: an iterator or stream supports one epoch; implement \
                 `Source` for more",
                at.epoch
            );
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        Ok(match usize::try_from(at.position).unwrap_or(usize::MAX) {
            0 => items,
            skipped => items.skip(skipped).boxed(),
        })
    }
}

impl<T> Debug for StreamSource<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamSource")
    }
}
