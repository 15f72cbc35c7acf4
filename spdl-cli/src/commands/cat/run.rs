//! Finds a member or a field, and writes its bytes.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use spdl_core::Error;
use spdl_io::archive::{TarEntry, TarIndex};
use spdl_io::{Key, StoredRecord};

use super::arguments::CatArguments;
use super::damaged::{self, SearchResult};
use super::decoded::Decoded;
use crate::datasets::address::shown;
use crate::datasets::member_name::key_and_field;
use crate::inspection::archive::Archive;
use crate::inspection::data_set::DataSet;
use crate::inspection::open;
use crate::inspection::samples::Samples;
use crate::ui::failure::Failure;
use crate::ui::format::{counted, for_shell, printable};
use crate::ui::stdout;

const WHAT: &str = "cannot read a member";

pub(crate) fn run(arguments: &CatArguments) -> Result<(), Failure> {
    let decoded = Decoded::of(arguments);
    let key = Key::from_path(&arguments.key);
    let name = match &arguments.field {
        Some(field) => Key::from_bytes(&[key.as_bytes(), b".", field.as_bytes()].concat()),
        None => key.clone(),
    };
    let (fields, searched) = match &open::open(std::slice::from_ref(&arguments.path))? {
        DataSet::Archives { archives, .. } => {
            let mut fields = Vec::new();
            let mut damaged = None;
            for archive in archives {
                let Ok(index) = archive.index() else {
                    match damaged::search(archive, name.as_bytes()) {
                        SearchResult::Found(data) => {
                            return write(&name.to_string(), &mut &data[..], None, decoded);
                        }
                        SearchResult::NotFound => {}
                        SearchResult::AfterDamage(damage) => {
                            damaged.get_or_insert((archive, damage));
                        }
                    }
                    continue;
                };
                if let Some(number) = index.find(name.as_bytes()) {
                    let failed = |error| Failure::of(WHAT, &error, &archive.location.shown());
                    let entry = index.file(number).map_err(failed)?;
                    return of_archive(archive, &entry, decoded);
                }
                fields.extend(fields_of(&index, key.as_bytes()));
            }
            if let Some((archive, damage)) = damaged {
                return Err(may_be_after_damage(&name, archive, &damage));
            }
            (fields, counted(archives.len() as u64, "archive", "archives"))
        }
        DataSet::Samples(set) => match find(set, &key, arguments) {
            Ok((record, field)) => return of_sample(set, record, &field, arguments),
            Err(fields) => {
                // The warnings may explain why the member is missing.
                set.opened.warn();
                let [one, many] = set.noun();
                (fields, counted(set.len(), one, many))
            }
        },
    };
    let reason = match (&fields[..], &arguments.field) {
        ([], _) => format!("not found in {searched}"),
        (fields, Some(field)) => {
            format!("no field {field:?}: the sample has the fields {}", fields.join(", "))
        }
        (fields, None) => format!(
            "this is a sample with the fields {}; select one with --field",
            fields.join(", ")
        ),
    };
    Err(Failure::new(WHAT, name, reason))
}

/// The failure if a member may be in the unreadable part of a damaged archive.
fn may_be_after_damage(name: &Key, archive: &Archive, damage: &Error) -> Failure {
    let place = archive.location.shown().display().to_string();
    let reason = format!(
        "not found, but {place} is damaged: {}; run `spdl verify {}`",
        damage.reason(),
        for_shell(&place)
    );
    Failure::new(WHAT, name, reason)
}

/// Finds a sample and the requested field.
///
/// # Errors
/// If the sample lacks the field, the error is the list of the sample's fields. If no sample has
/// the key, the error is an empty list.
fn find(
    set: &Samples,
    key: &Key,
    arguments: &CatArguments,
) -> Result<(StoredRecord, Arc<str>), Vec<String>> {
    // The files of a folder may be named relative to it.
    let in_folder = Key::from_path(arguments.path.join(&arguments.key));
    let mut fields = Vec::new();
    // The fields of a damaged sample are unknown.
    for record in (0..set.len()).filter_map(|number| set.record(number).ok()) {
        let names = || record.names().map(Arc::<str>::from);
        let rests = [
            key.as_bytes().strip_prefix(record.key.as_bytes()),
            key.as_bytes().strip_prefix(set.short_name(&record)),
            in_folder.as_bytes().strip_prefix(record.key.as_bytes()),
        ];
        let found = rests.iter().flatten().find_map(|rest| match (&arguments.field, *rest) {
            (Some(field), b"") => names().find(|name| **name == **field),
            // If each sample is one file, the file is also its only field.
            (None, b"") if set.are_files() => names().next(),
            (None, [b'.', field @ ..]) => names().find(|name| name.as_bytes() == field),
            _ => None,
        });
        if let Some(field) = found {
            return Ok((record, field));
        }
        if fields.is_empty() && rests.contains(&Some(b"")) {
            fields.extend(record.names().map(printable));
        }
    }
    Err(fields)
}

fn of_sample(
    set: &Samples,
    record: StoredRecord,
    field: &str,
    arguments: &CatArguments,
) -> Result<(), Failure> {
    let key = record.key.to_string();
    let failed = |error: Error| {
        let address = error.key().map(|key| set.opened.set.address_of(key));
        let error = address.map_or(error.clone(), |address| error.renamed(address));
        Failure::of(WHAT, &error, &shown(std::slice::from_ref(&arguments.path)))
    };
    match &set.field(record, field).map_err(failed)?[..] {
        [file] => {
            // If each sample is a file, the name of the file identifies it.
            let name = if set.are_files() { key } else { format!("{key}.{field}") };
            write(&name, &mut &file.data[..], None, Decoded::of(arguments))
        }
        [] => Err(Failure::new(WHAT, format!("{key}.{field}"), "the field is null")),
        files => {
            let reason = format!(
                "JSON cannot represent this list; `spdl pack` would store it as {} files",
                files.len()
            );
            Err(Failure::new(WHAT, format!("{key}.{field}"), reason))
        }
    }
}

/// The names of the fields of a sample.
fn fields_of(index: &TarIndex, key: &[u8]) -> Vec<String> {
    let divided = (0..index.len()).filter_map(|number| key_and_field(index.name(number)?));
    let of_sample = divided.filter(|(found, _)| *found == key);
    of_sample.map(|(_, field)| printable(&Key::from_bytes(field).to_string())).collect()
}

fn of_archive(
    archive: &Archive,
    entry: &TarEntry,
    decoded: Option<Decoded>,
) -> Result<(), Failure> {
    let path = archive.location.shown();
    let failed = |error: io::Error| Failure::new(WHAT, path.display(), error);
    let mut file = File::open(&path).map_err(failed)?;
    file.seek(SeekFrom::Start(entry.data_offset)).map_err(failed)?;
    let place = path.display().to_string();
    let whole = Some((&*place, entry.size));
    write(&entry.key.to_string(), &mut file.take(entry.size), whole, decoded)
}

/// Writes the data of a member to standard output, or what `decoded` selects of it.
///
/// `whole` holds the archive and the expected size, which detects a truncated archive.
fn write(
    name: &str,
    data: &mut dyn Read,
    whole: Option<(&str, u64)>,
    decoded: Option<Decoded>,
) -> Result<(), Failure> {
    if let Some(decoded) = decoded {
        let mut file = Vec::new();
        let place = whole.map_or(name, |(place, _)| place);
        data.read_to_end(&mut file).map_err(|error| Failure::new(WHAT, place, error))?;
        let converted = decoded.convert(&file).map_err(|error| {
            // The error has no key, because the data were already read.
            Failure::of("cannot decode a member", &error, name.as_ref())
        })?;
        return write(name, &mut &converted[..], None, None);
    }
    let mut output = io::stdout().lock();
    if output.is_terminal() {
        let mut text = Vec::new();
        let place = whole.map_or(name, |(place, _)| place);
        data.read_to_end(&mut text).map_err(|error| Failure::new(WHAT, place, error))?;
        let is_text = std::str::from_utf8(&text)
            .is_ok_and(|text| !text.chars().any(|c| c.is_control() && !"\n\r\t".contains(c)));
        if !is_text {
            let reason = format!("\"{name}\" is binary data; redirect the output with > FILE");
            return Err(Failure::usage(reason));
        }
        return stdout::check(output.write_all(&text).and_then(|()| output.flush()));
    }
    match (io::copy(data, &mut output), whole) {
        (Ok(copied), Some((place, size))) if copied < size => {
            let reason =
                format!("truncated: the archive ends after {copied} of {size} bytes of the member");
            Err(Failure::new(WHAT, place, reason))
        }
        (Ok(_), _) => stdout::check(output.flush()),
        (Err(error), _) => stdout::check(Err(error)),
    }
}
