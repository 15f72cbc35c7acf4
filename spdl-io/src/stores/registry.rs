//! [`StoreRegistry`]: opens the fetcher for an address.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

#[cfg(not(feature = "http"))]
use spdl_core::runtime::ThreadRuntime;
use spdl_core::{Error, ErrorKind, Result, Runtime};

use super::{Address, SourceOptions, address};
use crate::fetch::{Fetcher, Key};
use crate::layers::Resilient;

/// Built-in schemes, the cargo feature of each, and whether it is enabled.
const SCHEMES: [(&str, &str, bool); 7] = [
    ("file", "local", cfg!(feature = "local")),
    ("http", "http", cfg!(feature = "http")),
    ("https", "http", cfg!(feature = "http")),
    ("hf", "http", cfg!(feature = "http")),
    ("s3", "s3", cfg!(feature = "s3")),
    ("gs", "gcs", cfg!(feature = "gcs")),
    ("az", "azure", cfg!(feature = "azure")),
];

/// Fetchers by address of the store and index of the matching options.
type OpenedStores = HashMap<(String, Option<usize>), Arc<dyn Fetcher>>;

/// Callback with the address of a store, without secrets, and the error.
type UnreachableListener = dyn Fn(&str, &Error) + Send + Sync;

/// Number of cached stores at which unused ones are dropped, and again at each doubling. A file
/// list may name thousands.
const MAX_UNUSED_STORES: usize = 1024;

/// Opens the stores of a custom scheme for a [`StoreRegistry`].
pub trait StoreFactory: fmt::Debug + Send + Sync + 'static {
    /// Opens the store of `address`. The fetcher reads an address by its [`key`](Address::key).
    ///
    /// The registry shares the fetcher between all addresses with the same scheme, authority and
    /// options, except addresses that hold user information or a query.
    ///
    /// # Errors
    /// Any kind. Messages must not contain secrets.
    fn open(&self, address: &Address, options: &SourceOptions) -> Result<Arc<dyn Fetcher>>;
}

/// Opens addresses: maps each scheme to a store, with options for each address prefix.
///
/// Opened stores are cached and shared, with their connections and measured latencies, unless their
/// address holds user information or a query. Most programs therefore use a single registry. Clones
/// share the cache until a builder method changes one of them. When 1,024 stores are cached (then
/// 2,048, 4,096, …), opening another one drops those that are not in use.
///
/// | address | store | feature |
/// |---|---|---|
/// | a path, `file:///path` | files of this machine | `local` |
/// | `http://host/path`, `https://host/path` | a web server | `http` |
/// | `hf://datasets/user/name/path` | a data set of the Hugging Face Hub | `http` |
/// | `s3://bucket/key` | Amazon S3 and compatible stores | `s3` |
/// | `gs://bucket/key` | Google Cloud Storage | `gcs` |
/// | `az://container/key` | Azure Blob Storage | `azure` |
///
/// All stores except local files are wrapped in a [`Resilient`] layer, unless their
/// [`SourceOptions`] disable the layer.
///
/// ```
/// use spdl_io::{Fetcher, StoreRegistry};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("greeting.txt");
/// # std::fs::write(&path, "hello").unwrap();
/// # let path = path.to_str().unwrap();
/// let stores = StoreRegistry::new();
/// # #[cfg(feature = "local")] {
/// let location = stores.open(path)?;
/// let read = location.fetcher.read(&location.key, None);
/// assert_eq!(spdl_core::block_on(read)?, "hello");
/// # }
/// # Ok::<(), spdl_io::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct StoreRegistry {
    factories: BTreeMap<String, Arc<dyn StoreFactory>>,
    /// Options, each with the address prefix to which they apply.
    options: Vec<(String, SourceOptions)>,
    opened: Arc<Mutex<OpenedStores>>,
    /// Runtime for the timers of all resilience layers.
    runtime: Arc<OnceLock<Arc<dyn Runtime>>>,
    /// Called if a store is unreachable.
    on_unreachable: Option<Arc<UnreachableListener>>,
    #[cfg(feature = "http")]
    reactor: crate::stores::network::Reactor,
    /// HTTP clients, shared by web servers with the same options.
    #[cfg(feature = "http")]
    clients: crate::stores::network::Clients,
}

/// A fetcher and a key: the result of opening an address.
#[non_exhaustive]
#[derive(Clone)]
pub struct Location {
    /// The store that holds the object.
    pub fetcher: Arc<dyn Fetcher>,
    /// The key of the object or folder in the store.
    pub key: Key,
    /// The address without secrets.
    pub address: Arc<str>,
}

impl StoreRegistry {
    /// Creates a registry with all built-in stores and default options.
    pub fn new() -> Self {
        StoreRegistry::default()
    }

    /// Opens addresses of `scheme` (lower case, without a colon) with `factory`. A factory for a
    /// built-in scheme replaces the built-in store.
    #[must_use]
    pub fn register(mut self, scheme: &str, factory: Arc<dyn StoreFactory>) -> Self {
        self.factories.insert(scheme.to_owned(), factory);
        self.settings_changed()
    }

    /// Sets the options for all addresses that begin with `address`, such as `s3:`,
    /// `s3://bucket`, `s3://bucket/folder`, or an empty string for all addresses.
    ///
    /// A prefix matches only up to a `:`, `/` or `?`, or the whole address: `s3://buck` does not
    /// match `s3://bucket`. If several prefixes match, only the options of the longest one apply.
    #[must_use]
    pub fn with_options(mut self, address: &str, options: SourceOptions) -> Self {
        self.options.push((address::normalized_prefix(address), options));
        self.settings_changed()
    }

    /// Sets a callback for stores that are unreachable and have never responded.
    ///
    /// A store is unreachable if its host name is unknown, no connection can be established, or it
    /// does not respond in time. The registry calls `listener` once per store, with its address and
    /// the error, before the next retry (see [`Resilient`]). The thread that polls the read calls
    /// `listener`, which must not block. In a pipeline with the [`runtime`](StoreRegistry::runtime)
    /// of the registry, this is the network thread.
    #[must_use]
    pub fn on_unreachable(
        mut self,
        listener: impl Fn(&str, &Error) + Send + Sync + 'static,
    ) -> Self {
        self.on_unreachable = Some(Arc::new(listener));
        self.settings_changed()
    }

    /// Clears the caches after a change of the settings.
    fn settings_changed(mut self) -> Self {
        self.opened = Arc::default();
        #[cfg(feature = "http")]
        {
            self.clients = crate::stores::network::Clients::default();
        }
        self
    }

    /// Returns the supported schemes, sorted.
    pub fn schemes(&self) -> Vec<&str> {
        let built_in = SCHEMES.iter().filter(|(_, _, is_enabled)| *is_enabled).map(|it| it.0);
        let mut schemes: Vec<&str> =
            built_in.chain(self.factories.keys().map(String::as_str)).collect();
        schemes.sort_unstable();
        schemes.dedup();
        schemes
    }

    /// Opens the store of an address. No network request is sent.
    ///
    /// # Errors
    /// `InvalidArgument` if the address is invalid, its scheme is unknown, or the store rejects its
    /// options. `Unsupported` if the store's cargo feature is disabled; the message names the
    /// feature. `Io` if the system cannot start a thread or set up TLS. `Unavailable` if too many
    /// files are open to start the network thread.
    pub fn open(&self, address: &str) -> Result<Location> {
        self.open_parsed(&Address::parse(address)?)
    }

    pub(crate) fn open_parsed(&self, parsed: &Address) -> Result<Location> {
        let display = parsed.to_string();
        let matching = self.matching(&display);
        let is_shared = parsed.user().is_none() && parsed.query().is_none();
        let cache_key = (parsed.store(), matching);
        if is_shared && let Some(fetcher) = self.opened().get(&cache_key) {
            let (fetcher, key) = (Arc::clone(fetcher), parsed.key().clone());
            return Ok(Location { fetcher, key, address: display.into() });
        }
        let fetcher = self.fetcher(parsed, matching)?;
        let fetcher = if is_shared {
            let mut opened = self.opened();
            if opened.len() >= MAX_UNUSED_STORES && opened.len().is_power_of_two() {
                opened.retain(|_, fetcher| Arc::strong_count(fetcher) > 1);
            }
            // If another thread has opened the same store meanwhile, its fetcher is used.
            Arc::clone(opened.entry(cache_key).or_insert(fetcher))
        } else {
            fetcher
        };
        Ok(Location { fetcher, key: parsed.key().clone(), address: display.into() })
    }

    fn opened(&self) -> MutexGuard<'_, OpenedStores> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index of the options with the longest matching prefix.
    fn matching(&self, address: &str) -> Option<usize> {
        let fits = |start: &str| {
            address.strip_prefix(start).is_some_and(|rest| {
                start.is_empty()
                    || start.ends_with(':')
                    || rest.is_empty()
                    || rest.starts_with(['/', '?'])
            })
        };
        let indices = (0..self.options.len()).filter(|&index| fits(&self.options[index].0));
        indices.max_by_key(|&index| self.options[index].0.len())
    }

    /// Checks that the scheme is supported.
    ///
    /// # Errors
    /// As [`open`](StoreRegistry::open), if the scheme is unknown or its feature is disabled.
    pub(crate) fn check_scheme(&self, scheme: &str) -> Result<()> {
        let is_own = SCHEMES.iter().any(|(known, _, is_enabled)| *known == scheme && *is_enabled);
        match is_own || self.factories.contains_key(scheme) {
            true => Ok(()),
            false => Err(self.unknown(scheme)),
        }
    }

    /// Returns whether stores of the scheme accept whole URLs, each with its own query, as keys.
    pub(crate) fn reads_addresses(&self, scheme: &str) -> bool {
        ["http", "https"].contains(&scheme) && !self.factories.contains_key(scheme)
    }

    /// Opens a store with the options at index `matching`, or the default options if `None`.
    fn fetcher(&self, address: &Address, matching: Option<usize>) -> Result<Arc<dyn Fetcher>> {
        let default = SourceOptions::default();
        let options = matching.map_or(&default, |index| &self.options[index].1);
        let store = match self.factories.get(address.scheme()) {
            Some(factory) => factory.open(address, options)?,
            None => self.open_built_in(address, options, matching)?,
        };
        let is_file = address.scheme() == "file" && !self.factories.contains_key("file");
        match &options.resilience {
            Some(resilience) if !is_file => {
                let layer = Resilient::on(self.runtime()?, store, resilience.clone())?;
                let Some(listener) = self.on_unreachable.clone() else {
                    return Ok(Arc::new(layer));
                };
                let address = address.store();
                Ok(Arc::new(layer.on_unreachable(move |error| listener(&address, error))))
            }
            _ => Ok(store),
        }
    }

    /// Returns the runtime for a pipeline that reads from these stores over a network.
    ///
    /// With the feature `http`, its tasks run on the network thread, which avoids waking a second
    /// thread for each sample. Without it, they run on a separate thread. Tasks that block delay
    /// all network reads. Use the default runtime of the pipeline for such tasks.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// use spdl_io::StoreRegistry;
    /// let stores = StoreRegistry::new();
    /// let numbers = PipelineBuilder::from_iter([1, 2, 3]).runtime(stores.runtime()?);
    /// # assert_eq!(numbers.build()?.count(), 3);
    /// # Ok::<(), spdl_io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Io` if the system cannot start a thread. `Unavailable` if too many files are open.
    pub fn runtime(&self) -> Result<Arc<dyn Runtime>> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(Arc::clone(runtime));
        }
        #[cfg(feature = "http")]
        let new: Arc<dyn Runtime> = Arc::new(self.reactor.runtime()?);
        #[cfg(not(feature = "http"))]
        let new: Arc<dyn Runtime> = Arc::new(ThreadRuntime::new()?);
        Ok(Arc::clone(self.runtime.get_or_init(|| new)))
    }

    /// Opens a built-in store.
    #[cfg_attr(
        not(feature = "http"),
        expect(unused_variables, reason = "only network stores have options")
    )]
    fn open_built_in(
        &self,
        address: &Address,
        options: &SourceOptions,
        matching: Option<usize>,
    ) -> Result<Arc<dyn Fetcher>> {
        match address.scheme() {
            #[cfg(feature = "local")]
            "file" => Ok(Arc::new(crate::stores::LocalFetcher::new())),
            #[cfg(feature = "http")]
            "http" | "https" => {
                // The fetcher serves all keys of the server.
                let server = address.without_key();
                let client = self.clients.get(address.authority(), options, matching)?;
                let reactor = self.reactor.clone();
                Ok(Arc::new(crate::stores::HttpFetcher::open(&server, options, reactor, client)?))
            }
            #[cfg(feature = "http")]
            "hf" => {
                let environment = |name: &str| std::env::var(name).ok();
                let hub = super::hugging_face::HubDataset::new(address, options, environment)?;
                let client = self.clients.get(hub.files.authority(), options, matching)?;
                let reactor = self.reactor.clone();
                Ok(Arc::new(crate::stores::HttpFetcher::open_hub(hub, options, reactor, client)?))
            }
            #[cfg(feature = "s3")]
            "s3" => self.object_store(address, options),
            #[cfg(feature = "gcs")]
            "gs" => self.object_store(address, options),
            #[cfg(feature = "azure")]
            "az" => self.object_store(address, options),
            scheme => Err(self.unknown(scheme)),
        }
    }

    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    fn object_store(&self, address: &Address, options: &SourceOptions) -> Result<Arc<dyn Fetcher>> {
        Ok(Arc::new(crate::stores::object_store::open(address, options, self.reactor.clone())?))
    }

    fn unknown(&self, scheme: &str) -> Error {
        if let Some((_, feature, _)) = SCHEMES.iter().find(|(known, ..)| *known == scheme) {
            let message = format!(
                "scheme {scheme:?} is not supported by this build: cargo feature {feature:?} is \
                 disabled"
            );
            return Error::new(ErrorKind::Unsupported, message);
        }
        let known: Vec<_> = self.schemes().iter().map(|scheme| format!("{scheme:?}")).collect();
        let message =
            format!("unknown address scheme {scheme:?}; supported schemes: {}", known.join(", "));
        Error::new(ErrorKind::InvalidArgument, message)
    }
}

impl fmt::Debug for StoreRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreRegistry")
            .field("schemes", &self.schemes())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({})", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::MemoryFetcher;
    use spdl_core::block_on;

    #[derive(Debug)]
    struct Acme;

    impl StoreFactory for Acme {
        fn open(&self, address: &Address, _: &SourceOptions) -> Result<Arc<dyn Fetcher>> {
            let name = address.authority().to_owned();
            Ok(Arc::new(MemoryFetcher::from_iter([("a/b", name)])))
        }
    }

    #[test]
    fn custom_stores_are_wrapped_in_the_resilience_layer() {
        let stores = StoreRegistry::new().register("acme", Arc::new(Acme));
        let location = stores.open("acme://vault/a/b").unwrap();
        assert_eq!(block_on(location.fetcher.read(&location.key, None)).unwrap(), "vault");
        assert_eq!(format!("{:?}", location.fetcher), "Resilient(MemoryFetcher(1 objects))");
        assert_eq!(location.to_string(), "acme://vault/a/b");
        let plain = SourceOptions::default().without_resilience();
        let stores = stores.with_options("acme:", plain);
        let location = stores.open("acme://vault/a/b").unwrap();
        assert_eq!(format!("{:?}", location.fetcher), "MemoryFetcher(1 objects)");
    }

    #[test]
    fn stores_are_shared_unless_the_address_holds_secrets() {
        let stores = StoreRegistry::new().register("acme", Arc::new(Acme));
        let open = |address: &str| stores.open(address).unwrap().fetcher;
        assert!(Arc::ptr_eq(&open("acme://x/a"), &open("acme://x/b")));
        assert!(!Arc::ptr_eq(&open("acme://x/a"), &open("acme://y/a")));
        assert!(!Arc::ptr_eq(&open("acme://x/a?q"), &open("acme://x/a?q")));
        assert!(!Arc::ptr_eq(&open("acme://u:p@x/a"), &open("acme://x/a")));
        assert_eq!(stores.opened().len(), 2);
    }

    #[test]
    fn default_ports_do_not_open_another_store() {
        let stores = StoreRegistry::new()
            .register("https", Arc::new(Acme))
            .with_options("https://X:443/a", SourceOptions::default());
        let open = |address: &str| stores.open(address).unwrap().fetcher;
        assert!(Arc::ptr_eq(&open("https://x:443/b"), &open("https://X/c")));
        assert!(Arc::ptr_eq(&open("https://x:443/a/1"), &open("https://x/a/2")));
        assert!(!Arc::ptr_eq(&open("https://x/a/1"), &open("https://x/b")));
        assert!(!Arc::ptr_eq(&open("https://x:444/b"), &open("https://x/b")));
    }

    #[test]
    fn clones_share_stores_until_settings_change() {
        let stores = StoreRegistry::new().register("acme", Arc::new(Acme));
        let first = stores.open("acme://x/a").unwrap().fetcher;
        let of = |stores: &StoreRegistry| stores.open("acme://x/a").unwrap().fetcher;
        assert!(Arc::ptr_eq(&of(&stores.clone()), &first));
        let other = || stores.clone().with_options("acme:", SourceOptions::default());
        let (one, two) = (of(&other()), of(&other()));
        assert!(!Arc::ptr_eq(&one, &first) && !Arc::ptr_eq(&one, &two));
        assert!(Arc::ptr_eq(&of(&stores), &first));
    }

    #[test]
    fn the_cache_of_unused_stores_is_bounded() {
        let plain = SourceOptions::default().without_resilience();
        let stores =
            StoreRegistry::new().register("acme", Arc::new(Acme)).with_options("acme:", plain);
        let held = stores.open("acme://held/a").unwrap();
        for number in 0..10 * MAX_UNUSED_STORES {
            stores.open(&format!("acme://host-{number}/a")).unwrap();
        }
        let kept = stores.opened().len();
        assert!(kept <= MAX_UNUSED_STORES, "{kept} are kept");
        let again = stores.open("acme://held/b").unwrap();
        assert!(Arc::ptr_eq(&again.fetcher, &held.fetcher));
    }

    #[test]
    fn options_of_the_longest_prefix_apply() {
        let options = SourceOptions::default;
        let stores = StoreRegistry::new()
            .with_options("", options())
            .with_options("s3:", options())
            .with_options("s3://bucket/", options())
            .with_options("s3://bucket/deep", options());
        let matching = |address| stores.matching(address);
        assert_eq!(matching("http://x/a"), Some(0));
        assert_eq!(matching("s3://other/a"), Some(1));
        assert_eq!(matching("s3://bucket2/a"), Some(1));
        assert_eq!(matching("s3://bucket/a"), Some(2));
        assert_eq!(matching("s3://bucket/deeper"), Some(2));
        assert_eq!(matching("s3://bucket/deep/x"), Some(3));
        assert_eq!(StoreRegistry::new().matching("s3://x"), None);
    }

    #[test]
    fn errors_list_supported_schemes_or_the_disabled_feature() {
        let stores = StoreRegistry::new().register("acme", Arc::new(Acme));
        let error = stores.open("ftp://host/x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("\"ftp\"; supported schemes: \"acme\""), "{error}");
        for (scheme, feature, is_enabled) in SCHEMES {
            let error = stores.unknown(scheme);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains(&format!("feature {feature:?}")), "{error}");
            if !is_enabled {
                let error = stores.open(&format!("{scheme}:///x/y").replace(":///", "://h/"));
                assert!(error.is_err(), "{scheme}");
            }
        }
    }

    #[cfg(feature = "local")]
    #[test]
    fn local_files_have_no_resilience_layer() {
        let location = StoreRegistry::new().open("some/file").unwrap();
        assert!(format!("{:?}", location.fetcher).starts_with("LocalFetcher"));
        assert_eq!(location.key, Key::from("some/file"));
    }

    #[test]
    fn debug_output_holds_no_secrets() {
        let options = SourceOptions::default()
            .credential("secret_access_key", "canary")
            .header("Authorization", "canary");
        let stores =
            StoreRegistry::new().register("acme", Arc::new(Acme)).with_options("acme://x", options);
        let location = stores.open("acme://me:canary@x/a?sig=canary").unwrap();
        let output = format!("{stores:?} {location:?} {location}");
        assert!(!output.contains("canary"), "{output}");
    }
}
