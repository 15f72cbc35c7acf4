//! Tests of `fetcher_contract` itself, with correct and defective fetchers.
#![cfg(feature = "testing")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::testing::{contract_objects, fetcher_contract};
use spdl_io::{Body, Capability, Fetcher, Key, MemoryFetcher, ObjectMeta, ReadMemory, ReadRequest};

/// Satisfies the contract without optional capabilities, unless it has a defect.
#[derive(Debug, Default)]
struct InMemory {
    objects: BTreeMap<Key, Bytes>,
    defect: Option<Defect>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Defect {
    LosesTheLastByte,
    WrongKind,
    NoKeyInTheError,
    IgnoresTheRange,
    IgnoresTheLimit,
    ClaimsRanges,
    ClaimsToList,
}

#[async_trait]
impl Fetcher for InMemory {
    fn capability(&self) -> Capability {
        match self.defect {
            Some(Defect::ClaimsRanges) => Capability::default().with_ranges(),
            Some(Defect::ClaimsToList) => Capability::default().with_list(),
            _ => Capability::default(),
        }
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let name = key.display_name();
        if range.is_some() && self.defect != Some(Defect::IgnoresTheRange) {
            return Err(Error::new(ErrorKind::Unsupported, "no ranges").with_key(name));
        }
        let bytes = self.objects.get(key).cloned().ok_or_else(|| match self.defect {
            Some(Defect::WrongKind) => Error::new(ErrorKind::Io, "object not found").with_key(name),
            Some(Defect::NoKeyInTheError) => Error::new(ErrorKind::NotFound, "object not found"),
            _ => Error::new(ErrorKind::NotFound, "object not found").with_key(name),
        })?;
        if self.defect == Some(Defect::LosesTheLastByte) {
            return Ok(bytes.slice(..bytes.len().saturating_sub(1)));
        }
        Ok(bytes)
    }

    async fn read_whole(&self, key: &Key, memory: &dyn ReadMemory) -> Result<Bytes> {
        let bytes = self.read(key, None).await?;
        if bytes.len() as u64 > memory.max_bytes() && self.defect != Some(Defect::IgnoresTheLimit) {
            let error = Error::new(ErrorKind::LimitExceeded, "too large");
            return Err(error.with_key(key.display_name()));
        }
        Ok(bytes)
    }
}

fn in_memory(defect: Option<Defect>) -> InMemory {
    let objects = contract_objects();
    let objects =
        objects.into_iter().map(|(name, bytes)| (format!("bucket/{name}").into(), bytes)).collect();
    InMemory { objects, defect }
}

#[test]
fn fetchers_without_capabilities_satisfy_the_contract() {
    fetcher_contract(&in_memory(None), &"bucket".into());
}

#[test]
fn the_contract_detects_each_defect() {
    for defect in [
        Defect::LosesTheLastByte,
        Defect::WrongKind,
        Defect::NoKeyInTheError,
        Defect::IgnoresTheRange,
        Defect::IgnoresTheLimit,
        Defect::ClaimsRanges,
        Defect::ClaimsToList,
    ] {
        let fetcher = in_memory(Some(defect));
        let check = AssertUnwindSafe(|| fetcher_contract(&fetcher, &"bucket".into()));
        assert!(catch_unwind(check).is_err(), "{defect:?} was not detected");
    }
}

#[test]
fn objects_in_memory_satisfy_the_contract() {
    let objects = contract_objects().into_iter();
    let fetcher: MemoryFetcher =
        objects.map(|(name, bytes)| (format!("bucket/{name}"), bytes)).collect();
    fetcher_contract(&fetcher, &"bucket".into());
    let fetcher: MemoryFetcher = contract_objects().into_iter().collect();
    fetcher_contract(&fetcher, &"".into());
}

/// Wraps objects in memory with one defect.
#[derive(Debug)]
struct DefectiveFetcher(MemoryFetcher, MetadataDefect);

#[derive(Clone, Copy, Debug, PartialEq)]
enum MetadataDefect {
    None,
    RangesOutOfOrder,
    WrongSize,
    WrongSizeOfABody,
    MissingHasASize,
    NoVersion,
    NoVersionOfABody,
    AnyVersionWillDo,
    OtherVersionsInListings,
    ClaimsStreams,
    OpensPastTheEnd,
    StartIgnored,
}

#[async_trait]
impl Fetcher for DefectiveFetcher {
    fn capability(&self) -> Capability {
        let capability = self.0.capability();
        if self.1 == MetadataDefect::ClaimsStreams { capability.with_streams() } else { capability }
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        self.0.read(key, range).await
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let mut parts = self.0.read_ranges(key, ranges).await?;
        if self.1 == MetadataDefect::RangesOutOfOrder {
            parts.reverse();
        }
        Ok(parts)
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let meta = self.0.stat(key).await;
        match self.1 {
            MetadataDefect::MissingHasASize if meta.is_err() => Ok(ObjectMeta::new(key.clone(), 0)),
            MetadataDefect::WrongSize => {
                let meta = meta?;
                let size = meta.size + 1;
                Ok(ObjectMeta::new(meta.key, size).with_version(meta.version.unwrap_or_default()))
            }
            MetadataDefect::NoVersion => Ok(ObjectMeta::new(key.clone(), meta?.size)),
            _ => meta,
        }
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let mut request = request.clone();
        match self.1 {
            MetadataDefect::AnyVersionWillDo => request.version = None,
            MetadataDefect::StartIgnored => request.start = 0,
            MetadataDefect::OpensPastTheEnd => {
                request.start = request.start.min(self.0.stat(key).await?.size);
            }
            _ => {}
        }
        let mut body = self.0.open(key, &request).await?;
        match self.1 {
            MetadataDefect::NoVersionOfABody => body.version = None,
            MetadataDefect::WrongSizeOfABody => body.size = body.size.map(|size| size + 1),
            _ => {}
        }
        Ok(body)
    }

    async fn list(
        &self,
        prefix: &Key,
    ) -> Result<futures_core::stream::BoxStream<'static, Result<ObjectMeta>>> {
        use futures_util::StreamExt;
        let listing = self.0.list(prefix).await?;
        if self.1 != MetadataDefect::OtherVersionsInListings {
            return Ok(listing);
        }
        Ok(listing.map(|object| object.map(|object| object.with_version("other"))).boxed())
    }
}

#[test]
fn the_contract_detects_defects_of_sizes_versions_and_bodies() {
    let check = |defect| {
        let fetcher = DefectiveFetcher(contract_objects().into_iter().collect(), defect);
        catch_unwind(AssertUnwindSafe(|| fetcher_contract(&fetcher, &"".into())))
    };
    assert!(check(MetadataDefect::None).is_ok());
    for defect in [
        MetadataDefect::RangesOutOfOrder,
        MetadataDefect::WrongSize,
        MetadataDefect::WrongSizeOfABody,
        MetadataDefect::MissingHasASize,
        MetadataDefect::NoVersion,
        MetadataDefect::NoVersionOfABody,
        MetadataDefect::AnyVersionWillDo,
        MetadataDefect::OtherVersionsInListings,
        MetadataDefect::ClaimsStreams,
        MetadataDefect::OpensPastTheEnd,
        MetadataDefect::StartIgnored,
    ] {
        assert!(check(defect).is_err(), "{defect:?} was not detected");
    }
}
