//! Search for NVIDIA's shared libraries: their names, their locations, and the order in which
//! places are tried.
//!
//! None of these libraries is needed to build this crate, or to run it without a device.

use crate::libraries::SharedLibrary;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

/// A shared library from NVIDIA.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// The driver, `libcuda`.
    Driver,
    /// The JPEG decoder, `libnvjpeg`.
    NvJpeg,
    /// The runtime compiler, `libnvrtc`. Optional: kernels are compiled ahead of time, and the
    /// driver compiles their PTX for newer devices.
    Nvrtc,
    /// The video decoder, `libnvcuvid`.
    Nvcuvid,
}

/// How a library was located.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocatedBy {
    /// By a path that the caller or an environment variable gave.
    Explicit,
    /// In a Python wheel from NVIDIA.
    Wheel,
    /// The library was already loaded into the process.
    Opened,
    /// By the dynamic linker of the system.
    System,
}

/// The location of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryLocation {
    /// The path, or the name that the dynamic linker resolves.
    pub place: String,
    /// How the library was located.
    pub by: LocatedBy,
}

/// A library that could not be loaded, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryNotFound {
    /// The library.
    pub library: Library,
    /// Why loading failed: one reason for each file that was tried.
    pub reason: String,
}

/// Places to search for libraries, in addition to the search path of the dynamic linker.
///
/// The order is: the path given to [`at`](Search::at), the environment variable, wheels, libraries
/// that are already loaded (on Unix), the dynamic linker. If a path is given or the environment
/// variable is set, no other place is tried. An empty variable counts as not set.
///
/// ```
/// use spdl_cuda::libraries::Library;
/// use spdl_cuda::{Search, status};
///
/// let search = Search::default().at(Library::NvJpeg, "/opt/cuda/lib64/libnvjpeg.so.13");
/// println!("{}", status(&search));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Search {
    explicit: BTreeMap<Library, PathBuf>,
    wheel_folders: Vec<PathBuf>,
}

impl Library {
    /// All libraries.
    pub const ALL: [Library; 4] =
        [Library::Driver, Library::NvJpeg, Library::Nvrtc, Library::Nvcuvid];

    /// The environment variable with the path of this library; [`Search::at`] overrides it.
    pub fn environment_variable(self) -> &'static str {
        match self {
            Library::Driver => "SPDL_CUDA_DRIVER",
            Library::NvJpeg => "SPDL_NVJPEG",
            Library::Nvrtc => "SPDL_NVRTC",
            Library::Nvcuvid => "SPDL_NVCUVID",
        }
    }

    /// The file names, in order of preference.
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

    /// Folders and file names below a `site-packages` folder.
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

    /// What the user can do if the library is missing; empty for `Nvrtc`.
    pub fn remedy(self) -> &'static str {
        match self {
            Library::Driver => {
                "install an NVIDIA driver (525 or newer); start a container with the GPUs of the host \
                 (`--gpus all`)"
            }
            Library::NvJpeg => {
                "pip install nvidia-nvjpeg (nvidia-nvjpeg-cu12 for drivers of CUDA 12), or set SPDL_NVJPEG \
                 to the path of the file"
            }
            Library::Nvrtc => "",
            Library::Nvcuvid => {
                "nvcuvid is part of the driver; in a container, add `video` to \
                 NVIDIA_DRIVER_CAPABILITIES"
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
    /// Sets the path of a library.
    #[must_use]
    pub fn at(mut self, library: Library, path: impl Into<PathBuf>) -> Self {
        self.explicit.insert(library, path.into());
        self
    }

    /// Adds a `site-packages` folder that may hold wheels from NVIDIA.
    #[must_use]
    pub fn wheels_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.wheel_folders.push(folder.into());
        self
    }

    /// Locates and opens a library.
    pub(crate) fn open(
        &self,
        library: Library,
    ) -> Result<(SharedLibrary, LibraryLocation), LibraryNotFound> {
        let variable = library.environment_variable();
        let explicit = match self.explicit.get(&library) {
            Some(path) => Some((path.clone(), String::new())),
            None => env::var_os(variable)
                .filter(|value| !value.is_empty())
                .map(|value| (PathBuf::from(value), format!("{variable}: "))),
        };
        if let Some((path, origin)) = explicit {
            return match SharedLibrary::open(path.as_os_str()) {
                Ok(opened) => Ok((opened, location(&path, LocatedBy::Explicit))),
                Err(reason) => {
                    Err(LibraryNotFound { library, reason: format!("{origin}{reason}") })
                }
            };
        }
        let mut failures = Vec::new();
        for path in self.wheel_files(library) {
            match SharedLibrary::open(path.as_os_str()) {
                Ok(opened) => return Ok((opened, location(&path, LocatedBy::Wheel))),
                Err(reason) => failures.push(reason),
            }
        }
        for name in library.names() {
            if let Some(opened) = SharedLibrary::opened(name) {
                return Ok((opened, location(Path::new(name), LocatedBy::Opened)));
            }
        }
        for name in library.names() {
            match SharedLibrary::open(OsStr::new(name)) {
                Ok(opened) => return Ok((opened, location(Path::new(name), LocatedBy::System))),
                Err(reason) => failures.push(reason),
            }
        }
        Err(LibraryNotFound { library, reason: failures.join("; ") })
    }

    /// The existing candidate files in wheels.
    fn wheel_files(&self, library: Library) -> impl Iterator<Item = PathBuf> {
        let files = self.wheel_folders.iter().flat_map(move |folder| {
            library.in_wheels().iter().map(move |(inside, name)| folder.join(inside).join(name))
        });
        files.filter(|path| path.is_file())
    }
}

fn location(path: &Path, by: LocatedBy) -> LibraryLocation {
    LibraryLocation { place: path.display().to_string(), by }
}

impl fmt::Display for LibraryLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.by {
            LocatedBy::Explicit => "explicit path",
            LocatedBy::Wheel => "Python wheel",
            LocatedBy::Opened => "already loaded",
            LocatedBy::System => "dynamic linker",
        };
        write!(f, "{} ({origin})", self.place)
    }
}

impl fmt::Display for LibraryNotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot load the {} library: {}", self.library, self.reason)
    }
}

impl std::error::Error for LibraryNotFound {}
