//! Measurements that need NVIDIA's libraries, with stubs of these libraries.

// promise of this file: DEV5

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::pack::{Pack, ends, of_kind};
use super::stub_library::compile;
use super::video_commands::{Headers, VP9, short_video};
use super::{jpegs_with_pixels, videos};

/// An IVF file with these packets.
fn ivf(codec: &[u8; 4], packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = [&b"DKIF\0\0\x20\0"[..], codec, &[64, 0, 48, 0]].concat();
    file.extend(
        [25_u32, 1, packets.len() as u32, 0].iter().flat_map(|number| number.to_le_bytes()),
    );
    for (packet, timestamp) in packets.iter().zip(0_u64..) {
        file.extend((packet.len() as u32).to_le_bytes());
        file.extend(timestamp.to_le_bytes());
        file.extend(packet);
    }
    file
}

#[test]
fn g5_measurements_of_jpegs_and_videos_complete_and_detect_errors() {
    let Some(pack) = Pack::new() else { return };
    let stub = |source: &str, option: &str| {
        compile("gcc", &["-shared", option], &[Path::new(source)], &pack.path(source))
    };
    let (nvjpeg, nvcuvid) = (stub("nvjpeg.c", "-DWRITES_PIXELS=1"), stub("nvcuvid.c", "-Wextra"));
    for folder in ["images", "videos"] {
        fs::create_dir(pack.path(folder)).unwrap();
    }
    for number in 0..12 {
        let file = jpegs_with_pixels::jpeg(number, 1 + number as u8 % 8, number % 5 == 0);
        fs::write(pack.path("images").join(format!("{number:02}.jpg")), file).unwrap();
    }
    // Surfaces of the stub are black.
    let black = videos::hash(&[0; 64 * 48 * 3 / 2]);
    let headers = Headers::of(VP9, 64, 48);
    let video = short_video(headers, 4);
    let refused = short_video(Headers { codec: 11, ..headers }, 4);
    let corrupt = [video.clone(), vec![b"no command".to_vec()]].concat();
    // A failed video does not stop the others.
    let files = [
        ("corrupt", b"VP90", corrupt),
        ("valid", b"VP90", video.clone()),
        ("wrong", b"VP90", video),
        ("refused", b"AV01", refused),
    ];
    let mut table = String::new();
    for (name, codec, packets) in files {
        fs::write(pack.path("videos").join(format!("{name}.ivf")), ivf(codec, &packets)).unwrap();
        let hash = if name == "wrong" { "0123456789abcdef" } else { &black };
        table += &format!("{name}.ivf\t64\t48\tnv12\t{}\n", [hash; 4].join(" "));
    }
    fs::write(pack.path("videos/frames.tsv"), table).unwrap();
    let output = pack
        .command(&["--tiny", "--only", "g3,g5", "--python", "none"])
        .env("SPDL_CUDA_DRIVER", pack.driver(true))
        .env("SPDL_NVJPEG", nvjpeg)
        .env("SPDL_NVCUVID", nvcuvid)
        .output()
        .unwrap();
    let lines = pack.lines();
    let log = fs::read_to_string(pack.path("results/log.txt")).unwrap();
    let expected = [
        ("g3", "own", "done"),
        ("g3", "jpeg.py", "unsupported"),
        // One of the videos is corrupt.
        ("g5", "own", "failed"),
        ("g5", "video.py", "unsupported"),
    ];
    assert_eq!(ends(&lines), expected, "{log}");
    assert_eq!(output.status.code(), Some(1));
    let figures = of_kind(&lines, "figure");
    for case in [
        "decode only, batches of 1",
        "decode only, batches of 4, 2 decoders",
        "decode, resize to 224 and normalise, batches of 4, 2 decoders",
        "valid.ivf, 1 concurrent",
        "valid.ivf, 1 concurrent, to samples of 224 x 224",
        "wrong.ivf, 1 concurrent",
    ] {
        let rate = |line: &&&Value| line["case"] == case && line["name"] == "rate";
        // The rate may be 0 on a busy machine, because a tiny run is short.
        assert!(figures.iter().any(|line| rate(&line)), "{case}");
    }
    let promises: Vec<(&str, bool)> = of_kind(&lines, "promise")
        .into_iter()
        .map(|line| (line["promise"].as_str().unwrap(), line["holds"] == true))
        .collect();
    for (promise, holds) in [
        ("G5: a corrupt JPEG affects only itself", true),
        ("pixels decoded on the device match the CPU decoder", true),
        ("frames of valid.ivf", true),
        ("every frame is delivered: valid.ivf, 1 concurrent", true),
        ("frames of wrong.ivf", false),
        ("G6: unsupported video refused.ivf is counted", true),
        ("frames of corrupt.ivf", false),
    ] {
        let found = promises.iter().find(|(found, _)| found.starts_with(promise));
        assert_eq!(found.map(|(_, holds)| *holds), Some(holds), "{promise}: {promises:?}\n{log}");
    }
}

#[test]
fn g6_kernels_are_exact() {
    let Some(pack) = Pack::new() else { return };
    let output = pack
        .command(&["--tiny", "--only", "g6"])
        .env("SPDL_CUDA_DRIVER", pack.driver(true))
        .output()
        .unwrap();
    let lines = pack.lines();
    let promises = of_kind(&lines, "promise");
    assert_eq!(promises.len(), 6);
    assert!(promises.iter().all(|line| line["holds"] == true), "{promises:?}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn kernels_that_do_nothing_are_detected() {
    let Some(pack) = Pack::new() else { return };
    // This stub does not run the kernels for images.
    let output = pack.run(&["--tiny", "--only", "g6"]);
    let lines = pack.lines();
    let promises = of_kind(&lines, "promise");
    assert_eq!(promises.len(), 6);
    assert!(promises.iter().all(|line| line["holds"] == false), "{promises:?}");
    assert_eq!(output.status.code(), Some(1));
}
