//! The kernels, compiled for the host and run under sanitizers, against numbers of 64 bits, PyTorch and
//! `spdl-media`.
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
