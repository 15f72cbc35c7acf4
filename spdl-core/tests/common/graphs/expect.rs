//! The expected output of a graph, computed in one thread without a scheduler.

use super::super::api::{OnError, Order};
use super::{Branch, Graph, Head, Kind, Step};

/// The indivisible part of an item: its epoch and its id.
pub(crate) type Atom = (u64, u64);

/// Bytes of an atom in the memory budget.
pub(crate) const ATOM_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good,
    Fails,
    Panics,
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_add(b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(1);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A pseudorandom number that depends on the seed and the item.
fn number(seed: u64, atoms: &[Atom]) -> u64 {
    atoms.iter().fold(mix(seed, 7), |sum, atom| mix(mix(sum, atom.0), atom.1))
}

pub(crate) fn outcome(fallible: bool, seed: u64, atoms: &[Atom]) -> Outcome {
    match number(seed, atoms) % 16 {
        0 | 1 if fallible => Outcome::Fails,
        2 if fallible => Outcome::Panics,
        _ => Outcome::Good,
    }
}

pub(crate) fn passes(seed: u64, atoms: &[Atom]) -> bool {
    !number(seed ^ 0x55, atoms).is_multiple_of(4)
}

pub(crate) fn path_of(seed: u64, atoms: &[Atom], paths: usize) -> usize {
    (number(seed ^ 0xaa, atoms) % paths as u64) as usize
}

/// Copy `copy` of an item; the first one is the item.
pub(crate) fn copy(copy: usize, atoms: &[Atom]) -> Vec<Atom> {
    let copied = |&(epoch, id): &Atom| (epoch, if copy == 0 { id } else { mix(id, copy as u64) });
    atoms.iter().map(copied).collect()
}

pub(crate) fn atom(source: u64, epoch: u64, index: u64) -> Atom {
    (epoch, source * 1000 + index)
}

/// The expected output if failed items are skipped.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// The items of each epoch.
    pub(crate) epochs: Vec<Vec<Vec<Atom>>>,
    /// Whether the items must be in this order.
    pub(crate) ordered: bool,
    /// Whether the composition of items depends on timing.
    pub(crate) mixed: bool,
    pub(crate) dropped: u64,
    pub(crate) left_out: u64,
    /// The maximum number of atoms of an epoch at any place.
    pub(crate) max_atoms: usize,
    /// Whether some items may not be processed, because the other branch of a zip ended.
    pub(crate) cut: bool,
    /// Whether there may be gaps before an error that ends the pipeline.
    pub(crate) parted: bool,
}

impl Graph {
    pub(crate) fn raises(&self) -> bool {
        self.on_error == OnError::Raise
    }

    pub(crate) fn expected(&self) -> Expected {
        let branch = |branch: &Branch| self.branch(branch);
        let mut expected = match &self.head {
            Head::One(only) => branch(only),
            Head::RoundRobin(branches) => round_robin(branches.iter().map(branch).collect(), true),
            Head::Arrival(branches) => round_robin(branches.iter().map(branch).collect(), false),
            Head::Zip(branches) => zip(branch(&branches[0]), branch(&branches[1])),
        };
        for step in &self.steps {
            self.step(step, &mut expected);
        }
        expected
    }

    fn branch(&self, branch: &Branch) -> Expected {
        let mut dropped = 0;
        let mut epochs = Vec::new();
        // A source without items has no epochs.
        for epoch in (0..self.epochs).filter(|_| branch.items > 0) {
            let items = (0..branch.items).map(|at| vec![atom(branch.source, epoch, at as u64)]);
            let (good, bad): (Vec<_>, Vec<_>) = items
                .partition(|item| outcome(branch.fallible, branch.source, item) == Outcome::Good);
            dropped += bad.len() as u64;
            epochs.push(good);
        }
        let mut expected = Expected {
            epochs,
            ordered: true,
            mixed: false,
            dropped,
            left_out: 0,
            max_atoms: branch.items,
            cut: false,
            parted: false,
        };
        for step in &branch.steps {
            self.step(step, &mut expected);
        }
        expected
    }

    fn keeps(&self, step: &Step) -> bool {
        step.order.unwrap_or(self.order) == Order::Input
    }

    fn step(&self, step: &Step, expected: &mut Expected) {
        let seed = step.number;
        for epoch in &mut expected.epochs {
            let before = epoch.len();
            epoch.retain(|item| outcome(step.fallible, seed, item) == Outcome::Good);
            expected.dropped += (before - epoch.len()) as u64;
            match &step.kind {
                Kind::Map { .. } | Kind::Async { .. } => {}
                Kind::Filter => epoch.retain(|item| passes(seed, item)),
                Kind::FlatMap { copies } => {
                    let copied = epoch.iter().flat_map(|item| (0..*copies).map(|n| copy(n, item)));
                    *epoch = copied.collect();
                }
                Kind::Hold | Kind::Lists { .. } => {}
                Kind::Batch { size, drop_last } | Kind::Fill { size, drop_last } => {
                    let mut lists: Vec<Vec<Vec<Atom>>> =
                        epoch.chunks(*size).map(<[_]>::to_vec).collect();
                    if *drop_last && lists.last().is_some_and(|last| last.len() < *size) {
                        expected.left_out += lists.pop().map_or(0, |last| last.len() as u64);
                    }
                    *epoch = lists.iter().map(|list| list.concat()).collect();
                }
                Kind::Route { paths } => {
                    let mut lanes = vec![Vec::new(); paths.len()];
                    let mut places = Vec::new();
                    for item in epoch.drain(..) {
                        let lane = path_of(seed, &item, paths.len());
                        places.push(lane);
                        lanes[lane].push(item);
                    }
                    let (dropped, left_out) =
                        self.lanes(paths, lanes, places, epoch, expected.mixed);
                    expected.dropped += dropped;
                    expected.left_out += left_out;
                }
            }
        }
        match &step.kind {
            Kind::Batch { .. } | Kind::Fill { .. } => expected.mixed |= !expected.ordered,
            Kind::FlatMap { .. } => {
                expected.ordered &= self.keeps(step);
                // An incomplete batch is copied too, which repeats its atoms.
                expected.parted |= expected.epochs.iter().flatten().any(|item| item.len() > 1);
            }
            Kind::Hold | Kind::Lists { .. } => {}
            Kind::Route { paths } => {
                expected.ordered &= self.keeps(step);
                expected.parted = true;
                let batches = |step: &Step| matches!(step.kind, Kind::Batch { .. });
                expected.mixed |= paths.iter().flatten().any(batches);
            }
            _ => expected.ordered &= self.keeps(step),
        }
        let atoms = |epoch: &Vec<Vec<Atom>>| epoch.iter().map(Vec::len).sum();
        expected.max_atoms =
            expected.max_atoms.max(expected.epochs.iter().map(atoms).max().unwrap_or(0));
    }

    /// The outputs of the paths of a route, in the order of the inputs.
    fn lanes(
        &self,
        paths: &[Vec<Step>],
        lanes: Vec<Vec<Vec<Atom>>>,
        places: Vec<usize>,
        epoch: &mut Vec<Vec<Atom>>,
        mixed: bool,
    ) -> (u64, u64) {
        let (mut dropped, mut left_out) = (0, 0);
        let mut made: Vec<_> = paths
            .iter()
            .zip(lanes)
            .map(|(path, items)| {
                let stateful =
                    path.iter().any(|step| matches!(step.kind, Kind::Batch { .. } | Kind::Hold));
                // Item by item, unless a stage combines or buffers items.
                let parts = if stateful {
                    vec![items]
                } else {
                    items.into_iter().map(|item| vec![item]).collect()
                };
                let outputs = parts.into_iter().map(|part| {
                    let mut expected = Expected {
                        epochs: vec![part],
                        ordered: true,
                        mixed,
                        dropped: 0,
                        left_out: 0,
                        max_atoms: 0,
                        cut: false,
                        parted: false,
                    };
                    for step in path {
                        self.step(step, &mut expected);
                    }
                    dropped += expected.dropped;
                    left_out += expected.left_out;
                    expected.epochs.remove(0)
                });
                outputs.collect::<Vec<_>>().into_iter()
            })
            .collect();
        for lane in places {
            epoch.extend(made[lane].next().unwrap_or_default());
        }
        for remaining in made {
            epoch.extend(remaining.flatten());
        }
        (dropped, left_out)
    }
}

fn round_robin(branches: Vec<Expected>, ordered: bool) -> Expected {
    let mut epochs = Vec::new();
    let count = branches.iter().map(|branch| branch.epochs.len()).max().unwrap_or(0);
    for epoch in 0..count {
        let mut lanes: Vec<_> = branches
            .iter()
            .map(|branch| branch.epochs.get(epoch).cloned().unwrap_or_default().into_iter())
            .collect();
        let mut all = Vec::new();
        while lanes.iter().any(|lane| lane.len() > 0) {
            lanes.iter_mut().for_each(|lane| all.extend(lane.next()));
        }
        epochs.push(all);
    }
    Expected {
        epochs,
        ordered: ordered && branches.iter().all(|branch| branch.ordered),
        mixed: branches.iter().any(|branch| branch.mixed),
        dropped: branches.iter().map(|branch| branch.dropped).sum(),
        left_out: branches.iter().map(|branch| branch.left_out).sum(),
        max_atoms: branches.iter().map(|branch| branch.max_atoms).sum(),
        cut: false,
        parted: true,
    }
}

fn zip(left: Expected, right: Expected) -> Expected {
    let (a, b) = (left.epochs.len(), right.epochs.len());
    let mut left_out = left.left_out + right.left_out;
    let mut epochs = Vec::new();
    for epoch in 0..a.min(b) {
        let (left, right) = (&left.epochs[epoch], &right.epochs[epoch]);
        left_out += left.len().abs_diff(right.len()) as u64;
        let pairs = left.iter().zip(right).map(|(a, b)| [a.clone(), b.clone()].concat());
        epochs.push(pairs.collect());
    }
    if a != b {
        // The zip requests the next epoch of the longer branch, and leaves its items out.
        let longer = if a > b { &left } else { &right };
        left_out += longer.epochs[a.min(b)].len() as u64;
        epochs.push(Vec::new());
    }
    Expected {
        epochs,
        ordered: left.ordered && right.ordered,
        mixed: left.mixed || right.mixed,
        dropped: left.dropped + right.dropped,
        left_out,
        max_atoms: left.max_atoms + right.max_atoms,
        cut: a != b,
        parted: true,
    }
}
