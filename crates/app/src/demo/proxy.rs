//! The proxy itself, as its own process in the node's namespace, and the manifests that it follows.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use anyhow::{Context, Result, bail};
use ferry_host::netns::Namespace;

use super::network::Pod;

const NODE_MANIFEST: &str = include_str!("../../../../examples/manifests/node.yaml");
const WEB_MANIFEST: &str = include_str!("../../../../examples/manifests/web.yaml");

/// A directory of its own that goes away with it.
#[derive(Debug)]
pub(super) struct Workplace {
    root: PathBuf,
}

impl Workplace {
    pub(super) fn new() -> Result<Self> {
        let root = env::temp_dir().join(format!("ferry-demo-{}", std::process::id()));
        fs::create_dir_all(root.join("manifests")).with_context(|| format!("making {}", root.display()))?;
        let workplace = Workplace { root };
        fs::write(workplace.manifests().join("node.yaml"), NODE_MANIFEST)?;
        Ok(workplace)
    }

    pub(super) fn manifests(&self) -> PathBuf {
        self.root.join("manifests")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.root.join("ferry.sock")
    }

    fn log(&self) -> PathBuf {
        self.root.join("ferry.log")
    }

    /// Puts these pods, and no others, behind the service: written aside and renamed, as a careful operator does.
    pub(super) fn serve_from(&self, pods: &[&Pod]) -> Result<()> {
        let (service_and_slice, _) = WEB_MANIFEST
            .split_once("endpoints:")
            .context("the example has no endpoints")?;
        let mut text = format!("{service_and_slice}endpoints:");
        if pods.is_empty() {
            text.push_str(" []\n");
        }
        for pod in pods {
            text.push_str(&format!(
                "\n  - addresses: [{}]\n    nodeName: node-a\n    conditions: {{ready: true}}\n",
                pod.address
            ));
        }
        let aside = self.root.join("web.yaml.new");
        fs::write(&aside, text)?;
        fs::rename(aside, self.manifests().join("web.yaml"))?;
        Ok(())
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        // What cannot be removed is a file in the temporary directory: not worth failing for at the very end.
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[derive(Debug)]
pub(super) struct Proxy {
    child: Child,
    log: PathBuf,
}

impl Proxy {
    pub(super) fn start(mode: &str, workplace: &Workplace, node: &Namespace) -> Result<Self> {
        let log = workplace.log();
        let output = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(env::current_exe().context("finding this program")?);
        command
            .arg(format!("--manifests={}", workplace.manifests().display()))
            .arg(format!("--status-socket={}", workplace.socket().display()))
            .arg(format!("--proxy-mode={mode}"))
            .args([
                "--hostname-override=node-a",
                "--cluster-cidr=10.244.0.0/16",
                "--conntrack-max-per-core=0",
            ])
            .args(["--iptables-min-sync-period=100ms", "--oom-score-adj=0", "-v=2"])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let child = node.run(|| command.spawn())?.context("starting the proxy")?;
        Ok(Proxy { child, log })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails, with the proxy's own words, if it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        bail!(
            "the proxy ended ({status}); its last words:\n{}",
            last_lines(&self.log)
        )
    }

    /// Asks it to end, and waits.
    pub(super) fn stop(&mut self) -> Result<()> {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            match rustix::process::kill_process(pid, rustix::process::Signal::TERM) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(errno) => return Err(io::Error::from(errno)).context("ending the proxy"),
            }
        }
        if self.wait_within(Duration::from_secs(10)).is_err() {
            self.child.kill()?;
            self.child.wait()?;
        }
        Ok(())
    }

    /// Waits for its end; an error if it is still there after that time.
    pub(super) fn wait_within(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!(
                    "the proxy did not end within {limit:?}; its last words:\n{}",
                    last_lines(&self.log)
                );
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub(super) fn wait(&mut self) -> Result<()> {
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The namespace goes away with it, so there is nothing to lose by force.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn last_lines(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
