//! `spdl verify`: is every byte as it was written, and every image whole?

use std::sync::Arc;
use std::thread;

use serde_json::json;
use spdl_core::{PipelineBuilder, Result, Stage, StageContext};
use spdl_io::shards::MANIFEST;
use spdl_media::{CodecRegistry, Decoder, Limits};
use twox_hash::XxHash3_128;

use super::arguments::VerifyArguments;
use super::bad::{self, Bad, BadList};
use super::members::{Checksums, End, Found, Member};
use super::{DataSet, members};
use crate::failure::Failure;
use crate::format::{bytes, count, counted, printable, wrap};
use crate::opened::shown;
use crate::output;
use crate::progress::Progress;

/// So many that are bad are listed for people.
const SHOWN: usize = 1000;
/// No line of prose is longer.
const WIDTH: usize = 90;

pub(crate) fn run(arguments: &VerifyArguments) -> std::result::Result<(), Failure> {
    let path = &arguments.paths[0];
    let mut set = DataSet::open(&arguments.paths)?;
    set.look_for_unlisted(path)?;
    let set = Arc::new(set);
    let failed = |error| Failure::of("cannot verify", &error, &shown(&arguments.paths));
    let report = check(&set, arguments).map_err(failed)?;
    if arguments.json {
        let object = json!({
            "sound": report.bad.total() == 0,
            "archives": report.archives,
            "members": report.members,
            "images": report.images,
            "checksums": report.checksums,
            "without_checksums": report.without_checksums,
            "bytes": report.bytes,
            "unseen": report.unseen,
            "archives_without_end": report.lack_ends,
            "bad": report.bad.as_json(&set, usize::MAX),
            "bad_total": report.bad.total(),
        });
        output::print(&format!("{object}\n"))?;
    } else {
        let bad = report.bad.as_text(&set, SHOWN, "100,000");
        output::print(&format!("{bad}{}", report.told()))?;
    }
    match report.bad.total() {
        0 => Ok(()),
        _ => {
            let told = report.bad.sentence(&set, report.known_members, ["is bad", "are bad"]);
            Err(Failure::sentence(format!("not sound: {told}")))
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
    /// Members that there are, also those that could not be read.
    known_members: u64,
    /// Members that there are and that were not come upon,
    unseen: u64,
    /// and archives that end too soon, of which nobody knows how many members they had.
    lack_ends: u64,
    /// Archives that have no checksums,
    without_checksums: u64,
    /// and where those of the first one would be.
    missing: Option<String>,
    bad: BadList,
}

impl Report {
    fn told(&self) -> String {
        let archives = match self.archives {
            0 => String::new(),
            archives => format!("{}, ", counted(archives, "archive", "archives")),
        };
        let outcome = match self.bad.total() {
            // It is told below what that means.
            0 if self.without_checksums > 0 => String::new(),
            0 => ", all sound".to_owned(),
            bad => format!(", {} bad", count(bad)),
        };
        let told = format!(
            "{archives}{} ({}): {} compared, {} decoded{outcome}\n",
            counted(self.members, "member", "members"),
            bytes(self.bytes),
            counted(self.checksums, "checksum", "checksums"),
            counted(self.images, "image", "images"),
        ) + &bad::unseen(self.unseen, self.lack_ends);
        match self.what_cannot_be_seen() {
            Some(limits) => told + &wrap(&limits, WIDTH) + "\n",
            None => told,
        }
    }

    /// That some archives have no checksums, if so.
    fn what_cannot_be_seen(&self) -> Option<String> {
        if self.without_checksums == 0 {
            return None;
        }
        let sound = match (self.bad.total(), self.images) {
            (0, 0) => "every member can be read; ",
            (0, _) => "no image is damaged; ",
            _ => "",
        };
        let Some(missing) = &self.missing else {
            let archives = counted(self.without_checksums, "archive", "archives");
            return Some(format!(
                "{sound}the checksums of {archives} in a store are not compared, so other damage cannot \
                 be seen"
            ));
        };
        let missing = printable(missing);
        let (has, where_it_is) = match (self.without_checksums, self.archives) {
            (1, 1) => ("there are no checksums to compare".to_owned(), "seen"),
            (1, _) => ("1 archive has no checksums to compare".to_owned(), "seen in it"),
            (some, _) => {
                (format!("{} archives have no checksums to compare", count(some)), "seen in them")
            }
        };
        let more = match self.without_checksums {
            1 => "is missing".to_owned(),
            more => format!("and {} more are missing", count(more - 1)),
        };
        Some(format!("{sound}{has} ({missing} {more}), so other damage cannot be {where_it_is}"))
    }
}

fn check(set: &Arc<DataSet>, arguments: &VerifyArguments) -> Result<Report> {
    let samples = match &**set {
        DataSet::Archives { manifest, .. } => {
            manifest.as_ref().map_or(0, |manifest| manifest.samples)
        }
        DataSet::Samples(samples) => samples.len(),
    };
    let progress = Progress::new(samples, !arguments.json && samples > 0);
    let available = || thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.map_or_else(available, |threads| threads as usize);
    let pipeline = PipelineBuilder::from_iter(members::all(set, Checksums::Compared)?)
        .measured_by(|found| match found {
            Found::Member(member) => member.data.len(),
            _ => 0,
        })
        .stage("check", move || {
            let decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
            Ok(Check { decoder })
        })
        .deterministic()
        .threads(threads)
        .build()?;
    let mut report = Report { lack_ends: set.cut_shards(), ..Report::default() };
    if let DataSet::Samples(samples) = &**set {
        report.without_checksums = samples.archives();
    }
    if let DataSet::Archives { archives, unlisted, .. } = &**set {
        for (number, _) in (archives.len()..).zip(unlisted) {
            let reason = format!("{MANIFEST} does not name this archive");
            report.bad.add(Bad::corrupt(number, None, reason));
        }
    }
    let mut begun: u64 = 0;
    // Whether a member of the archive under way is bad.
    let mut seen_bad = false;
    for checked in pipeline {
        match checked? {
            Checked::Sample => {
                progress.at(begun);
                begun += 1;
            }
            Checked::Member { bytes, is_image, compared, bad } => {
                report.members += 1;
                report.bytes += bytes;
                report.images += u64::from(is_image);
                report.checksums += u64::from(compared);
                seen_bad |= bad.is_some();
                bad.into_iter().for_each(|bad| report.bad.add(bad));
            }
            Checked::Bad(bad) => {
                seen_bad = true;
                report.bad.add(bad);
            }
            Checked::End(End {
                archive,
                was_read,
                wrong_sum,
                lacks_sums,
                members,
                unseen,
                lacks_end,
            }) => {
                report.unseen += unseen;
                report.lack_ends += u64::from(lacks_end);
                report.archives += u64::from(was_read);
                report.known_members += members;
                if wrong_sum && !seen_bad {
                    let reason = "its checksum is wrong, and those of all members are right: the damage \
                                  is in headers, or between members";
                    report.bad.add(Bad::corrupt(archive, None, reason));
                }
                if lacks_sums {
                    report.without_checksums += 1;
                    let sums = || set.archive_name(archive).map(|name| format!("{name}.sums"));
                    report.missing = report.missing.take().or_else(sums);
                }
                seen_bad = false;
            }
        }
    }
    Ok(report)
}

enum Checked {
    Sample,
    Member { bytes: u64, is_image: bool, compared: bool, bad: Option<Bad> },
    Bad(Bad),
    End(End),
}

/// Compares a member with its checksum, and decodes it where it is an image.
struct Check {
    decoder: Decoder,
}

impl Check {
    fn member(&mut self, mut member: Member) -> Checked {
        let data = member.take_data();
        let is_image = member.is_image;
        let compared = member.sum.is_some();
        let found = XxHash3_128::oneshot(&data);
        let wrong_sum = member.sum.filter(|sum| *sum != found).map(|sum| {
            let reason = format!("its checksum is {found:032x}, and was {sum:032x}");
            let mut bad = Bad::corrupt(member.archive, Some(member.name.clone()), reason);
            bad.offset = member.offset;
            bad
        });
        let bad = member.bad.or(wrong_sum).or_else(|| {
            let error = is_image.then(|| self.decoder.decode_rgb(&data).err())??;
            Some(Bad::in_member(member.archive, member.name, member.offset, &error))
        });
        Checked::Member { bytes: data.len() as u64, is_image, compared, bad }
    }
}

impl Stage<Found> for Check {
    type Out = Checked;

    fn process(&mut self, found: Found, cx: &mut StageContext<'_, Checked>) -> Result<()> {
        cx.emit(match found {
            Found::Sample => Checked::Sample,
            Found::Member(member) => self.member(member),
            Found::Bad(bad) => Checked::Bad(bad),
            Found::End(end) => Checked::End(end),
        })
    }
}
