//! Node ports on `::1`, for those who ask for them. The kernel translates connections to 127.0.0.1, once it is told
//! to route that network, but it never takes an answer for `::1` from a real interface. So a small relay listens
//! there and passes everything on to the node port at the node's own address, where the rules do the rest.
//! TCP and UDP; connections outlive the node port as they would in the kernel.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ferry_model::{Family, NodePorts, Plan, Protocol};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const CONNECT: Duration = Duration::from_secs(5);
/// A UDP client that is silent for so long is forgotten.
const UDP_IDLE: Duration = Duration::from_secs(60);
const UDP_CLIENTS: usize = 1024;
/// Datagrams that wait for their client's socket.
const UDP_QUEUE: usize = 64;
const LARGEST_DATAGRAM: usize = 65_536;
/// After a failure to accept, which is nearly always a lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A node port, and the address where the kernel serves it.
type Wanted = BTreeMap<(Protocol, u16), SocketAddr>;

/// The relays that are open.
#[derive(Debug, Default)]
pub(super) struct Relays {
    runtime: Option<Runtime>,
    open: BTreeMap<(Protocol, u16), Relay>,
}

#[derive(Debug)]
struct Relay {
    target: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.open.clear();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The node ports of a plan that a client on this node can reach through `::1`.
pub(super) fn wanted(plan: &Plan) -> Wanted {
    let node = plan.node().family(Family::V6);
    let own = match &node.node_ports {
        NodePorts::All => node.node_ip,
        NodePorts::Only(addresses) => addresses.iter().copied().find(|address| !address.is_loopback()),
    };
    let Some(own) = own.filter(|_| node.localhost_node_ports) else {
        return Wanted::new();
    };
    plan.ports(Family::V6)
        .filter(|port| port.has_endpoints && port.protocol() != Protocol::Sctp)
        .filter_map(|port| {
            Some((
                (port.protocol(), port.node_port?),
                SocketAddr::new(own, port.node_port?),
            ))
        })
        .collect()
}

impl Relays {
    /// Opens what is wanted and closes what is not; tells what could not be opened.
    pub(super) fn set(&mut self, wanted: &Wanted) -> Vec<String> {
        self.open
            .retain(|key, relay| wanted.get(key) == Some(&relay.target));
        let mut warnings = Vec::new();
        for (&(protocol, port), &target) in wanted {
            if self.open.contains_key(&(protocol, port)) {
                continue;
            }
            match self.relay(protocol, port, target) {
                Ok(relay) => drop(self.open.insert((protocol, port), relay)),
                Err(error) => warnings.push(format!(
                    "node port {port}/{protocol} is not answered on ::1: {error}"
                )),
            }
        }
        warnings
    }

    /// Sockets are opened here, on the caller's thread, and so in its network namespace.
    fn relay(&mut self, protocol: Protocol, port: u16, target: SocketAddr) -> io::Result<Relay> {
        let runtime = match &mut self.runtime {
            Some(runtime) => runtime,
            none => none.insert(
                tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .thread_name("localhost-relay")
                    .enable_all()
                    .build()?,
            ),
        };
        let at = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        let _inside = runtime.enter();
        let task = match protocol {
            Protocol::Udp => {
                let socket = std::net::UdpSocket::bind(at)?;
                socket.set_nonblocking(true)?;
                runtime.spawn(relay_udp(Arc::new(UdpSocket::from_std(socket)?), target))
            }
            Protocol::Tcp | Protocol::Sctp => {
                let listener = std::net::TcpListener::bind(at)?;
                listener.set_nonblocking(true)?;
                runtime.spawn(relay_tcp(TcpListener::from_std(listener)?, target))
            }
        };
        Ok(Relay { target, task })
    }
}

async fn relay_tcp(listener: TcpListener, target: SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((mut client, _)) => {
                tokio::spawn(async move {
                    if let Ok(Ok(mut server)) = timeout(CONNECT, TcpStream::connect(target)).await {
                        // How a connection ends is between its ends.
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn relay_udp(socket: Arc<UdpSocket>, target: SocketAddr) {
    let mut clients: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>> = HashMap::new();
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let datagram = buffer[..length].to_vec();
        let known = clients.get(&client).filter(|queue| !queue.is_closed());
        let queue = match known {
            Some(queue) => queue,
            None => {
                clients.retain(|_, queue| !queue.is_closed());
                if clients.len() >= UDP_CLIENTS {
                    continue;
                }
                let (queue, waiting) = mpsc::channel(UDP_QUEUE);
                tokio::spawn(serve_udp(Arc::clone(&socket), client, target, waiting));
                clients.entry(client).insert_entry(queue).into_mut()
            }
        };
        // A full queue loses datagrams, as networks do.
        let _ = queue.try_send(datagram);
    }
}

/// One client's datagrams, there and back, until it has been silent for a while.
async fn serve_udp(
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    target: SocketAddr,
    mut waiting: mpsc::Receiver<Vec<u8>>,
) {
    let Ok(server) = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await else {
        return;
    };
    if server.connect(target).await.is_err() {
        return;
    }
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    loop {
        tokio::select! {
            datagram = waiting.recv() => match datagram {
                Some(datagram) => drop(server.send(&datagram).await),
                None => return,
            },
            answer = server.recv(&mut buffer) => {
                if let Ok(length) = answer {
                    drop(socket.send_to(&buffer[..length], client).await);
                }
            },
            () = tokio::time::sleep(UDP_IDLE) => return,
        }
    }
}
