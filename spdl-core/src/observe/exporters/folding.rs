//! Repeated failures, folded: the first few are told, and then only how many more there were.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::ErrorKind;

/// So many failures of a sort are told one by one,
const TOLD_SINGLY: u64 = 5;
/// and then each one whose number is a multiple of this.
const REMINDER: u64 = 100;
/// More sorts than this are not told apart.
const SORTS: usize = 256;
/// More characters of a message do not count for what sort it is.
const MESSAGE_CHARS: usize = 120;

/// What to do with a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    /// Tell it.
    Print {
        /// How many of this sort there have been, this one included.
        count: u64,
        /// How many of them were hidden since the last that was told.
        hidden: u64,
    },
    /// Do not tell it.
    Hide,
}

/// Decides which failures are told. Two are of a sort where they have the same stage, kind and
/// message, numbers in it aside. The memory it takes does not grow with their number.
#[derive(Debug, Default)]
pub(crate) struct RepeatFolder {
    sorts: HashMap<Sort, u64>,
    /// Failures of all sorts for which there was no place.
    others: u64,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Sort {
    stage: Arc<str>,
    kind: ErrorKind,
    message: String,
}

impl RepeatFolder {
    /// Counts a failure and says whether to tell it. `stage` must be unlike that of any other
    /// pipeline whose failures are counted here.
    pub(crate) fn seen(&mut self, stage: &Arc<str>, kind: ErrorKind, message: &str) -> Fold {
        let sort = Sort { stage: Arc::clone(stage), kind, message: without_numbers(message) };
        let full = self.sorts.len() >= SORTS;
        let count = match self.sorts.get_mut(&sort) {
            Some(count) => count,
            None if full => &mut self.others,
            None => self.sorts.entry(sort).or_default(),
        };
        *count += 1;
        fold(*count)
    }

    /// Forgets the failures of a stage that has ended; says how many were hidden since the last of
    /// their sort was told.
    pub(crate) fn forget(&mut self, stage: &str) -> u64 {
        let mut hidden = 0;
        self.sorts.retain(|sort, count| {
            let goes = *sort.stage == *stage;
            if goes {
                hidden += hidden_since_last(*count);
            }
            !goes
        });
        hidden
    }
}

fn fold(count: u64) -> Fold {
    if count <= TOLD_SINGLY {
        Fold::Print { count, hidden: 0 }
    } else if count.is_multiple_of(REMINDER) {
        Fold::Print { count, hidden: hidden_since_last(count - 1) }
    } else {
        Fold::Hide
    }
}

fn hidden_since_last(count: u64) -> u64 {
    let last_told = if count < REMINDER { TOLD_SINGLY } else { count - count % REMINDER };
    count.saturating_sub(last_told)
}

/// The start of a message with `#` for each number in it.
fn without_numbers(message: &str) -> String {
    let mut text = String::new();
    let mut in_number = false;
    for char in message.chars().take(MESSAGE_CHARS) {
        if !char.is_ascii_digit() {
            text.push(char);
        } else if !in_number {
            text.push('#');
        }
        in_number = char.is_ascii_digit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode() -> Arc<str> {
        "decode".into()
    }

    #[test]
    fn five_are_told_and_then_each_hundredth() {
        let mut folder = RepeatFolder::default();
        let told: Vec<(u64, u64)> = (1..=250)
            .filter_map(|n| {
                match folder.seen(&decode(), ErrorKind::Corrupt, &format!("marker {n} is wrong")) {
                    Fold::Print { count, hidden } => {
                        assert_eq!(count, n);
                        Some((count, hidden))
                    }
                    Fold::Hide => None,
                }
            })
            .collect();
        assert_eq!(told, [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (100, 94), (200, 99)]);
        assert_eq!(folder.forget("decode"), 50);
        assert_eq!(folder.forget("decode"), 0);
    }

    #[test]
    fn another_stage_kind_or_message_is_another_sort() {
        let mut folder = RepeatFolder::default();
        for _ in 0..50 {
            folder.seen(&decode(), ErrorKind::Corrupt, "no image");
        }
        assert_eq!(folder.seen(&decode(), ErrorKind::Corrupt, "no image"), Fold::Hide);
        let first = Fold::Print { count: 1, hidden: 0 };
        assert_eq!(folder.seen(&"fetch".into(), ErrorKind::Corrupt, "no image"), first);
        assert_eq!(folder.seen(&decode(), ErrorKind::Truncated, "no image"), first);
        assert_eq!(folder.seen(&decode(), ErrorKind::Corrupt, "no colour"), first);
    }

    #[test]
    fn what_is_forgotten_is_told_anew_and_leaves_other_stages_alone() {
        let mut folder = RepeatFolder::default();
        for _ in 0..10 {
            folder.seen(&decode(), ErrorKind::Io, "broken");
            folder.seen(&"fetch".into(), ErrorKind::Io, "broken");
        }
        assert_eq!(folder.forget("decode"), 5);
        let first = Fold::Print { count: 1, hidden: 0 };
        assert_eq!(folder.seen(&decode(), ErrorKind::Io, "broken"), first);
        assert_eq!(folder.seen(&"fetch".into(), ErrorKind::Io, "broken"), Fold::Hide);
    }

    #[test]
    fn many_different_messages_take_constant_memory_and_are_folded() {
        let mut folder = RepeatFolder::default();
        let letters = |mut n: u32| {
            let mut text = String::new();
            while n > 0 {
                text.push(char::from(b'a' + (n % 26) as u8));
                n /= 26;
            }
            text + "-" + &"x".repeat(10_000)
        };
        let told = (0..20_000)
            .filter(|&n| folder.seen(&decode(), ErrorKind::User, &letters(n)) != Fold::Hide)
            .count();
        assert_eq!(folder.sorts.len(), SORTS);
        assert!(folder.sorts.keys().all(|sort| sort.message.len() <= MESSAGE_CHARS));
        let others = 20_000 - SORTS as u64;
        assert_eq!(folder.others, others);
        assert_eq!(told as u64, SORTS as u64 + TOLD_SINGLY + others / REMINDER);
    }

    #[test]
    fn numbers_in_a_message_do_not_count() {
        assert_eq!(without_numbers("row 12 of 3x4"), "row # of #x#");
        assert_eq!(without_numbers("größer als 7²"), "größer als #²");
    }

    proptest! {
        #[test]
        fn what_is_told_and_what_was_hidden_add_up(total in 0u64..2_000) {
            let mut folder = RepeatFolder::default();
            let mut sum = 0;
            for _ in 0..total {
                if let Fold::Print { hidden, .. } = folder.seen(&decode(), ErrorKind::Io, "") {
                    sum += 1 + hidden;
                }
            }
            prop_assert_eq!(sum + folder.forget("decode"), total);
        }
    }
}
