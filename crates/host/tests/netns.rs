//! A network of our own: two namespaces, a cable, and a byte that crosses it.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};

use ferry_host::netns::Namespace;
use ferry_host::route::Route;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_byte_crosses_a_cable() {
    let (left, right) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    left.run(|| {
        let mut route = Route::open().unwrap();
        route.add_veth("eth0", "eth0", &right).unwrap();
        let index = route.set_up("eth0").unwrap();
        route.add_address(index, address("192.0.2.1")).unwrap();
        route
            .add_route("192.0.2.2/32".parse().unwrap(), index, None)
            .unwrap();
    })
    .unwrap();
    let listener = right
        .run(|| {
            let mut route = Route::open().unwrap();
            let index = route.set_up("eth0").unwrap();
            route.add_address(index, address("192.0.2.2")).unwrap();
            route
                .add_route("192.0.2.1/32".parse().unwrap(), index, None)
                .unwrap();
            route
                .add_route("0.0.0.0/0".parse().unwrap(), index, Some(address("192.0.2.1")))
                .unwrap();
            TcpListener::bind("192.0.2.2:7").unwrap()
        })
        .unwrap();
    let mut client = left.run(|| TcpStream::connect("192.0.2.2:7").unwrap()).unwrap();
    client.write_all(b"!").unwrap();
    let mut byte = [0];
    listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"!");
}

#[test]
fn the_caller_stays_where_it_was() {
    let before = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let inside = Namespace::new()
        .unwrap()
        .run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap())
        .unwrap();
    assert_ne!(before, inside);
    assert_eq!(before, std::fs::read_link("/proc/thread-self/ns/net").unwrap());
}
