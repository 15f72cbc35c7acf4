//! Tar shards for benchmarks, with random pictures and classes.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Contents of the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TarShape {
    pub(super) shards: usize,
    pub(super) samples_per_shard: usize,
    /// Mean length of a `jpg`; lengths vary by up to 50 %.
    pub(super) bytes: usize,
}

impl TarShape {
    pub(super) fn samples(self) -> usize {
        self.shards * self.samples_per_shard
    }
}

/// Writes the shards to `folder` unless they exist: members `000000.jpg`, `000000.cls` and so on,
/// in ustar format. The same shape always gives the same bytes.
pub(super) fn prepare(folder: &Path, shape: TarShape) -> Result<Vec<PathBuf>> {
    let stamp = folder.join("shape.txt");
    let wanted = format!("{shape:?}");
    let shards: Vec<PathBuf> =
        (0..shape.shards).map(|shard| folder.join(format!("shard-{shard:06}.tar"))).collect();
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(shards);
    }
    println!("writing {} shards to {}", shape.shards, folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut random = RandomBytes(1);
    let noise: Vec<u8> = (0..2 * shape.bytes).map(|_| random.below(256) as u8).collect();
    for (number, shard) in shards.iter().enumerate() {
        let file = File::create(shard);
        let file = file.with_context(|| format!("cannot create {}", shard.display()))?;
        let mut tar = tar::Builder::new(BufWriter::new(file));
        for sample in number * shape.samples_per_shard..(number + 1) * shape.samples_per_shard {
            let len = shape.bytes / 2 + random.below(shape.bytes);
            append(&mut tar, &format!("{sample:06}.jpg"), &noise[..len])?;
            append(&mut tar, &format!("{sample:06}.cls"), (sample % 1000).to_string().as_bytes())?;
        }
        tar.into_inner()?.flush()?;
    }
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(shards)
}

fn append(tar: &mut tar::Builder<impl Write>, name: &str, data: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, data)?;
    Ok(())
}

/// Pseudo-random numbers: Marsaglia's 64-bit xorshift.
struct RandomBytes(u64);

impl RandomBytes {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_the_same_each_time_and_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let shape = TarShape { shards: 2, samples_per_shard: 3, bytes: 1000 };
        let shards = prepare(&folder.path().join("a"), shape).unwrap();
        assert_eq!((shards.len(), shape.samples()), (2, 6));
        let mut names = Vec::new();
        for shard in &shards {
            for entry in tar::Archive::new(File::open(shard).unwrap()).entries().unwrap() {
                names.push(entry.unwrap().path().unwrap().display().to_string());
            }
        }
        assert_eq!(names.len(), 12);
        assert_eq!((&names[0][..], &names[11][..]), ("000000.jpg", "000005.cls"));
        let bytes = fs::read(&shards[1]).unwrap();
        let other = prepare(&folder.path().join("b"), shape).unwrap();
        assert_eq!(fs::read(&other[1]).unwrap(), bytes);
        // Existing shards of the same shape are kept; shards of another shape are written again.
        fs::write(&shards[1], "mine").unwrap();
        prepare(&folder.path().join("a"), shape).unwrap();
        assert_eq!(fs::read(&shards[1]).unwrap(), b"mine");
        prepare(&folder.path().join("a"), TarShape { bytes: 1001, ..shape }).unwrap();
        assert_ne!(fs::read(&shards[1]).unwrap(), b"mine");
    }
}
