//! Streams: queues of operations, and their execution.

use std::collections::VecDeque;
use std::ops::Range;
use std::thread;

use super::kernels::QueuedKernel;
use super::memory::{self, FakeAllocations};
use super::race_detector::{AccessKind, VectorClock, ViolationKind};
use super::state::{FakeState, Schedule};

/// An operation of a stream.
pub(super) enum StreamOp {
    ToDevice {
        to: u64,
        from: CopySource,
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
    /// A kernel of a consumer, or a pitched copy.
    Look(Box<dyn FnOnce(&mut FakeAllocations) + Send>),
    QueuedKernel(QueuedKernel),
    /// Completes the event record with this number.
    Record(u64),
    /// Blocks the stream until the event record completes.
    Wait(u64),
}

/// The source of a copy to the device.
pub(super) enum CopySource {
    /// A copy of the bytes that the driver made during the call, because the memory is not
    /// registered.
    Staged(Vec<u8>),
    /// Registered memory, which is read when the copy runs, and its content at the time of the
    /// call.
    Locked { address: usize, then: Vec<u8> },
}

/// The legacy default stream, and the per-thread default stream.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

pub(super) struct FakeStream {
    /// The index of the stream in vector clocks.
    number: usize,
    pub(super) is_owned: bool,
    clock: VectorClock,
    queue: VecDeque<StreamOp>,
}

#[derive(Default)]
pub(super) struct FakeEvent {
    /// The latest record, and its clock.
    pub(super) record: Option<(u64, VectorClock)>,
}

impl FakeState {
    pub(super) fn add_stream(&mut self, handle: usize, is_owned: bool) {
        let number = self.streams.values().map(|stream| stream.number + 1).max().unwrap_or(0);
        let stream =
            FakeStream { number, is_owned, clock: VectorClock::default(), queue: VecDeque::new() };
        self.streams.insert(handle, stream);
    }

    /// Resolves a handle; `CU_STREAM_PER_THREAD` is resolved to the stream of the calling thread.
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

    /// Whether a stream is under capture. Returns `None` for the legacy default stream while a
    /// per-thread default stream is captured, because the two streams are ordered with each other.
    pub(super) fn is_capturing(&mut self, handle: usize) -> Option<bool> {
        let stream = self.stream_of(handle);
        let is_captured = |stream: &usize| self.captured.contains(stream);
        if stream == LEGACY && self.thread_streams.values().any(is_captured) {
            return None;
        }
        Some(is_captured(&stream))
    }

    /// Queues an operation with its accesses.
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

    /// Orders the legacy default stream before and after all per-thread default streams.
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

    /// Creates an event record that completes after all operations that are in the stream now.
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
        let id = stream.clock.advance(stream.number);
        let clock = stream.clock.clone();
        for (range, kind) in accesses {
            self.record_access(&clock, range.clone(), *kind, Some(id));
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
        }
        self.push(stream, &[], StreamOp::Record(record));
        self.order_with_threads(stream, false);
    }

    pub(super) fn wait(&mut self, stream: usize, event: usize) {
        let record = self.events.get(&event).and_then(|event| event.record.clone());
        // A wait for an event that was never recorded has no effect.
        let Some((record, clock)) = record else { return };
        let stream = self.stream_of(stream);
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.clock.join(&clock);
        }
        self.enqueue(stream, &[], StreamOp::Wait(record));
    }

    /// Whether an event has completed. If it has, the host has observed all work before it.
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
        queued.any(
            |work| matches!(work, StreamOp::QueuedKernel(kernel) if kernel.module == Some(module)),
        )
    }

    /// Whether a stream is empty. If it is, the host has observed all its work.
    pub(super) fn is_idle(&mut self, handle: usize) -> bool {
        let Some(stream) = self.streams.get(&handle) else { return true };
        let idle = stream.queue.is_empty();
        if idle {
            self.known.join(&stream.clock);
        }
        idle
    }

    /// Runs queued work until `done` returns true, for a host that waits.
    pub(super) fn run_until(&mut self, mut done: impl FnMut(&mut FakeState) -> bool) {
        while !done(self) {
            if !self.step() {
                let message = "the host waits for work that never completes";
                return self.violate(ViolationKind::Deadlock, message);
            }
        }
    }

    /// Runs a random amount of queued work.
    pub(super) fn run_some(&mut self) {
        let Schedule::Seeded(seed) = self.schedule else { return };
        // Depending on the seed, the device is far behind the host or almost keeps up with it.
        let behind = 2 + (seed % 4) as usize * 3;
        if self.draw(behind) == 0 {
            for _ in 0..=self.draw(8) {
                self.step();
            }
        }
    }

    /// Runs one operation of a random stream that can proceed.
    pub(super) fn step(&mut self) -> bool {
        let can_proceed = |stream: &FakeStream| match stream.queue.front() {
            None => false,
            Some(StreamOp::Wait(record)) => !self.pending.contains(record),
            Some(_) => true,
        };
        let ready = self.streams.iter().filter(|(_, stream)| can_proceed(stream));
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
        match work {
            StreamOp::ToDevice { to, from: CopySource::Staged(data), .. } => self.store(to, &data),
            StreamOp::ToDevice { to, from: CopySource::Locked { address, then }, bytes } => {
                if !self.is_registered(address, bytes) {
                    return self.violate(
                        ViolationKind::InvalidAddress,
                        "a copy reads unregistered memory",
                    );
                }
                let data = super::fake_driver::read_host(address, bytes);
                if data != then {
                    let message =
                        format!("{bytes} bytes at {address:#x} changed before the copy read them");
                    self.violate(ViolationKind::HostAccessDuringCopy, message);
                }
                self.store(to, &data);
            }
            StreamOp::ToHost { to, from, bytes } => {
                if !self.is_registered(to, bytes) {
                    return self.violate(
                        ViolationKind::InvalidAddress,
                        "a copy writes unregistered memory",
                    );
                }
                if let Some(data) = memory::load(&self.memories, from, bytes) {
                    super::fake_driver::write_host(to, data);
                }
            }
            StreamOp::Fill { to, value, bytes } => self.store(to, &vec![value; bytes]),
            StreamOp::Look(look) => look(&mut self.memories),
            StreamOp::QueuedKernel(kernel) => self.run_kernel(kernel),
            StreamOp::Record(record) => {
                self.pending.remove(&record);
            }
            StreamOp::Wait(_) => {}
        }
    }
}
