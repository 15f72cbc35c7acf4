//! Where NVIDIA's libraries are. None of them is needed to build, or to run without a device.

use crate::libraries::SharedLibrary;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

/// A library of NVIDIA's.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// The driver, libcuda.
    Driver,
    /// The JPEG decoder, libnvjpeg.
    NvJpeg,
    /// The compiler of kernels, libnvrtc. It is not needed: they are compiled ahead, and for devices that
    /// are newer the driver compiles them.
    Nvrtc,
    /// The video decoder, libnvcuvid.
    Nvcuvid,
}

/// How a library was found.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// The caller, or an environment variable, said where.
    Explicit,
    /// It lies in a wheel of NVIDIA's.
    Wheel,
    /// The process had opened it already.
    Opened,
    /// The system knows where it is.
    System,
}

/// Where a library is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path, or the name under which the system knows it.
    pub place: String,
    /// How it was found.
    pub by: FoundBy,
}

/// Why a library is not to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFound {
    /// The library.
    pub library: Library,
    /// What was tried, and what became of it.
    pub reason: String,
}

/// Where to search, beside where the system does.
///
/// The order is: what was said here, the environment variable, wheels, what the process has opened,
/// the system. Where a place was said, no other is tried.
#[derive(Clone, Debug, Default)]
pub struct Search {
    explicit: BTreeMap<Library, PathBuf>,
    wheel_folders: Vec<PathBuf>,
}

impl Library {
    /// All of them.
    pub const ALL: [Library; 4] =
        [Library::Driver, Library::NvJpeg, Library::Nvrtc, Library::Nvcuvid];

    /// The environment variable that says where it is.
    pub fn environment_variable(self) -> &'static str {
        match self {
            Library::Driver => "SPDL_CUDA_DRIVER",
            Library::NvJpeg => "SPDL_NVJPEG",
            Library::Nvrtc => "SPDL_NVRTC",
            Library::Nvcuvid => "SPDL_NVCUVID",
        }
    }

    /// Its file names, the best first.
    pub fn names(self) -> &'static [&'static str] {
        let windows = cfg!(windows);
        match self {
            Library::Driver if windows => &["nvcuda.dll"],
            Library::Driver => &["libcuda.so.1"],
            Library::NvJpeg if windows => &["nvjpeg64_13.dll", "nvjpeg64_12.dll"],
            Library::NvJpeg => &["libnvjpeg.so.13", "libnvjpeg.so.12"],
            Library::Nvrtc if windows => &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Library::Nvcuvid if windows => &["nvcuvid.dll"],
            Library::Nvcuvid => &["libnvcuvid.so.1", "libnvcuvid.so"],
        }
    }

    /// Where it lies in a folder of Python packages, with the name that it has there.
    fn in_wheels(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Library::NvJpeg => {
                &[("nvidia/cu13/lib", "libnvjpeg.so.13"), ("nvidia/nvjpeg/lib", "libnvjpeg.so.12")]
            }
            Library::Nvrtc => &[
                ("nvidia/cu13/lib", "libnvrtc.so.13"),
                ("nvidia/cuda_nvrtc/lib", "libnvrtc.so.12"),
            ],
            Library::Driver | Library::Nvcuvid => &[],
        }
    }

    /// What to do where it is not to be had; empty where nothing is missing without it.
    pub fn remedy(self) -> &'static str {
        match self {
            Library::Driver => {
                "install an NVIDIA driver (525 or newer); in a container, start it with the host's \
                 GPUs (`--gpus all`)"
            }
            Library::NvJpeg => {
                "pip install nvidia-nvjpeg (nvidia-nvjpeg-cu12 for drivers of CUDA 12), or name the file \
                 in SPDL_NVJPEG"
            }
            Library::Nvrtc => "",
            Library::Nvcuvid => {
                "it comes with the driver; in a container, NVIDIA_DRIVER_CAPABILITIES has to name \
                 `video`"
            }
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Driver => "driver",
            Library::NvJpeg => "nvjpeg",
            Library::Nvrtc => "nvrtc",
            Library::Nvcuvid => "nvcuvid",
        })
    }
}

impl Search {
    /// Says where a library is.
    #[must_use]
    pub fn at(mut self, library: Library, path: impl Into<PathBuf>) -> Self {
        self.explicit.insert(library, path.into());
        self
    }

    /// Adds a folder of Python packages, such as `site-packages`, in which wheels of NVIDIA's may be.
    #[must_use]
    pub fn wheels_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.wheel_folders.push(folder.into());
        self
    }

    /// Opens a library.
    pub(crate) fn open(&self, library: Library) -> Result<(SharedLibrary, Found), NotFound> {
        let variable = library.environment_variable();
        let explicit = match self.explicit.get(&library) {
            Some(path) => Some((path.clone(), String::new())),
            None => env::var_os(variable)
                .filter(|value| !value.is_empty())
                .map(|value| (PathBuf::from(value), format!("{variable} says so: "))),
        };
        if let Some((path, who)) = explicit {
            return match SharedLibrary::open(path.as_os_str()) {
                Ok(opened) => Ok((opened, found(&path, FoundBy::Explicit))),
                Err(reason) => Err(NotFound { library, reason: format!("{who}{reason}") }),
            };
        }
        let mut reasons = Vec::new();
        for path in self.wheel_files(library) {
            match SharedLibrary::open(path.as_os_str()) {
                Ok(opened) => return Ok((opened, found(&path, FoundBy::Wheel))),
                Err(reason) => reasons.push(reason),
            }
        }
        for name in library.names() {
            if let Some(opened) = SharedLibrary::opened(name) {
                return Ok((opened, found(Path::new(name), FoundBy::Opened)));
            }
        }
        for name in library.names() {
            match SharedLibrary::open(OsStr::new(name)) {
                Ok(opened) => return Ok((opened, found(Path::new(name), FoundBy::System))),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(NotFound { library, reason: reasons.join("; ") })
    }

    /// The files of wheels that exist.
    fn wheel_files(&self, library: Library) -> impl Iterator<Item = PathBuf> {
        let files = self.wheel_folders.iter().flat_map(move |folder| {
            library.in_wheels().iter().map(move |(inside, name)| folder.join(inside).join(name))
        });
        files.filter(|path| path.is_file())
    }
}

fn found(path: &Path, by: FoundBy) -> Found {
    Found { place: path.display().to_string(), by }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.by {
            FoundBy::Explicit => "as it was said",
            FoundBy::Wheel => "in a wheel",
            FoundBy::Opened => "opened before",
            FoundBy::System => "of the system",
        };
        write!(f, "{} ({how})", self.place)
    }
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} library: {}", self.library, self.reason)
    }
}

impl std::error::Error for NotFound {}
