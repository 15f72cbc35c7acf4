//! What the driver's error codes mean: the kind of error, whether the device is lost, what to do.

use std::error::Error as StdError;
use std::fmt;

use spdl_core::{Error, ErrorKind};

/// A call of the driver that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The function.
    pub call: &'static str,
    /// What it returned, a number of `CUresult`. Not all numbers are known: drivers get newer.
    pub code: u32,
}

/// What is known of an error code.
#[derive(Clone, Copy, Debug)]
struct Meaning {
    code: u32,
    name: &'static str,
    kind: ErrorKind,
    /// What people can do about it; empty where there is nothing.
    remedy: &'static str,
}

const fn meaning(code: u32, name: &'static str, kind: ErrorKind, remedy: &'static str) -> Meaning {
    Meaning { code, name, kind, remedy }
}

#[cfg(any(test, feature = "testing"))]
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const INVALID_VALUE: u32 = 1;
/// A stream that is captured cannot be told that.
pub(crate) const CAPTURE_UNSUPPORTED: u32 = 900;
/// What was told to one stream would have to wait for another that is captured.
#[cfg(any(test, feature = "testing"))]
pub(crate) const CAPTURE_IMPLICIT: u32 = 906;
#[cfg(any(test, feature = "testing"))]
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const NOT_READY: u32 = 600;
/// The driver, or the device, cannot do that.
pub(crate) const NOT_SUPPORTED: u32 = 801;

const RESTART: &str = "the device cannot be used again by this process: restart it";
const OURS: &str = "this is a fault of this program; please report it";
const UPDATE: &str = "install a newer NVIDIA driver";
const CAPTURE: &str = "do not take batches, or let go of them, while a CUDA graph is captured";

/// The codes that are told apart, in their order.
const MEANINGS: [Meaning; 54] = {
    use ErrorKind::*;
    [
        meaning(1, "CUDA_ERROR_INVALID_VALUE", Internal, OURS),
        meaning(
            2,
            "CUDA_ERROR_OUT_OF_MEMORY",
            LimitExceeded,
            "make the batches smaller, hold fewer of them, or leave the loader more memory",
        ),
        meaning(
            3,
            "CUDA_ERROR_NOT_INITIALIZED",
            Unsupported,
            "CUDA does not work in a process that was forked from one that uses it: spawn it instead",
        ),
        meaning(4, "CUDA_ERROR_DEINITIALIZED", Stopped, "the driver is shutting down"),
        meaning(
            34,
            "CUDA_ERROR_STUB_LIBRARY",
            Unsupported,
            "this libcuda is a stub for linking; install the driver",
        ),
        meaning(
            46,
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
            Unavailable,
            "another process has the device for itself",
        ),
        meaning(
            100,
            "CUDA_ERROR_NO_DEVICE",
            Unsupported,
            "no device is visible; see CUDA_VISIBLE_DEVICES",
        ),
        meaning(
            101,
            "CUDA_ERROR_INVALID_DEVICE",
            InvalidArgument,
            "there is no device of that number",
        ),
        meaning(
            102,
            "CUDA_ERROR_DEVICE_NOT_LICENSED",
            PermissionDenied,
            "the device has no licence",
        ),
        meaning(200, "CUDA_ERROR_INVALID_IMAGE", Internal, OURS),
        meaning(201, "CUDA_ERROR_INVALID_CONTEXT", Internal, OURS),
        meaning(209, "CUDA_ERROR_NO_BINARY_FOR_GPU", Unsupported, "the device is too old"),
        meaning(214, "CUDA_ERROR_ECC_UNCORRECTABLE", Io, RESTART),
        meaning(218, "CUDA_ERROR_INVALID_PTX", Unsupported, UPDATE),
        meaning(220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", Io, RESTART),
        meaning(
            221,
            "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
            Unsupported,
            "the driver's compiler of PTX is missing: install all of the driver; in a container, \
             NVIDIA_DRIVER_CAPABILITIES has to name `compute`",
        ),
        meaning(222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", Unsupported, UPDATE),
        meaning(
            223,
            "CUDA_ERROR_JIT_COMPILATION_DISABLED",
            Unsupported,
            "unset CUDA_DISABLE_PTX_JIT",
        ),
        meaning(226, "CUDA_ERROR_CONTAINED", Io, RESTART),
        meaning(
            304,
            "CUDA_ERROR_OPERATING_SYSTEM",
            Io,
            "the system refused; see the limit of locked memory",
        ),
        meaning(400, "CUDA_ERROR_INVALID_HANDLE", Internal, OURS),
        meaning(401, "CUDA_ERROR_ILLEGAL_STATE", Internal, OURS),
        meaning(500, "CUDA_ERROR_NOT_FOUND", Internal, OURS),
        meaning(600, "CUDA_ERROR_NOT_READY", Internal, OURS),
        meaning(700, "CUDA_ERROR_ILLEGAL_ADDRESS", Io, RESTART),
        meaning(701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Internal, OURS),
        meaning(702, "CUDA_ERROR_LAUNCH_TIMEOUT", Io, RESTART),
        meaning(709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", Io, RESTART),
        meaning(710, "CUDA_ERROR_ASSERT", Io, RESTART),
        meaning(712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", Internal, OURS),
        meaning(713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", Internal, OURS),
        meaning(714, "CUDA_ERROR_HARDWARE_STACK_ERROR", Io, RESTART),
        meaning(715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", Io, RESTART),
        meaning(716, "CUDA_ERROR_MISALIGNED_ADDRESS", Io, RESTART),
        meaning(717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", Io, RESTART),
        meaning(718, "CUDA_ERROR_INVALID_PC", Io, RESTART),
        meaning(719, "CUDA_ERROR_LAUNCH_FAILED", Io, RESTART),
        meaning(800, "CUDA_ERROR_NOT_PERMITTED", PermissionDenied, ""),
        meaning(801, "CUDA_ERROR_NOT_SUPPORTED", Unsupported, ""),
        meaning(
            802,
            "CUDA_ERROR_SYSTEM_NOT_READY",
            Unavailable,
            "a service of the driver is not up; is the fabric manager?",
        ),
        meaning(
            803,
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            Unsupported,
            "libcuda and the kernel's driver differ: reboot, or mount that of the host",
        ),
        meaning(804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", Unsupported, UPDATE),
        meaning(900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", InvalidArgument, CAPTURE),
        meaning(901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", InvalidArgument, CAPTURE),
        meaning(902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", InvalidArgument, CAPTURE),
        meaning(903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", InvalidArgument, CAPTURE),
        meaning(904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", InvalidArgument, CAPTURE),
        meaning(905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", InvalidArgument, CAPTURE),
        meaning(906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", InvalidArgument, CAPTURE),
        meaning(907, "CUDA_ERROR_CAPTURED_EVENT", InvalidArgument, CAPTURE),
        meaning(908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", InvalidArgument, CAPTURE),
        meaning(909, "CUDA_ERROR_TIMEOUT", Timeout, ""),
        meaning(910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", Internal, OURS),
        meaning(999, "CUDA_ERROR_UNKNOWN", Io, "see the system's log for messages of NVRM"),
    ]
};

impl DriverError {
    fn meaning(&self) -> Option<&'static Meaning> {
        MEANINGS.iter().find(|meaning| meaning.code == self.code)
    }

    /// What the driver calls the code; `CUDA_ERROR` where it is newer than this program.
    pub fn name(&self) -> &'static str {
        self.meaning().map_or("CUDA_ERROR", |meaning| meaning.name)
    }

    /// What people can do about it; empty where nothing is known.
    pub fn remedy(&self) -> &'static str {
        self.meaning().map_or("", |meaning| meaning.remedy)
    }

    /// Whether every later call on the device fails, too.
    pub fn is_sticky(&self) -> bool {
        self.remedy() == RESTART
    }

    /// The error of the project for this one. `doing` ends a sentence that begins with "cannot".
    pub(crate) fn into_error(self, doing: &str) -> Error {
        let kind = self.meaning().map_or(ErrorKind::Io, |meaning| meaning.kind);
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
    fn an_error_says_what_was_done_what_to_do_and_which_call_failed() {
        let error =
            DriverError { call: "cuMemAlloc_v2", code: OUT_OF_MEMORY }.into_error("take 5 bytes");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(
            error.message().starts_with("cannot take 5 bytes; make the batches smaller"),
            "{error}"
        );
        let report = error.report();
        assert!(
            report.ends_with("cuMemAlloc_v2 failed with CUDA_ERROR_OUT_OF_MEMORY (2)"),
            "{report}"
        );
        assert!(!error.is_fatal());
    }

    #[test]
    fn a_lost_device_ends_the_pipeline_whatever_its_policy() {
        let error = DriverError { call: "cuEventQuery", code: 700 };
        assert!(error.is_sticky());
        assert!(error.into_error("copy a batch").is_fatal());
    }

    #[test]
    fn a_code_of_a_newer_driver_is_an_error_like_any_other() {
        let error = DriverError { call: "cuInit", code: 4242 };
        assert!(!error.is_sticky());
        let error = error.into_error("open the driver");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.report(), "cannot open the driver: cuInit failed with CUDA_ERROR (4242)");
    }

    #[test]
    fn codes_are_listed_once_and_in_their_order() {
        assert!(MEANINGS.windows(2).all(|pair| pair[0].code < pair[1].code));
    }

    #[cfg(feature = "cudarc")]
    #[test]
    fn codes_are_those_that_cudarc_declares() {
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
            let meaning = MEANINGS.iter().find(|meaning| meaning.code == code as u32);
            assert_eq!(meaning.map(|meaning| meaning.name.to_owned()), Some(format!("{code:?}")));
        }
    }
}
