//! The waveforms and the frames of videos on the HTML page.

use std::collections::BTreeMap;

use spdl_core::Result;
use spdl_io::Key;
use spdl_media::encode::{ImageEncoder, JpegEncoder};
use spdl_media::{Size, video::VideoClip};
use twox_hash::XxHash3_128;

use crate::inspection::media::{AudioInspector, Envelope, VideoInspector};

/// Maximum number of audio files, and of videos, on the page.
const SHOWN: usize = 24;
/// Number of frames of a video.
const FRAMES: usize = 5;
/// The longer side of a frame in pixels.
const SIDE: u32 = 160;
/// Number of columns of a waveform.
const COLUMNS: usize = 200;

/// The files whose names have the smallest hashes: a reproducible sample from all parts of the set.
#[derive(Debug)]
struct Selection<T>(BTreeMap<u128, Option<(String, T)>>);

impl<T> Default for Selection<T> {
    fn default() -> Self {
        Selection(BTreeMap::new())
    }
}

impl<T> Selection<T> {
    /// Offers a file; `preview` is called if the file is among those with the smallest hashes.
    fn offer(&mut self, name: &Key, preview: impl FnOnce() -> Result<T>) {
        let hash = XxHash3_128::oneshot(name.as_bytes());
        let largest = self.0.last_key_value().map(|(hash, _)| *hash);
        if self.0.len() >= SHOWN && largest.is_some_and(|largest| hash >= largest) {
            return;
        }
        // A file that cannot be decoded keeps its entry, so that the selection of other files does
        // not depend on it.
        self.0.insert(hash, preview().ok().map(|preview| (name.to_string(), preview)));
        while self.0.len() > SHOWN {
            self.0.pop_last();
        }
    }

    /// The previews, sorted by name.
    fn into_sorted(self) -> Vec<(String, T)> {
        let mut all: Vec<_> = self.0.into_values().flatten().collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

/// Minimum and maximum of the samples in each column.
pub(crate) type Waveform = Vec<(f32, f32)>;

/// The frames of a video as JPEG files, in order.
pub(crate) type Frames = Vec<Vec<u8>>;

/// Makes previews of audio and video files.
#[derive(Debug, Default)]
pub(crate) struct Previews {
    waveforms: Selection<(String, Waveform)>,
    frames: Selection<(String, Frames)>,
    audio: Option<AudioInspector>,
    video: Option<VideoInspector>,
}

/// A preview with the name of its file and a caption.
#[derive(Debug)]
pub(crate) struct Preview<T> {
    pub(crate) name: String,
    pub(crate) caption: String,
    pub(crate) content: T,
}

impl Previews {
    pub(super) fn offer_audio(&mut self, name: &Key, data: &[u8], caption: String) {
        let inspector = self.audio.get_or_insert_with(AudioInspector::new);
        self.waveforms.offer(name, || Ok((caption, waveform(inspector, data)?)));
    }

    pub(super) fn offer_video(&mut self, name: &Key, data: &[u8], caption: String) {
        let inspector = self.video.get_or_insert_with(VideoInspector::new);
        self.frames.offer(name, || Ok((caption, frames(inspector, data)?)));
    }

    /// The waveforms, and the frames of videos.
    pub(super) fn into_sheets(self) -> (Vec<Preview<Waveform>>, Vec<Preview<Frames>>) {
        (listed(self.waveforms), listed(self.frames))
    }
}

fn listed<T>(selection: Selection<(String, T)>) -> Vec<Preview<T>> {
    let preview = |(name, (caption, content))| Preview { name, caption, content };
    selection.into_sorted().into_iter().map(preview).collect()
}

fn waveform(inspector: &mut AudioInspector, data: &[u8]) -> Result<Waveform> {
    let mut envelope = Envelope::new(COLUMNS);
    inspector.decode(data, 0.0, f64::INFINITY, |waveform| {
        envelope.add(waveform.channels());
        Ok(())
    })?;
    Ok(envelope.columns().to_vec())
}

fn frames(inspector: &mut VideoInspector, data: &[u8]) -> Result<Frames> {
    let index = inspector.index(data)?;
    let count = FRAMES.min(index.frames().len());
    let chosen = VideoClip::new(count).choose(&index, None)?;
    let images = inspector.images(data, &index, &chosen.frames, within_side)?;
    let encoder = JpegEncoder::new().quality(75);
    images.iter().map(|image| encoder.encode_image(image)).collect()
}

/// The size of a frame on the page: its longer side is at most [`SIDE`].
fn within_side(size: Size) -> Size {
    let longer = size.width.max(size.height).max(1);
    let scaled = |side: u32| {
        let side = u64::from(side) * u64::from(SIDE.min(longer)) / u64::from(longer);
        (side as u32).max(1)
    };
    Size::new(scaled(size.width), scaled(size.height))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_shape_and_are_not_enlarged() {
        assert_eq!(within_side(Size::new(1920, 1080)), Size::new(160, 90));
        assert_eq!(within_side(Size::new(64, 48)), Size::new(64, 48));
        assert_eq!(within_side(Size::new(4000, 1)), Size::new(160, 1));
    }

    #[test]
    fn the_selection_does_not_depend_on_the_order() {
        let of = |numbers: &mut dyn Iterator<Item = u32>| {
            let mut selection = Selection::default();
            for number in numbers {
                selection.offer(&Key::from(number.to_string()), || Ok(number));
            }
            selection.into_sorted()
        };
        let selected = of(&mut (0..100));
        assert_eq!(selected.len(), SHOWN);
        assert_eq!(selected, of(&mut (0..100).rev()));
    }
}
