//! The image, run as the manifests say: read-only, under the seccomp profile, with exactly the capabilities that are
//! asked for, on the node of the lab's network, where a client must be answered.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use ferry_deploy::{Mode, Pod, User, bundle, is_served};

/// Prepares the node, as the init container does.
fn set_up(pod: &Pod) {
    let set_up = pod.run(pod.set_up().unwrap()).unwrap();
    assert!(
        set_up.status.success(),
        "{}",
        String::from_utf8_lossy(&set_up.stderr)
    );
}

fn serves(pod: &Pod, user: User) {
    set_up(pod);
    let started = pod.start(pod.main().unwrap(), user).unwrap();
    assert!(is_served(&pod.network).unwrap(), "{}", pod.said());
    assert_eq!(started.status("Seccomp").unwrap(), "2", "the profile is in force");
    assert_eq!(started.status("NoNewPrivs").unwrap(), "1");
}

/// Whether programs of this flavour show our rules.
fn has_rules(pod: &Pod, save: &str) -> bool {
    let out = pod.network.node().command(save).output().unwrap();
    String::from_utf8_lossy(&out.stdout).contains("-j KUBE-SERVICES")
}

#[test]
fn nftables_mode_serves() {
    serves(&Pod::of(Mode::Nftables).unwrap(), User::Root);
}

/// Kubernetes gives a process that is not root no capabilities (it has no ambient ones), other runtimes do.
#[test]
fn nftables_mode_needs_no_root() {
    serves(&Pod::of(Mode::Nftables).unwrap(), User::Other(65532));
}

#[test]
fn iptables_mode_serves_with_nf_tables_where_nobody_has_said_otherwise() {
    let pod = Pod::of(Mode::Iptables).unwrap();
    serves(&pod, User::Root);
    assert!(has_rules(&pod, "iptables-nft-save") && !has_rules(&pod, "iptables-legacy-save"));
}

#[test]
fn iptables_mode_speaks_the_flavour_of_the_kubelet() {
    let pod = Pod::of(Mode::Iptables).unwrap();
    let hint = "iptables-legacy -t mangle -N KUBE-IPTABLES-HINT";
    pod.network.node().sh(hint).unwrap();
    serves(&pod, User::Root);
    assert!(has_rules(&pod, "iptables-legacy-save") && !has_rules(&pod, "iptables-nft-save"));
}

#[test]
fn userspace_mode_serves_with_the_flavour_of_most_rules() {
    let pod = Pod::of(Mode::Userspace).unwrap();
    pod.network
        .node()
        .sh("iptables-legacy -A INPUT -j ACCEPT")
        .unwrap();
    serves(&pod, User::Root);
    let out = pod.network.node().command("iptables-legacy-save").output();
    assert!(String::from_utf8_lossy(&out.unwrap().stdout).contains("10.96.0.10"));
}

/// It is told, and the documentation has the words.
fn says(pod: &Pod, words: &str) {
    let told = ferry_lab::wait_until(Duration::from_secs(20), || pod.said().contains(words));
    assert!(told, "{}", pod.said());
    let docs = ferry_deploy::repository().join("docs/install.md");
    let docs = fs::read_to_string(docs).unwrap();
    assert!(docs.contains(words), "docs/install.md does not say {words:?}");
}

#[test]
fn without_the_directory_for_its_socket_it_serves_and_says_so() {
    let pod = Pod::of(Mode::Nftables).unwrap();
    set_up(&pod);
    let pod = pod.without("run");
    let started = pod.start(pod.main().unwrap(), User::Root).unwrap();
    assert!(is_served(&pod.network).unwrap(), "{}", pod.said());
    says(
        &pod,
        "No status socket yet, so no `ferry status`; --status-socket names another place",
    );
    drop(started);
}

#[test]
fn without_the_lock_the_legacy_kind_of_iptables_does_nothing() {
    let pod = Pod::of(Mode::Iptables).unwrap();
    set_up(&pod);
    let pod = pod.without("xtables-lock");
    let hint = "iptables-legacy -t mangle -N KUBE-IPTABLES-HINT";
    pod.network.node().sh(hint).unwrap();
    let started = pod.start(pod.main().unwrap(), User::Root).unwrap();
    says(
        &pod,
        "can't open lock file /run/xtables.lock: Read-only file system",
    );
    drop(started);
}

/// A DaemonSet of kubeadm's needs no other change than the image.
#[test]
fn it_stands_in_for_the_image_of_kube_proxy() {
    let root = bundle().unwrap().join("rootfs");
    let link = fs::read_link(root.join("usr/local/bin/kube-proxy")).unwrap();
    assert_eq!(link.to_str(), Some("/usr/bin/ferry"));
}

#[test]
fn it_has_the_programs_that_are_needed_and_no_other() {
    let root = bundle().unwrap().join("rootfs");
    let mut found = BTreeSet::new();
    for directory in ["bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin"] {
        for entry in fs::read_dir(root.join(directory)).unwrap() {
            found.insert(entry.unwrap().file_name().into_string().unwrap());
        }
    }
    let mut wanted: BTreeSet<String> = ["ferry", "kube-proxy"].map(str::to_owned).into();
    wanted.extend(["kmod", "modprobe", "insmod", "lsmod", "modinfo"].map(str::to_owned));
    wanted.extend(["xtables-nft-multi", "xtables-legacy-multi"].map(str::to_owned));
    for name in ["iptables", "ip6tables"] {
        for flavour in ["nft", "legacy"] {
            let program = |end: &str| format!("{name}-{flavour}{end}");
            wanted.extend(["", "-save", "-restore"].map(program));
        }
    }
    assert_eq!(found, wanted);
}

/// What a scanner finds in the image is what the list of parts names.
#[test]
fn the_list_of_parts_has_every_package() {
    let root = bundle().unwrap().join("rootfs");
    let status = fs::read_to_string(root.join("var/lib/dpkg/status")).unwrap();
    let sbom = fs::read(root.join("usr/share/doc/ferry/sbom.spdx.json")).unwrap();
    let sbom: serde_json::Value = serde_json::from_slice(&sbom).unwrap();
    let parts: Vec<(&str, &str)> = sbom["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| (p["name"].as_str().unwrap(), p["versionInfo"].as_str().unwrap()))
        .collect();
    let mut packages = 0;
    for paragraph in status.split("\n\n").filter(|text| !text.trim().is_empty()) {
        let field = |key: &str| paragraph.lines().find_map(|line| line.strip_prefix(key));
        let package = (field("Package: ").unwrap(), field("Version: ").unwrap());
        assert!(parts.contains(&package), "{package:?}");
        packages += 1;
    }
    assert!(packages > 10);
    assert!(parts.contains(&("ferry-app", env!("CARGO_PKG_VERSION"))));
}
