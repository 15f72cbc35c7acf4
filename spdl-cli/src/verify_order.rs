//! `spdl verify-order`: what the saved states of a run's ranks say of the epoch.

use std::ops::Range;

use serde_json::json;
use spdl_core::{OrderAudit, State};

use crate::arguments::VerifyOrderArguments;
use crate::failure::Failure;
use crate::format::{count, counted};
use crate::output;
use crate::saving;

/// So many ranges are in the JSON object: ranks that are far apart leave millions.
const MOST_RANGES: usize = 10_000;

pub(crate) fn run(arguments: &VerifyOrderArguments) -> Result<(), Failure> {
    let states = arguments.states.iter().map(|path| saving::read("cannot read a state", path));
    let audit = State::audit(states.collect::<Result<Vec<_>, _>>()?).map_err(|error| {
        Failure::of("the states cannot be compared", &error, &arguments.states[0])
    })?;
    let text = if arguments.json { as_json(&audit) } else { format!("{audit}\n") };
    output::print(&text)?;
    let states = counted(arguments.states.len() as u64, "state", "states");
    let wrong = |what: &str, positions: u64| {
        let reason = format!("{} of epoch {} {what}", count(positions), audit.epoch());
        Err(Failure::new("the order is not sound", &states, reason))
    };
    match (audit.repeated_count(), audit.missing_count()) {
        (repeated @ 1.., _) => wrong("were done more than once", repeated),
        // The epoch that was looked for is the one before.
        (0, missing @ 1..) if arguments.complete && !audit.is_between_epochs() => {
            wrong("are missing", missing)
        }
        _ => Ok(()),
    }
}

fn as_json(audit: &OrderAudit) -> String {
    let ranges = |ranges: &mut dyn Iterator<Item = Range<u64>>| {
        let ranges = ranges.take(MOST_RANGES).map(|range| json!([range.start, range.end]));
        ranges.collect::<Vec<_>>()
    };
    let ahead = audit.ahead().iter().map(|(rank, epoch)| json!({"rank": rank, "epoch": epoch}));
    let object = json!({
        "epoch": audit.epoch(),
        "positions": audit.positions(),
        "done": audit.done(),
        "missing": ranges(&mut audit.missing()),
        "repeated": ranges(&mut audit.repeated()),
        "missing_positions": audit.missing_count(),
        "repeated_positions": audit.repeated_count(),
        "remainder": ranges(&mut audit.remainder()),
        "ahead": ahead.collect::<Vec<_>>(),
        "ended": audit.is_between_epochs(),
    });
    format!("{object}\n")
}
