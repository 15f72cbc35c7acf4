//! `spdl stat`: counts, sizes, resolutions, formats and classes of a data set.
//!
//! | file | content |
//! |---|---|
//! | `arguments` | the options |
//! | `run` | the pass over all members, and its result |
//! | `statistics` | the counts, quantiles and histograms |
//! | `thumbnails` | the images of the contact sheet |
//! | `report` | the HTML page |

pub(super) mod arguments;
mod report;
pub(super) mod run;
mod statistics;
mod thumbnails;
