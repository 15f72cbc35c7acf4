//! The options of `spdl plan`.

use std::ffi::OsString;

use clap::Args;

use crate::commands::options::{count, positive, share};
use crate::ui::format::byte_size;

/// Plans the store, network, cores and memory that a training needs
///
/// Computes backwards from the training step: samples per second, requests per second, bandwidth,
/// requests in flight, cores, memory, cache and shards. With the capacities of cores, network and
/// store, also reports which of them limits the training. The cost of a sample is given by
/// options, or measured by `spdl bench` on a data set.
#[derive(Clone, Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  spdl plan --step-ms 87 --batch 128 --devices 4 --sample-bytes 62.5kB
      four experiments with 128 images per step: 5,885 requests/s and 367.8 MB/s

  spdl plan --step-ms 87 --batch 128 --devices 8 --latency-ms 30 --cores 16 -- photos/ --mode train
      size and CPU time of a sample measured by `spdl bench photos/ --mode train`; are 16 cores
      enough for 8 devices, if the store responds in 30 ms?

  spdl plan --samples-per-s 20000 --devices 64 --hosts 8 --sample-bytes 110kB --samples 1281167 \\
      --cpu-ms 1.1 --latency-ms 30 --cores 32 --network 1.25GB --store-iops 5500
      a cluster with 10 Gbit/s per host, and a store with 5,500 requests per second: which limit
      is reached, and how large must the cache be?

  spdl plan --step-ms 87 --batch 128 --sample-bytes 110kB --json | jq .total.bytes_per_s

How the plan is computed:
  samples/s           devices x batch / step
  requests/s          samples/s that are not in the cache; with --request-bytes, bytes/s divided
                      by the size of a request
  bandwidth           samples/s that are not in the cache x sample size
  requests in flight  requests/s x latency (Little's law): the in-flight window that hides the
                      latency
  cores               samples/s x CPU time per sample
  memory of a host    devices x batches in memory x batch size, and twice the encoded samples in
                      flight
  cache of a host     share x size of the data set. Each host needs its own share of the whole data
                      set, because it gets other samples in each epoch
  shards              32 per device, of 64 MB to 1 GB
  All are means at full training speed. Leave a reserve of 20 % for uneven sizes and other programs.

What to measure:
  --step-ms           a training loop that uses the same batch again and again
  --cpu-ms            \"CPU s / 1,000\" of `spdl bench`: CPU seconds per 1,000 samples, which are
                      milliseconds per sample
  --latency-ms        p50 of the stage `fetch` in `spdl bench`

Keys of the JSON object:
  workload            the inputs: given, measured or default
  total, host         {samples_per_s, requests_per_s, bytes_per_s, in_flight, cores}: the needs of
                      all hosts, and of one host; null without the latency or the CPU time
  host_memory_bytes   memory for batches and encoded samples
  dataset_bytes, epoch_s
                      size of the data set and duration of an epoch; null without the number of
                      samples, as the following sizes
  host_cache_bytes    size of the cache for --cache-share
  needed_cache_share, needed_cache_bytes
                      the smallest cache with which store and network suffice; 0 without capacities
  shards              {count, bytes}
  bytes_per_core_s    bandwidth that keeps one core busy; null without the CPU time
  uses                [{resource, needed, available}] for each given capacity
  reached_samples_per_s
                      samples/s that the capacities allow
  limited_by          training-step (data is always ready), cores, network, store-bandwidth or
                      store-requests
  verdict             the same in sentences
  sensitivity         [{change, ...}]: the keys from total to limited_by after the change of one
                      input

Exit codes:
  0  success, whether or not the capacities suffice
  1  the measurement failed; standard error gives the reason in one line
  2  invalid command line"
)]
pub(crate) struct PlanArguments {
    /// Time of a training step in milliseconds, in which each device uses a batch
    #[arg(long, value_name = "MILLISECONDS", value_parser = positive,
          required_unless_present = "samples_per_s")]
    pub(crate) step_ms: Option<f64>,

    /// Training throughput of all devices together, instead of --step-ms
    #[arg(long, value_name = "RATE", value_parser = positive, conflicts_with = "step_ms")]
    pub(crate) samples_per_s: Option<f64>,

    /// Samples per batch of one device
    #[arg(long, value_name = "SAMPLES", default_value_t = 32, value_parser = count::<u32>(1 << 20))]
    pub(crate) batch: u32,

    /// Number of devices that train, on all hosts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u32>(1 << 20))]
    pub(crate) devices: u32,

    /// Number of hosts, each with an equal part of the devices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u32>(1 << 20))]
    pub(crate) hosts: u32,

    /// Mean size of an encoded sample in bytes [default: measured]
    #[arg(long, value_name = "BYTES", value_parser = byte_size, required_unless_present = "bench")]
    pub(crate) sample_bytes: Option<u64>,

    /// Size of a decoded sample in a batch in bytes [default: measured, or 150528: 224 x 224 x 3]
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) decoded_bytes: Option<u64>,

    /// Number of samples of the data set [default: that of the measured data set]
    #[arg(long, value_name = "N", value_parser = count::<u64>(1 << 53))]
    pub(crate) samples: Option<u64>,

    /// CPU time per sample in milliseconds: reading, decoding, writing into the batch [default:
    /// measured]
    #[arg(long, value_name = "MILLISECONDS", value_parser = positive)]
    pub(crate) cpu_ms: Option<f64>,

    /// Time of a request to the store in milliseconds, until its last byte [default: measured]
    #[arg(long, value_name = "MILLISECONDS", value_parser = positive)]
    pub(crate) latency_ms: Option<f64>,

    /// Mean size of a request [default: one request per sample]
    ///
    /// Tar shards that are read sequentially need one request per 8 MiB.
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) request_bytes: Option<u64>,

    /// Share of the samples that each host reads from its cache, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub(crate) cache_share: f64,

    /// Cores of each host for loading
    #[arg(long, value_name = "CORES", value_parser = positive)]
    pub(crate) cores: Option<f64>,

    /// Bytes per second that the network of each host receives; 10 Gbit/s are 1.25GB
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) network: Option<u64>,

    /// Bytes per second that the store sends to all hosts together
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) store_bandwidth: Option<u64>,

    /// Requests per second that the store serves to all hosts together
    #[arg(long, value_name = "RATE", value_parser = positive)]
    pub(crate) store_iops: Option<f64>,

    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Measure the cost of a sample on a data set: DATA and options of `spdl bench`
    ///
    /// Loads the data set once, without a checksum. Options before `--` replace measured values.
    #[arg(last = true, value_name = "DATA [OPTIONS OF BENCH]")]
    pub(crate) bench: Vec<OsString>,
}
