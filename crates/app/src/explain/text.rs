//! The explanation for people: the plan's steps, the kernel's state, the verdict.

use std::fmt;

use super::live::LiveReport;
use super::report::{
    BecauseReport, CheckState, ExplainReport, FindingWeight, KernelReport, PlaceReport, WayReport,
};

/// Counters that are shown.
const SHOWN_COUNTERS: usize = 6;

impl fmt::Display for ExplainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in &self.places {
            writeln!(f, "{place}")?;
        }
        if let Some(kernel) = &self.kernel {
            writeln!(f, "kernel, in mode {}\n{kernel}", self.mode)?;
        }
        if let Some(live) = &self.live {
            writeln!(f, "{live}")?;
        }
        // The verdict says the first one.
        let told = usize::from(self.verdict.remedy.is_some());
        for finding in self.findings.iter().skip(told) {
            let head = match finding.weight {
                FindingWeight::Blocks => "in the way",
                FindingWeight::Doubt => "in doubt",
                FindingWeight::Note => "note",
            };
            writeln!(f, "{head}: {}\n  to do: {}", finding.says, finding.remedy)?;
        }
        writeln!(f, "verdict: {}", self.verdict.says)?;
        match &self.verdict.remedy {
            Some(remedy) => writeln!(f, "to do: {remedy}"),
            None => Ok(()),
        }
    }
}

fn because(f: &mut fmt::Formatter<'_>, because: Option<&BecauseReport>) -> fmt::Result {
    match because {
        None => writeln!(f),
        Some(BecauseReport { object, field, value }) => writeln!(f, "  ({object}: {field}: {value})"),
    }
}

impl fmt::Display for PlaceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = match self.client.as_str() {
            "pod" => "a pod",
            "node" => "this node",
            _ => "somebody outside",
        };
        let fate = match self.fate.as_str() {
            "forward" => "forwarded",
            "drop" => "dropped",
            "reject" => "rejected",
            _ => "left to the host",
        };
        writeln!(
            f,
            "{} at {}/{} ({}), asked by {client}: {fate}",
            self.service, self.address, self.protocol, self.kind
        )?;
        for (number, step) in self.steps.iter().enumerate() {
            write!(f, "  {}. {}", number + 1, step.says)?;
            because(f, step.because.as_ref())?;
        }
        for endpoint in &self.endpoints {
            let sign = if endpoint.used { "->" } else { " x" };
            write!(f, "  {sign} {} {}", endpoint.address, endpoint.why)?;
            because(f, endpoint.because.as_ref())?;
        }
        Ok(())
    }
}

impl fmt::Display for KernelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = self.checks.iter().filter(|one| one.state == CheckState::Present);
        writeln!(
            f,
            "  rules     {} of {} are there",
            right.count(),
            self.checks.len()
        )?;
        for check in self.checks.iter().filter(|one| one.state != CheckState::Present) {
            let state = match check.state {
                CheckState::Different => "changed",
                CheckState::Present | CheckState::Missing => "missing",
            };
            writeln!(f, "  {state:<9} {}", check.what)?;
        }
        let counted = self
            .checks
            .iter()
            .filter(|one| one.packets.is_some_and(|n| n > 0));
        for check in counted.take(SHOWN_COUNTERS) {
            let packets = check.packets.unwrap_or_default();
            writeln!(f, "  counted   {packets} at {}", check.what)?;
        }
        let settings = self.settings.iter().map(|one| match one.value {
            Some(value) => format!("{}={value}", one.name),
            None => format!("{} does not exist", one.name),
        });
        let settings: Vec<String> = settings.collect();
        if !settings.is_empty() {
            writeln!(f, "  settings  {}", settings.join(", "))?;
        }
        for way in &self.ways {
            writeln!(f, "  way       {way}")?;
        }
        writeln!(
            f,
            "  flows     {} tracked, {} stale",
            self.flows,
            self.stale_flows.len()
        )?;
        self.limits
            .iter()
            .try_for_each(|limit| writeln!(f, "  unseen    {limit}"))
    }
}

impl fmt::Display for WayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = self.interface.as_deref().unwrap_or("?");
        write!(f, "{}", self.endpoint.ip())?;
        match (&self.error, self.gateway) {
            (Some(error), _) => return write!(f, ": {error}"),
            (None, Some(gateway)) => write!(f, " by {interface} through {gateway}")?,
            (None, None) => write!(f, " by {interface}")?,
        }
        match self.neighbour.as_str() {
            "local" => f.write_str(", this node's own"),
            neighbour => write!(f, ", neighbour {neighbour}"),
        }
    }
}

impl fmt::Display for LiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "live, packets to {} in {:.1} s", self.watched, self.seconds)?;
        if let Some(probe) = &self.probe {
            writeln!(f, "  probe     {probe}")?;
        }
        for (number, packet) in self.packets.iter().enumerate() {
            writeln!(f, "  packet {}", number + 1)?;
            for step in &packet.steps {
                if let Some(packet) = &step.packet {
                    writeln!(f, "    {packet}")?;
                }
                write!(f, "      {} {}: ", step.table, step.chain)?;
                if let (Some(rule), Some(handle)) = (&step.rule, step.handle) {
                    write!(f, "rule {handle}: {rule}")?;
                    if let Some(comment) = &step.comment {
                        write!(f, " comment {comment:?}")?;
                    }
                    f.write_str(" => ")?;
                }
                writeln!(f, "{}", step.verdict)?;
            }
        }
        self.limits
            .iter()
            .try_for_each(|limit| writeln!(f, "  unseen    {limit}"))
    }
}
