//! Facts from a Kubernetes API server.
//!
//! Four followers, one per kind, each with its own list/watch loop over the slim types of `objects`; no store of
//! objects, only names and a hash of each. Talks to the API server and to nothing else. Whatever the server does or
//! fails to do, what was published stays in force, and only a complete list makes an object disappear unseen.
//!
//! Objects are asked for in protobuf, as kube-proxy does, and in JSON where that is configured, or where a server
//! does not write protobuf. Both are read by decoders that keep only the fields in use.

mod api;
mod backoff;
mod client;
mod connect;
mod follow;
mod frame;
mod health;
mod intake;
mod known;
mod list;
mod protocol;
mod requests;
mod resource;
mod watch;

pub use api::{Api, Trouble};
pub use client::{Body, Refused, Timing as ClientTiming};
pub use connect::{ConnectError, Connection, check_kubeconfig};
pub use frame::Encoding;
#[doc(hidden)]
pub use frame::fuzz_frames;
pub use requests::{Histogram, Measure, PluginUse, RequestCount, Requests};

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use follow::Follower;
use health::Contact;
use resource::Resource;

use crate::assemble::Mailbox;
use crate::convert::Interner;

/// The followers' times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    pub backoff_first: Duration,
    pub backoff_most: Duration,
    /// Until an answer begins, and between the pieces of a list.
    pub answer: Duration,
    /// How many seconds a watch may last.
    pub watch: Range<u64>,
    /// How long a watch must stay open before it counts as working.
    pub settle: Duration,
    /// Between two lists, at most, while watches do not work and lists are quick.
    pub poll: Duration,
    /// After this time, and up to as much again, without a word on a watch the server is asked for its version.
    pub check_after: Duration,
    /// After this time, and up to as much again, without a word on a watch everything is listed again. Servers send a
    /// bookmark about every minute where etcd tells them that it made progress, which by default is every ten.
    pub list_after: Duration,
    /// At most, until a resource that the cluster does not serve is looked for again.
    pub missing: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            backoff_first: Duration::from_millis(800),
            backoff_most: Duration::from_secs(15),
            answer: Duration::from_secs(30),
            watch: 300..600,
            settle: Duration::from_secs(1),
            poll: Duration::from_secs(2),
            check_after: Duration::from_secs(180),
            list_after: Duration::from_secs(720),
            missing: Duration::from_secs(600),
        }
    }
}

/// Follows a cluster on behalf of one node.
#[derive(Debug)]
pub struct KubeSource {
    api: Api,
    node_name: String,
    timing: Timing,
}

impl KubeSource {
    pub fn new(api: Api, node_name: &str) -> Self {
        KubeSource {
            api,
            node_name: node_name.to_owned(),
            timing: Timing::default(),
        }
    }

    pub fn with_timing(self, timing: Timing) -> Self {
        KubeSource { timing, ..self }
    }

    /// Feeds the mailbox without end: every kind of [`crate::Kind::ALL`]. Dropping the future ends it at once.
    pub async fn run(self, mailbox: Arc<Mailbox>) {
        let interner = Arc::new(Interner::default());
        let contact = Arc::new(Contact::default());
        let resources = [
            Resource::Services,
            Resource::EndpointSlices,
            Resource::Node(self.node_name),
            Resource::ServiceCidrs,
        ];
        let followers = resources.map(|resource| {
            Follower::new(
                self.api.clone(),
                mailbox.clone(),
                interner.clone(),
                contact.clone(),
                self.timing.clone(),
                resource,
            )
            .run()
        });
        futures::future::join_all(followers).await;
    }
}
