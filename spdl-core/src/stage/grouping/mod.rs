//! Aggregators that group items by length: buckets, packed sequences, fixed-length sequences. Batches of
//! such groups.

mod bucket;
mod pack;
#[cfg(test)]
mod resume_check;
mod sequences;
mod split;

pub use bucket::{Bucketed, Bucketer, Bucketing};
pub use pack::{Packed, Packer, Packing};
pub use sequences::{FillSequence, SampleTokens, SequenceLayout};
pub use split::{ConcatAndSplit, Piece, Sequence, pieces};

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};

/// A function that returns the length, or another number, of an item.
struct LengthFn<T, N>(Arc<dyn Fn(&T) -> N + Send + Sync>);

impl<T, N> LengthFn<T, N> {
    fn of(&self, item: &T) -> N {
        (self.0)(item)
    }
}

impl<T, N> fmt::Debug for LengthFn<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LengthFn")
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

fn empty_item() -> Error {
    invalid("an item of 0 tokens cannot be packed; filter empty items out")
}

/// The caller of [`accumulate`](crate::stage::Aggregator::accumulate) skipped
/// [`more`](crate::stage::Aggregator::more).
fn more_not_called() -> Error {
    invalid("the last item completed several aggregates; call `more` until it returns `None`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::footprint::Footprint;

    #[test]
    fn footprint_of_a_group_includes_its_items() {
        let text = String::with_capacity(1000);
        let least = text.footprint();
        let held = |footprint| (least..least + 200).contains(&footprint);
        let piece = Piece { part: text, offset: 0, whole: 1000 };
        assert!(held(piece.footprint()));
        let bucketed = Bucketed { bucket: 3, items: vec![piece] };
        assert!(held(bucketed.footprint()));
        let packed = Packed { items: bucketed.items, offsets: vec![0, 1000], capacity: 1024 };
        assert!(held(packed.footprint()));
    }
}
