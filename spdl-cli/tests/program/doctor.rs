//! `spdl doctor`: what is missing is named with what to do, and is no failure.

// promise of this file: G10

use serde_json::Value;

use crate::common::{Run, finish, spdl};

/// Without a driver, whatever this machine has.
fn doctor(more: &[&str]) -> Run {
    finish(
        spdl()
            .arg("doctor")
            .args(more)
            .env("SPDL_CUDA_DRIVER", "nowhere/libcuda.so")
            .output()
            .unwrap(),
    )
}

#[test]
fn a_machine_without_cuda_is_told_what_to_do_and_that_all_else_works() {
    let run = doctor(&[]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let text = run.stdout;
    assert!(text.starts_with("CUDA: not available"), "{text}");
    assert!(text.contains("SPDL_CUDA_DRIVER: nowhere/libcuda.so"), "{text}");
    assert!(text.contains("install an NVIDIA driver"), "{text}");
}

#[test]
fn the_json_names_each_part_with_its_remedy() {
    let run = doctor(&["--json"]);
    let object: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(object["cuda"]["available"], false);
    let parts = object["cuda"]["parts"].as_array().unwrap();
    let names: Vec<&str> = parts.iter().map(|part| part["part"].as_str().unwrap()).collect();
    assert_eq!(names, ["driver", "device", "nvjpeg", "nvrtc", "nvcuvid"]);
    assert_eq!(parts[0]["available"], false);
    assert!(parts[0]["remedy"].as_str().unwrap().contains("driver"), "{object}");
}
