//! Model checks: every interleaving of the queue and the signal, by loom.
//!
//! `RUSTFLAGS="--cfg spdl_loom" cargo test -p spdl-core --release --lib loom_`
//!
//! A lost wake-up shows as a deadlock, which loom reports with the interleaving that leads to it.

use std::future::poll_fn;
use std::sync::Arc;

use loom::future::block_on;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::queue::{Next, Queue};
use super::signal::{Interest, Signal};
use crate::sample::{Envelope, Head};

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

fn item(value: u32) -> Envelope<u32> {
    Envelope::new(Head::default(), value)
}

/// What a worker does until `done`: work, or announce itself, look again, and sleep.
fn work_until(
    signal: &Signal,
    interest: Interest,
    mut step: impl FnMut() -> bool,
    done: impl Fn() -> bool,
) {
    while !done() {
        if step() {
            continue;
        }
        let ticket = signal.prepare(interest);
        if done() || step() {
            signal.cancel(ticket);
        } else {
            signal.wait(ticket);
        }
    }
}

#[test]
fn loom_work_made_while_a_worker_falls_asleep_is_seen() {
    model(|| {
        let shared = Arc::new((Signal::new(), AtomicUsize::new(0)));
        let worker = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let done = || shared.1.load(Ordering::Acquire) == 2;
                work_until(&shared.0, Interest::All, || false, done);
            }
        });
        for _ in 0..2 {
            shared.1.fetch_add(1, Ordering::Release);
            shared.0.wake_one();
        }
        worker.join().unwrap();
    });
}

#[test]
fn loom_a_partial_waiter_does_not_swallow_anothers_wake_up() {
    model(|| {
        // Part 0 can be done by both workers, part 1 only by the second.
        let shared = Arc::new((Signal::new(), [AtomicUsize::new(0), AtomicUsize::new(0)]));
        let spawn = |interest, part: usize| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let done = || shared.1[part].load(Ordering::Acquire) == 1;
                work_until(&shared.0, interest, || false, done);
            })
        };
        let workers = [spawn(Interest::Some, 0), spawn(Interest::All, 1)];
        for part in [1, 0] {
            shared.1[part].store(1, Ordering::Release);
            shared.0.wake_one();
        }
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn loom_two_workers_take_every_item_once_and_see_the_end() {
    model(|| {
        let signal = Arc::new(Signal::new());
        let queue = Arc::new(Queue::new(2, Arc::clone(&signal)));
        let sum = Arc::new(AtomicUsize::new(0));
        let worker = || {
            let (signal, queue, sum) = (Arc::clone(&signal), Arc::clone(&queue), Arc::clone(&sum));
            move || {
                let step = || {
                    let mut items = Vec::new();
                    let taken = queue.pop(1, &mut items);
                    sum.fetch_add(
                        items.iter().map(|item| item.value as usize).sum(),
                        Ordering::SeqCst,
                    );
                    taken.is_some()
                };
                work_until(&signal, Interest::All, step, || queue.is_finished());
            }
        };
        let other = thread::spawn(worker());
        assert_eq!(queue.reserve(2), 2);
        drop(queue.push(1, std::iter::once(item(1))));
        drop(queue.push(1, std::iter::once(item(10))));
        queue.close();
        worker()();
        other.join().unwrap();
        assert_eq!(sum.load(Ordering::SeqCst), 11);
    });
}

#[test]
fn loom_a_worker_that_waits_for_room_is_woken_by_the_consumer() {
    model(|| {
        let signal = Arc::new(Signal::new());
        let queue = Arc::new(Queue::new(1, Arc::clone(&signal)));
        let worker = thread::spawn({
            let (signal, queue) = (Arc::clone(&signal), Arc::clone(&queue));
            move || {
                let pushed = std::cell::Cell::new(0);
                let step = || {
                    if pushed.get() == 2 || queue.reserve(1) == 0 {
                        return false;
                    }
                    pushed.set(pushed.get() + 1);
                    drop(queue.push(1, std::iter::once(item(pushed.get()))));
                    true
                };
                work_until(&signal, Interest::All, step, || pushed.get() == 2);
                queue.close();
            }
        });
        let mut taken = Vec::new();
        while let Some((number, item)) = block_on(poll_fn(|cx| queue.poll_pop(cx))) {
            assert_eq!(number, taken.len() as u64);
            taken.push(item.value);
        }
        assert_eq!(taken, [1, 2]);
        worker.join().unwrap();
    });
}

#[test]
fn loom_a_task_that_waits_for_room_is_woken() {
    model(|| {
        let queue = Arc::new(Queue::new(1, Arc::new(Signal::new())));
        let task = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                for value in 0..2 {
                    assert_eq!(block_on(poll_fn(|cx| queue.poll_reserve(4, cx))), 1);
                    drop(queue.push(1, std::iter::once(item(value))));
                }
                queue.close();
            }
        });
        let mut taken = 0;
        while let Some((_, item)) = block_on(poll_fn(|cx| queue.poll_pop(cx))) {
            assert_eq!(item.value, taken);
            taken += 1;
        }
        assert_eq!(taken, 2);
        task.join().unwrap();
    });
}

#[test]
fn loom_a_released_place_wakes_the_task_that_waits_for_it() {
    model(|| {
        let queue = Arc::new(Queue::<u32>::new(1, Arc::new(Signal::new())));
        assert_eq!(queue.reserve(1), 1);
        let task = thread::spawn({
            let queue = Arc::clone(&queue);
            move || block_on(poll_fn(|cx| queue.poll_reserve(1, cx)))
        });
        queue.release(1);
        assert_eq!(task.join().unwrap(), 1);
    });
}

#[test]
fn loom_shutting_a_queue_wakes_all_who_wait() {
    model(|| {
        let signal = Arc::new(Signal::new());
        let queue = Arc::new(Queue::<u32>::new(1, Arc::clone(&signal)));
        let consumer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || assert!(block_on(poll_fn(|cx| queue.poll_pop(cx))).is_none())
        });
        let worker = thread::spawn({
            let (signal, queue) = (Arc::clone(&signal), Arc::clone(&queue));
            move || work_until(&signal, Interest::All, || false, || queue.is_finished())
        });
        queue.shut(false);
        // What still arrives is dropped, and counted in nobody's way.
        assert!(queue.reserve(1) <= 1);
        consumer.join().unwrap();
        worker.join().unwrap();
        assert!(queue.is_finished());
    });
}
