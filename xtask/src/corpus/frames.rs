//! Compares the frames of videos with those of the program `ffmpeg`.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Pixel formats whose planes the decoder returns as they are.
const COMPARED: [&str; 12] = [
    "gray", "yuv410p", "yuv411p", "yuv420p", "yuv422p", "yuv440p", "yuv444p", "yuvj411p",
    "yuvj420p", "yuvj422p", "yuvj440p", "yuvj444p",
];

/// How many videos have the frames of `ffmpeg`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct FrameAgreement {
    videos: usize,
    frames: usize,
    /// Videos of other pixel formats, which are not compared: the decoder reduces them to 8 bits, or to YUV.
    other_formats: usize,
    /// Files in which `ffprobe` finds no video, such as audio.
    without_video: usize,
    /// Videos that we refuse, with the error: for damaged ones, `ffmpeg` invents frames.
    refused: Vec<(String, String)>,
    /// The file, and how its frames differ.
    differing: Vec<(String, String)>,
}

/// Compares all frames of these files below `root`; `None` if the program `ffmpeg` is not installed.
pub(super) fn compare<'a>(
    worker: &Path,
    root: &Path,
    names: impl Iterator<Item = &'a str>,
) -> Result<Option<FrameAgreement>> {
    let mut agreement = FrameAgreement::default();
    for name in names {
        let path = if name.is_empty() { root.to_owned() } else { root.join(name) };
        let format =
            ["-select_streams", "v:0", "-show_entries", "stream=pix_fmt", "-of", "csv=p=0"];
        let mut probe = Command::new("ffprobe");
        probe.args(["-v", "error"]).args(format).arg(&path);
        let Some(format) = printed(&mut probe)? else { return Ok(None) };
        let format = format.lines().next().unwrap_or("").trim_end_matches(',');
        if format.is_empty() {
            agreement.without_video += 1;
            continue;
        }
        if !COMPARED.contains(&format) {
            agreement.other_formats += 1;
            continue;
        }
        let ours = Command::new(worker).arg("frames").arg(&path).output();
        let ours = ours.with_context(|| format!("cannot run {}", worker.display()))?;
        if !ours.status.success() {
            let errors = String::from_utf8_lossy(&ours.stderr).into_owned();
            let error = errors.lines().last().unwrap_or("no message").to_owned();
            agreement.refused.push((name.to_owned(), error));
            continue;
        }
        let ours = String::from_utf8_lossy(&ours.stdout).into_owned();
        let mut decode = Command::new("ffmpeg");
        decode.args(["-nostdin", "-v", "error", "-noautorotate", "-i"]).arg(&path);
        decode.args(["-map", "0:v:0", "-vsync", "passthrough", "-f", "framehash"]);
        decode.args(["-hash", "sha256", "-"]);
        let Some(theirs) = printed(&mut decode)? else { return Ok(None) };
        agreement.add(name, &ours.lines().collect::<Vec<_>>(), &hashes(&theirs));
    }
    Ok(Some(agreement))
}

/// The hashes in a list of the format `framehash`.
fn hashes(list: &str) -> Vec<&str> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.rsplit(',').next()).map(str::trim).collect()
}

/// What a program prints; `None` if it is not installed.
fn printed(command: &mut Command) -> Result<Option<String>> {
    match command.output() {
        Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot run {:?}", command.get_program())),
    }
}

impl FrameAgreement {
    fn add(&mut self, name: &str, ours: &[&str], theirs: &[&str]) {
        self.videos += 1;
        self.frames += ours.len();
        let first = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs);
        let difference = match first {
            Some(frame) => format!("frame {frame} has other pixels"),
            None if ours.len() == theirs.len() => return,
            None => format!("{} frames, by ffmpeg {}", ours.len(), theirs.len()),
        };
        self.differing.push((name.to_owned(), difference));
    }

    /// Whether all compared videos have the frames of `ffmpeg`, and not all videos were left out.
    pub(super) fn is_complete(&self) -> bool {
        let left_out = self.other_formats + self.refused.len();
        self.differing.is_empty() && (self.videos > 0 || left_out == 0)
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} videos with {} frames compared with ffmpeg, {} differ; not compared: {} of other pixel formats, \
             {} without video, {} refused\n",
            self.videos,
            self.frames,
            self.differing.len(),
            self.other_formats,
            self.without_video,
            self.refused.len()
        );
        for (name, difference) in &self.differing {
            let _ = writeln!(text, "  {name}: {difference}");
        }
        for (name, error) in &self.refused {
            let _ = writeln!(text, "  {name}: refused: {error}");
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "videos": self.videos,
            "frames": self.frames,
            "other_formats": self.other_formats,
            "without_video": self.without_video,
            "refused": self.refused,
            "differing": self.differing,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn videos_differ_by_pixels_or_by_the_number_of_frames() {
        let list =
            "#format: frame checksums\n#hash: SHA256\n0, 0, 0, 1, 4608, aa\n0, 1, 1, 1, 4608, bb\n";
        assert_eq!(hashes(list), ["aa", "bb"]);
        let mut agreement = FrameAgreement::default();
        assert!(agreement.is_complete(), "a folder without videos");
        agreement.other_formats += 1;
        assert!(!agreement.is_complete(), "no video was compared");
        agreement.add("a.mp4", &["aa", "bb"], &hashes(list));
        assert!(agreement.is_complete());
        agreement.add("b.mp4", &["aa", "cc"], &hashes(list));
        agreement.add("c.mp4", &["aa"], &hashes(list));
        assert!(!agreement.is_complete());
        let text = agreement.text();
        assert!(
            text.starts_with("3 videos with 5 frames compared with ffmpeg, 2 differ"),
            "{text}"
        );
        assert!(text.contains("b.mp4: frame 1 has other pixels"), "{text}");
        assert!(text.contains("c.mp4: 1 frames, by ffmpeg 2"), "{text}");
        agreement.refused.push(("d.mp4".into(), "truncated".into()));
        assert!(agreement.text().ends_with("  d.mp4: refused: truncated\n"));
        assert_eq!(agreement.json()["differing"][0][0], "b.mp4");
        let mut absent = Command::new("no-such-program-of-spdl");
        assert!(printed(&mut absent).unwrap().is_none());
    }
}
