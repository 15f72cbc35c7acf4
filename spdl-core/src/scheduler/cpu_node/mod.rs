//! Scheduler node of a CPU stage.

mod aggregate_buffer;
mod outlet;
pub(crate) mod presence;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::aggregate_buffer::AggregateBuffer;
use self::outlet::QueueOutlet;
use self::presence::Presence;
use super::queue::Queue;
use super::reorder::Reorder;
use super::worker_pool::WorkerPool;
use super::{GraphPosition, Node, OutputEstimate, StageCore};
use crate::error::{Error, ErrorKind, Result, guarded, stopped};
use crate::item::lineage::Outcome;
use crate::item::{Item, ItemHeader};
use crate::memory::budget::{Budget, Reservation};
use crate::observe::hooks::Hooks;
use crate::observe::stalls::Activity;
use crate::observe::thread_times::CpuSample;
use crate::resume::ledger::{BufferingEvidence, LedgerEntry, PartialItem};
use crate::scheduler::failure::FailureAction;
use crate::stage::{Stage, StageContext};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{MODELLED, Mutex};

/// Maximum number of items of a *run*: a group of consecutive items that a worker takes from a
/// queue together.
const MAX_RUN: usize = 64;
/// Target processing time of a run. Short runs spread the work over all workers.
const RUN_TIME: Duration = Duration::from_micros(50);

pub(crate) type Factory<S> = Box<dyn Fn() -> Result<S> + Send + Sync>;
/// Returns the size of an output in bytes.
pub(crate) type Sizer<T> = Box<dyn Fn(&T) -> usize + Send + Sync>;

pub(crate) struct CpuNode<In, S: Stage<In>> {
    pub(crate) core: StageCore,
    pub(crate) position: GraphPosition,
    pub(crate) input: Arc<Queue<In>>,
    pub(crate) output: Arc<Queue<S::Out>>,
    pub(crate) factory: Factory<S>,
    pub(crate) hooks: Hooks,
    /// Present if outputs are measured.
    pub(crate) sizer: Option<Sizer<S::Out>>,
    /// Whether the stage aggregates: outputs consist of buffered items and carry their identities.
    pub(crate) aggregates: bool,
    /// Whether the memory of an input is released when it was processed, although outputs are not measured.
    pub(crate) releases: bool,
    /// Present if the stage restores its input order.
    pub(crate) turns: Option<Mutex<RunOrder<S::Out>>>,
    pub(crate) state: CpuNodeState<In, S>,
}

/// Mutable state of the node.
pub(crate) struct CpuNodeState<In, S: Stage<In>> {
    idle: Mutex<Vec<StageInstance<In, S>>>,
    /// Empty output lists for reuse.
    spare: Mutex<Vec<Vec<Item<S::Out>>>>,
    presence: Presence,
    done: AtomicBool,
    /// Whether a run was lost because of a panic.
    broken: AtomicBool,
    /// An item that waits for memory, with its number. Its place in the output queue is reserved.
    waiting: Mutex<Option<(u64, Item<In>)>>,
    waits_for: AtomicUsize,
    /// The item that was split when the state was saved, and its epoch; see
    /// [`ExactResume::resume`](crate::stage::ExactResume::resume). `None` after the first item.
    carry: Mutex<Option<(u64, PartialItem)>>,
}

impl<In, S: Stage<In>> Default for CpuNodeState<In, S> {
    fn default() -> Self {
        CpuNodeState {
            idle: Mutex::new(Vec::new()),
            spare: Mutex::new(Vec::new()),
            presence: Presence::default(),
            done: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            waiting: Mutex::new(None),
            waits_for: AtomicUsize::new(NO_WAITING_ITEM),
            carry: Mutex::new(None),
        }
    }
}

impl<In, S: Stage<In>> CpuNodeState<In, S> {
    /// State of a stage that resumes with a split item.
    pub(crate) fn carrying(carry: Option<(u64, PartialItem)>) -> Self {
        CpuNodeState { carry: Mutex::new(carry), ..CpuNodeState::default() }
    }
}

const NO_WAITING_ITEM: usize = usize::MAX;

/// Number of items of the next run: as many as take [`RUN_TIME`] to process, but at most this worker's share of the
/// available items.
pub(crate) fn run_length(core: &StageCore, available: usize) -> usize {
    let share = available / core.concurrency().max(1);
    let by_time = match core.meter.mean_service() {
        // Model checks have no clock, so that schedules can be replayed.
        _ if MODELLED => 3,
        Some(mean) => RUN_TIME.as_nanos() / mean.as_nanos().max(1),
        None => 1,
    };
    share.min(usize::try_from(by_time).unwrap_or(MAX_RUN)).clamp(1, MAX_RUN)
}

/// Reorder buffer for the runs of an ordered stage.
pub(crate) struct RunOrder<Out> {
    runs: Reorder<ItemRun<Out>>,
    /// Whether a failure has halted the stage: later outputs are dropped.
    halted: bool,
}

impl<Out> Default for RunOrder<Out> {
    fn default() -> Self {
        RunOrder { runs: Reorder::default(), halted: false }
    }
}

/// An instance of the stage, with reusable lists.
struct StageInstance<In, S: Stage<In>> {
    stage: S,
    inputs: Vec<Item<In>>,
    /// Buffered items of an aggregating stage.
    buffered: AggregateBuffer,
    /// Entries not yet recorded in the ledger.
    entries: Vec<LedgerEntry>,
    /// Header of its last item, without the tag.
    last: ItemHeader,
    /// Whether it has processed an item of this epoch.
    used: bool,
}

/// Result of a run of consecutive items: outputs, and reserved places in the output queue.
pub(crate) struct ItemRun<Out> {
    outputs: Vec<Item<Out>>,
    places: usize,
    items: u64,
    /// The number of items reported to the failure policy: the items tried before the last failure.
    counted: u64,
    /// Failed items, to which the policy is applied in input order.
    failures: Vec<ItemFailure>,
}

/// An item that failed.
struct ItemFailure {
    /// Items of the run tried so far, this one included.
    tried: u64,
    /// Outputs of the run before this item.
    before: usize,
    header: ItemHeader,
    error: Error,
    /// Whether the item had no output before it failed.
    whole: bool,
}

impl<In: Send + 'static, S: Stage<In>> Node for CpuNode<In, S> {
    fn ready(&self) -> bool {
        let state = &self.state;
        if state.done.load(Ordering::SeqCst) {
            return false;
        }
        let running = state.presence.count();
        // An item that waits for memory already has its place.
        let has_place = || !self.no_item_waits() || self.output.has_room();
        if running < self.core.concurrency() && has_place() && self.may_take() {
            return true;
        }
        running == 0 && (self.ends_epoch() || self.is_over())
    }

    fn run(&self, pool: &Arc<WorkerPool>) -> bool {
        let before = self.state.presence.enter();
        let worked = before < self.core.concurrency() && self.run_guarded(pool);
        let ended = self.end_epoch(pool);
        self.state.presence.leave();
        // The input may have ended while this worker was counted as running.
        self.close_once(pool) || worked || ended
    }

    fn activity(&self) -> Activity {
        if self.state.presence.count() > 0 {
            // A worker may wait in `emit` until the output queue has room.
            return if self.output.is_full() { Activity::Idle } else { Activity::Working };
        }
        if self.ready() {
            return Activity::WaitsForWorker;
        }
        if self.no_item_waits() { Activity::Idle } else { Activity::WaitsForMemory }
    }

    fn drop_instances(&self) {
        // Destructors are user code, so they run outside the lock.
        let idle = std::mem::take(&mut *self.state.idle.lock());
        drop(idle);
    }
}

impl<In: Send + 'static, S: Stage<In>> CpuNode<In, S> {
    /// Calls [`run_items`](CpuNode::run_items). Stages have their own panic guard; this guard
    /// catches panics of destructors, which end the pipeline. The worker is removed from the count
    /// even after a panic.
    fn run_guarded(&self, pool: &Arc<WorkerPool>) -> bool {
        guarded(|| Ok(self.run_items(pool))).0.unwrap_or_else(|error| {
            self.core.raise(error);
            // The run is lost, so later runs can never be sent in order.
            self.state.broken.store(true, Ordering::SeqCst);
            self.input.shut();
            pool.signal.wake_all();
            true
        })
    }

    fn no_item_waits(&self) -> bool {
        self.state.waits_for.load(Ordering::SeqCst) == NO_WAITING_ITEM
    }

    /// Whether an item is available, and memory for its output.
    fn may_take(&self) -> bool {
        match self.state.waits_for.load(Ordering::SeqCst) {
            NO_WAITING_ITEM => self.input.available() > 0,
            bytes => {
                let reserves = self.reserves();
                reserves.is_none_or(|(measure, budget)| budget.would_grant(measure.level, bytes))
            }
        }
    }

    fn run_items(&self, pool: &Arc<WorkerPool>) -> bool {
        // If another worker is ending an epoch, it owns all instances.
        if !self.may_take() || self.state.presence.is_ending() {
            return false;
        }
        let Some(mut instance) = self.instance() else { return false };
        let mut inputs = std::mem::take(&mut instance.inputs);
        let Some((first, places, reservation)) =
            self.take_items(pool, &instance.stage, &mut inputs)
        else {
            instance.inputs = inputs;
            self.state.idle.lock().push(instance);
            return false;
        };
        let mut outlet = QueueOutlet {
            node: self,
            pool,
            run: ItemRun {
                outputs: self.state.spare.lock().pop().unwrap_or_default(),
                places,
                items: inputs.len() as u64,
                counted: 0,
                failures: Vec::new(),
            },
            first: Some(first),
            reservation,
            carried: None,
            emitted: 0,
            filtered: false,
            declared: 1,
            entries: std::mem::take(&mut instance.entries),
            buffered: std::mem::take(&mut instance.buffered),
            last: None,
            waited: Duration::ZERO,
        };
        let instance = self.process_all(instance, &mut inputs, &mut outlet);
        let QueueOutlet { run, buffered, entries, reservation, .. } = outlet;
        drop(reservation);
        self.send(pool, first, run);
        inputs.clear();
        if let Some(mut instance) = instance {
            instance.inputs = inputs;
            instance.buffered = buffered;
            instance.entries = entries;
            self.state.idle.lock().push(instance);
        }
        true
    }

    /// Returns the budget, if memory for outputs is reserved before an item is taken. An
    /// aggregating stage takes over the reservations of its items instead.
    fn reserves(&self) -> Option<(&OutputEstimate, &Arc<Budget>)> {
        if self.aggregates { None } else { self.core.measured() }
    }

    /// Takes items from the input queue. Reserves an output place for each, and memory if outputs
    /// are measured.
    fn take_items(
        &self,
        pool: &Arc<WorkerPool>,
        stage: &S,
        inputs: &mut Vec<Item<In>>,
    ) -> Option<(u64, usize, Option<Reservation>)> {
        let Some((measure, budget)) = self.reserves() else {
            let places = self.output.reserve(run_length(&self.core, self.input.available()));
            let taken = if places > 0 { self.input.pop(places, inputs) } else { None };
            // Unused places are for other workers.
            self.output.release(places - inputs.len());
            return taken.map(|(first, wakes)| {
                drop(wakes);
                (first, inputs.len(), None)
            });
        };
        // Takes one item at a time: measured items are large, and an item that waits for memory
        // blocks later items.
        let mut waiting = self.state.waiting.lock();
        let (first, item) = match waiting.take() {
            Some(waiting) => waiting,
            None => {
                if self.output.reserve(1) == 0 {
                    return None;
                }
                let Some((first, wakes)) = self.input.pop(1, inputs) else {
                    self.output.release(1);
                    return None;
                };
                drop(wakes);
                (first, inputs.pop()?)
            }
        };
        let declared = guarded(|| Ok(stage.output_bytes(&item.value))).0.unwrap_or(None);
        let need = measure.need(declared, budget);
        match budget.try_reserve(measure.level, need) {
            Ok(Some(reservation)) => {
                self.state.waits_for.store(NO_WAITING_ITEM, Ordering::SeqCst);
                inputs.push(item);
                Some((first, 1, Some(reservation)))
            }
            Ok(None) => {
                *waiting = Some((first, item));
                self.state.waits_for.store(need, Ordering::SeqCst);
                None
            }
            Err(error) => {
                self.state.waits_for.store(NO_WAITING_ITEM, Ordering::SeqCst);
                drop(waiting);
                // The request exceeds the largest possible reservation, so the item fails. Failures
                // are handled in input order.
                let header = item.header;
                let failures =
                    vec![ItemFailure { tried: 1, before: 0, header, error, whole: true }];
                let run =
                    ItemRun { outputs: Vec::new(), places: 1, items: 1, counted: 0, failures };
                self.core.meter.record(1, 1, Duration::ZERO);
                self.send(pool, first, run);
                None
            }
        }
    }

    /// Processes a run. Returns the instance unless it panicked and could not be replaced.
    fn process_all(
        &self,
        mut instance: StageInstance<In, S>,
        inputs: &mut Vec<Item<In>>,
        outlet: &mut QueueOutlet<'_, In, S>,
    ) -> Option<StageInstance<In, S>> {
        let (mut items, mut failures) = (0, 0);
        // Only the time of a single item is known; slow items are processed one at a time.
        let bytes_of_single = match &inputs[..] {
            [item] => Some(item.reserved_bytes()),
            _ => None,
        };
        let mut time_of_single = None;
        let started = Instant::now();
        let sample = CpuSample::start(started);
        let mut broken_instance = false;
        for Item { header, value, reservation } in inputs.drain(..) {
            if self.output.is_shut() {
                break;
            }
            items += 1;
            if self.aggregates && self.core.passes_over(&header) {
                continue;
            }
            (outlet.emitted, outlet.declared, outlet.filtered) = (0, 1, false);
            if self.aggregates {
                outlet.buffered.push(&header);
            }
            let kept = outlet.keep(reservation);
            let (result, panicked) = guarded(|| {
                kept?;
                self.hooks.item(&header, || {
                    let mut cx = StageContext {
                        header: &header,
                        seed: self.core.shared.seed,
                        stage: self.core.number,
                        outlet,
                    };
                    instance.stage.process(value, &mut cx)
                })
            });
            outlet.carried = None;
            outlet.close();
            instance.last = header.bare();
            instance.used = true;
            if let Some(bytes) = bytes_of_single {
                let time = started.elapsed().saturating_sub(outlet.waited);
                self.core.meter.slowest.record(header.id, header.key(), time, bytes);
                time_of_single = Some(time);
            }
            // The failure policy decides the outcome of an item without outputs.
            let whole = outlet.emitted == 0;
            let failed = whole && result.is_err();
            if !self.aggregates && !failed {
                outlet.settle(&header);
            }
            if let Err(error) = result {
                failures += 1;
                if self.aggregates && panicked {
                    if whole {
                        outlet.buffered.pop_last();
                    }
                    outlet.leave_out();
                } else if self.aggregates && outlet.emitted == 0 {
                    outlet.buffered.pop_last();
                }
                if self.failed(outlet, items, header, error, whole) == FailureAction::Halt {
                    break;
                }
            }
            if panicked {
                // The items are counted before the instance is dropped, because dropping it loses
                // its buffered items.
                self.count_left_out(&mut instance.stage);
                match self.make() {
                    Some(stage) => instance.stage = stage,
                    None => {
                        broken_instance = true;
                        break;
                    }
                }
            }
        }
        self.count_left_out(&mut instance.stage);
        // The ledger must know the entries before the outputs leave.
        outlet.record();
        // The time of waiting for room, in which the worker may run other stages, does not count as
        // busy time of this stage.
        let busy =
            time_of_single.unwrap_or_else(|| started.elapsed().saturating_sub(outlet.waited));
        self.core.meter.record(items, failures, busy);
        // While it waited for room, the worker ran other stages.
        if outlet.waited.is_zero() {
            sample.end(&self.core.meter, busy);
        }
        (!broken_instance).then_some(instance)
    }

    fn count_left_out(&self, stage: &mut S) {
        let left_out = guarded(|| Ok(stage.take_left_out())).0.unwrap_or(0);
        self.core.shared.left_out.fetch_add(left_out, Ordering::Relaxed);
    }

    /// Applies the failure policy to a failed item: immediately, or in input order if order is
    /// restored.
    fn failed(
        &self,
        outlet: &mut QueueOutlet<'_, In, S>,
        tried: u64,
        header: ItemHeader,
        error: Error,
        whole: bool,
    ) -> FailureAction {
        let run = &mut outlet.run;
        if self.turns.is_some() {
            let before = run.outputs.len();
            run.failures.push(ItemFailure { tried, before, header, error, whole });
            return FailureAction::Continue;
        }
        self.count(run, tried);
        self.apply_policy(&header, error, whole)
    }

    /// Reports to the failure policy how many items of a run were tried. Called before a failure of
    /// the run is handled; in input order if order is restored.
    fn count(&self, run: &mut ItemRun<S::Out>, tried: u64) {
        self.core.tried(tried.saturating_sub(run.counted));
        run.counted = run.counted.max(tried);
    }

    fn apply_policy(&self, header: &ItemHeader, error: Error, whole: bool) -> FailureAction {
        if error.kind() == ErrorKind::Stopped && self.output.is_shut() {
            // Items cancelled because the pipeline stops are not failures.
            return FailureAction::Halt;
        }
        let action = self.core.item_failed(header, error);
        if action == FailureAction::Halt {
            self.input.shut();
        } else if whole {
            self.core.gone([header.member()], Outcome::Dropped);
        }
        action
    }

    /// Sends the outputs of a finished run: immediately, or in input order.
    fn send(&self, pool: &Arc<WorkerPool>, first: u64, run: ItemRun<S::Out>) {
        let Some(turns) = &self.turns else {
            let mut run = run;
            self.apply_failures(&mut run, false);
            let items = run.items;
            self.count(&mut run, items);
            // The queue rejects outputs only after the end of the pipeline.
            let _ = self.flush(pool, &mut run);
            self.output.release(run.places);
            return self.recycle_list(run.outputs);
        };
        let mut guard = turns.lock();
        guard.runs.finish(first, run);
        // The worker that finishes the next run also sends all later runs that are finished.
        while let Some(mut run) = guard.runs.take() {
            let mut halted = guard.halted;
            drop(guard);
            halted = self.apply_failures(&mut run, halted);
            let _ = self.flush(pool, &mut run);
            self.output.release(run.places);
            let items = run.items;
            self.count(&mut run, items);
            self.recycle_list(run.outputs);
            guard = turns.lock();
            guard.halted |= halted;
            guard.runs.advance(items);
        }
        drop(guard);
        // Another worker may be waiting for the turn of its run.
        pool.signal.wake_one();
    }

    /// Applies the failure policy to the next run in input order. Returns whether the stage is
    /// halted.
    fn apply_failures(&self, run: &mut ItemRun<S::Out>, halted: bool) -> bool {
        if halted {
            run.outputs.clear();
            return true;
        }
        for ItemFailure { tried, before, header, error, whole } in std::mem::take(&mut run.failures)
        {
            self.count(run, tried);
            if self.apply_policy(&header, error, whole) == FailureAction::Halt {
                run.outputs.truncate(before);
                return true;
            }
        }
        false
    }

    fn recycle_list(&self, list: Vec<Item<S::Out>>) {
        if list.capacity() > 0 && list.is_empty() {
            self.state.spare.lock().push(list);
        }
    }

    /// Sends all outputs of a run. If there are more outputs than reserved places, waits for room.
    fn flush(&self, pool: &Arc<WorkerPool>, run: &mut ItemRun<S::Out>) -> Result<()> {
        self.core.meter.emitted(run.outputs.len() as u64);
        while !run.outputs.is_empty() {
            if self.output.is_shut() {
                run.outputs.clear();
                return Err(stopped());
            }
            let missing = run.outputs.len().saturating_sub(run.places);
            if missing > 0 {
                run.places += self.output.reserve_beyond(missing);
            }
            let now = run.places.min(run.outputs.len());
            if now > 0 {
                drop(self.output.push(now, run.outputs.drain(..now)));
                run.places -= now;
            } else {
                let done = || self.output.has_place_beyond() || self.output.is_shut();
                pool.work_downstream(&self.position, done);
            }
        }
        Ok(())
    }

    fn instance(&self) -> Option<StageInstance<In, S>> {
        let idle = self.state.idle.lock().pop();
        idle.or_else(|| {
            let stage = self.make()?;
            let (inputs, buffered, entries, last) = Default::default();
            Some(StageInstance { stage, inputs, buffered, entries, last, used: false })
        })
    }

    fn make(&self) -> Option<S> {
        let stage = self.core.make(&self.hooks, &self.factory, &self.input)?;
        if !self.aggregates
            && stage.holds_back()
            && let Some(ledger) = self.core.shared.ledger.get()
        {
            ledger.record_buffering(self.core.name(), BufferingEvidence::Declared);
        }
        Some(stage)
    }

    fn ends_epoch(&self) -> bool {
        self.input.at_end() && self.output.has_room() && self.no_item_waits()
    }

    /// Forwards the end of an epoch after the instances have emitted all buffered items. Only one
    /// worker does this, while no other worker processes an item.
    fn end_epoch(&self, pool: &Arc<WorkerPool>) -> bool {
        if !self.ends_epoch() {
            return false;
        }
        let end = || {
            if !self.no_item_waits() || self.output.reserve(1) == 0 {
                return false;
            }
            self.finish_instances(pool, true);
            drop(match self.input.front_end() {
                Some(epoch) => Some(self.output.push_end(epoch)),
                None => {
                    self.output.release(1);
                    None
                }
            });
            drop(self.input.pop_end());
            true
        };
        self.state.presence.end_epoch(|| self.input.at_end(), end)
    }

    /// Calls `finish` of every instance. If the epoch has `ended`, buffered items that were not
    /// emitted are left out. After a failure they have no outcome, and a resumed run processes them
    /// again.
    fn finish_instances(&self, pool: &Arc<WorkerPool>, ended: bool) {
        let mut instances = std::mem::take(&mut *self.state.idle.lock());
        for instance in &mut instances {
            if self.output.is_shut() {
                break;
            }
            if !std::mem::take(&mut instance.used) {
                continue;
            }
            let outputs = self.state.spare.lock().pop().unwrap_or_default();
            let run = ItemRun { outputs, places: 0, items: 0, counted: 0, failures: Vec::new() };
            let mut outlet = QueueOutlet {
                node: self,
                pool,
                run,
                first: None,
                reservation: None,
                carried: None,
                emitted: 0,
                filtered: false,
                declared: 0,
                entries: std::mem::take(&mut instance.entries),
                buffered: std::mem::take(&mut instance.buffered),
                last: None,
                waited: Duration::ZERO,
            };
            let header = ItemHeader { lineage: !instance.last.lineage, ..instance.last.clone() };
            let (result, _) = guarded(|| {
                let mut cx = StageContext {
                    header: if self.aggregates { &instance.last } else { &header },
                    seed: self.core.shared.seed,
                    stage: self.core.number,
                    outlet: &mut outlet,
                };
                let result = instance.stage.finish(&mut cx);
                let left_out = instance.stage.take_left_out();
                self.core.shared.left_out.fetch_add(left_out, Ordering::Relaxed);
                result
            });
            if !self.aggregates {
                outlet.settle(&header);
            }
            outlet.close();
            if ended {
                outlet.leave_out();
                outlet.buffered.end_epoch();
            }
            outlet.record();
            let _ = self.flush(pool, &mut outlet.run);
            self.output.release(outlet.run.places);
            let QueueOutlet { run, buffered, entries, .. } = outlet;
            self.recycle_list(run.outputs);
            instance.buffered = buffered;
            instance.entries = entries;
            if let Err(error) = result
                && !self.output.is_shut()
            {
                // No single item failed, so the failure policy does not apply.
                self.core.raise(error);
                self.input.shut();
                break;
            }
        }
        self.state.idle.lock().append(&mut instances);
    }

    /// Whether the stage will have no further outputs.
    fn is_over(&self) -> bool {
        (self.input.is_finished() && self.no_item_waits())
            || self.output.is_shut()
            || self.input.is_shut()
    }

    /// Closes the output queue and shuts the input queue. Only one worker does this.
    fn close_once(&self, pool: &Arc<WorkerPool>) -> bool {
        if !self.is_over()
            || self.state.presence.count() > 0
            || self.state.done.swap(true, Ordering::SeqCst)
        {
            return false;
        }
        if let Some((_, item)) = self.state.waiting.lock().take() {
            self.output.release(1);
            drop(item);
        }
        // Items buffered since the last end of an epoch, if a failure ended the input.
        self.finish_instances(pool, false);
        self.state.idle.lock().clear();
        self.core.end(&self.hooks);
        self.input.shut();
        self.output.close();
        true
    }
}
