//! Graphs of filters.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{MediaKind, StreamCodec};
use super::errors::error_of;
use super::frames::Frames;
use super::memory::{Frame, Graph, c_string, text};

/// A graph of FFmpeg's filters, from a description such as
/// `buffer=video_size=320x240:pix_fmt=yuv420p:time_base=1/25,hflip,buffersink`.
///
/// Inputs are the filters `buffer` and `abuffer`, outputs are `buffersink` and `abuffersink`. The graph
/// runs in the thread of the caller.
#[derive(Debug)]
pub struct FilterGraph {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    graph: Graph,
}

/// An input or output of a graph.
#[derive(Debug)]
struct Port {
    /// The name of the filter, such as `buffer@in`.
    name: String,
    /// The filter, which lives as long as the graph.
    filter: NonNull<ffi::AVFilterContext>,
}

// SAFETY: the filter belongs to the graph of the same value, which is `Send`.
unsafe impl Send for Port {}
// SAFETY: through `&self`, only the name is used.
unsafe impl Sync for Port {}

impl FilterGraph {
    /// Makes a graph.
    ///
    /// # Errors
    /// `InvalidArgument` if the description is wrong, names unknown filters or options, or leaves inputs or
    /// outputs of filters unconnected.
    pub fn new(description: &str) -> Result<Self> {
        FilterGraph::with_colors(description, None)
    }

    /// Makes a graph whose inputs have the colours of a stream.
    pub(super) fn with_colors(description: &str, codec: Option<&StreamCodec>) -> Result<Self> {
        super::start();
        // SAFETY: the function has no conditions; it returns a new graph or null.
        let pointer = unsafe { ffi::avfilter_graph_alloc() };
        // SAFETY: the value is new, or null.
        let mut graph = unsafe { Graph::from_raw(pointer, "a graph of filters") }?;
        graph.fields_mut().nb_threads = 1;
        let string = c_string(description)?;
        let (mut open_inputs, mut open_outputs) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: graph and description are valid; the lists are out-parameters.
        let code = unsafe {
            ffi::avfilter_graph_parse2(
                graph.as_ptr(),
                string.as_ptr(),
                &mut open_inputs,
                &mut open_outputs,
            )
        };
        let is_open = !open_inputs.is_null() || !open_outputs.is_null();
        // SAFETY: the list is null or new, and belongs to this function.
        unsafe { ffi::avfilter_inout_free(&mut open_inputs) };
        // SAFETY: as above.
        unsafe { ffi::avfilter_inout_free(&mut open_outputs) };
        if code < 0 {
            return Err(wrong(code, description));
        }
        if is_open {
            let message = format!(
                "the filters {description:?} have inputs or outputs without a connection; start with \
                 `buffer` or `abuffer`, and end with `buffersink` or `abuffersink`"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let inputs = ports(&graph, &["buffer", "abuffer"]);
        let outputs = ports(&graph, &["buffersink", "abuffersink"]);
        if let Some(codec) = codec {
            inputs.iter().for_each(|port| port.set_colors(codec));
        }
        // SAFETY: the graph is valid; a context for messages is optional.
        let code = unsafe { ffi::avfilter_graph_config(graph.as_ptr(), ptr::null_mut()) };
        if code < 0 {
            return Err(wrong(code, description));
        }
        Ok(FilterGraph { inputs, outputs, graph })
    }

    /// Gives frames to an input. `name` is the name of the filter, such as `buffer@in`; it can be omitted
    /// if there is one input.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such input, or the frames do not fit the graph.
    pub fn add(&mut self, name: Option<&str>, frames: &Frames) -> Result<()> {
        let port = find(&self.inputs, name, "input")?;
        let keep = ffi::AV_BUFFERSRC_FLAG_KEEP_REF as c_int;
        for frame in frames.as_slice() {
            // SAFETY: filter and frame are valid; the filter takes another reference.
            let code = unsafe {
                ffi::av_buffersrc_add_frame_flags(port.filter.as_ptr(), frame.as_ptr(), keep)
            };
            if code < 0 {
                return Err(error_of(code, "cannot filter a frame"));
            }
        }
        Ok(())
    }

    /// Ends all inputs: the filters return what they have kept.
    ///
    /// # Errors
    /// Those of the filters.
    pub fn finish(&mut self) -> Result<()> {
        for port in &self.inputs {
            // SAFETY: the filter is valid; a null frame ends the input.
            let code = unsafe {
                ffi::av_buffersrc_add_frame_flags(port.filter.as_ptr(), ptr::null_mut(), 0)
            };
            if code < 0 && code != ffi::AVERROR_EOF {
                return Err(error_of(code, "cannot finish a filter"));
            }
        }
        Ok(())
    }

    /// All frames that an output has ready. `name` is the name of the filter, such as `buffersink@out`;
    /// it can be omitted if there is one output.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such output; the errors of the filters.
    pub fn take(&mut self, name: Option<&str>) -> Result<Frames> {
        let port = find(&self.outputs, name, "output")?;
        let mut frames = port.frames();
        let mut frame = Frame::new()?;
        loop {
            // SAFETY: filter and frame are valid, and the frame is blank.
            let code =
                unsafe { ffi::av_buffersink_get_frame(port.filter.as_ptr(), frame.as_ptr()) };
            if code == ffi::AVERROR(ffi::EAGAIN) || code == ffi::AVERROR_EOF {
                return Ok(frames);
            }
            if code < 0 {
                return Err(error_of(code, "cannot filter a frame"));
            }
            frames.push(frame.take()?);
        }
    }

    /// FFmpeg's drawing of the graph in characters.
    pub fn drawing(&self) -> String {
        // SAFETY: the graph is valid.
        let drawing = unsafe { ffi::avfilter_graph_dump(self.graph.as_ptr(), ptr::null()) };
        // SAFETY: the result is null or a string.
        let copy = unsafe { text(drawing) };
        // SAFETY: the string belongs to this function.
        unsafe { ffi::av_free(drawing.cast()) };
        copy
    }
}

impl Port {
    /// An empty list for the frames of an output.
    fn frames(&self) -> Frames {
        // SAFETY: the filter is the output of a valid graph.
        let kind = match unsafe { ffi::av_buffersink_get_type(self.filter.as_ptr()) } {
            ffi::AVMediaType::AVMEDIA_TYPE_AUDIO => MediaKind::Audio,
            _ => MediaKind::Video,
        };
        // SAFETY: as above.
        let unit = unsafe { ffi::av_buffersink_get_time_base(self.filter.as_ptr()) };
        Frames::new(kind, unit.into())
    }

    /// Sets matrix and range of the pixels of an input, where the version of FFmpeg has these options:
    /// otherwise filters convert the pixels as if they were unknown.
    fn set_colors(&self, codec: &StreamCodec) {
        let parameters = codec.parameters().fields();
        let colors = [
            (c"colorspace", parameters.color_space as i64),
            (c"range", parameters.color_range as i64),
        ];
        for (name, value) in colors {
            let nested = ffi::AV_OPT_SEARCH_CHILDREN as c_int;
            let filter = self.filter.as_ptr().cast();
            // SAFETY: the filter is valid and not configured yet. If it has no such option, nothing changes.
            unsafe { ffi::av_opt_set_int(filter, name.as_ptr(), value, nested) };
        }
    }
}

/// The filters of a graph with one of these types.
fn ports(graph: &Graph, types: &[&str]) -> Vec<Port> {
    let fields = graph.fields();
    if fields.filters.is_null() {
        return Vec::new();
    }
    // SAFETY: the graph has `nb_filters` pointers.
    let filters = unsafe { std::slice::from_raw_parts(fields.filters, fields.nb_filters as usize) };
    let mut ports = Vec::new();
    for filter in filters.iter().filter_map(|filter| NonNull::new(*filter)) {
        // SAFETY: the filters of a graph are valid, and nothing changes them now.
        let fields = unsafe { filter.as_ref() };
        // SAFETY: the type of a filter is a constant of the library.
        let of_type = unsafe { &*fields.filter }.name;
        // SAFETY: the name of a type is a string.
        let of_type = unsafe { text(of_type) };
        if types.contains(&of_type.as_str()) {
            // SAFETY: the name of a filter is null or a string.
            ports.push(Port { name: unsafe { text(fields.name) }, filter });
        }
    }
    ports
}

fn find<'a>(ports: &'a [Port], name: Option<&str>, what: &str) -> Result<&'a Port> {
    let names = || ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
    let error = match (name, ports) {
        (None, [port]) => return Ok(port),
        (None, []) => format!("the graph of filters has no {what}"),
        (None, _) => {
            format!("the graph of filters has more than one {what}: name one of {}", names())
        }
        (Some(name), _) => match ports.iter().find(|port| port.name == name) {
            Some(port) => return Ok(port),
            None => format!("the graph of filters has no {what} {name:?}; it has: {}", names()),
        },
    };
    Err(Error::new(ErrorKind::InvalidArgument, error))
}

fn wrong(code: c_int, description: &str) -> Error {
    let reason = error_of(code, "").to_string();
    let reason = reason.trim_start_matches(": ");
    let message = format!("cannot make a graph of the filters {description:?}: {reason}");
    Error::new(ErrorKind::InvalidArgument, message)
}

/// The names of all filters of this build of FFmpeg, sorted.
pub fn filters() -> Vec<String> {
    let mut names = Vec::new();
    let mut position = ptr::null_mut();
    loop {
        // SAFETY: `position` is only used by this function.
        let filter = unsafe { ffi::av_filter_iterate(&mut position) };
        // SAFETY: the result is null or a constant of the library.
        let Some(filter) = (unsafe { filter.as_ref() }) else { break };
        // SAFETY: the name of a filter is a string of the library.
        names.push(unsafe { text(filter.name) });
    }
    names.sort();
    names
}
