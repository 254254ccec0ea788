//! Faults at every step: the system calls by which `ferry` talks to the kernel and to its helpers are struck one after
//! the other, by strace, until a start goes by without being struck. No hook in the program is needed, and no step is
//! left out.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ferry_lab::netns::{Answer, Outcome, Probe, Proto, summarise};
use serde_json::Value;

use crate::live::{PATIENT, dual_stack_service, nothing_lost, settle, stage, stop, streams};
use crate::objects::{self, Endpoint, POD1, POD1_V6, POD2, RPOD1, RPOD1_V6};
use crate::stage::Start;
use crate::{Mode, Stage};

/// Everything that is sent, and every start of a thread or another program. Of each thread the n-th call is struck.
const STEPS: &str = "sendmsg,sendto,clone,clone3,vfork";
/// What is sent and what is read.
const MESSAGES: &str = "sendmsg,sendto,recvmsg,recvfrom";
/// A start has fewer steps; more would mean that it never ends.
const MANY: u32 = 500;
/// A start has more steps than this, or nothing was tested.
const FEW: u32 = 10;

/// A process that is ready removes what other modes left.
const AFTERMATH: Duration = Duration::from_millis(400);

/// What the standard library says, and ends with, when it cannot read from its own end of a pair of sockets. No kernel
/// refuses that; the injection hits it too when a program is started.
const CANNOT_HAPPEN: &str = "the CLOEXEC pipe failed";

const MOVING: &str = "10.96.9.2";

/// `ferry` is killed at every step of a start that has something to write: whoever is served stays served, and the next
/// start ends where it should. Returns how many steps there were.
pub fn crash_points(mode: Mode) -> Result<u32> {
    let mut stage = stage(mode, &dual_stack_service(&[POD1, RPOD1], &[POD1_V6, RPOD1_V6]))?;
    stage.change(&moving(POD1), &[])?;
    settle(&stage, &Answer::Ok)?;
    // connections through a process end with it
    let traffic = match mode {
        Mode::Userspace => Vec::new(),
        Mode::Nftables | Mode::Iptables | Mode::Ipvs => streams(&stage, Some(PATIENT))?,
    };
    let mut struck = 0;
    for n in 1..=MANY {
        stage.stop_proxy()?;
        let to = if n % 2 == 0 { POD1 } else { RPOD1 };
        stage.api().apply(moving(to))?;
        let started = stage.start_struck(STEPS, "signal=SIGKILL", n)?;
        if let Start::Ready = started
            && stage.lives_on(AFTERMATH)?
        {
            break;
        }
        struck = n;
        stage
            .start_proxy()
            .with_context(|| format!("after a crash at call {n}"))?;
        expect(&mut stage, to).with_context(|| format!("after a crash at call {n}"))?;
    }
    // the last one may still meet its injection, later
    stage.kill_proxy()?;
    stage.start_proxy()?;
    nothing_lost(stop(traffic)?)?;
    ensure!((FEW..MANY).contains(&struck), "{struck} crash points");
    stage.finish()?;
    Ok(struck)
}

/// Every message to the kernel and every answer fails once: `ferry` goes on by itself, or ends with its reason and is
/// started again, and is right in the end. Returns how many there were.
pub fn errors_at_every_message(mode: Mode, error: &str) -> Result<u32> {
    let mut stage = stage(mode, &dual_stack_service(&[POD1, RPOD1], &[POD1_V6, RPOD1_V6]))?;
    stage.change(&moving(POD1), &[])?;
    let mut struck = 0;
    for n in 1..=MANY {
        // not by a signal that it has to notice: the standard library's way to do so sends a message to itself
        stage.kill_proxy()?;
        let to = if n % 2 == 0 { POD1 } else { RPOD1 };
        stage.api().apply(moving(to))?;
        match stage.start_struck(MESSAGES, &format!("error={error}"), n)? {
            Start::Ready => {}
            Start::Ended(status) if status.code() == Some(1) || stage.said(CANNOT_HAPPEN) => {
                stage.start_proxy()?
            }
            Start::Ended(status) => bail!("{status} after {error} at call {n}\n{}", stage.log()),
        }
        expect(&mut stage, to).with_context(|| format!("after {error} at call {n}"))?;
        if !stage.was_struck()? {
            break;
        }
        struck = n;
    }
    ensure!((FEW..MANY).contains(&struck), "{struck} messages");
    stage.finish()?;
    Ok(struck)
}

/// A service of one endpoint that is elsewhere after each round, and another that comes with it.
fn moving(to: Endpoint) -> Vec<Value> {
    vec![
        objects::service("moving", &[MOVING]),
        objects::slice("moving", "IPv4", &[to]),
        objects::service("beside", &["10.96.9.3"]),
        objects::slice("beside", "IPv4", &[POD2, to]),
    ]
}

fn expect(stage: &mut Stage, at: Endpoint) -> Result<()> {
    let probe = Probe::new("pod2", MOVING.parse()?, 80, Proto::Tcp);
    let wanted = format!("{}:8080", ferry_lab::netns::name_of(at.0.parse()?));
    let mut last: Option<Outcome> = None;
    let right = ferry_lab::wait_until(Duration::from_secs(20), || {
        let replies = stage
            .network()
            .replies(std::slice::from_ref(&probe))
            .unwrap_or_default();
        last = replies.first().map(|replies| summarise(&probe, replies));
        last.as_ref()
            .is_some_and(|outcome| outcome.backends.iter().eq([&wanted]))
    });
    ensure!(
        right,
        "wanted {wanted}, got {last:?}\n--- ferry's log\n{}",
        stage.log()
    );
    Ok(())
}
