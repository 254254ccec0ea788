//! `/healthz` and `/livez`: is the data plane up to date, and may this node take traffic.
//!
//! A family is stale only when a change has waited for longer than the limit; an idle proxy is healthy for ever.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ferry_model::Family;
use http::StatusCode;
use serde::Serialize;
use tokio::runtime::Handle;

use super::listen::{self, ListenError, Wildcard};
use super::serve::{JSON, Reply, Server, not_found, reply};
use crate::clock::{Now, rfc3339};
use crate::metrics::Metrics;

/// What the loop and the node watch publish about themselves; shared by all servers.
#[derive(Debug)]
pub struct Health {
    stale_after: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    families: BTreeMap<Family, FamilyState>,
}

#[derive(Debug)]
struct FamilyState {
    last_updated: SystemTime,
    oldest_pending: Option<Instant>,
}

/// Which question is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    /// May a load balancer send traffic here?
    Ready,
    /// Does the process work?
    Live,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<String, FamilyBody>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

impl Health {
    /// Changes that wait for `stale_after` (twice the sync period) make a family unhealthy.
    pub fn new(stale_after: Duration) -> Self {
        Self {
            stale_after,
            state: Mutex::default(),
        }
    }

    /// A change of this family waits to be applied. The oldest waiting one counts.
    pub fn queued(&self, family: Family, now: Now) {
        if let Some(state) = self.state().families.get_mut(&family) {
            state.oldest_pending.get_or_insert(now.steady);
        }
    }

    /// Everything known is applied for this family.
    pub fn updated(&self, family: Family, now: Now) {
        let fresh = FamilyState {
            last_updated: now.calendar,
            oldest_pending: None,
        };
        self.state().families.insert(family, fresh);
    }

    /// The loop begins to serve this family: from now on it can be stale, and is not yet.
    pub fn started(&self, family: Family, now: Now) {
        self.updated(family, now);
    }

    /// Whether every family is up to date.
    pub fn healthy(&self, now: Now) -> bool {
        let state = self.state();
        state.families.values().all(|family| self.fresh(family, now))
    }

    fn fresh(&self, family: &FamilyState, now: Now) -> bool {
        family
            .oldest_pending
            .is_none_or(|since| now.steady.duration_since(since) < self.stale_after)
    }

    fn answer(&self, probe: Probe, node_eligible: bool, now: Now) -> (StatusCode, Body) {
        let state = self.state();
        let healthy = state.families.values().all(|family| self.fresh(family, now));
        let ok = match probe {
            Probe::Ready => healthy && node_eligible,
            Probe::Live => healthy,
        };
        let newest = state.families.values().map(|family| family.last_updated).max();
        let last_updated = match (ok, newest) {
            (true, _) => rfc3339(now.calendar),
            (false, Some(newest)) => rfc3339(newest),
            (false, None) => "0001-01-01T00:00:00Z".to_owned(),
        };
        let status = state.families.iter().map(|(family, family_state)| {
            let healthy = self.fresh(family_state, now);
            (
                family.to_string(),
                FamilyBody {
                    last_updated: rfc3339(family_state.last_updated),
                    healthy,
                },
            )
        });
        let body = Body {
            last_updated,
            current_time: rfc3339(now.calendar),
            node_eligible: (probe == Probe::Ready).then_some(node_eligible),
            healthy,
            status: status.collect(),
        };
        (
            if ok {
                StatusCode::OK
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            },
            body,
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the health server. `eligible` tells whether the node may take traffic: it exists, is not being deleted and
/// the autoscaler does not want it gone.
pub fn start(
    address: SocketAddr,
    health: Arc<Health>,
    eligible: impl Fn() -> bool + Clone + Send + Sync + 'static,
    metrics: Arc<Metrics>,
    runtime: &Handle,
) -> Result<Server, ListenError> {
    let listener = listen::bind(address, Wildcard::BothFamilies)?;
    Server::start("healthz", listener, runtime, move |request| {
        let reply = answer(request.uri().path(), &health, eligible(), &metrics, Now::read());
        async move { reply }
    })
    .map_err(|source| ListenError::new(address, source))
}

fn answer(path: &str, health: &Health, eligible: bool, metrics: &Metrics, now: Now) -> Reply {
    let (probe, counter) = match path {
        "/healthz" => (Probe::Ready, &metrics.healthz),
        "/livez" => (Probe::Live, &metrics.livez),
        _ => return not_found(),
    };
    let (status, body) = health.answer(probe, eligible, now);
    counter.increment(&[status.as_str()]);
    match serde_json::to_vec(&body) {
        Ok(body) => reply(status, JSON, body),
        Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, JSON, format!("{error}")),
    }
}
