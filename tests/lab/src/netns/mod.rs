//! Network namespaces as hosts.
//!
//! Lives here: [`Namespace`], one host; [`Network`], the lab's fixed little network with servers that say who
//! asked; [`Probe`] and [`Outcome`], a question in packets and its answer. May touch only namespaces it made.
//! Always holds: names are unique to the process, and a namespace goes with its value, also after a panic.

mod network;
mod probe;
mod serve;
mod sockets;

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub use network::{HOST_PORTS, Network, PORTS, name_of};
pub use probe::{Answer, Outcome, Probe, Proto, Reply, Senders, summarise};
pub use serve::Servers;
pub use sockets::Sockets;

/// A network namespace of our own, reachable for other tools as `ip netns exec NAME`.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes one. The label is for people who look at `ip netns` while a test runs.
    pub fn new(label: &str) -> Result<Namespace> {
        let name = unused_name(label);
        ip(&["netns", "add", &name], "")?;
        let namespace = Namespace { name };
        namespace.ip(LOOPBACK_UP)?;
        Ok(namespace)
    }

    /// Makes one for each label, in one go; whoever sets them up brings their loopback up.
    fn make(labels: &[&str]) -> Result<Vec<Namespace>> {
        let names = labels.iter().map(|label| unused_name(label));
        let all: Vec<Namespace> = names.map(|name| Namespace { name }).collect();
        batch(&all, "add")?;
        Ok(all)
    }

    /// Removes them in one go, which costs the kernel little more than one of them.
    fn remove(all: Vec<Namespace>) -> Result<()> {
        batch(&all, "del")?;
        all.into_iter().for_each(std::mem::forget);
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from(RUN).join(&self.name)
    }

    /// Runs `f` on a thread of its own inside the namespace. A panic of `f` goes on in the caller.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.enter().map(|()| f()));
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread in, for good: for threads made for it.
    pub fn enter(&self) -> Result<()> {
        enter(&self.path())
    }

    /// A program that will run inside; its process id is the program's own.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a shell line inside and gives its output; an error has what it wrote to stderr.
    pub fn sh(&self, line: &str) -> Result<String> {
        let out = self
            .command("sh")
            .args(["-c", line])
            .stdin(Stdio::null())
            .output()?;
        if !out.status.success() {
            bail!(
                "{}: {line}: {}: {}",
                self.name,
                out.status,
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Lines for `ip -batch` inside, such as `addr add 192.0.2.1/24 dev eth0`.
    pub fn ip(&self, lines: &str) -> Result<()> {
        ip(&["-n", &self.name, "-batch", "-"], lines)
    }

    /// Writes a sysctl of the namespace, such as `net.ipv4.ip_forward`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.sysctls(&[(key, value)])
    }

    /// Writes several sysctls of the namespace.
    pub fn sysctls(&self, all: &[(&str, &str)]) -> Result<()> {
        self.run(|| all.iter().try_for_each(|(key, value)| write_sysctl(key, value)))?
            .with_context(|| self.name.clone())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(e) = ip(&["netns", "del", &self.name], "") {
            eprintln!("cannot remove namespace {}: {e:#}", self.name);
        }
    }
}

const LOOPBACK_UP: &str = "link set lo up";
const PREFIX: &str = "ferry-";
const RUN: &str = "/run/netns";

fn unused_name(label: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    sweep();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{count}-{label}", std::process::id())
}

fn batch(all: &[Namespace], verb: &str) -> Result<()> {
    let lines: Vec<String> = all.iter().map(|n| format!("netns {verb} {}\n", n.name)).collect();
    ip(&["-batch", "-"], &lines.concat())
}

/// Writes a sysctl of the calling thread's namespace.
fn write_sysctl(key: &str, value: &str) -> Result<()> {
    let path = PathBuf::from("/proc/sys").join(key.replace('.', "/"));
    std::fs::write(&path, value).with_context(|| format!("cannot write {key}={value}"))
}

/// Once per process: removes what test processes that were killed could not.
fn sweep() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let Ok(entries) = std::fs::read_dir(RUN) else {
            return;
        };
        for name in entries.flatten().filter_map(|e| e.file_name().into_string().ok()) {
            let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
            let Some(pid) = owner.and_then(|pid| pid.parse::<u32>().ok()) else {
                continue;
            };
            if !PathBuf::from(format!("/proc/{pid}")).exists() {
                drop(Namespace { name });
            }
        }
    });
}

/// Moves the calling thread into the namespace at that path, for good.
pub fn enter(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter {} (tests need root)", path.display()))
}

fn ip(args: &[&str], stdin: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run ip (Debian package iproute2)")?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(stdin.as_bytes())?;
    }
    let out = child.wait_with_output()?;
    if !out.status.success() {
        bail!(
            "ip {}: {}\n{stdin}",
            args.join(" "),
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(())
}
