//! The fast path (`--nftables-fast-path`): TCP connections to services that the node forwards leave the rule path once
//! they have proved long enough to be worth it, and the kernel's flowtable carries them from device to device.
//!
//! It has a table of its own beside `kube-proxy`, because nothing in there depends on services: a flowtable with every
//! device, and one rule. UDP stays on the rule path: when its endpoint goes, the flow has to move, and what a flowtable
//! carries does not ask connection tracking any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferry_host::nftables::{
    BaseChain, Batch, ChainDecl, ChainKind, Client, CtKey, Expr, Family, Flowtable, Hook, MetaKey, Op,
    Register, Rule,
};
use ferry_host::route::{self, LinkMonitor, Route};

use super::names;
use crate::{Alarm, Error};

/// Connections below this many packets, both ways together, stay where rules see them.
const THRESHOLD: u64 = 20;
/// After the filters of others (priority 0) have let a packet pass.
const AFTER_FILTERS: i32 = 10;
const STATE_ESTABLISHED: u32 = 2;
const STATUS_DNAT: u32 = 1 << 5;
const TCP: u8 = 6;
const FIRST: Register = Register(0);
/// How long the thread waits before it looks whether it is still wanted.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The fast path of a node, as long as it lives.
#[derive(Debug)]
pub(super) struct FastPath {
    follower: Follower,
    route: Route,
    /// Why the kernel has none, once that is known.
    unsupported: Option<String>,
}

impl FastPath {
    /// Follows the node's devices; `alarm` is called when one came.
    pub(super) fn open(alarm: Alarm) -> Result<Self, Error> {
        const ATTEMPT: &str = "follow the node's network devices";
        Ok(Self {
            follower: Follower::start(alarm).map_err(Error::opening(ATTEMPT))?,
            route: Route::open().map_err(Error::opening(ATTEMPT))?,
            unsupported: None,
        })
    }

    /// Whether devices came or went since the table of this family was written.
    pub(super) fn is_due(&self, family: Family) -> bool {
        self.unsupported.is_none() && self.follower.changed[index(family)].load(Ordering::Relaxed)
    }

    /// Writes the table of a family. Without the kernel's support everything works as before, more slowly: a warning.
    pub(super) fn write(&mut self, client: &mut Client, family: Family) -> Option<String> {
        if let Some(reason) = &self.unsupported {
            return Some(reason.clone());
        }
        // Before the devices are listed: one that comes meanwhile sets it again.
        self.follower.changed[index(family)].store(false, Ordering::Relaxed);
        let devices = match self.route.links() {
            Ok(links) => links.into_iter().filter(|link| !link.loopback),
            Err(error) => return Some(format!("the fast path stays as it is: {error}")),
        };
        let devices = devices.map(|link| link.name.into()).collect();
        let error = client.commit(batch(family, devices)).err()?;
        // A device may have gone since it was listed, which is told and leads here again. Without any it works, if it can.
        if client.commit(batch(family, Vec::new())).is_ok() {
            return Some(format!("the fast path has not all devices: {error}"));
        }
        let reason = format!("no fast path, which needs the kernel's nf_flow_table: {error}");
        self.unsupported = Some(reason.clone());
        Some(reason)
    }
}

/// The whole table, as a transaction that makes it what it should be whatever is there.
fn batch(family: Family, devices: Vec<Arc<str>>) -> Batch {
    let mut batch = Batch::new(family, names::FAST_PATH, None);
    let chain: Arc<str> = "forward".into();
    batch.add_table("established service connections that the node forwards");
    batch.add_flowtable(&Flowtable {
        name: names::FAST_PATH.into(),
        priority: 0,
        devices,
    });
    batch.add_chain(&ChainDecl {
        name: Arc::clone(&chain),
        base: Some(BaseChain {
            kind: ChainKind::Filter,
            hook: Hook::Forward,
            priority: AFTER_FILTERS,
        }),
        comment: None,
    });
    batch.flush_chain(&chain);
    batch.add_rules(&chain, [&rule()]);
    batch
}

/// `meta l4proto tcp ct status dnat ct state established ct packets > 20 flow add @ferry-fast-path`
fn rule() -> Rule {
    let has = |key: CtKey, bit: u32| {
        [
            Expr::Ct { key, to: FIRST },
            Expr::Bitwise {
                from: FIRST,
                to: FIRST,
                mask: bit.to_ne_bytes().into(),
                xor: [0; 4].into(),
            },
            Expr::Compare {
                op: Op::NotEqual,
                from: FIRST,
                data: [0; 4].into(),
            },
        ]
    };
    let tcp = [
        Expr::Meta {
            key: MetaKey::L4Proto,
            to: FIRST,
        },
        Expr::Compare {
            op: Op::Equal,
            from: FIRST,
            data: [TCP].into(),
        },
    ];
    let long = [
        Expr::Ct {
            key: CtKey::Packets,
            to: FIRST,
        },
        Expr::ToNetworkOrder {
            from: FIRST,
            to: FIRST,
            length: 8,
        },
        Expr::Compare {
            op: Op::Greater,
            from: FIRST,
            data: THRESHOLD.to_be_bytes().into(),
        },
    ];
    let add = Expr::Offload {
        flowtable: names::FAST_PATH.into(),
    };
    Rule {
        expressions: tcp
            .into_iter()
            .chain(has(CtKey::Status, STATUS_DNAT))
            .chain(has(CtKey::State, STATE_ESTABLISHED))
            .chain(long)
            .chain([add])
            .collect(),
        comment: None,
    }
}

/// A thread that hears of devices.
#[derive(Debug)]
struct Follower {
    /// For each family, whether there is something to write.
    changed: Arc<[AtomicBool; 2]>,
    unwanted: Arc<AtomicBool>,
}

impl Follower {
    fn start(alarm: Alarm) -> Result<Self, route::Error> {
        let mut monitor = LinkMonitor::open()?;
        let (changed, unwanted): (Arc<[AtomicBool; 2]>, Arc<AtomicBool>) = Default::default();
        let (told, ending) = (Arc::clone(&changed), Arc::clone(&unwanted));
        let follow = move || {
            while !ending.load(Ordering::Relaxed) {
                match monitor.wait(POLL_INTERVAL) {
                    Ok(false) => {}
                    Ok(true) => {
                        told.iter()
                            .for_each(|changed| changed.store(true, Ordering::Relaxed));
                        alarm();
                    }
                    // A socket that cannot be read will not get better; the next full sync looks at devices anyway.
                    Err(_) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("fast-path".into());
        thread.spawn(follow).map_err(|source| {
            let step = "following thread";
            route::Error::Watch(ferry_host::netlink::Error::Setup { step, source })
        })?;
        Ok(Self { changed, unwanted })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.unwanted.store(true, Ordering::Relaxed);
    }
}

fn index(family: Family) -> usize {
    match family {
        Family::Ip => 0,
        Family::Ip6 => 1,
    }
}
