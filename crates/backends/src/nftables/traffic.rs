//! What the elements' counters say: new connections by service port and by endpoint. Read only when asked for.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use ferry_host::nftables::{Client, Data, Error, Key, Value};
use ferry_model::{Family, PortName};

use super::known::Known;
use super::names;
use super::render::{self, FixedSet, Piece};
use crate::Traffic;

/// Sums over all frontends of a port.
pub(super) fn read(client: &mut Client, known: &Known, family: Family) -> Result<Vec<Traffic>, Error> {
    let mut sums: HashMap<(PortName, Option<SocketAddr>), u64> = HashMap::new();
    let owners = owners(known, family);
    for set in [
        FixedSet::Frontends,
        FixedSet::NodePorts,
        FixedSet::Endpoints,
        FixedSet::NodePortEndpoints,
    ] {
        let counts = client.elements(
            known.context.family,
            names::TABLE,
            set.name(),
            Vec::new,
            |all, found| {
                if let Some((element, Some(counter))) = found {
                    all.push((element.key, element.value, counter.packets));
                }
            },
        )?;
        for (key, value, packets) in counts {
            let Some(port) = owners.get(&(set, key)) else {
                continue;
            };
            let endpoint = match &value {
                Value::Data(data) => endpoint(data),
                Value::Verdict(_) | Value::None => None,
            };
            *sums.entry((port.clone(), endpoint)).or_default() += packets;
        }
    }
    let mut all: Vec<Traffic> = sums
        .into_iter()
        .map(|((port, endpoint), connections)| Traffic {
            family,
            port,
            endpoint,
            connections,
            bytes: None,
            relayed: None,
        })
        .collect();
    all.sort_by(|a, b| (&a.port, a.endpoint).cmp(&(&b.port, b.endpoint)));
    Ok(all)
}

/// Which service port each counted element belongs to.
fn owners(known: &Known, family: Family) -> HashMap<(FixedSet, Key), PortName> {
    let mut owners = HashMap::new();
    for service in known.services.values() {
        for port in service.ports(family) {
            for piece in render::port(port, &known.context) {
                if let Piece::Element(set, element) = piece {
                    owners.insert((set, element.key), port.name.clone());
                }
            }
        }
    }
    owners
}

fn endpoint(data: &Data) -> Option<SocketAddr> {
    let bytes = data.as_slice();
    let (address, port) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    let ip = <[u8; 4]>::try_from(address)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(address).map(IpAddr::from))
        .ok()?;
    Some(SocketAddr::new(ip, u16::from_be_bytes([port[0], port[1]])))
}
