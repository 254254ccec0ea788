//! Services to plan, endpoints to reach, and a backend to apply the plan with.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ferry_backends::userspace::{Ingress, Options, Userspace};
use ferry_backends::{Alarm, Applied, Backend, Error};
use ferry_model::{
    DetectLocal, EndpointSlice, Event, Family, Host, Node, PlanOptions, Planner, Policy, Protocol, Service,
    ServiceName, ServicePort, ServiceType, SliceEndpoint, SliceName, SlicePort,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const NODE: &str = "node";

pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never came: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Does something at the end of a scope, also when a test fails in it.
pub(crate) struct OnDrop<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

pub(crate) fn silent() -> Alarm {
    Arc::new(|| {})
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A planner and the backend that follows it.
pub(crate) struct World {
    pub(crate) planner: Planner,
    pub(crate) backend: Userspace,
}

pub(crate) fn options(cluster: &str) -> PlanOptions {
    PlanOptions {
        node_name: NODE.into(),
        policy: Policy::userspace(),
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(vec![cluster.parse().unwrap()]),
        node_port_addresses: Vec::new(),
        bind_address: None,
        allow_external_ips: true,
    }
}

/// The planner of a node with these addresses.
pub(crate) fn planner(addresses: &[&str], cluster: &str) -> Planner {
    let mut planner = Planner::new(options(cluster));
    let addresses: Vec<IpAddr> = addresses.iter().map(|text| ip(text)).collect();
    let first = |v4: bool| {
        addresses
            .iter()
            .copied()
            .find(|ip| ip.is_ipv4() == v4 && !ip.is_loopback())
    };
    let node = Node {
        addresses: first(true).into_iter().chain(first(false)).collect(),
        eligible: true,
        ..Node::default()
    };
    let host = Host {
        addresses: addresses.into_iter().collect(),
    };
    planner.update([Event::Host(Arc::new(host)), Event::Node(Some(Arc::new(node)))]);
    planner
}

impl World {
    pub(crate) fn new(ingress: Ingress, planner: Planner) -> World {
        let options = Options {
            ingress,
            ..Options::default()
        };
        World {
            planner,
            backend: Userspace::open(options, silent()).unwrap(),
        }
    }

    pub(crate) fn try_apply(&mut self) -> Result<Applied, Error> {
        self.backend.apply(self.planner.plan(), Family::V4)
    }

    /// Applies the plan; every service has to get all it needs.
    pub(crate) fn apply(&mut self) -> Applied {
        let applied = self.try_apply().unwrap();
        assert_eq!(applied.warnings, Vec::<String>::new());
        applied
    }

    pub(crate) fn set(&mut self, service: &Wanted) {
        self.planner.update(service.events());
    }

    pub(crate) fn delete(&mut self, name: &str) {
        let (service, slice) = (ServiceName::new("ns", name), SliceName::new("ns", name));
        self.planner
            .update([Event::Service(service, None), Event::Slice(slice, None)]);
    }

    /// Where the table says that a frontend leads to, by TCP.
    pub(crate) fn mapping(&self, frontend: &str) -> Option<SocketAddr> {
        self.door(Protocol::Tcp, frontend)
    }

    pub(crate) fn door(&self, protocol: Protocol, frontend: &str) -> Option<SocketAddr> {
        self.backend.notes().iter().find_map(|line| {
            let (what, to) = line.split_once(" -> ")?;
            let (name, leads) = what.split_once(": ")?;
            let meant = name.starts_with(protocol.as_str()) && leads.split(", ").any(|lead| lead == frontend);
            meant.then(|| to.parse().unwrap())
        })
    }
}

/// A service with one slice of endpoints, all on the same port.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) service: Service,
    pub(crate) endpoints: Vec<(SocketAddr, State)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Ready,
    LocalReady,
    Terminating,
    Unready,
}

pub(crate) fn service(name: &str, cluster_ip: &str, ports: &[(&str, Protocol, u16)]) -> Wanted {
    let port = |(name, protocol, port): &(&str, Protocol, u16)| ServicePort::new(*name, *protocol, *port);
    Wanted {
        service: Service {
            kind: ServiceType::LoadBalancer,
            ports: ports.iter().map(port).collect(),
            ..Service::new(ServiceName::new("ns", name), vec![ip(cluster_ip)])
        },
        endpoints: Vec::new(),
    }
}

impl Wanted {
    pub(crate) fn to(mut self, endpoints: &[SocketAddr]) -> Wanted {
        self.endpoints = endpoints.iter().map(|address| (*address, State::Ready)).collect();
        self
    }

    pub(crate) fn node_port(mut self, port: u16) -> Wanted {
        for service_port in &mut self.service.ports {
            service_port.node_port = Some(port);
        }
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Service)) -> Wanted {
        change(&mut self.service);
        self
    }

    /// One slice for each port number that endpoints have.
    pub(crate) fn events(&self) -> Vec<Event> {
        let name = &self.service.name;
        let mut events = vec![Event::from(self.service.clone())];
        let slice_port = |number: u16| {
            let port = |port: &ServicePort| SlicePort {
                name: port.name.clone(),
                protocol: port.protocol,
                port: number,
            };
            self.service.ports.iter().map(port).collect()
        };
        let endpoint = |(address, state): &(SocketAddr, State)| SliceEndpoint {
            address: address.ip(),
            node: Some(if *state == State::LocalReady {
                NODE.into()
            } else {
                "elsewhere".into()
            }),
            ready: matches!(state, State::Ready | State::LocalReady),
            serving: *state != State::Unready,
            terminating: *state == State::Terminating,
            hints: None,
        };
        let number = self.endpoints.first().map_or(1, |(address, _)| address.port());
        assert!(
            self.endpoints.iter().all(|(address, _)| address.port() == number),
            "one slice, one port"
        );
        let slice = EndpointSlice {
            name: SliceName::new(name.namespace(), name.name()),
            service: name.clone(),
            family: Family::of(self.service.cluster_ips[0]),
            ports: slice_port(number),
            endpoints: self.endpoints.iter().map(endpoint).collect(),
        };
        events.push(Event::from(slice));
        events
    }
}

/// A TCP endpoint that says who it is when it is asked something, and a UDP one at the same address.
pub(crate) fn endpoint(address: &str) -> SocketAddr {
    let (address, name) = (at(address), address.to_owned());
    let listener = TcpListener::bind(address).unwrap();
    let udp_name = name.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let name = name.clone();
            thread::spawn(move || answer(stream, &name));
        }
    });
    let socket = UdpSocket::bind(address).unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(udp_name.as_bytes(), from);
        }
    });
    address
}

fn answer(mut stream: TcpStream, name: &str) {
    let mut question = [0; 64];
    while let Ok(1..) = stream.read(&mut question) {
        if stream.write_all(name.as_bytes()).is_err() {
            return;
        }
    }
}

/// Asks over TCP who is there.
pub(crate) fn tcp(to: SocketAddr) -> io::Result<String> {
    tcp_within(to, PATIENCE)
}

pub(crate) fn tcp_within(to: SocketAddr, limit: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"?")?;
    stream.shutdown(Shutdown::Write)?;
    let mut name = String::new();
    stream.read_to_string(&mut name)?;
    Ok(name)
}

/// Asks over UDP who is there.
pub(crate) fn udp(to: SocketAddr) -> io::Result<String> {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    udp_from(&socket, to, PATIENCE)
}

pub(crate) fn udp_from(socket: &UdpSocket, to: SocketAddr, limit: Duration) -> io::Result<String> {
    socket.connect(to)?;
    socket.set_read_timeout(Some(limit))?;
    socket.send(b"?")?;
    let mut buffer = [0; 64];
    let count = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
}

pub(crate) fn ask(protocol: Protocol, to: SocketAddr) -> io::Result<String> {
    match protocol {
        Protocol::Tcp => tcp(to),
        Protocol::Udp | Protocol::Sctp => udp(to),
    }
}
