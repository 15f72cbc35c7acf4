//! Lineage of items: the samples and aggregates of which an item consists, and the outcome of each.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

#[cfg(feature = "serde")]
use crate::error::{Error, Result};
use crate::source::ranges::Ranges;
use crate::source::sample::SampleId;
use crate::sync::Mutex;

/// Outcome of a piece or a sample, in ascending order. The outcome of a sample with several pieces
/// is the greatest outcome of its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub(crate) enum Outcome {
    /// Continued in another piece of the same sample.
    Joined,
    Filtered,
    LeftOut,
    Dropped,
    Delivered,
}

/// A piece of a sample or of an aggregate, with its identity and members.
#[derive(Clone, Debug)]
pub(crate) struct LineageNode {
    pub(crate) id: SampleId,
    pub(crate) lineage: u64,
    /// Members, if the piece is an aggregate.
    pub(crate) of: Option<Arc<AggregateLineage>>,
}

impl From<SampleId> for LineageNode {
    fn from(id: SampleId) -> Self {
        LineageNode { id, lineage: 0, of: None }
    }
}

impl LineageNode {
    pub(crate) fn piece(&self) -> PieceId {
        match &self.of {
            Some(of) => PieceId::of_list(of.depth, self.id.index, self.lineage, of.hash()),
            None => PieceId::of_sample(self.id.index, self.lineage),
        }
    }

    /// Position after the last sample that the piece contains.
    pub(crate) fn end(&self) -> u64 {
        self.of.as_ref().map_or(self.id.index.saturating_add(1), |of| of.end)
    }

    /// Calls `visit` for each sample in the piece.
    pub(crate) fn samples(&self, visit: &mut dyn FnMut(SampleId)) {
        match &self.of {
            Some(members) => members.samples(visit),
            None => visit(self.id),
        }
    }
}

/// Members of an aggregate.
#[derive(Debug)]
pub(crate) struct AggregateLineage {
    pub(crate) list: Box<[LineageNode]>,
    /// Nesting depth: 1 for an aggregate of samples.
    pub(crate) depth: u32,
    /// Position after the last sample that the stage had received. Later samples cannot change the
    /// aggregate.
    pub(crate) end: u64,
    /// See [`hash`](AggregateLineage::hash).
    hash: OnceLock<u64>,
    /// Position among the aggregates of its stage in this epoch, if the position matters.
    pub(crate) order: Option<EmissionOrder>,
    pub(crate) live: Mutex<AggregateProgress>,
}

/// Position of an aggregate in the sequence that its stage emitted in an epoch.
#[derive(Debug)]
pub(crate) struct EmissionOrder {
    pub(crate) stage: Arc<str>,
    /// Counts from 0, without gaps.
    pub(crate) number: u64,
    /// Whether this or an earlier aggregate splits an item, so that outcomes are recorded in order.
    pub(crate) in_order: bool,
    /// The item that is split at the end of the previous aggregate.
    pub(crate) split_at_start: Option<(PieceId, u64)>,
    /// The oldest buffered item, if a part of it was emitted, and the size of this part.
    pub(crate) split_at_end: Option<(PieceId, u64)>,
}

/// Progress of an aggregate.
#[derive(Debug)]
pub(crate) struct AggregateProgress {
    pub(crate) pieces: u64,
    pub(crate) outcome: Outcome,
    /// Pieces that have ended while others are in flight.
    pub(crate) ended: EndedPieces,
}

impl AggregateLineage {
    pub(crate) fn new(list: impl IntoIterator<Item = LineageNode>) -> Self {
        let list: Box<[LineageNode]> = list.into_iter().collect();
        let depth = |member: &LineageNode| member.of.as_ref().map_or(0, |of| of.depth);
        let depth = list.iter().map(depth).max().unwrap_or(0) + 1;
        let end = list.iter().map(LineageNode::end).max().unwrap_or(0);
        let live = Mutex::new(AggregateProgress {
            pieces: 1,
            outcome: Outcome::Joined,
            ended: EndedPieces::default(),
        });
        AggregateLineage { list, depth, end, hash: OnceLock::new(), order: None, live }
    }

    /// Sets the position after the last sample that the stage had received.
    pub(crate) fn with_end(self, end: u64) -> Self {
        AggregateLineage { end: self.end.max(end), ..self }
    }

    /// Returns a hash of the members and of the points at which items are split.
    fn hash(&self) -> u64 {
        *self.hash.get_or_init(|| {
            let mut hash = self.list.iter().fold(0, |hash, member| {
                let of = member.of.as_ref().map_or(0, |of| of.hash());
                mix(mix(hash ^ of, member.id.index) ^ member.lineage, 0)
            });
            if let Some(order) = &self.order {
                for split in [order.split_at_start, order.split_at_end] {
                    let (index, number, out) =
                        split.map_or((0, 0, 0), |(piece, out)| (piece.index, piece.number, out));
                    hash = mix(mix(hash ^ number, index), out);
                }
            }
            hash
        })
    }

    /// Sets the position of the aggregate among the aggregates of its stage.
    pub(crate) fn with_order(self, order: EmissionOrder) -> Self {
        let split_depth = order.split_at_end.map_or(0, |(piece, _)| piece.depth + 1);
        AggregateLineage { depth: self.depth.max(split_depth), order: Some(order), ..self }
    }

    /// Calls `visit` for each sample in the aggregate.
    pub(crate) fn samples(&self, visit: &mut dyn FnMut(SampleId)) {
        self.list.iter().for_each(|member| member.samples(visit));
    }
}

/// Identifies a piece of a sample or of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "(u32, u64, u64)", from = "(u32, u64, u64)"))]
pub(crate) struct PieceId {
    /// Nesting depth: 0 for a sample.
    pub(crate) depth: u32,
    pub(crate) index: u64,
    /// Number among the pieces with this depth and index. The outputs of one item are consecutive.
    pub(crate) number: u64,
}

impl From<PieceId> for (u32, u64, u64) {
    fn from(piece: PieceId) -> Self {
        (piece.depth, piece.index, piece.number)
    }
}

impl From<(u32, u64, u64)> for PieceId {
    fn from((depth, index, number): (u32, u64, u64)) -> Self {
        // `Ranges` cannot contain `u64::MAX`, because the ends of ranges are exclusive. Two pieces
        // collide with a probability of 2^-64, like any two lineages.
        PieceId { depth, index, number: number.min(u64::MAX - 1) }
    }
}

impl PieceId {
    pub(crate) fn of_sample(index: u64, lineage: u64) -> Self {
        PieceId::of_list(0, index, lineage, 0)
    }

    /// Identifies a piece of a list, which has the index and lineage of its first member. `list` is
    /// a hash of all members. It shifts the numbers of all pieces of the list equally, so pieces of
    /// different lists differ.
    pub(crate) fn of_list(depth: u32, index: u64, lineage: u64, list: u64) -> Self {
        PieceId::from((depth, index, unmixed(lineage).wrapping_add(list)))
    }
}

/// Pieces that have ended, with their outcomes.
///
/// Consecutive outputs of one item form one range of numbers, so the size is proportional to the
/// number of gaps, which are pieces in flight. For the pieces of a sample, only the greatest
/// outcome is stored, because it becomes the outcome of the sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(into = "Vec<EndedPiecesData>", try_from = "Vec<EndedPiecesData>")
)]
pub(crate) struct EndedPieces(BTreeMap<(u32, u64, Outcome), Ranges>);

impl EndedPieces {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all pieces with this depth and index.
    fn of(&self, depth: u32, index: u64) -> impl Iterator<Item = (Outcome, &Ranges)> {
        let all = (depth, index, Outcome::Joined)..=(depth, index, Outcome::Delivered);
        self.0.range(all).map(|(&(_, _, outcome), numbers)| (outcome, numbers))
    }

    /// Returns the outcome of a piece, if it has ended.
    pub(crate) fn get(&self, piece: PieceId) -> Option<Outcome> {
        let number = piece.number;
        let mut all = self.of(piece.depth, piece.index);
        all.find(|(_, numbers)| numbers.contains(number)).map(|(outcome, _)| outcome)
    }

    /// Adds a piece, unless it is present.
    pub(crate) fn insert(&mut self, piece: PieceId, outcome: Outcome) {
        let number = piece.number;
        self.add(piece.depth, piece.index, outcome, |numbers| {
            numbers.insert(number);
        });
    }

    fn add(&mut self, depth: u32, index: u64, outcome: Outcome, add: impl FnOnce(&mut Ranges)) {
        // Several lists may share the index of a sample, so their outcomes stay separate.
        let known = if depth == 0 { self.of(depth, index).next() } else { None };
        let greatest = match known.map(|(known, _)| known) {
            Some(known) if known < outcome => {
                let numbers = self.0.remove(&(depth, index, known)).unwrap_or_default();
                self.0.insert((depth, index, outcome), numbers);
                outcome
            }
            Some(known) => known,
            None => outcome,
        };
        add(self.0.entry((depth, index, greatest)).or_default());
    }

    /// Adds all pieces of `other`, without duplicates.
    pub(crate) fn extend(&mut self, other: &EndedPieces) {
        for (&(depth, index, outcome), numbers) in &other.0 {
            self.add(depth, index, outcome, |known| *known = known.union(numbers));
        }
    }

    /// Keeps only the pieces for which `keep(depth, index)` returns true.
    pub(crate) fn retain(&mut self, keep: impl Fn(u32, u64) -> bool) {
        self.0.retain(|&(depth, index, _), _| keep(depth, index));
    }

    /// Returns the indices of the samples of all pieces; an index may repeat.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u64> {
        self.0.keys().map(|&(_, index, _)| index)
    }

    /// Whether any piece belongs to an aggregate.
    pub(crate) fn has_lists(&self) -> bool {
        self.0.keys().any(|(depth, _, _)| *depth > 0)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.0.values().map(Ranges::count).sum()
    }
}

/// Serialized form: depth, index, outcome, and the numbers as `[first, count]`.
#[cfg(feature = "serde")]
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct EndedPiecesData(u32, u64, Outcome, Vec<[u64; 2]>);

#[cfg(feature = "serde")]
impl From<EndedPieces> for Vec<EndedPiecesData> {
    fn from(pieces: EndedPieces) -> Self {
        let data = pieces.0.iter().map(|(&(depth, index, outcome), numbers)| {
            let numbers = numbers.iter().map(|range| [range.start, range.end - range.start]);
            EndedPiecesData(depth, index, outcome, numbers.collect())
        });
        data.collect()
    }
}

#[cfg(feature = "serde")]
impl TryFrom<Vec<EndedPiecesData>> for EndedPieces {
    type Error = Error;

    fn try_from(all: Vec<EndedPiecesData>) -> Result<Self> {
        let mut pieces = EndedPieces::default();
        for EndedPiecesData(depth, index, outcome, numbers) in all {
            let ranges = numbers.iter().map(|&[first, count]| {
                // An overflowing range becomes empty, which `Ranges` rejects as not ascending.
                [first, first.checked_add(count).unwrap_or(first)]
            });
            let ranges = Ranges::try_from(ranges.collect::<Vec<_>>())?;
            pieces.add(depth, index, outcome, |known| *known = known.union(&ranges));
        }
        Ok(pieces)
    }
}

/// Distance of the numbers of consecutive outputs before mixing: the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND: u64 = 0x94d0_49bb_1331_11eb;

/// Hashes two numbers with the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_add(b.wrapping_mul(STEP));
    x = (x ^ (x >> 30)).wrapping_mul(FIRST);
    x = (x ^ (x >> 27)).wrapping_mul(SECOND);
    (x ^ (x >> 31)).max(1)
}

/// Inverts [`mix`] for a zero first argument. The results for the outputs of one item, except the
/// first output, are consecutive numbers. Therefore many outputs form one range.
pub(crate) fn unmixed(lineage: u64) -> u64 {
    let mut x = lineage ^ (lineage >> 31) ^ (lineage >> 62);
    x = x.wrapping_mul(const { inverse(SECOND) });
    x = (x ^ (x >> 27) ^ (x >> 54)).wrapping_mul(const { inverse(FIRST) });
    (x ^ (x >> 30) ^ (x >> 60)).wrapping_mul(const { inverse(STEP) })
}

/// Returns the multiplicative inverse of an odd number modulo 2^64.
const fn inverse(odd: u64) -> u64 {
    // Newton's iteration: the number of correct low bits doubles each time, starting from 3.
    let mut inverse = odd;
    let mut bits = 3;
    while bits < 64 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::ItemHeader;

    fn piece(index: u64, output: u64) -> PieceId {
        let lineage = ItemHeader::default().output(1234, output).lineage;
        PieceId::of_sample(index, lineage)
    }

    #[test]
    fn pieces_have_the_greatest_outcome_of_their_sample() {
        let mut pieces = EndedPieces::default();
        let list = |output| PieceId { depth: 1, ..piece(3, output) };
        for output in (0..10).chain(5..7) {
            let outcome = if output % 2 == 0 { Outcome::Delivered } else { Outcome::Filtered };
            pieces.insert(piece(3, output), outcome);
            pieces.insert(list(output), outcome);
        }
        pieces.insert(piece(4, 2), Outcome::Dropped);
        assert_eq!(pieces.count(), 21);
        assert_eq!(pieces.get(piece(3, 5)), Some(Outcome::Delivered));
        let queried = [list(4), list(5), list(10), piece(4, 2), piece(4, 1)];
        let ends =
            [Some(Outcome::Delivered), Some(Outcome::Filtered), None, Some(Outcome::Dropped), None];
        assert_eq!(queried.map(|piece| pieces.get(piece)), ends);
        let mut twice = pieces.clone();
        twice.extend(&pieces);
        assert_eq!(twice, pieces);
        // The largest number can be inserted although it has no successor.
        let last = PieceId::of_list(1, 9, 0, u64::MAX);
        twice.insert(last, Outcome::Dropped);
        assert_eq!(twice.get(last), Some(Outcome::Dropped));
        assert!(pieces.has_lists());
        pieces.retain(|depth, index| depth == 0 && index == 4);
        assert_eq!((pieces.count(), pieces.has_lists()), (1, false));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn many_pieces_of_a_sample_are_serialized_in_few_bytes() {
        // All pieces but ten in flight, of a hundred thousand.
        let mut pieces = EndedPieces::default();
        for output in (0..100_000).filter(|output| output % 10_000 != 7) {
            pieces.insert(piece(1 << 40, output), Outcome::Delivered);
        }
        let text = serde_json::to_string(&pieces).unwrap();
        assert!(text.len() < 50 + 11 * 30, "{} bytes: {text}", text.len());
        assert_eq!(serde_json::from_str::<EndedPieces>(&text).unwrap(), pieces);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn invalid_pieces_are_an_error() {
        let read = |text: &str| serde_json::from_str::<EndedPieces>(text);
        let valid = read(r#"[[1,3,"left-out",[[5,2]]]]"#).unwrap();
        assert_eq!((valid.count(), valid.has_lists()), (2, true));
        for wrong in [
            r#"[[0,3,"delivered",[[18446744073709551615,2]]]]"#,
            r#"[[0,3,"delivered",[[5,0]]]]"#,
            r#"[[0,3,"delivered",[[5,9],[7,1]]]]"#,
            r#"[[0,3,"lost",[[5,1]]]]"#,
            r#"[[[0,3,1],"delivered"]]"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
