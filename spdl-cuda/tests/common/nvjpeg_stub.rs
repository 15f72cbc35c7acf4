//! A stub of nvJPEG, without a device.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use libloading::Library;
use spdl_cuda::Search;

use super::stub_library::library;

/// The stub, compiled with additional options.
pub(crate) fn compiled(name: &str, options: &[&str]) -> PathBuf {
    library("nvjpeg.c", name, &[&["-Wextra", "-Werror"], options].concat())
}

/// The stub has global state, so tests take turns.
pub(crate) struct Stub {
    path: PathBuf,
    library: Library,
}

static STUB: LazyLock<Mutex<Stub>> = LazyLock::new(|| {
    let path = compiled("nvjpeg", &[]);
    // SAFETY: the stub has no initialisers.
    let library = unsafe { Library::new(&path).unwrap() };
    Mutex::new(Stub { path, library })
});

pub(crate) fn stub() -> MutexGuard<'static, Stub> {
    let stub = STUB.lock().unwrap_or_else(PoisonError::into_inner);
    stub.call::<fn()>(b"stub_reset", |reset| reset());
    stub
}

impl Stub {
    pub(crate) fn call<F>(&self, name: &[u8], call: impl FnOnce(&F)) {
        // SAFETY: each caller gives the type that the C file declares.
        let function = unsafe { self.library.get::<F>(name).unwrap() };
        call(&function);
    }

    pub(crate) fn number(&self, name: &[u8]) -> i32 {
        let mut number = 0;
        self.call::<extern "C" fn() -> c_int>(name, |function| number = function());
        number
    }

    pub(crate) fn fail(&self, call: i32, status: i32) {
        self.call::<extern "C" fn(c_int, c_int)>(b"stub_fail", |fail| fail(call, status));
    }

    pub(crate) fn engines(&self, count: i32, status: i32) {
        self.call::<extern "C" fn(c_int, c_int)>(b"stub_engines", |set| set(count, status));
    }

    /// Excludes the live objects from later counts.
    pub(crate) fn forget(&self) {
        self.call::<extern "C" fn()>(b"stub_forget", |forget| forget());
    }

    /// The decoded images: backend, output address, pitch, and bytes of the encoded image.
    pub(crate) fn decoded(&self) -> Vec<(String, usize, usize, usize)> {
        let mut lines = Vec::new();
        self.call::<extern "C" fn() -> *const c_char>(b"stub_log", |log| {
            // SAFETY: the text ends with a zero byte, and this thread holds the lock of the stub.
            let text = unsafe { CStr::from_ptr(log()) }.to_str().unwrap();
            for line in text.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let number = |at: usize| words[at].parse().unwrap();
                lines.push((words[0].to_owned(), number(1), number(2), number(3)));
            }
        });
        lines
    }

    pub(crate) fn search(&self) -> Search {
        Search::default().at(spdl_cuda::libraries::Library::NvJpeg, &self.path)
    }
}

/// A JPEG of colour with this SOF marker and size, without coded data.
pub(crate) fn jpeg(marker: u8, height: u16, width: u16) -> Vec<u8> {
    // The first scan of a progressive image has only DC coefficients.
    let last_coefficient = if marker == 0xC2 { 0 } else { 63 };
    let mut encoded = vec![0xFF, 0xD8, 0xFF, marker, 0, 17, 8];
    encoded.extend(height.to_be_bytes());
    encoded.extend(width.to_be_bytes());
    encoded.extend([3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1]);
    encoded.extend([0xFF, 0xDA, 0, 12, 3, 1, 0, 2, 0x11, 3, 0x11, 0, last_coefficient, 0]);
    encoded.extend([0xFF, 0xD9]);
    encoded
}
