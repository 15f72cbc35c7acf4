//! `spdl ls`: lists shards or samples.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde_json::{Map, Value, json};
use spdl_io::archive::{TarEntry, TarIndex, TarKind};
use spdl_io::records::StoredField;
use spdl_io::{Key, StoredRecord};

use super::options::data_help;
use crate::datasets::address::{self, shown};
use crate::datasets::member_name::key_and_field;
use crate::inspection::archive::Archive;
use crate::inspection::data_set::DataSet;
use crate::inspection::open;
use crate::inspection::samples::Samples;
use crate::ui::failure::Failure;
use crate::ui::format::{bytes, count, counted, printable};
use crate::ui::stdout;

/// Lists shards or samples
///
/// Lists the files that hold many samples: tar archives, with or without a manifest of `spdl pack`,
/// and files of other formats. Each line gives the number of samples and bytes of a file. With
/// --samples, lists the samples of these files instead. For a single local archive, a folder of
/// images or a list of files, samples are always listed. In tar archives, consecutive members with
/// the same key are one sample; the key is the name of the member up to the first dot of its last
/// path component.
///
/// Reads no sample data and writes no file.
#[derive(Clone, Debug, Args)]
#[command(after_help = concat!("\
Examples:
  spdl ls shards/                          list the shards
  spdl ls shards/ --samples | wc -l        count the samples
  spdl ls shards/shard-000000.tar --long   list the samples of one shard, with their members
  spdl ls s3://bucket/train/               list the shards in a store

", data_help!(), "\
Keys of the JSON objects, one per line:
  for shards   name, samples, members, bytes, xxh3_128. `bytes` is the file size; for files in
               stores, and for files other than tar, `bytes` is the total size of all fields, null
               if unknown without reading. `xxh3_128` is null without a manifest, and in stores
  for samples  key, shard (null if each sample is a file), fields: {FIELD: {offset, bytes}};
               `offset` is the position of the data in the shard; `offset` and `bytes` are null if
               unknown without reading. Invalid UTF-8 in names is replaced

Exit codes:
  0  success
  1  the data cannot be opened, or a shard or sample cannot be listed; standard error gives the
     reason in one line
  2  invalid command line"))]
pub(crate) struct LsArguments {
    /// The data set: a folder, files, or URLs
    #[arg(value_name = "DATA", required = true, value_parser = address::path_or_url())]
    pub(crate) paths: Vec<PathBuf>,

    /// List the samples instead of the shards
    #[arg(long)]
    pub(crate) samples: bool,

    /// Also print the checksum of each listed shard, if known, or the fields of each listed sample;
    /// with --json, they are always printed
    #[arg(long, short)]
    pub(crate) long: bool,

    /// Print one JSON object per shard or sample, each on one line
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(arguments: &LsArguments) -> Result<(), Failure> {
    match &open::open(&arguments.paths)? {
        DataSet::Archives { archives, manifest, .. } => {
            let one_file = matches!(&arguments.paths[..], [path] if path.is_file());
            let of_samples = arguments.samples || one_file;
            let mut unreadable = Unreadable::default();
            for archive in archives {
                let lines = match of_samples {
                    true => samples(arguments, archive),
                    false => shard(arguments, archive),
                };
                match lines {
                    Ok(lines) => stdout::print(&lines)?,
                    Err(failure) => unreadable.add(failure),
                }
            }
            unreadable.finish(["archive", "archives"])?;
            if of_samples {
                return Ok(());
            }
            match manifest.as_ref().filter(|_| !arguments.json) {
                Some(manifest) => {
                    let shards = counted(manifest.shards.len() as u64, "shard", "shards");
                    let samples = counted(manifest.samples, "sample", "samples");
                    let bytes = bytes(manifest.bytes);
                    stdout::print(&format!("{shards}, {samples}, {bytes}\n"))
                }
                None => Ok(()),
            }
        }
        DataSet::Samples(set) if arguments.samples || set.are_files() => {
            each(arguments, set, |record| stdout::print(&sample(arguments, set, record)))
        }
        DataSet::Samples(set) => objects(arguments, set),
    }
}

/// The number of entries that could not be listed, and the failure of the first such entry.
#[derive(Default)]
struct Unreadable {
    first: Option<Failure>,
    number: u64,
}

impl Unreadable {
    fn add(&mut self, failure: Failure) {
        self.first.get_or_insert(failure);
        self.number += 1;
    }

    /// The first failure, with the number of further failures.
    fn finish(self, [one, many]: [&str; 2]) -> Result<(), Failure> {
        match (self.first, self.number) {
            (None, _) => Ok(()),
            (Some(failure), 0 | 1) => Err(failure),
            (Some(failure), all) => {
                let more = counted(all - 1, one, many);
                Err(failure.and(&format!("in addition, {more} cannot be listed")))
            }
        }
    }
}

/// Calls `print` for each sample record; if records are unreadable, fails after the last record.
fn each(
    arguments: &LsArguments,
    set: &Samples,
    mut print: impl FnMut(&StoredRecord) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut unreadable = Unreadable::default();
    for number in 0..set.len() {
        match set.record(number) {
            Ok(record) => print(&record)?,
            Err(error) => {
                let address = error.key().map(|key| set.opened.set.address_of(key));
                let error = match address {
                    Some(address) => error.renamed(address),
                    None => error,
                };
                unreadable.add(Failure::of("cannot list", &error, &shown(&arguments.paths)));
            }
        }
    }
    unreadable.finish(set.noun())
}

/// Counters of a file or object with several samples.
struct ShardCounts {
    key: Key,
    samples: u64,
    members: u64,
    /// The total size of the fields; `None` if unknown without reading.
    bytes: Option<u64>,
}

/// Prints one line for each file or store object that holds samples, and then, without `--json`,
/// the totals.
fn objects(arguments: &LsArguments, set: &Samples) -> Result<(), Failure> {
    let print_line = |object: &ShardCounts| {
        let name = set.opened.set.address_of(&object.key.to_string());
        let ShardCounts { samples, members, bytes: size, .. } = *object;
        if arguments.json {
            let object = json!({
                "name": name, "samples": samples, "members": members, "bytes": size,
                "xxh3_128": null,
            });
            return stdout::print(&format!("{object}\n"));
        }
        let size = size.map_or(String::new(), |size| format!("  {}", bytes(size)));
        let samples = counted(samples, "sample", "samples");
        stdout::print(&format!("{}  {samples}{size}\n", printable(&name)))
    };
    let (mut last, mut number): (Option<ShardCounts>, u64) = (None, 0);
    let listed = each(arguments, set, |record| {
        let Some(key) = set.shard_of(record) else { return Ok(()) };
        if last.as_ref().is_none_or(|last| last.key != *key) {
            number += 1;
            if let Some(done) = last.replace(ShardCounts {
                key: key.clone(),
                samples: 0,
                members: 0,
                bytes: Some(0),
            }) {
                print_line(&done)?;
            }
        }
        if let Some(object) = &mut last {
            object.samples += 1;
            object.members += record.names().count() as u64;
            let size = size_of_fields(record);
            object.bytes = object.bytes.zip(size).map(|(before, size)| before.saturating_add(size));
        }
        Ok(())
    });
    last.iter().try_for_each(print_line)?;
    if arguments.json || listed.is_err() {
        return listed;
    }
    let samples = counted(set.len(), "sample", "samples");
    stdout::print(&format!("{}, {samples}\n", counted(number, "file", "files")))
}

/// The total size of the fields of a sample; `None` if unknown without reading.
fn size_of_fields(record: &StoredRecord) -> Option<u64> {
    match record.row {
        Some(_) => None,
        None => record.fields.iter().map(|(_, field)| extent_of(field)?.1).sum(),
    }
}

/// The offset and size in bytes of a stored field, if they are known.
fn extent_of(field: &StoredField) -> Option<(Option<u64>, Option<u64>)> {
    match field {
        StoredField::At(extent, _) => {
            Some((extent.range.as_ref().map(|range| range.start), extent.size()))
        }
        _ => None,
    }
}

/// Returns the output lines for a sample.
fn sample(arguments: &LsArguments, set: &Samples, record: &StoredRecord) -> String {
    let of_row = record.row.iter().flat_map(|row| row.group.names());
    let own = record.fields.iter().map(|(name, field)| (name, extent_of(field)));
    let fields = own.chain(of_row.map(|name| (name, None)));
    let fields = fields.map(|(name, place)| (name, place.unwrap_or_default()));
    let key = Key::from_bytes(set.short_name(record));
    if arguments.json {
        let field = |(name, (offset, size)): (&Arc<str>, (Option<u64>, Option<u64>))| {
            (name.to_string(), json!({"offset": offset, "bytes": size}))
        };
        let shard = set
            .shard_of(record)
            .map_or(Value::Null, |shard| set.opened.set.address_of(&shard.to_string()).into());
        // A URL may contain secrets, which `Display` hides. Keys of archive members are never URLs.
        let key = match set.are_files() && key.as_bytes().windows(3).any(|part| part == b"://") {
            true => key.to_string(),
            false => String::from_utf8_lossy(key.as_bytes()).into_owned(),
        };
        let object = json!({
            "key": key, "shard": shard, "fields": fields.map(field).collect::<Map<_, _>>(),
        });
        return format!("{object}\n");
    }
    let mut text = printable(&key.to_string()) + "\n";
    for (name, (offset, size)) in fields.filter(|_| arguments.long) {
        let size = size.map_or(String::new(), |size| format!("  {} bytes", count(size)));
        let offset = offset.map_or(String::new(), |offset| format!(" at {}", count(offset)));
        text += &format!("  .{}{size}{offset}\n", printable(name));
    }
    text
}

/// Returns the output line for a shard.
fn shard(arguments: &LsArguments, archive: &Archive) -> Result<String, Failure> {
    let name = &archive.name;
    let (samples, members, size, sum) = match &archive.record {
        Some(record) => {
            (record.samples, record.members(), record.bytes, Some(record.xxh3_128.as_str()))
        }
        None => {
            let index = archive.index()?;
            let members = index.iter().filter(|entry| entry.kind == TarKind::File).count();
            (grouped(&index).len() as u64, members as u64, index.stamp().size(), None)
        }
    };
    if arguments.json {
        let object = json!({
            "name": name, "samples": samples, "members": members, "bytes": size, "xxh3_128": sum,
        });
        return Ok(format!("{object}\n"));
    }
    let line =
        format!("{}  {}  {}", printable(name), counted(samples, "sample", "samples"), bytes(size));
    match sum.filter(|_| arguments.long) {
        Some(sum) => Ok(format!("{line}  xxh3-128 {sum}\n")),
        None => Ok(format!("{line}\n")),
    }
}

/// Returns the output lines for all samples of an archive.
fn samples(arguments: &LsArguments, archive: &Archive) -> Result<String, Failure> {
    let mut text = String::new();
    let shard = &archive.name;
    for (key, members) in grouped(&archive.index()?) {
        let field = |entry: &TarEntry| {
            let name = entry.key.as_bytes();
            let field = key_and_field(name).map_or(&[][..], |(_, field)| field);
            Key::from_bytes(field).to_string()
        };
        if arguments.json {
            let fields: Map<_, _> = members
                .iter()
                .map(|entry| {
                    (field(entry), json!({"offset": entry.data_offset, "bytes": entry.size}))
                })
                .collect();
            let key = String::from_utf8_lossy(key.as_bytes()).into_owned();
            let object = json!({"key": key, "shard": shard, "fields": fields});
            text.push_str(&format!("{object}\n"));
            continue;
        }
        text.push_str(&printable(&key.to_string()));
        text.push('\n');
        for entry in members.iter().filter(|_| arguments.long) {
            let (size, offset) = (count(entry.size), count(entry.data_offset));
            text.push_str(&format!("  .{}  {size} bytes at {offset}\n", printable(&field(entry))));
        }
    }
    Ok(text)
}

/// Groups consecutive members with the same key; a member without a key is a sample of one member.
fn grouped(index: &TarIndex) -> Vec<(Key, Vec<TarEntry>)> {
    let mut samples: Vec<(Key, Vec<TarEntry>)> = Vec::new();
    let files =
        index.iter().filter(|entry| matches!(entry.kind, TarKind::File | TarKind::HardLink));
    for entry in files {
        let name = entry.key.as_bytes();
        let key = key_and_field(name).map_or(name, |(key, _)| key);
        match samples.last_mut() {
            Some((last, members)) if last.as_bytes() == key => members.push(entry),
            _ => samples.push((Key::from_bytes(key), vec![entry])),
        }
    }
    samples
}
