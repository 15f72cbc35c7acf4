//! The order of very many items takes constant memory and supports random access.

// promise of this file: R13
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::System;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use futures_util::future::FutureExt;
use spdl_core::source::Cursor;
use spdl_core::{Dataset, DatasetSource, Result, Source};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Numbers that are computed on request.
#[derive(Debug)]
struct Numbers {
    len: u64,
    requested: Arc<AtomicU64>,
}

impl Dataset for Numbers {
    type Item = u64;
    fn len(&self) -> u64 {
        self.len
    }
    fn item(&self, index: u64) -> Result<u64> {
        self.requested.fetch_add(1, Ordering::Relaxed);
        Ok(index)
    }
}

#[test]
fn a_shuffle_of_a_billion_items_takes_less_than_a_megabyte_and_starts_anywhere() {
    const BILLION: u64 = 1_000_000_000;
    let requested = Arc::new(AtomicU64::new(0));
    let before = Region::new(HEAP);
    let numbers = Numbers { len: BILLION, requested: Arc::clone(&requested) };
    let source = DatasetSource::new(numbers).shuffled(7);
    let items_from = |position| {
        let items = source.open(Cursor::new(3, position)).unwrap();
        items.take(1000).map(Result::unwrap).collect::<Vec<u64>>().now_or_never().unwrap()
    };
    let last = items_from(BILLION - 1000);
    assert_eq!(items_from(BILLION - 500), last[500..]);
    let middle = items_from(BILLION / 2);
    assert_eq!((last.len(), middle.len()), (1000, 1000));
    assert_eq!(requested.load(Ordering::Relaxed), 2500, "no earlier item is requested");
    // All allocated bytes, including freed ones.
    let allocated = before.change().bytes_allocated;
    assert!(allocated < 1 << 20, "{allocated} bytes");
}
