//! A service in the lab's network, and whether it is served.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use ferry_lab::netns::{Answer, Network, Probe, Proto};

/// A service with an endpoint on the node.
pub const MANIFESTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4], ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.2], conditions: {ready: true}}]
";

/// A program that ends when this goes.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts it; what it says goes to the file.
    pub fn start(command: &mut Command, log: &std::path::Path) -> Result<Running> {
        let file = std::fs::File::create(log)?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        Ok(Running(command.spawn()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a client from outside comes to be answered by the service.
pub fn is_served(network: &Network) -> Result<bool> {
    let probe = Probe::new("client", "10.96.0.10".parse()?, 80, Proto::Tcp);
    let answered = || -> Result<bool> {
        let replies = network.replies(std::slice::from_ref(&probe))?;
        Ok(replies.iter().flatten().all(|reply| reply.answer == Answer::Ok))
    };
    Ok(ferry_lab::wait_until(Duration::from_secs(20), || {
        answered().unwrap_or_default()
    }))
}

/// A shell script, for arguments of `setpriv`: as a container has it, kernel parameters cannot be written.
pub const CONFINED: &str = r#"mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys || exit
exec setpriv "$@""#;

/// What `setpriv` is told so that a program has these capabilities (`NET_ADMIN` or `CAP_NET_ADMIN`) and can get no other.
pub fn confined_to<'a>(capabilities: impl IntoIterator<Item = &'a str>) -> [String; 3] {
    let kept: String = capabilities
        .into_iter()
        .map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    [
        "--no-new-privs".to_owned(),
        format!("--bounding-set=-all{kept}"),
        format!("--inh-caps=-all{kept}"),
    ]
}
