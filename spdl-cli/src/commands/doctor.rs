//! `spdl doctor`: which CUDA libraries and devices this machine has.

use clap::Args;
use serde_json::{Value, json};
use spdl_cuda::runtime::PartStatus;
use spdl_cuda::{Search, Status, status};

use crate::ui::failure::Failure;
use crate::ui::stdout;

/// Checks the CUDA driver, devices and libraries
///
/// Looks for the driver, its devices, the JPEG decoder (nvJPEG), the video decoder (NVCUVID) and
/// the runtime compiler (NVRTC). If one of them is missing, prints how to install it. Loading data
/// into host memory needs none of them.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  spdl doctor
  spdl doctor --json | jq '.cuda.parts[] | select(.available | not)'

Libraries are searched in the default locations of the system, or at the path in SPDL_CUDA_DRIVER,
SPDL_NVJPEG, SPDL_NVRTC or SPDL_NVCUVID.

Keys of the JSON object:
  cuda  {available, parts: [{part, available, detail, remedy}]}; `detail` gives version and path, or
        the reason why the part is not available

Exit codes:
  0  success, also without CUDA
  2  invalid command line")]
pub(crate) struct DoctorArguments {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<(), Failure> {
    let status = status(&Search::default());
    let text = if arguments.json { as_json(&status) } else { as_text(&status) };
    stdout::print(&text)
}

fn as_text(status: &Status) -> String {
    let summary = if status.available() {
        "CUDA: available, batches can be transferred to a device"
    } else {
        "CUDA: not available, batches stay in host memory; everything else works"
    };
    format!("{summary}\n\n{status}\n")
}

fn as_json(status: &Status) -> String {
    let part = |part: &PartStatus| {
        json!({
            "part": part.part.to_string(),
            "available": part.available,
            "detail": part.detail,
            "remedy": part.remedy,
        })
    };
    let parts: Vec<Value> = status.parts.iter().map(part).collect();
    let object = json!({"cuda": {"available": status.available(), "parts": parts}});
    format!("{object:#}\n")
}
