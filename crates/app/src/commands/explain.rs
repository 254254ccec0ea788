//! `ferry explain`: asks the daemon, or objects; watches packets if told to; prints, and says the verdict by its status.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use ferry_model::{Asker, Protocol, Question, Subject};

use super::{CANNOT_TELL, Decided, cannot_tell, decided, print};
use crate::cli::{Invocation, Refused, invalid, one_line};
use crate::explain::{ExplainReport, ExplainRequest, Sender, Transport, Verdict, Watch, watch};
use crate::status;

/// `ferry explain`
pub fn explain(invocation: Invocation) -> anyhow::Result<ExitCode> {
    // Whoever reads the status must not take a failure to look for an answer.
    Ok(explained(invocation).unwrap_or_else(|error| cannot_tell(&one_line(&error))))
}

fn explained(invocation: Invocation) -> anyhow::Result<ExitCode> {
    let output = invocation.output()?;
    let [target] = invocation.arguments.as_slice() else {
        return Err(Refused("exactly one NAMESPACE/SERVICE[:PORT] or IP:PORT is needed".into()).into());
    };
    let live = Live::of(&invocation)?;
    let mut from = Some(invocation.typed.extra.from.clone()).filter(|from| !from.is_empty());
    if live.is_some_and(|live| live.send) {
        let sender = from.get_or_insert_with(|| "node".into());
        if sender != "node" {
            return Err(invalid("--from", sender, "--send sends from this node").into());
        }
    }
    let request = ExplainRequest {
        target: target.clone(),
        from,
    };
    let question = request.question().map_err(Refused)?;
    let mut report = match decided(invocation.origin()?)? {
        Decided::Running(socket) => status::ask_explain(&socket, request)?,
        Decided::Here { .. } if live.is_some() => {
            return Err(
                Refused("--live watches this node: it goes with the running daemon only".into()).into(),
            );
        }
        Decided::Here { settings, loaded } => {
            let explanation = ferry_model::explain(&loaded.planner, &question);
            ExplainReport::of(request, settings.mode.as_str(), &explanation, None, Vec::new())
        }
    };
    if let Some(live) = live {
        live.watch(&question, &mut report)?;
    }
    print(output, &report)?;
    Ok(match report.verdict.is {
        Verdict::Reachable => ExitCode::SUCCESS,
        Verdict::Unreachable => ExitCode::FAILURE,
        Verdict::Unknown => ExitCode::from(CANNOT_TELL),
    })
}

/// What `--live` asks for.
#[derive(Clone, Copy)]
struct Live {
    send: bool,
    time: Duration,
}

impl Live {
    fn of(invocation: &Invocation) -> Result<Option<Self>, Refused> {
        let extra = &invocation.typed.extra;
        let seconds = u64::try_from(extra.seconds).ok();
        let Some(seconds) = seconds.filter(|seconds| (1..=3600).contains(seconds)) else {
            let text = extra.seconds.to_string();
            return Err(invalid("--seconds", &text, "must be 1 to 3600"));
        };
        if !extra.live && extra.send {
            return Err(Refused("--send needs --live".into()));
        }
        Ok(extra.live.then_some(Self {
            send: extra.send,
            time: Duration::from_secs(seconds),
        }))
    }

    /// Watches packets for the first place of a report, and adds what was seen.
    fn watch(self, question: &Question, report: &mut ExplainReport) -> anyhow::Result<()> {
        let (to, protocol) = match (report.places.first(), &question.subject) {
            (Some(place), _) => (place.address, Transport::named(&place.protocol)),
            (
                None,
                Subject::Address {
                    address,
                    port,
                    protocol,
                },
            ) => (
                SocketAddr::new(*address, *port),
                Transport::named(protocol.map_or("tcp", Protocol::as_str)),
            ),
            // There is nothing to send to.
            (None, Subject::Service { .. }) => return Ok(()),
        };
        let from = match &question.from {
            _ if self.send => Sender::Probe,
            Asker::Node => Sender::Node,
            Asker::Outside => Sender::Outside,
            Asker::Address(address, _) => Sender::Address(*address),
            Asker::Anybody => Sender::Anybody,
        };
        let asked = Watch {
            to,
            protocol,
            from,
            time: self.time,
        };
        let (live, findings) = watch(&asked, &report.mode)
            .map_err(|error| anyhow::anyhow!("packets cannot be followed here: {error}"))?;
        report.add_live(live, findings);
        Ok(())
    }
}
