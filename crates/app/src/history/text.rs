//! History as people read it: the time here, and under it what happened and why.

use std::fmt;

use jiff::Timestamp;

use super::report::{Entry, HistoryReport, InForce, ObjectReport, ServiceChange, What};
use crate::clock::local;
use crate::status::span;

const INDENT: &str = "              ";

impl fmt::Display for HistoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut day = String::new();
        for entry in &self.entries {
            let (date, clock) = when(&entry.time);
            if date != day {
                writeln!(f, "{date}")?;
                day = date;
            }
            write!(f, "{clock}  {entry}")?;
        }
        if self.entries.is_empty() {
            writeln!(f, "nothing is remembered of that")?;
        }
        if self.forgotten > 0 {
            writeln!(
                f,
                "{} older entries are forgotten: {} KiB are kept",
                self.forgotten,
                self.bound >> 10
            )?;
        }
        Ok(())
    }
}

/// Date and time in the zone of this machine.
fn when(time: &str) -> (String, String) {
    let Ok(time) = time.parse::<Timestamp>() else {
        return (String::new(), time.to_owned());
    };
    let time = local(time.into());
    (
        time.strftime("%Y-%m-%d %Z").to_string(),
        time.strftime("%H:%M:%S%.3f").to_string(),
    )
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Listed {
                services,
                slices,
                plan_seconds,
            } => writeln!(
                f,
                "listed everything: {services} services, {slices} slices; planned in {}",
                span(*plan_seconds)
            ),
            What::Changed { .. } => self.changed(f),
            What::Synced { .. } => self.synced(f),
            What::Failed { family, error, times } => match times {
                1 => writeln!(f, "{family} sync failed: {error}"),
                times => writeln!(f, "{family} sync failed, {times} times in a row: {error}"),
            },
            What::Refused { objects, more } => {
                let mut objects = objects.iter();
                if let Some(first) = objects.next() {
                    writeln!(f, "not served: {first}")?;
                }
                for object in objects {
                    writeln!(f, "{INDENT}not served: {object}")?;
                }
                and_more(f, *more, "objects")
            }
        }
    }
}

impl Entry {
    fn changed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let What::Changed {
            objects,
            more_objects,
            node,
            services,
            more_services,
            plan_seconds,
            in_force,
        } = &self.what
        else {
            return Ok(());
        };
        let mut named: Vec<String> = objects.iter().map(ObjectReport::to_string).collect();
        if objects.is_empty() && *node {
            named.push("the addresses of this host changed".into());
        }
        if *more_objects > 0 {
            named.push(format!("and {more_objects} more"));
        }
        writeln!(f, "{}; planned in {}", named.join(", "), span(*plan_seconds))?;
        if *node {
            writeln!(f, "{INDENT}what is planned for the node itself changed")?;
        }
        for service in services {
            write!(f, "{service}")?;
        }
        and_more(f, *more_services, "services")?;
        match in_force.as_slice() {
            [] => writeln!(f, "{INDENT}not in the kernel yet, or nothing had to be written"),
            all => {
                let all: Vec<String> = all.iter().map(InForce::to_string).collect();
                writeln!(f, "{INDENT}in the kernel {}", all.join(", "))
            }
        }
    }

    fn synced(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let What::Synced {
            family,
            sync,
            full,
            apply_seconds,
            after_seconds,
            added,
            removed,
            repaired,
            more_repaired,
            warnings,
            ..
        } = &self.what
        else {
            return Ok(());
        };
        let kind = if *full { "full" } else { "partial" };
        let (apply, after) = (span(*apply_seconds), span(*after_seconds));
        writeln!(
            f,
            "{family} sync {sync}, {kind}: {added} added, {removed} removed; written in {apply}, then {after}"
        )?;
        for repair in repaired {
            let by = repair.by.as_deref().unwrap_or("nobody knows whom");
            writeln!(f, "{INDENT}put right: {}, changed by {by}", repair.what)?;
        }
        and_more(f, *more_repaired, "repairs")?;
        warnings
            .iter()
            .try_for_each(|warning| writeln!(f, "{INDENT}warning: {warning}"))
    }
}

fn and_more(f: &mut fmt::Formatter<'_>, more: usize, what: &str) -> fmt::Result {
    if more > 0 {
        writeln!(f, "{INDENT}and {more} more {what}")?;
    }
    Ok(())
}

impl fmt::Display for ObjectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.object)?;
        if let Some(version) = self.version {
            write!(f, " at version {version}")?;
        }
        if self.gone {
            f.write_str(" is gone")?;
        }
        Ok(())
    }
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            family,
            sync,
            seconds_later,
        } = self;
        write!(f, "{:.1} ms later ({family} sync {sync})", seconds_later * 1e3)
    }
}

impl fmt::Display for ServiceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.what != "changed" || (self.moves.is_empty() && self.frontends.is_empty()) {
            writeln!(f, "{INDENT}{} is {}", self.service, self.what)?;
        }
        for moved in &self.moves {
            let (port, endpoint, way) = (&moved.port, moved.endpoint, &moved.way);
            writeln!(
                f,
                "{INDENT}{port}: {endpoint} {way} {}: {}",
                moved.pools, moved.why
            )?;
        }
        and_more(f, self.more_moves, "endpoints")?;
        for port in &self.frontends {
            let (before, after) = (&port.before, &port.after);
            writeln!(f, "{INDENT}{}: {}: {before} -> {after}", port.port, port.frontend)?;
        }
        Ok(())
    }
}
