//! Model checks of the barrier at the end of an epoch: every interleaving, by loom.
//!
//! `RUSTFLAGS="--cfg spdl_loom" cargo test -p spdl-core --release --lib loom_epoch_end`
//!
//! The node around the barrier is kept as small as it can be: a list of items and ends of epochs
//! with the hints of a queue, and instances that know which items they hold. Where workers sleep, a
//! lost wake-up shows as a deadlock.

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

/// What a node takes in.
#[derive(Clone, Copy)]
enum Input {
    /// An item of this epoch.
    Item(usize),
    End(usize),
}

use Input::{End, Item};

/// An instance of the stage: the items that it has taken since it was finished last, by epoch.
#[derive(Default)]
struct ModelInstance {
    holds: Vec<usize>,
}

/// What has come of the input.
#[derive(Default)]
struct RunResult {
    /// Items by epoch that instances gave back when they were finished.
    finished: [usize; 2],
    /// Epochs that have been handed on.
    ended: Vec<usize>,
}

/// A node, as far as the end of an epoch concerns it.
struct ModelNode {
    presence: Presence,
    signal: Signal,
    input: Mutex<VecDeque<Input>>,
    /// What `input` says, readable without its lock.
    available: AtomicBool,
    at_end: AtomicBool,
    finished: AtomicBool,
    /// How many items each epoch has.
    items: [usize; 2],
    idle: Mutex<Vec<ModelInstance>>,
    /// Not loom's: only one worker at a time has it, which is what the barrier is for.
    outcome: std::sync::Mutex<RunResult>,
    /// How many workers end an epoch.
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

    fn comes_next(&self) -> bool {
        self.at_end.load(Ordering::Acquire)
    }

    fn is_ready(&self) -> bool {
        self.may_take() || (self.presence.count() == 0 && self.comes_next())
    }

    /// The turn of a worker: an item where there is one, then the end of the epoch where it comes
    /// next.
    fn run(&self) -> bool {
        self.presence.enter();
        let worked = self.take_one();
        let ended = self.presence.end_epoch(|| self.comes_next(), || self.end());
        self.presence.leave();
        worked || ended
    }

    fn take_one(&self) -> bool {
        // Hints may be old: it takes an instance without asking whether there is an item for it.
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
        assert_eq!(self.ending.fetch_add(1, Ordering::Relaxed), 0, "two workers end an epoch");
        let mut outcome = self.outcome.lock().unwrap();
        for instance in &mut *self.idle.lock().unwrap() {
            for epoch in instance.holds.drain(..) {
                assert_eq!(epoch, outcome.ended.len(), "an instance holds items of two epochs");
                outcome.finished[epoch] += 1;
            }
        }
        let mut input = self.input.lock().unwrap();
        let Some(End(epoch)) = input.pop_front() else { panic!("no end comes next") };
        self.publish(&input);
        assert_eq!(outcome.finished[epoch], self.items[epoch], "an item is still under way");
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

    /// What workers do: work, or announce themselves, look again, and sleep. Nobody wakes them before
    /// it is over: whoever leaves last must see for itself that the end comes next.
    fn work(&self) {
        while !self.is_finished() {
            if self.run() {
                continue;
            }
            let ticket = self.signal.prepare(Interest::All);
            if self.is_finished() || self.is_ready() {
                self.signal.cancel(ticket);
                thread::yield_now();
            } else {
                self.signal.wait(ticket);
            }
        }
    }

    fn check(&self, epochs: usize) {
        let outcome = self.outcome.lock().unwrap();
        assert_eq!(outcome.ended, Vec::from_iter(0..epochs));
        assert_eq!(outcome.finished, self.items);
    }
}

/// So many workers, of which each has so many turns. What they leave is done by one of them.
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
fn loom_epoch_end_comes_once_and_behind_every_item_of_two_workers() {
    take_turns(2, 2, &[Item(0), Item(0), End(0), Item(1), End(1)], 2);
}

#[test]
fn loom_epoch_end_comes_once_and_behind_every_item_of_three_workers() {
    take_turns(3, 1, &[Item(0), Item(0), End(0), Item(1), End(1)], 2);
}

#[test]
fn loom_epoch_end_is_seen_by_whoever_leaves_last() {
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
