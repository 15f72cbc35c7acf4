//! Reorder buffer: results leave in input order.

use std::collections::VecDeque;

/// A reorder buffer for results with consecutive numbers. Each number is finished once, in any
/// order.
#[derive(Debug)]
pub(crate) struct Reorder<T> {
    next: u64,
    /// `waiting[i]` is the result of number `next + i`, once it is finished.
    waiting: VecDeque<Option<T>>,
}

impl<T> Default for Reorder<T> {
    fn default() -> Self {
        Reorder { next: 0, waiting: VecDeque::new() }
    }
}

impl<T> Reorder<T> {
    /// Whether all numbers before `number` have left.
    pub(crate) fn is_next(&self, number: u64) -> bool {
        self.next == number
    }

    /// Stores the result of `number`.
    pub(crate) fn finish(&mut self, number: u64, value: T) {
        let at = (number - self.next) as usize;
        if self.waiting.len() <= at {
            self.waiting.resize_with(at + 1, || None);
        }
        self.waiting[at] = Some(value);
    }

    /// Takes the result of the next number, if it is finished. The number stays the next one until
    /// [`advance`](Self::advance), so that one worker at a time forwards results.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.waiting.front_mut()?.take()
    }

    /// Advances by `count` numbers.
    pub(crate) fn advance(&mut self, count: u64) {
        self.next += count;
        self.waiting.drain(..(count as usize).min(self.waiting.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_order_in_is_input_order_out(numbers in Just((0..40u64).collect::<Vec<_>>()).prop_shuffle()) {
            let mut reorder = Reorder::default();
            let mut out = Vec::new();
            for number in numbers {
                reorder.finish(number, number);
                while let Some(value) = reorder.take() {
                    prop_assert!(reorder.is_next(value));
                    out.push(value);
                    reorder.advance(1);
                }
            }
            prop_assert_eq!(out, (0..40).collect::<Vec<_>>());
        }
    }
}
