//! Owners of contexts, packets and frames of the libraries.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, NonNull};

use bytes::Bytes;
use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::errors::{error_of, out_of_memory};

/// Owns a value of the libraries.
macro_rules! owner {
    ($(#[$doc:meta])* $name:ident, $type:ty, $free:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name(NonNull<$type>);

        impl $name {
            /// Takes ownership of what `pointer` points to; an error if it is null.
            ///
            /// # Safety
            /// The value must be valid, and have no other owner.
            pub(crate) unsafe fn from_raw(pointer: *mut $type, what: &str) -> Result<Self> {
                NonNull::new(pointer).map($name).ok_or_else(|| out_of_memory(what))
            }

            /// The pointer for functions of the libraries. Valid as long as the owner.
            pub(crate) fn as_ptr(&self) -> *mut $type {
                self.0.as_ptr()
            }

            /// The fields.
            pub(crate) fn fields(&self) -> &$type {
                // SAFETY: the owner holds a valid value, and `&self` excludes changes.
                unsafe { self.0.as_ref() }
            }

            /// The fields, to be changed. Pointers among them must stay valid.
            #[allow(dead_code, reason = "some values are changed by the libraries only")]
            pub(crate) fn fields_mut(&mut self) -> &mut $type {
                // SAFETY: the owner holds a valid value, and `&mut self` excludes other uses.
                unsafe { self.0.as_mut() }
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                let mut pointer = self.0.as_ptr();
                // SAFETY: the owner holds a valid value, which is freed here only.
                unsafe { $free(&mut pointer) };
            }
        }

        // SAFETY: the libraries bind these values to no thread; `&mut` or ownership passes on.
        unsafe impl Send for $name {}
        // SAFETY: through `&self`, this crate only reads fields, and takes references, which the libraries
        // count atomically; functions that change the value have `&mut self`, or a new reference.
        unsafe impl Sync for $name {}
    };
}

owner!(
    /// An encoded packet.
    Packet, ffi::AVPacket, ffi::av_packet_free
);
owner!(
    /// A decoded frame.
    Frame, ffi::AVFrame, ffi::av_frame_free
);
owner!(
    /// A decoder or an encoder.
    CodecContext, ffi::AVCodecContext, ffi::avcodec_free_context
);
owner!(
    /// The parameters of an encoded stream.
    Parameters, ffi::AVCodecParameters, ffi::avcodec_parameters_free
);
owner!(
    /// A graph of filters.
    Graph, ffi::AVFilterGraph, ffi::avfilter_graph_free
);
owner!(
    /// Bit stream filters.
    BitStream, ffi::AVBSFContext, ffi::av_bsf_free
);

impl Packet {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: the function has no conditions; it returns a new packet or null.
        let pointer = unsafe { ffi::av_packet_alloc() };
        // SAFETY: the value is new, or null.
        unsafe { Packet::from_raw(pointer, "a packet") }
    }

    /// Copies `bytes`, followed by the padding that decoders require.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> Result<()> {
        self.clear();
        let Ok(size) = i32::try_from(bytes.len()) else {
            return Err(out_of_memory("a packet of 2 GiB"));
        };
        // SAFETY: the packet is valid and blank.
        let code = unsafe { ffi::av_new_packet(self.as_ptr(), size) };
        if code < 0 {
            return Err(error_of(code, "cannot allocate a packet"));
        }
        // SAFETY: `av_new_packet` allocated `size` bytes and padding; `bytes` is other memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.fields().data, bytes.len()) };
        Ok(())
    }

    /// A packet whose content is a part of `memory`, without a copy. The part must be followed by
    /// [`PADDING`] bytes of 0.
    pub(crate) fn sharing(memory: &Bytes, part: std::ops::Range<usize>) -> Result<Self> {
        let mut packet = Packet::new()?;
        let bytes = &memory[part.start..part.end + PADDING];
        debug_assert!(bytes[part.len()..].iter().all(|&byte| byte == 0), "no padding");
        let data = bytes.as_ptr().cast_mut();
        let buffer = reference(memory.clone(), data, bytes.len())?;
        let fields = packet.fields_mut();
        fields.buf = buffer;
        fields.data = data;
        fields.size = i32::try_from(part.len()).map_err(|_| out_of_memory("a large packet"))?;
        Ok(packet)
    }

    /// Another reference to the same content.
    pub(crate) fn share(&self) -> Result<Self> {
        // SAFETY: the packet is valid; the function returns a new packet or null.
        let pointer = unsafe { ffi::av_packet_clone(self.as_ptr()) };
        // SAFETY: the value is new, or null.
        unsafe { Packet::from_raw(pointer, "a packet") }
    }

    /// The encoded bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        let fields = self.fields();
        match usize::try_from(fields.size) {
            Ok(size) if size > 0 && !fields.data.is_null() => {
                // SAFETY: the packet has `size` bytes of data, and `&self` excludes changes.
                unsafe { std::slice::from_raw_parts(fields.data, size) }
            }
            _ => &[],
        }
    }

    /// Releases the content.
    pub(crate) fn clear(&mut self) {
        // SAFETY: the packet is valid.
        unsafe { ffi::av_packet_unref(self.as_ptr()) };
    }
}

/// The bytes of 0 that must follow an encoded packet.
pub(crate) const PADDING: usize = ffi::AV_INPUT_BUFFER_PADDING_SIZE as usize;

/// A reference-counted buffer of the libraries that keeps `memory`, which they do not change.
fn reference(memory: Bytes, data: *mut u8, size: usize) -> Result<*mut ffi::AVBufferRef> {
    /// Frees the memory that a buffer keeps.
    ///
    /// # Safety
    /// `memory` must be a leaked `Box<Bytes>`.
    unsafe extern "C" fn free(memory: *mut c_void, _data: *mut u8) {
        // SAFETY: the buffer was created with a leaked box, and is freed once.
        drop(unsafe { Box::from_raw(memory.cast::<Bytes>()) });
    }
    let memory = Box::into_raw(Box::new(memory));
    let read_only = ffi::AV_BUFFER_FLAG_READONLY;
    // SAFETY: `data` and `size` describe a part of `memory`, which `free` frees after the last use.
    let buffer =
        unsafe { ffi::av_buffer_create(data, size as _, Some(free), memory.cast(), read_only) };
    if buffer.is_null() {
        // SAFETY: the box was leaked just now, and the function took no reference to it.
        drop(unsafe { Box::from_raw(memory) });
        return Err(out_of_memory("a reference to memory"));
    }
    Ok(buffer)
}

unsafe extern "C" {
    // As in libavutil, with the format as a number: see `names`.
    fn av_sample_fmt_is_planar(format: std::ffi::c_int) -> std::ffi::c_int;
}

impl Frame {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: the function has no conditions; it returns a new frame or null.
        let pointer = unsafe { ffi::av_frame_alloc() };
        // SAFETY: the value is new, or null.
        unsafe { Frame::from_raw(pointer, "a frame") }
    }

    /// Another reference to the same content.
    pub(crate) fn share(&self) -> Result<Self> {
        // SAFETY: the frame is valid; the function returns a new frame or null.
        let pointer = unsafe { ffi::av_frame_clone(self.as_ptr()) };
        // SAFETY: the value is new, or null.
        unsafe { Frame::from_raw(pointer, "a frame") }
    }

    /// The address of a plane of audio: one per channel if the format is planar, otherwise one.
    ///
    /// # Panics
    /// If there is no such plane.
    pub(crate) fn plane(&self, number: usize) -> *mut u8 {
        let fields = self.fields();
        // SAFETY: any number is allowed.
        let is_planar = unsafe { av_sample_fmt_is_planar(fields.format) } != 0;
        let channels = usize::try_from(fields.ch_layout.nb_channels).unwrap_or(0);
        let planes = if is_planar { channels } else { 1 };
        // SAFETY: a frame of audio has this many pointers.
        let planes = unsafe { std::slice::from_raw_parts(fields.extended_data, planes) };
        planes[number]
    }

    /// The bytes of memory that the frame refers to.
    pub(crate) fn bytes(&self) -> usize {
        let buffers = self.fields().buf.iter();
        // SAFETY: a buffer of a frame is null or valid.
        buffers.filter_map(|buffer| unsafe { buffer.as_ref() }).map(|buffer| buffer.size).sum()
    }

    /// Moves the content to a new frame.
    pub(crate) fn take(&mut self) -> Result<Self> {
        let taken = Frame::new()?;
        // SAFETY: both frames are valid, and the new one is blank.
        unsafe { ffi::av_frame_move_ref(taken.as_ptr(), self.as_ptr()) };
        Ok(taken)
    }
}

impl Parameters {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: the function has no conditions; it returns new parameters or null.
        let pointer = unsafe { ffi::avcodec_parameters_alloc() };
        // SAFETY: the value is new, or null.
        unsafe { Parameters::from_raw(pointer, "parameters of a stream") }
    }

    /// A copy of `source`.
    pub(crate) fn of(source: &ffi::AVCodecParameters) -> Result<Self> {
        let parameters = Parameters::new()?;
        // SAFETY: both are valid.
        let code = unsafe { ffi::avcodec_parameters_copy(parameters.as_ptr(), source) };
        if code < 0 { Err(error_of(code, "cannot copy the parameters")) } else { Ok(parameters) }
    }
}

/// A copy of set-up data with padding, for a value of the libraries that frees it; null if there is none.
pub(crate) fn padded(setup: &[u8]) -> Result<(*mut u8, std::ffi::c_int)> {
    let size = std::ffi::c_int::try_from(setup.len()).ok();
    let size = size.filter(|size| size.checked_add(PADDING as std::ffi::c_int).is_some());
    let size = size.ok_or_else(|| out_of_memory("set-up data of 2 GiB"))?;
    if setup.is_empty() {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: any size is allowed; the result is null or has this size, filled with 0.
    let memory = unsafe { ffi::av_mallocz((setup.len() + PADDING) as _) }.cast::<u8>();
    if memory.is_null() {
        return Err(out_of_memory("set-up data"));
    }
    // SAFETY: `memory` has room for `setup`, and was allocated just now.
    unsafe { ptr::copy_nonoverlapping(setup.as_ptr(), memory, setup.len()) };
    Ok((memory, size))
}

/// Options for functions of the libraries.
#[derive(Debug)]
pub(crate) struct Dictionary(*mut ffi::AVDictionary);

impl Dictionary {
    pub(crate) fn new<'a>(options: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let mut dictionary = Dictionary(ptr::null_mut());
        for (name, value) in options {
            let (name, value) = (c_string(name)?, c_string(value)?);
            let place = dictionary.as_mut_ptr();
            // SAFETY: name and value are terminated with 0, and are copied.
            let code = unsafe { ffi::av_dict_set(place, name.as_ptr(), value.as_ptr(), 0) };
            if code < 0 {
                return Err(error_of(code, "cannot set an option"));
            }
        }
        Ok(dictionary)
    }

    /// The dictionary for a function that frees it.
    pub(crate) fn take(&mut self) -> *mut ffi::AVDictionary {
        std::mem::replace(&mut self.0, ptr::null_mut())
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut *mut ffi::AVDictionary {
        &raw mut self.0
    }

    /// Fails if a function has left options, which it does not know.
    pub(crate) fn check_used(&self, of: &str) -> Result<()> {
        // SAFETY: the dictionary is null or valid, and belongs to `self`.
        let left = unsafe { entries(self.0) };
        if left.is_empty() {
            return Ok(());
        }
        let left: Vec<_> = left.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let message = format!("Unexpected options: {} ({of} has no such option)", left.join(", "));
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }
}

impl Drop for Dictionary {
    fn drop(&mut self) {
        // SAFETY: the dictionary is null or valid, and freed here only.
        unsafe { ffi::av_dict_free(&mut self.0) };
    }
}

/// The entries of a dictionary of the libraries.
///
/// # Safety
/// `dictionary` must be null or valid, and unchanged during the call.
pub(crate) unsafe fn entries(dictionary: *const ffi::AVDictionary) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut entry: *const ffi::AVDictionaryEntry = ptr::null();
    loop {
        let flags = ffi::AV_DICT_IGNORE_SUFFIX;
        // SAFETY: the dictionary is valid; `entry` is null or one of its entries.
        entry = unsafe { ffi::av_dict_get(dictionary, c"".as_ptr(), entry, flags) };
        // SAFETY: the function returned null or an entry of the dictionary.
        let Some(fields) = (unsafe { entry.as_ref() }) else { return found };
        // SAFETY: the name of an entry is a string.
        let name = unsafe { text(fields.key) };
        // SAFETY: as above, the value.
        found.push((name, unsafe { text(fields.value) }));
    }
}

/// A copy of a string of the libraries; nothing if it is null.
///
/// # Safety
/// `string` must be null or terminated with 0.
pub(crate) unsafe fn text(string: *const std::ffi::c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the string is terminated with 0.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

/// A string for functions of the libraries.
pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, format!("{text:?} contains a character of 0"))
    })
}
