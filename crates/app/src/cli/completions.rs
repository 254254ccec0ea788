//! Completion scripts, generated from the table of flags.

use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::{Shell, generate};

use super::flags::{COMMAND_FLAGS, FLAGS, Flag, Kind};

/// The script for a shell; `None`: not a shell we know.
pub(super) fn script(shell: &str) -> Option<String> {
    let shell = match shell {
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => return None,
    };
    let mut out = Vec::new();
    generate(shell, &mut program(), "ferry", &mut out);
    String::from_utf8(out).ok()
}

/// The program as the generator wants to see it. Nothing is parsed with it.
fn program() -> Command {
    let own = &COMMAND_FLAGS;
    let decisions = |name, about, tables: &[&'static [Flag]]| {
        let mut tables = tables.to_vec();
        tables.extend([own.output, own.mode, own.socket, FLAGS]);
        command(name, about, &tables)
    };
    let shells = Arg::new("shell").value_parser(["bash", "zsh", "fish"]);
    command("ferry", "Carries the traffic of Kubernetes Services", &[FLAGS])
        .subcommand(decisions(
            "plan",
            "Print what would be done for every service",
            &[],
        ))
        .subcommand(decisions(
            "trace",
            "Print what becomes of one packet",
            &[own.packet],
        ))
        .subcommand(command(
            "status",
            "Ask the running daemon",
            &[own.output, own.socket, own.help],
        ))
        .subcommand(command("demo", "See it work", &[own.mode, own.keep, own.help]))
        .subcommand(command("completions", "Print a completion script", &[own.help]).arg(shells))
        .disable_help_subcommand(true)
        .subcommand(command("help", "Show help", &[]))
}

fn command(name: &'static str, about: &'static str, tables: &[&'static [Flag]]) -> Command {
    let flags = tables
        .iter()
        .copied()
        .flatten()
        .filter(|flag| flag.deprecated.is_none());
    Command::new(name)
        .about(about)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(flags.map(arg))
}

fn arg(flag: &'static Flag) -> Arg {
    let mut arg = Arg::new(flag.name).long(flag.name).help(flag.help);
    if let Some(short) = flag.short {
        arg = arg.short(short);
    }
    if flag.implied().is_some() {
        return arg.action(ArgAction::SetTrue);
    }
    match &flag.kind {
        Kind::Word(_, words) => arg.value_parser(words.to_vec()),
        Kind::Path(_) => arg.value_hint(ValueHint::AnyPath),
        _ => arg,
    }
}
