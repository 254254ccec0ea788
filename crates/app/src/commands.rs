//! The commands beside the daemon: they show, and change nothing.

use crate::cli;

/// `ferry plan`
pub fn plan(plan: cli::Plan) -> anyhow::Result<()> {
    anyhow::bail!("{:?} is not built in", plan.output)
}

/// `ferry trace`
pub fn trace(trace: cli::Trace) -> anyhow::Result<()> {
    anyhow::bail!("{:?} is not built in", trace.output)
}

/// `ferry status`
pub fn status(status: cli::Status) -> anyhow::Result<()> {
    anyhow::bail!("{:?} is not built in", status.output)
}

/// `ferry demo`
pub fn demo(demo: cli::Demo) -> anyhow::Result<()> {
    crate::demo::run(&demo)
}
