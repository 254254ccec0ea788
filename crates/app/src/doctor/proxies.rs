//! Others who serve the same services.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use ferry_host::route::Route;

use super::{Finding, Verdict};
use crate::config::Settings;
use crate::status;

/// A proxy, by its process or an interface that only it makes.
struct Other {
    name: &'static str,
    process: &'static str,
    interface: Option<&'static str>,
    verdict: Verdict,
    remedy: &'static str,
}

const OTHERS: [Other; 4] = [
    Other {
        name: "kube-proxy",
        process: "kube-proxy",
        interface: None,
        verdict: Verdict::Problem,
        remedy: "let one of the two serve this node: two proxies undo each other's rules. Where Ferry's DaemonSet has \
                 kube-proxy's name it replaces it; else delete the DaemonSet kube-proxy, or stop its unit",
    },
    Other {
        name: "kube-router",
        process: "kube-router",
        interface: Some("kube-dummy-if"),
        verdict: Verdict::Problem,
        remedy: "start kube-router with --run-service-proxy=false, and kube-router --cleanup-config once",
    },
    Other {
        name: "Cilium",
        process: "cilium-agent",
        interface: Some("cilium_host"),
        verdict: Verdict::Warning,
        remedy: "Cilium serves Services itself where its kubeProxyReplacement is on (cilium-dbg status says so): set \
                 kubeProxyReplacement=false, or do without Ferry",
    },
    Other {
        name: "k3s, which has a kube-proxy inside",
        process: "k3s-server",
        interface: None,
        verdict: Verdict::Warning,
        remedy: "start k3s' servers with --disable-kube-proxy, then its agents again",
    },
];

pub(super) fn all(settings: &Settings) -> Vec<Finding> {
    let running = processes(Path::new("/proc"));
    let interfaces = interfaces();
    let mut findings = found(&running, &interfaces);
    if let Some(finding) = own(settings) {
        findings.push(finding);
    } else if let Some(finding) = taken(settings) {
        findings.push(finding);
    }
    if findings.is_empty() {
        findings.push(Finding::ok("proxies", "no other proxy is to be seen"));
    }
    findings
}

fn found(running: &BTreeSet<String>, interfaces: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for other in &OTHERS {
        let how = if running.contains(other.process) {
            format!("the process {}", other.process)
        } else if let Some(interface) = other.interface.filter(|name| interfaces.contains(*name)) {
            format!("the interface {interface}")
        } else {
            continue;
        };
        let found = format!("{} is on this node: {how}", other.name);
        findings.push(Finding::bad("proxies", other.verdict, found, other.remedy));
    }
    findings
}

/// A ferry that runs already is who is asked about, and no obstacle.
fn own(settings: &Settings) -> Option<Finding> {
    let report = status::ask_status(settings.status_socket.as_deref()?).ok()?;
    let found = format!(
        "a ferry runs here in {} mode (process {})",
        report.mode, report.pid
    );
    if report.mode == settings.mode.as_str() {
        return Some(Finding::ok("proxies", found));
    }
    let remedy = "nothing, if it is to be replaced; else name its configuration with --config";
    Some(Finding::bad("proxies", Verdict::Note, found, remedy))
}

/// From inside a container other processes cannot be seen, but their ports can.
fn taken(settings: &Settings) -> Option<Finding> {
    let at = settings.healthz_bind_address?;
    let at = match at.ip() {
        ip if ip.is_unspecified() => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), at.port()),
        _ => at,
    };
    TcpStream::connect_timeout(&at, Duration::from_secs(1)).ok()?;
    Some(Finding::bad(
        "proxies",
        Verdict::Warning,
        format!("somebody answers at {at}, where the proxy's health is served: another proxy?"),
        "find out who: ss -ltnp; stop it, or choose another address with --healthz-bind-address",
    ))
}

/// The names of all processes that can be seen.
fn processes(proc: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let comm = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("comm")).ok());
    comm.map(|name| name.trim().to_owned()).collect()
}

fn interfaces() -> BTreeSet<String> {
    let links = Route::open().and_then(|mut route| route.links());
    let links = links.unwrap_or_default();
    links.into_iter().map(|link| link.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn others_are_known_by_their_processes_and_interfaces() {
        assert_eq!(found(&names(&["bash", "ferry"]), &names(&["lo", "eth0"])), []);
        let told = found(&names(&["kube-proxy"]), &names(&["cilium_host"]));
        let told: Vec<_> = told.iter().map(|f| (f.verdict, f.found.as_str())).collect();
        assert_eq!(
            told,
            [
                (
                    Verdict::Problem,
                    "kube-proxy is on this node: the process kube-proxy"
                ),
                (
                    Verdict::Warning,
                    "Cilium is on this node: the interface cilium_host"
                ),
            ]
        );
    }

    #[test]
    fn processes_go_by_the_name_that_the_kernel_has() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(proc.path().join("7")).unwrap();
        std::fs::write(proc.path().join("7/comm"), "kube-router\n").unwrap();
        std::fs::write(proc.path().join("uptime"), "1").unwrap();
        assert_eq!(processes(proc.path()), names(&["kube-router"]));
    }
}
