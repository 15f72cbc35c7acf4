//! Model checks of the memory budget: every interleaving, by loom.
//!
//! `RUSTFLAGS="--cfg spdl_loom" cargo test -p spdl-core --release --lib loom_budget`
//!
//! A lost wake-up shows as a deadlock, which loom reports with the interleaving that leads to it.

// promise of this file: R18

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use loom::future::block_on;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use crate::memory::budget::{Budget, Reservation};
use crate::scheduler::signal::{Interest, Signal};

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// A budget that wakes workers on the signal.
fn budget(limit: usize, headroom: usize, levels: usize) -> (Arc<Budget>, Arc<Signal>) {
    let budget = Budget::new(limit, Some(headroom), levels).unwrap();
    let signal = Arc::new(Signal::new());
    let wake = Arc::clone(&signal);
    budget.set_on_release(move || wake.wake_one());
    (budget, signal)
}

fn take(budget: &Arc<Budget>, level: usize, bytes: usize) -> Reservation {
    budget.try_reserve(level, bytes).unwrap().expect("the budget is still free")
}

/// Waits like a worker of the scheduler: try, announce itself, check again, and sleep.
fn wait_for(budget: &Arc<Budget>, signal: &Signal, level: usize, bytes: usize) -> Reservation {
    loop {
        if let Some(reservation) = budget.try_reserve(level, bytes).unwrap() {
            return reservation;
        }
        let permit = signal.prepare(Interest::All);
        if budget.would_grant(level, bytes) {
            signal.cancel(permit);
        } else {
            signal.wait(permit);
        }
    }
}

/// Like `wait_for`, for a worker that checks only the hint before it sleeps.
fn wait_for_hint(budget: &Arc<Budget>, signal: &Signal, level: usize, bytes: usize) -> Reservation {
    loop {
        if budget.would_grant(level, bytes) {
            if let Some(reservation) = budget.try_reserve(level, bytes).unwrap() {
                return reservation;
            }
        }
        let permit = signal.prepare(Interest::All);
        if budget.would_grant(level, bytes) {
            signal.cancel(permit);
        } else {
            signal.wait(permit);
        }
    }
}

fn reserve(budget: &Arc<Budget>, level: usize, bytes: usize) -> Reservation {
    block_on(poll_fn(|cx| budget.poll_reserve(level, bytes, cx))).unwrap()
}

#[test]
fn loom_budget_a_release_wakes_a_worker_that_is_about_to_sleep() {
    model(|| {
        let (budget, signal) = budget(10, 10, 1);
        let held = take(&budget, 0, 10);
        let worker = thread::spawn({
            let budget = Arc::clone(&budget);
            move || wait_for(&budget, &signal, 0, 10).bytes()
        });
        drop(held);
        assert_eq!(worker.join().unwrap(), 10);
        assert_eq!(budget.statistics().live_bytes, 0);
    });
}

#[test]
fn loom_budget_a_worker_that_checks_only_the_hint_is_woken() {
    model(|| {
        let (budget, signal) = budget(10, 10, 1);
        let first = take(&budget, 0, 4);
        let second = take(&budget, 0, 6);
        let worker = thread::spawn({
            let budget = Arc::clone(&budget);
            move || wait_for_hint(&budget, &signal, 0, 8).bytes()
        });
        // This release alone is not sufficient.
        drop(first);
        drop(second);
        assert_eq!(worker.join().unwrap(), 8);
    });
}

#[test]
fn loom_budget_two_workers_of_different_size_and_level_are_both_woken() {
    model(|| {
        let (budget, signal) = budget(10, 5, 2);
        let held = [take(&budget, 0, 5), take(&budget, 1, 5)];
        let spawn = |level, bytes| {
            let (budget, signal) = (Arc::clone(&budget), Arc::clone(&signal));
            thread::spawn(move || {
                drop(wait_for_hint(&budget, &signal, level, bytes));
                // The scheduler chains wake-ups: if one worker found work, another may find work
                // too.
                signal.wake_one();
            })
        };
        let workers = [spawn(0, 5), spawn(1, 3)];
        drop(held);
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(budget.statistics().live_bytes, 0);
    });
}

#[test]
fn loom_budget_two_tasks_of_different_size_are_both_woken() {
    model(|| {
        let (budget, _) = budget(10, 10, 1);
        let held = take(&budget, 0, 10);
        let spawn = |bytes| {
            let budget = Arc::clone(&budget);
            thread::spawn(move || drop(reserve(&budget, 0, bytes)))
        };
        let tasks = [spawn(10), spawn(3)];
        drop(held);
        for task in tasks {
            task.join().unwrap();
        }
        let statistics = budget.statistics();
        assert_eq!((statistics.live_bytes, statistics.peak_bytes), (0, 10));
    });
}

#[test]
fn loom_budget_a_dropped_task_does_not_consume_a_wake_up() {
    model(|| {
        let (budget, _) = budget(10, 10, 1);
        let held = take(&budget, 0, 10);
        // A task that polls once and is dropped.
        let cancelled = thread::spawn({
            let budget = Arc::clone(&budget);
            move || {
                block_on(poll_fn(|cx| {
                    drop(budget.poll_reserve(0, 10, cx));
                    Poll::Ready(())
                }));
            }
        });
        let task = thread::spawn({
            let budget = Arc::clone(&budget);
            move || drop(reserve(&budget, 0, 10))
        });
        drop(held);
        task.join().unwrap();
        cancelled.join().unwrap();
        assert_eq!(budget.statistics().live_bytes, 0);
    });
}

#[test]
fn loom_budget_concurrent_reservations_respect_the_limit() {
    model(|| {
        let (budget, _) = budget(10, 5, 2);
        let held = Arc::new(AtomicUsize::new(0));
        let spawn = |level, bytes| {
            let (budget, held) = (Arc::clone(&budget), Arc::clone(&held));
            thread::spawn(move || {
                let reservation = budget.try_reserve(level, bytes).unwrap();
                if let Some(reservation) = &reservation {
                    let before = held.fetch_add(reservation.bytes(), Ordering::SeqCst);
                    assert!(before + reservation.bytes() <= 10);
                    held.fetch_sub(reservation.bytes(), Ordering::SeqCst);
                }
                reservation.is_some()
            })
        };
        let threads = [spawn(0, 5), spawn(1, 4)];
        // The other reservations leave the headroom of level 1 free.
        let mine = budget.try_reserve(0, 1).unwrap();
        let granted = threads.map(|thread| thread.join().unwrap());
        assert!(granted[1], "upstream levels cannot take the headroom of level 1");
        assert!(granted[0] || mine.is_some());
        drop(mine);
        let statistics = budget.statistics();
        assert_eq!(statistics.live_bytes, 0);
        assert!(statistics.peak_bytes <= 10);
    });
}

#[test]
fn loom_budget_shrinking_wakes_a_worker_and_growth_is_counted() {
    model(|| {
        let (budget, signal) = budget(10, 10, 1);
        let mut held = take(&budget, 0, 8);
        let worker = thread::spawn({
            let budget = Arc::clone(&budget);
            move || {
                let reservation = wait_for(&budget, &signal, 0, 5);
                (reservation.bytes(), budget.statistics().live_bytes)
            }
        });
        held.resize(12);
        held.resize(5);
        let (bytes, live) = worker.join().unwrap();
        assert_eq!((bytes, live), (5, 10));
        drop(held);
        let statistics = budget.statistics();
        assert_eq!((statistics.live_bytes, statistics.peak_bytes), (0, 12));
        assert_eq!(statistics.overdrawn_bytes, 2);
    });
}

#[test]
fn loom_budget_joining_downstream_wakes_an_upstream_worker() {
    model(|| {
        let (budget, signal) = budget(10, 5, 2);
        let mut item = take(&budget, 0, 5);
        let mut batch = take(&budget, 1, 0);
        let source = thread::spawn({
            let budget = Arc::clone(&budget);
            move || wait_for(&budget, &signal, 0, 5).bytes()
        });
        batch.join(&mut item).unwrap();
        assert_eq!(source.join().unwrap(), 5);
        assert_eq!((batch.bytes(), item.bytes()), (5, 0));
    });
}

#[test]
fn loom_budget_a_worker_and_a_task_are_both_woken_by_one_release() {
    model(|| {
        let (budget, signal) = budget(10, 5, 2);
        let held = take(&budget, 0, 5);
        let task = thread::spawn({
            let budget = Arc::clone(&budget);
            move || drop(reserve(&budget, 0, 5))
        });
        let worker = thread::spawn({
            let budget = Arc::clone(&budget);
            move || drop(wait_for_hint(&budget, &signal, 0, 2))
        });
        drop(held);
        task.join().unwrap();
        worker.join().unwrap();
    });
}

#[test]
fn loom_budget_wake_all_wakes_workers_and_tasks() {
    model(|| {
        let (budget, signal) = budget(10, 10, 1);
        let _held = take(&budget, 0, 10);
        let ended = Arc::new(AtomicBool::new(false));
        let task = thread::spawn({
            let (budget, ended) = (Arc::clone(&budget), Arc::clone(&ended));
            move || {
                block_on(poll_fn(|cx| {
                    let polled = budget.poll_reserve(0, 1, cx);
                    assert!(polled.is_pending());
                    if ended.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
                }));
            }
        });
        let worker = thread::spawn({
            let (budget, ended) = (Arc::clone(&budget), Arc::clone(&ended));
            move || {
                while !ended.load(Ordering::SeqCst) {
                    let permit = signal.prepare(Interest::All);
                    if ended.load(Ordering::SeqCst) || budget.would_grant(0, 1) {
                        signal.cancel(permit);
                    } else {
                        signal.wait(permit);
                    }
                }
            }
        });
        ended.store(true, Ordering::SeqCst);
        budget.wake_all();
        task.join().unwrap();
        worker.join().unwrap();
    });
}
