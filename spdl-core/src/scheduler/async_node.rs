//! A stage that waits, as a task of the runtime that owns all its items in flight.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use futures_util::stream::FuturesUnordered;

use super::StageCore;
use super::queue::Queue;
use super::reorder::Reorder;
use crate::Result;
use crate::failure::{Verdict, panicked};
use crate::runtime::Runtime;
use crate::sample::Envelope;
use crate::stage::{AsyncContext, AsyncStage};

pub(crate) struct AsyncNode<In, Out, S: ?Sized> {
    pub(crate) core: StageCore,
    pub(crate) stage: Arc<S>,
    pub(crate) input: Arc<Queue<In>>,
    pub(crate) output: Arc<Queue<Out>>,
    /// Present where the stage restores its input order.
    pub(crate) reorder: Option<Reorder<Option<Envelope<Out>>>>,
}

struct Landed<Out> {
    number: u64,
    who: Envelope<()>,
    result: Result<Out>,
    time: Duration,
}

impl<In, Out, S> AsyncNode<In, Out, S>
where
    In: Send + 'static,
    Out: Send + 'static,
    S: AsyncStage<In, Out = Out> + ?Sized,
{
    pub(crate) async fn drive(mut self, runtime: Arc<dyn Runtime>) {
        let mut flights: FuturesUnordered<BoxFuture<'static, Landed<Out>>> =
            FuturesUnordered::new();
        let mut place_reserved = false;
        let mut input_ended = false;
        poll_fn(|cx| {
            loop {
                if self.core.shared.ended() {
                    return Poll::Ready(());
                }
                while !input_ended && flights.len() < self.core.concurrency() {
                    if !place_reserved {
                        match self.output.poll_reserve(1, cx) {
                            Poll::Ready(places) => place_reserved = places == 1,
                            Poll::Pending => break,
                        }
                    }
                    match self.input.poll_pop(cx) {
                        Poll::Ready(Some((number, item))) => {
                            place_reserved = false;
                            flights.push(self.start(number, item, &runtime));
                        }
                        Poll::Ready(None) => input_ended = true,
                        Poll::Pending => break,
                    }
                }
                match Pin::new(&mut flights).poll_next(cx) {
                    Poll::Ready(Some(landed)) => self.land(landed),
                    Poll::Ready(None) if input_ended => {
                        self.output.release(usize::from(place_reserved));
                        self.output.close();
                        return Poll::Ready(());
                    }
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }

    fn start(
        &self,
        number: u64,
        item: Envelope<In>,
        runtime: &Arc<dyn Runtime>,
    ) -> BoxFuture<'static, Landed<Out>> {
        let Envelope { id, key, value } = item;
        let cx = AsyncContext {
            id,
            key: key.clone(),
            seed: self.core.shared.seed,
            stage: self.core.number,
            runtime: Arc::clone(runtime),
        };
        let stage = Arc::clone(&self.stage);
        Box::pin(async move {
            let started = Instant::now();
            let work = async { stage.process(value, &cx).await };
            let result = AssertUnwindSafe(work).catch_unwind().await;
            let result = result.unwrap_or_else(|payload| Err(panicked(payload)));
            let who = Envelope { id, key, value: () };
            Landed { number, who, result, time: started.elapsed() }
        })
    }

    fn land(&mut self, landed: Landed<Out>) {
        let Landed { number, who, result, time } = landed;
        self.core.meter.record(1, u64::from(result.is_err()), time);
        let item = match result {
            Ok(value) => Some(who.with(value)),
            Err(error) => {
                if self.core.item_failed(&who, error) == Verdict::Halt {
                    return;
                }
                None
            }
        };
        let Some(reorder) = &mut self.reorder else {
            drop(self.output.push(1, item.into_iter()));
            return;
        };
        reorder.finish(number, item);
        while let Some(item) = reorder.take() {
            reorder.advance(1);
            drop(self.output.push(1, item.into_iter()));
        }
    }
}
