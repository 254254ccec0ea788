//! Endpoints that go while connections are open.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use ferry_backends::Backend;
use ferry_backends::ipvs::Ipvs;
use ferry_lab::netns::Network;
use ferry_model::{Planner, Protocol, Service};

use crate::backend::{apply, open};
use crate::cases::Case;
use crate::facts::{endpoints, planner, put, service};
use crate::host::sh;

pub(crate) const CASES: &[Case] = &[
    (
        "draining::open_connections_finish_and_new_ones_go_elsewhere",
        finish,
    ),
    ("draining::a_restart_loses_nothing", restart),
    ("draining::an_endpoint_that_comes_back_is_used_again", comes_back),
    ("draining::the_deadline_ends_it", deadline),
    ("draining::udp_moves_on_at_once_or_drains_when_asked", udp),
];

const VIP: &str = "10.96.0.1:80";
const POD1: &str = "10.244.1.2";
const POD2: &str = "10.244.1.3";
const PATIENCE: Duration = Duration::from_secs(60);

struct Lab {
    network: Network,
    planner: Planner,
    web: Service,
}

impl Lab {
    fn up(web: Service) -> Self {
        let mut planner = planner();
        planner.update([put(&web), endpoints(&web, &[POD1, POD2])]);
        Self {
            network: Network::up().unwrap(),
            planner,
            web,
        }
    }

    /// Runs a case on the node.
    fn on_the_node(self, body: impl FnOnce(&mut Planner, &Service, &Client<'_>) + Send) {
        let Self {
            network,
            mut planner,
            web,
        } = self;
        let client = Client { network: &network };
        network.node().run(|| body(&mut planner, &web, &client)).unwrap();
    }
}

struct Client<'a> {
    network: &'a Network,
}

impl Client<'_> {
    fn connect(&self) -> Talk {
        let connect = || TcpStream::connect_timeout(&VIP.parse().unwrap(), Duration::from_secs(20));
        let stream = self
            .network
            .host("client")
            .unwrap()
            .run(connect)
            .unwrap()
            .unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        let mut talk = Talk {
            stream,
            server: String::new(),
        };
        talk.server = local(&talk.read());
        talk
    }

    /// A connection to that endpoint, however many it takes.
    fn connect_to(&self, pod: &str) -> Talk {
        (0..20)
            .map(|_| self.connect())
            .find(|talk| talk.server == pod)
            .unwrap()
    }

    fn udp(&self) -> UdpSocket {
        let bind = || UdpSocket::bind("0.0.0.0:0");
        let socket = self.network.host("client").unwrap().run(bind).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket
    }
}

/// Who answers: `{"local":"ADDRESS|PORT",...}`.
fn local(answer: &str) -> String {
    answer
        .split('"')
        .nth(3)
        .unwrap()
        .split('|')
        .next()
        .unwrap()
        .to_owned()
}

/// A connection. It ends with a reset: after an orderly end the kernel would remember it for two minutes.
struct Talk {
    stream: TcpStream,
    server: String,
}

impl Talk {
    fn read(&mut self) -> String {
        let mut buffer = [0; 512];
        let n = self.stream.read(&mut buffer).unwrap();
        assert!(n > 0, "the connection was closed");
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    }

    fn echo(&mut self) {
        self.stream.write_all(b"ping").unwrap();
        assert_eq!(self.read(), "ping");
    }
}

/// Applies again and again, as the loop does, until the kernel's servers are as they should be.
fn until(backend: &mut Ipvs, planner: &Planner, what: &str, is_so: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        apply(backend, planner);
        let shown = sh("ipvsadm -S -n");
        if is_so(&shown) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{what}:\n{shown}\n{:?}",
            backend.notes()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn weight_of(shown: &str, pod: &str) -> Option<u32> {
    let line = shown
        .lines()
        .find(|line| line.contains(&format!("-r {pod}:8080 ")))?;
    line.rsplit(' ').next().unwrap().parse().ok()
}

fn finish() {
    let lab = Lab::up(service("web", "10.96.0.1", Protocol::Tcp));
    lab.on_the_node(|planner, web, client| {
        let mut backend = open();
        apply(&mut backend, planner);
        let mut talk = client.connect_to(POD1);
        planner.update([endpoints(web, &[POD2])]);
        apply(&mut backend, planner);
        for _ in 0..20 {
            talk.echo();
            assert_eq!(
                client.connect().server,
                POD2,
                "a new connection reached an endpoint that is gone"
            );
        }
        assert_eq!(weight_of(&sh("ipvsadm -S -n"), POD1), Some(0));
        assert!(backend.next_due().unwrap() <= Duration::from_secs(5));
        assert!(
            backend.notes()[0].starts_with("10.244.1.2:8080 of 10.96.0.1:80/TCP drains"),
            "{:?}",
            backend.notes()
        );
        drop(talk);
        until(
            &mut backend,
            planner,
            "the server goes with its last connection",
            |shown| weight_of(shown, POD1).is_none(),
        );
        assert_eq!(weight_of(&sh("ipvsadm -S -n"), POD2), Some(1));
        assert!(backend.notes().is_empty());
    });
}

fn restart() {
    let lab = Lab::up(service("web", "10.96.0.1", Protocol::Tcp));
    lab.on_the_node(|planner, web, client| {
        let mut first = open();
        apply(&mut first, planner);
        let mut talk = client.connect_to(POD1);
        planner.update([endpoints(web, &[POD2])]);
        apply(&mut first, planner);
        talk.echo();
        drop(first);
        talk.echo();
        let mut second = open();
        apply(&mut second, planner);
        for _ in 0..10 {
            talk.echo();
            assert_eq!(client.connect().server, POD2);
        }
        assert_eq!(weight_of(&sh("ipvsadm -S -n"), POD1), Some(0));
        assert_eq!(second.notes().len(), 1, "the new process goes on draining");
        drop(talk);
        until(&mut second, planner, "the server goes after all", |shown| {
            weight_of(shown, POD1).is_none()
        });
    });
}

fn comes_back() {
    let lab = Lab::up(service("web", "10.96.0.1", Protocol::Tcp));
    lab.on_the_node(|planner, web, client| {
        let mut backend = open();
        apply(&mut backend, planner);
        let mut talk = client.connect_to(POD1);
        planner.update([endpoints(web, &[POD2])]);
        apply(&mut backend, planner);
        planner.update([endpoints(web, &[POD1, POD2])]);
        apply(&mut backend, planner);
        assert_eq!(weight_of(&sh("ipvsadm -S -n"), POD1), Some(1));
        assert!(backend.notes().is_empty());
        talk.echo();
        client.connect_to(POD1);
    });
}

fn deadline() {
    let mut web = service("web", "10.96.0.1", Protocol::Tcp);
    web.options.drain = Some(Duration::from_secs(3));
    Lab::up(web).on_the_node(|planner, web, client| {
        let mut backend = open();
        apply(&mut backend, planner);
        let mut talk = client.connect_to(POD1);
        planner.update([endpoints(web, &[POD2])]);
        apply(&mut backend, planner);
        talk.echo();
        assert!(backend.next_due().unwrap() <= Duration::from_secs(3));
        until(&mut backend, planner, "the deadline ends it", |shown| {
            weight_of(shown, POD1).is_none()
        });
    });
}

fn udp() {
    let web = service("web", "10.96.0.1", Protocol::Udp);
    Lab::up(web).on_the_node(|planner, web, client| {
        let mut backend = open();
        apply(&mut backend, planner);
        let to: SocketAddr = VIP.parse().unwrap();
        let ask = |socket: &UdpSocket| -> Option<String> {
            let mut buffer = [0; 512];
            socket.send_to(b"?", to).unwrap();
            let (n, _) = socket.recv_from(&mut buffer).ok()?;
            Some(local(&String::from_utf8_lossy(&buffer[..n])))
        };
        let flow_to = |pod: &str| {
            (0..20)
                .map(|_| client.udp())
                .find(|socket| ask(socket).as_deref() == Some(pod))
                .unwrap()
        };
        let flow = flow_to(POD1);
        planner.update([endpoints(web, &[POD2])]);
        apply(&mut backend, planner);
        assert_eq!(
            weight_of(&sh("ipvsadm -S -n"), POD1),
            Some(0),
            "there for answers on their way"
        );
        for _ in 0..5 {
            assert_eq!(
                ask(&client.udp()).as_deref(),
                Some(POD2),
                "a new flow goes elsewhere at once"
            );
        }
        assert!(backend.next_due().unwrap() <= Duration::from_secs(1));
        until(&mut backend, planner, "it goes soon", |shown| {
            weight_of(shown, POD1).is_none()
        });
        // A kernel before 5.9 loses the first packet after that, when it finds the server gone.
        let moved = (0..10).filter_map(|_| ask(&flow)).next();
        assert_eq!(moved.as_deref(), Some(POD2));

        let mut patient = web.clone();
        patient.options.drain = Some(Duration::from_secs(600));
        planner.update([put(&patient), endpoints(web, &[POD1, POD2])]);
        apply(&mut backend, planner);
        let flow = flow_to(POD1);
        planner.update([endpoints(web, &[POD2])]);
        apply(&mut backend, planner);
        for _ in 0..5 {
            assert_eq!(ask(&flow).as_deref(), Some(POD1), "the flow goes on");
            assert_eq!(ask(&client.udp()).as_deref(), Some(POD2), "a new one does not");
        }
    });
}
