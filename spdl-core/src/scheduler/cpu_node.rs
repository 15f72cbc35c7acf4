//! A stage that computes, as a node of the scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::queue::Queue;
use super::reorder::Reorder;
use super::{Node, Scheduler, StageCore, guarded};
use crate::failure::Verdict;
use crate::sample::Envelope;
use crate::stage::{Outlet, Stage, StageContext};
use crate::sync::Mutex;
use crate::{Error, ErrorKind, Result, SampleId};

/// The most items a worker takes from a queue at once, where they are tiny.
const LONGEST_RUN: usize = 64;
/// A run should not take longer than this, so that work stays spread over the workers.
const RUN_TIME: Duration = Duration::from_micros(50);

pub(crate) type Factory<S> = Box<dyn Fn() -> Result<S> + Send + Sync>;

pub(crate) struct CpuNode<In, S: Stage<In>> {
    pub(crate) core: StageCore,
    pub(crate) index: usize,
    pub(crate) input: Arc<Queue<In>>,
    pub(crate) output: Arc<Queue<S::Out>>,
    pub(crate) factory: Factory<S>,
    /// Present where the stage restores its input order.
    pub(crate) reorder: Option<Mutex<Reorder<Run<S::Out>>>>,
    pub(crate) idle: Mutex<Vec<Instance<In, S>>>,
    pub(crate) running: AtomicUsize,
    pub(crate) finishing: AtomicBool,
}

/// A stage with the scratch lists of whoever runs it.
pub(crate) struct Instance<In, S: Stage<In>> {
    stage: S,
    inputs: Vec<Envelope<In>>,
    outputs: Vec<Envelope<S::Out>>,
    last: SampleId,
}

/// What a run of consecutive items left: outputs, and the places promised for them.
pub(crate) struct Run<Out> {
    outputs: Vec<Envelope<Out>>,
    places: usize,
    items: u64,
}

impl<In: Send + 'static, S: Stage<In>> Node for CpuNode<In, S> {
    fn ready(&self) -> bool {
        let can_process = self.input.available() > 0
            && self.running.load(Ordering::SeqCst) < self.core.concurrency()
            && self.output.has_room();
        can_process || self.can_finish()
    }

    fn run(&self, scheduler: &Scheduler) -> bool {
        let before = self.running.fetch_add(1, Ordering::SeqCst);
        let worked = before < self.core.concurrency() && self.run_items(scheduler);
        self.running.fetch_sub(1, Ordering::SeqCst);
        // The end may have come while this worker was counted as running.
        self.finish_once(scheduler) || worked
    }
}

impl<In: Send + 'static, S: Stage<In>> CpuNode<In, S> {
    fn run_items(&self, scheduler: &Scheduler) -> bool {
        if self.input.available() == 0 {
            return false;
        }
        let places = self.output.reserve(self.run_length());
        if places == 0 {
            return false;
        }
        let Some(mut instance) = self.instance() else {
            self.output.release(places);
            return false;
        };
        let mut inputs = std::mem::take(&mut instance.inputs);
        let Some((first, wakes)) = self.input.pop(places, &mut inputs) else {
            instance.inputs = inputs;
            self.idle.lock().push(instance);
            self.output.release(places);
            return false;
        };
        drop(wakes);
        let items = inputs.len() as u64;
        // Places beyond the items taken are for whoever takes the next ones.
        self.output.release(places - inputs.len());
        let mut outlet = QueueOutlet {
            node: self,
            scheduler,
            run: Run {
                outputs: std::mem::take(&mut instance.outputs),
                places: inputs.len(),
                items,
            },
            first,
            id: SampleId::default(),
            key: None,
            waited: Duration::ZERO,
        };
        let instance = self.process_all(instance, &mut inputs, &mut outlet);
        let run = outlet.run;
        let spare = self.put_down(scheduler, first, run);
        if let Some(mut instance) = instance {
            inputs.clear();
            instance.inputs = inputs;
            instance.outputs = spare;
            self.idle.lock().push(instance);
        }
        true
    }

    /// Processes a run; returns the instance unless a panic has spoilt it.
    fn process_all(
        &self,
        mut instance: Instance<In, S>,
        inputs: &mut Vec<Envelope<In>>,
        outlet: &mut QueueOutlet<'_, In, S>,
    ) -> Option<Instance<In, S>> {
        let (mut items, mut failures) = (0, 0);
        let started = Instant::now();
        let mut spoilt = false;
        for Envelope { id, key, value } in inputs.drain(..) {
            let who = Envelope { id, key: key.clone(), value: () };
            items += 1;
            instance.last = id;
            outlet.id = id;
            outlet.key = key;
            let (result, panicked) = guarded(|| {
                let mut cx = StageContext {
                    id,
                    key: who.key.as_deref(),
                    seed: self.core.shared.seed,
                    stage: self.core.number,
                    outlet,
                };
                instance.stage.process(value, &mut cx)
            });
            if let Err(error) = result {
                failures += 1;
                if self.core.item_failed(&who, error) == Verdict::Halt {
                    spoilt = true;
                    break;
                }
            }
            if panicked {
                match self.make() {
                    Some(stage) => instance.stage = stage,
                    None => {
                        spoilt = true;
                        break;
                    }
                }
            }
        }
        // Waiting for room, and the work of other stages done meanwhile, is not this stage's.
        let busy = started.elapsed().saturating_sub(outlet.waited);
        self.core.meter.record(items, failures, busy);
        (!spoilt).then_some(instance)
    }

    /// Hands a finished run on: at once, or in its turn. Returns the empty list for reuse.
    fn put_down(
        &self,
        scheduler: &Scheduler,
        first: u64,
        mut run: Run<S::Out>,
    ) -> Vec<Envelope<S::Out>> {
        let Some(reorder) = &self.reorder else {
            // Only the end of the pipeline keeps outputs from being taken.
            let _ = self.flush(scheduler, &mut run);
            self.output.release(run.places);
            return run.outputs;
        };
        let mut spare = Vec::new();
        let mut guard = reorder.lock();
        guard.finish(first, run);
        // Whoever finishes the next run puts down all that wait behind it.
        while let Some(mut run) = guard.take() {
            drop(guard);
            let _ = self.flush(scheduler, &mut run);
            self.output.release(run.places);
            spare = run.outputs;
            guard = reorder.lock();
            guard.advance(run.items);
        }
        spare
    }

    /// Puts all outputs of a run down, waiting for room where there are more than was promised.
    fn flush(&self, scheduler: &Scheduler, run: &mut Run<S::Out>) -> Result<()> {
        while !run.outputs.is_empty() {
            if self.core.shared.ended() {
                run.outputs.clear();
                return Err(Error::new(ErrorKind::Stopped, "the pipeline has ended"));
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
                scheduler.help(self.index, || self.output.has_place_beyond());
            }
        }
        Ok(())
    }

    /// How many items to take at once: as many as take [`RUN_TIME`], but not another worker's.
    fn run_length(&self) -> usize {
        let share = self.input.available() / self.core.concurrency();
        let by_time = match self.core.meter.mean_service() {
            Some(mean) => RUN_TIME.as_nanos() / mean.as_nanos().max(1),
            None => 1,
        };
        share.min(usize::try_from(by_time).unwrap_or(LONGEST_RUN)).clamp(1, LONGEST_RUN)
    }

    fn instance(&self) -> Option<Instance<In, S>> {
        let idle = self.idle.lock().pop();
        idle.or_else(|| {
            let stage = self.make()?;
            Some(Instance {
                stage,
                inputs: Vec::new(),
                outputs: Vec::new(),
                last: SampleId::default(),
            })
        })
    }

    /// A new stage; where the factory fails, the pipeline ends.
    fn make(&self) -> Option<S> {
        guarded(|| (self.factory)()).0.map_err(|error| self.core.raise(error)).ok()
    }

    fn can_finish(&self) -> bool {
        self.input.is_finished()
            && self.running.load(Ordering::SeqCst) == 0
            && !self.finishing.load(Ordering::SeqCst)
    }

    /// Lets every instance emit what it holds, then ends the queue behind. One worker does it.
    fn finish_once(&self, scheduler: &Scheduler) -> bool {
        if !self.can_finish() || self.finishing.swap(true, Ordering::SeqCst) {
            return false;
        }
        let instances = std::mem::take(&mut *self.idle.lock());
        for mut instance in instances {
            let id = instance.last;
            let run = Run { outputs: std::mem::take(&mut instance.outputs), places: 0, items: 0 };
            let waited = Duration::ZERO;
            let mut outlet =
                QueueOutlet { node: self, scheduler, run, first: 0, id, key: None, waited };
            let (result, _) = guarded(|| {
                let mut cx = StageContext {
                    id,
                    key: None,
                    seed: self.core.shared.seed,
                    stage: self.core.number,
                    outlet: &mut outlet,
                };
                instance.stage.finish(&mut cx)
            });
            let _ = self.flush(scheduler, &mut outlet.run);
            self.output.release(outlet.run.places);
            if let Err(error) = result {
                let who = Envelope { id, key: None, value: () };
                if self.core.item_failed(&who, error) == Verdict::Halt {
                    break;
                }
            }
        }
        self.output.close();
        true
    }
}

/// Collects a run's outputs; lets them overflow into the queue where they are many.
struct QueueOutlet<'a, In, S: Stage<In>> {
    node: &'a CpuNode<In, S>,
    scheduler: &'a Scheduler,
    run: Run<S::Out>,
    /// The number of the run's first item.
    first: u64,
    id: SampleId,
    key: Option<Arc<str>>,
    /// How long outputs waited for room.
    waited: Duration,
}

impl<In: Send + 'static, S: Stage<In>> Outlet<S::Out> for QueueOutlet<'_, In, S> {
    fn emit(&mut self, value: S::Out) -> Result<()> {
        self.run.outputs.push(Envelope { id: self.id, key: self.key.clone(), value });
        if self.run.outputs.len() <= self.run.places.max(1) {
            return Ok(());
        }
        // Out of turn, an ordered stage keeps its outputs until its run is finished.
        let in_turn = match &self.node.reorder {
            Some(reorder) => self.run.items == 0 || reorder.lock().is_next(self.first),
            None => true,
        };
        if !in_turn {
            return Ok(());
        }
        let started = Instant::now();
        let flushed = self.node.flush(self.scheduler, &mut self.run);
        self.waited += started.elapsed();
        flushed
    }
}
