//! The set of finished positions of an epoch that was divided among ranks several times.
//!
//! The set is stored as the progress of each rank, so the size does not depend on the number of
//! positions.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::source::ranges::{Complement, Ranges};

/// A division is always stored as ranges if at most this many ranges are sufficient.
const FEW_RANGES: u64 = 64;
/// The maximum size of a table of rounds, in words of 64 bits.
const MOST_WORDS: usize = 1 << 22;

/// The rounds that each of several ranks has done. Round `k` of `w` ranks consists of the numbers
/// `kw` to `kw + w - 1`, of which number `kw + r` belongs to rank `r`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    /// The rounds that each rank has done.
    ranks: Vec<Ranges>,
    /// Rounds at which some rank starts or ends, ascending, with 0 first. All rounds between two
    /// bounds are equal. After the last bound no round is done.
    bounds: Vec<u64>,
    /// For each bound, a bit set of the ranks that have done the rounds from there on. Bits beyond
    /// the last rank are set.
    done: Vec<u64>,
    /// For each bound, how many numbers of a round are not done.
    free: Vec<u64>,
    /// For each bound, how many numbers before it are not done.
    before: Vec<u64>,
}

impl Rounds {
    /// # Errors
    /// `Corrupt` if there are no ranks, or numbers exceed 2^64. `LimitExceeded` if the table would
    /// exceed `MOST_WORDS`.
    pub(crate) fn new(ranks: Vec<Ranges>) -> Result<Self> {
        let world = ranks.len() as u64;
        let turns = ranks.iter().enumerate().flat_map(|(rank, done)| {
            done.iter().flat_map(move |range| [(range.start, rank), (range.end, rank)])
        });
        let mut turns: Vec<(u64, usize)> = turns.collect();
        turns.sort_unstable();
        let last = turns.last().map_or(0, |(round, _)| *round);
        if world == 0 || last.checked_mul(world).is_none() {
            let message = match world {
                0 => "invalid state: it contains no ranks".to_owned(),
                _ => format!(
                    "invalid state: {world} ranks with up to {last} positions each exceed 2^64 - 1 \
                     positions in total"
                ),
            };
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let words = ranks.len().div_ceil(64);
        let mut round = vec![0; words];
        if !ranks.len().is_multiple_of(64) {
            round[words - 1] = u64::MAX << (ranks.len() % 64);
        }
        let (mut bounds, mut done, mut free, mut before) = (vec![0], Vec::new(), vec![], vec![0]);
        let mut total = 0;
        for (bound, rank) in turns {
            let from = bounds[bounds.len() - 1];
            if bound > from {
                if done.len() + words > MOST_WORDS {
                    let message = format!(
                        "cannot combine {world} ranks: they have done too many separate ranges of \
                         the epoch"
                    );
                    return Err(Error::new(ErrorKind::LimitExceeded, message));
                }
                let left: u64 = round.iter().map(|word: &u64| u64::from(word.count_zeros())).sum();
                done.extend_from_slice(&round);
                total += (bound - from) * left;
                bounds.push(bound);
                free.push(left);
                before.push(total);
            }
            round[rank / 64] ^= 1 << (rank % 64);
        }
        Ok(Rounds { ranks, bounds, done, free, before })
    }

    fn world(&self) -> u64 {
        self.ranks.len() as u64
    }

    fn count(&self) -> u64 {
        self.ranks.iter().map(Ranges::count).sum()
    }

    /// The bit set of the rounds from bound number `at` on.
    fn round(&self, at: usize) -> &[u64] {
        let words = self.ranks.len().div_ceil(64);
        &self.done[at * words..(at + 1) * words]
    }

    /// An upper bound of the number of ranges in `to_ranges`; some may touch.
    fn ranges(&self) -> u64 {
        let parts = (0..self.free.len()).map(|at| {
            let rounds = self.bounds[at + 1] - self.bounds[at];
            match self.free[at] {
                0 => 1,
                _ => rounds.saturating_mul(self.parts(at).count() as u64),
            }
        });
        parts.fold(0, u64::saturating_add)
    }

    /// Ranges of ranks that have done the rounds from bound number `at` on.
    fn parts(&self, at: usize) -> impl Iterator<Item = Range<u64>> + '_ {
        let round = self.round(at);
        let is_done = |rank: u64| round[rank as usize / 64] >> (rank % 64) & 1 == 1;
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = (next..self.world()).find(|&rank| is_done(rank))?;
            let end = (start..self.world()).find(|&rank| !is_done(rank)).unwrap_or(self.world());
            next = end;
            Some(start..end)
        })
    }

    /// Converts the numbers to ranges, in time proportional to [`ranges`](Self::ranges).
    fn to_ranges(&self) -> Ranges {
        let mut all = Ranges::default();
        for (at, bounds) in self.bounds.windows(2).enumerate() {
            if self.free[at] == 0 {
                all.insert_range(bounds[0] * self.world()..bounds[1] * self.world());
                continue;
            }
            let parts: Vec<_> = self.parts(at).collect();
            if parts.is_empty() {
                continue;
            }
            for start in (bounds[0]..bounds[1]).map(|round| round * self.world()) {
                for part in &parts {
                    all.insert_range(start + part.start..start + part.end);
                }
            }
        }
        all
    }

    /// The number at place `n` among those that are not done; `None` on overflow.
    fn nth(&self, n: u64) -> Option<u64> {
        let last = self.free.len();
        let at = self.before.partition_point(|&before| before <= n) - 1;
        let left = n - self.before[at];
        if at == last {
            return left.checked_add(self.bounds[last] * self.world());
        }
        let (round, mut left) = (self.bounds[at] + left / self.free[at], left % self.free[at]);
        let mut rank = 0;
        for word in self.round(at) {
            let mut open = !word;
            let zeros = u64::from(open.count_ones());
            if left < zeros {
                (0..left).for_each(|_| open &= open - 1);
                return Some(round * self.world() + rank + u64::from(open.trailing_zeros()));
            }
            left -= zeros;
            rank += 64;
        }
        None
    }

    /// Returns how many numbers below `number` are not done, and whether `number` is done.
    fn place(&self, number: u64) -> (u64, bool) {
        let (round, rank) = (number / self.world(), number % self.world());
        let last = self.free.len();
        if round >= self.bounds[last] {
            return (self.before[last] + (number - self.bounds[last] * self.world()), false);
        }
        let at = self.bounds.partition_point(|&bound| bound <= round) - 1;
        let before = self.before[at] + (round - self.bounds[at]) * self.free[at];
        let (word, bit) = (rank as usize / 64, rank % 64);
        let words = self.round(at);
        let whole: u64 = words[..word].iter().map(|word| u64::from(word.count_zeros())).sum();
        let below = u64::from((!words[word] & ((1 << bit) - 1)).count_ones());
        (before + whole + below, words[word] >> bit & 1 == 1)
    }
}

/// The positions done in one division, numbered among the positions that were not done before it.
#[derive(Debug, PartialEq, Eq)]
enum Layer {
    Plain(Complement),
    Rounds(Rounds),
}

impl Layer {
    fn nth(&self, n: u64) -> Option<u64> {
        match self {
            Layer::Plain(rest) => rest.nth(n),
            Layer::Rounds(rounds) => rounds.nth(n),
        }
    }

    fn place(&self, number: u64) -> (u64, bool) {
        match self {
            Layer::Plain(rest) => rest.place(number),
            Layer::Rounds(rounds) => rounds.place(number),
        }
    }

    /// One past the last number; 0 if empty.
    fn end(&self) -> u64 {
        match self {
            Layer::Plain(rest) => rest.taken().iter().next_back().map_or(0, |last| last.end),
            Layer::Rounds(rounds) => {
                let ranks = (0..).zip(&rounds.ranks);
                let ends = ranks.filter_map(|(rank, done)| {
                    let last = done.iter().next_back()?.end - 1;
                    Some(last * rounds.world() + rank + 1)
                });
                ends.max().unwrap_or(0)
            }
        }
    }

    fn count(&self) -> u64 {
        match self {
            Layer::Plain(rest) => rest.taken().count(),
            Layer::Rounds(rounds) => rounds.count(),
        }
    }
}

/// The set of finished positions of an epoch that was divided among ranks several times. The
/// remaining positions are numbered without gaps.
///
/// Memory grows with the number of ranges that the ranks of each division have done, not with the
/// number of positions. Queries take logarithmic time in the number of ranges. Cloning is cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "LayersData", try_from = "LayersData"))]
pub(crate) struct Layers(Vec<Arc<Layer>>);

impl From<Ranges> for Layers {
    fn from(positions: Ranges) -> Self {
        let mut layers = Layers::default();
        layers.add_places(positions);
        layers
    }
}

impl Layers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of positions in the set.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|layer| layer.count()).fold(0, u64::saturating_add)
    }

    /// The position at place `n` among those not in the set; `None` on overflow.
    pub(crate) fn nth(&self, n: u64) -> Option<u64> {
        self.0.iter().rev().try_fold(n, |n, layer| layer.nth(n))
    }

    /// How many positions before this one are not in the set; `None` if this one is in the set.
    pub(crate) fn rank(&self, position: u64) -> Option<u64> {
        self.0.iter().try_fold(position, |number, layer| match layer.place(number) {
            (before, false) => Some(before),
            (_, true) => None,
        })
    }

    /// How many positions below `end` are not in the set.
    pub(crate) fn left_below(&self, end: u64) -> u64 {
        self.0.iter().fold(end, |number, layer| layer.place(number).0)
    }

    pub(crate) fn contains(&self, position: u64) -> bool {
        self.rank(position).is_none()
    }

    /// One past the last position in the set; 0 if empty.
    pub(crate) fn end(&self) -> u64 {
        let last = |(at, layer): (usize, &Arc<Layer>)| {
            let last = layer.end().checked_sub(1)?;
            self.0[..at].iter().rev().try_fold(last, |n, layer| layer.nth(n))
        };
        let last = self.0.iter().enumerate().filter_map(last).max();
        last.map_or(0, |last| last.saturating_add(1))
    }

    /// Adds the positions at these places among those not in the set.
    pub(crate) fn add_places(&mut self, places: Ranges) {
        if places.is_empty() {
            return;
        }
        let plain = match self.0.last().map(|layer| &**layer) {
            Some(Layer::Plain(rest)) => {
                let more = places.iter().flat_map(|range| rest.at_places(range));
                let plain = more.collect::<Ranges>().union(rest.taken());
                self.0.pop();
                plain
            }
            _ => places,
        };
        self.0.push(Arc::new(Layer::Plain(Complement::of(plain))));
    }

    /// Adds the positions that the ranks have done. `ranks[r]` contains the local numbers that rank
    /// `r` of `w` has done. Local number `k` means place `r + kw` among the positions not in the
    /// set.
    ///
    /// # Errors
    /// The errors of [`Rounds::new`].
    pub(crate) fn add_ranks(&mut self, ranks: Vec<Ranges>) -> Result<()> {
        if ranks.iter().all(Ranges::is_empty) {
            return Ok(());
        }
        let rounds = Rounds::new(ranks)?;
        let own = rounds.ranks.iter().map(|done| done.iter().len() as u64).sum::<u64>();
        // Ranks at the same step are one range, which stays small over many changes of world size.
        if rounds.ranges() <= own.max(FEW_RANGES) {
            self.add_places(rounds.to_ranges());
        } else {
            self.0.push(Arc::new(Layer::Rounds(rounds)));
        }
        Ok(())
    }

    /// The positions outside the set are numbered from 0 in ascending order. Returns those with the
    /// given numbers, as ranges. Finding the next range takes logarithmic time.
    pub(crate) fn left(&self, numbers: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut next = numbers.start;
        std::iter::from_fn(move || {
            let most = numbers.end.checked_sub(next).filter(|&most| most > 0)?;
            let start = self.nth(next)?;
            // Positions ascend by at least 1, so a galloping search finds the end of each range.
            let follows = |len: u64| {
                let place = next.checked_add(len).and_then(|number| self.nth(number));
                place.is_some() && place == start.checked_add(len)
            };
            let mut end = 1;
            while end < most && follows(end) {
                end = end.saturating_mul(2);
            }
            let (mut known, mut end) = (end / 2 + 1, end.min(most));
            while known < end {
                let middle = known + (end - known) / 2;
                if follows(middle) { known = middle + 1 } else { end = middle }
            }
            next += end;
            Some(start..start.saturating_add(end))
        })
    }

    /// The positions of the set as ranges, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut left = self.left(0..u64::MAX);
        let mut from = 0;
        std::iter::from_fn(move || {
            loop {
                let next = left.next()?;
                let gap = from..next.start;
                from = next.end;
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
        })
    }
}

/// The serialised form: `[[start, end], …]`, or a list of layers.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum LayersData {
    Plain(Ranges),
    Layers(Vec<LayerData>),
}

#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum LayerData {
    Plain(Ranges),
    /// The rounds that each rank has done.
    Ranks {
        ranks: Vec<Ranges>,
    },
}

#[cfg(feature = "serde")]
impl From<Layers> for LayersData {
    fn from(layers: Layers) -> Self {
        match layers.0.as_slice() {
            [] => LayersData::Plain(Ranges::default()),
            [only] if let Layer::Plain(rest) = &**only => LayersData::Plain(rest.taken().clone()),
            all => LayersData::Layers(
                all.iter()
                    .map(|layer| match &**layer {
                        Layer::Plain(rest) => LayerData::Plain(rest.taken().clone()),
                        Layer::Rounds(rounds) => LayerData::Ranks { ranks: rounds.ranks.clone() },
                    })
                    .collect(),
            ),
        }
    }
}

#[cfg(feature = "serde")]
impl TryFrom<LayersData> for Layers {
    type Error = Error;

    fn try_from(data: LayersData) -> Result<Self> {
        match data {
            LayersData::Plain(positions) => Ok(positions.into()),
            LayersData::Layers(layers) => {
                let layer = |data| {
                    Ok(Arc::new(match data {
                        LayerData::Plain(positions) => Layer::Plain(Complement::of(positions)),
                        LayerData::Ranks { ranks } => Layer::Rounds(Rounds::new(ranks)?),
                    }))
                };
                layers.into_iter().map(layer).collect::<Result<_>>().map(Layers)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The ranges that ranks have done in consecutive divisions.
    fn divisions() -> impl Strategy<Value = Vec<Vec<Ranges>>> {
        let rank = prop::collection::vec((0..30u64, 0..12u64), 0..4);
        let rank = rank.prop_map(|all| {
            all.into_iter().map(|(start, len)| start..start + len).collect::<Ranges>()
        });
        let worlds = prop::sample::select(vec![1usize, 2, 3, 5, 8, 63, 64, 65, 130]);
        let division =
            worlds.prop_flat_map(move |world| prop::collection::vec(rank.clone(), world..=world));
        prop::collection::vec(division, 0..4)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn layers_match_a_set_of_positions(divisions in divisions()) {
            let mut layers = Layers::default();
            let mut set = BTreeSet::new();
            const END: u64 = 20_000;
            for ranks in divisions {
                let left: Vec<u64> = (0..END).filter(|position| !set.contains(position)).collect();
                let world = ranks.len() as u64;
                for (rank, done) in (0..).zip(&ranks) {
                    set.extend(done.iter().flatten().map(|own| left[(own * world + rank) as usize]));
                }
                layers.add_ranks(ranks).unwrap();
            }
            prop_assert_eq!(layers.count(), set.len() as u64);
            let mut left = (0..END).filter(|position| !set.contains(position));
            let mut before = 0;
            for position in 0..END {
                let is_left = !set.contains(&position);
                prop_assert_eq!(layers.rank(position), is_left.then_some(before));
                prop_assert_eq!(layers.left_below(position), before);
                if is_left {
                    prop_assert_eq!(layers.nth(before), left.next());
                    before += 1;
                }
            }
            prop_assert_eq!(layers.end(), set.last().map_or(0, |last| last + 1));
            let ranges: Vec<_> = layers.iter().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert!(ranges.into_iter().flatten().eq(set.iter().copied()));
            let part = layers.left(3..40).flatten();
            prop_assert!(part.eq((3..40).filter_map(|n| layers.nth(n))));
        }

        #[cfg(feature = "serde")]
        #[test]
        fn layers_are_unchanged_by_serialisation(divisions in divisions()) {
            let mut layers = Layers::default();
            divisions.into_iter().for_each(|ranks| layers.add_ranks(ranks).unwrap());
            let text = serde_json::to_string(&layers).unwrap();
            prop_assert_eq!(serde_json::from_str::<Layers>(&text).unwrap(), layers);
        }
    }

    #[test]
    fn ranks_at_the_same_step_are_one_range() {
        let mut layers = Layers::default();
        for world in [8u64, 6, 16] {
            let ranks =
                (0..world).map(|rank| std::iter::once(0..1000 + rank % 3).collect()).collect();
            layers.add_ranks(ranks).unwrap();
        }
        assert!(layers.0.len() == 1 && layers.iter().count() < 20, "{layers:?}");
        assert!(layers.iter().next().is_some_and(|first| first.end >= 30_000));
    }

    #[test]
    fn invalid_and_too_large_layers_are_refused() {
        let far = || -> Ranges { std::iter::once(0..1 << 60).collect() };
        let refused = |ranks| Rounds::new(ranks).unwrap_err().kind();
        assert_eq!(refused(vec![]), ErrorKind::Corrupt);
        assert_eq!(refused(vec![far(); 16]), ErrorKind::Corrupt);
        // Very many ranks at different steps.
        let many = (0..20_000u64).map(|rank| std::iter::once(0..rank + 1).collect()).collect();
        assert_eq!(refused(many), ErrorKind::LimitExceeded);
    }
}
