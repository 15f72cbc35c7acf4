//! The stand-in, and packets for it.

use std::ffi::{CStr, c_char, c_long, c_uint, c_ulonglong};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use libloading::Library;
use spdl_core::Result;
use spdl_cuda::testing::{FakeDriver, Schedule};
use spdl_cuda::{CudaDevice, NvDec, Search, VideoFrame, VideoStream};

/// Surfaces are this far from each other, and have rows this long.
pub(crate) const SURFACE_BYTES: usize = 1 << 16;
pub(crate) const PITCH: u32 = 256;
/// For so many decoders, so many each.
const SURFACES: [u32; 2] = [4, 2];
/// What surfaces take.
const ALL_BYTES: usize = 8 * SURFACE_BYTES;

/// A stand-in, compiled from C.
pub(crate) fn compiled(source: &str, name: &str, options: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("{name}-{}.so", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stub").join(source);
    let status = Command::new("gcc")
        .args(["-shared", "-fPIC", "-O1"])
        .args(options)
        .arg("-o")
        .arg(&library)
        .arg(source)
        .status()
        .expect("gcc is needed to build this project");
    assert!(status.success());
    library
}

/// The stand-in has one state: one test at a time.
pub(crate) struct Stub {
    path: PathBuf,
    library: Library,
}

static STUB: LazyLock<Mutex<Stub>> = LazyLock::new(|| {
    let path =
        compiled("nvcuvid.c", "nvcuvid", &["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]);
    // SAFETY: it has no initialisers.
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
        // SAFETY: each caller names the function's type as it stands in the C file.
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
            // SAFETY: it is text that ends with a zero, and nobody changes it meanwhile.
            text = unsafe { CStr::from_ptr(function()) }.to_str().unwrap().to_owned();
        });
        text
    }

    /// Lets a call fail, counted from 1 on; none for 0.
    pub(crate) fn fail(&self, call: i64, code: u32) {
        self.call::<extern "C" fn(c_long, c_uint)>(b"stub_fail", |fail| fail(call, code));
    }

    pub(crate) fn calls(&self) -> i64 {
        self.number(b"stub_calls")
    }

    pub(crate) fn last_call(&self) -> String {
        self.text(b"stub_last_call")
    }

    /// Asserts that nothing was used wrongly, and that nothing is left.
    pub(crate) fn assert_clean(&self, case: &str) {
        assert_eq!(self.number(b"stub_wrong"), 0, "{case}:\n{}", self.text(b"stub_log"));
        assert_eq!(self.number(b"stub_live"), 0, "{case}: what is alive");
    }

    /// What was called, a line each.
    pub(crate) fn log(&self) -> Vec<String> {
        self.text(b"stub_log").lines().map(str::to_owned).collect()
    }

    /// The lines that begin so.
    pub(crate) fn logged(&self, word: &str) -> Vec<String> {
        self.log().into_iter().filter(|line| line.starts_with(word)).collect()
    }

    /// Where surfaces are.
    pub(crate) fn surfaces(&self, address: u64) {
        type Set = extern "C" fn(c_ulonglong, c_uint, c_uint, usize, c_uint);
        let [decoders, each] = SURFACES;
        self.call::<Set>(b"stub_surfaces", |set| {
            set(address, decoders, each, SURFACE_BYTES, PITCH)
        });
    }

    /// What is called when a decoder goes.
    pub(crate) fn on_destroy(&self, call: extern "C" fn()) {
        self.call::<extern "C" fn(extern "C" fn())>(b"stub_on_destroy", |set| set(call));
    }

    /// What is called when a surface is written: with its address, its length, and the stream.
    pub(crate) fn on_map(&self, call: extern "C" fn(c_ulonglong, usize, usize)) {
        type Call = extern "C" fn(c_ulonglong, usize, usize);
        self.call::<extern "C" fn(Call)>(b"stub_on_map", |set| set(call));
    }

    pub(crate) fn search(&self) -> Search {
        Search::default().at(spdl_cuda::Library::Nvcuvid, &self.path)
    }

    /// A device whose video decoders have surfaces.
    pub(crate) fn device(&self, schedule: Schedule) -> (FakeDriver, CudaDevice, NvDec) {
        let driver = FakeDriver::new(1, schedule);
        self.surfaces(driver.take_memory(ALL_BYTES).unwrap());
        let device = CudaDevice::on(driver.clone(), 0).unwrap();
        let decoders = NvDec::new_with(&device, &self.search()).unwrap();
        (driver, device, decoders)
    }
}

/// The headers of a video, as the parser tells them; a packet in itself.
#[derive(Clone, Copy)]
pub(crate) struct Headers {
    pub(crate) codec: i32,
    pub(crate) chroma: i32,
    pub(crate) bits: u8,
    pub(crate) surfaces: u8,
    pub(crate) coded: (u32, u32),
    pub(crate) area: [i32; 4],
    pub(crate) signal: u8,
    pub(crate) matrix: u8,
}

/// The number of H.264.
pub(crate) const H264: i32 = 4;
pub(crate) const HEVC: i32 = 8;
pub(crate) const VP9: i32 = 10;

impl Headers {
    /// A video of 4:2:0 with 8 bits.
    pub(crate) fn of(codec: i32, width: u32, height: u32) -> Headers {
        Headers {
            codec,
            chroma: 1,
            bits: 8,
            surfaces: 4,
            coded: (width, height),
            area: [0, 0, width as i32, height as i32],
            signal: 5,
            matrix: 6,
        }
    }

    pub(crate) fn packet(&self) -> Vec<u8> {
        let depth = self.bits.wrapping_sub(8);
        let mut bytes = vec![b'S'];
        bytes.extend(self.codec.to_ne_bytes());
        bytes.extend([30_u32, 1].iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend([1, depth, depth, self.surfaces]);
        bytes.extend([self.coded.0, self.coded.1].iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend(self.area.iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend(self.chroma.to_ne_bytes());
        bytes.extend([0; 12]);
        bytes.extend([self.signal, 1, 1, self.matrix]);
        bytes.extend([0; 4]);
        bytes
    }
}

/// Picture `index` is decoded, and is found to be sound.
pub(crate) fn decode(index: u8) -> Vec<u8> {
    vec![b'D', index, 2]
}

pub(crate) fn show(index: u8) -> Vec<u8> {
    vec![b'P', index]
}

/// All frames that are there.
pub(crate) fn taken(video: &mut VideoStream) -> Vec<Result<VideoFrame>> {
    std::iter::from_fn(|| video.next_frame()).collect()
}

/// Pushes packets one after the other, each with its number as its timestamp, and takes the frames.
pub(crate) fn push_all(video: &mut VideoStream, packets: &[Vec<u8>]) -> Vec<Result<VideoFrame>> {
    let mut frames = Vec::new();
    for (number, packet) in packets.iter().enumerate() {
        video.push(packet, Some(number as i64)).unwrap();
        frames.extend(taken(video));
    }
    frames
}

/// A short video: headers, and so many pictures, each shown at once.
pub(crate) fn short_video(headers: Headers, pictures: u8) -> Vec<Vec<u8>> {
    let shown = (0..pictures).map(|index| [decode(index % 8), show(index % 8)].concat());
    std::iter::once(headers.packet()).chain(shown).collect()
}
