//! The consumer's side of the books: what it was handed, and so how far the run has come.

use std::ops::Range;
use std::sync::Arc;

use crate::account::{Account, Deliveries, Fate};
use crate::sample::Head;
use crate::state::{SampleCounts, State};
use crate::{Error, ErrorKind, Result};

/// Keeps account of what the consumer is handed.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) account: Arc<Account>,
    deliveries: Deliveries,
    /// The state at the beginning of this run, or of the current epoch.
    begun: State,
    steps: u64,
    steps_in_epoch: u64,
    audit: bool,
    /// Whether every stage hands its outputs on in the order of its inputs.
    keeps_order: bool,
    /// Numbers of items that are not to be delivered.
    skipped: Vec<Range<u64>>,
}

impl Delivery {
    /// For a run that begins with `begun`.
    pub(crate) fn new(
        account: Arc<Account>,
        begun: State,
        audit: bool,
        keeps_order: bool,
        skipped: Vec<Range<u64>>,
    ) -> Self {
        Delivery {
            account,
            deliveries: Deliveries::new(begun.shard.unwrap_or_default().world),
            steps: begun.steps,
            steps_in_epoch: begun.steps_in_epoch,
            begun,
            audit,
            keeps_order,
            skipped,
        }
    }

    /// How many items were handed out, in the runs before too.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether the item that comes next is one that the consumer does not want.
    fn skips(&self) -> bool {
        !self.skipped.is_empty() && self.skipped.iter().any(|steps| steps.contains(&self.steps))
    }

    /// Notes that the consumer is handed an item. Says whether it wants it: else it is left out.
    pub(crate) fn hand_out(&mut self, head: &Head) -> bool {
        let wanted = !self.skips();
        self.steps = self.steps.saturating_add(1);
        if head.id.epoch != self.begun.epoch {
            // Its first item.
            self.begin(head.id.epoch);
        }
        self.steps_in_epoch = self.steps_in_epoch.saturating_add(1);
        if wanted {
            self.deliveries.add(head, &self.account);
        } else {
            self.account.gone(&head.member(), Fate::LeftOut);
        }
        wanted
    }

    fn begin(&mut self, epoch: u64) {
        self.begun = self.begun.at_epoch(epoch);
        self.steps_in_epoch = 0;
    }

    /// Closes an epoch of which everything was handed out.
    pub(crate) fn end_epoch(&mut self, epoch: u64) -> Result<()> {
        self.deliveries.enter_all(epoch, &self.account);
        let counts = self.account.close(epoch, self.audit)?;
        self.begun.in_all = self.begun.in_all.plus(counts);
        self.begin(epoch + 1);
        Ok(())
    }

    /// How far the run has come.
    pub(crate) fn state(&self) -> Result<State> {
        let begun = &self.begun;
        let progress = self.account.progress(begun.epoch, &self.deliveries);
        if let Some(error) = self.account.why_no_state() {
            return Err(error);
        }
        if let Some((stage, _)) = progress.cuts.first_key_value()
            && !self.keeps_order
        {
            let message = "this stage has cut an item, and delivered it in part; which one that is can \
                           only be known where every stage keeps order: make it `deterministic`";
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.with_stage(stage.as_str()));
        }
        let counts: SampleCounts = progress.counts;
        let state = State {
            done: progress.done,
            pieces: progress.pieces,
            steps: self.steps,
            steps_in_epoch: self.steps_in_epoch,
            in_epoch: begun.in_epoch.plus(counts),
            in_all: begun.in_all.plus(counts),
            carry: progress.cuts,
            // What an earlier run made may not have come again yet.
            parts_end: progress.parts_end.max(begun.parts_end),
            ..begun.clone()
        };
        let parts_end = if state.has_parts() { state.parts_end } else { 0 };
        Ok(State { parts_end, ..state })
    }
}
