//! `spdl pack`, and the packed shards.

use super::*;
use crate::common::png;

fn pack(data: &Path, shards: &Path, arguments: &[&str]) -> Run {
    finish(spdl().arg("pack").args([data, shards]).args(arguments).output().unwrap())
}

#[test]
fn audio_and_video_are_copied_unchanged_into_shards() {
    let folder = folder();
    for (name, files) in [("speech", &AUDIO.map(|(name, _)| name)[..]), ("clips", &VIDEOS)] {
        let shards = folder.join(format!("{name}-shards"));
        let result = pack(&folder.join(name), &shards, &["--json", "--shard-samples", "4"]).json();
        assert_eq!(
            (&result["samples"], &result["unchanged"]),
            (&files.len().into(), &files.len().into())
        );
        assert_eq!(result["classes"], 2);
        for (number, file) in files.iter().enumerate() {
            let key = format!("class-{}/{file}", number % 2);
            let output = spdl().arg("cat").arg(&shards).arg(&key).output().unwrap();
            assert_eq!(output.stdout, fs::read(folder.join(name).join(&key)).unwrap(), "{key}");
            let (sample, _) = key.rsplit_once('.').unwrap();
            let class = spdl().arg("cat").arg(&shards).args([sample, "--field", "cls"]).output();
            assert_eq!(class.unwrap().stdout, (number % 2).to_string().into_bytes(), "{key}");
        }
        let [of_folder, of_shards] = [folder.join(name), shards.clone()]
            .map(|data| run("stat", &[data], &["--json"]).json());
        let kind = if name == "speech" { "audio" } else { "video" };
        for key in ["files", "seconds", "codecs", "duration", "bytes"] {
            assert_eq!(of_folder[kind][key], of_shards[kind][key], "{key}");
        }
        assert_eq!(of_folder["classes"], of_shards["classes"]);
        let verified = run("verify", std::slice::from_ref(&shards), &["--quick", "--json"]).json();
        assert_eq!(verified["checksums"], 2 * files.len());
        // Shards are packed again with the same bytes.
        let again = folder.join(format!("{name}-again"));
        let result = pack(&shards, &again, &["--json", "--fields", ""]).json();
        assert_eq!(result["samples"], files.len());
        let verified = run("verify", &[again], &["--quick", "--json"]).json();
        assert_eq!(verified["members"], 2 * files.len());
    }
}

#[test]
fn packets_of_long_videos_are_indexed_beside_their_shards() {
    let folder = Folder::new();
    let mut long = video("h264.mkv");
    // An element without content.
    long.extend([0xEC, 0x10, 0x20, 0, 0]);
    long.resize(long.len() + (2 << 20), 0);
    folder.add("long/a.mkv", &long);
    folder.add("short/a.mkv", &video("h264.mkv"));
    for (name, is_indexed) in [("long", true), ("short", false)] {
        let shards = folder.join(format!("{name}-shards"));
        pack(&folder.join(name), &shards, &["--name", "train"]);
        let index = fs::read(shards.join("train-000000.tar.idx")).unwrap();
        assert_eq!(index.windows(3).any(|it| it == b"SVI"), is_indexed, "{name}");
        if HAS_FFMPEG {
            let bench = |data: PathBuf| {
                let options = ["--frames", "2", "--size", "32", "--mode", "train", "--json"];
                run("bench", &[data], &options).json()["checksum"].clone()
            };
            assert_eq!(bench(folder.join(name)), bench(shards), "{name}");
        }
    }
}

#[test]
fn a_folder_with_images_is_packed_as_images() {
    let folder = Folder::new();
    folder.add("photos/a.png", &png(1));
    folder.add("photos/a.mp4", &video("h264.mp4"));
    let result = pack(&folder.join("photos"), &folder.join("shards"), &["--json"]).json();
    assert_eq!(result["samples"], 1);
    let listed = run("ls", &[folder.join("shards")], &["--samples", "--long"]).stdout;
    assert!(listed.contains(".png") && !listed.contains(".mp4"), "{listed}");
}

#[test]
fn lists_of_audio_are_packed() {
    let folder = folder();
    let rows = ["class-0/mono-16.flac,yes", "class-1/stereo-24.wav,no"];
    folder.add("speech/list.csv", format!("path,label\n{}\n", rows.join("\n")).as_bytes());
    let shards = folder.join("shards");
    let result = pack(&folder.join("speech/list.csv"), &shards, &["--json"]).json();
    assert_eq!((&result["samples"], &result["classes"]), (&2.into(), &2.into()));
    let json = run("stat", &[shards], &["--json"]).json();
    assert_eq!(json["audio"]["codecs"]["flac-int16"], 1, "{json:?}");
    assert_eq!(json["fields"]["cls"]["members"], 2);
}

#[test]
fn damaged_files_are_skipped() {
    let folder = Folder::new();
    let whole = audio("mono-16.flac");
    folder.add("speech/1.flac", &whole);
    // The header is intact.
    folder.add("speech/2.flac", &whole[..whole.len() / 2]);
    folder.add("speech/3.flac", &whole[..20]);
    let speech = folder.join("speech");
    let failed = pack(&speech, &folder.join("a"), &[]);
    assert!(failed.code == 1 && failed.line().contains("3.flac"), "{}", failed.stderr);
    for (name, options, samples) in [("b", &[][..], 2), ("c", &["--check"], 1)] {
        let options = [&["--on-error", "skip", "--json"], options].concat();
        let result = pack(&speech, &folder.join(name), &options).json();
        assert_eq!(
            (&result["samples"], &result["skipped"]),
            (&samples.into(), &(3 - samples).into())
        );
    }
    // The command that `verify` advises.
    let advice = run("verify", &[speech], &[]).stdout;
    assert!(advice.contains("--on-error skip --check"), "{advice}");
}

#[test]
fn formats_that_this_build_cannot_read_are_copied() {
    let folder = Folder::new();
    folder.add("clips/1.m4a", &audio("container.m4a"));
    folder.add("clips/2.avi", &video("mpeg4.avi"));
    let shards = folder.join("shards");
    let result = pack(&folder.join("clips"), &shards, &["--json"]).json();
    assert_eq!(result["samples"], 2);
    let checked = pack(&folder.join("clips"), &folder.join("checked"), &["--check"]);
    assert_eq!(checked.code, i32::from(!HAS_FFMPEG), "{}", checked.stderr);
    if !HAS_FFMPEG {
        assert!(checked.line().contains("cargo feature \"ffmpeg\""), "{}", checked.line());
    }
}
