//! A backend alone: plan in, kernel out, in one process and without a server.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use ferry_backends::{Backend, iptables, nftables};
use ferry_lab::netns::Namespace;
use ferry_model::{Event, Family, Policy};

use crate::facts::{self, Words};
use crate::table::{Table, median, quantile, seconds};

pub(crate) fn bench(mode: &str, services: u32, endpoints: u32, changes: u32) -> Result<Table> {
    let head = [
        "services",
        "load all",
        "one endpoint: median",
        "99 %",
        "pool size: median",
        "99 %",
        "kernel memory",
    ];
    let mut table = Table::new(&head);
    // iptables' programs are no match for five times as many
    let sizes = if mode == "nftables" {
        vec![services / 10, services, services * 5]
    } else {
        vec![services / 10, services]
    };
    for services in sizes {
        let namespace = Namespace::new("backend")?;
        table.row(namespace.run(|| one(mode, services, endpoints, changes))??);
    }
    Ok(table)
}

fn one(mode: &str, services: u32, endpoints: u32, changes: u32) -> Result<Vec<String>> {
    let alarm: ferry_backends::Alarm = Arc::new(|| {});
    let (policy, mut backend): (Policy, Box<dyn Backend>) = match mode {
        "nftables" => {
            let backend = nftables::Nftables::open(nftables::Options::default(), alarm)?;
            (
                Policy::nftables().without_localhost_node_ports(),
                Box::new(backend),
            )
        }
        "iptables" => {
            let backend = iptables::Iptables::open(iptables::Options::default(), alarm);
            (
                Policy::iptables().without_localhost_node_ports(),
                Box::new(backend),
            )
        }
        _ => bail!("{mode} cannot be timed alone"),
    };
    let words = Words::default();
    let mut planner = facts::planner(policy)?;
    planner.update(words.cluster(services, endpoints));
    let before = unreclaimable();
    let begin = Instant::now();
    backend.apply(planner.plan(), Family::V4)?;
    let load = begin.elapsed().as_secs_f64();
    let memory = unreclaimable() - before;

    let mut time = |event: &dyn Fn(u32, u32) -> Event| -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for n in 0..changes {
            let event = event(n.wrapping_mul(7919) % services, n + 1);
            let begin = Instant::now();
            planner.update([event]);
            backend.apply(planner.plan(), Family::V4)?;
            times.push(begin.elapsed().as_secs_f64());
            // events of a real cluster come one by one, and find cold caches
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Ok(times)
    };
    let mut replaced = time(&|i, generation| words.slice(i, endpoints, generation))?;
    let mut resized =
        time(&|i, generation| words.slice(i, endpoints + 1 - (generation - 1) / services % 2, 0))?;
    Ok(vec![
        services.to_string(),
        seconds(load),
        seconds(median(&mut replaced)),
        seconds(quantile(&mut replaced, 0.99)),
        seconds(median(&mut resized)),
        seconds(quantile(&mut resized, 0.99)),
        format!("{:.1} MB", memory / 1024.0),
    ])
}

/// Kernel memory that only its owner can give back, in kB.
fn unreclaimable() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("SUnreclaim:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(f64::NAN)
}
