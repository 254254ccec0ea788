//! What a service asks for beside its ports: who is told who connects, how long connections drain, which ports are held.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use ferry_backends::userspace::Ingress;
use ferry_lab::netns::{Namespace, Network};
use ferry_model::Protocol::{Tcp, Udp};

use crate::fixture::*;

/// An endpoint that says back the addresses of the PROXY protocol header that it got, or what else it got.
fn told(listener: TcpListener) {
    for mut stream in listener.incoming().map_while(Result::ok) {
        let mut header = [0; 28];
        stream.read_exact(&mut header).unwrap();
        let ip = |at: usize| IpAddr::from([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let known = &header[..16] == b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c";
        let text = if known {
            format!("{}:{} to {}:{}", ip(16), port(24), ip(20), port(26))
        } else {
            format!("{header:?}")
        };
        stream.write_all(text.as_bytes()).unwrap();
    }
}

/// Through rules, a client is told of with the address that it meant, not the proxy port it was led to.
#[test]
fn endpoints_are_told_who_connects_and_to_what() {
    let network = Network::up().unwrap();
    let pod = network.host("pod1").unwrap();
    let listener = pod.run(|| TcpListener::bind("10.244.1.2:7777").unwrap()).unwrap();
    std::thread::spawn(move || told(listener));
    let web = service("web", "10.96.0.1", &[("http", Tcp, 80)])
        .to(&[at("10.244.1.2:7777")])
        .node_port(30080)
        .with(|service| service.options.proxy_protocol = true);
    let mut world = network
        .node()
        .run(|| {
            let mut world = World::new(
                Ingress::Portals,
                planner(&["127.0.0.1", "192.0.2.10", "10.244.1.1"], "10.244.0.0/16"),
            );
            world.set(&web);
            world.apply();
            world
        })
        .unwrap();
    let ask = |from: &str, to: SocketAddr| {
        let connect = || TcpStream::connect_timeout(&to, PATIENCE).unwrap();
        let mut stream = network.host(from).unwrap().run(connect).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (client, mut text) = (stream.local_addr().unwrap(), String::new());
        stream.read_to_string(&mut text).unwrap();
        (text, format!("{client} to {to}"))
    };
    for (from, to) in [
        ("client", at("192.0.2.10:30080")),
        ("pod2", at("10.96.0.1:80")),
        ("node", at("10.96.0.1:80")),
    ] {
        let (told, want) = ask(from, to);
        assert_eq!(told, want, "{from}");
    }
    // Without the option an endpoint gets nothing but the client's bytes.
    world.set(&web.with(|service| service.options.proxy_protocol = false));
    network.node().run(|| world.apply()).unwrap();
    let mut stream = network
        .host("client")
        .unwrap()
        .run(|| TcpStream::connect(at("192.0.2.10:30080")).unwrap())
        .unwrap();
    stream.write_all(&[b'x'; 28]).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, format!("{:?}", [b'x'; 28]));
}

#[test]
fn a_service_says_how_long_its_connections_drain() {
    Namespace::new("drain")
        .unwrap()
        .run(|| {
            let mut world = World::new(Ingress::Mapped, planner(&["127.0.0.1"], "10.244.0.0/16"));
            let (one, two) = (endpoint("127.0.1.1:8080"), endpoint("127.0.1.2:8080"));
            let patient = service("patient", "10.96.0.1", &[("http", Tcp, 80)]).node_port(30080);
            let hasty = service("hasty", "10.96.0.2", &[("http", Tcp, 80)])
                .node_port(30081)
                .with(|service| service.options.drain = Some(Duration::from_millis(50)));
            let everywhere = |world: &mut World, to: SocketAddr| {
                world.set(&patient.clone().to(&[to]));
                world.set(&hasty.clone().to(&[to]));
                world.apply();
            };
            everywhere(&mut world, one);
            let connect = |port: u16| {
                let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream
            };
            let ask = |stream: &mut TcpStream| {
                stream.write_all(b"?")?;
                stream.read_exact(&mut [0; 14])
            };
            let (mut stays, mut goes) = (connect(30080), connect(30081));
            for stream in [&mut stays, &mut goes] {
                ask(stream).unwrap();
            }
            everywhere(&mut world, two);
            until("the deadline cuts the connection", || ask(&mut goes).is_err());
            ask(&mut stays).unwrap();
        })
        .unwrap();
}

/// With rules nobody listens on a node port, or on an address of the node that a service has. Others cannot either.
#[test]
fn ports_of_services_are_held() {
    Namespace::new("held")
        .unwrap()
        .run(|| {
            let mut world = World::new(
                Ingress::Portals,
                planner(&["127.0.0.1", "127.0.0.9"], "10.244.0.0/16"),
            );
            let web = service("web", "10.96.0.1", &[("http", Tcp, 80), ("dns", Udp, 80)])
                .to(&[endpoint("127.0.1.1:8080")])
                .node_port(30080)
                .with(|service| service.external_ips = vec![ip("127.0.0.9")]);
            world.set(&web);
            world.apply();
            let places = [at("0.0.0.0:30080"), at("127.0.0.9:80")];
            for place in places {
                assert!(TcpListener::bind(place).is_err(), "{place}/tcp is free");
                assert!(UdpSocket::bind(place).is_err(), "{place}/udp is free");
            }
            world.delete("web");
            world.apply();
            for place in places {
                TcpListener::bind(place).unwrap();
                UdpSocket::bind(place).unwrap();
            }
        })
        .unwrap();
}
