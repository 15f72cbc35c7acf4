//! The source, as a task of the runtime that numbers its items.

use std::future::poll_fn;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_core::stream::BoxStream;

use super::queue::Queue;
use super::{StageCore, guarded};
use crate::failure::{Verdict, panicked};
use crate::sample::Envelope;
use crate::{Cursor, ErrorKind, Result, SampleId, Source};

/// The most items put into the first queue at once.
const LONGEST_RUN: usize = 64;

pub(crate) struct SourceNode<S: Source> {
    pub(crate) core: StageCore,
    pub(crate) source: S,
    pub(crate) epochs: Range<u64>,
    pub(crate) output: Arc<Queue<S::Item>>,
}

/// A pass that is under way.
struct Pass<T> {
    items: BoxStream<'static, Result<T>>,
    /// The position of the next item.
    at: SampleId,
}

impl<S: Source> SourceNode<S> {
    pub(crate) async fn drive(self) {
        let mut run = Vec::with_capacity(LONGEST_RUN);
        for epoch in self.epochs.clone() {
            if self.core.shared.ended() {
                return;
            }
            let items = match guarded(|| self.source.open(Cursor::new(epoch, 0))).0 {
                Ok(items) => items,
                Err(error) => return self.core.raise(error),
            };
            let mut pass = Pass { items, at: SampleId { epoch, index: 0 } };
            poll_fn(|cx| self.pump(&mut pass, &mut run, cx)).await;
            if pass.at.index == 0 {
                // Nothing in this epoch: nothing in the next ones, and no endless loop over it.
                break;
            }
        }
        self.output.close();
    }

    /// Moves items into the queue, a run at a time, until the pass ends.
    fn pump(
        &self,
        pass: &mut Pass<S::Item>,
        run: &mut Vec<Envelope<S::Item>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            if self.core.shared.ended() {
                return Poll::Ready(());
            }
            let Poll::Ready(places) = self.output.poll_reserve(LONGEST_RUN, cx) else {
                return Poll::Pending;
            };
            let started = Instant::now();
            let mut failures = 0;
            let mut state = Poll::Ready(());
            let mut ended = false;
            while run.len() < places {
                let polled = catch_unwind(AssertUnwindSafe(|| {
                    // With its name, which is the source's code as well.
                    let named = |item| Result::map(item, |value| (self.source.key(&value), value));
                    pass.items.as_mut().poll_next(cx).map(|item| item.map(named))
                }));
                let polled =
                    polled.unwrap_or_else(|payload| Poll::Ready(Some(Err(panicked(payload)))));
                match polled {
                    Poll::Ready(Some(item)) => {
                        let id = pass.at;
                        pass.at.index += 1;
                        match item {
                            Ok((key, value)) => run.push(Envelope { id, key, value }),
                            Err(error) => {
                                failures += 1;
                                let who = Envelope { id, key: None, value: () };
                                // A stream that panicked must not be polled again.
                                if error.kind() == ErrorKind::Panicked {
                                    self.core.raise(error);
                                    return Poll::Ready(());
                                }
                                if self.core.item_failed(&who, error) == Verdict::Halt {
                                    return Poll::Ready(());
                                }
                            }
                        }
                    }
                    Poll::Ready(None) => {
                        ended = true;
                        break;
                    }
                    Poll::Pending => {
                        state = Poll::Pending;
                        break;
                    }
                }
            }
            self.core.meter.record(run.len() as u64 + failures, failures, started.elapsed());
            drop(self.output.push(places, run.drain(..)));
            if ended || state.is_pending() {
                return state;
            }
        }
    }
}
