//! Without a usable driver, errors name the remedy and are returned immediately.

// promise of this file: G10

use std::error::Error;
use std::time::{Duration, Instant};

use spdl_core::ErrorKind;
use spdl_core::memory::Space;
use spdl_cuda::driver::DriverLoadError;
use spdl_cuda::libraries::Library;
use spdl_cuda::runtime::Part;
use spdl_cuda::{CudaDevice, Search, choose_device, fallbacks, status};

/// A search that finds no driver, whatever this machine has.
fn nowhere() -> Search {
    Library::ALL
        .into_iter()
        .fold(Search::default(), |search, library| search.at(library, "no-such-folder/library.so"))
}

// promise: G10
#[test]
fn g10_without_a_driver_the_error_names_the_remedy() {
    let error = CudaDevice::open_with(3, &nowhere()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().starts_with("cannot open CUDA device 3; install an NVIDIA driver"));
    let cause = error.source().unwrap().downcast_ref::<DriverLoadError>().unwrap();
    let DriverLoadError::NotFound(not_found) = cause else { panic!("{cause:?}") };
    assert_eq!(not_found.library, Library::Driver);
    assert!(error.report().contains("no-such-folder/library.so"), "{}", error.report());
}

// promise: G10
#[test]
fn g10_the_error_is_returned_within_five_milliseconds() {
    let search = nowhere();
    let mut times = [(); 21].map(|()| {
        let start = Instant::now();
        assert!(CudaDevice::open_with(0, &search).is_err());
        start.elapsed()
    });
    times.sort();
    let median = times[10];
    assert!(median < Duration::from_millis(5), "{median:?}");
}

// promise: G10
#[test]
fn g10_the_status_names_each_part_with_its_reason_and_its_remedy() {
    let status = status(&nowhere());
    assert!(!status.available());
    let parts: Vec<Part> = status.parts.iter().map(|part| part.part).collect();
    assert_eq!(parts, [Part::Driver, Part::Device, Part::NvJpeg, Part::Nvrtc, Part::Nvcuvid]);
    for part in &status.parts {
        assert!(!part.available, "{part:?}");
        assert!(!part.detail.is_empty(), "{part:?}");
        // No remedy for the library that this crate does not use.
        let is_unused = part.part == Part::Nvrtc;
        assert_eq!(part.remedy.is_empty(), is_unused, "{part:?}");
        assert_eq!(
            part.detail.contains("optional, because kernels are precompiled"),
            is_unused,
            "{part:?}"
        );
    }
    let table = status.to_string();
    let remedies = ["525 or newer", "pip install nvidia-nvjpeg", "NVIDIA_DRIVER_CAPABILITIES"];
    assert!(remedies.iter().all(|remedy| table.contains(remedy)), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains(" missing ")).count(), 5, "{table}");
}

// promise: G10
#[test]
fn g10_auto_falls_back_to_the_host_and_reports_it_once() {
    let chosen = [(); 3].map(|()| choose_device("auto", &nowhere()).unwrap());
    assert!(chosen.iter().all(|chosen| chosen.device.space() == Space::Host));
    let first: Vec<bool> =
        chosen.iter().map(|chosen| chosen.fallback.as_ref().unwrap().is_first).collect();
    assert_eq!(first, [true, false, false]);
    assert_eq!(fallbacks(), 3);
    let reason = &chosen[0].fallback.as_ref().unwrap().reason;
    assert_eq!(reason.kind(), ErrorKind::Unsupported);
    // Explicit requests do not fall back.
    assert!(choose_device("cpu", &nowhere()).unwrap().fallback.is_none());
    for request in ["cuda", "cuda:1"] {
        let error = choose_device(request, &nowhere()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{request}");
    }
    for request in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA"] {
        let error = choose_device(request, &nowhere()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{request}");
    }
    assert_eq!(fallbacks(), 3);
}
