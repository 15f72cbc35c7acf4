//! Stages that the builder makes of functions: map, filter, flat map, and lists taken apart.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::stage::{Stage, StageContext};

/// The [`Stage`] that turns each item into one other. Clones share the function.
///
/// Unlike [`stage_fn`](crate::stage::stage_fn), it needs no factory of its own: `move || Ok(map.clone())`.
pub(crate) struct Map<F>(Arc<F>);

/// The [`Stage`] that lets only the items pass for which a predicate holds. Clones share it.
///
/// What is filtered out is neither a failure nor reported.
pub(crate) struct Filter<F>(Arc<F>);

/// The [`Stage`] that turns each item into any number of others: a generator. Clones share the
/// function.
///
/// Each item that the iterator yields goes on at once, before the next one is asked for. An error
/// that it yields is the failure of the input; what it yielded before has gone on.
pub(crate) struct FlatMap<F>(Arc<F>);

macro_rules! shares_its_function {
    ($($stage:ident)*) => { $(
        impl<F> $stage<F> {
            /// The stage that calls `function`.
            pub(crate) fn new(function: F) -> Self {
                $stage(Arc::new(function))
            }
        }

        impl<F> Clone for $stage<F> {
            fn clone(&self) -> Self {
                $stage(Arc::clone(&self.0))
            }
        }

        impl<F> fmt::Debug for $stage<F> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($stage))
            }
        }
    )* };
}
shares_its_function!(Map Filter FlatMap);

impl<In, Out, F> Stage<In> for Map<F>
where
    F: Fn(In) -> Result<Out> + Send + Sync + 'static,
    Out: Send + 'static,
{
    type Out = Out;

    fn process(&mut self, item: In, cx: &mut StageContext<'_, Out>) -> Result<()> {
        cx.emit((self.0)(item)?)
    }
}

impl<T, F> Stage<T> for Filter<F>
where
    T: Send + 'static,
    F: Fn(&T) -> Result<bool> + Send + Sync + 'static,
{
    type Out = T;

    fn process(&mut self, item: T, cx: &mut StageContext<'_, T>) -> Result<()> {
        if (self.0)(&item)? {
            return cx.emit(item);
        }
        cx.filter_out();
        Ok(())
    }
}

impl<In, Out, I, F> Stage<In> for FlatMap<F>
where
    F: Fn(In) -> I + Send + Sync + 'static,
    I: IntoIterator<Item = Result<Out>>,
    Out: Send + 'static,
{
    type Out = Out;

    fn process(&mut self, item: In, cx: &mut StageContext<'_, Out>) -> Result<()> {
        let mut empty = true;
        for output in (self.0)(item) {
            cx.emit(output?)?;
            empty = false;
            // The next one may be long in coming.
            cx.flush()?;
        }
        if empty {
            cx.filter_out();
        }
        Ok(())
    }
}

/// The [`Stage`] that takes lists apart: each element of an item becomes an item.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unbatch;

impl<In> Stage<In> for Unbatch
where
    In: IntoIterator,
    In::Item: Send + 'static,
{
    type Out = In::Item;

    fn process(&mut self, item: In, cx: &mut StageContext<'_, In::Item>) -> Result<()> {
        let mut elements = item.into_iter().peekable();
        if elements.peek().is_none() {
            cx.filter_out();
        }
        elements.try_for_each(|element| cx.emit(element))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::source::sample::SampleId;
    use crate::stage::{TestOutlet, epoch};
    use crate::sync::Counter;

    #[test]
    fn a_filter_passes_what_holds_and_fails_what_cannot_be_judged() {
        let mut odd = Filter::new(|n: &u32| match n {
            0 => Err(Error::new(ErrorKind::User, "zero is odd enough")),
            n => Ok(n % 2 == 1),
        });
        let (outputs, results) = epoch(&mut odd.clone(), 0..6);
        assert_eq!(outputs, [1, 3, 5]);
        assert!(results[0].is_err() && results[1..].iter().all(Result::is_ok));
        assert_eq!(epoch(&mut odd, [3]).0, [3]);
    }

    #[test]
    fn a_generators_items_go_on_before_its_error() {
        let mut stage = FlatMap::new(|n: u32| {
            (0..n).map(|i| match i {
                2 => Err(Error::new(ErrorKind::Corrupt, "two")),
                i => Ok(i),
            })
        });
        let (outputs, results) = epoch(&mut stage, [2, 5, 0]);
        assert_eq!(outputs, [0, 1, 0, 1]);
        assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(results[0].is_ok() && results[2].is_ok());
    }

    #[test]
    fn a_generator_is_not_asked_for_more_once_the_pipeline_stops() {
        let asked = Counter::default();
        let counter = asked.clone();
        let mut stage = FlatMap::new(move |(): ()| {
            let counter = counter.clone();
            std::iter::repeat_with(move || {
                counter.add(1);
                Ok(0)
            })
        });
        let mut outlet = TestOutlet { stopped: true, ..TestOutlet::default() };
        let result = outlet.run(SampleId::default(), |cx| stage.process((), cx));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Stopped);
        assert_eq!(asked.get(), 1);
    }

    #[test]
    fn lists_come_apart_in_order() {
        let lists = [vec![1, 2], vec![], vec![3]];
        assert_eq!(epoch(&mut Unbatch, lists).0, [1, 2, 3]);
    }

    #[test]
    fn a_map_shares_its_function() {
        let add = Map::new(|n: u32| Ok(n + 1));
        assert_eq!(epoch(&mut add.clone(), [1, 2]).0, [2, 3]);
        assert_eq!(epoch(&mut { add }, [5]).0, [6]);
    }
}
