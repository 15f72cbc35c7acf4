//! `spdl verify`.

use super::*;
use crate::common::png;

/// The defects of `spdl verify --json`.
fn defects(data: &[PathBuf], arguments: &[&str]) -> (Run, Vec<Value>) {
    let run = run("verify", data, &[&["--json"], arguments].concat());
    let found = json(&run)["bad"].as_array().unwrap().clone();
    (run, found)
}

#[test]
fn intact_audio_and_video_have_no_defects() {
    let folder = folder();
    folder.add("photos/1.png", &png(1));
    let result = run("verify", &[folder.join("speech")], &["--json"]).json();
    assert_eq!((&result["audio"], &result["images"]), (&6.into(), &0.into()));
    let text = run("verify", &[folder.join("speech")], &[]).stdout;
    assert!(text.contains("6 audio files decoded, all valid"), "{text}");
    let quick = run("verify", &[folder.path().into()], &["--quick"]);
    let counts = "1 image, 6 audio files, 4 videos inspected, all valid";
    assert!(quick.code == 0 && quick.stdout.contains(counts), "{}", quick.stdout);
    let (run, found) = defects(&[folder.join("clips")], &[]);
    if HAS_FFMPEG {
        assert_eq!((run.code, found.len()), (0, 0), "{}", run.stdout);
        return;
    }
    assert_eq!((run.code, found.len()), (1, 4), "{}", run.stdout);
    assert!(run.line().contains("4 of 4 files are invalid"), "{}", run.line());
    // Packing would skip files that this build cannot check.
    let text = super::run("verify", &[folder.join("clips")], &[]).stdout;
    assert!(!text.contains("spdl pack"), "{text}");
    for defect in found {
        assert_eq!(defect["kind"], "unsupported");
        assert!(
            defect["reason"].as_str().unwrap().contains("cargo feature \"ffmpeg\""),
            "{defect}"
        );
    }
}

#[test]
fn damaged_audio_is_listed_with_its_time() {
    let folder = Folder::new();
    let whole = audio("mono-16.flac");
    folder.add("whole.flac", &whole);
    folder.add("cut.flac", &whole[..whole.len() / 2]);
    folder.add("flipped.flac", &{
        let mut bytes = whole.clone();
        bytes[whole.len() * 3 / 4] ^= 0x55;
        bytes
    });
    folder.add("text.wav", b"This is no audio.\n");
    let (run, found) = defects(&[folder.path().into()], &[]);
    assert_eq!(run.code, 1);
    let of = |name: &str| {
        let is = |defect: &&Value| defect["key"].as_str().unwrap().ends_with(name);
        found.iter().find(is).unwrap_or_else(|| panic!("{name}: {found:?}"))
    };
    assert_eq!(found.len(), 3, "{found:?}");
    for (name, kind) in
        [("cut.flac", "truncated"), ("flipped.flac", "corrupt"), ("text.wav", "unsupported")]
    {
        assert_eq!(of(name)["kind"], kind, "{name}: {found:?}");
    }
    for name in ["cut.flac", "flipped.flac"] {
        let reason = of(name)["reason"].as_str().unwrap();
        let (_, time) = reason.split_once("the audio is damaged from ").expect(reason);
        let seconds: f64 = time.strip_suffix(" s on").unwrap().parse().unwrap();
        assert!((0.0..0.2).contains(&seconds), "{reason}");
    }
    assert!(of("cut.flac")["offset"].is_u64(), "{found:?}");
    let line = run.line();
    assert!(line.contains("3 of 4"), "{line}");
}

#[test]
fn truncated_videos_are_found_by_their_tables() {
    let folder = Folder::new();
    let whole = video("h264_faststart.mp4");
    folder.add("whole.mp4", &whole);
    folder.add("cut.mp4", &whole[..whole.len() - 500]);
    let early = video("h264.mp4");
    folder.add("early.mp4", &early[..early.len() / 2]);
    let matroska = video("h264.mkv");
    folder.add("cut.mkv", &matroska[..matroska.len() / 2]);
    let data = [PathBuf::from(folder.path())];
    for arguments in [&["--quick"][..], &[]] {
        let (run, found) = defects(&data, arguments);
        let unsupported = usize::from(!HAS_FFMPEG && arguments.is_empty());
        assert_eq!((run.code, found.len()), (1, 3 + unsupported), "{found:?}");
        let truncated = found.iter().filter(|defect| defect["kind"] == "truncated");
        assert_eq!(truncated.count(), 3, "{found:?}");
        let cut = found.iter().find(|it| it["key"].as_str().unwrap().ends_with("cut.mp4")).unwrap();
        assert!(cut["offset"].is_u64(), "{cut}");
        assert!(found.iter().all(|it| !it["reason"].as_str().unwrap().contains("accept partial")));
    }
}

#[test]
fn damaged_frames_are_counted_with_the_time_of_the_first() {
    if !HAS_FFMPEG {
        println!("SKIPPED: the cargo feature ffmpeg is disabled");
        return;
    }
    let folder = Folder::new();
    let mut bytes = video("h264_faststart.mp4");
    let end = bytes.len();
    // In the packets of the last group of pictures.
    bytes[end - 300..end - 250].fill(0xFF);
    folder.add("clip.mp4", &bytes);
    let (_, found) = defects(&[folder.path().into()], &[]);
    let reason = found[0]["reason"].as_str().unwrap();
    assert!(reason.contains(" of 20 frames cannot be decoded, the first at 1."), "{reason}");
    assert!(!reason.contains("accept partial samples"), "{reason}");
    assert_eq!((&found[0]["kind"], found.len()), (&"corrupt".into(), 1));
}

#[test]
fn texts_in_members_that_end_in_ts_are_no_videos() {
    let folder = Folder::new();
    let path = folder.join("set.tar");
    let mut archive = tar::Builder::new(fs::File::create(&path).unwrap());
    for (name, bytes) in [("1.flac", audio("mono-16.flac")), ("1.ts", b"1700000000".to_vec())] {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    archive.finish().unwrap();
    let result = run("verify", &[path], &["--json"]).json();
    assert_eq!((&result["audio"], &result["videos"]), (&1.into(), &0.into()));
}
