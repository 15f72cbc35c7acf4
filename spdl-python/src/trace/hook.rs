//! What the engine's stages do, item by item.

use std::time::Instant;

use spdl_core::Hook;
use spdl_core::observe::{ItemInfo, ItemOutcome, StageInfo, StageKind};

use super::line::{Span, Value};
use super::{is_on, session};

/// Tells of each item of each stage, while there is a session.
#[derive(Debug)]
pub(crate) struct StageHook;

impl Hook for StageHook {
    fn wants_items(&self) -> bool {
        is_on()
    }

    fn after_item(&self, stage: &StageInfo, item: &ItemInfo<'_>, outcome: ItemOutcome<'_>) {
        if !is_on() {
            return;
        }
        let in_full = stage.to_string();
        let mut details = vec![
            ("stage", Value::Text(&in_full)),
            ("epoch", Value::Number(item.id.epoch.into())),
            ("index", Value::Number(item.id.index.into())),
        ];
        details.extend(item.key.map(|key| ("key", Value::Text(key))));
        let failure = outcome.result.err().map(|error| error.kind().as_str());
        details.extend(failure.map(|kind| ("failed", Value::Text(kind))));
        let began = outcome.began;
        let span = Span {
            name: short(&stage.name),
            kind: kind(stage.kind),
            began,
            ended: began.checked_add(outcome.elapsed).unwrap_or_else(Instant::now),
            details: &details,
        };
        session::write(|line| match stage.kind {
            // One thread has many of them under way.
            StageKind::Async => line.span_beside(span),
            _ => line.span(span),
        });
    }
}

fn kind(kind: StageKind) -> &'static str {
    match kind {
        StageKind::Async => "waits",
        StageKind::Fill => "fills batches",
        _ => "computes",
    }
}

/// The name without the numbers of pipeline and stage, which Python's stages have in front.
fn short(name: &str) -> &str {
    let mut parts = name.splitn(3, ':');
    let is_number = |part: Option<&str>| {
        part.is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
    };
    match (is_number(parts.next()), is_number(parts.next()), parts.next()) {
        (true, true, Some(rest)) => rest,
        _ => name,
    }
}
