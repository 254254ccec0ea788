//! A question in packets, and what came of it.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, UdpSocket};

use super::{Sockets, name_of};
use crate::patience;

/// How long a probe waits for an answer before it calls the packet dropped.
const ANSWER_TIME: Duration = Duration::from_millis(1200);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proto::Tcp => "tcp",
            Proto::Udp => "udp",
            Proto::Sctp => "sctp",
        })
    }
}

/// The hosts that send a probe: one name, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Senders {
    One(String),
    Many(Vec<String>),
}

/// Connections (or datagrams) from a host to an address, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    pub from: Senders,
    pub to: IpAddr,
    pub port: u16,
    #[serde(default)]
    pub proto: Proto,
    /// How often, as long as the first is answered.
    #[serde(default = "once")]
    pub count: u32,
    /// The local address and port to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<IpAddr>,
    #[serde(default)]
    pub sport: u16,
    /// Asks only whether all answers came from one backend.
    #[serde(default)]
    pub sticky: bool,
    /// How long to wait for an answer, if not as long as usual.
    #[serde(skip)]
    pub limit: Option<Duration>,
}

fn once() -> u32 {
    1
}

impl Probe {
    pub fn new(from: &str, to: IpAddr, port: u16, proto: Proto) -> Probe {
        let from = Senders::One(from.to_owned());
        Probe {
            from,
            to,
            port,
            proto,
            count: 1,
            bind: None,
            sport: 0,
            sticky: false,
            limit: None,
        }
    }

    #[must_use]
    pub fn times(self, count: u32) -> Probe {
        Probe { count, ..self }
    }

    /// One probe for each sender.
    pub fn each(&self) -> Vec<Probe> {
        match &self.from {
            Senders::One(_) => vec![self.clone()],
            Senders::Many(names) => names
                .iter()
                .map(|n| Probe {
                    from: Senders::One(n.clone()),
                    ..self.clone()
                })
                .collect(),
        }
    }

    /// The sender's name; of several, the first.
    pub fn sender(&self) -> &str {
        match &self.from {
            Senders::One(name) => name,
            Senders::Many(names) => names.first().map_or("", String::as_str),
        }
    }

    /// Sends it and collects the replies.
    pub(super) async fn send(&self, sockets: &Sockets) -> Vec<Reply> {
        let mut replies = vec![self.once(sockets).await];
        // repeated refusals would only meet the kernel's ICMP rate limit
        if replies[0].answer == Answer::Ok {
            for _ in 1..self.count {
                replies.push(self.once(sockets).await);
            }
        }
        replies
    }

    /// Sends it once and waits for the answer.
    pub async fn once(&self, sockets: &Sockets) -> Reply {
        match tokio::time::timeout(patience(self.limit.unwrap_or(ANSWER_TIME)), self.ask(sockets)).await {
            Err(_) => Reply::just(Answer::Timeout),
            Ok(Err(e)) => Reply::just(Answer::of(&e)),
            Ok(Ok(bytes)) if bytes.is_empty() => Reply::just(Answer::Closed),
            Ok(Ok(bytes)) => Reply::read(&bytes),
        }
    }

    async fn ask(&self, sockets: &Sockets) -> io::Result<Vec<u8>> {
        let socket = sockets.get(self.to.is_ipv6(), self.proto).await?;
        if let Some(local) = self.bind {
            socket.bind(&SocketAddr::new(local, self.sport).into())?;
        }
        let to = SocketAddr::new(self.to, self.port);
        let mut buffer = vec![0; 2048];
        let n = match self.proto {
            Proto::Tcp | Proto::Sctp => {
                let mut stream = TcpSocket::from_std_stream(socket.into()).connect(to).await?;
                stream.read(&mut buffer).await?
            }
            Proto::Udp => {
                let socket = UdpSocket::from_std(socket.into())?;
                socket.connect(to).await?;
                socket.send(b"?").await?;
                socket.recv(&mut buffer).await?
            }
        };
        buffer.truncate(n);
        Ok(buffer)
    }
}

/// How one connection attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    Ok,
    Refused,
    Timeout,
    Unreachable,
    Reset,
    Closed,
    Other(String),
}

impl Answer {
    fn of(error: &io::Error) -> Answer {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Answer::Refused,
            Some(libc::ECONNRESET) => Answer::Reset,
            // EPERM: dropped on the way out of this very host
            Some(libc::ETIMEDOUT | libc::EPERM) => Answer::Timeout,
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => Answer::Unreachable,
            Some(code) => Answer::Other(format!("errno {code}")),
            None => Answer::Other(error.to_string()),
        }
    }

    fn as_str(&self) -> &str {
        match self {
            Answer::Ok => "ok",
            Answer::Refused => "refused",
            Answer::Timeout => "timeout",
            Answer::Unreachable => "unreachable",
            Answer::Reset => "reset",
            Answer::Closed => "closed",
            Answer::Other(what) => what,
        }
    }

    fn parse(text: &str) -> Answer {
        let known = [
            Answer::Ok,
            Answer::Refused,
            Answer::Timeout,
            Answer::Unreachable,
            Answer::Reset,
            Answer::Closed,
        ];
        let found = known.into_iter().find(|a| a.as_str() == text);
        found.unwrap_or_else(|| Answer::Other(text.to_owned()))
    }
}

/// One answer, with the server's words if there were any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub answer: Answer,
    /// The address that answered, and the address that it saw.
    pub seen: Option<(SocketAddr, IpAddr)>,
}

impl Reply {
    fn just(answer: Answer) -> Reply {
        Reply { answer, seen: None }
    }

    fn read(bytes: &[u8]) -> Reply {
        match parse_answer(bytes) {
            Some(seen) => Reply {
                answer: Answer::Ok,
                seen: Some(seen),
            },
            None => Reply::just(Answer::Other(format!(
                "garbage: {}",
                String::from_utf8_lossy(bytes)
            ))),
        }
    }
}

/// Reads a lab server's answer: where it was reached, whom it saw.
pub(super) fn parse_answer(bytes: &[u8]) -> Option<(SocketAddr, IpAddr)> {
    #[derive(Deserialize)]
    struct Words {
        local: String,
        peer: IpAddr,
    }
    let words: Words = serde_json::from_slice(bytes).ok()?;
    let (address, port) = words.local.split_once('|')?;
    Some((
        SocketAddr::new(address.parse().ok()?, port.parse().ok()?),
        words.peer,
    ))
}

/// What came of a probe, in the form in which it is recorded and compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    pub probe: String,
    #[serde(
        rename = "result",
        serialize_with = "write_answers",
        deserialize_with = "read_answers"
    )]
    pub answers: BTreeSet<Answer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<bool>,
    /// `name:port` of everyone who answered.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub backends: BTreeSet<String>,
    /// Names of the peers that the backends saw.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub sources: BTreeSet<String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers: Vec<&str> = self.answers.iter().map(Answer::as_str).collect();
        write!(f, "{}: {}", self.probe, answers.join(" and "))?;
        match self.sticky {
            Some(true) => write!(f, ", one backend")?,
            Some(false) => write!(f, ", several backends")?,
            None => {}
        }
        for (what, names) in [("by", &self.backends), ("as", &self.sources)] {
            if !names.is_empty() {
                write!(
                    f,
                    " {what} {}",
                    names.iter().cloned().collect::<Vec<_>>().join(",")
                )?;
            }
        }
        Ok(())
    }
}

/// Replies of one probe as one outcome. Which backend a sticky client gets is chance, and so is its source.
pub fn summarise(probe: &Probe, replies: &[Reply]) -> Outcome {
    let seen: Vec<&(SocketAddr, IpAddr)> = replies.iter().filter_map(|r| r.seen.as_ref()).collect();
    let backends: BTreeSet<String> = seen
        .iter()
        .map(|(at, _)| format!("{}:{}", name_of(at.ip()), at.port()))
        .collect();
    let sources = seen.iter().map(|(_, peer)| name_of(*peer)).collect();
    let mut outcome = Outcome {
        probe: format!(
            "{} -> {}:{}/{}",
            probe.sender(),
            probe.to,
            probe.port,
            probe.proto
        ),
        answers: replies.iter().map(|r| r.answer.clone()).collect(),
        sticky: None,
        backends,
        sources,
    };
    if probe.sticky {
        outcome.sticky = Some(outcome.backends.len() == 1);
        outcome.backends.clear();
        outcome.sources.clear();
    }
    outcome
}

fn write_answers<S: Serializer>(answers: &BTreeSet<Answer>, to: S) -> Result<S::Ok, S::Error> {
    let words: Vec<&str> = answers.iter().map(Answer::as_str).collect();
    match words.as_slice() {
        [one] => one.serialize(to),
        many => many.serialize(to),
    }
}

fn read_answers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<Answer>, D::Error> {
    let words = match Senders::deserialize(from)? {
        Senders::One(word) => vec![word],
        Senders::Many(words) => words,
    };
    if words.is_empty() {
        return Err(D::Error::custom("an outcome needs a result"));
    }
    Ok(words.iter().map(|w| Answer::parse(w)).collect())
}
