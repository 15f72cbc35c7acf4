//! Definition of a pipeline as data: to inspect, print and store with the results of a run.

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

/// A value of a setting, and whether it is the default.
///
/// `Display` marks defaults: `64 (default)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Setting<T> {
    /// The value in effect.
    pub value: T,
    /// Whether the value is the default, because no value was set.
    pub default: bool,
}

impl<T> Setting<T> {
    /// Creates a setting from the given value, or from `default` if it is `None`.
    pub fn new(given: Option<T>, default: T) -> Self {
        match given {
            Some(value) => Setting { value, default: false },
            None => Setting { value: default, default: true },
        }
    }

    /// Returns the value if it was set explicitly.
    pub fn given(&self) -> Option<&T> {
        (!self.default).then_some(&self.value)
    }

    fn map<U>(&self, function: impl FnOnce(&T) -> U) -> Setting<U> {
        Setting { value: function(&self.value), default: self.default }
    }
}

impl<T: fmt::Display> fmt::Display for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = if self.default { " (default)" } else { "" };
        write!(f, "{}{default}", self.value)
    }
}

/// Kind of a stage, a source, a merge or a route.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Construct {
    /// Yields items, for example keys or positions.
    Source,
    /// Computes on the CPU pool.
    Cpu,
    /// Waits for I/O, with many items in flight.
    Async,
    /// Writes samples into the slots of batches.
    Fill,
    /// Collects items in lists.
    Batch,
    /// Collects items of similar size in lists.
    Bucket,
    /// Packs items into sequences of fixed capacity.
    Pack,
    /// Combines several items into one with a custom aggregator.
    Aggregate,
    /// Splits lists into items.
    Unbatch,
    /// Keeps the items that satisfy a predicate.
    Filter,
    /// Merges items of several pipelines.
    Merge,
    /// Sends each item to one of several paths.
    Route,
    /// Uploads batches to a device.
    Upload,
}

impl Construct {
    /// Whether each output consists of several items.
    pub(crate) fn aggregates(self) -> bool {
        use Construct::{Aggregate, Batch, Bucket, Pack};
        matches!(self, Batch | Bucket | Pack | Aggregate)
    }

    /// Returns the kind as one lower-case word, as in the printed tree and in JSON.
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

/// Definition of a pipeline, or of a part of a pipeline, as data.
///
/// `Display` prints a tree from the source to the consumer. Each stage has its kind, input and
/// output types, settings, and the line of the program that adds it. With feature `serde`, a
/// definition can be serialized, for example as JSON. A definition contains settings and names, but
/// no functions, so a pipeline cannot be built from it.
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
    /// Optional name, for example of a path or a merged pipeline.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub name: Option<String>,
    /// The source. `None` for a path, which receives items of the previous stage.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub source: Option<StageDefinition>,
    /// The stages, in the order of the data flow.
    #[cfg_attr(feature = "serde", serde(default))]
    pub stages: Vec<StageDefinition>,
    /// Settings of the pipeline. `None` for a path or a merged pipeline, which uses the settings of
    /// the whole pipeline.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub settings: Option<PipelineSettings>,
}

/// The settings of a whole pipeline.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PipelineSettings {
    /// The seed of the random numbers of stages and merges. Samplers have separate seeds.
    pub seed: Setting<u64>,
    /// The epochs to run. The end is `u64::MAX` for an endless pipeline.
    pub epochs: Setting<Range<u64>>,
    /// Order in which stages emit their outputs, unless a stage has a separate order.
    pub order: Setting<Order>,
    /// Failure policy of the stages without a separate policy.
    pub on_error: Setting<OnError>,
    /// Maximum number of finished items that wait for the consumer. If no value was set, this
    /// field is 2, the minimum of the [automatic value](crate::PipelineBuilder::prefetch).
    pub prefetch: Setting<usize>,
    /// Number of worker threads of the CPU pool.
    pub threads: Setting<usize>,
    /// Other settings that were made, by name: for example memory budget, executor, hooks, shard,
    /// recorded or replayed order.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeMap::is_empty"))]
    pub more: BTreeMap<String, Setting<String>>,
}

/// Definition of a stage as data: name, kind, types and settings.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StageDefinition {
    /// Name given to the builder.
    pub name: String,
    /// Name in the fingerprint, if it differs: [`StageOptions::identity`](crate::StageOptions::identity).
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) identity: Option<String>,
    /// Kind of the stage.
    pub kind: Construct,
    /// Type of the inputs, without module paths. `None` for a source.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub input: Option<String>,
    /// Type of the outputs, without module paths.
    pub output: String,
    /// Maximum number of items processed concurrently; the initial number for an async stage that
    /// sets none. `None` for any other stage that sets none, and for stages that aggregate.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub concurrency: Option<Setting<usize>>,
    /// Order that the options of a CPU stage or an async stage set. `None` for other stages, and if no
    /// order is set.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub order: Option<Setting<Order>>,
    /// Failure policy that the stage's options set. `None`: the policy of the pipeline.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub on_error: Option<Setting<OnError>>,
    /// Capacity of the queue after the stage, in items. If the stage's options set no capacity, 256
    /// for a source, and `None` for other stages.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub queue: Option<Setting<usize>>,
    /// Retry settings; `None`: no retries.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub retry: Option<Retry>,
    /// Number of dedicated threads. `None` if the stage runs on the shared worker pool, on the
    /// runtime or on an executor.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub dedicated_threads: Option<usize>,
    /// Whether the stage is a fill, or [`measured`](crate::PipelineBuilder::measured) follows it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub measured: bool,
    /// Other settings by name, such as a batch size or a merge policy.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeMap::is_empty"))]
    pub more: BTreeMap<String, Setting<String>>,
    /// Parameters that the caller declared:
    /// [`StageOptions::parameter`](crate::StageOptions::parameter).
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeMap::is_empty"))]
    pub parameters: BTreeMap<String, String>,
    /// The branches of a merge or zip, or the paths of a route.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub branches: Vec<Definition>,
    /// Location in the program at which the stage is added: `file:line`.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub defined_at: Option<String>,
}

impl StageDefinition {
    /// Creates the definition of a stage with inputs of type `In` and outputs of type `Out`,
    /// without settings.
    pub fn new<In: ?Sized, Out: ?Sized>(name: &str, kind: Construct) -> Self {
        StageDefinition {
            name: name.to_owned(),
            identity: None,
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

    /// Creates the definition of a stage without input, such as a source.
    pub fn source<Out: ?Sized>(name: &str, kind: Construct) -> Self {
        StageDefinition { input: None, ..StageDefinition::new::<(), Out>(name, kind) }
    }

    /// Sets the location in the program. In a function with `#[track_caller]`, pass
    /// `Location::caller()`.
    #[must_use]
    pub fn at(mut self, place: &Location<'_>) -> Self {
        self.defined_at = Some(format!("{}:{}", place.file(), place.line()));
        self
    }

    /// Adds the settings of `options`.
    #[must_use]
    pub(crate) fn with_options(mut self, options: &crate::pipeline::options::StageOptions) -> Self {
        use crate::pipeline::options::Workers;
        self.on_error = options.on_error.map(|policy| Setting::new(Some(policy), policy));
        self.queue = options.queue.map(|capacity| Setting::new(Some(capacity), capacity));
        self = self.with_parameters(options);
        match &options.workers {
            Workers::Shared => {}
            Workers::Dedicated { cpus } => {
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

    /// Adds the identity and the parameters of `options`.
    #[must_use]
    pub(crate) fn with_parameters(
        mut self,
        options: &crate::pipeline::options::StageOptions,
    ) -> Self {
        self.identity = options.identity.as_deref().map(str::to_owned);
        self.parameters.extend(options.parameters.iter().cloned());
        self
    }

    /// Adds another setting by name.
    #[must_use]
    pub fn with(mut self, what: &str, value: Setting<impl fmt::Display>) -> Self {
        self.more.insert(what.to_owned(), value.map(ToString::to_string));
        self
    }
}

impl Definition {
    /// Creates a definition from an optional source and its stages.
    pub fn new(source: Option<StageDefinition>, stages: Vec<StageDefinition>) -> Self {
        Definition { name: None, source, stages, settings: None }
    }

    /// Sets the name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets the settings of the pipeline.
    #[must_use]
    pub fn with_settings(mut self, settings: PipelineSettings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// Returns the type of the outputs, if there is a stage or a source.
    pub fn output(&self) -> Option<&str> {
        self.stages.last().or(self.source.as_ref()).map(|stage| stage.output.as_str())
    }

    /// Returns all stages in the order of the data flow, including sources and the stages of
    /// branches and paths.
    pub fn all_stages(&self) -> impl Iterator<Item = &StageDefinition> {
        let mut found = Vec::new();
        self.collect(&mut found);
        found.into_iter()
    }

    fn collect<'a>(&'a self, found: &mut Vec<&'a StageDefinition>) {
        for stage in self.source.iter().chain(&self.stages) {
            // Merged pipelines precede the merge; paths follow the route.
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

    /// Returns the parts of the fingerprint: stages, kinds, positions and settings that affect the
    /// content and order of batches. Concurrency, prefetch and device are excluded. Type names are
    /// excluded, because they change with the compiler version and if a type moves to another
    /// module.
    ///
    /// # Errors
    /// `InvalidArgument` if two parts have the same name.
    pub(crate) fn fingerprint(&self) -> Result<BTreeMap<String, String>> {
        let mut parts = BTreeMap::new();
        if let Some(settings) = &self.settings {
            parts.insert("order".to_owned(), settings.order.value.to_string());
        }
        self.add_stage_parts(None, &mut parts)?;
        Ok(parts)
    }

    /// Adds the stages to `parts`. `place` is the position of the first one.
    fn add_stage_parts(
        &self,
        mut place: Option<String>,
        parts: &mut BTreeMap<String, String>,
    ) -> Result<()> {
        let stages = self.source.iter().chain(&self.stages);
        for stage in stages.filter(|stage| stage.kind != Construct::Upload) {
            let name = stage.identity.as_ref().unwrap_or(&stage.name);
            // Several sources and joins have the same default name here.
            let numbered = (2..).map(|number| format!("{name}-{number}"));
            let mut names = std::iter::once(name.to_string()).chain(numbered);
            let is_free = |name: &String| !parts.contains_key(&format!("stage {name}"));
            let is_joined = matches!(stage.kind, Construct::Source | Construct::Merge);
            let name = &*match is_joined {
                true => names.find(is_free).unwrap_or_default(),
                false => name.to_string(),
            };
            let mut add = |what: &str, value: String| {
                let part = format!("stage {name}{}{what}", if what.is_empty() { "" } else { ": " });
                match parts.insert(part.clone(), shortened(value)) {
                    None => Ok(()),
                    Some(_) => {
                        let message = format!(
                            "two parts of the fingerprint are named {part:?}; rename the stage or its \
                             parameter"
                        );
                        Err(Error::new(ErrorKind::InvalidArgument, message))
                    }
                }
            };
            add("", format!("{}{}", stage.kind, place.unwrap_or_default()))?;
            // The threads on which a stage runs do not affect the results.
            let chosen =
                stage.more.iter().filter(|(what, _)| !matches!(what.as_str(), "cpus" | "executor"));
            for (what, setting) in chosen {
                add(what, setting.value.clone())?;
            }
            if let Some(order) = &stage.order {
                add("order", order.value.to_string())?;
            }
            for (parameter, value) in &stage.parameters {
                add(parameter, value.clone())?;
            }
            if !stage.branches.is_empty() {
                add("branches", stage.branches.len().to_string())?;
            }
            for (number, branch) in stage.branches.iter().enumerate() {
                branch.add_stage_parts(
                    Some(format!(", first of branch {number} of {name}")),
                    parts,
                )?;
            }
            // Part of the fingerprint in saved states: this text must not change.
            place = Some(format!(" behind {name}"));
        }
        Ok(())
    }

    /// Whether every stage emits its outputs in input order: by its options, or because it processes
    /// one item at a time.
    pub(crate) fn keeps_order(&self) -> bool {
        let order = self.settings.as_ref().map_or(Order::Completion, |it| it.order.value);
        self.all_stages().all(|stage| match stage.kind {
            Construct::Source | Construct::Batch | Construct::Aggregate | Construct::Fill => true,
            _ => {
                stage.order.as_ref().map_or(order, |own| own.value) == Order::Input
                    || stage.concurrency.as_ref().is_some_and(|own| own.value == 1)
            }
        })
    }

    fn draw(&self, margin: &str, lines: &mut Vec<String>) {
        let stages: Vec<_> = self.source.iter().chain(&self.stages).collect();
        let name = stages.iter().map(|stage| width(&stage.name)).max().unwrap_or(0);
        let kind = stages.iter().map(|stage| stage.kind.as_str().len()).max().unwrap_or(0);
        if stages.is_empty() {
            lines.push(format!("{margin}└─ forwards items unchanged"));
        }
        for (at, stage) in stages.iter().enumerate() {
            let (corner, line) =
                if at + 1 < stages.len() { ("├─ ", "│  ") } else { ("└─ ", "   ") };
            let types = match &stage.input {
                Some(input) => format!("{input} → {}", stage.output),
                None => format!("→ {}", stage.output),
            };
            let gap = " ".repeat(name - width(&stage.name));
            let head = format!("{}{gap}  {:kind$}  {types}", stage.name, stage.kind);
            lines.push(format!("{margin}{corner}{head}"));
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
    /// Returns the lines below the pipeline's name.
    fn lines(&self) -> Vec<String> {
        let epochs = self.epochs.map(|epochs| match epochs.end {
            u64::MAX => format!("{}..", epochs.start),
            end => format!("{}..{end}", epochs.start),
        });
        let mut words = SettingsText::default();
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
    /// Returns the lines below the stage's name.
    fn details(&self) -> Vec<String> {
        let mut words = SettingsText::default();
        // Settings that are specific to the kind of stage are printed first.
        self.more.iter().for_each(|(what, value)| words.add(what, value));
        self.parameters.iter().for_each(|(what, value)| words.add(what, value));
        self.concurrency.iter().for_each(|value| words.add("concurrency", value));
        self.order.iter().for_each(|value| words.add("order", value));
        self.on_error.iter().for_each(|value| words.add("on error", value));
        self.queue.iter().for_each(|value| words.add("queue", value));
        if let Some(threads) = self.dedicated_threads {
            words.add("dedicated threads", threads);
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

/// Settings as text, wrapped at the width of a terminal.
#[derive(Default)]
struct SettingsText(Vec<String>);

impl SettingsText {
    const WIDTH: usize = 80;

    fn add(&mut self, what: &str, value: impl fmt::Display) {
        self.0.push(format!("{what} {value}"));
    }

    fn lines(self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for words in self.0 {
            match lines.last_mut() {
                Some(line) if width(line) + width(&words) + 3 <= SettingsText::WIDTH => {
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

/// Returns the name of a type without module paths: `Vec<Labeled<Bytes>>`.
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
    // Start of the current word, which is a module if `::` follows.
    let mut word = 0;
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        if c == ':' && rest.peek() == Some(&':') {
            rest.next();
            if word < short.len() {
                short.truncate(word);
            } else {
                // After a bracket, as in `<A as B>::C`: a part of a type, not a module.
                short.push_str("::");
                word = short.len();
            }
            continue;
        }
        short.push(c);
        // A closure is a word in braces: `{{closure}}`.
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
    fn type_names_have_no_module_paths() {
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

    /// Two merged pipelines and a route with two paths.
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
│            dedicated threads 2 · counted in the memory budget
│    path 1
│    └─ forwards items unchanged
└─ batch      batch  [u8; 3] → Vec<[u8; 3]>
        last kept (default) · size 32";

    #[test]
    fn the_tree_shows_types_settings_and_defaults() {
        let tree = example().to_string();
        assert_eq!(tree, TREE, "\n{tree}");
    }

    #[test]
    fn a_stage_is_printed_with_its_location() {
        let here = Location::caller();
        let stage = StageDefinition::source::<u8>("s", Construct::Source).at(here);
        let place = stage.defined_at.clone().unwrap();
        assert!(place.ends_with(&format!("definition.rs:{}", here.line())), "{place}");
        let tree = Definition::new(Some(stage), vec![]).to_string();
        assert_eq!(tree, format!("pipeline of u8\n└─ s  source  → u8\n        at {place}"));
    }

    #[test]
    fn endless_epochs_and_an_empty_definition_are_printed() {
        let epochs = Setting::new(Some(3..u64::MAX), 0..1);
        let lines = PipelineSettings { epochs, ..settings() }.lines();
        assert!(lines[0].contains("epochs 3.. · "), "{lines:?}");
        let nothing = Definition::default();
        assert_eq!(nothing.to_string(), "pipeline\n└─ forwards items unchanged");
        assert_eq!(nothing.output(), None);
    }

    #[test]
    fn all_stages_are_in_the_order_of_the_data_flow() {
        let example = example();
        let names: Vec<_> = example.all_stages().map(|stage| stage.name.as_str()).collect();
        let order = ["photos", "fetch", "drawings", "mix", "by format", "decode", "batch"];
        assert_eq!(names, order);
    }

    #[test]
    fn a_setting_knows_whether_it_is_the_default() {
        assert_eq!(Setting::new(Some(1), 2).given(), Some(&1));
        assert_eq!(Setting::new(None, 2).given(), None);
        assert_eq!(Setting::new(None, 2).to_string(), "2 (default)");
        // An explicit default is not marked.
        assert_eq!(Setting::new(Some(2), 2).to_string(), "2");
    }

    #[cfg(feature = "serde")]
    // feature: B12
    #[test]
    fn a_definition_is_restored_from_json() {
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
    fn kinds_have_the_same_name_in_json_and_display() {
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
