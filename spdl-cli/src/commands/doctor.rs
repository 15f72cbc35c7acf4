//! `spdl doctor`: what of CUDA can be used here, and what to do about the rest.

use clap::Args;
use serde_json::{Value, json};
use spdl_cuda::runtime::PartStatus;
use spdl_cuda::{Search, Status, status};

use crate::ui::failure::Failure;
use crate::ui::stdout;

/// Says what of CUDA can be used here, and what to do about the rest
///
/// Looks for the driver, its devices, and the libraries that decode JPEG and video. Nothing of it is
/// needed to load data into the host's memory.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Libraries are searched where the system has them, or at the path that one of these names:
SPDL_CUDA_DRIVER, SPDL_NVJPEG, SPDL_NVRTC, SPDL_NVCUVID.

Keys of the JSON object:
  cuda  {available, parts: [{part, available, detail, remedy}]}; `detail` says what it is and where,
        or why it is not to be had

Exit codes:
  0  always, but where the command line makes no sense (2)")]
pub(crate) struct DoctorArguments {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<(), Failure> {
    let status = status(&Search::default());
    let text = if arguments.json { as_json(&status) } else { as_text(&status) };
    stdout::print(&text)
}

fn as_text(status: &Status) -> String {
    let told = if status.available() {
        "CUDA: batches can be sent to a device"
    } else {
        "CUDA: not available, batches stay on the host; all else works without"
    };
    format!("{told}\n\n{status}\n")
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
