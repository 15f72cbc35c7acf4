//! Routes: items take different paths and join again.

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

/// A path of [`route`](PipelineBuilder::route), created by [`path`].
pub struct Path<T, U>(Box<dyn FnOnce(PipelineBuilder<T>) -> PipelineBuilder<U> + Send>);

impl<T, U> fmt::Debug for Path<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Path")
    }
}

/// Creates a path of a route from a chain of stages, which may be empty. See
/// [`PipelineBuilder::route`].
pub fn path<T, U, F>(stages: F) -> Path<T, U>
where
    F: FnOnce(PipelineBuilder<T>) -> PipelineBuilder<U> + Send + 'static,
{
    Path(Box::new(stages))
}

/// Routes for items.
impl<T: Send + 'static> PipelineBuilder<T> {
    /// Sends each item to one of several paths. `router` returns the number of the path, counted
    /// from 0.
    ///
    /// With [`Order::Completion`], the default order of a pipeline, the outputs of all paths are
    /// merged as they arrive. With [`Order::Input`], the outputs have the order of their input
    /// items. Each path may emit any number of outputs for an item.
    ///
    /// # Errors
    /// The pipeline ends with `InvalidArgument` if `router` returns a number for which there is no
    /// path. If `router` returns an error, the item fails, and the stage's failure policy decides
    /// whether the pipeline continues.
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
        let (inlets, paths): (Vec<_>, Vec<_>) = paths.into_iter().map(build_path).unzip();
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
            let tickets = ordered.then(|| RouteTickets::new(plan.max_open()));
            let (meters, queues) = plan.build_inlets(&name, inlets);
            let core = plan.hidden_core(&name);
            let split_tickets = tickets.clone();
            let input = Arc::clone(&made.queue);
            let split = SplitNode { core, input, paths: queues, meters, tickets: split_tickets };
            plan.task(split.drive());
            let made = plan.branches_from(paths, &made, ordered);
            let options = StageOptions::new(&format!("{name}/join"));
            let Junction { core, inputs, made } = plan.join(&options, StageKind::Route, made, &out);
            let output = Arc::clone(&made.queue);
            match tickets {
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
                Some(tickets) => plan.task(
                    JoinNode {
                        core,
                        waiting: JoinBuffer::new(inputs.len()),
                        paths: inputs,
                        output,
                        tickets,
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

/// Routes for the elements of lists.
impl<T: Send + 'static> PipelineBuilder<Vec<T>> {
    /// Splits each list over several paths, and joins the results in the original order.
    ///
    /// `router` returns the number of the path for each element, counted from 0. For each input
    /// list, each path receives one list with its elements, which may be empty. The path must emit
    /// one list of the same length. If the failure policy drops the list of a path, the joined list
    /// lacks these elements. An empty joined list is not emitted.
    ///
    /// # Errors
    /// The pipeline ends with `InvalidArgument` in three cases: `router` returns a number for which
    /// there is no path, `router` does not return one number per element, or a path emits a list of
    /// another length.
    #[track_caller]
    pub fn route_lists<U: Send + 'static>(
        self,
        options: impl Into<StageOptions>,
        router: impl Fn(&[T]) -> Result<Vec<usize>> + Send + Sync + 'static,
        paths: impl IntoIterator<Item = Path<Vec<T>, Vec<U>>>,
    ) -> PipelineBuilder<Vec<U>> {
        let options = options.into();
        let at = Location::caller();
        let (inlets, paths): (Vec<_>, Vec<_>) = paths.into_iter().map(build_path).unzip();
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
            let tickets = RouteTickets::new(plan.max_open());
            let (meters, queues) = plan.build_inlets(&name, inlets);
            let core = plan.hidden_core(&name);
            let split_tickets = Arc::clone(&tickets);
            let input = Arc::clone(&made.queue);
            let split =
                SplitListNode { core, input, paths: queues, meters, tickets: split_tickets };
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
                    combine: combine_lists(Arc::clone(&tickets)),
                    whole: true,
                    tickets,
                }
                .drive(),
            );
            made
        })
    }
}

/// First queue of a path, which is created when the pipeline is built.
pub(super) type Inlet<T> = Arc<OnceLock<Arc<Queue<T>>>>;

/// Builds a path: its inlet and its stages.
fn build_path<T: Send + 'static, U>(path: Path<T, U>) -> (Inlet<T>, PipelineBuilder<U>) {
    let inlet = Inlet::<T>::default();
    let start = Arc::clone(&inlet);
    let plan = move |plan: &mut Plan, out: OutputSettings<T>| {
        if out.sizer.is_some() {
            let message = "`measured` follows no stage of its path; add a stage to the path before \
                           `measured`";
            plan.add_error(Error::new(ErrorKind::InvalidArgument, message));
        }
        let missing = || Arc::new(Queue::new(1, None));
        let (depth, measured) = plan.inlet;
        BuiltPart { queue: start.get().cloned().unwrap_or_else(missing), depth, measured }
    };
    let builder = PipelineBuilder::starting(None, plan);
    (inlet, (path.0)(builder))
}
