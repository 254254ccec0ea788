//! Everything a case needs: the network, the cluster, and `ferry` on the node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use ferry_lab::api::{Api, default_objects};
use ferry_lab::at_most;
use ferry_lab::netns::{Network, Outcome, Probe, Proto};
use serde_json::Value;
use tempfile::TempDir;

use crate::{Mode, Proxy, program};

/// How long after a change the packets may still disagree.
const SETTLE: Duration = Duration::from_secs(8);

/// Changes reach the kernel at once: what is tested is where packets go, not how updates are paced. And a
/// namespace may not change what is the whole machine's.
const FLAGS: [&str; 3] = [
    "--iptables-min-sync-period=0s",
    "--ipvs-min-sync-period=0s",
    "--conntrack-max-per-core=0",
];

/// What became of a start that was struck.
#[derive(Debug)]
pub enum Start {
    Ready,
    Ended(ExitStatus),
}

#[derive(Debug)]
pub struct Stage {
    // the order of fields is the order of going: the proxy first, the network last
    proxy: Option<Proxy>,
    api: Api,
    dir: TempDir,
    network: Network,
    mode: Mode,
    args: Vec<String>,
    kubeconfig: PathBuf,
    watches: usize,
}

impl Stage {
    /// A cluster with these objects beside the node, and `ferry` in sync with it.
    pub fn up(mode: Mode, args: &[String], objects: &[Value]) -> Result<Stage> {
        let mut stage = Stage::without_proxy(mode, args, objects)?;
        stage.start_proxy()?;
        stage.watches = stage.api.open_watches();
        Ok(stage)
    }

    /// The same, before `ferry` is started.
    pub fn without_proxy(mode: Mode, args: &[String], objects: &[Value]) -> Result<Stage> {
        let network = Network::up()?;
        let api = Api::start_in(network.node(), 0)?;
        api.apply(default_objects())?;
        api.apply(objects.iter().cloned())?;
        let dir = tempfile::tempdir()?;
        let kubeconfig = api.kubeconfig(dir.path())?;
        let args = args.iter().cloned().chain(FLAGS.map(str::to_owned)).collect();
        Ok(Stage {
            proxy: None,
            api,
            dir,
            network,
            mode,
            args,
            kubeconfig,
            watches: 0,
        })
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    /// One more server somewhere.
    pub fn listen(&mut self, host: &str, proto: Proto, at: SocketAddr) -> Result<()> {
        self.network.listen(host, proto, at)
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// A directory of this case's own.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn proxy(&mut self) -> Result<&mut Proxy> {
        self.proxy.as_mut().context("ferry is not running")
    }

    /// Starts `ferry` and waits for its first sync.
    pub fn start_proxy(&mut self) -> Result<()> {
        let mut proxy = self.launch(&program()?, &[])?;
        proxy.wait_ready()?;
        self.proxy = Some(proxy);
        Ok(())
    }

    /// The same, but the n-th of these system calls in each thread meets what strace calls an injection
    /// (`signal=SIGKILL`, `error=ENOBUFS`).
    pub fn start_struck(&mut self, calls: &str, injection: &str, n: u32) -> Result<Start> {
        let struck = self.struck_file();
        let tracer = [
            "-D".to_owned(),
            "-f".to_owned(),
            // its own threads, not the programs that it starts
            "-bexecve".to_owned(),
            "-qq".to_owned(),
            format!("-o{}", struck.display()),
            format!("-etrace={calls}"),
            format!("-einject={calls}:{injection}:when={n}"),
            program()?.display().to_string(),
        ];
        let mut proxy = self.launch(Path::new("strace"), &tracer)?;
        let ready = proxy.wait_ready();
        match (proxy.ended()?, ready) {
            (Some(status), _) => Ok(Start::Ended(status)),
            (None, ready) => {
                ready?;
                self.proxy = Some(proxy);
                Ok(Start::Ready)
            }
        }
    }

    /// Whether `ferry` still runs after that time; if not, it may be started again.
    pub fn lives_on(&mut self, time: Duration) -> Result<bool> {
        let died = ferry_lab::wait_until(time, || {
            self.proxy
                .as_mut()
                .is_none_or(|proxy| !proxy.is_running().unwrap_or(false))
        });
        if died {
            self.proxy = None;
        }
        Ok(!died)
    }

    /// Whether an injection of the last [`Stage::start_struck`] happened.
    pub fn was_struck(&self) -> Result<bool> {
        Ok(std::fs::read_to_string(self.struck_file())?.contains("(INJECTED)"))
    }

    fn struck_file(&self) -> PathBuf {
        self.dir.path().join("strace")
    }

    fn launch(&self, program: &Path, before: &[String]) -> Result<Proxy> {
        let dir = self.dir.path();
        let mut args = before.to_vec();
        args.extend([
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--proxy-mode={}", self.mode.as_str()),
            "--hostname-override=node-a".to_owned(),
            format!("--status-socket={}", dir.join("status.sock").display()),
        ]);
        args.extend(self.args.iter().cloned());
        Proxy::start(self.network.node(), program, &args, dir.join("ferry.log"))
    }

    /// Starts another `ferry` while the first one runs, waits until it has taken over, and returns the first.
    pub fn succeed_proxy(&mut self) -> Result<Proxy> {
        let first = self.proxy.take().context("ferry is not running")?;
        self.start_proxy()?;
        let id = self.proxy()?.id();
        self.wait_for_successor(id)?;
        Ok(first)
    }

    /// Waits until the process of that id answers at the status socket: a predecessor that has handed over does not.
    fn wait_for_successor(&self, id: u32) -> Result<()> {
        let mut status = self.network.node().command(program()?);
        status.args(["status", "--output=json"]);
        status.arg(format!(
            "--socket={}",
            self.dir.path().join("status.sock").display()
        ));
        let want = Value::from(id);
        let took_over = ferry_lab::wait_until(Duration::from_secs(20), || {
            let output = status.output().map(|output| output.stdout).unwrap_or_default();
            let report: Value = serde_json::from_slice(&output).unwrap_or_default();
            report["pid"] == want
        });
        if !took_over {
            bail!("process {id} never took over\n--- ferry's log\n{}", self.log());
        }
        Ok(())
    }

    /// Ends `ferry` with SIGTERM; the kernel keeps what it was told.
    pub fn stop_proxy(&mut self) -> Result<()> {
        let proxy = self.proxy.take().context("ferry is not running")?;
        let said = proxy.log().to_owned();
        let status = proxy.terminate()?;
        if !status.success() {
            bail!(
                "ferry ended with {status} after SIGTERM\n{}",
                crate::proxy::end_of(&said)
            );
        }
        Ok(())
    }

    /// Ends `ferry`, and starts it in another mode.
    pub fn switch(&mut self, mode: Mode) -> Result<()> {
        self.stop_proxy()?;
        self.mode = mode;
        self.start_proxy()
    }

    /// Ends `ferry` with SIGKILL.
    pub fn kill_proxy(&mut self) -> Result<()> {
        self.proxy.take().map(drop).context("ferry is not running")
    }

    /// Changes the cluster and lets `ferry` follow.
    pub fn change(&mut self, apply: &[Value], delete: &[Value]) -> Result<()> {
        let begin = SystemTime::now();
        self.api.apply(apply.iter().cloned())?;
        self.api.delete(delete)?;
        self.proxy()?.wait_synced_since(begin, Duration::from_secs(2));
        Ok(())
    }

    /// Waits until as many watches are open as after the start.
    pub fn wait_for_watches(&self) -> Result<()> {
        self.api.wait_for_watches(self.watches)
    }

    /// Sends the probes until their outcomes are as they should be, or time is up.
    pub fn expect(&mut self, probes: &[Probe], want: &[Outcome]) -> Result<()> {
        self.expect_by(probes, want, |outcome| outcome)
    }

    /// As [`Stage::expect`], comparing only what `view` leaves of an outcome.
    pub fn expect_by(
        &mut self,
        probes: &[Probe],
        want: &[Outcome],
        view: impl Fn(Outcome) -> Outcome,
    ) -> Result<()> {
        let end = std::time::Instant::now() + at_most(SETTLE);
        let want: Vec<Outcome> = want.iter().cloned().map(&view).collect();
        loop {
            let got: Vec<Outcome> = self.network.probe(probes)?.into_iter().map(&view).collect();
            if got == want {
                return Ok(());
            }
            if std::time::Instant::now() > end {
                let differences = want.iter().zip(&got).filter(|(w, g)| w != g);
                let lines: Vec<String> = differences
                    .map(|(w, g)| format!("want {w}\n     got {g}"))
                    .collect();
                bail!("{}\n--- ferry's log\n{}", lines.join("\n"), self.log());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Whether the last lines that were logged, by this `ferry` or one before it, have these words.
    pub fn said(&self, words: &str) -> bool {
        crate::proxy::end_of(&self.dir.path().join("ferry.log")).contains(words)
    }

    /// The end of what `ferry` logged.
    pub fn log(&self) -> String {
        self.proxy.as_ref().map(Proxy::tail).unwrap_or_default()
    }

    /// `ferry` must have lived through it all.
    pub fn finish(mut self) -> Result<()> {
        if !self.proxy()?.is_running()? {
            bail!("ferry died:\n{}", self.proxy()?.tail());
        }
        Ok(())
    }
}
