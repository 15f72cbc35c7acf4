//! The options of `spdl top`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

/// Shows what a running pipeline does, and what limits it
///
/// The pipeline must have been started with a monitor socket: `monitor="PATH"` in Python,
/// `PipelineBuilder::monitor(PATH)` in Rust, or `spdl bench --monitor PATH`. Shows the diagnosis, the
/// rate, data readiness, memory, CPUs, and each stage, every second. If the pipeline ends, waits for
/// the next one at the same path, such as the next epoch of a loader. Q, Escape or Ctrl-C quits;
/// the pipeline is not affected.
#[derive(Clone, Debug, Args)]
#[command(
    max_term_width = 100,
    after_help = "\
Examples:
  spdl bench photos/ --epochs 100 --monitor /tmp/bench.sock &
  spdl top /tmp/bench.sock
      watch a benchmark

  spdl_rs.ImageLoader(\"photos/\", batch_size=64, size=224, monitor=f\"/tmp/train-{rank}.sock\")
  spdl top /tmp/train-0.sock
      watch rank 0 of a training in Python

  spdl top /tmp/train-0.sock --once
      print the last second as text, for a script or a log
  spdl top /tmp/train-0.sock --json | jq -r '[.items_per_s, .data_readiness] | @tsv'
      the rate and the readiness every second, until the pipeline ends
  spdl top /tmp/train-*.sock --prometheus 127.0.0.1:9464
      metrics for Prometheus and the dashboard docs/grafana.json, also of pipelines that start later.
      The label `pipeline` is the file name of the socket: train-0

How to read it:
  The first sentence names what limits the rate; the next ones predict what helps.
  readiness  near 100 %: a batch is nearly always ready, and the training step limits the rate.
             near 0 %: the training waits for nearly every batch
  busy       the share of the places of a stage (`concurrency`) that process an item. A stage near 100 %
             limits the rate
  queue      items after a stage: mean length and capacity. Full queues up to a stage, and empty
             ones from it on, show that this stage limits the rate
  filled     the share of the time in which the queue was not empty

Keys of a JSON line: those of the statistics in Rust, for the time since the line before:
  pid, pipeline, number, ended, started_after_s, length_s, items_per_s, data_readiness,
  diagnosis (words), bottleneck (data), threads, cpus, workers, gil, event_loop, stages, queues,
  consumer, memory, dropped, left_out. The first line covers the time since the start.

Exit codes:
  0  success
  1  no pipeline serves the socket
  2  invalid command line"
)]
pub(crate) struct TopArguments {
    /// The monitor socket of the pipeline; with --prometheus, those of several pipelines
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,

    /// Print the statistics of one second as text, and exit
    #[arg(long)]
    pub(crate) once: bool,

    /// Print JSON lines, one a second, until the pipeline ends; with --once, one line
    #[arg(long)]
    pub(crate) json: bool,

    /// Serve the statistics to Prometheus at http://ADDR/metrics, until Ctrl-C
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["once", "json"])]
    pub(crate) prometheus: Option<SocketAddr>,
}
