//! `spdl verify`: is every byte as it was written, and every image whole?

use std::sync::Arc;
use std::thread;

use serde_json::json;
use spdl_core::{PipelineBuilder, Result, Stage, StageContext};
use spdl_io::shards::MANIFEST;
use spdl_media::{CodecRegistry, Decoder, Limits};
use twox_hash::XxHash3_128;

use super::arguments::VerifyArguments;
use super::rescue;
use crate::datasets::address::shown;
use crate::inspection::data_set::DataSet;
use crate::inspection::defect::Defect;
use crate::inspection::defect_list::{self, DefectList};
use crate::inspection::open;
use crate::inspection::scan::{self, ChecksumMode};
use crate::inspection::scan_item::{ArchiveEnd, Member, ScanItem};
use crate::ui::failure::Failure;
use crate::ui::format::{bytes, count, counted, printable, wrap};
use crate::ui::progress::Progress;
use crate::ui::stdout;

/// So many that are bad are listed for people.
const SHOWN: usize = 1000;
/// No line of prose is longer.
const WIDTH: usize = 90;

pub(crate) fn run(arguments: &VerifyArguments) -> std::result::Result<(), Failure> {
    let mut set = open::open_whole(&arguments.paths)?;
    set.look_for_manifests()?;
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
            "by_manifest": report.by_manifest,
            "without_checksums": report.without_checksums,
            "bytes": report.bytes,
            "unseen": report.unseen,
            "archives_without_end": report.lack_ends,
            "bad": report.bad.as_json(&set, usize::MAX),
            "bad_total": report.bad.total(),
        });
        stdout::print(&format!("{object}\n"))?;
    } else {
        let bad = report.bad.as_text(&set, SHOWN, "100,000");
        let rescue = rescue::advice(&arguments.paths, report.bad.total(), report.images);
        stdout::print(&format!("{bad}{}{rescue}", report.told()))?;
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
    /// Archives of which a manifest tells size and checksum.
    by_manifest: u64,
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
    bad: DefectList,
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
        ) + &self.manifests()
            + &defect_list::unseen(self.unseen, self.lack_ends);
        match self.what_cannot_be_seen() {
            Some(limits) => told + &wrap(&limits, WIDTH) + "\n",
            None => told,
        }
    }

    /// How many archives were compared with a manifest.
    fn manifests(&self) -> String {
        match (self.by_manifest, self.archives) {
            (_, 0) => String::new(),
            (0, _) => format!(
                "no {MANIFEST} beside them was compared: an archive that is missing is not noticed\n"
            ),
            (some, all) if some >= all => {
                format!("{MANIFEST} was compared: the size and checksum of each archive\n")
            }
            (some, all) => format!(
                "{MANIFEST} was compared: size and checksum of {} of {} archives\n",
                count(some),
                count(all)
            ),
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
        let missing = printable(self.missing.as_deref().unwrap_or("SHARD.tar.sums"));
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
    let mut progress = Reading::begin(set, !arguments.json);
    let available = || thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.map_or_else(available, |threads| threads as usize);
    let pipeline = PipelineBuilder::from_iter(scan::scan(set, ChecksumMode::Compared)?)
        .measured_by(|found| match found {
            ScanItem::Member(member) => member.data.len(),
            _ => 0,
        })
        .stage("check", move || {
            let decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
            Ok(CheckStage { decoder })
        })
        .deterministic()
        .threads(threads)
        .build()?;
    let mut report = Report { lack_ends: set.cut_shards(), ..Report::default() };
    if let DataSet::Archives { archives, unlisted, .. } = &**set {
        for (number, _) in (archives.len()..).zip(unlisted) {
            let reason = format!("{MANIFEST} does not name this archive");
            report.bad.add(Defect::corrupt(number, None, reason));
        }
    }
    // Whether a member of the archive under way is bad.
    let mut seen_bad = false;
    for checked in pipeline {
        match checked? {
            Checked::Sample => progress.sample(),
            Checked::Member { bytes, is_image, compared, bad } => {
                progress.member(bytes);
                report.members += 1;
                report.bytes += bytes;
                report.images += u64::from(is_image);
                report.checksums += u64::from(compared);
                seen_bad |= bad.is_some();
                bad.into_iter().for_each(|bad| report.bad.add(bad));
            }
            Checked::Defect(bad) => {
                seen_bad = true;
                report.bad.add(bad);
            }
            Checked::End(ArchiveEnd {
                archive,
                was_read,
                wrong_sum,
                by_manifest,
                lacks_sums,
                members,
                unseen,
                lacks_end,
            }) => {
                progress.end(archive);
                report.unseen += unseen;
                report.lack_ends += u64::from(lacks_end);
                report.archives += u64::from(was_read);
                report.by_manifest += u64::from(was_read && by_manifest);
                report.known_members += members;
                if wrong_sum && !seen_bad {
                    let reason = "its checksum is wrong, and those of all members are right: the damage \
                                  is in headers, or between members";
                    report.bad.add(Defect::corrupt(archive, None, reason));
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

/// How far the pass has come: in bytes of archives, where all tell their sizes, or else in samples.
struct Reading {
    bar: Progress,
    done: u64,
    /// Where each archive ends, if all were one behind the other; empty where samples are counted.
    ends: Vec<u64>,
}

impl Reading {
    fn begin(set: &DataSet, wanted: bool) -> Self {
        let of_samples = |samples: u64| Reading {
            bar: Progress::new(samples, wanted && samples > 0),
            done: 0,
            ends: Vec::new(),
        };
        let archives = match set {
            DataSet::Archives { archives, .. } => archives,
            DataSet::Samples(samples) => return of_samples(samples.len()),
        };
        let mut end = 0;
        let ends: Option<Vec<u64>> = archives
            .iter()
            .map(|archive| {
                end += archive.size()?;
                Some(end)
            })
            .collect();
        match ends {
            Some(ends) => {
                Reading { bar: Progress::of_bytes(end, wanted && end > 0), done: 0, ends }
            }
            None => of_samples(0),
        }
    }

    fn sample(&mut self) {
        if self.ends.is_empty() {
            self.bar.at(self.done);
            self.done += 1;
        }
    }

    fn member(&mut self, bytes: u64) {
        if !self.ends.is_empty() {
            // With its header.
            self.done += bytes + 512;
            self.bar.at(self.done);
        }
    }

    fn end(&mut self, archive: usize) {
        if let Some(&end) = self.ends.get(archive) {
            self.done = end;
            self.bar.at(end);
        }
    }
}

enum Checked {
    Sample,
    Member { bytes: u64, is_image: bool, compared: bool, bad: Option<Defect> },
    Defect(Defect),
    End(ArchiveEnd),
}

/// Compares a member with its checksum, and decodes it where it is an image.
struct CheckStage {
    decoder: Decoder,
}

impl CheckStage {
    fn member(&mut self, mut member: Member) -> Checked {
        let data = member.take_data();
        let is_image = member.is_image;
        let compared = member.sum.is_some();
        let found = XxHash3_128::oneshot(&data);
        let wrong_sum = member.sum.filter(|sum| *sum != found).map(|sum| {
            let reason = format!("its checksum is {found:032x}, and was {sum:032x}");
            let mut bad = Defect::corrupt(member.archive, Some(member.name.clone()), reason);
            bad.offset = member.offset;
            bad
        });
        let bad = member.bad.or(wrong_sum).or_else(|| {
            let error = is_image.then(|| self.decoder.decode_rgb(&data).err())??;
            Some(Defect::in_member(member.archive, member.name, member.offset, &error))
        });
        Checked::Member { bytes: data.len() as u64, is_image, compared, bad }
    }
}

impl Stage<ScanItem> for CheckStage {
    type Out = Checked;

    fn process(&mut self, found: ScanItem, cx: &mut StageContext<'_, Checked>) -> Result<()> {
        cx.emit(match found {
            ScanItem::Sample => Checked::Sample,
            ScanItem::Member(member) => self.member(member),
            ScanItem::Defect(bad) => Checked::Defect(bad),
            ScanItem::End(end) => Checked::End(end),
        })
    }
}
