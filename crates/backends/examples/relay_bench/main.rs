//! The relay of userspace mode beside haproxy and nginx: connections per second, throughput, connections held.
//!
//! Everything runs in a network namespace of its own: one backend process, one proxy at a time, and the clients in
//! this process. All proxies get the same work in the same run, in turns, so what else the machine does hurts all of
//! them alike. `cargo run --release -p ferry-backends --example relay_bench`; see `--help`.

mod clients;
mod peers;
mod roles;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ferry_lab::netns::Namespace;

use clients::{Rate, hold, rate, throughput};
use peers::{Kind, Peer};

const BACKEND: u16 = 7000;
const HELP: &str = "\
relay_bench [--rounds N] [--seconds N] [--hold N]    compare with haproxy and nginx (both have to be installed)
relay_bench --hold-only N                            only hold N connections
";

struct Options {
    rounds: usize,
    seconds: u64,
    hold: usize,
    hold_only: bool,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["role", "backend", port] => roles::backend(port.parse()?),
        ["role", "relay", port, backend, rest @ ..] => {
            roles::relay(port.parse()?, backend.parse()?, rest.first().copied())
        }
        _ => match options(&words)? {
            Some(options) => compare(&options),
            None => {
                print!("{HELP}");
                Ok(())
            }
        },
    }
}

fn options(words: &[&str]) -> Result<Option<Options>> {
    let mut options = Options {
        rounds: 3,
        seconds: 3,
        hold: 9900,
        hold_only: false,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = || -> Result<usize> {
            let value = words.next().with_context(|| format!("{word} needs a number"))?;
            value.parse().with_context(|| format!("{word} {value}"))
        };
        match *word {
            "--rounds" => options.rounds = number()?,
            "--seconds" => options.seconds = number()? as u64,
            "--hold" => options.hold = number()?,
            "--hold-only" => {
                options.hold = number()?;
                options.hold_only = true;
            }
            "--help" | "-h" => return Ok(None),
            other => bail!("{other} is not an option\n{HELP}"),
        }
    }
    Ok(Some(options))
}

/// What one proxy did in all rounds.
struct Column {
    kind: Kind,
    rates: Vec<Rate>,
    bytes: Vec<f64>,
    /// Processor time per connection and per gigabyte.
    rate_cpu: Vec<f64>,
    bytes_cpu: Vec<f64>,
}

fn compare(options: &Options) -> Result<()> {
    raise_file_limit()?;
    let namespace = Namespace::new("bench")?;
    namespace.enter()?;
    // All ports but ours are for clients.
    namespace.sysctl("net.ipv4.ip_local_port_range", "10000 65000")?;
    namespace.sysctl("net.ipv4.tcp_tw_reuse", "1")?;
    namespace.sysctl("net.core.somaxconn", "8192")?;
    let backend = Peer::backend(BACKEND)?;
    if !options.hold_only {
        speed(options)?;
    }
    holding(options.hold)?;
    drop(backend);
    Ok(())
}

fn speed(options: &Options) -> Result<()> {
    let kinds = [
        Kind::Direct,
        Kind::Ferry,
        Kind::Haproxy,
        Kind::HaproxySplice,
        Kind::Nginx,
    ];
    let mut columns: Vec<Column> = Vec::new();
    for kind in kinds {
        columns.push(Column {
            kind,
            rates: vec![],
            bytes: vec![],
            rate_cpu: vec![],
            bytes_cpu: vec![],
        });
    }
    let time = Duration::from_secs(options.seconds);
    for round in 0..options.rounds {
        // Each round starts with another one, so that no one is always first.
        for step in 0..columns.len() {
            let at = (round + step) % columns.len();
            let column = &mut columns[at];
            let peer = Peer::start(column.kind, BACKEND)?;
            let before = peer.cpu()?;
            let name = column.kind.name();
            let result = rate(peer.port(), 64, time).with_context(|| format!("{name}, rate"))?;
            let between = peer.cpu()?;
            column
                .rate_cpu
                .push((between - before).as_secs_f64() * 1e6 / result.count as f64);
            column.rates.push(result);
            let bytes = throughput(peer.port(), 4, time).with_context(|| format!("{name}, throughput"))?;
            column
                .bytes_cpu
                .push((peer.cpu()? - between).as_secs_f64() * 1e9 / bytes.max(1) as f64);
            column.bytes.push(bytes as f64 / time.as_secs_f64() / 1e6);
        }
    }
    report(&columns);
    Ok(())
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn report(columns: &[Column]) {
    println!(
        "{:<16} {:>10} {:>9} {:>9} {:>11} {:>11} {:>12}",
        "", "conn/s", "p50 us", "p99 us", "cpu us/conn", "MB/s", "cpu s/GB"
    );
    for column in columns {
        let pick = |f: fn(&Rate) -> f64| median(column.rates.iter().map(f));
        println!(
            "{:<16} {:>10.0} {:>9.0} {:>9.0} {:>11.1} {:>11.0} {:>12.3}",
            column.kind.name(),
            pick(|rate| rate.per_second),
            pick(|rate| rate.p50),
            pick(|rate| rate.p99),
            median(column.rate_cpu.iter().copied()),
            median(column.bytes.iter().copied()),
            median(column.bytes_cpu.iter().copied()),
        );
    }
    // Ratios are taken within each round: both sides met the same load from elsewhere.
    let ratio = |of: fn(&Column, usize) -> f64| {
        let rounds = columns[0].bytes.len();
        median((0..rounds).map(|round| {
            let peers = columns.iter().filter(|column| column.kind.is_peer());
            let best = peers.map(|column| of(column, round)).fold(0.0, f64::max);
            let ours = columns.iter().find(|column| column.kind == Kind::Ferry);
            ours.map_or(0.0, |column| of(column, round)) / best
        }))
    };
    println!(
        "ferry / the better peer of each round, median: connections {:.2}, throughput {:.2}",
        ratio(|column, round| column.rates[round].per_second),
        ratio(|column, round| column.bytes[round]),
    );
}

/// Holds many connections at once, each of which has to answer when all are there.
fn holding(count: usize) -> Result<()> {
    let ferry = Peer::start(Kind::Ferry, BACKEND)?;
    let idle = ferry.memory()?;
    let took = hold(ferry.port(), count, || {
        let held = ferry.memory()?;
        let each = (held - idle) * 1024 / count as u64;
        println!(
            "{count} connections held: {} MB resident, {each} bytes for each",
            held / 1024
        );
        Ok(())
    })?;
    println!("opened, asked twice and answered in {took:.1?}");
    Ok(())
}

fn raise_file_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).context("raise the limit on open files")
}
