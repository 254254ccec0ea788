//! Where the kernel differs from the plan, as a value and as text.

use std::fmt;

use ferry_backends::Backend;
use ferry_model::{Family, Plan};
use serde::{Deserialize, Serialize};

/// So many differences of a family are told; the others are counted.
const MAX_TOLD: usize = 1000;

/// What `ferry diff` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffReport {
    pub mode: String,
    pub families: Vec<FamilyDiff>,
}

/// One family's part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyDiff {
    /// IPv4 or IPv6.
    pub family: String,
    /// The first of them, where they are many.
    pub differences: Vec<String>,
    /// How many there are.
    pub count: usize,
    /// Why it could not be found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl DiffReport {
    /// Asks the backend about each family.
    pub(super) fn of(mode: &str, families: &[Family], plan: &Plan, backend: &mut dyn Backend) -> Self {
        let family = |family: &Family| {
            let (mut differences, error) = match backend.differences(plan, *family) {
                Ok(differences) => (differences, None),
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            let count = differences.len();
            differences.truncate(MAX_TOLD);
            FamilyDiff {
                family: family.to_string(),
                differences,
                count,
                error,
            }
        };
        Self {
            mode: mode.to_owned(),
            families: families.iter().map(family).collect(),
        }
    }

    /// Whether plan and kernel agree; none if that could not be found out.
    pub fn agrees(&self) -> Option<bool> {
        let is_known = self.families.iter().all(|family| family.error.is_none());
        is_known.then(|| self.families.iter().all(|family| family.count == 0))
    }
}

impl fmt::Display for DiffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for FamilyDiff {
            family,
            differences,
            count,
            error,
        } in &self.families
        {
            match (error, count) {
                (Some(error), _) => writeln!(f, "{family}: not known: {error}")?,
                (None, 0) => writeln!(
                    f,
                    "{family}: the kernel holds what the plan says ({} mode)",
                    self.mode
                )?,
                (None, count) => writeln!(
                    f,
                    "{family}: {count} difference(s) from the plan ({} mode)",
                    self.mode
                )?,
            }
            for difference in differences {
                writeln!(f, "  {difference}")?;
            }
            if *count > differences.len() {
                writeln!(f, "  ... and {} more", count - differences.len())?;
            }
        }
        Ok(())
    }
}
