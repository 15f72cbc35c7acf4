//! Async stage: one task of the runtime owns all items in flight.

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
use super::window::{InFlightWindow, LearnedWindows};
use super::{StageCore, size_of_item};
use crate::error::{ErrorKind, Result, guarded, panicked};
use crate::item::lineage::Outcome;
use crate::item::{Item, ItemHeader};
use crate::memory::budget::Reservation;
use crate::memory::in_flight::{InFlightMemory, InFlightOrder};
use crate::observe::hooks::Hooks;
use crate::observe::stalls::Activity;
use crate::runtime::Runtime;
use crate::scheduler::failure::FailureAction;
use crate::stage::{AsyncContext, AsyncStage};
use crate::sync::atomic::Ordering;

pub(crate) struct AsyncNode<In, Out, S: ?Sized> {
    pub(crate) core: StageCore,
    pub(crate) stage: Arc<S>,
    pub(crate) input: Arc<Queue<In>>,
    pub(crate) output: Arc<Queue<Out>>,
    pub(crate) hooks: Hooks,
    /// Present if the bytes of outputs are counted.
    pub(crate) sizer: Option<Sizer<Out>>,
    /// Wakes the driver when its settings have changed.
    pub(crate) settings_changed: Arc<AtomicWaker>,
    pub(crate) ordered: bool,
    /// Present if the in-flight window is tuned automatically.
    pub(crate) tuning: Option<WindowTuning>,
}

/// How the in-flight window is tuned.
pub(crate) struct WindowTuning {
    /// Whether the output queue is the pipeline's last one, whose prefetch depth is also tuned: the
    /// minimum capacity follows the window. The capacity of other queues is set to fit the window.
    pub(crate) is_last: bool,
    /// The windows of earlier runs, and of the next one.
    pub(crate) learned: LearnedWindows,
}

type InFlightItems<Out> = FuturesUnordered<BoxFuture<'static, CompletedItem<Out>>>;

struct CompletedItem<Out> {
    /// Number of the item in input order, or of its epoch in completion order.
    number: u64,
    header: ItemHeader,
    result: Result<Out>,
    /// The size of the output in bytes, if it is measured.
    bytes: Option<usize>,
    time: Duration,
    ended: Instant,
    /// Reservation for the output.
    reserved: Option<Reservation>,
    /// Reservation of the input, which an output that is not measured takes over.
    carried: Option<Reservation>,
}

/// The order in which results are forwarded.
enum OutputOrder<Out> {
    /// Input order.
    Input { next: u64, slots: Reorder<OrderedResult<Out>> },
    /// Completion order within each epoch. Results of the front epoch are forwarded immediately.
    Completion { first: u64, epochs: VecDeque<EpochInFlight<Out>> },
}

enum OrderedResult<Out> {
    CompletedItem(CompletedItem<Out>),
    EpochEnd(u64),
}

/// State of an epoch that has not ended.
struct EpochInFlight<Out> {
    in_flight: usize,
    /// Results that wait for the end of earlier epochs.
    held: Vec<CompletedItem<Out>>,
    /// The epoch's number, once its last item was received.
    end: Option<u64>,
}

impl<Out> Default for EpochInFlight<Out> {
    fn default() -> Self {
        EpochInFlight { in_flight: 0, held: Vec::new(), end: None }
    }
}

/// State of the driver between polls.
struct DriverState<In, Out> {
    in_flight_items: InFlightItems<Out>,
    sequence: OutputOrder<Out>,
    /// Places reserved in the output queue for items that have not started.
    places: usize,
    /// Items that were received, but have not started. The first one may wait for memory.
    incoming: VecDeque<Item<In>>,
    input_ended: bool,
    outbox: Outbox<Out>,
    window: Option<InFlightWindow>,
    order: Arc<InFlightOrder>,
    /// The completions since an item last started, whose rate is not known yet.
    completions: Option<Completions>,
}

impl<In, Out> DriverState<In, Out> {
    fn activity(&self) -> Activity {
        if !self.in_flight_items.is_empty() {
            Activity::Working
        } else if self.incoming.is_empty() {
            Activity::Idle
        } else {
            Activity::WaitsForMemory
        }
    }
}

/// Completions of items, up to the first one before which another item has started.
struct Completions {
    since: Instant,
    /// The number of items in flight at the last completion.
    last_in_flight: usize,
    most_in_flight: usize,
    items: usize,
    /// Bytes of their outputs, if these are measured.
    bytes: usize,
    /// Whether, at all completions, neither upstream nor downstream limited the number of items in flight.
    is_limiting: bool,
}

/// Results that are not yet in the output queue. A batch of results costs one lock and one wake-up.
struct Outbox<Out> {
    items: Vec<Item<Out>>,
    /// Reserved places of these items and of failed items.
    places: usize,
}

/// At most this many items are put into the queue together.
const MAX_RUN: usize = 64;

impl<In, Out, S> AsyncNode<In, Out, S>
where
    In: Send + 'static,
    Out: Send + 'static,
    S: AsyncStage<In, Out = Out> + ?Sized,
{
    pub(crate) async fn drive(self, runtime: Arc<dyn Runtime>) {
        let mut driver = DriverState {
            in_flight_items: FuturesUnordered::new(),
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
            outbox: Outbox { items: Vec::with_capacity(MAX_RUN), places: 0 },
            window: self.tuning.as_ref().map(|tuning| self.first_window(tuning)),
            order: Arc::default(),
            completions: None,
        };
        if let (Some(tuning), Some(window)) = (&self.tuning, &driver.window) {
            self.make_room(tuning, window.size());
        }
        if let Err(error) = self.hooks.started_once() {
            self.core.raise(error);
            self.input.shut();
        }
        poll_fn(|cx| {
            // A future that blocks its thread never returns from `step`.
            self.core.meter.set_activity(Activity::Working);
            let polled = self.step(&mut driver, &runtime, cx);
            self.flush(&mut driver.outbox);
            self.core.meter.set_activity(driver.activity());
            polled
        })
        .await;
        if let (Some(tuning), Some(window)) = (&self.tuning, &driver.window) {
            tuning.learned.keep(&self.core.identity, Some(window));
        }
        self.core.meter.set_activity(Activity::Idle);
        self.output.release(driver.places);
        drop(driver);
        self.core.end(&self.hooks);
        self.input.shut();
        self.output.close();
    }

    /// Makes all possible progress; ready when the stage has ended.
    fn step(
        &self,
        driver: &mut DriverState<In, Out>,
        runtime: &Arc<dyn Runtime>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        self.settings_changed.register(cx.waker());
        loop {
            if self.output.is_shut() {
                return Poll::Ready(());
            }
            if self.receive(driver, runtime, cx) == FailureAction::Halt {
                return Poll::Ready(());
            }
            let in_flight = driver.in_flight_items.len();
            match Pin::new(&mut driver.in_flight_items).poll_next(cx) {
                Poll::Ready(Some(mut completed)) => {
                    self.measure(&mut completed);
                    self.count_rate(driver, in_flight, &completed);
                    self.tune(driver, in_flight, &completed);
                    self.core.meter.record(1, u64::from(completed.result.is_err()), completed.time);
                    if self.complete(&mut driver.sequence, &mut driver.outbox, completed)
                        == FailureAction::Halt
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

    /// Measures the output. If that fails, the item has failed.
    fn measure(&self, completed: &mut CompletedItem<Out>) {
        let (Some(sizer), Ok(value)) = (&self.sizer, &completed.result) else { return };
        match size_of_item(sizer, value) {
            Ok(bytes) => completed.bytes = Some(bytes),
            Err(error) => completed.result = Err(error),
        }
    }

    /// Counts the time between completions, unless upstream or downstream limited the number of items in flight. Items
    /// that started together also complete together: their rate is that of all completions until another one has started.
    fn count_rate(
        &self,
        driver: &mut DriverState<In, Out>,
        in_flight: usize,
        completed: &CompletedItem<Out>,
    ) {
        let ended = completed.ended;
        // Otherwise items wait for memory, or for the order of the output.
        let is_full = in_flight >= self.core.concurrency();
        let waits = || !driver.incoming.is_empty() || !self.input.is_empty();
        let is_limiting = is_full || (waits() && self.output.is_empty());
        let next = Completions {
            since: ended,
            last_in_flight: in_flight,
            most_in_flight: 0,
            items: 0,
            bytes: 0,
            is_limiting,
        };
        let Some(completions) = &mut driver.completions else {
            driver.completions = Some(next);
            return;
        };
        let has_started = in_flight >= completions.last_in_flight;
        completions.last_in_flight = in_flight;
        completions.most_in_flight = completions.most_in_flight.max(in_flight);
        completions.items += 1;
        completions.bytes += completed.bytes.unwrap_or(0);
        completions.is_limiting &= is_limiting;
        if has_started {
            if completions.is_limiting {
                let took = ended.saturating_duration_since(completions.since);
                let Completions { items, bytes, most_in_flight, .. } = *completions;
                self.core.meter.completed(items, bytes, most_in_flight, took);
            }
            driver.completions = Some(next);
        }
    }

    /// Adjusts the in-flight window after an item has completed.
    fn tune(
        &self,
        driver: &mut DriverState<In, Out>,
        in_flight: usize,
        completed: &CompletedItem<Out>,
    ) {
        let (Some(tuning), Some(window)) = (&self.tuning, &mut driver.window) else { return };
        let size = window.size();
        // If `Control` has set another number, tuning ends.
        if self.core.concurrency() != size {
            driver.window = None;
            tuning.learned.keep(&self.core.identity, None);
            return;
        }
        let starved = || self.output.empty_time();
        let failed = completed.result.is_err();
        if !window.completed(completed.ended, in_flight, failed, starved) {
            return;
        }
        let size = window.size();
        self.core.meter.concurrency.store(size, Ordering::SeqCst);
        // The next run may start before this one ends.
        tuning.learned.keep(&self.core.identity, Some(window));
        self.make_room(tuning, size);
    }

    /// The window at the start, which an earlier run may have found.
    fn first_window(&self, tuning: &WindowTuning) -> InFlightWindow {
        let Some(window) = tuning.learned.of(&self.core.identity) else {
            return InFlightWindow::new(self.core.concurrency());
        };
        self.core.meter.concurrency.store(window.size(), Ordering::SeqCst);
        window
    }

    /// Sets the capacity of the output queue to twice the window. A full queue may accept items
    /// again only after half of its capacity has been taken out.
    fn make_room(&self, tuning: &WindowTuning, size: usize) {
        match tuning.is_last {
            true => self.output.set_least(size.saturating_mul(2)),
            false => self.output.resize(size.saturating_mul(2)),
        }
    }

    /// Starts as many items as the window, the output queue and the memory budget allow.
    fn receive(
        &self,
        driver: &mut DriverState<In, Out>,
        runtime: &Arc<dyn Runtime>,
        cx: &mut Context<'_>,
    ) -> FailureAction {
        loop {
            let free = self.core.concurrency().saturating_sub(driver.in_flight_items.len());
            if free == 0 {
                return FailureAction::Continue;
            }
            if driver.incoming.is_empty() {
                if driver.input_ended {
                    return FailureAction::Continue;
                }
                if driver.places == 0 {
                    match self.output.poll_reserve(free, cx) {
                        // The output queue is shut.
                        Poll::Ready(0) => return FailureAction::Halt,
                        Poll::Pending => return FailureAction::Continue,
                        Poll::Ready(places) => driver.places = places,
                    }
                }
                let max = driver.places.min(free);
                match self.input.poll_run(max, &mut driver.incoming, cx) {
                    Poll::Ready(None) => {}
                    Poll::Ready(Some(Next::EpochEnd(epoch))) => {
                        driver.places -= 1;
                        let (sequence, outbox) = (&mut driver.sequence, &mut driver.outbox);
                        if self.end_epoch(sequence, outbox, epoch) == FailureAction::Halt {
                            return FailureAction::Halt;
                        }
                        continue;
                    }
                    Poll::Ready(Some(_)) => {
                        driver.input_ended = true;
                        return FailureAction::Continue;
                    }
                    Poll::Pending => return FailureAction::Continue,
                }
            }
            let Some(item) = driver.incoming.pop_front() else { continue };
            let reserved = match self.reserve(&item.value, cx) {
                Poll::Ready(reserved) => reserved,
                Poll::Pending => {
                    driver.incoming.push_front(item);
                    return FailureAction::Continue;
                }
            };
            driver.places -= 1;
            let number = driver.sequence.take_number();
            match reserved {
                Ok(reserved) => {
                    let memory = reserved
                        .map(|(reservation, wanted)| (driver.order.start(reservation), wanted));
                    driver.in_flight_items.push(self.start(number, item, memory, runtime))
                }
                Err(error) => {
                    let (header, time) = (item.header, Duration::ZERO);
                    let (reserved, carried) = (None, item.reservation);
                    let completed = CompletedItem {
                        number,
                        header,
                        result: Err(error),
                        bytes: None,
                        time,
                        ended: Instant::now(),
                        reserved,
                        carried,
                    };
                    self.core.meter.record(1, 1, time);
                    let (sequence, outbox) = (&mut driver.sequence, &mut driver.outbox);
                    if self.complete(sequence, outbox, completed) == FailureAction::Halt {
                        return FailureAction::Halt;
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

    /// Reserves memory for the output of an item, if the stage is measured. Also returns the bytes
    /// that the output needs, which may be more than the largest reservation.
    fn reserve(
        &self,
        item: &In,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<(Reservation, usize)>>> {
        let Some((measure, budget)) = self.core.measured() else { return Poll::Ready(Ok(None)) };
        let declared = match guarded(|| Ok(self.stage.output_bytes(item))).0 {
            Ok(declared) => declared,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let wanted = measure.need(declared, budget);
        let reserved = budget.poll_reserve(measure.level, wanted.min(budget.headroom()), cx);
        reserved.map_ok(|reservation| Some((reservation, wanted)))
    }

    fn start(
        &self,
        number: u64,
        item: Item<In>,
        memory: Option<(Arc<InFlightMemory>, usize)>,
        runtime: &Arc<dyn Runtime>,
    ) -> BoxFuture<'static, CompletedItem<Out>> {
        let Item { header, value, reservation } = item;
        let (memory, wanted) = memory.unzip();
        let cx = AsyncContext {
            header: header.clone(),
            seed: self.core.shared.seed,
            stage: self.core.number,
            runtime: Arc::clone(runtime),
            retries: self.core.meter.retries.clone(),
            memory,
        };
        let stage = Arc::clone(&self.stage);
        let hooks = self.hooks.clone();
        Box::pin(async move {
            if let Some(wanted) = wanted {
                cx.reserve(wanted).await;
            }
            let started = Instant::now();
            // The call is inside the future, so that a panic of the call itself is caught.
            let work = async { stage.process(value, &cx).await };
            let work = async { hooks.item_async(&cx.header, work).await };
            let result = AssertUnwindSafe(work).catch_unwind().await;
            let result = result.unwrap_or_else(|payload| Err(panicked(payload)));
            let ended = Instant::now();
            let time = ended.saturating_duration_since(started);
            let reserved = cx.memory.as_ref().and_then(|memory| memory.end());
            let carried = reservation;
            CompletedItem { number, header, result, bytes: None, time, ended, reserved, carried }
        })
    }

    /// Receives the end of an epoch, and forwards it after all items of the epoch.
    fn end_epoch(
        &self,
        sequence: &mut OutputOrder<Out>,
        outbox: &mut Outbox<Out>,
        epoch: u64,
    ) -> FailureAction {
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
        self.forward_ready(sequence, outbox)
    }

    fn complete(
        &self,
        sequence: &mut OutputOrder<Out>,
        outbox: &mut Outbox<Out>,
        completed: CompletedItem<Out>,
    ) -> FailureAction {
        match sequence {
            OutputOrder::Input { slots, .. } => {
                slots.finish(completed.number, OrderedResult::CompletedItem(completed))
            }
            OutputOrder::Completion { first, epochs } => {
                let epoch = (completed.number - *first) as usize;
                epochs[epoch].in_flight -= 1;
                if epoch == 0 {
                    if self.forward(outbox, completed) == FailureAction::Halt {
                        return FailureAction::Halt;
                    }
                } else {
                    epochs[epoch].held.push(completed);
                }
            }
        }
        self.forward_ready(sequence, outbox)
    }

    /// Forwards all results that are next in order.
    fn forward_ready(
        &self,
        sequence: &mut OutputOrder<Out>,
        outbox: &mut Outbox<Out>,
    ) -> FailureAction {
        match sequence {
            OutputOrder::Input { slots, .. } => {
                while let Some(slot) = slots.take() {
                    slots.advance(1);
                    match slot {
                        OrderedResult::EpochEnd(epoch) => {
                            self.flush(outbox);
                            drop(self.output.push_end(epoch));
                        }
                        OrderedResult::CompletedItem(completed) => {
                            if self.forward(outbox, completed) == FailureAction::Halt {
                                return FailureAction::Halt;
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
                    for completed in held.into_iter().flatten() {
                        if self.forward(outbox, completed) == FailureAction::Halt {
                            return FailureAction::Halt;
                        }
                    }
                }
            }
        }
        FailureAction::Continue
    }

    /// Puts an output into the outbox, or releases the place of a failed item.
    fn forward(&self, outbox: &mut Outbox<Out>, completed: CompletedItem<Out>) -> FailureAction {
        let CompletedItem { header, result, bytes, time, mut reserved, carried, .. } = completed;
        self.core.tried(1);
        self.core.meter.slowest.record(header.id, header.key(), time, bytes);
        let item = match result {
            Ok(value) => {
                self.core.meter.measured(bytes.unwrap_or(0));
                let reservation = match (bytes, self.core.measured(), &mut reserved) {
                    (Some(bytes), Some((measure, _)), Some(reserved)) => {
                        Some(measure.reservation(reserved, bytes))
                    }
                    // An output that is not measured keeps the reservation of its input.
                    _ => carried,
                };
                Some(Item { header, value, reservation })
            }
            Err(error) if error.kind() == ErrorKind::Stopped && self.output.is_shut() => {
                return FailureAction::Halt;
            }
            Err(error) => {
                if self.core.item_failed(&header, error) == FailureAction::Halt {
                    return FailureAction::Halt;
                }
                self.core.gone([header.member()], Outcome::Dropped);
                None
            }
        };
        outbox.places += 1;
        outbox.items.extend(item);
        if outbox.places >= MAX_RUN {
            self.flush(outbox);
        }
        FailureAction::Continue
    }
}

impl<Out> OutputOrder<Out> {
    /// The number of the item that is received next.
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
