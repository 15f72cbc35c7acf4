//! Test support: a test of the [`Fetcher`](crate::Fetcher) contract, and a web server with
//! injected faults.
//!
//! Store [`contract_objects`] in a folder of the storage, then call [`fetcher_contract`]:
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! for (name, bytes) in spdl_io::testing::contract_objects() {
//!     let path = folder.path().join(name);
//!     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
//!     std::fs::write(path, bytes).unwrap();
//! }
//! # #[cfg(feature = "local")]
//! spdl_io::testing::fetcher_contract(&spdl_io::LocalFetcher::new(), &folder.path().into());
//! ```

mod contract;
mod fault_server;

pub use self::contract::{contract_objects, fetcher_contract};
pub use self::fault_server::{Fault, FaultPlan, FaultServer, FaultyRequest, SeenRequest, Served};
