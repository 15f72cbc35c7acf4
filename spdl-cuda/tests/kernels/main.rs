//! The kernels, compiled for the host with sanitizers, compared with computations in `f64`, with PyTorch
//! and with `spdl-media`.
#![cfg(feature = "images")]

#[cfg(test)]
mod arguments;
#[cfg(test)]
mod batch;
#[cfg(test)]
mod color;
#[cfg(test)]
mod host;
#[cfg(test)]
mod layout;
#[cfg(test)]
mod picture;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod resize;
