//! Spans of the engine's stages, one per item.

use std::time::Instant;

use spdl_core::Hook;
use spdl_core::observe::{ItemInfo, ItemOutcome, StageInfo, StageKind, TuningDecision};

use super::event::{Span, Value};
use super::{is_on, session};

/// Records each item of each stage while a trace session is active.
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
        let full_name = stage.to_string();
        let mut details = vec![
            ("stage", Value::Text(&full_name)),
            ("epoch", Value::Number(item.id.epoch.into())),
            ("index", Value::Number(item.id.index.into())),
        ];
        details.extend(item.key.map(|key| ("key", Value::Text(key))));
        let failure = outcome.result.err().map(|error| error.kind().as_str());
        details.extend(failure.map(|kind| ("failed", Value::Text(kind))));
        let began = outcome.began;
        let span = Span {
            name: short_name(&stage.name),
            kind: kind(stage.kind),
            began,
            ended: began.checked_add(outcome.elapsed).unwrap_or_else(Instant::now),
            details: &details,
        };
        session::write(|events| match stage.kind {
            // One runtime thread processes many such items concurrently, so spans do not nest.
            StageKind::Async => events.async_span(span),
            _ => events.span(span),
        });
    }

    fn tuned(&self, _pipeline: u64, decision: &TuningDecision) {
        if !is_on() {
            return;
        }
        let text = decision.to_string();
        let details = [("decision", Value::Text(&text))];
        let name = match decision.kept {
            None => "setting changed",
            Some(true) => "setting kept",
            Some(false) => "setting reset",
        };
        session::write(|events| events.instant(name, "tuning", &details));
    }
}

fn kind(kind: StageKind) -> &'static str {
    match kind {
        StageKind::Async => "waits",
        StageKind::Fill => "fills batches",
        _ => "computes",
    }
}

/// The stage name without the prefix of pipeline and stage numbers, as in `0:2:decode`.
fn short_name(name: &str) -> &str {
    let mut parts = name.splitn(3, ':');
    let is_number = |part: Option<&str>| {
        part.is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
    };
    match (is_number(parts.next()), is_number(parts.next()), parts.next()) {
        (true, true, Some(rest)) => rest,
        _ => name,
    }
}
