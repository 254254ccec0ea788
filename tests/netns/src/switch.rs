//! Cases where one proxy takes over from another while packets flow: nothing is lost, nothing is left behind.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ferry_lab::netns::{Answer, Namespace, Probe};
use ferry_lab::oracle;

use crate::live::{
    PATIENT, PAUSE, conversations, dual_stack_service, nothing_lost, settle, stage, stop, streams,
};
use crate::objects::{POD1, POD1_V6, RPOD1, RPOD1_V6};
use crate::traffic::Stream;
use crate::{Mode, Stage};

/// `ferry` is stopped and started in the next mode, and so on.
pub fn modes(modes: &[Mode]) -> Result<()> {
    let (first, others) = modes.split_first().context("no modes")?;
    let mut stage = stage(*first, &dual_stack_service(&[POD1, RPOD1], &[POD1_V6, RPOD1_V6]))?;
    settle(&stage, &Answer::Ok)?;
    let talks = conversations(&stage)?;
    let traffic = streams(&stage, Some(PATIENT))?;
    for mode in others {
        stage.switch(*mode)?;
        nothing_left_beside(&stage)?;
        std::thread::sleep(Duration::from_millis(300));
    }
    nothing_lost(stop(traffic)?)?;
    for talk in talks {
        ensure!(talk.stop()? > 50, "a connection was hardly used");
    }
    stage.finish()
}

/// The rules of kube-proxy 1.36 are in place, as recorded; `ferry` starts beside them.
pub fn from_kube_proxy(mode: Mode) -> Result<()> {
    for name in ["dual-stack", "clusterip-udp"] {
        let scenario = oracle::scenario(name)?;
        let (before, after) = (oracle::Mode::Iptables, mode.like());
        let step = scenario.steps.first().context("no steps")?;
        let first = |mode| -> Result<oracle::ExpectedStep> {
            let steps = oracle::expected(mode, name)?.steps;
            steps.into_iter().next().context("nothing was recorded")
        };
        let recorded = first(before)?;
        let mut stage = Stage::without_proxy(mode, &scenario.args, &scenario.objects)?;
        let node = stage.network().node();
        node.sh("sysctl -qw net.ipv4.conf.all.route_localnet=1")?;
        restore(node, "iptables-restore", &recorded.rules["iptables-save"])?;
        restore(node, "ip6tables-restore", &recorded.rules["ip6tables-save"])?;
        let traffic = answered(&stage, &step.probes)?;
        std::thread::sleep(Duration::from_millis(300));
        stage.start_proxy()?;
        nothing_left_beside(&stage)?;
        std::thread::sleep(Duration::from_millis(300));
        nothing_lost(stop(traffic)?).with_context(|| format!("{name}\n{}", stage.log()))?;
        stage.expect(&step.probes, &first(after)?.probes).context(name)?;
        stage.finish()?;
    }
    Ok(())
}

/// A stream for every probe that kube-proxy's rules answer.
fn answered(stage: &Stage, probes: &[Probe]) -> Result<Vec<(String, Stream)>> {
    let mut streams = Vec::new();
    for probe in probes.iter().flat_map(Probe::each) {
        let probe = Probe {
            limit: Some(PATIENT),
            ..probe.times(1)
        };
        let now = stage.network().probe(std::slice::from_ref(&probe))?;
        if now.iter().all(|outcome| outcome.answers.contains(&Answer::Ok)) {
            let name = now.iter().map(|outcome| outcome.probe.clone()).collect();
            streams.push((name, Stream::start(stage.network(), probe, 2 * PAUSE)?));
        }
    }
    ensure!(streams.len() >= 10, "only {} ways are answered", streams.len());
    Ok(streams)
}

/// Loads what a save program printed. The counters that two of the rules name exist only where somebody made them.
fn restore(node: &Namespace, program: &str, saved: &str) -> Result<()> {
    let words: Vec<&str> = saved.split(' ').collect();
    let mut text = String::new();
    let mut skip = 0;
    for (at, word) in words.iter().enumerate() {
        if word == &"-m" && words.get(at + 1) == Some(&"nfacct") {
            skip = words[at..]
                .iter()
                .position(|word| word.ends_with("_pkts"))
                .context("no counter")?
                + 1;
        }
        if skip > 0 {
            skip -= 1;
            continue;
        }
        text.push_str(word);
        text.push(' ');
    }
    let mut child = node.command(program).stdin(Stdio::piped()).spawn()?;
    child
        .stdin
        .take()
        .context("no input")?
        .write_all(text.trim_end_matches(' ').as_bytes())?;
    let status = child.wait()?;
    if !status.success() {
        bail!("{program} ended with {status}");
    }
    Ok(())
}

/// Rules of the modes that are not in force have to go, but not at once: what is in force comes first.
fn nothing_left_beside(stage: &Stage) -> Result<()> {
    let node = stage.network().node();
    let look = |what: &str| node.sh(what).unwrap_or_else(|error| error.to_string());
    let left = || {
        let mut left = String::new();
        if stage.mode() != Mode::Iptables {
            // ipvs mode has chains of its own under some of the names.
            let names = match stage.mode() {
                Mode::Ipvs => "KUBE-(SVC|SVL|EXT|SEP)-[A-Z2-7]{16}",
                _ => "KUBE-(SVC|SVL|EXT|SEP|SERVICES|PROXY)",
            };
            for program in ["iptables-save", "ip6tables-save"] {
                left += &look(&format!("{program} | grep -E '{names}' || true"));
            }
        }
        if stage.mode() != Mode::Ipvs {
            left += &look("ip -o link | grep kube-ipvs0 || true");
        }
        if stage.mode() != Mode::Nftables {
            left += &look("nft list tables | grep kube-proxy || true");
        }
        left
    };
    let gone = ferry_lab::wait_until(Duration::from_secs(10), || left().is_empty());
    ensure!(
        gone,
        "left behind in {} mode:\n{}\n--- ferry's log\n{}",
        stage.mode().as_str(),
        left(),
        stage.log()
    );
    Ok(())
}
