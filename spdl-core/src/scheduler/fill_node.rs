//! A stage that writes samples into batches, as a node of the scheduler.

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;

use super::assembly::{Assembly, Finished};
use super::cpu_node::Factory;
use super::queue::{Queue, Wakes};
use super::worker_pool::WorkerPool;
use super::{Node, StageCore};
use crate::error::guarded;
use crate::item::lineage::{AggregateLineage, Outcome};
use crate::item::{Item, ItemHeader, ItemTag};
use crate::memory::budget::Reservation;
use crate::observe::hooks::Hooks;
use crate::scheduler::failure::FailureAction;
use crate::stage::batch::{Batch, Field, Fill, FillContext, SlotMut};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

pub(crate) struct FillNode<In, F> {
    pub(crate) core: StageCore,
    pub(crate) input: Arc<Queue<In>>,
    /// Each open batch has a place promised here, so a complete one can always be put down.
    pub(crate) output: Arc<Queue<Batch>>,
    pub(crate) factory: Factory<F>,
    pub(crate) hooks: Hooks,
    pub(crate) fields: Vec<Field>,
    pub(crate) batch_bytes: usize,
    /// Whether a batch tells its samples to whoever records the order.
    pub(crate) keeps_members: bool,
    pub(crate) assembly: Mutex<Assembly>,
    pub(crate) state: FillState<F>,
}

/// What changes while the node works.
pub(crate) struct FillState<F> {
    idle: Mutex<Vec<F>>,
    running: AtomicUsize,
    done: AtomicBool,
}

impl<F> Default for FillState<F> {
    fn default() -> Self {
        FillState {
            idle: Mutex::new(Vec::new()),
            running: AtomicUsize::new(0),
            done: AtomicBool::new(false),
        }
    }
}

/// What follows from a batch that was handed on, once the assembly's lock is given back: who is
/// woken, and the memory of a batch that was not wanted.
struct BatchesSent<'a> {
    _wakes: Wakes<'a>,
    _lease: Option<Reservation>,
    /// Whether a batch could not be put together, and so nothing more is wanted.
    failed: bool,
}

/// What was taken from the queue.
enum Taken<In> {
    Sample {
        number: u64,
        item: Item<In>,
        rows: Vec<BytesMut>,
    },
    EpochEnd,
    /// An earlier run has delivered it.
    Passed,
    /// The pipeline has ended because of it.
    Fault(crate::error::Error),
}

impl<In: Send + 'static, F: Fill<In>> Node for FillNode<In, F> {
    fn ready(&self) -> bool {
        if self.state.done.load(Ordering::SeqCst) {
            return false;
        }
        let running = self.state.running.load(Ordering::SeqCst);
        let can_take = running < self.core.concurrency()
            && ((self.input.available() > 0 && self.has_place())
                || (self.input.at_end() && self.output.has_room()));
        can_take || (running == 0 && self.is_over())
    }

    fn run(&self, _: &Arc<WorkerPool>) -> bool {
        let before = self.state.running.fetch_add(1, Ordering::SeqCst);
        // Stages are guarded one by one; this is for the panics of destructors.
        let fill_one = || guarded(|| Ok(self.fill_one())).0;
        let worked = before < self.core.concurrency()
            && fill_one().unwrap_or_else(|error| {
                self.core.raise(error);
                self.input.shut();
                true
            });
        self.state.running.fetch_sub(1, Ordering::SeqCst);
        // The end may have come while this worker was counted as running.
        self.finish_once() || worked
    }

    fn drop_instances(&self) {
        // Not under the lock: their destructors may be anything.
        let idle = std::mem::take(&mut *self.state.idle.lock());
        drop(idle);
    }
}

impl<In: Send + 'static, F: Fill<In>> FillNode<In, F> {
    fn has_place(&self) -> bool {
        let assembly = self.assembly.lock();
        let Some(next) = self.input.front_id() else { return false };
        let has_memory = || {
            let measured = self.core.measured();
            measured
                .is_none_or(|(measure, budget)| budget.would_grant(measure.level, self.batch_bytes))
        };
        !assembly.needs_batch(next.epoch) || (self.output.has_room() && has_memory())
    }

    fn fill_one(&self) -> bool {
        if self.input.available() == 0 && !self.input.at_end() {
            return false;
        }
        let Some(mut fill) = self.instance() else { return false };
        let (number, item, mut rows) = match self.take_in() {
            Some(Taken::Sample { number, item, rows }) => (number, item, rows),
            Some(Taken::EpochEnd | Taken::Passed) => {
                self.state.idle.lock().push(fill);
                return true;
            }
            Some(Taken::Fault(error)) => {
                self.core.raise(error);
                self.input.shut();
                return true;
            }
            None => {
                self.state.idle.lock().push(fill);
                return false;
            }
        };
        let Item { header, value, reservation } = item;
        let started = Instant::now();
        let (result, panicked) = guarded(|| {
            self.hooks.item(&header, || {
                let mut cx = FillContext {
                    id: header.id,
                    lineage: header.lineage,
                    key: header.key().map(|key| &**key),
                    seed: self.core.shared.seed,
                    stage: self.core.number,
                };
                fill.fill(value, SlotMut::new(&self.fields, &mut rows), &mut cx)
            })
        });
        drop(reservation);
        self.core.record(1, u64::from(result.is_err()), started.elapsed());
        if !panicked {
            self.state.idle.lock().push(fill);
        }
        let failed = result.err().map(|error| Box::new((header, error)));
        let mut assembly = self.assembly.lock();
        assembly.settle(number, failed, rows);
        self.advance(assembly);
        true
    }

    /// Takes the next sample from the queue and decides its place, under one lock: that gives it
    /// its number.
    fn take_in(&self) -> Option<Taken<In>> {
        let mut assembly = self.assembly.lock();
        if self.input.front_end().is_some() {
            if self.output.reserve(1) == 0 {
                return None;
            }
            let (epoch, wakes) = self.input.pop_end()?;
            assembly.end_epoch(epoch);
            self.advance(assembly);
            drop(wakes);
            return Some(Taken::EpochEnd);
        }
        let epoch = self.input.front_id()?.epoch;
        if assembly.needs_batch(epoch) {
            if self.output.reserve(1) == 0 {
                return None;
            }
            let reservation = match self.core.measured() {
                None => None,
                Some((measure, budget)) => {
                    match budget.try_reserve(measure.level, self.batch_bytes) {
                        Ok(Some(reservation)) => Some(reservation),
                        Ok(None) => {
                            drop(assembly);
                            self.output.release(1);
                            return None;
                        }
                        Err(error) => return Some(Taken::Fault(error)),
                    }
                }
            };
            if let Err(error) = assembly.open(epoch) {
                // The memory is given back without the lock.
                drop(assembly);
                drop(reservation);
                return Some(Taken::Fault(error));
            }
            assembly.keep_lease(reservation);
        }
        let mut item = Vec::with_capacity(1);
        let (_, wakes) = self.input.pop(1, &mut item)?;
        let item = item.pop()?;
        if self.core.passes_over(&item.header) {
            drop(assembly);
            drop(wakes);
            return Some(Taken::Passed);
        }
        let taken = match assembly.take_in(item.header.member()) {
            Ok((number, rows)) => Taken::Sample { number, item, rows },
            Err(error) => Taken::Fault(error),
        };
        drop(assembly);
        drop(wakes);
        Some(taken)
    }

    /// Hands finished batches on and judges failures whose turn has come, until neither is left.
    fn advance<'a>(&'a self, mut assembly: MutexGuard<'a, Assembly>) {
        loop {
            let wakes = self.deliver(&mut assembly, true);
            let failure = assembly.take_failure();
            drop(assembly);
            // Whoever waits is woken, and the policy asked, without the lock.
            self.settle(wakes);
            let Some(failure) = failure else { return };
            let (header, error) = *failure;
            let cut = self.core.item_failed(&header, error) == FailureAction::Halt;
            if !cut {
                self.core.gone([header.member()], Outcome::Dropped);
            }
            if cut {
                self.input.shut();
            }
            assembly = self.assembly.lock();
            assembly.resolve(cut);
        }
    }

    /// Does what follows from what was handed on. Without the assembly's lock.
    fn settle(&self, delivered: Vec<BatchesSent<'_>>) {
        if delivered.iter().any(|delivered| delivered.failed) {
            self.input.shut();
        }
    }

    /// Puts down what is finished. Under the assembly's lock, so that it stays in order. What is thrown
    /// away is left out where its epoch has `ended`.
    fn deliver(&self, assembly: &mut Assembly, ended: bool) -> Vec<BatchesSent<'_>> {
        let hand_on = |finished| {
            let mut reservation = None;
            let mut failed = false;
            let wakes = match finished {
                Finished::Batch(batch, members, reservation) => {
                    let first = &members[0];
                    let mut header = ItemHeader { id: first.id, lineage: first.lineage, tag: None };
                    if self.keeps_members || self.core.shared.ledger.get().is_some() {
                        let members = Some(Arc::new(AggregateLineage::new(members)));
                        header.tag = Some(Arc::new(ItemTag { members, ..ItemTag::default() }));
                    }
                    self.core.meter.emitted(1);
                    let batch = Item { header, value: batch, reservation };
                    self.output.push(1, std::iter::once(batch))
                }
                Finished::EpochEnd(epoch) => self.output.push_end(epoch),
                Finished::Discarded(samples, unused) => {
                    let left_out = samples.len() as u64;
                    self.core.shared.left_out.fetch_add(left_out, Ordering::Relaxed);
                    if ended {
                        self.core.gone(samples, Outcome::LeftOut);
                    }
                    reservation = unused;
                    self.output.push(1, std::iter::empty())
                }
                Finished::Failed(error) => {
                    self.core.raise(error);
                    failed = true;
                    Wakes::default()
                }
            };
            BatchesSent { _wakes: wakes, _lease: reservation, failed }
        };
        assembly.take_finished().map(hand_on).collect()
    }

    fn instance(&self) -> Option<F> {
        let idle = self.state.idle.lock().pop();
        idle.or_else(|| self.core.make(&self.hooks, &self.factory, &self.input))
    }

    /// Whether nothing more can come of this stage.
    fn is_over(&self) -> bool {
        self.input.is_finished() || self.output.is_shut()
    }

    /// Completes what is open, then ends the queue behind. One worker does it.
    fn finish_once(&self) -> bool {
        if !self.is_over()
            || self.state.running.load(Ordering::SeqCst) > 0
            || self.state.done.swap(true, Ordering::SeqCst)
        {
            return false;
        }
        self.state.idle.lock().clear();
        let mut assembly = self.assembly.lock();
        let mut settled = self.deliver(&mut assembly, true);
        assembly.finish();
        // An epoch that was cut short: what is not handed on may come again.
        settled.extend(self.deliver(&mut assembly, false));
        drop(assembly);
        self.settle(settled);
        self.core.end(&self.hooks);
        self.input.shut();
        self.output.close();
        true
    }
}
