//! `spdl verify-order`: what the saved states of a run's ranks say of the epoch.

use std::ops::Range;

use serde_json::json;
use spdl_core::{OrderAudit, State, StateFile};

use crate::arguments::VerifyOrderArguments;
use crate::failure::Failure;
use crate::format::{count, counted};
use crate::output;

pub(crate) fn run(arguments: &VerifyOrderArguments) -> Result<(), Failure> {
    let mut states = Vec::new();
    for path in &arguments.states {
        let state = StateFile::new(path).load();
        states.push(state.map_err(|error| Failure::of("cannot read a state", &error, path))?);
    }
    let audit = State::audit(states).map_err(|error| {
        Failure::of("the states cannot be compared", &error, &arguments.states[0])
    })?;
    let text = if arguments.json { as_json(&audit) } else { format!("{audit}\n") };
    output::print(&text)?;
    let total = |ranges: &mut dyn Iterator<Item = Range<u64>>| {
        ranges.map(|range| range.end - range.start).sum::<u64>()
    };
    let (missing, repeated) = (total(&mut audit.missing()), total(&mut audit.repeated()));
    let states = counted(arguments.states.len() as u64, "state", "states");
    let wrong = |what: &str, positions: u64| {
        let reason = format!("{} of epoch {} {what}", count(positions), audit.epoch());
        Err(Failure::new("the order is not sound", &states, reason))
    };
    match (repeated, missing) {
        (1.., _) => wrong("were done more than once", repeated),
        (0, 1..) if arguments.complete => wrong("are missing", missing),
        _ => Ok(()),
    }
}

fn as_json(audit: &OrderAudit) -> String {
    let ranges = |ranges: &mut dyn Iterator<Item = Range<u64>>| {
        ranges.map(|range| json!([range.start, range.end])).collect::<Vec<_>>()
    };
    let object = json!({
        "epoch": audit.epoch(),
        "positions": audit.positions(),
        "done": audit.done(),
        "missing": ranges(&mut audit.missing()),
        "repeated": ranges(&mut audit.repeated()),
    });
    format!("{object}\n")
}
