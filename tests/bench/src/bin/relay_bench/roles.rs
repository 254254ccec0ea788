//! What the other processes of the benchmark do.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use ferry_backends::Backend;
use ferry_backends::userspace::{Ingress, Options, Settings, Userspace};
use ferry_lab::netns::Namespace;
use ferry_model::{
    DetectLocal, EndpointSlice, Event, Family, Host, PlanOptions, Planner, Policy, Protocol, Service,
    ServiceName, ServicePort, ServiceType, SliceEndpoint, SliceName, SlicePort,
};
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::clients::REQUEST;

/// Answers with as many bytes as it is asked for.
pub(crate) fn backend(port: u16) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let listener = socket.listen(4096)?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(answer(stream));
        }
    })
}

async fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut request = [0; REQUEST];
    stream.read_exact(&mut request).await?;
    let mut left = u64::from_be_bytes(request);
    if left == 0 {
        let mut question = [0];
        while stream.read(&mut question).await? > 0 {
            stream.write_all(b"!").await?;
        }
        return Ok(());
    }
    static BLOCK: [u8; 1 << 18] = [7; 1 << 18];
    while left > 0 {
        let part = left.min(BLOCK.len() as u64) as usize;
        stream.write_all(&BLOCK[..part]).await?;
        left -= part as u64;
    }
    Ok(())
}

/// Where nobody answers, not even with a refusal.
const SILENCE: &str = "192.0.2.1:9";

/// A cable whose other end takes everything for somebody else's.
pub(crate) fn make_silent_network(namespace: &Namespace) -> Result<()> {
    namespace.ip("link add silent type veth peer name nobody\n\
         address add 192.0.2.254/24 dev silent\n\
         link set nobody up\n\
         link set silent up\n\
         neighbour add 192.0.2.1 lladdr 02:00:00:00:00:01 dev silent\n")
}

/// Ferry in userspace mode, as the daemon would run it, with a plan of two services: one with the backend, its node
/// port is `port`, and one whose only endpoint is dead, its node port is the next.
pub(crate) fn relay(port: u16, backend: SocketAddr, handover: Option<&str>) -> Result<()> {
    let mut planner = Planner::new(options());
    planner.update([Event::Host(Arc::new(Host {
        addresses: [IpAddr::from(Ipv4Addr::LOCALHOST)].into(),
    }))]);
    planner.update(service("web", [10, 96, 0, 1], port, backend));
    planner.update(service("dead", [10, 96, 0, 2], port + 1, SILENCE.parse()?));
    // All that the limit on open files allows: there is nothing else in this process.
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20) as usize;
    let relay = Settings {
        max_connections: (files - 40) / 2,
        max_sessions: 1,
        ..Settings::default()
    };
    let options = Options {
        ingress: Ingress::Mapped,
        relay,
        handover: handover.map(Into::into),
        ..Options::default()
    };
    let mut userspace = Userspace::open(options, std::sync::Arc::new(|| {}))?;
    let applied = userspace.apply(planner.plan(), Family::V4)?;
    if !applied.warnings.is_empty() {
        bail!("{:?}", applied.warnings);
    }
    println!("serving");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn options() -> PlanOptions {
    PlanOptions {
        node_name: "node".into(),
        policy: Policy::userspace(),
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(Vec::new()),
        node_port_addresses: Vec::new(),
        bind_address: None,
        allow_external_ips: true,
    }
}

fn service(name: &str, cluster_ip: [u8; 4], port: u16, endpoint: SocketAddr) -> [Event; 2] {
    let slice_name = SliceName::new("bench", name);
    let name = ServiceName::new("bench", name);
    let service = Service {
        kind: ServiceType::NodePort,
        ports: vec![ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(port),
        }],
        ..Service::new(name.clone(), vec![IpAddr::from(cluster_ip)])
    };
    let slice = EndpointSlice {
        name: slice_name.clone(),
        service: name.clone(),
        family: Family::V4,
        ports: vec![SlicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: endpoint.port(),
        }],
        endpoints: vec![SliceEndpoint::ready(endpoint.ip(), None)],
    };
    [Event::from(service), Event::from(slice)]
}
