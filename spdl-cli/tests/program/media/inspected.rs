//! `spdl stat`, `ls` and `cat`.

use std::fs;

use serde_json::Value;

use super::*;

/// The entry of a file in the JSON object of `spdl stat`.
fn listed<'a>(json: &'a Value, kind: &str, name: &str) -> &'a Value {
    let files = json[kind]["listed"].as_array().unwrap();
    let is = |file: &&Value| file["key"].as_str().unwrap().ends_with(name);
    files.iter().find(is).unwrap_or_else(|| panic!("{name}: {json}"))
}

#[test]
fn stat_counts_and_measures_audio() {
    let folder = folder();
    let json = run("stat", &[folder.join("speech")], &["--json"]).json();
    assert_eq!((&json["samples"], &json["video"]), (&6.into(), &Value::Null));
    assert_eq!(json["formats"], serde_json::json!({}), "formats of images");
    let json = Value::Object(json);
    let all = &json["audio"];
    assert_eq!(all["files"], 6);
    for (counts, value, number) in [
        ("formats", "ogg", 2),
        ("codecs", "flac-int16", 1),
        ("codecs", "vorbis", 1),
        ("channels", "2", 3),
    ] {
        assert_eq!(all[counts][value], number, "{counts} {value}: {all}");
    }
    let flac = listed(&json, "audio", "mono-16.flac");
    let facts = ["codec", "sample_rate", "channels", "frames", "seconds"].map(|name| &flac[name]);
    assert_eq!(
        facts,
        [&"flac-int16".into(), &16_000.into(), &1.into(), &3200.into(), &Value::from(0.2)]
    );
    assert_eq!(flac["bytes"], audio("mono-16.flac").len());
    let longest = all["longest"].as_str().unwrap();
    let length = listed(&json, "audio", longest)["seconds"].as_f64().unwrap();
    assert_eq!(Some(length), all["duration"]["max"].as_f64());
    assert_eq!(json["classes"][1]["name"], "class-1");
}

#[test]
fn stat_reads_the_tables_of_videos() {
    let folder = folder();
    folder.add("clips/class-0/variable.mp4", &video("h264_variable_rate.mp4"));
    folder.add("clips/class-0/av1.mp4", &video("av1.mp4"));
    let json = Value::Object(run("stat", &[folder.join("clips")], &["--json"]).json());
    let all = &json["video"];
    assert_eq!((&all["files"], &all["codecs"]["h264"]), (&6.into(), &4.into()));
    assert_eq!((&all["containers"]["mp4"], &all["containers"]["matroska"]), (&4.into(), &2.into()));
    assert_eq!((&all["rates"]["variable"], &all["rates"]["constant"]), (&2.into(), &4.into()));
    let h264 = listed(&json, "video", "h264.mp4");
    let facts = ["width", "height", "rotation", "frames", "seconds", "frame_rate", "variable_rate"];
    let facts = facts.map(|name| h264[name].clone());
    let expected: [Value; 7] =
        [64.into(), 48.into(), 0.into(), 20.into(), 2.0.into(), 10.0.into(), false.into()];
    assert_eq!(facts, expected);
    assert_eq!(h264["key_distance"], serde_json::json!({"min": 8, "mean": 8.0, "max": 8}));
    // B-frames of the lowest level.
    let disposable = h264["disposable"].as_f64().unwrap();
    assert!((0.2..0.8).contains(&disposable), "{disposable}");
    let matroska = listed(&json, "video", "h264.mkv");
    assert_eq!((&matroska["variable_rate"], &matroska["frames"]), (&false.into(), &20.into()));
    let rotated = listed(&json, "video", "h264_rotated_90.mp4");
    let facts = ["width", "height", "rotation"].map(|name| &rotated[name]);
    assert_eq!(facts, [48, 64, 270]);
    assert_eq!(listed(&json, "video", "av1.mp4")["disposable"], Value::Null);
    assert_eq!(all["width"]["max"], 64.0);
}

#[test]
fn stat_describes_single_files() {
    let text = run("stat", &[source("video", "h264.mp4")], &[]);
    assert_eq!((text.code, text.stderr.as_str()), (0, ""));
    for line in [
        "size          64x48 pixels",
        "frame rate    10.00 per second, constant",
        "duration      2.00 s",
        "key frames    every 8.000 frames (mean), 8 to 8",
    ] {
        assert!(text.stdout.contains(line), "{line}: {}", text.stdout);
    }
    let text = run("stat", &[source("audio", "mono-16.flac")], &[]).stdout;
    for line in ["codec         flac-int16", "sample rate   16000 Hz", "frames        3,200"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // Several files of different types.
    let files = [source("audio", "mono.mp3"), source("video", "h264.mkv")];
    let json = run("stat", &files, &["--json"]).json();
    assert_eq!((&json["audio"]["files"], &json["video"]["files"]), (&1.into(), &1.into()));
}

#[test]
fn the_colours_of_videos_are_those_of_the_container() {
    let folder = Folder::new();
    let made = std::process::Command::new("ffmpeg")
        .args(["-v", "error", "-f", "lavfi", "-i", "testsrc=size=64x48:rate=10:duration=1"])
        .args(["-c:v", "mpeg4", "-color_primaries", "bt2020", "-color_trc", "smpte2084"])
        .args(["-colorspace", "bt2020nc"])
        .arg(folder.join("hdr.mkv"))
        .status();
    if !made.is_ok_and(|status| status.success()) {
        println!("SKIPPED: the program ffmpeg is missing");
        return;
    }
    let json = Value::Object(run("stat", &[folder.join("hdr.mkv")], &["--json"]).json());
    let expected = serde_json::json!({"primaries": 9, "transfer": 16, "matrix": 9, "hdr": true});
    assert_eq!(listed(&json, "video", "hdr.mkv")["color"], expected);
    let text = run("stat", &[folder.join("hdr.mkv")], &[]).stdout;
    assert!(text.contains("colours       primaries 9, transfer 16, matrix 9 (HDR)"), "{text}");
    let text = run("stat", &[source("video", "h264.mp4")], &[]).stdout;
    assert!(text.contains("colours       not named by the container"), "{text}");
}

#[test]
fn the_audio_of_videos_is_known_with_ffmpeg() {
    if !HAS_FFMPEG {
        println!("SKIPPED: the cargo feature ffmpeg is disabled");
        return;
    }
    let folder = Folder::new();
    let made = std::process::Command::new("ffmpeg")
        .args(["-v", "error", "-f", "lavfi", "-i", "testsrc=size=64x48:rate=10:duration=1"])
        .args(["-f", "lavfi", "-i", "sine=duration=1:sample_rate=8000", "-c:v", "mpeg4"])
        .arg(folder.join("clip.mp4"))
        .status();
    if !made.is_ok_and(|status| status.success()) {
        println!("SKIPPED: the program ffmpeg is missing");
        return;
    }
    let json = Value::Object(run("stat", &[folder.join("clip.mp4")], &["--json"]).json());
    let audio = &listed(&json, "video", "clip.mp4")["audio"];
    assert_eq!((&audio["codec"], &audio["channels"]), (&"aac".into(), &1.into()), "{json}");
    let wav = spdl().arg("cat").arg(folder.path()).args(["clip.mp4", "--end", "0.5"]).output();
    let wav = wav.unwrap().stdout;
    assert_eq!(wav.len(), 44 + 2 * 4000, "{}", String::from_utf8_lossy(&wav));
}

#[test]
fn the_html_page_shows_waveforms_and_frames() {
    let folder = folder();
    let page = folder.join("page.html");
    let result = run("stat", &[folder.path().into()], &["--html", page.to_str().unwrap()]);
    assert_eq!(result.code, 0, "{}", result.stderr);
    let text = fs::read_to_string(&page).unwrap();
    let xml = text.replacen("<!DOCTYPE html>", "", 1);
    let document = roxmltree::Document::parse(&xml).unwrap();
    let images = document.descendants().filter(|node| node.has_tag_name("img")).count();
    assert_eq!(images, if HAS_FFMPEG { 5 * VIDEOS.len() } else { 0 });
    assert_eq!(text.contains("lacks the cargo feature <code>ffmpeg</code>"), !HAS_FFMPEG);
    let waves = document.descendants().filter(|node| node.attribute("class") == Some("wave"));
    let paths = waves.map(|wave| {
        let path = wave.children().find(|node| node.attribute("class") == Some("c1"));
        path.unwrap().attribute("d").unwrap().len()
    });
    let paths: Vec<_> = paths.collect();
    assert_eq!(paths.len(), AUDIO.len());
    assert!(paths.iter().all(|len| *len > 1000), "{paths:?}");
    assert!(text.contains("Duration of videos") && text.contains("Duration of audio"));
}

#[test]
fn audio_and_video_are_listed() {
    let folder = folder();
    let list = |name: &str| run("ls", &[folder.join(name)], &[]).stdout;
    assert_eq!((list("speech").lines().count(), list("clips").lines().count()), (6, 4));
    assert!(list("clips").contains("class-0/h264.mp4"), "{}", list("clips"));
    assert_eq!(list("").lines().count(), 10);
}

#[test]
fn cat_writes_the_bytes_or_a_part_of_audio() {
    let folder = folder();
    let key = "class-0/mono-16.flac";
    let cat = |arguments: &[&str]| {
        let mut command = spdl();
        command.arg("cat").arg(folder.join("speech")).arg(key).args(arguments).output().unwrap()
    };
    assert_eq!(cat(&[]).stdout, audio("mono-16.flac"));
    let samples = audio("input.i16");
    for (arguments, part) in [
        (&["--start", "0.05", "--end", "0.1"][..], 800..1600),
        (&["--start", "0.15"], 2400..3200),
        (&["--end", "0.01"], 0..160),
        (&["--start", "0"], 0..3200),
        (&["--start", "0.1", "--end", "99"], 1600..3200),
    ] {
        let wav = cat(arguments).stdout;
        assert_eq!(&wav[44..], &samples[2 * part.start..2 * part.end], "{arguments:?}");
        assert_eq!(
            (&wav[..4], wav[24..28].as_chunks().0),
            (&b"RIFF"[..], &[16_000_u32.to_le_bytes()][..])
        );
        // The program reads the files that it writes.
        folder.add("part.wav", &wav);
        let json = run("stat", &[folder.join("part.wav")], &["--json"]).json();
        let found = &json["audio"]["listed"][0];
        assert_eq!((&found["frames"], &found["channels"]), (&part.len().into(), &1.into()));
    }
    let late = finish(cat(&["--start", "7"]));
    assert!(
        late.code == 1 && late.line().contains("there is no audio from 7 s on"),
        "{}",
        late.stderr
    );
    for wrong in [&["--start", "-1"][..], &["--frame", "1", "--end", "2"], &["--time", "x"]] {
        assert_eq!(finish(cat(wrong)).code, 2, "{wrong:?}");
    }
    let unknown = finish(cat(&["--frame", "0"]));
    assert!(
        unknown.code == 1 && unknown.line().contains("cannot decode a member"),
        "{}",
        unknown.stderr
    );
}

#[test]
fn cat_writes_a_frame_as_png() {
    let folder = folder();
    let cat = |key: &str, arguments: &[&str]| {
        let mut command = spdl();
        command.arg("cat").arg(folder.join("clips")).arg(key).args(arguments).output().unwrap()
    };
    if !HAS_FFMPEG {
        let result = finish(cat("class-0/h264.mp4", &["--frame", "0"]));
        assert_eq!(result.code, 1);
        assert!(result.line().contains("cargo feature \"ffmpeg\""), "{}", result.line());
        return;
    }
    let frame = |key: &str, arguments: &[&str]| {
        let output = cat(key, arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut reader =
            png::Decoder::new(std::io::Cursor::new(output.stdout)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        (reader.info().size(), pixels)
    };
    let twelfth = frame("class-0/h264.mp4", &["--frame", "12"]);
    assert_eq!(twelfth.0, (64, 48));
    assert_eq!(frame("class-0/h264.mp4", &["--time", "1.25"]), twelfth);
    assert_ne!(frame("class-0/h264.mp4", &["--time", "1.35"]).1, twelfth.1);
    assert_eq!(frame("class-1/h264_rotated_90.mp4", &["--frame", "0"]).0, (48, 64));
    for (arguments, words) in [
        (["--frame", "20"], "the video has 20 frames"),
        (["--time", "2"], "the video ends at 2.000 s"),
    ] {
        let result = finish(cat("class-0/h264.mp4", &arguments));
        assert!(result.code == 1 && result.line().contains(words), "{}", result.stderr);
    }
}
