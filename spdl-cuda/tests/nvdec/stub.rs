//! The stub of nvcuvid.

use std::ffi::{CStr, c_char, c_long, c_uint, c_ulonglong};
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use libloading::Library;
use spdl_core::Result;
use spdl_cuda::testing::{FakeDriver, Schedule};
use spdl_cuda::video::{VideoFrame, VideoStream};
use spdl_cuda::{CudaDevice, NvDec, Search};

pub(crate) use super::video_commands::{H264, HEVC, Headers, VP9, decode, short_video, show};

use super::stub_library::library;

/// Distance between surfaces, and between their rows, in bytes.
pub(crate) const SURFACE_BYTES: usize = 1 << 16;
pub(crate) const PITCH: u32 = 256;
/// Number of decoders with surfaces, and surfaces per decoder.
const SURFACES: [u32; 2] = [4, 2];
/// Bytes of all surfaces.
const ALL_BYTES: usize = 8 * SURFACE_BYTES;

/// The stub has global state, so tests take turns.
pub(crate) struct Stub {
    path: PathBuf,
    library: Library,
}

static STUB: LazyLock<Mutex<Stub>> = LazyLock::new(|| {
    let path = library("nvcuvid.c", "nvcuvid", &["-Wextra", "-Werror", "-Wno-unused-parameter"]);
    // SAFETY: the stub has no initialisers.
    let library = unsafe { Library::new(&path).unwrap() };
    Mutex::new(Stub { path, library })
});

pub(crate) fn stub() -> MutexGuard<'static, Stub> {
    let stub = STUB.lock().unwrap_or_else(PoisonError::into_inner);
    stub.call::<extern "C" fn()>(b"stub_reset", |reset| reset());
    stub
}

impl Stub {
    fn call<F>(&self, name: &[u8], call: impl FnOnce(&F)) {
        // SAFETY: each caller gives the type that the C file declares.
        let function = unsafe { self.library.get::<F>(name).unwrap() };
        call(&function);
    }

    fn number(&self, name: &[u8]) -> i64 {
        let mut number = 0;
        self.call::<extern "C" fn() -> c_long>(name, |function| number = function());
        number
    }

    fn text(&self, name: &[u8]) -> String {
        let mut text = String::new();
        self.call::<extern "C" fn() -> *const c_char>(name, |function| {
            // SAFETY: the text ends with a zero byte, and this thread holds the lock of the stub.
            text = unsafe { CStr::from_ptr(function()) }.to_str().unwrap().to_owned();
        });
        text
    }

    /// Makes a call fail, counted from 1; 0 for none.
    pub(crate) fn fail(&self, call: i64, code: u32) {
        self.call::<extern "C" fn(c_long, c_uint)>(b"stub_fail", |fail| fail(call, code));
    }

    pub(crate) fn calls(&self) -> i64 {
        self.number(b"stub_calls")
    }

    pub(crate) fn last_call(&self) -> String {
        self.text(b"stub_last_call")
    }

    /// Asserts that there were no invalid calls, and that no objects are alive.
    pub(crate) fn assert_clean(&self, case: &str) {
        assert_eq!(self.number(b"stub_wrong"), 0, "{case}:\n{}", self.text(b"stub_log"));
        assert_eq!(self.number(b"stub_live"), 0, "{case}: live objects");
    }

    /// The log of calls.
    pub(crate) fn log(&self) -> Vec<String> {
        self.text(b"stub_log").lines().map(str::to_owned).collect()
    }

    /// The lines of the log with this prefix.
    pub(crate) fn logged(&self, word: &str) -> Vec<String> {
        self.log().into_iter().filter(|line| line.starts_with(word)).collect()
    }

    /// Sets the address of the surfaces.
    pub(crate) fn surfaces(&self, address: u64) {
        type Set = extern "C" fn(c_ulonglong, c_uint, c_uint, usize, c_uint);
        let [decoders, each] = SURFACES;
        self.call::<Set>(b"stub_surfaces", |set| {
            set(address, decoders, each, SURFACE_BYTES, PITCH)
        });
    }

    /// Sets a function that is called when a decoder is destroyed.
    pub(crate) fn on_destroy(&self, call: extern "C" fn()) {
        self.call::<extern "C" fn(extern "C" fn())>(b"stub_on_destroy", |set| set(call));
    }

    /// Sets a function that is called when a surface is mapped: with address, bytes and stream.
    pub(crate) fn on_map(&self, call: extern "C" fn(c_ulonglong, usize, usize)) {
        type Call = extern "C" fn(c_ulonglong, usize, usize);
        self.call::<extern "C" fn(Call)>(b"stub_on_map", |set| set(call));
    }

    pub(crate) fn search(&self) -> Search {
        Search::default().at(spdl_cuda::libraries::Library::Nvcuvid, &self.path)
    }

    /// A device whose video decoders have surfaces.
    pub(crate) fn device(&self, schedule: Schedule) -> (FakeDriver, CudaDevice, NvDec) {
        let driver = FakeDriver::new(1, schedule);
        self.surfaces(driver.allocate_elsewhere(ALL_BYTES).unwrap());
        let device = CudaDevice::on(driver.clone(), 0).unwrap();
        let decoders = NvDec::new_with(&device, &self.search()).unwrap();
        (driver, device, decoders)
    }
}

/// The frames that are decoded so far.
pub(crate) fn available_frames(video: &mut VideoStream) -> Vec<Result<VideoFrame>> {
    std::iter::from_fn(|| video.next_frame()).collect()
}

/// Pushes packets in order, with their numbers as timestamps, and returns the frames.
pub(crate) fn push_all(video: &mut VideoStream, packets: &[Vec<u8>]) -> Vec<Result<VideoFrame>> {
    let mut frames = Vec::new();
    for (number, packet) in packets.iter().enumerate() {
        video.push(packet, Some(number as i64)).unwrap();
        frames.extend(available_frames(video));
    }
    frames
}
