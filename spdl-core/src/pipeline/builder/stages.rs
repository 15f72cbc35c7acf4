//! Stages of a pipeline.

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;

use futures_util::task::AtomicWaker;

use super::PipelineBuilder;
use super::plan::{
    ASYNC_CONCURRENCY, BuiltPart, CPU_QUEUE, Driver, DriverTask, OutputSettings, Plan,
};
use crate::error::{Error, ErrorKind, Result, guarded};
use crate::memory::device::Device;
use crate::memory::footprint::Footprint;
use crate::observe::statistics::StageKind;
use crate::pipeline::control::{ConcurrencyControl, StageControl};
use crate::pipeline::definition::{Construct, Setting, StageDefinition};
use crate::pipeline::options::{Order, StageOptions, Workers};
use crate::scheduler::assembly::Assembly;
use crate::scheduler::async_node::AsyncNode;
use crate::scheduler::cpu_node::{CpuNode, CpuNodeState, Sizer};
use crate::scheduler::fill_node::FillNode;
use crate::stage::adapters::{Filter, FlatMap, Map, Unbatch};
use crate::stage::aggregate::{Aggregation, Aggregator, Batcher};
use crate::stage::batch::{Batch, PREFETCH};
use crate::stage::device_batch::DeviceBatch;
use crate::stage::grouping::{
    Bucketed, Bucketer, Bucketing, ConcatAndSplit, Packed, Packer, Packing, Piece, Sequence,
};
use crate::stage::layout::{BatchLayout, Field};
use crate::stage::slot::Fill;
use crate::stage::{AsyncStage, Stage};
use crate::sync::Mutex;

/// Stages.
impl<T: Send + 'static> PipelineBuilder<T> {
    pub(super) fn then<U>(
        mut self,
        definition: StageDefinition,
        next: impl FnOnce(&mut Plan, BuiltPart<T>, OutputSettings<U>) -> BuiltPart<U> + Send + 'static,
    ) -> PipelineBuilder<U> {
        let before = self.plan;
        self.stages.push(definition);
        PipelineBuilder {
            settings: self.settings,
            settings_made: self.settings_made,
            source: self.source,
            stages: self.stages,
            plan: Box::new(move |plan, out| {
                let made = before(plan, OutputSettings::INNER);
                next(plan, made, out)
            }),
        }
    }

    /// Adds a CPU stage. `factory` creates an instance when a worker finds no unused one, and after
    /// a panic. An error of `factory` ends the pipeline.
    #[track_caller]
    pub fn stage<S: Stage<T>>(
        self,
        options: impl Into<StageOptions>,
        factory: impl Fn() -> Result<S> + Send + Sync + 'static,
    ) -> PipelineBuilder<S::Out> {
        self.cpu(options.into(), Construct::Cpu, &[], factory)
    }

    #[track_caller]
    pub(super) fn cpu<S: Stage<T>>(
        self,
        options: StageOptions,
        construct: Construct,
        more: &[(&str, String)],
        factory: impl Fn() -> Result<S> + Send + Sync + 'static,
    ) -> PipelineBuilder<S::Out> {
        let aggregates = construct.aggregates();
        let mut definition = StageDefinition::new::<T, S::Out>(&options.name, construct)
            .at(Location::caller())
            .with_options(&options);
        if !aggregates {
            definition.concurrency = options.concurrency.map(|given| Setting::new(Some(given), 1));
            definition.order = options.order.map(|order| Setting::new(Some(order), order));
        }
        for (what, value) in more {
            definition = definition.with(what, Setting::new(Some(value), value));
        }
        self.then(definition, move |plan, made, out: OutputSettings<S::Out>| {
            let order = options.order.unwrap_or_else(|| plan.settings.order());
            // An aggregating stage has one instance, which sees all items.
            let options = if aggregates { options.concurrency(1) } else { options };
            // An aggregate takes over the reservations of its items.
            let own = out.sizer.is_some() || (aggregates && made.measured);
            let releases = options.unmeasured && !own;
            let measure = plan.measure(own);
            let concurrency = plan.default_concurrency(&options);
            let core = plan.stage(&options, StageKind::Cpu, concurrency, measure);
            let hooks = plan.hooks(&core);
            let pool = plan.pool(&options, &core, aggregates);
            let capacity = options
                .queue
                .unwrap_or_else(|| CPU_QUEUE.max(core.concurrency().saturating_mul(2)));
            let queue = plan.queue(&core, out.last, capacity, Some(&pool));
            plan.control_queue(core.name(), &queue);
            made.queue.set_takers(&pool.signal);
            let position = plan.position(made.depth + 1);
            let is_ordered = order == Order::Input && !aggregates;
            if is_ordered {
                core.meter.set_ordered();
            }
            let node = CpuNode {
                core,
                position: position.clone(),
                input: made.queue,
                output: Arc::clone(&queue),
                factory: Box::new(factory),
                hooks,
                sizer: out.sizer,
                aggregates,
                releases,
                turns: is_ordered.then(Default::default),
                state: CpuNodeState::carrying(plan.carry_of(options.identified())),
            };
            let meter = Arc::clone(&node.core.meter);
            plan.place(pool, position, &meter, Arc::new(node));
            let measured = own || (made.measured && !releases);
            BuiltPart { queue, depth: made.depth + 1, measured }
        })
    }

    /// Adds a stage that calls `function` for each item on the worker pool, and emits the result.
    #[track_caller]
    pub fn map<U, F>(self, options: impl Into<StageOptions>, function: F) -> PipelineBuilder<U>
    where
        U: Send + 'static,
        F: Fn(T) -> Result<U> + Send + Sync + 'static,
    {
        let map = Map::new(function);
        self.cpu(options.into(), Construct::Cpu, &[], move || Ok(map.clone()))
    }

    /// Adds a stage that calls `function` for each item on the worker pool. The function returns an
    /// iterator of any number of outputs. Each output is emitted when the iterator yields it. If
    /// the iterator yields an error, the item fails; its earlier outputs are kept.
    #[track_caller]
    pub fn flat_map<U, I, F>(
        self,
        options: impl Into<StageOptions>,
        function: F,
    ) -> PipelineBuilder<U>
    where
        U: Send + 'static,
        I: IntoIterator<Item = Result<U>> + 'static,
        F: Fn(T) -> I + Send + Sync + 'static,
    {
        let flat_map = FlatMap::new(function);
        self.cpu(options.into(), Construct::Cpu, &[], move || Ok(flat_map.clone()))
    }

    /// Adds a stage that keeps only the items for which `predicate` returns true. The worker pool
    /// calls `predicate`.
    #[track_caller]
    pub fn filter<F>(self, options: impl Into<StageOptions>, predicate: F) -> PipelineBuilder<T>
    where
        F: Fn(&T) -> Result<bool> + Send + Sync + 'static,
    {
        let filter = Filter::new(predicate);
        self.cpu(options.into(), Construct::Filter, &[], move || Ok(filter.clone()))
    }

    /// Collects items in lists of `size` items, at least 1. The remaining items at the end of an
    /// epoch form a shorter list. With `drop_last`, they are left out and counted.
    #[track_caller]
    pub fn batch(
        self,
        options: impl Into<StageOptions>,
        size: usize,
        drop_last: bool,
    ) -> PipelineBuilder<Vec<T>> {
        let mut more = vec![("size", size.to_string())];
        if drop_last {
            more.push(("drop last", "yes".into()));
        }
        let factory = move || Batcher::new(size, drop_last);
        self.aggregate_checked(options.into(), Construct::Batch, &more, factory)
    }

    /// Batches items of similar length or shape, to reduce padding.
    ///
    /// `key` returns the length or the aspect ratio of an item. An item with an invalid key or
    /// above the budget fails: see [`Bucketer`].
    ///
    /// If items are [measured](Self::measured), all buffered items together must fit in
    /// [`largest_item`](Self::largest_item). The stage buffers up to number of buckets × batch size
    /// items. The same limit applies to the items in the open sequences of [`pack`](Self::pack).
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// use spdl_core::stage::Bucketing;
    /// let texts = ["a", "longer", "be", "longest", "c"];
    /// let pipeline = PipelineBuilder::from_iter(texts)
    ///     .bucket("like", Bucketing::boundaries([4.0]).batch_size(2), |text| text.len() as f64)
    ///     .deterministic()
    ///     .build()?;
    /// let monitor = pipeline.monitor();
    /// let batches: Vec<_> = pipeline.map(|batch| batch.map(|b| b.items)).collect::<Result<_, _>>()?;
    /// assert_eq!(batches, [vec!["a", "be"], vec!["longer", "longest"], vec!["c"]]);
    /// // 17 letters in batches of 2 × 2, 2 × 7 and 1 × 1.
    /// assert_eq!(monitor.statistics().stages[1].fill_rate, Some(17.0 / 19.0));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[track_caller]
    pub fn bucket(
        self,
        options: impl Into<StageOptions>,
        bucketing: Bucketing,
        key: impl Fn(&T) -> f64 + Send + Sync + 'static,
    ) -> PipelineBuilder<Bucketed<T>> {
        let more = bucketing.words();
        let key: Arc<dyn Fn(&T) -> f64 + Send + Sync> = Arc::new(key);
        let factory = move || Bucketer::shared(bucketing.clone(), Arc::clone(&key));
        self.aggregate_checked(options.into(), Construct::Bucket, &more, factory)
    }

    /// Packs whole items into sequences of a fixed capacity, to reduce padding.
    ///
    /// `length` returns the number of tokens of an item, at least 1. An item longer than the
    /// capacity fails; split such items with [`pieces`](crate::stage::pieces).
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// use spdl_core::stage::Packing;
    /// let pipeline = PipelineBuilder::from_iter([7, 5, 3, 2])
    ///     .pack("pack", Packing::new(10), |&tokens| tokens)
    ///     .deterministic()
    ///     .build()?;
    /// let monitor = pipeline.monitor();
    /// let packed: Vec<_> = pipeline.map(|pack| pack.map(|p| p.items)).collect::<Result<_, _>>()?;
    /// assert_eq!(packed, [[7, 3], [5, 2]]);
    /// assert_eq!(monitor.statistics().stages[1].fill_rate, Some(0.85));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[track_caller]
    pub fn pack(
        self,
        options: impl Into<StageOptions>,
        packing: Packing,
        length: impl Fn(&T) -> u64 + Send + Sync + 'static,
    ) -> PipelineBuilder<Packed<T>> {
        let more = packing.words();
        let length: Arc<dyn Fn(&T) -> u64 + Send + Sync> = Arc::new(length);
        let factory = move || Packer::shared(packing.clone(), Arc::clone(&length));
        self.aggregate_checked(options.into(), Construct::Pack, &more, factory)
    }

    /// Concatenates items and splits the result into sequences of exactly `capacity` tokens, at
    /// least 1.
    ///
    /// The remaining tokens at the end of an epoch form a shorter sequence. With `drop_last`, this
    /// sequence is left out, and the items that end in it are counted as left out.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// let pipeline = PipelineBuilder::from_iter([vec![1, 2, 3], vec![4, 5]])
    ///     .concat_and_split("pack", 2, false)
    ///     .map("tokens", |pack| Ok(pack.items.into_iter().flat_map(|p| p.part).collect()))
    ///     .deterministic()
    ///     .build()?;
    /// let tokens: Vec<Vec<i32>> = pipeline.collect::<Result<_, _>>()?;
    /// assert_eq!(tokens, [vec![1, 2], vec![3, 4], vec![5]]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[track_caller]
    pub fn concat_and_split(
        self,
        options: impl Into<StageOptions>,
        capacity: u64,
        drop_last: bool,
    ) -> PipelineBuilder<Packed<Piece<T>>>
    where
        T: Sequence,
    {
        let mut more = vec![("capacity", capacity.to_string()), ("fit", "concat and split".into())];
        if drop_last {
            more.push(("drop last", "yes".into()));
        }
        let factory = move || ConcatAndSplit::new(capacity, drop_last);
        self.aggregate_checked(options.into(), Construct::Pack, &more, factory)
    }

    /// Adds a built-in aggregator and validates its settings.
    #[track_caller]
    fn aggregate_checked<A: Aggregator<T>>(
        self,
        options: StageOptions,
        construct: Construct,
        more: &[(&str, String)],
        factory: impl Fn() -> Result<A> + Send + Sync + 'static,
    ) -> PipelineBuilder<A::Out> {
        let name = Arc::clone(&options.name);
        let fault = factory().err();
        let mut builder = self.aggregate_as(options, construct, more, Arc::new(factory));
        if let Some(error) = fault {
            let before = builder.plan;
            builder.plan = Box::new(move |plan, out| {
                plan.add_error(error.with_stage(name));
                before(plan, out)
            });
        }
        builder
    }

    #[track_caller]
    fn aggregate_as<A: Aggregator<T>>(
        self,
        options: StageOptions,
        construct: Construct,
        more: &[(&str, String)],
        factory: Arc<dyn Fn() -> Result<A> + Send + Sync>,
    ) -> PipelineBuilder<A::Out> {
        self.cpu(options, construct, more, move || {
            let factory = Arc::clone(&factory);
            Aggregation::new(move || factory())
        })
    }

    /// Aggregates items with a custom aggregator. `factory` creates a new aggregator for each
    /// epoch, so aggregates never contain items of two epochs.
    #[track_caller]
    pub fn aggregate<A, F>(
        self,
        options: impl Into<StageOptions>,
        factory: F,
    ) -> PipelineBuilder<A::Out>
    where
        A: Aggregator<T>,
        F: Fn() -> Result<A> + Send + Sync + 'static,
    {
        self.aggregate_as(options.into(), Construct::Aggregate, &[], Arc::new(factory))
    }

    /// Splits lists: each element becomes an item.
    #[track_caller]
    pub fn unbatch(self, options: impl Into<StageOptions>) -> PipelineBuilder<T::Item>
    where
        T: IntoIterator<Item: Send + 'static>,
    {
        self.cpu(options.into(), Construct::Unbatch, &[], || Ok(Unbatch))
    }

    /// Adds an async stage. All items share the instance `stage`, which may be an
    /// `Arc<dyn AsyncStage<…>>`.
    #[track_caller]
    pub fn async_stage<S: AsyncStage<T>>(
        self,
        options: impl Into<StageOptions>,
        stage: S,
    ) -> PipelineBuilder<S::Out> {
        let options = options.into();
        let mut definition = StageDefinition::new::<T, S::Out>(&options.name, Construct::Async)
            .at(Location::caller())
            .with_options(&options);
        definition.concurrency = Some(Setting::new(options.concurrency, ASYNC_CONCURRENCY));
        definition.order = options.order.map(|order| Setting::new(Some(order), order));
        definition.retry = stage.retry();
        self.then(definition, move |plan, made, out: OutputSettings<S::Out>| {
            let own = out.sizer.is_some();
            let measure = plan.measure(own);
            let core = plan.stage(&options, StageKind::Async, ASYNC_CONCURRENCY, measure);
            if !matches!(options.workers, Workers::Shared) {
                let message = "an async stage runs on the runtime; dedicated threads and executors apply \
                               only to CPU stages";
                plan.add_error(
                    Error::new(ErrorKind::InvalidArgument, message)
                        .with_stage(options.name.clone()),
                );
            }
            let hooks = plan.hooks(&core);
            let capacity = options.queue.unwrap_or_else(|| core.concurrency().saturating_mul(2));
            let tuning = plan.tuning(&options, out.last);
            let queue = plan.queue(&core, out.last, capacity, None);
            let settings_changed = Arc::new(AtomicWaker::new());
            plan.controls.push(StageControl {
                name: Arc::clone(core.name()),
                identity: Arc::clone(options.identified()),
                handle: ConcurrencyControl::Task(Arc::clone(&settings_changed)),
                adjustable: true,
                follows_threads: false,
                widen: None,
            });
            plan.control_queue(core.name(), &queue);
            let ordered = options.order.unwrap_or_else(|| plan.settings.order()) == Order::Input;
            if ordered {
                core.meter.set_ordered();
            }
            core.meter.set_medium(stage.medium());
            let node = AsyncNode {
                core,
                stage: Arc::new(stage),
                input: made.queue,
                output: Arc::clone(&queue),
                hooks,
                sizer: out.sizer,
                settings_changed,
                ordered,
                tuning,
            };
            let task: DriverTask = Box::new(move |runtime| Box::pin(node.drive(runtime)));
            plan.drivers.push(Driver { blocks: false, task });
            BuiltPart { queue, depth: made.depth + 1, measured: own || made.measured }
        })
    }

    /// Adds a stage that calls an async function for each item on the runtime, and emits the
    /// result.
    ///
    /// The function must not block. Use [`map`](Self::map) for computation and blocking file reads.
    ///
    /// Futures that use tokio's timers or sockets require a tokio runtime: see
    /// [`runtime`](Self::runtime).
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// let slow = PipelineBuilder::from_iter(0..3)
    ///     .map_async("wait", |n| async move { Ok(n + 1) })
    ///     .deterministic();
    /// assert_eq!(slow.build()?.collect::<spdl_core::Result<Vec<_>>>()?, [1, 2, 3]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[track_caller]
    pub fn map_async<U, F, R>(
        self,
        options: impl Into<StageOptions>,
        function: F,
    ) -> PipelineBuilder<U>
    where
        U: Send + 'static,
        F: Fn(T) -> R + Send + Sync + 'static,
        R: Future<Output = Result<U>> + Send + 'static,
    {
        self.async_stage(options, crate::stage::AsyncFunction::new(function))
    }

    /// Adds a stage that writes samples into the slots of batches.
    ///
    /// Samples have input order in the batches. The next sample takes the slot of a dropped sample,
    /// so only the last batch of an epoch may be incomplete. A batch counts in the memory budget as
    /// a [measured](Self::measured) output.
    ///
    /// `factory` creates an instance when a worker finds no unused one. Each new instance
    /// [validates](Fill::check_fields) the fields of the layout. [`build`](Self::build) creates the
    /// first instance. Exception: a stage with [dedicated threads](StageOptions::dedicated) creates
    /// all instances on these threads.
    #[track_caller]
    pub fn fill<F: Fill<T>>(
        self,
        options: impl Into<StageOptions>,
        layout: BatchLayout,
        factory: impl Fn() -> Result<F> + Send + Sync + 'static,
    ) -> PipelineBuilder<Batch> {
        let options = options.into();
        let fields: Vec<_> = layout.fields().iter().map(Field::to_string).collect();
        let mut definition = StageDefinition::new::<T, Batch>(&options.name, Construct::Fill)
            .at(Location::caller())
            .with_options(&options)
            .with("batch size", Setting::new(Some(layout.batch_size()), 0))
            .with("fields", Setting::new(Some(fields.join("; ")), String::new()));
        definition.concurrency = options.concurrency.map(|given| Setting::new(Some(given), 1));
        definition.measured = true;
        if layout.drops_last() {
            definition = definition.with("drop last", Setting::new(Some("yes"), ""));
        }
        self.then(definition, move |plan, made, out: OutputSettings<Batch>| {
            if let Err(error) = layout.validate() {
                plan.add_error(error.with_stage(Arc::clone(&options.name)));
            }
            let fields = layout.fields().to_vec();
            let make = move || {
                let instance = factory()?;
                instance.check_fields(&fields)?;
                Ok(instance)
            };
            // Instances of a stage with dedicated threads may be bound to those threads.
            let first = match options.workers {
                Workers::Dedicated { .. } => None,
                _ => match guarded(&make).0 {
                    Ok(first) => Some(first),
                    Err(error) => {
                        plan.add_error(error.with_stage(Arc::clone(&options.name)));
                        None
                    }
                },
            };
            // The first worker that needs an instance uses the one that was created here.
            let first = Mutex::new(first);
            let factory = move || {
                let first = first.lock().take();
                first.map_or_else(&make, Ok)
            };
            let measure = plan.measure(true);
            let concurrency = plan.default_concurrency(&options);
            let core = plan.stage(&options, StageKind::Fill, concurrency, measure);
            let hooks = plan.hooks(&core);
            let pool = plan.pool(&options, &core, false);
            // Each batch in assembly has a reserved place in the queue. `open` batches are as many
            // as all workers can write concurrently, and one more, so that a new epoch can begin.
            let open = core.concurrency().div_ceil(layout.batch_size().max(1)) + 1;
            let ready = plan.settings.prefetch.filter(|_| out.last);
            let capacity = ready.or(options.queue).unwrap_or(PREFETCH).saturating_add(open);
            let queue = plan.queue(&core, false, capacity, Some(&pool));
            made.queue.set_takers(&pool.signal);
            let (fields, varies) = (layout.fields().to_vec(), layout.varies());
            let assembly = Assembly::new(layout, plan.shared.buffers.clone());
            let batch_bytes = assembly.batch_bytes();
            plan.largest_batch = plan.largest_batch.max(batch_bytes);
            let position = plan.position(made.depth + 1);
            let node = FillNode {
                core,
                input: made.queue,
                output: Arc::clone(&queue),
                factory: Box::new(factory),
                hooks,
                fields,
                batch_bytes,
                varies,
                keeps_members: plan.settings.record,
                assembly: Mutex::new(assembly),
                state: Default::default(),
            };
            let meter = Arc::clone(&node.core.meter);
            plan.place(pool, position, &meter, Arc::new(node));
            BuiltPart { queue, depth: made.depth + 1, measured: true }
        })
    }

    /// Counts the outputs of the last added stage in the memory budget, by their [`Footprint`].
    ///
    /// An output counts from its creation until it is delivered or dropped, or until the next
    /// measured stage has processed it. The first output of an unmeasured stage takes over the
    /// reservation of its input. An aggregate takes over the reservations of its items. Batches of
    /// [`fill`](PipelineBuilder::fill) are always counted.
    pub fn measured(self) -> Self
    where
        T: Footprint,
    {
        self.measured_by(T::footprint)
    }

    /// Like [`measured`](Self::measured), with a function that returns the size of an item in
    /// bytes.
    pub fn measured_by(mut self, bytes: impl Fn(&T) -> usize + Send + Sync + 'static) -> Self {
        let before = self.plan;
        self.plan = Box::new(move |plan, out| {
            let sizer: Sizer<T> = Box::new(bytes);
            before(plan, OutputSettings { sizer: Some(sizer), ..out })
        });
        if let Some(last) = self.stages.last_mut().or(self.source.as_mut()) {
            last.measured = true;
        }
        self
    }
}

/// Uploads to a device.
impl PipelineBuilder<Batch> {
    /// Adds a stage that starts the upload of each batch to `device` and forwards it immediately,
    /// in input order; see [`DeviceBatch`].
    ///
    /// For fast copies, set [`buffers`](PipelineBuilder::buffers) to a pool of memory that the
    /// device reads directly, such as pinned memory.
    #[track_caller]
    pub fn upload(
        self,
        options: impl Into<StageOptions>,
        device: Arc<dyn Device>,
    ) -> PipelineBuilder<DeviceBatch> {
        let options = options.into().concurrency(1);
        let upload = Map::new(move |batch| DeviceBatch::upload(batch, &*device));
        self.cpu(options, Construct::Upload, &[], move || Ok(upload.clone()))
    }
}
