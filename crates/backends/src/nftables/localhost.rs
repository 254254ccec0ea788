//! Node ports on `::1`, for those who ask for them. The kernel translates connections to 127.0.0.1, once it is told
//! to route that network, but it never takes an answer for `::1` from a real interface. So the relay listens there and
//! passes everything on to the node port at the node's own address, where the rules do the rest.
//! TCP and UDP; connections outlive the node port as they would in the kernel.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ferry_model::{Action, Family, FrontendKey, FrontendKind, NodePorts, Plan, Protocol, Scope};

use crate::relay::{Access, Door, Pools, Port, Relay, Serving, Settings, listen};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A UDP client that is silent for so long is forgotten.
const UDP_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const UDP_CLIENTS: usize = 1024;

/// The node's own address is the one endpoint.
const TO_THE_NODE: Action = Action::Forward {
    scope: Scope::Cluster,
    masquerade: true,
};

/// A node port, and the address where the kernel serves it.
type Wanted = BTreeMap<(Protocol, u16), SocketAddr>;

/// The node ports that are answered.
#[derive(Debug, Default)]
pub(super) struct Relays {
    open: BTreeMap<(Protocol, u16), Opened>,
    relay: Option<Relay>,
}

#[derive(Debug)]
struct Opened {
    serving: Serving,
    port: Arc<Port>,
    target: SocketAddr,
}

/// The node ports of a plan that a client on this node can reach through `::1`.
pub(super) fn wanted(plan: &Plan) -> Wanted {
    let node = plan.node().family(Family::V6);
    let own = match &node.node_ports {
        NodePorts::All => node.node_ip,
        NodePorts::Only(addresses) => addresses.iter().copied().find(|address| !address.is_loopback()),
    };
    let Some(own) = own else { return Wanted::new() };
    plan.ports(Family::V6)
        .filter(|port| port.protocol() != Protocol::Sctp)
        .flat_map(|port| port.frontends(FrontendKind::LocalhostNodePort))
        .filter(|frontend| frontend.actions.node.scope().is_some())
        .filter_map(|frontend| match frontend.key {
            FrontendKey::NodePort(_, port, protocol) => Some(((protocol, port), SocketAddr::new(own, port))),
            FrontendKey::Address(..) => None,
        })
        .collect()
}

impl Relays {
    /// Opens what is wanted and closes what is not; tells what could not be opened.
    pub(super) fn set(&mut self, wanted: &Wanted) -> Vec<String> {
        for (_, opened) in self.open.extract_if(.., |key, _| !wanted.contains_key(key)) {
            if let Some(relay) = &self.relay {
                relay.stop(opened.serving);
            }
        }
        let mut warnings = Vec::new();
        for (&(protocol, port), &target) in wanted {
            match self.open.get_mut(&(protocol, port)) {
                Some(opened) if opened.target == target => {}
                // Those who are connected stay where they are.
                Some(opened) => {
                    opened.port.balancer.update(&pool(target), None);
                    opened.target = target;
                }
                None => match self.open(protocol, port, target) {
                    Ok(opened) => drop(self.open.insert((protocol, port), opened)),
                    Err(error) => warnings.push(format!(
                        "node port {port}/{protocol} is not answered on ::1: {error}"
                    )),
                },
            }
        }
        warnings
    }

    /// Sockets are opened here, on the caller's thread, and so in its network namespace.
    fn open(&mut self, protocol: Protocol, port: u16, target: SocketAddr) -> io::Result<Opened> {
        let relay = match &mut self.relay {
            Some(relay) => relay,
            none => none.insert(Relay::start(settings())?),
        };
        let listening = listen(protocol, SocketAddr::from((Ipv6Addr::LOCALHOST, port)))?;
        let port = Arc::new(Port::default());
        port.balancer.update(&pool(target), None);
        let door = Door::new(port.clone(), Access::open(TO_THE_NODE));
        let serving = relay.serve(listening, door, Vec::new())?;
        Ok(Opened {
            serving,
            port,
            target,
        })
    }
}

fn settings() -> Settings {
    Settings {
        threads: 1,
        max_sessions: UDP_CLIENTS,
        udp_idle: UDP_IDLE_TIMEOUT,
        dial: vec![CONNECT_TIMEOUT],
        drain: None,
        ..Settings::default()
    }
}

fn pool(target: SocketAddr) -> Pools {
    Pools {
        cluster: vec![target],
        local: Vec::new(),
        known: vec![target],
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn free_port() -> u16 {
        let socket = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        socket.local_addr().unwrap().port()
    }

    fn connect(port: u16) -> TcpStream {
        let client = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        client
    }

    #[test]
    fn a_node_port_follows_its_target_and_connections_stay() {
        let servers = [(); 2].map(|()| TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap());
        let [first, second] = servers.each_ref().map(|server| server.local_addr().unwrap());
        let key = (Protocol::Tcp, free_port());
        let mut relays = Relays::default();
        assert_eq!(relays.set(&Wanted::from([(key, first)])), [""; 0]);
        let mut old = connect(key.1);
        let (mut serving, _) = servers[0].accept().unwrap();
        assert_eq!(relays.set(&Wanted::from([(key, second)])), [""; 0]);
        let _new = connect(key.1);
        servers[1].accept().unwrap();

        // Closed at once for others, and not for those who are connected.
        assert_eq!(relays.set(&Wanted::new()), [""; 0]);
        TcpListener::bind((Ipv6Addr::LOCALHOST, key.1)).unwrap();
        serving.write_all(b"on").unwrap();
        let mut answer = [0; 2];
        old.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"on");
    }

    #[test]
    fn datagrams_go_there_and_back_and_a_taken_port_is_told() {
        let server = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        let key = (Protocol::Udp, free_port());
        let wanted = Wanted::from([(key, server.local_addr().unwrap())]);
        let taken = UdpSocket::bind((Ipv6Addr::LOCALHOST, key.1)).unwrap();
        let mut relays = Relays::default();
        let told = relays.set(&wanted);
        assert!(told[0].contains("is not answered on ::1"), "{told:?}");
        drop(taken);
        assert_eq!(relays.set(&wanted), [""; 0]);
        let client = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        }
        client.connect((Ipv6Addr::LOCALHOST, key.1)).unwrap();
        client.send(b"there").unwrap();
        let mut buffer = [0; 8];
        let (length, relay) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"there");
        server.send_to(b"back", relay).unwrap();
        let length = client.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"back");
    }
}
