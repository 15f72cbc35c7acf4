//! Shared libraries, opened at run time.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt;
use std::mem::ManuallyDrop;

use libloading::Library;

/// A library that is never closed: NVIDIA's libraries do not support unloading.
pub(crate) struct SharedLibrary(ManuallyDrop<Library>);

impl SharedLibrary {
    /// Opens a library by path, or by a name that the dynamic linker resolves.
    pub(crate) fn open(name: &OsStr) -> Result<SharedLibrary, String> {
        // SAFETY: this runs the initialisers of a library. The library has the name of one of
        // NVIDIA's libraries, or the user chose it instead; its provider is responsible for its
        // soundness.
        let library = unsafe { Library::new(name) };
        library.map(SharedLibrary::keep).map_err(|error| match error.source() {
            Some(reason) => reason.to_string(),
            None => error.to_string(),
        })
    }

    /// The library of this name, if it is already loaded into the process.
    #[cfg(unix)]
    pub(crate) fn opened(name: &str) -> Option<SharedLibrary> {
        use libloading::os::unix;
        /// The flag that prevents loading: only a library that is already loaded is opened. The
        /// value is that of glibc and musl on Linux.
        const RTLD_NOLOAD: std::ffi::c_int = 4;
        let flags = unix::RTLD_NOW | RTLD_NOLOAD;
        // SAFETY: no initialiser runs, because nothing is loaded.
        let library = unsafe { unix::Library::open(Some(name), flags) };
        library.ok().map(|library| SharedLibrary::keep(library.into()))
    }

    #[cfg(not(unix))]
    pub(crate) fn opened(_: &str) -> Option<SharedLibrary> {
        None
    }

    fn keep(library: Library) -> SharedLibrary {
        SharedLibrary(ManuallyDrop::new(library))
    }

    /// Resolves a function by name.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller guarantees the type, and the library is never closed.
        let symbol = unsafe { self.0.get::<F>(name) };
        symbol.ok().map(|symbol| *symbol)
    }
}

impl fmt::Debug for SharedLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
