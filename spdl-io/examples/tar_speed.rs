//! Measures the time to access members of a tar archive without decoding: from memory, as a stream,
//! and by index.
//!
//! ```sh
//! cargo run --release -p spdl-io --example tar_speed -- [MEMBERS [BYTES [REPETITIONS]]]
//! ```
//!
//! Creates an archive of MEMBERS members (default: 10,000) of BYTES bytes (default: 10,000) in a
//! temporary folder. The archive is in the page cache. The output shows the shortest time of
//! REPETITIONS runs (default: 9).
#![expect(clippy::print_stdout, reason = "the program prints a table")]

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::archive::{TarIndex, TarOptions, TarSlice, TarStream};

fn main() -> Result<()> {
    let numbers: Result<Vec<usize>> = std::env::args().skip(1).map(|word| number(&word)).collect();
    let numbers = numbers?;
    let or = |at: usize, default: usize| numbers.get(at).copied().unwrap_or(default);
    let (members, size, repetitions) = (or(0, 10_000), or(1, 10_000), or(2, 9));
    let folder = tempfile::tempdir()?;
    let shard = folder.path().join("shard.tar");
    write_archive(&shard, members, size)?;
    let archive = Bytes::from(fs::read(&shard)?);
    let index = TarIndex::build(&shard, TarOptions::default())?;
    index.save(TarIndex::path_of(&shard))?;

    println!("{members} members of {size} bytes, best of {repetitions}");
    println!("{:<44} {:>12} {:>10}", "", "µs/member", "members/s");
    let show = |what: &str, run: &dyn Fn() -> Result<usize>| -> Result<()> {
        let mut best = Duration::MAX;
        for _ in 0..repetitions {
            let start = Instant::now();
            let seen = run()?;
            best = best.min(start.elapsed());
            if seen != members {
                return Err(Error::new(
                    ErrorKind::Internal,
                    format!("expected {members} members, found {seen}"),
                ));
            }
        }
        let each = best.as_secs_f64() / members as f64;
        println!("{what:<44} {:>12.3} {:>10.0}", each * 1e6, 1.0 / each);
        Ok(())
    };
    show("archive in memory, data not copied", &|| {
        count(
            TarSlice::new(archive.clone()).files().map(|file| file.map(|file| file.data.len())),
            size,
        )
    })?;
    show("stream of a file, data read", &|| {
        let stream = TarStream::new(File::open(&shard)?);
        count(stream.files().map(|file| file.map(|file| file.data.len())), size)
    })?;
    show("stream of a file, data skipped", &|| {
        let mut stream = TarStream::new(File::open(&shard)?);
        let mut seen = 0;
        while stream.next_entry()?.is_some() {
            seen += 1;
        }
        Ok(seen)
    })?;
    show("index built from a file", &|| Ok(TarIndex::build(&shard, TarOptions::default())?.len()))?;
    show("index loaded", &|| Ok(TarIndex::open(&shard)?.len()))?;
    show("index lookup of each member name", &|| {
        let mut seen = 0;
        for number in 0..members {
            seen += usize::from(index.find(name(number).as_bytes()) == Some(number));
        }
        Ok(seen)
    })?;
    show("read of each member at its indexed offset", &|| {
        let mut file = File::open(&shard)?;
        let mut data = vec![0; size];
        let mut seen = 0;
        for number in 0..members {
            let range = index.data_range(number).unwrap_or_default();
            file.seek(SeekFrom::Start(range.start))?;
            file.read_exact(&mut data)?;
            seen += usize::from(range.end - range.start == data.len() as u64);
        }
        Ok(seen)
    })?;
    println!("the saved index has {} bytes per member", index.to_bytes().len() / members.max(1));
    Ok(())
}

/// Counts the files of the given size.
fn count(sizes: impl Iterator<Item = Result<usize>>, size: usize) -> Result<usize> {
    let mut seen = 0;
    for found in sizes {
        seen += usize::from(found? == size);
    }
    Ok(seen)
}

fn number(word: &str) -> Result<usize> {
    word.parse()
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, format!("{word:?} is not a number")))
}

fn name(number: usize) -> String {
    format!("{number:08}.jpg")
}

fn write_archive(path: &Path, members: usize, size: usize) -> Result<()> {
    let mut builder = tar::Builder::new(File::create(path)?);
    for number in 0..members {
        let mut header = tar::Header::new_ustar();
        header.set_size(size as u64);
        header.set_mtime(1_700_000_000);
        header.set_mode(0o644);
        builder.append_data(&mut header, name(number), &*vec![number as u8; size])?;
    }
    builder.into_inner()?.sync_all()?;
    Ok(())
}
