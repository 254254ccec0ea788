//! A whole proxy on a node of its own, following a big cluster.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ferry_lab::api::Api;
use ferry_lab::api::generate::Cluster;
use ferry_lab::netns::Namespace;
use ferry_netns::Proxy;

use crate::commits::Commits;
use crate::process;
use crate::programs::{Flavour, Programs};
use crate::table::{Table, median, seconds};

/// What is done and timed.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) mode: &'a str,
    pub(crate) iptables: Flavour,
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    pub(crate) changes: u32,
}

/// One row: what it is, how it is written, the value.
type Figure = (&'static str, fn(f64) -> String, f64);

pub(crate) fn bench(work: &Work<'_>, ferry: &Path, peer: Option<&Path>) -> Result<Table> {
    let ours = run(work, ferry).context("ferry")?;
    let theirs = peer
        .map(|program| run(work, program).context("the peer"))
        .transpose()?;
    let mut table = match peer {
        Some(_) => Table::new(&["", "ferry", "peer", "ratio"]),
        None => Table::new(&["", "ferry"]),
    };
    for (i, (what, show, value)) in ours.iter().enumerate() {
        let mut row = vec![(*what).to_owned(), show(*value)];
        if let Some((_, _, other)) = theirs.as_ref().and_then(|t| t.get(i)) {
            row.extend([show(*other), format!("{:.1}x", other / value)]);
        }
        table.row(row);
    }
    Ok(table)
}

pub(crate) fn megabytes(value: f64) -> String {
    format!("{value:.1} MB")
}

fn run(work: &Work<'_>, program: &Path) -> Result<Vec<Figure>> {
    let cluster = Cluster {
        services: work.services,
        endpoints: work.endpoints,
    };
    let node = Namespace::new("bench")?;
    node.ip("addr add 192.0.2.10/32 dev lo\naddr add 2001:db8:2::10/128 dev lo nodad")?;
    let api = Api::start_in(&node, 0)?;
    api.apply(cluster.objects())?;
    let dir = tempfile::tempdir()?;
    let programs = Programs::of(work.iptables)?;
    let args = arguments(work.mode, &api, dir.path(), program)?;
    let (program, args) = programs.around(program, args)?;
    let begin = Instant::now();
    let mut proxy = Proxy::start(&node, &program, &args, dir.path().join("log"))?;
    proxy.wait_ready_within(Duration::from_secs(900))?;
    let mut figures = started(&proxy, begin.elapsed())?;
    // What it still does after the first sync belongs to no change.
    std::thread::sleep(Duration::from_secs(2));
    let commits = match (work.mode, work.iptables) {
        ("iptables", Flavour::Legacy) => Commits::of_children(proxy.id()),
        _ => Commits::of_nf_tables(&node)?,
    };
    let mut changes = Changes {
        work,
        cluster,
        api: &api,
        proxy: &proxy,
        commits,
        generation: 0,
    };
    let replaced = changes.time(|cluster, i, generation| cluster.slice(i, generation))?;
    figures.extend(replaced.figures("one endpoint replaced: API write to commit"));
    let resized =
        changes.time(|cluster, i, generation| cluster.slice_of(i, cluster.endpoints + 1, generation))?;
    figures.extend(resized.figures("pool size changed: API write to commit"));
    let (now, peak) = process::memory(proxy.id())?;
    figures.push(("memory after all", megabytes, now));
    figures.push(("peak memory", megabytes, peak));
    Ok(figures)
}

fn started(proxy: &Proxy, took: Duration) -> Result<Vec<Figure>> {
    Ok(vec![
        ("start to everything in the kernel", seconds, took.as_secs_f64()),
        (
            "first sync, both families (its own metric)",
            seconds,
            proxy.metric(SYNC_SUM).unwrap_or(f64::NAN),
        ),
        ("CPU of it all", seconds, process::cpu_seconds(proxy.id())?),
        ("peak memory at start", megabytes, process::memory(proxy.id())?.1),
    ])
}

const SYNC_SUM: &str = "kubeproxy_sync_proxy_rules_duration_seconds_sum";

/// (seconds, peak MB) of `ferry plan`: from the start of the process to a whole plan, printed.
pub(crate) fn plan(program: &Path, services: u32, endpoints: u32) -> Result<(f64, f64)> {
    let node = Namespace::new("plan")?;
    node.ip("addr add 192.0.2.10/32 dev lo")?;
    let api = Api::start_in(&node, 0)?;
    api.apply(Cluster { services, endpoints }.objects())?;
    let dir = tempfile::tempdir()?;
    let config = api.kubeconfig(dir.path())?;
    let begin = Instant::now();
    let mut child = node
        .command(program)
        .args(["plan", "--hostname-override=node-a", "--proxy-mode=nftables"])
        .arg(format!("--kubeconfig={}", config.display()))
        .stdout(Stdio::null())
        .spawn()?;
    let mut peak = 0.0_f64;
    let status = loop {
        // the peak of a process can be read only while it lives
        peak = process::memory(child.id()).map_or(peak, |(_, now)| peak.max(now));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    if !status.success() {
        bail!("ferry plan: {status}");
    }
    Ok((begin.elapsed().as_secs_f64(), peak))
}

/// kube-proxy's own command line, unpaced; ferry is also kept off the status socket of the machine.
pub(crate) fn arguments(mode: &str, api: &Api, dir: &Path, program: &Path) -> Result<Vec<String>> {
    let mut args = vec![
        format!("--kubeconfig={}", api.kubeconfig(dir)?.display()),
        format!("--proxy-mode={mode}"),
        "--hostname-override=node-a".into(),
        "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48".into(),
        "--iptables-min-sync-period=0s".into(),
        "--iptables-sync-period=1h".into(),
        "--conntrack-max-per-core=0".into(),
    ];
    if program.file_name().is_some_and(|name| name == "ferry") {
        args.push("--status-socket=".into());
    }
    Ok(args)
}

struct Changes<'a> {
    work: &'a Work<'a>,
    cluster: Cluster,
    api: &'a Api,
    proxy: &'a Proxy,
    commits: Commits,
    generation: u32,
}

/// Medians and means of one kind of change.
struct Times {
    wall: f64,
    sync: f64,
    cpu: f64,
}

impl Times {
    fn figures(&self, what: &'static str) -> [Figure; 3] {
        [
            (what, seconds, self.wall),
            ("sync, both families (its own metric)", seconds, self.sync),
            ("CPU of it", seconds, self.cpu),
        ]
    }
}

impl Changes<'_> {
    /// Makes changes to one service after the other, each after the one before is in the kernel.
    fn time(&mut self, change: impl Fn(Cluster, u32, u32) -> ferry_lab::api::Object) -> Result<Times> {
        let cpu = process::cpu_seconds(self.proxy.id())?;
        let sync = self.proxy.metric(SYNC_SUM).unwrap_or(f64::NAN);
        let mut walls = Vec::new();
        for n in 0..self.work.changes.min(self.work.services) {
            self.generation += 1;
            let object = change(self.cluster, (n * 7919) % self.work.services, self.generation);
            self.commits.settle()?;
            let begin = Instant::now();
            self.api.apply([object])?;
            let committed = self.commits.next_change(Duration::from_secs(60))?;
            walls.push(committed.duration_since(begin).as_secs_f64());
        }
        let count = walls.len() as f64;
        Ok(Times {
            wall: median(&mut walls),
            sync: (self.proxy.metric(SYNC_SUM).unwrap_or(f64::NAN) - sync) / count,
            cpu: (process::cpu_seconds(self.proxy.id())? - cpu) / count,
        })
    }
}
