//! A stage that writes samples into batches, as a node of the scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::assembly::{Assembly, Finished};
use super::cpu_node::Factory;
use super::queue::{Queue, Wakes};
use super::{Node, Scheduler, StageCore, guarded};
use crate::batch::{Batch, Field, Fill, FillContext, SlotMut};
use crate::failure::Verdict;
use crate::sample::Envelope;
use crate::sync::Mutex;

pub(crate) struct FillNode<In, F> {
    pub(crate) core: StageCore,
    pub(crate) input: Arc<Queue<In>>,
    /// Each open batch has a place promised here, so a complete one can always be put down.
    pub(crate) output: Arc<Queue<Batch>>,
    pub(crate) factory: Factory<F>,
    pub(crate) fields: Vec<Field>,
    pub(crate) assembly: Mutex<Assembly>,
    pub(crate) idle: Mutex<Vec<F>>,
    pub(crate) running: AtomicUsize,
    pub(crate) finishing: AtomicBool,
}

impl<In: Send + 'static, F: Fill<In>> Node for FillNode<In, F> {
    fn ready(&self) -> bool {
        let can_fill = self.input.available() > 0
            && self.running.load(Ordering::SeqCst) < self.core.concurrency()
            && self.has_place();
        can_fill || self.can_finish()
    }

    fn run(&self, _: &Scheduler) -> bool {
        let before = self.running.fetch_add(1, Ordering::SeqCst);
        let worked = before < self.core.concurrency() && self.fill_one();
        self.running.fetch_sub(1, Ordering::SeqCst);
        // The end may have come while this worker was counted as running.
        self.finish_once() || worked
    }
}

impl<In: Send + 'static, F: Fill<In>> FillNode<In, F> {
    fn has_place(&self) -> bool {
        let assembly = self.assembly.lock();
        let next = self.input.front_id();
        next.is_some_and(|id| !assembly.needs_batch(id.epoch) || self.output.has_room())
    }

    fn fill_one(&self) -> bool {
        if self.input.available() == 0 {
            return false;
        }
        let Some(mut fill) = self.instance() else { return false };
        let Some((number, item, mut rows)) = self.take_in() else {
            self.idle.lock().push(fill);
            return false;
        };
        let Envelope { id, key, value } = item;
        let who = Envelope { id, key, value: () };
        let started = Instant::now();
        let (result, panicked) = guarded(|| {
            let mut cx = FillContext {
                id,
                key: who.key.as_deref(),
                seed: self.core.shared.seed,
                stage: self.core.number,
            };
            fill.fill(value, SlotMut::new(&self.fields, &mut rows), &mut cx)
        });
        self.core.meter.record(1, u64::from(result.is_err()), started.elapsed());
        if !panicked {
            self.idle.lock().push(fill);
        }
        let written = result.is_ok();
        if let Err(error) = result
            && self.core.item_failed(&who, error) == Verdict::Halt
        {
            return true;
        }
        let mut assembly = self.assembly.lock();
        assembly.settle(number, written, rows);
        let wakes = self.deliver(&mut assembly);
        drop(assembly);
        drop(wakes);
        true
    }

    /// Takes the next sample from the queue and decides its place, under one lock: that gives it
    /// its number.
    fn take_in(&self) -> Option<(u64, Envelope<In>, Vec<bytes::BytesMut>)> {
        let mut assembly = self.assembly.lock();
        let epoch = self.input.front_id()?.epoch;
        if assembly.needs_batch(epoch) {
            if self.output.reserve(1) == 0 {
                return None;
            }
            assembly.open(epoch).map_err(|error| self.core.raise(error)).ok()?;
        }
        let mut item = Vec::with_capacity(1);
        let (_, taken) = self.input.pop(1, &mut item)?;
        let item = item.pop()?;
        let place = assembly.take_in(item.id);
        let (number, rows) = place.map_err(|error| self.core.raise(error)).ok()?;
        let delivered = self.deliver(&mut assembly);
        drop(assembly);
        drop((taken, delivered));
        Some((number, item, rows))
    }

    /// Hands finished batches on. Under the assembly's lock, so that they stay in order; but those
    /// who wait for them are woken when it is free.
    fn deliver(&self, assembly: &mut Assembly) -> Vec<Wakes> {
        let hand_on = |finished| match finished {
            Finished::Batch(batch) => {
                let id = batch.ids()[0];
                self.output.push(1, std::iter::once(Envelope { id, key: None, value: batch }))
            }
            Finished::Discarded(samples) => {
                self.core.shared.left_out.fetch_add(samples, Ordering::Relaxed);
                self.output.push(1, std::iter::empty())
            }
            Finished::Failed(error) => {
                self.core.raise(error);
                Wakes::default()
            }
        };
        assembly.take_finished().map(hand_on).collect()
    }

    fn instance(&self) -> Option<F> {
        let idle = self.idle.lock().pop();
        idle.or_else(|| guarded(|| (self.factory)()).0.map_err(|error| self.core.raise(error)).ok())
    }

    fn can_finish(&self) -> bool {
        self.input.is_finished()
            && self.running.load(Ordering::SeqCst) == 0
            && !self.finishing.load(Ordering::SeqCst)
    }

    /// Completes what is open, then ends the queue behind. One worker does it.
    fn finish_once(&self) -> bool {
        if !self.can_finish() || self.finishing.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.idle.lock().clear();
        let mut assembly = self.assembly.lock();
        if !self.core.shared.ended() {
            assembly.finish();
            drop(self.deliver(&mut assembly));
        }
        drop(assembly);
        self.output.close();
        true
    }
}
