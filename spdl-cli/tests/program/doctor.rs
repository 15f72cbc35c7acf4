//! `spdl doctor`: advice for missing libraries, and exit code 0.

use serde_json::Value;

use crate::common::{Run, finish, spdl};

/// Runs `spdl doctor` without a driver, on any machine.
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

// promise: G10
#[test]
fn doctor_gives_advice_without_cuda() {
    let run = doctor(&[]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let text = run.stdout;
    assert!(text.starts_with("CUDA: not available"), "{text}");
    assert!(text.contains("SPDL_CUDA_DRIVER: nowhere/libcuda.so"), "{text}");
    assert!(text.contains("install an NVIDIA driver"), "{text}");
}

#[test]
fn the_json_of_doctor_lists_all_parts() {
    let run = doctor(&["--json"]);
    let object: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(object["cuda"]["available"], false);
    let parts = object["cuda"]["parts"].as_array().unwrap();
    let names: Vec<&str> = parts.iter().map(|part| part["part"].as_str().unwrap()).collect();
    assert_eq!(names, ["driver", "device", "nvjpeg", "nvrtc", "nvcuvid"]);
    assert_eq!(parts[0]["available"], false);
    assert!(parts[0]["remedy"].as_str().unwrap().contains("driver"), "{object}");
}
