//! A Markdown table.

use std::fmt;

#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Table {
        Table {
            rows: vec![head.iter().map(|h| (*h).to_owned()).collect()],
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, row) in self.rows.iter().enumerate() {
            writeln!(f, "| {} |", row.join(" | "))?;
            if i == 0 {
                writeln!(f, "|{}", "---|".repeat(row.len()))?;
            }
        }
        Ok(())
    }
}

/// Seconds in the unit that reads best.
pub(crate) fn seconds(value: f64) -> String {
    if value >= 1.0 {
        format!("{value:.2} s")
    } else if value >= 1e-3 {
        format!("{:.2} ms", value * 1e3)
    } else {
        format!("{:.1} us", value * 1e6)
    }
}

/// The middle one.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The value below which that share of all lies; sorts.
pub(crate) fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_well() {
        let mut table = Table::new(&["what", "ferry"]);
        table.row(["start".to_owned(), seconds(0.0123)]);
        assert_eq!(
            table.to_string(),
            "| what | ferry |\n|---|---|\n| start | 12.30 ms |\n"
        );
        assert_eq!(
            (seconds(2.0), seconds(3.2e-5)),
            ("2.00 s".into(), "32.0 us".into())
        );
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(quantile(&mut [1.0, 2.0, 3.0, 4.0], 0.99), 4.0);
    }
}
