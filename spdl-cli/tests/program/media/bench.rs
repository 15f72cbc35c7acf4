//! `spdl bench` with the options for video and audio.

use super::*;

fn bench(data: &Path, arguments: &[&str]) -> Run {
    finish(spdl().arg("bench").arg(data).args(arguments).output().unwrap())
}

/// The text of a run, without line breaks.
fn text_of(data: &Path, arguments: &[&str]) -> String {
    bench(data, arguments).stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The checksum of a run with options, and of one with the same fields in a file.
fn checksums(folder: &Folder, data: &Path, options: &[&str], spec: &str) -> [String; 2] {
    folder.add("spec.toml", spec.as_bytes());
    let spec = folder.join("spec.toml");
    let common: Vec<&str> =
        options.iter().copied().filter(|it| ["--mode", "train"].contains(it)).collect();
    let with_spec = [&["--spec", spec.to_str().unwrap(), "--json"], &common[..]].concat();
    [[options, &["--json"]].concat(), with_spec].map(|arguments| {
        let json = bench(data, &arguments).json();
        json["checksum"].as_str().unwrap().to_owned()
    })
}

#[test]
fn options_for_audio_are_a_shorthand_for_a_spec() {
    let folder = folder();
    let speech = folder.join("speech");
    let label = "[fields.label]\ntype = 'label'";
    let mel = format!("[fields.mel]\ntype = 'mel'\nframes = 16000\n{label}");
    let [short, spec] = checksums(&folder, &speech, &["--mel", "80", "--seconds", "1"], &mel);
    assert_eq!(short, spec);
    let raw =
        "[fields.audio]\ntype = 'audio'\nchannels = 'mono'\nsample_rate = 8000\nframes = 800\n";
    let options = ["--seconds", "0.1", "--rate", "8000", "--mode", "train"];
    let random = format!("{raw}random = true\n{label}");
    let [short, spec] = checksums(&folder, &speech, &options, &random);
    assert_eq!(short, spec);
    assert_ne!(checksums(&folder, &speech, &options[..4], &format!("{raw}{label}"))[0], short);
}

#[test]
fn windows_of_long_audio_are_read_in_parts() {
    let folder = Folder::new();
    // 8 kHz, 8 bits.
    let mut wav =
        b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1F\0\0\x40\x1F\0\0\x01\0\x08\0data"
            .to_vec();
    let frames = 32_u32 << 20;
    wav.extend(frames.to_le_bytes());
    wav.resize(wav.len() + frames as usize, 0x80);
    let size = (wav.len() as u32 - 8).to_le_bytes();
    wav[4..8].copy_from_slice(&size);
    folder.add("long.wav", &wav);
    let options = ["--seconds", "0.1", "--rate", "8000", "--mode", "train", "--json"];
    let json = bench(folder.path(), &options).json();
    assert_eq!(json["images"], 1);
    let peak = json["memory"]["peak_bytes"].as_u64().unwrap();
    assert!(peak < 4 << 20, "{peak} bytes");
}

#[test]
fn seconds_of_audio_are_counted_without_padding() {
    let folder = Folder::new();
    folder.add("a.flac", &audio("mono-16.flac"));
    folder.add("b.wav", &audio("stereo-24.wav"));
    for options in [&["--mel", "80"][..], &["--seconds", "30"]] {
        let json = bench(folder.path(), &[options, &["--json"]].concat()).json();
        assert_eq!((&json["images"], &json["labelled"]), (&2.into(), &0.into()));
        let total = json["audio_s_per_s"].as_f64().unwrap() * json["seconds"].as_f64().unwrap();
        // 3,200 frames each, at 16,000 and 44,100 Hz.
        let expected = 0.2 + 3200.0 / 44_100.0;
        assert!((total - expected).abs() < 1e-3, "{total}");
        assert_eq!(json["frames_per_s"], Value::Null);
    }
    let text = text_of(folder.path(), &["--mel", "80"]);
    for words in ["samples/s ", "s of audio/s ", "log-mel of 80 bins, 30 s at 16000 Hz", "decode "]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("images"), "{text}");
}

#[test]
fn options_for_video_are_a_shorthand_for_a_spec() {
    let folder = folder();
    let clips = folder.join("clips");
    let options = ["--frames", "4", "--every", "0.1s", "--size", "32"];
    if !HAS_FFMPEG {
        let result = bench(&clips, &options);
        assert_eq!(result.code, 1);
        assert!(result.stderr.contains("cargo feature \"ffmpeg\""), "{}", result.stderr);
        return;
    }
    let label = "[fields.label]\ntype = 'label'";
    let video = "[fields.video]\ntype = 'video'\nframes = 4\nsize = 32\nshort = 'repeat'\n";
    let spaced = format!("{video}every = '0.1s'\n{label}");
    let [short, spec] = checksums(&folder, &clips, &options, &spaced);
    assert_eq!(short, spec);
    let even = format!("{video}train = true\nrandom = true\n{label}");
    let [other, spec] =
        checksums(&folder, &clips, &["--frames", "4", "--size", "32", "--mode", "train"], &even);
    assert_eq!(other, spec);
    assert_ne!(other, short);
    let json = bench(&clips, &[&options[..], &["--json"]].concat()).json();
    let [clips_per_s, frames] =
        ["images_per_s", "frames_per_s"].map(|key| json[key].as_f64().unwrap());
    assert!((frames / clips_per_s - 4.0).abs() < 1e-9 && clips_per_s > 0.0);
    assert_eq!((&json["labelled"], &json["audio_s_per_s"]), (&4.into(), &Value::Null));
    // The videos have fewer frames: the last one is repeated.
    let short = bench(&clips, &["--frames", "30", "--size", "32", "--json"]).json();
    assert_eq!(short["images"], 4);
    let text = text_of(&clips, &options);
    for words in ["4 videos in 2 classes", "4 frames every 0.1 s, size 32", "clips/s ", "frames/s "]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn shards_of_audio_are_measured() {
    let folder = folder();
    let shards = folder.join("shards");
    let packed = spdl().arg("pack").args([folder.join("speech"), shards.clone()]).output().unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    let json = bench(&shards, &["--seconds", "0.1", "--json"]).json();
    assert_eq!((&json["images"], &json["labelled"]), (&6.into(), &6.into()));
}

#[test]
fn a_folder_without_images_advises_the_options() {
    let folder = folder();
    for name in ["speech", "clips"] {
        let result = bench(&folder.join(name), &[]);
        let advice = "to load videos, use --frames; to load audio, use --mel or --seconds";
        assert!(result.code == 1 && result.line().contains(advice), "{}", result.stderr);
    }
    let empty = Folder::new();
    let result = bench(empty.path(), &[]);
    assert!(!result.line().contains("--frames"), "{}", result.line());
}
