//! The program with exactly the privileges that the manifests give its container, on the node of the lab's network.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ferry_deploy::{CONFINED, MANIFESTS, Mode, Running, confined_to, ferry, is_served, kustomize, objects};
use ferry_lab::netns::Network;

#[derive(Clone, Copy, Debug)]
enum Iptables {
    Nft,
    Legacy,
}

/// The node with a program on it.
struct Node {
    network: Network,
    dir: tempfile::TempDir,
    mode: Mode,
    iptables: Iptables,
}

impl Node {
    fn up(mode: Mode, iptables: Iptables) -> Node {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("services")).unwrap();
        fs::write(dir.path().join("services/all.yaml"), MANIFESTS).unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        let multi = match iptables {
            Iptables::Nft => "/usr/sbin/xtables-nft-multi",
            Iptables::Legacy => "/usr/sbin/xtables-legacy-multi",
        };
        for name in ["iptables", "ip6tables"] {
            for end in ["", "-save", "-restore"] {
                let link = dir.path().join("bin").join(format!("{name}{end}"));
                std::os::unix::fs::symlink(multi, link).unwrap();
            }
        }
        let network = Network::up().unwrap();
        let node = Node {
            network,
            dir,
            mode,
            iptables,
        };
        let done = node
            .command("sh")
            .args(["-c", r#"exec "$@""#, "sh"])
            .args(node.line())
            .arg("--init-only")
            .output();
        let done = done.unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        node
    }

    fn command(&self, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap();
        let mut command = self.network.node().command(program);
        command.env(
            "PATH",
            format!("{}:{path}", self.dir.path().join("bin").display()),
        );
        command
    }

    fn line(&self) -> Vec<String> {
        let at = |name: &str| self.dir.path().join(name).to_string_lossy().into_owned();
        vec![
            ferry().unwrap().get_program().to_string_lossy().into_owned(),
            format!("--manifests={}", at("services")),
            format!("--status-socket={}", at("status.sock")),
            format!("--proxy-mode={}", self.mode.as_str()),
            "--hostname-override=node-a".to_owned(),
            "--conntrack-max-per-core=0".to_owned(),
        ]
    }

    fn start(&self, capabilities: &[&str]) -> Running {
        let mut command = self.command("unshare");
        command
            .args(["--mount", "sh", "-c", CONFINED, "sh"])
            .args(confined_to(capabilities.iter().copied()))
            .args(self.line());
        Running::start(&mut command, &self.log()).unwrap()
    }

    fn log(&self) -> std::path::PathBuf {
        self.dir.path().join("log")
    }

    fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }
}

/// What the overlay of the mode gives to the container that stays.
fn asked_for(mode: Mode) -> Vec<String> {
    let objects = objects(&kustomize(&format!("overlays/{}", mode.as_str())).unwrap()).unwrap();
    let pod = objects.daemons.spec.unwrap().template.spec.unwrap();
    let context = pod.containers[0].security_context.clone().unwrap();
    context.capabilities.unwrap().add.unwrap()
}

fn serves_as_installed(mode: Mode, iptables: Iptables) {
    let node = Node::up(mode, iptables);
    let asked_for = asked_for(mode);
    let asked_for: Vec<&str> = asked_for.iter().map(String::as_str).collect();
    let running = node.start(&asked_for);
    assert!(
        is_served(&node.network).unwrap(),
        "{mode:?} with {:?} iptables: {}",
        node.iptables,
        node.said()
    );
    drop(running);
}

fn says_what_is_missing(mode: Mode, iptables: Iptables, capabilities: &[&str], words: &str) {
    let node = Node::up(mode, iptables);
    let running = node.start(capabilities);
    let told = ferry_lab::wait_until(Duration::from_secs(20), || node.said().contains(words));
    assert!(told, "{mode:?} with {capabilities:?}: {}", node.said());
    drop(running);
    let in_the_docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/install.md");
    let docs = fs::read_to_string(in_the_docs).unwrap();
    assert!(docs.contains(words), "docs/install.md does not say {words:?}");
}

#[test]
fn nftables_mode_needs_net_admin_alone() {
    assert_eq!(asked_for(Mode::Nftables), ["NET_ADMIN"]);
    serves_as_installed(Mode::Nftables, Iptables::Nft);
    let words = "talking to nf_tables: the kernel refused the request: Operation not permitted";
    says_what_is_missing(Mode::Nftables, Iptables::Nft, &["NET_RAW"], words);
}

#[test]
fn iptables_mode_needs_net_raw_for_the_legacy_kind() {
    serves_as_installed(Mode::Iptables, Iptables::Nft);
    serves_as_installed(Mode::Iptables, Iptables::Legacy);
    let words = "iptables can't list the chain POSTROUTING of table nat";
    says_what_is_missing(Mode::Iptables, Iptables::Nft, &["NET_RAW"], words);
    says_what_is_missing(Mode::Iptables, Iptables::Legacy, &["NET_ADMIN"], words);
}

#[test]
fn userspace_mode_needs_what_iptables_needs() {
    serves_as_installed(Mode::Userspace, Iptables::Nft);
    serves_as_installed(Mode::Userspace, Iptables::Legacy);
    let words = "iptables-restore: unable to initialize table";
    says_what_is_missing(Mode::Userspace, Iptables::Legacy, &["NET_ADMIN"], words);
}

#[test]
fn without_the_set_up_kernel_parameters_are_missed() {
    let node = Node::up(Mode::Nftables, Iptables::Nft);
    // a namespace begins with the kernel's own value
    node.network
        .node()
        .sh("sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=432000")
        .unwrap();
    let running = node.start(&["NET_ADMIN"]);
    let words =
        "can't set sysctl net/netfilter/nf_conntrack_tcp_timeout_established to 86400: Read-only file system";
    let told = ferry_lab::wait_until(Duration::from_secs(20), || node.said().contains(words));
    assert!(told, "{}", node.said());
    drop(running);
}
