//! What a pipeline is made of, as data: to look at, to print, to keep beside the results of a run.

use std::any::type_name;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;

use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::options::Order;
use crate::scheduler::failure::OnError;
use crate::source::sampler::shortened;
use crate::stage::retry::Retry;

/// A setting with its value, and whether somebody chose it.
///
/// Displayed, a default is marked: `64 (default)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Setting<T> {
    /// The value that is used.
    pub value: T,
    /// Whether it is the default, because nothing else was asked for.
    pub default: bool,
}

impl<T> Setting<T> {
    /// The value that was asked for, or else `default`.
    pub fn new(given: Option<T>, default: T) -> Self {
        match given {
            Some(value) => Setting { value, default: false },
            None => Setting { value: default, default: true },
        }
    }

    /// The value, where it was asked for.
    pub fn given(&self) -> Option<&T> {
        (!self.default).then_some(&self.value)
    }

    fn map<U>(&self, words: impl FnOnce(&T) -> U) -> Setting<U> {
        Setting { value: words(&self.value), default: self.default }
    }
}

impl<T: fmt::Display> fmt::Display for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = if self.default { " (default)" } else { "" };
        write!(f, "{}{default}", self.value)
    }
}

/// What kind of construct a stage is.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Construct {
    /// Names items.
    Source,
    /// Computes.
    Cpu,
    /// Waits, with many items in flight.
    Async,
    /// Writes samples into their places in a batch.
    Fill,
    /// Makes lists of items.
    Batch,
    /// Makes lists of items that are alike.
    Bucket,
    /// Puts items end to end, into sequences of a fixed capacity.
    Pack,
    /// Makes one item of several, in a way of its own.
    Aggregate,
    /// Takes lists apart.
    Unbatch,
    /// Lets only some items pass.
    Filter,
    /// Takes items from several pipelines.
    Merge,
    /// Sends each item along one of several paths.
    Route,
    /// Sends batches to a device.
    Upload,
}

impl Construct {
    /// Whether each of its outputs is put together of several items.
    pub(crate) fn aggregates(self) -> bool {
        use Construct::{Aggregate, Batch, Bucket, Pack};
        matches!(self, Batch | Bucket | Pack | Aggregate)
    }

    /// The kind as one lower-case word, as it appears in the tree and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Construct::Source => "source",
            Construct::Cpu => "cpu",
            Construct::Async => "async",
            Construct::Fill => "fill",
            Construct::Batch => "batch",
            Construct::Bucket => "bucket",
            Construct::Pack => "pack",
            Construct::Aggregate => "aggregate",
            Construct::Unbatch => "unbatch",
            Construct::Filter => "filter",
            Construct::Merge => "merge",
            Construct::Route => "route",
            Construct::Upload => "upload",
        }
    }
}

impl fmt::Display for Construct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A pipeline, or a part of one, as data.
///
/// Displayed, it is a tree for people, from the source to the consumer. Each stage is told with its
/// kind, its input and output types, its settings, and the place in the program that added it.
/// With feature `serde`, it can be written and read as JSON and the like. It names functions and
/// types but does not hold them: a pipeline cannot be built from it.
///
/// ```
/// use spdl_core::pipeline::{Construct, Definition, StageDefinition};
/// let source = StageDefinition::source::<String>("files", Construct::Source);
/// let read = StageDefinition::new::<String, Vec<u8>>("read", Construct::Async);
/// let definition = Definition::new(Some(source), vec![read]);
/// let tree = "\
/// pipeline of Vec<u8>
/// ├─ files  source  → String
/// └─ read   async   String → Vec<u8>";
/// assert_eq!(definition.to_string(), tree);
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Definition {
    /// What people call it; for a path or a merged pipeline, mostly.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub name: Option<String>,
    /// Where its items come from. `None` for a path, which gets them from the stage before.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub source: Option<StageDefinition>,
    /// The stages in the order in which an item goes through them.
    #[cfg_attr(feature = "serde", serde(default))]
    pub stages: Vec<StageDefinition>,
    /// What holds for all stages. `None` for a part, which shares those of the whole.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub settings: Option<PipelineSettings>,
}

/// The settings of a whole pipeline.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PipelineSettings {
    /// The seed of all random numbers.
    pub seed: Setting<u64>,
    /// The epochs to run. The end is `u64::MAX` where they go on without end.
    pub epochs: Setting<Range<u64>>,
    /// In which order stages hand their outputs on.
    pub order: Setting<Order>,
    /// What happens to items that fail.
    pub on_error: Setting<OnError>,
    /// How many finished items may wait for the consumer.
    pub prefetch: Setting<usize>,
    /// Worker threads of the CPU pool.
    pub threads: Setting<usize>,
    /// What else there is to know: a memory budget, an executor, hooks, whether an order
    /// is recorded or replayed.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeMap::is_empty"))]
    pub more: BTreeMap<String, Setting<String>>,
}

/// A stage as data: what it is called, what it does to which types, and how.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StageDefinition {
    /// The name given to the builder.
    pub name: String,
    /// What kind of construct it is.
    pub kind: Construct,
    /// The type of its inputs, without module paths. `None` for a source.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub input: Option<String>,
    /// The type of its outputs, without module paths.
    pub output: String,
    /// How many items it may work on at once; `None` where that is not for it to say.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub concurrency: Option<Setting<usize>>,
    /// In which order it hands its outputs on.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub order: Option<Setting<Order>>,
    /// What happens to items that fail in it.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub on_error: Option<Setting<OnError>>,
    /// How many outputs may wait for the next stage.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub queue: Option<Setting<usize>>,
    /// How often it tries again; `None`: never.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub retry: Option<Retry>,
    /// How many threads of its own it has; `None`: it shares the pipeline's.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub dedicated_threads: Option<usize>,
    /// Whether the bytes of its outputs are counted in the memory budget.
    #[cfg_attr(feature = "serde", serde(default))]
    pub measured: bool,
    /// What else there is to know, by kind: the size of a batch, the policy of a merge.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeMap::is_empty"))]
    pub more: BTreeMap<String, Setting<String>>,
    /// What the caller says of it: [`StageOptions::parameter`](crate::StageOptions::parameter).
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeMap::is_empty"))]
    pub parameters: BTreeMap<String, String>,
    /// The pipelines that it merges, or the paths among which it chooses.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub branches: Vec<Definition>,
    /// Where the program added it: `file:line`.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub defined_at: Option<String>,
}

impl StageDefinition {
    /// A stage that turns each `In` into `Out`s, with no settings told yet.
    pub fn new<In: ?Sized, Out: ?Sized>(name: &str, kind: Construct) -> Self {
        StageDefinition {
            name: name.to_owned(),
            kind,
            input: Some(short_type_name::<In>()),
            output: short_type_name::<Out>(),
            concurrency: None,
            order: None,
            on_error: None,
            queue: None,
            retry: None,
            dedicated_threads: None,
            measured: false,
            more: BTreeMap::new(),
            parameters: BTreeMap::new(),
            branches: Vec::new(),
            defined_at: None,
        }
    }

    /// Something that yields `Out`s out of nothing, as a source does.
    pub fn source<Out: ?Sized>(name: &str, kind: Construct) -> Self {
        StageDefinition { input: None, ..StageDefinition::new::<(), Out>(name, kind) }
    }

    /// Tells where the program added it: the caller's place, in a function with `#[track_caller]`.
    #[must_use]
    pub fn at(mut self, place: &Location<'_>) -> Self {
        self.defined_at = Some(format!("{}:{}", place.file(), place.line()));
        self
    }

    /// Tells what its options say.
    #[must_use]
    pub(crate) fn with_options(mut self, options: &crate::pipeline::options::StageOptions) -> Self {
        use crate::pipeline::options::Workers;
        self.on_error = options.on_error.map(|policy| Setting::new(Some(policy), policy));
        self.queue = options.queue.map(|capacity| Setting::new(Some(capacity), capacity));
        self = self.with_parameters(options);
        match &options.workers {
            Workers::Shared => {}
            Workers::Own { cpus } => {
                let threads = options.concurrency.unwrap_or(cpus.len().max(1));
                self.dedicated_threads = Some(threads);
                if !cpus.is_empty() {
                    self =
                        self.with("cpus", Setting::new(Some(format!("{cpus:?}")), String::new()));
                }
            }
            Workers::Executor(executor) => {
                let executor = format!("{executor:?}");
                self = self.with("executor", Setting::new(Some(executor), String::new()));
            }
        }
        self
    }

    /// Tells what the caller says of it.
    #[must_use]
    pub(crate) fn with_parameters(
        mut self,
        options: &crate::pipeline::options::StageOptions,
    ) -> Self {
        self.parameters.extend(options.parameters.iter().cloned());
        self
    }

    /// Tells one thing more about it.
    #[must_use]
    pub fn with(mut self, what: &str, value: Setting<impl fmt::Display>) -> Self {
        self.more.insert(what.to_owned(), value.map(ToString::to_string));
        self
    }
}

impl Definition {
    /// The stages that begin with `source`, where there is one.
    pub fn new(source: Option<StageDefinition>, stages: Vec<StageDefinition>) -> Self {
        Definition { name: None, source, stages, settings: None }
    }

    /// Gives it a name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Tells what holds for all stages.
    #[must_use]
    pub fn with_settings(mut self, settings: PipelineSettings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// The type of the items that come out, where there is a stage or a source.
    pub fn output(&self) -> Option<&str> {
        self.stages.last().or(self.source.as_ref()).map(|stage| stage.output.as_str())
    }

    /// All stages, sources and those of branches included, each before what its items go to.
    pub fn all_stages(&self) -> impl Iterator<Item = &StageDefinition> {
        let mut found = Vec::new();
        self.collect(&mut found);
        found.into_iter()
    }

    fn collect<'a>(&'a self, found: &mut Vec<&'a StageDefinition>) {
        for stage in self.source.iter().chain(&self.stages) {
            // Merged pipelines come before the merge, paths come after the choice.
            let merges = stage.input.is_none();
            if !merges {
                found.push(stage);
            }
            stage.branches.iter().for_each(|branch| branch.collect(found));
            if merges {
                found.push(stage);
            }
        }
    }

    /// What a run that goes on must have in common with the one that began: the stages, their kinds
    /// and places, what was chosen for them; not how many work on it, or how far ahead, nor on which
    /// device batches lie. No names of types: these change with compilers, and when code is moved.
    ///
    /// # Errors
    /// `InvalidArgument` where two parts would have one name.
    pub(crate) fn fingerprint(&self) -> Result<BTreeMap<String, String>> {
        let mut parts = BTreeMap::new();
        if let Some(settings) = &self.settings {
            parts.insert("order".to_owned(), settings.order.value.to_string());
        }
        self.tell_stages(None, &mut parts)?;
        Ok(parts)
    }

    /// Tells the stages, of which the first one has this place.
    fn tell_stages(
        &self,
        mut place: Option<String>,
        parts: &mut BTreeMap<String, String>,
    ) -> Result<()> {
        let stages = self.source.iter().chain(&self.stages);
        for stage in stages.filter(|stage| stage.kind != Construct::Upload) {
            let name = &stage.name;
            let mut tell = |what: &str, value: String| {
                let part = format!("stage {name}{}{what}", if what.is_empty() { "" } else { ": " });
                match parts.insert(part.clone(), shortened(value)) {
                    None => Ok(()),
                    Some(_) => {
                        let message = format!(
                            "two parts of the fingerprint would be named {part:?}; give that stage, \
                             or its parameter, another name"
                        );
                        Err(Error::new(ErrorKind::InvalidArgument, message))
                    }
                }
            };
            tell("", format!("{}{}", stage.kind, place.unwrap_or_default()))?;
            // On whose threads it runs changes nothing of what it does.
            let chosen =
                stage.more.iter().filter(|(what, _)| !matches!(what.as_str(), "cpus" | "executor"));
            for (what, setting) in chosen {
                tell(what, setting.value.clone())?;
            }
            if let Some(order) = &stage.order {
                tell("order", order.value.to_string())?;
            }
            for (parameter, value) in &stage.parameters {
                tell(parameter, value.clone())?;
            }
            if !stage.branches.is_empty() {
                tell("branches", stage.branches.len().to_string())?;
            }
            for (number, branch) in stage.branches.iter().enumerate() {
                branch.tell_stages(Some(format!(", first of branch {number} of {name}")), parts)?;
            }
            place = Some(format!(" behind {name}"));
        }
        Ok(())
    }

    /// Whether every stage hands its outputs on in the order of its inputs.
    pub(crate) fn keeps_order(&self) -> bool {
        let order = self.settings.as_ref().map_or(Order::Completion, |it| it.order.value);
        self.all_stages().all(|stage| match stage.kind {
            Construct::Source | Construct::Batch | Construct::Aggregate | Construct::Fill => true,
            _ => stage.order.as_ref().map_or(order, |own| own.value) == Order::Input,
        })
    }

    fn draw(&self, margin: &str, lines: &mut Vec<String>) {
        let stages: Vec<_> = self.source.iter().chain(&self.stages).collect();
        let name = stages.iter().map(|stage| width(&stage.name)).max().unwrap_or(0);
        let kind = stages.iter().map(|stage| stage.kind.as_str().len()).max().unwrap_or(0);
        if stages.is_empty() {
            lines.push(format!("{margin}└─ passes items on as they are"));
        }
        for (at, stage) in stages.iter().enumerate() {
            let (knot, line) =
                if at + 1 < stages.len() { ("├─ ", "│  ") } else { ("└─ ", "   ") };
            let types = match &stage.input {
                Some(input) => format!("{input} → {}", stage.output),
                None => format!("→ {}", stage.output),
            };
            let gap = " ".repeat(name - width(&stage.name));
            let head = format!("{}{gap}  {:kind$}  {types}", stage.name, stage.kind);
            lines.push(format!("{margin}{knot}{head}"));
            let margin = format!("{margin}{line}");
            for detail in stage.details() {
                lines.push(format!("{margin}     {detail}"));
            }
            for (at, branch) in stage.branches.iter().enumerate() {
                let name = branch.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
                let what = if stage.input.is_none() { "pipeline" } else { "path" };
                lines.push(format!("{margin}  {what} {at}{name}"));
                branch.draw(&format!("{margin}  "), lines);
            }
        }
    }
}

impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        let name = self.name.as_deref().unwrap_or("pipeline");
        lines.push(match self.output() {
            Some(output) => format!("{name} of {output}"),
            None => name.to_owned(),
        });
        if let Some(settings) = &self.settings {
            lines.extend(settings.lines().into_iter().map(|line| format!("│    {line}")));
        }
        self.draw("", &mut lines);
        f.write_str(&lines.join("\n"))
    }
}

impl PipelineSettings {
    /// The lines below the pipeline's name.
    fn lines(&self) -> Vec<String> {
        let epochs = self.epochs.map(|epochs| match epochs.end {
            u64::MAX => format!("{}..", epochs.start),
            end => format!("{}..{end}", epochs.start),
        });
        let mut words = Words::default();
        words.add("seed", self.seed);
        words.add("epochs", epochs);
        words.add("order", self.order);
        words.add("on error", self.on_error.map(ToString::to_string));
        words.add("prefetch", self.prefetch);
        words.add("threads", self.threads);
        self.more.iter().for_each(|(what, value)| words.add(what, value));
        words.lines()
    }
}

impl StageDefinition {
    /// The lines below its name.
    fn details(&self) -> Vec<String> {
        let mut words = Words::default();
        // First what makes it the stage that it is.
        self.more.iter().for_each(|(what, value)| words.add(what, value));
        self.parameters.iter().for_each(|(what, value)| words.add(what, value));
        self.concurrency.iter().for_each(|value| words.add("concurrency", value));
        self.order.iter().for_each(|value| words.add("order", value));
        self.on_error.iter().for_each(|value| words.add("on error", value));
        self.queue.iter().for_each(|value| words.add("queue", value));
        if let Some(threads) = self.dedicated_threads {
            words.add("own threads", threads);
        }
        if let Some(retry) = &self.retry {
            words.add("retry", retry);
        }
        if self.measured {
            words.0.push("counted in the memory budget".into());
        }
        let mut lines = words.lines();
        lines.extend(self.defined_at.iter().map(|place| format!("at {place}")));
        lines
    }
}

/// Settings in words, broken into lines that fit a terminal.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    const WIDTH: usize = 80;

    fn add(&mut self, what: &str, value: impl fmt::Display) {
        self.0.push(format!("{what} {value}"));
    }

    fn lines(self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for words in self.0 {
            match lines.last_mut() {
                Some(line) if width(line) + width(&words) + 3 <= Words::WIDTH => {
                    line.push_str(" · ");
                    line.push_str(&words);
                }
                _ => lines.push(words),
            }
        }
        lines
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// The name of a type without the modules in which it lies: `Vec<Labeled<Bytes>>`.
///
/// ```
/// use spdl_core::Labeled;
/// use spdl_core::pipeline::short_type_name;
/// assert_eq!(short_type_name::<Vec<Labeled<Option<&str>>>>(), "Vec<Labeled<Option<&str>>>");
/// ```
pub fn short_type_name<T: ?Sized>() -> String {
    shorten(type_name::<T>())
}

fn shorten(name: &str) -> String {
    let mut short = String::with_capacity(name.len());
    // Where the word began that a following `::` would make a module.
    let mut word = 0;
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        if c == ':' && rest.peek() == Some(&':') {
            rest.next();
            if word < short.len() {
                short.truncate(word);
            } else {
                // Behind a bracket, as in `<A as B>::C`: a part of a type, not a module.
                short.push_str("::");
                word = short.len();
            }
            continue;
        }
        short.push(c);
        // A closure is a word with braces around it: `{{closure}}`.
        if !(c.is_alphanumeric() || matches!(c, '_' | '#' | '{' | '}')) {
            word = short.len();
        }
    }
    short.replace("{{closure}}", "closure")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names_lose_their_modules() {
        for (long, short) in [
            ("u64", "u64"),
            ("alloc::vec::Vec<a::b::Labeled<bytes::bytes::Bytes>>", "Vec<Labeled<Bytes>>"),
            ("&str", "&str"),
            ("&mut [core::option::Option<a::B>; 4]", "&mut [Option<B>; 4]"),
            ("(a::B, c::d::E, ())", "(B, E, ())"),
            ("dyn a::b::Fetch<Out = c::D> + core::marker::Send", "dyn Fetch<Out = D> + Send"),
            ("fn(a::B) -> c::D", "fn(B) -> D"),
            ("a::main::{{closure}}", "closure"),
            ("a::F<b::C>::{{closure}}", "F<C>::closure"),
            ("<a::B as c::D>::E", "<B as D>::E"),
            ("*const a::Größe", "*const Größe"),
            ("", ""),
        ] {
            assert_eq!(shorten(long), short);
        }
        struct Here;
        assert_eq!(short_type_name::<Box<dyn Fn(Here) -> String>>(), "Box<dyn Fn(Here) -> String>");
    }

    fn settings() -> PipelineSettings {
        PipelineSettings {
            seed: Setting::new(Some(7), 0),
            epochs: Setting::new(None, 0..1),
            order: Setting::new(Some(Order::Input), Order::Completion),
            on_error: Setting::new(None, OnError::Raise),
            prefetch: Setting::new(None, 2),
            threads: Setting::new(None, 8),
            more: BTreeMap::from([(
                "memory budget".into(),
                Setting::new(None, "8 GiB".to_owned()),
            )]),
        }
    }

    /// Two merged pipelines, and a stage with two paths: all that a tree can have.
    fn example() -> Definition {
        let fetch = StageDefinition {
            concurrency: Some(Setting::new(Some(32), 16)),
            order: Some(Setting::new(None, Order::Input)),
            on_error: Some(Setting::new(Some(OnError::Skip { at_most: Some(10) }), OnError::Raise)),
            queue: Some(Setting::new(None, 64)),
            retry: Some(Retry::default()),
            defined_at: Some("train.rs:12".into()),
            ..StageDefinition::new::<String, Vec<u8>>("fetch", Construct::Async)
        };
        let photos = Definition::new(
            Some(StageDefinition::source::<String>("photos", Construct::Source)),
            vec![fetch],
        );
        let drawings = Definition::new(
            Some(StageDefinition::source::<Vec<u8>>("drawings", Construct::Source)),
            vec![],
        );
        let mix = StageDefinition {
            branches: vec![photos.named("photos"), drawings],
            ..StageDefinition::source::<Vec<u8>>("mix", Construct::Merge)
        }
        .with("policy", Setting::new(Some("round robin"), "arrival"));
        let decode = StageDefinition {
            dedicated_threads: Some(2),
            measured: true,
            ..StageDefinition::new::<Vec<u8>, [u8; 3]>("decode", Construct::Cpu)
        };
        let route = StageDefinition {
            branches: vec![Definition::new(None, vec![decode]), Definition::default()],
            ..StageDefinition::new::<Vec<u8>, [u8; 3]>("by format", Construct::Route)
        };
        let batch = StageDefinition::new::<[u8; 3], Vec<[u8; 3]>>("batch", Construct::Batch)
            .with("size", Setting::new(Some(32), 1))
            .with("last", Setting::new(None, "kept"));
        Definition::new(Some(mix), vec![route, batch]).with_settings(settings())
    }

    const TREE: &str = "\
pipeline of Vec<[u8; 3]>
│    seed 7 · epochs 0..1 (default) · order input · on error raise (default)
│    prefetch 2 (default) · threads 8 (default) · memory budget 8 GiB (default)
├─ mix        merge  → Vec<u8>
│       policy round robin
│    pipeline 0 photos
│    ├─ photos  source  → String
│    └─ fetch   async   String → Vec<u8>
│            concurrency 32 · order input (default) · on error skip at most 10
│            queue 64 (default) · retry 3 attempts, waits of 50ms × 2 up to 5s, jitter 0.5
│            at train.rs:12
│    pipeline 1
│    └─ drawings  source  → Vec<u8>
├─ by format  route  Vec<u8> → [u8; 3]
│    path 0
│    └─ decode  cpu  Vec<u8> → [u8; 3]
│            own threads 2 · counted in the memory budget
│    path 1
│    └─ passes items on as they are
└─ batch      batch  [u8; 3] → Vec<[u8; 3]>
        last kept (default) · size 32";

    #[test]
    fn the_tree_tells_types_settings_and_defaults() {
        let tree = example().to_string();
        assert_eq!(tree, TREE, "\n{tree}");
    }

    #[test]
    fn a_stage_is_told_with_its_place() {
        let here = Location::caller();
        let stage = StageDefinition::source::<u8>("s", Construct::Source).at(here);
        let place = stage.defined_at.clone().unwrap();
        assert!(place.ends_with(&format!("definition.rs:{}", here.line())), "{place}");
        let tree = Definition::new(Some(stage), vec![]).to_string();
        assert_eq!(tree, format!("pipeline of u8\n└─ s  source  → u8\n        at {place}"));
    }

    #[test]
    fn epochs_without_end_and_a_lone_definition_are_fine() {
        let epochs = Setting::new(Some(3..u64::MAX), 0..1);
        let lines = PipelineSettings { epochs, ..settings() }.lines();
        assert!(lines[0].contains("epochs 3.. · "), "{lines:?}");
        let nothing = Definition::default();
        assert_eq!(nothing.to_string(), "pipeline\n└─ passes items on as they are");
        assert_eq!(nothing.output(), None);
    }

    #[test]
    fn stages_come_in_the_order_in_which_items_meet_them() {
        let example = example();
        let names: Vec<_> = example.all_stages().map(|stage| stage.name.as_str()).collect();
        let order = ["photos", "fetch", "drawings", "mix", "by format", "decode", "batch"];
        assert_eq!(names, order);
    }

    #[test]
    fn a_setting_knows_whether_it_was_chosen() {
        assert_eq!(Setting::new(Some(1), 2).given(), Some(&1));
        assert_eq!(Setting::new(None, 2).given(), None);
        assert_eq!(Setting::new(None, 2).to_string(), "2 (default)");
        // Choosing the default is a choice.
        assert_eq!(Setting::new(Some(2), 2).to_string(), "2");
    }

    #[cfg(feature = "serde")]
    // feature: B12
    #[test]
    fn a_definition_comes_back_from_json() {
        let example = example();
        let text = serde_json::to_string(&example).unwrap();
        assert_eq!(serde_json::from_str::<Definition>(&text).unwrap(), example);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn json_has_units_and_no_empty_fields() {
        let retry = Retry::default().first_delay(std::time::Duration::from_millis(250));
        let stage = StageDefinition {
            concurrency: Some(Setting::new(None, 16)),
            on_error: Some(Setting::new(Some(OnError::SKIP), OnError::Raise)),
            retry: Some(retry),
            ..StageDefinition::new::<String, u8>("fetch", Construct::Async)
        };
        let json = serde_json::to_value(stage).unwrap();
        let expected = serde_json::json!({
            "name": "fetch", "kind": "async", "input": "String", "output": "u8",
            "concurrency": { "value": 16, "default": true },
            "on_error": { "value": { "skip": { "at_most": null } }, "default": false },
            "retry": {
                "attempts": 3, "first_delay_s": 0.25, "factor": 2.0, "most_delay_s": 5.0,
                "jitter": 0.5,
            },
            "measured": false,
        });
        assert_eq!(json, expected);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn kinds_have_the_same_name_everywhere() {
        use Construct as C;
        for kind in [
            C::Source,
            C::Cpu,
            C::Async,
            C::Fill,
            C::Batch,
            C::Aggregate,
            C::Unbatch,
            C::Filter,
            C::Merge,
            C::Route,
            C::Upload,
        ] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
