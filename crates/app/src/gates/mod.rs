//! Feature gates: every name of Kubernetes 1.36 is known, a few have a meaning here.
//! Pure. What always holds: a locked gate has its locked value, and what is on has everything it depends on.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::config::values::aggregate;

/// Name, stage, default and lock of every gate, and the gates it depends on if there are any: tab-separated and sorted
/// by name.
const TABLE: &str = include_str!("kubernetes-1.36.tsv");

/// How mature a feature is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Alpha, Self::Beta, Self::Ga, Self::Deprecated];

    fn name(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "GA",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Known {
    name: &'static str,
    stage: Stage,
    default: bool,
    locked: bool,
    /// Names separated by commas.
    depends_on: &'static str,
}

/// The table, read once.
static KNOWN: LazyLock<Vec<Known>> = LazyLock::new(|| TABLE.lines().filter_map(Known::parse).collect());

fn known() -> impl Iterator<Item = &'static Known> {
    KNOWN.iter()
}

impl Known {
    fn parse(line: &'static str) -> Option<Self> {
        let mut columns = line.split('\t');
        let name = columns.next()?;
        let stage = columns.next()?;
        Some(Self {
            name,
            stage: Stage::ALL.into_iter().find(|known| known.name() == stage)?,
            default: columns.next()? == "true",
            locked: columns.next()? == "true",
            depends_on: columns.next().unwrap_or_default(),
        })
    }
}

/// Which features are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// What differs from the defaults.
    changed: BTreeMap<&'static str, bool>,
    /// One line for each gate that was set although its feature is settled.
    warnings: Vec<String>,
}

impl Gates {
    /// Takes what was asked for; the error is Kubernetes' message.
    pub fn new(asked: &BTreeMap<String, bool>) -> Result<Self, String> {
        let mut gates = Self::default();
        let mut bulk = Vec::new();
        let mut faults = Vec::new();
        for (name, &value) in asked {
            let Some(gate) = known().find(|gate| gate.name == name) else {
                return Err(format!("unrecognized feature gate: {name}"));
            };
            if gate.locked && gate.default != value {
                faults.push(format!(
                    "cannot set feature gate {name} to {value}, feature is locked to {}",
                    gate.default
                ));
                continue;
            }
            match gate.stage {
                Stage::Ga => gates.warn("GA", name, value),
                Stage::Deprecated => gates.warn("deprecated", name, value),
                Stage::Alpha | Stage::Beta => {}
            }
            match gate.name {
                "AllAlpha" => bulk.push((Stage::Alpha, value)),
                "AllBeta" => bulk.push((Stage::Beta, value)),
                _ => {}
            }
            gates.changed.insert(gate.name, value);
        }
        for (stage, value) in bulk {
            let bulk_switch = |gate: &&Known| ["AllAlpha", "AllBeta"].contains(&gate.name);
            for gate in known().filter(|gate| gate.stage == stage && !bulk_switch(gate)) {
                gates.changed.entry(gate.name).or_insert(value);
            }
        }
        if faults.is_empty() {
            faults = gates.unmet_dependencies();
        }
        aggregate(&faults).map(|()| gates)
    }

    /// One line for each feature that is on while something it depends on is off.
    fn unmet_dependencies(&self) -> Vec<String> {
        let mut unmet = Vec::new();
        for gate in known().filter(|gate| !gate.depends_on.is_empty() && self.enabled(gate.name)) {
            let off: Vec<&str> = gate
                .depends_on
                .split(',')
                .filter(|name| !self.enabled(name))
                .collect();
            if !off.is_empty() {
                unmet.push(format!(
                    "{} is enabled, but depends on features that are disabled: [{}]",
                    gate.name,
                    off.join(" ")
                ));
            }
        }
        unmet
    }

    fn warn(&mut self, stage: &str, name: &str, value: bool) {
        self.warnings.push(format!(
            "Setting {stage} feature gate {name}={value}. It will be removed in a future release."
        ));
    }

    /// Whether a feature is on; names that Kubernetes does not know are off.
    pub fn enabled(&self, name: &str) -> bool {
        self.changed
            .get(name)
            .copied()
            .unwrap_or_else(|| known().any(|gate| gate.name == name && gate.default))
    }

    /// What to tell the operator about gates that need not be set any more.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Every gate with its stage, as the metrics name it, and whether it is on. A settled stage has no name there.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        known().map(|gate| {
            let stage = match gate.stage {
                Stage::Ga => "",
                Stage::Alpha | Stage::Beta | Stage::Deprecated => gate.stage.name(),
            };
            let on = self.changed.get(gate.name).copied().unwrap_or(gate.default);
            (gate.name, stage, on)
        })
    }

    /// Every gate that can be changed, with its stage and default, for the help.
    pub fn changeable() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        known()
            .filter(|gate| !gate.locked)
            .map(|gate| (gate.name, gate.stage.name(), gate.default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(pairs: &[(&str, bool)]) -> Result<Gates, String> {
        Gates::new(
            &pairs
                .iter()
                .map(|&(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }

    #[test]
    fn every_line_of_the_table_is_a_gate() {
        assert_eq!(TABLE.lines().count(), 242);
        assert_eq!(known().count(), 242);
        for line in TABLE.lines() {
            let columns: Vec<&str> = line.split('\t').collect();
            assert!((4..=5).contains(&columns.len()), "{line}");
            assert!(
                ["ALPHA", "BETA", "GA", "DEPRECATED"].contains(&columns[1]),
                "{line}"
            );
            assert!(
                columns[2..4].iter().all(|c| ["true", "false"].contains(c)),
                "{line}"
            );
            let known_name = |name| known().any(|gate| gate.name == name);
            assert!(
                columns
                    .get(4)
                    .is_none_or(|names| names.split(',').all(known_name)),
                "{line}"
            );
        }
    }

    #[test]
    fn every_gate_can_be_set_to_its_default_and_unlocked_ones_to_the_other() {
        for gate in known() {
            let same = gates(&[(gate.name, gate.default)]).unwrap();
            assert_eq!(same.enabled(gate.name), gate.default, "{}", gate.name);
            let other = gates(&[(gate.name, !gate.default)]);
            if gate.locked {
                let error = format!(
                    "cannot set feature gate {} to {}, feature is locked to {}",
                    gate.name, !gate.default, gate.default
                );
                assert_eq!(other, Err(error));
            } else {
                match other {
                    Ok(other) => assert_eq!(other.enabled(gate.name), !gate.default, "{}", gate.name),
                    Err(why) => assert!(
                        why.contains(" is enabled, but depends on features that are disabled: ["),
                        "{why}"
                    ),
                }
            }
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        assert_eq!(
            gates(&[("Foo", true)]),
            Err("unrecognized feature gate: Foo".to_owned())
        );
        assert!(!Gates::default().enabled("Foo"));
    }

    #[test]
    fn defaults_of_the_gates_that_matter_here() {
        let gates = Gates::default();
        for (name, on) in [
            ("AllowServiceExternalIPs", true),
            ("ComponentFlagz", true),
            ("ComponentStatusz", true),
            ("LoggingBetaOptions", true),
            ("LoggingAlphaOptions", false),
            ("ContextualLogging", true),
            ("NativeHistograms", false),
            ("WatchListClient", true),
            ("MultiCIDRServiceAllocator", true),
            ("PreferSameTrafficDistribution", true),
        ] {
            assert_eq!(gates.enabled(name), on, "{name}");
        }
    }

    #[test]
    fn bulk_switches_spare_what_was_set_by_name() {
        let all = gates(&[("AllAlpha", true), ("NativeHistograms", false)]).unwrap();
        assert!(all.enabled("LoggingAlphaOptions") && !all.enabled("NativeHistograms"));
        let none = gates(&[("AllBeta", false)]).unwrap();
        assert!(!none.enabled("LoggingBetaOptions") && none.enabled("AllowServiceExternalIPs"));
    }

    #[test]
    fn settled_gates_draw_a_warning() {
        let gates = gates(&[
            ("AllowServiceExternalIPs", false),
            ("KMSv1", true),
            ("WatchList", true),
        ])
        .unwrap();
        assert_eq!(
            gates.warnings(),
            [
                "Setting GA feature gate AllowServiceExternalIPs=false. It will be removed in a future release.",
                "Setting deprecated feature gate KMSv1=true. It will be removed in a future release."
            ]
        );
    }

    #[test]
    fn what_is_on_needs_what_it_depends_on() {
        assert_eq!(
            gates(&[("AllAlpha", true), ("AllBeta", false)]).unwrap_err(),
            "[PodLevelResourceManagers is enabled, but depends on features that are disabled: [PodLevelResources], \
             StorageVersionAPI is enabled, but depends on features that are disabled: [APIServerIdentity], \
             UserNamespacesHostNetworkSupport is enabled, but depends on features that are disabled: \
             [NodeDeclaredFeatures]]"
        );
        assert_eq!(
            gates(&[("GangScheduling", true)]).unwrap_err(),
            "GangScheduling is enabled, but depends on features that are disabled: [GenericWorkload]"
        );
        assert!(gates(&[("AllAlpha", true)]).is_ok());
        assert!(gates(&[("AllAlpha", true), ("AllBeta", true)]).is_ok());
        assert_eq!(gates(&[]), Ok(Gates::default()), "the defaults need nothing");
    }

    #[test]
    fn every_gate_is_told_to_the_metrics() {
        let all: Vec<_> = Gates::default().all().collect();
        assert_eq!(all.len(), 242);
        assert!(all.contains(&("MultiCIDRServiceAllocator", "", true)));
        assert!(all.contains(&("KMSv1", "DEPRECATED", false)));
        assert!(all.contains(&("ComponentFlagz", "BETA", true)));
    }

    #[test]
    fn every_locked_gate_that_was_set_is_named() {
        let why = gates(&[
            ("MultiCIDRServiceAllocator", false),
            ("AnyVolumeDataSource", false),
        ])
        .unwrap_err();
        assert_eq!(
            why,
            "[cannot set feature gate AnyVolumeDataSource to false, feature is locked to true, \
             cannot set feature gate MultiCIDRServiceAllocator to false, feature is locked to true]"
        );
    }
}
