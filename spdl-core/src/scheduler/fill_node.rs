//! Scheduler node of a [`Fill`]: writes samples into the slots of batches.

use std::sync::Arc;
use std::time::Instant;

use super::assembly::{Assembly, Failed, Finished};
use super::cpu_node::{Factory, run_length};
use super::queue::{Queue, Wakes};
use super::worker_pool::WorkerPool;
use super::{Node, OutputEstimate, StageCore};
use crate::error::{Error, guarded};
use crate::item::lineage::{AggregateLineage, Outcome};
use crate::item::{Item, ItemHeader, ItemTag};
use crate::memory::budget::{Budget, Reservation};
use crate::memory::footprint::Footprint;
use crate::observe::hooks::Hooks;
use crate::observe::stalls::Activity;
use crate::observe::thread_times::CpuSample;
use crate::scheduler::failure::FailureAction;
use crate::stage::batch::Batch;
use crate::stage::layout::Field;
use crate::stage::slot::{Fill, FillContext, Row, SlotMut};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

pub(crate) struct FillNode<In, F> {
    pub(crate) core: StageCore,
    pub(crate) input: Arc<Queue<In>>,
    /// The output queue. Each open batch has a reserved place in it, so a complete batch can always
    /// be sent.
    pub(crate) output: Arc<Queue<Batch>>,
    pub(crate) factory: Factory<F>,
    pub(crate) hooks: Hooks,
    pub(crate) fields: Vec<Field>,
    /// Size in bytes of the stacked fields of a batch.
    pub(crate) batch_bytes: usize,
    /// Whether samples of other fields differ in size.
    pub(crate) varies: bool,
    /// Whether batches carry the identities of their samples, to record the order.
    pub(crate) keeps_members: bool,
    pub(crate) assembly: Mutex<Assembly>,
    pub(crate) state: FillState<F>,
}

/// Mutable state of the node.
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

/// Effects of a sent batch that happen after the assembly's lock is released: wake-ups, and the
/// reservation of a discarded batch.
struct BatchesSent<'a> {
    _wakes: Wakes<'a>,
    _reservation: Option<Reservation>,
    /// Whether a batch could not be built, which halts the stage.
    failed: bool,
}

/// Samples or an event taken from the input queue.
enum Taken<In> {
    /// Consecutive samples of one batch. Empty if an earlier run of the program delivered all of them. The error
    /// ends the pipeline after these samples.
    Run(Vec<TakenSample<In>>, Option<Error>),
    EpochEnd,
}

/// A sample with its number and its place in a batch.
struct TakenSample<In> {
    number: u64,
    item: Item<In>,
    rows: Vec<Row>,
}

/// A sample that was written, or that failed.
struct SettledSample {
    number: u64,
    failed: Option<Failed>,
    rows: Vec<Row>,
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
        // Stages have their own panic guard; this one catches panics of destructors.
        let fill_run = || guarded(|| Ok(self.fill_run())).0;
        let worked = before < self.core.concurrency()
            && fill_run().unwrap_or_else(|error| {
                self.core.raise(error);
                self.input.shut();
                true
            });
        self.state.running.fetch_sub(1, Ordering::SeqCst);
        // The input may have ended while this worker was counted as running.
        self.close_once() || worked
    }

    fn activity(&self) -> Activity {
        if self.state.running.load(Ordering::SeqCst) > 0 {
            return Activity::Working;
        }
        if self.ready() {
            return Activity::WaitsForWorker;
        }
        let waits = self.input.available() > 0 && self.output.has_room();
        if waits { Activity::WaitsForMemory } else { Activity::Idle }
    }

    fn drop_instances(&self) {
        // Destructors are user code, so they run outside the lock.
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
            measured.is_none_or(|(measure, budget)| {
                budget.would_grant(measure.level, self.expected_bytes(measure, budget))
            })
        };
        !assembly.needs_batch(next.epoch) || (self.output.has_room() && has_memory())
    }

    /// The bytes to reserve for a batch. The size of a batch whose samples differ in size is
    /// estimated from earlier batches.
    fn expected_bytes(&self, measure: &OutputEstimate, budget: &Budget) -> usize {
        let declared = (!self.varies).then_some(self.batch_bytes);
        measure.need(declared, budget).max(self.batch_bytes)
    }

    /// The reservation of a complete batch.
    fn measured(&self, batch: &Batch, reservation: Option<Reservation>) -> Option<Reservation> {
        let mut reservation = reservation?;
        match self.core.measured() {
            Some((measure, _)) if self.varies => {
                Some(measure.reservation(&mut reservation, batch.footprint()))
            }
            _ => Some(reservation),
        }
    }

    /// Takes samples from the queue, and writes them into their slots.
    fn fill_run(&self) -> bool {
        if self.input.available() == 0 && !self.input.at_end() {
            return false;
        }
        let Some(fill) = self.instance() else { return false };
        let (samples, error) = match self.take_next() {
            Some(Taken::Run(samples, error)) => (samples, error),
            event => {
                self.state.idle.lock().push(fill);
                return event.is_some();
            }
        };
        let settled = self.fill_all(fill, samples);
        let mut assembly = self.assembly.lock();
        for SettledSample { number, failed, rows } in settled {
            assembly.settle(number, failed, rows);
        }
        self.advance(assembly);
        if let Some(error) = error {
            self.core.raise(error);
            self.input.shut();
        }
        true
    }

    /// Writes samples into their slots. Samples that are not returned are lost, because the pipeline has ended.
    fn fill_all(&self, fill: F, samples: Vec<TakenSample<In>>) -> Vec<SettledSample> {
        let mut settled = Vec::with_capacity(samples.len());
        let mut instance = Some(fill);
        // Only the time of a single sample is known; slow samples are processed one at a time.
        let single = match &samples[..] {
            [TakenSample { item, .. }] => {
                Some((item.header.id, item.header.key().cloned(), item.reserved_bytes()))
            }
            _ => None,
        };
        let (mut items, mut failures) = (0, 0);
        let started = Instant::now();
        let sample = CpuSample::start(started);
        for TakenSample { number, item, mut rows } in samples {
            if self.output.is_shut() {
                break;
            }
            let Some(mut fill) = instance.take().or_else(|| self.instance()) else { break };
            let Item { header, value, reservation } = item;
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
            items += 1;
            failures += u64::from(result.is_err());
            let failed = result.err().map(|error| Box::new((header, error)));
            settled.push(SettledSample { number, failed, rows });
            instance = (!panicked).then_some(fill);
        }
        let busy = started.elapsed();
        sample.end(&self.core.meter, busy);
        if let Some((id, key, bytes)) = single {
            self.core.meter.slowest.record(id, key.as_ref(), busy, bytes);
        }
        self.core.record(items, failures, busy);
        self.state.idle.lock().extend(instance);
        settled
    }

    /// Takes the next samples from the queue and assigns their slots and numbers, under one lock.
    fn take_next(&self) -> Option<Taken<In>> {
        let most = run_length(&self.core, self.input.available());
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
                    let bytes = self.expected_bytes(measure, budget);
                    match budget.try_reserve(measure.level, bytes) {
                        Ok(Some(reservation)) => Some(reservation),
                        Ok(None) => {
                            drop(assembly);
                            self.output.release(1);
                            return None;
                        }
                        Err(error) => return Some(Taken::Run(Vec::new(), Some(error))),
                    }
                }
            };
            if let Err(error) = assembly.open(epoch) {
                // The reservation is dropped outside the lock.
                drop(assembly);
                drop(reservation);
                return Some(Taken::Run(Vec::new(), Some(error)));
            }
            assembly.set_reservation(reservation);
        }
        let mut items = Vec::with_capacity(most);
        let (_, wakes) = self.input.pop(most.min(assembly.room(epoch)), &mut items)?;
        let mut samples = Vec::with_capacity(items.len());
        let mut failed = None;
        for item in items {
            if self.core.passes_over(&item.header) {
                continue;
            }
            match assembly.add(item.header.member()) {
                Ok((number, rows)) => samples.push(TakenSample { number, item, rows }),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        drop(assembly);
        drop(wakes);
        Some(Taken::Run(samples, failed))
    }

    /// Sends finished batches, and applies the failure policy to failures in input order, until no
    /// batch or failure is ready.
    fn advance<'a>(&'a self, mut assembly: MutexGuard<'a, Assembly>) {
        loop {
            let wakes = self.deliver(&mut assembly, true);
            let failure = assembly.take_failure();
            drop(assembly);
            // Wake-ups and the failure policy run outside the lock.
            self.settle(wakes);
            let Some(failure) = failure else { return };
            let (header, error) = *failure;
            let halted = self.core.item_failed(&header, error) == FailureAction::Halt;
            if !halted {
                self.core.gone([header.member()], Outcome::Dropped);
            }
            if halted {
                self.input.shut();
            }
            assembly = self.assembly.lock();
            assembly.resolve(halted);
        }
    }

    /// Applies the effects of sent batches, outside the assembly's lock.
    fn settle(&self, delivered: Vec<BatchesSent<'_>>) {
        if delivered.iter().any(|delivered| delivered.failed) {
            self.input.shut();
        }
    }

    /// Sends finished batches under the assembly's lock, to keep the order. Discarded samples are
    /// left out if their epoch has `ended`.
    fn deliver(&self, assembly: &mut Assembly, ended: bool) -> Vec<BatchesSent<'_>> {
        let send = |finished| {
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
                    let reservation = self.measured(&batch, reservation);
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
            BatchesSent { _wakes: wakes, _reservation: reservation, failed }
        };
        assembly.take_finished().map(send).collect()
    }

    fn instance(&self) -> Option<F> {
        let idle = self.state.idle.lock().pop();
        idle.or_else(|| self.core.make(&self.hooks, &self.factory, &self.input))
    }

    /// Whether the stage will have no further outputs.
    fn is_over(&self) -> bool {
        self.input.is_finished() || self.output.is_shut()
    }

    /// Finishes open batches, then closes the output queue. Only one worker does this.
    fn close_once(&self) -> bool {
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
        // The epoch is incomplete: a resumed run may process discarded samples again.
        settled.extend(self.deliver(&mut assembly, false));
        drop(assembly);
        self.settle(settled);
        self.core.end(&self.hooks);
        self.input.shut();
        self.output.close();
        true
    }
}
