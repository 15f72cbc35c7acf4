//! A graph as a pipeline.

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
use super::expect::{ATOM_BYTES, Atom, Fate, atom, copy, fate, passes, way};
use super::{Branch, Graph, Head, Kind, Step};

/// What goes through a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) atoms: Vec<Atom>,
    /// Tells whether any item or stage is left.
    alive: Arc<()>,
}

impl Packet {
    fn bytes(&self) -> usize {
        self.atoms.len() * ATOM_BYTES
    }
}

/// What a pipeline under test is made with.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) alive: Arc<()>,
    pub(crate) pool: Arc<Pool>,
}

/// A pool of the caller's, with as many threads as were asked for at most.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    most: usize,
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
        write!(f, "PoolState({} running, {} wait)", self.running, self.queue.len())
    }
}

/// The lock is never held over anything that a model checker may interrupt.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CpuExecutor for Pool {
    fn execute(&self, work: Box<dyn FnOnce() + Send>) {
        let mut state = locked(&self.state);
        state.queue.push_back(work);
        if state.running == self.most {
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
        self.most
    }
}

impl Pool {
    pub(crate) fn new(most: usize) -> Self {
        Pool { most, ..Pool::default() }
    }

    pub(crate) fn join(&self) {
        loop {
            let thread = locked(&self.threads).pop();
            match thread {
                Some(thread) => assert!(thread.join().is_ok(), "a panic got out of the pipeline"),
                None => return,
            }
        }
    }
}

/// Meets an item's fate.
fn meet(fallible: bool, who: u64, atoms: &[Atom]) -> Result<()> {
    match fate(fallible, who, atoms) {
        Fate::Good => Ok(()),
        Fate::Fails => Err(Error::new(ErrorKind::Corrupt, format!("{atoms:?} is bad"))),
        // Without the panic hook, which has nothing to tell.
        Fate::Panics => std::panic::resume_unwind(Box::new("on purpose")),
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
            // A source that panics ends the pipeline, whatever the policy.
            if fate(fallible, source, &atoms) != Fate::Good {
                return Err(Error::new(ErrorKind::Corrupt, "a bad source item"));
            }
            Ok(Packet { atoms, alive: Arc::clone(&alive) })
        })
    }
}

/// A stream that is not always ready.
struct Hesitating<I>(I, u8);

impl<I: Iterator + Unpin> Stream for Hesitating<I> {
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
        Ok(Box::pin(Hesitating(Box::new(self.items(at.epoch)), 0)))
    }
}

/// All the stages that look at one item at a time.
struct Work {
    step: Arc<Step>,
    alive: Arc<()>,
}

impl Stage<Packet> for Work {
    type Out = Packet;

    fn process(&mut self, item: Packet, cx: &mut StageContext<'_, Packet>) -> Result<()> {
        assert!(Arc::ptr_eq(&self.alive, &item.alive));
        meet(self.step.fallible, self.step.number, &item.atoms)?;
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
        meet(self.step.fallible, self.step.number, &item.atoms)?;
        Ok(item)
    }
}

/// Holds an item back until the next one comes, or the epoch ends.
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

/// A batch as an item.
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
        meet(self.step.fallible, self.step.number, &item.atoms)?;
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
    let who = step.number;
    let fallible = step.fallible;
    let its = Arc::clone(step);
    let alive = Arc::clone(&tools.alive);
    let builder = match &step.kind {
        Kind::Map { .. } => builder.stage(options(step), move || {
            Ok(Work { step: Arc::clone(&its), alive: Arc::clone(&alive) })
        }),
        Kind::Async { yields } => {
            builder.async_stage(options(step), Wait { step: its, yields: *yields })
        }
        Kind::Filter => builder.filter(options(step), move |item: &Packet| {
            meet(fallible, who, &item.atoms)?;
            Ok(passes(who, &item.atoms))
        }),
        Kind::FlatMap { copies } => {
            let copies = *copies;
            builder.flat_map(options(step), move |item: Packet| {
                let met = meet(fallible, who, &item.atoms);
                let count = if met.is_ok() { copies } else { 0 };
                let good = (0..count).map(move |n| {
                    Ok(Packet { atoms: copy(n, &item.atoms), alive: Arc::clone(&item.alive) })
                });
                met.err().map(Err).into_iter().chain(good)
            })
        }
        Kind::Hold => builder.stage(options(step), || Ok(Hold::default())),
        Kind::Batch { size, drop_last } => {
            let (size, drop_last) = (*size, *drop_last);
            builder.aggregate(options(step), move || Ok(Pack(Batcher::new(size, drop_last)?)))
        }
        Kind::Lists { size, paths } => {
            let paths = *paths;
            let ways = (0..paths).map(|at| {
                path(move |lists: PipelineBuilder<Vec<Packet>>| match at {
                    0 => lists.map(format!("l{who}").as_str(), Ok),
                    _ => lists.map_async(format!("m{who}").as_str(), |list| async { Ok(list) }),
                })
            });
            builder
                .batch(options(step), *size, false)
                .route_lists(
                    StageOptions::new(&format!("r{who}")).order(Order::Input),
                    move |list: &[Packet]| {
                        Ok(list.iter().map(|item| way(who, &item.atoms, paths)).collect())
                    },
                    ways.collect::<Vec<_>>(),
                )
                .unbatch(
                    StageOptions::new(&format!("u{who}")).order(Order::Input).queue(step.queue),
                )
        }
        Kind::Fill { size, drop_last } => {
            let fields = [Field::new("epoch", DType::I64, &[]), Field::new("id", DType::I64, &[])];
            let layout = BatchLayout::new(*size, fields).drop_last(*drop_last);
            builder.fill(options(step), layout, move || Ok(Write { step: Arc::clone(&its) })).map(
                StageOptions::new(&format!("u{who}")).order(Order::Input).queue(step.queue),
                move |batch: Batch| unfilled(&batch, &alive),
            )
        }
        Kind::Route { paths } => {
            let count = paths.len();
            let ways = paths.iter().map(|steps| {
                let steps: Vec<_> = steps.iter().cloned().map(Arc::new).collect();
                let tools = tools.clone();
                path(move |items| steps.iter().fold(items, |items, step| add(items, step, &tools)))
            });
            builder.route(
                options(step),
                move |item: &Packet| Ok(way(who, &item.atoms, count)),
                ways.collect::<Vec<_>>(),
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

    /// Builds it with a memory budget of `items` times the most that an item may need.
    pub(crate) fn build_with(
        &self,
        tools: &Tools,
        most: usize,
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
        let headroom = most * ATOM_BYTES;
        builder
            .epochs(0..self.epochs)
            .threads(self.threads)
            .prefetch(self.prefetch)
            .on_error(self.on_error)
            .largest_item(headroom)
            .memory(headroom * items)
            .build()
    }
}
