//! New connections per second from a client through the node to a pod.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferry_lab::api::Api;
use ferry_lab::api::generate::Cluster;
use ferry_lab::netns::Network;
use ferry_netns::{Proxy, objects};
use socket2::{Domain, Socket, Type};

use crate::node;
use crate::table::{Table, median};

const VIP: &str = "10.111.0.1";
const POD: &str = "10.244.1.2:7000";
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 9;

/// Every round is taken beside one without a proxy, so that whatever else the machine does falls on both.
pub(crate) fn bench(mode: &str, services: u32, ferry: &Path, peer: Option<&Path>) -> Result<Table> {
    let mut table = Table::new(&["", "connections per second", "of no proxy at all"]);
    let plain = Network::up()?;
    let none = Load::start(&plain, POD.parse()?)?;
    let programs = [Some(("ferry", ferry)), peer.map(|program| ("peer", program))];
    let mut without = Vec::new();
    for (name, program) in programs.into_iter().flatten() {
        for services in [10, services] {
            let proxied =
                Proxied::up(program, mode, services).with_context(|| format!("{name}, {services}"))?;
            let load = Load::start(&proxied.network, SocketAddr::new(VIP.parse()?, 80))?;
            let pairs: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (none.rate(), load.rate())).collect();
            load.stop();
            let mut rates: Vec<f64> = pairs.iter().map(|(_, with)| *with).collect();
            let mut ratios: Vec<f64> = pairs.iter().map(|(without, with)| with / without).collect();
            without.extend(pairs.iter().map(|(without, _)| *without));
            let what = format!("{name}, {services} services");
            table.row([
                what,
                format!("{:.0}", median(&mut rates)),
                format!("{:.2}", median(&mut ratios)),
            ]);
        }
    }
    none.stop();
    table.row([
        "no proxy, the pod's own address".into(),
        format!("{:.0}", median(&mut without)),
        "1.00".into(),
    ]);
    Ok(table)
}

/// A network whose node has a proxy in sync.
struct Proxied {
    _proxy: Proxy,
    _api: Api,
    _dir: tempfile::TempDir,
    network: Network,
}

impl Proxied {
    fn up(program: &Path, mode: &str, services: u32) -> Result<Proxied> {
        let network = Network::up()?;
        let dir = tempfile::tempdir()?;
        let api = Api::start_in(network.node(), 0)?;
        let mut slice = objects::slice("web", "IPv4", &[objects::POD1]);
        for port in slice["ports"].as_array_mut().into_iter().flatten() {
            port["port"] = 7000.into();
        }
        api.apply(
            Cluster {
                services,
                endpoints: 5,
            }
            .objects(),
        )?;
        api.apply([objects::service("web", &[VIP]), slice])?;
        let args = node::arguments(mode, &api, dir.path(), program)?;
        let mut proxy = Proxy::start(network.node(), program, &args, dir.path().join("log"))?;
        proxy.wait_ready_within(Duration::from_secs(900))?;
        Ok(Proxied {
            _proxy: proxy,
            _api: api,
            _dir: dir,
            network,
        })
    }
}

/// One server that accepts and one client that connects as fast as it can while a rate is taken.
struct Load {
    stop: Arc<AtomicBool>,
    go: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(network: &Network, target: SocketAddr) -> Result<Load> {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let go = Arc::new(AtomicBool::new(false));
        let listener = network.host("pod1")?.run(|| std::net::TcpListener::bind(POD))??;
        listener.set_nonblocking(false)?;
        let ending = Arc::clone(&stop);
        let server = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if ending.load(Ordering::Relaxed) {
                    return;
                }
                drop(stream);
            }
        });
        let path = network.host("client")?.path();
        let (ending, going, count) = (Arc::clone(&stop), Arc::clone(&go), Arc::clone(&done));
        let client = std::thread::spawn(move || {
            if ferry_lab::netns::enter(&path).is_err() {
                return;
            }
            while !ending.load(Ordering::Relaxed) {
                if !going.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                } else if connect(target).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            // the server is in accept: one more connection shows it the end
            let _ = connect(target);
        });
        Ok(Load {
            stop,
            go,
            done,
            threads: vec![client, server],
        })
    }

    fn rate(&self) -> f64 {
        self.go.store(true, Ordering::Relaxed);
        std::thread::sleep(ROUND / 10);
        let (count, begin) = (self.done.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(ROUND);
        let rate = (self.done.load(Ordering::Relaxed) - count) as f64 / begin.elapsed().as_secs_f64();
        self.go.store(false, Ordering::Relaxed);
        rate
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Connects and resets: nothing lingers in TIME_WAIT, so ports never run out.
fn connect(target: SocketAddr) -> std::io::Result<()> {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.connect_timeout(&target.into(), Duration::from_secs(1))
}
