//! The contract of a fetcher against fetchers that keep it and break it.
#![cfg(feature = "testing")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::testing::{contract_objects, fetcher_contract};
use spdl_io::{Capability, Fetcher, Key};

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
