//! Shared libraries that are opened while the program runs.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt;
use std::mem::ManuallyDrop;

use libloading::Library;

/// A library that stays open for ever: the driver's do not like to be closed.
pub(crate) struct SharedLibrary(ManuallyDrop<Library>);

impl SharedLibrary {
    /// Opens a library by its path, or by a name that the system searches for.
    pub(crate) fn open(name: &OsStr) -> Result<SharedLibrary, String> {
        // SAFETY: it is a library of NVIDIA's by its name, or one that the user has named to be used
        // in its place; what their initialisers do is theirs to answer for.
        let library = unsafe { Library::new(name) };
        library.map(SharedLibrary::keep).map_err(|error| match error.source() {
            Some(reason) => reason.to_string(),
            None => error.to_string(),
        })
    }

    /// The library of this name where the process has opened one already, from wherever.
    #[cfg(unix)]
    pub(crate) fn opened(name: &str) -> Option<SharedLibrary> {
        use libloading::os::unix;
        /// Opens nothing that is not open (glibc and musl on Linux).
        const RTLD_NOLOAD: std::ffi::c_int = 4;
        let flags = unix::RTLD_NOW | RTLD_NOLOAD;
        // SAFETY: no initialiser runs, since nothing is opened.
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

    /// A function by its name.
    ///
    /// # Safety
    /// `F` is the type of a pointer to it.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller says so, and the library stays open.
        let symbol = unsafe { self.0.get::<F>(name) };
        symbol.ok().map(|symbol| *symbol)
    }
}

impl fmt::Debug for SharedLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
