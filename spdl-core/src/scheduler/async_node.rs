//! A stage that waits, as a task of the runtime that owns all its items in flight.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;

use super::cpu_node::Sizer;
use super::queue::{Next, Queue};
use super::reorder::Reorder;
use super::window::InFlightWindow;
use super::{StageCore, size_of_item};
use crate::error::{ErrorKind, Result, guarded, panicked};
use crate::item::lineage::Outcome;
use crate::item::{Item, ItemHeader};
use crate::memory::budget::Reservation;
use crate::observe::hooks::Hooks;
use crate::runtime::Runtime;
use crate::scheduler::failure::Verdict;
use crate::stage::{AsyncContext, AsyncStage};
use crate::sync::atomic::Ordering;

pub(crate) struct AsyncNode<In, Out, S: ?Sized> {
    pub(crate) core: StageCore,
    pub(crate) stage: Arc<S>,
    pub(crate) input: Arc<Queue<In>>,
    pub(crate) output: Arc<Queue<Out>>,
    pub(crate) hooks: Hooks,
    /// Present where the bytes of outputs are counted.
    pub(crate) sizer: Option<Sizer<Out>>,
    /// Wakes the driver when its settings have changed.
    pub(crate) poke: Arc<AtomicWaker>,
    pub(crate) ordered: bool,
    /// Present where the stage finds out by itself how many items to work on at once.
    pub(crate) tuning: Option<Tuning>,
}

/// What changes with the number of items under way.
pub(crate) enum Tuning {
    /// The queue behind the stage follows.
    Queue,
    /// It is the pipeline's last one, which is tuned elsewhere too: it has room enough, at least.
    LastQueue,
}

type InFlightItems<Out> = FuturesUnordered<BoxFuture<'static, CompletedItem<Out>>>;

struct CompletedItem<Out> {
    /// The item's number, or its epoch's, counted by the driver.
    number: u64,
    header: ItemHeader,
    result: Result<Out>,
    time: Duration,
    /// Memory that was reserved for the output.
    reserved: Option<Reservation>,
    /// The memory of the input.
    carried: Option<Reservation>,
}

/// In which order things go on.
enum OutputOrder<Out> {
    /// By number.
    Input { next: u64, slots: Reorder<OrderedResult<Out>> },
    /// As they land, but epoch by epoch. The front is the epoch that items go on from.
    Completion { first: u64, epochs: VecDeque<EpochInFlight<Out>> },
}

enum OrderedResult<Out> {
    CompletedItem(CompletedItem<Out>),
    EpochEnd(u64),
}

/// What is under way of an epoch.
struct EpochInFlight<Out> {
    in_flight: usize,
    held: Vec<CompletedItem<Out>>,
    /// Its number, once its last item has been taken in.
    end: Option<u64>,
}

impl<Out> Default for EpochInFlight<Out> {
    fn default() -> Self {
        EpochInFlight { in_flight: 0, held: Vec::new(), end: None }
    }
}

/// What the driver remembers between polls.
struct DriverState<In, Out> {
    flights: InFlightItems<Out>,
    sequence: OutputOrder<Out>,
    /// Places promised in the output, for items that have not been started.
    places: usize,
    /// Items that have been taken in, but not started. The first one may wait for memory.
    incoming: VecDeque<Item<In>>,
    input_ended: bool,
    outbox: Outbox<Out>,
    window: Option<InFlightWindow>,
}

/// What has landed and is not yet put down: many at once cost one lock and one wake-up.
struct Outbox<Out> {
    items: Vec<Item<Out>>,
    /// Their places, and those of items that failed.
    places: usize,
}

/// The most items put down at once.
const LONGEST_RUN: usize = 64;

impl<In, Out, S> AsyncNode<In, Out, S>
where
    In: Send + 'static,
    Out: Send + 'static,
    S: AsyncStage<In, Out = Out> + ?Sized,
{
    pub(crate) async fn drive(self, runtime: Arc<dyn Runtime>) {
        let mut driver = DriverState {
            flights: FuturesUnordered::new(),
            sequence: if self.ordered {
                OutputOrder::Input { next: 0, slots: Reorder::default() }
            } else {
                OutputOrder::Completion {
                    first: 0,
                    epochs: VecDeque::from([EpochInFlight::default()]),
                }
            },
            places: 0,
            incoming: VecDeque::new(),
            input_ended: false,
            outbox: Outbox { items: Vec::with_capacity(LONGEST_RUN), places: 0 },
            window: self.tuning.as_ref().map(|_| InFlightWindow::new(self.core.concurrency())),
        };
        if let (Some(tuning), Some(window)) = (&self.tuning, &driver.window) {
            self.make_room(tuning, window.size());
        }
        if let Err(error) = self.hooks.started_once() {
            self.core.raise(error);
            self.input.shut();
        }
        poll_fn(|cx| {
            let polled = self.step(&mut driver, &runtime, cx);
            self.flush(&mut driver.outbox);
            polled
        })
        .await;
        self.output.release(driver.places);
        drop(driver);
        self.core.end(&self.hooks);
        self.input.shut();
        self.output.close();
    }

    /// Moves everything on that can move; ready when the stage is over.
    fn step(
        &self,
        driver: &mut DriverState<In, Out>,
        runtime: &Arc<dyn Runtime>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        self.poke.register(cx.waker());
        loop {
            if self.output.is_shut() {
                return Poll::Ready(());
            }
            if self.take_in(driver, runtime, cx) == Verdict::Halt {
                return Poll::Ready(());
            }
            let under_way = driver.flights.len();
            match Pin::new(&mut driver.flights).poll_next(cx) {
                Poll::Ready(Some(landed)) => {
                    self.tune(driver, under_way, landed.result.is_err());
                    self.core.meter.record(1, u64::from(landed.result.is_err()), landed.time);
                    if self.land(&mut driver.sequence, &mut driver.outbox, landed) == Verdict::Halt
                    {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(None) if driver.input_ended && driver.incoming.is_empty() => {
                    return Poll::Ready(());
                }
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Looks, as an item lands, whether more or fewer should be under way.
    fn tune(&self, driver: &mut DriverState<In, Out>, under_way: usize, failed: bool) {
        let (Some(tuning), Some(window)) = (&self.tuning, &mut driver.window) else { return };
        let size = window.size();
        // Whoever has set another number is obeyed from then on.
        if self.core.concurrency() != size {
            driver.window = None;
            return;
        }
        let unready = || self.output.empty_time();
        if !window.landed(Instant::now(), under_way, failed, unready) {
            return;
        }
        let size = window.size();
        self.core.meter.concurrency.store(size, Ordering::SeqCst);
        self.make_room(tuning, size);
    }

    /// Twice as many places as may be under way: a queue that was full asks for more only when half of
    /// it is free.
    fn make_room(&self, tuning: &Tuning, size: usize) {
        match tuning {
            Tuning::Queue => self.output.resize(size.saturating_mul(2)),
            Tuning::LastQueue => self.output.set_least(size.saturating_mul(2)),
        }
    }

    /// Starts as many items as there is room and memory for.
    fn take_in(
        &self,
        driver: &mut DriverState<In, Out>,
        runtime: &Arc<dyn Runtime>,
        cx: &mut Context<'_>,
    ) -> Verdict {
        loop {
            let free = self.core.concurrency().saturating_sub(driver.flights.len());
            if free == 0 {
                return Verdict::GoOn;
            }
            if driver.incoming.is_empty() {
                if driver.input_ended {
                    return Verdict::GoOn;
                }
                if driver.places == 0 {
                    match self.output.poll_reserve(free, cx) {
                        // Nobody wants more.
                        Poll::Ready(0) => return Verdict::Halt,
                        Poll::Pending => return Verdict::GoOn,
                        Poll::Ready(places) => driver.places = places,
                    }
                }
                let most = driver.places.min(free);
                match self.input.poll_run(most, &mut driver.incoming, cx) {
                    Poll::Ready(None) => {}
                    Poll::Ready(Some(Next::EpochEnd(epoch))) => {
                        driver.places -= 1;
                        let (sequence, outbox) = (&mut driver.sequence, &mut driver.outbox);
                        if self.end_epoch(sequence, outbox, epoch) == Verdict::Halt {
                            return Verdict::Halt;
                        }
                        continue;
                    }
                    Poll::Ready(Some(_)) => {
                        driver.input_ended = true;
                        return Verdict::GoOn;
                    }
                    Poll::Pending => return Verdict::GoOn,
                }
            }
            let Some(item) = driver.incoming.pop_front() else { continue };
            let reserved = match self.reserve(&item.value, cx) {
                Poll::Ready(reserved) => reserved,
                Poll::Pending => {
                    driver.incoming.push_front(item);
                    return Verdict::GoOn;
                }
            };
            driver.places -= 1;
            let number = driver.sequence.take_number();
            match reserved {
                Ok(reservation) => {
                    driver.flights.push(self.start(number, item, reservation, runtime))
                }
                Err(error) => {
                    let (header, time) = (item.header, Duration::ZERO);
                    let (reserved, carried) = (None, item.reservation);
                    let landed = CompletedItem {
                        number,
                        header,
                        result: Err(error),
                        time,
                        reserved,
                        carried,
                    };
                    self.core.meter.record(1, 1, time);
                    let (sequence, outbox) = (&mut driver.sequence, &mut driver.outbox);
                    if self.land(sequence, outbox, landed) == Verdict::Halt {
                        return Verdict::Halt;
                    }
                }
            }
        }
    }

    fn flush(&self, outbox: &mut Outbox<Out>) {
        if outbox.places > 0 {
            self.core.meter.emitted(outbox.items.len() as u64);
            drop(self.output.push(outbox.places, outbox.items.drain(..)));
            outbox.places = 0;
        }
    }

    /// Memory for the output of an item, where that is counted.
    fn reserve(&self, item: &In, cx: &mut Context<'_>) -> Poll<Result<Option<Reservation>>> {
        let Some((measure, budget)) = self.core.measured() else { return Poll::Ready(Ok(None)) };
        let declared = match guarded(|| Ok(self.stage.output_bytes(item))).0 {
            Ok(declared) => declared,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let need = measure.need(declared, budget);
        budget.poll_reserve(measure.level, need, cx).map(|reservation| reservation.map(Some))
    }

    fn start(
        &self,
        number: u64,
        item: Item<In>,
        reserved: Option<Reservation>,
        runtime: &Arc<dyn Runtime>,
    ) -> BoxFuture<'static, CompletedItem<Out>> {
        let Item { header, value, reservation } = item;
        let cx = AsyncContext {
            header: header.clone(),
            seed: self.core.shared.seed,
            stage: self.core.number,
            runtime: Arc::clone(runtime),
        };
        let stage = Arc::clone(&self.stage);
        let hooks = self.hooks.clone();
        Box::pin(async move {
            let started = Instant::now();
            // Called inside, so that a panic of the call itself is caught as well.
            let work = async { stage.process(value, &cx).await };
            let work = async { hooks.item_async(&cx.header, work).await };
            let result = AssertUnwindSafe(work).catch_unwind().await;
            let result = result.unwrap_or_else(|payload| Err(panicked(payload)));
            let time = started.elapsed();
            CompletedItem { number, header, result, time, reserved, carried: reservation }
        })
    }

    /// Takes in the end of an epoch, which goes on behind everything in front of it.
    fn end_epoch(
        &self,
        sequence: &mut OutputOrder<Out>,
        outbox: &mut Outbox<Out>,
        epoch: u64,
    ) -> Verdict {
        match sequence {
            OutputOrder::Input { next, slots } => {
                slots.finish(*next, OrderedResult::EpochEnd(epoch));
                *next += 1;
            }
            OutputOrder::Completion { epochs, .. } => {
                if let Some(last) = epochs.back_mut() {
                    last.end = Some(epoch);
                }
                epochs.push_back(EpochInFlight::default());
            }
        }
        self.hand_on(sequence, outbox)
    }

    fn land(
        &self,
        sequence: &mut OutputOrder<Out>,
        outbox: &mut Outbox<Out>,
        landed: CompletedItem<Out>,
    ) -> Verdict {
        match sequence {
            OutputOrder::Input { slots, .. } => {
                slots.finish(landed.number, OrderedResult::CompletedItem(landed))
            }
            OutputOrder::Completion { first, epochs } => {
                let epoch = (landed.number - *first) as usize;
                epochs[epoch].in_flight -= 1;
                if epoch == 0 {
                    if self.put_down(outbox, landed) == Verdict::Halt {
                        return Verdict::Halt;
                    }
                } else {
                    epochs[epoch].held.push(landed);
                }
            }
        }
        self.hand_on(sequence, outbox)
    }

    /// Hands on what can go on now.
    fn hand_on(&self, sequence: &mut OutputOrder<Out>, outbox: &mut Outbox<Out>) -> Verdict {
        match sequence {
            OutputOrder::Input { slots, .. } => {
                while let Some(slot) = slots.take() {
                    slots.advance(1);
                    match slot {
                        OrderedResult::EpochEnd(epoch) => {
                            self.flush(outbox);
                            drop(self.output.push_end(epoch));
                        }
                        OrderedResult::CompletedItem(landed) => {
                            if self.put_down(outbox, landed) == Verdict::Halt {
                                return Verdict::Halt;
                            }
                        }
                    }
                }
            }
            OutputOrder::Completion { first, epochs } => {
                while let Some(&EpochInFlight { in_flight: 0, end: Some(end), .. }) = epochs.front()
                {
                    self.flush(outbox);
                    drop(self.output.push_end(end));
                    epochs.pop_front();
                    *first += 1;
                    let held = epochs.front_mut().map(|next| std::mem::take(&mut next.held));
                    for landed in held.into_iter().flatten() {
                        if self.put_down(outbox, landed) == Verdict::Halt {
                            return Verdict::Halt;
                        }
                    }
                }
            }
        }
        Verdict::GoOn
    }

    /// Puts an output into its promised place, or gives the place back where the item failed.
    fn put_down(&self, outbox: &mut Outbox<Out>, landed: CompletedItem<Out>) -> Verdict {
        let CompletedItem { header, result, mut reserved, carried, .. } = landed;
        let result = result.and_then(|value| {
            let bytes = self.sizer.as_ref().map(|sizer| size_of_item(sizer, &value)).transpose()?;
            Ok((value, bytes))
        });
        self.core.tried(1);
        let item = match result {
            Ok((value, bytes)) => {
                let reservation = match (bytes, self.core.measured(), &mut reserved) {
                    (Some(bytes), Some((measure, _)), Some(reserved)) => {
                        Some(measure.reservation(reserved, bytes))
                    }
                    // What is not measured is taken to hold as much as what it was made of.
                    _ => carried,
                };
                Some(Item { header, value, reservation })
            }
            Err(error) if error.kind() == ErrorKind::Stopped && self.output.is_shut() => {
                return Verdict::Halt;
            }
            Err(error) => {
                if self.core.item_failed(&header, error) == Verdict::Halt {
                    return Verdict::Halt;
                }
                self.core.gone([header.member()], Outcome::Dropped);
                None
            }
        };
        outbox.places += 1;
        outbox.items.extend(item);
        if outbox.places >= LONGEST_RUN {
            self.flush(outbox);
        }
        Verdict::GoOn
    }
}

impl<Out> OutputOrder<Out> {
    /// The number of the item that is taken in now.
    fn take_number(&mut self) -> u64 {
        match self {
            OutputOrder::Input { next, .. } => {
                *next += 1;
                *next - 1
            }
            OutputOrder::Completion { first, epochs } => {
                if let Some(last) = epochs.back_mut() {
                    last.in_flight += 1;
                }
                *first + epochs.len() as u64 - 1
            }
        }
    }
}
