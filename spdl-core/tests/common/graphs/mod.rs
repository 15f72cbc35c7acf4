//! Random pipelines, their expected results, and the comparison.
//!
//! The including module must provide a sibling module `api` with the names of `spdl_core`, and with
//! `spawn` and `JoinHandle`. So the same graphs run on real threads (`tests/graphs.rs`) and under a
//! model checker (`src/pipeline/shuttle_graphs.rs`).
//!
//! A graph is drawn from a list of bytes. Fewer and smaller bytes make a simpler graph, so a failing
//! case can be shrunk.

pub(crate) mod build;
mod check;
mod expect;

use super::api::{OnError, Order};

pub(crate) use check::check;

/// The bytes that decide a graph, followed by zeros.
#[derive(Debug)]
pub(crate) struct Choices<'a>(std::slice::Iter<'a, u8>);

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Choices(bytes.iter())
    }

    /// A number below `below`, which is at most 256.
    fn pick(&mut self, below: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % below
    }

    /// True with a probability of 1 / `n`; false after the last byte.
    fn once_in(&mut self, n: usize) -> bool {
        self.pick(n) == n - 1
    }
}

/// Limits of the graphs to draw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of items of a source.
    pub(crate) items: usize,
    /// Maximum number of stages, not counting sources and joins.
    pub(crate) stages: usize,
    pub(crate) focus: Focus,
}

/// A feature that every graph has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Focus {
    Anything,
    /// One source, one chain.
    Chain,
    /// Two joined branches.
    Join,
    /// A route with several paths.
    Route,
    /// Measured stages with a small memory budget.
    Memory,
    /// Items that fail.
    Failures,
    /// A consumer that stops early or consumes by epoch.
    Consumer,
}

#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) head: Head,
    pub(crate) steps: Vec<Step>,
    pub(crate) epochs: u64,
    pub(crate) threads: usize,
    pub(crate) prefetch: usize,
    pub(crate) order: Order,
    pub(crate) on_error: OnError,
    /// Whether the stages run on a custom executor.
    pub(crate) executor: bool,
    /// Excess of the memory budget over the minimum, in items.
    pub(crate) slack: usize,
    pub(crate) consumer: Consumer,
}

#[derive(Clone, Debug)]
pub(crate) enum Head {
    One(Branch),
    RoundRobin(Vec<Branch>),
    Arrival(Vec<Branch>),
    Zip(Vec<Branch>),
}

#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub(crate) source: u64,
    pub(crate) items: usize,
    pub(crate) queue: usize,
    pub(crate) fallible: bool,
    /// Whether the source is an iterator, which has a dedicated thread.
    pub(crate) blocks: bool,
    pub(crate) measured: bool,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Unique in the graph; seeds the stage's decisions about items.
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) order: Option<Order>,
    pub(crate) concurrency: usize,
    pub(crate) queue: usize,
    /// Whether the stage has dedicated threads.
    pub(crate) dedicated: bool,
    pub(crate) measured: bool,
    /// Whether some of its items fail.
    pub(crate) fallible: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// One to one; with `declares`, `output_bytes` returns the size of an output.
    Map {
        declares: bool,
    },
    /// One to one; with `yields`, the first poll is pending.
    Async {
        yields: bool,
    },
    Filter,
    /// One to `copies`.
    FlatMap {
        copies: usize,
    },
    /// Buffers one item; `finish` emits the last one.
    Hold,
    Batch {
        size: usize,
        drop_last: bool,
    },
    /// A batch whose elements take several paths and are unbatched again.
    Lists {
        size: usize,
        paths: usize,
    },
    /// Written into a batch of arrays.
    Fill {
        size: usize,
        drop_last: bool,
    },
    Route {
        paths: Vec<Vec<Step>>,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Consumer {
    TakesAll,
    /// Epoch by epoch.
    ByEpoch,
    /// Takes at most this number of items of each epoch.
    PartOfEpochs(usize),
    DropsAfter(usize),
    StopsAfter(usize),
}

/// Properties of the items at a place of the graph.
#[derive(Clone, Copy)]
struct Place {
    ordered: bool,
    /// Whether the composition of items depends on timing.
    mixed: bool,
    /// Whether each item has one atom.
    single: bool,
    measured: bool,
}

struct Draw<'a, 'b> {
    choices: &'a mut Choices<'b>,
    limits: Limits,
    left: usize,
    numbers: u64,
    order: Order,
    raises: bool,
    /// Whether items may fail.
    fallible: bool,
}

impl Graph {
    pub(crate) fn draw(choices: &mut Choices<'_>, limits: Limits) -> Graph {
        let focus = limits.focus;
        let epochs = 1 + choices.pick(3) as u64;
        let order = if choices.once_in(2) { Order::Completion } else { Order::Input };
        let raises = choices.once_in(3);
        let fallible = choices.once_in(2) || focus == Focus::Failures;
        let left = 1 + choices.pick(limits.stages);
        let mut draw = Draw { choices, limits, left, numbers: 0, order, raises, fallible };
        let joins = focus == Focus::Join || (focus == Focus::Anything && draw.choices.once_in(3));
        let (head, mut place) = draw.head(joins, epochs);
        let mut steps = Vec::new();
        if focus == Focus::Route {
            draw.left = draw.left.max(2);
            let route = draw.route(&mut place);
            steps.push(route);
        }
        while draw.left > 0 {
            let step = draw.step(&mut place, false);
            steps.push(step);
        }
        let choices = draw.choices;
        Graph {
            head,
            steps,
            epochs,
            threads: 1 + choices.pick(3),
            prefetch: 1 + choices.pick(4),
            order,
            on_error: if raises { OnError::Raise } else { OnError::SKIP },
            executor: choices.once_in(if limits.focus == Focus::Join { 2 } else { 8 }),
            slack: choices.pick(3),
            consumer: Consumer::draw(choices, limits),
        }
    }
}

impl Consumer {
    fn draw(choices: &mut Choices<'_>, limits: Limits) -> Self {
        let always = limits.focus == Focus::Consumer;
        if !always && !choices.once_in(3) {
            return Consumer::TakesAll;
        }
        match choices.pick(4) {
            0 => Consumer::ByEpoch,
            1 => Consumer::PartOfEpochs(1 + choices.pick(3)),
            2 => Consumer::DropsAfter(1 + choices.pick(limits.items)),
            _ => Consumer::StopsAfter(1 + choices.pick(limits.items)),
        }
    }
}

impl Draw<'_, '_> {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn measures(&mut self) -> bool {
        let often = self.limits.focus == Focus::Memory;
        if often { !self.choices.once_in(3) } else { self.choices.once_in(6) }
    }

    fn head(&mut self, joins: bool, epochs: u64) -> (Head, Place) {
        if !joins {
            let (branch, place) = self.branch(epochs, 0, false);
            return (Head::One(branch), place);
        }
        let kind = self.choices.pick(3);
        let zips = kind == 2;
        let (left, a) = self.branch(epochs, 1, zips);
        let (right, b) = self.branch(epochs, 1, zips);
        let branches = vec![left, right];
        let place = Place {
            ordered: a.ordered && b.ordered && kind != 1,
            mixed: a.mixed || b.mixed,
            single: a.single && b.single && !zips,
            measured: a.measured || b.measured,
        };
        let head = match kind {
            0 => Head::RoundRobin(branches),
            1 => Head::Arrival(branches),
            _ => Head::Zip(branches),
        };
        (head, place)
    }

    /// A branch with up to `steps` stages.
    fn branch(&mut self, epochs: u64, steps: usize, ordered: bool) -> (Branch, Place) {
        let mut branch = Branch {
            source: self.number(),
            items: self.choices.pick(self.limits.items + 1),
            queue: 1 + self.choices.pick(4),
            fallible: self.fallible && self.choices.once_in(4),
            blocks: epochs == 1 && self.choices.once_in(4),
            measured: false,
            steps: Vec::new(),
        };
        branch.measured = !branch.blocks && self.measures();
        let measured = branch.measured;
        let mut place = Place { ordered: true, mixed: false, single: true, measured };
        for _ in 0..steps {
            if self.left > 1 && self.choices.once_in(2) {
                let mut step = self.simple(place);
                if ordered {
                    step.order = Some(Order::Input);
                }
                self.pass(&step, &mut place);
                branch.steps.push(step);
            }
        }
        (branch, place)
    }

    /// Updates the properties of items for a step.
    fn pass(&mut self, step: &Step, place: &mut Place) {
        let keeps = step.order.unwrap_or(self.order) == Order::Input;
        match &step.kind {
            Kind::Map { .. } | Kind::Async { .. } | Kind::Filter | Kind::FlatMap { .. } => {
                place.ordered &= keeps;
            }
            Kind::Hold => {}
            Kind::Batch { .. } | Kind::Fill { .. } => {
                // If an error ends the pipeline, batches upstream may be incomplete.
                place.mixed |= !place.ordered || (self.raises && self.fallible);
                place.single = false;
            }
            Kind::Lists { .. } => {}
            Kind::Route { .. } => place.ordered &= keeps,
        }
        let fills = matches!(step.kind, Kind::Fill { .. });
        place.measured |= step.measured || fills;
    }

    /// A stage from items to items.
    fn simple(&mut self, place: Place) -> Step {
        self.left -= 1;
        let kind = match self.choices.pick(8) {
            0 | 1 => Kind::Map { declares: self.choices.once_in(2) },
            2 | 3 => Kind::Async { yields: self.choices.once_in(2) },
            4 | 5 if !place.mixed => Kind::Filter,
            6 => Kind::FlatMap { copies: 2 },
            _ => Kind::Map { declares: false },
        };
        self.with_settings(kind, place)
    }

    fn with_settings(&mut self, kind: Kind, place: Place) -> Step {
        let order = match self.choices.pick(4) {
            0 | 1 => None,
            2 => Some(Order::Input),
            _ => Some(Order::Completion),
        };
        Step {
            number: self.number(),
            kind,
            order,
            concurrency: 1 + self.choices.pick(3),
            queue: 1 + self.choices.pick(4),
            dedicated: self.choices.once_in(8),
            measured: self.measures(),
            fallible: self.fallible && !place.mixed && self.choices.once_in(2),
        }
    }

    fn step(&mut self, place: &mut Place, on_path: bool) -> Step {
        let kind = self.choices.pick(10);
        // The number of items left out is known only for ordered, complete runs.
        let drop_last = place.ordered
            && !place.mixed
            && !(self.raises && self.fallible)
            && self.choices.once_in(2);
        let size = 1 + self.choices.pick(4);
        let step = match kind {
            5 | 6 => {
                self.left -= 1;
                let mut step = self.with_settings(Kind::Batch { size, drop_last }, *place);
                step.fallible = false;
                step
            }
            7 => {
                self.left -= 1;
                let mut step = self.with_settings(Kind::Hold, *place);
                step.concurrency = 1;
                step.order = Some(Order::Input);
                step.fallible = false;
                step
            }
            8 if self.left >= 3 && !on_path => {
                self.left -= 3;
                let paths = 1 + self.choices.pick(2);
                let mut step = self.with_settings(Kind::Lists { size, paths }, *place);
                step.fallible = false;
                step
            }
            8 if self.left >= 2 && place.single && !on_path => {
                self.left -= 2;
                self.with_settings(Kind::Fill { size, drop_last }, *place)
            }
            9 if self.left >= 2 && !on_path => return self.route(place),
            _ => self.simple(*place),
        };
        self.pass(&step, place);
        step
    }

    fn route(&mut self, place: &mut Place) -> Step {
        self.left -= 1;
        let mut route = self.with_settings(Kind::Route { paths: Vec::new() }, *place);
        let ordered = route.order.unwrap_or(self.order) == Order::Input;
        let count = 1 + self.choices.pick(3);
        let mut paths = Vec::new();
        let mut mixed = place.mixed;
        for _ in 0..count {
            let mut inside = Place { ordered: place.ordered && ordered, ..*place };
            let mut steps = Vec::new();
            while self.left > 0 && steps.len() < 2 && !self.choices.once_in(3) {
                // A stage that combines items would make the expected order unknown.
                let mut step =
                    if ordered { self.simple(inside) } else { self.step(&mut inside, true) };
                if matches!(step.kind, Kind::FlatMap { .. }) && place.mixed {
                    // The choice of copied items would depend on timing.
                    step.kind = Kind::Map { declares: false };
                }
                if ordered {
                    step.measured = false;
                    // Outputs of one item must not overtake each other.
                    step.order = Some(Order::Input);
                }
                steps.push(step);
            }
            mixed |= inside.mixed;
            // The composition of batches depends on arrival times.
            mixed |= steps.iter().any(|step| matches!(step.kind, Kind::Batch { .. }));
            place.single &= inside.single;
            place.measured |= inside.measured;
            paths.push(steps);
        }
        route.kind = Kind::Route { paths };
        route.measured = false;
        route.fallible = false;
        place.mixed = mixed;
        self.pass(&route, place);
        route
    }
}
