//! A changed configuration file under a running daemon: refused when bad, in effect when good, and the data plane
//! notices neither.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use ferry_lab::netns::Namespace;
use ferry_lab::wait_until;

const SERVICES: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.0.5], conditions: {ready: true}}]
ports: [{name: "", port: 8080, protocol: TCP}]
"#;

fn config(sync_period: &str) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
         hostnameOverride: node-1\nnftables: {{syncPeriod: {sync_period}}}\n\
         conntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n\
         metricsBindAddress: 127.0.0.1:10249\nhealthzBindAddress: 127.0.0.1:10256\n"
    )
}

/// Puts a file in place as the kubelet does: a new directory, and the `..data` link swapped over to it.
fn publish(volume: &Path, version: u32, text: &str) {
    let directory = format!("..{version}");
    fs::create_dir(volume.join(&directory)).unwrap();
    fs::write(volume.join(&directory).join("config.conf"), text).unwrap();
    symlink(&directory, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    if version > 1 {
        fs::remove_dir_all(volume.join(format!("..{}", version - 1))).unwrap();
    }
}

struct Daemon {
    process: Child,
    log: std::path::PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Daemon {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

fn get(node: &Namespace, path: &str) -> Option<String> {
    node.run(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", 10249)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        stream
            .write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    })
    .unwrap()
}

#[test]
fn a_changed_config_map_is_checked_and_taken_without_touching_the_rules() {
    let node = Namespace::new("reload").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (volume, services) = (dir.path().join("volume"), dir.path().join("services"));
    fs::create_dir(&volume).unwrap();
    fs::create_dir(&services).unwrap();
    fs::write(services.join("all.yaml"), SERVICES).unwrap();
    publish(&volume, 1, &config("31s"));
    symlink("..data/config.conf", volume.join("config.conf")).unwrap();

    let log = dir.path().join("log");
    let mut daemon = Daemon {
        process: node
            .command(env!("CARGO_BIN_EXE_ferry"))
            .arg(format!("--config={}", volume.join("config.conf").display()))
            .arg(format!("--manifests={}", services.display()))
            .arg(format!("--status-socket={}", dir.path().join("sock").display()))
            .arg("-v2")
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap(),
        log,
    };
    let shows = |period: &str| {
        let wanted = format!(
            "\"nftables\":{{\"masqueradeBit\":14,\"masqueradeAll\":false,\"syncPeriod\":\"{period}\""
        );
        get(&node, "/configz").is_some_and(|body| body.contains(&wanted))
    };
    let rules = || node.sh("nft -a list ruleset").unwrap();
    let long = Duration::from_secs(60);
    assert!(wait_until(long, || shows("31s")), "{}", daemon.log());
    assert!(
        wait_until(long, || rules().contains("10.96.0.10")),
        "{}",
        daemon.log()
    );
    let before = rules();

    publish(&volume, 2, &config("-1s"));
    let refused = || {
        daemon
            .log()
            .contains("SyncPeriod: Invalid value: \\\"-1s\\\": must be greater than 0")
    };
    assert!(wait_until(long, refused), "{}", daemon.log());
    assert!(
        shows("31s"),
        "the old configuration stays in force\n{}",
        daemon.log()
    );

    publish(&volume, 3, &config("47s"));
    assert!(wait_until(long, || shows("47s")), "{}", daemon.log());
    assert!(
        daemon.process.try_wait().unwrap().is_none(),
        "it is still the same process\n{}",
        daemon.log()
    );
    let synced = || {
        get(&node, "/metrics").is_some_and(|body| body.contains("sync_proxy_rules_last_timestamp_seconds{"))
    };
    assert!(wait_until(long, synced), "{}", daemon.log());
    assert_eq!(
        rules(),
        before,
        "the rules and their handles are untouched\n{}",
        daemon.log()
    );

    let id = daemon.process.id();
    node.sh(&format!("kill -TERM {id}")).unwrap();
    let mut status = None;
    assert!(wait_until(long, || {
        status = daemon.process.try_wait().unwrap();
        status.is_some()
    }));
    assert!(status.unwrap().success(), "{status:?}\n{}", daemon.log());
    assert_eq!(rules(), before, "ending leaves the data plane in place");
}
