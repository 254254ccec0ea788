//! What the demo shows: balancing, scaling, an outage, sabotage and a restart, with requests flowing all the while.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::network::Network;
use super::proxy::{Proxy, Workplace};
use super::requests::{Answers, Stream, ask_times, ask_until};
use crate::modes::Mode;

const SERVICE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 10)), 80);
const NODE_PORT: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 10)),
    30080,
);
const SOON: Duration = Duration::from_secs(20);

pub(super) struct Stage {
    mode: Mode,
    network: Network,
    proxy: Proxy,
    workplace: Workplace,
    answered: usize,
    lost: usize,
}

impl Stage {
    pub(super) fn set(mode: Mode) -> Result<Self> {
        let network = Network::up()?;
        let workplace = Workplace::new()?;
        workplace.serve_from(&[&network.pods[0], &network.pods[1]])?;
        println!(
            "A network of our own: a node (192.0.2.10), a client (192.0.2.100) and three pods (10.244.1.2-4)."
        );
        let proxy = Proxy::start(mode.as_str(), &workplace, &network.node)?;
        Ok(Stage {
            mode,
            network,
            proxy,
            workplace,
            answered: 0,
            lost: 0,
        })
    }

    pub(super) fn play(&mut self) -> Result<()> {
        self.start()?;
        self.balance()?;
        let stream = Stream::start(&self.network.client, SERVICE)?;
        self.scale(&stream)?;
        self.lose_a_pod(&stream)?;
        self.sabotage(&stream)?;
        self.restart(&stream)?;
        self.count(&stream.stop());
        self.outage()?;
        println!("\n{} requests answered, {} lost.", self.answered, self.lost);
        ensure!(self.lost == 0, "requests were lost; none should have been");
        Ok(())
    }

    fn start(&mut self) -> Result<()> {
        let ready = ask_until(&self.network.client, SERVICE, SOON, |answer| answer.is_ok())?;
        self.proxy.check()?;
        match ready {
            Some(time) => println!(
                "The proxy runs in {} mode; the first request came through after {time:.0?}.",
                self.mode.as_str()
            ),
            None => bail!("the service did not answer within {SOON:?}"),
        }
        Ok(())
    }

    fn balance(&mut self) -> Result<()> {
        title("A service, shop/web, and two pods behind it");
        for (what, address) in [("cluster IP", SERVICE), ("node port", NODE_PORT)] {
            let answers = ask_times(&self.network.client, address, 200)?;
            println!("  200 requests to its {what} {address}: {answers}");
            self.count(&answers);
        }
        Ok(())
    }

    fn scale(&mut self, stream: &Stream) -> Result<()> {
        title("Scaling to three pods, while requests flow");
        self.workplace
            .serve_from(&self.network.pods.iter().collect::<Vec<_>>())?;
        let newcomer = self.network.pods[2].name.clone();
        let seen = ask_until(&self.network.client, SERVICE, SOON, |answer| {
            answer.as_ref().is_ok_and(|pod| *pod == newcomer)
        })?;
        let Some(time) = seen else {
            bail!("{newcomer} got no request within {SOON:?}")
        };
        println!("  {newcomer} answers {time:.0?} after the manifest changed");
        self.watch(stream, Duration::from_millis(500))
    }

    fn lose_a_pod(&mut self, stream: &Stream) -> Result<()> {
        title("A pod leaves");
        let left: Vec<_> = self.network.pods.iter().skip(1).collect();
        self.workplace.serve_from(&left)?;
        thread::sleep(Duration::from_millis(500));
        self.count(&stream.take());
        self.watch(stream, Duration::from_millis(500))
    }

    fn sabotage(&mut self, stream: &Stream) -> Result<()> {
        let mode = self.mode;
        let Some(sabotage) = mode.demo.as_ref().and_then(|demo| demo.sabotage.as_ref()) else {
            return Ok(());
        };
        title(sabotage.title);
        self.count(&stream.take());
        self.network.node.run(sabotage.run)??;
        let healed = ask_until(&self.network.client, SERVICE, SOON, |answer| answer.is_ok())?;
        let Some(time) = healed else {
            bail!("it was not repaired within {SOON:?}")
        };
        println!("  repaired; a request came through {time:.0?} later");
        // A request that met the node without rules is the saboteur's doing; go on when requests flow again.
        stream.wait_for_answer(SOON);
        stream.take();
        Ok(())
    }

    fn restart(&mut self, stream: &Stream) -> Result<()> {
        title("The proxy restarts");
        let start = |stage: &Self| Proxy::start(stage.mode.as_str(), &stage.workplace, &stage.network.node);
        if self.mode.relays {
            // Traffic goes through the process: its successor starts first and takes the sockets over.
            let successor = start(self)?;
            let mut predecessor = std::mem::replace(&mut self.proxy, successor);
            predecessor.wait_within(SOON)?;
            println!("  a successor took the sockets over, the first process has ended");
        } else {
            self.proxy.stop()?;
            self.watch(stream, Duration::from_millis(300))?;
            self.proxy = start(self)?;
        }
        self.watch(stream, Duration::from_millis(1200))?;
        self.proxy.check()
    }

    fn outage(&mut self) -> Result<()> {
        title("All pods leave, and come back");
        self.workplace.serve_from(&[])?;
        let refused = ask_until(&self.network.client, SERVICE, SOON, |answer| {
            answer
                .as_ref()
                .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        })?;
        ensure!(refused.is_some(), "requests were not refused within {SOON:?}");
        println!("  without pods a request is refused at once, not left to time out");
        self.workplace
            .serve_from(&self.network.pods.iter().collect::<Vec<_>>())?;
        let back = ask_until(&self.network.client, SERVICE, SOON, |answer| answer.is_ok())?;
        let Some(time) = back else {
            bail!("the service did not come back within {SOON:?}")
        };
        println!("  the service is back {time:.0?} after its pods");
        let answers = ask_times(&self.network.client, SERVICE, 100)?;
        println!("  100 requests: {answers}");
        self.count(&answers);
        Ok(())
    }

    fn watch(&mut self, stream: &Stream, time: Duration) -> Result<()> {
        thread::sleep(time);
        let answers = stream.take();
        println!("  {} requests: {answers}", answers.count() + answers.failed());
        self.count(&answers);
        Ok(())
    }

    fn count(&mut self, answers: &Answers) {
        self.answered += answers.count();
        self.lost += answers.failed();
    }

    /// Leaves everything running until the user has seen enough.
    pub(super) fn keep(&mut self) -> Result<()> {
        let me = std::process::id();
        let client = self.network.client.number();
        println!("\nEverything stays up until you press Ctrl-C. From another terminal:");
        println!("  nsenter --net=/proc/{me}/fd/{client} curl -s http://{SERVICE}     ask as the client");
        println!(
            "  nsenter --net --target {} nft list ruleset               see the node's rules",
            self.proxy.id()
        );
        println!("  ferry status --socket {}", self.workplace.socket().display());
        println!("  edit {}", self.workplace.manifests().join("web.yaml").display());
        for pod in &self.network.pods {
            println!(
                "  nsenter --net=/proc/{me}/fd/{}                              be {}",
                pod.namespace.number(),
                pod.name
            );
        }
        self.proxy.wait()
    }
}

fn title(text: &str) {
    println!("\n{text}");
}
