//! The contract of a fetcher against fetchers that keep it and break it.
#![cfg(feature = "testing")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::testing::{contract_objects, fetcher_contract};
use spdl_io::{Body, Capability, Fetcher, Key, MemoryFetcher, ObjectMeta, ReadRequest};

/// Keeps the contract with no capability at all, unless told how to break it.
#[derive(Debug, Default)]
struct InMemory {
    objects: BTreeMap<Key, Bytes>,
    flaw: Option<Flaw>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
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
        match self.flaw {
            Some(Flaw::ClaimsRanges) => Capability::default().with_ranges(),
            Some(Flaw::ClaimsToList) => Capability::default().with_list(),
            _ => Capability::default(),
        }
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let name = key.display_name();
        if range.is_some() && self.flaw != Some(Flaw::IgnoresTheRange) {
            return Err(Error::new(ErrorKind::Unsupported, "no ranges").with_key(name));
        }
        let bytes = self.objects.get(key).cloned().ok_or_else(|| match self.flaw {
            Some(Flaw::WrongKind) => Error::new(ErrorKind::Io, "no such object").with_key(name),
            Some(Flaw::NoKeyInTheError) => Error::new(ErrorKind::NotFound, "no such object"),
            _ => Error::new(ErrorKind::NotFound, "no such object").with_key(name),
        })?;
        if self.flaw == Some(Flaw::LosesTheLastByte) {
            return Ok(bytes.slice(..bytes.len().saturating_sub(1)));
        }
        Ok(bytes)
    }

    async fn read_at_most(&self, key: &Key, max_bytes: u64) -> Result<Bytes> {
        let bytes = self.read(key, None).await?;
        if bytes.len() as u64 > max_bytes && self.flaw != Some(Flaw::IgnoresTheLimit) {
            let error = Error::new(ErrorKind::LimitExceeded, "too large");
            return Err(error.with_key(key.display_name()));
        }
        Ok(bytes)
    }
}

fn in_memory(flaw: Option<Flaw>) -> InMemory {
    let objects = contract_objects();
    let objects =
        objects.into_iter().map(|(name, bytes)| (format!("bucket/{name}").into(), bytes)).collect();
    InMemory { objects, flaw }
}

#[test]
fn a_fetcher_without_ranges_and_listings_can_keep_the_contract() {
    fetcher_contract(&in_memory(None), &"bucket".into());
}

#[test]
fn the_contract_notices_every_flaw() {
    for flaw in [
        Flaw::LosesTheLastByte,
        Flaw::WrongKind,
        Flaw::NoKeyInTheError,
        Flaw::IgnoresTheRange,
        Flaw::IgnoresTheLimit,
        Flaw::ClaimsRanges,
        Flaw::ClaimsToList,
    ] {
        let fetcher = in_memory(Some(flaw));
        let check = AssertUnwindSafe(|| fetcher_contract(&fetcher, &"bucket".into()));
        assert!(catch_unwind(check).is_err(), "{flaw:?} went unnoticed");
    }
}

#[test]
fn objects_in_memory_keep_the_contract() {
    let objects = contract_objects().into_iter();
    let fetcher: MemoryFetcher =
        objects.map(|(name, bytes)| (format!("bucket/{name}"), bytes)).collect();
    fetcher_contract(&fetcher, &"bucket".into());
    let fetcher: MemoryFetcher = contract_objects().into_iter().collect();
    fetcher_contract(&fetcher, &"".into());
}

/// Objects in memory behind something that does one thing wrong.
#[derive(Debug)]
struct Flawed(MemoryFetcher, DeepFlaw);

#[derive(Clone, Copy, Debug, PartialEq)]
enum DeepFlaw {
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
impl Fetcher for Flawed {
    fn capability(&self) -> Capability {
        let capability = self.0.capability();
        if self.1 == DeepFlaw::ClaimsStreams { capability.with_streams() } else { capability }
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        self.0.read(key, range).await
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let mut parts = self.0.read_ranges(key, ranges).await?;
        if self.1 == DeepFlaw::RangesOutOfOrder {
            parts.reverse();
        }
        Ok(parts)
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let told = self.0.stat(key).await;
        match self.1 {
            DeepFlaw::MissingHasASize if told.is_err() => Ok(ObjectMeta::new(key.clone(), 0)),
            DeepFlaw::WrongSize => {
                let told = told?;
                let size = told.size + 1;
                Ok(ObjectMeta::new(told.key, size).with_version(told.version.unwrap_or_default()))
            }
            DeepFlaw::NoVersion => Ok(ObjectMeta::new(key.clone(), told?.size)),
            _ => told,
        }
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let mut request = request.clone();
        match self.1 {
            DeepFlaw::AnyVersionWillDo => request.version = None,
            DeepFlaw::StartIgnored => request.start = 0,
            DeepFlaw::OpensPastTheEnd => {
                request.start = request.start.min(self.0.stat(key).await?.size);
            }
            _ => {}
        }
        let mut body = self.0.open(key, &request).await?;
        match self.1 {
            DeepFlaw::NoVersionOfABody => body.version = None,
            DeepFlaw::WrongSizeOfABody => body.size = body.size.map(|size| size + 1),
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
        if self.1 != DeepFlaw::OtherVersionsInListings {
            return Ok(listing);
        }
        Ok(listing.map(|object| object.map(|object| object.with_version("other"))).boxed())
    }
}

#[test]
fn the_contract_notices_flaws_of_sizes_versions_and_bodies() {
    let check = |flaw| {
        let fetcher = Flawed(contract_objects().into_iter().collect(), flaw);
        catch_unwind(AssertUnwindSafe(|| fetcher_contract(&fetcher, &"".into())))
    };
    assert!(check(DeepFlaw::None).is_ok());
    for flaw in [
        DeepFlaw::RangesOutOfOrder,
        DeepFlaw::WrongSize,
        DeepFlaw::WrongSizeOfABody,
        DeepFlaw::MissingHasASize,
        DeepFlaw::NoVersion,
        DeepFlaw::NoVersionOfABody,
        DeepFlaw::AnyVersionWillDo,
        DeepFlaw::OtherVersionsInListings,
        DeepFlaw::ClaimsStreams,
        DeepFlaw::OpensPastTheEnd,
        DeepFlaw::StartIgnored,
    ] {
        assert!(check(flaw).is_err(), "{flaw:?} went unnoticed");
    }
}
