//! `spdl cat`: the bytes of one field of one sample.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};

use spdl_io::Key;
use spdl_io::archive::{TarEntry, TarIndex};

use super::arguments::CatArguments;
use super::{Archive, DataSet, key_and_field};
use crate::failure::Failure;
use crate::format::{counted, printable};

const WHAT: &str = "cannot read a member";

pub(crate) fn run(arguments: &CatArguments) -> Result<(), Failure> {
    let set = DataSet::open(std::slice::from_ref(&arguments.path))?;
    let key = Key::from_path(&arguments.key);
    let name = match &arguments.field {
        Some(field) => Key::from_bytes(&[key.as_bytes(), b".", field.as_bytes()].concat()),
        None => key.clone(),
    };
    let archives = set.archives(&arguments.path)?;
    let mut fields = Vec::new();
    for archive in archives {
        let index = archive.index()?;
        if let Some(number) = index.find(name.as_bytes()) {
            let failed = |error| Failure::of(WHAT, &error, &archive.path);
            return write(archive, &index.file(number).map_err(failed)?);
        }
        fields.extend(fields_of(&index, key.as_bytes()));
    }
    let reason = match &fields[..] {
        [] => format!(
            "there is no such member in {}",
            counted(archives.len() as u64, "archive", "archives")
        ),
        fields => format!(
            "the sample has the fields {}; give its name with one, or --field",
            fields.join(", ")
        ),
    };
    Err(Failure::new(WHAT, name, reason))
}

/// The names of the fields of a sample.
fn fields_of(index: &TarIndex, key: &[u8]) -> Vec<String> {
    let divided = (0..index.len()).filter_map(|number| key_and_field(index.name(number)?));
    let of_sample = divided.filter(|(found, _)| *found == key);
    of_sample.map(|(_, field)| printable(&Key::from_bytes(field).to_string())).collect()
}

fn write(archive: &Archive, entry: &TarEntry) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(WHAT, archive.path.display(), error);
    let mut file = File::open(&archive.path).map_err(failed)?;
    file.seek(SeekFrom::Start(entry.data_offset)).map_err(failed)?;
    let mut data = file.take(entry.size);
    let mut stdout = io::stdout().lock();
    if stdout.is_terminal() {
        let mut text = Vec::new();
        data.read_to_end(&mut text).map_err(failed)?;
        let is_text = std::str::from_utf8(&text)
            .is_ok_and(|text| !text.chars().any(|c| c.is_control() && !"\n\r\t".contains(c)));
        if !is_text {
            let reason = format!("{} is no text: not to a terminal, but > FILE", entry.key);
            return Err(Failure::usage(reason));
        }
        return finish(stdout.write_all(&text).and_then(|()| stdout.flush()));
    }
    match io::copy(&mut data, &mut stdout) {
        Ok(copied) if copied < entry.size => {
            let reason =
                format!("the archive ends after {copied} of the member's {} bytes", entry.size);
            Err(Failure::new(WHAT, archive.path.display(), reason))
        }
        Ok(_) => finish(stdout.flush()),
        Err(error) => finish(Err(error)),
    }
}

fn finish(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        // Whoever reads has read enough, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::new("cannot write", "standard output", error)),
    }
}
