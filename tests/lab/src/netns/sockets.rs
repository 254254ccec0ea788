//! Sockets of a namespace, for threads that are elsewhere.
//!
//! A socket belongs for life to the namespace it was made in. So one thread stays inside and makes sockets,
//! and whoever gets one may connect, listen and wait from anywhere, in particular from a shared runtime.

use std::io;
use std::sync::mpsc;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::oneshot;

use super::{Namespace, Proto};

type Order = (Domain, Proto, oneshot::Sender<io::Result<Socket>>);

/// Makes sockets inside one namespace. Cheap to clone; the thread ends with the last clone.
#[derive(Debug, Clone)]
pub struct Sockets {
    orders: mpsc::Sender<Order>,
}

impl Sockets {
    pub fn inside(namespace: &Namespace) -> Result<Sockets> {
        let (orders, inbox) = mpsc::channel::<Order>();
        let path = namespace.path();
        let (ready, is_ready) = mpsc::channel();
        let work = move || {
            let entered = super::enter(&path);
            let ok = entered.is_ok();
            if ready.send(entered).is_err() || !ok {
                return;
            }
            for (domain, proto, reply) in inbox {
                // a caller that gave up meanwhile needs no socket
                let _ = reply.send(make(domain, proto));
            }
        };
        std::thread::Builder::new()
            .name(format!("sockets-{}", namespace.name))
            .spawn(work)?;
        is_ready.recv().context("the socket thread ended")??;
        Ok(Sockets { orders })
    }

    /// A non-blocking socket for that family and protocol.
    pub async fn get(&self, v6: bool, proto: Proto) -> io::Result<Socket> {
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let (reply, answer) = oneshot::channel();
        let gone = || io::Error::other("the socket thread ended");
        self.orders.send((domain, proto, reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn make(domain: Domain, proto: Proto) -> io::Result<Socket> {
    let (kind, protocol) = match proto {
        Proto::Tcp => (Type::STREAM, Protocol::TCP),
        Proto::Udp => (Type::DGRAM, Protocol::UDP),
        Proto::Sctp => (Type::STREAM, Protocol::from(132)),
    };
    let socket = Socket::new(domain, kind.nonblocking().cloexec(), Some(protocol))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}
