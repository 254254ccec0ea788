//! Five hosts on one machine: a node, a client outside the cluster, and three pods on the node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use anyhow::{Context, Result};
use ferry_host::netns::Namespace;
use ferry_host::route::Route;
use ferry_host::sysctl::Sysctls;

const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);
const POD_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 1);
const POD_PORT: u16 = 8080;

#[derive(Debug)]
pub(super) struct Network {
    pub(super) node: Namespace,
    pub(super) client: Namespace,
    pub(super) pods: Vec<Pod>,
}

#[derive(Debug)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    pub(super) namespace: Namespace,
}

impl Network {
    pub(super) fn up() -> Result<Self> {
        let node = Namespace::new()?;
        let client = Namespace::new()?;
        node.run(|| -> Result<()> {
            Route::open()?.set_up("lo")?;
            Sysctls::default().ensure("net/ipv4/ip_forward", 1)?;
            Ok(())
        })??;
        cable(&node, "eth0", NODE, &client, CLIENT).context("wiring the client to the node")?;
        // Like any node it has a way out; without one the kernel would turn packets for services away before any rule.
        node.run(|| -> Result<()> {
            let mut route = Route::open()?;
            let index = route.set_up("eth0")?;
            route.add_route(ipnet::Ipv4Net::default().into(), index, Some(CLIENT.into()))?;
            Ok(())
        })??;
        let pods = (1..=3)
            .map(|number| Pod::up(&node, number))
            .collect::<Result<_>>()?;
        Ok(Network { node, client, pods })
    }
}

impl Pod {
    fn up(node: &Namespace, number: u8) -> Result<Self> {
        let name = format!("pod-{number}");
        let address = Ipv4Addr::new(10, 244, 1, 1 + number);
        let namespace = Namespace::new()?;
        cable(node, &format!("veth-{name}"), POD_GATEWAY, &namespace, address)
            .with_context(|| format!("wiring {name} to the node"))?;
        let listener = namespace.run(|| TcpListener::bind(SocketAddr::from((address, POD_PORT))))??;
        let greeting = name.clone();
        thread::spawn(move || serve(&listener, &greeting));
        Ok(Pod {
            name,
            address,
            namespace,
        })
    }
}

/// Answers every connection with the pod's name. Ends with the process.
fn serve(listener: &TcpListener, name: &str) {
    for connection in listener.incoming().flatten() {
        // A client that went away while we answered is none of our business.
        let _ = std::io::Write::write_all(&mut &connection, name.as_bytes());
    }
}

/// A cable from the node to another host, which sends everything through the node.
fn cable(node: &Namespace, device: &str, near: Ipv4Addr, host: &Namespace, far: Ipv4Addr) -> Result<()> {
    node.run(|| -> Result<()> {
        let mut route = Route::open()?;
        route.add_veth(device, "eth0", host)?;
        let index = route.set_up(device)?;
        route.add_address(index, near.into())?;
        route.add_route(IpAddr::from(far).into(), index, None)?;
        Ok(())
    })??;
    host.run(|| -> Result<()> {
        let mut route = Route::open()?;
        route.set_up("lo")?;
        let index = route.set_up("eth0")?;
        route.add_address(index, far.into())?;
        route.add_route(IpAddr::from(near).into(), index, None)?;
        route.add_route(ipnet::Ipv4Net::default().into(), index, Some(near.into()))?;
        Ok(())
    })?
}
