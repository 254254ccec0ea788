//! What should happen to a packet, decided once and for every backend.
//!
//! Facts about Services, EndpointSlices and the node go in, a [`Plan`] comes out, and [`trace`] says what the plan
//! means for one packet. Everything here is a pure function of values: no IO, clock, logging or Kubernetes types.

mod explain;
mod facts;
mod moves;
mod names;
mod options;
mod plan;
mod snapshot;
mod stale;
mod trace;

pub use explain::{
    Asker, Because, Cause, EndpointFate, Explanation, Fate, Finding, HintsUnused, Place, PolicyField,
    PortWanted, Question, Reason, Subject, Weight, explain,
};
pub use facts::{
    EndpointSlice, Hints, Host, Node, ObjectRef, Service, ServiceOptions, ServicePort, ServiceType, Skipped,
    SliceEndpoint, SlicePort, TrafficPolicy,
};
pub use moves::{Before, Decision, Move, Moves, Pools, Way, decisions, moves};
pub use names::{Family, PerFamily, PortName, Protocol, ServiceName, SliceName};
pub use options::{DetectLocal, LocalhostNodePorts, NodePortAddress, PlanOptions, Policy};
pub use plan::{
    Action, Actions, Allowed, Changed, Client, Contest, Detector, Endpoint, FamilyTally, Frontend,
    FrontendKey, FrontendKind, Frontends, HealthCheck, Masqueraded, NodeFamily, NodePlan, NodePorts, Plan,
    Planner, Pool, PortPlan, Replaced, Revision, Scope, ServicePlan, Tally, Update,
};
pub use snapshot::{Affected, Event, Snapshot};
pub use stale::{Doomed, StaleFlows, UdpFlow, UdpFrontends, Which, stale_flows};
pub use trace::{Origin, Outcome, Packet, Target, trace};
