//! HTML pages in one file, with charts as inline SVG.
//!
//! | file | content |
//! |---|---|
//! | `document` | the page, its sections and tables, and escaping |
//! | `svg` | axes, curves, bars and scales of charts |
//! | `waveform` | waveforms of audio |
//! | `file` | replaces the output file atomically |
//! | `style.css` | the style sheet of every page |

pub(crate) mod document;
pub(crate) mod file;
pub(crate) mod svg;
pub(crate) mod waveform;
