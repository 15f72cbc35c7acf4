//! A discrete-event simulator of pipelines, with a deterministic clock.
//!
//! The simulator follows the rules of the scheduler: a stage reserves a place in its output queue
//! and memory before it takes an item, free threads run the stage nearest to the consumer, and a
//! stage that restores the order keeps the places of finished items. Threads share the CPUs equally,
//! and transfers share the bandwidth equally. The simulator emits [`Statistics`], and every
//! [`SettingChange`] can be applied while it runs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use spdl_core::Statistics;
use spdl_core::memory::MemoryStatistics;
use spdl_core::observe::{
    CacheUse, ConsumerStatistics, GilStatistics, InFlightRate, Interval, Medium, Quantiles,
    QueueStatistics, SettingChange, StageKind, StageStatistics, WorkerTimes,
};

/// A distribution of times in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Times {
    Constant(f64),
    /// Between half and one and a half of the mean.
    Uniform(f64),
    Exponential(f64),
    /// `slow` for a share of the items, and `usual`, within a tenth, for the others.
    Straggling {
        usual: f64,
        slow: f64,
        share: f64,
    },
}

impl Times {
    fn draw(self, random: &mut Random) -> f64 {
        match self {
            Times::Constant(time) => time,
            Times::Uniform(mean) => mean * (0.5 + random.next()),
            Times::Exponential(mean) => -mean * (1.0 - random.next()).ln(),
            Times::Straggling { usual, slow, share } => {
                let spread = 0.9 + 0.2 * random.next();
                if random.next() < share { slow * spread } else { usual * spread }
            }
        }
    }
}

/// What a simulated stage does.
#[derive(Clone, Debug)]
pub(crate) struct StageSpec {
    pub(crate) name: &'static str,
    pub(crate) kind: StageKind,
    pub(crate) concurrency: usize,
    /// Capacity of the queue after the stage.
    pub(crate) queue: usize,
    pub(crate) ordered: bool,
    pub(crate) dedicated: bool,
    pub(crate) holds_gil: bool,
    /// CPU time of an item.
    pub(crate) cpu: Times,
    /// Waiting time of an item: the latency of a store.
    pub(crate) wait: Times,
    /// Number of inputs for one output.
    pub(crate) group: usize,
    /// Bytes of an output, which the memory budget counts if the stage is async.
    pub(crate) bytes: f64,
    pub(crate) store: StoreSpec,
    /// The share of items in the cache, and the time of such an item.
    pub(crate) cache: Option<(f64, f64)>,
}

/// Limits of the store of an async stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreSpec {
    pub(crate) medium: Medium,
    /// Bytes per second of all transfers together.
    pub(crate) bandwidth: f64,
    pub(crate) requests_per_second: f64,
    /// The store answers for this time, then pauses for the second time.
    pub(crate) pauses: Option<(f64, f64)>,
}

impl StoreSpec {
    pub(crate) const UNLIMITED: StoreSpec = StoreSpec {
        medium: Medium::Network,
        bandwidth: f64::INFINITY,
        requests_per_second: f64::INFINITY,
        pauses: None,
    };
}

impl StageSpec {
    fn new(name: &'static str, kind: StageKind, concurrency: usize, queue: usize) -> Self {
        StageSpec {
            name,
            kind,
            concurrency,
            queue,
            ordered: false,
            dedicated: false,
            holds_gil: false,
            cpu: Times::Constant(0.0),
            wait: Times::Constant(0.0),
            group: 1,
            bytes: 0.0,
            store: StoreSpec::UNLIMITED,
            cache: None,
        }
    }

    pub(crate) fn source(time: f64) -> Self {
        StageSpec {
            wait: Times::Constant(time),
            ..StageSpec::new("source", StageKind::Source, 1, 256)
        }
    }

    /// An async stage, whose queue has twice the window, as by default.
    pub(crate) fn fetch(window: usize, latency: Times) -> Self {
        StageSpec { wait: latency, ..StageSpec::new("fetch", StageKind::Async, window, 2 * window) }
    }

    /// A stage on the CPU pool.
    pub(crate) fn cpu(name: &'static str, concurrency: usize, time: Times) -> Self {
        StageSpec { cpu: time, ..StageSpec::new(name, StageKind::Cpu, concurrency, 64) }
    }

    /// A stage that groups items into batches, and two batches wait for the consumer.
    pub(crate) fn batch(items: usize) -> Self {
        StageSpec {
            cpu: Times::Constant(5e-6),
            group: items,
            ..StageSpec::new("batch", StageKind::Cpu, 1, 2)
        }
    }
}

/// A simulated pipeline.
#[derive(Clone, Debug)]
pub(crate) struct PipelineSpec {
    pub(crate) threads: usize,
    pub(crate) cpus: usize,
    /// CPUs that other programs use.
    pub(crate) others: f64,
    /// Whether there is a GIL.
    pub(crate) gil: bool,
    /// The memory budget in bytes; 0 for none.
    pub(crate) memory: f64,
    pub(crate) stages: Vec<StageSpec>,
    pub(crate) step: Times,
}

/// A linear congruential generator with an output function, one for each stage.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    /// The next number in 0..1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment(f64);

impl Eq for Moment {}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Tasks that share a capacity equally, such as threads on CPUs or transfers on a link.
///
/// The work that each task has received since the start is the same for all tasks: a virtual time.
#[derive(Debug)]
struct Shared {
    capacity: f64,
    /// The most that one task receives.
    most: f64,
    received: f64,
    updated: f64,
    tasks: BinaryHeap<Reverse<(Moment, usize)>>,
    /// Work done, and the work that tasks would have done without others.
    done: f64,
    delayed: f64,
}

impl Shared {
    fn new(capacity: f64, most: f64) -> Self {
        let tasks = BinaryHeap::new();
        Shared { capacity, most, received: 0.0, updated: 0.0, tasks, done: 0.0, delayed: 0.0 }
    }

    fn rate(&self) -> f64 {
        self.most.min(self.capacity / self.tasks.len().max(1) as f64)
    }

    fn advance(&mut self, now: f64) {
        let time = now - self.updated;
        self.received += time * self.rate();
        self.done += time * self.rate() * self.tasks.len() as f64;
        if self.most.is_finite() {
            self.delayed += time * (self.most - self.rate()) * self.tasks.len() as f64;
        }
        self.updated = now;
    }

    fn add(&mut self, now: f64, task: usize, work: f64) {
        self.advance(now);
        self.tasks.push(Reverse((Moment(self.received + work), task)));
    }

    fn next_completion(&self) -> Option<f64> {
        let Reverse((Moment(target), _)) = self.tasks.peek()?;
        Some(self.updated + (target - self.received).max(0.0) / self.rate())
    }

    /// Removes the task that completes at `now`.
    fn complete(&mut self, now: f64) -> Option<usize> {
        self.advance(now);
        self.tasks.pop().map(|Reverse((_, task))| task)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The waiting time of a task has ended.
    Waited(usize),
    /// The consumer has used an item.
    Stepped,
}

/// An item in a queue: the bytes that it reserves.
type Reserved = f64;

#[derive(Clone, Copy, Debug)]
struct Task {
    stage: usize,
    number: u64,
    started: f64,
    reserved: Reserved,
    requested_gil: f64,
    cpu: f64,
}

#[derive(Debug, Default)]
struct QueueState {
    items: VecDeque<Reserved>,
    reserved: usize,
    updated: f64,
    // Counters.
    put: u64,
    item_seconds: f64,
    full: f64,
    empty: f64,
    first: f64,
    had_items: bool,
}

#[derive(Clone, Copy, Debug)]
struct Completions {
    since: f64,
    last_in_flight: usize,
    most_in_flight: usize,
    items: u64,
    is_limiting: bool,
}

#[derive(Debug)]
struct StageState {
    running: usize,
    taken: u64,
    /// Items of the current group, and the bytes that they reserve.
    grouped: (usize, Reserved),
    /// Finished items that wait for an earlier one.
    finished: BTreeMap<u64, Reserved>,
    next: u64,
    next_request: f64,
    /// As in the scheduler: completions up to the first one before which another item has started.
    completions: Option<Completions>,
    random: Random,
    link: Shared,
    // Counters.
    items: u64,
    out: u64,
    busy: f64,
    cpu: f64,
    times: Vec<f64>,
    hits: u64,
    bytes: f64,
    /// By the number of items in flight: items and time.
    rates: BTreeMap<usize, (u64, f64)>,
}

impl StageState {
    /// Counts the time between completions.
    fn count_rate(&mut self, now: f64, in_flight: usize, is_limiting: bool) {
        let next = Completions {
            since: now,
            last_in_flight: in_flight,
            most_in_flight: 0,
            items: 0,
            is_limiting,
        };
        let Some(completions) = &mut self.completions else {
            self.completions = Some(next);
            return;
        };
        let has_started = in_flight >= completions.last_in_flight;
        completions.last_in_flight = in_flight;
        completions.most_in_flight = completions.most_in_flight.max(in_flight);
        completions.items += 1;
        completions.is_limiting &= is_limiting;
        if has_started {
            if completions.is_limiting {
                let rate = self.rates.entry(completions.most_in_flight).or_default();
                *rate = (rate.0 + completions.items, rate.1 + now - completions.since);
            }
            self.completions = Some(next);
        }
    }
}

/// A simulated pipeline that runs.
#[derive(Debug)]
pub(crate) struct Simulation {
    spec: PipelineSpec,
    now: f64,
    began: f64,
    events: BinaryHeap<Reverse<(Moment, u64, Event)>>,
    scheduled: u64,
    tasks: Vec<Task>,
    free: Vec<usize>,
    stages: Vec<StageState>,
    queues: Vec<QueueState>,
    threads_busy: usize,
    cpus: Shared,
    gil: Option<usize>,
    for_gil: VecDeque<usize>,
    live: f64,
    peak: f64,
    /// Since when a stage has waited for memory.
    memory_wanted: Option<f64>,
    memory_waited: f64,
    random: Random,
    /// Since when the consumer has waited; `None` while it uses an item.
    waiting: Option<f64>,
    delivered: u64,
    first: Option<f64>,
    waited: f64,
    waits: Vec<f64>,
    gil_requests: (u64, u64, f64),
}

impl Simulation {
    pub(crate) fn new(spec: PipelineSpec) -> Self {
        let state = |(at, stage): (usize, &StageSpec)| StageState {
            running: 0,
            taken: 0,
            grouped: (0, 0.0),
            finished: BTreeMap::new(),
            next: 0,
            next_request: 0.0,
            completions: None,
            random: Random(1 + at as u64 * 7919),
            link: Shared::new(stage.store.bandwidth, f64::INFINITY),
            items: 0,
            out: 0,
            busy: 0.0,
            cpu: 0.0,
            times: Vec::new(),
            hits: 0,
            bytes: 0.0,
            rates: BTreeMap::new(),
        };
        Simulation {
            now: 0.0,
            began: 0.0,
            events: BinaryHeap::new(),
            scheduled: 0,
            tasks: Vec::new(),
            free: Vec::new(),
            stages: spec.stages.iter().enumerate().map(state).collect(),
            queues: spec.stages.iter().map(|_| QueueState::default()).collect(),
            threads_busy: 0,
            cpus: Shared::new((spec.cpus as f64 - spec.others).max(0.1), 1.0),
            gil: None,
            for_gil: VecDeque::new(),
            live: 0.0,
            peak: 0.0,
            memory_wanted: None,
            memory_waited: 0.0,
            random: Random(99),
            waiting: Some(0.0),
            delivered: 0,
            first: None,
            waited: 0.0,
            waits: Vec::new(),
            gil_requests: (0, 0, 0.0),
            spec,
        }
    }

    /// Runs until `items` more items were delivered.
    pub(crate) fn run_items(&mut self, items: u64) {
        let target = self.delivered + items;
        self.dispatch();
        while self.delivered < target {
            assert!(self.advance(f64::INFINITY), "the simulated pipeline makes no progress");
        }
    }

    /// Runs for this time.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time.as_secs_f64();
        self.dispatch();
        while self.advance(end) {}
        self.now = end;
    }

    /// Sets all counters to zero, except rates by the number of items in flight.
    pub(crate) fn reset(&mut self) {
        self.began = self.now;
        self.memory_waited = 0.0;
        self.memory_wanted = self.memory_wanted.map(|_| self.now);
        (self.delivered, self.waited, self.first) = (0, 0.0, Some(self.now));
        self.waits.clear();
        self.waiting = self.waiting.map(|_| self.now);
        self.gil_requests = (0, 0, 0.0);
        self.cpus.advance(self.now);
        (self.cpus.done, self.cpus.delayed) = (0.0, 0.0);
        for at in 0..self.queues.len() {
            self.touch(at);
            let queue = &mut self.queues[at];
            (queue.put, queue.item_seconds, queue.full) = (0, 0.0, 0.0);
            (queue.empty, queue.first, queue.had_items) = (0.0, 0.0, true);
        }
        for stage in &mut self.stages {
            (stage.items, stage.out, stage.busy, stage.cpu) = (0, 0, 0.0, 0.0);
            (stage.hits, stage.bytes) = (0, 0.0);
            stage.times.clear();
        }
    }

    /// Items delivered per second since the start or the last reset.
    pub(crate) fn throughput(&self) -> f64 {
        self.delivered as f64 / (self.now - self.began)
    }

    /// Applies a change to the running pipeline.
    pub(crate) fn apply(&mut self, change: &SettingChange) {
        match change {
            SettingChange::Threads { threads } => self.set_threads(*threads),
            SettingChange::Cpus { cpus } => {
                self.cpus.advance(self.now);
                self.cpus.capacity = *cpus;
                if self.spec.threads == self.spec.cpus {
                    self.set_threads(cpus.round() as usize);
                }
            }
            SettingChange::Concurrency { stage, items } => {
                let stage = self.stage(stage);
                stage.concurrency = *items;
                stage.queue = stage.queue.max(*items);
            }
            SettingChange::Queue { stage, items } => self.stage(stage).queue = *items,
            SettingChange::Cost { stage, factor } => {
                let stage = self.stage(stage);
                stage.cpu = scaled(stage.cpu, *factor);
                stage.wait = scaled(stage.wait, *factor);
                stage.bytes *= factor;
                stage.store.requests_per_second /= factor;
            }
            SettingChange::CacheShare { stage, share } => {
                if let Some(cache) = &mut self.stage(stage).cache {
                    cache.0 = *share;
                }
            }
            SettingChange::CompletionOrder { stage } => self.stage(stage).ordered = false,
            SettingChange::Memory { bytes } => self.spec.memory = *bytes as f64,
            SettingChange::WithoutGil => self.spec.gil = false,
            SettingChange::StepTime { time } => {
                self.spec.step = Times::Constant(time.as_secs_f64())
            }
            change => panic!("the simulator cannot apply {change:?}"),
        }
        self.dispatch();
    }

    fn set_threads(&mut self, threads: usize) {
        let before = std::mem::replace(&mut self.spec.threads, threads);
        let shared = |it: &&mut StageSpec| it.kind.uses_cpu_pool() && !it.dedicated;
        for stage in self.spec.stages.iter_mut().filter(shared) {
            if stage.concurrency == before {
                stage.concurrency = threads;
                stage.queue = stage.queue.max(threads);
            }
        }
    }

    fn stage(&mut self, name: &str) -> &mut StageSpec {
        let found = self.spec.stages.iter_mut().find(|stage| stage.name == name);
        found.unwrap_or_else(|| panic!("no stage {name:?}"))
    }

    /// Handles the next event before `end`; returns whether there was one.
    fn advance(&mut self, end: f64) -> bool {
        /// Which of the clocks is next.
        enum Next {
            Event,
            Cpu,
            Link(usize),
        }
        let mut next = (f64::INFINITY, Next::Event);
        if let Some(Reverse((Moment(time), ..))) = self.events.peek() {
            next.0 = *time;
        }
        if let Some(time) = self.cpus.next_completion().filter(|&time| time < next.0) {
            next = (time, Next::Cpu);
        }
        for (at, stage) in self.stages.iter().enumerate() {
            if let Some(time) = stage.link.next_completion().filter(|&time| time < next.0) {
                next = (time, Next::Link(at));
            }
        }
        if !next.0.is_finite() || next.0 > end {
            return false;
        }
        self.now = next.0.max(self.now);
        match next.1 {
            Next::Event => match self.events.pop() {
                Some(Reverse((.., Event::Waited(task)))) => self.after_wait(task),
                Some(Reverse((.., Event::Stepped))) => self.waiting = Some(self.now),
                None => {}
            },
            Next::Cpu => {
                if let Some(task) = self.cpus.complete(self.now) {
                    if self.gil == Some(task) {
                        self.gil = None;
                        self.grant_gil();
                    }
                    self.complete(task);
                }
            }
            Next::Link(at) => {
                if let Some(task) = self.stages[at].link.complete(self.now) {
                    self.complete(task);
                }
            }
        }
        self.dispatch();
        true
    }

    fn schedule(&mut self, time: f64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((Moment(time), self.scheduled, event)));
    }

    /// Counts the time since the last change of a queue.
    fn touch(&mut self, at: usize) {
        let full = self.room(at) == 0;
        let queue = &mut self.queues[at];
        let time = self.now - queue.updated;
        queue.updated = self.now;
        queue.item_seconds += time * queue.items.len() as f64;
        if full {
            queue.full += time;
        }
        if queue.items.is_empty() {
            queue.empty += time;
            if !queue.had_items {
                queue.first += time;
            }
        } else {
            queue.had_items = true;
        }
    }

    fn room(&self, at: usize) -> usize {
        let used = self.queues[at].items.len() + self.queues[at].reserved;
        self.spec.stages[at].queue.saturating_sub(used)
    }

    /// Starts everything that can start, nearest to the consumer first.
    fn dispatch(&mut self) {
        loop {
            if self.take() {
                continue;
            }
            let started = (0..self.stages.len()).rev().any(|at| self.try_start(at));
            if !started {
                return;
            }
        }
    }

    /// The consumer takes an item, if it waits for one.
    fn take(&mut self) -> bool {
        let last = self.queues.len() - 1;
        let Some(since) = self.waiting else { return false };
        if self.queues[last].items.is_empty() {
            return false;
        }
        self.touch(last);
        self.live -= self.queues[last].items.pop_front().unwrap_or(0.0);
        self.waited += self.now - since;
        self.waits.push(self.now - since);
        self.waiting = None;
        self.delivered += 1;
        self.first.get_or_insert(self.now);
        let step = self.spec.step.draw(&mut self.random);
        self.schedule(self.now + step, Event::Stepped);
        true
    }

    fn try_start(&mut self, at: usize) -> bool {
        let spec = &self.spec.stages[at];
        let is_shared = spec.kind.uses_cpu_pool() && !spec.dedicated;
        let has_input = at == 0 || !self.queues[at - 1].items.is_empty();
        let has_thread = !is_shared || self.threads_busy < self.spec.threads;
        let is_free = self.stages[at].running < spec.concurrency;
        if !(has_input && is_free && has_thread && self.room(at) > 0) {
            return false;
        }
        let bytes = if spec.kind == StageKind::Async { spec.bytes } else { 0.0 };
        if bytes > 0.0 && self.spec.memory > 0.0 {
            if self.live + bytes > self.spec.memory {
                self.memory_wanted.get_or_insert(self.now);
                return false;
            }
            if let Some(since) = self.memory_wanted.take() {
                self.memory_waited += self.now - since;
            }
        }
        self.start(at, bytes);
        true
    }

    fn start(&mut self, at: usize, bytes: f64) {
        let spec = self.spec.stages[at].clone();
        let mut reserved = bytes;
        self.live += bytes;
        self.peak = self.peak.max(self.live);
        if at > 0 {
            self.touch(at - 1);
            reserved += self.queues[at - 1].items.pop_front().unwrap_or(0.0);
        }
        self.touch(at);
        self.queues[at].reserved += 1;
        if spec.kind.uses_cpu_pool() && !spec.dedicated {
            self.threads_busy += 1;
        }
        let stage = &mut self.stages[at];
        stage.running += 1;
        stage.taken += 1;
        let (number, started) = (stage.taken - 1, self.now);
        let cpu = spec.cpu.draw(&mut stage.random);
        let mut wait = spec.wait.draw(&mut stage.random);
        let cached = stage.random.next();
        let hit = spec.cache.filter(|(share, _)| cached < *share);
        let mut transfers = spec.kind == StageKind::Async;
        if let Some((_, time)) = hit {
            (wait, transfers) = (time, false);
            stage.hits += 1;
        } else if spec.kind == StageKind::Async {
            let begins = stage.next_request.max(self.now);
            if spec.store.requests_per_second.is_finite() {
                stage.next_request = begins + 1.0 / spec.store.requests_per_second;
            }
            let mut ends = begins + wait;
            if let Some((answers, pauses)) = spec.store.pauses {
                let phase = ends % (answers + pauses);
                if phase > answers {
                    ends += answers + pauses - phase;
                }
            }
            wait = ends - self.now;
        }
        // A negative CPU time marks a task without a transfer.
        let cpu = if transfers || spec.kind.uses_cpu_pool() { cpu } else { -1.0 };
        let task = Task { stage: at, number, started, reserved, requested_gil: 0.0, cpu };
        let index = match self.free.pop() {
            Some(index) => {
                self.tasks[index] = task;
                index
            }
            None => {
                self.tasks.push(task);
                self.tasks.len() - 1
            }
        };
        if wait > 0.0 {
            self.schedule(self.now + wait, Event::Waited(index));
        } else {
            self.after_wait(index);
        }
    }

    fn after_wait(&mut self, index: usize) {
        let task = self.tasks[index];
        let spec = &self.spec.stages[task.stage];
        if spec.kind.uses_cpu_pool() {
            if spec.holds_gil && self.spec.gil {
                self.tasks[index].requested_gil = self.now;
                self.for_gil.push_back(index);
                self.grant_gil();
            } else {
                self.cpus.add(self.now, index, task.cpu);
            }
        } else if task.cpu >= 0.0 && spec.store.bandwidth.is_finite() {
            let bytes = spec.bytes;
            self.stages[task.stage].link.add(self.now, index, bytes);
        } else {
            self.complete(index);
        }
    }

    fn grant_gil(&mut self) {
        if self.gil.is_some() {
            return;
        }
        if let Some(index) = self.for_gil.pop_front() {
            self.gil = Some(index);
            let task = self.tasks[index];
            let waited = self.now - task.requested_gil;
            let (all, contended, total) = &mut self.gil_requests;
            (*all, *total) = (*all + 1, *total + waited);
            *contended += u64::from(waited > 1e-4);
            self.cpus.add(self.now, index, task.cpu);
        }
    }

    fn complete(&mut self, index: usize) {
        let task = self.tasks[index];
        self.free.push(index);
        let at = task.stage;
        let spec = self.spec.stages[at].clone();
        if spec.kind.uses_cpu_pool() && !spec.dedicated {
            self.threads_busy -= 1;
        }
        let waits = at > 0 && !self.queues[at - 1].items.is_empty();
        let downstream_has_items = !self.queues[at].items.is_empty();
        let stage = &mut self.stages[at];
        let in_flight = stage.running;
        stage.running -= 1;
        let time = self.now - task.started;
        stage.items += 1;
        stage.busy += time;
        stage.cpu += task.cpu.max(0.0);
        stage.times.push(time);
        stage.bytes += spec.bytes;
        if spec.kind == StageKind::Async {
            let is_full = in_flight >= spec.concurrency;
            let is_limiting = is_full || (waits && !downstream_has_items);
            stage.count_rate(self.now, in_flight, is_limiting);
        }
        if spec.group > 1 {
            let (items, bytes) = &mut stage.grouped;
            (*items, *bytes) = (*items + 1, *bytes + task.reserved);
            if *items < spec.group {
                self.touch(at);
                self.queues[at].reserved -= 1;
                return;
            }
            let bytes = *bytes;
            stage.grouped = (0, 0.0);
            self.put(at, bytes);
            return;
        }
        stage.finished.insert(task.number, task.reserved);
        if !spec.ordered {
            // Also items that waited before the order was changed.
            for reserved in std::mem::take(&mut self.stages[at].finished).into_values() {
                self.put(at, reserved);
            }
            return;
        }
        while let Some(reserved) = {
            let stage = &mut self.stages[at];
            stage.finished.remove(&stage.next)
        } {
            self.stages[at].next += 1;
            self.put(at, reserved);
        }
    }

    fn put(&mut self, at: usize, reserved: Reserved) {
        self.touch(at);
        let queue = &mut self.queues[at];
        queue.reserved -= 1;
        queue.items.push_back(reserved);
        queue.put += 1;
        self.stages[at].out += 1;
    }

    /// The statistics since the start or the last reset, as an interval, and a reset of all counters.
    pub(crate) fn next_interval(&mut self) -> Interval {
        let statistics = self.statistics();
        let mut interval = Interval::default();
        (interval.started_after, interval.length) = (seconds(self.began), statistics.elapsed);
        (interval.threads, interval.cpus) = (statistics.threads, statistics.cpus);
        (interval.workers, interval.gil) = (statistics.workers, statistics.gil);
        (interval.stages, interval.queues) = (statistics.stages, statistics.queues);
        (interval.consumer, interval.memory) = (statistics.consumer, statistics.memory);
        self.reset();
        self.stages.iter_mut().for_each(|stage| stage.rates.clear());
        interval
    }

    /// The statistics since the start or the last reset.
    pub(crate) fn statistics(&mut self) -> Statistics {
        for at in 0..self.queues.len() {
            self.touch(at);
        }
        self.cpus.advance(self.now);
        let elapsed = seconds(self.now - self.began);
        let mut statistics = Statistics::default();
        statistics.elapsed = elapsed;
        (statistics.threads, statistics.cpus) = (self.spec.threads, self.spec.cpus);
        let mut workers = WorkerTimes::default();
        (workers.on_cpu, workers.waited) = (seconds(self.cpus.done), seconds(self.cpus.delayed));
        statistics.workers = Some(workers);
        if self.spec.gil {
            let (all, contended, waited) = self.gil_requests;
            let mut gil = GilStatistics::default();
            gil.contended = contended as f64 / all.max(1) as f64;
            gil.waited = seconds(waited);
            statistics.gil = Some(gil);
        }
        let stages = self.spec.stages.iter().zip(&self.stages);
        statistics.stages = stages.map(|(spec, state)| stage_statistics(spec, state)).collect();
        let queues = self.spec.stages.iter().zip(&self.queues);
        statistics.queues =
            queues.map(|(spec, state)| queue_statistics(spec, state, elapsed)).collect();
        let mut consumer = ConsumerStatistics::default();
        consumer.items = self.delivered;
        consumer.first_item = self.first.map(|first| seconds((first - self.began).max(0.0)));
        consumer.waited = seconds(self.waited);
        consumer.wait = quantiles(&self.waits);
        statistics.consumer = consumer;
        let mut memory = MemoryStatistics::default();
        memory.limit_bytes = self.spec.memory as usize;
        memory.live_bytes = self.live.max(0.0) as usize;
        memory.peak_bytes = self.peak as usize;
        let waiting = self.memory_wanted.map_or(0.0, |since| self.now - since);
        memory.waited = seconds(self.memory_waited + waiting);
        statistics.memory = memory;
        statistics
    }
}

fn scaled(times: Times, factor: f64) -> Times {
    match times {
        Times::Constant(time) => Times::Constant(time * factor),
        Times::Uniform(time) => Times::Uniform(time * factor),
        Times::Exponential(time) => Times::Exponential(time * factor),
        Times::Straggling { usual, slow, share } => {
            Times::Straggling { usual: usual * factor, slow: slow * factor, share }
        }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.max(0.0))
}

fn quantiles(times: &[f64]) -> Quantiles {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let rank = (sorted.len() as f64 * share).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(Duration::ZERO, |time| seconds(*time))
    };
    let mut quantiles = Quantiles::default();
    (quantiles.p50, quantiles.p90) = (at(0.5), at(0.9));
    (quantiles.p99, quantiles.max) = (at(0.99), at(1.0));
    quantiles
}

fn stage_statistics(spec: &StageSpec, state: &StageState) -> StageStatistics {
    let mut stage = StageStatistics::new(spec.name, spec.kind, spec.concurrency);
    (stage.dedicated, stage.ordered) = (spec.dedicated, spec.ordered);
    (stage.holds_gil, stage.medium) = (spec.holds_gil, spec.store.medium);
    (stage.items, stage.items_out) = (state.items, state.out);
    stage.busy = seconds(state.busy);
    stage.service = quantiles(&state.times);
    stage.bytes = state.bytes as u64;
    if spec.kind.uses_cpu_pool() && state.busy > 0.0 {
        stage.cpu_share = Some((state.cpu / state.busy).min(1.0));
    }
    if let Some((_, time)) = spec.cache {
        let share = state.hits as f64 / state.items.max(1) as f64;
        stage.cache = Some(CacheUse::new(share.min(1.0), seconds(time)));
    }
    let rate = |(&in_flight, &(items, time)): (&usize, &(u64, f64))| {
        InFlightRate::new(in_flight as f64, items, seconds(time))
    };
    stage.rates = state.rates.iter().map(rate).collect();
    stage
}

fn queue_statistics(spec: &StageSpec, state: &QueueState, elapsed: Duration) -> QueueStatistics {
    let mut queue = QueueStatistics::default();
    let elapsed = elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    (queue.capacity, queue.len, queue.items) = (spec.queue, state.items.len(), state.put);
    queue.mean_len = state.item_seconds / elapsed;
    (queue.put_wait, queue.get_wait) = (seconds(state.full), seconds(state.empty));
    queue.first_wait = seconds(state.first);
    queue.occupancy = (1.0 - state.empty / elapsed).max(0.0);
    queue
}
