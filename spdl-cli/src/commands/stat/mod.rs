//! `spdl stat`: counts, sizes, resolutions, durations, formats and classes of a data set.
//!
//! | file | content |
//! |---|---|
//! | `arguments` | the options |
//! | `run` | the pass over all members, and its result |
//! | `statistics` | the counts, quantiles and histograms |
//! | `timed` | the statistics of audio and video |
//! | `thumbnails` | the images of the contact sheet |
//! | `previews` | waveforms, and frames of videos |
//! | `report` | the HTML page |

pub(super) mod arguments;
mod previews;
mod report;
pub(super) mod run;
mod statistics;
mod thumbnails;
mod timed;
