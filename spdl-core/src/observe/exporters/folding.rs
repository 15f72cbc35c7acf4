//! Rate limit for log messages of repeated failures.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::ErrorKind;

/// The first failures of a group, up to this number, are logged.
const LOGGED_FIRST: u64 = 5;
/// Later failures are logged if their number in the group is a multiple of this constant.
const LOGGED_EVERY: u64 = 100;
/// Maximum number of groups. All failures beyond these groups form one additional group.
const MAX_GROUPS: usize = 256;
/// Maximum number of characters of a message that distinguish groups.
const MESSAGE_CHARS: usize = 120;

/// Whether to log a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    Print {
        /// Number of failures in the group, including this one.
        count: u64,
        /// Number of failures in the group that were hidden since the last logged one.
        hidden: u64,
    },
    Hide,
}

/// Decides which failures are logged, in constant memory.
///
/// Failures with the same stage, kind and message form a group. Messages count as the same message
/// if their first [`MESSAGE_CHARS`] characters differ only in numbers.
#[derive(Debug, Default)]
pub(crate) struct RepeatFolder {
    groups: HashMap<FailureGroup, u64>,
    /// Number of failures in all groups above [`MAX_GROUPS`].
    others: u64,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct FailureGroup {
    stage: Arc<str>,
    kind: ErrorKind,
    message: String,
}

impl RepeatFolder {
    /// Counts a failure and decides whether to log it. `stage` must be unique among all pipelines.
    pub(crate) fn record(&mut self, stage: &Arc<str>, kind: ErrorKind, message: &str) -> Fold {
        let message = without_numbers(message);
        let group = FailureGroup { stage: Arc::clone(stage), kind, message };
        let full = self.groups.len() >= MAX_GROUPS;
        let count = match self.groups.get_mut(&group) {
            Some(count) => count,
            None if full => &mut self.others,
            None => self.groups.entry(group).or_default(),
        };
        *count += 1;
        fold(*count)
    }

    /// Removes the groups of an ended stage; returns the number of failures hidden since the last
    /// logged one of each group. Failures beyond [`MAX_GROUPS`] groups are not included.
    pub(crate) fn remove_stage(&mut self, stage: &str) -> u64 {
        let mut hidden = 0;
        self.groups.retain(|group, count| {
            let ended = *group.stage == *stage;
            if ended {
                hidden += hidden_since_last(*count);
            }
            !ended
        });
        hidden
    }
}

fn fold(count: u64) -> Fold {
    if count <= LOGGED_FIRST {
        Fold::Print { count, hidden: 0 }
    } else if count.is_multiple_of(LOGGED_EVERY) {
        Fold::Print { count, hidden: hidden_since_last(count - 1) }
    } else {
        Fold::Hide
    }
}

fn hidden_since_last(count: u64) -> u64 {
    let last_logged = match count < LOGGED_EVERY {
        true => LOGGED_FIRST,
        false => count - count % LOGGED_EVERY,
    };
    count.saturating_sub(last_logged)
}

/// The first [`MESSAGE_CHARS`] characters of a message, with each number replaced by `#`.
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
    fn the_first_five_and_every_hundredth_failure_are_logged() {
        let mut folder = RepeatFolder::default();
        let logged: Vec<(u64, u64)> = (1..=250)
            .filter_map(|n| {
                match folder.record(&decode(), ErrorKind::Corrupt, &format!("marker {n} is wrong"))
                {
                    Fold::Print { count, hidden } => {
                        assert_eq!(count, n);
                        Some((count, hidden))
                    }
                    Fold::Hide => None,
                }
            })
            .collect();
        assert_eq!(logged, [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (100, 94), (200, 99)]);
        assert_eq!(folder.remove_stage("decode"), 50);
        assert_eq!(folder.remove_stage("decode"), 0);
    }

    #[test]
    fn stage_kind_and_message_distinguish_groups() {
        let mut folder = RepeatFolder::default();
        for _ in 0..50 {
            folder.record(&decode(), ErrorKind::Corrupt, "no image");
        }
        assert_eq!(folder.record(&decode(), ErrorKind::Corrupt, "no image"), Fold::Hide);
        let first = Fold::Print { count: 1, hidden: 0 };
        assert_eq!(folder.record(&"fetch".into(), ErrorKind::Corrupt, "no image"), first);
        assert_eq!(folder.record(&decode(), ErrorKind::Truncated, "no image"), first);
        assert_eq!(folder.record(&decode(), ErrorKind::Corrupt, "no colour"), first);
    }

    #[test]
    fn remove_stage_resets_the_groups_of_that_stage_only() {
        let mut folder = RepeatFolder::default();
        for _ in 0..10 {
            folder.record(&decode(), ErrorKind::Io, "broken");
            folder.record(&"fetch".into(), ErrorKind::Io, "broken");
        }
        assert_eq!(folder.remove_stage("decode"), 5);
        let first = Fold::Print { count: 1, hidden: 0 };
        assert_eq!(folder.record(&decode(), ErrorKind::Io, "broken"), first);
        assert_eq!(folder.record(&"fetch".into(), ErrorKind::Io, "broken"), Fold::Hide);
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
        let logged = (0..20_000)
            .filter(|&n| folder.record(&decode(), ErrorKind::User, &letters(n)) != Fold::Hide)
            .count();
        assert_eq!(folder.groups.len(), MAX_GROUPS);
        assert!(folder.groups.keys().all(|group| group.message.len() <= MESSAGE_CHARS));
        let others = 20_000 - MAX_GROUPS as u64;
        assert_eq!(folder.others, others);
        assert_eq!(logged as u64, MAX_GROUPS as u64 + LOGGED_FIRST + others / LOGGED_EVERY);
    }

    #[test]
    fn numbers_in_a_message_are_replaced() {
        assert_eq!(without_numbers("row 12 of 3x4"), "row # of #x#");
        assert_eq!(without_numbers("größer als 7²"), "größer als #²");
    }

    proptest! {
        #[test]
        fn logged_and_hidden_failures_add_up(total in 0u64..2_000) {
            let mut folder = RepeatFolder::default();
            let mut sum = 0;
            for _ in 0..total {
                if let Fold::Print { hidden, .. } = folder.record(&decode(), ErrorKind::Io, "") {
                    sum += 1 + hidden;
                }
            }
            prop_assert_eq!(sum + folder.remove_stage("decode"), total);
        }
    }
}
