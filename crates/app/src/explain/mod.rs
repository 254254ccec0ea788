//! `ferry explain`: why a service is or is not reached from here. First what the plan decided, then what the kernel holds,
//! last a verdict and what to do. Reads only; the plan's part is [`ferry_model::explain`], the rules are read back by the
//! mode's backend, and the rest of the kernel is looked at here.

mod ask;
mod findings;
mod kernel;
mod live;
mod report;
mod text;

pub use ask::ExplainRequest;
pub(crate) use findings::SourceState;
pub(crate) use kernel::{Inspected, interface_to, look};
pub(crate) use live::{Sender, Transport, Watch, watch};
pub use report::{ExplainReport, Verdict};
