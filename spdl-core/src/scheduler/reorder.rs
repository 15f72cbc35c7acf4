//! Puts back into input order what was finished in another.

use std::collections::VecDeque;

/// A window over consecutive numbers, of which each is finished once, in any order, and comes out
/// in order.
#[derive(Debug)]
pub(crate) struct Reorder<T> {
    next: u64,
    /// `waiting[i]` is what number `next + i` left, once it is finished.
    waiting: VecDeque<Option<T>>,
}

impl<T> Default for Reorder<T> {
    fn default() -> Self {
        Reorder { next: 0, waiting: VecDeque::new() }
    }
}

impl<T> Reorder<T> {
    /// Whether everything before `number` has come out.
    pub(crate) fn is_next(&self, number: u64) -> bool {
        self.next == number
    }

    /// Keeps what `number` left until its turn.
    pub(crate) fn finish(&mut self, number: u64, value: T) {
        let at = (number - self.next) as usize;
        if self.waiting.len() <= at {
            self.waiting.resize_with(at + 1, || None);
        }
        self.waiting[at] = Some(value);
    }

    /// What the next number left, where it is finished. It stays next until
    /// [`advance`](Self::advance), so that whoever took it can put it down undisturbed.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.waiting.front_mut()?.take()
    }

    /// Moves on by `count` numbers.
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
