//! A whole proxy on a node of its own, following a big cluster.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ferry_lab::api::Api;
use ferry_lab::api::generate::Cluster;
use ferry_lab::netns::Namespace;
use ferry_netns::Proxy;

use crate::process;
use crate::table::{Table, median, seconds};

/// What is done and timed.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) mode: &'a str,
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
    let mut figures: Vec<Figure> = Vec::new();

    let args = arguments(work.mode, &api, dir.path(), program)?;
    let begin = Instant::now();
    let mut proxy = Proxy::start(&node, program, &args, dir.path().join("log"))?;
    proxy.wait_ready_within(Duration::from_secs(900))?;
    figures.push((
        "start to everything in the kernel",
        seconds,
        begin.elapsed().as_secs_f64(),
    ));
    figures.push((
        "first sync, both families (its own metric)",
        seconds,
        proxy.metric(SYNC_SUM).unwrap_or(f64::NAN),
    ));
    figures.push(("CPU of it all", seconds, process::cpu_seconds(proxy.id())?));
    figures.push(("peak memory at start", megabytes, process::memory(proxy.id())?.1));

    let mut monitor = Monitor::start(&node)?;
    let mut changes = Changes {
        work,
        cluster,
        api: &api,
        proxy: &proxy,
        monitor: &mut monitor,
        generation: 0,
    };
    let replaced = changes.time(|cluster, i, generation| cluster.slice(i, generation))?;
    figures.push((
        "one endpoint replaced: API write to commit",
        seconds,
        replaced.wall,
    ));
    figures.push(("sync, both families (its own metric)", seconds, replaced.sync));
    figures.push(("CPU of it", seconds, replaced.cpu));
    let resized =
        changes.time(|cluster, i, generation| cluster.slice_of(i, cluster.endpoints + 1, generation))?;
    figures.push(("pool size changed: API write to commit", seconds, resized.wall));
    figures.push(("sync, both families (its own metric)", seconds, resized.sync));
    figures.push(("CPU of it", seconds, resized.cpu));
    let (now, peak) = process::memory(proxy.id())?;
    figures.push(("memory after all", megabytes, now));
    figures.push(("peak memory", megabytes, peak));
    Ok(figures)
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
    monitor: &'a mut Monitor,
    generation: u32,
}

/// Medians and means of one kind of change.
struct Times {
    wall: f64,
    sync: f64,
    cpu: f64,
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
            self.monitor.quiet()?;
            let begin = Instant::now();
            self.api.apply([object])?;
            walls.push(
                self.monitor
                    .next_commit(Duration::from_secs(60))?
                    .duration_since(begin)
                    .as_secs_f64(),
            );
        }
        self.monitor.quiet()?;
        let count = f64::from(self.work.changes);
        Ok(Times {
            wall: median(&mut walls),
            sync: (self.proxy.metric(SYNC_SUM).unwrap_or(f64::NAN) - sync) / count,
            cpu: (process::cpu_seconds(self.proxy.id())? - cpu) / count,
        })
    }
}

/// Sees nf_tables transactions when they are committed. iptables-nft writes there too.
struct Monitor {
    child: Child,
    commits: mpsc::Receiver<Instant>,
}

impl Monitor {
    fn start(node: &Namespace) -> Result<Monitor> {
        let mut child = node
            .command("nft")
            .arg("monitor")
            .stdout(Stdio::piped())
            .spawn()
            .context("nft monitor")?;
        let out = child.stdout.take().context("nft monitor has no output")?;
        let (tell, commits) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if line.starts_with("# new generation") && tell.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
        let monitor = Monitor { child, commits };
        monitor.wait_until_it_listens(node)?;
        Ok(monitor)
    }

    /// Makes small transactions of its own until one of them is seen. Not too often: each makes `nft monitor` begin
    /// anew with reading the table, which takes it seconds.
    fn wait_until_it_listens(&self, node: &Namespace) -> Result<()> {
        for _ in 0..12 {
            node.sh("nft add table bridge seen; nft delete table bridge seen")?;
            if self.commits.recv_timeout(Duration::from_secs(10)).is_ok() {
                return self.quiet();
            }
        }
        bail!("nft monitor reports nothing")
    }

    /// Waits until nothing has been committed for a moment.
    fn quiet(&self) -> Result<()> {
        for _ in 0..3000 {
            match self.commits.recv_timeout(Duration::from_millis(30)) {
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(()),
                Err(mpsc::RecvTimeoutError::Disconnected) => bail!("nft monitor ended"),
            }
        }
        bail!("transactions without end")
    }

    fn next_commit(&self, limit: Duration) -> Result<Instant> {
        self.commits.recv_timeout(limit).context("no commit in time")
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
