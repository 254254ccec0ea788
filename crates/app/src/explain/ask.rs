//! The question, as it is typed and as it is sent to the daemon.

use ferry_model::{Asker, PortWanted, Protocol, Question, ServiceName, Subject};
use serde::{Deserialize, Serialize};

use crate::config::values::{parse_ip, quote, split_host_port};

/// What is asked, in the user's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainRequest {
    /// `NAMESPACE/SERVICE[:PORT]` or `IP:PORT`, either with `/PROTOCOL`.
    pub target: String,
    /// An address, `node` or `outside`; whoever it is there for if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

const FORMS: &str = "must be NAMESPACE/SERVICE[:PORT[/PROTOCOL]] or IP:PORT[/PROTOCOL]";

impl ExplainRequest {
    /// What is meant, or why nothing is.
    pub fn question(&self) -> Result<Question, String> {
        Ok(Question {
            subject: subject(&self.target).map_err(|why| format!("{}: {why}", quote(&self.target)))?,
            from: match self.from.as_deref() {
                None => Asker::Anybody,
                Some("node") => Asker::Node,
                Some("outside") => Asker::Outside,
                Some(text) => {
                    let address = parse_ip(text).ok_or_else(|| {
                        format!("--from: {}: must be an IP address, node or outside", quote(text))
                    })?;
                    Asker::Address(address, None)
                }
            },
        })
    }
}

fn subject(text: &str) -> Result<Subject, String> {
    if let Some(subject) = address(text)? {
        return Ok(subject);
    }
    let (namespace, rest) = text.split_once('/').ok_or(FORMS)?;
    let (service, port) = match rest.split_once(':') {
        Some((service, port)) => (service, Some(port)),
        None => (rest, None),
    };
    let is_name = |name: &str| !name.is_empty() && !name.contains(['/', ':', ' ']);
    if !is_name(namespace) || !is_name(service) {
        return Err(FORMS.into());
    }
    let (port, protocol) = match port.map(|port| port.split_once('/').unwrap_or((port, ""))) {
        None => (None, None),
        Some((port, protocol)) => (Some(port), protocol_of(protocol)?),
    };
    let port = match port {
        Some("") => return Err(FORMS.into()),
        Some(port) => Some(match port.parse() {
            Ok(number) => PortWanted::Number(number),
            Err(_) => PortWanted::Name(port.into()),
        }),
        None => None,
    };
    Ok(Subject::Service {
        name: ServiceName::new(namespace, service),
        port,
        protocol,
    })
}

fn address(text: &str) -> Result<Option<Subject>, String> {
    let (place, protocol) = text.split_once('/').unwrap_or((text, ""));
    let Ok((host, port)) = split_host_port(place) else {
        return Ok(None);
    };
    let Some(address) = parse_ip(host) else {
        return Ok(None);
    };
    let port = port.parse().ok().filter(|port| *port > 0);
    Ok(Some(Subject::Address {
        address,
        port: port.ok_or("the port must be 1 to 65535")?,
        protocol: protocol_of(protocol)?,
    }))
}

fn protocol_of(text: &str) -> Result<Option<Protocol>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let found = known
        .into_iter()
        .find(|known| known.as_str().eq_ignore_ascii_case(text));
    found
        .map(Some)
        .ok_or_else(|| "the protocol must be tcp, udp or sctp".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(target: &str) -> Result<Subject, String> {
        subject(target)
    }

    #[test]
    fn every_form_is_read() {
        let service = |port: Option<PortWanted>, protocol| Subject::Service {
            name: ServiceName::new("shop", "web"),
            port,
            protocol,
        };
        assert_eq!(read("shop/web"), Ok(service(None, None)));
        assert_eq!(
            read("shop/web:80"),
            Ok(service(Some(PortWanted::Number(80)), None))
        );
        assert_eq!(
            read("shop/web:dns/udp"),
            Ok(service(Some(PortWanted::Name("dns".into())), Some(Protocol::Udp)))
        );
        let at = |address: &str, port, protocol| Subject::Address {
            address: address.parse().unwrap(),
            port,
            protocol,
        };
        assert_eq!(read("10.96.0.1:80"), Ok(at("10.96.0.1", 80, None)));
        assert_eq!(
            read("[fd00::1]:53/UDP"),
            Ok(at("fd00::1", 53, Some(Protocol::Udp)))
        );
    }

    #[test]
    fn what_is_neither_is_refused_with_the_forms() {
        for wrong in ["web", "shop/", "/web", "shop/web:", "shop/we b", "a/b/c"] {
            assert_eq!(read(wrong), Err(FORMS.to_owned()), "{wrong}");
        }
        assert_eq!(read("10.96.0.1:0"), Err("the port must be 1 to 65535".into()));
        assert_eq!(
            read("10.96.0.1:80/icmp"),
            Err("the protocol must be tcp, udp or sctp".into())
        );
    }
}
