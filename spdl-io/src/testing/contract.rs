//! [`fetcher_contract`]: tests each rule of [`Fetcher`] against a folder of known objects.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use spdl_core::{Error, ErrorKind, Result, block_on};

use crate::fetch::{Body, Fetcher, Key, ObjectMeta, ReadRequest};

/// Returns the names and contents of the objects that [`fetcher_contract`] expects in a folder.
///
/// Names are relative to the folder. They may contain `/`.
pub fn contract_objects() -> Vec<(&'static str, Bytes)> {
    // Sorted by the bytes of the names: "a.b" precedes "a/b". A store that lists folder by folder
    // may return the reverse order.
    [("a.b", 3), ("a/b", 4), ("deep/er/object", 1_000), ("empty", 0), ("größe 1", 70_001)]
        .into_iter()
        .chain([("large", 3_000_000), ("one byte", 1)])
        .map(|(name, len)| (name, contents(name, len)))
        .collect()
}

/// Pseudo-random bytes that differ between objects.
fn contents(name: &str, len: usize) -> Bytes {
    let seed = name.bytes().fold(1u32, |sum, byte| sum.wrapping_mul(31) + u32::from(byte));
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(Some(seed), next).map(|state| (state >> 24) as u8).take(len).collect()
}

/// Tests that `fetcher` satisfies the contract of [`Fetcher`] for all operations in its
/// [`Capability`](crate::Capability). `folder` must hold exactly the [`contract_objects`].
///
/// Futures are polled on the calling thread without a runtime.
///
/// # Panics
/// If a rule is violated. The message names the rule.
pub fn fetcher_contract(fetcher: &dyn Fetcher, folder: &Key) {
    let objects: Vec<(Key, Bytes)> =
        contract_objects().into_iter().map(|(name, bytes)| (join(folder, name), bytes)).collect();
    whole_objects_are_read(fetcher, &objects);
    missing_objects_are_not_found(fetcher, &join(folder, "missing"));
    size_limits_hold(fetcher, &objects);
    concurrent_reads_are_independent(fetcher, &objects);
    ranges_are_exact_or_unsupported(fetcher, &objects);
    several_ranges_are_in_order_or_unsupported(fetcher, &objects);
    sizes_and_versions_are_reported_or_unsupported(fetcher, folder, &objects);
    bodies_are_exact(fetcher, &objects);
    other_versions_are_rejected(fetcher, &objects);
    listings_are_complete_or_unsupported(fetcher, folder, &objects);
}

fn join(folder: &Key, name: &str) -> Key {
    if folder.as_bytes().is_empty() {
        return name.into();
    }
    Key::from_bytes(&[folder.as_bytes(), b"/", name.as_bytes()].concat())
}

fn whole_objects_are_read(fetcher: &dyn Fetcher, objects: &[(Key, Bytes)]) {
    for (key, bytes) in objects {
        for time in ["first", "second"] {
            let read = expect(block_on(fetcher.read(key, None)), "a whole object can be read");
            assert!(read == bytes, "{time} read of {key}: {} of {} bytes", read.len(), bytes.len());
        }
    }
}

fn missing_objects_are_not_found(fetcher: &dyn Fetcher, missing: &Key) {
    let range = fetcher.capability().ranges.then_some(0..1);
    for range in [None, range] {
        let error =
            expect_error(block_on(fetcher.read(missing, range)), "reading a missing object");
        assert_eq!(error.kind(), ErrorKind::NotFound, "a missing object: {}", error.report());
        assert_eq!(error.key(), Some(&*missing.display_name()), "an error names its key");
    }
}

fn size_limits_hold(fetcher: &dyn Fetcher, objects: &[(Key, Bytes)]) {
    for (key, bytes) in objects {
        let len = bytes.len() as u64;
        for limit in [len, u64::MAX] {
            let read = block_on(fetcher.read_whole(key, &limit));
            assert!(expect(read, "an object within the limit can be read") == bytes);
        }
        if let Some(limit) = len.checked_sub(1) {
            let error =
                expect_error(block_on(fetcher.read_whole(key, &limit)), "crossing the limit");
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", error.report());
            assert_eq!(error.key(), Some(&*key.display_name()), "an error names its key");
        }
    }
}

fn concurrent_reads_are_independent(fetcher: &dyn Fetcher, objects: &[(Key, Bytes)]) {
    let many: Vec<_> = objects.iter().cycle().take(100).collect();
    let mut dropped: Vec<_> = many.iter().map(|(key, _)| fetcher.read(key, None)).collect();
    block_on(poll_fn(|cx| {
        for read in &mut dropped {
            let _ = read.as_mut().poll(cx);
        }
        Poll::Ready(())
    }));
    drop(dropped);
    let reads = block_on(join_all(many.iter().map(|(key, _)| fetcher.read(key, None))));
    for (read, (key, bytes)) in reads.into_iter().zip(many) {
        let read = expect(read, "concurrent reads succeed after earlier reads were dropped");
        assert!(read == bytes, "concurrent reads: {key} has the bytes of another object");
    }
}

fn ranges_are_exact_or_unsupported(fetcher: &dyn Fetcher, objects: &[(Key, Bytes)]) {
    let read = |key: &Key, range: Range<u64>| block_on(fetcher.read(key, Some(range)));
    for (key, bytes) in objects {
        let len = bytes.len() as u64;
        if !fetcher.capability().ranges {
            let error = expect_error(read(key, 0..len), "reading a range without the capability");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
            continue;
        }
        for range in [0..len, 0..len / 2, len / 2..len, len / 3..len / 2, 0..0, len..len] {
            let part = expect(read(key, range.clone()), "a range can be read");
            let exact = bytes.slice(range.start as usize..range.end as usize);
            assert!(part == exact, "{range:?} of {key}: {} bytes", part.len());
        }
        for range in [0..len + 1, len..len + 1, len + 1..len + 2, len + 5..len + 5, 0..u64::MAX] {
            let error = expect_error(read(key, range.clone()), "reading beyond the end");
            assert_eq!(error.kind(), ErrorKind::Truncated, "{range:?}: {}", error.report());
            assert_eq!(error.key(), Some(&*key.display_name()), "an error names its key");
        }
        #[expect(clippy::reversed_empty_ranges, reason = "tests that it is rejected")]
        let error = expect_error(read(key, 2..1), "reading a range that ends before it starts");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}", error.report());
    }
}

fn several_ranges_are_in_order_or_unsupported(fetcher: &dyn Fetcher, objects: &[(Key, Bytes)]) {
    for (key, bytes) in objects {
        let len = bytes.len() as u64;
        let ranges = [len / 2..len, 0..len / 3, 0..0, len / 4..len / 2, len / 2..len, len..len];
        let read = |ranges: &[Range<u64>]| block_on(fetcher.read_ranges(key, ranges));
        assert_eq!(expect(read(&[]), "an empty list of ranges can be read").len(), 0);
        if !fetcher.capability().ranges {
            let error = expect_error(read(&ranges), "reading ranges without the capability");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
            continue;
        }
        let parts = expect(read(&ranges), "ranges in any order can be read");
        let exact: Vec<_> = ranges
            .iter()
            .map(|range| bytes.slice(range.start as usize..range.end as usize))
            .collect();
        assert!(parts == exact, "{ranges:?} of {key} have wrong bytes");
        let error = expect_error(read(&[0..len, len..len + 1]), "reading beyond the end");
        assert_eq!(error.kind(), ErrorKind::Truncated, "{}", error.report());
        assert_eq!(error.key(), Some(&*key.display_name()), "an error names its key");
    }
}

fn sizes_and_versions_are_reported_or_unsupported(
    fetcher: &dyn Fetcher,
    folder: &Key,
    objects: &[(Key, Bytes)],
) {
    let capability = fetcher.capability();
    assert!(capability.stat || !capability.versions, "`versions` implies `stat`");
    assert!(
        capability.versions || !capability.local_versions,
        "`local_versions` implies `versions`"
    );
    for (key, bytes) in objects {
        let meta = block_on(fetcher.stat(key));
        if !capability.stat {
            let error = expect_error(meta, "`stat` without the capability");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
            continue;
        }
        let meta = expect(meta, "`stat` succeeds");
        assert_eq!(
            (&meta.key, meta.size),
            (key, bytes.len() as u64),
            "`stat` returns key and size"
        );
        assert_eq!(
            meta.version.is_some(),
            capability.versions,
            "`stat` returns a version of {key} if supported"
        );
    }
    if capability.stat {
        let missing = join(folder, "missing");
        let error = expect_error(block_on(fetcher.stat(&missing)), "`stat` of a missing object");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.report());
        assert_eq!(error.key(), Some(&*missing.display_name()), "an error names its key");
    }
}

fn bodies_are_exact(fetcher: &dyn Fetcher, objects: &[(Key, Bytes)]) {
    let open = |key: &Key, request: &ReadRequest| block_on(fetcher.open(key, request));
    for (key, bytes) in objects {
        let len = bytes.len() as u64;
        let mut requests = vec![(ReadRequest::whole(), 0..len)];
        requests.extend([0, len / 3, len].map(|at| (ReadRequest::starting_at(at), at..len)));
        if fetcher.capability().ranges {
            let ranges = [0..len, len / 3..len / 2, len..len];
            requests.extend(ranges.map(|range| (ReadRequest::range(range.clone()), range)));
        }
        for (request, range) in requests {
            let body = expect(open(key, &request), "an object can be opened");
            assert!(body.size.is_none_or(|size| size == len), "{request:?} of {key}: {body:?}");
            let read = expect(block_on(body.bytes()), "a body can be read");
            let exact = bytes.slice(range.start as usize..range.end as usize);
            assert!(read == exact, "{request:?} of {key}: {} bytes", read.len());
        }
        let error =
            expect_error(open(key, &ReadRequest::starting_at(len + 1)), "opening beyond the end");
        assert_eq!(error.kind(), ErrorKind::Truncated, "{}", error.report());
        assert_eq!(error.key(), Some(&*key.display_name()), "an error names its key");
    }
    let largest = objects.iter().max_by_key(|(_, bytes)| bytes.len());
    if let Some((key, bytes)) = largest {
        let Body { mut pieces, .. } = expect(open(key, &ReadRequest::whole()), "a body opens");
        let first = block_on(pieces.next()).transpose();
        let first = expect(first, "a body has a first chunk").unwrap_or_default();
        assert!(
            !fetcher.capability().streams || first.len() < bytes.len(),
            "{key} arrives in one chunk, although `streams` is true"
        );
        // The body is dropped before its end, which must not fail.
    }
}

fn other_versions_are_rejected(fetcher: &dyn Fetcher, objects: &[(Key, Bytes)]) {
    for (key, bytes) in objects {
        let open =
            |version: &str| block_on(fetcher.open(key, &ReadRequest::whole().of_version(version)));
        let (middle, end) = (bytes.len() as u64 / 2, bytes.len() as u64);
        let halves = [0..middle, middle..end];
        let read = |version: Option<&str>| {
            block_on(fetcher.read_version(key, &halves, version.map(Arc::from).as_ref(), None))
        };
        if !fetcher.capability().versions {
            let error = expect_error(open("1"), "requesting a version without the capability");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
            let error =
                expect_error(read(Some("1")), "requesting a version without the capability");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
            continue;
        }
        let version = expect(block_on(fetcher.stat(key)), "`stat` succeeds").version;
        let version = version.unwrap_or_default();
        let body = expect(open(&version), "the current version can be opened");
        assert_eq!(body.version.as_ref(), Some(&version), "a body reports its version");
        assert!(expect(block_on(body.bytes()), "a body can be read") == bytes);
        let body = expect(block_on(fetcher.open(key, &ReadRequest::whole())), "a body opens");
        assert_eq!(
            body.version,
            Some(Arc::clone(&version)),
            "a body reports its version also if none is requested"
        );
        let other = "\"no such version\"";
        let mut errors = vec![expect_error(open(other), "opening another version")];
        if fetcher.capability().ranges && !bytes.is_empty() {
            for wanted in [None, Some(&*version)] {
                let (parts, found) = expect(read(wanted), "ranges of the version can be read");
                assert!(*bytes == parts.concat(), "ranges of a version are the requested bytes");
                assert_eq!(found.as_ref(), Some(&version), "ranges are read with their version");
            }
            errors.push(expect_error(read(Some(other)), "reading ranges of another version"));
        }
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.report());
            assert_eq!(error.key(), Some(&*key.display_name()), "an error names its key");
        }
    }
}

fn listings_are_complete_or_unsupported(
    fetcher: &dyn Fetcher,
    folder: &Key,
    objects: &[(Key, Bytes)],
) {
    let list = |prefix: &Key| -> Result<Vec<ObjectMeta>> {
        let objects: Vec<ObjectMeta> =
            block_on(async { fetcher.list(prefix).await?.try_collect().await })?;
        for object in objects.iter().filter(|object| object.version.is_some()) {
            let meta =
                expect(block_on(fetcher.stat(&object.key)), "`stat` of a listed object succeeds");
            assert_eq!(object.version, meta.version, "listings report the version of `stat`");
        }
        // Listings may omit versions.
        Ok(objects.into_iter().map(|object| ObjectMeta::new(object.key, object.size)).collect())
    };
    if !fetcher.capability().list {
        let error = expect_error(list(folder), "listing without the capability");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
        return;
    }
    let expected: Vec<ObjectMeta> = objects
        .iter()
        .map(|(key, bytes)| ObjectMeta::new(key.clone(), bytes.len() as u64))
        .collect();
    assert_eq!(expect(list(folder), "a folder can be listed"), expected, "a whole folder");
    let below: Vec<_> =
        expected.iter().filter(|object| object.key == join(folder, "a/b")).cloned().collect();
    let found = expect(list(&join(folder, "a")), "a nested folder can be listed");
    assert_eq!(found, below, "a nested folder is listed without siblings that share its prefix");
    match list(&join(folder, "missing")) {
        Ok(found) => assert_eq!(found, [], "a missing folder is listed as empty"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.report()),
    }
    // A listing may be dropped after its first entry.
    let first = block_on(async { fetcher.list(folder).await?.next().await.transpose() });
    let first = expect(first, "a folder can be listed").map(|object| object.key);
    assert_eq!(first.as_ref(), expected.first().map(|object| &object.key));
}

#[track_caller]
fn expect<T>(result: Result<T>, rule: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{rule}, but: {}", error.report()),
    }
}

#[track_caller]
fn expect_error<T>(result: Result<T>, what: &str) -> Error {
    match result {
        Ok(_) => panic!("{what} succeeded"),
        Err(error) => error,
    }
}
