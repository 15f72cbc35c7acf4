//! Builds the pipeline of a graph.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use super::super::api::pipeline::path;
use super::super::api::runtime::CpuExecutor;
use super::super::api::source::{Cursor, Stream};
use super::super::api::stage::{Aggregator, Arrival, Batcher, RoundRobin};
use super::super::api::{
    AsyncContext, AsyncStage, Batch, BatchLayout, BoxStream, DType, Error, ErrorKind, Field, Fill,
    FillContext, JoinHandle, Order, Pipeline, PipelineBuilder, Result, SlotMut, Source, Stage,
    StageContext, StageOptions, async_trait, spawn,
};
use super::expect::{ATOM_BYTES, Atom, Outcome, atom, copy, outcome, passes, path_of};
use super::{Branch, Graph, Head, Kind, Step};

/// An item of the pipelines.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) atoms: Vec<Atom>,
    /// Counts the items and stages that are alive.
    alive: Arc<()>,
}

impl Packet {
    fn bytes(&self) -> usize {
        self.atoms.len() * ATOM_BYTES
    }
}

/// Shared objects of a pipeline under test.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) alive: Arc<()>,
    pub(crate) pool: Arc<Pool>,
}

/// A custom executor with a maximum number of threads.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    max_threads: usize,
    state: Arc<Mutex<PoolState>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct PoolState {
    running: usize,
    queue: VecDeque<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolState({} running, {} queued)", self.running, self.queue.len())
    }
}

/// No code that a model checker may interrupt runs while the lock is held.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CpuExecutor for Pool {
    fn execute(&self, work: Box<dyn FnOnce() + Send>) {
        let mut state = locked(&self.state);
        state.queue.push_back(work);
        if state.running == self.max_threads {
            return;
        }
        state.running += 1;
        drop(state);
        let state = Arc::clone(&self.state);
        let thread = spawn(move || {
            loop {
                let mut now = locked(&state);
                let Some(work) = now.queue.pop_front() else {
                    now.running -= 1;
                    return;
                };
                drop(now);
                work();
            }
        });
        locked(&self.threads).push(thread);
    }

    fn parallelism(&self) -> usize {
        self.max_threads
    }
}

impl Pool {
    pub(crate) fn new(max_threads: usize) -> Self {
        Pool { max_threads, ..Pool::default() }
    }

    pub(crate) fn join(&self) {
        loop {
            let thread = locked(&self.threads).pop();
            match thread {
                Some(thread) => {
                    assert!(thread.join().is_ok(), "the pipeline did not catch a panic")
                }
                None => return,
            }
        }
    }
}

/// Succeeds, fails or panics, as decided for the item.
fn work(fallible: bool, seed: u64, atoms: &[Atom]) -> Result<()> {
    match outcome(fallible, seed, atoms) {
        Outcome::Good => Ok(()),
        Outcome::Fails => Err(Error::new(ErrorKind::Corrupt, format!("{atoms:?} is bad"))),
        // Does not call the panic hook, which would print the expected panic.
        Outcome::Panics => std::panic::resume_unwind(Box::new("expected")),
    }
}

#[derive(Debug)]
struct Numbers {
    branch: Branch,
    alive: Arc<()>,
}

impl Numbers {
    fn items(&self, epoch: u64) -> impl Iterator<Item = Result<Packet>> + Send + use<> {
        let (alive, source) = (Arc::clone(&self.alive), self.branch.source);
        let fallible = self.branch.fallible;
        (0..self.branch.items as u64).map(move |index| {
            let atoms = vec![atom(source, epoch, index)];
            // No panics, because a panic of a source ends the pipeline with any failure policy.
            if outcome(fallible, source, &atoms) != Outcome::Good {
                return Err(Error::new(ErrorKind::Corrupt, "a bad source item"));
            }
            Ok(Packet { atoms, alive: Arc::clone(&alive) })
        })
    }
}

/// A stream of which every third poll is pending.
struct SometimesPending<I>(I, u8);

impl<I: Iterator + Unpin> Stream for SometimesPending<I> {
    type Item = I::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<I::Item>> {
        self.1 = (self.1 + 1) % 3;
        if self.1 == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.0.next())
    }
}

impl Source for Numbers {
    type Item = Packet;

    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<Packet>>> {
        Ok(Box::pin(SometimesPending(Box::new(self.items(at.epoch)), 0)))
    }
}

/// A one-to-one stage.
struct Work {
    step: Arc<Step>,
    alive: Arc<()>,
}

impl Stage<Packet> for Work {
    type Out = Packet;

    fn process(&mut self, item: Packet, cx: &mut StageContext<'_, Packet>) -> Result<()> {
        assert!(Arc::ptr_eq(&self.alive, &item.alive));
        work(self.step.fallible, self.step.number, &item.atoms)?;
        cx.emit(item)
    }

    fn output_bytes(&self, item: &Packet) -> Option<usize> {
        matches!(self.step.kind, Kind::Map { declares: true }).then(|| item.bytes())
    }
}

struct Wait {
    step: Arc<Step>,
    yields: bool,
}

#[async_trait]
impl AsyncStage<Packet> for Wait {
    type Out = Packet;

    async fn process(&self, item: Packet, _: &AsyncContext) -> Result<Packet> {
        let mut pending = self.yields;
        poll_fn(|cx| {
            if std::mem::take(&mut pending) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        work(self.step.fallible, self.step.number, &item.atoms)?;
        Ok(item)
    }
}

/// Buffers an item until the next item or the end of the epoch.
#[derive(Default)]
struct Hold(Option<Packet>);

impl Stage<Packet> for Hold {
    type Out = Packet;

    fn process(&mut self, item: Packet, cx: &mut StageContext<'_, Packet>) -> Result<()> {
        match self.0.replace(item) {
            Some(last) => cx.emit(last),
            None => Ok(()),
        }
    }

    fn finish(&mut self, cx: &mut StageContext<'_, Packet>) -> Result<()> {
        match self.0.take() {
            Some(last) => cx.emit(last),
            None => Ok(()),
        }
    }
}

/// Joins items to a batch, which is one item.
struct Pack(Batcher<Packet>);

fn joined(list: Option<Vec<Packet>>) -> Option<Packet> {
    let list = list?;
    let alive = Arc::clone(&list.first()?.alive);
    Some(Packet { atoms: list.into_iter().flat_map(|item| item.atoms).collect(), alive })
}

impl Aggregator<Packet> for Pack {
    type Out = Packet;

    fn accumulate(&mut self, item: Packet) -> Result<Option<Packet>> {
        self.0.accumulate(item).map(joined)
    }

    fn flush(&mut self) -> Result<Option<Packet>> {
        self.0.flush().map(joined)
    }

    fn left_out(&mut self) -> u64 {
        Aggregator::left_out(&mut self.0)
    }
}

struct Write {
    step: Arc<Step>,
}

impl Fill<Packet> for Write {
    fn fill(&mut self, item: Packet, mut slot: SlotMut<'_>, _: &mut FillContext<'_>) -> Result<()> {
        work(self.step.fallible, self.step.number, &item.atoms)?;
        let (epoch, id) = item.atoms[0];
        slot.set(0, epoch as i64)?;
        slot.set(1, id as i64)
    }
}

fn unfilled(batch: &Batch, alive: &Arc<()>) -> Result<Packet> {
    let [epochs, ids] = ["epoch", "id"].map(|name| {
        let missing = || Error::new(ErrorKind::InvalidArgument, "a field is missing");
        batch.array(name).ok_or_else(missing)?.as_slice::<i64>()
    });
    let atoms = epochs?.iter().zip(ids?).map(|(&epoch, &id)| (epoch as u64, id as u64));
    Ok(Packet { atoms: atoms.collect(), alive: Arc::clone(alive) })
}

fn options(step: &Step) -> StageOptions {
    let options = StageOptions::new(&format!("s{}", step.number));
    let options = options.concurrency(step.concurrency).queue(step.queue);
    let waits = matches!(step.kind, Kind::Async { .. });
    let options = if step.dedicated && !waits { options.dedicated() } else { options };
    match step.order {
        Some(order) => options.order(order),
        None => options,
    }
}

fn add(
    builder: PipelineBuilder<Packet>,
    step: &Arc<Step>,
    tools: &Tools,
) -> PipelineBuilder<Packet> {
    let seed = step.number;
    let fallible = step.fallible;
    let shared = Arc::clone(step);
    let alive = Arc::clone(&tools.alive);
    let builder = match &step.kind {
        Kind::Map { .. } => builder.stage(options(step), move || {
            Ok(Work { step: Arc::clone(&shared), alive: Arc::clone(&alive) })
        }),
        Kind::Async { yields } => {
            builder.async_stage(options(step), Wait { step: shared, yields: *yields })
        }
        Kind::Filter => builder.filter(options(step), move |item: &Packet| {
            work(fallible, seed, &item.atoms)?;
            Ok(passes(seed, &item.atoms))
        }),
        Kind::FlatMap { copies } => {
            let copies = *copies;
            builder.flat_map(options(step), move |item: Packet| {
                let result = work(fallible, seed, &item.atoms);
                let count = if result.is_ok() { copies } else { 0 };
                let good = (0..count).map(move |n| {
                    Ok(Packet { atoms: copy(n, &item.atoms), alive: Arc::clone(&item.alive) })
                });
                result.err().map(Err).into_iter().chain(good)
            })
        }
        Kind::Hold => builder.stage(options(step), || Ok(Hold::default())),
        Kind::Batch { size, drop_last } => {
            let (size, drop_last) = (*size, *drop_last);
            builder.aggregate(options(step), move || Ok(Pack(Batcher::new(size, drop_last)?)))
        }
        Kind::Lists { size, paths } => {
            let paths = *paths;
            let routes = (0..paths).map(|at| {
                path(move |lists: PipelineBuilder<Vec<Packet>>| match at {
                    0 => lists.map(format!("l{seed}").as_str(), Ok),
                    _ => lists.map_async(format!("m{seed}").as_str(), |list| async { Ok(list) }),
                })
            });
            builder
                .batch(options(step), *size, false)
                .route_lists(
                    StageOptions::new(&format!("r{seed}")).order(Order::Input),
                    move |list: &[Packet]| {
                        Ok(list.iter().map(|item| path_of(seed, &item.atoms, paths)).collect())
                    },
                    routes.collect::<Vec<_>>(),
                )
                .unbatch(
                    StageOptions::new(&format!("u{seed}")).order(Order::Input).queue(step.queue),
                )
        }
        Kind::Fill { size, drop_last } => {
            let fields = [Field::new("epoch", DType::I64, &[]), Field::new("id", DType::I64, &[])];
            let layout = BatchLayout::new(*size, fields).drop_last(*drop_last);
            builder
                .fill(options(step), layout, move || Ok(Write { step: Arc::clone(&shared) }))
                .map(
                    StageOptions::new(&format!("u{seed}")).order(Order::Input).queue(step.queue),
                    move |batch: Batch| unfilled(&batch, &alive),
                )
        }
        Kind::Route { paths } => {
            let count = paths.len();
            let routes = paths.iter().map(|steps| {
                let steps: Vec<_> = steps.iter().cloned().map(Arc::new).collect();
                let tools = tools.clone();
                path(move |items| steps.iter().fold(items, |items, step| add(items, step, &tools)))
            });
            builder.route(
                options(step),
                move |item: &Packet| Ok(path_of(seed, &item.atoms, count)),
                routes.collect::<Vec<_>>(),
            )
        }
    };
    if step.measured { builder.measured_by(Packet::bytes) } else { builder }
}

impl Graph {
    fn start(&self, branch: &Branch, tools: &Tools) -> PipelineBuilder<Packet> {
        let name = format!("source{}", branch.source);
        let options = StageOptions::new(&name).queue(branch.queue);
        let source = Numbers { branch: branch.clone(), alive: Arc::clone(&tools.alive) };
        let builder = if branch.blocks && !branch.fallible {
            let items = source.items(0).filter_map(Result::ok);
            PipelineBuilder::from_iter(items.collect::<Vec<_>>())
        } else {
            PipelineBuilder::from_source(options, source)
        };
        let builder = if branch.measured { builder.measured_by(Packet::bytes) } else { builder };
        let steps = branch.steps.iter().cloned().map(Arc::new);
        steps.fold(builder, |builder, step| add(builder, &step, tools))
    }

    /// Builds the pipeline with a memory budget for `items` items of `max_atoms` atoms.
    pub(crate) fn build_with(
        &self,
        tools: &Tools,
        max_atoms: usize,
        items: usize,
    ) -> Result<Pipeline<Packet>> {
        let mut builder = match &self.head {
            Head::One(branch) => self.start(branch, tools),
            Head::RoundRobin(branches) => {
                let branches = branches.iter().map(|branch| self.start(branch, tools));
                PipelineBuilder::merge(branches, RoundRobin::default())
            }
            Head::Arrival(branches) => {
                let branches = branches.iter().map(|branch| self.start(branch, tools));
                PipelineBuilder::merge(branches, Arrival)
            }
            Head::Zip(branches) => {
                let [left, right] = [0, 1].map(|at| self.start(&branches[at], tools));
                let alike = StageOptions::new("pair").order(Order::Input).queue(2);
                left.zip(right).map(alike, |(mut left, right): (Packet, Packet)| {
                    left.atoms.extend(right.atoms);
                    Ok(left)
                })
            }
        };
        for step in &self.steps {
            builder = add(builder, &Arc::new(step.clone()), tools);
        }
        if self.executor {
            builder = builder.executor(Arc::<Pool>::clone(&tools.pool));
        }
        if self.order == Order::Input {
            builder = builder.deterministic();
        }
        let item_bytes = max_atoms * ATOM_BYTES;
        builder
            .epochs(0..self.epochs)
            .threads(self.threads)
            .prefetch(self.prefetch)
            .on_error(self.on_error)
            .allow_total_loss()
            .largest_item(item_bytes)
            .memory(item_bytes * items)
            .build()
    }
}
