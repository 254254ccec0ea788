//! The proxies under test, each as processes of its own with the same backend behind it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

const FRONTEND: u16 = 7100;
/// Of /proc/*/stat, per second: the same on every Linux.
const TICKS: u64 = 100;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No proxy at all.
    Direct,
    Ferry,
    Haproxy,
    HaproxySplice,
    Nginx,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Direct => "direct",
            Kind::Ferry => "ferry",
            Kind::Haproxy => "haproxy",
            Kind::HaproxySplice => "haproxy splice",
            Kind::Nginx => "nginx stream",
        }
    }

    pub(crate) fn is_peer(self) -> bool {
        matches!(self, Kind::Haproxy | Kind::HaproxySplice | Kind::Nginx)
    }
}

/// A running proxy; ended with the value.
pub(crate) struct Peer {
    child: Option<Child>,
    port: u16,
    _files: TempDir,
}

impl Peer {
    pub(crate) fn backend(port: u16) -> Result<Peer> {
        Peer::spawn(
            Some(ourselves(&["role", "backend", &port.to_string()])?),
            port,
            tempfile::tempdir()?,
        )
    }

    pub(crate) fn start(kind: Kind, port: u16, backend: u16) -> Result<Peer> {
        let files = tempfile::tempdir()?;
        let command = match kind {
            Kind::Direct => return Peer::spawn(None, backend, files),
            Kind::Ferry => {
                let to = SocketAddr::from((Ipv4Addr::LOCALHOST, backend)).to_string();
                ourselves(&["role", "relay", &port.to_string(), &to])?
            }
            Kind::Haproxy => haproxy(&files, port, backend, "")?,
            Kind::HaproxySplice => haproxy(
                &files,
                port,
                backend,
                "option splice-request\n  option splice-response",
            )?,
            Kind::Nginx => nginx(&files, port, backend)?,
        };
        Peer::spawn(Some(command), port, files)
    }

    /// A relay that takes over from the one that serves at the same unix socket, if there is one.
    pub(crate) fn relay(backend: u16, handover: &Path) -> Result<Peer> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, backend)).to_string();
        let mut command = ourselves(&["role", "relay", &FRONTEND.to_string(), &to])?;
        command.arg(handover).stdout(Stdio::piped());
        let mut peer = Peer::spawn(Some(command), FRONTEND, tempfile::tempdir()?)?;
        // It says when it serves: before that, the port answers because the other one does.
        let output = peer
            .child
            .as_mut()
            .and_then(|child| child.stdout.take())
            .context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        if line.trim() != "serving" {
            bail!("a relay said {line:?} instead of serving");
        }
        Ok(peer)
    }

    fn spawn(command: Option<Command>, port: u16, files: TempDir) -> Result<Peer> {
        let child = match command {
            Some(mut command) => {
                let name = command.get_program().to_string_lossy().into_owned();
                Some(
                    command
                        .stdin(Stdio::null())
                        .spawn()
                        .with_context(|| format!("start {name}"))?,
                )
            }
            None => None,
        };
        let mut peer = Peer {
            child,
            port,
            _files: files,
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = peer
                .child
                .as_mut()
                .and_then(|child| child.try_wait().ok().flatten())
            {
                bail!("a process of the benchmark ended with {status}");
            }
            if Instant::now() > deadline {
                bail!("nobody listens on port {port}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(peer)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The process and its children.
    fn processes(&self) -> Result<Vec<u32>> {
        let Some(child) = &self.child else {
            return Ok(Vec::new());
        };
        let id = child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let mut all = vec![id];
        for word in children.split_whitespace() {
            all.push(word.parse()?);
        }
        Ok(all)
    }

    /// Processor time used so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut ticks = 0;
        for id in self.processes()? {
            let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
            let after = stat.rsplit(')').next().unwrap_or_default();
            let fields: Vec<&str> = after.split_whitespace().collect();
            for field in [11, 12] {
                ticks += fields.get(field).context("a short stat line")?.parse::<u64>()?;
            }
        }
        Ok(Duration::from_millis(ticks * 1000 / TICKS))
    }

    /// Resident memory in kilobytes.
    pub(crate) fn memory(&self) -> Result<u64> {
        let mut sum = 0;
        for id in self.processes()? {
            let status = fs::read_to_string(format!("/proc/{id}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let number = line
                .and_then(|line| line.split_whitespace().next())
                .context("no VmRSS")?;
            sum += number.parse::<u64>()?;
        }
        Ok(sum)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let processes = self.processes().unwrap_or_default();
        if let Some(child) = &mut self.child {
            // The parent first: it would replace its workers.
            for id in &processes {
                if let Some(id) = rustix::process::Pid::from_raw(*id as i32) {
                    let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
                }
            }
            let _ = child.wait();
            // Their port is free when the last of them is gone.
            let alive = |id: &u32| fs::exists(format!("/proc/{id}")).unwrap_or_default();
            while processes.iter().any(alive) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn ourselves(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdout(Stdio::null());
    Ok(command)
}

fn haproxy(files: &TempDir, port: u16, backend: u16, option: &str) -> Result<Command> {
    let config = files.path().join("haproxy.cfg");
    let text = format!(
        "global\n  nbthread 2\n  maxconn 4000\n  tune.bufsize 65536\n  tune.pipesize 262144\n\
         defaults\n  mode tcp\n  {option}\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n\
         listen relay\n  bind 127.0.0.1:{port} backlog 4096\n  server one 127.0.0.1:{backend}\n"
    );
    fs::write(&config, text)?;
    let mut command = Command::new("haproxy");
    command.args(["-db", "-f"]).arg(config).stdout(Stdio::null());
    Ok(command)
}

fn nginx(files: &TempDir, port: u16, backend: u16) -> Result<Command> {
    let (config, home) = (files.path().join("nginx.conf"), files.path().display());
    let text = format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n\
         worker_processes 2;\nworker_rlimit_nofile 19000;\ndaemon off;\npid {home}/nginx.pid;\nerror_log {home}/error.log;\n\
         events {{ worker_connections 16000; }}\n\
         stream {{\n  access_log off;\n  tcp_nodelay on;\n  proxy_buffer_size 64k;\n  upstream one {{ server 127.0.0.1:{backend}; }}\n\
         server {{ listen 127.0.0.1:{port} backlog=4096; proxy_pass one; }}\n}}\n"
    );
    fs::write(&config, text)?;
    let mut command = Command::new("nginx");
    command
        .arg("-c")
        .arg(config)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok(command)
}
