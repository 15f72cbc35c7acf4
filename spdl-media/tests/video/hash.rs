//! Hashes of frames, as `ffmpeg -f framehash -hash sha256` prints them.

use sha2::{Digest, Sha256};
use spdl_media::image::{ColorModel, Picture};

/// The hash of the planes of a frame, in the order in which FFmpeg stores them.
pub(crate) fn hash(picture: &Picture) -> String {
    let mut hash = Sha256::new();
    for (at, plane) in picture.planes().iter().enumerate() {
        let rows = || (0..plane.shape().area.height).map(|row| plane.row(row));
        match picture.color() {
            ColorModel::Rgb => {
                for channel in [1, 2, 0] {
                    for row in rows() {
                        let values: Vec<_> = row.iter().skip(channel).step_by(3).copied().collect();
                        hash.update(values);
                    }
                }
            }
            _ => {
                assert!(at < 3);
                rows().for_each(|row| hash.update(row));
            }
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
