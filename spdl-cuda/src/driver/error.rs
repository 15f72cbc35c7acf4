//! `CUresult` codes: their names, error kinds and remedies, and which of them are sticky.

use std::error::Error as StdError;
use std::fmt;

use spdl_core::{Error, ErrorKind};

/// A failed call of the CUDA driver API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The name of the function.
    pub call: &'static str,
    /// The returned `CUresult`. Newer drivers may return codes that this crate does not know.
    pub code: u32,
}

/// Properties of an error code.
#[derive(Clone, Copy, Debug)]
struct CodeInfo {
    code: u32,
    name: &'static str,
    kind: ErrorKind,
    /// What the user can do; empty if no remedy is known.
    remedy: &'static str,
}

const fn code(number: u32, name: &'static str, kind: ErrorKind, remedy: &'static str) -> CodeInfo {
    CodeInfo { code: number, name, kind, remedy }
}

#[cfg(any(test, feature = "testing"))]
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const INVALID_VALUE: u32 = 1;
/// The operation is not permitted while the stream is being captured.
pub(crate) const CAPTURE_UNSUPPORTED: u32 = 900;
/// The operation implies a dependency on a stream that is being captured.
#[cfg(any(test, feature = "testing"))]
pub(crate) const CAPTURE_IMPLICIT: u32 = 906;
#[cfg(any(test, feature = "testing"))]
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const NOT_READY: u32 = 600;

const RESTART: &str = "the CUDA context is corrupted; restart the process";
const OURS: &str = "this is a bug in spdl-cuda; please report it";
const UPDATE: &str = "install a newer NVIDIA driver";
const CAPTURE: &str = "do not receive or release batches during the capture of a CUDA graph";

/// The known codes, in ascending order.
const CODES: [CodeInfo; 54] = {
    use ErrorKind::*;
    [
        code(1, "CUDA_ERROR_INVALID_VALUE", Internal, OURS),
        code(
            2,
            "CUDA_ERROR_OUT_OF_MEMORY",
            LimitExceeded,
            "use smaller batches, release batches earlier, or leave the loader more device memory",
        ),
        code(
            3,
            "CUDA_ERROR_NOT_INITIALIZED",
            Unsupported,
            "CUDA does not work in a process forked from one that uses CUDA; start it with spawn",
        ),
        code(4, "CUDA_ERROR_DEINITIALIZED", Stopped, "the driver is shutting down"),
        code(
            34,
            "CUDA_ERROR_STUB_LIBRARY",
            Unsupported,
            "this libcuda is a stub for linking; install the NVIDIA driver",
        ),
        code(
            46,
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
            Unavailable,
            "the device is in exclusive use by another process, or prohibits compute",
        ),
        code(
            100,
            "CUDA_ERROR_NO_DEVICE",
            Unsupported,
            "no device is visible; check CUDA_VISIBLE_DEVICES",
        ),
        code(101, "CUDA_ERROR_INVALID_DEVICE", InvalidArgument, "invalid device ordinal"),
        code(102, "CUDA_ERROR_DEVICE_NOT_LICENSED", PermissionDenied, "the device is not licensed"),
        code(200, "CUDA_ERROR_INVALID_IMAGE", Internal, OURS),
        code(201, "CUDA_ERROR_INVALID_CONTEXT", Internal, OURS),
        code(
            209,
            "CUDA_ERROR_NO_BINARY_FOR_GPU",
            Unsupported,
            "the device is too old for the compiled kernels",
        ),
        code(214, "CUDA_ERROR_ECC_UNCORRECTABLE", Io, RESTART),
        code(218, "CUDA_ERROR_INVALID_PTX", Unsupported, UPDATE),
        code(220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", Io, RESTART),
        code(
            221,
            "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
            Unsupported,
            "the PTX compiler of the driver is missing; install the complete driver; in a container, add \
             `compute` to NVIDIA_DRIVER_CAPABILITIES",
        ),
        code(222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", Unsupported, UPDATE),
        code(223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", Unsupported, "unset CUDA_DISABLE_PTX_JIT"),
        code(226, "CUDA_ERROR_CONTAINED", Io, RESTART),
        code(
            304,
            "CUDA_ERROR_OPERATING_SYSTEM",
            Io,
            "an operating system call failed; check the limit of locked memory (ulimit -l)",
        ),
        code(400, "CUDA_ERROR_INVALID_HANDLE", Internal, OURS),
        code(401, "CUDA_ERROR_ILLEGAL_STATE", Internal, OURS),
        code(500, "CUDA_ERROR_NOT_FOUND", Internal, OURS),
        code(600, "CUDA_ERROR_NOT_READY", Internal, OURS),
        code(700, "CUDA_ERROR_ILLEGAL_ADDRESS", Io, RESTART),
        code(701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Internal, OURS),
        code(702, "CUDA_ERROR_LAUNCH_TIMEOUT", Io, RESTART),
        code(709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", Io, RESTART),
        code(710, "CUDA_ERROR_ASSERT", Io, RESTART),
        code(712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", Internal, OURS),
        code(713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", Internal, OURS),
        code(714, "CUDA_ERROR_HARDWARE_STACK_ERROR", Io, RESTART),
        code(715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", Io, RESTART),
        code(716, "CUDA_ERROR_MISALIGNED_ADDRESS", Io, RESTART),
        code(717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", Io, RESTART),
        code(718, "CUDA_ERROR_INVALID_PC", Io, RESTART),
        code(719, "CUDA_ERROR_LAUNCH_FAILED", Io, RESTART),
        code(800, "CUDA_ERROR_NOT_PERMITTED", PermissionDenied, ""),
        code(801, "CUDA_ERROR_NOT_SUPPORTED", Unsupported, ""),
        code(
            802,
            "CUDA_ERROR_SYSTEM_NOT_READY",
            Unavailable,
            "a driver service is not running; check the NVIDIA Fabric Manager",
        ),
        code(
            803,
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            Unsupported,
            "libcuda and the kernel driver differ in version; reboot; in a container, mount \
             the libcuda of the host",
        ),
        code(804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", Unsupported, UPDATE),
        code(900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", InvalidArgument, CAPTURE),
        code(901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", InvalidArgument, CAPTURE),
        code(902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", InvalidArgument, CAPTURE),
        code(903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", InvalidArgument, CAPTURE),
        code(904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", InvalidArgument, CAPTURE),
        code(905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", InvalidArgument, CAPTURE),
        code(906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", InvalidArgument, CAPTURE),
        code(907, "CUDA_ERROR_CAPTURED_EVENT", InvalidArgument, CAPTURE),
        code(908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", InvalidArgument, CAPTURE),
        code(909, "CUDA_ERROR_TIMEOUT", Timeout, ""),
        code(910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", Internal, OURS),
        code(999, "CUDA_ERROR_UNKNOWN", Io, "check the system log for NVRM messages"),
    ]
};

impl DriverError {
    fn info(&self) -> Option<&'static CodeInfo> {
        CODES.iter().find(|known| known.code == self.code)
    }

    /// The name of the code; `CUDA_ERROR` if the code is unknown.
    pub fn name(&self) -> &'static str {
        self.info().map_or("CUDA_ERROR", |known| known.name)
    }

    /// What the user can do; empty if no remedy is known.
    pub fn remedy(&self) -> &'static str {
        self.info().map_or("", |known| known.remedy)
    }

    /// Whether the error is sticky: all later calls of this process on the device fail, too.
    pub fn is_sticky(&self) -> bool {
        self.remedy() == RESTART
    }

    /// Converts to the error of `spdl-core`. `doing` completes the message "cannot …".
    pub(crate) fn into_error(self, doing: &str) -> Error {
        let kind = self.info().map_or(ErrorKind::Io, |known| known.kind);
        let remedy = self.remedy();
        let separator = if remedy.is_empty() { "" } else { "; " };
        let error =
            Error::new(kind, format!("cannot {doing}{separator}{remedy}")).with_source(self);
        if self.is_sticky() { error.fatal() } else { error }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with {} ({})", self.call, self.name(), self.code)
    }
}

impl StdError for DriverError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_operation_the_remedy_and_the_failed_call() {
        let error =
            DriverError { call: "cuMemAlloc_v2", code: OUT_OF_MEMORY }.into_error("take 5 bytes");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(error.message().starts_with("cannot take 5 bytes; use smaller batches"), "{error}");
        let report = error.report();
        assert!(
            report.ends_with("cuMemAlloc_v2 failed with CUDA_ERROR_OUT_OF_MEMORY (2)"),
            "{report}"
        );
        assert!(!error.is_fatal());
    }

    #[test]
    fn a_sticky_error_is_fatal() {
        let error = DriverError { call: "cuEventQuery", code: 700 };
        assert!(error.is_sticky());
        assert!(error.into_error("copy a batch").is_fatal());
    }

    #[test]
    fn an_unknown_code_is_an_io_error() {
        let error = DriverError { call: "cuInit", code: 4242 };
        assert!(!error.is_sticky());
        let error = error.into_error("open the driver");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.report(), "cannot open the driver: cuInit failed with CUDA_ERROR (4242)");
    }

    #[test]
    fn codes_are_unique_and_sorted() {
        assert!(CODES.windows(2).all(|pair| pair[0].code < pair[1].code));
    }

    #[cfg(feature = "cudarc")]
    #[test]
    fn codes_match_cudarc() {
        use cudarc::driver::sys::CUresult::{self, *};
        let declared: [CUresult; 53] = [
            CUDA_ERROR_INVALID_VALUE,
            CUDA_ERROR_OUT_OF_MEMORY,
            CUDA_ERROR_NOT_INITIALIZED,
            CUDA_ERROR_DEINITIALIZED,
            CUDA_ERROR_STUB_LIBRARY,
            CUDA_ERROR_DEVICE_UNAVAILABLE,
            CUDA_ERROR_NO_DEVICE,
            CUDA_ERROR_INVALID_DEVICE,
            CUDA_ERROR_DEVICE_NOT_LICENSED,
            CUDA_ERROR_INVALID_IMAGE,
            CUDA_ERROR_INVALID_CONTEXT,
            CUDA_ERROR_NO_BINARY_FOR_GPU,
            CUDA_ERROR_ECC_UNCORRECTABLE,
            CUDA_ERROR_INVALID_PTX,
            CUDA_ERROR_NVLINK_UNCORRECTABLE,
            CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUDA_ERROR_JIT_COMPILATION_DISABLED,
            CUDA_ERROR_OPERATING_SYSTEM,
            CUDA_ERROR_INVALID_HANDLE,
            CUDA_ERROR_ILLEGAL_STATE,
            CUDA_ERROR_NOT_FOUND,
            CUDA_ERROR_NOT_READY,
            CUDA_ERROR_ILLEGAL_ADDRESS,
            CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            CUDA_ERROR_LAUNCH_TIMEOUT,
            CUDA_ERROR_CONTEXT_IS_DESTROYED,
            CUDA_ERROR_ASSERT,
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
            CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUDA_ERROR_MISALIGNED_ADDRESS,
            CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUDA_ERROR_INVALID_PC,
            CUDA_ERROR_LAUNCH_FAILED,
            CUDA_ERROR_NOT_PERMITTED,
            CUDA_ERROR_NOT_SUPPORTED,
            CUDA_ERROR_SYSTEM_NOT_READY,
            CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
            CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            CUDA_ERROR_STREAM_CAPTURE_MERGE,
            CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
            CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            CUDA_ERROR_CAPTURED_EVENT,
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
            CUDA_ERROR_TIMEOUT,
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
            CUDA_ERROR_UNKNOWN,
        ];
        for code in declared {
            let known = CODES.iter().find(|known| known.code == code as u32);
            assert_eq!(known.map(|known| known.name.to_owned()), Some(format!("{code:?}")));
        }
    }
}
