//! The relay of userspace mode beside haproxy and nginx: connections per second, throughput, connections held.
//!
//! Everything runs in a network namespace of its own: one backend process, one proxy at a time, and the clients in
//! this process. All proxies get the same work in the same run, in turns, so what else the machine does hurts all of
//! them alike. `cargo xtask bench userspace`; see `--help`.

mod clients;
mod peers;
mod roles;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ferry_lab::netns::Namespace;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use clients::{Pests, Rate, hold, rate, throughput};
use peers::{Kind, Peer};

const BACKEND: u16 = 7000;
const FRONTENDS: u16 = 7100;
const HELP: &str = "\
relay_bench [--rounds N] [--slice MS] [--hold N]    compare with haproxy and nginx (both have to be installed)
relay_bench --hold-only N                            only hold N connections
";

struct Options {
    rounds: usize,
    slice: u64,
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
        rounds: 12,
        slice: 700,
        hold: 10_000,
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
            "--slice" => options.slice = number()? as u64,
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
    peer: Peer,
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
    roles::make_silent_network(&namespace)?;
    let backend = Peer::backend(BACKEND)?;
    if !options.hold_only {
        speed(options)?;
        hurting(options)?;
    }
    holding(options.hold)?;
    drop(backend);
    Ok(())
}

/// All proxies are up at once and get their slices of work in turns: what else the machine does meanwhile hurts all of
/// them alike.
fn speed(options: &Options) -> Result<()> {
    let kinds = [
        Kind::Direct,
        Kind::Ferry,
        Kind::Haproxy,
        Kind::HaproxySplice,
        Kind::Nginx,
    ];
    let mut columns = Vec::new();
    for (number, kind) in kinds.into_iter().enumerate() {
        let peer = Peer::start(kind, FRONTENDS + 10 * number as u16, BACKEND)?;
        columns.push(Column {
            kind,
            peer,
            rates: vec![],
            bytes: vec![],
            rate_cpu: vec![],
            bytes_cpu: vec![],
        });
    }
    let time = Duration::from_millis(options.slice);
    for round in 0..options.rounds {
        // Each round starts with another one, so that no one is always first.
        for step in 0..columns.len() {
            let at = (round + step) % columns.len();
            columns[at].slice(time)?;
        }
    }
    report(&columns);
    Ok(())
}

impl Column {
    fn slice(&mut self, time: Duration) -> Result<()> {
        let (name, port) = (self.kind.name(), self.peer.port());
        let before = self.peer.cpu()?;
        let result = rate(port, 64, time).with_context(|| format!("{name}, rate"))?;
        let between = self.peer.cpu()?;
        self.rate_cpu
            .push((between - before).as_secs_f64() * 1e6 / result.count as f64);
        self.rates.push(result);
        let bytes = throughput(port, 4, time).with_context(|| format!("{name}, throughput"))?;
        let after = self.peer.cpu()?;
        self.bytes_cpu
            .push((after - between).as_secs_f64() * 1e9 / bytes.max(1) as f64);
        self.bytes.push(bytes as f64 / time.as_secs_f64() / 1e6);
        Ok(())
    }
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    values.iter().sum::<f64>() / values.len() as f64
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn report(columns: &[Column]) {
    println!(
        "{:<16} {:>10} {:>9} {:>9} {:>11} {:>11} {:>12} {:>12}",
        "", "conn/s", "p50 us", "p99 us", "cpu us/conn", "MB/s", "cpu s/GB", "resident MB"
    );
    for column in columns {
        let pick = |f: fn(&Rate) -> f64| median(column.rates.iter().map(f));
        println!(
            "{:<16} {:>10.0} {:>9.0} {:>9.0} {:>11.1} {:>11.0} {:>12.3} {:>12.1}",
            column.kind.name(),
            mean(column.rates.iter().map(|rate| rate.per_second)),
            pick(|rate| rate.p50),
            pick(|rate| rate.p99),
            mean(column.rate_cpu.iter().copied()),
            mean(column.bytes.iter().copied()),
            mean(column.bytes_cpu.iter().copied()),
            column.peer.memory().unwrap_or_default() as f64 / 1024.0,
        );
    }
    // Over all slices, beside the best of the others over all of theirs.
    let ratio = |of: fn(&Column) -> f64| {
        let peers = columns.iter().filter(|column| column.kind.is_peer());
        let best = peers.map(of).fold(0.0, f64::max);
        let ours = columns.iter().find(|column| column.kind == Kind::Ferry);
        ours.map_or(0.0, of) / best
    };
    println!(
        "ferry / the best of the others: connections {:.2}, throughput {:.2}",
        ratio(|column| mean(column.rates.iter().map(|rate| rate.per_second))),
        ratio(|column| mean(column.bytes.iter().copied())),
    );
    println!(
        "the same for what a processor second does: connections {:.2}, bytes {:.2}",
        ratio(|column| 1.0 / mean(column.rate_cpu.iter().copied())),
        ratio(|column| 1.0 / mean(column.bytes_cpu.iter().copied())),
    );
}

/// More than a few hundred reach the kernel's own limit: each keeps some megabytes in its socket buffers.
const SLOW: usize = 200;
const DIALLING: usize = 200;

/// Short connections while other clients read nothing of what they asked for. The same work is done in turns with and
/// without them, by each proxy in its turn. Ours has others beside, too, that wait for a dead endpoint.
fn hurting(options: &Options) -> Result<()> {
    for kind in [Kind::Ferry, Kind::Haproxy, Kind::HaproxySplice, Kind::Nginx] {
        let dialling = if kind == Kind::Ferry { DIALLING } else { 0 };
        let peer = Peer::start(kind, FRONTENDS, BACKEND)?;
        hurting_one(kind.name(), dialling, options)?;
        println!("resident: {:.1} MB", peer.memory()? as f64 / 1024.0);
    }
    Ok(())
}

fn hurting_one(name: &str, dialling: usize, options: &Options) -> Result<()> {
    let time = Duration::from_millis(options.slice);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds.div_ceil(2) {
        alone.push(rate(FRONTENDS, 64, time)?);
        let pests = Pests::start(FRONTENDS, SLOW, FRONTENDS + 1, dialling)?;
        // Their buffers fill up meanwhile.
        std::thread::sleep(time);
        beside.push(rate(FRONTENDS, 64, time)?);
        drop(pests);
        std::thread::sleep(time);
    }
    let tell = |who: &str, rates: &[Rate]| {
        println!(
            "{who:<60} {:>8.0} conn/s, p50 {:>6.0} us, p99 {:>6.0} us, worst {:>7.0} us",
            mean(rates.iter().map(|rate| rate.per_second)),
            median(rates.iter().map(|rate| rate.p50)),
            median(rates.iter().map(|rate| rate.p99)),
            rates.iter().map(|rate| rate.worst).fold(0.0, f64::max),
        );
    };
    tell(&format!("{name}, 64 clients alone"), &alone);
    let who = format!("beside {SLOW} that do not read and {dialling} at a dead endpoint");
    tell(&who, &beside);
    Ok(())
}

/// Holds many connections at once, each of which has to answer when all are there. Where the limit on open files does
/// not allow one process to hold all of them, the relay is replaced by another one half way: what the first has
/// accepted stays with it.
fn holding(count: usize) -> Result<()> {
    let files = tempfile::tempdir()?;
    let socket = files.path().join("handover");
    let first = Peer::relay(BACKEND, &socket)?;
    let idle = first.memory()?;
    let limit = getrlimit(Resource::Nofile).maximum;
    let one_is_enough = limit.is_none_or(|files| files > 2 * count as u64 + 100);
    let mut second = None;
    let halfway = || {
        if !one_is_enough {
            second = Some(Peer::relay(BACKEND, &socket)?);
        }
        Ok(())
    };
    let mut held = 0;
    let took = hold(first.port(), count, halfway, || {
        held = first.memory()?;
        Ok(())
    })?;
    let processes = match &second {
        Some(second) => {
            held += second.memory()?;
            2
        }
        None => 1,
    };
    let each = held.saturating_sub(processes * idle) * 1024 / count as u64;
    println!(
        "{count} connections held: {} MB resident in {processes} process(es), {each} bytes for each",
        held / 1024
    );
    let restart = if processes == 2 {
        ", with a restart half way"
    } else {
        ""
    };
    println!("opened, asked twice and answered in {took:.1?}{restart}");
    Ok(())
}

fn raise_file_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).context("raise the limit on open files")
}
