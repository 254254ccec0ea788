//! The commands beside the daemon. A new one is a row here, a function that does it, and its own flags if it has any.

use std::process::ExitCode;

use super::flags::{self, FLAGS, Flag};
use super::{Invocation, completions, help};
use crate::commands;

/// One command.
pub(super) struct Command {
    pub(super) name: &'static str,
    /// One line of the program's help.
    pub(super) summary: &'static str,
    /// What follows the name.
    pub(super) usage: &'static str,
    /// What its own help says.
    pub(super) about: &'static str,
    pub(super) examples: &'static [&'static str],
    /// Its own flags, in tables that commands share.
    pub(super) flags: &'static [&'static [Flag]],
    pub(super) takes: Takes,
    pub(super) run: fn(Invocation) -> anyhow::Result<ExitCode>,
}

/// Which flags a command takes besides its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// Only `--help`.
    OwnFlags,
    /// The daemon's: it shows what such a daemon would do, or asks the running one.
    DaemonFlags,
}

pub(super) static COMMANDS: &[Command] = &[
    Command {
        name: "plan",
        summary: "print what would be done for every service; touches nothing",
        usage: "[flags]",
        about: "Prints what is to become of the traffic of every service: addresses, endpoints, verdicts; or, with\n\
                --rules, what the mode would write for it. Touches nothing and needs no privilege.",
        examples: &[
            "ferry plan --manifests ./services --hostname-override node-1",
            "ferry plan --kubeconfig ~/.kube/config --mode nftables -o json",
            "ferry plan --rules --mode ipvs --manifests ./services --hostname-override node-1",
        ],
        flags: &[
            flags::RULES,
            flags::OUTPUT,
            flags::MODE,
            flags::BUNDLE,
            flags::SOCKET,
        ],
        takes: Takes::DaemonFlags,
        run: commands::plan,
    },
    Command {
        name: "trace",
        summary: "print what becomes of one packet, and why",
        usage: "--from IP --to IP:PORT[/PROTOCOL] [flags]",
        about: "Prints what becomes of one packet, with the reason for each step. Sends nothing.",
        examples: &[
            "ferry trace --from 10.244.1.5 --to 10.96.0.10:53/udp",
            "ferry trace --from 192.0.2.7 --to [fd00::1]:30080 --manifests ./services",
        ],
        flags: &[
            flags::PACKET,
            flags::OUTPUT,
            flags::MODE,
            flags::BUNDLE,
            flags::SOCKET,
        ],
        takes: Takes::DaemonFlags,
        run: commands::trace,
    },
    Command {
        name: "explain",
        summary: "say why a service is or is not reached, and what to do",
        usage: "NAMESPACE/SERVICE[:PORT]|IP:PORT [flags]",
        about: "Says why a service is or is not reached: each step of the decision with the object and field behind it,\n\
                every endpoint and what keeps it in or out, then what the kernel of this node holds: rules, kernel\n\
                parameters, routes, neighbours, tracked flows. Last a verdict and what to do about it.\n\
                With --live the kernel tells the packet's way through every table, also foreign ones.\n\
                Exits with 0 if it is reachable, 1 if not, 2 if that cannot be told. Changes nothing,\n\
                but for a table of its own that is there while --live watches.",
        examples: &[
            "ferry explain shop/web",
            "ferry explain shop/web:http --from 10.244.1.5",
            "ferry explain 192.0.2.10:30080 --from outside -o json",
            "ferry explain shop/web --live --send",
            "ferry explain shop/web --manifests ./services --hostname-override node-1",
        ],
        flags: &[
            flags::ASKER,
            flags::LIVE,
            flags::OUTPUT,
            flags::MODE,
            flags::BUNDLE,
            flags::SOCKET,
        ],
        takes: Takes::DaemonFlags,
        run: commands::explain,
    },
    Command {
        name: "status",
        summary: "ask the running daemon how it is doing",
        usage: "[flags]",
        about: "Asks the daemon of this node: mode, age of the last sync, counts, skipped objects and why,\n\
                the last error, and a row for each service.",
        examples: &[
            "ferry status",
            "ferry status -o json | jq .mode",
            "ferry status --watch",
        ],
        flags: &[flags::WATCH, flags::OUTPUT, flags::SOCKET],
        takes: Takes::OwnFlags,
        run: commands::status,
    },
    Command {
        name: "history",
        summary: "ask the running daemon what changed lately, and why",
        usage: "[NAMESPACE/SERVICE] [flags]",
        about: "Asks the daemon of this node what happened lately: which object changed, which endpoints joined or left\n\
                which pool and why, when that was in the kernel, what others changed and was put right, failures.",
        examples: &["ferry history --since 10m", "ferry history shop/web -o json"],
        flags: &[flags::SINCE, flags::OUTPUT, flags::SOCKET],
        takes: Takes::OwnFlags,
        run: commands::history,
    },
    Command {
        name: "diff",
        summary: "compare the kernel with the plan, now",
        usage: "[flags]",
        about: "Lets the daemon of this node read back what the kernel holds and compare it with its plan. Writes nothing.\n\
                Exits with 0 if they agree, 1 if they differ, 2 if that cannot be found out.",
        examples: &["ferry diff", "ferry diff -o json | jq '.families[].differences'"],
        flags: &[flags::OUTPUT, flags::SOCKET],
        takes: Takes::OwnFlags,
        run: commands::diff,
    },
    Command {
        name: "flows",
        summary: "show who talks to which service through which endpoint now",
        usage: "[NAMESPACE/SERVICE] [flags]",
        about: "Asks the daemon of this node for the flows that the kernel (in userspace mode the relay) knows now, with the\n\
                service in place of its addresses; with --watch every second, with rates.",
        examples: &[
            "ferry flows",
            "ferry flows shop/web --watch",
            "ferry flows -o json | jq '.rows[0]'",
        ],
        flags: &[flags::WATCH, flags::OUTPUT, flags::SOCKET],
        takes: Takes::OwnFlags,
        run: commands::flows,
    },
    Command {
        name: "bundle",
        summary: "write all that is needed to understand this node elsewhere into one file",
        usage: "[flags]",
        about: "Writes the daemon's status, plan, history and facts, its configuration, what the kernel's own tools list, and\n\
                versions into one tar. No credentials are in it. 'ferry plan' and 'ferry trace' read it with --bundle.",
        examples: &[
            "sudo ferry bundle --file /tmp/node-1.tar",
            "ferry plan --bundle node-1.tar --mode ipvs",
        ],
        flags: &[flags::FILE, flags::SOCKET],
        takes: Takes::OwnFlags,
        run: commands::bundle,
    },
    Command {
        name: "web",
        summary: "serve pages about the running daemon to a browser on this machine",
        usage: "[flags]",
        about: "Serves pages about the daemon of this node: services, a map of each, the way of a packet, history; live.\n\
                Nothing can be changed there. Ends with Ctrl-C.",
        examples: &["sudo ferry web", "sudo ferry web --listen 127.0.0.1:9000"],
        flags: &[flags::LISTEN, flags::SOCKET],
        takes: Takes::OwnFlags,
        run: commands::web,
    },
    Command {
        name: "compare",
        summary: "say which services would behave differently in another mode, configuration or version",
        usage: "--mode MODE | --config FILE | --binary PROGRAM [flags]",
        about: "Compares what is decided now with what would be, for each kind of client and each frontend of each service,\n\
                before the switch. Now: the running daemon, or one with the flags that are given (--manifests,\n\
                --kubeconfig, --proxy-mode and the others). Touches nothing.\n\
                Exits with 0 if no packet would be treated differently, 1 if some would, 2 if that cannot be found out.",
        examples: &[
            "ferry compare --mode nftables",
            "ferry compare --config ./new.conf -o json | jq '.classes[].services'",
            "ferry compare --binary ./ferry-old --manifests ./services --hostname-override node-1",
        ],
        flags: &[flags::OTHER, flags::OUTPUT, flags::BUNDLE, flags::SOCKET],
        takes: Takes::DaemonFlags,
        run: commands::compare,
    },
    Command {
        name: "doctor",
        summary: "look for what would keep the proxy from working, and say what to do",
        usage: "[flags]",
        about: "Looks at this node as a daemon with the same flags would find it: kernel, parameters, iptables, what other\n\
                modes and proxies have left, who else serves services, the clock, and what the API server lets this\n\
                account do. Changes nothing. Ends with 1 if the proxy would not work.",
        examples: &[
            "ferry doctor --config /var/lib/kube-proxy/config.conf",
            "ferry doctor --manifests /etc/ferry/services --mode nftables -o json",
        ],
        flags: &[flags::OUTPUT, flags::MODE],
        takes: Takes::DaemonFlags,
        run: commands::doctor,
    },
    Command {
        name: "demo",
        summary: "see it work, in throw-away network namespaces",
        usage: "[flags]",
        about: "Makes network namespaces for a node, a client and three pods, runs the proxy among them, and\n\
                shows requests arriving while a service scales, breaks and heals. Needs root.",
        examples: &["sudo ferry demo", "sudo ferry demo --mode iptables --keep"],
        flags: &[flags::MODE, flags::KEEP],
        takes: Takes::OwnFlags,
        run: commands::demo,
    },
    Command {
        name: "completions",
        summary: "print a completion script for bash, zsh or fish",
        usage: "bash|zsh|fish",
        about: "Prints a completion script.",
        examples: &[
            "ferry completions bash > /etc/bash_completion.d/ferry",
            "ferry completions zsh > \"${fpath[1]}/_ferry\"",
            "ferry completions fish > ~/.config/fish/completions/ferry.fish",
        ],
        flags: &[],
        takes: Takes::OwnFlags,
        run: completions::run,
    },
    Command {
        name: "help",
        summary: "show this text, or that of a command",
        usage: "[command]",
        about: "Shows the help of the program or of a command; 'ferry help gates' lists the feature gates.",
        examples: &["ferry help trace", "ferry help gates"],
        flags: &[],
        takes: Takes::OwnFlags,
        run: help::run,
    },
];

impl Command {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        COMMANDS.iter().find(|command| command.name == name)
    }

    /// Every table of flags that it understands, its own first.
    pub(super) fn tables(&self) -> Vec<&'static [Flag]> {
        let mut tables = self.flags.to_vec();
        tables.push(match self.takes {
            Takes::OwnFlags => flags::HELP,
            Takes::DaemonFlags => FLAGS,
        });
        tables
    }
}
