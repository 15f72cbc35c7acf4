//! Streams as queues: what comes into them, and when it is done.

use std::collections::VecDeque;
use std::ops::Range;
use std::thread;

use super::accesses::{AccessKind, VectorClock, ViolationKind};
use super::kernels::Kernel;
use super::memory::{self, FakeAllocations};
use super::world::{FakeState, Schedule};

/// StreamOp of a stream.
pub(super) enum StreamOp {
    ToDevice {
        to: u64,
        from: HostBytes,
        bytes: usize,
    },
    ToHost {
        to: usize,
        from: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        value: u8,
        bytes: usize,
    },
    /// A consumer's, or a copy of rows.
    Look(Box<dyn FnOnce(&mut FakeAllocations) + Send>),
    Kernel(Kernel),
    /// An event is reached, for the record with this number.
    Record(u64),
    /// Goes on once that record is reached.
    Wait(u64),
}

/// What a copy to the device reads.
pub(super) enum HostBytes {
    /// The driver has taken a copy already, as it does of memory that is not locked.
    Staged(Vec<u8>),
    /// It reads when the copy is made, what should still be what it was.
    Locked { address: usize, then: Vec<u8> },
}

/// The default streams: one that waits for all others, and one of each thread.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

pub(super) struct FakeStream {
    /// Its number in clocks.
    number: usize,
    pub(super) is_ours: bool,
    clock: VectorClock,
    queue: VecDeque<StreamOp>,
}

#[derive(Default)]
pub(super) struct FakeEvent {
    /// The latest record, and what comes before it.
    pub(super) record: Option<(u64, VectorClock)>,
    pub(super) is_timer: bool,
}

impl FakeState {
    pub(super) fn add_stream(&mut self, handle: usize, is_ours: bool) {
        let number = self.streams.values().map(|stream| stream.number + 1).max().unwrap_or(0);
        let stream =
            FakeStream { number, is_ours, clock: VectorClock::default(), queue: VecDeque::new() };
        self.streams.insert(handle, stream);
    }

    /// The stream behind a handle: that of this thread for the default stream of each thread.
    pub(super) fn stream_of(&mut self, handle: usize) -> usize {
        let own = match handle {
            LEGACY => LEGACY,
            PER_THREAD => {
                let (threads, next) = (&mut self.thread_streams, self.handles + 1);
                let own = *threads.entry(thread::current().id()).or_insert(next);
                self.handles = self.handles.max(own);
                own
            }
            _ => return handle,
        };
        if !self.streams.contains_key(&own) {
            self.add_stream(own, false);
        }
        own
    }

    /// Whether a stream is captured. `None` for the legacy default stream while one of a thread is, which
    /// waits for it.
    pub(super) fn is_capturing(&mut self, handle: usize) -> Option<bool> {
        let stream = self.stream_of(handle);
        let is_captured = |stream: &usize| self.captured.contains(stream);
        if stream == LEGACY && self.thread_streams.values().any(is_captured) {
            return None;
        }
        Some(is_captured(&stream))
    }

    /// Adds work to a stream; `accesses` is what it does to which memory.
    pub(super) fn enqueue(
        &mut self,
        handle: usize,
        accesses: &[(Range<u64>, AccessKind)],
        work: StreamOp,
    ) {
        let handle = self.stream_of(handle);
        self.order_with_threads(handle, true);
        self.push(handle, accesses, work);
        self.order_with_threads(handle, false);
    }

    /// What comes into the legacy default stream waits for the default streams of all threads, and they
    /// wait for it.
    fn order_with_threads(&mut self, handle: usize, before: bool) {
        if handle != LEGACY {
            return;
        }
        for thread in self.thread_streams.values().copied().collect::<Vec<_>>() {
            let (first, second) = if before { (thread, LEGACY) } else { (LEGACY, thread) };
            let (record, clock) = self.new_record(first);
            self.push(first, &[], StreamOp::Record(record));
            if let Some(stream) = self.streams.get_mut(&second) {
                stream.clock.join(&clock);
            }
            self.push(second, &[], StreamOp::Wait(record));
        }
    }

    /// A record behind what is in a stream now.
    fn new_record(&mut self, handle: usize) -> (u64, VectorClock) {
        self.records += 1;
        self.pending.insert(self.records);
        let clock = self.streams.get(&handle).map(|stream| stream.clock.clone());
        let mut clock = clock.unwrap_or_default();
        clock.join(&self.known);
        (self.records, clock)
    }

    fn push(&mut self, handle: usize, accesses: &[(Range<u64>, AccessKind)], work: StreamOp) {
        let known = &self.known;
        let Some(stream) = self.streams.get_mut(&handle) else { return };
        stream.clock.join(known);
        let ticket = stream.clock.advance(stream.number);
        let clock = stream.clock.clone();
        for (range, deed) in accesses {
            self.touch(&clock, range.clone(), *deed, Some(ticket));
        }
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.queue.push_back(work);
        }
        if self.schedule == Schedule::Prompt {
            while self.step() {}
        }
    }

    pub(super) fn record(&mut self, event: usize, stream: usize) {
        let stream = self.stream_of(stream);
        self.order_with_threads(stream, true);
        let (record, clock) = self.new_record(stream);
        if let Some(event) = self.events.get_mut(&event) {
            event.record = Some((record, clock));
            if event.is_timer {
                self.timed.insert(record);
            }
        }
        self.push(stream, &[], StreamOp::Record(record));
        self.order_with_threads(stream, false);
    }

    pub(super) fn wait(&mut self, stream: usize, event: usize) {
        let record = self.events.get(&event).and_then(|event| event.record.clone());
        // To wait for an event that was never recorded is to wait for nothing.
        let Some((record, clock)) = record else { return };
        let stream = self.stream_of(stream);
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.clock.join(&clock);
        }
        self.enqueue(stream, &[], StreamOp::Wait(record));
    }

    /// Whether the event is reached; then the host knows all that is before it to be done.
    pub(super) fn is_complete(&mut self, event: usize) -> bool {
        let Some((record, clock)) = self.events.get(&event).and_then(|event| event.record.clone())
        else {
            return true;
        };
        let reached = !self.pending.contains(&record);
        if reached {
            self.known.join(&clock);
        }
        reached
    }

    /// Whether a kernel of this module is queued.
    pub(super) fn is_queued(&self, module: usize) -> bool {
        let mut queued = self.streams.values().flat_map(|stream| &stream.queue);
        queued.any(|work| matches!(work, StreamOp::Kernel(kernel) if kernel.module == Some(module)))
    }

    /// Whether the stream has nothing to do; then the host knows all of it to be done.
    pub(super) fn is_idle(&mut self, handle: usize) -> bool {
        let Some(stream) = self.streams.get(&handle) else { return true };
        let idle = stream.queue.is_empty();
        if idle {
            self.known.join(&stream.clock);
        }
        idle
    }

    /// Does queued work until `done`, as for a host that waits.
    pub(super) fn run_until(&mut self, mut done: impl FnMut(&mut FakeState) -> bool) {
        while !done(self) {
            if !self.step() {
                let message = "the host waits for work that waits for something that never comes";
                return self.violate(ViolationKind::WaitsForever, message);
            }
        }
    }

    /// Does a little, or nothing, or much, as chance will have it.
    pub(super) fn run_some(&mut self) {
        let Schedule::Seeded(seed) = self.schedule else { return };
        // Some devices are far behind all the time, others nearly keep up.
        let behind = 2 + (seed % 4) as usize * 3;
        if self.draw(behind) == 0 {
            for _ in 0..=self.draw(8) {
                self.step();
            }
        }
    }

    /// Does one piece of work of any stream that has one to do.
    pub(super) fn step(&mut self) -> bool {
        let can_go_on = |stream: &FakeStream| match stream.queue.front() {
            None => false,
            Some(StreamOp::Wait(record)) => !self.pending.contains(record),
            Some(_) => true,
        };
        let ready = self.streams.iter().filter(|(_, stream)| can_go_on(stream));
        let ready: Vec<usize> = ready.map(|(handle, _)| *handle).collect();
        if ready.is_empty() {
            return false;
        }
        let chosen = self.draw(ready.len());
        let stream = self.streams.get_mut(&ready[chosen]);
        if let Some(work) = stream.and_then(|stream| stream.queue.pop_front()) {
            self.execute(work);
        }
        true
    }

    fn execute(&mut self, work: StreamOp) {
        self.time += 1;
        match work {
            StreamOp::ToDevice { to, from: HostBytes::Staged(data), .. } => self.store(to, &data),
            StreamOp::ToDevice { to, from: HostBytes::Locked { address, then }, bytes } => {
                if !self.is_locked(address, bytes) {
                    return self
                        .violate(ViolationKind::NoSuchMemory, "a copy reads what was let go");
                }
                let data = super::fake_driver::read_host(address, bytes);
                if data != then {
                    let message =
                        format!("{address:#x}, {bytes} bytes, changed before they were read");
                    self.violate(ViolationKind::HostDuringCopy, message);
                }
                self.store(to, &data);
            }
            StreamOp::ToHost { to, from, bytes } => {
                if !self.is_locked(to, bytes) {
                    return self
                        .violate(ViolationKind::NoSuchMemory, "a copy writes what was let go");
                }
                if let Some(data) = memory::load(&self.memories, from, bytes) {
                    super::fake_driver::write_host(to, data);
                }
            }
            StreamOp::Fill { to, value, bytes } => self.store(to, &vec![value; bytes]),
            StreamOp::Look(look) => look(&mut self.memories),
            StreamOp::Kernel(kernel) => self.run_kernel(kernel),
            StreamOp::Record(record) => {
                self.pending.remove(&record);
                if self.timed.remove(&record) {
                    self.reached.insert(record, self.time);
                }
            }
            StreamOp::Wait(_) => {}
        }
    }
}
