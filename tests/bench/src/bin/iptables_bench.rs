//! What syncing costs in the iptables mode: `iptables_bench [nft|legacy] [services] [endpoints of each]`.
//!
//! Runs in a network namespace of its own. `own` is the CPU time of this process, all its threads included, `programs`
//! the CPU time of everything that it starts, `wall` what a clock on the wall shows.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_backends::Backend;
use ferry_backends::iptables::{Iptables, Options, Programs};
use ferry_host::iptables::Flavour;
use ferry_host::netns::Namespace;
use ferry_model::*;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How often a change is repeated.
const ROUNDS: usize = 20;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let flavour = match args.next().as_deref() {
        Some("legacy") => Flavour::Legacy,
        Some("nft") | None => Flavour::Nft,
        Some(other) => return Err(format!("no flavour is called {other}").into()),
    };
    let services = args.next().map_or(Ok(10_000), |text| text.parse())?;
    let endpoints = args.next().map_or(Ok(5), |text| text.parse())?;
    Namespace::new()?.run(|| bench(flavour, services, endpoints))?
}

fn bench(flavour: Flavour, services: usize, endpoints: usize) -> Result<()> {
    println!("iptables-{flavour}, {services} services with {endpoints} endpoints");
    let mut planner = Planner::new(PlanOptions {
        node_name: "node-a".into(),
        policy: Policy::iptables(),
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(vec!["10.128.0.0/9".parse()?]),
        node_port_addresses: vec![],
        bind_address: None,
        allow_external_ips: true,
    });
    planner.update((0..services).flat_map(|at| [slice(at, endpoints, 0), service(at)]));
    let mut backend = backend(flavour);
    measure("first sync", 1, |_| apply(&mut backend, &planner))?;
    measure("nothing changed", ROUNDS, |_| apply(&mut backend, &planner))?;
    measure("one endpoint replaced", ROUNDS, |round| {
        planner.update([slice(services / 2, endpoints, round + 1)]);
        apply(&mut backend, &planner)
    })?;
    measure("one service added", ROUNDS, |round| {
        planner.update([slice(services + round, endpoints, 0), service(services + round)]);
        apply(&mut backend, &planner)
    })?;
    measure("one service removed", ROUNDS, |round| {
        planner.update([Event::Service(name(services + round), None)]);
        apply(&mut backend, &planner)
    })?;
    let mut backend = self::backend(flavour);
    measure("restart, all adopted", 1, |_| apply(&mut backend, &planner))?;
    measure("cleanup", 1, |_| Ok(backend.cleanup()?))
}

fn backend(flavour: Flavour) -> Iptables {
    let programs = Programs {
        flavour: Some(flavour),
        ..Programs::default()
    };
    Iptables::open(
        Options {
            programs,
            ..Options::default()
        },
        Arc::new(|| ()),
    )
}

fn apply(backend: &mut Iptables, planner: &Planner) -> Result<()> {
    let applied = backend.apply(planner.plan(), Family::V4)?;
    if applied.warnings.is_empty() {
        Ok(())
    } else {
        Err(applied.warnings.join("; ").into())
    }
}

fn measure(what: &str, rounds: usize, mut work: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let mut walls = Vec::new();
    let (own, programs) = (own_time(), program_time()?);
    for round in 0..rounds {
        let start = Instant::now();
        work(round)?;
        walls.push(start.elapsed());
    }
    let each = |time: Duration| time.as_secs_f64() * 1000.0 / rounds as f64;
    let (own, programs) = (each(own_time() - own), each(program_time()? - programs));
    walls.sort_unstable();
    let median = walls[rounds / 2].as_secs_f64() * 1000.0;
    println!("{what:24} wall {median:9.2} ms   own {own:8.3} ms   programs {programs:8.1} ms");
    Ok(())
}

/// CPU time of all threads of this process.
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of all programs that were started and have ended, in hundredths of a second.
fn program_time() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = text.rsplit_once(") ").ok_or("no name in stat")?.1;
    let ticks: Vec<u64> = after_name
        .split(' ')
        .skip(13)
        .take(2)
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    Ok(Duration::from_millis(ticks.iter().sum::<u64>() * 10))
}

fn name(at: usize) -> ServiceName {
    ServiceName::new("bench", &format!("svc-{at:05}"))
}

fn service(at: usize) -> Event {
    let service = Service {
        ports: vec![ServicePort::new("http", Protocol::Tcp, 80)],
        ..Service::new(name(at), vec![address(Ipv4Addr::new(10, 96, 0, 1), at)])
    };
    Event::from(service)
}

/// The endpoints of a service; each `generation` has another last one.
fn slice(at: usize, endpoints: usize, generation: usize) -> Event {
    let endpoint = |number: usize| {
        let address = if number + 1 == endpoints {
            address(Ipv4Addr::new(10, 200, 0, 1), at + generation * 65_536)
        } else {
            address(Ipv4Addr::new(10, 128, 0, 1), at * endpoints + number)
        };
        SliceEndpoint::ready(address, Some("node-b".into()))
    };
    let slice = EndpointSlice {
        name: SliceName::new("bench", &format!("svc-{at:05}")),
        service: name(at),
        family: Family::V4,
        ports: vec![SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints: (0..endpoints).map(endpoint).collect(),
    };
    Event::from(slice)
}

fn address(first: Ipv4Addr, offset: usize) -> IpAddr {
    Ipv4Addr::from_bits(first.to_bits() + offset as u32).into()
}
