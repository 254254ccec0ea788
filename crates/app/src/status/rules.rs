//! What a mode would write, in the kernel's own language.

use std::fmt;

use ferry_model::{Family, Plan};
use serde::{Deserialize, Serialize};

use super::AddressSource;
use crate::config::Settings;

/// Everything that a mode would write for a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RulesReport {
    pub mode: String,
    pub node: String,
    /// Where the node's addresses were taken from.
    pub addresses_from: AddressSource,
    pub families: Vec<FamilyRules>,
}

/// What it would write for one family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyRules {
    /// IPv4 or IPv6.
    pub family: String,
    /// As the kernel's tools read it. None where nothing of the cluster has this family: then there is only what is
    /// written whatever the services are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<String>,
}

impl RulesReport {
    /// Of a plan, by the settings of a daemon.
    pub fn of(plan: &Plan, settings: &Settings, addresses_from: AddressSource) -> Self {
        let is_used = |family: Family| {
            let mut ports = plan.services().flat_map(|service| service.ports(family));
            plan.node().family(family).node_ip.is_some() || ports.next().is_some()
        };
        let families = Family::BOTH.map(|family| FamilyRules {
            family: family.to_string(),
            rules: is_used(family).then(|| (settings.mode.listing)(settings, plan, family)),
        });
        Self {
            mode: settings.mode.to_string(),
            node: plan.node().name.to_string(),
            addresses_from,
            families: families.into(),
        }
    }
}

impl fmt::Display for RulesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            node,
            addresses_from,
            families,
        } = self;
        writeln!(
            f,
            "# {mode} mode on node {node}; its addresses are those of {addresses_from}"
        )?;
        for FamilyRules { family, rules } in families {
            match rules {
                Some(rules) => write!(f, "\n# {family}\n{rules}")?,
                None => writeln!(f, "\n# {family}: no service and no address of the node has it")?,
            }
        }
        Ok(())
    }
}
