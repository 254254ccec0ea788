//! Figures: what Ferry costs at the size of a big cluster, and beside a kube-proxy if one is given.
//!
//! Lives here: [`model`], planning alone with every allocation counted; [`backend`], planning and writing to the
//! kernel in one process; [`node`], a whole proxy that follows a
//! cluster of that size; [`path`], what packets meet, under the [`load`] of short connections. May touch namespaces of its own.
//! Always holds: what is measured for Ferry is measured in the same way for its peer, one after the other.

mod backend;
mod commits;
mod facts;
mod load;
mod model;
mod node;
mod path;
mod process;
mod programs;
mod table;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Parser;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use crate::programs::Flavour;
use crate::table::Table;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// Bench of Ferry; prints Markdown.
#[derive(Debug, Parser)]
struct Args {
    /// Services in the cluster
    #[arg(long, default_value_t = 10_000)]
    services: u32,
    /// Endpoints of each service
    #[arg(long, default_value_t = 5)]
    endpoints: u32,
    /// How many changes are timed
    #[arg(long, default_value_t = 30)]
    changes: u32,
    /// Modes to bench
    #[arg(long, value_delimiter = ',', default_values_t = ["nftables".to_owned(), "iptables".to_owned()])]
    modes: Vec<String>,
    /// Which iptables stands behind the plain names in the part `node`
    #[arg(long, value_enum, default_value_t = Flavour::Nft)]
    iptables: Flavour,
    /// A kube-proxy to run the same work with
    #[arg(long)]
    peer: Option<PathBuf>,
    /// The ferry to bench (default: the one beside this program)
    #[arg(long)]
    ferry: Option<PathBuf>,
    /// The part `path` in short rounds: shows that it works, and what is far off
    #[arg(long)]
    quick: bool,
    /// Only these parts: model, backend, plan, node, path
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

impl Args {
    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|p| p == part)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}\n", machine());
    if args.wants("model") {
        show("Planning alone", &model::bench(args.services, args.endpoints)?);
    }
    if args.wants("backend") {
        for mode in &args.modes {
            let table = backend::bench(mode, args.services, args.endpoints, args.changes.max(100))?;
            show(
                &format!("{mode}: from an event to the commit, in process"),
                &table,
            );
        }
    }
    let ferry = || args.ferry.clone().map_or_else(ferry_netns::program, Ok);
    if args.wants("plan") {
        let mut table = Table::new(&["`ferry plan` from an API server", "wall", "peak memory"]);
        for services in [args.services / 10, args.services] {
            let (wall, peak) = node::plan(&ferry()?, services, args.endpoints)?;
            let what = format!("{services} services x {} endpoints", args.endpoints);
            table.row([what, table::seconds(wall), node::megabytes(peak)]);
        }
        show("From nothing to a whole plan", &table);
    }
    if args.wants("node") {
        for mode in &args.modes {
            let work = node::Work {
                mode,
                iptables: args.iptables,
                services: args.services,
                endpoints: args.endpoints,
                changes: args.changes,
            };
            let how = match mode.as_str() {
                "iptables" => format!(" (iptables-{})", args.iptables.as_str()),
                _ => String::new(),
            };
            let title = format!(
                "{mode} mode{how}, {} services x {} endpoints",
                args.services, args.endpoints
            );
            show(&title, &node::bench(&work, &ferry()?, args.peer.as_deref())?);
        }
    }
    if args.wants("path") {
        for mode in &args.modes {
            path(&args, mode, &ferry()?)?;
        }
    }
    Ok(())
}

fn path(args: &Args, mode: &str, ferry: &Path) -> Result<()> {
    let effort = if args.quick {
        path::Effort::QUICK
    } else {
        path::Effort::FULL
    };
    let candidate = |name, program, flags| path::Candidate { name, program, flags };
    let peer = args
        .peer
        .as_deref()
        .map(|program| candidate("peer", program, &[]));
    let ours = candidate("ferry", ferry, &[]);
    let literal = candidate("ferry, kube-proxy's rules", ferry, &["--kube-proxy-rules"]);
    let all: Vec<_> = [ours].into_iter().chain(peer).collect();
    show(
        &format!("Short connections, {mode} mode"),
        &path::bench(mode, args.services, &all, effort)?,
    );
    let all: Vec<_> = [ours, literal].into_iter().chain(peer).collect();
    show(
        &format!("Short connections that are masqueraded, {mode} mode"),
        &path::masquerading(mode, &all, effort)?,
    );
    Ok(())
}

fn show(title: &str, table: &Table) {
    println!("### {title}\n\n{table}");
}

/// What it ran on: figures without it mean little.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = read("/proc/loadavg")
        .split(' ')
        .next()
        .unwrap_or_default()
        .to_owned();
    format!("Linux {kernel}, {cores} cores, load {load} at the start.")
}
