//! `cargo xtask bench`: compares the speed of our loaders with other loaders, in interleaved runs.

mod audio;
mod checksums;
mod contest;
mod images;
mod peers;
mod plan;
mod plot;
mod promises;
mod python;
mod ratios;
mod recipes;
mod shares;
mod store;
mod suite;
mod table;
mod tar;
mod tar_shards;
mod tune;
mod video;

use anyhow::Result;
use clap::Subcommand;

use crate::engine_bench::{self, Overhead, Saving, Scaling, Stragglers};
use crate::tools::Workspace;

/// Measure the speed of our loaders and of other loaders on this machine, in interleaved runs.
#[derive(Debug, Subcommand)]
pub(crate) enum Benchmark {
    Audio(audio::Audio),
    Checksums(checksums::Checksums),
    Images(images::Images),
    Overhead(Overhead),
    Plan(plan::Plan),
    Python(python::Python),
    Ratios(ratios::Ratios),
    Recipes(recipes::Recipes),
    Scaling(Scaling),
    Stragglers(Stragglers),
    Saving(Saving),
    Store(store::Store),
    Tar(tar::Tar),
    Tune(tune::Tune),
    Video(video::Video),
}

pub(crate) fn run(workspace: &Workspace, benchmark: &Benchmark) -> Result<()> {
    match benchmark {
        Benchmark::Audio(arguments) => audio::run(workspace, arguments),
        Benchmark::Checksums(arguments) => checksums::run(workspace, arguments),
        Benchmark::Images(arguments) => images::run(workspace, arguments),
        Benchmark::Overhead(arguments) => engine_bench::overhead(workspace, arguments),
        Benchmark::Plan(arguments) => plan::run(workspace, arguments),
        Benchmark::Python(arguments) => python::run(workspace, arguments),
        Benchmark::Ratios(arguments) => ratios::run(workspace, arguments),
        Benchmark::Recipes(arguments) => recipes::run(workspace, arguments),
        Benchmark::Scaling(arguments) => engine_bench::scaling(workspace, arguments),
        Benchmark::Stragglers(arguments) => engine_bench::stragglers(workspace, arguments),
        Benchmark::Saving(arguments) => engine_bench::saving(workspace, arguments),
        Benchmark::Store(arguments) => store::run(workspace, arguments),
        Benchmark::Tar(arguments) => tar::run(workspace, arguments),
        Benchmark::Tune(arguments) => tune::run(workspace, arguments),
        Benchmark::Video(arguments) => video::run(workspace, arguments),
    }
}
