//! Model checks of the barrier at the end of an epoch: every interleaving, by loom.
//!
//! `RUSTFLAGS="--cfg spdl_loom" cargo test -p spdl-core --release --lib loom_epoch_end`
//!
//! The model of the node is minimal: a list of items and ends of epochs with the hints of a queue,
//! and instances that know which items they hold. A lost wake-up of a sleeping worker shows as a
//! deadlock.

// promise of this file: R18

use std::collections::VecDeque;
use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use crate::scheduler::cpu_node::presence::Presence;
use crate::scheduler::signal::{Interest, Signal};

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// Input of the model node.
#[derive(Clone, Copy)]
enum Input {
    /// An item of this epoch.
    Item(usize),
    End(usize),
}

use Input::{End, Item};

/// An instance of the stage: the epochs of the items that it has taken since the last end of an
/// epoch.
#[derive(Default)]
struct ModelInstance {
    holds: Vec<usize>,
}

/// Result of the model node.
#[derive(Default)]
struct RunResult {
    /// Items per epoch that instances held when they were finished.
    finished: [usize; 2],
    /// Epochs whose end was forwarded.
    ended: Vec<usize>,
}

/// The part of a node that concerns the end of an epoch.
struct ModelNode {
    presence: Presence,
    signal: Signal,
    input: Mutex<VecDeque<Input>>,
    /// Hints about `input`, readable without its lock.
    available: AtomicBool,
    at_end: AtomicBool,
    finished: AtomicBool,
    /// Number of items of each epoch.
    items: [usize; 2],
    idle: Mutex<Vec<ModelInstance>>,
    /// Not a loom mutex: the barrier guarantees that only one worker uses it at a time.
    outcome: std::sync::Mutex<RunResult>,
    /// Number of workers that are ending an epoch.
    ending: AtomicUsize,
}

impl ModelNode {
    fn new(input: &[Input]) -> Arc<Self> {
        let items = [0, 1].map(|epoch| {
            input.iter().filter(|one| matches!(one, Item(of) if *of == epoch)).count()
        });
        let node = ModelNode {
            presence: Presence::default(),
            signal: Signal::new(),
            input: Mutex::new(input.iter().copied().collect()),
            available: AtomicBool::new(false),
            at_end: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            items,
            idle: Mutex::new(Vec::new()),
            outcome: std::sync::Mutex::default(),
            ending: AtomicUsize::new(0),
        };
        node.publish(&node.input.lock().unwrap());
        Arc::new(node)
    }

    fn publish(&self, input: &VecDeque<Input>) {
        self.available.store(matches!(input.front(), Some(Item(_))), Ordering::Release);
        self.at_end.store(matches!(input.front(), Some(End(_))), Ordering::Release);
        self.finished.store(input.is_empty(), Ordering::SeqCst);
    }

    fn may_take(&self) -> bool {
        self.available.load(Ordering::Acquire)
    }

    fn is_next(&self) -> bool {
        self.at_end.load(Ordering::Acquire)
    }

    fn is_ready(&self) -> bool {
        self.may_take() || (self.presence.count() == 0 && self.is_next())
    }

    /// One step of a worker: takes an item if there is one, then ends the epoch if the end is next.
    fn run(&self) -> bool {
        self.presence.enter();
        let worked = self.take_one();
        let ended = self.presence.end_epoch(|| self.is_next(), || self.end());
        self.presence.leave();
        worked || ended
    }

    fn take_one(&self) -> bool {
        // Hints may be outdated, so the worker takes an instance without checking for an item.
        if self.presence.is_ending() {
            return false;
        }
        let mut instance = self.idle.lock().unwrap().pop().unwrap_or_default();
        let mut input = self.input.lock().unwrap();
        let taken = match input.front() {
            Some(&Item(epoch)) => {
                input.pop_front();
                self.publish(&input);
                instance.holds.push(epoch);
                true
            }
            _ => false,
        };
        drop(input);
        self.idle.lock().unwrap().push(instance);
        taken
    }

    fn end(&self) -> bool {
        let others = self.ending.fetch_add(1, Ordering::Relaxed);
        assert_eq!(others, 0, "two workers end epochs concurrently");
        let mut outcome = self.outcome.lock().unwrap();
        for instance in &mut *self.idle.lock().unwrap() {
            for epoch in instance.holds.drain(..) {
                assert_eq!(epoch, outcome.ended.len(), "an item belongs to another epoch");
                outcome.finished[epoch] += 1;
            }
        }
        let mut input = self.input.lock().unwrap();
        let Some(End(epoch)) = input.pop_front() else {
            panic!("the next input is not the end of an epoch")
        };
        self.publish(&input);
        assert_eq!(outcome.finished[epoch], self.items[epoch], "an item is still in flight");
        outcome.ended.push(epoch);
        let over = input.is_empty();
        drop((input, outcome));
        self.ending.fetch_sub(1, Ordering::Relaxed);
        if over {
            self.signal.wake_all();
        }
        true
    }

    fn is_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst)
    }

    /// Main loop of a worker: run, or announce itself, check again, and sleep. No thread wakes
    /// workers before the run is over, so the last worker that leaves must see the end of the epoch
    /// itself.
    fn work(&self) {
        while !self.is_finished() {
            if self.run() {
                continue;
            }
            let permit = self.signal.prepare(Interest::All);
            if self.is_finished() || self.is_ready() {
                self.signal.cancel(permit);
                thread::yield_now();
            } else {
                self.signal.wait(permit);
            }
        }
    }

    fn check(&self, epochs: usize) {
        let outcome = self.outcome.lock().unwrap();
        assert_eq!(outcome.ended, Vec::from_iter(0..epochs));
        assert_eq!(outcome.finished, self.items);
    }
}

/// Runs `workers` threads with `turns` turns each. One of them then does the remaining work.
fn take_turns(workers: usize, turns: usize, input: &'static [Input], epochs: usize) {
    model(move || {
        let node = ModelNode::new(input);
        let worker = || {
            let node = Arc::clone(&node);
            move || {
                for _ in 0..turns {
                    node.run();
                }
            }
        };
        let others: Vec<_> = (1..workers).map(|_| thread::spawn(worker())).collect();
        worker()();
        for other in others {
            other.join().unwrap();
        }
        while node.run() {}
        node.check(epochs);
    });
}

#[test]
fn loom_epoch_end_is_sent_once_after_the_last_item_by_two_workers() {
    take_turns(2, 2, &[Item(0), Item(0), End(0), Item(1), End(1)], 2);
}

#[test]
fn loom_epoch_end_is_sent_once_after_the_last_item_by_three_workers() {
    take_turns(3, 1, &[Item(0), Item(0), End(0), Item(1), End(1)], 2);
}

#[test]
fn loom_epoch_end_is_seen_by_the_last_worker_that_leaves() {
    model(|| {
        let node = ModelNode::new(&[Item(0), Item(0), End(0)]);
        let other = thread::spawn({
            let node = Arc::clone(&node);
            move || node.work()
        });
        node.work();
        other.join().unwrap();
        node.check(1);
    });
}
