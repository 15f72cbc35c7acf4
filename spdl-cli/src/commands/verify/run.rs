//! Verifies checksums, decodes images, audio and video, and prints the result.

use std::sync::Arc;

use serde_json::json;
use spdl_core::{PipelineBuilder, Result, Stage, StageContext};
use spdl_io::shards::MANIFEST;
use twox_hash::XxHash3_128;

use super::arguments::VerifyArguments;
use super::rescue;
use crate::commands::options::worker_threads;
use crate::datasets::address::shown;
use crate::datasets::extensions::MediaType;
use crate::inspection::data_set::DataSet;
use crate::inspection::defect::Defect;
use crate::inspection::defect_list::{self, DefectList};
use crate::inspection::media::{CheckDepth, MediaChecker};
use crate::inspection::open;
use crate::inspection::scan::{self, ChecksumMode};
use crate::inspection::scan_item::{ArchiveEnd, Member, ScanItem};
use crate::ui::failure::Failure;
use crate::ui::format::{bytes, count, counted, printable, wrap};
use crate::ui::progress::Progress;
use crate::ui::stdout;

/// Maximum number of defects in the text output.
const SHOWN: usize = 1000;
/// The width of wrapped text, in characters.
const WIDTH: usize = 90;

pub(crate) fn run(arguments: &VerifyArguments) -> std::result::Result<(), Failure> {
    let mut set = open::open_archives(&arguments.paths)?;
    set.attach_manifests()?;
    let set = Arc::new(set);
    let failed = |error| Failure::of("cannot verify", &error, &shown(&arguments.paths));
    let report = check(&set, arguments).map_err(failed)?;
    if arguments.json {
        let object = json!({
            "sound": report.defects.total() == 0,
            "archives": report.archives,
            "members": report.members,
            "images": report.images,
            "audio": report.audio,
            "videos": report.videos,
            "checksums": report.checksums,
            "by_manifest": report.by_manifest,
            "without_checksums": report.without_checksums,
            "bytes": report.bytes,
            "unseen": report.unseen,
            "archives_without_end": report.ends_missing,
            "bad": report.defects.as_json(&set, usize::MAX),
            "bad_total": report.defects.total(),
        });
        stdout::print(&format!("{object}\n"))?;
    } else {
        let defects = report.defects.as_text(&set, SHOWN, "100,000");
        let rescue = match report.defects.are_all_unsupported() {
            // This build cannot check the samples, so packing them would skip them.
            true => String::new(),
            false => rescue::advice(&arguments.paths, report.defects.total(), report.has_media),
        };
        stdout::print(&format!("{defects}{}{rescue}", report.describe(arguments.quick)))?;
    }
    match report.defects.total() {
        0 => Ok(()),
        _ => {
            let verb = ["is invalid", "are invalid"];
            let summary = report.defects.summary(&set, report.known_members, verb);
            Err(Failure::sentence(format!("verification failed: {summary}")))
        }
    }
}

/// The result of a verification.
#[derive(Debug, Default)]
struct Report {
    archives: u64,
    members: u64,
    /// Number of images without defects.
    images: u64,
    audio: u64,
    videos: u64,
    /// Whether any member is an image, audio or video, with or without defects.
    has_media: bool,
    checksums: u64,
    /// Number of archives whose size and checksum a manifest lists.
    by_manifest: u64,
    bytes: u64,
    /// Number of members in all archives, as far as it is known, including unreadable members.
    known_members: u64,
    /// Number of members that are known to exist but were not read.
    unseen: u64,
    /// Number of damaged or truncated archives whose number of members is unknown.
    ends_missing: u64,
    /// Number of archives without checksums of their members.
    without_checksums: u64,
    /// The name of the first missing checksum file.
    missing: Option<String>,
    defects: DefectList,
}

impl Report {
    /// Number of images, audio files and videos without defects.
    fn media(&self) -> u64 {
        self.images + self.audio + self.videos
    }

    fn count_media(&mut self, media: Option<MediaType>) {
        match media {
            Some(MediaType::Image) => self.images += 1,
            Some(MediaType::Audio) => self.audio += 1,
            Some(MediaType::Video) => self.videos += 1,
            None => {}
        }
    }

    fn describe(&self, is_quick: bool) -> String {
        let archives = match self.archives {
            0 => String::new(),
            archives => format!("{}, ", counted(archives, "archive", "archives")),
        };
        let outcome = match self.defects.total() {
            // `limitations` prints a separate line for this case.
            0 if self.without_checksums > 0 => String::new(),
            0 => ", all valid".to_owned(),
            defects => format!(", {}", counted(defects, "defect", "defects")),
        };
        let text = format!(
            "{archives}{} ({}): {} compared, {} {}{outcome}\n",
            counted(self.members, "member", "members"),
            bytes(self.bytes),
            counted(self.checksums, "checksum", "checksums"),
            self.decoded(),
            if is_quick { "inspected" } else { "decoded" },
        ) + &self.manifests()
            + &defect_list::unseen(self.unseen, self.ends_missing);
        match self.limitations() {
            Some(limitations) => text + &wrap(&limitations, WIDTH) + "\n",
            None => text,
        }
    }

    /// `3 images, 1 audio file and 2 videos`; images are always counted if there is nothing else.
    fn decoded(&self) -> String {
        let mut kinds = Vec::new();
        if self.images > 0 || self.media() == 0 {
            kinds.push(counted(self.images, "image", "images"));
        }
        if self.audio > 0 {
            kinds.push(counted(self.audio, "audio file", "audio files"));
        }
        if self.videos > 0 {
            kinds.push(counted(self.videos, "video", "videos"));
        }
        kinds.join(", ")
    }

    /// A line about the archives that were compared with a manifest.
    fn manifests(&self) -> String {
        match (self.by_manifest, self.archives) {
            (_, 0) => String::new(),
            (0, _) => format!("no {MANIFEST} was found, so a missing archive cannot be detected\n"),
            (some, all) if some >= all => {
                format!("compared with {MANIFEST}: size and checksum of each archive\n")
            }
            (some, all) => format!(
                "compared with {MANIFEST}: size and checksum of {} of {} archives\n",
                count(some),
                count(all)
            ),
        }
    }

    /// A line about archives without checksums, if there are any.
    fn limitations(&self) -> Option<String> {
        if self.without_checksums == 0 {
            return None;
        }
        let valid = match (self.defects.total(), self.media()) {
            (0, 0) => "all members are readable; ",
            (0, media) if media == self.images => "all images are valid; ",
            (0, _) => "all media files are valid; ",
            _ => "",
        };
        let missing = printable(self.missing.as_deref().unwrap_or("SHARD.tar.sums"));
        let (checksums, location) = match (self.without_checksums, self.archives) {
            (1, 1) => ("there are no checksums".to_owned(), ""),
            (1, _) => ("1 archive has no checksums".to_owned(), " in it"),
            (some, _) => (format!("{} archives have no checksums", count(some)), " in them"),
        };
        let more = match self.without_checksums {
            1 => "is missing".to_owned(),
            more => format!("and {} more are missing", count(more - 1)),
        };
        Some(format!(
            "{valid}{checksums} ({missing} {more}), so other damage{location} cannot be detected"
        ))
    }
}

fn check(set: &Arc<DataSet>, arguments: &VerifyArguments) -> Result<Report> {
    let mut progress = ScanProgress::begin(set, !arguments.json);
    let depth = if arguments.quick { CheckDepth::Headers } else { CheckDepth::Decoded };
    let pipeline = PipelineBuilder::from_iter(scan::scan(set, ChecksumMode::Compared)?)
        .measured_by(|found| match found {
            ScanItem::Member(member) => member.data.len(),
            _ => 0,
        })
        .stage("check", move || Ok(CheckStage { checker: MediaChecker::new(), depth }))
        .deterministic()
        .threads(worker_threads(arguments.threads))
        .build()?;
    let mut report = Report { ends_missing: set.truncated_shards(), ..Report::default() };
    if let DataSet::Archives { archives, unlisted, .. } = &**set {
        for (number, _) in (archives.len()..).zip(unlisted) {
            let reason = format!("{MANIFEST} does not list this archive");
            report.defects.add(Defect::corrupt(number, None, reason));
        }
    }
    // Whether the current archive has a defect so far.
    let mut seen_defect = false;
    for checked in pipeline {
        match checked? {
            Checked::Sample => progress.sample(),
            Checked::Member { bytes, media, compared, defect } => {
                progress.member(bytes);
                report.members += 1;
                report.bytes += bytes;
                report.has_media |= media.is_some();
                if defect.is_none() {
                    report.count_media(media);
                }
                report.checksums += u64::from(compared);
                seen_defect |= defect.is_some();
                defect.into_iter().for_each(|defect| report.defects.add(defect));
            }
            Checked::Defect(defect) => {
                seen_defect = true;
                report.defects.add(defect);
            }
            Checked::End(ArchiveEnd {
                archive,
                was_read,
                wrong_sum,
                by_manifest,
                sums_missing,
                members,
                unseen,
                end_missing,
            }) => {
                progress.end(archive);
                report.unseen += unseen;
                report.ends_missing += u64::from(end_missing);
                report.archives += u64::from(was_read);
                report.by_manifest += u64::from(was_read && by_manifest);
                report.known_members += members;
                if wrong_sum && !seen_defect {
                    let reason = "the checksum of the archive is wrong, but the checksums of all members \
                                  are correct: a header or padding is damaged";
                    report.defects.add(Defect::corrupt(archive, None, reason));
                }
                if sums_missing {
                    report.without_checksums += 1;
                    let sums = || set.archive_name(archive).map(|name| format!("{name}.sums"));
                    report.missing = report.missing.take().or_else(sums);
                }
                seen_defect = false;
            }
        }
    }
    Ok(report)
}

/// The progress of the scan: in bytes if the sizes of all archives are known, otherwise in samples.
struct ScanProgress {
    bar: Progress,
    done: u64,
    /// The cumulative sizes of the archives; empty if samples are counted.
    ends: Vec<u64>,
}

impl ScanProgress {
    fn begin(set: &DataSet, wanted: bool) -> Self {
        let of_samples = |samples: u64| ScanProgress {
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
                ScanProgress { bar: Progress::of_bytes(end, wanted && end > 0), done: 0, ends }
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
            // The size includes the header of the member.
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
    Member { bytes: u64, media: Option<MediaType>, compared: bool, defect: Option<Defect> },
    Defect(Defect),
    End(ArchiveEnd),
}

/// The stage that compares a member with its checksum, and decodes media files.
struct CheckStage {
    checker: MediaChecker,
    depth: CheckDepth,
}

impl CheckStage {
    fn member(&mut self, mut member: Member) -> Checked {
        let data = member.take_data();
        let media = member.media;
        let compared = member.sum.is_some();
        let found = XxHash3_128::oneshot(&data);
        let wrong_sum = member.sum.filter(|sum| *sum != found).map(|sum| {
            let reason = format!("checksum mismatch: {found:032x}, expected {sum:032x}");
            let mut defect = Defect::corrupt(member.archive, Some(member.name.clone()), reason);
            defect.offset = member.offset;
            defect
        });
        let defect = member.defect.or(wrong_sum).or_else(|| {
            let error = self.checker.check(media?, &data, self.depth).err()?;
            Some(Defect::in_member(member.archive, member.name, member.offset, &error))
        });
        Checked::Member { bytes: data.len() as u64, media, compared, defect }
    }
}

impl Stage<ScanItem> for CheckStage {
    type Out = Checked;

    fn process(&mut self, found: ScanItem, cx: &mut StageContext<'_, Checked>) -> Result<()> {
        cx.emit(match found {
            ScanItem::Sample => Checked::Sample,
            ScanItem::Member(member) => self.member(member),
            ScanItem::Defect(defect) => Checked::Defect(defect),
            ScanItem::End(end) => Checked::End(end),
        })
    }
}
