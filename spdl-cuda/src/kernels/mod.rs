//! Images in a device's memory become samples of a batch, in one launch for all of them: crop, resize,
//! turn and mirror, colour, normalise, lay out.
//!
//! The kernels are in `kernels/image.cu`; here is what they are told, and what is checked before.
//! [`ImageKernels`] loads and starts them. Who has a driver of his own loads the [`module_for`] its
//! device, copies [`BatchTable::finish`]'s bytes to it, and starts each [`Launch`]:
//!
//! ```
//! use spdl_core::DType;
//! use spdl_cuda::kernels::{BatchTable, Layout, PixelBox, ResizePlan, SampleFormat, module_for};
//! use spdl_cuda::pixels::{DevicePlane, SourceImage};
//!
//! // Two decoded images, and where their samples lie in the batch; the addresses are the driver's.
//! let format = SampleFormat::new(224, 224).layout(Layout::Nchw).dtype(DType::F16);
//! let mut table = BatchTable::new(&format)?;
//! for (slot, (width, height)) in [(500, 375), (640, 427)].into_iter().enumerate() {
//!     let plane = DevicePlane { address: 0x7000_0000 + slot as u64 * 0x10_0000, pitch: 2048 };
//!     let image = SourceImage::rgb8(width, height, plane)?;
//!     let part = PixelBox { left: 20.0, top: 10.0, width: 300.0, height: 300.0 };
//!     let plan = ResizePlan::new(part, 224, 224).mirrored(slot == 1);
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
//! # What comes out
//!
//! Positions are weighed as Pillow weighs them, which is PyTorch's `antialias=True`. Each component
//! goes straight from its own resolution to the target's, and colours are converted after that.
//! Nothing is rounded in between: bytes are rounded once, at the end, and other types only to their
//! own precision. So bytes are within one level of PyTorch's and of `spdl-media`'s, which round
//! between the two passes as well; other types are within 10⁻³ of PyTorch's with floating point.
//! Where nothing is resized, bytes are the formula's of the colour matrix, rounded to the nearest, on
//! every input.

mod launch;
mod modules;
mod plan;
mod sample;
mod table;

use spdl_core::{Error, ErrorKind};

pub use self::launch::{ImageKernels, SampleBatch};
pub use self::modules::{Module, module_for};
pub use self::plan::{Filter, PixelBox, PixelRect, ResizePlan};
pub use self::sample::{ChannelOrder, Layout, SampleFormat};
pub use self::table::{BatchTable, Launch};

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
