//! Tests of `ShardWriter`: its output, and resuming after interruptions.

#![expect(clippy::unwrap_used, reason = "test helpers report failures by panics")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use spdl_core::{Dataset, ErrorKind, Result, block_on};
use spdl_io::StoreRegistry;
use spdl_io::archive::{ArchiveStamp, TarIndex, TarOptions, TarSlice};
use spdl_io::datasets::{OpenOptions, OpenedDataset};
use spdl_io::shards::{Manifest, Opened, ShardPlan, ShardWriter, Sums};
use tempfile::TempDir;

const SAMPLES: u64 = 40;

/// The key and fields of a sample. Every seventh sample is skipped.
fn sample(position: u64) -> Option<(String, Vec<u8>, String)> {
    let data: Vec<u8> = (0..position * 97 % 3000).map(|at| (at * 7 + position) as u8).collect();
    let key = format!("class-{}/{position:03}", position % 3);
    (position % 7 != 6).then(|| (key, data, (position % 3).to_string()))
}

fn plan() -> ShardPlan {
    ShardPlan::new("train").shard_bytes(12_000).recipe("source", "numbers").classes(["a", "b", "c"])
}

fn writer(folder: &Path, plan: &ShardPlan) -> ShardWriter {
    match ShardWriter::open(folder, plan).unwrap() {
        Opened::Writing(writer) => writer,
        Opened::Complete(_) => panic!("the data set is already complete"),
    }
}

/// Adds samples up to position `end`.
fn add(writer: &mut ShardWriter, end: u64) -> Result<()> {
    for position in writer.position()..end {
        match sample(position) {
            Some((key, data, class)) => {
                let fields = [("bin", &data[..]), ("cls", class.as_bytes())];
                writer.add(position, key.as_bytes(), &fields)?;
            }
            None => writer.skip(position, &position.to_string(), "a seventh")?,
        }
    }
    Ok(())
}

fn write_all(folder: &Path, plan: &ShardPlan) -> Manifest {
    let mut writer = writer(folder, plan);
    add(&mut writer, SAMPLES).unwrap();
    writer.finish(SAMPLES).unwrap()
}

/// All files of a folder except indexes, which contain times.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let entries = entries.filter(|path| path.extension().is_none_or(|ending| ending != "idx"));
    let relative = |path: &PathBuf| path.strip_prefix(folder).unwrap().to_path_buf();
    entries.map(|path| (relative(&path), fs::read(&path).unwrap())).collect()
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().unwrap().kind()
}

#[test]
fn samples_are_preserved_and_the_manifest_adds_up() {
    let folder = TempDir::new().unwrap();
    let manifest = write_all(folder.path(), &plan());
    assert_eq!(Manifest::read(folder.path()).unwrap(), manifest);
    assert_eq!((manifest.samples, manifest.skipped), (SAMPLES - 5, 5));
    assert_eq!(manifest.classes(), ["a", "b", "c"]);
    assert_eq!(manifest.skipped_samples[1].position, 13);
    assert!(manifest.shards.len() > 3);

    let mut expected = (0..SAMPLES).filter_map(sample);
    let (mut samples, mut bytes, mut end) = (0, 0, 0);
    for shard in &manifest.shards {
        let path = folder.path().join(&shard.name);
        let archive = fs::read(&path).unwrap();
        assert!(archive.len() <= 12_000 && archive.len() as u64 == shard.bytes);
        assert_eq!(shard.first, end);
        end = shard.end;
        let (sums, sum_of_sums) = Sums::read(&path).unwrap();
        assert_eq!(Some(sum_of_sums), shard.sum_of_sums());
        assert_eq!(Some(twox_hash::XxHash3_128::oneshot(&archive)), shard.sum());
        let mut sums = sums.as_slice().iter();
        let mut members = TarSlice::new(archive).files();
        for _ in 0..shard.samples {
            let (key, data, class) = expected.next().unwrap();
            for (field, data) in [("bin", &data[..]), ("cls", class.as_bytes())] {
                let member = members.next().unwrap().unwrap();
                assert_eq!(member.entry.key.to_string(), format!("{key}.{field}"));
                assert_eq!((&member.data[..], member.entry.mtime), (data, Some(0)));
                let sum = sums.next().unwrap();
                assert_eq!(sum.name, member.entry.key);
                assert_eq!(sum.xxh3_128, twox_hash::XxHash3_128::oneshot(data));
                bytes += data.len() as u64;
            }
            samples += 1;
        }
        assert!(members.next().is_none() && sums.next().is_none());
        let stamp = ArchiveStamp::of_file(&path).unwrap();
        let index = TarIndex::load(&path, &stamp, TarOptions::default()).unwrap();
        let built = TarIndex::build(&path, TarOptions::default()).unwrap();
        assert!(index.iter().eq(built.iter()));
    }
    assert!(expected.next().is_none());
    assert_eq!((samples, end), (manifest.samples, SAMPLES));
    assert_eq!(bytes, manifest.fields.values().map(|field| field.bytes).sum::<u64>());
    assert_eq!(manifest.fields["cls"].samples, manifest.samples);
}

// promise: DATA8
#[test]
fn interrupted_writers_resume_to_the_same_bytes() {
    let whole = TempDir::new().unwrap();
    let manifest = write_all(whole.path(), &plan());
    let expected = files(whole.path());
    for stop in (0..=SAMPLES).step_by(3) {
        let folder = TempDir::new().unwrap();
        let mut first = writer(folder.path(), &plan());
        add(&mut first, stop).unwrap();
        drop(first);
        let mut second = writer(folder.path(), &plan());
        // Finished shards are kept, and their samples are not requested again.
        let done = manifest.shards.iter().filter(|shard| shard.end < stop).count();
        assert!(second.finished_shards().len() >= done, "{stop}");
        assert!(second.position() <= stop);
        add(&mut second, SAMPLES).unwrap();
        second.finish(SAMPLES).unwrap();
        assert_eq!(files(folder.path()), expected, "{stop}");
    }
}

// promise: DATA8
#[test]
fn finished_shards_are_kept_up_to_the_first_corrupt_one() {
    let whole = TempDir::new().unwrap();
    write_all(whole.path(), &plan());
    type Damage = fn(&Path);
    let damages: [(Damage, usize); 6] = [
        (|folder| damage(&folder.join("train-000001.tar")), 1),
        (|folder| damage(&folder.join("train-000002.tar.sums")), 2),
        (|folder| fs::remove_file(folder.join("train-000000.tar")).unwrap(), 0),
        // Unfinished files are ignored, whatever they contain.
        (|folder| fs::write(folder.join("train-000099.tar.partial"), "x").unwrap(), 3),
        (|folder| fs::write(folder.join("train-000099.tar"), "x").unwrap(), 3),
        (|folder| truncated(&folder.join("manifest.journal")), 2),
    ];
    for (number, (damage, kept)) in damages.into_iter().enumerate() {
        let folder = TempDir::new().unwrap();
        let mut first = writer(folder.path(), &plan());
        while first.finished_shards().len() < 3 {
            let next = first.position() + 1;
            add(&mut first, next).unwrap();
        }
        drop(first);
        damage(folder.path());
        let mut second = writer(folder.path(), &plan());
        assert_eq!(second.finished_shards().len(), kept, "{number}");
        add(&mut second, SAMPLES).unwrap();
        second.finish(SAMPLES).unwrap();
        assert_eq!(files(folder.path()), files(whole.path()), "{number}");
    }
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Removes the last byte.
fn truncated(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
}

// promise: DATA8
#[test]
fn complete_data_sets_are_kept_and_other_plans_rejected() {
    let folder = TempDir::new().unwrap();
    let manifest = write_all(folder.path(), &plan());
    let before = files(folder.path());
    match ShardWriter::open(folder.path(), &plan()).unwrap() {
        Opened::Complete(found) => assert_eq!(found, manifest),
        Opened::Writing(_) => panic!("the complete data set would be written again"),
    }
    for (other, words) in [
        (plan().shard_bytes(13_000), "the size limit of shards in bytes was 12000 and is 13000"),
        (plan().shard_samples(2), "the sample limit of shards was nothing and is 2"),
        (plan().recipe("source", "letters"), "source was numbers and is letters"),
        (plan().recipe("more", 1), "more was nothing and is 1"),
        (plan().classes(["a"]), "classes differ (3 before, 1 now)"),
    ] {
        let error = ShardWriter::open(folder.path(), &other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_eq!(files(folder.path()), before);
    fs::remove_file(folder.path().join("train-000001.tar")).unwrap();
    assert_eq!(kind(ShardWriter::open(folder.path(), &plan())), ErrorKind::NotFound);
}

#[test]
fn data_sets_begun_with_another_plan_are_rejected() {
    let folder = TempDir::new().unwrap();
    add(&mut writer(folder.path(), &plan()), 30).unwrap();
    let other = plan().shard_samples(2);
    assert_eq!(kind(ShardWriter::open(folder.path(), &other)), ErrorKind::InvalidArgument);
    let mut anew = writer(folder.path(), &other.overwrite(true));
    assert_eq!((anew.position(), anew.finished_shards().len()), (0, 0));
    add(&mut anew, SAMPLES).unwrap();
    let manifest = anew.finish(SAMPLES).unwrap();
    assert!(manifest.shards.iter().all(|shard| shard.samples <= 2));
}

#[test]
fn without_finished_shards_another_plan_may_start() {
    let folder = TempDir::new().unwrap();
    add(&mut writer(folder.path(), &plan()), 1).unwrap();
    let other = ShardPlan::new("other").shard_samples(100);
    let manifest = write_all(folder.path(), &other);
    assert_eq!(manifest.plan, other);
    assert!(!folder.path().join("train-000000.tar.partial").exists());
    // An interrupted overwrite still protects the existing data set from other plans.
    let text = fs::read(folder.path().join("manifest.json")).unwrap();
    drop(writer(folder.path(), &plan().overwrite(true)));
    fs::write(folder.path().join("manifest.json"), text).unwrap();
    assert_eq!(kind(ShardWriter::open(folder.path(), &other)), ErrorKind::InvalidArgument);
    assert_eq!(writer(folder.path(), &plan()).position(), 0);
}

#[test]
fn overwriting_removes_only_the_old_data_set() {
    let expected = TempDir::new().unwrap();
    let small = ShardPlan::new("other").shard_samples(100);
    write_all(expected.path(), &small);
    let folder = TempDir::new().unwrap();
    write_all(folder.path(), &plan());
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    write_all(folder.path(), &small.clone().overwrite(true));
    let mut found = files(folder.path());
    assert_eq!(found.remove(Path::new("notes.txt")).unwrap(), b"mine");
    assert_eq!(found, files(expected.path()));
    assert!(!folder.path().join("train-000000.tar.idx").exists());
}

#[test]
fn folders_with_other_files_are_rejected() {
    let folder = TempDir::new().unwrap();
    for (name, kind_of_error) in
        [("notes.txt", ErrorKind::InvalidArgument), ("manifest.json", ErrorKind::Corrupt)]
    {
        let path = folder.path().join(name);
        fs::write(&path, "{\"mine\": 1}").unwrap();
        for plan in [plan(), plan().overwrite(true)] {
            assert_eq!(kind(ShardWriter::open(folder.path(), &plan)), kind_of_error);
        }
        assert_eq!(files(folder.path()).len(), 1);
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn concurrent_writers_are_rejected() {
    let folder = TempDir::new().unwrap();
    let first = writer(folder.path(), &plan());
    assert_eq!(kind(ShardWriter::open(folder.path(), &plan())), ErrorKind::Unavailable);
    drop(first);
    assert!(ShardWriter::open(folder.path(), &plan()).is_ok());
}

#[test]
fn damaged_data_sets_open_if_accepted() {
    let folder = TempDir::new().unwrap();
    let manifest = write_all(folder.path(), &plan());
    let stores = StoreRegistry::new();
    let address = [folder.path()];
    let open = || block_on(OpenedDataset::open(&address, &stores));
    let damaged = OpenOptions::default().extensions(&["png"]).accept_damage();
    let open_damaged = || block_on(OpenedDataset::open_with(&address, &stores, &damaged)).unwrap();
    assert_eq!((open().unwrap().missing_samples, open_damaged().warnings.len()), (0, 0));
    let [gone, truncated] = [1, 2].map(|number| &manifest.shards[number]);
    fs::remove_file(folder.path().join(&gone.name)).unwrap();
    let path = folder.path().join(&truncated.name);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..1024]).unwrap();
    assert_eq!(kind(open()), ErrorKind::NotFound);
    let left = open_damaged();
    assert_eq!(left.classes, ["a", "b", "c"]);
    // One sample of the truncated shard remains. It may lack members, so reading it fails.
    assert_eq!(left.missing_samples, gone.samples + truncated.samples - 1);
    assert_eq!(left.samples.len(), manifest.samples - left.missing_samples);
    let warnings: Vec<_> = left.warnings.iter().map(ToString::to_string).collect();
    for words in
        [format!("{}: a shard of this data set is missing", gone.name), truncated.name.clone()]
    {
        assert!(warnings.iter().any(|warnings| warnings.contains(&words)), "{words}: {warnings:?}");
    }
}

#[test]
fn ambiguous_keys_and_fields_are_rejected() {
    let folder = TempDir::new().unwrap();
    let mut writer = writer(folder.path(), &plan());
    let data = &b"x"[..];
    for key in ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "a.b", "c/a.b", "a\0b"] {
        assert_eq!(
            kind(writer.add(0, key.as_bytes(), &[("bin", data)])),
            ErrorKind::InvalidArgument,
            "{key}"
        );
    }
    for fields in
        [&[][..], &[("", data)], &[("a/b", data)], &[("a\0", data)], &[("a", data), ("a", data)]]
    {
        assert_eq!(kind(writer.add(0, b"a", fields)), ErrorKind::InvalidArgument);
    }
    // A rejected sample does not stop the writer.
    writer.add(0, b"a.b/c", &[("seg.png", data)]).unwrap();
    assert_eq!(kind(writer.add(1, b"a.b/c", &[("jpg", data)])), ErrorKind::InvalidArgument);
    assert_eq!(kind(writer.add(0, b"d", &[("jpg", data)])), ErrorKind::InvalidArgument);
    writer.add(1, b"d", &[("jpg", data)]).unwrap();
    let manifest = writer.finish(2).unwrap();
    assert_eq!(manifest.samples, 2);
    let archive = fs::read(folder.path().join("train-000000.tar")).unwrap();
    let names: Vec<_> =
        TarSlice::new(archive).map(|entry| entry.unwrap().key.to_string()).collect();
    assert_eq!(names, ["a.b/c.seg.png", "d.jpg"]);
}

#[test]
fn large_samples_have_a_separate_shard() {
    let folder = TempDir::new().unwrap();
    let mut writer = writer(folder.path(), &plan());
    for (position, bytes) in [100, 50_000, 100, 100].into_iter().enumerate() {
        writer
            .add(position as u64, position.to_string().as_bytes(), &[("bin", &vec![0; bytes])])
            .unwrap();
    }
    let manifest = writer.finish(4).unwrap();
    let samples: Vec<_> = manifest.shards.iter().map(|shard| shard.samples).collect();
    assert_eq!(samples, [1, 1, 2]);
}

#[test]
fn empty_data_sets_list_skipped_samples() {
    let folder = TempDir::new().unwrap();
    let mut writer = writer(folder.path(), &plan());
    writer.skip(0, "a", "broken").unwrap();
    let manifest = writer.finish(1).unwrap();
    assert_eq!((manifest.samples, manifest.skipped, manifest.shards.len()), (0, 1, 0));
    assert_eq!(manifest.skipped_samples[0].reason, "broken");
}

#[cfg(unix)]
// promise: R19
#[test]
fn symbolic_links_in_the_folder_are_not_followed() {
    let (folder, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    drop(writer(folder.path(), &plan()));
    let target = elsewhere.path().join("target");
    fs::write(&target, "mine").unwrap();
    for name in [
        "train-000000.tar",
        "train-000000.tar.partial",
        "train-000001.tar.sums",
        "manifest.json.partial",
    ] {
        std::os::unix::fs::symlink(&target, folder.path().join(name)).unwrap();
    }
    write_all(folder.path(), &plan());
    assert_eq!(fs::read_to_string(&target).unwrap(), "mine");
    assert!(files(folder.path()).keys().all(|name| !folder.path().join(name).is_symlink()));
}
