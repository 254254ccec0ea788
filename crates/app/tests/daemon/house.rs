//! A node of its own for each test: a namespace, an API server inside it, and the program.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) use ferry_lab::api::objects::service;
use ferry_lab::api::{Api, default_objects, objects};
use ferry_lab::netns::Namespace;
use serde_json::Value;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What every daemon gets: a namespace cannot set the conntrack table's size.
const ARGS: &[&str] = &[
    "--hostname-override=node-a",
    "--cluster-cidr=10.244.0.0/16",
    "--conntrack-max-per-core=0",
    "--conntrack-tcp-timeout-established=0",
    "--conntrack-tcp-timeout-close-wait=0",
    "--oom-score-adj=0",
    "--iptables-min-sync-period=0s",
    "-v=2",
];

pub(crate) struct House {
    pub(crate) node: Namespace,
    pub(crate) api: Api,
    pub(crate) dir: tempfile::TempDir,
}

impl House {
    pub(crate) fn build(label: &str) -> Self {
        let node = Namespace::new(label).unwrap();
        node.ip("link set lo up\naddr add 192.0.2.10/32 dev lo").unwrap();
        let api = Api::start_in(&node, 0).unwrap();
        api.apply(default_objects()).unwrap();
        Self {
            node,
            api,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("ferry.sock")
    }

    /// The program inside, with these arguments alone.
    pub(crate) fn program(&self, args: &[&str]) -> Command {
        self.program_as(&[env!("CARGO_BIN_EXE_ferry")], args)
    }

    pub(crate) fn program_as(&self, prefix: &[&str], args: &[&str]) -> Command {
        let mut command = self.node.command(prefix[0]);
        command.args(&prefix[1..]).args(args).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.program(args).output().unwrap()
    }

    /// The daemon in nftables mode, following the API server, with these arguments on top.
    pub(crate) fn daemon(&self, args: &[&str]) -> Daemon<'_> {
        self.daemon_in("nftables", args)
    }

    /// The same in another mode.
    pub(crate) fn daemon_in(&self, mode: &str, args: &[&str]) -> Daemon<'_> {
        self.daemon_as(&[env!("CARGO_BIN_EXE_ferry")], mode, args)
    }

    /// The same, begun by these words, of which the program is the last.
    pub(crate) fn daemon_as(&self, prefix: &[&str], mode: &str, args: &[&str]) -> Daemon<'_> {
        let mode = format!("--proxy-mode={mode}");
        let kubeconfig = self.api.kubeconfig(self.dir.path()).unwrap();
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let mut all = vec![mode.as_str(), kubeconfig.as_str()];
        all.extend(ARGS);
        all.extend(args);
        self.spawn(self.program_as(prefix, &all))
    }

    /// The daemon with these arguments, the status socket and nothing else.
    pub(crate) fn start(&self, args: &[&str]) -> Daemon<'_> {
        self.spawn(self.program(args))
    }

    fn spawn(&self, mut command: Command) -> Daemon<'_> {
        let log = self.path("log");
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = command
            .arg(format!("--status-socket={}", self.socket().display()))
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Daemon { house: self, child }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub(crate) fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < PATIENCE, "waiting for {what}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for an event with this reason.
    pub(crate) fn wait_event(&self, reason: &str) -> serde_json::Value {
        let mut found = None;
        self.wait(&format!("the event {reason}"), || {
            found = self
                .api
                .events()
                .into_iter()
                .find(|event| event["reason"] == reason);
            found.is_some()
        });
        found.unwrap()
    }

    /// A GET inside the namespace: status and body.
    pub(crate) fn get(&self, at: (&str, u16), path: &str) -> Option<(u16, String)> {
        let at = SocketAddr::new(at.0.parse::<IpAddr>().unwrap(), at.1);
        let asked = self.node.run(|| -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        });
        let text = asked.unwrap().ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    pub(crate) fn healthz(&self) -> Option<u16> {
        self.get(("127.0.0.1", 10256), "/healthz")
            .map(|(status, _)| status)
    }

    /// The value of a series by its full name.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let (_, page) = self.get(("127.0.0.1", 10249), "/metrics")?;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
        line?.parse().ok()
    }

    pub(crate) fn status(&self) -> Option<Value> {
        let output = self.run(&[
            "status",
            "-o",
            "json",
            "--socket",
            self.socket().to_str().unwrap(),
        ]);
        serde_json::from_slice(&output.stdout).ok()
    }

    /// What a command says when it asks the daemon: its exit status, and what it printed.
    pub(crate) fn ask(&self, args: &[&str]) -> (i32, String) {
        let socket = self.socket();
        let mut all = vec![args[0], "--socket", socket.to_str().unwrap()];
        all.extend(&args[1..]);
        let output = self.run(&all);
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), said.into_owned())
    }

    /// Whether the kernel's table holds this text.
    pub(crate) fn table_holds(&self, text: &str) -> bool {
        self.node
            .sh("nft list table ip kube-proxy")
            .is_ok_and(|table| table.contains(text))
    }
}

pub(crate) struct Daemon<'a> {
    house: &'a House,
    child: Child,
}

impl Daemon<'_> {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn wait_synced(&mut self) {
        let start = Instant::now();
        let synced = |house: &House| {
            let both = ["IPv4", "IPv6"].map(|family| {
                house.metric(&format!(
                    "kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"{family}\"}}"
                ))
            });
            both.iter().all(Option::is_some)
        };
        while !synced(self.house) {
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "it ended:\n{}",
                self.house.log()
            );
            assert!(start.elapsed() < PATIENCE, "no sync:\n{}", self.house.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for it to end by itself.
    pub(crate) fn wait_end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(
                start.elapsed() < PATIENCE,
                "it did not end:\n{}",
                self.house.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn terminate(mut self) -> Option<i32> {
        self.signal(rustix::process::Signal::TERM);
        self.wait_end()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn load_balancer(name: &str, ip: &str, health_check: u16) -> Value {
    let mut object = service(name, ip);
    object["spec"]["type"] = "LoadBalancer".into();
    object["spec"]["externalTrafficPolicy"] = "Local".into();
    object["spec"]["healthCheckNodePort"] = health_check.into();
    object["spec"]["ports"][0]["nodePort"] = 30080.into();
    object
}

pub(crate) fn slice(service: &str, endpoint: &str) -> Value {
    objects::slice(&format!("{service}-1"), service, &[endpoint])
}
