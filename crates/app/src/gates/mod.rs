//! Feature gates: every name of Kubernetes 1.36 is known, a few have a meaning here.
//! Pure. What always holds: a locked gate has its locked value.

use std::collections::BTreeMap;

/// Name, stage, default and lock of every gate, tab-separated and sorted by name.
const TABLE: &str = include_str!("kubernetes-1.36.tsv");

/// How mature a feature is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    name: &'static str,
    stage: Stage,
    default: bool,
    locked: bool,
}

fn known() -> impl Iterator<Item = Known> {
    TABLE.lines().filter_map(|line| {
        let mut columns = line.split('\t');
        let name = columns.next()?;
        let stage = match columns.next()? {
            "ALPHA" => Stage::Alpha,
            "BETA" => Stage::Beta,
            "GA" => Stage::Ga,
            _ => Stage::Deprecated,
        };
        Some(Known {
            name,
            stage,
            default: columns.next()? == "true",
            locked: columns.next()? == "true",
        })
    })
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
        for (name, &value) in asked {
            let Some(gate) = known().find(|gate| gate.name == name) else {
                return Err(format!("unrecognized feature gate: {name}"));
            };
            if gate.locked && gate.default != value {
                return Err(format!(
                    "cannot set feature gate {name} to {value}, feature is locked to {}",
                    gate.default
                ));
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
            for gate in known().filter(|gate| gate.stage == stage && !gate.locked) {
                gates.changed.entry(gate.name).or_insert(value);
            }
        }
        Ok(gates)
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

    /// Every gate that can be changed, with its stage and default, for the help.
    pub fn changeable() -> impl Iterator<Item = (&'static str, String)> {
        known().filter(|gate| !gate.locked).map(|gate| {
            let stage = match gate.stage {
                Stage::Alpha => "ALPHA",
                Stage::Beta => "BETA",
                Stage::Ga => "GA",
                Stage::Deprecated => "DEPRECATED",
            };
            (
                gate.name,
                format!("{stage:<11}{}", if gate.default { "on" } else { "off" }),
            )
        })
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
            assert_eq!(columns.len(), 4, "{line}");
            assert!(
                ["ALPHA", "BETA", "GA", "DEPRECATED"].contains(&columns[1]),
                "{line}"
            );
            assert!(
                columns[2..].iter().all(|c| ["true", "false"].contains(c)),
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
                assert_eq!(other.unwrap().enabled(gate.name), !gate.default, "{}", gate.name);
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
}
