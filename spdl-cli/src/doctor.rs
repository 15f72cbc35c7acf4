//! `spdl doctor`: what of CUDA can be used here, and what to do about the rest.

use serde_json::{Value, json};
use spdl_cuda::runtime::PartStatus;
use spdl_cuda::{Search, Status, status};

use crate::arguments::DoctorArguments;
use crate::failure::Failure;
use crate::output;

pub(crate) fn run(arguments: &DoctorArguments) -> Result<(), Failure> {
    let status = status(&Search::default());
    let text = if arguments.json { as_json(&status) } else { as_text(&status) };
    output::print(&text)
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
