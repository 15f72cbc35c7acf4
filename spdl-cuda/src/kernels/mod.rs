//! CUDA kernels that turn images in device memory into samples of a batch.
//!
//! A kernel crops, resizes, transposes and flips an image, converts its colours, normalises its
//! values, and writes them in the layout of the sample. Sample formats are those of `spdl-media`;
//! the filters are bilinear and bicubic. A batch of up to 65,535 images needs one launch if all
//! images have the same number of bytes per sample and the same chroma subsampling.
//!
//! | file | content |
//! |---|---|
//! | `launch.rs` | [`ImageKernels`], [`SampleBatch`]: load the kernels, queue a batch |
//! | `table.rs` | [`BatchTable`]: the kernel arguments of all images of a batch |
//! | `plan.rs` | [`ResizePlan`]: from a part of a stored image to a sample |
//! | `modules.rs` | [`module_for`]: the compiled kernels for a device |
//!
//! The source of the kernels is `kernels/image.cu`. Imports `pixels`, `runtime` and `driver`.
//!
//! # Use with another CUDA library
//!
//! [`ImageKernels`] loads and launches the kernels. Programs that call the driver with another
//! library load the module of [`module_for`], copy the bytes of [`BatchTable::finish`] to the
//! device, and start each [`Launch`]:
//!
//! ```
//! use spdl_core::DType;
//! use spdl_cuda::kernels::{BatchTable, ResizePlan, module_for};
//! use spdl_cuda::pixels::{DevicePlane, SourceImage};
//! use spdl_media::image::CropBox;
//! use spdl_media::transform::TensorSpec;
//! use spdl_media::{Layout, SampleFormat, Size};
//!
//! // Two decoded images, and their samples in the batch; the addresses come from the driver.
//! let size = Size::new(224, 224);
//! let format = SampleFormat { layout: Layout::Nchw, dtype: DType::F16 };
//! let format = TensorSpec { format, ..TensorSpec::new(size) };
//! let mut table = BatchTable::new(&format)?;
//! for (slot, (width, height)) in [(500, 375), (640, 427)].into_iter().enumerate() {
//!     let plane = DevicePlane { address: 0x7000_0000 + slot as u64 * 0x10_0000, pitch: 2048 };
//!     let image = SourceImage::rgb8(width, height, plane)?;
//!     let crop = CropBox { left: 20.0, top: 10.0, width: 300.0, height: 300.0 };
//!     let plan = ResizePlan::new(crop, size).horizontal_flip(slot == 1);
//!     table.push(&image, &plan, 0x8000_0000 + slot as u64 * format.bytes())?;
//! }
//! let (bytes, launches) = table.finish();
//! assert_eq!((launches.len(), launches[0].function()), (1, "image_u8_whole"));
//! assert_eq!((launches[0].grid, launches[0].block), ([7, 14, 2], [256, 1, 1]));
//! assert!(bytes.len() < 1024);
//!
//! // An H200 has compute capability 9.0.
//! assert_eq!(module_for(9, 0)?.architecture(), "sm_90");
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! # Accuracy
//!
//! The filter weights equal those of Pillow, and those of PyTorch with `antialias=True`. Each plane
//! is resized directly from its own resolution, and colours are converted afterwards. Bytes are
//! rounded only once, at the end; other types are only rounded to their own precision.
//!
//! Bytes differ by at most one level from PyTorch and from `spdl-media`, which also round between
//! the two passes. Other types differ by at most 10⁻³ from PyTorch in floating point. Without
//! resizing, bytes are the exact result of the colour matrix, rounded to nearest.

mod launch;
mod modules;
mod plan;
mod table;

use spdl_core::{Error, ErrorKind};

pub use self::launch::{ImageKernels, SampleBatch};
pub use self::modules::{Module, module_for};
pub use self::plan::ResizePlan;
pub(crate) use self::table::filter_code;
pub use self::table::{BatchTable, Launch};

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
