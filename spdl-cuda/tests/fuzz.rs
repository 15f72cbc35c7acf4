//! The fuzz targets of `spdl-cuda` as ordinary tests.

// promise of this file: R1

#[path = "../../fuzz/tests.rs"]
mod fuzz;
#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "the library of the fuzz targets, included as a module")]
mod targets;

use fuzz::{files, fuzz};

#[test]
fn annexb_streams() {
    fuzz("annexb", &files("tests/data/video", &["h264", "hevc"]), targets::annexb);
}

#[test]
fn ivf_files() {
    fuzz("ivf", &files("tests/data/video", &["ivf"]), targets::ivf);
}
