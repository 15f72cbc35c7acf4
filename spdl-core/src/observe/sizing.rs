//! [`Workload`] and [`ClusterPlan`]: what a training needs of a store, a network, cores and memory.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::DType;
use crate::observe::queueing::{Station, throughput};
use crate::stage::{BatchLayout, Field};

/// A training, its data, and the machines and the store that feed it.
///
/// [`plan`](Self::plan) computes backwards from the training step: samples per second, requests per
/// second, bandwidth, requests in flight, cores, memory, cache and shards. Unknown capacities are
/// `None`, and limit nothing.
///
/// Four experiments with batches of 128 images of 62.5 kB, 87 ms per step, on one host:
///
/// ```
/// use std::time::Duration;
/// use spdl_core::observe::{PlanLimit, Workload};
///
/// let mut training = Workload::new(128, Duration::from_millis(87), 62_500);
/// training.devices = 4;
/// let plan = training.plan()?;
/// assert_eq!(plan.total.samples_per_s as u64, 5_885); // one request for each: 5,885 IOPS
/// assert_eq!(plan.total.bytes_per_s as u64 / 1_000_000, 367); // MB/s
///
/// training.cpu_time = Some(Duration::from_micros(1_100));
/// training.latency = Some(Duration::from_millis(30));
/// training.cores = Some(4.0);
/// let plan = training.plan()?;
/// assert_eq!(plan.total.cores.map(|cores| (cores * 10.0).round()), Some(65.0)); // 6.5 cores
/// assert_eq!(plan.total.in_flight.map(f64::round), Some(177.0)); // requests
/// assert_eq!(plan.limited_by, PlanLimit::Cores);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Workload {
    /// Samples per batch of one device.
    pub batch_size: usize,
    /// Time of one training step, in which each device uses a batch.
    #[cfg_attr(feature = "serde", serde(rename = "step_s", with = "crate::seconds"))]
    pub step_time: Duration,
    /// Mean size of an encoded sample in bytes.
    pub sample_bytes: u64,
    /// Size of a decoded sample in a batch in bytes. Default: an RGB image of 224 × 224 pixels.
    pub decoded_bytes: u64,
    /// Number of samples of the data set.
    pub samples: Option<u64>,
    /// Number of devices that train, on all hosts. Default: 1.
    pub devices: u64,
    /// Number of hosts, each with an equal part of the devices. Default: 1.
    pub hosts: u64,
    /// CPU time for one sample: reading, decoding, and writing into the batch.
    #[cfg_attr(feature = "serde", serde(rename = "cpu_s", with = "crate::seconds::option"))]
    pub cpu_time: Option<Duration>,
    /// Mean size of a request in bytes. By default, each sample is one request.
    pub request_bytes: Option<u64>,
    /// The share of the samples that each host reads from its cache, in 0..=1. Default: 0.
    pub cache_share: f64,
    /// Mean time of a request, from sending it to its last byte.
    #[cfg_attr(feature = "serde", serde(rename = "latency_s", with = "crate::seconds::option"))]
    pub latency: Option<Duration>,
    /// Requests per second that the store serves to all hosts together.
    pub store_requests_per_s: Option<f64>,
    /// Bytes per second that the store sends to all hosts together.
    pub store_bytes_per_s: Option<f64>,
    /// Bytes per second that the network of one host receives.
    pub network_bytes_per_s: Option<f64>,
    /// Cores of one host for loading.
    pub cores: Option<f64>,
}

/// What a cluster needs so that training never waits for data.
///
/// | figure | formula |
/// |---|---|
/// | samples per second | devices × batch size ÷ step time |
/// | bytes per second | samples per second × (1 − share of the cache) × bytes of a sample |
/// | requests per second | samples per second × (1 − share of the cache), or bytes per second ÷ bytes of a request |
/// | requests in flight | requests per second × latency (Little's law) |
/// | cores | samples per second × CPU time of a sample |
/// | memory of a host | devices × live batches × bytes of a batch, and twice the bytes of the requests in flight |
/// | cache of a host | share × bytes of the data set: in each epoch, a host gets other samples |
///
/// Little's law: J. D. C. Little, "A Proof for the Queuing Formula: L = λW", Operations Research 9
/// (1961).
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ClusterPlan {
    /// The needs of all hosts together.
    pub total: PlanNeeds,
    /// The needs of one host.
    pub host: PlanNeeds,
    /// Memory for batches and encoded samples of one host, in bytes.
    pub host_memory_bytes: u64,
    /// Size of the data set in bytes.
    pub dataset_bytes: Option<u64>,
    /// Duration of an epoch.
    #[cfg_attr(feature = "serde", serde(rename = "epoch_s", with = "crate::seconds::option"))]
    pub epoch: Option<Duration>,
    /// Size of the cache of each host for [`Workload::cache_share`], in bytes.
    pub host_cache_bytes: Option<u64>,
    /// The smallest share of the cache with which store and network suffice. 0 if they suffice
    /// without a cache, and if their capacities are unknown.
    pub needed_cache_share: f64,
    /// Size of the cache of each host for [`needed_cache_share`](Self::needed_cache_share), in bytes.
    pub needed_cache_bytes: Option<u64>,
    /// Recommended shards.
    pub shards: Option<PlannedShards>,
    /// Encoded bytes per second that keep one core busy: a host whose network is slower than this
    /// for each of its cores waits for the network.
    pub bytes_per_core_s: Option<f64>,
    /// Need and capacity of each resource whose capacity is known.
    pub uses: Vec<PlannedUse>,
    /// Samples per second that the known capacities allow.
    pub reached_samples_per_s: f64,
    /// What limits the training.
    pub limited_by: PlanLimit,
}

/// Rates and numbers that a cluster or a host needs.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PlanNeeds {
    /// Samples per second that the training uses.
    pub samples_per_s: f64,
    /// Requests per second to the store.
    pub requests_per_s: f64,
    /// Bytes per second from the store.
    pub bytes_per_s: f64,
    /// Mean number of requests in flight.
    pub in_flight: Option<f64>,
    /// Mean number of busy cores.
    pub cores: Option<f64>,
}

impl PlanNeeds {
    /// The needs of `hosts` hosts.
    fn times(&self, hosts: f64) -> PlanNeeds {
        PlanNeeds {
            samples_per_s: self.samples_per_s * hosts,
            requests_per_s: self.requests_per_s * hosts,
            bytes_per_s: self.bytes_per_s * hosts,
            in_flight: self.in_flight.map(|it| it * hosts),
            cores: self.cores.map(|it| it * hosts),
        }
    }
}

/// Recommended size and number of shards.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PlannedShards {
    /// Number of shards, a multiple of the number of devices.
    pub count: u64,
    /// Mean size of a shard in bytes.
    pub bytes: u64,
}

/// Need and capacity of a resource.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PlannedUse {
    /// The resource.
    pub resource: PlanLimit,
    /// What the training needs: of cores and network for one host, of the store for all hosts.
    pub needed: f64,
    /// What there is.
    pub available: f64,
}

impl PlannedUse {
    /// The share of the capacity that is needed. Above 1, training waits for this resource.
    pub fn share(&self) -> f64 {
        self.needed / self.available
    }
}

/// What limits a training: the training itself, or a resource of loading.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum PlanLimit {
    /// The training step: data is always ready.
    TrainingStep,
    /// The cores of the hosts.
    Cores,
    /// The network of the hosts.
    Network,
    /// The bandwidth of the store.
    StoreBandwidth,
    /// The requests per second of the store (IOPS).
    StoreRequests,
}

impl fmt::Display for PlanLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PlanLimit::TrainingStep => "training step",
            PlanLimit::Cores => "cores",
            PlanLimit::Network => "network",
            PlanLimit::StoreBandwidth => "bandwidth of the store",
            PlanLimit::StoreRequests => "requests per second of the store",
        })
    }
}

/// Shards of at least this size: 8 parts of 8 MiB, so that opening a shard costs little.
const MIN_SHARD_BYTES: f64 = 64e6;
/// Shards of at most this size, so that a failed upload or a corrupt shard costs little.
const MAX_SHARD_BYTES: f64 = 1e9;
/// Shards for each device, so that shuffled shards mix the data, and devices finish together.
const SHARDS_PER_DEVICE: f64 = 32.0;

impl Workload {
    /// A training on one device with steps of `step_time`, whose batches have `batch_size` samples
    /// of `sample_bytes` bytes.
    pub fn new(batch_size: usize, step_time: Duration, sample_bytes: u64) -> Self {
        Workload {
            batch_size,
            step_time,
            sample_bytes,
            decoded_bytes: 3 * 224 * 224,
            samples: None,
            devices: 1,
            hosts: 1,
            cpu_time: None,
            request_bytes: None,
            cache_share: 0.0,
            latency: None,
            store_requests_per_s: None,
            store_bytes_per_s: None,
            network_bytes_per_s: None,
            cores: None,
        }
    }

    /// Computes what the training needs, and how fast it is with the known capacities.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if a number or a time is 0, the share of the
    /// cache is not in 0..=1, or a capacity is not above 0.
    pub fn plan(&self) -> Result<ClusterPlan> {
        self.validate()?;
        let hosts = self.hosts as f64;
        let host = self.host_needs();
        let total = host.times(hosts);
        let uses = self.uses(&host, &total);
        let wall = uses.iter().max_by(|a, b| a.share().total_cmp(&b.share()));
        let limited_by = match wall {
            Some(wall) if wall.share() > 1.0 => wall.resource,
            _ => PlanLimit::TrainingStep,
        };
        let dataset_bytes = self.samples.map(|samples| samples.saturating_mul(self.sample_bytes));
        let cached = |share: f64| dataset_bytes.map(|bytes| (bytes as f64 * share).round() as u64);
        let needed_cache_share = self.needed_cache_share();
        let seconds = self.samples.map(|samples| samples as f64 / total.samples_per_s);
        Ok(ClusterPlan {
            host_memory_bytes: self.host_memory(&host),
            epoch: seconds.map(|it| Duration::try_from_secs_f64(it).unwrap_or(Duration::MAX)),
            host_cache_bytes: cached(self.cache_share),
            needed_cache_bytes: cached(needed_cache_share),
            needed_cache_share,
            shards: dataset_bytes.map(|bytes| self.shards(bytes)),
            dataset_bytes,
            bytes_per_core_s: self.cpu_time.map(|it| self.sample_bytes as f64 / it.as_secs_f64()),
            reached_samples_per_s: hosts * self.reached(&host, &uses),
            limited_by,
            uses,
            total,
            host,
        })
    }

    /// Variations of one input each, with a phrase that describes the change, for a table that shows
    /// how sensitive the plan is.
    pub fn variations(&self) -> Vec<(String, Workload)> {
        let mut all = Vec::new();
        let mut add = |phrase: &str, change: &dyn Fn(&mut Workload)| {
            let mut changed = self.clone();
            change(&mut changed);
            if changed != *self {
                all.push((phrase.to_owned(), changed));
            }
        };
        add("half the step time", &|it| it.step_time /= 2);
        add("twice the devices", &|it| it.devices *= 2);
        add("twice the hosts for the same devices", &|it| it.hosts *= 2);
        add("samples of twice the size", &|it| it.sample_bytes = it.sample_bytes.saturating_mul(2));
        add("half the CPU time per sample", &|it| it.cpu_time = it.cpu_time.map(|time| time / 2));
        add("twice the latency", &|it| it.latency = it.latency.map(|time| time * 2));
        add("a cache for 50 % of the samples", &|it| it.cache_share = it.cache_share.max(0.5));
        add("a cache for 90 % of the samples", &|it| it.cache_share = it.cache_share.max(0.9));
        add("requests of 8 MiB", &|it| it.request_bytes = Some(8 << 20));
        all
    }

    fn validate(&self) -> Result<()> {
        let invalid = |message: &str| Err(Error::new(ErrorKind::InvalidArgument, message));
        let Workload { batch_size, sample_bytes, decoded_bytes, devices, hosts, .. } = *self;
        if batch_size == 0 || sample_bytes == 0 || decoded_bytes == 0 || devices == 0 || hosts == 0
        {
            return invalid(
                "the batch size, the sizes of a sample, and the numbers of devices and hosts must be at least 1",
            );
        }
        if self.step_time.is_zero() {
            return invalid("the step time must be above 0");
        }
        if !(0.0..=1.0).contains(&self.cache_share) {
            return invalid("the share of the cache must be between 0 and 1");
        }
        let times = [self.cpu_time, self.latency].map(|time| time.map(|it| it.as_secs_f64()));
        let capacities = [
            self.store_requests_per_s,
            self.store_bytes_per_s,
            self.network_bytes_per_s,
            self.cores,
            self.request_bytes.map(|bytes| bytes as f64),
        ];
        let mut numbers = times.into_iter().chain(capacities).flatten();
        let are_valid = numbers.all(|value| value > 0.0 && value.is_finite());
        match are_valid {
            true => Ok(()),
            false => invalid("CPU time, latency, request size and capacities must be above 0"),
        }
    }

    fn host_needs(&self) -> PlanNeeds {
        let per_step = self.devices as f64 * self.batch_size as f64 / self.hosts as f64;
        let samples_per_s = per_step / self.step_time.as_secs_f64();
        let missed = samples_per_s * (1.0 - self.cache_share);
        let bytes_per_s = missed * self.sample_bytes as f64;
        let requests_per_s = self.request_bytes.map_or(missed, |bytes| bytes_per_s / bytes as f64);
        PlanNeeds {
            samples_per_s,
            requests_per_s,
            bytes_per_s,
            in_flight: self.latency.map(|latency| requests_per_s * latency.as_secs_f64()),
            cores: self.cpu_time.map(|time| samples_per_s * time.as_secs_f64()),
        }
    }

    fn uses(&self, host: &PlanNeeds, total: &PlanNeeds) -> Vec<PlannedUse> {
        let of = |resource, needed: Option<f64>, available: Option<f64>| {
            Some(PlannedUse { resource, needed: needed?, available: available? })
        };
        let all = [
            of(PlanLimit::Cores, host.cores, self.cores),
            of(PlanLimit::Network, Some(host.bytes_per_s), self.network_bytes_per_s),
            of(PlanLimit::StoreBandwidth, Some(total.bytes_per_s), self.store_bytes_per_s),
            of(PlanLimit::StoreRequests, Some(total.requests_per_s), self.store_requests_per_s),
        ];
        all.into_iter().flatten().collect()
    }

    /// The share of the cache that reduces the use of store and network to their capacities.
    fn needed_cache_share(&self) -> f64 {
        let without = Workload { cache_share: 0.0, ..self.clone() };
        let host = without.host_needs();
        let uses = without.uses(&host, &host.times(self.hosts as f64));
        let remote = uses.iter().filter(|it| it.resource != PlanLimit::Cores);
        let most = remote.map(PlannedUse::share).fold(1.0, f64::max);
        1.0 - 1.0 / most
    }

    /// Samples per second of a host: mean-value analysis of the training step and all resources,
    /// each with the part of a host. As many samples circulate as the batches in memory hold.
    fn reached(&self, host: &PlanNeeds, uses: &[PlannedUse]) -> f64 {
        let mut stations = vec![Station { demand: 1.0 / host.samples_per_s, servers: 1.0 }];
        stations.extend(uses.iter().map(|it| {
            let servers = if it.resource == PlanLimit::Cores { it.available } else { 1.0 };
            Station { demand: servers * it.share() / host.samples_per_s, servers }
        }));
        let samples = self.live_batches(host).saturating_mul(self.batch_size);
        let samples = samples as f64 * self.devices_of_host() as f64;
        let bound = stations.iter().map(Station::capacity).fold(f64::INFINITY, f64::min);
        throughput(&stations, samples).min(bound)
    }

    fn devices_of_host(&self) -> u64 {
        self.devices.div_ceil(self.hosts)
    }

    fn layout(&self) -> BatchLayout {
        let bytes = usize::try_from(self.decoded_bytes).unwrap_or(usize::MAX);
        BatchLayout::new(self.batch_size, [Field::new("sample", DType::U8, &[bytes])])
    }

    /// Worker threads of the pipeline of one device.
    fn workers(&self, host: &PlanNeeds) -> usize {
        let cores = self.cores.or(host.cores).unwrap_or(1.0);
        (cores / self.devices_of_host() as f64).ceil().max(1.0) as usize
    }

    fn live_batches(&self, host: &PlanNeeds) -> usize {
        self.layout().live_batches(self.workers(host))
    }

    fn host_memory(&self, host: &PlanNeeds) -> u64 {
        let batches = self.layout().live_bytes(self.workers(host)) as u64;
        let request = self.request_bytes.unwrap_or(self.sample_bytes);
        // As many encoded samples wait for decoding as are in flight.
        let encoded = 2.0 * host.in_flight.unwrap_or(0.0).ceil() * request as f64;
        batches.saturating_mul(self.devices_of_host()).saturating_add(encoded as u64)
    }

    fn shards(&self, dataset_bytes: u64) -> PlannedShards {
        let target = dataset_bytes as f64 / (self.devices as f64 * SHARDS_PER_DEVICE);
        let target = target.clamp(MIN_SHARD_BYTES, MAX_SHARD_BYTES);
        let count = (dataset_bytes as f64 / target).ceil() as u64;
        let count = count.max(1).div_ceil(self.devices).saturating_mul(self.devices);
        PlannedShards { count, bytes: dataset_bytes / count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(batch_size: usize, step_s: f64, sample_bytes: u64) -> Workload {
        Workload::new(batch_size, Duration::from_secs_f64(step_s), sample_bytes)
    }

    /// Samples per second, rounded.
    fn rate(workload: &Workload) -> u64 {
        workload.plan().unwrap().total.samples_per_s.round() as u64
    }

    /// Requests per second, and MB/s.
    fn needs(workload: &Workload) -> (u64, u64) {
        let total = workload.plan().unwrap().total;
        (total.requests_per_s as u64, (total.bytes_per_s / 1e6) as u64)
    }

    fn is_about(value: f64, expected: f64, tolerance: f64) {
        assert!((value / expected - 1.0).abs() <= tolerance, "{value} for {expected}");
    }

    /// The examples of the article "Feeding the beast".
    #[test]
    fn worked_examples_have_their_published_figures() {
        // 128 / 0.087 s are 1,471 images/s. The article prints 1,457, from a step that is rounded
        // down to 0.087 s: 128 / 0.08785 s.
        assert_eq!(rate(&training(128, 0.087, 62_500)), 1_471);
        assert_eq!(rate(&training(128, 0.087_85, 62_500)), 1_457);
        // Larger samples: batches of 64. The article prints 730, half of 1,457 to the nearest ten.
        assert_eq!(rate(&training(64, 0.087, 125_000)), 736);
        assert_eq!((rate(&training(64, 0.087_85, 125_000)) + 5) / 10 * 10, 730);
        assert_eq!(rate(&training(64, 0.087_7, 125_000)), 730);

        // Four experiments, 4 × 128 = 512 images in 0.087 s.
        let mut four = training(128, 0.087, 62_500);
        four.devices = 4;
        assert_eq!(needs(&four), (5_885, 367));
        assert_eq!(needs(&training(512, 0.087, 62_500)), (5_885, 367));

        // 10 to 20 devices with steps of 2 s and 500 kB. The article prints twice the bandwidth.
        let fleet = |devices, batch, step, bytes| {
            let mut fleet = training(batch, step, bytes);
            fleet.devices = devices;
            needs(&fleet)
        };
        assert_eq!(fleet(10, 128, 2.0, 500_000), (640, 320));
        assert_eq!(fleet(20, 128, 2.0, 500_000), (1_280, 640));
        // 10 to 20 devices with batches of 512 and steps of 0.2 s.
        assert_eq!(fleet(10, 512, 0.2, 62_500), (25_600, 1_600));
        assert_eq!(fleet(20, 512, 0.2, 62_500), (51_200, 3_200));
    }

    #[test]
    fn a_host_has_its_part_of_the_needs() {
        let mut cluster = training(100, 0.1, 100_000);
        (cluster.devices, cluster.hosts) = (16, 2);
        cluster.cpu_time = Some(Duration::from_millis(1));
        cluster.latency = Some(Duration::from_millis(50));
        let plan = cluster.plan().unwrap();
        is_about(plan.total.samples_per_s, 16_000.0, 1e-9);
        is_about(plan.host.samples_per_s, 8_000.0, 1e-9);
        is_about(plan.host.bytes_per_s, 800e6, 1e-9);
        is_about(plan.host.cores.unwrap(), 8.0, 1e-9);
        is_about(plan.total.in_flight.unwrap(), 800.0, 1e-9);
        // 8 devices, 5 live batches of 100 images, and 2 × 400 encoded samples.
        let batches = 8 * 5 * 100 * 150_528;
        assert_eq!(plan.host_memory_bytes, batches + 2 * 400 * 100_000);
        is_about(plan.bytes_per_core_s.unwrap(), 100e6, 1e-9);
    }

    #[test]
    fn a_cache_reduces_requests_but_not_cores() {
        let mut cached = training(100, 0.1, 100_000);
        cached.samples = Some(1_000_000);
        cached.cpu_time = Some(Duration::from_millis(1));
        cached.cache_share = 0.75;
        let plan = cached.plan().unwrap();
        is_about(plan.total.requests_per_s, 250.0, 1e-9);
        is_about(plan.total.bytes_per_s, 25e6, 1e-9);
        is_about(plan.total.cores.unwrap(), 1.0, 1e-9);
        assert_eq!(plan.host_cache_bytes, Some(75_000_000_000));
        assert_eq!(plan.epoch, Some(Duration::from_secs(1_000)));
    }

    #[test]
    fn the_needed_cache_makes_the_store_suffice() {
        let mut remote = training(100, 0.1, 100_000);
        remote.samples = Some(1_000);
        remote.store_requests_per_s = Some(400.0);
        for already in [0.0, 0.3, 0.6, 0.9] {
            remote.cache_share = already;
            let plan = remote.plan().unwrap();
            is_about(plan.needed_cache_share, 0.6, 1e-9);
            assert_eq!(plan.needed_cache_bytes, Some(60_000_000));
        }
        // The share suffices exactly.
        remote.cache_share = 0.6;
        assert_eq!(remote.plan().unwrap().limited_by, PlanLimit::TrainingStep);
        // A store that suffices needs no cache.
        (remote.cache_share, remote.store_requests_per_s) = (0.0, Some(2_000.0));
        assert_eq!(remote.plan().unwrap().needed_cache_share, 0.0);
    }

    #[test]
    fn large_requests_are_fewer() {
        let mut sequential = training(100, 0.1, 100_000);
        sequential.request_bytes = Some(10_000_000);
        let total = sequential.plan().unwrap().total;
        is_about(total.requests_per_s, 10.0, 1e-9);
        is_about(total.bytes_per_s, 100e6, 1e-9);
    }

    #[test]
    fn the_scarcest_resource_is_the_wall() {
        type Change = fn(&mut Workload);
        // 1,000 samples/s, 100 MB/s, one core.
        let mut base = training(100, 0.1, 100_000);
        base.cpu_time = Some(Duration::from_millis(1));
        let walls: [(Change, PlanLimit); 5] = [
            (|it| it.cores = Some(0.5), PlanLimit::Cores),
            (|it| it.network_bytes_per_s = Some(50e6), PlanLimit::Network),
            (|it| it.store_bytes_per_s = Some(50e6), PlanLimit::StoreBandwidth),
            (|it| it.store_requests_per_s = Some(500.0), PlanLimit::StoreRequests),
            (|it| it.cores = Some(4.0), PlanLimit::TrainingStep),
        ];
        for (change, limit) in walls {
            let mut changed = base.clone();
            change(&mut changed);
            let plan = changed.plan().unwrap();
            assert_eq!(plan.limited_by, limit);
            let reached = if limit == PlanLimit::TrainingStep { 1_000.0 } else { 500.0 };
            is_about(plan.reached_samples_per_s, reached, 0.01);
        }
        // The store is shared by the hosts, cores and network are not.
        let mut hosts = base.clone();
        (hosts.devices, hosts.hosts) = (4, 4);
        (hosts.cores, hosts.store_bytes_per_s) = (Some(2.0), Some(100e6));
        let plan = hosts.plan().unwrap();
        assert_eq!(plan.limited_by, PlanLimit::StoreBandwidth);
        is_about(plan.reached_samples_per_s, 1_000.0, 0.01);
    }

    #[test]
    fn shards_have_64_mb_to_1_gb_and_divide_evenly() {
        let shards = |samples, devices| {
            let mut workload = training(100, 0.1, 100_000);
            (workload.samples, workload.devices) = (Some(samples), devices);
            workload.plan().unwrap().shards.unwrap()
        };
        // 100 GB: 32 shards for each of 8 devices.
        assert_eq!(shards(1_000_000, 8), PlannedShards { count: 256, bytes: 390_625_000 });
        // 10 TB: at most 1 GB.
        assert_eq!(shards(100_000_000, 8), PlannedShards { count: 10_000, bytes: 1_000_000_000 });
        // 1 GB: at least 64 MB, and the same number of shards for each device.
        assert_eq!(shards(10_000, 8), PlannedShards { count: 16, bytes: 62_500_000 });
        assert_eq!(shards(1, 4).count, 4);
    }

    #[test]
    fn variations_change_known_inputs_only() {
        let mut workload = training(100, 0.1, 100_000);
        let phrases = |it: &Workload| {
            it.variations().into_iter().map(|(phrase, _)| phrase).collect::<Vec<_>>()
        };
        assert_eq!(phrases(&workload).len(), 7);
        (workload.cpu_time, workload.latency) =
            (Some(Duration::from_millis(1)), Some(Duration::from_millis(9)));
        assert_eq!(phrases(&workload).len(), 9);
        workload.cache_share = 0.9;
        assert_eq!(phrases(&workload).len(), 7);
        let (_, half) = workload.variations().swap_remove(0);
        assert_eq!(rate(&half), 2 * rate(&workload));
        assert!(workload.variations().iter().all(|(_, it)| it.plan().is_ok()));
    }

    #[test]
    fn invalid_inputs_are_errors() {
        let invalid: [fn(&mut Workload); 7] = [
            |it| it.batch_size = 0,
            |it| it.step_time = Duration::ZERO,
            |it| it.hosts = 0,
            |it| it.cache_share = 1.5,
            |it| it.cache_share = f64::NAN,
            |it| it.cores = Some(0.0),
            |it| it.cpu_time = Some(Duration::ZERO),
        ];
        for make in invalid {
            let mut workload = training(1, 1.0, 1);
            make(&mut workload);
            assert_eq!(workload.plan().unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}
