//! Scans a data set and prints its statistics.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use spdl_core::{PipelineBuilder, Result, Stage, StageContext};
use spdl_io::Key;
use spdl_media::{CodecRegistry, Decoder, Limits, Size};

use super::arguments::StatArguments;
use super::previews::Previews;
use super::report;
use super::statistics::{ImageFacts, Spread, Summary, measures};
use super::thumbnails::Thumbnails;
use super::timed::{self, Timed, TimedFile};
use crate::commands::options::worker_threads;
use crate::datasets::address::shown;
use crate::datasets::extensions::MediaType;
use crate::inspection::data_set::DataSet;
use crate::inspection::defect::Defect;
use crate::inspection::defect_list::{self, DefectList};
use crate::inspection::media::{AudioFacts, AudioInspector, VideoFacts, VideoInspector};
use crate::inspection::open;
use crate::inspection::scan::{self, ChecksumMode};
use crate::inspection::scan_item::{ArchiveEnd, Member, ScanItem};
use crate::ui::failure::Failure;
use crate::ui::format::{bytes, count, measured, percent, printable};
use crate::ui::html::file::ReportFile;
use crate::ui::stdout;
use crate::ui::table::Table;

/// Maximum number of classes in the text output.
const CLASSES_SHOWN: usize = 40;
/// Maximum number of defects in the text output.
const SHOWN: usize = 20;
/// Maximum number of defects in JSON and on the HTML page.
const LISTED: usize = 1000;
pub(crate) fn run(arguments: &StatArguments) -> std::result::Result<(), Failure> {
    let page = arguments.html.as_deref().map(ReportFile::prepare).transpose()?;
    let set = Arc::new(open::open_archives(&arguments.paths)?);
    let place = shown(&arguments.paths);
    let ScanResult { summary, unreadable, known_members, thumbnails, previews } =
        scan_all(&set, arguments, page.is_some())
            .map_err(|error| Failure::of("cannot read the data set", &error, &place))?;
    let classes = summary.classes(set.classes());
    if let Some(page) = page {
        let name = place.display().to_string();
        let listed = unreadable
            .first(LISTED)
            .map(|defect| [defect.location(&set), defect.describe()])
            .collect();
        let sheets = report::Sheets::new(thumbnails.into_sheet(), previews.into_sheets());
        page.write(&report::data_set(&name, &summary, &classes, listed, &sheets))?;
    }
    let text = match arguments.json {
        true => {
            let listed = unreadable.as_json(&set, LISTED);
            format!("{}\n", as_json(&summary, &classes, listed))
        }
        false => {
            let listed = unreadable.as_text(&set, SHOWN, "1,000");
            let title = if listed.is_empty() { "" } else { "\nunreadable:\n" };
            let unseen = defect_list::unseen(summary.unseen, summary.ends_missing);
            format!("{}{title}{listed}{unseen}", as_text(&summary, &classes))
        }
    };
    stdout::print(&text)?;
    match unreadable.total() {
        0 => Ok(()),
        _ => {
            let verb = ["cannot be read"; 2];
            Err(Failure::sentence(unreadable.summary(&set, known_members, verb)))
        }
    }
}

/// What the header of a media file states.
enum Facts {
    Image(&'static str, ImageFacts),
    Audio(AudioFacts),
    Video(VideoFacts),
}

/// A member, and the facts of a media file.
struct InspectedMember {
    field: String,
    name: Key,
    data: Bytes,
    label: Option<i64>,
    facts: Option<std::result::Result<Facts, Defect>>,
}

/// The output of [`InspectStage`].
enum Inspected {
    Sample,
    Member(Box<InspectedMember>),
    Defect(Defect),
    End(ArchiveEnd),
}

/// The stage that reads the headers of media files.
struct InspectStage {
    registry: CodecRegistry,
    decoder: Decoder,
    audio: AudioInspector,
    video: VideoInspector,
}

impl InspectStage {
    fn image(&mut self, data: &[u8]) -> Result<(&'static str, ImageFacts)> {
        let format = self.registry.find(data)?.name();
        let Size { width, height } = self.decoder.inspect(data)?.upright_size();
        Ok((format, ImageFacts { width, height, bytes: data.len() as u64 }))
    }

    fn facts(&mut self, media: MediaType, data: &[u8]) -> Result<Facts> {
        match media {
            MediaType::Image => self.image(data).map(|(format, facts)| Facts::Image(format, facts)),
            MediaType::Audio => self.audio.facts(data).map(Facts::Audio),
            MediaType::Video => self.video.facts(data).map(Facts::Video),
        }
    }
}

impl Stage<ScanItem> for InspectStage {
    type Out = Inspected;

    fn process(&mut self, found: ScanItem, cx: &mut StageContext<'_, Inspected>) -> Result<()> {
        cx.emit(match found {
            ScanItem::Sample => Inspected::Sample,
            ScanItem::Member(member) => {
                let Member { archive, field, media, name, offset, data, label, .. } = member;
                let facts = media.map(|media| {
                    self.facts(media, &data)
                        .map_err(|error| Defect::in_member(archive, name.clone(), offset, &error))
                });
                Inspected::Member(Box::new(InspectedMember { field, name, data, label, facts }))
            }
            ScanItem::Defect(defect) => Inspected::Defect(defect),
            ScanItem::End(end) => Inspected::End(end),
        })
    }
}

/// The result of the scan.
#[derive(Debug, Default)]
struct ScanResult {
    summary: Summary,
    unreadable: DefectList,
    /// Number of members in all archives, as far as it is known, including unreadable members.
    known_members: u64,
    thumbnails: Thumbnails,
    previews: Previews,
}

fn scan_all(set: &Arc<DataSet>, arguments: &StatArguments, with_sheet: bool) -> Result<ScanResult> {
    let pipeline = PipelineBuilder::from_iter(scan::scan(set, ChecksumMode::Ignored)?)
        .measured_by(|found| match found {
            ScanItem::Member(member) => member.data.len(),
            _ => 0,
        })
        .stage("inspect", move || {
            let registry = CodecRegistry::with_defaults();
            let decoder = Decoder::new(&registry, &Limits::default());
            let (audio, video) = (AudioInspector::new(), VideoInspector::new());
            Ok(InspectStage { registry, decoder, audio, video })
        })
        .measured_by(|seen: &Inspected| match seen {
            Inspected::Member(looked) => looked.data.len(),
            _ => 0,
        })
        .deterministic()
        .threads(worker_threads(arguments.threads))
        .build()?;
    let mut gathered = ScanResult::default();
    gathered.summary.ends_missing = set.truncated_shards();
    for seen in pipeline {
        let ScanResult { summary, unreadable, known_members, thumbnails, previews } = &mut gathered;
        let looked = match seen? {
            Inspected::Member(looked) => looked,
            Inspected::Sample => {
                summary.samples += 1;
                continue;
            }
            Inspected::Defect(defect) => {
                unreadable.add(defect);
                continue;
            }
            Inspected::End(end) => {
                *known_members += end.members;
                summary.unseen += end.unseen;
                summary.ends_missing += u64::from(end.end_missing);
                continue;
            }
        };
        let size = looked.data.len() as u64;
        summary.members += 1;
        summary.bytes += size;
        let of_field = summary.fields.entry(looked.field).or_default();
        *of_field = (of_field.0 + 1, of_field.1 + size);
        if let Some(class) = looked.label {
            *summary.classes.entry(class).or_default() += 1;
        }
        match looked.facts {
            Some(Ok(Facts::Image(format, facts))) => {
                *summary.formats.entry(format.to_owned()).or_default() += 1;
                summary.images.push(facts);
                if with_sheet {
                    thumbnails.offer(&looked.name, &looked.data);
                }
            }
            Some(Ok(Facts::Audio(facts))) => {
                if with_sheet {
                    previews.offer_audio(&looked.name, &looked.data, facts.caption());
                }
                summary.audio.push(TimedFile { name: looked.name.to_string(), facts });
            }
            Some(Ok(Facts::Video(facts))) => {
                if with_sheet {
                    previews.offer_video(&looked.name, &looked.data, facts.caption());
                }
                summary.videos.push(TimedFile { name: looked.name.to_string(), facts });
            }
            Some(Err(defect)) => unreadable.add(defect),
            None => {}
        }
    }
    gathered.summary.unreadable = gathered.unreadable.total();
    Ok(gathered)
}

type Classes = [(i64, Option<String>, u64)];

fn as_json(summary: &Summary, classes: &Classes, unreadable: Vec<Value>) -> Value {
    let fields = summary.fields.iter().map(|(name, (members, bytes))| {
        (name.clone(), json!({"members": members, "bytes": bytes}))
    });
    let mut object = json!({
        "samples": summary.samples,
        "members": summary.members,
        "bytes": summary.bytes,
        "fields": fields.collect::<serde_json::Map<_, _>>(),
        "formats": summary.formats,
        "unreadable": summary.unreadable,
        "unseen": summary.unseen,
        "archives_without_end": summary.ends_missing,
    });
    for (name, values, _) in measures(summary) {
        object[name] = Spread::of(&values).map_or(Value::Null, Spread::as_json);
    }
    object["audio"] = timed::as_json(&summary.audio);
    object["video"] = timed::as_json(&summary.videos);
    let classes = classes
        .iter()
        .map(|(class, name, samples)| json!({"class": class, "name": name, "samples": samples}));
    object["classes"] = classes.collect();
    object["unreadable_members"] = unreadable.into();
    object
}

fn as_text(summary: &Summary, classes: &Classes) -> String {
    let mut parts = vec![
        report::overview(summary)
            .into_iter()
            .map(|(name, value)| format!("{name:<14}{value}"))
            .collect::<Vec<_>>()
            .join("\n"),
    ];
    let mut fields = Table::new(&["field", "members", "bytes", "mean"], 1);
    for (name, (members, size)) in &summary.fields {
        let mean = size / members.max(&1);
        fields.add([printable(name), count(*members), bytes(*size), bytes(mean)]);
    }
    parts.push(fields.draw());
    if !summary.images.is_empty() {
        let mut formats = Table::new(&["format", "images", "share"], 1);
        for (name, images) in &summary.formats {
            let share = *images as f64 / summary.images.len() as f64;
            formats.add([name.clone(), count(*images), percent(share)]);
        }
        parts.push(formats.draw());
        let mut spreads = Table::new(&["images", "min", "p10", "p50", "p90", "max", "mean"], 1);
        for (name, values, show) in measures(summary) {
            if let Some(spread) = Spread::of(&values) {
                let mut row = vec![name.replace("image_", "")];
                row.extend(spread.values().map(show));
                spreads.add(row);
            }
        }
        parts.push(spreads.draw());
    }
    parts.extend(timed::as_text(&summary.audio));
    parts.extend(timed::as_text(&summary.videos));
    if classes.is_empty() {
        parts.push("no sample has a class".to_owned());
    } else {
        let mut table = Table::new(&["class", "name", "samples"], 2);
        for (class, name, samples) in classes.iter().take(CLASSES_SHOWN) {
            let name = printable(name.as_deref().unwrap_or_default());
            table.add([class.to_string(), name, count(*samples)]);
        }
        let more = classes.len().saturating_sub(CLASSES_SHOWN);
        let more = if more > 0 {
            format!("\nand {} more (--json lists all)", count(more as u64))
        } else {
            String::new()
        };
        let mean = summary.samples as f64 / classes.len() as f64;
        parts.push(format!("{}{more}\nmean {} samples per class", table.draw(), measured(mean)));
    }
    parts.join("\n\n") + "\n"
}
