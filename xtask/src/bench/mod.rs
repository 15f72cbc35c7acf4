//! `cargo xtask bench`: compares the speed of our loaders with other loaders, in interleaved runs.

mod checksums;
mod contest;
mod images;
mod peers;
mod plot;
mod promises;
mod python;
mod ratios;
mod recipes;
mod shares;
mod store;
mod table;
mod tar;
mod tar_shards;

use anyhow::Result;
use clap::Subcommand;

use crate::engine_bench::{self, Overhead, Saving, Scaling, Stragglers};
use crate::tools::Workspace;

/// Measure the speed of our loaders and of other loaders on this machine, in interleaved runs.
#[derive(Debug, Subcommand)]
pub(crate) enum Benchmark {
    Checksums(checksums::Checksums),
    Images(images::Images),
    Overhead(Overhead),
    Python(python::Python),
    Ratios(ratios::Ratios),
    Recipes(recipes::Recipes),
    Scaling(Scaling),
    Stragglers(Stragglers),
    Saving(Saving),
    Store(store::Store),
    Tar(tar::Tar),
}

pub(crate) fn run(workspace: &Workspace, benchmark: &Benchmark) -> Result<()> {
    match benchmark {
        Benchmark::Checksums(arguments) => checksums::run(workspace, arguments),
        Benchmark::Images(arguments) => images::run(workspace, arguments),
        Benchmark::Overhead(arguments) => engine_bench::overhead(workspace, arguments),
        Benchmark::Python(arguments) => python::run(workspace, arguments),
        Benchmark::Ratios(arguments) => ratios::run(workspace, arguments),
        Benchmark::Recipes(arguments) => recipes::run(workspace, arguments),
        Benchmark::Scaling(arguments) => engine_bench::scaling(workspace, arguments),
        Benchmark::Stragglers(arguments) => engine_bench::stragglers(workspace, arguments),
        Benchmark::Saving(arguments) => engine_bench::saving(workspace, arguments),
        Benchmark::Store(arguments) => store::run(workspace, arguments),
        Benchmark::Tar(arguments) => tar::run(workspace, arguments),
    }
}
