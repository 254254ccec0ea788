//! Signals: which end the daemon, and that nothing that hangs keeps it from ending.

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
fn a_credential_plugin_that_hangs_holds_up_nothing_and_ends_with_us() {
    let house = House::build("daemon-plugin");
    let pid = house.path("pid");
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"exec": {
            "command": "/bin/sh", "args": ["-c", "echo $$ > $MARK; exec sleep 300"],
            "env": [{"name": "MARK", "value": pid.display().to_string()}],
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        }}}],
    });
    std::fs::write(house.path("plugin.conf"), kubeconfig.to_string()).unwrap();
    let kubeconfig = format!("--kubeconfig={}", house.path("plugin.conf").display());
    let daemon = house.start(&[
        &kubeconfig,
        "--hostname-override=node-a",
        "--proxy-mode=nftables",
        "--conntrack-max-per-core=0",
        "-v=9",
    ]);
    house.wait("the plugin", || {
        pid.exists() && !std::fs::read(&pid).unwrap().is_empty()
    });
    let log = house.log();
    assert!(
        log.contains("Waiting for the credential plugin") && log.contains("/bin/sh"),
        "{log}"
    );
    assert!(!log.contains("sleep 300") && !log.contains("MARK"), "{log}");
    ends_within(daemon, Duration::from_secs(5));
    let stat = format!("/proc/{}/stat", std::fs::read_to_string(&pid).unwrap().trim());
    house.wait("the end of the plugin", || {
        std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    });
}
