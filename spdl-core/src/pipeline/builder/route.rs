//! Ways that part and join again.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

use super::PipelineBuilder;
use super::plan::{BuiltPart, Junction, OutputSettings, Plan};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::statistics::StageKind;
use crate::pipeline::definition::{Construct, Setting, StageDefinition};
use crate::pipeline::options::{Order, StageOptions};
use crate::scheduler::merge_node::{MergeNode, MergeProgress};
use crate::scheduler::queue::Queue;
use crate::scheduler::route_node::{
    JoinBuffer, JoinNode, RouteTickets, SplitListNode, SplitNode, combine_items, combine_lists,
};
use crate::stage::adapters::Map;

/// One of the ways that [`route`](PipelineBuilder::route) chooses among: made by [`path`].
pub struct Path<T, U>(Box<dyn FnOnce(PipelineBuilder<T>) -> PipelineBuilder<U> + Send>);

impl<T, U> fmt::Debug for Path<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Path")
    }
}

/// A way for items to go: any chain of stages, or none. See [`PipelineBuilder::route`].
pub fn path<T, U, F>(stages: F) -> Path<T, U>
where
    F: FnOnce(PipelineBuilder<T>) -> PipelineBuilder<U> + Send + 'static,
{
    Path(Box::new(stages))
}

/// Ways for items.
impl<T: Send + 'static> PipelineBuilder<T> {
    /// Sends each item down one of several paths, that which `router` chooses by its number. The
    /// paths' outputs go on as they get ready, or, with [`Order::Input`], in the order in which
    /// their items came, whatever the paths make of them. A number that no path has ends the
    /// pipeline.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// use spdl_core::pipeline::path;
    /// let words = PipelineBuilder::from_iter(["a", "1", "b", "2"])
    ///     .route("kind", |word: &&str| Ok(usize::from(word.parse::<u8>().is_ok())), [
    ///         path(|words| words.map("letter", |word: &str| Ok(word.to_uppercase()))),
    ///         path(|words| words.map("digit", |word: &str| Ok(format!("<{word}>")))),
    ///     ])
    ///     .deterministic();
    /// let words: Vec<String> = words.build()?.collect::<spdl_core::Result<_>>()?;
    /// assert_eq!(words, ["A", "<1>", "B", "<2>"]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[track_caller]
    pub fn route<U: Send + 'static>(
        self,
        options: impl Into<StageOptions>,
        router: impl Fn(&T) -> Result<usize> + Send + Sync + 'static,
        paths: impl IntoIterator<Item = Path<T, U>>,
    ) -> PipelineBuilder<U> {
        let options = options.into();
        let at = Location::caller();
        let (inlets, paths): (Vec<_>, Vec<_>) = paths.into_iter().map(lay).unzip();
        let mut definition = StageDefinition::new::<T, U>(&options.name, Construct::Route)
            .at(at)
            .with_options(&options);
        definition.branches = paths.iter().map(PipelineBuilder::part).collect();
        let choose = Map::new(move |item: T| Ok((router(&item)?, item)));
        let name = Arc::clone(&options.name);
        let order = options.order;
        let mut routed = self.cpu(options, Construct::Route, &[], move || Ok(choose.clone()));
        routed.stages.pop();
        routed.then(definition, move |plan, made, out: OutputSettings<U>| {
            let ordered = order.unwrap_or_else(|| plan.settings.order()) == Order::Input;
            let crossing = ordered.then(|| RouteTickets::new(plan.most_open()));
            let (meters, queues) = plan.lay_paths(&name, inlets);
            let core = plan.unseen_core(&name);
            let desk = crossing.clone();
            let input = Arc::clone(&made.queue);
            let split = SplitNode { core, input, paths: queues, meters, desk };
            plan.task(split.drive());
            let made = plan.branches_from(paths, &made, ordered);
            let options = StageOptions::new(&format!("{name}/join"));
            let Junction { core, inputs, made } = plan.join(&options, StageKind::Route, made, &out);
            let output = Arc::clone(&made.queue);
            match crossing {
                None => plan.task(
                    MergeNode {
                        core,
                        progress: MergeProgress::same_items(inputs.len()),
                        inputs,
                        output,
                        policy: Box::new(crate::stage::merge::Arrival),
                    }
                    .drive(),
                ),
                Some(crossing) => plan.task(
                    JoinNode {
                        core,
                        waiting: JoinBuffer::new(inputs.len()),
                        paths: inputs,
                        output,
                        crossing,
                        combine: combine_items(),
                        whole: false,
                    }
                    .drive(),
                ),
            }
            made
        })
    }
}

/// Ways for the elements of lists.
impl<T: Send + 'static> PipelineBuilder<Vec<T>> {
    /// Sends the elements of each list down several paths, and puts the list together again in its
    /// order. `router` gives the number of each element's path; each path gets the list of its
    /// elements, also an empty one, and must make as many of them. Where a path drops its part, the
    /// rest of the list goes on without it; a list of which nothing is left does not.
    #[track_caller]
    pub fn route_lists<U: Send + 'static>(
        self,
        options: impl Into<StageOptions>,
        router: impl Fn(&[T]) -> Result<Vec<usize>> + Send + Sync + 'static,
        paths: impl IntoIterator<Item = Path<Vec<T>, Vec<U>>>,
    ) -> PipelineBuilder<Vec<U>> {
        let options = options.into();
        let at = Location::caller();
        let (inlets, paths): (Vec<_>, Vec<_>) = paths.into_iter().map(lay).unzip();
        let mut definition =
            StageDefinition::new::<Vec<T>, Vec<U>>(&options.name, Construct::Route)
                .at(at)
                .with_options(&options)
                .with("lists", Setting::new(Some("in parts"), ""));
        definition.branches = paths.iter().map(PipelineBuilder::part).collect();
        let choose = Map::new(move |items: Vec<T>| Ok((router(&items)?, items)));
        let name = Arc::clone(&options.name);
        let mut routed = self.cpu(options, Construct::Route, &[], move || Ok(choose.clone()));
        routed.stages.pop();
        routed.then(definition, move |plan, made, out: OutputSettings<Vec<U>>| {
            let crossing = RouteTickets::new(plan.most_open());
            let (meters, queues) = plan.lay_paths(&name, inlets);
            let core = plan.unseen_core(&name);
            let desk = Arc::clone(&crossing);
            let input = Arc::clone(&made.queue);
            let split = SplitListNode { core, input, paths: queues, meters, desk };
            plan.task(split.drive());
            let made = plan.branches_from(paths, &made, true);
            let options = StageOptions::new(&format!("{name}/join"));
            let Junction { core, inputs, made } = plan.join(&options, StageKind::Route, made, &out);
            plan.task(
                JoinNode {
                    core,
                    waiting: JoinBuffer::new(inputs.len()),
                    paths: inputs,
                    output: Arc::clone(&made.queue),
                    combine: combine_lists(Arc::clone(&crossing)),
                    whole: true,
                    crossing,
                }
                .drive(),
            );
            made
        })
    }
}

/// The beginning of a path, which is known only when the pipeline is built.
pub(super) type Inlet<T> = Arc<OnceLock<Arc<Queue<T>>>>;

/// Lays a path: where it begins, and its stages.
fn lay<T: Send + 'static, U>(path: Path<T, U>) -> (Inlet<T>, PipelineBuilder<U>) {
    let inlet = Inlet::<T>::default();
    let start = Arc::clone(&inlet);
    let plan = move |plan: &mut Plan, out: OutputSettings<T>| {
        if out.sizer.is_some() {
            let message = "a path without stages has nothing to measure";
            plan.fault(Error::new(ErrorKind::InvalidArgument, message));
        }
        let missing = || Arc::new(Queue::new(1, None));
        let (depth, measured) = plan.inlet;
        BuiltPart { queue: start.get().cloned().unwrap_or_else(missing), depth, measured }
    };
    let builder = PipelineBuilder::starting(None, plan);
    (inlet, (path.0)(builder))
}
