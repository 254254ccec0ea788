//! The `ferry` program, running on the lab's node.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use ferry_lab::netns::Namespace;
use ferry_lab::{at_most, patience};
use rustix::process::{Pid, Signal, kill_process};

const HEALTH: u16 = 10256;
const METRICS: u16 = 10249;
const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";

/// A running `ferry`. Dropping it kills the process; what it wrote into the kernel stays.
#[derive(Debug)]
pub struct Proxy {
    child: Child,
    log: PathBuf,
    namespace: PathBuf,
}

impl Proxy {
    /// Starts a program that takes kube-proxy's command line; what it says goes to the log file.
    pub fn start(node: &Namespace, program: &Path, args: &[String], log: PathBuf) -> Result<Proxy> {
        let file = File::options().create(true).append(true).open(&log)?;
        let child = node
            .command(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Proxy {
            child,
            log,
            namespace: node.path(),
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is healthy and has synced.
    pub fn wait_ready(&mut self) -> Result<()> {
        self.wait_ready_within(at_most(Duration::from_secs(30)))
    }

    pub fn wait_ready_within(&mut self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            if self.get(HEALTH, "/healthz").is_ok_and(|(code, _)| code == 200) && self.last_sync().is_some() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("ferry ended ({status}):\n{}", self.tail());
            }
            if Instant::now() > end {
                bail!("ferry had no first sync in time:\n{}", self.tail());
            }
            // asking costs, and an emulated machine has one processor for the asking and the starting
            std::thread::sleep(patience(Duration::from_millis(10)));
        }
    }

    /// Waits until it has synced after that moment, but not for ever: a change that changes nothing for the
    /// kernel needs no sync.
    pub fn wait_synced_since(&self, moment: SystemTime, limit: Duration) {
        let moment = moment
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        ferry_lab::wait_until(limit, || self.last_sync().is_some_and(|at| at >= moment));
    }

    fn last_sync(&self) -> Option<f64> {
        let (_, page) = self.get(METRICS, "/metrics").ok()?;
        let values = page.lines().filter(|l| l.starts_with(LAST_SYNC));
        let values = values.filter_map(|l| l.rsplit_once(' ')?.1.parse::<f64>().ok());
        // one line for each family: the family that is behind counts
        values
            .fold(None, |least: Option<f64>, v| Some(least.map_or(v, |l| l.min(v))))
            .filter(|v| *v > 0.0)
    }

    /// The sum of all series of a metric.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, page) = self.get(METRICS, "/metrics").ok()?;
        let values = page.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let rest = if rest.starts_with('{') {
                rest.rsplit_once('}')?.1
            } else {
                rest
            };
            rest.strip_prefix(' ')?.trim().parse::<f64>().ok()
        });
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// A GET of one of its own ports: status code and body.
    fn get(&self, port: u16, path: &str) -> Result<(u16, String)> {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let limit = Duration::from_secs(5);
        let namespace = &self.namespace;
        let text = std::thread::scope(|scope| {
            let thread = scope.spawn(|| -> Result<String> {
                ferry_lab::netns::enter(namespace)?;
                let mut stream = TcpStream::connect_timeout(&at, limit)?;
                stream.set_read_timeout(Some(limit))?;
                write!(stream, "GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n")?;
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let (head, body) = text.split_once("\r\n\r\n").context("no HTTP answer")?;
        let code = head
            .split(' ')
            .nth(1)
            .and_then(|c| c.parse().ok())
            .context("no status code")?;
        Ok((code, body.to_owned()))
    }

    /// Ends it as a service manager does, and waits.
    pub fn terminate(self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Result<ExitStatus> {
        let end = Instant::now() + at_most(Duration::from_secs(15));
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > end {
                bail!("ferry did not end:\n{}", self.tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("no process id")?;
        kill_process(pid, signal).context("cannot signal ferry")
    }

    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.ended()?.is_none())
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The end of what it logged.
    pub fn tail(&self) -> String {
        end_of(&self.log)
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }
}

/// The last lines of a file.
pub(crate) fn end_of(file: &Path) -> String {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `FERRY_BIN`, or the program that cargo built beside the test that runs.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("FERRY_BIN") {
        return Ok(path.into());
    }
    let me = std::env::current_exe()?;
    let beside = me
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("ferry"))
        .find(|path| path.is_file());
    beside.context("there is no ferry beside this test: `cargo build` first, or set FERRY_BIN")
}
