//! `spdl verify-order`: finds missing and repeated samples of an epoch in the checkpoints of all
//! ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use spdl_core::resume::OrderAudit;
use spdl_core::source::RangeRun;
use spdl_core::{Shard, State};

use super::checkpoint_files;
use crate::ui::failure::Failure;
use crate::ui::format::counted;
use crate::ui::stdout;

/// Maximum number of entries for ranges in the JSON object.
const MAX_ENTRIES: usize = 10_000;
/// Maximum number of ranges that are read to make these entries: if one rank is far ahead of
/// another, there may be millions of ranges.
const MAX_RANGES: usize = 1 << 20;
/// Maximum number of ranks in a message.
const MAX_RANKS_LISTED: usize = 8;

/// Finds samples of an epoch that are missing or processed twice, from the checkpoints of all ranks
///
/// Each file is the checkpoint of one rank. `spdl bench --save-state` writes such files, and so do
/// `StateFile` and `StateSaver` in Rust. Positions refer to the order of the epoch over all ranks,
/// counted from 0.
///
/// During an epoch some positions are always missing: the positions that are not yet processed.
/// If the ranks are in different epochs, the earliest epoch is audited; a rank in a later epoch has
/// processed all its positions of the audited epoch. If all ranks have completed an epoch and no
/// rank has begun the next epoch, the completed epoch is reported as complete.
///
/// It is an error if the checkpoints belong to different runs (different seed, data set or order).
/// After a change of the world size, give only the checkpoints of the new ranks: they include the
/// positions that the old ranks processed.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  spdl verify-order rank0.state rank1.state
  spdl verify-order --complete runs/7/*.state
      after an epoch: also fail if a position or a rank is missing

Keys of the JSON object:
  epoch      counted from 0
  positions  number of positions of the epoch; null if unknown
  done       number of positions whose samples were processed
  missing    [[start, end], ...] or [[start, end, step], ...]: ranges of positions that no rank has
             done; with `step`, every `step`th position from `start`; `end` is exclusive; the first
             10,000 ranges
  repeated   ranges, as in `missing`, of positions that were done more than once
  missing_positions, repeated_positions
             number of positions in all ranges
  remainder  ranges of the last positions, which no rank processes, because they do not divide
             evenly among the ranks; they do not count as missing
  ahead      [{rank, epoch}], one entry for each rank in a later epoch
  ended      true if all ranks have completed epoch - 1 and no rank has begun `epoch`
  over       true if `ended` is true and the checkpoints are of a `spdl bench` run that has no
             further epochs
  absent_ranks
             number of ranks whose checkpoint is not on the command line

Exit codes:
  0  no position was processed twice; with --complete, also no position and no rank is missing
  1  a position was processed twice; with --complete, a position or a rank is missing; a file cannot
     be read or is corrupt; or the checkpoints are of different runs; standard error gives the
     reason in one line
  2  invalid command line")]
pub(crate) struct VerifyOrderArguments {
    /// Checkpoint files of all ranks
    #[arg(value_name = "STATE", required = true)]
    pub(crate) states: Vec<PathBuf>,

    /// Also fail if the checkpoint of a rank is missing, or if positions are missing
    ///
    /// If all ranks have completed an epoch and none has begun the next epoch, missing positions of
    /// the next epoch are not an error.
    #[arg(long)]
    pub(crate) complete: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(arguments: &VerifyOrderArguments) -> Result<(), Failure> {
    let paths = &arguments.states;
    let states = paths.iter().map(|path| checkpoint_files::read("cannot read a checkpoint", path));
    let states = states.collect::<Result<Vec<_>, _>>()?;
    check_same_run(paths, &states)?;
    let shards = states.iter().map(|state| state.shard().unwrap_or_default());
    let divisions = Divisions::new(paths, shards);
    let all_complete = states.iter().all(checkpoint_files::is_complete);
    let audit = State::audit(states)
        .map_err(|error| Failure::of("cannot compare the checkpoints", &error, &paths[0]))?;
    let over = all_complete && audit.is_between_epochs();
    let absent = divisions.absent();
    let summary = match audit.epoch() {
        epoch @ 1.. if over => {
            format!("epoch {}, the last epoch of the run, is complete", epoch - 1)
        }
        _ => audit.to_string(),
    };
    let text = match &absent {
        _ if arguments.json => as_json(&audit, over, absent.as_ref()),
        Some(absent) => format!("{summary}\n{}: their positions are unknown\n", absent.describe()),
        None => format!("{summary}\n"),
    };
    stdout::print(&text)?;
    let checkpoints = counted(paths.len() as u64, "checkpoint", "checkpoints");
    let inconsistent = |what: &str, positions: u64, hint: &str| {
        let positions = counted(positions, "position", "positions");
        let reason = format!("{positions} of epoch {} {what}{hint}", audit.epoch());
        Err(Failure::new("the audit failed", &checkpoints, reason))
    };
    match (audit.repeated_count(), audit.missing_count()) {
        (repeated @ 1.., _) => inconsistent("done more than once", repeated, &divisions.hint()),
        // If all ranks are between two epochs, the audited epoch has not begun yet.
        (0, missing @ 1..) if arguments.complete && !audit.is_between_epochs() => {
            inconsistent("missing", missing, &divisions.hint())
        }
        _ if arguments.complete
            && let Some(absent) = absent =>
        {
            Err(Failure::new(
                "cannot determine whether the epoch is complete",
                &checkpoints,
                absent.describe(),
            ))
        }
        _ => Ok(()),
    }
}

/// Fails if the checkpoints differ in seed or source, which determine the order. Differences in the
/// stages are ignored.
fn check_same_run(paths: &[PathBuf], states: &[State]) -> Result<(), Failure> {
    let order = |state: &State| -> BTreeMap<String, String> {
        let parts = state.fingerprint().iter().filter(|(part, _)| part.starts_with("source "));
        let parts = parts.map(|(part, value)| (part.clone(), value.clone()));
        parts.chain([("seed".to_owned(), state.seed().to_string())]).collect()
    };
    let Some(first) = states.first().map(order) else { return Ok(()) };
    for (path, other) in paths.iter().zip(states.iter().map(order)) {
        let parts: BTreeSet<_> = first.keys().chain(other.keys()).collect();
        let shown = |value: Option<&String>| value.map_or("absent", String::as_str).to_owned();
        let differ = parts.into_iter().filter(|part| first.get(*part) != other.get(*part));
        let differ = differ.map(|part| {
            format!("{part} is {} and {}", shown(first.get(part)), shown(other.get(part)))
        });
        let differ: Vec<_> = differ.collect();
        if !differ.is_empty() {
            let files = format!("{} and {}", paths[0].display(), path.display());
            let what = "the checkpoints are of different runs";
            return Err(Failure::new(what, files, differ.join("; ")));
        }
    }
    Ok(())
}

/// The ranks of the given checkpoints, grouped by world size and remainder.
struct Divisions(Vec<(Shard, BTreeMap<u64, Vec<String>>)>);

impl Divisions {
    fn new(paths: &[PathBuf], shards: impl Iterator<Item = Shard>) -> Self {
        let mut divisions: Vec<(Shard, BTreeMap<u64, Vec<String>>)> = Vec::new();
        for (path, shard) in paths.iter().zip(shards) {
            let is_same = |of: &Shard| {
                (of.world(), checkpoint_files::remainder_of(*of))
                    == (shard.world(), checkpoint_files::remainder_of(shard))
            };
            let at = divisions.iter().position(|(of, _)| is_same(of)).unwrap_or_else(|| {
                divisions.push((shard, BTreeMap::new()));
                divisions.len() - 1
            });
            let path = path.display().to_string();
            divisions[at].1.entry(shard.rank()).or_default().push(path);
        }
        Divisions(divisions)
    }

    /// The ranks without a checkpoint, if all checkpoints have the same world size and remainder.
    fn absent(&self) -> Option<AbsentRanks> {
        let [(shard, given)] = &self.0[..] else { return None };
        let count = shard.world() - given.len() as u64;
        let ranks = (0..shard.world()).filter(|rank| !given.contains_key(rank));
        let first = ranks.take(MAX_RANKS_LISTED).collect();
        (count > 0).then_some(AbsentRanks { count, first, world: shard.world() })
    }

    /// Possible reasons for repeated or missing positions; empty if there are none.
    fn hint(&self) -> String {
        let mut hint = String::new();
        if self.0.len() > 1 {
            let groups = self.0.iter().map(|(shard, ranks)| {
                let files: Vec<_> = ranks.values().flatten().map(String::as_str).collect();
                let ranks = counted(shard.world(), "rank", "ranks");
                format!(
                    "{} are of {ranks}, {}",
                    files.join(" "),
                    checkpoint_files::remainder_of(*shard)
                )
            });
            hint.push_str("; the checkpoints differ in world size or remainder: ");
            hint.push_str(&groups.collect::<Vec<_>>().join("; "));
            hint.push_str("; give only the most recent ones");
        }
        for (shard, ranks) in &self.0 {
            if let Some((rank, files)) = ranks.iter().find(|(_, files)| files.len() > 1) {
                let files = files.join(" and ");
                hint.push_str(&format!("; rank {rank} of {} is in {files}", shard.world()));
            }
        }
        hint
    }
}

/// Ranks without a checkpoint.
struct AbsentRanks {
    count: u64,
    /// The first [`MAX_RANKS_LISTED`] of the ranks without a checkpoint.
    first: Vec<u64>,
    world: u64,
}

impl AbsentRanks {
    fn describe(&self) -> String {
        let AbsentRanks { count, first, world } = self;
        let names: Vec<String> = first.iter().map(u64::to_string).collect();
        let more = if *count > first.len() as u64 { " …" } else { "" };
        let ranks = if *count == 1 { "rank" } else { "ranks" };
        format!("no checkpoint given for {ranks} {}{more} of {world}", names.join(", "))
    }
}

fn as_json(audit: &OrderAudit, over: bool, absent: Option<&AbsentRanks>) -> String {
    let ahead = audit.ahead().iter().map(|(rank, epoch)| json!({"rank": rank, "epoch": epoch}));
    let object = json!({
        "epoch": audit.epoch(),
        "positions": audit.positions(),
        "done": audit.done(),
        "missing": entries(audit.missing()),
        "repeated": entries(audit.repeated()),
        "missing_positions": audit.missing_count(),
        "repeated_positions": audit.repeated_count(),
        "remainder": entries(audit.remainder()),
        "ahead": ahead.collect::<Vec<_>>(),
        "ended": audit.is_between_epochs(),
        "over": over,
        "absent_ranks": absent.map_or(0, |absent| absent.count),
    });
    format!("{object}\n")
}

/// Ranges of positions as `[start, end]`, and periodic ranges as `[start, end, step]`.
fn entries(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Value> {
    let entries = RangeRun::of(ranges.take(MAX_RANGES)).flat_map(|run| {
        let Range { start, end } = run.first();
        let (rest, step, count) = (run.end() - end, run.step(), run.count());
        // Choose the form with fewer entries.
        let one_by_one = count == 1 || end - start > count;
        (0..if one_by_one { count } else { end - start }).map(move |at| match one_by_one {
            true => json!([start + at * step, end + at * step]),
            false => json!([start + at, start + at + rest + 1, step]),
        })
    });
    entries.take(MAX_ENTRIES).collect()
}
