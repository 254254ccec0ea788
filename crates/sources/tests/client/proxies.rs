//! Servers that are reached through proxies.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::pki::{P256, Pki};
use crate::server::{Server, ask, connection};

/// A proxy that lets its first client talk to `target` after what `greet` does with it. What was said comes back.
fn proxy(target: SocketAddr, greet: fn(&mut TcpStream) -> String) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = channel();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        tell.send(greet(&mut client)).unwrap();
        let server = TcpStream::connect(target).unwrap();
        let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut up, &mut down));
        let (mut server, mut client) = (server, client);
        let _ = std::io::copy(&mut server, &mut client);
    });
    (address, told)
}

fn http_greeting(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    stream
        .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .unwrap();
    String::from_utf8(head).unwrap()
}

fn socks_greeting(stream: &mut TcpStream) -> String {
    let take = |length: usize| {
        let mut bytes = vec![0; length];
        stream.try_clone().unwrap().read_exact(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(take(4), [5, 2, 0, 2]);
    stream.try_clone().unwrap().write_all(&[5, 2]).unwrap();
    assert_eq!(take(2), [1, 2]);
    let name = take(2);
    let length = take(1)[0];
    let password = take(usize::from(length));
    stream.try_clone().unwrap().write_all(&[1, 0]).unwrap();
    assert_eq!(take(3), [5, 1, 0]);
    let kind = take(1)[0];
    let place = if kind == 1 {
        take(4)
    } else {
        panic!("address of kind {kind}")
    };
    take(2);
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    format!(
        "{}:{} {place:?}",
        String::from_utf8(name).unwrap(),
        String::from_utf8(password).unwrap()
    )
}

fn secure() -> (Pki, Server) {
    let pki = Pki::new();
    pki.authority("ca", P256);
    pki.server("api", P256, "ca");
    let server = Server::tls(&pki, "api");
    (pki, server)
}

fn cluster(server: &Server, proxy: &str) -> String {
    format!(
        "{{server: '{}', certificate-authority: ca.crt, proxy-url: '{proxy}'}}",
        server.url()
    )
}

#[test]
fn an_http_proxy_is_asked_for_a_tunnel() {
    let (pki, server) = secure();
    let (address, told) = proxy(server.address, http_greeting);
    let through = cluster(&server, &format!("http://me:pass@{address}"));
    let seen = ask(&server, &connection(&pki, &through, "{token: t}")).unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer t"));
    let head = told.recv().unwrap();
    assert!(
        head.starts_with(&format!("CONNECT {} HTTP/1.1\r\n", server.address)),
        "{head}"
    );
    assert!(
        head.contains("Proxy-Authorization: Basic bWU6cGFzcw==\r\n"),
        "{head}"
    );
    assert!(!head.contains("Bearer"), "{head}");
}

#[test]
fn a_socks_proxy_is_told_where_to_go() {
    let (pki, server) = secure();
    let (address, told) = proxy(server.address, socks_greeting);
    let through = cluster(&server, &format!("socks5://me:pass@{address}"));
    ask(&server, &connection(&pki, &through, "{}")).unwrap();
    assert_eq!(told.recv().unwrap(), "me:pass [127, 0, 0, 1]");
}

#[test]
fn requests_in_clear_are_handed_to_the_proxy_whole() {
    let pki = Pki::new();
    // The proxy's part is played by a server: it gets the request with the whole URL.
    let server = Server::clear(&pki);
    let through = format!(
        "{{server: 'http://api.test:8080', proxy-url: 'http://me:pass@{}'}}",
        server.address
    );
    let seen = ask(&server, &connection(&pki, &through, "{}")).unwrap();
    assert_eq!(seen.target, "http://api.test:8080/version");
    assert_eq!(seen.header("host"), Some("api.test:8080"));
    assert_eq!(seen.header("proxy-authorization"), Some("Basic bWU6cGFzcw=="));
}

#[test]
fn a_proxy_that_refuses_is_named_without_its_password() {
    let (pki, server) = secure();
    for (scheme, greet) in [
        (
            "http",
            (|stream: &mut TcpStream| {
                stream.write_all(b"HTTP/1.1 407 Who are you\r\n\r\n").unwrap();
                String::new()
            }) as fn(&mut TcpStream) -> String,
        ),
        ("socks5", |stream: &mut TcpStream| {
            stream.write_all(&[5, 255]).unwrap();
            String::new()
        }),
    ] {
        let (address, _told) = proxy(server.address, greet);
        let through = cluster(&server, &format!("{scheme}://me:s3cret@{address}"));
        let error = ask(&server, &connection(&pki, &through, "{}")).unwrap_err();
        assert!(
            error.contains(&format!("the proxy {scheme}://{address}")),
            "{error}"
        );
        assert!(
            error.contains("407 Who are you") || error.contains("another way"),
            "{error}"
        );
        assert!(!error.contains("s3cret"), "{error}");
    }
}
