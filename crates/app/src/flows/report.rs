//! Flows as values, and as a table.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// So many rows are printed; all are in the JSON.
const PRINTED: usize = 50;

/// What `ferry flows` shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowsReport {
    /// Who knows: connection tracking, or the relay of userspace mode.
    pub source: String,
    /// Over how many seconds rates were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The busiest first.
    pub rows: Vec<FlowRow>,
    /// Translated flows that are no service's.
    pub others: u64,
    /// Flows that there was no room to tell apart.
    pub left_out: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The flows between one client and one endpoint, through one frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowRow {
    /// `namespace/name:port`.
    pub service: String,
    /// Where the client sends to.
    pub frontend: String,
    pub client: String,
    pub endpoint: SocketAddr,
    /// How many there are now.
    pub flows: u64,
    /// What they carried so far, towards the endpoint and back, where it is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<FlowRate>,
}

/// Per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowRate {
    pub new: f64,
    pub bytes_to: f64,
    pub bytes_back: f64,
}

impl fmt::Display for FlowsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut head = vec!["SERVICE", "FRONTEND", "CLIENT", "ENDPOINT", "FLOWS"];
        head.extend(match self.seconds {
            Some(_) => &["NEW/S", "TO/S", "BACK/S"][..],
            None => &["TO", "BACK"],
        });
        let mut lines = vec![head.into_iter().map(str::to_owned).collect::<Vec<String>>()];
        lines.extend(self.rows.iter().take(PRINTED).map(FlowRow::cells));
        crate::status::columns(f, &lines)?;
        if self.rows.is_empty() {
            writeln!(f, "no flow is known to {}", self.source)?;
        }
        if self.rows.len() > PRINTED {
            writeln!(
                f,
                "... and {} more rows; -o json has them",
                self.rows.len() - PRINTED
            )?;
        }
        if self.left_out > 0 {
            writeln!(f, "{} flows more than could be told apart", self.left_out)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

impl FlowRow {
    fn cells(&self) -> Vec<String> {
        let mut cells = vec![
            self.service.clone(),
            self.frontend.clone(),
            self.client.clone(),
            self.endpoint.to_string(),
            self.flows.to_string(),
        ];
        match (&self.rate, self.bytes) {
            (Some(rate), bytes) => {
                let counted = |rate: f64| bytes.map_or_else(|| "-".into(), |_| amount(rate));
                cells.extend([
                    format!("{:.1}", rate.new),
                    counted(rate.bytes_to),
                    counted(rate.bytes_back),
                ]);
            }
            (None, Some((to, back))) => cells.extend([amount(to as f64), amount(back as f64)]),
            (None, None) => cells.extend(["-".into(), "-".into()]),
        }
        cells
    }
}

/// Bytes as a person says them.
pub(crate) fn amount(bytes: f64) -> String {
    match bytes {
        ..1e3 => format!("{bytes:.0} B"),
        ..1e6 => format!("{:.1} kB", bytes / 1e3),
        ..1e9 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.1} GB", bytes / 1e9),
    }
}
