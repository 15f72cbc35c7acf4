//! Graphs of filters.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use ffmpeg_next::ffi;
use spdl_core::memory::usable_memory;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{MediaKind, Rational, layout_name};
use super::errors::error_of;
use super::frames::Frames;
use super::memory::{Frame, Graph, c_string, text};
use super::names::{self, number_of};

/// A graph of FFmpeg's filters, from a description such as
/// `buffer=video_size=320x240:pix_fmt=yuv420p:time_base=1/25,hflip,buffersink`.
///
/// Inputs are the filters `buffer` and `abuffer`, outputs are `buffersink` and `abuffersink`. The graph
/// runs in the thread of the caller. Filters such as `movie` open the files that the description names: use only
/// descriptions of the program.
#[derive(Debug)]
pub struct FilterGraph {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    graph: Graph,
    /// The most bytes of frames that an output returns at a time.
    memory: u64,
}

/// The memory that this process may use, as found by the first call: later graphs open no system files.
fn usable() -> u64 {
    static USABLE: OnceLock<u64> = OnceLock::new();
    *USABLE.get_or_init(usable_memory)
}

/// An input or output of a graph.
#[derive(Debug)]
struct Port {
    /// The name of the filter, such as `buffer@in`.
    name: String,
    /// The filter, which lives as long as the graph.
    filter: NonNull<ffi::AVFilterContext>,
    /// The only frames that an input accepts.
    form: Option<Form>,
}

// SAFETY: the filter belongs to the graph of the same value, which is `Send`.
unsafe impl Send for Port {}
// SAFETY: the functions of a graph that use its filters have `&mut self`.
unsafe impl Sync for Port {}

/// What all frames of a stream have in common. Filters of FFmpeg do not check it, and would read outside of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    is_audio: bool,
    format: c_int,
    /// Width and height, or sample rate and channels.
    size: (c_int, c_int),
}

impl Form {
    fn of(frame: &Frame, kind: MediaKind) -> Self {
        let (fields, is_audio) = (frame.fields(), kind == MediaKind::Audio);
        let size = match is_audio {
            true => (fields.sample_rate, fields.ch_layout.nb_channels),
            false => (fields.width, fields.height),
        };
        Form { is_audio, format: fields.format, size }
    }

    /// The form of the frames of an input of a configured graph.
    fn of_input(filter: NonNull<ffi::AVFilterContext>) -> Option<Self> {
        // SAFETY: the filter belongs to a graph, and nothing changes it now.
        let fields = unsafe { filter.as_ref() };
        if fields.nb_outputs != 1 || fields.outputs.is_null() {
            return None;
        }
        // SAFETY: the filter has one output.
        let link = unsafe { *fields.outputs };
        // SAFETY: the output of a configured filter is null or valid.
        let link = unsafe { link.as_ref() }?;
        let is_audio = link.type_ == ffi::AVMediaType::AVMEDIA_TYPE_AUDIO;
        let size = match is_audio {
            true => (link.sample_rate, link.ch_layout.nb_channels),
            false => (link.w, link.h),
        };
        Some(Form { is_audio, format: link.format, size })
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Form { is_audio, format, size: (first, second) } = self;
        match is_audio {
            true => {
                let format = names::of_sample_format(*format);
                write!(f, "{second} channels in {format} at {first} Hz")
            }
            false => {
                write!(f, "{first} × {second} pixels in {}", names::of_pixel_format(*format))
            }
        }
    }
}

impl FilterGraph {
    /// Makes a graph.
    ///
    /// # Errors
    /// `InvalidArgument` if the description is wrong, names unknown filters or options, or leaves inputs or
    /// outputs of filters unconnected.
    pub fn new(description: &str) -> Result<Self> {
        FilterGraph::with_colors(description, None)
    }

    /// Makes a graph whose inputs have the colours of a frame: matrix and range.
    fn with_colors(description: &str, colors: Option<(c_int, c_int)>) -> Result<Self> {
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
        let mut inputs = ports(&graph, &["buffer", "abuffer"]);
        let outputs = ports(&graph, &["buffersink", "abuffersink"]);
        if let Some((matrix, range)) = colors {
            inputs.iter().for_each(|port| port.set_colors(matrix, range));
        }
        // SAFETY: the graph is valid; a context for messages is optional.
        let code = unsafe { ffi::avfilter_graph_config(graph.as_ptr(), ptr::null_mut()) };
        if code < 0 {
            return Err(wrong(code, description));
        }
        for input in &mut inputs {
            input.form = Form::of_input(input.filter);
        }
        Ok(FilterGraph { inputs, outputs, graph, memory: usable() })
    }

    /// Gives frames to an input. `name` is the name of the filter, such as `buffer@in`; it can be omitted
    /// if there is one input.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such input, or the frames do not fit the graph.
    pub fn add(&mut self, name: Option<&str>, frames: &Frames) -> Result<()> {
        let port = find(&self.inputs, name, "input")?;
        for frame in frames.as_slice() {
            let form = Form::of(frame, frames.kind());
            if let Some(expected) = port.form.filter(|expected| *expected != form) {
                let message = format!("the input {} expects {expected}, not {form}", port.name);
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            port.add(frame)?;
        }
        Ok(())
    }

    /// Ends all inputs, so that the filters return their buffered frames.
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
    /// `InvalidArgument` if there is no such output; `LimitExceeded` if the frames exceed the memory of the machine, as
    /// those of endless filters; the errors of the filters.
    pub fn take(&mut self, name: Option<&str>) -> Result<Frames> {
        self.take_up_to(name, usize::MAX)
    }

    fn take_up_to(&mut self, name: Option<&str>, most: usize) -> Result<Frames> {
        let port = find(&self.outputs, name, "output")?;
        let mut frames = port.frames();
        let mut frame = Frame::new()?;
        let mut bytes = 0;
        while frames.len() < most {
            // SAFETY: filter and frame are valid, and the frame is blank.
            let code =
                unsafe { ffi::av_buffersink_get_frame(port.filter.as_ptr(), frame.as_ptr()) };
            if code == ffi::AVERROR(ffi::EAGAIN) || code == ffi::AVERROR_EOF {
                break;
            }
            if code < 0 {
                return Err(error_of(code, "cannot filter a frame"));
            }
            bytes += frame.bytes() as u64;
            if bytes > self.memory || frames.len() >= MAX_FRAMES {
                let message = format!(
                    "the output {} has more than {} frames, which exceed the usable memory; limit endless filters, for example with trim",
                    port.name,
                    frames.len()
                );
                return Err(Error::new(ErrorKind::LimitExceeded, message));
            }
            frames.push(frame.take()?);
        }
        Ok(frames)
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
    fn set_colors(&self, matrix: c_int, range: c_int) {
        for (name, value) in [(c"colorspace", matrix), (c"range", range)] {
            let nested = ffi::AV_OPT_SEARCH_CHILDREN as c_int;
            let filter = self.filter.as_ptr().cast();
            // SAFETY: the filter is valid and not configured yet. If it has no such option, nothing changes.
            unsafe { ffi::av_opt_set_int(filter, name.as_ptr(), value.into(), nested) };
        }
    }

    /// Passes a frame of the right form to an input.
    fn add(&self, frame: &Frame) -> Result<()> {
        // The filter changes the frame.
        let shared = frame.share()?;
        // SAFETY: filter and frame are valid; the filter takes the content of the frame.
        let code =
            unsafe { ffi::av_buffersrc_add_frame_flags(self.filter.as_ptr(), shared.as_ptr(), 0) };
        if code < 0 { Err(error_of(code, "cannot filter a frame")) } else { Ok(()) }
    }
}

/// The most frames that an output returns at a time.
const MAX_FRAMES: usize = 10_000_000;

/// Filters of one stream: the graph is made for the first frame, and again when the size or the format changes.
#[derive(Debug)]
pub(super) struct FilterChain {
    /// The filters between input and output.
    filters: String,
    unit: Rational,
    graph: Option<FilterGraph>,
}

impl FilterChain {
    pub(super) fn new(filters: &str, unit: Rational) -> Self {
        FilterChain { filters: filters.to_owned(), unit, graph: None }
    }

    /// Filters frames; at most `most` of those that are ready.
    pub(super) fn filter(&mut self, decoded: &Frames, most: usize) -> Result<Frames> {
        let mut ready = Frames::new(decoded.kind(), self.unit);
        for frame in decoded.as_slice() {
            let form = Form::of(frame, decoded.kind());
            let has = self.graph.as_ref().and_then(|graph| graph.inputs[0].form);
            if has != Some(form) {
                ready.append(self.finish(most - ready.len())?)?;
                self.graph = Some(self.made_for(frame, form)?);
            }
            if let Some(graph) = &mut self.graph {
                graph.inputs[0].add(frame)?;
                ready.append(graph.take_up_to(None, most - ready.len())?)?;
            }
        }
        Ok(ready)
    }

    /// The remaining frames.
    pub(super) fn finish(&mut self, most: usize) -> Result<Frames> {
        match self.graph.take() {
            Some(mut graph) => {
                graph.finish()?;
                graph.take_up_to(None, most)
            }
            None => Ok(Frames::new(MediaKind::Video, self.unit)),
        }
    }

    fn made_for(&self, frame: &Frame, form: Form) -> Result<FilterGraph> {
        let Rational { numerator, denominator } = self.unit;
        let (fields, (first, second)) = (frame.fields(), form.size);
        let source = if form.is_audio {
            format!(
                "abuffer=time_base={numerator}/{denominator}:sample_rate={first}:sample_fmt={}:channel_layout={}",
                names::of_sample_format(form.format),
                layout_name(&fields.ch_layout)
            )
        } else {
            let ratio = fields.sample_aspect_ratio;
            format!(
                "buffer=video_size={first}x{second}:pix_fmt={}:time_base={numerator}/{denominator}:\
                 pixel_aspect={}/{}",
                names::of_pixel_format(form.format),
                ratio.num.max(0),
                ratio.den.max(1)
            )
        };
        let colors = (number_of!(fields.colorspace), number_of!(fields.color_range));
        // The type of the output is not known: `showwaves` makes pictures of audio.
        let sinks = match form.is_audio {
            true => ["abuffersink", "buffersink"],
            false => ["buffersink", "abuffersink"],
        };
        let made = |sink: &str| {
            FilterGraph::with_colors(&format!("{source},{},{sink}", self.filters), Some(colors))
        };
        let graph = made(sinks[0]).or_else(|error| made(sinks[1]).map_err(|_| error))?;
        if let (1, 1) = (graph.inputs.len(), graph.outputs.len()) {
            return Ok(graph);
        }
        let message = format!("the filters {:?} must have one input and one output", self.filters);
        Err(Error::new(ErrorKind::InvalidArgument, message))
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
            let name = unsafe { text(fields.name) };
            ports.push(Port { name, filter, form: None });
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
