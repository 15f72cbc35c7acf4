//! Stages that call a function (map, filter, flat map), and unbatch.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::stage::{Stage, StageContext};

/// The [`Stage`] that turns each item into one output. Clones share the function.
pub(crate) struct Map<F>(Arc<F>);

/// The [`Stage`] that forwards the items for which a predicate returns `true`.
///
/// Other items are filtered out, which is not a failure. Clones share the predicate.
pub(crate) struct Filter<F>(Arc<F>);

/// The [`Stage`] that turns each item into an iterator of outputs. Clones share the function.
///
/// Each output is forwarded before the iterator is advanced again. An error from the iterator fails
/// the input; earlier outputs are kept.
pub(crate) struct FlatMap<F>(Arc<F>);

macro_rules! clones_share_function {
    ($($stage:ident)*) => { $(
        impl<F> $stage<F> {
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
clones_share_function!(Map Filter FlatMap);

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
            // The iterator may take long to yield the next output.
            cx.flush()?;
        }
        if empty {
            cx.filter_out();
        }
        Ok(())
    }
}

/// The [`Stage`] that emits each element of a list as an item.
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
    fn filter_forwards_matching_items_and_fails_items_whose_predicate_fails() {
        let mut odd = Filter::new(|n: &u32| match n {
            0 => Err(Error::new(ErrorKind::User, "neither odd nor even")),
            n => Ok(n % 2 == 1),
        });
        let (outputs, results) = epoch(&mut odd.clone(), 0..6);
        assert_eq!(outputs, [1, 3, 5]);
        assert!(results[0].is_err() && results[1..].iter().all(Result::is_ok));
        assert_eq!(epoch(&mut odd, [3]).0, [3]);
    }

    #[test]
    fn flat_map_emits_outputs_before_an_error() {
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
    fn flat_map_does_not_advance_the_iterator_after_a_stop() {
        let advanced = Counter::default();
        let counter = advanced.clone();
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
        assert_eq!(advanced.get(), 1);
    }

    #[test]
    fn unbatch_emits_elements_in_order() {
        let lists = [vec![1, 2], vec![], vec![3]];
        assert_eq!(epoch(&mut Unbatch, lists).0, [1, 2, 3]);
    }

    #[test]
    fn clones_of_a_map_share_its_function() {
        let add = Map::new(|n: u32| Ok(n + 1));
        assert_eq!(epoch(&mut add.clone(), [1, 2]).0, [2, 3]);
        assert_eq!(epoch(&mut { add }, [5]).0, [6]);
    }
}
