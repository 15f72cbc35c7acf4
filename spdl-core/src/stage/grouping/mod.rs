//! Items put together by their length: buckets of like ones, sequences packed full.

mod bucket;
#[cfg(test)]
mod law;
mod pack;
mod split;

pub use bucket::{Bucketed, Bucketer, Bucketing};
pub use pack::{Packed, Packer, Packing};
pub use split::{ConcatAndSplit, Piece, Sequence, pieces};

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};

/// Tells a number about an item: how long it is, say.
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

/// The caller has not asked for [`more`](crate::stage::Aggregator::more).
fn not_all_asked_for() -> Error {
    invalid("the last item completed more aggregates, which have not been asked for")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::footprint::Footprint;

    #[test]
    fn what_is_put_together_holds_what_its_items_hold() {
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
