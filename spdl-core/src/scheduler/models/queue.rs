//! Model checks of the queue and the signal by loom, over all interleavings.
//!
//! `RUSTFLAGS="--cfg spdl_loom" cargo test -p spdl-core --release --lib loom_`
//!
//! A lost wake-up shows as a deadlock, which loom reports with the interleaving that leads to it.

// promise of this file: R18

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use loom::future::block_on;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::item::ticket::TicketIssuer;
use crate::item::{Item, ItemHeader};
use crate::memory::buffer::BufferPool;
use crate::scheduler::RunContext;
use crate::scheduler::queue::{Next, Queue};
use crate::scheduler::reorder::Reorder;
use crate::scheduler::signal::{Interest, Signal};

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

fn item(value: u32) -> Item<u32> {
    Item::new(ItemHeader::default(), value)
}

/// A queue from which workers on the signal take items.
fn queue(capacity: usize) -> (Arc<Queue<u32>>, Arc<Signal>) {
    let signal = Arc::new(Signal::new());
    let queue = Arc::new(Queue::new(capacity, None));
    queue.set_takers(&signal);
    (queue, signal)
}

/// A queue to which workers on the signal add items.
fn putting(capacity: usize) -> (Arc<Queue<u32>>, Arc<Signal>) {
    let signal = Arc::new(Signal::new());
    (Arc::new(Queue::new(capacity, Some(Arc::clone(&signal)))), signal)
}

fn put(queue: &Queue<u32>, value: u32) {
    assert_eq!(queue.reserve(1), 1);
    drop(queue.push(1, std::iter::once(item(value))));
}

fn put_end(queue: &Queue<u32>, epoch: u64) {
    assert_eq!(queue.reserve(1), 1);
    drop(queue.push_end(epoch));
}

/// Items that a task takes until the queue ends; the end of an epoch is recorded as its number plus
/// 100.
fn take_all(queue: &Queue<u32>) -> Vec<u32> {
    let mut taken = Vec::new();
    loop {
        match block_on(poll_fn(|cx| queue.poll_next(cx))) {
            Next::Item(item) => taken.push(item.value),
            Next::EpochEnd(epoch) => taken.push(100 + epoch as u32),
            Next::Closed => return taken,
        }
    }
}

/// Main loop of a worker until `done`: run, or announce itself, check again, and sleep.
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
fn loom_a_worker_sees_work_added_before_it_sleeps() {
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
fn loom_a_partial_waiter_does_not_consume_another_wake_up() {
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
        let (queue, signal) = queue(2);
        let sum = Arc::new(AtomicUsize::new(0));
        let worker = || {
            let (signal, queue, sum) = (Arc::clone(&signal), Arc::clone(&queue), Arc::clone(&sum));
            move || {
                let step = || {
                    let mut items = Vec::new();
                    let taken = queue.pop(1, &mut items);
                    let values = items.iter().map(|item| item.value as usize);
                    sum.fetch_add(values.sum(), Ordering::SeqCst);
                    taken.is_some()
                };
                work_until(&signal, Interest::All, step, || queue.is_finished());
            }
        };
        let other = thread::spawn(worker());
        put(&queue, 1);
        put(&queue, 10);
        queue.close();
        worker()();
        other.join().unwrap();
        assert_eq!(sum.load(Ordering::SeqCst), 11);
    });
}

#[test]
fn loom_a_worker_that_waits_for_room_is_woken_by_the_consumer() {
    model(|| {
        let (queue, signal) = putting(1);
        let worker = thread::spawn({
            let queue = Arc::clone(&queue);
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
        assert_eq!(take_all(&queue), [1, 2]);
        worker.join().unwrap();
    });
}

/// A worker that checks only the hint, as a node's `ready` does, also downstream of a queue that
/// must drain first.
#[test]
fn loom_a_worker_that_checks_the_hint_is_woken_when_a_full_queue_has_drained() {
    model(|| {
        let (queue, signal) = putting(2);
        put(&queue, 1);
        put(&queue, 2);
        let worker = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let pushed = std::cell::Cell::new(false);
                let step = || {
                    if pushed.get() || !queue.has_room() || queue.reserve(1) == 0 {
                        return false;
                    }
                    pushed.set(true);
                    drop(queue.push(1, std::iter::once(item(3))));
                    true
                };
                work_until(&signal, Interest::All, step, || pushed.get());
                queue.close();
            }
        });
        assert_eq!(take_all(&queue), [1, 2, 3]);
        worker.join().unwrap();
    });
}

#[test]
fn loom_a_task_that_waits_for_room_is_woken() {
    model(|| {
        let queue = Arc::new(Queue::new(1, None));
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
        assert_eq!(take_all(&queue), [0, 1]);
        task.join().unwrap();
    });
}

#[test]
fn loom_a_task_is_woken_when_a_full_queue_has_drained() {
    model(|| {
        let queue = Arc::new(Queue::new(2, None));
        put(&queue, 0);
        put(&queue, 1);
        let task = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let places = block_on(poll_fn(|cx| queue.poll_reserve(1, cx)));
                drop(queue.push(places, std::iter::once(item(2))));
                queue.close();
            }
        });
        assert_eq!(take_all(&queue), [0, 1, 2]);
        task.join().unwrap();
    });
}

#[test]
fn loom_a_released_place_wakes_the_task_that_waits_for_it() {
    model(|| {
        let queue = Arc::new(Queue::<u32>::new(1, None));
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
fn loom_a_worker_that_waits_for_an_extra_place_is_woken() {
    model(|| {
        let (queue, signal) = putting(2);
        put(&queue, 1);
        put(&queue, 2);
        let worker = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let pushed = std::cell::Cell::new(false);
                let step = || {
                    if !pushed.get() && queue.reserve_beyond(1) == 1 {
                        drop(queue.push(1, std::iter::once(item(3))));
                        pushed.set(true);
                    }
                    pushed.get()
                };
                // Like `work_downstream`: the hint records that a worker waits.
                while !step() {
                    let ticket = signal.prepare(Interest::Some);
                    if queue.has_place_beyond() {
                        signal.cancel(ticket);
                    } else {
                        signal.wait(ticket);
                    }
                }
                queue.close();
            }
        });
        assert_eq!(take_all(&queue), [1, 2, 3]);
        worker.join().unwrap();
    });
}

#[test]
fn loom_shutting_a_queue_wakes_all_waiting_threads() {
    model(|| {
        let (queue, signal) = queue(1);
        let consumer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || assert!(take_all(&queue).is_empty())
        });
        let worker = thread::spawn({
            let queue = Arc::clone(&queue);
            move || work_until(&signal, Interest::All, || false, || queue.is_finished())
        });
        queue.shut();
        // Later items are dropped and are not counted as waiting.
        assert!(queue.reserve(1) <= 1);
        consumer.join().unwrap();
        worker.join().unwrap();
        assert!(queue.is_finished());
    });
}

#[test]
fn loom_items_sent_to_a_queue_that_is_being_shut_are_dropped() {
    model(|| {
        let queue = Arc::new(Queue::new(2, None));
        let witness = Arc::new(());
        let envelope = || Item::new(ItemHeader::default(), Arc::clone(&witness));
        assert_eq!(queue.reserve(2), 2);
        let (first, second) = (envelope(), envelope());
        let putter = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                drop(queue.push(1, std::iter::once(first)));
                drop(queue.push(1, std::iter::once(second)));
            }
        });
        let consumer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || while let Next::Item(_) = block_on(poll_fn(|cx| queue.poll_next(cx))) {}
        });
        queue.shut();
        putter.join().unwrap();
        consumer.join().unwrap();
        assert!(queue.is_finished());
        assert_eq!(Arc::strong_count(&witness), 1, "an item is still in the queue");
    });
}

#[test]
fn loom_a_shut_queue_rejects_a_task_that_waits_for_room() {
    model(|| {
        let queue = Arc::new(Queue::new(1, None));
        put(&queue, 1);
        let task = thread::spawn({
            let queue = Arc::clone(&queue);
            move || block_on(poll_fn(|cx| queue.poll_reserve(1, cx)))
        });
        queue.shut();
        assert_eq!(task.join().unwrap(), 0);
    });
}

#[test]
fn loom_the_worker_that_takes_the_last_item_of_a_closed_queue_wakes_the_other() {
    model(|| {
        let (queue, signal) = queue(1);
        put(&queue, 1);
        let worker = || {
            let (signal, queue) = (Arc::clone(&signal), Arc::clone(&queue));
            move || {
                let step = || queue.pop(1, &mut Vec::new()).is_some();
                work_until(&signal, Interest::All, step, || queue.is_finished());
            }
        };
        let workers = [thread::spawn(worker()), thread::spawn(worker())];
        queue.close();
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn loom_the_end_of_an_epoch_is_never_seen_before_its_items() {
    model(|| {
        let (queue, signal) = queue(4);
        let log = Arc::new(Mutex::new(Vec::new()));
        let worker = || {
            let (signal, queue, log) = (Arc::clone(&signal), Arc::clone(&queue), Arc::clone(&log));
            move || {
                let step = || {
                    let mut log = log.lock().unwrap();
                    let mut items = Vec::new();
                    if let Some((_, wakes)) = queue.pop(2, &mut items) {
                        log.extend(items.iter().map(|item| item.value));
                        drop(log);
                        drop(wakes);
                        return true;
                    }
                    let Some((epoch, wakes)) = queue.pop_end() else { return false };
                    log.push(100 + epoch as u32);
                    drop(log);
                    drop(wakes);
                    true
                };
                work_until(&signal, Interest::All, step, || queue.is_finished());
            }
        };
        let other = thread::spawn(worker());
        put(&queue, 1);
        put_end(&queue, 0);
        put(&queue, 2);
        queue.close();
        worker()();
        other.join().unwrap();
        assert_eq!(*log.lock().unwrap(), [1, 100, 2]);
    });
}

#[test]
fn loom_a_task_sees_the_end_of_an_epoch_after_its_items() {
    model(|| {
        let queue = Arc::new(Queue::new(2, None));
        let putter = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                put(&queue, 1);
                put_end(&queue, 7);
                queue.close();
            }
        });
        assert_eq!(take_all(&queue), [1, 107]);
        putter.join().unwrap();
    });
}

#[test]
fn loom_a_run_ends_at_the_end_of_its_epoch() {
    model(|| {
        let queue = Arc::new(Queue::new(4, None));
        put(&queue, 1);
        let putter = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                put(&queue, 2);
                put_end(&queue, 0);
                put(&queue, 3);
                queue.close();
            }
        });
        let (mut seen, mut run) = (Vec::new(), std::collections::VecDeque::new());
        loop {
            match block_on(poll_fn(|cx| queue.poll_run(4, &mut run, cx))) {
                None => {
                    assert!(!run.is_empty());
                    seen.extend(run.drain(..).map(|item| item.value));
                }
                Some(Next::EpochEnd(epoch)) => seen.push(100 + epoch as u32),
                Some(Next::Closed) => break,
                Some(Next::Item(_)) => panic!("`poll_run` returned a single item"),
            }
        }
        assert_eq!(seen, [1, 2, 100, 3]);
        putter.join().unwrap();
    });
}

#[test]
fn loom_tickets_are_drawn_retired_and_settled_without_a_lost_wake_up() {
    model(|| {
        let issuer = Arc::new(TicketIssuer::default());
        let drawer = thread::spawn({
            let issuer = Arc::clone(&issuer);
            move || {
                for number in 0..2 {
                    let ticket = block_on(poll_fn(|cx| issuer.poll_draw(1, cx)));
                    assert_eq!(ticket.number, number);
                    drop(ticket);
                }
            }
        });
        let (mut retired, mut settled) = (Vec::new(), 0);
        while settled < 2 {
            block_on(poll_fn(|cx| {
                issuer.take_retired(&mut retired, cx);
                if retired.len() > settled { Poll::Ready(()) } else { Poll::Pending }
            }));
            issuer.settle();
            settled += 1;
        }
        let numbers: Vec<u64> = retired.iter().map(|ticket| ticket.number).collect();
        assert_eq!(numbers, [0, 1]);
        drawer.join().unwrap();
    });
}

/// A pool of the caller, whose workers leave if they find no work: the protocol of `WorkerPool`.
#[test]
fn loom_work_added_while_a_worker_of_the_callers_pool_leaves_is_seen() {
    model(|| {
        let work = Arc::new(AtomicUsize::new(0));
        let done = Arc::new(AtomicUsize::new(0));
        let present = Arc::new(Mutex::new((0, 0)));
        let call = {
            let (work, present) = (Arc::clone(&work), Arc::clone(&present));
            move || {
                let mut present = present.lock().unwrap();
                // One job at a time, and only if there is work.
                if work.load(Ordering::SeqCst) > 0 && present.0 == 0 {
                    *present = (1, present.1 + 1);
                }
            }
        };
        let signal = Arc::new(Signal::calling(call.clone()));
        let visitor = thread::spawn({
            let (work, done, present) =
                (Arc::clone(&work), Arc::clone(&done), Arc::clone(&present));
            move || {
                while done.load(Ordering::SeqCst) < 2 {
                    if present.lock().unwrap().0 == 0 {
                        thread::yield_now();
                        continue;
                    }
                    while work.load(Ordering::SeqCst) > 0 {
                        work.fetch_sub(1, Ordering::SeqCst);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                    present.lock().unwrap().0 = 0;
                    // Work added after the last check would otherwise wait forever.
                    call();
                }
            }
        });
        for _ in 0..2 {
            work.fetch_add(1, Ordering::SeqCst);
            signal.wake_one();
        }
        visitor.join().unwrap();
        assert_eq!(work.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn loom_the_end_wakes_a_task_that_runs_until_then() {
    model(|| {
        let shared = Arc::new(RunContext::new(0, 1, Vec::new(), BufferPool::new()));
        let task = thread::spawn({
            let shared = Arc::clone(&shared);
            move || block_on(shared.stop_signal.while_running(std::future::pending::<()>()))
        });
        shared.stop();
        assert_eq!(task.join().unwrap(), None);
    });
}

#[test]
fn loom_a_stop_wakes_all_threads_and_tasks_that_wait_at_queues() {
    model(|| {
        let shared = Arc::new(RunContext::new(0, 1, Vec::new(), BufferPool::new()));
        let queue = Arc::new(Queue::<u32>::new(1, None));
        let failure_budget = Arc::new(crate::scheduler::failure::FailureBudget::new(
            crate::scheduler::failure::OnError::Raise,
        ));
        let name = "stage".into();
        let kind = crate::observe::statistics::StageKind::Cpu;
        let core = crate::scheduler::StageCore::new(&shared, &name, kind, 1, failure_budget, None);
        shared.add(core.meter, Arc::<Queue<u32>>::clone(&queue));
        let consumer = thread::spawn({
            let queue = Arc::clone(&queue);
            move || take_all(&queue)
        });
        shared.stop();
        assert!(consumer.join().unwrap().is_empty());
        assert!(shared.stopped() && queue.is_shut());
    });
}

/// Like `Control`: store the number, then wake all.
#[test]
fn loom_the_last_worker_sees_raised_concurrency_before_it_sleeps() {
    model(|| {
        let (queue, signal) = queue(1);
        put(&queue, 1);
        let concurrency = Arc::new(AtomicUsize::new(0));
        let worker = thread::spawn({
            let (queue, signal) = (Arc::clone(&queue), Arc::clone(&signal));
            let concurrency = Arc::clone(&concurrency);
            move || {
                let taken = std::cell::Cell::new(false);
                let step = || {
                    let may = concurrency.load(Ordering::Relaxed) > 0;
                    taken.set(taken.get() || (may && queue.pop(1, &mut Vec::new()).is_some()));
                    taken.get()
                };
                work_until(&signal, Interest::All, step, || taken.get());
            }
        });
        concurrency.store(1, Ordering::SeqCst);
        signal.wake_all();
        worker.join().unwrap();
    });
}

/// The protocol of an ordered stage: the worker that finishes the next run sends it and all runs
/// after it, each outside the lock.
#[test]
fn loom_runs_are_sent_in_order_by_any_worker() {
    model(|| {
        let turns = Arc::new(Mutex::new(Reorder::default()));
        let output = Arc::new(Queue::new(3, None));
        assert_eq!(output.reserve(3), 3);
        let finish = |number: u64| {
            let (turns, output) = (Arc::clone(&turns), Arc::clone(&output));
            move || {
                let mut guard = turns.lock().unwrap();
                guard.finish(number, number as u32);
                while let Some(value) = guard.take() {
                    drop(guard);
                    drop(output.push(1, std::iter::once(item(value))));
                    guard = turns.lock().unwrap();
                    guard.advance(1);
                }
            }
        };
        let others = [thread::spawn(finish(0)), thread::spawn(finish(2))];
        finish(1)();
        for other in others {
            other.join().unwrap();
        }
        output.close();
        assert_eq!(take_all(&output), [0, 1, 2]);
    });
}
