//! ipvs mode with the privileges that the manifests give its container, and without each of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ferry_deploy::{CONFINED, MANIFESTS, Running, confined_to, is_served};
use ferry_lab::netns::Network;

use crate::cases::Case;

pub(crate) const CASES: &[Case] = &[("privileges::ipvs_mode_needs_what_iptables_needs", ipvs)];

fn ipvs() {
    let dir = PathBuf::from(format!("/tmp/privileges-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("services")).unwrap();
    std::fs::write(dir.join("services/all.yaml"), MANIFESTS).unwrap();
    let network = Network::up().unwrap();
    let set_up = network
        .node()
        .command(&line(&dir)[0])
        .args(&line(&dir)[1..])
        .arg("--init-only")
        .output()
        .unwrap();
    assert!(
        set_up.status.success(),
        "{}",
        String::from_utf8_lossy(&set_up.stderr)
    );
    let log = dir.join("log");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let start = |capabilities: &[&str]| {
        let mut command = network.node().command("unshare");
        confined(&mut command, capabilities).args(line(&dir));
        Running::start(&mut command, &log).unwrap()
    };
    let words = "iptables can't list the chain POSTROUTING of table nat";
    // the newer kind of iptables needs no raw socket
    let version = network.node().sh("iptables --version").unwrap();
    let missing = if version.contains("legacy") {
        vec!["NET_RAW", "NET_ADMIN"]
    } else {
        vec!["NET_RAW"]
    };
    for capability in missing {
        let running = start(&[capability]);
        let told = ferry_lab::wait_until(Duration::from_secs(20), || said().contains(words));
        assert!(told, "with {capability} alone: {}", said());
        drop(running);
    }
    let running = start(&["NET_ADMIN", "NET_RAW"]);
    assert!(is_served(&network).unwrap(), "{}", said());
    drop(running);
    std::fs::remove_dir_all(dir).unwrap();
}

fn confined<'a>(command: &'a mut Command, capabilities: &[&str]) -> &'a mut Command {
    command
        .args(["--mount", "sh", "-c", CONFINED, "sh"])
        .args(confined_to(capabilities.iter().copied()))
}

fn line(dir: &Path) -> Vec<String> {
    let own = std::env::current_exe().unwrap();
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    vec![
        own.with_file_name("ferry").to_string_lossy().into_owned(),
        format!("--manifests={}", at("services")),
        format!("--status-socket={}", at("status.sock")),
        "--proxy-mode=ipvs".to_owned(),
        "--hostname-override=node-a".to_owned(),
        "--conntrack-max-per-core=0".to_owned(),
    ]
}
