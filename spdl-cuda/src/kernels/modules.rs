//! The compiled kernels, and the choice of a module for a device.

use std::borrow::Cow;

use spdl_core::{Error, ErrorKind, Result};

/// The kernels compiled for one architecture; see [`module_for`].
#[derive(Clone, Copy, Debug)]
pub struct Module {
    architecture: &'static str,
    content: &'static [u8],
    is_text: bool,
}

/// A module that `cargo xtask kernels` compiles.
macro_rules! module {
    ($architecture:literal, $ending:literal) => {
        Module {
            architecture: $architecture,
            content: include_bytes!(concat!(
                "../../kernels/built/image.",
                $architecture,
                ".",
                $ending
            )),
            is_text: matches!($ending.as_bytes(), b"ptx"),
        }
    };
}

/// Cubins (machine code). A cubin runs on devices whose compute capability has the same major
/// version and the same or a higher minor version.
const CUBINS: [(u32, u32, Module); 4] = [
    (7, 5, module!("sm_75", "cubin")),
    (8, 0, module!("sm_80", "cubin")),
    (9, 0, module!("sm_90", "cubin")),
    (10, 0, module!("sm_100", "cubin")),
];
/// PTX for other devices of compute capability 7.5 or higher; the driver compiles the PTX.
const PTX: (u32, u32, Module) = (7, 5, module!("compute_75", "ptx"));

impl Module {
    /// The architecture: for example `sm_90`, or `compute_75` for PTX, which the driver compiles on
    /// load.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// The image for `cuModuleLoadData`; PTX with a terminating NUL.
    pub fn image(&self) -> Cow<'static, [u8]> {
        if self.is_text {
            Cow::Owned([self.content, b"\0"].concat())
        } else {
            Cow::Borrowed(self.content)
        }
    }
}

/// The module for a device of this compute capability.
///
/// # Errors
/// `Unsupported` below 7.5.
pub fn module_for(major: u32, minor: u32) -> Result<Module> {
    let runs = |(of, at_least, _): &&(u32, u32, Module)| *of == major && *at_least <= minor;
    if let Some((_, _, module)) = CUBINS.iter().find(runs) {
        return Ok(*module);
    }
    if (major, minor) >= (PTX.0, PTX.1) {
        return Ok(PTX.2);
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "unsupported compute capability {major}.{minor}: the image kernels need {}.{} or higher \
             (Turing)",
            PTX.0, PTX.1
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_a_cubin_of_its_architecture_or_ptx() {
        let architecture = |major, minor| module_for(major, minor).unwrap().architecture();
        for (major, minor, expected) in [
            (7, 5, "sm_75"),
            (8, 0, "sm_80"),
            (8, 6, "sm_80"),
            (8, 9, "sm_80"),
            (9, 0, "sm_90"),
            (10, 0, "sm_100"),
            (10, 3, "sm_100"),
            (11, 0, "compute_75"),
            (12, 0, "compute_75"),
        ] {
            assert_eq!(architecture(major, minor), expected, "{major}.{minor}");
        }
        for (major, minor) in [(7, 0), (6, 1)] {
            let error = module_for(major, minor).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains(&format!("{major}.{minor}")), "{error}");
        }
    }

    #[test]
    fn modules_are_elf_or_ptx() {
        for (_, _, module) in CUBINS {
            assert!(module.image().starts_with(b"\x7fELF"), "{}", module.architecture());
        }
        let ptx = PTX.2.image();
        let text = str::from_utf8(ptx.strip_suffix(b"\0").unwrap()).unwrap();
        assert!(text.contains(".target sm_75"));
        assert!(text.contains(".entry image_u16_subsampled("));
    }
}
