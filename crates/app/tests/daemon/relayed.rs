//! Userspace mode: connections go through the process, and must outlive what happens to it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use ferry_lab::netns::Namespace;

use crate::house::{House, service, slice};

const SERVICE: &str = "10.96.0.10:80";
const PATIENCE: Duration = Duration::from_secs(30);

/// A house with one service, whose endpoint answers every byte with the same.
fn build(label: &str) -> House {
    let house = House::build(label);
    house
        .node
        .ip("addr add 10.244.1.2/32 dev lo\nroute add 10.96.0.0/16 dev lo")
        .unwrap();
    let listener = house
        .node
        .run(|| TcpListener::bind("10.244.1.2:8080").unwrap())
        .unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || echo(stream));
        }
    });
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    house
}

fn echo(mut stream: TcpStream) {
    let mut byte = [0];
    while let Ok(1) = stream.read(&mut byte) {
        if stream.write_all(&byte).is_err() {
            return;
        }
    }
}

/// Writes a configuration of userspace mode that differs in how much is logged.
fn configure(house: &House, verbosity: u32) -> String {
    let kubeconfig = house.api.kubeconfig(house.dir.path()).unwrap();
    let path = house.path("config.yaml");
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: userspace\n\
         clientConnection: {{kubeconfig: {}}}\noomScoreAdj: 0\nclusterCIDR: 10.244.0.0/16\n\
         logging: {{verbosity: {verbosity}}}\n",
        kubeconfig.display()
    );
    std::fs::write(&path, text).unwrap();
    format!("--config={}", path.display())
}

fn connect(node: &Namespace) -> std::io::Result<TcpStream> {
    let to: SocketAddr = SERVICE.parse().unwrap();
    let stream = node.run(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0])
}

/// The process that answers at the status socket.
fn in_service(house: &House) -> Option<u64> {
    house.status()?["pid"].as_u64()
}

fn is_there(pid: u64) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_changed_configuration_cuts_no_connection_and_refuses_none() {
    let house = build("daemon-renewed");
    let argument = configure(&house, 2);
    let mut daemon = house.start(&[&argument, "--hostname-override=node-a"]);
    daemon.wait_synced();
    let first = u64::from(daemon.id());
    let (over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            while !over.load(Relaxed) {
                connect(&house.node)
                    .and_then(|mut stream| ask(&mut stream))
                    .map_err(|error| format!("{error} after {served:?} connections"))?;
                served.fetch_add(1, Relaxed);
            }
            Ok::<(), String>(())
        });
        for verbosity in [3, 2] {
            let mut open = connect(&house.node).unwrap();
            ask(&mut open).unwrap();
            configure(&house, verbosity);
            house.wait("another process to stand in", || {
                in_service(&house).is_some_and(|pid| pid != first)
            });
            let stand_in = in_service(&house).unwrap();
            house.wait("the new configuration", || {
                let configz = house.get(("127.0.0.1", 10249), "/configz");
                configz.is_some_and(|(_, body)| body.contains(&format!("\"verbosity\":{verbosity}")))
            });
            ask(&mut open).expect("the open connection goes on");
            drop(open);
            house.wait("the first process to come back", || {
                in_service(&house) == Some(first)
            });
            house.wait("the other to be gone", || !is_there(stand_in));
        }
        over.store(true, Relaxed);
        if let Err(error) = crowd.join().unwrap() {
            panic!("{error}\n{}", house.log());
        }
    });
    assert!(served.load(Relaxed) > 20, "{served:?}");
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn connections_and_bytes_are_counted_exactly() {
    let house = build("daemon-counted");
    let mut daemon = house.daemon_in("userspace", &[]);
    daemon.wait_synced();
    let series = |name: &str, more: &str| {
        let labels = "namespace=\"shop\",service=\"web\",port=\"http\",protocol=\"tcp\",ip_family=\"IPv4\"";
        house.metric(&format!("ferry_service_{name}{{{labels}{more}}}"))
    };
    let mut open = connect(&house.node).unwrap();
    for _ in 0..5 {
        ask(&mut open).unwrap();
    }
    for _ in 0..7 {
        ask(&mut connect(&house.node).unwrap()).unwrap();
    }
    house.wait("the others to be over", || {
        series("open_connections", "") == Some(1.0)
    });
    assert_eq!(series("connections_total", ""), Some(8.0));
    for direction in ["to_endpoint", "to_client"] {
        let more = format!(",direction=\"{direction}\"");
        assert_eq!(series("bytes_total", &more), Some(12.0), "{direction}");
    }
    assert_eq!(series("failed_connections_total", ""), Some(0.0));
    drop(open);
    house.wait("the last to be over", || {
        series("open_connections", "") == Some(0.0)
    });
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_signal_ends_the_process_and_the_one_that_stands_in() {
    let house = build("daemon-both");
    let argument = configure(&house, 2);
    let mut daemon = house.start(&[&argument, "--hostname-override=node-a"]);
    daemon.wait_synced();
    let mut open = connect(&house.node).unwrap();
    ask(&mut open).unwrap();
    configure(&house, 3);
    house.wait("another process to stand in", || {
        in_service(&house).is_some_and(|pid| pid != u64::from(daemon.id()))
    });
    let stand_in = in_service(&house).unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    house.wait("the other to be gone", || !is_there(stand_in));
    ask(&mut open).expect("the open connection goes on for a while");
    drop(open);
    assert_eq!(daemon.wait_end(), Some(0));
}
