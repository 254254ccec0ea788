//! A status as text: a few lines about the daemon, then the table of services.

use std::fmt;

use super::report::{FamilyReport, StatusReport, StatusRow};

impl fmt::Display for StatusReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "ferry {} (Kubernetes {}), mode {}, node {}, pid {}, up {}",
            self.version,
            self.kubernetes,
            self.mode,
            self.node,
            self.pid,
            span(self.uptime_seconds as f64)
        )?;
        writeln!(f, "source   {}", self.source)?;
        if !self.waiting_for.is_empty() {
            writeln!(
                f,
                "waiting  for the first list of {}; no rule is touched before",
                self.waiting_for.join(", ")
            )?;
        }
        if let Some(seconds) = self.syncing_seconds {
            writeln!(f, "syncing  for {}", span(seconds))?;
        }
        for family in &self.families {
            write!(f, "{family}")?;
        }
        writeln!(
            f,
            "objects  services: {}, slices: {}, not served: {}",
            self.services, self.slices, self.not_served
        )?;
        list(f, "problem  ", &self.problems)?;
        list(f, "skipped  ", &self.skipped)?;
        list(f, "note     ", &self.notes)?;
        match &self.rows {
            None => writeln!(f, "\nthe loop is busy; ask again for the services"),
            Some(rows) if rows.is_empty() => Ok(()),
            Some(rows) => table(f, rows),
        }
    }
}

impl fmt::Display for FamilyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last_sync_age_seconds {
            Some(age) => write!(
                f,
                "{:<8} synced {} ago in {}",
                self.family,
                span(age),
                span(self.last_sync_duration_seconds)
            )?,
            None => write!(f, "{:<8} not synced yet", self.family)?,
        }
        write!(
            f,
            "; {} syncs, {} failures, {} repairs",
            self.syncs, self.failures, self.repairs
        )?;
        writeln!(f, "; {} ports, {} endpoints", self.ports, self.endpoints)?;
        if let Some(error) = &self.error {
            writeln!(f, "         last error: {error}")?;
        }
        if let Some(repair) = &self.last_repair {
            writeln!(f, "         last repair: {repair}")?;
        }
        list(f, "         warning: ", &self.warnings)
    }
}

fn list(f: &mut fmt::Formatter<'_>, head: &str, lines: &[String]) -> fmt::Result {
    lines.iter().try_for_each(|line| writeln!(f, "{head}{line}"))
}

/// A length of time as a person says it.
pub(crate) fn span(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        _ if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        _ if seconds < 60.0 => format!("{seconds:.0} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole / 60 % 60),
        _ => format!("{} d {} h", whole / 86_400, whole / 3600 % 24),
    }
}

fn table(f: &mut fmt::Formatter<'_>, rows: &[StatusRow]) -> fmt::Result {
    let counted = rows.iter().any(|row| row.connections.is_some());
    let mut lines = vec![vec!["SERVICE", "ADDRESS", "ENDPOINTS", "INSIDE", "OUTSIDE"]];
    if counted {
        lines[0].push("CONNECTIONS");
    }
    let mut lines: Vec<Vec<String>> = lines
        .into_iter()
        .map(|line| line.into_iter().map(str::to_owned).collect())
        .collect();
    lines.extend(rows.iter().map(|row| {
        let mut line = vec![
            row.service.clone(),
            row.address.clone(),
            if row.used == row.known {
                row.used.to_string()
            } else {
                format!("{}/{}", row.used, row.known)
            },
            row.internal.clone(),
            row.external.clone().unwrap_or_else(|| "-".into()),
        ];
        if counted {
            line.push(
                row.connections
                    .map_or_else(|| "-".into(), |count| count.to_string()),
            );
        }
        line
    }));
    writeln!(f)?;
    columns(f, &lines)
}

/// Lines of cells, so that columns stand below each other; the first line has the most.
pub(crate) fn columns(f: &mut fmt::Formatter<'_>, lines: &[Vec<String>]) -> fmt::Result {
    let count = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines
            .iter()
            .filter_map(|line| line.get(column))
            .map(String::len)
            .max()
    };
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    for line in lines {
        let cells = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_well() {
        let cases = [
            (0.000_042, "42 us"),
            (0.25, "250 ms"),
            (3.2, "3 s"),
            (61.0, "1 min 1 s"),
            (7260.0, "2 h 1 min"),
            (200_000.0, "2 d 7 h"),
        ];
        for (seconds, text) in cases {
            assert_eq!(span(seconds), text);
        }
    }

    const EXPECTED: &str = "\
ferry 0.1.0 (Kubernetes v1.36.4), mode nftables, node node-1, pid 42, up 1 h 1 min
source   https://10.0.0.1:6443
IPv4     synced 12 s ago in 500 us; 7 syncs, 1 failures, 1 repairs; 2 ports, 3 endpoints
         last error: write table: no
         last repair: table kube-proxy
objects  services: 2, slices: 2, not served: 1
problem  web.yaml: line 3: not YAML
skipped  Service shop/bad: no ports

SERVICE          ADDRESS            ENDPOINTS  INSIDE   OUTSIDE  CONNECTIONS
shop/web:http    10.96.0.1:80/tcp   2/3        forward  drop     1234
kube-system/dns  10.96.0.10:53/udp  0          reject   -        -
";

    #[test]
    fn a_status_reads_well() {
        let report = StatusReport {
            version: "0.1.0".into(),
            kubernetes: "v1.36.4".into(),
            mode: "nftables".into(),
            node: "node-1".into(),
            pid: 42,
            source: "https://10.0.0.1:6443".into(),
            uptime_seconds: 3700,
            waiting_for: vec![],
            syncing_seconds: None,
            families: vec![FamilyReport {
                family: "IPv4".into(),
                last_sync: Some("2026-11-15T10:47:51Z".into()),
                last_sync_age_seconds: Some(12.0),
                last_sync_duration_seconds: 0.0005,
                syncs: 7,
                failures: 1,
                error: Some("write table: no".into()),
                repairs: 1,
                last_repair: Some("table kube-proxy".into()),
                ports: 2,
                endpoints: 3,
                warnings: vec![],
            }],
            services: 2,
            slices: 2,
            not_served: 1,
            skipped: vec!["Service shop/bad: no ports".into()],
            problems: vec!["web.yaml: line 3: not YAML".into()],
            notes: vec![],
            rows: Some(vec![
                StatusRow {
                    service: "shop/web:http".into(),
                    address: "10.96.0.1:80/tcp".into(),
                    used: 2,
                    known: 3,
                    internal: "forward".into(),
                    external: Some("drop".into()),
                    connections: Some(1234),
                },
                StatusRow {
                    service: "kube-system/dns".into(),
                    address: "10.96.0.10:53/udp".into(),
                    used: 0,
                    known: 0,
                    internal: "reject".into(),
                    external: None,
                    connections: None,
                },
            ]),
        };
        assert_eq!(report.to_string(), EXPECTED);
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<StatusReport>(&json).unwrap(), report);
    }
}
