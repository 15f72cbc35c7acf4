//! `spdl ls`: which shards, or which samples, there are.

use serde_json::{Map, json};
use spdl_io::Key;
use spdl_io::archive::{TarEntry, TarIndex, TarKind};

use super::arguments::LsArguments;
use super::{Archive, DataSet, key_and_field};
use crate::failure::Failure;
use crate::format::{bytes, count, counted, printable};
use crate::output;

pub(crate) fn run(arguments: &LsArguments) -> Result<(), Failure> {
    let set = DataSet::open(&arguments.paths)?;
    let archives = set.archives(&arguments.paths[0])?;
    let one_file = matches!(&arguments.paths[..], [path] if path.is_file());
    if arguments.samples || one_file {
        for archive in archives {
            output::print(&samples(arguments, archive)?)?;
        }
        return Ok(());
    }
    for archive in archives {
        output::print(&shard(arguments, archive)?)?;
    }
    if !arguments.json
        && let DataSet::Archives { manifest: Some(manifest), .. } = &set
    {
        let shards = counted(manifest.shards.len() as u64, "shard", "shards");
        let samples = counted(manifest.samples, "sample", "samples");
        output::print(&format!("{shards}, {samples}, {}\n", bytes(manifest.bytes)))?;
    }
    Ok(())
}

/// The line of a shard.
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
    let told =
        format!("{}  {}  {}", printable(name), counted(samples, "sample", "samples"), bytes(size));
    match sum.filter(|_| arguments.long) {
        Some(sum) => Ok(format!("{told}  xxh3-128 {sum}\n")),
        None => Ok(format!("{told}\n")),
    }
}

/// The lines of the samples of an archive.
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

/// Members that follow each other and share a key. What has no key is a sample by itself.
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
