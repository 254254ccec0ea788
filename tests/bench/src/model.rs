//! Planning alone: facts in, plan out, no IO.

use std::time::Instant;

use anyhow::Result;
use stats_alloc::Region;

use ferry_model::Policy;

use crate::facts::{self, Words};
use crate::table::{Table, median, quantile, seconds};

const CHANGES: u32 = 5000;

pub(crate) fn bench(services: u32, endpoints: u32) -> Result<Table> {
    let head = [
        "services",
        "plan all",
        "live memory",
        "re-plan one: median",
        "99 %",
        "allocations",
        "bytes",
    ];
    let mut table = Table::new(&head);
    for services in [services / 10, services, services * 5] {
        table.row(one(services, endpoints)?);
    }
    Ok(table)
}

fn one(services: u32, endpoints: u32) -> Result<Vec<String>> {
    let mut planner = facts::planner(Policy::nftables().without_localhost_node_ports())?;
    let memory = Region::new(crate::ALLOCATOR);
    let words = Words::default();
    let events = words.cluster(services, endpoints);
    let begin = Instant::now();
    planner.update(events);
    let whole = begin.elapsed().as_secs_f64();
    let live = memory.change();
    let live = live.bytes_allocated as f64 + live.bytes_reallocated as f64 - live.bytes_deallocated as f64;

    let mut times = Vec::new();
    let (mut allocations, mut bytes) = (Vec::new(), Vec::new());
    for n in 0..CHANGES {
        // a stride that visits services far apart: no cache is warm
        let event = words.slice((n.wrapping_mul(7919)) % services, endpoints, n + 1);
        let region = Region::new(crate::ALLOCATOR);
        let begin = Instant::now();
        let update = planner.update([event]);
        times.push(begin.elapsed().as_secs_f64());
        let change = region.change();
        drop(update);
        allocations.push((change.allocations + change.reallocations) as f64);
        bytes.push(change.bytes_allocated as f64);
    }
    Ok(vec![
        services.to_string(),
        seconds(whole),
        format!("{:.1} MB", live / 1e6),
        seconds(median(&mut times)),
        seconds(quantile(&mut times, 0.99)),
        format!("{:.0}", median(&mut allocations)),
        format!("{:.0}", median(&mut bytes)),
    ])
}
