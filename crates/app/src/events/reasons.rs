//! The reasons that events give: one table for the code and for the reference in the book.

use super::Severity;

/// A kind of event.
#[derive(Debug)]
pub struct Reason {
    /// One word, for machines.
    pub name: &'static str,
    pub severity: Severity,
    /// What was being done.
    pub action: &'static str,
    /// The object that it is about.
    pub about: &'static str,
    /// For people who look it up: when it is sent, and what to do.
    pub when: &'static str,
    pub remedy: &'static str,
}

/// kube-proxy's action for everything about its start.
const START: &str = "StartKubeProxy";

macro_rules! reasons {
    ($($constant:ident: $name:literal $severity:ident $action:expr, $about:literal, $when:literal, $remedy:literal;)*) => {
        $(pub(super) static $constant: Reason = Reason {
            name: $name,
            severity: Severity::$severity,
            action: $action,
            about: $about,
            when: $when,
            remedy: $remedy,
        };)*

        /// All of them.
        pub static REASONS: &[&Reason] = &[$(&$constant),*];
    };
}

reasons! {
    STARTING: "Starting" Normal START, "Node",
        "The daemon serves.",
        "Nothing.";
    IPVS_DEPRECATION: "IPVSDeprecation" Warning START, "Node",
        "ipvs mode is used, which kube-proxy has deprecated.",
        "Plan to change to nftables mode: `mode: nftables`.";
    HEALTHZ_FAILED: "FailedToStartProxierHealthcheck" Warning START, "Node",
        "The address of `healthzBindAddress` is taken, and `bindAddressHardFail` is set.",
        "Find out who has it (`ss -ltnp`), choose another address, or do without `bindAddressHardFail`: then it is tried every 5 s.";
    METRICS_FAILED: "FailedToStartMetricServer" Warning START, "Node",
        "The same for `metricsBindAddress`.",
        "The same.";
    SERVICE_HEALTH_CHECK_FAILED: "FailedToStartServiceHealthcheck" Warning "Listen", "Service",
        "The service's health-check node port is taken.",
        "Find out who has it (`ss -ltnp`); it is tried again after each sync.";
    PORT_TAKEN: "PortTaken" Warning "Hold", "Service",
        "A process of this node has a port that `--hold-node-ports` is to hold; the service is served all the same.",
        "Find out who has it (`ss -lntup`) and move it: it gets no traffic. It is tried again with each sync.";
    NOT_SERVED: "NotServed" Warning "Plan", "Service, else Node",
        "An object, or a part of it, is not valid. At most 20 are told at a time; `ferry status` has all.",
        "Mend what the note names; the rest of the object is served.";
    CONTESTED: "FrontendContested" Warning "Plan", "both Services",
        "Two services ask for the same address and port, or node port. One has it: cluster IP before load-balancer IP before external IP, then the older service, then the lower name.",
        "Give one of them another address or port.";
    REPAIRED: "RulesRepaired" Warning "Repair", "Node",
        "Somebody else changed our rules, or keeps changing them; the note says what, and who where the kernel tells.",
        "Find out who it is: a firewall that flushes everything, or a second proxy (`ferry doctor` looks for one).";
    MIXED_IPTABLES: "MixedIPTables" Warning START, "Node",
        "Both kinds of iptables, nft and legacy, hold kube-proxy's chains; both are in force.",
        "Let everything on the node use one kind (`update-alternatives --config iptables`); `ferry --cleanup` removes both.";
    CONFIG_REFUSED: "ConfigurationRefused" Warning "ReloadConfiguration", "Node",
        "A changed configuration file is not valid; the one before stays in force.",
        "Mend the file and line that the note names; `ferry plan --config FILE` says whether it is good.";
}
