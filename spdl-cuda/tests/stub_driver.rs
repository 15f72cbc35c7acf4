//! The real driver bindings, with C calls into a stub of libcuda.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/stub_library.rs"]
#[allow(dead_code, reason = "other tests use the other items")]
mod stub_library;

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_long, c_uint};
use std::path::{Path, PathBuf};

use libloading::Library as Opened;
use spdl_core::memory::DeviceMemory;
use spdl_core::{Device, ErrorKind, Result};
use spdl_cuda::driver::{DriverError, DriverLoadError};
use spdl_cuda::libraries::Library;
use spdl_cuda::runtime::Part;
use spdl_cuda::{ConsumerStream, CudaDevice, CudaMemory, Search, status};
use stub_library::compile;
use tempfile::TempDir;

/// A stub, compiled for one test.
struct Stub {
    path: PathBuf,
    fail: unsafe extern "C" fn(c_long, c_uint),
    calls: unsafe extern "C" fn() -> c_long,
    live_resources: unsafe extern "C" fn(c_int) -> c_long,
    last_call: unsafe extern "C" fn() -> *const c_char,
    capture: unsafe extern "C" fn(usize),
    disturbed: unsafe extern "C" fn() -> c_long,
    _opened: Opened,
    _folder: TempDir,
}

impl Stub {
    fn compile(options: &[&str]) -> Stub {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libcuda.so.1");
        compile("gcc", &[&["-shared"], options].concat(), &[Path::new("cuda.c")], &path);
        // SAFETY: the stub has no initialisers.
        let opened = unsafe { Opened::new(&path) }.unwrap();
        Stub {
            path,
            // SAFETY: the types are those that the C file declares.
            fail: *unsafe { opened.get("stub_fail") }.unwrap(),
            // SAFETY: see above.
            calls: *unsafe { opened.get("stub_calls") }.unwrap(),
            // SAFETY: see above.
            live_resources: *unsafe { opened.get("stub_ledger") }.unwrap(),
            // SAFETY: see above.
            last_call: *unsafe { opened.get("stub_last_call") }.unwrap(),
            // SAFETY: see above.
            capture: *unsafe { opened.get("stub_capture") }.unwrap(),
            // SAFETY: see above.
            disturbed: *unsafe { opened.get("stub_disturbed") }.unwrap(),
            _opened: opened,
            _folder: folder,
        }
    }

    fn search(&self) -> Search {
        Search::default().at(Library::Driver, &self.path)
    }

    /// Makes a call fail, counted from 0 at this point.
    fn fail(&self, call: c_long, code: c_uint) {
        // SAFETY: the function accepts any numbers.
        unsafe { (self.fail)(call, code) }
    }

    fn calls(&self) -> c_long {
        // SAFETY: the function has no arguments.
        unsafe { (self.calls)() }
    }

    /// Marks a stream as captured into a graph; 0 ends the capture.
    fn capture(&self, stream: usize) {
        // SAFETY: the function accepts any number.
        unsafe { (self.capture)(stream) }
    }

    /// The number of operations on the captured stream.
    fn disturbed(&self) -> c_long {
        // SAFETY: the function has no arguments.
        unsafe { (self.disturbed)() }
    }

    /// Counts of contexts, current contexts, streams, events, device memory, pinned memory, modules.
    fn live_resources(&self) -> [c_long; 7] {
        // SAFETY: the function accepts these kinds.
        [0, 1, 2, 3, 4, 5, 6].map(|kind| unsafe { (self.live_resources)(kind) })
    }

    /// The name of the failed call.
    fn last_call(&self) -> String {
        // SAFETY: the function has no arguments.
        let name = unsafe { (self.last_call)() };
        // SAFETY: the name ends with a zero byte, and lives as long as the stub.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()
    }
}

/// Uploads and downloads a few batches.
fn round_trip(search: &Search) -> Result<()> {
    let device = CudaDevice::open_with(0, search)?;
    device.description()?;
    for number in 0..4_u8 {
        let mut buffer = device.host_buffer(5000)?;
        buffer.fill(number);
        let upload = device.upload(buffer)?;
        upload.ready.is_done()?;
        upload.ready.wait()?;
        let memory: Box<CudaMemory> = (upload.memory as Box<dyn std::any::Any>).downcast().unwrap();
        let stream = ConsumerStream::legacy_default();
        memory.wait_on(&stream)?;
        let host = memory.download(Some(&stream))?.wait()?;
        assert!(host.iter().all(|&byte| byte == number) && host.len() == 5000);
        assert_eq!(memory.space(), device.space());
    }
    Ok(())
}

// promise: DEV1
#[test]
fn round_trips_through_c_calls_leave_no_resources() {
    let stub = Stub::compile(&[]);
    round_trip(&stub.search()).unwrap();
    assert!(stub.calls() > 50, "{}", stub.calls());
    assert_eq!(stub.live_resources(), [0; 7]);
}

#[test]
fn a_captured_stream_gets_no_c_calls() {
    let stub = Stub::compile(&[]);
    let device = CudaDevice::open_with(0, &stub.search()).unwrap();
    let send = || -> Box<CudaMemory> {
        let upload = device.upload(device.host_buffer(5000).unwrap()).unwrap();
        (upload.memory as Box<dyn std::any::Any>).downcast().unwrap()
    };
    let (used, unused) = (send(), send());
    let stream = ConsumerStream::per_thread_default();
    used.wait_on(&stream).unwrap();
    stub.capture(2);
    for error in [unused.wait_on(&stream).err(), unused.download(Some(&stream)).err()] {
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("during the capture of a CUDA graph"), "{error}");
    }
    drop(used);
    assert_eq!(device.statistics().slabs.withheld_bytes, 5120);
    assert_eq!(stub.disturbed(), 0);
    stub.capture(0);
    unused.wait_on(&stream).unwrap();
    drop((unused, device));
    assert_eq!(stub.live_resources(), [0; 7]);
}

#[test]
fn the_device_is_described_and_listed() {
    let stub = Stub::compile(&[]);
    let device = CudaDevice::open_with(0, &stub.search()).unwrap();
    let description = device.description().unwrap();
    assert_eq!((&*description.name, description.compute_capability), ("Stub", (9, 0)));
    assert_eq!((description.memory_bytes, description.copy_engines), (1 << 30, 40));
    let status = status(&stub.search());
    assert!(status.available());
    let line =
        |part| status.parts.iter().find(|status| status.part == part).unwrap().detail.clone();
    assert!(line(Part::Driver).starts_with("CUDA 13.0, "), "{status}");
    assert!(line(Part::Driver).ends_with("libcuda.so.1 (explicit path)"), "{status}");
    assert_eq!(line(Part::Device), "0: Stub (9.0, 1 GiB)");
    let error = CudaDevice::open_with(1, &stub.search()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

// promise: G11
#[test]
fn g11_any_c_call_may_fail_without_leaks() {
    let stub = Stub::compile(&[]);
    round_trip(&stub.search()).unwrap();
    let calls = stub.calls();
    for code in [1, 2, 801, 999, 4242] {
        let mut reported = 0;
        for call in 0..calls {
            stub.fail(call, code);
            match round_trip(&stub.search()) {
                Ok(()) => {}
                Err(error) => {
                    reported += 1;
                    let mut cause = error.source().unwrap();
                    if let Some(DriverLoadError::InitFailed(error)) =
                        cause.downcast_ref::<DriverLoadError>()
                    {
                        cause = error;
                    }
                    let cause = cause.downcast_ref::<DriverError>().unwrap();
                    assert_eq!((cause.call, cause.code), (&*stub.last_call(), code));
                }
            }
            assert_eq!(
                stub.live_resources(),
                [0; 7],
                "call {call} ({}), code {code}",
                stub.last_call()
            );
        }
        assert!(reported > calls / 3, "only {reported} of {calls} failures reported");
    }
}

// promise: G10
#[test]
fn g10_a_driver_without_a_required_function_is_too_old() {
    let stub = Stub::compile(&["-DWITHOUT_cuStreamWaitEvent"]);
    let error = CudaDevice::open_with(0, &stub.search()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let cause = error.source().unwrap().downcast_ref::<DriverLoadError>().unwrap();
    let missing_function = Some("cuStreamWaitEvent");
    assert_eq!(
        *cause,
        DriverLoadError::TooOld { required: 12_000, found: Some(13_000), missing_function }
    );
    assert_eq!(stub.calls(), 0);
}

// promise: G10
#[test]
fn g10_a_driver_of_an_older_cuda_version_is_refused() {
    let stub = Stub::compile(&["-DVERSION=11040"]);
    let error = CudaDevice::open_with(0, &stub.search()).unwrap_err();
    let report = error.report();
    assert!(report.contains("install an NVIDIA driver of version 525"), "{report}");
    assert!(report.ends_with("CUDA 12.0 is required, found 11.4"), "{report}");
    assert_eq!(stub.calls(), 0);
}

// promise: G10
#[test]
fn g10_a_failed_initialisation_reports_its_cause() {
    let stub = Stub::compile(&[]);
    stub.fail(0, 100);
    let error = CudaDevice::open_with(0, &stub.search()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("CUDA_VISIBLE_DEVICES"), "{error}");
    stub.fail(0, 803);
    let status = status(&stub.search());
    assert!(!status.available());
    assert!(status.parts[0].remedy.contains("reboot"), "{status}");
}

#[test]
fn libraries_of_python_wheels_are_found() {
    let stub = Stub::compile(&[]);
    let packages = tempfile::tempdir().unwrap();
    let folder = packages.path().join("nvidia/nvjpeg/lib");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(&stub.path, folder.join("libnvjpeg.so.12")).unwrap();
    let status = status(&Search::default().wheels_in(packages.path()));
    assert!(status.is_available(Part::NvJpeg), "{status}");
    assert!(status.to_string().contains("libnvjpeg.so.12 (Python wheel)"), "{status}");
}
