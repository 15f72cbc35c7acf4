//! `spdl verify`: is every byte as it was written, and every image whole?

use std::sync::Arc;
use std::thread;

use serde_json::json;
use spdl_core::{ErrorKind, PipelineBuilder, Result, Stage, StageContext};
use spdl_media::{CodecRegistry, Decoder, Limits};
use twox_hash::XxHash3_128;

use super::arguments::VerifyArguments;
use super::members::{Bad, Found, Member};
use super::{DataSet, is_image, ls, members};
use crate::failure::Failure;
use crate::format::{bytes, count, counted, printable};
use crate::output;
use crate::progress::Progress;

/// So many that are bad are listed for people, and for programs.
const SHOWN: usize = 1000;
const LISTED: usize = 100_000;

pub(crate) fn run(arguments: &VerifyArguments) -> std::result::Result<(), Failure> {
    let set = Arc::new(DataSet::open(&arguments.paths)?);
    let path = &arguments.paths[0];
    let failed = |error| Failure::of("cannot verify", &error, path);
    let report = check(&set, arguments).map_err(failed)?;
    let shard = |bad: &Bad| match &*set {
        DataSet::Archives { archives, .. } => archives.get(bad.archive).map(ls::name_of),
        DataSet::Images(_) => None,
    };
    if arguments.json {
        let bad = report.bad.iter().map(|bad| {
            json!({
                "shard": shard(bad),
                "key": bad.name.as_ref().map(ToString::to_string),
                "offset": bad.offset,
                "kind": bad.kind.as_str(),
                "reason": bad.reason,
            })
        });
        let object = json!({
            "sound": report.bad_total == 0,
            "archives": report.archives,
            "members": report.members,
            "images": report.images,
            "checksums": report.checksums,
            "bytes": report.bytes,
            "bad": bad.collect::<Vec<_>>(),
            "bad_total": report.bad_total,
        });
        output::print(&format!("{object}\n"))?;
    } else {
        let mut text = String::new();
        for bad in report.bad.iter().take(SHOWN) {
            let places = shard(bad).into_iter().chain(bad.name.as_ref().map(ToString::to_string));
            let place = printable(&places.collect::<Vec<_>>().join(": "));
            let offset =
                bad.offset.map_or(String::new(), |offset| format!(" (at byte {})", count(offset)));
            let reason = printable(&bad.reason);
            text.push_str(&format!("{place}{offset}\n    {}: {reason}\n", bad.kind));
        }
        if report.bad_total > SHOWN as u64 {
            let more = count(report.bad_total - SHOWN as u64);
            text.push_str(&format!("and {more} more (--json lists up to 100,000)\n"));
        }
        text.push_str(&report.told());
        output::print(&text)?;
    }
    match report.bad_total {
        0 => Ok(()),
        1 => Err(Failure::new("not sound", path.display(), "1 thing is bad")),
        bad => {
            Err(Failure::new("not sound", path.display(), format!("{} things are bad", count(bad))))
        }
    }
}

/// What was found.
#[derive(Debug, Default)]
struct Report {
    archives: u64,
    members: u64,
    images: u64,
    checksums: u64,
    bytes: u64,
    /// Not all, where there are many.
    bad: Vec<Bad>,
    bad_total: u64,
}

impl Report {
    fn told(&self) -> String {
        let archives = match self.archives {
            0 => String::new(),
            archives => format!("{}, ", counted(archives, "archive", "archives")),
        };
        format!(
            "{archives}{} ({}): {} compared, {} decoded, {}\n",
            counted(self.members, "member", "members"),
            bytes(self.bytes),
            counted(self.checksums, "checksum", "checksums"),
            counted(self.images, "image", "images"),
            match self.bad_total {
                0 => "all sound".to_owned(),
                bad => format!("{} bad", count(bad)),
            }
        )
    }

    fn add(&mut self, bad: Bad) {
        self.bad_total += 1;
        if self.bad.len() < LISTED {
            self.bad.push(bad);
        }
    }
}

fn check(set: &Arc<DataSet>, arguments: &VerifyArguments) -> Result<Report> {
    let members = match &**set {
        DataSet::Archives { manifest: Some(manifest), .. } => {
            manifest.fields.values().map(|field| field.samples).sum()
        }
        DataSet::Archives { .. } => 0,
        DataSet::Images(images) => spdl_core::Dataset::len(&**images),
    };
    let progress = Progress::new(members, !arguments.json && members > 0);
    let available = || thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.map_or_else(available, |threads| threads as usize);
    let all_are_images = matches!(**set, DataSet::Images(_));
    let pipeline = PipelineBuilder::from_iter(members::all(set))
        .measured_by(|found| match found {
            Found::Member(member) => member.data.len(),
            _ => 0,
        })
        .stage("check", move || {
            let decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
            Ok(Check { decoder, all_are_images })
        })
        .deterministic()
        .threads(threads)
        .build()?;
    let mut report = Report::default();
    // Whether a member of the archive under way is bad.
    let mut seen_bad = false;
    for checked in pipeline {
        match checked? {
            Checked::Member { bytes, is_image, compared, bad } => {
                report.members += 1;
                report.bytes += bytes;
                report.images += u64::from(is_image);
                report.checksums += u64::from(compared);
                seen_bad |= bad.is_some();
                bad.into_iter().for_each(|bad| report.add(bad));
                progress.at(report.members);
            }
            Checked::Bad(bad) => {
                seen_bad = true;
                report.add(bad);
            }
            Checked::End { archive, wrong_sum } => {
                report.archives += 1;
                if wrong_sum && !seen_bad {
                    let reason = "its checksum is wrong, and those of all members are right: the damage \
                                  is in headers, or between members";
                    let kind = ErrorKind::Corrupt;
                    let reason = reason.to_owned();
                    report.add(Bad { archive, name: None, offset: None, kind, reason });
                }
                seen_bad = false;
            }
        }
    }
    Ok(report)
}

enum Checked {
    Member { bytes: u64, is_image: bool, compared: bool, bad: Option<Bad> },
    Bad(Bad),
    End { archive: usize, wrong_sum: bool },
}

/// Compares a member with its checksum, and decodes it where it is an image.
struct Check {
    decoder: Decoder,
    all_are_images: bool,
}

impl Check {
    fn member(&mut self, mut member: Member) -> Checked {
        let data = member.take_data();
        let is_image = self.all_are_images || is_image(member.name.as_bytes());
        let compared = member.sum.is_some();
        let found = XxHash3_128::oneshot(&data);
        let bad = match member.sum {
            Some(sum) if sum != found => Some(Bad {
                archive: member.archive,
                name: Some(member.name),
                offset: member.offset,
                kind: ErrorKind::Corrupt,
                reason: format!("its checksum is {found:032x}, and was {sum:032x}"),
            }),
            _ if is_image => self.decoder.decode_rgb(&data).err().map(|error| {
                let mut bad = Bad::new(member.archive, Some(member.name), &error);
                // Offsets of decoders are those in the member.
                bad.offset =
                    member.offset.map(|start| start + bad.offset.unwrap_or(0)).or(bad.offset);
                bad
            }),
            _ => None,
        };
        Checked::Member { bytes: data.len() as u64, is_image, compared, bad }
    }
}

impl Stage<Found> for Check {
    type Out = Checked;

    fn process(&mut self, found: Found, cx: &mut StageContext<'_, Checked>) -> Result<()> {
        cx.emit(match found {
            Found::Member(member) => self.member(member),
            Found::Bad(bad) => Checked::Bad(bad),
            Found::End { archive, wrong_sum } => Checked::End { archive, wrong_sum },
        })
    }
}
