//! From arguments to a [`Command`], through the configuration.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::flags::{self, COMMAND_FLAGS, FLAGS, Flag, Group, Typed};
use super::{
    Action, Command, Demo, Origin, Output, Plan, Protocol, Status, Stop, Trace, completions, help, version,
};
use crate::config::values::{parse_ip, quote, split_host_port};
use crate::config::{self, Completed, Error, Level, Settings};
use crate::logging;
use crate::modes::Mode;

/// Reads a command line, the program's name first, and the configuration that it names.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, Stop> {
    let mut args = args.into_iter();
    let program = program_name(args.next());
    let mut words = Vec::new();
    for arg in args {
        let word = arg.into_string().map_err(|arg| {
            Stop::refused(format!(
                "Error: argument {} is not UTF-8 text\n",
                quote(&arg.to_string_lossy())
            ))
        })?;
        words.push(word);
    }
    // In kube-proxy's place there are no commands: its command line means what it means there.
    if program == "kube-proxy" {
        return daemon(program, &words);
    }
    let (name, rest) = match words.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("", words.as_slice()),
    };
    match name {
        "plan" | "trace" => decisions(name, rest),
        "status" => status(rest),
        "demo" => demo(rest),
        "completions" => Err(print_completions(rest)),
        "help" => Err(print_help(rest)),
        _ => daemon(program, &words),
    }
}

fn program_name(argv0: Option<OsString>) -> &'static str {
    let stem = argv0.as_deref().map(Path::new).and_then(Path::file_name);
    if stem.is_some_and(|stem| stem == "kube-proxy") {
        "kube-proxy"
    } else {
        "ferry"
    }
}

fn daemon(program: &'static str, args: &[String]) -> Result<Command, Stop> {
    let mut typed = Typed::default();
    let rest = flags::parse(&[FLAGS], args, &mut typed)
        .map_err(|error| Stop::refused(format!("{}Error: {error}\n", help::daemon(program))))?;
    for notice in &rest.notices {
        eprintln!("{notice}");
    }
    if typed.help {
        return Err(Stop::text(help::daemon(program)));
    }
    if rest.positional.iter().any(|arg| !arg.is_empty()) {
        return Err(Stop::refused(unexpected(program, &rest.positional)));
    }
    if let Some(text) = version::text(&typed.version, program) {
        return Err(Stop::text(text));
    }
    let typed = Arc::new(typed);
    let prepared = prepare(typed.clone(), true, |settings, config| {
        if typed.write_config_to.is_empty() {
            Ok(Some(settings))
        } else {
            write_config(&typed, config).map(|()| None)
        }
    });
    match prepared {
        Ok(Some(settings)) => Ok(Command::Daemon(Box::new(settings), action(&typed))),
        Ok(None) => Err(Stop::text(String::new())),
        Err(error) => {
            tracing::error!(err = error, "command failed");
            Err(Stop::failed())
        }
    }
}

/// kube-proxy's message; a hint follows where a command may have been meant.
fn unexpected(program: &str, args: &[String]) -> String {
    let shown: Vec<String> = args.iter().map(|arg| quote(arg)).collect();
    let mut text = format!(
        "Error: \"{program}\" does not take any arguments, got [{}]\n",
        shown.join(" ")
    );
    if program != "kube-proxy" {
        text.push_str("Run 'ferry help' to see the commands.\n");
    }
    text
}

fn action(typed: &Typed) -> Action {
    if typed.cleanup {
        Action::Cleanup
    } else if typed.init_only {
        Action::InitOnly
    } else {
        Action::Run
    }
}

/// Completes the configuration, starts logging as it says, judges it, and hands over what came out.
/// A command that only looks need not tell what a daemon would have chosen.
fn prepare<T>(
    typed: Arc<Typed>,
    choices: bool,
    finish: impl FnOnce(Settings, &config::written::Config) -> Result<T, String>,
) -> Result<T, String> {
    logging::init(&logging::Logging::default());
    let text = |error: Error| error.to_string();
    let completed = config::complete(&typed).map_err(text)?;
    logging::init(&completed.logging().map_err(text)?);
    for flag in FLAGS {
        tracing::info!(target: logging::PLAIN, v = 1, "FLAG: --{}={}", flag.name, quote(&flag.show(&typed)));
    }
    log_notes(&completed, choices);
    let written = completed.config.clone();
    let settings = completed.validate(typed).map_err(text)?;
    finish(settings, &written)
}

fn log_notes(completed: &Completed, choices: bool) {
    for note in &completed.notes {
        let message = &note.message;
        let field = |key| {
            note.fields
                .iter()
                .find(|(name, _)| *name == key)
                .map(|(_, value)| value.as_str())
        };
        let (err, file, lines, flag) = (field("err"), field("file"), field("lines"), field("flag"));
        match note.level {
            Level::Choice if !choices => {}
            Level::Choice | Level::Info => tracing::info!(err, file, lines, flag, "{message}"),
            Level::Warning => tracing::warn!(err, file, lines, flag, "{message}"),
        }
    }
}

fn write_config(typed: &Typed, config: &config::written::Config) -> Result<(), String> {
    let path = &typed.write_config_to;
    std::fs::write(path, config::to_yaml(config)).map_err(|error| {
        let error = format!("open {path}: {error}");
        tracing::error!(err = error, "Error running ProxyServer");
        error
    })?;
    tracing::info!(file = path.as_str(), "Wrote configuration");
    Ok(())
}

/// Reads the flags of a command; anything else it takes comes back.
fn command_flags(
    name: &str,
    tables: &[&'static [Flag]],
    args: &[String],
) -> Result<(Typed, Vec<String>), Stop> {
    let mut typed = Typed::default();
    let parsed =
        flags::parse(tables, args, &mut typed).map_err(|error| refused(name, &error.to_string(), true))?;
    for notice in &parsed.notices {
        eprintln!("{notice}");
    }
    if typed.help {
        return Err(Stop::text(help::command(name).unwrap_or_default()));
    }
    let positional: Vec<String> = parsed
        .positional
        .into_iter()
        .filter(|arg| !arg.is_empty())
        .collect();
    Ok((typed, positional))
}

fn refused(name: &str, why: &str, with_usage: bool) -> Stop {
    let usage = if with_usage {
        help::command(name).unwrap_or_default()
    } else {
        String::new()
    };
    Stop::refused(format!("{usage}Error: {why}\n"))
}

fn no_arguments(name: &str, args: &[String]) -> Result<(), Stop> {
    match args.first() {
        None => Ok(()),
        Some(arg) => Err(refused(
            name,
            &format!("unexpected argument {}", quote(arg)),
            true,
        )),
    }
}

fn decisions(name: &str, args: &[String]) -> Result<Command, Stop> {
    let own = &COMMAND_FLAGS;
    let mut tables = vec![own.output, own.mode, own.socket, FLAGS];
    if name == "trace" {
        tables.push(own.packet);
    }
    let (typed, positional) = command_flags(name, &tables, args)?;
    no_arguments(name, &positional)?;
    let output = output(name, &typed)?;
    let packet = if name == "trace" {
        Some(packet(&typed)?)
    } else {
        None
    };
    let origin = origin(name, typed)?;
    Ok(match packet {
        Some((from, to, protocol)) => Command::Trace(Trace {
            origin,
            from,
            to,
            protocol,
            output,
        }),
        None => Command::Plan(Plan { origin, output }),
    })
}

fn output(name: &str, typed: &Typed) -> Result<Output, Stop> {
    match typed.extra.output.as_str() {
        "text" => Ok(Output::Text),
        "json" => Ok(Output::Json),
        other => {
            let why = format!(
                "invalid argument {} for \"-o, --output\" flag: must be text or json",
                quote(other)
            );
            Err(refused(name, &why, false))
        }
    }
}

/// Files or a server that were named, else the running daemon.
fn origin(name: &str, typed: Typed) -> Result<Origin, Stop> {
    let named = ["manifests", "kubeconfig", "master", "config"]
        .iter()
        .any(|flag| typed.given.contains(flag));
    if named {
        let settings = prepare(Arc::new(typed), false, |settings, _| Ok(settings));
        return settings
            .map(|settings| Origin::Objects(Box::new(settings)))
            .map_err(|why| refused(name, &why, false));
    }
    let about_objects = |flag: &&Flag| !matches!(flag.group, Group::Logging) && flag.name != "status-socket";
    let tables = [FLAGS, COMMAND_FLAGS.mode];
    let stray = tables
        .into_iter()
        .flatten()
        .filter(about_objects)
        .find(|flag| typed.given.contains(flag.name));
    if let Some(flag) = stray {
        let why = format!(
            "--{} needs one of --manifests, --kubeconfig, --master and --config; without them the running daemon is asked",
            flag.name
        );
        return Err(refused(name, &why, false));
    }
    logging::init(&logging::Logging::default());
    Ok(Origin::Running(PathBuf::from(typed.config.ferry.status_socket)))
}

fn packet(typed: &Typed) -> Result<(std::net::IpAddr, SocketAddr, Protocol), Stop> {
    let missing: Vec<String> = ["from", "to"]
        .iter()
        .filter(|name| !typed.given.contains(*name))
        .map(|name| quote(name))
        .collect();
    if !missing.is_empty() {
        return Err(refused(
            "trace",
            &format!("required flag(s) {} not set", missing.join(", ")),
            true,
        ));
    }
    let wrong = |flag: &str, text: &str, why: &str| {
        refused(
            "trace",
            &format!("invalid argument {} for \"--{flag}\" flag: {why}", quote(text)),
            false,
        )
    };
    let (from, to) = (typed.extra.from.as_str(), typed.extra.to.as_str());
    let from_ip = parse_ip(from).ok_or_else(|| wrong("from", from, "must be an IP address"))?;
    let (address, protocol) = to.split_once('/').unwrap_or((to, "tcp"));
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|known| known.as_str() == protocol.to_ascii_lowercase())
        .ok_or_else(|| wrong("to", to, "the protocol must be tcp, udp or sctp"))?;
    let (host, port) = split_host_port(address).map_err(|why| wrong("to", to, &why))?;
    let ip = parse_ip(host).ok_or_else(|| wrong("to", to, "must be IP:PORT or IP:PORT/PROTOCOL"))?;
    let port = port.parse().ok().filter(|port| *port > 0);
    let port: u16 = port.ok_or_else(|| wrong("to", to, "the port must be 1 to 65535"))?;
    if ip.is_ipv4() != from_ip.is_ipv4() {
        return Err(wrong("to", to, "must be of the same IP family as --from"));
    }
    Ok((from_ip, SocketAddr::new(ip, port), protocol))
}

fn status(args: &[String]) -> Result<Command, Stop> {
    let own = &COMMAND_FLAGS;
    let (typed, positional) = command_flags("status", &[own.output, own.socket, own.help], args)?;
    no_arguments("status", &positional)?;
    let output = output("status", &typed)?;
    logging::init(&logging::Logging::default());
    Ok(Command::Status(Status {
        socket: PathBuf::from(typed.config.ferry.status_socket),
        output,
    }))
}

fn demo(args: &[String]) -> Result<Command, Stop> {
    let own = &COMMAND_FLAGS;
    let (typed, positional) = command_flags("demo", &[own.mode, own.keep, own.help], args)?;
    no_arguments("demo", &positional)?;
    let name = match typed.config.mode.as_str() {
        "" => "nftables",
        name => name,
    };
    let Some(mode) = Mode::named(name).filter(|mode| mode.demo.is_some()) else {
        let shown = Mode::ALL.iter().filter(|mode| mode.demo.is_some());
        let shown: Vec<&str> = shown.map(|mode| mode.name).collect();
        let why = format!(
            "invalid argument {} for \"--mode\" flag: the demo shows one of {}",
            quote(name),
            shown.join(", ")
        );
        return Err(refused("demo", &why, false));
    };
    logging::init(&logging::Logging::default());
    Ok(Command::Demo(Demo {
        mode,
        keep: typed.extra.keep,
    }))
}

fn print_completions(args: &[String]) -> Stop {
    let (_, positional) = match command_flags("completions", &[COMMAND_FLAGS.help], args) {
        Ok(parsed) => parsed,
        Err(stop) => return stop,
    };
    let [shell] = positional.as_slice() else {
        return refused("completions", "exactly one of bash, zsh and fish is needed", true);
    };
    match completions::script(shell) {
        Some(script) => Stop::text(script),
        None => refused(
            "completions",
            &format!("no completions for {}; bash, zsh or fish", quote(shell)),
            false,
        ),
    }
}

fn print_help(args: &[String]) -> Stop {
    match args.first().map(String::as_str) {
        None | Some("" | "help" | "-h" | "--help") => Stop::text(help::daemon("ferry")),
        Some("gates") => Stop::text(help::gates()),
        Some(name) => match help::command(name) {
            Some(text) => Stop::text(text),
            None => Stop::refused(format!("Error: there is no command {}\n", quote(name))),
        },
    }
}
