//! From an address to the store that holds what it names.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

#[cfg(not(feature = "http"))]
use spdl_core::runtime::ThreadRuntime;
use spdl_core::{Error, ErrorKind, Result, Runtime};

use super::{Address, SourceOptions, address};
use crate::fetch::{Fetcher, Key};
use crate::layers::Resilient;

/// The schemes that this crate knows, each with the feature that brings its store, and whether it is
/// compiled in.
const SCHEMES: [(&str, &str, bool); 6] = [
    ("file", "local", cfg!(feature = "local")),
    ("http", "http", cfg!(feature = "http")),
    ("https", "http", cfg!(feature = "http")),
    ("s3", "s3", cfg!(feature = "s3")),
    ("gs", "gcs", cfg!(feature = "gcs")),
    ("az", "azure", cfg!(feature = "azure")),
];

/// Fetchers by their store's address and the options that were meant for it.
type Opened = HashMap<(String, Option<usize>), Arc<dyn Fetcher>>;

/// Is given the address of a store, without what is secret in it, and the error.
type NotReachedListener = dyn Fn(&str, &Error) + Send + Sync;

/// So many stores are kept that nobody reads from, about: a list of files may name servers by the thousand.
const KEPT: usize = 1024;

/// Opens stores of a kind; a registry calls it for the addresses of one scheme.
pub trait StoreFactory: fmt::Debug + Send + Sync + 'static {
    /// A fetcher for the store of `address`, for which keys are those of its addresses. The registry
    /// keeps it for all addresses with the same authority, unless they hold something secret.
    ///
    /// # Errors
    /// As the store likes; messages hold nothing that is secret.
    fn open(&self, address: &Address, options: &SourceOptions) -> Result<Arc<dyn Fetcher>>;
}

/// Which stores there are, and how each is reached: from addresses to fetchers.
///
/// It is a value, not a global: two pipelines may have different ones. Stores that are asked for
/// again are shared, with their connections and what they have learnt; so one registry per program
/// is usual. Clones share them, until one is told of more options or another factory. Of stores that
/// nobody reads from any more, some 1,024 are kept.
///
/// | address | store | feature |
/// |---|---|---|
/// | a path, `file:///path` | files of this machine | `local` |
/// | `http://host/path`, `https://host/path` | a web server | `http` |
/// | `s3://bucket/key` | Amazon S3, and what speaks its language | `s3` |
/// | `gs://bucket/key` | Google Cloud Storage | `gcs` |
/// | `az://container/key` | Azure Blob Storage | `azure` |
///
/// All but files stand below a [`Resilient`] layer, unless [`SourceOptions`] say otherwise.
///
/// ```
/// use spdl_io::{Fetcher, StoreRegistry};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("greeting.txt");
/// # std::fs::write(&path, "hello").unwrap();
/// # let path = path.to_str().unwrap();
/// let stores = StoreRegistry::new();
/// # #[cfg(feature = "local")] {
/// let place = stores.open(path)?;
/// assert_eq!(spdl_core::block_on(place.fetcher.read(&place.key, None))?, "hello");
/// # }
/// # Ok::<(), spdl_io::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct StoreRegistry {
    factories: BTreeMap<String, Arc<dyn StoreFactory>>,
    /// Each with the beginning of the addresses that it is for.
    options: Vec<(String, SourceOptions)>,
    opened: Arc<Mutex<Opened>>,
    /// The timer of all layers that try again.
    runtime: Arc<OnceLock<Arc<dyn Runtime>>>,
    /// Who is told where a store cannot be reached.
    when_not_reached: Option<Arc<NotReachedListener>>,
    #[cfg(feature = "http")]
    reactor: crate::stores::network::Reactor,
    /// One for all servers of the web that are reached in the same way.
    #[cfg(feature = "http")]
    clients: crate::stores::network::Clients,
}

/// Where an address leads.
#[non_exhaustive]
#[derive(Clone)]
pub struct Location {
    /// What reads there.
    pub fetcher: Arc<dyn Fetcher>,
    /// What the address names in it.
    pub key: Key,
    /// The address, without what is secret in it.
    pub address: Arc<str>,
}

impl StoreRegistry {
    /// All stores that are compiled in, reached as usual.
    pub fn new() -> Self {
        StoreRegistry::default()
    }

    /// Opens addresses of `scheme` (lower case, without a colon) with `factory`; in place of a store
    /// of this crate, where the scheme is one of its own.
    #[must_use]
    pub fn register(mut self, scheme: &str, factory: Arc<dyn StoreFactory>) -> Self {
        self.factories.insert(scheme.to_owned(), factory);
        self.anew()
    }

    /// How to reach what lies at and below `address`, such as `s3:`, `s3://bucket`,
    /// `s3://bucket/folder`, or `` for all. Of several that match, the longest counts, alone.
    #[must_use]
    pub fn with_options(mut self, address: &str, options: SourceOptions) -> Self {
        self.options.push((address::usual_beginning(address), options));
        self.anew()
    }

    /// Calls `listener` once for each store that cannot be reached (it refuses connections, its name is
    /// unknown, or nothing comes in time) and has never answered, with its address, when it is about to be tried again: see [`Resilient`]. It is called by the thread that waits
    /// for the network, which it must not hold up.
    #[must_use]
    pub fn when_not_reached(
        mut self,
        listener: impl Fn(&str, &Error) + Send + Sync + 'static,
    ) -> Self {
        self.when_not_reached = Some(Arc::new(listener));
        self.anew()
    }

    /// What was opened was not opened in this way.
    fn anew(mut self) -> Self {
        self.opened = Arc::default();
        #[cfg(feature = "http")]
        {
            self.clients = crate::stores::network::Clients::default();
        }
        self
    }

    /// The schemes whose stores it opens, sorted.
    pub fn schemes(&self) -> Vec<&str> {
        let own = SCHEMES.iter().filter(|(_, _, is_here)| *is_here).map(|it| it.0);
        let mut schemes: Vec<&str> = own.chain(self.factories.keys().map(String::as_str)).collect();
        schemes.sort_unstable();
        schemes.dedup();
        schemes
    }

    /// Opens the store that holds what `address` names. No network is touched.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that makes no sense, one of a scheme that nobody knows, and
    /// options that the store does not take; `Unsupported` where the store is not compiled in, naming
    /// the feature; `Io` where the system refuses threads or TLS.
    pub fn open(&self, address: &str) -> Result<Location> {
        self.open_parsed(&Address::parse(address)?)
    }

    pub(crate) fn open_parsed(&self, parsed: &Address) -> Result<Location> {
        let shown = parsed.to_string();
        let matching = self.matching(&shown);
        let is_shared = parsed.user().is_none() && parsed.query().is_none();
        let place = (parsed.store(), matching);
        if is_shared && let Some(fetcher) = self.opened().get(&place) {
            let (fetcher, key) = (Arc::clone(fetcher), parsed.key().clone());
            return Ok(Location { fetcher, key, address: shown.into() });
        }
        let fetcher = self.fetcher(parsed, matching)?;
        let fetcher = if is_shared {
            let mut opened = self.opened();
            if opened.len() >= KEPT && opened.len().is_power_of_two() {
                opened.retain(|_, fetcher| Arc::strong_count(fetcher) > 1);
            }
            // Whoever was first, while this one was opened, is kept.
            Arc::clone(opened.entry(place).or_insert(fetcher))
        } else {
            fetcher
        };
        Ok(Location { fetcher, key: parsed.key().clone(), address: shown.into() })
    }

    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The options for an address: those of the longest beginning.
    fn matching(&self, address: &str) -> Option<usize> {
        let fits = |start: &str| {
            address.strip_prefix(start).is_some_and(|rest| {
                start.is_empty()
                    || start.ends_with(':')
                    || rest.is_empty()
                    || rest.starts_with(['/', '?'])
            })
        };
        let places = (0..self.options.len()).filter(|&place| fits(&self.options[place].0));
        places.max_by_key(|&place| self.options[place].0.len())
    }

    /// Whether addresses of the scheme may be opened at all.
    ///
    /// # Errors
    /// As [`open`](StoreRegistry::open), for a scheme that nobody knows or is not compiled in.
    pub(crate) fn check_scheme(&self, scheme: &str) -> Result<()> {
        let is_own = SCHEMES.iter().any(|(known, _, is_here)| *known == scheme && *is_here);
        match is_own || self.factories.contains_key(scheme) {
            true => Ok(()),
            false => Err(self.unknown(scheme)),
        }
    }

    /// Whether stores of the scheme read addresses of their own as keys, with a query each.
    pub(crate) fn reads_addresses(&self, scheme: &str) -> bool {
        ["http", "https"].contains(&scheme) && !self.factories.contains_key(scheme)
    }

    /// Opens a store in the way of these options, by their place; `None` for the usual ones.
    fn fetcher(&self, address: &Address, matching: Option<usize>) -> Result<Arc<dyn Fetcher>> {
        let usual = SourceOptions::default();
        let options = matching.map_or(&usual, |place| &self.options[place].1);
        let store = match self.factories.get(address.scheme()) {
            Some(factory) => factory.open(address, options)?,
            None => self.own(address, options, matching)?,
        };
        let is_file = address.scheme() == "file" && !self.factories.contains_key("file");
        match &options.resilience {
            Some(resilience) if !is_file => {
                let layer = Resilient::on(self.runtime()?, store, resilience.clone())?;
                let Some(listener) = self.when_not_reached.clone() else {
                    return Ok(Arc::new(layer));
                };
                let address = address.store();
                Ok(Arc::new(layer.when_not_reached(move |error| listener(&address, error))))
            }
            _ => Ok(store),
        }
    }

    /// The executor for a pipeline that reads from these stores over a network: its stages run on the
    /// thread that waits for the network, so that no other one is woken for each sample. For what must
    /// not hold up reads, as a stage that blocks, the pipeline's own executor is the better place.
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
    /// `Io` where the system refuses a thread.
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

    /// A store of this crate.
    #[cfg_attr(
        not(feature = "http"),
        expect(unused_variables, reason = "only stores of the network have options")
    )]
    fn own(
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
                // The keys are those of the server, whatever the address names on it.
                let server = address.without_key();
                let client = self.clients.get(address.authority(), options, matching)?;
                let reactor = self.reactor.clone();
                Ok(Arc::new(crate::stores::HttpFetcher::open(&server, options, reactor, client)?))
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
                "addresses of scheme `{scheme}:` need the feature `{feature}`, which this program \
                 was built without"
            );
            return Error::new(ErrorKind::Unsupported, message);
        }
        let known: Vec<_> = self.schemes().iter().map(|scheme| format!("`{scheme}:`")).collect();
        let message =
            format!("nobody knows the scheme `{scheme}:`; known are {}", known.join(", "));
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
    fn a_third_partys_store_is_opened_by_its_scheme_and_made_resilient() {
        let stores = StoreRegistry::new().register("acme", Arc::new(Acme));
        let place = stores.open("acme://vault/a/b").unwrap();
        assert_eq!(block_on(place.fetcher.read(&place.key, None)).unwrap(), "vault");
        assert_eq!(format!("{:?}", place.fetcher), "Resilient(MemoryFetcher(1 objects))");
        assert_eq!(place.to_string(), "acme://vault/a/b");
        let plain = SourceOptions::default().without_resilience();
        let stores = stores.with_options("acme:", plain);
        let place = stores.open("acme://vault/a/b").unwrap();
        assert_eq!(format!("{:?}", place.fetcher), "MemoryFetcher(1 objects)");
    }

    #[test]
    fn a_store_is_shared_unless_something_secret_is_in_its_address() {
        let stores = StoreRegistry::new().register("acme", Arc::new(Acme));
        let open = |address: &str| stores.open(address).unwrap().fetcher;
        assert!(Arc::ptr_eq(&open("acme://x/a"), &open("acme://x/b")));
        assert!(!Arc::ptr_eq(&open("acme://x/a"), &open("acme://y/a")));
        assert!(!Arc::ptr_eq(&open("acme://x/a?q"), &open("acme://x/a?q")));
        assert!(!Arc::ptr_eq(&open("acme://u:p@x/a"), &open("acme://x/a")));
        assert_eq!(stores.opened().len(), 2);
    }

    #[test]
    fn the_usual_port_makes_no_other_store() {
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
    fn clones_share_stores_until_they_differ() {
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
    fn of_stores_that_nobody_reads_from_only_so_many_are_kept() {
        let plain = SourceOptions::default().without_resilience();
        let stores =
            StoreRegistry::new().register("acme", Arc::new(Acme)).with_options("acme:", plain);
        let held = stores.open("acme://held/a").unwrap();
        for number in 0..10 * KEPT {
            stores.open(&format!("acme://host-{number}/a")).unwrap();
        }
        let kept = stores.opened().len();
        assert!(kept <= KEPT, "{kept} are kept");
        let again = stores.open("acme://held/b").unwrap();
        assert!(Arc::ptr_eq(&again.fetcher, &held.fetcher));
    }

    #[test]
    fn the_options_of_the_longest_beginning_count() {
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
    fn an_unknown_scheme_is_told_the_known_ones_and_a_missing_store_its_feature() {
        let stores = StoreRegistry::new().register("acme", Arc::new(Acme));
        let error = stores.open("ftp://host/x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("`ftp:`; known are `acme:`"), "{error}");
        for (scheme, feature, is_here) in SCHEMES {
            let error = stores.unknown(scheme);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains(&format!("feature `{feature}`")), "{error}");
            if !is_here {
                let error = stores.open(&format!("{scheme}:///x/y").replace(":///", "://h/"));
                assert!(error.is_err(), "{scheme}");
            }
        }
    }

    #[cfg(feature = "local")]
    #[test]
    fn files_are_read_without_a_layer_between() {
        let place = StoreRegistry::new().open("some/file").unwrap();
        assert!(format!("{:?}", place.fetcher).starts_with("LocalFetcher"));
        assert_eq!(place.key, Key::from("some/file"));
    }

    #[test]
    fn nothing_secret_is_shown() {
        let options = SourceOptions::default()
            .credential("secret_access_key", "canary")
            .header("Authorization", "canary");
        let stores =
            StoreRegistry::new().register("acme", Arc::new(Acme)).with_options("acme://x", options);
        let place = stores.open("acme://me:canary@x/a?sig=canary").unwrap();
        let shown = format!("{stores:?} {place:?} {place}");
        assert!(!shown.contains("canary"), "{shown}");
    }
}
