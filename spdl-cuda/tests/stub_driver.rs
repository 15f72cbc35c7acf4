//! The driver as it is opened on a machine, down to the calls of C, with a libcuda that has no device
//! behind it.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/stub_library.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
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
        // SAFETY: it has no initialisers.
        let opened = unsafe { Opened::new(&path) }.unwrap();
        Stub {
            path,
            // SAFETY: this is its type; so for the others.
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

    /// Lets a call fail, counted from now on.
    fn fail(&self, call: c_long, code: c_uint) {
        // SAFETY: it takes any numbers.
        unsafe { (self.fail)(call, code) }
    }

    fn calls(&self) -> c_long {
        // SAFETY: it takes nothing.
        unsafe { (self.calls)() }
    }

    /// Lets a stream be captured into a graph; 0 ends that.
    fn capture(&self, stream: usize) {
        // SAFETY: it takes any number.
        unsafe { (self.capture)(stream) }
    }

    /// How often a stream was told something while it was captured.
    fn disturbed(&self) -> c_long {
        // SAFETY: it takes nothing.
        unsafe { (self.disturbed)() }
    }

    /// Contexts, current ones, streams, events, memory, locked memory, modules.
    fn live_resources(&self) -> [c_long; 7] {
        // SAFETY: these are its kinds.
        [0, 1, 2, 3, 4, 5, 6].map(|kind| unsafe { (self.live_resources)(kind) })
    }

    /// The call that failed.
    fn last_call(&self) -> String {
        // SAFETY: it takes nothing.
        let name = unsafe { (self.last_call)() };
        // SAFETY: it ends with a zero byte, and stays as long as the stub does.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()
    }
}

/// A few batches there and back.
fn there_and_back(search: &Search) -> Result<()> {
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
fn batches_go_there_and_back_through_the_calls_of_c_and_nothing_stays() {
    let stub = Stub::compile(&[]);
    there_and_back(&stub.search()).unwrap();
    assert!(stub.calls() > 50, "{}", stub.calls());
    assert_eq!(stub.live_resources(), [0; 7]);
}

#[test]
fn a_stream_that_is_captured_is_told_nothing_through_the_calls_of_c() {
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
fn g11_any_call_of_c_may_fail_and_nothing_stays() {
    let stub = Stub::compile(&[]);
    there_and_back(&stub.search()).unwrap();
    let calls = stub.calls();
    for code in [1, 2, 801, 999, 4242] {
        let mut told = 0;
        for call in 0..calls {
            stub.fail(call, code);
            match there_and_back(&stub.search()) {
                Ok(()) => {}
                Err(error) => {
                    told += 1;
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
        assert!(told > calls / 3, "{told} of {calls} were told");
    }
}

// promise: G10
#[test]
fn g10_a_driver_that_lacks_a_function_is_too_old_and_the_function_is_named() {
    let stub = Stub::compile(&["-DWITHOUT_cuStreamWaitEvent"]);
    let error = CudaDevice::open_with(0, &stub.search()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let cause = error.source().unwrap().downcast_ref::<DriverLoadError>().unwrap();
    let missing_function = Some("cuStreamWaitEvent");
    assert_eq!(
        *cause,
        DriverLoadError::TooOld { required: 12_000, found: Some(13_000), missing_function }
    );
    assert_eq!(stub.calls(), 0, "none was called");
}

// promise: G10
#[test]
fn g10_a_driver_of_an_older_cuda_is_refused_with_both_versions() {
    let stub = Stub::compile(&["-DVERSION=11040"]);
    let error = CudaDevice::open_with(0, &stub.search()).unwrap_err();
    let report = error.report();
    assert!(report.contains("install an NVIDIA driver of version 525"), "{report}");
    assert!(report.ends_with("CUDA 12.0 is required, found 11.4"), "{report}");
    assert_eq!(stub.calls(), 0, "none was called");
}

// promise: G10
#[test]
fn g10_a_driver_that_does_not_start_says_why() {
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
fn libraries_of_wheels_are_found_in_folders_of_packages() {
    let stub = Stub::compile(&[]);
    let packages = tempfile::tempdir().unwrap();
    let folder = packages.path().join("nvidia/nvjpeg/lib");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(&stub.path, folder.join("libnvjpeg.so.12")).unwrap();
    let status = status(&Search::default().wheels_in(packages.path()));
    assert!(status.is_available(Part::NvJpeg), "{status}");
    assert!(status.to_string().contains("libnvjpeg.so.12 (Python wheel)"), "{status}");
}
