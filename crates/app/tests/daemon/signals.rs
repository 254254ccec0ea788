//! Signals: which end the daemon, and that nothing that hangs keeps it from ending.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::house::{Daemon, House, service, slice};

/// Sends SIGTERM; the daemon must end with success within the time.
fn ends_within(daemon: Daemon<'_>, limit: Duration) {
    let start = Instant::now();
    assert_eq!(daemon.terminate(), Some(0));
    let took = start.elapsed();
    println!("ended after {took:?}");
    assert!(took < limit, "{took:?}");
}

#[test]
fn user_signals_mean_nothing() {
    let house = House::build("daemon-usr");
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    for signal in [Signal::USR1, Signal::USR2, Signal::USR1] {
        daemon.signal(signal);
    }
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    house.wait("a change", || house.table_holds("10.96.0.10"));
    assert_eq!(house.healthz(), Some(200));
    ends_within(daemon, Duration::from_secs(5));
}

#[test]
fn a_credential_plugin_that_hangs_does_not_keep_it_from_ending() {
    let house = House::build("daemon-plugin");
    let mark = house.path("started");
    let plugin = house.path("plugin");
    let script = format!("#!/bin/sh\ntouch {}\nexec sleep 20\n", mark.display());
    std::fs::write(&plugin, script).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "lab", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": plugin,
        }}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
    });
    let path = house.path("exec.conf");
    std::fs::write(&path, config.to_string()).unwrap();
    let daemon = house.start(&[
        "--proxy-mode=nftables",
        "--hostname-override=node-a",
        &format!("--kubeconfig={}", path.display()),
    ]);
    house.wait("the plugin", || mark.exists());
    ends_within(daemon, Duration::from_secs(6));
}
