//! Assembly of batches: which sample is written to which slot, and when a batch is complete.
//!
//! Batches have the input order without failed samples, regardless of timing. A sample receives the
//! slot that is correct if no earlier sample fails. After a failure, each later sample that is
//! already written is copied to the previous slot. A sample whose expected slot is still occupied
//! is written to a spare row and copied later. Without failures no row is copied.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::item::ItemHeader;
use crate::item::lineage::LineageNode;
use crate::memory::budget::Reservation;
use crate::memory::buffer::{BufferPool, aligned};
use crate::source::sample::SampleId;
use crate::stage::batch::Batch;
use crate::stage::collate::{FieldRows, collate};
use crate::stage::layout::{BatchLayout, Collation};
use crate::stage::slot::Row;

#[derive(Debug)]
pub(crate) struct Assembly {
    layout: BatchLayout,
    row_bytes: Vec<usize>,
    pool: BufferPool,
    /// Samples without a final slot, oldest first.
    entries: VecDeque<SampleEntry>,
    /// Number of `entries[0]`.
    first: u64,
    /// Open batches, oldest first. Samples with a final slot fill the first batch from its start.
    batches: VecDeque<OpenBatch>,
    batches_opened: u64,
    /// Epoch of the newest sample.
    epoch: u64,
    /// Samples of `epoch` in `entries` that have not failed.
    pending: usize,
    /// Rows outside of batches, for reuse.
    spare: Vec<Vec<Row>>,
    finished: Vec<Finished>,
    /// Whether a failure has halted the stage: later samples are not delivered.
    halted: bool,
}

#[derive(Debug)]
struct SampleEntry {
    member: LineageNode,
    place: Place,
    state: SampleState,
}

/// A failed sample. The failure policy is applied when all earlier samples are settled.
pub(crate) type Failed = Box<(ItemHeader, Error)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Slot { batch: u64, slot: usize },
    Spare,
}

#[derive(Debug)]
enum SampleState {
    Filling,
    /// Holds the rows of a sample in [`Place::Spare`]; other rows are back in their batch.
    Filled(Vec<Row>),
    Failed(Failed),
    /// Failed; the failure policy is being applied.
    Resolving,
    /// Failed and dropped.
    Dropped,
    /// Not a sample, but the end of an epoch.
    EpochEnd,
}

#[derive(Debug)]
struct OpenBatch {
    number: u64,
    epoch: u64,
    reservation: Option<Reservation>,
    fields: Vec<FieldRows>,
    /// Whether a slot belongs to a sample, written or not, final or not.
    taken: Vec<bool>,
    /// Samples with a final slot, from slot 0.
    members: Vec<LineageNode>,
}

/// Result of an open batch.
#[derive(Debug)]
pub(crate) enum Finished {
    Batch(Batch, Vec<LineageNode>, Option<Reservation>),
    /// End of this epoch.
    EpochEnd(u64),
    /// The batch is empty, or incomplete and `drop_last` is set; these samples are left out. The
    /// reservation is dropped outside the lock, because dropping it wakes waiting threads.
    Discarded(Vec<LineageNode>, Option<Reservation>),
    /// The batch could not be built.
    Failed(crate::error::Error),
}

impl Assembly {
    pub(crate) fn new(layout: BatchLayout, pool: BufferPool) -> Self {
        let row_bytes = layout.fields().iter().map(|field| field.row_bytes().unwrap_or(0));
        Assembly {
            row_bytes: row_bytes.collect(),
            layout,
            pool,
            entries: VecDeque::new(),
            first: 0,
            batches: VecDeque::new(),
            batches_opened: 0,
            epoch: 0,
            pending: 0,
            spare: Vec::new(),
            finished: Vec::new(),
            halted: false,
        }
    }

    /// Size of one batch in bytes.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.row_bytes.iter().sum::<usize>() * self.layout.batch_size()
    }

    /// Whether [`open`](Self::open) must be called before a sample of `epoch` is added.
    pub(crate) fn needs_batch(&self, epoch: u64) -> bool {
        self.expected_place(epoch).0 >= self.batches.len()
    }

    /// The number of samples of `epoch` that can be added before [`open`](Self::open) must be called, if no batch is
    /// needed now.
    pub(crate) fn room(&self, epoch: u64) -> usize {
        self.layout.batch_size() - self.expected_place(epoch).1
    }

    /// Returns where the next sample goes if no earlier sample fails: the index in `batches`, which
    /// may be one past the end, and the slot.
    fn expected_place(&self, epoch: u64) -> (usize, usize) {
        let start = self.batches.iter().position(|batch| batch.epoch == epoch);
        let start = start.unwrap_or(self.batches.len());
        let settled = self.batches.get(start).map_or(0, |batch| batch.members.len());
        let pending = if epoch == self.epoch { self.pending } else { 0 };
        let ahead = settled + pending;
        (start + ahead / self.layout.batch_size(), ahead % self.layout.batch_size())
    }

    /// Number of open batches that the samples up to `epoch` need if none of them fails.
    fn batches_needed(&self, epoch: u64) -> usize {
        let (batch, slot) = self.expected_place(epoch);
        batch + usize::from(slot > 0)
    }

    /// Opens a batch for samples of `epoch`.
    pub(crate) fn open(&mut self, epoch: u64) -> Result<()> {
        let size = self.layout.batch_size();
        let fields = self.layout.fields().iter();
        let fields =
            fields.map(|field| FieldRows::new(field, size, &self.pool)).collect::<Result<_>>()?;
        self.batches.push_back(OpenBatch {
            number: self.batches_opened,
            epoch,
            reservation: None,
            fields,
            taken: vec![false; size],
            members: Vec::with_capacity(size),
        });
        self.batches_opened += 1;
        Ok(())
    }

    /// Stores the reservation of the batch that was opened last.
    pub(crate) fn set_reservation(&mut self, reservation: Option<Reservation>) {
        if let Some(last) = self.batches.back_mut() {
            last.reservation = reservation;
        }
    }

    /// Adds a sample. Returns its number and the rows to write it to, one per field.
    pub(crate) fn add(&mut self, member: LineageNode) -> Result<(u64, Vec<Row>)> {
        let id = member.id;
        let (at, slot) = self.expected_place(id.epoch);
        if id.epoch != self.epoch {
            self.epoch = id.epoch;
            self.pending = 0;
        }
        self.pending += 1;
        let lent = self.batches.get_mut(at).filter(|batch| !batch.taken[slot]).and_then(|batch| {
            let rows: Option<Vec<_>> =
                batch.fields.iter_mut().map(|field| field.lend(slot)).collect();
            batch.taken[slot] = true;
            Some((Place::Slot { batch: batch.number, slot }, rows?))
        });
        let (place, mut rows) = match lent {
            Some(lent) => lent,
            None => (Place::Spare, self.spare_rows()?),
        };
        for (field, row) in self.layout.fields().iter().zip(&mut rows) {
            // A row may hold another sample, which failed or was moved.
            if field.collation != Collation::Stacked {
                row.clear();
            }
        }
        let number = self.first + self.entries.len() as u64;
        self.entries.push_back(SampleEntry { member, place, state: SampleState::Filling });
        self.advance();
        Ok((number, rows))
    }

    fn spare_rows(&mut self) -> Result<Vec<Row>> {
        let new = || self.row_bytes.iter().map(|&row| aligned(row).map(Row::from)).collect();
        self.spare.pop().map_or_else(new, Ok)
    }

    /// Adds the end of an epoch, which follows the last batch of the epoch.
    pub(crate) fn end_epoch(&mut self, epoch: u64) {
        let member = LineageNode::from(SampleId { epoch, index: 0 });
        self.entries.push_back(SampleEntry {
            member,
            place: Place::Spare,
            state: SampleState::EpochEnd,
        });
        self.advance();
    }

    /// Removes the failure to handle next, if all earlier samples are settled. The caller applies
    /// the policy outside the lock and then calls [`resolve`](Self::resolve). Until then, later
    /// samples do not advance.
    pub(crate) fn take_failure(&mut self) -> Option<Failed> {
        let front = self.entries.front_mut()?;
        if !matches!(front.state, SampleState::Failed(_)) {
            return None;
        }
        match std::mem::replace(&mut front.state, SampleState::Resolving) {
            SampleState::Failed(failed) => Some(failed),
            _ => None,
        }
    }

    /// Resolves the removed failure: drops the sample or, with `halt`, also all later samples.
    pub(crate) fn resolve(&mut self, halt: bool) {
        if let Some(front) = self.entries.front_mut() {
            front.state = SampleState::Dropped;
        }
        if halt && !self.halted {
            // Samples before the failure are delivered as an incomplete batch.
            self.finish_front();
            self.halted = true;
        }
        self.advance();
    }

    /// Returns the rows of sample `number`, written or not.
    pub(crate) fn settle(&mut self, number: u64, failed: Option<Failed>, rows: Vec<Row>) {
        let written = failed.is_none();
        let entry = &mut self.entries[(number - self.first) as usize];
        entry.state = failed.map_or(SampleState::Filled(Vec::new()), SampleState::Failed);
        let (id, place) = (entry.member.id, entry.place);
        match place {
            Place::Spare if written => entry.state = SampleState::Filled(rows),
            Place::Spare => self.spare.push(rows),
            Place::Slot { batch, slot } => {
                if let Some(batch) = find_batch(&mut self.batches, batch) {
                    batch.return_rows(slot, rows);
                    batch.taken[slot] = written;
                }
            }
        }
        if !written && id.epoch == self.epoch {
            self.pending -= 1;
        }
        self.advance();
    }

    /// Assigns final slots to all samples whose predecessors are settled.
    fn advance(&mut self) {
        self.decide();
        self.close_unneeded();
    }

    /// Discards later batches of the epoch that are empty because of failures. Otherwise these
    /// batches would hold the memory for which the next sample waits.
    fn close_unneeded(&mut self) {
        // Batches of earlier epochs are finished soon.
        let epoch = self.epoch;
        while let Some(last) = self.batches.back()
            && last.epoch == epoch
            && last.members.is_empty()
            && !last.taken.contains(&true)
            && self.batches_needed(epoch) < self.batches.len()
            && let Some(mut last) = self.batches.pop_back()
        {
            let reservation = last.reservation.take();
            last.discard();
            self.finished.push(Finished::Discarded(Vec::new(), reservation));
        }
    }

    fn decide(&mut self) {
        while let Some(entry) = self.entries.front() {
            let epoch = entry.member.id.epoch;
            match entry.state {
                SampleState::Filling | SampleState::Failed(_) | SampleState::Resolving => return,
                SampleState::Filled(_) | SampleState::Dropped | SampleState::EpochEnd => {}
            }
            let Some(SampleEntry { member, place, state }) = self.entries.pop_front() else {
                return;
            };
            self.first += 1;
            match state {
                SampleState::EpochEnd => {
                    while self.batches.front().is_some_and(|batch| batch.epoch <= epoch) {
                        self.finish_front();
                    }
                    self.finished.push(Finished::EpochEnd(epoch));
                }
                SampleState::Filled(spare) => {
                    if epoch == self.epoch {
                        self.pending -= 1;
                    }
                    while self.batches.front().is_some_and(|batch| batch.epoch != epoch) {
                        self.finish_front();
                    }
                    if !self.halted {
                        self.assign_slot(member, place, spare);
                    }
                }
                _ => {}
            }
        }
    }

    fn assign_slot(&mut self, member: LineageNode, place: Place, spare: Vec<Row>) {
        let Some(front) = self.batches.front() else { return };
        let slot = front.members.len();
        if place != (Place::Slot { batch: front.number, slot }) {
            let mut rows = match place {
                Place::Spare => Some(spare),
                Place::Slot { batch, slot } => {
                    find_batch(&mut self.batches, batch).and_then(|batch| {
                        batch.taken[slot] = false;
                        batch.fields.iter_mut().map(|field| field.lend(slot)).collect()
                    })
                }
            };
            if let (Some(rows), Some(front)) = (&mut rows, self.batches.front_mut()) {
                front.move_in(slot, rows);
            }
            match (place, rows) {
                (Place::Spare, Some(rows)) => self.spare.push(rows),
                (Place::Slot { batch, slot }, Some(rows)) => {
                    if let Some(batch) = find_batch(&mut self.batches, batch) {
                        batch.return_rows(slot, rows);
                    }
                }
                (_, None) => {}
            }
        }
        if let Some(front) = self.batches.front_mut() {
            front.members.push(member);
            if front.members.len() == self.layout.batch_size() {
                self.finish_front();
            }
        }
    }

    /// Finishes the oldest batch, complete or not.
    fn finish_front(&mut self) {
        let Some(mut batch) = self.batches.pop_front() else { return };
        let len = batch.members.len();
        let drops_incomplete = len < self.layout.batch_size() && self.layout.drops_last();
        let reservation = batch.reservation.take();
        self.finished.push(if len == 0 || drops_incomplete || self.halted {
            let members = std::mem::take(&mut batch.members);
            batch.discard();
            Finished::Discarded(members, reservation)
        } else {
            let members = std::mem::take(&mut batch.members);
            match batch.into_batch(&self.layout, &members) {
                Ok(batch) => Finished::Batch(batch, members, reservation),
                Err(error) => Finished::Failed(error),
            }
        });
    }

    /// Finishes all open batches. The input has ended, and every sample is settled.
    pub(crate) fn finish(&mut self) {
        while !self.batches.is_empty() {
            self.finish_front();
        }
    }

    /// Removes and returns the results that were finished since the last call, oldest first.
    pub(crate) fn take_finished(&mut self) -> std::vec::Drain<'_, Finished> {
        self.finished.drain(..)
    }
}

fn find_batch(batches: &mut VecDeque<OpenBatch>, number: u64) -> Option<&mut OpenBatch> {
    batches.iter_mut().find(|batch| batch.number == number)
}

impl OpenBatch {
    fn return_rows(&mut self, slot: usize, rows: Vec<Row>) {
        for (field, row) in self.fields.iter_mut().zip(rows) {
            field.return_row(slot, row);
        }
    }

    /// Moves a sample to another slot.
    fn move_in(&mut self, slot: usize, rows: &mut [Row]) {
        self.taken[slot] = true;
        for (field, row) in self.fields.iter_mut().zip(rows) {
            field.move_in(slot, row);
        }
    }

    /// Returns the buffers to the pool.
    fn discard(self) {
        self.fields.into_iter().for_each(FieldRows::discard);
    }

    fn into_batch(self, layout: &BatchLayout, members: &[LineageNode]) -> Result<Batch> {
        let ids = members.iter().map(|member| member.id).collect();
        collate(layout.fields(), self.fields, ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::memory::array::DType;
    use crate::stage::layout::Field;
    use crate::stage::slot::SlotMut;
    use proptest::prelude::*;

    /// Whether the stage sets no shapes for the sample.
    fn is_left_empty(id: SampleId) -> bool {
        id.index % 5 == 4
    }

    /// The shapes of a sample in the fields `ragged`, `padded` and `list`.
    fn shapes_of(id: SampleId) -> [Vec<usize>; 3] {
        if is_left_empty(id) {
            return [vec![0, 2], vec![0, 0, 2], vec![0, 1]];
        }
        let [short, long] = [id.index % 3, id.index % 4].map(|side| side as usize);
        [vec![short, 2], vec![long, short, 2], vec![long, 1]]
    }

    /// Compares the fields whose samples differ in size with their definition.
    fn check_varying(batch: &Batch) {
        let numbers = |name: &str| batch.array(name).unwrap().as_slice::<i64>().unwrap();
        let (ragged, list) = (batch.array("ragged").unwrap(), batch.list("list").unwrap());
        let (padded, offsets) = (batch.array("padded").unwrap(), numbers("ragged.offsets"));
        let &[_, height, width, _] = padded.shape() else { panic!("{:?}", padded.shape()) };
        assert_eq!(offsets.len(), batch.len() + 1);
        assert_eq!(ragged.shape(), [*offsets.last().unwrap() as usize, 2]);
        let sizes: Vec<_> = numbers("padded.sizes").chunks(2).collect();
        assert_eq!((height, width), {
            let most = |axis: usize| sizes.iter().map(|size| size[axis]).max().unwrap() as usize;
            (most(0), most(1))
        });
        for (at, &id) in batch.ids.iter().enumerate() {
            let [in_ragged, in_padded, in_list] = shapes_of(id);
            let value = id.index as u8 + 1;
            let [start, end] = [offsets[at], offsets[at + 1]].map(|row| row as usize);
            assert_eq!(end - start, in_ragged[0]);
            assert!(ragged.as_bytes()[2 * start..2 * end].iter().all(|&byte| byte == value));
            assert_eq!(sizes[at], [in_padded[0] as i64, in_padded[1] as i64]);
            for (place, &byte) in padded.as_bytes()[at * height * width * 2..][..height * width * 2]
                .iter()
                .enumerate()
            {
                let (y, x) = (place / 2 / width, place / 2 % width);
                let inside = y < in_padded[0] && x < in_padded[1];
                assert_eq!(byte, if inside { value } else { 0 }, "{id:?} at ({y}, {x})");
            }
            assert_eq!(list[at].shape(), in_list);
            assert_eq!(list[at].as_bytes(), vec![value; in_list[0]]);
        }
    }

    type Delivered = Vec<(Vec<SampleId>, Vec<i64>)>;

    /// Runs samples through an assembly with `workers` concurrent samples, which finish in an order
    /// drawn from `choices`. Returns the ids and values of each batch. The policy is applied to a
    /// failure after one more sample was added; with `raises` it halts the assembly.
    fn assemble(
        epochs: &[Vec<bool>],
        batch_size: usize,
        drop_last: bool,
        workers: usize,
        raises: bool,
        mut choices: impl FnMut(usize) -> usize,
    ) -> (Delivered, u64) {
        let varying = |name, shape: &[usize], collation| {
            Field::new(name, DType::U8, shape).collation(collation)
        };
        let fields = [
            Field::new("value", DType::I64, &[]),
            Field::new("pad", DType::U8, &[3]),
            varying("ragged", &[0, 2], Collation::Ragged),
            varying("padded", &[0, 0, 2], Collation::Padded),
            varying("list", &[0, 1], Collation::List),
        ];
        let layout = BatchLayout::new(batch_size, fields.clone()).drop_last(drop_last);
        let mut assembly = Assembly::new(layout, BufferPool::new());
        let mut samples = Vec::new();
        for (epoch, outcomes) in epochs.iter().enumerate() {
            for (index, &fails) in outcomes.iter().enumerate() {
                samples.push((SampleId { epoch: epoch as u64, index: index as u64 }, fails));
            }
        }
        let mut samples = samples.into_iter().peekable();
        let mut in_flight = Vec::new();
        let mut shut = false;
        loop {
            let resolving = assembly.take_failure().is_some();
            while in_flight.len() < workers + usize::from(resolving)
                && !shut
                && let Some((id, fails)) = samples.next()
            {
                if assembly.needs_batch(id.epoch) {
                    assembly.open(id.epoch).unwrap();
                }
                assert!(!assembly.needs_batch(id.epoch));
                let (number, rows) = assembly.add(id.into()).unwrap();
                in_flight.push((number, id, fails, rows));
            }
            if resolving {
                shut |= raises;
                assembly.resolve(raises);
                continue;
            }
            if in_flight.is_empty() {
                break;
            }
            let (number, id, fails, mut rows) = in_flight.swap_remove(choices(in_flight.len()));
            let value = (id.epoch * 1000 + id.index) as i64;
            rows[0].bytes.copy_from_slice(&value.to_ne_bytes());
            rows[1].bytes.fill(id.index as u8);
            for (field, shape) in (2..).zip(shapes_of(id)).filter(|_| !is_left_empty(id)) {
                let mut slot = SlotMut::new(&fields, &mut rows);
                slot.resize::<u8>(field, &shape).unwrap().fill(id.index as u8 + 1);
            }
            let failed =
                || Box::new((ItemHeader::new(id, None), Error::new(ErrorKind::Corrupt, "bad")));
            assembly.settle(number, fails.then(failed), rows);
        }
        assembly.finish();
        let mut batches = Vec::new();
        let mut left_out = 0;
        for finished in assembly.take_finished() {
            match finished {
                Finished::Batch(batch, ..) => {
                    let pad = batch.array("pad").unwrap().as_bytes();
                    assert!(
                        batch
                            .ids
                            .iter()
                            .zip(pad.chunks(3))
                            .all(|(id, pad)| { pad.iter().all(|&byte| byte == id.index as u8) })
                    );
                    check_varying(&batch);
                    let values = batch.array("value").unwrap().as_slice::<i64>().unwrap().to_vec();
                    batches.push((batch.ids.clone(), values));
                }
                Finished::Discarded(samples, _) => left_out += samples.len() as u64,
                Finished::EpochEnd(_) => {}
                Finished::Failed(error) => panic!("{error}"),
            }
        }
        (batches, left_out)
    }

    fn expected(epochs: &[Vec<bool>], size: usize, drop_last: bool) -> Vec<Vec<i64>> {
        let mut batches = Vec::new();
        for (epoch, outcomes) in epochs.iter().enumerate() {
            let survivors: Vec<i64> = (0..outcomes.len())
                .filter(|&index| !outcomes[index])
                .map(|index| (epoch * 1000 + index) as i64)
                .collect();
            batches.extend(survivors.chunks(size).map(<[i64]>::to_vec));
            if drop_last && batches.last().is_some_and(|batch: &Vec<i64>| batch.len() < size) {
                batches.pop();
            }
        }
        batches
    }

    proptest! {
        #[test]
        fn batches_contain_the_successful_samples_in_input_order(
            epochs in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.2), 0..50), 1..4),
            size in 1usize..9,
            workers in 1usize..9,
            drop_last: bool,
            choices in prop::collection::vec(any::<prop::sample::Index>(), 50),
        ) {
            let mut turn = 0;
            let choose = |n: usize| { turn += 1; choices[turn % choices.len()].index(n) };
            let (batches, left_out) = assemble(&epochs, size, drop_last, workers, false, choose);
            let values: Vec<Vec<i64>> = batches.iter().map(|(_, values)| values.clone()).collect();
            prop_assert_eq!(&values, &expected(&epochs, size, drop_last));
            let survivors = epochs.iter().flatten().filter(|&&fails| !fails).count();
            let delivered: usize = values.iter().map(Vec::len).sum();
            prop_assert_eq!(delivered as u64 + left_out, survivors as u64);
            for (ids, values) in batches {
                let named: Vec<i64> = ids.iter().map(|id| (id.epoch * 1000 + id.index) as i64).collect();
                prop_assert_eq!(named, values);
            }
        }

        #[test]
        fn samples_before_a_failure_that_halts_the_stage_are_delivered(
            outcomes in prop::collection::vec(prop::bool::weighted(0.2), 0..50),
            size in 1usize..9,
            workers in 1usize..9,
            choices in prop::collection::vec(any::<prop::sample::Index>(), 50),
        ) {
            let mut turn = 0;
            let choose = |n: usize| { turn += 1; choices[turn % choices.len()].index(n) };
            let before = outcomes.iter().position(|&fails| fails).unwrap_or(outcomes.len());
            let (batches, _) = assemble(std::slice::from_ref(&outcomes), size, false, workers, true, choose);
            let values: Vec<Vec<i64>> = batches.into_iter().map(|(_, values)| values).collect();
            prop_assert_eq!(&values, &expected(&[outcomes[..before].to_vec()], size, false));
        }
    }

    #[test]
    fn without_failures_every_sample_is_written_to_its_final_slot() {
        let layout = BatchLayout::new(4, [Field::new("value", DType::U8, &[])]);
        let mut assembly = Assembly::new(layout, BufferPool::new());
        assembly.open(0).unwrap();
        let mut rows = Vec::new();
        for index in 0..4 {
            let (number, row) = assembly.add(SampleId { epoch: 0, index }.into()).unwrap();
            rows.push((number, row[0].bytes.as_ptr(), row));
        }
        let places: Vec<_> = rows.iter().map(|(_, place, _)| *place).collect();
        for (number, _, row) in rows.into_iter().rev() {
            assembly.settle(number, None, row);
        }
        let Some(Finished::Batch(batch, ..)) = assembly.take_finished().next() else {
            panic!("a batch")
        };
        let start = batch.arrays()[0].as_bytes();
        for (index, place) in places.into_iter().enumerate() {
            assert_eq!(place, &raw const start[index]);
        }
    }
}
