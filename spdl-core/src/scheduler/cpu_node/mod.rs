//! A stage that computes, as a node of the scheduler.

mod gathering;
mod outlet;
pub(crate) mod presence;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::gathering::Gathering;
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
use crate::resume::ledger::{BufferingEvidence, LedgerEntry, PartialItem};
use crate::scheduler::failure::FailureAction;
use crate::stage::{Stage, StageContext};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{MODELLED, Mutex};

/// The most items a worker takes from a queue at once, where they are tiny.
const MAX_RUN: usize = 64;
/// A run should not take longer than this, so that work stays spread over the workers.
const RUN_TIME: Duration = Duration::from_micros(50);

pub(crate) type Factory<S> = Box<dyn Fn() -> Result<S> + Send + Sync>;
/// Tells the bytes of an output.
pub(crate) type Sizer<T> = Box<dyn Fn(&T) -> usize + Send + Sync>;

pub(crate) struct CpuNode<In, S: Stage<In>> {
    pub(crate) core: StageCore,
    pub(crate) position: GraphPosition,
    pub(crate) input: Arc<Queue<In>>,
    pub(crate) output: Arc<Queue<S::Out>>,
    pub(crate) factory: Factory<S>,
    pub(crate) hooks: Hooks,
    /// Present where the bytes of outputs are counted.
    pub(crate) sizer: Option<Sizer<S::Out>>,
    /// Whether outputs are made of items that were held back, and carry their identities.
    pub(crate) gathers: bool,
    /// Present where the stage restores its input order.
    pub(crate) turns: Option<Mutex<RunOrder<S::Out>>>,
    pub(crate) state: CpuNodeState<In, S>,
}

/// What changes while the node works.
pub(crate) struct CpuNodeState<In, S: Stage<In>> {
    idle: Mutex<Vec<StageInstance<In, S>>>,
    /// Empty lists, for runs whose own went on with their outputs.
    spare: Mutex<Vec<Vec<Item<S::Out>>>>,
    presence: Presence,
    done: AtomicBool,
    /// Whether a run has been lost.
    broken: AtomicBool,
    /// An item that waits for memory, with its place and number, and how much it needs.
    waiting: Mutex<Option<(u64, Item<In>)>>,
    waits_for: AtomicUsize,
    /// The item that had been cut before the pipeline was resumed, and its epoch; see
    /// [`ExactResume::resume`](crate::stage::ExactResume::resume). `None` once the first item has come.
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
            waits_for: AtomicUsize::new(NOTHING_WAITS),
            carry: Mutex::new(None),
        }
    }
}

impl<In, S: Stage<In>> CpuNodeState<In, S> {
    /// Of a stage that had cut an item in an earlier run.
    pub(crate) fn carrying(carry: Option<(u64, PartialItem)>) -> Self {
        CpuNodeState { carry: Mutex::new(carry), ..CpuNodeState::default() }
    }
}

const NOTHING_WAITS: usize = usize::MAX;

/// The runs of an ordered stage, put back into their order.
pub(crate) struct RunOrder<Out> {
    runs: Reorder<ItemRun<Out>>,
    /// A failure has ended the stage: nothing behind it goes on.
    cut: bool,
}

impl<Out> Default for RunOrder<Out> {
    fn default() -> Self {
        RunOrder { runs: Reorder::default(), cut: false }
    }
}

/// A stage with the scratch lists of whoever runs it.
struct StageInstance<In, S: Stage<In>> {
    stage: S,
    inputs: Vec<Item<In>>,
    /// What it holds back, where it gathers.
    gathering: Gathering,
    /// What the account has yet to be told.
    entries: Vec<LedgerEntry>,
    /// The last item it saw, without what is shared with others.
    last: ItemHeader,
    /// Whether it has seen an item of this epoch.
    used: bool,
}

/// What a run of consecutive items left: outputs, and the places promised for them.
pub(crate) struct ItemRun<Out> {
    outputs: Vec<Item<Out>>,
    places: usize,
    items: u64,
    /// How many of them the policy knows of: those that were tried before the last failure.
    counted: u64,
    /// Items that failed: judged in their turn.
    failures: Vec<ItemFailure>,
}

/// An item that failed.
struct ItemFailure {
    /// How many items of the run had been tried then, this one included.
    tried: u64,
    /// How many outputs came before it.
    before: usize,
    header: ItemHeader,
    error: Error,
    /// Whether nothing had come of the item before it failed.
    whole: bool,
}

impl<In: Send + 'static, S: Stage<In>> Node for CpuNode<In, S> {
    fn ready(&self) -> bool {
        let state = &self.state;
        if state.done.load(Ordering::SeqCst) {
            return false;
        }
        let running = state.presence.count();
        // An item that waits for memory has its place already.
        let has_place = || !self.nothing_waits() || self.output.has_room();
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
        // The end may have come while this worker was counted as running.
        self.finish_once(pool) || worked || ended
    }

    fn drop_instances(&self) {
        // Not under the lock: their destructors may be anything.
        let idle = std::mem::take(&mut *self.state.idle.lock());
        drop(idle);
    }
}

impl<In: Send + 'static, S: Stage<In>> CpuNode<In, S> {
    /// Works on a run. Stages are guarded one by one; this is for the panics of destructors, which
    /// end the pipeline, but must not leave the node as if somebody were still at work.
    fn run_guarded(&self, pool: &Arc<WorkerPool>) -> bool {
        guarded(|| Ok(self.run_items(pool))).0.unwrap_or_else(|error| {
            self.core.raise(error);
            // The run is lost, and with it the turn of what is behind it.
            self.state.broken.store(true, Ordering::SeqCst);
            self.input.shut();
            pool.signal.wake_all();
            true
        })
    }

    fn nothing_waits(&self) -> bool {
        self.state.waits_for.load(Ordering::SeqCst) == NOTHING_WAITS
    }

    /// Whether there is an item to work on, and memory for what comes of it.
    fn may_take(&self) -> bool {
        match self.state.waits_for.load(Ordering::SeqCst) {
            NOTHING_WAITS => self.input.available() > 0,
            bytes => {
                let reserves = self.reserves();
                reserves.is_none_or(|(measure, budget)| budget.would_grant(measure.level, bytes))
            }
        }
    }

    fn run_items(&self, pool: &Arc<WorkerPool>) -> bool {
        // Where another worker deals with the end of an epoch, all instances are its own.
        if !self.may_take() || self.state.presence.is_ending() {
            return false;
        }
        let Some(mut instance) = self.instance() else { return false };
        let mut inputs = std::mem::take(&mut instance.inputs);
        let Some((first, places, reservation)) = self.take_in(pool, &instance.stage, &mut inputs)
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
            gathering: std::mem::take(&mut instance.gathering),
            last: None,
            waited: Duration::ZERO,
        };
        let instance = self.process_all(instance, &mut inputs, &mut outlet);
        let QueueOutlet { run, gathering, entries, reservation, .. } = outlet;
        drop(reservation);
        self.put_down(pool, first, run);
        inputs.clear();
        if let Some(mut instance) = instance {
            instance.inputs = inputs;
            instance.gathering = gathering;
            instance.entries = entries;
            self.state.idle.lock().push(instance);
        }
        true
    }

    /// The budget, where memory for outputs is reserved before an item is taken. What gathers takes
    /// over the memory of its items instead.
    fn reserves(&self) -> Option<(&OutputEstimate, &Arc<Budget>)> {
        if self.gathers { None } else { self.core.measured() }
    }

    /// Takes items in, with a place for an output of each, and memory where that is counted.
    fn take_in(
        &self,
        pool: &Arc<WorkerPool>,
        stage: &S,
        inputs: &mut Vec<Item<In>>,
    ) -> Option<(u64, usize, Option<Reservation>)> {
        let Some((measure, budget)) = self.reserves() else {
            let places = self.output.reserve(self.run_length());
            let taken = if places > 0 { self.input.pop(places, inputs) } else { None };
            // Places beyond the items taken are for whoever takes the next ones.
            self.output.release(places - inputs.len());
            return taken.map(|(first, wakes)| {
                drop(wakes);
                (first, inputs.len(), None)
            });
        };
        // One at a time: an item that is measured is not tiny, and one that waits holds up all.
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
                self.state.waits_for.store(NOTHING_WAITS, Ordering::SeqCst);
                inputs.push(item);
                Some((first, 1, Some(reservation)))
            }
            Ok(None) => {
                *waiting = Some((first, item));
                self.state.waits_for.store(need, Ordering::SeqCst);
                None
            }
            Err(error) => {
                self.state.waits_for.store(NOTHING_WAITS, Ordering::SeqCst);
                drop(waiting);
                // It can never be granted: a failure of that item, in its turn.
                let header = item.header;
                let failures =
                    vec![ItemFailure { tried: 1, before: 0, header, error, whole: true }];
                let run =
                    ItemRun { outputs: Vec::new(), places: 1, items: 1, counted: 0, failures };
                self.core.meter.record(1, 1, Duration::ZERO);
                self.put_down(pool, first, run);
                None
            }
        }
    }

    /// Processes a run; returns the instance unless a panic has spoilt it.
    fn process_all(
        &self,
        mut instance: StageInstance<In, S>,
        inputs: &mut Vec<Item<In>>,
        outlet: &mut QueueOutlet<'_, In, S>,
    ) -> Option<StageInstance<In, S>> {
        let (mut items, mut failures) = (0, 0);
        let started = Instant::now();
        let mut spoilt = false;
        for Item { header, value, reservation } in inputs.drain(..) {
            if self.output.is_shut() {
                break;
            }
            items += 1;
            if self.gathers && self.core.passes_over(&header) {
                continue;
            }
            (outlet.emitted, outlet.declared, outlet.filtered) = (0, 1, false);
            if self.gathers {
                outlet.gathering.take_in(&header);
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
            // What becomes of an item of which nothing came is for the policy to say.
            let whole = outlet.emitted == 0;
            let failed = whole && result.is_err();
            if !self.gathers && !failed {
                outlet.settle(&header);
            }
            if let Err(error) = result {
                failures += 1;
                if self.gathers && panicked {
                    if whole {
                        outlet.gathering.put_back();
                    }
                    outlet.leave_out();
                } else if self.gathers && outlet.emitted == 0 {
                    outlet.gathering.put_back();
                }
                if self.failed(outlet, items, header, error, whole) == FailureAction::Halt {
                    break;
                }
            }
            if panicked {
                // Asked before the instance is thrown away: what it held is lost with it.
                self.count_left_out(&mut instance.stage);
                match self.make() {
                    Some(stage) => instance.stage = stage,
                    None => {
                        spoilt = true;
                        break;
                    }
                }
            }
        }
        self.count_left_out(&mut instance.stage);
        // Before what has come of the run is handed on.
        outlet.tell();
        // Waiting for room, and the work of other stages done meanwhile, is not this stage's.
        let busy = started.elapsed().saturating_sub(outlet.waited);
        self.core.meter.record(items, failures, busy);
        (!spoilt).then_some(instance)
    }

    fn count_left_out(&self, stage: &mut S) {
        let left_out = guarded(|| Ok(stage.take_left_out())).0.unwrap_or(0);
        self.core.shared.left_out.fetch_add(left_out, Ordering::Relaxed);
    }

    /// Applies the policy to a failed item: at once, or, where order is restored, in its turn.
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
        self.judge_one(&header, error, whole)
    }

    /// Tells the policy how many items of a run have been tried: before it judges one of them, and
    /// where order is restored, in their turn.
    fn count(&self, run: &mut ItemRun<S::Out>, tried: u64) {
        self.core.tried(tried.saturating_sub(run.counted));
        run.counted = run.counted.max(tried);
    }

    fn judge_one(&self, header: &ItemHeader, error: Error, whole: bool) -> FailureAction {
        if error.kind() == ErrorKind::Stopped && self.output.is_shut() {
            // Work that was cut short because nobody wants it is no failure of its own.
            return FailureAction::Halt;
        }
        let verdict = self.core.item_failed(header, error);
        if verdict == FailureAction::Halt {
            self.input.shut();
        } else if whole {
            self.core.gone([header.member()], Outcome::Dropped);
        }
        verdict
    }

    /// Hands a finished run on: at once, or in its turn.
    fn put_down(&self, pool: &Arc<WorkerPool>, first: u64, run: ItemRun<S::Out>) {
        let Some(turns) = &self.turns else {
            let mut run = run;
            self.judge(&mut run, false);
            let items = run.items;
            self.count(&mut run, items);
            // Only the end of the pipeline keeps outputs from being taken.
            let _ = self.flush(pool, &mut run);
            self.output.release(run.places);
            return self.keep_list(run.outputs);
        };
        let mut guard = turns.lock();
        guard.runs.finish(first, run);
        // Whoever finishes the next run puts down all that wait behind it.
        while let Some(mut run) = guard.runs.take() {
            let mut cut = guard.cut;
            drop(guard);
            cut = self.judge(&mut run, cut);
            let _ = self.flush(pool, &mut run);
            self.output.release(run.places);
            let items = run.items;
            self.count(&mut run, items);
            self.keep_list(run.outputs);
            guard = turns.lock();
            guard.cut |= cut;
            guard.runs.advance(items);
        }
        drop(guard);
        // A worker may wait for its run's turn.
        pool.signal.wake_one();
    }

    /// Applies the policy to the failures of a run whose turn has come. Returns whether anything
    /// may follow.
    fn judge(&self, run: &mut ItemRun<S::Out>, cut: bool) -> bool {
        if cut {
            run.outputs.clear();
            return true;
        }
        for ItemFailure { tried, before, header, error, whole } in std::mem::take(&mut run.failures)
        {
            self.count(run, tried);
            if self.judge_one(&header, error, whole) == FailureAction::Halt {
                run.outputs.truncate(before);
                return true;
            }
        }
        false
    }

    fn keep_list(&self, list: Vec<Item<S::Out>>) {
        if list.capacity() > 0 && list.is_empty() {
            self.state.spare.lock().push(list);
        }
    }

    /// Puts all outputs of a run down, waiting for room where there are more than was promised.
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

    /// How many items to take at once: as many as take [`RUN_TIME`], but not another worker's.
    fn run_length(&self) -> usize {
        let share = self.input.available() / self.core.concurrency().max(1);
        let by_time = match self.core.meter.mean_service() {
            // A model has no clock, or no schedule could be played again.
            _ if MODELLED => 3,
            Some(mean) => RUN_TIME.as_nanos() / mean.as_nanos().max(1),
            None => 1,
        };
        share.min(usize::try_from(by_time).unwrap_or(MAX_RUN)).clamp(1, MAX_RUN)
    }

    fn instance(&self) -> Option<StageInstance<In, S>> {
        let idle = self.state.idle.lock().pop();
        idle.or_else(|| {
            let stage = self.make()?;
            let (inputs, gathering, entries, last) = Default::default();
            Some(StageInstance { stage, inputs, gathering, entries, last, used: false })
        })
    }

    fn make(&self) -> Option<S> {
        let stage = self.core.make(&self.hooks, &self.factory, &self.input)?;
        if !self.gathers
            && stage.holds_back()
            && let Some(ledger) = self.core.shared.ledger.get()
        {
            ledger.record_buffering(self.core.name(), BufferingEvidence::Declared);
        }
        Some(stage)
    }

    fn ends_epoch(&self) -> bool {
        self.input.at_end() && self.output.has_room() && self.nothing_waits()
    }

    /// Hands the end of an epoch on, behind everything that the instances hold. One worker does it,
    /// while no other is at work on an item.
    fn end_epoch(&self, pool: &Arc<WorkerPool>) -> bool {
        if !self.ends_epoch() {
            return false;
        }
        let end = || {
            if !self.nothing_waits() || self.output.reserve(1) == 0 {
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

    /// Lets every instance emit what it holds. What does not come out is left out where the epoch has
    /// `ended`; where it was cut short, nothing has become of it, and a resumed run makes it anew.
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
                gathering: std::mem::take(&mut instance.gathering),
                last: None,
                waited: Duration::ZERO,
            };
            let header = ItemHeader { lineage: !instance.last.lineage, ..instance.last.clone() };
            let (result, _) = guarded(|| {
                let mut cx = StageContext {
                    header: if self.gathers { &instance.last } else { &header },
                    seed: self.core.shared.seed,
                    stage: self.core.number,
                    outlet: &mut outlet,
                };
                let result = instance.stage.finish(&mut cx);
                let left_out = instance.stage.take_left_out();
                self.core.shared.left_out.fetch_add(left_out, Ordering::Relaxed);
                result
            });
            if !self.gathers {
                outlet.settle(&header);
            }
            outlet.close();
            if ended {
                outlet.leave_out();
                outlet.gathering.end_epoch();
            }
            outlet.tell();
            let _ = self.flush(pool, &mut outlet.run);
            self.output.release(outlet.run.places);
            let QueueOutlet { run, gathering, entries, .. } = outlet;
            self.keep_list(run.outputs);
            instance.gathering = gathering;
            instance.entries = entries;
            if let Err(error) = result
                && !self.output.is_shut()
            {
                // It is no failure of an item that could be dropped.
                self.core.raise(error);
                self.input.shut();
                break;
            }
        }
        self.state.idle.lock().append(&mut instances);
    }

    /// Whether nothing more can come of this stage.
    fn is_over(&self) -> bool {
        (self.input.is_finished() && self.nothing_waits())
            || self.output.is_shut()
            || self.input.is_shut()
    }

    /// Ends the queue behind, and where nobody wants more, the one in front. One worker does it.
    fn finish_once(&self, pool: &Arc<WorkerPool>) -> bool {
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
        // What has been held since the last end of an epoch, where a failure cut it short.
        self.finish_instances(pool, false);
        self.state.idle.lock().clear();
        self.core.end(&self.hooks);
        self.input.shut();
        self.output.close();
        true
    }
}
