//! Source: a task that opens the source for each epoch and numbers its items.

use std::future::poll_fn;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::stream::BoxStream;

use super::cpu_node::Sizer;
use super::queue::Queue;
use super::{StageCore, size_of_item};
use crate::error::{Result, guarded, panicked};
use crate::item::lineage::{LineageNode, Outcome};
use crate::item::{Item, ItemHeader};
use crate::memory::budget::Reservation;
use crate::observe::hooks::Hooks;
use crate::observe::stalls::Activity;
use crate::resume::replay::OrderRecord;
use crate::scheduler::failure::FailureAction;
use crate::source::Source;
use crate::source::sample::SampleId;
use crate::source::shard::Divisions;

/// At most this many items are put into the queue together.
const MAX_RUN: usize = 64;
/// The task yields to other tasks of the runtime after this many groups of items (*runs*).
const RUNS_AT_A_TIME: usize = 16;

pub(crate) struct SourceNode<S: Source> {
    pub(crate) core: StageCore,
    pub(crate) source: S,
    pub(crate) epochs: Range<u64>,
    pub(crate) output: Arc<Queue<S::Item>>,
    pub(crate) hooks: Hooks,
    /// Present if the bytes of items are counted.
    pub(crate) sizer: Option<Sizer<S::Item>>,
    /// Whether the source may block, and has a dedicated thread.
    pub(crate) blocks: bool,
    /// For a profile: the source ends after this many items.
    pub(crate) limit: Option<u64>,
    /// The index of the first sample.
    pub(crate) first_index: u64,
    /// The positions of this rank in each epoch.
    pub(crate) divisions: Arc<Divisions>,
    /// Present if a recorded order is replayed.
    pub(crate) replay: Option<Arc<OrderRecord>>,
}

/// The current pass over the source.
struct SourcePass<T> {
    items: BoxStream<'static, (u64, Result<T>)>,
    epoch: u64,
    yielded: u64,
    /// When the item was requested from the stream, if the item is not ready yet.
    requested: Option<Instant>,
}

/// Why a pass ended.
enum PassEnd {
    EpochEnded,
    /// The source failed, or the output queue is shut.
    Over,
}

impl<S: Source> SourceNode<S> {
    pub(crate) async fn drive(self) {
        let begun = guarded(|| self.hooks.started_once()).0;
        if let Err(error) = begun {
            self.core.raise(error);
        } else {
            self.run_epochs().await;
            self.core.meter.set_activity(Activity::Idle);
            self.core.end(&self.hooks);
        }
        self.output.close();
    }

    async fn run_epochs(&self) {
        let mut run = Vec::with_capacity(MAX_RUN);
        let mut busy = self.source.busy();
        for epoch in self.epochs.clone() {
            if self.output.is_shut() {
                return;
            }
            let positions = self.divisions.positions(epoch);
            self.core.meter.set_activity(Activity::Working);
            let opened = guarded(|| self.source.open_at(positions.clone())).0;
            let items = match opened {
                Ok(items) => items,
                Err(error) => return self.core.raise(error),
            };
            let items = match &self.replay {
                Some(record) => crate::resume::replay::replay_stream(items, positions, record),
                None => items,
            };
            let mut pass = SourcePass { items, epoch, yielded: 0, requested: None };
            match poll_fn(|cx| self.pump(&mut pass, &mut run, &mut busy, cx)).await {
                PassEnd::EpochEnded => {}
                PassEnd::Over => return,
            }
            if pass.yielded == 0 && self.divisions.resume_point(epoch).is_none() {
                // An empty epoch ends the source. Otherwise an endless pipeline would loop without
                // items.
                return;
            }
            if let Some(ledger) = self.core.shared.ledger.get() {
                ledger.yielded(epoch, pass.yielded);
            }
            self.core.meter.set_activity(Activity::Idle);
            if poll_fn(|cx| self.output.poll_reserve(1, cx)).await == 1 {
                drop(self.output.push_end(epoch));
            }
            if self.limit.is_some() {
                return;
            }
        }
    }

    /// Moves items into the queue, run by run, until the pass ends.
    fn pump(
        &self,
        pass: &mut SourcePass<S::Item>,
        run: &mut Vec<Item<S::Item>>,
        busy: &mut Option<Duration>,
        cx: &mut Context<'_>,
    ) -> Poll<PassEnd> {
        for _ in 0..RUNS_AT_A_TIME {
            if self.output.is_shut() {
                return Poll::Ready(PassEnd::Over);
            }
            let mut reservation = match self.reserve(cx) {
                Poll::Ready(Ok(reservation)) => reservation,
                Poll::Ready(Err(error)) => {
                    self.core.raise(error);
                    return Poll::Ready(PassEnd::Over);
                }
                Poll::Pending => {
                    self.core.meter.set_activity(Activity::WaitsForMemory);
                    return Poll::Pending;
                }
            };
            // If the next item may be slow, the current item does not wait for it.
            let max = if reservation.is_some() || self.blocks { 1 } else { MAX_RUN };
            self.core.meter.set_activity(Activity::Idle);
            let Poll::Ready(places) = self.output.poll_reserve(max, cx) else {
                return Poll::Pending;
            };
            self.core.meter.set_activity(Activity::Working);
            let started = pass.requested.take().unwrap_or_else(Instant::now);
            let (mut failures, mut counted) = (0, 0);
            let mut end = None;
            while run.len() < places && end.is_none() {
                end = self.take(pass, run, &mut failures, &mut counted, cx);
            }
            if let (Some(reservation), Some(sizer)) = (&mut reservation, &self.sizer)
                && let Some((measure, _)) = self.core.measured()
            {
                for mut item in std::mem::take(run) {
                    match size_of_item(sizer, &item.value) {
                        Ok(bytes) => {
                            item.reservation = Some(measure.reservation(reservation, bytes));
                            run.push(item);
                        }
                        Err(error) => {
                            failures += 1;
                            if self.core.item_failed(&item.header, error) == FailureAction::Halt {
                                end = Some(Poll::Ready(PassEnd::Over));
                            } else {
                                self.core.gone([item.header.member()], Outcome::Dropped);
                            }
                        }
                    }
                }
            }
            drop(reservation);
            let items = run.len() as u64 + failures;
            self.core.tried(items - counted);
            if items > 0 {
                self.core.meter.record(items, failures, self.time_since(started, busy));
            }
            if matches!(end, Some(Poll::Pending)) {
                pass.requested = Some(if items == 0 { started } else { Instant::now() });
            }
            self.core.meter.emitted(run.len() as u64);
            drop(self.output.push(places, run.drain(..)));
            if let Some(end) = end {
                return end;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The time that the items since `started` took. Updates the total of a source that measures
    /// its time.
    fn time_since(&self, started: Instant, busy: &mut Option<Duration>) -> Duration {
        let (Some(now), Some(before)) = (self.source.busy(), *busy) else {
            return started.elapsed();
        };
        *busy = Some(now);
        now.saturating_sub(before)
    }

    fn reserve(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Reservation>>> {
        let Some((measure, budget)) = self.core.measured() else { return Poll::Ready(Ok(None)) };
        let need = measure.need(None, budget);
        budget.poll_reserve(measure.level, need, cx).map(|reservation| reservation.map(Some))
    }

    /// Takes an item from the stream. Returns the end of this run, if there is no item.
    fn take(
        &self,
        pass: &mut SourcePass<S::Item>,
        run: &mut Vec<Item<S::Item>>,
        failures: &mut u64,
        counted: &mut u64,
        cx: &mut Context<'_>,
    ) -> Option<Poll<PassEnd>> {
        if self.limit.is_some_and(|limit| pass.yielded >= limit) {
            return Some(Poll::Ready(PassEnd::EpochEnded));
        }
        let polled = catch_unwind(AssertUnwindSafe(|| {
            // `key` also runs code of the source.
            pass.items.as_mut().poll_next(cx).map(|item| {
                item.map(|(id, item)| (id, item.map(|value| (self.source.key(&value), value))))
            })
        }));
        let (index, item) = match polled {
            Ok(Poll::Ready(Some(item))) => item,
            Ok(Poll::Ready(None)) => return Some(Poll::Ready(PassEnd::EpochEnded)),
            Ok(Poll::Pending) => return Some(Poll::Pending),
            Err(payload) => {
                // A stream that panicked must not be polled again.
                self.core.raise(panicked(payload));
                return Some(Poll::Ready(PassEnd::Over));
            }
        };
        pass.yielded += 1;
        let id = SampleId { epoch: pass.epoch, index: self.first_index.saturating_add(index) };
        match item {
            Ok((key, value)) => run.push(Item::new(ItemHeader::new(id, key), value)),
            Err(error) => {
                *failures += 1;
                // The policy needs the number of items tried so far.
                let tried = run.len() as u64 + *failures;
                self.core.tried(tried - *counted);
                *counted = tried;
                if self.core.item_failed(&ItemHeader::new(id, None), error) == FailureAction::Halt {
                    return Some(Poll::Ready(PassEnd::Over));
                }
                self.core.gone([LineageNode::from(id)], Outcome::Dropped);
            }
        }
        None
    }
}
